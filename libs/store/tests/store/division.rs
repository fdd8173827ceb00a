//! The cut by which a cell divides, on two databases. The second one is a copy of the first, as a
//! standby that is promoted after the fence.
//!
//! The statements of the stages run in a role that the policies bind, as those of the stages.
//!
//! - [`conditions`]: what must hold besides the order of the steps.
//! - [`steps`]: random steps of all that happens meanwhile.

mod conditions;
mod steps;

use std::time::Duration;

use domain::{PartnerId, PlacementId};
use pg::{
    actions::{Action, Actor},
    primary::{DurabilityConfig, Unfit},
};
use sqlx::{ConnectOptions, PgConnection};
use store::{
    deliveries,
    orders::{self, NewOrder},
    placements::{self, Claim},
};
use testkit::wait;
use tools::cells::{
    division::{self, NotDivided},
    membrane, purge,
};
use uuid::Uuid;

use crate::bench::{
    Bench, LEASE, PROVIDER, answered, bought, config, execute, placement, ready, topups,
};

pub const ACTION: Action<'static> = Action {
    actor: Actor::esimctl("test"),
    command: domain::Command::CellDivide,
    target: "test",
    reason: "test",
};
const CELLS: (&str, &str) = ("a", "b");
/// Goes on in a role that may do everything, and that policies bind, unlike the superuser of the tests.
pub const BOUND: &str = "DO $$ BEGIN CREATE ROLE esim_bound; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
    GRANT ALL ON ALL TABLES IN SCHEMA public TO esim_bound; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO esim_bound;
    GRANT USAGE ON SCHEMA public TO esim_bound; SET ROLE esim_bound";
/// Long enough for the sweep to see rows that were made at the start of a test.
const NO_LEASE: Duration = Duration::ZERO;
/// Rows of a partner that this database serves which no sweep would find any more, and nobody else.
const FORGOTTEN: &str = "
    SELECT (SELECT count(*) FROM placements p JOIN partners USING (partner_id), walks k
            WHERE moved_to IS NULL AND k.name = 'placements' AND p.state IN ('accepted', 'placing') AND p.created_at <= k.up_to
              AND NOT EXISTS (SELECT FROM work w WHERE w.id = p.placement_id))
         + (SELECT count(*) FROM deliveries d JOIN partners USING (partner_id), walks k
            WHERE moved_to IS NULL AND k.name = 'deliveries' AND d.state = 'pending' AND d.created_at <= k.up_to
              AND NOT EXISTS (SELECT FROM work w WHERE w.id = d.delivery_id)
              AND NOT EXISTS (SELECT FROM held h WHERE h.id = d.delivery_id))";

/// A connection as the owner has it, who is a superuser here.
async fn owner(bench: &Bench) -> PgConnection {
    bench.pool.connect_options().connect().await.unwrap()
}

/// A connection in a role that policies bind, as those of the stages.
async fn stage(bench: &Bench) -> PgConnection {
    let mut connection = owner(bench).await;
    execute(&mut connection, BOUND).await;
    connection
}

/// The whole database as a standby that was promoted has it.
async fn copy(bench: &Bench) -> Bench {
    Bench::of(bench.database.copy().await.unwrap())
}

async fn count(bench: &Bench, statement: &'static str) -> i64 {
    let mut connection = owner(bench).await;
    sqlx::query_scalar(statement)
        .fetch_one(&mut connection)
        .await
        .unwrap()
}

/// A cell with two partners, of which the first leaves.
struct Cell {
    a: Bench,
    leaving: PartnerId,
    staying: PartnerId,
}

impl Cell {
    async fn new() -> Self {
        let a = Bench::new().await;
        let leaving = a.partner(Some("https://leaving.example/")).await;
        let staying = a.partner(Some("https://staying.example/")).await;
        Self {
            a,
            leaving,
            staying,
        }
    }

    async fn orders(&self) -> [NewOrder; 2] {
        [
            self.a.stored(answered(self.leaving, 1)).await,
            self.a.stored(answered(self.staying, 1)).await,
        ]
    }

    async fn freeze(&self) {
        let mut connection = owner(&self.a).await;
        let partners = [self.leaving.uuid()];
        division::freeze(&mut connection, CELLS, &partners, ACTION)
            .await
            .unwrap();
    }

    async fn fence(&self) {
        self.freeze().await;
        division::fence(&mut owner(&self.a).await).await.unwrap();
    }
}

async fn claim(bench: &Bench, named: &[PlacementId], which: Claim) -> Vec<PlacementId> {
    let claimed = placements::claim(&mut stage(bench).await, PROVIDER, named, which, LEASE).await;
    claimed
        .unwrap()
        .into_iter()
        .map(|one| one.placement_id)
        .collect()
}

/// Sweeps until the walk has passed all that is there now.
async fn sweep(bench: &Bench) {
    let mut connection = stage(bench).await;
    let now: time::OffsetDateTime = sqlx::query_scalar("SELECT clock_timestamp()")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    wait::soon("the sweep to pass", async || {
        placements::sweep(&mut connection, NO_LEASE).await?;
        deliveries::sweep(&mut connection, NO_LEASE).await?;
        let query = "SELECT min(up_to) > $1 FROM walks WHERE name IN ('placements', 'deliveries')";
        let passed: bool = sqlx::query_scalar(query)
            .bind(now)
            .fetch_one(&mut connection)
            .await?;
        Ok(passed.then_some(()))
    })
    .await;
}

async fn activate(bench: &Bench) -> Result<u64, NotDivided> {
    division::activate(&mut owner(bench).await, "b", ACTION).await
}

#[tokio::test]
async fn each_side_sees_its_own_partners_only_from_one_commit_on() {
    let cell = Cell::new().await;
    let [leaves, stays] = cell.orders().await;
    let both = [placement(&leaves), placement(&stays)];
    cell.freeze().await;
    // From then on no order of the partner is stored, also by an ingress that knows nothing of it.
    let refused = orders::insert(&mut stage(&cell.a).await, &[answered(cell.leaving, 1)]).await;
    assert!(orders::is_frozen(&refused.unwrap_err()));
    division::fence(&mut owner(&cell.a).await).await.unwrap();
    // Nobody acts for the partner in the old cell, by name or by a look.
    assert_eq!(claim(&cell.a, &both, Claim::Fresh).await, [both[1]]);
    let units = topups(&leaves).iter().map(ready).collect();
    let late = [bought(both[0], 1, units, true)];
    let settled = placements::settle(&mut stage(&cell.a).await, &late).await;
    assert!(!settled.unwrap()[0].moved);
    let refused = orders::insert(&mut stage(&cell.a).await, &[answered(cell.leaving, 1)]).await;
    assert!(orders::is_frozen(&refused.unwrap_err()));

    let b = copy(&cell.a).await;
    assert!(matches!(
        division::activate(&mut owner(&b).await, "c", ACTION).await,
        Err(NotDivided::NotFor { .. })
    ));
    assert_eq!(activate(&b).await.unwrap(), 1);
    assert_eq!(claim(&b, &both, Claim::Fresh).await, [both[0]]);
    let refused = orders::insert(&mut stage(&b).await, &[answered(cell.staying, 1)]).await;
    assert!(orders::is_frozen(&refused.unwrap_err()));
    b.stored(answered(cell.leaving, 1)).await;
    division::finish(&mut owner(&cell.a).await).await.unwrap();

    // What each side has copied of the other is purged in steps, of which each may be the last.
    for bench in [&cell.a, &b] {
        let mut connection = owner(bench).await;
        let foreign = purge::foreign(&mut connection).await.unwrap();
        assert_eq!(foreign.len(), 1);
        assert!(membrane::is_up(&mut connection).await.unwrap());
        purge::end(&mut connection).await.unwrap();
        assert!(
            membrane::is_up(&mut connection).await.unwrap(),
            "orders are left"
        );
        while purge::step(&mut owner_that_sees(bench).await, foreign[0])
            .await
            .unwrap()
            .1
        {}
        purge::end(&mut connection).await.unwrap();
        assert!(!membrane::is_up(&mut connection).await.unwrap());
    }
    let orders = "SELECT count(*) FROM orders";
    assert_eq!(
        (count(&cell.a, orders).await, count(&b, orders).await),
        (1, 2)
    );
    let policies = "SELECT count(*) FROM pg_policy WHERE polname IN ('here', 'elsewhere')";
    let forced = "SELECT count(*) FROM pg_class WHERE relforcerowsecurity";
    for bench in [&cell.a, &b] {
        assert_eq!(
            (count(bench, policies).await, count(bench, forced).await),
            (0, 0)
        );
    }
}

/// The session of a purge.
async fn owner_that_sees(bench: &Bench) -> PgConnection {
    let mut connection = owner(bench).await;
    execute(&mut connection, "SET esim.elsewhere = 'seen'").await;
    connection
}

/// An order in its first lease has no row in `work` yet. The sweep of the old cell goes past it while
/// it is hidden, and the copy inherits its position.
#[tokio::test]
async fn the_new_cell_sweeps_again_what_the_old_one_passed_without_seeing_it() {
    let cell = Cell::new().await;
    cell.orders().await;
    cell.fence().await;
    sweep(&cell.a).await;
    let b = copy(&cell.a).await;
    activate(&b).await.unwrap();
    assert_eq!(count(&b, FORGOTTEN).await, 0);
    assert_eq!(count(&cell.a, FORGOTTEN).await, 0);
    sweep(&b).await;
    assert_eq!(count(&b, FORGOTTEN).await, 0);
    let work = "SELECT count(*) FROM work JOIN partners USING (partner_id) WHERE moved_to IS NULL";
    assert_eq!(count(&b, work).await, 1);
}

#[tokio::test]
async fn a_division_that_is_taken_back_forgets_nothing() {
    let cell = Cell::new().await;
    let [leaves, _] = cell.orders().await;
    cell.fence().await;
    sweep(&cell.a).await;
    // The copy is promoted, and then it is of no use any more.
    let b = copy(&cell.a).await;
    division::void(&mut owner(&b).await, "b").await.unwrap();
    division::cancel(&mut owner(&cell.a).await, ACTION)
        .await
        .unwrap();
    assert!(matches!(activate(&b).await, Err(NotDivided::NotFor { .. })));
    assert_eq!(count(&cell.a, FORGOTTEN).await, 0);
    assert!(!membrane::is_up(&mut owner(&cell.a).await).await.unwrap());
    cell.a.stored(answered(cell.leaving, 1)).await;
    assert_eq!(
        claim(&cell.a, &[placement(&leaves)], Claim::Fresh)
            .await
            .len(),
        1
    );
    // An activated copy is not taken back.
    cell.fence().await;
    let b = copy(&cell.a).await;
    activate(&b).await.unwrap();
    let void = division::void(&mut owner(&b).await, "b").await;
    assert!(matches!(void, Err(NotDivided::Activated(_))));
}

/// Each step may be repeated, and a repeated fence keeps the positions of the first.
#[tokio::test]
async fn a_repeated_fence_keeps_the_first_positions() {
    let cell = Cell::new().await;
    cell.orders().await;
    cell.fence().await;
    sweep(&cell.a).await;
    division::fence(&mut owner(&cell.a).await).await.unwrap();
    let b = copy(&cell.a).await;
    activate(&b).await.unwrap();
    assert_eq!(count(&b, FORGOTTEN).await, 0);
}

#[tokio::test]
async fn no_stage_works_in_a_copy_before_its_activation_nor_in_another_cell() {
    let cell = Cell::new().await;
    cell.orders().await;
    cell.fence().await;
    let b = copy(&cell.a).await;
    let of = |bench: &Bench, name: Option<&str>| {
        let mut config = config(bench.database.url());
        config.durability = DurabilityConfig {
            cell: name.map(str::to_owned),
            ..DurabilityConfig::default()
        };
        config.open("test").unwrap()
    };
    let works = async |bench: &Bench, name: Option<&str>| {
        let database = of(bench, name);
        let answer: pg::Result<i32> = database
            .run(async |connection| {
                Ok(sqlx::query_scalar("SELECT 1").fetch_one(connection).await?)
            })
            .await;
        match answer {
            Ok(_) => None,
            Err(pg::Error::Unfit(unfit)) => Some(unfit),
            Err(error) => panic!("{error}"),
        }
    };
    assert!(works(&cell.a, Some("a")).await.is_none());
    assert!(works(&cell.a, None).await.is_none());
    assert!(matches!(
        works(&b, Some("b")).await,
        Some(Unfit::Cell { .. })
    ));
    // A promotion gives the copy a later timeline, which nothing shows but that.
    b.sql("UPDATE system SET cut = cut || '{\"timeline\": 0}'")
        .await;
    for name in [None, Some("a")] {
        assert_eq!(works(&b, name).await, Some(Unfit::Copy));
    }
    activate(&b).await.unwrap();
    assert!(works(&b, Some("b")).await.is_none());
    assert!(matches!(
        works(&b, Some("a")).await,
        Some(Unfit::Cell { .. })
    ));
}

/// A program reads its server before it knows that the schema is too old for it, which it says then.
#[tokio::test]
async fn a_server_is_read_in_a_schema_without_cells() {
    let bench = Bench::empty().await;
    for schema in [
        "SELECT 1",
        "CREATE TABLE system (version bigint)",
        "INSERT INTO system VALUES (1)",
    ] {
        bench.sql(schema).await;
        let database = config(bench.database.url()).open("test").unwrap();
        let answer: pg::Result<i32> = database
            .run(async |connection| {
                Ok(sqlx::query_scalar("SELECT 1").fetch_one(connection).await?)
            })
            .await;
        assert_eq!(answer.unwrap(), 1, "{schema}");
    }
}

/// A cell divides again: what is foreign already stays hidden.
#[tokio::test]
async fn a_divided_cell_divides_again() {
    let cell = Cell::new().await;
    let [leaves, stays] = cell.orders().await;
    let both = [placement(&leaves), placement(&stays)];
    cell.fence().await;
    let b = copy(&cell.a).await;
    activate(&b).await.unwrap();
    division::finish(&mut owner(&cell.a).await).await.unwrap();
    let mut connection = owner(&cell.a).await;
    let second = ("a", "c");
    // One that has left lives in b, and two cells must not serve it.
    let one_has_left = [cell.leaving.uuid(), cell.staying.uuid()];
    let refused = division::freeze(&mut connection, second, &one_has_left, ACTION).await;
    assert!(matches!(refused, Err(NotDivided::LeftAlready(_))));
    let partners: [Uuid; 1] = [cell.staying.uuid()];
    division::freeze(&mut connection, second, &partners, ACTION)
        .await
        .unwrap();
    division::fence(&mut connection).await.unwrap();
    drop(connection);
    assert!(claim(&cell.a, &both, Claim::Fresh).await.is_empty());
    let c = copy(&cell.a).await;
    division::activate(&mut owner(&c).await, "c", ACTION)
        .await
        .unwrap();
    assert_eq!(claim(&c, &both, Claim::Fresh).await, [both[1]]);
    assert_eq!(claim(&b, &both, Claim::Fresh).await, [both[0]]);
}

/// An owner that is no superuser is bound by the policies, too. It must find the partners that leave all the
/// same, to continue or to cancel after the fence.
#[tokio::test]
async fn who_divides_sees_what_the_membrane_hides() {
    let cell = Cell::new().await;
    cell.fence().await;
    let mut connection = stage(&cell.a).await;
    let leaving = cell.leaving.to_string();
    let hidden = accounts::partners::show(&mut connection, &leaving).await;
    assert!(hidden.unwrap().is_none());
    division::begin(&mut connection).await.unwrap();
    let seen = accounts::partners::show(&mut connection, &leaving).await;
    assert!(seen.unwrap().is_some());
}

/// Each table that names a partner is hidden by the membrane, or has a reason.
#[tokio::test]
async fn every_table_with_a_partner_is_hidden_or_has_a_reason() {
    let bench = Bench::new().await;
    let mut connection = owner(&bench).await;
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT c.relname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
         WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attname = 'partner_id' ORDER BY 1",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    let mut known: Vec<&str> = membrane::TABLES.to_vec();
    known.extend(membrane::VISIBLE.iter().map(|(table, _)| *table));
    known.sort_unstable();
    assert_eq!(tables, known);
}

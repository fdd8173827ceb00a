//! Moving a partner to another cell, step by step between two databases, with a crash between any
//! two steps.
//!
//! A crash is a [`Session`] that is dropped: the server rolls back what its connections have not
//! committed, as it does after a kill.

mod asked;

use std::time::Duration;

use desk::self_service::{self, PauseChanged};
use domain::{PartnerId, PlacementState};
use pg::actions::{Action, Actor};
use sqlx::{ConnectOptions, PgConnection};
use store::{
    deliveries,
    orders::{self, FENCE, NewOrder},
    placements::Claim,
};
use testkit::wait;
use tools::cells::{
    check,
    moving::{Move, Moved, NotMoved, Phase, Ready},
};
use uuid::Uuid;

use crate::bench::{
    Bench, PROVIDER, answered, bought, ids, look, not_bought, parked, placement, ready, rejected,
    topups,
};
use crate::further::READY;

const ACTION: Action<'static> = Action {
    actor: Actor::esimctl("test"),
    command: domain::Command::PartnerMove,
    target: "test",
    reason: "test",
};
/// Long enough for the sweep to see rows that were made at the start of a test.
const NO_LEASE: Duration = Duration::ZERO;

/// The connections of one run of `esimctl partner move`.
struct Session {
    source: PgConnection,
    target: PgConnection,
    /// The server's processes of the two connections.
    processes: [i32; 2],
}

impl Session {
    async fn new(source: &Bench, target: &Bench) -> Self {
        let mut source = connect(source).await;
        let mut target = connect(target).await;
        let processes = [process(&mut source).await, process(&mut target).await];
        Self {
            source,
            target,
            processes,
        }
    }

    /// Ends the run as a kill does, and waits until the server has rolled back what was open.
    async fn killed(self, server: &Bench) {
        let processes = self.processes;
        drop(self);
        let gone = async || {
            let query =
                sqlx::query_scalar("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ($1)");
            let left: i64 = query.bind(&processes[..]).fetch_one(&server.pool).await?;
            Ok((left == 0).then_some(()))
        };
        wait::until(Duration::from_secs(10), "the end of the sessions", gone)
            .await
            .unwrap();
    }

    fn move_of(&mut self, partner_id: PartnerId) -> Move<'_> {
        Move {
            partner_id,
            source: &mut self.source,
            target: &mut self.target,
            from: "a".to_owned(),
            to: "b".to_owned(),
        }
    }
}

async fn connect(bench: &Bench) -> PgConnection {
    bench.pool.connect_options().connect().await.unwrap()
}

async fn process(connection: &mut PgConnection) -> i32 {
    sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(connection)
        .await
        .unwrap()
}

fn all_ready() -> Ready<'static> {
    Ready {
        finished_only: false,
        separate: &[],
        after: Uuid::nil(),
    }
}

/// Two cells, and a partner in the first one.
struct Pair {
    a: Bench,
    b: Bench,
    partner: PartnerId,
}

impl Pair {
    async fn new() -> Self {
        let a = Bench::new().await;
        let b = Bench::new().await;
        let partner = a.partner(Some("https://partner.example/")).await;
        Self { a, b, partner }
    }

    async fn session(&self) -> Session {
        Session::new(&self.a, &self.b).await
    }

    /// Runs a whole move, as `esimctl` does without any wait.
    async fn run(&self) -> Moved {
        let mut session = self.session().await;
        let mut moving = session.move_of(self.partner);
        let phase = moving.begin().await.unwrap();
        if phase == Phase::Source {
            moving.freeze(ACTION).await.unwrap();
        }
        let mut moved = Moved::default();
        if phase != Phase::Target {
            loop {
                let orders = moving.ready(all_ready()).await.unwrap();
                if orders.is_empty() {
                    break;
                }
                moved.add(moving.copy(&orders).await.unwrap());
                moving.release().await.unwrap();
            }
            moved.add(moving.copy_events().await.unwrap());
            moving.release().await.unwrap();
            moving.activate(ACTION, 0).await.unwrap();
        }
        moving.finish().await.unwrap();
        moved
    }

    /// An order of the partner whose answer has left, and whose placement was claimed.
    async fn placing(&self) -> NewOrder {
        let order = self.a.stored(answered(self.partner, 1)).await;
        self.a.claim(&[placement(&order)]).await;
        order
    }

    /// All that is stored of an order, but for the times of its due work.
    async fn everything(&self, bench: &Bench, order: &NewOrder) -> Vec<Option<String>> {
        let rows = bench.everything(order.order_id).await;
        rows.into_iter()
            .flatten()
            .filter(|row| {
                let is_work = row.contains(r#""lane":"#) && row.contains(r#""kind":"#);
                !is_work || row.contains(r#""attempt":"#)
            })
            .map(Some)
            .collect()
    }
}

async fn count(bench: &Bench, statement: &'static str) -> i64 {
    sqlx::query_scalar(statement)
        .fetch_one(&bench.pool)
        .await
        .unwrap()
}

/// Lets the sweep of a cell see everything that it has.
async fn sweep_everything(bench: &Bench) {
    bench
        .sql(
            "UPDATE walks SET up_to = now() - interval '8 s', fence_at = NULL, fence_xid = NULL
             WHERE name IN ('placements', 'deliveries')",
        )
        .await;
    let mut connection = bench.connection().await;
    store::placements::sweep(&mut connection, NO_LEASE)
        .await
        .unwrap();
    store::deliveries::sweep(&mut connection, NO_LEASE)
        .await
        .unwrap();
}

#[tokio::test]
async fn everything_moves_and_goes_on_in_the_target() {
    let pair = Pair::new().await;
    let accepted = pair.a.stored(answered(pair.partner, 2)).await;
    let placing = pair.placing().await;
    let retried = pair.placing().await;
    pair.a.settle(&[not_bought(placement(&retried), 1)]).await;
    let failed = pair.placing().await;
    pair.a.settle(&[rejected(placement(&failed), 1)]).await;
    let held = pair.placing().await;
    pair.a.settle(&[parked(placement(&held), 1)]).await;
    let done = pair.placing().await;
    let units = topups(&done).iter().map(ready).collect();
    pair.a
        .settle(&[bought(placement(&done), 1, units, true)])
        .await;
    let orders = [&accepted, &placing, &retried, &failed, &held, &done];
    let mut before = Vec::new();
    for order in orders {
        before.push(pair.everything(&pair.a, order).await);
    }

    let moved = pair.run().await;
    assert_eq!(
        (
            moved.orders,
            moved.placements,
            moved.topups,
            moved.deliveries
        ),
        (6, 6, 7, 1)
    );
    for (order, before) in orders.into_iter().zip(before) {
        assert_eq!(pair.everything(&pair.b, order).await, before);
        assert_eq!(
            pair.a.everything(order.order_id).await,
            Vec::<Option<String>>::new()
        );
    }
    for table in [
        "SELECT count(*) FROM work",
        "SELECT count(*) FROM held",
        "SELECT count(*) FROM deliveries",
        "SELECT count(*) FROM esims",
    ] {
        assert_eq!(count(&pair.a, table).await, 0, "{table}");
    }

    // What is open is due in the target: two purchases and a look-up.
    pair.b.sql("UPDATE work SET at = least(at, now())").await;
    let claimed = pair.b.claim_due(PROVIDER, 10).await;
    let was = |order: &NewOrder| {
        let of = |one: &&store::placements::Claimed| one.placement_id == placement(order);
        claimed.iter().find(of).map(|one| (one.was, one.attempt))
    };
    assert_eq!(was(&accepted), Some((PlacementState::Accepted, 1)));
    assert_eq!(was(&retried), Some((PlacementState::Accepted, 2)));
    // Its attempt may be in flight, so it is put off, and its next work is a look-up.
    assert_eq!(was(&placing), None);
    let kind: String = pair
        .b
        .value(
            "SELECT kind FROM work WHERE id::text = $1",
            placement(&placing),
        )
        .await;
    assert_eq!(kind, "find");
    let deliver = "SELECT count(*) FROM work w JOIN deliveries d ON d.delivery_id = w.id WHERE w.kind = 'deliver' AND w.at <= now()";
    assert_eq!(count(&pair.b, deliver).await, 1);
}

#[tokio::test]
async fn further_endpoints_move_with_their_deliveries_and_pauses() {
    let pair = Pair::new().await;
    let further = pair.a.further(pair.partner, "further", READY).await;
    let done = pair.placing().await;
    let units = topups(&done).iter().map(ready).collect();
    pair.a
        .settle(&[bought(placement(&done), 1, units, true)])
        .await;
    let created = deliveries::fan_out(&mut *pair.a.connection().await, &ids(&topups(&done))).await;
    assert_eq!(created.unwrap(), 1);
    let paused = self_service::pause_endpoint(&mut *pair.a.connection().await, further).await;
    assert_eq!(paused.unwrap(), PauseChanged::Done);

    let moved = pair.run().await;
    assert_eq!((moved.deliveries, moved.further_deliveries), (2, 1));
    for table in [
        "SELECT count(*) FROM partner_endpoints WHERE nth > 0 OR cardinality(secrets) > 0 OR url IS NOT NULL",
        "SELECT count(*) FROM further_deliveries",
        "SELECT count(*) FROM work",
    ] {
        assert_eq!(count(&pair.a, table).await, 0, "{table}");
    }
    pair.b.sql("UPDATE work SET at = least(at, now())").await;
    let due = pair.b.claim_due_deliveries(&look(9, 9)).await;
    assert_eq!(due.len(), 1, "the further one is paused in the target, too");
    let resumed = self_service::resume_endpoint(&mut *pair.b.connection().await, further).await;
    assert_eq!(resumed.unwrap(), PauseChanged::Done);
    let due = pair.b.claim_due_deliveries(&look(9, 9)).await;
    assert_eq!(due[0].endpoint, further);
    assert!(due[0].target.headers.is_some());
}

#[tokio::test]
async fn what_was_copied_is_inert_until_the_target_is_activated() {
    let pair = Pair::new().await;
    let accepted = pair.a.stored(answered(pair.partner, 1)).await;
    let done = pair.placing().await;
    let units = topups(&done).iter().map(ready).collect();
    pair.a
        .settle(&[bought(placement(&done), 1, units, true)])
        .await;
    let mut session = pair.session().await;
    let mut moving = session.move_of(pair.partner);
    moving.begin().await.unwrap();
    moving.freeze(ACTION).await.unwrap();
    let orders = moving.ready(all_ready()).await.unwrap();
    moving.copy(&orders).await.unwrap();

    // A target whose sweep is behind must not take the copies for forgotten rows.
    sweep_everything(&pair.b).await;
    assert_eq!(pair.b.claim_due(PROVIDER, 10).await.len(), 0);
    let due = "SELECT count(*) FROM work WHERE at < now() + interval '500 years'";
    assert_eq!(count(&pair.b, due).await, 0);

    // The command is killed between the two commits: the source has everything, and buys.
    session.killed(&pair.a).await;
    pair.a.due_in(&[placement(&accepted)], -1.0).await;
    let claimed = pair.a.claim_due(PROVIDER, 10).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].was, PlacementState::Accepted);
    pair.a
        .settle(&[bought(
            placement(&accepted),
            1,
            topups(&accepted).iter().map(ready).collect(),
            true,
        )])
        .await;

    // The next run replaces the stale copy.
    let now = pair.everything(&pair.a, &accepted).await;
    let moved = pair.run().await;
    assert_eq!(moved.orders, 2);
    assert_eq!(pair.everything(&pair.b, &accepted).await, now);
    assert_eq!(pair.b.claim_due(PROVIDER, 10).await.len(), 0);
}

#[tokio::test]
async fn a_crash_between_any_two_steps_leaves_one_owner_and_can_be_continued() {
    // The number of steps that a run makes before it is killed.
    for steps in 0..=6 {
        let pair = Pair::new().await;
        let accepted = pair.a.stored(answered(pair.partner, 1)).await;
        let placing = pair.placing().await;
        let mut session = pair.session().await;
        let mut moving = session.move_of(pair.partner);
        moving.begin().await.unwrap();
        for step in 0..steps {
            match step {
                0 => moving.freeze(ACTION).await.unwrap(),
                1 => {
                    let orders = moving.ready(all_ready()).await.unwrap();
                    moving.copy(&orders).await.map(drop).unwrap();
                }
                2 | 4 => moving.release().await.unwrap(),
                3 => moving.copy_events().await.map(drop).unwrap(),
                _ => moving.activate(ACTION, 2).await.unwrap(),
            }
        }
        session.killed(&pair.a).await;

        // Whoever has rows that can be claimed is the only one.
        let claim = async |bench: &Bench| {
            let named = [placement(&accepted)];
            let fresh = bench.claim_as(PROVIDER, &named, Claim::Fresh);
            fresh.await.len()
        };
        let active = "SELECT count(*) FROM work WHERE at <= now() AND kind <> 'deliver'";
        let in_target = count(&pair.b, active).await > 0;
        assert_eq!(in_target, steps >= 6, "{steps} steps");
        let in_source = claim(&pair.a).await;
        assert_eq!(in_source, usize::from(steps <= 2), "{steps} steps");

        pair.run().await;
        for order in [&accepted, &placing] {
            assert_eq!(
                pair.a.everything(order.order_id).await,
                Vec::<Option<String>>::new(),
                "{steps} steps"
            );
            let id = placement(order);
            let state = pair.b.state(id).await;
            // The source has claimed the first one in the meantime, unless it had moved before.
            let claimed = steps <= 2 || order.order_id == placing.order_id;
            let expected = if claimed { "placing" } else { "accepted" };
            assert_eq!(state, expected, "{steps} steps");
            let work = pair
                .b
                .value::<i64>("SELECT count(*) FROM work WHERE id::text = $1 AND at <= now() + interval '1 minute'", id)
                .await;
            assert_eq!(work, 1, "{steps} steps");
        }
        let served: Vec<bool> = {
            let mut found = Vec::new();
            for bench in [&pair.a, &pair.b] {
                let keys = check::keys(&mut *bench.connection().await).await.unwrap();
                found.extend(keys.iter().map(|one| one.moved_to.is_none()));
            }
            found
        };
        assert_eq!(served, [false, true], "{steps} steps");
    }
}

#[tokio::test]
async fn a_frozen_partner_gets_no_order_in_however_late_its_ingress_is() {
    let pair = Pair::new().await;
    let open = pair.a.stored(answered(pair.partner, 1)).await;
    pair.a.claim(&[placement(&open)]).await;
    pair.a.settle(&[rejected(placement(&open), 1)]).await;
    let mut session = pair.session().await;
    let mut moving = session.move_of(pair.partner);
    moving.begin().await.unwrap();
    moving.freeze(ACTION).await.unwrap();

    let late = [answered(pair.partner, 1)];
    let mut connection = pair.a.connection().await;
    let refused = orders::insert(&mut connection, &late).await.unwrap_err();
    assert_eq!(refused.constraint(), Some(FENCE));
    // The batch is written one by one after such an error.
    assert!(refused.is_about_data());
    // Other partners go on, and the answer to an order from before may still be a 422.
    pair.a.stored(answered(PartnerId::new(), 1)).await;
    pair.a
        .set(
            "UPDATE orders SET refused_at = now() WHERE order_id::text = $1",
            open.order_id,
        )
        .await;

    assert!(moving.thaw().await.unwrap());
    pair.a.stored(answered(pair.partner, 1)).await;
}

#[tokio::test]
async fn a_late_result_changes_nothing_in_the_source() {
    let pair = Pair::new().await;
    let placing = pair.placing().await;
    pair.run().await;
    let units = topups(&placing).iter().map(ready).collect();
    let settled = pair
        .a
        .settle(&[bought(placement(&placing), 1, units, true)])
        .await;
    assert!(!settled[0].moved);
    assert_eq!(
        pair.a.everything(placing.order_id).await,
        Vec::<Option<String>>::new()
    );
    assert_eq!(pair.b.state(placement(&placing)).await, "placing");
}

#[tokio::test]
async fn a_partner_can_come_back() {
    let pair = Pair::new().await;
    let first = pair.a.stored(answered(pair.partner, 1)).await;
    pair.run().await;
    let second = pair.b.stored(answered(pair.partner, 1)).await;
    let back = Pair {
        a: pair.b,
        b: pair.a,
        partner: pair.partner,
    };
    let moved = back.run().await;
    assert_eq!(moved.orders, 2);
    for order in [&first, &second] {
        assert_eq!(back.b.state(placement(order)).await, "accepted");
    }
    back.b.stored(answered(pair.partner, 1)).await;
}

#[tokio::test]
async fn an_order_waits_until_its_answer_has_left_and_for_separate_accounts() {
    let pair = Pair::new().await;
    let unanswered = pair
        .a
        .stored(NewOrder {
            answer_within: Duration::from_mins(1),
            ..answered(pair.partner, 1)
        })
        .await;
    let placing = pair.placing().await;
    let accepted = pair.a.stored(answered(pair.partner, 1)).await;
    let mut session = pair.session().await;
    let mut moving = session.move_of(pair.partner);
    moving.begin().await.unwrap();
    let mut ready = async |finished_only, separate: &[String]| {
        let wanted = Ready {
            finished_only,
            separate,
            after: Uuid::nil(),
        };
        moving.ready(wanted).await.unwrap()
    };
    let id = |order: &NewOrder| order.order_id.uuid();
    assert_eq!(ready(false, &[]).await, [id(&placing), id(&accepted)]);
    assert_eq!(ready(true, &[]).await, Vec::<Uuid>::new());
    let separate = [PROVIDER.to_owned()];
    assert_eq!(ready(false, &separate).await, [id(&accepted)]);
    assert!(!ready(false, &[]).await.contains(&id(&unanswered)));
}

#[tokio::test]
async fn two_moves_of_one_partner_and_one_database_under_two_names_are_refused() {
    let pair = Pair::new().await;
    let mut first = pair.session().await;
    first.move_of(pair.partner).begin().await.unwrap();
    let mut second = pair.session().await;
    let refused = second.move_of(pair.partner).begin().await;
    assert!(matches!(refused, Err(NotMoved::Locked)), "{refused:?}");
    first.killed(&pair.a).await;
    second.move_of(pair.partner).begin().await.unwrap();
    let mut same = Session::new(&pair.b, &pair.b).await;
    let refused = same.move_of(pair.partner).begin().await;
    assert!(matches!(refused, Err(NotMoved::Locked)), "{refused:?}");
}

#[tokio::test]
async fn a_move_that_would_fail_later_is_refused_before_anything_changes() {
    let pair = Pair::new().await;
    let other = pair.b.partner(None).await;
    let begin = async || {
        let mut session = pair.session().await;
        let begun = session.move_of(pair.partner).begin().await;
        session.killed(&pair.a).await;
        begun
    };
    pair.b
        .sql(&format!(
            "UPDATE partners SET old_access_key = '{}' WHERE partner_id = '{other}'",
            pair.partner
        ))
        .await;
    let refused = begin().await;
    assert!(matches!(refused, Err(NotMoved::KeyTaken(_))), "{refused:?}");
    pair.b
        .sql("UPDATE partners SET old_access_key = NULL")
        .await;

    pair.a
        .sql(
            "INSERT INTO options (option_id, name, provider, provider_option_id, environment)
             VALUES (gen_random_uuid(), 'one', 'sandbox', 'one', 'sandbox')",
        )
        .await;
    let refused = begin().await;
    assert!(
        matches!(refused, Err(NotMoved::Catalogue { options: 1, .. })),
        "{refused:?}"
    );
    pair.a.sql("DELETE FROM options").await;

    pair.b
        .sql("ALTER TABLE topups ADD COLUMN further text")
        .await;
    let refused = begin().await;
    assert!(
        matches!(refused, Err(NotMoved::Columns("topups"))),
        "{refused:?}"
    );
    pair.b.sql("ALTER TABLE topups DROP COLUMN further").await;
    assert_eq!(begin().await.unwrap(), Phase::Source);
}

//! Retention and erasure on request. The tests search a dump of the database, because what is still
//! in a dump can be recovered.

use std::{path::PathBuf, process::Command};

use accounts::{
    partners,
    profile::{Profile, SealedProfile},
};
use desk::operator::erase::{self, ErasureCounts, NotErased};
use desk::operator::retention_terms;
use desk::retention::{self, DataClass, RetentionBacklog, RetentionBatch};
use domain::{ActivationCode, OrderId, PartnerId, TopupId, TopupIds};
use pg::actions::Mode;
use store::deliveries::resends::DeliveryFilter;
use store::deliveries::{self, DeliveryClaim};
use store::orders::{self, NewOrder};
use store::placements::{Progress, ReadyProfile};
use time::Duration;
use vault::Purpose;

use crate::bench::{
    Bench, LEASE, VAULT, applied, bought, delivery_id, esim, execute, iccid, order, placement,
    topups, unit,
};

fn profile() -> Profile {
    Profile {
        code: ActivationCode::new("smdp.example.com", "TOP-SECRET").unwrap(),
        expired_date: "2026-01-29".to_owned(),
    }
}

impl Bench {
    /// A finished order of one unit, ordered and delivered these many days ago, with two attempts.
    async fn delivered_ago(&self, partner_id: PartnerId, days: i32) -> NewOrder {
        let order = self.ordered_ago(partner_id, days).await;
        let topup = topups(&order).remove(0);
        self.claim(&[placement(&order)]).await;
        let profile = SealedProfile {
            code_digest: Some(topup.as_str().into()),
            ..profile().seal(&VAULT, order.partner_id, &topup).unwrap()
        };
        let ready = Progress::Ready(ReadyProfile {
            iccid: iccid(&topup),
            profile,
            delivery_id: delivery_id(&topup),
        });
        self.settle(&[bought(
            placement(&order),
            1,
            vec![unit(&topup, ready)],
            true,
        )])
        .await;
        self.backdate(&topup, days).await;
        order
    }

    async fn ordered_ago(&self, partner_id: PartnerId, days: i32) -> NewOrder {
        let at = runtime::clock::now() - Duration::days(days.into());
        let mut order = order(partner_id, 1);
        order.traceparent = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into());
        order.placements[0].topups[0].topup_id = TopupIds::new(rand::random()).next(at);
        self.store(std::slice::from_ref(&order)).await;
        let back = "UPDATE placements SET created_at = now() - make_interval(days => $2) WHERE order_id = $1";
        let back = sqlx::query(back).bind(order.order_id.uuid()).bind(days);
        back.execute(&self.pool).await.unwrap();
        order
    }

    /// Moves a delivery into the past, as delivered, with an attempt before it.
    async fn backdate(&self, topup: &TopupId, days: i32) {
        let delivered = "UPDATE deliveries SET state = 'delivered', created_at = now() - make_interval(days => $2),
                delivered_at = now() - make_interval(days => $2) WHERE topup_id = $1";
        let delivered = sqlx::query(delivered).bind(topup.as_str()).bind(days);
        delivered.execute(&self.pool).await.unwrap();
        let id = delivery_id(topup);
        let answer = VAULT.seal(Purpose::Response(id, 0), b"echo TOP-SECRET");
        sqlx::query(
            "INSERT INTO delivery_attempts (delivery_id, attempt, at, duration_ms, status, class, response_start)
             VALUES ($1, 0, now() - make_interval(days => $2), 3, 500, 'status_5xx', $3)",
        )
        .bind(id.uuid())
        .bind(days)
        .bind(answer.unwrap())
        .execute(&self.pool)
        .await
        .unwrap();
    }

    async fn step(&self, class: DataClass) -> RetentionBatch {
        self.step_of(class, 100).await
    }

    async fn step_of(&self, class: DataClass, limit: u32) -> RetentionBatch {
        retention::step(&mut *self.connection().await, class, limit)
            .await
            .unwrap()
    }

    async fn backlog(&self) -> RetentionBacklog {
        retention::backlog(&mut *self.connection().await)
            .await
            .unwrap()
    }

    async fn keep(&self, class: DataClass, days: Option<i32>, mode: Mode<'_>) {
        retention_terms::set(&mut *self.connection().await, class, days, mode)
            .await
            .unwrap();
        if matches!(mode, Mode::Apply(_)) {
            assert_eq!(self.changed().await.1, serde_json::json!({ "days": days }));
        }
    }

    async fn erase(&self, order: OrderId, mode: Mode<'_>) -> Result<ErasureCounts, NotErased> {
        erase::order(&mut *self.connection().await, order, mode).await
    }

    async fn has_profile(&self, topup: &TopupId) -> bool {
        self.value(
            "SELECT profile IS NOT NULL FROM esims WHERE topup_id = $1",
            topup,
        )
        .await
    }

    /// A dump of everything, as `pg_dump` writes it.
    fn dump(&self) -> String {
        let program = PathBuf::from(std::env::var("PG_BIN").unwrap()).join("pg_dump");
        let dump = Command::new(program)
            .args(["--dbname", self.database.url()])
            .output()
            .unwrap();
        assert!(dump.status.success(), "{dump:?}");
        String::from_utf8(dump.stdout).unwrap()
    }
}

/// The sealed values of a dump that open as this topup's profile or responses.
fn recovered(dump: &str, topup: &TopupId) -> usize {
    let values = dump.split(|c: char| c.is_whitespace()).filter_map(|word| {
        let digits = word.strip_prefix("\\\\x")?;
        let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        (0..digits.len())
            .step_by(2)
            .map(byte)
            .collect::<Option<Vec<u8>>>()
    });
    let answer = Purpose::Response(delivery_id(topup), 0);
    let opens = |value: &Vec<u8>| {
        Profile::open_of_anybody(&VAULT, topup, value).is_ok() || VAULT.open(answer, value).is_ok()
    };
    values.filter(opens).count()
}

#[tokio::test]
async fn an_old_profile_is_not_in_a_dump_after_its_term_and_a_young_one_is() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("http://127.0.0.1:9/")).await;
    let old = bench.delivered_ago(partner, 100).await;
    let young = bench.delivered_ago(partner, 20).await;
    let old_topup = topups(&old).remove(0);
    let young_topup = topups(&young).remove(0);
    let dumped = || {
        let dump = bench.dump();
        [&old_topup, &young_topup].map(|topup| recovered(&dump, topup))
    };
    assert_eq!(dumped(), [2, 2]);

    assert_eq!(bench.step(DataClass::Profiles).await.erased, 1);
    assert_eq!(bench.step(DataClass::Attempts).await.erased, 1);
    assert_eq!(dumped(), [0, 2]);

    // The external id and the ICCID stay taken, and everything else is still there.
    let again = NewOrder {
        external_order_id: old.external_order_id.clone(),
        ..order(partner, 1)
    };
    assert_eq!(
        orders::insert(&mut *bench.connection().await, &[again])
            .await
            .unwrap(),
        [false]
    );
    let number: String = bench
        .value("SELECT iccid FROM esims WHERE topup_id = $1", &old_topup)
        .await;
    assert_eq!(number, iccid(&old_topup).as_str());
    assert_eq!(
        bench.states(&old_topup).await,
        ("ready".into(), "delivered".into())
    );
    // A second look erases nothing more.
    assert_eq!(bench.step(DataClass::Profiles).await.erased, 0);
    let overdue = bench.backlog().await.overdue[0];
    assert!(overdue < std::time::Duration::from_mins(1), "{overdue:?}");
}

#[tokio::test]
async fn a_shorter_term_reaches_back_and_for_ever_erases_nothing() {
    let bench = Bench::new().await;
    let mut kept = Vec::new();
    for days in [100, 10, 1] {
        kept.push(topups(&bench.delivered_ago(PartnerId::new(), days).await).remove(0));
    }
    let left = async || {
        futures_util::future::join_all(kept.iter().map(|topup| bench.has_profile(topup))).await
    };
    bench.keep(DataClass::Profiles, None, applied()).await;
    assert_eq!(
        bench.step(DataClass::Profiles).await,
        RetentionBatch::default()
    );
    bench.keep(DataClass::Profiles, Some(90), applied()).await;
    bench.step(DataClass::Profiles).await;
    assert_eq!(left().await, [false, true, true]);

    // The walk has passed these rows; a new term begins it again, and the same one does not.
    let began = "SELECT began_at::text FROM walks WHERE name = $1";
    bench
        .keep(DataClass::Profiles, Some(5), Mode::Preview)
        .await;
    assert_eq!(bench.step(DataClass::Profiles).await.erased, 0);
    bench.keep(DataClass::Profiles, Some(5), applied()).await;
    assert_eq!(bench.step(DataClass::Profiles).await.erased, 1);
    assert_eq!(left().await, [false, false, true]);
    let before: String = bench.value(began, "profiles").await;
    bench.keep(DataClass::Profiles, Some(5), applied()).await;
    assert_eq!(bench.value::<String>(began, "profiles").await, before);
    let shown = retention_terms::list(&mut *bench.connection().await)
        .await
        .unwrap();
    let days: Vec<_> = shown
        .iter()
        .map(|term| (term.class.as_str(), term.days))
        .collect();
    assert_eq!(
        days,
        [
            ("archived", Some(365)),
            ("attempts", Some(30)),
            ("audit", None),
            ("changes", Some(90)),
            ("orders", None),
            ("profiles", Some(5)),
            ("refusals", Some(30)),
        ]
    );
}

#[tokio::test]
async fn what_is_not_delivered_is_kept_until_it_is() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let waiting = topups(&bench.delivered_ago(partner, 100).await).remove(0);
    let late = topups(&bench.delivered_ago(partner, 100).await).remove(0);
    let unready = bench.ordered_ago(partner, 100).await;
    bench.claim(&[placement(&unready)]).await;
    bench
        .set(
            "UPDATE deliveries SET state = 'exhausted' WHERE topup_id = $1",
            &waiting,
        )
        .await;
    let sql = "UPDATE deliveries SET delivered_at = now() WHERE topup_id = $1";
    bench.set(sql, &late).await;
    assert_eq!(bench.step(DataClass::Profiles).await.erased, 0);
    assert_eq!(bench.backlog().await.waiting, 3);

    // All three are looked at again; one is delivered long enough by then.
    let back = "UPDATE deliveries SET state = 'delivered', delivered_at = now() - interval '91 days' WHERE topup_id = $1";
    bench.set(back, &waiting).await;
    bench
        .sql("UPDATE work SET at = now() - interval '1 minute' WHERE kind = 'erase'")
        .await;
    assert_eq!(bench.step(DataClass::Profiles).await.erased, 1);
    assert!(!bench.has_profile(&waiting).await && bench.has_profile(&late).await);
    let sql = "SELECT at > now() + interval '89 days' FROM work WHERE kind = 'erase' AND lane = $1";
    let ends: bool = bench.value(sql, &late).await;
    assert!(ends, "it is looked at again at the end of its term");
    // A failed unit never gets a profile.
    let sql = "UPDATE topups SET state = 'failed' WHERE topup_id = $1";
    bench.set(sql, &topups(&unready)[0]).await;
    bench
        .sql("UPDATE work SET at = now() WHERE kind = 'erase'")
        .await;
    bench.step(DataClass::Profiles).await;
    assert_eq!(bench.backlog().await.waiting, 1);
}

#[tokio::test]
async fn a_walk_goes_on_where_it_stopped_and_two_processes_do_not_share_it() {
    let bench = Bench::new().await;
    for days in 95..100 {
        bench.delivered_ago(PartnerId::new(), days).await;
    }
    let next = async || {
        let step = bench.step_of(DataClass::Profiles, 2).await;
        (step.erased, step.more)
    };
    assert_eq!(next().await, (2, true));
    let overdue = bench.backlog().await.overdue[0];
    assert!(
        overdue > std::time::Duration::from_hours(24 * 6),
        "{overdue:?}"
    );
    let mut holder = bench.pool.begin().await.unwrap();
    execute(&mut holder, "SELECT FROM walks FOR UPDATE").await;
    assert_eq!(
        bench.step(DataClass::Profiles).await,
        RetentionBatch::default()
    );
    holder.rollback().await.unwrap();
    assert_eq!(next().await, (2, true));
    assert_eq!(next().await, (1, false));
}

#[tokio::test]
async fn old_actions_go_only_if_a_term_is_set() {
    let bench = Bench::new().await;
    bench.keep(DataClass::Attempts, Some(7), applied()).await;
    bench
        .sql("UPDATE operator_actions SET at = now() - interval '3 years'")
        .await;
    assert_eq!(
        bench.step(DataClass::Audit).await,
        RetentionBatch::default()
    );
    bench.keep(DataClass::Audit, Some(365), applied()).await;
    assert_eq!(bench.step(DataClass::Audit).await.erased, 1);
}

/// A resend that was under way when the profile was erased.
#[tokio::test]
async fn an_erased_profile_is_not_resent_and_says_so_where_it_is_read() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("http://127.0.0.1:9/")).await;
    let topup = topups(&bench.delivered_ago(partner, 100).await).remove(0);
    bench.step(DataClass::Profiles).await;
    let mut connection = bench.connection().await;
    let filter = DeliveryFilter::default();
    let id = delivery_id(&topup);
    let resent =
        desk::operator::deliveries::resend_one(&mut connection, id, &filter, applied()).await;
    assert_eq!(resent.unwrap().resent, 0);
    let listed = desk::operator::deliveries::read(&mut connection, id).await;
    assert!(listed.unwrap().unwrap().erased_at.is_some());
    bench
        .set(
            "UPDATE deliveries SET state = 'pending' WHERE topup_id = $1",
            &topup,
        )
        .await;
    bench.deliver_in(std::slice::from_ref(&topup), 0.0).await;
    let claim = DeliveryClaim::Due { lease: LEASE };
    let claimed = deliveries::claim(&mut connection, &[delivery_id(&topup)], claim)
        .await
        .unwrap()
        .deliveries;
    assert!(esim(&claimed[0]).erased && esim(&claimed[0]).profile.is_empty());
}

#[tokio::test]
async fn an_order_is_erased_only_when_it_is_finished() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let done = bench.delivered_ago(partner, 1).await;
    let neighbour = topups(&bench.delivered_ago(partner, 1).await).remove(0);
    let topup = topups(&done).remove(0);
    let one = ErasureCounts {
        orders: 1,
        profiles: 1,
        attempts: 1,
        undelivered: 0,
    };
    assert_eq!(
        bench.erase(done.order_id, Mode::Preview).await.unwrap(),
        one
    );
    assert!(bench.has_profile(&topup).await);
    assert_eq!(bench.erase(done.order_id, applied()).await.unwrap(), one);
    let dump = bench.dump();
    assert_eq!(
        (recovered(&dump, &topup), recovered(&dump, &neighbour)),
        (0, 2)
    );
    assert!(
        bench
            .everything(done.order_id)
            .await
            .iter()
            .flatten()
            .all(|row| !row.contains("4bf92f35"))
    );
    assert_eq!(
        bench.erase(done.order_id, applied()).await.unwrap(),
        ErasureCounts::default()
    );

    let accepted = bench.stored(order(partner, 1)).await;
    let in_doubt = bench.in_doubt(1).await;
    let resent = bench.delivered_ago(partner, 1).await;
    bench
        .set(
            "UPDATE deliveries SET state = 'pending' WHERE topup_id = $1",
            &topups(&resent)[0],
        )
        .await;
    for open in [accepted, in_doubt, resent] {
        let before = bench.everything(open.order_id).await;
        let refused = bench.erase(open.order_id, applied()).await.unwrap_err();
        assert!(matches!(refused, NotErased::Unfinished { .. }), "{refused}");
        assert_eq!(bench.everything(open.order_id).await, before);
    }
    let unknown = bench.erase(OrderId::new(), applied()).await;
    assert!(matches!(unknown, Err(NotErased::Unknown(_))));
}

/// What stays filled when an order is erased, because it holds nothing that somebody has written:
/// ids, times, numbers and flags.
const KEPT_TYPES: [&str; 5] = [
    "uuid",
    "timestamp with time zone",
    "integer",
    "bigint",
    "boolean",
];
/// The columns of other types that stay filled, each with the reason. All others of these tables
/// must be NULL afterwards.
const KEPT: [(&str, &str, &str); 14] = testkit::rows! {
    "orders", "external_order_id" => "The partner must not use the id for a second order.";
    "placements", "provider" => "It shows where a late purchase belongs.";
    "placements", "lane" => "It consists of ids of products.";
    "placements", "state" => "States are kept, so that nothing is bought again.";
    "placements", "provider_reference" => "The provider's number of the purchase settles disputes with it.";
    "topups", "topup_id" => "The partner knows the unit by it.";
    "topups", "provider_option_id" => "It shows what was bought.";
    "topups", "state" => "States are kept.";
    "topups", "terms" => "They say what the partner was promised about the unit, and nothing of a person.";
    "esims", "topup_id" => "The partner knows the unit by it.";
    "esims", "provider" => "It shows where the unit belongs.";
    "esims", "provider_unit_id" => "No unit is assigned twice.";
    "esims", "iccid" => "No line is assigned twice.";
    "esims", "code_digest" => "No activation code is assigned twice; without the key it tells nothing of it.";
};

impl Bench {
    /// The columns of orders and their parts that an erasure must clear: those that are neither of
    /// [`KEPT_TYPES`] nor in [`KEPT`]. Each has a value of its type.
    async fn columns_to_erase(&self) -> Vec<(String, String, &'static str)> {
        let sql = "SELECT table_name::text, column_name::text, data_type::text FROM information_schema.columns
                   WHERE table_schema = 'public' AND table_name IN ('orders', 'placements', 'topups', 'esims') ORDER BY 1, 2";
        let all: Vec<(String, String, String)> =
            sqlx::query_as(sql).fetch_all(&self.pool).await.unwrap();
        for (table, column, _) in KEPT {
            let exists = all.iter().any(|one| one.0 == table && one.1 == column);
            assert!(exists, "KEPT lists {table}.{column}, which does not exist");
        }
        let is_kept =
            |table: &str, column: &str| KEPT.iter().any(|kept| kept.0 == table && kept.1 == column);
        all.into_iter()
            .filter(|(table, column, kind)| {
                !KEPT_TYPES.contains(&kind.as_str()) && !is_kept(table, column)
            })
            .map(|(table, column, kind)| {
                let value = match kind.as_str() {
                    "text" | "bytea" | "jsonb" => "'1'",
                    _ => panic!("{table}.{column}: give this test a value of the type {kind}"),
                };
                (table, column, value)
            })
            .collect()
    }

    /// Fills all columns that must be erased, erases the order, and returns those that are still
    /// filled.
    async fn left_after_erasure(&self, order: &NewOrder) -> Vec<String> {
        let id = order.order_id;
        let placements = format!("SELECT placement_id FROM placements WHERE order_id = '{id}'");
        let columns = self.columns_to_erase().await;
        let of_order = |table: &str| match table {
            "topups" => format!("placement_id IN ({placements})"),
            "esims" => format!(
                "topup_id IN (SELECT topup_id FROM topups WHERE placement_id IN ({placements}))"
            ),
            _ => format!("order_id = '{id}'"),
        };
        for (table, column, value) in &columns {
            let rows = of_order(table);
            self.sql(&format!(
                "UPDATE {table} SET {column} = {value} WHERE {rows}"
            ))
            .await;
        }
        self.erase(id, applied()).await.unwrap();
        let mut left = Vec::new();
        for (table, column, _) in &columns {
            let rows = of_order(table);
            let filled = format!("SELECT count({column}) FROM {table} WHERE {rows}");
            let filled: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(filled))
                .fetch_one(&self.pool)
                .await
                .unwrap();
            if filled > 0 {
                left.push(format!("{table}.{column}"));
            }
        }
        left
    }
}

/// A new column of an order or of its parts is either erased or kept for a reason. The second half
/// adds a column to each table and shows that this test would notice it.
#[tokio::test]
async fn each_column_of_an_erased_order_is_null_or_kept_for_a_reason() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let order = bench.delivered_ago(partner, 1).await;
    let left = bench.left_after_erasure(&order).await;
    assert!(
        left.is_empty(),
        "`order erase` leaves {left:?}: set them to NULL in operator/erase.rs, or add them to KEPT with the reason"
    );
    for table in ["esims", "orders", "placements", "topups"] {
        let add = format!("ALTER TABLE {table} ADD COLUMN made_up text");
        bench.sql(&add).await;
    }
    let order = bench.delivered_ago(partner, 1).await;
    let left = bench.left_after_erasure(&order).await;
    let added = [
        "esims.made_up",
        "orders.made_up",
        "placements.made_up",
        "topups.made_up",
    ];
    assert_eq!(left, added);
}

#[tokio::test]
async fn a_partner_is_erased_with_all_its_orders_and_no_other() {
    let bench = Bench::new().await;
    let gone = bench.partner(Some("http://gone.example/")).await;
    let stays = bench.partner(None).await;
    let mut theirs = Vec::new();
    for _ in 0..5 {
        theirs.push(bench.delivered_ago(gone, 1).await);
    }
    let other = topups(&bench.delivered_ago(stays, 1).await).remove(0);
    let mut connection = bench.connection().await;
    let enabled = erase::partner_orders(&mut connection, gone).await;
    assert!(matches!(enabled, Err(NotErased::Enabled)), "{enabled:?}");
    partners::set_disabled(&mut connection, gone, true)
        .await
        .unwrap();
    let soon = erase::partner_orders(&mut connection, gone).await;
    assert!(matches!(soon, Err(NotErased::TooSoon)), "{soon:?}");
    bench
        .sql("UPDATE walks SET up_to = now() + interval '1 minute' WHERE name IN ('placements', 'deliveries')")
        .await;
    bench.due_in(&[placement(&theirs[0])], 60.0).await;
    let busy = erase::partner_orders(&mut connection, gone)
        .await
        .unwrap_err();
    assert!(
        matches!(busy, NotErased::Busy { placements: 1, .. }),
        "{busy}"
    );
    bench.sql("DELETE FROM work").await;
    assert_eq!(
        erase::partner_orders(&mut connection, gone).await.unwrap(),
        5
    );

    erase::partner(&mut connection, gone, 5, applied())
        .await
        .unwrap();
    assert_eq!(bench.changed().await.1["erased"], true);
    let mut erased = Vec::new();
    let mut after = None;
    loop {
        let (batch, next) = erase::partner_batch(&mut connection, gone, after, 2)
            .await
            .unwrap();
        erased.push(batch.profiles);
        if next.is_none() {
            break;
        }
        after = next;
    }
    assert_eq!(erased, [2, 2, 1]);
    let dump = bench.dump();
    assert!(!dump.contains("gone.example"));
    for order in &theirs {
        assert_eq!(recovered(&dump, &topups(order)[0]), 0);
    }
    assert_eq!(recovered(&dump, &other), 2);
    // Neither the start of services nor a new master key stumbles over its empty secret.
    partners::check_master_key(&mut connection, &VAULT)
        .await
        .unwrap();
    assert_eq!(
        desk::master_key::reencrypt(&mut connection, &VAULT, |_| {})
            .await
            .unwrap()
            .failed,
        []
    );
}

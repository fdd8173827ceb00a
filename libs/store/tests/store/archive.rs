//! Archives: finished orders leave the tables, and their external ids stay taken.

mod open;

use std::time::Duration;

use desk::{
    operator::retention_terms,
    retention::{self, DataClass},
    self_service,
};
use domain::{OrderId, PartnerId, TopupIds};
use pg::Transaction;
use sqlx::{AssertSqlSafe, Connection};
use store::deliveries;
use store::orders::{self, NewOrder};
use testkit::wait;
use time::OffsetDateTime;
use tools::archive::{self, Archive, CopiedOrders};
use uuid::{NoContext, Timestamp, Uuid};

use crate::bench::{
    Bench, Told as _, VAULT, answered, applied, bought, committed, delivery_id, ids, placement,
    ready, topups,
};
use crate::further::READY;

/// The rows of an order, as text, so that equal rows are equal in every byte.
const ROWS: &str = "
    WITH unit AS (SELECT t.topup_id FROM placements p JOIN topups t USING (placement_id) WHERE p.order_id = $1),
    delivery AS (SELECT delivery_id FROM order_deliveries WHERE order_id = $1)
    SELECT 'orders ' || r::text FROM orders r WHERE order_id = $1
    UNION ALL SELECT 'placements ' || r::text FROM placements r WHERE order_id = $1
    UNION ALL SELECT 'topups ' || r::text FROM topups r JOIN unit USING (topup_id)
    UNION ALL SELECT 'esims ' || r::text FROM esims r JOIN unit USING (topup_id)
    UNION ALL SELECT 'deliveries ' || r::text FROM deliveries r JOIN delivery USING (delivery_id)
    UNION ALL SELECT 'attempts ' || r::text FROM delivery_attempts r JOIN delivery USING (delivery_id)
    UNION ALL SELECT 'history ' || r::text FROM history r WHERE order_id = $1
    ORDER BY 1";

fn ago(days: i64) -> OffsetDateTime {
    runtime::clock::now() - time::Duration::days(days)
}

/// An order whose ids say that it was accepted these many days ago.
fn accepted_ago(partner_id: PartnerId, days: i64) -> NewOrder {
    let at = ago(days);
    let seconds = u64::try_from(at.unix_timestamp()).unwrap();
    // The random part of the id keeps orders of one second apart.
    let id = Uuid::new_v7(Timestamp::from_unix(NoContext, seconds, 0));
    let mut order = NewOrder {
        order_id: OrderId::from(id),
        ..answered(partner_id, 1)
    };
    order.placements[0].topups[0].topup_id = TopupIds::new(rand::random()).next(at);
    order
}

impl Bench {
    /// A delivered order with attempts and an encrypted response.
    pub async fn delivered(&self, partner: PartnerId, external_id: &str, days: i64) -> NewOrder {
        let new = NewOrder {
            external_order_id: external_id.to_owned(),
            traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
            ..accepted_ago(partner, days)
        };
        let order = self.stored(new).await;
        self.claim(&[placement(&order)]).await;
        let topup = topups(&order).remove(0);
        self.settle(&[bought(placement(&order), 1, vec![ready(&topup)], true)])
            .await;
        let id = delivery_id(&topup);
        let answer = VAULT
            .seal(vault::Purpose::Response(id, 0), b"echo")
            .unwrap();
        sqlx::query(
            "INSERT INTO delivery_attempts (delivery_id, attempt, at, duration_ms, status, class, response_start)
             VALUES ($1, 0, now(), 3, 500, 'status_5xx', $2)",
        )
        .bind(id.uuid())
        .bind(answer)
        .execute(&self.pool)
        .await
        .unwrap();
        let delivered = "UPDATE deliveries SET state = 'delivered', attempt = 2, status = 200, error = NULL,
                             attempted_at = now(), delivered_at = now(), duration_ms = 7 WHERE delivery_id::text = $1";
        self.set(delivered, id).await;
        let erased = "UPDATE esims SET profile = NULL, erased_at = now() WHERE topup_id = $1";
        self.set(erased, &topup).await;
        order
    }

    /// A database whose retention keeps attempts for ever, so that they are archived, too.
    async fn keeping_everything() -> Self {
        let bench = Self::new().await;
        bench.sql("UPDATE walks SET days = NULL").await;
        bench
    }

    async fn rows_of(&self, order: &NewOrder) -> Vec<String> {
        sqlx::query_scalar(ROWS)
            .bind(order.order_id.uuid())
            .fetch_all(&self.pool)
            .await
            .unwrap()
    }

    /// An archive for the first `limit` orders that are older than a year, with their external ids
    /// reserved.
    pub async fn reserved(&self, limit: u32) -> Archive {
        let mut connection = self.connection().await;
        let file = |number| format!("/srv/orders-{number}.jsonl.gz");
        let reserved = archive::reserve(&mut connection, Uuid::nil(), ago(365), limit, file);
        let (_, archive) = reserved.await.unwrap().unwrap();
        archive.unwrap()
    }

    /// The same, and the grace of the reservations has passed.
    pub async fn ripe(&self, limit: u32) -> Archive {
        let archive = self.reserved(limit).await;
        self.ripen().await;
        archive
    }

    /// Lets the grace of all reservations pass.
    pub async fn ripen(&self) {
        self.sql("UPDATE archived_orders SET archived_at = archived_at - interval '21 seconds'")
            .await;
    }

    /// Moves the orders of an archive, and returns what was copied.
    pub async fn moved(&self, archive: &mut Archive) -> CopiedOrders {
        let mut connection = self.connection().await;
        let orders = archive::reserved(&mut connection, archive).await.unwrap();
        let work = async |transaction: &mut Transaction<'_>| {
            let copied = archive::copy(transaction, archive, &orders).await?;
            archive::complete(transaction, archive, &copied, "sum").await?;
            Ok(copied)
        };
        committed(&mut connection, work).await.unwrap()
    }

    async fn finished(&self) -> Vec<Uuid> {
        let mut connection = self.connection().await;
        let page = archive::page(&mut connection, Uuid::nil(), ago(365), 100).await;
        page.unwrap().map_or(Vec::new(), |page| page.finished)
    }

    async fn insert_again(&self, partner: PartnerId, external_id: &str) -> bool {
        let again = NewOrder {
            external_order_id: external_id.to_owned(),
            ..answered(partner, 1)
        };
        let stored = orders::insert(&mut *self.connection().await, &[again]).await;
        stored.unwrap()[0]
    }

    async fn count_of(&self, table: &str) -> i64 {
        let statement = AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        let count = sqlx::query_scalar(statement).fetch_one(&self.pool);
        count.await.unwrap()
    }

    pub async fn waits_for_a_lock(&self) -> bool {
        let waits = "SELECT count(*) > 0 FROM pg_stat_activity
                     WHERE datname = current_database() AND wait_event_type = 'Lock'";
        sqlx::query_scalar(waits)
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn orders_leave_the_tables_and_their_ids_stay_taken() {
    let bench = Bench::keeping_everything().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    let delivered = bench.delivered(partner, "o \"1\", ö\\N", 500).await;
    let empty = bench.delivered(partner, "NULL", 450).await;
    let young = bench.delivered(partner, "young", 300).await;
    bench
        .sql(
            "INSERT INTO history (order_id, placement_id, provider, kind, attempt, detail, before)
             SELECT order_id, placement_id, provider, 'unknown', 1, 'a \"timeout\"', '{\"state\": \"placing\"}' FROM placements",
        )
        .await;
    let orders = [delivered, empty];
    let before = [
        bench.rows_of(&orders[0]).await,
        bench.rows_of(&orders[1]).await,
    ];
    assert_eq!(before[0].len(), 7, "{before:?}");

    let mut archive = bench.reserved(10).await;
    assert_eq!(bench.count_of("archived_orders").await, 2);
    assert_eq!(archive.last_order, orders[1].order_id.uuid());
    bench.ripen().await;
    let copied = bench.moved(&mut archive).await;
    assert_eq!((copied.orders.len(), archive.orders), (2, 2));
    assert!(archive.completed_at.is_some());
    assert_eq!(copied.rows, [2, 2, 2, 2, 2, 2, 0, 0, 2]);
    let lines: Vec<serde_json::Value> = copied
        .lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["orders"]["external_order_id"], "o \"1\", ö\\N");
    assert_eq!(lines[1]["deliveries"][0]["state"], "delivered");
    assert_eq!(lines[1]["history"][0]["before"]["state"], "placing");
    // What opens an activation code, or may repeat it, is not copied.
    for (table, column) in [
        ("esims", "profile"),
        ("esims", "code_digest"),
        ("delivery_attempts", "response_start"),
    ] {
        assert_eq!(
            lines[0][table][0].get(column),
            Some(&serde_json::Value::Null),
            "{column}"
        );
    }
    for (order, before) in orders.iter().zip(&before) {
        assert_eq!(bench.rows_of(order).await, Vec::<String>::new());
        let id = &order.external_order_id;
        let mut connection = bench.connection().await;
        let found = desk::archived::find(&mut connection, id).await.unwrap();
        assert_eq!((found.len(), found[0].archive), (1, archive.archive));
        assert!(
            orders::is_taken(&mut connection, partner, id)
                .await
                .unwrap()
        );
        let status = orders::status(&mut connection, partner, id).await.unwrap();
        assert!(status.unwrap().decided);
        assert!(!bench.insert_again(partner, id).await, "{before:?}");
        assert!(bench.insert_again(PartnerId::new(), id).await);
    }
    assert_eq!(bench.rows_of(&young).await.len(), 7);
}

#[tokio::test]
async fn the_external_id_of_a_refused_order_stays_free() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let order = bench.stored(accepted_ago(partner, 500)).await;
    let cancelled = bench.cancel(&order).await;
    assert_eq!(cancelled, orders::OrderCancellation::Done(order.order_id));
    let mut archive = bench.ripe(10).await;
    bench.moved(&mut archive).await;
    assert_eq!(archive.orders, 1);
    let id = &order.external_order_id;
    let mut connection = bench.connection().await;
    assert!(
        desk::archived::is_archived(&mut connection, partner, id)
            .await
            .unwrap()
    );
    assert!(bench.insert_again(partner, id).await);
}

#[tokio::test]
async fn deliveries_to_further_endpoints_are_archived_with_their_order() {
    let bench = Bench::keeping_everything().await;
    let partner = bench.partner(None).await;
    bench.further(partner, "further", READY).await;
    let order = bench.delivered(partner, "o-1", 500).await;
    let mut connection = bench.connection().await;
    let fanned_out = deliveries::fan_out(&mut connection, &ids(&topups(&order))).await;
    assert_eq!(fanned_out.unwrap(), 1);
    assert_eq!(bench.finished().await, Vec::<Uuid>::new(), "it is not sent");
    bench
        .sql("UPDATE deliveries SET state = 'delivered' WHERE endpoint_id IS NOT NULL; DELETE FROM work")
        .await;
    assert_eq!(bench.finished().await, [order.order_id.uuid()]);
    let mut archive = bench.reserved(10).await;
    bench.ripen().await;
    let copied = bench.moved(&mut archive).await;
    assert_eq!(copied.rows, [1, 1, 1, 1, 2, 1, 1, 0, 0]);
    for table in ["deliveries", "further_deliveries"] {
        assert_eq!(bench.count_of(table).await, 0, "{table}");
    }
}

/// The race that the grace is for. A statement that stores orders waits for a lock, and meanwhile
/// the order that has one of its external ids is reserved, and would be deleted.
#[tokio::test]
async fn a_statement_that_began_before_the_reservation_stores_no_second_order() {
    let bench = Bench::keeping_everything().await;
    let partner = PartnerId::new();
    let old = bench.delivered(partner, "b", 500).await;
    let named = |id: &str| NewOrder {
        external_order_id: id.to_owned(),
        ..answered(partner, 1)
    };
    let mut other = bench.connection().await;
    let mut storing = other.begin().await.unwrap();
    orders::insert(&mut storing, &[named("a")]).await.unwrap();

    // Its snapshot is older than the reservation. It waits for "a", and then comes to "b".
    let batch = [named("a"), named("b")];
    let mut connection = bench.connection().await;
    let inserting = orders::insert(&mut connection, &batch);
    let moving = async {
        wait::soon("the statement to wait for the other one", async || {
            Ok(bench.waits_for_a_lock().await.then_some(()))
        })
        .await;
        let mut archive = bench.reserved(10).await;
        let copied = bench.moved(&mut archive).await;
        storing.rollback().await.unwrap();
        copied
    };
    let (stored, copied) = tokio::join!(inserting, moving);
    assert_eq!(stored.unwrap(), [true, false]);
    assert_eq!(copied.orders, Vec::<Uuid>::new(), "moved within the grace");
    assert_eq!(bench.rows_of(&old).await.len(), 6);
}

#[tokio::test]
async fn an_order_that_changes_after_its_reservation_stays_and_its_reservation_ends() {
    let bench = Bench::keeping_everything().await;
    let partner = PartnerId::new();
    let order = bench.delivered(partner, "o-1", 500).await;
    let mut archive = bench.ripe(10).await;
    bench.sql("UPDATE deliveries SET state = 'pending'").await;
    let copied = bench.moved(&mut archive).await;
    assert_eq!(copied.orders, Vec::<Uuid>::new());
    assert_eq!(bench.rows_of(&order).await.len(), 6);
    assert_eq!(bench.count_of("archived_orders").await, 0);
}

/// A change that is under way ends before the rows are copied.
#[tokio::test]
async fn a_batch_waits_for_a_change_of_its_rows() {
    let bench = Bench::keeping_everything().await;
    let partner = PartnerId::new();
    let order = bench.delivered(partner, "o-1", 500).await;
    let mut archive = bench.ripe(10).await;
    for change in [
        "UPDATE orders SET traceparent = 'changed'",
        "UPDATE placements SET reason = 'changed'",
        "UPDATE esims SET provider_unit_id = 'changed'",
        "UPDATE deliveries SET error = 'changed'",
    ] {
        let mut other = bench.connection().await;
        let mut changing = other.begin().await.unwrap();
        sqlx::query(change).execute(&mut *changing).await.unwrap();
        let ids = [order.order_id.uuid()];
        let mut connection = bench.connection().await;
        let copy = async |transaction: &mut Transaction<'_>| {
            archive::copy(transaction, &archive, &ids).await
        };
        let copying = committed(&mut connection, copy);
        let ending = async {
            wait::soon("the batch to wait", async || {
                Ok(bench.waits_for_a_lock().await.then_some(()))
            })
            .await;
            changing.commit().await.unwrap();
        };
        let (copied, ()) = tokio::join!(copying, ending);
        let copied = copied.unwrap();
        assert!(copied.lines.contains("changed"), "{change}");
    }
    bench.moved(&mut archive).await;
    assert_eq!(archive.orders, 1);
}

#[tokio::test]
async fn orders_of_whose_rows_the_file_lacks_one_are_not_deleted() {
    let bench = Bench::keeping_everything().await;
    let order = bench.delivered(PartnerId::new(), "o-1", 500).await;
    let mut archive = bench.ripe(10).await;
    let mut connection = bench.connection().await;
    let ids = [order.order_id.uuid()];
    let work = async |transaction: &mut Transaction<'_>| {
        let mut copied = archive::copy(transaction, &archive, &ids).await?;
        copied.rows[5] += 1;
        archive::complete(transaction, &mut archive, &copied, "sum").await
    };
    let completed = committed(&mut connection, work).await;
    assert!(completed.unwrap_err().to_string().contains("rolled back"));
    assert_eq!(bench.rows_of(&order).await.len(), 6);
}

/// Two runs work on one archive, because the first one was taken for dead: only the second one can
/// complete it, and nobody changes it afterwards.
#[tokio::test]
async fn a_run_whose_archive_another_one_has_taken_over_deletes_nothing() {
    let bench = Bench::keeping_everything().await;
    let order = bench.delivered(PartnerId::new(), "o-1", 500).await;
    let mut late = bench.ripe(10).await;
    let mut connection = bench.connection().await;
    let mut archive = late.clone();
    let earlier = archive::rename(&mut connection, &mut archive, "another".into()).await;
    assert_eq!(earlier.unwrap(), late.file);

    let ids = [order.order_id.uuid()];
    let work = async |transaction: &mut Transaction<'_>| {
        let copied = archive::copy(transaction, &late, &ids).await?;
        assert_eq!(copied.orders, ids);
        archive::complete(transaction, &mut late.clone(), &copied, "sum").await
    };
    let completed = committed(&mut connection, work).await;
    let error = completed.unwrap_err().to_string();
    assert!(error.contains("another `esimctl archive run`"), "{error}");
    assert_eq!(bench.rows_of(&order).await.len(), 6);

    bench.moved(&mut archive).await;
    for late in [&mut late, &mut archive.clone()] {
        let renamed = archive::rename(&mut connection, late, "third".into()).await;
        assert!(renamed.is_err());
    }
    let listed = archive::list(&mut connection).await.unwrap();
    assert_eq!((&*listed[0].file, listed[0].orders), ("another", 1));
}

#[tokio::test]
async fn a_topup_of_an_archived_order_is_archived_for_its_partner() {
    let bench = Bench::keeping_everything().await;
    let partner = PartnerId::new();
    let order = bench.delivered(partner, "o-1", 500).await;
    let topup = topups(&order).remove(0);
    let mut archive = bench.ripe(10).await;
    bench.moved(&mut archive).await;
    let mut connection = bench.connection().await;
    let unit = self_service::unit(&mut connection, partner, &topup)
        .await
        .told(&mut connection)
        .await;
    assert!(unit.is_none());
    let later = topups(&accepted_ago(partner, 499)).remove(0);
    for (partner, topup, expected) in [
        (partner, &topup, true),
        (PartnerId::new(), &topup, false),
        (partner, &later, false),
    ] {
        let archived = desk::archived::is_topup_archived(&mut connection, partner, topup).await;
        assert_eq!(archived.unwrap(), expected, "{topup}");
    }
    let may_hold = archive::of_time(&mut connection, &topup).await.unwrap();
    assert_eq!(may_hold.len(), 1);
    assert!(
        archive::of_time(&mut connection, &later)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn the_external_id_is_free_after_the_term_of_archived_orders() {
    let bench = Bench::keeping_everything().await;
    let partner = PartnerId::new();
    bench.delivered(partner, "o-1", 500).await;
    let mut archive = bench.ripe(10).await;
    bench.moved(&mut archive).await;
    let mut connection = bench.connection().await;
    for (days, age, erased, is_free) in [
        (None, 4_000, 0, false),
        (Some(365), 364, 0, false),
        (Some(365), 366, 1, true),
    ] {
        retention_terms::set(&mut connection, DataClass::Archived, days, applied())
            .await
            .unwrap();
        let back =
            format!("UPDATE archived_orders SET archived_at = now() - interval '{age} days'");
        bench.sql(&back).await;
        let step = retention::step(&mut connection, DataClass::Archived, 100).await;
        assert_eq!(step.unwrap().erased, erased, "{days:?} {age}");
        let taken = orders::is_taken(&mut connection, partner, "o-1").await;
        assert_eq!(!taken.unwrap(), is_free, "{days:?} {age}");
    }
    let overdue = retention::backlog(&mut connection).await.unwrap().overdue[3];
    assert!(overdue < Duration::from_mins(1), "{overdue:?}");
    // Orders themselves are never erased by retention, whatever their term is.
    retention_terms::set(&mut connection, DataClass::Orders, Some(1), applied())
        .await
        .unwrap();
    let kept = bench.delivered(partner, "o-2", 500).await;
    let step = retention::step(&mut connection, DataClass::Orders, 100).await;
    assert_eq!(step.unwrap().seen, 0);
    assert_eq!(bench.rows_of(&kept).await.len(), 6);
}

#[tokio::test]
async fn the_archives_of_a_partner_are_known() {
    let bench = Bench::keeping_everything().await;
    let partner = bench.partner(None).await;
    bench.delivered(partner, "o-1", 500).await;
    let mut archive = bench.ripe(10).await;
    bench.moved(&mut archive).await;
    let mut connection = bench.connection().await;
    let found = desk::archived::of_partner(&mut connection, partner).await;
    let found = found.unwrap();
    assert_eq!((found.len(), found[0].orders), (1, 1));
    assert_eq!(found[0].file, "/srv/orders-1.jsonl.gz");
}

/// What an interrupted run has reserved is found again, and nothing else.
#[tokio::test]
async fn an_interrupted_run_finds_what_it_has_reserved() {
    let bench = Bench::keeping_everything().await;
    let partner = PartnerId::new();
    let mut orders = Vec::new();
    for number in 0..4 {
        orders.push(
            bench
                .delivered(partner, &number.to_string(), 500 - number)
                .await,
        );
    }
    let mut first = bench.ripe(1).await;
    bench.moved(&mut first).await;
    let second = bench.reserved(2).await;
    let mut connection = bench.connection().await;
    let found = archive::unfinished(&mut connection).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].archive, &found[0].file),
        (second.archive, &second.file)
    );
    let reserved = archive::reserved(&mut connection, &found[0]).await;
    let expected: Vec<Uuid> = orders[1..3]
        .iter()
        .map(|order| order.order_id.uuid())
        .collect();
    assert_eq!(reserved.unwrap(), expected);
    let counted = archive::count(&mut connection, second.last_order, ago(365), 10).await;
    assert_eq!(counted.unwrap(), (1, Some(orders[3].order_id.uuid())));

    // Only one run works at a time.
    assert!(archive::lock(&mut connection).await.unwrap());
    assert!(!archive::lock(&mut *bench.connection().await).await.unwrap());
}

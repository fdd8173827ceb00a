//! What each database role may do, and what it may not.

use std::collections::BTreeSet;

use domain::PartnerId;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use store::schema;

use crate::bench::{Bench, execute, order, placement};

/// A connection as a stage has it.
async fn connect(bench: &Bench, stage: &str) -> PgConnection {
    PgConnection::connect(&bench.database.url_of(stage).unwrap()).await.unwrap()
}

/// The SQLSTATE of a statement that fails.
async fn refused(connection: &mut PgConnection, statement: &'static str) -> String {
    let done = sqlx::raw_sql(statement).execute(connection).await;
    let error = done.err().unwrap_or_else(|| panic!("allowed: {statement}"));
    error.as_database_error().unwrap().code().unwrap().into_owned()
}

/// What somebody with the credentials of one stage may not do.
const DENIED: [(&str, &[&str]); 4] = testkit::rows! {
    "ingress" => &[
        "SELECT profile FROM topups", "UPDATE partners SET disabled_at = NULL",
        "UPDATE partners SET max_in_flight = NULL", "UPDATE partners SET signed_body_required = false",
        "UPDATE partners SET environment = 'live'", "UPDATE esims SET profile = ''",
        "UPDATE esims SET iccid = '1'", "DELETE FROM delivery_attempts", "DELETE FROM operator_actions",
        "INSERT INTO partners (partner_id) VALUES (gen_random_uuid())",
        "UPDATE options SET provider_option_id = 'cheap'", "UPDATE placements SET attempt = 0",
        "UPDATE deliveries SET partner_id = gen_random_uuid()",
        "INSERT INTO deliveries (topup_id) VALUES ('a')",
        "INSERT INTO placements (placement_id, state) VALUES (gen_random_uuid(), 'placed')",
        "DELETE FROM orders", "INSERT INTO placement_due (placement_id) VALUES (gen_random_uuid())",
        "UPDATE providers SET open_until = NULL", "UPDATE events SET kind = 'key.expiring'",
        "INSERT INTO events (event_id, topup_id) VALUES ('a', 'b')",
    ];
    "provisioner" => &[
        "SELECT partner_id FROM partners", "SELECT profile FROM topups",
        "SELECT answer FROM delivery_attempts", "SELECT state FROM deliveries",
        "UPDATE partners SET webhook_url = 'https://attacker.example/'", "UPDATE orders SET refused = true",
        "INSERT INTO orders (order_id) VALUES (gen_random_uuid())",
        "INSERT INTO placements (placement_id) VALUES (gen_random_uuid())",
        "UPDATE topups SET provider_option_id = 'dear'", "UPDATE options SET enabled = false",
        "DELETE FROM deliveries", "DELETE FROM esims", "SELECT event_id FROM events",
        "INSERT INTO events (event_id) VALUES ('a')",
    ];
    "notifier" => &[
        "SELECT secret_key FROM partners", "SELECT old_secret_key FROM partners",
        "SELECT access_key FROM partners", "SELECT * FROM partners",
        "UPDATE partners SET webhook_url = 'https://attacker.example/'",
        "UPDATE partners SET webhook_secret = ''",
        // Granted for FOR SHARE only: the trigger of partners refuses it.
        "UPDATE partners SET created_at = now()",
        "UPDATE placements SET state = 'accepted'",
        "INSERT INTO placement_due (placement_id) VALUES (gen_random_uuid())",
        "INSERT INTO placements (placement_id) VALUES (gen_random_uuid())",
        "INSERT INTO orders (order_id) VALUES (gen_random_uuid())", "UPDATE orders SET refused = true",
        "UPDATE esims SET iccid = '1'", "INSERT INTO deliveries (topup_id) VALUES ('a')",
        "UPDATE deliveries SET partner_id = gen_random_uuid()", "UPDATE retention_terms SET days = 1",
    ];
    "operator" => &[
        "SELECT profile FROM esims", "SELECT profile FROM topups", "UPDATE operator_actions SET reason = ''",
        "DELETE FROM operator_actions", "INSERT INTO orders (order_id) VALUES (gen_random_uuid())",
        "UPDATE placements SET attempt = 0", "DELETE FROM partners",
    ];
};
/// What no stage may do.
const ANYBODY: [&str; 7] = [
    "CREATE TABLE mine ()",
    "DROP TABLE orders",
    "ALTER TABLE placements DISABLE TRIGGER ingress_only_refuses",
    "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "DELETE FROM _sqlx_migrations",
    "COPY partners TO PROGRAM 'cat'",
    "SET ROLE esim_operator",
];

#[tokio::test]
async fn a_stage_may_not_do_the_work_of_another() {
    let bench = Bench::new().await;
    bench.partner(Some("https://partner.example/")).await;
    for (stage, statements) in DENIED {
        let mut connection = connect(&bench, stage).await;
        for statement in statements.iter().chain(&ANYBODY) {
            if stage == "operator" && statement.starts_with("SET ROLE") {
                continue;
            }
            assert_eq!(refused(&mut connection, statement).await, "42501", "{stage}: {statement}");
        }
    }
}

/// Ingress has the privilege to refuse. It can't undo a purchase or repeat one with it.
#[tokio::test]
async fn ingress_moves_no_placement_that_may_be_bought() {
    let bench = Bench::new().await;
    let placing = bench.placing(1).await;
    let accepted = bench.stored(order(PartnerId::new(), 1)).await;
    let mut ingress = connect(&bench, "ingress").await;
    for (order, state, allowed) in [
        (&placing, "refused", false),
        (&placing, "accepted", false),
        (&placing, "failed", false),
        (&accepted, "placed", false),
        (&accepted, "parked", false),
        (&accepted, "refused", true),
        (&accepted, "accepted", false),
    ] {
        let sql = format!("UPDATE placements SET state = '{state}' WHERE placement_id = '{}'", placement(order));
        let moved = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut ingress).await;
        assert_eq!(moved.is_ok(), allowed, "{state}: {moved:?}");
    }
}

/// The trigger that makes the event has the rights of the owner.
#[tokio::test]
async fn the_provisioner_fails_a_topup_whose_partner_wants_the_event() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    bench.set_events(partner, &[store::events::Kind::TopupFailed]).await;
    let failed = bench.stored(order(partner, 1)).await;
    let mut provisioner = connect(&bench, "provisioner").await;
    // What the name finds first for the session is not what the trigger writes.
    let tables = "CREATE TEMP TABLE events (event_id text UNIQUE, partner_id uuid, kind text, topup_id text);
         CREATE TEMP TABLE delivery_due (topup_id text, partner_id uuid, at timestamptz)";
    execute(&mut provisioner, tables).await;
    let fail = format!("UPDATE topups SET state = 'failed' WHERE placement_id = '{}'", placement(&failed));
    execute(&mut provisioner, &fail).await;
    let made = "SELECT count(*) FROM public.events JOIN public.delivery_due ON delivery_due.topup_id = event_id
                WHERE events.partner_id::text = $1";
    assert_eq!(bench.value::<i64>(made, partner).await, 1);
}

/// Every table of the schema is read by the operator, so a new table is not forgotten in `libs/store/roles`.
#[tokio::test]
async fn each_table_has_its_grants() {
    let bench = Bench::new().await;
    let tables = |role: &'static str| {
        sqlx::query_scalar::<_, String>(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
               AND ($1 = '' OR has_any_column_privilege($1, oid, 'SELECT')) ORDER BY 1",
        )
        .bind(role)
    };
    let mut connection = bench.connection().await;
    let all = tables("").fetch_all(&mut *connection).await.unwrap();
    let mut read: BTreeSet<String> = BTreeSet::new();
    for role in schema::ROLES {
        read.extend(tables(role.name).fetch_all(&mut *connection).await.unwrap());
    }
    let unread: Vec<_> = all.iter().filter(|table| !read.contains(*table)).collect();
    assert!(unread.is_empty(), "no role reads {unread:?}: name them in libs/store/roles");
}

/// An older grant, or one that was made by hand, does not stay.
#[tokio::test]
async fn a_migration_takes_what_is_not_granted() {
    let bench = Bench::new().await;
    let mut owner = bench.connection().await;
    let grants = "GRANT ALL ON partners TO esim_notifier; GRANT DELETE ON orders TO esim_ingress";
    execute(&mut owner, grants).await;
    let mut notifier = connect(&bench, "notifier").await;
    let read = "SELECT secret_key FROM partners";
    execute(&mut notifier, read).await;
    schema::migrate(&mut owner).await.unwrap();
    assert_eq!(refused(&mut notifier, read).await, "42501");
    let mut ingress = connect(&bench, "ingress").await;
    assert_eq!(refused(&mut ingress, "DELETE FROM orders").await, "42501");
}

//! The privileges of the database roles and the functions that check what a role may do. What each
//! role can and cannot do is tried in the module `stolen`.

use std::collections::BTreeSet;

use domain::PartnerId;
use pg::schema;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::bench::{Bench, execute, order, placement};
use crate::stolen::connect;

/// The SQLSTATE of a statement that fails.
async fn refused(connection: &mut PgConnection, statement: &'static str) -> String {
    let done = sqlx::raw_sql(statement).execute(connection).await;
    let error = done.err().unwrap_or_else(|| panic!("allowed: {statement}"));
    error
        .as_database_error()
        .unwrap()
        .code()
        .unwrap()
        .into_owned()
}

/// The console resolves a give-back that is parked after the attempt that its operator has seen,
/// and no other one. So it erases the profile of no eSIM that nobody has given back.
#[tokio::test]
async fn the_console_erases_only_the_profile_of_a_parked_give_back() {
    let bench = Bench::new().await;
    bench
        .sql(
            "INSERT INTO esims (topup_id, provider, provider_unit_id, iccid, profile, ready_at)
             SELECT 'topup ' || n, 'sandbox', n, n, 'sealed', now() FROM generate_series(1, 4) n;
             INSERT INTO esim_requests (topup_id, partner_id, provider, give_back, attempt)
             VALUES ('topup 2', gen_random_uuid(), 'sandbox', 'sending', 1),
                    ('topup 3', gen_random_uuid(), 'sandbox', 'parked', 2), ('topup 4', gen_random_uuid(), 'sandbox', 'parked', 1)",
        )
        .await;
    let mut console = connect(&bench, "console").await;
    for (topup, resolved) in [("1", false), ("2", false), ("3", false), ("4", true)] {
        let done: bool = sqlx::query_scalar("SELECT resolve_give_back('topup ' || $1, 1, true)")
            .bind(topup)
            .fetch_one(&mut console)
            .await
            .unwrap();
        assert_eq!(done, resolved, "{topup}");
    }
    let left: Vec<String> = sqlx::query_scalar(
        "SELECT topup_id FROM esims WHERE profile IS NOT NULL ORDER BY topup_id",
    )
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    assert_eq!(left, ["topup 1", "topup 2", "topup 3"]);
}

/// Every stage may stop the buying, because the database cannot know what it has forgotten. It does
/// so under its own name, in words of the database, and it hides no later loss.
#[tokio::test]
async fn whoever_says_that_commits_were_lost_is_named_and_hides_no_later_loss() {
    let bench = Bench::new().await;
    bench
        .sql("INSERT INTO providers (name, version) VALUES ('sandbox', 9000000000000000000)")
        .await;
    let mut notifier = connect(&bench, "notifier").await;
    let later = refused(
        &mut notifier,
        "SELECT commits_lost(gen_random_uuid(), NULL, 1000)",
    );
    assert_eq!(later.await, "22023", "a loss that lies ahead");
    let version = async || {
        let query = sqlx::query_scalar("SELECT version FROM system");
        let version: i64 = query.fetch_one(&bench.pool).await.unwrap();
        version
    };
    let before = version().await;
    for _ in 0..3 {
        sqlx::query("SELECT commits_lost(gen_random_uuid(), 7, NULL)")
            .execute(&mut notifier)
            .await
            .unwrap();
        sqlx::query("SELECT commits_lost(gen_random_uuid(), 7, NULL)")
            .execute(&mut notifier)
            .await
            .unwrap();
    }
    // What was read of the configuration before counts as current no more, and no version of a row
    // is given out twice.
    assert!(version().await >= before + 1_000_000);
    bench
        .sql(
            "INSERT INTO options (option_id, name, provider, provider_option_id, environment, enabled)
             VALUES (gen_random_uuid(), 'later', 'sandbox', 'later', 'sandbox', true)",
        )
        .await;
    let row: i64 = sqlx::query_scalar("SELECT min(version) FROM options")
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    assert!(row >= 1_000_000);
    let reason: String = sqlx::query_scalar(
        "SELECT reason FROM providers WHERE open_until = '9999-12-31 00:00:00+00'",
    )
    .fetch_one(&bench.pool)
    .await
    .unwrap();
    assert!(
        reason.ends_with("and pulse 7 was acknowledged (esim_notifier says so)"),
        "{reason}"
    );
    let recorded: Vec<(String, String, i64)> =
        sqlx::query_as("SELECT operator, command, affected FROM operator_actions")
            .fetch_all(&bench.pool)
            .await
            .unwrap();
    assert_eq!(
        recorded,
        [("esim_notifier".into(), "commit fence".into(), 1)],
        "only a change is recorded"
    );
}

/// Ingress has the privilege to refuse. It can't undo a purchase or repeat one with it.
#[tokio::test]
async fn ingress_refuses_no_order_that_may_be_bought() {
    let bench = Bench::new().await;
    let mut ingress = connect(&bench, "ingress").await;
    for (placing, closed) in [(true, 0), (false, 1)] {
        let order = bench.stored(order(PartnerId::new(), 1)).await;
        if placing {
            bench.claim(&[placement(&order)]).await;
        }
        let sql = "SELECT count(*) FROM refuse_order($1, false)";
        let count: i64 = sqlx::query_scalar(sql)
            .bind(order.order_id.uuid())
            .fetch_one(&mut ingress)
            .await
            .unwrap();
        assert_eq!(count, closed);
        assert_eq!(
            bench.state(placement(&order)).await,
            if placing { "placing" } else { "refused" }
        );
    }
}

/// What the notifier does in batches is its own, and no provisioner can invent or hide it.
#[tokio::test]
async fn a_provisioner_neither_sees_nor_makes_work_in_batches() {
    let bench = Bench::new().await;
    let insert = "INSERT INTO work (id, kind, provider, lane, partner_id, at)
                  SELECT gen_random_uuid(), kind, '', kind, gen_random_uuid(), now()
                  FROM unnest('{moved,resend,notices}'::text[]) kind";
    bench.sql(insert).await;
    let mut provisioner = connect(&bench, "provisioner").await;
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM work")
        .fetch_one(&mut provisioner)
        .await
        .unwrap();
    assert_eq!(seen, 0);
    let refused = sqlx::raw_sql(insert).execute(&mut provisioner).await;
    let error = refused.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().unwrap(), "42501");
    let mut notifier = connect(&bench, "notifier").await;
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM work")
        .fetch_one(&mut notifier)
        .await
        .unwrap();
    assert_eq!(seen, 3);
}

/// The table is shared, but a stage sees and changes the rows of its own kinds only.
#[tokio::test]
async fn each_stage_has_its_own_work() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    let bought = bench.stored(order(partner, 1)).await;
    bench.due_in(&[placement(&bought)], -1.0).await;
    bench.deliveries(partner, 1, false).await;
    let held = "INSERT INTO held (id, state, provider, partner_id)
                SELECT gen_random_uuid(), state, '', $1::uuid FROM unnest('{parked,exhausted}'::text[]) state";
    bench.set(held, partner).await;
    for (stage, work, held) in [
        ("provisioner", "buy", "parked"),
        ("notifier", "deliver", "exhausted"),
    ] {
        let mut connection = connect(&bench, stage).await;
        let kinds = "SELECT string_agg(kind, ' ') FROM work";
        assert_eq!(
            sqlx::query_scalar::<_, String>(kinds)
                .fetch_one(&mut connection)
                .await
                .unwrap(),
            work,
            "{stage}"
        );
        for (table, kind, own) in [("work", "kind", work), ("held", "state", held)] {
            let mut transaction = connection.begin().await.unwrap();
            let delete = AssertSqlSafe(format!("DELETE FROM {table} RETURNING {kind}"));
            let deleted: Vec<String> = sqlx::query_scalar(delete)
                .fetch_all(&mut *transaction)
                .await
                .unwrap();
            assert_eq!(deleted, [own], "{stage} deletes from {table}");
            transaction.rollback().await.unwrap();
        }
    }
}

/// The trigger that makes the event has the rights of the owner.
#[tokio::test]
async fn the_provisioner_fails_a_topup_whose_partner_wants_the_event() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    bench
        .set_events(partner, &[domain::event::EventKind::TopupFailed])
        .await;
    let failed = bench.stored(order(partner, 1)).await;
    let mut provisioner = connect(&bench, "provisioner").await;
    // What the name finds first for the session is not what the trigger writes.
    let tables = "CREATE TEMP TABLE deliveries (delivery_id uuid UNIQUE, partner_id uuid, kind text, topup_id text,
                                        order_id uuid);
         CREATE TEMP TABLE work (id uuid, kind text, provider text, lane text, partner_id uuid, at timestamptz)";
    execute(&mut provisioner, tables).await;
    let fail = format!(
        "UPDATE topups SET state = 'failed' WHERE placement_id = '{}'",
        placement(&failed)
    );
    execute(&mut provisioner, &fail).await;
    let made = "SELECT count(*) FROM public.deliveries d JOIN public.work ON id = delivery_id
                WHERE d.partner_id::text = $1 AND d.kind = 'topup.failed'";
    assert_eq!(bench.value::<i64>(made, partner).await, 1);
}

/// Every table of the schema is read by the operator, so a new table is not forgotten in
/// `libs/pg/roles`.
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
    assert!(
        unread.is_empty(),
        "no role reads {unread:?}: name them in libs/pg/roles"
    );
}

/// An older grant, or one that was made by hand, does not stay.
#[tokio::test]
async fn a_migration_takes_what_is_not_granted() {
    let bench = Bench::new().await;
    let mut owner = bench.connection().await;
    let grants = "GRANT ALL ON partners TO esim_notifier; GRANT DELETE ON orders TO esim_ingress;
                  GRANT EXECUTE ON FUNCTION refuse_order(uuid, boolean) TO esim_notifier";
    execute(&mut owner, grants).await;
    let mut notifier = connect(&bench, "notifier").await;
    let read = "SELECT secret_key FROM partners";
    execute(&mut notifier, read).await;
    schema::migrate(&mut owner).await.unwrap();
    assert_eq!(refused(&mut notifier, read).await, "42501");
    let refuse = "SELECT refuse_order(gen_random_uuid(), true)";
    assert_eq!(refused(&mut notifier, refuse).await, "42501");
    let mut ingress = connect(&bench, "ingress").await;
    assert_eq!(refused(&mut ingress, "DELETE FROM orders").await, "42501");
}

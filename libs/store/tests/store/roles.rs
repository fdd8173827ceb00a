//! What each database role may do, and above all what it may not: the credentials of one stage must
//! not suffice to do the work of another.

use std::collections::BTreeSet;

use domain::PartnerId;
use pg::schema;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::bench::{Bench, execute, order, placement};

/// A connection as a stage has it.
async fn connect(bench: &Bench, stage: &str) -> PgConnection {
    PgConnection::connect(&bench.database.url_of(stage).unwrap())
        .await
        .unwrap()
}

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

/// What somebody with the credentials of one stage may not do.
const DENIED: [(&str, &[&str]); 5] = testkit::rows! {
    "ingress" => &[
        "UPDATE partners SET disabled_at = NULL",
        "UPDATE partners SET max_in_flight = NULL", "UPDATE partners SET signed_body_required = false",
        "UPDATE partners SET environment = 'live'", "UPDATE esims SET profile = ''",
        "UPDATE esims SET iccid = '1'", "DELETE FROM delivery_attempts", "DELETE FROM operator_actions",
        "INSERT INTO partners (partner_id) VALUES (gen_random_uuid())",
        "UPDATE options SET provider_option_id = 'cheap'", "UPDATE placements SET attempt = 0",
        "UPDATE deliveries SET partner_id = gen_random_uuid()",
        "INSERT INTO deliveries (topup_id) VALUES ('a')",
        "INSERT INTO placements (placement_id, state) VALUES (gen_random_uuid(), 'placed')",
        "UPDATE placements SET state = 'refused'", "DELETE FROM orders", "DELETE FROM work",
        "INSERT INTO work VALUES (gen_random_uuid(), 'buy', 'sandbox', '', gen_random_uuid(), now())",
        "UPDATE providers SET open_until = NULL", "UPDATE deliveries SET kind = 'key.expiring'",
        "UPDATE partner_endpoints SET partner_id = gen_random_uuid()", "UPDATE partner_endpoints SET verified_at = now()",
        "DELETE FROM further_deliveries",
    ];
    "provisioner" => &[
        "SELECT partner_id FROM partners",
        "SELECT answer FROM delivery_attempts", "SELECT state FROM deliveries",
        "UPDATE partner_endpoints SET url = 'https://attacker.example/'", "UPDATE orders SET refused_at = now()",
        "INSERT INTO orders (order_id) VALUES (gen_random_uuid())",
        "INSERT INTO placements (placement_id) VALUES (gen_random_uuid())",
        "UPDATE topups SET option_id = gen_random_uuid()", "UPDATE options SET enabled = false",
        "DELETE FROM deliveries", "DELETE FROM esims", "SELECT close_placements(gen_random_uuid())",
        "SELECT url FROM partner_endpoints",
    ];
    "notifier" => &[
        "SELECT secret_key FROM partners", "SELECT old_secret_key FROM partners",
        "SELECT access_key FROM partners", "SELECT * FROM partners",
        "UPDATE partners SET name = ''",
        // Granted for FOR SHARE only: the trigger of partners refuses it.
        "UPDATE partners SET created_at = now()",
        "UPDATE placements SET state = 'accepted'",
        "INSERT INTO work VALUES (gen_random_uuid(), 'buy', 'sandbox', '', gen_random_uuid(), now())",
        "SELECT close_placements(gen_random_uuid())",
        "INSERT INTO placements (placement_id) VALUES (gen_random_uuid())",
        "INSERT INTO orders (order_id) VALUES (gen_random_uuid())", "UPDATE orders SET refused_at = now()",
        "UPDATE esims SET iccid = '1'", "UPDATE deliveries SET partner_id = gen_random_uuid()",
        "UPDATE walks SET days = 1",
        "UPDATE partner_endpoints SET url = 'https://attacker.example/'", "UPDATE partner_endpoints SET secrets = '{}'",
        "DELETE FROM partner_endpoints", "INSERT INTO partner_endpoints (endpoint_id) VALUES (gen_random_uuid())",
    ];
    "operator" => &[
        "SELECT profile FROM esims", "UPDATE operator_actions SET reason = ''",
        "DELETE FROM operator_actions", "INSERT INTO orders (order_id) VALUES (gen_random_uuid())",
        "UPDATE placements SET attempt = 0", "DELETE FROM partners",
        "SELECT token_digest FROM operator_sessions", "INSERT INTO operator_sessions (operator_id) VALUES (gen_random_uuid())",
    ];
    "console" => &[
        // It may read profiles, which are sealed: docs/decisions/0033-console.md.
        "UPDATE esims SET profile = NULL", "UPDATE partners SET environment = 'live'",
        "UPDATE partners SET name = ''", "UPDATE partner_endpoints SET partner_id = gen_random_uuid()",
        "UPDATE partner_endpoints SET verified_at = now()", "UPDATE partner_endpoints SET told = NULL",
        "UPDATE partners SET moved_to = NULL",
        "UPDATE operators SET role = 'operator'", "UPDATE operators SET disabled_at = NULL",
        "INSERT INTO operators (operator_id) VALUES (gen_random_uuid())", "DELETE FROM operators",
        "UPDATE operator_actions SET reason = ''", "DELETE FROM operator_actions",
        "UPDATE operator_sessions SET ends_at = 'infinity'", "UPDATE operator_sessions SET role = 'operator'",
        "UPDATE providers SET name = 'another'",
        "UPDATE work SET partner_id = gen_random_uuid()", "UPDATE held SET state = 'parked'",
        "INSERT INTO held (id, state, provider, partner_id) VALUES (gen_random_uuid(), 'parked', '', gen_random_uuid())",
        "INSERT INTO orders (order_id) VALUES (gen_random_uuid())", "UPDATE placements SET attempt = 0",
        "UPDATE options SET enabled = true", "UPDATE walks SET days = 1", "DELETE FROM delivery_attempts",
        "UPDATE esim_requests SET attempt = 0", "UPDATE orders SET refused_at = now()", "SELECT mark_returned('a')",
    ];
};
/// What the credentials of one role still allow, under the words with which `docs/security.md` says so.
const STILL: [(&str, &[(&str, &str)]); 5] = testkit::rows! {
    "ingress" => &[
        ("redirect webhooks", "UPDATE partner_endpoints SET url = 'https://attacker.example/'"),
        ("read keys, profiles", "SELECT secret_key, profile FROM partners, esims"),
        ("of any partner", "INSERT INTO esim_requests (topup_id, partner_id, provider, give_back)
                            SELECT 'a', gen_random_uuid(), '', 'asked'"),
        ("pause an endpoint", "UPDATE partner_endpoints SET blocked_until = 'infinity'"),
        ("stop all buying", "SELECT commits_lost(gen_random_uuid(), 1, NULL)"),
    ];
    "provisioner" => &[
        ("erase their profiles", "UPDATE esims SET profile = NULL"),
        ("close a breaker", "UPDATE providers SET open_until = NULL"),
        ("stop all buying", "SELECT commits_lost(gen_random_uuid(), 1, NULL)"),
    ];
    "notifier" => &[
        ("erase profiles, attempts and the operators' record", "UPDATE esims SET profile = NULL"),
        ("erase profiles, attempts and the operators' record", "DELETE FROM operator_actions"),
        ("make deliveries due and record them", "UPDATE deliveries SET state = 'delivered'"),
        ("stop all buying", "SELECT commits_lost(gen_random_uuid(), 1, NULL)"),
    ];
    "operator" => &[
        ("change partners, options and due work", "UPDATE partner_endpoints SET url = 'https://attacker.example/'"),
        ("erase orders and partners", "UPDATE esims SET profile = NULL"),
    ];
    "console" => &[
        ("it opens sessions", "INSERT INTO operator_sessions (token_digest, operator_id, source, ends_at)
                               VALUES ('', gen_random_uuid(), '', now())"),
        ("have a placement bought again", "UPDATE placements SET state = 'accepted'"),
        ("close breakers", "UPDATE providers SET open_until = NULL"),
        ("redirect webhooks", "UPDATE partner_endpoints SET url = 'https://attacker.example/'"),
        ("lock a partner out of its account", "UPDATE partners SET secret_key = ''"),
        ("read sealed profiles, keys, secrets and headers", "SELECT headers, secrets FROM partner_endpoints"),
        ("ask to give back any eSIM", "UPDATE esim_requests SET give_back = 'asked'"),
        ("enable a partner that was disabled", "UPDATE partners SET disabled_at = NULL"),
        ("stop all buying", "SELECT commits_lost(gen_random_uuid(), 1, NULL)"),
    ];
};
/// What no stage may do.
const ANYBODY: [&str; 8] = [
    "CREATE TABLE mine ()",
    "DROP TABLE orders",
    "ALTER TABLE work DISABLE ROW LEVEL SECURITY",
    "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "DELETE FROM _sqlx_migrations",
    "COPY partners TO PROGRAM 'cat'",
    "SET ROLE esim_operator",
    "SELECT next_version_of_row()",
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
            assert_eq!(
                refused(&mut connection, statement).await,
                "42501",
                "{stage}: {statement}"
            );
        }
    }
}

/// The page does not promise more than the privileges keep: what a role can do is written there.
#[tokio::test]
async fn the_page_on_security_says_what_each_role_can_still_do() {
    let bench = Bench::new().await;
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (stage, rows) in STILL {
        let mut connection = connect(&bench, stage).await;
        for (words, statement) in rows {
            assert!(page.contains(words), "docs/security.md: {words}");
            let mut transaction = connection.begin().await.unwrap();
            let done = sqlx::raw_sql(*statement).execute(&mut *transaction).await;
            done.unwrap_or_else(|error| panic!("{stage}: {statement}: {error}"));
            transaction.rollback().await.unwrap();
        }
    }
}

/// The console resolves a give-back that is parked after the attempt that its operator has seen, and
/// no other one. So it erases the profile of no eSIM that nobody has given back.
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
    // What was read of the configuration before counts as current no more, and no version of a row is
    // given out twice.
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
    // What programs of the version before write as the reason stands nowhere.
    bench.sql("UPDATE providers SET open_until = NULL").await;
    bench
        .sql("SELECT commits_lost('ask the attacker: ' || repeat('x', 130000000), NULL)")
        .await;
    let length: i32 = sqlx::query_scalar("SELECT length(reason) FROM providers")
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    assert!(length < 500, "{length}");
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
        let sql = "SELECT count(*) FROM close_placements($1)";
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
        .set_events(partner, &[domain::event::Kind::TopupFailed])
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

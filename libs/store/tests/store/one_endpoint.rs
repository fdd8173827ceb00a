//! The upgrade to one table of endpoints: no row and no secret of the version before is lost, and its
//! programs go on beside those of this version.

use accounts::partners::endpoints::{self, Block, Change};
use domain::EndpointKey;
use pg::schema::{self, Patience};
use sqlx::migrate::{Migration, Migrator};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::bench::{Bench, execute};

/// The last schema with three places for endpoints.
const BEFORE: i64 = 40;

/// What all endpoints have, as programs of the version before read it.
const FIRST: &str =
    "SELECT partner_id, webhook_url, webhook_host, webhook_secret, old_webhook_secret,
                            old_webhook_secret_until, webhook_events FROM partners";
const FURTHER: &str = "SELECT * FROM further_endpoints";
/// An endpoint without a row here had the health that a new one has.
const HEALTH: &str = "SELECT * FROM endpoints
    WHERE failures + blocks > 0 OR paused_by_partner
       OR coalesce(blocked_until, moving_since, failing_since, told_at, exhausted_told_at, unproven_since) IS NOT NULL";

/// Rows of every kind: partners without a URL, with one and with an old secret, an erased one; further
/// endpoints with an old secret, headers and other events; channels that are verified, and that wait
/// for a code; and each state of health.
const ROWS: &str = "
    INSERT INTO partners (partner_id, name, environment, access_key, webhook_url, webhook_secret, old_webhook_secret,
                          old_webhook_secret_until, webhook_events, has_further_endpoints)
    SELECT md5('partner ' || n)::uuid, 'p' || n, 'live', 'ak_' || n,
           CASE WHEN n > 1 THEN 'https://Hooks' || n || '.example/path' END,
           CASE WHEN n = 4 THEN '' ELSE convert_to('secret ' || n, 'UTF8') END,
           CASE WHEN n = 3 THEN 'old'::bytea END, CASE WHEN n = 3 THEN timestamptz '2099-01-01' END,
           CASE WHEN n = 2 THEN '{topup.failed,key.expiring}'::text[] ELSE '{}' END, n = 2
    FROM generate_series(1, 40) n;
    INSERT INTO further_endpoints (endpoint_id, partner_id, purpose, url, secret, old_secret, old_secret_until, events, headers,
                                   verified_at, created_at, code_digest, code_until, code_tries)
    SELECT md5('endpoint ' || n)::uuid, md5('partner ' || 1 + n / 3)::uuid,
           CASE WHEN n % 3 = 0 THEN 'notices' ELSE 'webhooks' END,
           CASE WHEN n % 3 = 0 THEN 'mailto:ops@example.com' ELSE 'https://further.example/' || n END,
           convert_to('further secret ' || n, 'UTF8'), CASE WHEN n % 2 = 0 THEN 'old'::bytea END,
           CASE WHEN n % 2 = 0 THEN timestamptz '2098-01-01' END,
           CASE n % 3 WHEN 0 THEN '{}'::text[] WHEN 1 THEN '{topup.ready}' ELSE '{topup.failed}' END,
           CASE WHEN n % 3 = 1 THEN 'headers'::bytea END, CASE WHEN n % 6 = 0 THEN timestamptz '2025-01-01' END,
           timestamptz '2024-01-01' + make_interval(days => n), CASE WHEN n % 6 = 3 THEN 'digest'::bytea END,
           CASE WHEN n % 6 = 3 THEN timestamptz '2025-02-02' END, n % 5
    FROM generate_series(1, 30) n;
    INSERT INTO endpoints (partner_id, failures, blocks, blocked_until, probe, moving_since, paused_by_partner, failing_since,
                           told, told_at, exhausted_told_at, unproven_since)
    SELECT md5(kind || n)::uuid, n, n % 4,
           CASE n % 4 WHEN 0 THEN NULL WHEN 1 THEN timestamptz 'infinity' ELSE timestamptz '2030-01-01' END,
           CASE WHEN n % 4 = 2 THEN md5('probe ' || n)::uuid END, CASE WHEN n % 5 = 0 THEN timestamptz '2025-03-03' END,
           n % 8 = 1, timestamptz '2025-04-04', CASE n % 3 WHEN 0 THEN NULL WHEN 1 THEN 'failing' ELSE 'blocked' END,
           CASE WHEN n % 3 > 0 THEN timestamptz '2025-05-05' END, CASE WHEN n % 7 = 0 THEN timestamptz '2025-06-06' END,
           CASE WHEN n % 4 = 3 THEN timestamptz '2025-07-07' END
    FROM generate_series(5, 20) n, (VALUES ('partner '), ('endpoint ')) AS kinds (kind)";

/// The rows of a query, as text.
async fn rows(connection: &mut PgConnection, query: &str) -> Vec<String> {
    let text = format!("SELECT r::text FROM ({query}) r ORDER BY 1");
    let rows = sqlx::query_scalar(AssertSqlSafe(text)).fetch_all(connection);
    rows.await.unwrap()
}

async fn number(connection: &mut PgConnection, query: &str) -> i64 {
    let number = sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(connection);
    number.await.unwrap()
}

/// A database of the version before with rows of every kind.
async fn before(bench: &Bench) -> PgConnection {
    let older: Vec<Migration> = schema::migrations()
        .iter()
        .filter(|migration| migration.version <= BEFORE)
        .cloned()
        .collect();
    let mut connection = PgConnection::connect(bench.database.url()).await.unwrap();
    let older = Migrator::with_migrations(older);
    schema::apply(&mut connection, &older, Patience::default(), |_| {})
        .await
        .unwrap();
    execute(&mut connection, ROWS).await;
    connection
}

#[tokio::test]
async fn no_endpoint_and_no_secret_is_lost() {
    let bench = Bench::empty().await;
    let mut connection = before(&bench).await;
    let mut stored = Vec::new();
    for query in [FIRST, FURTHER, HEALTH] {
        let found = rows(&mut connection, query).await;
        assert!(found.len() >= 30, "{query}");
        stored.push((query, found));
    }
    schema::migrate(&mut connection).await.unwrap();
    for (query, found) in stored {
        assert_eq!(rows(&mut connection, query).await, found, "{query}");
    }
    let all = "SELECT count(*) FROM partner_endpoints";
    assert_eq!(number(&mut connection, all).await, 40 + 30);
    // The first one has the id of its partner, and the others follow in the order of their age.
    let wrong = "SELECT count(*) FROM (
                     SELECT nth, row_number() OVER (PARTITION BY partner_id ORDER BY endpoint_id <> partner_id, created_at) AS place
                     FROM partner_endpoints) e
                 WHERE nth <> place - 1";
    assert_eq!(number(&mut connection, wrong).await, 0);
    let lists = "SELECT count(*) FROM partner_endpoints WHERE cardinality(secrets) = 2 AND secret_ends[1] IS NULL
                   AND secret_ends[2] > '2090-01-01'";
    assert_eq!(number(&mut connection, lists).await, 1 + 15);
}

/// Statements of the version before, as its programs sent them: each through the view or the columns
/// that are left for it.
#[tokio::test]
async fn programs_of_the_version_before_go_on_beside_this_one() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    // A partner that an older `esimctl` creates has its first endpoint.
    execute(
        &mut connection,
        "INSERT INTO partners (partner_id, name, environment, access_key, secret_key, webhook_url, webhook_secret)
         VALUES (md5('p')::uuid, 'p', 'live', 'ak', 'x', 'https://One.example/', 'one')",
    )
    .await;
    let endpoint = "SELECT url, host, convert_from(secrets[1], 'UTF8'), cardinality(secrets), events, failures, blocked_until
                    FROM partner_endpoints";
    let first = format!("{endpoint} WHERE nth = 0");
    assert_eq!(
        rows(&mut connection, &first).await,
        ["(https://One.example/,one.example,one,1,{topup.ready},0,)"]
    );
    // It changes the URL, the events and the secret, and reads what this version has changed.
    execute(
        &mut connection,
        "UPDATE partners SET webhook_url = 'https://two.example/', webhook_events = '{topup.failed}', webhook_secret = 'two',
                             old_webhook_secret = webhook_secret, old_webhook_secret_until = now() + interval '1 hour'",
    )
    .await;
    assert_eq!(
        rows(&mut connection, &first).await,
        ["(https://two.example/,two.example,two,2,\"{topup.ready,topup.failed}\",0,)"]
    );
    let id = first_endpoint(&mut connection).await;
    let change = Change {
        url: Some(Some("https://three.example/")),
        events: Some(&[]),
        headers: None,
    };
    let changed = endpoints::change(&mut connection, id, &change, Block::ProbeNow).await;
    assert_eq!(changed.unwrap(), Some(true));
    assert_eq!(
        rows(
            &mut connection,
            "SELECT webhook_url, webhook_events FROM partners"
        )
        .await,
        ["(https://three.example/,{})"]
    );
    // An older notifier counts failures, and blocks the endpoint.
    let count = "INSERT INTO endpoints AS e (partner_id, failures, blocks, failing_since)
                 VALUES (md5('p')::uuid, 3, 0, now())
                 ON CONFLICT (partner_id) DO UPDATE
                 SET failures = e.failures + excluded.failures, blocked_until = timestamptz 'infinity'
                 WHERE e.blocked_until IS NULL
                 RETURNING e.partner_id";
    assert_eq!(rows_of(&mut connection, count).await, 1);
    assert_eq!(rows_of(&mut connection, count).await, 0, "it is blocked");
    let unknown = "INSERT INTO endpoints (partner_id, failures) VALUES (gen_random_uuid(), 1)
                   ON CONFLICT (partner_id) DO UPDATE SET failures = excluded.failures";
    assert_eq!(rows_of(&mut connection, unknown).await, 0, "it was deleted");
    assert_eq!(
        rows(
            &mut connection,
            "SELECT failures, blocked_until FROM partner_endpoints"
        )
        .await,
        ["(3,infinity)"]
    );
    // An older ingress creates, changes and deletes a further endpoint.
    execute(
        &mut connection,
        "INSERT INTO further_endpoints (endpoint_id, partner_id, url, secret, events, headers, created_at)
         SELECT md5('e')::uuid, md5('p')::uuid, 'https://four.example/', 'four', '{topup.ready}', NULL, clock_timestamp()
         WHERE (SELECT count(*) FROM further_endpoints WHERE partner_id = md5('p')::uuid AND purpose = 'webhooks') < 9;
         UPDATE further_endpoints SET secret = 'five', old_secret = secret, old_secret_until = now() + interval '1 hour'
         WHERE endpoint_id = md5('e')::uuid",
    )
    .await;
    assert_eq!(
        rows(&mut connection, &format!("{endpoint} WHERE nth = 1")).await,
        ["(https://four.example/,four.example,five,2,{topup.ready},0,)"]
    );
    let gone = "WITH gone AS (
                    DELETE FROM further_endpoints WHERE endpoint_id = md5('e')::uuid AND purpose = 'webhooks' RETURNING endpoint_id
                ), health AS (
                    DELETE FROM endpoints WHERE partner_id = ANY (ARRAY (SELECT endpoint_id FROM gone))
                )
                SELECT * FROM gone";
    assert_eq!(rows_of(&mut connection, gone).await, 1);
    let left = "SELECT count(*) FROM partner_endpoints";
    assert_eq!(number(&mut connection, left).await, 1);
}

async fn first_endpoint(connection: &mut PgConnection) -> EndpointKey {
    let id: uuid::Uuid = sqlx::query_scalar("SELECT partner_id FROM partners")
        .fetch_one(connection)
        .await
        .unwrap();
    EndpointKey::first(id.into())
}

/// The number of rows that a statement changes or returns.
async fn rows_of(connection: &mut PgConnection, statement: &str) -> usize {
    let rows = sqlx::query(AssertSqlSafe(statement.to_owned())).fetch_all(connection);
    rows.await.unwrap().len()
}

//! The upgrade to one table of endpoints: no row and no secret of the three older places is lost.

use pg::schema::{self, Patience};
use sqlx::migrate::{Migration, Migrator};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::bench::{Bench, execute};

/// The last schema with three places for endpoints.
const BEFORE: i64 = 40;

/// What all endpoints have: how it was read before, and how it is read now.
const READ: [(&str, &str); 3] = [
    (
        "SELECT partner_id, webhook_url, webhook_host, webhook_secret, old_webhook_secret, old_webhook_secret_until,
                webhook_events FROM partners",
        "SELECT partner_id, url, host, coalesce(secrets[1], ''), secrets[2], secret_ends[2],
                array_remove(events, 'topup.ready') FROM partner_endpoints WHERE nth = 0",
    ),
    (
        "SELECT endpoint_id, partner_id, purpose, url, host, secret, old_secret, old_secret_until, events, headers,
                verified_at, created_at, code_digest, code_until, code_tries FROM further_endpoints",
        "SELECT endpoint_id, partner_id, purpose, url, host, secrets[1], secrets[2], secret_ends[2], events, headers,
                verified_at, created_at, code_digest, code_until, code_tries FROM partner_endpoints WHERE nth > 0",
    ),
    // An endpoint without a row had the health that a new one has.
    (
        "SELECT partner_id, failures, blocks, blocked_until, probe, moving_since, paused_by_partner, failing_since, told,
                told_at, exhausted_told_at, unproven_since FROM endpoints",
        "SELECT endpoint_id, failures, blocks, blocked_until, probe, moving_since, paused_by_partner, failing_since, told,
                told_at, exhausted_told_at, unproven_since FROM partner_endpoints
         WHERE failures + blocks > 0 OR paused_by_partner
            OR coalesce(blocked_until, moving_since, failing_since, told_at, exhausted_told_at, unproven_since) IS NOT NULL",
    ),
];

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
    for (before, now) in READ {
        let found = rows(&mut connection, before).await;
        assert!(found.len() >= 30, "{before}");
        stored.push((now, found));
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

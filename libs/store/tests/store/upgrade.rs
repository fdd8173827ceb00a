//! Migrations that move rows into other tables, and the one that removes what only older programs
//! needed: no row and no value is lost.

use domain::{PartnerId, TopupId};
use pg::schema::{self, Patience};
use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::bench::{Bench, execute, order, topups};

/// A database with the schema before the migration with this name.
pub(crate) async fn before(name: &str) -> Bench {
    let bench = Bench::empty().await;
    let all = schema::migrations();
    let moved = all.iter().find(|one| one.description == name).unwrap();
    let older = all
        .iter()
        .filter(|one| one.version < moved.version)
        .cloned()
        .collect();
    let older = Migrator::with_migrations(older);
    let mut connection = bench.connection().await;
    schema::apply(&mut connection, &older, Patience::default(), |_| {})
        .await
        .unwrap();
    bench
}

/// Applies the other migrations, too.
pub(crate) async fn upgrade(bench: &Bench) {
    schema::migrate(&mut *bench.connection().await)
        .await
        .unwrap();
}

/// What a query shows, as one text.
pub(crate) async fn shown(connection: &mut PgConnection, query: &str) -> String {
    let query =
        format!("SELECT coalesce(string_agg(x::text, ' ' ORDER BY x), '') FROM ({query}) x");
    sqlx::query_scalar(AssertSqlSafe(query))
        .fetch_one(connection)
        .await
        .unwrap()
}

async fn role(bench: &Bench, stage: &str) -> PgConnection {
    PgConnection::connect(&bench.database.url_of(stage).unwrap())
        .await
        .unwrap()
}

/// What was read under old names, and how it is read now.
const SMALL: [(&str, &str); 5] = [
    (
        "SELECT version FROM configuration_version",
        "SELECT version FROM system",
    ),
    (
        "SELECT addresses, told_at FROM source_addresses",
        "SELECT addresses, told_at FROM system",
    ),
    (
        "SELECT stage, up_to, fence_at, fence_xid FROM sweeps",
        "SELECT name, up_to, fence_at, fence_xid FROM walks WHERE name IN ('placements', 'deliveries')",
    ),
    (
        "SELECT class, days, after, up_to, began_at FROM retention WHERE class <> 'changes'",
        "SELECT name, days, after, up_to, began_at FROM walks WHERE name NOT IN ('placements', 'deliveries', 'changes')",
    ),
    (
        "SELECT archive, partner_id, orders FROM archive_partners",
        "SELECT archive, key::uuid, value::bigint FROM archives, jsonb_each_text(partners)",
    ),
];

#[tokio::test]
async fn the_rows_of_small_tables_are_carried_over() {
    let bench = before("small tables").await;
    let rows = "INSERT INTO options (option_id, name, provider, provider_option_id, environment)
         SELECT gen_random_uuid(), 'an option', 'sandbox', n, 'sandbox' FROM generate_series(1, 7) n;
         INSERT INTO source_addresses (addresses, told_at) VALUES ('{192.0.2.1}', '2026-01-01');
         UPDATE sweeps SET up_to = '2026-02-01', fence_at = '2026-02-02', fence_xid = '77' WHERE stage = 'placements';
         UPDATE sweeps SET up_to = '2026-02-03' WHERE stage = 'deliveries';
         UPDATE retention SET days = 17, after = 'topup 3', up_to = '2026-03-01', began_at = '2025-01-01' WHERE class = 'profiles';
         INSERT INTO archives (archive, folder, ordered_before, reserved_to, moved_to, orders)
         SELECT n, 'folder', now(), gen_random_uuid(), gen_random_uuid(), 5 FROM generate_series(1, 3) n;
         INSERT INTO archive_partners (archive, partner_id, orders)
         SELECT n, md5(partner)::uuid, n + 1 FROM generate_series(1, 2) n, unnest('{one,other}'::text[]) partner";
    bench.sql(rows).await;
    let mut owner = bench.connection().await;
    let mut stored = Vec::new();
    for (old, _) in SMALL {
        stored.push(shown(&mut owner, old).await);
    }
    assert!(stored.iter().all(|rows| !rows.is_empty()), "{stored:?}");
    upgrade(&bench).await;
    for ((_, now), before) in SMALL.into_iter().zip(stored) {
        assert_eq!(shown(&mut owner, now).await, before, "{now}");
    }
    let archives = "SELECT archive, orders FROM archives";
    assert_eq!(shown(&mut owner, archives).await, "(1,5) (2,5) (3,5)");
    // The version of the configuration goes on where it was.
    bench.sql("UPDATE options SET name = 'newer'").await;
    let newest = "SELECT max(version) = 14 AND (SELECT version FROM system) = 8 FROM options";
    assert_eq!(shown(&mut owner, newest).await, "(t)");
}

/// Tables and columns that were there only for programs older than the version before.
const CONTRACTED: [&str; 12] = [
    "esim_requests.at",
    "hourly.created",
    "hourly.done",
    "hourly.failed",
    "hourly.hour",
    "hourly.stage",
    "partners.old_webhook_secret",
    "partners.old_webhook_secret_until",
    "partners.webhook_events",
    "partners.webhook_host",
    "partners.webhook_secret",
    "partners.webhook_url",
];

/// A column of a table, and a value for it that depends on `n`.
struct Column {
    table: String,
    name: String,
    value: Option<&'static str>,
}

impl Column {
    fn path(&self) -> String {
        format!("{}.{}", self.table, self.name)
    }

    /// A value that the constraints of the table allow.
    fn value_of(table: &str, name: &str, kind: &str) -> &'static str {
        match (table, name) {
            ("partners" | "options", "environment") => "'live'",
            ("partner_endpoints", "endpoint_id") => "md5('endpoint ' || n)::uuid",
            ("system", "singleton") => "true",
            ("partners", "webhook_url") => "'https://One.example/' || n",
            ("partners", "webhook_events") => "'{topup.failed}'::text[]",
            ("operators" | "operator_sessions", "role") => "'viewer'",
            ("operators", "name") => "'operator' || n",
            _ => match kind {
                "uuid" => "md5('id ' || n)::uuid",
                "text" => "'text ' || n",
                "boolean" => "n = 1",
                "timestamp with time zone" => "timestamptz '2026-01-01' + make_interval(days => n)",
                "bytea" => "convert_to('bytes ' || n, 'UTF8')",
                "jsonb" => "jsonb_build_object('n', n)",
                "text[]" => "ARRAY['text ' || n]",
                "bigint[]" => "ARRAY[n::bigint]",
                "bytea[]" => "ARRAY[convert_to('bytes ' || n, 'UTF8')]",
                "timestamp with time zone[]" => "ARRAY[timestamptz '2026-01-01']",
                "xid8" => "n::text::xid8",
                "integer" | "bigint" | "smallint" | "double precision" => "n",
                other => panic!("no value for {table}.{name}, which is {other}"),
            },
        }
    }
}

/// The columns of all tables in the order of their names.
async fn columns(connection: &mut PgConnection) -> Vec<Column> {
    let query = "SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), a.attgenerated = ''
                 FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
                 WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND c.relname NOT LIKE '\\_%'
                   AND a.attnum > 0 AND NOT a.attisdropped
                 ORDER BY 1, 2";
    let found: Vec<(String, String, String, bool)> =
        sqlx::query_as(query).fetch_all(connection).await.unwrap();
    let columns = found.into_iter().map(|(table, name, kind, is_written)| {
        let value = is_written.then(|| Column::value_of(&table, &name, &kind));
        Column { table, name, value }
    });
    columns.collect()
}

/// The values of a column, sorted.
async fn values(connection: &mut PgConnection, column: &Column) -> String {
    let query = format!(r#"SELECT "{}"::text FROM "{}""#, column.name, column.table);
    shown(connection, &query).await
}

/// A database of the version before with values in every column of every table: each of them is there
/// afterwards, in the same place, or with the endpoint to which it belongs.
#[tokio::test]
async fn the_contraction_loses_no_row_and_no_value() {
    let bench = before("contraction").await;
    let mut owner = bench.connection().await;
    let before = columns(&mut owner).await;
    for of_table in before.chunk_by(|one, next| one.table == next.table) {
        let written = of_table.iter().filter_map(|one| Some((one, one.value?)));
        let names: Vec<String> = written
            .clone()
            .map(|one| format!(r#""{}""#, one.0.name))
            .collect();
        let values: Vec<&str> = written.map(|one| one.1).collect();
        let insert = format!(
            r#"INSERT INTO "{}" ({}) SELECT {} FROM generate_series(1, 2) n ON CONFLICT DO NOTHING"#,
            of_table[0].table,
            names.join(", "),
            values.join(", ")
        );
        execute(&mut owner, &insert).await;
    }
    let webhooks = "SELECT partner_id, webhook_url, webhook_host, webhook_secret, old_webhook_secret, old_webhook_secret_until,
                           webhook_events FROM partners";
    let webhooks = shown(&mut owner, webhooks).await;
    assert!(webhooks.contains("one.example") && webhooks.contains("topup.failed"));
    let mut stored = Vec::new();
    for column in before {
        let found = values(&mut owner, &column).await;
        assert!(!found.is_empty(), "{} has no row", column.path());
        stored.push((column, found));
    }
    upgrade(&bench).await;
    let now: Vec<String> = columns(&mut owner).await.iter().map(Column::path).collect();
    let mut gone = Vec::new();
    for (column, found) in stored {
        if now.contains(&column.path()) {
            assert_eq!(
                values(&mut owner, &column).await,
                found,
                "{}",
                column.path()
            );
        } else {
            gone.push(column.path());
        }
    }
    assert_eq!(gone, CONTRACTED);
    let endpoints = "SELECT partner_id, url, host, secrets[1], secrets[2], secret_ends[2], array_remove(events, 'topup.ready')
                     FROM partner_endpoints WHERE nth = 0";
    assert_eq!(shown(&mut owner, endpoints).await, webhooks);
    // A partner still has its first endpoint from the beginning.
    bench
        .sql("INSERT INTO partners (partner_id, name, environment, access_key) VALUES (md5('p')::uuid, 'p', 'live', 'ak')")
        .await;
    let first = "SELECT nth, url, events, cardinality(secrets) FROM partner_endpoints WHERE partner_id = md5('p')::uuid";
    assert_eq!(shown(&mut owner, first).await, "(0,,{topup.ready},0)");
}

/// The provisioner can neither hide deliveries from their sweep nor end the erasing of data.
#[tokio::test]
async fn a_stage_moves_its_own_walks_only() {
    let bench = Bench::new().await;
    for (stage, own) in [
        ("provisioner", "(placements)"),
        (
            "notifier",
            "(archived) (attempts) (audit) (changes) (deliveries) (orders) (profiles) (refusals)",
        ),
    ] {
        let mut connection = role(&bench, stage).await;
        let moved = "UPDATE walks SET up_to = now() RETURNING name";
        let mut names: Vec<String> = sqlx::query_scalar(moved)
            .fetch_all(&mut connection)
            .await
            .unwrap();
        names.sort_unstable();
        assert_eq!(format!("({})", names.join(") (")), own, "{stage}");
    }
}

/// A row with an infinite time that a version before the bounds has let in stops no upgrade, and ends no
/// program after it.
#[tokio::test]
async fn infinite_times_from_before_the_bounds_stop_no_upgrade() {
    let bench = before("finite times").await;
    let mut connection = bench.connection().await;
    for (table, change) in [
        ("sweeps", "up_to = 'infinity', fence_at = 'infinity'"),
        ("retention", "began_at = '-infinity'"),
        (
            "providers",
            "open_until = 'infinity', changed_at = '-infinity'",
        ),
        ("source_addresses", "told_at = 'infinity'"),
    ] {
        let check =
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = $1 || '_bounds'";
        let check: String = sqlx::query_scalar(check)
            .bind(table)
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        let spoil = format!(
            "ALTER TABLE {table} DROP CONSTRAINT {table}_bounds; UPDATE {table} SET {change};
             ALTER TABLE {table} ADD CONSTRAINT {table}_bounds {check}"
        );
        if table == "providers" {
            execute(
                &mut connection,
                "INSERT INTO providers (name) VALUES ('usimsa')",
            )
            .await;
        }
        execute(&mut connection, &spoil).await;
    }
    drop(connection);
    upgrade(&bench).await;
    let mut connection = bench.connection().await;
    let all = store::providers::list(&mut connection).await.unwrap();
    assert!(all[0].open_until.is_some() && !all[0].lost_commits());
    let query = "SELECT name FROM walks WHERE NOT isfinite(began_at) OR NOT isfinite(fence_at) OR up_to = 'infinity'";
    assert_eq!(shown(&mut connection, query).await, "");
    // The sweeps look at the last day again, instead of at nothing any more.
    let query = "SELECT count(*) FROM walks WHERE name IN ('placements', 'deliveries') AND up_to < now() - interval '23 hours'";
    assert_eq!(shown(&mut connection, query).await, "(2)");
}

#[tokio::test]
async fn profiles_that_retention_looks_at_again_become_work() {
    let bench = before("work of retention").await;
    let topups = topups(&order(PartnerId::new(), 3));
    let mut ids: Vec<&str> = topups.iter().map(TopupId::as_str).collect();
    // Ids of one second are in no order.
    ids.sort_unstable();
    // The statement of this version knows columns that the older schema lacks.
    let ordered = "WITH placed AS (
                       INSERT INTO placements (placement_id, order_id, partner_id, provider, lane)
                       VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'sandbox', 'lane')
                       RETURNING placement_id
                   )
                   INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
                   SELECT topup, placement_id, 0, gen_random_uuid(), 'option' FROM placed, unnest($1::text[]) AS topup";
    let ordered = sqlx::query(ordered).bind(&ids[..]);
    ordered.execute(&bench.pool).await.unwrap();
    let rows = "INSERT INTO retention_due (topup_id, at)
                SELECT topup, '2026-01-01'::timestamptz + make_interval(days => nth::int)
                FROM unnest($1::text[]) WITH ORDINALITY AS t (topup, nth)";
    let rows = sqlx::query(rows).bind(&ids[..2]);
    rows.execute(&bench.pool).await.unwrap();
    let shows = "SELECT topup_id, at FROM retention_due";
    let mut owner = bench.connection().await;
    let stored = shown(&mut owner, shows).await;
    upgrade(&bench).await;
    let now = "SELECT lane, at FROM work WHERE kind = 'erase'";
    assert_eq!(shown(&mut owner, now).await, stored);
    let work =
        "SELECT kind, provider, count(*), count(DISTINCT id), min(lane) FROM work GROUP BY 1, 2";
    let expected = format!("(erase,\"\",2,2,{})", ids[0]);
    assert_eq!(shown(&mut owner, work).await, expected);
}

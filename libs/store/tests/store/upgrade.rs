//! An upgrade of a database with rows: no row and no value of it is lost. It begins with the
//! baseline, the first migration, and goes through all that came after it and one more, of the kind
//! that comes next.

use pg::schema::{self, LockPatience};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqlSafeStr};

use crate::bench::{Bench, execute};

/// Columns of the baseline that a later migration has removed under `-- contract: why`.
const CONTRACTED: [&str; 0] = [];

/// What the next migration might do, with the index that it would build by another one. No real
/// column has these names.
const NEXT: [&str; 2] = [
    "-- serves: 1\nALTER TABLE orders ADD COLUMN made_up text; ALTER TABLE topups ADD COLUMN made_up bigint NOT NULL DEFAULT 0;",
    "-- no-transaction\n-- serves: 1\nCREATE INDEX CONCURRENTLY orders_made_up ON orders (made_up) WHERE made_up IS NOT NULL;",
];

async fn apply(connection: &mut PgConnection, migrations: Vec<Migration>) {
    let migrations = Migrator::with_migrations(migrations);
    schema::apply(connection, &migrations, LockPatience::default(), |_| {})
        .await
        .unwrap();
}

/// A database with the schema of the baseline.
async fn baseline() -> Bench {
    let bench = Bench::empty().await;
    let first = schema::migrations().iter().take(1).cloned().collect();
    apply(&mut *bench.connection().await, first).await;
    bench
}

/// Applies all later migrations, and those of [`NEXT`].
async fn upgrade(bench: &Bench) {
    let mut all: Vec<Migration> = schema::migrations().iter().cloned().collect();
    for (version, sql) in (schema::latest() + 1..).zip(NEXT) {
        let no_tx = sql.starts_with("-- no-transaction");
        let kind = MigrationType::Simple;
        all.push(Migration::new(
            version,
            "next".into(),
            kind,
            sql.into_sql_str(),
            no_tx,
        ));
    }
    apply(&mut *bench.connection().await, all).await;
}

/// What a query shows, as one text.
async fn shown(connection: &mut PgConnection, query: &str) -> String {
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
            ("pulses", "nats_refused") => "'publish TOPUP_READY'",
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

/// Values in every column of every table: each of them is there afterwards, in the same place.
#[tokio::test]
async fn an_upgrade_of_a_database_of_the_baseline_loses_no_row_and_no_value() {
    let bench = baseline().await;
    let mut owner = bench.connection().await;
    let before = columns(&mut owner).await;
    // The rows name nothing that is there, which triggers would refuse.
    execute(&mut owner, "SET session_replication_role = replica").await;
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
    let mut stored = Vec::new();
    for column in before {
        let found = values(&mut owner, &column).await;
        assert!(!found.is_empty(), "{} has no row", column.path());
        stored.push((column, found));
    }
    execute(&mut owner, "RESET session_replication_role").await;
    upgrade(&bench).await;
    let now: Vec<String> = columns(&mut owner).await.iter().map(Column::path).collect();
    assert!(now.iter().any(|path| path == "topups.made_up"), "{now:?}");
    let mut gone = Vec::new();
    for (column, found) in stored {
        let path = column.path();
        if now.contains(&path) {
            assert_eq!(values(&mut owner, &column).await, found, "{path}");
        } else {
            gone.push(path);
        }
    }
    assert_eq!(gone, CONTRACTED);
    let index = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'orders_made_up'::regclass";
    assert_eq!(shown(&mut owner, index).await, "(t)");
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

//! What may stand in a column: no time that a program cannot hold, and no text that fills its
//! memory. Other programs read what a role stores, so one value could end all of them.

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use store::providers;

use crate::bench::Bench;

/// The columns that hold one infinity as a mark, which their readers translate.
const MARKS: [(&str, &str); 3] = [
    ("work.at", "-infinity"),
    ("partner_endpoints.blocked_until", "infinity"),
    ("walks.up_to", "-infinity"),
];

/// Columns that may hold more than 100,000 bytes, and how many. The list of an archive's partners
/// grows with their number, and what a partner is offered with the catalogue.
const LARGE: [(&str, u32); 2] = [
    ("archives.partners", 10_000_000),
    ("partner_endpoints.offered", 10_000_000),
];

/// A column of a table, and its type.
#[derive(sqlx::FromRow)]
struct Column {
    relation: String,
    name: String,
    kind: String,
}

const COLUMNS: &str = "
    SELECT c.relname::text AS relation, a.attname::text AS name, format_type(a.atttypid, NULL) AS kind
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname NOT LIKE '\\_%'
      AND a.attgenerated = ''
    ORDER BY 1, 2";

/// Whether the constraints of a table let a value into a column, whatever the others hold.
async fn accepts(connection: &mut PgConnection, column: &Column, value: &str) -> bool {
    let Column { relation, name, .. } = column;
    let mut transaction = connection.begin().await.unwrap();
    let probe = format!(
        "CREATE TEMP TABLE probe (LIKE {relation} INCLUDING CONSTRAINTS) ON COMMIT DROP;
         DO $$ DECLARE one name; BEGIN
             FOR one IN SELECT attname FROM pg_attribute WHERE attrelid = 'probe'::regclass AND attnotnull AND attnum > 0
             LOOP EXECUTE format('ALTER TABLE probe ALTER %I DROP NOT NULL', one); END LOOP;
         END $$;
         INSERT INTO probe ({name}) VALUES ({value})"
    );
    let done = sqlx::raw_sql(AssertSqlSafe(probe))
        .execute(&mut *transaction)
        .await;
    transaction.rollback().await.unwrap();
    match done {
        Ok(_) => true,
        Err(error) => {
            let code = error.as_database_error().unwrap().code().unwrap();
            assert_eq!(code, "23514", "{relation}.{name}: {error}");
            false
        }
    }
}

async fn columns(connection: &mut PgConnection) -> Vec<Column> {
    let columns = sqlx::query_as(COLUMNS).fetch_all(connection).await.unwrap();
    assert!(!columns.is_empty());
    columns
}

#[tokio::test]
async fn each_time_is_finite_and_one_that_programs_can_hold() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let mut open = Vec::new();
    for column in columns(&mut connection).await {
        let name = format!("{}.{}", column.relation, column.name);
        // A list of times is bounded like a time.
        let of_kind = match column.kind.as_str() {
            "timestamp with time zone" => |value: &str| value.to_owned(),
            "timestamp with time zone[]" => |value: &str| format!("ARRAY[{value}]::timestamptz[]"),
            kind => {
                assert!(
                    !kind.starts_with("timestamp") && kind != "date",
                    "{name} has the type {kind}; times are timestamptz"
                );
                continue;
            }
        };
        for value in ["infinity", "-infinity", "294000-01-01", "4000-01-01 BC"] {
            let is_mark = MARKS.contains(&(name.as_str(), value));
            let quoted = of_kind(&format!("'{value}'"));
            if accepts(&mut connection, &column, &quoted).await && !is_mark {
                open.push(format!("{name} accepts {value}"));
            }
        }
        assert!(
            accepts(&mut connection, &column, &of_kind("now()")).await,
            "{name}"
        );
    }
    assert_eq!(
        open,
        Vec::<String>::new(),
        "add it to the constraint `…_bounds` of its table, as libs/pg/migrations/0001_baseline.sql has them"
    );
}

#[tokio::test]
async fn no_value_fills_the_memory_of_who_reads_it() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let mut open = Vec::new();
    for column in columns(&mut connection).await {
        let name = format!("{}.{}", column.relation, column.name);
        let large = LARGE.iter().find(|(large, _)| *large == name);
        let most = large.map_or(100_000, |(_, most)| *most);
        let huge = format!("repeat('x', {most} + 1)");
        let value = match column.kind.as_str() {
            "text" => huge,
            "bytea" => format!("convert_to({huge}, 'UTF8')"),
            "bytea[]" => format!("ARRAY[convert_to({huge}, 'UTF8')]"),
            "jsonb" => format!("to_jsonb({huge})"),
            "text[]" => format!("ARRAY[{huge}]"),
            "double precision" => "'NaN'".to_owned(),
            _ => continue,
        };
        if accepts(&mut connection, &column, &value).await {
            open.push(name);
        }
    }
    assert_eq!(
        open,
        Vec::<String>::new(),
        "add it to the constraint `…_bounds` of its table, as libs/pg/migrations/0001_baseline.sql has them"
    );
}

/// What the console's role could do to all provisioners, `esimctl` and the console itself.
#[tokio::test]
async fn a_role_cannot_store_what_ends_the_readers_of_breakers() {
    let bench = Bench::new().await;
    bench
        .sql("INSERT INTO providers (name) VALUES ('sandbox')")
        .await;
    let mut console = PgConnection::connect(&bench.database.url_of("console").unwrap())
        .await
        .unwrap();
    for change in [
        "UPDATE providers SET open_until = 'infinity'",
        "UPDATE providers SET changed_at = '-infinity'",
        "UPDATE providers SET open_until = '294000-01-01'",
        "UPDATE providers SET reason = repeat('x', 130000000)",
        "UPDATE providers SET version = 9223372036854775807",
        "UPDATE providers SET openings = 2147483647",
    ] {
        let refused = sqlx::raw_sql(change).execute(&mut console).await;
        let error = refused.expect_err(change);
        let code = error.as_database_error().unwrap().code().unwrap();
        assert_eq!(code, "23514", "{change}");
    }
    let listed = providers::list(&mut *bench.connection().await).await;
    assert_eq!(listed.unwrap().len(), 1);
}

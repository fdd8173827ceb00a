//! What may stand in a column: no time that a program cannot hold, and no text that fills its memory.
//! Other programs read what a role stores, so one value could end all of them.

use std::collections::BTreeSet;

use accounts::partners;
use desk::operator::health;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use store::providers;

use crate::bench::{Bench, bought, placement, ready, topups};

/// What carries over the rows that stood there before the bounds.
const CARRIED_OVER: &str = include_str!("../../../pg/migrations/0038_finite_times.sql");

/// The columns that hold one infinity as a mark, which their readers translate.
const MARKS: [(&str, &str); 3] = [
    ("work.at", "-infinity"),
    ("partner_endpoints.blocked_until", "infinity"),
    ("walks.up_to", "-infinity"),
];

/// Columns that may hold more than 100,000 bytes, and how many. The list of an archive's partners
/// grows with their number.
const LARGE: [(&str, u32); 1] = [("archives.partners", 10_000_000)];

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
        "add a constraint, as libs/pg/migrations/0026_bounds.sql does"
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
        "add a constraint, as libs/pg/migrations/0026_bounds.sql does"
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

/// A row that was stored before the bounds: each of its times is infinite, and its texts are huge.
#[tokio::test]
async fn rows_from_before_the_bounds_are_carried_over_and_end_no_reader() {
    let bench = Bench::new().await;
    bench.partner(Some("https://shop.example/hook")).await;
    bench.placing(2).await;
    let order = bench.placing(1).await;
    let topup = topups(&order).remove(0);
    let bought = bought(placement(&order), 1, vec![ready(&topup)], false);
    bench.settle(&[bought]).await;
    bench
        .sql(
            "INSERT INTO providers (name, open_until, changed_at) VALUES ('usimsa', now(), now());
             UPDATE partner_endpoints SET blocked_until = 'infinity';
             INSERT INTO operator_actions (action_id, operator, command, target, affected, reason)
             VALUES (gen_random_uuid(), 'ana', 'recover', 'all', 1, 'x')",
        )
        .await;
    let mut connection = bench.connection().await;
    let times = columns(&mut connection).await.into_iter();
    let times: Vec<Column> = times
        .filter(|one| one.kind == "timestamp with time zone")
        .collect();
    let tables: BTreeSet<&str> = times.iter().map(|one| one.relation.as_str()).collect();
    for relation in &tables {
        let check =
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = $1 || '_bounds'";
        let check: Option<String> = sqlx::query_scalar(check)
            .bind(relation)
            .fetch_optional(&mut *connection)
            .await
            .unwrap();
        // Tables that came after the bounds have had them from their first row on.
        let Some(check) = check.filter(|check| check.ends_with("NOT VALID")) else {
            continue;
        };
        // Columns that came later have a constraint of their own.
        let mine = times
            .iter()
            .filter(|one| one.relation == **relation && check.contains(&one.name));
        let infinite: Vec<String> = mine
            .filter(|one| one.name != "blocked_until" && one.name != "up_to")
            .map(|one| format!("{} = '-infinity'", one.name))
            .collect();
        if infinite.is_empty() {
            continue;
        }
        let spoil = format!(
            "BEGIN;
             SET LOCAL session_replication_role = replica;
             ALTER TABLE {relation} DROP CONSTRAINT {relation}_bounds;
             UPDATE {relation} SET {};
             ALTER TABLE {relation} ADD CONSTRAINT {relation}_bounds {check};
             COMMIT",
            infinite.join(", ")
        );
        sqlx::raw_sql(AssertSqlSafe(spoil))
            .execute(&mut *connection)
            .await
            .unwrap_or_else(|error| panic!("{relation}: {error}"));
    }
    let spoil = "BEGIN; ALTER TABLE providers DROP CONSTRAINT providers_bounds;
                 UPDATE providers SET open_until = 'infinity', reason = repeat('ä', 70000);
                 ALTER TABLE providers ADD CONSTRAINT providers_bounds CHECK (octet_length(reason) <= 100000) NOT VALID;
                 COMMIT";
    bench.sql(spoil).await;
    for _ in 0..2 {
        sqlx::raw_sql(CARRIED_OVER)
            .execute(&mut *connection)
            .await
            .unwrap();
    }
    let mut seen = 0;
    for Column { relation, name, .. } in &times {
        let full = format!("{relation}.{name}");
        let mark = MARKS.iter().find(|(column, _)| *column == full);
        let mark = mark.map_or("", |(_, mark)| mark);
        let wrong = format!(
            "SELECT count(*), count(*) FILTER (WHERE NOT isfinite({name}) AND {name}::text <> '{mark}') FROM {relation}"
        );
        let (rows, wrong): (i64, i64) = sqlx::query_as(AssertSqlSafe(wrong))
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        assert_eq!(wrong, 0, "{full}");
        seen += usize::from(rows > 0);
    }
    assert!(seen >= 20, "only {seen} columns have a row");
    let marks = "SELECT count(*) FROM partner_endpoints WHERE blocked_until = 'infinity'";
    let marks: i64 = sqlx::query_scalar(marks)
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    assert_eq!(marks, 1);
    assert_eq!(providers::list(&mut connection).await.unwrap().len(), 1);
    partners::list(&mut connection).await.unwrap();
    health::examine(&mut connection, 10).await.unwrap();
    // Whatever stands there can be changed again.
    bench
        .sql("UPDATE providers SET openings = 1; UPDATE orders SET created_at = created_at")
        .await;
}

//! `libs/pg/schema.sql` shows the whole schema in one file, so that nobody has to add up the
//! migrations to see a table. This test compares it with the catalogue of a migrated database, and
//! writes it with `UPDATE_SCHEMA=1 tests/run test -- -p store snapshot`.

use std::{fmt::Write, fs};

use sqlx::{PgConnection, Row};

use crate::bench::Bench;

const HEAD: &str = "\
-- The schema as the migrations leave it, to read. It is written by a test and never executed:
-- UPDATE_SCHEMA=1 tests/run test -- -p store snapshot
-- The comments of tables and columns are in libs/pg/migrations.
";

/// Each table with its columns, in the order of the alphabet.
const COLUMNS: &str = "
    SELECT c.relname AS name, a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
           || CASE WHEN l.collname <> 'default' THEN ' COLLATE \"' || l.collname || '\"' ELSE '' END
           || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
           || CASE WHEN a.attgenerated <> '' THEN ' GENERATED ALWAYS AS (' || pg_get_expr(d.adbin, d.adrelid) || ') STORED'
                   WHEN d.adbin IS NOT NULL THEN ' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid) ELSE '' END AS text
    FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname NOT LIKE '\\_%'
    ORDER BY c.relname, a.attnum";

/// What belongs to each table: constraints, indexes, triggers and policies.
const PARTS: &str = "
    SELECT c.relname AS name, part.text
    FROM pg_class c
    CROSS JOIN LATERAL (
        SELECT 1 AS kind, 'CONSTRAINT ' || conname || ' ' || pg_get_constraintdef(oid) AS text FROM pg_constraint
        WHERE conrelid = c.oid AND contype IN ('p', 'u', 'c', 'f')
        UNION ALL
        SELECT 2, pg_get_indexdef(indexrelid) FROM pg_index
        WHERE indrelid = c.oid AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
        UNION ALL SELECT 3, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal
        UNION ALL
        SELECT 4, 'POLICY ' || polname || coalesce(' USING ' || pg_get_expr(polqual, polrelid), '')
               || coalesce(' WITH CHECK ' || pg_get_expr(polwithcheck, polrelid), '')
        FROM pg_policy WHERE polrelid = c.oid
        UNION ALL SELECT 5, 'WITH (' || array_to_string(c.reloptions, ', ') || ')' WHERE c.reloptions IS NOT NULL
    ) part
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname NOT LIKE '\\_%'
    ORDER BY c.relname, part.kind, part.text";

/// Views and functions.
const OTHERS: &str = "
    SELECT relname AS name,
           'VIEW ' || relname || coalesce(' WITH (' || array_to_string(reloptions, ', ') || ')', '') || ' AS' || E'\\n'
           || pg_get_viewdef(oid) AS text
    FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'v'
    UNION ALL
    SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    ORDER BY 1, 2";

async fn rows(connection: &mut PgConnection, statement: &'static str) -> Vec<(String, String)> {
    let rows = sqlx::query(statement).fetch_all(connection).await.unwrap();
    rows.iter()
        .map(|row| (row.get("name"), row.get("text")))
        .collect()
}

async fn schema(connection: &mut PgConnection) -> String {
    let columns = rows(connection, COLUMNS).await;
    let parts = rows(connection, PARTS).await;
    let mut text = HEAD.to_owned();
    let mut tables: Vec<&str> = columns.iter().map(|(table, _)| table.as_str()).collect();
    tables.dedup();
    for table in tables {
        writeln!(text, "\nTABLE {table}").unwrap();
        for (_, part) in columns.iter().chain(&parts).filter(|(of, _)| of == table) {
            writeln!(text, "    {part}").unwrap();
        }
    }
    for (_, other) in rows(connection, OTHERS).await {
        writeln!(text, "\n{}", other.trim_end()).unwrap();
    }
    text
}

#[tokio::test]
async fn the_snapshot_is_the_schema() {
    let bench = Bench::new().await;
    let schema = schema(&mut *bench.connection().await).await;
    let file = testkit::workspace().join("libs/pg/schema.sql");
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        fs::write(&file, &schema).unwrap();
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == schema,
        "run UPDATE_SCHEMA=1 tests/run test -- -p store snapshot, and commit {}",
        file.display()
    );
}

/// How many tables there are. Each new kind of row is an idea that everybody has to know, so a new
/// table first looks for one that it can be a column, a kind or a row of
/// (docs/decisions/0035-fewer-kinds-one-truth.md).
const MOST_TABLES: usize = 41;

#[test]
fn there_are_no_more_tables_than_decided() {
    let committed = fs::read_to_string(testkit::workspace().join("libs/pg/schema.sql")).unwrap();
    let tables: Vec<&str> = committed
        .lines()
        .filter_map(|line| line.strip_prefix("TABLE "))
        .collect();
    assert!(tables.len() <= MOST_TABLES, "{}: {tables:?}", tables.len());
}

//! The committed `.sqlx`, from which the macros check the statements at compile time, is what
//! PostgreSQL says of the migrated schema. Without this test a statement that no longer fits a
//! migration would compile.

use std::fs;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, SqlSafeStr};

use crate::bench::Bench;

#[tokio::test]
async fn each_statement_is_described_as_postgresql_does() {
    let bench = Bench::new().await;
    // Without the services' session settings, as `deploy/sqlx`.
    let mut connection = PgConnection::connect(bench.database.url()).await.unwrap();
    let mut differ = Vec::new();
    for file in fs::read_dir(testkit::workspace().join(".sqlx")).unwrap() {
        let path = file.unwrap().path();
        let committed: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let statement = committed["query"].as_str().unwrap();
        let described = connection
            .describe(AssertSqlSafe(statement.to_owned()).into_sql_str())
            .await
            .map(|described| comparable(serde_json::to_value(described).unwrap()));
        match described {
            Ok(described) if described == comparable(committed["describe"].clone()) => {}
            other => differ.push(format!("{}: {other:?}\n{statement}", path.display())),
        }
    }
    assert!(
        differ.is_empty(),
        "run deploy/sqlx and commit .sqlx:\n{}",
        differ.join("\n")
    );
}

/// Without the nullability of columns whose statement states it: PostgreSQL derives it from a plan,
/// which may change.
fn comparable(mut described: Value) -> Value {
    let stated = |column: &Value| {
        column["name"]
            .as_str()
            .is_some_and(|name| name.ends_with(['!', '?']))
    };
    let stated: Vec<bool> = described["columns"]
        .as_array()
        .unwrap()
        .iter()
        .map(stated)
        .collect();
    let nullable = described["nullable"].as_array_mut().unwrap();
    for (nullable, _) in nullable
        .iter_mut()
        .zip(stated)
        .filter(|(_, stated)| *stated)
    {
        *nullable = Value::Null;
    }
    described
}

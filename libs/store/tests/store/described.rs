//! The committed `.sqlx`, from which the macros check statements, is what PostgreSQL says of the migrated schema.

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
            .map(|described| serde_json::to_value(described).unwrap());
        match described {
            Ok(described) if described == committed["describe"] => {}
            other => differ.push(format!("{}: {other:?}\n{statement}", path.display())),
        }
    }
    assert!(
        differ.is_empty(),
        "run deploy/sqlx and commit .sqlx:\n{}",
        differ.join("\n")
    );
}

//! The door to transactions: [`pg::transaction!`].

use pg::{End, Error, transaction};
use sqlx::AssertSqlSafe;

use crate::bench::Bench;

const INSERT: &str = "INSERT INTO providers (name) VALUES ('one')";

fn raised(code: &str) -> String {
    format!("DO $$ BEGIN RAISE EXCEPTION 'raised' USING ERRCODE = '{code}'; END $$")
}

async fn providers(bench: &Bench) -> i64 {
    let count = sqlx::query_scalar("SELECT count(*) FROM providers");
    count.fetch_one(&bench.pool).await.unwrap()
}

/// What lost a conflict has changed nothing, and is run again as a whole.
#[tokio::test]
async fn a_transaction_that_lost_a_conflict_is_run_again() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let mut runs = 0;
    let done = transaction!(
        &mut *connection,
        "a test",
        |transaction| -> Result<i32, Error> {
            runs += 1;
            sqlx::query(INSERT).execute(&mut **transaction).await?;
            if runs == 1 {
                let lost = AssertSqlSafe(raised("40P01"));
                sqlx::raw_sql(lost).execute(&mut **transaction).await?;
            }
            Ok(End::Commit(runs))
        }
    );
    assert_eq!(done.unwrap(), 2);
    assert_eq!(providers(&bench).await, 1);
}

/// A conflict that does not go away ends, and any other error ends at once. Both name the transaction.
#[tokio::test]
async fn an_error_ends_a_transaction_and_names_it() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    for (code, expected) in [("40001", 6), ("22023", 1)] {
        let mut runs = 0;
        let done = transaction!(
            &mut *connection,
            "a test",
            |transaction| -> Result<(), Error> {
                runs += 1;
                sqlx::query(INSERT).execute(&mut **transaction).await?;
                let failing = AssertSqlSafe(raised(code));
                sqlx::raw_sql(failing).execute(&mut **transaction).await?;
                Ok(End::Commit(()))
            }
        );
        let error = done.unwrap_err();
        assert!(error.is_of(&[code]), "{error}");
        assert!(error.to_string().contains("(a test)"), "{error}");
        assert_eq!(runs, expected, "{code}");
        assert_eq!(providers(&bench).await, 0);
    }
}

#[tokio::test]
async fn what_is_only_tried_leaves_nothing() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let done = transaction!(
        &mut *connection,
        "a test",
        |transaction| -> Result<u64, Error> {
            let done = sqlx::query(INSERT).execute(&mut **transaction).await?;
            Ok(End::Rollback(done.rows_affected()))
        }
    );
    assert_eq!(done.unwrap(), 1);
    assert_eq!(providers(&bench).await, 0);
}

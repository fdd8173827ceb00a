//! The door to transactions: [`pg::transaction!`]. And statements that need none, which are
//! repeated after a conflict, too.

use std::time::Duration;

use pg::{Error, TransactionEnd, transaction};
use sqlx::AssertSqlSafe;

use crate::{
    bench::{
        Bench, bought, bought_pending, delivery_id, fresh, placement, ready, rejected, topups,
    },
    deliveries::{attempted, failure},
};

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
            Ok(TransactionEnd::Commit(runs))
        }
    );
    assert_eq!(done.unwrap(), 2);
    assert_eq!(providers(&bench).await, 1);
}

/// A conflict that does not go away ends, and any other error ends at once. Both name the
/// transaction.
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
                Ok(TransactionEnd::Commit(()))
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
            Ok(TransactionEnd::Rollback(done.rows_affected()))
        }
    );
    assert_eq!(done.unwrap(), 1);
    assert_eq!(providers(&bench).await, 0);
}

impl Bench {
    /// The next statement that changes a row of this table loses a deadlock.
    async fn lose_next(&self, table: &str) {
        self.sql(&format!(
            "CREATE SEQUENCE IF NOT EXISTS changes;
             ALTER SEQUENCE changes RESTART;
             CREATE OR REPLACE FUNCTION lose_first() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF nextval('changes') = 1 THEN RAISE EXCEPTION 'lost' USING ERRCODE = '40P01'; END IF;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER lose_first AFTER INSERT OR UPDATE ON {table}
             FOR EACH ROW EXECUTE FUNCTION lose_first()"
        ))
        .await;
    }

    /// Whether a statement has lost it, and the change was made all the same.
    async fn has_lost_and_gone_on(&self, table: &str) -> bool {
        self.sql(&format!("DROP TRIGGER lose_first ON {table}"))
            .await;
        let changes = sqlx::query_scalar::<_, i64>("SELECT last_value FROM changes");
        changes.fetch_one(&self.pool).await.unwrap() > 1
    }
}

/// The caller would repeat them, too, but only after a pause.
#[tokio::test]
async fn a_statement_that_commits_by_itself_and_lost_a_conflict_is_run_again() {
    let bench = Bench::new().await;
    let complete = bench.placing(1).await;
    let units = vec![ready(&topups(&complete)[0])];
    let purchase = fresh(&complete, bought(placement(&complete), 1, units, true));
    let pending = bench.placing(1).await;
    let unexpected = bench.placing(1).await;
    bench.settle(&[rejected(placement(&unexpected), 1)]).await;
    for (table, settlement) in [
        ("esims", purchase),
        ("placements", bought_pending(placement(&pending), 1)),
        ("history", bought_pending(placement(&unexpected), 1)),
    ] {
        bench.lose_next(table).await;
        assert!(bench.settle(&[settlement]).await[0].moved, "{table}");
        assert!(bench.has_lost_and_gone_on(table).await, "{table}");
    }
    bench.lose_next("deliveries").await;
    let failed = failure(Some(Duration::from_secs(5)));
    let delivery = delivery_id(&topups(&complete)[0]);
    bench.record(&[attempted(delivery, 0, failed)]).await;
    assert!(bench.has_lost_and_gone_on("deliveries").await);
}

//! Copies the rows of a table from one database to another, and compares them.
//!
//! PostgreSQL writes and reads the rows itself (`COPY`), so no code of ours could change a value on
//! the way. One line is one row, so the rows of both sides are equal if their sorted lines are.

use futures_util::TryStreamExt;
use pg::Result;
use sqlx::{AssertSqlSafe, PgConnection};

/// How a session writes values as text. It is the same on both sides, because otherwise equal rows
/// could have different lines.
pub(super) const TEXT: &str = "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'iso_8601'; \
     SET bytea_output = 'hex'; SET extra_float_digits = 1; SET client_encoding = 'UTF8'";

/// Rows of one table as `COPY` writes them: one line for each row.
pub(super) struct Rows(Vec<u8>);

impl Rows {
    /// Runs a query or a `DELETE … RETURNING`, and takes what it returns.
    pub(super) async fn out(connection: &mut PgConnection, query: &str) -> Result<Self> {
        let copy = format!("COPY ({query}) TO STDOUT");
        let mut stream = connection.copy_out_raw(&copy).await?;
        let mut rows = Vec::new();
        while let Some(part) = stream.try_next().await? {
            rows.extend_from_slice(&part);
        }
        Ok(Self(rows))
    }

    /// Inserts the rows into these columns of a table.
    pub(super) async fn insert(
        &self,
        connection: &mut PgConnection,
        table: &str,
        columns: &str,
    ) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let copy = format!("COPY {table} ({columns}) FROM STDIN");
        let mut sink = connection.copy_in_raw(&copy).await?;
        if let Err(error) = sink.send(self.0.as_slice()).await {
            sink.abort("the rows could not be sent").await?;
            return Err(error.into());
        }
        sink.finish().await?;
        Ok(())
    }

    /// The rows, sorted. A line feed within a value is escaped, so each line is one row.
    pub(super) fn sorted(&self) -> Vec<&[u8]> {
        let mut lines: Vec<&[u8]> = self
            .0
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .collect();
        lines.sort_unstable();
        lines
    }

    pub(super) fn count(&self) -> usize {
        self.sorted().len()
    }
}

/// The columns of a table that can be written, separated by commas. Those in `except` are left out.
pub(super) async fn columns(
    connection: &mut PgConnection,
    table: &str,
    except: &[&str],
) -> Result<Vec<String>> {
    let columns = sqlx::query_scalar(
        "SELECT attname::text FROM pg_attribute
         WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
           AND attname::text <> ALL ($2)
         ORDER BY attname",
    );
    Ok(columns
        .bind(table)
        .bind(except)
        .fetch_all(connection)
        .await?)
}

/// Runs statements whose only variable parts are ids and names of our own.
pub(super) async fn run(connection: &mut PgConnection, statements: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
        .execute(connection)
        .await?;
    Ok(())
}

//! What every command works with: the database and standard output.

use std::{io::Write, time::Duration};

use anyhow::Context;
use serde::Serialize;
use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use store::{
    PgConnection,
    config::DatabaseConfig,
    schema::{self, SchemaError},
};

use crate::output::{Row, table};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The start of the error for an unreachable server.
pub const UNREACHABLE: &str = "cannot connect to PostgreSQL; check DATABASE_URL and that the server is up";

/// A command needs the database, and no URL is set.
#[derive(Debug, thiserror::Error)]
#[error("no database is named: set --database-url (environment: DATABASE_URL)")]
pub struct NoDatabase;

/// The database of a command, and how it prints its result.
pub struct Console {
    json: bool,
    database: Option<DatabaseConfig>,
}

impl Console {
    pub fn new(json: bool, database: Option<DatabaseConfig>) -> Self {
        Self { json, database }
    }

    pub fn database(&self) -> anyhow::Result<PgConnectOptions> {
        Ok(self.database.as_ref().ok_or(NoDatabase)?.options("esimctl")?)
    }

    /// Connects to a database whose schema serves this version.
    pub async fn connect(&self) -> anyhow::Result<PgConnection> {
        let options = self.database()?;
        let mut connection = tokio::time::timeout(CONNECT_TIMEOUT, options.connect())
            .await
            .with_context(|| format!("{UNREACHABLE}: no answer within {CONNECT_TIMEOUT:?}"))?
            .map_err(unreachable)?;
        schema::check(&mut connection).await?;
        Ok(connection)
    }

    /// Prints `value` with `--json`, else the text.
    pub fn print<T: Serialize>(&self, value: &T, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        let text = if self.json { serde_json::to_string(value)? } else { text() };
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{text}").and_then(|()| stdout.flush()).context("cannot write to standard output")
    }

    /// Prints a list: JSON, or a table, or `none` if it is empty.
    pub fn print_list<T: Serialize, const N: usize>(
        &self,
        items: &[T],
        none: &str,
        row: impl Fn(&T) -> Row<N>,
    ) -> anyhow::Result<()> {
        self.print(&items, || list(items, none, row))
    }
}

/// A table, or `none` if there are no items.
pub fn list<T, const N: usize>(items: &[T], none: &str, row: impl Fn(&T) -> Row<N>) -> String {
    if items.is_empty() { none.to_owned() } else { table(items.iter().map(row)) }
}

/// Names a pooler that refuses the session settings in the error.
pub fn unreachable(error: sqlx::Error) -> anyhow::Error {
    match SchemaError::refused(&error) {
        Some(pooler) => pooler.into(),
        None => anyhow::Error::new(error).context(UNREACHABLE),
    }
}

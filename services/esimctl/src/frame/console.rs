//! What every command works with: a connection to the database, and standard output.
//!
//! [`Console::connect`] guarantees a schema that this version understands; otherwise the command
//! ends with an error that says what to run. A command prints one result and nothing else on
//! standard output, so that `--json` can be piped into another program. Progress and questions go
//! to standard error.

use std::time::Duration;

use anyhow::Context;
use pg::{
    PgConnection,
    config::DatabaseConfig,
    schema::{self, SchemaError},
};
use runtime::terminal;
use serde::Serialize;
use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use tokio::signal::unix::{SignalKind, signal};

use crate::output::{TableRow, table};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The beginning of the error for a server that cannot be reached.
pub const UNREACHABLE: &str =
    "cannot connect to PostgreSQL; check DATABASE_URL and that the server is up";

/// The command needs the database, but no URL is set.
#[derive(Debug, thiserror::Error)]
#[error("this command needs the database: name it with --database-url or in DATABASE_URL")]
pub struct NoDatabase;

/// Where a command finds its database, and how it prints its result.
pub struct Console {
    json: bool,
    database: Option<DatabaseConfig>,
}

impl Console {
    pub fn new(json: bool, database: Option<DatabaseConfig>) -> Self {
        Self { json, database }
    }

    pub fn database(&self) -> anyhow::Result<PgConnectOptions> {
        let database = self.database.as_ref().ok_or(NoDatabase)?;
        Ok(database.options("esimctl")?)
    }

    /// Connects to the database, and checks that its schema serves this version.
    pub async fn connect(&self) -> anyhow::Result<PgConnection> {
        let options = self.database()?;
        let mut connection = tokio::time::timeout(CONNECT_TIMEOUT, options.connect())
            .await
            .with_context(|| format!("{UNREACHABLE}: no answer within {CONNECT_TIMEOUT:?}"))?
            .map_err(unreachable)?;
        schema::check(&mut connection).await?;
        Ok(connection)
    }

    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Prints `value` as JSON with `--json`, and otherwise the text.
    pub fn print<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        let text = if self.json {
            serde_json::to_string(value)?
        } else {
            text()
        };
        terminal::print(text)
    }

    /// Prints a list as JSON or as a table. The text `none` replaces an empty table.
    pub fn print_list<T: Serialize, const N: usize>(
        &self,
        items: &[T],
        none: &str,
        row: impl Fn(&T) -> TableRow<N>,
    ) -> anyhow::Result<()> {
        self.print(&items, || list(items, none, row))
    }
}

/// A table of the items, or the text `none` if there are no items.
pub fn list<T, const N: usize>(items: &[T], none: &str, row: impl Fn(&T) -> TableRow<N>) -> String {
    if items.is_empty() {
        none.to_owned()
    } else {
        table(items.iter().map(row))
    }
}

/// The error for a failed connection. If a connection pooler refused the settings of our sessions,
/// the error says so, because "cannot connect" alone would send the operator to the wrong server.
pub fn unreachable(error: sqlx::Error) -> anyhow::Error {
    match SchemaError::refused(&error) {
        Some(pooler) => pooler.into(),
        None => anyhow::Error::new(error).context(UNREACHABLE),
    }
}

/// Waits for Ctrl-C, or for whoever ends the process otherwise.
pub async fn stopped() -> std::io::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminated.recv() => Ok(()),
    }
}

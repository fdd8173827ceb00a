//! What every command works with: a connection to the database, and standard output.
//!
//! [`Console::connect`] guarantees a schema that this version understands; otherwise the command
//! ends with an error that says what to run. A command prints one result and nothing else on
//! standard output, so that `--json` can be piped into another program. Progress and questions go
//! to standard error.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use pg::{
    PgConnection,
    config::DatabaseConfig,
    schema::{self, SchemaError},
};
use runtime::terminal;
use serde::Serialize;
use serde_json::json;
use sqlx::{ConnectOptions, postgres::PgConnectOptions};

use crate::{
    cell_file::{Cell, Cells},
    output::{Row, table},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The beginning of the error for a server that cannot be reached.
pub const UNREACHABLE: &str =
    "cannot connect to PostgreSQL; check DATABASE_URL and that the server is up";

/// The command needs the database, but no URL is set.
#[derive(Debug, thiserror::Error)]
#[error("this command needs the database: name it with --database-url or in DATABASE_URL")]
pub struct NoDatabase;

/// The command needs the file of cells, but none is named.
#[derive(Debug, thiserror::Error)]
#[error(
    "this command needs the file of cells: name it with --cells or in ESIM_CELLS; `esimctl cell list --help` shows an example"
)]
pub struct NoCells;

/// There is no such row in the database. With `--all-cells` another cell may have it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotFound(pub String);

/// Where a command finds its database, and how it prints its result.
pub struct Console {
    json: bool,
    database: Option<DatabaseConfig>,
    cells: Option<PathBuf>,
    /// The cell in which the command runs, with `--all-cells`. It is named in the output.
    cell: Option<String>,
}

impl Console {
    pub fn new(json: bool, database: Option<DatabaseConfig>) -> Self {
        Self {
            json,
            database,
            cells: None,
            cell: None,
        }
    }

    /// The same console with a file of cells, if one is named.
    pub fn with_cells(self, cells: Option<PathBuf>) -> Self {
        Self { cells, ..self }
    }

    /// The same console on the database of a cell.
    pub fn of_cell(&self, cell: &Cell) -> anyhow::Result<Self> {
        Ok(Self {
            json: self.json,
            database: Some(cell.database()?),
            cells: self.cells.clone(),
            cell: Some(cell.name.clone()),
        })
    }

    /// Reads the file of cells.
    pub fn cells(&self) -> anyhow::Result<Cells> {
        Cells::read(self.cells.as_ref().ok_or(NoCells)?)
    }

    /// Connects to the database of a cell, as [`Self::connect`] does.
    pub async fn connect_to(&self, cell: &Cell) -> anyhow::Result<PgConnection> {
        let connected = self.of_cell(cell)?.connect().await;
        connected.with_context(|| format!("cell {}", cell.name))
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
        let text = match (self.json, &self.cell) {
            (true, None) => serde_json::to_string(value)?,
            (true, Some(cell)) => json!({ "cell": cell, "result": value }).to_string(),
            (false, None) => text(),
            (false, Some(cell)) => format!("cell {cell}:\n{}\n", text()),
        };
        terminal::print(text)
    }

    /// Prints a list as JSON or as a table. The text `none` replaces an empty table.
    pub fn print_list<T: Serialize, const N: usize>(
        &self,
        items: &[T],
        none: &str,
        row: impl Fn(&T) -> Row<N>,
    ) -> anyhow::Result<()> {
        self.print(&items, || list(items, none, row))
    }
}

/// A table of the items, or the text `none` if there are no items.
pub fn list<T, const N: usize>(items: &[T], none: &str, row: impl Fn(&T) -> Row<N>) -> String {
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

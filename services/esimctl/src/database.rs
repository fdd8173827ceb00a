//! The connection that a command works on.

use std::time::Duration;

use anyhow::Context;
use sqlx::ConnectOptions;
use store::{
    PgConnection,
    config::DatabaseConfig,
    schema::{self, SchemaError},
};

/// The application name of the connections.
pub const APPLICATION: &str = "esimctl";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The start of the error for an unreachable server.
pub const UNREACHABLE: &str = "cannot connect to PostgreSQL; check DATABASE_URL and that the server is up";

/// A command needs the database, and no URL is set.
#[derive(Debug, thiserror::Error)]
#[error("no database is named: set --database-url (environment: DATABASE_URL)")]
pub struct NoDatabase;

/// Connects to a database whose schema serves this version.
pub async fn connect(database: &DatabaseConfig) -> anyhow::Result<PgConnection> {
    let options = database.options(APPLICATION)?;
    let mut connection = tokio::time::timeout(CONNECT_TIMEOUT, options.connect())
        .await
        .with_context(|| format!("{UNREACHABLE}: no answer within {CONNECT_TIMEOUT:?}"))?
        .map_err(unreachable)?;
    schema::check(&mut connection).await?;
    Ok(connection)
}

/// Names a pooler that refuses the session settings in the error.
pub fn unreachable(error: sqlx::Error) -> anyhow::Error {
    match SchemaError::refused(&error) {
        Some(pooler) => pooler.into(),
        None => anyhow::Error::new(error).context(UNREACHABLE),
    }
}

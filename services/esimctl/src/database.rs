//! The connection that a command works on.

use std::time::Duration;

use anyhow::Context;
use sqlx::ConnectOptions;
use store::{
    PgConnection,
    config::DatabaseConfig,
    schema::{self, SchemaError},
};

/// The name that the server shows for our connections.
pub const APPLICATION: &str = "esimctl";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The head of the error for a server that cannot be reached.
pub const UNREACHABLE: &str = "cannot connect to PostgreSQL; check DATABASE_URL and that the server is up";

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

/// A pooler that refuses the session settings has an error of its own.
pub fn unreachable(error: sqlx::Error) -> anyhow::Error {
    match SchemaError::refused(&error) {
        Some(pooler) => pooler.into(),
        None => anyhow::Error::new(error).context(UNREACHABLE),
    }
}

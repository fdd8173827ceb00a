//! The connection that a command works on.

use std::time::Duration;

use anyhow::Context;
use sqlx::ConnectOptions;
use store::{PgConnection, config::DatabaseConfig, schema};

/// The name that the server shows for our connections.
pub const APPLICATION: &str = "esimctl";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to a database that has the schema of this version.
pub async fn connect(database: &DatabaseConfig) -> anyhow::Result<PgConnection> {
    let options = database.options(APPLICATION)?;
    let mut connection = tokio::time::timeout(CONNECT_TIMEOUT, options.connect())
        .await
        .with_context(|| format!("{UNREACHABLE}: no answer within {CONNECT_TIMEOUT:?}"))?
        .context(UNREACHABLE)?;
    schema::check(&mut connection).await?;
    Ok(connection)
}

/// What a failure to connect begins with.
pub const UNREACHABLE: &str = "cannot connect to PostgreSQL; check DATABASE_URL, and that the server is up";

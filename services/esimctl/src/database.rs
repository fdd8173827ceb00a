//! The connection that a command works on.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use store::{PgConnection, PgPool, config::DatabaseConfig, schema};

/// The name that the server shows for our connections.
const APPLICATION: &str = "esimctl";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to a database that has the schema of this version.
pub async fn connect(database: &DatabaseConfig) -> anyhow::Result<PgConnection> {
    let (_, options) = target(database)?;
    let mut connection = tokio::time::timeout(CONNECT_TIMEOUT, options.connect())
        .await
        .with_context(|| format!("{UNREACHABLE}: no answer within {CONNECT_TIMEOUT:?}"))?
        .context(UNREACHABLE)?;
    schema::check(&mut connection).await?;
    Ok(connection)
}

/// What a failure to connect begins with.
pub const UNREACHABLE: &str = "cannot connect to PostgreSQL; check DATABASE_URL, and that the server is up";

/// A pool that connects when it is used, and how to connect without it: a pool only says that it timed
/// out, not why.
pub fn target(database: &DatabaseConfig) -> anyhow::Result<(PgPool, Arc<PgConnectOptions>)> {
    let pool = database.pool(APPLICATION)?;
    let options = pool.connect_options();
    Ok((pool, options))
}

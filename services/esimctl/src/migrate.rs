//! `esimctl migrate`: a one-shot step before the services are started or replaced.

use std::{pin::pin, time::Duration};

use anyhow::Context;
use serde_json::json;
use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use store::{
    PgConnection,
    config::DatabaseConfig,
    schema::{self, SchemaError},
};
use tokio::time::{sleep, timeout};

use crate::{
    database::{APPLICATION, UNREACHABLE},
    output::Output,
};

pub const EXAMPLES: &str = "Examples:
  esimctl migrate           does nothing when nothing is missing
  esimctl migrate --json    prints {\"schema_version\":1,\"was\":0}";

/// How long the server may take to come up.
const WAIT: Duration = Duration::from_secs(30);
/// How long it may take before we say that we wait for it.
const SILENT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(250);

pub async fn run(database: &DatabaseConfig, output: &Output) -> anyhow::Result<()> {
    let options = database.options(APPLICATION)?;
    let mut connection = wait_until_up(&options).await?;
    let was = match schema::check(&mut connection).await {
        Ok(()) => schema::latest(),
        Err(SchemaError::Behind { found, .. }) => found,
        Err(error) => return Err(error.into()),
    };
    // Also when nothing is missing: this compares what was applied with what we would apply.
    schema::migrate(&mut connection)
        .await
        .context("the migrations failed; each is one transaction, so run it again once the cause is gone")?;
    let version = schema::latest();
    output.print(&json!({ "schema_version": version, "was": was }), || {
        if was == version {
            format!("the schema is at version {version} already")
        } else {
            format!("the schema is at version {version}, it was at {was}")
        }
    })
}

/// Connects, and tries again while the server is just starting.
async fn wait_until_up(options: &PgConnectOptions) -> anyhow::Result<PgConnection> {
    let mut last = None;
    let connected = {
        let mut attempts = pin!(attempts(options, &mut last));
        let mut connected = timeout(SILENT, &mut attempts).await;
        if connected.is_err() {
            eprintln!("esimctl: waiting up to {WAIT:?} for PostgreSQL");
            connected = timeout(WAIT, &mut attempts).await;
        }
        connected
    };
    match (connected, last) {
        (Ok(connected), _) => connected.context(UNREACHABLE),
        (Err(_), Some(error)) => Err(error).context(format!("{UNREACHABLE} (gave up after {WAIT:?})")),
        (Err(_), None) => anyhow::bail!("{UNREACHABLE} (no answer within {WAIT:?})"),
    }
}

/// Ends with a connection or an error that waiting won't mend; the caller bounds the time.
async fn attempts(options: &PgConnectOptions, last: &mut Option<sqlx::Error>) -> sqlx::Result<PgConnection> {
    loop {
        match options.connect().await {
            Err(error) if may_be_starting(&error) => *last = Some(error),
            outcome => return outcome,
        }
        sleep(RETRY).await;
    }
}

/// Whether the server isn't there yet (its address neither), or says that it is just starting.
fn may_be_starting(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) => true,
        sqlx::Error::Database(error) => error.is_transient_in_connect_phase(),
        _ => false,
    }
}

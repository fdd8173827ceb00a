//! Measures the reference rate: how many small transactions per second this `PostgreSQL` commits on
//! this machine without other load. Rates of the pipeline are compared as ratios to it.

use crate::settings::System;
use anyhow::{Context, Result, ensure};
use sqlx::Connection;
use std::path::Path;
use std::process::Stdio;
use testkit::database::Database;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use url::Url;

const TABLES: &str = "
    CREATE TABLE orders (order_id uuid PRIMARY KEY, partner_id uuid NOT NULL, external_order_id text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(), UNIQUE (partner_id, external_order_id));
    CREATE TABLE units (unit_id uuid PRIMARY KEY, order_id uuid NOT NULL, option_id uuid NOT NULL,
        state text NOT NULL DEFAULT 'pending');
    CREATE TABLE outbox (outbox_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id uuid NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now());";
/// One transaction, which inserts an order, a unit and an outbox row. If it changed, ratios to it
/// could no longer be compared with those of earlier runs.
const SCRIPT: &str = "
    WITH placed AS (
        INSERT INTO orders (order_id, partner_id, external_order_id)
        VALUES (gen_random_uuid(), '00000000-0000-0000-0000-000000000001', gen_random_uuid()::text)
        RETURNING order_id
    ), unit AS (
        INSERT INTO units (unit_id, order_id, option_id)
        SELECT gen_random_uuid(), order_id, '00000000-0000-0000-0000-000000000002' FROM placed
    )
    INSERT INTO outbox (order_id) SELECT order_id FROM placed;";

/// Measures the transactions per second of `pgbench -M prepared -c 16 -j 2` in a scratch database
/// on the pipeline's server. Returns `None` if `seconds` is 0, or if there is no role that may
/// create the database.
pub async fn measure(system: &System, seconds: u32) -> Result<Option<f64>> {
    let Some(admin) = system.database_admin_url.as_deref().filter(|_| seconds > 0) else {
        return Ok(None);
    };
    let scratch = Database::create_on(admin).await?;
    let mut connection = scratch.connect().await?;
    sqlx::raw_sql(TABLES).execute(&mut connection).await?;
    connection.close().await?;
    let url: Url = scratch.url().parse()?;
    let program = program(system.pg_bin.as_deref(), "pgbench");
    let mut child = Command::new(&program)
        .args([
            "-n", "-M", "prepared", "-c", "16", "-j", "2", "-f", "-", "-T",
        ])
        .arg(seconds.to_string())
        .envs(connection_settings(&url)?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let mut input = child
        .stdin
        .take()
        .context("pgbench has no standard input")?;
    input.write_all(SCRIPT.as_bytes()).await?;
    drop(input);
    let output = child.wait_with_output().await?;
    let [text, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    ensure!(
        output.status.success(),
        "pgbench: {}: {errors}",
        output.status
    );
    let line = text.lines().find_map(|line| line.strip_prefix("tps = "));
    let rate: Option<f64> =
        line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    Ok(Some(rate.with_context(|| {
        format!("pgbench printed no rate: {text}")
    })?))
}

pub fn program(folder: Option<&Path>, name: &str) -> std::path::PathBuf {
    folder.map_or_else(|| name.into(), |folder| folder.join(name))
}

/// The environment variables of libpq for a URL. Unlike the arguments of a process, other users
/// cannot read its environment, which contains the password.
pub fn connection_settings(url: &Url) -> Result<Vec<(&'static str, String)>> {
    Ok(vec![
        (
            "PGHOST",
            url.host_str().context("the URL names no host")?.to_owned(),
        ),
        ("PGPORT", url.port().unwrap_or(5432).to_string()),
        ("PGUSER", url.username().to_owned()),
        ("PGPASSWORD", url.password().unwrap_or_default().to_owned()),
        ("PGDATABASE", url.path().trim_start_matches('/').to_owned()),
    ])
}

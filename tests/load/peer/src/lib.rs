//! The same work as our pipeline, written plainly on the job queues of others, so that anybody can
//! compare them on one machine: `tests/load/peer/run`. Each peer is one file: `src/bin/river.rs` on
//! `riverqueue`, and `src/bin/awa.rs` on `awa`. A file holds what a user of that library writes:
//! the tables, the transaction that stores an order together with its job, and the two kinds of
//! jobs.
//!
//! This library has what does not depend on the queue:
//!
//! - [`server`]: the partner API, with our signatures and answers, and `POST /partners`, with which
//!   the load generator makes its partners;
//! - [`provider`]: the two requests of a purchase at the sandbox;
//! - [`webhook`]: the signed webhook.
//!
//! A peer is one process, which takes orders, buys and delivers. It is written for speed where that
//! costs no line: partners are kept in memory, statements are few, and connections stay open. What
//! it leaves out, compared with our pipeline, is in docs/performance.md.
//!
//! The peers are a workspace of their own, because `riverqueue` needs a newer Rust than ours and
//! has the licence MPL-2.0, and because the two libraries need different versions of `sqlx`.

pub mod partner;
pub mod provider;
pub mod server;
pub mod webhook;

use anyhow::{Context, Result};
use std::time::Duration;

/// The tables of a peer beside those of its queue. Each peer has a database of its own.
pub const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS partners (
        partner_id uuid PRIMARY KEY,
        access_key text NOT NULL UNIQUE,
        secret_key text NOT NULL,
        webhook_secret text NOT NULL,
        webhook_url text NOT NULL
    );
    CREATE TABLE IF NOT EXISTS orders (
        order_id uuid PRIMARY KEY,
        partner_id uuid NOT NULL REFERENCES partners,
        external_order_id text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        UNIQUE (partner_id, external_order_id)
    );
    CREATE TABLE IF NOT EXISTS topups (
        topup_id text PRIMARY KEY,
        order_id uuid NOT NULL REFERENCES orders,
        option_id uuid NOT NULL,
        iccid text,
        smdp text,
        activate_code text,
        expired_date text
    );
    CREATE INDEX IF NOT EXISTS topups_order_id ON topups (order_id)";
pub const PARTNERS: &str =
    "SELECT partner_id, access_key, secret_key, webhook_secret, webhook_url FROM partners";
/// Stores an order and its topups, or nothing if the external order id is taken.
pub const STORE: &str = "
    WITH stored AS (
        INSERT INTO orders (order_id, partner_id, external_order_id) VALUES ($1, $2, $3)
        ON CONFLICT (partner_id, external_order_id) DO NOTHING RETURNING order_id
    )
    INSERT INTO topups (topup_id, order_id, option_id)
    SELECT unit.topup_id, stored.order_id, unit.option_id
    FROM stored, unnest($4::text[], $5::uuid[]) AS unit (topup_id, option_id)";
/// Records the profiles of an order, and returns its partner.
pub const RECORD: &str = "
    WITH recorded AS (
        UPDATE topups SET iccid = esim.iccid, smdp = esim.smdp, activate_code = esim.activate_code,
                          expired_date = esim.expired_date
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
             AS esim (topup_id, iccid, smdp, activate_code, expired_date)
        WHERE topups.topup_id = esim.topup_id
    )
    SELECT partner_id FROM orders WHERE order_id = $6";
/// What the webhook of a topup says.
pub const STORED: &str = "
    SELECT option_id::text, external_order_id, iccid, smdp, activate_code, expired_date
    FROM topups JOIN orders USING (order_id) WHERE topup_id = $1";

/// How many connections to `PostgreSQL` a peer opens for its requests and for its jobs, together as
/// many as our three services. They are apart, because a pool is first come, first served: behind
/// 256 requests, each statement of a queue would wait for all of them.
pub const REQUEST_CONNECTIONS: u32 = 8;
pub const JOB_CONNECTIONS: u32 = 16;
/// How many jobs of each kind run at once. A job mostly waits for the other side.
pub const WORKERS: u16 = 64;
/// The pause before a purchase whose profiles are not ready is asked for again.
pub const NOT_READY: Duration = Duration::from_secs(1);

/// A setting from the environment.
pub fn setting(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("the setting {name} is missing"))
}

/// Writes warnings to the standard error output. `LOG` chooses others.
pub fn log() {
    let filter = std::env::var("LOG").unwrap_or_else(|_| "warn".to_owned());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
}

/// Waits for SIGTERM or SIGINT.
pub async fn stopped() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}

/// The client for HTTP. The other sides are on this machine, so no proxy is asked.
fn client() -> Result<reqwest::Client> {
    let client = reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(10));
    Ok(client.build()?)
}

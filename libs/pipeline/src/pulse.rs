//! The pulse: every stage commits one small row once a second, and this module tells operators what
//! it shows (docs/decisions/0026-any-server-lost.md).
//!
//! Readiness follows the pulse, because a server that accepts connections but commits nothing is of
//! no use to any stage. What the pulse protects, the fence after lost commits, is in
//! [`pg::primary`]; nothing there depends on this loop being on time.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use pg::{Database, down::ServerAway, primary::Unfit};
use runtime::{
    Shutdown,
    clock::{self, Moment},
    health::Readiness,
    outage,
};
use time::OffsetDateTime;
use tokio::time::timeout;

use crate::{metrics::PulseMetrics, streams::Nats};

/// The interval between two pulses.
const PERIOD: Duration = Duration::from_secs(1);
/// How often a new connection is opened to find out where it leads.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The stage is not ready while a pulse takes longer than this.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the note that this process ends may take. It is longer than [`PATIENCE`], because a
/// commit that is slow now would otherwise make operators miss this process for an hour.
const PATIENCE_AT_THE_END: Duration = Duration::from_secs(10);

/// Sends pulses until the soft stop, and keeps the part `database` of the readiness up to date.
/// Each pulse tells whether NATS is up and takes all messages, because who only sees the database
/// would not notice. The schema must have been checked, because an older one has no table for
/// pulses.
pub async fn run(
    database: Database,
    nats: Nats,
    readiness: Readiness,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let metrics = PulseMetrics::new();
    let mut ticks = shutdown.ticks(PERIOD);
    let mut looked_at = Moment::now();
    let mut away_since = None;
    while ticks.next().await {
        if (looked_at + LOOK_AGAIN).has_passed() {
            looked_at = Moment::now();
            if let Err(error) = database.look_again().await {
                tracing::debug!(%error, "cannot look where new connections to PostgreSQL lead");
            }
        }
        database.note_nats(nats.is_up(), nats.refused());
        let began = Instant::now();
        let mut pulse = pin!(database.pulse());
        let committed = if let Ok(committed) = timeout(PATIENCE, &mut pulse).await {
            committed
        } else {
            let error = format!("a commit takes longer than {PATIENCE:?}");
            is_away(&readiness, down(error), &mut away_since);
            pulse.await
        };
        match committed {
            Ok(pulse) => {
                metrics.show(&pulse, began.elapsed());
                if let Some(unfit) = &pulse.unfit {
                    let why = match unfit {
                        Unfit::Clock { .. } => ServerAway::Clock(pulse.clock_ahead),
                        other => ServerAway::Down(other.to_string()),
                    };
                    is_away(&readiness, (unfit.to_string(), why), &mut away_since);
                } else {
                    away_since = None;
                    readiness.set_ready("database");
                    outage::DATABASE.worked();
                }
            }
            Err(error) => is_away(&readiness, down(error.to_string()), &mut away_since),
        }
    }
    // Without the note operators miss this process for an hour, or until another one begins.
    let failed = match timeout(PATIENCE_AT_THE_END, database.stopped()).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("the commit takes longer than {PATIENCE_AT_THE_END:?}"),
    };
    tracing::warn!(
        error = failed,
        "cannot note in PostgreSQL that this process ends, so `esimctl attention` misses it for an hour, \
         or until another process of its stage begins"
    );
    Ok(())
}

fn down(error: String) -> (String, ServerAway) {
    let why = ServerAway::Down(error.clone());
    (error, why)
}

/// Notes that nothing can be committed now, and why. The first line is written in any case, because
/// it says why the stage is not ready; the lines after it share the limit of an outage with all
/// others.
fn is_away(
    readiness: &Readiness,
    (error, why): (String, ServerAway),
    since: &mut Option<OffsetDateTime>,
) {
    let since = *since.get_or_insert_with(clock::now);
    let was_ready = readiness.set_not_ready("database", &error, why.told(since));
    let others = outage::DATABASE.failed();
    if was_ready || others.is_some() {
        tracing::error!(
            error,
            others = others.unwrap_or_default(),
            "cannot commit to PostgreSQL, so this stage is not ready; it tries again once a second"
        );
    }
}

//! Reads the balance of our account at a provider that shows it, so that an operator hears that it
//! is nearly used up before the provider refuses purchases for that reason. It is stored for the
//! console, too.
//!
//! Nothing here decides whether something is bought. After a failed read the metric keeps its last
//! value.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pg::PgConnection;
use runtime::Shutdown;
use store::providers;

use crate::purchases::ProviderContext;

/// How often each process reads it.
const PERIOD: Duration = Duration::from_mins(5);
/// How often it is checked whether it may be read. At the start the state of the breaker is not
/// known yet.
const CHECK: Duration = Duration::from_secs(1);

/// Reads the balance now and then until the soft stop. While the breaker is not closed, it is not
/// read, because the provider is either failing or must not be called.
pub async fn watch(context: Arc<ProviderContext>, shutdown: Shutdown) -> anyhow::Result<()> {
    let calls = &context.calls;
    let mut ticks = shutdown.ticks(CHECK);
    let mut last: Option<Instant> = None;
    while ticks.next().await {
        let is_recent = last.is_some_and(|last| last.elapsed() < PERIOD);
        if is_recent || !calls.breaker.is_closed() {
            continue;
        }
        last = Some(Instant::now());
        match calls.balance().await {
            Ok(balance) => {
                calls.metrics.balance(&calls.name, &balance);
                let told = format!("{:.2} {}", balance.amount, balance.currency);
                let note = async |connection: &mut PgConnection| {
                    providers::note_balance(connection, &calls.name, told.trim_end()).await
                };
                if let Err(error) = context.database.run(note).await {
                    tracing::debug!(%error, "the balance could not be noted; the next one is");
                }
            }
            Err(trouble) => tracing::warn!(
                provider.name = calls.name,
                reason = trouble.reason(),
                "cannot read the balance of our account; its metric keeps the last value"
            ),
        }
    }
    Ok(())
}

//! Asks for the use of delivered eSIMs whose partners want to hear of it, before they ask.
//!
//! Most providers report what becomes of an eSIM, but reports are late, lost or not offered, so
//! each eSIM is asked about now and then, too ([`domain::esim_use`] says when). A poll is a
//! question without a partner: it becomes due in `work` and [`crate::after_delivery`] answers it.
//!
//! Guarantee: however many eSIMs are followed and however many processes run, the polls of a
//! provider stay within `POLLS_PER_HOUR`. The database counts them. If the budget is too small,
//! each eSIM is asked about later, the most overdue ones first.

use std::{sync::Arc, time::Duration};

use pg::PgConnection;
use runtime::Shutdown;
use store::esim_requests;

use crate::purchases::ProviderContext;

/// How often each process looks for eSIMs to poll.
const PERIOD: Duration = Duration::from_secs(10);

/// Makes polls due until the soft stop. While the breaker is not closed there are none, because
/// nothing would answer them.
pub async fn run(context: Arc<ProviderContext>, shutdown: Shutdown) -> anyhow::Result<()> {
    let calls = &context.calls;
    let mut ticks = shutdown.ticks(PERIOD);
    while ticks.next().await {
        if !calls.breaker.is_closed() {
            continue;
        }
        let per_hour = context.polls_per_hour;
        let poll = async |connection: &mut PgConnection| {
            esim_requests::poll(connection, &calls.name, per_hour).await
        };
        match context.database.run(poll).await {
            Ok(0) => {}
            Ok(polled) => tracing::debug!(
                provider.name = calls.name,
                polled,
                "asking for the use of delivered eSIMs"
            ),
            Err(error) => tracing::debug!(
                provider.name = calls.name,
                %error,
                "cannot see which eSIMs are to be asked about; the next look does"
            ),
        }
    }
    Ok(())
}

//! A sale, whatever the protocol in which it was asked for: it follows the scripts of its options
//! ([`crate::script`]) and enters the ledger.
//!
//! A sale that buys writes the ledger before it returns, or before it is left without an answer. So
//! the ledger knows every purchase, including those whose caller never learns of it.

use std::sync::Arc;

use runtime::clock;

use crate::{
    channel::CallbackChannel,
    error::SandboxError,
    ledger::Repeats,
    protocol::Product,
    purchase::LedgerPurchase,
    script::{self, AtPost, ScriptedRefusal},
    server::{self, NoAnswer},
    state::Sandbox,
};

/// The maximum number of units of one order.
pub const MAX_UNITS: u64 = 10_000;

/// How a sale ended. In all other cases it ends with a [`SandboxError`].
pub enum Sale {
    Sold(Arc<LedgerPurchase>),
    /// A script refuses the order; nothing was bought.
    Refused(ScriptedRefusal),
}

/// Buys all products of an order, or none. `repeats` says what a second order with the same id
/// does. [`SandboxError::Duplicate`] means that it was refused. `channel` takes the callbacks, if
/// there is one.
pub async fn sell(
    sandbox: &Sandbox,
    order_id: String,
    products: Vec<Product>,
    repeats: Repeats,
    channel: Option<&Arc<CallbackChannel>>,
) -> Result<Sale, SandboxError> {
    let at_post = script::at_post(&products);
    // A repeated order id is a duplicate even if its products would be refused or fail now. An
    // order that only buys is checked by `Ledger::buy`.
    if at_post != AtPost::Buys && repeats == Repeats::Refused && sandbox.ledger.has(&order_id) {
        return Err(SandboxError::Duplicate);
    }
    match at_post {
        AtPost::Refuses(refusal) => return Ok(Sale::Refused(refusal)),
        AtPost::ErrsFirst(times) if sandbox.attempts.fails(&order_id, times) => {
            return Err(SandboxError::Failed);
        }
        AtPost::LimitsFirst {
            attempts,
            retry_after,
        } if sandbox.attempts.fails(&order_id, attempts) => {
            return Err(SandboxError::RateLimited(retry_after));
        }
        _ => {}
    }
    let bought = sandbox
        .ledger
        .buy(order_id, products, clock::now(), repeats);
    let purchase = bought
        .map_err(SandboxError::Ledger)?
        .ok_or(SandboxError::Duplicate)?;
    sandbox.metrics.bought(&purchase);
    tracing::debug!(
        order.id = purchase.order_id,
        units = purchase.size(),
        "bought"
    );
    if let Some(channel) = channel
        && script::calls_back(&purchase.products)
    {
        sandbox.callbacks.push(channel, Arc::clone(&purchase));
    }
    match at_post {
        AtPost::BuysThenErrs => return Err(SandboxError::Failed),
        AtPost::BuysThenIsSilent => return Err(SandboxError::Unanswered(NoAnswer::Silence)),
        AtPost::BuysThenWaits(duration) => server::pause(&sandbox.shutdown, duration).await,
        _ => {}
    }
    Ok(Sale::Sold(purchase))
}

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
    if let Some(refusal) = begin(sandbox, &order_id, at_post)? {
        return Ok(Sale::Refused(refusal));
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
    end(sandbox, at_post).await?;
    Ok(Sale::Sold(purchase))
}

/// What a script does before it sells something under this id.
pub(crate) fn begin(
    sandbox: &Sandbox,
    id: &str,
    at_post: AtPost,
) -> Result<Option<ScriptedRefusal>, SandboxError> {
    match at_post {
        AtPost::Refuses(refusal) => Ok(Some(refusal)),
        AtPost::ErrsFirst(times) if sandbox.attempts.fails(id, times) => Err(SandboxError::Failed),
        AtPost::LimitsFirst {
            attempts,
            retry_after,
        } if sandbox.attempts.fails(id, attempts) => Err(SandboxError::RateLimited(retry_after)),
        _ => Ok(None),
    }
}

/// What a script does after it has sold something.
pub(crate) async fn end(sandbox: &Sandbox, at_post: AtPost) -> Result<(), SandboxError> {
    match at_post {
        AtPost::BuysThenErrs => Err(SandboxError::Failed),
        AtPost::BuysThenIsSilent => Err(SandboxError::Unanswered(NoAnswer::Silence)),
        AtPost::BuysThenWaits(duration) => {
            server::pause(&sandbox.shutdown, duration).await;
            Ok(())
        }
        _ => Ok(()),
    }
}

//! What most tests look at: a partner's orders, as the services and the provider have them.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{collections::BTreeSet, time::Duration};
use testkit::stack::{Ledger, Stack, Stored};

pub use testkit::shop::{PATH, Shop, fresh, ids, verdicts_come};

/// How long most conditions may take.
pub const SOON: Duration = Duration::from_secs(30);

/// A stack, and a shop on it.
pub async fn open() -> (Stack, Shop) {
    let stack = Stack::start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    (stack, shop)
}

/// `esimctl order show`, the only order it shows.
pub async fn show(stack: &Stack, id: &str) -> Result<Value> {
    let mut shown: Value = stack.esimctl.run(&["order", "show", id]).await?;
    let orders = shown["orders"].as_array_mut().context("orders")?;
    ensure!(
        orders.len() == 1,
        "{} orders have the id {id}",
        orders.len()
    );
    Ok(orders.remove(0))
}

/// The size of a test: `tests/run nightly` sets it to that of `docs/reliability.md`.
pub fn size(setting: &str, default: u64) -> u64 {
    std::env::var(setting).map_or(default, |text| text.parse().expect("a number"))
}

/// Every stored topup whose order was not refused.
pub async fn stored(stack: &Stack) -> Result<Vec<Stored>> {
    let mut stored = stack.stored().await?;
    stored.retain(|row| !row.refused);
    Ok(stored)
}

/// The topup ids of [`stored`].
pub async fn stored_ids(stack: &Stack) -> Result<BTreeSet<String>> {
    Ok(stored(stack)
        .await?
        .into_iter()
        .map(|row| row.topup_id)
        .collect())
}

/// Checks that the provider sold nothing more than once.
pub fn bought_once(ledger: &Ledger) -> Result<()> {
    let twice: Vec<_> = ledger
        .orders
        .iter()
        .filter(|order| order.purchased_times != 1)
        .collect();
    ensure!(twice.is_empty(), "bought more than once: {twice:?}");
    Ok(())
}

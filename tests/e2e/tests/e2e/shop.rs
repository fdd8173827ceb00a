//! What most tests look at: a partner's orders, as the services and the provider have them.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use testkit::stack::{Ledger, Stack};

pub use testkit::shop::{PATH, Shop, fresh, ids, verdicts_come};

/// `esimctl order show`, the only order it shows.
pub async fn show(stack: &Stack, id: &str) -> Result<Value> {
    let mut shown: Value = stack.esimctl.run(&["order", "show", id]).await?;
    let orders = shown["orders"].as_array_mut().context("orders")?;
    ensure!(orders.len() == 1, "{} orders have the id {id}", orders.len());
    Ok(orders.remove(0))
}

/// The size of a test: `tests/run nightly` sets it to that of `docs/reliability.md`.
pub fn size(setting: &str, default: u64) -> u64 {
    std::env::var(setting).map_or(default, |text| text.parse().expect("a number"))
}

/// A topup of an order that was not refused, with the states of its parts.
#[derive(sqlx::FromRow)]
pub struct Stored {
    pub external_order_id: String,
    pub topup_id: String,
    pub placement: String,
    pub topup: String,
    pub delivery: Option<String>,
}

/// Every topup in the database whose order was not refused.
pub async fn stored(stack: &Stack) -> Result<Vec<Stored>> {
    let mut database = stack.database.connect().await?;
    let stored = sqlx::query_as(
        "SELECT o.external_order_id, t.topup_id, p.state AS placement, d.state AS delivery,
                CASE WHEN e.ready_at IS NULL THEN t.state ELSE 'ready' END AS topup
         FROM topups t LEFT JOIN esims e USING (topup_id) JOIN placements p USING (placement_id) JOIN orders o ON o.order_id = p.order_id
         LEFT JOIN deliveries d USING (topup_id) WHERE NOT o.refused",
    );
    Ok(stored.fetch_all(&mut database).await?)
}

/// The topup ids of [`stored`].
pub async fn stored_ids(stack: &Stack) -> Result<BTreeSet<String>> {
    Ok(stored(stack).await?.into_iter().map(|row| row.topup_id).collect())
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

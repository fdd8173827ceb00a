//! A sandbox partner that orders and receives: what most tests look through.

use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;
use testkit::client::{Client, Product};
use testkit::esimctl::Partner;
use testkit::receiver::{Received, Receiver, Signature};
use testkit::stack::Stack;
use testkit::wait;
use uuid::Uuid;

/// Where the shop gets its webhooks.
pub const PATH: &str = "/webhook";

/// A partner, its client and its webhook endpoint, which checks signatures and answers 200.
pub struct Shop {
    pub partner: Partner,
    pub client: Client,
    pub receiver: Receiver,
}

/// An external id that nobody used before.
pub fn fresh(name: &str) -> String {
    format!("{name}-{}", Uuid::now_v7().simple())
}

impl Shop {
    /// Opens on a stack, with a client of its first ingress.
    pub async fn open(stack: &Stack) -> Result<Self> {
        let receiver = Receiver::start().await?;
        let partner = stack.create_partner("sandbox", Some(&receiver.url(PATH))).await?;
        receiver.verify(PATH, &partner.webhook_secret)?;
        let client = stack.client(&partner)?;
        Ok(Self {
            partner,
            client,
            receiver,
        })
    }

    /// Orders one item; a 201 or an error.
    pub async fn buy(&self, external_order_id: &str, option_id: &str, qty: u32) -> Result<Vec<Product>> {
        self.client
            .order(external_order_id, &[(option_id, qty)])
            .await?
            .products()
    }

    /// Waits until each of these topups was told of; returns everything that came.
    pub async fn hears_of(&self, topup_ids: &BTreeSet<String>, timeout: Duration) -> Result<Vec<Received>> {
        let what = format!("webhooks of {} topups", topup_ids.len());
        let received = self.receiver.wait_until(timeout, &what, |received| {
            let told: BTreeSet<&str> = received.iter().map(Received::topup_id).collect();
            topup_ids.iter().all(|topup_id| told.contains(topup_id.as_str()))
        });
        let received = received.await?;
        for webhook in &received {
            anyhow::ensure!(
                webhook.signature == Signature::Valid,
                "wrongly signed: {webhook:?}"
            );
        }
        Ok(received)
    }
}

/// The ids of some entries.
pub fn ids<'a>(products: impl IntoIterator<Item = &'a Product>) -> BTreeSet<String> {
    products
        .into_iter()
        .map(|product| product.topup_id.clone())
        .collect()
}

/// `esimctl order show`, the only order it shows.
pub async fn show(stack: &Stack, id: &str) -> Result<Value> {
    let mut shown: Value = stack.esimctl.run(&["order", "show", id]).await?;
    let orders = shown["orders"].as_array_mut().context("orders")?;
    anyhow::ensure!(orders.len() == 1, "{} orders have the id {id}", orders.len());
    Ok(orders.remove(0))
}

/// Waits until ingress takes time for verdicts: until a refusal comes with the answer. It does so
/// once it heard of a provisioner.
pub async fn verdicts_come(stack: &Stack, client: &Client) -> Result<()> {
    let refused = stack.option("refused")?;
    let told = async || {
        let answer = client.order(&fresh("first"), &[(refused, 1)]).await?;
        Ok((answer.status == 422).then_some(()))
    };
    wait::until(
        Duration::from_secs(15),
        "a refusal to be told by the answer",
        told,
    )
    .await
    .context("PLACEMENT_WAIT")
}

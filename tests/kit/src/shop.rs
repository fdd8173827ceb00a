//! A partner with everything that it needs to order eSIMs and to receive their webhooks. It is a
//! sandbox partner, or a live one if the stack buys from a real provider.

use crate::client::{Client, Product};
use crate::esimctl::Partner;
use crate::receiver::{Received, Receiver};
use crate::stack::Stack;
use crate::wait;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::time::Duration;
use uuid::Uuid;

pub const PATH: &str = "/webhook";
/// How long it may take until ingress has received a provisioner's heartbeat.
const VERDICTS: Duration = Duration::from_secs(30);

/// A partner, its client and its webhook endpoint, which checks signatures and responds 200.
pub struct Shop {
    pub partner: Partner,
    pub client: Client,
    pub receiver: Receiver,
}

impl Shop {
    /// Creates the partner on a stack. Its client sends to the first ingress.
    pub async fn open(stack: &Stack) -> Result<Self> {
        let receiver = Receiver::start().await?;
        let partner = stack
            .create_partner(stack.environment, Some(&receiver.url(PATH)))
            .await?;
        receiver.verify(PATH, &partner.webhook_secret)?;
        let client = stack.client(&partner)?;
        Ok(Self {
            partner,
            client,
            receiver,
        })
    }

    /// Orders one item. Any answer but a 201 is an error.
    pub async fn buy(
        &self,
        external_order_id: &str,
        option_id: &str,
        qty: u32,
    ) -> Result<Vec<Product>> {
        self.client
            .order(external_order_id, &[(option_id, qty)])
            .await?
            .products()
    }

    /// Waits until a webhook has arrived for each of these topups, and returns all webhooks so far.
    /// It is an error if one of them is not validly signed.
    pub async fn delivered(
        &self,
        topup_ids: &BTreeSet<String>,
        timeout: Duration,
    ) -> Result<Vec<Received>> {
        let arrived = |received: &[Received]| -> BTreeSet<String> {
            received
                .iter()
                .map(|one| one.topup_id().to_owned())
                .collect()
        };
        let what = format!("webhooks of {} topups", topup_ids.len());
        let received = self.receiver.wait_until(timeout, &what, |received| {
            received.len() >= topup_ids.len() && topup_ids.is_subset(&arrived(received))
        });
        let received = received.await.map_err(|error| {
            let arrived = arrived(&self.receiver.received());
            let missing: Vec<_> = topup_ids.difference(&arrived).take(5).collect();
            error.context(format!("topups without webhook, for example: {missing:?}"))
        })?;
        for webhook in &received {
            ensure!(webhook.is_valid(), "wrongly signed: {webhook:?}");
        }
        Ok(received)
    }
}

/// Makes an external order id that is not used yet.
pub fn fresh(name: &str) -> String {
    format!("{name}-{}", Uuid::now_v7().simple())
}

pub fn ids<'a>(products: impl IntoIterator<Item = &'a Product>) -> BTreeSet<String> {
    products
        .into_iter()
        .map(|product| product.topup_id.clone())
        .collect()
}

/// Waits until an order of the option `refused` is answered with 422. Ingress waits for verdicts
/// only after the first heartbeat of a provisioner, so a test about answers has to begin with this.
pub async fn verdicts_come(stack: &Stack, client: &Client) -> Result<()> {
    let refused = stack.option("refused")?;
    let mut last = None;
    let answered = wait::until(VERDICTS, "an answer that carries a refusal", async || {
        let answer = client.order(&fresh("first"), &[(refused, 1)]).await?;
        let is_refused = answer.status == 422;
        last = Some(answer);
        Ok(is_refused.then_some(()))
    });
    let answered = answered.await;
    answered.with_context(|| format!("PLACEMENT_WAIT; the last answer: {last:?}"))
}

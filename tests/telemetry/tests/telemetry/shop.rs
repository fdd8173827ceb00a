//! A sandbox partner that orders and receives.

use anyhow::Result;
use std::time::Duration;
use testkit::client::Client;
use testkit::esimctl::Partner;
use testkit::receiver::Receiver;
use testkit::stack::Stack;
use testkit::wait;

/// Where the shop gets its webhooks.
pub const PATH: &str = "/webhook";

/// A partner, its client and its webhook endpoint, which answers 200.
pub struct Shop {
    pub partner: Partner,
    pub client: Client,
    pub receiver: Receiver,
}

impl Shop {
    pub async fn open(stack: &Stack) -> Result<Self> {
        let receiver = Receiver::start().await?;
        let partner = stack.create_partner("sandbox", Some(&receiver.url(PATH))).await?;
        let client = stack.client(&partner)?;
        Ok(Self {
            partner,
            client,
            receiver,
        })
    }

    /// Waits until ingress waits for verdicts: then a provider's refusal is the answer.
    pub async fn verdicts_come(&self, stack: &Stack) -> Result<()> {
        let refused = stack.option("refused")?;
        let mut number = 0;
        wait::until(Duration::from_secs(20), "a verdict to come in time", async || {
            number += 1;
            let id = format!("to be refused {number}");
            let answer = self.client.order(&id, &[(refused, 1)]).await?;
            Ok((answer.status == 422).then_some(()))
        })
        .await
    }
}

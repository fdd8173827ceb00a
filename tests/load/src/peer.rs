//! A peer of `tests/load/peer`, which does the pipeline's work on the job queue of others. It takes
//! the same orders and sends the same webhooks, so all that differs is how partners are made.

use crate::settings::{Load, System};
use crate::sink::Sink;
use anyhow::Result;
use testkit::esimctl::Partner;

/// The wait that a report names: a peer answers once the order is stored.
pub const PLACEMENT_WAIT: &str = "0s (a peer)";

/// Creates the partners of a run, each with an endpoint at the sink.
pub async fn partners(load: &Load, system: &System, sink: &Sink) -> Result<Vec<Partner>> {
    let client = testkit::http::client()?;
    let url = format!("{}/partners", system.base_url);
    let mut partners = Vec::new();
    for number in 0..load.partners {
        let new = serde_json::json!({ "webhook_url": sink.url(number) });
        let answer = client.post(&url).json(&new).send().await?;
        partners.push(answer.error_for_status()?.json().await?);
    }
    Ok(partners)
}

//! The partners' clients. They follow the rule of the API: after a 5xx, or without a response, a
//! client repeats the request with the same `external_order_id` until the result is definite. Some
//! of them hang up on purpose before they have read the answer.

use crate::book::{Asked, Book, Settled, lock};
use crate::orders::{self, HangUp};
use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::client::order;
use testkit::esimctl::Partner;
use testkit::raw::{self, Answer};
use tokio::io::AsyncWriteExt;

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(12);
/// The longest wait between two requests of one order.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

pub struct Clients {
    pub seed: u64,
    /// The options of every order; empty for those of its plan.
    pub items: Vec<&'static str>,
    /// The number of equal requests that are sent at once for each order.
    pub at_once: u8,
    pub epoch: Instant,
    pub book: Arc<Book>,
    pub ingresses: Vec<String>,
    pub partners: Vec<Partner>,
    pub options: BTreeMap<&'static str, String>,
    /// The time, since the start of the run, at which clients give up.
    pub deadline: Duration,
}

impl Clients {
    /// Places one order, perhaps several times at once.
    pub async fn order(&self, number: u64) {
        let requests = (0..self.at_once).map(|twin| self.ask(number, twin.into()));
        futures_util::future::join_all(requests).await;
    }

    /// Places one order and repeats it until the result is definite or the deadline passes. Twins
    /// begin at different processes.
    async fn ask(&self, number: u64, twin: usize) {
        let mut plan = orders::plan(self.seed, number);
        if !self.items.is_empty() {
            plan.items = self.items.iter().map(|name| (*name, 1)).collect();
        }
        let external_order_id = format!("fault-{}-{number}", self.seed);
        let items = plan.items.iter();
        let items: Vec<_> = items
            .map(|(name, qty)| (self.options[name].as_str(), *qty))
            .collect();
        let body = order(&external_order_id, &items).to_string();
        let sent = self.epoch.elapsed();
        let mut asked = Asked {
            external_order_id,
            partner: plan.partner,
            hung_up: plan.hang_up.is_some(),
            has_twins: self.at_once > 1,
            ..Asked::default()
        };
        while asked.settled.is_none() && self.epoch.elapsed() < self.deadline {
            let first = asked.requests == 0;
            let ingress = (plan.ingress + twin + asked.requests) % self.ingresses.len();
            asked.requests += 1;
            let sent = if first { sent } else { self.epoch.elapsed() };
            let hang_up = plan.hang_up.filter(|_| first);
            let exchange = exchange(
                &self.ingresses[ingress],
                &self.partners[plan.partner],
                &body,
                hang_up,
            );
            let answer = tokio::time::timeout(PATIENCE, exchange).await;
            let answer = answer.ok().and_then(Result::ok).flatten();
            let settled =
                answer.and_then(|(answer, bytes)| Settled::of(answer.status, &bytes[answer.body]));
            if let Some((settled, topups)) = settled {
                asked.sent = sent;
                asked.answered = self.epoch.elapsed();
                asked.settled = Some(settled);
                asked.topups = topups;
            } else {
                asked.unanswered += 1;
                let wait = Duration::from_millis(200).saturating_mul(asked.unanswered);
                tokio::time::sleep(wait.min(LONGEST_WAIT)).await;
            }
        }
        lock(&self.book).push(asked);
    }
}

/// Sends one request on a connection of its own, with a signature of this moment. Returns `None` if
/// the client hung up as planned.
async fn exchange(
    ingress: &str,
    partner: &Partner,
    body: &str,
    hang_up: Option<HangUp>,
) -> Result<Option<(Answer, Vec<u8>)>> {
    let request = raw::create_order(partner, body.as_bytes())?;
    let mut stream = raw::connect(ingress).await?;
    match hang_up {
        Some(HangUp::Sending(thousandths)) => {
            let part = request.len() * usize::try_from(thousandths)? / 1000;
            stream.write_all(&request[..part]).await?;
        }
        Some(HangUp::Sent(after)) => {
            stream.write_all(&request).await?;
            tokio::time::sleep(after).await;
        }
        Some(HangUp::Answered) => {
            stream.write_all(&request).await?;
            stream.readable().await?;
        }
        None => {
            stream.write_all(&request).await?;
            return raw::answer(stream).await.map(Some);
        }
    }
    Ok(None)
}

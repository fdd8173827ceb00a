//! Partners that follow the rule of the API: after no response, or a 5xx, a client repeats the same
//! `external_order_id` until the result is definite.

use crate::book::{Asked, Book, Clock, Settled};
use crate::orders::{self, HangUp, OrderPlan};
use anyhow::{Context, Result};
use signing::SecretKey;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use testkit::client::{ACCESS_KEY, ORDERS, SIGNATURE, TIMESTAMP, order};
use testkit::esimctl::Partner;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a client waits for a response.
const PATIENCE: Duration = Duration::from_secs(12);
/// The longest wait between two requests of one order.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The shared state of all clients.
pub struct Clients {
    pub seed: u64,
    pub clock: Clock,
    pub book: Arc<Book>,
    /// Host and port of each ingress.
    pub ingresses: Vec<String>,
    pub accounts: Vec<Account>,
    /// Option ids by name.
    pub options: BTreeMap<&'static str, String>,
    /// When clients give up, since the start of the run.
    pub deadline: Duration,
}

/// A partner's keys.
pub struct Account {
    access_key: String,
    secret: SecretKey,
}

impl Account {
    pub fn of(partner: &Partner) -> Result<Self> {
        Ok(Self {
            access_key: partner.access_key.clone(),
            secret: SecretKey::from_base64(&partner.secret_key)?,
        })
    }
}

/// A complete response.
struct Answer {
    status: u16,
    body: Vec<u8>,
}

impl Clients {
    /// Places one order and repeats it until the result is definite or the deadline passes.
    pub async fn order(&self, number: u64) {
        let plan = orders::plan(self.seed, number);
        let external_order_id = format!("fault-{}-{number}", self.seed);
        let body = self.body(&external_order_id, &plan);
        let sent = self.clock.now();
        let mut asked = Asked::new(external_order_id, plan.partner, plan.hang_up.is_some());
        while asked.settled.is_none() && self.clock.now() < self.deadline {
            let first = asked.requests == 0;
            let ingress = (plan.ingress + asked.requests) % self.ingresses.len();
            asked.requests += 1;
            let sent = if first { sent } else { self.clock.now() };
            let request = self.request(&plan, &body);
            let hang_up = plan.hang_up.filter(|_| first);
            let exchange = exchange(&self.ingresses[ingress], &request, hang_up);
            let answer = match tokio::time::timeout(PATIENCE, exchange).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) | Err(_) => None,
            };
            if let Some((settled, topups)) =
                answer.and_then(|answer| Settled::of(answer.status, &answer.body))
            {
                asked.sent = sent;
                asked.answered = self.clock.now();
                asked.settled = Some(settled);
                asked.topups = topups;
            } else {
                asked.unanswered += 1;
                let wait = Duration::from_millis(200).saturating_mul(asked.unanswered);
                tokio::time::sleep(wait.min(LONGEST_WAIT)).await;
            }
        }
        self.book.asked(asked);
    }

    fn body(&self, external_order_id: &str, plan: &OrderPlan) -> String {
        let items: Vec<(&str, u32)> = plan
            .items
            .iter()
            .filter_map(|(name, qty)| Some((self.options.get(name)?.as_str(), *qty)))
            .collect();
        order(external_order_id, &items).to_string()
    }

    /// A request signed for this moment.
    fn request(&self, plan: &OrderPlan, body: &str) -> String {
        let account = &self.accounts[plan.partner];
        let timestamp = runtime::clock::unix_seconds().to_string();
        let signature =
            signing::request::sign(&account.secret, "POST", ORDERS, &timestamp, &account.access_key);
        format!(
            "POST {ORDERS} HTTP/1.1\r\nhost: ingress\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n{ACCESS_KEY}: {}\r\n{TIMESTAMP}: {timestamp}\r\n{SIGNATURE}: {signature}\r\n\r\n{body}",
            body.len(),
            account.access_key,
        )
    }
}

/// One request on its own connection. `None`: the client hung up, or the response is incomplete.
async fn exchange(ingress: &str, request: &str, hang_up: Option<HangUp>) -> Result<Option<Answer>> {
    let mut stream = TcpStream::connect(ingress).await?;
    stream.set_nodelay(true)?;
    let request = request.as_bytes();
    if let Some(HangUp::Sending(thousandths)) = hang_up {
        let part = request.len() * usize::try_from(thousandths)? / 1000;
        stream.write_all(&request[..part]).await?;
        return Ok(None);
    }
    stream.write_all(request).await?;
    match hang_up {
        Some(HangUp::Sent(after)) => {
            tokio::time::sleep(after).await;
            return Ok(None);
        }
        Some(HangUp::Answered) => {
            stream.readable().await?;
            return Ok(None);
        }
        Some(HangUp::Sending(_)) | None => {}
    }
    let mut answer = Vec::with_capacity(1024);
    stream.read_to_end(&mut answer).await?;
    whole(&answer).map(Some)
}

/// Parses a response that ends with its connection; an incomplete one is an error.
fn whole(answer: &[u8]) -> Result<Answer> {
    let end = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .context("no whole head")?;
    let head = std::str::from_utf8(&answer[..end])?;
    let body = answer[end + 4..].to_vec();
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    let length = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .context("no content-length")?;
    anyhow::ensure!(
        length.1.trim().parse() == Ok(body.len()),
        "a part of the body is missing"
    );
    Ok(Answer { status, body })
}

//! The one ordering that the specification promises: create-order returns first, the webhook
//! follows.
//!
//! When a webhook arrives, a system call peeks at its order's socket, so neither this test's reads
//! nor tokio's readiness count. Ingress is stalled repeatedly: if it published the readiness event
//! before the answer, the webhook would have time to arrive first.

use crate::shop::{PATH, Shop, size, verdicts_come};
use anyhow::{Context, Result, ensure};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::{
    collections::BTreeSet, convert::Infallible, io::ErrorKind, net::TcpStream as Eye,
    time::Duration,
};
use testkit::raw::{self, Answer};
use testkit::receiver::{Answer as Acknowledgement, Received};
use testkit::stack::{Stack, Stage};
use testkit::{esimctl::Partner, process::Process};
use tokio::{io::AsyncWriteExt, net::TcpStream};

const LINES: usize = 32;
/// How many orders may be answered with an error.
const REFUSED: usize = 10;

/// A connection that is kept open, with one order at a time on it.
struct Line {
    number: usize,
    stream: TcpStream,
    /// Reads from the socket happen only under this lock.
    read: Arc<Mutex<Read>>,
}

/// What was read from a line so far.
struct Read {
    /// The same socket, outside of tokio.
    eye: Eye,
    /// Orders that were answered.
    answered: usize,
    /// The bytes read so far of the next answer.
    buffer: Vec<u8>,
}

impl Read {
    /// Whether the answer to this order of the line has been read, or is readable now.
    fn readable(&self, order: usize) -> Result<bool> {
        if order < self.answered {
            return Ok(true);
        }
        ensure!(order == self.answered, "order {order} was not even sent");
        let mut waiting = [0; 4096];
        let length = match self.eye.peek(&mut waiting) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(Answer::parse(&[&self.buffer, &waiting[..length]].concat()).is_some())
    }
}

impl Line {
    async fn open(number: usize, base_url: &str) -> Result<Self> {
        let stream = raw::connect(base_url).await?.into_std()?;
        let eye = stream.try_clone()?;
        let read = Read {
            eye,
            answered: 0,
            buffer: Vec::new(),
        };
        Ok(Self {
            number,
            stream: TcpStream::from_std(stream)?,
            read: Arc::new(Mutex::new(read)),
        })
    }

    /// Orders one after the other until `left` is zero.
    async fn order(
        mut self,
        partner: &Partner,
        option_id: &str,
        left: &AtomicUsize,
        refused: &AtomicUsize,
    ) -> Result<()> {
        for order in 0.. {
            let claimed = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
            if claimed.is_err() {
                break;
            }
            let id = format!("{}/{order}", self.number);
            let body = testkit::client::order(&id, &[(option_id, 1)]).to_string();
            self.stream
                .write_all(&raw::create_order(partner, body.as_bytes())?)
                .await?;
            let status = loop {
                if let Some(status) = self.read_on(order)? {
                    break status;
                }
                tokio::time::timeout(Duration::from_secs(30), self.stream.readable())
                    .await
                    .with_context(|| format!("order {id} was not answered"))??;
            };
            if status != 201 {
                // On a busy machine the stalled ingress may wait for a connection of PostgreSQL
                // until its deadline. Then nothing was bought, and another order takes its place.
                let refused = refused.fetch_add(1, Ordering::Relaxed) + 1;
                ensure!(refused <= REFUSED, "order {id} was answered with {status}");
                left.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Reads the available bytes; the status of the order's answer once it is complete.
    fn read_on(&self, order: usize) -> Result<Option<u16>> {
        let mut read = self.read.lock().expect("no thread panics with the lock");
        match self.stream.try_read_buf(&mut read.buffer) {
            Ok(0) => anyhow::bail!("the connection was closed"),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let Some(answer) = Answer::parse(&read.buffer) else {
            return Ok(None);
        };
        ensure!(
            matches!(answer.status, 201 | 500),
            "{}",
            String::from_utf8_lossy(&read.buffer)
        );
        let status = answer.status;
        ensure!(answer.body.end == read.buffer.len(), "more than an answer");
        read.buffer.clear();
        read.answered = order + 1;
        Ok(Some(status))
    }
}

/// `<line>/<order>` of the webhook's external id.
fn place(webhook: &Received) -> Option<(usize, usize)> {
    let (line, order) = webhook.json["external_order_id"]
        .as_str()?
        .split_once('/')?;
    Some((line.parse().ok()?, order.parse().ok()?))
}

/// Lets a process run only for moments, so that effects before its answer have time to become
/// visible.
async fn stall(process: &Process) -> Result<Infallible> {
    loop {
        process.pause()?;
        tokio::time::sleep(Duration::from_millis(30)).await;
        process.resume()?;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// `ORDERED` orders over all lines.
async fn no_webhook_overtakes_its_answer(placement_wait: &str) {
    let orders = usize::try_from(size("ORDERED", 400)).expect("a small number");
    let mut stack = Stack::builder()
        .env(Stage::Ingress, "PLACEMENT_WAIT", placement_wait)
        // A stalled ingress keeps orders in its queue, and lets heads of requests wait, for longer
        // than usual.
        .env(Stage::Ingress, "QUEUE_DEADLINE", "1m")
        .env(Stage::Ingress, "--head-timeout", "1m")
        .start()
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    if placement_wait != "0" {
        verdicts_come(&stack, &shop.client).await.unwrap();
    }
    // Ingress opens its database connections before it is stalled, since that takes long.
    let option = stack.option("ready").unwrap().to_owned();
    let ids: Vec<String> = (0..LINES).map(|number| format!("first {number}")).collect();
    let first = ids.iter().map(|id| shop.buy(id, &option, 1));
    futures_util::future::try_join_all(first).await.unwrap();
    shop.receiver
        .wait_for(LINES, Duration::from_secs(30))
        .await
        .unwrap();

    let opening = (0..LINES).map(|number| Line::open(number, &stack.base_url));
    let lines = futures_util::future::try_join_all(opening).await.unwrap();
    let reads: Vec<_> = lines.iter().map(|line| Arc::clone(&line.read)).collect();
    let overtaken = Arc::new(Mutex::new(Vec::new()));
    shop.receiver.answer(PATH, {
        let overtaken = Arc::clone(&overtaken);
        move |webhook| {
            let looked = place(webhook)
                .context("an unknown order")
                .and_then(|(line, order)| {
                    let read = reads.get(line).context("an unknown line")?;
                    let read = read.lock().expect("no thread panics with the lock");
                    ensure!(read.readable(order)?, "the answer was not readable yet");
                    Ok(())
                });
            if let Err(error) = looked {
                let id = &webhook.json["external_order_id"];
                overtaken
                    .lock()
                    .expect("no thread panics with the lock")
                    .push(format!("{id}: {error:#}"));
            }
            Acknowledgement::status(200)
        }
    });

    let left = AtomicUsize::new(orders);
    let refused = AtomicUsize::new(0);
    let ordering = lines
        .into_iter()
        .map(|line| line.order(&shop.partner, &option, &left, &refused));
    let all = async {
        futures_util::future::try_join_all(ordering).await?;
        shop.receiver
            .wait_for(LINES + orders, Duration::from_mins(1))
            .await
    };
    let ingress = stack.process(Stage::Ingress).unwrap();
    let received = tokio::select! {
        received = all => received,
        stalled = stall(ingress) => stalled.map(|never| match never {}),
    };
    ingress.resume().unwrap();
    let received = received.unwrap();
    let overtaken = overtaken.lock().unwrap();
    let some = &overtaken[..overtaken.len().min(10)];
    assert!(
        overtaken.is_empty(),
        "{} webhooks came before the answer: {some:?}",
        overtaken.len()
    );
    let delivered: BTreeSet<_> = received.iter().filter_map(place).collect();
    assert_eq!((delivered.len(), received.len()), (orders, LINES + orders));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_webhook_overtakes_an_answer_that_waits_for_the_provider() {
    no_webhook_overtakes_its_answer("2s").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_webhook_overtakes_an_answer_that_does_not_wait() {
    no_webhook_overtakes_its_answer("0").await;
}

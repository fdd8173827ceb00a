//! The clients of a partner of a cell that divides.

use super::cells::Cells;
use crate::shop::{Shop, fresh};
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use testkit::client::{Answer, Client};

/// How long the client waits before it repeats a request that got a 503.
const AGAIN: Duration = Duration::from_millis(50);

/// The clients of one partner: each orders one unit after the other, and repeats each order until the
/// answer is definite.
pub struct Load {
    pub clients: [Client; 2],
    pub options: [String; 2],
    /// The cell to which the proxy sends the partner.
    pub cell: AtomicUsize,
    pub stop: AtomicBool,
    pub moving: AtomicUsize,
    last: Mutex<Instant>,
    pub longest_gap: Mutex<Duration>,
    /// When the 201 of each topup was read.
    pub answered: Mutex<BTreeMap<String, Instant>>,
}

impl Load {
    pub fn new(cells: &Cells, shop: &Shop) -> Result<Self> {
        Ok(Self {
            clients: [
                cells.a.client(&shop.partner)?,
                cells.b.client(&shop.partner)?,
            ],
            options: [
                cells.a.option("ready")?.to_owned(),
                cells.a.option("delayed")?.to_owned(),
            ],
            cell: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            moving: AtomicUsize::new(0),
            last: Mutex::new(Instant::now()),
            longest_gap: Mutex::default(),
            answered: Mutex::default(),
        })
    }

    fn success(&self) {
        let mut last = self.last.lock().unwrap();
        let mut longest = self.longest_gap.lock().unwrap();
        *longest = longest.max(last.elapsed());
        *last = Instant::now();
    }

    /// Orders until the load is stopped. Returns the external ids of all orders that were answered
    /// with success, or with a 422 that says that they are stored.
    async fn order(&self, worker: usize) -> Result<Vec<String>> {
        let mut stored = Vec::new();
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let id = fresh(&format!("divide-{worker}"));
            let option = &self.options[number % 2];
            loop {
                let client = &self.clients[self.cell.load(Ordering::Relaxed)];
                let Ok(answer) = client.order(&id, &[(option, 1)]).await else {
                    tokio::time::sleep(AGAIN).await;
                    continue;
                };
                let taken = String::from_utf8_lossy(&answer.body).contains("already been taken");
                match answer.status {
                    201 => {
                        let read = Instant::now();
                        let mut answered = self.answered.lock().unwrap();
                        for product in answer.products()? {
                            answered.insert(product.topup_id, read);
                        }
                        break;
                    }
                    422 if taken => break,
                    status @ (429 | 500 | 503) => {
                        if status == 503 && code(&answer) == "partner_moving" {
                            self.moving.fetch_add(1, Ordering::Relaxed);
                        }
                        tokio::time::sleep(AGAIN).await;
                    }
                    status => bail!("{status} {}", String::from_utf8_lossy(&answer.body)),
                }
            }
            self.success();
            stored.push(id);
        }
        Ok(stored)
    }

    /// All workers, until the load is stopped.
    pub async fn run(&self, workers: usize) -> Result<BTreeSet<String>> {
        let lanes = (0..workers).map(|worker| self.order(worker));
        let lanes = futures_util::future::try_join_all(lanes).await?;
        Ok(lanes.into_iter().flatten().collect())
    }
}

/// The code of an error.
pub fn code(answer: &Answer) -> &str {
    let code = answer.headers.get("x-service-error");
    code.and_then(|code| code.to_str().ok()).unwrap_or_default()
}

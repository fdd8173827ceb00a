//! The orders: when each is sent, and the exchange itself.

use crate::book::Book;
use crate::wire::{Connection, topup_ids};
use crate::{Mode, Settings};
use anyhow::{Context, Result, ensure};
use signing::SecretKey;
use std::cell::Cell;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};
use testkit::client::ORDERS;
use testkit::esimctl::Partner;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use url::Url;

/// An exchange that takes longer counts as an error.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Pause of a connection after an error, so that a pipeline that is down isn't hammered.
const PAUSE: Duration = Duration::from_millis(50);

/// One partner's orders, prepared as far as possible.
pub struct Sender {
    address: String,
    path: String,
    host: String,
    access_key: String,
    secret: SecretKey,
    option_id: String,
    qty: u32,
    /// Begins each external order id; differs between runs.
    prefix: String,
    next: Cell<u64>,
}

impl Sender {
    /// `base_url`: `http://<host>:<port>`, possibly with a path in front of the endpoint's.
    pub fn new(base_url: &str, partner: &Partner, option_id: &str, qty: u32, run: &str) -> Result<Self> {
        let url: Url = base_url.parse().context("the base URL is no URL")?;
        ensure!(url.scheme() == "http", "the base URL must begin with http://");
        let host = url.host_str().context("the base URL names no host")?;
        let host = format!("{host}:{}", url.port_or_known_default().unwrap_or(80));
        Ok(Self {
            address: host.clone(),
            path: format!("{}{ORDERS}", url.path().trim_end_matches('/')),
            host,
            access_key: partner.access_key.clone(),
            secret: SecretKey::from_base64(&partner.secret_key)?,
            option_id: option_id.to_owned(),
            qty,
            prefix: format!("load-{run}"),
            next: Cell::new(0),
        })
    }

    /// Writes the next order, signed at `timestamp` (Unix time in seconds), into an empty buffer.
    fn write_order(&self, timestamp: &str, body: &mut Vec<u8>, request: &mut Vec<u8>) -> io::Result<()> {
        let number = self.next.replace(self.next.get() + 1);
        let Self {
            path,
            host,
            access_key,
            option_id,
            qty,
            prefix,
            ..
        } = self;
        let signature = signing::request::sign(&self.secret, "POST", path, timestamp, access_key);
        body.clear();
        write!(
            body,
            r#"{{"external_order_id":"{prefix}-{number}","products":[{{"option_id":"{option_id}","qty":{qty}}}]}}"#
        )?;
        request.clear();
        write!(
            request,
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             X-Service-Access-Key: {access_key}\r\nX-Service-Timestamp: {timestamp}\r\n\
             X-Service-Signature: {signature}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )?;
        request.extend_from_slice(body);
        Ok(())
    }

    async fn connect(&self) -> io::Result<Connection> {
        Connection::new(TcpStream::connect(&self.address).await?)
    }
}

/// When orders are sent.
pub struct Pace {
    start: Instant,
    end: Cell<Instant>,
    /// Time between two planned sends of the open loop.
    interval: Option<Duration>,
    planned: Cell<u32>,
    total: u32,
    qty: u32,
    permits: Option<Rc<Semaphore>>,
}

impl Pace {
    pub fn new(settings: &Settings, start: Instant) -> Self {
        let Settings {
            connections,
            rate,
            seconds,
            qty,
            mode,
            outstanding,
            ..
        } = *settings;
        let holds_back = mode == Mode::Deliver && rate.is_none();
        // Below one order per connection, connections would idle.
        let units = outstanding
            .unwrap_or(16 * connections)
            .max(connections.saturating_mul(qty));
        Self {
            start,
            end: Cell::new(start + Duration::from_secs(seconds.into())),
            interval: rate.map(|rate| Duration::from_secs(1) / rate),
            planned: Cell::new(0),
            total: rate.unwrap_or(0).saturating_mul(seconds),
            qty,
            permits: holds_back.then(|| Rc::new(Semaphore::new(units as usize))),
        }
    }

    /// Ends the window.
    pub fn stop(&self) {
        self.end.set(self.end.get().min(Instant::now()));
    }

    /// One permit per unit that may go without webhook; a webhook gives it back.
    pub fn permits(&self) -> Option<Rc<Semaphore>> {
        self.permits.clone()
    }

    /// Planned orders of the open loop that were never sent, because no connection was free before
    /// the window ended.
    pub fn unsent(&self) -> u32 {
        self.total - self.planned.get()
    }

    /// Waits until the next order is due. Returns the moment from which its latency counts; `None`
    /// when the window is over.
    async fn next(&self) -> Option<Instant> {
        if let Some(interval) = self.interval {
            let number = self.planned.get();
            let planned = self.start + interval * number;
            if number >= self.total || Instant::now() >= self.end.get() {
                return None;
            }
            self.planned.set(number + 1);
            tokio::time::sleep_until(planned.into()).await;
            return Some(planned);
        }
        if let Some(permits) = &self.permits {
            let held = tokio::time::timeout_at(self.end.get().into(), permits.acquire_many(self.qty)).await;
            held.ok()?.ok()?.forget();
        }
        let now = Instant::now();
        (now < self.end.get()).then_some(now)
    }

    fn give_back(&self) {
        if let Some(permits) = &self.permits {
            permits.add_permits(self.qty as usize);
        }
    }
}

/// One connection's life: sends orders, one at a time, until the window is over.
pub async fn work(sender: Rc<Sender>, pace: Rc<Pace>, book: Rc<Book>) {
    let mut connection = None;
    let (mut body, mut request) = (Vec::new(), Vec::new());
    while let Some(planned) = pace.next().await {
        let timestamp = runtime::clock::unix_seconds().to_string();
        let order = async {
            let mut open = match connection.take() {
                Some(open) => open,
                None => sender.connect().await?,
            };
            sender.write_order(&timestamp, &mut body, &mut request)?;
            open.write(&request).await?;
            let Some((head, answer)) = open.read().await? else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            let (status, close) = (head.status, head.close);
            if status == 201 {
                let ids: Vec<u128> = topup_ids(answer).collect();
                if ids.len() == sender.qty as usize {
                    book.accepted(planned, Instant::now(), &ids);
                } else {
                    book.failed("201 with the wrong topups", &String::from_utf8_lossy(answer));
                }
            } else {
                book.failed(&format!("status {status}"), &String::from_utf8_lossy(answer));
                pace.give_back();
            }
            Ok::<_, io::Error>((!close).then_some(open))
        };
        match tokio::time::timeout(TIMEOUT, order).await {
            Ok(Ok(open)) => connection = open,
            Ok(Err(error)) => {
                book.failed(&format!("no answer: {}", error.kind()), &error.to_string());
                pace.give_back();
                tokio::time::sleep(PAUSE).await;
            }
            Err(_) => {
                book.failed("no answer: timeout", &format!("no answer within {TIMEOUT:?}"));
                pace.give_back();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn pace(args: &[&str], start: Instant) -> Pace {
        let fixed = ["load", "--base-url", "http://127.0.0.1:1", "--database-url", "-"];
        Pace::new(&Settings::parse_from(fixed.iter().chain(args)), start)
    }

    #[tokio::test(start_paused = true)]
    async fn the_open_loop_plans_ahead_and_never_drifts() {
        let start = tokio::time::Instant::now().into_std();
        let pace = pace(&["--rate", "4", "--seconds", "3600"], start);
        for number in 0..6 {
            assert_eq!(
                pace.next().await,
                Some(start + Duration::from_millis(250) * number)
            );
            // A slow exchange: the plan is not moved by it.
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!(pace.unsent(), 4 * 3600 - 6);
    }

    #[tokio::test]
    async fn what_the_window_left_unsent_is_counted() {
        let start = Instant::now().checked_sub(Duration::from_secs(2)).unwrap();
        let pace = pace(&["--rate", "10", "--seconds", "1"], start);
        assert_eq!(pace.next().await, None);
        assert_eq!(pace.unsent(), 10);
    }

    #[tokio::test]
    async fn the_closed_loop_holds_back_in_deliver_mode_only() {
        let args = [
            "--connections",
            "1",
            "--qty",
            "2",
            "--outstanding",
            "4",
            "--seconds",
            "1",
        ];
        let free = pace(&args, Instant::now());
        assert!(free.permits().is_none());
        let held = pace(&[&args[..], &["--mode", "deliver"]].concat(), Instant::now());
        assert!(held.next().await.is_some() && held.next().await.is_some());
        assert_eq!(held.permits().unwrap().available_permits(), 0);
        held.give_back();
        assert!(held.next().await.is_some());
        assert!(
            held.next().await.is_none(),
            "the window ends while it is held back"
        );
    }

    #[test]
    fn orders_are_signed_and_numbered() {
        let partner: Partner = serde_json::from_value(serde_json::json!({
            "partner_id": "p", "name": "n", "environment": "sandbox", "access_key": "AK",
            "secret_key": "c2VjcmV0LWtleQ==", "webhook_url": null, "webhook_secret": "whsec_AAAA",
        }))
        .unwrap();
        let sender = Sender::new("http://127.0.0.1:18080/", &partner, "opt", 3, "run").unwrap();
        let (mut body, mut request) = (Vec::new(), Vec::new());
        for number in 0..2 {
            sender.write_order("1700000000", &mut body, &mut request).unwrap();
            let text = String::from_utf8(request.clone()).unwrap();
            let expected = format!(
                r#"{{"external_order_id":"load-run-{number}","products":[{{"option_id":"opt","qty":3}}]}}"#
            );
            assert!(
                text.ends_with(&format!("Content-Length: {}\r\n\r\n{expected}", expected.len())),
                "{text}"
            );
            assert!(
                text.starts_with("POST /api/v1/api_partner/orders HTTP/1.1\r\nHost: 127.0.0.1:18080\r\n")
            );
            // The same request is openssl's example in the signing library.
            assert!(text.contains("01b20bc3aefc2db24f3274ab516cd84157104aea28018b7bb6d04828df68a486"));
        }
    }
}

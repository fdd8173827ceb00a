//! Sends the orders. A loop decides when the next order is sent: the closed loop after the answer
//! to the last one, the open loop at fixed times.

use crate::book::Book;
use crate::settings::{Load, Mode};
use crate::wire::{Connection, topup_ids};
use anyhow::{Context, Result, ensure};
use signing::SecretKey;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};
use testkit::client::ORDERS;
use testkit::esimctl::Partner;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use url::Url;

/// The longest time for an exchange. A longer one counts as an error.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The pause of a connection after an error, so that a pipeline that is down does not get requests
/// as fast as it can refuse them.
const PAUSE: Duration = Duration::from_millis(50);

/// The orders of one partner. They are prepared as far as possible, so that sending them takes
/// little processor time.
pub struct Sender {
    address: String,
    path: String,
    host: String,
    access_key: String,
    secret: SecretKey,
    option_id: String,
    qty: u32,
    /// The beginning of each external order id. It differs between runs.
    prefix: String,
    next: Cell<u64>,
}

impl Sender {
    /// `base_url`: `http://<host>:<port>`, possibly with a path in front of the endpoint's.
    pub fn new(
        base_url: &str,
        partner: &Partner,
        option_id: &str,
        qty: u32,
        run: &str,
    ) -> Result<Self> {
        let url: Url = base_url.parse().context("the base URL is not a URL")?;
        ensure!(
            url.scheme() == "http",
            "the base URL must begin with http://"
        );
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

    /// Writes the next order into an empty buffer. It is signed with `timestamp`, a Unix time in
    /// seconds.
    fn write_order(
        &self,
        timestamp: &str,
        body: &mut Vec<u8>,
        request: &mut Vec<u8>,
    ) -> io::Result<()> {
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

/// The time window in which orders are sent. SIGINT may end it early.
pub struct Window {
    pub start: Instant,
    end: Cell<Instant>,
}

impl Window {
    pub fn new(start: Instant, length: Duration) -> Self {
        Self {
            start,
            end: Cell::new(start + length),
        }
    }

    pub fn stop(&self) {
        self.end.set(self.end.get().min(Instant::now()));
    }

    fn over(&self) -> bool {
        Instant::now() >= self.end.get()
    }
}

/// The closed loop, in which a connection sends its next order after the answer to the last one.
pub struct Pace {
    window: Rc<Window>,
    left: Cell<u64>,
    qty: u32,
    permits: Option<Rc<Semaphore>>,
}

impl Pace {
    pub fn new(load: &Load, window: Rc<Window>) -> Self {
        let left = if load.mode == Mode::Drain {
            u64::from(load.backlog.div_ceil(load.qty))
        } else {
            u64::MAX
        };
        let permits = |units| Rc::new(Semaphore::new(units as usize));
        Self {
            window,
            left: Cell::new(left),
            qty: load.qty,
            permits: load.outstanding().map(permits),
        }
    }

    /// A permit for each unit that may be without webhook. The webhook returns it.
    pub fn permits(&self) -> Option<Rc<Semaphore>> {
        self.permits.clone()
    }

    /// Waits until the next order may be sent. Returns the time from which its latency counts, or
    /// `None` after the end of the window.
    async fn next(&self) -> Option<Instant> {
        if let Some(permits) = &self.permits {
            let end = self.window.end.get().into();
            let held = tokio::time::timeout_at(end, permits.acquire_many(self.qty)).await;
            held.ok()?.ok()?.forget();
        }
        self.left.set(self.left.get().checked_sub(1)?);
        (!self.window.over()).then(Instant::now)
    }

    fn give_back(&self) {
        if let Some(permits) = &self.permits {
            permits.add_permits(self.qty as usize);
        }
    }
}

/// One connection of the closed loop: sends orders, one at a time, until the window is over.
pub async fn work(sender: Rc<Sender>, pace: Rc<Pace>, book: Rc<Book>) {
    let mut line = Line::default();
    while let Some(planned) = pace.next().await {
        if !line.order(&sender, planned, &book).await {
            pace.give_back();
        }
    }
}

/// The open loop, in which orders are due at fixed times that do not depend on answers.
pub struct Schedule {
    senders: Vec<Rc<Sender>>,
    window: Rc<Window>,
    book: Rc<Book>,
    interval: Duration,
    total: u32,
    most: u32,
    opened: Cell<u32>,
    /// The idle connections. The one that was used last is taken first, so that a low rate needs
    /// few connections.
    idle: RefCell<Vec<Line>>,
    /// The numbers of due orders that wait for a connection.
    due: RefCell<VecDeque<u32>>,
    sent: Cell<u32>,
    unsent: Cell<u32>,
}

impl Schedule {
    pub fn new(
        load: &Load,
        rate: u32,
        senders: Vec<Rc<Sender>>,
        window: Rc<Window>,
        book: Rc<Book>,
    ) -> Self {
        Self {
            senders,
            window,
            book,
            interval: Duration::from_secs(1) / rate,
            total: rate.saturating_mul(load.seconds),
            most: load.most_connections(),
            opened: Cell::new(0),
            idle: RefCell::default(),
            due: RefCell::default(),
            sent: Cell::new(0),
            unsent: Cell::new(0),
        }
    }

    pub fn at_most(mut self, orders: Option<u32>) -> Self {
        self.total = self.total.min(orders.unwrap_or(u32::MAX));
        self
    }

    /// The number of due orders that were not sent before the window ended, because every
    /// connection was busy.
    pub fn unsent(&self) -> u32 {
        self.unsent.get()
    }

    /// The maximum number of connections in use at once.
    pub fn opened(&self) -> u32 {
        self.opened.get()
    }

    fn planned(&self, number: u32) -> Instant {
        self.window.start + self.interval * number
    }

    /// Sends every order of the window. Returns after the last answer.
    pub async fn run(self: Rc<Self>) {
        let mut lines = JoinSet::new();
        for number in 0..self.total {
            let planned = self.planned(number);
            tokio::time::sleep_until(planned.min(self.window.end.get()).into()).await;
            if self.window.over() {
                break;
            }
            self.due.borrow_mut().push_back(number);
            if let Some(line) = self.line() {
                lines.spawn_local(Rc::clone(&self).serve(line));
            }
            while lines.try_join_next().is_some() {}
        }
        while lines.join_next().await.is_some() {}
        self.due.borrow_mut().clear();
        let end = self.window.end.get();
        let due = (0..self.total)
            .take_while(|number| self.planned(*number) < end)
            .count();
        let due = u32::try_from(due).unwrap_or(u32::MAX);
        self.unsent.set(due.saturating_sub(self.sent.get()));
    }

    fn line(&self) -> Option<Line> {
        self.idle.borrow_mut().pop().or_else(|| {
            let opened = self.opened.get();
            (opened < self.most).then(|| {
                self.opened.set(opened + 1);
                Line::default()
            })
        })
    }

    /// Sends the due orders on this connection, and then puts it back among the idle ones.
    async fn serve(self: Rc<Self>, mut line: Line) {
        while !self.window.over() {
            let Some(number) = self.due.borrow_mut().pop_front() else {
                break;
            };
            self.sent.set(self.sent.get() + 1);
            let sender = &self.senders[number as usize % self.senders.len()];
            line.order(sender, self.planned(number), &self.book).await;
        }
        self.idle.borrow_mut().push(line);
    }
}

/// A connection, which is opened when it is needed, and its buffers.
#[derive(Default)]
struct Line {
    connection: Option<Connection>,
    body: Vec<u8>,
    request: Vec<u8>,
}

impl Line {
    /// Sends one order and records its answer. Returns false if no topup was accepted.
    async fn order(&mut self, sender: &Sender, planned: Instant, book: &Book) -> bool {
        match tokio::time::timeout(TIMEOUT, self.exchange(sender, planned, book)).await {
            Ok(Ok(accepted)) => accepted,
            Ok(Err(error)) => {
                book.failed(&format!("no answer: {}", error.kind()), &error.to_string());
                tokio::time::sleep(PAUSE).await;
                false
            }
            Err(_) => {
                book.failed(
                    "no answer: timeout",
                    &format!("no answer within {TIMEOUT:?}"),
                );
                false
            }
        }
    }

    async fn exchange(
        &mut self,
        sender: &Sender,
        planned: Instant,
        book: &Book,
    ) -> io::Result<bool> {
        let mut open = match self.connection.take().filter(Connection::is_open) {
            Some(open) => open,
            None => sender.connect().await?,
        };
        sender.write_order(
            &runtime::clock::unix_seconds().to_string(),
            &mut self.body,
            &mut self.request,
        )?;
        open.write(&self.request).await?;
        let Some((head, answer)) = open.read().await? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let status = head.status;
        let close = head.close;
        let mut accepted = false;
        if status == 201 {
            let ids: Vec<u128> = topup_ids(answer).collect();
            accepted = ids.len() == sender.qty as usize;
            if accepted {
                book.accepted(planned, Instant::now(), &ids);
            } else {
                book.failed(
                    "201 with the wrong topups",
                    &String::from_utf8_lossy(answer),
                );
            }
        } else {
            book.failed(
                &format!("status {status}"),
                &String::from_utf8_lossy(answer),
            );
        }
        if !close {
            self.connection = Some(open);
        }
        Ok(accepted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use clap::Parser;
    use serde_json::json;
    use tokio::net::TcpListener;

    fn load(args: &[&str]) -> Load {
        let fixed = [
            "load",
            "--base-url",
            "http://127.0.0.1:1",
            "--database-url",
            "-",
        ];
        Settings::parse_from(fixed.iter().chain(args)).load
    }

    fn sender(base_url: &str) -> Sender {
        let partner: Partner = serde_json::from_value(json!({
            "partner_id": "p", "access_key": "AK", "secret_key": "c2VjcmV0LWtleQ==",
            "webhook_secret": "whsec_AAAA",
        }))
        .unwrap();
        Sender::new(base_url, &partner, "opt", 3, "run").unwrap()
    }

    async fn open_loop(args: &[&str], base_url: &str) -> (Rc<Schedule>, Rc<Book>) {
        let load = load(args);
        let window = Rc::new(Window::new(
            Instant::now(),
            Duration::from_secs(load.seconds.into()),
        ));
        let book = Rc::new(Book::default());
        let senders = vec![Rc::new(sender(base_url))];
        let schedule = Rc::new(Schedule::new(
            &load,
            load.rate.unwrap(),
            senders,
            window,
            Rc::clone(&book),
        ));
        tokio::task::LocalSet::new()
            .run_until(Rc::clone(&schedule).run())
            .await;
        (schedule, book)
    }

    #[tokio::test]
    async fn the_open_loop_counts_latency_from_the_planned_send() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}", server.local_addr().unwrap());
        // There is one connection, and each answer takes 0.1 s, so the orders of one second take
        // two.
        let answers = tokio::spawn(async move {
            let mut connection = Connection::new(server.accept().await.unwrap().0).unwrap();
            let mut number = 0;
            while let Some((_, _)) = connection.read().await.unwrap() {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let ids: Vec<_> = (0..3)
                    .map(|_| {
                        number += 1;
                        json!({"topup_id": format!("{number:026}")})
                    })
                    .collect();
                let body = json!({ "products": ids }).to_string();
                let head = format!(
                    "HTTP/1.1 201 Created\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                connection.write((head + &body).as_bytes()).await.unwrap();
            }
        });
        let args = [
            "--rate",
            "20",
            "--seconds",
            "1",
            "--connections",
            "1",
            "--qty",
            "3",
        ];
        let (schedule, book) = open_loop(&args, &base_url).await;
        drop(schedule.idle.take());
        answers.await.unwrap();
        let totals = book.totals();
        assert_eq!(totals.errors, 0, "{:?}", totals.errors_by_kind);
        assert_eq!(totals.orders + u64::from(schedule.unsent()), 20);
        assert!((5..=11).contains(&totals.orders), "{}", totals.orders);
        // If latencies counted from the real send, none would be much longer than 0.1 s.
        assert!(
            totals.answer.quantile(1.0) > 300.0,
            "{}",
            totals.answer.quantile(1.0)
        );
    }

    #[tokio::test]
    async fn the_closed_loop_holds_back_in_deliver_mode_only() {
        let pace = |args: &[&str]| {
            Pace::new(
                &load(args),
                Rc::new(Window::new(Instant::now(), Duration::from_secs(1))),
            )
        };
        let args = ["--connections", "1", "--qty", "2", "--outstanding", "4"];
        assert!(pace(&args).permits().is_none());
        let held = pace(&[&args[..], &["--mode", "deliver"]].concat());
        assert!(held.next().await.is_some() && held.next().await.is_some());
        assert_eq!(held.permits().unwrap().available_permits(), 0);
        held.give_back();
        assert!(held.next().await.is_some());
        assert!(
            held.next().await.is_none(),
            "the window ends while it is held back"
        );
    }

    #[tokio::test]
    async fn a_backlog_has_its_size_in_units() {
        let window = Rc::new(Window::new(Instant::now(), Duration::from_mins(1)));
        let pace = Pace::new(
            &load(&["--mode", "drain", "--backlog", "101", "--qty", "50"]),
            window,
        );
        for _ in 0..3 {
            assert!(pace.next().await.is_some());
        }
        assert_eq!(pace.next().await, None);
    }

    #[test]
    fn orders_are_signed_and_numbered() {
        let sender = sender("http://127.0.0.1:18080/");
        let mut body = Vec::new();
        let mut request = Vec::new();
        for number in 0..2 {
            sender
                .write_order("1700000000", &mut body, &mut request)
                .unwrap();
            let text = String::from_utf8(request.clone()).unwrap();
            let expected = format!(
                r#"{{"external_order_id":"load-run-{number}","products":[{{"option_id":"opt","qty":3}}]}}"#
            );
            assert!(
                text.ends_with(&format!(
                    "Content-Length: {}\r\n\r\n{expected}",
                    expected.len()
                )),
                "{text}"
            );
            assert!(text.starts_with(
                "POST /api/v1/api_partner/orders HTTP/1.1\r\nHost: 127.0.0.1:18080\r\n"
            ));
            // The same request is openssl's example in the signing library.
            assert!(
                text.contains("01b20bc3aefc2db24f3274ab516cd84157104aea28018b7bb6d04828df68a486")
            );
        }
    }
}

//! Carries out one run: creates partners, sends orders, and waits for their webhooks.

use crate::book::{Book, Latency};
use crate::counts::{self, Counted, Idle, Totals};
use crate::generator::{self, Pace, Schedule, Sender, Window};
use crate::peer;
use crate::report::{Circumstances, Report, approximate};
use crate::settings::{Disturbance, Load, Mode, System};
use crate::sink::Sink;
use crate::system::{self, Paused};
use crate::verdicts::Verdicts;
use anyhow::{Context, Result, bail};
use std::rc::Rc;
use std::time::{Duration, Instant};
use testkit::esimctl::{Esimctl, Partner};
use testkit::progress::Progress;
use tokio::task::JoinSet;
use uuid::Uuid;

/// The longest wait for outstanding webhooks, even if some still arrive within `--patience` of each
/// other.
const DRAIN: Duration = Duration::from_mins(10);
/// The longest time for sending a backlog.
const FILL: Duration = Duration::from_mins(10);

pub struct Measured {
    pub report: Report,
    pub answer: Latency,
    pub order_to_webhook: Latency,
}

/// Carries out the run `load`. `pgbench` is the reference rate that was measured right before.
pub async fn measure(load: &Load, system: &System, pgbench: Option<f64>) -> Result<Measured> {
    let Some(latency) = load.provider_latency else {
        return measure_as_it_is(load, system, pgbench).await;
    };
    set_provider_latency(system, latency).await?;
    let measured = measure_as_it_is(load, system, pgbench).await;
    set_provider_latency(system, Duration::ZERO).await?;
    measured
}

async fn set_provider_latency(system: &System, latency: Duration) -> Result<()> {
    let url = system.sandbox_url.as_deref();
    let url = url.context("--provider-latency needs SANDBOX_URL")?;
    let faults = format!(r#"{{"latency_ms":{}}}"#, latency.as_millis());
    let set = testkit::http::client()?
        .put(format!("{url}/faults"))
        .body(faults);
    let answer = set.send().await.context("cannot reach the sandbox")?;
    answer.error_for_status()?;
    Ok(())
}

async fn measure_as_it_is(load: &Load, system: &System, pgbench: Option<f64>) -> Result<Measured> {
    let book = Rc::new(Book::default());
    let sink = Sink::start(system.webhook_address, Rc::clone(&book)).await?;
    let senders = senders(load, system, &sink).await?;
    let idle = if load.counts {
        Some(Idle::watch(system).await?)
    } else {
        None
    };
    let counted = totals(load, system).await?;
    let counting = Instant::now();
    system::reset_peaks(&system.run_dir)?;
    let verdicts = Verdicts::read(system).await;
    let before = system::sample(&system.run_dir)?;

    let paused = (load.mode == Mode::Drain)
        .then(|| Paused::new(&system.run_dir, "provisioner"))
        .transpose()?;
    let start = Instant::now();
    let length = match load.mode {
        Mode::Drain => FILL,
        Mode::Accept | Mode::Deliver => Duration::from_secs(load.seconds.into()),
    };
    let window = Rc::new(Window::new(start, length));
    book.open(start + length);
    let mut workers = JoinSet::new();
    let mut disturbing = Vec::new();
    for one in &load.beside {
        let (schedule, sink) = disturb(load, one, system, &window).await?;
        workers.spawn_local(Rc::clone(&schedule).run());
        disturbing.push((schedule, sink));
    }
    let schedule = load.rate.filter(|_| load.mode != Mode::Drain).map(|rate| {
        Rc::new(Schedule::new(
            load,
            rate,
            senders.clone(),
            Rc::clone(&window),
            Rc::clone(&book),
        ))
    });
    if let Some(schedule) = &schedule {
        workers.spawn_local(Rc::clone(schedule).run());
    } else {
        let pace = Rc::new(Pace::new(load, Rc::clone(&window)));
        book.release_to(pace.permits());
        for sender in senders
            .iter()
            .cycle()
            .take(load.most_connections() as usize)
        {
            let sender = Rc::clone(sender);
            let pace = Rc::clone(&pace);
            workers.spawn_local(generator::work(sender, pace, Rc::clone(&book)));
        }
    }

    let mut progress = Progress::start();
    let mut line = Line::new(Rc::clone(&book), start);
    send(&window, workers, &mut progress, &mut line).await?;
    let sent = Instant::now();
    book.open(sent.min(start + length));
    drop(paused);
    wait_for_webhooks(&book, load.patience, DRAIN, &mut progress, &mut line).await;
    drop((progress, disturbing));

    let counted = match (idle, counted, totals(load, system).await?) {
        (Some(idle), Some(before), Some(after)) => Some(Counted {
            before,
            after,
            took: counting.elapsed(),
            idle,
        }),
        _ => None,
    };
    let after = system::sample(&system.run_dir)?;
    let added = verdicts
        .zip(Verdicts::read(system).await)
        .map(|(before, after)| after.since(&before));
    let circumstances = Circumstances {
        pgbench,
        start: Some(start),
        window: length.min(sent - start),
        drained: sent.elapsed(),
        drain_per_second: (load.mode == Mode::Drain)
            .then(|| drain_rate(&book.arrivals()))
            .flatten(),
        unsent: schedule.as_ref().map_or(0, |schedule| schedule.unsent()),
        opened: schedule
            .as_ref()
            .map_or_else(|| load.most_connections(), |schedule| schedule.opened()),
        verdicts: added,
        counted,
        before,
        after,
    };
    let totals = book.totals();
    Ok(Measured {
        report: Report::new(load, system, &book, &circumstances),
        answer: totals.answer.clone(),
        order_to_webhook: totals.order_to_webhook.clone(),
    })
}

/// The totals of the servers, once those of all earlier work are published.
async fn totals(load: &Load, system: &System) -> Result<Option<Totals>> {
    if !load.counts {
        return Ok(None);
    }
    counts::published().await;
    Ok(Some(Totals::read(system).await?))
}

/// Prepares the orders of a disturbance. Their webhooks go to a sink and a book of their own.
async fn disturb(
    load: &Load,
    one: &Disturbance,
    system: &System,
    window: &Rc<Window>,
) -> Result<(Rc<Schedule>, Sink)> {
    let load = Load {
        option: one.option.clone(),
        rate: Some(one.rate),
        partners: 1,
        qty: 1,
        ..load.clone()
    };
    let book = Rc::new(Book::default());
    let sink = Sink::start(system.webhook_address, Rc::clone(&book)).await?;
    let senders = senders(&load, system, &sink).await?;
    let schedule =
        Schedule::new(&load, one.rate, senders, Rc::clone(window), book).at_most(one.count);
    Ok((Rc::new(schedule), sink))
}

/// Creates the partners of a run, each with an endpoint at the sink.
pub async fn partners(load: &Load, sink: &Sink) -> Result<Vec<Partner>> {
    let esimctl = Esimctl::new([]);
    let run = Uuid::now_v7().simple();
    let mut partners = Vec::new();
    for number in 0..load.partners {
        let name = format!("load {run} {number}");
        let url = sink.url(number);
        partners.push(esimctl.create_partner(&name, "sandbox", Some(&url)).await?);
    }
    Ok(partners)
}

async fn senders(load: &Load, system: &System, sink: &Sink) -> Result<Vec<Rc<Sender>>> {
    let (partners, option_id) = if system.peer {
        let option_id = domain::sandbox_option(&load.option).to_string();
        (peer::partners(load, system, sink).await?, option_id)
    } else {
        let option = Esimctl::new([]).sandbox_option(&load.option).await?;
        (partners(load, sink).await?, option.option_id)
    };
    let run = Uuid::now_v7().simple().to_string();
    let sender = |partner: &Partner| {
        Sender::new(&system.base_url, partner, &option_id, load.qty, &run).map(Rc::new)
    };
    partners.iter().map(sender).collect()
}

/// Sends the orders of the window, and waits for every answer. SIGINT ends the window early.
async fn send(
    window: &Window,
    mut workers: JoinSet<()>,
    progress: &mut Progress,
    line: &mut Line,
) -> Result<()> {
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut stopping = false;
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.tick().await;
    while !workers.is_empty() {
        tokio::select! {
            joined = workers.join_next() => if let Some(Err(error)) = joined { bail!("a connection's task died: {error}") },
            signal = &mut interrupted, if !stopping => {
                signal?;
                stopping = true;
                window.stop();
            }
            _ = second.tick() => progress.show(line.next("sending")),
        }
    }
    Ok(())
}

/// Waits until every webhook has arrived, none has arrived for `patience`, or `longest` has passed.
pub async fn wait_for_webhooks(
    book: &Book,
    patience: Duration,
    longest: Duration,
    progress: &mut Progress,
    line: &mut Line,
) {
    let began = Instant::now();
    let mut second = tokio::time::interval(Duration::from_secs(1));
    let mut last = (book.waiting(), began);
    while book.waiting() > 0 && began.elapsed() < longest && last.1.elapsed() < patience {
        tokio::select! {
            () = book.nothing_waiting() => {}
            _ = second.tick() => {
                progress.show(line.next("waiting for the rest"));
                if book.waiting() != last.0 {
                    last = (book.waiting(), Instant::now());
                }
            }
        }
    }
}

/// The webhooks per second without the first and the last twentieth of them. It is `None` if there
/// are too few.
pub fn drain_rate(arrivals: &[Instant]) -> Option<f64> {
    let cut = arrivals.len() / 20;
    let middle = &arrivals[cut..arrivals.len() - cut];
    let first = middle.first()?;
    let last = middle.last()?;
    let seconds = (*last - *first).as_secs_f64();
    let count = approximate(u64::try_from(middle.len()).ok()?) - 1.0;
    (seconds > 0.0).then(|| count / seconds)
}

pub struct Line {
    book: Rc<Book>,
    start: Instant,
    orders: u64,
    webhooks: u64,
}

impl Line {
    pub fn new(book: Rc<Book>, start: Instant) -> Self {
        Self {
            book,
            start,
            orders: 0,
            webhooks: 0,
        }
    }

    fn next(&mut self, what: &str) -> String {
        let totals = self.book.totals();
        let orders = totals.orders - self.orders;
        let webhooks = totals.webhooks - self.webhooks;
        (self.orders, self.webhooks) = (totals.orders, totals.webhooks);
        let elapsed = self.start.elapsed().as_secs();
        let waiting = self.book.waiting();
        let errors = totals.errors;
        format!(
            "{elapsed:>4} s  {what}: {orders:>6} orders/s {webhooks:>6} webhooks/s {waiting:>7} topups waiting {errors:>4} errors"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drain_rate_leaves_out_stragglers() {
        let start = Instant::now();
        let mut arrivals: Vec<Instant> = (0..1000)
            .map(|n| start + Duration::from_millis(n))
            .collect();
        arrivals.push(start + Duration::from_secs(30));
        let rate = drain_rate(&arrivals).unwrap();
        assert!((rate - 1000.0).abs() < 1.0, "{rate}");
        assert_eq!(drain_rate(&[]), None);
        assert_eq!(drain_rate(&[start]), None);
    }
}

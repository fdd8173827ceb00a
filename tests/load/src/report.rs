//! The figures of one run: as text for people, and as JSON for comparisons with later runs.

use crate::arrived::{Arrived, arrived};
use crate::book::{Book, Errors, Latency};
use crate::counts::{Counted, Counts, Idle};
pub use crate::number::{approximate, round};
use crate::peer;
use crate::settings::{Disturbance, Load, Mode, System};
use crate::system::{self, Build, Usage};
use crate::verdicts::Verdicts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};
use testkit::table::table;

/// The results of a run. `--json` and `--out` write them unchanged. The head of `main.rs` says
/// exactly what each figure measures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub mode: Mode,
    /// The number of connections of the closed loop. In the open loop it is the maximum that was in
    /// use at once.
    pub connections: u32,
    /// The rate of the open loop in orders per second. It is absent in the closed loop.
    pub rate: Option<u32>,
    /// In a step of a ladder, `rate` as a share of the saturation.
    pub of_saturation: Option<f64>,
    pub seconds: f64,
    pub qty: u32,
    pub partners: u32,
    pub option: String,
    /// Orders beside the measured ones.
    #[serde(default)]
    pub beside: Vec<Disturbance>,
    /// How long each call to the provider took beyond its usual time.
    #[serde(default)]
    pub provider_latency_ms: Option<u64>,
    pub placement_wait: String,
    pub build: Build,
    pub cores: usize,
    /// The transactions per second of pgbench, right before the run.
    pub pgbench: Option<f64>,

    pub accepted_orders: u64,
    pub accepted_orders_per_second: f64,
    pub webhooks: u64,
    pub webhooks_per_second: f64,
    /// Of `--mode drain`: webhooks per second of the backlog, without its first and last twentieth.
    pub drain_per_second: Option<f64>,
    pub answer: Option<Quantiles>,
    pub order_to_webhook: Option<Quantiles>,
    /// Placements whose verdict ingress waited for. Absent if its metrics are unreadable.
    pub verdicts: Option<Verdicts>,

    pub accepted_topups: u64,
    /// The number of topups whose webhook arrived within 5 s after the order was sent.
    #[serde(default)]
    pub within_5_s: u64,
    /// How many webhooks had arrived at some times.
    #[serde(default)]
    pub webhooks_over_time: Vec<Arrived>,
    /// The number of accepted topups without webhook. It must be 0, because otherwise something was
    /// lost or is very late.
    pub missing_webhooks: u64,
    pub duplicate_webhooks: u64,
    /// The number of webhooks of orders whose answer was not a 201 or was lost.
    pub webhooks_without_answer: u64,
    /// The number of orders that the open loop could not send in the window. They are not part of
    /// the latencies, so these are too good if it is not 0.
    pub unsent_orders: u32,
    pub errors: BTreeMap<String, Errors>,
    /// The time from the last answer to the last webhook, or to the end of the wait.
    pub drain_seconds: f64,
    /// What the servers did per accepted order, beyond what the idle system does.
    #[serde(default)]
    pub counts: Option<Counts>,
    #[serde(default)]
    pub idle: Option<Idle>,
    pub processes: BTreeMap<String, Process>,
}

/// The input of [`Report::new`] in addition to the book.
#[derive(Default)]
pub struct Circumstances {
    pub pgbench: Option<f64>,
    /// When the first order was sent.
    pub start: Option<Instant>,
    pub window: Duration,
    /// The time from the last answer until the last webhook arrived or the wait ended.
    pub drained: Duration,
    pub drain_per_second: Option<f64>,
    pub unsent: u32,
    pub opened: u32,
    pub verdicts: Option<Verdicts>,
    pub counted: Option<Counted>,
    pub before: system::Sample,
    pub after: system::Sample,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(
    clippy::struct_field_names,
    reason = "the unit belongs to the name in the JSON output"
)]
pub struct Quantiles {
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Process {
    pub cpu_seconds: f64,
    /// Microseconds per accepted order.
    pub cpu_us_per_order: f64,
    pub peak_memory_mib: f64,
}

impl Report {
    pub fn new(load: &Load, system: &System, book: &Book, run: &Circumstances) -> Self {
        let totals = book.totals();
        let per_second = |count: u64| round(approximate(count) / run.window.as_secs_f64());
        let process = |(name, usage): (&String, &Usage)| {
            let before = run
                .before
                .get(name)
                .map(|usage| usage.cpu)
                .unwrap_or_default();
            let cpu = usage.cpu.saturating_sub(before);
            let orders = approximate(totals.orders.max(1));
            let process = Process {
                cpu_seconds: cpu.as_secs_f64(),
                cpu_us_per_order: round(cpu.as_secs_f64() * 1e6 / orders),
                peak_memory_mib: round(approximate(usage.peak_memory_kib) / 1024.0),
            };
            (name.clone(), process)
        };
        Self {
            mode: load.mode,
            connections: run.opened,
            rate: load.rate,
            of_saturation: None,
            seconds: round(run.window.as_secs_f64()),
            qty: load.qty,
            partners: load.partners,
            option: load.option.clone(),
            beside: load.beside.clone(),
            provider_latency_ms: load
                .provider_latency
                .and_then(|latency| u64::try_from(latency.as_millis()).ok()),
            placement_wait: if system.peer {
                peer::PLACEMENT_WAIT.to_owned()
            } else {
                system::placement_wait(&system.run_dir)
            },
            build: system::build(&system.run_dir),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            pgbench: run.pgbench.map(round),
            accepted_orders: totals.orders,
            accepted_orders_per_second: per_second(totals.orders_in_window),
            webhooks: totals.webhooks,
            webhooks_per_second: per_second(totals.webhooks_in_window),
            drain_per_second: run.drain_per_second.map(round),
            answer: Quantiles::of(&totals.answer),
            order_to_webhook: Quantiles::of(&totals.order_to_webhook),
            verdicts: run.verdicts.clone(),
            accepted_topups: totals.topups,
            within_5_s: totals.order_to_webhook.within(Duration::from_secs(5)),
            webhooks_over_time: run
                .start
                .map(|start| arrived(&book.arrivals(), start))
                .unwrap_or_default(),
            missing_webhooks: book.waiting(),
            duplicate_webhooks: totals.duplicates,
            webhooks_without_answer: book.unasked(),
            unsent_orders: run.unsent,
            errors: totals.errors_by_kind.clone(),
            drain_seconds: round(run.drained.as_secs_f64()),
            counts: (run.counted.as_ref()).map(|counted| counted.per_order(totals.orders)),
            idle: run.counted.as_ref().map(|counted| counted.idle.clone()),
            processes: run.after.iter().map(process).collect(),
        }
    }

    /// Whether orders were accepted and the webhook of every accepted topup arrived.
    pub fn complete(&self) -> bool {
        self.accepted_orders > 0 && self.missing_webhooks == 0
    }

    /// The main rate of the mode, by name.
    pub fn main_rate(&self) -> (&'static str, f64) {
        match self.mode {
            Mode::Accept => ("accepted", self.accepted_orders_per_second),
            Mode::Deliver => ("deliver", self.webhooks_per_second),
            Mode::Drain => ("drain", self.drain_per_second.unwrap_or_default()),
        }
    }

    /// Processor time per accepted order, of all processes, in microseconds.
    pub fn cpu_us_per_order(&self) -> f64 {
        self.processes
            .values()
            .map(|one| one.cpu_us_per_order)
            .sum()
    }

    /// Responses with status 503 or 429.
    pub fn shed(&self) -> u64 {
        let shed = ["status 503", "status 429"].iter();
        shed.filter_map(|kind| self.errors.get(*kind))
            .map(|errors| errors.count)
            .sum()
    }

    /// The share of webhooks within 5 s, and the orders beside.
    fn isolation(&self) -> String {
        let within = self.within_5_s;
        let topups = self.accepted_topups;
        let share = 100.0 * approximate(within) / approximate(topups.max(1));
        let beside = self.beside.iter().map(
            |Disturbance {
                 option,
                 rate,
                 count,
             }| {
                let most = count.map_or_else(String::new, |count| format!(", {count} in all"));
                format!("\nbeside: `{option}`, {rate} orders/s{most}")
            },
        );
        format!(
            "within 5 s: {within} of {topups} webhooks, {share:.2} %{}",
            beside.collect::<String>()
        )
    }

    /// Verdicts that ingress waited for per 100 accepted orders, if its metrics are known.
    pub fn waited_percent(&self) -> Option<f64> {
        let (waited, _) = self.verdicts.as_ref()?.counts();
        Some(100.0 * approximate(waited) / approximate(self.accepted_orders.max(1)))
    }

    /// Whether ingress waited for verdicts, as a sentence.
    pub fn waited(&self) -> String {
        let wait = &self.placement_wait;
        let Some((verdicts, share)) = self.verdicts.as_ref().zip(self.waited_percent()) else {
            return format!("PLACEMENT_WAIT {wait}; ingress's metrics can't be read");
        };
        let (waited, in_time) = verdicts.counts();
        format!(
            "PLACEMENT_WAIT {wait}; ingress waited for {waited} verdicts ({share:.0} per 100 accepted orders), {in_time} came in time"
        )
    }
}

impl Quantiles {
    fn of(latency: &Latency) -> Option<Self> {
        let quantile = |quantile| round(latency.quantile(quantile));
        (!latency.is_empty()).then(|| Self {
            p50_ms: quantile(0.5),
            p95_ms: quantile(0.95),
            p99_ms: quantile(0.99),
            max_ms: quantile(1.0),
        })
    }
}

impl Report {
    /// What did not go as planned, and whether everything accepted has arrived.
    fn write_losses(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        for (kind, Errors { count, first }) in &self.errors {
            writeln!(f, "error: {count} x {kind}, first: {first}")?;
        }
        if self.unsent_orders > 0 {
            writeln!(
                f,
                "{} planned orders were not sent: every connection was busy. No latency holds them",
                self.unsent_orders
            )?;
        }
        if self.webhooks_without_answer > 0 {
            writeln!(
                f,
                "{} webhooks of orders whose answer was lost",
                self.webhooks_without_answer
            )?;
        }
        writeln!(f, "{} duplicate webhooks", self.duplicate_webhooks)?;
        let arrived = self.accepted_topups - self.missing_webhooks;
        writeln!(f, "{} orders accepted", self.accepted_orders)?;
        write!(
            f,
            "{arrived} of {} accepted topups arrived, ",
            self.accepted_topups
        )?;
        if self.missing_webhooks == 0 {
            write!(
                f,
                "the last {:.1} s after the last answer",
                self.drain_seconds
            )?;
        } else {
            write!(
                f,
                "{} ARE MISSING, given up after {:.1} s",
                self.missing_webhooks, self.drain_seconds
            )?;
        }
        Ok(())
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let pace = match self.rate {
            Some(rate) => format!(
                "open loop, {rate} orders/s, up to {} connections",
                self.connections
            ),
            None => format!("closed loop, {} connections", self.connections),
        };
        let Self {
            mode,
            seconds,
            qty,
            option,
            partners,
            build,
            cores,
            ..
        } = self;
        writeln!(
            f,
            "mode {}: {pace}, {seconds} s, {qty} x `{option}` per order",
            mode.name()
        )?;
        writeln!(
            f,
            "{partners} partners, {build:?} build, {cores} cores, durable commits checked"
        )?;
        writeln!(f, "{}\n", self.waited())?;
        if let Some(latency) = self.provider_latency_ms {
            writeln!(f, "each call to the provider takes {latency} ms longer\n")?;
        }
        if self.build != Build::Release {
            writeln!(
                f,
                "NOT A RELEASE BUILD: these figures say nothing about speed\n"
            )?;
        }
        let ratio = |rate: f64| {
            self.pgbench
                .map_or_else(String::new, |pgbench| format!("{:.3}", rate / pgbench))
        };
        let mut rates = vec![
            ("accepted orders", self.accepted_orders_per_second),
            ("webhooks", self.webhooks_per_second),
        ];
        rates.extend(
            self.drain_per_second
                .map(|drain| ("drain of the backlog", drain)),
        );
        rates.extend(
            self.pgbench
                .map(|pgbench| ("pgbench transactions", pgbench)),
        );
        let rows = rates
            .iter()
            .map(|(name, rate)| [(*name).into(), format!("{rate:.1}"), ratio(*rate)]);
        writeln!(f, "{}\n", table("rate | per s | ÷ pgbench", rows))?;
        let latencies = [
            ("answer", &self.answer),
            ("order to webhook", &self.order_to_webhook),
        ];
        let rows = latencies
            .iter()
            .map(|(name, latency)| quantiles(name, latency.as_ref()));
        writeln!(
            f,
            "{}\n",
            table("latency in ms | p50 | p95 | p99 | max", rows)
        )?;
        writeln!(f, "{}\n", self.isolation())?;
        let rows = self.processes.iter().map(|(name, one)| {
            let figures = [one.cpu_seconds, one.cpu_us_per_order, one.peak_memory_mib];
            [name.clone()]
                .into_iter()
                .chain(figures.map(|figure| format!("{figure:.1}")))
        });
        writeln!(
            f,
            "{}",
            table("process | processor s | µs per order | peak MiB", rows)
        )?;
        writeln!(
            f,
            "all processes: {:.0} µs per order",
            self.cpu_us_per_order()
        )?;

        if let Some(counts) = &self.counts {
            writeln!(f, "\n{}", counts.table("per order"))?;
        }
        if let Some(idle) = &self.idle {
            writeln!(f, "\n{}", idle.table())?;
        }
        self.write_losses(f)
    }
}

fn quantiles(name: &str, quantiles: Option<&Quantiles>) -> Vec<String> {
    let figures = quantiles.map(|one| [one.p50_ms, one.p95_ms, one.p99_ms, one.max_ms]);
    let figures = figures
        .into_iter()
        .flatten()
        .map(|figure| format!("{figure:.1}"));
    [name.to_owned()].into_iter().chain(figures).collect()
}

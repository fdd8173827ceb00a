//! The figures, for people and for machines.

use crate::book::{Book, Latency};
use crate::generator::Pace;
use crate::system::{self, Build, Sample, Usage};
use crate::{Mode, Settings};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

/// Everything a run found out; `--json` prints it as it is. Definitions are at the top of the crate.
#[derive(Debug, Serialize)]
pub struct Report {
    mode: Mode,
    connections: u32,
    /// Orders per second of the open loop; absent in the closed loop.
    rate: Option<u32>,
    /// Length of the window.
    seconds: u32,
    qty: u32,
    partners: u32,
    option: String,
    placement_wait: String,
    build: Build,
    cores: usize,

    accepted_orders: u64,
    accepted_orders_per_second: f64,
    webhooks: u64,
    webhooks_per_second: f64,
    answer: Option<Quantiles>,
    order_to_webhook: Option<Quantiles>,

    accepted_topups: u64,
    /// Accepted, and no webhook came: the number that must be 0.
    missing_webhooks: u64,
    duplicate_webhooks: u64,
    /// Of orders whose answer was no 201 or was lost.
    webhooks_without_answer: u64,
    /// Orders that the open loop planned and couldn't send in the window.
    unsent_orders: u32,
    errors: BTreeMap<String, Errors>,
    /// From the last answer to the last webhook, or until it was given up.
    drain_seconds: f64,
    processes: BTreeMap<String, Process>,
}

#[derive(Debug, Serialize)]
#[expect(
    clippy::struct_field_names,
    reason = "the unit belongs to the name in the JSON output"
)]
struct Quantiles {
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

#[derive(Debug, Serialize)]
struct Errors {
    count: u64,
    first: String,
}

#[derive(Debug, Serialize)]
struct Process {
    cpu_seconds: f64,
    /// Microseconds per accepted order.
    cpu_us_per_order: f64,
    peak_memory_mib: f64,
}

impl Report {
    pub fn new(
        settings: &Settings,
        book: &Book,
        pace: &Pace,
        drained: Duration,
        before: &Sample,
        after: &Sample,
    ) -> Self {
        let totals = book.totals();
        let per_second = |count: u64| round(approximate(count) / f64::from(settings.seconds));
        let process = |(name, usage): (&String, &Usage)| {
            let cpu = usage
                .cpu
                .saturating_sub(before.get(name).map(|usage| usage.cpu).unwrap_or_default());
            let orders = approximate(totals.orders.max(1));
            let process = Process {
                cpu_seconds: cpu.as_secs_f64(),
                cpu_us_per_order: round(cpu.as_secs_f64() * 1e6 / orders),
                peak_memory_mib: round(approximate(usage.peak_memory_kib) / 1024.0),
            };
            (name.clone(), process)
        };
        let errors = totals.errors_by_kind.iter();
        Self {
            mode: settings.mode,
            connections: settings.connections,
            rate: settings.rate,
            seconds: settings.seconds,
            qty: settings.qty,
            partners: settings.partners,
            option: settings.option.clone(),
            placement_wait: system::placement_wait(&settings.run_dir),
            build: system::build(&settings.run_dir),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            accepted_orders: totals.orders,
            accepted_orders_per_second: per_second(totals.orders_in_window),
            webhooks: totals.webhooks,
            webhooks_per_second: per_second(totals.webhooks_in_window),
            answer: Quantiles::of(&totals.answer),
            order_to_webhook: Quantiles::of(&totals.order_to_webhook),
            accepted_topups: totals.topups,
            missing_webhooks: book.waiting(),
            duplicate_webhooks: totals.duplicates,
            webhooks_without_answer: book.unasked(),
            unsent_orders: pace.unsent(),
            errors: errors
                .map(|(kind, (count, first))| {
                    (
                        kind.clone(),
                        Errors {
                            count: *count,
                            first: first.clone(),
                        },
                    )
                })
                .collect(),
            drain_seconds: round(drained.as_secs_f64()),
            processes: after.iter().map(process).collect(),
        }
    }

    /// Orders were accepted, and the webhook of every accepted topup came.
    pub fn complete(&self) -> bool {
        self.accepted_orders > 0 && self.missing_webhooks == 0
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

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let pace = match self.rate {
            Some(rate) => format!("open loop, {rate} orders/s over {} connections", self.connections),
            None => format!("closed loop, {} connections", self.connections),
        };
        let mode = if self.mode == Mode::Accept {
            "accept"
        } else {
            "deliver"
        };
        writeln!(
            f,
            "mode {mode}: {pace}, {} s, {} x `{}` per order",
            self.seconds, self.qty, self.option
        )?;
        writeln!(
            f,
            "{} partners, PLACEMENT_WAIT {}, {:?} build, {} cores, durable commits checked\n",
            self.partners, self.placement_wait, self.build, self.cores
        )?;
        if self.build != Build::Release {
            writeln!(f, "NOT A RELEASE BUILD: these figures say nothing about speed\n")?;
        }
        writeln!(f, "accepted orders/s {:>12.1}", self.accepted_orders_per_second)?;
        writeln!(f, "webhooks/s        {:>12.1}\n", self.webhooks_per_second)?;
        writeln!(
            f,
            "latency in ms     {:>12} {:>10} {:>10} {:>10}",
            "p50", "p95", "p99", "max"
        )?;
        quantiles(f, "answer", self.answer.as_ref())?;
        quantiles(f, "order to webhook", self.order_to_webhook.as_ref())?;

        writeln!(
            f,
            "\nprocess           {:>12} {:>10} {:>10}",
            "cpu s", "us/order", "peak MiB"
        )?;
        for (name, process) in &self.processes {
            let Process {
                cpu_seconds,
                cpu_us_per_order,
                peak_memory_mib,
            } = process;
            writeln!(
                f,
                "{name:<18}{cpu_seconds:>12.2} {cpu_us_per_order:>10.1} {peak_memory_mib:>10.1}"
            )?;
        }

        writeln!(f)?;
        for (kind, Errors { count, first }) in &self.errors {
            writeln!(f, "error: {count} x {kind}, first: {first}")?;
        }
        if self.unsent_orders > 0 {
            writeln!(
                f,
                "{} planned orders were not sent: no connection was free",
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
            write!(f, "the last {:.1} s after the last answer", self.drain_seconds)?;
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

fn quantiles(f: &mut Formatter<'_>, name: &str, quantiles: Option<&Quantiles>) -> fmt::Result {
    match quantiles {
        Some(Quantiles {
            p50_ms,
            p95_ms,
            p99_ms,
            max_ms,
        }) => {
            writeln!(
                f,
                "{name:<18}{p50_ms:>12.1} {p95_ms:>10.1} {p99_ms:>10.1} {max_ms:>10.1}"
            )
        }
        None => writeln!(f, "{name:<18}{:>12}", "none"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of one run are far below 2^52")]
fn approximate(count: u64) -> f64 {
    count as f64
}

/// One decimal: more would claim more than was measured.
fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

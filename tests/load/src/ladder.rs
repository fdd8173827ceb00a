//! Measures one rate after the other in an open loop, from idle to twice the saturation. The steps
//! show how latencies and the cost of an order depend on the load.

use crate::chart::{Columns, Line, Plot};
use crate::document::{self, Document};
use crate::pgbench;
use crate::report::Report;
use crate::run::{Measured, measure};
use crate::settings::{Load, Mode, Settings};
use anyhow::{Result, bail, ensure};
use std::path::Path;
use testkit::table::{figure, table};

/// Below this share of the saturation, the processor time per order says little, because most of it
/// is spent on idle work.
const IDLE: f64 = 0.05;
/// The number of connections of the closed loop that finds the saturation.
const CONNECTIONS: u32 = 256;
/// The steps, as shares of the saturation.
const SHARES: [f64; 10] = [0.02, 0.1, 0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0];

type Figure = fn(&Report) -> Option<f64>;

/// Finds the saturation with a closed loop, and then measures each step with an open one.
pub async fn climb(settings: &Settings) -> Result<Vec<Measured>> {
    let Settings { load, system, .. } = settings;
    let pgbench = pgbench::measure(system, load.pgbench_seconds).await?;
    let closed = Load {
        connections: load.connections.or(Some(CONNECTIONS)),
        rate: None,
        seconds: load.seconds.div_ceil(2),
        ..load.clone()
    };
    eprintln!("closed loop, to find the saturation");
    let found = measure(&closed, system, pgbench).await?;
    let saturation = match load.mode {
        Mode::Accept => found.report.accepted_orders_per_second,
        Mode::Deliver => found.report.webhooks_per_second / f64::from(load.qty),
        Mode::Drain => bail!("a ladder has --mode accept or deliver"),
    };
    ensure!(saturation >= 1.0, "nothing was accepted:\n{}", found.report);

    let mut steps = vec![found];
    for rate in rates(&settings.rates, saturation) {
        eprintln!("open loop, {rate} orders/s of {saturation:.0} at saturation");
        let mut measured = measure(
            &Load {
                rate: Some(rate),
                ..load.clone()
            },
            system,
            pgbench,
        )
        .await?;
        measured.report.of_saturation = Some(f64::from(rate) / saturation);
        steps.push(measured);
    }
    Ok(steps)
}

/// The rates of the steps in ascending order: those that were requested, or else [`SHARES`] of the
/// saturation. Each occurs once.
fn rates(asked: &[u32], saturation: f64) -> Vec<u32> {
    let mut rates = asked.to_vec();
    if rates.is_empty() {
        rates.extend(SHARES.iter().map(|share| whole(share * saturation)));
    }
    rates.sort_unstable();
    rates.dedup();
    rates
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate between 1 and a million"
)]
pub fn whole(rate: f64) -> u32 {
    rate.round().clamp(1.0, 1e6) as u32
}

pub fn summary(document: &Document) -> String {
    let rows = document.runs.iter().map(|run| {
        let answer = run.answer.as_ref();
        let webhook = run.order_to_webhook.as_ref();
        [
            run.rate
                .map_or_else(|| "closed loop".into(), |rate| rate.to_string()),
            run.of_saturation
                .map_or_else(String::new, |share| format!("{share:.2}")),
            format!("{:.0}", run.accepted_orders_per_second),
            format!("{:.0}", run.webhooks_per_second),
            figure(answer.map(|one| one.p50_ms), 1),
            figure(answer.map(|one| one.p99_ms), 1),
            figure(webhook.map(|one| one.p50_ms), 1),
            figure(webhook.map(|one| one.p99_ms), 1),
            run.shed().to_string(),
            run.unsent_orders.to_string(),
            figure(run.waited_percent(), 0),
            format!("{:.0}", run.cpu_us_per_order()),
        ]
    });
    let head = "offered/s | ÷ saturation | accepted/s | webhooks/s | answer p50 | p99 ms | webhook p50 | p99 ms \
                | shed | unsent | waited % | µs/order";
    let steps = table(head, rows);
    let head = "process | peak MiB, highest of all steps | us per order, closed loop";
    let memory = table(head, memory(&document.runs));
    format!("{steps}\n\n{memory}\n\n{}", yardstick(document))
}

/// pgbench's figure and the ratios.
fn yardstick(document: &Document) -> String {
    let Some(closed) = document.runs.first() else {
        return String::new();
    };
    let Some(pgbench) = closed.pgbench else {
        return "pgbench was not measured".into();
    };
    let (name, rate) = closed.main_rate();
    let peak = document
        .runs
        .iter()
        .map(|run| run.accepted_orders_per_second)
        .fold(0.0, f64::max);
    let open = document.runs.iter().filter(|run| run.rate.is_some());
    let past = open
        .max_by_key(|run| run.rate)
        .map_or(0.0, |run| run.accepted_orders_per_second);
    format!(
        "pgbench {pgbench:.0}/s; {name} in the closed loop {rate:.0}/s, {:.3} of pgbench\n\
         accepted at the highest rate {past:.0}/s, {:.2} of the peak {peak:.0}/s\n{}",
        rate / pgbench,
        past / peak.max(1.0),
        closed.waited()
    )
}

fn memory(runs: &[Report]) -> Vec<Vec<String>> {
    processes(runs)
        .into_iter()
        .map(|name| {
            let figures = runs.iter().filter_map(|run| run.processes.get(&name));
            let peak = figures.map(|one| one.peak_memory_mib).fold(0.0, f64::max);
            let cost = runs.first().and_then(|run| run.processes.get(&name));
            let cost = cost.map_or(0.0, |one| one.cpu_us_per_order);
            vec![name, format!("{peak:.1}"), format!("{cost:.0}")]
        })
        .collect()
}

/// The processes' names, the costliest first.
fn processes(runs: &[Report]) -> Vec<String> {
    let Some(first) = runs.first() else {
        return Vec::new();
    };
    let mut processes: Vec<_> = first.processes.iter().collect();
    processes.sort_by(|one, other| other.1.cpu_seconds.total_cmp(&one.1.cpu_seconds));
    processes
        .into_iter()
        .map(|(name, _)| name.clone())
        .collect()
}

/// Writes the three plots; `earlier` is drawn dashed.
pub fn plot(prefix: &Path, document: &Document, earlier: Option<&Document>) -> Result<()> {
    let saturation = document
        .runs
        .iter()
        .find_map(|run| Some(f64::from(run.rate?) / run.of_saturation?));
    let marks: Vec<(f64, String)> = saturation
        .map(|rate| (rate, "saturation".into()))
        .into_iter()
        .collect();
    let runs = |document: &Document| -> Vec<Report> {
        document
            .runs
            .iter()
            .filter(|run| run.rate.is_some())
            .cloned()
            .collect()
    };
    let steps = runs(document);
    let before = earlier.map(runs).unwrap_or_default();

    let latencies: [(&str, Figure); 4] = [
        ("answer p50", |run| Some(run.answer.as_ref()?.p50_ms)),
        ("answer p99", |run| Some(run.answer.as_ref()?.p99_ms)),
        ("to webhook p50", |run| {
            Some(run.order_to_webhook.as_ref()?.p50_ms)
        }),
        ("to webhook p99", |run| {
            Some(run.order_to_webhook.as_ref()?.p99_ms)
        }),
    ];
    let rates: [(&str, Figure); 2] = [
        ("accepted", |run| Some(run.accepted_orders_per_second)),
        ("webhooks", |run| Some(run.webhooks_per_second)),
    ];
    let both = |figures: &[(&str, Figure)]| -> Vec<Line> {
        let of = |runs: &[Report], dashed: bool, suffix: &str| -> Vec<Line> {
            let line = |(colour, (name, figure)): (usize, &(&str, Figure))| Line {
                name: format!("{name}{suffix}"),
                points: runs
                    .iter()
                    .filter_map(|run| Some((f64::from(run.rate?), figure(run)?)))
                    .collect(),
                dashed,
                colour,
            };
            figures.iter().enumerate().map(line).collect()
        };
        let mut lines = of(&steps, false, "");
        if !before.is_empty() {
            lines.extend(of(&before, true, ", earlier"));
        }
        lines
    };

    let latency = Plot {
        title: "Latency over rate, counted from the intended send",
        x: "offered orders/s (open loop)",
        y: "ms",
        logarithmic: true,
        lines: both(&latencies),
        marks: marks.clone(),
    };
    document::write_file(prefix, "-latency.svg", &latency.svg())?;

    let mut accepted = both(&rates);
    let highest = steps
        .iter()
        .filter_map(|run| run.rate)
        .max()
        .map_or(0.0, f64::from);
    accepted.push(Line {
        name: "offered".into(),
        points: vec![(0.0, 0.0), (highest, highest)],
        dashed: true,
        colour: 7,
    });
    let accepted = Plot {
        title: "Accepted and delivered over offered",
        x: "offered orders/s (open loop)",
        y: "per second",
        logarithmic: false,
        lines: accepted,
        marks,
    };
    document::write_file(prefix, "-accepted.svg", &accepted.svg())?;

    document::write_file(
        prefix,
        "-processor.svg",
        &processor_columns(document, &steps).svg(),
    )
}

/// What each step with a meaningful rate cost, divided by processes.
fn processor_columns(document: &Document, steps: &[Report]) -> Columns<'static> {
    let busy: Vec<&Report> = steps
        .iter()
        .filter(|run| run.of_saturation > Some(IDLE))
        .collect();
    let layers = processes(&document.runs).into_iter().map(|name| {
        let cost = |run: &&Report| {
            run.processes
                .get(&name)
                .map_or(0.0, |one| one.cpu_us_per_order)
        };
        (name.clone(), busy.iter().map(cost).collect())
    });
    Columns {
        title: "Processor time per accepted order, by process",
        x: "offered orders/s (open loop)",
        y: "µs",
        names: busy
            .iter()
            .filter_map(|run| Some(run.rate?.to_string()))
            .collect(),
        layers: layers.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ladder_ends_at_twice_the_saturation() {
        let steps = rates(&[], 1500.0);
        assert_eq!((steps.first(), steps.last()), (Some(&30), Some(&3000)));
        assert!(steps.contains(&1500) && steps.is_sorted());
        assert_eq!(
            rates(&[], 2.0),
            [1, 2, 3, 4],
            "steps that fall together are one"
        );
        assert_eq!(rates(&[300, 100], 2.0), [100, 300]);
    }
}

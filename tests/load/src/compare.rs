//! Compares a run with earlier runs of the same kind. Rates are divided by that of pgbench, and
//! processor times by the generator's own, so that two machines of different speed can be compared.

use crate::document::Document;
use crate::report::Report;
use crate::system::GENERATOR;
use testkit::table::table;

/// What a figure is divided by, to remove the effect of the machine's speed.
type Per = fn(&Report) -> Option<f64>;
/// Of rates.
const PGBENCH: Per = |run| run.pgbench;
/// Of processor time: the generator's own.
const GENERATORS: Per = |run| run.processes.get(GENERATOR).map(|one| one.cpu_us_per_order);
const NOTHING: Per = |_| None;

struct Figure {
    name: String,
    value: f64,
    per: Per,
}

/// Makes a table for each run that has an earlier run of the same kind.
pub fn tables(now: &Document, earlier: &[Document]) -> Vec<String> {
    let pairs = now.runs.iter().filter_map(|run| {
        let mut runs = earlier
            .iter()
            .flat_map(|one| one.runs.iter().map(move |before| (one, before)));
        let (document, before) = runs.find(|(_, before)| same_kind(run, before))?;
        Some(compared(run, before, document))
    });
    pairs.collect()
}

/// Steps of a ladder are of the same kind if their share of the saturation is the same, and other
/// runs if their settings are.
fn same_kind(one: &Report, other: &Report) -> bool {
    let share = |run: &Report| run.of_saturation.map(|share| (share * 50.0).round());
    let what = |run: &Report| (run.mode, run.qty, run.option.clone());
    let pace = |run: &Report| (run.rate, run.rate.is_none().then_some(run.connections));
    what(one) == what(other)
        && share(one).map(f64::to_bits) == share(other).map(f64::to_bits)
        && (one.of_saturation.is_some() || pace(one) == pace(other))
}

fn compared(now: &Report, before: &Report, document: &Document) -> String {
    let earlier = figures(before);
    let rows = figures(now).into_iter().filter_map(|figure| {
        let old = earlier.iter().find(|old| old.name == figure.name)?;
        let ratio = figure.value / old.value;
        let scale = (figure.per)(before)
            .zip((figure.per)(now))
            .map(|(before, now)| before / now);
        let shown = |ratio: f64| {
            if ratio.is_finite() {
                format!("{ratio:.2}")
            } else {
                "-".into()
            }
        };
        Some([
            figure.name,
            format!("{:.1}", old.value),
            format!("{:.1}", figure.value),
            shown(ratio),
            scale.map_or_else(String::new, |scale| shown(ratio * scale)),
        ])
    });
    let what = now.rate.map_or_else(
        || format!("closed loop, {} connections", now.connections),
        |rate| {
            format!(
                "{rate} orders/s (earlier {})",
                before.rate.unwrap_or_default()
            )
        },
    );
    let commit = document.commit.as_deref().unwrap_or("unknown commit");
    let mut text = format!(
        "mode {}, {what}, beside {} ({commit})\nnow:     {}\nearlier: {}\n",
        now.mode.name(),
        document.measured_at,
        now.waited(),
        before.waited(),
    );
    text += &table(
        "figure | earlier | now | now ÷ earlier | machine's speed cancelled",
        rows,
    );
    text
}

fn figures(run: &Report) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |name: &str, value: f64, per: Per| {
        figures.push(Figure {
            name: name.to_owned(),
            value,
            per,
        });
    };
    add("accepted orders/s", run.accepted_orders_per_second, PGBENCH);
    add("webhooks/s", run.webhooks_per_second, PGBENCH);
    if let Some(drain) = run.drain_per_second {
        add("drain/s", drain, PGBENCH);
    }
    if let Some(pgbench) = run.pgbench {
        add("pgbench/s", pgbench, NOTHING);
    }
    for (name, latency) in [
        ("answer", &run.answer),
        ("order to webhook", &run.order_to_webhook),
    ] {
        if let Some(latency) = latency {
            add(&format!("{name} p50 ms"), latency.p50_ms, NOTHING);
            add(&format!("{name} p99 ms"), latency.p99_ms, NOTHING);
        }
    }
    add(
        "all processes, µs per order",
        run.cpu_us_per_order(),
        GENERATORS,
    );
    for (name, process) in &run.processes {
        let per = if name == GENERATOR {
            NOTHING
        } else {
            GENERATORS
        };
        add(
            &format!("{name}, µs per order"),
            process.cpu_us_per_order,
            per,
        );
    }
    for (name, process) in &run.processes {
        add(
            &format!("{name}, peak MiB"),
            process.peak_memory_mib,
            NOTHING,
        );
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn document(rate: f64, pgbench: f64, changes: &Value) -> Document {
        let mut run = json!({
            "mode": "deliver", "connections": 64, "rate": null, "of_saturation": null, "seconds": 20.0,
            "qty": 1, "partners": 4, "option": "ready", "placement_wait": "2s", "build": "release",
            "cores": 2, "pgbench": pgbench, "accepted_orders": 100, "accepted_orders_per_second": rate,
            "webhooks": 100, "webhooks_per_second": rate, "drain_per_second": null, "answer": null,
            "order_to_webhook": null, "verdicts": null, "accepted_topups": 100, "missing_webhooks": 0,
            "duplicate_webhooks": 0, "webhooks_without_answer": 0, "unsent_orders": 0, "errors": {},
            "drain_seconds": 0.1, "processes": {},
        });
        for (name, value) in changes.as_object().unwrap() {
            run[name] = value.clone();
        }
        let document =
            json!({"measured_at": "2025-01-01T00:00:00Z", "commit": "abc", "runs": [run]});
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn a_slower_machine_cancels_out() {
        let now = document(500.0, 5000.0, &json!({}));
        let before = document(1000.0, 20000.0, &json!({}));
        let tables = tables(&now, &[before]);
        let row: Vec<&str> = tables[0]
            .lines()
            .find(|line| line.contains("webhooks/s"))
            .unwrap()
            .split_whitespace()
            .collect();
        assert_eq!(row, ["webhooks/s", "1000.0", "500.0", "0.50", "2.00"]);
        assert!(tables[0].contains("2025-01-01T00:00:00Z (abc)"));
    }

    #[test]
    fn only_runs_of_one_kind_are_compared() {
        let now = document(1.0, 1.0, &json!({}));
        for other in [
            json!({"mode": "accept"}),
            json!({"connections": 256}),
            json!({"rate": 64}),
            json!({"qty": 2}),
        ] {
            assert!(
                tables(&now, &[document(1.0, 1.0, &other)]).is_empty(),
                "{other}"
            );
        }
        let step = |rate: u32, share: f64| {
            document(1.0, 1.0, &json!({"rate": rate, "of_saturation": share}))
        };
        assert_eq!(tables(&step(300, 0.5), &[step(200, 0.502)]).len(), 1);
        assert!(tables(&step(300, 0.5), &[step(300, 0.7)]).is_empty());
    }
}

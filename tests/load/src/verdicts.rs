//! Finds out from ingress's own metric whether it waited for verdicts. Such runs have longer answer
//! latencies, so they must not be compared with others.

use crate::settings::System;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const METRIC: &str = "esim_verdicts_total{";

/// The numbers of placements for whose verdict ingress waited, by verdict. `none` means that no
/// verdict arrived in time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdicts(BTreeMap<String, u64>);

impl Verdicts {
    /// Reads the counters of ingress. Returns `None` if its admin endpoint is unknown or does not
    /// respond.
    pub async fn read(system: &System) -> Option<Self> {
        let url = format!("{}/metrics", system.ingress_admin_url.as_deref()?);
        let answer = testkit::http::client().ok()?.get(url).send().await.ok()?;
        Some(Self::parse(&answer.text().await.ok()?))
    }

    pub fn since(&self, before: &Self) -> Self {
        let added = self.0.iter().map(|(verdict, count)| {
            let earlier = before.0.get(verdict).copied().unwrap_or_default();
            (verdict.clone(), count.saturating_sub(earlier))
        });
        Self(added.filter(|(_, count)| *count > 0).collect())
    }

    /// Placements that ingress waited for, and those whose verdict arrived in time.
    pub fn counts(&self) -> (u64, u64) {
        let all: u64 = self.0.values().sum();
        (all, all - self.0.get("none").copied().unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let mut verdicts = BTreeMap::new();
        for line in text.lines().filter_map(|line| line.strip_prefix(METRIC)) {
            let Some((labels, value)) = line.split_once('}') else {
                continue;
            };
            let verdict = labels
                .split(',')
                .find_map(|label| label.strip_prefix("verdict=\"")?.strip_suffix('"'));
            if let (Some(verdict), Ok(count)) = (verdict, value.trim().parse::<u64>()) {
                *verdicts.entry(verdict.to_owned()).or_default() += count;
            }
        }
        Self(verdicts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_counted_since_an_earlier_look() {
        let text = "# TYPE esim_verdicts_total counter\n\
            esim_verdicts_total{otel_scope_name=\"ingress\",verdict=\"placed\"} 12\n\
            esim_verdicts_total{verdict=\"none\",otel_scope_name=\"ingress\"} 3\n\
            esim_orders_total{outcome=\"accepted\"} 99\n";
        let now = Verdicts::parse(text);
        assert_eq!(now.counts(), (15, 12));
        let before = Verdicts(BTreeMap::from([("placed".into(), 12), ("none".into(), 1)]));
        assert_eq!(now.since(&before).counts(), (2, 0));
        assert_eq!(Verdicts::parse("").counts(), (0, 0));
    }
}

//! Compares the spans of a trace with the expected tree.

use crate::sink::Span;
use anyhow::{Context, Result, ensure};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use std::collections::HashMap;

#[derive(Debug)]
pub struct Rule {
    pub name: &'static str,
    /// As [`SpanKind`] is printed.
    kind: &'static str,
    service: &'static str,
    /// The allowed names of its parent; none: it is the root. Caller and callee may have the same
    /// name.
    parents: Vec<&'static str>,
    /// The least and the most spans of this name.
    count: (usize, usize),
    pub linked: bool,
}

pub fn rules(table: &'static str) -> Vec<Rule> {
    let rule = |line: &'static str| {
        let mut cells = line.split(';').map(str::trim);
        let mut cell = || cells.next().unwrap_or_default();
        Rule {
            name: cell(),
            kind: cell(),
            service: cell(),
            parents: cell()
                .split(" | ")
                .filter(|parent| !parent.is_empty())
                .collect(),
            count: (cell().parse().unwrap(), cell().parse().unwrap()),
            linked: cell() == "linked",
        }
    };
    table.trim().lines().map(rule).collect()
}

impl Rule {
    pub fn is_of(&self, span: &Span) -> bool {
        self.name == span.name && self.kind == format!("{:?}", span.kind)
    }
}

/// Every span must be as its rule says, and every rule must have its spans.
pub fn check(rules: &[Rule], spans: &[Span]) -> Result<()> {
    let by_id: HashMap<&str, &Span> = spans.iter().map(|span| (span.id.as_str(), span)).collect();
    for span in spans {
        let rule = rules.iter().find(|rule| rule.is_of(span));
        let rule = rule.with_context(|| format!("nothing is known of {span:?}"))?;
        ensure!(
            span.service == rule.service,
            "it is not of {}: {span:?}",
            rule.service
        );
        if rule.parents.is_empty() {
            ensure!(span.parent.is_empty(), "it has a parent: {span:?}");
            continue;
        }
        let parent = by_id.get(span.parent.as_str());
        let parent = parent.with_context(|| format!("its parent is missing: {span:?}"))?;
        ensure!(
            parent.trace == span.trace && rule.parents.contains(&parent.name.as_str()),
            "its parent is {}: {span:?}",
            parent.name
        );
        ensure!(
            span.kind != SpanKind::Server || parent.kind == SpanKind::Client,
            "no caller: {span:?}"
        );
        let link = (parent.trace.clone(), parent.id.clone());
        ensure!(
            !rule.linked || span.links.contains(&link),
            "it is not linked: {span:?}"
        );
    }
    for rule in rules {
        let count = spans.iter().filter(|span| rule.is_of(span)).count();
        let (least, most) = rule.count;
        ensure!(
            (least..=most).contains(&count),
            "{count} spans {}, not {least} to {most}",
            rule.name
        );
    }
    Ok(())
}

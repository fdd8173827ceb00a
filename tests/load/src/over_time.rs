//! Plots the webhooks of a run over time, beside those of earlier runs.

use crate::chart::{Line, Plot};
use crate::document::{self, Document};
use crate::number::approximate;
use crate::report::Report;
use anyhow::Result;
use std::path::Path;

/// Writes the plot of a run; earlier ones are drawn dashed.
pub fn plot(prefix: &Path, document: &Document, earlier: &[Document]) -> Result<()> {
    let line = |run: &Report, name: &str, colour: usize| Line {
        name: name.into(),
        points: run
            .webhooks_over_time
            .iter()
            .map(|arrived| (arrived.after_s, approximate(arrived.webhooks)))
            .collect(),
        dashed: colour > 0,
        colour,
    };
    let now = document.runs.iter().map(|run| line(run, "webhooks", 0));
    let earlier = earlier.iter().flat_map(|document| &document.runs);
    let earlier = (1..).zip(earlier);
    let earlier = earlier.map(|(colour, run)| line(run, "webhooks, earlier", colour));
    let plot = Plot {
        title: "Webhooks over time",
        x: "seconds since the first order",
        y: "webhooks",
        logarithmic: false,
        lines: now.chain(earlier).collect(),
        marks: Vec::new(),
    };
    document::write_file(prefix, "-webhooks.svg", &plot.svg())
}

//! The output files: figures as JSON, histograms as CSV.

use crate::report::Report;
use crate::run::Measured;
use crate::settings::System;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// The runs of one invocation: a single one, or the steps of a ladder.
#[derive(Debug, Serialize, Deserialize)]
pub struct Document {
    /// The time of the invocation, in RFC 3339.
    pub measured_at: String,
    pub commit: Option<String>,
    pub runs: Vec<Report>,
}

impl Document {
    pub fn new(system: &System, runs: Vec<Report>) -> Self {
        let now = UNIX_EPOCH + Duration::from_secs(runtime::clock::unix_seconds().unsigned_abs());
        Self {
            measured_at: humantime::format_rfc3339_seconds(now).to_string(),
            commit: system.commit.clone(),
            runs,
        }
    }

    /// Reads the document in a JSON file, or those in every JSON file of a folder.
    pub fn read(path: &Path) -> Result<Vec<Self>> {
        let mut files = vec![path.to_owned()];
        if path.is_dir() {
            let entries = fs::read_dir(path)?.collect::<std::io::Result<Vec<_>>>()?;
            files = entries.into_iter().map(|entry| entry.path()).collect();
            files.retain(|file| {
                file.extension()
                    .is_some_and(|extension| extension == "json")
            });
            files.sort_unstable();
        }
        ensure!(!files.is_empty(), "{} holds no JSON file", path.display());
        let document = |file: PathBuf| {
            let text =
                fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            serde_json::from_slice(&text)
                .with_context(|| format!("{} is no run's file", file.display()))
        };
        files.into_iter().map(document).collect()
    }
}

/// Writes `<prefix>.json` and `<prefix>-histograms.csv`.
pub fn write(prefix: &Path, document: &Document, measured: &[Measured]) -> Result<()> {
    let json = serde_json::to_string_pretty(document)?;
    write_file(prefix, ".json", &(json + "\n"))?;
    write_file(prefix, "-histograms.csv", &histograms(measured))
}

/// Writes the file `<prefix><ending>`, and makes its folder if that is missing.
pub fn write_file(prefix: &Path, ending: &str, text: &str) -> Result<()> {
    let mut path = prefix.as_os_str().to_owned();
    path.push(ending);
    let path = PathBuf::from(path);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

/// The histograms as CSV, with one line per bucket. `run` counts from 0, as in the JSON file.
fn histograms(measured: &[Measured]) -> String {
    let mut csv = "run,rate,latency,up_to_us,count\n".to_owned();
    for (run, one) in measured.iter().enumerate() {
        let rate = one
            .report
            .rate
            .map(|rate| rate.to_string())
            .unwrap_or_default();
        for (name, latency) in [
            ("answer", &one.answer),
            ("order_to_webhook", &one.order_to_webhook),
        ] {
            for (up_to, count) in latency.buckets() {
                // A `String` takes everything.
                let _ = writeln!(csv, "{run},{rate},{name},{up_to},{count}");
            }
        }
    }
    csv
}

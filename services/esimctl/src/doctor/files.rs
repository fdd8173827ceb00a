//! Backups, drills and disks, from files of metrics in Prometheus' text format.

use std::{collections::BTreeMap, path::PathBuf};

use desk::operator::health::{Finding, FindingKind};
use runtime::{clock, files};
use time::OffsetDateTime;

use crate::doctor::line::Lines;

/// What tells the time of the last base backup: the plug-in of `CloudNativePG`, its older built-in
/// backup, and `deploy/backup`. The first two are 0 without a backup.
const BACKUPS: [&str; 3] = [
    "barman_cloud_cloudnative_pg_io_last_available_backup_timestamp",
    "cnpg_collector_last_available_backup_timestamp",
    "esim_backup_timestamp_seconds",
];
const DRILL: &str = "esim_drill_timestamp_seconds";
/// The free and the total bytes of disks.
const DISKS: [(&str, &str); 2] = [
    ("node_filesystem_avail_bytes", "node_filesystem_size_bytes"),
    (
        "kubelet_volume_stats_available_bytes",
        "kubelet_volume_stats_capacity_bytes",
    ),
];
/// File systems that are no disks, as in the alert `DiskFilling`.
const NO_DISKS: [&str; 4] = [
    "fstype=\"tmpfs\"",
    "fstype=\"ramfs\"",
    "fstype=\"overlay\"",
    "fstype=\"squashfs\"",
];
const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;

/// The value of each series, by its name with its labels.
type Series = BTreeMap<String, f64>;

pub fn check(files: &[PathBuf], lines: &mut Lines<'_>) {
    if files.is_empty() {
        lines.warning(
            "backup",
            "not checked, because no file of metrics is named",
            "name it with --metrics, or say --without backup",
            "docs/operations.md#backupold",
        );
        return;
    }
    let mut series = Series::new();
    for file in files {
        match files::read(file) {
            Ok(text) => series.extend(parse(&text)),
            Err(error) => lines.fault(
                "metrics",
                format!("{error:#}"),
                "see whether the backup has run, which writes the file",
                "docs/operations.md#backupold",
            ),
        }
    }
    let now = (clock::now() - OffsetDateTime::UNIX_EPOCH).as_seconds_f64();
    backup(&series, now, lines);
    drill(&series, now, lines);
    disks(&series, lines);
}

fn parse(text: &str) -> Series {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            // A timestamp may follow the value. Labels may hold blanks.
            let end = line.rfind('}').map_or(0, |end| end + 1);
            let space = line[end..].find(' ')? + end;
            let value = line[space..].split_whitespace().next()?.parse().ok()?;
            Some((line[..space].to_owned(), value))
        })
        .collect()
}

/// The largest value of a metric, over all labels.
fn newest(series: &Series, name: &str) -> Option<f64> {
    let of = series.iter().filter(|(key, _)| {
        key.strip_prefix(name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
    });
    of.map(|(_, value)| *value).reduce(f64::max)
}

fn backup(series: &Series, now: f64, lines: &mut Lines<'_>) {
    let last = BACKUPS
        .iter()
        .filter_map(|name| newest(series, name))
        .reduce(f64::max);
    // The metric of a server without any backup is 0.
    let age = last.filter(|last| *last > 0.0).map(|last| now - last);
    match age {
        Some(age) if age <= 26.0 * HOUR => lines.fine(
            "backup",
            format!("the last base backup is {:.0} h old", age / HOUR),
        ),
        old => {
            let hours = old.map(|age| whole(age / HOUR));
            lines.finding(Finding::new(FindingKind::BackupOld { hours }, None));
        }
    }
}

fn drill(series: &Series, now: f64, lines: &mut Lines<'_>) {
    match newest(series, DRILL).map(|last| now - last) {
        Some(age) if age <= 31.0 * DAY => {
            lines.fine("drill", "a backup was restored within the last month");
        }
        old => {
            let days = old.map(|age| whole(age / DAY));
            lines.finding(Finding::new(FindingKind::DrillOld { days }, None));
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float saturates"
)]
fn whole(number: f64) -> u64 {
    number.max(0.0).round() as u64
}

fn disks(series: &Series, lines: &mut Lines<'_>) {
    let mut known = 0;
    let mut fine = true;
    for (free, total) in DISKS {
        for (key, available) in series {
            let Some(labels) = key.strip_prefix(free).filter(|rest| rest.starts_with('{')) else {
                continue;
            };
            let Some(size) = series
                .get(&format!("{total}{labels}"))
                .filter(|size| **size > 0.0)
            else {
                continue;
            };
            if NO_DISKS.iter().any(|kind| labels.contains(kind)) {
                continue;
            }
            known += 1;
            let share = available / size;
            if share < 0.2 {
                fine = false;
                let kind = FindingKind::DiskFilling {
                    volume: labels.to_owned(),
                    percent: share * 100.0,
                };
                lines.finding(Finding::new(kind, None));
            }
        }
    }
    if fine && known > 0 {
        lines.fine("disk", format!("{known} disks have room"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_read_with_labels_and_times() {
        let series = parse("# HELP a b\na 1\nb{c=\"d e\"} 2.5e3 1700000000\nbroken\na_total{} x\n");
        assert_eq!(series.len(), 2, "{series:?}");
        assert_eq!(newest(&series, "a"), Some(1.0));
        assert_eq!(newest(&series, "b"), Some(2500.0));
        assert_eq!(newest(&series, "c"), None);
    }
}

//! Whether each stage lives, from the pulse that each of its processes commits once a second.

use std::time::Duration;

use pg::{Result, seconds};
use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;

/// A process that has committed nothing for this long is dead, for people. A healthy one commits
/// once a second.
pub const SILENCE: Duration = Duration::from_secs(10);
/// For how long a process that has died is missed, if no other one begins.
const MISSED: Duration = Duration::from_hours(1);

/// A stage of the pipeline.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    strum::EnumIter,
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Stage {
    Ingress,
    Provisioner,
    Notifier,
}

impl Stage {
    pub const ALL: [Self; 3] = [Self::Ingress, Self::Provisioner, Self::Notifier];

    /// The name of its program.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The processes of a stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageProcesses {
    pub stage: Stage,
    /// The processes that have committed a pulse within [`SILENCE`].
    pub running: u64,
    /// The processes that died within the last hour, and in whose place no other one has begun.
    /// Those that were stopped in an orderly way are missed by nobody.
    pub missing: u64,
    /// Where the missing ones ran, as far as they have said so.
    pub missing_on: Vec<String>,
    /// The last pulse of the stage; `None` if none is known.
    #[serde(with = "time::serde::rfc3339::option")]
    pub last: Option<OffsetDateTime>,
    /// Since when a running process of the stage has been without NATS.
    #[serde(skip)]
    pub no_nats_since: Option<OffsetDateTime>,
    /// What NATS refuses to running processes, and since when.
    #[serde(skip)]
    pub nats_refused: Option<(String, OffsetDateTime)>,
    /// How many seconds PostgreSQL's clock is ahead of that of a running process which does not
    /// work because of that, and since when.
    #[serde(skip)]
    pub clock_off: Option<(f64, OffsetDateTime)>,
    /// When the missing processes, or the last one of the stage, were last alive.
    #[serde(skip)]
    pub missing_since: Option<OffsetDateTime>,
}

impl StageProcesses {
    /// Whether no process of the stage does anything.
    pub fn is_dead(&self) -> bool {
        self.running == 0
    }
}

/// What the row of one process says.
#[derive(Clone, Copy, Debug)]
struct Process<'a> {
    started_at: OffsetDateTime,
    at: OffsetDateTime,
    stopped: bool,
    runs: bool,
    no_nats_since: Option<OffsetDateTime>,
    host: Option<&'a str>,
}

/// Reads how each stage lives. The table has a row for each process of the last 30 days.
pub async fn read(connection: &mut PgConnection) -> Result<Vec<StageProcesses>> {
    let query = sqlx::query!(
        r#"SELECT stage, started_at, at, stopped, no_nats_since, host,
                  nats_refused, nats_refused_since, clock_ahead, clock_off_since, at > now() - make_interval(secs => $1) AS "runs!",
                  at > now() - make_interval(secs => $2) AS "missed!"
           FROM pulses ORDER BY at"#,
        seconds(SILENCE),
        seconds(MISSED),
    );
    let rows = query.fetch_all(connection).await?;
    let lives = Stage::ALL.into_iter().map(|stage| {
        let mine = rows.iter().filter(|row| row.stage == stage.as_str());
        let last = mine.clone().map(|row| row.at).max();
        let running = || mine.clone().filter(|row| row.runs);
        let refused = running().filter_map(|row| {
            let what = row.nats_refused.clone();
            what.zip(row.nats_refused_since)
        });
        let off = running().filter_map(|row| row.clock_ahead.zip(row.clock_off_since));
        let missed = mine.clone().filter(|row| row.missed).map(|row| Process {
            started_at: row.started_at,
            at: row.at,
            stopped: row.stopped,
            runs: row.runs,
            no_nats_since: row.no_nats_since,
            host: row.host.as_deref(),
        });
        StageProcesses {
            nats_refused: refused.min_by_key(|(_, since)| *since),
            clock_off: off.min_by_key(|(_, since)| *since),
            ..of(stage, &missed.collect::<Vec<_>>(), last)
        }
    });
    Ok(lives.collect())
}

/// Each process that died leaves a place, and each that begins takes the oldest one that is free.
fn of(stage: Stage, processes: &[Process<'_>], last: Option<OffsetDateTime>) -> StageProcesses {
    let deaths = processes
        .iter()
        .filter(|one| !one.runs && !one.stopped)
        .map(|one| (one.at, Some(one)));
    let births = processes.iter().map(|one| (one.started_at, None));
    let mut events: Vec<(OffsetDateTime, Option<&Process<'_>>)> = deaths.chain(births).collect();
    // Of one moment, a death comes before a birth.
    events.sort_by_key(|(at, died)| (*at, died.is_none()));
    let mut free: Vec<&Process<'_>> = Vec::new();
    for (_, died) in events {
        if let Some(died) = died {
            free.push(died);
        } else if !free.is_empty() {
            free.remove(0);
        }
    }
    let mut missing_on: Vec<String> = free
        .iter()
        .filter_map(|one| one.host)
        .map(str::to_owned)
        .collect();
    missing_on.sort_unstable();
    missing_on.dedup();
    let running = processes.iter().filter(|one| one.runs).count();
    let without_nats = processes.iter().filter(|one| one.runs);
    StageProcesses {
        stage,
        no_nats_since: without_nats.filter_map(|one| one.no_nats_since).min(),
        nats_refused: None,
        clock_off: None,
        running: u64::try_from(running).unwrap_or(u64::MAX),
        missing: u64::try_from(free.len()).unwrap_or(u64::MAX),
        missing_on,
        last,
        missing_since: free.first().map(|one| one.at),
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    /// A process that began and had its last pulse at these seconds.
    fn process(started: i64, last: i64, stopped: bool, runs: bool) -> Process<'static> {
        let at = |second| datetime!(2026-01-29 12:00 UTC) + time::Duration::seconds(second);
        Process {
            started_at: at(started),
            at: at(last),
            stopped,
            runs,
            no_nats_since: None,
            host: None,
        }
    }

    fn named<'a>(process: Process<'a>, host: &'a str) -> Process<'a> {
        let host = Some(host);
        Process { host, ..process }
    }

    /// The host that is named is that of the process in whose place no other one has begun.
    #[test]
    fn the_hosts_of_missing_processes_are_named() {
        let died = named(process(-9_000, 100, false, false), "fra-2");
        let died_later = named(process(-9_000, 120, false, false), "fra-1");
        let beside = named(process(-9_000, 200, false, true), "fra-3");
        let after = named(process(110, 200, false, true), "fra-4");
        for (processes, on) in [
            (vec![died, beside], vec!["fra-2"]),
            (vec![died_later, died], vec!["fra-1", "fra-2"]),
            (vec![died, died_later, after], vec!["fra-1"]),
            (vec![died, beside, after], vec![]),
        ] {
            let life = of(Stage::Ingress, &processes, None);
            assert_eq!(life.missing_on, on, "{processes:?}");
        }
    }

    #[test]
    fn a_process_that_died_is_missed_until_another_one_begins_after_it() {
        let old = process(-9_000, 100, false, false);
        let stopped = process(-9_000, 100, true, false);
        let beside = process(-9_000, 200, false, true);
        let after = process(110, 200, false, true);
        let after_and_died = process(110, 150, false, false);
        let later = process(160, 200, false, true);
        for (processes, running, missing) in [
            (vec![], 0, 0),
            (vec![old], 0, 1),
            (vec![stopped], 0, 0),
            (vec![old, beside], 1, 1),
            (vec![stopped, beside], 1, 0),
            (vec![old, after], 1, 0),
            (vec![old, beside, after], 2, 0),
            (vec![old, old, after], 1, 1),
            (vec![old, after_and_died, later], 1, 0),
            (vec![old, old, after_and_died, later], 1, 1),
        ] {
            let life = of(Stage::Ingress, &processes, None);
            assert_eq!(
                (life.running, life.missing),
                (running, missing),
                "{processes:?}"
            );
            assert_eq!(life.is_dead(), running == 0);
        }
    }
}

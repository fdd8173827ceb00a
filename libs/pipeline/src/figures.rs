//! Counts what this process does, and adds it to the figures in PostgreSQL
//! ([`store::figures`]), from which operators see latencies and errors without any other server.
//!
//! Counting takes a lock for some nanoseconds and touches no database, so that an order pays
//! nothing for it. [`run`] writes what was counted once in five seconds, in one statement.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use pg::Database;
use runtime::{Shutdown, clock, lock};
use store::figures::{self, Count, Figure, Measure, TICK};
use time::OffsetDateTime;
use uuid::Uuid;

/// How often the counts are written. Whether orders get through is told from them, and within 15 s.
const PERIOD: Duration = Duration::from_secs(5);
/// How often old figures are deleted, in periods.
const ERASE_EVERY: u32 = 720;
/// How many counts this process holds at most, also while PostgreSQL cannot be reached. What comes
/// for further subjects is counted without a subject.
const MOST: usize = 2_000;

/// The counts of this process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ProcessFigures(Arc<Mutex<Counts>>);

type Counts = BTreeMap<(OffsetDateTime, Measure, String), Count>;

impl ProcessFigures {
    /// Counts an event that has no duration.
    pub fn count(&self, measure: Measure, subject: &str, number: usize) {
        for _ in 0..number {
            self.note(measure, subject, None, false);
        }
    }

    /// Counts an event that took this long.
    pub fn took(&self, measure: Measure, subject: &str, took: Duration, failed: bool) {
        self.note(measure, subject, Some(took), failed);
    }

    fn note(&self, measure: Measure, subject: &str, took: Option<Duration>, failed: bool) {
        let now = clock::now();
        let over = if measure.is_outcome() {
            now.second() % TICK
        } else {
            now.second()
        };
        let at = now - Duration::from_secs(u64::from(over));
        let at = at.replace_nanosecond(0).unwrap_or(at);
        let mut counts = lock(&self.0);
        let mut key = (at, measure, subject.to_owned());
        if counts.len() >= MOST && !counts.contains_key(&key) {
            key.2.clear();
        }
        counts.entry(key).or_default().note(took, failed);
    }

    fn take(&self) -> Vec<Figure> {
        let counts = std::mem::take(&mut *lock(&self.0)).into_iter();
        let figures = counts.map(|((at, measure, subject), count)| Figure {
            at,
            measure,
            subject,
            count,
        });
        figures.collect()
    }

    fn put_back(&self, figures: Vec<Figure>) {
        let mut counts = lock(&self.0);
        for figure in figures {
            let key = (figure.at, figure.measure, figure.subject);
            if counts.len() < MOST || counts.contains_key(&key) {
                counts.entry(key).or_default().merge(&figure.count);
            }
        }
    }

    async fn write(&self, database: &Database, instance: Uuid) {
        let figures = self.take();
        if figures.is_empty() {
            return;
        }
        let written =
            database.run(async |connection| figures::add(connection, instance, &figures).await);
        if let Err(error) = written.await {
            tracing::debug!(%error, "cannot write the figures; they are written with the next ones");
            self.put_back(figures);
        }
    }
}

/// Writes what is counted until the soft stop, and a last time then.
pub async fn run(
    figures: ProcessFigures,
    database: Database,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    // The rows of two processes must not be the same ones.
    let instance = Uuid::now_v7();
    let mut ticks = shutdown.ticks(PERIOD);
    let mut written = 0_u32;
    while ticks.next().await {
        figures.write(&database, instance).await;
        if written.is_multiple_of(ERASE_EVERY)
            && let Err(error) = database.run(figures::erase_old).await
        {
            tracing::debug!(%error, "cannot delete old figures; it is tried again in an hour");
        }
        written = written.wrapping_add(1);
    }
    figures.write(&database, instance).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_written_is_written_with_the_next_counts() {
        let figures = ProcessFigures::default();
        figures.took(Measure::Call, "sandbox", Duration::from_millis(70), true);
        let first = figures.take();
        assert_eq!(
            (first.len(), first[0].count.n, first[0].count.failed),
            (1, 1, 1)
        );
        assert!(figures.take().is_empty());
        figures.count(Measure::Failed, "sandbox", 3);
        figures.put_back(first);
        let sum: u64 = figures.take().iter().map(|one| one.count.n).sum();
        assert_eq!(sum, 4);
    }

    #[test]
    fn a_flood_of_subjects_is_counted_without_subjects() {
        let figures = ProcessFigures::default();
        for subject in 0..2 * MOST {
            figures.took(Measure::Attempt, &subject.to_string(), PERIOD, false);
        }
        let figures = figures.take();
        // A minute may have ended meanwhile.
        assert!(figures.len() <= MOST + 2, "{}", figures.len());
        let sum: u64 = figures.iter().map(|one| one.count.n).sum();
        assert_eq!(sum, u64::try_from(2 * MOST).unwrap());
    }
}

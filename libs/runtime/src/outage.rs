//! Limits the log lines of an outage. While PostgreSQL is away every order, batch and look fails,
//! and a line for each of them would hide everything else. So the lines of all places share one
//! [`Outage`]: one line per second passes, the others are counted, and one line at the end says how
//! long it lasted.

use std::{
    sync::{LazyLock, Mutex},
    time::{Duration, Instant},
};

use crate::{lock, sampler::Sampler};

/// The outage of PostgreSQL, if there is one now. There is one database for each process, so all
/// its tasks share this value.
pub static DATABASE: LazyLock<Outage> = LazyLock::new(|| Outage::of("PostgreSQL"));

/// The time without a failure after which an outage counts as over. A server that comes back serves
/// some connections earlier than others, so the first success is no proof yet.
const QUIET: Duration = Duration::from_secs(2);

/// The failures of something that all tasks of a process use, such as the database:
///
/// ```ignore
/// if let Some(others) = outage::DATABASE.failed() {
///     tracing::error!(%error, others, "cannot store an order");
/// }
/// ```
///
/// A task that uses it regularly reports each success with [`Outage::worked`], because otherwise
/// nobody would notice the end. For the database, that is the pulse of the process.
#[derive(Debug)]
pub struct Outage {
    /// The name for the log line at the end.
    of: &'static str,
    lines: Sampler,
    now: Mutex<Option<Failing>>,
}

/// What is known about an outage that goes on.
#[derive(Clone, Copy, Debug)]
struct Failing {
    began: Instant,
    last: Instant,
    /// The number of failures whose lines did not pass.
    hidden: u64,
}

/// An outage that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Over {
    lasted: Duration,
    hidden: u64,
}

impl Outage {
    fn of(name: &'static str) -> Self {
        Self {
            of: name,
            lines: Sampler::new(1),
            now: Mutex::new(None),
        }
    }

    /// Notes a failure and decides whether to write its line. `Some` means yes, and contains the
    /// number of failures since the last line that passed. `None` means no.
    pub fn failed(&self) -> Option<u64> {
        self.failed_at(Instant::now())
    }

    /// Decides in the same way whether to write the line of an error, and notes an outage only if
    /// the error is one. What the database refuses says nothing about whether it works, so the end
    /// of such errors must not be logged as the end of an outage.
    pub fn line(&self, is_outage: bool) -> Option<u64> {
        if is_outage {
            self.failed()
        } else {
            self.lines.pass_at(Instant::now())
        }
    }

    fn failed_at(&self, at: Instant) -> Option<u64> {
        let passed = self.lines.pass_at(at);
        let mut now = lock(&self.now);
        let failing = now.get_or_insert(Failing {
            began: at,
            last: at,
            hidden: 0,
        });
        failing.last = at;
        failing.hidden += u64::from(passed.is_none());
        passed
    }

    /// Notes a success. If it is the first one after an outage, and nothing has failed for
    /// [`QUIET`], a line says that the outage is over.
    pub fn worked(&self) {
        if let Some(Over { lasted, hidden }) = self.worked_at(Instant::now()) {
            tracing::info!(
                seconds = lasted.as_secs_f64(),
                hidden,
                "{} works again; `seconds` says how long its outage lasted, and `hidden` how many \
                 failures got no line of their own",
                self.of
            );
        }
    }

    fn worked_at(&self, at: Instant) -> Option<Over> {
        let mut now = lock(&self.now);
        let failing = (*now)?;
        if at.saturating_duration_since(failing.last) < QUIET {
            return None;
        }
        *now = None;
        Some(Over {
            lasted: failing.last.saturating_duration_since(failing.began),
            hidden: failing.hidden,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_is_no_outage_has_no_end() {
        let outage = Outage::of("the test");
        assert_eq!(outage.line(false), Some(0));
        assert_eq!(outage.worked_at(Instant::now() + QUIET * 2), None);
        assert_eq!(outage.line(true), None, "one line each second, of both");
        assert!(outage.worked_at(Instant::now() + QUIET * 2).is_some());
    }

    #[test]
    fn an_outage_is_logged_once_per_second_and_its_end_once() {
        let outage = Outage::of("the test");
        let began = Instant::now();
        let at = |milliseconds| began + Duration::from_millis(milliseconds);
        assert_eq!(outage.worked_at(began), None, "nothing has failed");

        let lines: Vec<Option<u64>> = (0..25)
            .map(|failure| outage.failed_at(at(failure * 100)))
            .collect();
        let passed: Vec<u64> = lines.into_iter().flatten().collect();
        assert_eq!(passed, [0, 9, 9]);
        assert_eq!(outage.worked_at(at(4_399)), None, "it may fail again");
        let over = Over {
            lasted: Duration::from_millis(2_400),
            hidden: 22,
        };
        assert_eq!(outage.worked_at(at(4_400)), Some(over));
        assert_eq!(outage.worked_at(at(4_500)), None, "its end is logged once");
    }
}

//! The life of findings: when each one opened, changed and was mended, for whoever asks later.
//!
//! A look at the system shows what is wrong now, and forgets it. A [`FindingWatch`] looks every
//! [`LOOK`] and notes in the history what has changed since the look before, so that a fault of the
//! night is still told in the morning. The console keeps one running, whether or not somebody looks
//! at its pages, and `esimctl attention --follow` another one. Several of them agree, because they
//! note under one lock what the history does not say yet, and because each ends only what it could
//! have found itself.
//!
//! Somebody may [take](take) a finding: all see who has it until when, and nothing else changes.
//! That is a recorded act, which ends with the finding.
//!
//! A finding is the same one as long as its [key](FindingKind::key) is found. One that comes back
//! within [`MENDED_AFTER`] was never mended, so what flickers is one finding. In the same way it
//! gets worse at once and better after that time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use domain::Command;
use pg::{
    Result, Transaction, TransactionEnd,
    actions::{self, Action, ActionChange},
    rfc3339, transaction,
};
use serde_json::json;
use sqlx::PgConnection;
use time::OffsetDateTime;

use super::{
    examine::{self, HealthReport},
    finding::{Finding, FindingKind, FindingOwner},
    record::{self, NewEvent},
};

pub use super::record::{FindingChange, FindingEvent, FindingSpan, events, mended};

/// The time between two looks, and so how much later than it began or ended something is noted.
pub const LOOK: Duration = Duration::from_secs(5);
/// A finding that returns within this time was never mended.
pub const MENDED_AFTER: Duration = Duration::from_mins(1);
/// A look that came this late has not seen when something ended.
const LATE: Duration = Duration::from_secs(20);
/// An outage of PostgreSQL is noted if at least this long passed between the first look that failed
/// and the next one that succeeded. It is longer than two of [`LOOK`], because a failed look or two
/// are no outage.
pub const OUTAGE: Duration = Duration::from_secs(15);
/// Held while events are noted, so that several processes note each of them once. The number stands
/// for nothing else.
pub(super) const LOCK: i64 = 0x6669_6e64;

/// What a process remembers between its looks.
#[derive(Clone, Debug)]
pub struct FindingWatch {
    /// What comes back within this time was never mended.
    mended_after: Duration,
    /// What the history says is open.
    open: BTreeMap<String, FindingSpan>,
    /// The last look, up to which the history was read, and what it has found.
    looked_at: Option<OffsetDateTime>,
    seen: BTreeSet<String>,
    /// What is open and was not found, perhaps for a moment only.
    gone: BTreeMap<String, Gone>,
    /// What is open and is not as bad any more, perhaps for a moment only, with the first such
    /// look.
    better: BTreeMap<String, OffsetDateTime>,
    /// The outage of PostgreSQL that this process has seen and that is not noted yet.
    outage: Option<Outage>,
}

/// A time in which PostgreSQL could not be read.
#[derive(Clone, Debug)]
struct Outage {
    since: OffsetDateTime,
    why: String,
    /// The first look that could read it again.
    until: Option<OffsetDateTime>,
}

/// What one look has found, and what it has noted.
#[derive(Debug)]
pub struct FindingUpdate {
    pub report: HealthReport,
    pub noted: Vec<FindingEvent>,
}

/// The first look that did not find something.
#[derive(Clone, Copy, Debug)]
struct Gone {
    at: OffsetDateTime,
    /// Whether the look shortly before had found it.
    was_seen: bool,
}

impl Default for FindingWatch {
    fn default() -> Self {
        Self::new(MENDED_AFTER)
    }
}

impl FindingWatch {
    /// Another time than [`MENDED_AFTER`] is for tests, which cannot wait for a minute.
    pub fn new(mended_after: Duration) -> Self {
        Self {
            mended_after,
            open: BTreeMap::new(),
            looked_at: None,
            seen: BTreeSet::new(),
            gone: BTreeMap::new(),
            better: BTreeMap::new(),
            outage: None,
        }
    }

    /// Examines the system, and notes what has opened, changed or been mended since the look
    /// before.
    pub async fn update(&mut self, connection: &mut PgConnection) -> Result<FindingUpdate> {
        let report = examine::examine(&mut *connection).await?;
        if let Some(outage) = &mut self.outage {
            outage.until.get_or_insert(report.at);
        }
        let from = self.looked_at.map(|at| at - MENDED_AFTER);
        let noted: Result<Option<(Self, Vec<FindingEvent>)>> =
            transaction!(connection, "findings::note", |transaction| {
                let lock = sqlx::query_scalar!(
                    r#"SELECT pg_try_advisory_xact_lock($1) AS "locked!""#,
                    LOCK
                );
                if !lock.fetch_one(&mut **transaction).await? {
                    // Somebody else notes now, and this process reads it with its next look.
                    return Ok(TransactionEnd::Rollback(None));
                }
                let mut watch = self.clone();
                watch.read(&mut *transaction, from).await?;
                watch.skip_noted_outage(&mut *transaction).await?;
                let events = watch.step(&report);
                let mut noted = Vec::with_capacity(events.len());
                for event in events {
                    noted.push(record::note(transaction, event).await?);
                }
                Ok(TransactionEnd::Commit(Some((watch, noted))))
            });
        let noted = match noted? {
            None => Vec::new(),
            Some((watch, noted)) => {
                *self = watch;
                noted
            }
        };
        Ok(FindingUpdate { report, noted })
    }

    /// Remembers that PostgreSQL cannot be read, and returns since when. Once it can be again, that
    /// is noted, if it lasted.
    pub fn outage(&mut self, now: OffsetDateTime, why: &str) -> OffsetDateTime {
        let outage = self.outage.get_or_insert_with(|| Outage {
            since: now,
            why: why.to_owned(),
            until: None,
        });
        outage.until = None;
        outage.since
    }

    /// Forgets an outage that another process has seen, too, and has noted already.
    async fn skip_noted_outage(&mut self, connection: &mut PgConnection) -> Result<()> {
        let Some(outage) = &self.outage else {
            return Ok(());
        };
        let query = sqlx::query_scalar!(
            r#"SELECT EXISTS (
                   SELECT FROM history
                   WHERE provider = '' AND order_id IS NULL AND at >= $1 AND kind = $2 AND reason = $3
                     AND (before ->> 'until')::timestamptz >= $1) AS "noted!""#,
            outage.since,
            FindingChange::Mended.as_str(),
            database_down(outage).kind.key(),
        );
        if query.fetch_one(connection).await? {
            self.outage = None;
        }
        Ok(())
    }

    /// Reads what the history says is open, or what it says anew since a time.
    async fn read(
        &mut self,
        connection: &mut PgConnection,
        from: Option<OffsetDateTime>,
    ) -> Result<()> {
        let query = sqlx::query!(
            r#"SELECT DISTINCT ON (reason) reason AS "key!", kind, coalesce(after, before)::text AS span
               FROM history
               WHERE provider = '' AND order_id IS NULL AND at >= coalesce($1, '-infinity'::timestamptz)
                 AND kind NOT IN ('finding_alert', 'finding_alerted')
               ORDER BY reason, at DESC, kind = 'finding_mended' DESC"#,
            from,
        );
        for row in query.fetch_all(connection).await? {
            let span = row.span.and_then(|span| serde_json::from_str(&span).ok());
            match (row.kind.parse(), span) {
                (Ok(FindingChange::Opened | FindingChange::Changed), Some(span)) => {
                    self.open.insert(row.key, span);
                }
                _ => {
                    self.open.remove(&row.key);
                }
            }
        }
        Ok(())
    }

    /// What this look has changed.
    fn step(&mut self, report: &HealthReport) -> Vec<NewEvent> {
        let now = report.at;
        let looked_lately = self.looked_at.is_some_and(|at| now - at <= LATE);
        let mut events = self.outage_over();
        let mut found = BTreeSet::new();
        for one in &report.findings {
            let key = one.kind.key();
            // Of two with one key the worse one comes first.
            if found.insert(key.clone()) {
                events.extend(self.note_found(key, one, now));
            }
        }
        self.better.retain(|key, _| found.contains(key));
        let is_missing = |key: &&String| !found.contains(*key) && report.could_find(key);
        let missing = self.open.keys().filter(is_missing);
        let missing: Vec<String> = missing.cloned().collect();
        self.gone.retain(|key, _| missing.contains(key));
        for key in missing {
            let was_seen = looked_lately && self.seen.contains(&key);
            let gone = Gone { at: now, was_seen };
            let gone = *self.gone.entry(key.clone()).or_insert(gone);
            if now - gone.at >= self.mended_after
                && let Some(span) = self.open.remove(&key)
            {
                self.gone.remove(&key);
                events.push(NewEvent {
                    change: FindingChange::Mended,
                    what: span.was.clone(),
                    key,
                    span: FindingSpan {
                        until: Some(gone.at),
                        at_latest: !gone.was_seen,
                        ..span
                    },
                });
            }
        }
        self.looked_at = Some(now);
        self.seen = found;
        events
    }

    fn note_found(&mut self, key: String, one: &Finding, now: OffsetDateTime) -> Option<NewEvent> {
        let severity = one.severity();
        let known = self.open.get(&key).map(|span| span.severity);
        if known.is_none_or(|known| known <= severity) {
            self.better.remove(&key);
        }
        let change = match known {
            None => FindingChange::Opened,
            Some(known) if known < severity => FindingChange::Changed,
            Some(known) if known > severity => {
                // What swings between two severities has the worse one.
                let since = *self.better.entry(key.clone()).or_insert(now);
                if now - since < self.mended_after {
                    return None;
                }
                self.better.remove(&key);
                FindingChange::Changed
            }
            Some(_) => return None,
        };
        let since = self.open.get(&key).map(|span| span.since);
        let span = FindingSpan {
            severity,
            was: one.kind.was(),
            since: since.or(one.since).unwrap_or(now).min(now),
            until: None,
            at_latest: false,
        };
        self.open.insert(key.clone(), span.clone());
        let what = one.kind.what();
        Some(NewEvent {
            change,
            key,
            what,
            span,
        })
    }

    /// PostgreSQL could not be read, and can be again: that has opened and was mended. One failed
    /// look is no outage.
    fn outage_over(&mut self) -> Vec<NewEvent> {
        let Some(outage) = self.outage.take() else {
            return Vec::new();
        };
        let Some(until) = outage.until.filter(|until| *until - outage.since >= OUTAGE) else {
            return Vec::new();
        };
        let one = database_down(&outage);
        let key = one.kind.key();
        let opened = self.note_found(key.clone(), &one, until);
        let mended = self.open.remove(&key).map(|span| NewEvent {
            change: FindingChange::Mended,
            key,
            what: span.was.clone(),
            span: FindingSpan {
                until: Some(until),
                ..span
            },
        });
        opened.into_iter().chain(mended).collect()
    }
}

fn database_down(outage: &Outage) -> Finding {
    let why = outage.why.clone();
    Finding::new(FindingKind::DatabaseDown { why }, Some(outage.since))
}

/// From whom a finding may be taken.
#[derive(Clone, Copy, Debug)]
pub enum TakeFrom<'a> {
    /// Only what nobody else has.
    Nobody,
    /// Whoever was shown to have it at this time, as [`rfc3339`] writes it.
    AsSeen(&'a str),
    /// Whoever has it.
    Anybody,
}

/// What became of the wish to take a finding.
#[derive(Clone, Debug)]
pub enum Taken {
    Yours {
        until: OffsetDateTime,
        /// Who else had it until now.
        before: Option<FindingOwner>,
    },
    /// Somebody else has it.
    Theirs(FindingOwner),
    /// Somebody has taken it just now, after what was shown.
    JustTaken,
    /// Nothing of this name is wrong now.
    Unknown,
}

/// Takes what is found now under this key for a time, which begins at the time of the database; no
/// time lets it go.
pub async fn take(
    connection: &mut PgConnection,
    key: &str,
    time: Duration,
    from: TakeFrom<'_>,
    action: Action<'_>,
) -> Result<Taken> {
    let report = examine::examine(&mut *connection).await?;
    let mut findings = report.findings.into_iter();
    let Some(found) = findings.find(|one| one.kind.key() == key) else {
        return Ok(Taken::Unknown);
    };
    let before = found.taken.filter(|one| one.by != action.actor.name);
    let examined_at = rfc3339(report.at);
    let seen = match (from, &before) {
        (TakeFrom::Nobody, Some(owner)) => return Ok(Taken::Theirs(owner.clone())),
        (TakeFrom::Nobody, None) => Some(examined_at.as_str()),
        (TakeFrom::AsSeen(seen), _) => Some(seen),
        (TakeFrom::Anybody, _) => None,
    };
    let until = report.at + time;
    let take = async |transaction: &mut Transaction<'_>| {
        // Of two who take it at once, one waits and sees that the other one has it.
        sqlx::query!("SELECT pg_advisory_xact_lock($1)", LOCK)
            .execute(&mut **transaction)
            .await?;
        let ids = [key.to_owned()];
        if let Some(seen) = seen
            && !actions::is_as_seen(transaction, &ids, &[Command::FindingTake], seen).await?
        {
            return Ok(None);
        }
        let after = json!({ "until": rfc3339(until) });
        Ok(Some(((), ActionChange::created(after))))
    };
    let taken = actions::recorded(connection, action, take).await?;
    Ok(taken.map_or(Taken::JustTaken, |()| Taken::Yours { until, before }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use time::macros::datetime;

    use super::{
        super::{finding::Severity, samples},
        *,
    };

    const AT: OffsetDateTime = datetime!(2026-11-29 17:50:46 UTC);

    /// What a look at this second changes that finds these.
    fn look(watch: &mut FindingWatch, second: i64, found: &[&Finding]) -> Vec<NewEvent> {
        let found = found.iter().map(|one| (*one).clone()).collect();
        let at = AT + time::Duration::seconds(second);
        if let Some(outage) = &mut watch.outage {
            outage.until = Some(at);
        }
        watch.step(&samples::report(at, found))
    }

    fn changes(events: &[NewEvent]) -> Vec<FindingChange> {
        events.iter().map(|one| one.change).collect()
    }

    #[test]
    fn a_finding_opens_changes_and_is_mended_once() {
        let mut watch = FindingWatch::default();
        let samples = samples::samples(AT);
        let mut blocked = samples
            .iter()
            .filter(|one| matches!(one.kind, FindingKind::Blocked { .. }));
        let is_mild = |one: &&Finding| one.severity() == Severity::Mends;
        let (mild, grave): (Vec<&Finding>, Vec<&Finding>) = blocked.by_ref().partition(is_mild);
        let opened = look(&mut watch, 4, &[mild[0]]);
        assert_eq!(changes(&opened), [FindingChange::Opened]);
        assert_eq!(opened[0].span.since, AT, "not when it was noticed");
        assert_eq!(look(&mut watch, 14, &[mild[0]]), []);
        let changed = look(&mut watch, 24, &[grave[0]]);
        assert_eq!(changes(&changed), [FindingChange::Changed]);
        assert_eq!(changed[0].span.severity, grave[0].severity());
        // It flickers: the minute begins anew.
        assert_eq!(look(&mut watch, 34, &[]), []);
        assert_eq!(look(&mut watch, 84, &[grave[0]]), []);
        assert_eq!(look(&mut watch, 94, &[]), []);
        assert_eq!(look(&mut watch, 144, &[]), []);
        let mended = look(&mut watch, 154, &[]);
        assert_eq!(changes(&mended), [FindingChange::Mended]);
        let ended = AT + time::Duration::seconds(94);
        assert_eq!(mended[0].span.until, Some(ended), "not a minute later");
        assert_eq!(look(&mut watch, 164, &[]), []);
        let again = look(&mut watch, 174, &[grave[0]]);
        assert_eq!(changes(&again), [FindingChange::Opened]);
    }

    #[test]
    fn an_end_that_nobody_saw_is_the_latest_time() {
        let samples = samples::samples(AT);
        for (next, at_latest) in [(10, false), (4_000, true)] {
            let mut watch = FindingWatch::default();
            look(&mut watch, 0, &[&samples[0]]);
            look(&mut watch, next, &[]);
            let mended = look(&mut watch, next + 60, &[]);
            assert_eq!(changes(&mended), [FindingChange::Mended]);
            assert_eq!(mended[0].span.at_latest, at_latest);
        }
    }

    #[test]
    fn an_outage_of_the_database_is_told_once_it_is_over() {
        let mut watch = FindingWatch::default();
        watch.outage(AT, "no route to host");
        let since = watch.outage(AT + LOOK, "another error");
        assert_eq!(since, AT);
        let noted = look(&mut watch, 44, &[]);
        assert_eq!(
            changes(&noted),
            [FindingChange::Opened, FindingChange::Mended]
        );
        assert!(noted[0].what.contains("no route to host"), "{noted:?}");
        assert_eq!(noted[1].span.since, AT);
        assert_eq!(look(&mut watch, 54, &[]), []);
        watch.outage(AT + time::Duration::seconds(64), "one look");
        assert_eq!(look(&mut watch, 74, &[]), []);
    }

    /// A role may see less than another one, and an older version knows less.
    #[test]
    fn what_this_process_cannot_find_it_does_not_end() {
        let mut watch = FindingWatch::new(Duration::ZERO);
        let unseen = FindingKind::NotSynchronous;
        let span = FindingSpan {
            severity: Severity::Warning,
            was: "it was so".to_owned(),
            since: AT,
            until: None,
            at_latest: false,
        };
        let keys = [unseen.key(), "of_a_newer_version:x".to_owned()];
        for key in keys {
            watch.open.insert(key, span.clone());
        }
        let mut report = samples::report(AT, Vec::new());
        report.unseen = vec![unseen.matter()];
        assert_eq!(watch.step(&report), []);
        report.unseen.clear();
        assert_eq!(changes(&watch.step(&report)), [FindingChange::Mended]);
    }

    /// An act names it, and its index has the first 100 characters of a word.
    #[test]
    fn a_key_is_one_short_word_and_each_finding_was_something() {
        let mut keys = BTreeSet::new();
        for one in samples::samples(AT) {
            let key = one.kind.key();
            assert!(key.len() <= 100 && !key.contains(char::is_whitespace));
            assert!(!one.kind.was().is_empty());
            keys.insert(key);
        }
        assert!(keys.len() > 50, "{keys:?}");
    }
}

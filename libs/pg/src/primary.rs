//! What the pool knows about the primary, the PostgreSQL server that takes the writes, and the
//! commit fence, which stops all purchases if that server has lost commits
//! (docs/decisions/0026-any-server-lost.md).
//!
//! The pool ([`crate::database`]) relies on this module for three things:
//!
//! - A new connection is used only after [`Primary::examine`] has looked at its server. A standby
//!   is refused, and so is a primary that was replaced, and a server that acknowledges commits
//!   earlier than the operator allows.
//! - If the new connection leads to another primary than before, or to one that was restored, and
//!   acknowledged commits may be missing there, the breakers of all providers are opened before
//!   anything else runs. Otherwise purchases that the database has forgotten would be made again.
//! - A primary that froze, was replaced and then continues does not know that it was replaced. So
//!   after [`SILENCE`], [`Primary::is_believed`] is false until a new connection was examined.
//!
//! The pulse ([`Primary::pulse`]) is a row that every process commits once a second. It shows
//! whether commits get through, whether they would survive the loss of the primary, and whether the
//! server still has the last pulse that it acknowledged.
//!
//! The module `server` holds what a server says about itself, and what the operator demands of it.

mod server;

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use runtime::clock::Moment;
use sqlx::PgConnection;
use uuid::Uuid;

pub use self::server::DurabilityConfig;
use self::server::{PrimaryServer, ahead};
pub use crate::unfit::Unfit;
use crate::{Error, Result};

/// After a silence of this length, a response of the server is believed only if a new connection
/// shows that the server is still the primary. A healthy process never has such a silence, because
/// of its pulse. A failover takes longer, because its manager must notice the silence first.
pub(crate) const SILENCE: Duration = Duration::from_secs(2);
/// The age after which the pulse of a process that is gone is deleted.
const OLD: Duration = Duration::from_hours(30 * 24);

/// The result of a pulse.
#[derive(Clone, Debug)]
pub struct Pulse {
    /// Whether a commit survives the loss of the primary, because it waits for a standby.
    pub is_replicated: bool,
    /// Why nothing else may run on the server, although the pulse was committed.
    pub unfit: Option<Unfit>,
    /// How far the server's clock is ahead of this machine's, in seconds; negative if it is behind.
    pub clock_ahead: f64,
    /// How often this process has been the first to find that commits were lost.
    pub losses: u64,
}

/// What one process knows of the primary.
#[derive(Debug)]
pub(crate) struct Primary {
    /// Identifies the process in `pulses`.
    instance: Uuid,
    /// The name of the stage.
    stage: String,
    /// Where it runs, for people.
    host: Option<String>,
    durability: DurabilityConfig,
    /// Held while a new connection is examined, so that none is used before the fence has done its
    /// work on the first connection to another primary.
    examining: tokio::sync::Mutex<()>,
    known: Mutex<KnownServer>,
    /// What its pulses tell of this process besides.
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct KnownServer {
    /// The timeline of the primary; `None` before the first connection. Each promotion raises it.
    timeline: Option<u32>,
    /// When the server last responded. `None` before the first connection.
    heard_at: Option<Moment>,
    /// Why nothing may run, if the last pulse found the server unfit.
    unfit: Option<Unfit>,
    /// The number of the last pulse that was sent, whatever became of it.
    sent: i64,
    /// The number of the last pulse that was acknowledged; 0 before the first.
    acknowledged: i64,
    /// Whether commits waited for a standby when that pulse was acknowledged.
    is_replicated: bool,
    losses: u64,
}

/// What the pulses of a process tell operators.
#[derive(Clone, Debug, Default)]
struct Told {
    is_without_nats: bool,
    /// What NATS refuses to it.
    nats_refused: Option<String>,
    /// How far the server's clock was ahead of ours at the last pulse, in seconds, if that is too
    /// far.
    clock_ahead: Option<f64>,
}

/// The name of the host of this process. In a pod it is the name of the pod, and in a container of
/// another kind its id, as `docker ps` shows it. Only Linux tells it in this way.
fn host() -> Option<String> {
    let named = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let named = named.trim();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let fits = (1..=253).contains(&named.len()) && named.chars().all(is_plain);
    fits.then(|| named.to_owned())
}

impl KnownServer {
    fn before(&self) -> Before {
        Before {
            timeline: self.timeline,
            acknowledged: self.acknowledged,
            is_replicated: self.is_replicated,
        }
    }
}

/// A pulse that was committed, but not yet believed.
pub(crate) struct SentPulse {
    number: i64,
    server: PrimaryServer,
    unfit: Option<Unfit>,
}

/// The newest pulse of all processes.
struct NewestPulse {
    timeline: i64,
    is_replicated: bool,
}

impl Primary {
    pub(crate) fn new(stage: &str, durability: DurabilityConfig) -> Self {
        Self {
            instance: Uuid::now_v7(),
            stage: stage.to_owned(),
            host: host(),
            durability,
            examining: tokio::sync::Mutex::default(),
            known: Mutex::default(),
            told: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, KnownServer> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses to run anything while the server does not commit as the operator demands.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.known().unfit {
            Some(unfit) => Err(Error::Unfit(unfit.clone())),
            None => Ok(()),
        }
    }

    /// Whether another primary has taken the place of the server on this timeline.
    pub(crate) fn is_replaced(&self, timeline: u32) -> bool {
        self.known()
            .timeline
            .is_some_and(|newest| timeline < newest)
    }

    /// Whether the server was silent for so long that another one may have taken its place.
    pub(crate) fn is_silent(&self) -> bool {
        let heard_at = self.known().heard_at;
        heard_at.is_none_or(|heard_at| (heard_at + SILENCE).has_passed())
    }

    /// Notes that a connection to a server on this timeline has responded. Returns whether the
    /// response is believed. If not, the caller has to examine a new connection first.
    pub(crate) fn is_believed(&self, timeline: u32) -> bool {
        if self.is_replaced(timeline) || self.is_silent() {
            return false;
        }
        self.known().heard_at = Some(Moment::now());
        true
    }

    /// Examines the server of a new connection, before anything else runs on it. If it is another
    /// primary than before and commits may be missing there, this opens the breakers of all
    /// providers. Returns the timeline of the server.
    pub(crate) async fn examine(&self, connection: &mut PgConnection) -> Result<u32> {
        let _one_at_a_time = self.examining.lock().await;
        let server = PrimaryServer::read(&mut *connection).await?;
        let timeline = server.timeline.ok_or(Unfit::Standby)?;
        server.check(&self.durability)?;
        let before = self.examined(timeline, &server)?;
        if server.has_pulses {
            self.compare(connection, timeline, &before).await?;
        }
        let mut known = self.known();
        known.timeline = Some(timeline);
        known.heard_at = Some(Moment::now());
        if before.timeline.is_some_and(|before| before < timeline) {
            tracing::warn!(
                timeline,
                before = before.timeline,
                "another PostgreSQL server has become the primary; the connections to the old one are closed"
            );
        }
        Ok(timeline)
    }

    /// Compares the timeline with the one that is known. Returns what was known before.
    fn examined(&self, timeline: u32, server: &PrimaryServer) -> Result<Before, Unfit> {
        let known = self.known();
        match known.timeline {
            Some(newest) if timeline < newest => {
                return Err(Unfit::Replaced {
                    found: timeline,
                    newest,
                });
            }
            // Later each pulse checks the clocks, and it has to be committed to tell of them.
            None => server.check_clock()?,
            Some(_) => {}
        }
        Ok(known.before())
    }

    /// Finds out whether commits may be missing on a server, and stops all purchases if so.
    async fn compare(
        &self,
        connection: &mut PgConnection,
        timeline: u32,
        before: &Before,
    ) -> Result<()> {
        let is_new = before.timeline != Some(timeline);
        let mut fault = None;
        if before.acknowledged > 0 {
            let stored = self.stored_pulse(connection).await?;
            fault = before.missing(self.instance, stored);
        }
        if is_new && fault.is_none() {
            let newest = newest_pulse(connection, timeline).await?;
            fault = before.unsafe_promotion(timeline, newest.as_ref());
        }
        if let Some(fault) = fault {
            // Within a timeline each loss is a new one.
            let new_timeline = is_new.then_some(timeline);
            self.stop_buying(connection, &fault, new_timeline).await?;
        }
        Ok(())
    }

    /// The number of our pulse in the database; 0 if there is none.
    async fn stored_pulse(&self, connection: &mut PgConnection) -> Result<i64> {
        let query = sqlx::query_scalar!(
            "SELECT number FROM pulses WHERE instance = $1",
            self.instance
        );
        let number = query.fetch_optional(connection).await?;
        Ok(number.unwrap_or_default())
    }

    /// Commits the next pulse, unless the one before is missing. Then it stops all purchases first.
    pub(crate) async fn pulse(&self, connection: &mut PgConnection) -> Result<SentPulse> {
        let (number, mut before) = self.next_pulse();
        if before.acknowledged == 0 {
            self.delete_old(connection).await?;
        }
        let mut beat = self.beat(connection, number, before.acknowledged).await?;
        if let Some(fault) = before.missing(self.instance, beat.stored) {
            self.stop_buying(connection, &fault, None).await?;
            before = self.known().before();
            beat = self.beat(connection, number, before.acknowledged).await?;
        }
        Ok(self.judge(number, beat.server))
    }

    /// Whether anything may run on the server that has committed the pulse `number`.
    fn judge(&self, number: i64, server: PrimaryServer) -> SentPulse {
        let fit = server.check(&self.durability);
        SentPulse {
            number,
            unfit: fit.and_then(|()| server.check_clock()).err(),
            server,
        }
    }

    /// Reads the pulse that the database has, and what the server says about itself, and commits
    /// the pulse `number`, all in one statement, because every process does this once a second.
    ///
    /// What stops orders stops it, too. An order needs room on the disk, and this row is written
    /// over and over in the same place, so the statement also writes some kilobytes to a temporary
    /// file (`room`): on a full disk that fails.
    ///
    /// It writes nothing if the database lacks what it acknowledged. Otherwise the new number would
    /// hide the loss if the response is lost. A pulse that was given up may arrive late, so the
    /// number never falls.
    async fn beat(
        &self,
        connection: &mut PgConnection,
        number: i64,
        acknowledged: i64,
    ) -> Result<Beat> {
        let told = self.told().clone();
        let asked = Moment::now();
        let query = sqlx::query!(
            r#"WITH server AS MATERIALIZED (
                   -- The first eight digits of the name of a WAL file are the timeline.
                   SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint AS timeline,
                          current_setting('synchronous_commit') AS synchronous_commit,
                          current_setting('synchronous_standby_names') AS standby_names,
                          extract(epoch FROM clock_timestamp())::float8 AS clock
               ), before AS MATERIALIZED (
                   SELECT coalesce(max(number), 0) AS number FROM pulses WHERE instance = $1
               ), room AS MATERIALIZED (
                   -- As in `server::find_room`. The rows do not fit into so little memory.
                   SELECT count(*) AS rows
                   FROM generate_series(1, 2000 + 0 * length(set_config('work_mem', '64kB', true)))
               ), pulse AS (
                   INSERT INTO pulses AS p (instance, stage, number, timeline, replicated, at, no_nats_since,
                       nats_refused, nats_refused_since, clock_ahead, clock_off_since, host)
                   -- The same as `Server::is_replicated`.
                   SELECT $1, $2, $3, server.timeline,
                          btrim(server.standby_names) <> '' AND server.synchronous_commit <> ALL ('{off,local}'), now(),
                          CASE WHEN $5::bool THEN now() END, $6, CASE WHEN $6::text IS NOT NULL THEN now() END,
                          $7, CASE WHEN $7::float8 IS NOT NULL THEN now() END, $8
                   FROM server CROSS JOIN before WHERE before.number >= $4
                   ON CONFLICT (instance) DO UPDATE
                   SET number = greatest(p.number, excluded.number), timeline = excluded.timeline,
                       replicated = excluded.replicated, at = excluded.at,
                       no_nats_since = CASE WHEN $5 THEN coalesce(p.no_nats_since, now()) END,
                       nats_refused = excluded.nats_refused,
                       nats_refused_since = CASE WHEN $6 IS NOT NULL THEN coalesce(p.nats_refused_since, now()) END,
                       clock_ahead = excluded.clock_ahead,
                       clock_off_since = CASE WHEN $7 IS NOT NULL THEN coalesce(p.clock_off_since, now()) END
               )
               SELECT before.number AS "stored!", server.timeline AS "timeline!", server.clock AS "clock!",
                      server.synchronous_commit AS "synchronous_commit!", server.standby_names AS "standby_names!"
               FROM server CROSS JOIN before CROSS JOIN room"#,
            self.instance,
            self.stage,
            number,
            acknowledged,
            told.is_without_nats,
            told.nats_refused,
            told.clock_ahead,
            self.host,
        );
        let row = query.fetch_one(connection).await?;
        Ok(Beat {
            stored: row.stored,
            server: PrimaryServer {
                timeline: row.timeline.try_into().ok(),
                synchronous_commit: row.synchronous_commit,
                standby_names: row.standby_names,
                clock_ahead: ahead(asked, row.clock),
                has_pulses: true,
            },
        })
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether this process is without NATS, and what NATS refuses to it, for its next
    /// pulses.
    pub(crate) fn note_nats(&self, is_up: bool, refused: Option<String>) {
        let mut told = self.told();
        told.is_without_nats = !is_up;
        told.nats_refused = refused;
    }

    /// Takes the number of the next pulse. Returns it with what is known before it.
    fn next_pulse(&self) -> (i64, Before) {
        let mut known = self.known();
        known.sent += 1;
        (known.sent, known.before())
    }

    /// Takes over the result of a pulse, once the server that gave it is believed.
    pub(crate) fn acknowledge(&self, sent: SentPulse) -> Pulse {
        let clock_ahead = sent.server.clock_ahead;
        self.told().clock_ahead = sent.server.check_clock().is_err().then_some(clock_ahead);
        let mut known = self.known();
        known.acknowledged = known.acknowledged.max(sent.number);
        known.is_replicated = sent.server.is_replicated();
        known.unfit.clone_from(&sent.unfit);
        Pulse {
            is_replicated: known.is_replicated,
            unfit: sent.unfit,
            clock_ahead,
            losses: known.losses,
        }
    }

    /// Notes that this process ends in an orderly way, so that nobody misses its pulse.
    pub(crate) async fn stopped(&self, connection: &mut PgConnection) -> Result<()> {
        let statement = sqlx::query!(
            "UPDATE pulses SET stopped = true WHERE instance = $1",
            self.instance
        );
        statement.execute(connection).await?;
        Ok(())
    }

    /// Deletes the pulses of processes that have been gone for long, and those of a later timeline
    /// than the server's. A dump that was loaded into a new server brings such pulses, because its
    /// timelines begin at 1 again, and they would count as the newest ones after its promotions. A
    /// trigger deletes the losses of such timelines with them.
    async fn delete_old(&self, connection: &mut PgConnection) -> Result<()> {
        let statement = sqlx::query!(
            "DELETE FROM pulses WHERE at < now() - make_interval(secs => $1) OR timeline > $2",
            crate::seconds(OLD),
            self.known().timeline.map(i64::from),
        );
        statement.execute(connection).await?;
        Ok(())
    }

    /// The commit fence: opens the breakers of all providers until an operator closes them.
    /// `new_timeline` is the timeline that begins with the loss.
    async fn stop_buying(
        &self,
        connection: &mut PgConnection,
        loss: &Loss,
        new_timeline: Option<u32>,
    ) -> Result<()> {
        let acknowledged = match loss {
            Loss::Pulse { acknowledged, .. } => Some(*acknowledged),
            Loss::Promotion { .. } => None,
        };
        // The function words the reason itself, so that nobody can stop all purchases with a forged
        // one.
        let query = sqlx::query_scalar!(
            r#"SELECT commits_lost($1, $2, $3) AS "is_first!""#,
            self.instance,
            acknowledged,
            new_timeline.map(i64::from),
        );
        let is_first = query.fetch_one(connection).await?;
        let mut known = self.known();
        // The next loss is measured against what the server has now.
        known.acknowledged = 0;
        if is_first {
            known.losses += 1;
            tracing::error!(
                fault = %loss,
                "PostgreSQL may have lost commits, and with them the knowledge of purchases; the breakers of all \
                 providers are open until an operator closes them (docs/operations.md#commitslost)"
            );
        } else {
            tracing::warn!(
                fault = %loss,
                "commits may have been lost; another process has noticed that before, so nothing more is done"
            );
        }
        Ok(())
    }
}

/// The newest pulse of all processes that was committed on a timeline up to this one. It is from
/// before the server's promotion, unless a process has examined the server already.
async fn newest_pulse(connection: &mut PgConnection, timeline: u32) -> Result<Option<NewestPulse>> {
    let query = sqlx::query_as!(
        NewestPulse,
        "SELECT timeline, replicated AS is_replicated FROM pulses
         WHERE timeline <= $1
         ORDER BY timeline DESC, at DESC LIMIT 1",
        i64::from(timeline),
    );
    Ok(query.fetch_optional(connection).await?)
}

/// Why commits count as lost.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Loss {
    #[error(
        "commits were lost: the database has pulse {stored} of process {instance}, and pulse {acknowledged} was acknowledged"
    )]
    Pulse {
        instance: Uuid,
        stored: i64,
        acknowledged: i64,
    },
    #[error(
        "commits may be lost: the timeline changed from {before} to {timeline}, and commits did not wait for a standby before"
    )]
    Promotion { before: i64, timeline: u32 },
}

/// The response to a pulse.
struct Beat {
    /// The number of our pulse in the database before this one; 0 if there was none.
    stored: i64,
    server: PrimaryServer,
}

/// What was known before a connection was examined, or before a pulse.
struct Before {
    timeline: Option<u32>,
    acknowledged: i64,
    is_replicated: bool,
}

impl Before {
    /// What is wrong if the database has our pulse `stored`; `None` if it has all that it
    /// acknowledged.
    fn missing(&self, instance: Uuid, stored: i64) -> Option<Loss> {
        (stored < self.acknowledged).then_some(Loss::Pulse {
            instance,
            stored,
            acknowledged: self.acknowledged,
        })
    }

    /// What is wrong with a server on a timeline that is new to this process; `None` if every
    /// commit had to wait for a standby before.
    ///
    /// The newest pulse that the server has decides, of whichever process it is. If it waited for a
    /// standby, so did everything before it on its timeline, because a standby gets commits in
    /// their order. So a process may have slept since a standby was missing, or through a whole
    /// timeline. Its own last pulse decides only if the server has none of the timeline that it
    /// knows.
    ///
    /// A pulse on the new timeline shows that another process has decided: it commits none before
    /// it has examined the server, and the first one saw all pulses from before the promotion.
    fn unsafe_promotion(&self, timeline: u32, newest: Option<&NewestPulse>) -> Option<Loss> {
        let known = self.timeline.map(i64::from);
        let (before, is_replicated) = match (known, newest) {
            (Some(known), Some(newest)) if newest.timeline < known => (known, self.is_replicated),
            (Some(known), None) => (known, self.is_replicated),
            (_, Some(newest)) => (newest.timeline, newest.is_replicated),
            (None, None) => return None,
        };
        let is_unsafe = before < i64::from(timeline) && !is_replicated;
        is_unsafe.then_some(Loss::Promotion { before, timeline })
    }
}

#[cfg(test)]
mod tests {
    use super::{server::tests::server, *};

    fn before(is_replicated: bool) -> Before {
        Before {
            timeline: Some(3),
            acknowledged: 7,
            is_replicated,
        }
    }

    #[test]
    fn commits_are_missing_if_the_pulse_went_back() {
        assert!(before(true).missing(Uuid::nil(), 7).is_none());
        assert!(before(true).missing(Uuid::nil(), 6).is_some());
    }

    #[test]
    fn a_promotion_is_unsafe_unless_commits_waited_for_a_standby() {
        assert!(before(false).unsafe_promotion(3, None).is_none());
        assert!(before(true).unsafe_promotion(4, None).is_none());
        assert!(before(false).unsafe_promotion(4, None).is_some());
        // What others have seen since.
        let newest = |timeline, is_replicated| NewestPulse {
            timeline,
            is_replicated,
        };
        let unsafe_at = |timeline, is_replicated, newest: NewestPulse| {
            before(is_replicated)
                .unsafe_promotion(timeline, Some(&newest))
                .is_some()
        };
        assert!(!unsafe_at(4, false, newest(3, true)));
        assert!(unsafe_at(4, true, newest(3, false)));
        assert!(unsafe_at(4, false, newest(2, true)));
        // Another process has examined the server and goes on.
        assert!(!unsafe_at(4, false, newest(4, false)));
        // A process that slept through timeline 4.
        assert!(!unsafe_at(5, false, newest(4, true)));
        assert!(unsafe_at(5, true, newest(4, false)));
        // A process that has just started.
        let fresh = Before {
            timeline: None,
            acknowledged: 0,
            is_replicated: false,
        };
        assert!(fresh.unsafe_promotion(4, None).is_none());
        assert!(fresh.unsafe_promotion(4, Some(&newest(4, false))).is_none());
        assert!(fresh.unsafe_promotion(4, Some(&newest(3, true))).is_none());
        assert!(fresh.unsafe_promotion(4, Some(&newest(3, false))).is_some());
    }

    #[test]
    fn a_start_with_a_wrong_clock_is_refused_and_an_older_timeline_at_any_time() {
        let primary = Primary::new("test", DurabilityConfig::default());
        let mut ahead = server("on", "");
        ahead.clock_ahead = -600.0;
        let refused = primary.examined(3, &ahead).err().unwrap();
        assert!(
            refused.to_string().contains("by 600s") && refused.needs_operator(),
            "{refused}"
        );
        primary.known().timeline = Some(3);
        assert!(
            primary.examined(3, &ahead).is_ok(),
            "the pulse checks it from then on"
        );
        let refused = primary.examined(2, &server("on", "")).err().unwrap();
        let expected = Unfit::Replaced {
            found: 2,
            newest: 3,
        };
        assert_eq!(refused, expected);
        assert!(!refused.needs_operator());
    }

    #[test]
    fn while_the_clocks_differ_nothing_runs_and_the_pulse_tells_it() {
        let primary = Primary::new("test", DurabilityConfig::default());
        let mut number = 0;
        let mut pulse = |ahead| {
            let mut server = server("on", "");
            server.clock_ahead = ahead;
            number += 1;
            let pulse = primary.acknowledge(primary.judge(number, server));
            (pulse.unfit.is_none(), primary.told().clock_ahead)
        };
        assert_eq!(pulse(20.0), (true, None));
        assert!(primary.check().is_ok());
        assert_eq!(pulse(-600.0), (false, Some(-600.0)));
        assert!(matches!(
            primary.check(),
            Err(Error::Unfit(Unfit::Clock { .. }))
        ));
        assert_eq!(pulse(0.5), (true, None));
        assert!(primary.check().is_ok());
    }

    #[test]
    fn after_a_silence_and_after_a_promotion_a_response_is_not_believed() {
        let primary = Primary::new("test", DurabilityConfig::default());
        assert!(!primary.is_believed(3), "nothing was examined yet");
        primary.known().timeline = Some(3);
        primary.known().heard_at = Some(Moment::now());
        assert!(primary.is_believed(3));
        let heard_at = Moment::now();
        let frozen = Moment {
            monotonic: heard_at.monotonic.checked_sub(SILENCE).unwrap(),
            ..heard_at
        };
        // Our machine was suspended, and only its wall clock has gone on.
        let suspended = Moment {
            wall: heard_at.wall - SILENCE,
            ..heard_at
        };
        for silent in [frozen, suspended] {
            primary.known().heard_at = Some(silent);
            assert!(primary.is_silent() && !primary.is_believed(3));
        }
        primary.known().heard_at = Some(Moment::now());
        primary.known().timeline = Some(4);
        assert!(!primary.is_believed(3) && primary.is_replaced(3));
    }
}

//! A PostgreSQL server as it describes itself, and what the operator demands of it.

use std::time::Duration;

use clap::Args;
use runtime::clock::Moment;
use sqlx::{PgConnection, Row};
use time::OffsetDateTime;

use crate::{
    Result,
    unfit::{LARGEST_SKEW, Unfit},
};

/// What the operator demands of the server.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "PostgreSQL")]
pub struct DurabilityConfig {
    /// Work only while every commit waits for a standby
    ///
    /// If the primary is lost, a standby that was synchronous has every order that was answered. An
    /// asynchronous one misses the last commits: answered orders are gone, and purchases have no
    /// order. With this setting a stage does not start, and stops accepting, buying and delivering,
    /// while `synchronous_standby_names` of the server is empty or its `synchronous_commit` is
    /// `local` or `off`. Set it wherever a standby may be promoted automatically.
    #[arg(
        long,
        env = "REQUIRE_SYNCHRONOUS",
        default_value_t = false,
        default_missing_value = "true",
        num_args = 0..=1,
        action = clap::ArgAction::Set
    )]
    pub require_synchronous: bool,
}

/// The properties of a server that matter here.
pub(super) struct PrimaryServer {
    /// `None`: it is a standby.
    pub(super) timeline: Option<u32>,
    pub(super) synchronous_commit: String,
    pub(super) standby_names: String,
    /// How far its clock is at least ahead of ours, in seconds; negative if it is behind.
    pub(super) clock_ahead: f64,
    /// Whether the schema has pulses; an older one has not.
    pub(super) has_pulses: bool,
}

/// What [`PrimaryServer::read`] asks. This is not a prepared statement, because through a pooler
/// another session may already use its name.
const SERVER: &str = "SELECT \
    CASE WHEN pg_is_in_recovery() THEN NULL ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END AS timeline, \
    current_setting('synchronous_commit') AS synchronous_commit, \
    current_setting('synchronous_standby_names') AS standby_names, \
    extract(epoch FROM clock_timestamp())::float8 AS clock, \
    to_regclass('pulses') IS NOT NULL AS has_pulses";

impl PrimaryServer {
    /// One statement, because each new connection waits for it.
    pub(super) async fn read(connection: &mut PgConnection) -> Result<Self> {
        let asked = Moment::now();
        let row = sqlx::raw_sql(SERVER).fetch_one(connection).await?;
        let timeline: Option<String> = row.try_get("timeline")?;
        let clock_ahead = ahead(asked, row.try_get("clock")?);
        Ok(Self {
            timeline: timeline.and_then(|digits| u32::from_str_radix(&digits, 16).ok()),
            synchronous_commit: row.try_get("synchronous_commit")?,
            standby_names: row.try_get("standby_names")?,
            clock_ahead,
            has_pulses: row.try_get("has_pulses")?,
        })
    }

    pub(super) fn is_replicated(&self) -> bool {
        !self.standby_names.trim().is_empty()
            && !matches!(self.synchronous_commit.as_str(), "off" | "local")
    }

    /// Whether the operator accepts how the server commits.
    pub(super) fn check(&self, durability: &DurabilityConfig) -> Result<(), Unfit> {
        // Such a server acknowledges a commit before it is on disk, so a crash of the server alone
        // loses answered orders and forgets purchases.
        if self.synchronous_commit == "off" {
            return Err(Unfit::AsynchronousCommit);
        }
        if durability.require_synchronous && !self.is_replicated() {
            return Err(Unfit::NotReplicated {
                names: self.standby_names.clone(),
                commit: self.synchronous_commit.clone(),
            });
        }
        Ok(())
    }

    /// Whether its clock and ours agree as far as the work needs: signatures hold a time, and a
    /// purchase that was not found is believed to be absent after a time.
    pub(super) fn check_clock(&self) -> Result<(), Unfit> {
        if self.clock_ahead.abs() <= LARGEST_SKEW.as_secs_f64() {
            return Ok(());
        }
        let difference = Duration::try_from_secs_f64(self.clock_ahead.abs().round());
        Err(Unfit::Clock {
            difference: difference.unwrap_or(Duration::MAX),
        })
    }
}

/// How far the server's `clock`, in seconds of Unix time, is ahead of ours, now that the response
/// to what was `asked` is there. The server looked at its clock at some moment between the question
/// and the response, which may be far apart, because a commit may wait for a standby. So only what
/// lies outside of this time counts.
pub(super) fn ahead(asked: Moment, clock: f64) -> f64 {
    let at = (asked.wall - OffsetDateTime::UNIX_EPOCH).as_seconds_f64();
    let answered = at + asked.monotonic.elapsed().as_secs_f64();
    clock - clock.clamp(at, answered)
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// A primary with these settings.
    pub(in crate::primary) fn server(commit: &str, names: &str) -> PrimaryServer {
        PrimaryServer {
            timeline: Some(1),
            synchronous_commit: commit.to_owned(),
            standby_names: names.to_owned(),
            clock_ahead: 0.0,
            has_pulses: true,
        }
    }

    #[test]
    fn only_a_clock_outside_of_the_round_trip_is_wrong() {
        let took = Duration::from_secs(100);
        let asked = Moment {
            monotonic: Instant::now().checked_sub(took).unwrap(),
            wall: OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1_000),
        };
        for (clock, expected) in [(990.0, -10.0), (1_000.0, 0.0), (1_050.0, 0.0)] {
            assert!((ahead(asked, clock) - expected).abs() < 0.1, "{clock}");
        }
        let late = ahead(asked, 1_400.0);
        assert!((200.0..=300.0).contains(&late), "{late}");
    }

    #[test]
    fn commits_count_as_replicated_only_if_they_wait_for_a_standby() {
        for commit in ["on", "remote_write", "remote_apply"] {
            assert!(server(commit, "ANY 1 (*)").is_replicated(), "{commit}");
            assert!(!server(commit, " ").is_replicated(), "{commit}");
        }
        for commit in ["off", "local"] {
            assert!(!server(commit, "ANY 1 (*)").is_replicated(), "{commit}");
        }
    }

    #[test]
    fn what_the_operator_demands_is_checked() {
        let demands = |require_synchronous| DurabilityConfig {
            require_synchronous,
        };
        let off = server("off", "");
        assert_eq!(off.check(&demands(false)), Err(Unfit::AsynchronousCommit));
        let alone = server("on", "");
        assert_eq!(alone.check(&demands(false)), Ok(()));
        let refused = alone.check(&demands(true)).unwrap_err();
        assert!(refused.to_string().contains("REQUIRE_SYNCHRONOUS"));
        assert_eq!(server("on", "*").check(&demands(true)), Ok(()));
    }
}

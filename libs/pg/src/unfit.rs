//! Why a server is not used, although it responds.

use std::time::Duration;

/// A program does not work while its clock and the server's differ by more than this. Partners sign
/// the time of their requests, so ingress would refuse all of them at a difference of five minutes;
/// and they would refuse our webhooks, whose time we sign.
pub(crate) const LARGEST_SKEW: Duration = Duration::from_secs(30);

/// Why a server is not used, although it responds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error(
        "the server is a standby, which takes no writes; DATABASE_URL, or the proxy that it names, must lead to the primary"
    )]
    Standby,
    #[error(
        "the server is on timeline {found}, but this process has used a server on timeline {newest}, which has taken its \
         place; DATABASE_URL, or the proxy that it names, must lead to the new primary, and the old one must be stopped. \
         If this server is the right one all the same, for example because a backup was restored, follow \
         docs/operations.md#commitslost and then restart the stages"
    )]
    Replaced {
        /// Of the server that was connected.
        found: u32,
        /// The latest timeline that this process has seen.
        newest: u32,
    },
    #[error(
        "synchronous_commit of the server is off, so a crash would lose acknowledged orders and purchases: turn it on"
    )]
    AsynchronousCommit,
    #[error(
        "commits do not wait for a standby (synchronous_standby_names is {names:?}, synchronous_commit is {commit}), but \
         REQUIRE_SYNCHRONOUS is set: connect a synchronous standby, or unset REQUIRE_SYNCHRONOUS to work without one"
    )]
    NotReplicated { names: String, commit: String },
    #[error(
        "the clock of this machine differs from PostgreSQL's by {difference:?}, and at most {LARGEST_SKEW:?} is \
         allowed: synchronise both clocks (NTP)"
    )]
    Clock { difference: Duration },
}

impl Unfit {
    /// Whether only an operator can mend this, so that a program that starts should end.
    pub fn needs_operator(&self) -> bool {
        matches!(
            self,
            Self::AsynchronousCommit | Self::NotReplicated { .. } | Self::Clock { .. }
        )
    }
}

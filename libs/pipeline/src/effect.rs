//! Names the external effects on an order's way, for example a commit, a purchase or a webhook, and
//! runs each through one function, [`perform`]. The crash tests can make a process of a debug build
//! die right before or right after each effect. They check that even then nothing is bought twice
//! and nothing is lost. In a release build [`perform`] adds nothing.

use std::fmt;

use strum::VariantArray;

/// An effect of a stage outside its process, grouped by the stages that run it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display, strum::VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
pub enum Effect {
    /// The group commit that stores orders.
    CommitOrders,
    /// The publication of jobs or of readiness events.
    Publish,
    /// The transaction that refuses an order as a whole.
    CommitRefusal,
    /// The 201 of an order: from the moment when the handler gets it until it has left the socket.
    Answer,
    /// The send of reports (verdicts and readiness) to ingress. Ingress sends its questions about
    /// early cancellations with it, too, but is not killed there: a lost one costs the partner one
    /// repetition.
    Send,

    /// The claim of fresh tickets; it records the attempts of placements.
    Claim,
    /// The sweep, which makes those rows due that have no outcome after their first lease.
    Sweep,
    /// The claim of due tickets, which also takes their leases.
    ClaimDue,
    /// The move of a message that cannot be read to the dead messages.
    Bury,

    /// The purchase at the provider.
    Purchase,
    /// The look-up of a purchase by its placement id.
    LookUp,
    /// The request for a purchase's profiles.
    Collect,
    /// The commit that makes a placement due earlier, because the provider called back.
    CommitHint,
    /// The record that a provider's breaker opens or closes.
    CommitHealth,
    /// The claim of one placement through an open breaker, as a probe.
    CommitProbe,
    /// The commit that records an attempt of a change to a delivered eSIM.
    CommitEsimAttempt,
    /// The give-back at the provider.
    GiveBack,
    /// The extension of an eSIM at the provider.
    Extend,
    /// The request to suspend or to resume an eSIM.
    Suspend,
    /// The commit of the outcome of a change to a delivered eSIM.
    CommitEsimOutcome,
    /// The group commit of the outcomes of purchases, look-ups and collects.
    CommitOutcomes,

    /// The request to the partner's endpoint.
    Webhook,
    /// The group commit of the attempts of deliveries.
    CommitAttempts,
    /// The group commit of deliveries without a webhook URL.
    CommitNoEndpoint,
    /// The commit of a batch of a resend.
    CommitResend,
    /// The creation of the deliveries to a partner's further endpoints.
    CommitFanOut,
}

impl Effect {
    /// The binaries that run the effect.
    pub const fn stages(self) -> &'static [&'static str] {
        match self {
            Self::CommitOrders | Self::CommitRefusal | Self::Answer => &["ingress"],
            Self::Publish => &["ingress", "provisioner"],
            Self::Claim | Self::Sweep | Self::ClaimDue | Self::Bury => &["provisioner", "notifier"],
            Self::Send
            | Self::Purchase
            | Self::LookUp
            | Self::Collect
            | Self::CommitHint
            | Self::CommitHealth
            | Self::CommitProbe
            | Self::CommitEsimAttempt
            | Self::GiveBack
            | Self::Extend
            | Self::Suspend
            | Self::CommitEsimOutcome
            | Self::CommitOutcomes => &["provisioner"],
            Self::Webhook
            | Self::CommitAttempts
            | Self::CommitNoEndpoint
            | Self::CommitResend
            | Self::CommitFanOut => &["notifier"],
        }
    }
}

/// The side of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Side {
    /// The effect has not happened.
    Before,
    /// The effect has happened, and only this process knows its result.
    After,
}

/// A point where the process of a stage can be made to die. Shown as `ingress publish.after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    pub stage: &'static str,
    pub effect: Effect,
    pub side: Side,
}

impl Point {
    /// Both sides of every effect in each of its stages.
    pub fn all() -> impl Iterator<Item = Self> {
        Effect::VARIANTS.iter().flat_map(|&effect| {
            let sides = [Side::Before, Side::After];
            effect.stages().iter().flat_map(move |&stage| {
                sides.map(|side| Self {
                    stage,
                    effect,
                    side,
                })
            })
        })
    }

    /// The name of the point, as in `FAILPOINT`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.effect, self.side)
    }
}

impl fmt::Display for Point {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text is made first and then padded, because padding its parts would not align
        // columns.
        formatter.pad(&format!("{} {}", self.stage, self.name()))
    }
}

/// Awaits `act`, which has the effect, and returns its result unchanged. In a program that is
/// shipped it does nothing else, so whoever follows an order may read `perform(Effect::X, act)` as
/// `act`. In a debug build the name marks the two moments, before and after the effect, at which
/// such a test can kill the process.
pub async fn perform<F: Future>(effect: Effect, act: F) -> F::Output {
    reach(effect, Side::Before);
    let output = act.await;
    reach(effect, Side::After);
    output
}

#[cfg(not(all(feature = "failpoints", debug_assertions)))]
#[inline]
fn reach(_: Effect, _: Side) {}

/// The point at which this process dies, such as `purchase.after`; `FAILPOINT` names it.
#[cfg(all(feature = "failpoints", debug_assertions))]
pub(crate) static FAILPOINT: std::sync::LazyLock<Option<String>> =
    std::sync::LazyLock::new(|| std::env::var("FAILPOINT").ok());

/// Kills the process if this is the point where it shall die.
#[cfg(all(feature = "failpoints", debug_assertions))]
fn reach(effect: Effect, side: Side) {
    use rustix::process::{Signal, getpid, kill_process};

    let Some(point) = &*FAILPOINT else { return };
    if *point == format!("{effect}.{side}") {
        // Like `kill -9`: nothing is flushed, closed or dropped.
        if let Err(error) = kill_process(getpid(), Signal::KILL) {
            tracing::error!(point, %error, "cannot kill the process");
        }
    }
}

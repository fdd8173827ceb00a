//! Everything that a stage does to the world outside of its process, by name, and the one helper
//! through which it is done. In a build with the feature `failpoints` a process can be made to die
//! right before or right after each of them; without it the helper is the effect and nothing else.
//!
//! Group commits, publishing, verdicts, claims and acknowledgements come with their points: what has
//! to name an [`Effect`] can't be written without one. Provider calls, webhooks and what else goes
//! out go through [`perform`].

use std::fmt;

/// `variant: stage, name` for each effect: a new one is in [`Effect::ALL`], and in the walk over all
/// crash points, by being written down.
macro_rules! effects {
    ($($(#[$doc:meta])* $variant:ident: $stage:literal, $name:literal;)*) => {
        /// Something that a stage does to the world outside of its process.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Effect {
            $($(#[$doc])* $variant,)*
        }

        impl Effect {
            /// All of them, in the order of an order's way.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The binary that does it.
            pub const fn stage(self) -> &'static str {
                match self { $(Self::$variant => $stage,)* }
            }

            /// What it does, as in `FAILPOINTS`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

effects! {
    /// The group commit that stores orders.
    CommitOrders: "ingress", "commit-orders";
    /// Jobs are published.
    PublishJobs: "ingress", "publish-jobs";
    /// The transaction that refuses an order as a whole.
    CommitRefusal: "ingress", "commit-refusal";
    /// The 201 on its way into the socket.
    Answer: "ingress", "answer";
    /// Releases of answered orders are sent to a provisioner.
    SendReleases: "ingress", "send-releases";

    /// The acknowledgement of a message of jobs, whose rows wait for a slot.
    AckJob: "provisioner", "ack-job";
    /// Placements that jobs name are claimed, and their attempts recorded.
    ClaimJobs: "provisioner", "claim-jobs";
    /// Placements without an outcome get their due rows.
    SweepJobs: "provisioner", "sweep-jobs";
    /// Due placements are leased.
    LeaseDueJobs: "provisioner", "lease-due-jobs";
    /// Due placements are claimed.
    ClaimDueJobs: "provisioner", "claim-due-jobs";
    /// The purchase.
    Place: "provisioner", "place";
    /// The look-up of a purchase by our key.
    Find: "provisioner", "find";
    /// The request for a purchase's profiles.
    Collect: "provisioner", "collect";
    /// A placement is due sooner, because the provider called back.
    CommitHint: "provisioner", "commit-hint";
    /// A provider's breaker is opened or closed.
    CommitHealth: "provisioner", "commit-health";
    /// One placement is let through an open breaker.
    CommitProbe: "provisioner", "commit-probe";
    /// The group commit of attempts' outcomes.
    CommitOutcomes: "provisioner", "commit-outcomes";
    /// Verdicts are sent to an ingress.
    SendVerdicts: "provisioner", "send-verdicts";
    /// Readiness events are published.
    PublishReady: "provisioner", "publish-ready";
    /// An unreadable job is put aside.
    BuryJob: "provisioner", "bury-job";

    /// The acknowledgement of a readiness event, whose rows wait for a slot.
    AckReady: "notifier", "ack-ready";
    /// Deliveries that readiness events name are read.
    ClaimReady: "notifier", "claim-ready";
    /// Deliveries without an outcome get their due rows.
    SweepReady: "notifier", "sweep-ready";
    /// Due deliveries are leased.
    LeaseDueReady: "notifier", "lease-due-ready";
    /// Due deliveries are read.
    ClaimDueReady: "notifier", "claim-due-ready";
    /// The webhook.
    Webhook: "notifier", "webhook";
    /// The group commit of attempts to deliver.
    CommitAttempts: "notifier", "commit-attempts";
    /// The group commit of deliveries without a webhook URL.
    CommitNoEndpoint: "notifier", "commit-no-endpoint";
    /// An unreadable readiness event is put aside.
    BuryReady: "notifier", "bury-ready";
}

/// The side of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Nothing of it has happened.
    Before,
    /// It has happened, and this process is the only one that knows what came of it.
    After,
}

/// A place where a process can be made to die. Shown as `publish-job.after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Of what.
    pub effect: Effect,
    /// Of it.
    pub side: Side,
}

impl Point {
    /// Both sides of every effect.
    pub fn all() -> impl Iterator<Item = Self> {
        Effect::ALL
            .iter()
            .flat_map(|&effect| [Side::Before, Side::After].map(|side| Self { effect, side }))
    }
}

impl fmt::Display for Point {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Before => "before",
            Side::After => "after",
        };
        write!(formatter, "{}.{side}", self.effect.name())
    }
}

/// Does `effect`, with its two points around it.
pub async fn perform<F: Future>(effect: Effect, act: F) -> F::Output {
    before(effect);
    let output = act.await;
    after(effect);
    output
}

/// For effects that are more than one future; [`after`] must follow.
pub(crate) fn before(effect: Effect) {
    reach(effect, Side::Before);
}

/// See [`before`].
pub(crate) fn after(effect: Effect) {
    reach(effect, Side::After);
}

#[cfg(not(feature = "failpoints"))]
#[inline]
fn reach(_: Effect, _: Side) {}

/// `FAILPOINTS` says what happens at which point, as the crate `fail` reads it: `place.after=return`
/// kills the process there, `place.after=2*off->return` at the third time. `sleep(ms)` stalls it.
#[cfg(feature = "failpoints")]
fn reach(effect: Effect, side: Side) {
    use std::sync::LazyLock;

    static CONFIGURED: LazyLock<()> = LazyLock::new(|| {
        let configured = std::env::var("FAILPOINTS").unwrap_or_default();
        for (name, action) in configured.split(';').filter_map(|one| one.split_once('=')) {
            if let Err(error) = fail::cfg(name, action) {
                tracing::error!(name, error, "FAILPOINTS");
            }
        }
    });
    LazyLock::force(&CONFIGURED);
    let point = Point { effect, side }.to_string();
    let died = fail::eval(&point, |_| {
        // As `kill -9` would: nothing is flushed, closed or dropped.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
    });
    if let Some(Err(error)) = died {
        tracing::error!(point, %error, "could not die");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_effect_has_two_points_of_its_own() {
        let names: BTreeSet<String> = Point::all().map(|point| point.to_string()).collect();
        assert_eq!(names.len(), Effect::ALL.len() * 2);
        assert!(names.contains("place.before") && names.contains("place.after"));
    }

    #[tokio::test]
    async fn an_effect_is_done_and_its_output_handed_on() {
        assert_eq!(perform(Effect::Webhook, async { 7 }).await, 7);
    }
}

//! Every external effect of a stage, by name, and the helper that runs it. In a build with the feature
//! `failpoints`, a process can be made to die right before or after each effect; otherwise the helper adds
//! nothing.
//!
//! Group commits, publishing, verdicts, releases, leases, claims, sweeps and acknowledgements require an
//! [`Effect`] by type. Provider calls, webhooks and other calls go through [`perform`].

use std::fmt;

/// `variant: stage, name` for each effect. The macro adds each effect to [`Effect::ALL`], and so to the walk
/// over all crash points.
macro_rules! effects {
    ($($(#[$doc:meta])* $variant:ident: $stage:literal, $name:literal;)*) => {
        /// An effect of a stage outside its process.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Effect {
            $($(#[$doc])* $variant,)*
        }

        impl Effect {
            /// All effects, in the order of an order's path.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The binary that runs the effect.
            pub const fn stage(self) -> &'static str {
                match self { $(Self::$variant => $stage,)* }
            }

            /// The name of the effect, as in `FAILPOINTS`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

effects! {
    /// The group commit that stores orders.
    CommitOrders: "ingress", "commit-orders";
    /// The publication of jobs.
    PublishJobs: "ingress", "publish-jobs";
    /// The transaction that refuses an order as a whole.
    CommitRefusal: "ingress", "commit-refusal";
    /// The write of the response to the socket.
    Answer: "ingress", "answer";
    /// The send of releases of answered orders to a provisioner.
    SendReleases: "ingress", "send-releases";

    /// The acknowledgement of a message of jobs, whose rows wait for slots.
    AckJob: "provisioner", "ack-job";
    /// The claim of placements that jobs name, which records their attempts.
    ClaimJobs: "provisioner", "claim-jobs";
    /// The sweep that gives due rows to placements without an outcome.
    SweepJobs: "provisioner", "sweep-jobs";
    /// The lease of due placements.
    LeaseDueJobs: "provisioner", "lease-due-jobs";
    /// The claim of due placements.
    ClaimDueJobs: "provisioner", "claim-due-jobs";
    /// The purchase.
    Place: "provisioner", "place";
    /// The look-up of a purchase by its placement id.
    Find: "provisioner", "find";
    /// The request for a purchase's profiles.
    Collect: "provisioner", "collect";
    /// A placement becomes due earlier, because the provider called back.
    CommitHint: "provisioner", "commit-hint";
    /// The record that a provider's breaker opens or closes.
    CommitHealth: "provisioner", "commit-health";
    /// The claim of one placement through an open breaker, as a probe.
    CommitProbe: "provisioner", "commit-probe";
    /// The group commit of outcomes.
    CommitOutcomes: "provisioner", "commit-outcomes";
    /// The send of verdicts to an ingress.
    SendVerdicts: "provisioner", "send-verdicts";
    /// The publication of readiness events.
    PublishReady: "provisioner", "publish-ready";
    /// The move of an unreadable job to the dead messages.
    BuryJob: "provisioner", "bury-job";

    /// The acknowledgement of a readiness event, whose rows wait for slots.
    AckReady: "notifier", "ack-ready";
    /// The read of deliveries that readiness events name.
    ClaimReady: "notifier", "claim-ready";
    /// The sweep that gives due rows to deliveries without an outcome.
    SweepReady: "notifier", "sweep-ready";
    /// The lease of due deliveries.
    LeaseDueReady: "notifier", "lease-due-ready";
    /// The read of due deliveries.
    ClaimDueReady: "notifier", "claim-due-ready";
    /// The webhook.
    Webhook: "notifier", "webhook";
    /// The group commit of delivery attempts.
    CommitAttempts: "notifier", "commit-attempts";
    /// The group commit of deliveries without a webhook URL.
    CommitNoEndpoint: "notifier", "commit-no-endpoint";
    /// The move of an unreadable readiness event to the dead messages.
    BuryReady: "notifier", "bury-ready";
}

/// The side of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The effect has not happened.
    Before,
    /// The effect has happened, and only this process knows its result.
    After,
}

/// A point where a process can be made to die. Shown as `publish-jobs.after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    pub effect: Effect,
    /// Before or after the effect.
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

/// Runs `effect` between its two points.
pub async fn perform<F: Future>(effect: Effect, act: F) -> F::Output {
    reach(effect, Side::Before);
    let output = act.await;
    reach(effect, Side::After);
    output
}

#[cfg(not(feature = "failpoints"))]
#[inline]
fn reach(_: Effect, _: Side) {}

/// `FAILPOINTS` assigns actions to points, in the syntax of the crate `fail`: `place.after=return` kills the
/// process there, `place.after=2*off->return` at the third time. `sleep(ms)` stalls it.
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
        // Like `kill -9`: nothing is flushed, closed or dropped.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
    });
    if let Some(Err(error)) = died {
        tracing::error!(point, %error, "cannot kill the process");
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

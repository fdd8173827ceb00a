//! The probes of a provider whose breaker is half open: one placement at a time finds out whether
//! the provider works again. If no placement is due, a request about a delivered eSIM does.
//!
//! A probe does not go through the worker, because the worker runs rows only with a permit, and no
//! lane has permits until the breaker is closed. It needs no permit either: PostgreSQL grants one
//! probe at a time to all processes together ([`Breaker::probe`](crate::breaker::Breaker::probe)),
//! so probes need no other bound. Apart from that, a probe is processed like any due placement.

use std::{sync::Arc, time::Duration};

use domain::{PartnerId, PlacementId};
use pipeline::{
    Effect,
    owner::Owner,
    perform,
    worker::{TicketClass, Trigger},
};
use runtime::{clock::Moment, outage};
use store::{
    placements::{Activity, PlacementClaim},
    work::WorkLook,
};

use super::ProviderContext;

/// How often a half-open breaker looks for a placement to probe with.
const PROBE: Duration = Duration::from_millis(500);
/// The maximum number of lanes that are read to find one placement to probe with.
const PROBED_LANES: usize = 16;

/// What the last probe of the provider tried, so that the next one tries something else.
struct Probes {
    /// The activity of the last probe. The next one tries the other activity first.
    last: Activity,
    /// The lane and partner of the last purchase, after which the next one begins.
    after: Option<(String, PartnerId)>,
}

impl Probes {
    /// The activities in the order in which the next probe tries them.
    fn in_turn(&self) -> [Activity; 2] {
        match self.last {
            Activity::Purchases => [Activity::LookUps, Activity::Purchases],
            Activity::LookUps => [Activity::Purchases, Activity::LookUps],
        }
    }
}

impl ProviderContext {
    /// Probes the provider with one placement at a time while its breaker is half open, until the
    /// soft stop. Look-ups and purchases take turns, and each purchase is of another lane.
    /// Otherwise a single bad option, probed again and again, could keep the breaker open.
    pub async fn probe(self: Arc<Self>) -> anyhow::Result<()> {
        let mut ticks = self.shutdown.ticks(PROBE);
        let mut probes = Probes {
            last: Activity::Purchases,
            after: None,
        };
        while ticks.next().await {
            if self.calls.breaker.is_half_open()
                && let Err(error) = self.probe_with_one(&mut probes).await
                && let Some(others) = outage::DATABASE.failed()
            {
                let error = format!("{error:#}");
                tracing::error!(error, others, "cannot probe the provider; trying again");
            }
        }
        Ok(())
    }

    async fn probe_with_one(self: &Arc<Self>, probes: &mut Probes) -> anyhow::Result<()> {
        let mut candidate = None;
        for activity in probes.in_turn() {
            candidate = self.candidate(activity, probes).await?;
            if candidate.is_some() {
                probes.last = activity;
                break;
            }
        }
        // The statement grants a probe only if there is something to probe with.
        if !self.calls.breaker.probe(self.lease).await? {
            return Ok(());
        }
        let Some(candidate) = candidate else {
            return self.probe_with_request().await;
        };
        let claim_began = Moment::now();
        for claimed in perform(
            Effect::ClaimDue,
            self.claim_rows(&[candidate], PlacementClaim::Probe),
        )
        .await?
        {
            let trigger = Trigger {
                class: TicketClass::Due,
                traceparent: None,
                permit_wait: Duration::ZERO,
                claim_began,
            };
            let shared = Arc::clone(self);
            self.shutdown.tracker().spawn(Box::pin(async move {
                shared.process(&claimed, &trigger, None).await;
            }));
        }
        Ok(())
    }

    /// Finds a due placement to probe with: a purchase of the next lane, or any look-up.
    async fn candidate(
        &self,
        activity: Activity,
        probes: &mut Probes,
    ) -> anyhow::Result<Option<PlacementId>> {
        let look = |after| WorkLook {
            limit: PROBED_LANES,
            rows_per_queue: 1,
            after,
            skip: Vec::new(),
        };
        if activity == Activity::LookUps {
            let found = self.due(activity, &look(None)).await?;
            return Ok(found.due.first().map(|ticket| ticket.id));
        }
        // The search begins after the lane of the last probe, and continues with the first lane.
        for after in [probes.after.clone(), None] {
            let found = self.due(activity, &look(after)).await?;
            if let Some(ticket) = found.due.into_iter().next() {
                if let Owner::Partner(partner) = ticket.owner {
                    probes.after = Some((ticket.lane.to_string(), partner));
                }
                return Ok(Some(ticket.id));
            }
        }
        Ok(None)
    }
}

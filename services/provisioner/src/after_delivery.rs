//! Answers what partners ask about delivered eSIMs, and gives eSIMs back. Extensions, which the
//! same worker runs, are in [`crate::extensions`].
//!
//! Ingress stores the request, because only this service holds the credentials of providers. It is
//! a row of `work` with the kind `usage` or `give_back`, which the worker of [`pipeline::worker`]
//! runs like any other. Each row costs one call that asks the provider for the state of the eSIM.
//! Its response serves the question about the data use, and decides whether the eSIM can be given
//! back. What can be added to an eSIM is another call, which only its question makes.
//!
//! Guarantee: the partner hears that its eSIM is given back, or that it is not, only if that is
//! certain ([`domain::esim_change`]). An attempt is recorded before the provider is called, and
//! only the process that recorded it sends it. If the outcome is unknown, the eSIM is looked at
//! until it shows the outcome, or the attempt is repeated where no look can show it; after
//! `PARK_AFTER` without one the give-back is parked for an operator.
//!
//! Nothing here is recorded by group commit, because partners ask rarely, and a record that is lost
//! with a process costs one more look. These calls never open the breaker, so that a failing look
//! at eSIMs stops no purchase. While the breaker is not closed they wait, as purchases do. A look
//! may be the probe of a half-open breaker if no placement is due, because the requests would wait
//! for ever otherwise.

use std::{sync::Arc, time::Duration};

use domain::{
    EsimChangeState,
    esim_change::{EsimChange, EsimChangeEvent},
};
use pipeline::{
    Effect, perform,
    worker::{Handler, Permit, Ticket, TicketClass, Trigger},
};
use runtime::clock::Moment;
use serde_json::json;
use store::{
    esim_requests::{
        self, ClaimedRequest, EsimChangeReason, GiveBackSettlement, OpenGiveBack, RequestClaim,
        UsageFailure,
    },
    extensions::ClaimedExtension,
    work::{LookResult, WorkLook},
};
use uuid::Uuid;

use crate::{
    providers::{
        Custody, DeliveredEsim, EsimStatus, ExtensionOffer, GiveBackResponse, ProviderId, Trouble,
    },
    purchases::ProviderContext,
};

/// The shortest and the longest pause before an eSIM is looked at again.
pub(crate) const AGAIN_LEAST: Duration = Duration::from_secs(1);
pub(crate) const AGAIN_MOST: Duration = Duration::from_mins(5);
/// Why a request is set aside whose eSIM no call can name.
pub(crate) const BAD_UNIT_ID: &str = "the stored id of the unit is no id of a provider";

/// A row of `work` about a delivered eSIM that is claimed.
pub enum ClaimedEsimWork {
    Request(ClaimedRequest),
    Extension(ClaimedExtension),
}

/// What the worker of a provider does that answers requests about delivered eSIMs. It has permits
/// of its own, so that it holds up no purchase and no purchase holds it up.
pub struct EsimRequestHandler {
    pub context: Arc<ProviderContext>,
}

impl Handler for EsimRequestHandler {
    const NAME: &'static str = "provisioner";
    const KIND: &'static str = "request";
    const CLAIM_STATEMENT: (&'static str, &'static str) = ("UPDATE", "work");
    /// Ingress sends no messages about requests: it makes them due.
    type Message = ();
    type Id = Uuid;
    type Claimed = ClaimedEsimWork;

    async fn due(&self, look: WorkLook) -> anyhow::Result<LookResult<Ticket<Uuid>>> {
        // While the breaker is not closed, the claim would find nothing.
        if !self.context.calls.breaker.is_closed() {
            return Ok(LookResult::nothing());
        }
        self.context.due_requests(&look).await
    }

    async fn claim(
        &self,
        rows: &[Uuid],
        _class: TicketClass,
    ) -> anyhow::Result<Vec<(Uuid, ClaimedEsimWork)>> {
        Ok(self
            .context
            .claim_esim_work(rows, RequestClaim::Due)
            .await?)
    }

    async fn run(self: Arc<Self>, claimed: ClaimedEsimWork, trigger: Trigger, permit: Permit) {
        self.context
            .serve_esim_work(&claimed, trigger.claim_began)
            .await;
        drop(permit);
    }
}

impl ProviderContext {
    /// Answers a due request as the probe of a half-open breaker. The caller has the probe.
    pub(crate) async fn probe_with_request(self: &Arc<Self>) -> anyhow::Result<()> {
        let look = WorkLook {
            limit: 1,
            rows_per_queue: 1,
            ..WorkLook::default()
        };
        let found = self.due_requests(&look).await?;
        let rows: Vec<Uuid> = found.due.into_iter().map(|ticket| ticket.id).collect();
        // An attempt is sent within a time that counts from before the claim.
        let claim_began = Moment::now();
        for (_, one) in self.claim_esim_work(&rows, RequestClaim::Probe).await? {
            let context = Arc::clone(self);
            self.shutdown.tracker().spawn(async move {
                context.serve_esim_work(&one, claim_began).await;
            });
        }
        Ok(())
    }

    async fn due_requests(&self, look: &WorkLook) -> anyhow::Result<LookResult<Ticket<Uuid>>> {
        let name = &self.calls.name;
        let found = self
            .database
            .run(async |connection| esim_requests::due(connection, name, look).await)
            .await?;
        Ok(found.map(Ticket::from))
    }

    /// Claims due rows of `work` about delivered eSIMs.
    async fn claim_esim_work(
        &self,
        rows: &[Uuid],
        claim: RequestClaim,
    ) -> Result<Vec<(Uuid, ClaimedEsimWork)>, pg::Error> {
        let requests = self.claim_requests(rows, claim).await?;
        let mut claimed: Vec<(Uuid, ClaimedEsimWork)> = requests
            .into_iter()
            .map(|one| (one.id, ClaimedEsimWork::Request(one)))
            .collect();
        // A row that is left is about an extension, or somebody else has claimed it.
        if claimed.len() < rows.len() {
            let extensions = self.claim_extensions(rows, claim).await?;
            let extensions = extensions
                .into_iter()
                .map(|one| (one.id, ClaimedEsimWork::Extension(one)));
            claimed.extend(extensions);
        }
        Ok(claimed)
    }

    async fn serve_esim_work(&self, claimed: &ClaimedEsimWork, claim_began: Moment) {
        match claimed {
            ClaimedEsimWork::Request(one) => self.serve(one, claim_began).await,
            ClaimedEsimWork::Extension(one) => self.serve_extension(one, claim_began).await,
        }
    }

    /// Claims due requests. While the breaker is not closed, only a probe gets one.
    async fn claim_requests(
        &self,
        rows: &[Uuid],
        claim: RequestClaim,
    ) -> Result<Vec<ClaimedRequest>, pg::Error> {
        let name = &self.calls.name;
        let lease = self.lease;
        self.database
            .run(async |connection| {
                esim_requests::claim(connection, name, rows, lease, claim).await
            })
            .await
    }

    async fn serve(&self, claimed: &ClaimedRequest, claim_began: Moment) {
        if let Err(error) = self.try_serve(claimed, claim_began).await {
            tracing::warn!(
                topup.id = %claimed.topup_id,
                order.id = %claimed.order_id,
                %error,
                "cannot record the data use or the give-back of a delivered eSIM; the eSIM is looked \
                 at again when the lease of the request ends"
            );
        }
    }

    async fn try_serve(
        &self,
        claimed: &ClaimedRequest,
        claim_began: Moment,
    ) -> Result<(), pg::Error> {
        let capabilities = self.calls.provider.capabilities();
        if claimed.offers_asked {
            self.answer_offers(claimed).await?;
            if !claimed.usage_asked && claimed.give_back.is_none() {
                return Ok(());
            }
        }
        if !capabilities.usage {
            if claimed.usage_asked {
                self.fail(claimed, UsageFailure::NotAvailable).await?;
            }
            if claimed.give_back.is_some() {
                self.refuse(claimed, EsimChangeReason::NotAvailable, None)
                    .await?;
            }
            return Ok(());
        }
        let Ok(unit_id) = ProviderId::parse(claimed.unit_id.clone()) else {
            return self
                .database
                .run(async |connection| {
                    let topup_id = claimed.topup_id.as_str();
                    esim_requests::set_aside(connection, topup_id, BAD_UNIT_ID).await
                })
                .await;
        };
        let esim = DeliveredEsim {
            unit_id,
            iccid: claimed.iccid.clone(),
        };
        let status = self.calls.status(&esim).await;
        match &status {
            Ok(status) => {
                let reading = status.reading;
                self.database
                    .run(async |connection| {
                        let (topup, low_data) = (&claimed.topup_id, &self.low_data);
                        esim_requests::record_reading(connection, topup, &reading, low_data).await
                    })
                    .await?;
            }
            // Nothing was asked, so nothing is recorded. The lease of the row ends after the wait.
            Err(Trouble::Waiting { .. }) => {}
            Err(trouble) => {
                tracing::info!(
                    topup.id = %claimed.topup_id,
                    provider.name = self.calls.name,
                    class = trouble.class(),
                    reason = trouble.reason(),
                    "the provider does not say the state of a delivered eSIM"
                );
                if claimed.usage_asked {
                    self.fail(claimed, UsageFailure::Failed).await?;
                }
            }
        }
        match claimed.give_back {
            Some(_) if !capabilities.give_back => {
                self.refuse(claimed, EsimChangeReason::NotAvailable, None)
                    .await
            }
            Some(open) if open.now.state == EsimChangeState::Sending => {
                self.settle_attempt(claimed, open, status, &esim, claim_began)
                    .await
            }
            Some(open) => {
                self.begin_attempt(claimed, open, status, &esim, claim_began)
                    .await
            }
            None => Ok(()),
        }
    }

    /// Answers what can be added to an eSIM. A provider that extends none offers nothing.
    async fn answer_offers(&self, claimed: &ClaimedRequest) -> Result<(), pg::Error> {
        let is_extended = self.calls.provider.capabilities().extend.is_some();
        let offers = match ProviderId::parse(claimed.unit_id.clone()) {
            Ok(_) if !is_extended => Some("[]".to_owned()),
            Ok(unit_id) => {
                let esim = DeliveredEsim {
                    unit_id,
                    iccid: claimed.iccid.clone(),
                };
                match self.calls.offers(&esim).await {
                    Ok(offers) => Some(offers_json(offers)),
                    Err(trouble) => {
                        tracing::info!(
                            topup.id = %claimed.topup_id,
                            provider.name = self.calls.name,
                            class = trouble.class(),
                            reason = trouble.reason(),
                            "the provider does not say what can be added to a delivered eSIM"
                        );
                        None
                    }
                }
            }
            Err(_) => None,
        };
        self.database
            .run(async |connection| {
                let topup = &claimed.topup_id;
                esim_requests::record_offers(connection, topup, offers.as_deref()).await
            })
            .await
    }

    /// Settles an attempt whose outcome is not known by what the eSIM shows.
    async fn settle_attempt(
        &self,
        claimed: &ClaimedRequest,
        open: OpenGiveBack,
        status: Result<EsimStatus, Trouble>,
        esim: &DeliveredEsim,
        claim_began: Moment,
    ) -> Result<(), pg::Error> {
        let attempt = open.now.attempt;
        let after_settling_delay = open.attempt_age >= self.settling_delay;
        match status.map(|status| (status.custody, status.reading.installed)) {
            Ok((Custody::Returned, _)) => self.returned(claimed).await,
            Ok((_, Some(true))) => {
                let event = EsimChangeEvent::Refused(attempt);
                self.end(claimed, event, EsimChangeReason::Installed, None)
                    .await
            }
            // The provider takes an eSIM back once, so a repeat does no harm, and it tells the
            // outcome of the first request: it is answered as taken back before. Nothing of the
            // first one is on its way any more, so a refusal holds.
            Ok((Custody::Unshown, _)) if after_settling_delay => {
                let repeated = Some(open.attempt_age);
                self.send_attempt(claimed, attempt, repeated, esim, claim_began)
                    .await
            }
            Ok((Custody::Unshown, _)) => {
                let left = self.settling_delay.saturating_sub(open.attempt_age);
                self.go_on(claimed, None, left.max(AGAIN_LEAST)).await
            }
            Ok(_) => {
                let left = self.settling_delay.saturating_sub(open.attempt_age);
                let event = EsimChangeEvent::NotDone {
                    attempt,
                    after_settling_delay,
                };
                self.go_on(claimed, Some(event), left.max(AGAIN_LEAST))
                    .await
            }
            Err(trouble) => {
                self.still_unknown(claimed, attempt, open.attempt_age, &trouble)
                    .await
            }
        }
    }

    /// Looks again at an attempt of this age whose outcome is still unknown, or parks it.
    async fn still_unknown(
        &self,
        claimed: &ClaimedRequest,
        attempt: u32,
        age: Duration,
        trouble: &Trouble,
    ) -> Result<(), pg::Error> {
        if age < self.park_after {
            return self.go_on(claimed, None, pause(age)).await;
        }
        let event = EsimChangeEvent::Park(attempt);
        let said = Some(trouble.reason().to_owned());
        self.end(claimed, event, EsimChangeReason::Unknown, said)
            .await
    }

    /// Sends an attempt that is recorded, and records its outcome. One that is `repeated` was sent
    /// before, so long ago, and its outcome stays unknown if this request has none.
    async fn send_attempt(
        &self,
        claimed: &ClaimedRequest,
        attempt: u32,
        repeated: Option<Duration>,
        esim: &DeliveredEsim,
        claim_began: Moment,
    ) -> Result<(), pg::Error> {
        let send_by = claim_began + self.settling_delay / 2;
        let response = self.calls.give_back(esim, send_by).await;
        match (response, repeated) {
            (Some(Ok(GiveBackResponse::Returned)), _) => self.returned(claimed).await,
            (Some(Ok(GiveBackResponse::Refused(said))), _) => {
                let event = EsimChangeEvent::Refused(attempt);
                self.end(claimed, event, EsimChangeReason::Refused, Some(said))
                    .await
            }
            (Some(Err(trouble)), Some(age)) => {
                self.still_unknown(claimed, attempt, age, &trouble).await
            }
            (None, Some(age)) => self.go_on(claimed, None, pause(age)).await,
            (Some(Err(trouble)), None) if trouble.may_be_carried_out() => {
                let reason = trouble.reason();
                tracing::warn!(
                    topup.id = %claimed.topup_id,
                    provider.name = self.calls.name,
                    attempt,
                    reason,
                    "the outcome of a give-back is unknown; the eSIM is looked at until it shows it"
                );
                self.go_on(claimed, None, AGAIN_LEAST).await
            }
            (Some(Err(trouble)), None) => {
                let asked_age = claimed
                    .give_back
                    .map_or(Duration::ZERO, |open| open.asked_age);
                let wait = trouble.asked_wait(AGAIN_MOST).max(pause(asked_age));
                self.go_on(claimed, Some(EsimChangeEvent::NotSent(attempt)), wait)
                    .await
            }
            // Only this process may send the attempt, and it will not.
            (None, None) => {
                self.go_on(
                    claimed,
                    Some(EsimChangeEvent::NotSent(attempt)),
                    AGAIN_LEAST,
                )
                .await
            }
        }
    }

    /// Gives an eSIM back of which the provider says that it would take it now, or of which it says
    /// nothing.
    async fn begin_attempt(
        &self,
        claimed: &ClaimedRequest,
        open: OpenGiveBack,
        status: Result<EsimStatus, Trouble>,
        esim: &DeliveredEsim,
        claim_began: Moment,
    ) -> Result<(), pg::Error> {
        let is_late = open.asked_age >= self.park_after;
        match status.map(|status| (status.custody, status.reading.installed)) {
            Ok((Custody::Returned, _)) => return self.returned(claimed).await,
            Ok((_, Some(true))) => {
                return self
                    .refuse(claimed, EsimChangeReason::Installed, None)
                    .await;
            }
            Ok((Custody::Kept(said), _)) => {
                return self
                    .refuse(claimed, EsimChangeReason::Refused, Some(said))
                    .await;
            }
            // No attempt is open here, so it is certain that the eSIM stays with the partner.
            Ok((Custody::Returnable | Custody::Unshown, _)) if is_late => {
                return self
                    .refuse(claimed, EsimChangeReason::Unreachable, None)
                    .await;
            }
            Err(trouble) if is_late => {
                let said = Some(trouble.reason().to_owned());
                return self
                    .refuse(claimed, EsimChangeReason::Unreachable, said)
                    .await;
            }
            Err(_) => {
                return self.go_on(claimed, None, pause(open.asked_age)).await;
            }
            Ok((Custody::Returnable | Custody::Unshown, _)) => {}
        }
        let Some(attempt) = self.record_attempt(claimed, open.now).await? else {
            return Ok(());
        };
        self.send_attempt(claimed, attempt, None, esim, claim_began)
            .await
    }

    async fn record_attempt(
        &self,
        claimed: &ClaimedRequest,
        read: EsimChange,
    ) -> Result<Option<u32>, pg::Error> {
        let recording = self.database.run(async |connection| {
            esim_requests::begin(connection, &claimed.topup_id, read).await
        });
        perform(Effect::CommitEsimAttempt, recording).await
    }

    async fn fail(&self, claimed: &ClaimedRequest, failure: UsageFailure) -> Result<(), pg::Error> {
        self.database
            .run(async |connection| {
                esim_requests::record_failure(connection, &claimed.topup_id, failure).await
            })
            .await
    }

    /// Refuses a give-back of which no attempt is open.
    async fn refuse(
        &self,
        claimed: &ClaimedRequest,
        reason: EsimChangeReason,
        said: Option<String>,
    ) -> Result<(), pg::Error> {
        self.end(claimed, EsimChangeEvent::Refuse, reason, said)
            .await
    }

    async fn returned(&self, claimed: &ClaimedRequest) -> Result<(), pg::Error> {
        self.settle_give_back(claimed, Some(EsimChangeEvent::Done), None, AGAIN_LEAST)
            .await
    }

    /// Ends a give-back without success.
    async fn end(
        &self,
        claimed: &ClaimedRequest,
        event: EsimChangeEvent,
        reason: EsimChangeReason,
        said: Option<String>,
    ) -> Result<(), pg::Error> {
        self.settle_give_back(claimed, Some(event), Some((reason, said)), AGAIN_LEAST)
            .await
    }

    /// Records an event after which the give-back is not over, or only the time of the next look.
    async fn go_on(
        &self,
        claimed: &ClaimedRequest,
        event: Option<EsimChangeEvent>,
        again_in: Duration,
    ) -> Result<(), pg::Error> {
        self.settle_give_back(claimed, event, None, again_in).await
    }

    async fn settle_give_back(
        &self,
        claimed: &ClaimedRequest,
        event: Option<EsimChangeEvent>,
        reason: Option<(EsimChangeReason, Option<String>)>,
        again_in: Duration,
    ) -> Result<(), pg::Error> {
        let settlement = GiveBackSettlement {
            event,
            reason,
            again_in,
        };
        let settling = self.database.run(async |connection| {
            esim_requests::settle(connection, &claimed.topup_id, &settlement).await
        });
        let (state, moved) = perform(Effect::CommitEsimOutcome, settling).await?;
        let Some(state) = state.filter(|state| moved && state.is_over()) else {
            return Ok(());
        };
        self.calls
            .metrics
            .give_back(&self.calls.name, state.as_str());
        let topup = &claimed.topup_id;
        let order = claimed.order_id;
        let partner = claimed.partner_id;
        let provider = &self.calls.name;
        let said = settlement.reason.and_then(|(_, said)| said);
        if state == EsimChangeState::Parked {
            tracing::error!(
                topup.id = %topup,
                order.id = %order,
                partner.id = %partner,
                provider.name = provider,
                provider.unit.id = claimed.unit_id,
                said,
                "a give-back is parked, because the provider does not say whether it has the eSIM \
                 back; find out there, and settle it with `esimctl give-back resolve`"
            );
        } else {
            tracing::info!(
                topup.id = %topup,
                order.id = %order,
                partner.id = %partner,
                provider.name = provider,
                state = state.as_str(),
                said,
                "a give-back has ended"
            );
        }
        Ok(())
    }
}

/// The offers as they are stored; JSON's `null` if the provider has no list of them, so that every
/// option that our catalogue has of it may be tried.
fn offers_json(offers: Option<Vec<ExtensionOffer>>) -> String {
    let listed = offers.map(|offers| -> Vec<serde_json::Value> {
        let of = |one: &ExtensionOffer| {
            json!({
                "provider_option_id": one.provider_option_id.as_str(),
                "data": one.data,
                "days": one.days,
            })
        };
        offers.iter().map(of).collect()
    });
    json!(listed).to_string()
}

/// The pause before the next look at something that began this long ago.
pub(crate) fn pause(age: Duration) -> Duration {
    (age / 4).clamp(AGAIN_LEAST, AGAIN_MOST)
}

//! Answers what partners ask about delivered eSIMs, gives eSIMs back, and suspends and resumes
//! them. Extensions, which the same worker runs, are in [`crate::extensions`].
//!
//! Ingress stores the request, because only this service holds the credentials of providers. It is
//! a row of `work` with the kind `usage`, `give_back` or `suspend`, which the worker of
//! [`pipeline::worker`] runs like any other. Each row costs one call that asks the provider for the
//! state of the eSIM. Its response serves the question about the data use, and decides whether the
//! eSIM can be given back, or is suspended already. What can be added to an eSIM is another call,
//! which only its question makes.
//!
//! Guarantee: the partner hears that its eSIM is given back, or that it is not, only if that is
//! certain ([`domain::esim_change`]). An attempt is recorded before the provider is called, and
//! only the process that recorded it sends it. If the outcome is unknown, the eSIM is looked at
//! until it shows the outcome, or the attempt is repeated where no look can show it; after
//! `PARK_AFTER` without one the give-back is parked for an operator. A suspension moves in the same
//! way, but waits for nobody, because its partner may ask again: a repeat does no harm.
//!
//! Nothing here is recorded by group commit, because partners ask rarely, and a record that is lost
//! with a process costs one more look. These calls never open the breaker, so that a failing look
//! at eSIMs stops no purchase. While the breaker is not closed they wait, as purchases do. A look
//! may be the probe of a half-open breaker if no placement is due, because the requests would wait
//! for ever otherwise.

use std::sync::Arc;

use domain::{
    EsimChangeState,
    esim_change::{EsimChangeEvent, GiveBackCause},
};
use pipeline::worker::{Handler, Permit, Ticket, TicketClass, Trigger};
use runtime::clock::Moment;
use serde_json::json;
use store::{
    esim_requests::{
        self, AskedChange, ClaimedEsim, ClaimedRequest, EsimChangeReason, EsimChangeSettlement,
        RequestClaim, UsageFailure,
    },
    extensions::{self, ClaimedExtension},
    work::{LookResult, WorkLook},
};
use uuid::Uuid;

use crate::{
    esim_change::{AGAIN_LEAST, BAD_UNIT_ID, ChangeRow, ClaimedChange, at_provider, pause},
    providers::{
        Custody, DeliveredEsim, EsimStatus, ExtensionOffer, GiveBackResponse, GiveBackWay,
        SuspendResponse, Trouble,
    },
    purchases::ProviderContext,
};

/// A row of `work` about a delivered eSIM that is claimed.
pub enum ClaimedEsimWork {
    Request(ClaimedRequest),
    Extension(ClaimedExtension),
}

impl ClaimedEsimWork {
    fn esim(&self) -> &ClaimedEsim {
        match self {
            Self::Request(one) => &one.esim,
            Self::Extension(one) => &one.esim,
        }
    }
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
        let name = &self.calls.name;
        let lease = self.lease;
        let requests = self.database.run(async |connection| {
            esim_requests::claim(connection, name, rows, lease, claim).await
        });
        let requests = requests.await?.into_iter().map(ClaimedEsimWork::Request);
        let mut claimed: Vec<ClaimedEsimWork> = requests.collect();
        // A row that is left is about an extension, or somebody else has claimed it.
        if claimed.len() < rows.len() {
            let extensions = self.database.run(async |connection| {
                extensions::claim(connection, name, rows, lease, claim).await
            });
            let extensions = extensions.await?.into_iter();
            claimed.extend(extensions.map(ClaimedEsimWork::Extension));
        }
        Ok(claimed
            .into_iter()
            .map(|one| (one.esim().id, one))
            .collect())
    }

    async fn serve_esim_work(&self, claimed: &ClaimedEsimWork, claim_began: Moment) {
        let serving = match claimed {
            ClaimedEsimWork::Request(one) => self.serve_request(one, claim_began).await,
            ClaimedEsimWork::Extension(one) => self.serve_extension(one, claim_began).await,
        };
        if let Err(error) = serving {
            let esim = claimed.esim();
            tracing::warn!(
                topup.id = %esim.topup_id,
                order.id = %esim.order_id,
                %error,
                "cannot record what became of a request about a delivered eSIM; the eSIM is looked \
                 at again when the lease of the request ends"
            );
        }
    }

    async fn serve_request(
        &self,
        claimed: &ClaimedRequest,
        claim_began: Moment,
    ) -> Result<(), pg::Error> {
        let capabilities = self.calls.provider.capabilities();
        if claimed.offers_asked {
            self.answer_offers(claimed).await?;
            if !claimed.usage_asked && claimed.change.is_none() {
                return Ok(());
            }
        }
        let change = claimed.change.map(|(asked, open)| {
            let row = ChangeRow::Asked(asked);
            let esim = &claimed.esim;
            (asked, ClaimedChange { row, esim, open })
        });
        if !capabilities.usage {
            if claimed.usage_asked {
                self.fail(claimed, UsageFailure::NotAvailable).await?;
            }
            if let Some((_, change)) = change {
                self.refuse(change, EsimChangeReason::NotAvailable, None)
                    .await?;
            }
            return Ok(());
        }
        let Some(esim) = at_provider(&claimed.esim) else {
            return self
                .database
                .run(async |connection| {
                    let topup_id = claimed.esim.topup_id.as_str();
                    esim_requests::set_aside(connection, topup_id, BAD_UNIT_ID).await
                })
                .await;
        };
        let status = self.calls.status(&esim).await;
        match &status {
            Ok(status) => {
                let reading = status.reading;
                self.database
                    .run(async |connection| {
                        let topup = &claimed.esim.topup_id;
                        let low_data = &self.low_data;
                        esim_requests::record_reading(connection, topup, &reading, low_data).await
                    })
                    .await?;
            }
            // Nothing was asked, so nothing is recorded. The lease of the row ends after the wait.
            Err(Trouble::Waiting { .. }) => {}
            Err(trouble) => {
                tracing::info!(
                    topup.id = %claimed.esim.topup_id,
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
        let Some((asked, change)) = change else {
            return Ok(());
        };
        let is_offered = match asked {
            AskedChange::GiveBack => capabilities.give_back.is_some(),
            AskedChange::Suspension(_) => capabilities.suspend,
        };
        let state = change.open.now.state;
        if !is_offered && state != EsimChangeState::Claimed {
            return self
                .refuse(change, EsimChangeReason::NotAvailable, None)
                .await;
        }
        let way = capabilities.give_back;
        let shown = if self.may_be_claim(asked, state) {
            let custody = self.calls.find_claim(&esim).await;
            custody.map(|custody| Shown::custody(custody, false))
        } else {
            status.map(|status| Shown::of(asked, status, way))
        };
        let call = AttemptCall {
            asked,
            cause: claimed.cause,
            esim: &esim,
            send_by: claim_began + self.settling_delay / 2,
        };
        match state {
            EsimChangeState::Sending => self.settle_attempt(change, shown, call).await,
            EsimChangeState::Claimed => self.judge_claim(change, shown).await,
            EsimChangeState::Asked
            | EsimChangeState::Done
            | EsimChangeState::Refused
            | EsimChangeState::Parked => self.begin_attempt(change, shown, call).await,
        }
    }

    /// Whether a claim may have been sent whose verdict no look at the eSIM itself shows.
    fn may_be_claim(&self, asked: AskedChange, state: EsimChangeState) -> bool {
        let way = self.calls.provider.capabilities().give_back;
        let is_sent = matches!(state, EsimChangeState::Sending | EsimChangeState::Claimed);
        asked == AskedChange::GiveBack && way == Some(GiveBackWay::Claim) && is_sent
    }

    /// Ends a claim that is decided, or notes what the provider says of it. A state that nobody
    /// knows is no verdict. The polls look again.
    async fn judge_claim(
        &self,
        change: ClaimedChange<'_>,
        shown: Result<Shown, Trouble>,
    ) -> Result<(), pg::Error> {
        let said = match shown {
            Ok(Shown::Done) => return self.done(change).await,
            Ok(Shown::Impossible(said)) => {
                return self
                    .end_change(
                        change,
                        EsimChangeEvent::Denied,
                        EsimChangeReason::Denied,
                        Some(said),
                    )
                    .await;
            }
            Ok(Shown::Claimed(said) | Shown::ClaimUnshown(said)) => said,
            Ok(Shown::Possible | Shown::Installed | Shown::Nothing) => {
                "the provider shows no claim any more".to_owned()
            }
            Err(trouble) => {
                tracing::info!(
                    topup.id = %change.esim.topup_id,
                    provider.name = self.calls.name,
                    class = trouble.class(),
                    reason = trouble.reason(),
                    "the provider does not say what became of a claim; the next poll asks again"
                );
                return Ok(());
            }
        };
        self.note_claim(change, None, (None, Some(said))).await
    }

    /// Records that there is a claim, or what its provider says of it now.
    async fn note_claim(
        &self,
        change: ClaimedChange<'_>,
        event: Option<EsimChangeEvent>,
        (reference, said): (Option<String>, Option<String>),
    ) -> Result<(), pg::Error> {
        let settlement = EsimChangeSettlement {
            event,
            reference,
            claim: said,
            ..EsimChangeSettlement::default()
        };
        self.settle_change(change, settlement).await
    }

    /// Answers what can be added to an eSIM. A provider that extends none offers nothing.
    async fn answer_offers(&self, claimed: &ClaimedRequest) -> Result<(), pg::Error> {
        let is_extended = self.calls.provider.capabilities().extend.is_some();
        let offers = match at_provider(&claimed.esim) {
            Some(_) if !is_extended => Some("[]".to_owned()),
            Some(esim) => match self.calls.offers(&esim).await {
                Ok(offers) => Some(offers_json(offers)),
                Err(trouble) => {
                    tracing::info!(
                        topup.id = %claimed.esim.topup_id,
                        provider.name = self.calls.name,
                        class = trouble.class(),
                        reason = trouble.reason(),
                        "the provider does not say what can be added to a delivered eSIM"
                    );
                    None
                }
            },
            None => None,
        };
        self.database
            .run(async |connection| {
                let topup = &claimed.esim.topup_id;
                esim_requests::record_offers(connection, topup, offers.as_deref()).await
            })
            .await
    }

    /// Settles an attempt whose outcome is not known by what the eSIM shows.
    async fn settle_attempt(
        &self,
        change: ClaimedChange<'_>,
        shown: Result<Shown, Trouble>,
        call: AttemptCall<'_>,
    ) -> Result<(), pg::Error> {
        match shown {
            Ok(Shown::Done) => self.done(change).await,
            Ok(Shown::Installed) => {
                let event = EsimChangeEvent::Refused(change.attempt());
                self.end_change(change, event, EsimChangeReason::Installed, None)
                    .await
            }
            // The provider takes an eSIM back once, so a repeat does no harm, and it tells the
            // outcome of the first request: it is answered as taken back before. Nothing of the
            // first one is on its way any more, so a refusal holds.
            Ok(Shown::Nothing) if self.has_settled(change.open) => {
                self.send_attempt(change, true, call).await
            }
            Ok(Shown::Nothing) => self.until_settled(change, None).await,
            Ok(Shown::Claimed(said)) if self.has_settled(change.open) => {
                let event = EsimChangeEvent::Claimed(change.attempt());
                self.note_claim(change, Some(event), (None, Some(said)))
                    .await
            }
            // Most are decided within seconds.
            Ok(Shown::Claimed(_)) => {
                let again_in = pause(change.open.attempt_age);
                self.change_goes_on(change, None, again_in).await
            }
            // A second claim would be a second case for people, so nothing is sent again.
            Ok(Shown::ClaimUnshown(said)) => self.still_unknown(change, &said).await,
            Ok(Shown::Possible | Shown::Impossible(_)) => self.not_done(change).await,
            Err(trouble) => self.still_unknown(change, trouble.reason()).await,
        }
    }

    /// Sends an attempt that is recorded, and records its outcome. One `is_repeated` that was sent
    /// before, and its outcome stays unknown if this request has none.
    async fn send_attempt(
        &self,
        change: ClaimedChange<'_>,
        is_repeated: bool,
        call: AttemptCall<'_>,
    ) -> Result<(), pg::Error> {
        let answer = match self.respond(call).await {
            Some(Ok(answer)) => answer,
            Some(Err(trouble)) if is_repeated => {
                return self.still_unknown(change, trouble.reason()).await;
            }
            None if is_repeated => {
                let again_in = pause(change.open.attempt_age);
                return self.change_goes_on(change, None, again_in).await;
            }
            Some(Err(trouble)) => return self.unanswered(change, Some(trouble)).await,
            None => return self.unanswered(change, None).await,
        };
        match answer {
            AttemptAnswer::Done => self.done(change).await,
            AttemptAnswer::Refused(said) => {
                let event = EsimChangeEvent::Refused(change.attempt());
                self.end_change(change, event, EsimChangeReason::Refused, Some(said))
                    .await
            }
            AttemptAnswer::Claimed { reference, said } => {
                let event = EsimChangeEvent::Claimed(change.attempt());
                self.note_claim(change, Some(event), (reference, said))
                    .await
            }
        }
    }

    /// Makes the call of an attempt.
    async fn respond(&self, call: AttemptCall<'_>) -> Option<Result<AttemptAnswer, Trouble>> {
        let AttemptCall {
            asked,
            cause,
            esim,
            send_by,
        } = call;
        Some(match asked {
            AskedChange::GiveBack => {
                let response = self.calls.give_back(esim, cause, send_by).await?;
                response.map(|response| match response {
                    GiveBackResponse::Returned => AttemptAnswer::Done,
                    GiveBackResponse::Refused(said) => AttemptAnswer::Refused(said),
                    GiveBackResponse::Claimed { reference, said } => AttemptAnswer::Claimed {
                        reference: reference.map(|id| id.as_str().to_owned()),
                        said,
                    },
                })
            }
            AskedChange::Suspension(suspend) => {
                let response = self.calls.suspend(esim, suspend, send_by).await?;
                response.map(|response| match response {
                    SuspendResponse::Done => AttemptAnswer::Done,
                    SuspendResponse::Refused(said) => AttemptAnswer::Refused(said),
                })
            }
        })
    }

    /// Begins a change of which the provider says that it would carry it out now, or of which it
    /// says nothing.
    async fn begin_attempt(
        &self,
        change: ClaimedChange<'_>,
        shown: Result<Shown, Trouble>,
        call: AttemptCall<'_>,
    ) -> Result<(), pg::Error> {
        let is_late = change.open.asked_age >= self.park_after;
        match shown {
            Ok(Shown::Done) => return self.done(change).await,
            Ok(Shown::Installed) => {
                return self.refuse(change, EsimChangeReason::Installed, None).await;
            }
            Ok(Shown::Impossible(said)) => {
                return self
                    .refuse(change, EsimChangeReason::Refused, Some(said))
                    .await;
            }
            Ok(Shown::Claimed(said)) => {
                let event = EsimChangeEvent::Claimed(change.attempt());
                return self
                    .note_claim(change, Some(event), (None, Some(said)))
                    .await;
            }
            Ok(Shown::Possible | Shown::Nothing | Shown::ClaimUnshown(_)) if is_late => {
                return self.cannot_begin(change, None).await;
            }
            Err(trouble) => return self.cannot_begin(change, Some(&trouble)).await,
            Ok(Shown::Possible | Shown::Nothing | Shown::ClaimUnshown(_)) => {}
        }
        let Some(change) = self.record_attempt(change).await? else {
            return Ok(());
        };
        self.send_attempt(change, false, call).await
    }

    async fn fail(&self, claimed: &ClaimedRequest, failure: UsageFailure) -> Result<(), pg::Error> {
        self.database
            .run(async |connection| {
                esim_requests::record_failure(connection, &claimed.esim.topup_id, failure).await
            })
            .await
    }

    /// Refuses a give-back of which no attempt is open.
    async fn refuse(
        &self,
        change: ClaimedChange<'_>,
        reason: EsimChangeReason,
        said: Option<String>,
    ) -> Result<(), pg::Error> {
        self.end_change(change, EsimChangeEvent::Refuse, reason, said)
            .await
    }

    async fn done(&self, change: ClaimedChange<'_>) -> Result<(), pg::Error> {
        self.change_goes_on(change, Some(EsimChangeEvent::Done), AGAIN_LEAST)
            .await
    }
}

/// What a look at an eSIM says of a change to it.
enum Shown {
    Done,
    /// The eSIM is as it was, and the provider would carry the change out.
    Possible,
    /// The eSIM is as it was, and the provider would not carry it out, with its words.
    Impossible(String),
    /// It is installed, so it cannot be given back, now or later.
    Installed,
    /// No look shows it.
    Nothing,
    /// The provider decides about a claim, with its word for the state.
    Claimed(String),
    /// The eSIM is not given back, and no look shows whether there is a claim.
    ClaimUnshown(String),
}

impl Shown {
    /// What a look says of a give-back.
    fn custody(custody: Custody, is_installed: bool) -> Self {
        match custody {
            Custody::Returned => Self::Done,
            Custody::Claimed(said) => Self::Claimed(said),
            Custody::ClaimUnshown(said) => Self::ClaimUnshown(said),
            _ if is_installed => Self::Installed,
            Custody::Kept(said) => Self::Impossible(said),
            Custody::Returnable => Self::Possible,
            Custody::Unshown => Self::Nothing,
        }
    }

    fn of(asked: AskedChange, status: EsimStatus, way: Option<GiveBackWay>) -> Self {
        match (asked, status.custody) {
            (AskedChange::GiveBack, custody) => {
                // People may also take one back that is installed, and of no use.
                let is_refused = way != Some(GiveBackWay::Claim);
                let is_installed = status.reading.installed == Some(true);
                Self::custody(custody, is_refused && is_installed)
            }
            (AskedChange::Suspension(suspend), custody) => match (status.suspended, custody) {
                (Some(suspended), _) if suspended == suspend => Self::Done,
                (Some(_), _) => Self::Possible,
                (None, Custody::Kept(said)) => Self::Impossible(said),
                (None, Custody::Returned) => {
                    Self::Impossible("the provider has it back".to_owned())
                }
                (None, _) => Self::Impossible("the provider does not say its state".to_owned()),
            },
        }
    }
}

/// The call of a recorded attempt.
#[derive(Clone, Copy)]
struct AttemptCall<'a> {
    asked: AskedChange,
    cause: GiveBackCause,
    esim: &'a DeliveredEsim,
    send_by: Moment,
}

/// A definite response to an attempt.
enum AttemptAnswer {
    Done,
    /// In the provider's words.
    Refused(String),
    Claimed {
        reference: Option<String>,
        said: Option<String>,
    },
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

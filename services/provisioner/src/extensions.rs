//! Extends delivered eSIMs: adds data or days to them.
//!
//! Ingress stores the extension, because only this service holds the credentials of providers. It
//! is a row of `work` with the kind `extend`, which the worker of [`crate::after_delivery`] runs
//! beside the requests about delivered eSIMs, and as these it opens no breaker and waits while the
//! breaker is not closed.
//!
//! Guarantee: an extension that the partner has asked for is added at most once, and the partner
//! hears that it is added, or that it is not, only if that is certain ([`domain::esim_change`]).
//! Before each attempt the provider is asked for the eSIM as it is, and that baseline is stored
//! with the record of the attempt, before anything is sent. After a lost answer the extension is
//! looked for. That it is not found proves something only at a provider that knows extensions by
//! our id ([`FindExtension::Exact`]), where it must be said twice, the second time after the
//! settling delay; everywhere else the extension is looked for until `PARK_AFTER` and then parked
//! for an operator, because an attempt that is repeated might be added twice.

use std::time::Duration;

use domain::{EsimChangeState, esim_change::EsimChangeEvent, extension::Baseline};
use pipeline::{Effect, perform};
use runtime::clock::Moment;
use store::{
    esim_requests::{EsimChangeReason, RequestClaim},
    extensions::{self, ClaimedExtension, ExtensionSettlement},
};
use uuid::Uuid;

use crate::{
    after_delivery::{AGAIN_LEAST, AGAIN_MOST, BAD_UNIT_ID, pause},
    providers::{
        AddedExtension, BeforeExtension, DeliveredEsim, ExtendResponse, Extension, ExtensionSeen,
        FindExtension, ProviderId, Trouble,
    },
    purchases::ProviderContext,
};

impl ProviderContext {
    /// Claims due extensions. While the breaker is not closed, only a probe gets one.
    pub(crate) async fn claim_extensions(
        &self,
        rows: &[Uuid],
        claim: RequestClaim,
    ) -> Result<Vec<ClaimedExtension>, pg::Error> {
        let name = &self.calls.name;
        let lease = self.lease;
        self.database
            .run(async |connection| extensions::claim(connection, name, rows, lease, claim).await)
            .await
    }

    pub(crate) async fn serve_extension(&self, claimed: &ClaimedExtension, claim_began: Moment) {
        if let Err(error) = self.try_serve_extension(claimed, claim_began).await {
            tracing::warn!(
                extension.id = %claimed.extension_id,
                topup.id = %claimed.topup_id,
                order.id = %claimed.order_id,
                %error,
                "cannot record what became of an extension; it is looked at again when its lease \
                 ends"
            );
        }
    }

    async fn try_serve_extension(
        &self,
        claimed: &ClaimedExtension,
        claim_began: Moment,
    ) -> Result<(), pg::Error> {
        let Some(find) = self.calls.provider.capabilities().extend else {
            let event = match claimed.now.state {
                EsimChangeState::Sending => EsimChangeEvent::Park(claimed.now.attempt),
                _ => EsimChangeEvent::Refuse,
            };
            return self
                .end_extension(claimed, event, EsimChangeReason::NotAvailable, None)
                .await;
        };
        let Ok(unit_id) = ProviderId::parse(claimed.unit_id.clone()) else {
            return self
                .database
                .run(async |connection| {
                    extensions::set_aside(connection, claimed.extension_id, BAD_UNIT_ID).await
                })
                .await;
        };
        let extension = Extension {
            id: claimed.extension_id,
            esim: DeliveredEsim {
                unit_id,
                iccid: claimed.iccid.clone(),
            },
            provider_option_id: claimed.provider_option_id.clone(),
            send_by: claim_began + self.settling_delay / 2,
        };
        if claimed.now.state == EsimChangeState::Sending {
            self.look_for_extension(claimed, &extension, find).await
        } else {
            self.begin_extension(claimed, &extension).await
        }
    }

    /// Settles an attempt whose outcome is not known by what the provider shows.
    async fn look_for_extension(
        &self,
        claimed: &ClaimedExtension,
        extension: &Extension,
        find: FindExtension,
    ) -> Result<(), pg::Error> {
        let attempt = claimed.now.attempt;
        let after_settling_delay = claimed.attempt_age >= self.settling_delay;
        let seen = self
            .calls
            .find_extension(extension, &claimed.baseline)
            .await;
        match seen {
            Ok(ExtensionSeen::Added(_))
                if claimed.follows_another && find != FindExtension::Exact =>
            {
                let said = "what the provider shows may be the extension before this one";
                self.extension_unknown(claimed, said).await
            }
            Ok(ExtensionSeen::Added(added)) => self.added(claimed, added).await,
            Ok(ExtensionSeen::Refused { status, message }) => {
                let event = EsimChangeEvent::Refused(attempt);
                let said = refusal(&status, &message);
                self.end_extension(claimed, event, EsimChangeReason::Refused, Some(said))
                    .await
            }
            Ok(ExtensionSeen::NotAdded) if find == FindExtension::Exact => {
                let left = self.settling_delay.saturating_sub(claimed.attempt_age);
                let event = EsimChangeEvent::NotDone {
                    attempt,
                    after_settling_delay,
                };
                let again_in = left.max(AGAIN_LEAST);
                self.extension_goes_on(claimed, Some(event), again_in).await
            }
            Ok(ExtensionSeen::NotAdded) => {
                let said = "the provider does not show it, which proves nothing";
                self.extension_unknown(claimed, said).await
            }
            Err(trouble) => self.extension_unknown(claimed, trouble.reason()).await,
        }
    }

    /// Looks again at an attempt whose outcome is still unknown, or parks it.
    async fn extension_unknown(
        &self,
        claimed: &ClaimedExtension,
        said: &str,
    ) -> Result<(), pg::Error> {
        let age = claimed.attempt_age;
        if age < self.park_after {
            return self.extension_goes_on(claimed, None, pause(age)).await;
        }
        let event = EsimChangeEvent::Park(claimed.now.attempt);
        let said = Some(said.to_owned());
        self.end_extension(claimed, event, EsimChangeReason::Unknown, said)
            .await
    }

    /// Reads the baseline, records the next attempt with it, and sends that.
    async fn begin_extension(
        &self,
        claimed: &ClaimedExtension,
        extension: &Extension,
    ) -> Result<(), pg::Error> {
        let is_late = claimed.asked_age >= self.park_after;
        let again_in = pause(claimed.asked_age);
        let baseline = match self.calls.before_extension(extension).await {
            Ok(BeforeExtension::Refused(said)) => {
                let event = EsimChangeEvent::Refuse;
                return self
                    .end_extension(claimed, event, EsimChangeReason::Refused, Some(said))
                    .await;
            }
            // What the provider does not say of its package, our catalogue does.
            Ok(BeforeExtension::Possible(baseline)) if !is_late => Baseline {
                adds_data: baseline.adds_data.or(claimed.adds_data),
                adds_days: baseline.adds_days.or(claimed.adds_days),
                ..baseline
            },
            // No attempt is open here, so it is certain that nothing was added.
            Ok(BeforeExtension::Possible(_)) => {
                let event = EsimChangeEvent::Refuse;
                return self
                    .end_extension(claimed, event, EsimChangeReason::Unreachable, None)
                    .await;
            }
            Err(trouble) if is_late => {
                let said = Some(trouble.reason().to_owned());
                let event = EsimChangeEvent::Refuse;
                return self
                    .end_extension(claimed, event, EsimChangeReason::Unreachable, said)
                    .await;
            }
            Err(trouble) => {
                let wait = trouble.asked_wait(AGAIN_MOST).max(again_in);
                return self.extension_goes_on(claimed, None, wait).await;
            }
        };
        let Some(attempt) = self.record_extension_attempt(claimed, &baseline).await? else {
            return Ok(());
        };
        match self.calls.extend(extension).await {
            Some(Ok(ExtendResponse::Added(added))) => self.added(claimed, added).await,
            Some(Ok(ExtendResponse::Refused { status, message })) => {
                let event = EsimChangeEvent::Refused(attempt);
                let said = Some(refusal(&status, &message));
                self.end_extension(claimed, event, EsimChangeReason::Refused, said)
                    .await
            }
            Some(Err(Trouble::RefusedHere(said))) => {
                let event = EsimChangeEvent::Refused(attempt);
                self.end_extension(claimed, event, EsimChangeReason::Refused, Some(said))
                    .await
            }
            Some(Err(trouble)) if trouble.may_be_carried_out() => {
                tracing::warn!(
                    extension.id = %claimed.extension_id,
                    topup.id = %claimed.topup_id,
                    provider.name = self.calls.name,
                    attempt,
                    reason = trouble.reason(),
                    "the outcome of an extension is unknown; it is looked for until the provider \
                     shows it"
                );
                self.extension_goes_on(claimed, None, AGAIN_LEAST).await
            }
            Some(Err(trouble)) => {
                let wait = trouble.asked_wait(AGAIN_MOST).max(again_in);
                let event = Some(EsimChangeEvent::NotSent(attempt));
                self.extension_goes_on(claimed, event, wait).await
            }
            // Only this process may send the attempt, and it will not.
            None => {
                let event = Some(EsimChangeEvent::NotSent(attempt));
                self.extension_goes_on(claimed, event, AGAIN_LEAST).await
            }
        }
    }

    async fn record_extension_attempt(
        &self,
        claimed: &ClaimedExtension,
        baseline: &Baseline,
    ) -> Result<Option<u32>, pg::Error> {
        let recording = self.database.run(async |connection| {
            extensions::begin(connection, claimed.extension_id, claimed.now, baseline).await
        });
        perform(Effect::CommitEsimAttempt, recording).await
    }

    /// Records that the provider has carried an extension out. A profile that cannot be sealed now
    /// is asked for again, because the answer of a provider that has sold another eSIM is found
    /// again like a lost one.
    async fn added(
        &self,
        claimed: &ClaimedExtension,
        added: AddedExtension,
    ) -> Result<(), pg::Error> {
        let profile = match added.profile {
            None => None,
            Some(new) => match self.seal(new, claimed.partner_id, &claimed.topup_id) {
                Ok(sealed) => Some(sealed),
                Err(error) => {
                    let said = format!("its new profile cannot be encrypted: {error}");
                    return self.extension_unknown(claimed, &said).await;
                }
            },
        };
        let settlement = ExtensionSettlement {
            event: Some(EsimChangeEvent::Done),
            reference: added.reference.map(String::from),
            profile,
            ..ExtensionSettlement::default()
        };
        self.settle_extension(claimed, settlement).await
    }

    /// Ends an extension without success.
    async fn end_extension(
        &self,
        claimed: &ClaimedExtension,
        event: EsimChangeEvent,
        reason: EsimChangeReason,
        said: Option<String>,
    ) -> Result<(), pg::Error> {
        let settlement = ExtensionSettlement {
            event: Some(event),
            reason: Some((reason, said)),
            again_in: AGAIN_LEAST,
            ..ExtensionSettlement::default()
        };
        self.settle_extension(claimed, settlement).await
    }

    /// Records an event after which the extension is not over, or only the time of the next look.
    async fn extension_goes_on(
        &self,
        claimed: &ClaimedExtension,
        event: Option<EsimChangeEvent>,
        again_in: Duration,
    ) -> Result<(), pg::Error> {
        let settlement = ExtensionSettlement {
            event,
            again_in,
            ..ExtensionSettlement::default()
        };
        self.settle_extension(claimed, settlement).await
    }

    async fn settle_extension(
        &self,
        claimed: &ClaimedExtension,
        settlement: ExtensionSettlement,
    ) -> Result<(), pg::Error> {
        let settling = self.database.run(async |connection| {
            extensions::settle(connection, claimed.extension_id, &settlement).await
        });
        let (state, moved) = perform(Effect::CommitEsimOutcome, settling).await?;
        let Some(state) = state.filter(|state| moved && state.is_over()) else {
            return Ok(());
        };
        let name = extensions::state_name(state);
        self.calls.metrics.extension(&self.calls.name, name);
        let said = settlement.reason.and_then(|(_, said)| said);
        if state == EsimChangeState::Parked {
            tracing::error!(
                extension.id = %claimed.extension_id,
                topup.id = %claimed.topup_id,
                order.id = %claimed.order_id,
                partner.id = %claimed.partner_id,
                provider.name = self.calls.name,
                provider.unit.id = claimed.unit_id,
                said,
                "an extension is parked, because the provider does not say whether it was added; \
                 find out there, and settle it with `esimctl extension resolve`"
            );
        } else {
            tracing::info!(
                extension.id = %claimed.extension_id,
                topup.id = %claimed.topup_id,
                order.id = %claimed.order_id,
                partner.id = %claimed.partner_id,
                provider.name = self.calls.name,
                state = name,
                said,
                "an extension has ended"
            );
        }
        Ok(())
    }
}

/// A refusal in the words of the provider.
fn refusal(status: &str, message: &str) -> String {
    match (status, message) {
        ("", said) | (said, "") => said.to_owned(),
        (status, message) => format!("{status}: {message}"),
    }
}

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

use domain::{EsimChangeState, esim_change::EsimChangeEvent, extension::Baseline};
use runtime::clock::Moment;
use store::{
    esim_requests::{EsimChangeReason, EsimChangeSettlement},
    extensions::{self, ClaimedExtension},
};

use crate::{
    esim_change::{BAD_UNIT_ID, ChangeRow, ClaimedChange, at_provider},
    providers::{
        AddedExtension, BeforeExtension, ExtendResponse, Extension, ExtensionSeen, FindExtension,
        Trouble,
    },
    purchases::ProviderContext,
};

/// The change that is an extension, whose next attempt is recorded with this baseline.
fn change_of<'a>(claimed: &'a ClaimedExtension, baseline: &'a Baseline) -> ClaimedChange<'a> {
    ClaimedChange {
        row: ChangeRow::Extension(claimed.extension_id, baseline),
        esim: &claimed.esim,
        open: claimed.open,
    }
}

impl ProviderContext {
    pub(crate) async fn serve_extension(
        &self,
        claimed: &ClaimedExtension,
        claim_began: Moment,
    ) -> Result<(), pg::Error> {
        let change = change_of(claimed, &claimed.baseline);
        let Some(find) = self.calls.provider.capabilities().extend else {
            let event = match claimed.open.now.state {
                EsimChangeState::Sending => EsimChangeEvent::Park(change.attempt()),
                _ => EsimChangeEvent::Refuse,
            };
            return self
                .end_change(change, event, EsimChangeReason::NotAvailable, None)
                .await;
        };
        let Some(esim) = at_provider(&claimed.esim) else {
            return self
                .database
                .run(async |connection| {
                    extensions::set_aside(connection, claimed.extension_id, BAD_UNIT_ID).await
                })
                .await;
        };
        let extension = Extension {
            id: claimed.extension_id,
            esim,
            provider_option_id: claimed.provider_option_id.clone(),
            send_by: claim_began + self.settling_delay / 2,
        };
        if claimed.open.now.state == EsimChangeState::Sending {
            self.look_for_extension(claimed, change, &extension, find)
                .await
        } else {
            self.begin_extension(claimed, change, &extension).await
        }
    }

    /// Settles an attempt whose outcome is not known by what the provider shows.
    async fn look_for_extension(
        &self,
        claimed: &ClaimedExtension,
        change: ClaimedChange<'_>,
        extension: &Extension,
        find: FindExtension,
    ) -> Result<(), pg::Error> {
        let seen = self
            .calls
            .find_extension(extension, &claimed.baseline)
            .await;
        match seen {
            Ok(ExtensionSeen::Added(_))
                if claimed.follows_another && find != FindExtension::Exact =>
            {
                let said = "what the provider shows may be the extension before this one";
                self.still_unknown(change, said).await
            }
            Ok(ExtensionSeen::Added(added)) => self.added(change, added).await,
            Ok(ExtensionSeen::Refused { status, message }) => {
                self.refused(change, refusal(&status, &message)).await
            }
            Ok(ExtensionSeen::NotAdded) if find == FindExtension::Exact => {
                self.not_done(change).await
            }
            Ok(ExtensionSeen::NotAdded) => {
                let said = "the provider does not show it, which proves nothing";
                self.still_unknown(change, said).await
            }
            Err(trouble) => self.still_unknown(change, trouble.reason()).await,
        }
    }

    /// Reads the baseline, records the next attempt with it, and sends that.
    async fn begin_extension(
        &self,
        claimed: &ClaimedExtension,
        change: ClaimedChange<'_>,
        extension: &Extension,
    ) -> Result<(), pg::Error> {
        let is_late = claimed.open.asked_age >= self.park_after;
        let baseline = match self.calls.before_extension(extension).await {
            Ok(BeforeExtension::Refused(said)) => {
                let event = EsimChangeEvent::Refuse;
                return self
                    .end_change(change, event, EsimChangeReason::Refused, Some(said))
                    .await;
            }
            // What the provider does not say of its package, our catalogue does.
            Ok(BeforeExtension::Possible(baseline)) if !is_late => Baseline {
                adds_data: baseline.adds_data.or(claimed.adds_data),
                adds_days: baseline.adds_days.or(claimed.adds_days),
                ..baseline
            },
            Ok(BeforeExtension::Possible(_)) => return self.cannot_begin(change, None).await,
            Err(trouble) => return self.cannot_begin(change, Some(&trouble)).await,
        };
        let Some(change) = self.record_attempt(change_of(claimed, &baseline)).await? else {
            return Ok(());
        };
        match self.calls.extend(extension).await {
            Some(Ok(ExtendResponse::Added(added))) => self.added(change, added).await,
            Some(Ok(ExtendResponse::Refused { status, message })) => {
                self.refused(change, refusal(&status, &message)).await
            }
            Some(Err(Trouble::RefusedHere(said))) => self.refused(change, said).await,
            Some(Err(trouble)) => self.unanswered(change, Some(trouble)).await,
            None => self.unanswered(change, None).await,
        }
    }

    /// Ends an extension whose last attempt the provider has refused.
    async fn refused(&self, change: ClaimedChange<'_>, said: String) -> Result<(), pg::Error> {
        let event = EsimChangeEvent::Refused(change.attempt());
        self.end_change(change, event, EsimChangeReason::Refused, Some(said))
            .await
    }

    /// Records that the provider has carried an extension out. A profile that cannot be sealed now
    /// is asked for again, because the answer of a provider that has sold another eSIM is found
    /// again like a lost one.
    async fn added(
        &self,
        change: ClaimedChange<'_>,
        added: AddedExtension,
    ) -> Result<(), pg::Error> {
        let esim = change.esim;
        let profile = match added.profile {
            None => None,
            Some(new) => match self.seal(new, esim.partner_id, &esim.topup_id) {
                Ok(sealed) => Some(sealed),
                Err(error) => {
                    let said = format!("its new profile cannot be encrypted: {error}");
                    return self.still_unknown(change, &said).await;
                }
            },
        };
        let settlement = EsimChangeSettlement {
            event: Some(EsimChangeEvent::Done),
            reference: added.reference.map(String::from),
            profile,
            ..EsimChangeSettlement::default()
        };
        self.settle_change(change, settlement).await
    }
}

/// A refusal in the words of the provider.
fn refusal(status: &str, message: &str) -> String {
    match (status, message) {
        ("", said) | (said, "") => said.to_owned(),
        (status, message) => format!("{status}: {message}"),
    }
}

//! What every change to a delivered eSIM has in common, whether it is given back, suspended or
//! extended: how an attempt is recorded, what follows from a call or a look without an answer, and
//! how the end is recorded and logged. [`domain::esim_change`] says what may follow what.

use std::time::Duration;

use domain::{
    EsimChangeState, ExtensionId,
    esim_change::{EsimChangeEvent, EsimChangeKind},
    extension::Baseline,
};
use pipeline::{Effect, perform};
use store::{
    esim_requests::{
        self, AskedChange, ClaimedEsim, EsimChangeReason, EsimChangeSettlement, OpenChange,
    },
    extensions,
};

use crate::{
    providers::{DeliveredEsim, ProviderId, Trouble},
    purchases::ProviderContext,
};

/// The shortest and the longest pause before an eSIM is looked at again.
pub(crate) const AGAIN_LEAST: Duration = Duration::from_secs(1);
const AGAIN_MOST: Duration = Duration::from_mins(5);
/// Why a request is set aside whose eSIM no call can name.
pub(crate) const BAD_UNIT_ID: &str = "the stored id of the unit is no id of a provider";

/// A claimed change, which is not over.
#[derive(Clone, Copy)]
pub(crate) struct ClaimedChange<'a> {
    pub(crate) row: ChangeRow<'a>,
    pub(crate) esim: &'a ClaimedEsim,
    pub(crate) open: OpenChange,
}

/// The row that is settled.
#[derive(Clone, Copy)]
pub(crate) enum ChangeRow<'a> {
    Asked(AskedChange),
    Extension(ExtensionId, &'a Baseline),
}

impl ChangeRow<'_> {
    /// The kind of a change that waits for an operator if its outcome stays unknown.
    fn kind(self) -> Option<EsimChangeKind> {
        match self {
            Self::Asked(AskedChange::GiveBack) => Some(EsimChangeKind::GiveBack),
            Self::Asked(AskedChange::Suspension(_)) => None,
            Self::Extension(..) => Some(EsimChangeKind::Extension),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Asked(AskedChange::Suspension(true)) => "suspension",
            Self::Asked(AskedChange::Suspension(false)) => "resumption",
            _ => self.kind().map_or("", EsimChangeKind::word),
        }
    }

    fn state_name(self, state: EsimChangeState) -> &'static str {
        match self {
            Self::Asked(asked) => asked.state_name(state),
            Self::Extension(..) => extensions::state_name(state),
        }
    }
}

impl ClaimedChange<'_> {
    pub(crate) fn attempt(&self) -> u32 {
        self.open.now.attempt
    }
}

/// The eSIM as the provider knows it; `None` if no call can name it.
pub(crate) fn at_provider(esim: &ClaimedEsim) -> Option<DeliveredEsim> {
    let unit_id = ProviderId::parse(esim.unit_id.clone()).ok()?;
    Some(DeliveredEsim {
        unit_id,
        iccid: esim.iccid.clone(),
    })
}

/// The pause before the next look at something that began this long ago.
pub(crate) fn pause(age: Duration) -> Duration {
    (age / 4).clamp(AGAIN_LEAST, AGAIN_MOST)
}

impl ProviderContext {
    /// Records the next attempt of a change, and returns the change with it; `None` if it has
    /// changed since it was claimed, so that nothing may be sent.
    pub(crate) async fn record_attempt<'a>(
        &self,
        change: ClaimedChange<'a>,
    ) -> Result<Option<ClaimedChange<'a>>, pg::Error> {
        let read = change.open.now;
        let recording = self.database.run(async |connection| match change.row {
            ChangeRow::Asked(asked) => {
                esim_requests::begin(connection, &change.esim.topup_id, asked, read).await
            }
            ChangeRow::Extension(id, baseline) => {
                extensions::begin(connection, id, read, baseline).await
            }
        });
        let attempt = perform(Effect::CommitEsimAttempt, recording).await?;
        Ok(attempt.map(|attempt| {
            let mut change = change;
            change.open.now.attempt = attempt;
            change
        }))
    }

    /// Looks later whether a change can begin, or ends it if that takes too long. No attempt is
    /// open here, so it is certain that the eSIM is as it was.
    pub(crate) async fn cannot_begin(
        &self,
        change: ClaimedChange<'_>,
        trouble: Option<&Trouble>,
    ) -> Result<(), pg::Error> {
        if change.open.asked_age >= self.park_after {
            let said = trouble.map(|trouble| trouble.reason().to_owned());
            return self
                .end_change(
                    change,
                    EsimChangeEvent::Refuse,
                    EsimChangeReason::Unreachable,
                    said,
                )
                .await;
        }
        let asked = trouble.map(|trouble| trouble.asked_wait(AGAIN_MOST));
        let again_in = asked.unwrap_or_default().max(pause(change.open.asked_age));
        self.change_goes_on(change, None, again_in).await
    }

    /// Goes on after the call of a recorded attempt that got no answer; `None` if its turn came too
    /// late, so that nobody sends the attempt any more, because only this process may.
    pub(crate) async fn unanswered(
        &self,
        change: ClaimedChange<'_>,
        trouble: Option<Trouble>,
    ) -> Result<(), pg::Error> {
        let not_sent = EsimChangeEvent::NotSent(change.attempt());
        match trouble {
            Some(trouble) if trouble.may_be_carried_out() => {
                tracing::warn!(
                    topup.id = %change.esim.topup_id,
                    provider.name = self.calls.name,
                    change = change.row.word(),
                    attempt = change.attempt(),
                    reason = trouble.reason(),
                    "the outcome of a change to a delivered eSIM is unknown; it is looked for \
                     until the provider shows it"
                );
                self.change_goes_on(change, None, AGAIN_LEAST).await
            }
            Some(trouble) => {
                let asked = trouble.asked_wait(AGAIN_MOST);
                let again_in = asked.max(pause(change.open.asked_age));
                self.change_goes_on(change, Some(not_sent), again_in).await
            }
            None => {
                self.change_goes_on(change, Some(not_sent), AGAIN_LEAST)
                    .await
            }
        }
    }

    /// Whether the call of the last attempt can no longer arrive at the provider.
    pub(crate) fn has_settled(&self, open: OpenChange) -> bool {
        open.attempt_age >= self.settling_delay
    }

    /// Looks again when the call of the last attempt can no longer arrive.
    pub(crate) async fn until_settled(
        &self,
        change: ClaimedChange<'_>,
        event: Option<EsimChangeEvent>,
    ) -> Result<(), pg::Error> {
        let left = self.settling_delay.saturating_sub(change.open.attempt_age);
        self.change_goes_on(change, event, left.max(AGAIN_LEAST))
            .await
    }

    /// Records a look that proves that the attempt has had no effect yet.
    pub(crate) async fn not_done(&self, change: ClaimedChange<'_>) -> Result<(), pg::Error> {
        let event = EsimChangeEvent::NotDone {
            attempt: change.attempt(),
            after_settling_delay: self.has_settled(change.open),
        };
        self.until_settled(change, Some(event)).await
    }

    /// Looks again at an attempt whose outcome is still unknown, or parks it.
    pub(crate) async fn still_unknown(
        &self,
        change: ClaimedChange<'_>,
        said: &str,
    ) -> Result<(), pg::Error> {
        let age = change.open.attempt_age;
        if age < self.park_after {
            return self.change_goes_on(change, None, pause(age)).await;
        }
        let event = EsimChangeEvent::Park(change.attempt());
        let said = Some(said.to_owned());
        self.end_change(change, event, EsimChangeReason::Unknown, said)
            .await
    }

    /// Ends a change without success.
    pub(crate) async fn end_change(
        &self,
        change: ClaimedChange<'_>,
        event: EsimChangeEvent,
        reason: EsimChangeReason,
        said: Option<String>,
    ) -> Result<(), pg::Error> {
        let settlement = EsimChangeSettlement {
            event: Some(event),
            reason: Some((reason, said)),
            again_in: AGAIN_LEAST,
            ..EsimChangeSettlement::default()
        };
        self.settle_change(change, settlement).await
    }

    /// Records an event after which the change is not over, or only the time of the next look.
    pub(crate) async fn change_goes_on(
        &self,
        change: ClaimedChange<'_>,
        event: Option<EsimChangeEvent>,
        again_in: Duration,
    ) -> Result<(), pg::Error> {
        let settlement = EsimChangeSettlement {
            event,
            again_in,
            ..EsimChangeSettlement::default()
        };
        self.settle_change(change, settlement).await
    }

    pub(crate) async fn settle_change(
        &self,
        change: ClaimedChange<'_>,
        settlement: EsimChangeSettlement,
    ) -> Result<(), pg::Error> {
        let ClaimedChange { row, esim, .. } = change;
        let settling = self.database.run(async |connection| match row {
            ChangeRow::Asked(asked) => {
                esim_requests::settle(connection, &esim.topup_id, asked, &settlement).await
            }
            ChangeRow::Extension(id, _) => extensions::settle(connection, id, &settlement).await,
        });
        let (state, moved) = perform(Effect::CommitEsimOutcome, settling).await?;
        let Some(state) = state.filter(|state| moved && state.is_answered()) else {
            return Ok(());
        };
        let name = row.state_name(state);
        if let Some(kind) = row.kind() {
            self.calls.metrics.esim_change(kind, &self.calls.name, name);
        }
        let said = settlement.reason.and_then(|(_, said)| said);
        if let Some(kind) = row.kind().filter(|_| state == EsimChangeState::Parked) {
            tracing::error!(
                topup.id = %esim.topup_id,
                order.id = %esim.order_id,
                partner.id = %esim.partner_id,
                provider.name = self.calls.name,
                provider.unit.id = esim.unit_id,
                said,
                "{} is parked, because the provider does not say whether it was carried out; find \
                 out there, and settle it with `esimctl {} resolve`",
                kind.with_article(),
                kind.word()
            );
        } else {
            let said = said.or(settlement.claim);
            tracing::info!(
                topup.id = %esim.topup_id,
                order.id = %esim.order_id,
                partner.id = %esim.partner_id,
                provider.name = self.calls.name,
                change = row.word(),
                state = name,
                said,
                "a change to a delivered eSIM has ended, or is a claim that its provider decides"
            );
        }
        Ok(())
    }
}

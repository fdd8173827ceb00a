//! The look-up of a purchase that waits for an operator, when an operator asks
//! ([`store::placements::asked`]).
//!
//! Nothing is bought here. A purchase that is found is recorded as any late response, so its order
//! goes on by itself. Otherwise the placement stays parked, and the operator reads what the
//! provider said.

use domain::{HistoryKind, Reason, reason::ReasonCode};
use pg::PgConnection;
use pipeline::worker::{Permit, Trigger};
use store::placements::{ClaimedPlacement, asked};

use super::ProviderContext;
use crate::{calls::Wanted, providers::LookUpResponse};

impl ProviderContext {
    /// Asks the provider whether it has the purchase of a parked placement whose outcome is
    /// unknown.
    pub(super) async fn look_again(
        &self,
        claimed: &ClaimedPlacement,
        trigger: &Trigger,
        permit: Option<Permit>,
    ) {
        let request = self.look_up_request(claimed);
        let response = self.calls.look_up(&request, Wanted::HeldOutcome).await;
        let _room = self.release_once_recordable(permit).await;
        let (kind, reason) = match response {
            Ok(LookUpResponse::Found(bought)) => {
                tracing::info!(
                    placement.id = %claimed.placement_id,
                    attempt = claimed.attempt,
                    "an operator asked for a purchase on hold, and the provider has it, so its order goes on"
                );
                return self
                    .record_units(claimed, trigger, bought, ReasonCode::ProfilesLate.into())
                    .await;
            }
            // The purchase may still be on its way to the provider, so its absence says nothing
            // yet.
            Ok(LookUpResponse::NotFound) if claimed.attempt_age < self.settling_delay => {
                let early = Reason::with(
                    ReasonCode::OutcomeUnknown,
                    "the purchase is not there, but it may still arrive; ask again in some minutes",
                );
                (HistoryKind::Unknown, Some(early))
            }
            // A search proves no absence, so the operator has to look into the provider's portal.
            Ok(LookUpResponse::NotFound) => {
                let worth = self
                    .cannot_prove_absence()
                    .then(|| ReasonCode::SearchProvesNothing.into());
                (HistoryKind::NotFound, worth)
            }
            Err(trouble) => {
                let reason = Reason::with(ReasonCode::OutcomeUnknown, trouble.reason());
                (HistoryKind::Unknown, Some(reason))
            }
        };
        let id = claimed.placement_id;
        let attempt = claimed.attempt;
        let note = async |connection: &mut PgConnection| {
            asked::note(connection, id, attempt, kind, reason.as_ref()).await
        };
        if let Err(error) = self.database.run(note).await {
            tracing::warn!(
                placement.id = %id,
                %error,
                "what the provider said about a purchase on hold could not be noted; it is asked again when the lease ends"
            );
        }
    }
}

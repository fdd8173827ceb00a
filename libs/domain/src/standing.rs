//! How a unit of an order stands: what it is, what holds it up, and who must act. The sentence for the
//! partner and the pages of operators show this value and work out nothing of their own, so that they
//! cannot contradict each other.

use strum::{EnumString, IntoStaticStr};

use crate::{GiveBackState, reason::Code};

/// The state of a unit, as it follows from its row, its eSIM and its placement.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, EnumString, IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum UnitState {
    Pending,
    /// Its placement waits for an operator.
    Parked,
    Ready,
    /// It was ready, and its provider has it back.
    Returned,
    Failed,
}

/// The state of a delivery.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, EnumString, IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum DeliveryState {
    Pending,
    Delivered,
    Exhausted,
    NoEndpoint,
    Cancelled,
}

impl DeliveryState {
    /// Whether a person can have it sent again.
    pub fn may_be_sent_again(self) -> bool {
        match self {
            Self::Pending | Self::Delivered | Self::Exhausted => true,
            Self::NoEndpoint | Self::Cancelled => false,
        }
    }
}

/// Whether webhooks are sent to an endpoint now.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, EnumString, IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum EndpointState {
    Open,
    NoUrl,
    Blocked,
    Probing,
    /// By an operator.
    Paused,
    PausedByPartner,
    /// A channel for notices that gets nothing but its code yet.
    Unverified,
}

/// The webhook of a ready unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Webhook {
    pub state: DeliveryState,
    /// The attempts that have ended.
    pub attempts: u32,
    /// The last attempt got a 410.
    pub is_gone: bool,
    /// It was delivered before, and is or was sent again.
    pub was_delivered: bool,
}

/// What is stored about a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    pub state: UnitState,
    /// Why it failed or its placement is parked.
    pub reason: Option<Code>,
    pub give_back: Option<GiveBackState>,
    pub webhook: Option<Webhook>,
    pub endpoint: EndpointState,
}

/// How a unit stands. The order is that of the sentence, from what went well to what did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// The webhook was acknowledged.
    Delivered,
    SentAgain,
    /// It was delivered before; sending it again has failed.
    NotSentAgain,
    Sending,
    /// It waits for its endpoint, which gets nothing now.
    Held(Hold),
    /// At least one attempt failed, and another one follows.
    Failing,
    Exhausted,
    /// The endpoint asked us to stop.
    Gone,
    NoUrl,
    /// It is being bought, or its profile is awaited.
    Waiting,
    /// It is bought, and its profile does not come.
    ProfilesLate,
    /// It is bought, and the provider does not hand its profile over.
    Uncollectable,
    /// It is bought, and what the provider has sent cannot be delivered.
    Undeliverable,
    /// It is bought, and the provider no longer knows the purchase.
    Vanished,
    /// Nobody knows for certain whether it is bought.
    OnHold,
    GivingBack,
    GiveBackOnHold,
    Returned,
    Failed,
    /// A row of it holds a code that only a newer version knows.
    Unreadable,
}

/// What holds a webhook up at its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hold {
    /// It gets an occasional test only.
    Blocked,
    Paused,
    PausedByPartner,
}

/// Who must act before a unit goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Actor {
    /// Nobody: it has ended, or goes on by itself.
    Nobody,
    Partner,
    Operator,
}

/// How a unit stands whose placement is parked for this reason. What is certainly bought is told as
/// bought, although it cannot be delivered yet.
fn parked(code: Code) -> Standing {
    match code {
        Code::ProfilesLate => Standing::ProfilesLate,
        Code::ProfilesUncollectable => Standing::Uncollectable,
        Code::ProfileUnreadable
        | Code::ConfirmationCodeNeeded
        | Code::SoldTwice
        | Code::ResponseUnstorable => Standing::Undeliverable,
        Code::PurchaseVanished => Standing::Vanished,
        Code::NotSent
        | Code::Rejected
        | Code::OutcomeUnknown
        | Code::SearchProvesNothing
        | Code::BoughtUnexpectedly
        | Code::RowUnreadable
        | Code::UnitFailed
        | Code::GivenUp
        | Code::OrderRefused
        | Code::OrderCancelled
        | Code::Legacy => Standing::OnHold,
    }
}

fn hold(endpoint: EndpointState) -> Option<Hold> {
    match endpoint {
        EndpointState::Open | EndpointState::NoUrl | EndpointState::Unverified => None,
        EndpointState::Blocked | EndpointState::Probing => Some(Hold::Blocked),
        EndpointState::Paused => Some(Hold::Paused),
        EndpointState::PausedByPartner => Some(Hold::PausedByPartner),
    }
}

fn ready(unit: &Unit) -> Standing {
    // A give-back that has ended is told by the state of the unit.
    match unit.give_back {
        Some(GiveBackState::Asked | GiveBackState::Sending) => return Standing::GivingBack,
        Some(GiveBackState::Parked) => return Standing::GiveBackOnHold,
        Some(GiveBackState::Returned | GiveBackState::Refused) | None => {}
    }
    let Some(webhook) = unit.webhook else {
        return Standing::Sending;
    };
    match webhook.state {
        DeliveryState::Delivered => Standing::Delivered,
        DeliveryState::Exhausted if webhook.was_delivered => Standing::NotSentAgain,
        DeliveryState::Exhausted if webhook.is_gone => Standing::Gone,
        DeliveryState::Exhausted | DeliveryState::Cancelled => Standing::Exhausted,
        DeliveryState::NoEndpoint => Standing::NoUrl,
        DeliveryState::Pending if webhook.was_delivered => Standing::SentAgain,
        DeliveryState::Pending if webhook.attempts > 0 => Standing::Failing,
        DeliveryState::Pending => hold(unit.endpoint).map_or(Standing::Sending, Standing::Held),
    }
}

/// How a unit stands.
pub fn standing(unit: &Unit) -> Standing {
    match unit.state {
        UnitState::Ready => ready(unit),
        UnitState::Returned => Standing::Returned,
        UnitState::Failed => Standing::Failed,
        UnitState::Parked => unit.reason.map_or(Standing::OnHold, parked),
        UnitState::Pending => Standing::Waiting,
    }
}

impl Standing {
    /// Whether the purchase of the unit is certain, as far as the partner is told.
    pub fn is_bought(self) -> bool {
        !matches!(
            self,
            Self::Waiting | Self::OnHold | Self::Failed | Self::Unreadable
        )
    }

    /// Who must act before it goes on.
    pub fn must_act(self) -> Actor {
        match self {
            Self::Delivered
            | Self::SentAgain
            | Self::Sending
            | Self::Failing
            | Self::Held(Hold::Blocked)
            | Self::Waiting
            | Self::GivingBack
            | Self::Returned
            | Self::Failed => Actor::Nobody,
            Self::NotSentAgain
            | Self::Exhausted
            | Self::Gone
            | Self::NoUrl
            | Self::Held(Hold::PausedByPartner) => Actor::Partner,
            Self::Held(Hold::Paused)
            | Self::ProfilesLate
            | Self::Uncollectable
            | Self::Undeliverable
            | Self::Vanished
            | Self::OnHold
            | Self::GiveBackOnHold
            | Self::Unreadable => Actor::Operator,
        }
    }

    /// The standing in two or three words, for lists of operators.
    pub fn label(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::SentAgain => "delivered, being sent again",
            Self::NotSentAgain => "delivered, not sent again",
            Self::Sending => "ready, being sent",
            Self::Held(Hold::Blocked) => "ready, endpoint blocked",
            Self::Held(Hold::Paused | Hold::PausedByPartner) => "ready, endpoint paused",
            Self::Failing => "ready, not delivered yet",
            Self::Exhausted | Self::Gone => "ready, not delivered",
            Self::NoUrl => "ready, no URL",
            Self::Waiting => "pending",
            Self::ProfilesLate => "bought, profile late",
            Self::Uncollectable => "bought, profile not handed over",
            Self::Undeliverable => "bought, profile unusable",
            Self::Vanished => "bought, unknown to its provider",
            Self::OnHold => "on hold",
            Self::GivingBack => "being given back",
            Self::GiveBackOnHold => "give-back on hold",
            Self::Returned => "given back",
            Self::Failed => "failed",
            Self::Unreadable => "of a newer version",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use strum::VariantArray;

    use super::*;

    /// Every combination of what may be stored.
    fn all() -> Vec<Unit> {
        let reasons: Vec<Option<Code>> = Code::VARIANTS.iter().copied().map(Some).collect();
        let reasons: Vec<Option<Code>> = [None].into_iter().chain(reasons).collect();
        let give_backs = [
            None,
            Some(GiveBackState::Asked),
            Some(GiveBackState::Sending),
            Some(GiveBackState::Returned),
            Some(GiveBackState::Refused),
            Some(GiveBackState::Parked),
        ];
        let mut webhooks = vec![None];
        for state in DeliveryState::VARIANTS {
            for bits in 0..8_u32 {
                webhooks.push(Some(Webhook {
                    state: *state,
                    attempts: bits & 1,
                    is_gone: bits & 2 > 0,
                    was_delivered: bits & 4 > 0,
                }));
            }
        }
        let mut units = Vec::new();
        for state in UnitState::VARIANTS {
            for reason in &reasons {
                for give_back in give_backs {
                    for webhook in &webhooks {
                        for endpoint in EndpointState::VARIANTS {
                            units.push(Unit {
                                state: *state,
                                reason: *reason,
                                give_back,
                                webhook: *webhook,
                                endpoint: *endpoint,
                            });
                        }
                    }
                }
            }
        }
        units
    }

    #[test]
    fn partner_support_and_operator_are_never_told_contradicting_things() {
        for unit in all() {
            let standing = standing(&unit);
            match unit.state {
                UnitState::Ready => assert!(
                    standing.is_bought()
                        && standing != Standing::Returned
                        && (standing == Standing::Delivered)
                            == (unit
                                .webhook
                                .is_some_and(|of| of.state == DeliveryState::Delivered)
                                && !matches!(
                                    standing,
                                    Standing::GivingBack | Standing::GiveBackOnHold
                                )),
                    "{unit:?}: {standing:?}"
                ),
                UnitState::Parked => {
                    let bought = unit.reason.is_some_and(Code::is_bought);
                    assert_eq!(standing.is_bought(), bought, "{unit:?}");
                    assert_eq!(standing.must_act(), Actor::Operator, "{unit:?}");
                }
                UnitState::Pending => assert_eq!(standing, Standing::Waiting),
                UnitState::Failed => assert_eq!(standing, Standing::Failed),
                UnitState::Returned => assert_eq!(standing, Standing::Returned),
            }
            let shows_delivery = standing.label().starts_with("delivered");
            let was_delivered = matches!(
                standing,
                Standing::Delivered | Standing::SentAgain | Standing::NotSentAgain
            );
            assert_eq!(shows_delivery, was_delivered, "{standing:?}");
        }
    }

    #[test]
    fn each_standing_is_reached() {
        let reached: BTreeSet<Standing> = all().iter().map(standing).collect();
        assert_eq!(reached.len(), 21, "{reached:?}");
    }
}

//! How a unit of an order stands: what it is, what holds it up, who must act and what happens next.
//! The sentence for the partner, its look-ups and the pages of operators show this value and work
//! out nothing of their own, so that they cannot contradict each other.
//!
//! A ready unit has a webhook for each endpoint of its partner. It stands as the one of them that
//! is worst off, because a unit is delivered when every endpoint has it. While a stage of ours is
//! silent, what waits for it stands so, whatever else holds it up: nobody but us can end that.

use strum::{EnumString, IntoStaticStr};

use crate::{EsimChangeState, reason::ReasonCode};

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

/// What the rows of a unit say about it, from which its state follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is what a column says")]
pub struct Rows {
    /// Its profile is stored.
    pub is_ready: bool,
    pub is_returned: bool,
    pub has_failed: bool,
    /// Its placement waits for an operator.
    pub is_parked: bool,
}

impl UnitState {
    /// A profile counts more than a failure, because the provider has sold the eSIM after all, and
    /// a unit that has failed is not on hold with the others of its placement.
    pub fn of(rows: Rows) -> Self {
        match rows {
            Rows {
                is_returned: true, ..
            } => Self::Returned,
            Rows { is_ready: true, .. } => Self::Ready,
            Rows {
                has_failed: true, ..
            } => Self::Failed,
            Rows {
                is_parked: true, ..
            } => Self::Parked,
            Rows { .. } => Self::Pending,
        }
    }

    /// What the look-ups of its partner show.
    pub fn shown(self) -> ShownState {
        match self {
            Self::Pending => ShownState::Processing,
            Self::Parked => ShownState::OnHold,
            Self::Ready => ShownState::Ready,
            Self::Returned => ShownState::Returned,
            Self::Failed => ShownState::Failed,
        }
    }
}

/// The state of a unit as its partner looks it up. A partner need not know how a purchase works.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, EnumString, IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum ShownState {
    Processing,
    OnHold,
    Ready,
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
}

impl DeliveryState {
    /// Whether a person can have it sent again.
    pub fn may_be_sent_again(self) -> bool {
        match self {
            Self::Pending | Self::Delivered | Self::Exhausted => true,
            Self::NoEndpoint => false,
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

/// The webhook of a ready unit to one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebhookFacts {
    pub endpoint: EndpointState,
    pub state: DeliveryState,
    /// The attempts that have ended.
    pub attempts: u32,
    /// The last attempt got a 410.
    pub is_gone: bool,
    /// It was delivered before, and is or was sent again.
    pub was_delivered: bool,
}

/// The stages of which no process has committed anything for ten seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SilentStages {
    pub provisioner: bool,
    pub notifier: bool,
}

/// What is stored about a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitFacts<'a> {
    pub state: UnitState,
    /// Why it failed or its placement is parked.
    pub reason: Option<ReasonCode>,
    pub give_back: Option<EsimChangeState>,
    /// Its webhooks, that to the first endpoint first.
    pub webhooks: &'a [WebhookFacts],
    /// Why nothing is bought at its provider, if its purchase waits for that.
    pub stop: Option<Stop>,
    pub silent: SilentStages,
}

/// How a unit stands. The order is that of the sentence, from what went well to what did not. Of
/// several webhooks the last one in this order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// The webhook was acknowledged.
    Delivered,
    SentAgain,
    Sending,
    /// It waits for its endpoint, which gets nothing now.
    Held(Hold),
    /// At least one attempt failed, and another one follows.
    Failing,
    /// It was delivered before; sending it again has failed.
    NotSentAgain,
    Exhausted,
    /// The endpoint asked us to stop.
    Gone,
    NoUrl,
    /// It is being bought, or its profile is awaited.
    Waiting,
    /// It is accepted, and waits for its provider, at which nothing is bought now.
    Stopped(Stop),
    /// It is accepted, and waits for our provisioner, which is silent.
    Stalled,
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
    /// It is being given back, and waits for our provisioner, which is silent.
    GiveBackStalled,
    /// People at the provider decide whether it takes the eSIM back.
    GiveBackClaimed,
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
    /// Our notifier is silent, so nothing is sent to anybody.
    Service,
}

/// Why nothing is bought at a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stop {
    /// It failed, or an operator has stopped it for some time. It is tested, and then buying goes
    /// on.
    ForNow,
    /// It denies our account, or commits were lost. Only an operator can end that.
    UntilOperator,
}

impl Stop {
    pub fn of(until_operator: bool) -> Self {
        if until_operator {
            Self::UntilOperator
        } else {
            Self::ForNow
        }
    }
}

/// Who must act before a unit goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NextActor {
    /// Nobody: it has ended, or goes on by itself.
    Nobody,
    Partner,
    Operator,
}

/// How a unit stands whose placement is parked for this reason. What is certainly bought is told as
/// bought, although it cannot be delivered yet.
fn parked(code: ReasonCode) -> Standing {
    match code {
        ReasonCode::ProfilesLate => Standing::ProfilesLate,
        ReasonCode::ProfilesUncollectable => Standing::Uncollectable,
        ReasonCode::ProfileUnreadable
        | ReasonCode::ConfirmationCodeNeeded
        | ReasonCode::SoldTwice
        | ReasonCode::ResponseUnstorable => Standing::Undeliverable,
        ReasonCode::PurchaseVanished => Standing::Vanished,
        ReasonCode::NotSent
        | ReasonCode::ProviderBusy
        | ReasonCode::AccessDenied
        | ReasonCode::Rejected
        | ReasonCode::OutcomeUnknown
        | ReasonCode::SearchProvesNothing
        | ReasonCode::BoughtUnexpectedly
        | ReasonCode::RowUnreadable
        | ReasonCode::UnitFailed
        | ReasonCode::GivenUp
        | ReasonCode::OrderRefused
        | ReasonCode::OrderCancelled
        | ReasonCode::Unknown => Standing::OnHold,
    }
}

/// What holds the webhooks to an endpoint up, if anything does.
pub fn hold(endpoint: EndpointState, silent: SilentStages) -> Option<Hold> {
    if silent.notifier {
        return Some(Hold::Service);
    }
    match endpoint {
        EndpointState::Open | EndpointState::NoUrl | EndpointState::Unverified => None,
        EndpointState::Blocked | EndpointState::Probing => Some(Hold::Blocked),
        EndpointState::Paused => Some(Hold::Paused),
        EndpointState::PausedByPartner => Some(Hold::PausedByPartner),
    }
}

/// How the webhook of a ready unit to one endpoint stands.
pub fn of_webhook(webhook: &WebhookFacts, silent: SilentStages) -> Standing {
    match webhook.state {
        DeliveryState::Delivered => Standing::Delivered,
        DeliveryState::Exhausted if webhook.was_delivered => Standing::NotSentAgain,
        DeliveryState::Exhausted if webhook.is_gone => Standing::Gone,
        DeliveryState::Exhausted => Standing::Exhausted,
        DeliveryState::NoEndpoint => Standing::NoUrl,
        DeliveryState::Pending if silent.notifier => Standing::Held(Hold::Service),
        DeliveryState::Pending if webhook.was_delivered => Standing::SentAgain,
        DeliveryState::Pending if webhook.attempts > 0 => Standing::Failing,
        DeliveryState::Pending => {
            hold(webhook.endpoint, silent).map_or(Standing::Sending, Standing::Held)
        }
    }
}

fn ready(unit: &UnitFacts<'_>) -> Standing {
    // A give-back that has ended is told by the state of the unit.
    match unit.give_back {
        Some(EsimChangeState::Asked | EsimChangeState::Sending) if unit.silent.provisioner => {
            return Standing::GiveBackStalled;
        }
        Some(EsimChangeState::Asked | EsimChangeState::Sending) => return Standing::GivingBack,
        Some(EsimChangeState::Claimed) => return Standing::GiveBackClaimed,
        Some(EsimChangeState::Parked) => return Standing::GiveBackOnHold,
        Some(EsimChangeState::Done | EsimChangeState::Refused) | None => {}
    }
    let all = unit.webhooks.iter();
    let mut all: Vec<Standing> = all.map(|one| of_webhook(one, unit.silent)).collect();
    // A first endpoint without a URL keeps nothing from a partner that uses further ones.
    if all.len() > 1 {
        all.retain(|one| *one != Standing::NoUrl);
    }
    let none = if unit.silent.notifier {
        Standing::Held(Hold::Service)
    } else {
        Standing::Sending
    };
    all.into_iter().max().unwrap_or(none)
}

/// How a unit stands.
pub fn standing(unit: &UnitFacts<'_>) -> Standing {
    match unit.state {
        UnitState::Ready => ready(unit),
        UnitState::Returned => Standing::Returned,
        UnitState::Failed => Standing::Failed,
        UnitState::Parked => unit.reason.map_or(Standing::OnHold, parked),
        UnitState::Pending if unit.silent.provisioner => Standing::Stalled,
        UnitState::Pending => unit.stop.map_or(Standing::Waiting, Standing::Stopped),
    }
}

impl Standing {
    /// Whether the purchase of the unit is certain, as far as the partner is told.
    pub fn is_bought(self) -> bool {
        !matches!(
            self,
            Self::Waiting
                | Self::Stopped(_)
                | Self::Stalled
                | Self::OnHold
                | Self::Failed
                | Self::Unreadable
        )
    }

    /// What the look-ups of the partner may show of a unit that stands so; of one whose rows cannot
    /// be read they show nothing certain.
    pub fn shown(self) -> ShownState {
        match self {
            Self::Delivered
            | Self::SentAgain
            | Self::Sending
            | Self::Held(_)
            | Self::Failing
            | Self::NotSentAgain
            | Self::Exhausted
            | Self::Gone
            | Self::NoUrl
            | Self::GivingBack
            | Self::GiveBackStalled
            | Self::GiveBackClaimed
            | Self::GiveBackOnHold => ShownState::Ready,
            Self::Waiting | Self::Stopped(_) | Self::Stalled | Self::Unreadable => {
                ShownState::Processing
            }
            Self::ProfilesLate
            | Self::Uncollectable
            | Self::Undeliverable
            | Self::Vanished
            | Self::OnHold => ShownState::OnHold,
            Self::Returned => ShownState::Returned,
            Self::Failed => ShownState::Failed,
        }
    }

    /// Who must act before it goes on.
    pub fn must_act(self) -> NextActor {
        match self {
            Self::Delivered
            | Self::SentAgain
            | Self::Sending
            | Self::Failing
            | Self::Held(Hold::Blocked)
            | Self::Waiting
            | Self::Stopped(Stop::ForNow)
            | Self::GivingBack
            | Self::GiveBackClaimed
            | Self::Returned
            | Self::Failed => NextActor::Nobody,
            Self::NotSentAgain
            | Self::Exhausted
            | Self::Gone
            | Self::NoUrl
            | Self::Held(Hold::PausedByPartner) => NextActor::Partner,
            Self::Held(Hold::Paused | Hold::Service)
            | Self::Stopped(Stop::UntilOperator)
            | Self::Stalled
            | Self::GiveBackStalled
            | Self::ProfilesLate
            | Self::Uncollectable
            | Self::Undeliverable
            | Self::Vanished
            | Self::OnHold
            | Self::GiveBackOnHold
            | Self::Unreadable => NextActor::Operator,
        }
    }

    /// What happens next, for operators.
    pub fn next(self) -> &'static str {
        match self {
            Self::Delivered | Self::Returned | Self::Failed => "nothing, it has ended",
            Self::Sending | Self::SentAgain => "it is sent by itself",
            Self::Failing => "it is sent again by itself",
            Self::Held(Hold::Blocked) => "the endpoint is tested by itself, and then all are sent",
            Self::Held(Hold::Paused) => "an operator resumes the endpoint",
            Self::Held(Hold::PausedByPartner) => "the partner resumes its endpoint",
            Self::Held(Hold::Service) => "an operator starts the notifier, and then all are sent",
            Self::NotSentAgain | Self::Exhausted | Self::Gone => {
                "the partner mends its endpoint, and then it is sent again on request"
            }
            Self::NoUrl => "the partner sets a URL, and then it is sent by itself",
            Self::Waiting => "it is bought, or its profile is collected, by itself",
            Self::Stopped(Stop::ForNow) => {
                "it is bought by itself, once buying at its provider goes on"
            }
            Self::Stopped(Stop::UntilOperator) => {
                "an operator ends what stops buying at its provider, and then it is bought by itself"
            }
            Self::Stalled | Self::GiveBackStalled => {
                "an operator starts the provisioner, and then it goes on by itself"
            }
            Self::ProfilesLate | Self::Uncollectable => {
                "an operator asks the provider for the profile"
            }
            Self::Undeliverable => {
                "an operator gets a usable profile from the provider, and enters it"
            }
            Self::Vanished | Self::OnHold => {
                "an operator looks it up at the provider, and records the outcome"
            }
            Self::GivingBack => "the provider answers",
            Self::GiveBackClaimed => "people at the provider decide, which takes days",
            Self::GiveBackOnHold => "an operator finds out whether the provider has the eSIM back",
            Self::Unreadable => "an operator looks with the newer version",
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
            Self::Held(Hold::Service) => "ready, waits to be sent",
            Self::Failing => "ready, not delivered yet",
            Self::Exhausted | Self::Gone => "ready, not delivered",
            Self::NoUrl => "ready, no URL",
            Self::Waiting => "under way",
            Self::Stopped(_) => "waits for the provider",
            Self::Stalled => "waits to be bought",
            Self::ProfilesLate => "bought, profile late",
            Self::Uncollectable => "bought, profile not handed over",
            Self::Undeliverable => "bought, profile unusable",
            Self::Vanished => "bought, unknown to its provider",
            Self::OnHold => "on hold",
            Self::GivingBack => "being given back",
            Self::GiveBackStalled => "give-back waits to be asked for",
            Self::GiveBackClaimed => "give-back is decided by its provider",
            Self::GiveBackOnHold => "give-back on hold",
            Self::Returned => "given back",
            Self::Failed => "failed",
            Self::Unreadable => "of a newer version",
        }
    }
}

#[cfg(test)]
mod tests;

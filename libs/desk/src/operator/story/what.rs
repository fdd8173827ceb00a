//! The moments of an order's story, and those of its purchases in words, for the page of an order
//! and for `esimctl order show`.

use domain::{
    Command, EsimChangeState, HistoryKind, Reason, Stored, StoredReason,
    esim_change::EsimChangeKind,
};
use serde::Serialize;
use store::history::PlacementSnapshot;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::operator::minute::minute;

/// What happened at a moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum MomentKind {
    /// The order was stored.
    Accepted,
    /// The order was answered with 422.
    Refused,
    /// The partner cancelled the order.
    Cancelled,
    /// An attempt of purchase was recorded, right before it was sent. Only the last one is stored.
    Attempted {
        placement_id: Uuid,
        provider: String,
        attempt: i32,
    },
    /// A look-up found no purchase for the first time after that attempt.
    NotFound { placement_id: Uuid },
    /// The provider confirmed the purchase, or an operator found that it has it.
    Placed {
        placement_id: Uuid,
        provider: String,
        /// The operator who found that.
        by: Option<String>,
    },
    /// A provider rejected the purchase, which then went to the next provider.
    Rejected {
        placement_id: Uuid,
        provider: String,
        reason: Reason,
    },
    /// Units of a placement failed for good.
    Failed {
        placement_id: Uuid,
        units: usize,
        reason: StoredReason,
        /// Whether `at` is the time of the failure. Otherwise it is that of the last attempt of the
        /// purchase, because no other time is stored.
        is_exact: bool,
    },
    /// An operator, or the partner itself, acted on the order or on a part of it.
    Acted {
        operator: String,
        via: Option<String>,
        command: Stored<Command>,
        target: String,
        reason: String,
        /// Whether it found nothing to change.
        changed_nothing: bool,
    },
    /// Something did not go straight, as it was noted then.
    Noted {
        /// `None` if it befell a provider or an endpoint for which the order waited.
        placement_id: Option<Uuid>,
        endpoint_id: Option<Uuid>,
        /// The host of that endpoint, if the order has several.
        #[serde(skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        kind: HistoryKind,
        provider: Option<String>,
        attempt: Option<i32>,
        reason: StoredReason,
        /// What a provider reported.
        #[serde(skip_serializing_if = "Option::is_none")]
        said: Option<String>,
        /// What the placement was before an operator resolved it, and is since.
        before: Option<PlacementSnapshot>,
        after: Option<PlacementSnapshot>,
    },
    /// The placement waits for an operator.
    Parked {
        placement_id: Uuid,
        reason: StoredReason,
    },
    /// The profile of a unit was stored.
    Ready { topup_id: String },
    /// Something came of a give-back or an extension of a unit.
    EsimChanged {
        topup_id: String,
        change: EsimChangeKind,
        /// The partner's id of an extension.
        #[serde(skip_serializing_if = "Option::is_none")]
        external_id: Option<String>,
        step: EsimChangeStep,
        attempt: Option<i32>,
        reason: Option<String>,
    },
    /// An attempt to send a webhook.
    Webhook {
        topup_id: Option<String>,
        kind: String,
        /// The further endpoint that it went to; `None` is the first endpoint.
        endpoint_id: Option<Uuid>,
        /// From 1.
        attempt: i32,
        duration_ms: i32,
        /// The status of the response, if there was one.
        status: Option<i32>,
        /// The result in one word: `delivered`, `status_5xx`, `timeout`, …
        class: String,
    },
    /// What is still to come: the next work of a placement or of a webhook.
    Due {
        placement_id: Option<Uuid>,
        topup_id: Option<String>,
    },
    /// The order was erased.
    Erased,
}

/// What came of a give-back or an extension at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EsimChangeStep {
    Asked,
    /// The last attempt was recorded, right before it was sent.
    Tried,
    Done,
    Refused,
    OnHold,
}

impl EsimChangeStep {
    /// The step to the end in this state; `None` if that is no end.
    pub(super) fn to(state: EsimChangeState) -> Option<Self> {
        match state {
            EsimChangeState::Asked | EsimChangeState::Sending | EsimChangeState::Claimed => None,
            EsimChangeState::Done => Some(Self::Done),
            EsimChangeState::Refused => Some(Self::Refused),
            EsimChangeState::Parked => Some(Self::OnHold),
        }
    }

    /// The step of a change in words.
    pub fn told(self, change: &str, attempt: Option<i32>, reason: Option<&str>) -> String {
        let text = match self {
            Self::Asked => "was asked for".to_owned(),
            Self::Tried => format!("was sent: try {}", attempt.unwrap_or_default()),
            Self::Done => "was carried out".to_owned(),
            Self::Refused => "was refused".to_owned(),
            Self::OnHold => "was put on hold".to_owned(),
        };
        let why = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        format!("{change} {text}{why}")
    }
}

/// A moment of the timeline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoryMoment {
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    #[serde(flatten)]
    pub what: MomentKind,
}

/// What happened to the purchase, to its provider or to an endpoint; `None` if the moment is about
/// something else.
pub fn told(what: &MomentKind) -> Option<String> {
    Some(match what {
        MomentKind::Attempted {
            attempt, provider, ..
        } => format!("try {attempt} of the purchase was sent to {provider}"),
        MomentKind::Placed {
            provider,
            by: Some(by),
            ..
        } => format!("{by} found that {provider} has the purchase"),
        MomentKind::Placed { provider, .. } => format!("{provider} confirmed the purchase"),
        MomentKind::Rejected {
            provider, reason, ..
        } => format!(
            "{provider} rejected the purchase, so the next provider is asked: {}",
            reason.detail.as_deref().unwrap_or_default()
        ),
        MomentKind::NotFound { .. } => {
            "the provider was asked and does not have the purchase (believed once a later answer agrees)"
                .into()
        }
        MomentKind::Parked { reason, .. } => format!("on hold: {}", because(reason)),
        MomentKind::Failed {
            units,
            reason,
            is_exact,
            ..
        } => {
            let esims = match units {
                1 => "1 eSIM".to_owned(),
                several => format!("{several} eSIMs"),
            };
            let when = if *is_exact {
                ""
            } else {
                " (the time is that of the last attempt; that of the failure is not stored)"
            };
            format!("{esims} failed: {}{when}", because(reason))
        }
        MomentKind::Noted {
            kind,
            provider,
            host,
            attempt,
            reason,
            said,
            before,
            after,
            ..
        } => {
            let provider = provider.as_deref().unwrap_or("the provider");
            let endpoint = host.as_ref().map_or_else(String::new, |host| format!(" {host}"));
            let detail = reason.told();
            let detail = detail.map_or_else(String::new, |reason| format!(": {reason}"));
            let text = match kind {
                HistoryKind::NotBought => {
                    format!("{provider} did not carry the purchase out{detail}")
                }
                HistoryKind::Unknown => format!("{provider} gave no usable response{detail}"),
                HistoryKind::NotFound => format!(
                    "{provider} was asked and does not have the purchase (believed once a later answer agrees)"
                ),
                HistoryKind::Rejected | HistoryKind::Rerouted => {
                    format!("{provider} rejected the purchase{detail}")
                }
                HistoryKind::Parked => format!("on hold{detail}"),
                HistoryKind::Disputed => {
                    format!("on hold, because it contradicts what is stored{detail}")
                }
                HistoryKind::Cleared => {
                    format!("a late response of {provider} ended the wait for an operator")
                }
                HistoryKind::UnitFailed => format!("an eSIM failed{detail}"),
                HistoryKind::Resolved => resolved(before.as_ref(), after.as_ref()),
                HistoryKind::BreakerOpened => {
                    format!("buying at {provider} stopped, so its purchases waited")
                }
                HistoryKind::BreakerClosed => format!("buying at {provider} goes on again"),
                HistoryKind::Blocked => {
                    format!("the endpoint{endpoint} was blocked, so its webhooks waited")
                }
                HistoryKind::Unblocked => format!("the block of the endpoint{endpoint} ended"),
                HistoryKind::Reported => {
                    let said = said.as_deref().unwrap_or("something of an eSIM");
                    format!("{provider} reported {said}, so it was asked")
                }
            };
            let attempt =
                attempt.map_or_else(String::new, |attempt| format!("try {attempt}: "));
            format!("{attempt}{text}")
        }
        MomentKind::EsimChanged { .. } => return changed(what),
        MomentKind::Accepted
        | MomentKind::Refused
        | MomentKind::Cancelled
        | MomentKind::Acted { .. }
        | MomentKind::Ready { .. }
        | MomentKind::Webhook { .. }
        | MomentKind::Due { .. }
        | MomentKind::Erased => return None,
    })
}

/// What came of a give-back or an extension.
fn changed(what: &MomentKind) -> Option<String> {
    let MomentKind::EsimChanged {
        topup_id,
        change,
        external_id,
        step,
        attempt,
        reason,
    } = what
    else {
        return None;
    };
    let id = external_id.as_deref();
    let id = id.map_or_else(String::new, |id| format!(" {id}"));
    let change = format!("the {}{id} of topup {topup_id}", change.word());
    Some(step.told(&change, *attempt, reason.as_deref()))
}

fn because(reason: &StoredReason) -> String {
    let told = reason.told();
    told.unwrap_or_else(|| "no reason is recorded".into())
}

/// What an operator changed. The texts are gone once the order is erased.
fn resolved(before: Option<&PlacementSnapshot>, after: Option<&PlacementSnapshot>) -> String {
    let (Some(before), Some(after)) = (before, after) else {
        return "an operator resolved it".into();
    };
    let why: StoredReason = before.reason.clone().into();
    let confirmed = before.placed_at.map_or_else(String::new, |at| {
        format!("; {} had confirmed it at {}", before.provider, minute(at))
    });
    format!(
        "an operator resolved it: {} at {} instead of {} ({}){confirmed}",
        after.state.as_str(),
        after.provider,
        before.state.as_str(),
        because(&why),
    )
}

/// Whether something of the purchase, of its provider or of an endpoint did not go straight.
pub fn is_off_the_path(what: &MomentKind) -> bool {
    let straight = matches!(
        what,
        MomentKind::Attempted { .. } | MomentKind::Placed { by: None, .. }
    );
    !straight && told(what).is_some()
}

//! The moments of an order's story in words, as its picture and its list of steps show them.

use desk::operator::story::{self, MomentKind, StoryMoment};
use domain::{HistoryKind, Stored, standing::EndpointState};
use time::Duration;

use crate::{
    pages::endpoints::endpoint_words,
    pictures::{OrderStep, StepResult},
};

/// What a step says: how it went, and its text.
type Told = (StepResult, String);

/// A moment as a step. `endpoint` is the state of the partner's first endpoint.
pub(super) fn step(moment: StoryMoment, endpoint: &Stored<EndpointState>) -> OrderStep {
    let mut lasted = None;
    if let MomentKind::Webhook { duration_ms, .. } = moment.what {
        lasted = Some(Duration::milliseconds(duration_ms.into()));
    }
    let changed_nothing = matches!(
        moment.what,
        MomentKind::Acted {
            changed_nothing: true,
            ..
        }
    );
    let (went, text) = told(moment.what, endpoint);
    OrderStep {
        at: moment.at,
        took: lasted,
        went,
        text,
        changed_nothing,
    }
}

fn told(what: MomentKind, endpoint: &Stored<EndpointState>) -> Told {
    let neutral = |text: &str| (StepResult::Neutral, text.to_owned());
    match what {
        MomentKind::Accepted => (StepResult::Neutral, "received".to_owned()),
        MomentKind::Refused => neutral("refused with a 422; nothing was bought"),
        MomentKind::Cancelled => neutral("cancelled by the partner; nothing was bought"),
        MomentKind::Erased => neutral("erased: ids, states and times are left"),
        MomentKind::Ready { topup_id } => {
            (StepResult::Well, format!("the eSIM {topup_id} is ready"))
        }
        MomentKind::Webhook {
            topup_id,
            kind,
            endpoint_id,
            attempt,
            status,
            class,
            ..
        } => {
            let went = if class == "delivered" {
                StepResult::Well
            } else {
                StepResult::Badly
            };
            let response = match status {
                Some(status) => format!("the endpoint responded with status {status}"),
                None => format!("no response ({})", class.replace('_', " ")),
            };
            let of = topup_id.map_or_else(String::new, |topup| format!(" of {topup}"));
            let to = endpoint_id.map_or_else(String::new, |id| format!(" to endpoint {id}"));
            let text = format!("webhook {kind}{of}{to}, try {attempt}: {response}");
            (went, text)
        }
        MomentKind::Due {
            topup_id: Some(topup),
            ..
        } => {
            let text = if *endpoint == EndpointState::Open {
                format!("next try of the webhook of {topup}")
            } else {
                let state = match endpoint.known() {
                    Some(EndpointState::Probing) => "blocked, and its next test is due".into(),
                    _ => endpoint.told(endpoint_words),
                };
                format!("the webhook of {topup} waits, because its endpoint is {state}")
            };
            (StepResult::Neutral, text)
        }
        MomentKind::Due { topup_id: None, .. } => neutral(
            "the purchase goes on: the next try, a look whether it was bought, or getting its eSIMs",
        ),
        MomentKind::Acted {
            operator,
            via,
            command,
            target,
            reason,
            ..
        } => {
            let via = via.map_or_else(String::new, |via| format!(" ({via})"));
            let text = format!("{operator}{via}: {command}, {target}; reason: {reason}");
            (StepResult::Neutral, text)
        }
        purchase => of_purchase(&purchase),
    }
}

/// The steps of a purchase, and what its provider or an endpoint suffered meanwhile.
fn of_purchase(what: &MomentKind) -> Told {
    let went = match what {
        MomentKind::Placed { .. } => StepResult::Well,
        MomentKind::Rejected { .. } | MomentKind::Parked { .. } | MomentKind::Failed { .. } => {
            StepResult::Badly
        }
        MomentKind::Noted { kind, .. } => match kind {
            HistoryKind::Cleared | HistoryKind::BreakerClosed | HistoryKind::Unblocked => {
                StepResult::Well
            }
            HistoryKind::NotFound | HistoryKind::Resolved | HistoryKind::Reported => {
                StepResult::Neutral
            }
            HistoryKind::NotBought
            | HistoryKind::Unknown
            | HistoryKind::Rejected
            | HistoryKind::Rerouted
            | HistoryKind::Parked
            | HistoryKind::Disputed
            | HistoryKind::UnitFailed
            | HistoryKind::BreakerOpened
            | HistoryKind::Blocked => StepResult::Badly,
        },
        _ => StepResult::Neutral,
    };
    (went, story::told(what).unwrap_or_default())
}

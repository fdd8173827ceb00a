//! The moments of an order's story in words, as its picture and its list of steps show them.

use desk::operator::story::{self, StoryMoment, What};
use domain::{HistoryKind, Stored, standing::EndpointState};
use time::Duration;

use crate::{
    pages::endpoints::endpoint_words,
    pictures::{OrderStep, Went},
};

/// What a step says: how it went, and its text.
type Told = (Went, String);

/// A moment as a step. `endpoint` is the state of the partner's first endpoint.
pub(super) fn step(moment: StoryMoment, endpoint: &Stored<EndpointState>) -> OrderStep {
    let mut lasted = None;
    if let What::Webhook { duration_ms, .. } = moment.what {
        lasted = Some(Duration::milliseconds(duration_ms.into()));
    }
    let changed_nothing = matches!(
        moment.what,
        What::Acted {
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

fn told(what: What, endpoint: &Stored<EndpointState>) -> Told {
    let neutral = |text: &str| (Went::Neutral, text.to_owned());
    match what {
        What::Accepted => (Went::Neutral, "received".to_owned()),
        What::Refused => neutral("refused with a 422; nothing was bought"),
        What::Cancelled => neutral("cancelled by the partner; nothing was bought"),
        What::Erased => neutral("erased: ids, states and times are left"),
        What::Ready { topup_id } => (Went::Well, format!("the eSIM {topup_id} is ready")),
        What::Webhook {
            topup_id,
            kind,
            endpoint_id,
            attempt,
            status,
            class,
            ..
        } => {
            let went = if class == "delivered" {
                Went::Well
            } else {
                Went::Badly
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
        What::Due {
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
            (Went::Neutral, text)
        }
        What::Due { topup_id: None, .. } => neutral(
            "the purchase goes on: the next try, a look whether it was bought, or getting its eSIMs",
        ),
        What::Acted {
            operator,
            via,
            command,
            target,
            reason,
            ..
        } => {
            let via = via.map_or_else(String::new, |via| format!(" ({via})"));
            let text = format!("{operator}{via}: {command}, {target}; reason: {reason}");
            (Went::Neutral, text)
        }
        purchase => of_purchase(&purchase),
    }
}

/// The steps of a purchase, and what its provider or an endpoint suffered meanwhile.
fn of_purchase(what: &What) -> Told {
    let went = match what {
        What::Placed { .. } => Went::Well,
        What::Rejected { .. } | What::Parked { .. } | What::Failed { .. } => Went::Badly,
        What::Noted { kind, .. } => match kind {
            HistoryKind::Cleared | HistoryKind::BreakerClosed | HistoryKind::Unblocked => {
                Went::Well
            }
            HistoryKind::NotFound | HistoryKind::Resolved => Went::Neutral,
            HistoryKind::NotSent
            | HistoryKind::Unknown
            | HistoryKind::Rejected
            | HistoryKind::Rerouted
            | HistoryKind::Parked
            | HistoryKind::Disputed
            | HistoryKind::UnitFailed
            | HistoryKind::BreakerOpened
            | HistoryKind::Blocked => Went::Badly,
        },
        _ => Went::Neutral,
    };
    (went, story::told(what).unwrap_or_default())
}

//! The moments of an order's story in words, as its picture and its list of steps show them.

use domain::{HistoryKind, Stored, Why, standing::EndpointState};
use store::operator::story::{Moment, What};
use time::Duration;

use crate::{
    format::counted,
    pages::partner::endpoint_words,
    pictures::{ACTIONS, Step, Went},
};

/// What a step says: its row in the picture, how it went, and its text.
type Told = (&'static str, Went, String);

/// A moment as a step. `endpoint` is the state of the partner's first endpoint.
pub(super) fn step(moment: Moment, endpoint: &Stored<EndpointState>) -> Step {
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
    let (row, went, text) = told(moment.what, endpoint);
    Step {
        row,
        at: moment.at,
        took: lasted,
        went,
        text,
        changed_nothing,
    }
}

fn told(what: What, endpoint: &Stored<EndpointState>) -> Told {
    let neutral = |row, text: &str| (row, Went::Neutral, text.to_owned());
    match what {
        What::Accepted => ("accepted", Went::Neutral, "received".to_owned()),
        What::Refused => neutral("accepted", "refused with a 422; nothing was bought"),
        What::Cancelled => neutral("accepted", "cancelled by the partner; nothing was bought"),
        What::Erased => neutral("accepted", "erased: ids, states and times are left"),
        What::Ready { topup_id } => (
            "profiles",
            Went::Well,
            format!("the profile of {topup_id} was stored"),
        ),
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
            let text = format!("webhook {kind}{of}{to}, attempt {attempt}: {response}");
            ("webhooks", went, text)
        }
        What::Due {
            topup_id: Some(topup),
            ..
        } => {
            let text = if *endpoint == EndpointState::Open {
                format!("next webhook attempt for {topup}")
            } else {
                let state = match endpoint.known() {
                    Some(EndpointState::Probing) => "blocked, and its next test is due".into(),
                    _ => endpoint.told(endpoint_words),
                };
                format!("the webhook of {topup} waits, because its endpoint is {state}")
            };
            ("webhooks", Went::Neutral, text)
        }
        What::Due { topup_id: None, .. } => neutral(
            "purchase",
            "the next step of the purchase is due: an attempt, a look-up, or collecting profiles",
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
            (ACTIONS, Went::Neutral, text)
        }
        purchase => of_purchase(purchase),
    }
}

/// The steps of a purchase.
fn of_purchase(what: What) -> Told {
    let row = "purchase";
    let because = |reason: Why| {
        reason
            .told()
            .unwrap_or_else(|| "no reason is recorded".into())
    };
    match what {
        What::Attempted {
            attempt, provider, ..
        } => {
            let text = format!("attempt {attempt} of the purchase was sent to {provider}");
            (row, Went::Neutral, text)
        }
        What::Placed { provider, by, .. } => {
            let text = match by {
                Some(by) => format!("{by} found that {provider} has the purchase"),
                None => format!("{provider} confirmed the purchase"),
            };
            (row, Went::Well, text)
        }
        What::Rejected {
            provider, reason, ..
        } => {
            let text = format!(
                "{provider} rejected the purchase, so the next provider is asked: {}",
                reason.detail.unwrap_or_default()
            );
            (row, Went::Badly, text)
        }
        What::Noted {
            kind,
            provider,
            attempt,
            reason,
            before,
            ..
        } => {
            let provider = provider.unwrap_or_else(|| "the provider".into());
            let attempt = attempt.map_or_else(String::new, |attempt| format!("attempt {attempt}: "));
            let detail = reason.told().map_or_else(String::new, |reason| format!(": {reason}"));
            let (went, text) = match kind {
                HistoryKind::NotSent => (Went::Badly, format!("{provider} did not get the purchase{detail}")),
                HistoryKind::Unknown => (Went::Badly, format!("what became of it at {provider} is not known{detail}")),
                HistoryKind::NotFound => (Went::Neutral, format!("a look-up did not find the purchase at {provider}")),
                HistoryKind::Parked => (Went::Badly, format!("parked{detail}")),
                HistoryKind::Disputed => (Went::Badly, format!("parked, because it contradicts what is stored{detail}")),
                HistoryKind::Resolved => {
                    let before = before.map_or_else(String::new, |before| format!("; before: {before}"));
                    (Went::Neutral, format!("an operator resolved it{before}"))
                }
                // These are moments of their own, or not about a purchase.
                HistoryKind::Rejected | HistoryKind::Rerouted | HistoryKind::UnitFailed => {
                    (Went::Badly, format!("it was rejected{detail}"))
                }
                HistoryKind::BreakerOpened => (Went::Badly, format!("its breaker opened{detail}")),
                HistoryKind::BreakerClosed => (Went::Well, "its breaker closed".to_owned()),
            };
            (row, went, format!("{attempt}{text}"))
        }
        What::Parked { reason, .. } => (row, Went::Badly, format!("parked: {}", because(reason))),
        What::Failed {
            units,
            reason,
            is_exact,
            ..
        } => {
            let when = if is_exact {
                ""
            } else {
                " (the time is that of the last attempt; that of the failure is not stored)"
            };
            let reason = because(reason);
            let text = format!("{} failed: {reason}{when}", counted(units, "unit", "units"));
            (row, Went::Badly, text)
        }
        // Everything else is told above.
        _ => (
            row,
            Went::Neutral,
            "a look-up did not find the purchase at the provider (believed once a later one agrees)".to_owned(),
        ),
    }
}

//! The moments of an order's story in words, as its picture and its list of steps show them. An
//! eSIM is called by its place in the order, and an endpoint by its host.

use desk::operator::{
    orders::OrderView,
    story::{self, EsimChangeStep, MomentKind, StoryMoment},
};
use domain::HistoryKind;
use time::Duration;

use crate::{
    pages::acts,
    pictures::{OrderStep, StepResult},
};

/// What a step says: how it went, and its text.
type Told = (StepResult, String);

/// What an eSIM of an order is called.
pub(super) fn unit(order: &OrderView, topup_id: &str) -> String {
    let all = order.topups.len();
    match order.topups.iter().position(|one| one.topup_id == topup_id) {
        Some(_) if all == 1 => "the eSIM".to_owned(),
        Some(nth) => format!("eSIM {} of {all}", nth + 1),
        None => format!("eSIM {topup_id}"),
    }
}

/// A moment of an order as a step; `None` if it has not happened yet.
pub(super) fn step(moment: StoryMoment, order: &OrderView) -> Option<OrderStep> {
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
    let (went, text) = told(moment.what, order)?;
    Some(OrderStep {
        at: moment.at,
        took: lasted,
        went,
        text,
        changed_nothing,
    })
}

fn told(what: MomentKind, order: &OrderView) -> Option<Told> {
    let neutral = |text: &str| (StepResult::Neutral, text.to_owned());
    Some(match what {
        MomentKind::Accepted => (StepResult::Neutral, "received".to_owned()),
        MomentKind::Refused => neutral("refused with a 422; nothing was bought"),
        MomentKind::Cancelled => neutral("cancelled by the partner; nothing was bought"),
        MomentKind::Erased => neutral("erased: ids, states and times are left"),
        MomentKind::Ready { topup_id } => {
            let unit = unit(order, &topup_id);
            (StepResult::Well, format!("{unit} is ready"))
        }
        MomentKind::EsimChanged {
            ref topup_id,
            change,
            ref external_id,
            step,
            attempt,
            ref reason,
        } => {
            let id = external_id
                .as_ref()
                .map_or_else(String::new, |id| format!(" {id}"));
            let name = format!("the {}{id} of {}", change.word(), unit(order, topup_id));
            let went = match step {
                EsimChangeStep::Asked | EsimChangeStep::Tried => StepResult::Neutral,
                EsimChangeStep::Done => StepResult::Well,
                EsimChangeStep::Refused | EsimChangeStep::OnHold => StepResult::Badly,
            };
            (went, step.told(&name, attempt, reason.as_deref()))
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
            let of =
                topup_id.map_or_else(String::new, |topup| format!(" of {}", unit(order, &topup)));
            let to = endpoint_id.map_or_else(String::new, |id| {
                let mut further = order.further.iter();
                let host = further
                    .find(|one| one.endpoint_id == id)
                    .and_then(|one| one.host.as_ref());
                let name = host.map_or("a removed endpoint", String::as_str);
                format!(" to {name}")
            });
            let text = format!("webhook {kind}{of}{to}, try {attempt}: {response}");
            (went, text)
        }
        // What is to come stands beside the purchase and the webhook.
        MomentKind::Due { .. } => return None,
        MomentKind::Acted {
            operator,
            via,
            command,
            target,
            reason,
            ..
        } => {
            let via = via.map_or_else(String::new, |via| format!(" ({via})"));
            let of = match target.split_once(' ') {
                Some(("topup", id)) => format!(", of {}", unit(order, id)),
                _ => String::new(),
            };
            let done = acts::done(&command);
            let text = format!("{operator}{via} {done}{of}; reason: {reason}");
            (StepResult::Neutral, text)
        }
        purchase => of_purchase(&purchase),
    })
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

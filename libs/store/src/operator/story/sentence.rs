//! The state of an order in one sentence, for its partner.

use domain::{
    reason::Code,
    standing::{EndpointState, Standing},
};
use time::OffsetDateTime;

use super::minute;
use crate::operator::orders::{OrderView, TopupView};

/// When the webhooks that wait are sent, for the partner: the next attempt, or what holds all of
/// them up.
fn next(order: &OrderView, units: &[&TopupView], now: OffsetDateTime) -> String {
    match order.endpoint.known() {
        Some(EndpointState::Paused) => {
            "your endpoint is paused by us, and nothing is sent until we resume it".into()
        }
        Some(EndpointState::PausedByPartner) => {
            "you have paused your endpoint, and nothing is sent until you resume it".into()
        }
        Some(EndpointState::Blocked | EndpointState::Probing) => {
            let test = order.endpoint_until.filter(|until| *until > now);
            let test = test.map_or_else(
                || "due now".to_owned(),
                |until| format!("at {} or soon after", minute(until)),
            );
            format!(
                "your endpoint failed many times in a row, so it only gets an occasional test, and the next one is {test}; \
                 everything that waits is sent once a test is acknowledged"
            )
        }
        Some(EndpointState::Open | EndpointState::NoUrl | EndpointState::Unverified) | None => {
            let next = units.iter().filter_map(|one| one.delivery_due_at).min();
            match next {
                Some(at) if at > now => format!("the next attempt is at {}", minute(at)),
                _ => "the next attempt is due now".into(),
            }
        }
    }
}

/// What a group of units of an order is at, for the partner.
#[expect(
    clippy::too_many_lines,
    reason = "one match, so that a standing without a sentence does not compile"
)]
fn told(
    order: &OrderView,
    standing: Standing,
    units: &[&TopupView],
    now: OffsetDateTime,
) -> String {
    let last = units.iter().filter_map(|one| one.delivered_at).max();
    let status = units.iter().find_map(|one| one.delivery_status);
    let error = units.iter().find_map(|one| one.delivery_error.as_deref());
    let response = match (status, error) {
        (Some(status), _) => format!("your endpoint last responded {status}"),
        (None, Some(error)) => format!("the last attempt failed: {error}"),
        (None, None) => "no attempt was acknowledged".to_owned(),
    };
    let is = if units.len() == 1 { "is" } else { "are" };
    let was = if units.len() == 1 { "was" } else { "were" };
    let esims = if units.len() == 1 { "eSIM" } else { "eSIMs" };
    let next = next(order, units, now);
    let is_held = match order.endpoint.known() {
        Some(EndpointState::Open | EndpointState::NoUrl | EndpointState::Unverified) | None => {
            false
        }
        Some(
            EndpointState::Blocked
            | EndpointState::Probing
            | EndpointState::Paused
            | EndpointState::PausedByPartner,
        ) => true,
    };
    match standing {
        Standing::Delivered => {
            let at = last.map_or_else(String::new, |at| {
                let last = if units.len() == 1 {
                    ""
                } else {
                    "the last one "
                };
                format!(", {last}at {}", minute(at))
            });
            format!("{is} ready and delivered to your endpoint{at}")
        }
        Standing::SentAgain => {
            let held = if is_held {
                format!(" ({next})")
            } else {
                String::new()
            };
            format!(
                "{is} ready and {was} delivered to your endpoint before, and the webhook is being sent again{held}"
            )
        }
        Standing::NotSentAgain => format!(
            "{is} ready and {was} delivered to your endpoint before; sending the webhook again failed ({response})"
        ),
        Standing::Held(_) => format!("{is} ready, and the webhook waits: {next}"),
        Standing::Sending => format!("{is} ready, and the webhook is being sent"),
        Standing::Failing => {
            format!("{is} ready, but the webhook has not arrived yet ({response}; {next})")
        }
        Standing::Exhausted => format!(
            "{is} ready, but the webhook was not acknowledged in any of its attempts ({response}); you can look the eSIM up, or ask for the webhook again"
        ),
        Standing::Gone => format!(
            "{is} ready, but your endpoint answered the webhook with 410, which tells us to stop sending it; you can look the eSIM up, or ask for the webhook again"
        ),
        Standing::NoUrl => {
            let waits = if units.len() == 1 { "waits" } else { "wait" };
            format!(
                "{is} ready and {waits} for a webhook URL in your account; you can look the eSIM up"
            )
        }
        Standing::Waiting => format!("{is} being bought or prepared by the provider"),
        Standing::ProfilesLate => {
            format!(
                "{is} bought, but the provider has not sent the {esims} yet; we are clarifying this with the provider"
            )
        }
        Standing::Uncollectable => format!(
            "{is} bought, but the provider does not hand the {esims} over yet; we are clarifying this with the provider"
        ),
        Standing::Undeliverable => format!(
            "{is} bought, but the provider has sent something that we cannot deliver; we are clarifying this with the provider"
        ),
        Standing::Vanished => format!(
            "{is} bought, but the provider does not find the purchase any more; we are clarifying this with the provider"
        ),
        Standing::OnHold => {
            format!("{is} on hold: we are clarifying the purchase with the provider")
        }
        Standing::GivingBack => {
            format!("{is} being given back at your request, and the provider has not answered yet")
        }
        Standing::GiveBackOnHold => format!(
            "{is} being given back at your request: we are clarifying with the provider whether it has the eSIM back"
        ),
        Standing::Unreadable => {
            format!("{is} in a state that this page cannot tell; the newer one beside it can")
        }
        Standing::Returned => format!("{was} given back at your request"),
        Standing::Failed => {
            let by_operator = units
                .iter()
                .all(|one| one.reason.code() == Some(Code::GivenUp));
            let why = if by_operator {
                "the provider does not have the purchase, or has refunded it"
            } else {
                "the provider rejected the purchase or could not supply the eSIM"
            };
            format!("failed for good and will not be delivered, because {why}")
        }
    }
}

/// Why an order was refused, as its 422 said.
fn refusal(order: &OrderView) -> String {
    let reasons = || order.topups.iter().map(|one| one.reason.0.as_ref());
    let rejected = reasons().flatten().find(|one| one.code == Code::Rejected);
    match rejected {
        Some(reason) => match &reason.detail {
            Some(answer) => format!("the provider rejected the purchase ({answer})"),
            None => "the provider rejected the purchase".to_owned(),
        },
        None if reasons()
            .flatten()
            .all(|one| one.code == Code::OrderRefused) =>
        {
            "the provider could not be reached".to_owned()
        }
        None => "the provider rejected the purchase or could not be reached".to_owned(),
    }
}

/// The state of an order in one sentence, without any credential, in words of the partner guide.
/// `now` is the time of the database or close to it.
pub fn sentence(order: &OrderView, now: OffsetDateTime) -> String {
    let head = format!(
        "Order {} of {}",
        order.external_order_id,
        minute(order.created_at)
    );
    if order.cancelled {
        return format!(
            "{head} was cancelled at your request: nothing of it was bought, and its external_order_id is free again."
        );
    }
    if order.refused {
        let why = refusal(order);
        return format!(
            "{head} was refused with a 422, because {why}: nothing of it was bought or will be, and its external_order_id is free again, so you can order anew with it."
        );
    }
    let mut groups: Vec<(Standing, Vec<&TopupView>)> = Vec::new();
    for topup in &order.topups {
        let standing = order.standing(topup);
        match groups.iter_mut().find(|(known, _)| *known == standing) {
            Some((_, of)) => of.push(topup),
            None => groups.push((standing, vec![topup])),
        }
    }
    groups.sort_by_key(|(standing, _)| *standing);
    let all = order.topups.len();
    let parts: Vec<String> = groups
        .iter()
        .map(|(standing, units)| {
            let what = told(order, *standing, units, now);
            let which = match (units.len(), all) {
                (1, 1) => "the eSIM".to_owned(),
                (2, 2) => "both eSIMs".to_owned(),
                (of, all) if of == all => format!("all {all} eSIMs"),
                (of, all) => format!("{of} of the {all} eSIMs"),
            };
            format!("{which} {what}")
        })
        .collect();
    format!("{head}: {}.", parts.join("; "))
}

//! The state of an order in one sentence, for its partner.

use domain::{
    EsimChangeState,
    reason::ReasonCode,
    standing::{EndpointState, Hold, Standing},
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    operator::{
        health::stages::Stage,
        minute::minute,
        order_list::OrderListEntry,
        orders::{OrderView, TopupView, UnitWebhook},
        route::give_back_reason,
    },
    self_service::OrderState,
};

/// When a test of an endpoint, or a next attempt, is due.
fn due(at: Option<OffsetDateTime>, now: OffsetDateTime) -> String {
    match at.filter(|at| *at > now) {
        Some(at) => format!("at {}", minute(at)),
        None => "due now".to_owned(),
    }
}

/// Since when we have not worked, if that is known.
fn since(at: Option<OffsetDateTime>) -> String {
    at.map_or_else(String::new, |at| format!(", since {}", minute(at)))
}

/// What holds the webhooks to an endpoint up.
fn held(hold: Hold, sent: &UnitWebhook<'_>, order: &OrderView, now: OffsetDateTime) -> String {
    let silent_since = order.silent_since(Stage::Notifier);
    why_held(hold, sent.endpoint_until, silent_since, now)
}

/// What holds webhooks up, for their partner. A blocked endpoint is tested next at `until`.
pub fn why_held(
    hold: Hold,
    until: Option<OffsetDateTime>,
    silent_since: Option<OffsetDateTime>,
    now: OffsetDateTime,
) -> String {
    match hold {
        Hold::Paused => {
            "your endpoint is paused by us, and nothing is sent until we resume it".into()
        }
        Hold::PausedByPartner => {
            "you have paused your endpoint, and nothing is sent until you resume it".into()
        }
        Hold::Blocked => {
            let test = match until.filter(|until| *until > now) {
                Some(until) => format!("at {} or soon after", minute(until)),
                None => "due now".to_owned(),
            };
            format!(
                "your endpoint failed many times in a row, so it only gets an occasional test, and the next one is {test}; \
                 everything that waits is sent once a test is acknowledged"
            )
        }
        Hold::Service => format!(
            "our service that sends webhooks does not work{}; we are mending it, and then everything is sent",
            since(silent_since)
        ),
    }
}

/// When a webhook that was not acknowledged is sent next.
fn next(order: &OrderView, sent: &UnitWebhook<'_>, now: OffsetDateTime) -> String {
    let hold = match sent.endpoint_id {
        None => order.endpoint.known(),
        Some(id) => {
            let mut all = order.further.iter();
            let one = all.find(|one| one.endpoint_id == id);
            one.and_then(|one| one.endpoint.known())
        }
    };
    match hold {
        Some(EndpointState::Paused) => held(Hold::Paused, sent, order, now),
        Some(EndpointState::PausedByPartner) => held(Hold::PausedByPartner, sent, order, now),
        Some(EndpointState::Blocked | EndpointState::Probing) => {
            held(Hold::Blocked, sent, order, now)
        }
        Some(EndpointState::Open | EndpointState::NoUrl | EndpointState::Unverified) | None => {
            format!("the next attempt is {}", due(sent.due_at, now))
        }
    }
}

/// Which attempt was the last one, if it was not the first.
fn retried(attempts: i32) -> String {
    match attempts {
        ..2 => String::new(),
        several => format!(" in attempt {several}"),
    }
}

/// What an endpoint last responded.
fn response(sent: &UnitWebhook<'_>) -> String {
    let retried = retried(sent.attempts);
    match (sent.status, sent.error) {
        (Some(status), _) => format!("your endpoint last responded {status}{retried}"),
        (None, Some(error)) => format!("the last attempt failed{retried}: {error}"),
        (None, None) => "no attempt was acknowledged".to_owned(),
    }
}

/// The outcome of the webhooks to one of several endpoints.
fn to_endpoint(order: &OrderView, sent: &UnitWebhook<'_>, now: OffsetDateTime) -> String {
    let to = match sent.endpoint_id {
        None => "your first endpoint".to_owned(),
        Some(id) => {
            let mut all = order.further.iter();
            let host = all
                .find(|one| one.endpoint_id == id)
                .and_then(|one| one.host.clone());
            format!("your endpoint {}", host.unwrap_or_else(|| id.to_string()))
        }
    };
    match sent.standing {
        Standing::Delivered => {
            let at = sent
                .delivered_at
                .map_or_else(String::new, |at| format!(" at {}", minute(at)));
            format!("delivered to {to}{at}{}", retried(sent.attempts))
        }
        Standing::SentAgain => {
            format!("delivered to {to} before, and being sent there again")
        }
        Standing::NotSentAgain => format!(
            "delivered to {to} before, and not acknowledged there again ({})",
            response(sent)
        ),
        Standing::Sending => format!("being sent to {to}"),
        Standing::Held(hold) => {
            format!("waiting for {to} ({})", held(hold, sent, order, now))
        }
        Standing::Failing => format!(
            "not yet acknowledged by {to} ({}; {})",
            response(sent),
            next(order, sent, now)
        ),
        Standing::Exhausted => format!(
            "not acknowledged by {to} in any of its attempts ({}), so ask for it again",
            response(sent)
        ),
        Standing::Gone => {
            format!("not sent to {to} any more, because that responded 410")
        }
        Standing::NoUrl => format!("waiting for a URL of {to}"),
        // A webhook stands in no other way; a newer version may know one.
        Standing::Waiting
        | Standing::Stopped(_)
        | Standing::Stalled
        | Standing::ProfilesLate
        | Standing::Uncollectable
        | Standing::Undeliverable
        | Standing::Vanished
        | Standing::OnHold
        | Standing::GivingBack
        | Standing::GiveBackStalled
        | Standing::GiveBackClaimed
        | Standing::GiveBackOnHold
        | Standing::Returned
        | Standing::Failed
        | Standing::Unreadable => format!("sent to {to} by a newer version of this program"),
    }
}

/// The attempt in which units are bought: the last one of their purchases.
fn bought_by(order: &OrderView, units: &[&TopupView]) -> i32 {
    let mine = order.placements.iter().filter(|one| {
        let mut units = units.iter();
        units.any(|unit| unit.placement_id == one.placement_id)
    });
    mine.map(|one| one.attempt).max().unwrap_or_default()
}

/// That the provider did not take units back, if the partner has asked for that.
fn not_given_back(order: &OrderView) -> Option<String> {
    let is_refused = |one: &&TopupView| one.give_back.known() == Some(EsimChangeState::Refused);
    let refused: Vec<&TopupView> = order.topups.iter().filter(is_refused).collect();
    let mut reasons: Vec<&str> = refused
        .iter()
        .filter_map(|one| give_back_reason(one))
        .collect();
    reasons.sort_unstable();
    reasons.dedup();
    let why = match reasons.join("; ") {
        none if none.is_empty() => none,
        some => format!(" ({some})"),
    };
    match (refused.len(), order.topups.len()) {
        (0, _) => None,
        (1, 1) => Some(format!(
            "your request to give it back was refused{why}, so it stays with you"
        )),
        (1, all) => Some(format!(
            "your request to give 1 of the {all} eSIMs back was refused{why}, so it stays with you"
        )),
        (some, all) => Some(format!(
            "your requests to give {some} of the {all} eSIMs back were refused{why}, so they stay with you"
        )),
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
    let is = if units.len() == 1 { "is" } else { "are" };
    let was = if units.len() == 1 { "was" } else { "were" };
    let esims = if units.len() == 1 { "eSIM" } else { "eSIMs" };
    let one = |one, several| if units.len() == 1 { one } else { several };
    let webhooks = one("the webhook", "their webhooks");
    let sent: Vec<UnitWebhook<'_>> = units.iter().flat_map(|one| order.sent(one)).collect();
    // That which tells most: one with a response, and of them the one that is due first.
    let first = sent.iter().min_by_key(|one| {
        (
            one.status.is_none(),
            one.error.is_none(),
            one.due_at.is_none(),
            one.due_at,
        )
    });
    let response = first.map_or_else(|| "no attempt was acknowledged".to_owned(), response);
    let next = first.map_or_else(String::new, |one| next(order, one, now));
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
            let attempts = sent.iter().map(|one| one.attempts).max();
            let retried = retried(attempts.unwrap_or_default());
            format!("{is} ready and delivered to your endpoint{at}{retried}")
        }
        Standing::SentAgain => {
            let held = match order.endpoint.known() {
                Some(EndpointState::Open | EndpointState::NoUrl | EndpointState::Unverified)
                | None => String::new(),
                Some(
                    EndpointState::Blocked
                    | EndpointState::Probing
                    | EndpointState::Paused
                    | EndpointState::PausedByPartner,
                ) => format!(" ({next})"),
            };
            format!(
                "{is} ready and {was} delivered to your endpoint before, and {webhooks} {is} being sent again{held}"
            )
        }
        Standing::NotSentAgain => format!(
            "{is} ready and {was} delivered to your endpoint before; sending {webhooks} again failed ({response})"
        ),
        Standing::Held(hold) => {
            let why = first.map_or_else(String::new, |one| held(hold, one, order, now));
            let wait = one("waits", "wait");
            format!("{is} ready, and {webhooks} {wait}: {why}")
        }
        Standing::Sending => format!("{is} ready, and {webhooks} {is} being sent"),
        Standing::Failing => {
            let have = one("has", "have");
            format!("{is} ready, but {webhooks} {have} not arrived yet ({response}; {next})")
        }
        Standing::Exhausted => format!(
            "{is} ready, but {webhooks} {was} not acknowledged in any attempt ({response}); you can look the {esims} up, or ask for {webhooks} again"
        ),
        Standing::Gone => format!(
            "{is} ready, but your endpoint answered {webhooks} with 410, which tells us to stop; you can look the {esims} up, or ask for {webhooks} again"
        ),
        Standing::NoUrl => {
            let waits = if units.len() == 1 { "waits" } else { "wait" };
            format!(
                "{is} ready and {waits} for a webhook URL in your account; you can look the {esims} up"
            )
        }
        Standing::Waiting => format!(
            "{is} being bought or prepared by the provider{}",
            retried(bought_by(order, units))
        ),
        Standing::Stopped(_) => format!(
            "{is} accepted and not lost, but buying at the provider is stopped at the moment; we go on as soon as that is possible again"
        ),
        Standing::Stalled => format!(
            "{is} accepted and not lost, but our service that buys does not work{}; we are mending it, and then it goes on",
            since(order.silent_since(Stage::Provisioner))
        ),
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
        Standing::OnHold => format!("{is} on hold: {ON_HOLD}"),
        Standing::GivingBack => {
            format!("{is} being given back at your request, and the provider has not answered yet")
        }
        Standing::GiveBackStalled => format!(
            "{is} being given back at your request, but our service does not work{}; we are mending it, and then it goes on",
            since(order.silent_since(Stage::Provisioner))
        ),
        Standing::GiveBackClaimed => format!(
            "{is} being given back at your request, and people at the provider decide, which takes days"
        ),
        Standing::GiveBackOnHold => format!(
            "{is} being given back at your request: we are clarifying with the provider whether it has the eSIM back"
        ),
        Standing::Unreadable => {
            format!("{is} in a state that this page cannot tell; the newer one beside it can")
        }
        Standing::Returned => format!("{was} given back at your request"),
        Standing::Failed => {
            let why = why_failed(units.iter().filter_map(|one| one.reason.code()));
            format!("failed for good and will not be delivered, because {why}")
        }
    }
}

/// What the units of a group are at whose webhooks go to several endpoints, for each of these.
fn to_several(order: &OrderView, units: &[&TopupView], now: OffsetDateTime) -> String {
    let is = if units.len() == 1 { "is" } else { "are" };
    let all: Vec<UnitWebhook<'_>> = units.iter().flat_map(|one| order.sent(one)).collect();
    let mut endpoints: Vec<Option<Uuid>> = Vec::new();
    for one in &all {
        if !endpoints.contains(&one.endpoint_id) {
            endpoints.push(one.endpoint_id);
        }
    }
    let parts = endpoints.into_iter().filter_map(|endpoint| {
        let mine = all.iter().filter(|one| one.endpoint_id == endpoint);
        // They stand in the same way, or they were another group; the last one is told.
        let last = mine.max_by_key(|one| (one.delivered_at, one.due_at))?;
        (last.standing != Standing::NoUrl).then(|| to_endpoint(order, last, now))
    });
    format!(
        "{is} ready; {} {}",
        if units.len() == 1 {
            "the webhook is"
        } else {
            "their webhooks are"
        },
        parts.collect::<Vec<_>>().join(", and ")
    )
}

const ON_HOLD: &str = "we are clarifying the purchase with the provider";

/// Why units failed, for the partner.
pub fn why_failed(mut codes: impl Iterator<Item = ReasonCode>) -> &'static str {
    let first = codes.next();
    let only = first.filter(|first| codes.all(|code| code == *first));
    match only {
        Some(ReasonCode::GivenUp) => "the provider does not have the purchase, or has refunded it",
        Some(ReasonCode::Rejected) => "the provider rejected the purchase",
        Some(ReasonCode::UnitFailed) => "the provider could not supply the eSIM",
        _ => "the provider rejected the purchase or could not supply the eSIM",
    }
}

/// Why an order was refused, for the partner.
fn why_refused(codes: &[ReasonCode]) -> &'static str {
    if codes.contains(&ReasonCode::Rejected) {
        "the provider rejected the purchase"
    } else if codes.iter().all(|code| *code == ReasonCode::OrderRefused) {
        "the provider could not be reached"
    } else {
        "the provider rejected the purchase or could not be reached"
    }
}

/// Why an order of a list did not get through, for its partner; empty if it did or is under way.
pub fn reason(order: &OrderListEntry, codes: &[ReasonCode]) -> &'static str {
    match order.state {
        OrderState::Refused => why_refused(codes),
        OrderState::Failed | OrderState::PartlyFailed => why_failed(codes.iter().copied()),
        OrderState::Processing if order.on_hold > 0 => ON_HOLD,
        OrderState::Processing | OrderState::Ready | OrderState::Cancelled => "",
    }
}

/// Why an order was refused, as its 422 said.
fn refusal(order: &OrderView) -> String {
    let reasons = order.topups.iter().filter_map(|one| one.reason.0.as_ref());
    let rejected = reasons.clone().find(|one| one.code == ReasonCode::Rejected);
    let codes: Vec<ReasonCode> = reasons.map(|one| one.code).collect();
    let why = why_refused(&codes);
    match rejected.and_then(|one| one.detail.as_ref()) {
        Some(answer) => format!("{why} ({answer})"),
        None => why.to_owned(),
    }
}

/// Units that are told together.
#[derive(PartialEq)]
struct Group {
    standing: Standing,
    /// How the webhook to each endpoint stands.
    endpoints: Vec<(Option<Uuid>, Standing)>,
}

impl Group {
    /// Whether its webhooks go to several endpoints, and how it stands is how they stand.
    fn is_of_several(&self) -> bool {
        let mut all = self.endpoints.iter();
        self.endpoints.len() > 1 && all.any(|(_, standing)| *standing == self.standing)
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
    // Units whose webhooks stand differently at the same endpoint are told apart.
    let mut groups: Vec<(Group, Vec<&TopupView>)> = Vec::new();
    for topup in &order.topups {
        let sent = order.sent(topup).into_iter();
        let group = Group {
            standing: order.standing(topup),
            endpoints: sent.map(|one| (one.endpoint_id, one.standing)).collect(),
        };
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, of)) => of.push(topup),
            None => groups.push((group, vec![topup])),
        }
    }
    groups.sort_by_key(|(group, _)| group.standing);
    let all = order.topups.len();
    let parts: Vec<String> = groups
        .iter()
        .map(|(group, units)| {
            let what = if group.is_of_several() {
                to_several(order, units, now)
            } else {
                told(order, group.standing, units, now)
            };
            let which = match (units.len(), all) {
                (1, 1) => "the eSIM".to_owned(),
                (2, 2) => "both eSIMs".to_owned(),
                (of, all) if of == all => format!("all {all} eSIMs"),
                (of, all) => format!("{of} of the {all} eSIMs"),
            };
            format!("{which} {what}")
        })
        .chain(not_given_back(order))
        .collect();
    format!("{head}: {}.", parts.join("; "))
}

//! Where an order is, in four steps; what it is for, and its state in one word.

use std::collections::BTreeMap;

use desk::operator::orders::{OrderView, TopupView};
use domain::{
    PlacementState,
    standing::{DeliveryState, EndpointState, Hold, NextActor, Standing, UnitState},
};
use time::{Duration, OffsetDateTime};

use crate::{
    format::{self, number, took},
    times::{TimeElement, Times},
};

/// A webhook that is due within this time is not sent again by hand: an attempt may be under way.
const AT_ONCE: Duration = Duration::seconds(30);

/// One step of the way.
pub(super) struct Mark {
    pub(super) class: &'static str,
    pub(super) name: &'static str,
    pub(super) says: String,
}

/// What was ordered: `2 × Thailand 1 GB, 7 days`.
pub(super) fn products(order: &OrderView) -> String {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    for unit in &order.topups {
        let name = unit.option_name.as_deref();
        *counts
            .entry(name.unwrap_or(&unit.provider_option_id))
            .or_default() += 1;
    }
    format::products(counts)
}

/// How the standing of a unit is coloured. What waits for nobody is no fault, and only a webhook
/// that arrived is good news.
pub(super) fn class(standing: Standing) -> &'static str {
    match standing.must_act() {
        NextActor::Partner | NextActor::Operator => "bad",
        NextActor::Nobody => match standing {
            Standing::Delivered | Standing::SentAgain => "good",
            Standing::Failed => "bad",
            _ => "",
        },
    }
}

/// The standing of the order's units: that of all of them, or the worst.
pub(super) fn state(order: &OrderView) -> (String, &'static str) {
    if order.refused {
        let what = if order.cancelled {
            "cancelled"
        } else {
            "refused"
        };
        return (what.to_owned(), "none");
    }
    let rank = |class: &str| ["bad", "", "good"].iter().position(|one| *one == class);
    let standings = order.topups.iter().map(|unit| order.standing(unit));
    let worst = standings.min_by_key(|standing| rank(class(*standing)));
    let Some(worst) = worst else {
        return ("nothing stored".to_owned(), "none");
    };
    let same = order
        .topups
        .iter()
        .filter(|unit| order.standing(unit) == worst)
        .count();
    let label = worst.label();
    if same == order.topups.len() {
        (label.to_owned(), class(worst))
    } else {
        let text = format!("{same} of {} {label}", order.topups.len());
        (text, class(worst))
    }
}

/// The steps from the request to the partner's 200.
pub(super) fn track(order: &OrderView) -> Vec<Mark> {
    let accepted = order.created_at;
    let all = order.topups.len();
    let placements = order.placements.len();
    let is = |state: PlacementState| {
        let mine = order.placements.iter();
        mine.filter(|one| one.state == state).count()
    };
    let bought = is(PlacementState::Placed);
    let lost = is(PlacementState::Failed) + is(PlacementState::Parked);
    let units = |of: &dyn Fn(&TopupView) -> bool| order.topups.iter().filter(|one| of(one)).count();
    let ready = units(&|one| one.ready_at.is_some());
    let failed = units(&|one| one.state == UnitState::Failed || one.state == UnitState::Parked);
    let delivered = units(&|one| one.delivered_at.is_some() || one.delivered_before);
    let given_up = units(&|one| one.delivery.known() == Some(DeliveryState::Exhausted));
    let after = |at: Option<OffsetDateTime>| at.map(|at| format!("+{} · ", took(at - accepted)));
    let last = |at: &dyn Fn(&TopupView) -> Option<OffsetDateTime>| {
        after(order.topups.iter().filter_map(at).max()).unwrap_or_default()
    };
    let mark = |name, done: usize, wanted: usize, lost: usize, at: String| {
        let class = match () {
            () if order.refused => "not",
            () if wanted > 0 && done == wanted => "good",
            () if lost > 0 => "bad",
            () if done > 0 => "",
            () => "not",
        };
        let of = format!("{} of {}", number(done), number(wanted));
        let at = if done > 0 { at } else { String::new() };
        Mark {
            class,
            name,
            says: format!("{at}{of}"),
        }
    };
    let placed = order.placements.iter().filter_map(|one| one.placed_at);
    vec![
        Mark {
            class: "good",
            name: "Received",
            says: "stored, and answered".to_owned(),
        },
        mark(
            "Bought",
            bought,
            placements,
            lost,
            after(placed.max()).unwrap_or_default(),
        ),
        mark("eSIMs ready", ready, all, failed, last(&|one| one.ready_at)),
        mark(
            "Delivered",
            delivered,
            all,
            given_up,
            last(&|one| one.delivered_at),
        ),
    ]
}

/// When a webhook that waits is tried next, if its time is known: its own, or that of the test of
/// its blocked endpoint, which is at `until`.
pub(super) fn next_at(
    hold: Option<Hold>,
    until: Option<OffsetDateTime>,
    due: Option<OffsetDateTime>,
) -> Option<OffsetDateTime> {
    match hold {
        Some(Hold::Service | Hold::Paused | Hold::PausedByPartner) => None,
        Some(Hold::Blocked) => until,
        None => due,
    }
}

/// The same in words, with what has to happen before. Nothing that waits was tried "next" in the
/// past.
pub(super) fn next_try(
    hold: Option<Hold>,
    until: Option<OffsetDateTime>,
    due: Option<OffsetDateTime>,
    times: &Times,
) -> TimeElement {
    match hold {
        Some(Hold::Service) => TimeElement::words("once a notifier works"),
        Some(Hold::Paused | Hold::PausedByPartner) => {
            TimeElement::words("once its endpoint is resumed")
        }
        Some(Hold::Blocked) | None => {
            let at = next_at(hold, until, due).filter(|at| *at > times.now);
            at.map_or_else(|| TimeElement::words("due now"), |at| times.ago(at))
        }
    }
}

/// Why a webhook that waits cannot be sent at once; `None` if it can.
pub(super) fn held(order: &OrderView, unit: &TopupView, now: OffsetDateTime) -> Option<String> {
    if unit.delivery.known() != Some(DeliveryState::Pending) {
        return None;
    }
    let why = match order.endpoint.known()? {
        EndpointState::Paused => {
            "Its endpoint is paused, so it waits until somebody resumes the endpoint on the partner's page."
        }
        EndpointState::PausedByPartner => {
            "Its endpoint is paused by the partner, so it waits until the partner resumes it."
        }
        EndpointState::Blocked | EndpointState::Probing => {
            "Its endpoint is blocked, so it waits, and is sent by itself as soon as a test is acknowledged. It can be \
             resumed at once on the partner's page."
        }
        EndpointState::NoUrl => "The account has no webhook URL, so it waits for one.",
        EndpointState::Open | EndpointState::Unverified
            if unit.delivery_due_at.is_none_or(|due| due <= now + AT_ONCE) =>
        {
            "It is being sent, or is due within seconds."
        }
        EndpointState::Open | EndpointState::Unverified => return None,
    };
    // Whatever else keeps it, nothing is sent before that ends.
    let why = if order.silent().notifier {
        "It waits for our notifier, which does not work, and is sent by itself once one runs again."
    } else {
        why
    };
    Some(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test of a blocked endpoint is due later than the webhook that waits for it.
    #[test]
    fn the_next_try_of_a_webhook_that_waits_is_never_in_the_past() {
        let times = Times::default();
        let ago = Some(times.now - Duration::seconds(38));
        let soon = Some(times.now + Duration::minutes(2));
        let next = |hold, until, due| next_try(hold, until, due, &times).to_string();
        assert!(next(Some(Hold::Blocked), soon, ago).contains(">in 2 min<"));
        assert_eq!(next(Some(Hold::Blocked), ago, ago), "due now");
        assert_eq!(next(None, None, ago), "due now");
        assert!(next(None, None, soon).contains(">in 2 min<"));
        assert_eq!(
            next(Some(Hold::Service), soon, soon),
            "once a notifier works"
        );
        for hold in [Hold::Paused, Hold::PausedByPartner] {
            assert_eq!(next(Some(hold), soon, ago), "once its endpoint is resumed");
            assert_eq!(next_at(Some(hold), soon, ago), None);
        }
    }
}

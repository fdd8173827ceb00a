//! What several providers had to do with a placement, and the outcome of a give-back, in words.
//! `esimctl order show` and the console show both.

use domain::{EsimChangeState, PlacementState, Reason, esim_change::EsimChangeKind};
use store::esim_requests::EsimChangeReason;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    minute::minute,
    order_extensions::ExtensionView,
    orders::{PlacementView, TopupView, TriedPair},
};

/// Whether the placement waits for the purchase at a further provider. Its reason is then that of
/// the provider before, which [`route`] names.
pub fn is_rerouted(placement: &PlacementView) -> bool {
    let last = placement.tried.last();
    placement.state == PlacementState::Accepted
        && last.is_some_and(|tried| tried.attempt == placement.attempt)
}

/// The providers that have rejected a placement and those that may follow or may have it, with the
/// attempts of each. `None` if the placement has had one provider only and no other one matters.
pub fn route(placement: &PlacementView) -> Option<String> {
    let state = placement.state.known();
    let provider = format!("{} ({})", placement.provider, placement.lane);
    let others = placement.alternatives.join(", ");
    // What is bought, failed or refused goes to no further provider.
    let further = match state {
        _ if others.is_empty() => None,
        Some(PlacementState::Accepted | PlacementState::Placing) => Some(format!(
            "if {} rejects it{}, it goes to {others}",
            placement.provider,
            if placement.tried.is_empty() {
                ""
            } else {
                ", too"
            },
        )),
        Some(PlacementState::Parked) => {
            Some(format!("it may also be at {others}: look there, too"))
        }
        Some(PlacementState::Placed | PlacementState::Refused | PlacementState::Failed) | None => {
            None
        }
    };
    if placement.tried.is_empty() && further.is_none() {
        return None;
    }
    let mut parts = Vec::new();
    let mut next = 1;
    for tried in &placement.tried {
        let TriedPair {
            provider,
            lane,
            attempt,
            reason,
            at,
            ..
        } = tried;
        let at = OffsetDateTime::parse(at, &Rfc3339).map_or_else(|_| at.clone(), minute);
        let attempts = attempts(next, *attempt);
        parts.push(format!(
            "{provider} ({lane}) rejected it at {at}, in {attempts}: {}",
            Reason::read(reason).told()
        ));
        next = tried.attempt + 1;
    }
    let made = placement.attempt >= next;
    let attempts = attempts(next, placement.attempt.max(next));
    parts.push(match state {
        Some(PlacementState::Accepted) if !made => {
            format!("{provider} is asked next, by {attempts}")
        }
        Some(PlacementState::Accepted | PlacementState::Placing) => {
            format!("{provider} is asked now, by {attempts}")
        }
        Some(PlacementState::Placed) => format!("{provider} has it"),
        Some(PlacementState::Parked) if made => {
            format!("{provider} may have it since {attempts}")
        }
        Some(PlacementState::Parked | PlacementState::Refused | PlacementState::Failed) | None => {
            if made {
                format!("{provider} was asked by {attempts}")
            } else {
                format!("{provider} was not asked yet")
            }
        }
    });
    parts.extend(further);
    Some(parts.join("; "))
}

fn attempts(first: i32, last: i32) -> String {
    if first == last {
        format!("attempt {first}")
    } else {
        format!("attempts {first} to {last}")
    }
}

/// Why a give-back or an extension ended as it did, or is on hold. A reason that only a newer
/// version knows is shown by its name.
pub(super) fn change_reason(kind: EsimChangeKind, name: Option<&str>) -> Option<&str> {
    let name = name?;
    let Ok(reason) = name.parse::<EsimChangeReason>() else {
        return Some(name);
    };
    Some(match kind {
        EsimChangeKind::GiveBack => reason.of_give_back(),
        EsimChangeKind::Extension => reason.of_extension(),
    })
}

/// The same for the give-back of a unit.
pub(super) fn give_back_reason(topup: &TopupView) -> Option<&str> {
    change_reason(EsimChangeKind::GiveBack, topup.give_back_reason.as_deref())
}

/// A change of an eSIM in words, with the reason and what the provider said.
pub(super) fn change_told(
    name: &str,
    stands: &str,
    asked_at: Option<OffsetDateTime>,
    (reason, said): (Option<&str>, Option<&str>),
) -> String {
    let asked = asked_at.map_or_else(String::new, |at| {
        format!(", which was asked for at {}", minute(at))
    });
    let why: Vec<&str> = reason.into_iter().chain(said).collect();
    let why = if why.is_empty() {
        String::new()
    } else {
        format!(" ({})", why.join(": "))
    };
    format!("{name}{asked}, {stands}{why}")
}

/// The give-back of a unit in words; `None` if its partner has not asked for it.
pub fn give_back(topup: &TopupView) -> Option<String> {
    let state = topup.give_back.0.as_ref()?.told(|state| match state {
        EsimChangeState::Asked | EsimChangeState::Sending => "is under way",
        EsimChangeState::Claimed => {
            "is a claim that people at the provider decide; if they told you, record it"
        }
        EsimChangeState::Done => "has ended: the provider has the eSIM back",
        EsimChangeState::Refused => "was refused, so the eSIM stays with the partner",
        EsimChangeState::Parked => {
            "is on hold: find out at the provider whether it has the eSIM back"
        }
    });
    let why = (give_back_reason(topup), topup.give_back_message.as_deref());
    Some(change_told(
        "its give-back",
        &state,
        topup.give_back_asked_at,
        why,
    ))
}

/// That the customer of a unit needs help to install it; `None` if nothing says so.
pub fn trouble(topup: &TopupView) -> Option<String> {
    let since = topup.in_trouble_since?;
    Some(format!(
        "in trouble: downloaded, not installed, since {}",
        minute(since)
    ))
}

/// An extension of a unit in words.
pub fn extension(one: &ExtensionView) -> String {
    let stands = one.state.told(|state| match state {
        EsimChangeState::Asked | EsimChangeState::Sending | EsimChangeState::Claimed => {
            "is under way"
        }
        EsimChangeState::Done if one.has_new_profile => {
            "was added: the provider has sold another eSIM, whose profile the topup has"
        }
        EsimChangeState::Done => "was added",
        EsimChangeState::Refused => "was refused, so nothing was added",
        EsimChangeState::Parked => "is on hold: find out at the provider whether it was added",
    });
    let name = format!("its extension {}", one.external_id);
    let reason = change_reason(EsimChangeKind::Extension, one.reason.as_deref());
    let why = (reason, one.message.as_deref());
    change_told(&name, &stands, Some(one.asked_at), why)
}

#[cfg(test)]
mod tests {
    use domain::{Stored, StoredReason};
    use uuid::Uuid;

    use super::*;

    fn placement(attempt: i32, tried: &[(&str, i32)], alternatives: &[&str]) -> PlacementView {
        let tried = tried.iter().map(|(provider, attempt)| TriedPair {
            provider: (*provider).to_owned(),
            lane: "JP".into(),
            attempt: *attempt,
            reason: "sold out".into(),
            options: [].into(),
            at: "2026-11-24T10:00:00Z".into(),
        });
        PlacementView {
            placement_id: Uuid::nil(),
            provider: "airalo".into(),
            state: Stored::Known(PlacementState::Accepted),
            attempt,
            reason: StoredReason::default(),
            attempted_at: None,
            placed_at: None,
            lane: "jp".into(),
            provider_reference: None,
            tried: tried.collect(),
            alternatives: alternatives.iter().map(|name| (*name).to_owned()).collect(),
            due_at: None,
            stop: None,
        }
    }

    #[test]
    fn each_attempt_is_shown_with_its_provider() {
        let shown = |attempt, tried, alternatives| route(&placement(attempt, tried, alternatives));
        assert_eq!(shown(1, &[], &[]), None);
        assert_eq!(
            shown(1, &[], &["usimsa"]).unwrap(),
            "airalo (jp) is asked now, by attempt 1; if airalo rejects it, it goes to usimsa"
        );
        let tried = [("sandbox", 2), ("usimsa", 3)];
        assert_eq!(
            shown(3, &tried, &[]).unwrap(),
            "sandbox (JP) rejected it at 2026-11-24 10:00 UTC, in attempts 1 to 2: sold out; usimsa (JP) rejected it at \
             2026-11-24 10:00 UTC, in attempt 3: sold out; airalo (jp) is asked next, by attempt 4"
        );
        assert!(
            shown(5, &tried, &[])
                .unwrap()
                .ends_with("; airalo (jp) is asked now, by attempts 4 to 5")
        );
    }

    #[test]
    fn what_is_parked_may_be_at_each_provider_and_what_is_bought_goes_nowhere() {
        let mut placement = placement(1, &[], &["usimsa"]);
        placement.state = Stored::Known(PlacementState::Parked);
        assert_eq!(
            route(&placement).unwrap(),
            "airalo (jp) may have it since attempt 1; it may also be at usimsa: look there, too"
        );
        placement.state = Stored::Known(PlacementState::Placed);
        assert_eq!(route(&placement), None);
    }
}

//! What several providers had to do with a placement, and what became of a give-back, in words.
//! `esimctl order show` and the console show both.

use std::iter;

use super::{
    orders::{PlacementView, TopupView, TriedPair},
    story::minute,
};

/// Whether the placement waits for the purchase at a further provider. Its reason is then that of
/// the provider before, which [`route`] names.
pub fn is_rerouted(placement: &PlacementView) -> bool {
    let last = placement.tried.last();
    placement.state == "accepted" && last.is_some_and(|tried| tried.attempt == placement.attempt)
}

/// The providers that have rejected a placement and those that may follow or may have it, with the
/// attempts of each. `None` if the placement has had one provider only and no other one matters.
pub fn route(placement: &PlacementView) -> Option<String> {
    // What is bought, failed or refused goes nowhere any more.
    let further = match placement.state.as_str() {
        "accepted" | "placing" => Some("if it is rejected there, it goes to"),
        "parked" => Some("it may be bought there, or at"),
        _ => None,
    };
    let further = further.filter(|_| !placement.alternatives.is_empty());
    if placement.tried.is_empty() && further.is_none() {
        return None;
    }
    let mut parts = Vec::new();
    let firsts = iter::once(1).chain(placement.tried.iter().map(|tried| tried.attempt + 1));
    let mut next = 1;
    for (tried, first) in placement.tried.iter().zip(firsts) {
        let TriedPair {
            provider,
            lane,
            attempt,
            reason,
            at,
            ..
        } = tried;
        let attempts = attempts(first, *attempt);
        parts.push(format!(
            "{attempts} at {provider} ({lane}), until {at}: {reason}"
        ));
        next = tried.attempt + 1;
    }
    parts.push(if placement.attempt >= next {
        let attempts = attempts(next, placement.attempt);
        format!("{attempts} at {} ({})", placement.provider, placement.lane)
    } else if placement.state == "accepted" {
        format!("attempt {next} will be at {}", placement.provider)
    } else {
        format!("no attempt at {} yet", placement.provider)
    });
    if let Some(further) = further {
        let providers = placement.alternatives.join(", ");
        parts.push(format!("{further} {providers}"));
    }
    Some(parts.join("; "))
}

fn attempts(first: i32, last: i32) -> String {
    if first == last {
        format!("attempt {first}")
    } else {
        format!("attempts {first} to {last}")
    }
}

/// The give-back of a unit in words; `None` if its partner has not asked for it.
pub fn give_back(topup: &TopupView) -> Option<String> {
    let state = match topup.give_back.as_deref()? {
        "asked" | "sending" => "is under way",
        "returned" => "has ended: the provider has the eSIM back",
        "refused" => "was refused, so the eSIM stays with the partner",
        _ => "is parked: find out at the provider whether it has the eSIM back",
    };
    let asked = topup.give_back_asked_at.map_or_else(String::new, |at| {
        format!(", which was asked for at {}", minute(at))
    });
    let why = [&topup.give_back_reason, &topup.give_back_message];
    let why: Vec<&str> = why.into_iter().flatten().map(String::as_str).collect();
    let why = if why.is_empty() {
        String::new()
    } else {
        format!(" ({})", why.join(": "))
    };
    Some(format!("its give-back{asked}, {state}{why}"))
}

#[cfg(test)]
mod tests {
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
            state: "accepted".into(),
            attempt,
            reason: None,
            attempted_at: None,
            placed_at: None,
            lane: "jp".into(),
            provider_reference: None,
            tried: tried.collect(),
            alternatives: alternatives.iter().map(|name| (*name).to_owned()).collect(),
            due_at: None,
        }
    }

    #[test]
    fn each_attempt_is_shown_with_its_provider() {
        let shown = |attempt, tried, alternatives| route(&placement(attempt, tried, alternatives));
        assert_eq!(shown(1, &[], &[]), None);
        assert_eq!(
            shown(1, &[], &["usimsa"]).unwrap(),
            "attempt 1 at airalo (jp); if it is rejected there, it goes to usimsa"
        );
        let tried = [("sandbox", 2), ("usimsa", 3)];
        assert_eq!(
            shown(3, &tried, &[]).unwrap(),
            "attempts 1 to 2 at sandbox (JP), until 2026-11-24T10:00:00Z: sold out; attempt 3 at usimsa \
             (JP), until 2026-11-24T10:00:00Z: sold out; attempt 4 will be at airalo"
        );
        assert!(
            shown(5, &tried, &[])
                .unwrap()
                .ends_with("; attempts 4 to 5 at airalo (jp)")
        );
    }

    #[test]
    fn what_is_parked_may_be_at_each_provider_and_what_is_bought_goes_nowhere() {
        let mut placement = placement(1, &[], &["usimsa"]);
        placement.state = "parked".into();
        assert_eq!(
            route(&placement).unwrap(),
            "attempt 1 at airalo (jp); it may be bought there, or at usimsa"
        );
        placement.state = "placed".into();
        assert_eq!(route(&placement), None);
    }
}

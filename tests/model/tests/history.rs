//! What the model says about histories: about those of the protocol, and about those that it has
//! only without a safeguard.

use domain::PlacementState::{self, Accepted, Parked, Placed, Placing};
use model::history::{End, Fact, History, Judged, Row, Seen};

const BOUGHT: Seen = Seen::Bought { provider: 0 };

const fn row(state: PlacementState, attempt: u32) -> Seen {
    Seen::Row(Row {
        state,
        attempt,
        provider: 0,
        missing: false,
        early: false,
    })
}

/// An order that is answered, bought with its first attempt and delivered, at one second each.
fn good() -> (Vec<Fact>, End) {
    let facts = [
        Seen::Accepted { waits: true },
        row(Placing, 1),
        BOUGHT,
        row(Placed, 1),
        Seen::Created,
        Seen::Acknowledged,
        Seen::Delivered,
    ];
    let facts = (0..).zip(facts).map(|(at, seen)| fact(seen, at));
    let end = End {
        placement: Placed,
        attempt: 1,
        delivered: true,
        without_profile: false,
    };
    (facts.collect(), end)
}

fn fact(seen: Seen, at: u64) -> Fact {
    Fact {
        seen,
        earliest: at * 1_000,
        latest: at * 1_000,
    }
}

fn without(seen: &[Seen]) -> (Vec<Fact>, End) {
    let (mut facts, end) = good();
    facts.retain(|fact| !seen.contains(&fact.seen));
    (facts, end)
}

fn moved(seen: Seen, at: u64) -> (Vec<Fact>, End) {
    let (mut facts, end) = without(&[seen]);
    facts.push(fact(seen, at));
    (facts, end)
}

fn judge((facts, end): (Vec<Fact>, End)) -> Judged {
    History::new(facts, end, false).judge()
}

/// The safeguards without which it would be possible.
fn missing((facts, end): (Vec<Fact>, End)) -> Vec<String> {
    let history = History::new(facts, end, false);
    assert_eq!(history.judge(), Judged::Impossible, "{history}");
    let why = history.explain();
    println!("{history}: {why}");
    why.missing
}

fn names(safeguard: &str, history: (Vec<Fact>, End)) {
    let missing = missing(history);
    assert!(missing.contains(&safeguard.to_owned()), "{missing:?}");
}

#[test]
fn what_may_happen_is_allowed() {
    assert_eq!(judge(good()), Judged::Allowed);
    let (_, end) = good();
    // Two look-ups found nothing, the answer was lost, and the endpoint failed first.
    let missing = |attempt| {
        Seen::Row(Row {
            state: Placing,
            attempt,
            provider: 0,
            missing: true,
            early: false,
        })
    };
    let facts = [
        Seen::Accepted { waits: true },
        row(Placing, 1),
        missing(1),
        row(Accepted, 1),
        row(Placing, 2),
        BOUGHT,
        row(Placed, 2),
        Seen::Taken,
        Seen::Posted,
        Seen::Acknowledged,
        Seen::Delivered,
    ];
    let late = (0..).zip(facts).map(|(at, seen)| fact(seen, at)).collect();
    assert_eq!(judge((late, End { attempt: 2, ..end })), Judged::Allowed);

    let refused = End {
        placement: PlacementState::Refused,
        attempt: 0,
        delivered: false,
        without_profile: false,
    };
    let facts = [
        Seen::Accepted { waits: true },
        row(PlacementState::Refused, 0),
        Seen::Refused,
    ];
    let facts = (0..).zip(facts).map(|(at, seen)| fact(seen, at)).collect();
    assert_eq!(judge((facts, refused)), Judged::Allowed);

    let parked = End {
        placement: Parked,
        attempt: 1,
        ..refused
    };
    let facts = [
        Seen::Accepted { waits: false },
        Seen::Created,
        row(Placing, 1),
        row(Parked, 1),
    ];
    let facts = (0..).zip(facts).map(|(at, seen)| fact(seen, at)).collect();
    assert_eq!(judge((facts, parked)), Judged::Allowed);
}

/// An order whose answer waits for no verdict. Its jobs are published after the 201.
fn unawaited() -> (Vec<Seen>, End) {
    let missing = Seen::Row(Row {
        state: Placing,
        attempt: 1,
        provider: 0,
        missing: true,
        early: false,
    });
    let facts = vec![
        Seen::Accepted { waits: false },
        Seen::Created,
        row(Placing, 1),
        missing,
        Seen::AnswerBy,
        row(Parked, 1),
    ];
    let end = End {
        placement: Parked,
        attempt: 1,
        delivered: false,
        without_profile: false,
    };
    (facts, end)
}

/// An attempt whose unknown outcome is recorded is looked up after two seconds, which is before
/// `answer_by` if the order was bought at once.
#[test]
fn an_unknown_outcome_that_is_recorded_makes_the_row_due_before_answer_by() {
    let (facts, end) = unawaited();
    let facts = (0..).zip(facts).map(|(at, seen)| fact(seen, at)).collect();
    assert_eq!(judge((facts, end)), Judged::Allowed);
}

#[test]
fn a_claim_before_the_answer_of_an_order_that_waits_for_nothing_lacks_the_first_lease() {
    let (mut facts, end) = unawaited();
    facts.swap(1, 2);
    let facts = (0..).zip(facts).map(|(at, seen)| fact(seen, at)).collect();
    names("first-lease", (facts, end));
}

#[test]
fn a_second_purchase_is_impossible() {
    let (mut facts, end) = good();
    facts.push(fact(BOUGHT, 7));
    assert_eq!(judge((facts, end)), Judged::Impossible);
}

#[test]
fn a_purchase_that_precedes_its_record_is_impossible() {
    let (mut facts, end) = good();
    facts[1].earliest = 2_001;
    facts[1].latest = 2_001;
    assert_eq!(judge((facts, end)), Judged::Impossible);
}

#[test]
fn a_purchase_that_is_claimed_again_lacks_its_look_up_or_its_idempotent_claim() {
    let (mut facts, end) = good();
    facts.push(fact(row(Placing, 2), 7));
    facts.push(fact(row(Placed, 2), 8));
    assert_eq!(
        judge((facts, End { attempt: 2, ..end })),
        Judged::Impossible
    );
}

#[test]
fn an_attempt_that_two_early_look_ups_end_lacks_settle() {
    let ended = |early| {
        Seen::Row(Row {
            state: Accepted,
            attempt: 1,
            provider: 0,
            missing: false,
            early,
        })
    };
    let missing = Seen::Row(Row {
        state: Placing,
        attempt: 1,
        provider: 0,
        missing: true,
        early: false,
    });
    let facts = |early| {
        let facts = [
            Seen::Accepted { waits: true },
            Seen::AnswerBy,
            row(Placing, 1),
            missing,
            ended(early),
            row(Placing, 2),
            BOUGHT,
            row(Placed, 2),
            Seen::Acknowledged,
            Seen::Delivered,
        ];
        let facts = (0..).zip(facts).map(|(at, seen)| fact(seen, at)).collect();
        let (_, end) = good();
        (facts, End { attempt: 2, ..end })
    };
    assert_eq!(judge(facts(false)), Judged::Allowed);
    names("settle", facts(true));
}

#[test]
fn a_purchase_that_was_sent_too_late_lacks_the_abandoning() {
    let (mut facts, end) = without(&[Seen::Created]);
    for fact in &mut facts[2..] {
        fact.earliest += 2_000;
        fact.latest += 2_000;
    }
    facts.push(fact(Seen::AnswerBy, 2));
    facts.push(fact(Seen::Unsent, 3));
    names("abandon", (facts, end));
}

#[test]
fn a_refusal_of_what_is_bought_lacks_its_transaction() {
    let (mut facts, end) = without(&[
        Seen::Created,
        Seen::Acknowledged,
        Seen::Delivered,
        row(Placed, 1),
    ]);
    facts.push(fact(row(PlacementState::Refused, 1), 3));
    facts.push(fact(Seen::Refused, 4));
    let end = End {
        placement: PlacementState::Refused,
        delivered: false,
        ..end
    };
    names("refusal-transaction", (facts, end));
}

#[test]
fn a_webhook_before_the_answer_lacks_one_of_what_holds_it_back() {
    let missing = missing(moved(Seen::Created, 8));
    for safeguard in ["answered-first", "held-readiness"] {
        assert!(missing.contains(&safeguard.to_owned()), "{missing:?}");
    }
}

#[test]
fn a_request_that_is_told_taken_while_the_order_waits_lacks_the_wait() {
    let (mut facts, end) = without(&[Seen::Created]);
    for fact in &mut facts[1..] {
        fact.earliest += 1_000;
        fact.latest += 1_000;
    }
    facts.push(fact(Seen::Taken, 1));
    facts.push(fact(Seen::AnswerBy, 9));
    names("undecided", (facts, end));
}

#[test]
fn an_order_that_is_forgotten_is_no_end() {
    let (mut facts, end) = good();
    facts.retain(|fact| matches!(fact.seen, Seen::Accepted { .. } | Seen::Created));
    let end = End {
        placement: Accepted,
        attempt: 0,
        delivered: false,
        ..end
    };
    names("due-work", (facts, end));
}

#[test]
fn a_record_without_or_before_an_acknowledgement_lacks_the_recorded_delivery() {
    names("recorded-delivery", without(&[Seen::Acknowledged]));
    names("recorded-delivery", moved(Seen::Acknowledged, 8));
}

/// A rejection leads to the next provider, but not after an outcome that was unknown.
#[test]
fn a_placement_goes_to_the_next_provider_only_while_no_outcome_was_unknown() {
    let at = |state, attempt, provider, missing| {
        Seen::Row(Row {
            state,
            attempt,
            provider,
            missing,
            early: false,
        })
    };
    let end = End {
        placement: Placed,
        attempt: 3,
        delivered: true,
        without_profile: false,
    };
    let judged = |first: &[Seen]| {
        let attempt = if first.len() > 2 { 3 } else { 2 };
        let rest = [
            at(Placing, attempt, 1, false),
            Seen::Bought { provider: 1 },
            at(Placed, attempt, 1, false),
            Seen::Acknowledged,
            Seen::Delivered,
        ];
        let begin = [Seen::Accepted { waits: true }, Seen::AnswerBy];
        let facts = begin.iter().chain(first).chain(&rest).copied();
        let facts = (0..).zip(facts).map(|(at, seen)| fact(seen, at)).collect();
        History::new(facts, End { attempt, ..end }, false).of_providers(2)
    };
    let rejected = [at(Placing, 1, 0, false), at(Accepted, 1, 1, false)];
    assert_eq!(judged(&rejected).judge(), Judged::Allowed);
    let unknown = [
        at(Placing, 1, 0, false),
        at(Placing, 1, 0, true),
        at(Accepted, 1, 0, false),
        at(Placing, 2, 0, false),
        at(Accepted, 2, 1, false),
    ];
    assert_eq!(judged(&unknown).judge(), Judged::Impossible);
}

/// A ticket of the first provider claims the placement, which is at the next one by then: the last
/// provider sells the option, so only the first one can have rejected it again, and it may as well
/// sell it.
#[test]
fn an_answer_of_the_provider_before_lacks_the_routed_claim() {
    let at = |state, attempt, provider| {
        Seen::Row(Row {
            state,
            attempt,
            provider,
            missing: false,
            early: false,
        })
    };
    let judged = |then: &[Seen], placement, delivered| {
        let begin = [
            Seen::Accepted { waits: true },
            Seen::AnswerBy,
            at(Placing, 1, 0),
            at(Accepted, 1, 1),
            at(Placing, 2, 1),
        ];
        let facts = (0..).zip(begin.iter().chain(then).copied());
        let facts = facts.map(|(at, seen)| fact(seen, at)).collect();
        let end = End {
            placement,
            attempt: 2,
            delivered,
            without_profile: false,
        };
        History::new(facts, end, false).of_providers(2)
    };
    let sold_by = |provider| {
        let then = [
            Seen::Bought { provider },
            at(Placed, 2, 1),
            Seen::Acknowledged,
            Seen::Delivered,
        ];
        judged(&then, Placed, true)
    };
    assert_eq!(sold_by(1).judge(), Judged::Allowed);
    let rejected = judged(
        &[at(PlacementState::Failed, 2, 1)],
        PlacementState::Failed,
        false,
    );
    for history in [rejected, sold_by(0)] {
        assert_eq!(history.judge(), Judged::Impossible);
        let missing = history.explain().missing;
        assert!(missing.contains(&"routed-claim".to_owned()), "{missing:?}");
    }
}

//! Checks that every promise holds in every state, and that every safeguard and every assumption is
//! necessary for it.

use std::{collections::HashMap, fmt::Debug};

use clap::ValueEnum;
use domain::{
    PlacementState,
    placement::{Placement, PlacementEvent},
};
use model::{
    Assumption, Promise, Protocol, Report, Safeguard, Settings, State, check, crash, esim_change,
    explore, money, repeats, resend, routes, webhooks,
};
use stateright::Model;

fn holds(settings: &Settings) -> Report {
    let report = check(settings);
    if let Some(broken) = &report.counterexample {
        panic!(
            "{settings:?} breaks \"{}\":\n{}",
            broken.promise.name(),
            broken.steps.join("\n")
        );
    }
    report
}

fn breaks(settings: &Settings) -> Promise {
    let report = check(settings);
    let broken = report.counterexample.unwrap_or_else(|| {
        panic!(
            "{settings:?} breaks nothing in {} states, so it may not be a safeguard at all",
            report.states
        )
    });
    println!("{settings:?} breaks \"{}\":", broken.promise.name());
    for step in broken.steps {
        println!("  {step}");
    }
    broken.promise
}

fn without(safeguard: Safeguard) -> Settings {
    Settings {
        without: vec![safeguard],
        ..Settings::default()
    }
}

/// An order of one option that two providers sell.
fn routed() -> Settings {
    Settings {
        providers: 2,
        faults: 1,
        ..Settings::default()
    }
}

fn breaking(assumption: Assumption) -> Settings {
    Settings {
        broken: vec![assumption],
        ..Settings::default()
    }
}

#[test]
fn the_promise_holds() {
    let report = holds(&Settings::default());
    assert_eq!(
        report.unreached,
        Vec::<&str>::new(),
        "the model is too small"
    );
    holds(&Settings {
        attempts: 3,
        ..Settings::default()
    });
}

#[test]
fn the_promise_holds_with_a_provider_that_detects_duplicates() {
    let report = holds(&Settings {
        detects_duplicates: true,
        ..Settings::default()
    });
    assert_eq!(report.unreached, Vec::<&str>::new());
}

/// An option of a provider that can only be searched, where an attempt in doubt is sent again.
fn repeatable() -> Settings {
    Settings {
        repeatable: true,
        faults: 0,
        ..Settings::default()
    }
}

#[test]
fn the_promise_holds_where_an_attempt_in_doubt_is_sent_again() {
    holds(&repeatable());
    holds(&Settings {
        providers: 2,
        attempts: 1,
        ..repeatable()
    });
}

/// The process that recorded the attempt may have heard that nothing was bought, and record it only
/// once the repeat has bought it.
#[test]
fn without_the_safeguards_of_a_repeat_what_it_has_bought_counts_as_not_bought() {
    for safeguard in [Safeguard::RecordedDoubt, Safeguard::LateRefusal] {
        let settings = Settings {
            without: vec![safeguard],
            ..repeatable()
        };
        let promise = breaks(&settings);
        assert_eq!(promise, Promise::NothingForRefused, "{safeguard:?}");
    }
}

#[test]
fn the_promise_holds_for_an_order_of_two_providers() {
    holds(&Settings {
        placements: 2,
        faults: 0,
        attempts: 1,
        ..Settings::default()
    });
}

/// A rejection leads to the next provider of the option, whose purchase is delivered like any
/// other.
#[test]
fn the_promise_holds_for_an_option_that_two_providers_sell() {
    let report = holds(&routed());
    let at_the_second = Placement {
        state: PlacementState::Placing,
        attempt: 2,
        ..Placement::NEW
    };
    let bought = (at_the_second, PlacementEvent::Bought(2));
    assert!(report.visited.contains(&bought), "nothing was rerouted");
}

/// After an unknown outcome the first provider may have the purchase, so the next one would sell it
/// a second time.
#[test]
fn after_an_unknown_outcome_another_provider_would_sell_it_twice() {
    let settings = Settings {
        without: vec![Safeguard::CertainRouting],
        ..routed()
    };
    // Or it sells it while the order is refused. Both counterexamples are equally short, so the
    // checker may find either.
    let promise = breaks(&settings);
    let bought = [Promise::BoughtOnce, Promise::NothingForRefused];
    assert!(bought.contains(&promise), "{promise:?}");
}

/// A ticket that waited for its permit while the placement went to the next provider would buy it
/// from the one before. No look-up at the next one finds that purchase, and it is bought again.
#[test]
fn a_late_ticket_would_buy_from_the_provider_before() {
    let settings = Settings {
        without: vec![Safeguard::RoutedClaim],
        // The one that the first provider rejects, the late one, and the one that buys again.
        attempts: 3,
        ..routed()
    };
    let promise = breaks(&settings);
    let bought = [Promise::BoughtOnce, Promise::NothingForRefused];
    assert!(bought.contains(&promise), "{promise:?}");
}

#[test]
fn without_any_one_safeguard_the_promise_breaks() {
    use Safeguard::{
        Abandon, AnswerBy, AnsweredFirst, DueWork, EarlyClock, FirstLease, HeldReadiness,
        IdempotentClaim, LookUp, OneStatement, RecordedAttempt, RecordedDelivery, RefusalInTime,
        RefusalTransaction, Settle, Sweep, SweepFence, Undecided,
    };
    let breaks = |safeguard| breaks(&without(safeguard));
    for safeguard in [RecordedAttempt, LookUp, Abandon, EarlyClock] {
        assert_eq!(breaks(safeguard), Promise::BoughtOnce, "{safeguard:?}");
    }
    // Without these, something is bought twice, or it is bought for an order that was refused in
    // between. Both counterexamples are equally short, so the checker may find either.
    for safeguard in [IdempotentClaim, Settle] {
        let promise = breaks(safeguard);
        let bought = [Promise::BoughtOnce, Promise::NothingForRefused];
        assert!(
            bought.contains(&promise),
            "{safeguard:?} breaks {promise:?}"
        );
    }
    for safeguard in [AnsweredFirst, HeldReadiness, FirstLease, AnswerBy] {
        assert_eq!(breaks(safeguard), Promise::AnswerFirst, "{safeguard:?}");
    }
    for safeguard in [DueWork, Sweep, SweepFence, RecordedDelivery] {
        assert_eq!(breaks(safeguard), Promise::NothingLost, "{safeguard:?}");
    }
    for safeguard in [RefusalInTime, Undecided, OneStatement] {
        assert_eq!(breaks(safeguard), Promise::TakenStands, "{safeguard:?}");
    }
    assert_eq!(breaks(RefusalTransaction), Promise::NothingForRefused);
}

#[test]
fn the_refusal_transaction_is_needed_for_two_providers_too() {
    let settings = Settings {
        placements: 2,
        faults: 0,
        attempts: 1,
        ..without(Safeguard::RefusalTransaction)
    };
    assert_eq!(breaks(&settings), Promise::NothingForRefused);
}

/// This is the gap that remains: a process stalls for too long after it has checked that its
/// attempt is not late.
#[test]
fn beyond_the_settling_delay_only_the_provider_prevents_a_second_purchase() {
    let slow = breaking(Assumption::PromptArrival);
    assert_eq!(breaks(&slow), Promise::BoughtOnce);
    let detected = Settings {
        detects_duplicates: true,
        ..slow
    };
    // Nothing is bought twice then, but a first attempt that arrives after the second one was
    // rejected is lost.
    assert_eq!(breaks(&detected), Promise::NothingLost);
}

/// The second look-up does not protect against a provider that says "no such purchase" although it
/// has it, because the first look-up may have been too early to show anything. It is not needed
/// against anything else in this model either.
#[test]
fn one_false_answer_of_a_look_up_is_one_too_many() {
    let lying = Settings {
        faults: 1,
        ..breaking(Assumption::HonestLookUp)
    };
    assert_eq!(breaks(&lying), Promise::BoughtOnce);
    holds(&Settings {
        one_look: true,
        ..Settings::default()
    });
}

/// No path visits a state twice, so every path ends in a final state. Together with the promise
/// that nothing is lost in a final state, this means that everything is settled in the end.
#[test]
fn no_way_goes_round_in_circles() {
    #[derive(PartialEq)]
    enum Seen {
        OnTheWay,
        Done,
    }
    let protocol = Protocol::new(Settings::default(), std::sync::Arc::default());
    let mut seen: HashMap<State, Seen> = HashMap::new();
    let mut way: Vec<(State, Vec<State>)> = Vec::new();
    for start in protocol.init_states() {
        seen.insert(start.clone(), Seen::OnTheWay);
        let next = protocol.next_states(&start);
        way.push((start, next));
    }
    while let Some((state, next)) = way.last_mut() {
        let Some(next) = next.pop() else {
            seen.insert(state.clone(), Seen::Done);
            way.pop();
            continue;
        };
        match seen.get(&next) {
            Some(Seen::Done) => {}
            Some(Seen::OnTheWay) => panic!("{next:#?} comes again"),
            None => {
                seen.insert(next.clone(), Seen::OnTheWay);
                let after = protocol.next_states(&next);
                way.push((next, after));
            }
        }
    }
}

/// The complete protocol of a smaller model keeps every promise and reaches every end.
fn holds_and_reaches_all<Promise: Debug>(report: &explore::Report<Promise>) {
    assert!(report.counterexample.is_none(), "{report:#?}");
    let none = Vec::<&str>::new();
    assert_eq!(report.unreached, none, "the model is too small");
}

/// Without this safeguard a smaller model breaks this promise.
fn breaks_promise<Promise: Debug + PartialEq>(
    report: explore::Report<Promise>,
    expected: Promise,
    safeguard: &impl Debug,
) {
    let broken = report.counterexample.map(|broken| broken.promise);
    let states = report.states;
    assert_eq!(broken, Some(expected), "{safeguard:?}, {states} states");
}

#[test]
fn a_change_to_an_esim_is_certain_or_parked() {
    holds_and_reaches_all(&explore::check::<esim_change::Protocol>(&[]));
}

#[test]
fn without_any_one_safeguard_a_change_is_called_refused_that_happens() {
    for safeguard in esim_change::Safeguard::value_variants() {
        let report = explore::check::<esim_change::Protocol>(&[*safeguard]);
        breaks_promise(report, esim_change::Promise::RefusedStays, safeguard);
    }
}

#[test]
fn an_account_adds_up_and_is_never_overdrawn() {
    holds_and_reaches_all(&explore::check::<money::Protocol>(&[]));
}

#[test]
fn without_any_one_safeguard_an_account_is_wrong() {
    use money::{Promise, Safeguard};
    for safeguard in Safeguard::value_variants() {
        let expected = match safeguard {
            Safeguard::Locked => Promise::NeverBelowZero,
            Safeguard::Held
            | Safeguard::Together
            | Safeguard::ChargedOnce
            | Safeguard::Released
            | Safeguard::RefundedOnce => Promise::AddsUp,
        };
        let report = explore::check::<money::Protocol>(&[*safeguard]);
        breaks_promise(report, expected, safeguard);
    }
}

#[test]
fn every_webhook_reaches_its_endpoint_or_its_retries_end() {
    holds_and_reaches_all(&explore::check::<webhooks::Protocol>(&[]));
}

#[test]
fn without_any_one_safeguard_a_promise_of_the_webhooks_breaks() {
    use webhooks::{Promise, Safeguard};
    for safeguard in Safeguard::value_variants() {
        let expected = match safeguard {
            Safeguard::FanOutSweep | Safeguard::SweepDeliveries | Safeguard::ProbeEnds => {
                Promise::NothingForgotten
            }
            Safeguard::DeliveryOnce | Safeguard::RestartedSchedule => Promise::WholeSchedule,
            Safeguard::LateAcknowledgement => Promise::AcknowledgedCounts,
            Safeguard::CurrentAcknowledgement => Promise::DeliveredIsTrue,
            Safeguard::EndpointBlock => Promise::OneProbe,
        };
        breaks_promise(
            explore::check::<webhooks::Protocol>(&[*safeguard]),
            expected,
            safeguard,
        );
    }
}

#[test]
fn a_crash_of_postgresql_loses_nothing_that_anybody_was_told_of() {
    holds_and_reaches_all(&explore::check::<crash::Protocol>(&[]));
}

#[test]
fn without_any_one_safeguard_a_crash_of_postgresql_breaks_a_promise() {
    use crash::{Promise, Safeguard};
    for safeguard in Safeguard::value_variants() {
        let expected = match safeguard {
            Safeguard::LogOrder | Safeguard::FlushClaim => Promise::BoughtIsKnown,
            Safeguard::FlushAnswer | Safeguard::LostOrder => Promise::AnswerStands,
            Safeguard::FlushSettlement => Promise::NothingLost,
            Safeguard::SameUnits => Promise::ToldTheSame,
        };
        breaks_promise(
            explore::check::<crash::Protocol>(&[*safeguard]),
            expected,
            safeguard,
        );
    }
}

#[test]
fn a_purchase_after_its_placement_went_to_another_provider_is_kept_once_it_is_heard_of() {
    holds_and_reaches_all(&explore::check::<routes::Protocol>(&[]));
}

#[test]
fn without_any_one_safeguard_a_late_purchase_is_forgotten() {
    for safeguard in routes::Safeguard::value_variants() {
        let report = explore::check::<routes::Protocol>(&[*safeguard]);
        breaks_promise(report, routes::Promise::HeardIsKept, safeguard);
    }
}

#[test]
fn a_resend_sends_what_was_missed_once_and_ends() {
    holds_and_reaches_all(&explore::check::<resend::Protocol>(&[]));
}

#[test]
fn without_any_one_safeguard_a_promise_of_a_resend_breaks() {
    use resend::{Promise, Safeguard};
    for safeguard in Safeguard::value_variants() {
        let expected = match safeguard {
            Safeguard::RedeliveryEnd => Promise::EachOnce,
            Safeguard::RedeliveryPace => Promise::Pace,
            Safeguard::RedeliverySurvives => Promise::NoneMissed,
        };
        breaks_promise(
            explore::check::<resend::Protocol>(&[*safeguard]),
            expected,
            safeguard,
        );
    }
}

#[test]
fn of_three_orders_with_one_id_at_most_one_is_bought_and_what_is_said_of_it_is_true() {
    holds_and_reaches_all(&explore::check::<repeats::Protocol>(&[]));
}

#[test]
fn without_any_one_safeguard_a_promise_of_repeated_posts_breaks() {
    use repeats::{Promise, Safeguard};
    for safeguard in Safeguard::value_variants() {
        let expected = match safeguard {
            Safeguard::ExternalIdOnce => Promise::IdOnce,
            Safeguard::RefusalTransaction | Safeguard::IdempotentClaim => {
                Promise::NothingForRefused
            }
            Safeguard::Undecided | Safeguard::OneStatement | Safeguard::RefusalInTime => {
                Promise::TakenStands
            }
        };
        breaks_promise(
            explore::check::<repeats::Protocol>(&[*safeguard]),
            expected,
            safeguard,
        );
    }
}

use std::collections::BTreeSet;

use strum::VariantArray;

use super::*;

const SILENT: [SilentStages; 4] = [
    SilentStages {
        provisioner: false,
        notifier: false,
    },
    SilentStages {
        provisioner: true,
        notifier: false,
    },
    SilentStages {
        provisioner: false,
        notifier: true,
    },
    SilentStages {
        provisioner: true,
        notifier: true,
    },
];

/// Every webhook that may be stored.
fn webhooks() -> Vec<WebhookFacts> {
    let mut webhooks = Vec::new();
    for state in DeliveryState::VARIANTS {
        for endpoint in EndpointState::VARIANTS {
            for bits in 0..8_u32 {
                webhooks.push(WebhookFacts {
                    endpoint: *endpoint,
                    state: *state,
                    attempts: bits & 1,
                    is_gone: bits & 2 > 0,
                    was_delivered: bits & 4 > 0,
                });
            }
        }
    }
    webhooks
}

/// Checks every unit that may be stored with no webhook, with one, and with any two.
fn each(mut check: impl FnMut(&UnitFacts<'_>)) {
    let reasons: Vec<Option<ReasonCode>> = ReasonCode::VARIANTS.iter().copied().map(Some).collect();
    let reasons: Vec<Option<ReasonCode>> = [None].into_iter().chain(reasons).collect();
    let give_backs = [
        None,
        Some(EsimChangeState::Asked),
        Some(EsimChangeState::Sending),
        Some(EsimChangeState::Claimed),
        Some(EsimChangeState::Done),
        Some(EsimChangeState::Refused),
        Some(EsimChangeState::Parked),
    ];
    let one = webhooks();
    let sets = [Vec::new()].into_iter();
    let sets: Vec<Vec<WebhookFacts>> = sets.chain(one.iter().map(|of| vec![*of])).collect();
    for state in UnitState::VARIANTS {
        for reason in &reasons {
            for give_back in give_backs {
                for webhooks in &sets {
                    for silent in SILENT {
                        for stop in [None, Some(Stop::ForNow), Some(Stop::UntilOperator)] {
                            check(&UnitFacts {
                                state: *state,
                                reason: *reason,
                                give_back,
                                webhooks,
                                stop,
                                silent,
                            });
                        }
                    }
                }
            }
        }
    }
    for first in &one {
        for second in &one {
            for silent in SILENT {
                check(&UnitFacts {
                    state: UnitState::Ready,
                    reason: None,
                    give_back: None,
                    webhooks: &[*first, *second],
                    stop: None,
                    silent,
                });
            }
        }
    }
}

#[test]
fn a_unit_is_delivered_only_if_every_endpoint_has_it() {
    each(|unit| {
        if standing(unit) == Standing::Delivered {
            let undelivered = unit.webhooks.iter().filter(|one| {
                one.state != DeliveryState::Delivered && one.state != DeliveryState::NoEndpoint
            });
            assert_eq!(undelivered.count(), 0, "{unit:?}");
        }
    });
}

#[test]
fn nobody_but_us_must_act_while_the_stage_is_silent_that_has_to_go_on() {
    each(|unit| {
        let waits_for_us = match unit.state {
            UnitState::Pending => unit.silent.provisioner,
            UnitState::Ready if unit.give_back.is_none() => {
                let mut all = unit.webhooks.iter();
                let mut pending = all
                    .clone()
                    .filter(|one| one.state == DeliveryState::Pending);
                unit.silent.notifier
                    && pending.next().is_some()
                    && all.all(|one| {
                        [DeliveryState::Pending, DeliveryState::Delivered].contains(&one.state)
                    })
            }
            _ => false,
        };
        if waits_for_us {
            assert_eq!(standing(unit).must_act(), NextActor::Operator, "{unit:?}");
        }
    });
}

#[test]
fn partner_support_and_operator_are_never_told_contradicting_things() {
    each(|unit| {
        let standing = standing(unit);
        assert_eq!(
            standing.shown(),
            unit.state.shown(),
            "{unit:?}: {standing:?}"
        );
        // Whoever looks up that a unit is on hold waits for us, and for nobody else.
        if standing.shown() == ShownState::OnHold {
            assert_eq!(
                standing.must_act(),
                NextActor::Operator,
                "{unit:?}: {standing:?}"
            );
        }
        match unit.state {
            UnitState::Ready => assert!(
                standing.is_bought() && standing != Standing::Returned,
                "{unit:?}: {standing:?}"
            ),
            UnitState::Parked => {
                let bought = unit.reason.is_some_and(ReasonCode::is_bought);
                assert_eq!(standing.is_bought(), bought, "{unit:?}");
                assert_eq!(standing.must_act(), NextActor::Operator, "{unit:?}");
            }
            UnitState::Pending => assert!(!standing.is_bought(), "{unit:?}"),
            UnitState::Failed => assert_eq!(standing, Standing::Failed),
            UnitState::Returned => assert_eq!(standing, Standing::Returned),
        }
        let shows_delivery = standing.label().starts_with("delivered");
        let was_delivered = matches!(
            standing,
            Standing::Delivered | Standing::SentAgain | Standing::NotSentAgain
        );
        assert_eq!(shows_delivery, was_delivered, "{standing:?}");
        let shows_bought = [
            "delivered",
            "ready",
            "bought",
            "being",
            "give-back",
            "given",
        ]
        .into_iter()
        .any(|word| standing.label().starts_with(word));
        assert_eq!(shows_bought, standing.is_bought(), "{standing:?}");
    });
}

#[test]
fn the_state_of_a_unit_follows_from_its_rows() {
    for bits in 0..16_u32 {
        let rows = Rows {
            is_ready: bits & 1 > 0,
            is_returned: bits & 2 > 0,
            has_failed: bits & 4 > 0,
            is_parked: bits & 8 > 0,
        };
        let state = UnitState::of(rows);
        assert_eq!(state == UnitState::Returned, rows.is_returned);
        assert_eq!(
            state == UnitState::Ready,
            rows.is_ready && !rows.is_returned
        );
        let is_open = !rows.is_ready && !rows.is_returned && !rows.has_failed;
        assert_eq!(
            matches!(state, UnitState::Parked | UnitState::Pending),
            is_open
        );
        assert_eq!(state == UnitState::Parked, is_open && rows.is_parked);
    }
}

#[test]
fn each_standing_is_reached() {
    let mut reached = BTreeSet::new();
    each(|unit| {
        reached.insert(standing(unit));
    });
    // All but that of a newer version, which no unit of this one has.
    assert_eq!(reached.len(), 27, "{reached:?}");
}

//! Each single flaw in the ledgers makes the run red, under the right name.

use crate::book::{Arrival, Asked, Settled};
use crate::orders::NEVER_READY;
use crate::stored::{Stored, StoredDelivery, StoredOrder, StoredPlacement, StoredUnit};
use crate::verdict::{Broken, Evidence, Verdict, judge};
use std::time::Duration;
use testkit::stack::LedgerOrder;

/// One order of two units, answered, bought and delivered.
fn good() -> Evidence {
    let unit = |topup: &str, iccid: &str| StoredUnit {
        topup_id: topup.into(),
        placement_id: "placement".into(),
        order_id: "order".into(),
        option: "ready".into(),
        state: "ready".into(),
        iccid: Some(iccid.into()),
        reason: None,
        delivery: Some(StoredDelivery {
            state: "delivered".into(),
            attempt: 1,
            error: None,
        }),
    };
    let arrival = |topup: &str, iccid: &str| Arrival {
        at: Duration::from_secs(2),
        partner: 0,
        topup_id: topup.into(),
        iccid: iccid.into(),
        acknowledged: true,
        genuine: true,
    };
    let mut asked = Asked::new("external".into(), 0, false);
    asked.requests = 1;
    asked.settled = Some(Settled::Created);
    asked.answered = Duration::from_secs(1);
    asked.topups = vec!["t1".into(), "t2".into()];
    Evidence {
        asked: vec![asked],
        arrivals: vec![arrival("t1", "8901"), arrival("t2", "8902")],
        ledger: vec![LedgerOrder {
            order_id: "placement".into(),
            units: 2,
            purchased_times: 1,
        }],
        stored: Stored {
            orders: vec![StoredOrder {
                order_id: "order".into(),
                partner_id: "partner".into(),
                external_order_id: "external".into(),
                refused: false,
            }],
            placements: vec![StoredPlacement {
                placement_id: "placement".into(),
                order_id: "order".into(),
                state: "placed".into(),
                placed: true,
                reason: None,
            }],
            units: vec![unit("t1", "8901"), unit("t2", "8902")],
        },
        partners: vec!["partner".into()],
    }
}

fn judged(spoil: impl FnOnce(&mut Evidence)) -> (Verdict, Vec<Broken>) {
    let mut evidence = good();
    spoil(&mut evidence);
    let verdict = judge(&evidence);
    let broken = verdict.broken.keys().copied().collect();
    (verdict, broken)
}

/// An order that was refused: nothing bought, nothing delivered.
fn refused(evidence: &mut Evidence) {
    evidence.asked[0].settled = Some(Settled::Refused);
    evidence.asked[0].topups.clear();
    evidence.arrivals.clear();
    evidence.ledger.clear();
    evidence.stored.orders[0].refused = true;
    evidence.stored.placements[0].state = "refused".into();
    evidence.stored.placements[0].placed = false;
    for unit in &mut evidence.stored.units {
        unit.state = "pending".into();
        unit.iccid = None;
        unit.delivery = None;
    }
}

#[test]
fn a_whole_story_is_green() {
    let (verdict, broken) = judged(|_| ());
    assert_eq!(broken, []);
    let counts = verdict.counts;
    assert_eq!(
        (counts.answered_201, counts.units_delivered, counts.units_bought),
        (1, 2, 2)
    );
    assert_eq!((counts.webhooks, counts.duplicates, counts.lost), (2, 0, 0));
    assert_eq!(judged(refused).1, []);
}

#[test]
fn a_double_purchase_is_red() {
    let (verdict, broken) = judged(|evidence| {
        evidence.ledger[0].purchased_times = 2;
        evidence.ledger[0].units = 4;
    });
    assert_eq!(broken, [Broken::BoughtTwice]);
    assert_eq!(verdict.counts.placements_bought_twice, 1);
}

#[test]
fn purchases_beyond_what_is_stored_are_red() {
    assert_eq!(
        judged(|evidence| evidence.ledger[0].units = 3).1,
        [Broken::BoughtBeyondStored]
    );
    let unknown = LedgerOrder {
        order_id: "somebody else's".into(),
        units: 1,
        purchased_times: 1,
    };
    assert_eq!(
        judged(|evidence| evidence.ledger.push(unknown)).1,
        [Broken::BoughtBeyondStored]
    );
    assert_eq!(
        judged(|evidence| evidence.ledger.clear()).1,
        [Broken::NotBoughtThoughPlaced]
    );
}

#[test]
fn a_purchase_for_a_4xx_is_red() {
    let bought = judged(|evidence| {
        let ledger = evidence.ledger.clone();
        refused(evidence);
        evidence.ledger = ledger;
    });
    assert_eq!(bought.1, [Broken::BoughtThoughRefused]);
    let standing = judged(|evidence| {
        evidence.asked[0].settled = Some(Settled::Refused);
        evidence.asked[0].topups.clear();
    });
    assert_eq!(standing.1, [Broken::BoughtThoughRefused]);
}

#[test]
fn every_way_to_lose_a_unit_is_red() {
    let lose = |spoil: fn(&mut StoredUnit)| judged(|evidence| spoil(&mut evidence.stored.units[0]));
    let ways: [fn(&mut StoredUnit); 6] = [
        |unit| unit.delivery = None,
        |unit| unit.state = "pending".into(),
        |unit| unit.state = "failed".into(),
        |unit| unit.delivery.as_mut().unwrap().state = "pending".into(),
        |unit| unit.delivery.as_mut().unwrap().state = "exhausted".into(),
        |unit| unit.delivery.as_mut().unwrap().state = "no_endpoint".into(),
    ];
    for way in ways {
        let (verdict, broken) = lose(way);
        assert_eq!((broken.as_slice(), verdict.counts.lost), (&[Broken::Lost][..], 1));
    }
    // Stored as delivered, but no endpoint acknowledged it.
    let (_, broken) = judged(|evidence| evidence.arrivals[0].acknowledged = false);
    assert_eq!(broken, [Broken::Lost]);
}

#[test]
fn an_answer_without_an_order_is_red() {
    let (_, broken) = judged(|evidence| {
        evidence.asked[0].topups.push("t3".into());
    });
    assert_eq!(broken, [Broken::AnsweredButNotStored]);
    let (_, broken) = judged(|evidence| {
        refused(evidence);
        evidence.asked[0].settled = Some(Settled::Taken);
        evidence.asked[0].unanswered = 1;
    });
    assert_eq!(broken, [Broken::TakenThenRefused]);
    let (_, broken) = judged(|evidence| evidence.asked[0].settled = Some(Settled::Taken));
    assert_eq!(
        broken,
        [Broken::AnsweredButNotStored],
        "no earlier request was sent"
    );
}

#[test]
fn answers_without_cause_and_no_answers_are_red() {
    let (_, broken) = judged(|evidence| {
        refused(evidence);
        evidence.asked[0].settled = Some(Settled::Denied("401".into()));
    });
    assert_eq!(broken, [Broken::DeniedWithoutCause]);
    let (_, broken) = judged(|evidence| evidence.asked[0].settled = None);
    assert_eq!(broken, [Broken::NeverSettled]);
}

#[test]
fn failed_and_parked_units_need_a_reason() {
    let (verdict, broken) = judged(|evidence| {
        let unit = &mut evidence.stored.units[0];
        unit.state = "failed".into();
        unit.reason = Some("the provider could not make it".into());
        unit.delivery = None;
    });
    assert_eq!((broken, verdict.counts.failed.len()), (vec![], 1));

    let park = |option: &'static str| {
        judged(move |evidence| {
            evidence.stored.placements[0].state = "parked".into();
            evidence.stored.placements[0].reason = Some("its profiles do not come".into());
            evidence.stored.units[0].state = "pending".into();
            evidence.stored.units[0].option = option.into();
            evidence.stored.units[0].delivery = None;
        })
    };
    let (verdict, broken) = park(NEVER_READY);
    assert_eq!(
        (broken, verdict.counts.parked.values().sum::<usize>()),
        (vec![], 1)
    );
    assert_eq!(park("ready").1, [Broken::ParkedThoughFindable]);
}

#[test]
fn wrong_webhooks_are_red() {
    type Spoil = fn(&mut Evidence);
    let spoiled: [(Spoil, Broken); 6] = [
        (
            |evidence| evidence.stored.units[1].iccid = Some("8901".into()),
            Broken::IccidTwice,
        ),
        (
            |evidence| evidence.arrivals[1].topup_id = "t1".into(),
            Broken::IccidTwice,
        ),
        (
            |evidence| evidence.arrivals[0].at = Duration::from_millis(500),
            Broken::WebhookBeforeAnswer,
        ),
        (
            |evidence| evidence.arrivals[0].genuine = false,
            Broken::WebhookForged,
        ),
        (
            |evidence| evidence.arrivals[0].topup_id = "t9".into(),
            Broken::WebhookForNothing,
        ),
        (
            |evidence| {
                evidence.partners.push("another".into());
                evidence.arrivals[0].partner = 1;
            },
            Broken::WebhookForNothing,
        ),
    ];
    for (spoil, expected) in spoiled {
        let (_, broken) = judged(spoil);
        assert!(broken.contains(&expected), "{expected:?}: {broken:?}");
    }
}

#[test]
fn repeated_webhooks_are_duplicates_and_nothing_worse() {
    let (verdict, broken) = judged(|evidence| evidence.arrivals.push(evidence.arrivals[0].clone()));
    assert_eq!(
        (broken, verdict.counts.duplicates, verdict.counts.webhooks),
        (vec![], 1, 3)
    );
}

//! Each single flaw in the ledgers makes the run red, under the right name.

use crate::book::{Arrival, Asked, Settled};
use crate::orders::NEVER_READY;
use crate::stored::{Stored, StoredDelivery, StoredOrder, StoredPlacement, StoredUnit};
use crate::verdict::{Broken, Evidence, judge};
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

/// Parks the placement of both units; the first one has no profile.
fn parked(evidence: &mut Evidence, option: &str) {
    evidence.stored.placements[0].state = "parked".into();
    evidence.stored.placements[0].reason = Some("its profiles do not come".into());
    let unit = &mut evidence.stored.units[0];
    (unit.state, unit.option, unit.delivery) = ("pending".into(), option.into(), None);
}

fn deliver(evidence: &mut Evidence, state: &str) {
    evidence.stored.units[0].delivery.as_mut().unwrap().state = state.into();
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn each_flaw_is_red_under_its_name_and_nothing_else() {
    type Spoil = fn(&mut Evidence);
    let flaws: &[(&[Broken], &[Spoil])] = &[
        (
            &[],
            &[
                |_| {},
                refused,
                // A repeated webhook.
                |all| all.arrivals.push(all.arrivals[0].clone()),
                |all| parked(all, NEVER_READY),
                |all| {
                    let unit = &mut all.stored.units[0];
                    (unit.state, unit.delivery) = ("failed".into(), None);
                    unit.reason = Some("the provider could not make it".into());
                },
            ],
        ),
        (
            &[Broken::BoughtTwice],
            &[|all| (all.ledger[0].purchased_times, all.ledger[0].units) = (2, 4)],
        ),
        (
            &[Broken::BoughtBeyondStored],
            &[
                |all| all.ledger[0].units = 3,
                |all| {
                    let mut stranger = all.ledger[0].clone();
                    stranger.order_id = "somebody else's".into();
                    all.ledger.push(stranger);
                },
            ],
        ),
        (&[Broken::NotBoughtThoughPlaced], &[|all| all.ledger.clear()]),
        (
            &[Broken::BoughtThoughRefused],
            &[
                |all| {
                    let ledger = all.ledger.clone();
                    refused(all);
                    all.ledger = ledger;
                },
                |all| (all.asked[0].settled, all.asked[0].topups) = (Some(Settled::Refused), Vec::new()),
            ],
        ),
        (
            &[Broken::Lost],
            &[
                |all| all.stored.units[0].delivery = None,
                |all| all.stored.units[0].state = "pending".into(),
                |all| all.stored.units[0].state = "failed".into(),
                |all| deliver(all, "pending"),
                |all| deliver(all, "exhausted"),
                |all| deliver(all, "no_endpoint"),
                // Stored as delivered, but no endpoint acknowledged it.
                |all| all.arrivals[0].acknowledged = false,
            ],
        ),
        (
            &[Broken::AnsweredButNotStored],
            &[
                |all| all.asked[0].topups.push("t3".into()),
                // No earlier request was sent.
                |all| all.asked[0].settled = Some(Settled::Taken),
            ],
        ),
        (
            &[Broken::TakenThenRefused],
            &[|all| {
                refused(all);
                (all.asked[0].settled, all.asked[0].unanswered) = (Some(Settled::Taken), 1);
            }],
        ),
        (
            &[Broken::DeniedWithoutCause],
            &[|all| {
                refused(all);
                all.asked[0].settled = Some(Settled::Denied("401".into()));
            }],
        ),
        (&[Broken::NeverSettled], &[|all| all.asked[0].settled = None]),
        (&[Broken::ParkedThoughFindable], &[|all| parked(all, "ready")]),
        (
            &[Broken::IccidTwice],
            &[|all| all.stored.units[1].iccid = Some("8901".into())],
        ),
        (
            &[Broken::Lost, Broken::IccidTwice],
            &[|all| all.arrivals[1].topup_id = "t1".into()],
        ),
        (
            &[Broken::WebhookBeforeAnswer],
            &[|all| all.arrivals[0].at = Duration::from_millis(500)],
        ),
        (&[Broken::WebhookForged], &[|all| all.arrivals[0].genuine = false]),
        (
            &[Broken::Lost, Broken::WebhookForNothing],
            &[|all| all.arrivals[0].topup_id = "t9".into()],
        ),
        (
            &[Broken::WebhookForNothing],
            &[|all| {
                all.partners.push("another".into());
                all.arrivals[0].partner = 1;
            }],
        ),
    ];
    for (expected, spoils) in flaws {
        for (index, spoil) in spoils.iter().enumerate() {
            let mut evidence = good();
            spoil(&mut evidence);
            let broken: Vec<Broken> = judge(&evidence).broken.into_keys().collect();
            assert_eq!(broken, *expected, "flaw {index}");
        }
    }
}

#[test]
fn what_happened_is_counted() {
    let mut evidence = good();
    evidence.arrivals.push(evidence.arrivals[0].clone());
    let counts = judge(&evidence).counts;
    assert_eq!(
        (counts.answered_201, counts.units_delivered, counts.units_bought),
        (1, 2, 2)
    );
    assert_eq!((counts.webhooks, counts.duplicates, counts.lost), (3, 1, 0));
}

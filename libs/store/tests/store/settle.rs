//! Outcomes of purchases: profiles and deliveries are stored together and once, and an unexpected
//! purchase is parked instead of lost.

use std::time::Duration;

use accounts::profile::SealedProfile;
use domain::{PartnerId, TopupId};
use store::orders::NewOrder;
use store::placements::{
    self, AttemptOutcome, PlacementClaim, PlacementSettlement, Progress, ReadyProfile, SettledUnit,
};
use store::providers::{self, StoredReport};

use crate::bench::{
    Bench, PROVIDER, bought, bought_pending, delivery_id, fresh, iccid, ids, not_bought, not_found,
    order, order_of, parked, part, placement, ready, rejected, sealed, settlement, topups, unit,
    unknown,
};
use crate::settled_again::ready_elsewhere;

impl Bench {
    /// Seconds from the creation of an order's only delivery until it is due, if it has a due row.
    async fn due_after(&self, order: &NewOrder) -> Option<f64> {
        let statement = "SELECT extract(epoch FROM due.at - d.created_at)::float8
            FROM deliveries d LEFT JOIN work due ON due.id = delivery_id WHERE topup_id = $1";
        self.value(statement, &topups(order)[0]).await
    }

    pub async fn reason(&self, order: &NewOrder) -> String {
        let statement = "SELECT coalesce(reason, '') FROM placements WHERE placement_id::text = $1";
        self.value(statement, placement(order)).await
    }

    /// A placement in state `placing`, at its second attempt.
    async fn placing_again(&self) -> NewOrder {
        let order = self.placing(1).await;
        self.settle(&[not_bought(placement(&order), 1)]).await;
        assert_eq!(self.claim(&[placement(&order)]).await[0].attempt, 2);
        order
    }

    async fn try_settle(&self, settlements: &[PlacementSettlement]) -> Result<(), pg::Error> {
        placements::settle(&mut *self.connection().await, settlements)
            .await
            .map(drop)
    }
}

#[tokio::test]
async fn a_profile_its_topup_and_its_delivery_are_stored_together() {
    let bench = Bench::new().await;
    for is_fresh in [false, true] {
        let order = bench.placing(1).await;
        let id = placement(&order);
        let topup = &topups(&order)[0];
        let purchase = bought(id, 1, vec![ready(topup)], true);
        let settled = bench
            .settle(&[if is_fresh {
                fresh(&order, purchase)
            } else {
                purchase
            }])
            .await;
        assert!(settled[0].moved && !settled[0].unexpected);
        assert_eq!(settled[0].ready, [delivery_id(topup)]);
        let statement =
            "SELECT iccid || ' ' || encode(profile, 'escape') || ' ' || provider_unit_id || ' '
                || (ready_at IS NOT NULL) FROM esims WHERE topup_id = $1";
        let stored: String = bench.value(statement, topup).await;
        let number = iccid(topup);
        assert_eq!(
            stored,
            format!("{} sealed unit-{topup} true", number.as_str())
        );
        let statement = "SELECT partner_id || ' ' || order_id || ' ' || state || ' ' || attempt
                FROM deliveries WHERE topup_id = $1";
        let delivery: String = bench.value(statement, topup).await;
        assert_eq!(
            delivery,
            format!("{} {} pending 0", order.partner_id, order.order_id)
        );
        let statement =
            "SELECT state = 'placed' AND placed_at IS NOT NULL AND NOT EXISTS (SELECT FROM work w
                WHERE w.id = p.placement_id) FROM placements p WHERE placement_id::text = $1";
        assert!(bench.value::<bool>(statement, id).await, "complete");
    }
}

/// A column that only one of the two statements for purchases fills in would be missed by nobody
/// but the notifier. And what an order agrees about a unit comes whole to its delivery on each way:
/// also what this version does not know.
#[tokio::test]
async fn both_statements_for_purchases_fill_in_the_same_columns() {
    const TERMS: &str = r#"{"made_up":1}"#;
    let bench = Bench::new().await;
    let mut filled = Vec::new();
    for (is_fresh, first_claim) in [(false, false), (true, false), (true, true)] {
        let order = NewOrder {
            traceparent: Some("00-1-2-01".to_owned()),
            ..order(PartnerId::new(), 1)
        };
        let order = bench.stored(order).await;
        let id = placement(&order);
        let topup = &topups(&order)[0];
        let agree = r#"UPDATE topups SET terms = '{"made_up":1}' WHERE topup_id = $1"#;
        bench.set(agree, topup).await;
        let agree = if first_claim {
            r#"UPDATE placements SET first_claim = (first_claim::jsonb || '{"terms": ["{\"made_up\":1}"]}')::text
               WHERE placement_id::text = $1"#
        } else {
            "UPDATE placements SET first_claim = NULL WHERE placement_id::text = $1"
        };
        bench.set(agree, id).await;
        let claimed = bench.claim(&[id]).await;
        let mut purchase = bought(id, 1, vec![ready(topup)], true);
        if is_fresh {
            purchase.known = Some(claimed[0].known_columns(PROVIDER, false));
        }
        bench.settle(&[purchase]).await;
        let columns: String = bench
            .value(
                "SELECT string_agg(key, ' ' ORDER BY key)
                 FROM topups t JOIN esims e USING (topup_id) JOIN deliveries d USING (topup_id, option_id, terms),
                      jsonb_each(jsonb_strip_nulls(jsonb_build_object('e', to_jsonb(e), 'd', to_jsonb(d)))) part (name, whole),
                      jsonb_object_keys(whole) key
                 WHERE t.topup_id = $1",
                topup,
            )
            .await;
        filled.push(columns);
        let terms: String = bench
            .value("SELECT terms FROM deliveries WHERE topup_id = $1", topup)
            .await;
        assert_eq!(terms, TERMS, "{is_fresh} {first_claim}");
    }
    assert_eq!(filled[0], filled[1]);
    assert_eq!(filled[0], filled[2]);
}

#[tokio::test]
async fn a_delivery_is_born_due_after_the_answer() {
    let bench = Bench::new().await;
    // Seconds within which the order is answered, whether it is announced, seconds until it is due.
    for (answer_within, announced, due) in [
        (0, false, Some(0.0)),
        (5, false, Some(5.0)),
        (0, true, None),
        (5, true, None),
    ] {
        let order = NewOrder {
            answer_within: Duration::from_secs(answer_within),
            ..order(PartnerId::new(), 1)
        };
        let order = bench.stored(order).await;
        let id = placement(&order);
        bench.claim(&[id]).await;
        bench
            .settle(&[bought(id, 1, vec![ready(&topups(&order)[0])], announced)])
            .await;
        let after = bench.due_after(&order).await;
        let Some(due) = due else {
            assert_eq!(after, None, "its first lease is no due row");
            continue;
        };
        let after = after.unwrap();
        // The time between the two statements is missing from `answer_by`.
        assert!(
            (due - 3.0..=due).contains(&after),
            "{answer_within} {announced}: {after}"
        );
        let statement = "SELECT due.at >= o.answer_by FROM work due
                JOIN deliveries d ON d.delivery_id = due.id JOIN orders o USING (order_id) WHERE topup_id = $1";
        assert!(bench.value::<bool>(statement, &topups(&order)[0]).await);
    }
}

#[tokio::test]
async fn a_provider_unit_is_assigned_once() {
    let bench = Bench::new().await;
    let order = bench.placing(1).await;
    let id = placement(&order);
    let topup = &topups(&order)[0];
    let named = |name: &str, progress: Progress| SettledUnit {
        provider_unit_id: name.to_owned(),
        ..unit(topup, progress)
    };
    let settle = async |units: Vec<SettledUnit>| {
        bench.settle(&[bought(id, 1, units, false)]).await.remove(0)
    };
    settle(vec![named("first", Progress::Pending)]).await;
    settle(vec![named("second", Progress::Pending)]).await;
    let statement = "SELECT provider_unit_id FROM esims WHERE topup_id = $1";
    assert_eq!(bench.value::<String>(statement, topup).await, "first");
    assert!(
        settle(vec![named("second", ready(topup).progress)])
            .await
            .ready
            .is_empty()
    );
    assert_eq!(bench.states(topup).await, ("pending".into(), "none".into()));
    assert_eq!(
        settle(vec![named("first", ready(topup).progress)])
            .await
            .ready
            .len(),
        1
    );
}

#[tokio::test]
async fn a_unit_sold_twice_is_found_by_its_constraint_and_changes_nothing() {
    let bench = Bench::new().await;
    let first = bench.placing(1).await;
    let sold = ready(&topups(&first)[0]);
    bench
        .settle(&[bought(placement(&first), 1, vec![sold.clone()], false)])
        .await;

    let second = bench.placing(1).await;
    let topup = &topups(&second)[0];
    let same_unit = SettledUnit {
        provider_unit_id: sold.provider_unit_id.clone(),
        ..ready(topup)
    };
    let sold_iccid = |topup: &TopupId| {
        Progress::Ready(ReadyProfile {
            iccid: iccid(&topups(&first)[0]),
            profile: sealed(topup),
            delivery_id: delivery_id(topup),
        })
    };
    let before = bench.everything(second.order_id).await;
    let error = bench
        .try_settle(&[bought(placement(&second), 1, vec![same_unit], false)])
        .await
        .unwrap_err();
    assert_eq!(error.constraint(), Some("esims_provider_unit_key"));
    assert!(error.is_about_data());
    assert_eq!(bench.everything(second.order_id).await, before);
    // A provider sells the ICCID of a cancelled eSIM again, with another code.
    let same_iccid = unit(topup, sold_iccid(topup));
    let settled = bench
        .settle(&[bought(placement(&second), 1, vec![same_iccid], false)])
        .await;
    assert_eq!(settled[0].ready.len(), 1);
    // What is reported of an ICCID is about the eSIM that has it now.
    let line = iccid(&topups(&first)[0]);
    let report = StoredReport {
        unit_id: None,
        iccid: Some(line.as_str()),
        key: "report",
        words: "little data left",
    };
    let kept = providers::report(&mut *bench.connection().await, PROVIDER, &report).await;
    assert_eq!(kept.unwrap(), Some(true));
    let about = "SELECT topup_id = $1 FROM history WHERE kind = 'reported'";
    assert!(bench.value::<bool>(about, topup).await);

    // Another provider may use the same id of a unit, but has not the same code.
    let third = bench.stored(order_of(vec![part("elsewhere", &[0])])).await;
    let id = placement(&third);
    bench
        .claim_as("elsewhere", &[id], PlacementClaim::Fresh)
        .await;
    let topup = &topups(&third)[0];
    let sold_code = Progress::Ready(ReadyProfile {
        iccid: iccid(topup),
        profile: sealed(&topups(&first)[0]),
        delivery_id: delivery_id(topup),
    });
    let twice = bought(id, 1, vec![unit(topup, sold_code)], false);
    let error = bench.try_settle(&[twice]).await.unwrap_err();
    assert_eq!(error.constraint(), Some("esims_code_key"));
    assert!(error.is_about_data());
    let unit = SettledUnit {
        provider_unit_id: sold.provider_unit_id,
        ..ready(topup)
    };
    assert_eq!(
        bench.settle(&[bought(id, 1, vec![unit], false)]).await[0]
            .ready
            .len(),
        1
    );
}

/// In a provider's test mode all eSIMs have one code, so it is not among those that are unique.
#[tokio::test]
async fn esims_that_share_the_code_of_a_test_mode_are_all_delivered() {
    let bench = Bench::new().await;
    for is_fresh in [true, false, true] {
        let order = bench.placing(1).await;
        let topup = &topups(&order)[0];
        let shared = Progress::Ready(ReadyProfile {
            iccid: iccid(topup),
            profile: SealedProfile {
                code_digest: None,
                ..sealed(topup)
            },
            delivery_id: delivery_id(topup),
        });
        let purchase = bought(placement(&order), 1, vec![unit(topup, shared)], true);
        let purchase = if is_fresh {
            fresh(&order, purchase)
        } else {
            purchase
        };
        assert_eq!(bench.settle(&[purchase]).await[0].ready.len(), 1);
    }
}

#[tokio::test]
async fn an_unexpected_purchase_is_parked_and_stays_so() {
    let bench = Bench::new().await;
    for is_fresh in [false, true] {
        an_unexpected_purchase_is_parked(&bench, is_fresh).await;
    }
}

/// `is_fresh`: the placement was claimed fresh, so the lean statement tries to record the purchase
/// first.
async fn an_unexpected_purchase_is_parked(bench: &Bench, is_fresh: bool) {
    let refused = bench.placing(1).await;
    bench.settle(&[rejected(placement(&refused), 1)]).await;
    assert!(bench.refuse(&refused).await.is_some());
    let failed = bench.placing(1).await;
    bench.settle(&[rejected(placement(&failed), 1)]).await;
    let accepted = bench.placing(1).await;
    bench.settle(&[not_bought(placement(&accepted), 1)]).await;
    let superseded = bench.placing_again().await;
    let placed = bench.placing_again().await;
    bench.settle(&[bought_pending(placement(&placed), 2)]).await;
    let given_up = bench.placing_again().await;
    bench.settle(&[parked(placement(&given_up), 2)]).await;

    for (order, attempt, was) in [
        (refused, 1, "refused"),
        (failed, 1, "failed"),
        (accepted, 1, "accepted"),
        (superseded, 2, "placing"),
        (placed, 2, "placed"),
        (given_up, 2, "parked"),
    ] {
        let id = placement(&order);
        let bought = |attempt| {
            let purchase = bought(id, attempt, vec![ready(&topups(&order)[0])], true);
            if is_fresh {
                fresh(&order, purchase)
            } else {
                purchase
            }
        };
        let settled = bench.settle(&[bought(1)]).await;
        assert!(settled[0].moved && settled[0].unexpected, "{was}");
        assert!(settled[0].ready.is_empty(), "{was}");
        assert_eq!(bench.state(id).await, "parked", "{was}");
        let reason = bench.reason(&order).await;
        assert_eq!(
            reason,
            format!(
                "bought_unexpectedly: attempt 1 was bought although this placement was {was} at attempt {attempt}"
            )
        );
        // Neither a repeated outcome nor the current attempt's own success may hide it again. The
        // repeat of the outcome is told once more, because its first answer may have been lost.
        let before = bench.everything(order.order_id).await;
        let again = bench.settle(&[bought(1)]).await;
        assert!(!again[0].moved && again[0].unexpected, "{was}");
        assert_eq!(bench.everything(order.order_id).await, before, "{was}");
        for late in [
            bought(attempt.max(2)),
            unknown(id, attempt),
            not_found(id, attempt, true),
            parked(id, attempt),
        ] {
            let settled = bench.settle(&[late]).await;
            assert!(!settled[0].moved && !settled[0].unexpected, "{was}");
            assert_eq!(bench.everything(order.order_id).await, before, "{was}");
        }
    }
}

#[tokio::test]
async fn units_finish_one_by_one() {
    let bench = Bench::new().await;
    let order = bench.placing(3).await;
    let id = placement(&order);
    let units = topups(&order);
    let first = vec![
        ready(&units[0]),
        unit(&units[1], Progress::Failed("no such profile".into())),
        unit(&units[2], Progress::Pending),
    ];
    assert_eq!(
        bench.settle(&[bought(id, 1, first, false)]).await[0].ready,
        ids(&units[..1])
    );
    // Each collect gives the profiles that it has fetched delivery ids of its own.
    let second = vec![
        ready_elsewhere(&units[0]),
        ready(&units[1]),
        ready(&units[2]),
    ];
    assert_eq!(
        bench.settle(&[bought(id, 1, second, false)]).await[0].ready,
        ids(&units[2..])
    );
    let expected = [
        ("ready", "pending"),
        ("failed", "none"),
        ("ready", "pending"),
    ];
    for (topup, (unit, delivery)) in units.iter().zip(expected) {
        assert_eq!(bench.states(topup).await, (unit.into(), delivery.into()));
    }
    let reason: String = bench
        .value("SELECT reason FROM topups WHERE topup_id = $1", &units[1])
        .await;
    assert_eq!(reason, "unit_failed: no such profile");
}

#[tokio::test]
async fn a_unit_of_another_placement_is_left_alone() {
    let bench = Bench::new().await;
    let one = bench.placing(1).await;
    let other = bench.placing(1).await;
    let before = bench.everything(other.order_id).await;
    let settled = bench
        .settle(&[bought(
            placement(&one),
            1,
            vec![ready(&topups(&other)[0])],
            false,
        )])
        .await;
    assert!(settled[0].ready.is_empty());
    assert_eq!(bench.everything(other.order_id).await, before);
}

#[tokio::test]
async fn overdue_profiles_park_visibly_and_arrive_all_the_same() {
    let bench = Bench::new().await;
    let order = bench.placing(1).await;
    let id = placement(&order);
    let outcome = AttemptOutcome::Bought {
        reference: None,
        units: Vec::new(),
        listed: 0,
        collect_in: Some(Duration::from_hours(1)),
        park: Some(domain::reason::ReasonCode::ProfilesLate.into()),
        announced: false,
    };
    for _ in 0..2 {
        let settled = bench.settle(&[settlement(id, 1, outcome.clone())]).await;
        assert!(settled[0].moved && !settled[0].unexpected);
        assert_eq!(bench.state(id).await, "parked");
        assert_eq!(bench.reason(&order).await, "profiles_late");
    }
    let settled = bench
        .settle(&[bought(id, 1, vec![ready(&topups(&order)[0])], false)])
        .await;
    assert_eq!(settled[0].ready.len(), 1);
    assert_eq!(bench.state(id).await, "placed");
    assert_eq!(bench.reason(&order).await, "");
}

#[tokio::test]
async fn a_mixed_batch_is_settled_in_one_transaction() {
    let bench = Bench::new().await;
    let mut orders = Vec::new();
    for _ in 0..8 {
        orders.push(bench.placing(1).await);
    }
    let id = |index: usize| placement(&orders[index]);
    bench.settle(&[rejected(id(7), 1)]).await;
    let sold = ready(&topups(&orders[0])[0]);
    let batch = vec![
        unknown(id(3), 1),
        bought(id(0), 1, vec![sold.clone()], false),
        not_bought(id(1), 1),
        bought(id(7), 1, Vec::new(), false),
        rejected(id(2), 1),
        not_found(id(4), 1, true),
        parked(id(5), 1),
        // There is no such attempt, so it changes nothing.
        rejected(id(6), 9),
    ];
    // The last one cannot be stored, so none is.
    let mut spoiled = batch.clone();
    spoiled[7] = bought(
        id(6),
        1,
        vec![SettledUnit {
            topup_id: topups(&orders[6])[0].clone(),
            ..sold
        }],
        false,
    );
    let error = bench.try_settle(&spoiled).await.unwrap_err();
    assert!(error.constraint().is_some(), "{error}");
    for order in &orders[..7] {
        assert_eq!(bench.state(placement(order)).await, "placing");
    }

    let settled = bench.settle(&batch).await;
    let moved: Vec<bool> = settled.iter().map(|one| one.moved).collect();
    assert_eq!(moved, [true, true, true, true, true, true, true, false]);
    let unexpected: Vec<bool> = settled.iter().map(|one| one.unexpected).collect();
    assert_eq!(
        unexpected,
        [false, false, false, true, false, false, false, false]
    );
    assert_eq!(settled[1].ready, ids(&topups(&orders[0])));
    let expected = [
        "placed", "accepted", "failed", "placing", "placing", "parked", "placing", "parked",
    ];
    for (order, expected) in orders.iter().zip(expected) {
        assert_eq!(bench.state(placement(order)).await, expected);
    }
    assert!(bench.settle(&[]).await.is_empty());
}

/// If the database has lost the commit that recorded an attempt, its purchase is reported all the
/// same. It is parked, however ordinary the other purchases of the batch are.
#[tokio::test]
async fn a_purchase_of_a_lost_attempt_is_parked_beside_ordinary_ones() {
    let bench = Bench::new().await;
    for is_fresh in [false, true] {
        let ordinary = bench.placing(1).await;
        let lost = bench.placing(1).await;
        let purchase = |order: &NewOrder, attempt| {
            let units = vec![ready(&topups(order)[0])];
            let purchase = bought(placement(order), attempt, units, true);
            if is_fresh {
                fresh(order, purchase)
            } else {
                purchase
            }
        };
        let batch = [purchase(&ordinary, 1), purchase(&lost, 2)];
        let settled = bench.settle(&batch).await;
        assert_eq!((settled[0].moved, settled[0].unexpected), (true, false));
        assert_eq!((settled[1].moved, settled[1].unexpected), (true, true));
        assert!(settled[1].ready.is_empty());
        assert_eq!(bench.state(placement(&ordinary)).await, "placed");
        assert_eq!(bench.state(placement(&lost)).await, "parked");
        let reason = bench.reason(&lost).await;
        assert!(
            reason.starts_with("bought_unexpectedly: attempt 2 was bought"),
            "{reason}"
        );
    }
}

/// A batch may hold several outcomes of one placement; each of them counts.
#[tokio::test]
async fn a_batch_settles_one_placement_several_times() {
    let bench = Bench::new().await;
    for no_purchase in [rejected, not_bought] {
        let order = bench.placing(1).await;
        let id = placement(&order);
        let settled = bench
            .settle(&[no_purchase(id, 1), bought_pending(id, 1)])
            .await;
        assert_eq!((settled[0].moved, settled[0].unexpected), (true, false));
        assert_eq!((settled[1].moved, settled[1].unexpected), (true, true));
        assert_eq!(bench.state(id).await, "parked");
    }

    let order = bench.placing_again().await;
    let id = placement(&order);
    let settled = bench
        .settle(&[bought_pending(id, 2), bought_pending(id, 1)])
        .await;
    assert_eq!(
        (settled[0].unexpected, settled[1].unexpected),
        (false, true)
    );
    assert_eq!(bench.state(id).await, "parked");

    let order = bench.placing(1).await;
    let id = placement(&order);
    let topup = &topups(&order)[0];
    let waiting = bought(id, 1, vec![unit(topup, Progress::Pending)], false);
    let settled = bench
        .settle(&[
            waiting.clone(),
            bought(id, 1, vec![ready(topup)], false),
            waiting,
        ])
        .await;
    let ready: Vec<usize> = settled.iter().map(|one| one.ready.len()).collect();
    assert_eq!(ready, [0, 1, 0]);
}

#[tokio::test]
async fn a_rejection_fails_the_units_with_its_reason() {
    let bench = Bench::new().await;
    let order = bench.placing(2).await;
    bench.settle(&[rejected(placement(&order), 1)]).await;
    let reason = "rejected: 9001 it refused";
    for topup in topups(&order) {
        assert_eq!(bench.states(&topup).await, ("failed".into(), "none".into()));
        let statement = "SELECT reason FROM topups WHERE topup_id = $1";
        assert_eq!(bench.value::<String>(statement, &topup).await, reason);
    }
    assert_eq!(bench.reason(&order).await, reason);
}

/// The provider's own id of a purchase stays with the placement, and goes to look-ups and collects.
#[tokio::test]
async fn the_reference_of_a_purchase_is_kept_and_claimed() {
    let bench = Bench::new().await;
    let order = bench.placing(1).await;
    let id = placement(&order);
    let bought = |reference: Option<&str>| AttemptOutcome::Bought {
        reference: reference.map(str::to_owned),
        units: Vec::new(),
        listed: 0,
        collect_in: Some(Duration::ZERO),
        park: None,
        announced: true,
    };
    // A later response that does not name it, as one of a collect may, does not remove it.
    for reference in [Some("B1"), None] {
        let settled = bench.settle(&[settlement(id, 1, bought(reference))]).await;
        assert!(settled[0].moved && !settled[0].unexpected);
        bench.due_in(&[id], 0.0).await;
        let claimed = bench.claim_due("sandbox", 1).await;
        assert_eq!(claimed[0].reference.as_deref(), Some("B1"), "{reference:?}");
    }
}

/// A purchase that nobody expects is parked with its reference, because an operator has to find it
/// at the provider.
#[tokio::test]
async fn the_reference_of_an_unexpected_purchase_is_kept() {
    let bench = Bench::new().await;
    let order = bench.placing_again().await;
    let id = placement(&order);
    let late = AttemptOutcome::Bought {
        reference: Some("B2".to_owned()),
        units: Vec::new(),
        listed: 0,
        collect_in: None,
        park: None,
        announced: true,
    };
    let settled = bench.settle(&[settlement(id, 1, late)]).await;
    assert!(settled[0].unexpected);
    let statement = "SELECT provider_reference FROM placements WHERE placement_id::text = $1";
    let reference: String = bench.value(statement, id).await;
    assert_eq!(reference, "B2");
}

//! Orders: they are stored in batches, each external id once, and refused as a whole. A refusal and
//! a claim exclude each other, whichever comes first.

use std::time::Duration;

use desk::operator::{self, orders::OrderView};
use domain::{
    Metadata, OrderId, PartnerId, PlacementId, PlacementState, Reason, reason::ReasonCode,
};
use sqlx::Connection;
use store::orders::{self, NewOrder, NewTopup, PlacementRefusal};
use store::placements::{self, AttemptOutcome, PlacementClaim, PlacementSettlement};
use testkit::wait;

use crate::bench::{
    Bench, LEASE, PROVIDER, Told as _, bought_pending, not_bought, order, order_of, parked, part,
    placement, rejected, topup_id, topups, unknown,
};

fn named(partner_id: PartnerId, external_order_id: &str) -> NewOrder {
    NewOrder {
        external_order_id: external_order_id.to_owned(),
        ..order(partner_id, 1)
    }
}

impl Bench {
    async fn insert(&self, orders: &[NewOrder]) -> Result<Vec<bool>, pg::Error> {
        orders::insert(&mut *self.connection().await, orders).await
    }

    async fn count(&self, table: &str) -> i64 {
        let statement = format!("SELECT count(*) FROM {table}");
        sqlx::query_scalar(sqlx::AssertSqlSafe(statement))
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }

    pub async fn refuse(&self, order: &NewOrder) -> Option<Vec<PlacementRefusal>> {
        let mut connection = self.connection().await;
        orders::refuse(&mut connection, order.order_id, false)
            .await
            .unwrap()
    }

    /// The orders with this id, as operators find them.
    async fn found(&self, id: &str) -> Vec<OrderView> {
        let mut connection = self.connection().await;
        operator::orders::find(&mut connection, id)
            .await
            .told(&mut connection)
            .await
    }

    /// Whether an order with this id stands, decided or not.
    async fn stands(&self, partner: PartnerId, id: &str) -> bool {
        let mut connection = self.connection().await;
        let status = orders::status(&mut connection, partner, id).await;
        status.unwrap().is_some()
    }
}

/// What a partner keeps with an order is stored with it, in whichever batch it is, and that of an
/// order whose id is taken changes nothing.
#[tokio::test]
async fn metadata_is_stored_with_its_order_only() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let kept = |text: &str| Metadata::read(&format!(r#"{{"ticket":"{text}"}}"#)).unwrap();
    let with = |id: &str, text: Option<&str>| {
        let mut order = named(partner, id);
        order.metadata = text.map(kept);
        order.placements[0].topups[0].metadata = text.map(|text| kept(&format!("item {text}")));
        order
    };
    let mut connection = bench.connection().await;
    let plain = with("plain", None);
    let first = with("first", Some("1"));
    let stored = bench.insert(&[plain.clone(), first.clone()]).await;
    assert_eq!(stored.unwrap(), [true, true]);
    let taken = with("first", Some("other"));
    let second = with("second", Some("2"));
    let counted = orders::insert_limited(&mut connection, &[taken, second.clone()]).await;
    let of = |stored: &[bool]| -> Vec<orders::Inserted> {
        stored
            .iter()
            .map(|one| orders::Inserted::of(*one))
            .collect()
    };
    assert_eq!(counted.unwrap(), of(&[false, true]));
    for order in [&plain, &first, &second] {
        let ordered = orders::units(&mut connection, order.order_id)
            .await
            .unwrap();
        assert_eq!(ordered.metadata, order.metadata);
        let unit = &order.placements[0].topups[0];
        assert_eq!(ordered.units[0].metadata, unit.metadata);
        assert!(!ordered.is_erased);
    }
    // An order without it is written once: no later statement has touched its row.
    let statement = "SELECT cmin::text FROM orders WHERE external_order_id = 'plain'";
    let command: String = sqlx::query_scalar(statement)
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    assert_eq!(command, "0");
}

#[tokio::test]
async fn an_order_is_stored_with_its_units_in_the_order_of_the_answer() {
    let bench = Bench::new().await;
    let new = NewOrder {
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        ..order_of(vec![part("one", &[2, 0]), part("other", &[3, 1])])
    };
    let new = bench.stored(new).await;
    let found = bench.found(&new.order_id.to_string().to_uppercase()).await;
    let [found] = &found[..] else {
        panic!("{} orders", found.len())
    };
    assert_eq!(
        (&found.external_order_id, &found.traceparent, found.refused),
        (&new.external_order_id, &new.traceparent, false)
    );
    let mut units: Vec<_> = new
        .placements
        .iter()
        .flat_map(|part| part.topups.iter().map(move |topup| (part, topup)))
        .collect();
    units.sort_by_key(|(_, topup)| topup.position);
    assert_eq!(found.topups.len(), 4);
    for (stored, (part, topup)) in found.topups.iter().zip(units) {
        assert_eq!(stored.topup_id, topup.topup_id.as_str());
        assert_eq!(stored.agreed, topup.agreed);
        assert_eq!(stored.placement_id, part.placement_id.uuid());
        assert_eq!(stored.state.as_str(), "pending");
    }
    for part in &found.placements {
        assert_eq!((part.state.as_str(), part.attempt), ("accepted", 0));
        assert_eq!(part.due_at, None, "its first lease is no due row");
    }
}

#[tokio::test]
async fn a_batch_stores_each_external_id_of_a_partner_once() {
    let bench = Bench::new().await;
    let one = PartnerId::new();
    let other = PartnerId::new();
    let batch = [
        named(one, "b"),
        named(one, "a"),
        named(other, "a"),
        named(one, "a"),
        named(one, "a"),
    ];
    let stored = bench.insert(&batch).await.unwrap();
    assert_eq!((stored[0], stored[2]), (true, true));
    assert_eq!(
        [1, 3, 4].into_iter().filter(|index| stored[*index]).count(),
        1,
        "{stored:?}"
    );
    // No part of a rejected order is stored.
    for table in ["orders", "placements", "topups"] {
        assert_eq!(bench.count(table).await, 3, "{table}");
    }
    for (order, stored) in batch.iter().zip(stored) {
        let rows = bench.everything(order.order_id).await;
        assert_eq!(rows.iter().flatten().count(), if stored { 3 } else { 0 });
    }
    assert_eq!(bench.insert(&batch).await.unwrap(), [false; 5]);
    assert!(bench.insert(&[]).await.unwrap().is_empty());
}

#[tokio::test]
async fn two_replicas_that_store_the_same_keys_never_deadlock_and_store_each_once() {
    const KEYS: usize = 200;
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let mut one = bench.connection().await;
    let mut other = bench.connection().await;
    for round in 0..25 {
        let batch = || -> Vec<NewOrder> {
            (0..KEYS)
                .map(|key| named(partner, &format!("{round}-{key}-ö")))
                .collect()
        };
        let forwards = batch();
        let mut backwards = batch();
        backwards.reverse();
        let (stored, stored_by_other) = tokio::join!(
            orders::insert(&mut one, &forwards),
            orders::insert(&mut other, &backwards)
        );
        let mut stored_by_other = stored_by_other.unwrap();
        stored_by_other.reverse();
        for (key, (one, other)) in stored.unwrap().into_iter().zip(stored_by_other).enumerate() {
            assert!(one != other, "round {round}, key {key}: {one} and {other}");
        }
    }
    assert_eq!(bench.count("orders").await, 25 * 200);
    assert_eq!(bench.count("topups").await, 25 * 200);
}

#[tokio::test]
async fn a_taken_topup_id_is_found_by_its_constraint_and_nothing_is_stored() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let first = bench.stored(order(partner, 1)).await;
    let mut second = order(partner, 2);
    second.placements[0].topups[1].topup_id = topups(&first)[0].clone();
    let error = bench
        .insert(&[order(partner, 1), second.clone()])
        .await
        .unwrap_err();
    assert_eq!(error.constraint(), Some("topups_topup_id_key"));
    assert!(error.is_about_data());
    assert_eq!(bench.count("orders").await, 1);
    second.placements[0].topups[1].topup_id = topup_id();
    bench.store(&[second]).await;
}

#[tokio::test]
async fn external_ids_are_kept_as_sent() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let long = "\u{1f4f1}".repeat(255);
    let plain = [
        "a", "A", " a", "a ", "a\n", "ß", "ss", "'", "\\", "%", "{a,b}", "NULL",
    ];
    let unusual = [
        "\u{e9}",
        "e\u{301}",
        "\u{feff}a",
        "\u{202e}a",
        "\u{1}",
        long.as_str(),
    ];
    let odd = [&plain[..], &unusual].concat();
    let batch: Vec<_> = odd.iter().map(|id| named(partner, id)).collect();
    bench.store(&batch).await;
    assert_eq!(bench.insert(&batch).await.unwrap(), vec![false; odd.len()]);
    for id in odd {
        assert!(
            bench
                .found(id)
                .await
                .iter()
                .all(|order| order.external_order_id == id),
            "{id:?}"
        );
        assert!(bench.stands(partner, id).await, "{id:?}");
    }
    assert!(!bench.stands(PartnerId::new(), "a").await);
}

#[tokio::test]
async fn a_nul_is_the_fault_of_its_order_alone() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let batch = [named(partner, "fine"), named(partner, "a\0b")];
    let error = bench.insert(&batch).await.unwrap_err();
    assert!(error.is_about_data(), "{error}");
    assert_eq!(bench.count("orders").await, 0);
    assert_eq!(bench.insert(&batch[..1]).await.unwrap(), [true]);
}

#[tokio::test]
async fn a_refused_order_frees_its_external_id() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    for _ in 0..2 {
        let order = bench.stored(named(partner, "again")).await;
        assert_eq!(
            bench.insert(&[named(partner, "again")]).await.unwrap(),
            [false]
        );
        assert_eq!(bench.refuse(&order).await, None, "nothing of it was tried");
        bench.claim(&[placement(&order)]).await;
        bench.settle(&[rejected(placement(&order), 1)]).await;
        assert!(bench.refuse(&order).await.is_some());
        assert!(!bench.stands(partner, "again").await);
        let found = bench.found(&order.order_id.to_string()).await.remove(0);
        assert!(found.refused);
        assert_eq!(found.placements[0].state, PlacementState::Refused);
        assert_eq!(
            found.topups[0].reason.told(),
            Some("the provider rejected it: 9001 it refused".to_owned())
        );
    }
    bench.store(&[named(partner, "again")]).await;
    assert_eq!(bench.found("again").await.len(), 3);
}

/// An order of two placements; those in `placing` have a recorded first attempt.
async fn two_placements(bench: &Bench, placing: &[usize]) -> NewOrder {
    let new = bench
        .stored(order_of(vec![part("one", &[0]), part("other", &[1])]))
        .await;
    for part in placing {
        let part = &new.placements[*part];
        bench
            .claim_as(&part.provider, &[part.placement_id], PlacementClaim::Fresh)
            .await;
    }
    new
}

/// The placements with an attempt, their outcomes, and the number of refusals if the order is
/// refused.
type Row = (
    &'static [usize],
    &'static [fn(PlacementId, u32) -> PlacementSettlement],
    Option<usize>,
);

#[tokio::test]
async fn an_order_is_refused_whole_or_not_at_all() {
    let bench = Bench::new().await;
    let rows: [Row; 9] = [
        (&[], &[], None),
        (&[0], &[rejected], Some(1)),
        (&[0], &[not_bought], Some(1)),
        (&[0, 1], &[rejected, not_bought], Some(2)),
        (&[0, 1], &[not_bought, rejected], Some(2)),
        (&[0], &[unknown], None),
        (&[0, 1], &[rejected, unknown], None),
        (&[0, 1], &[rejected, bought_pending], None),
        (&[0, 1], &[rejected, parked], None),
    ];
    for (attempted, outcomes, refused) in rows {
        let order = two_placements(&bench, attempted).await;
        for (part, outcome) in attempted.iter().zip(outcomes) {
            bench
                .settle(&[outcome(order.placements[*part].placement_id, 1)])
                .await;
        }
        let before = bench.everything(order.order_id).await;
        assert_eq!(
            bench.refuse(&order).await.as_ref().map(Vec::len),
            refused,
            "{attempted:?}"
        );
        let after = bench.everything(order.order_id).await;
        let count = |what: &str| {
            after
                .iter()
                .flatten()
                .filter(|row| row.contains(what))
                .count()
        };
        if refused.is_some() {
            assert_eq!(
                (
                    count(r#""state": "refused""#),
                    count(r#""state": "failed""#)
                ),
                (2, 2)
            );
            assert_eq!(bench.refuse(&order).await, None, "twice");
            assert_eq!(bench.find_due(PROVIDER, 10).await, []);
        } else {
            assert_eq!(after, before, "{attempted:?}");
        }
    }
    let new = order(PartnerId::new(), 1);
    assert_eq!(bench.refuse(&new).await, None, "it was never stored");
}

#[tokio::test]
async fn a_refusal_says_what_the_provider_said_and_only_while_the_order_waits() {
    let bench = Bench::new().await;
    let order = two_placements(&bench, &[0, 1]).await;
    let [one, other] = [0, 1].map(|part| order.placements[part].placement_id);
    bench
        .settle(&[rejected(one, 1), not_bought(other, 1)])
        .await;
    let late = "UPDATE orders SET answer_by = now() - interval '1 s' WHERE order_id::text = $1";
    let again = "UPDATE orders SET answer_by = now() + interval '5 s', answering = NULL WHERE order_id::text = $1";
    for statement in [late, again] {
        bench.set(statement, order.order_id).await;
        assert_eq!(
            bench.refuse(&order).await,
            None,
            "its answer has left: {statement}"
        );
    }
    bench
        .set(
            "UPDATE orders SET answering = gen_random_uuid() WHERE order_id::text = $1",
            order.order_id,
        )
        .await;
    let said = PlacementRefusal::Rejected {
        status: "9001".into(),
        message: "it refused".into(),
    };
    assert_eq!(
        bench.refuse(&order).await,
        Some(vec![said, PlacementRefusal::NotSent])
    );
}

/// What a 422 says is what was stored: a provider that was reached and was too busy, or denied us
/// access, was not unreachable.
#[tokio::test]
async fn a_refusal_says_whether_the_provider_was_reached() {
    let bench = Bench::new().await;
    let cases = [
        (ReasonCode::NotSent, PlacementRefusal::NotSent),
        (ReasonCode::ProviderBusy, PlacementRefusal::NotCarriedOut),
        (ReasonCode::AccessDenied, PlacementRefusal::NotCarriedOut),
    ];
    for (code, refusal) in cases {
        let order = two_placements(&bench, &[0, 1]).await;
        let [one, other] = [0, 1].map(|part| order.placements[part].placement_id);
        let ended = PlacementSettlement {
            outcome: AttemptOutcome::NotBought {
                retry_in: Duration::ZERO,
                reason: Reason::with(code, "HTTP 503"),
            },
            ..not_bought(other, 1)
        };
        bench.settle(&[rejected(one, 1), ended]).await;
        let refusals = bench.refuse(&order).await.unwrap();
        assert!(refusals.contains(&refusal), "{code:?}: {refusals:?}");
    }
}

#[tokio::test]
async fn an_order_is_decided_once_it_cannot_be_refused() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let status = async |order: &NewOrder| {
        let mut connection = bench.connection().await;
        orders::status(&mut connection, partner, &order.external_order_id)
            .await
            .unwrap()
    };
    let waiting = order(partner, 1);
    assert_eq!(status(&waiting).await, None);
    bench.store(std::slice::from_ref(&waiting)).await;
    let undecided = status(&waiting).await.unwrap();
    assert!(
        !undecided.decided && undecided.undecided_for > Duration::from_secs(2),
        "{undecided:?}"
    );
    bench.claim(&[placement(&waiting)]).await;
    bench
        .settle(&[bought_pending(placement(&waiting), 1)])
        .await;
    assert!(status(&waiting).await.unwrap().decided, "it is bought");
    let answered = NewOrder {
        answering: None,
        ..order(partner, 1)
    };
    assert!(
        status(&bench.stored(answered).await).await.unwrap().decided,
        "its answer waits for no verdict"
    );
}

#[tokio::test]
async fn the_answer_of_an_order_can_be_made_of_its_rows() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    // Two placements, whose units take turns in the answer.
    let two = NewOrder {
        placements: vec![part(PROVIDER, &[2, 0]), part("other", &[1, 3])],
        ..order(partner, 0)
    };
    let stored = bench.stored(two).await;
    bench.stored(order(partner, 2)).await;
    let mut connection = bench.as_role("ingress").await;
    let status = orders::status(&mut connection, partner, &stored.external_order_id).await;
    assert_eq!(status.unwrap().unwrap().order_id, Some(stored.order_id));
    let mut expected: Vec<&NewTopup> = stored
        .placements
        .iter()
        .flat_map(|placement| &placement.topups)
        .collect();
    expected.sort_unstable_by_key(|topup| topup.position);
    let units = orders::units(&mut connection, stored.order_id).await;
    let units: Vec<_> = units
        .unwrap()
        .units
        .into_iter()
        .map(|unit| (unit.topup_id, unit.option_id))
        .collect();
    let expected: Vec<_> = expected
        .into_iter()
        .map(|topup| (topup.topup_id.clone(), topup.agreed.option_id))
        .collect();
    assert_eq!(units, expected);
    let none = orders::units(&mut connection, OrderId::new()).await;
    assert!(none.unwrap().units.is_empty());
}

/// Three orders with one id: the second one asks for the first while that is refused, and the third
/// one is stored as soon as the id is free. Nothing is known of the third order, which may be
/// refused, too, so it is not "taken".
#[tokio::test]
async fn a_status_is_that_of_one_order() {
    let bench = Bench::new().await;
    let first = order(PartnerId::new(), 1);
    bench.store(std::slice::from_ref(&first)).await;
    let third = named(first.partner_id, &first.external_order_id);
    let mut other = bench.connection().await;
    let mut refusing = other.begin().await.unwrap();
    let id = first.order_id.uuid();
    for statement in [
        "UPDATE placements SET state = 'refused' WHERE order_id = $1",
        "UPDATE orders SET refused_at = now() WHERE order_id = $1",
    ] {
        let refused = sqlx::query(statement).bind(id).execute(&mut *refusing);
        assert_eq!(refused.await.unwrap().rows_affected(), 1);
    }
    let stored = orders::insert(&mut refusing, &[third]).await.unwrap();
    assert_eq!(stored, [true]);
    let asked = async {
        let mut connection = bench.connection().await;
        let external_order_id = &first.external_order_id;
        orders::status(&mut connection, first.partner_id, external_order_id)
            .await
            .unwrap()
    };
    let committed = async {
        let waits = async || Ok(bench.waits_for_a_lock().await.then_some(()));
        wait::soon("the status to wait for the refusal", waits).await;
        refusing.commit().await.unwrap();
    };
    let (status, ()) = tokio::join!(asked, committed);
    assert_eq!(status, None, "another look finds the third order");
    // It stands, but is not decided, so nobody is told that the id is taken.
    let partner = first.partner_id;
    let id = &first.external_order_id;
    assert!(bench.stands(partner, id).await);
    let mut connection = bench.connection().await;
    let taken = orders::is_taken(&mut connection, partner, id).await;
    assert!(!taken.unwrap());
}

#[tokio::test]
async fn a_refusal_and_a_claim_exclude_each_other() {
    let bench = Bench::new().await;
    for _ in 0..60 {
        let order = bench.placing(1).await;
        let named = [placement(&order)];
        bench.settle(&[not_bought(named[0], 1)]).await;
        let (refused, claimed) = tokio::join!(bench.refuse(&order), bench.claim(&named));
        let refused = refused.is_some();
        assert!(!refused || claimed.is_empty(), "refused and bought");
        let state = bench.state(named[0]).await;
        let expected = match (refused, claimed.is_empty()) {
            (true, _) => "refused",
            (false, false) => "placing",
            (false, true) => "accepted",
        };
        assert_eq!(state, expected);
    }
}

/// The attempt of a claim that is not committed yet is invisible, so only the lock of its row tells
/// the refusal about it.
#[tokio::test]
async fn a_refusal_waits_for_a_claim_that_is_under_way() {
    let bench = Bench::new().await;
    let order = bench.placing(1).await;
    let named = [placement(&order)];
    bench.settle(&[not_bought(named[0], 1)]).await;
    let mut connection = bench.connection().await;
    let mut claiming = connection.begin().await.unwrap();
    let claimed = placements::claim(
        &mut claiming,
        PROVIDER,
        &named,
        PlacementClaim::Fresh,
        LEASE,
    )
    .await
    .unwrap();
    assert_eq!(claimed[0].attempt, 2);
    let commit_once_the_refusal_waits = async {
        wait::soon("the refusal to wait for the claim", async || {
            let waits = "SELECT count(*) > 0 FROM pg_stat_activity
                         WHERE datname = current_database() AND wait_event_type = 'Lock'";
            Ok(sqlx::query_scalar::<_, bool>(waits)
                .fetch_one(&bench.pool)
                .await?
                .then_some(()))
        })
        .await;
        claiming.commit().await.unwrap();
    };
    let (refused, ()) = tokio::join!(bench.refuse(&order), commit_once_the_refusal_waits);
    assert_eq!(refused, None);
    assert_eq!(bench.state(named[0]).await, "placing");
}

#[tokio::test]
async fn what_was_bought_while_the_order_is_refused_is_never_lost() {
    let bench = Bench::new().await;
    for _ in 0..60 {
        let order = bench.placing(1).await;
        bench.settle(&[rejected(placement(&order), 1)]).await;
        let purchase = [bought_pending(placement(&order), 1)];
        let (_, settled) = tokio::join!(bench.refuse(&order), bench.settle(&purchase));
        assert!(settled[0].moved && settled[0].unexpected);
        assert_eq!(bench.state(placement(&order)).await, "parked");
    }
}

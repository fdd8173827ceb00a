//! What partners see and change themselves.

use std::time::Duration;

use domain::{OrderId, PartnerId, TopupId};
use store::{
    operator::{
        actions::Mode,
        deliveries::{Filter, replay},
    },
    orders::{self, Cancelled, NewOrder},
    partner_view::{self, OrderPage, OrderState, Position, Redelivered, UnitState},
};

use crate::bench::{
    Bench, PROVIDER, bought, bought_pending, disputed, not_bought, order, parked, part, placement, ready,
    rejected, topups, unknown,
};

/// An order whose answer has left.
fn answered(partner_id: PartnerId, units: usize) -> NewOrder {
    NewOrder {
        answer_within: Duration::ZERO,
        ..order(partner_id, units)
    }
}

impl Bench {
    async fn cancel(&self, order: &NewOrder) -> Cancelled {
        let mut connection = self.connection().await;
        orders::cancel(&mut connection, order.partner_id, &order.external_order_id)
            .await
            .unwrap()
    }

    async fn past_answer(&self, units: usize) -> NewOrder {
        let order = answered(PartnerId::new(), units);
        self.store(std::slice::from_ref(&order)).await;
        order
    }

    async fn seen(&self, order: &NewOrder) -> (OrderState, Vec<UnitState>) {
        let mut connection = self.connection().await;
        let head = partner_view::order(&mut connection, order.partner_id, &order.external_order_id)
            .await
            .unwrap()
            .unwrap();
        let units = partner_view::units(&mut connection, order.partner_id, head.order_id)
            .await
            .unwrap();
        let states = units.iter().map(|unit| unit.state).collect();
        (head.state(partner_view::count(&units)), states)
    }

    async fn redeliver(&self, partner_id: PartnerId, topup: &TopupId, interval: Duration) -> Redelivered {
        let mut connection = self.connection().await;
        partner_view::redeliver(&mut connection, partner_id, &topup.clone().into(), interval)
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn only_an_order_that_is_certainly_not_bought_is_cancelled() {
    let bench = Bench::new().await;
    // Before its answer has left, an order is refused by its own request only.
    let early = order(PartnerId::new(), 1);
    bench.store(std::slice::from_ref(&early)).await;
    assert!(matches!(bench.cancel(&early).await, Cancelled::Undecided(_)));

    let waits = bench.past_answer(2).await;
    let stranger = NewOrder {
        partner_id: PartnerId::new(),
        ..waits.clone()
    };
    assert_eq!(bench.cancel(&stranger).await, Cancelled::Unknown);
    assert_eq!(bench.cancel(&waits).await, Cancelled::Done);
    assert_eq!(bench.cancel(&waits).await, Cancelled::Unknown);
    assert_eq!(
        bench.seen(&waits).await,
        (OrderState::Cancelled, vec![UnitState::Failed; 2])
    );
    // Nothing is left to buy, by message or because it is due, and the id is free.
    let id = placement(&waits);
    bench.due_in(&[id], -1.0).await;
    assert!(bench.claim(&[id]).await.is_empty() && bench.claim_due(PROVIDER, 10).await.is_empty());
    bench
        .store(&[NewOrder {
            order_id: OrderId::new(),
            placements: vec![part(PROVIDER, &[0])],
            ..waits.clone()
        }])
        .await;

    // An attempt may have bought something until it is recorded that it has not.
    for (settlement, cancelled) in [
        (None, Cancelled::TooLate),
        (Some(unknown as fn(_, _) -> _), Cancelled::TooLate),
        (Some(bought_pending), Cancelled::TooLate),
        (Some(parked), Cancelled::TooLate),
        (Some(disputed), Cancelled::TooLate),
        (Some(not_bought), Cancelled::Done),
        (Some(rejected), Cancelled::Done),
    ] {
        let order = bench.past_answer(1).await;
        let id = placement(&order);
        assert_eq!(bench.claim(&[id]).await.len(), 1);
        if let Some(settlement) = settlement {
            bench.settle(&[settlement(id, 1)]).await;
        }
        let before = bench.everything(order.order_id).await;
        let state = bench.state(id).await;
        assert_eq!(bench.cancel(&order).await, cancelled, "{state}");
        if cancelled == Cancelled::TooLate {
            assert_eq!(bench.everything(order.order_id).await, before, "{state}");
        }
    }

    // One part that is bought keeps the others.
    let two = NewOrder {
        placements: vec![part(PROVIDER, &[0]), part("other", &[1])],
        ..answered(PartnerId::new(), 0)
    };
    bench.store(std::slice::from_ref(&two)).await;
    bench.claim(&[placement(&two)]).await;
    assert_eq!(bench.cancel(&two).await, Cancelled::TooLate);
    assert_eq!(bench.state(two.placements[1].placement_id).await, "accepted");
}

#[tokio::test]
async fn a_claim_and_a_cancellation_exclude_each_other() {
    let bench = Bench::new().await;
    let (mut bought, mut cancelled) = (0, 0);
    for _ in 0..50 {
        let order = bench.past_answer(1).await;
        let ids = [placement(&order)];
        let (claimed, cancel) = tokio::join!(bench.claim(&ids), bench.cancel(&order));
        let expected = if claimed.is_empty() {
            cancelled += 1;
            (Cancelled::Done, "refused")
        } else {
            bought += 1;
            (Cancelled::TooLate, "placing")
        };
        let state = bench.state(ids[0]).await;
        assert_eq!((cancel, state.as_str()), expected);
    }
    assert_eq!(bought + cancelled, 50);
}

#[tokio::test]
async fn units_are_shown_as_they_are() {
    let bench = Bench::new().await;
    let order = bench.past_answer(2).await;
    let id = placement(&order);
    let (one, other) = (topups(&order).remove(0), topups(&order).remove(1));
    assert_eq!(
        bench.seen(&order).await,
        (OrderState::Processing, vec![UnitState::Processing; 2])
    );
    bench.claim(&[id]).await;
    bench.settle(&[parked(id, 1)]).await;
    assert_eq!(
        bench.seen(&order).await,
        (OrderState::Processing, vec![UnitState::OnHold; 2])
    );
    let ready = vec![ready(&one), ready(&other)];
    bench.settle(&[bought(id, 1, ready, true)]).await;
    assert_eq!(
        bench.seen(&order).await,
        (OrderState::Ready, vec![UnitState::Ready; 2])
    );
    let mut connection = bench.connection().await;
    let unit = partner_view::unit(&mut connection, order.partner_id, &one)
        .await
        .unwrap()
        .unwrap();
    assert!(
        unit.profile.is_some() && unit.delivery.as_deref() == Some("pending"),
        "{unit:?}"
    );
    // Another partner does not see it.
    let stranger = PartnerId::new();
    assert!(
        partner_view::unit(&mut connection, stranger, &one)
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        partner_view::delivery(&mut connection, stranger, &one)
            .await
            .unwrap()
            .is_none()
    );
    let units = partner_view::units(&mut connection, stranger, order.order_id)
        .await
        .unwrap();
    assert!(units.is_empty());
    let page = OrderPage {
        limit: 10,
        ..OrderPage::default()
    };
    assert!(
        partner_view::orders(&mut connection, stranger, &page)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        partner_view::orders(&mut connection, order.partner_id, &page)
            .await
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test]
async fn one_redelivery_in_an_interval() {
    const MINUTE: Duration = Duration::from_mins(1);
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://example.com/hook")).await;
    let topup = bench.deliveries(partner, 1, true).await.remove(0);
    let pending = order(partner, 1);
    bench.store(std::slice::from_ref(&pending)).await;
    assert_eq!(
        bench.redeliver(partner, &topups(&pending)[0], MINUTE).await,
        Redelivered::NotReady
    );
    assert_eq!(
        bench.redeliver(PartnerId::new(), &topup, MINUTE).await,
        Redelivered::Unknown
    );
    // Its first attempt is on its way.
    assert_eq!(bench.redeliver(partner, &topup, MINUTE).await, Redelivered::Due);

    let delivered =
        "UPDATE deliveries SET state = 'delivered', attempt = 1, attempted_at = now() WHERE topup_id = $1";
    bench.set(delivered, &topup).await;
    let Redelivered::TooSoon(wait) = bench.redeliver(partner, &topup, MINUTE).await else {
        panic!("it was not too soon");
    };
    assert!(wait <= MINUTE && wait > Duration::from_secs(50), "{wait:?}");
    let earlier = "UPDATE deliveries SET attempted_at = now() - interval '2 min',
                   created_at = now() - interval '3 min' WHERE topup_id = $1";
    bench.set(earlier, &topup).await;
    assert_eq!(bench.redeliver(partner, &topup, MINUTE).await, Redelivered::Again);
    assert_eq!(bench.states(&topup).await, ("ready".into(), "pending".into()));
    assert_eq!(bench.redeliver(partner, &topup, MINUTE).await, Redelivered::Due);
    let sql = "SELECT count(*) FROM operator_actions WHERE target = 'topup ' || $1";
    let recorded: i64 = bench.value(sql, &topup).await;
    assert_eq!(recorded, 1);
}

#[tokio::test]
async fn webhooks_are_read_in_order_by_their_partner_only() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let topups = bench.deliveries(partner, 3, true).await;
    let seconds = [5_i64, 10, 10];
    for (topup, seconds) in topups.iter().zip(seconds) {
        let mut connection = bench.connection().await;
        // The same time for two of them, as one transaction gives it.
        let moving = sqlx::query(
            "UPDATE deliveries SET created_at = date_trunc('minute', now()) - make_interval(secs => $2) WHERE topup_id = $1",
        );
        let moving = moving
            .bind(topup.as_str())
            .bind(f64::from(i32::try_from(seconds).unwrap()));
        moving.execute(&mut *connection).await.unwrap();
    }
    let fresh = bench.deliveries(partner, 1, true).await.remove(0);
    let mut same = [topups[1].to_string(), topups[2].to_string()];
    same.sort();
    let expected = [same[0].clone(), same[1].clone(), topups[0].to_string()];

    let mut connection = bench.connection().await;
    let start = Position {
        at: time::OffsetDateTime::UNIX_EPOCH,
        topup_id: String::new(),
    };
    let (mut after, mut found) = (start.clone(), Vec::new());
    for limit in [1, 1, 10, 10] {
        let page = partner_view::webhooks(&mut connection, partner, &after, limit)
            .await
            .unwrap();
        if let Some(last) = page.last() {
            after = last.position.clone();
        }
        found.extend(page.into_iter().map(|one| one.topup_id.to_string()));
    }
    assert_eq!(found, expected);
    assert_ne!(
        found.last(),
        Some(&fresh.to_string()),
        "it may not be the last one yet"
    );
    let settled = "UPDATE deliveries SET created_at = created_at - interval '1 s' WHERE topup_id = $1";
    bench.set(settled, &fresh).await;
    let page = partner_view::webhooks(&mut connection, partner, &after, 10)
        .await
        .unwrap();
    assert_eq!(page.len(), 1);
    assert!(page[0].profile.is_some() && page[0].topup_id == fresh);
    let sql = "UPDATE esims SET erased_at = now() WHERE topup_id = $1";
    bench.set(sql, &fresh).await;
    let page = partner_view::webhooks(&mut connection, partner, &after, 10)
        .await
        .unwrap();
    assert!(page[0].profile.is_none());

    let stranger = bench.partner(None).await;
    let page = partner_view::webhooks(&mut connection, stranger, &start, 10)
        .await
        .unwrap();
    assert!(page.is_empty());
    let secrets = partner_view::webhook_secrets(&mut connection, partner)
        .await
        .unwrap();
    assert_eq!(secrets.len(), 1);
}

#[tokio::test]
async fn a_replay_of_one_topup_heeds_its_partner_and_time() {
    const MINUTE: Duration = Duration::from_mins(1);
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://example.com/hook")).await;
    let topup = bench.deliveries(partner, 1, true).await.remove(0);
    let delivered =
        "UPDATE deliveries SET state = 'delivered', attempt = 1, attempted_at = now() WHERE topup_id = $1";
    bench.set(delivered, &topup).await;
    let now = runtime::clock::now();
    let one = Filter {
        topup_id: Some(&topup),
        ..Filter::default()
    };
    let mine = Filter {
        partner_id: Some(partner),
        since: Some(now - MINUTE),
        until: Some(now + MINUTE),
        ..one
    };
    let earlier = Filter {
        until: Some(now - MINUTE),
        ..one
    };
    let later = Filter {
        since: Some(now + MINUTE),
        ..one
    };
    let anothers = Filter {
        partner_id: Some(PartnerId::new()),
        ..one
    };
    let mut connection = bench.connection().await;
    for (filter, expected) in [(one, 1), (mine, 1), (earlier, 0), (later, 0), (anothers, 0)] {
        let replayed = replay(&mut connection, &filter, 1, Mode::Preview).await.unwrap();
        assert_eq!(replayed.replayed, expected, "{filter:?}");
    }
}

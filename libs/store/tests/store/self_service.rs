//! What partners see and change themselves, and that they see and change nothing of other partners.

use std::time::Duration;

use accounts::partners;
use desk::operator::{self, deliveries::resend_one, looking::ListPatience, order_list};
use desk::self_service::{
    self, DeliveryPage, KeyExpiryResult, OrderPage, OrderState, PartnerUnitState, SentAgain,
    StoredWebhook, WebhookParts, WebhookPosition,
};
use domain::{
    DeliveryId, EndpointKey, KnownIccid, OrderId, PartnerId, TopupId, WebhookId, event::EventKind,
    standing,
};
use pg::actions::Mode;
use store::deliveries::events::{self, EventPage};
use store::deliveries::resends::DeliveryFilter;
use store::orders::{self, NewOrder, OrderCancellation};

use uuid::Uuid;

use crate::bench::{
    Bench, PROVIDER, Told as _, answered, bought, bought_pending, delivery_id, disputed, look,
    not_bought, order, order_of, parked, part, placement, ready, rejected, topups, unknown,
};

const MINUTE: Duration = Duration::from_mins(1);
const DELIVERED: &str = "UPDATE deliveries SET state = 'delivered', attempt = 1, attempted_at = now() WHERE topup_id = $1";

pub const LONG_AGO: &str = "UPDATE deliveries SET attempted_at = now() - interval '2 min',
                               created_at = now() - interval '3 min' WHERE topup_id = $1";

impl Bench {
    pub async fn cancel(&self, order: &NewOrder) -> OrderCancellation {
        let mut connection = self.connection().await;
        orders::cancel(
            &mut connection,
            order.partner_id,
            &order.external_order_id,
            None,
        )
        .await
        .unwrap()
    }

    async fn past_answer(&self, units: usize) -> NewOrder {
        self.stored(answered(PartnerId::new(), units)).await
    }

    async fn seen(&self, order: &NewOrder) -> (OrderState, Vec<PartnerUnitState>) {
        let partner = order.partner_id;
        let id = &order.external_order_id;
        let mut connection = self.connection().await;
        let head = self_service::order(&mut connection, partner, id, None)
            .await
            .told(&mut connection)
            .await
            .unwrap();
        let units = self_service::units(&mut connection, partner, head.order_id)
            .await
            .told(&mut connection)
            .await;
        let states = units.iter().map(|unit| unit.state).collect();
        (head.state(self_service::count(&units)), states)
    }

    pub async fn redeliver(&self, partner: PartnerId, topup: &TopupId) -> SentAgain {
        let mut connection = self.connection().await;
        self_service::send_again(
            &mut connection,
            partner,
            &topup.clone().into(),
            None,
            MINUTE,
        )
        .await
        .unwrap()
    }

    async fn webhooks(
        &self,
        partner: PartnerId,
        after: &WebhookPosition,
        limit: i64,
    ) -> Vec<StoredWebhook> {
        let mut connection = self.connection().await;
        self_service::webhooks(&mut connection, partner, after, limit)
            .await
            .told(&mut connection)
            .await
    }
}

#[tokio::test]
async fn only_an_order_that_is_certainly_not_bought_is_cancelled() {
    let bench = Bench::new().await;
    // Before its answer has left, an order is refused by its own request only.
    let early = bench.stored(order(PartnerId::new(), 1)).await;
    let OrderCancellation::Undecided { order_id, rest } = bench.cancel(&early).await else {
        panic!("it may not be answered yet");
    };
    assert_eq!(order_id, early.order_id);
    assert!(
        rest > Duration::from_secs(3) && rest <= Duration::from_secs(5),
        "{rest:?}"
    );
    // That the answer of another order has left says nothing about this one.
    let id = &early.external_order_id;
    let mut connection = bench.connection().await;
    for (answered, done) in [(OrderId::new(), false), (early.order_id, true)] {
        let cancelled = orders::cancel(&mut connection, early.partner_id, id, Some(answered)).await;
        assert_eq!(
            cancelled.unwrap() == OrderCancellation::Done(order_id),
            done
        );
        if done {
            let (before, after) = bench.changed().await;
            assert_eq!(
                (&before["cancelled"], &after["cancelled"]),
                (&false.into(), &true.into())
            );
        }
    }
    drop(connection);

    let waits = bench.past_answer(2).await;
    let stranger = NewOrder {
        partner_id: PartnerId::new(),
        ..waits.clone()
    };
    assert_eq!(bench.cancel(&stranger).await, OrderCancellation::Unknown);
    let waiting = waits.order_id;
    assert_eq!(bench.cancel(&waits).await, OrderCancellation::Done(waiting));
    assert_eq!(
        bench.cancel(&waits).await,
        OrderCancellation::Before(waiting)
    );
    assert_eq!(
        bench.seen(&waits).await,
        (OrderState::Cancelled, vec![PartnerUnitState::Failed; 2])
    );
    // Nothing is left to buy, by message or because it is due, and the id is free.
    let id = placement(&waits);
    bench.due_in(&[id], -1.0).await;
    assert!(bench.claim(&[id]).await.is_empty() && bench.claim_due(PROVIDER, 10).await.is_empty());
    let again = NewOrder {
        order_id: OrderId::new(),
        placements: vec![part(PROVIDER, &[0])],
        ..waits.clone()
    };
    bench.store(&[again]).await;

    // An attempt may have bought something until it is recorded that it has not.
    for (settlement, is_cancelled) in [
        (None, false),
        (Some(unknown as fn(_, _) -> _), false),
        (Some(bought_pending), false),
        (Some(parked), false),
        (Some(disputed), false),
        (Some(not_bought), true),
        (Some(rejected), true),
    ] {
        let order = bench.past_answer(1).await;
        let id = placement(&order);
        assert_eq!(bench.claim(&[id]).await.len(), 1);
        if let Some(settlement) = settlement {
            bench.settle(&[settlement(id, 1)]).await;
        }
        let before = bench.everything(order.order_id).await;
        let state = bench.state(id).await;
        let cancelled = bench.cancel(&order).await;
        if is_cancelled {
            assert_eq!(
                cancelled,
                OrderCancellation::Done(order.order_id),
                "{state}"
            );
        } else {
            assert_eq!(cancelled, OrderCancellation::TooLate, "{state}");
            assert_eq!(bench.everything(order.order_id).await, before, "{state}");
        }
    }

    // One part that is bought keeps the others.
    let two = NewOrder {
        placements: vec![part(PROVIDER, &[0]), part("other", &[1])],
        ..answered(PartnerId::new(), 0)
    };
    let two = bench.stored(two).await;
    bench.claim(&[placement(&two)]).await;
    assert_eq!(bench.cancel(&two).await, OrderCancellation::TooLate);
    assert_eq!(
        bench.state(two.placements[1].placement_id).await,
        "accepted"
    );
}

#[tokio::test]
async fn a_claim_and_a_cancellation_exclude_each_other() {
    let bench = Bench::new().await;
    let mut bought = 0;
    let mut cancelled = 0;
    for _ in 0..50 {
        let order = bench.past_answer(1).await;
        let ids = [placement(&order)];
        let (claimed, cancel) = tokio::join!(bench.claim(&ids), bench.cancel(&order));
        let expected = if claimed.is_empty() {
            cancelled += 1;
            (OrderCancellation::Done(order.order_id), "refused")
        } else {
            bought += 1;
            (OrderCancellation::TooLate, "placing")
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
    let all = |order, unit| (order, vec![unit; 2]);
    let seen = bench.seen(&order).await;
    assert_eq!(
        seen,
        all(OrderState::Processing, PartnerUnitState::Processing)
    );
    bench.claim(&[id]).await;
    bench.settle(&[parked(id, 1)]).await;
    let seen = bench.seen(&order).await;
    assert_eq!(seen, all(OrderState::Processing, PartnerUnitState::OnHold));
    let units = topups(&order);
    bench
        .settle(&[bought(id, 1, units.iter().map(ready).collect(), true)])
        .await;
    let seen = bench.seen(&order).await;
    assert_eq!(seen, all(OrderState::Ready, PartnerUnitState::Ready));
    let mut connection = bench.connection().await;
    let unit = self_service::unit(&mut connection, order.partner_id, &units[0])
        .await
        .told(&mut connection)
        .await
        .unwrap();
    assert!(unit.profile.is_some(), "{unit:?}");
    assert_eq!(unit.delivery.as_str(), Some("pending"));
    // Another partner does not see it.
    let page = OrderPage {
        limit: 10,
        ..OrderPage::default()
    };
    for (partner, seen) in [(order.partner_id, true), (PartnerId::new(), false)] {
        assert_eq!(
            self_service::unit(&mut connection, partner, &units[0])
                .await
                .told(&mut connection)
                .await
                .is_some(),
            seen
        );
        let delivery = self_service::delivery(&mut connection, partner, &units[0])
            .await
            .told(&mut connection)
            .await;
        assert_eq!(delivery.is_some(), seen);
        let found = self_service::units(&mut connection, partner, order.order_id)
            .await
            .told(&mut connection)
            .await;
        assert_eq!(found.len(), if seen { 2 } else { 0 });
        let orders = self_service::orders(&mut connection, partner, &page)
            .await
            .told(&mut connection)
            .await;
        assert_eq!(orders.len(), usize::from(seen));
    }
}

/// Both requests have seen that the webhook can be sent again. One of them sends it, and the other
/// one gets the answer of a repeat.
#[tokio::test]
async fn of_two_redeliveries_at_once_one_sends_and_the_other_one_repeats() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    let topup = bench.deliveries(partner, 1, true).await.remove(0);
    bench.set(DELIVERED, &topup).await;
    bench.set(LONG_AGO, &topup).await;
    let mut blocker = bench.connection().await;
    let mut blocking = sqlx::Connection::begin(&mut *blocker).await.unwrap();
    sqlx::query("SELECT FROM deliveries FOR UPDATE")
        .execute(&mut *blocking)
        .await
        .unwrap();
    let unblock = async {
        testkit::wait::soon("both requests to wait", async || {
            let waiting: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock'",
            )
            .fetch_one(&bench.pool)
            .await?;
            Ok((waiting == 2).then_some(()))
        })
        .await;
        blocking.commit().await.unwrap();
    };
    let (one, other, ()) = tokio::join!(
        bench.redeliver(partner, &topup),
        bench.redeliver(partner, &topup),
        unblock
    );
    let mut both = [one, other];
    both.sort_by_key(|answer| *answer == SentAgain::Due);
    assert_eq!(both, [SentAgain::Again, SentAgain::Due]);
    // A third one, right afterwards.
    assert_eq!(bench.redeliver(partner, &topup).await, SentAgain::Due);
}

#[tokio::test]
async fn one_redelivery_in_an_interval() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://example.com/hook")).await;
    let topup = bench.deliveries(partner, 1, true).await.remove(0);
    let pending = topups(&bench.stored(order(partner, 1)).await).remove(0);
    for (partner, topup, expected) in [
        (partner, &pending, SentAgain::NotReady),
        (PartnerId::new(), &topup, SentAgain::Unknown),
        // Its first attempt is on its way.
        (partner, &topup, SentAgain::Due),
    ] {
        assert_eq!(bench.redeliver(partner, topup).await, expected);
    }

    bench.set(DELIVERED, &topup).await;
    let SentAgain::TooSoon(wait) = bench.redeliver(partner, &topup).await else {
        panic!("it was not too soon");
    };
    assert!(wait <= MINUTE && wait > Duration::from_secs(50), "{wait:?}");
    bench.set(LONG_AGO, &topup).await;
    assert_eq!(bench.redeliver(partner, &topup).await, SentAgain::Again);
    assert_eq!(
        bench.states(&topup).await,
        ("ready".into(), "pending".into())
    );
    assert_eq!(bench.redeliver(partner, &topup).await, SentAgain::Due);
    let sql = "SELECT count(*) FROM operator_actions WHERE target = 'topup ' || $1";
    let recorded: i64 = bench.value(sql, &topup).await;
    assert_eq!(recorded, 1);
}

/// A rejected unit is not told as failed while its order may still get its 422: the partner would
/// refund its customer, and then learn that nothing was ordered.
#[tokio::test]
async fn what_may_still_be_refused_is_told_to_nobody_as_failed() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let told = async |order: &NewOrder| {
        let mut connection = bench.connection().await;
        let (state, units) = bench.seen(order).await;
        let page = OrderPage {
            limit: 1,
            ..OrderPage::default()
        };
        let mut listed = self_service::orders(&mut connection, partner, &page)
            .await
            .told(&mut connection)
            .await;
        let (head, counted, _) = listed.remove(0);
        assert_eq!(head.state(counted), state);
        let all = order_list::OrderFilter {
            partner_id: Some(partner),
            ..order_list::OrderFilter::default()
        };
        let page = order_list::list(&mut connection, &all, None, 1, ListPatience::Whole)
            .await
            .told(&mut connection)
            .await;
        assert_eq!(page.orders[0].state, state);
        let mut found = operator::orders::find(&mut connection, &order.external_order_id)
            .await
            .told(&mut connection)
            .await;
        let pages = found.remove(0).topups;
        let failed = |unit: &PartnerUnitState| *unit == PartnerUnitState::Failed;
        let shown: Vec<bool> = pages
            .iter()
            .map(|unit| unit.state == standing::UnitState::Failed)
            .collect();
        assert_eq!(shown, units.iter().map(failed).collect::<Vec<_>>());
        let alone = self_service::unit(&mut connection, partner, &topups(order)[0])
            .await
            .told(&mut connection)
            .await;
        assert_eq!(alone.unwrap().state, units[0]);
        (state, units[0])
    };
    for ends in [
        "refused",
        "UPDATE orders SET answer_by = now() - interval '1 s' WHERE order_id::text = $1",
        "UPDATE orders SET answering = NULL WHERE order_id::text = $1",
    ] {
        let order = bench.stored(order(partner, 1)).await;
        bench.claim(&[placement(&order)]).await;
        bench.settle(&[rejected(placement(&order), 1)]).await;
        let processing = (OrderState::Processing, PartnerUnitState::Processing);
        assert_eq!(told(&order).await, processing, "{ends}");
        let state = if ends == "refused" {
            assert!(bench.refuse(&order).await.is_some());
            OrderState::Refused
        } else {
            bench.set(ends, order.order_id).await;
            OrderState::Failed
        };
        assert_eq!(
            told(&order).await,
            (state, PartnerUnitState::Failed),
            "{ends}"
        );
    }
    // What is bought of an order keeps it from being refused, so the rest of it has failed at once.
    let partly = NewOrder {
        partner_id: partner,
        ..order_of(vec![part(PROVIDER, &[0]), part("other", &[1])])
    };
    let partly = bench.stored(partly).await;
    let [rejects, buys] = [0, 1].map(|nth| partly.placements[nth].placement_id);
    bench.claim(&[rejects, buys]).await;
    bench.settle(&[rejected(rejects, 1)]).await;
    let processing = (OrderState::Processing, PartnerUnitState::Processing);
    assert_eq!(told(&partly).await, processing);
    bench.settle(&[bought_pending(buys, 1)]).await;
    let some = (OrderState::Processing, PartnerUnitState::Failed);
    assert_eq!(told(&partly).await, some);
}

/// The event of a failed unit is stored before it is clear whether the order gets its 422. Until
/// then, and if it does, there is nothing to show.
#[tokio::test]
async fn an_event_of_an_order_that_may_be_refused_is_not_shown() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://example.com/hook")).await;
    bench
        .sql("UPDATE partner_endpoints SET events = '{topup.ready,topup.failed}'")
        .await;
    let shown = async || {
        let mut connection = bench.connection().await;
        let page = EventPage {
            before: None,
            limit: 10,
        };
        let events = events::list(&mut connection, partner, &page).await.unwrap();
        let pages = DeliveryPage {
            limit: 10,
            ..DeliveryPage::default()
        };
        let all = self_service::deliveries(&mut connection, partner, &pages)
            .await
            .told(&mut connection)
            .await;
        let all: Vec<_> = all.0.iter().map(|one| one.delivery_id).collect();
        let events: Vec<_> = events.iter().map(|one| one.delivery_id).collect();
        assert_eq!(events, all);
        events
    };
    let ids = async || {
        let ids = sqlx::query_scalar("SELECT delivery_id FROM deliveries ORDER BY created_at");
        ids.fetch_all(&bench.pool).await.unwrap() as Vec<Uuid>
    };
    let refused = bench.stored(order(partner, 1)).await;
    bench.claim(&[placement(&refused)]).await;
    bench.settle(&[rejected(placement(&refused), 1)]).await;
    let id = DeliveryId::from(ids().await[0]);
    let webhook_id = WebhookId::Event(id);
    let mut connection = bench.connection().await;
    for refuses in [false, true] {
        if refuses {
            assert!(bench.refuse(&refused).await.is_some());
        }
        assert!(shown().await.is_empty(), "{refuses}");
        let found = events::find(&mut connection, Some(partner), id).await;
        assert!(found.unwrap().is_none(), "{refuses}");
        let again =
            self_service::send_again(&mut connection, partner, &webhook_id, None, MINUTE).await;
        assert_eq!(again.unwrap(), SentAgain::Unknown, "{refuses}");
    }
    // An operator sees it, and so does the partner once the order is answered with 201.
    let found = events::find(&mut connection, None, id).await;
    assert!(found.unwrap().is_some());
    let failed = bench.stored(answered(partner, 1)).await;
    bench.claim(&[placement(&failed)]).await;
    bench.settle(&[rejected(placement(&failed), 1)]).await;
    assert_eq!(shown().await, [DeliveryId::from(ids().await[1])]);
}

#[tokio::test]
async fn webhooks_are_read_in_order_by_their_partner_only() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let topups = bench.deliveries(partner, 3, true).await;
    // The same time for two of them, as one transaction gives it.
    for (topup, seconds) in topups.iter().zip([5, 10, 10]) {
        let moved = format!(
            "UPDATE deliveries SET created_at = date_trunc('minute', now()) - interval '{seconds} s' WHERE topup_id = '{topup}'"
        );
        bench.sql(&moved).await;
    }
    let fresh = bench.deliveries(partner, 1, true).await.remove(0);
    let mut same = [topups[1].to_string(), topups[2].to_string()];
    same.sort();
    let expected = [same[0].clone(), same[1].clone(), topups[0].to_string()];

    let start = WebhookPosition {
        at: time::OffsetDateTime::UNIX_EPOCH,
        webhook_id: String::new(),
    };
    let mut after = start.clone();
    let mut found = Vec::new();
    for limit in [1, 1, 10, 10] {
        let page = bench.webhooks(partner, &after, limit).await;
        if let Some(last) = page.last() {
            after = last.position.clone();
        }
        found.extend(page.into_iter().map(|one| one.id.to_string()));
    }
    // The fresh one may not be the last one yet.
    assert_eq!(found, expected);
    let settled =
        "UPDATE deliveries SET created_at = created_at - interval '1 s' WHERE topup_id = $1";
    bench.set(settled, &fresh).await;
    let page = bench.webhooks(partner, &after, 10).await;
    assert_eq!(page.len(), 1);
    assert!(page[0].content.is_some() && page[0].id == fresh.clone().into());
    bench
        .set(
            "UPDATE esims SET erased_at = now() WHERE topup_id = $1",
            &fresh,
        )
        .await;
    assert!(
        bench.webhooks(partner, &after, 10).await[0]
            .content
            .is_none()
    );

    let stranger = bench.partner(None).await;
    assert!(bench.webhooks(stranger, &start, 10).await.is_empty());
    let first = EndpointKey::first(partner);
    let secrets = partners::endpoints::secrets(&mut *bench.connection().await, first).await;
    assert_eq!(secrets.unwrap().len(), 1);
}

#[tokio::test]
async fn events_are_read_with_the_webhooks_once_they_are_true() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    bench
        .set_events(partner, &[EventKind::TopupFailed, EventKind::KeyExpiring])
        .await;
    let failed = bench
        .stored(NewOrder {
            answer_within: MINUTE,
            ..order(partner, 1)
        })
        .await;
    bench.claim(&[placement(&failed)]).await;
    bench.settle(&[rejected(placement(&failed), 1)]).await;
    let made = async |interval| {
        self_service::expire_keys(&mut *bench.connection().await, partner, interval)
            .await
            .unwrap()
    };
    let KeyExpiryResult::Due(expiring) = made(MINUTE).await else {
        panic!("it was not made");
    };
    assert!(matches!(made(MINUTE).await, KeyExpiryResult::TooSoon(left) if left <= MINUTE));
    let settled = "UPDATE deliveries SET created_at = created_at - interval '2 s'
                   WHERE partner_id::text = $1";
    bench.set(settled, partner).await;
    let start = WebhookPosition {
        at: time::OffsetDateTime::UNIX_EPOCH,
        webhook_id: String::new(),
    };
    // The order may still get a 422, and then its topup has not failed.
    assert!(bench.webhooks(partner, &start, 10).await.is_empty());
    let answered = "UPDATE orders SET answer_by = now() WHERE partner_id::text = $1";
    bench.set(answered, partner).await;
    let page = bench.webhooks(partner, &start, 10).await;
    let kinds: Vec<_> = page.iter().map(kind).collect();
    assert_eq!(kinds, [Some("topup.failed"), Some("key.expiring")]);
    assert_eq!(page[1].id, WebhookId::Event(expiring));
    let rest = bench.webhooks(partner, &page[0].position, 10).await;
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].id, page[1].id);

    // What is no longer wanted, or not true, has a place in the list and no content.
    bench.set_events(partner, &[EventKind::TopupFailed]).await;
    let revived = "UPDATE topups SET state = 'pending' WHERE topup_id = $1";
    bench.set(revived, &topups(&failed)[0]).await;
    let page = bench.webhooks(partner, &start, 10).await;
    assert!(page.len() == 2 && page.iter().all(|one| one.content.is_none()));
    assert_eq!(made(Duration::ZERO).await, KeyExpiryResult::Unwanted);
    let stranger = bench.partner(None).await;
    assert!(bench.webhooks(stranger, &start, 10).await.is_empty());
}

/// A commit hangs, because a standby is away. Nobody who listens meanwhile passes its event.
#[tokio::test]
async fn a_webhook_whose_commit_hangs_is_passed_by_nobody() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let start = WebhookPosition {
        at: time::OffsetDateTime::UNIX_EPOCH,
        webhook_id: String::new(),
    };
    let age = "UPDATE deliveries SET created_at = created_at - interval '2 s' WHERE topup_id = $1";
    let early = bench.deliveries(partner, 1, true).await.remove(0);
    bench.set(age, &early).await;
    bench.set(age, &early).await;
    let mut connection = bench.connection().await;
    let mut hanging = sqlx::Connection::begin(&mut *connection).await.unwrap();
    let expiring = "INSERT INTO deliveries (delivery_id, partner_id, kind, created_at, credential, ends_at)
                    VALUES (gen_random_uuid(), $1, 'key.expiring', now() - interval '3 s', 'key', now())";
    let expiring = sqlx::query(expiring).bind(partner.uuid());
    expiring.execute(&mut *hanging).await.unwrap();
    // One that begins later commits first.
    let late = bench.deliveries(partner, 1, true).await.remove(0);
    bench.set(age, &late).await;
    let before = bench.webhooks(partner, &start, 10).await;
    let ids: Vec<_> = before.iter().map(|one| one.id.clone()).collect();
    assert_eq!(ids, [early.into()]);
    hanging.commit().await.unwrap();
    let after = bench.webhooks(partner, &before[0].position, 10).await;
    assert_eq!(after.len(), 2);
    assert!(matches!(after[0].id, WebhookId::Event(_)));
    assert_eq!(after[1].id, late.into());
}

/// A notifier drops what is no longer wanted; the limit of made events outlives that.
#[tokio::test]
async fn turning_an_event_off_and_on_makes_no_room_for_events() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("http://127.0.0.1:9/")).await;
    let make = async || {
        self_service::expire_keys(&mut *bench.connection().await, partner, MINUTE)
            .await
            .unwrap()
    };
    bench.set_events(partner, &[EventKind::KeyExpiring]).await;
    assert!(matches!(make().await, KeyExpiryResult::Due(_)));
    bench.set_events(partner, &[]).await;
    let looked = bench.claim_due_deliveries(&look(10, 10)).await;
    assert!(looked.is_empty(), "{looked:?}");
    let left: i64 = bench
        .value(
            "SELECT count(*) FROM work WHERE partner_id::text = $1",
            partner,
        )
        .await;
    assert_eq!(left, 0);
    bench.set_events(partner, &[EventKind::KeyExpiring]).await;
    let again = make().await;
    assert!(matches!(again, KeyExpiryResult::TooSoon(_)), "{again:?}");
}

#[tokio::test]
async fn only_a_sandbox_account_makes_events() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    bench.set_events(partner, &[EventKind::KeyExpiring]).await;
    let live = "UPDATE partners SET environment = 'live' WHERE partner_id::text = $1";
    bench.set(live, partner).await;
    let made = self_service::expire_keys(&mut *bench.connection().await, partner, MINUTE).await;
    assert_eq!(made.unwrap(), KeyExpiryResult::Unwanted);
}

/// The kind of an event.
fn kind(webhook: &StoredWebhook) -> Option<&'static str> {
    match webhook.content.as_ref()? {
        WebhookParts::Event(event) => Some(event.subject.name()),
        WebhookParts::Esim { .. } => None,
    }
}

#[tokio::test]
async fn a_replay_of_one_topup_heeds_its_partner_and_time() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://example.com/hook")).await;
    let topup = bench.deliveries(partner, 1, true).await.remove(0);
    bench.set(DELIVERED, &topup).await;
    let now = runtime::clock::now();
    let one = DeliveryFilter::default();
    let mine = DeliveryFilter {
        partner_id: Some(partner),
        since: Some(now - MINUTE),
        until: Some(now + MINUTE),
        ..one
    };
    let earlier = DeliveryFilter {
        until: Some(now - MINUTE),
        ..one
    };
    let later = DeliveryFilter {
        since: Some(now + MINUTE),
        ..one
    };
    let anothers = DeliveryFilter {
        partner_id: Some(PartnerId::new()),
        ..one
    };
    let mut connection = bench.connection().await;
    for (filter, expected) in [(one, 1), (mine, 1), (earlier, 0), (later, 0), (anothers, 0)] {
        let id = delivery_id(&topup);
        let resent = resend_one(&mut connection, id, &filter, Mode::Preview)
            .await
            .unwrap();
        assert_eq!(resent.resent, expected, "{filter:?}");
    }
}

#[tokio::test]
async fn units_are_found_by_the_number_of_their_esim() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let stored = bench.stored(answered(partner, 3)).await;
    let stranger = bench.stored(answered(PartnerId::new(), 1)).await;
    for one in [&stored, &stranger] {
        bench.claim(&[placement(one)]).await;
        let units = topups(one).iter().map(ready).collect();
        let settled = bought(placement(one), 1, units, true);
        bench.settle(&[settled]).await;
    }
    let [with, without, other] = [
        "89014103211118510720",
        "8901410321111851073",
        "89014103211118519990",
    ];
    let mine = topups(&stored);
    let theirs = &topups(&stranger)[0];
    for (topup, number) in mine.iter().zip([with, without, other]) {
        let set = format!("UPDATE esims SET iccid = '{number}' WHERE topup_id = $1");
        bench.sql(&set.replace("$1", &format!("'{topup}'"))).await;
    }
    bench
        .sql(&format!(
            "UPDATE esims SET iccid = '{with}' WHERE topup_id = '{theirs}'"
        ))
        .await;
    let mut connection = bench.as_role("ingress").await;
    let mut found = async |partner: PartnerId, text: &str| {
        let known = KnownIccid::parse(text).unwrap();
        let units = self_service::units_with_iccid(&mut connection, partner, &known).await;
        let units = units.told(&mut connection).await;
        let ids = units.into_iter().map(|unit| unit.topup_id);
        ids.collect::<Vec<TopupId>>()
    };
    for (text, nth) in [
        (with, 0),
        ("8901 4103-2111 1851 0720", 0),
        ("8901410321111851072", 0),
        (without, 1),
        ("89014103211118510738", 1),
        (other, 2),
        ("519 990", 2),
        ("510720", 0),
        ("851073", 1),
    ] {
        assert_eq!(found(partner, text).await, [mine[nth].clone()], "{text}");
    }
    for text in ["89014103211118510721", "851999", "890141"] {
        assert!(found(partner, text).await.is_empty(), "{text}");
    }
    let of_stranger = found(stranger.partner_id, with).await;
    assert_eq!(of_stranger, std::slice::from_ref(theirs));
    assert_eq!(found(stranger.partner_id, "510720").await, of_stranger);
    assert!(found(PartnerId::new(), with).await.is_empty());
}

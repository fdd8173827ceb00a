//! Events other than the specified webhook: each one is created once, is sent like any delivery,
//! and is deleted when it becomes pointless. [`urls`] has the moves of waiting deliveries to a new
//! URL.

mod urls;

use std::time::Duration;

use accounts::partners::{self, Overlap, RotationResult, endpoints::EndpointUpdate};
use desk::operator::deliveries::resend_one;
use desk::self_service::{self, SentAgain};
use domain::{DeliveryId, EndpointKey, PartnerId, WebhookId, event::EventKind};
use pg::actions::{self, Mode, RecordedAction};
use signing::SecretKey;
use store::deliveries::endpoints;
use store::deliveries::events::{self, EndpointTestResult, Subject};
use store::deliveries::resends::{DeliveryFilter, ResentCounts};
use store::deliveries::{self, AttemptResult, ClaimedDelivery, DeliveryContent, EndedAttempt};
use store::orders::NewOrder;

use crate::bench::{Bench, VAULT, ids, look, order, placement, rejected, topups};
use crate::deliveries::{attempted, failure};

/// An operator revives a topup; it fails again.
const REVIVE: &str = "UPDATE topups SET state = 'pending' WHERE topup_id = $1";
const FAIL: &str = "UPDATE topups SET state = 'failed' WHERE topup_id = $1";
const URL: &str = "https://partner.example/hook";
const HOUR: Duration = Duration::from_hours(1);
const MINUTE: Duration = Duration::from_mins(1);

impl Bench {
    /// A partner that asked for these events.
    async fn listener(&self, kinds: &[EventKind]) -> PartnerId {
        let partner = self.partner(Some(URL)).await;
        self.set_events(partner, kinds).await;
        partner
    }

    /// An order whose purchase was rejected.
    async fn failed_order(
        &self,
        partner: PartnerId,
        answer_within: Duration,
        units: usize,
    ) -> NewOrder {
        let failed = self
            .stored(NewOrder {
                answer_within,
                ..order(partner, units)
            })
            .await;
        self.claim(&[placement(&failed)]).await;
        assert!(self.settle(&[rejected(placement(&failed), 1)]).await[0].moved);
        failed
    }

    pub async fn all_due(&self) -> Vec<ClaimedDelivery> {
        self.claim_due_deliveries(&look(100, 100)).await
    }

    /// The numbers of events of a partner, and of those with work.
    async fn events_of(&self, partner: PartnerId) -> (i64, i64) {
        let events =
            "SELECT count(*) FROM deliveries WHERE kind <> 'topup.ready' AND partner_id::text = $1";
        let due = "SELECT count(*) FROM work JOIN deliveries d ON d.delivery_id = work.id
                   WHERE d.kind <> 'topup.ready' AND d.partner_id::text = $1";
        (
            self.value(events, partner).await,
            self.value(due, partner).await,
        )
    }

    async fn make_all_due(&self, partner: PartnerId) {
        self.set(
            "UPDATE work SET at = now() WHERE partner_id::text = $1",
            partner,
        )
        .await;
    }

    async fn test(&self, partner: PartnerId, interval: Duration) -> EndpointTestResult {
        let mut connection = self.connection().await;
        events::test(&mut connection, EndpointKey::first(partner), interval)
            .await
            .unwrap()
    }

    /// A test that is due.
    async fn tested(&self, partner: PartnerId, interval: Duration) -> DeliveryId {
        match self.test(partner, interval).await {
            EndpointTestResult::Due(id) => id,
            other => panic!("{other:?}"),
        }
    }

    async fn attempt(&self, delivery: &ClaimedDelivery, result: AttemptResult) {
        let attempted = EndedAttempt {
            endpoint_id: delivery.endpoint.id,
            is_event: matches!(delivery.content, DeliveryContent::Event(_)),
            leased: delivery.leased,
            ..attempted(delivery.id, delivery.ended_attempts, result)
        };
        self.record(&[attempted]).await;
    }

    /// What an operator's resend would do.
    async fn preview(&self, id: DeliveryId) -> ResentCounts {
        let filter = DeliveryFilter::default();
        resend_one(&mut *self.connection().await, id, &filter, Mode::Preview)
            .await
            .unwrap()
    }

    async fn event(&self, id: DeliveryId) -> Option<deliveries::View> {
        events::find(&mut *self.connection().await, None, id)
            .await
            .unwrap()
    }

    async fn change(&self, partner: PartnerId, url: &str) -> bool {
        let change = EndpointUpdate {
            url: Some(Some(url)),
            ..EndpointUpdate::default()
        };
        let first = EndpointKey::first(partner);
        let mut connection = self.connection().await;
        let changed = self_service::change_endpoint(&mut connection, first, &change).await;
        changed.unwrap().unwrap()
    }

    async fn actions(&self) -> Vec<RecordedAction> {
        actions::list(
            &mut *self.connection().await,
            &actions::ActionFilter {
                operator: Some(actions::PARTNER),
                ..actions::ActionFilter::default()
            },
            100,
        )
        .await
        .unwrap()
    }
}

fn subject(delivery: &ClaimedDelivery) -> &Subject {
    match &delivery.content {
        DeliveryContent::Event(event) => &event.subject,
        DeliveryContent::Esim(esim) => panic!("a topup: {esim:?}"),
    }
}

#[tokio::test]
async fn a_failed_topup_makes_one_event_for_a_partner_that_asked() {
    let bench = Bench::new().await;
    let partner = bench.listener(&[EventKind::TopupFailed]).await;
    let silent = bench.listener(&[EventKind::KeyExpiring]).await;
    bench.failed_order(silent, Duration::ZERO, 1).await;
    let failed = bench.failed_order(partner, Duration::ZERO, 2).await;
    assert_eq!(bench.events_of(silent).await, (0, 0));
    assert_eq!(bench.events_of(partner).await, (2, 2));
    let due = bench.all_due().await;
    let mut named: Vec<String> = Vec::new();
    for delivery in &due {
        let Subject::TopupFailed {
            topup_id,
            external_order_id,
            refusal,
            ..
        } = subject(delivery)
        else {
            panic!("{delivery:?}");
        };
        assert_eq!(*external_order_id, failed.external_order_id);
        assert_eq!(*refusal, Some(("9001".into(), "it refused".into())));
        assert_eq!(delivery.target.url.as_deref(), Some(URL));
        named.push(topup_id.clone());
    }
    named.sort_unstable();
    let mut topups: Vec<String> = topups(&failed).iter().map(ToString::to_string).collect();
    topups.sort_unstable();
    assert_eq!(named, topups);

    // An operator revives the topup: its event goes, and it is made again if the topup fails again.
    bench.make_all_due(partner).await;
    bench.set(REVIVE, &topups[0]).await;
    assert_eq!(bench.all_due().await.len(), 1);
    assert_eq!(bench.events_of(partner).await, (1, 1));
    bench.set(FAIL, &topups[0]).await;
    bench.set(FAIL, &topups[0]).await;
    assert_eq!(bench.events_of(partner).await, (2, 2));

    // A partner that no longer wants it.
    bench.set_events(partner, &[]).await;
    bench.make_all_due(partner).await;
    assert!(bench.all_due().await.is_empty());
    assert_eq!(bench.events_of(partner).await, (0, 0));
}

#[tokio::test]
async fn an_order_that_is_answered_with_422_makes_no_event() {
    let bench = Bench::new().await;
    let partner = bench.listener(&[EventKind::TopupFailed]).await;
    let failed = bench.failed_order(partner, HOUR, 1).await;
    assert_eq!(bench.events_of(partner).await, (1, 1));
    assert!(
        bench.all_due().await.is_empty(),
        "it may still be answered with 422"
    );
    assert!(bench.refuse(&failed).await.is_some());
    bench.make_all_due(partner).await;
    assert!(bench.all_due().await.is_empty());
    assert_eq!(bench.events_of(partner).await, (0, 0));
}

#[tokio::test]
async fn keys_that_end_soon_make_one_event_each() {
    let bench = Bench::new().await;
    let partner = bench.listener(&[EventKind::KeyExpiring]).await;
    let silent = bench.partner(Some(URL)).await;
    let rotate = async |partner: PartnerId, key: &str| {
        let overlap = Overlap {
            lasts: 24 * HOUR,
            keep_old: false,
        };
        let secret = SecretKey::from_bytes(vec![9; 32]).unwrap();
        let mut connection = bench.connection().await;
        let rotated = self_service::rotate(
            &mut connection,
            partner,
            domain::Command::KeysRotate,
            async |transaction| {
                partners::rotate_keys(transaction, &VAULT, partner, key, &secret, overlap).await
            },
        );
        rotated.await.unwrap()
    };
    for (partner, key) in [(partner, "ak_1"), (silent, "ak_2")] {
        assert!(matches!(
            rotate(partner, key).await,
            RotationResult::Until(Some(_))
        ));
    }
    let mut connection = bench.connection().await;
    assert_eq!(
        events::expiring(&mut connection, 6 * HOUR).await.unwrap(),
        0
    );
    for expected in [1, 0] {
        assert_eq!(
            events::expiring(&mut connection, 25 * HOUR).await.unwrap(),
            expected
        );
    }
    let due = bench.all_due().await;
    assert_eq!(due.len(), 1);
    let Subject::KeyExpiring {
        credential,
        ends_at,
    } = subject(&due[0])
    else {
        panic!("{due:?}");
    };
    assert_eq!((credential.as_str(), due[0].partner_id), ("keys", partner));
    assert!(*ends_at > runtime::clock::now() + 23 * HOUR);
    // The partner's rotation is recorded with its change; a refused one is not.
    assert_eq!(rotate(partner, "ak_3").await, RotationResult::Refused);
    let recorded = bench.actions().await;
    let target = format!("partner {partner}");
    let of_partner: Vec<_> = recorded.iter().filter(|one| one.target == target).collect();
    assert_eq!(of_partner.len(), 1);
    assert_eq!(
        (
            of_partner[0].operator.as_str(),
            of_partner[0].command.as_str()
        ),
        ("partner", "keys rotate")
    );
}

#[tokio::test]
async fn a_test_goes_out_although_the_endpoint_is_blocked() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let waiting = bench.deliveries(partner, 3, false).await;
    let sql = "UPDATE partner_endpoints SET failures = 20, blocks = 1, blocked_until = now() + interval '5 min'
             WHERE endpoint_id::text = $1";
    bench.set(sql, partner).await;
    assert!(bench.all_due().await.is_empty());
    let first = bench.tested(partner, MINUTE).await;
    let EndpointTestResult::TooSoon(left) = bench.test(partner, MINUTE).await else {
        panic!("it was not too soon");
    };
    assert!(left > Duration::from_secs(50) && left <= MINUTE, "{left:?}");
    let backlog = desk::operator::health::webhooks::backlog(&mut *bench.connection().await)
        .await
        .unwrap();
    assert!(backlog.overdue_sandbox < HOUR, "{backlog:?}");
    let due = bench.all_due().await;
    let found: Vec<_> = due.iter().map(|one| one.id).collect();
    assert_eq!(found, [first]);
    assert_eq!(due[0].webhook_id(), WebhookId::Event(first));
    assert!(bench.all_due().await.is_empty(), "it is leased");
    bench.attempt(&due[0], failure(None)).await;
    let seen = bench.event(due[0].id).await.unwrap();
    assert_eq!((seen.state.as_str(), seen.status), ("exhausted", Some(500)));
    assert_eq!(bench.events_of(partner).await, (1, 0));
    assert!(bench.all_due().await.is_empty(), "the block stays");

    let second = bench.tested(partner, Duration::ZERO).await;
    let due = bench.all_due().await;
    assert_eq!(due[0].id, second);
    bench.attempt(&due[0], AttemptResult::Delivered).await;
    assert_eq!(
        bench.event(due[0].id).await.unwrap().state.as_str(),
        "delivered"
    );
    let made = self_service::attempts(&mut *bench.connection().await, second)
        .await
        .unwrap();
    assert_eq!((made.len(), made[0].class.as_str()), (1, "delivered"));
    assert!(made[0].response_start.is_some());
    assert_eq!(
        bench.all_due().await.len(),
        waiting.len(),
        "the block has ended"
    );

    let mut connection = bench.connection().await;
    endpoints::pause(&mut connection, partner.first_endpoint())
        .await
        .unwrap();
    assert_eq!(
        bench.test(partner, Duration::ZERO).await,
        EndpointTestResult::Paused
    );
    endpoints::resume(&mut connection, EndpointKey::first(partner))
        .await
        .unwrap();
    bench.set_url(partner, None).await;
    for partner in [partner, PartnerId::new()] {
        assert_eq!(
            bench.test(partner, Duration::ZERO).await,
            EndpointTestResult::NoEndpoint
        );
    }
}

#[tokio::test]
async fn an_event_is_retried_held_and_forgotten_like_a_webhook() {
    let bench = Bench::new().await;
    let partner = bench.listener(&[EventKind::TopupFailed]).await;
    bench.failed_order(partner, Duration::ZERO, 1).await;
    let due = bench.all_due().await.remove(0);
    bench.attempt(&due, failure(Some(HOUR))).await;
    let seen = bench.event(due.id).await.unwrap();
    assert_eq!((seen.state.as_str(), seen.attempts), ("pending", 1));
    assert!(seen.due_at.unwrap() > runtime::clock::now() + 50 * MINUTE);
    // Without a URL it waits for one.
    bench.set_url(partner, None).await;
    let mut connection = bench.connection().await;
    let id = std::slice::from_ref(&due.id);
    assert_eq!(
        deliveries::set_no_endpoint(&mut connection, id)
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        bench.event(due.id).await.unwrap().state.as_str(),
        "no_endpoint"
    );
    assert_eq!(bench.events_of(partner).await, (1, 0));
    assert_eq!(bench.set_url(partner, Some(URL)).await, Some(1));
    let due = bench.all_due().await.remove(0);
    assert_eq!(due.ended_attempts, 1);
    bench.attempt(&due, AttemptResult::Delivered).await;
    bench.attempt(&due, failure(None)).await;
    let seen = bench.event(due.id).await.unwrap();
    assert_eq!((seen.state.as_str(), seen.attempts), ("delivered", 2));

    assert_eq!(events::forget(&mut connection, 10).await.unwrap(), 0);
    let old = "UPDATE deliveries SET created_at = now() - interval '31 days' WHERE delivery_id::text = $1";
    bench.set(old, due.id).await;
    assert_eq!(events::forget(&mut connection, 10).await.unwrap(), 1);
    assert_eq!(bench.events_of(partner).await, (0, 0));
}

#[tokio::test]
async fn an_event_is_sent_again_unless_it_is_void() {
    let bench = Bench::new().await;
    let partner = bench.listener(&[EventKind::TopupFailed]).await;
    let failed = bench.failed_order(partner, Duration::ZERO, 1).await;
    let due = bench.all_due().await.remove(0);
    let again = async |partner: PartnerId, id: DeliveryId| {
        let mut connection = bench.connection().await;
        self_service::send_again(
            &mut connection,
            partner,
            &WebhookId::Event(id),
            None,
            MINUTE,
        )
        .await
        .unwrap()
    };
    let earlier = async || {
        let statement = "UPDATE deliveries SET attempted_at = now() - interval '2 min',
                         created_at = now() - interval '3 min' WHERE delivery_id::text = $1";
        bench.set(statement, due.id).await;
    };
    assert_eq!(again(PartnerId::new(), due.id).await, SentAgain::Unknown);
    assert_eq!(again(partner, due.id).await, SentAgain::Due, "it is leased");

    // Delivered, exhausted, or waiting for a retry: each starts the schedule again.
    for (attempts, result) in
        (1..).zip([AttemptResult::Delivered, failure(None), failure(Some(HOUR))])
    {
        let sent = if attempts == 1 {
            due.clone()
        } else {
            bench.all_due().await.remove(0)
        };
        assert_eq!(
            (sent.ended_attempts, sent.schedule_start),
            (attempts - 1, attempts - 1)
        );
        bench.attempt(&sent, result).await;
        let SentAgain::TooSoon(left) = again(partner, due.id).await else {
            panic!("it was not too soon");
        };
        assert!(left > Duration::from_secs(50) && left <= MINUTE, "{left:?}");
        earlier().await;
        assert_eq!(again(partner, due.id).await, SentAgain::Again);
        assert_eq!(again(partner, due.id).await, SentAgain::Due);
        let seen = bench.event(due.id).await.unwrap();
        assert_eq!((seen.state.as_str(), seen.delivered_at), ("pending", None));
    }
    let recorded = bench.actions().await;
    assert_eq!(
        (recorded.len(), recorded[0].command.as_str()),
        (3, "event redeliver")
    );
    assert_eq!(recorded[0].target, format!("event {}", due.webhook_id()));

    // An operator's resend has no interval, and a preview changes nothing.
    let sent = bench.all_due().await.remove(0);
    bench.attempt(&sent, AttemptResult::Delivered).await;
    assert_eq!(bench.preview(due.id).await.delivered, 1);
    assert!(bench.all_due().await.is_empty());

    // A partner without a URL.
    earlier().await;
    let set_url = "UPDATE partner_endpoints SET url = nullif($1, '')";
    bench.set(set_url, "").await;
    assert_eq!(again(partner, due.id).await, SentAgain::NoEndpoint);
    bench.set(set_url, URL).await;

    // A topup that is no longer failed, a refused order, a partner that no longer asks for the
    // event, a test.
    let topup = topups(&failed).remove(0);
    bench.set(REVIVE, &topup).await;
    assert_eq!(again(partner, due.id).await, SentAgain::Gone);
    // Its own trigger finds the event that there is.
    bench.set(FAIL, &topup).await;
    let refuse = "UPDATE orders SET refused_at = nullif($1, '')::timestamptz";
    bench.set(refuse, "now").await;
    // The partner was told in the answer that nothing was bought, and never sees this event.
    assert_eq!(again(partner, due.id).await, SentAgain::Unknown);
    bench.set(refuse, "").await;
    bench.set_events(partner, &[]).await;
    assert_eq!(again(partner, due.id).await, SentAgain::Gone);
    bench.set_events(partner, &[EventKind::TopupFailed]).await;
    assert_eq!(again(partner, due.id).await, SentAgain::Again);
    let test = bench.tested(partner, MINUTE).await;
    assert_eq!(again(partner, test).await, SentAgain::Gone);
    let sent = bench.all_due().await;
    let sent = sent.iter().find(|one| one.id == test).unwrap();
    bench.attempt(sent, AttemptResult::Delivered).await;
    assert_eq!(bench.preview(test).await.resent, 0, "a test is sent once");
    // The delivery of a topup is no event, whatever its id.
    let topup = bench.deliveries(partner, 1, true).await.remove(0);
    assert_eq!(again(partner, ids(&[topup])[0]).await, SentAgain::Unknown);
}

#[tokio::test]
async fn events_are_listed_in_pages() {
    let bench = Bench::new().await;
    let [partner, other] = [
        bench.partner(Some(URL)).await,
        bench.partner(Some(URL)).await,
    ];
    let mut made = Vec::new();
    for _ in 0..5 {
        made.insert(0, bench.tested(partner, Duration::ZERO).await);
    }
    bench.test(other, Duration::ZERO).await;
    // The webhooks of topups are not events.
    let topup = bench.deliveries(partner, 1, true).await.remove(0);
    let mut connection = bench.connection().await;
    let mut seen: Vec<DeliveryId> = Vec::new();
    let mut next = events::EventPage {
        before: None,
        limit: 2,
    };
    loop {
        let found = events::list(&mut connection, partner, &next).await.unwrap();
        let Some(last) = found.last() else { break };
        next.before = Some((last.created_at, last.delivery_id));
        // An event may be gone when the next page is read.
        bench
            .set(
                "DELETE FROM deliveries WHERE delivery_id::text = $1",
                last.delivery_id,
            )
            .await;
        seen.extend(found.into_iter().map(|one| one.delivery_id));
    }
    assert_eq!(seen, made);
    for (partner, seen) in [(partner, true), (other, false)] {
        assert_eq!(
            events::find(&mut connection, Some(partner), made[0])
                .await
                .unwrap()
                .is_some(),
            seen
        );
    }
    assert!(
        events::find(&mut connection, Some(partner), ids(&[topup])[0])
            .await
            .unwrap()
            .is_none()
    );
}

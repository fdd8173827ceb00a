//! The list of a partner's deliveries, and resends: many of them are sent again at their
//! partner's request, in batches, and nothing of it is lost or done twice.

use std::{collections::BTreeSet, time::Duration};

use desk::self_service::{self, DeliveryPage};
use domain::{DeliveryId, PartnerId, TopupId, event::EventKind, standing::DeliveryState};
use store::deliveries::resends::{self, PartnerResend, ResendSelection, ResendStart, ResendStep};
use store::deliveries::{AttemptResult, EndedAttempt, WalkPosition};
use uuid::Uuid;

use crate::bench::{Bench, Told as _, ids, look};
use crate::deliveries::{attempted, failure};

const URL: &str = "https://partner.example/hook";
const HOUR: Duration = Duration::from_hours(1);
const MINUTE: Duration = Duration::from_mins(1);
/// Moves the times of a topup's delivery back, so that it was attempted before a resend.
const EARLIER: &str = "UPDATE deliveries SET attempted_at = attempted_at - interval '10 min',
                       created_at = created_at - interval '20 min' WHERE topup_id = $1";

impl Bench {
    /// Deliveries whose attempts ended with this result ten minutes ago.
    async fn attempted(
        &self,
        partner: PartnerId,
        count: usize,
        result: &AttemptResult,
    ) -> Vec<TopupId> {
        let topups = self.deliveries(partner, count, true).await;
        let attempts: Vec<EndedAttempt> = ids(&topups)
            .into_iter()
            .map(|id| attempted(id, 0, result.clone()))
            .collect();
        self.record(&attempts).await;
        for topup in &topups {
            self.set(EARLIER, topup).await;
        }
        topups
    }

    /// The names of all listed webhooks, read in pages of `limit`.
    async fn listed(
        &self,
        partner: PartnerId,
        state: Option<DeliveryState>,
        limit: u16,
    ) -> Vec<DeliveryId> {
        let mut connection = self.connection().await;
        let mut found = Vec::new();
        let mut after: Option<WalkPosition> = None;
        loop {
            let page = DeliveryPage {
                state,
                after,
                limit,
                ..DeliveryPage::default()
            };
            let (views, next) = self_service::deliveries(&mut connection, partner, &page)
                .await
                .told(&mut connection)
                .await;
            assert!(views.len() <= limit.into());
            found.extend(views.into_iter().map(|view| view.delivery_id));
            if next.is_none() {
                return found;
            }
            after = next;
        }
    }

    async fn begin(
        &self,
        partner: PartnerId,
        state: Option<DeliveryState>,
        interval: Duration,
    ) -> ResendStart {
        let wanted = ResendSelection {
            state,
            since: runtime::clock::now() - HOUR,
            until: None,
        };
        resends::begin(&mut *self.connection().await, partner, &wanted, interval)
            .await
            .unwrap()
    }

    async fn begun(&self, partner: PartnerId, state: Option<DeliveryState>) -> PartnerResend {
        match self.begin(partner, state, Duration::ZERO).await {
            ResendStart::Begun(begun) => begun,
            other => panic!("{other:?}"),
        }
    }

    async fn work_off(&self, id: Uuid, most_due: u32) -> ResendStep {
        resends::step(&mut *self.connection().await, id, most_due)
            .await
            .unwrap()
    }

    async fn resend(&self, partner: PartnerId, id: Uuid) -> PartnerResend {
        resends::find(&mut *self.connection().await, partner, id)
            .await
            .unwrap()
            .unwrap()
    }
}

fn set<T: Ord>(all: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    all.into_iter().collect()
}

#[tokio::test]
async fn webhooks_are_listed_by_state_and_in_pages() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    bench.set_events(partner, &[EventKind::TopupFailed]).await;
    let delivered = ids(&bench.attempted(partner, 3, &AttemptResult::Delivered).await);
    let exhausted = ids(&bench.attempted(partner, 5, &failure(None)).await);
    let retried = ids(&bench.attempted(partner, 3, &failure(Some(HOUR))).await);
    // Announced by a message, and not attempted yet.
    let fresh = ids(&bench.deliveries(partner, 2, true).await);
    let due = ids(&bench.deliveries(partner, 2, false).await);
    // An event is held like a topup when its retries end, but a test is not.
    let sql = format!(
        "WITH made AS (
             INSERT INTO deliveries (delivery_id, partner_id, kind)
             SELECT gen_random_uuid(), '{partner}', kind FROM unnest(ARRAY['key.expiring', 'webhook.test']) kind
             RETURNING delivery_id, kind
         )
         INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT delivery_id, 'deliver', '', '', '{partner}', CASE WHEN kind = 'webhook.test' THEN '-infinity'::timestamptz ELSE now() END
         FROM made"
    );
    bench.sql(&sql).await;
    let sql = "SELECT array_agg(delivery_id ORDER BY kind) FROM deliveries WHERE kind <> 'topup.ready' AND partner_id::text = $1";
    let events: Vec<Uuid> = bench.value(sql, partner).await;
    let events: Vec<DeliveryId> = events.into_iter().map(DeliveryId::from).collect();
    let pending = set([retried.clone(), fresh, due, events.clone()].concat());
    for limit in [1, 3, 100] {
        let found = bench
            .listed(partner, Some(DeliveryState::Pending), limit)
            .await;
        assert_eq!(
            (found.len(), set(found)),
            (pending.len(), pending.clone()),
            "{limit}"
        );
    }
    let ended: Vec<EndedAttempt> = events
        .iter()
        .map(|id| EndedAttempt {
            is_event: true,
            ..attempted(*id, 0, failure(None))
        })
        .collect();
    bench.record(&ended).await;
    let mut missed = set(exhausted);
    missed.insert(events[0]);
    for limit in [1, 4, 100] {
        let found = bench
            .listed(partner, Some(DeliveryState::Exhausted), limit)
            .await;
        assert_eq!((found.len(), set(found)), (6, missed.clone()), "{limit}");
        let found = bench
            .listed(partner, Some(DeliveryState::Delivered), limit)
            .await;
        assert_eq!((found.len(), set(found)), (3, set(delivered.clone())));
        let found = bench.listed(partner, None, limit).await;
        assert_eq!((found.len(), set(found).len()), (17, 17));
    }
    let mut connection = bench.connection().await;
    let endpoint = self_service::endpoint(&mut connection, partner)
        .await
        .unwrap();
    assert_eq!(
        endpoint.unwrap().exhausted,
        6,
        "the count is that of the list"
    );

    // The last attempt, and a range of time.
    let now = runtime::clock::now();
    let page = DeliveryPage {
        state: Some(DeliveryState::Pending),
        since: Some(now - HOUR),
        until: Some(now - MINUTE),
        limit: 10,
        ..DeliveryPage::default()
    };
    let (views, next) = self_service::deliveries(&mut connection, partner, &page)
        .await
        .told(&mut connection)
        .await;
    assert!(next.is_none());
    assert_eq!(set(views.iter().map(|view| view.delivery_id)), set(retried));
    assert!(
        views
            .iter()
            .all(|view| view.attempts == 1 && view.class.is_some() && view.due_at.is_some())
    );
    // Nothing of it is another partner's.
    let stranger = bench.partner(Some(URL)).await;
    for state in [
        None,
        Some(DeliveryState::Pending),
        Some(DeliveryState::Exhausted),
        Some(DeliveryState::Delivered),
        Some(DeliveryState::NoEndpoint),
    ] {
        assert!(bench.listed(stranger, state, 10).await.is_empty());
    }
}

#[tokio::test]
async fn a_resend_sends_what_was_missed_at_the_pace_of_the_endpoint() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let exhausted = bench.attempted(partner, 12, &failure(None)).await;
    let retried = bench.attempted(partner, 3, &failure(Some(HOUR))).await;
    bench.attempted(partner, 4, &AttemptResult::Delivered).await;
    let stranger = bench.partner(Some(URL)).await;
    bench.attempted(stranger, 2, &failure(None)).await;

    let begun = bench.begun(partner, None).await;
    let id = begun.resend_id;
    assert_eq!((begun.matching, begun.resent), (Some(15), 0));
    assert!(
        matches!(bench.begin(partner, None, MINUTE).await, ResendStart::Running(other) if other == id)
    );
    let recorded = "SELECT count(*) FROM operator_actions WHERE command = 'webhooks redeliver' AND target LIKE '%' || $1";
    assert_eq!(bench.value::<i64>(recorded, partner).await, 1);

    // Only so many are due at a time, until these are sent. Of each batch the first one fails
    // again, and is not sent a second time.
    let mut sent = BTreeSet::new();
    while bench.resend(partner, id).await.ended_at.is_none() {
        let mut resent = 0;
        loop {
            let step = bench.work_off(id, 5).await;
            resent += step.resent;
            if !step.more {
                break;
            }
        }
        let due = bench.claim_due_deliveries(&look(100, 100)).await;
        assert_eq!(u64::try_from(due.len()).unwrap(), resent);
        assert!(due.len() <= 5, "{} are due at once", due.len());
        let ended = due.iter().enumerate().map(|(index, delivery)| {
            assert!(sent.insert(delivery.id), "one was sent twice");
            let result = if index == 0 {
                failure(None)
            } else {
                AttemptResult::Delivered
            };
            attempted(delivery.id, delivery.ended_attempts, result)
        });
        let ended: Vec<EndedAttempt> = ended.collect();
        bench.record(&ended).await;
    }
    assert_eq!(sent, set(ids(&[exhausted, retried].concat())));
    let ended = bench.resend(partner, id).await;
    assert_eq!((ended.resent, ended.cancelled_at), (15, None));
    assert!(
        matches!(bench.begin(partner, None, MINUTE).await, ResendStart::TooSoon(left) if left <= MINUTE)
    );
    assert!(
        resends::find(&mut *bench.connection().await, stranger, id)
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(
        bench
            .listed(stranger, Some(DeliveryState::Exhausted), 10)
            .await
            .len(),
        2
    );
}

#[tokio::test]
async fn two_notifiers_share_a_resend() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    bench
        .attempted(partner, 40, &AttemptResult::Delivered)
        .await;
    let begun = bench.begun(partner, Some(DeliveryState::Delivered)).await;
    let id = begun.resend_id;
    assert_eq!(begun.matching, Some(40));
    let work = async || {
        let mut resent = 0;
        for _ in 0..200 {
            resent += bench.work_off(id, 10_000).await.resent;
        }
        resent
    };
    let (one, other) = tokio::join!(work(), work());
    assert_eq!(one + other, 40);
    assert_eq!(bench.claim_due_deliveries(&look(100, 100)).await.len(), 40);
    assert!(bench.work_off(id, 10_000).await.ended);
    assert_eq!(bench.resend(partner, id).await.resent, 40);
}

#[tokio::test]
async fn a_resend_keeps_to_its_range_and_can_be_cancelled() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let missed = bench.attempted(partner, 6, &failure(None)).await;
    let long_ago = "UPDATE deliveries SET attempted_at = now() - interval '3 hours', created_at = now() - interval '4 hours'
                    WHERE topup_id = $1";
    bench.set(long_ago, &missed[0]).await;
    let begun = bench.begun(partner, Some(DeliveryState::Exhausted)).await;
    assert_eq!(begun.matching, Some(5));
    let id = begun.resend_id;
    assert_eq!(bench.work_off(id, 2).await.resent, 2);
    let mut connection = bench.connection().await;
    let stranger = bench.partner(None).await;
    assert!(
        resends::cancel(&mut connection, stranger, id)
            .await
            .unwrap()
            .is_none()
    );
    for _ in 0..2 {
        let cancelled = resends::cancel(&mut connection, partner, id)
            .await
            .unwrap()
            .unwrap();
        assert!(cancelled.cancelled_at.is_some() && cancelled.ended_at.is_some());
    }
    assert!(bench.work_off(id, 100).await.gone);
    assert_eq!(
        bench
            .listed(partner, Some(DeliveryState::Exhausted), 10)
            .await
            .len(),
        4
    );
    assert_eq!(
        resends::list(&mut connection, partner, 10)
            .await
            .unwrap()
            .len(),
        1
    );

    // Without a URL there is nowhere to send anything.
    assert!(matches!(
        bench.begin(stranger, None, MINUTE).await,
        ResendStart::NoEndpoint
    ));
    // Old ones are forgotten.
    assert_eq!(resends::forget(&mut connection, 10).await.unwrap(), 0);
    let old =
        "UPDATE resends SET created_at = now() - interval '31 days' WHERE partner_id::text = $1";
    bench.set(old, partner).await;
    assert_eq!(resends::forget(&mut connection, 10).await.unwrap(), 1);
}

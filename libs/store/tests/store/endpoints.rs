//! Endpoints: partners take turns, a failing endpoint is blocked and probed by one delivery, and a
//! pause ends only when an operator resumes it.

use std::{collections::HashMap, time::Duration};

use accounts::partners::endpoints::EndpointUpdate;
use desk::self_service::{self, PauseChanged};
use domain::{EndpointKey, PartnerId, TopupId, event::EventKind, standing::EndpointState};
use store::deliveries::endpoints::{self, ListedEndpoint};
use store::deliveries::{self, AttemptResult, DeliveryClaim, EndedAttempt};
use store::work::WorkLook;

use crate::bench::{Bench, delivery_id, esim, ids, look};
use crate::deliveries::{attempted, failure};

impl Bench {
    /// Resumes an endpoint, as an operator, and goes on like [`Self::set_url`].
    pub async fn resume(&self, endpoint: EndpointKey) -> u64 {
        endpoints::resume(&mut *self.connection().await, endpoint)
            .await
            .unwrap();
        self.move_waiting(endpoint).await
    }

    /// Makes due what waited for an endpoint. Returns the number of deliveries.
    pub async fn move_waiting(&self, endpoint: EndpointKey) -> u64 {
        let mut connection = self.connection().await;
        let moved = endpoints::move_waiting(&mut connection, endpoint, 1_000).await;
        moved.unwrap().due
    }

    /// The number of claimed deliveries per partner.
    async fn turns(&self, look: &WorkLook) -> HashMap<PartnerId, usize> {
        let mut turns = HashMap::new();
        for delivery in self.claim_due_deliveries(look).await {
            *turns.entry(delivery.partner_id).or_default() += 1;
        }
        turns
    }

    async fn endpoint(&self, partner: PartnerId) -> ListedEndpoint {
        endpoints::list(&mut *self.connection().await, Some(partner))
            .await
            .unwrap()
            .remove(0)
    }

    /// Seconds until the block ends.
    async fn block(&self, partner: PartnerId) -> i64 {
        let until = self.endpoint(partner).await.blocked_until.unwrap();
        (until - runtime::clock::now()).whole_seconds() + 1
    }

    async fn end_block(&self, partner: PartnerId) {
        self.set(
            "UPDATE partner_endpoints SET blocked_until = now() WHERE endpoint_id::text = $1",
            partner,
        )
        .await;
    }
}

fn of(partner_id: PartnerId, topup: &TopupId, attempt: u32, result: AttemptResult) -> EndedAttempt {
    EndedAttempt {
        endpoint_id: partner_id.first_endpoint(),
        ..attempted(delivery_id(topup), attempt, result)
    }
}

fn failed(partner: PartnerId, topup: &TopupId, attempt: u32) -> EndedAttempt {
    of(partner, topup, attempt, failure(Some(Duration::ZERO)))
}

fn delivered(partner: PartnerId, topup: &TopupId) -> EndedAttempt {
    of(partner, topup, 9, AttemptResult::Delivered)
}

#[tokio::test]
async fn turns_go_round() {
    let bench = Bench::new().await;
    let partner = async |host: &str| {
        bench
            .partner(Some(&format!("https://user@{host}:8443/hook?a=b")))
            .await
    };
    let big = partner("Shared.example").await;
    let other = partner("shared.example").await;
    let small = partner("[2001:db8::1]").await;
    for (partner, count) in [(big, 40), (other, 40), (small, 2)] {
        bench.deliveries(partner, count, false).await;
    }
    assert_eq!(
        bench.turns(&look(6, 100)).await,
        HashMap::from([(big, 2), (other, 2), (small, 2)])
    );
    assert_eq!(
        bench.turns(&look(100, 3)).await,
        HashMap::from([(big, 3), (other, 3)])
    );
    let host = "SELECT host FROM partner_endpoints WHERE endpoint_id::text = $1";
    for (partner, expected) in [
        (big, "shared.example"),
        (other, "shared.example"),
        (small, "[2001:db8::1]"),
    ] {
        assert_eq!(bench.value::<String>(host, partner).await, expected);
    }
}

#[tokio::test]
async fn an_endpoint_is_blocked_then_probed_by_one() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/hook")).await;
    let due = bench.deliveries(partner, 8, false).await;
    let announced = bench.deliveries(partner, 1, true).await;
    let all = look(100, 100);

    // A webhook that could not be built says nothing about the endpoint.
    let ours = |topup| {
        let result = AttemptResult::Failed {
            error: "not built".into(),
            retry_in: Some(Duration::ZERO),
            retry_if_resent: Some(Duration::ZERO),
            endpoint_failed: false,
        };
        of(partner, topup, 0, result)
    };
    bench
        .record(&due.iter().map(ours).collect::<Vec<_>>())
        .await;
    assert_eq!(bench.endpoint(partner).await.state.as_str(), "open");
    bench
        .record(&[failed(partner, &due[0], 1), failed(partner, &due[1], 1)])
        .await;
    assert_eq!(bench.endpoint(partner).await.failures, 2);
    bench.record(&[delivered(partner, &due[7])]).await;
    assert_eq!(bench.endpoint(partner).await.failures, 0, "in a row");
    for topup in &due[..2] {
        bench.record(&[failed(partner, topup, 2)]).await;
    }
    bench.record(&[failed(partner, &due[2], 1)]).await;
    let blocked = bench.endpoint(partner).await;
    assert_eq!(
        (blocked.state.as_str(), bench.block(partner).await),
        ("blocked", 10)
    );
    // Late failures of attempts that began before the block do not extend it.
    bench.record(&[failed(partner, &due[3], 1)]).await;
    assert_eq!(bench.block(partner).await, 10);
    assert!(bench.claim_due_deliveries(&all).await.is_empty());
    let first = DeliveryClaim::Fresh {
        younger_than: Duration::from_mins(1),
    };
    let first = deliveries::claim(&mut *bench.connection().await, &ids(&announced), first).await;
    assert!(first.unwrap().deliveries.is_empty());

    for expected in [20, 35, 35] {
        bench.end_block(partner).await;
        let (one, other) = tokio::join!(
            bench.claim_due_deliveries(&all),
            bench.claim_due_deliveries(&all)
        );
        let probes = [one, other].concat();
        assert_eq!(probes.len(), 1, "one probe at a time");
        assert_eq!(bench.endpoint(partner).await.state.as_str(), "probing");
        // If the process with the probe dies, its lease ends, and another delivery is the probe.
        let lease = i64::try_from(crate::bench::LEASE.as_secs()).unwrap();
        assert!(bench.block(partner).await <= lease);
        assert!(bench.claim_due_deliveries(&all).await.is_empty());
        bench
            .record(&[failed(
                partner,
                &esim(&probes[0]).topup_id,
                probes[0].ended_attempts,
            )])
            .await;
        assert_eq!(
            bench.block(partner).await,
            expected,
            "bounded, and twice as long"
        );
    }
    bench.end_block(partner).await;
    let probe = bench.claim_due_deliveries(&all).await.remove(0);
    bench
        .record(&[delivered(partner, &esim(&probe).topup_id)])
        .await;
    assert_eq!(bench.endpoint(partner).await.state.as_str(), "open");
    assert!(
        bench.claim_due_deliveries(&all).await.len() >= 5,
        "all that waited go out"
    );
}

#[tokio::test]
async fn a_pause_ends_only_when_it_is_resumed() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/hook")).await;
    let due = bench.deliveries(partner, 4, false).await;
    let mut connection = bench.connection().await;
    endpoints::pause(&mut connection, partner.first_endpoint())
        .await
        .unwrap();
    bench
        .record(&[delivered(partner, &due[0]), failed(partner, &due[1], 0)])
        .await;
    let many: Vec<EndedAttempt> = due[2..]
        .iter()
        .map(|topup| failed(partner, topup, 0))
        .collect();
    bench.record(&many).await;
    assert_eq!(bench.endpoint(partner).await.state.as_str(), "paused");
    assert!(bench.claim_due_deliveries(&look(9, 9)).await.is_empty());
    let backlog = desk::operator::health::webhooks::backlog(&mut connection)
        .await
        .unwrap();
    assert_eq!((backlog.paused, backlog.blocked), (1, 0));
    assert_eq!(
        (backlog.overdue_live, backlog.overdue_sandbox),
        (Duration::ZERO, Duration::ZERO)
    );

    bench.deliver_in(&due[3..], 3600.0).await;
    // One had a retry later; the others are due already.
    assert_eq!(bench.resume(EndpointKey::first(partner)).await, 1);
    assert_eq!(bench.claim_due_deliveries(&look(9, 9)).await.len(), 3);
}

#[tokio::test]
async fn a_new_url_has_no_history() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/old")).await;
    let due = bench.deliveries(partner, 4, false).await;
    let many: Vec<EndedAttempt> = due[1..]
        .iter()
        .map(|topup| failed(partner, topup, 0))
        .collect();
    bench.record(&many).await;
    bench.deliver_in(&due[1..], 3600.0).await;
    // Due soon: it may be leased.
    bench.deliver_in(&due[..1], 20.0).await;
    let sql = "UPDATE partner_endpoints SET failures = 9, blocked_until = now() + interval '1 hour' WHERE endpoint_id::text = $1";
    bench.set(sql, partner).await;
    let url = Some("https://partner.example/new");
    assert_eq!(bench.set_url(partner, url).await, Some(3));
    assert_eq!(bench.endpoint(partner).await.state.as_str(), "open");
    assert_eq!(bench.claim_due_deliveries(&look(9, 9)).await.len(), 3);

    let mut connection = bench.connection().await;
    endpoints::pause(&mut connection, partner.first_endpoint())
        .await
        .unwrap();
    bench.set_url(partner, url).await;
    assert_eq!(bench.endpoint(partner).await.state.as_str(), "paused");
}

#[tokio::test]
async fn a_row_that_is_broken_is_taken_with_the_others() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/hook")).await;
    let due = bench.deliveries(partner, 3, false).await;
    bench
        .set(
            "UPDATE esims SET profile = NULL, iccid = NULL WHERE topup_id = $1",
            &due[1],
        )
        .await;
    assert_eq!(bench.claim_due_deliveries(&look(9, 9)).await.len(), 3);
}

/// `GET /webhook` has one word for a pause, because only `GET /endpoints` says who has paused it.
#[tokio::test]
async fn the_first_endpoint_is_shown_as_paused_whoever_has_paused_it() {
    let bench = Bench::new().await;
    let partner_id = bench.partner(Some("https://partner.example/hook")).await;
    let mut connection = bench.connection().await;
    let id = partner_id.first_endpoint();
    let paused =
        self_service::pause_endpoint(&mut connection, EndpointKey { partner_id, id }).await;
    assert_eq!(paused.unwrap(), PauseChanged::Done);
    let shown = self_service::endpoint(&mut connection, partner_id).await;
    assert_eq!(shown.unwrap().unwrap().state, EndpointState::Paused);
}

/// An operator who asks who changed an endpoint finds what it was and what it is, without the path
/// of its URL, which may hold a secret.
#[tokio::test]
async fn what_a_partner_changes_is_recorded_with_before_and_after() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/hook")).await;
    let further = bench
        .further(partner, "further", &[EventKind::TopupReady])
        .await;
    let (before, after) = bench.changed().await;
    assert!(before.is_null(), "{before}");
    assert_eq!(after["host"], "further.example");
    let mut connection = bench.connection().await;
    let change = EndpointUpdate {
        url: Some(Some("https://other.example/s3cret")),
        events: None,
        headers: None,
    };
    let changed = self_service::change_endpoint(&mut connection, further, &change).await;
    assert_eq!(changed.unwrap(), Some(true));
    let (before, after) = bench.changed().await;
    assert_eq!(
        (&before["host"], &after["host"]),
        (&"further.example".into(), &"other.example".into())
    );
    assert_eq!(after["endpoint_id"], further.id.to_string());
    assert!(!after.to_string().contains("s3cret"), "{after}");
    let paused = self_service::pause_endpoint(&mut connection, further).await;
    assert_eq!(paused.unwrap(), PauseChanged::Done);
    let (before, after) = bench.changed().await;
    assert_eq!(
        (&before["paused"], &after["paused"]),
        (&false.into(), &true.into())
    );
    let resumed = self_service::resume_endpoint(&mut connection, further).await;
    assert_eq!(resumed.unwrap(), PauseChanged::Done);
    let (before, after) = bench.changed().await;
    assert_eq!(
        (&before["paused"], &after["paused"]),
        (&true.into(), &false.into())
    );
    let deleted = self_service::delete_endpoint(&mut connection, further).await;
    assert!(deleted.unwrap());
    let (before, after) = bench.changed().await;
    assert_eq!(before["host"], "other.example");
    assert!(after.is_null(), "{after}");
}

/// The look at all endpoints counts in one pass. It must say what the look at one partner says, and
/// may leave out only endpoints of which nothing is to be known.
#[tokio::test]
async fn all_endpoints_with_something_to_know_are_noted_with_the_numbers_of_each_partner() {
    let bench = Bench::new().await;
    let partner = async |host: &str| bench.partner(Some(&format!("https://{host}/hook"))).await;
    let well = partner("well.example").await;
    let waits = partner("waits.example").await;
    let fails = partner("fails.example").await;
    let gave_up = partner("gave-up.example").await;
    bench.deliveries(waits, 3, false).await;
    let due = bench.deliveries(fails, 1, false).await;
    bench.record(&[failed(fails, &due[0], 1)]).await;
    let hold = "INSERT INTO held (id, state, provider, partner_id) VALUES (gen_random_uuid(), 'exhausted', '', $1::uuid)";
    for _ in 0..2 {
        bench.set(hold, gave_up).await;
    }
    let mut connection = bench.connection().await;
    let noted = endpoints::noted(&mut connection).await.unwrap();
    let partners: Vec<PartnerId> = noted.iter().map(|one| one.partner_id.into()).collect();
    assert_eq!(partners, [waits, fails, gave_up]);
    for one in &noted {
        let alone = bench.endpoint(one.partner_id.into()).await;
        assert_eq!(
            (one.pending, one.exhausted, one.exhausted_since),
            (alone.pending, alone.exhausted, alone.exhausted_since)
        );
    }
    assert_eq!((noted[0].pending, noted[2].exhausted), (3, 2));
    let all = endpoints::list(&mut connection, None).await.unwrap();
    let partners: Vec<PartnerId> = all.iter().map(|one| one.partner_id.into()).collect();
    assert_eq!(partners, [well, waits, fails, gave_up]);
}

//! Endpoints: turns between them, blocks and probes, pauses.

use std::{collections::HashMap, time::Duration};

use domain::{PartnerId, TopupId};
use store::{
    deliveries::{self, AttemptResult, Attempted, Delivery, Room, Take},
    endpoints::{self, Endpoint},
    partners,
};

use crate::{
    bench::{Bench, LEASE},
    deliveries::{BLOCK_POLICY, attempted, room},
};

impl Bench {
    async fn taken(&self, room: &Room) -> Vec<Delivery> {
        let taken = deliveries::take(&mut *self.connection().await, Take::Due(room), LEASE).await;
        taken.unwrap()
    }

    /// The number of claimed deliveries per partner.
    async fn turns(&self, room: &Room) -> HashMap<PartnerId, usize> {
        let mut turns = HashMap::new();
        for delivery in self.taken(room).await {
            *turns.entry(delivery.partner_id).or_default() += 1;
        }
        turns
    }

    async fn results(&self, attempts: &[Attempted]) {
        deliveries::record(&mut *self.connection().await, attempts, &BLOCK_POLICY)
            .await
            .unwrap();
    }

    async fn endpoint(&self, partner: PartnerId) -> Endpoint {
        let mut connection = self.connection().await;
        endpoints::list(&mut connection, Some(partner))
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
        let statement = "UPDATE endpoints SET blocked_until = now() WHERE partner_id::text = $1";
        self.set(statement, partner).await;
    }
}

fn of(partner_id: PartnerId, topup: &TopupId, endpoint: bool, attempt: u32) -> Attempted {
    let result = AttemptResult::Failed {
        error: "answered 500".into(),
        retry_in: Some(Duration::ZERO),
        endpoint,
    };
    Attempted {
        partner_id,
        ..attempted(topup, attempt, Some(500), result)
    }
}

fn failed(partner: PartnerId, topup: &TopupId, attempt: u32) -> Attempted {
    of(partner, topup, true, attempt)
}

fn delivered(partner_id: PartnerId, topup: &TopupId) -> Attempted {
    Attempted {
        partner_id,
        ..attempted(topup, 9, Some(200), AttemptResult::Delivered)
    }
}

#[tokio::test]
async fn turns_go_round_and_hosts_are_shared() {
    let bench = Bench::new().await;
    let url = |host: &str| format!("https://user@{host}:8443/hook?a=b");
    let [big, other] = [
        bench.partner(Some(&url("Shared.example"))).await,
        bench.partner(Some(&url("shared.example"))).await,
    ];
    let small = bench.partner(Some(&url("[2001:db8::1]"))).await;
    for (partner, count) in [(big, 40), (other, 40), (small, 2)] {
        bench.deliveries(partner, count, false).await;
    }
    let first = bench.turns(&room(6, 100)).await;
    assert_eq!(first, HashMap::from([(big, 2), (other, 2), (small, 2)]));

    // Two of the host's eight slots are in use: one claim gets half of the six free ones, by turns.
    let crowded = |in_use| Room {
        per_host: 8,
        hosts: vec![("shared.example".into(), in_use), ("elsewhere".into(), 9)],
        ..room(100, 100)
    };
    let turns = bench.turns(&crowded(2)).await;
    assert_eq!(turns.values().sum::<usize>(), 3, "{turns:?}");
    assert_eq!(turns.len(), 2);
    assert!(bench.turns(&crowded(8)).await.is_empty());

    // The partner with less in flight comes first.
    let busy = Room {
        partners: vec![(big, 5)],
        ..room(5, 100)
    };
    assert_eq!(bench.turns(&busy).await, HashMap::from([(other, 5)]));
    let hosts: Vec<Option<String>> =
        sqlx::query_scalar("SELECT webhook_host FROM partners ORDER BY created_at")
            .fetch_all(&bench.pool)
            .await
            .unwrap();
    assert_eq!(
        hosts.iter().map(Option::as_deref).collect::<Vec<_>>(),
        [
            Some("shared.example"),
            Some("shared.example"),
            Some("[2001:db8::1]")
        ]
    );
}

#[tokio::test]
async fn an_endpoint_is_blocked_then_probed_by_one() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/hook")).await;
    let due = bench.deliveries(partner, 8, false).await;
    let announced = bench.deliveries(partner, 1, true).await;
    let room = room(100, 100);

    // A webhook that could not be built says nothing about the endpoint.
    let ours: Vec<Attempted> = due.iter().map(|topup| of(partner, topup, false, 0)).collect();
    bench.results(&ours).await;
    assert_eq!(bench.endpoint(partner).await.state, "open");
    bench
        .results(&[failed(partner, &due[0], 1), failed(partner, &due[1], 1)])
        .await;
    assert_eq!(bench.endpoint(partner).await.failures, 2);
    bench.results(&[delivered(partner, &due[7])]).await;
    assert_eq!(bench.endpoint(partner).await.failures, 0, "in a row");
    for topup in &due[..2] {
        bench.results(&[failed(partner, topup, 2)]).await;
    }
    bench.results(&[failed(partner, &due[2], 1)]).await;
    let blocked = bench.endpoint(partner).await;
    assert_eq!(
        (blocked.state.as_str(), bench.block(partner).await),
        ("blocked", 10)
    );
    // Late failures of attempts that began before the block do not extend it.
    bench.results(&[failed(partner, &due[3], 1)]).await;
    assert_eq!(bench.block(partner).await, 10);
    assert!(bench.taken(&room).await.is_empty());
    let first = Take::First(&announced);
    let first = deliveries::take(&mut *bench.connection().await, first, Duration::from_secs(1)).await;
    assert!(first.unwrap().is_empty());

    for expected in [20, 35, 35] {
        bench.end_block(partner).await;
        let (mut one, mut other) = (bench.connection().await, bench.connection().await);
        let (one, other) = tokio::join!(
            deliveries::take(&mut one, Take::Due(&room), LEASE),
            deliveries::take(&mut other, Take::Due(&room), LEASE)
        );
        let probes = [one.unwrap(), other.unwrap()].concat();
        assert_eq!(probes.len(), 1, "one probe at a time");
        assert_eq!(bench.endpoint(partner).await.state, "probing");
        assert!(bench.taken(&room).await.is_empty());
        let probe = &probes[0];
        bench
            .results(&[failed(partner, &probe.topup_id, probe.attempt)])
            .await;
        assert_eq!(bench.block(partner).await, expected, "bounded, and twice as long");
    }
    bench.end_block(partner).await;
    let probe = bench.taken(&room).await.remove(0);
    bench.results(&[delivered(partner, &probe.topup_id)]).await;
    assert_eq!(bench.endpoint(partner).await.state, "open");
    assert!(bench.taken(&room).await.len() >= 5, "all that waited go out");
}

#[tokio::test]
async fn a_pause_ends_only_when_it_is_resumed() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/hook")).await;
    let due = bench.deliveries(partner, 4, false).await;
    let mut connection = bench.connection().await;
    endpoints::pause(&mut connection, partner).await.unwrap();
    bench
        .results(&[delivered(partner, &due[0]), failed(partner, &due[1], 0)])
        .await;
    let many: Vec<Attempted> = due[2..].iter().map(|topup| failed(partner, topup, 0)).collect();
    bench.results(&many).await;
    assert_eq!(bench.endpoint(partner).await.state, "paused");
    assert!(bench.taken(&room(9, 9)).await.is_empty());
    let standing = endpoints::standing(&mut connection).await.unwrap();
    assert_eq!(
        (standing.paused, standing.blocked, standing.overdue),
        (1, 0, Duration::ZERO)
    );

    bench
        .set(
            "UPDATE deliveries SET redrive_at = now() + interval '1 hour' WHERE topup_id = $1",
            &due[3],
        )
        .await;
    assert_eq!(endpoints::resume(&mut connection, partner).await.unwrap(), 3);
    assert_eq!(bench.taken(&room(9, 9)).await.len(), 3);
}

#[tokio::test]
async fn a_new_url_has_no_history() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/old")).await;
    let due = bench.deliveries(partner, 4, false).await;
    let many: Vec<Attempted> = due[1..].iter().map(|topup| failed(partner, topup, 0)).collect();
    bench.results(&many).await;
    bench
        .set(
            "UPDATE deliveries SET redrive_at = now() + interval '1 hour' WHERE attempt > 0 AND topup_id <> $1",
            &due[0],
        )
        .await;
    // Not attempted, not due: its order may not be answered yet.
    bench
        .set(
            "UPDATE deliveries SET redrive_at = now() + interval '1 hour' WHERE topup_id = $1",
            &due[0],
        )
        .await;
    bench
        .set(
            "INSERT INTO endpoints (partner_id, failures, blocked_until) VALUES ($1::uuid, 9, now() + interval '1 hour')
             ON CONFLICT (partner_id) DO UPDATE SET blocked_until = excluded.blocked_until",
            partner,
        )
        .await;
    let mut connection = bench.connection().await;
    let url = Some("https://partner.example/new");
    let made_due = partners::set_webhook(&mut connection, partner, url)
        .await
        .unwrap();
    assert_eq!(made_due, Some(3));
    assert_eq!(bench.endpoint(partner).await.state, "open");
    assert_eq!(bench.taken(&room(9, 9)).await.len(), 3);

    endpoints::pause(&mut connection, partner).await.unwrap();
    partners::set_webhook(&mut connection, partner, url)
        .await
        .unwrap();
    assert_eq!(bench.endpoint(partner).await.state, "paused");
}

#[tokio::test]
async fn a_row_that_is_broken_is_taken_with_the_others() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/hook")).await;
    let due = bench.deliveries(partner, 3, false).await;
    let statement = "UPDATE topups SET profile = NULL, iccid = NULL WHERE topup_id = $1";
    bench.set(statement, &due[1]).await;
    assert_eq!(bench.taken(&room(9, 9)).await.len(), 3);
}

//! Endpoints: turns between them, blocks and probes, pauses.

use std::{collections::HashMap, time::Duration};

use domain::{PartnerId, TopupId};
use store::{
    deliveries::{self, AttemptResult, Attempted, Delivery, DeliveryPage, Read},
    endpoints::{self, Endpoint},
    partners,
};

use crate::{
    bench::{Bench, LEASE, esim, ids, page},
    deliveries::{BLOCK_POLICY, attempted},
};

impl Bench {
    async fn taken(&self, page: &DeliveryPage) -> Vec<Delivery> {
        self.read_due(page, LEASE).await
    }

    /// The number of claimed deliveries per partner.
    async fn turns(&self, page: &DeliveryPage) -> HashMap<PartnerId, usize> {
        let mut turns = HashMap::new();
        for delivery in self.taken(page).await {
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
async fn turns_go_round() {
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
    let first = bench.turns(&page(6, 100)).await;
    assert_eq!(first, HashMap::from([(big, 2), (other, 2), (small, 2)]));
    let next = bench.turns(&page(100, 3)).await;
    assert_eq!(next, HashMap::from([(big, 3), (other, 3)]));
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
    let all = page(100, 100);

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
    assert!(bench.taken(&all).await.is_empty());
    let first = Read::Young(Duration::from_mins(1));
    let first = deliveries::read(&mut *bench.connection().await, &ids(&announced), first).await;
    assert!(first.unwrap().is_empty());

    for expected in [20, 35, 35] {
        bench.end_block(partner).await;
        let (one, other) = tokio::join!(bench.taken(&all), bench.taken(&all));
        let probes = [one, other].concat();
        assert_eq!(probes.len(), 1, "one probe at a time");
        assert_eq!(bench.endpoint(partner).await.state, "probing");
        assert!(bench.taken(&all).await.is_empty());
        let probe = &probes[0];
        bench
            .results(&[failed(partner, &esim(probe).topup_id, probe.attempt)])
            .await;
        assert_eq!(bench.block(partner).await, expected, "bounded, and twice as long");
    }
    bench.end_block(partner).await;
    let probe = bench.taken(&all).await.remove(0);
    bench.results(&[delivered(partner, &esim(&probe).topup_id)]).await;
    assert_eq!(bench.endpoint(partner).await.state, "open");
    assert!(bench.taken(&all).await.len() >= 5, "all that waited go out");
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
    assert!(bench.taken(&page(9, 9)).await.is_empty());
    let backlog = endpoints::backlog(&mut connection).await.unwrap();
    assert_eq!(
        (
            backlog.paused,
            backlog.blocked,
            backlog.overdue_live.max(backlog.overdue_sandbox)
        ),
        (1, 0, Duration::ZERO)
    );

    bench.deliver_in(&due[3..], 3600.0).await;
    assert_eq!(endpoints::resume(&mut connection, partner).await.unwrap(), 3);
    assert_eq!(bench.taken(&page(9, 9)).await.len(), 3);
}

#[tokio::test]
async fn a_new_url_has_no_history() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/old")).await;
    let due = bench.deliveries(partner, 4, false).await;
    let many: Vec<Attempted> = due[1..].iter().map(|topup| failed(partner, topup, 0)).collect();
    bench.results(&many).await;
    bench.deliver_in(&due[1..], 3600.0).await;
    // Due soon: it may be leased.
    bench.deliver_in(&due[..1], 20.0).await;
    let sql = "INSERT INTO endpoints (partner_id, failures, blocked_until) VALUES ($1::uuid, 9, now() + interval '1 hour')
             ON CONFLICT (partner_id) DO UPDATE SET blocked_until = excluded.blocked_until";
    bench.set(sql, partner).await;
    let mut connection = bench.connection().await;
    let url = Some("https://partner.example/new");
    let made_due = partners::set_webhook(&mut connection, partner, url)
        .await
        .unwrap();
    assert_eq!(made_due, Some(3));
    assert_eq!(bench.endpoint(partner).await.state, "open");
    assert_eq!(bench.taken(&page(9, 9)).await.len(), 3);

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
    let statement = "UPDATE esims SET profile = NULL, iccid = NULL WHERE topup_id = $1";
    bench.set(statement, &due[1]).await;
    assert_eq!(bench.taken(&page(9, 9)).await.len(), 3);
}

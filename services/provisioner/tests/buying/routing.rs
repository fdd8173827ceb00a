//! Options that several providers sell: a rejection leads to the next provider, and nothing else
//! does. The seller speaks all protocols over one ledger, so its count of purchases covers all
//! providers together.

use std::time::Duration;

use domain::PlacementId;

use crate::support::{Bench, Stored};

/// A provisioner that buys from three providers.
async fn bench(change: impl FnOnce(&mut provisioner::Config)) -> Bench {
    Bench::start(|config| {
        config.providers = ["sandbox", "esim-access", "airalo"]
            .map(str::to_owned)
            .into();
        change(config);
    })
    .await
}

/// The provider that the placement is at, and that of its eSIM.
async fn providers(bench: &Bench, id: PlacementId) -> (String, Option<String>) {
    sqlx::query_as(
        "SELECT p.provider, max(e.provider) FROM placements p JOIN topups t USING (placement_id)
         LEFT JOIN esims e USING (topup_id) WHERE p.placement_id = $1 GROUP BY p.placement_id",
    )
    .bind(id.uuid())
    .fetch_one(&bench.pool)
    .await
    .unwrap()
}

fn ended(stored: &Stored) -> bool {
    !["accepted", "placing"].contains(&stored.state.as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_purchase_is_made_at_the_next_provider() {
    let bench = bench(|_| {}).await;
    let id = bench
        .accept_routed(&[
            ("sandbox", "out-of-stock"),
            ("esim-access", "refused"),
            ("airalo", "ready"),
        ])
        .await;
    let stored = bench.ready(id).await;
    assert_eq!((stored.state.as_str(), stored.attempt), ("placed", 3));
    assert_eq!((stored.ready, stored.deliveries, stored.failed), (1, 1, 0));
    let airalo = || "airalo".to_owned();
    assert_eq!(providers(&bench, id).await, (airalo(), Some(airalo())));
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
    for (from, to) in [("sandbox", "esim-access"), ("esim-access", "airalo")] {
        let labels = [format!("provider=\"{from}\""), format!("to=\"{to}\"")];
        let labels = labels.each_ref().map(String::as_str);
        let rerouted = bench
            .metric("esim_placements_rerouted_total", &labels)
            .await;
        assert!(rerouted >= 1.0, "{labels:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_every_provider_rejects_fails_with_the_last_reason() {
    let bench = bench(|_| {}).await;
    let id = bench
        .accept_routed(&[("esim-access", "out-of-stock"), ("airalo", "out-of-stock")])
        .await;
    let stored = bench.until(id, ended).await;
    assert_eq!((stored.state.as_str(), stored.attempt), ("failed", 2));
    assert_eq!((stored.failed, stored.due), (1, false));
    // 33 is the code of Airalo.
    assert!(stored.reason.unwrap().contains("33"));
    assert_eq!(bench.sandbox.bought(id).await, (0, 0));
}

/// The first provider may have sold it, so nobody else is asked: neither while the outcome is
/// unknown, nor after a look-up has found nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_outcome_leads_to_no_other_provider() {
    let bench = bench(|config| config.park_after = Duration::from_secs(4)).await;
    let lost = bench
        .accept_routed(&[("esim-access", "bought-then-error"), ("airalo", "ready")])
        .await;
    let never_sent = bench
        .accept_routed(&[("esim-access", "flapping"), ("airalo", "ready")])
        .await;
    let repeated = bench
        .accept_routed(&[("sandbox", "flapping"), ("airalo", "ready")])
        .await;
    for (id, state, provider, bought) in [
        (lost, "placed", "esim-access", 1),
        (never_sent, "parked", "esim-access", 0),
        (repeated, "placed", "sandbox", 1),
    ] {
        let stored = bench.hurry(id, ended).await;
        assert_eq!((stored.state.as_str()), state, "{provider}: {stored:?}");
        assert_eq!(providers(&bench, id).await.0, provider);
        assert_eq!(bench.sandbox.bought(id).await, (bought, bought));
    }
}

/// A provider that is busy sells a moment later, so the order waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_provider_is_not_left() {
    let bench = bench(|_| {}).await;
    let id = bench
        .accept_routed(&[("airalo", "rate-limited"), ("esim-access", "ready")])
        .await;
    assert!(bench.ready(id).await.attempt >= 3);
    assert_eq!(providers(&bench, id).await.0, "airalo");
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
}

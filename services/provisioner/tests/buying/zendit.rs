//! Orders at Zendit, through the whole stage. Each of their purchases is one eSIM, and a look-up
//! that finds none proves that there is none. The program for tests (`tests/upstreams`) speaks the
//! protocol, and sells a second time if it is asked a second time.

use crate::support::{Bench, TOKEN, change_account};

async fn bench(change: impl FnOnce(&mut provisioner::Config)) -> Bench {
    Bench::start(|config| {
        config.providers = ["zendit", "airalo"].map(str::to_owned).into();
        change(config);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_bought_once_whatever_becomes_of_its_answer() {
    let bench = bench(|_| {}).await;
    let mut placements = Vec::new();
    for option in [
        "ready",
        "delayed",
        "bought-then-error",
        "bought-then-silent",
        "slow",
        "rate-limited",
    ] {
        placements.push((option, bench.accept_at("zendit", &[option]).await));
    }
    for (option, id) in placements {
        let stored = bench.ready(id).await;
        assert_eq!(stored.state, "placed", "{option}");
        assert_eq!((stored.ready, stored.deliveries), (1, 1), "{option}");
        assert_eq!(bench.sandbox.bought(id).await, (1, 1), "{option}");
        assert_eq!(bench.unit(id).await, id.to_string(), "{option}");
    }
    assert_eq!(bench.breaker("zendit").await, ("closed", 0));
}

/// The first attempts get an error and buy nothing. Two look-ups say so, and the next one buys.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_found_twice_is_bought_again() {
    let bench = bench(|_| {}).await;
    let id = bench.accept_at("zendit", &["flapping"]).await;
    let stored = bench.hurry(id, |stored| stored.ready == 1).await;
    assert!(stored.attempt > 1, "{stored:?}");
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_not_bought_again() {
    let bench = bench(|_| {}).await;
    for (option, status) in [("refused", "NOT_FOUND"), ("out-of-stock", "FAILED")] {
        let id = bench.accept_at("zendit", &[option]).await;
        let stored = bench.until(id, |stored| stored.failed == 1).await;
        assert_eq!((stored.state.as_str(), stored.attempt), ("failed", 1));
        assert!(stored.reason.unwrap().contains(status), "{option}");
        assert_eq!(bench.sandbox.bought(id).await, (0, 0));
    }
    // This one fails after it was accepted.
    let id = bench.accept_at("zendit", &["partly"]).await;
    let stored = bench.hurry(id, |stored| stored.failed == 1).await;
    assert_eq!((stored.state.as_str(), stored.attempt), ("placed", 1));
    assert_eq!(stored.deliveries, 0);
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
    // A rejection lets the next provider sell.
    let id = bench
        .accept_routed(&[("zendit", "out-of-stock"), ("airalo", "ready")])
        .await;
    assert_eq!(bench.ready(id).await.deliveries, 1);
}

/// An eSIM whose state or refund says nothing that we know, or that it is useless, is never
/// delivered.
#[tokio::test(flavor = "multi_thread")]
async fn an_esim_in_an_unknown_state_is_held() {
    let bench = bench(|config| config.park_after = std::time::Duration::from_secs(2)).await;
    for (option, field) in [("odd-state", "status"), ("refunding", "refund")] {
        let id = bench.accept_at("zendit", &[option]).await;
        let stored = bench.hurry(id, |stored| stored.state == "parked").await;
        assert_eq!((stored.deliveries, stored.ready), (0, 0), "{option}");
        let reason = stored.reason.unwrap_or_default();
        assert_eq!(reason, format!("profile_unreadable: {field}"), "{option}");
    }
}

/// A purchase takes no price, so the list of offers is compared before anything is sent. An offer
/// costs its fixed cost and its fee.
#[tokio::test(flavor = "multi_thread")]
async fn a_raised_price_is_not_paid_silently() {
    let bench = bench(|_| {}).await;
    for (option, state) in [("ready@3.25", "placed"), ("ready@3.24", "failed")] {
        let id = bench.accept_at("zendit", &[option]).await;
        let ended = |state: &str| matches!(state, "placed" | "failed");
        let stored = bench.until(id, |stored| ended(&stored.state)).await;
        assert_eq!(stored.state, state, "{option}");
        let units = u64::from(state == "placed");
        assert_eq!(bench.sandbox.bought(id).await, (units, units));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_brings_its_collect_forward_and_its_url_can_be_tried() {
    let bench = bench(|_| {}).await;
    let id = bench.accept_at("zendit", &["delayed"]).await;
    bench.until(id, |stored| stored.bought).await;
    // Without a callback it would not be looked at before tomorrow.
    let tomorrow = "UPDATE work SET at = now() + interval '1 day' WHERE id = $1";
    bench.set(tomorrow, id).await;
    assert_eq!(bench.ready(id).await.deliveries, 1);
    // Before Zendit saves the URL it asks whether there is something at it.
    for (token, status) in [(TOKEN, 200), ("another-token-of-16", 404)] {
        let url = format!("http://{}/callbacks/zendit/{token}", bench.config.listen);
        let tried = bench.http.head(url).send().await.unwrap();
        assert_eq!(tried.status(), status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_tried_without_buying() {
    let bench = bench(|_| {}).await;
    let report = bench.esimctl("provider check zendit").await;
    assert_eq!(report["account"], "accepted", "{report}");
    assert_eq!(report["balance"], "100000 USD", "{report}");
    let exact = report["look_up"].as_str().unwrap_or_default();
    assert!(exact.starts_with("exact"), "{report}");
    let report = bench
        .esimctl("provider check zendit --zendit-access-key wrong")
        .await;
    let error = report["error"].as_str().unwrap_or_default();
    assert!(error.contains("our account is denied"), "{report}");
    assert_eq!(bench.sandbox.purchases().await, 0);
}

/// What was bought is compared with the list of the provider, and nothing is missing or left over.
#[tokio::test(flavor = "multi_thread")]
async fn purchases_are_listed() {
    let bench = bench(|_| {}).await;
    let id = bench.accept_at("zendit", &["ready"]).await;
    bench.ready(id).await;
    let url = bench.sandbox.url();
    let account = crate::hostile::connect("zendit", url.as_str());
    let until = runtime::clock::now() + time::Duration::minutes(1);
    let span = provisioner::providers::PurchasePeriod {
        since: until - time::Duration::hours(1),
        until,
    };
    let listed = account.purchases(span, 1).await.unwrap();
    let [sold] = listed.entries.as_slice() else {
        panic!("{listed:?}")
    };
    assert_eq!(sold.order_id, id.to_string());
    assert_eq!(
        sold.price.map(|price| price.to_string()).as_deref(),
        Some("3.25")
    );
    let earlier = provisioner::providers::PurchasePeriod {
        since: span.since - time::Duration::hours(2),
        until: span.since,
    };
    assert!(
        account
            .purchases(earlier, 1)
            .await
            .unwrap()
            .entries
            .is_empty()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_keys_open_the_breaker() {
    let bench = bench(|config| change_account(config, "zendit", "ACCESS_KEY", "wrong")).await;
    let id = bench.accept_at("zendit", &["ready"]).await;
    bench.until_breaker("zendit", "open").await;
    assert_eq!(bench.sandbox.bought(id).await, (0, 0));
}

//! Providers that name a purchase by an id of their own, and whose look-ups prove no absence: eSIM
//! Access and Airalo. The program for tests (`tests/upstreams`) speaks both protocols.

use std::time::Duration;

use domain::{PlacementId, esim_change::GiveBackCause};
use provisioner::providers::{
    DeliveredEsim, GiveBackResponse, ProviderId, Purchase, PurchaseResponse,
};
use serde_json::json;
use testkit::wait;

use crate::hostile::{connect, http, replay};
use crate::operator;
use crate::support::{Bench, Stored, TOKEN, change_account, provider_option};

const UPSTREAMS: [&str; 2] = ["esim-access", "airalo"];

/// A provisioner that buys from the sandbox by both protocols.
async fn bench(change: impl FnOnce(&mut provisioner::Config)) -> Bench {
    Bench::start(|config| {
        config.providers = UPSTREAMS.map(str::to_owned).into();
        change(config);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_bought_once_and_its_reference_is_stored() {
    let bench = bench(|_| {}).await;
    for provider in UPSTREAMS {
        for option in ["ready", "delayed"] {
            let id = bench.accept_at(provider, &[option, option]).await;
            let stored = bench.ready(id).await;
            assert_eq!(stored.state, "placed", "{provider}");
            assert_eq!((stored.ready, stored.deliveries, stored.due), (2, 2, false));
            assert!(stored.reference.is_some(), "{provider} {option}");
            assert_eq!(bench.sandbox.bought(id).await, (1, 2), "{provider}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_bought_without_an_answer_is_found_by_a_search() {
    let bench = bench(|_| {}).await;
    let mut placements = Vec::new();
    for provider in UPSTREAMS {
        for option in ["bought-then-error", "bought-then-silent", "slow"] {
            placements.push((provider, option, bench.accept_at(provider, &[option]).await));
        }
    }
    for (provider, option, id) in placements {
        let stored = bench.ready(id).await;
        assert_eq!(
            (stored.state.as_str(), stored.attempt),
            ("placed", 1),
            "{provider} {option}"
        );
        assert!(stored.reference.is_some(), "{provider} {option}");
        assert_eq!(
            bench.sandbox.bought(id).await,
            (1, 1),
            "{provider} {option}"
        );
    }
}

/// Nearly two thousand eSIMs are made around the attempt, before it and after it, in purchases of
/// 30, which is the most that the provider takes. They may all fall into one slot of the search.
#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_is_found_among_those_of_a_busy_account() {
    let bench = bench(|_| {}).await;
    let url = bench.sandbox.url();
    let account = connect("esim-access", url.as_str());
    let others = async || {
        for _ in 0..32 {
            let purchase = Purchase {
                placement_id: PlacementId::new(),
                items: vec![(provider_option("ready"), 30)],
                send_by: runtime::clock::Moment::now() + Duration::from_mins(1),
            };
            let answer = account.purchase(&purchase).await;
            assert!(
                matches!(answer, Ok(PurchaseResponse::Bought(_))),
                "{answer:?}"
            );
        }
    };
    others().await;
    let options = ["bought-then-error", "bought-then-silent"];
    let placements = [
        bench.accept_at("esim-access", &options[..1]).await,
        bench.accept_at("esim-access", &options[1..]).await,
    ];
    others().await;
    for id in placements {
        let stored = bench.ready(id).await;
        assert_eq!((stored.state.as_str(), stored.attempt), ("placed", 1));
        assert_eq!(bench.sandbox.bought(id).await, (1, 1));
    }
    assert_eq!(bench.breaker("esim-access").await, ("closed", 0));
}

/// The first attempt gets an error and buys nothing. USIMSA would be asked twice and then bought
/// from again; here no answer proves that there is no purchase.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_found_is_parked_and_never_bought_again() {
    let bench = bench(|config| config.park_after = Duration::from_secs(4)).await;
    let mut placements = Vec::new();
    for provider in UPSTREAMS {
        placements.push((provider, bench.accept_at(provider, &["flapping"]).await));
    }
    for (provider, id) in placements {
        let parked = bench
            .hurry(id, |stored| {
                !["accepted", "placing"].contains(&stored.state.as_str())
            })
            .await;
        assert_eq!(
            (parked.state.as_str(), parked.attempt),
            ("parked", 1),
            "{provider}"
        );
        let reason = parked.reason.unwrap();
        assert_eq!(reason, "search_proves_nothing");
        assert!(parked.not_found, "{provider}: it was looked up before");
        // An operator who asks hears no more than that.
        operator::ask(&bench, &[id]).await;
        let said = operator::answer(&bench, id).await;
        assert!(
            said.is_missing && !said.proves_absence(),
            "{provider}: {said:?}"
        );
        assert_eq!(bench.look(id).await.state, "parked", "{provider}");
        assert_eq!(bench.sandbox.bought(id).await, (0, 0), "{provider}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_provider_is_asked_again_if_it_has_not_sold_and_a_refusal_is_final() {
    let bench = bench(|config| config.park_after = Duration::from_secs(4)).await;
    for (provider, invalid, sold_out) in
        [("esim-access", "310241", "200011"), ("airalo", "34", "33")]
    {
        let busy = bench.accept_at(provider, &["rate-limited"]).await;
        for (option, code) in [("refused", invalid), ("out-of-stock", sold_out)] {
            let id = bench.accept_at(provider, &[option]).await;
            let stored = bench.until(id, |stored| stored.failed == 1).await;
            assert_eq!(
                (stored.state.as_str(), stored.attempt),
                ("failed", 1),
                "{provider}"
            );
            assert!(stored.reason.unwrap().contains(code), "{provider} {option}");
            assert_eq!(bench.sandbox.bought(id).await, (0, 0));
        }
        if provider == "airalo" {
            // On a slow machine an attempt may be abandoned because it was recorded too long ago.
            assert!(bench.ready(busy).await.attempt >= 3, "{provider}");
            assert_eq!(bench.sandbox.bought(busy).await, (1, 1));
        } else {
            // Nobody says that `900001` bought nothing, so it is looked for and never sent again.
            let parked = bench.hurry(busy, |stored| stored.state == "parked").await;
            assert_eq!(parked.attempt, 1, "{provider}");
        }
        assert_eq!(bench.breaker(provider).await, ("closed", 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_keys_open_the_breaker() {
    let bench = bench(|config| {
        for provider in UPSTREAMS {
            change_account(config, provider, "SECRET_KEY", "wrong");
        }
    })
    .await;
    for provider in UPSTREAMS {
        let id = bench.accept_at(provider, &["ready"]).await;
        bench.until_breaker(provider, "open").await;
        // The probe is denied again, or does not even ask for a token, because one was asked for a
        // moment ago. Neither is a response that closes the breaker.
        let waits = |stored: &Stored| stored.state == "accepted" && stored.due;
        let denied = bench.until(id, waits).await.attempt;
        bench.due_now(id).await;
        bench.half_open(provider).await;
        let probed = |stored: &Stored| stored.attempt > denied && waits(stored);
        bench.until(id, probed).await;
        assert_eq!(bench.breaker(provider).await.0, "open", "{provider}");
        assert_eq!(bench.sandbox.bought(id).await, (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raised_price_is_not_paid_silently() {
    let bench = bench(|_| {}).await;
    let settled = async |provider, option| -> (PlacementId, String) {
        let id = bench.accept_at(provider, &[option]).await;
        let ended = |state: &str| matches!(state, "placed" | "failed");
        let stored = bench.until(id, |stored| ended(&stored.state)).await;
        (id, stored.state)
    };
    // eSIM Access compares the price, and sells at the one that it asks for.
    assert_eq!(settled("esim-access", "ready@1.50").await.1, "placed");
    let (refused, state) = settled("esim-access", "ready@1.40").await;
    assert_eq!(state, "failed");
    assert!(bench.look(refused).await.reason.unwrap().contains("200005"));
    assert_eq!(bench.sandbox.bought(refused).await, (0, 0));
    // Airalo takes no price with a purchase, so its list is compared before anything is sent.
    assert_eq!(settled("airalo", "ready@4.50").await.1, "placed");
    let (refused, state) = settled("airalo", "ready@4.40").await;
    assert_eq!(state, "failed");
    assert!(
        bench
            .look(refused)
            .await
            .reason
            .unwrap()
            .contains("4.50 now")
    );
    assert_eq!(bench.sandbox.bought(refused).await, (0, 0));
    assert_eq!(settled("airalo", "ready@4.50").await.1, "placed");
    // The response says 4.50, which is twice what the option allows for a unit. It could be read as
    // the sum of two units.
    let twice = bench
        .accept_at("airalo", &["ready@2.25", "ready@2.25"])
        .await;
    let stored = bench
        .until(twice, |stored| {
            matches!(&stored.state[..], "placed" | "failed")
        })
        .await;
    assert_eq!(stored.state, "failed");
    assert_eq!(bench.sandbox.bought(twice).await, (0, 0));
}

/// With `discount_pricing` no package of Airalo names a net price: we pay what consumers pay, 9.00,
/// less a percentage.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_pays_by_a_discount_buys_only_what_its_options_allow() {
    let mut bench = bench(|_| {}).await;
    let settled = async |bench: &Bench, option| {
        let id = bench.accept_at("airalo", &[option]).await;
        let ended = |state: &str| matches!(state, "placed" | "failed");
        let stored = bench.until(id, |stored| ended(&stored.state)).await;
        (stored, bench.sandbox.bought(id).await)
    };
    bench.sandbox.airalo_discount(50).await;
    let (stored, bought) = settled(&bench, "ready@4.50").await;
    assert_eq!((&*stored.state, bought), ("placed", (1, 1)));
    // The discount gets less. A list is read once an hour, and by each new process.
    bench.stop().await;
    bench.sandbox.airalo_discount(40).await;
    bench.run().await;
    let (stored, bought) = settled(&bench, "ready@4.50").await;
    assert_eq!((&*stored.state, bought), ("failed", (0, 0)));
    assert!(stored.reason.unwrap().contains("5.40 now"));
    let (stored, bought) = settled(&bench, "ready@5.40").await;
    assert_eq!((&*stored.state, bought), ("placed", (1, 1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_of_a_purchase_brings_its_collect_forward() {
    let bench = bench(|_| {}).await;
    let id = bench.accept_at("esim-access", &["delayed"]).await;
    bench.until(id, |stored| stored.bought).await;
    // Without a callback it would not be looked at before tomorrow.
    let tomorrow = "UPDATE work SET at = now() + interval '1 day' WHERE id = $1";
    bench.set(tomorrow, id).await;
    assert_eq!(bench.ready(id).await.deliveries, 1);
    // The test that the provider sends when the URL is set is acknowledged.
    let path = format!("/callbacks/esim-access/{TOKEN}");
    let test = json!({ "notifyType": "CHECK_HEALTH", "content": { "orderNo": "1" } });
    assert_eq!(bench.call_back(&path, test.to_string()).await, 200);
}

/// Both units fail at the provider in their own way; neither is lost or bought again.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_batch_is_collected_and_a_failed_unit_is_not_lost() {
    let bench = bench(|_| {}).await;
    let id = bench.accept_at("esim-access", &["ready"; 30]).await;
    let stored = bench.ready(id).await;
    assert_eq!((stored.ready, stored.attempt), (30, 1));
    let id = bench.accept_at("esim-access", &["partly", "partly"]).await;
    let stored = bench
        .hurry(id, |stored| stored.pending == 0 && stored.failed == 1)
        .await;
    assert_eq!((stored.ready, stored.failed), (1, 1));
    assert_eq!(bench.sandbox.bought(id).await, (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_tried_without_buying() {
    let bench = bench(|_| {}).await;
    for provider in UPSTREAMS {
        let report = bench.esimctl(&format!("provider check {provider}")).await;
        assert_eq!(report["account"], "accepted", "{provider}: {report}");
        let balance = report["balance"].as_str().unwrap_or_default();
        assert!(balance.ends_with(" USD"), "{provider}: {report}");
        assert!(
            report["clock_ahead_seconds"].is_i64(),
            "{provider}: {report}"
        );
        let wrong = format!("provider check {provider} --{provider}-secret-key wrong");
        let report = bench.esimctl(&wrong).await;
        let error = report["error"].as_str().unwrap_or_default();
        assert!(
            error.contains("our account is denied"),
            "{provider}: {report}"
        );
    }
    let exact = bench.esimctl("provider check sandbox").await;
    assert_eq!(exact["balance"], json!(null), "{exact}");
    assert_eq!(bench.sandbox.purchases().await, 0);
    // The provisioner reads the balance, too.
    wait::soon("the balance to be read", async || {
        let balance = bench.metric("esim_provider_balance", &["airalo"]).await;
        Ok((balance > 99_999.0).then_some(()))
    })
    .await;
}

/// A customer gives an eSIM back, and the provider sells the same line to the next one.
#[tokio::test(flavor = "multi_thread")]
async fn an_iccid_that_is_sold_again_after_a_cancel_is_delivered_again() {
    let bench = bench(|_| {}).await;
    let url = bench.sandbox.url();
    let account = connect("esim-access", url.as_str());
    let iccid = async |id: PlacementId| -> String {
        let iccid = "SELECT iccid FROM esims JOIN topups USING (topup_id) WHERE placement_id = $1";
        sqlx::query_scalar(iccid)
            .bind(id.uuid())
            .fetch_one(&bench.pool)
            .await
            .unwrap()
    };
    let first = bench.accept_at("esim-access", &["ready"]).await;
    bench.ready(first).await;
    let esim = DeliveredEsim {
        unit_id: ProviderId::parse(bench.unit(first).await).unwrap(),
        iccid: domain::Iccid::parse(&iccid(first).await).unwrap(),
    };
    let returned = account.give_back(&esim, GiveBackCause::Other).await;
    assert_eq!(returned, Ok(GiveBackResponse::Returned));
    let second = bench.accept_at("esim-access", &["ready"]).await;
    let stored = bench.ready(second).await;
    assert_eq!((stored.state.as_str(), stored.deliveries), ("placed", 1));
    assert_eq!(iccid(second).await, iccid(first).await);
}

/// In its test mode Airalo gives each eSIM the same activation code, which installs nothing.
#[tokio::test(flavor = "multi_thread")]
async fn all_esims_of_the_test_mode_of_airalo_are_delivered() {
    let bench = bench(|_| {}).await;
    for _ in 0..2 {
        let id = bench.accept_at("airalo", &["test-mode", "test-mode"]).await;
        let stored = bench.ready(id).await;
        assert_eq!(
            (stored.state.as_str(), stored.ready, stored.deliveries),
            ("placed", 2, 2)
        );
    }
}

/// Airalo makes the eSIMs of an order before it responds, and names no time for that; others give
/// it a minute (November 2026). A response that is given up too early is never got again.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_at_airalo_may_take_longer_than_another_call() {
    let bench = bench(|config| {
        config.provider_timeout = Duration::from_secs(2);
        config.settle = Duration::from_secs(5);
    })
    .await;
    let id = bench.accept_at("airalo", &["slow"]).await;
    assert_eq!(bench.ready(id).await.attempt, 1);
    let noted = "SELECT count(*) FROM history WHERE placement_id = $1";
    let noted: i64 = sqlx::query_scalar(noted)
        .bind(id.uuid())
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    assert_eq!(noted, 0, "its outcome was never unknown");
}

/// An eSIM whose state says that nobody can use it, or says nothing that we know, is never
/// delivered, although it has a whole profile.
#[tokio::test(flavor = "multi_thread")]
async fn an_esim_in_another_state_than_new_is_not_delivered() {
    let bench = bench(|config| config.park_after = Duration::from_secs(2)).await;
    let state = async |provider, option| {
        let id = bench.accept_at(provider, &[option]).await;
        let ended = |stored: &Stored| stored.state == "parked" || stored.failed == 1;
        let stored = bench.hurry(id, ended).await;
        assert_eq!(
            (stored.deliveries, stored.ready),
            (0, 0),
            "{provider} {option}"
        );
        stored
    };
    for option in ["revoke", "revoked"] {
        assert_eq!(state("esim-access", option).await.failed, 1, "{option}");
    }
    let held = [
        ("esim-access", "suspended", "esimStatus"),
        ("esim-access", "unused-expired", "esimStatus"),
        ("esim-access", "odd-state", "esimStatus"),
        ("airalo", "partially-refunded", "status"),
        ("airalo", "odd-state", "status"),
    ];
    for (provider, option, field) in held {
        let stored = state(provider, option).await;
        let reason = stored.reason.unwrap_or_default();
        assert_eq!(reason, format!("profile_unreadable: {field}"), "{option}");
        assert!(stored.bought, "{option}");
    }
}

/// The provider allows orders by slug, and answers with the code of the package.
#[tokio::test(flavor = "multi_thread")]
async fn an_option_that_is_ordered_by_its_slug_is_delivered() {
    let bench = bench(|_| {}).await;
    for options in [&["=ready"][..], &["=ready", "=delayed"]] {
        let id = bench.accept_at("esim-access", options).await;
        let stored = bench
            .until(id, |stored| {
                stored.ready == i64::try_from(options.len()).unwrap()
            })
            .await;
        assert_eq!(stored.state, "placed");
    }
}

/// The provider does not understand our searches. It sells all the same, so the option that loses
/// its answers is the only one that is held back.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_that_fails_does_not_stop_the_sale() {
    testkit::http::client().unwrap(); // This installs the TLS provider.
    let url = replay(http("500 X", "", b"")).await;
    let bench = bench(|config| {
        config.breaker_failures = 3;
        change_account(config, "esim-access", "URL", url.as_str());
    })
    .await;
    let id = bench.accept_at("esim-access", &["ready"]).await;
    let stored = bench.hurry(id, |stored| stored.unknowns >= 6).await;
    assert_eq!((stored.state.as_str(), stored.attempt), ("placing", 1));
    assert_eq!(bench.breaker("esim-access").await, ("closed", 0));
}

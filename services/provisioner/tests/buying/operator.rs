//! Parked placements and how they are resolved.

use std::time::Duration;

use domain::PlacementId;
use serde_json::json;
use testkit::wait;

use store::placements::asked::{self, ProviderAnswer};

use crate::support::{Bench, Stored};

fn is_parked(stored: &Stored) -> bool {
    stored.state == "parked"
}

#[tokio::test(flavor = "multi_thread")]
async fn profiles_that_do_not_come_park_visibly_and_are_still_asked_for() {
    let bench = Bench::start(|config| config.park_after = Duration::from_secs(1)).await;
    let id = bench.accept(&["never-ready"]).await;
    let stored = bench.hurry(id, is_parked).await;
    assert!(
        stored.bought && stored.due && stored.pending == 1,
        "{stored:?}"
    );
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
    let text = id.to_string();
    let again = bench
        .esimctl(&format!(
            "placement resolve {text} --retry --yes --reason test"
        ))
        .await;
    assert!(
        again["error"].as_str().unwrap().contains("twice"),
        "{again}"
    );
    // A collect in flight may still report the purchase; then the placement is parked again, as
    // disputed.
    let resolve = format!("placement resolve {text} --not-bought --yes --reason test");
    let stored = wait::soon("a placement that stays given up", async || {
        let given_up = bench.esimctl(&resolve).await;
        assert_eq!(
            (&given_up["state"], &given_up["failed"]),
            (&json!("failed"), &json!(1))
        );
        let stored = bench.look(id).await;
        Ok((stored.state == "failed").then_some(stored))
    })
    .await;
    assert_eq!((stored.due, stored.failed), (false, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_whose_collects_fail_parks_with_the_failed_call() {
    let bench = Bench::start(|_| {}).await;
    let id = bench.accept(&["never-ready"]).await;
    bench.until(id, |stored| stored.bought).await;
    bench.sandbox.faults(json!({ "error_rate": 1.0 })).await;
    bench.hurry(id, |stored| stored.unknowns >= 4).await;
    let aged =
        "UPDATE placements SET placed_at = placed_at - interval '1 day' WHERE placement_id = $1";
    bench.set(aged, id).await;
    let reason = bench.hurry(id, is_parked).await.reason.unwrap();
    assert!(reason.starts_with("profiles_uncollectable: "), "{reason}");
    assert!(reason.contains("500"), "{reason}");
}

/// Repeated unknown outcomes park a placement; a long outage alone parks nothing.
async fn in_doubt(bench: &Bench) -> String {
    bench.sandbox.faults(json!({ "error_rate": 1.0 })).await;
    let id = bench.accept(&["ready"]).await;
    for unknowns in 1..5 {
        let stored = bench.hurry(id, |stored| stored.unknowns >= unknowns).await;
        assert!(
            stored.unknowns > 4 || stored.state == "placing",
            "{stored:?}"
        );
    }
    let stored = bench.hurry(id, is_parked).await;
    assert!(
        !stored.bought && !stored.due && stored.pending == 1,
        "{stored:?}"
    );
    bench.sandbox.faults(json!({})).await;
    let listed = bench
        .esimctl("placement list --state parked --provider sandbox")
        .await;
    let listed = listed["placements"].as_array().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["placement_id"], id.to_string());
    id.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_lets_what_is_not_bought_be_bought() {
    let bench = Bench::start(|config| config.park_after = Duration::from_millis(1)).await;
    let text = in_doubt(&bench).await;
    let id = text.parse().unwrap();
    let settled = bench
        .esimctl(&format!(
            "placement resolve {text} --retry --yes --reason test"
        ))
        .await;
    assert_eq!(settled["state"], "accepted", "{settled}");
    let stored = bench.ready(id).await;
    assert_eq!((stored.state.as_str(), stored.attempt), ("placed", 2));
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
    let again = bench
        .esimctl(&format!(
            "placement resolve {text} --retry --yes --reason test"
        ))
        .await;
    assert!(
        again["error"].as_str().unwrap().contains("placed"),
        "{again}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_finds_that_it_was_bought() {
    let bench = Bench::start(|config| config.park_after = Duration::from_millis(1)).await;
    // Every call that reaches the provider buys, and no response arrives.
    bench
        .sandbox
        .faults(json!({ "error_rate": 1.0, "error_buys": 1.0 }))
        .await;
    let id = bench.accept(&["ready"]).await;
    bench.hurry(id, is_parked).await;
    bench.sandbox.faults(json!({})).await;
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
    let settled = bench
        .esimctl(&format!(
            "placement resolve {id} --bought --yes --reason test"
        ))
        .await;
    assert_eq!(
        (&settled["state"], &settled["pending"]),
        (&json!("placed"), &json!(1))
    );
    let stored = bench.ready(id).await;
    assert_eq!((stored.attempt, stored.deliveries), (1, 1));
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
}

/// Asks about purchases on hold, as the console does.
pub async fn ask(bench: &Bench, ids: &[PlacementId]) {
    let mut connection = bench.pool.acquire().await.unwrap();
    let asked = asked::ask(&mut connection, ids).await.unwrap();
    assert_eq!(asked.len(), ids.len());
}

/// What the provider has said about a purchase on hold that nobody asks about any more.
pub async fn answer(bench: &Bench, id: PlacementId) -> ProviderAnswer {
    wait::soon("an answer of the provider", async || {
        if bench.look(id).await.due {
            return Ok(None);
        }
        let mut connection = bench.pool.acquire().await?;
        let answers = asked::answers(&mut connection, &[id.uuid()]).await?;
        Ok(answers.get(&id.uuid()).cloned())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_provider_has_goes_on_when_an_operator_asks_and_the_rest_stays_on_hold() {
    let bench = Bench::start(|config| config.park_after = Duration::from_millis(1)).await;
    // No response arrives: the first purchase is made all the same, and the second one is not.
    let mut placements = Vec::new();
    for error_buys in [1.0, 0.0] {
        let faults = json!({ "error_rate": 1.0, "error_buys": error_buys });
        bench.sandbox.faults(faults).await;
        let id = bench.accept(&["ready"]).await;
        bench.hurry(id, is_parked).await;
        placements.push(id);
        bench.sandbox.faults(json!({})).await;
        let other = bench.accept(&["ready"]).await;
        bench.ready(other).await;
    }
    let made = placements[0];
    let missing = placements[1];
    ask(&bench, &placements).await;
    let stored = bench.ready(made).await;
    assert_eq!((stored.state.as_str(), stored.attempt), ("placed", 1));
    let said = answer(&bench, missing).await;
    assert!(said.proves_absence(), "{said:?}");

    // Without a response it stays as it is, and may be asked about again.
    bench.sandbox.faults(json!({ "error_rate": 1.0 })).await;
    ask(&bench, &[missing]).await;
    let failed = wait::soon("a newer answer", async || {
        let newer = answer(&bench, missing).await;
        Ok((newer.at > said.at).then_some(newer))
    })
    .await;
    assert!(!failed.is_missing, "{failed:?}");
    assert!(failed.reason.told().unwrap().contains("500"), "{failed:?}");
    let stored = bench.look(missing).await;
    assert_eq!((stored.state.as_str(), stored.attempt), ("parked", 1));
    assert_eq!(bench.sandbox.bought(made).await, (1, 1));
    assert_eq!(bench.sandbox.bought(missing).await, (0, 0));
}

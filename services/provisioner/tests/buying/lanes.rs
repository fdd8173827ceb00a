//! Lanes whose purchases are held back.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::wait;

use crate::support::Bench;

async fn lanes(bench: &Bench) -> Vec<Value> {
    bench.esimctl("provider list --lanes").await["lanes"]
        .as_array()
        .unwrap()
        .clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_with_64_unsettled_attempts_buys_nothing_and_operators_see_why() {
    let bench = Bench::start(|_| {}).await;
    // As another replica would leave them behind whose purchases got no answer.
    let unsettled = "INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT gen_random_uuid(), 'look_up', 'sandbox', 'ready', gen_random_uuid(), now() + interval '1 hour'
         FROM generate_series(1, 64)";
    bench.sql(unsettled).await;
    wait::soon("the lane to be held back", async || {
        let held_back = bench
            .metric("esim_provider_lanes_held_back", &["provider=\"sandbox\""])
            .await;
        Ok((held_back > 0.5).then_some(()))
    })
    .await;

    let waits = bench.accept(&["ready"]).await;
    let other = bench.accept(&["delayed"]).await;
    assert_eq!(
        bench.until(other, |stored| stored.ready == 1).await.attempt,
        1,
        "another lane goes on"
    );
    let stored = bench.until(waits, |stored| stored.due).await;
    assert_eq!((stored.state.as_str(), stored.attempt), ("accepted", 0));
    let reported = wait::soon("the lane to be reported", async || {
        Ok(lanes(&bench).await.pop())
    })
    .await;
    assert_eq!(reported["lane"], "ready", "{reported}");
    assert_eq!(
        (&reported["provider"], &reported["unsettled"]),
        (&json!("sandbox"), &json!(64)),
        "{reported}"
    );
    let shown = bench.esimctl(&format!("order show {waits}")).await;
    assert_eq!(shown["lanes"][0]["lane"], "ready", "{shown}");
    let shown = bench.esimctl(&format!("order show {other}")).await;
    assert_eq!(shown["lanes"], json!([]), "{shown}");

    bench.sql("DELETE FROM work WHERE kind = 'look_up'").await;
    assert_eq!(
        bench.until(waits, |stored| stored.ready == 1).await.attempt,
        1
    );
    wait::soon("the report to end", async || {
        Ok(lanes(&bench).await.is_empty().then_some(()))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn purchases_that_only_look_ups_find_drain_beside_a_lane_that_answers() {
    let bench = Bench::start(|config| config.settle = Duration::from_mins(1)).await;
    let late = bench.store("sandbox", 150, &["bought-then-error"]).await;
    bench.announce("sandbox", &late).await;
    let began = Instant::now();
    let ready = bench.accept(&["ready"]).await;
    bench.ready(ready).await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    for id in late {
        bench.ready(id).await;
        assert_eq!(bench.sandbox.bought(id).await, (1, 1));
    }
    // At 20 per second it takes eight seconds; one at a time, with a look-up two seconds later, it
    // would take minutes.
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
}

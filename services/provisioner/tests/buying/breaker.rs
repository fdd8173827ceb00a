//! Placements of a failing provider.

use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt};
use serde_json::json;
use testkit::wait;

use crate::support::{Bench, PATIENCE, SECRET_KEY, Seller, WRONG_KEY, change_account};

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_providers_work_is_kept_and_goes_on_when_it_is_back() {
    let bench = Bench::start(|config| {
        config.breaker_failures = 3;
        // It gets no orders, so its heartbeats go on and show that time passes.
        config.providers.push("usimsa".into());
        let sandbox = config.accounts.get("sandbox", "URL").unwrap().to_owned();
        change_account(config, "usimsa", "URL", &sandbox);
    })
    .await;
    let subscribe = async |provider| {
        bench
            .nats
            .client()
            .subscribe(bench.nats.heartbeat_subject(provider))
            .await
            .unwrap()
    };
    let mut heartbeats = subscribe("sandbox").await;
    let mut others = subscribe("usimsa").await;
    let mut two_seconds = async || {
        for _ in 0..2 {
            tokio::time::timeout(PATIENCE, others.next())
                .await
                .unwrap()
                .unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, heartbeats.next())
        .await
        .unwrap()
        .unwrap();

    bench.sandbox.faults(json!({ "down": true })).await;
    let mut failed = Vec::new();
    for _ in 0..3 {
        failed.push(bench.accept(&["ready"]).await);
    }
    bench.until_breaker("sandbox", "open").await;
    two_seconds().await;
    while heartbeats.next().now_or_never().is_some() {}
    let state = bench
        .metric("esim_provider_breaker", &["provider=\"sandbox\""])
        .await;
    assert!((state - 1.0).abs() < 0.1, "{state}");

    // While the breaker is open, jobs are taken, due rows stay and nothing is attempted.
    let mut kept = Vec::new();
    for _ in 0..5 {
        let id = bench.accept(&["ready"]).await;
        bench.due_now(id).await;
        kept.push(id);
    }
    let jobs = format!("{}TOPUP_JOBS", bench.config.nats.stream_prefix);
    let stream = async_nats::jetstream::new(bench.nats.client().clone());
    wait::soon("every job to be taken", async || {
        let stream = stream.get_stream_no_info(&jobs).await?;
        let consumer = stream.consumer_info("provisioner-sandbox").await?;
        Ok((consumer.num_pending == 0).then_some(()))
    })
    .await;
    let before = bench.calls(&["call=\"purchase\""]).await;
    // Several looks at due work claim nothing, and ingress is told nothing.
    two_seconds().await;
    assert!(heartbeats.next().now_or_never().is_none());
    assert!((bench.calls(&["call=\"purchase\""]).await - before).abs() < 0.1);
    for id in &kept {
        let stored = bench.look(*id).await;
        assert_eq!(
            (stored.state.as_str(), stored.attempt, stored.due),
            ("accepted", 0, true)
        );
    }

    // A failed probe opens it again; a successful one closes it.
    bench.half_open("sandbox").await;
    wait::soon("a probe", async || {
        Ok((bench.breaker("sandbox").await.1 > 1).then_some(()))
    })
    .await;
    bench.sandbox.faults(json!({})).await;
    bench.half_open("sandbox").await;
    let mut attempts = 0;
    for id in kept {
        attempts += bench.hurry(id, |stored| stored.ready == 1).await.attempt;
        assert_eq!(bench.sandbox.bought(id).await, (1, 1));
    }
    assert!(
        attempts <= 5 + 1,
        "open, it consumes no attempt but the probe's: {attempts}"
    );
    for id in failed {
        bench.hurry(id, |stored| stored.ready == 1).await;
        assert_eq!(bench.sandbox.bought(id).await, (1, 1));
    }
    assert_eq!(bench.breaker("sandbox").await, ("closed", 0));
    tokio::time::timeout(PATIENCE, heartbeats.next())
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn being_denied_opens_it_at_once() {
    let mut bench =
        Bench::start(|config| change_account(config, "sandbox", "SECRET_KEY", WRONG_KEY)).await;
    let id = bench.accept(&["ready"]).await;
    bench.until_breaker("sandbox", "open").await;
    let stored = bench.until(id, |stored| stored.state == "accepted").await;
    assert_eq!((stored.attempt, stored.unknowns, stored.due), (1, 0, true));
    assert_eq!(bench.sandbox.purchases().await, 0);

    bench.stop().await;
    change_account(&mut bench.config, "sandbox", "SECRET_KEY", SECRET_KEY);
    bench.run().await;
    bench.half_open("sandbox").await;
    assert_eq!(bench.hurry(id, |stored| stored.ready == 1).await.attempt, 2);
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
    assert_eq!(bench.breaker("sandbox").await, ("closed", 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_keeps_work_from_a_provider() {
    let bench = Bench::start(|_| {}).await;
    let opened = bench
        .esimctl("provider open sandbox --for 1h --reason maintenance")
        .await;
    assert_eq!(opened["state"], "open", "{opened}");
    let id = bench.accept(&["ready"]).await;
    let listed = bench.esimctl("provider list").await;
    assert_eq!(listed["providers"][0]["reason"], "maintenance", "{listed}");
    assert_eq!(bench.look(id).await.attempt, 0);
    let closed = bench.esimctl("provider close sandbox").await;
    assert_eq!(closed["state"], "closed", "{closed}");
    assert_eq!(bench.hurry(id, |stored| stored.ready == 1).await.attempt, 1);
    let unknown = bench.esimctl("provider close nobody").await;
    assert!(
        unknown["error"].as_str().unwrap().contains("nobody"),
        "{unknown}"
    );
}

/// The time from job to profile of all sandbox orders.
async fn time_of_orders(bench: &Bench, count: usize) -> Duration {
    let placements = bench.store("sandbox", count, &["ready"]).await;
    let began = Instant::now();
    bench.announce("sandbox", &placements).await;
    for id in placements {
        bench.ready(id).await;
    }
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_providers_backlog_does_not_slow_another_provider() {
    let dead = Seller::start(None).await;
    // It accepts requests and never responds in time, which holds slots the longest.
    dead.faults(json!({ "latency_ms": 60_000 })).await;
    let bench = Bench::start(|config| {
        config.providers.push("usimsa".into());
        change_account(config, "usimsa", "URL", dead.url().as_str());
        config.breaker_failures = 10;
        config.breaker_open_most = Duration::from_secs(6);
    })
    .await;
    let alone = time_of_orders(&bench, 20).await;

    let backlog = bench.store("usimsa", 20_000, &["ready"]).await;
    let all_due = "INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT placement_id, 'buy', provider, lane, partner_id, now() FROM placements WHERE provider = 'usimsa'";
    bench.sql(all_due).await;
    bench.announce("usimsa", &backlog).await;
    // Before and after its breaker opens.
    let trying = time_of_orders(&bench, 20).await;
    bench.until_breaker("usimsa", "open").await;
    let known = time_of_orders(&bench, 20).await;
    let allowed = alone + Duration::from_secs(2);
    assert!(
        trying < allowed && known < allowed,
        "{alone:?} alone, {trying:?}, {known:?}"
    );

    let count = "SELECT count(*) FROM placements WHERE provider = 'usimsa' AND attempt > 0";
    let attempted: i64 = sqlx::query_scalar(count)
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    assert!(
        attempted < 1_000,
        "{attempted} of the dead provider's placements were attempted"
    );
}

/// The rows of one provider may be at fault alone, for example after a repair by hand.
#[tokio::test(flavor = "multi_thread")]
async fn a_provider_whose_rows_are_refused_keeps_no_other_one_from_its_share_of_the_rate() {
    let bench = Bench::start(|config| {
        config.providers.push("zendit".into());
        config.provider_rate = 100;
    })
    .await;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
                  AS $$ BEGIN RAISE 'refused'; END $$;
         CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON provider_replicas
             FOR EACH ROW WHEN (NEW.provider = 'sandbox') EXECUTE FUNCTION refuse();";
    bench.sql(refuse).await;
    // What was renewed before the refusal ends.
    bench.sql("DELETE FROM provider_replicas").await;
    wait::soon("the share of the other provider", async || {
        let renewed = "SELECT provider FROM provider_replicas WHERE until > now()";
        let renewed: Vec<String> = sqlx::query_scalar(renewed).fetch_all(&bench.pool).await?;
        Ok((renewed == ["zendit"]).then_some(()))
    })
    .await;
}

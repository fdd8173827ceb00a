//! The classes of the failure taxonomy.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::wait;
use tokio::{io::AsyncWriteExt, net::unix::pipe, process::Command};

use crate::support::{Bench, change_account};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_bought_without_an_answer_is_looked_up_and_never_bought_again() {
    let bench = Bench::start(|_| {}).await;
    // A 500, no response, and a response after the timeout.
    let mut placements = Vec::new();
    for option in ["bought-then-error", "bought-then-silent", "slow"] {
        placements.push((option, bench.accept(&[option, option]).await));
    }
    for (option, id) in placements {
        let stored = bench.ready(id).await;
        assert_eq!(
            (stored.state.as_str(), stored.attempt),
            ("placed", 1),
            "{option}"
        );
        assert_eq!(
            (stored.ready, stored.deliveries, stored.due),
            (2, 2, false),
            "{option}"
        );
        assert_eq!(bench.sandbox.bought(id).await, (1, 2), "{option}");
    }
    let looked_up = bench
        .calls(&["call=\"look_up\"", "outcome=\"found\""])
        .await;
    assert!((looked_up - 3.0).abs() < 0.1, "{looked_up}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_attempt_is_repeated_only_after_two_look_ups_found_nothing() {
    let bench = Bench::start(|_| {}).await;
    let id = bench.accept(&["flapping"]).await;
    let stored = bench.ready(id).await;
    assert_eq!((stored.state.as_str(), stored.attempt), ("placed", 3));
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
    let not_found = bench
        .calls(&["call=\"look_up\"", "outcome=\"not_found\""])
        .await;
    assert!(
        not_found >= 4.0,
        "two for each of the two lost attempts: {not_found}"
    );
}

/// Only what was looked up and not found counts towards parking. What a long outage leaves behind
/// does not: the attempts that were never sent.
#[tokio::test(flavor = "multi_thread")]
async fn only_attempts_that_were_not_found_park_a_placement() {
    let bench = Bench::start(|_| {}).await;
    let ids = bench.store("sandbox", 2, &["flapping"]).await;
    for id in &ids {
        bench
            .set(
                "UPDATE placements SET attempt = 60 WHERE placement_id = $1",
                *id,
            )
            .await;
    }
    // Each of 49 attempts was looked up twice.
    bench
        .sql(&format!(
            "INSERT INTO history (order_id, placement_id, provider, kind, attempt)
             SELECT order_id, placement_id, provider, 'not_found', lost
             FROM placements, generate_series(1, 49) lost, generate_series(1, 2)
             WHERE placement_id = '{}'",
            ids[1]
        ))
        .await;
    bench.announce("sandbox", &ids).await;
    let bought = bench.ready(ids[0]).await;
    assert_eq!((bought.state.as_str(), bought.attempt), ("placed", 63));
    let parked = bench.until(ids[1], |stored| stored.state == "parked").await;
    assert_eq!(parked.attempt, 61);
    let reason = parked.reason.unwrap();
    assert!(
        reason.contains("50 attempts were looked up and not found"),
        "{reason}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_repeated_before_the_settling_delay_is_over() {
    let bench = Bench::start(|config| config.settle = Duration::from_hours(100)).await;
    let id = bench.accept(&["flapping"]).await;
    bench.hurry(id, |stored| stored.not_found).await;
    for looks in 2..5_u8 {
        // The end of the last look may still set the next due time.
        wait::soon("another look", async || {
            bench.due_now(id).await;
            let found = bench
                .calls(&["call=\"look_up\"", "outcome=\"not_found\""])
                .await;
            Ok((found >= f64::from(looks)).then_some(()))
        })
        .await;
        let stored = bench.look(id).await;
        assert_eq!((stored.state.as_str(), stored.attempt), ("placing", 1));
    }
    // After the delay one more look-up is enough.
    let later = "UPDATE placements SET attempted_at = attempted_at - interval '100 hours' WHERE placement_id = $1";
    bench.set(later, id).await;
    // Again and again, because the end of the last look may still set the next due time.
    let due_now = async || bench.due_now(id).await;
    bench
        .until_after(id, due_now, |stored| stored.attempt == 2)
        .await;
    assert_eq!(bench.sandbox.bought(id).await, (0, 0));
}

/// An attempt that is not sent needs no look-up, which would cost two calls and the settling delay.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_whose_turn_comes_too_late_is_over() {
    let bench = Bench::start(|config| config.provider_rate = 1).await;
    let ids = bench.store("sandbox", 4, &["ready"]).await;
    bench.announce("sandbox", &ids).await;
    // One of them has its turn at once.
    wait::soon("three abandoned attempts", async || {
        let abandoned: i64 = sqlx::query_scalar(
            "SELECT count(DISTINCT placement_id) FROM history
             WHERE kind = 'not_bought' AND reason LIKE '%recorded too long ago'",
        )
        .fetch_one(&bench.pool)
        .await?;
        Ok((abandoned >= 3).then_some(()))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_provider_is_asked_again_and_its_breaker_stays_closed() {
    let bench = Bench::start(|config| config.breaker_failures = 1).await;
    let id = bench.accept(&["rate-limited"]).await;
    let refused = bench
        .until(id, |stored| {
            stored.attempt == 1 && stored.state == "accepted"
        })
        .await;
    assert!(refused.due && refused.reason.unwrap().starts_with("provider_busy: "));
    assert_eq!(bench.ready(id).await.attempt, 3);
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
    assert_eq!(bench.breaker("sandbox").await, ("closed", 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_fails_and_is_never_asked_again() {
    let bench = Bench::start(|_| {}).await;
    for (option, code) in [("refused", "9001"), ("out-of-stock", "9005")] {
        let id = bench.accept(&[option, "ready"]).await;
        let stored = bench.until(id, |stored| stored.failed == 2).await;
        assert_eq!(
            (stored.state.as_str(), stored.attempt, stored.due),
            ("failed", 1, false)
        );
        assert!(stored.reason.unwrap().contains(code));
        assert_eq!(bench.sandbox.bought(id).await, (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_not_reached_is_tried_again() {
    let mut bench = Bench::stopped(|_| {}).await;
    let reachable = bench.config.accounts.clone();
    // Nothing listens on this port.
    change_account(&mut bench.config, "sandbox", "URL", "http://127.0.0.1:9");
    bench.run().await;
    let id = bench.accept(&["ready"]).await;
    let stored = bench
        .until(id, |stored| {
            stored.attempt > 0 && stored.state == "accepted"
        })
        .await;
    assert!(stored.due && stored.unknowns == 0, "{stored:?}");
    bench.stop().await;
    bench.config.accounts = reachable;
    bench.run().await;
    bench.hurry(id, |stored| stored.ready == 1).await;
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_fails_later_leaves_the_others_to_be_delivered() {
    let bench = Bench::start(|_| {}).await;
    let id = bench.accept(&["partly", "partly", "partly"]).await;
    let stored = bench.until(id, |stored| stored.pending == 0).await;
    assert_eq!((stored.ready, stored.failed, stored.deliveries), (2, 1, 2));
    assert_eq!((stored.state.as_str(), stored.due), ("placed", false));
    assert_eq!(bench.sandbox.bought(id).await, (1, 3));
}

/// The provider accepts every repeated purchase, so only the recorded attempt prevents a second
/// one.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_the_call_and_its_record_buys_nothing_twice() {
    let bench = Bench::stopped(|config| {
        config.provider_timeout = Duration::from_secs(20);
        config.settle = Duration::from_mins(1);
    })
    .await;
    bench
        .sandbox
        .faults(json!({ "detect_duplicates": false }))
        .await;
    let mut process = bench.process();
    process.start().await.unwrap();
    // The provider buys at once and responds after five seconds.
    let id = bench.accept(&["slow"]).await;
    wait::soon("the purchase", async || {
        Ok((bench.sandbox.bought(id).await.0 == 1).then_some(()))
    })
    .await;
    process.kill().await.unwrap();
    assert_eq!(bench.look(id).await.state, "placing");

    // The lease ends.
    bench.due_now(id).await;
    process.start().await.unwrap();
    let stored = bench.ready(id).await;
    assert_eq!((stored.state.as_str(), stored.attempt), ("placed", 1));
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
}

/// A process that is stopped while it still starts ends as cleanly as later. Here it reads a
/// setting from a file that is not written yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_stopped_while_it_starts_ends_cleanly() {
    let bench = Bench::stopped(|_| {}).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("database-url");
    let made = Command::new("mkfifo").arg(&file).status().await.unwrap();
    assert!(made.success(), "{made}");
    let mut process = bench.process();
    let env = &mut process.program_mut().env;
    let url = env.remove("DATABASE_URL").unwrap();
    env.insert("DATABASE_URL_FILE".into(), file.display().to_string());
    process.spawn().unwrap();
    let open = async || Ok(pipe::OpenOptions::new().open_sender(&file).ok());
    let mut setting = wait::soon("the process to read its settings", open).await;
    let stopped = process.terminate(Duration::from_secs(30));
    let (ended, written) = tokio::join!(
        stopped,
        async move { setting.write_all(url.as_bytes()).await }
    );
    written.unwrap();
    let ended = ended.unwrap();
    assert!(ended.success(), "it ended with {ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_conflicts_parks_its_placement_and_no_other() {
    let bench = Bench::start(|_| {}).await;
    let taken = bench.accept(&["ready"]).await;
    bench.ready(taken).await;
    let id = bench.accept(&["never-ready"]).await;
    bench.until(id, |stored| stored.bought).await;
    // The provider names one unit for two placements.
    let unit = bench.unit(id).await;
    let sql =
        "DELETE FROM esims e USING topups t WHERE t.topup_id = e.topup_id AND t.placement_id = $1";
    bench.set(sql, id).await;
    let same_unit = format!(
        "UPDATE esims e SET provider_unit_id = '{unit}' FROM topups t
         WHERE t.topup_id = e.topup_id AND t.placement_id = '{taken}'"
    );
    bench.sql(&same_unit).await;
    let others = [
        bench.accept(&["ready"]).await,
        bench.accept(&["ready"]).await,
    ];
    let stored = bench.hurry(id, |stored| stored.state == "parked").await;
    assert_eq!(
        stored.reason.as_deref(),
        Some("sold_twice: the id of the unit")
    );
    assert!(stored.bought, "it is certain that it is bought");
    for other in others {
        assert_eq!(bench.ready(other).await.state, "placed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_no_more_than_the_rate_allows() {
    let bench = Bench::start(|config| {
        config.provider_rate = 10;
        config.settle = Duration::from_secs(30);
    })
    .await;
    let began = Instant::now();
    let mut placements = Vec::new();
    for _ in 0..12 {
        placements.push(bench.accept(&["ready"]).await);
    }
    for id in placements {
        assert_eq!(bench.ready(id).await.attempt, 1);
    }
    // A purchase and a collect for each; the first call has no wait.
    assert!(
        began.elapsed() >= Duration::from_millis(2_300),
        "{:?}",
        began.elapsed()
    );
}

//! Suspending delivered eSIMs, and resuming them, at each provider. After any crash our state and
//! that of the provider agree.

use std::time::Duration;

use desk::self_service::esims;
use serde_json::json;
use testkit::wait;

use crate::after_delivery::{Unit, bench};
use crate::support::{Bench, PATIENCE};

/// A suspension as it is stored.
#[derive(Clone, Debug, sqlx::FromRow)]
struct Row {
    suspend: bool,
    state: String,
    attempt: i32,
    reason: Option<String>,
    message: Option<String>,
    /// Whether its work is left.
    due: bool,
    /// The seconds from the request to its last attempt.
    pause: f64,
}

/// Those that suspend eSIMs.
const PROVIDERS: [&str; 2] = ["sandbox", "esim-access"];

impl Bench {
    async fn ask_suspension(&self, unit: &Unit, suspend: bool) {
        let mut connection = self.pool.acquire().await.unwrap();
        esims::ask_suspension(&mut connection, unit.partner, &unit.topup, suspend)
            .await
            .unwrap();
    }

    async fn make_suspension_due(&self, provider: &str, unit: &Unit) {
        sqlx::query(
            "INSERT INTO work (id, kind, provider, lane, partner_id, at)
             VALUES (derived_id('suspend', $1), 'suspend', $2, $1, $3, now())",
        )
        .bind(unit.topup.as_str())
        .bind(provider)
        .bind(unit.partner.uuid())
        .execute(&self.pool)
        .await
        .unwrap();
    }

    /// Reads a suspension once it has ended; every wait is due at once.
    async fn suspension(&self, unit: &Unit) -> Row {
        let mut last = None;
        let found = wait::until(PATIENCE, "a suspension", async || {
            sqlx::query(
                "UPDATE work SET at = now() WHERE lane = $1 AND at < now() + interval '8 seconds'",
            )
            .bind(unit.topup.as_str())
            .execute(&self.pool)
            .await?;
            let row: Row = sqlx::query_as(
                "SELECT suspend, suspension AS state, suspension_attempt AS attempt, suspension_reason AS reason,
                        suspension_message AS message, EXISTS (SELECT FROM work WHERE lane = topup_id) AS due,
                        coalesce(extract(epoch FROM suspension_attempted_at - suspension_asked_at), 0)::float8 AS pause
                 FROM esim_requests WHERE topup_id = $1",
            )
            .bind(unit.topup.as_str())
            .fetch_one(&self.pool)
            .await?;
            last = Some(row.clone());
            let is_over = matches!(row.state.as_str(), "done" | "refused" | "parked");
            Ok(is_over.then_some(row))
        });
        found
            .await
            .unwrap_or_else(|error| panic!("{error}: {last:?}"))
    }

    /// Whether the provider has suspended the eSIM.
    async fn is_suspended(&self, unit: &Unit) -> bool {
        self.sandbox.suspended(unit.placement).await > 0
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_esim_is_suspended_and_resumed_at_each_provider_that_can() {
    let bench = bench(|_| {}).await;
    for provider in PROVIDERS {
        // The answer to the first call of the second one is lost.
        for option in ["in-use", "return-lost"] {
            let unit = bench.delivered(provider, option).await;
            // The second wish is fulfilled already, so nothing is sent for it.
            for (suspend, attempt) in [(true, 1), (true, 1), (false, 2)] {
                bench.ask_suspension(&unit, suspend).await;
                let row = bench.suspension(&unit).await;
                assert_eq!(
                    (row.state.as_str(), row.suspend, row.attempt, row.due),
                    ("done", suspend, attempt, false),
                    "{provider} {option}: {row:?}"
                );
                let is_suspended = bench.is_suspended(&unit).await;
                assert_eq!(is_suspended, suspend, "{provider} {option}");
            }
        }
    }
    for provider in ["airalo", "usimsa", "zendit"] {
        let unit = bench.delivered(provider, "in-use").await;
        bench.ask_suspension(&unit, true).await;
        let row = bench.suspension(&unit).await;
        let ended = (row.state.as_str(), row.reason.as_deref(), row.attempt);
        assert_eq!(ended, ("refused", Some("not_available"), 0), "{provider}");
    }
}

/// A process has recorded the attempt, and then it died before the call, or after it.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_of_a_dead_process_is_looked_at_and_repeated() {
    // Two looks follow each other within two seconds.
    let bench = bench(|config| config.settle = Duration::from_secs(4)).await;
    for provider in PROVIDERS {
        for was_sent in [true, false] {
            let unit = bench.delivered(provider, "in-use").await;
            if was_sent {
                bench.ask_suspension(&unit, true).await;
                bench.suspension(&unit).await;
            }
            sqlx::query(
                "INSERT INTO esim_requests (topup_id, partner_id, provider, suspend, suspension, suspension_asked_at,
                                            suspension_attempt, suspension_attempted_at)
                 VALUES ($1, $2, $3, true, 'sending', now(), 1, now())
                 ON CONFLICT (topup_id) DO UPDATE SET suspension = 'sending', suspension_attempted_at = now()",
            )
            .bind(unit.topup.as_str())
            .bind(unit.partner.uuid())
            .bind(provider)
            .execute(&bench.pool)
            .await
            .unwrap();
            bench.make_suspension_due(provider, &unit).await;
            let row = bench.suspension(&unit).await;
            let attempts = if was_sent { 1 } else { 2 };
            assert_eq!(
                (row.state.as_str(), row.attempt),
                ("done", attempts),
                "{provider}: {row:?}"
            );
            // The second attempt follows only once the first one can no longer arrive, because it
            // could suspend an eSIM that was resumed meanwhile.
            let settle = bench.config.settle.as_secs_f64();
            assert!(was_sent || row.pause >= settle, "{provider}: {row:?}");
            assert!(bench.is_suspended(&unit).await, "{provider}");
        }
    }
}

/// A provider that says nothing leaves the outcome open, and its partner may ask again.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspension_without_an_outcome_is_asked_for_again() {
    let bench = bench(|config| config.park_after = Duration::from_secs(3)).await;
    let unit = bench.delivered("esim-access", "return-lost").await;
    bench.ask_suspension(&unit, true).await;
    bench.suspension(&unit).await;
    sqlx::query("UPDATE esim_requests SET suspension = 'sending', suspension_attempted_at = now()")
        .execute(&bench.pool)
        .await
        .unwrap();
    bench.sandbox.faults(json!({ "down": true })).await;
    bench.make_suspension_due("esim-access", &unit).await;
    let row = bench.suspension(&unit).await;
    let ended = (row.state.as_str(), row.reason.as_deref(), row.due);
    assert_eq!(ended, ("parked", Some("unknown"), false), "{row:?}");
    bench.sandbox.faults(json!({})).await;
    bench.ask_suspension(&unit, false).await;
    let row = bench.suspension(&unit).await;
    assert_eq!(
        (row.state.as_str(), row.message),
        ("done", None),
        "it is resumed"
    );
    assert!(!bench.is_suspended(&unit).await);
}

/// Nobody can suspend an eSIM that its provider has back.
#[tokio::test(flavor = "multi_thread")]
async fn an_esim_in_another_state_is_refused_in_the_words_of_its_provider() {
    let bench = bench(|_| {}).await;
    for provider in PROVIDERS {
        let unit = bench.delivered(provider, "ready").await;
        bench.ask_give_back(&unit).await;
        bench.ended(&unit).await;
        sqlx::query("UPDATE esim_requests SET suspend = true, suspension = 'asked', suspension_asked_at = now()")
            .execute(&bench.pool)
            .await
            .unwrap();
        bench.make_suspension_due(provider, &unit).await;
        let row = bench.suspension(&unit).await;
        let ended = (row.state.as_str(), row.reason.as_deref(), row.attempt);
        assert_eq!(ended, ("refused", Some("refused"), 0), "{provider}");
        assert!(row.message.is_some(), "{provider}");
    }
}

//! Extensions of delivered eSIMs through the whole stage, at each provider. After any crash our
//! state and that of the provider agree.

use std::time::Duration;

use domain::ExtensionId;
use serde_json::json;
use testkit::wait;

use crate::after_delivery::{Unit, bench};
use crate::support::{Bench, PATIENCE, provider_option};

/// A row of an extension.
#[derive(Clone, Debug, sqlx::FromRow)]
struct Row {
    state: String,
    attempt: i32,
    reason: Option<String>,
    has_baseline: bool,
    has_new_profile: bool,
    /// Whether its work is left.
    due: bool,
    /// The seconds from the order of the extension to its last attempt.
    pause: f64,
}

impl Bench {
    /// Orders an extension of a delivered unit by an option of its provider.
    async fn extend(&self, provider: &str, unit: &Unit, option: &str) -> ExtensionId {
        self.store_extension(provider, unit, option, None).await
    }

    /// Stores an extension; with a baseline its first attempt has just been recorded with that.
    async fn store_extension(
        &self,
        provider: &str,
        unit: &Unit,
        option: &str,
        baseline: Option<serde_json::Value>,
    ) -> ExtensionId {
        let id = ExtensionId::new();
        let price = if matches!(provider, "sandbox" | "usimsa") {
            ""
        } else {
            "@99"
        };
        sqlx::query(
            "WITH ordered AS (
                 INSERT INTO extensions (extension_id, partner_id, topup_id, provider, external_id, option_id, provider_option_id,
                                         state, attempt, attempted_at, baseline)
                 SELECT $1, $2, $3, $4, $1::text, gen_random_uuid(), $5, CASE WHEN $6 IS NULL THEN 'asked' ELSE 'sending' END,
                        CASE WHEN $6 IS NULL THEN 0 ELSE 1 END, CASE WHEN $6 IS NOT NULL THEN now() END, $6::jsonb
             )
             INSERT INTO work (id, kind, provider, lane, partner_id, at)
             VALUES (derived_id('extend', $3), 'extend', $4, $3, $2, now())",
        )
        .bind(id.uuid())
        .bind(unit.partner.uuid())
        .bind(unit.topup.as_str())
        .bind(provider)
        .bind(format!("{}{price}", provider_option(option)))
        .bind(baseline.map(|baseline| baseline.to_string()))
        .execute(&self.pool)
        .await
        .unwrap();
        id
    }

    /// Reads an extension once it has ended; every wait is due at once.
    async fn extended(&self, id: ExtensionId) -> Row {
        let mut last = None;
        let found = wait::until(PATIENCE, "an extension", async || {
            sqlx::query(
                "UPDATE work SET at = now() WHERE kind = 'extend' AND at < now() + interval '8 seconds'",
            )
            .execute(&self.pool)
            .await?;
            let row: Row = sqlx::query_as(
                "SELECT state, attempt, reason, baseline IS NOT NULL AS has_baseline, has_new_profile,
                        EXISTS (SELECT FROM work WHERE lane = topup_id AND kind = 'extend') AS due,
                        coalesce(extract(epoch FROM attempted_at - asked_at), 0)::float8 AS pause
                 FROM extensions WHERE extension_id = $1",
            )
            .bind(id.uuid())
            .fetch_one(&self.pool)
            .await?;
            last = Some(row.clone());
            let is_over = matches!(row.state.as_str(), "added" | "refused" | "parked");
            Ok(is_over.then_some(row))
        });
        found
            .await
            .unwrap_or_else(|error| panic!("{error}: {last:?}"))
    }

    /// How often the provider has added something to eSIMs.
    async fn added(&self) -> usize {
        self.sandbox.extended().await
    }
}

const PROVIDERS: [&str; 4] = ["sandbox", "esim-access", "airalo", "zendit"];

#[tokio::test(flavor = "multi_thread")]
async fn an_esim_is_extended_once_at_each_provider() {
    let bench = bench(|_| {}).await;
    for (nth, provider) in PROVIDERS.into_iter().enumerate() {
        let unit = bench.delivered(provider, "ready").await;
        let id = bench.extend(provider, &unit, "extension").await;
        let row = bench.extended(id).await;
        assert_eq!(
            (row.state.as_str(), row.attempt),
            ("added", 1),
            "{provider}: {row:?}"
        );
        assert!(row.has_baseline && !row.due, "{provider}: {row:?}");
        assert!(!row.has_new_profile, "{provider}: {row:?}");
        assert_eq!(bench.added().await, nth + 1, "{provider}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_whose_answer_is_lost_is_found_and_never_repeated() {
    let bench = bench(|_| {}).await;
    for (nth, provider) in PROVIDERS.into_iter().enumerate() {
        let unit = bench.delivered(provider, "ready").await;
        let id = bench.extend(provider, &unit, "extension-lost").await;
        let row = bench.extended(id).await;
        assert_eq!(
            (row.state.as_str(), row.attempt),
            ("added", 1),
            "{provider}: {row:?}"
        );
        assert_eq!(bench.added().await, nth + 1, "{provider}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_extension_adds_nothing_and_leaves_no_work() {
    let bench = bench(|_| {}).await;
    for provider in PROVIDERS {
        let unit = bench.delivered(provider, "ready").await;
        // The sandbox knows every option.
        let option = match provider {
            "sandbox" => "extension-expired",
            _ => "no-such-option",
        };
        let id = bench.extend(provider, &unit, option).await;
        let row = bench.extended(id).await;
        let ended = (row.state.as_str(), row.reason.as_deref());
        assert_eq!(ended, ("refused", Some("refused")), "{provider}: {row:?}");
        assert!(!row.due && bench.added().await == 0, "{provider}: {row:?}");
    }
}

/// A process has recorded the attempt, and then it died before the call.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_of_a_dead_process_is_repeated_only_where_absence_is_certain() {
    // Two looks follow each other within two seconds.
    let bench = bench(|config| {
        config.settle = Duration::from_secs(4);
        config.park_after = Duration::from_secs(6);
    })
    .await;
    for provider in PROVIDERS {
        let unit = bench.delivered(provider, "ready").await;
        // What was true before the attempt is what is true now.
        let baseline = json!({ "data_total": 5_u64 << 30, "adds_data": 5_u64 << 30 });
        let id = bench
            .store_extension(provider, &unit, "extension", Some(baseline))
            .await;
        let row = bench.extended(id).await;
        let is_exact = matches!(provider, "sandbox" | "zendit");
        let expected = if is_exact {
            ("added", 2)
        } else {
            ("parked", 1)
        };
        assert_eq!(
            (row.state.as_str(), row.attempt),
            expected,
            "{provider}: {row:?}"
        );
        // Until then the call of the dead process may still arrive.
        let settle = bench.config.settle.as_secs_f64();
        assert!(!is_exact || row.pause >= settle, "{provider}: {row:?}");
    }
    assert_eq!(bench.added().await, 2);
}

/// The provider sells another eSIM instead of extending this one.
#[tokio::test(flavor = "multi_thread")]
async fn an_esim_that_is_sold_instead_is_delivered() {
    let bench = bench(|_| {}).await;
    let unit = bench.delivered("sandbox", "ready").await;
    let profile = "SELECT iccid FROM esims WHERE topup_id = $1";
    let iccid = async || -> String {
        let query = sqlx::query_scalar(profile).bind(unit.topup.as_str());
        query.fetch_one(&bench.pool).await.unwrap()
    };
    let before = iccid().await;
    let id = bench.extend("sandbox", &unit, "extension-other").await;
    let row = bench.extended(id).await;
    assert!(row.has_new_profile && row.state == "added", "{row:?}");
    assert_ne!(iccid().await, before);
    let due = "SELECT count(*) FROM deliveries d JOIN work w ON w.id = d.delivery_id
               WHERE d.topup_id = $1 AND d.state = 'pending' AND w.kind = 'deliver'";
    let due: i64 = sqlx::query_scalar(due)
        .bind(unit.topup.as_str())
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    assert_eq!(due, 1);
}

/// The call of the second extension never left, and what its provider shows is the first one, which
/// it counted only after the baseline was read. It proves nothing about the second one.
#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_the_extension_before_is_not_taken_for_the_next_one() {
    let bench = bench(|config| config.park_after = Duration::from_secs(3)).await;
    for (nth, provider) in ["esim-access", "airalo"].into_iter().enumerate() {
        let unit = bench.delivered(provider, "ready").await;
        let first = bench.extend(provider, &unit, "extension").await;
        assert_eq!(bench.extended(first).await.state, "added", "{provider}");
        let baseline = json!({ "data_total": 5_u64 << 30, "adds_data": 5_u64 << 30 });
        let next = bench
            .store_extension(provider, &unit, "extension", Some(baseline))
            .await;
        let row = bench.extended(next).await;
        assert_eq!(
            (row.state.as_str(), row.attempt, row.reason.as_deref()),
            ("parked", 1, Some("unknown")),
            "{provider}: {row:?}"
        );
        assert_eq!(bench.added().await, nth + 1, "{provider}");
    }
}

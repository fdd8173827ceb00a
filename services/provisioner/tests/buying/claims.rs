//! eSIMs that a provider takes back by a claim, which people there decide days later: it is made
//! once, the polls read the verdict, and what nobody knows is neither taken for one nor breaks
//! anything.

use std::time::Duration;

use domain::esim_change::GiveBackCause;
use provisioner::providers::{Custody, DeliveredEsim, GiveBackResponse, ProviderId, Trouble};
use serde_json::{Value, json};
use store::esim_requests;
use testkit::wait;

use crate::after_delivery::{Unit, bench};
use crate::hostile::answering;
use crate::support::{Bench, PATIENCE};

/// The row of a claim.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
struct ClaimRow {
    give_back: String,
    attempt: i32,
    reason: Option<String>,
    message: Option<String>,
    claim: Option<String>,
    due: bool,
    returned: bool,
    has_profile: bool,
}

impl Bench {
    /// Lets people at the provider decide, and polls until a condition holds. Nothing of this unit
    /// is due otherwise.
    async fn claim_until(&self, unit: &Unit, condition: impl Fn(&ClaimRow) -> bool) -> ClaimRow {
        let mut last = None;
        let found = wait::until(PATIENCE, "a claim", async || {
            let mut connection = self.pool.acquire().await?;
            let row: ClaimRow = sqlx::query_as(
                "SELECT give_back, attempt, reason, message, claim,
                        EXISTS (SELECT FROM work WHERE id = derived_id('give_back', r.topup_id)) AS due,
                        returned_at IS NOT NULL AS returned, profile IS NOT NULL AS has_profile
                 FROM esim_requests r JOIN esims USING (topup_id) WHERE topup_id = $1",
            )
            .bind(unit.topup.as_str())
            .fetch_one(&mut *connection)
            .await?;
            last = Some(row.clone());
            if condition(&row) {
                return Ok(Some(row));
            }
            // Time passes: work that waits for a moment is due, and so is the poll of a claim.
            sqlx::query(
                "UPDATE work SET at = now() WHERE lane = $1 AND at < now() + interval '8 seconds'",
            )
            .bind(unit.topup.as_str())
            .execute(&mut *connection)
            .await?;
            sqlx::query("UPDATE providers SET polled_at = now() - interval '1 hour'")
                .execute(&mut *connection)
                .await?;
            sqlx::query("UPDATE esim_requests SET poll_at = now() WHERE poll_at IS NOT NULL")
                .execute(&mut *connection)
                .await?;
            for provider in ["airalo", "zendit"] {
                esim_requests::poll(&mut connection, provider, 3_600).await?;
            }
            Ok(None)
        });
        found
            .await
            .unwrap_or_else(|error| panic!("{error}: {last:?}"))
    }

    async fn iccid_of(&self, unit: &Unit) -> String {
        let iccid = "SELECT iccid FROM esims WHERE topup_id = $1";
        let iccid = sqlx::query_scalar(iccid).bind(unit.topup.as_str());
        iccid.fetch_one(&self.pool).await.unwrap()
    }

    async fn claim_url(&self, unit: &Unit) -> String {
        let url = self.sandbox.url();
        let base = url.as_str().trim_end_matches('/');
        format!("{base}/claims/{}", self.iccid_of(unit).await)
    }

    /// What the provider has got.
    async fn sent(&self, unit: &Unit) -> Value {
        let http = testkit::http::client().unwrap();
        let answer = http.get(self.claim_url(unit).await).send().await.unwrap();
        answer.json().await.unwrap()
    }

    /// People at the provider decide, or show another state.
    async fn decide(&self, unit: &Unit, state: &str) {
        let http = testkit::http::client().unwrap();
        let deciding = http.put(self.claim_url(unit).await).json(&state);
        let answer = deciding.send().await.unwrap();
        assert!(answer.status().is_success(), "{state}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_made_once_and_ends_by_the_verdict_of_people() {
    let bench = bench(|_| {}).await;
    let is_claimed = |row: &ClaimRow| row.give_back == "claimed";
    for (provider, option, said) in [
        ("airalo", "ready", "the order of the eSIM is under_review"),
        ("zendit", "reviewed", "the refund is under_review"),
    ] {
        let unit = bench.delivered(provider, option).await;
        bench.ask_give_back(&unit).await;
        let row = bench.claim_until(&unit, is_claimed).await;
        assert!(
            row.attempt == 1 && !row.due && !row.returned && row.has_profile,
            "{row:?}"
        );
        let sent = bench.sent(&unit).await;
        assert_eq!(sent["sent"], 1, "{provider}");
        if provider == "airalo" {
            assert_eq!(sent["reason"], "NO_COVERAGE");
            assert!(row.claim.is_some());
        }
        // To ask again changes nothing, and a state that nobody knows is shown and no verdict.
        bench.ask_give_back(&unit).await;
        bench.decide(&unit, "under_review").await;
        let odd = |row: &ClaimRow| row.message.as_deref() == Some(said);
        let row = bench.claim_until(&unit, odd).await;
        assert!(row.give_back == "claimed" && row.has_profile, "{row:?}");
        bench.decide(&unit, "DONE").await;
        let row = bench
            .claim_until(&unit, |row| row.give_back != "claimed")
            .await;
        assert_eq!(row.give_back, "returned", "{provider}");
        assert!(row.returned && !row.has_profile, "{row:?}");
        assert_eq!(bench.sent(&unit).await["sent"], 1, "{provider}");
    }
    // The provider decides against it, and shows that.
    let unit = bench.delivered("zendit", "reviewed").await;
    bench.ask_give_back(&unit).await;
    bench.claim_until(&unit, is_claimed).await;
    bench.decide(&unit, "FAILED").await;
    let row = bench
        .claim_until(&unit, |row| row.give_back != "claimed")
        .await;
    assert_eq!(
        (
            row.give_back.as_str(),
            row.reason.as_deref(),
            row.message.as_deref()
        ),
        ("refused", Some("denied"), Some("its refund has failed"))
    );
    assert!(!row.returned && row.has_profile);
}

/// People may take an eSIM back that is installed and of no use.
#[tokio::test(flavor = "multi_thread")]
async fn an_installed_esim_is_claimed_only_where_people_decide() {
    let bench = bench(|_| {}).await;
    let unit = bench.delivered("airalo", "in-use").await;
    bench.ask_give_back(&unit).await;
    bench
        .claim_until(&unit, |row| row.give_back == "claimed")
        .await;
    let unit = bench.delivered("airalo", "recycled").await;
    bench.ask_give_back(&unit).await;
    let row = bench
        .claim_until(&unit, |row| row.give_back != "asked")
        .await;
    assert_eq!((row.give_back.as_str(), row.attempt), ("refused", 0));
    assert_eq!(bench.sent(&unit).await, Value::Null);
}

/// No look shows whether there is a claim, so one whose answer is lost is never sent again. If its
/// money comes, that is found.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_is_lost_is_parked_or_found_by_its_credit_and_never_sent_twice() {
    for is_credited in [false, true] {
        let patience = if is_credited { 600 } else { 4 };
        let bench = bench(|config| config.park_after = Duration::from_secs(patience)).await;
        let unit = bench.delivered("airalo", "return-lost").await;
        bench.ask_give_back(&unit).await;
        bench.claim_until(&unit, |row| row.attempt == 1).await;
        wait::until(PATIENCE, "the claim", async || {
            Ok((bench.sent(&unit).await["sent"] == 1).then_some(()))
        })
        .await
        .unwrap();
        if is_credited {
            bench.decide(&unit, "DONE").await;
        }
        let is_over = |row: &ClaimRow| !["asked", "sending"].contains(&row.give_back.as_str());
        let row = bench.claim_until(&unit, is_over).await;
        let expected = if is_credited { "returned" } else { "parked" };
        assert_eq!(
            (row.give_back.as_str(), row.attempt),
            (expected, 1),
            "{row:?}"
        );
        assert_eq!(row.returned, is_credited);
        assert_eq!(bench.sent(&unit).await["sent"], 1);
    }
}

fn esim() -> DeliveredEsim {
    DeliveredEsim {
        unit_id: ProviderId::parse("25".to_owned()).unwrap(),
        iccid: domain::Iccid::parse("8982123456789012345").unwrap(),
    }
}

#[tokio::test]
async fn only_what_airalo_says_clearly_of_a_claim_is_believed() {
    let invalid = r#"{"data":[],"meta":{"message":"the parameter is invalid"}}"#;
    for (status, body, expected) in [
        (
            "202 X",
            r#"{"data":{"refund_id":"12345","created_at":"2026-10-12 09:30"},"meta":{"message":"success"}}"#,
            "claimed 12345",
        ),
        ("202 X", r#"{"data":{"refund_id":12345}}"#, "claimed 12345"),
        ("202 X", r#"{"data":{"refund_id":""}}"#, "unknown"),
        ("202 X", r#"{"data":{}}"#, "unknown"),
        ("202 X", "", "unknown"),
        ("422 X", invalid, "refused"),
        (
            "422 X",
            r#"{"data":{"iccids":"why"},"meta":{"message":"the parameter is invalid"}}"#,
            "refused",
        ),
        (
            "422 X",
            r#"{"data":[],"meta":{"message":"something else"}}"#,
            "unknown",
        ),
        (
            "422 X",
            r#"{"code":53,"reason":"Something unexpected happened"}"#,
            "unknown",
        ),
        ("500 X", "", "unknown"),
        ("429 X", "", "busy"),
    ] {
        let account = answering("airalo", status, body).await;
        let answer = match account.give_back(&esim(), GiveBackCause::Other).await {
            Ok(GiveBackResponse::Claimed { reference, .. }) => {
                format!("claimed {}", reference.unwrap().as_str())
            }
            Ok(GiveBackResponse::Refused(_)) => "refused".to_owned(),
            Ok(GiveBackResponse::Returned) => "returned".to_owned(),
            Err(trouble) => trouble.class().to_owned(),
        };
        assert_eq!(answer, expected, "{status} {body}");
    }
    let order = |kind: &str, iccid: &str, slug: &str| {
        json!({
            "id": 7, "type": kind, "package_id": "P", "quantity": 1,
            "sims": [{ "id": 25, "iccid": iccid }], "status": { "slug": slug },
        })
    };
    let ours = "8982123456789012345";
    let refunded = order("sim", ours, "refunded");
    let unshown = |said: &str| Custody::ClaimUnshown(format!("the order of the eSIM is {said}"));
    let none = Custody::ClaimUnshown("Airalo lists not one order of the eSIM".to_owned());
    for (orders, expected) in [
        (json!([refunded]), Custody::Returned),
        // A top-up that is refunded says nothing of the eSIM.
        (
            json!([
                order("topup", ours, "refunded"),
                order("sim", ours, "completed")
            ]),
            unshown("completed"),
        ),
        (
            json!([order("sim", ours, "partially_refunded")]),
            unshown("partially_refunded"),
        ),
        (json!([order("sim", ours, "on_hold")]), unshown("on_hold")),
        (json!([order("sim", ours, "failed")]), unshown("failed")),
        (
            json!([order("sim", "8982123456789012353", "refunded")]),
            none.clone(),
        ),
        (json!([refunded, refunded]), none.clone()),
        (json!([]), none),
    ] {
        let body = json!({ "data": orders }).to_string();
        let account = answering("airalo", "200 OK", &body).await;
        assert_eq!(account.find_claim(&esim()).await, Ok(expected), "{body}");
    }
    let account = answering("airalo", "500 X", "").await;
    let seen = account.find_claim(&esim()).await;
    assert!(matches!(seen, Err(Trouble::Unknown { .. })), "{seen:?}");
}

//! A partner says "we sent it": its refused requests are kept, so that an operator can tell them
//! from requests that never came.

use crate::partner::API;
use crate::shop::{SOON, fresh};
use anyhow::Result;
use serde_json::Value;
use signing::SecretKey;
use testkit::client::{Answer, Client};
use testkit::esimctl::Partner;
use testkit::stack::{Stack, Stage};
use testkit::wait;

/// The requests that are kept of a partner, newest first, once there are `number` of them.
async fn kept(stack: &Stack, partner: &Partner, number: usize) -> Result<Vec<Value>> {
    wait::until(SOON, "refused requests that are kept", async || {
        let access_key = partner.access_key.as_str();
        let kept: Vec<Value> = stack
            .esimctl
            .run(&["partner", "show", access_key, "--refused", "--limit", "100"])
            .await?;
        Ok((kept.len() >= number).then_some(kept))
    })
    .await
}

fn request_id(answer: &Answer) -> String {
    answer.headers["x-request-id"].to_str().unwrap().to_owned()
}

async fn forged(client: &Client) -> Answer {
    let secret = SecretKey::from_bytes(vec![7; 32]).unwrap();
    client.post("{}").secret(secret).send().await.unwrap()
}

#[tokio::test]
async fn each_refused_request_of_a_known_access_key_is_kept_with_what_its_answer_said() {
    let stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let client = stack.client(&partner).unwrap();
    let external = fresh("refused");
    let unknown_option = "00000000-0000-4000-8000-000000000000";

    let order = client
        .order(&external, &[(unknown_option, 1)])
        .await
        .unwrap();
    let topup = format!("{API}/topups/20250129000000123456789012");
    let look_up = client.get(&topup).query("a=b").send().await.unwrap();
    let forged = forged(&client).await;
    let late = client.post("{}").timestamp_from_now(-600);
    let late = late.send().await.unwrap();
    let stranger = client.post("{}").access_key("ak_nobody");
    let stranger = stranger.send().await.unwrap();
    assert_eq!(
        [&order, &look_up, &forged, &late, &stranger].map(|answer| answer.status),
        [422, 422, 401, 401, 401]
    );

    let kept = kept(&stack, &partner, 4).await.unwrap();
    let mut shown: Vec<_> = kept
        .iter()
        .map(|one| {
            let text = |name: &str| one[name].as_str().unwrap_or("-").to_owned();
            let id = text("request_id").replace('-', "");
            (
                text("kind"),
                one["status"].as_u64().unwrap(),
                text("errors"),
                id,
            )
        })
        .collect();
    shown.sort();
    let expected = [
        ("order", 422, "option_not_found; item=0", &order),
        ("other", 422, "parameter_unknown; parameter=a", &look_up),
        ("unsigned", 401, "signature_invalid", &forged),
        ("unsigned", 401, "timestamp_invalid", &late),
    ];
    for (one, (kind, status, errors, answer)) in shown.iter().zip(&expected) {
        assert_eq!((one.0.as_str(), one.1), (*kind, *status), "{shown:?}");
        assert_eq!(one.3, request_id(answer), "{shown:?}");
        assert!(
            one.2.starts_with(errors.split(';').next().unwrap()),
            "{shown:?}"
        );
    }
    assert_eq!(
        shown.len(),
        4,
        "the unknown access key belongs to nobody: {shown:?}"
    );
    let of_order = kept.iter().find(|one| one["kind"] == "order").unwrap();
    assert_eq!(of_order["external_order_id"], external);
    let of_look_up = kept.iter().find(|one| one["kind"] == "other").unwrap();
    assert_eq!(of_look_up["path"], topup, "without the query");

    for id in [&external, &request_id(&order)] {
        let found: Value = stack.esimctl.run(&["find", id]).await.unwrap();
        assert_eq!(
            found["refused"][0]["external_order_id"], external,
            "{found}"
        );
    }
}

#[tokio::test]
async fn a_flood_of_forged_requests_is_counted_and_costs_few_rows() {
    let mut stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let client = stack.client(&partner).unwrap();
    for _ in 0..80 {
        assert_eq!(forged(&client).await.status, 401);
    }
    // The flood takes no room from what the partner itself sends.
    assert_eq!(client.post("not JSON").send().await.unwrap().status, 400);
    let kept = kept(&stack, &partner, 61).await.unwrap();
    let of = |kind: &str| kept.iter().filter(|one| one["kind"] == kind).count();
    assert_eq!((of("unsigned"), of("order")), (60, 1), "{kept:?}");
    let metrics = stack.process(Stage::Ingress).unwrap().metrics().await;
    let metrics = metrics.unwrap();
    let recorded: Vec<_> = metrics
        .lines()
        .filter(|line| line.starts_with("esim_refusals_recorded_total"))
        .collect();
    let has = |outcome: &str, number: &str| {
        recorded
            .iter()
            .any(|line| line.contains(&format!("\"{outcome}\"")) && line.ends_with(number))
    };
    assert!(has("limited", " 20") && has("kept", " 61"), "{recorded:?}");
}

/// What could not be stored is missing, and the next one of its kind says so.
#[tokio::test]
async fn refusals_that_were_not_stored_are_counted_by_the_next_one() {
    let mut stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let client = stack.client(&partner).unwrap();
    let refused = async || {
        assert_eq!(client.post("not JSON").send().await.unwrap().status, 400);
    };
    let mut owner = stack.database.connect().await.unwrap();
    sqlx::raw_sql("ALTER TABLE refused_requests RENAME TO elsewhere")
        .execute(&mut owner)
        .await
        .unwrap();
    refused().await;
    refused().await;
    let process = stack.process(Stage::Ingress).unwrap();
    let failed = "esim_refusals_recorded_total{outcome=\"failed\"";
    wait::until(SOON, "two refusals that could not be stored", async || {
        let metrics = process.metrics().await?;
        let line = metrics.lines().find(|line| line.starts_with(failed));
        Ok(line.filter(|line| line.ends_with(" 2")).map(drop))
    })
    .await
    .unwrap();
    sqlx::raw_sql("ALTER TABLE elsewhere RENAME TO refused_requests")
        .execute(&mut owner)
        .await
        .unwrap();
    refused().await;
    let kept = kept(&stack, &partner, 1).await.unwrap();
    assert_eq!(
        (kept.len(), kept[0]["unrecorded"].as_u64()),
        (1, Some(2)),
        "{kept:?}"
    );
}

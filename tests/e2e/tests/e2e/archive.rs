//! An order is archived beside the running stages: its partner is told so, and its external id
//! stays taken.

use serde_json::Value;
use testkit::stack::Stack;
use time::Duration;
use uuid::{NoContext, Timestamp, Uuid};

use crate::partner::{ask, assert_refused, delivered, get};
use crate::repeats::repeat;
use crate::shop::{fresh, open};

/// Moves an order 500 days into the past, with the times in its ids.
async fn age(stack: &Stack, topup_id: &str) -> String {
    let at = runtime::clock::now() - Duration::days(500);
    let seconds = u64::try_from(at.unix_timestamp()).unwrap();
    let order = Uuid::new_v7(Timestamp::from_unix(NoContext, seconds, 0));
    let digits = time::macros::format_description!("[year][month][day][hour][minute][second]");
    let topup = at.format(digits).unwrap() + &topup_id[14..];
    let mut database = stack.database.connect().await.unwrap();
    // The profile is bound to the old topup id, so it would no longer open. It counts as erased by
    // retention.
    let aging = sqlx::query(
        "WITH old AS (
             SELECT p.order_id, p.placement_id FROM placements p JOIN topups t USING (placement_id) WHERE t.topup_id = $1
         ), orders AS (
             UPDATE orders SET order_id = $2, created_at = created_at - interval '500 days',
                    answer_by = answer_by - interval '500 days'
             WHERE order_id = (SELECT order_id FROM old)
         ), placements AS (
             UPDATE placements SET order_id = $2 WHERE placement_id = (SELECT placement_id FROM old)
         ), deliveries AS (
             UPDATE deliveries SET order_id = $2, topup_id = $3 WHERE topup_id = $1
         ), esims AS (
             UPDATE esims SET topup_id = $3, profile = NULL, erased_at = now() WHERE topup_id = $1
         )
         UPDATE topups SET topup_id = $3 WHERE topup_id = $1",
    );
    let aged = aging
        .bind(topup_id)
        .bind(order)
        .bind(&topup)
        .execute(&mut database)
        .await;
    assert_eq!(aged.unwrap().rows_affected(), 1);
    topup
}

#[tokio::test]
async fn an_archived_order_is_gone_for_its_partner_and_its_id_stays_taken() {
    let (stack, shop) = open().await;
    let id = fresh("archived");
    let ready = stack.option("ready").unwrap();
    let bought = shop.buy(&id, ready, 1).await.unwrap();
    delivered(&shop.client, &bought[0].topup_id).await;
    let topup = age(&stack, &bought[0].topup_id).await;
    let kept = fresh("kept");
    let young = shop.buy(&kept, ready, 1).await.unwrap();
    delivered(&shop.client, &young[0].topup_id).await;
    let before = get(&shop.client, &format!("/orders/{id}")).await.unwrap();
    assert_eq!(before["topups"][0]["topup_id"], topup);

    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().to_str().unwrap();
    let run = ["archive", "run", "--to", to, "--older-than", "400d"];
    let confirmed = ["--yes", "--reason", "a test"];
    let ran: Value = stack
        .esimctl
        .run(&[&run[..], &confirmed].concat())
        .await
        .unwrap();
    assert_eq!(ran["orders"], 1, "{ran}");

    for (method, path) in [
        ("GET", format!("/orders/{id}")),
        ("DELETE", format!("/orders/{id}")),
        ("GET", format!("/topups/{topup}")),
        ("GET", format!("/topups/{topup}/deliveries")),
        ("POST", format!("/topups/{topup}/redeliver")),
        ("GET", format!("/topups/{topup}/usage")),
        ("GET", format!("/topups/{topup}/give-back")),
        ("POST", format!("/topups/{topup}/give-back")),
        ("GET", format!("/topups/{topup}/suspension")),
        ("POST", format!("/topups/{topup}/suspend")),
        ("POST", format!("/topups/{topup}/resume")),
        ("POST", format!("/topups/{topup}/install-page")),
        ("DELETE", format!("/topups/{topup}/install-page")),
    ] {
        let answer = ask(&shop.client, method, &path).await.unwrap();
        assert_refused(&answer, 410, "order_archived");
    }
    let unknown = ask(&shop.client, "GET", "/orders/unknown").await.unwrap();
    assert_refused(&unknown, 404, "not_found");
    let listed = get(&shop.client, "/orders").await.unwrap();
    assert_eq!(listed["orders"].as_array().unwrap().len(), 1);
    assert_eq!(listed["orders"][0]["external_order_id"], kept);
    // Ingress looks the id up in two places: when it stores an order, and when an order has faults.
    let again = shop.client.order(&id, &[(ready, 1)]).await.unwrap();
    assert_refused(&again, 422, "external_order_id_taken");
    // Its answer is gone.
    let repeated = repeat(&shop.client, &id, &[(ready, 1)]).await.unwrap();
    assert_refused(&repeated, 410, "order_archived");
    let faulty = shop.client.order(&id, &[(ready, 0)]).await.unwrap();
    assert!(
        faulty.headers["x-service-error"]
            .to_str()
            .unwrap()
            .starts_with("external_order_id_taken"),
        "{faulty:?}"
    );
}

//! Options that several providers sell, seen by partners and operators. The sandbox plays both
//! providers, `sandbox` and `airalo`, over one ledger.

use anyhow::Result;
use serde_json::{Value, json};
use testkit::{client::Client, stack::Stack, wait};

use crate::shop::{PATH, SOON, Shop, bought_once, fresh, ids, show};

/// Both providers sell it, and `sandbox` has none left.
const ROUTED: &str = "01990000-0000-7000-8000-000000000001";
/// Both providers reject it.
const NOWHERE: &str = "01990000-0000-7000-8000-000000000002";

/// A stack with both options, and a live partner. Ingress waits for the verdicts of both providers.
async fn open() -> Result<(Stack, Shop)> {
    let stack = Stack::builder().provider("airalo").start().await?;
    let airalo = async |name| {
        let option = stack.esimctl.option_of("airalo", name).await?;
        anyhow::Ok(option.provider_option_id)
    };
    // The sandbox knows its options by the same ids in both protocols. At Airalo a price follows.
    let sold_out = airalo("out-of-stock").await?;
    let sold_out = sold_out.split('@').next().unwrap_or_default();
    let mut options = Vec::new();
    for (id, second) in [(ROUTED, "ready"), (NOWHERE, "refused")] {
        options.push(json!({
            "option_id": id, "name": format!("{second} at the second"), "environment": "live",
            "provider": "sandbox", "provider_option_id": sold_out,
            "alternatives": [{"provider": "airalo", "provider_option_id": airalo(second).await?}],
        }));
    }
    stack
        .esimctl
        .import(json!({ "options": options }).to_string())
        .await?;
    let shop = Shop::open(&stack).await?;
    wait::until(SOON, "verdicts of both providers", async || {
        let answer = shop.client.order(&fresh("first"), &[(NOWHERE, 1)]).await?;
        Ok((answer.status == 422).then_some(()))
    })
    .await?;
    Ok((stack, shop))
}

#[tokio::test]
async fn what_one_provider_rejects_is_bought_from_the_next_and_delivered() {
    let (stack, shop) = open().await.unwrap();
    let id = fresh("routed");
    let products = shop.buy(&id, ROUTED, 2).await.unwrap();
    shop.delivered(&ids(&products), SOON).await.unwrap();
    let ledger = stack.ledger().await.unwrap();
    assert_eq!(ledger.purchases, 1);
    bought_once(&ledger).unwrap();

    let shown = show(&stack, &id).await.unwrap();
    let placement = &shown["placements"][0];
    assert_eq!(placement["provider"], "airalo");
    assert_eq!(placement["attempt"], 2);
    assert_eq!(placement["tried"][0]["provider"], "sandbox");
    assert_eq!(placement["tried"][0]["attempt"], 1);
    let reason = placement["tried"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("9005"), "{reason}");
    // The catalogue shows the alternatives to operators only.
    let listed: Vec<Value> = stack.esimctl.run(&["option", "list"]).await.unwrap();
    let routed = listed.iter().find(|one| one["option_id"] == ROUTED);
    assert_eq!(routed.unwrap()["alternatives"][0]["provider"], "airalo");
}

/// As specified: the order is refused, nothing is bought, and its external id is free again. The
/// text is that of the last provider.
#[tokio::test]
async fn what_every_provider_rejects_is_answered_with_422() {
    let (stack, shop) = open().await.unwrap();
    let id = fresh("nowhere");
    for _ in 0..2 {
        let answer = shop.client.order(&id, &[(NOWHERE, 1)]).await.unwrap();
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(answer.status, 422, "{body}");
        assert!(body.contains("eSIM Request failed - Status: 34"), "{body}");
    }
    assert_eq!(stack.ledger().await.unwrap().purchases, 0);
}

/// The second provider is a real one, as far as the system knows.
#[tokio::test]
async fn an_order_of_a_sandbox_partner_stays_at_the_sandbox() {
    let (stack, shop) = open().await.unwrap();
    let partner = stack
        .create_partner("sandbox", Some(&shop.receiver.url(PATH)))
        .await
        .unwrap();
    let client = Client::of(&stack.base_url, &partner).unwrap();
    let answer = client.order(&fresh("test"), &[(ROUTED, 1)]).await.unwrap();
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!(answer.status, 422, "{body}");
    assert_eq!(stack.ledger().await.unwrap().purchases, 0);
}

/// eSIM Access takes up to 30 eSIMs in a purchase.
#[tokio::test]
async fn an_order_larger_than_a_batch_of_its_provider_is_bought_in_two_purchases() {
    let stack = Stack::builder()
        .provider("esim-access")
        .start()
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let ready = stack.option("ready").unwrap();
    let products = shop.buy(&fresh("batch"), ready, 31).await.unwrap();
    shop.delivered(&ids(&products), SOON).await.unwrap();
    let ledger = stack.ledger().await.unwrap();
    assert_eq!((ledger.purchases, ledger.units), (2, 31));
}

//! Pictures of activation codes that this system has not sent.

use crate::shop::{SOON, Shop, fresh};
use testkit::receiver::Received;
use testkit::stack::{Stack, Stage};

const KEYS: &str =
    "HxscHR4fAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBk=,AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const OLD_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// A stack whose ingress has these settings, and whose notifier has the old key, as in the middle
/// of a rotation.
async fn stack(ingress: &[(&str, &str)]) -> Stack {
    let mut builder = Stack::builder().env(Stage::Notifier, "QR_KEYS", OLD_KEY);
    for (name, value) in ingress {
        builder = builder.env(Stage::Ingress, name, value);
    }
    builder.start().await.unwrap()
}

/// The webhook of a new order.
async fn webhook(stack: &Stack) -> (Shop, String, Received) {
    let shop = Shop::open(stack).await.unwrap();
    let id = fresh("qr");
    let bought = shop
        .buy(&id, stack.option("ready").unwrap(), 1)
        .await
        .unwrap();
    let mut received = shop
        .delivered(&testkit::shop::ids(&bought), SOON)
        .await
        .unwrap();
    (shop, id, received.pop().unwrap())
}

async fn status(url: &str) -> u16 {
    let answer = testkit::http::client()
        .unwrap()
        .get(url)
        .send()
        .await
        .unwrap();
    let status = answer.status().as_u16();
    let kind = answer.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    let body = answer.bytes().await.unwrap();
    match status {
        200 => assert_eq!(kind, "image/png"),
        _ => assert_eq!(
            (&kind[..], &body[..]),
            ("application/json", &br#"{"error":"Not found"}"#[..])
        ),
    }
    status
}

#[tokio::test]
async fn only_pictures_of_sent_codes_are_drawn() {
    let stack = stack(&[("QR_KEYS", KEYS)]).await;
    let (shop, id, webhook) = webhook(&stack).await;
    let url = webhook.json["qrcode_img_url"].as_str().unwrap();
    let (bare, mac) = url.split_once("?mac=").unwrap();
    assert_eq!(status(url).await, 200);
    assert_eq!(status(&format!("{bare}?from=mail&mac={mac}")).await, 200);
    let other = bare.replace("%24", "%24x");
    let flipped = if mac.starts_with('0') { '1' } else { '0' };
    for bad in [
        bare.to_owned(),
        format!("{bare}?"),
        format!("{bare}?mac="),
        format!("{bare}?mac={flipped}{}", &mac[1..]),
        format!("{bare}?mac={}", &mac[1..]),
        format!("{bare}?mac={}", mac.to_uppercase()),
        format!("{bare}?mac={mac}0"),
        format!("{bare}?MAC={mac}"),
        format!("{bare}?mac=0&mac={mac}"),
        format!("{other}?mac={mac}"),
    ] {
        assert_eq!(status(&bad).await, 404, "{bad}");
    }
    // Ingress makes the URL of a look-up, with its own newest key.
    let order = shop.client.get(&format!("/v1/api_partner/orders/{id}"));
    let order = order.send().await.unwrap().json().unwrap();
    let shown = order["topups"][0]["esim"]["qrcode_img_url"]
        .as_str()
        .unwrap();
    assert!(shown.starts_with(bare) && shown != url, "{shown}");
    assert_eq!(status(shown).await, 200);
}

#[tokio::test]
async fn pictures_from_before_are_drawn_until_the_operators_time() {
    let stack = stack(&[("QR_KEYS", KEYS), ("QR_BARE_UNTIL", "2100-01-01T00:00:00Z")]).await;
    let (_shop, _, webhook) = webhook(&stack).await;
    let url = webhook.json["qrcode_img_url"].as_str().unwrap();
    let (bare, _) = url.split_once('?').unwrap();
    assert_eq!(status(url).await, 200);
    assert_eq!(status(bare).await, 200);
    assert_eq!(status(&format!("{bare}?mac=wrong")).await, 404);
}

//! What arrives at a partner's endpoint.

use crate::shop::{PATH, SOON, fresh, ids, open, show};
use anyhow::{Context, Result, ensure};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;
use testkit::receiver::{Received, Receiver, Signature};
use testkit::stack::{Stack, Stage};
use testkit::{client::Product, http, wait};
use url::Url;

const FIELDS: &str = "activate_code download_link expired_date external_order_id iccid option_id qrcode_img_url smdp topup_id";

/// The nine fields of a webhook, by name: exactly these, all texts.
fn fields(webhook: &Received) -> Result<BTreeMap<String, String>> {
    let fields: BTreeMap<String, String> = serde_json::from_slice(&webhook.body)?;
    ensure!(
        fields.keys().eq(FIELDS.split(' ')),
        "fields {:?}",
        fields.keys()
    );
    Ok(fields)
}

fn header<'a>(webhook: &'a Received, name: &str) -> Result<&'a str> {
    Ok(webhook
        .headers
        .get(name)
        .with_context(|| format!("no {name}"))?
        .to_str()?)
}

/// Checks the shapes of section 2.5 and the delivery headers.
fn check_shapes(webhook: &Received, stack: &Stack) -> Result<()> {
    let fields = fields(webhook)?;
    let field = |name: &str| fields[name].as_str();
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    ensure!(
        digits(field("iccid")) && (18..=20).contains(&field("iccid").len()),
        "iccid {}",
        field("iccid")
    );
    ensure!(
        url::Host::parse(field("smdp"))?.to_string() == field("smdp"),
        "smdp {}",
        field("smdp")
    );
    ensure!(!field("activate_code").is_empty(), "no activate_code");
    let link = format!("LPA:1${}${}", field("smdp"), field("activate_code"));
    ensure!(
        field("download_link") == link,
        "download_link {}",
        field("download_link")
    );
    let date = time::macros::format_description!("[year]-[month]-[day]");
    let expires = time::Date::parse(field("expired_date"), date).context("expired_date")?;
    ensure!(
        expires > runtime::clock::now().date(),
        "expired_date {expires}"
    );

    let url: Url = field("qrcode_img_url").parse()?;
    ensure!(
        url.as_str().starts_with(&stack.base_url),
        "qrcode_img_url {url}"
    );
    let segments: Vec<&str> = url.path_segments().context("no path")?.collect();
    let [.., encoded, size] = segments.as_slice() else {
        anyhow::bail!("qrcode_img_url {url}")
    };
    ensure!(
        !size.is_empty() && digits(size),
        "the last path segment of {url}"
    );
    ensure!(
        *encoded != link && percent_decode_str(encoded).decode_utf8()? == link,
        "qrcode_img_url {url}"
    );

    ensure!(
        webhook.signature == Signature::Valid,
        "the signature is wrong"
    );
    ensure!(header(webhook, "content-type")? == "application/json");
    let timestamp = signing::parse_unix_time(header(webhook, "webhook-timestamp")?)
        .context("webhook-timestamp")?;
    ensure!(
        timestamp.abs_diff(runtime::clock::unix_seconds()) < 60,
        "webhook-timestamp {timestamp}"
    );
    ensure!(!header(webhook, "webhook-id")?.is_empty());
    Ok(())
}

/// The text of the QR code that a URL shows as PNG.
async fn scan(url: &str) -> Result<String> {
    let answer = http::client()?.get(url).send().await?;
    ensure!(answer.status() == 200, "{} from {url}", answer.status());
    ensure!(answer.headers()["content-type"] == "image/png");
    ensure!(answer.headers()["cache-control"] == "no-store");
    ensure!(answer.headers()["referrer-policy"] == "no-referrer");
    let bytes = answer.bytes().await?;
    let mut decoder = png::Decoder::new(std::io::Cursor::new(&bytes));
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    let mut reader = decoder.read_info()?;
    let mut pixels = vec![0; reader.output_buffer_size().context("a huge picture")?];
    let info = reader.next_frame(&mut pixels)?;
    ensure!(
        info.color_type == png::ColorType::Grayscale,
        "{:?}",
        info.color_type
    );
    let width = usize::try_from(info.width)?;
    let height = usize::try_from(info.height)?;
    let mut reader = quircs::Quirc::default();
    let codes = reader
        .identify(width, height, &pixels)
        .collect::<Result<Vec<_>, _>>()?;
    ensure!(codes.len() == 1, "{} QR codes", codes.len());
    Ok(String::from_utf8(codes[0].decode()?.payload)?)
}

/// `00-<trace>-<span>-<flags>`
fn trace_id(traceparent: &str) -> Result<&str> {
    let parts: Vec<&str> = traceparent.split('-').collect();
    ensure!(
        parts.len() == 4 && parts[1].len() == 32 && parts[2].len() == 16,
        "{traceparent}"
    );
    Ok(parts[1])
}

#[tokio::test]
async fn each_unit_has_one_webhook_with_the_nine_fields() {
    let (stack, shop) = open().await;
    let external_order_id = fresh("Bestellung ä \"1\"");
    let items = [
        (stack.option("ready").unwrap(), 2),
        (stack.option("delayed").unwrap(), 1),
    ];
    let foreign = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let request = shop
        .client
        .post(testkit::client::order(&external_order_id, &items).to_string());
    let products = request
        .header("traceparent", foreign)
        .send()
        .await
        .unwrap()
        .products()
        .unwrap();

    let received = shop.delivered(&ids(&products), SOON).await.unwrap();
    assert_eq!(received.len(), 3);
    let order = show(&stack, &external_order_id).await.unwrap();
    let trace = trace_id(order["traceparent"].as_str().unwrap()).unwrap();
    assert_ne!(
        trace,
        trace_id(foreign).unwrap(),
        "a partner's trace is linked, not trusted"
    );
    let mut webhook_ids = HashSet::new();
    let mut codes = HashSet::new();
    for webhook in &received {
        check_shapes(webhook, &stack).unwrap();
        assert_eq!(
            trace_id(header(webhook, "traceparent").unwrap()).unwrap(),
            trace
        );
        let fields = fields(webhook).unwrap();
        assert_eq!(fields["external_order_id"], external_order_id);
        let product = products
            .iter()
            .find(|product| product.topup_id == webhook.topup_id())
            .unwrap();
        assert_eq!(fields["option_id"], product.option_id);
        assert_eq!(
            scan(&fields["qrcode_img_url"]).await.unwrap(),
            fields["download_link"]
        );
        webhook_ids.insert(header(webhook, "webhook-id").unwrap().to_owned());
        codes.insert((fields["iccid"].clone(), fields["activate_code"].clone()));
    }
    assert_eq!((webhook_ids.len(), codes.len()), (3, 3));

    // Delivered once: no delivery is due.
    let settled = async || {
        let order = show(&stack, &external_order_id).await?;
        let topups = order["topups"].as_array().context("topups")?;
        let done = topups
            .iter()
            .all(|topup| topup["delivery"] == "delivered" && topup["delivery_due_at"].is_null());
        Ok(done.then_some(()))
    };
    wait::soon("all deliveries to be recorded", settled).await;
    assert_eq!(shop.receiver.received().len(), 3);
    let ledger = stack.ledger().await.unwrap();
    assert_eq!((ledger.purchases, ledger.units), (1, 3));
}

#[tokio::test]
async fn without_a_url_nothing_is_delivered_until_there_is_one() {
    let stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let items = [(stack.option("ready").unwrap(), 2)];
    let answer = stack
        .client(&partner)
        .unwrap()
        .order("no-endpoint", &items)
        .await
        .unwrap();
    let products = answer.products().unwrap();
    let without_endpoint = async || {
        let order = show(&stack, &products[0].topup_id).await?;
        let topups = order["topups"].as_array().context("topups")?;
        Ok(topups
            .iter()
            .all(|topup| topup["delivery"] == "no_endpoint")
            .then_some(()))
    };
    wait::soon("deliveries without endpoint", without_endpoint).await;

    let endpoint = Receiver::start().await.unwrap();
    endpoint.verify(PATH, &partner.webhook_secret).unwrap();
    let url = endpoint.url(PATH);
    let command = ["partner", "set", &partner.partner_id, "--webhook-url", &url];
    let _: Value = stack.esimctl.run(&command).await.unwrap();
    let received = endpoint.wait_for(2, SOON).await.unwrap();
    let told: BTreeSet<String> = received
        .iter()
        .map(|webhook| webhook.topup_id().to_owned())
        .collect();
    assert_eq!(told, ids(&products));
    for webhook in &received {
        check_shapes(webhook, &stack).unwrap();
    }
}

#[tokio::test]
async fn a_webhook_that_is_not_acknowledged_comes_again() {
    let (stack, shop) = open().await;
    shop.receiver.fail_first(PATH, 500);
    let products = shop
        .buy("again", stack.option("ready").unwrap(), 1)
        .await
        .unwrap();
    let received = shop.receiver.wait_for(2, SOON).await.unwrap();
    let [first, second] = received.as_slice() else {
        panic!("{received:?}")
    };
    for webhook in [first, second] {
        check_shapes(webhook, &stack).unwrap();
        assert_eq!(webhook.topup_id(), products[0].topup_id);
    }
    assert_eq!(first.body, second.body);
    assert_eq!(
        header(first, "webhook-id").unwrap(),
        header(second, "webhook-id").unwrap()
    );
    let gap = second.at - first.at;
    assert!(
        (Duration::from_secs(4)..Duration::from_secs(12)).contains(&gap),
        "second attempt after {gap:?}"
    );

    let delivered = async || {
        let topup = show(&stack, "again").await?["topups"][0].clone();
        Ok((topup["delivery"] == "delivered").then_some(topup))
    };
    let topup = wait::soon("the delivery to be recorded", delivered).await;
    assert_eq!(
        (&topup["delivery_attempts"], &topup["delivery_status"]),
        (&json!(2), &json!(200))
    );
}

#[tokio::test]
async fn the_largest_order_arrives_completely() {
    let (stack, shop) = open().await;
    let ready = stack.option("ready").unwrap();
    let delayed = stack.option("delayed").unwrap();
    let items: Vec<(&str, u32)> = (0..100)
        .map(|item| (if item % 2 == 0 { ready } else { delayed }, 10))
        .collect();
    let products = shop
        .client
        .order("largest", &items)
        .await
        .unwrap()
        .products()
        .unwrap();
    assert_eq!(products.len(), 1000);

    let received = shop
        .delivered(&ids(&products), Duration::from_secs(90))
        .await
        .unwrap();
    let told: BTreeMap<&str, &str> = received
        .iter()
        .map(|webhook| {
            (
                webhook.topup_id(),
                webhook.json["option_id"].as_str().unwrap(),
            )
        })
        .collect();
    let entered: BTreeMap<&str, &str> = products
        .iter()
        .map(
            |Product {
                 topup_id,
                 option_id,
             }| (topup_id.as_str(), option_id.as_str()),
        )
        .collect();
    assert_eq!(told, entered);
    assert_eq!(received.len(), 1000);
    let iccids: BTreeSet<&str> = received
        .iter()
        .map(|webhook| webhook.json["iccid"].as_str().unwrap())
        .collect();
    assert_eq!(iccids.len(), 1000);
    let ledger = stack.ledger().await.unwrap();
    assert_eq!((ledger.purchases, ledger.units), (1, 1000));
}

/// In the sandbox `http` is fine; of a live partner it would show activation codes to the network.
#[tokio::test]
async fn a_live_partner_sets_an_http_url_only_if_the_operator_allows_it() {
    const URL: &str = "http://shop.example/webhooks";
    for (setting, expected) in [("false", 422), ("true", 200)] {
        let builder = Stack::builder().env(Stage::Ingress, "WEBHOOK_HTTP_LIVE", setting);
        let stack = builder.without(Stage::Notifier).start().await.unwrap();
        for (environment, expected) in [("live", expected), ("sandbox", 200)] {
            let stored = "http://stored.example/webhooks";
            let partner = stack
                .create_partner(environment, Some(stored))
                .await
                .unwrap();
            let client = stack.client(&partner).unwrap();
            let put = client.post(json!({"url": URL}).to_string()).method("PUT");
            let answer = put.path("/v1/api_partner/webhook").send().await.unwrap();
            assert_eq!(answer.status, expected, "{environment}, {setting}");
            let get = client.get("/v1/api_partner/webhook");
            let shown = get.send().await.unwrap().json().unwrap();
            if expected == 200 {
                assert_eq!(shown["url"], URL);
            } else {
                // A URL that is stored stays.
                assert_eq!(shown["url"], stored);
                let said = json!({"errors": ["Url must begin with https:// for a live account"]});
                assert_eq!(answer.json().unwrap(), said);
                assert_eq!(
                    answer.headers["x-service-error"],
                    "url_forbidden; parameter=url"
                );
            }
        }
    }
}

//! The page from which a traveller installs an eSIM.

use std::collections::BTreeMap;

use reqwest::header::{ACCEPT_LANGUAGE, HeaderMap, USER_AGENT};
use serde_json::{Value, json};
use testkit::{client::Client, http, stack::Stack};

use crate::{
    partner::{ask, assert_refused, delivered, get, send},
    shop::{Shop, fresh, open},
};

const SETTINGS: &str = "/account/install-pages";

/// How the pages of the tests look.
fn settings(install_urls: bool) -> String {
    json!({
        "name": "Norvada <b>Travel</b>", "brand": "#14506B", "brand_ink": "#ffffff",
        "help_email": "help@norvada.example", "install_urls": install_urls,
    })
    .to_string()
}

/// What a traveller gets.
#[derive(Debug)]
struct Seen {
    status: u16,
    headers: HeaderMap,
    text: String,
}

async fn see(url: &str, language: &str) -> Seen {
    let request = http::client().unwrap().get(url);
    let request = request
        .header(ACCEPT_LANGUAGE, language)
        .header(USER_AGENT, "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0)");
    let answer = request.send().await.unwrap();
    Seen {
        status: answer.status().as_u16(),
        headers: answer.headers().clone(),
        text: answer.text().await.unwrap(),
    }
}

/// Everything of an answer that does not name the request.
fn alike(seen: &Seen) -> (u16, BTreeMap<String, String>, &str) {
    let own = ["date", "x-request-id"];
    let headers = seen
        .headers
        .iter()
        .filter(|(name, _)| !own.contains(&name.as_str()));
    let headers =
        headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    (seen.status, headers.collect(), &seen.text)
}

/// A delivered eSIM.
async fn esim(stack: &Stack, shop: &Shop, option: &str) -> String {
    let bought = shop
        .buy(&fresh(option), stack.option(option).unwrap(), 1)
        .await
        .unwrap();
    let topup_id = bought[0].topup_id.clone();
    delivered(&shop.client, &topup_id).await;
    topup_id
}

async fn url(client: &Client, topup_id: &str) -> String {
    let path = format!("/topups/{topup_id}/install-page");
    let answer = ask(client, "POST", &path).await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let opened = answer.json().unwrap();
    assert_eq!(opened["topup_id"], topup_id);
    opened["install_url"].as_str().unwrap().to_owned()
}

/// There is no page before its partner has said how it looks, in colours that can be read.
#[tokio::test]
async fn what_travellers_see_of_a_shop_is_checked() {
    let (stack, shop) = open().await;
    let topup_id = esim(&stack, &shop, "ready").await;
    let path = format!("/topups/{topup_id}/install-page");
    let unset = ask(&shop.client, "POST", &path).await.unwrap();
    assert_refused(&unset, 409, "install_pages_not_set");
    let unset = ask(&shop.client, "GET", SETTINGS).await.unwrap();
    assert_refused(&unset, 409, "install_pages_not_set");
    let pale = settings(false).replace("#14506B", "#7f9fb0");
    let refused = send(&shop.client, "PUT", SETTINGS, &pale).await.unwrap();
    assert_refused(&refused, 422, "contrast_too_low; parameter=brand_ink");
    let message = String::from_utf8_lossy(&refused.body).into_owned();
    assert!(message.contains("is 2.8 : 1"), "{message}");
    let bad = json!({
        "name": "a\u{202e}b", "brand": "red", "help_url": "http://a.example", "languages": ["en", "en"],
        "install_urls": 1, "colour": "#000000",
    });
    let refused = send(&shop.client, "PUT", SETTINGS, &bad.to_string()).await;
    let refused = refused.unwrap();
    assert_eq!(refused.status, 422);
    let message = String::from_utf8_lossy(&refused.body).into_owned();
    for field in [
        "name",
        "brand",
        "brand_ink",
        "help_url",
        "languages",
        "install_urls",
        "colour",
    ] {
        assert!(message.contains(field), "{field}: {message}");
    }
    let set = send(&shop.client, "PUT", SETTINGS, &settings(false))
        .await
        .unwrap();
    assert_eq!(set.status, 200, "{set:?}");
    let shown = get(&shop.client, SETTINGS).await.unwrap();
    assert_eq!(shown["brand"], "#14506b");
    assert_eq!(shown["languages"].as_array().unwrap().len(), 10);
}

/// A shop that has pages, and one of its eSIMs.
async fn with_page() -> (Stack, Shop, String) {
    let (stack, shop) = open().await;
    let set = send(&shop.client, "PUT", SETTINGS, &settings(false)).await;
    assert_eq!(set.unwrap().status, 200);
    let topup_id = esim(&stack, &shop, "ready").await;
    (stack, shop, topup_id)
}

#[tokio::test]
async fn a_traveller_installs_from_a_page() {
    let (_stack, shop, topup_id) = with_page().await;
    let first = url(&shop.client, &topup_id).await;
    assert_eq!(url(&shop.client, &topup_id).await, first);
    let topup = get(&shop.client, &format!("/topups/{topup_id}"))
        .await
        .unwrap();
    assert_eq!(topup.get("install_url"), None);
    let code = topup["esim"]["activate_code"].as_str().unwrap().to_owned();
    assert!(!first.contains(&code) && !first.contains(&topup_id));

    let page = see(&first, "ja,en;q=0.5").await;
    assert_eq!(page.status, 200);
    assert!(page.text.contains("lang=\"ja\"") && page.text.contains(&code));
    assert!(
        page.text.contains("Norvada &lt;b&gt;Travel&lt;/b&gt;")
            || page.text.contains("Norvada &#60;b")
    );
    assert!(page.text.contains("class=\"on-iphone\""));
    for (name, value) in [
        ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
        ("x-robots-tag", "noindex, nofollow"),
        ("x-content-type-options", "nosniff"),
        ("content-type", "text/html; charset=utf-8"),
    ] {
        assert_eq!(page.headers[name], value);
    }
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; style-src 'self'; script-src 'self';"));
    let arabic = see(&format!("{first}?lang=ar"), "ja").await;
    assert!(arabic.text.contains("<html lang=\"ar\" dir=\"rtl\">"));
    let (folder, _) = first.rsplit_once('/').unwrap();
    for (file, kind) in [
        ("page.css", "text/css; charset=utf-8"),
        ("page.js", "text/javascript; charset=utf-8"),
        ("colours/14506b-ffffff", "text/css; charset=utf-8"),
    ] {
        let loaded = see(&format!("{folder}/{file}"), "en").await;
        assert_eq!(
            (loaded.status, &loaded.headers["content-type"]),
            (200, &kind.parse().unwrap())
        );
    }
    let bad = see(&format!("{folder}/colours/14506b-red;"), "en").await;
    assert_eq!(bad.status, 404);
}

#[tokio::test]
async fn a_page_is_there_until_its_partner_ends_it() {
    let (stack, shop, topup_id) = with_page().await;
    let path = format!("/topups/{topup_id}/install-page");
    let first = url(&shop.client, &topup_id).await;
    let (folder, _) = first.rsplit_once('/').unwrap();
    // Another partner can do nothing with the id.
    let stranger = Shop::open(&stack).await.unwrap();
    let set = send(&stranger.client, "PUT", SETTINGS, &settings(true))
        .await
        .unwrap();
    assert_eq!(set.status, 200);
    for method in ["POST", "DELETE"] {
        let answer = ask(&stranger.client, method, &path).await.unwrap();
        assert_refused(&answer, 404, "not_found");
    }
    assert_eq!(see(&first, "en").await.status, 200);

    // Look-ups show the address to who wants it.
    let set = send(&shop.client, "PUT", SETTINGS, &settings(true))
        .await
        .unwrap();
    assert_eq!(set.status, 200);
    let topup = get(&shop.client, &format!("/topups/{topup_id}"))
        .await
        .unwrap();
    assert_eq!(topup["install_url"], first);
    let order = topup["external_order_id"].as_str().unwrap();
    let order = get(&shop.client, &format!("/orders/{order}"))
        .await
        .unwrap();
    assert_eq!(order["topups"][0]["install_url"], first);

    // An ended page and one that never was are the same to who has the address.
    for _ in 0..2 {
        let ended = ask(&shop.client, "DELETE", &path).await.unwrap();
        assert_eq!(
            (ended.status, &ended.json().unwrap()["install_url"]),
            (200, &Value::Null)
        );
    }
    let ended = see(&first, "en").await;
    let last = if first.ends_with('A') { 'Q' } else { 'A' };
    let wrong = format!("{}{last}", &first[..first.len() - 1]);
    for other in [wrong, format!("{folder}/nothing"), format!("{folder}/%ff")] {
        assert_eq!(alike(&see(&other, "en").await), alike(&ended), "{other}");
    }
    assert_eq!(ended.status, 404);
    assert!(ended.text.contains("This page has ended or never existed"));
    let topup = get(&shop.client, &format!("/topups/{topup_id}"))
        .await
        .unwrap();
    assert_eq!(topup.get("install_url"), None);
    let second = url(&shop.client, &topup_id).await;
    assert_ne!(second, first);
    assert_eq!(see(&second, "en").await.status, 200);
    assert_eq!(see(&first, "en").await.status, 404);
}

/// Each state follows from what is stored of the use, and no look at the page asks a provider.
#[tokio::test]
async fn the_page_shows_what_has_become_of_the_esim() {
    let (stack, shop) = open().await;
    let set = send(&shop.client, "PUT", SETTINGS, &settings(false))
        .await
        .unwrap();
    assert_eq!(set.status, 200);
    let topup_id = esim(&stack, &shop, "in-use").await;
    let page = url(&shop.client, &topup_id).await;
    let topup = get(&shop.client, &format!("/topups/{topup_id}"))
        .await
        .unwrap();
    let code = topup["esim"]["activate_code"].as_str().unwrap().to_owned();
    let ready = see(&page, "en").await.text;
    assert!(ready.contains("Ready to install") && ready.contains(&code));
    let mut database = stack.database.connect().await.unwrap();
    let asked: i64 =
        sqlx::query_scalar("SELECT count(*) FROM esim_requests WHERE usage_asked_at IS NOT NULL")
            .fetch_one(&mut database)
            .await
            .unwrap();
    assert_eq!(asked, 0, "the page asked for the use");

    let usage = get(&shop.client, &format!("/topups/{topup_id}/usage")).await;
    assert_eq!(usage.unwrap()["installed"], true);
    for (change, says) in [
        ("data_used = data_used", "<bdi>3.5 GB</bdi> left, until"),
        ("data_used = 0", "What to do when you arrive"),
        ("data_used = 0, installed = false", "Not installed yet"),
        ("data_used = data_total", "There is no data left."),
        ("ends_at = now()", "It cannot be used or installed any more"),
    ] {
        let update = format!("UPDATE esim_requests SET {change} WHERE topup_id = '{topup_id}'");
        sqlx::query(sqlx::AssertSqlSafe(update))
            .execute(&mut database)
            .await
            .unwrap();
        let seen = see(&page, "en").await.text;
        assert!(seen.contains(says), "{change}: {seen}");
        assert_eq!(
            seen.contains(&code),
            says == "Not installed yet",
            "{change}"
        );
    }

    let returned = esim(&stack, &shop, "ready").await;
    let page = url(&shop.client, &returned).await;
    let given = ask(
        &shop.client,
        "POST",
        &format!("/topups/{returned}/give-back"),
    )
    .await;
    assert_eq!(given.unwrap().status, 200);
    let seen = see(&page, "en").await;
    assert!(seen.text.contains("took this eSIM back on"), "{seen:?}");
    for (method, status) in [("POST", 409), ("DELETE", 200)] {
        let path = format!("/topups/{returned}/install-page");
        let answer = ask(&shop.client, method, &path).await.unwrap();
        assert_eq!(answer.status, status, "{answer:?}");
    }
}

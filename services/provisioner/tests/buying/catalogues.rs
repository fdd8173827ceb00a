//! The lists of products and of purchases: each field with values that a provider should not send.
//! A product with one is refused by its name, and a list whose shape is wrong is not used at all,
//! because a list with a hole would look as if something were gone.

use std::{sync::Arc, time::Duration};

use domain::product::{Country, Standard};
use provisioner::providers::{
    ListPage, ProductOffer, Provider, PurchasePeriod, SoldPurchase, Trouble,
};
use serde_json::{Value, json};

use crate::hostile::answering;

async fn esim_access(status: &str, body: &Value) -> Arc<dyn Provider> {
    answering("esim-access", status, &body.to_string()).await
}

async fn airalo(status: &str, body: &Value) -> Arc<dyn Provider> {
    answering("airalo", status, &body.to_string()).await
}

async fn zendit(status: &str, body: &Value) -> Arc<dyn Provider> {
    answering("zendit", status, &body.to_string()).await
}

/// What became of the only product: its standard fields in a few words, or why it is refused.
fn offered(listed: &Result<ListPage<ProductOffer>, Trouble>) -> String {
    match listed {
        Err(trouble) => trouble.class().to_owned(),
        Ok(listed) => {
            let [offer] = listed.entries.as_slice() else {
                return format!("{} products", listed.entries.len());
            };
            assert!(!offer.name.contains(char::is_control) && offer.name.chars().count() <= 200);
            match &offer.standard {
                Ok(standard) => terms(standard),
                Err(unsuitable) => {
                    let field = unsuitable.to_string();
                    let field = field
                        .strip_prefix("its field ")
                        .and_then(|rest| rest.split(' ').next());
                    field.map_or_else(|| unsuitable.code().to_owned(), |field| format!("-{field}"))
                }
            }
        }
    }
}

fn terms(standard: &Standard) -> String {
    let countries: Vec<&str> = standard.countries.iter().map(Country::as_str).collect();
    let cost = standard.cost.unwrap();
    format!(
        "{} {} {}d {cost}",
        countries.join("+"),
        standard.data,
        standard.days
    )
}

/// What is told of the only product, and the fields of which something was not understood.
fn told(listed: Result<ListPage<ProductOffer>, Trouble>) -> (Value, Vec<String>) {
    let offer = listed.unwrap().entries.remove(0);
    let unknown = offer.told.unknown.iter();
    let unknown = unknown.map(|unknown| format!("{} {}", unknown.field, unknown.value));
    let mut facts = json!(offer.told.facts);
    let known = facts.as_object_mut().unwrap();
    known.retain(|_, fact| !fact.is_null());
    (facts, unknown.collect())
}

/// What changes of the facts if a field has another value, and what was not understood.
type ChangedFact<'a> = (&'a str, Value, Value, &'a [&'a str]);

fn assert_told(changed: &ChangedFact<'_>, good: &Value, (facts, unknown): (Value, Vec<String>)) {
    let (field, value, expected, not_understood) = changed;
    let mut whole = good.clone();
    for (fact, is) in expected.as_object().unwrap() {
        whole = with(&whole, fact, is);
    }
    assert_eq!(facts, whole, "{field} {value}");
    assert_eq!(unknown, *not_understood, "{field} {value}");
}

/// Its fields are those of the reference's examples (April 2026).
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one table of fields")]
async fn what_esim_access_tells_of_a_package_is_read_and_an_unknown_word_is_said() {
    let package = json!({
        "packageCode": "CKH007", "slug": "EU-2_5_30", "name": "Europe", "price": 26_000, "currencyCode": "USD",
        "volume": 5_368_709_120_u64, "dataType": 1, "unusedValidTime": 180, "duration": 30, "durationUnit": "DAY",
        "location": "IS,IE", "description": "Europe 5GB 30Days", "activeType": 2, "smsStatus": 1, "favorite": false,
        "retailPrice": 140_000, "speed": "3G/4G/5G", "ipExport": "Norway/NO", "supportTopUpType": 2, "fupPolicy": "1 Mbps",
        "locationNetworkList": [
            { "locationName": "Ireland", "locationLogo": "/img/flags/ie.png", "locationCode": "IE",
              "operatorList": [{ "operatorName": "Vodafone", "networkType": "4G/5G" }] },
            { "locationName": "Iceland", "locationLogo": "/img/flags/is.png", "locationCode": "IS", "operatorList": [] },
        ],
    });
    let good = json!({
        "kind": "data", "generations": ["3G", "4G", "5G"], "activation": "first_use", "unused_expires_days": 180,
        "top_up": "yes", "fair_use": { "applies": true, "policy": "1 Mbps" }, "receives_sms": true, "exit_countries": ["NO"],
        "coverage": [
            { "country": "IE", "generations": ["4G", "5G"], "networks": [{ "name": "Vodafone", "generations": ["4G", "5G"] }] },
            { "country": "IS", "generations": [], "networks": [] },
        ],
    });
    let gone = json!(null);
    let none = |fact: &str| json!({ fact: null });
    for changed in [
        ("name", json!("Europe"), json!({}), &[][..]),
        (
            "activeType",
            json!(1),
            json!({ "activation": "installation" }),
            &[],
        ),
        ("activeType", json!("2"), json!({}), &[]),
        (
            "activeType",
            json!(9),
            none("activation"),
            &["activeType 9"],
        ),
        ("activeType", gone.clone(), none("activation"), &[]),
        ("supportTopUpType", json!(1), json!({ "top_up": "no" }), &[]),
        (
            "supportTopUpType",
            json!(3),
            json!({ "top_up": "by_days" }),
            &[],
        ),
        (
            "supportTopUpType",
            json!(true),
            none("top_up"),
            &["supportTopUpType true"],
        ),
        (
            "unusedValidTime",
            json!(0),
            none("unused_expires_days"),
            &["unusedValidTime 0"],
        ),
        ("smsStatus", json!(0), json!({ "receives_sms": false }), &[]),
        ("smsStatus", json!(2), json!({ "receives_sms": false }), &[]),
        (
            "smsStatus",
            json!(3),
            none("receives_sms"),
            &["smsStatus 3"],
        ),
        (
            "speed",
            json!("4G/6G"),
            json!({ "generations": ["4G"] }),
            &["speed \"4G/6G\""],
        ),
        (
            "speed",
            json!("fast"),
            none("generations"),
            &["speed \"fast\""],
        ),
        ("speed", json!(""), none("generations"), &[]),
        (
            "ipExport",
            json!("NL/FR"),
            json!({ "exit_countries": ["FR", "NL"] }),
            &[],
        ),
        (
            "ipExport",
            json!("UK"),
            json!({ "exit_countries": ["GB"] }),
            &[],
        ),
        (
            "ipExport",
            json!("local"),
            none("exit_countries"),
            &["ipExport \"local\""],
        ),
        ("fupPolicy", json!(""), none("fair_use"), &[]),
        (
            "fupPolicy",
            json!(["x"]),
            none("fair_use"),
            &["fupPolicy [\"x\"]"],
        ),
        (
            "fupPolicy",
            json!("a\nb\u{202e}"),
            json!({ "fair_use": { "applies": true, "policy": "a b" } }),
            &[],
        ),
        (
            "locationNetworkList",
            json!("x"),
            none("coverage"),
            &["locationNetworkList \"x\""],
        ),
        ("locationNetworkList", json!([7]), none("coverage"), &[]),
        (
            "locationNetworkList",
            json!([{ "locationCode": "EU", "operatorList": [] }]),
            none("coverage"),
            &["locationCode \"EU\""],
        ),
        (
            "locationNetworkList",
            json!([{ "locationCode": "IE", "operatorList": [{ "networkType": "5G" }] }]),
            json!({ "coverage": [{ "country": "IE", "generations": [], "networks": [] }] }),
            &["operatorList {\"networkType\":\"5G\"}"],
        ),
    ] {
        let listed = json!({ "success": true, "errorCode": "0",
                             "obj": { "packageList": [with(&package, changed.0, &changed.1)] } });
        let seen = esim_access("200 OK", &listed).await.products(1).await;
        assert_told(&changed, &good, told(seen));
    }
    // A product of one place needs no code of it.
    let mut local = with(&package, "location", &json!("IE"));
    local["locationNetworkList"] = json!([{ "locationName": "Ireland", "operatorList": [] }]);
    let listed = json!({ "success": true, "obj": { "packageList": [local] } });
    let (facts, _) = told(esim_access("200 OK", &listed).await.products(1).await);
    assert_eq!(facts["coverage"][0]["country"], "IE");
    // Networks that are longer than what we keep of an option are left out.
    let operators: Vec<Value> = (0..900)
        .map(|n| json!({ "operatorName": format!("{n} {}", "x".repeat(60)), "networkType": "5G" }))
        .collect();
    local["locationNetworkList"] = json!([{ "locationCode": "IE", "operatorList": operators }]);
    let listed = json!({ "success": true, "obj": { "packageList": [local] } });
    let (facts, unknown) = told(esim_access("200 OK", &listed).await.products(1).await);
    assert_eq!(facts["coverage"], Value::Null);
    assert!(unknown[0].starts_with("networks "), "{unknown:?}");
}

/// Its fields are those of its documents (September 2026).
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one table of fields")]
async fn what_airalo_tells_of_a_package_is_read_and_an_unknown_word_is_said() {
    let package = json!({
        "id": "P", "type": "sim", "price": 4.5, "amount": 1024, "day": 7, "is_unlimited": false, "title": "1 GB",
        "net_price": 1.1, "is_fair_usage_policy": true, "fair_usage_policy": "1 Mbps after 3 GB a day", "voice": 100,
        "text": null,
    });
    let operator = json!({
        "id": 1, "title": "Change", "type": "local", "plan_type": "data", "activation_policy": "first-usage",
        "is_kyc_verify": false, "rechargeability": true, "countries": [{ "country_code": "US" }],
        "image": { "width": 1035, "height": 653, "url": "https://cdn.example.com/a.png" },
        "apn": { "ios": { "apn_type": "automatic", "apn_value": null },
                 "android": { "apn_type": "manual", "apn_value": "internet" } },
        "coverages": [{ "name": "US", "code": "US", "networks": [{ "name": "T-Mobile", "types": ["LTE", "5G"] }] }],
        "install_window_days": 365, "topup_grace_window_days": null,
    });
    let good = json!({
        "kind": "data", "generations": ["4G", "5G"], "activation": "first_use", "install_within_days": 365, "top_up": "yes",
        "identity_check": false, "fair_use": { "applies": true, "policy": "1 Mbps after 3 GB a day" },
        "voice": { "amount": 100, "unlimited": false }, "picture": "https://cdn.example.com/a.png",
        "apn": { "ios": { "automatic": true, "name": null }, "android": { "automatic": false, "name": "internet" } },
        "coverage": [{ "country": "US", "generations": ["4G", "5G"],
                       "networks": [{ "name": "T-Mobile", "generations": ["4G", "5G"] }] }],
    });
    let none = |fact: &str| json!({ fact: null });
    let of_operator = [
        ("title", json!("Change"), json!({}), &[][..]),
        (
            "plan_type",
            json!("data-voice-text"),
            json!({ "kind": "data_voice_text" }),
            &[],
        ),
        (
            "plan_type",
            json!("voice"),
            none("kind"),
            &["plan_type \"voice\""],
        ),
        (
            "activation_policy",
            json!("installation"),
            json!({ "activation": "installation" }),
            &[],
        ),
        (
            "activation_policy",
            json!("teleport"),
            none("activation"),
            &["activation_policy \"teleport\""],
        ),
        ("rechargeability", json!(0), json!({ "top_up": "no" }), &[]),
        (
            "rechargeability",
            json!("rarely"),
            none("top_up"),
            &["rechargeability \"rarely\""],
        ),
        (
            "install_window_days",
            json!(null),
            none("install_within_days"),
            &[],
        ),
        (
            "install_window_days",
            json!(-1),
            none("install_within_days"),
            &["install_window_days -1"],
        ),
        (
            "image",
            json!({ "url": "http://x" }),
            none("picture"),
            &["image {\"url\":\"http://x\"}"],
        ),
        (
            "apn",
            json!({ "ios": { "apn_type": "odd" } }),
            none("apn"),
            &["apn {\"ios\":{\"apn_type\":\"odd\"}}"],
        ),
        (
            "coverages",
            json!([{ "code": "MARS", "networks": [] }]),
            json!({ "coverage": null, "generations": null }),
            &["code \"MARS\""],
        ),
    ];
    let of_package = [
        ("voice", json!("x"), none("voice"), &["voice \"x\""][..]),
        (
            "text",
            json!(10),
            json!({ "sms": { "amount": 10, "unlimited": false } }),
            &[],
        ),
        (
            "is_fair_usage_policy",
            json!(false),
            json!({ "fair_use": { "applies": false, "policy": null } }),
            &[],
        ),
        (
            "is_fair_usage_policy",
            json!("?"),
            none("fair_use"),
            &["is_fair_usage_policy \"?\""],
        ),
    ];
    let seen = async |operator: Value| {
        let place = json!({ "slug": "x", "country_code": "US", "operators": [operator] });
        let page = json!({ "data": [place], "meta": { "last_page": 1 } });
        told(airalo("200 OK", &page).await.products(1).await)
    };
    for changed in of_operator {
        let whole = with(&operator, "packages", &json!([package]));
        assert_told(
            &changed,
            &good,
            seen(with(&whole, changed.0, &changed.1)).await,
        );
    }
    for changed in of_package {
        let package = with(&package, changed.0, &changed.1);
        assert_told(
            &changed,
            &good,
            seen(with(&operator, "packages", &json!([package]))).await,
        );
    }
}

/// Its fields are those of the node-sdk 1.9.0 (March 2026).
#[tokio::test]
async fn what_zendit_tells_of_an_offer_is_read_and_an_unknown_word_is_said() {
    let offer = json!({
        "offerId": "E", "brandName": "Z", "shortNotes": "1 GB", "country": "", "regions": ["Western Europe"], "dataGB": 1,
        "dataUnlimited": false, "dataSpeeds": ["3G", "4G"], "durationDays": 7, "enabled": true, "priceType": "FIXED",
        "productType": "ESIM", "subTypes": ["Faster"], "voiceMinutes": 0, "voiceUnlimited": true, "smsNumber": 20,
        "smsUnlimited": false, "roaming": [{ "country": "DE", "dataSpeeds": ["5G"] }, { "country": "FR", "dataSpeeds": [] }],
        "cost": { "currency": "USD", "currencyDivisor": 100, "fixed": 300, "fee": 25 },
    });
    let covered = |country: &str, generations: Value| json!({ "country": country, "generations": generations, "networks": [] });
    let good = json!({
        "kind": "data_voice_text", "generations": ["3G", "4G"], "speed": "Faster",
        "voice": { "amount": null, "unlimited": true }, "sms": { "amount": 20, "unlimited": false },
        "coverage": [covered("DE", json!(["5G"])), covered("FR", json!([]))],
    });
    let none = |fact: &str| json!({ fact: null });
    for changed in [
        ("notes", json!(""), json!({}), &[][..]),
        (
            "subTypes",
            json!(["Warp"]),
            none("speed"),
            &["subTypes [\"Warp\"]"],
        ),
        (
            "dataSpeeds",
            json!(["6G", "4G"]),
            json!({ "generations": ["4G"] }),
            &["dataSpeeds \"6G\""],
        ),
        (
            "voiceUnlimited",
            json!(null),
            json!({ "voice": null, "kind": null }),
            &[],
        ),
        (
            "smsNumber",
            json!(-1),
            json!({ "sms": null, "kind": null }),
            &["smsNumber -1"],
        ),
        (
            "smsNumber",
            json!(0),
            json!({ "sms": { "amount": 0, "unlimited": false }, "kind": null }),
            &[],
        ),
        (
            "country",
            json!("DE"),
            json!({
            "coverage": [covered("DE", json!(["3G", "4G"])), covered("FR", json!([]))] }),
            &[],
        ),
        ("roaming", json!({}), none("coverage"), &["roaming {}"]),
    ] {
        let body = json!({ "list": [with(&offer, changed.0, &changed.1)], "total": 1 });
        let seen = zendit("200 OK", &body).await.products(1).await;
        assert_told(&changed, &good, told(seen));
    }
}

/// The object with one field set, or removed if the value is null.
fn with(object: &Value, field: &str, value: &Value) -> Value {
    let mut object = object.clone();
    let fields = object.as_object_mut().unwrap();
    if value.is_null() {
        fields.remove(field);
    } else {
        fields.insert(field.to_owned(), value.clone());
    }
    object
}

/// The rows of a file: a field, its value as JSON (null removes the field), and what is expected,
/// where `good` stands for what the unchanged object leads to.
fn rows<'a>(text: &'a str, good: &'a str) -> impl Iterator<Item = (&'a str, Value, &'a str)> {
    text.lines().map(move |line| {
        let (changed, expected) = line.rsplit_once(" => ").unwrap();
        let (field, value) = changed.split_once(' ').unwrap();
        let value = serde_json::from_str(value).unwrap();
        (
            field,
            value,
            if expected == "good" { good } else { expected },
        )
    })
}

#[tokio::test]
async fn each_field_of_a_package_of_esim_access_is_checked() {
    let package = json!({
        "packageCode": "JC016", "slug": "JP_1_7", "name": "Japan 1GB 7Days", "price": 15_000, "currencyCode": "USD",
        "volume": 1_073_741_824, "dataType": 1, "unusedValidTime": 180, "duration": 7, "durationUnit": "DAY",
        "location": "JP", "description": "Japan", "activeType": 2,
    });
    let good = "JP 1024 MB 7d 1.50 USD";
    let all = rows(include_str!("rows/esim_access_package.txt"), good);
    let mut wrong = Vec::new();
    for (field, value, expected) in all {
        let listed = json!({ "success": true, "errorCode": "0", "obj": { "packageList": [with(&package, field, &value)] } });
        let seen = offered(&esim_access("200 OK", &listed).await.products(1).await);
        if seen != expected {
            wrong.push(format!("{field} {value}: {seen}, not {expected}"));
        }
    }
    for (status, body, expected) in [
        (
            "200 OK",
            json!({ "success": true, "obj": { "packageList": [] } }),
            "0 products",
        ),
        (
            "200 OK",
            json!({ "success": true, "obj": { "packageList": [7] } }),
            "-packageCode",
        ),
        (
            "200 OK",
            json!({ "success": true, "obj": { "packageList": null } }),
            "unknown",
        ),
        (
            "200 OK",
            json!({ "success": true, "obj": { "packageList": {} } }),
            "unknown",
        ),
        ("200 OK", json!({ "success": true, "obj": {} }), "unknown"),
        (
            "200 OK",
            json!({ "success": false, "errorCode": "900001" }),
            "busy",
        ),
        (
            "200 OK",
            json!({ "success": false, "errorCode": "101003" }),
            "denied",
        ),
        (
            "200 OK",
            json!({ "success": false, "errorCode": "000001" }),
            "unknown",
        ),
        ("401 X", json!({}), "denied"),
        ("429 X", json!({}), "busy"),
        ("500 X", json!({}), "unknown"),
    ] {
        let seen = offered(&esim_access(status, &body).await.products(1).await);
        if seen != expected {
            wrong.push(format!("{status} {body}: {seen}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn each_field_of_a_package_of_airalo_is_checked() {
    let package = json!({
        "id": "change-7days-1gb", "type": "sim", "price": 4.5, "amount": 1024, "day": 7, "is_unlimited": false,
        "title": "1 GB - 7 Days", "short_info": null, "net_price": 1.1,
    });
    let operator = json!({
        "id": 1, "title": "Change", "type": "local", "info": ["5G Data-only eSIM."], "is_kyc_verify": false,
        "other_info": null, "countries": [{ "country_code": "US" }],
    });
    let good = "US 1024 MB 7d 1.10 USD";
    let of_package = rows(include_str!("rows/airalo_package.txt"), good);
    let of_operator = rows(include_str!("rows/airalo_operator.txt"), good);
    let place =
        |operator: Value| json!({ "slug": "x", "country_code": "CA", "operators": [operator] });
    let page = |place: Value| json!({ "data": [place], "meta": { "last_page": 1 } });
    let mut bodies = Vec::new();
    for (field, value, expected) in of_package {
        let packages = json!([with(&package, field, &value)]);
        bodies.push((
            page(place(with(&operator, "packages", &packages))),
            expected,
        ));
    }
    let whole = with(&operator, "packages", &json!([package]));
    for (field, value, expected) in of_operator {
        bodies.push((page(place(with(&whole, field, &value))), expected));
    }
    let nowhere = with(&whole, "countries", &json!(null));
    for code in [json!(null), json!(""), json!("world")] {
        bodies.push((
            page(with(&place(nowhere.clone()), "country_code", &code)),
            "-countries",
        ));
    }
    bodies.push((
        page(with(&place(nowhere), "country_code", &json!(7))),
        "unknown",
    ));
    bodies.push((
        json!({ "data": [], "meta": { "last_page": 1 } }),
        "0 products",
    ));
    for odd in [
        json!({ "data": [place(whole.clone())] }),
        json!({ "data": [place(whole.clone())], "meta": {} }),
        json!({ "data": [place(whole.clone())], "meta": { "last_page": -1 } }),
        json!({ "data": "x", "meta": { "last_page": 1 } }),
        json!({ "data": [{ "operators": "x" }], "meta": { "last_page": 1 } }),
        json!({ "data": [{}], "meta": { "last_page": 1 } }),
        page(place(operator.clone())),
        page(place(json!(7))),
        page(place(with(&operator, "packages", &json!("x")))),
    ] {
        bodies.push((odd, "unknown"));
    }
    let mut wrong = Vec::new();
    for (body, expected) in bodies {
        let seen = offered(&airalo("200 OK", &body).await.products(1).await);
        if seen != expected {
            wrong.push(format!("{body}: {seen}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn a_page_of_airalo_that_is_no_list_is_trouble() {
    let mut wrong = Vec::new();
    for (status, body, expected) in [
        ("429 X", json!({}), "busy"),
        ("500 X", json!({}), "unknown"),
        ("422 X", json!({ "code": 13, "reason": "x" }), "unknown"),
        ("422 X", json!({ "code": 11, "reason": "x" }), "unknown"),
        ("404 X", json!({}), "unknown"),
    ] {
        let seen = offered(&airalo(status, &body).await.products(1).await);
        if seen != expected {
            wrong.push(format!("{status} {body}: {seen}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // From the second page on the list is an object, whose keys are the indexes.
    let place = json!({ "country_code": "US", "operators": [{ "countries": [], "packages": [
        { "id": "P", "type": "sim", "price": 4.5, "net_price": 1.1, "amount": 1024, "day": 7, "title": "1 GB" },
    ] }] });
    let by_index = json!({ "data": { "25": place }, "meta": { "last_page": 2 } });
    let seen = airalo("200 OK", &by_index).await.products(2).await;
    assert_eq!(offered(&seen), "US 1024 MB 7d 1.10 USD");
    // With a discount the net price is null, and we pay the price less the percentage.
    for (percentage, cost) in [
        (json!(20), "3.60"),
        (json!("12.5"), "3.9375"),
        (json!(33.333), "3.0001"),
        (json!(0), "4.50"),
        (json!(null), "4.50"),
        (json!(101), "4.50"),
        (json!(-5), "4.50"),
    ] {
        let pricing = json!({ "model": "discount_pricing", "discount_percentage": percentage });
        let mut place = place.clone();
        place["operators"][0]["packages"][0]["net_price"] = json!(null);
        let body = json!({ "data": [place], "meta": { "last_page": 1 }, "pricing": pricing });
        let seen = airalo("200 OK", &body).await.products(1).await;
        assert_eq!(offered(&seen), format!("US 1024 MB 7d {cost} USD"));
    }
    // Whether another page follows is the provider's word; the reader bounds their number.
    let pages = json!({ "data": [], "meta": { "last_page": "3" } });
    let provider = airalo("200 OK", &pages).await;
    assert_eq!(provider.products(2).await.unwrap().next, Some(3));
    assert_eq!(provider.products(3).await.unwrap().next, None);
}

#[tokio::test]
async fn each_field_of_an_offer_of_zendit_is_checked() {
    let offer = json!({
        "offerId": "E", "brandName": "Z", "shortNotes": "1 GB", "country": "US", "roaming": [], "dataGB": 1,
        "dataUnlimited": false, "durationDays": 7, "enabled": true, "priceType": "FIXED", "productType": "ESIM",
        "cost": { "currency": "USD", "currencyDivisor": 100, "fixed": 300, "fee": 25 },
    });
    let good = "US 1024 MB 7d 3.25 USD";
    let mut wrong = Vec::new();
    for (field, value, expected) in rows(include_str!("rows/zendit_offer.txt"), good) {
        let changed = with(&offer, field, &value);
        let body = json!({ "list": [changed], "limit": 1024, "offset": 0, "total": 1 });
        let provider = zendit("200 OK", &body).await;
        let seen = offered(&provider.products(1).await);
        if seen != expected {
            wrong.push(format!("{field} {value}: {seen}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let page = |list: Value, total: Value| json!({ "list": list, "total": total });
    let unreadable = [
        ("200 OK", page(json!({}), json!(1))),
        ("200 OK", page(json!(null), json!(1))),
        ("200 OK", json!({ "list": [] })),
        ("200 OK", page(json!([]), json!(-1))),
        (
            "404 X",
            json!({ "errorCode": "NOT_FOUND", "message": "why" }),
        ),
        ("500 X", page(json!([]), json!(0))),
    ];
    for (status, body) in unreadable {
        let seen = offered(&zendit(status, &body).await.products(1).await);
        assert_eq!(seen, "unknown", "{body}");
    }
    // The number of all entries says whether there is a further page.
    for (total, next) in [(1024, None), (1025, Some(2)), (0, None)] {
        let body = page(json!([offer]), json!(total));
        let listed = zendit("200 OK", &body).await.products(1).await.unwrap();
        assert_eq!(listed.next, next, "{total}");
    }
}

/// The only purchase in a few words, or the trouble.
fn sold(listed: &Result<ListPage<SoldPurchase>, Trouble>) -> String {
    match listed {
        Err(trouble) => trouble.class().to_owned(),
        Ok(listed) => {
            let [one] = listed.entries.as_slice() else {
                return format!("{} entries", listed.entries.len());
            };
            assert!(
                !one.order_id.contains(char::is_control) && one.order_id.chars().count() <= 200
            );
            let price = one.price.map_or("-".to_owned(), |price| price.to_string());
            let option = one.option.as_ref().map_or("-", |option| option.as_str());
            format!(
                "{} {} {} {option} {price}",
                one.order_id,
                one.reference.as_str(),
                one.units
            )
        }
    }
}

fn span() -> PurchasePeriod {
    let until = runtime::clock::now();
    PurchasePeriod {
        since: until - Duration::from_hours(24),
        until,
    }
}

#[tokio::test]
async fn each_field_of_a_list_of_purchases_is_checked() {
    let mut wrong = Vec::new();
    let order = json!({
        "id": 7, "package_id": "P", "quantity": 2, "description": "ours", "price": 4.5, "currency": "USD",
        "created_at": "2026-11-20 10:00:00",
    });
    // Entries of the list have no net price, and the other one is that for consumers.
    let good = "ours 7 2 P -";
    let of_order = rows(include_str!("rows/airalo_order.txt"), good);
    for (field, value, expected) in of_order {
        let body = json!({ "data": [with(&order, field, &value)] });
        let seen = sold(&airalo("200 OK", &body).await.purchases(span(), 1).await);
        if seen != expected {
            wrong.push(format!("airalo {field} {value}: {seen}, not {expected}"));
        }
    }
    let esim = json!({
        "esimTranNo": "22", "orderNo": "B1", "transactionId": "ours", "iccid": "8985", "ac": "LPA:1$x$y",
        "packageList": [{ "packageCode": "JC016", "createTime": "2026-11-20T10:00:00+0000" }],
    });
    let good = "ours B1 1 JC016 -";
    let of_esim = rows(include_str!("rows/esim_access_esim.txt"), good);
    for (field, value, expected) in of_esim {
        let body = json!({ "success": true, "obj": { "esimList": [with(&esim, field, &value)] } });
        let seen = sold(
            &esim_access("200 OK", &body)
                .await
                .purchases(span(), 1)
                .await,
        );
        if seen != expected {
            wrong.push(format!(
                "esim-access {field} {value}: {seen}, not {expected}"
            ));
        }
    }
    let purchase = json!({
        "transactionId": "ours", "status": "DONE", "offerId": "E", "cost": 325, "costCurrencyDivisor": 100,
    });
    let good = "ours ours 1 E 3.25";
    for (field, value, expected) in rows(include_str!("rows/zendit_purchase.txt"), good) {
        let body = json!({ "list": [with(&purchase, field, &value)], "total": 1 });
        let seen = sold(&zendit("200 OK", &body).await.purchases(span(), 1).await);
        if seen != expected {
            wrong.push(format!("zendit {field} {value}: {seen}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // A page that is full has a next one.
    let full = json!({ "data": vec![order; 50] });
    assert_eq!(
        airalo("200 OK", &full)
            .await
            .purchases(span(), 1)
            .await
            .unwrap()
            .next,
        Some(2)
    );
    let full = json!({ "success": true, "obj": { "esimList": vec![esim; 500] } });
    assert_eq!(
        esim_access("200 OK", &full)
            .await
            .purchases(span(), 4)
            .await
            .unwrap()
            .next,
        Some(5)
    );
}

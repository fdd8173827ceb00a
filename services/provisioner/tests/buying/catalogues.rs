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

//! Each field of each response of each adapter, with values that it should never have.
//! `rows/fields.txt` names everything that they may lead to, so that a field whose hostile value
//! would be taken for a rejection, for an absence or for a profile is seen there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use domain::{Iccid, PlacementId};
use provisioner::providers::{
    BadCallback, Custody, DeliveredEsim, GiveBackResponse, Hint, Provider, ProviderId,
    PurchaseResponse,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::hostile::{LONGEST, OURS, asked, bought, called_back, connect, found, http, trouble};

/// What is asked when a response arrives.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Purchase,
    Find,
    Search,
    Status,
    GiveBack,
    Balance,
    Callback,
}

/// A response as it should be.
struct Case {
    provider: &'static str,
    name: &'static str,
    operation: Operation,
    status: &'static str,
    body: Value,
}

fn case(provider: &'static str, name: &'static str, operation: Operation, body: Value) -> Case {
    Case {
        provider,
        name,
        operation,
        status: "200 OK",
        body,
    }
}

/// The responses of Zendit.
fn of_zendit() -> Vec<Case> {
    use Operation::{Balance, Callback, Find, GiveBack, Purchase, Status};
    let accepted = json!({ "status": "ACCEPTED", "transactionId": OURS });
    let nothing =
        json!({ "errorCode": "NOT_FOUND", "message": "not there", "fields": { "a": "b" } });
    let purchased = json!({
        "transactionId": OURS, "status": "DONE", "offerId": "P", "createdAt": "2026-12-31T10:00:00Z",
        "confirmation": {
            "iccid": "891000000000009125", "smdpAddress": "smdp.example.com", "activationCode": "AB-12",
        }, "error": { "code": "X", "message": "why" }, "refund": { "status": "FAILED" },
        "cost": 325, "costCurrencyDivisor": 100,
    });
    // It answers both calls of a status: the one for the purchase, and the one for its plans.
    let plans = json!({
        "transactionId": "25", "status": "DONE", "firstInstalledAt": "2026-12-31T10:00:00Z", "list": [{
            "iccid": "8982123456789012345", "startAt": "", "endAt": "2026-12-31T10:00:00Z", "initialDataGB": 5,
            "remainingDataGB": 2.5, "unlimited": false,
        }],
    });
    let wallet = json!({ "availableBalance": 1050, "currency": "USD", "currencyDivisor": 100 });
    vec![
        case("zendit", "purchase", Purchase, accepted),
        Case {
            status: "404 X",
            ..case("zendit", "rejection", Purchase, nothing.clone())
        },
        Case {
            status: "404 X",
            ..case("zendit", "absence", Find, nothing)
        },
        case("zendit", "look-up", Find, purchased.clone()),
        case("zendit", "callback", Callback, purchased),
        case("zendit", "status", Status, plans),
        case("zendit", "give-back", GiveBack, json!({ "status": "DONE" })),
        case("zendit", "balance", Balance, wallet),
    ]
}

fn cases() -> Vec<Case> {
    use Operation::{Balance, Callback, Find, GiveBack, Purchase, Search, Status};
    let unit = json!({
        "code": "0000", "message": "Success", "products": [{
            "topupId": "25", "optionId": "P", "iccid": "8982123456789012345", "smdp": "smdp.example.com",
            "activateCode": "A1-B2", "expiredDate": "2027-01-31", "status": "READY",
        }],
    });
    let refused = json!({ "code": "9001", "message": "no such product" });
    let usage = json!({
        "code": "0000", "message": null, "usage": {
            "topupId": "25", "installed": false, "canceled": false, "usedBytes": 2, "totalBytes": 5,
            "endsAt": "2026-12-31T00:00:00Z",
        },
    });
    let kept = json!({ "code": "9006", "message": "in use" });
    let daily = json!({
        "code": "0000", "message": null, "usage": { "history": [{ "usageMb": "1.5GB" }] },
        "device": { "installTime": "2026-11-20 10:00:00" }, "installCount": 1,
    });
    let canceled = json!({ "code": "9002", "message": "canceled before" });
    let ready = json!({ "topupId": "25" });

    let done = |result: Value| json!({ "success": true, "errorCode": "0", "errorMsg": null, "obj": result });
    let failed =
        json!({ "success": false, "errorCode": "200011", "errorMsg": "sold out", "obj": null });
    let ordered = done(json!({ "orderNo": "B1", "transactionId": OURS }));
    let esims = done(json!({ "esimList": [{
        "esimTranNo": "25", "orderNo": "B1", "transactionId": OURS, "iccid": "89852245280000942210",
        "ac": "LPA:1$smdp.example$AB-12", "expiredTime": "2027-01-31T08:10:19Z", "esimStatus": "GOT_RESOURCE",
        "smdpStatus": "RELEASED", "totalVolume": 5, "orderUsage": 2, "packageList": [{ "packageCode": "P" }],
    }] }));
    let made = json!({
        "notifyType": "ORDER_STATUS",
        "content": { "orderNo": "B1", "transactionId": OURS, "orderStatus": "GOT_RESOURCE" },
    });

    let changed = json!({
        "notifyType": "ESIM_STATUS", "notifyId": "N1",
        "content": { "esimTranNo": "25", "iccid": "89852245280000942210", "esimStatus": "IN_USE", "smdpStatus": "ENABLED" },
    });

    let order = json!({
        "id": 7, "package_id": "P", "quantity": 1, "description": OURS, "validity": 30, "price": 4.5,
        "net_price": 4.5, "created_at": "2026-12-31 10:00:00", "status": { "slug": "completed" },
        "sims": [{ "id": 25, "iccid": "891000000000009125", "lpa": "lpa.example.com", "matching_id": "AB-12",
                   "confirmation_code": null }],
    });
    let single = json!({ "data": order });
    let listed = json!({ "data": [order] });
    let used = json!({ "data": {
        "remaining": 1024, "total": 2048, "expired_at": "2026-12-31 00:00:00", "is_unlimited": false,
        "status": "ACTIVE",
    } });
    let money = json!({ "data": { "balances": { "availableBalance": { "amount": 10.5, "currency": "USD" } } } });
    let unprocessable = |name, body| Case {
        status: "422 X",
        ..case("airalo", name, Purchase, body)
    };
    vec![
        case("usimsa", "purchase", Purchase, unit.clone()),
        case("usimsa", "rejection", Purchase, refused),
        case("usimsa", "look-up", Find, unit),
        case("usimsa", "callback", Callback, ready),
        case("usimsa", "status", Status, daily),
        case("usimsa", "give-back", GiveBack, canceled),
        case("sandbox", "status", Status, usage),
        case("sandbox", "give-back", GiveBack, kept),
        case("esim-access", "purchase", Purchase, ordered),
        case("esim-access", "rejection", Purchase, failed),
        case("esim-access", "look-up", Find, esims.clone()),
        case("esim-access", "search", Search, esims.clone()),
        case("esim-access", "status", Status, esims),
        case("esim-access", "give-back", GiveBack, done(json!({}))),
        case(
            "esim-access",
            "balance",
            Balance,
            done(json!({ "balance": 105_000 })),
        ),
        case("esim-access", "callback", Callback, made),
        case("esim-access", "event", Callback, changed),
        case("airalo", "purchase", Purchase, single.clone()),
        unprocessable("rejection", json!({ "code": 33, "reason": "sold out" })),
        unprocessable(
            "invalid",
            json!({ "data": { "quantity": "too many" }, "meta": { "message": "the parameter is invalid" } }),
        ),
        case("airalo", "look-up", Find, single),
        case("airalo", "search", Search, listed),
        case("airalo", "status", Status, used),
        case("airalo", "balance", Balance, money),
    ]
}

/// The values; `None` leaves the field out.
fn hostile() -> Vec<Option<Value>> {
    let long = "A".repeat(10_000);
    let texts = [
        "",
        "0",
        "x\0",
        "x\u{202e}\n\u{1b}[31m",
        "../x?y#z",
        "-1",
        &long,
    ];
    let others = json!([null, true, false, -1, 1.5, 1e300, u64::MAX, [], {}, [null]]);
    let others = others.as_array().unwrap().iter().cloned();
    let texts = texts.into_iter().map(Value::from);
    let values = others.chain(texts).map(Some);
    std::iter::once(None).chain(values).collect()
}

/// The places of all values of a document, except the document itself.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    let below: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, one)| (name.clone(), one))
            .collect(),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .map(|(index, one)| (index.to_string(), one))
            .collect(),
        _ => Vec::new(),
    };
    for (name, one) in below {
        let place = format!("{at}/{name}");
        places(one, &place, all);
        all.push(place);
    }
}

fn changed(document: &Value, place: &str, value: Option<Value>) -> Value {
    let mut document = document.clone();
    let (above, name) = place.rsplit_once('/').unwrap();
    match (document.pointer_mut(above).unwrap(), value) {
        (parent, Some(value)) => *parent.pointer_mut(&format!("/{name}")).unwrap() = value,
        (Value::Object(fields), None) => drop(fields.remove(name)),
        (Value::Array(list), None) => drop(list.remove(name.parse().unwrap())),
        (other, None) => panic!("{place} is in {other}"),
    }
    document
}

/// The address of a provider whose response can be changed. A request for a token gets a good one.
async fn replaying() -> (String, Arc<Mutex<Vec<u8>>>) {
    const TOKEN: &str = r#"{"data":{"access_token":"token","expires_in":86400},"meta":{}}"#;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let response = Arc::new(Mutex::new(Vec::new()));
    let current = Arc::clone(&response);
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let current = Arc::clone(&current);
            tokio::spawn(async move {
                // A request fits into one packet here.
                let mut request = [0; 8192];
                while let Ok(read @ 1..) = connection.read(&mut request).await {
                    let is_token = request[..read].starts_with(b"POST /v2/token");
                    let bytes = if is_token {
                        http("200 OK", "", TOKEN.as_bytes())
                    } else {
                        current.lock().unwrap().clone()
                    };
                    let _ = connection.write_all(&bytes).await;
                }
            });
        }
    });
    (url, response)
}

/// What a response leads to, in a few words.
async fn class(provider: &dyn Provider, operation: Operation, body: &Value) -> String {
    let ours: PlacementId = OURS.parse().unwrap();
    let reference = if matches!(operation, Operation::Search) {
        None
    } else if body.get("data").is_some() {
        Some("7")
    } else {
        Some("B1")
    };
    let (purchase, look_up) = asked(ours, reference);
    let esim = DeliveredEsim {
        unit_id: ProviderId::parse("25".to_owned()).unwrap(),
        iccid: Iccid::parse("8982123456789012345").unwrap(),
    };
    match operation {
        Operation::Purchase => {
            let answer = provider.purchase(&purchase).await;
            if let Ok(PurchaseResponse::Rejected { message, .. }) = &answer {
                assert!(
                    message.len() <= LONGEST && !message.contains(is_hidden),
                    "{message:?}"
                );
            }
            bought(&answer)
        }
        Operation::Find | Operation::Search => found(&provider.look_up(&look_up).await),
        Operation::Status => match provider.status(&esim).await {
            Ok(status) => {
                let custody = match &status.custody {
                    Custody::Returnable => "returnable",
                    Custody::Returned => "returned",
                    Custody::Kept(said) => {
                        assert!(
                            said.len() <= LONGEST && !said.contains(is_hidden),
                            "{said:?}"
                        );
                        "kept"
                    }
                    Custody::Unshown => "unshown",
                };
                let reading = status.reading;
                let installed = reading
                    .installed
                    .map_or('?', |yes| if yes { 'y' } else { 'n' });
                let used = reading.data_used.is_some();
                let total = reading.data_total.is_some();
                let ends = reading.ends_at.is_some();
                format!("{custody} {installed} used:{used} total:{total} ends:{ends}")
            }
            Err(error) => trouble(&error),
        },
        Operation::GiveBack => match provider.give_back(&esim).await {
            Ok(GiveBackResponse::Returned) => "returned".to_owned(),
            Ok(GiveBackResponse::Refused(said)) => {
                assert!(
                    said.len() <= LONGEST && !said.contains(is_hidden),
                    "{said:?}"
                );
                "refused".to_owned()
            }
            Err(error) => trouble(&error),
        },
        Operation::Balance => match provider.balance().await {
            Ok(balance) => {
                assert!(balance.amount.is_finite());
                assert!(balance.currency.len() <= LONGEST && !balance.currency.contains(is_hidden));
                "a balance".to_owned()
            }
            Err(error) => trouble(&error),
        },
        Operation::Callback => match called_back(provider, body.to_string().as_bytes()) {
            Ok(Hint::Unit(_)) => "a unit".to_owned(),
            Ok(Hint::Purchase(_)) => "a purchase".to_owned(),
            Ok(Hint::Report(report)) => {
                assert!(report.words.len() <= LONGEST && !report.words.contains(is_hidden));
                "a report".to_owned()
            }
            Ok(Hint::Nothing) => "nothing".to_owned(),
            Err(BadCallback::Unreadable) => "unreadable".to_owned(),
            Err(BadCallback::Forged) => "forged".to_owned(),
        },
    }
}

fn is_hidden(character: char) -> bool {
    character.is_control() || character == '\u{202e}'
}

#[tokio::test]
async fn no_field_is_taken_for_what_it_is_not() {
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for case in cases().into_iter().chain(of_zendit()) {
        let (url, response) = replaying().await;
        let account = || connect(case.provider, &url);
        let kept = account();
        let send = async |body: &Value| {
            *response.lock().unwrap() = http(case.status, "", body.to_string().as_bytes());
            // Searches of one account share what they have read a moment ago.
            let is_search = matches!(case.operation, Operation::Search);
            let provider = if is_search {
                account()
            } else {
                Arc::clone(&kept)
            };
            class(&*provider, case.operation, body).await
        };
        let key = |place: &str| format!("{} {} {place}", case.provider, case.name);
        let good = send(&case.body).await;
        seen.insert(key("as it should be"), [good].into());
        let mut all = Vec::new();
        places(&case.body, "", &mut all);
        for place in all {
            let mut classes = BTreeSet::new();
            for value in hostile() {
                classes.insert(send(&changed(&case.body, &place, value)).await);
            }
            seen.insert(key(&place), classes);
        }
    }
    let lines: Vec<String> = seen
        .into_iter()
        .map(|(key, classes)| {
            let classes: Vec<&str> = classes.iter().map(|class| class.trim_end()).collect();
            format!("{key}: {}", classes.join(" | "))
        })
        .collect();
    let expected: Vec<&str> = include_str!("rows/fields.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let wrong = lines
        .iter()
        .filter(|line| !expected.contains(&line.as_str()));
    let wrong: Vec<&str> = wrong.map(String::as_str).collect();
    assert!(
        wrong.is_empty(),
        "not in rows/fields.txt:\n{}",
        wrong.join("\n")
    );
    assert_eq!(
        lines.len(),
        expected.len(),
        "rows/fields.txt has a row of no field"
    );
}

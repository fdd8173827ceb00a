//! Each field of each response of each adapter, with values that it should never have.
//! `rows/fields.txt` names everything that they may lead to, so that a field whose hostile value
//! would be taken for a rejection, for an absence or for a profile is seen there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use domain::{Iccid, PlacementId, esim_change::GiveBackCause, extension::Baseline};
use provisioner::providers::{
    AddedExtension, BadCallback, BeforeExtension, Custody, DeliveredEsim, EsimStatus,
    ExtendResponse, Extension, ExtensionSeen, GiveBackResponse, Hint, Provider, ProviderId,
    PurchaseResponse, Trouble,
};
use runtime::clock::Moment;
use serde_json::{Value, json};
use time::macros::datetime;
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
    FindClaim,
    Offers,
    BeforeExtension,
    Extend,
    FindExtension,
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

/// The responses of eSIM Access about extensions.
fn top_ups_of_esim_access() -> Vec<Case> {
    use Operation::{BeforeExtension, Extend, FindExtension, Offers};
    let done = |result: Value| json!({ "success": true, "errorCode": "0", "errorMsg": null, "obj": result });
    // It answers both calls of a look before: the one for the eSIM, and the one for the list.
    let both = done(json!({
        "esimList": [{
            "esimTranNo": "25", "esimStatus": "IN_USE", "smdpStatus": "ENABLED", "totalVolume": 5,
            "orderUsage": 2, "totalDuration": 30, "durationUnit": "DAY",
            "expiredTime": "2027-01-31T08:10:19Z",
            "packageList": [{ "packageCode": "P", "esimTranNo": "26", "transactionId": "T" }],
        }],
        "packageList": [{
            "packageCode": "P", "slug": "S", "name": "1 GB", "price": 15_000, "currencyCode": "USD",
            "volume": 1024, "dataType": 1, "duration": 7, "durationUnit": "DAY",
        }],
    }));
    let topped_up = done(json!({
        "transactionId": OURS, "iccid": "8982123456789012345", "totalVolume": 6, "totalDuration": 37,
        "orderUsage": 2, "topUpEsimTranNo": "27",
    }));
    let grown = done(json!({ "esimList": [{
        "esimTranNo": "25", "totalVolume": 6, "totalDuration": 37, "durationUnit": "DAY",
        "packageList": [{ "packageCode": "P" }],
    }] }));
    let named = done(json!({ "esimList": [{
        "esimTranNo": "25", "packageList": [{ "transactionId": OURS }],
    }] }));
    let refused =
        json!({ "success": false, "errorCode": "310242", "errorMsg": "no such plan", "obj": null });
    vec![
        case("esim-access", "offers", Offers, both.clone()),
        case("esim-access", "before extension", BeforeExtension, both),
        case("esim-access", "extension", Extend, topped_up),
        case("esim-access", "refused extension", Extend, refused),
        case(
            "esim-access",
            "extension by difference",
            FindExtension,
            grown,
        ),
        case("esim-access", "extension by our id", FindExtension, named),
    ]
}

/// Those of Airalo and Zendit.
fn extensions_of_airalo_and_zendit() -> Vec<Case> {
    use Operation::{BeforeExtension, Extend, FindClaim, FindExtension, GiveBack, Offers};
    let listed = json!({
        "pricing": { "model": "discount_pricing", "discount_percentage": 20 },
        "data": [{
            "id": "P", "type": "topup", "price": 4.5, "net_price": null, "amount": 1024, "day": 7,
            "is_unlimited": false, "title": "1 GB",
        }],
    });
    let top_up = json!({ "data": {
        "id": 7, "type": "topup", "package_id": "P", "quantity": "1", "description": OURS,
        "status": { "slug": "completed" },
    } });
    let orders = json!({ "data": [top_up["data"]] });
    let claimed = json!({ "data": { "refund_id": "7" } });
    let refunded = json!({ "data": [top_up["data"], {
        "id": 8, "type": "sim", "package_id": "P", "quantity": "1", "description": OURS,
        "sims": [{ "id": 25, "iccid": "8982123456789012345" }], "status": { "slug": "refunded" },
    }] });
    let denied = json!({ "data": [], "meta": { "message": "the parameter is invalid" } });
    let unprocessable = |name, operation| Case {
        status: "422 X",
        ..case(
            "airalo",
            name,
            operation,
            json!({ "code": 73, "reason": "recycled" }),
        )
    };

    let offer = json!({
        "offerId": "P", "enabled": true, "priceType": "FIXED", "dataGB": 1, "dataUnlimited": false,
        "durationDays": 7, "cost": { "currencyDivisor": 100, "fixed": 300, "fee": 25 },
    });
    let accepted = json!({ "status": "ACCEPTED", "transactionId": OURS });
    let plan = json!({
        "transactionId": OURS, "status": "DONE", "offerId": "P",
        "confirmation": { "iccid": "8982123456789012345" }, "refund": { "status": "FAILED" },
    });
    let other = json!({
        "transactionId": OURS, "status": "DONE", "offerId": "P", "createdAt": "2026-12-31T10:00:00Z",
        "confirmation": {
            "iccid": "891000000000009125", "smdpAddress": "smdp.example.com", "activationCode": "AB-12",
        },
    });
    vec![
        case("airalo", "offers", Offers, listed.clone()),
        case("airalo", "before extension", BeforeExtension, listed),
        unprocessable("recycled", BeforeExtension),
        case("airalo", "extension", Extend, top_up),
        unprocessable("refused extension", Extend),
        case("airalo", "extension by our id", FindExtension, orders),
        case("airalo", "claim", GiveBack, claimed),
        Case {
            status: "422 X",
            ..case("airalo", "refused claim", GiveBack, denied)
        },
        case("airalo", "credit", FindClaim, refunded),
        case("zendit", "before extension", BeforeExtension, offer),
        case("zendit", "extension", Extend, accepted),
        case("zendit", "extension by our id", FindExtension, plan),
        case("zendit", "another eSIM", FindExtension, other),
    ]
}

/// Those of USIMSA and the sandbox.
fn extensions_of_usimsa() -> Vec<Case> {
    use Operation::{BeforeExtension, Extend, FindExtension, Offers};
    let extended = json!({ "code": "0000", "message": null, "expiredDate": "2027-01-31" });
    let instead = json!({
        "code": "0000", "message": null, "topupId": "26", "iccid": "891000000000009125",
        "smdp": "smdp.example.com", "activateCode": "A1-B2", "expiredDate": "2027-01-31",
    });
    let topup = json!({
        "code": "0000", "message": null,
        "topup": { "topupId": "25", "expireTime": "2027-01-08 10:00:00", "usage": "1.5GB" },
    });
    let usage = json!({ "code": "0000", "message": null, "usage": {
        "topupId": "25", "installed": true, "canceled": false, "usedBytes": 2, "totalBytes": 5,
        "endsAt": "2099-12-31T00:00:00Z",
    } });
    let shown = json!({
        "code": "0000", "message": null, "extensionId": OURS, "topupId": "25", "optionId": "P",
        "status": "READY",
    });
    let offers = json!({ "code": "0000", "message": null, "extensions": [{
        "optionId": "P", "name": "1 GB", "bytes": 1024, "days": 7,
    }] });
    let absent = json!({ "code": "9002", "message": "not found" });
    vec![
        case("usimsa", "before extension", BeforeExtension, topup.clone()),
        case("usimsa", "extension", Extend, extended),
        case("usimsa", "another eSIM", Extend, instead),
        case("usimsa", "extension by difference", FindExtension, topup),
        case("sandbox", "offers", Offers, offers),
        case("sandbox", "before extension", BeforeExtension, usage),
        case("sandbox", "extension by our id", FindExtension, shown),
        case("sandbox", "no extension", FindExtension, absent),
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
        Operation::Status => status(&provider.status(&esim).await),
        Operation::GiveBack => match provider.give_back(&esim, GiveBackCause::Other).await {
            Ok(GiveBackResponse::Returned) => "returned".to_owned(),
            Ok(GiveBackResponse::Refused(said)) => {
                assert!(
                    said.len() <= LONGEST && !said.contains(is_hidden),
                    "{said:?}"
                );
                "refused".to_owned()
            }
            Ok(GiveBackResponse::Claimed { reference, .. }) => {
                assert!(reference.is_none_or(|id| id.as_str().len() <= LONGEST));
                "claimed".to_owned()
            }
            Err(error) => trouble(&error),
        },
        Operation::FindClaim => credit(&provider.find_claim(&esim).await),
        Operation::Offers
        | Operation::BeforeExtension
        | Operation::Extend
        | Operation::FindExtension => extended(provider, operation, &esim).await,
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

/// What a look at an eSIM says.
fn status(seen: &Result<EsimStatus, Trouble>) -> String {
    match seen {
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
                Custody::Claimed(said) | Custody::ClaimUnshown(said) => {
                    assert!(
                        said.len() <= LONGEST && !said.contains(is_hidden),
                        "{said:?}"
                    );
                    "claimed"
                }
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
        Err(error) => trouble(error),
    }
}

/// What a look for the credit of a claim says.
fn credit(seen: &Result<Custody, Trouble>) -> String {
    match seen {
        Ok(Custody::Returned) => "returned".to_owned(),
        Ok(Custody::ClaimUnshown(said)) => {
            assert!(
                said.len() <= LONGEST && !said.contains(is_hidden),
                "{said:?}"
            );
            "not credited".to_owned()
        }
        Ok(other) => format!("{other:?}"),
        Err(error) => trouble(error),
    }
}

/// What a response about an extension leads to.
async fn extended(provider: &dyn Provider, operation: Operation, esim: &DeliveredEsim) -> String {
    let extension = Extension {
        id: OURS.parse().unwrap(),
        esim: esim.clone(),
        provider_option_id: "P".to_owned(),
        send_by: Moment::now() + Duration::from_mins(1),
    };
    let is_line = |said: &str| {
        assert!(
            said.len() <= LONGEST && !said.contains(is_hidden),
            "{said:?}"
        );
    };
    let refused = |status: &str, message: &str| {
        is_line(status);
        is_line(message);
        "refused".to_owned()
    };
    let told = |added: &AddedExtension| {
        let another = if added.profile.is_some() {
            ", another eSIM"
        } else {
            ""
        };
        format!("added{another}")
    };
    match operation {
        Operation::Offers => match provider.offers(esim).await {
            Ok(offers) => {
                let offers = offers.unwrap();
                for offer in &offers {
                    is_line(&offer.name);
                }
                let known = offers.first().map(|one| {
                    let data = one.data.is_some();
                    let days = one.days.is_some();
                    let cost = one.cost.is_some();
                    format!("an offer data:{data} days:{days} cost:{cost}")
                });
                known.unwrap_or_else(|| "no offer".to_owned())
            }
            Err(error) => trouble(&error),
        },
        Operation::BeforeExtension => match provider.before_extension(&extension).await {
            Ok(BeforeExtension::Possible(baseline)) => {
                let parts = [
                    ("total", baseline.data_total.is_some()),
                    ("days", baseline.days_total.is_some()),
                    ("ends", baseline.ends_at.is_some()),
                    ("adds-data", baseline.adds_data.is_some()),
                    ("adds-days", baseline.adds_days.is_some()),
                ];
                let known = parts.into_iter().filter(|(_, is_known)| *is_known);
                let known: Vec<&str> = known.map(|(name, _)| name).collect();
                format!("possible {}", known.join(" "))
            }
            Ok(BeforeExtension::Refused(reason)) => refused("", &reason),
            Err(error) => trouble(&error),
        },
        Operation::Extend => match provider.extend(&extension).await {
            Ok(ExtendResponse::Added(added)) => told(&added),
            Ok(ExtendResponse::Refused { message, .. }) => refused("", &message),
            Err(error) => trouble(&error),
        },
        _ => {
            // USIMSA, which has no catalogue, shows only the end.
            let shows_data = provider.capabilities().catalogue;
            let baseline = Baseline {
                data_total: shows_data.then_some(5),
                days_total: shows_data.then_some(30),
                ends_at: Some(datetime!(2027-01-01 10:00 UTC)),
                packages: Vec::new(),
                adds_data: Some(1),
                adds_days: Some(7),
            };
            match provider.find_extension(&extension, &baseline).await {
                Ok(ExtensionSeen::Added(added)) => told(&added),
                Ok(ExtensionSeen::NotAdded) => "not added".to_owned(),
                Ok(ExtensionSeen::Refused { message, .. }) => refused("", &message),
                Err(error) => trouble(&error),
            }
        }
    }
}

fn is_hidden(character: char) -> bool {
    character.is_control() || character == '\u{202e}'
}

#[tokio::test]
async fn no_field_is_taken_for_what_it_is_not() {
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let of_extensions = [
        top_ups_of_esim_access(),
        extensions_of_airalo_and_zendit(),
        extensions_of_usimsa(),
    ];
    let all = cases().into_iter().chain(of_zendit());
    for case in all.chain(of_extensions.into_iter().flatten()) {
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

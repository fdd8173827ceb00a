//! The protocol of Zendit, as this program serves it. It sells from the same ledger, by the same
//! scripts, as the other protocols: an `offerId` is the id of an option, and our caller's
//! `transactionId` is the id of the order.
//!
//! A purchase is one eSIM. It is accepted at once and carried out later, and it is looked up by the
//! caller's id. What a second purchase with the same id does is not documented, so here it buys
//! again, whatever the settings of the sandbox say: a caller that relies on more shows up in the
//! tests.
//!
//! The forms are those of the provider's public documents (the reference as printed in 2025, the
//! models of its SDKs of September 2025 and March 2026, its page on errors), whatever the
//! provisioner expects. What the protocol cannot express is left out; docs/sandbox.md says what
//! that is.

use std::collections::HashMap;

use axum::{
    Json, Router,
    body::Bytes,
    extract::{FromRequestParts, Path, RawQuery, State, rejection::BytesRejection},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use runtime::{clock, lock};
use serde::Deserialize;
use serde_json::{Value, json};
use time::{
    OffsetDateTime, UtcOffset, format_description::StaticFormatDescription,
    macros::format_description,
};
use url::form_urlencoded;

use sandbox::{
    Sandbox,
    after::{self, ExtendResult, GiveBackResult},
    channel::CallbackMessage,
    garble::{self, AnswerShape},
    ledger::{Ledger, Repeats},
    profile::{self, UnitNumber},
    protocol::{Product, ProfileAnswer, UnitStatus, code},
    purchase::{LedgerExtension, LedgerPurchase},
    sale::{self, Sale},
    script::option_id,
    units,
};

use crate::{
    products::{self, Kind},
    state::{Upstreams, bearer},
};

pub const PURCHASES: &str = "/v1/esim/purchases";

const TIME: StaticFormatDescription =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
/// The sizes of a page of a list: "minimum 1, maximum 1,024".
const PAGE_SIZES: std::ops::RangeInclusive<usize> = 1..=1_024;
/// What each eSIM costs us, in cents. Offers name the fee beside the fixed cost.
const COST: u64 = 300;
const FEE: u64 = 25;
/// Both, in dollars, as in the catalogue.
pub const PRICE_TEXT: &str = "3.25";
/// What our wallet held before its first purchase, in cents.
const BALANCE: u64 = 10_000_000;
/// The cents of a dollar.
const DIVISOR: u64 = 100;
/// The days for which a plan is valid.
const DAYS: u32 = 30;
const GIB: f64 = 1_073_741_824.0;

const SHAPE: AnswerShape = AnswerShape {
    units: "/list",
    id: "transactionId",
    date: "createdAt",
    message: "/message",
};

pub fn routes() -> Router<Upstreams> {
    Router::new()
        .route(PURCHASES, post(purchase).get(list))
        .route("/v1/esim/purchases/{transaction_id}", get(show))
        .route(
            "/v1/esim/purchases/{transaction_id}/refund",
            post(give_back).get(refund),
        )
        .route("/v1/esim/{iccid}/plans", get(plans))
        .route("/v1/esim/offers", get(offers))
        .route("/v1/esim/offers/{offer_id}", get(offer_by_id))
        .route("/v1/balance", get(balance))
}

/// An error: its status, its code and its message.
struct Failure(StatusCode, &'static str, &'static str);

const UNAUTHORIZED: Failure = Failure(
    StatusCode::UNAUTHORIZED,
    "NOT_AUTHORIZED",
    "Your API key is incorrect or not authorized to access this system",
);
const NO_OFFER: Failure = Failure(
    StatusCode::NOT_FOUND,
    "NOT_FOUND",
    "The catalog item either doesn't exist or is not enabled",
);
const NO_TRANSACTION: Failure =
    Failure(StatusCode::NOT_FOUND, "NOT_FOUND", "Transaction not found");
const INVALID: Failure = Failure(
    StatusCode::BAD_REQUEST,
    "INVALID_REQUEST",
    "The request is invalid",
);

impl Failure {
    fn body(&self) -> Value {
        json!({ "errorCode": self.1, "message": self.2, "fields": {} })
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, Json(self.body())).into_response()
    }
}

/// A request with our key.
struct WithKey;

impl FromRequestParts<Upstreams> for WithKey {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, upstreams: &Upstreams) -> Result<Self, Failure> {
        if bearer(&parts.headers) == Some(&*upstreams.sandbox.credentials.access_key) {
            Ok(Self)
        } else {
            Err(UNAUTHORIZED)
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewPurchase {
    offer_id: String,
    transaction_id: String,
    /// The eSIM that gets the plan; without it a new one is sold.
    iccid: Option<String>,
}

fn accepted(id: &str, status: &str) -> Value {
    json!({ "status": status, "transactionId": id })
}

async fn purchase(
    State(upstreams): State<Upstreams>,
    _: WithKey,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let sandbox = &upstreams.sandbox;
    let wanted = body
        .ok()
        .and_then(|body| serde_json::from_slice(&body).ok());
    let Some(NewPurchase {
        offer_id,
        transaction_id,
        iccid,
    }) = wanted
    else {
        return INVALID.into_response();
    };
    if offer_id.is_empty() || transaction_id.is_empty() {
        return INVALID.into_response();
    }
    if let Some(iccid) = iccid.filter(|iccid| !iccid.is_empty()) {
        return add_plan(&upstreams, transaction_id, offer_id, &iccid).await;
    }
    let products = vec![Product {
        option_id: offer_id,
        qty: 1,
    }];
    let garble = sandbox.garble(products.iter());
    let id = transaction_id.clone();
    let channel = upstreams.zendit.as_ref();
    let sold = sale::sell(sandbox, id.clone(), products, Repeats::Bought, channel).await;
    match sold {
        Ok(Sale::Sold(_)) => garble::garbled(garble, &SHAPE, accepted(&id, "ACCEPTED")),
        // Nothing was bought, and the id is used up: the purchase is shown as failed from now on.
        Ok(Sale::Refused(refused)) if refused.code == code::OUT_OF_STOCK => {
            lock(&upstreams.zendit_failed).insert(id.clone());
            garble::garbled(garble, &SHAPE, accepted(&id, "FAILED"))
        }
        Ok(Sale::Refused(_)) => {
            let mut response = garble::garbled(garble, &SHAPE, NO_OFFER.body());
            *response.status_mut() = NO_OFFER.0;
            response
        }
        Err(error) => error.into_response(),
    }
}

/// Adds a plan to an eSIM.
async fn add_plan(upstreams: &Upstreams, id: String, offer_id: String, iccid: &str) -> Response {
    let sandbox = &upstreams.sandbox;
    let unit = profile::unit(iccid);
    let added = after::extend(sandbox, id.clone(), unit, offer_id, Repeats::Bought).await;
    match added {
        Ok(ExtendResult::Done(_)) => Json(accepted(&id, "ACCEPTED")).into_response(),
        // It is accepted, and fails later.
        Ok(ExtendResult::Over) => {
            lock(&upstreams.zendit_failed).insert(id.clone());
            Json(accepted(&id, "ACCEPTED")).into_response()
        }
        Ok(ExtendResult::Refused(refused)) if refused.code == code::OUT_OF_STOCK => {
            lock(&upstreams.zendit_failed).insert(id.clone());
            Json(accepted(&id, "FAILED")).into_response()
        }
        Ok(ExtendResult::Refused(_)) => NO_OFFER.into_response(),
        Ok(ExtendResult::Unknown) => INVALID.into_response(),
        Err(error) => error.into_response(),
    }
}

/// A plan that was added to an eSIM, as a purchase. It names the eSIM that has it: another one, if
/// one was sold instead.
fn plan(sandbox: &Sandbox, extension: &LedgerExtension, now: OffsetDateTime) -> Value {
    let unit = extension.instead.unwrap_or(extension.unit);
    let bought = sandbox.ledger.containing(unit).map(|one| one.at);
    let profile = sandbox.ledger.profile(unit, bought.unwrap_or(extension.at));
    let purchase = LedgerPurchase {
        at: extension.at,
        order_id: extension.extension_id.clone(),
        first_unit: unit,
        products: vec![Product {
            option_id: extension.option_id.clone(),
            qty: 1,
        }],
    };
    if extension.at <= now {
        whole(&purchase, "DONE", Some(&profile))
    } else {
        whole(&purchase, "IN_PROGRESS", None)
    }
}

/// The purchase with this id that a caller is shown, if it is known by now. If the id has bought
/// twice, it is the first one.
fn find(sandbox: &Sandbox, id: &str) -> Option<std::sync::Arc<LedgerPurchase>> {
    let order = sandbox.ledger.order(id)?;
    let purchase = order.purchases.into_iter().next()?;
    sandbox.shows(&purchase).then_some(purchase)
}

async fn show(State(upstreams): State<Upstreams>, _: WithKey, Path(id): Path<String>) -> Response {
    let sandbox = &upstreams.sandbox;
    if let Some(purchase) = find(sandbox, &id) {
        let garble = sandbox.garble(purchase.products.iter());
        return garble::garbled(garble, &SHAPE, shown(&upstreams, &purchase, clock::now()));
    }
    let plans = sandbox.ledger.extensions(|one| one.extension_id == id);
    if let Some(extension) = plans.first() {
        return Json(plan(sandbox, extension, clock::now())).into_response();
    }
    if lock(&upstreams.zendit_failed).contains(&id) {
        return Json(failed(&id)).into_response();
    }
    NO_TRANSACTION.into_response()
}

/// A purchase that was refused after it was accepted.
fn failed(id: &str) -> Value {
    json!({
        "transactionId": id,
        "status": "FAILED",
        "offerId": "",
        "productType": "ESIM",
        "error": fault(),
        "log": [],
    })
}

fn fault() -> Value {
    json!({
        "code": "PROVIDER_ERROR",
        "description": "The provider has failed",
        "message": "The eSIM is out of stock",
    })
}

/// A purchase as it is now.
fn shown(upstreams: &Upstreams, purchase: &LedgerPurchase, now: OffsetDateTime) -> Value {
    let sandbox = &upstreams.sandbox;
    let unit = purchase.first_unit;
    let is_canceled = sandbox.ledger.is_canceled(unit);
    let states = units::shown(sandbox, purchase, now);
    let state = states.first().map(|shown| shown.status);
    let status = match state {
        Some(UnitStatus::Failed) => "FAILED",
        Some(UnitStatus::Ready | UnitStatus::Canceled) => "DONE",
        Some(UnitStatus::Pending) | None => "IN_PROGRESS",
    };
    let profile = sandbox.ledger.profile(unit, purchase.at);
    let mut shown = whole(purchase, status, (status == "DONE").then_some(&profile));
    let claim = upstreams.claim(unit);
    let refund = if is_named(purchase, "refunding") {
        Some("IN_PROGRESS".to_owned())
    } else if is_canceled {
        Some("DONE".to_owned())
    } else {
        claim.map(|claim| claim.state.unwrap_or_else(|| "PENDING".to_owned()))
    };
    if let Some(status) = refund {
        shown["refund"] = json!({ "status": status });
    }
    if is_named(purchase, "odd-state") {
        shown["status"] = "UNDER_REVIEW".into();
    }
    shown
}

/// Whether the option of a purchase is that of this name, which says how it behaves in this
/// protocol: `refunding`, `reviewed` or `odd-state`.
fn is_named(purchase: &LedgerPurchase, name: &str) -> bool {
    let option = purchase.products.first();
    option.is_some_and(|product| option_id(name).to_string() == product.option_id)
}

fn time(at: OffsetDateTime) -> String {
    at.to_offset(UtcOffset::UTC)
        .format(TIME)
        .unwrap_or_default()
}

fn whole(purchase: &LedgerPurchase, status: &str, profile: Option<&ProfileAnswer>) -> Value {
    let offer_id = purchase.products.first().map(|product| &product.option_id);
    let mut shown = json!({
        "transactionId": purchase.order_id,
        "offerId": offer_id,
        "status": status,
        "productType": "ESIM",
        "priceType": "FIXED",
        "brand": "ZENDIT",
        "brandName": "Sandbox",
        "country": "JP",
        "regions": [],
        "roaming": [],
        "subTypes": ["Standard"],
        "dataGB": 5,
        "dataUnlimited": false,
        "dataSpeeds": ["4G"],
        "durationDays": DAYS,
        "cost": COST + FEE,
        "costBase": COST,
        "costFee": FEE,
        "costCurrency": "USD",
        "costCurrencyDivisor": DIVISOR,
        "price": 0,
        "priceCurrency": "USD",
        "priceCurrencyDivisor": DIVISOR,
        "notes": "",
        "shortNotes": "",
        "createdAt": time(purchase.at),
        "updatedAt": time(purchase.at),
        "log": [{ "dateTime": time(purchase.at), "status": "ACCEPTED", "statusMessage": "" }],
    });
    if status == "FAILED" {
        shown["error"] = fault();
    }
    if let Some(profile) = profile {
        shown["confirmation"] = json!({
            "iccid": profile.iccid,
            "smdpAddress": profile.smdp,
            "activationCode": profile.activate_code,
            "externalReferenceId": "",
            "redemptionInstructions": "",
        });
    }
    shown
}

/// The page that a list was asked for.
struct Asked {
    limit: usize,
    offset: usize,
}

impl Asked {
    /// `None` if a parameter is missing or not allowed.
    fn read(query: Option<&str>) -> Option<Self> {
        let query = query.unwrap_or_default();
        let parameters: HashMap<String, String> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        let number = |name: &str| parameters.get(name)?.parse().ok();
        let limit = number("_limit").filter(|limit| PAGE_SIZES.contains(limit))?;
        let offset = number("_offset")?;
        Some(Self { limit, offset })
    }

    fn page(&self, all: &[Value]) -> Response {
        let listed: Vec<&Value> = all.iter().skip(self.offset).take(self.limit).collect();
        Json(json!({
            "limit": self.limit,
            "offset": self.offset,
            "total": all.len(),
            "list": listed,
        }))
        .into_response()
    }
}

/// Lists all purchases, newest first.
async fn list(
    State(upstreams): State<Upstreams>,
    _: WithKey,
    RawQuery(query): RawQuery,
) -> Response {
    let sandbox = &upstreams.sandbox;
    let Some(asked) = Asked::read(query.as_deref()) else {
        return INVALID.into_response();
    };
    let now = clock::now();
    // An eSIM that was sold instead of a plan is listed as that.
    let plans = sandbox.ledger.extensions(|_| true);
    let is_of_plan = |unit: UnitNumber| plans.iter().any(|plan| plan.instead == Some(unit));
    let purchases = sandbox
        .ledger
        .purchases(|purchase| !is_of_plan(purchase.first_unit));
    let bought = purchases
        .iter()
        .map(|purchase| (purchase.at, shown(&upstreams, purchase, now)));
    let added = plans.iter().map(|one| (one.at, plan(sandbox, one, now)));
    let mut all: Vec<(OffsetDateTime, Value)> = bought.chain(added).collect();
    all.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    let all: Vec<Value> = all.into_iter().map(|(_, shown)| shown).collect();
    asked.page(&all)
}

/// Gives money back for an eSIM that nobody has installed. It is accepted and carried out later,
/// and for the option `reviewed` only once people have decided so.
async fn give_back(
    State(upstreams): State<Upstreams>,
    _: WithKey,
    Path(id): Path<String>,
) -> Response {
    let sandbox = &upstreams.sandbox;
    let Some(purchase) = find(sandbox, &id) else {
        return NO_TRANSACTION.into_response();
    };
    if is_named(&purchase, "reviewed") {
        upstreams.claimed(purchase.first_unit, None);
        return Json(json!({ "status": "PENDING" })).into_response();
    }
    match after::give_back(sandbox, purchase.first_unit) {
        Ok(GiveBackResult::Done | GiveBackResult::Again) => {
            Json(json!({ "status": "ACCEPTED" })).into_response()
        }
        Ok(GiveBackResult::Installed) => INVALID.into_response(),
        Ok(GiveBackResult::Unknown) => NO_TRANSACTION.into_response(),
        Err(error) => error.into_response(),
    }
}

async fn refund(State(sandbox): State<Sandbox>, _: WithKey, Path(id): Path<String>) -> Response {
    let purchase = find(&sandbox, &id);
    let refunded = purchase.filter(|one| sandbox.ledger.is_canceled(one.first_unit));
    let Some(purchase) = refunded else {
        return NO_TRANSACTION.into_response();
    };
    Json(json!({
        "transactionId": format!("{id}-refund"),
        "refundedTransactionId": id,
        "status": "DONE",
        "type": "CREDIT",
        "productType": "REFUND",
        "amount": COST + FEE,
        "currency": "USD",
        "currencyDivisor": DIVISOR,
        "createdAt": time(purchase.at),
        "updatedAt": time(purchase.at),
        "log": [],
    }))
    .into_response()
}

/// Shows what is left of the plan of an eSIM.
async fn plans(State(sandbox): State<Sandbox>, _: WithKey, Path(iccid): Path<String>) -> Response {
    let esim = match after::look(&sandbox, profile::unit(&iccid)) {
        Ok(Some(esim)) => esim,
        Ok(None) => return INVALID.into_response(),
        Err(error) => return error.into_response(),
    };
    let installed = if esim.is_installed {
        time(clock::now())
    } else {
        String::new()
    };
    #[expect(clippy::cast_precision_loss, reason = "the amounts are some GB")]
    let gigabytes = |bytes: u64| bytes as f64 / GIB;
    let added = u64::try_from(esim.extensions.len()).unwrap_or_default() * after::ADDS;
    let first = esim.total - added;
    let mut list = vec![json!({
        "iccid": iccid,
        "offerId": "",
        "description": "Sandbox",
        "status": if esim.is_installed { "ACTIVE" } else { "QUEUED" },
        "startAt": installed,
        "endAt": if esim.is_installed { time(esim.ends_at) } else { String::new() },
        "initialDataGB": gigabytes(first),
        "remainingDataGB": gigabytes(first - esim.used),
        "unlimited": false,
    })];
    for extension in &esim.extensions {
        list.push(json!({
            "iccid": iccid,
            "offerId": extension.option_id,
            "description": "Sandbox",
            "status": "QUEUED",
            "startAt": "",
            "endAt": "",
            "initialDataGB": gigabytes(after::ADDS),
            "remainingDataGB": gigabytes(after::ADDS),
            "unlimited": false,
        }));
    }
    let total = list.len();
    Json(json!({ "firstInstalledAt": installed, "list": list, "total": total })).into_response()
}

/// What is offered: all products, each of which is an eSIM of its own, or a plan for one. One is
/// switched off for our account, and is listed all the same.
fn offered() -> impl Iterator<Item = &'static products::Product> {
    let is_offered =
        |one: &&products::Product| one.kind != Kind::NeedsIdentity && one.name != "top-up";
    products::all().iter().filter(is_offered)
}

fn offer(product: &products::Product) -> Value {
    let is_local = product.countries.len() == 1;
    let roaming = product.countries.iter().filter(|_| !is_local);
    let roaming: Vec<Value> = roaming
        .map(|code| json!({ "country": code, "dataSpeeds": ["4G"] }))
        .collect();
    let notes = if product.kind == Kind::NeedsConfirmationCode {
        "The installation asks for a confirmation code."
    } else {
        ""
    };
    json!({
        "offerId": product.id,
        "brand": "ZENDIT",
        "brandName": "Sandbox",
        "country": if is_local { product.countries[0] } else { "" },
        "regions": if is_local { json!([]) } else { json!(["Western Europe"]) },
        "roaming": roaming,
        "subTypes": ["Standard"],
        "dataGB": f64::from(product.megabytes.unwrap_or_default()) / 1024.0,
        "dataUnlimited": product.megabytes.is_none(),
        "dataSpeeds": ["4G"],
        "durationDays": product.days,
        "enabled": product.kind != Kind::ByTheDay,
        "priceType": "FIXED",
        "productType": "ESIM",
        "cost": {
            "currency": "USD",
            "currencyDivisor": DIVISOR,
            "fixed": COST,
            "fee": FEE,
            "feePct": 0,
            "discount": 0,
        },
        "price": { "currency": "USD", "currencyDivisor": DIVISOR, "fixed": 900 },
        "notes": notes,
        "shortNotes": product.name,
        "smsNumber": 0,
        "smsUnlimited": false,
        "voiceMinutes": 0,
        "voiceUnlimited": false,
        "createdAt": "2026-01-01T00:00:00.000Z",
        "updatedAt": "2026-01-01T00:00:00.000Z",
    })
}

async fn offers(_: WithKey, RawQuery(query): RawQuery) -> Response {
    match Asked::read(query.as_deref()) {
        Some(asked) => asked.page(&offered().map(offer).collect::<Vec<_>>()),
        None => INVALID.into_response(),
    }
}

async fn offer_by_id(_: WithKey, Path(id): Path<String>) -> Response {
    let found = offered().find(|product| product.id == id.as_str());
    found.map_or_else(
        || NO_OFFER.into_response(),
        |product| Json(offer(product)).into_response(),
    )
}

async fn balance(State(upstreams): State<Upstreams>, _: WithKey) -> Response {
    let balance = BALANCE.saturating_sub((COST + FEE) * upstreams.paid_units());
    Json(json!({
        "availableBalance": balance,
        "currency": "USD",
        "currencyDivisor": DIVISOR,
    }))
    .into_response()
}

/// The callback: what a look-up would answer then.
pub fn callback(
    ledger: &Ledger,
    purchase: &LedgerPurchase,
    unit: UnitNumber,
    _: &str,
) -> Vec<CallbackMessage> {
    let profile = ledger.profile(unit, purchase.at);
    vec![CallbackMessage::of(&whole(
        purchase,
        "DONE",
        Some(&profile),
    ))]
}

//! The protocol of eSIM Access, as this program serves it. It sells from the same ledger, by the
//! same scripts, as the other protocols: a `packageCode` is the id of an option, and our caller's
//! `transactionId` is the id of the order.
//!
//! Every answer has status 200, and errors are codes in the body. Only a `500` of a script or fault
//! stays one. What the protocol cannot express is left out; docs/sandbox.md says what that is.
//!
//! The forms are those of the provider's public reference (prints of the end of 2025 and of April
//! 2026), whatever the provisioner expects, so that a mistake of the provisioner shows up in the
//! tests: times with an offset and without seconds, pages of 5 to 500, 30 eSIMs in a batch, and an
//! ICCID that is sold again after its eSIM was cancelled.

use std::{collections::HashMap, sync::LazyLock};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{FromRequest, Request, State},
    http::HeaderMap,
    response::{IntoResponse, Response},
    routing::post,
};
use runtime::clock;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use signing::SecretKey;
use time::{
    OffsetDateTime, format_description::StaticFormatDescription, macros::format_description,
};

use sandbox::{
    Sandbox, SandboxCredentials,
    after::{self, ExtendResult, GiveBackResult, SuspendResult, UnitInUse},
    channel::CallbackMessage,
    error::SandboxError,
    garble::{self, AnswerShape},
    ledger::{Ledger, Repeats},
    profile::{self, UnitNumber},
    protocol::{Product, UnitStatus, code},
    purchase::LedgerPurchase,
    sale::{self, Sale},
    script::{self, option_id},
    units::{self, UnitView},
};

use crate::{
    products::{self, Kind},
    state::{Iccids, Upstreams},
};

pub const ORDER: &str = "/api/v1/open/esim/order";
pub const TOP_UP: &str = "/api/v1/open/esim/topup";

/// A time of a query, such as `2010-06-30T01:20+00:00`.
const TIME: StaticFormatDescription = format_description!(
    "[year]-[month]-[day]T[hour]:[minute][offset_hour sign:mandatory]:[offset_minute]"
);
const CREATED: StaticFormatDescription =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]+0000");
/// The largest difference that is accepted between a caller's clock and ours, in milliseconds.
const WINDOW_MS: u64 = 5 * 60 * 1000;
/// The sizes of a page of a query.
const PAGE_SIZES: std::ops::RangeInclusive<usize> = 5..=500;
/// The most pages of a query.
const PAGES_MOST: usize = 10_000;
/// The most eSIMs of a purchase: "up to 30 eSIMs in a batch".
const BATCH: u64 = 30;
/// The most eSIMs of a query about data.
const USAGES_MOST: usize = 10;
/// How long ago the data was counted that is shown: "2-3 hours".
const COUNTED_AFTER: time::Duration = time::Duration::hours(3);
/// The longest transaction id, in characters.
const ID_MOST: usize = 50;
/// The states of which an eSIM is in one from its purchase on, by the name of its option. The last
/// one is in no list of the provider.
const STATES: [(&str, &str); 5] = [
    ("revoke", "REVOKE"),
    ("revoked", "REVOKED"),
    ("suspended", "SUSPENDED"),
    ("unused-expired", "UNUSED_EXPIRED"),
    ("odd-state", "UNDER_REVIEW"),
];
/// The same by the id of the option.
static SCRIPTED: LazyLock<HashMap<String, &str>> = LazyLock::new(|| {
    STATES
        .map(|(name, state)| (option_id(name).to_string(), state))
        .into()
});
/// The price of each package, in ten-thousandths of a dollar.
const PRICE: u64 = 15_000;
/// The same in dollars, as in the catalogue.
pub const PRICE_TEXT: &str = "1.50";
/// What our account held before its first purchase, in the same unit.
const BALANCE: u64 = 1_000_000_000;

const SHAPE: AnswerShape = AnswerShape {
    units: "/obj/esimList",
    id: "esimTranNo",
    date: "expiredTime",
    message: "/errorMsg",
};

pub fn routes() -> Router<Upstreams> {
    Router::new()
        .route(ORDER, post(order))
        .route(TOP_UP, post(top_up))
        .route("/api/v1/open/esim/query", post(query))
        .route("/api/v1/open/esim/cancel", post(cancel))
        .route("/api/v1/open/esim/suspend", post(suspend))
        .route("/api/v1/open/esim/unsuspend", post(unsuspend))
        .route("/api/v1/open/esim/usage/query", post(usage))
        .route("/api/v1/open/balance/query", post(balance))
        .route("/api/v1/open/package/list", post(packages))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewOrder {
    transaction_id: String,
    amount: Option<u64>,
    package_info_list: Vec<Package>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Package {
    #[serde(rename = "packageCode")]
    code: String,
    count: u32,
    price: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Query {
    order_no: Option<String>,
    esim_tran_no: Option<String>,
    start_time: Option<String>,
    end_time: Option<String>,
    pager: Pager,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pager {
    page_num: usize,
    page_size: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TopUp {
    esim_tran_no: Option<String>,
    iccid: Option<String>,
    package_code: String,
    transaction_id: String,
}

/// A code of the protocol with its message.
struct Failure(&'static str, &'static str);

const SERVER_ERROR: Failure = Failure("000001", "Server error");
const BAD_JSON: Failure = Failure("000104", "The request is not valid JSON");
const BAD_PARAMETER: Failure = Failure("000105", "A mandatory parameter is missing or invalid");
const TOO_LONG: Failure = Failure("000107", "A parameter is too long");
const BAD_ORDER: Failure = Failure("200008", "The order parameters are wrong, ask our support");
const EXPIRED: Failure = Failure("101001", "The timestamp has expired");
const BAD_SIGNATURE: Failure = Failure("101003", "The signature does not match");
const PRICE_CHANGED: Failure = Failure("200005", "The price of the package is wrong");
const AMOUNT_CHANGED: Failure = Failure("200006", "The total amount is wrong");
const NOT_ALLOCATED: Failure = Failure("200010", "The profiles are not allocated yet");
const SOLD_OUT: Failure = Failure("200011", "There are not enough profiles");
const NO_PACKAGE: Failure = Failure("310241", "The packageCode does not exist");
const NO_ORDER: Failure = Failure("310272", "The orderNo does not exist");
const BAD_STATE: Failure = Failure("200002", "The eSIM is in use, so it cannot be cancelled");
const NO_ESIM: Failure = Failure("310211", "The esimTranNo does not exist");
/// It is not in the reference; a client has seen it.
const NO_TOP_UP: Failure = Failure("310242", "The top up data plan code doesn't exist");
const OVER: Failure = Failure("200002", "The operation is not allowed in the eSIM's state");
const BUSY: Failure = Failure("900001", "The system is busy");

impl Failure {
    fn body(&self) -> Value {
        json!({ "success": false, "errorCode": self.0, "errorMsg": self.1, "obj": null })
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        Json(self.body()).into_response()
    }
}

/// An error as this protocol answers it. A script's or a fault's 500 and silence stay what they
/// are.
fn failed(error: SandboxError) -> Response {
    match error {
        SandboxError::RateLimited(_) => BUSY.into_response(),
        SandboxError::Ledger(_) => {
            drop(error.into_response()); // It logs the fault of the disk.
            SERVER_ERROR.into_response()
        }
        error => error.into_response(),
    }
}

fn done(result: &Value) -> Value {
    json!({ "success": true, "errorCode": "0", "errorMsg": null, "obj": result })
}

/// The body of a request with our signature.
struct Signed<T>(T);

impl<T: DeserializeOwned> FromRequest<Upstreams> for Signed<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, upstreams: &Upstreams) -> Result<Self, Failure> {
        let headers = request.headers().clone();
        let body = Bytes::from_request(request, upstreams).await;
        let body = body.map_err(|_| BAD_JSON)?;
        let now = clock::unix_milliseconds();
        check(&headers, &body, &upstreams.sandbox.credentials, now)?;
        serde_json::from_slice(&body)
            .map(Self)
            .map_err(|_| BAD_JSON)
    }
}

fn check(
    headers: &HeaderMap,
    body: &[u8],
    ours: &SandboxCredentials,
    now_ms: i64,
) -> Result<(), Failure> {
    let header = |name: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.ok_or(Failure("000101", "A mandatory header is missing"))
    };
    let timestamp = header("rt-timestamp")?;
    let sent_ms = signing::parse_unix_time(timestamp).ok_or(EXPIRED)?;
    if sent_ms.abs_diff(now_ms) > WINDOW_MS {
        return Err(EXPIRED);
    }
    // In this protocol the characters of the secret are the key.
    let secret =
        SecretKey::from_bytes(ours.secret.to_base64().into_bytes()).map_err(|_| BAD_SIGNATURE)?;
    let access_code = header("rt-accesscode")?;
    let is_signed = signing::esim_access::verify(
        &secret,
        timestamp,
        header("rt-requestid")?,
        access_code,
        body,
        header("rt-signature")?,
    );
    if access_code != ours.access_key || !is_signed {
        return Err(BAD_SIGNATURE);
    }
    Ok(())
}

/// The provider's number of a purchase.
fn order_number(purchase: &LedgerPurchase) -> String {
    format!("B{}", purchase.first_unit)
}

async fn order(State(upstreams): State<Upstreams>, Signed(order): Signed<NewOrder>) -> Response {
    let sandbox = &upstreams.sandbox;
    let units: u64 = order
        .package_info_list
        .iter()
        .map(|package| u64::from(package.count))
        .sum();
    let is_good = |package: &Package| package.count > 0 && !package.code.is_empty();
    if order.transaction_id.is_empty() || units == 0 || !order.package_info_list.iter().all(is_good)
    {
        return BAD_PARAMETER.into_response();
    }
    if order.transaction_id.len() > ID_MOST {
        return TOO_LONG.into_response();
    }
    if units > BATCH {
        return BAD_ORDER.into_response();
    }
    if order
        .package_info_list
        .iter()
        .any(|package| package.price.is_some_and(|price| price != PRICE))
    {
        return PRICE_CHANGED.into_response();
    }
    if order.amount.is_some_and(|amount| amount != units * PRICE) {
        return AMOUNT_CHANGED.into_response();
    }
    let products: Vec<Product> = order
        .package_info_list
        .into_iter()
        .map(|package| Product {
            option_id: by_slug(package.code),
            qty: package.count,
        })
        .collect();
    let garble = sandbox.garble(products.iter());
    let asked = products.clone();
    let id = order.transaction_id;
    let repeats = sandbox.repeats();
    let sold = sale::sell(
        sandbox,
        id.clone(),
        products,
        repeats,
        upstreams.esim_access.as_ref(),
    )
    .await;
    let purchase = match sold {
        Ok(Sale::Sold(purchase)) => purchase,
        Ok(Sale::Refused(refusal)) => {
            let failure = if refusal.code == code::OUT_OF_STOCK {
                SOLD_OUT
            } else {
                NO_PACKAGE
            };
            return garble::garbled(garble, &SHAPE, failure.body());
        }
        // A repeated transaction id is the same request, which gets the same answer.
        Err(SandboxError::Duplicate) => {
            let first = sandbox.ledger.order(&id);
            match first.and_then(|order| order.purchases.into_iter().next()) {
                // What the provider does with another request under the same id is not documented,
                // so this is as unclear as it could be.
                Some(purchase) if purchase.products != asked => return BAD_ORDER.into_response(),
                Some(purchase) => purchase,
                None => return SERVER_ERROR.into_response(),
            }
        }
        Err(error) => return failed(error),
    };
    upstreams.iccids.sold(&purchase);
    let ordered = json!({ "orderNo": order_number(&purchase), "transactionId": purchase.order_id });
    garble::garbled(garble, &SHAPE, done(&ordered))
}

/// Lists the eSIMs of a purchase, or those of all purchases within a time.
async fn query(State(upstreams): State<Upstreams>, Signed(query): Signed<Query>) -> Response {
    let sandbox = &upstreams.sandbox;
    let size = query.pager.page_size;
    if !PAGE_SIZES.contains(&size) || !(1..=PAGES_MOST).contains(&query.pager.page_num) {
        return BAD_PARAMETER.into_response();
    }
    let now = clock::now();
    if let Some(unit) = &query.esim_tran_no {
        return one(&upstreams, unit, now);
    }
    let mut purchases = if let Some(number) = &query.order_no {
        let first = number.strip_prefix('B').and_then(|unit| unit.parse().ok());
        let found = first.and_then(|unit: UnitNumber| sandbox.ledger.beginning_with(unit));
        let Some(purchase) = found else {
            return NO_ORDER.into_response();
        };
        vec![purchase]
    } else {
        let from = time(query.start_time.as_ref());
        let until = time(query.end_time.as_ref());
        let (Some(from), Some(until)) = (from, until) else {
            return BAD_PARAMETER.into_response();
        };
        // A provider that does not do what it documents counts in the time of its own place.
        let zone = time::Duration::hours(if upstreams.lies() { 8 } else { 0 });
        let is_within = |purchase: &LedgerPurchase| (from..=until).contains(&(purchase.at + zone));
        sandbox.ledger.purchases(is_within)
    };
    purchases.retain(|purchase| sandbox.shows(purchase));
    if query.order_no.is_some() && purchases.is_empty() {
        return NO_ORDER.into_response();
    }
    let products = purchases.iter().flat_map(|purchase| &purchase.products);
    // A search lists eSIMs of many options, so only a query by number follows their faults.
    let garble = query
        .order_no
        .as_ref()
        .and_then(|_| sandbox.garble(products));
    let all: Vec<(&LedgerPurchase, UnitView)> = purchases
        .iter()
        .flat_map(|purchase| made(sandbox, purchase, now).map(|unit| (&**purchase, unit)))
        .collect();
    if query.order_no.is_some() && all.is_empty() {
        return NOT_ALLOCATED.into_response();
    }
    let skipped = (query.pager.page_num - 1) * size;
    let listed = all.iter().skip(skipped).take(size);
    let page: Vec<Value> = listed
        .map(|(purchase, unit)| allocated(&upstreams, purchase, unit))
        .collect();
    let pager = json!({ "pageNum": query.pager.page_num, "pageSize": size, "total": all.len() });
    let listed = done(&json!({ "esimList": page, "pager": pager }));
    garble::garbled(garble, &SHAPE, listed)
}

/// Lists one eSIM.
fn one(upstreams: &Upstreams, number: &str, now: OffsetDateTime) -> Response {
    let sandbox = &upstreams.sandbox;
    let unit = number.parse().ok();
    let purchase = unit.and_then(|unit| sandbox.ledger.containing(unit));
    let Some(purchase) = purchase else {
        return NO_ESIM.into_response();
    };
    if let Err(error) = after::look(sandbox, unit) {
        return failed(error);
    }
    let listed: Vec<Value> = made(sandbox, &purchase, now)
        .filter(|shown| Some(shown.unit) == unit)
        .map(|shown| allocated(upstreams, &purchase, &shown))
        .collect();
    let pager = json!({ "pageNum": 1, "pageSize": 1, "total": listed.len() });
    Json(done(&json!({ "esimList": listed, "pager": pager }))).into_response()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cancel {
    esim_tran_no: String,
}

/// Takes an eSIM back that nobody has begun to install.
async fn cancel(State(upstreams): State<Upstreams>, Signed(cancel): Signed<Cancel>) -> Response {
    let sandbox = &upstreams.sandbox;
    let Ok(unit) = cancel.esim_tran_no.parse() else {
        return NO_ESIM.into_response();
    };
    match after::give_back(sandbox, unit) {
        Ok(GiveBackResult::Done | GiveBackResult::Again) => {
            if let Some(purchase) = sandbox.ledger.containing(unit) {
                let iccid = sandbox.ledger.profile(unit, purchase.at).iccid;
                upstreams.iccids.canceled(unit, iccid);
            }
            Json(done(&json!({}))).into_response()
        }
        Ok(GiveBackResult::Installed) => BAD_STATE.into_response(),
        Ok(GiveBackResult::Unknown) => NO_ESIM.into_response(),
        Err(error) => failed(error),
    }
}

async fn suspend(State(upstreams): State<Upstreams>, Signed(asked): Signed<Cancel>) -> Response {
    change_suspension(&upstreams, &asked, true)
}

async fn unsuspend(State(upstreams): State<Upstreams>, Signed(asked): Signed<Cancel>) -> Response {
    change_suspension(&upstreams, &asked, false)
}

/// Suspends an eSIM, or resumes it. What a repeat is answered is not documented, so it is refused
/// for the eSIM's state.
fn change_suspension(upstreams: &Upstreams, asked: &Cancel, suspend: bool) -> Response {
    let sandbox = &upstreams.sandbox;
    let Ok(unit) = asked.esim_tran_no.parse() else {
        return NO_ESIM.into_response();
    };
    if sandbox.ledger.is_suspended(unit) == suspend {
        return OVER.into_response();
    }
    match after::suspend(sandbox, unit, suspend) {
        Ok(SuspendResult::Done) => Json(done(&json!({}))).into_response(),
        Ok(SuspendResult::Over) => OVER.into_response(),
        Ok(SuspendResult::Unknown) => NO_ESIM.into_response(),
        Err(error) => failed(error),
    }
}

/// Adds a package to an eSIM. What a repeat of a transaction id does here is not documented, so it
/// adds again.
async fn top_up(State(upstreams): State<Upstreams>, Signed(asked): Signed<TopUp>) -> Response {
    let sandbox = &upstreams.sandbox;
    let unit = match (&asked.esim_tran_no, &asked.iccid) {
        (Some(number), None) => number.parse().ok(),
        (None, Some(iccid)) => profile::unit(iccid),
        _ => return BAD_JSON.into_response(),
    };
    if asked.transaction_id.len() > ID_MOST {
        return TOO_LONG.into_response();
    }
    let is_it =
        |one: &&products::Product| one.id == asked.package_code || one.name == asked.package_code;
    let Some(product) = products::top_ups().find(is_it) else {
        return NO_TOP_UP.into_response();
    };
    let id = asked.transaction_id;
    let option_id = product.id.clone();
    let added = after::extend(sandbox, id.clone(), unit, option_id, Repeats::Bought).await;
    let extension = match added {
        Ok(ExtendResult::Done(extension)) => extension,
        Ok(ExtendResult::Refused(refusal)) if refusal.code == code::OUT_OF_STOCK => {
            return SOLD_OUT.into_response();
        }
        Ok(ExtendResult::Refused(_)) => return NO_TOP_UP.into_response(),
        Ok(ExtendResult::Over) => return OVER.into_response(),
        Ok(ExtendResult::Unknown) => return NO_ESIM.into_response(),
        Err(error) => return failed(error),
    };
    let esim = match after::look(sandbox, Some(extension.unit)) {
        Ok(Some(esim)) => esim,
        Ok(None) => return NO_ESIM.into_response(),
        Err(error) => return failed(error),
    };
    let iccid = sandbox.ledger.profile(esim.unit, esim.bought_at).iccid;
    Json(done(&json!({
        "transactionId": id,
        "iccid": upstreams.iccids.of(esim.unit).unwrap_or(iccid),
        "expiredTime": esim.ends_at.format(CREATED).unwrap_or_default(),
        "totalVolume": esim.total,
        "totalDuration": days(&esim),
        "orderUsage": esim.used,
        "topUpEsimTranNo": format!("{}1", esim.unit),
    })))
    .into_response()
}

/// The days of the plan of an eSIM.
fn days(esim: &UnitInUse) -> i64 {
    (esim.ends_at - esim.bought_at.truncate_to_second()).whole_days()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct UsageQuery {
    esim_tran_no_list: Vec<String>,
}

/// Shows the data that eSIMs have used, as it was counted hours ago.
async fn usage(State(upstreams): State<Upstreams>, Signed(query): Signed<UsageQuery>) -> Response {
    let sandbox = &upstreams.sandbox;
    if query.esim_tran_no_list.len() > USAGES_MOST {
        return TOO_LONG.into_response();
    }
    let counted_at = clock::now() - COUNTED_AFTER;
    let mut listed = Vec::new();
    for number in &query.esim_tran_no_list {
        match after::look(sandbox, number.parse().ok()) {
            Ok(Some(esim)) => listed.push(json!({
                "esimTranNo": number,
                "dataUsage": esim.used,
                "totalData": esim.total,
                "lastUpdateTime": counted_at.format(CREATED).unwrap_or_default(),
            })),
            Ok(None) => {}
            Err(error) => return failed(error),
        }
    }
    Json(done(&json!({ "esimUsageList": listed }))).into_response()
}

fn time(text: Option<&String>) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text?, TIME).ok()
}

/// The package that is ordered: `packageCode` may also hold the slug.
fn by_slug(code: String) -> String {
    let known = products::all().iter().find(|one| one.name == code);
    known.map_or(code, |product| product.id.clone())
}

/// The units of a purchase whose eSIMs are made by now.
fn made<'a>(
    sandbox: &Sandbox,
    purchase: &'a LedgerPurchase,
    now: OffsetDateTime,
) -> impl Iterator<Item = UnitView<'a>> {
    let shown = units::shown(sandbox, purchase, now).into_iter();
    shown.filter(|unit| unit.status != UnitStatus::Pending)
}

/// A unit that is made. One that fails counts as cancelled.
fn allocated(upstreams: &Upstreams, purchase: &LedgerPurchase, shown: &UnitView) -> Value {
    let profile = upstreams.sandbox.ledger.profile(shown.unit, purchase.at);
    let is_ready = shown.status == UnitStatus::Ready;
    let esim = after::of(
        &upstreams.sandbox.ledger,
        purchase,
        shown.unit,
        script::of(shown.option_id).after,
        !is_ready,
    );
    let is_over = esim.ends_at <= clock::now();
    let scripted = SCRIPTED.get(shown.option_id).copied();
    let status = match (is_ready, esim.is_installed) {
        (false, _) => "CANCEL",
        (true, _) if esim.is_suspended => "SUSPENDED",
        (true, false) if is_over => "UNUSED_EXPIRED",
        (true, false) => scripted.unwrap_or("GOT_RESOURCE"),
        (true, true) if is_over => "USED_EXPIRED",
        (true, true) if esim.used >= esim.total => "USED_UP",
        (true, true) => "IN_USE",
    };
    let expires = if esim.is_installed {
        esim.ends_at.format(CREATED).unwrap_or_default()
    } else {
        format!("{}T00:00:00+0000", profile.expired_date)
    };
    let names_ids = option_id("package-ids").to_string() == shown.option_id;
    let product = products::all().iter().find(|one| one.id == shown.option_id);
    json!({
        "esimTranNo": shown.unit.to_string(),
        "orderNo": order_number(purchase),
        // A provider that does not do what it documents leaves it out.
        "transactionId": (!upstreams.lies()).then_some(&purchase.order_id),
        "iccid": upstreams.iccids.of(shown.unit).unwrap_or(profile.iccid),
        "ac": is_ready.then_some(profile.download_link),
        "qrCodeUrl": null,
        "smdpStatus": if esim.is_installed { "ENABLED" } else { "RELEASED" },
        "esimStatus": status,
        "totalVolume": esim.total,
        "orderUsage": esim.used,
        "totalDuration": days(&esim),
        "durationUnit": "DAY",
        "expiredTime": expires,
        "packageList": packages_of(purchase, shown.option_id, product, &esim, names_ids),
    })
}

/// The packages of an eSIM: the first one, and those that were added. The reference shows no ids in
/// them, and the types of one client do.
fn packages_of(
    purchase: &LedgerPurchase,
    ordered: &str,
    product: Option<&products::Product>,
    esim: &UnitInUse,
    names_ids: bool,
) -> Vec<Value> {
    let mut listed = vec![json!({
        "packageCode": ordered,
        "slug": product.map(|product| product.name),
        "duration": script::DAYS,
        "volume": after::ADDS,
        "createTime": purchase.at.format(CREATED).unwrap_or_default(),
    })];
    for extension in &esim.extensions {
        let product = products::all()
            .iter()
            .find(|one| one.id == extension.option_id);
        let mut package = json!({
            "packageCode": extension.option_id,
            "slug": product.map(|product| product.name),
            "duration": after::ADDS_DAYS.whole_days(),
            "volume": after::ADDS,
            "createTime": extension.at.format(CREATED).unwrap_or_default(),
        });
        if names_ids {
            package["transactionId"] = extension.extension_id.clone().into();
            package["esimTranNo"] = format!("{}1", extension.unit).into();
        }
        listed.push(package);
    }
    listed
}

async fn balance(State(upstreams): State<Upstreams>, _: Signed<Value>) -> Response {
    let balance = BALANCE.saturating_sub(PRICE * upstreams.paid_units());
    Json(done(&json!({ "balance": balance }))).into_response()
}

/// Lists all products in one answer. Products of the type TOPUP are listed if they are asked for.
async fn packages(Signed(asked): Signed<Value>) -> Response {
    let top_ups = asked["type"] == "TOPUP";
    // Those of one eSIM are of its region.
    let of_esim = asked["iccid"].is_string();
    let listed: Vec<Value> = products::all()
        .iter()
        .filter(|product| {
            product.kind != Kind::NeedsIdentity
                && (product.kind == Kind::TopUp) == top_ups
                && (!of_esim || products::top_ups().any(|one| one.id == product.id))
        })
        .map(|product| {
            let description = if product.kind == Kind::NeedsConfirmationCode {
                "The installation asks for a confirmation code"
            } else {
                product.name
            };
            // An unlimited product counts by the day here.
            let (data_type, megabytes) = match (product.megabytes, product.kind) {
                (None, _) => (4, 1024),
                (Some(megabytes), Kind::ByTheDay) => (2, megabytes),
                (Some(megabytes), _) => (1, megabytes),
            };
            json!({
                "packageCode": product.id,
                "slug": product.name,
                "name": product.name,
                "price": PRICE,
                "currencyCode": "USD",
                "volume": u64::from(megabytes) << 20,
                "dataType": data_type,
                "unusedValidTime": 180,
                "duration": product.days,
                "durationUnit": "DAY",
                "location": product.countries.join(","),
                "description": description,
                "activeType": 2,
                "smsStatus": 0,
                "favorite": false,
                "retailPrice": 2 * PRICE,
                "speed": "3G/4G/5G",
                "ipExport": "NL/FR",
                "supportTopUpType": 2,
                "fupPolicy": if data_type == 4 { "1 Mbps" } else { "" },
                "locationNetworkList": networks(product.countries),
            })
        })
        .collect();
    Json(done(&json!({ "packageList": listed }))).into_response()
}

/// The networks of a product, with the fields and words of the reference's examples (April 2026).
fn networks(countries: &[&str]) -> Value {
    let of_country = |code: &&str| {
        json!({
            "locationName": code,
            "locationLogo": format!("/img/flags/{}.png", code.to_lowercase()),
            "locationCode": code,
            "operatorList": [
                { "operatorName": format!("{code} Mobile"), "networkType": "5G" },
                { "operatorName": format!("{code} Telecom"), "networkType": "4G/5G" },
            ],
        })
    };
    countries.iter().map(of_country).collect()
}

/// The callback that says that profiles of a purchase are ready. It carries none.
pub fn made_event(purchase: &LedgerPurchase) -> CallbackMessage {
    event(
        purchase,
        "ORDER_STATUS",
        purchase.first_unit,
        &json!({ "orderStatus": "GOT_RESOURCE" }),
    )
}

/// The events about an eSIM that is used, of each type (reference of April 2026): its device loads,
/// installs and enables it, it is in use, and some of its data and time is gone. About one that
/// nobody uses there is only the test that is sent when the URL is set.
pub fn events_of_use(
    ledger: &Ledger,
    iccids: &Iccids,
    purchase: &LedgerPurchase,
    unit: UnitNumber,
    option_id: &str,
) -> Vec<CallbackMessage> {
    let script = script::of(option_id).after;
    if !script.is_installed() {
        let test = json!({ "orderNo": "1234567890", "orderStatus": "Test" });
        return vec![event(purchase, "CHECK_HEALTH", unit, &test)];
    }
    let esim = after::of(ledger, purchase, unit, script, false);
    let profile = ledger.profile(unit, purchase.at);
    let ids = json!({
        "esimTranNo": unit.to_string(),
        "iccid": iccids.of(unit).unwrap_or(profile.iccid),
    });
    let loading = |state| {
        json!({
            "eid": format!("890490{unit:026}"),
            "esimStatus": "GOT_RESOURCE",
            "smdpStatus": state,
            "notifyStatus": "Executed-Success",
        })
    };
    let remain = esim.total - esim.used;
    let in_use = json!({
        "esimStatus": "IN_USE",
        "smdpStatus": "ENABLED",
        "totalVolume": esim.total,
        "orderUsage": esim.used,
        "remainVolume": remain,
    });
    let data = json!({
        "totalVolume": esim.total,
        "orderUsage": esim.used,
        "remain": remain,
        "remainThreshold": 0.7,
    });
    let validity = json!({
        "remain": 1,
        "totalDuration": 30,
        "durationUnit": "DAY",
        "expiredTime": esim.ends_at.format(CREATED).unwrap_or_default(),
    });
    let events = [
        ("SMDP_EVENT", loading("DOWNLOAD")),
        ("SMDP_EVENT", loading("INSTALLATION")),
        ("SMDP_EVENT", loading("ENABLED")),
        ("ESIM_STATUS", in_use),
        ("DATA_USAGE", data),
        ("VALIDITY_USAGE", validity),
    ];
    events
        .into_iter()
        .zip(1..)
        .map(|((kind, more), number)| {
            event(
                purchase,
                kind,
                unit * 10 + number,
                &with(ids.clone(), &more),
            )
        })
        .collect()
}

/// An object with the fields of another one.
fn with(mut object: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().into_iter().flatten() {
        object[name] = value.clone();
    }
    object
}

fn event(purchase: &LedgerPurchase, kind: &str, number: u64, more: &Value) -> CallbackMessage {
    let ids = json!({ "orderNo": order_number(purchase), "transactionId": purchase.order_id });
    CallbackMessage::of(&json!({
        "notifyType": kind,
        "notifyId": format!("N{number}"),
        "eventGenerateTime": purchase.at.format(CREATED).unwrap_or_default(),
        "content": with(ids, more),
    }))
}
#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000;

    /// The code of the error for a call with these headers.
    fn refused(change: impl FnOnce(&mut HeaderMap)) -> Option<&'static str> {
        let ours = SandboxCredentials {
            access_key: "AK".into(),
            secret: SecretKey::from_base64("c2VjcmV0LWtleQ==").unwrap(),
        };
        let secret = SecretKey::from_bytes(b"c2VjcmV0LWtleQ==".to_vec()).unwrap();
        let timestamp = NOW.to_string();
        let signature = signing::esim_access::sign(&secret, &timestamp, "1", "AK", b"{}");
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("rt-timestamp", timestamp),
            ("rt-requestid", "1".to_owned()),
            ("rt-accesscode", "AK".to_owned()),
            ("rt-signature", signature),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        change(&mut headers);
        check(&headers, b"{}", &ours, NOW)
            .err()
            .map(|failure| failure.0)
    }

    #[test]
    fn only_a_fresh_signature_over_this_request_passes() {
        assert_eq!(refused(|_| {}), None);
        let with = |name: &'static str, value: &str| {
            refused(|headers| drop(headers.insert(name, value.parse().unwrap())))
        };
        assert_eq!(with("rt-requestid", "2"), Some("101003"));
        assert_eq!(with("rt-accesscode", "other"), Some("101003"));
        assert_eq!(
            with("rt-timestamp", &(NOW - 300_001).to_string()),
            Some("101001")
        );
        assert_eq!(with("rt-timestamp", "soon"), Some("101001"));
        for name in [
            "rt-timestamp",
            "rt-requestid",
            "rt-accesscode",
            "rt-signature",
        ] {
            assert_eq!(
                refused(|headers| drop(headers.remove(name))),
                Some("000101"),
                "{name}"
            );
        }
    }
}

//! The Airalo Partner API, as this program serves it. It sells from the same ledger, by the same
//! scripts, as the other protocols: a `package_id` is the id of an option, and the description of
//! an order is the id of the order.
//!
//! The protocol knows no repeated order: whoever sends one twice buys twice, whatever the settings
//! of the sandbox say. What it cannot express is left out; docs/sandbox.md says what that is.
//!
//! The forms are those of the provider's public documents (prints of 2025, pages collected in
//! September 2026), whatever the provisioner expects, so that a mistake of the provisioner shows up
//! in the tests: all packages in one answer, a second page that is an object, one activation code
//! for all eSIMs of the test mode, and prices for consumers beside those that are charged. `PUT
//! /airalo/discount` with a percentage lets the account pay by `discount_pricing` from then on.

use std::collections::HashMap;

use axum::{
    Json, Router,
    body::Bytes,
    extract::{FromRequestParts, Path, RawQuery, State, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use rand::RngExt;
use runtime::{clock, lock};
use serde_json::{Value, json};
use signing::{SecretKey, airalo};
use time::{
    Date, OffsetDateTime, UtcOffset, format_description::StaticFormatDescription,
    macros::format_description,
};
use url::form_urlencoded;

use sandbox::{
    Sandbox,
    after::{self, ExtendResult},
    channel::CallbackMessage,
    garble::{self, AnswerShape},
    ledger::{Ledger, Repeats},
    profile::{self, UnitNumber},
    protocol::{Product, UnitStatus, code},
    purchase::{LedgerExtension, LedgerPurchase},
    sale::{self, Sale},
    script::{self, option_id},
    units,
};

use crate::{
    form,
    products::{self, Kind},
    state::{Pricing, Upstreams, bearer},
};

pub const ORDERS: &str = "/v2/orders";
pub const TOP_UPS: &str = "/v2/orders/topups";

const DAY: StaticFormatDescription = format_description!("[year]-[month]-[day]");
const CREATED: StaticFormatDescription =
    format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
/// The most units of an order.
const MOST: u32 = 50;
/// The largest page of a list.
const PAGE_MOST: usize = 100;
/// The days for which a package is valid.
const VALIDITY: u32 = 30;
/// What each unit costs us, in dollars, unless we pay by a discount.
const NET_PRICE: f64 = 4.5;
/// The same as in the catalogue.
pub const PRICE_TEXT: &str = "4.50";
/// The price of each unit for consumers, in dollars.
const RETAIL_PRICE: f64 = 9.0;
/// The places of a page, unless the caller says how many.
const PLACES: usize = 25;
/// The packages of a place that only makes the list long.
const FILLERS: usize = 16;
/// An eSIM of the test mode has this code, whichever it is.
const TEST_SMDP: &str = "lpa.airalo.com";
const TEST_CODE: &str = "TEST";
/// The packages by which the sandbox mode shows refusals, with their codes and reasons (pages on
/// the sandbox mode and on errors, September 2026).
const TEST_PACKAGES: [(&str, u32, &str); 5] = [
    (
        "test-insufficient-balance-7days-1gb",
        11,
        "Insufficient Airalo Credit: 0",
    ),
    (
        "test-maintenance-mode-7days-1gb",
        13,
        "The requested operator is currently undergoing maintenance. Please try again later.",
    ),
    (
        "test-disabled-top-up-7days-1gb",
        23,
        "The requested top-up has been disabled by the operator.",
    ),
    (
        "test-not-enough-7days-1gb",
        33,
        "Insufficient stock of eSIMs remaining: 0. Please try your request again later.",
    ),
    (
        "test-out-of-stock-7days-1gb",
        34,
        "The requested eSIM package is invalid or it is currently out of stock.",
    ),
];
/// What our account held before its first order.
const BALANCE: f64 = 100_000.0;
const MB: u64 = 1024 * 1024;
const TOKEN_LASTS: u64 = 24 * 60 * 60;

const SHAPE: AnswerShape = AnswerShape {
    units: "/data/sims",
    id: "iccid",
    date: "created_at",
    message: "/reason",
};

pub fn routes() -> Router<Upstreams> {
    Router::new()
        .route("/v2/token", post(give_token))
        .route(ORDERS, post(order).get(list))
        .route("/v2/orders/{order_id}", get(show))
        .route(TOP_UPS, post(top_up))
        .route("/v2/sims/{iccid}/topups", get(top_ups))
        .route("/v2/sims/{iccid}/packages", get(sim_packages))
        .route("/v2/sims/{iccid}/usage", get(usage))
        .route("/v2/refund", post(claim))
        .route("/claims/{iccid}", put(decide_claim).get(show_claim))
        .route("/v2/balance", get(balance))
        .route("/v2/packages", get(packages))
        .route("/airalo/discount", put(set_discount))
}

/// From now on our account pays by `discount_pricing`, with this percentage.
async fn set_discount(State(upstreams): State<Upstreams>, Json(percentage): Json<f64>) {
    *lock(&upstreams.airalo_pricing) = Pricing::Discount(percentage);
}

impl Pricing {
    fn of(upstreams: &Upstreams) -> Self {
        *lock(&upstreams.airalo_pricing)
    }

    fn model(self) -> &'static str {
        match self {
            Self::Net => "net_pricing",
            Self::Discount(_) => "discount_pricing",
        }
    }

    /// What a package or an order names beside its price for consumers.
    fn net_price(self, price: f64) -> Option<f64> {
        matches!(self, Self::Net).then_some(price)
    }

    /// How the list of packages begins.
    fn shown(self) -> Value {
        let percentage = match self {
            Self::Net => 0.0,
            Self::Discount(percentage) => percentage,
        };
        json!({ "model": self.model(), "discount_percentage": percentage })
    }

    /// What a unit costs us.
    fn cost(self) -> f64 {
        match self {
            Self::Net => NET_PRICE,
            Self::Discount(percentage) => RETAIL_PRICE * (100.0 - percentage) / 100.0,
        }
    }
}

/// A new token, which the process accepts until it ends.
pub fn token() -> String {
    let mut bytes = [0; 24];
    rand::rng().fill(&mut bytes);
    hex::encode(bytes)
}

/// The body of a refusal with a code.
fn refusal(code: u32, reason: &str) -> Value {
    json!({ "code": code, "reason": reason })
}

/// Whether the option is that of this name, which says how its eSIMs behave in this protocol:
/// `test-mode`, `recycled`, `unlimited`, `partially-refunded` or `odd-state`.
fn is_named(option: &str, name: &str) -> bool {
    option_id(name).to_string() == option
}

/// The answer to a request with a field that is not allowed.
fn invalid(field: &str, fault: &str) -> Response {
    let body =
        json!({ "data": { field: fault }, "meta": { "message": "the parameter is invalid" } });
    (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response()
}

fn unprocessable(response: Response) -> Response {
    let mut response = response;
    *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    response
}

fn data(value: &Value) -> Value {
    json!({ "data": value, "meta": { "message": "success" } })
}

/// Why a request is not carried out, whatever it asks for.
enum Denied {
    Unauthorized,
    NoForm,
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        match self {
            Self::Unauthorized => {
                let meta = json!({ "message": "This action is unauthorized." });
                let body = json!({ "data": [], "meta": meta });
                (StatusCode::UNAUTHORIZED, Json(body)).into_response()
            }
            Self::NoForm => invalid("form", "The request is not a form."),
        }
    }
}

/// A request with our token.
struct WithToken;

impl FromRequestParts<Upstreams> for WithToken {
    type Rejection = Denied;

    async fn from_request_parts(parts: &mut Parts, upstreams: &Upstreams) -> Result<Self, Denied> {
        if bearer(&parts.headers) == Some(&*upstreams.token) {
            Ok(Self)
        } else {
            Err(Denied::Unauthorized)
        }
    }
}

/// Reads a form.
fn read(
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<HashMap<String, String>, Denied> {
    let body = body.map_err(|_| Denied::NoForm)?;
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let form = content_type.and_then(|content_type| form::fields(content_type, &body));
    form.ok_or(Denied::NoForm)
}

async fn give_token(
    State(upstreams): State<Upstreams>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let sandbox = &upstreams.sandbox;
    let form = match read(&headers, body) {
        Ok(form) => form,
        Err(denied) => return denied.into_response(),
    };
    let field = |name: &str| form.get(name).map(String::as_str);
    let secret = secret(sandbox);
    if field("grant_type") != Some("client_credentials")
        || field("client_id") != Some(&sandbox.credentials.access_key)
        || field("client_secret") != Some(&secret)
    {
        return invalid("client_id", "Client authentication failed");
    }
    Json(data(&json!({
        "token_type": "Bearer",
        "expires_in": TOKEN_LASTS,
        "access_token": &*upstreams.token,
    })))
    .into_response()
}

async fn order(
    State(upstreams): State<Upstreams>,
    _: WithToken,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let form = match read(&headers, body) {
        Ok(form) => form,
        Err(denied) => return denied.into_response(),
    };
    let field = |name: &str| form.get(name).filter(|value| !value.is_empty());
    let Some(package_id) = field("package_id") else {
        return invalid("package_id", "The package id field is required.");
    };
    let quantity = field("quantity").and_then(|quantity| quantity.parse().ok());
    let Some(qty) = quantity.filter(|quantity| (1..=MOST).contains(quantity)) else {
        return invalid("quantity", "The quantity may not be greater than 50.");
    };
    let sandbox = &upstreams.sandbox;
    // A provider that does not do what it documents sells these, too.
    let test = TEST_PACKAGES.iter().find(|(name, ..)| name == package_id);
    if let Some((_, code, reason)) = test.filter(|_| !upstreams.lies()) {
        return unprocessable(Json(refusal(*code, reason)).into_response());
    }
    let products = vec![Product {
        option_id: package_id.clone(),
        qty,
    }];
    let garble = sandbox.garble(products.iter());
    let description = field("description").cloned().unwrap_or_default();
    let repeats = Repeats::Bought;
    let channel = upstreams.airalo.as_ref();
    let sold = sale::sell(sandbox, description, products, repeats, channel).await;
    match sold {
        Ok(Sale::Sold(purchase)) => {
            let shown = shown(&upstreams, &purchase, clock::now());
            garble::garbled(garble, &SHAPE, data(&shown))
        }
        Ok(Sale::Refused(refused)) => {
            let body = if refused.code == code::OUT_OF_STOCK {
                refusal(
                    33,
                    "Insufficient stock of eSIMs remaining: 0. Please try again later.",
                )
            } else {
                refusal(34, "The requested eSIM package is invalid or out of stock.")
            };
            unprocessable(garble::garbled(garble, &SHAPE, body))
        }
        Err(error) => error.into_response(),
    }
}

/// Shows an order. Airalo's own id of it is the number of its first unit.
async fn show(
    State(upstreams): State<Upstreams>,
    _: WithToken,
    Path(order_id): Path<String>,
) -> Response {
    let sandbox = &upstreams.sandbox;
    let first = order_id.parse().ok();
    let Some(purchase) = first.and_then(|unit| sandbox.ledger.beginning_with(unit)) else {
        let body = json!({ "data": [], "meta": { "message": "Order not found" } });
        return (StatusCode::NOT_FOUND, Json(body)).into_response();
    };
    let garble = sandbox.garble(purchase.products.iter());
    let shown = shown(&upstreams, &purchase, clock::now());
    garble::garbled(garble, &SHAPE, data(&shown))
}

/// Lists the orders whose description contains a text, newest first.
async fn list(
    State(upstreams): State<Upstreams>,
    _: WithToken,
    RawQuery(query): RawQuery,
) -> Response {
    let sandbox = &upstreams.sandbox;
    let Some(asked) = Asked::read(query.as_deref().unwrap_or_default(), 25) else {
        return invalid("limit", "The limit must be an integer.");
    };
    let days = match asked
        .parameters
        .get("filter[created_at]")
        .map(|text| days(text))
    {
        Some(Some(days)) => Some(days),
        None => None,
        Some(None) => return invalid("filter", "The created at filter is invalid."),
    };
    let now = clock::now();
    let text = asked.parameters.get("filter[description]");
    let iccid = asked.parameters.get("filter[iccid]");
    let unit = iccid.map(|iccid| profile::unit(iccid));
    let is_wanted = |description: &str, at: OffsetDateTime| {
        let day = at.to_offset(UtcOffset::UTC).date();
        text.is_none_or(|text| description.contains(text.as_str()))
            && days.is_none_or(|(first, last)| (first..=last).contains(&day))
    };
    let mut purchases = sandbox
        .ledger
        .purchases(|purchase| is_wanted(&purchase.order_id, purchase.at));
    purchases.retain(|purchase| {
        let mut units = purchase.units();
        let has = unit.is_none_or(|wanted| units.any(|(unit, _)| Some(unit) == wanted));
        has && sandbox.shows(purchase)
    });
    let orders = purchases.iter().map(|purchase| Entry::Order(purchase));
    let top_ups = sold_top_ups(sandbox).into_iter().filter(|top_up| {
        is_wanted(&top_up.description(&upstreams), top_up.extension.at)
            && unit.is_none_or(|wanted| Some(top_up.extension.unit) == wanted)
            && sandbox.shows_since(top_up.extension.at)
    });
    let mut entries: Vec<Entry> = orders.chain(top_ups.map(Entry::TopUp)).collect();
    entries.sort_by_key(Entry::at);
    // Only the answer to an order names what it costs us.
    asked.page(entries.iter().rev(), |entry| {
        let mut listed = match entry {
            Entry::Order(purchase) => shown(&upstreams, purchase, now),
            Entry::TopUp(top_up) => top_up.shown(&upstreams),
        };
        listed["price"] = json!(RETAIL_PRICE.to_string());
        listed["validity"] = json!(VALIDITY.to_string());
        if let Some(fields) = listed.as_object_mut() {
            fields.remove("net_price");
        }
        listed
    })
}

/// An entry of the list of orders.
enum Entry<'a> {
    Order(&'a LedgerPurchase),
    TopUp(SoldTopUp),
}

impl Entry<'_> {
    fn at(&self) -> OffsetDateTime {
        match self {
            Self::Order(purchase) => purchase.at,
            Self::TopUp(top_up) => top_up.extension.at,
        }
    }
}

/// An order of the type `topup`.
struct SoldTopUp {
    /// Airalo's own id of it.
    id: u64,
    extension: LedgerExtension,
}

/// All top-ups, oldest first.
fn sold_top_ups(sandbox: &Sandbox) -> Vec<SoldTopUp> {
    let all = sandbox.ledger.extensions(|_| true).into_iter();
    // The ids of other orders are the numbers of units, which have many more digits.
    (174..)
        .zip(all)
        .map(|(id, extension)| SoldTopUp { id, extension })
        .collect()
}

impl SoldTopUp {
    /// The caller's, if it sent one. The example of the documents has another one; it is not known
    /// whether that is one of a request without a description.
    fn description(&self, upstreams: &Upstreams) -> String {
        let is_lost = upstreams.lies() || self.extension.extension_id.is_empty();
        if is_lost {
            format!("Topup ({})", self.extension.unit)
        } else {
            self.extension.extension_id.clone()
        }
    }

    /// The order, after the example of its documents (January 2025), where numbers are texts.
    fn shown(&self, upstreams: &Upstreams) -> Value {
        let at = self.extension.at.to_offset(UtcOffset::UTC);
        json!({
            "id": self.id,
            "code": format!("T-{}", self.id),
            "package_id": self.extension.option_id,
            "quantity": "1",
            "type": "topup",
            "description": self.description(upstreams),
            "esim_type": "Prepaid",
            "validity": VALIDITY,
            "package": "Sandbox 5 GB - 30 Days",
            "data": "5 GB",
            "price": RETAIL_PRICE,
            "net_price": Pricing::of(upstreams).net_price(NET_PRICE),
            "currency": "USD",
            "created_at": at.format(CREATED).unwrap_or_default(),
            "sims": [],
            "status": { "name": "Completed", "slug": "completed" },
        })
    }
}

/// The answers to calls about an eSIM that cannot be topped up.
fn disabled() -> Response {
    let reason = "The requested top-up has been disabled by the operator.";
    unprocessable(Json(refusal(23, reason)).into_response())
}

fn recycled() -> Response {
    unprocessable(Json(refusal(73, "The SIM is recycled.")).into_response())
}

fn no_sim() -> Response {
    let body = json!({ "data": [], "meta": { "message": "Sim not found" } });
    (StatusCode::NOT_FOUND, Json(body)).into_response()
}

/// Whether the eSIM is recycled, as that of the option of this name.
fn is_recycled(sandbox: &Sandbox, unit: UnitNumber) -> bool {
    let purchase = sandbox.ledger.containing(unit);
    purchase.is_some_and(|one| is_named(&one.products[0].option_id, "recycled"))
}

/// Adds a package to an eSIM. Each request adds again.
async fn top_up(
    State(upstreams): State<Upstreams>,
    _: WithToken,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let form = match read(&headers, body) {
        Ok(form) => form,
        Err(denied) => return denied.into_response(),
    };
    let field = |name: &str| form.get(name).filter(|value| !value.is_empty());
    let Some(package_id) = field("package_id") else {
        return invalid("package_id", "The package id field is required.");
    };
    let Some(unit) = field("iccid").and_then(|iccid| profile::unit(iccid)) else {
        return invalid("iccid", "The iccid is invalid.");
    };
    let sandbox = &upstreams.sandbox;
    if is_recycled(sandbox, unit) {
        return recycled();
    }
    let description = field("description").cloned().unwrap_or_default();
    let repeats = Repeats::Bought;
    let package_id = package_id.clone();
    let added = after::extend(sandbox, description, Some(unit), package_id, repeats).await;
    match added {
        Ok(ExtendResult::Done(extension)) => {
            let mut sold = sold_top_ups(sandbox).into_iter().rev();
            let sold = sold.find(|one| one.extension == extension);
            Json(data(&sold.map_or(Value::Null, |one| one.shown(&upstreams)))).into_response()
        }
        Ok(ExtendResult::Refused(refused)) if refused.code == code::OUT_OF_STOCK => {
            let reason = "Insufficient stock of eSIMs remaining: 0.";
            unprocessable(Json(refusal(33, reason)).into_response())
        }
        Ok(ExtendResult::Refused(_) | ExtendResult::Over) => disabled(),
        Ok(ExtendResult::Unknown) => invalid("iccid", "The iccid is invalid."),
        Err(error) => error.into_response(),
    }
}

/// Lists what can be added to an eSIM now.
async fn top_ups(
    State(upstreams): State<Upstreams>,
    _: WithToken,
    Path(iccid): Path<String>,
) -> Response {
    let sandbox = &upstreams.sandbox;
    let esim = match after::look(sandbox, profile::unit(&iccid)) {
        Ok(Some(esim)) => esim,
        Ok(None) => return no_sim(),
        Err(error) => return error.into_response(),
    };
    if is_recycled(sandbox, esim.unit) {
        return recycled();
    }
    let pricing = Pricing::of(&upstreams);
    let is_over = esim.is_canceled || esim.ends_at <= clock::now();
    let listed = products::top_ups().filter(|_| !is_over);
    let listed: Vec<Value> = listed.map(|product| package(product, pricing)).collect();
    let mut answer = data(&Value::Array(listed));
    answer["pricing"] = pricing.shown();
    Json(answer).into_response()
}

/// Lists the packages of an eSIM: the first one, and those that were added.
async fn sim_packages(
    State(sandbox): State<Sandbox>,
    _: WithToken,
    Path(iccid): Path<String>,
) -> Response {
    let esim = match after::look(&sandbox, profile::unit(&iccid)) {
        Ok(Some(esim)) => esim,
        Ok(None) => return no_sim(),
        Err(error) => return error.into_response(),
    };
    let entry = |id: u64, package_id: &str, kind: &str, status: &str| {
        json!({
            "id": id,
            "remaining": after::ADDS / MB,
            "activated_at": null,
            "expired_at": null,
            "finished_at": null,
            "status": status,
            "package": { "id": package_id, "type": kind, "price": RETAIL_PRICE, "amount": after::ADDS / MB },
        })
    };
    let status = if esim.is_installed {
        "ACTIVE"
    } else {
        "NOT_ACTIVE"
    };
    let purchase = sandbox.ledger.containing(esim.unit);
    let first = purchase.map(|one| entry(esim.unit, &one.products[0].option_id, "sim", status));
    let now = clock::now();
    let added = sold_top_ups(&sandbox)
        .into_iter()
        .filter(|one| one.extension.unit == esim.unit && one.extension.at <= now);
    let added = added.map(|one| entry(one.id, &one.extension.option_id, "topup", "NOT_ACTIVE"));
    let listed: Vec<Value> = first.into_iter().chain(added).collect();
    Json(data(&Value::Array(listed))).into_response()
}

/// What a list was asked for.
struct Asked {
    parameters: HashMap<String, String>,
    limit: usize,
    page: usize,
}

impl Asked {
    /// `None` if a number is none.
    fn read(query: &str, limit: usize) -> Option<Self> {
        let parameters: HashMap<String, String> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        let number = |name: &str, default: usize| match parameters.get(name) {
            Some(text) => text.parse().ok().filter(|number| *number > 0),
            None => Some(default),
        };
        let limit = number("limit", limit)?;
        let page = number("page", 1)?;
        Some(Self {
            limit: limit.min(PAGE_MOST),
            page,
            parameters,
        })
    }

    /// The page of these entries, each of which is shown only if it is on the page.
    fn page<T>(
        &self,
        entries: impl ExactSizeIterator<Item = T>,
        show: impl Fn(T) -> Value,
    ) -> Response {
        Json(self.page_of(entries, show)).into_response()
    }

    fn page_of<T>(
        &self,
        entries: impl ExactSizeIterator<Item = T>,
        show: impl Fn(T) -> Value,
    ) -> Value {
        let total = entries.len();
        let skipped = (self.page - 1).saturating_mul(self.limit);
        let listed = entries.skip(skipped).take(self.limit);
        let listed: Vec<Value> = listed.map(show).collect();
        json!({
            "data": listed,
            "meta": {
                "message": "success",
                "current_page": self.page,
                "last_page": total.div_ceil(self.limit).max(1),
                "per_page": self.limit.to_string(),
                "total": total,
            },
        })
    }
}

/// The first and the last day of a filter such as `2026-11-20 - 2026-11-24`.
fn days(text: &str) -> Option<(Date, Date)> {
    let (first, last) = text.split_once(" - ")?;
    Some((Date::parse(first, DAY).ok()?, Date::parse(last, DAY).ok()?))
}

/// Lists the products: places, each with its operator and the operator's packages.
async fn packages(
    State(upstreams): State<Upstreams>,
    _: WithToken,
    RawQuery(query): RawQuery,
) -> Response {
    let asked = query.as_deref().unwrap_or_default();
    let has_limit = asked.contains("limit=");
    let Some(asked) = Asked::read(asked, PLACES) else {
        return invalid("limit", "The limit must be an integer.");
    };
    // Places come in the order of their first product.
    let mut places: Vec<(&[&str], Vec<&products::Product>)> = Vec::new();
    let all = products::all();
    for product in all.iter().filter(|one| one.kind != Kind::ByTheDay) {
        match places
            .iter_mut()
            .find(|(countries, _)| *countries == product.countries)
        {
            Some((_, products)) => products.push(product),
            None => places.push((product.countries, vec![product])),
        }
    }
    let pricing = Pricing::of(&upstreams);
    let places = places
        .iter()
        .map(|(countries, products)| place(countries, products, pricing));
    let fillers = (0..upstreams.airalo_places).map(|number| filler(number, pricing));
    let places: Vec<Value> = places.chain(fillers).collect();
    // Without a limit the answer has all places.
    let limit = if has_limit { asked.limit } else { places.len() };
    let asked = Asked { limit, ..asked };
    let mut page = asked.page_of(places.into_iter(), |place| place);
    page["pricing"] = pricing.shown();
    if asked.page > 1 {
        page["data"] = by_index(&page["data"], asked.limit * (asked.page - 1));
    }
    Json(page).into_response()
}

/// A list as the documents show it from the second page on: an object whose keys are the indexes.
fn by_index(list: &Value, first: usize) -> Value {
    let listed = list.as_array().into_iter().flatten().enumerate();
    let listed = listed.map(|(index, one)| ((first + index).to_string(), one.clone()));
    Value::Object(listed.collect())
}

/// A place whose packages have the size of real ones and are never ordered.
fn filler(number: usize, pricing: Pricing) -> Value {
    let networks: Vec<Value> = (0..24)
        .map(|n| json!({ "name": format!("Network {n}"), "types": ["4G", "5G"] }))
        .collect();
    let instructions = "Open the settings, choose to add an eSIM, scan the code. ".repeat(30);
    let packages: Vec<Value> = (0..FILLERS)
        .map(|n| {
            json!({
                "id": format!("filler-{number}-{n}"),
                "type": "sim",
                "price": 26.0,
                "amount": 20_480,
                "day": 30,
                "is_unlimited": false,
                "title": "20 GB - 30 Days",
                "data": "20 GB",
                "short_info": "This eSIM doesn't come with a phone number.",
                "qr_installation": instructions,
                "manual_installation": instructions,
                "is_fair_usage_policy": false,
                "fair_usage_policy": null,
                "voice": null,
                "text": null,
                "net_price": pricing.net_price(20.8),
                "prices": {
                    "net_price": { "USD": 20.8, "EUR": 18.2, "JPY": 3120 },
                    "recommended_retail_price": { "USD": 26.0, "EUR": 22.8, "JPY": 3900 },
                },
            })
        })
        .collect();
    json!({
        "slug": format!("place-{number}"),
        "country_code": "US",
        "title": format!("Place {number}"),
        "image": { "width": 132, "height": 99, "url": "https://cdn.example.com/flag.png" },
        "operators": [{
            "id": number,
            "title": "Filler",
            "type": "local",
            "is_kyc_verify": false,
            "countries": [{ "country_code": "US", "title": "United States" }],
            "coverages": [{ "name": "US", "code": "US", "networks": networks }],
            "install_window_days": null,
            "topup_grace_window_days": null,
            "packages": packages,
        }],
    })
}

fn place(countries: &[&str], products: &[&products::Product], pricing: Pricing) -> Value {
    let is_local = countries.len() == 1;
    let any = |kind| products.iter().any(|product| product.kind == kind);
    let listed = countries
        .iter()
        .map(|code| json!({ "country_code": code, "title": code }));
    let packages = products.iter().map(|product| package(product, pricing));
    let packages: Vec<Value> = packages.collect();
    // With the fields and words of its documents (September 2026).
    let coverage = |code: &&str| {
        json!({ "name": code, "code": code, "networks": [
            { "name": format!("{code} Mobile"), "types": ["4G", "5G"] },
            { "name": format!("{code} Telecom"), "types": ["LTE"] },
        ] })
    };
    let coverages: Vec<Value> = countries.iter().map(coverage).collect();
    let info = if any(Kind::NeedsConfirmationCode) {
        "The installation asks for a confirmation code."
    } else {
        "Data-only eSIM."
    };
    json!({
        "slug": countries.join("-").to_lowercase(),
        "country_code": if is_local { countries[0] } else { "" },
        "title": countries.join(", "),
        "operators": [{
            "id": 1,
            "type": if is_local { "local" } else { "global" },
            "is_prepaid": false,
            "title": "Sandbox",
            "esim_type": "Prepaid",
            "warning": null,
            "is_roaming": true,
            "info": [info],
            "plan_type": "data",
            "activation_policy": "first-usage",
            "is_kyc_verify": any(Kind::NeedsIdentity),
            "rechargeability": true,
            "other_info": null,
            "countries": listed.collect::<Vec<_>>(),
            "image": { "width": 1035, "height": 653, "url": "https://cdn.example.com/operator.png" },
            "apn": {
                "ios": { "apn_type": "automatic", "apn_value": null },
                "android": { "apn_type": "manual", "apn_value": "internet" },
            },
            "coverages": coverages,
            "install_window_days": is_local.then_some(1825),
            "topup_grace_window_days": null,
            "packages": packages,
        }],
    })
}

fn package(product: &products::Product, pricing: Pricing) -> Value {
    json!({
        "id": product.id,
        "type": if product.kind == Kind::TopUp { "topup" } else { "sim" },
        "price": RETAIL_PRICE,
        "amount": product.megabytes.unwrap_or_default(),
        "day": product.days,
        "is_unlimited": product.megabytes.is_none(),
        "title": product.name,
        "data": product.megabytes.map_or("Unlimited".to_owned(), |data| format!("{data} MB")),
        "short_info": null,
        "is_fair_usage_policy": product.megabytes.is_none(),
        "fair_usage_policy": product.megabytes.is_none().then_some("1 Mbps after 3 GB a day"),
        "voice": null,
        "text": null,
        "net_price": pricing.net_price(NET_PRICE),
    })
}

/// An order with its eSIMs. One that is not ready, or that fails, is listed without its profile,
/// because the protocol has no state of an eSIM.
fn shown(upstreams: &Upstreams, purchase: &LedgerPurchase, now: OffsetDateTime) -> Value {
    let sandbox = &upstreams.sandbox;
    let pricing = Pricing::of(upstreams);
    let product = &purchase.products[0];
    let is_test = is_named(&product.option_id, "test-mode");
    let status = if is_named(&product.option_id, "partially-refunded") {
        json!({ "name": "Partially refunded", "slug": "partially_refunded" })
    } else if is_named(&product.option_id, "odd-state") {
        json!({ "name": "Under review", "slug": "under_review" })
    } else {
        let slug = slug(upstreams, purchase);
        json!({ "name": slug, "slug": slug })
    };
    let created = purchase.at.to_offset(UtcOffset::UTC).format(CREATED);
    let sims: Vec<Value> = units::shown(sandbox, purchase, now)
        .into_iter()
        .map(|shown| {
            // An eSIM whose money was credited is still listed by its ICCID.
            let has_profile = matches!(shown.status, UnitStatus::Ready | UnitStatus::Canceled);
            let profile = has_profile.then(|| sandbox.ledger.profile(shown.unit, purchase.at));
            let profile = profile.as_ref();
            if is_test {
                return json!({
                    "id": shown.unit,
                    "iccid": profile.map(|profile| &profile.iccid),
                    "lpa": TEST_SMDP,
                    "matching_id": TEST_CODE,
                    "qrcode": format!("LPA:1${TEST_SMDP}${TEST_CODE}"),
                    "qrcode_url": null,
                    "confirmation_code": null,
                });
            }
            let code = profile.map(|profile| &*profile.activate_code);
            // A provider that does not do what it documents sells one code again and again.
            let code = code.map(|code| if upstreams.lies() { "SOLD-AGAIN" } else { code });
            json!({
                "id": shown.unit,
                "iccid": profile.map(|profile| &profile.iccid),
                "lpa": profile.map(|profile| profile.smdp),
                "matching_id": code,
                "qrcode": profile.map(|profile| &profile.download_link),
                "qrcode_url": null,
                "confirmation_code": null,
            })
        })
        .collect();
    json!({
        "id": purchase.first_unit,
        "code": format!("S-{}", purchase.first_unit),
        "package_id": product.option_id,
        "quantity": purchase.size(),
        "type": "sim",
        "description": purchase.order_id,
        "validity": VALIDITY,
        "price": RETAIL_PRICE,
        "net_price": pricing.net_price(NET_PRICE),
        "pricing_model": pricing.model(),
        "currency": "USD",
        "created_at": created.unwrap_or_default(),
        "sims": sims,
        "status": status,
    })
}

/// The state of an order by what was credited of it.
fn slug(upstreams: &Upstreams, purchase: &LedgerPurchase) -> String {
    let units: Vec<UnitNumber> = purchase.units().map(|(unit, _)| unit).collect();
    let ledger = &upstreams.sandbox.ledger;
    let credited = units
        .iter()
        .filter(|unit| ledger.is_canceled(**unit))
        .count();
    if credited == units.len() {
        return "refunded".to_owned();
    }
    if credited > 0 {
        return "partially_refunded".to_owned();
    }
    let mut claims = units.iter().filter_map(|unit| upstreams.claim(*unit));
    let said = claims.find_map(|claim| claim.state);
    said.unwrap_or_else(|| "completed".to_owned())
}

/// The reasons of a claim (page on the request for a refund, September 2026).
const REASONS: [&str; 23] = [
    "INSTALLATION_FAILURE",
    "NO_COVERAGE",
    "APN_FAILURE",
    "TRIP_CANCELLATION",
    "INTERMITTENT_CONNECTION",
    "BLOCKED_NETWORK",
    "CHANGE_OF_PLAN",
    "DELETED_ESIM",
    "EARLY_EXPIRY",
    "HOTSPOT_NOT_WORKING",
    "IMSI_CHANGE",
    "INCOMPATIBLE_DEVICE",
    "LOCKED_DEVICE",
    "NO_VOICE_TEXT_SERVICES",
    "OVERCHARGED",
    "SLOW_SPEED",
    "TOP_UP_PACKAGE_FAILURE",
    "UNKNOWN_CHARGES",
    "WRONG_PURCHASE",
    "UNABLE_TO_ACCESS_APPS",
    "SERVICE_DEGRADATION",
    "QR_ISSUE_PARTNERS",
    "OTHERS",
];

/// Takes a claim for at most five eSIMs, which people decide later.
async fn claim(
    State(upstreams): State<Upstreams>,
    _: WithToken,
    Json(asked): Json<Value>,
) -> Response {
    let text = |name: &str| asked.get(name).and_then(Value::as_str);
    let Some(reason) = text("reason").filter(|reason| REASONS.contains(reason)) else {
        return invalid("reason", "The selected reason is invalid.");
    };
    let notes = text("notes").filter(|notes| !notes.is_empty());
    if reason == "OTHERS" && notes.is_none() || notes.is_some_and(|notes| notes.len() > 255) {
        return invalid(
            "notes",
            "The notes field is required when reason is OTHERS.",
        );
    }
    let iccids = asked.get("iccids").and_then(Value::as_array);
    let units: Option<Vec<UnitNumber>> = iccids.and_then(|iccids| {
        let units = iccids.iter().map(|iccid| {
            let unit = profile::unit(iccid.as_str()?)?;
            upstreams.sandbox.ledger.containing(unit).map(|_| unit)
        });
        units.collect()
    });
    let Some(units) = units.filter(|units| (1..=5).contains(&units.len())) else {
        let meta = json!({ "message": "the parameter is invalid" });
        let body = json!({ "data": [], "meta": meta });
        return (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response();
    };
    for unit in &units {
        upstreams.claimed(*unit, Some(reason));
    }
    let purchase = upstreams.sandbox.ledger.containing(units[0]);
    if purchase.is_some_and(|one| is_named(&one.products[0].option_id, "return-lost")) {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let now = clock::now().to_offset(UtcOffset::UTC);
    let taken = data(&json!({
        "refund_id": units[0].to_string(),
        "created_at": now.format(CREATED).unwrap_or_default(),
    }));
    (StatusCode::ACCEPTED, Json(taken)).into_response()
}

/// People decide a claim at Airalo or Zendit: `DONE` credits it, anything else is the state that is
/// shown from now on.
async fn decide_claim(
    State(upstreams): State<Upstreams>,
    Path(iccid): Path<String>,
    Json(state): Json<String>,
) -> StatusCode {
    let Some(unit) = profile::unit(&iccid) else {
        return StatusCode::NOT_FOUND;
    };
    if state == "DONE"
        && !matches!(
            upstreams.sandbox.ledger.cancel(unit, clock::now()),
            Ok(true)
        )
    {
        return StatusCode::NOT_FOUND;
    }
    let mut claims = lock(&upstreams.claims);
    claims.entry(unit).or_default().state = Some(state);
    StatusCode::NO_CONTENT
}

/// What was sent of a claim.
async fn show_claim(State(upstreams): State<Upstreams>, Path(iccid): Path<String>) -> Response {
    let claim = profile::unit(&iccid).and_then(|unit| upstreams.claim(unit));
    Json(claim).into_response()
}

/// Shows how much of its data an eSIM has used, in MB.
async fn usage(
    State(sandbox): State<Sandbox>,
    _: WithToken,
    Path(iccid): Path<String>,
) -> Response {
    let esim = match after::look(&sandbox, profile::unit(&iccid)) {
        Ok(Some(esim)) => esim,
        Err(error) => return error.into_response(),
        Ok(None) => return no_sim(),
    };
    let ends = esim.ends_at.to_offset(UtcOffset::UTC).format(CREATED);
    let purchase = sandbox.ledger.containing(esim.unit);
    let is = |name| {
        purchase
            .as_ref()
            .is_some_and(|purchase| is_named(&purchase.products[0].option_id, name))
    };
    if is("recycled") {
        let recycled = json!({
            "remaining": 0, "total": 0, "expired_at": null, "is_unlimited": null, "status": "RECYCLED",
        });
        return Json(data(&recycled)).into_response();
    }
    // The amounts of an unlimited package are to be ignored.
    if is("unlimited") {
        let unlimited = json!({
            "remaining": 0, "total": 0, "expired_at": ends.unwrap_or_default(), "is_unlimited": true,
            "status": "ACTIVE",
        });
        return Json(data(&unlimited)).into_response();
    }
    Json(data(&json!({
        "remaining": (esim.total - esim.used) / MB,
        "total": esim.total / MB,
        "expired_at": ends.unwrap_or_default(),
        "is_unlimited": false,
        "status": if esim.is_installed { "ACTIVE" } else { "NOT_ACTIVE" },
    })))
    .into_response()
}

/// The webhooks about an eSIM that is used, each signed with the secret of the account (pages of
/// September 2026). As those of the provider's simulator, they need not fit its use. About one that
/// nobody uses there is only the one about our credit.
pub fn webhooks(
    sandbox: &Sandbox,
) -> impl Fn(&Ledger, &LedgerPurchase, UnitNumber, &str) -> Vec<CallbackMessage> + use<> {
    let secret = SecretKey::from_bytes(secret(sandbox).into_bytes());
    move |ledger, purchase, unit, option_id| {
        let bodies = bodies(ledger, purchase, unit, option_id);
        let signed = bodies.into_iter().map(|body| {
            let body = body.to_string();
            let signature = secret
                .as_ref()
                .map(|secret| airalo::sign(secret, body.as_bytes()));
            CallbackMessage {
                signature: signature.ok().map(|text| ("airalo-signature", text)),
                body,
            }
        });
        signed.collect()
    }
}

/// In this protocol the characters of the secret are the secret.
fn secret(sandbox: &Sandbox) -> String {
    sandbox.credentials.secret.to_base64()
}

fn bodies(
    ledger: &Ledger,
    purchase: &LedgerPurchase,
    unit: UnitNumber,
    option_id: &str,
) -> Vec<Value> {
    if script::of(option_id).after.is_installed() {
        let iccid = ledger.profile(unit, purchase.at).iccid;
        let low = |level: &str, remaining: u8| {
            json!({
                "level": level,
                "package_name": option_id,
                "remaining_percentage": remaining,
                "iccid": iccid,
            })
        };
        vec![low("75%", 25), low("3days", 25)]
    } else {
        vec![json!({ "message": "Your credit is low", "remaining": BALANCE })]
    }
}

async fn balance(State(upstreams): State<Upstreams>, _: WithToken) -> Response {
    let cost = if upstreams.lies() {
        RETAIL_PRICE
    } else {
        Pricing::of(&upstreams).cost()
    };
    #[expect(clippy::cast_precision_loss, reason = "nobody buys so many units")]
    let paid = upstreams.paid_units() as f64 * cost;
    let available = json!({ "amount": BALANCE - paid, "currency": "USD" });
    let balances = json!({ "name": "balance", "availableBalance": available });
    Json(data(&json!({ "balances": balances }))).into_response()
}

//! The routes: the provider's API, and the sandbox's own `/ledger` and `/faults`.
//!
//! A call of the provider's API passes the faults of the whole provider ([`suffer`]), then
//! authentication, and then follows the scripts of its options ([`crate::script`]). Faults do not
//! affect `/ledger` and `/faults`, which need no authentication either, so that a test can always
//! look and lift the faults.
//!
//! The protocol is that of USIMSA. A program may add [`FurtherProtocols`], as tests/upstreams does;
//! all sell from one ledger ([`crate::sale`]).

use std::time::Duration;

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{
        DefaultBodyLimit, FromRequest, Path, RawQuery, Request, State,
        rejection::{BytesRejection, PathRejection},
    },
    http::{Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use rand::seq::SliceRandom;
use runtime::clock;
use time::{
    Date, OffsetDateTime, UtcOffset, format_description::StaticFormatDescription,
    macros::format_description,
};
use tracing::Instrument;
use url::form_urlencoded;

use crate::{
    after::{self, ExtendResult, GiveBackResult, SuspendResult, UnitInUse},
    auth::AuthenticRequest,
    error::SandboxError,
    faults::{Ending, Faults},
    garble,
    observe::observe,
    profile::{self, UnitNumber},
    protocol::{
        BoughtUnit, DailyAnswer, DailyUsage, DayUsage, DeviceAnswer, ExtendAnswer, ExtendBody,
        ExtensionAnswer, ExtensionsAnswer, InstallingDevice, ListedExtension, OrderBody,
        ProductList, ProfileAnswer, ShownTopup, Status, TopupAnswer, UnitAnswer, UnitStatus,
        UnitUsage, UsageAnswer, code,
    },
    purchase::LedgerExtension,
    sale::{self, MAX_UNITS, Sale},
    script,
    server::{self, NoAnswer},
    state::Sandbox,
    summary::{self, LedgerSummary},
    units,
};

const ORDER: &str = "/api/v2/order";
const EXTEND: &str = "/api/v2/extend";
const MAX_BODY: usize = 1024 * 1024;
/// A time in the answer to a query, in UTC.
const QUERY_TIME: StaticFormatDescription =
    format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
/// The maximum length of an order id or an option id, in characters.
const MAX_ID: usize = 200;

/// Further protocols, beside that of USIMSA.
#[derive(Default)]
pub struct FurtherProtocols {
    pub routes: Router,
    /// The paths of the POSTs that buy.
    pub orders: &'static [&'static str],
}

pub(crate) fn router(sandbox: Sandbox, further: FurtherProtocols) -> Router {
    let orders = further.orders;
    let provider: Router = Router::<Sandbox>::new()
        .route(ORDER, post(order))
        .route("/api/v2/order/{order_id}", get(fetch))
        .route("/api/v2/cancel/{topup_id}", post(cancel))
        .route("/api/v2/suspend/{topup_id}", post(suspend))
        .route("/api/v2/resume/{topup_id}", post(resume))
        .route(EXTEND, post(extend))
        .route("/api/v2/extend/{extension_id}", get(extension))
        .route("/api/v2/topup/{topup_id}", get(topup))
        .route("/api/v2/topup/{topup_id}/extensions", get(extensions))
        .route("/api/v2/topup/{topup_id}/usage/daily", get(daily))
        .route("/api/v2/iccid/{iccid}/device", get(device))
        .route("/api/v2/usage/{topup_id}", get(usage))
        .with_state(sandbox.clone())
        .merge(further.routes)
        .route_layer(middleware::from_fn_with_state(
            (sandbox.clone(), orders),
            suffer,
        ));
    let own: Router = Router::<Sandbox>::new()
        .route("/ledger", get(ledger))
        .route("/ledger.csv", get(ledger_csv))
        .route("/faults", get(show_faults).put(set_faults))
        .with_state(sandbox.clone());
    Router::new()
        .merge(provider)
        .merge(own)
        .fallback(|| async { SandboxError::Http(StatusCode::NOT_FOUND) })
        .method_not_allowed_fallback(|| async {
            SandboxError::Http(StatusCode::METHOD_NOT_ALLOWED)
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(sandbox.metrics, observe))
}

/// Applies the current faults to a call of the provider's API.
async fn suffer(
    State((sandbox, further)): State<(Sandbox, &'static [&'static str])>,
    request: Request,
    next: Next,
) -> Result<Response, SandboxError> {
    let Some(faults) = sandbox.faults.faults() else {
        return Ok(next.run(request).await);
    };
    if faults.down {
        return Err(SandboxError::Unanswered(NoAnswer::Close));
    }
    let path = request.uri().path();
    let sells = [ORDER, EXTEND].contains(&path) || further.contains(&path);
    let is_order = request.method() == Method::POST && sells;
    let ending = faults.ending(is_order, rand::random(), rand::random());
    // A delayed call is carried out even if the client goes away meanwhile, as at a real provider:
    // the body is read first, and then a task of its own makes the call.
    let (parts, body) = request.into_parts();
    let body = Bytes::from_request(Request::from_parts(parts.clone(), body), &())
        .await
        .map_err(|rejection| SandboxError::Http(rejection.status()))?;
    let shutdown = sandbox.shutdown.clone();
    let call = async move {
        server::pause(&shutdown, Duration::from_millis(faults.latency_ms)).await;
        if ending == (Ending::Error { carried_out: false }) {
            return SandboxError::Failed.into_response();
        }
        next.run(Request::from_parts(parts, Body::from(body))).await
    };
    let calling = sandbox.shutdown.tracker().spawn(call.in_current_span());
    let response = calling.await.map_err(|_| SandboxError::Failed)?;
    match ending {
        Ending::Answered => Ok(response),
        Ending::Error { .. } => Err(SandboxError::Failed),
        Ending::Silence => Err(SandboxError::Unanswered(NoAnswer::Silence)),
    }
}

/// Buys all products of an order, or none.
async fn order(
    State(sandbox): State<Sandbox>,
    _: AuthenticRequest,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, SandboxError> {
    let body = body.map_err(|rejection| SandboxError::Http(rejection.status()))?;
    let OrderBody { order_id, products } = read_order(&body).map_err(SandboxError::Malformed)?;
    let repeats = sandbox.repeats();
    let garble = sandbox.garble(products.iter());
    let purchase = match sale::sell(
        &sandbox,
        order_id,
        products,
        repeats,
        sandbox.usimsa.as_ref(),
    )
    .await?
    {
        Sale::Sold(purchase) => purchase,
        Sale::Refused(refusal) => {
            let refused = ProductList::<()>::new(Vec::new(), refusal.code, refusal.message);
            return Ok(garble::answer(garble, refused));
        }
    };
    let units = purchase.units().map(|(unit, option_id)| BoughtUnit {
        topup_id: unit.to_string(),
        option_id,
    });
    let answer = ProductList::new(units.collect(), code::OK, "");
    Ok(garble::answer(garble, answer))
}

/// Lists the units of an order, with the profiles of those that are ready.
async fn fetch(
    State(sandbox): State<Sandbox>,
    _: AuthenticRequest,
    order_id: Result<Path<String>, PathRejection>,
) -> Result<Response, SandboxError> {
    let Path(order_id) = order_id.map_err(|_| SandboxError::UnknownOrder)?;
    let mut order = sandbox
        .ledger
        .order(&order_id)
        .ok_or(SandboxError::UnknownOrder)?;
    order.purchases.retain(|purchase| sandbox.shows(purchase));
    if order.purchases.is_empty() {
        return Err(SandboxError::UnknownOrder);
    }
    let now = clock::now();
    let mut products = Vec::new();
    for purchase in &order.purchases {
        for (unit, option_id, fate) in units::fates(purchase) {
            let status = if order.canceled.contains(&unit) {
                UnitStatus::Canceled
            } else {
                fate.status(now - purchase.at)
            };
            let ready = status == UnitStatus::Ready;
            products.push(UnitAnswer {
                created_at: purchase.at,
                topup_id: unit.to_string(),
                option_id,
                status,
                profile: ready.then(|| sandbox.ledger.profile(unit, purchase.at)),
            });
        }
    }
    // The protocol guarantees no order of the units, so each answer has another one: callers must
    // not rely on it.
    products.shuffle(&mut rand::rng());
    let answer = ProductList::new(products, code::OK, "");
    let ordered = order
        .purchases
        .iter()
        .flat_map(|purchase| &purchase.products);
    Ok(garble::answer(sandbox.garble(ordered), answer))
}

/// Cancels a unit, whose profile is then no longer shown. A second cancellation says so. A unit
/// that is installed cannot be cancelled.
async fn cancel(
    State(sandbox): State<Sandbox>,
    _: AuthenticRequest,
    topup_id: Result<Path<String>, PathRejection>,
) -> Result<Json<Status>, SandboxError> {
    let unit = topup_id
        .ok()
        .and_then(|Path(id)| id.parse().ok())
        .ok_or(SandboxError::UnknownTopup)?;
    let (code, message) = match after::give_back(&sandbox, unit)? {
        GiveBackResult::Done => (code::OK, ""),
        GiveBackResult::Again => (code::CANCELED_BEFORE, "The topup is already canceled"),
        GiveBackResult::Installed => (code::INSTALLED, "The eSIM is installed"),
        GiveBackResult::Unknown => return Err(SandboxError::UnknownTopup),
    };
    Ok(Json(Status {
        code,
        message: message.into(),
    }))
}

/// Suspends a unit. USIMSA has no such call.
async fn suspend(
    State(sandbox): State<Sandbox>,
    _: AuthenticRequest,
    topup_id: Result<Path<String>, PathRejection>,
) -> Result<Json<Status>, SandboxError> {
    change_suspension(&sandbox, topup_id, true)
}

/// Resumes a unit that is suspended.
async fn resume(
    State(sandbox): State<Sandbox>,
    _: AuthenticRequest,
    topup_id: Result<Path<String>, PathRejection>,
) -> Result<Json<Status>, SandboxError> {
    change_suspension(&sandbox, topup_id, false)
}

fn change_suspension(
    sandbox: &Sandbox,
    topup_id: Result<Path<String>, PathRejection>,
    suspend: bool,
) -> Result<Json<Status>, SandboxError> {
    let unit = topup_id
        .ok()
        .and_then(|Path(id)| id.parse().ok())
        .ok_or(SandboxError::UnknownTopup)?;
    let (code, message) = match after::suspend(sandbox, unit, suspend)? {
        SuspendResult::Done => (code::OK, ""),
        SuspendResult::Over => (code::OVER, "The eSIM has expired"),
        SuspendResult::Unknown => return Err(SandboxError::UnknownTopup),
    };
    Ok(Json(Status {
        code,
        message: message.into(),
    }))
}

/// Adds an option to a unit, or sells another unit instead. Without an id, as at USIMSA, each
/// request adds again.
async fn extend(
    State(sandbox): State<Sandbox>,
    _: AuthenticRequest,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ExtendAnswer>, SandboxError> {
    let body = body.map_err(|rejection| SandboxError::Http(rejection.status()))?;
    let ExtendBody {
        extension_id,
        topup_id,
        option_id,
    } = serde_json::from_slice(&body)
        .map_err(|_| SandboxError::Malformed("The body is not an extension".into()))?;
    check_id("optionId", &option_id).map_err(SandboxError::Malformed)?;
    if extension_id.chars().nth(MAX_ID).is_some() {
        return Err(SandboxError::Malformed("extensionId is too long".into()));
    }
    let unit = topup_id.parse().ok();
    let repeats = sandbox.repeats();
    match after::extend(&sandbox, extension_id, unit, option_id, repeats).await? {
        ExtendResult::Done(extension) => {
            let esim = after::look(&sandbox, Some(extension.unit))?;
            let profile = other(&sandbox, &extension);
            Ok(Json(ExtendAnswer {
                code: code::OK,
                message: "",
                expired_date: esim
                    .filter(|_| profile.is_none())
                    .map(|esim| esim.ends_at.to_offset(UtcOffset::UTC).date().to_string()),
                topup_id: extension.instead.map(|unit| unit.to_string()),
                profile,
            }))
        }
        ExtendResult::Refused(refusal) => Err(SandboxError::Query(refusal.code, refusal.message)),
        ExtendResult::Over => Err(SandboxError::Query(code::OVER, "The eSIM has expired")),
        ExtendResult::Unknown => Err(SandboxError::UnknownTopup),
    }
}

/// The profile of the unit that was sold instead of an extension.
fn other(sandbox: &Sandbox, extension: &LedgerExtension) -> Option<ProfileAnswer> {
    let purchase = sandbox.ledger.containing(extension.instead?)?;
    let unit = purchase.first_unit;
    Some(sandbox.ledger.profile(unit, purchase.at))
}

/// Shows an extension by the caller's id, also one that takes effect later.
async fn extension(
    State(sandbox): State<Sandbox>,
    _: AuthenticRequest,
    extension_id: Result<Path<String>, PathRejection>,
) -> Result<Json<ExtensionAnswer>, SandboxError> {
    let unknown = || SandboxError::Query(code::NOT_FOUND, "Extension not found");
    let Path(id) = extension_id.map_err(|_| unknown())?;
    let now = clock::now();
    let found = sandbox
        .ledger
        .extensions(|one| one.extension_id == id && (one.at > now || sandbox.shows_since(one.at)));
    let extension = found.into_iter().next().ok_or_else(unknown)?;
    Ok(Json(ExtensionAnswer {
        code: code::OK,
        message: "",
        status: if extension.at > now {
            UnitStatus::Pending
        } else {
            UnitStatus::Ready
        },
        profile: other(&sandbox, &extension),
        extension_id: extension.extension_id,
        topup_id: extension.unit.to_string(),
        option_id: extension.option_id,
    }))
}

/// Lists what can be added to a unit now.
async fn extensions(
    State(sandbox): State<Sandbox>,
    _: AuthenticRequest,
    topup_id: Result<Path<String>, PathRejection>,
) -> Result<Json<ExtensionsAnswer>, SandboxError> {
    let unit = topup_id.ok().and_then(|Path(id)| id.parse().ok());
    let esim = after::look(&sandbox, unit)?.ok_or(SandboxError::UnknownTopup)?;
    let is_over = esim.is_canceled || esim.ends_at <= clock::now();
    let names = script::extensions().filter(|_| !is_over);
    Ok(Json(ExtensionsAnswer {
        code: code::OK,
        message: "",
        extensions: names
            .map(|name| ListedExtension {
                option_id: script::option_id(name).to_string(),
                name,
                bytes: after::ADDS,
                days: after::ADDS_DAYS.whole_days(),
            })
            .collect(),
    }))
}

/// Shows a unit as USIMSA does.
async fn topup(
    State(sandbox): State<Sandbox>,
    _: AuthenticRequest,
    topup_id: Result<Path<String>, PathRejection>,
) -> Result<Json<TopupAnswer>, SandboxError> {
    let unit = topup_id.ok().and_then(|Path(id)| id.parse().ok());
    let esim = queried(&sandbox, unit)?;
    if !esim.is_installed {
        let unused = "No package is in use yet";
        return Err(SandboxError::Query(code::QUERY_UNUSED, unused));
    }
    let time = |at: OffsetDateTime| {
        let time = at.to_offset(UtcOffset::UTC).format(QUERY_TIME);
        time.unwrap_or_default()
    };
    Ok(Json(TopupAnswer {
        code: code::OK,
        message: "",
        topup: ShownTopup {
            topup_id: esim.unit.to_string(),
            create_time: time(esim.bought_at),
            active_time: time(esim.bought_at),
            expire_time: time(esim.ends_at),
            usage: esim.used >> 20,
            status: "READY",
            activation_status: "ACTIVE",
        },
    }))
}

/// Finds the unit that a query is about.
fn queried(sandbox: &Sandbox, unit: Option<UnitNumber>) -> Result<UnitInUse, SandboxError> {
    let unknown = || SandboxError::Query(code::QUERY_NO_TOPUP, "The topup does not exist");
    let esim = after::look(sandbox, unit)?.ok_or_else(unknown)?;
    if esim.is_canceled {
        let canceled = "The topup is canceled";
        return Err(SandboxError::Query(code::QUERY_CANCELED, canceled));
    }
    Ok(esim)
}

/// Shows the data that a unit has used, by the day in UTC.
async fn daily(
    State(sandbox): State<Sandbox>,
    _: AuthenticRequest,
    topup_id: Result<Path<String>, PathRejection>,
) -> Result<Json<DailyAnswer>, SandboxError> {
    let unit = topup_id.ok().and_then(|Path(id)| id.parse().ok());
    let esim = queried(&sandbox, unit)?;
    if !esim.is_installed {
        let unused = "No package is in use yet";
        return Err(SandboxError::Query(code::QUERY_UNUSED, unused));
    }
    let day = |date: Date, used: u64| DayUsage {
        date: date.to_string(),
        usage_mb: used >> 20,
    };
    let first = esim.bought_at.to_offset(UtcOffset::UTC).date();
    let half = esim.used / 2;
    let history = vec![
        day(first, half),
        day(first.next_day().unwrap_or(first), esim.used - half),
    ];
    Ok(Json(DailyAnswer {
        code: code::OK,
        message: "",
        usage: DailyUsage { history },
    }))
}

/// Shows the device that has installed a unit.
async fn device(
    State(sandbox): State<Sandbox>,
    _: AuthenticRequest,
    iccid: Result<Path<String>, PathRejection>,
) -> Result<Json<DeviceAnswer>, SandboxError> {
    let unit = iccid.ok().and_then(|Path(iccid)| profile::unit(&iccid));
    let esim = queried(&sandbox, unit)?;
    let time = |at: OffsetDateTime| at.to_offset(UtcOffset::UTC).format(QUERY_TIME);
    Ok(Json(DeviceAnswer {
        code: code::OK,
        message: "",
        device: esim.is_installed.then(|| InstallingDevice {
            install_time: time(esim.bought_at).unwrap_or_default(),
            install_device: "Telephone",
            eid: "89049032000000000000000000000000".to_owned(),
        }),
        install_count: esim.is_installed.into(),
        update_time: time(clock::now()).unwrap_or_default(),
    }))
}

/// Shows the state of a unit: its data use, and whether it is given back. USIMSA has no such call.
async fn usage(
    State(sandbox): State<Sandbox>,
    _: AuthenticRequest,
    topup_id: Result<Path<String>, PathRejection>,
) -> Result<Json<UsageAnswer>, SandboxError> {
    let unit = topup_id.ok().and_then(|Path(id)| id.parse().ok());
    let esim = after::look(&sandbox, unit)?.ok_or(SandboxError::UnknownTopup)?;
    Ok(Json(UsageAnswer {
        code: code::OK,
        message: "",
        usage: UnitUsage {
            topup_id: esim.unit.to_string(),
            installed: esim.is_installed,
            canceled: esim.is_canceled,
            suspended: esim.is_suspended,
            used_bytes: esim.used,
            total_bytes: esim.total,
            ends_at: esim.ends_at,
        },
    }))
}

/// Shows all purchases, or the purchases of one order id in detail (`?order_id=`).
async fn ledger(
    State(sandbox): State<Sandbox>,
    RawQuery(query): RawQuery,
) -> Result<Json<LedgerSummary>, SandboxError> {
    let query = query.unwrap_or_default();
    let mut order_id = None;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name != "order_id" {
            return Err(SandboxError::Bad(format!(
                "the parameter {name:?} is unknown; the only one is order_id"
            )));
        }
        order_id = Some(value);
    }
    Ok(Json(sandbox.ledger.summary(order_id.as_deref())))
}

/// Lists all purchases as CSV, for `esimctl recover --ledger`.
async fn ledger_csv(State(sandbox): State<Sandbox>) -> impl IntoResponse {
    let csv = summary::csv(&sandbox.ledger.purchases(|_| true));
    ([(header::CONTENT_TYPE, "text/csv; charset=utf-8")], csv)
}

async fn show_faults(State(sandbox): State<Sandbox>) -> Json<Faults> {
    Json(sandbox.faults.get())
}

async fn set_faults(
    State(sandbox): State<Sandbox>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Faults>, SandboxError> {
    let body = body.map_err(|rejection| SandboxError::Http(rejection.status()))?;
    let faults = Faults::read(&body).map_err(SandboxError::Bad)?;
    tracing::info!(
        ?faults,
        "the faults were replaced; they stay in force until the next PUT /faults or a restart"
    );
    sandbox.faults.set(faults.clone());
    Ok(Json(faults))
}

fn read_order(body: &[u8]) -> Result<OrderBody, String> {
    let order: OrderBody = serde_json::from_slice(body).map_err(|error| {
        // serde repeats values from the body; long ones are cut.
        let reason: String = error.to_string().chars().take(MAX_ID).collect();
        format!("The body is not an order: {reason}")
    })?;
    check_id("orderId", &order.order_id)?;
    if order.products.is_empty() {
        return Err("products is empty".into());
    }
    for (index, product) in order.products.iter().enumerate() {
        check_id(&format!("products[{index}].optionId"), &product.option_id)?;
        if product.qty == 0 {
            return Err(format!("products[{index}].qty must be at least 1"));
        }
    }
    let units: u64 = order
        .products
        .iter()
        .map(|product| u64::from(product.qty))
        .sum();
    if units > MAX_UNITS {
        return Err(format!(
            "{units} units are more than {MAX_UNITS} in one order"
        ));
    }
    Ok(order)
}

fn check_id(field: &str, id: &str) -> Result<(), String> {
    if id.trim().is_empty() {
        return Err(format!("{field} is blank"));
    }
    if id.chars().nth(MAX_ID).is_some() {
        return Err(format!("{field} is longer than {MAX_ID} characters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_an_order_is_said() {
        let long = "x".repeat(MAX_ID + 1);
        for (body, message) in testkit::rows! {
            "" => "The body is not an order: EOF while parsing";
            "[1" => "The body is not an order: ";
            r#"{"products":[]}"# => "missing field `orderId`";
            r#"{"orderId":"o"}"# => "missing field `products`";
            r#"{"orderId":7,"products":[]}"# => "invalid type: integer `7`";
            r#"{"orderId":" ","products":[{"optionId":"a","qty":1}]}"# => "orderId is blank";
            r#"{"orderId":"o","products":[]}"# => "products is empty";
            r#"{"orderId":"o","products":[{"optionId":"","qty":1}]}"# => "products[0].optionId is blank";
            r#"{"orderId":"o","products":[{"optionId":"a","qty":0}]}"#
                => "products[0].qty must be at least 1";
            r#"{"orderId":"o","products":[{"optionId":"a","qty":-1}]}"# => "invalid value: integer `-1`";
            r#"{"orderId":"o","products":[{"optionId":"a","qty":1.5}]}"# => "floating point `1.5`";
            r#"{"orderId":"o","products":[{"optionId":"a","qty":10001}]}"#
                => "10001 units are more than 10000";
            &format!(r#"{{"orderId":"{long}","products":[{{"optionId":"a","qty":1}}]}}"#)
                => "longer than 200";
        } {
            let error = read_order(body.as_bytes()).unwrap_err();
            assert!(error.contains(message), "{body}: {error}");
        }
        let order =
            read_order(br#"{"orderId":"o","products":[{"optionId":"a","qty":10000}]}"#).unwrap();
        assert_eq!(
            (order.order_id.as_str(), order.products[0].qty),
            ("o", 10_000)
        );
    }
}

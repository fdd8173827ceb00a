//! The provider's API, and the two endpoints that are not the protocol's: `/ledger` and `/readyz`.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{
        DefaultBodyLimit, Path, State,
        rejection::{BytesRejection, PathRejection},
    },
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use runtime::clock;
use time::OffsetDateTime;

use crate::{
    auth::{Authenticated, Credentials},
    error::Error,
    ledger::{Ledger, NotBought, Purchase, Summary},
    outcomes::Script,
    protocol::{BoughtUnit, NewOrder, Products, Status, Unit, UnitStatus, code},
};

const MAX_BODY: usize = 1024 * 1024;
/// Units in one order.
const MAX_UNITS: u64 = 10_000;
/// Characters of an order id or option id.
const MAX_ID: usize = 200;

/// What every request needs.
pub struct Sandbox {
    pub credentials: Credentials,
    pub ledger: Ledger,
    pub script: Script,
}

/// Every route of the service.
pub fn router(sandbox: Arc<Sandbox>) -> Router {
    Router::new()
        .route("/api/v2/order", post(order))
        .route("/api/v2/order/{order_id}", get(fetch))
        .route("/api/v2/cancel/{topup_id}", post(cancel))
        .route("/ledger", get(ledger))
        .route(
            "/readyz",
            get(|| async { Json(serde_json::json!({ "ready": true })) }),
        )
        .fallback(|| async { Error::Http(StatusCode::NOT_FOUND) })
        .method_not_allowed_fallback(|| async { Error::Http(StatusCode::METHOD_NOT_ALLOWED) })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(sandbox)
}

/// Buys. An order of several products is bought whole or not at all.
async fn order(
    State(sandbox): State<Arc<Sandbox>>,
    _: Authenticated,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Error> {
    let body = body.map_err(|rejection| Error::Http(rejection.status()))?;
    let NewOrder { order_id, products } = read_order(&body).map_err(Error::Malformed)?;
    let refusal = products
        .iter()
        .find_map(|product| sandbox.script.outcome(&product.option_id).refuses);
    if let Some(refusal) = refusal {
        // A repeated order id is a repeated order id, whatever it asks for this time.
        let bought = sandbox.ledger.has(&order_id);
        return Err(if bought {
            Error::Duplicate
        } else {
            Error::Refused(refusal)
        });
    }
    let purchase = sandbox
        .ledger
        .buy(order_id, products, clock::now())
        .map_err(|error| match error {
            NotBought::Duplicate => Error::Duplicate,
            NotBought::Failed(error) => Error::Ledger(error),
        })?;
    tracing::debug!(order.id = purchase.order_id, units = purchase.size(), "bought");
    let products = purchase
        .units()
        .map(|(unit, option_id)| BoughtUnit {
            topup_id: unit.to_string(),
            option_id,
        })
        .collect();
    Ok(Json(Products {
        products,
        code: code::OK,
        message: "".into(),
    })
    .into_response())
}

/// Tells the units of an order, with the profiles of those that are ready.
async fn fetch(
    State(sandbox): State<Arc<Sandbox>>,
    _: Authenticated,
    order_id: Result<Path<String>, PathRejection>,
) -> Result<Response, Error> {
    let Path(order_id) = order_id.map_err(|_| Error::UnknownOrder)?;
    let order = sandbox.ledger.order(&order_id).ok_or(Error::UnknownOrder)?;
    let now = clock::now();
    let products = order
        .purchases
        .iter()
        .flat_map(|purchase| {
            purchase
                .units()
                .map(move |(unit, option_id)| (purchase, unit, option_id))
        })
        .map(|(purchase, unit, option_id)| {
            let status = if order.canceled.contains(&unit) {
                UnitStatus::Canceled
            } else {
                status(purchase, sandbox.script.outcome(option_id).ready_after, now)
            };
            let ready = matches!(status, UnitStatus::Ready);
            Unit {
                created_at: purchase.at,
                topup_id: unit.to_string(),
                option_id,
                status,
                profile: ready.then(|| sandbox.ledger.profile(unit, purchase.at)),
            }
        })
        .collect();
    Ok(Json(Products {
        products,
        code: code::OK,
        message: "".into(),
    })
    .into_response())
}

/// Cancels a unit: its profile is not told any more. Cancelling twice is fine.
async fn cancel(
    State(sandbox): State<Arc<Sandbox>>,
    _: Authenticated,
    topup_id: Result<Path<String>, PathRejection>,
) -> Result<Json<Status>, Error> {
    let unit = topup_id
        .ok()
        .and_then(|Path(id)| id.parse().ok())
        .ok_or(Error::UnknownTopup)?;
    if !sandbox.ledger.cancel(unit, clock::now()).map_err(Error::Ledger)? {
        return Err(Error::UnknownTopup);
    }
    Ok(Json(Status {
        code: code::OK,
        message: "".into(),
    }))
}

async fn ledger(State(sandbox): State<Arc<Sandbox>>) -> Json<Summary> {
    Json(sandbox.ledger.summary())
}

fn status(purchase: &Purchase, ready_after: Duration, now: OffsetDateTime) -> UnitStatus {
    if now - purchase.at >= ready_after {
        UnitStatus::Ready
    } else {
        UnitStatus::Pending
    }
}

/// Reads an order, or says what is wrong with it.
fn read_order(body: &[u8]) -> Result<NewOrder, String> {
    let order: NewOrder = serde_json::from_slice(body).map_err(|error| {
        // A long value in the body would be repeated whole.
        format!(
            "The body is not an order: {}",
            error.to_string().chars().take(MAX_ID).collect::<String>()
        )
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
    let units: u64 = order.products.iter().map(|product| u64::from(product.qty)).sum();
    if units > MAX_UNITS {
        return Err(format!("{units} units are more than {MAX_UNITS} in one order"));
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
    use time::macros::datetime;

    #[test]
    fn what_is_wrong_with_an_order_is_said() {
        let long = "x".repeat(MAX_ID + 1);
        for (body, message) in [
            ("", "The body is not an order: EOF while parsing"),
            ("[1", "The body is not an order: "),
            (r#"{"products":[]}"#, "missing field `orderId`"),
            (r#"{"orderId":"o"}"#, "missing field `products`"),
            (r#"{"orderId":7,"products":[]}"#, "invalid type: integer `7`"),
            (
                r#"{"orderId":" ","products":[{"optionId":"a","qty":1}]}"#,
                "orderId is blank",
            ),
            (r#"{"orderId":"o","products":[]}"#, "products is empty"),
            (
                r#"{"orderId":"o","products":[{"optionId":"","qty":1}]}"#,
                "products[0].optionId is blank",
            ),
            (
                r#"{"orderId":"o","products":[{"optionId":"a","qty":0}]}"#,
                "products[0].qty must be at least 1",
            ),
            (
                r#"{"orderId":"o","products":[{"optionId":"a","qty":-1}]}"#,
                "invalid value: integer `-1`",
            ),
            (
                r#"{"orderId":"o","products":[{"optionId":"a","qty":1.5}]}"#,
                "floating point `1.5`",
            ),
            (
                r#"{"orderId":"o","products":[{"optionId":"a","qty":10001}]}"#,
                "10001 units are more than 10000",
            ),
            (
                &format!(r#"{{"orderId":"{long}","products":[{{"optionId":"a","qty":1}}]}}"#),
                "longer than 200",
            ),
        ] {
            let error = read_order(body.as_bytes()).unwrap_err();
            assert!(error.contains(message), "{body}: {error}");
        }
        let order = read_order(br#"{"orderId":"o","products":[{"optionId":"a","qty":10000}]}"#).unwrap();
        assert_eq!((order.order_id.as_str(), order.products[0].qty), ("o", 10_000));
    }

    #[test]
    fn a_unit_is_ready_after_its_delay() {
        let at = datetime!(2026-11-20 12:00 UTC);
        let purchase = Purchase {
            at,
            order_id: "o".into(),
            first_unit: 1,
            products: Vec::new(),
        };
        let ready = |delay, now| matches!(status(&purchase, delay, now), UnitStatus::Ready);
        assert!(ready(Duration::ZERO, at));
        assert!(!ready(Duration::from_secs(2), at + Duration::from_millis(1999)));
        assert!(ready(Duration::from_secs(2), at + Duration::from_secs(2)));
    }
}

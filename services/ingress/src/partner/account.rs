//! The partner's account.

use axum::{http::StatusCode, response::Response};
use serde::Serialize;
use store::partner_view;
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;

use super::{Session, json};
use crate::error::ApiError;

/// The account of the partner that signed the request.
#[derive(Serialize, ToSchema)]
pub(super) struct Account<'a> {
    name: &'a str,
    /// `sandbox` or `live`.
    environment: &'a str,
    access_key: &'a str,
    /// The access key before the last rotation, while it is valid.
    old_access_key: Option<&'a str>,
    #[serde(with = "rfc3339::option")]
    old_keys_until: Option<OffsetDateTime>,
    #[serde(with = "rfc3339")]
    created_at: OffsetDateTime,
    limits: Limits,
    used: Used,
}

/// The limits of each process that answers requests.
#[derive(Serialize, ToSchema)]
struct Limits {
    requests_per_second: u32,
    orders_per_second: u32,
    units_per_second: u32,
    /// Orders at once; null if only the service's own limit holds.
    orders_in_flight: Option<u32>,
    items_per_order: usize,
    units_per_order: u64,
    body_bytes: usize,
}

/// What is used of the limits in the process that answered.
#[derive(Serialize, ToSchema)]
struct Used {
    orders_in_flight: u64,
}

/// Show the account
#[utoipa::path(get, path = "/account", operation_id = "show_account", tag = "Account",
    responses((status = 200, description = "The account", body = Account)))]
pub(super) async fn show(session: Session) -> Result<Response, ApiError> {
    let stored = session.run(partner_view::account).await?;
    let stored = stored.ok_or(ApiError::NotFound)?;
    let (app, partner) = (&session.app, &session.partner);
    let [requests, orders, units] = app.admission.rates.of(partner).per_second();
    let account = Account {
        name: &stored.name,
        environment: &stored.environment,
        access_key: &stored.access_key,
        old_access_key: stored.old_access_key.as_deref(),
        old_keys_until: stored.old_keys_until,
        created_at: stored.created_at,
        limits: Limits {
            requests_per_second: requests,
            orders_per_second: orders,
            units_per_second: units,
            orders_in_flight: partner.limits.max_in_flight,
            items_per_order: app.largest.items,
            units_per_order: app.largest.units,
            body_bytes: app.max_body(),
        },
        used: Used { orders_in_flight: app.admission.in_flight(partner.id) },
    };
    Ok(json(StatusCode::OK, &account))
}

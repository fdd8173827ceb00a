//! The partner's account, and the rotation of its keys by the partner itself.
//!
//! Called as handlers by [`super::router`]. Relies on `store`, which refuses a rotation while the
//! old keys of the last one are valid.

use accounts::partners::{self, RotationResult};
use axum::{http::StatusCode, response::Response};
use desk::self_service;
use serde::Serialize;
use signing::generate;
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;

use super::session::{OVERLAP, Session, json};
use crate::http::{codes::ErrorCode, error::ApiError};

/// The account of the partner that signed the request.
#[derive(Serialize, ToSchema)]
#[schema(as = Account)]
struct AccountResponse<'a> {
    name: &'a str,
    /// `sandbox` or `live`.
    environment: &'a str,
    access_key: &'a str,
    /// The access key that the last rotation replaced, while it is still valid.
    old_access_key: Option<&'a str>,
    #[serde(with = "rfc3339::option")]
    old_keys_until: Option<OffsetDateTime>,
    #[serde(with = "rfc3339")]
    created_at: OffsetDateTime,
    limits: AccountLimits,
    used: AccountUse,
    /// The addresses and networks from which we send webhooks, for your firewall. An empty list
    /// means that you have to ask us. The signature of a webhook proves that it comes from us; an
    /// address does not.
    #[schema(example = json!(["198.51.100.0/24", "2001:db8::1"]))]
    source_addresses: &'a [String],
}

/// The limits of each process that answers requests. The service may consist of several processes, so
/// in total you can send more.
#[derive(Serialize, ToSchema)]
struct AccountLimits {
    requests_per_second: u32,
    orders_per_second: u32,
    units_per_second: u32,
    /// The orders that may be in flight at once; null if only the service's own limit holds.
    orders_in_flight: Option<u32>,
    items_per_order: usize,
    units_per_order: u64,
    body_bytes: usize,
}

/// What is in use now, in the process that answered.
#[derive(Serialize, ToSchema)]
struct AccountUse {
    orders_in_flight: u64,
}

/// Show the account
#[utoipa::path(get, path = "/account", operation_id = "show_account", tag = "Account",
    responses((status = 200, description = "The account", body = AccountResponse)))]
pub(super) async fn show(session: Session) -> Result<Response, ApiError> {
    let stored = session
        .run(self_service::account)
        .await?
        .ok_or(ErrorCode::NotFound)?;
    let gate = session.gate();
    let partner = &session.partner;
    let per_second = gate.admission.rates.of(partner).per_second();
    let account = AccountResponse {
        name: &stored.name,
        environment: &stored.environment,
        access_key: &stored.access_key,
        old_access_key: stored.old_access_key.as_deref(),
        old_keys_until: stored.old_keys_until,
        created_at: stored.created_at,
        limits: AccountLimits {
            requests_per_second: per_second.requests,
            orders_per_second: per_second.orders,
            units_per_second: per_second.units,
            orders_in_flight: partner.limits.max_in_flight,
            items_per_order: gate.max_order.items,
            units_per_order: gate.admission.rates.units_per_order(partner).into(),
            body_bytes: gate.max_body,
        },
        used: AccountUse {
            orders_in_flight: gate.admission.orders_in_flight(partner.id),
        },
        source_addresses: &session.service().source_addresses,
    };
    Ok(json(StatusCode::OK, &account))
}

/// The new keys. The secret key is shown only in this answer, because only its encrypted form is
/// kept.
#[derive(Serialize, ToSchema)]
struct NewKeys<'a> {
    access_key: &'a str,
    /// The secret key in Base64. Decode it before you sign with it.
    secret_key: String,
    #[serde(with = "rfc3339::option")]
    old_keys_until: Option<OffsetDateTime>,
}

/// Replace the keys
///
/// The new pair is valid at once, and the old pair stays valid for 24 more hours, so that you can
/// change your programs one by one. The new secret key is shown only in this answer. Only the first
/// key may do this, because the new pair has all rights. If the old keys must end at once, for
/// example because they leaked, ask us.
#[utoipa::path(post, path = "/keys", operation_id = "replace_keys", tag = "Account",
    responses(
        (status = 201, description = "The new keys", body = NewKeys),
        (status = 409, description = "The old keys of the last rotation are still valid, so there cannot be a further pair (`rotation_under_way`)", body = crate::http::described::Message)))]
pub(super) async fn rotate(session: Session) -> Result<Response, ApiError> {
    session.requires_first_key()?;
    let (access_key, secret_key) = generate::keys().map_err(ApiError::internal)?;
    let vault = &session.service().vault;
    let rotated = session.change(async |connection, partner| {
        self_service::rotate(
            connection,
            partner,
            domain::Command::KeysRotate,
            async |transaction| {
                partners::rotate_keys(
                    transaction,
                    vault,
                    partner,
                    &access_key,
                    &secret_key,
                    OVERLAP,
                )
                .await
            },
        )
        .await
    });
    let RotationResult::Until(until) = rotated.await? else {
        return Err(ErrorCode::RotationUnderWay.into());
    };
    tracing::info!(partner.id = %session.id(), "a partner replaced its keys; the old ones stay valid for 24 hours");
    let new = NewKeys {
        access_key: &access_key,
        secret_key: secret_key.to_base64(),
        old_keys_until: until,
    };
    Ok(json(StatusCode::CREATED, &new))
}

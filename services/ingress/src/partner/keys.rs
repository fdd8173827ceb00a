//! Rotation of the partner's keys.

use axum::{http::StatusCode, response::Response};
use serde::Serialize;
use signing::generate;
use store::{
    partner_view,
    partners::{self, Rotated},
};
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;

use super::{OVERLAP, Session, json};
use crate::{codes::Code, error::ApiError};

/// The new keys. The secret key is shown only now.
#[derive(Serialize, ToSchema)]
pub(super) struct NewKeys<'a> {
    access_key: &'a str,
    /// Base64.
    secret_key: String,
    #[serde(with = "rfc3339::option")]
    old_keys_until: Option<OffsetDateTime>,
}

/// Replace the keys
///
/// The new pair is valid at once, the old pair for 24 more hours. The new secret key is shown only in this answer. To
/// end old keys at once, ask us.
#[utoipa::path(post, path = "/keys", operation_id = "replace_keys", tag = "Account",
    responses(
        (status = 201, description = "The new keys", body = NewKeys),
        (status = 409, description = "The old keys of the last rotation are still valid (`rotation_under_way`)", body = super::described::Message)))]
pub(super) async fn rotate(session: Session) -> Result<Response, ApiError> {
    let (access_key, secret_key) = generate::keys().map_err(ApiError::internal)?;
    let vault = &session.desk().vault;
    let rotated = session.run(async |connection, partner| {
        partner_view::rotate(connection, partner, "keys rotate", async |transaction| {
            partners::rotate_keys(transaction, vault, partner, &access_key, &secret_key, OVERLAP).await
        })
        .await
    });
    let Rotated::Until(until) = rotated.await? else {
        return Err(ApiError::conflict(
            Code::RotationUnderWay,
            "The old keys of the last rotation are still valid; try again when they have ended",
        ));
    };
    tracing::info!(partner.id = %session.id(), "a partner replaced its keys");
    let new = NewKeys { access_key: &access_key, secret_key: secret_key.to_base64(), old_keys_until: until };
    Ok(json(StatusCode::CREATED, &new))
}

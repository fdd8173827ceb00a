//! Rotation of the partner's keys.

use std::sync::Arc;

use axum::{Extension, extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use signing::generate;
use store::{
    partner_view,
    partners::{Overlap, Rotated},
};
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;

use super::{Caller, OVERLAP, conflict, internal, json};
use crate::{codes::Code, error::ApiError, routes::App};

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
        (status = 409, description = "The old keys of the last rotation are still valid (`rotation_under_way`)", body = super::openapi::Message)))]
pub(super) async fn rotate(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let (access_key, secret_key) = generate::keys().map_err(internal)?;
    let overlap = Overlap {
        lasts: OVERLAP,
        keep_old: false,
    };
    let desk = &app.desk;
    let rotated = desk.run(caller.id(), async |connection| {
        partner_view::rotate_keys(
            connection,
            &desk.vault,
            caller.id(),
            &access_key,
            &secret_key,
            overlap,
        )
        .await
    });
    let Rotated::Until(until) = rotated.await? else {
        return Err(conflict(
            Code::RotationUnderWay,
            "The old keys of the last rotation are still valid; try again when they have ended",
        ));
    };
    tracing::info!(partner.id = %caller.id(), "a partner replaced its keys");
    let new = NewKeys {
        access_key: &access_key,
        secret_key: secret_key.to_base64(),
        old_keys_until: until,
    };
    Ok(json(StatusCode::CREATED, &new))
}

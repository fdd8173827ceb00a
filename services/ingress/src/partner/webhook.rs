//! The partner's webhook endpoint: its URL, its state, its secret.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};
use domain::Environment;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use signing::generate;
use store::{
    partner_view,
    partners::{self, Overlap, Rotated},
};
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use webhooks::{guard::Forbidden, url::WebhookUrl};

use super::{Caller, Desk, OVERLAP, body_of, conflict, internal, json};
use crate::{
    codes::Code,
    error::{ApiError, Fault},
    routes::App,
};

/// The webhook endpoint.
#[derive(Serialize, ToSchema)]
pub(super) struct Endpoint<'a> {
    url: Option<&'a str>,
    /// `open`, `blocked` (after failures), `probing` (one webhook tests it), `paused` (by us) or `no_url`.
    state: &'a str,
    #[serde(with = "rfc3339::option")]
    blocked_until: Option<OffsetDateTime>,
    /// Consecutive failed attempts.
    failures: i32,
    /// Webhooks that wait for an attempt, counted up to 10,000.
    waiting: i64,
    /// Webhooks whose retries have ended, counted up to 10,000; redeliver them one by one.
    exhausted: i64,
    /// Until when the old secret signs, too.
    #[serde(with = "rfc3339::option")]
    old_secret_until: Option<OffsetDateTime>,
}

/// Show the webhook endpoint
#[utoipa::path(get, path = "/webhook", operation_id = "show_webhook", tag = "Webhook",
    responses((status = 200, description = "The endpoint", body = Endpoint)))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    current(&app.desk, &caller).await
}

async fn current(desk: &Desk, caller: &Caller) -> Result<Response, ApiError> {
    let endpoint = desk
        .run(async |connection| partner_view::endpoint(connection, caller.id()).await)
        .await?
        .ok_or(ApiError::NotFound)?;
    let shown = Endpoint {
        url: endpoint.url.as_deref(),
        state: &endpoint.state,
        blocked_until: endpoint.blocked_until,
        failures: endpoint.failures,
        waiting: endpoint.waiting,
        exhausted: endpoint.exhausted,
        old_secret_until: endpoint.old_secret_until,
    };
    Ok(json(StatusCode::OK, &shown))
}

/// The new URL.
#[derive(Deserialize, ToSchema)]
#[expect(
    dead_code,
    reason = "describes the body in the OpenAPI document; `wanted` reads it"
)]
pub(super) struct NewUrl {
    /// An `https` URL of at most 2048 bytes, or `http` in the sandbox; null removes it.
    #[schema(required = true, example = "https://shop.example.com/webhooks")]
    url: Option<String>,
}

/// Set the webhook URL
///
/// Webhooks that wait are sent to the new URL at once; the same URL again changes nothing. With `null`, webhooks wait until a URL is set.
#[utoipa::path(put, path = "/webhook", operation_id = "set_webhook", tag = "Webhook", request_body = NewUrl,
    responses(
        (status = 200, description = "The endpoint", body = Endpoint),
        (status = 400, response = super::openapi::InvalidJson),
        (status = 422, response = super::openapi::Unprocessable)))]
pub(super) async fn set(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = body_of(&app, request).await?;
    let desk = &app.desk;
    let url = wanted(desk, &body, caller.0.environment)?;
    let url = url.as_ref().map(WebhookUrl::as_str);
    let stored = desk
        .run(async |connection| partner_view::endpoint(connection, caller.id()).await)
        .await?;
    // The same URL again would end a block and make all waiting webhooks due.
    if stored.is_none_or(|stored| stored.url.as_deref() != url) {
        desk.run(async |connection| partners::set_webhook(connection, caller.id(), url).await)
            .await?;
        tracing::info!(partner.id = %caller.id(), removed = url.is_none(), "a partner set its webhook URL");
    }
    current(desk, &caller).await
}

/// The URL in a body, after all checks that need no connection. A name is judged at each connection.
fn wanted(desk: &Desk, body: &[u8], environment: Environment) -> Result<Option<WebhookUrl>, ApiError> {
    let refused = |code, message: String| {
        Err(ApiError::Unprocessable(vec![Fault::of_parameter(
            "url", code, message,
        )]))
    };
    let body: Value = serde_json::from_slice(body).map_err(|_| ApiError::InvalidJson)?;
    let url = match body.get("url") {
        Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.parse::<WebhookUrl>(),
        Some(_) => return refused(Code::UrlInvalid, "Url must be a string or null".into()),
        None => return refused(Code::UrlMissing, "Url is missing; null removes it".into()),
    };
    let url = match url {
        Ok(url) => url,
        Err(error) => return refused(Code::UrlInvalid, format!("Url is invalid: {error}")),
    };
    let judged = url
        .parsed()
        .map(|parsed| desk.guard.check_new(&parsed, environment));
    match judged {
        Some(Ok(())) => Ok(Some(url)),
        Some(Err(Forbidden::Port)) => refused(
            Code::UrlForbidden,
            "Url has a port that webhooks are not sent to".into(),
        ),
        Some(Err(Forbidden::Plain)) => refused(
            Code::UrlForbidden,
            "Url must begin with https:// for a live account".into(),
        ),
        Some(Err(Forbidden::Address)) | None => refused(
            Code::UrlForbidden,
            "Url has an address that webhooks are not sent to".into(),
        ),
    }
}

/// The new webhook secret. It is shown only now.
#[derive(Serialize, ToSchema)]
pub(super) struct NewSecret {
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    webhook_secret: String,
    #[serde(with = "rfc3339::option")]
    old_secret_until: Option<OffsetDateTime>,
}

/// Replace the webhook secret
///
/// For 24 hours each webhook has two signatures, the new secret's first. The new secret is shown only in this answer.
#[utoipa::path(post, path = "/webhook/secret", operation_id = "replace_webhook_secret", tag = "Webhook",
    responses(
        (status = 201, description = "The new secret", body = NewSecret),
        (status = 409, description = "The old secret of the last rotation still signs (`rotation_under_way`)", body = super::openapi::Message)))]
pub(super) async fn rotate_secret(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let secret = generate::webhook_secret().map_err(internal)?;
    let overlap = Overlap {
        lasts: OVERLAP,
        keep_old: false,
    };
    let desk = &app.desk;
    let rotated = desk.run(async |connection| {
        partners::rotate_webhook_secret(connection, &desk.vault, caller.id(), &secret, overlap).await
    });
    let Rotated::Until(until) = rotated.await? else {
        return Err(conflict(
            Code::RotationUnderWay,
            "The old secret of the last rotation is still valid; try again when it has ended",
        ));
    };
    tracing::info!(partner.id = %caller.id(), "a partner replaced its webhook secret");
    let new = NewSecret {
        webhook_secret: secret.to_text(),
        old_secret_until: until,
    };
    Ok(json(StatusCode::CREATED, &new))
}

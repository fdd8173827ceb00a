//! The partner's webhook endpoint: its URL, its state, its secret.

use std::{sync::Arc, time::Duration};

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
    events::Kind,
    partner_view,
    partners::{NewWebhook, Overlap, Rotated},
};
use time::{OffsetDateTime, serde::rfc3339};
use url::Url;
use utoipa::ToSchema;
use webhooks::{dns::NameError, guard::Forbidden, url::WebhookUrl};

use super::{Caller, Desk, OVERLAP, body_of, conflict, internal, json};
use crate::{
    codes::Code,
    error::{ApiError, Fault},
    routes::App,
};

/// The longest wait for the addresses of a new URL's host.
const RESOLVE: Duration = Duration::from_secs(2);
const UNRESOLVED: &str =
    "The host of the URL has no address yet. Webhooks are tried all the same, until their retries end";

/// The webhook endpoint.
#[derive(Serialize, ToSchema)]
pub(super) struct Endpoint<'a> {
    url: Option<&'a str>,
    /// The further events that are sent: `topup.failed`, `key.expiring`.
    events: &'a [String],
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
    /// Only after `PUT`, and only if something is doubtful: the host of the new URL does not resolve.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'a str>,
}

/// Show the webhook endpoint
#[utoipa::path(get, path = "/webhook", operation_id = "show_webhook", tag = "Webhook",
    responses((status = 200, description = "The endpoint", body = Endpoint)))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    current(&app.desk, &caller, None).await
}

async fn current(desk: &Desk, caller: &Caller, warning: Option<&str>) -> Result<Response, ApiError> {
    let endpoint = desk
        .run(caller.id(), async |connection| {
            partner_view::endpoint(connection, caller.id()).await
        })
        .await?
        .ok_or(ApiError::NotFound)?;
    let shown = Endpoint {
        url: endpoint.url.as_deref(),
        events: &endpoint.events,
        state: &endpoint.state,
        blocked_until: endpoint.blocked_until,
        failures: endpoint.failures,
        waiting: endpoint.waiting,
        exhausted: endpoint.exhausted,
        old_secret_until: endpoint.old_secret_until,
        warning,
    };
    Ok(json(StatusCode::OK, &shown))
}

/// The new URL, the new events, or both.
#[derive(Deserialize, ToSchema)]
#[expect(
    dead_code,
    reason = "describes the body in the OpenAPI document; `wanted` reads it"
)]
pub(super) struct NewEndpoint {
    /// An `https` URL of at most 2048 bytes, or `http` in the sandbox; null removes it.
    #[schema(example = "https://shop.example.com/webhooks")]
    url: Option<String>,
    /// The further events that are sent, of `topup.failed` and `key.expiring`. Without it, they stay.
    #[schema(example = json!(["topup.failed", "key.expiring"]))]
    events: Option<Vec<String>>,
}

/// Set the webhook URL and the further events
///
/// Webhooks that wait are sent to a new URL within seconds, and a blocked endpoint is tested at once; the same URL again
/// changes nothing. With `null`, webhooks wait until a URL is set. What is left out stays. A URL whose host has a forbidden
/// address is refused; one whose host does not resolve is set, with a `warning`.
#[utoipa::path(put, path = "/webhook", operation_id = "set_webhook", tag = "Webhook", request_body = NewEndpoint,
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
    let wanted = wanted(desk, &body, caller.0.environment)?;
    let warning = match wanted.url.as_ref().and_then(Option::as_ref) {
        Some(url) => resolved(desk, url).await?,
        None => None,
    };
    let new = NewWebhook {
        url: wanted
            .url
            .as_ref()
            .map(|url| url.as_ref().map(WebhookUrl::as_str)),
        events: wanted.events.as_deref(),
    };
    let interval = desk.redeliver_interval;
    let changing = desk.run(caller.id(), async |connection| {
        partner_view::set_webhook(connection, caller.id(), &new, interval).await
    });
    if changing.await? {
        let removed = matches!(wanted.url, Some(None));
        tracing::info!(partner.id = %caller.id(), removed, "a partner set its webhook endpoint");
    }
    current(desk, &caller, warning).await
}

/// What a body asks for; `None` keeps what is stored.
struct Wanted {
    #[expect(clippy::option_option, reason = "kept, removed or set")]
    url: Option<Option<WebhookUrl>>,
    events: Option<Vec<Kind>>,
}

fn refused<T>(parameter: &'static str, code: Code, message: String) -> Result<T, ApiError> {
    Err(ApiError::Unprocessable(vec![Fault::of_parameter(
        parameter, code, message,
    )]))
}

fn wanted(desk: &Desk, body: &[u8], environment: Environment) -> Result<Wanted, ApiError> {
    let body: Value = serde_json::from_slice(body).map_err(|_| ApiError::InvalidJson)?;
    let given = body.get("events").filter(|given| !given.is_null());
    let events = given.map(events).transpose()?;
    let url = match body.get("url") {
        Some(Value::Null) => Some(None),
        Some(Value::String(text)) => Some(Some(url(desk, text, environment)?)),
        Some(_) => return refused("url", Code::UrlInvalid, "Url must be a string or null".into()),
        None if events.is_some() => None,
        None => return refused("url", Code::UrlMissing, "Url is missing; null removes it".into()),
    };
    Ok(Wanted { url, events })
}

/// The events in a body, each once.
fn events(given: &Value) -> Result<Vec<Kind>, ApiError> {
    let names = given.as_array().map(|names| {
        let kinds = names.iter().map(|name| name.as_str()?.parse::<Kind>().ok());
        kinds.collect::<Option<Vec<Kind>>>()
    });
    let Some(Some(given)) = names else {
        let message = "Events must be a list of topup.failed and key.expiring";
        return refused("events", Code::EventsInvalid, message.into());
    };
    let chosen = Kind::CHOICES.into_iter().filter(|kind| given.contains(kind));
    Ok(chosen.collect())
}

/// A URL after all checks that need no name server.
fn url(desk: &Desk, text: &str, environment: Environment) -> Result<WebhookUrl, ApiError> {
    let url = match text.parse::<WebhookUrl>() {
        Ok(url) => url,
        Err(error) => return refused("url", Code::UrlInvalid, format!("Url is invalid: {error}")),
    };
    let judged = url
        .parsed()
        .map(|parsed| desk.guard.check_new(&parsed, environment));
    match judged.unwrap_or(Err(Forbidden::Address)) {
        Ok(()) => Ok(url),
        Err(reason) => forbidden(reason),
    }
}

fn forbidden<T>(reason: Forbidden) -> Result<T, ApiError> {
    let message = match reason {
        Forbidden::Port => "Url has a port that webhooks are not sent to",
        Forbidden::Plain => "Url must begin with https:// for a live account",
        Forbidden::Address => "Url has an address that webhooks are not sent to",
    };
    refused("url", Code::UrlForbidden, message.into())
}

/// Judges the addresses of a URL's host, as each connection does. Returns a warning if it has none now: a partner may
/// set the URL before the name.
async fn resolved(desk: &Desk, url: &WebhookUrl) -> Result<Option<&'static str>, ApiError> {
    let parsed = url.parsed();
    let Some(name) = parsed.as_ref().and_then(Url::domain) else {
        return Ok(None);
    };
    match tokio::time::timeout(RESOLVE, desk.dns.resolve(name)).await {
        Ok(Ok(_)) => Ok(None),
        Ok(Err(NameError::Forbidden(reason))) => forbidden(reason),
        Ok(Err(NameError::Unresolved)) | Err(_) => Ok(Some(UNRESOLVED)),
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
    let rotated = desk.run(caller.id(), async |connection| {
        partner_view::rotate_webhook_secret(connection, &desk.vault, caller.id(), &secret, overlap).await
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

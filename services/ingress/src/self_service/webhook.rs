//! The partner's first endpoint: its URL, its state and its secret. The checks of a URL here are
//! those of all [`super::endpoints`].
//!
//! Guarantee: a new URL passes the checks of address and port that each connection of a notifier
//! makes, too, so that a partner learns at once if its webhooks could never be sent there. It must
//! also be well-formed and have an allowed scheme. A host name is resolved, if a name server
//! responds in time. These checks help the partner. What protects our network are those of the
//! notifier, because the addresses of a name can change later.

use std::time::Duration;

use accounts::partners::{self, RotationResult, endpoints::EndpointUpdate};
use axum::{extract::Request, http::StatusCode, response::Response};
use desk::self_service::{self, FirstEndpoint};
use domain::{
    EndpointKey, Environment,
    event::{self, EventKind},
};
use serde::Serialize;
use serde_json::Value;
use signing::generate;
use time::{OffsetDateTime, serde::rfc3339};
use url::Url;
use utoipa::ToSchema;
use webhooks::{
    dns::NameError,
    guard::{Forbidden, Guard},
    url::WebhookUrl,
};

use super::{
    fields::BodyFields,
    session::{OVERLAP, SelfService, Session, json},
};
use crate::http::{
    body,
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// The longest wait for the addresses of the host of a new URL. A slow name server must not keep a
/// partner from setting a good URL.
const RESOLVE: Duration = Duration::from_secs(2);
const UNRESOLVED: &str = "The host of the URL could not be resolved. The URL is set, and webhooks are sent and retried; check its spelling and DNS";

/// Show the webhook endpoint
#[utoipa::path(get, path = "/webhook", operation_id = "show_webhook", tag = "Webhook",
    responses((status = 200, description = "The endpoint", body = FirstEndpoint)))]
pub(super) async fn show(session: Session) -> Result<Response, ApiError> {
    Ok(json(StatusCode::OK, &current(&session).await?))
}

async fn current(session: &Session) -> Result<FirstEndpoint, ApiError> {
    session
        .run(self_service::endpoint)
        .await?
        .ok_or(ErrorCode::NotFound.into())
}

/// The endpoint after a change.
#[derive(Serialize, ToSchema)]
struct ChangedEndpoint {
    #[serde(flatten)]
    endpoint: FirstEndpoint,
    /// A warning, only if the host of the new URL could not be resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'static str>,
}

/// Set the webhook URL and the further events
///
/// After a new URL is set, the webhooks that wait are sent to it within seconds, and a blocked
/// endpoint is tested at once. Setting the same URL again changes nothing. With `null` the URL is
/// removed, and webhooks wait until one is set. A field that you leave out keeps its value; one of
/// the two is required. A URL whose host has a forbidden address is refused, and each attempt checks
/// the addresses again. If the host cannot be resolved within two seconds, the URL is set and the
/// answer has a `warning`. Webhooks that are exhausted are not sent to a new URL: have them sent again.
#[utoipa::path(put, path = "/webhook", operation_id = "set_webhook", tag = "Webhook", request_body = WebhookEndpointChange,
    responses(
        (status = 200, description = "The endpoint", body = ChangedEndpoint),
        (status = 400, response = crate::http::described::InvalidJson),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn set(session: Session, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read(session.gate().max_body, &parts.headers, body).await?;
    let wanted =
        WebhookEndpointChange::read(&session.service().guard, &body, session.environment())?;
    let url = wanted.url.as_ref();
    let warning = match url.and_then(Option::as_ref) {
        Some(url) if current(&session).await?.url.as_deref() != Some(url.as_str()) => {
            resolved(session.service(), url).await?
        }
        _ => None,
    };
    let url = url.map(|url| url.as_ref().map(WebhookUrl::as_str));
    let change = EndpointUpdate {
        url,
        events: wanted.events.as_deref(),
        headers: None,
    };
    let changing = session.change(async |connection, partner| {
        self_service::change_endpoint(connection, EndpointKey::first(partner), &change).await
    });
    if changing.await? == Some(true) {
        let removed = matches!(wanted.url, Some(None));
        tracing::info!(
            partner.id = %session.id(),
            removed,
            "a partner changed its webhook URL or its events; if the URL was removed, its webhooks wait until it sets one"
        );
    }
    let changed = ChangedEndpoint {
        endpoint: current(&session).await?,
        warning,
    };
    Ok(json(StatusCode::OK, &changed))
}

/// The changes of the endpoint: a new URL, the wanted events, or both.
#[derive(ToSchema)]
struct WebhookEndpointChange {
    /// The URL that receives webhooks: `https`, or for a sandbox account also `http`, with at most
    /// 2048 bytes. `null` removes the URL. Without this field the URL stays as it is.
    #[schema(value_type = Option<String>, example = "https://shop.example.com/webhooks")]
    #[expect(clippy::option_option, reason = "kept, removed or set")]
    url: Option<Option<WebhookUrl>>,
    /// What you want to receive beside `topup.ready`, which you always do and may leave out here. An
    /// empty list means no further events. Without this field they stay as they are.
    #[schema(value_type = Option<Vec<String>>, example = json!(["topup.failed", "key.expiring"]))]
    events: Option<Vec<EventKind>>,
}

impl WebhookEndpointChange {
    /// Reads the changes, and checks what can be checked without a name server.
    fn read(guard: &Guard, body: &[u8], environment: Environment) -> Result<Self, ApiError> {
        let mut fields = BodyFields::of(body)?;
        let url = fields.nullable("url", |value| {
            url(guard, value, environment, "it must be a string or null")
        });
        let events = fields.read("events", events);
        if url.is_none() && events.is_none() && fields.is_faultless() {
            fields.fault(RequestFault::new(ErrorCode::UrlMissing).of_parameter("url"));
        }
        // It receives these anyway, and they are not among the events that are stored.
        let events = events.map(|mut events| {
            events.retain(|kind| *kind != EventKind::TopupReady);
            events
        });
        fields.check(Some(Self { url, events }))
    }
}

/// Reads the wanted events. Each is named once in the result, in the order of the choices.
/// `topup.ready` is a choice of every endpoint.
pub(super) fn events(given: &Value) -> Result<Vec<EventKind>, RequestFault> {
    let choices = EventKind::of_further_endpoints();
    let kind = |name: &Value| {
        let name = name.as_str()?;
        choices.iter().copied().find(|kind| kind.as_str() == name)
    };
    let given = given
        .as_array()
        .and_then(|names| names.iter().map(kind).collect::<Option<Vec<_>>>());
    let Some(given) = given else {
        let names = event::names(&choices).join(", ");
        return Err(RequestFault::with(ErrorCode::EventsInvalid, names));
    };
    Ok(choices
        .into_iter()
        .filter(|kind| given.contains(kind))
        .collect())
}

/// Parses a URL, and makes all checks that need no name server. `no_string` says what the value
/// must be if it is no string.
pub(super) fn url(
    guard: &Guard,
    given: &Value,
    environment: Environment,
    no_string: &str,
) -> Result<WebhookUrl, RequestFault> {
    let Some(text) = given.as_str() else {
        return Err(RequestFault::with(ErrorCode::UrlInvalid, no_string));
    };
    let url: WebhookUrl = text
        .parse()
        .map_err(|error| RequestFault::with(ErrorCode::UrlInvalid, error))?;
    let judged = url
        .parsed()
        .map(|parsed| guard.check_new(&parsed, environment));
    match judged.unwrap_or(Err(Forbidden::Address)) {
        Ok(()) => Ok(url),
        Err(reason) => Err(forbidden(reason)),
    }
}

/// What is wrong with a URL that webhooks are not sent to.
fn forbidden(reason: Forbidden) -> RequestFault {
    let detail = match reason {
        Forbidden::Port => "has a port that webhooks are not sent to",
        Forbidden::Plain => "must begin with https:// for a live account",
        Forbidden::Address => "has an address that webhooks are not sent to",
    };
    RequestFault::with(ErrorCode::UrlForbidden, detail)
}

/// Resolves the host of a URL and judges its addresses, as each connection does. If they are not
/// found in time, the result is a warning and not an error, because a partner may set the URL
/// before it creates the name.
pub(super) async fn resolved(
    service: &SelfService,
    url: &WebhookUrl,
) -> Result<Option<&'static str>, ApiError> {
    let parsed = url.parsed();
    let Some(name) = parsed.as_ref().and_then(Url::domain) else {
        return Ok(None);
    };
    let resolving = async {
        let _permit = service.resolving.acquire().await;
        service.dns.resolve(name).await
    };
    match tokio::time::timeout(RESOLVE, resolving).await {
        Ok(Ok(_)) => Ok(None),
        Ok(Err(NameError::Forbidden(reason))) => {
            let fault = forbidden(reason).of_parameter("url");
            Err(ApiError::Unprocessable(vec![fault]))
        }
        Ok(Err(NameError::Unresolved)) | Err(_) => Ok(Some(UNRESOLVED)),
    }
}

/// The new webhook secret. It is shown only in this answer, because only its encrypted form is
/// kept.
#[derive(Serialize, ToSchema)]
pub(super) struct NewSecret {
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    pub(super) webhook_secret: String,
    #[serde(with = "rfc3339::option")]
    pub(super) old_secret_until: Option<OffsetDateTime>,
}

/// Replace the webhook secret
///
/// For 24 hours each webhook has two signatures, that of the new secret first, so that you can
/// change your program without missing a webhook. The new secret is shown only in this answer.
#[utoipa::path(post, path = "/webhook/secret", operation_id = "replace_webhook_secret", tag = "Webhook",
    responses(
        (status = 201, description = "The new secret", body = NewSecret),
        (status = 409, description = "The old secret of the last rotation still signs webhooks, so there cannot be a further one (`rotation_under_way`)", body = crate::http::described::Message)))]
pub(super) async fn rotate_secret(session: Session) -> Result<Response, ApiError> {
    replace_secret(&session).await
}

/// Replaces the secret of the first endpoint.
pub(super) async fn replace_secret(session: &Session) -> Result<Response, ApiError> {
    let secret = generate::webhook_secret().map_err(ApiError::internal)?;
    let vault = &session.service().vault;
    let rotated = session.change(async |connection, partner| {
        self_service::rotate(
            connection,
            partner,
            domain::Command::WebhookSecretRotate,
            async |transaction| {
                partners::rotate_secret(
                    transaction,
                    vault,
                    EndpointKey::first(partner),
                    &secret,
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
    tracing::info!(partner.id = %session.id(), "a partner replaced its webhook secret; for 24 hours the old one also signs");
    let new = NewSecret {
        webhook_secret: secret.to_text(),
        old_secret_until: until,
    };
    Ok(json(StatusCode::CREATED, &new))
}

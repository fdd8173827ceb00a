//! All endpoints of a partner: the first one, which is its webhook URL, and further ones, each with
//! its own secret, events, headers, pause and health.
//!
//! Guarantee: an endpoint of another partner is answered like an unknown one. Secrets and the
//! values of headers are never shown after the request that set them. A URL passes the same checks
//! as that of the first endpoint ([`super::webhook`]).

use accounts::partners::{
    self, RotationResult,
    endpoints::{self, EndpointUpdate, Headers, MOST, NewEndpoint},
};
use axum::{extract::Request, http::StatusCode, response::Response};
use desk::self_service::{self, AnyEndpoint, PauseChanged};
use domain::{EndpointId, EndpointKey, Stored, event::EventKind, standing::EndpointState};
use serde::Serialize;
use serde_json::Value;
use signing::generate;
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use webhooks::{headers, url::WebhookUrl};

use super::{
    events,
    fields::BodyFields,
    session::{OVERLAP, PathId, Session, json},
    webhook::{self, NewSecret, replace_secret, resolved, url},
};
use crate::http::{
    body,
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// An endpoint with its health.
#[derive(Serialize, ToSchema)]
struct WebhookEndpoint {
    /// Names the endpoint. It stays the same for its whole life.
    #[schema(value_type = Uuid)]
    endpoint_id: EndpointId,
    /// Whether it is the first endpoint, whose URL and events `PUT /webhook` sets.
    first: bool,
    /// Null only for a first endpoint whose URL is not set.
    url: Option<String>,
    /// What it receives: `topup.ready` and the names of further events. The first endpoint always
    /// receives `topup.ready`.
    events: Vec<String>,
    /// The names of the headers that each request to it carries. Their values are not shown.
    header_names: Vec<String>,
    /// `open`, `blocked` (after failures), `probing` (one webhook tests it), `paused` or `no_url`.
    #[schema(value_type = String)]
    state: Stored<EndpointState>,
    /// Who has paused it: `you` or `us`; null if it is not paused.
    paused_by: Option<&'static str>,
    #[serde(with = "rfc3339::option")]
    blocked_until: Option<OffsetDateTime>,
    /// False if its host has not proved yet that it wants webhooks: it then gets one a second, until
    /// it returns the `challenge` of a test.
    proven: bool,
    /// Consecutive failed attempts.
    failures: i32,
    /// Webhooks that wait for an attempt, counted up to 10,000.
    waiting: i64,
    /// Webhooks whose retries have ended, counted up to 10,000.
    exhausted: i64,
    /// Until when the old secret signs, too.
    #[serde(with = "rfc3339::option")]
    old_secret_until: Option<OffsetDateTime>,
    #[serde(with = "rfc3339")]
    created_at: OffsetDateTime,
}

impl WebhookEndpoint {
    fn new(session: &Session, endpoint: AnyEndpoint) -> Result<Self, ApiError> {
        let id = endpoint.endpoint_id;
        let headers = match &endpoint.headers {
            Some(sealed) => endpoints::open_headers(&session.service().vault, id, sealed)
                .map_err(ApiError::internal)?,
            None => Headers::new(),
        };
        // The interface says who has paused it beside the state.
        let (state, paused_by) = match endpoint.state.known() {
            Some(EndpointState::Paused) => (endpoint.state, Some("us")),
            Some(EndpointState::PausedByPartner) => {
                (Stored::Known(EndpointState::Paused), Some("you"))
            }
            Some(
                EndpointState::Open
                | EndpointState::NoUrl
                | EndpointState::Blocked
                | EndpointState::Probing
                | EndpointState::Unverified,
            )
            | None => (endpoint.state, None),
        };
        Ok(Self {
            endpoint_id: id,
            first: id == session.id().first_endpoint(),
            url: endpoint.url,
            events: endpoint.events,
            header_names: headers.into_keys().collect(),
            state,
            paused_by,
            blocked_until: endpoint.blocked_until,
            proven: endpoint.proven,
            failures: endpoint.failures,
            waiting: endpoint.waiting,
            exhausted: endpoint.exhausted,
            old_secret_until: endpoint.old_secret_until,
            created_at: endpoint.created_at,
        })
    }
}

/// All endpoints of the account.
#[derive(Serialize, ToSchema)]
struct WebhookEndpoints {
    /// The first endpoint and then the further ones, the oldest first.
    endpoints: Vec<WebhookEndpoint>,
}

/// List the endpoints
///
/// The first one is the webhook URL of the account. Each endpoint gets the webhooks that it asks
/// for, and is blocked, paused and tested by itself.
#[utoipa::path(get, path = "/endpoints", operation_id = "list_endpoints", tag = "Endpoints",
    responses((status = 200, description = "The endpoints", body = WebhookEndpoints)))]
pub(super) async fn list(session: Session) -> Result<Response, ApiError> {
    let found = session
        .run(async |connection, partner| self_service::endpoints(connection, partner, None).await)
        .await?;
    let shown: Result<Vec<WebhookEndpoint>, ApiError> = found
        .into_iter()
        .map(|endpoint| WebhookEndpoint::new(&session, endpoint))
        .collect();
    Ok(json(
        StatusCode::OK,
        &WebhookEndpoints { endpoints: shown? },
    ))
}

/// The endpoint with this id, as it is shown; a 404 if the partner has none.
async fn current(session: &Session, id: EndpointId) -> Result<WebhookEndpoint, ApiError> {
    let found = session.run(async |connection, partner| {
        self_service::endpoints(connection, partner, Some(id)).await
    });
    let endpoint = found.await?.pop().ok_or(ErrorCode::NotFound)?;
    WebhookEndpoint::new(session, endpoint)
}

/// Show an endpoint
#[utoipa::path(get, path = "/endpoints/{endpoint_id}", operation_id = "show_endpoint", tag = "Endpoints",
    params(("endpoint_id" = Uuid, Path, description = "The id of the endpoint")),
    responses((status = 200, description = "The endpoint", body = WebhookEndpoint), (status = 404, response = crate::http::described::NotFound)))]
pub(super) async fn show(
    session: Session,
    PathId(id): PathId<EndpointId>,
) -> Result<Response, ApiError> {
    Ok(json(StatusCode::OK, &current(&session, id).await?))
}

/// A new endpoint, or a changed one.
#[derive(Serialize, ToSchema)]
struct ChangedWebhookEndpoint {
    #[serde(flatten)]
    endpoint: WebhookEndpoint,
    /// The secret that signs its webhooks, only in the answer that creates it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    webhook_secret: Option<String>,
    /// A warning, only if the host of the new URL could not be resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'static str>,
}

/// Create a further endpoint
///
/// From now on it gets, beside the first endpoint, the webhooks that `events` names, signed with a
/// secret of its own, which only this answer shows. A webhook has the same `webhook-id` at each
/// endpoint if it is about a ready eSIM. An account has at most ten endpoints with the first one. If
/// the answer is lost, list the endpoints, and delete the one whose secret you do not have.
#[utoipa::path(post, path = "/endpoints", operation_id = "create_endpoint", tag = "Endpoints", request_body = NewFurtherEndpoint,
    responses(
        (status = 201, description = "The endpoint with its secret", body = ChangedWebhookEndpoint),
        (status = 400, response = crate::http::described::InvalidJson),
        (status = 409, description = "The account has the maximum number of endpoints (`too_many_endpoints`)", body = crate::http::described::Message),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn create(session: Session, request: Request) -> Result<Response, ApiError> {
    let wanted = NewFurtherEndpoint::read(&session, request).await?;
    let warning = resolved(session.service(), &wanted.url).await?;
    let secret = generate::webhook_secret().map_err(ApiError::internal)?;
    let vault = &session.service().vault;
    let key = EndpointKey {
        partner_id: session.id(),
        id: EndpointId::new(),
    };
    let new = NewEndpoint {
        key,
        url: wanted.url.as_str(),
        secret: &secret,
        events: wanted.events.as_deref().unwrap_or(&[EventKind::TopupReady]),
        headers: &wanted.headers.unwrap_or_default(),
    };
    let creating = session
        .change(async |connection, _| self_service::create_endpoint(connection, vault, &new).await);
    if !creating.await? {
        return Err(ApiError::with(ErrorCode::TooManyEndpoints, MOST));
    }
    tracing::info!(
        partner.id = %key.partner_id, endpoint.id = %key.id,
        "a partner created a further endpoint"
    );
    let changed = ChangedWebhookEndpoint {
        endpoint: current(&session, key.id).await?,
        webhook_secret: Some(secret.to_text()),
        warning,
    };
    Ok(json(StatusCode::CREATED, &changed))
}

/// A new further endpoint.
#[derive(ToSchema)]
struct NewFurtherEndpoint {
    /// The URL that receives webhooks: `https`, or for a sandbox account also `http`, with at most
    /// 2048 bytes.
    #[schema(value_type = String, example = "https://crm.example.com/esims")]
    url: WebhookUrl,
    /// What it receives: `topup.ready`, which is the webhook of a ready eSIM, and further events, as
    /// `EventChoice` lists them. The default is `topup.ready` alone.
    #[schema(value_type = Option<Vec<String>>, example = json!(["topup.ready", "topup.failed"]))]
    events: Option<Vec<EventKind>>,
    /// Headers that each request to it carries, for example the key of your gateway. They are
    /// stored encrypted and never shown again.
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>, example = json!({"x-api-key": "s3cret"}))]
    headers: Option<Headers>,
}

impl NewFurtherEndpoint {
    async fn read(session: &Session, request: Request) -> Result<Self, ApiError> {
        let mut fields = fields(session, request).await?;
        let missing = RequestFault::new(ErrorCode::UrlMissing);
        let url = fields.required("url", missing, |value| further_url(session, value));
        let events = fields.read("events", webhook::events);
        let headers = fields.read("headers", wanted_headers);
        let made = url.map(|url| Self {
            url,
            events,
            headers,
        });
        fields.check(made)
    }
}

/// The changes of a further endpoint; a field that is left out keeps its value.
#[derive(ToSchema)]
struct EndpointChange {
    #[schema(value_type = Option<String>, example = "https://crm.example.com/esims")]
    url: Option<WebhookUrl>,
    #[schema(value_type = Option<Vec<String>>, example = json!(["topup.ready"]))]
    events: Option<Vec<EventKind>>,
    /// Replaces all headers; an empty object removes them.
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>, example = json!({"x-api-key": "s3cret"}))]
    headers: Option<Headers>,
}

impl EndpointChange {
    async fn read(session: &Session, request: Request) -> Result<Self, ApiError> {
        let mut fields = fields(session, request).await?;
        let change = Self {
            url: fields.read("url", |value| further_url(session, value)),
            events: fields.read("events", webhook::events),
            headers: fields.read("headers", wanted_headers),
        };
        let is_empty = change.url.is_none() && change.events.is_none() && change.headers.is_none();
        if is_empty && fields.is_faultless() {
            fields.fault(RequestFault::new(ErrorCode::UrlMissing).of_parameter("url"));
        }
        fields.check(Some(change))
    }
}

async fn fields(session: &Session, request: Request) -> Result<BodyFields, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read(session.gate().max_body, &parts.headers, body).await?;
    BodyFields::of(&body)
}

fn further_url(session: &Session, value: &Value) -> Result<WebhookUrl, RequestFault> {
    let guard = &session.service().guard;
    url(guard, value, session.environment(), "it must be a string")
}

/// Reads the wanted headers. Messages about them never repeat a value, which may be a secret.
fn wanted_headers(given: &Value) -> Result<Headers, RequestFault> {
    let wrong =
        |why: &dyn std::fmt::Display| Err(RequestFault::with(ErrorCode::HeadersInvalid, why));
    let Some(given) = given.as_object() else {
        return wrong(&"they must be an object of strings");
    };
    let mut wanted = Headers::new();
    let mut bytes = 0;
    for (name, value) in given {
        let Some(value) = value.as_str() else {
            return wrong(&"each value must be a string");
        };
        let name = match headers::check(name, value) {
            Ok(name) => name,
            Err(error) => return wrong(&error),
        };
        bytes += name.len() + value.len();
        let read = headers::as_read(&name);
        if wanted
            .keys()
            .any(|other: &String| headers::as_read(other) == read)
        {
            return wrong(&"a name is given twice (gateways read _ as -)");
        }
        wanted.insert(name, value.to_owned());
    }
    if wanted.len() > headers::MOST || bytes > headers::MOST_BYTES {
        return wrong(&format_args!(
            "at most {} headers with {} bytes are allowed",
            headers::MOST,
            headers::MOST_BYTES
        ));
    }
    Ok(wanted)
}

/// The further endpoint that a path names. The first one is refused, because it is changed by other
/// requests.
fn further_key(session: &Session, id: EndpointId) -> Result<EndpointKey, ApiError> {
    let key = EndpointKey {
        partner_id: session.id(),
        id,
    };
    if key.is_first() {
        return Err(ErrorCode::FirstEndpoint.into());
    }
    Ok(key)
}

/// Change a further endpoint
///
/// A field that you leave out keeps its value; one of them is required. After a new URL is set, the
/// webhooks that wait are sent to it within seconds, and a blocked endpoint is tested at once.
/// Change the first endpoint with `PUT /webhook`.
#[utoipa::path(put, path = "/endpoints/{endpoint_id}", operation_id = "change_endpoint", tag = "Endpoints", request_body = EndpointChange,
    params(("endpoint_id" = Uuid, Path, description = "The id of the endpoint")),
    responses(
        (status = 200, description = "The endpoint", body = ChangedWebhookEndpoint),
        (status = 400, response = crate::http::described::InvalidJson),
        (status = 404, response = crate::http::described::NotFound),
        (status = 409, description = "It is the first endpoint (`first_endpoint`)", body = crate::http::described::Message),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn change(
    session: Session,
    PathId(id): PathId<EndpointId>,
    request: Request,
) -> Result<Response, ApiError> {
    let key = further_key(&session, id)?;
    let stored = current(&session, id).await?;
    let wanted = EndpointChange::read(&session, request).await?;
    let warning = match &wanted.url {
        Some(url) if stored.url.as_deref() != Some(url.as_str()) => {
            resolved(session.service(), url).await?
        }
        _ => None,
    };
    let vault = &session.service().vault;
    let change = EndpointUpdate {
        url: wanted.url.as_ref().map(|url| Some(url.as_str())),
        events: wanted.events.as_deref(),
        headers: wanted.headers.as_ref().map(|headers| (vault, headers)),
    };
    let changing = session.change(async |connection, _| {
        self_service::change_endpoint(connection, key, &change).await
    });
    if changing.await?.is_none() {
        return Err(ErrorCode::NotFound.into());
    }
    tracing::info!(
        partner.id = %key.partner_id, endpoint.id = %id,
        "a partner changed a further endpoint"
    );
    let changed = ChangedWebhookEndpoint {
        endpoint: current(&session, id).await?,
        webhook_secret: None,
        warning,
    };
    Ok(json(StatusCode::OK, &changed))
}

/// Delete a further endpoint
///
/// Nothing is sent to it any more, not even the webhooks that wait. A request that is under way is
/// finished. The other endpoints are not affected.
#[utoipa::path(delete, path = "/endpoints/{endpoint_id}", operation_id = "delete_endpoint", tag = "Endpoints",
    params(("endpoint_id" = Uuid, Path, description = "The id of the endpoint")),
    responses(
        (status = 204, description = "The endpoint is deleted"),
        (status = 404, response = crate::http::described::NotFound),
        (status = 409, description = "It is the first endpoint (`first_endpoint`)", body = crate::http::described::Message)))]
pub(super) async fn delete(
    session: Session,
    PathId(id): PathId<EndpointId>,
) -> Result<Response, ApiError> {
    let key = further_key(&session, id)?;
    let deleting =
        session.change(async |connection, _| self_service::delete_endpoint(connection, key).await);
    if !deleting.await? {
        return Err(ErrorCode::NotFound.into());
    }
    tracing::info!(
        partner.id = %key.partner_id, endpoint.id = %id,
        "a partner deleted a further endpoint; what waited for it is not sent any more"
    );
    Ok(axum::response::IntoResponse::into_response(
        StatusCode::NO_CONTENT,
    ))
}

/// Replace the secret of an endpoint
///
/// For 24 hours each webhook to it has two signatures, that of the new secret first. The new secret
/// is shown only in this answer. For the first endpoint this is the same as `POST /webhook/secret`.
#[utoipa::path(post, path = "/endpoints/{endpoint_id}/secret", operation_id = "replace_endpoint_secret", tag = "Endpoints",
    params(("endpoint_id" = Uuid, Path, description = "The id of the endpoint")),
    responses(
        (status = 201, description = "The new secret", body = NewSecret),
        (status = 404, response = crate::http::described::NotFound),
        (status = 409, description = "The old secret of the last rotation still signs webhooks, so there cannot be a further one (`rotation_under_way`)", body = crate::http::described::Message)))]
pub(super) async fn secret(
    session: Session,
    PathId(id): PathId<EndpointId>,
) -> Result<Response, ApiError> {
    let Ok(key) = further_key(&session, id) else {
        return replace_secret(&session).await;
    };
    // A rotation of an unknown endpoint is refused like one that is under way, so it is looked for.
    current(&session, id).await?;
    let secret = generate::webhook_secret().map_err(ApiError::internal)?;
    let vault = &session.service().vault;
    let rotated = session.change(async |connection, partner| {
        self_service::rotate(
            connection,
            partner,
            domain::Command::EndpointSecretRotate,
            async |transaction| {
                partners::rotate_secret(transaction, vault, key, &secret, OVERLAP).await
            },
        )
        .await
    });
    let RotationResult::Until(until) = rotated.await? else {
        return Err(ErrorCode::RotationUnderWay.into());
    };
    tracing::info!(
        partner.id = %key.partner_id, endpoint.id = %id,
        "a partner replaced the secret of a further endpoint; for 24 hours the old one also signs"
    );
    let new = NewSecret {
        webhook_secret: secret.to_text(),
        old_secret_until: until,
    };
    Ok(json(StatusCode::CREATED, &new))
}

/// Pause an endpoint
///
/// Its webhooks wait until you resume it, without using up attempts. Your other endpoints go on.
/// Pausing a paused endpoint changes nothing.
#[utoipa::path(post, path = "/endpoints/{endpoint_id}/pause", operation_id = "pause_endpoint", tag = "Endpoints",
    params(("endpoint_id" = Uuid, Path, description = "The id of the endpoint")),
    responses(
        (status = 200, description = "The endpoint", body = WebhookEndpoint),
        (status = 404, response = crate::http::described::NotFound)))]
pub(super) async fn pause(
    session: Session,
    PathId(id): PathId<EndpointId>,
) -> Result<Response, ApiError> {
    let pausing = session.change(async |connection, partner_id| {
        self_service::pause_endpoint(connection, EndpointKey { partner_id, id }).await
    });
    pause_changed(&session, id, pausing.await?).await
}

/// Resume an endpoint
///
/// The webhooks that wait are sent within seconds. Resuming an endpoint that is not paused changes
/// nothing.
#[utoipa::path(post, path = "/endpoints/{endpoint_id}/resume", operation_id = "resume_endpoint", tag = "Endpoints",
    params(("endpoint_id" = Uuid, Path, description = "The id of the endpoint")),
    responses(
        (status = 200, description = "The endpoint", body = WebhookEndpoint),
        (status = 404, response = crate::http::described::NotFound),
        (status = 409, description = "We have paused the endpoint, so ask us to resume it (`webhook_paused`)", body = crate::http::described::Message)))]
pub(super) async fn resume(
    session: Session,
    PathId(id): PathId<EndpointId>,
) -> Result<Response, ApiError> {
    let resuming = session.change(async |connection, partner_id| {
        self_service::resume_endpoint(connection, EndpointKey { partner_id, id }).await
    });
    pause_changed(&session, id, resuming.await?).await
}

async fn pause_changed(
    session: &Session,
    id: EndpointId,
    changed: PauseChanged,
) -> Result<Response, ApiError> {
    match changed {
        PauseChanged::Unknown => Err(ErrorCode::NotFound.into()),
        PauseChanged::ByOperator => Err(ErrorCode::WebhookPaused.into()),
        PauseChanged::Done => Ok(json(StatusCode::OK, &current(session, id).await?)),
    }
}

/// Test an endpoint
///
/// Sends a signed `webhook.test` event to it, once, and waits for the outcome, as `POST
/// /webhook/test` does for the first endpoint.
#[utoipa::path(post, path = "/endpoints/{endpoint_id}/test", operation_id = "test_endpoint", tag = "Endpoints",
    params(("endpoint_id" = Uuid, Path, description = "The id of the endpoint")),
    responses(
        (status = 200, description = "The outcome: `delivered`, or `exhausted`, which means that the test failed for the reason in its attempt", body = events::EventDetail),
        (status = 202, description = "The outcome is not known yet: look the event up", body = events::EventDetail),
        (status = 404, response = crate::http::described::NotFound),
        (status = 409, description = "No webhook URL is set (`webhook_url_missing`), or the endpoint is paused (`webhook_paused`)", body = crate::http::described::Message),
        (status = 429, description = "The last test of this endpoint was a moment ago (`tested_recently`); `Retry-After` says when to try again", body = crate::http::described::Message)))]
pub(super) async fn test(
    session: Session,
    PathId(id): PathId<EndpointId>,
) -> Result<Response, ApiError> {
    let key = EndpointKey {
        partner_id: session.id(),
        id,
    };
    if !key.is_first() {
        current(&session, id).await?;
    }
    events::test_endpoint(&session, key).await
}

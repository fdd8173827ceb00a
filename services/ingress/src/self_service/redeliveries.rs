//! Redeliveries: a partner asks for many of its webhooks to be sent again.
//!
//! Guarantee: ingress only stores what is wanted, and the notifiers do the work
//! ([`store::deliveries::resends`]). The body says what is sent again, so it counts only if the
//! signature covers it: otherwise somebody who has captured the headers of one request could send
//! them with another body.

use axum::{
    extract::Request,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use domain::standing::DeliveryState;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::deliveries::resends::{self, PartnerResend, ResendSelection, ResendStart};
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{
    delivery_list::WebhookState,
    fields::BodyFields,
    query::{Query, moment, time_fault},
    session::{PathId, Search, Session, json},
};
use crate::http::{
    body,
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// The states whose webhooks can be sent again, as errors list them.
const STATES: &str = "exhausted, pending or delivered";

/// How far a redelivery is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum RedeliveryStatus {
    /// Webhooks are still being sent.
    Running,
    /// Each webhook that matched was sent once more, or is being sent. Those that fail are retried
    /// by the schedule.
    Ended,
    /// You ended it early.
    Cancelled,
}

/// Many webhooks that are sent again.
#[derive(Serialize, ToSchema)]
struct ManyAgain<'a> {
    redelivery_id: Uuid,
    status: RedeliveryStatus,
    /// The state that the webhooks had; null means that both `exhausted` and `pending` ones are
    /// sent again.
    #[schema(value_type = Option<WebhookState>)]
    state: Option<&'a str>,
    #[serde(with = "rfc3339")]
    since: OffsetDateTime,
    #[serde(with = "rfc3339")]
    until: OffsetDateTime,
    /// How many webhooks matched when it began; null if there were more than we count, which is
    /// 10,000.
    matching: Option<i64>,
    /// How many webhooks were handed over for sending so far. It may end below `matching`, because
    /// webhooks that are sent meanwhile anyway, or whose eSIM was erased, are left out.
    redelivered: i64,
    #[serde(with = "rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "rfc3339::option")]
    ended_at: Option<OffsetDateTime>,
}

impl<'a> From<&'a PartnerResend> for ManyAgain<'a> {
    fn from(stored: &'a PartnerResend) -> Self {
        let status = match (stored.ended_at, stored.cancelled_at) {
            (None, _) => RedeliveryStatus::Running,
            (Some(_), None) => RedeliveryStatus::Ended,
            (Some(_), Some(_)) => RedeliveryStatus::Cancelled,
        };
        Self {
            redelivery_id: stored.resend_id,
            status,
            state: stored.state.as_str(),
            since: stored.since,
            until: stored.until,
            matching: stored.matching,
            redelivered: stored.resent,
            created_at: stored.created_at,
            ended_at: stored.ended_at,
        }
    }
}

/// Redeliveries, the newest first.
#[derive(Serialize, ToSchema)]
struct Redeliveries<'a> {
    redeliveries: Vec<ManyAgain<'a>>,
}

/// Which webhooks are sent again.
#[derive(ToSchema)]
struct RedeliveryRequest {
    /// Only webhooks whose last attempt began at this RFC 3339 time or later; before the first
    /// attempt the time of creation counts. With the state `delivered`, they must also have been
    /// created at most 7 days before it.
    #[schema(value_type = String, format = DateTime, example = "2026-11-22T10:00:00Z")]
    since: OffsetDateTime,
    /// Only webhooks whose last attempt began before this time. Without it, until now.
    #[schema(value_type = Option<String>, format = DateTime, example = "2026-11-22T12:00:00Z")]
    until: Option<OffsetDateTime>,
    /// `exhausted`, `pending` (those that wait for a retry) or `delivered` (those that you
    /// acknowledged and lost). Without it, the first two.
    state: Option<RedeliverableState>,
}

/// A state of webhooks that can be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum RedeliverableState {
    Exhausted,
    Pending,
    Delivered,
}

impl From<RedeliverableState> for DeliveryState {
    fn from(state: RedeliverableState) -> Self {
        match state {
            RedeliverableState::Exhausted => Self::Exhausted,
            RedeliverableState::Pending => Self::Pending,
            RedeliverableState::Delivered => Self::Delivered,
        }
    }
}

impl RedeliveryRequest {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = BodyFields::of(body)?;
        let time = |name| {
            move |value: &Value| {
                value
                    .as_str()
                    .and_then(moment)
                    .ok_or_else(|| time_fault(name))
            }
        };
        let since = fields.required("since", time_fault("since"), time("since"));
        let until = fields.read("until", time("until"));
        let state = fields.read("state", |value| {
            RedeliverableState::deserialize(value)
                .map_err(|_| RequestFault::with(ErrorCode::WebhookStateInvalid, STATES))
        });
        fields.check(since.map(|since| Self {
            since,
            until,
            state,
        }))
    }
}

/// Send many webhooks again
///
/// Sends again what you have missed, for example while your endpoint was down: all webhooks whose
/// last attempt began in the given range of time and that you did not acknowledge, or with `state`
/// those in this state. Each keeps its `webhook-id`, so that your program can recognise a repeat,
/// and its retries begin anew. The webhooks are sent at the pace of your endpoint; new ones do not
/// wait behind them, because at most 200 of an endpoint wait for an attempt at a time. Left out are
/// webhooks whose eSIM was erased, notices, and webhooks that are due anyway, for example because
/// their endpoint is blocked; so `matching` can be 0 in the middle of an outage. The answer comes at
/// once; look the redelivery up to see its progress. One redelivery can run at a time, and a further
/// one can begin a minute after the last one began. This request needs a signature that covers its
/// body.
#[utoipa::path(post, path = "/webhooks/redeliver", operation_id = "redeliver_webhooks", tag = "Webhook",
    request_body = RedeliveryRequest,
    security(("access_key" = [], "timestamp" = [], "signature" = [], "content_sha256" = [])),
    responses(
        (status = 202, description = "It has begun", body = ManyAgain,
            headers(("Location" = String, description = "The path of the redelivery"))),
        (status = 400, response = crate::http::described::InvalidJson),
        (status = 409, description = "Another redelivery is running, which `Location` and the message name (`redelivery_running`), or no webhook URL is set (`webhook_url_missing`)", body = crate::http::described::Message,
            headers(("Location" = String, description = "The path of the running redelivery"))),
        (status = 422, response = crate::http::described::Unprocessable),
        (status = 429, description = "The last redelivery began less than a minute ago (`redelivered_recently`); `Retry-After` says when to try again", body = crate::http::described::Message)))]
pub(super) async fn begin(session: Session, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    session.requires_signed_body()?;
    let body = body::read(session.gate().max_body, &parts.headers, body).await?;
    let asked = RedeliveryRequest::read(&body)?;
    let wanted = ResendSelection {
        state: asked.state.map(DeliveryState::from),
        since: asked.since,
        until: asked.until,
    };
    let interval = session.gate().limits.redeliver_interval;
    let beginning = session.change(async |connection, partner| {
        resends::begin(connection, partner, &wanted, interval).await
    });
    let path = parts.uri.path();
    match beginning.await? {
        ResendStart::Begun(begun) => {
            let id = begun.resend_id;
            tracing::info!(
                partner.id = %session.id(),
                redelivery.id = %id,
                matching = begun.matching,
                "a partner asked for many webhooks to be sent again; the notifiers send them"
            );
            let answer = json(StatusCode::ACCEPTED, &ManyAgain::from(&begun));
            Ok(with_location(answer, path, id))
        }
        ResendStart::Running(id) => {
            let answer = ApiError::with(ErrorCode::RedeliveryRunning, id).into_response();
            Ok(with_location(answer, path, id))
        }
        ResendStart::TooSoon(wait) => Err(ApiError::too_soon(ErrorCode::RedeliveredRecently, wait)),
        ResendStart::NoEndpoint => Err(ErrorCode::WebhookUrlMissing.into()),
    }
}

/// Adds the path of a redelivery, below the path that the request was sent to.
fn with_location(mut answer: Response, path: &str, id: Uuid) -> Response {
    if let Ok(location) = HeaderValue::try_from(format!("{path}/{id}")) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    answer
}

/// List redeliveries
///
/// The newest come first. They are kept for 30 days.
#[utoipa::path(get, path = "/webhooks/redeliver", operation_id = "list_redeliveries", tag = "Webhook",
    params(("limit" = Option<u16>, Query, minimum = 1, maximum = 100, description = "Maximum number of redeliveries, from 1 to 100; the default is 20")),
    responses(
        (status = 200, description = "The newest redeliveries", body = Redeliveries),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn list(Search(session, uri): Search) -> Result<Response, ApiError> {
    let mut query = Query::of(&uri);
    let limit = query.limit();
    query.check()?;
    let listing = session
        .run(async |connection, partner| resends::list(connection, partner, limit.into()).await);
    let found = listing.await?;
    let shown = Redeliveries {
        redeliveries: found.iter().map(ManyAgain::from).collect(),
    };
    Ok(json(StatusCode::OK, &shown))
}

/// Look up a redelivery
#[utoipa::path(get, path = "/webhooks/redeliver/{redelivery_id}", operation_id = "show_redelivery", tag = "Webhook",
    params(("redelivery_id" = Uuid, Path, description = "The id of the redelivery")),
    responses((status = 200, description = "The redelivery with its progress", body = ManyAgain), (status = 404, response = crate::http::described::NotFound)))]
pub(super) async fn show(session: Session, PathId(id): PathId<Uuid>) -> Result<Response, ApiError> {
    let finding =
        session.run(async |connection, partner| resends::find(connection, partner, id).await);
    let found = finding.await?.ok_or(ErrorCode::NotFound)?;
    Ok(json(StatusCode::OK, &ManyAgain::from(&found)))
}

/// Cancel a redelivery
///
/// No further webhooks are handed over for sending. Those that were are still sent and retried.
/// Repeating the request, or cancelling a redelivery that has ended, changes nothing.
#[utoipa::path(delete, path = "/webhooks/redeliver/{redelivery_id}", operation_id = "cancel_redelivery", tag = "Webhook",
    params(("redelivery_id" = Uuid, Path, description = "The id of the redelivery")),
    responses((status = 200, description = "The redelivery, which has ended", body = ManyAgain), (status = 404, response = crate::http::described::NotFound)))]
pub(super) async fn cancel(
    session: Session,
    PathId(id): PathId<Uuid>,
) -> Result<Response, ApiError> {
    let cancelling =
        session.change(async |connection, partner| resends::cancel(connection, partner, id).await);
    let found = cancelling.await?.ok_or(ErrorCode::NotFound)?;
    Ok(json(StatusCode::OK, &ManyAgain::from(&found)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(body: &str) -> Vec<(ErrorCode, Option<&'static str>)> {
        match RedeliveryRequest::read(body.as_bytes()) {
            Err(ApiError::Unprocessable(faults)) => faults
                .iter()
                .map(|fault| (fault.code, fault.parameter))
                .collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn the_body_names_a_beginning_and_all_faults_are_reported() {
        let since = (ErrorCode::TimeInvalid, Some("since"));
        let until = (ErrorCode::TimeInvalid, Some("until"));
        let state = (ErrorCode::WebhookStateInvalid, Some("state"));
        for (body, expected) in [
            ("{}", vec![since]),
            ("[]", vec![(ErrorCode::BodyNotObject, None)]),
            (r#"{"since": null}"#, vec![since]),
            (
                r#"{"since": 7, "until": "now", "state": "lost"}"#,
                vec![since, until, state],
            ),
            (
                r#"{"since": "2026-01-01T00:00:00Z", "state": "no_endpoint"}"#,
                vec![state],
            ),
            (
                r#"{"since": "2026-01-01T00:00:00Z", "untill": "2026-01-02T00:00:00Z"}"#,
                vec![(ErrorCode::ParameterUnknown, None)],
            ),
            (
                r#"{"since": "2026-01-01T00:00:00Z", "until": null, "state": null}"#,
                vec![],
            ),
            (
                r#"{"since": "2026-01-01T00:00:00+01:00", "state": "delivered"}"#,
                vec![],
            ),
        ] {
            assert_eq!(faults(body), expected, "{body}");
        }
        assert!(RedeliveryRequest::read(b"{}").is_err() && RedeliveryRequest::read(b"").is_err());
        let good = RedeliveryRequest::read(br#"{"since": "2026-01-01T00:00:00Z"}"#).unwrap();
        assert_eq!((good.state, good.until), (None, None));
    }
}

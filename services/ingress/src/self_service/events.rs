//! Events for the partner's endpoint other than the specified webhook of a ready topup: they are
//! listed, shown and sent again. The test of the endpoint is here, too, because it is such an
//! event.
//!
//! Guarantee: ingress opens no connection to a partner. It stores an event, and a notifier sends
//! it. The request for a test reads the stored state again and again until there is an outcome.

use std::{str::FromStr, time::Duration};

use axum::{http::StatusCode, response::Response};
use desk::self_service;
use domain::{DeliveryId, EndpointId, EndpointKey, WebhookId, standing::DeliveryState};
use serde::Serialize;
use store::{
    Unflushed,
    deliveries::{
        View,
        events::{self, EndpointTestResult, EventPage},
    },
};
use time::{OffsetDateTime, serde::rfc3339};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::{
    query::{Query, cut, timed_cursor},
    session::{PathId, Search, Session, json},
    topups::{AttemptResponse, attempts, send_again},
};
use crate::http::{codes::ErrorCode, error::ApiError};

/// Maximum time that `POST …/webhook/test` waits for the outcome of the test. After this time it
/// gets a 202, and the partner can look the event up. It is longer than the notifier's
/// `WEBHOOK_TIMEOUT` by default, so that also the test of a slow endpoint gets its outcome.
const WEBHOOK_TEST_WAIT: Duration = Duration::from_secs(20);

/// The id of an event in a path. The id of a topup is a webhook id, too, but names no event.
pub(super) struct EventId(DeliveryId);

impl FromStr for EventId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.parse() {
            Ok(WebhookId::Event(id)) => Ok(Self(id)),
            Ok(WebhookId::Topup(_)) | Err(_) => Err(()),
        }
    }
}

/// How often the state of a test is read while its request waits.
const LOOK: Duration = Duration::from_millis(200);

/// An event that was sent or will be sent to the webhook endpoint.
#[derive(Serialize, ToSchema)]
#[schema(as = Event)]
pub(super) struct EventResponse<'a> {
    /// The `webhook-id` header of the webhook, the same in every attempt.
    #[schema(value_type = String, example = "evt_019a0000000070008000000000000001")]
    event_id: WebhookId,
    /// The type: `webhook.test`, or a further event such as `topup.failed`.
    #[serde(rename = "type")]
    kind: &'a str,
    /// The endpoint that it goes to, from `GET /endpoints`.
    #[schema(value_type = Uuid)]
    endpoint_id: EndpointId,
    /// The topup that the event is about; null if it is about none.
    topup_id: Option<&'a str>,
    /// The state of its delivery: `pending` (it is or will be sent), `delivered`, `exhausted` (the
    /// retries have ended), or `no_endpoint` (it waits until a webhook URL is set).
    state: &'a str,
    #[serde(with = "rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "rfc3339::option")]
    delivered_at: Option<OffsetDateTime>,
    /// When the next attempt is due; null if none is planned.
    #[serde(with = "rfc3339::option")]
    next_attempt_at: Option<OffsetDateTime>,
}

impl<'a> EventResponse<'a> {
    pub(super) fn new(view: &'a View) -> Self {
        Self {
            event_id: WebhookId::Event(view.delivery_id),
            kind: &view.kind,
            endpoint_id: view.endpoint_id,
            topup_id: view.topup_id.as_deref(),
            state: view.state.as_str(),
            created_at: view.created_at,
            delivered_at: view.delivered_at,
            next_attempt_at: view.due_at,
        }
    }
}

/// An event with its attempts.
#[derive(Serialize, ToSchema)]
pub(super) struct EventDetail<'a> {
    #[serde(flatten)]
    event: EventResponse<'a>,
    /// The newest 100 of the attempts that have ended, the oldest of them first.
    attempts: Vec<AttemptResponse<'a>>,
}

/// A page of events, the newest first.
#[derive(Serialize, ToSchema)]
struct Events<'a> {
    events: Vec<EventResponse<'a>>,
    /// The cursor of the next page; null after the last one.
    next_cursor: Option<String>,
}

/// List the events of all endpoints
///
/// The newest come first. The webhooks of ready topups are not among them; look the topups up
/// instead. Events are kept for 30 days.
#[utoipa::path(get, path = "/webhook/events", operation_id = "list_events", tag = "Webhook",
    params(
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page; leave it out for the first page"),
        ("limit" = Option<u16>, Query, description = "Number of events of the page, from 1 to 100; the default is 20")),
    responses(
        (status = 200, description = "A page of events", body = Events),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn list(Search(session, uri): Search) -> Result<Response, ApiError> {
    let mut query = Query::of(&uri);
    let limit = query.limit();
    let before = query.timed_cursor();
    query.check()?;
    let page = EventPage {
        before: before.map(|(at, id)| (at, id.into())),
        // One more row than the page holds is read. If there is one, another page follows.
        limit: i64::from(limit) + 1,
    };
    let listing =
        session.run(async |connection, partner| events::list(connection, partner, &page).await);
    let mut found = listing.await?;
    let after = |last: &View| Some(timed_cursor(last.created_at, last.delivery_id.uuid()));
    let shown = Events {
        next_cursor: cut(&mut found, limit, after),
        events: found.iter().map(EventResponse::new).collect(),
    };
    Ok(json(StatusCode::OK, &shown))
}

/// Look up an event
///
/// Shows the state of the event and its attempts.
#[utoipa::path(get, path = "/webhook/events/{event_id}", operation_id = "show_event", tag = "Webhook",
    params(("event_id" = String, Path, description = "`evt_` and 32 digits")),
    responses((status = 200, description = "The event", body = EventDetail), (status = 404, response = crate::http::described::NotFound)))]
pub(super) async fn show(
    session: Session,
    PathId(EventId(id)): PathId<EventId>,
) -> Result<Response, ApiError> {
    detail(&session, StatusCode::OK, id).await
}

pub(super) async fn find(session: &Session, id: DeliveryId) -> Result<Option<View>, ApiError> {
    session
        .run(async |connection, partner| events::find(connection, Some(partner), id).await)
        .await
}

/// An event with its attempts, both of one snapshot.
async fn detail(
    session: &Session,
    status: StatusCode,
    id: DeliveryId,
) -> Result<Response, ApiError> {
    let reading = session.read(async |connection, partner| {
        let event = events::find(connection, Some(partner), id).await?;
        let attempts = self_service::attempts(connection, id).await?;
        Ok(Unflushed::of((event, attempts)))
    });
    let (event, made) = reading.await?;
    let event = event.ok_or(ErrorCode::NotFound)?;
    let shown = EventDetail {
        event: EventResponse::new(&event),
        attempts: attempts(session.service(), id, &made),
    };
    Ok(json(status, &shown))
}

/// A redelivery of an event.
#[derive(Serialize, ToSchema)]
struct EventRedelivery<'a> {
    #[schema(value_type = String, example = "evt_019a0000000070008000000000000001")]
    event_id: &'a WebhookId,
    /// Always `pending`: the event is sent within seconds.
    state: &'a str,
}

/// Send an event again
///
/// Starts the retries of the event from the beginning, with the same `webhook-id`. This is not
/// possible within a minute of the last attempt of the event, whoever caused that attempt. A test
/// cannot be sent again; ask for a new one.
#[utoipa::path(post, path = "/webhook/events/{event_id}/redeliver", operation_id = "redeliver_event", tag = "Webhook",
    params(("event_id" = String, Path, description = "`evt_` and 32 digits")),
    responses(
        (status = 202, description = "The event is sent within seconds", body = EventRedelivery),
        (status = 404, response = crate::http::described::NotFound),
        (status = 409, description = "The event is a test, unwanted or no longer true (`event_void`), or no webhook URL is set (`webhook_url_missing`)", body = crate::http::described::Message),
        (status = 429, description = "The last attempt began less than a minute ago (`redelivered_recently`); `Retry-After` says when to try again", body = crate::http::described::Message)))]
pub(super) async fn redeliver(
    session: Session,
    PathId(id): PathId<EventId>,
) -> Result<Response, ApiError> {
    let id = WebhookId::Event(id.0);
    send_again(&session, &id, None).await?;
    Ok(json(
        StatusCode::ACCEPTED,
        &EventRedelivery {
            event_id: &id,
            state: "pending",
        },
    ))
}

/// Test the webhook endpoint
///
/// Sends a signed `webhook.test` event to the webhook URL, once, and waits for the outcome. The
/// test is sent even while the endpoint is blocked after failures, and if you acknowledge it, the
/// block ends. The header `webhook-type` distinguishes it from the webhook of a topup. Without an
/// outcome within 20 s the answer is a 202. You can send a test every 10 s.
#[utoipa::path(post, path = "/webhook/test", operation_id = "test_webhook", tag = "Webhook",
    responses(
        (status = 200, description = "The outcome: `delivered`, or `exhausted`, which means that the test failed for the reason in its attempt", body = EventDetail),
        (status = 202, description = "The outcome is not known yet, because the test is not sent or your endpoint is slow: look the event up", body = EventDetail),
        (status = 409, description = "No webhook URL is set (`webhook_url_missing`), or the endpoint is paused (`webhook_paused`)", body = crate::http::described::Message),
        (status = 429, description = "The last test was a moment ago (`tested_recently`); `Retry-After` says when to try again", body = crate::http::described::Message)))]
pub(super) async fn test(session: Session) -> Result<Response, ApiError> {
    let first = EndpointKey::first(session.id());
    test_endpoint(&session, first).await
}

/// Tests an endpoint, of which the caller knows that it is the partner's.
pub(super) async fn test_endpoint(
    session: &Session,
    endpoint: EndpointKey,
) -> Result<Response, ApiError> {
    let limits = &session.gate().limits;
    let stop = &session.service().stop;
    let interval = limits.test_interval();
    let testing =
        session.run(async |connection, _| events::test(connection, endpoint, interval).await);
    let id = match testing.await? {
        EndpointTestResult::Due(id) => id,
        EndpointTestResult::TooSoon(wait) => {
            return Err(ApiError::too_soon(ErrorCode::TestedRecently, wait));
        }
        EndpointTestResult::Paused => return Err(ErrorCode::WebhookPaused.into()),
        EndpointTestResult::NoEndpoint => return Err(ErrorCode::WebhookUrlMissing.into()),
    };
    // A notifier sends the test, because ingress opens no connections to partners. This loop reads
    // the state of the event until it has an outcome, the time is over, or the process stops.
    let deadline = Instant::now() + WEBHOOK_TEST_WAIT;
    loop {
        stop.run_until_cancelled(tokio::time::sleep(LOOK)).await;
        let late = Instant::now() >= deadline || stop.is_cancelled();
        match find(session, id).await {
            Ok(Some(event)) if event.state != DeliveryState::Pending => {
                return detail(session, StatusCode::OK, id).await;
            }
            Ok(Some(_)) if late => return detail(session, StatusCode::ACCEPTED, id).await,
            Ok(None) => return Err(ErrorCode::NotFound.into()),
            Err(error) if late => return Err(error),
            // A database that is busy delays only this answer and not the test, so an error is
            // tolerated until the time is over.
            Ok(Some(_)) | Err(_) => {}
        }
    }
}

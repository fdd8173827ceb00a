//! The list of a partner's webhooks, those of topups and events alike, with their last attempts.
//!
//! It answers which webhooks a partner has missed. What was missed is sent again by a
//! [redelivery](super::redeliveries).

use axum::{http::StatusCode, response::Response};
use desk::self_service::{self, DeliveryPage};
use domain::{EndpointId, standing::DeliveryState};
use serde::{Deserialize, Serialize};
use store::deliveries::{View, WalkPosition};
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;

use super::{
    query::{Query, timed_cursor},
    session::{Search, json},
    topups::{AttemptResponse, attempts},
};
use crate::http::{
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// The state of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum WebhookState {
    /// It is or will be sent.
    Pending,
    /// Its retries have ended.
    Exhausted,
    /// It waits until a webhook URL is set.
    NoEndpoint,
    /// You have acknowledged it.
    Delivered,
}

impl WebhookState {
    /// The states, as errors list them.
    const ALL: &'static str = "pending, exhausted, no_endpoint or delivered";

    fn parse(text: &str) -> Option<Self> {
        serde_json::from_value(text.into()).ok()
    }
}

impl From<WebhookState> for DeliveryState {
    fn from(state: WebhookState) -> Self {
        match state {
            WebhookState::Pending => Self::Pending,
            WebhookState::Exhausted => Self::Exhausted,
            WebhookState::NoEndpoint => Self::NoEndpoint,
            WebhookState::Delivered => Self::Delivered,
        }
    }
}

/// A webhook that was sent or will be sent.
#[derive(Serialize, ToSchema)]
#[schema(as = Webhook)]
struct WebhookResponse<'a> {
    /// The `webhook-id` header, the same in every attempt: the topup id, or the id of an event.
    #[schema(example = "20250129123456123456789012")]
    webhook_id: String,
    /// `topup.ready` for the webhook of a ready topup, or the type of an event, such as
    /// `topup.failed`.
    #[serde(rename = "type")]
    kind: &'a str,
    /// The endpoint that it is sent to.
    #[schema(value_type = Uuid)]
    endpoint_id: EndpointId,
    /// The topup that the webhook is about; null for events that are about none.
    topup_id: Option<&'a str>,
    /// The order of this topup.
    external_order_id: Option<&'a str>,
    #[schema(value_type = WebhookState)]
    state: &'a str,
    #[serde(with = "rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "rfc3339::option")]
    delivered_at: Option<OffsetDateTime>,
    /// When the next attempt is due; null if none is planned, or if the first one is under way.
    #[serde(with = "rfc3339::option")]
    next_attempt_at: Option<OffsetDateTime>,
    /// The number of attempts that have ended.
    attempts: i32,
    /// The last attempt; null before the first one has ended, and after 30 days.
    last_attempt: Option<AttemptResponse<'a>>,
}

/// A page of webhooks.
#[derive(Serialize, ToSchema)]
#[schema(as = Webhooks)]
struct WebhooksResponse<'a> {
    webhooks: Vec<WebhookResponse<'a>>,
    /// The cursor of the next page; null after the last one.
    next_cursor: Option<String>,
}

/// The last attempt of a delivery in the form of the attempts that look-ups show.
fn last_attempt(view: &View) -> Option<self_service::Attempt> {
    Some(self_service::Attempt {
        attempt: view.attempts - 1,
        at: view.attempted_at?,
        duration_ms: view.duration_ms.unwrap_or_default(),
        status: view.status,
        class: view.class.clone()?,
        detail: view.detail.clone(),
        response_start: view.response_start.clone(),
    })
}

/// List webhooks
///
/// The webhooks of topups and the events, with their last attempts. The newest come first; with
/// `state=pending` those come first whose next attempt is due first. `since` and `until` compare the
/// time of the last attempt, or before the first one the time when the webhook was created. With
/// them, or with `state`, a page may hold fewer webhooks than `limit`, or none at all, although it
/// is not the last one. So continue until `next_cursor` is null. A webhook that changes while you
/// read the pages may be missing or appear twice.
#[utoipa::path(get, path = "/webhooks", operation_id = "list_webhooks", tag = "Webhook",
    params(
        ("state" = Option<WebhookState>, Query, description = "Only webhooks in this state"),
        ("since" = Option<String>, Query, format = DateTime, description = "Only webhooks whose last attempt began at this RFC 3339 time or later. Without `state`, and with `delivered`, they must also have been created at most 7 days before it"),
        ("until" = Option<String>, Query, format = DateTime, description = "Only webhooks whose last attempt began before this RFC 3339 time"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page; leave it out for the first page"),
        ("limit" = Option<u16>, Query, minimum = 1, maximum = 100, description = "Maximum number of webhooks of the page, from 1 to 100; the default is 20")),
    responses(
        (status = 200, description = "A page of webhooks", body = WebhooksResponse),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn list(Search(session, uri): Search) -> Result<Response, ApiError> {
    let mut query = Query::of(&uri);
    let limit = query.limit();
    let after = query.timed_cursor();
    let unknown = RequestFault::with(ErrorCode::WebhookStateInvalid, WebhookState::ALL);
    let state = query.read("state", unknown, WebhookState::parse);
    let since = query.time("since");
    let until = query.time("until");
    query.check()?;
    let page = DeliveryPage {
        state: state.map(DeliveryState::from),
        since,
        until,
        after: after.map(|(at, id)| WalkPosition { at, id }),
        limit,
    };
    let listing = session.read(async |connection, partner| {
        self_service::deliveries(connection, partner, &page).await
    });
    let (found, next) = listing.await?;
    let last: Vec<_> = found.iter().map(last_attempt).collect();
    let shown = found.iter().zip(&last).map(|(view, last)| WebhookResponse {
        webhook_id: view.webhook_id(),
        kind: &view.kind,
        endpoint_id: view.endpoint_id,
        topup_id: view.topup_id.as_deref(),
        external_order_id: view.external_order_id.as_deref(),
        state: view.state.as_str(),
        created_at: view.created_at,
        delivered_at: view.delivered_at,
        next_attempt_at: view.due_at,
        attempts: view.attempts,
        last_attempt: attempts(session.service(), view.delivery_id, last.as_slice()).pop(),
    });
    let page = WebhooksResponse {
        webhooks: shown.collect(),
        next_cursor: next.map(|next| timed_cursor(next.at, next.id)),
    };
    Ok(json(StatusCode::OK, &page))
}

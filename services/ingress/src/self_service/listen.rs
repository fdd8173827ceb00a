//! The webhooks of a sandbox account for `esim-partner listen`, which forwards them to an endpoint
//! that we cannot reach, such as a program on a developer's laptop.
//!
//! The request is a long poll: it reads stored deliveries until there are new ones or its time is
//! over. It changes nothing, so webhooks are still sent to the configured URL, or wait for one.
//! Live accounts cannot listen.
//!
//! Limits: a fixed number bounds the requests that wait, another one those of each partner, and
//! `LISTEN_WAIT` bounds how long each one waits. They are admitted separately from the other
//! self-service requests ([`super::session::AdmissionKind`]), because they do nothing for most of
//! their time.

use std::{collections::BTreeMap, time::Duration};

use accounts::{partners::endpoints, profile::Profile};
use axum::{http::StatusCode, response::Response};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use desk::self_service::{self, StoredWebhook, WebhookParts, WebhookPosition};
use domain::{EndpointKey, Environment, WebhookId};
use serde::Serialize;
use signing::webhook::{Secret, Signers};
use time::OffsetDateTime;
use tokio::time::Instant;
use utoipa::ToSchema;
use webhooks::{body::WebhookBody, event};

use super::{
    query::{Query, number},
    session::{Search, Session, json},
};
use crate::http::{
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// The time between two looks at the database while a request waits.
const PAUSE: Duration = Duration::from_secs(1);

/// A webhook, as it is sent to an endpoint: that of an eSIM, or a further event. Forward the body
/// byte for byte, because the signature covers it.
#[derive(Serialize, ToSchema)]
struct ListenedWebhook {
    /// The headers: `content-type`, `webhook-id`, `webhook-timestamp` (the time of this answer),
    /// `webhook-signature`, and for a further event `webhook-type`.
    headers: BTreeMap<&'static str, String>,
    /// The exact bytes that the signature covers: the nine fields of the webhook, or the event, as
    /// JSON text.
    body: String,
}

/// Webhooks, the oldest first.
#[derive(Serialize, ToSchema)]
struct ListenedWebhooks {
    webhooks: Vec<ListenedWebhook>,
    /// The cursor of the next request. It is never null, because there is always a next request.
    next_cursor: String,
}

/// Wait for the webhooks of a sandbox account
///
/// Answers as soon as there are webhooks after `cursor`, or with an empty list after `wait`
/// seconds; then ask again with `next_cursor`. `esim-partner listen` does so and forwards the
/// webhooks to a program on your computer. Webhooks are also sent to the webhook URL, if one is
/// set. A webhook appears here about a second after its eSIM is ready, and so do the further events
/// that the account asks for, except tests; a `topup.failed` appears once its order can no longer
/// be refused, which takes up to about 8 s. Without `cursor` and `created_after`, only webhooks
/// from now on are returned. `next_cursor` is never null. While our database stalls, webhooks come
/// later here, and none is missing. An account may have four such requests open at each of our
/// processes.
#[utoipa::path(get, path = "/webhook/listen", operation_id = "listen", tag = "Webhook",
    params(
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous answer"),
        ("created_after" = Option<String>, Query, description = "Only webhooks of eSIMs that became ready after this RFC 3339 time. It is ignored if there is a `cursor`"),
        ("limit" = Option<u16>, Query, description = "Maximum number of webhooks in the answer, from 1 to 100; the default is 20"),
        ("wait" = Option<u16>, Query, description = "Maximum wait in whole seconds. The service has a limit of its own, about 20 s, which is also the default")),
    responses(
        (status = 200, description = "Webhooks with their signatures", body = ListenedWebhooks),
        (status = 403, description = "The account is not a sandbox account (`sandbox_only`)", body = crate::http::described::Message),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn listen(Search(session, uri): Search) -> Result<Response, ApiError> {
    if session.environment() != Environment::Sandbox {
        return Err(ErrorCode::SandboxOnly.into());
    }
    let mut query = Query::of(&uri);
    let limit = query.limit().into();
    let cursor = query.read(
        "cursor",
        RequestFault::new(ErrorCode::CursorInvalid),
        parse_cursor,
    );
    let created_after = query.created_after();
    let wait = query.read(
        "wait",
        RequestFault::new(ErrorCode::WaitInvalid),
        number::<u16>,
    );
    query.check()?;
    let stop = &session.service().stop;
    let longest = session.gate().limits.listen_wait;
    let wait = wait.map_or(longest, |wait| {
        longest.min(Duration::from_secs(wait.into()))
    });
    let until = Instant::now() + wait;
    let after = cursor.unwrap_or_else(|| WebhookPosition {
        // A cursor cannot hold a time before 1970, so such a time becomes the earliest one that it
        // can.
        at: created_after.map_or_else(runtime::clock::now, |at| at.max(OffsetDateTime::UNIX_EPOCH)),
        webhook_id: String::new(),
    });
    loop {
        let looking = session.look(async |connection, partner| {
            self_service::webhooks(connection, partner, &after, limit).await
        });
        let found = looking.await?;
        let next = Instant::now() + PAUSE;
        if !found.is_empty() || next > until || stop.is_cancelled() {
            return answer(&session, &found, &after).await;
        }
        stop.run_until_cancelled(tokio::time::sleep_until(next))
            .await;
    }
}

/// Signs the found webhooks and makes the answer. The secrets are read only if there is something
/// to sign.
async fn answer(
    session: &Session,
    found: &[StoredWebhook],
    after: &WebhookPosition,
) -> Result<Response, ApiError> {
    let sealed = if found.is_empty() {
        Vec::new()
    } else {
        let reading = session.run(async |connection, partner| {
            endpoints::secrets(connection, EndpointKey::first(partner)).await
        });
        reading.await?
    };
    let service = session.service();
    let opened = sealed
        .iter()
        .map(|one| endpoints::open_secret(&service.vault, EndpointKey::first(session.id()), one));
    let secrets = opened
        .collect::<Result<Vec<Secret>, _>>()
        .map_err(ApiError::internal)?;
    let webhooks = found
        .iter()
        .filter_map(|stored| webhook(session, &secrets, stored).transpose());
    let webhooks = webhooks.collect::<Result<Vec<_>, _>>()?;
    let next_cursor = cursor(found.last().map_or(after, |last| &last.position));
    Ok(json(
        StatusCode::OK,
        &ListenedWebhooks {
            webhooks,
            next_cursor,
        },
    ))
}

/// Makes and signs a webhook. `None` if there is nothing to send any more.
fn webhook(
    session: &Session,
    secrets: &[Secret],
    stored: &StoredWebhook,
) -> Result<Option<ListenedWebhook>, ApiError> {
    let service = session.service();
    let (body, kind) = match &stored.content {
        None => return Ok(None),
        Some(WebhookParts::Esim {
            topup_id,
            agreed,
            external_order_id,
            iccid,
            profile,
        }) => {
            let profile = Profile::open(&service.vault, session.id(), topup_id, profile)
                .map_err(ApiError::internal)?;
            let order = external_order_id;
            let body = WebhookBody::new(topup_id, agreed, order, iccid, &profile, &service.qr);
            (serde_json::to_string(&body), None)
        }
        Some(WebhookParts::Event(event)) => {
            let body = serde_json::to_string(&event::EventBody::new(event));
            (body, Some(event.subject.name().to_owned()))
        }
    };
    let body = body.map_err(ApiError::internal)?;
    let id = stored.id.to_string();
    let timestamp = runtime::clock::unix_seconds();
    let signers = Signers {
        secrets,
        keys: service.vault.webhook_keys().signing(),
    };
    let signature = signers.signatures(&id, timestamp, body.as_bytes());
    let mut headers = BTreeMap::from([
        ("content-type", "application/json".to_owned()),
        ("webhook-id", id),
        ("webhook-timestamp", timestamp.to_string()),
        ("webhook-signature", signature),
    ]);
    headers.extend(kind.map(|kind| (event::TYPE, kind)));
    Ok(Some(ListenedWebhook { headers, body }))
}

/// Encodes a position: the time in microseconds, and the id of the webhook that was returned last.
/// Several webhooks can have the same time.
fn cursor(position: &WebhookPosition) -> String {
    let microseconds = position.at.unix_timestamp_nanos() / 1_000;
    BASE64_URL_SAFE_NO_PAD.encode(format!("{microseconds}.{}", position.webhook_id))
}

fn parse_cursor(text: &str) -> Option<WebhookPosition> {
    let text = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    let (microseconds, webhook_id) = text.split_once('.')?;
    // The cursor is not signed, so anything may be in it. Only times that PostgreSQL can represent
    // are accepted; others would make the query fail.
    let microseconds: i64 = microseconds.parse().ok().filter(|time| *time >= 0)?;
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(microseconds) * 1_000).ok()?;
    let is_id = webhook_id.is_empty() || webhook_id.parse::<WebhookId>().is_ok();
    is_id.then(|| WebhookPosition {
        at,
        webhook_id: webhook_id.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_made_and_nothing_else_is() {
        for (nanoseconds, webhook_id) in [
            (0, ""),
            (1_700_000_000_123_456_000, ""),
            (1_700_000_000_000_001_000, "20250129123456123456789012"),
            (
                1_700_000_000_000_001_000,
                "evt_019a0000000070008000000000000001",
            ),
        ] {
            let position = WebhookPosition {
                at: OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).unwrap(),
                webhook_id: webhook_id.to_owned(),
            };
            assert_eq!(parse_cursor(&cursor(&position)), Some(position));
        }
        let encode = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
        for bad in [
            String::new(),
            "a".to_owned(),
            encode("1700000000000000"),
            encode("-1."),
            encode("1.x"),
            encode("1.123"),
            encode("1.evt_123"),
            encode("1.2025012912345612345678901\0"),
            encode("9223372036854775807."),
        ] {
            assert_eq!(parse_cursor(&bad), None, "{bad}");
        }
    }
}

//! Topups, their deliveries and redeliveries.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Path, State, rejection::PathRejection},
    http::StatusCode,
    response::Response,
};
use domain::{DeliveryId, OptionId, TopupId};
use serde::Serialize;
use store::{
    partner_view::{self, Redelivered, Unit, UnitState},
    profile::Profile,
    vault::Purpose,
};
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use uuid::Uuid;
use webhooks::{body::Body, event::failure, qr::QrUrls};

use super::{Caller, Desk, conflict, internal, json};
use crate::{codes::Code, error::ApiError, routes::App};

/// The state of a topup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum TopupState {
    /// It is being bought, or its eSIM is awaited.
    Processing,
    /// The provider's answer is missing or contradicts itself. We look into it; it becomes ready or failed.
    OnHold,
    /// The eSIM is ready.
    Ready,
    /// There will be no eSIM.
    Failed,
}

impl From<UnitState> for TopupState {
    fn from(state: UnitState) -> Self {
        match state {
            UnitState::Processing => Self::Processing,
            UnitState::OnHold => Self::OnHold,
            UnitState::Ready => Self::Ready,
            UnitState::Failed => Self::Failed,
        }
    }
}

/// The nine fields of the webhook.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes webhooks::body::Body in the OpenAPI document")]
pub(super) struct Esim {
    #[schema(example = "20250129123456123456789012")]
    topup_id: String,
    #[schema(example = "424b7b26-96e7-5c95-8df9-6654a3998070")]
    option_id: Uuid,
    #[schema(example = "8982123456789012345")]
    iccid: String,
    #[schema(example = "smdp.example.com")]
    smdp: String,
    #[schema(example = "A1B2C3D4E5F60718")]
    activate_code: String,
    #[schema(example = "LPA:1$smdp.example.com$A1B2C3D4E5F60718")]
    download_link: String,
    #[schema(example = "https://esim.example.com/qr/LPA%3A1%24smdp.example.com%24A1B2C3D4E5F60718/300")]
    qrcode_img_url: String,
    #[schema(example = "2026-12-20")]
    expired_date: String,
    #[schema(example = "A-1042")]
    external_order_id: String,
}

/// One unit of an order.
#[derive(Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the names on the wire")]
pub(super) struct Topup<'a> {
    #[schema(value_type = String, example = "20250129123456123456789012")]
    topup_id: &'a TopupId,
    external_order_id: &'a str,
    #[schema(value_type = Uuid)]
    option_id: OptionId,
    state: TopupState,
    /// Why it failed.
    error: Option<String>,
    #[serde(with = "rfc3339::option")]
    ready_at: Option<OffsetDateTime>,
    /// The state of the webhook: `pending`, `delivered`, `exhausted` or `no_endpoint`; null before the eSIM is ready.
    delivery: Option<&'a str>,
    #[serde(with = "rfc3339::option")]
    delivered_at: Option<OffsetDateTime>,
    /// When the eSIM's fields were erased here; they can't be sent again.
    #[serde(with = "rfc3339::option")]
    erased_at: Option<OffsetDateTime>,
    /// The fields of the webhook, once the eSIM is ready and until they are erased.
    #[schema(value_type = Option<Esim>)]
    esim: Option<Body<'a>>,
}

impl<'a> Topup<'a> {
    /// `profile` is the opened profile of a ready unit.
    pub(super) fn new(unit: &'a Unit, profile: Option<&'a Profile>, qr: &QrUrls) -> Self {
        let iccid = unit.iccid.as_deref().unwrap_or_default();
        let error = (unit.state == UnitState::Failed).then(|| failure(unit.refusal.as_ref()));
        Self {
            topup_id: &unit.topup_id,
            external_order_id: &unit.external_order_id,
            option_id: unit.option_id,
            state: unit.state.into(),
            error,
            ready_at: unit.ready_at,
            delivery: unit.delivery.as_deref(),
            delivered_at: unit.delivered_at,
            erased_at: unit.erased_at,
            esim: profile.map(|profile| {
                Body::new(
                    &unit.topup_id,
                    unit.option_id,
                    &unit.external_order_id,
                    iccid,
                    profile,
                    qr,
                )
            }),
        }
    }
}

/// Opens the profile of a ready unit.
pub(super) fn profile(desk: &Desk, unit: &Unit) -> Result<Option<Profile>, ApiError> {
    let (UnitState::Ready, Some(sealed)) = (unit.state, &unit.profile) else {
        return Ok(None);
    };
    Profile::open(&desk.vault, &unit.topup_id, sealed)
        .map(Some)
        .map_err(internal)
}

/// The id in the path; a text that is no topup id is unknown.
fn topup_id(path: Result<Path<String>, PathRejection>) -> Result<TopupId, ApiError> {
    let Path(text) = path.map_err(|_| ApiError::NotFound)?;
    text.parse().map_err(|_| ApiError::NotFound)
}

/// Look up a topup
///
/// Its state, and the eSIM once it is ready.
#[utoipa::path(get, path = "/topups/{topup_id}", operation_id = "show_topup", tag = "Topups",
    params(("topup_id" = String, Path, description = "26 digits, from the answer of create-order")),
    responses((status = 200, description = "The topup", body = Topup), (status = 404, response = super::openapi::NotFound)))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let id = topup_id(path)?;
    let desk = &app.desk;
    let unit = desk
        .run(caller.id(), async |connection| {
            partner_view::unit(connection, caller.id(), &id).await
        })
        .await?
        .ok_or(ApiError::NotFound)?;
    let profile = profile(desk, &unit)?;
    let topup = Topup::new(&unit, profile.as_ref(), &desk.qr);
    Ok(json(StatusCode::OK, &topup))
}

/// The delivery of a topup's webhook.
#[derive(Serialize, ToSchema)]
pub(super) struct Deliveries<'a> {
    #[schema(value_type = String)]
    topup_id: &'a TopupId,
    /// `pending`, `delivered`, `exhausted` or `no_endpoint`; null before the eSIM is ready.
    state: Option<&'a str>,
    #[serde(with = "rfc3339::option")]
    delivered_at: Option<OffsetDateTime>,
    /// When the next attempt is due, if one is planned.
    #[serde(with = "rfc3339::option")]
    next_attempt_at: Option<OffsetDateTime>,
    /// The newest 100 attempts that have ended, in order.
    attempts: Vec<Attempt<'a>>,
}

/// One attempt of a webhook.
#[derive(Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the names on the wire")]
pub(super) struct Attempt<'a> {
    /// From 1.
    attempt: i32,
    #[serde(with = "rfc3339")]
    at: OffsetDateTime,
    duration_ms: i32,
    /// The HTTP status of your answer, if one arrived.
    status: Option<i32>,
    /// `delivered`, or why it failed: `status_5xx`, `timeout`, `tls`, `forbidden`, …
    outcome: &'a str,
    /// The first bytes of your answer, if it was no acknowledgement, or that of a test.
    answer: Option<String>,
}

/// List the attempts of a topup's webhook
#[utoipa::path(get, path = "/topups/{topup_id}/deliveries", operation_id = "list_deliveries", tag = "Topups",
    params(("topup_id" = String, Path, description = "26 digits")),
    responses((status = 200, description = "The delivery with its attempts", body = Deliveries), (status = 404, response = super::openapi::NotFound)))]
pub(super) async fn deliveries(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let id = topup_id(path)?;
    let desk = &app.desk;
    let delivery = desk
        .run(caller.id(), async |connection| {
            partner_view::delivery(connection, caller.id(), &id).await
        })
        .await?
        .ok_or(ApiError::NotFound)?;
    let shown = Deliveries {
        topup_id: &id,
        state: delivery.state.as_deref(),
        delivered_at: delivery.delivered_at,
        next_attempt_at: delivery.next_attempt_at,
        attempts: attempts(desk, &id.clone().into(), &delivery.attempts),
    };
    Ok(json(StatusCode::OK, &shown))
}

/// The attempts of a delivery, with the opened answers.
pub(super) fn attempts<'a>(
    desk: &Desk,
    id: &DeliveryId,
    made: &'a [partner_view::Attempt],
) -> Vec<Attempt<'a>> {
    let shown = made.iter().map(|attempt| Attempt {
        attempt: attempt.attempt + 1,
        at: attempt.at,
        duration_ms: attempt.duration_ms,
        status: attempt.status,
        outcome: &attempt.class,
        answer: answer(desk, id, attempt),
    });
    shown.collect()
}

/// The opened answer; an answer that does not open is left out.
fn answer(desk: &Desk, id: &DeliveryId, attempt: &partner_view::Attempt) -> Option<String> {
    let number = u32::try_from(attempt.attempt).ok()?;
    let sealed = attempt.answer.as_ref()?;
    let opened = desk.vault.open(Purpose::Answer(id, number), sealed).ok()?;
    Some(String::from_utf8_lossy(&opened).into_owned())
}

/// A redelivery.
#[derive(Serialize, ToSchema)]
pub(super) struct Redelivery<'a> {
    #[schema(value_type = String)]
    topup_id: &'a TopupId,
    /// Always `pending`: the webhook is sent within seconds.
    delivery: &'a str,
}

/// Send a topup's webhook again
///
/// Starts the schedule of the webhook again, with the same `webhook-id`. At most once a minute for each topup.
#[utoipa::path(post, path = "/topups/{topup_id}/redeliver", operation_id = "redeliver", tag = "Topups",
    params(("topup_id" = String, Path, description = "26 digits")),
    responses(
        (status = 202, description = "The webhook is sent within seconds", body = Redelivery),
        (status = 404, response = super::openapi::NotFound),
        (status = 409, description = "The eSIM is not ready (`topup_not_ready`), its fields were erased (`topup_erased`), or no webhook URL is set (`webhook_url_missing`)", body = super::openapi::Message),
        (status = 429, description = "The last attempt began less than a minute ago", body = super::openapi::Message)))]
pub(super) async fn redeliver(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let id = topup_id(path)?;
    send_again(&app.desk, &caller, &id.clone().into()).await?;
    let redelivery = Redelivery {
        topup_id: &id,
        delivery: "pending",
    };
    Ok(json(StatusCode::ACCEPTED, &redelivery))
}

/// Makes a delivery of the partner due again.
pub(super) async fn send_again(desk: &Desk, caller: &Caller, id: &DeliveryId) -> Result<(), ApiError> {
    let interval = desk.redeliver_interval;
    let redelivered = desk.run(caller.id(), async |connection| {
        partner_view::redeliver(connection, caller.id(), id, interval).await
    });
    match (redelivered.await?, id) {
        (Redelivered::Again | Redelivered::Due, _) => Ok(()),
        (Redelivered::TooSoon(wait), _) => Err(ApiError::TooSoon {
            code: Code::RedeliveredRecently,
            message: "The webhook was sent a moment ago; try again later",
            wait,
        }),
        (Redelivered::NotReady, _) => Err(conflict(Code::TopupNotReady, "The eSIM is not ready")),
        (Redelivered::Gone, DeliveryId::Topup(_)) => Err(conflict(
            Code::TopupErased,
            "The eSIM's fields were erased and cannot be sent again",
        )),
        (Redelivered::Gone, DeliveryId::Event(_)) => Err(conflict(
            Code::EventVoid,
            "The event is a test, is no longer asked for, or is no longer true; it cannot be sent again",
        )),
        (Redelivered::NoEndpoint, _) => Err(conflict(
            Code::WebhookUrlMissing,
            "There is no webhook URL; set one, then waiting webhooks are sent",
        )),
        (Redelivered::Unknown, _) => Err(ApiError::NotFound),
    }
}

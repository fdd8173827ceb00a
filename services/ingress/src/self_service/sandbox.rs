//! What a partner can cause in the sandbox to test its program: a further event that would
//! otherwise come only every few months, and a balance that is nearly empty. (Options of the
//! sandbox cause everything else.)
//!
//! Guarantee: live accounts get a 403. The event looks like a real one, but no key ends.

use axum::{extract::Request, http::StatusCode, response::Response};
use desk::self_service::{self, KeyExpiryResult, PartnerBalance};
use domain::{Environment, event::EventKind, product::Currency};
use utoipa::ToSchema;

use super::{
    balance::{amount, of_currency},
    events::{EventResponse, find},
    fields::BodyFields,
    session::{PathId, Session, json},
};
use crate::http::{
    body,
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// The event to make in the sandbox.
#[derive(ToSchema)]
struct NewSandboxEvent {
    /// The type of the event, which is `key.expiring`.
    #[schema(value_type = String, example = "key.expiring")]
    r#type: SandboxEvent,
}

/// The types of events that can be made.
enum SandboxEvent {
    KeyExpiring,
}

impl NewSandboxEvent {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = BodyFields::of(body)?;
        let name = EventKind::KeyExpiring.as_str();
        let wrong = || RequestFault::with(ErrorCode::EventTypeInvalid, name);
        let kind = fields.required("type", wrong(), |value| {
            let known = value.as_str() == Some(name);
            known.then_some(SandboxEvent::KeyExpiring).ok_or_else(wrong)
        });
        fields.check(kind.map(|r#type| Self { r#type }))
    }
}

/// Make an event in the sandbox
///
/// Sends a `key.expiring` as it comes before old keys end, so that you can test how your program
/// handles it. Nothing ends: your keys stay as they are. Only sandbox accounts may do so, at most
/// once every 10 s. The other events follow from what you do; the description of each says from
/// what.
#[utoipa::path(post, path = "/sandbox/events", operation_id = "make_sandbox_event", tag = "Sandbox", request_body = NewSandboxEvent,
    responses(
        (status = 201, description = "The event, which is sent within seconds", body = EventResponse),
        (status = 400, response = crate::http::described::InvalidJson),
        (status = 403, description = "The account is not a sandbox account (`sandbox_only`)", body = crate::http::described::Message),
        (status = 409, description = "The account does not ask for events of this type (`event_not_wanted`)", body = crate::http::described::Message),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn make_event(session: Session, request: Request) -> Result<Response, ApiError> {
    if session.environment() != Environment::Sandbox {
        return Err(ErrorCode::SandboxOnly.into());
    }
    let (parts, body) = request.into_parts();
    let body = body::read(session.gate().max_body, &parts.headers, body).await?;
    let NewSandboxEvent {
        r#type: SandboxEvent::KeyExpiring,
    } = NewSandboxEvent::read(&body)?;
    let interval = session.gate().limits.test_interval();
    let making = session.run(async |connection, partner| {
        self_service::expire_keys(connection, partner, interval).await
    });
    let id = match making.await? {
        KeyExpiryResult::Due(id) => id,
        KeyExpiryResult::TooSoon(wait) => {
            return Err(ApiError::too_soon(ErrorCode::TestedRecently, wait));
        }
        KeyExpiryResult::Unwanted => return Err(ErrorCode::EventNotWanted.into()),
    };
    let event = find(&session, id).await?.ok_or(ErrorCode::NotFound)?;
    Ok(json(StatusCode::CREATED, &EventResponse::new(&event)))
}

/// The balance to set in the sandbox.
#[derive(ToSchema)]
struct SandboxBalance {
    /// What your `balance` is then, in minor units. What is held stays held.
    #[schema(minimum = 0, maximum = 1_000_000_000_000_i64, example = 1000)]
    balance: i64,
}

impl SandboxBalance {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        const NAME: &str = "balance";
        let mut fields = BodyFields::of(body)?;
        let missing = RequestFault::with(ErrorCode::AmountInvalid, NAME);
        let balance = fields.required(NAME, missing, |value| amount(value, NAME));
        fields.check(balance.map(|balance| Self { balance }))
    }
}

/// Set the balance in the sandbox
///
/// Sets the balance of a sandbox account that has prices, for example to 0, so that you can test
/// how your program handles `balance_insufficient` and `balance.low`, and which of several orders
/// at once get what is left. It is booked as an adjustment. Only sandbox accounts may do so.
#[utoipa::path(put, path = "/sandbox/balance/{currency}", operation_id = "set_sandbox_balance", tag = "Sandbox", request_body = SandboxBalance,
    params(("currency" = String, Path, description = "The currency of the account", example = "USD")),
    responses(
        (status = 200, description = "The account", body = PartnerBalance),
        (status = 400, response = crate::http::described::InvalidJson),
        (status = 403, description = "The account is not a sandbox account (`sandbox_only`)", body = crate::http::described::Message),
        (status = 404, response = crate::http::described::NotFound),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn set_balance(
    session: Session,
    PathId(currency): PathId<Currency>,
    request: Request,
) -> Result<Response, ApiError> {
    if session.environment() != Environment::Sandbox {
        return Err(ErrorCode::SandboxOnly.into());
    }
    let (parts, body) = request.into_parts();
    let body = body::read(session.gate().max_body, &parts.headers, body).await?;
    let SandboxBalance { balance } = SandboxBalance::read(&body)?;
    let set = session.change(async |connection, partner| {
        self_service::set_balance(connection, partner, currency.as_str(), balance).await
    });
    if !set.await? {
        return Err(ErrorCode::NotFound.into());
    }
    let account = of_currency(&session, currency).await?;
    Ok(json(StatusCode::OK, &account))
}

//! Suspends a delivered eSIM, and resumes it.
//!
//! Ingress stores the wish in the row of the eSIM, and looks at it until a provisioner has
//! answered, as [`super::esims`] does.
//!
//! Guarantees: a wish is `suspended`, `active` or `refused` only once that is certain. One whose
//! outcome stayed unknown may be repeated, because the provider suspends an eSIM only once.

use axum::{http::StatusCode, response::Response};
use desk::self_service::esims::{self as desk_esims, EsimChangeView};
use domain::{EsimChangeState, TopupId};
use serde::Serialize;
use store::esim_requests::EsimChangeReason;
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;

use super::{
    esims::{delivered, read, wait},
    session::{PathId, Session, json},
};
use crate::http::{codes::ErrorCode, error::ApiError};

/// What became of the last request to suspend or to resume an eSIM: `not_asked`, `under_way` (the
/// provider is being asked), `suspended` (the eSIM is of no use until it is resumed), `active` (it
/// was resumed), `refused` (it is as it was) or `unknown` (the provider did not say; ask again).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SuspensionState)]
enum State {
    /// You have asked for neither.
    NotAsked,
    /// The provider is being asked.
    UnderWay,
    /// The eSIM is suspended: it is of no use until it is resumed.
    Suspended,
    /// The eSIM was resumed.
    Active,
    /// The eSIM is as it was.
    Refused,
    /// The provider did not say for half an hour what became of it. Ask again, which does no harm.
    Unknown,
}

/// The last request to suspend or to resume an eSIM.
#[derive(Serialize, ToSchema)]
#[schema(as = Suspension)]
struct SuspensionResponse<'a> {
    #[schema(value_type = String, example = "20250129123456123456789012")]
    topup_id: &'a TopupId,
    state: State,
    /// What you asked for: true to suspend the eSIM, false to resume it. Null if you have asked for
    /// neither.
    suspend: Option<bool>,
    /// The error code of a refusal, such as `suspension_refused`; null unless it is `refused`.
    code: Option<&'static str>,
    /// What the refusal says; null unless it is `refused`.
    message: Option<String>,
    #[serde(with = "rfc3339::option")]
    asked_at: Option<OffsetDateTime>,
    /// When it ended.
    #[serde(with = "rfc3339::option")]
    ended_at: Option<OffsetDateTime>,
}

impl<'a> SuspensionResponse<'a> {
    fn new(topup_id: &'a TopupId, asked: Option<&(bool, EsimChangeView)>) -> Self {
        let state = asked.map_or(State::NotAsked, |(suspend, asked)| match asked.state {
            EsimChangeState::Asked | EsimChangeState::Sending | EsimChangeState::Claimed => {
                State::UnderWay
            }
            EsimChangeState::Done if *suspend => State::Suspended,
            EsimChangeState::Done => State::Active,
            EsimChangeState::Refused => State::Refused,
            EsimChangeState::Parked => State::Unknown,
        });
        let view = asked.map(|(_, view)| view);
        let refusal = view.filter(|_| state == State::Refused).map(refusal);
        Self {
            topup_id,
            state,
            suspend: asked.map(|(suspend, _)| *suspend),
            code: refusal.as_ref().map(|(code, _)| code.name()),
            message: refusal.map(|(_, message)| message),
            asked_at: view.map(|view| view.asked_at),
            ended_at: view.and_then(|view| view.ended_at),
        }
    }
}

/// The code and the message of a refusal.
fn refusal(refused: &EsimChangeView) -> (ErrorCode, String) {
    let code = match refused.reason {
        Some(EsimChangeReason::NotAvailable) => ErrorCode::SuspensionNotAvailable,
        Some(EsimChangeReason::Refused | EsimChangeReason::Denied) => ErrorCode::SuspensionRefused,
        Some(
            EsimChangeReason::Installed
            | EsimChangeReason::Unreachable
            | EsimChangeReason::Unknown
            | EsimChangeReason::Resolved
            | EsimChangeReason::Unreadable,
        )
        | None => ErrorCode::SuspensionFailed,
    };
    code.said_by_provider(refused.message.as_deref())
}

/// Suspend an eSIM
///
/// Asks the provider to suspend the eSIM, so that it is of no use until you resume it, for example
/// because your customer has lost the device. After a 200 it is suspended. After a 409 it is as it
/// was. After a 202, which comes after about 12 s, neither is certain yet: look at the state until it
/// is. A repeat does no harm. Few providers suspend eSIMs.
#[utoipa::path(post, path = "/topups/{topup_id}/suspend", operation_id = "suspend_esim", tag = "Topups",
    params(("topup_id" = String, Path, description = "The id of the topup, 26 digits")),
    responses(
        (status = 200, description = "The eSIM is suspended", body = SuspensionResponse),
        (status = 202, description = "It is under way, or its outcome is unknown", body = SuspensionResponse),
        (status = 404, response = crate::http::described::NotFound),
        (status = 410, response = crate::http::described::Archived),
        (status = 409, description = "The eSIM is as it was: its provider suspends no eSIM (`suspension_not_available`) or not this one (`suspension_refused`), or the provider could not be asked (`suspension_failed`). Or it is being resumed (`suspension_open`), not ready (`topup_not_ready`), given back (`topup_returned`), or its fields were erased (`topup_erased`)", body = crate::http::described::Message)))]
pub(super) async fn suspend(
    session: Session,
    PathId(id): PathId<TopupId>,
) -> Result<Response, ApiError> {
    ask(&session, &id, true).await
}

/// Resume an eSIM
///
/// Asks the provider to resume an eSIM that is suspended. It is answered as the request to suspend it.
#[utoipa::path(post, path = "/topups/{topup_id}/resume", operation_id = "resume_esim", tag = "Topups",
    params(("topup_id" = String, Path, description = "The id of the topup, 26 digits")),
    responses(
        (status = 200, description = "The eSIM is not suspended", body = SuspensionResponse),
        (status = 202, description = "It is under way, or its outcome is unknown", body = SuspensionResponse),
        (status = 404, response = crate::http::described::NotFound),
        (status = 410, response = crate::http::described::Archived),
        (status = 409, description = "The eSIM is as it was: its provider resumes no eSIM (`suspension_not_available`) or not this one (`suspension_refused`), or the provider could not be asked (`suspension_failed`). Or it is being suspended (`suspension_open`), not ready (`topup_not_ready`), given back (`topup_returned`), or its fields were erased (`topup_erased`)", body = crate::http::described::Message)))]
pub(super) async fn resume(
    session: Session,
    PathId(id): PathId<TopupId>,
) -> Result<Response, ApiError> {
    ask(&session, &id, false).await
}

async fn ask(session: &Session, id: &TopupId, suspend: bool) -> Result<Response, ApiError> {
    let before = read(session, id).await?;
    delivered(&before)?;
    let open = before.suspension.filter(|(_, view)| !view.state.is_over());
    match open {
        Some((wish, _)) if wish != suspend => return Err(ErrorCode::SuspensionOpen.into()),
        Some(_) => {}
        None if before.is_replacement => return Err(ErrorCode::SuspensionNotAvailable.into()),
        None => {
            let rates = session.gate().admission.rates.of(&session.partner);
            rates.count_esim_request()?;
            let asking = session.run(async |connection, partner| {
                desk_esims::ask_suspension(connection, partner, id, suspend).await
            });
            asking.await?;
        }
    }
    let after = wait(session, id, |requests| {
        let asked = requests.suspension.as_ref();
        asked.is_none_or(|(wish, view)| *wish != suspend || view.state.is_over())
    });
    let after = after.await?.suspension;
    match &after {
        // Its fields were erased after the first look.
        None => Err(ErrorCode::TopupErased.into()),
        Some((wish, _)) if *wish != suspend => Err(ErrorCode::SuspensionOpen.into()),
        Some((_, view)) => match view.state {
            EsimChangeState::Refused => {
                let (code, message) = refusal(view);
                Err(ApiError::Plain { code, message })
            }
            EsimChangeState::Done => Ok(json(
                StatusCode::OK,
                &SuspensionResponse::new(id, after.as_ref()),
            )),
            EsimChangeState::Asked
            | EsimChangeState::Sending
            | EsimChangeState::Claimed
            | EsimChangeState::Parked => Ok(json(
                StatusCode::ACCEPTED,
                &SuspensionResponse::new(id, after.as_ref()),
            )),
        },
    }
}

/// Show whether an eSIM is suspended
///
/// What became of your last request to suspend or to resume it.
#[utoipa::path(get, path = "/topups/{topup_id}/suspension", operation_id = "show_suspension", tag = "Topups",
    params(("topup_id" = String, Path, description = "The id of the topup, 26 digits")),
    responses(
        (status = 200, description = "The state; `not_asked` if you have asked for neither", body = SuspensionResponse),
        (status = 404, response = crate::http::described::NotFound),
        (status = 410, response = crate::http::described::Archived)))]
pub(super) async fn show(
    session: Session,
    PathId(id): PathId<TopupId>,
) -> Result<Response, ApiError> {
    let requests = read(&session, &id).await?;
    let shown = SuspensionResponse::new(&id, requests.suspension.as_ref());
    Ok(json(StatusCode::OK, &shown))
}

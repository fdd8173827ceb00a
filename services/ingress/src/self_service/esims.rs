//! A delivered eSIM: its data use, and giving it back.
//!
//! Ingress holds no credentials of providers. It stores the question in a row, and a provisioner
//! asks the provider. The handlers look at the row until the answer is there, as the test of a
//! webhook does.
//!
//! Guarantees: an answer about the use says how old it is. A give-back is `returned` or `refused`
//! only once that is certain; until then it is under way, or on hold while an operator looks into
//! it, or `claimed` while people at the provider decide. Repeating a request changes nothing while
//! a give-back is under way or done.

use std::time::Duration;

use axum::{extract::Request, http::StatusCode, response::Response};
use desk::{
    archived::is_topup_archived,
    self_service::{
        PartnerUnitState,
        esims::{self, EsimChangeView, EsimRequests},
    },
};
use domain::{EsimChangeState, TopupId, esim_change::GiveBackCause};
use serde::Serialize;
use store::esim_requests::{EsimChangeReason, Reading, UsageFailure};
use time::{OffsetDateTime, serde::rfc3339};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use super::{
    fields::BodyFields,
    orders::retry_after,
    session::{PathId, Session, json, or_archived},
};
use crate::http::{
    body,
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// How old a provider's answer about the data use of an eSIM may be to be served again. An older
/// one is served only if the provider does not answer now. Providers count the data with a delay of
/// an hour or more, so asking more often shows nothing new.
pub(super) const USAGE_FRESH: Duration = Duration::from_mins(5);
/// Maximum time that a request about a delivered eSIM waits for the provider. After this time a
/// question about the data use gets the last answer, or a 503 with Retry-After if there is none. A
/// give-back gets a 202 and goes on. It is longer than `PROVIDER_TIMEOUT` of the provisioner by
/// default, and short enough for the clients of partners.
const ESIM_REQUEST_WAIT: Duration = Duration::from_secs(12);

/// The pause between two looks for the answer.
const LOOK: Duration = Duration::from_millis(200);
/// What `Retry-After` says if a provider does not answer.
pub(super) const UNANSWERED: Duration = Duration::from_secs(30);

/// What the provider says about a delivered eSIM. Each value is null if the provider does not say it.
#[derive(Serialize, ToSchema)]
#[schema(as = Usage)]
struct UsageResponse<'a> {
    #[schema(value_type = String, example = "20250129123456123456789012")]
    topup_id: &'a TopupId,
    /// Whether the eSIM is installed on a device, or its installation has begun.
    installed: Option<bool>,
    /// The data that was bought, in bytes; null for an eSIM without a limit, too.
    data_total_bytes: Option<u64>,
    data_used_bytes: Option<u64>,
    data_left_bytes: Option<u64>,
    /// When the plan of the eSIM ends. Null before its first use: `expired_date` of its webhook
    /// says by when it must be started.
    #[serde(with = "rfc3339::option")]
    ends_at: Option<OffsetDateTime>,
    /// When the provider counted the data; null if it does not say it.
    #[serde(with = "rfc3339::option")]
    as_of: Option<OffsetDateTime>,
    /// Since when the provider says that the eSIM was downloaded and not installed, if it has said
    /// so for a quarter of an hour: your customer needs help. Null if nothing says so; few
    /// providers do.
    #[serde(with = "rfc3339::option")]
    in_trouble_since: Option<OffsetDateTime>,
    /// When the provider said this.
    #[serde(with = "rfc3339")]
    read_at: OffsetDateTime,
    /// How long ago that was, in seconds.
    age_seconds: u64,
}

impl<'a> UsageResponse<'a> {
    fn new(
        topup_id: &'a TopupId,
        (reading, read_at, age): (Reading, OffsetDateTime, Duration),
        in_trouble_since: Option<OffsetDateTime>,
    ) -> Self {
        let Reading {
            installed,
            data_used,
            data_total,
            ends_at,
            as_of,
            only_downloaded: _,
        } = reading;
        let left = data_total.zip(data_used);
        Self {
            topup_id,
            installed,
            data_total_bytes: data_total,
            data_used_bytes: data_used,
            data_left_bytes: left.map(|(total, used)| total.saturating_sub(used)),
            ends_at,
            as_of,
            in_trouble_since,
            read_at,
            age_seconds: age.as_secs(),
        }
    }
}

/// The state of a give-back: `not_asked`, `under_way` (the provider is being asked), `on_hold` (it is
/// not certain whether the provider has the eSIM back, so we look into it; do not sell it meanwhile),
/// `claimed` (people at the provider decide, which takes days; do not sell it meanwhile),
/// `returned` (nobody can install it any more) or `refused` (it stays yours).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = GiveBackState)]
enum State {
    /// You have not asked for it.
    NotAsked,
    /// The provider is being asked.
    UnderWay,
    /// It is not certain whether the provider has the eSIM back. We look into it; it becomes
    /// `returned` or `refused`. Do not sell the eSIM meanwhile.
    OnHold,
    /// People at the provider decide whether it takes the eSIM back, which takes days. It becomes
    /// `returned` or `refused`. Do not sell the eSIM meanwhile.
    Claimed,
    /// The provider has the eSIM back. Nobody can install it any more.
    Returned,
    /// The eSIM is not given back and stays yours.
    Refused,
}

/// A give-back.
#[derive(Serialize, ToSchema)]
#[schema(as = GiveBack)]
struct GivenBack<'a> {
    #[schema(value_type = String, example = "20250129123456123456789012")]
    topup_id: &'a TopupId,
    state: State,
    /// The error code of a refusal, such as `esim_installed`; null unless it is `refused`.
    code: Option<&'static str>,
    /// What the refusal says, or the provider of a claim; null unless it is `refused` or `claimed`.
    message: Option<String>,
    #[serde(with = "rfc3339::option")]
    asked_at: Option<OffsetDateTime>,
    /// When it became `returned`, `refused` or `on_hold`.
    #[serde(with = "rfc3339::option")]
    ended_at: Option<OffsetDateTime>,
}

impl<'a> GivenBack<'a> {
    fn new(topup_id: &'a TopupId, asked: Option<&EsimChangeView>) -> Self {
        let state = asked.map_or(State::NotAsked, |asked| match asked.state {
            EsimChangeState::Asked | EsimChangeState::Sending => State::UnderWay,
            EsimChangeState::Parked => State::OnHold,
            EsimChangeState::Claimed => State::Claimed,
            EsimChangeState::Done => State::Returned,
            EsimChangeState::Refused => State::Refused,
        });
        let refusal = asked.filter(|_| state == State::Refused).map(refusal);
        Self {
            topup_id,
            state,
            code: refusal.as_ref().map(|(code, _)| code.name()),
            message: match state {
                State::Claimed => asked.and_then(|asked| asked.message.clone()),
                _ => refusal.map(|(_, message)| message),
            },
            asked_at: asked.map(|asked| asked.asked_at),
            ended_at: asked.and_then(|asked| asked.ended_at),
        }
    }
}

/// Why an eSIM is given back.
#[derive(ToSchema)]
struct GiveBackBody {
    /// `installation_failure` (it cannot be installed), `no_coverage`, `change_of_plan`,
    /// `wrong_purchase` or `other`, which is the default. A provider that lets people decide is
    /// told it.
    #[schema(value_type = Option<String>, example = "no_coverage")]
    cause: Option<GiveBackCause>,
}

impl GiveBackBody {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        // Earlier requests had no body.
        if body.is_empty() {
            return Ok(Self { cause: None });
        }
        let mut fields = BodyFields::of(body)?;
        let cause = fields.read("cause", |value| {
            let known = value.as_str().and_then(|name| name.parse().ok());
            known.ok_or_else(|| RequestFault::new(ErrorCode::CauseInvalid))
        });
        fields.check(Some(Self { cause }))
    }
}

/// The code and the message of a refused give-back.
fn refusal(refused: &EsimChangeView) -> (ErrorCode, String) {
    let code = match refused.reason {
        Some(EsimChangeReason::NotAvailable) => ErrorCode::GiveBackNotAvailable,
        Some(EsimChangeReason::Installed) => ErrorCode::EsimInstalled,
        Some(EsimChangeReason::Refused | EsimChangeReason::Denied) => ErrorCode::GiveBackRefused,
        Some(
            EsimChangeReason::Unreachable
            | EsimChangeReason::Unknown
            | EsimChangeReason::Resolved
            | EsimChangeReason::Unreadable,
        )
        | None => ErrorCode::GiveBackFailed,
    };
    code.said_by_provider(refused.message.as_deref())
}

/// Reads what was asked about a unit of the partner.
pub(super) async fn read(session: &Session, id: &TopupId) -> Result<EsimRequests, ApiError> {
    let reading = session.read(async |connection, partner| {
        let found = esims::requests(connection, partner, id).await?;
        or_archived(found, is_topup_archived(connection, partner, id)).await
    });
    Ok(reading.await??)
}

/// Refuses a question about a unit that is not with the partner.
pub(super) fn delivered(requests: &EsimRequests) -> Result<(), ApiError> {
    let error = |code: ErrorCode, message: &str| ApiError::Plain {
        code,
        message: message.into(),
    };
    if requests.returned_at.is_some() {
        Err(ErrorCode::TopupReturned.into())
    } else if requests.state != PartnerUnitState::Ready {
        Err(error(ErrorCode::TopupNotReady, "The eSIM is not ready"))
    } else if requests.erased {
        Err(error(
            ErrorCode::TopupErased,
            "The eSIM's fields were erased",
        ))
    } else {
        Ok(())
    }
}

/// Looks at the row of a unit until `is_answered`, the time is over or the process stops.
pub(super) async fn wait(
    session: &Session,
    id: &TopupId,
    is_answered: impl Fn(&EsimRequests) -> bool,
) -> Result<EsimRequests, ApiError> {
    let mut patience = Patience::of(session);
    loop {
        let seen = read(session, id).await;
        if let Some(answer) = patience.judge(seen, &is_answered).await {
            return answer;
        }
    }
}

/// How long a request waits until a provisioner has answered, and how often it looks.
pub(super) struct Patience {
    deadline: Instant,
    is_late: bool,
    stop: CancellationToken,
}

impl Patience {
    pub(super) fn of(session: &Session) -> Self {
        let deadline = Instant::now() + ESIM_REQUEST_WAIT;
        Self {
            deadline,
            is_late: false,
            stop: session.service().stop.clone(),
        }
    }

    /// What is told after this look, or `None`, once it is time for the next one. A database that
    /// is busy delays only the answer, so an error is tolerated until the time is over, or the
    /// process stops.
    pub(super) async fn judge<T>(
        &mut self,
        seen: Result<T, ApiError>,
        is_answered: &impl Fn(&T) -> bool,
    ) -> Option<Result<T, ApiError>> {
        match seen {
            Ok(seen) if self.is_late || is_answered(&seen) => return Some(Ok(seen)),
            Err(error) if self.is_late => return Some(Err(error)),
            Ok(_) | Err(_) => {}
        }
        self.stop
            .run_until_cancelled(tokio::time::sleep(LOOK))
            .await;
        self.is_late = Instant::now() >= self.deadline || self.stop.is_cancelled();
        None
    }
}

/// Show the data use of an eSIM
///
/// What the provider says about the eSIM: whether it is installed, how much of its data is used,
/// and when it ends. Providers count with a delay of hours; `as_of` is the time of the count. An
/// answer of the provider is kept for 5 minutes and served again; `age_seconds` says how old it is.
/// If the provider does not answer, you get its last answer, however old it is. An account may have
/// providers asked about eSIMs, by this request or a give-back, 5 times per second.
#[utoipa::path(get, path = "/topups/{topup_id}/usage", operation_id = "show_usage", tag = "Topups",
    params(("topup_id" = String, Path, description = "The id of the topup, 26 digits")),
    responses(
        (status = 200, description = "The data use", body = UsageResponse),
        (status = 404, response = crate::http::described::NotFound),
        (status = 410, response = crate::http::described::Archived),
        (status = 409, description = "The provider does not show it (`usage_not_available`), the eSIM is not ready (`topup_not_ready`), you gave it back (`topup_returned`), or its fields were erased (`topup_erased`)", body = crate::http::described::Message),
        (status = 503, description = "The provider does not answer, and there is no earlier answer (`usage_unanswered`); `Retry-After` says when to try again", body = crate::http::described::Message)))]
pub(super) async fn usage(
    session: Session,
    PathId(id): PathId<TopupId>,
) -> Result<Response, ApiError> {
    let fresh = USAGE_FRESH;
    let before = read(&session, &id).await?;
    delivered(&before)?;
    match (before.reading, before.failure) {
        (_, Some((UsageFailure::NotAvailable, age))) if age <= fresh => {
            return Err(ErrorCode::UsageNotAvailable.into());
        }
        (Some(reading), _) if reading.2 <= fresh => {
            let usage = UsageResponse::new(&id, reading, before.in_trouble_since);
            return Ok(json(StatusCode::OK, &usage));
        }
        _ => {}
    }
    let rates = session.gate().admission.rates.of(&session.partner);
    rates.count_esim_request()?;
    let asking =
        session.run(async |connection, partner| esims::ask_usage(connection, partner, &id).await);
    asking.await?;
    let after = wait(&session, &id, |requests| !requests.usage_open).await?;
    match (after.reading, after.failure) {
        (_, Some((UsageFailure::NotAvailable, _))) => Err(ErrorCode::UsageNotAvailable.into()),
        (Some(reading), _) => {
            let usage = UsageResponse::new(&id, reading, after.in_trouble_since);
            Ok(json(StatusCode::OK, &usage))
        }
        (None, _) => Ok(retry_after(ErrorCode::UsageUnanswered, UNANSWERED)),
    }
}

/// Give an eSIM back
///
/// Gives an eSIM back that nobody has installed, if its provider takes it back. At some providers
/// people decide, also on an installed one; it is `claimed` meanwhile, and their refund is
/// `returned`. We first ask the provider whether it can be given back. After a 200 it is certain
/// that nobody can install the eSIM any more; its fields are erased here. After a 409 it is certain
/// that the eSIM stays yours. After a 202, which comes after about 12 s or with a claim, neither is
/// certain yet: look at the state until it is, or ask for `esim.returned`. Repeating the request
/// while it is under way, or when it is done, changes nothing; after a refusal it asks anew. A
/// webhook of the eSIM that was not delivered yet is not sent any more. Whether and how you are
/// refunded is part of our agreement.
#[utoipa::path(post, path = "/topups/{topup_id}/give-back", operation_id = "give_back", tag = "Topups",
    params(("topup_id" = String, Path, description = "The id of the topup, 26 digits")),
    request_body = Option<GiveBackBody>,
    responses(
        (status = 200, description = "The provider has the eSIM back", body = GivenBack),
        (status = 202, description = "The give-back is under way, claimed or on hold", body = GivenBack),
        (status = 400, response = crate::http::described::InvalidJson),
        (status = 422, response = crate::http::described::Unprocessable),
        (status = 404, response = crate::http::described::NotFound),
        (status = 410, response = crate::http::described::Archived),
        (status = 409, description = "The eSIM stays yours: it is installed (`esim_installed`), its provider takes no eSIM back (`give_back_not_available`) or not this one (`give_back_refused`), or the provider could not be asked (`give_back_failed`). Or it is being extended (`esim_extending`), not ready (`topup_not_ready`), or its fields were erased (`topup_erased`)", body = crate::http::described::Message)))]
pub(super) async fn give_back(
    session: Session,
    PathId(id): PathId<TopupId>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read(session.gate().max_body, &parts.headers, body).await?;
    let cause = GiveBackBody::read(&body)?.cause.unwrap_or_default();
    let before = read(&session, &id).await?;
    let state = before.give_back.as_ref().map(|asked| asked.state);
    if matches!(state, None | Some(EsimChangeState::Refused)) {
        delivered(&before)?;
        if before.extending {
            return Err(ErrorCode::EsimExtending.into());
        }
        if before.is_replacement {
            return Err(ErrorCode::GiveBackNotAvailable.into());
        }
        let rates = session.gate().admission.rates.of(&session.partner);
        rates.count_esim_request()?;
        let asking = session.run(async |connection, partner| {
            esims::ask_give_back(connection, partner, &id, cause).await
        });
        asking.await?;
    }
    let is_answered = |asked: &EsimChangeView| asked.state.is_answered();
    let after = wait(&session, &id, |requests| {
        requests.give_back.as_ref().is_some_and(is_answered)
    })
    .await?;
    let Some(asked) = &after.give_back else {
        // Its fields were erased, or an extension was ordered, after the first look.
        return Err(if after.extending {
            ErrorCode::EsimExtending.into()
        } else {
            ErrorCode::TopupErased.into()
        });
    };
    match asked.state {
        EsimChangeState::Done => Ok(json(StatusCode::OK, &GivenBack::new(&id, Some(asked)))),
        EsimChangeState::Refused => {
            let (code, message) = refusal(asked);
            Err(ApiError::Plain { code, message })
        }
        EsimChangeState::Asked
        | EsimChangeState::Sending
        | EsimChangeState::Claimed
        | EsimChangeState::Parked => Ok(json(
            StatusCode::ACCEPTED,
            &GivenBack::new(&id, Some(asked)),
        )),
    }
}

/// Show the state of a give-back
#[utoipa::path(get, path = "/topups/{topup_id}/give-back", operation_id = "show_give_back", tag = "Topups",
    params(("topup_id" = String, Path, description = "The id of the topup, 26 digits")),
    responses(
        (status = 200, description = "The state; `not_asked` if you have not asked for it", body = GivenBack),
        (status = 404, response = crate::http::described::NotFound),
        (status = 410, response = crate::http::described::Archived)))]
pub(super) async fn give_back_state(
    session: Session,
    PathId(id): PathId<TopupId>,
) -> Result<Response, ApiError> {
    let requests = read(&session, &id).await?;
    let shown = GivenBack::new(&id, requests.give_back.as_ref());
    Ok(json(StatusCode::OK, &shown))
}

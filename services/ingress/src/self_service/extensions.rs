//! Extensions: more data or days for a delivered eSIM.
//!
//! Ingress holds no credentials of providers, so it stores the question what can be added, or the
//! extension, and looks at its row until the answer is there, as [`super::esims`] does.
//!
//! Guarantees: an external id names one extension for ever, so a repeat buys nothing and is
//! answered with what became of the first request. An extension is `added` or `refused` only once
//! that is certain; until then it is under way, or on hold while an operator looks into it.

use axum::{extract::Request, http::StatusCode, response::Response};
use desk::self_service::{
    OfferedOption,
    extensions::{self, ExtensionOrdered, ExtensionScope, NewExtension, Offers, PartnerExtension},
};
use domain::{EsimChangeState, OptionId, TopupId};
use serde::Serialize;
use store::esim_requests::EsimChangeReason;
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{
    esims::{self, Patience, UNANSWERED, USAGE_FRESH, delivered},
    fields::BodyFields,
    orders::retry_after,
    session::{PathId, Session, json},
};
use crate::http::{
    body,
    codes::ErrorCode,
    error::{ApiError, RequestFault},
    faults,
};

/// The state of an extension: `under_way` (the provider is being asked), `on_hold` (it is not certain
/// whether it was added, so we look into it), `added` or `refused` (nothing was added, and nothing is
/// to be paid).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ExtensionState)]
enum State {
    /// The provider is being asked.
    UnderWay,
    /// It is not certain whether it was added. We look into it; it becomes `added` or `refused`.
    OnHold,
    /// The eSIM has it.
    Added,
    /// Nothing was added, and nothing will be.
    Refused,
}

/// An extension of an eSIM.
#[derive(Serialize, ToSchema)]
#[schema(as = Extension)]
struct ExtensionResponse {
    #[schema(example = "20250129123456123456789012")]
    topup_id: String,
    /// Your own id of the extension.
    #[schema(example = "A-1042-more")]
    external_id: String,
    /// What is added.
    #[schema(value_type = Uuid)]
    option_id: OptionId,
    state: State,
    /// Whether the provider has sold another eSIM instead of extending this one. Then the topup has
    /// the new eSIM, and its webhook comes again with the same `webhook-id`. A program that drops
    /// repeats looks the topup up.
    new_esim: bool,
    /// The error code of a refusal, such as `extension_refused`; null unless it is `refused`.
    code: Option<&'static str>,
    /// What the refusal says; null unless it is `refused`.
    message: Option<String>,
    #[serde(with = "rfc3339")]
    ordered_at: OffsetDateTime,
    /// When it became `added`, `refused` or `on_hold`.
    #[serde(with = "rfc3339::option")]
    ended_at: Option<OffsetDateTime>,
}

impl From<&PartnerExtension> for ExtensionResponse {
    fn from(one: &PartnerExtension) -> Self {
        let state = match one.state {
            EsimChangeState::Asked | EsimChangeState::Sending | EsimChangeState::Claimed => {
                State::UnderWay
            }
            EsimChangeState::Parked => State::OnHold,
            EsimChangeState::Done => State::Added,
            EsimChangeState::Refused => State::Refused,
        };
        let refusal = (state == State::Refused).then(|| refusal(one));
        Self {
            topup_id: one.topup_id.clone(),
            external_id: one.external_id.clone(),
            option_id: one.option_id,
            state,
            new_esim: one.has_new_profile,
            code: refusal.as_ref().map(|(code, _)| code.name()),
            message: refusal.map(|(_, message)| message),
            ordered_at: one.asked_at,
            ended_at: one.ended_at,
        }
    }
}

/// The code and the message of a refused extension.
fn refusal(refused: &PartnerExtension) -> (ErrorCode, String) {
    let code = match refused.reason {
        Some(EsimChangeReason::NotAvailable) => ErrorCode::ExtensionNotOffered,
        Some(
            EsimChangeReason::Refused | EsimChangeReason::Installed | EsimChangeReason::Denied,
        ) => ErrorCode::ExtensionRefused,
        Some(
            EsimChangeReason::Unreachable
            | EsimChangeReason::Unknown
            | EsimChangeReason::Resolved
            | EsimChangeReason::Unreadable,
        )
        | None => ErrorCode::ExtensionFailed,
    };
    code.said_by_provider(refused.message.as_deref())
}

/// What can be added to an eSIM, and what was.
#[derive(Serialize, ToSchema)]
#[schema(as = Extensions)]
struct ExtensionsResponse<'a> {
    #[schema(value_type = String, example = "20250129123456123456789012")]
    topup_id: &'a TopupId,
    /// The options that can be added to this eSIM now.
    options: Vec<OfferedOption>,
    /// When the provider said so.
    #[serde(with = "rfc3339")]
    read_at: OffsetDateTime,
    /// The extensions that you have ordered for it, the oldest first.
    extensions: Vec<ExtensionResponse>,
}

/// The extension to order.
#[derive(ToSchema)]
struct NewExtensionBody {
    /// Your own id of the extension, which no other extension of your account has. Repeat a request
    /// that got no answer with the same id.
    #[schema(example = "A-1042-more", max_length = 255)]
    external_id: String,
    /// One of the `options` of `GET /topups/{topup_id}/extensions`.
    #[schema(value_type = Uuid)]
    option_id: OptionId,
}

impl NewExtensionBody {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = BodyFields::of(body)?;
        let blank = || RequestFault::new(ErrorCode::ExternalOrderIdBlank);
        let external_id = fields.required("external_id", blank(), |value| {
            let no_text =
                || RequestFault::with(ErrorCode::ExternalOrderIdInvalid, "must be a string");
            faults::external_id(value.as_str().ok_or_else(no_text)?)
        });
        let missing = || RequestFault::new(ErrorCode::OptionIdBlank);
        let option_id = fields.required("option_id", missing(), |value| {
            let id = value.as_str().and_then(|text| text.parse::<Uuid>().ok());
            let unknown = || RequestFault::new(ErrorCode::OptionNotFound);
            id.map(OptionId::from).ok_or_else(unknown)
        });
        let both = external_id.zip(option_id);
        fields.check(both.map(|(external_id, option_id)| Self {
            external_id,
            option_id,
        }))
    }
}

fn scope(session: &Session) -> ExtensionScope<'_> {
    ExtensionScope {
        environment: session.environment(),
        providers: &session.service().providers,
        price_list: session.partner.price_list.as_deref(),
    }
}

async fn read_offers(session: &Session, id: &TopupId) -> Result<Offers, ApiError> {
    let scope = scope(session);
    let reading = session
        .read(async |connection, partner| extensions::offers(connection, partner, id, scope).await);
    reading.await
}

async fn read(session: &Session, id: &TopupId) -> Result<Vec<PartnerExtension>, ApiError> {
    let reading = session
        .read(async |connection, partner| extensions::extensions(connection, partner, id).await);
    reading.await
}

/// List what can be added to an eSIM
///
/// Asks the provider what can be added to this eSIM now, and lists the extensions that you have
/// ordered for it. An answer of the provider is kept for 5 minutes and served again. If the provider
/// does not answer, you get its last answer. It counts like a question about the data use.
#[utoipa::path(get, path = "/topups/{topup_id}/extensions", operation_id = "list_extensions", tag = "Topups",
    params(("topup_id" = String, Path, description = "The id of the topup, 26 digits")),
    responses(
        (status = 200, description = "What can be added, and what was", body = ExtensionsResponse),
        (status = 404, response = crate::http::described::NotFound),
        (status = 410, response = crate::http::described::Archived),
        (status = 409, description = "The eSIM is not ready (`topup_not_ready`), you gave it back (`topup_returned`), or its fields were erased (`topup_erased`)", body = crate::http::described::Message),
        (status = 503, description = "The provider does not answer, and there is no earlier answer (`usage_unanswered`); `Retry-After` says when to try again", body = crate::http::described::Message)))]
pub(super) async fn list(
    session: Session,
    PathId(id): PathId<TopupId>,
) -> Result<Response, ApiError> {
    delivered(&esims::read(&session, &id).await?)?;
    let mut offers = read_offers(&session, &id).await?;
    if offers.said.is_none_or(|(_, age)| age > USAGE_FRESH) {
        let rates = session.gate().admission.rates.of(&session.partner);
        rates.count_esim_request()?;
        let asking = session.run(async |connection, partner| {
            extensions::ask_offers(connection, partner, &id).await
        });
        asking.await?;
        let mut patience = Patience::of(&session);
        offers = loop {
            let seen = read_offers(&session, &id).await;
            if let Some(answer) = patience.judge(seen, &|offers: &Offers| !offers.open).await {
                break answer?;
            }
        };
    }
    let Some((read_at, _)) = offers.said else {
        return Ok(retry_after(ErrorCode::UsageUnanswered, UNANSWERED));
    };
    let ordered = read(&session, &id).await?;
    let answer = ExtensionsResponse {
        topup_id: &id,
        options: offers.options,
        read_at,
        extensions: ordered.iter().map(ExtensionResponse::from).collect(),
    };
    Ok(json(StatusCode::OK, &answer))
}

/// Extend an eSIM
///
/// Adds an option to a delivered eSIM. After a 201 the eSIM has it. After a 409 it is certain that
/// nothing was added and nothing is to be paid. After a 202, which comes after about 12 s, neither is
/// certain yet: `extension.ready` or `extension.failed` tells you, or the list of the extensions. A
/// repeat with the same `external_id` buys nothing and is answered with what became of the first
/// request. An eSIM has at most one extension that is under way or on hold.
#[utoipa::path(post, path = "/topups/{topup_id}/extensions", operation_id = "extend", tag = "Topups", request_body = NewExtensionBody,
    params(("topup_id" = String, Path, description = "The id of the topup, 26 digits")),
    responses(
        (status = 201, description = "The eSIM is extended", body = ExtensionResponse),
        (status = 202, description = "The extension is under way or on hold", body = ExtensionResponse),
        (status = 400, response = crate::http::described::InvalidJson),
        (status = 404, response = crate::http::described::NotFound),
        (status = 410, response = crate::http::described::Archived),
        (status = 409, description = "Nothing was added by this request: the provider refused it (`extension_refused`) or could not be asked (`extension_failed`), the option cannot be added to this eSIM (`extension_not_offered`), another extension of the eSIM is open (`extension_open`), the `external_id` names another one (`extension_differs`), the eSIM is being given back (`give_back_open`), or it is not ready (`topup_not_ready`), given back (`topup_returned`) or erased (`topup_erased`)", body = crate::http::described::Message),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn order(
    session: Session,
    PathId(id): PathId<TopupId>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read(session.gate().max_body, &parts.headers, body).await?;
    let NewExtensionBody {
        external_id,
        option_id,
    } = NewExtensionBody::read(&body)?;
    let before = esims::read(&session, &id).await?;
    let known = read(&session, &id).await?;
    let is_repeat = known.iter().any(|one| one.external_id == external_id);
    if !is_repeat {
        delivered(&before)?;
        let rates = session.gate().admission.rates.of(&session.partner);
        rates.count_esim_request()?;
    }
    let new = NewExtension {
        topup_id: &id,
        external_id: &external_id,
        option_id,
        scope: scope(&session),
        limited_key: session.partner.limited_key(),
    };
    let ordering =
        session.run(async |connection, partner| extensions::order(connection, partner, new).await);
    let error = |code: ErrorCode, detail: &str| ApiError::Plain {
        code,
        message: code.message_with(detail),
    };
    match ordering.await? {
        ExtensionOrdered::Stored(_) => {}
        ExtensionOrdered::Differs => return Err(ErrorCode::ExtensionDiffers.into()),
        ExtensionOrdered::Busy(open) => return Err(error(ErrorCode::ExtensionOpen, &open)),
        ExtensionOrdered::GivingBack => return Err(ErrorCode::GiveBackOpen.into()),
        ExtensionOrdered::NotOffered => return Err(ErrorCode::ExtensionNotOffered.into()),
        ExtensionOrdered::NotReady => return Err(ErrorCode::TopupNotReady.into()),
        ExtensionOrdered::BalanceInsufficient {
            required,
            available,
        } => return Err(ApiError::balance_insufficient(required, available)),
        ExtensionOrdered::OverLimit => {
            return Err(ApiError::units_per_day_reached(new.limited_key, 0));
        }
    }
    let mut patience = Patience::of(&session);
    let stored = loop {
        // Nobody deletes an extension.
        let seen = read(&session, &id).await.and_then(|all| {
            let mut all = all.into_iter();
            let stored = all.find(|one| one.external_id == external_id);
            stored.ok_or_else(|| ErrorCode::NotFound.into())
        });
        let is_over = |one: &PartnerExtension| one.state.is_over();
        if let Some(answer) = patience.judge(seen, &is_over).await {
            break answer?;
        }
    };
    match stored.state {
        EsimChangeState::Refused => {
            let (code, message) = refusal(&stored);
            Err(ApiError::Plain { code, message })
        }
        EsimChangeState::Done => Ok(json(StatusCode::CREATED, &ExtensionResponse::from(&stored))),
        EsimChangeState::Asked
        | EsimChangeState::Sending
        | EsimChangeState::Claimed
        | EsimChangeState::Parked => Ok(json(
            StatusCode::ACCEPTED,
            &ExtensionResponse::from(&stored),
        )),
    }
}

//! The partner's channel for notices: a second URL or an e-mail address, where we tell it that its
//! endpoint fails.
//!
//! Guarantee: ingress sends nothing. It stores the channel and makes a code due, which a notifier
//! makes and sends; here only its digest is compared. So whoever reads the answers of ingress, or
//! its database, does not learn a code. Neither logs nor errors name the URL or the address.

use axum::{extract::Request, http::StatusCode, response::Response};
use desk::self_service::{self, NoticeChannel, SetChannel, Verification, VerificationLimits};
use domain::Environment;
use serde::Serialize;
use signing::generate;
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use webhooks::{mail::EmailAddress, url::WebhookUrl};

use super::{
    fields::BodyFields,
    session::{SelfService, Session, json},
    webhook,
};
use crate::http::{
    body,
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// Maximum number of codes per partner within 24 hours that verify a channel for notices. It bounds
/// what a stranger gets whose e-mail address a partner names by mistake or on purpose. A further
/// code gets a 429 with Retry-After.
const NOTICE_VERIFICATIONS_PER_DAY: u32 = 5;

/// The channel for notices.
#[derive(Serialize, ToSchema)]
#[schema(as = Notices)]
struct NoticesResponse<'a> {
    /// The URL that gets notices; null if there is none.
    url: Option<&'a str>,
    /// The e-mail address that gets notices; null if there is none.
    email: Option<&'a str>,
    /// `none` (nothing is set), `unverified` (give us the code that we have sent there), `open`,
    /// `blocked` (after failures), `probing` (one notice tests it) or `paused` (by us).
    state: &'a str,
    #[serde(with = "rfc3339::option")]
    verified_at: Option<OffsetDateTime>,
    /// Until when the code that we have sent last is valid; null if there is none.
    #[serde(with = "rfc3339::option")]
    code_until: Option<OffsetDateTime>,
    /// Consecutive failed attempts.
    failures: i32,
    /// The sender of our mails. Null means that we send no mails, so that only a `url` can be set.
    email_from: Option<&'a str>,
}

impl<'a> NoticesResponse<'a> {
    fn of(channel: Option<&'a NoticeChannel>, email_from: Option<&'a str>) -> Self {
        let target = channel.map(|channel| channel.target.as_str());
        let email = target.and_then(|target| target.strip_prefix("mailto:"));
        Self {
            url: target.filter(|_| email.is_none()),
            email,
            state: channel.map_or("none", |channel| channel.state.as_str()),
            verified_at: channel.and_then(|channel| channel.verified_at),
            code_until: channel.and_then(|channel| channel.code_until),
            failures: channel.map_or(0, |channel| channel.failures),
            email_from,
        }
    }
}

/// The channel after a change.
#[derive(Serialize, ToSchema)]
struct ChangedNotices<'a> {
    #[serde(flatten)]
    notices: NoticesResponse<'a>,
    /// The secret that signs the notices to a new URL. It is shown only in this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    secret: Option<String>,
    /// A warning, only if the host of a new URL could not be resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'static str>,
}

/// Answers with the channel as it is stored now.
async fn answer(
    session: &Session,
    secret: Option<String>,
    warning: Option<&'static str>,
) -> Result<Response, ApiError> {
    let channel = session.run(self_service::channel).await?;
    let from = session.service().mail_from.as_deref();
    let changed = ChangedNotices {
        notices: NoticesResponse::of(channel.as_ref(), from),
        secret,
        warning,
    };
    Ok(json(StatusCode::OK, &changed))
}

/// Show the channel for notices
#[utoipa::path(get, path = "/notices", operation_id = "show_notices", tag = "Notices",
    responses((status = 200, description = "The channel", body = NoticesResponse)))]
pub(super) async fn show(session: Session) -> Result<Response, ApiError> {
    answer(&session, None, None).await
}

/// Set the channel for notices
///
/// Notices tell you on another channel that an endpoint of yours fails, is blocked or has
/// recovered, that the retries of a webhook have ended, that old keys end, and that our addresses
/// change. Send either a `url` or an `email`. We send a one-time code there at once; give it to
/// `POST /notices/verify` to activate the channel. Until then nothing else is sent there. A new
/// channel replaces the old one. Setting the channel that is verified already changes nothing. A
/// code can be sent once a minute and five times a day.
#[utoipa::path(put, path = "/notices", operation_id = "set_notices", tag = "Notices", request_body = NoticesChannel,
    responses(
        (status = 200, description = "The channel, and for a new URL its secret", body = ChangedNotices),
        (status = 400, response = crate::http::described::InvalidJson),
        (status = 422, response = crate::http::described::Unprocessable),
        (status = 429, description = "Too many codes were sent (`verification_limited`); `Retry-After` says when to try again", body = crate::http::described::Message)))]
pub(super) async fn set(session: Session, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read(session.gate().max_body, &parts.headers, body).await?;
    let service = session.service();
    let wanted = NoticesChannel::read(service, &body, session.environment())?;
    let mut warning = None;
    let target = match (&wanted.url, &wanted.email) {
        (Some(url), _) => {
            warning = webhook::resolved(service, url).await?;
            url.as_str().to_owned()
        }
        (None, Some(address)) => address.to_target(),
        (None, None) => return Err(ErrorCode::NoticeChannelMissing.into()),
    };
    // The secret of an e-mail address signs nothing, because nobody checks signatures of mails.
    let secret = generate::webhook_secret().map_err(ApiError::internal)?;
    let limits = VerificationLimits {
        interval: session.gate().limits.redeliver_interval,
        per_day: NOTICE_VERIFICATIONS_PER_DAY,
    };
    let setting = session.change(async |connection, partner| {
        self_service::set_channel(
            connection,
            &service.vault,
            partner,
            &target,
            &secret,
            limits,
        )
        .await
    });
    match setting.await? {
        SetChannel::TooSoon(wait) => Err(ApiError::too_soon(ErrorCode::VerificationLimited, wait)),
        SetChannel::Unchanged => answer(&session, None, None).await,
        SetChannel::Set => {
            let is_url = wanted.url.is_some();
            tracing::info!(
                partner.id = %session.id(),
                channel = if is_url { "url" } else { "email" },
                "a partner set its channel for notices; it gets them once it has given back the code that is sent there"
            );
            answer(&session, is_url.then(|| secret.to_text()), warning).await
        }
    }
}

/// The channel for notices: a URL or an e-mail address, and only one of them.
#[derive(ToSchema)]
struct NoticesChannel {
    /// A URL on another server than your webhook endpoint: `https`, or for a sandbox account also
    /// `http`, with at most 2048 bytes.
    #[schema(value_type = Option<String>, example = "https://status.example.com/notices")]
    url: Option<WebhookUrl>,
    /// An e-mail address. It is possible only if `email_from` of the channel is not null.
    #[schema(value_type = Option<String>, example = "ops@example.com")]
    email: Option<EmailAddress>,
}

impl NoticesChannel {
    /// Reads the channel, and checks what can be checked without a name server.
    fn read(
        service: &SelfService,
        body: &[u8],
        environment: Environment,
    ) -> Result<Self, ApiError> {
        let mut fields = BodyFields::of(body)?;
        if fields.has("url") == fields.has("email") {
            fields.fault(RequestFault::new(ErrorCode::NoticeChannelMissing));
        }
        let url = fields.read("url", |value| {
            webhook::url(&service.guard, value, environment, "it must be a string")
        });
        let email = fields.read("email", |value| match value.as_str().map(str::parse) {
            Some(Ok(_)) if service.mail_from.is_none() => {
                Err(RequestFault::new(ErrorCode::EmailNotOffered))
            }
            Some(Ok(address)) => Ok(address),
            Some(Err(error)) => Err(RequestFault::with(ErrorCode::EmailInvalid, error)),
            None => Err(RequestFault::with(
                ErrorCode::EmailInvalid,
                "it must be a string",
            )),
        });
        fields.check(Some(Self { url, email }))
    }
}

/// The code that we have sent to the channel.
#[derive(ToSchema)]
struct NoticeCode {
    #[schema(example = "7KQM-2XWB-9TRA")]
    code: String,
}

impl NoticeCode {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = BodyFields::of(body)?;
        let wrong = || RequestFault::with(ErrorCode::NoticeCodeInvalid, "it must be a string");
        let code = fields.required("code", wrong(), |value| {
            value.as_str().map(String::from).ok_or_else(wrong)
        });
        fields.check(code.map(|code| Self { code }))
    }
}

/// Remove the channel for notices
///
/// No notices are sent any more. Removing it when there is none changes nothing.
#[utoipa::path(delete, path = "/notices", operation_id = "remove_notices", tag = "Notices",
    responses((status = 200, description = "The channel, which is `none`", body = NoticesResponse)))]
pub(super) async fn remove(session: Session) -> Result<Response, ApiError> {
    if session.change(self_service::remove_channel).await? {
        tracing::info!(partner.id = %session.id(), "a partner removed its channel for notices");
    }
    answer(&session, None, None).await
}

/// Verify the channel for notices
///
/// Give back the code that we have sent to the channel. It is valid for half an hour, and five
/// wrong codes end it, too; then set the channel again to get a new one. Blanks, hyphens and the
/// case of letters do not matter.
#[utoipa::path(post, path = "/notices/verify", operation_id = "verify_notices", tag = "Notices", request_body = NoticeCode,
    responses(
        (status = 200, description = "The channel, which now gets notices", body = NoticesResponse),
        (status = 400, response = crate::http::described::InvalidJson),
        (status = 409, description = "There is no channel to verify (`notices_not_set`)", body = crate::http::described::Message),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn verify(session: Session, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read(session.gate().max_body, &parts.headers, body).await?;
    let NoticeCode { code } = NoticeCode::read(&body)?;
    let refused = |detail: String| {
        let fault = RequestFault::with(ErrorCode::NoticeCodeInvalid, detail).of_parameter("code");
        Err(ApiError::Unprocessable(vec![fault]))
    };
    let verifying = session.change(async |connection, partner| {
        self_service::verify_channel(connection, partner, &code).await
    });
    match verifying.await? {
        Verification::Verified => {
            tracing::info!(partner.id = %session.id(), "a partner's channel for notices is verified");
            answer(&session, None, None).await
        }
        Verification::Wrong { left: 0 } | Verification::Ended => {
            refused("no code is valid now; set the channel again to get a new one".into())
        }
        Verification::Wrong { left } => {
            refused(format!("it is wrong; you can try {left} more times"))
        }
        Verification::NoChannel => Err(ErrorCode::NoticesNotSet.into()),
    }
}

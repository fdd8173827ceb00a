//! Error responses, in the shapes of section 7 of the specification.

use std::{borrow::Cow, sync::Arc, time::Duration};

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::{
    http::codes::{Code, Named},
    orders::accept,
};

/// One error of a 422.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: Code,
    /// The indexes of the items at fault, from 0.
    pub(crate) items: Vec<usize>,
    /// The parameter or field at fault.
    pub(crate) parameter: Option<&'static str>,
    pub(crate) message: String,
}

impl Fault {
    /// An error of the whole request.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, items: Vec::new(), parameter: None, message: message.into() }
    }

    pub(crate) fn of_item(index: usize, code: Code, message: impl Into<String>) -> Self {
        Self { items: vec![index], ..Self::new(code, message) }
    }

    pub(crate) fn of_parameter(name: &'static str, code: Code, message: impl Into<String>) -> Self {
        Self { parameter: Some(name), ..Self::new(code, message) }
    }

    /// The error for each item, or for the whole request.
    fn named(&self) -> impl Iterator<Item = Named> {
        let named = Named { code: self.code, item: None, parameter: self.parameter };
        let of_items = self.items.iter().map(move |index| Named { item: Some(*index), ..named });
        self.items.is_empty().then_some(named).into_iter().chain(of_items)
    }
}

#[derive(Debug)]
pub(crate) enum ApiError {
    /// A 4xx with one error.
    Plain { status: StatusCode, code: Code, message: Cow<'static, str> },
    /// 404.
    NotFound,
    /// 401.
    Unauthorized { reason: &'static str, code: Code, message: String },
    /// 422 with all errors of the request. Nothing is bought, now or later.
    Unprocessable(Vec<Fault>),
    /// 422: the provider rejected the order or could not be reached. Nothing is bought, now or later.
    Refused(Vec<Fault>),
    /// 429: a limit of the partner is used up for `wait`.
    Limited { code: Code, reason: &'static str, message: Cow<'static, str>, limit: u32, wait: Duration },
    /// 503: this request stored nothing.
    Unavailable { code: Code, reason: &'static str, message: &'static str },
    /// 500. The cause is logged and not part of the response.
    Internal(anyhow::Error),
}

/// Why a request was refused, for the log and the metrics. An extension of the response.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    /// The reason, from a fixed list.
    pub(crate) reason: &'static str,
    pub(crate) errors: Vec<Named>,
    /// The cause of a 500.
    pub(crate) cause: Option<Arc<str>>,
}

/// The most codes in the error header.
const MOST_CODES: usize = 20;

impl ApiError {
    pub(crate) fn plain(status: StatusCode, code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self::Plain { status, code, message: message.into() }
    }

    pub(crate) fn bad_request(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self::plain(StatusCode::BAD_REQUEST, code, message)
    }

    pub(crate) fn invalid_json() -> Self {
        Self::bad_request(Code::InvalidJson, "Invalid JSON format")
    }

    /// 413, with the limit in bytes.
    pub(crate) fn body_too_large(limit: usize) -> Self {
        let message = format!("Request body is larger than {limit} bytes");
        Self::plain(StatusCode::PAYLOAD_TOO_LARGE, Code::BodyTooLarge, message)
    }

    /// 409: what is stored does not allow it.
    pub(crate) fn conflict(code: Code, message: &'static str) -> Self {
        Self::plain(StatusCode::CONFLICT, code, message)
    }

    /// 429: the last such request was a moment ago.
    pub(crate) fn too_soon(code: Code, message: &'static str, wait: Duration) -> Self {
        Self::Limited { code, reason: code.name(), message: message.into(), limit: 1, wait }
    }

    /// 503: this process is overloaded.
    pub(crate) const fn overloaded(reason: &'static str, message: &'static str) -> Self {
        Self::Unavailable { code: Code::Overloaded, reason, message }
    }

    pub(crate) fn internal(error: impl Into<anyhow::Error>) -> Self {
        Self::Internal(error.into())
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Plain { code: Code::MethodNotAllowed, .. } => "method",
            Self::Plain { code, .. } => code.name(),
            Self::NotFound => "not_found",
            Self::Unauthorized { reason, .. } | Self::Limited { reason, .. } | Self::Unavailable { reason, .. } => {
                reason
            }
            Self::Unprocessable(errors) if accept::is_taken(errors) => "taken",
            Self::Unprocessable(_) => "invalid",
            Self::Refused(_) => "provider",
            Self::Internal(_) => "internal",
        }
    }

    /// The errors that the header names. They say no more than the body.
    fn errors(&self) -> Vec<Named> {
        let code = match self {
            Self::Unprocessable(faults) | Self::Refused(faults) => {
                return faults.iter().flat_map(Fault::named).take(MOST_CODES).collect();
            }
            Self::Plain { code, .. }
            | Self::Unauthorized { code, .. }
            | Self::Limited { code, .. }
            | Self::Unavailable { code, .. } => *code,
            Self::NotFound => Code::NotFound,
            Self::Internal(_) => Code::InternalError,
        };
        vec![code.into()]
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (reason, errors) = (self.reason(), self.errors());
        let mut cause = None;
        let mut response = match self {
            Self::Plain { status, message, .. } => simple(status, &message),
            Self::NotFound => simple(StatusCode::NOT_FOUND, "Not found"),
            Self::Unauthorized { message, .. } => {
                let body = json!({ "error": { "code": "unauthorized", "message": message } });
                (StatusCode::UNAUTHORIZED, Json(body)).into_response()
            }
            Self::Unprocessable(errors) | Self::Refused(errors) => {
                let messages: Vec<String> = errors.into_iter().map(|fault| fault.message).collect();
                (StatusCode::UNPROCESSABLE_ENTITY, Json(json!({ "errors": messages }))).into_response()
            }
            Self::Limited { message, limit, wait, .. } => {
                limited(simple(StatusCode::TOO_MANY_REQUESTS, &message), limit, wait)
            }
            Self::Unavailable { message, .. } => {
                let headers = [(header::RETRY_AFTER, HeaderValue::from_static("1"))];
                (headers, simple(StatusCode::SERVICE_UNAVAILABLE, message)).into_response()
            }
            Self::Internal(error) => {
                cause = Some(format!("{error:#}").into());
                simple(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error")
            }
        };
        response.extensions_mut().insert(Refusal { reason, errors, cause });
        response
    }
}

fn simple(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "error": message }))).into_response()
}

/// The rate-limit headers. `limit` is the partner's limit, used up for `wait`.
fn limited(mut response: Response, limit: u32, wait: Duration) -> Response {
    let seconds = (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1);
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, seconds.into());
    headers.insert("ratelimit-limit", limit.into());
    headers.insert("ratelimit-remaining", 0.into());
    headers.insert("ratelimit-reset", seconds.into());
    response
}

//! Error responses, in the shapes of section 7 of the specification.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::{
    codes::{Code, Named},
    orders,
};

/// One error of a 422.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The stable code in the error header.
    pub(crate) code: Code,
    /// The indexes of the items at fault, from 0.
    pub(crate) items: Vec<usize>,
    /// The parameter or field at fault.
    pub(crate) parameter: Option<&'static str>,
    /// The text in the body.
    pub(crate) message: String,
}

impl Fault {
    /// An error of the whole request.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            items: Vec::new(),
            parameter: None,
            message: message.into(),
        }
    }

    /// An error of one item.
    pub(crate) fn of_item(index: usize, code: Code, message: impl Into<String>) -> Self {
        Self {
            items: vec![index],
            ..Self::new(code, message)
        }
    }

    /// An error of one parameter.
    pub(crate) fn of_parameter(name: &'static str, code: Code, message: impl Into<String>) -> Self {
        Self {
            parameter: Some(name),
            ..Self::new(code, message)
        }
    }

    /// The error for each item, or for the whole request.
    fn named(&self) -> impl Iterator<Item = Named> {
        let named = Named {
            code: self.code,
            item: None,
            parameter: self.parameter,
        };
        let whole = self.items.is_empty().then_some(named);
        let of_items = self.items.iter().map(move |index| Named {
            item: Some(*index),
            ..named
        });
        whole.into_iter().chain(of_items)
    }
}

/// An error response.
#[derive(Debug)]
pub(crate) enum ApiError {
    /// 400: the body isn't JSON.
    InvalidJson,
    /// 400: the head of the request is malformed.
    BadRequest { code: Code, message: String },
    /// 401.
    Unauthorized { reason: &'static str, message: String },
    /// 422 with all errors of the request. Nothing is bought, now or later.
    Unprocessable(Vec<Fault>),
    /// 422: the provider rejected the order or could not be reached. Nothing is bought, now or later.
    Refused(Vec<Fault>),
    /// 403: the account may not do it. The code is in the error header and in the metrics.
    Forbidden { code: Code, message: &'static str },
    /// 404.
    NotFound,
    /// 405.
    MethodNotAllowed,
    /// 408: the body did not arrive within `BODY_TIMEOUT`.
    BodyTimeout,
    /// 409: what is stored does not allow it. The code is in the error header and in the metrics.
    Conflict { code: Code, message: &'static str },
    /// 413, with the limit in bytes.
    BodyTooLarge(usize),
    /// 429: the partner exceeded a rate limit.
    TooManyRequests(Limited),
    /// 429: the partner has its limit of orders in flight.
    TooManyInFlight(u32),
    /// 429: the last such request was a moment ago. The code is in the error header and in the metrics.
    TooSoon {
        code: Code,
        message: &'static str,
        wait: Duration,
    },
    /// 503: this process is overloaded. Nothing was stored.
    Overloaded {
        reason: &'static str,
        message: &'static str,
    },
    /// 503: the order waited longer than `QUEUE_DEADLINE` to be stored. It was not stored.
    QueuedTooLong,
    /// 503: an earlier request with the same external id may still be refused.
    Undecided,
    /// 500. The cause is logged and not part of the response.
    Internal(anyhow::Error),
}

/// An exceeded rate limit of a partner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limited {
    /// The limited quantity: `requests`, `orders`, `units`.
    pub(crate) what: &'static str,
    /// The limit's name in logs and metrics.
    pub(crate) reason: &'static str,
    pub(crate) per_second: u32,
    /// The wait until the request would pass.
    pub(crate) wait: Duration,
}

/// Why a request was refused, for the log and the metrics. An extension of the response.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    /// The reason, from a fixed list.
    pub(crate) reason: &'static str,
    /// What the error header names.
    pub(crate) errors: Vec<Named>,
    /// The cause of a 500.
    pub(crate) cause: Option<Arc<str>>,
}

/// The most codes in the error header.
const MOST_CODES: usize = 20;

impl ApiError {
    fn reason(&self) -> &'static str {
        match self {
            Self::InvalidJson => "invalid_json",
            Self::BadRequest { code, .. }
            | Self::Conflict { code, .. }
            | Self::Forbidden { code, .. }
            | Self::TooSoon { code, .. } => code.name(),
            Self::Unauthorized { reason, .. } | Self::Overloaded { reason, .. } => reason,
            Self::Unprocessable(errors) if orders::is_taken(errors) => "taken",
            Self::Unprocessable(_) => "invalid",
            Self::Refused(_) => "provider",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method",
            Self::BodyTimeout => "body_timeout",
            Self::BodyTooLarge(_) => "body_too_large",
            Self::TooManyRequests(limited) => limited.reason,
            Self::TooManyInFlight(_) => "max_in_flight",
            Self::QueuedTooLong => "queue_deadline",
            Self::Undecided => "undecided",
            Self::Internal(_) => "internal",
        }
    }

    /// The errors that the header names. They tell no more than the body.
    fn errors(&self) -> Vec<Named> {
        let code = match self {
            Self::Unprocessable(faults) | Self::Refused(faults) => {
                return faults.iter().flat_map(Fault::named).take(MOST_CODES).collect();
            }
            Self::InvalidJson => Code::InvalidJson,
            Self::BadRequest { code, .. }
            | Self::Conflict { code, .. }
            | Self::Forbidden { code, .. }
            | Self::TooSoon { code, .. } => *code,
            Self::Unauthorized { reason, .. } => match *reason {
                "missing_header" => Code::AuthenticationHeaderMissing,
                "timestamp" => Code::TimestampInvalid,
                "missing_secret_key" => Code::SecretKeyMissing,
                "signature" => Code::SignatureInvalid,
                "content_sha256_missing" => Code::ContentSha256Missing,
                "content_sha256" => Code::ContentSha256Invalid,
                "replayed" => Code::SignatureReplayed,
                _ => Code::AccessKeyUnknown,
            },
            Self::NotFound => Code::NotFound,
            Self::MethodNotAllowed => Code::MethodNotAllowed,
            Self::BodyTimeout => Code::BodyTimeout,
            Self::BodyTooLarge(_) => Code::BodyTooLarge,
            Self::TooManyRequests(_) => Code::RateLimited,
            Self::TooManyInFlight(_) => Code::TooManyInFlight,
            Self::Overloaded { .. } | Self::QueuedTooLong => Code::Overloaded,
            Self::Undecided => Code::OrderUndecided,
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
            Self::InvalidJson => simple(StatusCode::BAD_REQUEST, "Invalid JSON format"),
            Self::BadRequest { message, .. } => simple(StatusCode::BAD_REQUEST, &message),
            Self::Unauthorized { message, .. } => {
                let body = json!({ "error": { "code": "unauthorized", "message": message } });
                (StatusCode::UNAUTHORIZED, Json(body)).into_response()
            }
            Self::Unprocessable(errors) | Self::Refused(errors) => {
                let messages: Vec<String> = errors.into_iter().map(|fault| fault.message).collect();
                let body = Json(json!({ "errors": messages }));
                (StatusCode::UNPROCESSABLE_ENTITY, body).into_response()
            }
            Self::Forbidden { message, .. } => simple(StatusCode::FORBIDDEN, message),
            Self::NotFound => simple(StatusCode::NOT_FOUND, "Not found"),
            Self::MethodNotAllowed => simple(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed"),
            Self::BodyTimeout => simple(StatusCode::REQUEST_TIMEOUT, "Request body did not arrive in time"),
            Self::BodyTooLarge(limit) => {
                let message = format!("Request body is larger than {limit} bytes");
                simple(StatusCode::PAYLOAD_TOO_LARGE, &message)
            }
            Self::TooManyRequests(Limited {
                what,
                per_second,
                wait,
                ..
            }) => {
                let message = format!("Rate limit exceeded: at most {per_second} {what} per second");
                let response = simple(StatusCode::TOO_MANY_REQUESTS, &message);
                limited(response, per_second, wait)
            }
            Self::TooManyInFlight(limit) => {
                let message = format!("Limit exceeded: at most {limit} requests at once");
                let response = simple(StatusCode::TOO_MANY_REQUESTS, &message);
                limited(response, limit, Duration::from_secs(1))
            }
            Self::Conflict { message, .. } => simple(StatusCode::CONFLICT, message),
            Self::TooSoon { message, wait, .. } => {
                limited(simple(StatusCode::TOO_MANY_REQUESTS, message), 1, wait)
            }
            Self::Overloaded { message, .. } => unavailable(message),
            Self::QueuedTooLong => {
                unavailable("The order could not be stored in time; nothing was bought. Try again later")
            }
            Self::Undecided => {
                unavailable("Another request with this external order id is not decided yet. Try again later")
            }
            Self::Internal(error) => {
                cause = Some(format!("{error:#}").into());
                simple(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error")
            }
        };
        response.extensions_mut().insert(Refusal {
            reason,
            errors,
            cause,
        });
        response
    }
}

fn simple(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "error": message }))).into_response()
}

fn unavailable(message: &str) -> Response {
    let headers = [(header::RETRY_AFTER, HeaderValue::from_static("1"))];
    (headers, simple(StatusCode::SERVICE_UNAVAILABLE, message)).into_response()
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

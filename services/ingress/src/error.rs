//! Error responses, in the shapes of section 7 of the specification.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::orders;

/// One error of a 422.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The stable code in the error header.
    pub(crate) code: &'static str,
    /// The indexes of the items at fault, from 0.
    pub(crate) items: Vec<usize>,
    /// The text in the body.
    pub(crate) message: String,
}

impl Fault {
    /// An error of the whole request.
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            items: Vec::new(),
            message: message.into(),
        }
    }

    /// An error of one item.
    pub(crate) fn of_item(index: usize, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            items: vec![index],
            ..Self::new(code, message)
        }
    }
}

/// An error response.
#[derive(Debug)]
pub(crate) enum ApiError {
    /// 400: the body isn't JSON.
    InvalidJson,
    /// 400: the head of the request is malformed.
    BadRequest { reason: &'static str, message: String },
    /// 401.
    Unauthorized { reason: &'static str, message: String },
    /// 422 with all errors of the request. Nothing is bought, now or later.
    Unprocessable(Vec<Fault>),
    /// 422: the provider rejected the order or could not be reached. Nothing is bought, now or later.
    Refused(Vec<Fault>),
    /// 404.
    NotFound,
    /// 405.
    MethodNotAllowed,
    /// 408: the body did not arrive within `BODY_TIMEOUT`.
    BodyTimeout,
    /// 409: what is stored does not allow it. The code is in the error header and in the metrics.
    Conflict {
        code: &'static str,
        message: &'static str,
    },
    /// 413, with the limit in bytes.
    BodyTooLarge(usize),
    /// 429: the partner exceeded a rate limit.
    TooManyRequests(Limited),
    /// 429: the partner has its limit of orders in flight.
    TooManyInFlight(u32),
    /// 429: the last such request was a moment ago. The code is in the error header and in the metrics.
    TooSoon {
        code: &'static str,
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
    /// The value of the error header.
    pub(crate) codes: HeaderValue,
    /// The cause of a 500.
    pub(crate) cause: Option<Arc<str>>,
}

/// The most codes in the error header.
const MOST_CODES: usize = 20;

impl ApiError {
    fn reason(&self) -> &'static str {
        match self {
            Self::InvalidJson => "invalid_json",
            Self::BadRequest { reason, .. }
            | Self::Unauthorized { reason, .. }
            | Self::Overloaded { reason, .. } => reason,
            Self::Unprocessable(errors) if orders::is_taken(errors) => "taken",
            Self::Unprocessable(_) => "invalid",
            Self::Refused(_) => "provider",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method",
            Self::BodyTimeout => "body_timeout",
            Self::BodyTooLarge(_) => "body_too_large",
            Self::TooManyRequests(limited) => limited.reason,
            Self::TooManyInFlight(_) => "max_in_flight",
            Self::Conflict { code, .. } | Self::TooSoon { code, .. } => code,
            Self::QueuedTooLong => "queue_deadline",
            Self::Undecided => "undecided",
            Self::Internal(_) => "internal",
        }
    }

    /// The value of the error header: stable codes, of items with their index, such as
    /// `option_not_found; item=1, qty_invalid; item=2`. It tells no more than the body.
    fn codes(&self) -> HeaderValue {
        let code = match self {
            Self::Unprocessable(faults) | Self::Refused(faults) => return listed(faults),
            Self::InvalidJson => "invalid_json",
            Self::BadRequest { reason, .. } => reason,
            Self::Unauthorized { reason, .. } => match *reason {
                "missing_header" => "authentication_header_missing",
                "timestamp" => "timestamp_invalid",
                "missing_secret_key" => "secret_key_missing",
                "signature" => "signature_invalid",
                _ => "access_key_unknown",
            },
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::BodyTimeout => "body_timeout",
            Self::BodyTooLarge(_) => "body_too_large",
            Self::TooManyRequests(_) => "rate_limited",
            Self::TooManyInFlight(_) => "too_many_in_flight",
            Self::Conflict { code, .. } | Self::TooSoon { code, .. } => code,
            Self::Overloaded { .. } | Self::QueuedTooLong => "overloaded",
            Self::Undecided => "order_undecided",
            Self::Internal(_) => "internal_error",
        };
        HeaderValue::from_static(code)
    }
}

fn listed(faults: &[Fault]) -> HeaderValue {
    let codes = faults.iter().flat_map(|fault| {
        let whole = fault.items.is_empty().then(|| fault.code.to_owned());
        let of_items = fault
            .items
            .iter()
            .map(|index| format!("{}; item={index}", fault.code));
        whole.into_iter().chain(of_items)
    });
    let codes: Vec<String> = codes.take(MOST_CODES).collect();
    HeaderValue::from_str(&codes.join(", ")).unwrap_or(HeaderValue::from_static("invalid"))
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (reason, codes) = (self.reason(), self.codes());
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
        response.extensions_mut().insert(Refusal { reason, codes, cause });
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

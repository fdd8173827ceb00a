//! Error responses. Their shapes are part of the API contract: a 401 has an object with a code and
//! a message, a 422 has a list of all errors of the request, and every other error has one text.
//!
//! Guarantees: the status and the message follow from the [`ErrorCode`]. The cause of a 500 is
//! never part of a response, because it could show partners something of our system or of other
//! partners.
//!
//! Handlers return an [`ApiError`]. [`crate::observe`] logs and counts it once, from the
//! [`ErrorRecord`] that is an extension of the response.

use std::{fmt::Display, sync::Arc, time::Duration};

use axum::{
    Json,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use domain::Amount;
use serde_json::json;
use store::orders::LimitedKey;

use crate::http::{
    codes::ErrorCode,
    named::{NamedCode, Shortfall},
};

/// The limit per second, or of requests at once.
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
/// How many more are possible at once.
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
/// The number of seconds until the limit is free again.
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// The maximum number of codes in the error header. A large order can have hundreds of errors, and
/// clients and proxies limit the size of a response head.
const MAX_CODES: usize = 20;

/// What the metrics and the log call the status of a request whose client hung up before its end.
/// HTTP has none for it, and proxies use this one.
pub(crate) const HUNG_UP: u16 = 499;

/// An extension of a response that replaces another one on purpose ([`crate::orders::mishap`]). It
/// holds the status of the replaced one, which the metrics record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplacedStatus(pub(crate) StatusCode);

/// One error of a 422.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestFault {
    pub(crate) code: ErrorCode,
    /// The indexes of the items at fault, from 0.
    pub(crate) items: Vec<usize>,
    /// The query parameter or the field of the body at fault, if the code alone does not say it.
    pub(crate) parameter: Option<&'static str>,
    pub(crate) message: String,
    /// What the order costs, if that is more than there is.
    pub(crate) shortfall: Option<Shortfall>,
}

impl RequestFault {
    /// An error of the whole request.
    pub(crate) fn new(code: ErrorCode) -> Self {
        Self {
            code,
            items: Vec::new(),
            parameter: None,
            message: code.message().into(),
            shortfall: None,
        }
    }

    /// An error whose message contains a detail.
    pub(crate) fn with(code: ErrorCode, detail: impl Display) -> Self {
        Self {
            message: code.message_with(detail),
            ..Self::new(code)
        }
    }

    pub(crate) fn of_item(index: usize, code: ErrorCode) -> Self {
        let message = format!("Products[{index}] {}", code.message());
        Self {
            items: vec![index],
            message,
            ..Self::new(code)
        }
    }

    /// The same error, with the name of the parameter or field at fault.
    pub(crate) fn of_parameter(self, name: &'static str) -> Self {
        Self {
            parameter: Some(name),
            ..self
        }
    }

    /// The error as the header names it: once for each item at fault, or once for the whole
    /// request.
    fn named(&self) -> impl Iterator<Item = NamedCode> {
        let named = NamedCode {
            code: self.code,
            item: None,
            parameter: self.parameter,
            shortfall: self.shortfall,
        };
        let of_items = self.items.iter().map(move |index| NamedCode {
            item: Some(*index),
            ..named
        });
        self.items
            .is_empty()
            .then_some(named)
            .into_iter()
            .chain(of_items)
    }
}

/// Why a request does not succeed. A 4xx or 503 is final: this request buys nothing, now or later.
/// Either it stored nothing, or it stored an order that was then refused because the provider
/// rejected the purchase or could not be reached. After a 500 an order may be stored.
#[derive(Debug)]
pub(crate) enum ApiError {
    /// A 4xx with one error of the whole request.
    Plain { code: ErrorCode, message: String },
    /// 422 with all errors of the request.
    Unprocessable(Vec<RequestFault>),
    /// 429: a limit of the partner is used up for a time.
    Limited(ReachedLimit),
    /// 503: this process is overloaded, or an earlier request with the same external id is not
    /// decided yet. The metrics and the log name what was reached.
    Unavailable {
        code: ErrorCode,
        limit_name: &'static str,
    },
    /// The client hung up in the middle of its body, so nobody receives a response, except for a
    /// client that has only ended its side of the connection. Such a one gets a 400.
    HungUp,
    /// 500. The cause is logged and not part of the response.
    Internal(anyhow::Error),
}

/// A limit of a partner that is used up.
#[derive(Debug)]
pub(crate) struct ReachedLimit {
    pub(crate) code: ErrorCode,
    /// The name of the limit, for the metrics and the log.
    pub(crate) limit_name: &'static str,
    pub(crate) message: String,
    pub(crate) limit: u32,
    /// How long the partner should wait before it sends the request again.
    pub(crate) wait: Duration,
}

/// What the log and the metrics say about an error response. It is an extension of the response, so
/// that it reaches [`crate::observe`] without being sent.
#[derive(Clone, Debug)]
pub(crate) struct ErrorRecord {
    /// The status of the response, or [`HUNG_UP`].
    pub(crate) status: StatusCode,
    /// The code of the first error, or the bound that was reached.
    pub(crate) reason: &'static str,
    pub(crate) errors: Vec<NamedCode>,
    /// The cause of a 500.
    pub(crate) cause: Option<ErrorCause>,
}

/// What the log says about a 500.
#[derive(Clone, Debug)]
pub(crate) struct ErrorCause {
    pub(crate) text: Arc<str>,
    /// Whether the database is away or out of order, so that the other requests fail as well.
    pub(crate) is_outage: bool,
}

impl From<&anyhow::Error> for ErrorCause {
    fn from(error: &anyhow::Error) -> Self {
        Self {
            text: format!("{error:#}").into(),
            is_outage: error
                .chain()
                .filter_map(|cause| cause.downcast_ref::<pg::Error>())
                .any(pg::Error::is_transient),
        }
    }
}

impl From<ErrorCode> for ApiError {
    fn from(code: ErrorCode) -> Self {
        Self::Plain {
            code,
            message: code.message().into(),
        }
    }
}

impl ApiError {
    /// A 4xx whose message contains a detail.
    pub(crate) fn with(code: ErrorCode, detail: impl Display) -> Self {
        Self::Plain {
            code,
            message: code.message_with(detail),
        }
    }

    /// 429: the last such request was less than its minimum interval ago. `wait` is left of it.
    pub(crate) fn too_soon(code: ErrorCode, wait: Duration) -> Self {
        Self::Limited(ReachedLimit {
            code,
            limit_name: code.name(),
            message: code.message().into(),
            limit: 1,
            wait,
        })
    }

    /// 503: this process is overloaded, because it has reached this limit.
    pub(crate) const fn overloaded(limit_name: &'static str) -> Self {
        Self::Unavailable {
            code: ErrorCode::Overloaded,
            limit_name,
        }
    }

    /// 422: the key that signed the request may order only `left` units more on this day. Nothing
    /// is stored.
    pub(crate) fn units_per_day_reached(key: Option<LimitedKey>, left: u32) -> Self {
        let most = key.map_or(0, |key| key.units_per_day);
        let detail = format!("{left} of {most} are left until 00:00 UTC");
        let fault = RequestFault::with(ErrorCode::UnitsPerDayReached, detail);
        Self::Unprocessable(vec![fault])
    }

    /// 422: what is ordered costs more than is available. Nothing of it is stored, bought or held,
    /// so it may be sent again with the same id after a deposit.
    pub(crate) fn balance_insufficient(required: Amount, available: Amount) -> Self {
        let detail = format!("{required} are required and {available} are available");
        Self::Unprocessable(vec![RequestFault {
            shortfall: Some(Shortfall {
                required,
                available,
            }),
            ..RequestFault::with(ErrorCode::BalanceInsufficient, detail)
        }])
    }

    pub(crate) fn internal(error: impl Into<anyhow::Error>) -> Self {
        Self::Internal(error.into())
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Plain { code, .. } => code.name(),
            Self::Unprocessable(faults) => faults.first().map_or("none", |fault| fault.code.name()),
            Self::Limited(ReachedLimit { limit_name, .. })
            | Self::Unavailable { limit_name, .. } => limit_name,
            Self::HungUp => "hung_up",
            Self::Internal(_) => ErrorCode::InternalError.name(),
        }
    }

    /// The errors that the header names. They are those of the body, so the header reveals nothing
    /// more.
    fn errors(&self) -> Vec<NamedCode> {
        let code = match self {
            Self::Unprocessable(faults) => {
                return faults
                    .iter()
                    .flat_map(RequestFault::named)
                    .take(MAX_CODES)
                    .collect();
            }
            Self::Plain { code, .. }
            | Self::Limited(ReachedLimit { code, .. })
            | Self::Unavailable { code, .. } => *code,
            Self::HungUp => ErrorCode::InvalidJson,
            Self::Internal(_) => ErrorCode::InternalError,
        };
        vec![code.into()]
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let reason = self.reason();
        let errors = self.errors();
        let mut cause = None;
        let hung_up = matches!(self, Self::HungUp);
        let mut response = match self {
            Self::Plain { code, message } if code.status() == StatusCode::UNAUTHORIZED => {
                let body = json!({ "error": { "code": "unauthorized", "message": message } });
                (StatusCode::UNAUTHORIZED, Json(body)).into_response()
            }
            Self::Plain { code, message } => {
                let mut response = simple(code, &message);
                if code == ErrorCode::ContentEncodingUnsupported {
                    // RFC 7694: a 415 names the encodings that are accepted.
                    let accepted = HeaderValue::from_static("identity");
                    response
                        .headers_mut()
                        .insert(header::ACCEPT_ENCODING, accepted);
                }
                response
            }
            Self::Unprocessable(faults) => {
                let messages: Vec<String> = faults.into_iter().map(|fault| fault.message).collect();
                (
                    StatusCode::UNPROCESSABLE_ENTITY,
                    Json(json!({ "errors": messages })),
                )
                    .into_response()
            }
            Self::Limited(ReachedLimit {
                code,
                message,
                limit,
                wait,
                ..
            }) => limited(simple(code, &message), limit, wait),
            Self::Unavailable { code, .. } => {
                let headers = [(header::RETRY_AFTER, HeaderValue::from_static("1"))];
                (headers, simple(code, code.message())).into_response()
            }
            Self::HungUp => simple(ErrorCode::InvalidJson, ErrorCode::InvalidJson.message()),
            Self::Internal(error) => {
                cause = Some(ErrorCause::from(&error));
                simple(ErrorCode::InternalError, ErrorCode::InternalError.message())
            }
        };
        let status = if hung_up {
            StatusCode::from_u16(HUNG_UP).unwrap_or(StatusCode::BAD_REQUEST)
        } else {
            response.status()
        };
        response.extensions_mut().insert(ErrorRecord {
            status,
            reason,
            errors,
            cause,
        });
        response
    }
}

fn simple(code: ErrorCode, message: &str) -> Response {
    (code.status(), Json(json!({ "error": message }))).into_response()
}

/// How much of a rate is left after a request, for the headers of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateState {
    /// The limit per second.
    pub(crate) limit: u32,
    /// How many more are possible at once.
    pub(crate) remaining: u32,
    /// The number of seconds after which the whole burst is possible again, rounded up.
    pub(crate) reset: u32,
}

/// Adds the headers that say how much of a rate is left, unless the answer has them because a limit
/// is used up.
pub(crate) fn show_rate(response: &mut Response, rate: RateState) {
    let headers = response.headers_mut();
    if headers.contains_key(LIMIT) {
        return;
    }
    headers.insert(LIMIT, rate.limit.into());
    headers.insert(REMAINING, rate.remaining.into());
    headers.insert(RESET, rate.reset.into());
}

/// Adds the headers of a 429. `limit` is the limit that is used up for `wait`. The time is rounded
/// up, because a client that comes back a moment too early would be refused again.
fn limited(mut response: Response, limit: u32, wait: Duration) -> Response {
    let seconds = (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1);
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, seconds.into());
    headers.insert(LIMIT, limit.into());
    headers.insert(REMAINING, 0.into());
    headers.insert(RESET, seconds.into());
    response
}

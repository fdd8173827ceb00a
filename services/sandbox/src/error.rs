//! Why a request gets no result, and what is answered and logged for each reason.
//!
//! The protocol reports most errors with HTTP status 200 and a code in the body
//! ([`crate::protocol::code`]), and so do these answers. Only a ledger that cannot be written is a
//! fault of the sandbox itself, and is logged as an error.

use std::{borrow::Cow, io};

use axum::{
    Json,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};

use crate::{
    protocol::{ProductList, Status, code},
    server::NoAnswer,
};

/// Why a request gets no result.
#[derive(Debug)]
pub enum SandboxError {
    /// 401: the headers do not authenticate the request, for this reason.
    Unauthorized(&'static str),
    /// The request does not follow the protocol, for this reason.
    Malformed(String),
    /// The order id has bought before.
    Duplicate,
    UnknownOrder,
    UnknownTopup,
    /// A code of the calls that show something of an eSIM, and its message.
    Query(&'static str, &'static str),
    /// 500, as a script or a fault demands. Something may have been bought.
    Failed,
    /// 429 with this many seconds in `Retry-After`, as a script demands. Nothing was bought.
    RateLimited(u16),
    /// No answer at all, as a script or a fault demands. Something may have been bought.
    Unanswered(NoAnswer),
    /// 400: a bad request to `/ledger` or `/faults`, for this reason.
    Bad(String),
    /// A plain HTTP error: there is no such route or method, or the body is too large or
    /// incomplete.
    Http(StatusCode),
    /// 500: the ledger cannot be written, so nothing was bought.
    Ledger(io::Error),
}

impl IntoResponse for SandboxError {
    fn into_response(self) -> Response {
        match self {
            Self::Unauthorized(message) => {
                tracing::debug!(message, "unauthorized");
                status(StatusCode::UNAUTHORIZED, code::UNAUTHORIZED, message)
            }
            Self::Malformed(message) => no_products(code::MALFORMED, message),
            Self::Duplicate => no_products(code::DUPLICATE, "Order id was already processed"),
            Self::UnknownOrder => no_products(code::NOT_FOUND, "Order not found"),
            Self::UnknownTopup => status(StatusCode::OK, code::NO_TOPUP, "Topup not found"),
            Self::Query(code, message) => status(StatusCode::OK, code, message),
            Self::Http(http) => status(
                http,
                code::MALFORMED,
                http.canonical_reason().unwrap_or("Request failed"),
            ),
            Self::Failed => server_error(),
            Self::RateLimited(seconds) => {
                let response = status(
                    StatusCode::TOO_MANY_REQUESTS,
                    code::RATE_LIMITED,
                    "Too many requests",
                );
                ([(header::RETRY_AFTER, seconds.to_string())], response).into_response()
            }
            Self::Unanswered(no_answer) => no_answer.into_response(),
            Self::Bad(message) => status(StatusCode::BAD_REQUEST, code::MALFORMED, message),
            Self::Ledger(error) => {
                tracing::error!(
                    %error,
                    "the ledger cannot be written, so nothing was bought and the request got a 500; check the disk of SANDBOX_LEDGER"
                );
                server_error()
            }
        }
    }
}

fn status(http: StatusCode, code: &'static str, message: impl Into<Cow<'static, str>>) -> Response {
    (
        http,
        Json(Status {
            code,
            message: message.into(),
        }),
    )
        .into_response()
}

fn server_error() -> Response {
    status(
        StatusCode::INTERNAL_SERVER_ERROR,
        code::SERVER_ERROR,
        "Server error",
    )
}

fn no_products(code: &'static str, message: impl Into<Cow<'static, str>>) -> Response {
    Json(ProductList::<()>::new(Vec::new(), code, message)).into_response()
}

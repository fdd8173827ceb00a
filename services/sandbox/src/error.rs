//! The errors of the service and the one place where they become answers and log lines.

use std::{borrow::Cow, io};

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};

use crate::{
    outcomes::Refusal,
    protocol::{Products, Status, code},
};

/// What keeps a request from being answered with what it asked for.
#[derive(Debug)]
pub enum Error {
    /// 401; says what is wrong with the headers.
    Unauthorized(&'static str),
    /// The request isn't what the protocol describes; says what is wrong.
    Malformed(String),
    /// An option of the order refuses: nothing was bought.
    Refused(Refusal),
    /// The order id bought before.
    Duplicate,
    UnknownOrder,
    UnknownTopup,
    /// HTTP's own: no such route or method, a body that is too large or breaks off.
    Http(StatusCode),
    /// The ledger can't be written: nothing was bought.
    Ledger(io::Error),
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        match self {
            Self::Unauthorized(message) => {
                tracing::debug!(message, "unauthorized");
                status(StatusCode::UNAUTHORIZED, code::UNAUTHORIZED, message)
            }
            Self::Malformed(message) => no_products(code::MALFORMED, message),
            Self::Refused(Refusal { code, message }) => no_products(code, message),
            Self::Duplicate => no_products(code::DUPLICATE, "Order id was already processed"),
            Self::UnknownOrder => no_products(code::NOT_FOUND, "Order not found"),
            Self::UnknownTopup => status(StatusCode::OK, code::NOT_FOUND, "Topup not found"),
            Self::Http(http) => status(
                http,
                code::MALFORMED,
                http.canonical_reason().unwrap_or("Request failed"),
            ),
            Self::Ledger(error) => {
                tracing::error!(%error, "the ledger can't be written");
                status(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    code::SERVER_ERROR,
                    "Server error",
                )
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

fn no_products(code: &'static str, message: impl Into<Cow<'static, str>>) -> Response {
    Json(Products::<()> {
        products: Vec::new(),
        code,
        message: message.into(),
    })
    .into_response()
}

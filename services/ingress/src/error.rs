//! Every answer that isn't a success, in the shapes of section 7 of the specification.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

/// An answer that isn't a success.
#[derive(Debug)]
pub enum ApiError {
    /// 400: the body isn't JSON.
    InvalidJson,
    /// 401, with what was wrong.
    Unauthorized(String),
    /// 422, with everything that is wrong. Nothing was bought and nothing will be.
    Unprocessable(Vec<String>),
    /// 404.
    NotFound,
    /// 405.
    MethodNotAllowed,
    /// 408: the body didn't come.
    BodyTimeout,
    /// 413, with the limit in bytes.
    BodyTooLarge(usize),
    /// 503: the order waited longer than `QUEUE_DEADLINE` to be stored. It was not stored.
    QueuedTooLong,
    /// 503: another request with the same external id may still be refused.
    Undecided,
    /// 500. The cause is logged here and not told.
    Internal(anyhow::Error),
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let simple =
            |status: StatusCode, message: &str| (status, Json(json!({ "error": message }))).into_response();
        match self {
            Self::InvalidJson => simple(StatusCode::BAD_REQUEST, "Invalid JSON format"),
            Self::Unauthorized(message) => {
                let body = json!({ "error": { "code": "unauthorized", "message": message } });
                (StatusCode::UNAUTHORIZED, Json(body)).into_response()
            }
            Self::Unprocessable(errors) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                Json(json!({ "errors": errors })),
            )
                .into_response(),
            Self::NotFound => simple(StatusCode::NOT_FOUND, "Not found"),
            Self::MethodNotAllowed => simple(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed"),
            Self::BodyTimeout => closing(simple(
                StatusCode::REQUEST_TIMEOUT,
                "Request body did not arrive in time",
            )),
            Self::BodyTooLarge(limit) => {
                let message = format!("Request body is larger than {limit} bytes");
                closing(simple(StatusCode::PAYLOAD_TOO_LARGE, &message))
            }
            Self::QueuedTooLong => {
                let message = "The order could not be stored in time; nothing was bought. Try again later";
                let headers = [(header::RETRY_AFTER, HeaderValue::from_static("1"))];
                (headers, simple(StatusCode::SERVICE_UNAVAILABLE, message)).into_response()
            }
            Self::Undecided => {
                let message =
                    "Another request with this external order id is not decided yet. Try again later";
                let headers = [(header::RETRY_AFTER, HeaderValue::from_static("1"))];
                (headers, simple(StatusCode::SERVICE_UNAVAILABLE, message)).into_response()
            }
            Self::Internal(cause) => {
                tracing::error!(error = format!("{cause:#}"), "answered with 500");
                internal()
            }
        }
    }
}

/// The specified 500.
pub fn internal() -> Response {
    (
        StatusCode::INTERNAL_SERVER_ERROR,
        Json(json!({ "error": "Internal server error" })),
    )
        .into_response()
}

/// The rest of the body is not going to be read, so the connection can't be used again.
fn closing(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

//! What is served, and how a request becomes an order.

use std::{any::Any, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    body::{Body, BodyDataStream},
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::field;

use crate::{
    App,
    auth::AuthenticatedPartner,
    error::{self, ApiError},
    metrics,
    observe::observe,
    orders::{self, Outcome},
    qr, request,
    server::{Answers, answer_body},
};

/// The largest body that is read, in bytes.
const MAX_BODY: usize = 1024 * 1024;
/// How much more of a body that is too large is read and thrown away, in bytes, and for how long.
const MAX_DRAINED: usize = 64 * 1024 * 1024;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Both forms of the path that the specification writes.
const ORDERS: [&str; 2] = ["/api/v1/api_partner/orders", "/v1/api_partner/orders"];
const QR: &str = "/qr/{text}/{size}";
/// Every route that there is.
pub const ROUTES: [&str; 3] = [ORDERS[0], ORDERS[1], QR];

/// The public router.
pub fn router(app: Arc<App>) -> Router {
    let mut router = Router::new().route(QR, get(qr::draw));
    for path in ORDERS {
        router = router.route(path, post(create_order));
    }
    router
        .fallback(|| async { ApiError::NotFound })
        .method_not_allowed_fallback(|| async { ApiError::MethodNotAllowed })
        .with_state(Arc::clone(&app))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(app, observe))
}

#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or(panic.downcast_ref::<&str>().copied());
    tracing::error!(
        panic = text.unwrap_or("of an unknown kind"),
        "a handler panicked; answered with 500"
    );
    error::internal()
}

async fn create_order(
    State(app): State<Arc<App>>,
    Extension(answers): Extension<Arc<Answers>>,
    request: Request,
) -> Response {
    answer(&app, answers, request)
        .await
        .unwrap_or_else(ApiError::into_response)
}

async fn answer(app: &Arc<App>, answers: Arc<Answers>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let AuthenticatedPartner(partner) = AuthenticatedPartner::from_request_parts(&mut parts, app).await?;
    let span = tracing::Span::current();
    span.record("partner.id", field::display(partner.partner_id));
    let drafting = async {
        let body = read_body(&parts.headers, body).await?;
        let draft = request::read(&body, app.limits).map_err(|request::InvalidJson| ApiError::InvalidJson)?;
        app.orders.check(&partner, draft).await
    };
    let order = drafting.await.inspect_err(|error| {
        app.metrics.order(outcome(error), 0);
    })?;
    span.record("order.id", field::display(order.order_id));
    match app.orders.submit(order).await {
        Ok(Outcome::Created { body, deadline, left }) => {
            let body = answer_body(body, answers, deadline, left);
            let headers = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
            Ok((StatusCode::CREATED, headers, body).into_response())
        }
        Ok(Outcome::Error(error)) => Err(error),
        Err(_) => Err(ApiError::Internal(anyhow::anyhow!(
            "the order's task ended without an answer"
        ))),
    }
}

/// What became of an order that was not even stored.
fn outcome(error: &ApiError) -> metrics::Outcome {
    match error {
        ApiError::Internal(_) => metrics::Outcome::Error,
        ApiError::Unprocessable(errors) if orders::is_taken(errors) => metrics::Outcome::Duplicate,
        _ => metrics::Outcome::Invalid,
    }
}

async fn read_body(headers: &HeaderMap, body: Body) -> Result<Bytes, ApiError> {
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut pieces = body.into_data_stream();
    if announced.is_some_and(|length| length > MAX_BODY) {
        return Err(too_large(&mut pieces).await);
    }
    let read = async {
        let mut whole = BytesMut::new();
        while let Some(piece) = pieces.next().await {
            // The partner hung up in the middle: nobody is there to read what is answered.
            let piece = piece.map_err(|_| ApiError::InvalidJson)?;
            if whole.len() + piece.len() > MAX_BODY {
                return Err(too_large(&mut pieces).await);
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    };
    tokio::time::timeout(BODY_TIMEOUT, read)
        .await
        .unwrap_or(Err(ApiError::BodyTimeout))
}

/// Reads on for a while: most clients look for an answer only after they have sent the whole body,
/// and a connection that is closed while they send takes the answer with it.
async fn too_large(pieces: &mut BodyDataStream) -> ApiError {
    let drain = async {
        let mut drained = 0;
        while let Some(Ok(piece)) = pieces.next().await {
            drained += piece.len();
            if drained > MAX_DRAINED {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, drain).await;
    ApiError::BodyTooLarge(MAX_BODY)
}

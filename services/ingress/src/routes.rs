//! The routes and their handlers.

use std::{any::Any, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Version, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::field;

use crate::{
    admission::Admission,
    auth::{Authenticator, Signed},
    codes::Code,
    connection::{Connection, answer_body},
    error::ApiError,
    metrics::{Metrics, OrderResult},
    observe::{Observer, observe},
    orders::{self, Answer, Orders},
    partner::{self, Desk, openapi},
    qr, request,
};

/// Both forms of the path that the specification writes.
const ORDERS: [&str; 2] = ["/api/v1/api_partner/orders", "/v1/api_partner/orders"];
pub(crate) const QR: &str = "/qr/{text}/{size}";
/// All routes; the last ones are those of [`crate::pages`].
pub(crate) const ROUTES: &[&str] = &[
    ORDERS[0],
    ORDERS[1],
    "/api/v1/api_partner/orders/{external_order_id}",
    "/v1/api_partner/orders/{external_order_id}",
    "/api/v1/api_partner/topups/{topup_id}",
    "/v1/api_partner/topups/{topup_id}",
    "/api/v1/api_partner/topups/{topup_id}/deliveries",
    "/v1/api_partner/topups/{topup_id}/deliveries",
    "/api/v1/api_partner/topups/{topup_id}/redeliver",
    "/v1/api_partner/topups/{topup_id}/redeliver",
    "/api/v1/api_partner/options",
    "/v1/api_partner/options",
    "/api/v1/api_partner/account",
    "/v1/api_partner/account",
    "/api/v1/api_partner/webhook",
    "/v1/api_partner/webhook",
    "/api/v1/api_partner/webhook/listen",
    "/v1/api_partner/webhook/listen",
    "/api/v1/api_partner/webhook/secret",
    "/v1/api_partner/webhook/secret",
    "/api/v1/api_partner/webhook/test",
    "/v1/api_partner/webhook/test",
    "/api/v1/api_partner/webhook/events",
    "/v1/api_partner/webhook/events",
    "/api/v1/api_partner/webhook/events/{event_id}",
    "/v1/api_partner/webhook/events/{event_id}",
    "/api/v1/api_partner/webhook/events/{event_id}/redeliver",
    "/v1/api_partner/webhook/events/{event_id}/redeliver",
    "/api/v1/api_partner/keys",
    "/v1/api_partner/keys",
    QR,
    "/openapi.json",
    "/reference",
    "/reference.js",
    "/pages.css",
    "/errors",
    "/llms.txt",
    "/partner-guide.md",
    "/examples/esim.sh",
    "/examples/esim.py",
    "/examples/esim.mjs",
    "/examples/esim.go",
    "/examples/esim.php",
];

/// The state that the handlers share.
pub(crate) struct App {
    pub(crate) authenticator: Authenticator,
    pub(crate) admission: Admission,
    /// The largest order.
    pub(crate) limits: request::Limits,
    /// The largest body, in bytes.
    pub(crate) max_body: usize,
    pub(crate) body_timeout: Duration,
    pub(crate) orders: Arc<Orders>,
    pub(crate) metrics: Metrics,
    pub(crate) desk: Desk,
}

/// The public router.
pub(crate) fn router(
    app: Arc<App>,
    pages: Router,
    drawing: Arc<qr::Drawing>,
    observer: Arc<Observer>,
) -> Router {
    let mut router = Router::new();
    for path in ORDERS {
        router = router.route(path, post(create_order));
    }
    router
        .merge(partner::router(&app))
        .with_state(app)
        .merge(pages)
        .merge(Router::new().route(QR, get(qr::draw)).with_state(drawing))
        .fallback(|| async { ApiError::NotFound })
        .method_not_allowed_fallback(|| async { ApiError::MethodNotAllowed })
        .layer(middleware::from_fn(one_host))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(observer, observe))
}

#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or(panic.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("unknown panic");
    ApiError::Internal(anyhow::anyhow!("a handler panicked: {text}")).into_response()
}

/// HTTP/1.1 requires exactly one `Host`. A proxy may read two of them differently.
async fn one_host(request: Request, next: Next) -> Response {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    if hosts == 1 || (hosts == 0 && request.version() < Version::HTTP_11) {
        return next.run(request).await;
    }
    let message = "Exactly one Host header is required".into();
    ApiError::BadRequest {
        code: Code::Host,
        message,
    }
    .into_response()
}

/// Create an order
///
/// The answer names one topup per unit. When its eSIM is ready, a webhook is sent for each. After a 5xx or no answer,
/// repeat the request with the same `external_order_id`, or look the order up.
#[utoipa::path(post, path = "/orders", operation_id = "create_order", tag = "Orders", request_body = openapi::NewOrder,
    responses(
        (status = 201, description = "The order is stored", body = openapi::CreatedOrder,
            headers(("Location" = String, description = "The path of the order"))),
        (status = 400, response = openapi::InvalidJson),
        (status = 422, response = openapi::Unprocessable),
        (status = 500, response = openapi::Internal)))]
pub(crate) async fn create_order(
    State(app): State<Arc<App>>,
    Extension(connection): Extension<Arc<Connection>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let signed = match app.authenticator.head(&parts).await {
        Ok(signed) => signed,
        Err(error) => return error.into_response(),
    };
    let partner = &signed.partner;
    tracing::Span::current().record("partner.id", field::display(partner.id));
    let mut external_order_id = None;
    let answered = answer(
        &app,
        &signed,
        connection,
        &parts.headers,
        body,
        &mut external_order_id,
    )
    .await;
    let stored = match &answered {
        Ok(_) => true,
        Err(ApiError::Unprocessable(faults)) => orders::names_taken(faults),
        Err(_) => false,
    };
    let mut response = answered.unwrap_or_else(ApiError::into_response);
    if let Some(location) = external_order_id
        .filter(|_| stored)
        .and_then(|id| location(parts.uri.path(), &id))
    {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response.extensions_mut().insert(partner.id);
    response
}

/// The path of an order, under the path that orders are posted to.
fn location(orders: &str, external_order_id: &str) -> Option<HeaderValue> {
    let id = webhooks::body::encoded(external_order_id);
    HeaderValue::try_from(format!("{orders}/{id}")).ok()
}

async fn answer(
    app: &App,
    signed: &Signed,
    connection: Arc<Connection>,
    headers: &HeaderMap,
    body: Body,
    external_order_id: &mut Option<String>,
) -> Result<Response, ApiError> {
    let partner = &signed.partner;
    let drafting = async {
        let length = announced(headers).unwrap_or(app.max_body);
        if length > app.max_body {
            return Err(ApiError::BodyTooLarge(app.max_body));
        }
        let mut admitted = app.admission.enter(partner, length as u64)?;
        let body = read_body(app, body).await?;
        app.authenticator.body(signed, &body)?;
        let draft = request::read(&body, app.limits).map_err(|request::InvalidJson| ApiError::InvalidJson)?;
        external_order_id.clone_from(&draft.external_order_id);
        if let Some(units) = draft.units().filter(|_| draft.errors.is_empty()) {
            admitted.order(units)?;
        }
        let order = app.orders.check(partner, draft).await?;
        Ok((order, admitted))
    };
    let (order, admitted) = drafting.await.inspect_err(|error| {
        app.metrics.order(order_result(error), 0);
    })?;
    tracing::Span::current().record("order.id", field::display(order.order_id));
    match app.orders.submit(order, admitted).await {
        Ok(Answer::Created { body, deadline, left }) => {
            let body = answer_body(body, connection, deadline, left);
            let headers = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
            Ok((StatusCode::CREATED, headers, body).into_response())
        }
        Ok(Answer::Error(error)) => Err(error),
        Err(_) => Err(ApiError::Internal(anyhow::anyhow!(
            "the order's task ended without an answer"
        ))),
    }
}

/// The metrics result of an order that was not stored.
fn order_result(error: &ApiError) -> OrderResult {
    match error {
        ApiError::Internal(_) => OrderResult::Error,
        ApiError::TooManyRequests(_) | ApiError::TooManyInFlight(_) => OrderResult::Limited,
        ApiError::Overloaded { .. } => OrderResult::Shed,
        ApiError::Unprocessable(errors) if orders::is_taken(errors) => OrderResult::Duplicate,
        _ => OrderResult::Invalid,
    }
}

/// Reads a body of at most `MAX_BODY`.
pub(crate) async fn whole_body(app: &App, headers: &HeaderMap, body: Body) -> Result<Bytes, ApiError> {
    if announced(headers).is_some_and(|length| length > app.max_body) {
        return Err(ApiError::BodyTooLarge(app.max_body));
    }
    read_body(app, body).await
}

/// The length of the body in bytes, unless it comes in chunks. hyper has checked that it is a number.
fn announced(headers: &HeaderMap) -> Option<usize> {
    let Some(length) = headers.get(header::CONTENT_LENGTH) else {
        let chunked = headers.contains_key(header::TRANSFER_ENCODING);
        return (!chunked).then_some(0);
    };
    Some(length.to_str().ok()?.parse().unwrap_or(usize::MAX))
}

async fn read_body(app: &App, body: Body) -> Result<Bytes, ApiError> {
    let mut pieces = body.into_data_stream();
    let read = async {
        let mut whole = BytesMut::new();
        while let Some(piece) = pieces.next().await {
            // The partner hung up, so no response is sent.
            let piece = piece.map_err(|_| ApiError::InvalidJson)?;
            if whole.len() + piece.len() > app.max_body {
                return Err(ApiError::BodyTooLarge(app.max_body));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    };
    tokio::time::timeout(app.body_timeout, read)
        .await
        .unwrap_or(Err(ApiError::BodyTimeout))
}

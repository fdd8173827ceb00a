//! The routes and their handlers.

use std::{any::Any, sync::Arc};

use anyhow::Context;
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
    access::{
        admission::Admission,
        authentication::{Authenticator, Signed},
        limits::{LimitsConfig, size},
    },
    http::{
        codes::Code,
        connection::{Connection, answer_body},
        error::ApiError,
        observe::{Observer, observe},
    },
    metrics::{Metrics, OrderResult},
    orders::{
        accept::{self, Created, Orders},
        request::{self, Largest},
    },
    pages::qr::{self, Drawing},
    self_service::{self, Desk, described},
};

/// Both forms of the prefix that the specification writes.
pub(crate) const PREFIXES: [&str; 2] = ["/api/v1/api_partner", "/v1/api_partner"];
pub(crate) const QR: &str = "/qr/{text}/{size}";

pub(crate) struct App {
    pub(crate) authenticator: Authenticator,
    pub(crate) admission: Admission,
    pub(crate) limits: LimitsConfig,
    pub(crate) largest: Largest,
    pub(crate) orders: Arc<Orders>,
    pub(crate) metrics: Metrics,
    pub(crate) desk: Desk,
}

impl App {
    /// The largest body, in bytes.
    pub(crate) fn max_body(&self) -> usize {
        size(self.limits.max_body)
    }
}

pub(crate) fn router(app: Arc<App>, pages: Router, drawing: Arc<Drawing>, observer: Arc<Observer>) -> Router {
    let mut router = self_service::router(&app);
    for prefix in PREFIXES {
        router = router.route(&format!("{prefix}/orders"), post(create_order));
    }
    router
        .with_state(app)
        .merge(pages)
        .merge(Router::new().route(QR, get(qr::draw)).with_state(drawing))
        .fallback(|| async { ApiError::NotFound })
        .method_not_allowed_fallback(|| async {
            ApiError::plain(StatusCode::METHOD_NOT_ALLOWED, Code::MethodNotAllowed, "Method not allowed")
        })
        .layer(middleware::from_fn(one_host))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(observer, observe))
}

#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("unknown panic");
    ApiError::Internal(anyhow::anyhow!("a handler panicked: {text}")).into_response()
}

/// HTTP/1.1 requires exactly one `Host`. A proxy may read two of them differently.
async fn one_host(request: Request, next: Next) -> Response {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    if hosts == 1 || (hosts == 0 && request.version() < Version::HTTP_11) {
        return next.run(request).await;
    }
    ApiError::bad_request(Code::Host, "Exactly one Host header is required").into_response()
}

/// Create an order
///
/// The answer names one topup per unit. When its eSIM is ready, a webhook is sent for each. After a 5xx or no answer,
/// repeat the request with the same `external_order_id`, or look the order up.
#[utoipa::path(post, path = "/orders", operation_id = "create_order", tag = "Orders", request_body = described::NewOrder,
    responses(
        (status = 201, description = "The order is stored", body = accept::CreatedOrder,
            headers(("Location" = String, description = "The path of the order"))),
        (status = 400, response = described::InvalidJson),
        (status = 422, response = described::Unprocessable),
        (status = 500, response = described::Internal)))]
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
    let mut id = None;
    let answered = answer(&app, &signed, connection, &parts.headers, body, &mut id).await;
    let stored = match &answered {
        Ok(_) => true,
        Err(ApiError::Unprocessable(faults)) => accept::names_taken(faults),
        Err(_) => false,
    };
    let mut response = answered.unwrap_or_else(ApiError::into_response);
    let id = id.filter(|_| stored);
    if let Some(location) = id.and_then(|id| location(parts.uri.path(), &id)) {
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
        let length = announced(app, headers)?;
        let mut admitted = app.admission.enter(partner, length as u64)?;
        let body = read_body(app, body).await?;
        app.authenticator.body(signed, &body)?;
        let draft = request::read(&body, app.largest)?;
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
    let answered = app.orders.submit(order, admitted).await;
    let answered = answered.context("the order's task ended without an answer");
    let Created { body, deadline, left } = answered.map_err(ApiError::Internal)??;
    let body = answer_body(body, connection, deadline, left);
    let headers = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    Ok((StatusCode::CREATED, headers, body).into_response())
}

/// The metrics result of an order that was not stored.
fn order_result(error: &ApiError) -> OrderResult {
    match error {
        ApiError::Internal(_) => OrderResult::Error,
        ApiError::Limited { .. } => OrderResult::Limited,
        ApiError::Unavailable { .. } => OrderResult::Shed,
        ApiError::Unprocessable(errors) if accept::is_taken(errors) => OrderResult::Duplicate,
        _ => OrderResult::Invalid,
    }
}

/// Reads a body of at most `MAX_BODY`.
pub(crate) async fn whole_body(app: &App, headers: &HeaderMap, body: Body) -> Result<Bytes, ApiError> {
    announced(app, headers)?;
    read_body(app, body).await
}

/// The most bytes that the body may have by its headers. hyper has checked that the length is a number.
fn announced(app: &App, headers: &HeaderMap) -> Result<usize, ApiError> {
    let most = app.max_body();
    let length = match headers.get(header::CONTENT_LENGTH) {
        None if headers.contains_key(header::TRANSFER_ENCODING) => most,
        None => 0,
        Some(length) => length.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(usize::MAX),
    };
    if length > most {
        return Err(ApiError::body_too_large(most));
    }
    Ok(length)
}

async fn read_body(app: &App, body: Body) -> Result<Bytes, ApiError> {
    let most = app.max_body();
    let mut pieces = body.into_data_stream();
    let read = async {
        let mut whole = BytesMut::new();
        while let Some(piece) = pieces.next().await {
            // The partner hung up, so no response is sent.
            let piece = piece.map_err(|_| ApiError::invalid_json())?;
            if whole.len() + piece.len() > most {
                return Err(ApiError::body_too_large(most));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    };
    tokio::time::timeout(app.limits.body_timeout, read).await.unwrap_or_else(|_| {
        let (status, message) = (StatusCode::REQUEST_TIMEOUT, "Request body did not arrive in time");
        Err(ApiError::plain(status, Code::BodyTimeout, message))
    })
}

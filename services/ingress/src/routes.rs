//! The routes of all requests, and what each request passes before its handler.
//!
//! Guarantees: every response has an `X-Request-Id`, is measured, and is logged if it is an error.
//! A panic of a handler becomes a 500. A request has exactly one `Host`, except that HTTP/1.0
//! allows none.
//!
//! A request passes the layers from the outside to the inside:
//!
//! ```text
//! observe ──▶ catch a panic ──▶ one Host ──▶ create-order, self-service, pages, QR codes, 404, 405
//! ```
//!
//! [`crate::run`] makes the router, and [`crate::http::server`] sends each request through it.

use std::{any::Any, sync::Arc};

use axum::{
    Router,
    extract::Request,
    http::{Version, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    http::{PREFIXES, codes::ErrorCode, error::ApiError},
    observe::{Observer, observe},
    orders::create::{CreateOrder, create_order},
    pages::qr::{self, QrRenderer},
    self_service::{self, session::SelfService},
};

/// The path of a QR code. It holds an activation code, so it must never be logged.
pub(crate) const QR: &str = "/qr/{text}/{size}";

/// Makes the router of all requests.
pub(crate) fn router(
    orders: Arc<CreateOrder>,
    service: Arc<SelfService>,
    pages: Router,
    pictures: Arc<QrRenderer>,
    observer: Arc<Observer>,
) -> Router {
    let mut router = Router::new();
    for prefix in PREFIXES {
        router = router.route(&format!("{prefix}/orders"), post(create_order));
    }
    router
        .with_state(orders)
        .merge(self_service::router(&service.gate).with_state(service))
        .merge(pages)
        .merge(Router::new().route(QR, get(qr::show)).with_state(pictures))
        .fallback(|| async { ApiError::from(ErrorCode::NotFound) })
        .method_not_allowed_fallback(|| async { ApiError::from(ErrorCode::MethodNotAllowed) })
        .layer(middleware::from_fn(require_one_host))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(observer, observe))
}

/// Makes the 500 of a handler that panicked. The text of the panic becomes its cause in the log.
#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text
        .or(panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown panic");
    ApiError::Internal(anyhow::anyhow!("a handler panicked: {text}")).into_response()
}

/// Refuses a request without exactly one `Host`, which HTTP/1.1 requires. If there are two of them,
/// a proxy may route by one while we read the other.
async fn require_one_host(request: Request, next: Next) -> Response {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    if hosts == 1 || (hosts == 0 && request.version() < Version::HTTP_11) {
        return next.run(request).await;
    }
    ApiError::from(ErrorCode::Host).into_response()
}

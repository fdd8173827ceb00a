//! What partners look up and change themselves: every signed request except create-order.
//!
//! These requests never delay an order: they have places of their own ([`Admission::visit`]), and they use at most
//! `SELF_SERVICE_CONCURRENCY` connections of the database. An id of another partner is answered like an unknown one.
//!
//! [`Admission::visit`]: crate::admission::Admission::visit

mod account;
mod events;
mod keys;
mod listen;
pub(crate) mod openapi;
mod options;
mod orders;
mod page;
mod topups;
mod turns;
mod webhook;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use domain::PartnerId;
use http_body::{Frame, SizeHint};
use serde::Serialize;
use store::{Database, PgConnection, vault::Vault};
use tokio_util::sync::CancellationToken;
use tracing::field;
use webhooks::{dns::Dns, guard::Guard, qr::QrUrls};

pub(crate) use self::turns::Turns;
use crate::{
    admission::Visit,
    auth::Signed,
    codes::Code,
    directory::Partner,
    error::ApiError,
    routes::{App, whole_body},
};

/// Both forms of the prefix.
const PREFIXES: [&str; 2] = ["/api/v1/api_partner", "/v1/api_partner"];
/// The longest wait for a connection.
const TURN: Duration = Duration::from_secs(2);
/// How long the old keys or the old secret stay valid after a rotation.
const OVERLAP: Duration = Duration::from_hours(24);

/// What these requests use.
pub(crate) struct Desk {
    pub(crate) database: Database,
    /// `SELF_SERVICE_CONCURRENCY`.
    pub(crate) turns: Turns,
    pub(crate) vault: Vault,
    pub(crate) guard: Guard,
    /// Resolves the host of a new webhook URL.
    pub(crate) dns: Dns,
    /// Makes `qrcode_img_url`.
    pub(crate) qr: QrUrls,
    /// The providers whose options live partners may order, beside the sandbox.
    pub(crate) providers: Vec<String>,
    /// `REDELIVER_INTERVAL`.
    pub(crate) redeliver_interval: Duration,
    /// `LISTEN_WAIT`.
    pub(crate) listen_wait: Duration,
    /// The soft stop, which ends long polls.
    pub(crate) stop: CancellationToken,
    /// `WEBHOOK_TEST_INTERVAL`.
    pub(crate) test_interval: Duration,
    /// `WEBHOOK_TEST_WAIT`.
    pub(crate) test_wait: Duration,
}

impl Desk {
    /// Runs `work` on a connection, after a turn of the partner.
    async fn run<T>(
        &self,
        partner: PartnerId,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, store::Error>,
    ) -> Result<T, ApiError> {
        let Ok(_turn) = tokio::time::timeout(TURN, self.turns.take(partner)).await else {
            return Err(ApiError::Overloaded {
                reason: "self_service_turn",
                message: "Too many requests in progress; try again later",
            });
        };
        self.database.run(work).await.map_err(internal)
    }
}

fn internal(error: impl Into<anyhow::Error>) -> ApiError {
    ApiError::Internal(error.into())
}

/// The routes, under both prefixes.
pub(crate) fn router(app: &Arc<App>) -> Router<Arc<App>> {
    let mut router = Router::new();
    for prefix in PREFIXES {
        let path = |rest: &str| format!("{prefix}{rest}");
        router = router
            .route(&path("/orders"), get(orders::list))
            .route(
                &path("/orders/{external_order_id}"),
                get(orders::show).delete(orders::cancel),
            )
            .route(&path("/topups/{topup_id}"), get(topups::show))
            .route(&path("/topups/{topup_id}/deliveries"), get(topups::deliveries))
            .route(&path("/topups/{topup_id}/redeliver"), post(topups::redeliver))
            .route(&path("/options"), get(options::list))
            .route(&path("/account"), get(account::show))
            .route(&path("/webhook"), get(webhook::show).put(webhook::set))
            .route(&path("/webhook/listen"), get(listen::listen))
            .route(&path("/webhook/secret"), post(webhook::rotate_secret))
            .route(&path("/webhook/test"), post(events::test))
            .route(&path("/webhook/events"), get(events::list))
            .route(&path("/webhook/events/{event_id}"), get(events::show))
            .route(
                &path("/webhook/events/{event_id}/redeliver"),
                post(events::redeliver),
            )
            .route(&path("/keys"), post(keys::rotate));
    }
    router.route_layer(middleware::from_fn_with_state(Arc::clone(app), admit))
}

/// The partner that signed a request.
#[derive(Clone)]
struct Caller(Arc<Partner>);

impl Caller {
    fn id(&self) -> PartnerId {
        self.0.id
    }
}

/// Authenticates and admits a request, and forbids to store its response.
async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let signed = match app.authenticator.head(&parts).await {
        Ok(signed) => signed,
        Err(error) => return error.into_response(),
    };
    let id = signed.partner.id;
    tracing::Span::current().record("partner.id", field::display(id));
    let visiting = async {
        let visit = app.admission.visit(&signed.partner)?;
        let body = checked(&app, &signed, &parts.headers, body).await?;
        parts.extensions.insert(Caller(signed.partner));
        let response = next.run(Request::from_parts(parts, body)).await;
        let visit = Arc::new(visit);
        Ok::<_, ApiError>(response.map(|body| Body::new(Visited { body, visit })))
    };
    let mut response = visiting.await.unwrap_or_else(ApiError::into_response);
    response.extensions_mut().insert(id);
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, no_store);
    response
}

/// The body of a request; if the signature covers it, it was read and is the signed one.
async fn checked(app: &App, signed: &Signed, headers: &HeaderMap, body: Body) -> Result<Body, ApiError> {
    if signed.body.is_none() {
        return Ok(body);
    }
    let body = whole_body(app, headers, body).await?;
    app.authenticator.body(signed, &body)?;
    Ok(body.into())
}

/// A response body that holds the place of its request until the client has read it.
struct Visited {
    body: Body,
    visit: Arc<Visit>,
}

/// Bytes of a response, with the place of their request.
struct Held {
    data: Bytes,
    _visit: Arc<Visit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl http_body::Body for Visited {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let held = |data| {
            let visit = Arc::clone(&self.visit);
            Bytes::from_owner(Held { data, _visit: visit })
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(held))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A JSON response.
fn json(status: StatusCode, body: &impl Serialize) -> Response {
    (status, Json(body)).into_response()
}

/// Reads the body of a request whose parameters are in it.
async fn body_of(app: &App, request: Request) -> Result<Bytes, ApiError> {
    let (parts, body) = request.into_parts();
    whole_body(app, &parts.headers, body).await
}

/// The code and the message of a 409.
const fn conflict(code: Code, message: &'static str) -> ApiError {
    ApiError::Conflict { code, message }
}

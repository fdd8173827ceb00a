//! `POST /callbacks/<provider>/<token>`, by which a provider reports a change of a unit.
//!
//! Most callbacks are not signed, so nothing in one is believed. It is only a hint. One about a
//! purchase has the profiles collected sooner, which would happen anyway on a schedule. So a lost
//! callback makes a webhook some seconds later, and a forged one costs a call to the provider. One
//! about a delivered eSIM, or about our account, is kept once, however often it comes, and a call
//! asks the provider for the state of the eSIM. Neither the body nor the path is ever logged,
//! because the body holds a profile and the path holds the token.
//!
//! Providers try the URL before they use it: by `HEAD`, or by a request without a body. Both get
//! 200, because a URL that refuses a test cannot be set.
//!
//! A flood of callbacks must not slow down orders. So requests in flight, connections, concurrent
//! statements and statements per second are all bounded, and a unit that is named again and again
//! costs at most two statements per second, or eight of reports. Nor may it keep a provider out:
//! all providers share one number of connections, and whoever holds most of them without a request
//! in work makes room.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Extension, Router,
    body::to_bytes,
    extract::{Path, Request, State},
    http::{StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
    routing::post,
};
use opentelemetry_semantic_conventions::attribute::{ERROR_TYPE, HTTP_RESPONSE_STATUS_CODE};
use pg::{Database, PgConnection};
use pipeline::{Effect, perform};
use runtime::{
    Shutdown, connection,
    listener::{ConnectionPlace, Connections},
    lock, outage,
    rate_limit::RateLimit,
    server::BoundedServer,
};
use signing::CallbackToken;
use store::providers::{self, Hinted, StoredReport};
use tokio::{net::TcpListener, sync::Semaphore};
use tracing::{Instrument, field::Empty, info_span};

use crate::{
    metrics::Metrics,
    providers::{BadCallback, CallbackRequest, Hint, Provider, ProviderReport, ReportSubject},
};

const ROUTE: &str = "/callbacks/{provider}/{token}";
const MAX_BODY: usize = 64 * 1024;
/// The longest wait for the head of a request, and for its body.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of statements that run at the same time. They are far fewer than there are
/// connections to the database, so that orders always find a free one.
const STATEMENTS: usize = 2;
/// How many connections may be open for each request that may be in flight.
const CONNECTIONS: usize = 4;
/// The response to a connection that gives its place to another one, or gets none.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\
    retry-after: 1\r\nconnection: close\r\n\r\n";
/// The interval in which statements about one unit are counted.
const WINDOW: Duration = Duration::from_secs(1);
/// The maximum number of statements about one unit in a window. The second one schedules a collect
/// for later, which sees all further changes, so a third one is not needed.
const PER_UNIT: u8 = 2;
/// The same for reports about one eSIM, of which some come within a second while it is installed.
const PER_ESIM: u8 = 8;

/// The providers that call back, by name: the token of the URL, and the adapter that reads the
/// body.
pub type Callers = HashMap<String, (CallbackToken, Arc<dyn Provider>)>;

/// Receives callbacks and passes them on as hints.
pub struct Callbacks {
    providers: Callers,
    database: Database,
    metrics: Metrics,
    in_flight: Semaphore,
    statements: Semaphore,
    recent: Recent,
}

impl Callbacks {
    /// Prepares to receive callbacks of these providers: at most `in_flight` at once, and at most
    /// `rate` per second that reach PostgreSQL.
    pub fn new(
        providers: Callers,
        database: Database,
        metrics: Metrics,
        in_flight: usize,
        rate: NonZeroU32,
    ) -> Self {
        Self {
            providers,
            database,
            metrics,
            in_flight: Semaphore::new(in_flight),
            statements: Semaphore::new(STATEMENTS.min(in_flight)),
            recent: Recent::new(rate),
        }
    }
}

/// The decision on a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// It may run a statement.
    Admitted,
    /// It runs no statement: this window has enough statements about the unit.
    Repeated,
    /// It runs no statement: so many per second have been admitted.
    Full,
}

/// The units and purchases that callbacks named in the current window.
struct Recent {
    rate: RateLimit,
    window: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    /// The first callback of the window; `None` before any.
    began: Option<Instant>,
    /// By the provider and what its callbacks name.
    named: HashMap<(String, String), u8>,
}

impl Recent {
    fn new(rate: NonZeroU32) -> Self {
        Self {
            rate: RateLimit::per_second(rate),
            window: Mutex::default(),
        }
    }

    /// Admits a callback that names this, unless its window has `most` statements about it.
    fn admit(&self, provider: &str, named: &str, most: u8, now: Instant) -> Admission {
        let mut window = lock(&self.window);
        if window
            .began
            .is_none_or(|began| now.saturating_duration_since(began) >= WINDOW)
        {
            window.began = Some(now);
            window.named.clear();
        }
        let key = (provider.to_owned(), named.to_owned());
        let statements = window.named.get(&key).copied().unwrap_or_default();
        if statements >= most {
            Admission::Repeated
        } else if let Ok(allowed) = self.rate.ask(NonZeroU32::MIN, now) {
            allowed.take();
            window.named.insert(key, statements + 1);
            Admission::Admitted
        } else {
            Admission::Full
        }
    }
}

/// Handles one request inside its span. The span has no path, because the path holds the token.
async fn take(
    state: State<Arc<Callbacks>>,
    path: Path<(String, String)>,
    Extension(place): Extension<Arc<ConnectionPlace>>,
    request: Request,
) -> Response {
    let span = info_span!(
        "POST /callbacks/{provider}/{token}",
        otel.kind = "server", otel.status_code = Empty, error.type = Empty, url.scheme = "http",
        http.request.method = "POST", http.route = ROUTE, http.response.status_code = Empty,
    );
    let status = hear(state, path, &place, request)
        .instrument(span.clone())
        .await;
    span.record(HTTP_RESPONSE_STATUS_CODE, status.as_u16());
    if status.is_server_error() {
        span.record(ERROR_TYPE, status.as_str());
        span.record("otel.status_code", "ERROR");
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        (status, [(RETRY_AFTER, "1")]).into_response()
    } else {
        status.into_response()
    }
}

/// Checks a callback and passes it on as a hint; returns the status of the response. An unknown
/// provider and a wrong token both get 404, so that the response does not reveal which it was.
async fn hear(
    State(callbacks): State<Arc<Callbacks>>,
    Path((name, token)): Path<(String, String)>,
    place: &Arc<ConnectionPlace>,
    request: Request,
) -> StatusCode {
    let known = callbacks.providers.get(&name);
    let Some((_, provider)) = known.filter(|(expected, _)| expected.is(&token)) else {
        return StatusCode::NOT_FOUND;
    };
    let counted = |outcome, status| {
        callbacks.metrics.callback(&name, outcome);
        status
    };
    let Ok(_in_flight) = callbacks.in_flight.try_acquire() else {
        return counted("shed", StatusCode::SERVICE_UNAVAILABLE);
    };
    let (head, body) = request.into_parts();
    // Who sends a body slowly keeps nobody out, and who knows no token keeps no provider out.
    place.authenticated(&name);
    place.wait_for_client();
    let body = match tokio::time::timeout(READ_TIMEOUT, to_bytes(body, MAX_BODY)).await {
        Ok(Ok(body)) => body,
        // The body is too large, or it was cut off and the client has gone.
        Ok(Err(_)) => return StatusCode::PAYLOAD_TOO_LARGE,
        Err(_) => return StatusCode::REQUEST_TIMEOUT,
    };
    place.go_on().await;
    let callback = CallbackRequest {
        query: head.uri.query(),
        headers: &head.headers,
        body: &body,
    };
    let hint = match provider.read_callback(callback) {
        Ok(hint) => hint,
        Err(BadCallback::Unreadable) => return counted("unreadable", StatusCode::BAD_REQUEST),
        Err(BadCallback::Forged) => return counted("forged", StatusCode::UNAUTHORIZED),
    };
    let (named, most) = match &hint {
        Hint::Unit(unit_id) => (unit_id.as_str().to_owned(), PER_UNIT),
        Hint::Purchase(placement_id) => (placement_id.to_string(), PER_UNIT),
        // The limit holds for the eSIM, because the sender chooses the key. What comes too often is
        // not kept, and the question that the first report asks shows what it would have said.
        Hint::Report(report) => (report.about.name().to_owned(), PER_ESIM),
        Hint::Nothing => return counted("ignored", StatusCode::OK),
    };
    match callbacks.recent.admit(&name, &named, most, Instant::now()) {
        Admission::Admitted => {}
        Admission::Repeated => return counted("repeated", StatusCode::OK),
        Admission::Full => return counted("shed", StatusCode::SERVICE_UNAVAILABLE),
    }
    // The semaphore is never closed, so this cannot fail.
    let _statement = callbacks.statements.acquire().await;
    let hinted = callbacks.database.run(async |connection| match &hint {
        Hint::Purchase(placement_id) => {
            providers::hint(connection, &name, Hinted::Placement(*placement_id)).await
        }
        Hint::Unit(unit_id) => {
            providers::hint(connection, &name, Hinted::Unit(unit_id.as_str())).await
        }
        Hint::Report(report) => keep(connection, &name, report).await,
        Hint::Nothing => Ok(false),
    });
    match perform(Effect::CommitHint, hinted).await {
        Ok(moved) => counted(if moved { "hinted" } else { "ignored" }, StatusCode::OK),
        Err(error) => {
            if let Some(others) = outage::DATABASE.line(error.is_transient()) {
                tracing::error!(
                    provider.name = name,
                    %error,
                    others,
                    "callback not recorded; profiles are asked for on schedule instead, and a report \
                     is lost unless the provider repeats it"
                );
            }
            counted("lost", StatusCode::SERVICE_UNAVAILABLE)
        }
    }
}

/// The response to a provider that tries the URL by `HEAD`.
async fn tried(
    State(callbacks): State<Arc<Callbacks>>,
    Path((name, token)): Path<(String, String)>,
) -> StatusCode {
    match callbacks.providers.get(&name) {
        Some((expected, _)) if expected.is(&token) => StatusCode::OK,
        _ => StatusCode::NOT_FOUND,
    }
}

/// Keeps a report; returns whether it is new and about something of ours.
async fn keep(
    connection: &mut PgConnection,
    name: &str,
    report: &ProviderReport,
) -> Result<bool, pg::Error> {
    let (unit_id, iccid) = match &report.about {
        ReportSubject::Unit(unit_id) => (Some(unit_id.as_str()), None),
        ReportSubject::Iccid(iccid) => (None, Some(iccid.as_str())),
        ReportSubject::Account => (None, None),
    };
    let stored = StoredReport {
        unit_id,
        iccid,
        key: &report.key,
        words: &report.words,
    };
    let kept = providers::report(connection, name, &stored).await?;
    Ok(kept == Some(true))
}

/// Serves until the soft stop, then finishes the requests in flight.
pub async fn serve(
    listener: TcpListener,
    callbacks: Callbacks,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let most = callbacks.in_flight.available_permits() * CONNECTIONS;
    let server = BoundedServer {
        connections: Connections::new(most, "four of CALLBACK_CONCURRENCY", TOO_MANY),
        http: connection::builder(READ_TIMEOUT),
        last_request: Duration::ZERO,
        shutdown,
    };
    let router = Router::new()
        .route(ROUTE, post(take).head(tried))
        .with_state(Arc::new(callbacks));
    server.serve_router(listener, router).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_costs_two_statements_a_second_and_all_units_no_more_than_the_rate() {
        let recent = Recent::new(NonZeroU32::new(3).unwrap());
        let now = Instant::now();
        let admit = |provider, unit: &str, at| {
            recent.admit(provider, unit, PER_UNIT, now + Duration::from_millis(at))
        };
        let outcomes: Vec<Admission> = (0..4).map(|at| admit("a", "1", at)).collect();
        assert_eq!(outcomes[..2], [Admission::Admitted; 2]);
        assert_eq!(outcomes[2..], [Admission::Repeated; 2]);
        assert_eq!(admit("b", "1", 5), Admission::Admitted);
        assert_eq!(admit("a", "2", 6), Admission::Full);
        assert_eq!(admit("a", "1", 7), Admission::Repeated);
        assert_eq!(admit("a", "2", 1_001), Admission::Admitted);
        assert_eq!(admit("a", "1", 1_002), Admission::Admitted);
    }

    #[test]
    fn the_first_window_begins_with_the_first_callback() {
        let recent = Recent::new(NonZeroU32::MIN);
        let started = Instant::now();
        let admit =
            |unit: &str, at| recent.admit("a", unit, PER_UNIT, started + Duration::from_millis(at));
        assert_eq!(admit("1", 900), Admission::Admitted);
        assert_eq!(admit("2", 1_100), Admission::Full);
        assert_eq!(admit("2", 1_900), Admission::Admitted);
    }
}

//! The admin endpoint, which the orchestrator and the monitoring ask.
//!
//! - `/livez` responds 200 while the process runs. It checks nothing else, because restarting a
//!   process does not bring a database back.
//! - `/readyz` responds 200 if the service can take work. Otherwise it responds 503 and names the
//!   parts that are missing, for example `{"missing":{"database":"…"},"ready":false}`, with
//!   `findings`: what is wrong in the words of `esimctl attention`.
//! - `/metrics` shows the metrics in the Prometheus text format, or in `OpenMetrics`, which has
//!   exemplars, if the request asks for it.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{ACCEPT, CONTENT_TYPE},
    },
    response::IntoResponse,
    routing::get,
};
use opentelemetry::metrics::Gauge;
use serde_json::Value;

use crate::{Shutdown, connection, listener, lock, metrics::exposition};

/// How long a connection may stay open without a request. It is longer than the interval of any
/// scrape, so that a scraper can reuse its connection.
const IDLE: Duration = Duration::from_mins(5);

/// The parts of a service that are not ready, each with its reason. Clones share their state.
#[derive(Clone)]
pub struct Readiness {
    missing: Arc<Mutex<BTreeMap<&'static str, Missing>>>,
    /// The gauge `esim.<part>.up` of each part.
    up: Arc<BTreeMap<&'static str, Gauge<u64>>>,
    shutdown: Shutdown,
}

/// Why a part is missing.
#[derive(Clone)]
struct Missing {
    reason: String,
    /// The same for people, with what to do, as a JSON object; null if there is nothing to add.
    finding: Value,
}

impl Readiness {
    /// Makes the readiness of a service with these parts, none of which is ready yet. Each part
    /// gets a metric `esim.<part>.up`.
    pub fn new(shutdown: &Shutdown, parts: &[&'static str]) -> Self {
        let missing = parts
            .iter()
            .map(|part| {
                let missing = Missing {
                    reason: "not ready yet".to_owned(),
                    finding: Value::Null,
                };
                (*part, missing)
            })
            .collect();
        let meter = opentelemetry::global::meter("runtime");
        let up = parts.iter().map(|part| {
            let gauge = meter
                .u64_gauge(format!("esim.{part}.up"))
                .with_description("1 if this process's last check reached this part, else 0")
                .build();
            gauge.record(0, &[]);
            (*part, gauge)
        });
        Self {
            missing: Arc::new(Mutex::new(missing)),
            up: Arc::new(up.collect()),
            shutdown: shutdown.clone(),
        }
    }

    /// Marks a part as ready.
    pub fn set_ready(&self, part: &'static str) {
        lock(&self.missing).remove(part);
        self.show(part, 1);
    }

    /// Marks a part as not ready. Operators read the reason and the finding. Returns whether it was
    /// ready before.
    pub fn set_not_ready(
        &self,
        part: &'static str,
        reason: impl Into<String>,
        finding: Value,
    ) -> bool {
        let missing = Missing {
            reason: reason.into(),
            finding,
        };
        let before = lock(&self.missing).insert(part, missing);
        self.show(part, 0);
        before.is_none()
    }

    fn show(&self, part: &'static str, up: u64) {
        if let Some(gauge) = self.up.get(part) {
            gauge.record(up, &[]);
        }
    }

    /// The parts that are not ready, with their reasons. During a stop, the process itself is among
    /// them, so that no new work is sent to it.
    pub fn missing(&self) -> BTreeMap<&'static str, String> {
        let mut missing: BTreeMap<&'static str, String> = lock(&self.missing)
            .iter()
            .map(|(part, missing)| (*part, missing.reason.clone()))
            .collect();
        if self.shutdown.is_stopping() {
            missing.insert("process", "stopping".into());
        }
        missing
    }

    /// What is wrong with the parts that are not ready.
    fn findings(&self) -> Vec<Value> {
        let missing = lock(&self.missing);
        let findings = missing.values().map(|missing| missing.finding.clone());
        findings.filter(|finding| !finding.is_null()).collect()
    }
}

/// Serves the admin endpoint until the process ends. Its task is not among those that the soft stop
/// waits for, because probes and scrapes have to be answered during a stop, too.
pub async fn serve(address: SocketAddr, readiness: Readiness) -> anyhow::Result<()> {
    let listener = listener::bind("ADMIN_LISTEN", address).await?;
    crate::process::observe();
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(readiness);
    tokio::spawn(async move {
        let http = connection::builder(IDLE);
        let never = Shutdown::new();
        let serve_one = |stream, _| {
            let http = http.clone();
            let router = router.clone();
            let stop = never.clone();
            never.tracker().spawn(async move {
                connection::serve(
                    &http,
                    stream,
                    connection::service(router),
                    &stop,
                    Duration::ZERO,
                )
                .await;
            });
        };
        if let Err(error) = listener::accept(listener, &never, serve_one).await {
            tracing::error!(
                %error,
                "the admin endpoint ended, so probes and scrapes get no response; restart the process"
            );
        }
    });
    Ok(())
}

async fn ready(State(readiness): State<Readiness>) -> impl IntoResponse {
    let missing = readiness.missing();
    let ready = missing.is_empty();
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (
        status,
        Json(serde_json::json!({
            "ready": ready, "missing": missing, "findings": readiness.findings(),
        })),
    )
}

async fn metrics(headers: HeaderMap) -> Result<impl IntoResponse, (StatusCode, String)> {
    let families = prometheus::gather();
    let mut accepted = headers.get_all(ACCEPT).iter().flat_map(HeaderValue::to_str);
    let (format, text) = if accepted.any(exposition::asks_for_openmetrics) {
        let text = exposition::openmetrics(&families).map_err(|error| error.to_string());
        (exposition::OPENMETRICS, text)
    } else {
        let text = prometheus::TextEncoder::new().encode_to_string(&families);
        (exposition::TEXT, text.map_err(|error| error.to_string()))
    };
    text.map(|text| ([(CONTENT_TYPE, format)], text))
        .map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error))
}

//! The admin endpoint: `/metrics` in the Prometheus text format; `/livez` answers as long as the process can answer at all; `/readyz`
//! answers 200 when the service may be given work and 503 naming each reason when not.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{Json, Router, extract::State, http::StatusCode, response::IntoResponse, routing::get};

use crate::{Shutdown, listener};

/// What keeps a service from being ready: a reason for each named part, none when it is well.
/// Clones are the same state.
#[derive(Clone)]
pub struct Readiness {
    missing: Arc<Mutex<BTreeMap<&'static str, String>>>,
    shutdown: Shutdown,
}

impl Readiness {
    /// Not ready until each of `parts` has been reported well.
    pub fn new(shutdown: &Shutdown, parts: &[&'static str]) -> Self {
        let missing = parts
            .iter()
            .map(|part| (*part, "not ready yet".to_owned()))
            .collect();
        Self {
            missing: Arc::new(Mutex::new(missing)),
            shutdown: shutdown.clone(),
        }
    }

    /// Reports a part as well.
    pub fn well(&self, part: &'static str) {
        self.lock().remove(part);
    }

    /// Reports why a part keeps the service from working.
    pub fn unwell(&self, part: &'static str, reason: impl Into<String>) {
        self.lock().insert(part, reason.into());
    }

    /// The parts that are not well, with their reasons; empty means ready.
    pub fn missing(&self) -> BTreeMap<&'static str, String> {
        let mut missing = self.lock().clone();
        if self.shutdown.is_stopping() {
            missing.insert("process", "stopping".into());
        }
        missing
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves the admin endpoint until every other tracked task of the service has ended: probes
/// must get answers during a stop as well, so this task itself is not tracked.
pub async fn serve(address: SocketAddr, readiness: Readiness) -> anyhow::Result<()> {
    let listener = listener::bind("ADMIN_LISTEN", address).await?;
    crate::process::observe();
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(readiness);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the admin endpoint ended");
        }
    });
    Ok(())
}

async fn ready(State(readiness): State<Readiness>) -> impl IntoResponse {
    let missing = readiness.missing();
    let status = if missing.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let ready = missing.is_empty();
    (
        status,
        Json(serde_json::json!({ "ready": ready, "missing": missing })),
    )
}

async fn metrics() -> Result<String, (StatusCode, String)> {
    prometheus::TextEncoder::new()
        .encode_to_string(&prometheus::gather())
        .map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

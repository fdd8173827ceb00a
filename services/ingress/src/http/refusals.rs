//! Keeps refused requests of known partners for operators ([`store::refused`]).
//!
//! Guarantees:
//!
//! - No request waits for this. A refusal is queued, and one task writes what has queued, with at
//!   most one transaction per [`PACE`]. Refusals that do not fit are dropped and counted.
//! - Nobody can make it expensive. Of each partner and kind at most `PARTNER_REFUSALS_PER_MINUTE`
//!   are kept, and the next one that is kept says how many were not. The newest
//!   `PARTNER_REFUSALS_KEPT` of them stay. Requests with an unknown access key are not kept at all.
//! - Nothing secret is kept: no header, no query and no body. The external order id and the path of a
//!   signed route hold none.
//!
//! [`super::observe`] calls [`Refusals::note`] for each refused request, and knows its sender by the
//! [`Sender`] that [`crate::access::authentication`] found. While the database is away, refusals are
//! lost; the log and the metrics still have them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::http::{HeaderValue, Method, Request, StatusCode, Uri};
use domain::PartnerId;
use pipeline::Batcher;
use runtime::{Shutdown, clock, lock, outage, sampler::Sampler};
use store::{
    Database,
    refused::{self, Kind, Refusal},
};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::{
    access::limits::LimitsConfig,
    metrics::{Metrics, Recorded},
};

/// The least time between two writes.
const PACE: Duration = Duration::from_secs(2);
/// The most refusals of one write.
const BATCH: usize = 500;
/// How long a stop waits until the last ones are written.
const LAST: Duration = Duration::from_secs(2);
/// The most partners and kinds that are counted. Beyond it all of them begin anew.
const COUNTED: usize = 10_000;
/// The longest path and the longest list of errors that are kept, in bytes.
const LONGEST: usize = 300;

/// The partner whose access key a refused request has. It is an extension of the response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) partner: PartnerId,
    /// Whether the signature is valid. If it is not, anybody may have sent the request.
    pub(crate) signed: bool,
}

impl Sender {
    /// The partner of an access key, while the signature is not verified.
    pub(crate) fn unproven(partner: PartnerId) -> Self {
        Self {
            partner,
            signed: false,
        }
    }
}

/// The external order id of a create-order request that was read. It is an extension of the
/// response.
#[derive(Clone, Debug)]
pub(crate) struct ExternalOrderId(pub(crate) String);

/// What is kept of each request until its response is known.
pub(crate) struct Asked {
    method: Method,
    uri: Uri,
}

impl Asked {
    pub(crate) fn by<B>(request: &Request<B>) -> Self {
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
        }
    }

    fn kind(&self, signed: bool) -> Kind {
        if !signed {
            Kind::Unsigned
        } else if self.method == Method::POST && self.uri.path().ends_with("/orders") {
            Kind::Order
        } else {
            Kind::Other
        }
    }
}

/// The answer to a refused request.
pub(crate) struct Answered<'a> {
    pub(crate) request_id: Uuid,
    pub(crate) status: StatusCode,
    pub(crate) reason: &'static str,
    /// The value of the error header.
    pub(crate) errors: &'a HeaderValue,
    pub(crate) external_order_id: Option<String>,
}

pub(crate) struct Refusals {
    queue: Batcher<Refusal>,
    unwritten: TaskTracker,
    per_minute: u32,
    counted: Mutex<HashMap<(PartnerId, Kind), Sampler>>,
    metrics: Metrics,
}

impl Refusals {
    /// Starts the task that writes.
    pub(crate) fn start(
        database: Database,
        limits: &LimitsConfig,
        metrics: Metrics,
        shutdown: &Shutdown,
    ) -> Arc<Self> {
        let newest = limits.partner_refusals_kept;
        let stop = shutdown.soft();
        let written = metrics.clone();
        let unwritten = TaskTracker::new();
        let write = move |refusals: Vec<Refusal>| {
            let database = database.clone();
            let metrics = written.clone();
            let stop = stop.clone();
            async move {
                let kept = database
                    .run(async |connection| refused::keep(connection, &refusals, newest).await);
                let recorded = match kept.await {
                    Ok(()) => Recorded::Kept,
                    Err(error) => {
                        if let Some(others) = outage::DATABASE.failed() {
                            tracing::warn!(
                                %error,
                                others,
                                lost = refusals.len(),
                                "cannot store refused requests, so operators will not see these ones; the metrics count them"
                            );
                        }
                        Recorded::Failed
                    }
                };
                metrics.refusals(recorded, refusals.len());
                tokio::select! {
                    () = tokio::time::sleep(PACE) => {}
                    () = stop.cancelled() => {}
                }
            }
        };
        Arc::new(Self {
            queue: Batcher::start("refusals", BATCH, unwritten.clone(), shutdown, write),
            unwritten,
            per_minute: limits.partner_refusals_per_minute,
            counted: Mutex::default(),
            metrics,
        })
    }

    /// Keeps a refused request, unless there are too many of its kind.
    pub(crate) fn note(&self, sender: Sender, asked: &Asked, answered: Answered<'_>) {
        let kind = asked.kind(sender.signed);
        let Some(unrecorded) = self.pass(sender.partner, kind) else {
            self.metrics.refusals(Recorded::Limited, 1);
            return;
        };
        let queued = self.queue.try_push(Refusal {
            request_id: answered.request_id,
            partner_id: sender.partner,
            kind,
            at: clock::now(),
            status: answered.status.as_u16(),
            reason: answered.reason,
            errors: shortened(answered.errors.to_str().unwrap_or_default()),
            method: shortened(asked.method.as_str()),
            path: shortened(asked.uri.path()),
            external_order_id: answered.external_order_id,
            unrecorded,
        });
        if !queued {
            self.metrics.refusals(Recorded::Dropped, 1);
        }
    }

    /// Whether one more request of this kind is kept; if so, how many were not since the last one.
    fn pass(&self, partner: PartnerId, kind: Kind) -> Option<u64> {
        let mut counted = lock(&self.counted);
        if counted.len() >= COUNTED && !counted.contains_key(&(partner, kind)) {
            counted.clear();
        }
        let sampler = counted
            .entry((partner, kind))
            .or_insert_with(|| Sampler::within(self.per_minute, Duration::from_mins(1)));
        sampler.pass()
    }

    /// Waits for a moment until everything that was queued is written. Called when no request can
    /// come any more.
    pub(crate) async fn finish(&self) {
        self.unwritten.close();
        // A write that takes longer is given up, because a stop must not wait for what may be lost.
        let _ = tokio::time::timeout(LAST, self.unwritten.wait()).await;
    }
}

/// The beginning of a text that consists of ASCII characters, as paths and headers do.
fn shortened(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

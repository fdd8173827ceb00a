//! Keeps refused requests of known partners for operators ([`accounts::refused`]).
//!
//! Guarantees:
//!
//! - No request waits for this. A refusal is queued, and one task writes what has queued, with at
//!   most one transaction per [`PACE`]. Refusals that do not fit are dropped and counted.
//! - Nobody can make it expensive. Of each partner and kind at most 60 per minute
//!   are kept. The newest 1,000 of them stay. Requests with an access key that is
//!   and was nobody's are not kept at all.
//! - The next one that is kept says how many of its partner and kind were not, for whatever reason:
//!   there were too many, the queue was full, or the database did not take them.
//! - Nothing secret is kept: no header, no query and no body. The external order id and the path of
//!   a signed route hold none.
//!
//! [`crate::observe`] calls [`Refusals::note`] for each refused request, and knows its sender by
//! the [`RequestSender`] that [`crate::access::authentication`] found. While the database is away,
//! refusals are lost; the log and the metrics still have them. What a process has not said when it
//! ends is forgotten.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use accounts::refused::{self, RefusedKind, RefusedRequest};
use axum::http::{HeaderValue, Method, Request, StatusCode, Uri};
use domain::PartnerId;
use pg::Database;
use pipeline::Batcher;
use runtime::{Shutdown, clock, lock, outage, sampler::Sampler};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::metrics::{Metrics, RefusalRecording};

/// Maximum number of refused requests of one partner that are kept for operators. `esimctl partner
/// show --refused` and the console show them. The number holds for each of three kinds: orders,
/// other requests, and requests without a valid signature. Of these, the newest ones are kept, for
/// as long as `esimctl retention` says.
const PARTNER_REFUSALS_KEPT: u32 = 1000;
/// Maximum number of refused requests of one partner and kind per minute that are kept. So a flood
/// of refused requests costs the database little, and pushes out the older ones slowly. The next
/// one that is kept has the number of those that were not.
const PARTNER_REFUSALS_PER_MINUTE: u32 = 60;

/// The least time between two writes.
const PACE: Duration = Duration::from_secs(2);
/// The maximum number of refusals of one write.
const BATCH: usize = 500;
/// How long a stop waits until the last ones are written.
const LAST: Duration = Duration::from_secs(2);
/// The maximum number of partners and kinds that are counted. Beyond it all of them begin anew.
const COUNTED: usize = 10_000;
/// The longest path and the longest list of errors that are kept, in bytes.
const LONGEST: usize = 300;

/// The partner whose access key a request has. It is an extension of the response, of each one to a
/// request with a valid signature and of the refusals of all others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSender {
    pub(crate) partner: PartnerId,
    /// Whether the signature is valid. If it is not, anybody may have sent the request.
    pub(crate) signed: bool,
}

impl RequestSender {
    /// The partner who has signed the request.
    pub(crate) fn signed(partner: PartnerId) -> Self {
        Self {
            partner,
            signed: true,
        }
    }

    /// The partner of an access key, while the signature is not verified.
    pub(crate) fn unsigned(partner: PartnerId) -> Self {
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
pub(crate) struct RequestLine {
    method: Method,
    uri: Uri,
}

impl RequestLine {
    pub(crate) fn by<B>(request: &Request<B>) -> Self {
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
        }
    }

    /// Whether it creates an order.
    pub(crate) fn is_order(&self) -> bool {
        self.method == Method::POST && self.uri.path().ends_with("/orders")
    }

    fn kind(&self, signed: bool) -> RefusedKind {
        if !signed {
            RefusedKind::Unsigned
        } else if self.is_order() {
            RefusedKind::Order
        } else {
            RefusedKind::Other
        }
    }
}

/// The answer to a refused request.
pub(crate) struct RefusalAnswer<'a> {
    pub(crate) request_id: Uuid,
    pub(crate) status: StatusCode,
    pub(crate) reason: &'static str,
    /// The value of the error header.
    pub(crate) errors: &'a HeaderValue,
    pub(crate) external_order_id: Option<String>,
}

pub(crate) struct Refusals {
    queue: Batcher<RefusedRequest>,
    unwritten: TaskTracker,
    counted: Arc<Counted>,
    metrics: Metrics,
}

/// How many refusals of each partner and kind are kept, and how many were not.
struct Counted {
    per_minute: u32,
    samplers: Mutex<HashMap<(PartnerId, RefusedKind), Sampler>>,
}

impl Counted {
    fn new(per_minute: u32) -> Self {
        Self {
            per_minute,
            samplers: Mutex::default(),
        }
    }

    /// Whether one more request of this kind is kept; if so, how many were not since the last one.
    fn pass(&self, partner: PartnerId, kind: RefusedKind) -> Option<u64> {
        self.with(partner, kind, Sampler::pass)
    }

    /// Counts a refusal that was to be kept and is lost, and those that it would have counted.
    fn lost(&self, refusal: &RefusedRequest) {
        let missing = refusal.unrecorded.saturating_add(1);
        self.with(refusal.partner_id, refusal.kind, |sampler| {
            sampler.lost(missing);
        });
    }

    fn with<T>(&self, partner: PartnerId, kind: RefusedKind, act: impl FnOnce(&Sampler) -> T) -> T {
        let mut samplers = lock(&self.samplers);
        if samplers.len() >= COUNTED && !samplers.contains_key(&(partner, kind)) {
            samplers.clear();
        }
        let sampler = samplers
            .entry((partner, kind))
            .or_insert_with(|| Sampler::within(self.per_minute, Duration::from_mins(1)));
        act(sampler)
    }
}

impl Refusals {
    /// Starts the task that writes.
    pub(crate) fn start(database: Database, metrics: Metrics, shutdown: &Shutdown) -> Arc<Self> {
        let stop = shutdown.soft();
        let written = metrics.clone();
        let unwritten = TaskTracker::new();
        let counted = Arc::new(Counted::new(PARTNER_REFUSALS_PER_MINUTE));
        let lost = Arc::clone(&counted);
        let write = move |refusals: Vec<RefusedRequest>| {
            let lost = Arc::clone(&lost);
            let database = database.clone();
            let metrics = written.clone();
            let stop = stop.clone();
            async move {
                let kept = database.run(async |connection| {
                    refused::keep(connection, &refusals, PARTNER_REFUSALS_KEPT).await
                });
                let recorded = match kept.await {
                    Ok(()) => RefusalRecording::Kept,
                    Err(error) => {
                        for refusal in &refusals {
                            lost.lost(refusal);
                        }
                        if let Some(others) = outage::DATABASE.line(error.is_transient()) {
                            tracing::warn!(
                                %error,
                                others,
                                lost = refusals.len(),
                                "cannot store refused requests, so operators will not see these ones; the metrics count them, and so does the next one that is stored"
                            );
                        }
                        RefusalRecording::Failed
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
            counted,
            metrics,
        })
    }

    /// Keeps a refused request, unless there are too many of its kind.
    pub(crate) fn note(
        &self,
        sender: RequestSender,
        asked: &RequestLine,
        answered: RefusalAnswer<'_>,
    ) {
        let kind = asked.kind(sender.signed);
        let Some(unrecorded) = self.counted.pass(sender.partner, kind) else {
            self.metrics.refusals(RefusalRecording::Limited, 1);
            return;
        };
        let refusal = RefusedRequest {
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
        };
        if let Err(dropped) = self.queue.try_push(refusal) {
            self.counted.lost(&dropped);
            self.metrics.refusals(RefusalRecording::Dropped, 1);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_or_not_written_is_counted_by_the_next_one_of_its_kind() {
        let counted = Counted::new(2);
        let partner = PartnerId::from(Uuid::from_u128(1));
        let refusal = |unrecorded| RefusedRequest {
            request_id: Uuid::from_u128(2),
            partner_id: partner,
            kind: RefusedKind::Order,
            at: clock::now(),
            status: 422,
            reason: "x",
            errors: String::new(),
            method: "POST".into(),
            path: "/".into(),
            external_order_id: None,
            unrecorded,
        };
        assert_eq!(counted.pass(partner, RefusedKind::Order), Some(0));
        // It would have said that three others were not kept.
        counted.lost(&refusal(3));
        assert_eq!(counted.pass(partner, RefusedKind::Other), Some(0));
        assert_eq!(counted.pass(partner, RefusedKind::Order), Some(4));
        assert_eq!(counted.pass(partner, RefusedKind::Order), None);
        counted.lost(&refusal(4));
        assert_eq!(counted.pass(partner, RefusedKind::Order), None);
    }
}

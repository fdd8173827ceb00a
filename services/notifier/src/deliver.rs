//! The stage: claims deliveries, attempts each once, and records the result.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use domain::TopupId;
use pipeline::{
    Effect, GroupCommit,
    group_commit::Writer,
    payload::TopupReady,
    trace,
    worker::{Kind, Stage, Trigger},
};
use runtime::clock;
use store::{
    Database,
    deliveries::{self, AttemptResult, Attempted, Delivery, Take},
    endpoints::BlockPolicy,
    partners,
    profile::Profile,
    vault::{Purpose, Vault},
};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, field::Empty, info_span};
use url::Url;

use crate::{
    metrics::{DeliveryResult, Metrics},
    schedule::{Answer, Next, Schedule},
    slots::{Limits, Seat, Slots},
    webhook::{self, Sender, Unanswered},
};

/// How long a claimed delivery waits for a slot.
const SLOT_WAIT: Duration = Duration::from_secs(1);
/// The part of a lease beyond the request: waiting for a slot, decrypting, recording.
pub const LEASE_MARGIN: Duration = Duration::from_secs(5);

/// The lease of a claimed delivery, given the timeout of a request.
pub fn lease(timeout: Duration) -> Duration {
    timeout + LEASE_MARGIN
}

/// The stage.
pub struct Deliver {
    database: Database,
    vault: Vault,
    sender: Sender,
    public_url: String,
    schedule: Schedule,
    lease: Duration,
    slots: Arc<Slots>,
    metrics: Arc<Metrics>,
    attempts: GroupCommit<Attempts>,
    without_url: GroupCommit<WithoutUrl>,
    stop: CancellationToken,
}

/// The settings of [`Deliver`].
pub struct Settings {
    /// The base URL for partners, without a final slash.
    pub public_url: String,
    /// The timeout of a whole request.
    pub timeout: Duration,
    /// The waits between attempts.
    pub schedule: Schedule,
    /// The most requests in flight.
    pub limits: Limits,
    /// When endpoints are blocked.
    pub block_policy: BlockPolicy,
}

/// A claimed delivery and its seat.
pub struct Work {
    delivery: Delivery,
    seat: Seat,
    taken: Instant,
}

impl Deliver {
    /// Creates the stage. After `stop`, no delivery waits for a slot or for the database.
    pub fn new(
        database: Database,
        vault: Vault,
        sender: Sender,
        settings: Settings,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> Self {
        let most = settings.limits.all;
        let block_policy = settings.block_policy;
        Self {
            vault,
            sender,
            public_url: settings.public_url,
            schedule: settings.schedule,
            lease: lease(settings.timeout),
            slots: Slots::new(settings.limits),
            metrics,
            attempts: GroupCommit::start(
                Attempts {
                    database: database.clone(),
                    block_policy,
                },
                most,
            ),
            without_url: GroupCommit::start(WithoutUrl(database.clone()), most),
            database,
            stop,
        }
    }

    async fn deliver(
        &self,
        Work {
            delivery,
            seat,
            taken,
        }: Work,
    ) {
        let Some(url) = &delivery.webhook_url else {
            tracing::debug!(topup.id = %delivery.topup_id, partner.id = %delivery.partner_id, "no webhook URL");
            self.metrics.delivery(DeliveryResult::NoEndpoint);
            return self.write(&self.without_url, delivery.topup_id).await;
        };
        let slot = tokio::select! {
            slot = tokio::time::timeout(SLOT_WAIT, seat.slot()) => slot.ok().flatten(),
            () = self.stop.cancelled() => None,
        };
        let Some(slot) = slot else {
            tracing::debug!(topup.id = %delivery.topup_id, partner.id = %delivery.partner_id, "deferred: no slot was free");
            return self.metrics.delivery(DeliveryResult::Deferred);
        };
        let (at, began) = (clock::now(), Instant::now());
        let tried = self.attempt(&delivery, url, at).await;
        let duration = began.elapsed();
        drop(slot);
        drop(seat);

        let answer = tried.as_ref().ok().map(|(answer, _)| *answer);
        let round = delivery.attempt.saturating_sub(delivery.schedule_start);
        let next = self.schedule.next(round, answer, rand::random());
        log(&delivery, answer, tried.as_ref().err(), next);
        self.count(&delivery, class(&tried), next, duration, taken.elapsed());
        let attempted = Attempted {
            topup_id: delivery.topup_id.clone(),
            partner_id: delivery.partner_id,
            attempt: delivery.attempt,
            at,
            duration,
            status: answer.map(|answer| answer.status),
            class: class(&tried),
            answer: self.kept(&delivery, &tried, next),
            result: result(&tried, next),
        };
        self.write(&self.attempts, attempted).await;
    }

    fn count(
        &self,
        delivery: &Delivery,
        class: &'static str,
        next: Next,
        duration: Duration,
        since_taken: Duration,
    ) {
        self.metrics.attempt(class, duration);
        self.metrics.delivery(match next {
            Next::Delivered => DeliveryResult::Delivered,
            Next::Retry(_) => DeliveryResult::Retried,
            Next::Exhausted => DeliveryResult::Exhausted,
        });
        // A replay does not count for the delivery time.
        if next == Next::Delivered && delivery.schedule_start == 0 {
            self.metrics.delivered_after(delivery.age + since_taken);
        }
    }

    /// The beginning of a response that did not acknowledge. It is encrypted, because an endpoint may echo
    /// the webhook.
    fn kept(&self, delivery: &Delivery, tried: &Tried, next: Next) -> Option<Vec<u8>> {
        let (_, beginning) = tried.as_ref().ok()?;
        if next == Next::Delivered || beginning.is_empty() {
            return None;
        }
        let purpose = Purpose::Answer(&delivery.topup_id, delivery.attempt);
        self.vault
            .seal(purpose, beginning)
            .inspect_err(|error| tracing::error!(%error, "response cannot be encrypted; not stored"))
            .ok()
    }

    /// Sends one request, signed with the current time.
    async fn attempt(&self, delivery: &Delivery, url: &str, now: OffsetDateTime) -> Tried {
        let url: Url = url.parse().map_err(|_| Unanswered::BadUrl)?;
        let topup_id = &delivery.topup_id;
        let profile = Profile::open(&self.vault, topup_id, &delivery.profile).map_err(Failure::Profile)?;
        let secrets = std::iter::once(&delivery.webhook_secret)
            .chain(&delivery.old_webhook_secret)
            .map(|sealed| partners::open_webhook_secret(&self.vault, delivery.partner_id, sealed))
            .collect::<Result<Vec<_>, _>>()
            .map_err(Failure::Secret)?;
        // The span omits path and query: they may hold a partner's secret.
        let span = info_span!(
            "POST webhook",
            otel.kind = "client",
            otel.status_code = Empty,
            http.request.method = "POST",
            http.request.resend_count = (delivery.attempt > 0).then_some(delivery.attempt),
            url.scheme = url.scheme(),
            server.address = url.host_str(),
            server.port = url.port_or_known_default(),
            http.response.status_code = Empty,
            error.type = Empty,
        );
        let body = webhook::body(delivery, &profile, &self.public_url).map_err(|_| Failure::Unwritable)?;
        let traceparent = trace::context_of(&span);
        let headers = webhook::headers(
            topup_id,
            now.unix_timestamp(),
            &body,
            &secrets,
            traceparent.as_deref(),
        )
        .map_err(|_| Failure::Unwritable)?;
        let answer = self
            .sender
            .post(url, headers, body, now)
            .instrument(span.clone())
            .await;
        match &answer {
            Ok((answer, _)) => {
                span.record("http.response.status_code", answer.status);
                if answer.status >= 400 {
                    span.record("error.type", tracing::field::display(answer.status));
                    span.record("otel.status_code", "ERROR");
                }
            }
            Err(unanswered) => {
                span.record("error.type", unanswered.class());
                span.record("otel.status_code", "ERROR");
            }
        }
        Ok(answer?)
    }

    /// Writes, and retries while the database is away. After a stop it gives up, and the delivery is due
    /// when its lease ends.
    async fn write<W>(&self, commit: &GroupCommit<W>, item: W::Item)
    where
        W: Writer<Error = store::Error>,
        W::Item: Clone,
    {
        let mut pause = Duration::from_millis(100);
        loop {
            match commit.write(item.clone()).await {
                Ok(Err(error))
                    if error.is_transient() && !error.is_about_data() && !self.stop.is_cancelled() => {}
                Ok(Err(error)) => {
                    return tracing::error!(%error, "attempt not recorded; it is repeated when its lease ends");
                }
                Ok(Ok(_)) | Err(_) => return,
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // One last try after a stop.
                () = self.stop.cancelled() => {}
            }
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }
}

impl Deliver {
    async fn taken(&self, take: Take<'_>) -> Result<Vec<Delivery>, store::Error> {
        self.database
            .run(async |connection| deliveries::take(connection, take, self.lease).await)
            .await
    }
}

impl Stage for Deliver {
    const KIND: Kind = Kind::Ready;
    type Message = TopupReady;
    type Work = Work;
    type Key = TopupId;

    fn key(&self, message: &TopupReady) -> TopupId {
        let TopupReady::V1 { topup_id } = message;
        topup_id.clone()
    }

    fn work_key(&self, work: &Work) -> TopupId {
        work.delivery.topup_id.clone()
    }

    async fn claim(&self, messages: &[TopupReady]) -> anyhow::Result<Vec<Work>> {
        let topups: Vec<TopupId> = messages.iter().map(|message| self.key(message)).collect();
        let first = self.taken(Take::First(&topups)).await?;
        let taken = Instant::now();
        // A delivery without a seat is due when its first lease ends.
        let seated = |delivery: Delivery| {
            let seat = self
                .slots
                .seat(delivery.partner_id, delivery.webhook_host.as_deref());
            if seat.is_none() {
                self.metrics.delivery(DeliveryResult::Deferred);
            }
            Some(Work {
                delivery,
                seat: seat?,
                taken,
            })
        };
        Ok(first.into_iter().filter_map(seated).collect())
    }

    async fn claim_due(&self, limit: usize) -> anyhow::Result<Vec<Work>> {
        let room = self.slots.room(limit);
        let due = self.taken(Take::Due(&room)).await?;
        let taken = Instant::now();
        let seated = |delivery: Delivery| {
            let seat = self
                .slots
                .reserved(delivery.partner_id, delivery.webhook_host.as_deref());
            Work {
                delivery,
                seat,
                taken,
            }
        };
        Ok(due.into_iter().map(seated).collect())
    }

    async fn run(&self, work: Work, trigger: Trigger<TopupReady>) {
        let span = process_span(&work.delivery, &trigger);
        self.deliver(work).instrument(span).await;
    }
}

/// The first attempt belongs to the order's trace. A later one starts its own trace with a link to it.
fn process_span(delivery: &Delivery, trigger: &Trigger<TopupReady>) -> Span {
    let span = if trigger.message.is_some() {
        info_span!(
            parent: None,
            "process TOPUP_READY",
            otel.kind = "consumer",
            messaging.system = "nats",
            messaging.operation.name = "process",
            messaging.operation.type = "process",
            messaging.destination.name = "TOPUP_READY",
            messaging.message.id = %delivery.topup_id,
            topup.id = %delivery.topup_id,
            partner.id = %delivery.partner_id,
            order.id = %delivery.order_id,
            attempt = delivery.attempt,
        )
    } else {
        // Without a message: the row was due.
        info_span!(
            parent: None,
            "redrive delivery",
            otel.kind = "internal",
            topup.id = %delivery.topup_id,
            partner.id = %delivery.partner_id,
            order.id = %delivery.order_id,
            attempt = delivery.attempt,
        )
    };
    let (message, row) = (trigger.traceparent.as_deref(), delivery.traceparent.as_deref());
    trace::follow(&span, message, row, delivery.attempt == 0);
    span
}

/// Why an attempt got no response. Its text is stored and logged, and holds no URL and no secret.
#[derive(Clone, Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
    #[error("the profile cannot be decrypted: {0}")]
    Profile(store::Error),
    #[error("the webhook secret cannot be decrypted: {0}")]
    Secret(store::Error),
    #[error("the webhook cannot be encoded")]
    Unwritable,
}

/// The result of an attempt: a response and the beginning of its body, or a failure.
type Tried = Result<(Answer, Vec<u8>), Failure>;

/// The class of an attempt's result, for metrics and the database.
fn class(tried: &Tried) -> &'static str {
    match tried {
        Ok((answer, _)) => match answer.status {
            200..=299 => "delivered",
            300..=399 => "status_3xx",
            410 => "gone",
            429 => "too_many_requests",
            400..=499 => "status_4xx",
            500..=599 => "status_5xx",
            _ => "status_other",
        },
        Err(Failure::Unanswered(unanswered)) => unanswered.class(),
        Err(Failure::Profile(_) | Failure::Secret(_) | Failure::Unwritable) => "unreadable",
    }
}

fn result(tried: &Tried, next: Next) -> AttemptResult {
    let retry_in = match next {
        Next::Delivered => return AttemptResult::Delivered,
        Next::Retry(wait) => Some(wait),
        Next::Exhausted => None,
    };
    let error = match tried {
        Ok((answer, _)) => format!("answered {}", answer.status),
        Err(failure) => failure.to_string(),
    };
    AttemptResult::Failed {
        error,
        retry_in,
        endpoint: matches!(tried, Ok(_) | Err(Failure::Unanswered(_))),
    }
}

/// Logs one line per attempt.
fn log(delivery: &Delivery, answer: Option<Answer>, failure: Option<&Failure>, next: Next) {
    let Delivery {
        topup_id,
        partner_id,
        order_id,
        attempt,
        age,
        ..
    } = delivery;
    let status = answer.map(|answer| answer.status);
    let error = failure.map(tracing::field::display);
    match (failure, next) {
        (_, Next::Delivered) => tracing::debug!(
            topup.id = %topup_id, partner.id = %partner_id, order.id = %order_id, attempt, status, ?age,
            "webhook delivered"
        ),
        (Some(Failure::Profile(_) | Failure::Secret(_) | Failure::Unwritable), _) => tracing::error!(
            topup.id = %topup_id, partner.id = %partner_id, order.id = %order_id, attempt, error, ?next,
            "webhook cannot be created"
        ),
        (_, Next::Retry(retry_in)) => tracing::info!(
            topup.id = %topup_id, partner.id = %partner_id, order.id = %order_id, attempt, status, error, ?retry_in,
            "webhook not delivered; retry scheduled"
        ),
        (_, Next::Exhausted) => tracing::warn!(
            topup.id = %topup_id, partner.id = %partner_id, order.id = %order_id, attempt, status, error,
            "webhook not delivered; exhausted"
        ),
    }
}

/// The group commit of attempts.
struct Attempts {
    database: Database,
    block_policy: BlockPolicy,
}

impl Writer for Attempts {
    const EFFECT: Effect = Effect::CommitAttempts;
    const STATEMENT: (&'static str, &'static str) = ("UPDATE", "deliveries");
    type Item = Attempted;
    type Output = ();
    type Error = store::Error;

    async fn write(&self, items: &[Attempted]) -> Result<Vec<()>, store::Error> {
        self.database
            .run(async |connection| deliveries::record(connection, items, &self.block_policy).await)
            .await
            .inspect_err(|error| tracing::warn!(%error, attempts = items.len(), "cannot record attempts"))
    }

    fn one_is_at_fault(error: &store::Error) -> bool {
        error.is_about_data() || !error.is_transient()
    }
}

/// The group commit that marks deliveries without a webhook URL; they wait until one is set.
struct WithoutUrl(Database);

impl Writer for WithoutUrl {
    const EFFECT: Effect = Effect::CommitNoEndpoint;
    const STATEMENT: (&'static str, &'static str) = ("UPDATE", "deliveries");
    type Item = TopupId;
    type Output = ();
    type Error = store::Error;

    async fn write(&self, items: &[TopupId]) -> Result<Vec<()>, store::Error> {
        self.0
            .run(async |connection| deliveries::set_no_endpoint(connection, items).await)
            .await
            .inspect_err(|error| tracing::warn!(%error, "cannot record missing webhook URLs"))?;
        Ok(vec![(); items.len()])
    }

    fn one_is_at_fault(error: &store::Error) -> bool {
        error.is_about_data() || !error.is_transient()
    }
}

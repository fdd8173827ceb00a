//! The stage: reads deliveries, attempts each once, and records the result.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use domain::{PartnerId, TopupId};
use pipeline::{
    Effect, GroupCommit,
    group_commit::{Closed, Writer},
    lanes::{Limits, Slot},
    payload::TopupReady,
    perform,
    streams::READY,
    trace,
    worker::{Found, Look, Stage, Ticket, Trigger},
};
use runtime::{Shutdown, clock};
use store::{
    Database, PgConnection,
    deliveries::{self, AttemptResult, Attempted, Delivery, DeliveryPage, Read},
    endpoints::BlockPolicy,
    profile::Profile,
    vault::{Purpose, Vault},
};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, field::Empty, info_span};
use uuid::Uuid;
use webhooks::qr::QrUrls;

use crate::{
    endpoint::{Endpoint, Endpoints},
    metrics::{DeliveryResult, Metrics},
    schedule::{Answer, Next, Schedule},
    webhook::{self, Sender, Unanswered},
};

/// The first lease of a delivery. A delivery that is not finished by then gets a due row.
pub const FIRST_LEASE: Duration = Duration::from_secs(30);
/// The part of a lease beyond the request: decrypting, recording.
pub const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// The most attempts of one commit.
const BATCH: usize = 512;
/// How long the oldest delivery of an endpoint waits for a slot until the endpoint counts as slow. New
/// deliveries of a slow endpoint are deferred.
const SLOW: Duration = Duration::from_secs(1);

/// The lease of a due delivery, given the timeout of a request.
pub fn lease(timeout: Duration) -> Duration {
    timeout + LEASE_MARGIN
}

/// The stage.
pub struct Deliver {
    database: Database,
    vault: Vault,
    sender: Sender,
    qr: QrUrls,
    schedule: Schedule,
    lease: Duration,
    endpoints: Endpoints,
    metrics: Arc<Metrics>,
    attempts: GroupCommit<Attempts>,
    without_url: GroupCommit<WithoutUrl>,
    stop: CancellationToken,
}

/// The settings of [`Deliver`].
pub struct Settings {
    /// Makes `qrcode_img_url`.
    pub qr: QrUrls,
    /// The timeout of a whole request.
    pub timeout: Duration,
    /// The waits between attempts.
    pub schedule: Schedule,
    /// When endpoints are blocked.
    pub block_policy: BlockPolicy,
}

/// The most requests in flight: in total, to one host, and to one partner's endpoint.
pub fn limits(all: usize, per_host: usize, per_endpoint: usize, timeout: Duration) -> Limits {
    Limits {
        slots: all,
        per_lane: per_host,
        per_partner: per_endpoint,
        slow: SLOW,
        stale: lease(timeout) / 2,
    }
}

impl Deliver {
    /// Creates the stage. After the soft stop, no delivery waits for the database.
    pub fn new(
        database: Database,
        vault: Vault,
        sender: Sender,
        settings: Settings,
        metrics: Arc<Metrics>,
        shutdown: &Shutdown,
    ) -> Self {
        let attempts = Attempts {
            database: database.clone(),
            block_policy: settings.block_policy,
        };
        Self {
            vault,
            sender,
            qr: settings.qr,
            schedule: settings.schedule,
            lease: lease(settings.timeout),
            endpoints: Endpoints::default(),
            metrics,
            attempts: GroupCommit::start(attempts, BATCH, shutdown),
            without_url: GroupCommit::start(WithoutUrl(database.clone()), BATCH, shutdown),
            database,
            stop: shutdown.soft(),
        }
    }

    async fn deliver(&self, delivery: Delivery, claimed: Instant, mut slot: Slot) {
        let Some(endpoint) = self.endpoints.of(&delivery, &self.vault) else {
            tracing::debug!(topup.id = %delivery.topup_id, partner.id = %delivery.partner_id, "no webhook URL");
            self.metrics.delivery(DeliveryResult::NoEndpoint);
            return self.write(&self.without_url, delivery.topup_id).await;
        };
        if !slot.join(&endpoint.host) {
            tracing::debug!(topup.id = %delivery.topup_id, partner.id = %delivery.partner_id, "deferred: the host has no free slot");
            return self.metrics.delivery(DeliveryResult::Deferred);
        }
        let (at, began) = (clock::now(), Instant::now());
        let tried = self.attempt(&delivery, &endpoint, at).await;
        let duration = began.elapsed();

        let answer = tried.as_ref().ok().map(|(answer, _)| *answer);
        let round = delivery.attempt.saturating_sub(delivery.schedule_start);
        let next = match tried {
            Err(Failure::Erased) => Next::Exhausted,
            _ => self.schedule.next(round, answer, rand::random()),
        };
        // A failed attempt keeps its slot until it is recorded: a block then stops the next one.
        let slot = (next != Next::Delivered).then_some(slot);
        log(&delivery, answer, tried.as_ref().err(), next);
        self.count(&delivery, class(&tried), next, duration, claimed.elapsed());
        let attempted = Attempted {
            at,
            duration,
            status: answer.map(|answer| answer.status),
            class: class(&tried),
            answer: self.kept(&delivery, &tried, next),
            result: result(&tried, next),
            topup_id: delivery.topup_id,
            partner_id: delivery.partner_id,
            attempt: delivery.attempt,
        };
        self.write(&self.attempts, attempted).await;
        drop(slot);
    }

    fn count(
        &self,
        delivery: &Delivery,
        class: &'static str,
        next: Next,
        duration: Duration,
        since_claimed: Duration,
    ) {
        self.metrics.attempt(&delivery.environment, class, duration);
        self.metrics.delivery(match next {
            Next::Delivered => DeliveryResult::Delivered,
            Next::Retry(_) => DeliveryResult::Retried,
            Next::Exhausted => DeliveryResult::Exhausted,
        });
        // A replay does not count for the delivery time.
        if next == Next::Delivered && delivery.schedule_start == 0 {
            self.metrics.delivered_after(delivery.age + since_claimed);
            if delivery.attempt == 0 {
                self.metrics
                    .delivered_at_once(&delivery.environment, delivery.ready_age + since_claimed);
            }
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
    async fn attempt(&self, delivery: &Delivery, endpoint: &Endpoint, now: OffsetDateTime) -> Tried {
        let url = endpoint.url.as_ref().map_err(|error| *error)?;
        let topup_id = &delivery.topup_id;
        if delivery.erased {
            return Err(Failure::Erased);
        }
        let profile = Profile::open(&self.vault, topup_id, &delivery.profile).map_err(Failure::Profile)?;
        let secrets = endpoint
            .secrets
            .as_ref()
            .map_err(|error| Failure::Secret(error.clone()))?;
        let span = if trace::is_recorded() {
            // The span omits path and query: they may hold a partner's secret.
            info_span!(
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
            )
        } else {
            Span::none()
        };
        let body = webhook::body(delivery, &profile, &self.qr).map_err(|_| Failure::Unwritable)?;
        let traceparent = trace::context_of(&span).or_else(|| passed_on(delivery));
        let headers = webhook::headers(
            topup_id,
            now.unix_timestamp(),
            &body,
            secrets,
            traceparent.as_deref(),
        )
        .map_err(|_| Failure::Unwritable)?;
        let answer = self
            .sender
            .post(url.clone(), headers, body, now)
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
                Err(Closed) => return tracing::error!("attempt not recorded: the process stops"),
                Ok(Ok(_)) => return,
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

impl Stage for Deliver {
    const NAME: &'static str = "notifier";
    const KIND: &'static str = "ready";
    const CLAIM: (&'static str, &'static str) = ("SELECT", "deliveries");
    type Message = TopupReady;
    type Id = TopupId;
    type Hint = ();
    type Work = Delivery;

    fn open(&self, message: TopupReady) -> (Vec<Ticket<TopupId>>, ()) {
        let tickets = match message {
            TopupReady::V1 { topup_id } => vec![Ticket {
                id: topup_id,
                lane: "".into(),
                // A message of the first version does not name the partner.
                partner: Uuid::nil().into(),
            }],
            TopupReady::V2 { topups } => topups
                .into_iter()
                .map(|ready| self.ticket(ready.topup_id, ready.partner_id))
                .collect(),
        };
        (tickets, ())
    }

    async fn defer(&self, topups: &[TopupId]) -> anyhow::Result<()> {
        let deferring = self
            .database
            .run(async |connection| deliveries::defer(connection, topups).await);
        Ok(deferring.await?)
    }

    async fn due(&self, look: Look) -> anyhow::Result<Found<TopupId>> {
        let page = DeliveryPage {
            limit: look.limit,
            per_partner: look.per_lane,
            after: look.after.map(|(_, partner)| partner),
        };
        let found = self
            .database
            .run(async |connection| deliveries::due(connection, &page).await)
            .await?;
        let due = found.due.into_iter();
        Ok(Found {
            due: due.map(|due| self.ticket(due.topup_id, due.partner_id)).collect(),
            after: found.after.map(|partner| (String::new(), partner)),
        })
    }

    async fn lease(&self, topups: &[TopupId]) -> anyhow::Result<Vec<TopupId>> {
        let leasing = self
            .database
            .run(async |connection| deliveries::lease(connection, topups, self.lease).await);
        Ok(leasing.await?)
    }

    async fn claim(&self, topups: &[TopupId], overdue: bool) -> anyhow::Result<Vec<Delivery>> {
        let which = if overdue {
            Read::Leased
        } else {
            Read::Young(FIRST_LEASE.saturating_sub(self.lease))
        };
        let reading = self
            .database
            .run(async |connection| deliveries::read(connection, topups, which).await);
        Ok(reading.await?)
    }

    fn id(delivery: &Delivery) -> &TopupId {
        &delivery.topup_id
    }

    async fn run(self: Arc<Self>, delivery: Delivery, trigger: Trigger<()>, slot: Slot) {
        let span = process_span(&delivery, &trigger);
        self.deliver(delivery, trigger.claimed, slot)
            .instrument(span)
            .await;
    }
}

impl Deliver {
    fn ticket(&self, id: TopupId, partner: PartnerId) -> Ticket<TopupId> {
        let lane = self.endpoints.host(partner);
        Ticket { id, lane, partner }
    }
}

/// The trace context of a webhook where no span is recorded: the order's, or a new one for a later
/// attempt.
fn passed_on(delivery: &Delivery) -> Option<String> {
    if delivery.attempt == 0 {
        return delivery.traceparent.clone();
    }
    let (trace, span): (u128, u64) = (rand::random(), rand::random());
    Some(format!("00-{trace:032x}-{span:016x}-00"))
}

/// The first attempt belongs to the order's trace. A later one starts its own trace with a link to it.
fn process_span(delivery: &Delivery, trigger: &Trigger<()>) -> Span {
    if !trace::is_recorded() {
        return Span::none();
    }
    let span = if trigger.message.is_some() {
        info_span!(
            parent: None,
            "process",
            otel.name = format!("process {READY}"),
            otel.kind = "consumer",
            messaging.system = "nats",
            messaging.operation.name = "process",
            messaging.operation.type = "process",
            messaging.destination.name = READY,
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
    trace::follow(
        &span,
        trigger.traceparent(),
        delivery.traceparent.as_deref(),
        delivery.attempt == 0,
    );
    span
}

/// Why an attempt got no response. Its text is stored and logged, and holds no URL and no secret.
#[derive(Clone, Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
    /// Retention or an operator erased it after the delivery was made due.
    #[error("the profile was erased: the webhook cannot be sent again")]
    Erased,
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
        Err(Failure::Erased) => "erased",
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
    const NAME: &'static str = "commit-attempts";
    const STATEMENT: (&'static str, &'static str) = ("UPDATE", "deliveries");
    type Item = Attempted;
    type Output = ();
    type Error = store::Error;

    async fn write(&self, items: &[Attempted]) -> Result<Vec<()>, store::Error> {
        let record = async |connection: &mut PgConnection| {
            deliveries::record(connection, items, &self.block_policy).await
        };
        perform(Effect::CommitAttempts, self.database.run(record))
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
    const NAME: &'static str = "commit-no-endpoint";
    const STATEMENT: (&'static str, &'static str) = ("UPDATE", "deliveries");
    type Item = TopupId;
    type Output = ();
    type Error = store::Error;

    async fn write(&self, items: &[TopupId]) -> Result<Vec<()>, store::Error> {
        let set = async |connection: &mut PgConnection| deliveries::set_no_endpoint(connection, items).await;
        perform(Effect::CommitNoEndpoint, self.0.run(set))
            .await
            .inspect_err(|error| tracing::warn!(%error, "cannot record missing webhook URLs"))?;
        Ok(vec![(); items.len()])
    }

    fn one_is_at_fault(error: &store::Error) -> bool {
        error.is_about_data() || !error.is_transient()
    }
}

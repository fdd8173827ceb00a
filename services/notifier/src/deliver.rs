//! The stage: reads deliveries, attempts each once, and records the outcome.

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
    trace,
    worker::{Found, Look, Names, Stage, Ticket, Trigger},
};
use runtime::{Shutdown, clock};
use store::{
    Database,
    deliveries::{self, AttemptResult, Attempted, Delivery, DeliveryPage, Read},
    endpoints::BlockPolicy,
    profile::Profile,
    vault::{Purpose, Vault},
};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, field::Empty, info_span};
use uuid::Uuid;

use crate::{
    endpoint::{Endpoint, Endpoints},
    metrics::{Metrics, Outcome},
    schedule::{Answer, Next, Schedule},
    webhook::{self, Sender, Unanswered},
};

/// The first lease of a delivery: how long after its creation it gets a due row.
pub const FIRST_LEASE: Duration = Duration::from_secs(30);
/// What a lease leaves for everything but the exchange: opening, recording.
pub const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// The most attempts of one commit.
const BATCH: usize = 512;
/// An endpoint whose oldest delivery has waited so long for a slot gets no fresh ones.
const SLOW: Duration = Duration::from_secs(1);

/// How long a leased delivery is left alone by others, given the deadline of an exchange.
pub fn lease(timeout: Duration) -> Duration {
    timeout + LEASE_MARGIN
}

/// Everything that a delivery needs on its way out.
pub struct Deliver {
    database: Database,
    vault: Vault,
    sender: Sender,
    public_url: String,
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
    /// Where partners reach us, without final slash.
    pub public_url: String,
    /// The deadline of a whole exchange.
    pub timeout: Duration,
    /// When failed attempts are made again.
    pub schedule: Schedule,
    /// When endpoints are blocked.
    pub policy: BlockPolicy,
}

/// How many requests run at once: altogether, to one host, and to one partner's endpoint.
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
    /// Delivers until the soft stop; what is under way then is finished.
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
            policy: settings.policy,
        };
        Self {
            vault,
            sender,
            public_url: settings.public_url,
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
            self.metrics.delivery(Outcome::NoEndpoint);
            return self.write(&self.without_url, delivery.topup_id).await;
        };
        if !slot.join(&endpoint.host) {
            tracing::debug!(topup.id = %delivery.topup_id, partner.id = %delivery.partner_id, "deferred: the host is busy");
            return self.metrics.delivery(Outcome::Deferred);
        }
        let (at, began) = (clock::now(), Instant::now());
        let tried = self.attempt(&delivery, &endpoint, at).await;
        let duration = began.elapsed();
        drop(slot);

        let answer = tried.as_ref().ok().map(|(answer, _)| *answer);
        let round = delivery.attempt.saturating_sub(delivery.schedule_start);
        let next = self.schedule.next(round, answer, rand::random());
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
    }

    fn count(
        &self,
        delivery: &Delivery,
        class: &'static str,
        next: Next,
        duration: Duration,
        since_claimed: Duration,
    ) {
        self.metrics.attempt(class, duration);
        self.metrics.delivery(match next {
            Next::Delivered => Outcome::Delivered,
            Next::Retry(_) => Outcome::Retried,
            Next::Exhausted => Outcome::Exhausted,
        });
        // A replay says nothing of how fast we are.
        if next == Next::Delivered && delivery.schedule_start == 0 {
            self.metrics.delivered_after(delivery.age + since_claimed);
        }
    }

    /// The beginning of an answer that did not acknowledge, sealed: an endpoint may echo what it got.
    fn kept(&self, delivery: &Delivery, tried: &Tried, next: Next) -> Option<Vec<u8>> {
        let (_, beginning) = tried.as_ref().ok()?;
        if next == Next::Delivered || beginning.is_empty() {
            return None;
        }
        let purpose = Purpose::Answer(&delivery.topup_id, delivery.attempt);
        self.vault
            .seal(purpose, beginning)
            .inspect_err(|error| tracing::error!(%error, "an answer cannot be sealed and is not kept"))
            .ok()
    }

    /// One request, signed for this moment.
    async fn attempt(&self, delivery: &Delivery, endpoint: &Endpoint, now: OffsetDateTime) -> Tried {
        let url = endpoint.url.as_ref().map_err(|error| *error)?;
        let topup_id = &delivery.topup_id;
        let profile = Profile::open(&self.vault, topup_id, &delivery.profile).map_err(Failure::Profile)?;
        let secrets = endpoint
            .secrets
            .as_ref()
            .map_err(|error| Failure::Secret(error.clone()))?;
        let span = if trace::is_recorded() {
            // The rest of the URL may hold a partner's secret.
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
        let body = webhook::body(delivery, &profile, &self.public_url).map_err(|_| Failure::Unwritable)?;
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

    /// Writes until it is written. While the database is away that may take long, and nothing could
    /// be claimed meanwhile anyway; what is given up by a stop is due again when its lease ends.
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
                    return tracing::error!(%error, "an attempt was not recorded; it is made again");
                }
                Err(Closed) => return tracing::error!("an attempt was not recorded: the process stops"),
                Ok(Ok(_)) => return,
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // Once more, in case the database is there again by now.
                () = self.stop.cancelled() => {}
            }
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }
}

impl Stage for Deliver {
    const NAMES: Names = Names {
        stage: "notifier",
        kind: "ready",
        claims: ("SELECT", "deliveries"),
        claim: Effect::ClaimReady,
        lease_due: Effect::LeaseDueReady,
        claim_due: Effect::ClaimDueReady,
        acknowledge: Effect::AckReady,
        bury: Effect::BuryReady,
    };
    type Message = TopupReady;
    type Id = TopupId;
    type Hint = ();
    type Work = Delivery;

    fn open(&self, message: TopupReady) -> (Vec<Ticket<TopupId>>, ()) {
        let tickets = match message {
            TopupReady::V1 { topup_id } => vec![Ticket {
                id: topup_id,
                lane: "".into(),
                // It doesn't say whose it is.
                partner: Uuid::nil().into(),
            }],
            TopupReady::V2 { topups } => topups
                .into_iter()
                .map(|ready| self.ticket(ready.topup_id, ready.partner_id))
                .collect(),
        };
        (tickets, ())
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
            Read::Young(FIRST_LEASE - self.lease)
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

/// The trace context that a webhook carries where nothing is recorded: the order's, or for a later attempt
/// a new one.
fn passed_on(delivery: &Delivery) -> Option<String> {
    if delivery.attempt == 0 {
        return delivery.traceparent.clone();
    }
    let (trace, span): (u128, u64) = (rand::random(), rand::random());
    Some(format!("00-{trace:032x}-{span:016x}-00"))
}

/// The first attempt belongs to the order's trace. A later one, hours later maybe, is a trace of its
/// own with a link to it.
fn process_span(delivery: &Delivery, trigger: &Trigger<()>) -> Span {
    if !trace::is_recorded() {
        return Span::none();
    }
    let span = if trigger.message.is_some() {
        info_span!(
            parent: None,
            "process TOPUP_READY",
            otel.kind = "consumer",
            messaging.system = "nats",
            messaging.operation.name = "process",
            messaging.operation.type = "process",
            messaging.destination.name = "TOPUP_READY",
            topup.id = %delivery.topup_id,
            partner.id = %delivery.partner_id,
            order.id = %delivery.order_id,
            attempt = delivery.attempt,
        )
    } else {
        // It was due.
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

/// Why an attempt brought no answer. Its text is stored and logged: it holds no URL and no secret.
#[derive(Clone, Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
    #[error("the profile cannot be opened: {0}")]
    Profile(store::Error),
    #[error("the webhook secret cannot be opened: {0}")]
    Secret(store::Error),
    #[error("the webhook cannot be written")]
    Unwritable,
}

/// What an attempt brought: an answer and its beginning, or nothing.
type Tried = Result<(Answer, Vec<u8>), Failure>;

/// The class of an attempt's outcome.
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

/// One line for each attempt.
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
            "webhook cannot be made"
        ),
        (_, Next::Retry(retry_in)) => tracing::info!(
            topup.id = %topup_id, partner.id = %partner_id, order.id = %order_id, attempt, status, error, ?retry_in,
            "webhook not delivered, will be tried again"
        ),
        (_, Next::Exhausted) => tracing::warn!(
            topup.id = %topup_id, partner.id = %partner_id, order.id = %order_id, attempt, status, error,
            "webhook not delivered, exhausted"
        ),
    }
}

/// Records attempts.
struct Attempts {
    database: Database,
    policy: BlockPolicy,
}

impl Writer for Attempts {
    const EFFECT: Effect = Effect::CommitAttempts;
    const STATEMENT: (&'static str, &'static str) = ("UPDATE", "deliveries");
    type Item = Attempted;
    type Output = ();
    type Error = store::Error;

    async fn write(&self, items: &[Attempted]) -> Result<Vec<()>, store::Error> {
        self.database
            .run(async |connection| deliveries::record(connection, items, &self.policy).await)
            .await
            .inspect_err(|error| tracing::warn!(%error, attempts = items.len(), "cannot record attempts"))
    }

    fn one_is_at_fault(error: &store::Error) -> bool {
        error.is_about_data()
    }
}

/// Gives up on deliveries of partners without webhook URL, until one is set.
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
        error.is_about_data()
    }
}

//! The stage: claims deliveries, attempts each once, and records the result.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use domain::{DeliveryId, PartnerId};
use pipeline::{
    Effect, GroupCommit,
    group_commit::{Closed, Writer},
    messaging_span,
    payload::TopupReady,
    perform,
    streams::READY,
    trace,
    worker::{Class, Found, Look, Permit, Stage, Ticket, Trigger},
};
use runtime::{Shutdown, clock};
use store::{
    Database, PgConnection,
    deliveries::{self, Attempted, Claim, Content, Delivery, endpoints::BlockPolicy, events::Subject},
    profile::Profile,
    vault::{Purpose, Vault},
    work::Page,
};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, field::Empty, info_span};
use webhooks::{body::Body, event, qr::QrUrls};

use crate::{
    endpoint::{Endpoint, Endpoints},
    metrics::Metrics,
    outcome::{Failure, LogIds, Tried, class, log, result},
    schedule::{Next, Schedule},
    webhook::{self, Sender},
};

/// The first lease of a delivery. A delivery that is not finished by then becomes due.
pub const FIRST_LEASE: Duration = pipeline::timing::DELIVERY_FIRST_LEASE;
/// The part of a lease beyond the request: decrypting, recording.
pub const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// The most attempts of one commit.
const BATCH: usize = 512;
/// How long an endpoint's oldest delivery waits until the endpoint is slow and new ones are deferred.
pub const SLOW: Duration = Duration::from_secs(1);

/// The lease of a due delivery, given the timeout of a request.
pub fn lease(timeout: Duration) -> Duration {
    timeout + LEASE_MARGIN
}

pub struct Deliver {
    database: Database,
    vault: Vault,
    sender: Sender,
    settings: Settings,
    endpoints: Endpoints,
    metrics: Arc<Metrics>,
    attempts: GroupCommit<Attempts>,
    without_url: GroupCommit<WithoutUrl>,
    stop: CancellationToken,
}

pub struct Settings {
    /// Makes `qrcode_img_url`.
    pub qr: QrUrls,
    pub timeout: Duration,
    /// The waits between attempts.
    pub schedule: Schedule,
    pub block_policy: BlockPolicy,
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
        let attempts = Attempts { database: database.clone(), block_policy: settings.block_policy };
        Self {
            vault,
            sender,
            settings,
            endpoints: Endpoints::default(),
            metrics,
            attempts: GroupCommit::start(attempts, BATCH, shutdown),
            without_url: GroupCommit::start(WithoutUrl(database.clone()), BATCH, shutdown),
            database,
            stop: shutdown.soft(),
        }
    }

    /// The lane of a delivery is its endpoint's host, because endpoints of one host fail together. It is empty until a
    /// claim has read the partner's URL.
    fn ticket(&self, id: DeliveryId, partner: PartnerId) -> Ticket<DeliveryId> {
        Ticket { id, lane: self.endpoints.host(partner), partner }
    }

    async fn deliver(&self, delivery: Delivery, claim_began: Instant, mut permit: Permit) {
        let Some(endpoint) = self.endpoints.of(&delivery, &self.vault) else {
            let ids = LogIds::of(&delivery);
            tracing::debug!(
                topup.id = ids.topup, event.id = ids.event, partner.id = %delivery.partner_id,
                "no webhook URL"
            );
            self.metrics.delivery("no_endpoint");
            return self.write(&self.without_url, delivery.id).await;
        };
        if !permit.move_to(&endpoint.host) {
            let ids = LogIds::of(&delivery);
            tracing::debug!(
                topup.id = ids.topup, event.id = ids.event, partner.id = %delivery.partner_id,
                "deferred: the host has no free permit"
            );
            self.metrics.delivery("deferred");
            return self.make_due(&delivery).await;
        }
        let (at, began) = (clock::now(), Instant::now());
        let tried = self.attempt(&delivery, &endpoint, at).await;
        let duration = began.elapsed();

        let response = tried.as_ref().ok().map(|(response, _)| *response);
        let attempts_of_schedule = delivery.attempt.saturating_sub(delivery.schedule_start);
        let mut next = match tried {
            Err(Failure::Erased) => Next::Exhausted,
            _ => self.settings.schedule.next(attempts_of_schedule, response, rand::random()),
        };
        if next != Next::Delivered && is_test(&delivery) {
            next = Next::Exhausted;
        }
        // After a success the permit is free at once, because the next request need not wait for our record. After a
        // failure it is kept until the record is there: the record may block the endpoint, and then no further delivery
        // starts.
        let kept_permit = if next == Next::Delivered {
            drop(permit);
            None
        } else {
            Some(permit)
        };
        log(&delivery, response, tried.as_ref().err(), next);
        self.count(&delivery, class(&tried), next, duration, claim_began.elapsed());
        let attempted = Attempted {
            at,
            duration,
            status: response.map(|response| response.status),
            class: class(&tried),
            response_start: self.sealed_response_start(&delivery, &tried, next),
            result: result(&tried, next),
            id: delivery.id,
            partner_id: delivery.partner_id,
            is_event: matches!(delivery.content, Content::Event(_)),
            leased: delivery.leased,
            attempt: delivery.attempt,
        };
        self.write(&self.attempts, attempted).await;
        drop(kept_permit);
    }

    /// Makes a delivery due at once whose host was full. Its lane is known now, so it waits there for a permit.
    async fn make_due(&self, delivery: &Delivery) {
        let id = std::slice::from_ref(&delivery.id);
        let made_due = if delivery.leased {
            self.database.run(async |connection| deliveries::put_back(connection, id).await).await
        } else {
            self.database.run(async |connection| deliveries::defer(connection, id).await).await
        };
        if let Err(error) = made_due {
            let ids = LogIds::of(delivery);
            tracing::warn!(
                topup.id = ids.topup, event.id = ids.event, %error,
                "cannot defer; the delivery is due when its lease, or its first lease, ends"
            );
        }
    }

    fn count(&self, delivery: &Delivery, class: &'static str, next: Next, duration: Duration, since_claim: Duration) {
        self.metrics.attempt(&delivery.environment, class, duration);
        self.metrics.delivery(match next {
            Next::Delivered => "delivered",
            Next::Retry(_) => "retried",
            Next::Exhausted => "exhausted",
        });
        // A replay does not count for the delivery time.
        if let Content::Esim(esim) = &delivery.content
            && next == Next::Delivered
            && delivery.schedule_start == 0
        {
            self.metrics.delivered_after(esim.age + since_claim);
            if delivery.attempt == 0 {
                self.metrics.delivered_at_once(&delivery.environment, esim.ready_age + since_claim);
            }
        }
    }

    /// The beginning of a response that did not acknowledge, encrypted: an endpoint may echo the webhook.
    fn sealed_response_start(&self, delivery: &Delivery, tried: &Tried, next: Next) -> Option<Vec<u8>> {
        let (_, beginning) = tried.as_ref().ok()?;
        // A partner sees the response to a test in any case.
        if (next == Next::Delivered && !is_test(delivery)) || beginning.is_empty() {
            return None;
        }
        let purpose = Purpose::Response(delivery.id, delivery.attempt);
        self.vault
            .seal(purpose, beginning)
            .inspect_err(|error| tracing::error!(%error, "response cannot be encrypted; not stored"))
            .ok()
    }

    /// Sends one request, signed with the current time.
    async fn attempt(&self, delivery: &Delivery, endpoint: &Endpoint, now: OffsetDateTime) -> Tried {
        let url = endpoint.url.as_ref().map_err(|error| *error)?;
        let (body, kind) = self.body(&delivery.content)?;
        let secrets = endpoint.secrets.as_ref().map_err(|error| Failure::Secret(error.clone()))?;
        let span = if trace::is_recorded() {
            // The span omits path and query: they may hold a partner's secret.
            info_span!(
                "POST webhook",
                otel.kind = "client", otel.status_code = Empty, error.type = Empty,
                http.request.method = "POST", http.response.status_code = Empty,
                http.request.resend_count = (delivery.attempt > 0).then_some(delivery.attempt),
                url.scheme = url.scheme(), server.address = url.host_str(),
                server.port = url.port_or_known_default(),
            )
        } else {
            Span::none()
        };
        let traceparent = trace::context_of(&span).or_else(|| passed_on(delivery));
        let headers = webhook::headers(
            &delivery.webhook_id(),
            kind,
            now.unix_timestamp(),
            &body,
            secrets,
            traceparent.as_deref(),
        )
        .map_err(|_| Failure::Unwritable)?;
        let answer = self.sender.post(url.clone(), headers, body, now).instrument(span.clone()).await;
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

    /// The body, and the kind of an event other than the specified webhook.
    fn body(&self, content: &Content) -> Result<(Vec<u8>, Option<&'static str>), Failure> {
        let (body, kind) = match content {
            Content::Esim(esim) if esim.erased => return Err(Failure::Erased),
            Content::Esim(esim) => {
                let profile = Profile::open(&self.vault, &esim.topup_id, &esim.profile).map_err(Failure::Profile)?;
                let (order, qr) = (&esim.external_order_id, &self.settings.qr);
                let body = Body::new(&esim.topup_id, esim.option_id, order, &esim.iccid, &profile, qr);
                (serde_json::to_vec(&body), None)
            }
            Content::Event(event) => {
                let body = serde_json::to_vec(&event::Body::new(event));
                (body, Some(event.subject.kind().as_str()))
            }
        };
        Ok((body.map_err(|_| Failure::Unwritable)?, kind))
    }

    /// Writes, and retries while the database is away. After a stop the delivery is due when its lease, or its
    /// first lease, ends.
    async fn write<W>(&self, commit: &GroupCommit<W>, item: W::Item)
    where
        W: Writer<Error = store::Error>,
        W::Item: Clone,
    {
        let mut pause = Duration::from_millis(100);
        loop {
            match commit.write(item.clone()).await {
                Ok(Err(error)) if error.is_transient() && !error.is_about_data() && !self.stop.is_cancelled() => {}
                Ok(Err(error)) => {
                    return tracing::error!(%error, "attempt not recorded; it is repeated when the lease, or the first lease, ends");
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
    type Id = DeliveryId;
    type Work = Delivery;

    fn tickets_of(&self, message: TopupReady) -> Vec<Ticket<DeliveryId>> {
        let TopupReady::V1 { deliveries } = message;
        deliveries.into_iter().map(|ready| self.ticket(ready.delivery_id, ready.partner_id)).collect()
    }

    async fn defer(&self, ids: &[DeliveryId]) -> anyhow::Result<()> {
        Ok(self.database.run(async |connection| deliveries::defer(connection, ids).await).await?)
    }

    async fn due(&self, look: Look) -> anyhow::Result<Found<DeliveryId>> {
        let page = Page { limit: look.limit, per_lane: look.per_lane, after: look.after, skip: &[] };
        let found = self.database.run(async |connection| deliveries::due(connection, &page).await).await?;
        let due = found.due.into_iter();
        Ok(Found { due: due.map(|due| self.ticket(due.id, due.partner_id)).collect(), after: found.after })
    }

    async fn claim(&self, ids: &[DeliveryId], class: Class) -> anyhow::Result<Vec<(DeliveryId, Delivery)>> {
        let lease = lease(self.settings.timeout);
        let claim = match class {
            Class::Fresh => Claim::Fresh { youth: FIRST_LEASE.saturating_sub(lease) },
            Class::Due => Claim::Due { lease },
        };
        let claimed = self.database.run(async |connection| deliveries::claim(connection, ids, claim).await).await?;
        Ok(claimed.into_iter().map(|delivery| (delivery.id, delivery)).collect())
    }

    async fn run(self: Arc<Self>, delivery: Delivery, trigger: Trigger, permit: Permit) {
        let span = process_span(&delivery, &trigger);
        self.deliver(delivery, trigger.claim_began, permit).instrument(span).await;
    }
}

/// A test has one attempt: a retry would not show the endpoint's state at the time of the request.
fn is_test(delivery: &Delivery) -> bool {
    matches!(&delivery.content, Content::Event(event) if event.subject == Subject::WebhookTest)
}

/// The trace context if no span is recorded: the order's for a topup's first attempt, else a new one.
fn passed_on(delivery: &Delivery) -> Option<String> {
    if let Content::Esim(esim) = &delivery.content
        && delivery.attempt == 0
    {
        return esim.traceparent.clone();
    }
    let (trace, span): (u128, u64) = (rand::random(), rand::random());
    Some(format!("00-{trace:032x}-{span:016x}-00"))
}

/// The first attempt belongs to the order's trace. A later one starts its own trace with a link to it.
fn process_span(delivery: &Delivery, trigger: &Trigger) -> Span {
    if !trace::is_recorded() {
        return Span::none();
    }
    let esim = match &delivery.content {
        Content::Esim(esim) => Some(esim),
        Content::Event(_) => None,
    };
    let ids = LogIds::of(delivery);
    let order_id = esim.map(|esim| tracing::field::display(esim.order_id));
    let span = if trigger.class == Class::Fresh {
        messaging_span!(INFO, "process", "consumer", "process", READY;
            topup.id = ids.topup, event.id = ids.event, partner.id = %delivery.partner_id, order.id = order_id,
            attempt = delivery.attempt,
        )
    } else {
        // Without a message: the delivery was due.
        info_span!(
            parent: None,
            "due delivery",
            otel.kind = "internal", topup.id = ids.topup, event.id = ids.event, order.id = order_id,
            partner.id = %delivery.partner_id, attempt = delivery.attempt,
        )
    };
    trace::follow(
        &span,
        trigger.traceparent.as_deref(),
        esim.and_then(|esim| esim.traceparent.as_deref()),
        delivery.attempt == 0,
    );
    span
}

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
        let record =
            async |connection: &mut PgConnection| deliveries::record(connection, items, &self.block_policy).await;
        perform(Effect::CommitAttempts, self.database.run(record))
            .await
            .inspect_err(|error| tracing::warn!(%error, attempts = items.len(), "cannot record attempts"))
    }

    /// The webhook has arrived and its permit is free. If this process dies first, the webhook is
    /// repeated with the same id, as after any crash between a webhook and its record.
    fn can_wait(attempted: &Attempted) -> bool {
        attempted.is_plain()
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
    type Item = DeliveryId;
    type Output = ();
    type Error = store::Error;

    async fn write(&self, items: &[DeliveryId]) -> Result<Vec<()>, store::Error> {
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

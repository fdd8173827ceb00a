//! What the notifier does with deliveries: it claims them, attempts each once, and records the
//! results.
//!
//! The worker of [`pipeline::worker`] calls it with claimed deliveries. One run is one attempt: the
//! webhook is signed with the current time and sent, and the result is recorded by group commit
//! together with the time of the next attempt. The store then gives the delivery due work for that
//! time, so a retry takes the same path as any other due work.
//!
//! Guarantee: each delivery is attempted at least once, and again until an attempt succeeds or its
//! schedule ends. Recording a result is retried while the database is away. If the process stops
//! before it is recorded, the delivery is still pending, and it is attempted again when its lease,
//! or its first lease, ends. If the database refuses the record for a reason that no retry removes,
//! the next attempt is put off for longer and longer.
//!
//! Two processes may attempt one delivery at the same time. Leases only make that rare, because a
//! process can outlive its lease, and a fresh delivery has none. The partner recognises a repeat by
//! its `webhook-id`.

mod fresh;
mod record;
mod spans;

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use accounts::profile::Profile;
use domain::{DeliveryId, EndpointKey, PartnerId, endpoint::BlockPolicy, event::NoticeKind};
use pg::{Database, PgConnection};
use pipeline::{
    Effect, GroupCommit,
    payload::ReadyMessage,
    perform, trace,
    worker::{Handler, Permit, Ticket, TicketClass, Trigger},
};
use runtime::{
    Shutdown,
    clock::{self, Moment},
    outage,
};
use signing::code;
use signing::webhook::Signers;
use store::{
    deliveries::{
        self, AttemptResult, ClaimedDelivery, DeliveryClaim, DeliveryContent, EndedAttempt,
        events::{EventContent, Kept, Subject},
        notices::{self, NoticeContent},
    },
    work::{self, LookResult, WorkLook},
};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use vault::{Purpose, Vault};
use webhooks::{body::WebhookBody, event, mail::EmailAddress, qr::QrUrls};

use self::{
    record::{AttemptRecorder, WithoutUrl, until_recorded},
    spans::{passed_on, process_span, record_response, request_span},
};
use crate::{
    endpoint::{EndpointCache, PreparedEndpoint},
    mail::{self, Mail, Mailer},
    mail_text,
    metrics::Metrics,
    outcome::{self, AttemptFailure, ExchangeResult, LogIds},
    schedule::{EndpointResponse, Schedule},
    webhook::{self, NoResponse, WebhookSender},
};

/// The first lease of a delivery. A delivery that is not finished when it ends becomes due.
pub const FIRST_LEASE: Duration = pipeline::timing::DELIVERY_FIRST_LEASE;
/// The part of a lease that is left for everything but the request: decrypting the profile and
/// recording the result.
pub const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// How long the oldest delivery of a queue may wait for its permit before the queue counts as slow.
/// Further new deliveries of a slow queue are deferred.
pub const SLOW: Duration = Duration::from_secs(1);

/// The lease of a due delivery, given the timeout of a request.
pub fn lease(timeout: Duration) -> Duration {
    timeout + LEASE_MARGIN
}

/// The handler of deliveries, with everything that their attempts share.
pub struct Deliver {
    database: Database,
    vault: Vault,
    transports: Transports,
    settings: DeliverySettings,
    endpoints: EndpointCache,
    metrics: Arc<Metrics>,
    attempts: GroupCommit<AttemptRecorder>,
    without_url: GroupCommit<WithoutUrl>,
    stop: CancellationToken,
}

/// How requests leave: webhooks to URLs, and notices to e-mail addresses.
pub struct Transports {
    pub sender: WebhookSender,
    /// `None` if no relay is configured.
    pub mailer: Option<Mailer>,
}

/// The settings of the handler.
pub struct DeliverySettings {
    /// Makes `qrcode_img_url`.
    pub qr: QrUrls,
    /// The timeout of one request (`WEBHOOK_TIMEOUT`).
    pub timeout: Duration,
    /// The waits between attempts.
    pub schedule: Schedule,
    pub block_policy: BlockPolicy,
    /// How many notices about its endpoints a partner gets within 24 hours.
    pub notices_per_day: u32,
}

impl Deliver {
    /// Creates the handler and starts its group commits.
    pub fn new(
        database: Database,
        vault: Vault,
        transports: Transports,
        settings: DeliverySettings,
        metrics: Arc<Metrics>,
        shutdown: &Shutdown,
    ) -> Self {
        let attempts = AttemptRecorder::start(
            database.clone(),
            settings.block_policy,
            settings.notices_per_day,
            Arc::clone(&metrics),
            shutdown,
        );
        let without_url = WithoutUrl::start(database.clone(), shutdown);
        Self {
            vault,
            transports,
            settings,
            endpoints: EndpointCache::default(),
            metrics,
            attempts,
            without_url,
            database,
            stop: shutdown.soft(),
        }
    }

    /// Makes the ticket of a delivery. Its lane is the host of the endpoint, because endpoints of
    /// one host fail together. The lane is empty until a claim in this process has read the URL.
    ///
    /// The queues share permits between owners. Here each endpoint is one, so that a slow endpoint
    /// takes nothing from the other endpoints of its partner.
    fn ticket(&self, id: DeliveryId, endpoint: EndpointKey) -> Ticket<DeliveryId> {
        Ticket {
            id,
            lane: self.endpoints.host(endpoint),
            owner: endpoint.id.into(),
        }
    }

    /// Creates the deliveries to further endpoints of the partners of these deliveries. If it fails
    /// or this process dies before it, the sweep does it when the first lease of the deliveries
    /// ends. A failure is none of the caller's, which may hold leases by now.
    async fn fan_out(&self, ids: &[DeliveryId]) {
        if ids.is_empty() {
            return;
        }
        let create =
            async |connection: &mut PgConnection| deliveries::fan_out(connection, ids).await;
        if let Err(error) = perform(Effect::CommitFanOut, self.database.run(create)).await
            && let Some(others) = outage::DATABASE.line(error.is_transient())
        {
            tracing::error!(
                %error,
                others,
                "cannot create deliveries to further endpoints; the sweep creates them when the \
                 first lease of the delivery to the first endpoint ends"
            );
        }
    }
}

impl Handler for Deliver {
    const NAME: &'static str = "notifier";
    const KIND: &'static str = "ready";
    const CLAIM_STATEMENT: (&'static str, &'static str) = ("SELECT", "deliveries");
    type Message = ReadyMessage;
    type Id = DeliveryId;
    type Claimed = ClaimedDelivery;

    fn tickets_of(&self, message: ReadyMessage) -> Vec<Ticket<DeliveryId>> {
        let ReadyMessage::V1 { deliveries } = message;
        deliveries
            .into_iter()
            .map(|ready| self.ticket(ready.delivery_id, EndpointKey::first(ready.partner_id)))
            .collect()
    }

    async fn defer(&self, ids: &[DeliveryId]) -> anyhow::Result<()> {
        let to_fan_out = self
            .database
            .run(async |connection| deliveries::defer(connection, ids).await)
            .await?;
        self.fan_out(&to_fan_out).await;
        Ok(())
    }

    async fn due(&self, look: WorkLook) -> anyhow::Result<LookResult<Ticket<DeliveryId>>> {
        let found = self
            .database
            .run(async |connection| work::due_deliveries(connection, &look).await)
            .await?;
        Ok(found.map(|due| self.ticket(due.id, due.endpoint)))
    }

    async fn claim(
        &self,
        ids: &[DeliveryId],
        class: TicketClass,
    ) -> anyhow::Result<Vec<(DeliveryId, ClaimedDelivery)>> {
        let lease = lease(self.settings.timeout);
        let claimed = match class {
            // A fresh delivery takes no lease, so a whole attempt must fit into the rest of its
            // first lease, in which no other process looks for it. An older one is left to the
            // sweep, which gives it due work when its first lease ends.
            TicketClass::Fresh => {
                let younger_than = FIRST_LEASE.saturating_sub(lease);
                let claiming = async |connection: &mut PgConnection| {
                    self.claim_fresh(connection, ids, younger_than).await
                };
                self.database.run(claiming).await?
            }
            TicketClass::Due => {
                let claim = DeliveryClaim::Due { lease };
                self.database
                    .run(async |connection| deliveries::claim(connection, ids, claim).await)
                    .await?
            }
        };
        self.endpoints.learn(claimed.targets);
        self.fan_out(&claimed.to_fan_out).await;
        Ok(claimed
            .deliveries
            .into_iter()
            .map(|delivery| (delivery.id, delivery))
            .collect())
    }

    async fn run(self: Arc<Self>, delivery: ClaimedDelivery, trigger: Trigger, permit: Permit) {
        let span = process_span(&delivery, &trigger);
        self.deliver(delivery, trigger.claim_began, permit)
            .instrument(span)
            .await;
    }
}

impl Deliver {
    /// Attempts a claimed delivery once and records the result. A delivery without a webhook URL is
    /// held instead, and one whose host has no free permit is deferred.
    async fn deliver(&self, delivery: ClaimedDelivery, claim_began: Moment, mut permit: Permit) {
        let Some(endpoint) = self.endpoints.of(&delivery, &self.vault) else {
            let ids = LogIds::of(&delivery);
            tracing::debug!(
                topup.id = ids.topup, event.id = ids.event, partner.id = %delivery.partner_id,
                "not sent, because the partner has no webhook URL; held until one is set"
            );
            self.metrics.delivery("no_endpoint");
            let refused = until_recorded(&self.without_url, delivery.id, &self.stop).await;
            return self.put_off(&delivery, refused).await;
        };
        if !permit.move_to(&endpoint.host) {
            let ids = LogIds::of(&delivery);
            tracing::debug!(
                topup.id = ids.topup, event.id = ids.event, partner.id = %delivery.partner_id,
                "deferred, because too many requests to this host are in flight"
            );
            self.metrics.delivery("deferred");
            return self.make_due(&delivery).await;
        }
        let at = clock::now();
        let began = Instant::now();
        let exchange = self.attempt(&delivery, &endpoint, at).await;
        let duration = began.elapsed();
        permit.attempted(duration);

        let attempts_of_schedule = delivery
            .ended_attempts
            .saturating_sub(delivery.schedule_start);
        let next = outcome::NextRetry {
            retry_in: self.retry_in(&delivery, &exchange, attempts_of_schedule),
            retry_if_resent: self.retry_in(&delivery, &exchange, 0),
        };
        let result = outcome::result(&exchange, next);
        let is_delivered = matches!(result, AttemptResult::Delivered);
        // After a success the permit is released at once, because the next request need not wait
        // for the record. After a failure it is kept until the failure is recorded: the record may
        // block the endpoint, and then no further delivery should start.
        let kept_permit = (!is_delivered).then_some(permit);
        outcome::log(&delivery, &exchange, &result);
        self.metrics.ended(
            &delivery,
            outcome::class(&exchange),
            &result,
            duration,
            claim_began.monotonic.elapsed(),
        );
        let response = exchange.as_ref().ok();
        let attempted = EndedAttempt {
            at,
            duration,
            status: response.map(|response| response.status),
            class: outcome::class(&exchange),
            detail: outcome::detail(&exchange),
            proves: response.is_some_and(|response| response.proves),
            response_start: response
                .and_then(|response| self.sealed_response_start(&delivery, response)),
            result,
            id: delivery.id,
            endpoint_id: delivery.endpoint.id,
            is_event: matches!(delivery.content, DeliveryContent::Event(_)),
            leased: delivery.leased,
            ended_attempts: delivery.ended_attempts,
            schedule_start: delivery.schedule_start,
        };
        let refused = until_recorded(&self.attempts, attempted, &self.stop).await;
        self.put_off(&delivery, refused).await;
        drop(kept_permit);
    }

    /// Puts a delivery off if the database has `refused` its record. The attempt is not counted
    /// then, so its schedule does not advance, and its webhook would be sent once per lease for
    /// ever.
    async fn put_off(&self, delivery: &ClaimedDelivery, refused: Option<pg::Error>) {
        let Some(error) = refused else { return };
        let ids = LogIds::of(delivery);
        tracing::error!(
            topup.id = ids.topup, event.id = ids.event, partner.id = %delivery.partner_id, %error,
            "the database refuses the outcome of a delivery, for example because its row is \
             damaged; it is attempted again after half of its age, at least a minute and at most a \
             day, until the cause is removed"
        );
        let put_off = self
            .database
            .run(async |connection| deliveries::put_off(connection, delivery.id).await);
        if let Err(error) = put_off.await {
            let ids = LogIds::of(delivery);
            tracing::error!(
                topup.id = ids.topup, event.id = ids.event, %error,
                "cannot put the delivery off; it is attempted again when its lease, or its first \
                 lease, ends"
            );
        }
    }

    /// How long after this attempt the next one is made; `None` if none is. The schedule decides,
    /// except that nothing is left to send once a profile is erased, and that a [test](is_test) is
    /// never retried. `attempts_of_schedule` is the number of attempts before this one.
    fn retry_in(
        &self,
        delivery: &ClaimedDelivery,
        exchange: &ExchangeResult,
        attempts_of_schedule: u32,
    ) -> Option<Duration> {
        let is_over = match exchange {
            Ok(reply) => is_mail(delivery) && mail::refused_for_good(reply.status),
            Err(failure) => matches!(failure, AttemptFailure::Erased | AttemptFailure::NoChannel),
        };
        if is_over || is_test(delivery) {
            return None;
        }
        let schedule = &self.settings.schedule;
        schedule.retry_in(attempts_of_schedule, exchange.as_ref().ok(), rand::random())
    }

    /// Defers a delivery whose host had no free permit. Its lane is known now, so as due work it
    /// waits for a permit in the right queue. A leased delivery has a row of due work already,
    /// which is put back; another one gets a row.
    async fn make_due(&self, delivery: &ClaimedDelivery) {
        let id = std::slice::from_ref(&delivery.id);
        let made_due = if delivery.leased {
            self.database
                .run(async |connection| deliveries::put_back(connection, id).await)
                .await
        } else {
            // The claim has fanned it out already.
            self.database
                .run(async |connection| deliveries::defer(connection, id).await)
                .await
                .map(|_| ())
        };
        if let Err(error) = made_due
            && let Some(others) = outage::DATABASE.line(error.is_transient())
        {
            let ids = LogIds::of(delivery);
            tracing::error!(
                topup.id = ids.topup, event.id = ids.event, %error, others,
                "cannot defer the delivery; it is attempted when its lease, or its first lease, \
                 ends"
            );
        }
    }

    /// The beginning of a response that did not acknowledge the webhook, for the record of the
    /// attempt. It is encrypted, because an endpoint may echo the webhook with its activation code.
    fn sealed_response_start(
        &self,
        delivery: &ClaimedDelivery,
        response: &EndpointResponse,
    ) -> Option<Vec<u8>> {
        // The response to a test is kept in any case, because the partner wants to see it.
        if (response.acknowledges() && !is_test(delivery)) || response.beginning.is_empty() {
            return None;
        }
        let purpose = Purpose::Response(delivery.id, delivery.ended_attempts);
        self.vault
            .seal(purpose, &response.beginning)
            .inspect_err(|error| {
                tracing::error!(
                    %error,
                    "the response of an endpoint cannot be encrypted, so it is not stored"
                );
            })
            .ok()
    }

    /// Sends one request, signed with the current time. An error that is not the endpoint's, for
    /// example a profile that cannot be decrypted, is also an attempt: it is recorded and retried.
    async fn attempt(
        &self,
        delivery: &ClaimedDelivery,
        endpoint: &PreparedEndpoint,
        now: OffsetDateTime,
    ) -> ExchangeResult {
        let url = endpoint.url.as_ref().map_err(|error| *error)?;
        let content = self.content(delivery).await?;
        if is_mail(delivery) {
            return self.mail(delivery, &content, now).await;
        }
        let (body, kind) = self.body(delivery.partner_id, &content)?;
        let secrets = endpoint
            .secrets
            .as_ref()
            .map_err(|error| AttemptFailure::Secret(error.clone()))?;
        let span = request_span(url, delivery.ended_attempts);
        let traceparent = trace::context_of(&span).or_else(|| passed_on(delivery));
        let own = endpoint
            .headers
            .as_ref()
            .map_err(|error| AttemptFailure::Headers(error.clone()))?;
        let headers = webhook::headers(
            own,
            &delivery.webhook_id(),
            kind,
            now.unix_timestamp(),
            &body,
            Signers {
                secrets,
                keys: self.vault.webhook_keys().signing(),
            },
            traceparent.as_deref(),
        )
        .map_err(|_| AttemptFailure::Unwritable)?;
        let received = self
            .transports
            .sender
            .post(url.clone(), headers, body, now)
            .instrument(span.clone())
            .await;
        record_response(&span, &received);
        let mut response = received?;
        response.proves = response.acknowledges()
            && matches!(content.as_ref(), DeliveryContent::Event(event)
                if event.subject.is_proved_by(&response.beginning));
        Ok(response)
    }

    /// The content as it is sent. The code of a test, and that which verifies a channel for
    /// notices, are made here, anew for each attempt. Of the latter only the digest is stored,
    /// before the code leaves. So no database and no other process ever holds a code.
    async fn content<'a>(
        &self,
        delivery: &'a ClaimedDelivery,
    ) -> Result<Cow<'a, DeliveryContent>, AttemptFailure> {
        let DeliveryContent::Event(event) = &delivery.content else {
            return Ok(Cow::Borrowed(&delivery.content));
        };
        if matches!(event.subject, Subject::WebhookTest { .. }) {
            let challenge = code::generate().map_err(|_| AttemptFailure::Unwritable)?;
            return Ok(Cow::Owned(DeliveryContent::Event(EventContent {
                created_at: event.created_at,
                subject: Subject::WebhookTest {
                    challenge: Some(challenge),
                },
                kept: Kept::default(),
                price: None,
            })));
        }
        let Subject::Notice {
            kind: kind @ NoticeKind::Verify,
            notice,
        } = &event.subject
        else {
            return Ok(Cow::Borrowed(&delivery.content));
        };
        let channel = delivery.endpoint.id;
        let code = code::generate().map_err(|_| AttemptFailure::Unwritable)?;
        let digest = code::digest(channel.uuid().as_bytes(), &code);
        let noted = self
            .database
            .run(async |connection| notices::note_code(connection, channel, &digest).await)
            .await
            .map_err(AttemptFailure::Code)?;
        if !noted {
            return Err(AttemptFailure::NoChannel);
        }
        let notice = NoticeContent {
            code: Some(code),
            ..notice.clone()
        };
        let subject = Subject::Notice {
            kind: *kind,
            notice,
        };
        Ok(Cow::Owned(DeliveryContent::Event(EventContent {
            created_at: event.created_at,
            subject,
            kept: Kept::default(),
            price: None,
        })))
    }

    /// Mails a notice. The status of the response is the reply code of the relay.
    async fn mail(
        &self,
        delivery: &ClaimedDelivery,
        content: &DeliveryContent,
        now: OffsetDateTime,
    ) -> ExchangeResult {
        let mailer = self
            .transports
            .mailer
            .as_ref()
            .ok_or(AttemptFailure::NoRelay)?;
        let target = delivery.target.url.as_deref().unwrap_or_default();
        let to = EmailAddress::of_target(target).ok_or(NoResponse::BadUrl)?;
        // Nothing but notices goes to e-mail addresses.
        let DeliveryContent::Event(EventContent {
            subject: Subject::Notice { kind, notice },
            ..
        }) = content
        else {
            return Err(AttemptFailure::Unwritable);
        };
        let mail = Mail {
            id: &delivery.webhook_id(),
            to: &to,
            subject: &mail_text::subject(*kind, notice),
            text: &mail_text::text(*kind, notice, &delivery.target.environment),
            at: now,
        };
        Ok(mailer.send(&mail).await?)
    }

    /// Makes the body of the webhook. The second part is the kind of an event; it is `None` for the
    /// specified webhook.
    fn body(
        &self,
        partner: PartnerId,
        content: &DeliveryContent,
    ) -> Result<(Vec<u8>, Option<&'static str>), AttemptFailure> {
        let (body, kind) = match content {
            DeliveryContent::Esim(esim) if esim.erased => return Err(AttemptFailure::Erased),
            DeliveryContent::Esim(esim) => {
                let profile = Profile::open(&self.vault, partner, &esim.topup_id, &esim.profile)
                    .map_err(AttemptFailure::Profile)?;
                let order = &esim.external_order_id;
                let qr = &self.settings.qr;
                let body = WebhookBody::new(
                    &esim.topup_id,
                    &esim.agreed,
                    order,
                    &esim.iccid,
                    &profile,
                    qr,
                );
                (serde_json::to_vec(&body), None)
            }
            DeliveryContent::Event(event) => {
                let body = serde_json::to_vec(&event::EventBody::new(event));
                (body, Some(event.subject.name()))
            }
        };
        Ok((body.map_err(|_| AttemptFailure::Unwritable)?, kind))
    }
}

/// Whether the delivery is a test of the endpoint. A test has one attempt only, because a retry
/// would not show the state of the endpoint at the time when the partner asked.
fn is_test(delivery: &ClaimedDelivery) -> bool {
    matches!(&delivery.content, DeliveryContent::Event(event) if matches!(event.subject, Subject::WebhookTest { .. }))
}

/// Whether the delivery goes to an e-mail address.
fn is_mail(delivery: &ClaimedDelivery) -> bool {
    delivery
        .target
        .url
        .as_deref()
        .is_some_and(webhooks::mail::is_mail)
}

//! The claim of deliveries: it takes the leases of due ones, and reads everything that their
//! webhooks need. The module `deliver` of the notifier calls [`claim`] with the deliveries that got
//! permits.
//!
//! Nothing relies on a claim being exclusive, because a webhook may be sent twice. The lease of a
//! due delivery makes that rare. What a claim does guarantee is that it returns no delivery to an
//! endpoint that is blocked at that time, except for its probe and for tests. A delivery that it
//! leaves out for this reason has due work afterwards, so it is sent as soon as the block ends.

use std::{sync::Arc, time::Duration};

use domain::{
    Agreed, DeliveryId, EndpointId, EndpointKey, OrderId, PartnerId, StoredAgreed, TopupId,
    WebhookId,
};
use pg::{Error, Result, age, retry_conflicts, seconds, unsigned};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    defer,
    events::{self, EventContent, Kept, Subject, SubjectColumns},
    put_back, uuids,
};

/// A claimed delivery.
#[derive(Clone, Debug)]
pub struct ClaimedDelivery {
    pub id: DeliveryId,
    pub partner_id: PartnerId,
    /// The endpoint that the webhook goes to. The URL, the headers and the secrets are its own.
    pub endpoint: EndpointKey,
    /// Whether this claim holds the lease of its due work. Otherwise the delivery is within its
    /// first lease, and usually has no due work.
    pub leased: bool,
    pub target: Arc<DeliveryTarget>,
    /// The number of ended attempts.
    pub ended_attempts: u32,
    /// The number of attempts before the current schedule; a resend starts a new schedule.
    pub schedule_start: u32,
    pub content: DeliveryContent,
}

/// Where webhooks to an endpoint go, and what signs them, as a claim has read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryTarget {
    pub url: Option<String>,
    pub host: Option<String>,
    /// The sealed headers that every request to this endpoint carries.
    pub headers: Option<Vec<u8>>,
    /// The sealed webhook-signing keys that are valid, the newest first. During the overlap of a
    /// rotation there are two.
    pub secrets: Vec<Vec<u8>>,
    /// The partner's environment: `live`, `sandbox`.
    pub environment: String,
}

/// How long a target holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The [configuration version](accounts::options::configuration_version) at which it was read.
    /// At another one the endpoint may have another URL or other secrets, be blocked or paused, or
    /// be gone.
    pub configuration_version: i64,
    /// When the old secret of a rotation ends, by the clock of the database; `None` if there is
    /// none.
    pub until: Option<OffsetDateTime>,
}

impl ClaimedDelivery {
    /// The `webhook-id` that the partner sees. It is the same in every attempt, so that the partner
    /// can recognise a repeat.
    pub fn webhook_id(&self) -> WebhookId {
        match &self.content {
            DeliveryContent::Esim(esim) => WebhookId::Topup(esim.topup_id.clone()),
            DeliveryContent::Event(_) => WebhookId::Event(self.id),
        }
    }
}

#[derive(Clone, Debug)]
pub enum DeliveryContent {
    /// A ready topup: the specified webhook.
    Esim(EsimContent),
    Event(EventContent),
}

#[derive(Clone, Debug)]
pub struct EsimContent {
    pub topup_id: TopupId,
    pub order_id: OrderId,
    pub external_order_id: String,
    pub agreed: Agreed,
    pub iccid: String,
    /// The sealed profile; empty if it was erased.
    pub profile: Vec<u8>,
    /// Whether the profile was erased, so that there is nothing to send.
    pub erased: bool,
    /// The time since the order was stored.
    pub age: Duration,
    /// The time since the unit was ready.
    pub ready_age: Duration,
    /// W3C trace context of the order's POST.
    pub traceparent: Option<String>,
}

/// How deliveries are claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryClaim {
    /// First attempts of deliveries that readiness events name, if they are `younger_than` this.
    /// Such a delivery still belongs to its message, and a whole attempt fits into the rest of its
    /// first lease.
    ///
    /// Nothing is written, which makes this claim cheap, but a fresh claim does not exclude another
    /// one. If the event of a delivery comes twice, both claims return it until the first attempt
    /// is recorded, and the webhook may go out twice with the same `webhook-id`.
    Fresh { younger_than: Duration },
    /// Deliveries with due work. The claim first takes their leases, so that no other process
    /// attempts them until `lease` has passed.
    Due { lease: Duration },
}

/// The result of a claim.
#[derive(Clone, Debug, Default)]
pub struct ClaimResult {
    /// The deliveries to attempt now.
    pub deliveries: Vec<ClaimedDelivery>,
    /// Deliveries to first endpoints whose partner has further endpoints, which may want the same
    /// topup. The caller passes them to [`fan_out`](super::fan_out()), or else the sweep does. They
    /// need not be among [`Self::deliveries`]: a blocked first endpoint must not stop the others.
    pub to_fan_out: Vec<DeliveryId>,
    /// The first endpoints that [`claim_known`](super::claim_known) may use, because they are not
    /// blocked and their partners have no further endpoints.
    pub targets: Vec<(EndpointId, Arc<DeliveryTarget>, Validity)>,
}

/// Claims pending deliveries, and reads what their webhooks need. A delivery of a blocked endpoint
/// is not returned, unless it is the probe or a test. It gets due work at once, so that it goes out
/// when the block ends, and is counted until then. A delivery whose due work another process has
/// leased is not returned either.
///
/// Due work of a delivery that is no longer pending is deleted, and so is an event that has become
/// pointless. A row that cannot be read is logged and skipped, and is tried again when its lease
/// ends.
pub async fn claim(
    connection: &mut PgConnection,
    ids: &[DeliveryId],
    claim: DeliveryClaim,
) -> Result<ClaimResult> {
    let ids = uuids(ids);
    match claim {
        DeliveryClaim::Fresh { younger_than } => {
            let mut rows = read(connection, &ids, Some(younger_than)).await?;
            let to_fan_out = rows.to_fan_out();
            let blocked = rows.take_blocked();
            if !blocked.is_empty() {
                defer(connection, &blocked).await?;
            }
            Ok(rows.claimed(false, to_fan_out))
        }
        DeliveryClaim::Due { lease } => {
            let leased = take_leases(connection, &ids, lease).await?;
            if leased.is_empty() {
                return Ok(ClaimResult::default());
            }
            let mut rows = match read(connection, &leased, None).await {
                Ok(rows) => rows,
                Err(error) => {
                    // Otherwise they would wait for the end of leases that nobody uses.
                    let ids: Vec<DeliveryId> = leased.into_iter().map(DeliveryId::from).collect();
                    if let Err(error) = put_back(connection, &ids).await {
                        tracing::warn!(%error, "cannot put back deliveries that cannot be read");
                    }
                    return Err(error);
                }
            };
            let to_fan_out = rows.to_fan_out();
            // An error must not lose the leases of the deliveries that are returned.
            if let Err(error) = let_go(connection, &leased, &mut rows).await {
                tracing::warn!(
                    %error,
                    "cannot put off deliveries that are blocked or need not be sent; they are \
                     looked at again when their leases end"
                );
            }
            Ok(rows.claimed(true, to_fan_out))
        }
    }
}

/// Takes the leases of due deliveries, except of those that another process has leased meanwhile.
/// Returns the leased ones.
///
/// - `free` locks the rows that are still due and whose endpoint is not blocked, and says for each
///   whether a block of its endpoint has ended. The row of a test has the time `-infinity`, which
///   marks it as allowed during a block.
/// - `probe` picks one delivery for each endpoint whose block has ended: the one that has been due
///   longest.
/// - `probing` makes that delivery the probe of its endpoint, and blocks the endpoint for the
///   others until the lease of the probe ends. It checks the block again, because of two claims at
///   the same moment only one may choose the probe.
/// - The last step takes the leases of the probes, and of all deliveries whose endpoint was not
///   blocked. The other deliveries of an endpoint whose block has ended stay due.
async fn take_leases(
    connection: &mut PgConnection,
    ids: &[Uuid],
    lease: Duration,
) -> Result<Vec<Uuid>> {
    let query = sqlx::query_scalar!(
        r#"WITH free AS MATERIALIZED (
               -- The endpoint may have been blocked while the delivery waited for a permit. Such a
               -- delivery stays due; only a test is sent to a blocked endpoint.
               -- The lane of such a row is the id of a further endpoint. It is empty for the first one, whose id
               -- is that of the partner. (The lanes of permits in the notifier are hosts.)
               SELECT w.id, coalesce(nullif(w.lane, '')::uuid, w.partner_id) AS endpoint_id, w.at,
                      e.blocked_until <= now() AS block_ended
               FROM work w
               LEFT JOIN partner_endpoints e ON e.endpoint_id = coalesce(nullif(w.lane, '')::uuid, w.partner_id)
               WHERE w.id = ANY ($1) AND w.at <= now()
                 AND (e.blocked_until IS NULL OR e.blocked_until <= now() OR w.at = '-infinity')
               FOR UPDATE OF w SKIP LOCKED
           ), probe AS MATERIALIZED (
               SELECT DISTINCT ON (endpoint_id) id, endpoint_id FROM free WHERE block_ended
               ORDER BY endpoint_id, at, id
           ), probing AS (
               -- An endpoint whose block has ended gets one delivery as a probe, and no other one until
               -- the probe's lease ends.
               UPDATE partner_endpoints e SET blocked_until = now() + make_interval(secs => $2), probe = probe.id
               FROM probe
               WHERE e.endpoint_id = probe.endpoint_id AND e.blocked_until <= now()
           )
           UPDATE work SET at = now() + make_interval(secs => $2)
           WHERE id = ANY (ARRAY (
               SELECT id FROM free WHERE block_ended IS NOT TRUE UNION ALL SELECT id FROM probe))
           RETURNING id"#,
        ids,
        seconds(lease),
    );
    Ok(query.fetch_all(connection).await?)
}

/// Takes the leased deliveries out of `rows` that must not be attempted now, and corrects their due
/// work: blocked ones are due when the block ends, which began after the leases were taken. What
/// has ended or become pointless needs no further work.
async fn let_go(connection: &mut PgConnection, leased: &[Uuid], rows: &mut Rows) -> Result<()> {
    let some_have_ended = rows.rows.len() < leased.len();
    let pointless = rows.take_pointless();
    let blocked = rows.take_blocked();
    if !blocked.is_empty() {
        put_back(connection, &blocked).await?;
    }
    if some_have_ended {
        delete_finished_work(connection, leased).await?;
    }
    if !pointless.is_empty() {
        events::delete(connection, &pointless).await?;
    }
    Ok(())
}

/// Deletes the work of deliveries that have ended, for example at a first attempt that outlived its
/// first lease, or that were deleted.
///
/// `current` locks the deliveries, in the order of their ids to avoid deadlocks,
/// and the `DELETE` judges their state under the lock. Otherwise it could delete the work of a
/// delivery that becomes pending again meanwhile, because its partner has set a webhook URL or an
/// operator resends it, and nothing would ever attempt that delivery.
async fn delete_finished_work(connection: &mut PgConnection, ids: &[Uuid]) -> Result<()> {
    retry_conflicts!(async {
        let statement = sqlx::query!(
            "WITH current AS MATERIALIZED (
                 SELECT delivery_id, state FROM deliveries WHERE delivery_id = ANY ($1)
                 ORDER BY delivery_id
                 FOR SHARE
             )
             DELETE FROM work
             WHERE id = ANY ($1) AND id <> ALL (ARRAY (SELECT delivery_id FROM current WHERE state = 'pending'))",
            ids,
        );
        statement.execute(&mut *connection).await?;
        Ok::<_, Error>(())
    })
}

/// A row of the result: a delivery with everything that its webhook may need, whatever its kind.
/// Columns that other kinds do not have are null.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is the answer of the statement to a question of its own"
)]
struct Row {
    delivery_id: Uuid,
    partner_id: Uuid,
    endpoint_id: Option<Uuid>,
    kind: String,
    created_at: OffsetDateTime,
    attempt: i32,
    schedule_start: i32,
    credential: Option<String>,
    ends_at: Option<OffsetDateTime>,
    notice: Option<String>,
    topup_id: Option<String>,
    order_id: Option<Uuid>,
    external_order_id: Option<String>,
    option_id: Option<Uuid>,
    terms: Option<String>,
    metadata: Option<String>,
    order_metadata: Option<String>,
    traceparent: Option<String>,
    age: Option<f64>,
    iccid: Option<String>,
    profile: Option<Vec<u8>>,
    erased: bool,
    ready_age: Option<f64>,
    refusal_status: Option<String>,
    refusal_message: Option<String>,
    pointless: bool,
    blocked: bool,
    fans_out: bool,
    configuration_version: i64,
    reusable: bool,
    old_secret_until: Option<OffsetDateTime>,
    environment: String,
    url: Option<String>,
    host: Option<String>,
    headers: Option<Vec<u8>>,
    secrets: Vec<Vec<u8>>,
}

/// Reads pending deliveries with what their webhooks need. With `younger_than` it reads only
/// webhooks of eSIMs that are younger and were never attempted, which is the claim of fresh ones;
/// without it, deliveries that are leased. Of events only their work says when they are due.
///
/// Every delivery belongs to a partner. All other tables are joined from the left, because an
/// endpoint may have been deleted, and only some kinds of deliveries have an order, a topup or an
/// eSIM. A delivery that names an endpoint or an order of another partner is read as if these were
/// gone, so a role that may only insert deliveries sends nothing of one partner to another one. The
/// profile of a topup opens for its own partner only. Some columns are answers to a question:
///
/// - `pointless`: the delivery need no longer be sent.
/// - `blocked`: its endpoint is blocked for it. The block may have begun after the delivery was
///   queued.
/// - `fans_out`: further endpoints may want the same topup.
/// - `reusable`: the [lean claim](super::claim_known()) may use the endpoint as it is read here.
async fn read(
    connection: &mut PgConnection,
    ids: &[Uuid],
    younger_than: Option<Duration>,
) -> Result<Rows> {
    let rows = sqlx::query_as!(
        Row,
        r#"SELECT d.delivery_id, d.partner_id, d.endpoint_id, d.kind, d.created_at, d.attempt, d.schedule_start,
                  d.credential, d.ends_at, d.notice::text AS notice, d.topup_id, d.order_id,
                  o.external_order_id AS "external_order_id?", t.option_id AS "option_id?", t.terms AS "terms?", o.traceparent,
                  -- The specified webhook has no room for it.
                  CASE WHEN d.kind <> 'topup.ready' THEN t.metadata END AS metadata,
                  CASE WHEN d.kind <> 'topup.ready' THEN o.metadata END AS order_metadata,
                  extract(epoch FROM now() - o.created_at)::float8 AS age,
                  e.iccid, e.profile, e.erased_at IS NOT NULL AS "erased!",
                  extract(epoch FROM now() - e.ready_at)::float8 AS ready_age,
                  l.refusal_status, l.refusal_message,
                  -- The endpoint was deleted or no longer wants the event, its order was refused or its
                  -- topup is ready after all, or a test or a code for notices could not be sent in time.
                  n.endpoint_id IS NULL
                  OR CASE d.kind
                      WHEN 'topup.ready' THEN false
                      WHEN 'webhook.test' THEN d.created_at < now() - interval '5 minutes'
                      WHEN 'notice.verify' THEN n.verified_at IS NOT NULL OR d.created_at < now() - interval '30 minutes'
                      ELSE is_pointless(d.kind, n.events, d.topup_id, l.order_id = o.order_id, o.refused_at, t.state, e.ready_at)
                  END AS "pointless!",
                  -- A blocked endpoint gets its probe, and tests unless it is paused.
                  NOT (n.blocked_until IS NULL
                       OR ($2::float8 IS NULL AND (n.probe = d.delivery_id
                                           OR (d.kind = 'webhook.test' AND n.blocked_until < 'infinity'))) IS TRUE)
                      AS "blocked!",
                  p.has_further_endpoints AND d.kind = 'topup.ready' AND d.endpoint_id IS NULL AND d.attempt = 0
                      AS "fans_out!",
                  -- Triggers raise it, by `configuration_changed`, with each change of what is read here of the endpoint.
                  (SELECT version FROM system) AS "configuration_version!",
                  (n.endpoint_id IS NOT NULL AND n.blocked_until IS NULL AND NOT p.has_further_endpoints)
                      AS "reusable!",
                  CASE WHEN n.secret_ends[2] > now() THEN n.secret_ends[2] END AS old_secret_until,
                  p.environment, n.headers AS "headers?", n.url AS "url?", n.host AS "host?",
                  -- Those that have not ended; the newest one has no end.
                  coalesce(CASE WHEN n.secret_ends[2] > now() THEN n.secrets ELSE n.secrets[:1] END, '{}') AS "secrets!"
           FROM deliveries d
           JOIN partners p ON p.partner_id = d.partner_id
           LEFT JOIN partner_endpoints n ON n.endpoint_id = coalesce(d.endpoint_id, d.partner_id)
                                              AND n.partner_id = d.partner_id
           LEFT JOIN orders o ON o.order_id = d.order_id AND o.partner_id = d.partner_id
           LEFT JOIN topups t ON t.topup_id = d.topup_id
           LEFT JOIN esims e ON e.topup_id = d.topup_id
           LEFT JOIN placements l ON l.placement_id = t.placement_id AND d.kind <> 'topup.ready'
           WHERE d.delivery_id = ANY ($1) AND d.state = 'pending'
             AND ($2::float8 IS NULL
                  OR (d.kind = 'topup.ready' AND d.attempt = 0 AND d.created_at > now() - make_interval(secs => $2)))"#,
        ids,
        younger_than.map(seconds),
    );
    Ok(Rows {
        rows: rows.fetch_all(connection).await?,
    })
}

struct Rows {
    rows: Vec<Row>,
}

impl Rows {
    /// The deliveries whose topup further endpoints may want, too.
    fn to_fan_out(&self) -> Vec<DeliveryId> {
        let rows = self.rows.iter().filter(|row| row.fans_out);
        rows.map(|row| row.delivery_id.into()).collect()
    }

    /// Takes out the deliveries of blocked endpoints, and returns their ids.
    fn take_blocked(&mut self) -> Vec<DeliveryId> {
        let blocked = self.rows.extract_if(.., |row| row.blocked);
        blocked.map(|row| row.delivery_id.into()).collect()
    }

    /// Takes out the deliveries that need no longer be sent, and returns their ids.
    fn take_pointless(&mut self) -> Vec<Uuid> {
        let pointless = self.rows.extract_if(.., |row| row.pointless);
        pointless.map(|row| row.delivery_id).collect()
    }

    fn claimed(self, leased: bool, to_fan_out: Vec<DeliveryId>) -> ClaimResult {
        let mut claimed = ClaimResult {
            to_fan_out,
            ..ClaimResult::default()
        };
        for row in self.rows {
            let validity = row.validity();
            let Some(delivery) = row.into_delivery(leased) else {
                continue;
            };
            if let Some(validity) = validity
                && delivery.endpoint.is_first()
            {
                let target = Arc::clone(&delivery.target);
                claimed
                    .targets
                    .push((delivery.endpoint.id, target, validity));
            }
            claimed.deliveries.push(delivery);
        }
        claimed
    }
}

impl Row {
    /// How long the target holds; `None` if it must not be used again.
    fn validity(&self) -> Option<Validity> {
        self.reusable.then_some(Validity {
            configuration_version: self.configuration_version,
            until: self.old_secret_until,
        })
    }

    fn into_delivery(mut self, leased: bool) -> Option<ClaimedDelivery> {
        let content = if self.kind == "topup.ready" {
            self.esim().map(DeliveryContent::Esim)
        } else {
            let price = events::price_of(&self.kind, self.terms.as_deref(), self.notice.as_deref());
            let columns = self.subject_columns();
            let kept = Kept::read(self.metadata.as_deref(), self.order_metadata.as_deref());
            let subject = Subject::read(&self.kind, columns);
            subject.map(|subject| {
                DeliveryContent::Event(EventContent {
                    created_at: self.created_at,
                    subject,
                    kept,
                    price,
                })
            })
        };
        let Some(content) = content else {
            tracing::error!(
                delivery.id = %self.delivery_id, partner.id = %self.partner_id, kind = self.kind,
                "a delivery cannot be read, so it is not sent now and is tried again after its lease; a notifier of a newer \
                 version may have written it, and otherwise its row is damaged"
            );
            return None;
        };
        Some(ClaimedDelivery {
            id: self.delivery_id.into(),
            partner_id: self.partner_id.into(),
            endpoint: EndpointKey::stored(self.partner_id, self.endpoint_id),
            leased,
            target: Arc::new(DeliveryTarget {
                url: self.url,
                host: self.host,
                headers: self.headers,
                secrets: self.secrets,
                environment: self.environment,
            }),
            ended_attempts: unsigned(self.attempt),
            schedule_start: unsigned(self.schedule_start),
            content,
        })
    }

    fn esim(&mut self) -> Option<EsimContent> {
        let agreed = StoredAgreed {
            option_id: self.option_id?.into(),
            terms: self.terms.take(),
        };
        Some(EsimContent {
            topup_id: self.topup_id.take()?.parse().ok()?,
            order_id: self.order_id?.into(),
            external_order_id: self.external_order_id.take()?,
            agreed: agreed.read().ok()?,
            // These are null only if the data is damaged or the profile erased. Then opening the
            // empty profile fails, and only this delivery fails with it.
            iccid: self.iccid.take().unwrap_or_default(),
            profile: self.profile.take().unwrap_or_default(),
            erased: self.erased,
            age: age(self.age.unwrap_or_default()),
            ready_age: age(self.ready_age.unwrap_or_default()),
            traceparent: self.traceparent.take(),
        })
    }

    fn subject_columns(&mut self) -> SubjectColumns {
        SubjectColumns {
            topup_id: self.topup_id.take(),
            external_order_id: self.external_order_id.take(),
            option_id: self.option_id,
            refusal_status: self.refusal_status.take(),
            refusal_message: self.refusal_message.take(),
            credential: self.credential.take(),
            ends_at: self.ends_at,
            notice: self.notice.take(),
        }
    }
}

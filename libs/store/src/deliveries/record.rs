//! Records attempts of deliveries that have ended, and their effect on the endpoints. The notifier
//! calls [`record`] in its group commit.
//!
//! Guarantee: the first result of an attempt counts, and an acknowledgement counts even if it comes
//! late, because the partner then has the webhook. A delivery, its due work and its row in `held`
//! change in one statement, so a delivery that is still to be attempted always has due work, or is
//! within its first lease.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Duration,
};

use domain::{DeliveryId, EndpointId, WebhookId, endpoint::BlockPolicy, event::NoticeKind};
use pg::{Error, Result, TransactionEnd, retry_conflicts, seconds, signed, transaction};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    endpoints::{self, FailedAttempts},
    notices::{self, HealthChange, NoticeContent, NoticeCounts},
};

/// One ended attempt.
#[derive(Clone, Debug)]
pub struct EndedAttempt {
    pub id: DeliveryId,
    /// The endpoint that was attempted.
    pub endpoint_id: EndpointId,
    /// The delivery is an event. Unlike for a topup, its acknowledged attempts are stored, too.
    pub is_event: bool,
    /// Whether the claim held the lease of due work, so that the record must move or delete that
    /// work.
    pub leased: bool,
    /// The number of attempts that ended before this one.
    pub ended_attempts: u32,
    /// The schedule that the claim found, see [`super::ClaimedDelivery::schedule_start`].
    pub schedule_start: u32,
    /// When the attempt began.
    pub at: OffsetDateTime,
    pub duration: Duration,
    /// The HTTP status of the response, if one arrived.
    pub status: Option<u16>,
    /// The class of the result, as one word.
    pub class: &'static str,
    /// What was wrong, if no readable response arrived. It is our text and holds neither the URL
    /// nor anything of the response.
    pub detail: Option<String>,
    /// The endpoint has returned the code of a test, which proves that its host wants webhooks.
    pub proves: bool,
    /// The start of the response body, sealed; only if the endpoint did not acknowledge.
    pub response_start: Option<Vec<u8>>,
    pub result: AttemptResult,
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub enum AttemptResult {
    Delivered,
    Failed {
        /// The cause, without the URL and without response text.
        error: String,
        /// The delay until the next attempt; `None` after the end of the schedule.
        retry_in: Option<Duration>,
        /// The delay if this attempt turns out to be the first of its schedule, because the partner
        /// had the webhook sent again while it was in flight (`desk::self_service::send_again`);
        /// `None` if nothing is tried again in any case.
        retry_if_resent: Option<Duration>,
        /// Whether the endpoint failed; false if the webhook could not be built.
        endpoint_failed: bool,
    },
}

impl EndedAttempt {
    fn is_delivered(&self) -> bool {
        matches!(self.result, AttemptResult::Delivered)
    }

    /// Whether it is an acknowledged first attempt of a topup without due work. Usually nothing but
    /// the delivery's own row changes then, and [`record_acknowledged`] suffices.
    pub fn is_plain(&self) -> bool {
        self.is_delivered() && self.ended_attempts == 0 && !self.leased && !self.is_event
    }
}

/// Records a batch of attempts and their effect on the endpoints.
///
/// If another process has recorded a result of the attempt first, this result changes nothing,
/// except that an acknowledged delivery becomes delivered. Recording the same batch again, for
/// example because the answer of the server was lost, changes only the count of failures that may
/// block an endpoint.
///
/// Most batches contain only acknowledged first attempts, and cost one statement. The statements
/// are separate transactions. If the process dies between them, the failures of an endpoint are
/// counted late, which only delays its block.
///
/// What a partner is told of a change is created in the transaction of the change. Returns these
/// notices. A partner gets at most `notices_per_day` of them within 24 hours; those beyond it are
/// left out.
pub async fn record(
    connection: &mut PgConnection,
    attempts: &[EndedAttempt],
    policy: &BlockPolicy,
    notices_per_day: u32,
) -> Result<NoticeCounts> {
    let mut effects = Effects::of(attempts);
    let mut made = NoticeCounts::default();
    let plain: Vec<&EndedAttempt> = attempts
        .iter()
        .filter(|attempted| attempted.is_plain())
        .collect();
    let mut recorded = HashSet::new();
    if !plain.is_empty() {
        for row in retry_conflicts!(record_acknowledged(&mut *connection, &plain))? {
            recorded.insert(row.delivery_id);
            if row.endpoint_recovers {
                effects.recovered.insert(row.endpoint_id);
            }
        }
    }
    let others: Vec<&EndedAttempt> = attempts
        .iter()
        // Another attempt of the same delivery may be in the batch, because its event came twice.
        .filter(|attempted| !(attempted.is_plain() && recorded.contains(&attempted.id.uuid())))
        .collect();
    if !others.is_empty() {
        made += record_others(connection, &others, notices_per_day).await?;
        let delivered = others.iter().filter(|attempted| attempted.is_delivered());
        effects
            .recovered
            .extend(delivered.map(|attempted| attempted.endpoint_id.uuid()));
    }
    let proven = attempts.iter().filter(|attempted| attempted.proves);
    let proven: Vec<Uuid> = proven
        .map(|attempted| attempted.endpoint_id.uuid())
        .collect();
    if !proven.is_empty() {
        retry_conflicts!(endpoints::prove(&mut *connection, &proven))?;
    }
    if !effects.recovered.is_empty() {
        let recovered: Vec<Uuid> = effects.recovered.into_iter().collect();
        made += transaction!(connection, "record::recovered", |transaction| -> Result<
            NoticeCounts,
            Error,
        > {
            let changes = endpoints::forget_failures(transaction, &recovered).await?;
            let told = notices::about(transaction, &changes, notices_per_day).await?;
            Ok(TransactionEnd::Commit(told))
        })?;
    }
    if !effects.failed.is_empty() && policy.failures > 0 {
        let failed = &effects.failed;
        made += transaction!(connection, "record::failed", |transaction| -> Result<
            NoticeCounts,
            Error,
        > {
            let changes = endpoints::count_failures(transaction, failed, policy).await?;
            let told = notices::about(transaction, &changes, notices_per_day).await?;
            Ok(TransactionEnd::Commit(told))
        })?;
    }
    Ok(made)
}

/// Records attempts of any kind, and tells the partners whose first webhook is exhausted. A batch
/// in which no retries end costs one statement.
async fn record_others(
    connection: &mut PgConnection,
    attempts: &[&EndedAttempt],
    notices_per_day: u32,
) -> Result<NoticeCounts> {
    let columns = Columns::of(attempts);
    if !columns.states.contains(&"exhausted") {
        retry_conflicts!(record_any(&mut *connection, &columns))?;
        return Ok(NoticeCounts::default());
    }
    transaction!(connection, "record::record_others", |transaction| {
        let exhausted = record_any(transaction, &columns).await?;
        let mut changes = Vec::new();
        if !exhausted.is_empty() {
            let endpoints: Vec<Uuid> = exhausted.iter().map(|row| row.endpoint_id).collect();
            for endpoint in endpoints::note_exhausted(transaction, &endpoints).await? {
                let first = exhausted.iter().find(|row| row.endpoint_id == endpoint);
                changes.extend(first.map(Exhausted::told));
            }
        }
        let told = notices::about(transaction, &changes, notices_per_day).await?;
        Ok(TransactionEnd::Commit(told))
    })
}

/// What a batch says about endpoints. Both parts are sorted by endpoint, so that two notifiers wait
/// for each other's row locks instead of deadlocking.
struct Effects {
    /// Endpoints that acknowledged something, and whose failures are to be forgotten.
    recovered: BTreeSet<Uuid>,
    /// The failed attempts of each endpoint that acknowledged nothing in this batch.
    failed: BTreeMap<Uuid, FailedAttempts>,
}

impl Effects {
    fn of(attempts: &[EndedAttempt]) -> Self {
        let delivered = attempts.iter().filter(|attempted| attempted.is_delivered());
        let acknowledging: HashSet<EndpointId> =
            delivered.map(|attempted| attempted.endpoint_id).collect();
        let mut failed: BTreeMap<Uuid, FailedAttempts> = BTreeMap::new();
        for attempted in attempts {
            let has_failed = matches!(
                attempted.result,
                AttemptResult::Failed {
                    endpoint_failed: true,
                    ..
                }
            );
            if has_failed && !acknowledging.contains(&attempted.endpoint_id) {
                let of_endpoint = failed.entry(attempted.endpoint_id.uuid()).or_default();
                of_endpoint.deliveries.push(attempted.id.uuid());
                of_endpoint.class = attempted.class;
                of_endpoint.status = attempted.status.map(i32::from);
            }
        }
        Self {
            recovered: BTreeSet::new(),
            failed,
        }
    }
}

/// A webhook that [`record_any`] found exhausted.
struct Exhausted {
    delivery_id: Uuid,
    endpoint_id: Uuid,
    kind: String,
    topup_id: Option<String>,
    class: String,
    status: Option<i32>,
}

impl Exhausted {
    fn told(&self) -> HealthChange {
        // The webhook of a ready topup is named like the topup.
        let of_topup = self.topup_id.clone().filter(|_| self.kind == "topup.ready");
        let id = of_topup.unwrap_or_else(|| WebhookId::Event(self.delivery_id.into()).to_string());
        HealthChange {
            endpoint: self.endpoint_id,
            kind: NoticeKind::WebhookExhausted,
            notice: NoticeContent {
                webhook_id: Some(id),
                outcome: Some(self.class.clone()),
                status: self.status,
                ..NoticeContent::default()
            },
        }
    }
}

/// A delivery that [`record_acknowledged`] moved.
struct Acknowledged {
    delivery_id: Uuid,
    endpoint_id: Uuid,
    /// The acknowledgement ends something at the endpoint: failures that are counted, a block, or
    /// what its partner was told of it.
    endpoint_recovers: bool,
}

/// Records acknowledged first attempts of topups without due work, which are nearly all attempts. A
/// delivery that is in another state, for example because a second process attempted it meanwhile,
/// does not move here and is left to [`record_any`]. Due work that came into being meanwhile is
/// deleted by the claim that finds it.
///
/// The commit returns before the disk or a standby has stored it, because no further step depends
/// on this record. If the server dies within the next moments, these deliveries are pending again,
/// and their webhooks are repeated with the same id.
async fn record_acknowledged(
    connection: &mut PgConnection,
    attempts: &[&EndedAttempt],
) -> Result<Vec<Acknowledged>> {
    let columns = Columns::of(attempts);
    let moved = sqlx::query_as!(
        Acknowledged,
        r#"UPDATE deliveries d
           SET state = 'delivered', attempt = 1, attempted_at = new.at, duration_ms = new.duration_ms,
               status = new.status, delivered_at = now()
           FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::int[])
               AS new (delivery_id, at, duration_ms, status)
           -- Sets synchronous_commit for this transaction.
           CROSS JOIN commit_without_flush(true)
           WHERE d.delivery_id = new.delivery_id AND d.state = 'pending' AND d.attempt = 0
           RETURNING d.delivery_id, coalesce(d.endpoint_id, d.partner_id) AS "endpoint_id!",
                     (SELECT true FROM partner_endpoints e
                      WHERE e.endpoint_id = coalesce(d.endpoint_id, d.partner_id) AND (e.failures > 0 OR e.blocked_until IS NOT NULL OR e.told IS NOT NULL)
                     ) IS TRUE AS "endpoint_recovers!""#,
        &columns.ids,
        &columns.at,
        &columns.durations,
        &columns.statuses as &[Option<i32>],
    );
    Ok(moved.fetch_all(connection).await?)
}

/// Records attempts of any kind with any result.
///
/// - `new` is the batch, as a table.
/// - `moved` brings the deliveries into their new state, and returns those that changed. An attempt
///   whose schedule was begun anew while it was in flight is the first of the new one, so it is
///   followed by a retry even if it was the last of the old one. All
///   further steps but the last follow from it, so a result that came too late has no effect on
///   them.
/// - `done` deletes the due work of deliveries that have ended, and `later` sets it to the time of
///   the retry.
/// - `waiting` holds exhausted deliveries for a person, and `acknowledged` ends that for deliveries
///   that were acknowledged after all.
/// - `stored` stores the attempts themselves. A repeat of the same batch finds them there and
///   changes nothing.
/// - The last step returns the webhooks whose retries have ended now, without tests and notices,
///   because partners are not told of those.
async fn record_any(connection: &mut PgConnection, columns: &Columns) -> Result<Vec<Exhausted>> {
    let query = sqlx::query_as!(
        Exhausted,
        r#"WITH new AS MATERIALIZED (
               SELECT *
               FROM unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::int[], $5::int[], $6::text[],
                           $7::bytea[], $8::text[], $9::text[], $10::float8[], $11::bool[], $12::text[],
                           $13::int[], $14::float8[])
                   AS new (delivery_id, attempt, at, duration_ms, status, class,
                           response_start, state, error, retry_in, is_event, detail, schedule_start, retry_if_resent)
           ), moved AS (
               -- The first result of an attempt counts. An acknowledgement counts even if it is late,
               -- because the partner has the webhook, unless somebody had it sent again since then.
               UPDATE deliveries d
               SET state = CASE WHEN new.state = 'exhausted' AND d.schedule_start > new.schedule_start
                                     AND new.retry_if_resent IS NOT NULL
                                THEN 'pending' ELSE new.state END,
                   attempt = d.attempt + 1, attempted_at = new.at,
                   duration_ms = new.duration_ms, status = new.status, error = new.error,
                   delivered_at = CASE WHEN new.state = 'delivered' THEN now() END
               FROM new
               WHERE d.delivery_id = new.delivery_id
                 AND ((d.state = 'pending' AND d.attempt = new.attempt)
                      OR (new.state = 'delivered' AND d.state <> 'delivered'
                          AND new.attempt >= d.schedule_start))
               RETURNING d.delivery_id, d.partner_id, coalesce(d.endpoint_id::text, '') AS lane, d.kind,
                         coalesce(d.endpoint_id, d.partner_id) AS endpoint_id, d.topup_id, d.state,
                         CASE WHEN d.schedule_start > new.schedule_start THEN new.retry_if_resent ELSE new.retry_in END AS retry_in,
                         new.class, new.status
           ), done AS (
               -- A delivery that ended needs no work.
               DELETE FROM work WHERE id = ANY (ARRAY (SELECT delivery_id FROM moved WHERE state <> 'pending'))
           ), later AS (
               -- A retry. A first attempt has no work yet; a later one has the row that was leased.
               INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
               SELECT delivery_id, 'deliver', '', lane, partner_id, now() + make_interval(secs => retry_in)
               FROM moved WHERE state = 'pending'
               ON CONFLICT (id) DO UPDATE SET at = excluded.at
           ), waiting AS (
               -- Exhausted deliveries wait for an operator or their partner. A test does not, because it
               -- is sent once, and neither does a notice, because an old one tells nothing any more.
               INSERT INTO held AS h (id, state, provider, lane, partner_id)
               SELECT delivery_id, state, '', lane, partner_id FROM moved
               WHERE state = 'exhausted' AND kind <> 'webhook.test' AND kind NOT LIKE 'notice.%'
               ON CONFLICT (id) DO UPDATE SET state = excluded.state, at = excluded.at
           ), acknowledged AS (
               -- A late acknowledgement may find the delivery held.
               DELETE FROM held WHERE id = ANY (ARRAY (SELECT delivery_id FROM moved WHERE state = 'delivered'))
           ), stored AS (
               -- The last attempt of a delivered topup is on the delivery's own row. Attempts whose result
               -- came too late are kept, too: they were made.
               INSERT INTO delivery_attempts (delivery_id, attempt, at, duration_ms, status, class, response_start, detail)
               SELECT delivery_id, attempt, at, duration_ms, status, class, response_start, detail FROM new
               WHERE state <> 'delivered' OR is_event
               ON CONFLICT DO NOTHING
           )
           SELECT delivery_id AS "delivery_id!", endpoint_id AS "endpoint_id!", kind AS "kind!", topup_id,
                  class AS "class!", status
           FROM moved WHERE state = 'exhausted' AND kind <> 'webhook.test' AND kind NOT LIKE 'notice.%'"#,
        &columns.ids,
        &columns.attempts,
        &columns.at,
        &columns.durations,
        &columns.statuses as &[Option<i32>],
        &columns.classes as &[&str],
        &columns.response_starts as &[Option<Vec<u8>>],
        &columns.states as &[&str],
        &columns.errors as &[Option<String>],
        &columns.retries as &[Option<f64>],
        &columns.events,
        &columns.details as &[Option<String>],
        &columns.schedule_starts,
        &columns.retries_if_resent as &[Option<f64>],
    );
    Ok(query.fetch_all(connection).await?)
}

/// The attempts as the statements take them: one vector for each column.
#[derive(Default)]
struct Columns {
    ids: Vec<Uuid>,
    attempts: Vec<i32>,
    at: Vec<OffsetDateTime>,
    durations: Vec<i32>,
    statuses: Vec<Option<i32>>,
    classes: Vec<&'static str>,
    details: Vec<Option<String>>,
    response_starts: Vec<Option<Vec<u8>>>,
    states: Vec<&'static str>,
    errors: Vec<Option<String>>,
    retries: Vec<Option<f64>>,
    schedule_starts: Vec<i32>,
    retries_if_resent: Vec<Option<f64>>,
    events: Vec<bool>,
}

impl Columns {
    fn of(attempts: &[&EndedAttempt]) -> Self {
        let mut columns = Self::default();
        for attempted in attempts {
            let (state, error, retry_in, retry_if_resent) = match &attempted.result {
                AttemptResult::Delivered => ("delivered", None, None, None),
                AttemptResult::Failed {
                    error,
                    retry_in,
                    retry_if_resent,
                    ..
                } => {
                    let goes_on = retry_in.is_some();
                    let state = if goes_on { "pending" } else { "exhausted" };
                    (state, Some(error), *retry_in, *retry_if_resent)
                }
            };
            columns.ids.push(attempted.id.uuid());
            columns.attempts.push(signed(attempted.ended_attempts));
            columns.at.push(attempted.at);
            columns
                .durations
                .push(signed(attempted.duration.as_millis()));
            columns.statuses.push(attempted.status.map(i32::from));
            columns.classes.push(attempted.class);
            columns.details.push(attempted.detail.clone());
            columns
                .response_starts
                .push(attempted.response_start.clone());
            columns.states.push(state);
            columns.errors.push(error.cloned());
            columns.retries.push(retry_in.map(seconds));
            columns
                .schedule_starts
                .push(signed(attempted.schedule_start));
            columns.retries_if_resent.push(retry_if_resent.map(seconds));
            columns.events.push(attempted.is_event);
        }
        columns
    }
}

//! Resends: somebody asks for webhooks to be sent again, for example all whose retries ended while
//! an endpoint was down.
//!
//! A resend is a row that says who asked, which webhooks are meant and how far it has come. There
//! are three kinds, of one table:
//!
//! - One webhook: it is made due in the transaction that stores the row, so the row has ended.
//! - A filter of one partner: it has a row of `work`, and the notifiers work it off in batches
//!   ([`step`]). Each batch makes the next matching deliveries due and moves the position in the
//!   same transaction. The deliveries are then sent like any other ones.
//! - A filter of several partners (`desk::operator::resends`): a row without a partner, and one
//!   of the second kind for each partner that has something to send. They name it as
//!   what they are a part of.
//!
//! Guarantees:
//!
//! - Nothing is lost or done twice if a process dies: a batch and the new position commit together.
//!   Only what was being sent at that moment may be sent a second time, as always.
//! - The endpoint's own pace: at most `most_due` deliveries to each endpoint are due at a time, so
//!   a slow or blocked endpoint makes its resend wait, and its new webhooks do not wait behind
//!   thousands of old ones. Other partners have turns of their own in the looks at due work.
//! - A webhook whose attempt began after the resend is not part of it, so one that fails again
//!   keeps its schedule of retries.
//! - A partner has one running resend at most; an index enforces that.
//!
//! Ingress calls [`begin`], [`list`], [`find`] and [`cancel`] for self-service, and the notifier
//! [`step`] (from [`super::batches`]), [`running`] and [`forget`]. The partners' API calls a resend
//! a redelivery.

mod again;
mod wanted;

use std::time::Duration;

use domain::{MaybeStored, PartnerId, Stored, standing::DeliveryState};
use serde_json::json;
use sqlx::PgConnection;
use time::{OffsetDateTime, serde::rfc3339};
use uuid::Uuid;

pub use again::{DeliveryFilter, ResentCounts, resend};
use pg::{
    Result, Transaction, TransactionEnd,
    actions::{self, Action, ActionChange},
    age, count, seconds, transaction,
};
pub use wanted::{MatchCount, ResendSelection, count_matching, reach};
use wanted::{Phase, phases, start};

use super::{
    endpoints::LONGEST_LEASE,
    walk::{Kinds, Matching, Walk, WalkOrder, WalkPosition, WalkSource},
};

/// The most rows that one batch looks at.
const BATCH_LOOK: usize = 1_000;

/// A resend of the webhooks of one partner, with its progress.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PartnerResend {
    pub resend_id: Uuid,
    pub partner_id: Uuid,
    pub state: MaybeStored<DeliveryState>,
    #[serde(with = "rfc3339")]
    pub since: OffsetDateTime,
    #[serde(with = "rfc3339")]
    pub until: OffsetDateTime,
    /// How many webhooks matched when it began; `None` if they were too many to count.
    pub matching: Option<i64>,
    /// How many webhooks have been made due.
    pub resent: i64,
    #[serde(with = "rfc3339")]
    pub created_at: OffsetDateTime,
    /// `None`: it runs.
    #[serde(with = "rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// When its partner ended it early.
    #[serde(with = "rfc3339::option")]
    pub cancelled_at: Option<OffsetDateTime>,
}

/// The result of [`begin`].
#[derive(Clone, Debug)]
pub enum ResendStart {
    /// It begins now.
    Begun(PartnerResend),
    /// Another one of the partner runs: this one.
    Running(Uuid),
    /// The last one began less than the interval ago; this much time is left.
    TooSoon(Duration),
    NoEndpoint,
}

/// Begins a resend at the request of a partner, and records that. It is refused while another one
/// runs, and until `interval` has passed since the last one began, so that a webhook is not sent
/// again and again.
pub async fn begin(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    wanted: &ResendSelection,
    interval: Duration,
) -> Result<ResendStart> {
    transaction!(connection, "resends::begin", |transaction| {
        // The lock lets one request of the partner after the other pass.
        let query = sqlx::query!(
            r#"SELECT EXISTS (SELECT FROM partner_endpoints e WHERE e.partner_id = $1 AND e.url IS NOT NULL) AS "has_url!",
                  now() AS "now!"
           FROM partners WHERE partner_id = $1 FOR NO KEY UPDATE"#,
            partner_id.uuid(),
        );
        let now = match query.fetch_optional(&mut **transaction).await? {
            Some(row) if row.has_url => row.now,
            _ => return Ok(TransactionEnd::Rollback(ResendStart::NoEndpoint)),
        };
        let query = sqlx::query!(
            r#"SELECT resend_id, ended_at IS NULL AS "running!",
                  extract(epoch FROM clock_timestamp() - created_at)::float8 AS "age!"
           FROM resends WHERE partner_id = $1 AND delivery_id IS NULL ORDER BY created_at DESC LIMIT 1"#,
            partner_id.uuid(),
        );
        if let Some(last) = query.fetch_optional(&mut **transaction).await? {
            if last.running {
                return Ok(TransactionEnd::Rollback(ResendStart::Running(
                    last.resend_id,
                )));
            }
            if let Some(left) = interval
                .checked_sub(age(last.age))
                .filter(|left| !left.is_zero())
            {
                return Ok(TransactionEnd::Rollback(ResendStart::TooSoon(left)));
            }
        }
        let until = wanted.until.map_or(now, |until| until.min(now));
        let matching = count_matching(transaction, partner_id, wanted, until, now).await?;
        let matching = matching.exact();
        let wanted = ResendSelection {
            until: Some(until),
            ..*wanted
        };
        let asked = ResendRequest {
            action: &Action::of_partner(domain::Command::WebhooksRedeliver, ""),
            part_of: None,
        };
        let begun = insert(transaction, partner_id, &wanted, matching, asked).await?;
        // The lock keeps others from beginning one, except for an operator, who takes no lock.
        let Some(begun) = begun else {
            return Ok(TransactionEnd::Rollback(ResendStart::TooSoon(
                Duration::from_secs(1),
            )));
        };
        let target = format!("redelivery {} of partner {partner_id}", begun.resend_id);
        let filter = json!({
            "state": begun.state, "since": pg::rfc3339(begun.since), "until": pg::rfc3339(begun.until),
        });
        record(
            transaction,
            domain::Command::WebhooksRedeliver,
            &target,
            matching.unwrap_or_default(),
            ActionChange::created(filter),
        )
        .await?;
        Ok(TransactionEnd::Commit(ResendStart::Begun(begun)))
    })
}

/// Who asks for a resend.
#[derive(Clone, Copy, Debug)]
pub struct ResendRequest<'a> {
    pub action: &'a Action<'a>,
    /// The resend of several partners that it is a part of.
    pub part_of: Option<Uuid>,
}

/// Stores a resend; `None` if one of the partner runs. The index on running ones decides.
pub async fn insert(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    wanted: &ResendSelection,
    matching: Option<i64>,
    asked: ResendRequest<'_>,
) -> Result<Option<PartnerResend>> {
    let via: &'static str = asked.action.actor.via.into();
    let now = sqlx::query_scalar!(r#"SELECT now() AS "now!""#);
    let now = now.fetch_one(&mut *connection).await?;
    let first = phases(wanted.state).next().unwrap_or(Phase::Sending);
    let after = start(first, now);
    let begun = sqlx::query_as!(
        PartnerResend,
        r#"INSERT INTO resends (resend_id, partner_id, state, since, until, matching, phase, after_at, after_id,
                              batch_id, asked_by, via, reason)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
         ON CONFLICT (partner_id) WHERE ended_at IS NULL DO NOTHING
         RETURNING resend_id, partner_id AS "partner_id!", state, since, until, matching, resent, created_at, ended_at, cancelled_at"#,
        Uuid::now_v7(),
        partner_id.uuid(),
        wanted.state.map(<&str>::from),
        wanted.since,
        wanted.until.map_or(now, |until| until.min(now)),
        matching,
        <&str>::from(first),
        after.map(|after| after.at),
        after.map(|after| after.id),
        asked.part_of,
        asked.action.actor.name,
        via,
        asked.action.reason,
    );
    Ok(begun.fetch_optional(connection).await?)
}

/// Records what the partner has done, in the transaction of the change.
async fn record(
    transaction: &mut Transaction<'_>,
    command: domain::Command,
    target: &str,
    affected: i64,
    changed: ActionChange,
) -> Result<()> {
    let action = Action::of_partner(command, target);
    Ok(actions::record(transaction, action, affected, changed).await?)
}

/// The resends of a partner, the newest first.
pub async fn list(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    limit: i64,
) -> Result<Vec<PartnerResend>> {
    let query = sqlx::query_as!(
        PartnerResend,
        r#"SELECT resend_id, partner_id AS "partner_id!", state, since, until, matching, resent, created_at, ended_at, cancelled_at
         FROM resends WHERE partner_id = $1 AND delivery_id IS NULL ORDER BY created_at DESC LIMIT $2"#,
        partner_id.uuid(),
        limit,
    );
    Ok(query.fetch_all(connection).await?)
}

/// One resend of a partner.
pub async fn find(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    id: Uuid,
) -> Result<Option<PartnerResend>> {
    let query = sqlx::query_as!(
        PartnerResend,
        r#"SELECT resend_id, partner_id AS "partner_id!", state, since, until, matching, resent, created_at, ended_at, cancelled_at
         FROM resends WHERE resend_id = $2 AND partner_id = $1 AND delivery_id IS NULL"#,
        partner_id.uuid(),
        id,
    );
    Ok(query.fetch_optional(connection).await?)
}

/// The running resends of the next partners after `after`, at most `limit`, in the order of the
/// partners.
pub async fn running(
    connection: &mut PgConnection,
    after: Option<Uuid>,
    limit: i64,
) -> Result<Vec<PartnerResend>> {
    let query = sqlx::query_as!(
        PartnerResend,
        r#"SELECT resend_id, partner_id AS "partner_id!", state, since, until, matching, resent, created_at, ended_at, cancelled_at
         FROM resends WHERE ended_at IS NULL AND partner_id > $1 ORDER BY partner_id LIMIT $2"#,
        after.unwrap_or_default(),
        limit,
    );
    Ok(query.fetch_all(connection).await?)
}

/// Ends a resend of a partner early, at its request, and records that. Webhooks that are due
/// already are still sent. Returns the resend, which may have ended before; `None` if the
/// partner has no such one.
pub async fn cancel(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    id: Uuid,
) -> Result<Option<PartnerResend>> {
    transaction!(connection, "resends::cancel", |transaction| {
        let statement = sqlx::query!(
            "UPDATE resends SET ended_at = now(), cancelled_at = now()
         WHERE resend_id = $2 AND partner_id = $1 AND ended_at IS NULL",
            partner_id.uuid(),
            id,
        );
        let cancelled = statement.execute(&mut **transaction).await?.rows_affected();
        if cancelled > 0 {
            let target = format!("redelivery {id} of partner {partner_id}");
            record(
                transaction,
                domain::Command::WebhooksRedeliverCancel,
                &target,
                1,
                ActionChange::between(json!({ "running": 1 }), json!({ "running": 0 })),
            )
            .await?;
        }
        let found = find(transaction, partner_id, id).await?;
        Ok(TransactionEnd::Commit(found))
    })
}

/// What one step of a resend has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResendStep {
    /// The number of webhooks that became due.
    pub resent: u64,
    /// Whether the next step can do something at once. Otherwise enough of the partner's webhooks
    /// are due, another process works on this resend, or it has ended.
    pub more: bool,
    /// Whether this step has ended it.
    pub ended: bool,
    /// Whether it had ended before, or is no more: its partner has cancelled it, for example.
    pub gone: bool,
}

/// Does the next batch of a resend: makes webhooks due until `most_due` of one endpoint of
/// the partner are.
/// When the walk has come to its end, the resend ends as soon as none of what was due then
/// waits for its attempt any more.
pub async fn step(connection: &mut PgConnection, id: Uuid, most_due: u32) -> Result<ResendStep> {
    transaction!(connection, "resends::step", |transaction| {
        // The lock keeps other notifiers and a cancellation out until this batch has committed.
        // `IS NULL` alone would let the planner read all running resends instead of this one.
        let query = sqlx::query!(
            r#"SELECT partner_id AS "partner_id!", state, since, until, phase, after_at, after_id, now() AS "now!" FROM resends
           WHERE resend_id = $1 AND coalesce(ended_at, 'infinity') = 'infinity' FOR UPDATE SKIP LOCKED"#,
            id,
        );
        let Some(row) = query.fetch_optional(&mut **transaction).await? else {
            let query = sqlx::query_scalar!(
                r#"SELECT EXISTS (SELECT FROM resends WHERE resend_id = $1
                              AND coalesce(ended_at, 'infinity') = 'infinity') AS "runs!""#,
                id,
            );
            return Ok(TransactionEnd::Rollback(ResendStep {
                gone: !query.fetch_one(&mut **transaction).await?,
                ..ResendStep::default()
            }));
        };
        let after = row.after_at.zip(row.after_id);
        let after = after.map(|(at, id)| WalkPosition { at, id });
        let phase = Stored::<Phase>::from(row.phase);
        let wanted = MaybeStored::<DeliveryState>::from(row.state);
        // What only a newer version knows is for a notifier of that version.
        let Some(phase) = phase.known().filter(|_| !wanted.is_unknown()) else {
            return Ok(TransactionEnd::Rollback(ResendStep::default()));
        };
        let Some(state) = phase.state() else {
            let ended = end_if_sent(transaction, id, row.partner_id, after).await?;
            return Ok(TransactionEnd::Commit(ResendStep {
                ended,
                ..ResendStep::default()
            }));
        };
        let due = due_soon(transaction, row.partner_id, most_due).await?;
        let room = u64::from(most_due).saturating_sub(due);
        if room == 0 {
            return Ok(TransactionEnd::Rollback(ResendStep::default()));
        }
        let filter = DeliveryFilter {
            partner_id: Some(row.partner_id.into()),
            state: Some(state),
            since: Some(row.since),
            until: Some(row.until),
            ..DeliveryFilter::default()
        };
        let mut walk = Walk {
            partner_id: row.partner_id.into(),
            source: WalkSource::of(filter.state),
            order: WalkOrder::OldestFirst,
            matching: Matching {
                state: filter.state,
                since: filter.since,
                until: filter.until,
                kinds: Kinds::WithoutNotices,
            },
            after,
        };
        let limit = usize::try_from(room).unwrap_or(usize::MAX);
        let found = walk.find(transaction, limit, BATCH_LOOK).await?;
        let resent = resend(transaction, &found.ids, &filter).await?;
        let next = phases(wanted.known())
            .skip_while(|one| *one != phase)
            .nth(1)
            .filter(|_| found.ended);
        let after = next.map_or(walk.after, |next| start(next, row.now));
        let statement = sqlx::query!(
            "UPDATE resends SET phase = $2, after_at = $3, after_id = $4, resent = resent + $5
         WHERE resend_id = $1",
            id,
            <&str>::from(next.unwrap_or(phase)),
            after.map(|after| after.at),
            after.map(|after| after.id),
            resent.resent,
        );
        statement.execute(&mut **transaction).await?;
        Ok(TransactionEnd::Commit(ResendStep {
            resent: count(resent.resent),
            more: true,
            ..ResendStep::default()
        }))
    })
}

/// The number of webhooks that are due, or in flight, at the endpoint of the partner that has most
/// of them, counted up to `most`.
async fn due_soon(connection: &mut PgConnection, partner: Uuid, most: u32) -> Result<u64> {
    let query = sqlx::query_scalar!(
        r#"SELECT max(due) AS "due!"
           FROM (SELECT lane FROM partner_endpoints WHERE partner_id = $1) e
           CROSS JOIN LATERAL (
               SELECT count(*) AS due
               FROM (SELECT FROM work w
                     WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = e.lane AND w.partner_id = $1
                       AND w.at <= now() + make_interval(secs => $2)
                     LIMIT $3) due_of_lane
           ) of_lane"#,
        partner,
        seconds(LONGEST_LEASE),
        i64::from(most),
    );
    Ok(count(query.fetch_one(connection).await?))
}

/// Ends the resend if nothing that was due when its walk ended waits for its attempt any more.
/// A webhook whose attempt began since then has a later time in `work`, or no work.
async fn end_if_sent(
    connection: &mut PgConnection,
    id: Uuid,
    partner: Uuid,
    walked: Option<WalkPosition>,
) -> Result<bool> {
    let statement = sqlx::query!(
        "UPDATE resends SET ended_at = now()
         WHERE resend_id = $1
           AND (SELECT true
                FROM (SELECT lane FROM partner_endpoints WHERE partner_id = $2) e
                CROSS JOIN LATERAL (
                    SELECT FROM work w
                    WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = e.lane AND w.partner_id = $2
                      AND w.at > '-infinity' AND w.at <= $3
                    LIMIT 1
                ) waiting
                LIMIT 1) IS NULL",
        id,
        partner,
        walked.map(|walked| walked.at),
    );
    Ok(statement.execute(connection).await?.rows_affected() > 0)
}

/// Deletes at most `limit` ended resends that are older than the term of attempts. Returns
/// their number.
pub async fn forget(connection: &mut PgConnection, limit: u32) -> Result<u64> {
    // Goes from partner to partner, like `events::forget`.
    let statement = sqlx::query!(
        "DELETE FROM resends WHERE resend_id = ANY (ARRAY (
             SELECT old.resend_id
             FROM partners p
             CROSS JOIN LATERAL (
                 SELECT r.resend_id FROM resends r
                 WHERE r.partner_id = p.partner_id AND r.ended_at IS NOT NULL
                   AND r.created_at < now() - make_interval(days => (
                       SELECT days FROM walks WHERE name = 'attempts'))
                 ORDER BY r.created_at LIMIT $1
             ) old
             LIMIT $1))",
        i64::from(limit),
    );
    let deleted = statement.execute(&mut *connection).await?.rows_affected();
    // What several partners had is forgotten with the last of its parts.
    let statement = sqlx::query!(
        "DELETE FROM resends WHERE resend_id = ANY (ARRAY (
             SELECT old.resend_id FROM resends old
             WHERE old.batch_id IS NULL AND old.partner_id IS NULL AND old.delivery_id IS NULL
               AND old.created_at < now() - make_interval(days => (
                   SELECT days FROM walks WHERE name = 'attempts'))
               AND NOT EXISTS (SELECT FROM resends part WHERE part.batch_id = old.resend_id)
             ORDER BY old.created_at LIMIT $1))",
        i64::from(limit),
    );
    let of_several = statement.execute(connection).await?.rows_affected();
    Ok(deleted.max(of_several))
}

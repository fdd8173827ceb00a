//! Operations on the webhooks of many partners: filter, preview, reason, and then a recorded operation
//! with progress that can be cancelled (`esimctl operation`, and the console).
//!
//! An operation has no machinery of its own. [`start`] creates one
//! [redelivery](crate::deliveries::redeliveries) for each partner that has something to send again,
//! in one transaction with the record, and the notifiers work these off in batches, at the pace of
//! each endpoint. So an operation survives the end of whatever program started it, and the execution
//! looks at each webhook again: one that was delivered or erased in the meantime is left out. The
//! numbers of [`preview`] are therefore advice.
//!
//! A partner whose own redelivery runs already is skipped, because an endpoint gets one redelivery at
//! a time. The partner sees a redelivery of an operator in its own list, and may cancel it there.

use std::time::{Duration, Instant};

use domain::PartnerId;
use serde::Serialize;
use serde_json::json;
use sqlx::{Connection, PgConnection};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use super::actions::{self, Action, Changed, Mode};
use crate::{
    Error, Result, count,
    deliveries::redeliveries::{self, Counted, Wanted},
};

/// The most partners that an operation may have something to send for.
pub const MOST_PARTNERS: usize = 10_000;
/// How long a preview counts. A use of a connection must end within `DATABASE_TIMEOUT`, and an
/// operator waits for it.
const BUDGET: Duration = Duration::from_secs(3);

/// What an operation would do, or does, for one partner.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    pub partner_id: Uuid,
    pub name: String,
    /// How many webhooks match now.
    pub matching: Counted,
    /// Whether a redelivery of the partner runs already, so that this partner is skipped.
    pub skipped: bool,
}

/// What an operation would do now.
#[derive(Clone, Debug, Serialize)]
pub struct Preview {
    /// The partners with something to send again.
    pub parts: Vec<Part>,
    /// The number of webhooks, without those of skipped partners.
    pub matching: Counted,
    /// How many partners that may have something to send were not looked at, because there are too
    /// many of them for one operation. `matching` is then without theirs, and no operation starts.
    pub unseen: usize,
}

/// An operation with its progress.
#[derive(Clone, Debug, Serialize)]
pub struct Operation {
    pub operation_id: Uuid,
    pub kind: String,
    /// The filter as JSON.
    pub filter: String,
    pub operator: String,
    pub via: String,
    pub reason: String,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub cancelled_at: Option<OffsetDateTime>,
    /// When its last redelivery ended; `None` while one runs.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// How many redeliveries it has, and how many of them have ended.
    pub parts: u64,
    pub ended: u64,
    /// Partners that were left out.
    pub skipped: u64,
    /// How many webhooks matched when it began, of the partners whose webhooks could be counted.
    pub matching: u64,
    /// How many have been made due.
    pub done: u64,
}

/// Why no operation was started.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    #[error("nothing matches, or the partners that match have a running redelivery already")]
    Nothing,
    #[error(
        "{0} partners that may have webhooks to send again could not be looked at in time, so it would be incomplete: \
         choose a state that fewer webhooks have, a shorter time, or one partner after the other"
    )]
    TooMany(usize),
    #[error(transparent)]
    Store(#[from] Error),
}

crate::store_error!(NotStarted);

/// What an operation would do now: for one partner, or for all.
///
/// Partners that cannot have anything to send are left out by one statement, so that the rest, which
/// is counted one by one, is usually small. If it is not, the counting ends after a while.
pub async fn preview(
    connection: &mut PgConnection,
    partner: Option<PartnerId>,
    wanted: &Wanted<'_>,
) -> Result<Preview> {
    preview_within(connection, partner, wanted, BUDGET).await
}

/// The same, with another time for the counting.
pub async fn preview_within(
    connection: &mut PgConnection,
    partner: Option<PartnerId>,
    wanted: &Wanted<'_>,
    budget: Duration,
) -> Result<Preview> {
    let query = sqlx::query!(
        r#"SELECT partner_id, name, now() AS "now!" FROM partners p
           WHERE ($1::uuid IS NULL OR partner_id = $1)
             AND (has_further_endpoints
                  OR ((SELECT url FROM partner_endpoints e WHERE e.endpoint_id = p.partner_id) IS NOT NULL
                      AND CASE WHEN $3 = 'delivered'
                               THEN (SELECT true FROM deliveries d
                                     WHERE d.partner_id = p.partner_id AND d.created_at >= $4 LIMIT 1)
                               ELSE coalesce(
                                   (SELECT true FROM held h WHERE h.partner_id = p.partner_id AND h.state = 'exhausted' LIMIT 1),
                                   (SELECT true FROM work w WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = ''
                                                              AND w.partner_id = p.partner_id LIMIT 1))
                          END))
           ORDER BY name, partner_id LIMIT $2"#,
        partner.map(PartnerId::uuid),
        i64::try_from(MOST_PARTNERS + 1).unwrap_or(i64::MAX),
        wanted.state,
        redeliveries::reach(wanted),
    );
    let mut parts = Vec::new();
    let mut all = Counted::NONE;
    let began = Instant::now();
    let candidates = query.fetch_all(&mut *connection).await?;
    let mut unseen = candidates.len();
    for row in candidates.into_iter().take(MOST_PARTNERS) {
        if began.elapsed() > budget {
            break;
        }
        unseen -= 1;
        let until = wanted.until.map_or(row.now, |until| until.min(row.now));
        let id = row.partner_id.into();
        let matching = redeliveries::count_matching(connection, id, wanted, until, row.now).await?;
        if matching == Counted::NONE {
            continue;
        }
        let running = sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM redeliveries WHERE partner_id = $1 AND ended_at IS NULL) AS "running!""#,
            row.partner_id,
        );
        let running = running.fetch_one(&mut *connection).await?;
        if !running {
            all = all + matching;
        }
        parts.push(Part {
            partner_id: row.partner_id,
            name: row.name,
            matching,
            skipped: running,
        });
    }
    Ok(Preview {
        parts,
        matching: Counted {
            all: all.all && unseen == 0,
            ..all
        },
        unseen,
    })
}

/// Starts an operation.
pub async fn start(
    connection: &mut PgConnection,
    partner: Option<PartnerId>,
    wanted: &Wanted<'_>,
    action: Action<'_>,
) -> Result<Operation, NotStarted> {
    let preview = preview(connection, partner, wanted).await?;
    if preview.unseen > 0 {
        return Err(NotStarted::TooMany(preview.unseen));
    }
    let mut transaction = connection.begin().await?;
    let id = Uuid::now_v7();
    let mut begun = Vec::new();
    let mut skipped = 0_i64;
    for part in &preview.parts {
        let partner_id = part.partner_id.into();
        let new = redeliveries::insert(&mut transaction, partner_id, wanted, part.matching.exact())
            .await?;
        match new {
            Some(one) => begun.push(one.redelivery_id),
            None => skipped += 1,
        }
    }
    if begun.is_empty() {
        return Err(NotStarted::Nothing);
    }
    let moment = |at: OffsetDateTime| at.format(&Rfc3339).unwrap_or_default();
    let filter = json!({
        "partner_id": partner, "state": wanted.state, "since": moment(wanted.since), "until": wanted.until.map(moment),
    });
    let via: &'static str = action.actor.via.into();
    let statement = sqlx::query!(
        "INSERT INTO operations (operation_id, kind, filter, operator, via, reason, skipped)
         VALUES ($1, 'delivery replay', $2::text::jsonb, $3, $4, $5, $6)",
        id,
        filter.to_string(),
        action.actor.name,
        via,
        action.reason,
        skipped,
    );
    statement.execute(&mut *transaction).await?;
    let statement = sqlx::query!(
        "INSERT INTO operation_parts (operation_id, redelivery_id) SELECT $1, unnest($2::uuid[])",
        id,
        &begun,
    );
    statement.execute(&mut *transaction).await?;
    let target = format!("operation {id}");
    let action = Action {
        target: &target,
        ..action
    };
    let affected = preview.matching.number;
    actions::commit(transaction, action, affected, Changed::created(filter)).await?;
    find(connection, id).await?.ok_or(NotStarted::Nothing)
}

/// The operations, the newest first.
pub async fn list(connection: &mut PgConnection, limit: i64) -> Result<Vec<Operation>> {
    let query = sqlx::query_scalar!(
        "SELECT operation_id FROM operations ORDER BY created_at DESC LIMIT $1",
        limit.min(100),
    );
    let mut found = Vec::new();
    for id in query.fetch_all(&mut *connection).await? {
        found.extend(find(connection, id).await?);
    }
    Ok(found)
}

/// An operation with its progress.
pub async fn find(connection: &mut PgConnection, id: Uuid) -> Result<Option<Operation>> {
    let query = sqlx::query!(
        r#"SELECT o.operation_id, o.kind, o.filter::text AS "filter!", o.operator, o.via, o.reason, o.created_at,
                  o.cancelled_at, o.skipped, part.parts AS "parts!", part.ended AS "ended!", part.last,
                  part.matching AS "matching!", part.done AS "done!"
           FROM operations o
           CROSS JOIN LATERAL (
               -- Old redeliveries are deleted; they have ended.
               SELECT count(*) AS parts, count(*) FILTER (WHERE r.redelivery_id IS NULL OR r.ended_at IS NOT NULL) AS ended,
                      max(r.ended_at) AS last, coalesce(sum(r.matching), 0)::int8 AS matching,
                      coalesce(sum(r.redelivered), 0)::int8 AS done
               FROM operation_parts p LEFT JOIN redeliveries r ON r.redelivery_id = p.redelivery_id
               WHERE p.operation_id = o.operation_id
           ) part
           WHERE o.operation_id = $1"#,
        id,
    );
    let row = query.fetch_optional(connection).await?;
    Ok(row.map(|row| Operation {
        operation_id: row.operation_id,
        kind: row.kind,
        filter: row.filter,
        operator: row.operator,
        via: row.via,
        reason: row.reason,
        created_at: row.created_at,
        cancelled_at: row.cancelled_at,
        ended_at: row.last.filter(|_| row.ended == row.parts),
        parts: count(row.parts),
        ended: count(row.ended),
        skipped: count(row.skipped),
        matching: count(row.matching),
        done: count(row.done),
    }))
}

/// What became of a request to end an operation early.
#[derive(Clone, Debug)]
pub enum Cancelled {
    Now(Operation),
    /// It was cancelled before, or had made all its webhooks due. Nothing was changed or recorded.
    EndedBefore(Operation),
    Unknown,
}

/// Ends an operation early. Webhooks that are due already are still sent.
pub async fn cancel(
    connection: &mut PgConnection,
    id: Uuid,
    action: Action<'_>,
) -> Result<Cancelled> {
    let mut transaction = connection.begin().await?;
    // `IS NULL` alone would let the planner read all running redeliveries instead of these.
    let statement = sqlx::query!(
        "UPDATE redeliveries SET ended_at = now(), cancelled_at = now()
         WHERE redelivery_id = ANY (ARRAY (SELECT redelivery_id FROM operation_parts WHERE operation_id = $1))
           AND coalesce(ended_at, 'infinity') = 'infinity'",
        id,
    );
    let ended = statement.execute(&mut *transaction).await?.rows_affected();
    if ended > 0 {
        let statement = sqlx::query!(
            "UPDATE operations SET cancelled_at = now() WHERE operation_id = $1",
            id
        );
        statement.execute(&mut *transaction).await?;
        let rows = i64::try_from(ended).unwrap_or(i64::MAX);
        actions::finish(transaction, Mode::Apply(action), rows).await?;
    } else {
        transaction.rollback().await?;
    }
    Ok(match find(connection, id).await? {
        Some(operation) if ended > 0 => Cancelled::Now(operation),
        Some(operation) => Cancelled::EndedBefore(operation),
        None => Cancelled::Unknown,
    })
}

//! Resends that operators ask for (`esimctl resend`, and the console): filter, preview, reason, and
//! then a recorded resend with progress that can be cancelled.
//!
//! [`start`] stores a [resend](store::deliveries::resends) without a partner, and one for each
//! partner that has something to send again, in one transaction with the record. The notifiers work
//! these off in batches, at the pace of each endpoint. So a resend survives the end of whatever
//! program started it, and the execution looks at each webhook again: one that was delivered or
//! erased in the meantime is left out. The numbers of [`preview`] are therefore advice.
//!
//! A partner whose own resend runs already is skipped, because an endpoint gets one resend at a
//! time. The partner sees a resend of an operator in its own list, and may cancel it there.

use std::time::{Duration, Instant};

use domain::{MaybeStored, PartnerId, standing::DeliveryState};
use pg::{
    Error, Result, TransactionEnd,
    actions::{self, Action, ActionChange},
    count, rfc3339, transaction,
};
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use store::deliveries::resends::{self, MatchCount, ResendRequest, ResendSelection};
use time::OffsetDateTime;
use uuid::Uuid;

mod left_out;
mod waiting;

pub use self::{
    left_out::{LeftOut, LeftOutCause},
    waiting::UnmatchedWebhooks,
};

/// The maximum number of partners that a resend may have something to send for.
pub const MOST_PARTNERS: usize = 10_000;
/// How long a preview counts. A use of a connection must end within `DATABASE_TIMEOUT`, and an
/// operator waits for it.
const BUDGET: Duration = Duration::from_secs(3);

/// What a resend would do for one partner.
#[derive(Clone, Debug, Serialize)]
pub struct ResendShare {
    pub partner_id: Uuid,
    pub name: String,
    /// How many webhooks match now.
    pub matching: MatchCount,
    /// Whether a resend of the partner runs already, so that this partner is skipped.
    pub skipped: bool,
}

/// What a resend would do now.
#[derive(Clone, Debug, Serialize)]
pub struct Preview {
    /// The partners with something to send again.
    pub parts: Vec<ResendShare>,
    /// The number of webhooks, without those of skipped partners.
    pub matching: MatchCount,
    /// How many partners that may have something to send were not looked at, because there are too
    /// many of them for one resend. `matching` is then without theirs, and no resend starts.
    pub unseen: usize,
    /// If nothing matches, the webhooks that wait or have ended all the same.
    pub waiting: Vec<UnmatchedWebhooks>,
    /// If nothing matches, the webhooks that the filter leaves out, by what leaves them out.
    pub left_out: Vec<LeftOut>,
}

/// A resend with its progress: of one webhook, of a partner, or of several partners.
#[derive(Clone, Debug, Serialize)]
pub struct Resend {
    pub resend_id: Uuid,
    /// `None` if it is, or was, of several partners.
    pub partner_id: Option<Uuid>,
    /// The one delivery that it is about.
    pub delivery_id: Option<Uuid>,
    /// Which webhooks: those in this state, or all that were not delivered.
    pub state: MaybeStored<DeliveryState>,
    /// The range of time of their last attempts.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub until: OffsetDateTime,
    /// The operator's name, or `partner`.
    pub asked_by: String,
    pub via: String,
    pub reason: String,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub cancelled_at: Option<OffsetDateTime>,
    /// When its last part ended; `None` while one runs.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// How many partners it has, and for how many of them it has ended.
    pub parts: u64,
    pub ended: u64,
    /// Partners that were left out.
    pub skipped: u64,
    /// How many webhooks matched when it began, of the partners whose webhooks could be counted.
    pub matching: u64,
    /// How many have been made due.
    pub resent: u64,
}

/// Why no resend was started.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    #[error("nothing matches, or the partners that match have a running resend already")]
    Nothing,
    #[error("a resend was started by the same form already")]
    Already,
    #[error(
        "partners that may have webhooks to send again and could not be looked at in time: {0}; so it would be incomplete: \
         choose a state that fewer webhooks have, a shorter time, or one partner after the other"
    )]
    TooMany(usize),
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(NotStarted);

/// What a resend would do now: for one partner, or for all.
///
/// Partners that cannot have anything to send are left out by one statement, so that the rest,
/// which is counted one by one, is usually small. If it is not, the counting ends after a while.
pub async fn preview(
    connection: &mut PgConnection,
    partner: Option<PartnerId>,
    wanted: &ResendSelection,
) -> Result<Preview> {
    preview_within(connection, partner, wanted, BUDGET).await
}

/// The same, with another time for the counting.
pub async fn preview_within(
    connection: &mut PgConnection,
    partner: Option<PartnerId>,
    wanted: &ResendSelection,
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
        wanted.state.map(<&str>::from),
        resends::reach(wanted),
    );
    let mut parts = Vec::new();
    let mut all = MatchCount::NONE;
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
        let matching = resends::count_matching(connection, id, wanted, until, row.now).await?;
        if matching == MatchCount::NONE {
            continue;
        }
        let running = sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM resends WHERE partner_id = $1 AND ended_at IS NULL) AS "running!""#,
            row.partner_id,
        );
        let running = running.fetch_one(&mut *connection).await?;
        if !running {
            all = all + matching;
        }
        parts.push(ResendShare {
            partner_id: row.partner_id,
            name: row.name,
            matching,
            skipped: running,
        });
    }
    let mut waiting = Vec::new();
    let mut left_out = Vec::new();
    if parts.is_empty() && unseen == 0 {
        waiting = waiting::read(&mut *connection, partner).await?;
        left_out = left_out::read(connection, partner, &waiting, wanted).await?;
    }
    Ok(Preview {
        parts,
        waiting,
        left_out,
        matching: MatchCount {
            all: all.all && unseen == 0,
            ..all
        },
        unseen,
    })
}

/// Starts a resend of all webhooks that match, of one partner or of all. `id` is what it will be
/// called: a form that is sent again, perhaps after its resend was cancelled, names one that is
/// there.
pub async fn start(
    connection: &mut PgConnection,
    id: Uuid,
    partner: Option<PartnerId>,
    wanted: &ResendSelection,
    action: Action<'_>,
) -> Result<Resend, NotStarted> {
    if find(&mut *connection, id).await?.is_some() {
        return Err(NotStarted::Already);
    }
    let preview = preview(connection, partner, wanted).await?;
    if preview.unseen > 0 {
        return Err(NotStarted::TooMany(preview.unseen));
    }
    transaction!(
        connection,
        "resends::start",
        |transaction| -> Result<(), NotStarted> {
            let asked = ResendRequest {
                action: &action,
                part_of: Some(id),
            };
            let mut begun = 0_u64;
            let mut skipped = 0_i64;
            for part in &preview.parts {
                let partner_id = part.partner_id.into();
                let matching = part.matching.exact();
                let new = resends::insert(transaction, partner_id, wanted, matching, asked).await?;
                match new {
                    Some(_) => begun += 1,
                    None => skipped += 1,
                }
            }
            if begun == 0 {
                return Err(NotStarted::Nothing);
            }
            let via: &'static str = action.actor.via.into();
            // It is not worked off itself, so it is stored as one that has ended.
            let statement = sqlx::query!(
                "INSERT INTO resends (resend_id, state, since, until, phase, ended_at, asked_by, via, reason, skipped)
         VALUES ($1, $2, $3, coalesce($4, now()), 'sending', now(), $5, $6, $7, $8)",
                id,
                wanted.state.map(<&str>::from),
                wanted.since,
                wanted.until,
                action.actor.name,
                via,
                action.reason,
                skipped,
            );
            statement.execute(&mut **transaction).await?;
            let filter = json!({
                "partner_id": partner, "state": wanted.state.map(<&str>::from), "since": rfc3339(wanted.since), "until": wanted.until.map(rfc3339),
            });
            let target = format!("resend {id}");
            let action = Action {
                target: &target,
                ..action
            };
            let affected = preview.matching.number;
            actions::record(transaction, action, affected, ActionChange::created(filter)).await?;
            Ok(TransactionEnd::Commit(()))
        }
    )?;
    find(connection, id).await?.ok_or(NotStarted::Nothing)
}

/// Reads resends that match a condition on the row `h`, with the progress of their parts. What is
/// of one partner is its own part.
macro_rules! resends {
    ($condition:literal $(, $argument:expr)*) => {
        sqlx::query!(
            r#"SELECT h.resend_id, CASE WHEN part.parts = 1 THEN part.partners[1] END AS partner_id, h.delivery_id, h.state,
                      h.since, h.until, h.asked_by, h.via, h.reason, h.created_at, h.cancelled_at, h.skipped,
                      part.parts AS "parts!", part.ended AS "ended!", coalesce(part.last, h.ended_at) AS last,
                      part.matching AS "matching!", part.resent AS "resent!"
               FROM resends h
               CROSS JOIN LATERAL (
                   -- Old parts are deleted; they have ended.
                   SELECT count(*) AS parts, count(*) FILTER (WHERE r.ended_at IS NOT NULL) AS ended,
                          max(r.ended_at) AS last, coalesce(sum(r.matching), 0)::int8 AS matching,
                          coalesce(sum(r.resent), 0)::int8 AS resent, array_agg(r.partner_id) AS partners
                   FROM resends r
                   WHERE (r.resend_id = h.resend_id OR r.batch_id = h.resend_id) AND r.partner_id IS NOT NULL
               ) part
               WHERE "# + $condition
            $(, $argument)*
        )
        .map(|row| Resend {
            resend_id: row.resend_id,
            partner_id: row.partner_id,
            delivery_id: row.delivery_id,
            state: row.state.into(),
            since: row.since,
            until: row.until,
            asked_by: row.asked_by,
            via: row.via,
            reason: row.reason,
            created_at: row.created_at,
            cancelled_at: row.cancelled_at,
            ended_at: row.last.filter(|_| row.ended == row.parts),
            parts: count(row.parts),
            ended: count(row.ended),
            skipped: count(row.skipped),
            matching: count(row.matching),
            resent: count(row.resent),
        })
    };
}

/// The resends, the newest first. Single webhooks that partners have asked for are left out,
/// because there may be very many of them.
pub async fn list(connection: &mut PgConnection, limit: i64) -> Result<Vec<Resend>> {
    let found = resends!(
        "h.batch_id IS NULL AND (h.delivery_id IS NULL OR h.via <> 'api') ORDER BY h.created_at DESC LIMIT $1",
        limit.min(100)
    );
    Ok(found.fetch_all(connection).await?)
}

/// A resend with its progress.
pub async fn find(connection: &mut PgConnection, id: Uuid) -> Result<Option<Resend>> {
    let found = resends!("h.resend_id = $1", id);
    Ok(found.fetch_optional(connection).await?)
}

/// The outcome of a request to end a resend early.
#[derive(Clone, Debug)]
pub enum ResendCancellation {
    Now(Resend),
    /// It was cancelled before, or had made all its webhooks due. Nothing was changed or recorded.
    EndedBefore(Resend),
    Unknown,
}

/// Ends a resend early. Webhooks that are due already are still sent.
pub async fn cancel(
    connection: &mut PgConnection,
    id: Uuid,
    action: Action<'_>,
) -> Result<ResendCancellation> {
    let ended = transaction!(
        connection,
        "resends::cancel",
        |transaction| -> Result<u64> {
            // `IS NULL` alone would let the planner read all running resends instead of these.
            let statement = sqlx::query!(
                "UPDATE resends SET ended_at = now(), cancelled_at = now()
         WHERE (resend_id = $1 OR batch_id = $1) AND coalesce(ended_at, 'infinity') = 'infinity'",
                id,
            );
            let ended = statement.execute(&mut **transaction).await?.rows_affected();
            if ended > 0 {
                let statement = sqlx::query!(
                    "UPDATE resends SET cancelled_at = now() WHERE resend_id = $1",
                    id
                );
                statement.execute(&mut **transaction).await?;
                let rows = i64::try_from(ended).unwrap_or(i64::MAX);
                let changed =
                    ActionChange::between(json!({ "running": rows }), json!({ "running": 0 }));
                actions::record(transaction, action, rows, changed).await?;
            }
            Ok(TransactionEnd::Commit(ended))
        }
    )?;
    Ok(match find(connection, id).await? {
        Some(resend) if ended > 0 => ResendCancellation::Now(resend),
        Some(resend) => ResendCancellation::EndedBefore(resend),
        None => ResendCancellation::Unknown,
    })
}

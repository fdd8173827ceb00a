//! Recovery after an old dump was restored, by `esimctl recover`.
//!
//! Such a database does not know what happened after the dump. A placement that it shows as
//! `accepted` may have been bought in the meantime, and a claim would buy it a second time. So
//! before the provisioners start again, every unfinished placement is treated like one whose
//! outcome is unknown: it is looked up at the provider, and only if the provider twice knows
//! nothing of it, the second time after the settling delay, may it be bought.
//!
//! It relies on being alone: no provisioner may run, because it might be buying. Orders that were
//! stored after the dump are lost, and the command can only say from when on.

use domain::{OrderId, PartnerId, PlacementId};
use pg::{
    Error, Transaction,
    actions::{ActionChange, Mode},
    sessions::{self, BlockingSession},
    transaction,
};
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use time::OffsetDateTime;

/// How long to wait for sessions that are writing placements.
const LOCK_TIMEOUT: &str = "10s";

/// What a recovery moves, or would move in a preview.
#[derive(Clone, Debug, Serialize)]
pub struct RecoveryCounts {
    /// Placements that were `accepted`. They are looked up, although no attempt is recorded,
    /// because one may have been made after the dump.
    pub accepted: i64,
    /// Placements that were `placing`. They are looked up as if their attempt had been recorded
    /// now.
    pub placing: i64,
    /// Placements of both kinds that were parked instead, because of `park_unanswered`, or because
    /// another provider may have sold them after the dump.
    pub parked: i64,
    /// Orders that were not answered yet at the time of the dump. They may have been refused after
    /// it.
    pub unanswered: Vec<UnansweredOrder>,
    /// Parked placements that any of several providers may have sold after the dump.
    pub routed: Vec<RoutedPlacement>,
    /// Placements that are parked in the dump. Operators may have resolved them after it, so each
    /// one should be compared with the provider.
    pub parked_before: i64,
    /// When the newest order of the dump was stored. Orders after that time are lost.
    #[serde(with = "time::serde::rfc3339::option")]
    pub newest_order_at: Option<OffsetDateTime>,
}

/// An order that may have been answered with 422 after the dump.
#[derive(Clone, Debug, Serialize)]
pub struct UnansweredOrder {
    pub order_id: OrderId,
    pub partner_id: PartnerId,
    pub external_order_id: String,
}

/// A placement whose option names several providers.
#[derive(Clone, Debug, Serialize)]
pub struct RoutedPlacement {
    pub placement_id: PlacementId,
    pub order_id: OrderId,
    /// The providers at which it has to be looked up: that of the dump, and those that may have
    /// followed.
    pub providers: Vec<String>,
}

/// Why nothing was moved.
#[derive(Debug, thiserror::Error)]
pub enum NotRecovered {
    #[error(
        "provisioners have connections ({0}): stop all provisioners first, because they may be buying"
    )]
    Provisioners(i64),
    /// Another session has written `placements` and has not ended its transaction.
    #[error(
        "the table placements was not free within {}, {}, and run the command again; nothing was changed",
        LOCK_TIMEOUT, held_by(.0.as_ref())
    )]
    Locked(Option<BlockingSession>),
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(NotRecovered);

fn held_by(holder: Option<&BlockingSession>) -> String {
    match holder {
        Some(session) => format!(
            "because it is locked by {session}: stop that program, or end its session with SELECT \
             pg_terminate_backend({})",
            session.pid
        ),
        None => "and the session that had locked it has ended by now: wait a moment".to_owned(),
    }
}

/// Moves every `accepted` or `placing` placement to "outcome unknown", which is `placing` with an
/// attempt that is recorded now. So each one is looked up before anything is bought, and the
/// settling delay starts now.
///
/// An `accepted` placement moves by [`domain::placement::PlacementEvent::Claim`], but nothing is
/// sent for it. `park_unanswered` parks the placements of orders that may have been answered with
/// 422 after the dump, so that an operator can decide about them.
///
/// The function can be repeated; a second run only restarts the settling delay. It fails while
/// provisioners are connected. One that connects in the meantime cannot claim anything before the
/// commit, because its claim waits for the lock of the table.
pub async fn recover(
    connection: &mut PgConnection,
    park_unanswered: bool,
    mode: Mode<'_>,
) -> Result<RecoveryCounts, NotRecovered> {
    let recovered = transaction!(connection, "recover", |transaction| -> Result<
        RecoveryCounts,
        NotRecovered,
    > {
        lock(transaction).await?;
        let recovered = ask_first(transaction, park_unanswered, mode).await?;
        Ok(mode.end(recovered))
    });
    match recovered {
        // The lock was not available within `lock_timeout`.
        Err(NotRecovered::Store(error)) if error.is_of(&["55P03"]) => {
            let holder = sessions::writer_of(connection, "placements").await?;
            Err(NotRecovered::Locked(holder))
        }
        ended => ended,
    }
}

/// The statements of [`recover`], behind its lock.
async fn ask_first(
    transaction: &mut Transaction<'_>,
    park_unanswered: bool,
    mode: Mode<'_>,
) -> Result<RecoveryCounts, NotRecovered> {
    no_provisioner(transaction).await?;
    // What was lost before this timeline is dealt with here, so stages that start afterwards must
    // not open the breakers because of it.
    let dealt_with = sqlx::query!(
        "INSERT INTO commit_losses (timeline, told)
         SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint, 'esimctl recover'
         ON CONFLICT DO NOTHING"
    );
    dealt_with.execute(&mut **transaction).await?;
    let query = sqlx::query!(
        r#"SELECT (SELECT count(*) FROM held WHERE state = 'parked') AS "parked!",
                  (SELECT created_at FROM orders ORDER BY order_id DESC LIMIT 1) AS newest"#
    );
    let before = query.fetch_one(&mut **transaction).await?;
    // The steps of the statement:
    //
    // - `open` locks all unfinished placements. An order counts as unanswered if its deadline was
    //   later than the newest order of the dump, which is about the time of the dump. A placement
    //   with alternatives may have gone to another provider after the dump, and a look-up at the
    //   one that the dump names would not find it. So an operator has to look at all of them. The
    //   alternatives stay in the row, so that the operator can name the one that has the purchase;
    //   nothing leads from `parked` to another attempt without clearing them.
    // - `moved` moves them to `placing`, or to `parked`. An `accepted` one gets the number of a new
    //   attempt, because the purchase that may exist was at least the next attempt.
    // - `done` deletes the work of parked placements, and `due` makes all others due for a look-up.
    // - `parked` makes the parked ones visible to operators.
    let query = sqlx::query!(
        r#"WITH open AS (
               SELECT p.placement_id, p.order_id, p.state AS was, o.answer_by > $1 AS unanswered,
                      ($2 AND o.answer_by > $1) OR p.alternatives IS NOT NULL AS parks,
                      CASE WHEN p.alternatives IS NOT NULL
                           THEN p.provider || ARRAY (SELECT pair->>'provider' FROM jsonb_array_elements(p.alternatives) pair)
                      END AS providers
               FROM placements p JOIN orders o ON o.order_id = p.order_id
               WHERE p.state IN ('accepted', 'placing') FOR UPDATE OF p
           ), moved AS (
               UPDATE placements p
               SET state = CASE WHEN open.parks THEN 'parked' ELSE 'placing' END,
                   attempt = p.attempt + (open.was = 'accepted')::int,
                   attempted_at = now(), not_found_at = NULL, unknowns = 0,
                   reason = CASE WHEN p.alternatives IS NOT NULL
                                 THEN 'outcome_unknown: restored from a dump: may have been bought after it at '
                                     || array_to_string(open.providers, ' or ')
                                 WHEN open.parks
                                 THEN 'outcome_unknown: restored from a dump: may have been bought, or refused with 422, after it'
                                 ELSE 'outcome_unknown: restored from a dump: may have been bought after it' END
               FROM open WHERE p.placement_id = open.placement_id
               RETURNING p.placement_id, p.order_id, p.partner_id, p.provider, p.lane, p.state, open.was,
                         open.unanswered, open.providers
           ), done AS (
               DELETE FROM work WHERE id = ANY (ARRAY (SELECT placement_id FROM moved WHERE state = 'parked'))
           ), due AS (
               INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
               SELECT placement_id, 'look_up', provider, lane, partner_id, now() FROM moved WHERE state = 'placing'
               ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, at = excluded.at
           ), parked AS (
               INSERT INTO held (id, state, provider, partner_id)
               SELECT placement_id, 'parked', provider, partner_id FROM moved WHERE state = 'parked'
               ON CONFLICT DO NOTHING
           )
           SELECT moved.was AS "was!", moved.state AS "state!", moved.unanswered AS "unanswered!", o.order_id, o.partner_id, o.external_order_id,
                  moved.placement_id AS "placement_id!", moved.providers
           FROM moved JOIN orders o ON o.order_id = moved.order_id"#,
        before.newest,
        park_unanswered,
    );
    let rows = query.fetch_all(&mut **transaction).await?;
    let count = |matching: usize| i64::try_from(matching).unwrap_or(i64::MAX);
    let accepted = rows.iter().filter(|row| row.was == "accepted").count();
    let parked = rows.iter().filter(|row| row.state == "parked").count();
    let moved = rows.len();
    let changed = changed(moved, accepted, parked);
    mode.record(transaction, count(moved), changed).await?;
    let mut unanswered: Vec<UnansweredOrder> = rows
        .iter()
        .filter(|row| row.unanswered)
        .map(|row| UnansweredOrder {
            order_id: row.order_id.into(),
            partner_id: row.partner_id.into(),
            external_order_id: row.external_order_id.clone(),
        })
        .collect();
    unanswered.sort_unstable_by_key(|order| order.order_id.uuid());
    unanswered.dedup_by_key(|order| order.order_id.uuid());
    let routed = rows.into_iter().filter_map(|row| {
        Some(RoutedPlacement {
            placement_id: row.placement_id.into(),
            order_id: row.order_id.into(),
            providers: row.providers?,
        })
    });
    Ok(RecoveryCounts {
        accepted: count(accepted),
        placing: count(moved - accepted),
        parked: count(parked),
        routed: routed.collect(),
        unanswered,
        parked_before: before.parked,
        newest_order_at: before.newest,
    })
}

/// What is recorded of a recovery that moved so many placements, of which these were `accepted` and
/// these are `parked`.
fn changed(moved: usize, accepted: usize, parked: usize) -> ActionChange {
    ActionChange::between(
        json!({ "accepted": accepted, "placing": moved - accepted }),
        json!({ "placing": moved - parked, "parked": parked }),
    )
}

/// Locks `placements`, so that nothing is claimed between the check for provisioners and the
/// commit.
async fn lock(transaction: &mut Transaction<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!("SELECT set_config('lock_timeout', $1, true)", LOCK_TIMEOUT)
        .fetch_one(&mut **transaction)
        .await?;
    sqlx::query!("LOCK TABLE placements IN SHARE ROW EXCLUSIVE MODE")
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

/// Refuses while a provisioner is connected.
async fn no_provisioner(connection: &mut PgConnection) -> Result<(), NotRecovered> {
    let query = sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM pg_stat_activity
           WHERE datname = current_database() AND application_name = 'provisioner'"#
    );
    let provisioners = query.fetch_one(connection).await?;
    if provisioners > 0 {
        return Err(NotRecovered::Provisioners(provisioners));
    }
    Ok(())
}

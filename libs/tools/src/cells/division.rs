//! The cut by which a cell divides (`esimctl cell divide`): a standby of the whole cell becomes a cell
//! of its own, and each side keeps its own partners (docs/decisions/0036-a-cell-divides.md).
//!
//! # The steps
//!
//! 1. [`freeze`] marks the partners that leave, in the old cell. Ingress answers them with 503, and
//!    the table of orders refuses their new ones.
//! 2. [`unanswered`] counts their orders whose answer may not have left yet. After `answer_by` nobody
//!    changes an answer.
//! 3. [`fence`] hides their rows in the old cell ([`super::membrane`]), and saves the positions of
//!    all walks.
//! 4. When the standby has the fence, it has everything that the old cell has ever done for them. It
//!    is promoted, and the old cell is not needed any more.
//! 5. [`activate`] turns the membrane round in the copy, puts the positions back, deletes what
//!    belongs to processes and people of the old side, and names the cell, in one transaction.
//! 6. [`finish`] removes from the old cell what would make it tell the partners something.
//!
//! # Why nothing is bought twice or lost
//!
//! - **Each order has one owner.** Before the fence that is the old cell, and after the activation
//!   the new one. In between nobody acts for it: the old cell does not see it, and no stage works in
//!   the copy, because its row in `system` still names the old cell and the timeline of the old server
//!   (`pg::primary`).
//! - **A purchase that is in flight** is for the new cell an attempt whose process has died.
//! - **No walk passes what it did not see.** Between the fence and the promotion the sweep of the old
//!   cell walks past the hidden rows, and the copy inherits its position. So both the activation and
//!   [`cancel`] put the saved positions back. What is walked twice does no harm.
//!
//! The row `system.cut` has the state of the division, and the standby copies it. So each step can be
//! repeated, and a division that was interrupted goes on when it is run again.

use pg::{
    Result,
    actions::{self, Action, Changed},
    count,
};
use serde_json::json;
use sqlx::{FromRow, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use super::membrane::{self, TABLES, locked, refuse_orders, run};
pub use super::refusal::NotDivided;

/// The largest difference between the clocks of the two servers, in seconds. It shortens the
/// settling delay.
const SKEW: f64 = 2.0;
/// What a database says of its cell, and of the division that is under way there.
#[derive(Clone, Debug, FromRow, PartialEq, Eq)]
pub struct State {
    /// The name of the cell; `None` if it never divided.
    pub cell: Option<String>,
    pub is_standby: bool,
    /// The cell that divides.
    pub from: Option<String>,
    /// The cell that becomes; `None` if the cell does not divide.
    pub to: Option<String>,
    /// The partners that leave, in the order of their ids.
    pub partners: Vec<Uuid>,
    pub is_fenced: bool,
    /// The division was cancelled when this copy was promoted already, so it is of no use any more.
    pub is_void: bool,
}

pub async fn state(connection: &mut PgConnection) -> Result<State> {
    let query = sqlx::query_as(
        "SELECT cell, pg_is_in_recovery() AS is_standby, cut->>'from' AS from, cut->>'to' AS to,
                ARRAY (SELECT jsonb_array_elements_text(cut->'partners')::uuid) AS partners,
                coalesce(cut ? 'walks', false) AS is_fenced, coalesce(cut ? 'void', false) AS is_void
         FROM system",
    );
    Ok(query.fetch_one(connection).await?)
}

/// Prepares the session of a command. It sees the rows that the membrane hides, because a division that was
/// interrupted after the fence goes on, or is cancelled, with partners that are hidden.
pub async fn begin(connection: &mut PgConnection) -> Result<()> {
    run(
        connection,
        "SET statement_timeout = '60s'; SET idle_in_transaction_session_timeout = '60s'; SET TimeZone = 'UTC'",
    )
    .await?;
    run(connection, membrane::SEE).await
}

/// Refuses while something is under way that a division would break.
async fn check_alone(connection: &mut PgConnection, cell: &str) -> Result<(), NotDivided> {
    let archiving: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM archives WHERE completed_at IS NULL)")
            .fetch_one(&mut *connection)
            .await?;
    if archiving {
        return Err(NotDivided::Archive(cell.to_owned()));
    }
    let role: Option<String> = sqlx::query_scalar(
        "SELECT r.rolname::text FROM pg_stat_activity a JOIN pg_roles r ON r.oid = a.usesysid
         WHERE a.datname = current_database() AND (r.rolsuper OR r.rolbypassrls)
           AND a.application_name IN ('ingress', 'provisioner', 'notifier', 'console') LIMIT 1",
    )
    .fetch_optional(connection)
    .await?;
    match role {
        Some(role) => Err(NotDivided::Bypassed {
            cell: cell.to_owned(),
            role,
        }),
        None => Ok(()),
    }
}

/// Checks that the second server is a standby of the first that keeps up with it.
pub async fn check(
    source: &mut PgConnection,
    target: &mut PgConnection,
    (from, to): (&str, &str),
) -> Result<(), NotDivided> {
    check_alone(source, from).await?;
    let system = "SELECT system_identifier FROM pg_control_system()";
    let a: i64 = sqlx::query_scalar(system).fetch_one(&mut *source).await?;
    let b: i64 = sqlx::query_scalar(system).fetch_one(&mut *target).await?;
    let is_standby = "SELECT pg_is_in_recovery()";
    let standby: bool = sqlx::query_scalar(is_standby)
        .fetch_one(&mut *target)
        .await?;
    if a != b || !standby {
        return Err(NotDivided::NoStandby {
            from: from.to_owned(),
            to: to.to_owned(),
        });
    }
    let written: String = sqlx::query_scalar("SELECT pg_current_wal_lsn()::text")
        .fetch_one(&mut *source)
        .await?;
    // Half a second is enough for a standby that streams.
    let mut replayed = false;
    for _ in 0..10 {
        let query = "SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn";
        replayed = sqlx::query_scalar(query)
            .bind(&written)
            .fetch_one(&mut *target)
            .await?;
        if replayed {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    if !replayed {
        return Err(NotDivided::Behind(to.to_owned()));
    }
    check_clocks(source, target).await
}

async fn check_clocks(
    source: &mut PgConnection,
    target: &mut PgConnection,
) -> Result<(), NotDivided> {
    let query = "SELECT clock_timestamp()";
    let before: OffsetDateTime = sqlx::query_scalar(query).fetch_one(&mut *source).await?;
    let target: OffsetDateTime = sqlx::query_scalar(query).fetch_one(target).await?;
    let after: OffsetDateTime = sqlx::query_scalar(query).fetch_one(source).await?;
    let early = (before - target).as_seconds_f64();
    let late = (target - after).as_seconds_f64();
    if early.max(late) > SKEW {
        return Err(NotDivided::Clocks(early.max(late)));
    }
    Ok(())
}

/// Freezes the partners in the old cell: from the commit on, no order of them can be stored there.
pub async fn freeze(
    source: &mut PgConnection,
    (from, to): (&str, &str),
    partners: &[Uuid],
    action: Action<'_>,
) -> Result<(), NotDivided> {
    locked(source, &["orders"], async |source| {
        let begun = sqlx::query(
            "UPDATE system SET cell = $1, cut = jsonb_build_object(
                 'from', $1::text, 'to', $2::text, 'partners', to_jsonb($3::uuid[]), 'timeline',
                 ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint)
             WHERE coalesce(cell, $1) = $1 AND cut IS NULL",
        );
        let begun = begun.bind(from).bind(to).bind(partners);
        if begun.execute(&mut *source).await?.rows_affected() == 0 {
            return Err(NotDivided::OtherCell(from.to_owned()));
        }
        let mark = sqlx::query(
            "UPDATE partners SET moved_to = $1 WHERE partner_id = ANY ($2) AND moved_to IS NULL",
        );
        let marked = mark.bind(to).bind(partners).execute(&mut *source).await?;
        if count(i64::try_from(marked.rows_affected()).unwrap_or(i64::MAX)) != partners.len() as u64
        {
            return Err(NotDivided::LeftAlready(from.to_owned()));
        }
        refuse_orders(source).await?;
        let changed = Changed::created(json!({ "to": to, "partners": partners }));
        actions::record(source, action, pg::signed(partners.len()).into(), changed).await?;
        Ok(())
    })
    .await
}

/// How many orders of the partners may still get their answer. Their ids begin with the time, so only
/// the newest are read.
pub async fn unanswered(source: &mut PgConnection, partners: &[Uuid]) -> Result<u64> {
    let query = sqlx::query_scalar(
        "SELECT count(*) FROM orders
         WHERE partner_id = ANY ($1) AND answer_by > now()
           AND order_id > rpad(lpad(to_hex((extract(epoch FROM now() - interval '10 minutes') * 1000)::bigint), 12, '0'), 32, '0')::uuid",
    );
    Ok(count(query.bind(partners).fetch_one(source).await?))
}

/// Hides the rows of the partners in the old cell, and saves how far each walk had come until then. A
/// repeat keeps what the first has saved.
pub async fn fence(source: &mut PgConnection) -> Result<(), NotDivided> {
    locked(source, &TABLES, async |source| {
        let saved = sqlx::query(
            "UPDATE system SET cut = cut || jsonb_build_object('walks', (
                 SELECT jsonb_agg(jsonb_build_object('name', name, 'up_to', up_to, 'after', after, 'began_at', began_at)) FROM walks))
             WHERE cut IS NOT NULL AND NOT cut ? 'walks'",
        );
        saved.execute(&mut *source).await?;
        membrane::redraw(source).await?;
        Ok(())
    })
    .await
}

/// Puts the walks back to where the fence has found them, in the transaction of the caller.
async fn put_walks_back(connection: &mut PgConnection) -> Result<()> {
    let put = "UPDATE walks w SET up_to = s.up_to, after = s.after, began_at = s.began_at, fence_at = NULL, fence_xid = NULL
         FROM system, jsonb_to_recordset(cut->'walks') AS s (name text, up_to timestamptz, after text, began_at timestamptz)
         WHERE w.name = s.name";
    run(connection, put).await
}

/// Removes the endpoints of the partners that live elsewhere, so that nothing is told to them from
/// here, in the transaction of the caller. Their access keys stay, so that requests that still arrive
/// get 503 instead of 401.
async fn empty_endpoints(connection: &mut PgConnection) -> Result<()> {
    let statements = "
        UPDATE partners SET has_further_endpoints = false WHERE moved_to IS NOT NULL AND has_further_endpoints;
        DELETE FROM partner_endpoints e USING partners p
        WHERE p.moved_to IS NOT NULL AND e.partner_id = p.partner_id AND (e.nth > 0 OR e.url IS NOT NULL);
        INSERT INTO partner_endpoints (endpoint_id, partner_id, nth)
        SELECT partner_id, partner_id, 0 FROM partners p
        WHERE moved_to IS NOT NULL AND NOT EXISTS (SELECT FROM partner_endpoints e WHERE e.endpoint_id = p.partner_id)";
    run(connection, statements).await
}

/// Makes the copy the cell `name`. A database that is no copy of a cell that divides, and has no name
/// yet, only gets its name. Returns the number of partners that it serves.
pub async fn activate(
    target: &mut PgConnection,
    name: &str,
    action: Action<'_>,
) -> Result<u64, NotDivided> {
    check_alone(target, name).await?;
    locked(target, &TABLES, async |target| {
        run(target, "SELECT FROM system FOR UPDATE").await?;
        let found = state(target).await?;
        let known = found.cell.as_deref().is_none_or(|cell| cell == name);
        match &found.to {
            None if known => {}
            Some(to) if to == name && found.is_fenced && !found.is_void => {
                let statements = "
                    UPDATE partners SET moved_to = CASE WHEN partner_id = ANY (ARRAY (SELECT jsonb_array_elements_text(cut->'partners')::uuid))
                                                        THEN NULL ELSE coalesce(moved_to, cut->>'from') END
                    FROM system;
                    DELETE FROM pulses; DELETE FROM provider_replicas; DELETE FROM provider_lanes;
                    DELETE FROM operator_sessions; DELETE FROM operator_sign_ins;
                    DELETE FROM minutely";
                run(target, statements).await?;
                empty_endpoints(target).await?;
                put_walks_back(target).await?;
                membrane::redraw(target).await?;
            }
            _ => {
                return Err(NotDivided::NotFor {
                    name: name.to_owned(),
                    found: found.cell.unwrap_or_default(),
                });
            }
        }
        let named = sqlx::query("UPDATE system SET cell = $1, cut = NULL");
        named.bind(name).execute(&mut *target).await?;
        let serves = "SELECT count(*) FROM partners WHERE moved_to IS NULL AND erased_at IS NULL";
        let serves: i64 = sqlx::query_scalar(serves).fetch_one(&mut *target).await?;
        let changed = Changed::created(json!({ "cell": name }));
        actions::record(target, action, serves, changed).await?;
        Ok(count(serves))
    })
    .await
}

/// Ends the division in the old cell, once the new one serves the partners.
pub async fn finish(source: &mut PgConnection) -> Result<(), NotDivided> {
    locked(source, &["partner_endpoints"], async |source| {
        empty_endpoints(source).await?;
        run(source, "UPDATE system SET cut = NULL").await?;
        Ok(())
    })
    .await
}

/// Makes a copy that was promoted, and not activated, useless for ever. Fails if it is activated.
pub async fn void(target: &mut PgConnection, name: &str) -> Result<(), NotDivided> {
    let voided = sqlx::query(
        "UPDATE system SET cut = coalesce(cut, '{}') || '{\"void\": true, \"timeline\": 0}' WHERE cell IS DISTINCT FROM $1",
    );
    let voided = voided.bind(name).execute(target).await?;
    if voided.rows_affected() == 0 {
        return Err(NotDivided::Activated(name.to_owned()));
    }
    Ok(())
}

/// Takes the division back in the old cell, which serves the partners again. No copy may be activated
/// any more.
pub async fn cancel(source: &mut PgConnection, action: Action<'_>) -> Result<(), NotDivided> {
    locked(source, &TABLES, async |source| {
        put_walks_back(source).await?;
        let thawed = sqlx::query(
            "UPDATE partners SET moved_to = NULL FROM system
             WHERE moved_to = cut->>'to' AND partner_id = ANY (ARRAY (SELECT jsonb_array_elements_text(cut->'partners')::uuid))",
        );
        let thawed = thawed.execute(&mut *source).await?.rows_affected();
        run(source, "UPDATE system SET cut = NULL").await?;
        membrane::redraw(source).await?;
        let thawed = i64::try_from(thawed).unwrap_or(i64::MAX);
        actions::record(source, action, thawed, Changed::nothing()).await?;
        Ok(())
    })
    .await
}

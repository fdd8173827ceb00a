//! After an old dump was restored: what the database believes of purchases that aren't finished may be
//! long out of date.

use domain::{OrderId, PartnerId};
use serde::Serialize;
use sqlx::{Connection, PgConnection};
use time::OffsetDateTime;

use crate::{
    Error,
    operator::actions::{self, Mode},
};

/// The longest wait for others who write placements.
const LOCK_TIMEOUT: &str = "10s";

/// What was moved, or would be.
#[derive(Clone, Debug, Serialize)]
pub struct Recovered {
    /// Placements that were `accepted`: looked up now, although this database knows of no attempt.
    pub accepted: i64,
    /// Placements that were `placing`: looked up as if their attempt had been recorded just now.
    pub placing: i64,
    /// Of both, those that were parked instead.
    pub parked: i64,
    /// Orders of both that the dump doesn't know to be answered: they may have been refused after it.
    pub unanswered: Vec<Unanswered>,
    /// Placements that had been parked before. Operators may have settled them after the dump.
    pub parked_before: i64,
    /// When the newest order was stored, so the dump is not much younger. What was ordered later is lost.
    #[serde(with = "time::serde::rfc3339::option")]
    pub newest_order_at: Option<OffsetDateTime>,
}

/// An order that may have been answered with 422 after the dump.
#[derive(Clone, Debug, Serialize)]
pub struct Unanswered {
    /// Its id.
    pub order_id: OrderId,
    /// Whose it is.
    pub partner_id: PartnerId,
    /// The partner's id of it.
    pub external_order_id: String,
}

/// Why nothing was moved.
#[derive(Debug, thiserror::Error)]
pub enum NotRecovered {
    /// Provisioners are connected to this database.
    #[error(
        "{0} provisioners' connections are open: stop all provisioners first, they may be buying already"
    )]
    Provisioners(i64),
    /// The database didn't do it.
    #[error(transparent)]
    Store(#[from] Error),
}

impl From<sqlx::Error> for NotRecovered {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Moves every placement that is `accepted` or `placing` to "outcome unknown": `placing`, with an attempt
/// recorded now. So each is looked up by its id before anything is bought, and "no such purchase"
/// counts only after the settling delay, from now on, like that of any attempt.
///
/// What was `accepted` moves along [`domain::placement::Event::Claim`], by a claimant who sends nothing.
/// `park_unanswered` moves those of orders that may have been answered with 422 on to `parked`.
///
/// Doing it twice moves nothing further but begins the settling delay again. Provisioners must not run:
/// one that connects while this runs waits for it.
pub async fn recover(
    connection: &mut PgConnection,
    park_unanswered: bool,
    mode: Mode<'_>,
) -> Result<Recovered, NotRecovered> {
    let mut transaction = connection.begin().await?;
    sqlx::query!("SELECT set_config('lock_timeout', $1, true)", LOCK_TIMEOUT)
        .fetch_one(&mut *transaction)
        .await?;
    // No claim between the look at who is connected and the commit.
    sqlx::query!("LOCK TABLE placements IN SHARE ROW EXCLUSIVE MODE")
        .execute(&mut *transaction)
        .await?;
    let provisioners = sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM pg_stat_activity
           WHERE datname = current_database() AND application_name = 'provisioner'"#
    )
    .fetch_one(&mut *transaction)
    .await?;
    if provisioners > 0 {
        return Err(NotRecovered::Provisioners(provisioners));
    }
    let before = sqlx::query!(
        r#"SELECT (SELECT count(*) FROM placements WHERE state = 'parked') AS "parked!",
                  (SELECT max(created_at) FROM orders) AS newest"#
    )
    .fetch_one(&mut *transaction)
    .await?;
    let rows = sqlx::query!(
        r#"WITH open AS (
               SELECT p.placement_id, p.order_id, p.state AS was, o.answer_by > $1 AS unanswered
               FROM placements p JOIN orders o ON o.order_id = p.order_id
               WHERE p.state IN ('accepted', 'placing')
               FOR UPDATE OF p
           )
           UPDATE placements p
           SET state = CASE WHEN $2 AND open.unanswered THEN 'parked' ELSE 'placing' END,
               attempt = p.attempt + (open.was = 'accepted')::int,
               attempted_at = now(), not_found_at = NULL, unknowns = 0,
               reason = CASE WHEN $2 AND open.unanswered
                             THEN 'restored from a dump: may have been bought, or refused with 422, after it'
                             ELSE 'restored from a dump: may have been bought after it' END,
               redrive_at = CASE WHEN $2 AND open.unanswered THEN NULL ELSE now() END
           FROM open JOIN orders o ON o.order_id = open.order_id
           WHERE p.placement_id = open.placement_id
           RETURNING open.was AS "was!", open.unanswered AS "unanswered!", o.order_id, o.partner_id, o.external_order_id"#,
        before.newest,
        park_unanswered,
    )
    .fetch_all(&mut *transaction)
    .await?;
    let count = |matching: usize| i64::try_from(matching).unwrap_or(i64::MAX);
    actions::finish(transaction, mode, count(rows.len())).await?;
    let accepted = rows.iter().filter(|row| row.was == "accepted").count();
    let mut unanswered: Vec<Unanswered> = rows
        .iter()
        .filter(|row| row.unanswered)
        .map(|row| Unanswered {
            order_id: row.order_id.into(),
            partner_id: row.partner_id.into(),
            external_order_id: row.external_order_id.clone(),
        })
        .collect();
    let parked = if park_unanswered { unanswered.len() } else { 0 };
    unanswered.sort_unstable_by_key(|order| order.order_id.uuid());
    unanswered.dedup_by_key(|order| order.order_id.uuid());
    Ok(Recovered {
        accepted: count(accepted),
        placing: count(rows.len() - accepted),
        parked: count(parked),
        unanswered,
        parked_before: before.parked,
        newest_order_at: before.newest,
    })
}

//! Moves a partner with everything that belongs to it from one cell to another, while both work
//! (`esimctl partner move`).
//!
//! # The steps
//!
//! 1. [`Move::freeze`] marks the partner in the source (`partners.moved_to`), so that ingress
//!    answers its requests with 503. The same transaction adds a check to the table `orders` that
//!    refuses new orders of the partner. So it does not matter whether some ingress still has an
//!    older state of the partner in memory, or continues after a long stall: from this commit on
//!    the source cannot store an order of the partner. The commit waits for inserts that run.
//! 2. [`Move::copy`] and [`Move::release`] move its orders, some at a time. The first deletes them
//!    in the source in a transaction that stays open, inserts what was deleted into the target,
//!    reads it there again, compares it row by row, and commits the target. The second commits the
//!    source.
//! 3. [`Move::copy_events`] moves the deliveries that belong to no order, in the same way.
//! 4. [`Move::activate`] makes the partner known in the target and its work due, in one
//!    transaction.
//! 5. [`Move::finish`] removes from the source what it must not use any more.
//!
//! # Why nothing is bought twice or lost
//!
//! - **The source is the owner of each order whose rows it has; otherwise the target is.** The
//!   deletion in the source is not committed before the rows are committed in the target. A crash
//!   between the two commits leaves the order in both, and then its copy in the target is
//!   [inert](#inert) and is replaced by the next run.
//! - **A stage of the source cannot act for an order that has moved.** Each of its statements finds
//!   placements and deliveries by their rows, under their locks, and these are gone. A claim or a
//!   settlement that runs at this moment either commits before the deletion, which then copies its
//!   result, or finds no row and changes nothing.
//! - **A purchase that is in flight moves as `placing`.** For the target that is an attempt whose
//!   process has died: it is looked up, and is bought again only if the provider has twice denied
//!   it, the second time after the settling delay. The delay is counted from the source's clock, so
//!   [`Move::begin`] compares the clocks of the two servers. It also needs both cells to have the
//!   same account at the provider. For providers where they have not (`separate`), an order moves
//!   only when nothing about it is unknown.
//! - **No webhook precedes its 201**, because an order moves only after its `answer_by`.
//!
//! <a name="inert"></a>
//! **Rows are inert in the target until the partner is activated.** Each row of `work` is due a
//! thousand years later there. Each unfinished placement and delivery gets its row in `work` together with the copy, but a thousand years later than it is
//! due. So no look finds it, and the sweep of the target leaves it alone, because it inserts no
//! second row. Without that, a target whose sweep is behind would take the copy for a forgotten
//! order and buy it, although the source may still do so. Activation takes the thousand years back.
//!
//! Every state between two steps can be told from the rows alone, so there is no record of the
//! steps, and a move that was interrupted continues if it is run again. Locks for the session of
//! both databases keep two moves of a partner apart.

use std::fmt::Write;

use domain::PartnerId;
use pg::{
    CONFLICTS, Result,
    actions::{self, Action, Changed},
};
use serde_json::json;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

pub use super::parts::Moved;
pub use super::refusal::NotMoved;
use super::{
    copy::{self, Rows, TEXT},
    fence::fenced,
    parts::{Ids, Part, array},
};

/// How many orders move together. Their rows are locked for as long as that takes, and a stage that
/// has one of them in a batch waits.
const BATCH: i64 = 200;
/// How much later than they are due the rows of `work` are in the target until it is activated.
const INERT: &str = "interval '1000 years'";
/// How far a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The source serves the partner.
    Source,
    /// The partner is frozen: no cell serves it.
    Frozen,
    /// The target serves the partner.
    Target,
}

/// Which orders may move now.
#[derive(Clone, Copy, Debug)]
pub struct Ready<'a> {
    /// Leaves orders alone whose purchase is under way. It is set in the first seconds, because
    /// most purchases end within them, and a purchase that moves in flight costs a settling delay.
    pub finished_only: bool,
    /// The providers at which the two cells have different accounts.
    pub separate: &'a [String],
    /// The order after which to begin.
    pub after: Uuid,
}

/// A move of one partner between two cells, which holds the locks for it.
pub struct Move<'a> {
    pub partner_id: PartnerId,
    pub source: &'a mut PgConnection,
    pub target: &'a mut PgConnection,
    /// The names of the cells.
    pub from: String,
    pub to: String,
}

/// The text of `partners.moved_to`, or `None` if the cell has no such partner.
async fn moved_to(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<Option<Option<String>>> {
    let query = sqlx::query_scalar("SELECT moved_to FROM partners WHERE partner_id = $1");
    Ok(query
        .bind(partner_id.uuid())
        .fetch_optional(connection)
        .await?)
}

impl Move<'_> {
    /// Checks that the partner can move, locks it in both cells, and says how far an earlier move
    /// has come.
    pub async fn begin(&mut self) -> Result<Phase, NotMoved> {
        for connection in [&mut *self.source, &mut *self.target] {
            let session = format!(
                "{TEXT}; SET statement_timeout = '60s'; SET idle_in_transaction_session_timeout = '60s'"
            );
            copy::run(connection, &session).await?;
        }
        let key = i64::from_be_bytes(
            self.partner_id.uuid().as_bytes()[8..]
                .try_into()
                .unwrap_or_default(),
        );
        // The same key in both, so that two cells that name one database are noticed.
        for connection in [&mut *self.source, &mut *self.target] {
            let locked: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
                .bind(key)
                .fetch_one(connection)
                .await?;
            if !locked {
                return Err(NotMoved::Locked);
            }
        }
        let source = moved_to(self.source, self.partner_id).await?;
        let target = moved_to(self.target, self.partner_id).await?;
        let phase = match (source, target) {
            (None, _) => {
                return Err(NotMoved::Unknown {
                    from: self.from.clone(),
                    to: self.to.clone(),
                });
            }
            (Some(Some(to)), _) if to != self.to => {
                return Err(NotMoved::Elsewhere {
                    from: self.from.clone(),
                    to,
                });
            }
            (Some(None), Some(None)) => {
                return Err(NotMoved::InBoth {
                    cell: self.to.clone(),
                });
            }
            (Some(Some(_)), Some(None)) => return Ok(Phase::Target),
            (Some(Some(_)), _) => Phase::Frozen,
            (Some(None), _) => Phase::Source,
        };
        self.check_clocks().await?;
        self.check_columns().await?;
        self.check_catalogue().await?;
        self.check_providers().await?;
        self.check_resends().await?;
        self.check_keys().await?;
        Ok(phase)
    }

    /// Freezes the partner in the source: from the commit on, no order of it can be stored there.
    ///
    /// If the partner once lived in the target, its row from that time is removed there first, with
    /// the check that would refuse the orders that come back.
    pub async fn freeze(&mut self, action: Action<'_>) -> Result<(), NotMoved> {
        let partner = self.partner_id.uuid();
        if moved_to(self.target, self.partner_id).await?.is_some() {
            let remove = format!("DELETE FROM partners WHERE partner_id = '{partner}'");
            fenced(self.target, &remove, None).await?;
        }
        let to = self.to.replace('\'', "''");
        let mark = format!("UPDATE partners SET moved_to = '{to}' WHERE partner_id = '{partner}'");
        fenced(self.source, &mark, Some(action)).await
    }

    /// Takes the freeze back, as long as nothing has moved. Returns whether that was possible.
    pub async fn thaw(&mut self) -> Result<bool, NotMoved> {
        let query = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM orders WHERE partner_id = $1) OR EXISTS (SELECT FROM deliveries WHERE partner_id = $1)",
        );
        let moved: bool = query
            .bind(self.partner_id.uuid())
            .fetch_one(&mut *self.target)
            .await?;
        if moved {
            return Ok(false);
        }
        let partner = self.partner_id.uuid();
        let mark = format!("UPDATE partners SET moved_to = NULL WHERE partner_id = '{partner}'");
        fenced(self.source, &mark, None).await?;
        Ok(true)
    }

    /// The number of orders that are still in the source.
    pub async fn left(&mut self) -> Result<i64> {
        let left = sqlx::query_scalar("SELECT count(*) FROM orders WHERE partner_id = $1");
        Ok(left
            .bind(self.partner_id.uuid())
            .fetch_one(&mut *self.source)
            .await?)
    }

    /// The next orders that may move, oldest first.
    pub async fn ready(&mut self, ready: Ready<'_>) -> Result<Vec<Uuid>> {
        let orders = sqlx::query_scalar(
            "SELECT order_id FROM orders o
             WHERE partner_id = $1 AND order_id > $2 AND answer_by < now()
               AND NOT EXISTS (
                   SELECT FROM placements p
                   WHERE p.order_id = o.order_id
                     AND (($3 AND p.state IN ('accepted', 'placing'))
                          OR (p.provider = ANY ($4)
                              AND (p.state IN ('placing', 'parked') OR (p.state = 'accepted' AND p.attempt > 0)
                                   OR (p.state = 'placed' AND EXISTS (SELECT FROM work w WHERE w.id = p.placement_id))
                                   OR EXISTS (
                                       SELECT FROM topups t JOIN esim_requests r ON r.topup_id = t.topup_id
                                       WHERE t.placement_id = p.placement_id
                                         AND r.give_back IN ('asked', 'sending', 'parked'))))))
             ORDER BY order_id LIMIT $5",
        );
        Ok(orders
            .bind(self.partner_id.uuid())
            .bind(ready.after)
            .bind(ready.finished_only)
            .bind(ready.separate)
            .bind(BATCH)
            .fetch_all(&mut *self.source)
            .await?)
    }

    /// Moves these orders to the target: they are deleted in the source in a transaction that is
    /// left open, and inserted, compared and committed in the target. Nothing has changed in the
    /// source until [`Self::release`].
    pub async fn copy(&mut self, orders: &[Uuid]) -> Result<Moved, NotMoved> {
        let mut conflicts = 0;
        loop {
            match self.copy_once(Some(orders)).await {
                Err(NotMoved::Store(error)) if error.is_conflict() && conflicts < CONFLICTS => {
                    conflicts += 1;
                    self.roll_back().await?;
                }
                Err(error) => {
                    // The connections may be the cause, and then the servers roll back by
                    // themselves.
                    let _ = self.roll_back().await;
                    return Err(error);
                }
                moved => return moved,
            }
        }
    }

    /// Moves the deliveries that belong to no order of the source any more, which are events about
    /// the partner itself. Like [`Self::copy`] it needs [`Self::release`]. Returns how many there
    /// were.
    pub async fn copy_events(&mut self) -> Result<Moved, NotMoved> {
        let moved = self.copy_once(None).await;
        if moved.is_err() {
            let _ = self.roll_back().await;
        }
        moved
    }

    async fn roll_back(&mut self) -> Result<()> {
        copy::run(self.source, "ROLLBACK").await?;
        copy::run(self.target, "ROLLBACK").await
    }

    async fn copy_once(&mut self, orders: Option<&[Uuid]>) -> Result<Moved, NotMoved> {
        copy::run(self.source, "BEGIN").await?;
        copy::run(self.target, "BEGIN").await?;
        let ids = match orders {
            Some(orders) => Ids::of(self.source, orders.to_vec(), true).await?,
            None => self.events().await?,
        };
        // What an earlier run has copied without releasing it is older than the source. Its ids are
        // found in both, because either side may have rows that the other has not.
        let stale = Ids::of(self.target, ids.orders.clone(), false).await?;
        let mut moved = Moved::default();
        for part in Part::ALL {
            for old in [&stale, &ids] {
                let table = part.table();
                let condition = old.condition(part);
                copy::run(
                    self.target,
                    &format!("DELETE FROM {table} WHERE {condition}"),
                )
                .await?;
            }
            *part.counted(&mut moved) = self.transfer(part, &ids).await?;
        }
        self.add_missing_work(&ids).await?;
        copy::run(self.target, "COMMIT").await?;
        Ok(moved)
    }

    /// The next events of the partner that belong to no order, locked.
    async fn events(&mut self) -> Result<Ids> {
        let deliveries = sqlx::query_scalar(
            "SELECT delivery_id FROM deliveries WHERE partner_id = $1 ORDER BY created_at, delivery_id LIMIT $2 FOR UPDATE",
        );
        Ok(Ids {
            deliveries: deliveries
                .bind(self.partner_id.uuid())
                .bind(BATCH)
                .fetch_all(&mut *self.source)
                .await?,
            ..Ids::default()
        })
    }

    /// Deletes the rows of one table in the source, inserts them into the target, and compares.
    /// Returns their number.
    async fn transfer(&mut self, part: Part, ids: &Ids) -> Result<usize, NotMoved> {
        let table = part.table();
        let columns = copy::columns(self.source, table, &[]).await?;
        let list = columns.join(", ");
        let condition = ids.condition(part);
        let returned = columns.iter().map(|column| match (part, column.as_str()) {
            (Part::Work, "at") => format!("at + {INERT}"),
            // Only provisioners of older schemas look at it. The row of `work` moves.
            (Part::EsimRequests, "at") => "NULL::timestamptz".to_owned(),
            (_, column) => column.to_owned(),
        });
        let returned = returned.collect::<Vec<_>>().join(", ");
        let rows = Rows::out(
            self.source,
            &format!("DELETE FROM {table} WHERE {condition} RETURNING {returned}"),
        )
        .await?;
        rows.insert(self.target, table, &list).await?;
        let stored = Rows::out(
            self.target,
            &format!("SELECT {list} FROM {table} WHERE {condition}"),
        )
        .await?;
        if rows.sorted() != stored.sorted() {
            return Err(NotMoved::Unequal(table));
        }
        Ok(rows.count())
    }

    /// Gives inert work to each unfinished placement and delivery that had none in the source,
    /// because its first lease had not ended. The kinds are those of the sweep.
    async fn add_missing_work(&mut self, ids: &Ids) -> Result<()> {
        let placements = array(&ids.placements, "uuid");
        let deliveries = array(&ids.deliveries, "uuid");
        let insert = format!(
            "INSERT INTO work (id, kind, provider, lane, partner_id, at)
             SELECT placement_id,
                    CASE WHEN state = 'placing' THEN 'find' WHEN attempt = 0 THEN 'buy' ELSE 'buy_again' END,
                    provider, lane, partner_id, now() + {INERT}
             FROM placements WHERE placement_id = ANY ({placements}) AND state IN ('accepted', 'placing')
             UNION ALL
             SELECT delivery_id, 'deliver', '', coalesce(endpoint_id::text, ''), partner_id, now() + {INERT}
             FROM deliveries WHERE delivery_id = ANY ({deliveries}) AND state = 'pending'
             ON CONFLICT DO NOTHING"
        );
        copy::run(self.target, &insert).await
    }

    /// Commits the deletion in the source. From here on the target owns what was copied.
    pub async fn release(&mut self) -> Result<(), NotMoved> {
        Ok(copy::run(self.source, "COMMIT").await?)
    }

    /// Lets the target serve the partner: one transaction inserts the partner and makes its work
    /// due. Fails while the source still has an order.
    pub async fn activate(&mut self, action: Action<'_>, orders: i64) -> Result<(), NotMoved> {
        // What was copied must be released before it is counted, because a deletion that is rolled
        // back later would bring the orders back. If nothing is open, this changes nothing.
        self.release().await?;
        let left = self.left().await?;
        if left > 0 {
            return Err(NotMoved::Left(left));
        }
        copy::run(self.target, "BEGIN").await?;
        let activated = self.activate_once(action, orders).await;
        if activated.is_err() {
            let _ = copy::run(self.target, "ROLLBACK").await;
        }
        activated
    }

    async fn activate_once(&mut self, action: Action<'_>, orders: i64) -> Result<(), NotMoved> {
        let partner = self.partner_id.uuid();
        // `version` is set by a trigger, so that the target's ingress notices the partner.
        // The endpoints come after the partner, because its insert makes an empty first endpoint.
        let of_partner: [(&'static str, &[&str]); 4] = [
            ("partners", &["version", "moved_to"]),
            ("partner_endpoints", &[]),
            ("resends", &[]),
            ("archived_orders", &[]),
        ];
        for (table, except) in of_partner {
            let columns = copy::columns(self.source, table, except).await?;
            let list = columns.join(", ");
            if list.is_empty() {
                // The table is not part of this schema.
                continue;
            }
            let condition = format!("WHERE partner_id = '{partner}'");
            copy::run(self.target, &format!("DELETE FROM {table} {condition}")).await?;
            let select = format!("SELECT {list} FROM {table} {condition}");
            let rows = Rows::out(self.source, &select).await?;
            rows.insert(self.target, table, &list).await?;
            if rows.sorted() != Rows::out(self.target, &select).await?.sorted() {
                return Err(NotMoved::Unequal(table));
            }
        }
        let due = format!(
            "UPDATE work SET at = at - {INERT} WHERE partner_id = '{partner}' AND at > now() + {INERT} / 2 AND at < 'infinity'"
        );
        copy::run(self.target, &due).await?;
        actions::record(
            self.target,
            action,
            orders,
            Changed::created(json!({ "orders": orders })),
        )
        .await?;
        Ok(copy::run(self.target, "COMMIT").await?)
    }

    /// Removes from the source what would make it act for the partner: late events, rows of `work`
    /// that a sweep inserted while an order was leaving, and the URLs and secrets of endpoints. The access
    /// keys stay, so that requests that still arrive get 503 instead of 401.
    pub async fn finish(&mut self) -> Result<(), NotMoved> {
        let partner = self.partner_id.uuid();
        let mut statements = format!(
            "BEGIN;
             UPDATE partners SET has_further_endpoints = false WHERE partner_id = '{partner}' AND moved_to IS NOT NULL;
             DELETE FROM partner_endpoints e USING partners p
             WHERE p.partner_id = '{partner}' AND p.moved_to IS NOT NULL AND e.partner_id = p.partner_id;
             INSERT INTO partner_endpoints (endpoint_id, partner_id, nth) VALUES ('{partner}', '{partner}', 0)
             ON CONFLICT DO NOTHING;
             DELETE FROM delivery_attempts WHERE delivery_id = ANY (ARRAY (
                 SELECT delivery_id FROM deliveries WHERE partner_id = '{partner}'));"
        );
        // What a resend of several partners has sent again stays with it; it has ended.
        if !copy::columns(self.source, "resends", &[]).await?.is_empty() {
            let _ = write!(
                statements,
                "DELETE FROM resends WHERE partner_id = '{partner}' AND batch_id IS NULL;"
            );
        }
        for table in [
            "deliveries",
            "work",
            "held",
            "esim_requests",
            "archived_orders",
        ] {
            if !copy::columns(self.source, table, &[]).await?.is_empty() {
                let _ = write!(
                    statements,
                    "DELETE FROM {table} WHERE partner_id = '{partner}';"
                );
            }
        }
        statements.push_str("COMMIT");
        Ok(copy::run(self.source, &statements).await?)
    }

    /// How many orders, and how many unfinished placements among the newest thousand, the source
    /// has, for a preview.
    pub async fn size(&mut self) -> Result<Size> {
        let query = sqlx::query(
            "SELECT (SELECT count(*) FROM orders WHERE partner_id = $1),
                    (SELECT count(*) FROM placements WHERE state IN ('accepted', 'placing') AND order_id = ANY (ARRAY (
                         SELECT order_id FROM orders WHERE partner_id = $1 ORDER BY order_id DESC LIMIT 1000)))",
        );
        let row = query
            .bind(self.partner_id.uuid())
            .fetch_one(&mut *self.source)
            .await?;
        Ok(Size {
            orders: row.try_get(0)?,
            under_way: row.try_get(1)?,
        })
    }
}

/// What a move would take with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Size {
    pub orders: i64,
    /// Placements whose purchase has no outcome yet, among the newest 1000 orders.
    pub under_way: i64,
}

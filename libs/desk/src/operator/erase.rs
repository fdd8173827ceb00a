//! Erasure on request: of an order, or of a partner with all of its orders (`esimctl order erase`,
//! `esimctl partner erase`).
//!
//! An erased order keeps its ids, ICCIDs, states and times. So no external order id and no ICCID
//! can be used twice, and a purchase that turns up late at the provider still finds its placement.
//! Profiles, responses of endpoints, texts and trace ids are removed.
//!
//! Only finished orders are erased, because otherwise a purchase or a webhook that is under way
//! would write the data again.

use domain::{OrderId, PartnerId};
use pg::{
    Error, TransactionEnd,
    actions::{ActionChange, Mode},
    transaction,
};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

/// How many seconds after a partner was disabled its last orders may be stored: the replicas of
/// ingress learn of the change a little later.
const LAST_ORDERS: f64 = 30.0;

/// What an erasure removes, or has removed, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ErasureCounts {
    pub orders: i64,
    pub profiles: i64,
    /// Recorded attempts of deliveries.
    pub attempts: i64,
    /// Units whose webhook was never acknowledged and will no longer be sent.
    pub undelivered: i64,
}

impl std::ops::AddAssign for ErasureCounts {
    fn add_assign(&mut self, other: Self) {
        self.orders += other.orders;
        self.profiles += other.profiles;
        self.attempts += other.attempts;
        self.undelivered += other.undelivered;
    }
}

/// Why nothing was erased.
#[derive(Debug, thiserror::Error)]
pub enum NotErased {
    #[error("there is no such {0}")]
    Unknown(&'static str),
    #[error(
        "it is not finished: {placements} of its placements and {units} of its units are under way; repeat the command \
         when they are finished, and resolve parked placements with `esimctl placement resolve`"
    )]
    Unfinished {
        /// Placements that are not placed, failed or refused, or wait for an operator.
        placements: i64,
        /// Units that wait for a profile or for an attempt of their webhook.
        units: i64,
    },
    #[error("the partner is enabled; run `esimctl partner set PARTNER --disabled` first")]
    Enabled,
    /// The last orders of the partner may not have work yet, so whether they are finished cannot be
    /// seen.
    #[error("the partner was disabled a moment ago; repeat the command in a minute")]
    TooSoon,
    #[error(
        "{placements} of its placements and {deliveries} of its webhooks are not finished; see `esimctl delivery list \
         --partner` and `esimctl placement list --state parked`"
    )]
    Busy {
        /// Placements with work, and parked ones.
        placements: i64,
        /// Deliveries with work.
        deliveries: i64,
    },
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(NotErased);

pub async fn order(
    connection: &mut PgConnection,
    order_id: OrderId,
    mode: Mode<'_>,
) -> Result<ErasureCounts, NotErased> {
    transaction!(connection, "erase::order", |transaction| {
        sqlx::query_scalar!(
            "SELECT order_id FROM orders WHERE order_id = $1 FOR UPDATE",
            order_id.uuid()
        )
        .fetch_optional(&mut **transaction)
        .await?
        .ok_or(NotErased::Unknown("order"))?;
        // With these locks a resend or a claim that is under way ends before the check below.
        let query = sqlx::query!(
            "WITH placed AS (SELECT placement_id FROM placements WHERE order_id = $1 FOR UPDATE)
         SELECT d.delivery_id FROM placed
         JOIN topups t ON t.placement_id = placed.placement_id
         JOIN esims e ON e.topup_id = t.topup_id
         CROSS JOIN LATERAL unnest(
             e.delivery_id || ARRAY (SELECT f.delivery_id FROM further_deliveries f WHERE f.topup_id = t.topup_id)) AS named (id)
         JOIN deliveries d ON d.delivery_id = named.id
         ORDER BY d.delivery_id
         FOR UPDATE OF d",
            order_id.uuid()
        );
        query.fetch_all(&mut **transaction).await?;
        let query = sqlx::query!(
            r#"SELECT (SELECT count(*) FROM placements p
                   WHERE p.order_id = $1
                     AND (p.state NOT IN ('placed', 'failed', 'refused')
                          OR (SELECT true FROM work w WHERE w.id = p.placement_id))) AS "placements!",
                  (SELECT count(*) FROM placements p
                   JOIN topups t ON t.placement_id = p.placement_id
                   WHERE p.order_id = $1
                     -- A sub-select for each unit, because PostgreSQL could join a whole table instead.
                     AND ((SELECT r.give_back IN ('asked', 'sending', 'claimed', 'parked') OR r.suspension IN ('asked', 'sending')
                           FROM esim_requests r WHERE r.topup_id = t.topup_id)
                          OR (SELECT true FROM extensions x
                              WHERE x.topup_id = t.topup_id AND x.state IN ('asked', 'sending', 'parked'))
                          OR coalesce((SELECT d.state = 'pending' FROM deliveries d
                                    WHERE d.delivery_id = (SELECT e.delivery_id FROM esims e
                                                           WHERE e.topup_id = t.topup_id)),
                                   t.state <> 'failed')
                          OR EXISTS (SELECT FROM deliveries further
                                     WHERE further.delivery_id = ANY (ARRAY (
                                             SELECT f.delivery_id FROM further_deliveries f WHERE f.topup_id = t.topup_id))
                                       AND further.kind = 'topup.ready' AND further.state = 'pending'))) AS "units!""#,
            order_id.uuid()
        );
        let open = query.fetch_one(&mut **transaction).await?;
        if open.placements + open.units > 0 {
            return Err(NotErased::Unfinished {
                placements: open.placements,
                units: open.units,
            });
        }
        let erased = orders(transaction, &[order_id.uuid()]).await?;
        let changed = if erased.orders > 0 {
            ActionChange::between(json!({ "erased": false }), json!({ "erased": erased }))
        } else {
            ActionChange::nothing()
        };
        mode.record(transaction, erased.orders, changed).await?;
        Ok(mode.end(erased))
    })
}

/// Erases these orders in one statement:
///
/// - `unit` lists their units, and `delivery` the deliveries of their eSIMs to all endpoints and
///   the events about them, which are known by their kind.
/// - `profiles` removes the profiles, `late` their rows in the work of retention, and `asked` what
///   was asked about the eSIMs.
/// - `reasons`, `texts` and `history` remove the texts of topups and placements, and of what is
///   remembered of them, and what the partner keeps with them.
/// - `attempts` deletes the recorded attempts, and `waiting` and `webhooks` end deliveries that
///   still waited; their states and times stay.
/// - `events`, `event_attempts`, `event_work` and `event_waiting` delete the events with all that
///   belongs to them.
/// - `erased` removes the trace id and the metadata of each order and marks it as erased.
///
/// Orders that are erased already are not counted again, so the function can be repeated.
async fn orders(
    connection: &mut PgConnection,
    orders: &[Uuid],
) -> Result<ErasureCounts, sqlx::Error> {
    sqlx::query_as!(
        ErasureCounts,
        r#"WITH unit AS MATERIALIZED (
               SELECT t.topup_id, e.delivery_id
               FROM placements p
               JOIN topups t ON t.placement_id = p.placement_id
               LEFT JOIN esims e ON e.topup_id = t.topup_id
               WHERE p.order_id = ANY ($1)
           ), delivery AS MATERIALIZED (
               SELECT delivery_id, false AS is_event FROM unit WHERE delivery_id IS NOT NULL
               UNION ALL
               SELECT d.delivery_id, d.kind <> 'topup.ready' FROM deliveries d
               WHERE d.delivery_id = ANY (ARRAY (
                   SELECT f.delivery_id FROM further_deliveries f
                   WHERE f.topup_id = ANY (ARRAY (SELECT topup_id FROM unit))))
           ), profiles AS (
               UPDATE esims e SET profile = NULL, erased_at = now()
               FROM unit WHERE e.topup_id = unit.topup_id AND e.erased_at IS NULL AND e.ready_at IS NOT NULL
               RETURNING e.topup_id
           ), reasons AS (
               UPDATE topups t SET reason = NULL, metadata = NULL
               FROM unit WHERE t.topup_id = unit.topup_id AND (t.reason IS NOT NULL OR t.metadata IS NOT NULL)
           ), late AS (
               DELETE FROM work WHERE id = ANY (ARRAY (
                   SELECT unnest(work_of_topup(topup_id)) FROM unit))
           ), asked AS (
               DELETE FROM esim_requests WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM unit))
           ), extended AS (
               UPDATE extensions SET message = NULL
               WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM unit)) AND message IS NOT NULL
           ), attempts AS (
               DELETE FROM delivery_attempts
               WHERE delivery_id = ANY (ARRAY (SELECT delivery_id FROM delivery WHERE NOT is_event))
               RETURNING delivery_id
           ), waiting AS (
               DELETE FROM held WHERE id = ANY (ARRAY (SELECT delivery_id FROM delivery WHERE NOT is_event))
               RETURNING id, lane
           ), webhooks AS (
               -- Deliveries keep their states and times; one that waits for a URL will not be sent.
               UPDATE deliveries d
               SET state = CASE WHEN d.state = 'no_endpoint' THEN 'exhausted' ELSE d.state END,
                   error = CASE WHEN d.state <> 'delivered' THEN 'its order was erased' END,
                   traceparent = NULL
               WHERE d.delivery_id = ANY (ARRAY (SELECT delivery_id FROM delivery WHERE NOT is_event))
                 AND (d.state <> 'delivered' OR d.error IS NOT NULL OR d.traceparent IS NOT NULL)
           ), events AS (
               -- Events are deleted with everything that belongs to them.
               DELETE FROM deliveries WHERE delivery_id = ANY (ARRAY (SELECT delivery_id FROM delivery WHERE is_event))
               RETURNING delivery_id, topup_id
           ), unlinked AS (
               DELETE FROM further_deliveries
               WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM events))
                 AND delivery_id = ANY (ARRAY (SELECT delivery_id FROM events))
           ), event_attempts AS (
               DELETE FROM delivery_attempts
               WHERE delivery_id = ANY (ARRAY (SELECT delivery_id FROM delivery WHERE is_event))
           ), event_work AS (
               DELETE FROM work WHERE id = ANY (ARRAY (SELECT delivery_id FROM delivery WHERE is_event))
           ), event_waiting AS (
               DELETE FROM held WHERE id = ANY (ARRAY (SELECT delivery_id FROM delivery WHERE is_event))
           ), texts AS (
               UPDATE placements p SET reason = NULL, refusal_status = NULL, refusal_message = NULL, tried = NULL,
                                       alternatives = NULL, first_claim = NULL
               WHERE p.order_id = ANY ($1)
                 AND (p.reason IS NOT NULL OR p.refusal_status IS NOT NULL OR p.refusal_message IS NOT NULL
                      OR p.tried IS NOT NULL OR p.alternatives IS NOT NULL OR p.first_claim IS NOT NULL)
           ), history AS (
               UPDATE history h SET reason = NULL, detail = NULL, before = NULL, after = NULL
               WHERE h.order_id = ANY ($1)
                 AND (h.reason IS NOT NULL OR h.detail IS NOT NULL OR h.before IS NOT NULL OR h.after IS NOT NULL)
           ), erased AS (
               UPDATE orders o SET traceparent = NULL, metadata = NULL, erased_at = now()
               WHERE o.order_id = ANY ($1) AND o.erased_at IS NULL RETURNING o.order_id
           )
           SELECT (SELECT count(*) FROM erased) AS "orders!", (SELECT count(*) FROM profiles) AS "profiles!",
                  (SELECT count(*) FROM attempts) AS "attempts!", (SELECT count(*) FROM waiting WHERE lane = '') AS "undelivered!""#,
        orders,
    )
    .fetch_one(connection)
    .await
}

/// The number of orders of a disabled partner that can be erased. Fails if one is not finished.
pub async fn partner_orders(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<i64, NotErased> {
    let query = sqlx::query!(
        r#"SELECT disabled_at IS NOT NULL AS "disabled!",
                  coalesce(disabled_at + make_interval(secs => $2) < (SELECT min(up_to) FROM walks WHERE name IN ('placements', 'deliveries')), false) AS "swept!"
           FROM partners WHERE partner_id = $1"#,
        partner_id.uuid(),
        LAST_ORDERS,
    );
    let partner = query
        .fetch_optional(&mut *connection)
        .await?
        .ok_or(NotErased::Unknown("partner"))?;
    if !partner.disabled {
        return Err(NotErased::Enabled);
    }
    // Once the sweep has passed this time, everything unfinished has work, so the counts below are
    // complete.
    if !partner.swept {
        return Err(NotErased::TooSoon);
    }
    let query = sqlx::query!(
        r#"SELECT (SELECT count(*) FROM work WHERE partner_id = $1 AND kind NOT IN ('deliver', 'erase', 'usage', 'moved', 'resend'))
                  + (SELECT count(*) FROM held WHERE partner_id = $1 AND state = 'parked')
                  -- A give-back that is parked, as one under way: the provider may take the eSIM back, or has. So is an extension.
                  + (SELECT count(*) FROM esim_requests
                     WHERE partner_id = $1 AND give_back = 'parked')
                  -- The polls look at each claim, and have an index.
                  + (SELECT count(*) FROM esim_requests
                     WHERE partner_id = $1 AND give_back = 'claimed' AND poll_at IS NOT NULL
                       AND provider = ANY (ARRAY (SELECT name FROM providers)))
                  + (SELECT count(*) FROM extensions
                     WHERE partner_id = $1 AND state = 'parked') AS "placements!",
                  (SELECT count(*) FROM work WHERE partner_id = $1 AND kind = 'deliver')
                  -- Within its first lease, a delivery has no work.
                  + (SELECT count(*) FROM deliveries
                     WHERE partner_id = $1 AND created_at > now() - interval '1 minute' AND state = 'pending')
                  AS "deliveries!""#,
        partner_id.uuid(),
    );
    let open = query.fetch_one(&mut *connection).await?;
    if open.placements + open.deliveries > 0 {
        return Err(NotErased::Busy {
            placements: open.placements,
            deliveries: open.deliveries,
        });
    }
    let orders = sqlx::query_scalar!(
        r#"SELECT count(*) AS "orders!" FROM orders WHERE partner_id = $1 AND refused_at IS NULL"#,
        partner_id.uuid(),
    );
    Ok(orders.fetch_one(connection).await?)
}

/// Erases the name, keys, webhook URL and events of a disabled partner. Its row and its id stay.
/// `orders` is the number of its orders, for the record.
pub async fn partner(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    orders: i64,
    mode: Mode<'_>,
) -> Result<(), NotErased> {
    transaction!(connection, "erase::partner", |transaction| {
        // Checked again, because the state may have changed since the preview.
        partner_orders(transaction, partner_id).await?;
        // `endpoints` removes the endpoints, of which an empty first one is made again, `again` the
        // partner's resends, and `refused` its refused requests. `events`, `attempts` and `waiting`
        // delete the events with their attempts and their rows in `held`; they have no work any
        // more, as was checked above. The last step clears the row of the partner. Its access key
        // becomes `erased-` and its id, because the column must stay filled and unique.
        let statement = sqlx::query!(
            "WITH endpoints AS (
             DELETE FROM partner_endpoints WHERE partner_id = $1
         ), again AS (
             DELETE FROM resends WHERE partner_id = $1
         ), refused AS (
             DELETE FROM refused_requests WHERE partner_id = $1
         ), extended AS (
             UPDATE extensions SET message = NULL WHERE partner_id = $1 AND message IS NOT NULL
         ), events AS (
             DELETE FROM deliveries WHERE partner_id = $1 AND kind <> 'topup.ready' RETURNING delivery_id, topup_id
         ), unlinked AS (
             DELETE FROM further_deliveries
             WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM events))
               AND delivery_id = ANY (ARRAY (SELECT delivery_id FROM events))
         ), attempts AS (
             DELETE FROM delivery_attempts WHERE delivery_id = ANY (ARRAY (SELECT delivery_id FROM events))
         ), waiting AS (
             DELETE FROM held WHERE id = ANY (ARRAY (SELECT delivery_id FROM events))
         )
         UPDATE partners
         SET name = 'erased', access_key = 'erased-' || partner_id, secret_key = NULL, shop = NULL, install_urls = false,
             has_further_endpoints = false, old_access_key = NULL, old_secret_key = NULL, old_keys_until = NULL, erased_at = coalesce(erased_at, now())
         WHERE partner_id = $1 AND disabled_at IS NOT NULL",
            partner_id.uuid(),
        );
        if statement.execute(&mut **transaction).await?.rows_affected() == 0 {
            return Err(NotErased::Enabled);
        }
        accounts::partners::endpoints::make_first(transaction, partner_id).await?;
        accounts::partners::keys::end(transaction, partner_id, None).await?;
        let changed = ActionChange::between(
            json!({ "erased": false }),
            json!({ "erased": true, "orders": orders }),
        );
        mode.record(transaction, orders, changed).await?;
        Ok(mode.end(()))
    })
}

/// Erases the next orders of a partner, also those that were refused, which may have metadata, at
/// most `limit`, that come after `after`. Returns the next
/// `after` if more may be left.
pub async fn partner_batch(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    after: Option<OrderId>,
    limit: u32,
) -> Result<(ErasureCounts, Option<OrderId>), NotErased> {
    transaction!(connection, "erase::partner_batch", |transaction| {
        let query = sqlx::query_scalar!(
            "SELECT order_id FROM orders
         WHERE partner_id = $1 AND order_id > $2
         ORDER BY order_id LIMIT $3",
            partner_id.uuid(),
            after.map_or(Uuid::nil(), OrderId::uuid),
            i64::from(limit),
        );
        let ids = query.fetch_all(&mut **transaction).await?;
        let erased = orders(transaction, &ids).await?;
        let full = u32::try_from(ids.len()).is_ok_and(|read| read >= limit);
        Ok(TransactionEnd::Commit((
            erased,
            ids.last().filter(|_| full).map(|last| OrderId::from(*last)),
        )))
    })
}

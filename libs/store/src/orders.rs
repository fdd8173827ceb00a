//! Orders: stored in batches, refused as a whole.

use std::time::Duration;

use domain::{OptionId, OrderId, PartnerId, PlacementId, TopupId};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    Error, Result, age,
    operator::actions::{self, Action, Mode},
    retry_conflicts, seconds,
    self_service::{PARTNER, REASON},
    signed,
};

#[derive(Clone, Debug)]
pub struct NewOrder {
    pub order_id: OrderId,
    pub partner_id: PartnerId,
    /// The partner's order id, unique per partner.
    pub external_order_id: String,
    /// W3C trace context of the POST.
    pub traceparent: Option<String>,
    /// The order's `answer_by` is this long after the start of the transaction that stores it.
    pub answer_within: Duration,
    /// The ingress process that waits for verdicts on this order, and may answer 422 until
    /// `answer_within` has passed. `None`: the request waits for no verdict.
    pub answering: Option<Uuid>,
    /// The purchases of the order; together they have one topup per unit.
    pub placements: Vec<NewPlacement>,
}

/// The part of a new order that is bought from one provider.
#[derive(Clone, Debug)]
pub struct NewPlacement {
    pub placement_id: PlacementId,
    pub provider: String,
    /// What may fail together at the provider, usually one option; see [`domain::lane`].
    pub lane: String,
    pub topups: Vec<NewTopup>,
}

#[derive(Clone, Debug)]
pub struct NewTopup {
    pub topup_id: TopupId,
    /// The index in the response, from 0.
    pub position: usize,
    pub option_id: OptionId,
    pub provider_option_id: String,
}

/// Stores orders with all parts in one statement. Returns for each whether its external id was still free.
///
/// The rows are written in the order of their unique key: two replicas that store the same keys wait for each
/// other instead of deadlocking.
pub async fn insert(connection: &mut PgConnection, orders: &[NewOrder]) -> Result<Vec<bool>> {
    let mut sorted: Vec<&NewOrder> = orders.iter().collect();
    sorted.sort_unstable_by_key(|order| (&order.external_order_id, order.partner_id));
    let order_ids: Vec<Uuid> = sorted.iter().map(|order| order.order_id.uuid()).collect();
    let partner_ids: Vec<Uuid> = sorted.iter().map(|order| order.partner_id.uuid()).collect();
    let external_ids: Vec<&str> = sorted.iter().map(|order| order.external_order_id.as_str()).collect();
    let traceparents: Vec<Option<&str>> = sorted.iter().map(|order| order.traceparent.as_deref()).collect();
    let answers: Vec<f64> = sorted.iter().map(|order| seconds(order.answer_within)).collect();
    let answering: Vec<Option<Uuid>> = sorted.iter().map(|order| order.answering).collect();

    let mut placements = Placements::default();
    let mut topups = Topups::default();
    for order in &sorted {
        for placement in &order.placements {
            placements.ids.push(placement.placement_id.uuid());
            placements.orders.push(order.order_id.uuid());
            placements.partners.push(order.partner_id.uuid());
            placements.providers.push(&placement.provider);
            placements.lanes.push(&placement.lane);
            for topup in &placement.topups {
                topups.ids.push(topup.topup_id.as_str());
                topups.orders.push(order.order_id.uuid());
                topups.placements.push(placement.placement_id.uuid());
                topups.positions.push(signed(topup.position));
                topups.options.push(topup.option_id.uuid());
                topups.provider_options.push(&topup.provider_option_id);
            }
        }
    }
    let stored: Vec<Uuid> = retry_conflicts!(async {
        let query = sqlx::query_scalar!(
            r#"WITH stored AS (
                   -- An order whose external id is taken is left out, and so are its parts below. The key is
                   -- UNIQUE NULLS NOT DISTINCT, so an id has at most one order that is not refused.
                   INSERT INTO orders (order_id, partner_id, external_order_id, traceparent, answer_by, answering)
                   SELECT order_id, partner_id, external_order_id, traceparent,
                          now() + make_interval(secs => answer_within), answering
                   FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::float8[], $6::uuid[])
                       AS new (order_id, partner_id, external_order_id, traceparent, answer_within, answering)
                   ON CONFLICT (external_order_id, partner_id, refused_at) DO NOTHING RETURNING order_id
               ), new_placements AS (
                   INSERT INTO placements (placement_id, order_id, partner_id, provider, lane)
                   SELECT new.placement_id, new.order_id, new.partner_id, new.provider, new.lane
                   FROM unnest($7::uuid[], $8::uuid[], $9::uuid[], $10::text[], $11::text[])
                       AS new (placement_id, order_id, partner_id, provider, lane)
                   JOIN stored ON stored.order_id = new.order_id
               ), new_topups AS (
                   INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
                   SELECT new.topup_id, new.placement_id, new.position, new.option_id, new.provider_option_id
                   FROM unnest($12::text[], $13::uuid[], $14::uuid[], $15::int[], $16::uuid[], $17::text[])
                       AS new (topup_id, order_id, placement_id, position, option_id, provider_option_id)
                   JOIN stored ON stored.order_id = new.order_id
               )
               SELECT order_id AS "order_id!" FROM stored"#,
            &order_ids,
            &partner_ids,
            &external_ids as &[&str],
            &traceparents as &[Option<&str>],
            &answers,
            &answering as &[Option<Uuid>],
            &placements.ids,
            &placements.orders,
            &placements.partners,
            &placements.providers as &[&str],
            &placements.lanes as &[&str],
            &topups.ids as &[&str],
            &topups.orders,
            &topups.placements,
            &topups.positions,
            &topups.options,
            &topups.provider_options as &[&str],
        );
        Ok::<_, Error>(query.fetch_all(&mut *connection).await?)
    })?;
    let stored: std::collections::HashSet<Uuid> = stored.into_iter().collect();
    Ok(orders.iter().map(|order| stored.contains(&order.order_id.uuid())).collect())
}

#[derive(Default)]
struct Placements<'a> {
    ids: Vec<Uuid>,
    orders: Vec<Uuid>,
    partners: Vec<Uuid>,
    providers: Vec<&'a str>,
    lanes: Vec<&'a str>,
}

#[derive(Default)]
struct Topups<'a> {
    ids: Vec<&'a str>,
    orders: Vec<Uuid>,
    placements: Vec<Uuid>,
    positions: Vec<i32>,
    options: Vec<Uuid>,
    provider_options: Vec<&'a str>,
}

/// Whether a partner has already used an external id.
pub async fn is_taken(connection: &mut PgConnection, partner_id: PartnerId, external_order_id: &str) -> Result<bool> {
    let taken = sqlx::query_scalar!(
        r#"SELECT EXISTS (
               SELECT FROM orders WHERE partner_id = $1 AND external_order_id = $2 AND refused_at IS NULL
           ) AS "taken!""#,
        partner_id.uuid(),
        external_order_id,
    );
    Ok(taken.fetch_one(connection).await?)
}

/// Whether an order that is stored may still be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderStatus {
    /// Ingress can no longer refuse it.
    pub decided: bool,
    /// The longest time until it is decided.
    pub undecided_for: Duration,
}

/// The status of the order with this external id; `None` if there is none, or it is refused. Waits for
/// a [`refuse`] that is under way, so that its result counts.
pub async fn status(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    external_order_id: &str,
) -> Result<Option<OrderStatus>> {
    let query = sqlx::query!(
        r#"SELECT answering IS NULL OR answer_by <= clock_timestamp() OR EXISTS (
                   SELECT FROM placements p WHERE p.order_id = orders.order_id AND p.state IN ('placed', 'parked')
               ) AS "decided!",
               extract(epoch FROM answer_by - clock_timestamp())::float8 AS "undecided_for!"
           FROM orders WHERE partner_id = $1 AND external_order_id = $2 AND refused_at IS NULL
           FOR SHARE OF orders"#,
        partner_id.uuid(),
        external_order_id,
    );
    let row = query.fetch_optional(connection).await?;
    Ok(row.map(|row| OrderStatus { decided: row.decided, undecided_for: age(row.undecided_for) }))
}

/// Why a placement of a refused order was not bought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The provider rejected it.
    Rejected { status: String, message: String },
    /// The provider never got the request.
    NotSent,
}

/// Applies [`domain::placement::Event::Refuse`] to all placements of an order at once, on their stored states: at
/// least one was rejected or not sent, nothing was bought and no attempt is open. Either all placements move and the
/// order is refused, or nothing changes and the result is `None`.
pub async fn refuse(connection: &mut PgConnection, order_id: OrderId) -> Result<Option<Vec<Refusal>>> {
    let mut transaction = sqlx::Connection::begin(connection).await?;
    // The order's lock comes first and the clock is read under it, so that `status` sees the order
    // decided, or refused.
    let query = sqlx::query_scalar!(
        "SELECT order_id FROM orders
         WHERE order_id = $1 AND answering IS NOT NULL AND refused_at IS NULL AND answer_by > clock_timestamp()
         FOR UPDATE",
        order_id.uuid(),
    );
    if query.fetch_optional(&mut *transaction).await?.is_none() {
        transaction.rollback().await?;
        return Ok(None);
    }
    // If no placement was tried, the provider has not refused anything, so the order stands.
    let closed = close(&mut transaction, order_id).await?;
    if !closed.iter().any(|placement| placement.tried) {
        transaction.rollback().await?;
        return Ok(None);
    }
    finish_refusal(&mut transaction, order_id, &closed, false).await?;
    transaction.commit().await?;
    let tried = closed.into_iter().filter(|placement| placement.tried);
    Ok(Some(tried.map(|placement| placement.refusal).collect()))
}

/// A placement that [`close`] moved to `refused`.
struct Closed {
    placement_id: Uuid,
    /// An attempt of it has ended.
    tried: bool,
    refusal: Refusal,
}

/// Moves all placements of a locked order to `refused`; moves and returns none if one is bought, or may be.
/// `close_placements` of `migrations/0002_orders.sql` does this in one step, because ingress may not update placements.
async fn close(connection: &mut PgConnection, order_id: OrderId) -> Result<Vec<Closed>> {
    let query = sqlx::query!(
        r#"SELECT placement_id AS "placement_id!", was = 'failed' OR attempt > 0 AS "tried!", refusal_status,
                  refusal_message
           FROM close_placements($1)"#,
        order_id.uuid(),
    );
    let closed = query.fetch_all(connection).await?.into_iter().map(|row| Closed {
        placement_id: row.placement_id,
        tried: row.tried,
        refusal: match (row.refusal_status, row.refusal_message) {
            (Some(status), Some(message)) => Refusal::Rejected { status, message },
            _ => Refusal::NotSent,
        },
    });
    Ok(closed.collect())
}

/// Marks the order of [`close`]d placements as refused, and its topups as failed.
async fn finish_refusal(
    connection: &mut PgConnection,
    order_id: OrderId,
    closed: &[Closed],
    cancelled: bool,
) -> Result<()> {
    let placements: Vec<Uuid> = closed.iter().map(|placement| placement.placement_id).collect();
    let statement = sqlx::query!(
        "WITH refused AS (
             UPDATE orders SET refused_at = now(), cancelled_at = CASE WHEN $3 THEN now() END WHERE order_id = $1
         )
         UPDATE topups t
         SET state = 'failed',
             reason = coalesce(p.reason, CASE WHEN $3 THEN 'its order was cancelled' ELSE 'its order was refused' END)
         FROM placements p WHERE t.placement_id = ANY ($2) AND p.placement_id = t.placement_id",
        order_id.uuid(),
        &placements,
        cancelled,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// The result of [`cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It is cancelled: nothing is bought, now or later.
    Done,
    /// The answer of its request may still be on its way, at most for this time. Nothing was changed.
    Undecided(Duration),
    /// It is bought, or may be. Nothing was changed.
    TooLate,
    /// No order with this external id stands.
    Unknown,
}

/// Cancels a partner's order if no unit is bought and no attempt is open, by the transition of [`refuse`]. Its external
/// id is free again. Before `answer_by` only the order's own request may refuse it.
pub async fn cancel(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    external_order_id: &str,
) -> Result<Cancelled> {
    let mut transaction = sqlx::Connection::begin(connection).await?;
    let query = sqlx::query!(
        r#"SELECT order_id,
                  greatest(extract(epoch FROM answer_by - clock_timestamp())::float8, 0) AS "undecided_for!"
           FROM orders WHERE partner_id = $1 AND external_order_id = $2 AND refused_at IS NULL FOR UPDATE"#,
        partner_id.uuid(),
        external_order_id,
    );
    let order = query.fetch_optional(&mut *transaction).await?;
    let Some(order) = order else {
        return Ok(Cancelled::Unknown);
    };
    if order.undecided_for > 0.0 {
        return Ok(Cancelled::Undecided(age(order.undecided_for)));
    }
    let order_id = order.order_id.into();
    let closed = close(&mut transaction, order_id).await?;
    if closed.is_empty() {
        transaction.rollback().await?;
        return Ok(Cancelled::TooLate);
    }
    finish_refusal(&mut transaction, order_id, &closed, true).await?;
    let action = Action {
        operator: PARTNER,
        command: "order cancel",
        target: &format!("order {}", order.order_id),
        reason: REASON,
    };
    let affected = i64::try_from(closed.len()).unwrap_or(i64::MAX);
    actions::finish(transaction, Mode::Apply(action), affected).await?;
    Ok(Cancelled::Done)
}

//! Orders: stored in batches, refused as a whole.

use std::time::Duration;

use domain::{OptionId, OrderId, PartnerId, PlacementId, TopupId};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{Error, seconds, signed};

/// How long a new placement waits for its job before redrive picks it up.
const FIRST_REDRIVE: Duration = Duration::from_secs(10);

/// An order to store.
#[derive(Clone, Debug)]
pub struct NewOrder {
    pub order_id: OrderId,
    /// The partner that ordered.
    pub partner_id: PartnerId,
    /// The partner's order id, unique per partner.
    pub external_order_id: String,
    /// W3C trace context of the POST.
    pub traceparent: Option<String>,
    /// Ingress answers within this time from now, or never.
    pub answer_within: Duration,
    /// The purchases of the order; together they have one topup per unit.
    pub placements: Vec<NewPlacement>,
}

/// The part of a new order that is bought from one provider.
#[derive(Clone, Debug)]
pub struct NewPlacement {
    pub placement_id: PlacementId,
    /// The provider that sells it.
    pub provider: String,
    /// The units to buy.
    pub topups: Vec<NewTopup>,
}

/// One unit of a new order.
#[derive(Clone, Debug)]
pub struct NewTopup {
    pub topup_id: TopupId,
    /// The index in the response, from 0.
    pub position: usize,
    /// The ordered option.
    pub option_id: OptionId,
    /// The provider's id of that option.
    pub provider_option_id: String,
}

/// Stores a batch of orders with all their parts in one statement. Returns for each order whether it was
/// stored; if not, its external id was taken.
///
/// The rows are written in the order of their unique key: two replicas that store the same keys wait for each
/// other instead of deadlocking.
pub async fn insert(connection: &mut PgConnection, orders: &[NewOrder]) -> Result<Vec<bool>, Error> {
    let mut sorted: Vec<&NewOrder> = orders.iter().collect();
    sorted.sort_unstable_by_key(|order| (order.partner_id, &order.external_order_id));
    let order_ids: Vec<Uuid> = sorted.iter().map(|order| order.order_id.uuid()).collect();
    let partner_ids: Vec<Uuid> = sorted.iter().map(|order| order.partner_id.uuid()).collect();
    let external_ids: Vec<String> = sorted
        .iter()
        .map(|order| order.external_order_id.clone())
        .collect();
    let traceparents: Vec<Option<String>> = sorted.iter().map(|order| order.traceparent.clone()).collect();
    let answers: Vec<f64> = sorted.iter().map(|order| seconds(order.answer_within)).collect();

    let mut placements = Placements::default();
    let mut topups = Topups::default();
    for order in &sorted {
        for placement in &order.placements {
            placements.ids.push(placement.placement_id.uuid());
            placements.orders.push(order.order_id.uuid());
            placements.providers.push(placement.provider.clone());
            for topup in &placement.topups {
                topups.ids.push(topup.topup_id.to_string());
                topups.placements.push(placement.placement_id.uuid());
                topups.positions.push(signed(topup.position));
                topups.options.push(topup.option_id.uuid());
                topups.provider_options.push(topup.provider_option_id.clone());
            }
        }
    }
    let stored: Vec<Uuid> = sqlx::query_scalar!(
        r#"WITH stored AS (
               INSERT INTO orders (order_id, partner_id, external_order_id, traceparent, answer_by)
               SELECT order_id, partner_id, external_order_id, traceparent, now() + make_interval(secs => answer_within)
               FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::float8[])
                    AS new(order_id, partner_id, external_order_id, traceparent, answer_within)
               ON CONFLICT (partner_id, external_order_id) WHERE NOT refused DO NOTHING
               RETURNING order_id
           ), placed AS (
               INSERT INTO placements (placement_id, order_id, provider, redrive_at)
               SELECT new.placement_id, new.order_id, new.provider, now() + make_interval(secs => $6)
               FROM unnest($7::uuid[], $8::uuid[], $9::text[]) AS new(placement_id, order_id, provider)
               JOIN stored ON stored.order_id = new.order_id
               RETURNING placement_id, order_id, provider
           ), units AS (
               INSERT INTO topups (topup_id, placement_id, order_id, provider, position, option_id, provider_option_id)
               SELECT new.topup_id, new.placement_id, placed.order_id, placed.provider, new.position,
                      new.option_id, new.provider_option_id
               FROM unnest($10::text[], $11::uuid[], $12::int[], $13::uuid[], $14::text[])
                    AS new(topup_id, placement_id, position, option_id, provider_option_id)
               JOIN placed ON placed.placement_id = new.placement_id
           )
           SELECT order_id AS "order_id!" FROM stored"#,
        &order_ids,
        &partner_ids,
        &external_ids,
        &traceparents as &[Option<String>],
        &answers,
        seconds(FIRST_REDRIVE),
        &placements.ids,
        &placements.orders,
        &placements.providers,
        &topups.ids,
        &topups.placements,
        &topups.positions,
        &topups.options,
        &topups.provider_options,
    )
    .fetch_all(connection)
    .await?;
    let stored: std::collections::HashSet<Uuid> = stored.into_iter().collect();
    Ok(orders
        .iter()
        .map(|order| stored.contains(&order.order_id.uuid()))
        .collect())
}

#[derive(Default)]
struct Placements {
    ids: Vec<Uuid>,
    orders: Vec<Uuid>,
    providers: Vec<String>,
}

#[derive(Default)]
struct Topups {
    ids: Vec<String>,
    placements: Vec<Uuid>,
    positions: Vec<i32>,
    options: Vec<Uuid>,
    provider_options: Vec<String>,
}

/// Whether a partner has already used an external id.
pub async fn is_taken(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    external_order_id: &str,
) -> Result<bool, Error> {
    let taken = sqlx::query_scalar!(
        r#"SELECT EXISTS (
               SELECT FROM orders WHERE partner_id = $1 AND external_order_id = $2 AND NOT refused
           ) AS "taken!""#,
        partner_id.uuid(),
        external_order_id,
    )
    .fetch_one(connection)
    .await?;
    Ok(taken)
}

/// Whether the order with this external id is final: `None` if there is no such order, `Some(false)` while
/// ingress may still answer it with 422.
pub async fn stands(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    external_order_id: &str,
) -> Result<Option<bool>, Error> {
    let stands = sqlx::query_scalar!(
        r#"SELECT answer_by <= now() OR EXISTS (
               SELECT FROM placements p
               WHERE p.order_id = orders.order_id AND p.state IN ('placed', 'failed', 'parked')
           ) AS "stands!"
           FROM orders WHERE partner_id = $1 AND external_order_id = $2 AND NOT refused"#,
        partner_id.uuid(),
        external_order_id,
    )
    .fetch_optional(connection)
    .await?;
    Ok(stands)
}

/// Applies [`domain::placement::Event::Refuse`] to all placements of an order at once: those in `verdicts` at
/// the verdict's attempt, all others only if nothing was bought and no attempt is open. Either all placements
/// move and the order is refused, or nothing changes.
pub async fn refuse(
    connection: &mut PgConnection,
    order_id: OrderId,
    verdicts: &[(PlacementId, u32)],
    reason: &str,
) -> Result<bool, Error> {
    let placements: Vec<Uuid> = verdicts.iter().map(|(placement, _)| placement.uuid()).collect();
    let attempts: Vec<i32> = verdicts.iter().map(|(_, attempt)| signed(*attempt)).collect();
    let mut transaction = sqlx::Connection::begin(connection).await?;
    let moved = sqlx::query!(
        "UPDATE placements p SET state = 'refused', reason = $4, redrive_at = NULL
         WHERE p.order_id = $1 AND (
             p.state = 'accepted' OR (p.state = 'placing' AND EXISTS (
                 SELECT FROM unnest($2::uuid[], $3::int[]) AS verdict(placement_id, attempt)
                 WHERE verdict.placement_id = p.placement_id AND verdict.attempt = p.attempt
             ))
         )",
        order_id.uuid(),
        &placements,
        &attempts,
        reason,
    )
    .execute(&mut *transaction)
    .await?
    .rows_affected();
    let all = sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM placements WHERE order_id = $1"#,
        order_id.uuid()
    )
    .fetch_one(&mut *transaction)
    .await?;
    if moved == 0 || i64::try_from(moved) != Ok(all) {
        transaction.rollback().await?;
        return Ok(false);
    }
    sqlx::query!(
        "UPDATE orders SET refused = true WHERE order_id = $1",
        order_id.uuid()
    )
    .execute(&mut *transaction)
    .await?;
    sqlx::query!(
        "UPDATE topups SET state = 'failed', reason = $2 WHERE order_id = $1",
        order_id.uuid(),
        reason
    )
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(true)
}

//! Orders: stored in batches, and refused or cancelled as a whole.
//!
//! Ingress calls these functions. [`insert`] stores orders through its group commit. [`refuse`]
//! turns an order into a 422, [`status`] tells a repeated request whether the stored order may
//! still be refused, and [`cancel`] serves self-service.
//!
//! Guarantees: an external order id is used by at most one order of a partner that stands. An order
//! is refused only if all of its placements certainly bought nothing, and then all of them are
//! refused in one transaction, so nothing of it is bought now or later. Both rest on the row locks
//! of PostgreSQL and not on what a process remembers.

mod limited;
mod refusal;

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use domain::{
    Agreed, Amount, KeyId, Metadata, OptionId, OrderId, PartnerId, PlacementId, StoredAgreed,
    TopupId,
};
use pg::{
    Result, Transaction, TransactionEnd,
    actions::{self, Action, ActionChange},
    age, retry_conflicts, seconds, signed, transaction,
};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

pub use self::{
    limited::{Inserted, insert_limited},
    refusal::PlacementRefusal,
};
use crate::{Unflushed, placements::CopiedOrder};

#[derive(Clone, Debug)]
pub struct NewOrder {
    pub order_id: OrderId,
    pub partner_id: PartnerId,
    /// The order id of the partner, unique among its orders that stand.
    pub external_order_id: String,
    /// The W3C trace context of the create-order request.
    pub traceparent: Option<String>,
    /// How long after the start of the transaction that stores the order its `answer_by` is.
    pub answer_within: Duration,
    /// The ingress process that waits for verdicts on this order, and may answer with 422 until
    /// `answer_within` has passed. `None` if the request does not wait for a verdict.
    pub answering: Option<Uuid>,
    /// The placements of the order. Together they have one topup for each unit.
    pub placements: Vec<NewPlacement>,
    /// What the partner keeps with it.
    pub metadata: Option<Metadata>,
    /// The key that the request was signed with, if that has a limit of units a day.
    pub limited_key: Option<LimitedKey>,
}

/// A key of a partner with a limit of units a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitedKey {
    pub key_id: KeyId,
    pub units_per_day: u32,
}

impl NewOrder {
    /// For tests: an order with a new id, without a trace context, whose answer does not wait for a
    /// verdict. Ingress names every field instead, so that it cannot forget a new one.
    pub fn new(
        partner_id: PartnerId,
        external_order_id: String,
        placements: Vec<NewPlacement>,
    ) -> Self {
        Self {
            order_id: OrderId::new(),
            partner_id,
            external_order_id,
            traceparent: None,
            answer_within: Duration::ZERO,
            answering: None,
            placements,
            metadata: None,
            limited_key: None,
        }
    }

    /// Whether its answer waits for verdicts of the provisioners.
    pub fn awaits_verdicts(&self) -> bool {
        self.answering.is_some()
    }

    /// Whether the partner keeps something with it or with one of its items.
    fn has_metadata(&self) -> bool {
        let mut topups = self.placements.iter().flat_map(|one| &one.topups);
        self.metadata.is_some() || topups.any(|topup| topup.metadata.is_some())
    }

    /// How many units it has.
    fn units(&self) -> i64 {
        let topups = self.placements.iter().map(|one| one.topups.len());
        i64::try_from(topups.sum::<usize>()).unwrap_or(i64::MAX)
    }

    /// What its units cost together; `None` if its partner has no price list. All of them have the
    /// currency of that list.
    pub fn price(&self) -> Option<Amount> {
        let topups = self.placements.iter().flat_map(|one| &one.topups);
        topups
            .filter_map(|topup| topup.agreed.price)
            .reduce(|sum, price| Amount {
                minor: sum.minor.saturating_add(price.minor),
                ..sum
            })
    }

    /// Whether something has to be counted before it may be stored: units of its key, or money of
    /// its partner.
    pub fn is_limited(&self) -> bool {
        self.limited_key.is_some() || self.price().is_some()
    }
}

/// The part of a new order that is bought from one provider.
#[derive(Clone, Debug)]
pub struct NewPlacement {
    pub placement_id: PlacementId,
    pub provider: String,
    /// The lane: what may fail together at the provider, usually one option; see [`domain::lane`].
    pub lane: String,
    /// Where it goes if this provider rejects it, in order of preference.
    pub alternatives: Vec<Alternative>,
    pub topups: Vec<NewTopup>,
}

/// A further provider that sells all options of a placement. It is stored with the placement, so
/// that a later change of the catalogue does not change accepted orders.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Alternative {
    pub provider: String,
    pub lane: String,
    /// The provider's name of each option of the placement.
    pub options: BTreeMap<OptionId, String>,
}

#[derive(Clone, Debug)]
pub struct NewTopup {
    pub topup_id: TopupId,
    /// The index of the unit in the response, from 0.
    pub position: usize,
    pub agreed: Agreed,
    pub provider_option_id: String,
    /// What the partner keeps with its item.
    pub metadata: Option<Metadata>,
}

impl NewTopup {
    /// For tests: a unit of an order, of which nothing else is known.
    pub fn new(
        topup_id: TopupId,
        position: usize,
        option_id: OptionId,
        provider_option_id: impl Into<String>,
    ) -> Self {
        Self {
            topup_id,
            position,
            agreed: Agreed::new(option_id),
            provider_option_id: provider_option_id.into(),
            metadata: None,
        }
    }
}

/// Stores orders with all of their parts in one statement. Returns for each order whether it was
/// stored; it was not if its external id is taken.
///
/// If each of the orders waits for a verdict, the commit returns before the disk has it, unless
/// commits wait for a standby. Its place in the log is certain all the same, and the claim that
/// records the attempt comes later in the log and is flushed before anything is bought. So an order
/// whose purchase was made is never lost. An order of which nobody has claimed anything may be lost
/// with the server, and then nobody may have been told of it, which [`Unflushed`] ensures.
///
/// The orders are sorted by their unique key before they are written, so that two replicas that
/// store the same keys wait for each other instead of deadlocking.
///
/// What partners keep with their orders is added by a second statement of the same transaction, so
/// that a batch of orders without it is written as if there was no such thing.
pub async fn insert(connection: &mut PgConnection, orders: &[NewOrder]) -> Result<Vec<bool>> {
    let all: Vec<&NewOrder> = orders.iter().collect();
    let all_wait = all_wait(orders);
    if !orders.iter().any(NewOrder::has_metadata) {
        return retry_conflicts!(insert_all(&mut *connection, &all, all_wait));
    }
    transaction!(connection, "orders::insert_kept", |transaction| {
        let stored = insert_all(transaction, &all, all_wait).await?;
        keep(transaction, &all, &stored).await?;
        Ok(TransactionEnd::Commit(stored))
    })
}

/// Adds to stored orders what their partners keep with them.
async fn keep(
    transaction: &mut Transaction<'_>,
    orders: &[&NewOrder],
    stored: &[bool],
) -> Result<()> {
    let all = orders.iter().zip(stored).filter(|(_, stored)| **stored);
    let kept = all.map(|(order, _)| order).filter(|one| one.has_metadata());
    let mut of_orders = (Vec::new(), Vec::new());
    let mut of_topups = (Vec::new(), Vec::new());
    for order in kept {
        if let Some(metadata) = &order.metadata {
            of_orders.0.push(order.order_id.uuid());
            of_orders.1.push(metadata.stored());
        }
        for topup in order.placements.iter().flat_map(|one| &one.topups) {
            if let Some(metadata) = &topup.metadata {
                of_topups.0.push(topup.topup_id.as_str());
                of_topups.1.push(metadata.stored());
            }
        }
    }
    if of_orders.0.is_empty() && of_topups.0.is_empty() {
        return Ok(());
    }
    let statement = sqlx::query!(
        "WITH of_orders AS (
             UPDATE orders o SET metadata = new.metadata
             FROM unnest($1::uuid[], $2::text[]) AS new (order_id, metadata) WHERE o.order_id = new.order_id
         )
         UPDATE topups t SET metadata = new.metadata
         FROM unnest($3::text[], $4::text[]) AS new (topup_id, metadata) WHERE t.topup_id = new.topup_id",
        &of_orders.0,
        &of_orders.1,
        &of_topups.0 as &[&str],
        &of_topups.1,
    );
    statement.execute(&mut **transaction).await?;
    Ok(())
}

/// Whether each of the orders waits for a verdict, so that their commit need not wait for the disk.
fn all_wait(orders: &[NewOrder]) -> bool {
    orders.iter().all(NewOrder::awaits_verdicts)
}

/// The statement of [`insert`]. `all_wait` is about all orders of the transaction, because one
/// statement decides for its commit.
async fn insert_all(
    connection: &mut PgConnection,
    orders: &[&NewOrder],
    all_wait: bool,
) -> Result<Vec<bool>> {
    let mut sorted: Vec<&NewOrder> = orders.to_vec();
    sorted.sort_unstable_by_key(|order| (&order.external_order_id, order.partner_id));
    let order_ids: Vec<Uuid> = sorted.iter().map(|order| order.order_id.uuid()).collect();
    let partner_ids: Vec<Uuid> = sorted.iter().map(|order| order.partner_id.uuid()).collect();
    let external_ids: Vec<&str> = sorted
        .iter()
        .map(|order| order.external_order_id.as_str())
        .collect();
    let traceparents: Vec<Option<&str>> = sorted
        .iter()
        .map(|order| order.traceparent.as_deref())
        .collect();
    let seconds_to_answer: Vec<f64> = sorted
        .iter()
        .map(|order| seconds(order.answer_within))
        .collect();
    let answering: Vec<Option<Uuid>> = sorted.iter().map(|order| order.answering).collect();

    let (placements, topups) = parts(&sorted);
    // `stored` stores the orders whose external id is free. `new_placements` and `new_topups` store
    // the parts of these orders only.
    let query = sqlx::query_scalar!(
        r#"WITH stored AS (
                   -- An order whose external id is taken is left out, and so are its parts below. The key is
                   -- UNIQUE NULLS NOT DISTINCT, so an id has at most one order that is not refused. The id may also
                   -- be that of an archived order; the subquery looks it up by one index scan for each order.
                   INSERT INTO orders (order_id, partner_id, external_order_id, traceparent, answer_by, answering)
                   SELECT order_id, partner_id, external_order_id, traceparent,
                          now() + make_interval(secs => answer_within), answering
                   FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::float8[], $6::uuid[])
                       AS new (order_id, partner_id, external_order_id, traceparent, answer_within, answering)
                   -- It sets synchronous_commit for this transaction. Where commits wait for a standby, each one
                   -- does: whoever reads such an order would have to wait for the standby instead, and could read
                   -- nothing while it is gone.
                   CROSS JOIN commit_without_flush($7 AND current_setting('synchronous_standby_names') = '')
                   WHERE (SELECT true FROM archived_orders a
                          WHERE a.external_order_id = new.external_order_id AND a.partner_id = new.partner_id
                            AND NOT a.refused LIMIT 1) IS NULL
                   ON CONFLICT (external_order_id, partner_id, refused_at) DO NOTHING RETURNING order_id
               ), new_placements AS (
                   INSERT INTO placements (placement_id, order_id, partner_id, provider, lane, alternatives, first_claim)
                   SELECT new.placement_id, new.order_id, new.partner_id, new.provider, new.lane,
                          new.alternatives::jsonb, new.first_claim
                   FROM unnest($8::uuid[], $9::uuid[], $10::uuid[], $11::text[], $12::text[], $13::text[], $14::text[])
                       AS new (placement_id, order_id, partner_id, provider, lane, alternatives, first_claim)
                   JOIN stored ON stored.order_id = new.order_id
               ), new_topups AS (
                   INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id, terms)
                   SELECT new.topup_id, new.placement_id, new.position, new.option_id, new.provider_option_id, new.terms
                   FROM unnest($15::text[], $16::uuid[], $17::uuid[], $18::int[], $19::uuid[], $20::text[], $21::text[])
                       AS new (topup_id, order_id, placement_id, position, option_id, provider_option_id, terms)
                   JOIN stored ON stored.order_id = new.order_id
               )
               SELECT order_id AS "order_id!" FROM stored"#,
        &order_ids,
        &partner_ids,
        &external_ids as &[&str],
        &traceparents as &[Option<&str>],
        &seconds_to_answer,
        &answering as &[Option<Uuid>],
        all_wait,
        &placements.ids,
        &placements.orders,
        &placements.partners,
        &placements.providers as &[&str],
        &placements.lanes as &[&str],
        &placements.alternatives as &[Option<String>],
        &placements.first_claims as &[Option<String>],
        &topups.ids as &[&str],
        &topups.orders,
        &topups.placements,
        &topups.positions,
        &topups.options,
        &topups.provider_options as &[&str],
        &topups.terms as &[Option<String>],
    );
    let stored = query.fetch_all(&mut *connection).await?;
    let stored: HashSet<Uuid> = stored.into_iter().collect();
    Ok(orders
        .iter()
        .map(|order| stored.contains(&order.order_id.uuid()))
        .collect())
}

#[derive(Default)]
struct Placements<'a> {
    ids: Vec<Uuid>,
    orders: Vec<Uuid>,
    partners: Vec<Uuid>,
    providers: Vec<&'a str>,
    lanes: Vec<&'a str>,
    alternatives: Vec<Option<String>>,
    first_claims: Vec<Option<String>>,
}

#[derive(Default)]
struct Topups<'a> {
    ids: Vec<&'a str>,
    orders: Vec<Uuid>,
    placements: Vec<Uuid>,
    positions: Vec<i32>,
    options: Vec<Uuid>,
    provider_options: Vec<&'a str>,
    terms: Vec<Option<String>>,
}

/// What the first claim of a placement needs, with the units in the order of the response.
fn first_claim(order: &NewOrder, placement: &NewPlacement) -> CopiedOrder {
    let mut topups: Vec<&NewTopup> = placement.topups.iter().collect();
    topups.sort_unstable_by_key(|topup| topup.position);
    let unit = |topup: &NewTopup| {
        let name = topup.provider_option_id.clone();
        (topup.topup_id.clone(), topup.agreed.stored(), name)
    };
    CopiedOrder::new(
        &order.external_order_id,
        order.traceparent.as_deref(),
        order.answering,
        order.answer_within,
        topups.into_iter().map(unit).collect(),
    )
}

/// The parts of these orders, in the shape of the statement.
fn parts<'a>(orders: &[&'a NewOrder]) -> (Placements<'a>, Topups<'a>) {
    let mut placements = Placements::default();
    let mut topups = Topups::default();
    for order in orders {
        for placement in &order.placements {
            placements.ids.push(placement.placement_id.uuid());
            placements.orders.push(order.order_id.uuid());
            placements.partners.push(order.partner_id.uuid());
            placements.providers.push(&placement.provider);
            placements.lanes.push(&placement.lane);
            let alternatives = (!placement.alternatives.is_empty())
                .then(|| json!(placement.alternatives).to_string());
            placements.alternatives.push(alternatives);
            placements
                .first_claims
                .push(first_claim(order, placement).text());
            for topup in &placement.topups {
                // Every field is named, so that a new one cannot be forgotten.
                let NewTopup {
                    topup_id,
                    position,
                    agreed,
                    provider_option_id,
                    metadata: _,
                } = topup;
                topups.ids.push(topup_id.as_str());
                topups.orders.push(order.order_id.uuid());
                topups.placements.push(placement.placement_id.uuid());
                topups.positions.push(signed(*position));
                let StoredAgreed { option_id, terms } = agreed.stored();
                topups.options.push(option_id.uuid());
                topups.provider_options.push(provider_option_id);
                topups.terms.push(terms);
            }
        }
    }
    (placements, topups)
}

/// Whether an order is stored and survives a crash of the server from now on. It may be gone
/// although [`insert`] has stored it: the server has crashed before the order was flushed.
pub async fn flush_order(connection: &mut PgConnection, order_id: OrderId) -> Result<bool> {
    let stored = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM orders WHERE order_id = $1) AS "exists!""#,
        order_id.uuid()
    );
    let stored = stored.fetch_one(&mut *connection).await?;
    // In the same session: if the server crashes in between, this fails.
    Unflushed::of(stored).after_flush(connection).await
}

/// Whether an order of the partner with this external id stands and can no longer be refused. An
/// archived order still occupies its external id.
pub async fn is_taken(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    external_order_id: &str,
) -> Result<bool> {
    let status = status(connection, partner_id, external_order_id).await?;
    Ok(status.is_some_and(|status| status.decided))
}

/// Whether a stored order may still be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderStatus {
    /// The order; `None` if it is archived.
    pub order_id: Option<OrderId>,
    /// Ingress can no longer refuse the order.
    pub decided: bool,
    /// The longest time until that is so.
    pub undecided_for: Duration,
}

/// The status of the order with this external id; `None` if there is none or it is refused. If a
/// [`refuse`] of the order is under way, this waits for its end, so that the result is the final
/// one. Otherwise a repeated request could be told that the order stands while its first request is
/// answered with 422. An archived order has long been decided.
///
/// It is one statement, so that it is about one order. When the refusal frees the external id, a
/// further request may store an order with the same id right after it. A second statement would see
/// that order, which is not decided, and the first one would not have looked at it.
///
/// The result is no [`Unflushed`], because the row lock is written to the log behind the order, so
/// the commit of this statement flushes both.
pub async fn status(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    external_order_id: &str,
) -> Result<Option<OrderStatus>> {
    // An order can no longer be refused if its answer never waited for a verdict, if its deadline
    // has passed, or if something of it is bought. `clock_timestamp()` is the current time, unlike
    // `now()`, which is the start of the transaction.
    let query = sqlx::query!(
        r#"WITH standing AS (
               SELECT order_id, answering IS NULL OR answer_by <= clock_timestamp() OR EXISTS (
                          SELECT FROM placements p
                          WHERE p.order_id = orders.order_id AND p.state IN ('placed', 'parked')
                      ) AS decided,
                      extract(epoch FROM answer_by - clock_timestamp())::float8 AS undecided_for
               FROM orders WHERE partner_id = $1 AND external_order_id = $2 AND refused_at IS NULL
               FOR SHARE OF orders
           )
           SELECT order_id, decided AS "decided!", undecided_for AS "undecided_for!" FROM standing
           UNION ALL
           SELECT NULL, true, 0
           WHERE NOT EXISTS (SELECT FROM standing) AND EXISTS (
               SELECT FROM archived_orders WHERE partner_id = $1 AND external_order_id = $2 AND NOT refused)"#,
        partner_id.uuid(),
        external_order_id,
    );
    let found = query.fetch_optional(&mut *connection).await?;
    Ok(found.map(|row| OrderStatus {
        order_id: row.order_id.map(OrderId::from),
        decided: row.decided,
        undecided_for: age(row.undecided_for),
    }))
}

/// A unit as the answer of its order lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderedUnit {
    pub topup_id: TopupId,
    pub option_id: OptionId,
    pub metadata: Option<Metadata>,
}

/// What an order asked for: its units in the order of its answer, and what its partner keeps with
/// it. It never changes, until the order is erased or archived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderedUnits {
    /// None if the order was archived.
    pub units: Vec<OrderedUnit>,
    pub metadata: Option<Metadata>,
    /// What its partner kept with it was erased.
    pub is_erased: bool,
}

/// What the order with this id asked for.
///
/// They are no [`Unflushed`], because only [`status`] names the order, and has flushed it.
pub async fn units(connection: &mut PgConnection, order_id: OrderId) -> Result<OrderedUnits> {
    let query = sqlx::query!(
        r#"SELECT t.topup_id, t.option_id, t.metadata, o.erased_at IS NOT NULL AS "erased!",
                  CASE WHEN t.position = 0 THEN o.metadata END AS order_metadata
           FROM placements p JOIN topups t ON t.placement_id = p.placement_id JOIN orders o ON o.order_id = p.order_id
           WHERE p.order_id = $1 ORDER BY t.position"#,
        order_id.uuid(),
    );
    let mut ordered = OrderedUnits::default();
    let read = |stored: Option<String>| stored.as_deref().map(Metadata::read).transpose();
    for row in query.fetch_all(&mut *connection).await? {
        ordered.is_erased = row.erased;
        ordered.metadata = ordered.metadata.or(read(row.order_metadata)?);
        ordered.units.push(OrderedUnit {
            topup_id: row.topup_id.try_into()?,
            option_id: row.option_id.into(),
            metadata: read(row.metadata)?,
        });
    }
    Ok(ordered)
}

/// Refuses an order for ingress, which then answers with 422. Applies
/// [`domain::placement::PlacementEvent::Refuse`] to all placements of the order at once, judged by
/// their stored states: an attempt of at least one has ended, none is bought, and no attempt is
/// open. Either all placements move and the order is refused, or nothing changes and the result is
/// `None`: a placement is bought or may be, none was attempted, or the order is gone or too late.
/// Who gets `None` may still send no 201 without [`flush_order`], which fails for an order that is
/// gone, and the connection sends none after `answer_by`.
///
/// If the order `is_priced`, the account of its partner is locked before anything is changed; see
/// [`insert_limited`].
pub async fn refuse(
    connection: &mut PgConnection,
    order_id: OrderId,
    is_priced: bool,
) -> Result<Option<Vec<PlacementRefusal>>> {
    transaction!(connection, "orders::refuse", |transaction| {
        // The order is locked before its placements are judged. `status` takes the same lock, so it
        // waits for a refusal that is under way and sees its result. The deadline is compared with
        // the current time, because `now()` would be the start of the transaction.
        let query = sqlx::query_scalar!(
            "SELECT order_id FROM orders
         WHERE order_id = $1 AND answering IS NOT NULL AND refused_at IS NULL AND answer_by > clock_timestamp()
         FOR UPDATE",
            order_id.uuid(),
        );
        if query.fetch_optional(&mut **transaction).await?.is_none() {
            return Ok(TransactionEnd::Rollback(None));
        }
        if is_priced {
            lock_account(transaction, order_id).await?;
        }
        // If no attempt was made, the provider has not refused anything, so the order stands.
        let refused = refuse_or_cancel(transaction, order_id, false).await?;
        if !refused.iter().any(|placement| placement.was_attempted) {
            return Ok(TransactionEnd::Rollback(None));
        }
        let attempted = refused.into_iter().filter(|one| one.was_attempted);
        Ok(TransactionEnd::Commit(Some(
            attempted.map(|one| one.refusal).collect(),
        )))
    })
}

/// Locks the account of the partner of a locked order, before the order is changed.
async fn lock_account(transaction: &mut Transaction<'_>, order_id: OrderId) -> Result<()> {
    let lock = sqlx::query!(
        "SELECT lock_accounts(ARRAY (SELECT placement_id FROM placements WHERE order_id = $1))",
        order_id.uuid(),
    );
    lock.execute(&mut **transaction).await?;
    Ok(())
}

/// A placement that [`refuse_or_cancel`] moved to `refused`.
struct RefusedPlacement {
    /// Whether an attempt of it has ended.
    was_attempted: bool,
    refusal: PlacementRefusal,
}

/// Refuses or cancels a locked order: moves all of its placements to `refused` and returns them,
/// fails its units, and marks the order. If one is bought or may be bought, it changes nothing and
/// returns none. The function `refuse_order` does this (its text is in `libs/pg/schema.sql`),
/// because ingress has no privilege to do any of it itself.
async fn refuse_or_cancel(
    transaction: &mut Transaction<'_>,
    order_id: OrderId,
    is_cancelled: bool,
) -> Result<Vec<RefusedPlacement>> {
    let query = sqlx::query!(
        r#"SELECT closed.was = 'failed' OR closed.attempt > 0 AS "was_attempted!",
                  closed.refusal_status, closed.refusal_message, closed.reason
           FROM refuse_order($1, $2) closed"#,
        order_id.uuid(),
        is_cancelled,
    );
    let rows = query.fetch_all(&mut **transaction).await?;
    let refused = rows.into_iter().map(|row| RefusedPlacement {
        was_attempted: row.was_attempted,
        refusal: PlacementRefusal::read(
            row.refusal_status,
            row.refusal_message,
            row.reason.as_deref(),
        ),
    });
    Ok(refused.collect())
}

/// The result of [`cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderCancellation {
    /// The order is cancelled, so nothing of it is bought, now or later.
    Done(OrderId),
    /// The newest order with this external id was cancelled before. Nothing was changed.
    Before(OrderId),
    /// The request that created the order may still be unanswered, at most for this time. Nothing
    /// was changed.
    Undecided { order_id: OrderId, rest: Duration },
    /// Something of the order is bought or may be bought. Nothing was changed.
    TooLate,
    /// The newest order with this external id was answered with 422.
    Refused,
    /// The order with this external id was moved into the archive.
    Archived,
    /// The partner has no order with this external id.
    Unknown,
}

/// Cancels an order at the request of its partner, if nothing of it is bought and no attempt is
/// open. This is the same transition as that of [`refuse`], and frees the external id. Before
/// `answer_by` only the request that created the order may refuse it, so that a partner cannot
/// cancel an order and get a 201 for it afterwards. That does not hold for the order `answered`,
/// because the process that answered it has said that its answer has left.
///
/// One statement finds the order that is judged: the one that stands, or else the newest that was
/// refused. A second statement might find another one that was stored in the meantime.
pub async fn cancel(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    external_order_id: &str,
    answered: Option<OrderId>,
) -> Result<OrderCancellation> {
    transaction!(connection, "orders::cancel", |transaction| {
        let query = sqlx::query!(
            r#"WITH newest AS (
               SELECT order_id, refused_at, cancelled_at,
                      greatest(extract(epoch FROM answer_by - clock_timestamp())::float8, 0) AS undecided_for
               FROM orders WHERE partner_id = $1 AND external_order_id = $2
               -- The order of the unique index, read backwards.
               ORDER BY refused_at DESC NULLS FIRST LIMIT 1 FOR UPDATE
           )
           SELECT n.order_id AS "order_id?", n.refused_at, n.cancelled_at, n.undecided_for,
                  EXISTS (SELECT FROM archived_orders WHERE partner_id = $1 AND external_order_id = $2) AS "archived!"
           FROM (VALUES (true)) one LEFT JOIN newest n ON true"#,
            partner_id.uuid(),
            external_order_id,
        );
        let found = query.fetch_one(&mut **transaction).await?;
        let Some(order_id) = found.order_id.map(OrderId::from) else {
            return Ok(TransactionEnd::Rollback(if found.archived {
                OrderCancellation::Archived
            } else {
                OrderCancellation::Unknown
            }));
        };
        if found.cancelled_at.is_some() {
            return Ok(TransactionEnd::Rollback(OrderCancellation::Before(
                order_id,
            )));
        }
        if found.refused_at.is_some() {
            return Ok(TransactionEnd::Rollback(OrderCancellation::Refused));
        }
        let undecided_for = found.undecided_for.unwrap_or_default();
        if undecided_for > 0.0 && answered != Some(order_id) {
            return Ok(TransactionEnd::Rollback(OrderCancellation::Undecided {
                order_id,
                rest: age(undecided_for),
            }));
        }
        lock_account(transaction, order_id).await?;
        let refused = refuse_or_cancel(transaction, order_id, true).await?;
        if refused.is_empty() {
            return Ok(TransactionEnd::Rollback(OrderCancellation::TooLate));
        }
        let target = format!("order {order_id}");
        let action = Action::of_partner(domain::Command::OrderCancel, &target);
        let affected = i64::try_from(refused.len()).unwrap_or(i64::MAX);
        let changed = ActionChange::between(
            json!({ "cancelled": false, "placements": "accepted" }),
            json!({ "cancelled": true, "placements": "refused" }),
        );
        actions::record(transaction, action, affected, changed).await?;
        Ok(TransactionEnd::Commit(OrderCancellation::Done(order_id)))
    })
}

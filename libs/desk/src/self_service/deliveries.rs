//! The deliveries of a partner: those of its units one by one, all of them as a list, and the
//! resend of one of them at its request. [`store::deliveries::resends`] sends many again.

use std::time::Duration;

use domain::{
    DeliveryId, EndpointId, MaybeStored, PartnerId, Stored, TopupId, WebhookId,
    standing::DeliveryState,
};
use pg::{
    Result, TransactionEnd,
    actions::{self, Action, ActionChange, Mode},
    age, seconds, transaction,
};
use serde_json::json;
use sqlx::PgConnection;
use store::{
    Unflushed,
    deliveries::{
        View, WalkPosition,
        resends::DeliveryFilter,
        view,
        walk::{Kinds, Matching, Walk, WalkOrder, WalkSource},
    },
};
use time::OffsetDateTime;

use crate::operator::deliveries::{self, AttemptView, Resendable, resendable};

/// The maximum number of attempts of a delivery that are shown; older ones are left out.
const MOST_ATTEMPTS: i64 = 100;
/// The maximum number of deliveries to further endpoints that are shown for a unit. It is more than
/// a partner can have at once, because some may have been deleted.
const MOST_FURTHER: i64 = 30;

/// The delivery of one of the partner's units.
#[derive(Clone, Debug)]
pub struct UnitDelivery {
    /// `None` before the unit is ready.
    pub id: Option<DeliveryId>,
    /// None before the unit is ready.
    pub state: MaybeStored<DeliveryState>,
    pub delivered_at: Option<OffsetDateTime>,
    /// When the next attempt is due.
    pub next_attempt_at: Option<OffsetDateTime>,
    /// The newest attempts, in the order of time.
    pub attempts: Vec<AttemptView>,
    /// The deliveries of the same unit to further endpoints.
    pub further: Vec<FurtherDelivery>,
}

/// The delivery of a unit to a further endpoint.
#[derive(Clone, Debug)]
pub struct FurtherDelivery {
    pub id: DeliveryId,
    pub endpoint_id: EndpointId,
    pub state: Stored<DeliveryState>,
    pub delivered_at: Option<OffsetDateTime>,
    pub next_attempt_at: Option<OffsetDateTime>,
    pub attempts: Vec<AttemptView>,
}

/// The delivery of a unit with its attempts, and those to further endpoints; `None` if the partner
/// has no such unit. The next attempt is not made before a block of the endpoint ends, and a pause
/// has no known end.
pub async fn delivery(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
) -> Result<Unflushed<Option<UnitDelivery>>> {
    let query = sqlx::query!(
        "SELECT u.delivery_id, u.delivery AS state, u.delivered_at,
                (SELECT nullif(greatest(w.at, e.blocked_until), 'infinity')
                 FROM work w LEFT JOIN partner_endpoints e ON e.endpoint_id = u.partner_id
                 WHERE w.id = u.delivery_id) AS at
         FROM partner_units u
         WHERE u.topup_id = $2 AND u.partner_id = $1",
        partner_id.uuid(),
        topup_id.as_str(),
    );
    let Some(row) = query.fetch_optional(&mut *connection).await? else {
        return Ok(Unflushed::of(None));
    };
    let id = row.delivery_id.map(DeliveryId::from);
    let made = match id {
        Some(id) => attempts(connection, id).await?,
        None => Vec::new(),
    };
    Ok(Unflushed::of(Some(UnitDelivery {
        id,
        state: row.state.into(),
        delivered_at: row.delivered_at,
        next_attempt_at: row.at,
        attempts: made,
        further: further(connection, topup_id).await?,
    })))
}

/// The deliveries of a unit to further endpoints. The caller has checked whose unit it is.
async fn further(
    connection: &mut PgConnection,
    topup_id: &TopupId,
) -> Result<Vec<FurtherDelivery>> {
    let query = sqlx::query!(
        r#"SELECT d.delivery_id, d.endpoint_id AS "endpoint_id!", d.state, d.delivered_at,
                  (SELECT nullif(greatest(w.at, e.blocked_until), 'infinity')
                   FROM work w LEFT JOIN partner_endpoints e ON e.endpoint_id = d.endpoint_id
                   WHERE w.id = d.delivery_id) AS at
           FROM further_deliveries f JOIN deliveries d ON d.delivery_id = f.delivery_id
           WHERE f.topup_id = $1 AND d.kind = 'topup.ready'
           ORDER BY d.created_at, d.delivery_id LIMIT $2"#,
        topup_id.as_str(),
        MOST_FURTHER,
    );
    let rows = query.fetch_all(&mut *connection).await?;
    let mut further = Vec::with_capacity(rows.len());
    for row in rows {
        let id = DeliveryId::from(row.delivery_id);
        further.push(FurtherDelivery {
            id,
            endpoint_id: row.endpoint_id.into(),
            state: row.state.into(),
            delivered_at: row.delivered_at,
            next_attempt_at: row.at,
            attempts: attempts(connection, id).await?,
        });
    }
    Ok(further)
}

/// The newest attempts of a delivery, in the order of time. This statement does not filter by the
/// partner, so the caller must have checked that the delivery is its own.
pub async fn attempts(connection: &mut PgConnection, id: DeliveryId) -> Result<Vec<AttemptView>> {
    deliveries::attempts(connection, id, MOST_ATTEMPTS).await
}

/// The maximum number of deliveries that one page looks at. A filter by time leaves out some of
/// them, and this bounds the work of a request that finds few.
const LOOKED_AT: usize = 5_000;

/// A page of a partner's deliveries.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeliveryPage {
    /// Only deliveries in this state.
    pub state: Option<DeliveryState>,
    /// The range of the last attempt, or of the creation before the first one; the end is excluded.
    pub since: Option<OffsetDateTime>,
    pub until: Option<OffsetDateTime>,
    /// The position after which the page begins.
    pub after: Option<WalkPosition>,
    pub limit: u16,
}

/// Lists a partner's deliveries of all kinds. The newest come first; pending ones come in the order
/// of their next attempts if only these are asked for. Also returns the position of the next page,
/// unless this one is the last. A page with a filter may be short, or even empty, although it is
/// not the last one.
pub async fn deliveries(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    page: &DeliveryPage,
) -> Result<Unflushed<(Vec<View>, Option<WalkPosition>)>> {
    let mut walk = Walk {
        partner_id,
        source: WalkSource::of(page.state),
        order: WalkOrder::NewestFirst,
        matching: Matching {
            state: page.state,
            since: page.since,
            until: page.until,
            kinds: Kinds::All,
        },
        after: page.after,
    };
    let found = walk.find(connection, page.limit.into(), LOOKED_AT).await?;
    let mut views = view::read(connection, &found.ids).await?;
    views.retain(|view| !view.is_unconfirmed);
    let after = walk.after.filter(|_| !found.ended);
    Ok(Unflushed::of((views, after)))
}

/// The result of [`send_again`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentAgain {
    /// It is sent again now, and its retries begin anew.
    Again,
    /// It is due soon anyway, or an attempt is in flight, and its retries have just begun, or the
    /// last attempt is younger than the interval.
    Due,
    /// The last attempt is younger than the interval; this much time is left.
    TooSoon(Duration),
    NotReady,
    /// The profile was erased, or the event is [gone](deliveries::Resendable::gone).
    Gone,
    NoEndpoint,
    /// The partner has no such endpoint.
    NotMyEndpoint,
    Unknown,
}

/// Sends one webhook of a partner again, unless its last attempt is younger than `interval`. A unit
/// has a delivery to each endpoint; without `endpoint` the one to the first endpoint is meant. An
/// endpoint that is newer than the unit has none, and gets one. The facts are read first, so that
/// the partner gets the right reason for a refusal. The resend then checks the interval once more
/// under the lock of the row. If another request was faster, this one gets the answer that it would
/// have got right after that one.
pub async fn send_again(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    webhook_id: &WebhookId,
    endpoint: Option<EndpointId>,
    interval: Duration,
) -> Result<SentAgain> {
    let id = match find(connection, partner_id, webhook_id, endpoint).await? {
        Found::Delivery(id) => id,
        Found::Unsent(unsent) => return deliver_to(connection, partner_id, unsent).await,
        Found::NotReady => return Ok(SentAgain::NotReady),
        Found::Erased => return Ok(SentAgain::Gone),
        Found::NotMyEndpoint => return Ok(SentAgain::NotMyEndpoint),
        Found::Nothing => return Ok(SentAgain::Unknown),
    };
    let Some(mut delivery) = resendable(connection, id).await? else {
        return Ok(SentAgain::Unknown);
    };
    if without_resend(&delivery, interval) == Some(SentAgain::Due) {
        if restart(connection, partner_id, webhook_id, id, interval).await? {
            return Ok(SentAgain::Again);
        }
        // The attempt that was in flight may have ended meanwhile, as the last one of its schedule.
        match resendable(connection, id).await? {
            Some(now) => delivery = now,
            None => return Ok(SentAgain::Unknown),
        }
    }
    if let Some(answer) = without_resend(&delivery, interval) {
        return Ok(answer);
    }
    let (command, target) = recorded(webhook_id);
    let mode = Mode::Apply(Action::of_partner(command, &target));
    let filter = DeliveryFilter {
        partner_id: Some(partner_id),
        until: Some(delivery.now - interval),
        ..DeliveryFilter::default()
    };
    let resent = deliveries::resend_one(connection, id, &filter, mode).await?;
    if resent.resent > 0 {
        return Ok(SentAgain::Again);
    }
    // The facts have changed in the meantime: another request, an operator or the notifier was
    // faster.
    let now = resendable(connection, id).await?;
    Ok(match now {
        Some(now) => without_resend(&now, interval).unwrap_or(SentAgain::Due),
        None => SentAgain::Unknown,
    })
}

/// Sends a ready unit to an endpoint that has no delivery of it yet. Of two requests at once one
/// makes the delivery, and the other one finds it due.
async fn deliver_to(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    Unsent { topup_id, endpoint }: Unsent,
) -> Result<SentAgain> {
    transaction!(connection, "deliveries::deliver_to", |transaction| {
        let query = sqlx::query_scalar!(
            "SELECT deliver_to($1, $2, $3)",
            partner_id.uuid(),
            topup_id.as_str(),
            endpoint.uuid(),
        );
        if query.fetch_one(&mut **transaction).await?.is_none() {
            return Ok(TransactionEnd::Rollback(SentAgain::Due));
        }
        let (command, target) = recorded(&WebhookId::Topup(topup_id.clone()));
        let action = Action::of_partner(command, &target);
        let changed = ActionChange::between(
            json!({ "pending": 0 }),
            json!({ "pending": 1, "endpoint": endpoint.to_string() }),
        );
        actions::record(transaction, action, 1, changed).await?;
        Ok(TransactionEnd::Commit(SentAgain::Again))
    })
}

/// How such a resend is recorded: its command and its target.
fn recorded(webhook_id: &WebhookId) -> (domain::Command, String) {
    match webhook_id {
        WebhookId::Topup(id) => (domain::Command::TopupRedeliver, format!("topup {id}")),
        WebhookId::Event(_) => (
            domain::Command::EventRedeliver,
            format!("event {webhook_id}"),
        ),
    }
}

/// Begins the retries of a delivery anew whose next attempt is due soon anyway, or is in flight.
/// This attempt is then the first of the schedule. Returns whether anything changed: the first
/// attempt may not have ended yet, the schedule may have just begun, or its last attempt is younger
/// than `interval`, because the first waits of a schedule are short.
async fn restart(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    webhook_id: &WebhookId,
    id: DeliveryId,
    interval: Duration,
) -> Result<bool> {
    transaction!(connection, "deliveries::restart", |transaction| {
        let statement = sqlx::query!(
            "UPDATE deliveries SET schedule_start = attempt
         WHERE delivery_id = $1 AND partner_id = $2 AND state = 'pending' AND attempt > schedule_start
           AND greatest(attempted_at, created_at) <= clock_timestamp() - make_interval(secs => $3)",
            id.uuid(),
            partner_id.uuid(),
            seconds(interval),
        );
        if statement.execute(&mut **transaction).await?.rows_affected() == 0 {
            return Ok(TransactionEnd::Rollback(false));
        }
        let (command, target) = recorded(webhook_id);
        let action = Action::of_partner(command, &target);
        let changed = ActionChange::between(
            json!({ "retries_begin_anew": false }),
            json!({ "retries_begin_anew": true }),
        );
        actions::record(transaction, action, 1, changed).await?;
        Ok(TransactionEnd::Commit(true))
    })
}

/// Why a delivery is not made due; `None` if it can be.
fn without_resend(delivery: &Resendable, interval: Duration) -> Option<SentAgain> {
    let age = age(delivery.age);
    if delivery.gone {
        Some(SentAgain::Gone)
    } else if !delivery.has_url || delivery.state == DeliveryState::NoEndpoint {
        Some(SentAgain::NoEndpoint)
    } else if delivery.due {
        Some(SentAgain::Due)
    } else if age < interval {
        Some(SentAgain::TooSoon(interval.saturating_sub(age)))
    } else {
        None
    }
}

/// What a `webhook-id` names, as far as this partner may see.
enum Found {
    Delivery(DeliveryId),
    /// A ready unit of the partner that was never sent to this endpoint of the partner.
    Unsent(Unsent),
    /// A unit of the partner that has no profile yet.
    NotReady,
    /// A unit of the partner whose profile was erased.
    Erased,
    /// A unit of the partner, and an endpoint that is not one of the partner's.
    NotMyEndpoint,
    /// Nothing of this partner.
    Nothing,
}

struct Unsent {
    topup_id: TopupId,
    endpoint: EndpointId,
}

async fn find(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    id: &WebhookId,
    endpoint: Option<EndpointId>,
) -> Result<Found> {
    match id {
        WebhookId::Topup(topup_id)
            if let Some(endpoint) = endpoint.filter(|id| *id != partner_id.first_endpoint()) =>
        {
            let query = sqlx::query!(
                r#"SELECT u.ready_at IS NOT NULL AS "is_ready!", u.erased_at IS NOT NULL AS "is_erased!",
                          EXISTS (SELECT FROM partner_endpoints n
                                  WHERE n.endpoint_id = $3 AND n.partner_id = $1 AND n.purpose = 'webhooks') AS "is_mine!",
                          (SELECT d.delivery_id FROM further_deliveries f
                           JOIN deliveries d ON d.delivery_id = f.delivery_id
                           WHERE f.topup_id = u.topup_id AND d.partner_id = $1 AND d.endpoint_id = $3
                             AND d.kind = 'topup.ready') AS delivery_id
                   FROM partner_units u WHERE u.topup_id = $2 AND u.partner_id = $1"#,
                partner_id.uuid(),
                topup_id.as_str(),
                endpoint.uuid(),
            );
            let Some(found) = query.fetch_optional(connection).await? else {
                return Ok(Found::Nothing);
            };
            Ok(match found.delivery_id {
                _ if !found.is_mine => Found::NotMyEndpoint,
                Some(id) => Found::Delivery(id.into()),
                None if !found.is_ready => Found::NotReady,
                None if found.is_erased => Found::Erased,
                None => Found::Unsent(Unsent {
                    topup_id: topup_id.clone(),
                    endpoint,
                }),
            })
        }
        WebhookId::Topup(topup_id) => {
            let query = sqlx::query_scalar!(
                "SELECT delivery_id FROM partner_units WHERE topup_id = $2 AND partner_id = $1",
                partner_id.uuid(),
                topup_id.as_str(),
            );
            Ok(match query.fetch_optional(connection).await? {
                Some(Some(id)) => Found::Delivery(id.into()),
                Some(None) => Found::NotReady,
                None => Found::Nothing,
            })
        }
        WebhookId::Event(id) => {
            let query = sqlx::query_scalar!(
                "SELECT d.delivery_id FROM deliveries d LEFT JOIN orders o ON o.order_id = d.order_id
                 WHERE d.delivery_id = $2 AND d.partner_id = $1 AND d.kind <> 'topup.ready'
                   AND NOT is_unconfirmed(d.kind, o.refused_at, o.answer_by)",
                partner_id.uuid(),
                id.uuid(),
            );
            let found = query.fetch_optional(connection).await?;
            Ok(found.map_or(Found::Nothing, |id| Found::Delivery(id.into())))
        }
    }
}

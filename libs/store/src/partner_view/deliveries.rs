//! The deliveries of a partner's own units, and their redelivery.

use std::time::Duration;

use domain::{PartnerId, TopupId, WebhookId};
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::{
    Result, age,
    endpoints::LONGEST_LEASE,
    events::{self, Sending},
    operator::{
        actions::{Action, Mode},
        deliveries::{self, AttemptView, Filter},
    },
    partner_view::{PARTNER, REASON},
    seconds,
};

/// The most attempts of a delivery that are shown, the newest.
const MOST_ATTEMPTS: i64 = 100;

/// The delivery of one of the partner's units.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// `pending`, `delivered`, `exhausted` or `no_endpoint`; `None` before the unit is ready.
    pub state: Option<String>,
    pub delivered_at: Option<OffsetDateTime>,
    /// When the next attempt is due.
    pub next_attempt_at: Option<OffsetDateTime>,
    /// The newest attempts, in order.
    pub attempts: Vec<AttemptView>,
}

/// The delivery of a unit with its attempts; `None` if the partner has no such unit.
pub async fn delivery(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
) -> Result<Option<Delivery>> {
    let query = sqlx::query!(
        r#"SELECT u.delivery AS state, u.delivered_at, due.at AS "at?"
           FROM partner_units u LEFT JOIN delivery_due due ON due.topup_id = u.topup_id
           WHERE u.topup_id = $2 AND u.partner_id = $1"#,
        partner_id.uuid(),
        topup_id.as_str(),
    );
    let row = query.fetch_optional(&mut *connection).await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(Delivery {
        state: row.state,
        delivered_at: row.delivered_at,
        next_attempt_at: row.at,
        attempts: attempts(connection, &topup_id.clone().into()).await?,
    }))
}

/// The newest attempts of a delivery, in order. The caller has checked that it is the partner's.
pub async fn attempts(connection: &mut PgConnection, id: &WebhookId) -> Result<Vec<AttemptView>> {
    deliveries::attempts(connection, id, MOST_ATTEMPTS).await
}

/// The result of [`redeliver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redelivered {
    /// It is sent again.
    Again,
    /// It is due already, or an attempt is in flight.
    Due,
    /// The interval since the last attempt has not ended; this much time is left.
    TooSoon(Duration),
    NotReady,
    /// The profile was erased, or the event is [void](events::Sending::void).
    Gone,
    NoEndpoint,
    Unknown,
}

/// Replays one delivery of a partner by [`deliveries::replay`] or [`events::replay`], unless its last attempt is younger
/// than `interval`.
pub async fn redeliver(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    id: &WebhookId,
    interval: Duration,
) -> Result<Redelivered> {
    let sending = match id {
        WebhookId::Topup(topup_id) => sending(connection, partner_id, topup_id).await?,
        WebhookId::Event(event_id) => events::sending(connection, Some(partner_id), event_id).await?,
    };
    let Some(sending) = sending else {
        return Ok(Redelivered::Unknown);
    };
    match sending.state.as_deref() {
        None => return Ok(Redelivered::NotReady),
        Some(_) if sending.void => return Ok(Redelivered::Gone),
        Some("no_endpoint") => return Ok(Redelivered::NoEndpoint),
        _ if sending.due == Some(true) => return Ok(Redelivered::Due),
        Some(_) => {}
    }
    let age = age(sending.age.unwrap_or_default());
    if age < interval {
        return Ok(Redelivered::TooSoon(interval.saturating_sub(age)));
    }
    let (command, target) = match id {
        WebhookId::Topup(id) => ("topup redeliver", format!("topup {id}")),
        WebhookId::Event(id) => ("event redeliver", format!("event {id}")),
    };
    let mode = Mode::Apply(Action { operator: PARTNER, command, target: &target, reason: REASON });
    let until = Some(sending.now - interval);
    let replayed = match id {
        WebhookId::Topup(topup_id) => {
            let filter = Filter { topup_id: Some(topup_id), partner_id: Some(partner_id), until, ..Filter::default() };
            deliveries::replay(connection, &filter, 1, mode).await?
        }
        WebhookId::Event(event_id) => events::replay(connection, event_id, until, mode).await?,
    };
    Ok(if replayed.replayed > 0 {
        Redelivered::Again
    } else {
        // Another request, an operator or the notifier was faster.
        Redelivered::Due
    })
}

async fn sending(connection: &mut PgConnection, partner_id: PartnerId, topup_id: &TopupId) -> Result<Option<Sending>> {
    let sending = sqlx::query_as!(
        Sending,
        r#"SELECT CASE WHEN u.delivery IS NOT NULL AND p.webhook_url IS NULL THEN 'no_endpoint' ELSE u.delivery END AS state,
                  clock_timestamp() AS "now!",
                  extract(epoch FROM clock_timestamp() - greatest(u.attempted_at, u.delivery_created_at))::float8 AS age,
                  (u.delivery = 'pending' AND (u.attempt = 0 OR coalesce(
                       due.at <= clock_timestamp() + make_interval(secs => $3), true))) AS due,
                  u.erased_at IS NOT NULL AS "void!"
           FROM partner_units u
           JOIN partners p ON p.partner_id = u.partner_id
           LEFT JOIN delivery_due due ON due.topup_id = u.topup_id
           WHERE u.topup_id = $2 AND u.partner_id = $1"#,
        partner_id.uuid(),
        topup_id.as_str(),
        seconds(LONGEST_LEASE),
    );
    Ok(sending.fetch_optional(connection).await?)
}

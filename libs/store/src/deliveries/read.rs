//! Reads claimed deliveries with everything that their webhooks need.

use std::time::Duration;

use domain::{EventId, OptionId, OrderId, PartnerId, TopupId, WebhookId};
use sqlx::PgConnection;

use crate::{
    Result, age,
    events::{self, Event, Subject},
    seconds, unsigned,
};

/// A claimed delivery.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The delivery; also the webhook's id, the same in every attempt.
    pub id: WebhookId,
    pub partner_id: PartnerId,
    pub webhook_url: Option<String>,
    pub webhook_host: Option<String>,
    /// The partner's sealed webhook-signing key.
    pub webhook_secret: Vec<u8>,
    /// The previous key, during the overlap of a rotation.
    pub old_webhook_secret: Option<Vec<u8>>,
    /// The number of ended attempts.
    pub attempt: u32,
    /// The number of attempts before the current schedule; a replay starts a new schedule.
    pub schedule_start: u32,
    /// The partner's environment: `live`, `sandbox`.
    pub environment: String,
    pub content: Content,
}

#[derive(Clone, Debug)]
pub enum Content {
    /// A ready topup: the specified webhook.
    Esim(Esim),
    Event(Event),
}

#[derive(Clone, Debug)]
pub struct Esim {
    pub topup_id: TopupId,
    pub order_id: OrderId,
    pub external_order_id: String,
    pub option_id: OptionId,
    pub iccid: String,
    /// The sealed profile; empty if it was erased.
    pub profile: Vec<u8>,
    /// The profile was erased, so there is nothing to send.
    pub erased: bool,
    /// The time since the order was stored.
    pub age: Duration,
    /// The time since the unit was ready.
    pub ready_age: Duration,
    /// W3C trace context of the order's POST.
    pub traceparent: Option<String>,
}

/// Conditions on deliveries that may be read for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// First attempts of the deliveries that readiness events name. A delivery must be younger than this, so that
    /// a whole attempt fits into the rest of its first lease, and its endpoint must not be blocked.
    Young(Duration),
    /// Pending deliveries that this process has [leased](lease); of an endpoint blocked meanwhile, the probe.
    Leased,
}

/// Reads deliveries with everything that their webhooks need. A delivery that is no longer pending is left out and
/// loses its due row. An unreadable row is logged and skipped.
pub async fn read(connection: &mut PgConnection, ids: &[WebhookId], which: Read) -> Result<Vec<Delivery>> {
    let (mut topups, mut events) = (Vec::new(), Vec::new());
    for id in ids {
        match id {
            WebhookId::Topup(id) => topups.push(id.as_str()),
            WebhookId::Event(id) => events.push(id.as_str()),
        }
    }
    let mut read = Vec::new();
    if !topups.is_empty() {
        read = read_esims(connection, &topups, which).await?;
    }
    // Events have due rows from the start.
    if !events.is_empty() && which == Read::Leased {
        read.extend(read_events(connection, &events).await?);
    }
    Ok(read)
}

async fn read_esims(connection: &mut PgConnection, ids: &[&str], which: Read) -> Result<Vec<Delivery>> {
    let youth = match which {
        Read::Young(youth) => Some(seconds(youth)),
        Read::Leased => None,
    };
    let query = sqlx::query!(
        r#"SELECT d.topup_id, o.order_id, d.partner_id, o.external_order_id, t.option_id, e.iccid, e.profile,
                  e.erased_at IS NOT NULL AS "erased!", p.webhook_url, p.webhook_host, p.webhook_secret,
                  CASE WHEN p.old_webhook_secret_until > now() THEN p.old_webhook_secret END AS old_webhook_secret,
                  d.attempt, d.schedule_start,
                  extract(epoch FROM now() - o.created_at)::float8 AS "age!",
                  coalesce(extract(epoch FROM now() - e.ready_at), 0)::float8 AS "ready_age!", p.environment,
                  o.traceparent
           FROM deliveries d
           JOIN topups t ON t.topup_id = d.topup_id
           JOIN esims e ON e.topup_id = d.topup_id
           JOIN orders o ON o.order_id = coalesce(
                d.order_id, (SELECT order_id FROM placements WHERE placement_id = t.placement_id))
           JOIN partners p ON p.partner_id = d.partner_id
           WHERE d.topup_id = ANY ($1) AND d.state = 'pending'
             AND ($2::float8 IS NULL OR (d.attempt = 0 AND d.created_at > now() - make_interval(secs => $2)))
             AND (SELECT b.blocked_until IS NULL OR ($2 IS NULL AND b.probe IS NOT DISTINCT FROM d.topup_id)
                  FROM endpoints b WHERE b.partner_id = d.partner_id) IS NOT FALSE"#,
        ids as &[&str],
        youth,
    );
    let rows = query.fetch_all(&mut *connection).await?;
    if which == Read::Leased && rows.len() < ids.len() {
        forget_finished(connection, ids).await?;
    }
    let read = rows.into_iter().filter_map(|row| {
        let topup_id: TopupId = row
            .topup_id
            .parse()
            .inspect_err(|error| tracing::error!(topup.id = row.topup_id, %error, "a delivery cannot be read"))
            .ok()?;
        Some(Delivery {
            id: topup_id.clone().into(),
            partner_id: row.partner_id.into(),
            webhook_url: row.webhook_url,
            webhook_host: row.webhook_host,
            webhook_secret: row.webhook_secret,
            old_webhook_secret: row.old_webhook_secret,
            attempt: unsigned(row.attempt),
            schedule_start: unsigned(row.schedule_start),
            environment: row.environment,
            content: Content::Esim(Esim {
                topup_id,
                order_id: row.order_id.into(),
                external_order_id: row.external_order_id,
                option_id: row.option_id.into(),
                // Never null where a delivery exists. Opening a null one fails this delivery only.
                iccid: row.iccid.unwrap_or_default(),
                profile: row.profile.unwrap_or_default(),
                erased: row.erased,
                age: age(row.age),
                ready_age: age(row.ready_age),
                traceparent: row.traceparent,
            }),
        })
    });
    Ok(read.collect())
}

async fn forget_finished(connection: &mut PgConnection, topups: &[&str]) -> Result<()> {
    let statement = sqlx::query!(
        "DELETE FROM delivery_due WHERE topup_id = ANY (ARRAY (
             SELECT topup_id FROM deliveries WHERE topup_id = ANY ($1) AND state <> 'pending'))",
        topups as &[&str],
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Deletes the due rows of finished events, and of deleted ones: an older program may have made such a row.
async fn forget_finished_events(connection: &mut PgConnection, ids: &[&str]) -> Result<()> {
    let statement = sqlx::query!(
        "DELETE FROM delivery_due d WHERE d.topup_id = ANY ($1)
         AND coalesce((SELECT v.state <> 'pending' FROM events v WHERE v.event_id = d.topup_id), true)",
        ids as &[&str],
    );
    statement.execute(connection).await?;
    Ok(())
}

async fn read_events(connection: &mut PgConnection, ids: &[&str]) -> Result<Vec<Delivery>> {
    events::drop_void(&mut *connection, ids).await?;
    let query = sqlx::query!(
        r#"SELECT v.event_id, v.partner_id, v.kind, v.credential, v.ends_at, v.created_at, v.topup_id,
                  o.external_order_id AS "external_order_id?", t.option_id AS "option_id?",
                  l.refusal_status AS "refusal_status?", l.refusal_message AS "refusal_message?",
                  p.webhook_url, p.webhook_host, p.webhook_secret,
                  CASE WHEN p.old_webhook_secret_until > now() THEN p.old_webhook_secret END AS old_webhook_secret,
                  v.attempt, v.schedule_start, p.environment
           FROM events v
           JOIN partners p ON p.partner_id = v.partner_id
           LEFT JOIN topups t ON t.topup_id = v.topup_id
           LEFT JOIN placements l ON l.placement_id = t.placement_id
           LEFT JOIN orders o ON o.order_id = l.order_id
           WHERE v.event_id = ANY ($1) AND v.state = 'pending'
             AND NOT EXISTS (
                 SELECT FROM endpoints b WHERE b.partner_id = v.partner_id AND b.blocked_until IS NOT NULL
                 AND b.probe IS DISTINCT FROM v.event_id
                 AND (v.kind <> 'webhook.test' OR b.blocked_until = 'infinity'))"#,
        ids as &[&str],
    );
    let rows = query.fetch_all(&mut *connection).await?;
    if rows.len() < ids.len() {
        forget_finished_events(connection, ids).await?;
    }
    let read = rows.into_iter().filter_map(|row| {
        let id: Option<EventId> = row.event_id.parse().ok();
        let subject = match row.kind.as_str() {
            "topup.failed" => {
                let topup = row.topup_id.zip(row.external_order_id).zip(row.option_id);
                topup.map(|((topup_id, external_order_id), option_id)| Subject::TopupFailed {
                    topup_id,
                    external_order_id,
                    option_id: option_id.into(),
                    refusal: row.refusal_status.zip(row.refusal_message),
                })
            }
            "key.expiring" => {
                let ending = row.credential.zip(row.ends_at);
                ending.map(|(credential, ends_at)| Subject::KeyExpiring { credential, ends_at })
            }
            "webhook.test" => Some(Subject::WebhookTest),
            _ => None,
        };
        let Some((id, subject)) = id.zip(subject) else {
            tracing::error!(event.id = row.event_id, kind = row.kind, "an event cannot be read");
            return None;
        };
        Some(Delivery {
            id: WebhookId::Event(id),
            partner_id: row.partner_id.into(),
            webhook_url: row.webhook_url,
            webhook_host: row.webhook_host,
            webhook_secret: row.webhook_secret,
            old_webhook_secret: row.old_webhook_secret,
            attempt: unsigned(row.attempt),
            schedule_start: unsigned(row.schedule_start),
            environment: row.environment,
            content: Content::Event(Event { created_at: row.created_at, subject }),
        })
    });
    Ok(read.collect())
}

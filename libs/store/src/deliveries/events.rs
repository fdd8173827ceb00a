//! Events: deliveries other than the specified webhook. A partner can ask for some kinds of them,
//! at each of its endpoints.
//!
//! An event is an ordinary delivery with another kind and another body, so the notifier sends it
//! like any other. Three things are different: an event is created together with its work, because
//! no message announces it; it is deleted if it becomes pointless before it is sent; and it is
//! deleted after the term of attempts.
//!
//! An event that must exist only once has an id that is derived from its subject (see the migration
//! of `deliveries`), so that repeating its insert conflicts with the primary key and changes
//! nothing.
//!
//! Triggers create the events about topups, by the function `make_events` of
//! `migrations/0001_baseline.sql`.
//! The notifier calls [`expiring`], [`low_balances`] and [`forget`] regularly. Ingress calls
//! [`test()`], [`find`] and [`list`] for self-service, and `esimctl` shows events with the latter
//! two.

use std::time::Duration;

use domain::{
    Amount, DeliveryId, EndpointKey, Metadata, OptionId, PartnerId,
    event::{EventKind, NoticeKind},
};
use pg::{Result, TransactionEnd, count, seconds, transaction};
use serde::Deserialize;
use sqlx::PgConnection;
use time::{OffsetDateTime, serde::rfc3339};
use uuid::Uuid;

use super::{
    notices::NoticeContent,
    offers::OptionsChangedContent,
    view::{self, View},
};
use crate::esim_requests::UseContent;

/// The content of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventContent {
    pub created_at: OffsetDateTime,
    pub subject: Subject,
    pub kept: Kept,
    /// What the topup, extension or order costs that it is about.
    pub price: Option<Amount>,
}

/// What the partner keeps with the topup and the order of an event. What is damaged is left out,
/// because the rest of the event is still worth sending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub topup: Option<Metadata>,
    pub order: Option<Metadata>,
}

impl Kept {
    pub fn read(topup: Option<&str>, order: Option<&str>) -> Self {
        let read = |stored: Option<&str>| stored.and_then(|text| Metadata::read(text).ok());
        Self {
            topup: read(topup),
            order: read(order),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    TopupFailed {
        topup_id: String,
        external_order_id: String,
        option_id: OptionId,
        /// The code and the message with which the provider rejected the purchase, if it did.
        refusal: Option<(String, String)>,
    },
    /// What has happened to the eSIM of a topup, or to the topup itself.
    OfTopup {
        kind: EventKind,
        topup_id: String,
        external_order_id: String,
        option_id: OptionId,
        /// What its provider says; `None` if the event follows from something else.
        usage: Option<UseContent>,
    },
    /// An extension of the eSIM of a topup has ended.
    Extension {
        kind: EventKind,
        topup_id: String,
        external_order_id: String,
        extension: ExtensionContent,
    },
    OrderCancelled {
        external_order_id: String,
        units: u32,
    },
    BalanceLow(BalanceLowContent),
    OptionsChanged(OptionsChangedContent),
    KeyExpiring {
        /// `keys` or `webhook_secret`.
        credential: String,
        /// When the old keys or the old secret end.
        ends_at: OffsetDateTime,
    },
    WebhookTest {
        /// The code that the endpoint may return to prove that its host wants webhooks. It is never
        /// stored: the notifier makes it when it sends it.
        challenge: Option<String>,
    },
    Notice {
        kind: NoticeKind,
        notice: NoticeContent,
    },
}

/// A price among the terms of a topup, or in what an event says.
#[derive(Deserialize)]
struct Priced {
    price: Option<Amount>,
}

/// The price of what an event of this kind is about, from the terms of its topup or from what it
/// says itself. What is damaged is left out, because the rest of the event is still worth sending.
pub fn price_of(kind: &str, terms: Option<&str>, says: Option<&str>) -> Option<Amount> {
    let stored = match EventKind::named(kind)? {
        EventKind::OrderCancelled | EventKind::ExtensionReady | EventKind::ExtensionFailed => says,
        EventKind::TopupFailed
        | EventKind::TopupOnHold
        | EventKind::EsimInstalled
        | EventKind::EsimFirstUsed
        | EventKind::EsimLowData
        | EventKind::EsimUsedUp
        | EventKind::EsimExpiring
        | EventKind::EsimExpired
        | EventKind::EsimReturned => terms,
        EventKind::TopupReady
        | EventKind::BalanceLow
        | EventKind::OptionsChanged
        | EventKind::KeyExpiring
        | EventKind::WebhookTest => None,
    };
    serde_json::from_str::<Priced>(stored?).ok()?.price
}

/// What an event about an extension says beside the topup. A trigger writes it when the extension
/// ends.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ExtensionContent {
    /// The partner's own id of it.
    pub external_id: String,
    pub option_id: OptionId,
    /// Whether the topup has a new eSIM by it.
    pub has_new_profile: bool,
    /// Why nothing was added: a name of
    /// [`EsimChangeReason`](crate::esim_requests::EsimChangeReason).
    pub reason: Option<String>,
    /// What the provider said.
    pub message: Option<String>,
}

/// What a `balance.low` says: what the account had when it was found below its threshold.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BalanceLowContent {
    pub currency: String,
    pub available: i64,
    pub threshold: i64,
    #[serde(with = "rfc3339")]
    pub as_of: OffsetDateTime,
    /// The number of the last entry of the account at that time; 0 if it had none.
    pub last_entry: i64,
}

/// What an `order.cancelled` says beside its order.
#[derive(Deserialize)]
struct CancelledContent {
    units: u32,
}

/// The columns of a delivery, and of what it is about, from which the subject of an event is read.
/// Those that its kind does not have are null.
#[derive(Clone, Debug, Default)]
pub struct SubjectColumns {
    pub topup_id: Option<String>,
    pub external_order_id: Option<String>,
    pub option_id: Option<Uuid>,
    pub refusal_status: Option<String>,
    pub refusal_message: Option<String>,
    pub credential: Option<String>,
    pub ends_at: Option<OffsetDateTime>,
    pub notice: Option<String>,
}

impl Subject {
    /// Reads the subject of an event or a notice. `None` if its kind is unknown, or is no event, or
    /// if a column that the kind needs is null.
    pub fn read(kind: &str, columns: SubjectColumns) -> Option<Self> {
        if let Some(kind) = NoticeKind::named(kind) {
            let mut notice: NoticeContent = match &columns.notice {
                Some(text) => serde_json::from_str(text).ok()?,
                None => NoticeContent::default(),
            };
            notice.credential = columns.credential;
            notice.ends_at = columns.ends_at;
            return Some(Self::Notice { kind, notice });
        }
        let kind = EventKind::named(kind)?;
        Some(match kind {
            EventKind::TopupReady => return None,
            EventKind::OrderCancelled => {
                let says: CancelledContent = serde_json::from_str(&columns.notice?).ok()?;
                Self::OrderCancelled {
                    external_order_id: columns.external_order_id?,
                    units: says.units,
                }
            }
            EventKind::ExtensionReady | EventKind::ExtensionFailed => Self::Extension {
                kind,
                topup_id: columns.topup_id?,
                external_order_id: columns.external_order_id?,
                extension: serde_json::from_str(&columns.notice?).ok()?,
            },
            EventKind::TopupOnHold
            | EventKind::EsimReturned
            | EventKind::EsimInstalled
            | EventKind::EsimFirstUsed
            | EventKind::EsimLowData
            | EventKind::EsimUsedUp
            | EventKind::EsimExpiring
            | EventKind::EsimExpired => Self::OfTopup {
                kind,
                topup_id: columns.topup_id?,
                external_order_id: columns.external_order_id?,
                option_id: columns.option_id?.into(),
                usage: match &columns.notice {
                    Some(text) => Some(serde_json::from_str(text).ok()?),
                    None => None,
                },
            },
            EventKind::TopupFailed => Self::TopupFailed {
                topup_id: columns.topup_id?,
                external_order_id: columns.external_order_id?,
                option_id: columns.option_id?.into(),
                refusal: columns.refusal_status.zip(columns.refusal_message),
            },
            EventKind::BalanceLow => Self::BalanceLow(serde_json::from_str(&columns.notice?).ok()?),
            EventKind::OptionsChanged => {
                Self::OptionsChanged(serde_json::from_str(&columns.notice?).ok()?)
            }
            EventKind::KeyExpiring => Self::KeyExpiring {
                credential: columns.credential?,
                ends_at: columns.ends_at?,
            },
            EventKind::WebhookTest => Self::WebhookTest { challenge: None },
        })
    }

    /// Whether the body of a response returns the code of this test: as it is, or as the field
    /// `challenge` of an object. The code anywhere else does not count, because many servers that
    /// want nothing of us show what they were sent.
    pub fn is_proved_by(&self, body: &[u8]) -> bool {
        let Self::WebhookTest {
            challenge: Some(challenge),
        } = self
        else {
            return false;
        };
        if body.trim_ascii() == challenge.as_bytes() {
            return true;
        }
        let answer: Option<serde_json::Value> = serde_json::from_slice(body).ok();
        let returned = answer
            .as_ref()
            .and_then(|answer| answer.get("challenge")?.as_str());
        returned == Some(challenge)
    }

    /// The name of its kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TopupFailed { .. } => EventKind::TopupFailed.as_str(),
            Self::OfTopup { kind, .. } | Self::Extension { kind, .. } => kind.as_str(),
            Self::OrderCancelled { .. } => EventKind::OrderCancelled.as_str(),
            Self::BalanceLow(_) => EventKind::BalanceLow.as_str(),
            Self::OptionsChanged(_) => EventKind::OptionsChanged.as_str(),
            Self::KeyExpiring { .. } => EventKind::KeyExpiring.as_str(),
            Self::WebhookTest { .. } => EventKind::WebhookTest.as_str(),
            Self::Notice { kind, .. } => kind.as_str(),
        }
    }
}

/// Deletes pending events that have become pointless, and deliveries to endpoints that were
/// deleted, with their work. Tests, notices and what a sandbox account makes itself stay as
/// exhausted ones, because limits count them: otherwise a partner that deletes an endpoint or a
/// channel, or turns an event off and on, would also delete what it has caused.
pub(super) async fn delete(connection: &mut PgConnection, events: &[Uuid]) -> Result<()> {
    let statement = sqlx::query!(
        "WITH ended AS (
             UPDATE deliveries SET state = 'exhausted'
             WHERE delivery_id = ANY ($1) AND state = 'pending'
               AND (kind = 'webhook.test' OR kind LIKE 'notice.%'
                    OR kind = 'key.expiring' AND EXISTS (
                        SELECT FROM partners p WHERE p.partner_id = deliveries.partner_id AND p.environment = 'sandbox'))
             RETURNING delivery_id
         ), deleted AS (
             DELETE FROM deliveries
             WHERE delivery_id = ANY ($1) AND (kind <> 'topup.ready' OR endpoint_id IS NOT NULL)
               AND kind <> 'webhook.test' AND kind NOT LIKE 'notice.%' AND state = 'pending'
               AND (kind <> 'key.expiring' OR EXISTS (
                    SELECT FROM partners p WHERE p.partner_id = deliveries.partner_id AND p.environment <> 'sandbox'))
             RETURNING delivery_id, topup_id
         ), unlinked AS (
             DELETE FROM further_deliveries f USING deleted
             WHERE f.topup_id = deleted.topup_id AND f.delivery_id = deleted.delivery_id
         )
         DELETE FROM work WHERE id = ANY (ARRAY (SELECT delivery_id FROM deleted UNION ALL SELECT delivery_id FROM ended))",
        events,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Creates the events about old keys and webhook secrets that end within `notice`, each one once.
/// Returns the number of new events.
///
/// `ending` finds the credentials that end soon, with the endpoints of enabled partners that asked
/// for the event: old keys concern all of these, and an old secret the endpoint that it belongs to.
/// `created` inserts the events; their ids are derived from the subjects, so a further look creates
/// none twice. The last step makes the new ones due.
pub async fn expiring(connection: &mut PgConnection, notice: Duration) -> Result<u64> {
    let made = sqlx::query!(
        "WITH ending AS (
             SELECT p.partner_id, nullif(e.endpoint_id, e.partner_id) AS endpoint_id, credential, ends_at
             FROM partners p
             JOIN partner_endpoints e ON e.partner_id = p.partner_id
             CROSS JOIN LATERAL (VALUES ('keys', p.old_keys_until), ('webhook_secret', e.secret_ends[2]))
                 AS old (credential, ends_at)
             WHERE p.disabled_at IS NULL AND 'key.expiring' = ANY (e.events)
               AND ends_at > now() AND ends_at < now() + make_interval(secs => $1)
         ), created AS (
             -- The id is derived from the subject, so that each look makes the same one.
             INSERT INTO deliveries (delivery_id, partner_id, kind, credential, ends_at, endpoint_id)
             SELECT derived_id('key.expiring', concat_ws(' ', coalesce(endpoint_id, partner_id), credential,
                                                         extract(epoch FROM ends_at))),
                    partner_id, 'key.expiring', credential, ends_at, endpoint_id
             FROM ending
             ON CONFLICT DO NOTHING
             RETURNING delivery_id, partner_id, endpoint_id
         )
         INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT delivery_id, 'deliver', '', coalesce(endpoint_id::text, ''), partner_id, now() FROM created",
        seconds(notice),
    );
    Ok(made.execute(connection).await?.rows_affected())
}

/// Tells partners whose account has less available than the threshold that they have set, each time
/// that it falls below, and each time once, however many processes look: this partner, or all of
/// them. Returns the number of new events.
pub async fn low_balances(
    connection: &mut PgConnection,
    partner_id: Option<PartnerId>,
) -> Result<u64> {
    let query = sqlx::query_scalar!(
        r#"SELECT tell_low_balances($1) AS "events!""#,
        partner_id.map(PartnerId::uuid) as Option<Uuid>,
    );
    Ok(count(query.fetch_one(connection).await?))
}

/// The result of [`test`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointTestResult {
    /// The test was created and is due now.
    Due(DeliveryId),
    /// The last test is younger than the interval; this much time is left.
    TooSoon(Duration),
    Paused,
    NoEndpoint,
}

/// Creates a test of an endpoint, unless its last test is younger than `interval`. The test is sent
/// even while the endpoint is blocked, and an acknowledgement ends the block, so that a partner can
/// show that its endpoint works again. A paused endpoint gets no test.
pub async fn test(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    interval: Duration,
) -> Result<EndpointTestResult> {
    let partner_id = endpoint.partner_id;
    transaction!(connection, "events::test", |transaction| {
        // The lock of the partner's row lets one request after the other pass, so that two requests
        // at the same time do not create two tests.
        let query = sqlx::query!(
            r#"SELECT e.url IS NOT NULL AS "has_url!", coalesce(e.blocked_until = 'infinity', false) AS "paused!"
           FROM partners p JOIN partner_endpoints e ON e.partner_id = p.partner_id
           WHERE p.partner_id = $1 AND e.endpoint_id = $2 FOR NO KEY UPDATE OF p"#,
            partner_id.uuid(),
            endpoint.id.uuid(),
        );
        let row = query.fetch_optional(&mut **transaction).await?;
        match row {
            Some(row) if row.paused => {
                return Ok(TransactionEnd::Rollback(EndpointTestResult::Paused));
            }
            Some(row) if row.has_url => {}
            _ => return Ok(TransactionEnd::Rollback(EndpointTestResult::NoEndpoint)),
        }
        let query = sqlx::query_scalar!(
            r#"SELECT extract(epoch FROM clock_timestamp() - created_at)::float8 AS "age!" FROM deliveries d
           WHERE partner_id = $1 AND kind <> 'topup.ready' AND kind = 'webhook.test'
             -- A test of an endpoint that was deleted counts for all endpoints, so that deleting and
             -- creating one does not pass the limit.
             AND (endpoint_id IS NOT DISTINCT FROM $3
                  OR (endpoint_id IS NOT NULL
                      AND NOT EXISTS (SELECT FROM partner_endpoints f WHERE f.endpoint_id = d.endpoint_id)))
             -- A pair, so that only the partner's index fits.
             AND (partner_id, created_at) > ($1, now() - make_interval(secs => $2))
           ORDER BY created_at DESC LIMIT 1"#,
            partner_id.uuid(),
            seconds(interval),
            endpoint.column(),
        );
        let age = query.fetch_optional(&mut **transaction).await?;
        if let Some(left) = age.and_then(|age| interval.checked_sub(pg::age(age))) {
            return Ok(TransactionEnd::Rollback(EndpointTestResult::TooSoon(left)));
        }
        let id = DeliveryId::new();
        // The work is due at `-infinity`, which is before all other work of the partner. The look
        // at due work and the claim recognise a test by this time, and find it even while the
        // endpoint is blocked.
        let statement = sqlx::query!(
            "WITH created AS (
             INSERT INTO deliveries (delivery_id, partner_id, kind, created_at, endpoint_id)
             VALUES ($1, $2, 'webhook.test', clock_timestamp(), $3)
         )
         INSERT INTO work (id, kind, provider, lane, partner_id, at) VALUES ($1, 'deliver', '', $4, $2, '-infinity')",
            id.uuid(),
            partner_id.uuid(),
            endpoint.column(),
            endpoint.work_lane(),
        );
        statement.execute(&mut **transaction).await?;
        Ok(TransactionEnd::Commit(EndpointTestResult::Due(id)))
    })
}

/// Deletes at most `limit` events that are older than the term of attempts, with their work.
/// Returns the number of deleted events. Their attempts are deleted by `desk::retention`, which
/// has the same term.
pub async fn forget(connection: &mut PgConnection, limit: u32) -> Result<u64> {
    // `old` finds the events, `due` and `waiting` delete their rows in `work` and `held`, and
    // `deleted` the events themselves.
    let query = sqlx::query_scalar!(
        r#"WITH old AS MATERIALIZED (
               -- Goes from partner to partner, because the events of all partners have no index of
               -- their own: their few rows are found by the partial index `deliveries_events`.
               SELECT e.delivery_id
               FROM partners p
               CROSS JOIN LATERAL (
                   SELECT d.delivery_id FROM deliveries d
                   WHERE d.partner_id = p.partner_id AND d.kind <> 'topup.ready'
                     AND d.created_at < now() - make_interval(days => (
                         SELECT days FROM walks WHERE name = 'attempts'))
                   ORDER BY d.created_at LIMIT $1
               ) e
               LIMIT $1
           ), due AS (
               DELETE FROM work WHERE id = ANY (ARRAY (SELECT delivery_id FROM old))
           ), waiting AS (
               DELETE FROM held WHERE id = ANY (ARRAY (SELECT delivery_id FROM old))
           ), deleted AS (
               DELETE FROM deliveries WHERE delivery_id = ANY (ARRAY (SELECT delivery_id FROM old))
               RETURNING delivery_id, topup_id
           ), unlinked AS (
               DELETE FROM further_deliveries f USING deleted
               WHERE f.topup_id = deleted.topup_id AND f.delivery_id = deleted.delivery_id
           )
           SELECT count(*) AS "deleted!" FROM deleted"#,
        i64::from(limit),
    );
    Ok(count(query.fetch_one(connection).await?))
}

/// Finds one event of the partner, or of any partner if `partner_id` is `None`. A partner does not
/// find one that is [unconfirmed](View::is_unconfirmed).
pub async fn find(
    connection: &mut PgConnection,
    partner_id: Option<PartnerId>,
    event: DeliveryId,
) -> Result<Option<View>> {
    let found = sqlx::query_scalar!(
        "SELECT delivery_id FROM deliveries
         WHERE delivery_id = $1 AND kind <> 'topup.ready' AND ($2::uuid IS NULL OR partner_id = $2)",
        event.uuid(),
        partner_id.map(PartnerId::uuid),
    );
    let Some(id) = found.fetch_optional(&mut *connection).await? else {
        return Ok(None);
    };
    let found = view::read(connection, &[id]).await?.pop();
    Ok(found.filter(|view| partner_id.is_none() || !view.is_unconfirmed))
}

/// A page of a partner's events.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventPage {
    /// The position after which the page begins: a time and an event. `None` begins with the newest
    /// event. The event itself may have been deleted.
    pub before: Option<(OffsetDateTime, DeliveryId)>,
    pub limit: i64,
}

/// A partner's events, the newest first, without those that are
/// [unconfirmed](View::is_unconfirmed).
pub async fn list(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    page: &EventPage,
) -> Result<Vec<View>> {
    let ids = sqlx::query_scalar!(
        "SELECT delivery_id FROM deliveries d
         WHERE kind <> 'topup.ready' AND partner_id = $1 AND created_at <= coalesce($2, 'infinity'::timestamptz)
           AND (created_at, delivery_id) < (coalesce($2, 'infinity'::timestamptz), $3)
           AND (order_id IS NULL
                OR NOT EXISTS (SELECT FROM orders o
                               WHERE o.order_id = d.order_id AND is_unconfirmed(d.kind, o.refused_at, o.answer_by)))
         ORDER BY created_at DESC, delivery_id DESC LIMIT $4",
        partner_id.uuid(),
        page.before.map(|(at, _)| at),
        page.before.map_or(Uuid::nil(), |(_, id)| id.uuid()),
        page.limit,
    );
    let ids = ids.fetch_all(&mut *connection).await?;
    view::read(connection, &ids).await
}

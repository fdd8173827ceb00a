//! Events of a partner's endpoint other than the specified webhook. An event is a delivery with its own id, and uses
//! the due rows, leases, blocks and attempts of [`crate::deliveries`].

use std::time::Duration;

use domain::{EventId, OptionId, PartnerId};
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::{
    Result,
    endpoints::LONGEST_LEASE,
    operator::{
        actions::{self, Mode},
        deliveries::Replayed,
    },
    seconds,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A topup will never be ready.
    TopupFailed,
    /// Old keys or an old webhook secret are about to end.
    KeyExpiring,
    /// The partner asked for a test. It has one attempt.
    WebhookTest,
}

impl Kind {
    /// The kinds that a partner can choose. A test is not a choice: the partner requests each one.
    pub const CHOICES: [Self; 2] = [Self::TopupFailed, Self::KeyExpiring];

    /// Their names, as errors list them.
    pub fn choices() -> String {
        Self::CHOICES.map(Self::as_str).join(" and ")
    }

    /// The name in the database and in requests.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TopupFailed => "topup.failed",
            Self::KeyExpiring => "key.expiring",
            Self::WebhookTest => "webhook.test",
        }
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    /// Parses a kind that a partner can choose.
    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::CHOICES.into_iter().find(|kind| kind.as_str() == name);
        found.ok_or_else(|| format!("there are the events {}", Self::choices()))
    }
}

/// The content of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub created_at: OffsetDateTime,
    pub subject: Subject,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    TopupFailed {
        topup_id: String,
        external_order_id: String,
        option_id: OptionId,
        /// The code and the message of the provider's rejection.
        refusal: Option<(String, String)>,
    },
    KeyExpiring {
        /// `keys` or `webhook_secret`.
        credential: String,
        /// When the old ones end.
        ends_at: OffsetDateTime,
    },
    WebhookTest,
}

impl Subject {
    pub fn kind(&self) -> Kind {
        match self {
            Self::TopupFailed { .. } => Kind::TopupFailed,
            Self::KeyExpiring { .. } => Kind::KeyExpiring,
            Self::WebhookTest => Kind::WebhookTest,
        }
    }
}

/// Drops events that are pointless now, with their due rows: the order was refused, the topup is ready after all, the
/// partner no longer wants them, or a test could not be sent within five minutes.
pub(crate) async fn drop_void(connection: &mut PgConnection, events: &[&str]) -> Result<()> {
    let statement = sqlx::query!(
        "WITH void AS (
             DELETE FROM events e USING partners p
             WHERE e.event_id = ANY ($1) AND e.state = 'pending' AND p.partner_id = e.partner_id
               AND CASE WHEN e.kind = 'webhook.test' THEN e.created_at < now() - interval '5 minutes'
                        ELSE e.kind <> ALL (p.webhook_events)
                             OR (e.kind = 'topup.failed' AND NOT EXISTS (
                                 SELECT FROM topups t
                                 JOIN placements l ON l.placement_id = t.placement_id
                                 JOIN orders o ON o.order_id = l.order_id
                                 LEFT JOIN esims s ON s.topup_id = t.topup_id
                                 WHERE t.topup_id = e.topup_id AND t.state = 'failed' AND NOT o.refused
                                   AND s.ready_at IS NULL)) END
             RETURNING e.event_id
         )
         DELETE FROM delivery_due WHERE topup_id = ANY (ARRAY (SELECT event_id FROM void))",
        events as &[&str],
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Makes the events about old keys and webhook secrets that end within `notice`, each once. Returns their number.
pub async fn expiring(connection: &mut PgConnection, notice: Duration) -> Result<u64> {
    let made = sqlx::query!(
        "WITH ending AS (
             SELECT partner_id, credential, ends_at
             FROM partners
             CROSS JOIN LATERAL (VALUES
                 ('keys', old_keys_until), ('webhook_secret', old_webhook_secret_until)
             ) AS old (credential, ends_at)
             WHERE disabled_at IS NULL AND 'key.expiring' = ANY (webhook_events)
               AND ends_at > now() AND ends_at < now() + make_interval(secs => $1)
         ), born AS (
             INSERT INTO events (event_id, partner_id, kind, credential, ends_at)
             SELECT 'evt_' || replace(gen_random_uuid()::text, '-', ''), partner_id, 'key.expiring', credential, ends_at
             FROM ending ON CONFLICT DO NOTHING RETURNING event_id, partner_id
         )
         INSERT INTO delivery_due (topup_id, partner_id, at) SELECT event_id, partner_id, now() FROM born",
        seconds(notice),
    );
    Ok(made.execute(connection).await?.rows_affected())
}

/// The result of [`test`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tested {
    /// The event; it is due now.
    Due(EventId),
    /// The interval since the last test has not ended; this much time is left.
    TooSoon(Duration),
    Paused,
    NoEndpoint,
}

/// Makes a test event, unless the partner's last one is younger than `interval`. It is sent also while the endpoint is
/// blocked: an acknowledgement ends the block.
pub async fn test(connection: &mut PgConnection, partner_id: PartnerId, interval: Duration) -> Result<Tested> {
    let mut transaction = sqlx::Connection::begin(connection).await?;
    // The partner's row serialises its tests.
    let query = sqlx::query!(
        r#"SELECT p.webhook_url IS NOT NULL AS "has_url!", coalesce(e.blocked_until = 'infinity', false) AS "paused!"
           FROM partners p LEFT JOIN endpoints e ON e.partner_id = p.partner_id
           WHERE p.partner_id = $1 FOR NO KEY UPDATE OF p"#,
        partner_id.uuid(),
    );
    let row = query.fetch_optional(&mut *transaction).await?;
    match row {
        Some(row) if row.paused => return Ok(Tested::Paused),
        Some(row) if row.has_url => {}
        _ => return Ok(Tested::NoEndpoint),
    }
    let query = sqlx::query_scalar!(
        r#"SELECT extract(epoch FROM clock_timestamp() - created_at)::float8 AS "age!" FROM events
           -- A pair, so that only the partner's index fits.
           WHERE partner_id = $1 AND (partner_id, created_at) > ($1, now() - make_interval(secs => $2))
             AND kind = 'webhook.test'
           ORDER BY created_at DESC LIMIT 1"#,
        partner_id.uuid(),
        seconds(interval),
    );
    let age = query.fetch_optional(&mut *transaction).await?;
    if let Some(left) = age.and_then(|age| interval.checked_sub(crate::age(age))) {
        return Ok(Tested::TooSoon(left));
    }
    let event_id = EventId::new();
    // A due time before all others is served first, even while the endpoint is blocked.
    let statement = sqlx::query!(
        "WITH born AS (
             INSERT INTO events (event_id, partner_id, kind, created_at)
             VALUES ($1, $2, 'webhook.test', clock_timestamp())
         )
         INSERT INTO delivery_due (topup_id, partner_id, at) VALUES ($1, $2, '-infinity')",
        event_id.as_str(),
        partner_id.uuid(),
    );
    statement.execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(Tested::Due(event_id))
}

/// Deletes events that are older than the term of attempts, with their due rows; at most `limit`. Returns their number.
pub async fn forget(connection: &mut PgConnection, limit: u32) -> Result<u64> {
    let query = sqlx::query!(
        "WITH old AS (
             DELETE FROM events WHERE event_id = ANY (ARRAY (
                 SELECT event_id FROM events
                 WHERE created_at < now() - make_interval(days => (
                     SELECT days FROM retention_terms
                     WHERE class = 'attempts' AND partner_id = '00000000-0000-0000-0000-000000000000'))
                 ORDER BY created_at LIMIT $1))
             RETURNING event_id
         ), due AS (
             DELETE FROM delivery_due WHERE topup_id = ANY (ARRAY (SELECT event_id FROM old))
         ), held AS (
             DELETE FROM delivery_held WHERE topup_id = ANY (ARRAY (SELECT event_id FROM old))
         )
         SELECT event_id FROM old",
        i64::from(limit),
    );
    Ok(u64::try_from(query.fetch_all(connection).await?.len()).unwrap_or(u64::MAX))
}

/// The facts that decide whether a delivery can be sent again.
#[derive(Clone, Debug)]
pub struct Sending {
    /// `pending`, `delivered`, `exhausted`, or `no_endpoint` if the partner has no URL; `None` before the unit of a topup
    /// is ready.
    pub state: Option<String>,
    /// The database's time.
    pub(crate) now: OffsetDateTime,
    /// Seconds since the last attempt, or since it was stored.
    pub(crate) age: Option<f64>,
    /// It is due, or an attempt is in flight.
    pub(crate) due: Option<bool>,
    /// It cannot be sent again: the topup's profile was erased, or the event is a test, is no longer wanted, or
    /// reports a failed topup that got ready or whose order was cancelled.
    pub void: bool,
}

/// Reads [`Sending`] of an event; of any partner if `partner_id` is `None`.
pub async fn sending(
    connection: &mut PgConnection,
    partner_id: Option<PartnerId>,
    event_id: &EventId,
) -> Result<Option<Sending>> {
    let sending = sqlx::query_as!(
        Sending,
        // The conditions of `drop_void`, and all tests.
        r#"SELECT CASE WHEN p.webhook_url IS NULL THEN 'no_endpoint' ELSE e.state END AS "state?",
                  clock_timestamp() AS "now!",
                  extract(epoch FROM clock_timestamp() - greatest(e.attempted_at, e.created_at))::float8 AS age,
                  (e.state = 'pending' AND (e.attempt = 0 OR coalesce(
                       due.at <= clock_timestamp() + make_interval(secs => $3), true))) AS due,
                  (e.kind = 'webhook.test' OR e.kind <> ALL (p.webhook_events)
                   OR (e.kind = 'topup.failed' AND NOT EXISTS (
                       SELECT FROM topups t
                       JOIN placements l ON l.placement_id = t.placement_id
                       JOIN orders o ON o.order_id = l.order_id
                       LEFT JOIN esims s ON s.topup_id = t.topup_id
                       WHERE t.topup_id = e.topup_id AND t.state = 'failed' AND NOT o.refused
                         AND s.ready_at IS NULL))) AS "void!"
           FROM events e
           JOIN partners p ON p.partner_id = e.partner_id
           LEFT JOIN delivery_due due ON due.topup_id = e.event_id
           WHERE e.event_id = $2 AND ($1::uuid IS NULL OR e.partner_id = $1)"#,
        partner_id.map(PartnerId::uuid),
        event_id.as_str(),
        seconds(LONGEST_LEASE),
    );
    Ok(sending.fetch_optional(connection).await?)
}

/// Makes an event pending and due, at the start of the schedule; its attempts stay. A test is never replayed. A pending
/// event is replayed only if it waits for a retry. `until` is the latest time of the last attempt of a matching event.
pub async fn replay(
    connection: &mut PgConnection,
    event_id: &EventId,
    until: Option<OffsetDateTime>,
    mode: Mode<'_>,
) -> Result<Replayed> {
    let mut transaction = sqlx::Connection::begin(connection).await?;
    // As for topups: an event that is due within 30 s may be leased, or is due soon enough.
    let query = sqlx::query_as!(
        Replayed,
        r#"WITH chosen AS MATERIALIZED (
             SELECT event_id, partner_id, state, attempted_at, created_at
             FROM events e
             WHERE event_id = $1 AND kind <> 'webhook.test'
               AND ($2::timestamptz IS NULL OR greatest(attempted_at, created_at) < $2)
               AND (state IN ('delivered', 'exhausted')
                    OR (state = 'pending' AND attempt > 0
                        AND (SELECT at FROM delivery_due due WHERE due.topup_id = e.event_id)
                            > now() + make_interval(secs => $3)))
             FOR UPDATE
         ), due AS (
             INSERT INTO delivery_due AS due (topup_id, partner_id, at) SELECT event_id, partner_id, now() FROM chosen
             ON CONFLICT (topup_id) DO UPDATE SET at = excluded.at
         ), made_due AS (
             UPDATE events e
             SET state = 'pending', schedule_start = e.attempt, delivered_at = NULL
             FROM chosen WHERE e.event_id = chosen.event_id
         )
         SELECT count(*) AS "replayed!",
                count(*) FILTER (WHERE state = 'delivered') AS "delivered!",
                count(*) FILTER (WHERE state = 'exhausted') AS "exhausted!",
                count(*) FILTER (WHERE state = 'pending') AS "pending!",
                min(greatest(attempted_at, created_at)) AS oldest, max(greatest(attempted_at, created_at)) AS newest
         FROM chosen"#,
        event_id.as_str(),
        until,
        seconds(LONGEST_LEASE),
    );
    let replayed = query.fetch_one(&mut *transaction).await?;
    actions::finish(transaction, mode, replayed.replayed).await?;
    Ok(replayed)
}

/// An event with its last attempt, as partners and operators see it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct View {
    pub event_id: String,
    pub partner_id: uuid::Uuid,
    /// The name of its [`Kind`].
    pub kind: String,
    /// The topup of [`Kind::TopupFailed`].
    pub topup_id: Option<String>,
    /// `pending`, `delivered`, `exhausted` or `no_endpoint`.
    pub state: String,
    /// The number of ended attempts.
    pub attempts: i32,
    /// When the last attempt began.
    #[serde(with = "time::serde::rfc3339::option")]
    pub attempted_at: Option<OffsetDateTime>,
    pub status: Option<i32>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub due_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub delivered_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// The views of chosen events.
macro_rules! views {
    ($chosen:literal $(, $argument:expr)*) => {
        sqlx::query_as!(
            View,
            r#"SELECT e.event_id AS "event_id!", e.partner_id AS "partner_id!", e.kind AS "kind!", e.topup_id,
                      e.state AS "state!", e.attempt AS "attempts!", e.attempted_at, e.status, e.error,
                      (SELECT nullif(at, '-infinity') FROM delivery_due d WHERE d.topup_id = e.event_id) AS due_at,
                      e.delivered_at, e.created_at AS "created_at!"
               FROM (SELECT * FROM events WHERE "# + $chosen + ") e ORDER BY e.created_at DESC, e.event_id DESC"
            $(, $argument)*
        )
    };
}

/// One event; of any partner if `partner_id` is `None`.
pub async fn find(
    connection: &mut PgConnection,
    partner_id: Option<PartnerId>,
    event_id: &EventId,
) -> Result<Option<View>> {
    let view = views!(
        "event_id = $1 AND ($2::uuid IS NULL OR partner_id = $2)",
        event_id.as_str(),
        partner_id.map(PartnerId::uuid)
    );
    Ok(view.fetch_optional(connection).await?)
}

/// A page of a partner's events.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Events before this time and event; `None` begins with the newest. The event may be gone.
    pub before: Option<(OffsetDateTime, EventId)>,
    pub limit: i64,
}

/// A partner's events, the newest first.
pub async fn list(connection: &mut PgConnection, partner_id: PartnerId, page: &Page) -> Result<Vec<View>> {
    let before = page.before.as_ref();
    let views = views!(
        "partner_id = $1 AND (created_at, event_id) < (coalesce($2, 'infinity'::timestamptz), $3)
         ORDER BY created_at DESC, event_id DESC LIMIT $4",
        partner_id.uuid(),
        before.map(|(at, _)| *at),
        before.map_or("", |(_, id)| id.as_str()),
        page.limit
    );
    Ok(views.fetch_all(connection).await?)
}

//! Notices: events that tell a partner, on a channel of its own, that an endpoint fails, that keys
//! end, or that our addresses change. The channel is an endpoint with the purpose `notices`,
//! and a notice is an ordinary delivery to it, so attempts, retries and blocks are those of all
//! deliveries.
//!
//! Guarantees:
//!
//! - A notice about an endpoint is created in the transaction that changes the endpoint's health,
//!   and only if what the partner is told changes, so never once for each webhook.
//! - Only a verified channel gets notices. One that is not verified gets nothing but its code.
//! - A partner gets at most so many notices per day as the notifier's setting allows. Further ones
//!   are left out, and counted.
//! - Nothing of an eSIM is part of a notice.
//!
//! The record of attempts ([`super::record()`]) calls [`about`]; the notifier calls the others.

use std::time::Duration;

use domain::{DeliveryId, EndpointId, event::NoticeKind};
use pg::{Result, count, seconds};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// The purpose of the endpoint that gets notices.
pub const PURPOSE: &str = "notices";
/// How long the code that verifies a channel is valid.
pub const CODE_LIFETIME: Duration = Duration::from_mins(30);

/// What a notice says beside its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeContent {
    /// The endpoint that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_id: Option<Uuid>,
    /// The host of its URL. The URL itself may hold a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Since when it fails.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "time::serde::rfc3339::option"
    )]
    pub since: Option<OffsetDateTime>,
    /// How many attempts have failed in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<i32>,
    /// The class and the HTTP status of the last failed attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// The `webhook-id` of the webhook whose retries have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_id: Option<String>,
    /// The addresses from which webhooks come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<String>>,
    /// What ends, `keys` or `webhook_secret`, and when. The delivery has columns for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "time::serde::rfc3339::option"
    )]
    pub ends_at: Option<OffsetDateTime>,
    /// The code that verifies the channel. It is never stored: the notifier makes it when it sends
    /// it.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// A change of an endpoint's health that its partner is told.
#[derive(Clone, Debug)]
pub(super) struct HealthChange {
    pub endpoint: Uuid,
    pub kind: NoticeKind,
    pub notice: NoticeContent,
}

/// What the notifier makes and leaves out, for its metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoticeCounts {
    /// The kind, and whether the notice was left out because the partner had got too many.
    pub notices: Vec<(NoticeKind, bool)>,
}

impl std::ops::AddAssign for NoticeCounts {
    fn add_assign(&mut self, other: Self) {
        self.notices.extend(other.notices);
    }
}

/// Creates the notices about these changes, for the partners that have a verified channel. Returns
/// what was made and what was left out. Changes of channels themselves are not told, because the
/// channel would have to report its own failure.
///
/// - `change` finds the partner and the host of each endpoint.
/// - `told` joins the partner's channel, with the number of notices of the last day.
/// - `created` inserts the notices of partners below their limit, and `due` makes them due.
pub(super) async fn about(
    connection: &mut PgConnection,
    changes: &[HealthChange],
    per_day: u32,
) -> Result<NoticeCounts> {
    if changes.is_empty() {
        return Ok(NoticeCounts::default());
    }
    let ids: Vec<Uuid> = changes.iter().map(|_| DeliveryId::new().uuid()).collect();
    let endpoints: Vec<Uuid> = changes.iter().map(|change| change.endpoint).collect();
    let kinds: Vec<&str> = changes.iter().map(|change| change.kind.as_str()).collect();
    let notices: Vec<String> = changes
        .iter()
        .map(|change| serde_json::to_string(&change.notice).unwrap_or_default())
        .collect();
    let query = sqlx::query!(
        r#"WITH change AS (
               SELECT new.id, new.kind, e.partner_id,
                      new.notice::jsonb || jsonb_strip_nulls(jsonb_build_object(
                          'endpoint_id', e.endpoint_id, 'host', e.host)) AS notice
               FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[]) AS new (id, endpoint_id, kind, notice)
               JOIN partner_endpoints e ON e.endpoint_id = new.endpoint_id
               WHERE e.purpose <> 'notices'
           ), told AS MATERIALIZED (
               SELECT change.*, channel.endpoint_id,
                      (SELECT count(*) FROM deliveries d
                       WHERE d.partner_id = change.partner_id AND d.kind <> 'topup.ready'
                         AND d.notice IS NOT NULL
                         -- A pair, so that only the partner's index fits.
                         AND (d.partner_id, d.created_at) > (change.partner_id, now() - interval '1 day')
                      ) >= $5 AS left_out
               FROM change
               -- A partner has at most one channel. The limit makes PostgreSQL look it up for each
               -- change, instead of comparing all changes with all channels.
               CROSS JOIN LATERAL (
                   SELECT c.endpoint_id FROM partner_endpoints c
                   WHERE c.partner_id = change.partner_id AND c.purpose = 'notices' AND c.verified_at IS NOT NULL
                   LIMIT 1
               ) channel
           ), created AS (
               INSERT INTO deliveries (delivery_id, partner_id, kind, endpoint_id, notice)
               SELECT id, partner_id, kind, endpoint_id, notice FROM told WHERE NOT left_out
           ), due AS (
               INSERT INTO work (id, kind, provider, lane, partner_id, at)
               SELECT id, 'deliver', '', endpoint_id::text, partner_id, now() FROM told WHERE NOT left_out
           )
           SELECT kind AS "kind!", left_out AS "left_out!" FROM told"#,
        &ids,
        &endpoints,
        &kinds as &[&str],
        &notices,
        i64::from(per_day),
    );
    let told = query.fetch_all(connection).await?.into_iter();
    let notices = told.filter_map(|row| Some((NoticeKind::named(&row.kind)?, row.left_out)));
    Ok(NoticeCounts {
        notices: notices.collect(),
    })
}

/// Creates the notices about old keys and webhook secrets that end within `notice`, each one once,
/// for partners with a verified channel. They need not have asked for the event `key.expiring`.
/// Returns the number of new notices. They have the subject of that event, and are so few that the
/// daily limit does not concern them: a partner can rotate each credential once a day.
pub async fn keys_expire(connection: &mut PgConnection, notice: Duration) -> Result<u64> {
    let made = sqlx::query!(
        "WITH ending AS (
             SELECT p.partner_id, c.endpoint_id, old.of_endpoint, old.credential, old.ends_at
             FROM partner_endpoints c
             JOIN partners p ON p.partner_id = c.partner_id
             CROSS JOIN LATERAL (
                 SELECT NULL::uuid AS of_endpoint, 'keys' AS credential, p.old_keys_until AS ends_at
                 UNION ALL
                 SELECT nullif(f.endpoint_id, f.partner_id), 'webhook_secret', f.secret_ends[2] FROM partner_endpoints f
                 WHERE f.partner_id = p.partner_id AND f.purpose = 'webhooks'
             ) old
             WHERE c.purpose = 'notices' AND c.verified_at IS NOT NULL AND p.disabled_at IS NULL
               AND old.ends_at > now() AND old.ends_at < now() + make_interval(secs => $1)
         ), created AS (
             -- The id is derived from the subject, so that each look makes the same one.
             INSERT INTO deliveries (delivery_id, partner_id, kind, endpoint_id, credential, ends_at, notice)
             SELECT derived_id('notice.keys_expire', concat_ws(' ', coalesce(of_endpoint, partner_id), credential,
                                                              extract(epoch FROM ends_at))),
                    partner_id, 'notice.keys_expire', endpoint_id, credential, ends_at,
                    jsonb_strip_nulls(jsonb_build_object('endpoint_id', of_endpoint))
             FROM ending
             ON CONFLICT DO NOTHING
             RETURNING delivery_id, partner_id, endpoint_id
         )
         INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT delivery_id, 'deliver', '', endpoint_id::text, partner_id, now() FROM created",
        seconds(notice),
    );
    Ok(made.execute(connection).await?.rows_affected())
}

/// Notes the addresses from which webhooks come, and tells each partner with a verified channel if
/// they differ from those that were told last. Returns the number of new notices. The first
/// addresses of a system are told, too; an empty list is neither noted nor told, because it means
/// that partners have to ask.
///
/// The row is written first, so that of two notifiers that start at the same time only one tells.
pub async fn source_addresses(connection: &mut PgConnection, addresses: &[String]) -> Result<u64> {
    if addresses.is_empty() {
        return Ok(0);
    }
    let query = sqlx::query_scalar!(
        r#"WITH changed AS (
               UPDATE system SET addresses = $1, told_at = now() WHERE addresses <> $1
               RETURNING addresses
           ), created AS (
               INSERT INTO deliveries (delivery_id, partner_id, kind, endpoint_id, notice)
               SELECT gen_random_uuid(), c.partner_id, 'notice.source_addresses', c.endpoint_id,
                      jsonb_build_object('addresses', to_jsonb(changed.addresses))
               FROM changed, partner_endpoints c
               JOIN partners p ON p.partner_id = c.partner_id
               WHERE c.purpose = 'notices' AND c.verified_at IS NOT NULL AND p.disabled_at IS NULL
               RETURNING delivery_id, partner_id, endpoint_id
           ), due AS (
               INSERT INTO work (id, kind, provider, lane, partner_id, at)
               SELECT delivery_id, 'deliver', '', endpoint_id::text, partner_id, now() FROM created
           )
           SELECT count(*) AS "made!" FROM created"#,
        addresses,
    );
    Ok(count(query.fetch_one(connection).await?))
}

/// Notes the digest of a new code for a channel that is not verified yet, right before the code is
/// sent. Earlier codes are no longer valid. Returns whether there is still such a channel.
pub async fn note_code(
    connection: &mut PgConnection,
    channel: EndpointId,
    digest: &[u8],
) -> Result<bool> {
    let noted = sqlx::query!(
        "UPDATE partner_endpoints
         SET code_digest = $2, code_until = now() + make_interval(secs => $3), code_tries = 0
         WHERE endpoint_id = $1 AND purpose = 'notices' AND verified_at IS NULL",
        channel.uuid(),
        digest,
        seconds(CODE_LIFETIME),
    );
    Ok(noted.execute(connection).await?.rows_affected() > 0)
}

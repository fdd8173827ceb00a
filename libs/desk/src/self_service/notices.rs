//! A partner's channel for notices: the endpoint with the purpose `notices`, which is an
//! https URL or an e-mail address.
//!
//! Guarantee: a channel gets nothing but its one-time code until the partner has given this code
//! back, so a partner cannot have notices sent to somebody who does not want them. How many codes
//! are sent per day, and how many wrong ones are taken, is limited.

use std::time::Duration;

use domain::{Command, DeliveryId, EndpointId, PartnerId, Stored, standing::EndpointState};
use pg::{Result, Transaction, TransactionEnd, actions::ActionChange, age, seconds, transaction};
use serde_json::{Value, json};
use signing::{code, webhook};
use sqlx::PgConnection;
use store::{deliveries::notices::PURPOSE, with_state};
use time::OffsetDateTime;
use vault::{Purpose, Vault};

use super::record_change;

/// A channel for notices.
#[derive(Clone, Debug)]
pub struct NoticeChannel {
    pub endpoint_id: EndpointId,
    /// The URL, or `mailto:` and the e-mail address.
    pub target: String,
    pub created_at: OffsetDateTime,
    pub verified_at: Option<OffsetDateTime>,
    /// Until when the code that was sent last is valid.
    pub code_until: Option<OffsetDateTime>,
    pub state: Stored<EndpointState>,
    /// Consecutive failed attempts.
    pub failures: i32,
}

pub async fn channel(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<Option<NoticeChannel>> {
    let channel = with_state!(
        NoticeChannel,
        r#"SELECT e.endpoint_id, e.url AS "target!", e.created_at, e.verified_at,
                  CASE WHEN e.verified_at IS NULL AND e.code_until > now() THEN e.code_until END AS code_until,
                  CASE WHEN e.verified_at IS NULL THEN 'unverified' ELSE "#,
        r#" END AS "state!",
                  e.failures
           FROM partner_endpoints e
           WHERE e.partner_id = $1 AND e.purpose = 'notices'"#,
        partner_id.uuid(),
    );
    Ok(channel.fetch_optional(connection).await?)
}

/// What is recorded of a channel: the record outlives an erasure, so it holds no address.
fn shown(channel: Option<&NoticeChannel>) -> Value {
    channel.map_or(Value::Null, |channel| {
        json!({
            "endpoint_id": channel.endpoint_id, "mail": channel.target.starts_with("mailto:"),
            "verified": channel.verified_at.is_some(),
        })
    })
}

/// How often codes are sent for one partner. They bound what somebody else gets whose address the
/// partner has named.
#[derive(Clone, Copy, Debug)]
pub struct VerificationLimits {
    /// The shortest time between two codes.
    pub interval: Duration,
    /// The maximum number of codes within 24 hours.
    pub per_day: u32,
}

/// The result of [`set_channel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetChannel {
    /// The channel is stored, and a code is due.
    Set,
    /// This is the partner's verified channel already.
    Unchanged,
    /// Too many codes were sent; this much time is left until the next one.
    TooSoon(Duration),
}

const DAY: Duration = Duration::from_hours(24);

/// Sets the partner's channel and makes its code due. An earlier channel ends, and what waits for
/// it is no longer sent.
pub async fn set_channel(
    connection: &mut PgConnection,
    vault: &Vault,
    partner_id: PartnerId,
    target: &str,
    secret: &webhook::Secret,
    limits: VerificationLimits,
) -> Result<SetChannel> {
    transaction!(connection, "notices::set_channel", |transaction| {
        // The lock of the partner's row lets one request after the other pass, so that two requests
        // at the same time do not send two codes, and do not make two channels.
        let lock = sqlx::query!(
            "SELECT FROM partners WHERE partner_id = $1 FOR NO KEY UPDATE",
            partner_id.uuid()
        );
        lock.execute(&mut **transaction).await?;
        let known = channel(transaction, partner_id).await?;
        if known
            .as_ref()
            .is_some_and(|known| known.target == target && known.verified_at.is_some())
        {
            return Ok(TransactionEnd::Rollback(SetChannel::Unchanged));
        }
        if let Some(wait) = wait_for_code(transaction, partner_id, limits).await? {
            return Ok(TransactionEnd::Rollback(SetChannel::TooSoon(wait)));
        }
        end_channel(transaction, partner_id).await?;
        let endpoint_id = EndpointId::new();
        let sealed = vault.seal(Purpose::EndpointSecret(endpoint_id), secret.expose())?;
        let statement = sqlx::query!(
            "WITH channel AS (
             INSERT INTO partner_endpoints (endpoint_id, partner_id, nth, purpose, url, secrets, secret_ends, events)
             SELECT $1, $2, max(nth) + 1, $3, $4, ARRAY[$5::bytea], ARRAY[NULL::timestamptz], '{}'
             FROM partner_endpoints WHERE partner_id = $2
         ), created AS (
             INSERT INTO deliveries (delivery_id, partner_id, kind, endpoint_id, created_at)
             VALUES ($6, $2, 'notice.verify', $1, clock_timestamp())
         )
         INSERT INTO work (id, kind, provider, lane, partner_id, at)
         VALUES ($6, 'deliver', '', $1::uuid::text, $2, now())",
            endpoint_id.uuid(),
            partner_id.uuid(),
            PURPOSE,
            target,
            sealed,
            DeliveryId::new().uuid(),
        );
        statement.execute(&mut **transaction).await?;
        let after = channel(transaction, partner_id).await?;
        let changed = ActionChange::between(shown(known.as_ref()), shown(after.as_ref()));
        record_change(transaction, Command::NoticesSet, partner_id, changed).await?;
        Ok(TransactionEnd::Commit(SetChannel::Set))
    })
}

/// How long the partner has to wait until a further code may be sent to it; `None` if not at all.
/// The codes that were sent are still there as events, whatever became of their channels.
async fn wait_for_code(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    limits: VerificationLimits,
) -> Result<Option<Duration>> {
    let query = sqlx::query_scalar!(
        r#"SELECT extract(epoch FROM clock_timestamp() - created_at)::float8 AS "age!" FROM deliveries
           WHERE partner_id = $1 AND kind <> 'topup.ready' AND kind = 'notice.verify'
             -- A pair, so that only the partner's index fits.
             AND (partner_id, created_at) > ($1, now() - make_interval(secs => $2))
           ORDER BY created_at DESC LIMIT $3"#,
        partner_id.uuid(),
        seconds(DAY),
        i64::from(limits.per_day),
    );
    let ages = query.fetch_all(connection).await?;
    let newest = ages
        .first()
        .map(|first| limits.interval.saturating_sub(age(*first)));
    // The oldest of as many as are allowed has to leave the day.
    let full = usize::try_from(limits.per_day).is_ok_and(|most| ages.len() >= most);
    let oldest = ages.last().filter(|_| full);
    let oldest = oldest.map(|last| DAY.saturating_sub(age(*last)));
    let wait = newest.max(oldest).unwrap_or_default();
    Ok(Some(wait).filter(|wait| !wait.is_zero()))
}

/// Deletes the partner's channel. The notifier deletes what waits
/// for it, because it finds no endpoint for it any more. Returns whether there was one.
async fn end_channel(transaction: &mut Transaction<'_>, partner_id: PartnerId) -> Result<bool> {
    let ended = sqlx::query!(
        "DELETE FROM partner_endpoints WHERE partner_id = $1 AND purpose = 'notices'",
        partner_id.uuid(),
    );
    Ok(ended.execute(&mut **transaction).await?.rows_affected() > 0)
}

/// Removes the partner's channel. Returns whether there was one.
pub async fn remove_channel(connection: &mut PgConnection, partner_id: PartnerId) -> Result<bool> {
    transaction!(connection, "notices::remove_channel", |transaction| {
        let known = channel(transaction, partner_id).await?;
        let ended = end_channel(transaction, partner_id).await?;
        if ended {
            let changed = ActionChange::removed(shown(known.as_ref()));
            record_change(transaction, Command::NoticesRemove, partner_id, changed).await?;
        }
        Ok(TransactionEnd::Commit(ended))
    })
}

/// The result of [`verify_channel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// The channel is verified, now or since earlier.
    Verified,
    /// The code is not that of the channel. So many further wrong ones are taken.
    Wrong { left: i32 },
    /// No code was sent yet, it is too old, or there were too many wrong ones.
    Ended,
    /// The partner has no channel.
    NoChannel,
}

/// Verifies the partner's channel with the code that was sent to it. The function of the database
/// compares the code, counts the wrong ones and marks the channel, because the role of ingress may
/// not do so itself.
pub async fn verify_channel(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    given: &str,
) -> Result<Verification> {
    transaction!(connection, "notices::verify_channel", |transaction| {
        let query = sqlx::query!(
            r#"SELECT outcome AS "outcome!", tries_left AS "tries_left!" FROM verify_channel($1, $2)"#,
            partner_id.uuid(),
            code::plain(given),
        );
        let tried = query.fetch_one(&mut **transaction).await?;
        let verification = match tried.outcome.as_str() {
            "verified" => {
                let changed = ActionChange::between(
                    json!({ "verified": false }),
                    json!({ "verified": true }),
                );
                record_change(transaction, Command::NoticesVerify, partner_id, changed).await?;
                Verification::Verified
            }
            "before" => Verification::Verified,
            "wrong" => Verification::Wrong {
                left: tried.tries_left,
            },
            "none" => Verification::NoChannel,
            _ => Verification::Ended,
        };
        Ok(TransactionEnd::Commit(verification))
    })
}

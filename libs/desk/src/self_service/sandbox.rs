//! What a partner makes in the sandbox to test its program: events that would otherwise come only
//! every few months, and a balance that is nearly empty.

use std::time::Duration;

use domain::{DeliveryId, PartnerId};
use pg::{Result, TransactionEnd, age, seconds, transaction};
use sqlx::PgConnection;

/// How long before their end a real `key.expiring` tells of old keys, unless an operator has set
/// another time.
const NOTICE: Duration = Duration::from_hours(6);

/// The result of [`expire_keys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyExpiryResult {
    /// The event is stored and due now.
    Due(DeliveryId),
    /// The last one is younger than the interval; this much time is left.
    TooSoon(Duration),
    /// The partner does not ask for events of this type, so nothing would be sent.
    Unwanted,
}

/// Makes a `key.expiring` that says that the old keys of a sandbox partner end in six hours, unless
/// its last one is younger than `interval`. Nothing ends: the event only looks like a real one.
///
/// The statement makes one for partners of the environment `sandbox` only; its caller has checked
/// that, too.
pub async fn expire_keys(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    interval: Duration,
) -> Result<KeyExpiryResult> {
    transaction!(connection, "sandbox::expire_keys", |transaction| {
        // The lock of the partner's row lets one request after the other pass, as for tests of the
        // endpoint.
        let query = sqlx::query_scalar!(
            r#"SELECT 'key.expiring' = ANY (e.events) AS "wanted!"
           FROM partners p JOIN partner_endpoints e ON e.endpoint_id = p.partner_id
           WHERE p.partner_id = $1 AND p.environment = 'sandbox' FOR NO KEY UPDATE OF p"#,
            partner_id.uuid(),
        );
        if query.fetch_optional(&mut **transaction).await? != Some(true) {
            return Ok(TransactionEnd::Rollback(KeyExpiryResult::Unwanted));
        }
        let query = sqlx::query_scalar!(
            r#"SELECT extract(epoch FROM clock_timestamp() - created_at)::float8 AS "age!" FROM deliveries
           WHERE partner_id = $1 AND kind <> 'topup.ready' AND kind = 'key.expiring'
             -- A pair, so that only the partner's index fits.
             AND (partner_id, created_at) > ($1, now() - make_interval(secs => $2))
           ORDER BY created_at DESC LIMIT 1"#,
            partner_id.uuid(),
            seconds(interval),
        );
        let last = query.fetch_optional(&mut **transaction).await?;
        if let Some(left) = last.and_then(|last| interval.checked_sub(age(last))) {
            return Ok(TransactionEnd::Rollback(KeyExpiryResult::TooSoon(left)));
        }
        let id = DeliveryId::new();
        let statement = sqlx::query!(
            "WITH created AS (
             INSERT INTO deliveries (delivery_id, partner_id, kind, credential, ends_at, created_at)
             VALUES ($1, $2, 'key.expiring', 'keys', now() + make_interval(secs => $3), clock_timestamp())
         )
         INSERT INTO work (id, kind, provider, lane, partner_id, at) VALUES ($1, 'deliver', '', '', $2, now())",
            id.uuid(),
            partner_id.uuid(),
            seconds(NOTICE),
        );
        statement.execute(&mut **transaction).await?;
        Ok(TransactionEnd::Commit(KeyExpiryResult::Due(id)))
    })
}

/// Sets the balance of a sandbox partner, by an adjustment in its statement, which is the record of
/// it. Returns whether it has an account in this currency; a live partner has none here.
pub async fn set_balance(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    currency: &str,
    target: i64,
) -> Result<bool> {
    let query = sqlx::query_scalar!(
        r#"SELECT set_sandbox_balance($1, $2, $3) AS "is_set!""#,
        partner_id.uuid(),
        currency,
        target,
    );
    Ok(query.fetch_one(connection).await?)
}

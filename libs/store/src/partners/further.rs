//! A partner's further endpoints: how partners (self-service) make, change and delete them.
//!
//! The first endpoint of a partner, which is the webhook URL of the specification, is part of the
//! partner's row ([`super::endpoint`]). What this module stores goes to any [number](MOST) of
//! further ones. Deliveries, attempts and blocks do not tell the two kinds apart.
//!
//! Every function takes the partner beside the endpoint and filters by both, so the id of another
//! partner's endpoint looks like one that does not exist.

use std::collections::BTreeMap;

use domain::{
    EndpointId, PartnerId,
    rotation::{self, Overlap, Valid},
};
use signing::webhook;
use sqlx::PgConnection;
use time::OffsetDateTime;
use url::Url;

use super::Rotated;
use crate::{
    Error, Result,
    deliveries::{
        endpoints::{self, Block, EndpointKey},
        events::Kind,
    },
    vault::{Purpose, Vault, VaultError},
};

/// The maximum number of endpoints of one partner, the first one included. It bounds how many
/// requests an order can cause.
pub const MOST: u32 = 10;

/// Headers that every request to an endpoint carries: names and values. `webhooks::headers` checks
/// them.
pub type Headers = BTreeMap<String, String>;

/// A new further endpoint.
#[derive(Clone, Copy, Debug)]
pub struct NewEndpoint<'a> {
    pub key: EndpointKey,
    pub url: &'a str,
    pub secret: &'a webhook::Secret,
    /// What it gets; of [`Kind::OF_FURTHER_ENDPOINTS`].
    pub events: &'a [Kind],
    pub headers: &'a Headers,
}

/// Creates a further endpoint. Returns false if the partner has the maximum number of endpoints
/// already. The lock of the partner's row lets one request after the other pass, so that two at the
/// same time do not exceed the maximum.
pub async fn create(
    connection: &mut PgConnection,
    vault: &Vault,
    new: &NewEndpoint<'_>,
) -> Result<bool> {
    let id = new.key.id;
    let partner_id = new.key.partner_id.uuid();
    let secret = vault.seal(Purpose::EndpointSecret(id), new.secret.expose())?;
    let headers = seal_headers(vault, id, new.headers)?;
    sqlx::query!(
        "UPDATE partners SET has_further_endpoints = true WHERE partner_id = $1",
        partner_id
    )
    .execute(&mut *connection)
    .await?;
    let statement = sqlx::query!(
        "INSERT INTO further_endpoints (endpoint_id, partner_id, url, secret, events, headers, created_at)
         SELECT $2, $1, $3, $4, $5, $6, clock_timestamp()
         WHERE (SELECT count(*) FROM further_endpoints WHERE partner_id = $1 AND purpose = 'webhooks') < $7",
        partner_id,
        id.uuid(),
        new.url,
        secret,
        &names(new.events) as &[&str],
        headers,
        // The first endpoint has no row.
        i64::from(MOST - 1),
    );
    let created = statement.execute(&mut *connection).await?.rows_affected() > 0;
    if created {
        endpoints::judge_host(connection, new.key).await?;
    }
    Ok(created)
}

fn names(kinds: &[Kind]) -> Vec<&'static str> {
    kinds.iter().copied().map(Kind::as_str).collect()
}

/// A change of a further endpoint; `None` keeps what is stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change<'a> {
    pub url: Option<&'a str>,
    pub events: Option<&'a [Kind]>,
    pub headers: Option<&'a Headers>,
}

/// Changes a further endpoint. After a new URL the notifiers make waiting deliveries due, and the
/// next probe of a blocked endpoint is due at once. Returns whether anything changed; `None` if the
/// partner has no such endpoint.
pub async fn change(
    connection: &mut PgConnection,
    vault: &Vault,
    endpoint: EndpointKey,
    change: &Change<'_>,
) -> Result<Option<bool>> {
    // The lock keeps what is compared as it is until the change has committed.
    let query = sqlx::query!(
        "SELECT url, events, headers FROM further_endpoints
         WHERE endpoint_id = $1 AND partner_id = $2 AND purpose = 'webhooks' FOR UPDATE",
        endpoint.id.uuid(),
        endpoint.partner_id.uuid(),
    );
    let Some(was) = query.fetch_optional(&mut *connection).await? else {
        return Ok(None);
    };
    let events = change.events.map(names);
    let is_moved = change.url.is_some_and(|url| url != was.url);
    let is_other = events.as_ref().is_some_and(|events| *events != was.events);
    // Sealed values differ although what they hold is the same.
    let headers = match (change.headers, &was.headers) {
        (None, _) => None,
        (Some(new), None) => Some(new).filter(|new| !new.is_empty()),
        (Some(new), Some(sealed)) => {
            let same = open_headers(vault, endpoint.id, sealed).is_ok_and(|old| old == *new);
            (!same).then_some(new)
        }
    };
    if !is_moved && !is_other && headers.is_none() {
        return Ok(Some(false));
    }
    let sealed = match headers {
        Some(headers) => seal_headers(vault, endpoint.id, headers)?,
        None => None,
    };
    let statement = sqlx::query!(
        "UPDATE further_endpoints
         SET url = coalesce($2::text, url), events = coalesce($3::text[], events),
             headers = CASE WHEN $4::bool THEN $5 ELSE headers END
         WHERE endpoint_id = $1",
        endpoint.id.uuid(),
        change.url,
        events.as_deref() as Option<&[&str]>,
        headers.is_some(),
        sealed,
    );
    statement.execute(&mut *connection).await?;
    if is_moved {
        endpoints::begin_move(connection, endpoint.id, Block::ProbeNow).await?;
    }
    if change.url.is_some_and(|url| host(url) != host(&was.url)) {
        endpoints::judge_host(connection, endpoint).await?;
    }
    Ok(Some(true))
}

/// The host of a URL, in lower case. URLs that are stored are well-formed.
fn host(url: &str) -> Option<String> {
    let url: Url = url.parse().ok()?;
    url.host_str().map(str::to_owned)
}

/// Deletes a further endpoint. What it still waits for is not sent any more: deliveries that are
/// due are deleted by the claim that finds them, and those that are held are forgotten here.
/// Returns false if the partner has no such endpoint.
///
/// `health` forgets its block, so that the claims find the deliveries. `flag` notes whether the
/// partner has other further endpoints; it reads the state before this statement.
pub async fn delete(connection: &mut PgConnection, endpoint: EndpointKey) -> Result<bool> {
    let partner_id = endpoint.partner_id.uuid();
    sqlx::query!(
        "SELECT partner_id FROM partners WHERE partner_id = $1 FOR NO KEY UPDATE",
        partner_id
    )
    .fetch_optional(&mut *connection)
    .await?;
    let statement = sqlx::query_scalar!(
        r#"WITH gone AS (
               DELETE FROM further_endpoints WHERE endpoint_id = $1 AND partner_id = $2 AND purpose = 'webhooks' RETURNING endpoint_id
           ), health AS (
               DELETE FROM endpoints WHERE partner_id = ANY (ARRAY (SELECT endpoint_id FROM gone))
           ), waiting AS (
               DELETE FROM held WHERE partner_id = $2 AND state = 'exhausted'
                 AND lane = ANY (ARRAY (SELECT endpoint_id::text FROM gone))
           ), flag AS (
               UPDATE partners SET has_further_endpoints = false
               WHERE partner_id = $2 AND has_further_endpoints
                 AND NOT EXISTS (SELECT FROM further_endpoints f
                                 WHERE f.partner_id = $2 AND f.endpoint_id <> $1 AND f.purpose = 'webhooks')
           )
           SELECT count(*) AS "gone!" FROM gone"#,
        endpoint.id.uuid(),
        partner_id,
    );
    Ok(statement.fetch_one(connection).await? > 0)
}

/// The secrets of an endpoint as they are stored, sealed.
struct Secrets {
    secret: Vec<u8>,
    old_secret: Option<Vec<u8>>,
    old_secret_until: Option<OffsetDateTime>,
    /// The time of the transaction.
    now: OffsetDateTime,
}

/// Replaces the secret of an endpoint. [`rotation::rotate`] decides what becomes of the old one; the
/// rules are those of [`super::rotate_keys`]. The caller's transaction keeps another rotation out.
pub async fn rotate_secret(
    connection: &mut PgConnection,
    vault: &Vault,
    endpoint: EndpointKey,
    secret: &webhook::Secret,
    overlap: Overlap,
) -> Result<Rotated> {
    let sealed = vault.seal(purpose(endpoint), secret.expose())?;
    let id = endpoint.id.uuid();
    let partner_id = endpoint.partner_id.uuid();
    let stored = if endpoint.is_first() {
        let query = sqlx::query_as!(
            Secrets,
            r#"SELECT webhook_secret AS secret, old_webhook_secret AS old_secret,
                      old_webhook_secret_until AS old_secret_until, now() AS "now!"
               FROM partners WHERE partner_id = $1 FOR NO KEY UPDATE"#,
            partner_id,
        );
        query.fetch_optional(&mut *connection).await?
    } else {
        let query = sqlx::query_as!(
            Secrets,
            r#"SELECT secret, old_secret, old_secret_until, now() AS "now!" FROM further_endpoints
               WHERE endpoint_id = $1 AND partner_id = $2 AND purpose = 'webhooks' FOR NO KEY UPDATE"#,
            id,
            partner_id,
        );
        query.fetch_optional(&mut *connection).await?
    };
    let Some(stored) = stored else {
        return Ok(Rotated::Refused);
    };
    let newest = Valid {
        value: stored.secret,
        ends_at: None,
    };
    let old = stored.old_secret.zip(stored.old_secret_until);
    let old = old.map(|(value, until)| Valid {
        value,
        ends_at: Some(until),
    });
    let list: Vec<_> = [newest].into_iter().chain(old).collect();
    let rotated = rotation::rotate(&list, sealed, overlap, stored.now);
    let Some([newest, old @ ..]) = rotated.as_deref() else {
        return Ok(Rotated::Refused);
    };
    let old = old.first();
    let old_secret = old.map(|one| one.value.as_slice());
    let until = old.and_then(|one| one.ends_at);
    if endpoint.is_first() {
        let statement = sqlx::query!(
            "UPDATE partners SET webhook_secret = $2, old_webhook_secret = $3, old_webhook_secret_until = $4
             WHERE partner_id = $1",
            partner_id,
            newest.value,
            old_secret,
            until,
        );
        statement.execute(connection).await?;
    } else {
        let statement = sqlx::query!(
            "UPDATE further_endpoints SET secret = $2, old_secret = $3, old_secret_until = $4 WHERE endpoint_id = $1",
            id,
            newest.value,
            old_secret,
            until,
        );
        statement.execute(connection).await?;
    }
    Ok(Rotated::Until(until))
}

/// Whether the partner has this endpoint. Its first endpoint always exists.
pub async fn exists(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    id: EndpointId,
) -> Result<bool> {
    if id == partner_id.first_endpoint() {
        return Ok(true);
    }
    let query = sqlx::query_scalar!(
        r#"SELECT true AS "true!" FROM further_endpoints WHERE endpoint_id = $1 AND partner_id = $2 AND purpose = 'webhooks'"#,
        id.uuid(),
        partner_id.uuid(),
    );
    Ok(query.fetch_optional(connection).await?.is_some())
}

/// Checks that the master keys of a vault open the secrets of further endpoints, as
/// [`super::check_master_key`] does for those of first endpoints: ten of the newest for each key in
/// use.
pub(super) async fn check_keys(connection: &mut PgConnection, vault: &Vault) -> Result<()> {
    let newest = sqlx::query!(
        r#"SELECT endpoint_id AS "endpoint_id!", secret AS "secret!" FROM (
             SELECT endpoint_id, secret, row_number() OVER (
                        PARTITION BY substring(secret FROM 1 FOR 1 + get_byte(secret, 0)) ORDER BY created_at DESC
                    ) AS place
             FROM further_endpoints WHERE octet_length(secret) > 0
         ) by_key WHERE place <= 10"#
    );
    let newest = newest.fetch_all(connection).await?;
    let opened = newest
        .into_iter()
        .map(|row| vault.open(Purpose::EndpointSecret(row.endpoint_id.into()), &row.secret));
    super::some_opened(opened)
}

fn seal_headers(vault: &Vault, id: EndpointId, headers: &Headers) -> Result<Option<Vec<u8>>> {
    if headers.is_empty() {
        return Ok(None);
    }
    let text = serde_json::to_vec(headers).map_err(|error| Error::Unreadable(error.to_string()))?;
    Ok(Some(vault.seal(Purpose::EndpointHeaders(id), &text)?))
}

/// Opens the sealed headers of a further endpoint.
pub fn open_headers(vault: &Vault, id: EndpointId, sealed: &[u8]) -> Result<Headers> {
    let text = vault.open(Purpose::EndpointHeaders(id), sealed)?;
    serde_json::from_slice(&text).map_err(|_| VaultError::Damaged.into())
}

/// Opens the sealed webhook-signing key of an endpoint, whether it is the first one of its partner
/// or a further one.
pub fn open_secret(vault: &Vault, endpoint: EndpointKey, sealed: &[u8]) -> Result<webhook::Secret> {
    let bytes = vault.open(purpose(endpoint), sealed)?;
    webhook::Secret::from_bytes(bytes).map_err(|_| VaultError::Damaged.into())
}

/// What the secret of an endpoint is sealed for.
pub(super) fn purpose(endpoint: EndpointKey) -> Purpose<'static> {
    if endpoint.is_first() {
        Purpose::WebhookSecret(endpoint.partner_id)
    } else {
        Purpose::EndpointSecret(endpoint.id)
    }
}

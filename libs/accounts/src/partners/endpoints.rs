//! The endpoints of partners: how partners (self-service) and operators (`esimctl`) make, change
//! and delete them.
//!
//! The first endpoint of a partner is the webhook URL of the specification. It exists from the
//! beginning, has no URL until one is set, and is never deleted. A partner may add any
//! [number](MOST) of further ones. All of them are rows of one table, and the functions here do not
//! tell them apart, except where a comment says so.
//!
//! Every function takes the partner beside the endpoint and filters by both, so the id of another
//! partner's endpoint looks like one that does not exist.

mod url;

use std::collections::BTreeMap;

use domain::{
    EndpointId, EndpointKey, PartnerId,
    event::EventKind,
    rotation::{self, Overlap, RotationResult, Valid},
};
use pg::{Error, Result, Transaction};
use signing::webhook;
use sqlx::PgConnection;
use time::OffsetDateTime;
use vault::{Purpose, Vault, VaultError, some_opened};

pub use self::url::{Block, PACE};

/// The maximum number of endpoints of one partner, the first one included. It bounds how many
/// requests an order can cause.
pub const MOST: u32 = 10;

/// Headers that every request to an endpoint carries: names and values. `webhooks::headers` checks
/// them.
pub type Headers = BTreeMap<String, String>;

/// Sets the URL and the secret of a new partner's first endpoint, which the insert of the partner
/// has made (a trigger).
pub(super) async fn set_first(
    connection: &mut PgConnection,
    vault: &Vault,
    partner_id: PartnerId,
    url: Option<&str>,
    secret: &webhook::Secret,
) -> Result<()> {
    let purpose = purpose(EndpointKey::first(partner_id));
    let statement = sqlx::query!(
        "UPDATE partner_endpoints
         SET url = $2, secrets = ARRAY[$3::bytea], secret_ends = ARRAY[NULL::timestamptz]
         WHERE endpoint_id = $1",
        partner_id.uuid(),
        url,
        vault.seal(purpose, secret.expose())?,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// A new further endpoint.
#[derive(Clone, Copy, Debug)]
pub struct NewEndpoint<'a> {
    pub key: EndpointKey,
    pub url: &'a str,
    pub secret: &'a webhook::Secret,
    /// What it gets; of [`EventKind::of_further_endpoints`].
    pub events: &'a [EventKind],
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
    let secret = vault.seal(purpose(new.key), new.secret.expose())?;
    let headers = seal_headers(vault, id, new.headers)?;
    sqlx::query!(
        "UPDATE partners SET has_further_endpoints = true WHERE partner_id = $1",
        partner_id
    )
    .execute(&mut *connection)
    .await?;
    let statement = sqlx::query!(
        "INSERT INTO partner_endpoints
             (endpoint_id, partner_id, nth, url, secrets, secret_ends, events, headers, created_at)
         SELECT $2, $1, max(nth) + 1, $3, ARRAY[$4::bytea], ARRAY[NULL::timestamptz], $5, $6, clock_timestamp()
         FROM partner_endpoints WHERE partner_id = $1
         HAVING count(*) FILTER (WHERE purpose = 'webhooks') < $7",
        partner_id,
        id.uuid(),
        new.url,
        secret,
        &names(new.key, new.events) as &[&str],
        headers,
        i64::from(MOST),
    );
    let created = statement.execute(&mut *connection).await?.rows_affected() > 0;
    if created {
        url::judge_host(connection, new.key).await?;
    }
    Ok(created)
}

/// The events of an endpoint as they are stored. The first endpoint always gets ready topups.
fn names(endpoint: EndpointKey, kinds: &[EventKind]) -> Vec<&'static str> {
    let always = endpoint.is_first().then_some(EventKind::TopupReady);
    let chosen = kinds.iter().copied();
    let chosen = chosen.filter(|kind| Some(*kind) != always);
    always
        .into_iter()
        .chain(chosen)
        .map(EventKind::as_str)
        .collect()
}

/// A change of an endpoint; `None` keeps what is stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct EndpointUpdate<'a> {
    /// The URL. `Some(None)` removes it, which only the first endpoint allows.
    pub url: Option<Option<&'a str>>,
    pub events: Option<&'a [EventKind]>,
    /// The headers, and what seals them.
    pub headers: Option<(&'a Vault, &'a Headers)>,
}

/// Changes an endpoint, and notes that the deliveries which wait must go to a new URL. With
/// [`Block::End`], the same URL again counts as a new one, so an operator can end a block by
/// setting the URL again. A host that a sandbox partner has chosen itself has to prove that it
/// wants webhooks. Returns whether anything changed; `None` if the partner has no such endpoint.
pub async fn change(
    transaction: &mut Transaction<'_>,
    endpoint: EndpointKey,
    change: &EndpointUpdate<'_>,
    block: Block,
) -> Result<Option<bool>> {
    // The lock keeps what is compared as it is until the change has committed.
    let query = sqlx::query!(
        "SELECT url, host, events, headers FROM partner_endpoints
         WHERE endpoint_id = $1 AND partner_id = $2 AND purpose = 'webhooks' FOR UPDATE",
        endpoint.id.uuid(),
        endpoint.partner_id.uuid(),
    );
    let Some(was) = query.fetch_optional(&mut **transaction).await? else {
        return Ok(None);
    };
    let events = change.events.map(|kinds| names(endpoint, kinds));
    let is_moved = change
        .url
        .is_some_and(|url| block == Block::End || url != was.url.as_deref());
    let is_other = events.as_ref().is_some_and(|events| *events != was.events);
    // Sealed values differ although what they hold is the same.
    let headers = match (change.headers, &was.headers) {
        (None, _) => None,
        (Some(new), None) => Some(new).filter(|(_, new)| !new.is_empty()),
        (Some((vault, new)), Some(sealed)) => {
            let same = open_headers(vault, endpoint.id, sealed).is_ok_and(|old| old == *new);
            (!same).then_some((vault, new))
        }
    };
    if !is_moved && !is_other && headers.is_none() {
        return Ok(Some(false));
    }
    let sealed = match headers {
        Some((vault, headers)) => seal_headers(vault, endpoint.id, headers)?,
        None => None,
    };
    let statement = sqlx::query_scalar!(
        "UPDATE partner_endpoints
         SET url = CASE WHEN $2 THEN $3 ELSE url END, events = coalesce($4::text[], events),
             headers = CASE WHEN $5::bool THEN $6 ELSE headers END
         WHERE endpoint_id = $1 RETURNING host",
        endpoint.id.uuid(),
        change.url.is_some(),
        change.url.flatten(),
        events.as_deref() as Option<&[&str]>,
        headers.is_some(),
        sealed,
    );
    let host = statement.fetch_one(&mut **transaction).await?;
    match change.url.flatten() {
        _ if !is_moved => {}
        Some(_) => {
            url::begin_move(transaction, endpoint.id, block).await?;
            if host != was.host && block == Block::ProbeNow {
                url::judge_host(transaction, endpoint).await?;
            }
        }
        None => url::end_move(transaction, endpoint.id).await?,
    }
    Ok(Some(true))
}

/// Sets the further events that the first endpoint of a partner gets. Returns whether the partner
/// exists.
pub async fn set_events(
    transaction: &mut Transaction<'_>,
    partner_id: PartnerId,
    events: &[EventKind],
) -> Result<bool> {
    let first = EndpointKey::first(partner_id);
    let new = EndpointUpdate {
        events: Some(events),
        ..EndpointUpdate::default()
    };
    let found = change(transaction, first, &new, Block::ProbeNow).await?;
    Ok(found.is_some())
}

/// Deletes a further endpoint. What it still waits for is no longer sent: deliveries that are
/// due are deleted by the claim that finds them, and those that are held are forgotten here.
/// Returns false if the partner has no such endpoint.
///
/// `flag` notes whether the partner has other further endpoints; it reads the state before this
/// statement.
pub async fn delete(transaction: &mut Transaction<'_>, endpoint: EndpointKey) -> Result<bool> {
    let partner_id = endpoint.partner_id.uuid();
    sqlx::query!(
        "SELECT partner_id FROM partners WHERE partner_id = $1 FOR NO KEY UPDATE",
        partner_id
    )
    .fetch_optional(&mut **transaction)
    .await?;
    let statement = sqlx::query_scalar!(
        r#"WITH gone AS (
               DELETE FROM partner_endpoints
               WHERE endpoint_id = $1 AND partner_id = $2 AND purpose = 'webhooks' AND nth > 0
               RETURNING lane
           ), waiting AS (
               DELETE FROM held WHERE partner_id = $2 AND state = 'exhausted'
                 AND lane = ANY (ARRAY (SELECT lane FROM gone))
           ), flag AS (
               UPDATE partners SET has_further_endpoints = false
               WHERE partner_id = $2 AND has_further_endpoints
                 AND NOT EXISTS (SELECT FROM partner_endpoints f
                                 WHERE f.partner_id = $2 AND f.endpoint_id <> $1 AND f.purpose = 'webhooks' AND f.nth > 0)
           )
           SELECT count(*) AS "gone!" FROM gone"#,
        endpoint.id.uuid(),
        partner_id,
    );
    Ok(statement.fetch_one(&mut **transaction).await? > 0)
}

/// Replaces the secret of an endpoint. [`rotation::rotate`] decides what becomes of the old one;
/// the rules are those of [`super::rotate_keys`]. The caller's transaction keeps another rotation
/// out.
pub async fn rotate_secret(
    transaction: &mut Transaction<'_>,
    vault: &Vault,
    endpoint: EndpointKey,
    secret: &webhook::Secret,
    overlap: Overlap,
) -> Result<RotationResult> {
    let sealed = vault.seal(purpose(endpoint), secret.expose())?;
    let query = sqlx::query!(
        r#"SELECT secrets, secret_ends AS "secret_ends: Vec<Option<OffsetDateTime>>", now() AS "now!"
           FROM partner_endpoints
           WHERE endpoint_id = $1 AND partner_id = $2 AND purpose = 'webhooks' FOR NO KEY UPDATE"#,
        endpoint.id.uuid(),
        endpoint.partner_id.uuid(),
    );
    let Some(stored) = query.fetch_optional(&mut **transaction).await? else {
        return Ok(RotationResult::Refused);
    };
    let list = stored.secrets.into_iter().zip(stored.secret_ends);
    let list: Vec<_> = list
        .map(|(value, ends_at)| Valid { value, ends_at })
        .collect();
    let Some(list) = rotation::rotate(&list, sealed, overlap, stored.now) else {
        return Ok(RotationResult::Refused);
    };
    let (secrets, ends): (Vec<Vec<u8>>, Vec<Option<OffsetDateTime>>) =
        list.into_iter().map(|one| (one.value, one.ends_at)).unzip();
    let statement = sqlx::query!(
        "UPDATE partner_endpoints SET secrets = $2, secret_ends = $3 WHERE endpoint_id = $1",
        endpoint.id.uuid(),
        &secrets,
        &ends as &[Option<OffsetDateTime>],
    );
    statement.execute(&mut **transaction).await?;
    Ok(RotationResult::Until(ends.into_iter().flatten().next()))
}

/// Makes the first endpoint of a partner anew, without a URL, a secret and further events, after
/// all of them were deleted.
pub async fn make_first(connection: &mut PgConnection, partner_id: PartnerId) -> Result<()> {
    let statement = sqlx::query!(
        "INSERT INTO partner_endpoints (endpoint_id, partner_id, nth) VALUES ($1, $1, 0)",
        partner_id.uuid(),
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Whether the partner has this endpoint. Its channel for notices is not one of those that it sees
/// and changes.
pub async fn exists(connection: &mut PgConnection, endpoint: EndpointKey) -> Result<bool> {
    let query = sqlx::query_scalar!(
        r#"SELECT true AS "true!" FROM partner_endpoints
           WHERE endpoint_id = $1 AND partner_id = $2 AND purpose = 'webhooks'"#,
        endpoint.id.uuid(),
        endpoint.partner_id.uuid(),
    );
    Ok(query.fetch_optional(connection).await?.is_some())
}

/// The valid secrets of an endpoint, sealed, the newest first. There are two during the overlap of
/// a rotation.
pub async fn secrets(connection: &mut PgConnection, endpoint: EndpointKey) -> Result<Vec<Vec<u8>>> {
    let query = sqlx::query_scalar!(
        r#"SELECT secret AS "secret!"
           FROM partner_endpoints
           CROSS JOIN LATERAL unnest(secrets, secret_ends) WITH ORDINALITY AS one (secret, ends_at, place)
           WHERE endpoint_id = $1 AND partner_id = $2 AND (ends_at IS NULL OR ends_at > now())
           ORDER BY place"#,
        endpoint.id.uuid(),
        endpoint.partner_id.uuid(),
    );
    Ok(query.fetch_all(connection).await?)
}

/// Checks that the master keys of a vault open the secrets of endpoints, as
/// [`super::check_master_key`] does for the keys of partners: ten of the newest for each key in
/// use.
pub(super) async fn check_keys(connection: &mut PgConnection, vault: &Vault) -> Result<()> {
    let newest = sqlx::query!(
        r#"SELECT endpoint_id AS "endpoint_id!", partner_id AS "partner_id!", secret AS "secret!" FROM (
             SELECT endpoint_id, partner_id, secret, row_number() OVER (
                        PARTITION BY substring(secret FROM 1 FOR 1 + get_byte(secret, 0)) ORDER BY created_at DESC
                    ) AS place
             FROM partner_endpoints
             CROSS JOIN LATERAL unnest(secrets, secret_ends) AS one (secret, ends_at)
             WHERE octet_length(secret) > 0 AND (ends_at IS NULL OR ends_at > now())
         ) by_key WHERE place <= 10"#
    );
    let newest = newest.fetch_all(connection).await?;
    let opened = newest.into_iter().map(|row| {
        let endpoint = EndpointKey {
            partner_id: row.partner_id.into(),
            id: row.endpoint_id.into(),
        };
        vault.open(purpose(endpoint), &row.secret)
    });
    Ok(some_opened(opened)?)
}

fn seal_headers(vault: &Vault, id: EndpointId, headers: &Headers) -> Result<Option<Vec<u8>>> {
    if headers.is_empty() {
        return Ok(None);
    }
    let text = serde_json::to_vec(headers).map_err(|error| Error::Unreadable(error.to_string()))?;
    Ok(Some(vault.seal(Purpose::EndpointHeaders(id), &text)?))
}

/// Opens the sealed headers of an endpoint.
pub fn open_headers(vault: &Vault, id: EndpointId, sealed: &[u8]) -> Result<Headers> {
    let text = vault.open(Purpose::EndpointHeaders(id), sealed)?;
    serde_json::from_slice(&text).map_err(|_| VaultError::Damaged.into())
}

/// Opens the sealed webhook-signing key of an endpoint.
pub fn open_secret(vault: &Vault, endpoint: EndpointKey, sealed: &[u8]) -> Result<webhook::Secret> {
    let bytes = vault.open(purpose(endpoint), sealed)?;
    webhook::Secret::from_bytes(bytes).map_err(|_| VaultError::Damaged.into())
}

/// What the secrets of an endpoint are sealed for. Those of first endpoints are bound to the
/// partner, as they were before all endpoints were in one table.
pub fn purpose(endpoint: EndpointKey) -> Purpose<'static> {
    if endpoint.is_first() {
        Purpose::WebhookSecret(endpoint.partner_id)
    } else {
        Purpose::EndpointSecret(endpoint.id)
    }
}

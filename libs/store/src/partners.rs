//! Partner accounts.

use std::time::Duration;

use domain::{Environment, PartnerId};
use signing::{SecretKey, webhook};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Error, age, endpoints, seconds,
    vault::{Purpose, Vault, VaultError},
};

/// A partner account without its secrets.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Partner {
    pub partner_id: Uuid,
    /// The display name.
    pub name: String,
    /// `sandbox` or `live`.
    pub environment: String,
    /// The value of `X-Service-Access-Key`.
    pub access_key: String,
    /// Whether the partner has a request-signing key.
    pub has_secret_key: bool,
    /// The previous access key, during the overlap of a rotation.
    pub old_access_key: Option<String>,
    /// When the old keys expire; null if there are none.
    #[serde(with = "time::serde::rfc3339::option")]
    pub old_keys_until: Option<OffsetDateTime>,
    /// The URL that receives the webhooks.
    pub webhook_url: Option<String>,
    /// When signing with the old webhook secret ends; null if there is none.
    #[serde(with = "time::serde::rfc3339::option")]
    pub old_webhook_secret_until: Option<OffsetDateTime>,
    /// When the partner was disabled; requests are denied since then.
    #[serde(with = "time::serde::rfc3339::option")]
    pub disabled_at: Option<OffsetDateTime>,
    /// When the account was created.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// A partner account to create.
pub struct NewPartner<'a> {
    pub partner_id: PartnerId,
    /// The display name.
    pub name: &'a str,
    /// `sandbox` or `live`.
    pub environment: Environment,
    /// The value of `X-Service-Access-Key`.
    pub access_key: &'a str,
    /// The request-signing key.
    pub secret_key: &'a SecretKey,
    /// The URL that receives the webhooks.
    pub webhook_url: Option<&'a str>,
    /// The webhook-signing secret.
    pub webhook_secret: &'a webhook::Secret,
}

/// The data with which ingress authenticates a partner's request.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub partner_id: PartnerId,
    pub environment: Environment,
    /// The current keys, and the old ones during the overlap of a rotation.
    pub keys: Vec<Keys>,
    /// Whether its requests are denied.
    pub disabled: bool,
    /// The configuration version of its last change.
    pub version: i64,
}

/// A pair of access key and request-signing key.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The value of `X-Service-Access-Key`.
    pub access_key: String,
    /// The sealed request-signing key, if there is one; [`open_secret_key`] opens it.
    pub secret_key: Option<Vec<u8>>,
    /// The time until the keys expire, if they do.
    pub ends_in: Option<Duration>,
}

/// Stores a new partner.
pub async fn create(connection: &mut PgConnection, vault: &Vault, new: &NewPartner<'_>) -> Result<(), Error> {
    let secret_key = vault.seal(Purpose::SecretKey(new.partner_id), new.secret_key.expose())?;
    let webhook_secret = vault.seal(
        Purpose::WebhookSecret(new.partner_id),
        new.webhook_secret.expose(),
    )?;
    sqlx::query!(
        "INSERT INTO partners (partner_id, name, environment, access_key, secret_key, webhook_url, webhook_secret)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
        new.partner_id.uuid(),
        new.name,
        new.environment.as_str(),
        new.access_key,
        secret_key,
        new.webhook_url,
        webhook_secret,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Every partner, oldest first.
pub async fn list(connection: &mut PgConnection) -> Result<Vec<Partner>, Error> {
    let partners = sqlx::query_as!(
        Partner,
        r#"SELECT partner_id, name, environment, access_key, secret_key IS NOT NULL AS "has_secret_key!",
                  CASE WHEN old_keys_until > now() THEN old_access_key END AS old_access_key,
                  CASE WHEN old_keys_until > now() THEN old_keys_until END AS old_keys_until, webhook_url,
                  CASE WHEN old_webhook_secret_until > now() THEN old_webhook_secret_until END
                      AS old_webhook_secret_until, disabled_at, created_at
           FROM partners ORDER BY created_at, partner_id"#,
    )
    .fetch_all(connection)
    .await?;
    Ok(partners)
}

/// One partner, by its id or by its current or previous access key.
pub async fn show(connection: &mut PgConnection, id_or_access_key: &str) -> Result<Option<Partner>, Error> {
    let partner = sqlx::query_as!(
        Partner,
        r#"SELECT partner_id, name, environment, access_key, secret_key IS NOT NULL AS "has_secret_key!",
                  CASE WHEN old_keys_until > now() THEN old_access_key END AS old_access_key,
                  CASE WHEN old_keys_until > now() THEN old_keys_until END AS old_keys_until, webhook_url,
                  CASE WHEN old_webhook_secret_until > now() THEN old_webhook_secret_until END
                      AS old_webhook_secret_until, disabled_at, created_at
           FROM partners WHERE partner_id::text = lower($1) OR access_key = $1 OR old_access_key = $1"#,
        id_or_access_key,
    )
    .fetch_optional(connection)
    .await?;
    Ok(partner)
}

/// Sets or removes a partner's webhook URL. Deliveries that waited for a URL, or for a retry at the old one,
/// become due. One transaction does this in a fixed order: the notifier moves a delivery to `no_endpoint`
/// only while it holds the partner's row.
///
/// Returns how many deliveries became due; `None` if there is no such partner.
pub async fn set_webhook(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    url: Option<&str>,
) -> Result<Option<u64>, Error> {
    let mut transaction = sqlx::Connection::begin(connection).await?;
    let found = sqlx::query!(
        "UPDATE partners SET webhook_url = $2 WHERE partner_id = $1",
        partner_id.uuid(),
        url
    )
    .execute(&mut *transaction)
    .await?;
    if found.rows_affected() == 0 {
        return Ok(None);
    }
    let mut due = 0;
    if url.is_some() {
        due = sqlx::query!(
            "UPDATE deliveries SET state = 'pending', redrive_at = now()
             WHERE partner_id = $1 AND state = 'no_endpoint'",
            partner_id.uuid(),
        )
        .execute(&mut *transaction)
        .await?
        .rows_affected()
            + endpoints::forget(&mut transaction, partner_id).await?;
    }
    transaction.commit().await?;
    Ok(Some(due))
}

/// Denies or allows a partner's requests; accepted orders continue. Returns whether the partner exists.
pub async fn set_disabled(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    disabled: bool,
) -> Result<bool, Error> {
    let found = sqlx::query!(
        "UPDATE partners SET disabled_at = CASE WHEN $2 THEN coalesce(disabled_at, now()) END WHERE partner_id = $1",
        partner_id.uuid(),
        disabled,
    )
    .execute(connection)
    .await?;
    Ok(found.rows_affected() > 0)
}

/// Which old keys or secrets stay valid after a rotation.
#[derive(Clone, Copy, Debug)]
pub struct Overlap {
    /// The length of the overlap; 0 ends everything old at once.
    pub lasts: Duration,
    /// Keeps the keys that the last rotation replaced, and replaces those that it made, which the partner
    /// does not have yet. Otherwise the keys that were valid alone become the old ones.
    pub keep_old: bool,
}

/// The result of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotated {
    /// Done; the replaced keys stay valid until this time, or end at once.
    Until(Option<OffsetDateTime>),
    /// Nothing changed: the overlap of the last rotation still runs, or it has ended and `keep_old` was
    /// given, or there is no such partner.
    Refused,
}

/// Replaces a partner's keys; the old pair stays valid during the overlap. A partner has at most one old
/// pair: during the overlap of the last rotation, this one must keep that pair or end it.
pub async fn rotate_keys(
    connection: &mut PgConnection,
    vault: &Vault,
    partner_id: PartnerId,
    access_key: &str,
    secret_key: &SecretKey,
    overlap: Overlap,
) -> Result<Rotated, Error> {
    let sealed = vault.seal(Purpose::SecretKey(partner_id), secret_key.expose())?;
    let rotated = sqlx::query_scalar!(
        "UPDATE partners
         SET access_key = $2, secret_key = $3,
             old_access_key = CASE WHEN $4 = 0::float8 THEN NULL WHEN $5 THEN old_access_key ELSE access_key END,
             old_secret_key = CASE WHEN $4 = 0::float8 THEN NULL WHEN $5 THEN old_secret_key ELSE secret_key END,
             old_keys_until = CASE WHEN $4 > 0::float8 THEN now() + make_interval(secs => $4) END
         WHERE partner_id = $1 AND ($4 = 0::float8 OR coalesce(old_keys_until > now(), false) = $5)
         RETURNING old_keys_until",
        partner_id.uuid(),
        access_key,
        sealed,
        seconds(overlap.lasts),
        overlap.keep_old,
    )
    .fetch_optional(connection)
    .await?;
    Ok(rotated.map_or(Rotated::Refused, Rotated::Until))
}

/// Replaces a partner's webhook secret; during the overlap, webhooks carry signatures of both. A partner has
/// at most one old secret, as in [`rotate_keys`].
pub async fn rotate_webhook_secret(
    connection: &mut PgConnection,
    vault: &Vault,
    partner_id: PartnerId,
    secret: &webhook::Secret,
    overlap: Overlap,
) -> Result<Rotated, Error> {
    let sealed = vault.seal(Purpose::WebhookSecret(partner_id), secret.expose())?;
    let rotated = sqlx::query_scalar!(
        "UPDATE partners
         SET webhook_secret = $2,
             old_webhook_secret =
                 CASE WHEN $3 = 0::float8 THEN NULL WHEN $4 THEN old_webhook_secret ELSE webhook_secret END,
             old_webhook_secret_until = CASE WHEN $3 > 0::float8 THEN now() + make_interval(secs => $3) END
         WHERE partner_id = $1 AND ($3 = 0::float8 OR coalesce(old_webhook_secret_until > now(), false) = $4)
         RETURNING old_webhook_secret_until",
        partner_id.uuid(),
        sealed,
        seconds(overlap.lasts),
        overlap.keep_old,
    )
    .fetch_optional(connection)
    .await?;
    Ok(rotated.map_or(Rotated::Refused, Rotated::Until))
}

struct CredentialsRow {
    partner_id: Uuid,
    environment: String,
    access_key: String,
    secret_key: Option<Vec<u8>>,
    old_access_key: Option<String>,
    old_secret_key: Option<Vec<u8>>,
    old_ends_in: Option<f64>,
    disabled: bool,
    version: i64,
}

impl TryFrom<CredentialsRow> for Credentials {
    type Error = Error;

    fn try_from(row: CredentialsRow) -> Result<Self, Error> {
        let new = Keys {
            access_key: row.access_key,
            secret_key: row.secret_key,
            ends_in: None,
        };
        let old = row.old_access_key.zip(row.old_ends_in);
        let old = old.map(|(access_key, ends_in)| Keys {
            access_key,
            secret_key: row.old_secret_key,
            ends_in: Some(age(ends_in)),
        });
        Ok(Self {
            partner_id: row.partner_id.into(),
            environment: row.environment.parse()?,
            keys: std::iter::once(new).chain(old).collect(),
            disabled: row.disabled,
            version: row.version,
        })
    }
}

/// The credentials of every partner that changed after `version`.
pub async fn changed_since(connection: &mut PgConnection, version: i64) -> Result<Vec<Credentials>, Error> {
    sqlx::query_as!(
        CredentialsRow,
        r#"SELECT partner_id, environment, access_key, secret_key, old_access_key, old_secret_key,
                  CASE WHEN old_keys_until > now() THEN extract(epoch FROM old_keys_until - now())::float8 END
                      AS old_ends_in,
                  disabled_at IS NOT NULL AS "disabled!", version
           FROM partners WHERE version > $1"#,
        version,
    )
    .fetch_all(connection)
    .await?
    .into_iter()
    .map(Credentials::try_from)
    .collect()
}

/// The credentials of the partner with this access key, which may be an old one that is still valid.
pub async fn by_access_key(
    connection: &mut PgConnection,
    access_key: &str,
) -> Result<Option<Credentials>, Error> {
    sqlx::query_as!(
        CredentialsRow,
        r#"SELECT partner_id, environment, access_key, secret_key, old_access_key, old_secret_key,
                  CASE WHEN old_keys_until > now() THEN extract(epoch FROM old_keys_until - now())::float8 END
                      AS old_ends_in,
                  disabled_at IS NOT NULL AS "disabled!", version
           FROM partners WHERE access_key = $1 OR (old_access_key = $1 AND old_keys_until > now())"#,
        access_key,
    )
    .fetch_optional(connection)
    .await?
    .map(Credentials::try_from)
    .transpose()
}

/// Checks that the master keys open stored secrets. For each key id in use, it tries at most ten secrets, of
/// the newest partners. A missing key is an error. It is also an error if none of the tried secrets opens: the
/// key has another value. If at least one opens, a failure only means a damaged row.
pub async fn check_master_key(connection: &mut PgConnection, vault: &Vault) -> Result<(), Error> {
    // A sealed value starts with the length of its key's id and the id. A rotation seals one secret of a
    // partner and leaves the others.
    let newest = sqlx::query!(
        r#"SELECT partner_id, for_webhooks AS "for_webhooks!", sealed AS "sealed!" FROM (
             SELECT partner_id, for_webhooks, sealed,
                    row_number() OVER (
                        PARTITION BY substring(sealed FROM 1 FOR 1 + get_byte(sealed, 0)) ORDER BY created_at DESC
                    ) AS place
             FROM partners
             CROSS JOIN LATERAL (VALUES
                 (true, webhook_secret), (false, secret_key),
                 (true, CASE WHEN old_webhook_secret_until > now() THEN old_webhook_secret END),
                 (false, CASE WHEN old_keys_until > now() THEN old_secret_key END)
             ) AS secret(for_webhooks, sealed)
             WHERE octet_length(sealed) > 0
         ) by_key WHERE place <= 10"#
    )
    .fetch_all(connection)
    .await?;
    let (mut opened, mut failure) = (false, Ok(()));
    for row in newest {
        let partner_id = row.partner_id.into();
        let purpose = if row.for_webhooks {
            Purpose::WebhookSecret(partner_id)
        } else {
            Purpose::SecretKey(partner_id)
        };
        match vault.open(purpose, &row.sealed) {
            Ok(_) => opened = true,
            Err(missing @ VaultError::MissingKey(_)) => return Err(missing.into()),
            Err(error) => failure = Err(error.into()),
        }
    }
    if opened { Ok(()) } else { failure }
}

/// Opens a partner's sealed request-signing key.
pub fn open_secret_key(vault: &Vault, partner_id: PartnerId, sealed: &[u8]) -> Result<SecretKey, Error> {
    let bytes = vault.open(Purpose::SecretKey(partner_id), sealed)?;
    SecretKey::from_bytes(bytes).map_err(|_| VaultError::Damaged.into())
}

/// Opens a partner's sealed webhook-signing key.
pub fn open_webhook_secret(
    vault: &Vault,
    partner_id: PartnerId,
    sealed: &[u8],
) -> Result<webhook::Secret, Error> {
    let bytes = vault.open(Purpose::WebhookSecret(partner_id), sealed)?;
    webhook::Secret::from_bytes(bytes).map_err(|_| VaultError::Damaged.into())
}

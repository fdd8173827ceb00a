//! Partner accounts.

use domain::{Environment, PartnerId};
use signing::{SecretKey, webhook};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Error, endpoints,
    vault::{Purpose, Vault, VaultError},
};

/// A partner account without its secrets.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Partner {
    /// Its id.
    pub partner_id: Uuid,
    /// Its name, for people.
    pub name: String,
    /// `sandbox` or `live`.
    pub environment: String,
    /// What it sends in `X-Service-Access-Key`.
    pub access_key: String,
    /// Whether it has a key to sign requests with.
    pub has_secret_key: bool,
    /// Where its webhooks go.
    pub webhook_url: Option<String>,
    /// Since when its requests are denied.
    #[serde(with = "time::serde::rfc3339::option")]
    pub disabled_at: Option<OffsetDateTime>,
    /// When it was made.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// A partner account to be made.
pub struct NewPartner<'a> {
    /// Its id.
    pub partner_id: PartnerId,
    /// Its name, for people.
    pub name: &'a str,
    /// Where it belongs.
    pub environment: Environment,
    /// What it will send in `X-Service-Access-Key`.
    pub access_key: &'a str,
    /// What it will sign requests with.
    pub secret_key: &'a SecretKey,
    /// Where its webhooks go.
    pub webhook_url: Option<&'a str>,
    /// What its webhooks are signed with.
    pub webhook_secret: &'a webhook::Secret,
}

/// What ingress needs to authenticate a partner's request.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Its id.
    pub partner_id: PartnerId,
    /// Where it belongs.
    pub environment: Environment,
    /// What it sends in `X-Service-Access-Key`.
    pub access_key: String,
    /// The sealed key, if it has one; opened with [`open_secret_key`].
    pub secret_key: Option<Vec<u8>>,
    /// Whether its requests are denied.
    pub disabled: bool,
    /// The configuration version of its last change.
    pub version: i64,
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
                  webhook_url, disabled_at, created_at
           FROM partners ORDER BY created_at, partner_id"#,
    )
    .fetch_all(connection)
    .await?;
    Ok(partners)
}

/// One partner, by its id or its access key.
pub async fn show(connection: &mut PgConnection, id_or_access_key: &str) -> Result<Option<Partner>, Error> {
    let partner = sqlx::query_as!(
        Partner,
        r#"SELECT partner_id, name, environment, access_key, secret_key IS NOT NULL AS "has_secret_key!",
                  webhook_url, disabled_at, created_at
           FROM partners WHERE partner_id::text = lower($1) OR access_key = $1"#,
        id_or_access_key,
    )
    .fetch_optional(connection)
    .await?;
    Ok(partner)
}

/// Sets or removes a partner's webhook URL; deliveries that waited for one, or for another attempt at the
/// old one, become due now. In one transaction, in this order: the notifier gives up on a delivery only
/// while it holds the partner's row.
///
/// Returns how many deliveries became due, `None` if there is no such partner.
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

/// Denies (or allows again) a partner's requests; what was accepted goes on. Returns whether there is
/// such a partner.
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

struct CredentialsRow {
    partner_id: Uuid,
    environment: String,
    access_key: String,
    secret_key: Option<Vec<u8>>,
    disabled: bool,
    version: i64,
}

impl TryFrom<CredentialsRow> for Credentials {
    type Error = Error;

    fn try_from(row: CredentialsRow) -> Result<Self, Error> {
        Ok(Self {
            partner_id: row.partner_id.into(),
            environment: row.environment.parse()?,
            access_key: row.access_key,
            secret_key: row.secret_key,
            disabled: row.disabled,
            version: row.version,
        })
    }
}

/// The credentials of every partner that changed after `version`.
pub async fn changed_since(connection: &mut PgConnection, version: i64) -> Result<Vec<Credentials>, Error> {
    sqlx::query_as!(
        CredentialsRow,
        r#"SELECT partner_id, environment, access_key, secret_key, disabled_at IS NOT NULL AS "disabled!", version
           FROM partners WHERE version > $1"#,
        version,
    )
    .fetch_all(connection)
    .await?
    .into_iter()
    .map(Credentials::try_from)
    .collect()
}

/// The credentials of the partner with this access key.
pub async fn by_access_key(
    connection: &mut PgConnection,
    access_key: &str,
) -> Result<Option<Credentials>, Error> {
    sqlx::query_as!(
        CredentialsRow,
        r#"SELECT partner_id, environment, access_key, secret_key, disabled_at IS NOT NULL AS "disabled!", version
           FROM partners WHERE access_key = $1"#,
        access_key,
    )
    .fetch_optional(connection)
    .await?
    .map(Credentials::try_from)
    .transpose()
}

/// Whether the master keys open what is stored: of each key that partners' secrets need, the newest ten
/// partners are tried. A key that is missing is an error; so is it if none of all those secrets opens, which
/// means that a key is another one, and not that a row is damaged.
pub async fn check_master_key(connection: &mut PgConnection, vault: &Vault) -> Result<(), Error> {
    // A sealed value begins with the length of its key's id, and the id.
    let newest = sqlx::query!(
        "SELECT partner_id, webhook_secret FROM (
             SELECT partner_id, webhook_secret,
                    row_number() OVER (
                        PARTITION BY substring(webhook_secret FROM 1 FOR 1 + get_byte(webhook_secret, 0))
                        ORDER BY created_at DESC
                    ) AS place
             FROM partners WHERE octet_length(webhook_secret) > 0
         ) by_key WHERE place <= 10"
    )
    .fetch_all(connection)
    .await?;
    let (mut opened, mut failure) = (false, Ok(()));
    for row in newest {
        match open_webhook_secret(vault, row.partner_id.into(), &row.webhook_secret) {
            Ok(_) => opened = true,
            Err(missing @ Error::Vault(VaultError::MissingKey(_))) => return Err(missing),
            Err(error) => failure = Err(error),
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

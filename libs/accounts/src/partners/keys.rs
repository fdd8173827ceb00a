//! Further keys of partners: for people and programs that need a part of what the first key may do.
//!
//! Guarantees: a further key leads to the same partner as the first one, whose pair stands in the
//! partner's own row. A partner has at most [`MOST_KEYS`] keys. Each change gives the partner a new
//! row version, so that each ingress learns of it like of any other change of a partner
//! ([`super::changed_since`]). A key that ends is deleted. Of the keys that ended last, first ones
//! among them, the access keys stay known, so that a request with one can be told to its partner
//! ([`ended_in_use`]).
//!
//! Self-service, `esimctl partner key` and the console call these functions in a transaction that
//! also records the change. Ingress notes with [`used`] what keys are used for, and with
//! [`ended_used`] that ended ones still are.

use std::{collections::HashMap, str::FromStr};

use domain::{
    KeyId, KeyTerms, PartnerId, Right, Rights,
    partner_key::{MOST_KEYS, Network, network, network_text},
};
use pg::{Result, Transaction, signed, unsigned};
use signing::SecretKey;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;
use vault::{Purpose, Vault, VaultError};

/// A new further key.
pub struct NewKey<'a> {
    pub key_id: KeyId,
    pub partner_id: PartnerId,
    pub name: &'a str,
    /// The value of `X-Service-Access-Key`.
    pub access_key: &'a str,
    pub secret_key: &'a SecretKey,
    pub terms: &'a KeyTerms,
}

/// A further key without its secret.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FurtherKey {
    pub key_id: Uuid,
    pub name: String,
    pub access_key: String,
    /// The names of its rights.
    pub rights: Vec<String>,
    /// From where it may be used; empty: from everywhere.
    pub networks: Vec<String>,
    pub units_per_day: Option<u32>,
    /// How many units it has ordered today, in UTC, if it has a limit.
    pub units_today: i64,
    #[serde(with = "time::serde::rfc3339::option")]
    pub last_used_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

impl FurtherKey {
    /// What it may do; `None` if the row holds a network that this version cannot read.
    pub fn terms(&self) -> Option<KeyTerms> {
        terms(&self.rights, &self.networks, self.units_per_day)
    }

    /// What is recorded of it.
    pub fn shown(&self) -> serde_json::Value {
        serde_json::json!({
            "key_id": self.key_id, "name": self.name, "access_key": self.access_key, "rights": self.rights,
            "networks": self.networks, "units_per_day": self.units_per_day,
        })
    }
}

/// The terms of a stored key. A right that this version does not know gives nothing. A network that
/// it cannot read would allow too little or, if it were the only one, everything, so then there are
/// no terms.
pub(super) fn terms(
    rights: &[String],
    networks: &[String],
    units_per_day: Option<u32>,
) -> Option<KeyTerms> {
    let networks = networks.iter().map(|text| network(text).ok());
    Some(KeyTerms {
        rights: rights_of(rights),
        networks: networks.collect::<Option<_>>()?,
        units_per_day,
    })
}

fn rights_of(names: &[String]) -> Rights {
    let known = names.iter().map(|name| Right::from_str(name));
    known.filter_map(std::result::Result::ok).collect()
}

/// A change of a further key; what is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct KeyUpdate {
    pub name: Option<String>,
    pub rights: Option<Rights>,
    pub networks: Option<Vec<Network>>,
    /// `Some(None)` removes the limit.
    pub units_per_day: Option<Option<u32>>,
}

impl KeyUpdate {
    /// The terms of the key after the change. `None` if a network of it cannot be read and its
    /// networks would stay: without them it could be used from anywhere.
    pub fn terms_of(&self, key: &FurtherKey) -> Option<KeyTerms> {
        Some(KeyTerms {
            rights: self.rights.unwrap_or_else(|| rights_of(&key.rights)),
            networks: match &self.networks {
                Some(networks) => networks.clone(),
                None => key.terms()?.networks,
            },
            units_per_day: self.units_per_day.unwrap_or(key.units_per_day),
        })
    }
}

/// The names of a key's rights and its networks, as they are stored.
fn stored(terms: &KeyTerms) -> (Vec<&'static str>, Vec<String>) {
    let networks = terms.networks.iter().map(network_text).collect();
    (terms.rights.names(), networks)
}

/// Makes a further key. Returns false if the partner has [`MOST_KEYS`] keys with the first one.
/// The caller holds the [lock](super::lock) of the partner.
pub async fn create(
    transaction: &mut Transaction<'_>,
    vault: &Vault,
    new: &NewKey<'_>,
) -> Result<bool> {
    let purpose = Purpose::FurtherKey(new.partner_id, new.key_id);
    let sealed = vault.seal(purpose, new.secret_key.expose())?;
    let (rights, networks) = stored(new.terms);
    let insert = sqlx::query!(
        "INSERT INTO partner_keys (key_id, partner_id, name, access_key, secret_key, rights, networks, units_per_day)
         SELECT $1, $2, $3, $4, $5, $6, $7, $8
         WHERE (SELECT count(*) FROM partner_keys WHERE partner_id = $2) < $9",
        new.key_id.uuid(),
        new.partner_id.uuid(),
        new.name,
        new.access_key,
        sealed,
        &rights as &[&str],
        &networks,
        new.terms.units_per_day.map(signed),
        // The first one counts, too.
        i64::try_from(MOST_KEYS - 1).unwrap_or(0),
    );
    Ok(insert.execute(&mut **transaction).await?.rows_affected() > 0)
}

/// The further keys of a partner, the oldest first; or only the one with this id or access key.
pub async fn list(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    only: Option<&str>,
) -> Result<Vec<FurtherKey>> {
    let query = sqlx::query!(
        r#"SELECT k.key_id, name, access_key, rights, networks, units_per_day, created_at, u.last_used_at AS "last_used_at?",
                  CASE WHEN u.day >= date_trunc('day', now(), 'UTC') THEN u.units ELSE 0 END AS "units_today!"
           FROM partner_keys k
           LEFT JOIN partner_key_uses u ON u.key_id = k.key_id
           WHERE k.partner_id = $1 AND ($2::text IS NULL OR k.key_id::text = lower($2) OR access_key = $2)
           ORDER BY created_at, k.key_id"#,
        partner_id.uuid(),
        only,
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    Ok(rows
        .map(|row| FurtherKey {
            key_id: row.key_id,
            name: row.name,
            access_key: row.access_key,
            rights: row.rights,
            networks: row.networks,
            units_per_day: row.units_per_day.map(unsigned),
            units_today: row.units_today,
            last_used_at: row.last_used_at,
            created_at: row.created_at,
        })
        .collect())
}

/// Gives a further key another name and other terms. Returns whether the partner has such a key.
pub async fn change(
    transaction: &mut Transaction<'_>,
    partner_id: PartnerId,
    key_id: KeyId,
    name: &str,
    terms: &KeyTerms,
) -> Result<bool> {
    let (rights, networks) = stored(terms);
    let update = sqlx::query!(
        "UPDATE partner_keys SET name = $3, rights = $4, networks = $5, units_per_day = $6
         WHERE partner_id = $1 AND key_id = $2",
        partner_id.uuid(),
        key_id.uuid(),
        name,
        &rights as &[&str],
        &networks,
        terms.units_per_day.map(signed),
    );
    Ok(update.execute(&mut **transaction).await?.rows_affected() > 0)
}

/// Ends a further key of a partner, or all of them. Returns the access keys that work no more.
pub async fn end(
    transaction: &mut Transaction<'_>,
    partner_id: PartnerId,
    only: Option<&str>,
) -> Result<Vec<String>> {
    let query = sqlx::query_scalar!(
        r#"WITH ended AS (
               DELETE FROM partner_keys
               WHERE partner_id = $1 AND ($2::text IS NULL OR key_id::text = lower($2) OR access_key = $2)
               RETURNING key_id, access_key, created_at
           ), uses AS (
               DELETE FROM partner_key_uses WHERE key_id = ANY (ARRAY (SELECT key_id FROM ended))
           )
           SELECT access_key AS "access_key!" FROM ended ORDER BY created_at, key_id"#,
        partner_id.uuid(),
        only,
    );
    Ok(query.fetch_all(&mut **transaction).await?)
}

/// The terms of the key of a partner with this access key, as they are now; `None` if the partner
/// has no such valid key. Read under the [lock](super::lock) of the partner, this says whether a
/// request that was signed with the key still has its rights.
pub async fn terms_now(
    transaction: &mut Transaction<'_>,
    partner_id: PartnerId,
    access_key: &str,
) -> Result<Option<KeyTerms>> {
    let query = sqlx::query_scalar!(
        r#"SELECT access_key = $2 OR (old_access_key = $2 AND old_keys_until > now()) AS "is_first" FROM partners
           WHERE partner_id = $1"#,
        partner_id.uuid(),
        access_key,
    );
    let is_first = query.fetch_optional(&mut **transaction).await?.flatten();
    if is_first == Some(true) {
        return Ok(Some(KeyTerms::of_first_key()));
    }
    let mut found = list(transaction, partner_id, Some(access_key)).await?;
    Ok(found.pop().and_then(|key| key.terms()))
}

/// When the first key of a partner was used last.
pub async fn first_used_at(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<Option<OffsetDateTime>> {
    let query = sqlx::query_scalar!(
        "SELECT last_used_at FROM partner_key_uses WHERE key_id = $1",
        partner_id.uuid(),
    );
    Ok(query.fetch_optional(connection).await?.flatten())
}

/// Notes that requests were signed with these keys just now. What was noted less than a minute ago
/// stays, so that several replicas write it once. The keys are sorted, because a transaction that
/// counts units locks the same rows.
pub async fn used(connection: &mut PgConnection, keys: &[Uuid]) -> Result<()> {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    keys.dedup();
    let statement = sqlx::query!(
        "INSERT INTO partner_key_uses AS u (key_id, last_used_at) SELECT k, now() FROM unnest($1::uuid[]) k ORDER BY k
         ON CONFLICT (key_id) DO UPDATE SET last_used_at = excluded.last_used_at
         WHERE u.last_used_at IS NULL OR u.last_used_at < excluded.last_used_at - interval '1 minute'",
        &keys,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// A key that ended and that requests have named since.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct EndedKey {
    pub partner_id: Uuid,
    /// The name of a further key; `None` for a first key of the partner.
    pub name: Option<String>,
    pub access_key: String,
    #[serde(with = "time::serde::rfc3339")]
    pub ended_at: OffsetDateTime,
    /// When requests named it after its end: the first time, and the last time to the minute.
    #[serde(with = "time::serde::rfc3339")]
    pub used_since: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub used_at: OffsetDateTime,
}

/// The ended keys of these partners that requests have named after this time, those that were used
/// last first.
pub async fn ended_in_use(
    connection: &mut PgConnection,
    partners: &[Uuid],
    after: OffsetDateTime,
) -> Result<Vec<EndedKey>> {
    let query = sqlx::query_as!(
        EndedKey,
        r#"SELECT partner_id, name, access_key, ended_at, used_since AS "used_since!", used_at AS "used_at!"
           FROM ended_keys WHERE partner_id = ANY ($1) AND used_at >= $2 AND used_since IS NOT NULL
           ORDER BY used_at DESC, access_key"#,
        partners,
        after,
    );
    Ok(query.fetch_all(connection).await?)
}

/// A key of a partner that has ended, as its page shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastKey {
    /// The name of a further key; `None` of a first one.
    pub name: Option<String>,
    pub access_key: String,
    pub ended_at: OffsetDateTime,
    /// When requests named it after its end: the first time, and the last time to the minute.
    pub used_since: Option<OffsetDateTime>,
    pub used_at: Option<OffsetDateTime>,
}

/// The keys of a partner that have ended, the last one first. Of each partner the newest 20 are
/// kept.
pub async fn ended_of(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<Vec<PastKey>> {
    let query = sqlx::query_as!(
        PastKey,
        "SELECT name, access_key, ended_at, used_since, used_at FROM ended_keys
         WHERE partner_id = $1 ORDER BY ended_at DESC, access_key",
        partner_id.uuid(),
    );
    Ok(query.fetch_all(connection).await?)
}

/// Notes that requests named these ended keys just now. What was noted less than a minute ago
/// stays. A key whose overlap is over becomes a row here; nobody else can add one.
pub async fn ended_used(connection: &mut PgConnection, access_keys: &[String]) -> Result<()> {
    let statement = sqlx::query!(
        "WITH noted AS (
             UPDATE ended_keys SET used_since = coalesce(used_since, now()), used_at = now()
             WHERE access_key = ANY (ARRAY (
                 -- Another replica that notes the same key has it locked.
                 SELECT access_key FROM ended_keys
                 WHERE access_key = ANY ($1) AND (used_at IS NULL OR used_at < now() - interval '1 minute')
                 FOR UPDATE SKIP LOCKED))
         )
         INSERT INTO ended_keys (access_key, partner_id, ended_at, used_since, used_at)
         SELECT old_access_key, partner_id, old_keys_until, now(), now() FROM partners
         WHERE old_access_key = ANY ($1) AND old_keys_until <= now()
         ORDER BY old_access_key
         ON CONFLICT DO NOTHING",
        access_keys,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// The access keys of these partners that have ended.
pub(super) async fn ended(
    connection: &mut PgConnection,
    partners: &[Uuid],
) -> Result<HashMap<Uuid, Vec<String>>> {
    if partners.is_empty() {
        return Ok(HashMap::new());
    }
    let query = sqlx::query!(
        r#"SELECT partner_id AS "partner_id!", access_key AS "access_key!" FROM ended_keys WHERE partner_id = ANY ($1)
           UNION SELECT partner_id, old_access_key FROM partners
           WHERE partner_id = ANY ($1) AND old_access_key IS NOT NULL AND old_keys_until <= now()"#,
        partners,
    );
    let mut found: HashMap<Uuid, Vec<String>> = HashMap::new();
    for row in query.fetch_all(connection).await? {
        found
            .entry(row.partner_id)
            .or_default()
            .push(row.access_key);
    }
    Ok(found)
}

/// What ingress needs of a further key.
#[derive(Clone, Debug)]
pub struct FurtherCredentials {
    pub key_id: KeyId,
    pub access_key: String,
    pub(super) secret_key: Vec<u8>,
    /// What it may do; `None` if the row cannot be read.
    pub terms: Option<KeyTerms>,
}

impl FurtherCredentials {
    /// Opens the sealed secret key.
    pub fn open(&self, vault: &Vault, partner_id: PartnerId) -> Result<SecretKey> {
        let purpose = Purpose::FurtherKey(partner_id, self.key_id);
        let bytes = vault.open(purpose, &self.secret_key)?;
        SecretKey::from_bytes(bytes).map_err(|_| VaultError::Damaged.into())
    }
}

/// The credentials of the further keys of these partners.
pub(super) async fn credentials(
    connection: &mut PgConnection,
    partners: &[Uuid],
) -> Result<HashMap<Uuid, Vec<FurtherCredentials>>> {
    if partners.is_empty() {
        return Ok(HashMap::new());
    }
    let query = sqlx::query!(
        "SELECT key_id, partner_id, access_key, secret_key, rights, networks, units_per_day FROM partner_keys
         WHERE partner_id = ANY ($1)",
        partners,
    );
    let mut found: HashMap<Uuid, Vec<FurtherCredentials>> = HashMap::new();
    for row in query.fetch_all(connection).await? {
        let key = FurtherCredentials {
            key_id: row.key_id.into(),
            access_key: row.access_key,
            secret_key: row.secret_key,
            terms: terms(&row.rights, &row.networks, row.units_per_day.map(unsigned)),
        };
        found.entry(row.partner_id).or_default().push(key);
    }
    Ok(found)
}

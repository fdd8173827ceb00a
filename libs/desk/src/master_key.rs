//! Counts the stored values of each master key, and seals them again under the first one. `esimctl
//! master-key` calls it to rotate a key.
//!
//! It runs while the services run, and can be interrupted and repeated at any time. Tables are read
//! in pages by their primary key. Each batch is written by one statement, which changes a value
//! only if it is still the one that was read, so a change by another session is never overwritten.
//! Such values are left for the next pass. Once [`left`] is 0, the old keys can be removed.
//!
//! It relies on a vault that holds all three kinds of keys, the old ones included.

use std::collections::BTreeMap;

use accounts::{partners::endpoints::purpose, profile::Profile};
use domain::{EndpointKey, TopupId};
use pg::{Result, signed};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;
use vault::{Keyring, Purpose, Vault, VaultError};

/// The number of rows of a page, and so the maximum number of rows that one statement writes.
const PAGE: usize = 500;

/// The number of stored values under a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Usage {
    /// Partners' secret keys, and the secrets and headers of their endpoints; old ones are among them.
    pub partner_secrets: u64,
    /// What belongs to endpoints among them.
    pub webhook_secrets: u64,
    /// Profiles of topups.
    pub profiles: u64,
    /// Recorded responses of endpoints.
    pub answers: u64,
}

impl Usage {
    /// The number of values for a purpose.
    fn of(self, ring: Keyring) -> u64 {
        match ring {
            Keyring::Partners => self.partner_secrets - self.webhook_secrets,
            Keyring::Webhooks => self.webhook_secrets,
            Keyring::Profiles => self.profiles + self.answers,
        }
    }
}

/// The usage of each key id; `None` stands for values whose key id cannot be read.
pub type Usages = BTreeMap<Option<String>, Usage>;

/// The number of values that are not yet sealed under the first key of their purpose.
pub fn left(usages: &Usages, vault: &Vault) -> u64 {
    let of = |ring| {
        let first = vault.key_ids(ring).next();
        let others = usages
            .iter()
            .filter(move |(key, _)| key.as_deref() != first);
        others.map(move |(_, usage)| usage.of(ring)).sum::<u64>()
    };
    Keyring::ALL.into_iter().map(of).sum()
}

/// A value that could not be sealed again.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Failed {
    /// The column of the value.
    pub what: &'static str,
    /// The partner id or the topup id. For a response it is the delivery id and the number of the
    /// attempt.
    pub id: String,
    pub reason: String,
}

/// The result of one pass over all tables.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    pub reencrypted: u64,
    pub failed: Vec<Failed>,
    usages: Usages,
}

impl Pass {
    /// The usage of the key that sealed the value which begins with `head`.
    fn usage(&mut self, head: &[u8]) -> &mut Usage {
        self.usages
            .entry(vault::key_id(head).map(str::to_owned))
            .or_default()
    }

    /// Counts the secrets of a row.
    fn count(&mut self, secrets: &[Secret<'_>]) {
        for secret in secrets {
            let Some(sealed) = secret.sealed else {
                continue;
            };
            let usage = self.usage(sealed);
            usage.partner_secrets += 1;
            usage.webhook_secrets += u64::from(secret.purpose.keyring() == Keyring::Webhooks);
        }
    }

    /// The secrets of a row as they should be stored, and how many of them change.
    fn reseal_row(
        &mut self,
        vault: &Vault,
        secrets: &[Secret<'_>],
    ) -> Result<(Vec<Option<Vec<u8>>>, u64)> {
        let mut all = Vec::with_capacity(secrets.len());
        let mut changed = 0;
        for secret in secrets {
            let prefix = vault.first_prefix(secret.purpose.keyring())?;
            let old = secret.sealed.filter(|old| !old.starts_with(&prefix));
            let what = (secret.column, secret.id);
            let new = old.and_then(|old| self.reseal(vault, what, Ok(secret.purpose), old));
            changed += u64::from(new.is_some());
            all.push(new.or_else(|| secret.sealed.map(<[u8]>::to_vec)));
        }
        Ok((all, changed))
    }

    /// Seals a value again. Returns `None` if that fails, and notes the failure in the pass.
    fn reseal(
        &mut self,
        vault: &Vault,
        (what, id): (&'static str, impl ToString),
        purpose: Result<Purpose<'_>, VaultError>,
        sealed: &[u8],
    ) -> Option<Vec<u8>> {
        purpose
            .and_then(|purpose| vault.reseal(purpose, sealed))
            .map_err(|error| {
                self.failed.push(Failed {
                    what,
                    id: id.to_string(),
                    reason: error.to_string(),
                });
            })
            .ok()
    }
}

/// Makes the planner find rows by an index, whatever the statistics say. `esimctl` connects without
/// the session settings of the services. The writing statements also repeat their ids for this
/// reason.
async fn plan_by_index(connection: &mut PgConnection) -> Result<()> {
    sqlx::query("SET enable_seqscan = off")
        .execute(connection)
        .await?;
    Ok(())
}

/// Counts the values of each key. A value that changes in the meantime may be missed.
pub async fn usages(connection: &mut PgConnection) -> Result<Usages> {
    Ok(walk(connection, None, |_| {}).await?.usages)
}

/// Makes one pass: seals all values that are not under the first key of their purpose again under
/// it. Calls `progress` after each page. Values that other sessions change or lock in the meantime
/// are left for another pass.
pub async fn reencrypt(
    connection: &mut PgConnection,
    vault: &Vault,
    progress: impl FnMut(&Pass),
) -> Result<Pass> {
    walk(connection, Some(vault), progress).await
}

/// Reads all tables and counts their values. If there is a vault, also seals them again.
async fn walk(
    connection: &mut PgConnection,
    vault: Option<&Vault>,
    mut progress: impl FnMut(&Pass),
) -> Result<Pass> {
    plan_by_index(connection).await?;
    let prefix = vault.map(|vault| vault.first_prefix(Keyring::Profiles));
    let prefix = prefix.transpose()?;
    let mut pass = Pass::default();
    let mut after = Some(Uuid::nil());
    while let Some(last) = after {
        let page = partners(connection, last).await?;
        for row in &page {
            pass.count(&row.secrets());
            if let Some(vault) = vault {
                reencrypt_partner(connection, vault, row, &mut pass).await?;
            }
        }
        progress(&pass);
        after = page.get(PAGE - 1).map(|row| row.partner_id);
    }
    let mut after = Some(Uuid::nil());
    while let Some(last) = after {
        let page = endpoints(connection, last).await?;
        for row in &page {
            pass.count(&row.secrets());
            if let Some(vault) = vault {
                reencrypt_endpoint(connection, vault, row, &mut pass).await?;
            }
        }
        progress(&pass);
        after = page.get(PAGE - 1).map(|row| row.endpoint_id);
    }
    let mut after = Some(String::new());
    while let Some(last) = after {
        let page = profiles(connection, &last, prefix.as_deref()).await?;
        page.iter()
            .filter_map(|row| row.head.as_deref())
            .for_each(|head| pass.usage(head).profiles += 1);
        if let Some(vault) = vault {
            reencrypt_profiles(connection, vault, &page, &mut pass).await?;
        }
        progress(&pass);
        after = page.into_iter().nth(PAGE - 1).map(|row| row.topup_id);
    }
    let mut after = None;
    loop {
        let page = answers(connection, after.as_ref(), prefix.as_deref()).await?;
        page.iter()
            .filter_map(|row| row.head.as_deref())
            .for_each(|head| pass.usage(head).answers += 1);
        if let Some(vault) = vault {
            reencrypt_answers(connection, vault, &page, &mut pass).await?;
        }
        progress(&pass);
        after = page.into_iter().nth(PAGE - 1);
        if after.is_none() {
            return Ok(pass);
        }
    }
}

/// A sealed column of a row.
struct Secret<'a> {
    column: &'static str,
    /// The partner or the endpoint that it belongs to.
    id: Uuid,
    purpose: Purpose<'static>,
    /// `None` if the row has no such secret.
    sealed: Option<&'a [u8]>,
}

struct PartnerRow {
    partner_id: Uuid,
    secret_key: Option<Vec<u8>>,
    old_secret_key: Option<Vec<u8>>,
}

impl PartnerRow {
    fn secrets(&self) -> [Secret<'_>; 2] {
        let id = self.partner_id;
        [
            ("secret_key", self.secret_key.as_deref()),
            ("old_secret_key", self.old_secret_key.as_deref()),
        ]
        .map(|(column, sealed)| Secret {
            column,
            id,
            purpose: Purpose::SecretKey(id.into()),
            sealed,
        })
    }
}

async fn partners(connection: &mut PgConnection, after: Uuid) -> Result<Vec<PartnerRow>> {
    let page = sqlx::query_as!(
        PartnerRow,
        "SELECT partner_id, secret_key, old_secret_key FROM partners
         WHERE partner_id > $1 ORDER BY partner_id LIMIT $2",
        after,
        i64::from(signed(PAGE)),
    );
    Ok(page.fetch_all(connection).await?)
}

/// Seals the secrets of one partner again. Each partner has a statement of its own: it locks the
/// row of the configuration version, and should not hold this lock while it waits for the row of
/// another partner.
async fn reencrypt_partner(
    connection: &mut PgConnection,
    vault: &Vault,
    row: &PartnerRow,
    pass: &mut Pass,
) -> Result<()> {
    let (new, changed) = pass.reseal_row(vault, &row.secrets())?;
    if changed == 0 {
        return Ok(());
    }
    let mut new = new.into_iter();
    let statement = sqlx::query!(
        "UPDATE partners SET secret_key = $2, old_secret_key = $3
         WHERE partner_id = $1 AND secret_key IS NOT DISTINCT FROM $4 AND old_secret_key IS NOT DISTINCT FROM $5",
        row.partner_id,
        new.next().flatten(),
        new.next().flatten(),
        row.secret_key,
        row.old_secret_key,
    );
    pass.reencrypted += statement.execute(connection).await?.rows_affected() * changed;
    Ok(())
}

struct EndpointRow {
    endpoint_id: Uuid,
    partner_id: Uuid,
    secrets: Vec<Vec<u8>>,
    headers: Option<Vec<u8>>,
}

impl EndpointRow {
    /// The headers and then the secrets.
    fn secrets(&self) -> Vec<Secret<'_>> {
        let id = self.endpoint_id;
        let key = EndpointKey {
            partner_id: self.partner_id.into(),
            id: id.into(),
        };
        let headers = Secret {
            column: "endpoint_headers",
            id,
            purpose: Purpose::EndpointHeaders(key.id),
            sealed: self.headers.as_deref(),
        };
        let secrets = self.secrets.iter().map(|sealed| Secret {
            column: "webhook_secret",
            id,
            purpose: purpose(key),
            sealed: Some(sealed),
        });
        std::iter::once(headers).chain(secrets).collect()
    }
}

async fn endpoints(connection: &mut PgConnection, after: Uuid) -> Result<Vec<EndpointRow>> {
    let page = sqlx::query_as!(
        EndpointRow,
        "SELECT endpoint_id, partner_id, secrets, headers FROM partner_endpoints
         WHERE endpoint_id > $1 ORDER BY endpoint_id LIMIT $2",
        after,
        i64::from(signed(PAGE)),
    );
    Ok(page.fetch_all(connection).await?)
}

/// Seals the secrets and the headers of one endpoint again.
async fn reencrypt_endpoint(
    connection: &mut PgConnection,
    vault: &Vault,
    row: &EndpointRow,
    pass: &mut Pass,
) -> Result<()> {
    let (new, changed) = pass.reseal_row(vault, &row.secrets())?;
    if changed == 0 {
        return Ok(());
    }
    let mut new = new.into_iter();
    let headers = new.next().flatten();
    let secrets: Vec<Vec<u8>> = new.flatten().collect();
    let statement = sqlx::query!(
        "UPDATE partner_endpoints SET secrets = $2, headers = $3
         WHERE endpoint_id = $1 AND secrets = $4 AND headers IS NOT DISTINCT FROM $5",
        row.endpoint_id,
        &secrets,
        headers,
        &row.secrets,
        row.headers,
    );
    pass.reencrypted += statement.execute(connection).await?.rows_affected() * changed;
    Ok(())
}

struct ProfileRow {
    topup_id: String,
    /// The first bytes of the profile, which show its key; `None` if there is no profile.
    head: Option<Vec<u8>>,
    /// The profile, unless it is already under the first key and so begins with its prefix.
    sealed: Option<Vec<u8>>,
}

async fn profiles(
    connection: &mut PgConnection,
    after: &str,
    prefix: Option<&[u8]>,
) -> Result<Vec<ProfileRow>> {
    let page = sqlx::query_as!(
        ProfileRow,
        "SELECT topup_id, substring(profile FROM 1 FOR $3) AS head,
                CASE WHEN substring(profile FROM 1 FOR octet_length($4::bytea)) <> $4 THEN profile END AS sealed
         FROM esims WHERE topup_id > $1 ORDER BY topup_id LIMIT $2",
        after,
        i64::from(signed(PAGE)),
        signed(vault::HEAD),
        prefix,
    );
    Ok(page.fetch_all(connection).await?)
}

async fn reencrypt_profiles(
    connection: &mut PgConnection,
    vault: &Vault,
    page: &[ProfileRow],
    pass: &mut Pass,
) -> Result<()> {
    let mut topups = Vec::new();
    let mut old = Vec::new();
    let mut new = Vec::new();
    let mut digests: Vec<Option<Vec<u8>>> = Vec::new();
    for row in page {
        let Some(sealed) = &row.sealed else { continue };
        let topup_id: Result<TopupId, _> = row.topup_id.parse();
        let purpose = topup_id.as_ref().map(Purpose::Profile);
        let purpose = purpose.map_err(|_| VaultError::Damaged);
        if let Some(resealed) = pass.reseal(vault, ("profile", &row.topup_id), purpose, sealed) {
            topups.push(row.topup_id.clone());
            old.push(sealed.clone());
            // Two rows of one page must not get one digest, because the statement would fail.
            let digest = topup_id
                .ok()
                .and_then(|topup_id| Profile::open(vault, &topup_id, &resealed).ok())
                .and_then(|profile| profile.code_digest(vault).ok())
                .map(Some)
                .filter(|digest| !digests.contains(digest));
            digests.push(digest.flatten());
            new.push(resealed);
        }
    }
    if topups.is_empty() {
        return Ok(());
    }
    // `free` locks the rows that still hold the profile that was read. It skips rows that another
    // session has locked, because outcomes are recorded in batches that lock rows in another order,
    // and waiting could end in a deadlock. The digest of the code is made anew under the new key. It
    // stays as it was if another eSIM has the new one, which only happens if a provider has sent one
    // code twice while two keys were in use.
    let statement = sqlx::query!(
        "WITH free AS MATERIALIZED (
             SELECT t.ctid, new.sealed, new.digest
             FROM unnest($1::text[], $2::bytea[], $3::bytea[], $4::bytea[]) AS new(topup_id, was, sealed, digest)
             JOIN esims t ON t.topup_id = new.topup_id AND t.profile = new.was
             WHERE t.topup_id = ANY($1) FOR NO KEY UPDATE OF t SKIP LOCKED
         )
         UPDATE esims t
         SET profile = free.sealed,
             code_digest = CASE WHEN EXISTS (SELECT FROM esims other WHERE other.code_digest = free.digest)
                                THEN t.code_digest ELSE coalesce(free.digest, t.code_digest) END
         FROM free WHERE t.ctid = free.ctid",
        &topups,
        &old,
        &new,
        &digests as &[Option<Vec<u8>>],
    );
    pass.reencrypted += statement.execute(connection).await?.rows_affected();
    Ok(())
}

struct AnswerRow {
    delivery_id: Uuid,
    attempt: i32,
    at: OffsetDateTime,
    head: Option<Vec<u8>>,
    sealed: Option<Vec<u8>>,
}

async fn answers(
    connection: &mut PgConnection,
    after: Option<&AnswerRow>,
    prefix: Option<&[u8]>,
) -> Result<Vec<AnswerRow>> {
    let page = sqlx::query_as!(
        AnswerRow,
        "SELECT delivery_id, attempt, at, substring(answer FROM 1 FOR $5) AS head,
                CASE WHEN substring(answer FROM 1 FOR octet_length($6::bytea)) <> $6 THEN answer END AS sealed
         FROM delivery_attempts WHERE (delivery_id, attempt, at) > ($1, $2, $3)
         ORDER BY delivery_id, attempt, at LIMIT $4",
        after.map_or(Uuid::nil(), |last| last.delivery_id),
        after.map_or(-1, |last| last.attempt),
        after.map_or(OffsetDateTime::UNIX_EPOCH, |last| last.at),
        i64::from(signed(PAGE)),
        signed(vault::HEAD),
        prefix,
    );
    Ok(page.fetch_all(connection).await?)
}

async fn reencrypt_answers(
    connection: &mut PgConnection,
    vault: &Vault,
    page: &[AnswerRow],
    pass: &mut Pass,
) -> Result<()> {
    let mut changed = ChangedAnswers::default();
    for row in page {
        let Some(sealed) = &row.sealed else { continue };
        let purpose = u32::try_from(row.attempt)
            .map(|attempt| Purpose::Response(row.delivery_id.into(), attempt))
            .map_err(|_| VaultError::Damaged);
        let id = format!("{} attempt {}", row.delivery_id, i64::from(row.attempt) + 1);
        if let Some(resealed) = pass.reseal(vault, ("answer", id), purpose, sealed) {
            changed.deliveries.push(row.delivery_id);
            changed.attempts.push(row.attempt);
            changed.times.push(row.at);
            changed.old.push(sealed.clone());
            changed.new.push(resealed);
        }
    }
    if changed.deliveries.is_empty() {
        return Ok(());
    }
    // The rows of attempts never change once they are written, so no other session can be
    // overwritten here.
    let statement = sqlx::query!(
        "UPDATE delivery_attempts a SET answer = new.sealed
         FROM unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::bytea[], $5::bytea[])
             AS new (delivery_id, attempt, at, was, sealed)
         WHERE a.delivery_id = ANY ($1) AND a.delivery_id = new.delivery_id AND a.attempt = new.attempt
           AND a.at = new.at AND a.answer = new.was",
        &changed.deliveries,
        &changed.attempts,
        &changed.times,
        &changed.old,
        &changed.new,
    );
    pass.reencrypted += statement.execute(connection).await?.rows_affected();
    Ok(())
}

/// The responses to write, in the shape of the statement.
#[derive(Default)]
struct ChangedAnswers {
    deliveries: Vec<Uuid>,
    attempts: Vec<i32>,
    times: Vec<OffsetDateTime>,
    old: Vec<Vec<u8>>,
    new: Vec<Vec<u8>>,
}

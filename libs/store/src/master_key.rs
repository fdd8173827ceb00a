//! Which master keys stored values need, and sealing them anew with the first one.
//!
//! Beside the live system: tables are read in pages by their primary key, each batch is written by a
//! statement of its own, and only where the value is still the one that was read. So it may be broken off
//! and begun again at any time.

use std::collections::BTreeMap;

use domain::TopupId;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Error, signed,
    vault::{self, Purpose, Vault, VaultError},
};

/// Rows of a page, and at most so many in a statement that writes.
const PAGE: usize = 500;

/// How many values need a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Usage {
    /// Partners' keys and webhook secrets, old ones included.
    pub partner_secrets: u64,
    /// Profiles of topups.
    pub profiles: u64,
    /// What endpoints answered.
    pub answers: u64,
}

impl Usage {
    /// Of all kinds.
    pub fn total(self) -> u64 {
        self.partner_secrets + self.profiles + self.answers
    }
}

/// The usage of each key by its id; `None` is of values that name no key.
pub type Usages = BTreeMap<Option<String>, Usage>;

/// A value that could not be sealed anew.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Failed {
    /// What it is, as its column is called.
    pub what: &'static str,
    /// Of whom: a partner id or a topup id, for an answer with the number of the attempt.
    pub id: String,
    /// Why not.
    pub reason: String,
}

/// What one pass over everything has done.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// How many values were sealed anew.
    pub reencrypted: u64,
    /// Those that can't be.
    pub failed: Vec<Failed>,
}

impl Pass {
    /// Seals a value anew; `None` if it can't be.
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

/// As services do: statements find their rows by an index, whatever the statistics say. Those that write
/// name the ids once more for that.
async fn plan_by_index(connection: &mut PgConnection) -> Result<(), Error> {
    sqlx::query("SET enable_seqscan = off")
        .execute(connection)
        .await?;
    Ok(())
}

/// Counts what each key is needed for. What is changed meanwhile may be missed.
pub async fn usages(connection: &mut PgConnection) -> Result<Usages, Error> {
    plan_by_index(connection).await?;
    let mut usages = Usages::new();
    let mut of = |head: &[u8], add: fn(&mut Usage) -> &mut u64| {
        let key = vault::key_id(head).map(str::to_owned);
        *add(usages.entry(key).or_default()) += 1;
    };
    let mut after = Uuid::nil();
    loop {
        let page = partners(connection, after).await?;
        for sealed in page.iter().flat_map(|row| row.secrets().into_iter().flatten()) {
            of(sealed, |usage| &mut usage.partner_secrets);
        }
        match page.last() {
            Some(last) if page.len() == PAGE => after = last.partner_id,
            _ => break,
        }
    }
    let mut after = String::new();
    loop {
        let page = profiles(connection, &after, None).await?;
        for head in page.iter().filter_map(|row| row.head.as_deref()) {
            of(head, |usage| &mut usage.profiles);
        }
        match page.into_iter().nth(PAGE - 1) {
            Some(last) => after = last.topup_id,
            None => break,
        }
    }
    let mut after = None;
    loop {
        let page = answers(connection, after.as_ref(), None).await?;
        for head in page.iter().filter_map(|row| row.head.as_deref()) {
            of(head, |usage| &mut usage.answers);
        }
        after = page.into_iter().nth(PAGE - 1);
        if after.is_none() {
            return Ok(usages);
        }
    }
}

/// Seals everything anew that another key than the first has sealed, once through. `progress` is told of
/// each page. What somebody changes or holds meanwhile is left for another pass.
pub async fn reencrypt(
    connection: &mut PgConnection,
    vault: &Vault,
    mut progress: impl FnMut(&Pass),
) -> Result<Pass, Error> {
    plan_by_index(connection).await?;
    let prefix = vault.first_prefix()?;
    let mut pass = Pass::default();
    let mut after = Uuid::nil();
    loop {
        let page = partners(connection, after).await?;
        for row in &page {
            reencrypt_partner(connection, vault, &prefix, row, &mut pass).await?;
        }
        progress(&pass);
        match page.last() {
            Some(last) if page.len() == PAGE => after = last.partner_id,
            _ => break,
        }
    }
    let mut after = String::new();
    loop {
        let mut page = profiles(connection, &after, Some(&prefix)).await?;
        reencrypt_profiles(connection, vault, &page, &mut pass).await?;
        progress(&pass);
        if page.len() < PAGE {
            break;
        }
        after = page.pop().map(|last| last.topup_id).unwrap_or_default();
    }
    let mut after = None;
    loop {
        let page = answers(connection, after.as_ref(), Some(&prefix)).await?;
        reencrypt_answers(connection, vault, &page, &mut pass).await?;
        progress(&pass);
        after = page.into_iter().nth(PAGE - 1);
        if after.is_none() {
            return Ok(pass);
        }
    }
}

struct PartnerRow {
    partner_id: Uuid,
    secret_key: Option<Vec<u8>>,
    webhook_secret: Vec<u8>,
    old_secret_key: Option<Vec<u8>>,
    old_webhook_secret: Option<Vec<u8>>,
}

impl PartnerRow {
    fn secrets(&self) -> [Option<&[u8]>; 4] {
        [
            self.secret_key.as_deref(),
            Some(&self.webhook_secret),
            self.old_secret_key.as_deref(),
            self.old_webhook_secret.as_deref(),
        ]
    }
}

async fn partners(connection: &mut PgConnection, after: Uuid) -> Result<Vec<PartnerRow>, Error> {
    let page = sqlx::query_as!(
        PartnerRow,
        "SELECT partner_id, secret_key, webhook_secret, old_secret_key, old_webhook_secret FROM partners
         WHERE partner_id > $1 ORDER BY partner_id LIMIT $2",
        after,
        i64::from(signed(PAGE)),
    )
    .fetch_all(connection)
    .await?;
    Ok(page)
}

/// One at a time: each change of a partner takes the row of the configuration's version, and a statement
/// that holds it must not wait for another partner.
async fn reencrypt_partner(
    connection: &mut PgConnection,
    vault: &Vault,
    prefix: &[u8],
    row: &PartnerRow,
    pass: &mut Pass,
) -> Result<(), Error> {
    let id = row.partner_id;
    let purposes = [
        ("secret_key", Purpose::SecretKey(id.into())),
        ("webhook_secret", Purpose::WebhookSecret(id.into())),
        ("old_secret_key", Purpose::SecretKey(id.into())),
        ("old_webhook_secret", Purpose::WebhookSecret(id.into())),
    ];
    let mut new = row.secrets().map(|sealed| sealed.map(<[u8]>::to_vec));
    let mut changed = 0;
    for (sealed, (what, purpose)) in new.iter_mut().zip(purposes) {
        let Some(old) = sealed.as_deref().filter(|old| !old.starts_with(prefix)) else {
            continue;
        };
        if let Some(resealed) = pass.reseal(vault, (what, id), Ok(purpose), old) {
            *sealed = Some(resealed);
            changed += 1;
        }
    }
    if changed == 0 {
        return Ok(());
    }
    let [secret_key, webhook_secret, old_secret_key, old_webhook_secret] = new;
    let done = sqlx::query!(
        "UPDATE partners
         SET secret_key = $2, webhook_secret = $3, old_secret_key = $4, old_webhook_secret = $5
         WHERE partner_id = $1 AND secret_key IS NOT DISTINCT FROM $6 AND webhook_secret = $7
           AND old_secret_key IS NOT DISTINCT FROM $8 AND old_webhook_secret IS NOT DISTINCT FROM $9",
        id,
        secret_key,
        webhook_secret,
        old_secret_key,
        old_webhook_secret,
        row.secret_key,
        row.webhook_secret,
        row.old_secret_key,
        row.old_webhook_secret,
    )
    .execute(connection)
    .await?;
    pass.reencrypted += done.rows_affected() * changed;
    Ok(())
}

struct ProfileRow {
    topup_id: String,
    /// The beginning of the profile, if there is one.
    head: Option<Vec<u8>>,
    /// The profile, if it doesn't begin with the prefix.
    sealed: Option<Vec<u8>>,
}

async fn profiles(
    connection: &mut PgConnection,
    after: &str,
    prefix: Option<&[u8]>,
) -> Result<Vec<ProfileRow>, Error> {
    let page = sqlx::query_as!(
        ProfileRow,
        "SELECT topup_id, substring(profile FROM 1 FOR $3) AS head,
                CASE WHEN substring(profile FROM 1 FOR octet_length($4::bytea)) <> $4 THEN profile END AS sealed
         FROM topups WHERE topup_id > $1 ORDER BY topup_id LIMIT $2",
        after,
        i64::from(signed(PAGE)),
        signed(vault::HEAD),
        prefix,
    )
    .fetch_all(connection)
    .await?;
    Ok(page)
}

async fn reencrypt_profiles(
    connection: &mut PgConnection,
    vault: &Vault,
    page: &[ProfileRow],
    pass: &mut Pass,
) -> Result<(), Error> {
    let (mut topups, mut old, mut new) = (Vec::new(), Vec::new(), Vec::new());
    for row in page {
        let Some(sealed) = &row.sealed else { continue };
        let topup_id: Result<TopupId, _> = row.topup_id.parse();
        let purpose = topup_id.as_ref().map(Purpose::Profile);
        let purpose = purpose.map_err(|_| VaultError::Damaged);
        if let Some(resealed) = pass.reseal(vault, ("profile", &row.topup_id), purpose, sealed) {
            topups.push(row.topup_id.clone());
            old.push(sealed.clone());
            new.push(resealed);
        }
    }
    if topups.is_empty() {
        return Ok(());
    }
    // Waits for nobody: outcomes are being recorded in batches of other orders than this one's.
    let done = sqlx::query!(
        "WITH free AS MATERIALIZED (
             SELECT t.ctid, new.sealed
             FROM unnest($1::text[], $2::bytea[], $3::bytea[]) AS new(topup_id, was, sealed)
             JOIN topups t ON t.topup_id = new.topup_id AND t.profile = new.was
             WHERE t.topup_id = ANY($1)
             FOR NO KEY UPDATE OF t SKIP LOCKED
         )
         UPDATE topups t SET profile = free.sealed FROM free WHERE t.ctid = free.ctid",
        &topups,
        &old,
        &new,
    )
    .execute(connection)
    .await?;
    pass.reencrypted += done.rows_affected();
    Ok(())
}

struct AnswerRow {
    topup_id: String,
    attempt: i32,
    at: OffsetDateTime,
    head: Option<Vec<u8>>,
    sealed: Option<Vec<u8>>,
}

async fn answers(
    connection: &mut PgConnection,
    after: Option<&AnswerRow>,
    prefix: Option<&[u8]>,
) -> Result<Vec<AnswerRow>, Error> {
    let (topup_id, attempt, at) = after.map_or(("", -1, OffsetDateTime::UNIX_EPOCH), |last| {
        (&last.topup_id, last.attempt, last.at)
    });
    let page = sqlx::query_as!(
        AnswerRow,
        "SELECT topup_id, attempt, at, substring(answer FROM 1 FOR $5) AS head,
                CASE WHEN substring(answer FROM 1 FOR octet_length($6::bytea)) <> $6 THEN answer END AS sealed
         FROM delivery_attempts WHERE (topup_id, attempt, at) > ($1, $2, $3)
         ORDER BY topup_id, attempt, at LIMIT $4",
        topup_id,
        attempt,
        at,
        i64::from(signed(PAGE)),
        signed(vault::HEAD),
        prefix,
    )
    .fetch_all(connection)
    .await?;
    Ok(page)
}

async fn reencrypt_answers(
    connection: &mut PgConnection,
    vault: &Vault,
    page: &[AnswerRow],
    pass: &mut Pass,
) -> Result<(), Error> {
    let (mut topups, mut attempts, mut times) = (Vec::new(), Vec::new(), Vec::new());
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for row in page {
        let Some(sealed) = &row.sealed else { continue };
        let topup_id: Result<TopupId, _> = row.topup_id.parse();
        let purpose = match (&topup_id, u32::try_from(row.attempt)) {
            (Ok(topup_id), Ok(attempt)) => Ok(Purpose::Answer(topup_id, attempt)),
            _ => Err(VaultError::Damaged),
        };
        let id = format!("{} attempt {}", row.topup_id, i64::from(row.attempt) + 1);
        if let Some(resealed) = pass.reseal(vault, ("answer", id), purpose, sealed) {
            topups.push(row.topup_id.clone());
            attempts.push(row.attempt);
            times.push(row.at);
            old.push(sealed.clone());
            new.push(resealed);
        }
    }
    if topups.is_empty() {
        return Ok(());
    }
    // Rows of attempts are written once and nobody else changes them.
    let done = sqlx::query!(
        "UPDATE delivery_attempts a SET answer = new.sealed
         FROM unnest($1::text[], $2::int[], $3::timestamptz[], $4::bytea[], $5::bytea[])
             AS new(topup_id, attempt, at, was, sealed)
         WHERE a.topup_id = ANY($1) AND a.topup_id = new.topup_id AND a.attempt = new.attempt AND a.at = new.at AND a.answer = new.was",
        &topups,
        &attempts,
        &times,
        &old,
        &new,
    )
    .execute(connection)
    .await?;
    pass.reencrypted += done.rows_affected();
    Ok(())
}

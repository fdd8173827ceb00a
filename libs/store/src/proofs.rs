//! What was proved of our accounts at providers (`esimctl provider prove`).
//!
//! A proof buys something, so each purchase of it has a row before it is sent: nothing that was
//! bought is forgotten, and the comparison of purchases does not take it for a surplus. A proof is
//! of one account, which is named by a digest of its address and access key. With another key the
//! account is unproved.
//!
//! Guarantee: what the last proof of an account has denied is not proved, whatever an earlier one
//! has seen. Provisioners only read this table.

use std::time::Duration;

use domain::PlacementId;
use pg::{Result, age};
use sqlx::PgConnection;
use time::OffsetDateTime;

/// An account, as proofs name it.
#[derive(Clone, Copy, Debug)]
pub struct ProvedAccount<'a> {
    pub provider: &'a str,
    /// The digest of its address and access key.
    pub account: &'a str,
}

/// A purchase that a proof is about to make.
#[derive(Clone, Copy, Debug)]
pub struct ProofPurchase<'a> {
    pub id: PlacementId,
    pub provider_option_id: &'a str,
    /// Of its first request.
    pub units: i32,
}

/// A purchase of an earlier proof of which something may be left to give back.
#[derive(Clone, Debug)]
pub struct LeftPurchase {
    pub id: PlacementId,
    pub provider_option_id: String,
    pub units: i32,
    /// How long ago it was recorded.
    pub age: Duration,
    /// Whether an identical request was the same purchase, as far as that was seen.
    pub same_again: Option<bool>,
    /// Whether the provider has said that it has sold it.
    pub is_sold: bool,
}

/// The last thing that was proved of an account.
#[derive(Clone, Debug)]
pub struct AccountProof {
    pub provider: String,
    pub account: String,
    pub same_again: bool,
    pub proved_at: OffsetDateTime,
    /// Whether that was more than a quarter of a year ago.
    pub is_old: bool,
}

/// Records a purchase before it is sent.
pub async fn record(
    connection: &mut PgConnection,
    of: ProvedAccount<'_>,
    purchase: ProofPurchase<'_>,
) -> Result<()> {
    let statement = sqlx::query!(
        "INSERT INTO provider_proofs (purchase_id, provider, account, provider_option_id, units) VALUES ($1, $2, $3, $4, $5)",
        purchase.id.uuid(),
        of.provider,
        of.account,
        purchase.provider_option_id,
        purchase.units,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Notes the provider's ids of a purchase that it has sold; ours if it has none of its own.
pub async fn note_reference(
    connection: &mut PgConnection,
    id: PlacementId,
    reference: &str,
) -> Result<()> {
    let statement = sqlx::query!(
        "UPDATE provider_proofs SET reference = $2 WHERE purchase_id = $1",
        id.uuid(),
        reference,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Notes whether an identical request was the same purchase when it was this old.
pub async fn note_repeat(
    connection: &mut PgConnection,
    id: PlacementId,
    is_same: bool,
    age: Duration,
) -> Result<()> {
    let seconds = i32::try_from(age.as_secs()).unwrap_or(i32::MAX);
    let statement = sqlx::query!(
        "UPDATE provider_proofs
         SET same_again = coalesce(same_again, true) AND $2, same_for_s = $3, proved_at = now() WHERE purchase_id = $1",
        id.uuid(),
        is_same,
        seconds,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Stores what was asked and what came, and, with `is_ended`, that nothing is left to give back.
pub async fn note_evidence(
    connection: &mut PgConnection,
    id: PlacementId,
    evidence: &str,
    is_ended: bool,
) -> Result<()> {
    let statement = sqlx::query!(
        "UPDATE provider_proofs SET evidence = $2, ended_at = CASE WHEN $3 THEN now() ELSE ended_at END
         WHERE purchase_id = $1",
        id.uuid(),
        evidence,
        is_ended,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// The purchases of earlier proofs of an account that were not given back, the oldest first.
pub async fn left(
    connection: &mut PgConnection,
    of: ProvedAccount<'_>,
) -> Result<Vec<LeftPurchase>> {
    let query = sqlx::query!(
        r#"SELECT purchase_id, provider_option_id, units, same_again, reference IS NOT NULL AS "is_sold!",
                  extract(epoch FROM now() - recorded_at)::float8 AS "age!"
           FROM provider_proofs WHERE provider = $1 AND account = $2 AND ended_at IS NULL ORDER BY recorded_at"#,
        of.provider,
        of.account,
    );
    let rows = query.fetch_all(connection).await?;
    let left = rows.into_iter().map(|row| LeftPurchase {
        id: row.purchase_id.into(),
        provider_option_id: row.provider_option_id,
        units: row.units,
        age: age(row.age),
        same_again: row.same_again,
        is_sold: row.is_sold,
    });
    Ok(left.collect())
}

/// For how long after a purchase an identical request is proved to be the same purchase at this
/// account. Zero if it was never proved, or if the last proof has seen something else.
pub async fn same_for(connection: &mut PgConnection, of: ProvedAccount<'_>) -> Result<Duration> {
    let query = sqlx::query_scalar!(
        r#"SELECT max(same_for_s) FILTER (WHERE same_again) AS "same_for_s"
           FROM provider_proofs
           WHERE provider = $1 AND account = $2 AND same_again IS NOT NULL
             AND proved_at > (SELECT coalesce(max(proved_at), '-infinity') FROM provider_proofs
                              WHERE provider = $1 AND account = $2 AND NOT same_again)"#,
        of.provider,
        of.account,
    );
    let seconds = query.fetch_one(connection).await?;
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Ok(Duration::from_secs(seconds.unwrap_or(0)))
}

/// The last proof of each account.
pub async fn last(connection: &mut PgConnection) -> Result<Vec<AccountProof>> {
    let query = sqlx::query_as!(
        AccountProof,
        r#"SELECT DISTINCT ON (provider, account) provider, account, same_again AS "same_again!",
                  proved_at AS "proved_at!", proved_at < now() - interval '92 days' AS "is_old!"
           FROM provider_proofs WHERE same_again IS NOT NULL ORDER BY provider, account, proved_at DESC"#
    );
    Ok(query.fetch_all(connection).await?)
}

/// Purchases of proofs that were not given back for a day.
#[derive(Clone, Debug)]
pub struct LeftInAccount {
    pub provider: String,
    pub account: String,
    pub purchases: i64,
    /// When the oldest one was recorded.
    pub since: OffsetDateTime,
}

/// The accounts at which purchases of proofs are left.
pub async fn left_in_accounts(connection: &mut PgConnection) -> Result<Vec<LeftInAccount>> {
    let query = sqlx::query_as!(
        LeftInAccount,
        r#"SELECT provider, account, count(*) AS "purchases!", min(recorded_at) AS "since!"
           FROM provider_proofs WHERE ended_at IS NULL AND recorded_at < now() - interval '1 day'
           GROUP BY provider, account ORDER BY provider, account"#
    );
    Ok(query.fetch_all(connection).await?)
}

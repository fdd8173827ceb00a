//! What a partner has and what it paid: balances, and statements of what changed them.
//!
//! A statement is a month, in UTC, of the entries of one account. The times of entries never go
//! back, so a month is a range of numbers: what is booked late, such as the refund of an eSIM that
//! was bought months ago, stands in the month in which it is booked, and a month that is over never
//! changes.

use domain::{Command, PartnerId};
use pg::{Result, TransactionEnd, actions::ActionChange, transaction};
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use store::{Unflushed, deliveries::events};
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use uuid::Uuid;

use super::record_change;

/// What you have in one currency. All amounts are whole numbers of its minor unit, such as cents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Balance)]
pub struct PartnerBalance {
    #[schema(example = "USD")]
    pub currency: String,
    /// What your payments, charges and refunds add up to. Below zero you owe it.
    #[schema(example = 125_000)]
    pub balance: i64,
    /// The prices of topups that are not ready and of extensions that are not added, unless they
    /// have failed.
    #[schema(example = 1250, minimum = 0)]
    pub held: i64,
    /// How far orders may take the balance below zero; null if there is no limit.
    #[schema(example = 0, minimum = 0)]
    pub credit_limit: Option<i64>,
    /// What new orders may cost: `balance` - `held` + `credit_limit`; null if there is no limit.
    #[schema(example = 123_750)]
    pub available: Option<i64>,
    /// The threshold below which `balance.low` is sent; null: never.
    #[schema(example = 5000, minimum = 0)]
    pub warn_below: Option<i64>,
}

/// The balances of a partner by currency.
pub async fn balances(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<Unflushed<Vec<PartnerBalance>>> {
    let rows = sqlx::query_as!(
        PartnerBalance,
        "SELECT currency, posted AS balance, held, credit_limit, posted - held + credit_limit AS available, warn_below
         FROM accounts WHERE partner_id = $1 ORDER BY currency",
        partner_id.uuid(),
    );
    Ok(Unflushed::of(rows.fetch_all(connection).await?))
}

/// Sets the threshold below which the partner is told what it has; `None`: it is never told. If
/// less is available now, it is told at once. Returns whether it has an account in this currency.
pub async fn warn_below(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    currency: &str,
    threshold: Option<i64>,
) -> Result<bool> {
    transaction!(connection, "self_service::warn_below", |transaction| {
        let query = sqlx::query_scalar!(
            "SELECT warn_below FROM accounts WHERE partner_id = $1 AND currency = $2 FOR NO KEY UPDATE",
            partner_id.uuid(),
            currency,
        );
        let Some(was) = query.fetch_optional(&mut **transaction).await? else {
            return Ok(TransactionEnd::Rollback(false));
        };
        if was != threshold {
            let statement = sqlx::query!(
                "UPDATE accounts SET warn_below = $3 WHERE partner_id = $1 AND currency = $2",
                partner_id.uuid(),
                currency,
                threshold,
            );
            statement.execute(&mut **transaction).await?;
            let shown = |threshold| json!({ "currency": currency, "warn_below": threshold });
            let changed = ActionChange::between(shown(was), shown(threshold));
            record_change(transaction, Command::BalanceWarn, partner_id, changed).await?;
            events::low_balances(transaction, Some(partner_id)).await?;
        }
        Ok(TransactionEnd::Commit(true))
    })
}

/// A month of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Statement)]
pub struct StatementHead {
    /// The month, in UTC.
    #[schema(example = "2026-11")]
    pub month: String,
    #[schema(example = "USD")]
    pub currency: String,
    /// The balance before its first entry, in minor units.
    pub opening: i64,
    /// The balance after its last entry: `opening` and the amounts of its entries.
    pub closing: i64,
    /// The number of its first entry.
    pub first_entry: i64,
    /// The number of its last entry. Entries are numbered without gaps.
    pub last_entry: i64,
    /// Whether the month is not over, so that more may follow.
    pub is_open: bool,
}

/// The months in which accounts of the partner changed, the newest first.
///
/// It waits for whoever is writing entries, so that a month which is told as over is complete: an
/// entry gets its time under the lock of the account.
pub async fn statements(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    months: StatementRange<'_>,
) -> Result<Unflushed<Vec<StatementHead>>> {
    let asked_at = wait_for_entries(connection, partner_id).await?;
    // From the last entry of each account back, month by month, so that it reads two entries for
    // each month and not all.
    let rows = sqlx::query!(
        r#"WITH RECURSIVE month AS (
               SELECT a.partner_id, a.currency, date_trunc('month', l.at, 'UTC') AS begins, l.number AS last, l.balance AS closing,
                      f.number AS first, f.balance - f.amount AS opening
               FROM accounts a
               JOIN account_entries l ON l.partner_id = a.partner_id AND l.currency = a.currency AND l.number = a.last_entry
               CROSS JOIN LATERAL (
                   SELECT n.number, n.balance, n.amount FROM account_entries n
                   WHERE n.partner_id = a.partner_id AND n.currency = a.currency AND n.at >= date_trunc('month', l.at, 'UTC')
                   ORDER BY n.at, n.number LIMIT 1) f
               WHERE a.partner_id = $1 AND ($3::text IS NULL OR a.currency = $3)
               UNION ALL
               SELECT m.partner_id, m.currency, date_trunc('month', l.at, 'UTC'), l.number, l.balance, f.number, f.balance - f.amount
               FROM month m
               JOIN account_entries l ON l.partner_id = m.partner_id AND l.currency = m.currency AND l.number = m.first - 1
               CROSS JOIN LATERAL (
                   SELECT n.number, n.balance, n.amount FROM account_entries n
                   WHERE n.partner_id = m.partner_id AND n.currency = m.currency AND n.at >= date_trunc('month', l.at, 'UTC')
                   ORDER BY n.at, n.number LIMIT 1) f
           )
           SELECT to_char(begins AT TIME ZONE 'UTC', 'YYYY-MM') AS "month!", currency AS "currency!", first AS "first!",
                  last AS "last!", opening AS "opening!", closing AS "closing!",
                  (begins AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC' > $4 AS "is_open!"
           FROM month
           WHERE $2::text IS NULL OR to_char(begins AT TIME ZONE 'UTC', 'YYYY-MM') = $2
           ORDER BY begins DESC, currency LIMIT 1000"#,
        partner_id.uuid(),
        months.month,
        months.currency,
        asked_at,
    );
    let rows = rows.fetch_all(connection).await?.into_iter();
    let heads = rows.map(|row| StatementHead {
        month: row.month,
        currency: row.currency,
        opening: row.opening,
        closing: row.closing,
        first_entry: row.first,
        last_entry: row.last,
        is_open: row.is_open,
    });
    Ok(Unflushed::of(heads.collect()))
}

/// Which statements are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatementRange<'a> {
    pub month: Option<&'a str>,
    pub currency: Option<&'a str>,
}

/// Waits until nobody holds the accounts of this partner any more who held them before. Returns a
/// time before this wait: what gets an earlier one is seen afterwards.
async fn wait_for_entries(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<OffsetDateTime> {
    let clock = sqlx::query_scalar!(r#"SELECT now() AS "asked_at!""#);
    let asked_at = clock.fetch_one(&mut *connection).await?;
    let lock = sqlx::query!(
        "SELECT FROM accounts WHERE partner_id = $1 ORDER BY currency FOR SHARE",
        partner_id.uuid(),
    );
    lock.fetch_all(connection).await?;
    Ok(asked_at)
}

/// What changed a balance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Entry)]
pub struct StatementEntry {
    /// Counts the entries of the account from 1 on, without gaps.
    #[schema(example = 17)]
    pub number: i64,
    /// `charge` (a topup became ready, or an extension was added), `release` (it failed or was
    /// refused, so its price is no longer held), `late_charge` (it came about after that), `refund`
    /// (an eSIM was given back; what extended it is not refunded), `deposit` (you paid) or
    /// `adjustment` (a correction).
    #[schema(example = "charge")]
    pub kind: String,
    /// What it changes the balance by, in minor units.
    #[schema(example = -1250)]
    pub amount: i64,
    /// The balance after it.
    #[schema(example = 123_750)]
    pub balance: i64,
    #[serde(with = "rfc3339")]
    pub at: OffsetDateTime,
    /// The topup that it is about, or whose extension.
    #[schema(example = "20250129123456123456789012")]
    pub topup_id: Option<String>,
    /// Your id of the extension; null if it is not about one.
    #[schema(example = "A-1042-more")]
    pub external_id: Option<String>,
    /// What was ordered. Null once the order is archived, as is `external_order_id`.
    pub option_id: Option<Uuid>,
    pub external_order_id: Option<String>,
    /// Of a deposit or an adjustment: its reference, such as the number of an invoice.
    pub reference: Option<String>,
}

/// The entries of an account with numbers from `from` to `to`, at most `limit` of them.
pub async fn entries(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    currency: &str,
    (from, to): (i64, i64),
    limit: i64,
) -> Result<Unflushed<Vec<StatementEntry>>> {
    let rows = sqlx::query_as!(
        StatementEntry,
        r#"SELECT n.number, n.kind, n.amount, n.balance, n.at, n.topup_id, x.external_id AS "external_id?",
                  coalesce(x.option_id, t.option_id) AS option_id, o.external_order_id AS "external_order_id?", n.reference
           FROM account_entries n
           LEFT JOIN extensions x ON x.extension_id = n.extension_id
           LEFT JOIN topups t ON t.topup_id = n.topup_id
           LEFT JOIN placements p ON p.placement_id = t.placement_id
           LEFT JOIN orders o ON o.order_id = p.order_id
           WHERE n.partner_id = $1 AND n.currency = $2 AND n.number BETWEEN $3 AND $4
           ORDER BY n.number LIMIT $5"#,
        partner_id.uuid(),
        currency,
        from,
        to,
        limit,
    );
    Ok(Unflushed::of(rows.fetch_all(connection).await?))
}

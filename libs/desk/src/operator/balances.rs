//! Accounts of partners (`esimctl account`): what they have, what they may owe, deposits and
//! corrections, and whether the books agree with the units.
//!
//! Entries are written by SQL functions only, under the lock of the account, and nobody changes or
//! deletes one. What is read is told after it is on disk, because a crash may undo a settlement
//! with its entries.

use accounts::prices::currency;
use domain::{Amount, PartnerId, money::EntryKind, product::Currency};
use pg::{
    Error, Result,
    actions::{ActionChange, Mode},
    transaction,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgConnection;
use store::Unflushed;
use time::OffsetDateTime;
use uuid::Uuid;

/// How much a partner may owe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CreditLimit {
    /// At most this, in minor units; 0 is a prepaid account.
    UpTo(i64),
    /// Any amount: a postpaid account.
    Unlimited,
}

impl CreditLimit {
    fn stored(self) -> Option<i64> {
        match self {
            Self::UpTo(limit) => Some(limit),
            Self::Unlimited => None,
        }
    }

    fn read(stored: Option<i64>) -> Self {
        stored.map_or(Self::Unlimited, Self::UpTo)
    }
}

/// An account of a partner.
#[derive(Clone, Debug, Serialize)]
pub struct AccountView {
    pub currency: Currency,
    /// What its entries add up to, in minor units. Below zero the partner owes it.
    pub balance: i64,
    /// The prices of its units whose outcome is open.
    pub held: i64,
    pub credit_limit: CreditLimit,
    /// What new orders may cost; `None` if there is no limit.
    pub available: Option<i64>,
    /// The partner is told when less than this is available; `None` if it has not asked for that.
    pub warn_below: Option<i64>,
    /// How many entries it has.
    pub entries: i64,
}

/// The accounts of a partner by currency.
pub async fn accounts_of(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<Vec<AccountView>> {
    let rows = sqlx::query!(
        "SELECT currency, posted, held, credit_limit, posted - held + credit_limit AS available, warn_below, last_entry
         FROM accounts WHERE partner_id = $1 ORDER BY currency",
        partner_id.uuid(),
    );
    let rows = rows.fetch_all(&mut *connection).await?.into_iter();
    let views = rows.map(|row| {
        Ok(AccountView {
            currency: currency(&row.currency)?,
            balance: row.posted,
            held: row.held,
            credit_limit: CreditLimit::read(row.credit_limit),
            available: row.available,
            warn_below: row.warn_below,
            entries: row.last_entry,
        })
    });
    let views: Result<Vec<AccountView>> = views.collect();
    Unflushed::of(views?).after_flush(connection).await
}

/// An entry as operators see it.
#[derive(Clone, Debug, Serialize)]
pub struct EntryLine {
    pub number: i64,
    pub kind: String,
    pub amount: i64,
    pub balance: i64,
    pub released: i64,
    pub topup_id: Option<String>,
    pub extension_id: Option<Uuid>,
    pub reference: Option<String>,
    pub reason: Option<String>,
    pub made_by: String,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
}

/// The entries of an account behind the number `after` and up to `to`, oldest first, at most `most`
/// of them.
pub async fn entries(
    connection: &mut PgConnection,
    (partner_id, of_currency): (PartnerId, Currency),
    (after, to): (i64, i64),
    most: i64,
) -> Result<Vec<EntryLine>> {
    let rows = sqlx::query_as!(
        EntryLine,
        "SELECT number, kind, amount, balance, released, topup_id, extension_id, reference, reason, made_by, at
         FROM account_entries WHERE partner_id = $1 AND currency = $2 AND number > $3 AND number <= $4
         ORDER BY number LIMIT $5",
        partner_id.uuid(),
        of_currency.as_str(),
        after,
        to,
        most,
    );
    let lines = rows.fetch_all(&mut *connection).await?;
    Unflushed::of(lines).after_flush(connection).await
}

/// An account with its last entries.
#[derive(Clone, Debug, Serialize)]
pub struct AccountWithEntries {
    #[serde(flatten)]
    pub account: AccountView,
    /// Newest first. The first one has led to the balance of the account.
    pub last_entries: Vec<EntryLine>,
}

/// The accounts of a partner by currency, with at most `most` of the last entries of each.
pub async fn with_last_entries(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    most: i64,
) -> Result<Vec<AccountWithEntries>> {
    let mut all = Vec::new();
    for account in accounts_of(&mut *connection, partner_id).await? {
        // Entries are numbered without gaps, so their count is the number of the last one.
        let last = account.entries;
        let of = (partner_id, account.currency);
        let mut last_entries = entries(&mut *connection, of, (last - most, last), most).await?;
        last_entries.reverse();
        all.push(AccountWithEntries {
            account,
            last_entries,
        });
    }
    Ok(all)
}

/// Why an account was not changed.
#[derive(Debug, thiserror::Error)]
pub enum NotBooked {
    #[error("there is no such partner")]
    NoSuchPartner,
    #[error("the partner has no account in {0}; `esimctl account limit` opens one")]
    NoAccount(Currency),
    #[error(
        "the reference {reference:?} was booked before, as entry {number} of {amount}; another payment or correction needs a \
         reference of its own"
    )]
    BookedBefore {
        reference: String,
        number: i64,
        amount: Amount,
    },
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(NotBooked);

/// Sets how much a partner may owe, and opens the account if there is none. Two at once open one.
/// What was ordered before is not touched by a lower limit. Returns the limit before; `None` if the
/// account was opened.
pub async fn set_limit(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    of_currency: Currency,
    limit: CreditLimit,
    mode: Mode<'_>,
) -> std::result::Result<Option<CreditLimit>, NotBooked> {
    transaction!(connection, "balances::set_limit", |transaction| {
        let opened = sqlx::query!(
            "INSERT INTO accounts (partner_id, currency, credit_limit)
             SELECT partner_id, $2, $3 FROM partners WHERE partner_id = $1
             ON CONFLICT DO NOTHING",
            partner_id.uuid(),
            of_currency.as_str(),
            limit.stored(),
        );
        let is_opened = opened.execute(&mut **transaction).await?.rows_affected() > 0;
        let locked = sqlx::query_scalar!(
            "SELECT credit_limit FROM accounts WHERE partner_id = $1 AND currency = $2 FOR NO KEY UPDATE",
            partner_id.uuid(),
            of_currency.as_str(),
        );
        let before = locked.fetch_optional(&mut **transaction).await?;
        let before = CreditLimit::read(before.ok_or(NotBooked::NoSuchPartner)?);
        let statement = sqlx::query!(
            "UPDATE accounts SET credit_limit = $3 WHERE partner_id = $1 AND currency = $2
             AND credit_limit IS DISTINCT FROM $3",
            partner_id.uuid(),
            of_currency.as_str(),
            limit.stored(),
        );
        let is_changed = statement.execute(&mut **transaction).await?.rows_affected() > 0;
        let after = json!({ "currency": of_currency, "credit_limit": limit });
        let changed = if is_opened {
            ActionChange::created(after)
        } else {
            let was = json!({ "currency": of_currency, "credit_limit": before });
            ActionChange::between(was, after)
        };
        mode.record(transaction, i64::from(is_opened || is_changed), changed)
            .await?;
        Ok(mode.end((!is_opened).then_some(before)))
    })
}

/// What is booked by hand.
#[derive(Clone, Copy, Debug)]
pub struct Booking<'a> {
    pub partner_id: PartnerId,
    /// [`EntryKind::Deposit`] or [`EntryKind::Adjustment`].
    pub kind: EntryKind,
    pub amount: Amount,
    /// The operator's id of the payment or correction, so that a repeat is not booked again.
    pub reference: &'a str,
    pub reason: &'a str,
    pub operator: &'a str,
}

/// An entry that was booked, or would be.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BookedEntry {
    pub number: i64,
    pub amount: Amount,
    /// The balance after it, in minor units.
    pub balance: i64,
}

/// Books a deposit or an adjustment.
pub async fn book(
    connection: &mut PgConnection,
    booking: Booking<'_>,
    mode: Mode<'_>,
) -> std::result::Result<BookedEntry, NotBooked> {
    let currency = booking.amount.currency;
    transaction!(connection, "balances::book", |transaction| {
        let account = sqlx::query_scalar!(
            "SELECT posted FROM accounts WHERE partner_id = $1 AND currency = $2 FOR NO KEY UPDATE",
            booking.partner_id.uuid(),
            currency.as_str(),
        );
        let before = account.fetch_optional(&mut **transaction).await?;
        let before = before.ok_or(NotBooked::NoAccount(currency))?;
        let booked = sqlx::query_scalar!(
            "SELECT book_entry($1, $2, $3, $4, $5, $6, $7)",
            booking.partner_id.uuid(),
            currency.as_str(),
            booking.kind.as_str(),
            booking.amount.minor,
            booking.reference,
            booking.reason,
            booking.operator,
        );
        let Some(number) = booked.fetch_one(&mut **transaction).await? else {
            let earlier = sqlx::query!(
                "SELECT number, amount FROM account_entries WHERE partner_id = $1 AND currency = $2 AND reference = $3",
                booking.partner_id.uuid(),
                currency.as_str(),
                booking.reference,
            );
            let earlier = earlier.fetch_one(&mut **transaction).await?;
            return Err(NotBooked::BookedBefore {
                reference: booking.reference.to_owned(),
                number: earlier.number,
                amount: Amount {
                    minor: earlier.amount,
                    currency,
                },
            });
        };
        let balance = before + booking.amount.minor;
        let changed = ActionChange::between(
            json!({ "currency": currency, "balance": before }),
            json!({ "currency": currency, "balance": balance, "entry": number, "reference": booking.reference }),
        );
        mode.record(transaction, 1, changed).await?;
        Ok(mode.end(BookedEntry {
            number,
            amount: booking.amount,
            balance,
        }))
    })
}

/// Something about an account that does not agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disagreement {
    pub partner: String,
    pub currency: String,
    pub what: String,
}

/// What [`check`] has compared, and what it found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckedAccounts {
    pub accounts: i64,
    pub entries: i64,
    /// Units and extensions that have a price and are not archived.
    pub units: i64,
    /// At most a thousand of what does not agree.
    pub disagreements: Vec<Disagreement>,
}

/// Compares each account with its entries and its units. It reads one snapshot, so that orders that
/// are stored meanwhile do no harm. Without a disagreement everything agrees: the entries of each
/// account are numbered without gaps and each balance follows from the one before, the account says
/// what they add up to, what is held is the prices of the units whose outcome is open, and each
/// unit that has ended has its entries, at its price. Units that were archived have only their
/// entries left, and one that cost nothing may have none, because its partner may have had no
/// account.
pub async fn check(connection: &mut PgConnection) -> Result<CheckedAccounts> {
    let checked = compare(&mut *connection).await?;
    Unflushed::of(checked).after_flush(connection).await
}

/// What [`check`] does. Who calls it in a transaction tells of it after its end.
pub(super) async fn compare(connection: &mut PgConnection) -> Result<CheckedAccounts> {
    let rows = sqlx::query!(
        r#"WITH chained AS (
               SELECT partner_id, currency, number, balance,
                      number - coalesce(lag(number) OVER entries_of, 0) AS step,
                      balance - coalesce(lag(balance) OVER entries_of, 0) - amount AS off
               FROM account_entries WINDOW entries_of AS (PARTITION BY partner_id, currency ORDER BY number)
           ), summed AS (
               SELECT partner_id, currency, sum(amount) AS amount, max(number) AS last, count(*) AS entries
               FROM account_entries GROUP BY partner_id, currency
           ), unit AS (
               SELECT p.partner_id, t.terms::jsonb->'price'->>'currency' AS currency,
                      (t.terms::jsonb->'price'->>'amount')::bigint AS price, t.topup_id,
                      e.ready_at IS NOT NULL AS is_ready, t.state = 'failed' AS has_failed, e.returned_at IS NOT NULL AS is_returned,
                      ARRAY (SELECT n.kind FROM account_entries n WHERE n.topup_id = t.topup_id AND n.extension_id IS NULL) AS kinds
               FROM topups t JOIN placements p ON p.placement_id = t.placement_id LEFT JOIN esims e ON e.topup_id = t.topup_id
               WHERE t.terms IS NOT NULL AND t.terms::jsonb ? 'price'
           ), extension AS (
               SELECT x.partner_id, x.currency, x.price, x.extension_id, x.state,
                      ARRAY (SELECT n.kind FROM account_entries n WHERE n.extension_id = x.extension_id ORDER BY n.number) AS kinds
               FROM extensions x WHERE x.price IS NOT NULL
           ), open AS (
               SELECT partner_id, currency, sum(price) AS price FROM (
                   SELECT partner_id, currency, price FROM unit WHERE NOT kinds && ARRAY['charge', 'release']
                   UNION ALL
                   SELECT partner_id, currency, price FROM extension WHERE kinds = ARRAY[]::text[]
               ) held GROUP BY partner_id, currency
           ), wrong AS (
               SELECT partner_id, currency, 'entry ' || number || ' does not follow from the one before' AS what
               FROM chained WHERE step <> 1 OR off <> 0
               UNION ALL
               SELECT a.partner_id, a.currency, 'the balance is ' || a.posted || ', and the entries add up to ' || coalesce(s.amount, 0)
               FROM accounts a LEFT JOIN summed s USING (partner_id, currency)
               WHERE a.posted <> coalesce(s.amount, 0) OR a.last_entry <> coalesce(s.last, 0)
                  OR a.last_entry <> coalesce(s.entries, 0)
               UNION ALL
               SELECT a.partner_id, a.currency, a.held || ' is held, and the open units cost ' || coalesce(o.price, 0)
               FROM accounts a LEFT JOIN open o USING (partner_id, currency)
               WHERE a.held <> coalesce(o.price, 0)
               UNION ALL
               SELECT u.partner_id, u.currency, 'unit ' || u.topup_id || ' has ended, and an entry about it is missing'
               FROM unit u JOIN accounts a USING (partner_id, currency)
               WHERE u.price > 0 AND (u.is_ready AND NOT u.kinds && ARRAY['charge', 'late_charge']
                  OR u.has_failed AND NOT u.is_ready AND NOT u.kinds && ARRAY['charge', 'release']
                  OR u.is_ready AND u.is_returned AND NOT u.kinds && ARRAY['refund'])
               UNION ALL
               SELECT u.partner_id, u.currency, 'unit ' || u.topup_id || ' has an entry that nothing explains'
               FROM unit u
               WHERE NOT u.is_ready AND u.kinds && ARRAY['charge', 'late_charge', 'refund']
                  OR NOT u.is_returned AND u.kinds && ARRAY['refund']
               UNION ALL
               SELECT x.partner_id, x.currency, 'extension ' || x.extension_id || ' is ' || x.state || ' and has these entries: ' || array_to_string(x.kinds, ', ')
               FROM extension x JOIN accounts a USING (partner_id, currency)
               WHERE NOT CASE x.state WHEN 'added' THEN x.kinds IN (ARRAY['charge'], ARRAY['release', 'late_charge'])
                                      WHEN 'refused' THEN x.kinds = ARRAY['release'] ELSE x.kinds = ARRAY[]::text[] END
                 AND (x.price > 0 OR x.kinds <> ARRAY[]::text[])
               UNION ALL
               SELECT n.partner_id, n.currency, 'entry ' || n.number || ' is not about the price of unit ' || u.topup_id
                   || ', which is ' || u.price
               FROM unit u JOIN account_entries n ON n.topup_id = u.topup_id AND n.extension_id IS NULL
               WHERE (n.partner_id, n.currency) <> (u.partner_id, u.currency) OR greatest(abs(n.amount), n.released) <> u.price
               UNION ALL
               SELECT n.partner_id, n.currency, 'entry ' || n.number || ' is not about the price of extension ' || x.extension_id
                   || ', which is ' || x.price
               FROM extension x JOIN account_entries n ON n.extension_id = x.extension_id
               WHERE (n.partner_id, n.currency) <> (x.partner_id, x.currency) OR greatest(abs(n.amount), n.released) <> x.price
           ), counted AS (
               SELECT (SELECT count(*) FROM accounts) AS accounts, (SELECT count(*) FROM account_entries) AS entries,
                      (SELECT count(*) FROM unit) + (SELECT count(*) FROM extension) AS units
           ), told AS (
               SELECT r.name, w.currency, w.what FROM wrong w JOIN partners r ON r.partner_id = w.partner_id
               ORDER BY r.name, w.currency, w.what LIMIT 1000
           )
           SELECT c.accounts AS "accounts!", c.entries AS "entries!", c.units AS "units!",
                  t.name AS "partner?", t.currency AS "currency?", t.what AS "what?"
           FROM counted c LEFT JOIN told t ON true ORDER BY t.name, t.currency, t.what"#,
    );
    let mut checked = CheckedAccounts::default();
    for row in rows.fetch_all(&mut *connection).await? {
        checked.accounts = row.accounts;
        checked.entries = row.entries;
        checked.units = row.units;
        let disagreement = row.partner.zip(row.currency).zip(row.what);
        checked
            .disagreements
            .extend(
                disagreement.map(|((partner, currency), what)| Disagreement {
                    partner,
                    currency,
                    what,
                }),
            );
    }
    Ok(checked)
}

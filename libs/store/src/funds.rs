//! What partners can order for: their accounts, locked while a price is compared with them and
//! held.
//!
//! Orders ([`crate::orders::insert_limited`]) and extensions use it in the transaction that stores
//! them, so what is compared is what is held.

use std::collections::{BTreeMap, HashMap};

use domain::{Amount, PartnerId, product::Currency};
use pg::{Result, Transaction};
use uuid::Uuid;

/// An account: its partner and its currency.
type AccountOf = (Uuid, String);

fn account_of(partner: PartnerId, currency: Currency) -> AccountOf {
    (partner.uuid(), currency.to_string())
}

/// What is available in each of the locked accounts; `None` if an account has no limit. A partner
/// without an account in a currency has nothing in it.
#[derive(Default)]
pub struct Funds(HashMap<AccountOf, Option<i64>>);

impl Funds {
    /// Locks the accounts of these partners until the end of the transaction, and reads them.
    pub async fn lock(transaction: &mut Transaction<'_>, partners: &[Uuid]) -> Result<Self> {
        if partners.is_empty() {
            return Ok(Self::default());
        }
        // A row that another transaction has changed is read as that one has left it, because it is
        // locked.
        let locked = sqlx::query!(
            r#"SELECT partner_id, currency, posted - held + credit_limit AS available FROM accounts
               WHERE partner_id = ANY ($1) ORDER BY partner_id, currency FOR NO KEY UPDATE"#,
            partners,
        );
        let rows = locked.fetch_all(&mut **transaction).await?.into_iter();
        let available = rows.map(|row| ((row.partner_id, row.currency), row.available));
        Ok(Self(available.collect()))
    }

    /// What this partner can still order for, if that is less than the price.
    pub fn shortage(&self, partner: PartnerId, price: Amount) -> Option<Amount> {
        let account = self.0.get(&account_of(partner, price.currency));
        let available = match account {
            Some(None) => return None,
            Some(Some(available)) => *available,
            None => 0,
        };
        (price.minor > available).then_some(Amount {
            minor: available,
            ..price
        })
    }

    /// Takes a price, or gives it back if `sign` is -1.
    pub fn take(&mut self, partner: PartnerId, price: Amount, sign: i64) {
        let account = self.0.get_mut(&account_of(partner, price.currency));
        if let Some(Some(available)) = account {
            *available -= sign * price.minor;
        }
    }
}

/// Holds prices in the locked accounts of their partners, which changes each account once.
pub async fn hold(
    transaction: &mut Transaction<'_>,
    prices: impl Iterator<Item = (PartnerId, Amount)>,
) -> Result<()> {
    let mut held: BTreeMap<AccountOf, i64> = BTreeMap::new();
    for (partner, price) in prices {
        *held.entry(account_of(partner, price.currency)).or_default() += price.minor;
    }
    if held.is_empty() {
        return Ok(());
    }
    let (accounts, amounts): (Vec<AccountOf>, Vec<i64>) = held.into_iter().unzip();
    let (partners, currencies): (Vec<Uuid>, Vec<String>) = accounts.into_iter().unzip();
    let hold = sqlx::query!(
        "UPDATE accounts a SET held = a.held + new.amount
         FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS new (partner_id, currency, amount)
         WHERE a.partner_id = ANY ($1) AND a.partner_id = new.partner_id AND a.currency = new.currency",
        &partners,
        &currencies,
        &amounts,
    );
    hold.execute(&mut **transaction).await?;
    Ok(())
}

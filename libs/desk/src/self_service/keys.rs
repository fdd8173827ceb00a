//! The further keys of a partner, as it makes, changes and ends them itself.

use accounts::partners::{
    self,
    keys::{self, FurtherKey, KeyUpdate, NewKey},
};
use domain::{Command, KeyId, KeyTerms, PartnerId, partner_key::NotGiven};
use pg::{Result, Transaction, TransactionEnd, actions::ActionChange, transaction};
use sqlx::PgConnection;
use vault::Vault;

use super::record_change_of_keys;

/// What became of a change of a key that another key has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyChanged {
    Done,
    /// The partner has no such further key.
    Unknown,
    /// The partner has the maximum number of keys.
    TooMany,
    /// The key that signed the request may not give these terms.
    NotGiven(NotGiven),
    /// The key that signed the request has ended meanwhile.
    Ended,
}

/// Locks the partner and says whether the key that signed the request, which has this access key,
/// may give these terms now. A key that was ended is known to ingress for half a second more, and
/// must not leave another one behind.
async fn may_give(
    transaction: &mut Transaction<'_>,
    partner_id: PartnerId,
    signed_by: &str,
    terms: &KeyTerms,
) -> Result<std::result::Result<(), KeyChanged>> {
    let own = keys::terms_now(transaction, partner_id, signed_by).await?;
    Ok(match own {
        None => Err(KeyChanged::Ended),
        Some(own) => own.may_give(terms).map_err(KeyChanged::NotGiven),
    })
}

/// Makes a further key, and records that.
pub async fn create_key(
    connection: &mut PgConnection,
    vault: &Vault,
    signed_by: &str,
    new: &NewKey<'_>,
) -> Result<KeyChanged> {
    transaction!(connection, "keys::create_key", |transaction| {
        let partner_id = new.partner_id;
        partners::lock(transaction, partner_id).await?;
        if let Err(refused) = may_give(transaction, partner_id, signed_by, new.terms).await? {
            return Ok(TransactionEnd::Rollback(refused));
        }
        if !keys::create(transaction, vault, new).await? {
            return Ok(TransactionEnd::Rollback(KeyChanged::TooMany));
        }
        let after = shown(transaction, partner_id, new.key_id).await?;
        let changed = ActionChange::created(after);
        record_change_of_keys(
            transaction,
            Command::KeyCreate,
            partner_id,
            signed_by,
            changed,
        )
        .await?;
        Ok(TransactionEnd::Commit(KeyChanged::Done))
    })
}

/// Changes a further key, and records that.
pub async fn change_key(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    signed_by: &str,
    key_id: KeyId,
    update: &KeyUpdate,
) -> Result<KeyChanged> {
    transaction!(connection, "keys::change_key", |transaction| {
        partners::lock(transaction, partner_id).await?;
        let Some(before) = one(transaction, partner_id, key_id).await? else {
            return Ok(TransactionEnd::Rollback(KeyChanged::Unknown));
        };
        let Some(wanted) = update.terms_of(&before) else {
            return Ok(TransactionEnd::Rollback(KeyChanged::NotGiven(
                NotGiven::Networks,
            )));
        };
        if let Err(refused) = may_give(transaction, partner_id, signed_by, &wanted).await? {
            return Ok(TransactionEnd::Rollback(refused));
        }
        let name = update.name.as_deref().unwrap_or(&before.name);
        keys::change(transaction, partner_id, key_id, name, &wanted).await?;
        let after = shown(transaction, partner_id, key_id).await?;
        let changed = ActionChange::between(before.shown(), after);
        record_change_of_keys(transaction, Command::KeySet, partner_id, signed_by, changed).await?;
        Ok(TransactionEnd::Commit(KeyChanged::Done))
    })
}

/// Ends a further key at once, and records that.
pub async fn end_key(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    signed_by: &str,
    key_id: KeyId,
) -> Result<KeyChanged> {
    transaction!(connection, "keys::end_key", |transaction| {
        partners::lock(transaction, partner_id).await?;
        let Some(before) = one(transaction, partner_id, key_id).await? else {
            return Ok(TransactionEnd::Rollback(KeyChanged::Unknown));
        };
        keys::end(transaction, partner_id, Some(&before.access_key)).await?;
        let changed = ActionChange::removed(before.shown());
        record_change_of_keys(transaction, Command::KeyEnd, partner_id, signed_by, changed).await?;
        Ok(TransactionEnd::Commit(KeyChanged::Done))
    })
}

async fn one(
    transaction: &mut Transaction<'_>,
    partner_id: PartnerId,
    key_id: KeyId,
) -> Result<Option<FurtherKey>> {
    let id = key_id.to_string();
    Ok(keys::list(transaction, partner_id, Some(&id)).await?.pop())
}

async fn shown(
    transaction: &mut Transaction<'_>,
    partner_id: PartnerId,
    key_id: KeyId,
) -> Result<serde_json::Value> {
    let found = one(transaction, partner_id, key_id).await?;
    Ok(found.map_or(serde_json::Value::Null, |key| key.shown()))
}

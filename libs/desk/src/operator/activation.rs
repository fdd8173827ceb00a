//! Shows an activation code to an operator of the console.

use accounts::profile::Profile;
use domain::TopupId;
use pg::{
    Result, TransactionEnd,
    actions::{ActionChange, Mode},
    transaction,
};
use sqlx::PgConnection;
use vault::Vault;

/// The profile of a ready eSIM, opened. That it was shown is recorded in the same transaction, so
/// nobody sees a code without a record. `None` if there is no such eSIM, or it was erased.
pub async fn code(
    connection: &mut PgConnection,
    vault: &Vault,
    topup_id: &TopupId,
    mode: Mode<'_>,
) -> Result<Option<Profile>> {
    transaction!(connection, "activation::code", |transaction| {
        let query = sqlx::query_scalar!(
            r#"SELECT profile AS "profile!" FROM esims
           WHERE topup_id = $1 AND ready_at IS NOT NULL AND profile IS NOT NULL"#,
            topup_id.as_str(),
        );
        let Some(sealed) = query.fetch_optional(&mut **transaction).await? else {
            return Ok(TransactionEnd::Rollback(None));
        };
        let profile = Profile::open_of_anybody(vault, topup_id, &sealed)?;
        mode.record(transaction, 0, ActionChange::nothing()).await?;
        Ok(mode.end(Some(profile)))
    })
}

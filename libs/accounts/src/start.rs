//! What every stage checks at its start: that the database responds, that its schema serves the
//! program, and that the master keys open the stored secrets.

use std::time::Duration;

use pg::{
    Database, Error,
    schema::{SchemaError, check},
};
use runtime::outage;
use sqlx::PgConnection;
use vault::Vault;

use crate::partners;

/// Waits until the database responds, which it tries twice a second, makes the checks of
/// [`check_all`], and commits the first pulse. Every stage begins with it. An error that waiting
/// cannot remove, such as an old schema, is returned at once. This function has no time limit: the
/// caller drops it when the process stops.
pub async fn wait(database: &Database, vault: &Vault) -> Result<(), SchemaError> {
    loop {
        let checking = async {
            database
                .run(async |connection| check_all(connection, vault).await)
                .await?;
            // Without its pulse a stage would not notice that commits were lost.
            database.pulse().await?;
            Ok(())
        };
        match checking.await {
            Err(SchemaError::Store(error)) => {
                if let Some(others) = outage::DATABASE.line(error.is_transient()) {
                    tracing::warn!(%error, others, "cannot use the database yet; the start waits and tries again twice a second");
                }
            }
            result => return result,
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Checks the settings of the session, the version of the schema, and that the master keys open the
/// stored secrets.
async fn check_all(connection: &mut PgConnection, vault: &Vault) -> Result<(), SchemaError> {
    check(connection).await?;
    match partners::check_master_key(connection, vault).await {
        Err(Error::Vault(wrong)) => Err(SchemaError::MasterKey(wrong)),
        result => Ok(result?),
    }
}

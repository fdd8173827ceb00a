//! Migrations, applied by `esimctl migrate`, and the check that every service makes at its start.

use std::time::Duration;

use sqlx::{PgConnection, migrate::Migrator};

use crate::{
    Database, Error,
    vault::{Vault, VaultError},
};

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// The schema isn't the one this version works on.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// Migrations of this version haven't been applied.
    #[error("the database schema is at version {found}, this version needs {needed}: run `esimctl migrate`")]
    Behind {
        /// The newest migration that was applied, 0 if none was.
        found: i64,
        /// The newest migration of this version.
        needed: i64,
    },
    /// Somebody applied migrations that this version doesn't know.
    #[error(
        "the database schema is at version {found}, newer than the {known} that this version knows: deploy a newer version"
    )]
    Ahead {
        /// The newest migration that was applied.
        found: i64,
        /// The newest migration of this version.
        known: i64,
    },
    /// The master key doesn't open the stored secrets.
    #[error("the master key is not the one that the stored secrets were encrypted under: {0}")]
    MasterKey(VaultError),
    /// The database doesn't answer.
    #[error(transparent)]
    Store(#[from] Error),
}

/// The newest migration of this version.
pub fn latest() -> i64 {
    MIGRATIONS
        .iter()
        .map(|migration| migration.version)
        .max()
        .unwrap_or_default()
}

/// Applies what is missing; safe to run again and by several at once.
pub async fn migrate(connection: &mut PgConnection) -> Result<(), sqlx::migrate::MigrateError> {
    MIGRATIONS.run(connection).await
}

/// Waits until the database is there and checks it like [`check_all`], trying again twice a second.
/// Ends early only for a schema of another version or another master key; the caller stops waiting when
/// the process shall stop.
pub async fn wait(database: &Database, vault: &Vault) -> Result<(), SchemaError> {
    loop {
        let checked = database.run(async |connection| check_all(connection, vault).await);
        match checked.await {
            Err(SchemaError::Store(error)) => tracing::warn!(%error, "waiting for the database"),
            result => return result,
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Whether the database has the schema of this version, and secrets that the master key opens.
pub async fn check_all(connection: &mut PgConnection, vault: &Vault) -> Result<(), SchemaError> {
    check(connection).await?;
    match crate::partners::check_master_key(connection, vault).await {
        Err(Error::Vault(wrong)) => Err(SchemaError::MasterKey(wrong)),
        result => Ok(result?),
    }
}

/// Whether the database has exactly the schema of this version.
pub async fn check(connection: &mut PgConnection) -> Result<(), SchemaError> {
    let found = applied(connection).await?;
    let known = latest();
    match found.cmp(&known) {
        std::cmp::Ordering::Less => Err(SchemaError::Behind { found, needed: known }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(SchemaError::Ahead { found, known }),
    }
}

/// Not a checked statement: the table belongs to the migrator and may not exist yet.
async fn applied(connection: &mut PgConnection) -> Result<i64, Error> {
    let exists: bool = sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await?;
    if !exists {
        return Ok(0);
    }
    let version = sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success")
        .fetch_one(connection)
        .await?;
    Ok(version)
}

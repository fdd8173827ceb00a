//! The version of the schema, and whether this program may run on it.

use sqlx::{AssertSqlSafe, PgConnection, Row, migrate::Migrator};
use vault::VaultError;

use crate::{Error, Result, config::STARTUP_OPTIONS, primary::Unfit};

pub(super) static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// Why this program cannot work with the database. Except for [`SchemaError::Store`], waiting does
/// not help.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error(
        "the database schema is at version {found}, this version needs {needed}: run `esimctl migrate`"
    )]
    Behind {
        /// The newest applied migration, 0 if there is none.
        found: i64,
        needed: i64,
    },
    #[error(
        "the database schema is at version {found}, which serves programs from schema {serves} on; this version \
         knows schema {known}: deploy a newer version"
    )]
    Ahead { found: i64, serves: i64, known: i64 },
    #[error(
        "the database was made by an earlier version, whose schema no program reads any more (no installation of one \
         exists): name an empty database in DATABASE_URL, run `esimctl migrate`, and apply partners and options again"
    )]
    BeforeBaseline,
    #[error(
        "a connection pooler drops the session settings (statement_timeout, enable_seqscan): DATABASE_URL must name \
         PostgreSQL itself, not PgBouncer or another pooler; DATABASE_CONNECTIONS bounds the connections"
    )]
    Pooler,
    #[error("the stored secrets are encrypted under another master key: {0}")]
    MasterKey(VaultError),
    /// Only variants that [an operator has to mend](Unfit::needs_operator).
    #[error("PostgreSQL must not be used: {0}")]
    Unfit(Unfit),
    #[error(transparent)]
    Store(Error),
}

impl From<Error> for SchemaError {
    fn from(error: Error) -> Self {
        let refused = match &error {
            Error::Database { cause, .. } => Self::refused(cause),
            Error::Unfit(unfit) if unfit.needs_operator() => Some(Self::Unfit(unfit.clone())),
            _ => None,
        };
        refused.unwrap_or(Self::Store(error))
    }
}

impl SchemaError {
    /// Returns [`SchemaError::Pooler`] if a connection pooler refused the session settings when the
    /// connection was made.
    pub fn refused(error: &sqlx::Error) -> Option<Self> {
        let error = error.as_database_error()?;
        let refused = error.code().as_deref() == Some("08P01")
            && error.message().contains("startup parameter");
        refused.then_some(Self::Pooler)
    }
}

pub fn migrations() -> &'static Migrator {
    &MIGRATIONS
}

/// The version of the newest migration that this program knows.
pub fn latest() -> i64 {
    newest(&MIGRATIONS)
}

pub(super) fn newest(migrations: &Migrator) -> i64 {
    migrations
        .iter()
        .map(|migration| migration.version)
        .max()
        .unwrap_or_default()
}

/// Checks that the session has its settings, which a pooler would have dropped, and that the schema
/// serves this program. Returns the schema's version.
pub async fn check(connection: &mut PgConnection) -> Result<i64, SchemaError> {
    let (name, expected) = STARTUP_OPTIONS;
    // This is not a prepared statement, because through a pooler another session may already use
    // its name. Then the error would not say that there is a pooler.
    let session = format!("SELECT current_setting('{name}', true)");
    let applied: Option<String> = sqlx::raw_sql(AssertSqlSafe(session))
        .fetch_one(&mut *connection)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(Error::from)?;
    if applied.as_deref() != Some(expected) {
        return Err(SchemaError::Pooler);
    }
    serves(connection, latest()).await
}

/// Returns the version of the schema if a program that knows the schema `known` may run on it.
pub(super) async fn serves(connection: &mut PgConnection, known: i64) -> Result<i64, SchemaError> {
    let found = applied(connection).await?;
    if found < known {
        return Err(SchemaError::Behind {
            found,
            needed: known,
        });
    }
    if !has_baseline(connection).await? {
        return Err(SchemaError::BeforeBaseline);
    }
    let serves = oldest_served(connection, known).await?.unwrap_or(known);
    if serves > known {
        return Err(SchemaError::Ahead {
            found,
            serves,
            known,
        });
    }
    Ok(found)
}

/// The newest applied migration; 0 if there is none. The tables of the migrator do not exist in an
/// empty database, so the first of them is looked for. That is also why these statements are not
/// checked at compile time.
async fn applied(connection: &mut PgConnection) -> Result<i64> {
    let exists: bool = sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await?;
    if !exists {
        return Ok(0);
    }
    let version =
        sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success")
            .fetch_one(connection)
            .await?;
    Ok(version)
}

/// Whether the first migration that was applied is this program's, from which all others go on.
async fn has_baseline(connection: &mut PgConnection) -> Result<bool> {
    let applied: Option<Vec<u8>> =
        sqlx::query_scalar("SELECT checksum FROM _sqlx_migrations WHERE version = 1")
            .fetch_optional(connection)
            .await?;
    let ours = MIGRATIONS.iter().find(|migration| migration.version == 1);
    Ok(ours.map(|migration| &*migration.checksum) == applied.as_deref())
}

/// The oldest program that all applied migrations newer than `known` serve; `None` if no applied
/// migration is newer. A migration without a row in `_schema_serves` serves its own version only.
async fn oldest_served(connection: &mut PgConnection, known: i64) -> Result<Option<i64>> {
    let oldest = "SELECT max(coalesce(s.serves, m.version))
                  FROM _sqlx_migrations m LEFT JOIN _schema_serves s ON s.version = m.version
                  WHERE m.success AND m.version > $1";
    Ok(sqlx::query_scalar(oldest)
        .bind(known)
        .fetch_one(connection)
        .await?)
}

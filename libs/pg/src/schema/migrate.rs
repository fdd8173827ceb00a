//! Applies migrations while the services run.
//!
//! `ALTER TABLE` needs a lock that conflicts with every query of the table, and also with a dump.
//! While it waits for that lock, all later queries of the table wait behind it, so one long dump
//! could stop the whole service. Therefore each wait for a lock is short (`lock_timeout`). When it
//! ends, the migrator pauses, so that the waiting queries run, and then tries again.
//!
//! The head of a migration file says which programs it serves: `-- serves: 5` means that programs
//! which know schema 5 or a newer one may run on it. An index on an existing table is built by a
//! migration of its own, which begins with `-- no-transaction` and holds one `CREATE INDEX
//! CONCURRENTLY`. `libs/store/tests/store/migrations.rs` checks the files against these rules.
//!
//! `esimctl migrate` calls [`apply`] and shows each wait. [`migrate`] is the same with default
//! patience, for tests and tools.

use std::time::{Duration, Instant};

use sqlx::{
    Connection, PgConnection,
    migrate::{Migrate, MigrateError, Migration, Migrator},
};

use super::{
    roles::grant,
    version::{MIGRATIONS, SchemaError, latest, newest, serves},
};
use crate::{
    Error,
    sessions::{self, BlockingSession},
};

const TABLE: &str = "_sqlx_migrations";
/// The shortest timeout; PostgreSQL takes 0 for none.
const SHORTEST: Duration = Duration::from_millis(1);
/// PostgreSQL's longest timeout is about 24 days.
const LONGEST: Duration = Duration::from_hours(24 * 24);

const UNFINISHED_INDEX: &str = ". The build was cancelled, and what it has built is marked invalid, so no query uses it; \
                                the next run drops it and builds the index anew";

/// How the migrator waits for locks.
#[derive(Clone, Copy, Debug)]
pub struct LockPatience {
    /// The longest wait for one lock. Queries of the same table may have to wait as long.
    pub lock_timeout: Duration,
    /// How long one migration is tried again before the migrator gives up. The build of an index
    /// waits for the end of older transactions instead, also for as long.
    pub give_up: Duration,
}

impl Default for LockPatience {
    fn default() -> Self {
        Self {
            lock_timeout: Duration::from_millis(500),
            give_up: Duration::from_mins(15),
        }
    }
}

impl LockPatience {
    /// The pause between two tries. It is four times as long as a try, so queries are held up for
    /// at most a fifth of the time.
    fn pause(self) -> Duration {
        self.lock_timeout * 4
    }
}

/// A migration that waits for a lock.
#[derive(Clone, Debug)]
pub struct Wait {
    /// The migration; `None` while another migrator holds the lock of all migrations.
    pub version: Option<i64>,
    /// The oldest open transaction of another session. It probably holds the lock, so it is shown
    /// to the operator.
    pub oldest_transaction: Option<BlockingSession>,
}

impl std::fmt::Display for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.version {
            Some(version) => write!(f, "migration {version} waits for a lock")?,
            None => write!(f, "another migrator is at work")?,
        }
        match &self.oldest_transaction {
            Some(transaction) => write!(f, "; oldest open transaction: {transaction}"),
            None => Ok(()),
        }
    }
}

/// Why a migration was not applied.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error(
        "the applied migration {0} differs from this program's: the database belongs to another program"
    )]
    Changed(i64),
    #[error(
        "{wait}; gave up after {waited:?} (--give-up){}. End that transaction, or migrate again later",
        if *.unfinished_index { UNFINISHED_INDEX } else { "" }
    )]
    Locked {
        wait: Wait,
        waited: Duration,
        /// The wait was that of an index build, which was cancelled.
        unfinished_index: bool,
    },
    #[error("migration {version} failed")]
    Failed { version: i64, source: sqlx::Error },
    #[error(transparent)]
    Migrator(#[from] MigrateError),
}

impl From<sqlx::Error> for MigrationError {
    fn from(error: sqlx::Error) -> Self {
        Self::Schema(Error::from(error).into())
    }
}

/// Applies the missing migrations of this program and grants the database roles their privileges.
/// Several processes may do so at once: a lock lets one after the other work.
pub async fn migrate(connection: &mut PgConnection) -> Result<i64, MigrationError> {
    let version = apply(connection, &MIGRATIONS, LockPatience::default(), |_| {}).await?;
    // If the schema is newer than this program, a newer migrator has granted what its own programs
    // need, and an older grant would take that away.
    if version <= latest() {
        grant(connection).await.map_err(SchemaError::from)?;
    }
    Ok(version)
}

/// Applies those of `migrations` that are missing, and returns the version of the schema. Calls
/// `waiting` for every wait. A newer schema that serves the newest of `migrations` stays as it is.
pub async fn apply(
    connection: &mut PgConnection,
    migrations: &Migrator,
    patience: LockPatience,
    mut waiting: impl FnMut(&Wait),
) -> Result<i64, MigrationError> {
    set_lock_timeout(connection, patience.lock_timeout).await?;
    // JIT compilation would only cost time, because each statement runs once. It also fails on
    // servers that lack the library of the compiler.
    sqlx::query("SET jit = off")
        .execute(&mut *connection)
        .await?;
    let mut tries = Tries {
        patience,
        began: Instant::now(),
        waiting: &mut waiting,
    };
    while let Err(error) = connection.lock().await {
        tries.again(connection, None, error).await?;
    }
    let applied = apply_missing(connection, migrations, &mut tries).await;
    let unlocked = connection.unlock().await;
    sqlx::raw_sql("RESET lock_timeout; RESET jit")
        .execute(&mut *connection)
        .await?;
    let version = applied?;
    unlocked?;
    Ok(version)
}

async fn apply_missing<F: FnMut(&Wait)>(
    connection: &mut PgConnection,
    migrations: &Migrator,
    tries: &mut Tries<'_, F>,
) -> Result<i64, MigrationError> {
    connection.ensure_migrations_table(TABLE).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS _schema_serves (version bigint PRIMARY KEY, serves bigint NOT NULL)")
        .execute(&mut *connection)
        .await?;
    let applied = connection.list_applied_migrations(TABLE).await?;
    for migration in migrations.iter() {
        match applied.iter().find(|one| one.version == migration.version) {
            // The baseline never changes, so another text of it is that of an earlier version.
            Some(applied) if applied.checksum != migration.checksum && migration.version == 1 => {
                return Err(SchemaError::BeforeBaseline.into());
            }
            Some(applied) if applied.checksum != migration.checksum => {
                return Err(MigrationError::Changed(migration.version));
            }
            Some(_) => continue,
            None => {}
        }
        tries.began = Instant::now();
        while let Err(error) = apply_one(connection, migration, tries).await {
            let again = tries.again(connection, Some(migration.version), error);
            again.await.map_err(|error| match error {
                MigrationError::Locked { wait, waited, .. } => MigrationError::Locked {
                    wait,
                    waited,
                    unfinished_index: migration.no_tx,
                },
                other => other,
            })?;
        }
    }
    Ok(serves(connection, newest(migrations)).await?)
}

async fn apply_one<F>(
    connection: &mut PgConnection,
    migration: &Migration,
    tries: &Tries<'_, F>,
) -> Result<(), MigrateError> {
    if migration.no_tx {
        drop_unfinished_indexes(connection, migration).await?;
        record_served(connection, migration).await?;
        // Such a statement blocks no other one while it waits, so it may wait for as long as the
        // migrator may try, for example for the length of a dump. PostgreSQL applies the timeout to
        // the wait for older transactions, too: it cancels the build, which then has waited for at
        // least the rest of the time, so there is no other try.
        let rest = tries.patience.give_up.saturating_sub(tries.began.elapsed());
        set_lock_timeout(connection, rest.max(SHORTEST)).await?;
        let applied = connection.apply(TABLE, migration).await;
        set_lock_timeout(connection, tries.patience.lock_timeout).await?;
        applied?;
        return Ok(());
    }
    let mut transaction = connection.begin().await?;
    record_served(&mut transaction, migration).await?;
    transaction.apply(TABLE, migration).await?;
    Ok(transaction.commit().await?)
}

/// The oldest program that the migration serves. A migration without a line `-- serves: N` serves
/// its own version only.
fn oldest_served(migration: &Migration) -> i64 {
    let mut comments = migration
        .sql
        .as_str()
        .lines()
        .take_while(|line| line.starts_with("--"));
    comments
        .find_map(|line| line.strip_prefix("-- serves:")?.trim().parse().ok())
        .unwrap_or(migration.version)
}

/// Records which programs the migration serves. This happens before the migration counts as
/// applied, so that a session that sees the migration also sees whom it serves.
async fn record_served(
    connection: &mut PgConnection,
    migration: &Migration,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO _schema_serves (version, serves) VALUES ($1, $2)
         ON CONFLICT (version) DO UPDATE SET serves = excluded.serves",
    )
    .bind(migration.version)
    .bind(oldest_served(migration))
    .execute(connection)
    .await
    .map(drop)
}

/// Drops what is left of a failed build: `CREATE INDEX CONCURRENTLY` leaves an invalid index under
/// the name, and the next try would fail because the name is taken. Only invalid indexes whose name
/// occurs in this migration are dropped; others are not ours to judge.
async fn drop_unfinished_indexes(
    connection: &mut PgConnection,
    migration: &Migration,
) -> Result<(), sqlx::Error> {
    let unfinished: Vec<(String, String)> = sqlx::query_as(
        "SELECT c.relname, format('DROP INDEX CONCURRENTLY %s', c.oid::regclass)
         FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE NOT i.indisvalid",
    )
    .fetch_all(&mut *connection)
    .await?;
    let named = |name: &str| {
        let words = migration.sql.as_str().split_ascii_whitespace();
        words
            .into_iter()
            .any(|word| word.trim_end_matches(';') == name)
    };
    for (name, drop) in unfinished {
        if named(&name) {
            sqlx::raw_sql(sqlx::AssertSqlSafe(drop))
                .execute(&mut *connection)
                .await?;
        }
    }
    Ok(())
}

async fn set_lock_timeout(
    connection: &mut PgConnection,
    timeout: Duration,
) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT set_config('lock_timeout', $1, false)")
        .bind(format!("{}ms", timeout.min(LONGEST).as_millis()))
        .execute(connection)
        .await
        .map(drop)
}

struct Tries<'a, F> {
    patience: LockPatience,
    began: Instant,
    waiting: &'a mut F,
}

impl<F: FnMut(&Wait)> Tries<'_, F> {
    /// Pauses before another try. Returns the error if another try would not help, or if the time
    /// for tries is over.
    async fn again(
        &mut self,
        connection: &mut PgConnection,
        version: Option<i64>,
        error: MigrateError,
    ) -> Result<(), MigrationError> {
        let cause = match error {
            MigrateError::ExecuteMigration(cause, _) | MigrateError::Execute(cause) => cause,
            other => return Err(other.into()),
        };
        // 55P03: the lock was not available within `lock_timeout`. 40P01: a deadlock.
        let locked = cause
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code)
            .is_some_and(|code| ["55P03", "40P01"].contains(&code.as_ref()));
        if !locked {
            return Err(match version {
                Some(version) => MigrationError::Failed {
                    version,
                    source: cause,
                },
                None => cause.into(),
            });
        }
        let wait = Wait {
            version,
            oldest_transaction: sessions::oldest_transaction(connection).await?,
        };
        let waited = self.began.elapsed();
        if waited + self.patience.pause() > self.patience.give_up {
            return Err(MigrationError::Locked {
                wait,
                waited,
                unfinished_index: false,
            });
        }
        (self.waiting)(&wait);
        tokio::time::sleep(self.patience.pause()).await;
        Ok(())
    }
}

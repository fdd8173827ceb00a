//! Settings of the database and the master key, shared by all programs.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use secrecy::{ExposeSecret, SecretString};
use sqlx::{ConnectOptions, postgres::PgConnectOptions};

use crate::{
    Database,
    vault::{Vault, VaultError},
};

/// The address of the database.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "PostgreSQL")]
pub struct DatabaseConfig {
    /// PostgreSQL's URL, e.g. `postgres://user:password@host:5432/database`; not that of a connection pooler
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
}

/// The database, the connections of a service and their deadline.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "PostgreSQL")]
pub struct PoolConfig {
    /// The address.
    #[command(flatten)]
    pub server: DatabaseConfig,
    /// The most connections that this process opens
    #[arg(long, env = "DATABASE_CONNECTIONS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub database_connections: u32,
    /// Longest time of a statement; then the server ends it. If no response arrives within 2 s more, the
    /// connection is closed
    #[arg(long, env = "DATABASE_TIMEOUT", default_value = "8s", value_parser = database_timeout)]
    pub database_timeout: Duration,
}

/// The sweep finds a row only if its insert ended within the first lease of a placement, 10 s.
const LONGEST_STATEMENT: Duration = Duration::from_secs(9);

fn database_timeout(text: &str) -> Result<Duration, String> {
    let timeout =
        humantime::parse_duration(text).map_err(|error| format!("{error}; write it like `8s` or `500ms`"))?;
    if !(Duration::from_millis(100)..=LONGEST_STATEMENT).contains(&timeout) {
        return Err("must be from 100ms to 9s".into());
    }
    Ok(timeout)
}

/// Every statement finds its rows by an index, also without this setting once tables have grown: `tests/store/plans.rs`.
/// An empty table, as due tables usually are, would suggest a sequential scan, and a cached plan keeps it when a backlog
/// comes. JIT would only cost time.
const PLANS: [(&str, &str); 2] = [("enable_seqscan", "off"), ("jit", "off")];

/// A setting of ours that every session has. A pooler that drops `options` drops it with the others, so
/// [`crate::schema::check`] finds it missing.
pub(crate) const STARTUP_OPTIONS: (&str, &str) = ("esim.startup_options", "kept");

/// `DATABASE_URL` can't be parsed. The error doesn't show it: it holds a password.
#[derive(Debug, thiserror::Error)]
#[error("DATABASE_URL is not of the form postgres://user:password@host:port/database")]
pub struct BadDatabaseUrl;

impl DatabaseConfig {
    /// The options of a connection; the server shows `application` for it.
    pub fn options(&self, application: &str) -> Result<PgConnectOptions, BadDatabaseUrl> {
        // sqlx takes any scheme.
        let url = self.database_url.expose_secret();
        if !["postgres://", "postgresql://"]
            .iter()
            .any(|scheme| url.starts_with(scheme))
        {
            return Err(BadDatabaseUrl);
        }
        let options: PgConnectOptions = url.parse().map_err(|_: sqlx::Error| BadDatabaseUrl)?;
        // The server can log slow statements; whole statements in our log are noise.
        let options = options.application_name(application).options([STARTUP_OPTIONS]);
        Ok(options.disable_statement_logging())
    }
}

impl PoolConfig {
    /// The options of a connection with the session settings that the statements rely on.
    pub fn session(&self, application: &str) -> Result<PgConnectOptions, BadDatabaseUrl> {
        let limit = format!("{}ms", self.database_timeout.as_millis());
        let options = self.server.options(application)?;
        Ok(options.options(PLANS).options([("statement_timeout", limit)]))
    }

    /// A pool that connects at its first use; the server shows `application` for it.
    pub fn open(&self, application: &str) -> Result<Database, BadDatabaseUrl> {
        let session = self.session(application)?;
        Ok(Database::open(
            session,
            self.database_connections,
            self.database_timeout,
        ))
    }
}

/// The keys that secrets at rest are encrypted under.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Master key")]
pub struct MasterKeyConfig {
    /// Keys of the form `<id>:<Base64 of 32 bytes>`, separated by commas; the first encrypts
    #[arg(long, env = "MASTER_KEY", hide_env_values = true)]
    pub master_key: Option<SecretString>,
    /// A file with such keys, one per line, instead of `MASTER_KEY`
    #[arg(long, env = "MASTER_KEY_FILE")]
    pub master_key_file: Option<PathBuf>,
}

/// The master keys are missing or unusable.
#[derive(Debug, thiserror::Error)]
pub enum MasterKeyError {
    /// Both settings are given.
    #[error("both MASTER_KEY and MASTER_KEY_FILE are set: set one")]
    Both,
    /// The file can't be read.
    #[error("MASTER_KEY_FILE={path}: {cause}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// The keys can't be used.
    #[error("{setting}: {cause}")]
    Vault {
        /// Where they are.
        setting: &'static str,
        /// Why.
        cause: VaultError,
    },
}

impl MasterKeyConfig {
    /// The vault under these keys.
    pub fn vault(&self) -> Result<Vault, MasterKeyError> {
        let (setting, keys) = match (&self.master_key, &self.master_key_file) {
            (Some(_), Some(_)) => return Err(MasterKeyError::Both),
            (Some(keys), None) => ("MASTER_KEY", keys.clone()),
            (None, Some(path)) => {
                let keys = std::fs::read_to_string(path).map_err(|cause| MasterKeyError::Unreadable {
                    path: path.clone(),
                    cause,
                })?;
                ("MASTER_KEY_FILE", keys.into())
            }
            (None, None) => ("MASTER_KEY", SecretString::default()),
        };
        Vault::parse(&keys).map_err(|cause| MasterKeyError::Vault { setting, cause })
    }
}

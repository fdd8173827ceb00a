//! Settings of the database and the master key, shared by all programs.

use std::{ffi::OsString, fs::File, io, os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};

use clap::Args;
use secrecy::{ExposeSecret, SecretString};
use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use url::Url;

use crate::{
    Database,
    vault::{Keyring, Vault, VaultError},
};

/// The address of the database.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "PostgreSQL")]
pub struct DatabaseConfig {
    /// URL of PostgreSQL itself, not of a connection pooler, e.g. `postgres://user:password@host:5432/database`
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
}

/// The database, the connections of a service and their deadline.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "PostgreSQL")]
pub struct PoolConfig {
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

/// A statement must end within the first lease of a placement, 10 s. The sweep's fence sees every transaction that
/// has begun to write, however late it commits. A transaction that started earlier and has not written yet has no id,
/// so only this limit keeps it from inserting rows that the sweep has already passed.
const LONGEST_STATEMENT: Duration = Duration::from_secs(9);

fn database_timeout(text: &str) -> Result<Duration, String> {
    let timeout = humantime::parse_duration(text).map_err(|error| format!("{error}; write it like `8s` or `500ms`"))?;
    if !(Duration::from_millis(100)..=LONGEST_STATEMENT).contains(&timeout) {
        return Err("must be from 100ms to 9s".into());
    }
    Ok(timeout)
}

/// Every statement finds its rows by an index, on large tables even without `enable_seqscan = off`
/// (`tests/store/plans.rs`). For an empty due table the planner would choose a sequential scan, and a cached plan would
/// keep it during a backlog. Planning takes several times as long as executing a small batch, so a connection plans each
/// statement once. JIT would only cost time.
const PLANS: [(&str, &str); 3] = [("enable_seqscan", "off"), ("plan_cache_mode", "force_generic_plan"), ("jit", "off")];

/// A setting of every session: a pooler drops it with `options`, so [`crate::schema::check`] finds it missing.
pub(crate) const STARTUP_OPTIONS: (&str, &str) = ("esim.startup_options", "kept");

/// No login can be made of the settings.
#[derive(Debug, thiserror::Error)]
pub enum BadDatabase {
    /// `DATABASE_URL` can't be parsed. The error doesn't show it: it holds a password.
    #[error("DATABASE_URL is not of the form postgres://user:password@host:port/database")]
    Url,
    #[error(
        "PGPASSFILE={} can't be read: {cause}. Make it readable, or mount the whole URL with its password and name that \
         file in DATABASE_URL_FILE", .path.display()
    )]
    UnreadablePasswords { path: PathBuf, cause: io::Error },
    #[error(
        "PGPASSFILE={} has mode {mode:04o}, and its passwords count only if none but its owner may use it: set mode 0600. \
         Where the mode is given, as in a mounted secret, mount the whole URL with its password and name that file in \
         DATABASE_URL_FILE", .path.display()
    )]
    OpenPasswords { path: PathBuf, mode: u32 },
}

impl DatabaseConfig {
    /// The options of a connection; the server shows `application` for it.
    pub fn options(&self, application: &str) -> Result<PgConnectOptions, BadDatabase> {
        // sqlx takes any scheme.
        let url = self.database_url.expose_secret();
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(BadDatabase::Url);
        }
        let url: Url = url.parse().map_err(|_| BadDatabase::Url)?;
        check_passwords(&url, |name| std::env::var_os(name))?;
        let options = PgConnectOptions::from_url(&url).map_err(|_: sqlx::Error| BadDatabase::Url)?;
        // The server can log slow statements; whole statements in our log are noise.
        Ok(options.application_name(application).options([STARTUP_OPTIONS]).disable_statement_logging())
    }
}

/// Refuses a `PGPASSFILE` that a login would need and sqlx would ignore: it warns once and connects
/// without a password, and the server's 28P01 then blames a password that nobody gave.
fn check_passwords(url: &Url, variable: impl Fn(&str) -> Option<OsString>) -> Result<(), BadDatabase> {
    let in_url = url.password().is_some() || url.query_pairs().any(|(key, _)| key == "password");
    let Some(path) = variable("PGPASSFILE").filter(|path| !path.is_empty()).map(PathBuf::from) else {
        return Ok(());
    };
    if in_url || variable("PGPASSWORD").is_some() {
        return Ok(());
    }
    // Opened as sqlx does: what counts is the file behind the symlinks of a mounted secret.
    let mode = match File::open(&path).and_then(|file| file.metadata()) {
        Ok(metadata) => metadata.permissions().mode() & 0o7777,
        Err(cause) => return Err(BadDatabase::UnreadablePasswords { path, cause }),
    };
    if mode & 0o077 != 0 {
        return Err(BadDatabase::OpenPasswords { path, mode });
    }
    Ok(())
}

/// How much longer than a statement a transaction may be idle before the server ends it.
const IDLE_SPARE: Duration = Duration::from_secs(2);

impl PoolConfig {
    /// The options of a connection with the session settings that the statements rely on.
    pub fn session(&self, application: &str) -> Result<PgConnectOptions, BadDatabase> {
        let limit = format!("{}ms", self.database_timeout.as_millis());
        let options = self.server.options(application)?;
        // A host that vanishes in a transaction must not keep its locks, nor the sweep's fence, for hours.
        let idle = format!("{}ms", (self.database_timeout + IDLE_SPARE).as_millis());
        let limits = [
            ("statement_timeout", limit.as_str()),
            ("idle_in_transaction_session_timeout", idle.as_str()),
            ("tcp_keepalives_idle", "30"),
            ("tcp_keepalives_interval", "10"),
            ("tcp_keepalives_count", "3"),
        ];
        Ok(options.options(PLANS).options(limits))
    }

    /// A pool that connects at its first use; the server shows `application` for it.
    pub fn open(&self, application: &str) -> Result<Database, BadDatabase> {
        Ok(Database::open(self.session(application)?, self.database_connections, self.database_timeout))
    }
}

/// The keys that secrets at rest are encrypted under. A program uses the keys of its own purposes only. Each text holds
/// keys of the form `<id>:<Base64 of 32 bytes>`, separated by commas or lines; the first encrypts.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Master key")]
pub struct MasterKeyConfig {
    /// Keys of the form `<id>:<Base64 of 32 bytes>`, separated by commas or lines; the first encrypts
    #[arg(long, env = "MASTER_KEY", hide_env_values = true)]
    pub master_key: Option<SecretString>,

    /// The keys for partners' request keys [default: those of `MASTER_KEY`]
    #[arg(long, env = "MASTER_KEY_PARTNERS", hide_env_values = true)]
    pub master_key_partners: Option<SecretString>,

    /// The keys for webhook secrets [default: those of `MASTER_KEY`]
    #[arg(long, env = "MASTER_KEY_WEBHOOKS", hide_env_values = true)]
    pub master_key_webhooks: Option<SecretString>,

    /// The keys for profiles [default: those of `MASTER_KEY`]
    #[arg(long, env = "MASTER_KEY_PROFILES", hide_env_values = true)]
    pub master_key_profiles: Option<SecretString>,
}

/// The master keys are missing or unusable.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {cause}")]
pub struct MasterKeyError {
    pub setting: &'static str,
    pub cause: VaultError,
}

impl MasterKeyConfig {
    /// The vault with the keys for these purposes; others are left out.
    pub fn vault(&self, rings: &[Keyring]) -> Result<Vault, MasterKeyError> {
        let none = SecretString::default();
        let mut keys: Vec<(Keyring, &SecretString)> = Vec::new();
        let mut setting = "MASTER_KEY";
        for ring in rings {
            let (own_setting, own) = match ring {
                Keyring::Partners => ("MASTER_KEY_PARTNERS", &self.master_key_partners),
                Keyring::Webhooks => ("MASTER_KEY_WEBHOOKS", &self.master_key_webhooks),
                Keyring::Profiles => ("MASTER_KEY_PROFILES", &self.master_key_profiles),
            };
            let text;
            (setting, text) = match own {
                Some(own) => (own_setting, own),
                None => ("MASTER_KEY", self.master_key.as_ref().unwrap_or(&none)),
            };
            // Each text is checked alone first, so that the error names its setting.
            Vault::of(&[(*ring, text)]).map_err(|cause| MasterKeyError { setting, cause })?;
            keys.push((*ring, text));
        }
        Vault::of(&keys).map_err(|cause| MasterKeyError { setting, cause })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::symlink,
        path::Path,
    };

    use super::*;

    /// A file in a volume as kubelet writes it: its name leads through `..data` to the folder of its
    /// version.
    fn mounted(volume: &Path, name: &str, mode: u32) -> PathBuf {
        let version = volume.join("..2026_01_02_03_04_05.1");
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join(name), "*:*:*:*:hush\n").unwrap();
        fs::set_permissions(version.join(name), Permissions::from_mode(mode)).unwrap();
        if !volume.join("..data").exists() {
            symlink("..2026_01_02_03_04_05.1", volume.join("..data")).unwrap();
        }
        symlink(format!("..data/{name}"), volume.join(name)).unwrap();
        volume.join(name)
    }

    fn check(url: &str, settings: &[(&str, &Path)]) -> Result<(), String> {
        let variable = |name: &str| settings.iter().find(|(known, _)| *known == name).map(|(_, path)| (*path).into());
        check_passwords(&url.parse().unwrap(), variable).map_err(|error| error.to_string())
    }

    #[test]
    fn a_password_file_that_would_be_ignored_is_refused() {
        const BARE: &str = "postgres://esim_ingress@esim-db-rw:5432/esim";
        let folder = tempfile::tempdir().unwrap();
        // What a secret volume with `fsGroup` has, whatever its `defaultMode` is.
        let open = mounted(folder.path(), "pgpass", 0o440);
        let refused = check(BARE, &[("PGPASSFILE", &open)]).unwrap_err();
        for part in [open.to_str().unwrap(), "mode 0440", "DATABASE_URL_FILE"] {
            assert!(refused.contains(part) && !refused.contains("hush"), "{part}: {refused}");
        }
        let missing = check(BARE, &[("PGPASSFILE", &folder.path().join("none"))]).unwrap_err();
        assert!(missing.contains("/none can't be read: No such file"), "{missing}");

        let owned = mounted(folder.path(), "owned", 0o600);
        assert_eq!(check(BARE, &[("PGPASSFILE", &owned)]), Ok(()));
        // Nothing would read it.
        assert_eq!(check(BARE, &[("PGPASSFILE", Path::new(""))]), Ok(()));
        assert_eq!(check(BARE, &[("PGPASSFILE", &open), ("PGPASSWORD", Path::new("given"))]), Ok(()));
        for url in ["postgres://user:given@host/esim", "postgres://user@host/esim?password=given"] {
            assert_eq!(check(url, &[("PGPASSFILE", &open)]), Ok(()), "{url}");
        }
    }
}

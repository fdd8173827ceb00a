//! Settings of the database and of the master keys, which all programs share.
//!
//! The structs are flattened into the `Config` of each program, so their doc comments are the text
//! of its `--help`. [`PoolConfig::open`] and [`MasterKeyConfig::vault`] turn them into a pool and a
//! vault. A setting that is missing or unusable stops the start with one line that names it.

use std::{
    ffi::OsString, fs::File, io, os::unix::fs::PermissionsExt, path::PathBuf, time::Duration,
};

use clap::Args;
use secrecy::{ExposeSecret, SecretString};
use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use url::Url;
use vault::{Keyring, Vault, VaultError};

use crate::{Database, primary::DurabilityConfig};

/// The address of the database.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "PostgreSQL")]
pub struct DatabaseConfig {
    /// URL of PostgreSQL itself, e.g. `postgres://user:password@host:5432/database`
    ///
    /// It must not be the URL of a connection pooler such as `PgBouncer`, because a pooler drops
    /// the session settings that the statements rely on. A program that finds them missing does not
    /// start.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
}

/// The database, the connections of a service and their deadline.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "PostgreSQL")]
pub struct PoolConfig {
    #[command(flatten)]
    pub server: DatabaseConfig,
    /// The maximum number of connections that this process opens
    ///
    /// While all of them are in use, a further statement waits for up to 3s and then fails. At low
    /// load a process opens only one or two. The sum over all replicas must stay below
    /// `max_connections` of the server.
    #[arg(long, env = "DATABASE_CONNECTIONS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub database_connections: u32,
    /// The maximum duration of a statement, from 100ms to 9s
    ///
    /// The server cancels a statement that takes longer. If no response arrives within 2s more, the
    /// connection is closed, and whether the statement took effect is unknown. Longer times are
    /// refused: 10s after an order was stored, provisioners look for its work in case its message
    /// was lost, and they might miss an order whose statement takes as long.
    #[arg(long, env = "DATABASE_TIMEOUT", default_value = "8s", value_parser = database_timeout)]
    pub database_timeout: Duration,
    #[command(flatten)]
    pub durability: DurabilityConfig,
}

/// The largest `DATABASE_TIMEOUT`. A statement must end within the first lease of a placement,
/// which is 10 s. The sweep waits for every transaction that has begun to write placements or
/// deliveries, however late it commits, but cannot see one that has not written yet. Only this
/// limit keeps such a transaction from inserting rows for a time that the sweep has already passed.
const LONGEST_STATEMENT: Duration = Duration::from_secs(9);

fn database_timeout(text: &str) -> Result<Duration, String> {
    let timeout = humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write it like `8s` or `500ms`"))?;
    if !(Duration::from_millis(100)..=LONGEST_STATEMENT).contains(&timeout) {
        return Err("must be from 100ms to 9s, because a statement must end within the first lease of a placement (10s)".into());
    }
    Ok(timeout)
}

/// Settings of the planner. Every statement finds its rows by an index (`tests/store/plans.rs`
/// proves this on large tables even without `enable_seqscan = off`). But while the table of due
/// work is empty, the planner would choose a sequential scan, and a cached plan would keep it
/// during a backlog. Generic plans save time: planning takes several times as long as executing a
/// small batch, so each connection plans each statement once. JIT compilation would only cost time.
pub const PLANS: [(&str, &str); 3] = [
    ("enable_seqscan", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
];

/// A setting without meaning that every session gets. A pooler drops it together with the other
/// startup options, so [`crate::schema::check`] finds it missing and knows that there is a pooler.
pub(crate) const STARTUP_OPTIONS: (&str, &str) = ("esim.startup_options", "kept");

/// Settings of the session that the statements rely on. Every session of every program sets them
/// itself, because the server would otherwise take what an administrator has set for a database or
/// a role (`ALTER DATABASE`, `ALTER ROLE`), or what a stolen role has set for itself. sqlx sets
/// `DateStyle`, `TimeZone` and `client_encoding` likewise. Others are checked: `synchronous_commit`
/// decides what an answer is worth, and belongs to the operator ([`crate::primary`]).
pub const RELIED_ON: [(&str, &str); 11] = [
    // Tables are found in no other schema, in particular in none that is named like the role.
    // Temporary tables come last.
    ("search_path", "public,pg_temp"),
    // The policies of `work`, `held` and `walks` decide what a stage sees. `off` makes each
    // statement fail that they would filter.
    ("row_security", "on"),
    // Each statement sees what was committed before it, and sees the newest row after it has waited
    // for a lock. Stricter levels would end it with a conflict instead.
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("default_transaction_deferrable", "off"),
    // No limits but our own: a stage has those of `PoolConfig::session`, and the migrator sets its
    // own.
    ("lock_timeout", "0"),
    ("statement_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("standard_conforming_strings", "on"),
    ("transform_null_equals", "off"),
];

/// Why the settings do not make a login.
#[derive(Debug, thiserror::Error)]
pub enum BadDatabase {
    /// `DATABASE_URL` cannot be parsed. The error does not show it, because it contains a password.
    #[error(
        "{} is not of the form postgres://user:password@host:port/database",
        where_from("DATABASE_URL", |name| std::env::var_os(name))
    )]
    Url,
    #[error(
        "PGPASSFILE={} can't be read: {cause}. Make it readable, or mount a file with the whole URL, including the \
         password, and name that file in DATABASE_URL_FILE", .path.display()
    )]
    UnreadablePasswords { path: PathBuf, cause: io::Error },
    #[error(
        "PGPASSFILE={} has mode {mode:04o}, so its passwords would be ignored, because others than its owner may use it: \
         set mode 0600. Where the mode cannot be changed, as in a mounted secret, mount a file with the whole URL, \
         including the password, and name that file in DATABASE_URL_FILE", .path.display()
    )]
    OpenPasswords { path: PathBuf, mode: u32 },
}

/// The name of a setting, with the file that it comes from, if it comes from one: whoever reads the
/// error must not look for a variable that is not set.
fn where_from(setting: &str, variable: impl Fn(&str) -> Option<OsString>) -> String {
    let path = |name: &str| {
        let value = variable(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    let in_folder = || Some(path("SETTINGS_DIR")?.join(setting)).filter(|path| path.exists());
    match path(&format!("{setting}_FILE")).or_else(in_folder) {
        Some(path) => format!("{setting} in the file {}", path.display()),
        None => setting.to_owned(),
    }
}

impl DatabaseConfig {
    /// The options of a connection. The server shows `application` as its name, for example in
    /// `pg_stat_activity`.
    pub fn options(&self, application: &str) -> Result<PgConnectOptions, BadDatabase> {
        // Checked here, because sqlx accepts any scheme.
        let url = self.database_url.expose_secret();
        if !["postgres://", "postgresql://"]
            .iter()
            .any(|scheme| url.starts_with(scheme))
        {
            return Err(BadDatabase::Url);
        }
        let url: Url = url.parse().map_err(|_| BadDatabase::Url)?;
        check_passwords(&url, |name| std::env::var_os(name))?;
        let options =
            PgConnectOptions::from_url(&url).map_err(|_: sqlx::Error| BadDatabase::Url)?;
        // The server can log slow statements. In our log whole statements would only be noise.
        Ok(options
            .application_name(application)
            .options([STARTUP_OPTIONS])
            .options(RELIED_ON)
            .disable_statement_logging())
    }
}

/// Refuses a `PGPASSFILE` that the login needs and that sqlx would ignore. sqlx only logs one
/// warning and connects without a password. Then the server refuses the login (28P01) and seems to
/// blame a wrong password, although none was sent.
fn check_passwords(
    url: &Url,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<(), BadDatabase> {
    let in_url = url.password().is_some() || url.query_pairs().any(|(key, _)| key == "password");
    let Some(path) = variable("PGPASSFILE")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
    else {
        return Ok(());
    };
    if in_url || variable("PGPASSWORD").is_some() {
        return Ok(());
    }
    // The file is opened as sqlx opens it, because what counts is the mode of the file behind the
    // symbolic links of a mounted secret.
    let mode = match File::open(&path).and_then(|file| file.metadata()) {
        Ok(metadata) => metadata.permissions().mode() & 0o7777,
        Err(cause) => return Err(BadDatabase::UnreadablePasswords { path, cause }),
    };
    if mode & 0o077 != 0 {
        return Err(BadDatabase::OpenPasswords { path, mode });
    }
    Ok(())
}

/// How much longer than a statement a transaction may be idle before the server ends its session.
const IDLE_SPARE: Duration = Duration::from_secs(2);

impl PoolConfig {
    /// The options of a connection with the session settings that the statements rely on.
    pub fn session(&self, application: &str) -> Result<PgConnectOptions, BadDatabase> {
        let limit = format!("{}ms", self.database_timeout.as_millis());
        let options = self.server.options(application)?;
        // If the host of a service vanishes during a transaction, the server must not keep its
        // locks for hours, nor hold up the fence of the sweep.
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

    /// A pool of one connection for statements that read for up to `limit`, which is longer than
    /// [`Self::open`] allows. They must not write orders, placements or deliveries.
    pub fn open_patient(&self, application: &str, limit: Duration) -> crate::Result<Database> {
        let patient = Self {
            database_connections: 1,
            database_timeout: limit,
            ..self.clone()
        };
        let opened = patient.open(application);
        opened.map_err(|error| sqlx::Error::Configuration(error.into()).into())
    }

    /// A pool that connects at its first use, so that a service starts without its database. The
    /// server shows `application` as the name of the connections.
    pub fn open(&self, application: &str) -> Result<Database, BadDatabase> {
        Ok(Database::open(
            application,
            self.session(application)?,
            self.database_connections,
            self.database_timeout,
            self.durability.clone(),
        ))
    }
}

/// The master keys, which encrypt secrets at rest. A program uses only the keys for its own
/// purposes. Each text holds keys of the form `<id>:<Base64 of 32 bytes>`, separated by commas or
/// line ends. The first key encrypts new values, and all of them decrypt, so a key is rotated by
/// putting a new one first.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Master key")]
pub struct MasterKeyConfig {
    /// Master keys of the form `<id>:<Base64 of 32 bytes>`, separated by commas or line ends
    ///
    /// They encrypt secrets at rest. The first key encrypts new values, and all of them decrypt, so
    /// a key is rotated by putting a new one first. `esimctl master-key create FILE` makes one.
    #[arg(long, env = "MASTER_KEY", hide_env_values = true)]
    pub master_key: Option<SecretString>,

    /// The master keys for partners' request-signing keys [default: those of `MASTER_KEY`]
    #[arg(long, env = "MASTER_KEY_PARTNERS", hide_env_values = true)]
    pub master_key_partners: Option<SecretString>,

    /// The master keys for webhook secrets [default: those of `MASTER_KEY`]
    ///
    /// An entry `whsk_<Base64 of 32 bytes>` is no master key. Each such entry signs all webhooks
    /// with Ed25519, too (`v1a` of Standard Webhooks), and ingress publishes its public key under
    /// `/.well-known/webhook-keys.json`. `whpk_<Base64>` is a public key that is published only.
    #[arg(long, env = "MASTER_KEY_WEBHOOKS", hide_env_values = true)]
    pub master_key_webhooks: Option<SecretString>,

    /// The master keys for profiles and recorded responses of endpoints [default: those of
    /// `MASTER_KEY`]
    #[arg(long, env = "MASTER_KEY_PROFILES", hide_env_values = true)]
    pub master_key_profiles: Option<SecretString>,
}

/// The master keys are missing or unusable. `setting` names the environment variable at fault.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {cause}")]
pub struct MasterKeyError {
    pub setting: &'static str,
    pub cause: VaultError,
}

impl MasterKeyConfig {
    /// The vault with the keys for these purposes. A stage lists only those that it needs, so that
    /// it holds no other keys even if they are configured.
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
            // Each text is first checked alone, so that the error names its setting.
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

    /// A file in a volume as kubelet writes it: its name leads through `..data` to the folder of
    /// its version.
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
        let variable = |name: &str| {
            settings
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, path)| (*path).into())
        };
        check_passwords(&url.parse().unwrap(), variable).map_err(|error| error.to_string())
    }

    #[test]
    fn a_password_file_that_would_be_ignored_is_refused() {
        const BARE: &str = "postgres://esim_ingress@esim-db-rw:5432/esim";
        let folder = tempfile::tempdir().unwrap();
        // The mode of a file in a secret volume with `fsGroup`, whatever its `defaultMode` is.
        let open = mounted(folder.path(), "pgpass", 0o440);
        let refused = check(BARE, &[("PGPASSFILE", &open)]).unwrap_err();
        for part in [open.to_str().unwrap(), "mode 0440", "DATABASE_URL_FILE"] {
            assert!(
                refused.contains(part) && !refused.contains("hush"),
                "{part}: {refused}"
            );
        }
        let missing = check(BARE, &[("PGPASSFILE", &folder.path().join("none"))]).unwrap_err();
        assert!(
            missing.contains("/none can't be read: No such file"),
            "{missing}"
        );

        let owned = mounted(folder.path(), "owned", 0o600);
        assert_eq!(check(BARE, &[("PGPASSFILE", &owned)]), Ok(()));
        // An empty name counts as unset, so nothing would read a file.
        assert_eq!(check(BARE, &[("PGPASSFILE", Path::new(""))]), Ok(()));
        assert_eq!(
            check(
                BARE,
                &[("PGPASSFILE", &open), ("PGPASSWORD", Path::new("given"))]
            ),
            Ok(())
        );
        for url in [
            "postgres://user:given@host/esim",
            "postgres://user@host/esim?password=given",
        ] {
            assert_eq!(check(url, &[("PGPASSFILE", &open)]), Ok(()), "{url}");
        }
    }
}

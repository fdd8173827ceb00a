//! `esimctl secrets`: creates the secrets of a whole system for its first start, and hands each
//! service its share of them.
//!
//! Compose runs it as a one-shot before every start, so it must be harmless to repeat. It
//! creates what is missing, and never changes a password of PostgreSQL or NATS or a master key that
//! exists, because servers and stored values depend on them. Only values that programs read when
//! they start, such as the sandbox's keys, can be replaced by given ones.
//!
//! The shares are what keeps the stages apart: each service gets a folder with its own database
//! password, NATS password and master keys, and nothing of another stage, so that one stolen
//! container does not open everything (docs/decisions/0019-separate-credentials.md).

use std::{
    fmt::Write,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::{Args, Subcommand};
use pg::schema::{DatabaseRole, ROLES};
use runtime::files;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use url::Url;

use crate::{console::Console, database_password, master_key, secret_file};

const EXAMPLES: &str = "Examples:
  esimctl secrets create secrets/
  esimctl secrets create secrets/ --into shares/     also copies each service's secrets to shares/<service>/
  esimctl secrets create secrets/ --into shares/ --database-at esim-db-rw:5432/esim
  esimctl secrets create secrets/ --into shares/ --console-keys      the console may make new keys of partners

The command creates the secrets that are missing. It never changes an existing password of PostgreSQL or NATS, or an
existing master key, so it can be run before every start. Keep a copy of the folder in another place: without the master
keys nobody can read the stored secrets again.";

#[derive(Subcommand, Clone, Debug)]
pub enum SecretsCommand {
    /// Create the missing secrets of a system in a folder
    #[command(after_help = EXAMPLES)]
    Create(SecretsCreateArgs),
}

#[derive(Args, Clone, Debug)]
pub struct SecretsCreateArgs {
    /// The folder that holds all secrets; it must exist
    folder: PathBuf,
    /// Also copy each service's own secrets into this folder
    ///
    /// Each service gets a folder of its own there, which is named after it, for example `ingress`.
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
    /// Also write a file `database-url` into the folders of the stages and of the operator
    ///
    /// The file holds the URL of this database with the role and password of its reader. Kubernetes
    /// needs it, because PostgreSQL's clients refuse a mounted password file that the group of the
    /// pod can read.
    #[arg(long, value_name = "HOST:PORT/DATABASE", requires = "into", value_parser = database_at)]
    database_at: Option<Url>,
    /// Also give the console the master keys for partners and webhooks, with which it makes new
    /// keys
    #[arg(long, requires = "into")]
    console_keys: bool,
    /// The password of the database's owner [default: a random one]
    #[arg(long, env = "POSTGRES_PASSWORD", hide_env_values = true)]
    postgres_password: Option<SecretString>,
    /// Master keys that serve all purposes [default: a random key for each purpose]
    #[arg(long, env = "MASTER_KEY", hide_env_values = true)]
    master_key: Option<SecretString>,
    /// The sandbox provider's access key [default: a random one]
    #[arg(long, env = "SANDBOX_ACCESS_KEY", hide_env_values = true)]
    sandbox_access_key: Option<SecretString>,
    /// The sandbox provider's secret key, in Base64 [default: a random one]
    #[arg(long, env = "SANDBOX_SECRET_KEY", hide_env_values = true)]
    sandbox_secret_key: Option<SecretString>,
    /// The token in the path of the sandbox provider's callbacks [default: a random one]
    #[arg(long, env = "SANDBOX_CALLBACK_TOKEN", hide_env_values = true)]
    sandbox_callback_token: Option<SecretString>,
    /// The URL of the sandbox provider's callbacks, up to the token that follows it
    #[arg(long, default_value = "http://provisioner:8082/callbacks/sandbox/")]
    sandbox_callback_base: String,
}

/// Parses `HOST:PORT/DATABASE` into the URL of a database. Role and password are added for each
/// reader later.
fn database_at(text: &str) -> Result<Url, String> {
    let url = Url::parse(&format!("postgres://{text}")).ok();
    let whole = |url: &Url| {
        url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
            && !url.path().trim_matches('/').is_empty()
    };
    url.filter(whole).ok_or_else(|| {
        "it is not of the form HOST:PORT/DATABASE; write it like `esim-db-rw:5432/esim`".into()
    })
}

/// The purposes of master keys, which are part of the names of their files.
const PURPOSES: [&str; 3] = ["partners", "webhooks", "profiles"];
/// What the console seals if it makes new keys.
const CONSOLE_PURPOSES: [&str; 2] = ["partners", "webhooks"];

/// The console talks to PostgreSQL only.
fn speaks_nats(role: DatabaseRole) -> bool {
    role.of != "console"
}

pub fn run(command: &SecretsCommand, console: &Console) -> anyhow::Result<()> {
    let SecretsCommand::Create(asked) = command;
    let folder = &asked.folder;
    // It is not made here: a name that was mistyped, or a volume that is not mounted, would get new
    // keys beside those that a system runs with.
    ensure!(
        folder.is_dir(),
        "there is no folder {0}: name the one that holds the secrets; for a new system make it first (mkdir -m 700 {0})",
        folder.display()
    );
    database_password::ensure(folder, asked.postgres_password.as_ref())?;
    for role in ROLES {
        random(folder, &format!("database-{}", role.of))?;
        if speaks_nats(role) {
            random(folder, &format!("nats-{}", role.of))?;
        }
    }
    master_keys(folder, asked.master_key.as_ref())?;
    secret_file::make(&folder.join("qr.key"), &format!("{}\n", key()))?;
    let hex = || hex::encode(rand::random::<[u8; 16]>());
    for (name, given, random) in [
        ("sandbox-access-key", &asked.sandbox_access_key, hex()),
        ("sandbox-secret-key", &asked.sandbox_secret_key, key()),
        (
            "sandbox-callback-token",
            &asked.sandbox_callback_token,
            hex(),
        ),
        ("grafana-password", &None, hex()),
    ] {
        changeable(folder, name, given.as_ref(), &random)?;
    }
    if let Some(into) = &asked.into {
        share(asked, into)?;
    }
    console.print(&json!({ "folder": folder, "shares": asked.into }), || {
        format!(
            "{} holds all secrets. Keep a copy of it in another place",
            folder.display()
        )
    })
}

/// A random key of 32 bytes, in Base64.
fn key() -> String {
    BASE64_STANDARD.encode(rand::random::<[u8; 32]>())
}

/// Writes a random secret, unless the file exists. The secret begins with a letter, because NATS
/// might read a value that begins with a digit as a number.
fn random(folder: &Path, name: &str) -> anyhow::Result<()> {
    let value = hex::encode(rand::random::<[u8; 24]>());
    secret_file::make(&folder.join(name), &format!("s{value}\n")).map(drop)
}

/// Writes a secret that a given value may replace. That is safe for secrets that nothing stores:
/// the programs that use them read them when they start.
fn changeable(
    folder: &Path,
    name: &str,
    given: Option<&SecretString>,
    random: &str,
) -> anyhow::Result<()> {
    let path = folder.join(name);
    match given
        .map(ExposeSecret::expose_secret)
        .filter(|given| !given.is_empty())
    {
        Some(given) if given.contains(['\n', '\r']) => {
            bail!(
                "the given {name} has a line break, which a secret file cannot hold: choose another value"
            )
        }
        Some(given) => secret_file::replace(&path, &format!("{given}\n")),
        None => secret_file::make(&path, &format!("{random}\n")).map(drop),
    }
}

/// Writes the master keys. A system has one file for all purposes if that file exists already or if
/// its keys are given, and otherwise a file with a key of its own for each purpose.
fn master_keys(folder: &Path, given: Option<&SecretString>) -> anyhow::Result<()> {
    let all = folder.join("master.key");
    let given = given.filter(|keys| !keys.expose_secret().trim().is_empty());
    let separate = folder.join(format!("master-{}.key", PURPOSES[0]));
    if given.is_some() && separate.exists() {
        bail!(
            "{} exists, so MASTER_KEY would replace keys that are in use, and nobody could read the values under them again; \
             add new keys to the files master-*.key instead",
            separate.display()
        );
    }
    if all.exists() || given.is_some() {
        return master_key::write(&all, given, true).map(drop);
    }
    for purpose in PURPOSES {
        let path = folder.join(format!("master-{purpose}.key"));
        secret_file::make(&path, &format!("{purpose}-1:{}\n", key()))?;
    }
    Ok(())
}

/// The mode of a file that only its owner can read.
const OWNER: u32 = 0o600;
/// The mode of a file for a server that runs as a user of its own (PostgreSQL, NATS, Grafana).
/// Everybody may read such a file, but only this server's container gets the folder.
const SERVER: u32 = 0o644;

/// The share of one service: which folder its files come from, and where and with which mode they
/// are written.
struct Share<'a> {
    folder: &'a Path,
    into: PathBuf,
    mode: u32,
}

impl Share<'_> {
    /// Writes a file, unless it has this content already: a running process may read it at any
    /// time.
    fn write(&self, name: &str, content: &str) -> anyhow::Result<()> {
        let path = self.into.join(name);
        if !fs::read_to_string(&path).is_ok_and(|old| old == content) {
            secret_file::replace(&path, content)?;
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(self.mode))
            .with_context(|| format!("cannot set the rights of {}", path.display()))
    }

    fn copy(&self, from: &str, name: &str) -> anyhow::Result<()> {
        self.write(name, &read(&self.folder.join(from))?)
    }

    fn keys(&self, purposes: &[&str]) -> anyhow::Result<()> {
        for purpose in purposes {
            let name = format!("master-{purpose}.key");
            let own = self.folder.join(&name).exists();
            self.copy(if own { &name } else { "master.key" }, &name)?;
        }
        Ok(())
    }

    /// Takes keys away that an earlier run has given.
    fn without_keys(&self, purposes: &[&str]) -> anyhow::Result<()> {
        for purpose in purposes {
            let path = self.into.join(format!("master-{purpose}.key"));
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the password of a database role in the form that clients read (`PGPASSFILE`).
    fn pgpass(&self, of: &str) -> anyhow::Result<()> {
        let password = read(&self.folder.join(format!("database-{of}")))?;
        self.write("pgpass", &database_password::pgpass(password.trim_end()))
    }

    /// Writes the URL of the database with a role and its password. A Kubernetes pod needs it,
    /// because the files of a mounted secret are readable by the pod's group, and clients refuse
    /// such a `pgpass`.
    fn database_url(&self, of: &str, database: Option<&Url>) -> anyhow::Result<()> {
        let Some(database) = database else {
            return Ok(());
        };
        let password = read(&self.folder.join(format!("database-{of}")))?;
        let role = ROLES
            .iter()
            .find(|role| role.of == of)
            .with_context(|| format!("there is no role of {of}"))?;
        let mut url = database.clone();
        // `set_password` escapes other characters, but takes a percent sign for the beginning of an
        // escape.
        let password = password.trim_end().replace('%', "%25");
        let set = url
            .set_username(role.name)
            .and_then(|()| url.set_password(Some(&password)));
        set.map_err(|()| {
            anyhow!("--database-at: the URL {database} cannot hold a user and a password")
        })?;
        self.write("database-url", url.as_str())
    }
}

/// Writes the shares: each service gets its own secrets and no others. The callers are deployments
/// that mount one folder per service.
fn share(asked: &SecretsCreateArgs, into: &Path) -> anyhow::Result<()> {
    let folder = asked.folder.as_path();
    let database = asked.database_at.as_ref();
    let of = |name: &str, mode| {
        let into = into.join(name);
        fs::create_dir_all(&into).with_context(|| format!("cannot create {}", into.display()))?;
        anyhow::Ok(Share { folder, into, mode })
    };
    for (stage, purposes) in [
        ("ingress", &["partners", "webhooks", "profiles"][..]),
        ("provisioner", &["profiles"]),
        ("notifier", &["webhooks", "profiles"]),
    ] {
        let share = of(stage, OWNER)?;
        share.pgpass(stage)?;
        share.database_url(stage, database)?;
        share.keys(purposes)?;
        share.copy(&format!("nats-{stage}"), "nats-password")?;
        if stage != "provisioner" {
            share.copy("qr.key", "qr.key")?;
        }
    }
    let operator = of("operator", OWNER)?;
    operator.pgpass("operator")?;
    operator.database_url("operator", database)?;
    operator.keys(&PURPOSES)?;
    // The console gets no master key, because it shows nothing that is encrypted, unless it may
    // make new keys of partners, which it has to seal.
    let console = of("console", OWNER)?;
    console.pgpass("console")?;
    console.database_url("console", database)?;
    if asked.console_keys {
        console.keys(&CONSOLE_PURPOSES)?;
    } else {
        console.without_keys(&CONSOLE_PURPOSES)?;
    }

    // The owner of the tables runs migrations and maintenance, so it gets all passwords of roles
    // and all master keys.
    let owner = of("owner", OWNER)?;
    owner.copy("pgpass", "pgpass")?;
    owner.keys(&PURPOSES)?;
    for role in ROLES {
        owner.copy(
            &format!("database-{}", role.of),
            &format!("database-{}", role.of),
        )?;
    }

    let provisioner = of("provisioner", OWNER)?;
    let sandbox = of("sandbox", OWNER)?;
    for share in [&provisioner, &sandbox] {
        share.copy("sandbox-access-key", "sandbox-access-key")?;
        share.copy("sandbox-secret-key", "sandbox-secret-key")?;
    }
    provisioner.copy("sandbox-callback-token", "sandbox-callback-token")?;
    let token = read(&folder.join("sandbox-callback-token"))?;
    let url = format!("{}{token}", asked.sandbox_callback_base);
    sandbox.write("sandbox-callback-url", &url)?;

    of("postgres", SERVER)?.copy("password", "password")?;
    of("grafana", SERVER)?.copy("grafana-password", "password")?;
    let mut passwords = String::new();
    for role in ROLES.into_iter().filter(|role| speaks_nats(*role)) {
        let password = files::value(&folder.join(format!("nats-{}", role.of)))?;
        let name = role.of.to_uppercase();
        writeln!(passwords, "{name}_PASSWORD: \"{password}\"")?;
    }
    of("nats", SERVER)?.write("passwords.conf", &passwords)
}

/// The text of a file that `secrets create` has made, and that people may have replaced since.
fn read(path: &Path) -> anyhow::Result<String> {
    files::read(path)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;
    use sqlx::{ConnectOptions, postgres::PgConnectOptions};

    use super::*;

    #[derive(Parser)]
    #[command(args_override_self = true)]
    struct Probe {
        #[command(flatten)]
        asked: SecretsCreateArgs,
    }

    fn create(folder: &Path, arguments: &[&str]) -> anyhow::Result<()> {
        let all = folder.join("all");
        let into = folder.join("shares");
        fs::create_dir_all(&all).unwrap();
        let paths = [
            "probe",
            all.to_str().unwrap(),
            "--into",
            into.to_str().unwrap(),
        ];
        // The caller's environment may hold the settings of a system.
        let unset = [
            "--postgres-password=",
            "--master-key=",
            "--sandbox-access-key=",
            "--sandbox-secret-key=",
            "--sandbox-callback-token=",
        ];
        let probe = Probe::parse_from(paths.iter().chain(&unset).chain(arguments));
        run(
            &SecretsCommand::Create(probe.asked),
            &Console::new(true, None),
        )
    }

    /// The files of a folder and its folders, by their path in it.
    fn files(folder: &Path) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                let inner = files(&path).into_iter();
                found.extend(inner.map(|(inner, text)| (format!("{name}/{inner}"), text)));
            } else {
                found.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
        found
    }

    #[test]
    fn a_folder_that_is_not_there_is_named_and_not_made() {
        let folder = tempfile::tempdir().unwrap().path().join("all");
        let asked = Probe::parse_from(["probe", folder.to_str().unwrap()]).asked;
        let error = run(&SecretsCommand::Create(asked), &Console::new(true, None)).unwrap_err();
        let remedy = format!("(mkdir -m 700 {})", folder.display());
        assert!(error.to_string().contains(&remedy), "{error}");
        assert!(!folder.exists());
    }

    #[test]
    fn the_console_has_keys_only_while_it_may_make_some() {
        let folder = tempfile::tempdir().unwrap();
        let keys = || -> Vec<String> {
            let shares = files(&folder.path().join("shares"));
            let console = shares
                .into_keys()
                .filter(|path| path.starts_with("console/master"));
            console.collect()
        };
        create(folder.path(), &["--console-keys"]).unwrap();
        assert_eq!(
            keys(),
            ["console/master-partners.key", "console/master-webhooks.key"]
        );
        create(folder.path(), &[]).unwrap();
        assert_eq!(keys(), Vec::<String>::new());
    }

    #[test]
    fn each_service_gets_its_own_secrets_only() {
        let folder = tempfile::tempdir().unwrap();
        create(folder.path(), &[]).unwrap();
        let all = files(&folder.path().join("all"));
        let shares = files(&folder.path().join("shares"));
        let names = |service: &str| -> String {
            let paths = shares.keys().filter_map(|path| path.split_once('/'));
            paths
                .filter(|(one, _)| *one == service)
                .map(|(_, name)| name)
                .collect::<Vec<_>>()
                .join(" ")
        };
        for (service, expected) in testkit::rows! {
            "ingress"
                => "master-partners.key master-profiles.key master-webhooks.key nats-password pgpass qr.key";
            "provisioner"
                => "master-profiles.key nats-password pgpass sandbox-access-key sandbox-callback-token sandbox-secret-key";
            "notifier" => "master-profiles.key master-webhooks.key nats-password pgpass qr.key";
            "console" => "pgpass";
            "postgres" => "password";
            "nats" => "passwords.conf";
            "sandbox" => "sandbox-access-key sandbox-callback-url sandbox-secret-key";
        } {
            assert_eq!(names(service), expected, "{service}");
        }

        // The owner's password is in two shares, and no stage's password is in another stage's.
        let with = |secret: &str| -> String {
            let holds = |(_, text): &(&String, &String)| text.contains(all[secret].trim_end());
            let of = shares.iter().filter(holds);
            let mut services: Vec<&str> =
                of.filter_map(|(path, _)| path.split('/').next()).collect();
            services.dedup();
            services.join(" ")
        };
        for (secret, services) in testkit::rows! {
            "password" => "owner postgres";
            "database-ingress" => "ingress owner";
            "nats-notifier" => "nats notifier";
            "master-partners.key" => "ingress operator owner";
            "master-profiles.key" => "ingress notifier operator owner provisioner";
            "qr.key" => "ingress notifier";
            "grafana-password" => "grafana";
        } {
            assert_eq!(with(secret), services, "{secret}");
        }

        create(folder.path(), &[]).unwrap();
        assert_eq!(files(&folder.path().join("all")), all);
        assert_eq!(files(&folder.path().join("shares")), shares);
    }

    #[test]
    fn a_url_holds_the_password_of_its_role() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("all")).unwrap();
        fs::write(
            folder.path().join("all/database-notifier"),
            "a%41:b@c/d?e#f g\n",
        )
        .unwrap();
        create(folder.path(), &["--database-at", "esim-db-rw:5432/esim"]).unwrap();
        let shares = files(&folder.path().join("shares"));
        let password = files(&folder.path().join("all"))["database-ingress"]
            .trim_end()
            .to_owned();
        assert_eq!(
            shares["ingress/database-url"],
            format!("postgres://esim_ingress:{password}@esim-db-rw:5432/esim")
        );
        let url: PgConnectOptions = shares["notifier/database-url"].parse().unwrap();
        let as_given = PgConnectOptions::new()
            .username("esim_notifier")
            .password("a%41:b@c/d?e#f g");
        let as_given = as_given.host("esim-db-rw").port(5432).database("esim");
        assert_eq!(url.to_url_lossy(), as_given.to_url_lossy());
        assert!(
            shares.contains_key("operator/database-url")
                && !shares.contains_key("owner/database-url")
        );
        for wrong in [
            "",
            "esim-db-rw:5432",
            "esim-db-rw:5432/",
            "user:hush@esim-db-rw/esim",
            "esim-db-rw:port/esim",
        ] {
            assert!(database_at(wrong).is_err(), "{wrong}");
        }
    }

    /// A folder may have one key file for all purposes; its keys stay in use for each of them.
    #[test]
    fn an_existing_master_key_serves_all_purposes() {
        let folder = tempfile::tempdir().unwrap();
        let all = folder.path().join("all");
        fs::create_dir_all(&all).unwrap();
        let key = format!("first:{}\n", BASE64_STANDARD.encode([7; 32]));
        fs::write(all.join("master.key"), &key).unwrap();
        fs::write(all.join("password"), "old\n").unwrap();
        create(folder.path(), &[]).unwrap();
        let shares = files(&folder.path().join("shares"));
        for file in [
            "ingress/master-partners.key",
            "provisioner/master-profiles.key",
            "notifier/master-webhooks.key",
        ] {
            assert_eq!(shares[file], key, "{file}");
        }
        assert_eq!(shares["postgres/password"], "old\n");
        assert_eq!(shares["owner/pgpass"], "*:*:*:*:old\n");

        let other = format!("second:{}", BASE64_STANDARD.encode([8; 32]));
        let lost = create(folder.path(), &["--master-key", &other]);
        assert!(lost.is_err(), "the old key would be lost");
        create(folder.path(), &["--master-key", &format!("{other},{key}")]).unwrap();
        let shares = files(&folder.path().join("shares"));
        assert_eq!(
            shares["ingress/master-partners.key"],
            format!("{other}\n{key}")
        );
    }

    #[test]
    fn separate_keys_are_not_replaced_by_one() {
        let folder = tempfile::tempdir().unwrap();
        create(folder.path(), &["--sandbox-access-key", "chosen"]).unwrap();
        let key = format!("first:{}", BASE64_STANDARD.encode([7; 32]));
        let refused = create(folder.path(), &["--master-key", &key]).unwrap_err();
        assert!(refused.to_string().contains("master-*.key"), "{refused}");
        let chosen = || files(&folder.path().join("all"))["sandbox-access-key"].clone();
        assert_eq!(chosen(), "chosen\n");
        create(folder.path(), &["--sandbox-access-key", "changed"]).unwrap();
        assert_eq!(chosen(), "changed\n");
    }
}

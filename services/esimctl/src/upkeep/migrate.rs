//! `esimctl migrate`: brings the schema to this version before the services are started or
//! replaced.
//!
//! It is a one-shot step of every deployment, so it may run when nothing is missing, several times,
//! or twice at once. It waits for a server that is still starting. It applies the missing
//! migrations, each with short waits for locks so that orders continue (`pg::schema`), creates
//! the database roles if `--roles` is given, and grants each role what its program needs. A schema
//! of a newer version is left alone if it serves this version, so that a rollback can run it too.

use std::{
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use pg::{
    PgConnection,
    schema::{self, LockPatience, SchemaError, Wait},
};
use runtime::{files, terminal::say};
use serde_json::json;
use signing::scram;
use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    console::{Console, UNREACHABLE, unreachable},
    progress,
};

pub const EXAMPLES: &str = "Examples:
  esimctl migrate                    does nothing if no migration is missing
  esimctl migrate --json             prints {\"schema_version\":6,\"was\":0,\"roles\":[…]}
  esimctl migrate --give-up 2h       while a long dump runs
  esimctl migrate --roles secrets/   creates the stages' roles with the passwords in secrets/
  esimctl migrate --await-roles 5m   where an operator of PostgreSQL creates the roles

DATABASE_URL must name the owner of the tables. After the migrations the command grants each role what its program
needs, and ends the settings that a role has of its own (ALTER ROLE … SET). The roles are esim_ingress, esim_provisioner,
esim_notifier, esim_operator and esim_console; one that does not exist is left out. With --roles, their passwords are read from the files database-ingress, database-provisioner, database-notifier,
database-operator and database-console of the folder; the last one may be missing if there is no console.

Orders continue while the command runs. If a lock is not free within --lock-timeout, the command tries again after a
pause, and a line names the oldest open transaction, which probably holds the lock. While an index is built, a line says
what the build does and which session it waits for. A build waits until all older transactions have ended, at most for
--give-up; then it is cancelled, and the next run begins it anew. A newer schema that still works with this version is
left as it is.";

/// How long the command waits for a server that is still starting.
const WAIT: Duration = Duration::from_secs(30);
/// How long the command waits before it says that the server is not reachable yet. Most connections
/// succeed sooner, and then the line would only be noise.
const SILENT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(250);
/// How often the command looks whether another tool has created the roles.
const ROLES_RETRY: Duration = Duration::from_secs(1);

#[derive(Args, Clone, Debug)]
pub struct MigrateArgs {
    /// The longest wait for one lock, from 10ms to 5s
    ///
    /// While a migration waits for a lock, queries of the table queue behind it, so orders wait for
    /// as long. After this time the migration lets them pass and tries again later.
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = lock_timeout)]
    lock_timeout: Duration,
    /// How long to retry a migration whose lock is not free
    ///
    /// After this time the command fails and names the oldest open transaction. The migrations that
    /// it applied until then stay. An index that is built beside live traffic may wait as long for
    /// older transactions to end. If it is cancelled, the unfinished index is marked invalid, and
    /// the next run drops it and builds it anew.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = runtime::config::duration)]
    give_up: Duration,
    /// Create the database roles, or set their passwords, from the files in this folder
    ///
    /// The role of `DATABASE_URL` needs `CREATEROLE` for it. If it lacks that privilege, the
    /// command says so and goes on, because another tool may manage the roles. An empty name is
    /// none.
    #[arg(long, value_name = "FOLDER")]
    roles: Option<PathBuf>,
    /// Wait this long for the roles that another tool creates, and fail if one is still missing
    ///
    /// In Kubernetes, the operator of PostgreSQL creates the roles after the database, so this
    /// command may be done before they exist. Without this setting, a missing role is left out, and
    /// its stage can then log in but read nothing until the command is run again.
    #[arg(long, value_name = "DURATION", value_parser = runtime::config::duration)]
    await_roles: Option<Duration>,
}

fn lock_timeout(text: &str) -> Result<Duration, String> {
    let timeout = runtime::config::duration(text)?;
    if !(Duration::from_millis(10)..=Duration::from_secs(5)).contains(&timeout) {
        return Err("must be from 10ms to 5s".into());
    }
    Ok(timeout)
}

pub async fn run(command: &MigrateArgs, console: &Console) -> anyhow::Result<()> {
    let options = console.database()?;
    let mut connection = wait_until_up(&options).await?;
    let was = match schema::check(&mut connection).await {
        Ok(found) | Err(SchemaError::Behind { found, .. }) => found,
        Err(error) => return Err(error.into()),
    };
    let patience = LockPatience {
        lock_timeout: command.lock_timeout,
        give_up: command.give_up,
    };
    // Called even if nothing is missing, because it also compares the applied migrations with those
    // of this version.
    let waits = |wait: &Wait| say(format_args!("esimctl: {wait}"));
    let pid = schema::pid(&mut connection).await?;
    let applied = tokio::select! {
        applied = schema::apply(&mut connection, schema::migrations(), patience, waits) => applied,
        never = progress::show(&options, pid) => match never {},
    };
    let version = applied.context(
            "the schema is not at this version yet; remove the cause and run the command again, which continues where it stopped",
    )?;
    if let Some(folder) = command
        .roles
        .as_ref()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        set_passwords(&mut connection, folder).await?;
    }
    // If the schema is newer, the newer version has granted what its own programs need, and this
    // version's grants would take some of that away.
    let newer = version > schema::latest();
    let roles = if newer {
        Vec::new()
    } else {
        if let Some(limit) = command.await_roles {
            await_roles(&mut connection, limit).await?;
        }
        schema::grant(&mut connection).await.context(
            "the schema is at this version, but the roles were not granted their privileges; run the command as the owner of the tables",
        )?
    };
    for role in &roles {
        let settings = schema::settings(&mut connection, *role).await?;
        if !settings.is_empty() {
            say(format_args!(
                "esimctl: {} keeps settings of its own ({}), because the role of DATABASE_URL may not change it: as an \
                 administrator of PostgreSQL run ALTER ROLE {} RESET ALL",
                role.name,
                settings.join(", "),
                role.name
            ));
        }
    }
    let roles: Vec<&str> = roles.iter().map(|role| role.name).collect();
    console.print(
        &json!({ "schema_version": version, "was": was, "roles": roles }),
        || {
            let state = if was == version {
                format!("the schema is at version {version} already")
            } else {
                format!("the schema is at version {version}, it was at {was}")
            };
            match roles.as_slice() {
                [] if newer => format!("{state}; the roles keep the privileges of that version"),
                [] => format!("{state}; no role of a stage exists, so none was granted privileges"),
                roles => format!("{state}; roles: {}", roles.join(", ")),
            }
        },
    )
}

async fn set_passwords(connection: &mut PgConnection, folder: &Path) -> anyhow::Result<()> {
    for role in schema::ROLES {
        let file = folder.join(format!("database-{}", role.of));
        // A folder from before the console existed has no password of it, and the rest works
        // without.
        if role.of == "console" && !file.exists() {
            say(format_args!(
                "esimctl: {} does not exist, so {} is left out and the console cannot log in: write a password into the \
                 file, for example with `openssl rand -hex 32`, and run the command again",
                file.display(),
                role.name
            ));
            continue;
        }
        let password = &files::value(&file)?;
        if password.is_empty() || !password.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!(
                "{} must hold a password of visible ASCII characters, without spaces: write another one",
                file.display()
            );
        }
        match schema::set_password(connection, role, &scram::secret(password, rand::random())).await
        {
            Err(error) if error.is_denied() => {
                say(format_args!(
                    "esimctl: cannot create {} or set its password, because the role of DATABASE_URL lacks CREATEROLE; going on \
                     without it: grant CREATEROLE, or create the role yourself",
                    role.name
                ));
            }
            done => {
                done.with_context(|| format!("cannot create {} or set its password", role.name))?;
            }
        }
    }
    Ok(())
}

/// Waits until every role exists. The error names those that don't after `limit`.
async fn await_roles(connection: &mut PgConnection, limit: Duration) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut said = false;
    loop {
        let missing = schema::missing(connection).await?;
        if missing.is_empty() {
            return Ok(());
        }
        let missing: Vec<&str> = missing.iter().map(|role| role.name).collect();
        let missing = missing.join(", ");
        if began.elapsed() >= limit {
            bail!(
                "the schema is at this version, but these roles still do not exist after {limit:?}: {missing}; create them (in \
                 Kubernetes: see the status of the database's managed roles) and run the command again, or run it without \
                 --await-roles to leave them out"
            );
        }
        if !said {
            say(format_args!(
                "esimctl: waiting up to {limit:?} until these roles exist: {missing}"
            ));
            said = true;
        }
        sleep(ROLES_RETRY.min(limit.saturating_sub(began.elapsed()))).await;
    }
}

/// Connects to the server, and tries again for up to [`WAIT`] while it is starting.
async fn wait_until_up(options: &PgConnectOptions) -> anyhow::Result<PgConnection> {
    let mut last = None;
    let connected = {
        let mut attempts = pin!(attempts(options, &mut last));
        let mut connected = timeout(SILENT, &mut attempts).await;
        if connected.is_err() {
            say(format_args!(
                "esimctl: the database cannot be reached yet; waiting up to {WAIT:?} for PostgreSQL"
            ));
            connected = timeout(WAIT, &mut attempts).await;
        }
        connected
    };
    match (connected, last) {
        (Ok(connected), _) => connected.map_err(unreachable),
        (Err(_), Some(error)) => {
            Err(error).context(format!("{UNREACHABLE} (gave up after {WAIT:?})"))
        }
        (Err(_), None) => anyhow::bail!("{UNREACHABLE} (no answer within {WAIT:?})"),
    }
}

/// Tries until it has a connection, or an error that does not go away by waiting. The caller bounds
/// the time and then reports `last`, the last error.
async fn attempts(
    options: &PgConnectOptions,
    last: &mut Option<sqlx::Error>,
) -> sqlx::Result<PgConnection> {
    loop {
        match options.connect().await {
            Err(error) if may_be_starting(&error) => *last = Some(error),
            outcome => return outcome,
        }
        sleep(RETRY).await;
    }
}

/// Whether the server may still be starting: for example, it refuses connections, or its name does
/// not resolve yet.
fn may_be_starting(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) => true,
        sqlx::Error::Database(error) => error.is_transient_in_connect_phase(),
        _ => false,
    }
}

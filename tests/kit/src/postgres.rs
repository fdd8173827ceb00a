//! A `PostgreSQL` server for one test, which may stop it in any way and start it again. The shared
//! server cannot be used for that, because other tests need it.

mod cut;
mod standby;

use crate::process::{output, send};
use crate::{required, wait};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use sqlx::{Connection, PgConnection};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use uuid::Uuid;

/// How long a start may take, including recovery after a crash.
const START: Duration = Duration::from_mins(1);
const STOP: Duration = Duration::from_secs(20);

/// A real server with a data folder of its own. Every durability setting keeps its default, which
/// is on, so that what was committed survives a crash. The port stays the same over restarts.
/// Dropping this stops the server at once.
#[derive(Debug)]
pub struct PostgresServer {
    programs: PathBuf,
    folder: PathBuf,
    port: u16,
    url: String,
    /// The user that it runs as, if this process is root: `PostgreSQL` refuses to run as root.
    user: Option<User>,
    /// Variables beyond those of this process.
    env: BTreeMap<String, String>,
    child: Option<Child>,
}

impl PostgresServer {
    /// Creates a cluster in `folder/postgres` with the programs of `PG_BIN`, and starts it. The
    /// server's user must be able to enter `folder`.
    pub async fn start(folder: &Path) -> Result<Self> {
        Self::start_with(folder, BTreeMap::new()).await
    }

    /// Does the same with these variables, which its standbys get, too.
    pub async fn start_with(folder: &Path, env: BTreeMap<String, String>) -> Result<Self> {
        let programs = PathBuf::from(required("PG_BIN")?);
        let folder = folder.join("postgres");
        std::fs::create_dir(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let user = User::unprivileged().await?;
        if let Some(user) = &user {
            std::os::unix::fs::chown(&folder, Some(user.uid), Some(user.gid))?;
        }
        let port = crate::ports::free()?;
        let password = Uuid::now_v7().simple().to_string();
        let mut server = Self {
            programs,
            folder,
            port,
            url: format!("postgres://postgres:{password}@127.0.0.1:{port}/postgres"),
            user,
            env,
            child: None,
        };
        server.initialise(&password).await?;
        server.start_again().await?;
        Ok(server)
    }

    /// The URL of the superuser's own database.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    /// The id of its first process.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Starts it again if it has ended by itself, and waits until it accepts connections.
    pub async fn stand_up(&mut self) -> Result<()> {
        let ended = self.child.as_mut().map(Child::try_wait).transpose()?;
        if ended.flatten().is_some() {
            self.child = None;
            return self.start_again().await;
        }
        self.accepts_connections().await
    }

    /// The command that starts the server again, for inspecting a failed test.
    pub fn command_line(&self) -> String {
        let prefix = self.user.as_ref().map_or_else(String::new, |user| {
            format!(
                "setpriv --reuid={} --regid={} --clear-groups ",
                user.uid, user.gid
            )
        });
        let program = self.programs.join("postgres");
        format!(
            "{prefix}{} {}",
            program.display(),
            self.arguments().join(" ")
        )
    }

    /// Stops it like `pg_ctl stop -m immediate`. As after a power cut, the next start recovers from
    /// the write-ahead log.
    pub async fn stop_immediately(&mut self) -> Result<()> {
        self.stop(Signal::QUIT).await
    }

    /// Stops it like `pg_ctl stop -m fast`: connections are cut, and everything is written to disk.
    pub async fn stop_fast(&mut self) -> Result<()> {
        self.stop(Signal::INT).await
    }

    /// Starts it after a stop, and waits until it accepts connections.
    pub async fn start_again(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "postgres is running already");
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())?;
        let child = self
            .command("postgres")
            .args(self.arguments())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start postgres")?;
        self.child = Some(child);
        self.accepts_connections().await
    }

    async fn accepts_connections(&mut self) -> Result<()> {
        wait::until(START, "PostgreSQL to take connections", async || {
            if let Some(status) = self
                .child
                .as_mut()
                .map(Child::try_wait)
                .transpose()?
                .flatten()
            {
                bail!(
                    "postgres ended before it was ready: {status}; see {}",
                    self.log().display()
                );
            }
            let Ok(connection) = PgConnection::connect(&self.url).await else {
                return Ok(None);
            };
            connection.close().await?;
            Ok(Some(()))
        })
        .await
    }

    async fn initialise(&self, password: &str) -> Result<()> {
        let file = self.folder.join("password");
        std::fs::write(&file, password)?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
        if let Some(user) = &self.user {
            std::os::unix::fs::chown(&file, Some(user.uid), Some(user.gid))?;
        }
        let mut initdb = self.command("initdb");
        initdb
            .arg(format!("--pgdata={}", self.data().display()))
            .arg(format!("--pwfile={}", file.display()))
            .args([
                "--username=postgres",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--no-locale",
            ]);
        let output = output(&mut initdb, START).await?;
        std::fs::remove_file(&file)?;
        ensure!(
            output.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    async fn stop(&mut self, signal: Signal) -> Result<()> {
        let mut child = self.child.take().context("postgres is not running")?;
        send(&child, signal).context("cannot signal postgres")?;
        match tokio::time::timeout(STOP, child.wait()).await {
            Ok(status) => status.map(drop).context("cannot wait for postgres"),
            Err(_) => child.kill().await.context("cannot kill postgres"),
        }
    }

    /// A command that runs a `PostgreSQL` program as the owner of the data, in a folder that this
    /// user can read.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        if let Some(user) = &self.user {
            // Setting the uid also makes std drop the further groups of root.
            command.uid(user.uid).gid(user.gid);
        }
        command
            .current_dir("/")
            .envs(&self.env)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    fn arguments(&self) -> Vec<String> {
        let settings = [
            format!("port={}", self.port),
            "listen_addresses=127.0.0.1".into(),
            "unix_socket_directories=".into(),
            "max_connections=200".into(),
        ];
        let data = ["-D".to_owned(), self.data().display().to_string()];
        data.into_iter()
            .chain(
                settings
                    .into_iter()
                    .flat_map(|setting| ["-c".to_owned(), setting]),
            )
            .collect()
    }

    /// Deletes the data of a server that no longer runs. Its log stays.
    pub fn wipe(&self) -> Result<()> {
        Ok(std::fs::remove_dir_all(self.data())?)
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("postgres.log")
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // The first process of the server ends the other ones when it gets this signal. Dropping
        // the child afterwards kills the first one, too.
        if let Some(child) = &self.child {
            let _ = send(child, Signal::QUIT);
        }
    }
}

/// A user other than root.
#[derive(Debug)]
struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// The user `postgres`, or else `nobody`. It is `None` if this process does not run as root.
    async fn unprivileged() -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        for name in ["postgres", "nobody"] {
            let id = async |flag: &str| -> Result<Option<u32>> {
                let output = Command::new("id").args([flag, name]).output().await?;
                let text = String::from_utf8_lossy(&output.stdout);
                Ok(text.trim().parse().ok().filter(|_| output.status.success()))
            };
            if let (Some(uid), Some(gid)) = (id("-u").await?, id("-g").await?) {
                return Ok(Some(Self { uid, gid }));
            }
        }
        bail!(
            "PostgreSQL refuses to run as root, and there is neither a user postgres nor a user nobody; \
             create one of them, or run the test as another user"
        )
    }
}

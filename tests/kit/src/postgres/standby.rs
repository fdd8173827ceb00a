//! A standby of a [`PostgresServer`], and what happens to primaries: a promotion, and a freeze
//! during which the server neither answers nor closes a connection.

use super::{PostgresServer, START, User};
use crate::process::output;
use crate::{required, wait};
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{Connection, PgConnection};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use url::Url;

impl PostgresServer {
    /// Copies this primary into `folder/standby`, and starts the copy as its asynchronous standby.
    /// It has a port of its own.
    pub async fn start_standby(&self, folder: &Path) -> Result<Self> {
        let folder = folder.join("standby");
        std::fs::create_dir(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let user = User::unprivileged().await?;
        if let Some(user) = &user {
            std::os::unix::fs::chown(&folder, Some(user.uid), Some(user.gid))?;
        }
        let port = crate::ports::free()?;
        let mut url: Url = self.url.parse()?;
        ensure!(url.set_port(Some(port)).is_ok(), "{url} takes no port");
        let mut standby = Self {
            programs: PathBuf::from(required("PG_BIN")?),
            folder,
            port,
            url: url.to_string(),
            user,
            env: self.env.clone(),
            child: None,
        };
        let mut copy = standby.command("pg_basebackup");
        copy.arg(format!("--dbname={}", self.url))
            .arg(format!("--pgdata={}", standby.data().display()))
            .args(["--write-recovery-conf", "--checkpoint=fast"]);
        let output = output(&mut copy, START).await?;
        ensure!(
            output.status.success(),
            "pg_basebackup, {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        standby.start_again().await?;
        Ok(standby)
    }

    /// The URL of a database of a primary, at this standby of it.
    pub fn url_of_copy(&self, database: &str) -> Result<String> {
        let mut url: Url = database.parse()?;
        ensure!(url.set_port(Some(self.port)).is_ok(), "{url} takes no port");
        Ok(url.into())
    }

    /// Runs one statement as the superuser.
    pub async fn sql(&self, statement: &'static str) -> Result<()> {
        let mut connection = PgConnection::connect(&self.url).await?;
        sqlx::raw_sql(statement).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    /// Makes every commit of this primary wait for a standby, and waits until one is connected.
    pub async fn require_standby(&self) -> Result<()> {
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
            .await?;
        self.sql("SELECT pg_reload_conf()").await?;
        let mut connection = PgConnection::connect(&self.url).await?;
        wait::until(START, "a synchronous standby", async || {
            let query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            let standbys: i64 = sqlx::query_scalar(query).fetch_one(&mut connection).await?;
            Ok((standbys > 0).then_some(()))
        })
        .await?;
        Ok(connection.close().await?)
    }

    /// Ends the replication from the primary to this standby, so that it misses later commits.
    pub async fn detach(&self) -> Result<()> {
        self.sql("ALTER SYSTEM SET primary_conninfo = ''").await?;
        self.sql("SELECT pg_reload_conf()").await?;
        let mut connection = PgConnection::connect(&self.url).await?;
        wait::until(START, "the end of the replication", async || {
            let query = "SELECT count(*) FROM pg_stat_wal_receiver";
            let receivers: i64 = sqlx::query_scalar(query).fetch_one(&mut connection).await?;
            Ok((receivers == 0).then_some(()))
        })
        .await?;
        Ok(connection.close().await?)
    }

    /// Makes this standby the primary, and waits until it takes writes.
    pub async fn promote(&self) -> Result<()> {
        self.sql("SELECT pg_promote()").await
    }

    /// Stops all processes of the server where they are. Its connections stay open.
    pub fn freeze(&self) -> Result<()> {
        self.signal_all(Signal::STOP)
    }

    /// Lets a frozen server go on as if nothing had happened.
    pub fn thaw(&self) -> Result<()> {
        self.signal_all(Signal::CONT)
    }

    /// Stops one backend of this application whose commit waits for the flush of another one, so
    /// that what it commits is not seen yet. `None` if there was none within that time.
    pub async fn stall_commit(
        &self,
        application: &str,
        within: Duration,
    ) -> Result<Option<StalledBackend>> {
        let until = Instant::now() + within;
        let mut connection = PgConnection::connect(&self.url).await?;
        let find = "SELECT pid FROM pg_stat_activity WHERE application_name = $1
                    AND wait_event_type = 'LWLock' AND wait_event = 'WALWrite' LIMIT 1";
        let still = "SELECT wait_event_type = 'LWLock' AND wait_event = 'WALWrite'
                     FROM pg_stat_activity WHERE pid = $1";
        while Instant::now() < until {
            let pid: Option<i32> = sqlx::query_scalar(find)
                .bind(application)
                .fetch_optional(&mut connection)
                .await?;
            let Some(pid) = pid else {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            let stalled = StalledBackend(u32::try_from(pid)?);
            send(stalled.0, Signal::STOP)?;
            let waits: Option<bool> = sqlx::query_scalar(still)
                .bind(pid)
                .fetch_one(&mut connection)
                .await?;
            if waits == Some(true) {
                return Ok(Some(stalled));
            }
            // It was over before it was stopped.
            stalled.resume()?;
        }
        Ok(None)
    }

    fn signal_all(&self, signal: Signal) -> Result<()> {
        let first = self.pid().context("postgres is not running")?;
        // The first process comes first, because a frozen one starts no further processes.
        let children = format!("/proc/{first}/task/{first}/children");
        send(first, signal)?;
        for child in std::fs::read_to_string(children)?.split_whitespace() {
            // A child may have ended meanwhile.
            let _ = send(child.parse()?, signal);
        }
        Ok(())
    }
}

/// A process of a server that stands still. It goes on when this is dropped.
#[derive(Debug)]
pub struct StalledBackend(u32);

impl StalledBackend {
    pub fn resume(self) -> Result<()> {
        send(self.0, Signal::CONT)
    }
}

impl Drop for StalledBackend {
    fn drop(&mut self) {
        let _ = send(self.0, Signal::CONT);
    }
}

fn send(process: u32, signal: Signal) -> Result<()> {
    let process = i32::try_from(process)?;
    let process = Pid::from_raw(process).context("0 is not a process")?;
    Ok(kill_process(process, signal)?)
}

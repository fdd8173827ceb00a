//! Other work on the database that runs beside a measurement, such as a base backup, to show how
//! much it slows the pipeline down.

use crate::pgbench::{connection_settings, program};
use crate::settings::System;
use anyhow::{Context, Result, ensure};
use sqlx::{Connection, PgConnection};
use std::cell::Cell;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;
use tokio::process::Command;
use tokio::task::JoinHandle;
use url::Url;

#[derive(Clone, Debug)]
pub enum Beside {
    Nothing,
    /// A snapshot that is held for this time before the measurement and during it, so that vacuum
    /// cannot remove dead rows.
    Snapshot(Duration),
    /// Base backups, one after the other.
    BaseBackup,
    /// A command of an operator that is repeated, such as one that erases data.
    Command(String),
}

/// Other work that runs until this is dropped.
pub struct Running {
    snapshot: Option<PgConnection>,
    repeated: Option<JoinHandle<Result<()>>>,
    rounds: Rc<Cell<u32>>,
}

impl Beside {
    pub fn name(&self) -> String {
        match self {
            Self::Nothing => "alone".into(),
            Self::Snapshot(held) => format!("snapshot held {}", humantime::format_duration(*held)),
            Self::BaseBackup => "base backup".into(),
            Self::Command(_) => "retention".into(),
        }
    }

    /// How long the load runs before the measurement.
    pub fn before(&self) -> Option<Duration> {
        match self {
            Self::Snapshot(held) => Some(*held),
            _ => None,
        }
    }

    pub async fn start(&self, system: &System) -> Result<Running> {
        let mut running = Running {
            snapshot: None,
            repeated: None,
            rounds: Rc::default(),
        };
        match self {
            Self::Nothing => {}
            Self::Snapshot(_) => {
                let mut connection = PgConnection::connect(&system.database_url).await?;
                // PostgreSQL takes the snapshot at the first query of the transaction.
                let hold = "SET idle_in_transaction_session_timeout = 0; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";
                sqlx::raw_sql(hold).execute(&mut connection).await?;
                running.snapshot = Some(connection);
            }
            Self::BaseBackup => {
                let admin = system
                    .database_admin_url
                    .as_deref()
                    .context("a base backup needs DATABASE_ADMIN_URL")?;
                let settings = connection_settings(&admin.parse::<Url>()?)?;
                let program = program(system.pg_bin.as_deref(), "pg_basebackup");
                running.repeat("pg_basebackup", move || {
                    let mut command = Command::new(&program);
                    command
                        .args(["-D", "-", "-F", "tar", "-X", "none", "--checkpoint", "fast"])
                        .envs(settings.iter().map(|(name, value)| (name, value)));
                    command
                });
            }
            Self::Command(text) => {
                let text = text.clone();
                running.repeat("the retention command", move || {
                    let mut command = Command::new("sh");
                    command.args(["-c", &text]);
                    command
                });
            }
        }
        Ok(running)
    }
}

impl Running {
    fn repeat(&mut self, name: &'static str, command: impl Fn() -> Command + 'static) {
        let rounds = Rc::clone(&self.rounds);
        self.repeated = Some(tokio::task::spawn_local(async move {
            loop {
                let output = command()
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped())
                    .kill_on_drop(true)
                    .spawn()
                    .with_context(|| format!("cannot run {name}"))?
                    .wait_with_output()
                    .await?;
                let text = String::from_utf8_lossy(&output.stderr);
                ensure!(output.status.success(), "{name}: {}: {text}", output.status);
                rounds.set(rounds.get() + 1);
            }
        }));
    }

    /// Ends the work, and returns how often repeated work was completed. It is an error if the work
    /// failed by itself.
    pub async fn stop(mut self) -> Result<Option<u32>> {
        if let Some(mut connection) = self.snapshot.take() {
            let committed = sqlx::raw_sql("COMMIT").execute(&mut connection).await;
            committed.context("the snapshot was not held until the end")?;
            connection.close().await?;
        }
        let Some(repeated) = self.repeated.take() else {
            return Ok(None);
        };
        repeated.abort();
        match repeated.await {
            Err(error) if error.is_cancelled() => Ok(Some(self.rounds.get())),
            Err(error) => Err(error.into()),
            Ok(ended) => ended.map(|()| Some(self.rounds.get())),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(repeated) = &self.repeated {
            repeated.abort();
        }
    }
}

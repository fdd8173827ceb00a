//! A real program under test: started, waited for, stopped, killed, started again.

use crate::{http, wait};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;
use tokio::process::{Child, Command};

/// How long a program may take to become ready.
const START: Duration = Duration::from_secs(30);
/// Lines of the log that an error shows.
const LOG_LINES: usize = 30;

/// A program to run. From the test's environment it gets only `PATH`, `HOME` and `TMPDIR`.
#[derive(Clone, Debug)]
pub struct Program {
    /// The name for messages: `notifier-1`.
    pub name: String,
    pub binary: PathBuf,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Responds 200 once the program is ready: `http://127.0.0.1:18081/readyz`.
    pub ready_url: String,
    /// Receives standard output and standard error, appended.
    pub log: PathBuf,
}

/// A program and, while it runs, its process. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    program: Program,
    child: Option<Child>,
}

impl Process {
    /// A program that isn't started yet.
    pub fn new(program: Program) -> Self {
        Self { program, child: None }
    }

    /// Starts the program, for the first time or again, and waits until it is ready.
    ///
    /// Errors, with the end of its log: it runs already, cannot start, ends early, or takes longer than 30 s.
    pub async fn start(&mut self) -> Result<()> {
        self.spawn()?;
        self.ready().await
    }

    /// Waits until a spawned program is ready. Errors: as of [`Process::start`].
    pub async fn ready(&mut self) -> Result<()> {
        let client = http::client()?;
        let url = self.program.ready_url.clone();
        let what = format!("{} to be ready at {url}", self.program.name);
        let ready = wait::until(START, &what, async || {
            if let Some(status) = self.exited()? {
                bail!("{} ended before it was ready: {status}", self.program.name);
            }
            let answer = client.get(&url).timeout(Duration::from_secs(1)).send().await;
            Ok(answer.is_ok_and(|answer| answer.status().is_success()).then_some(()))
        });
        let result = ready.await;
        result.with_context(|| self.log_tail())
    }

    /// Starts the program without waiting, for programs that must refuse to start.
    pub fn spawn(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "{} is running already", self.program.name);
        let log = OpenOptions::new().create(true).append(true).open(&self.program.log)?;
        let inherited = ["PATH", "HOME", "TMPDIR"].map(|name| std::env::var_os(name).map(|value| (name, value)));
        let child = Command::new(&self.program.binary)
            .args(&self.program.args)
            .env_clear()
            .envs(inherited.into_iter().flatten())
            .envs(&self.program.env)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.binary.display()))?;
        self.child = Some(child);
        Ok(())
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// The most physical memory that it has used, in kB.
    pub fn peak_memory(&self) -> Result<usize> {
        let pid = self.pid().context("it does not run")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let size = line.and_then(|line| line.trim().strip_suffix(" kB"));
        Ok(size.context("no VmHWM")?.parse()?)
    }

    /// The exit status, if it has ended.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        let child = self.child.as_mut().context("it was never started")?;
        child.try_wait().context("cannot ask for the exit status")
    }

    /// SIGKILL, and waits for the end. Does nothing if it is not running.
    pub async fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().await.with_context(|| format!("cannot kill {}", self.program.name))?;
        }
        Ok(())
    }

    /// SIGTERM, and waits for the end. A clean end has exit status 0.
    ///
    /// Errors: it is not running, or still runs after `timeout` (then it is killed).
    pub async fn terminate(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.send(Signal::TERM)?;
        self.wait(timeout).await
    }

    /// Waits for the end of a program that ends by itself.
    pub async fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let mut child = self.child.take().context("it was never started")?;
        if let Ok(status) = tokio::time::timeout(timeout, child.wait()).await {
            return Ok(status?);
        }
        child.kill().await?;
        bail!("{} was still running after {timeout:?}\n{}", self.program.name, self.log_tail())
    }

    /// Stalls the process (SIGSTOP), as a virtual machine or a full disk would.
    pub fn pause(&self) -> Result<()> {
        self.send(Signal::STOP)
    }

    /// Continues a stalled process (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        self.send(Signal::CONT)
    }

    /// Its whole output, over all its starts.
    pub fn log(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(&self.program.log)?).into_owned())
    }

    /// What it shows at `/metrics`.
    pub async fn metrics(&self) -> Result<String> {
        let answer = http::client()?.get(self.program.ready_url.replace("readyz", "metrics")).send().await?;
        Ok(answer.error_for_status()?.text().await?)
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The program, to change settings before the next start.
    pub fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    fn send(&self, signal: Signal) -> Result<()> {
        let child = self.child.as_ref().context("it is not running");
        child.and_then(|child| send(child, signal)).with_context(|| format!("cannot signal {}", self.program.name))
    }

    fn log_tail(&self) -> String {
        let log = self.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_LINES)..];
        format!("the end of {}:\n{}", self.program.log.display(), tail.join("\n"))
    }
}

/// Runs a command to its end.
///
/// Errors: it cannot be run, or still runs after `timeout`.
pub async fn output(command: &mut Command, timeout: Duration) -> Result<Output> {
    let program = command.as_std().get_program().display().to_string();
    let output = command.kill_on_drop(true).output();
    tokio::time::timeout(timeout, output)
        .await
        .with_context(|| format!("{program} is still running after {timeout:?}"))?
        .with_context(|| format!("cannot run {program}"))
}

pub(crate) fn send(child: &Child, signal: Signal) -> Result<()> {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(Pid::from_raw).context("it is not running")?;
    Ok(kill_process(pid, signal)?)
}

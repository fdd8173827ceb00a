//! A real program under test, which a test can start, stop, kill, stall and start again.

use crate::{http, wait};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;
use tokio::process::{Child, Command};

/// How long a program may take to become ready.
const START: Duration = Duration::from_secs(30);
/// How many lines of the log an error shows.
const LOG_LINES: usize = 30;

/// A program to run. It gets the variables of `env`, and from the environment of the test only
/// `PATH`, `HOME` and `TMPDIR`, so that a setting of the developer's shell cannot change a test.
#[derive(Clone, Debug)]
pub struct Program {
    /// The name for messages: `notifier-1`.
    pub name: String,
    pub binary: PathBuf,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// The URL that responds 200 once the program is ready, such as
    /// `http://127.0.0.1:18081/readyz`.
    pub ready_url: String,
    /// The file to which standard output and standard error are appended.
    pub log: PathBuf,
}

/// A program and, while it runs, its process. The process is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    program: Program,
    child: Option<Child>,
}

impl Process {
    /// Takes a program, which is not started yet.
    pub fn new(program: Program) -> Self {
        Self {
            program,
            child: None,
        }
    }

    /// Starts the program, for the first time or again, and waits until it is ready.
    ///
    /// It is an error if the program runs already, cannot be started, ends before it is ready, or
    /// takes longer than 30 s. The error shows the end of its log.
    pub async fn start(&mut self) -> Result<()> {
        self.spawn()?;
        self.ready().await
    }

    /// Waits until a spawned program is ready. The errors are those of [`Process::start`].
    pub async fn ready(&mut self) -> Result<()> {
        let client = http::client()?;
        let url = self.program.ready_url.clone();
        let what = format!("{} to be ready at {url}", self.program.name);
        let ready = wait::until(START, &what, async || {
            if let Some(status) = self.exited()? {
                bail!("{} ended before it was ready: {status}", self.program.name);
            }
            let answer = client
                .get(&url)
                .timeout(Duration::from_secs(1))
                .send()
                .await;
            Ok(answer
                .is_ok_and(|answer| answer.status().is_success())
                .then_some(()))
        });
        let result = ready.await;
        result.with_context(|| self.log_tail())
    }

    /// Starts the program without waiting until it is ready, for example because it must refuse to
    /// start, or because the servers that it needs are down.
    pub fn spawn(&mut self) -> Result<()> {
        ensure!(
            self.child.is_none(),
            "{} is running already",
            self.program.name
        );
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.program.log)?;
        let inherited = ["PATH", "HOME", "TMPDIR"]
            .map(|name| std::env::var_os(name).map(|value| (name, value)));
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

    /// The peak of the physical memory that it has used, in kB.
    pub fn peak_memory(&self) -> Result<usize> {
        let pid = self.pid().context("it does not run")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let size = line.and_then(|line| line.trim().strip_suffix(" kB"));
        Ok(size.context("no VmHWM")?.parse()?)
    }

    /// The exit status, if the process has ended.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        let child = self.child.as_mut().context("it was never started")?;
        child.try_wait().context("cannot ask for the exit status")
    }

    /// Kills the process (SIGKILL) and waits for its end. Does nothing if it is not running.
    pub async fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child
                .kill()
                .await
                .with_context(|| format!("cannot kill {}", self.program.name))?;
        }
        Ok(())
    }

    /// Stops the process (SIGTERM), waits for its end, and returns its exit status, which is 0
    /// after a clean stop.
    ///
    /// It is an error if the process is not running, or still runs after `timeout`. In the latter
    /// case it is killed.
    pub async fn terminate(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.send(Signal::TERM)?;
        self.wait(timeout).await
    }

    /// Waits for the end of a process that ends by itself. If it still runs after `timeout`, it is
    /// killed, and that is an error.
    pub async fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let mut child = self.child.take().context("it was never started")?;
        if let Ok(status) = tokio::time::timeout(timeout, child.wait()).await {
            return Ok(status?);
        }
        child.kill().await?;
        bail!(
            "{} was still running after {timeout:?}\n{}",
            self.program.name,
            self.log_tail()
        )
    }

    /// Lets the process open no further file or connection, or with `false` as many as before.
    pub fn exhaust_files(&self, is_exhausted: bool) -> Result<()> {
        let pid = self.pid().context("it does not run")?;
        let pid = Pid::from_raw(i32::try_from(pid)?).context("no process has the id 0")?;
        // The process has inherited the limits of this one.
        let before = getrlimit(Resource::Nofile);
        let current = if is_exhausted {
            Some(0)
        } else {
            before.maximum
        };
        prlimit(Some(pid), Resource::Nofile, Rlimit { current, ..before })?;
        Ok(())
    }

    /// Stalls the process (SIGSTOP), as it happens when a virtual machine is paused or a disk is
    /// overloaded.
    pub fn pause(&self) -> Result<()> {
        self.send(Signal::STOP)
    }

    /// Continues a stalled process (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        self.send(Signal::CONT)
    }

    /// Its whole output since its first start, without a line that is still being written.
    pub fn log(&self) -> Result<String> {
        let mut log = String::from_utf8_lossy(&std::fs::read(&self.program.log)?).into_owned();
        log.truncate(log.rfind('\n').map_or(0, |end| end + 1));
        Ok(log)
    }

    /// What it shows at `/metrics`.
    pub async fn metrics(&self) -> Result<String> {
        let answer = http::client()?
            .get(self.program.ready_url.replace("readyz", "metrics"))
            .send()
            .await?;
        Ok(answer.error_for_status()?.text().await?)
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The program, whose settings can be changed before the next start.
    pub fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    fn send(&self, signal: Signal) -> Result<()> {
        let child = self.child.as_ref().context("it is not running");
        child
            .and_then(|child| send(child, signal))
            .with_context(|| format!("cannot signal {}", self.program.name))
    }

    fn log_tail(&self) -> String {
        let log = self.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_LINES)..];
        format!(
            "the end of {}:\n{}",
            self.program.log.display(),
            tail.join("\n")
        )
    }
}

/// Runs a command to its end. It is an error if it cannot be run or still runs after `timeout`.
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

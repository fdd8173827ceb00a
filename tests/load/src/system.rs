//! Reads the resource usage of the pipeline's processes from `/proc`. On systems without `/proc`,
//! such as macOS, there is none to report.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The ticks per second of the times in `/proc/<pid>/stat`. They are 100 on every supported
/// architecture.
const TICKS: u64 = 100;
/// The name of this process in the report. It also receives the webhooks.
pub const GENERATOR: &str = "generator";
/// The default of `PLACEMENT_WAIT` in ingress.
const DEFAULT_PLACEMENT_WAIT: &str = "2s";

/// Resource usage of a process and its descendants since they started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User and system time; includes children that have ended.
    pub cpu: Duration,
    /// The peak of resident memory (`VmHWM`) since [`reset_peaks`], or since the start where the
    /// kernel denies it. With descendants: the sum of their peaks, shared memory counted once; an
    /// upper bound, as peaks need not coincide.
    pub peak_memory_kib: u64,
    /// How often one of the threads that run now slept and was woken up; `None` without `/proc`.
    pub wake_ups: Option<u64>,
}

/// By the name of the pid file; [`GENERATOR`] is this process.
pub type Sample = BTreeMap<String, Usage>;

/// Whether the measured ingress is a release build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Build {
    Release,
    Debug,
    Unknown,
}

/// Looks at every process with a pid file in `run_dir`.
pub fn sample(run_dir: &Path) -> Result<Sample> {
    let processes = processes();
    let pids = pids(run_dir)?
        .into_iter()
        .chain([(GENERATOR.to_owned(), std::process::id())]);
    let usages = pids
        .filter(|(_, pid)| processes.contains_key(pid))
        .map(|(name, pid)| (name, usage(pid, &processes)));
    Ok(usages.collect())
}

/// Resets the memory peaks of all processes that [`sample`] reads.
pub fn reset_peaks(run_dir: &Path) -> Result<()> {
    let processes = processes();
    for root in pids(run_dir)?.into_values() {
        for pid in processes
            .keys()
            .filter(|pid| descends(**pid, root, &processes))
        {
            // Writing 5 resets VmHWM, see proc(5). The kernel denies that for a process of another
            // user, whose peak then counts from its start.
            let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
        }
    }
    Ok(())
}

/// Processes that are paused until this is dropped.
pub struct Paused(Vec<Pid>);

impl Paused {
    /// Pauses (SIGSTOP) every process whose pid file's name begins with `name`.
    pub fn new(run_dir: &Path, name: &str) -> Result<Self> {
        let pids = pids(run_dir)?.into_iter();
        let named = pids.filter(|(file, _)| file.starts_with(name));
        let named: Vec<Pid> = named
            .filter_map(|(_, pid)| Pid::from_raw(i32::try_from(pid).ok()?))
            .collect();
        ensure!(
            !named.is_empty(),
            "{} has no pid file of {name}",
            run_dir.display()
        );
        let paused = Self(named);
        for pid in &paused.0 {
            kill_process(*pid, Signal::STOP).with_context(|| format!("cannot pause {name}"))?;
        }
        Ok(paused)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = kill_process(*pid, Signal::CONT);
        }
    }
}

/// The `PLACEMENT_WAIT` of the running ingress, read from its environment.
pub fn placement_wait(run_dir: &Path) -> String {
    let wait = || {
        let environ = fs::read(format!("/proc/{}/environ", ingress(run_dir)?)).ok()?;
        let mut settings = environ.split(|byte| *byte == 0);
        let wait = settings.find_map(|setting| setting.strip_prefix(b"PLACEMENT_WAIT="))?;
        Some(String::from_utf8_lossy(wait).into_owned())
    };
    wait().unwrap_or_else(|| format!("{DEFAULT_PLACEMENT_WAIT} (default)"))
}

/// Finds out whether the running ingress is a release build, by its path, or by `BIN_DIR` if the
/// path cannot be read.
pub fn build(run_dir: &Path) -> Build {
    let running = ingress(run_dir).and_then(|pid| fs::read_link(format!("/proc/{pid}/exe")).ok());
    let path = running
        .or_else(|| std::env::var_os("BIN_DIR").map(Into::into))
        .unwrap_or_default();
    let has = |name: &str| path.components().any(|part| part.as_os_str() == name);
    match (has("release"), has("debug")) {
        (true, _) => Build::Release,
        (_, true) => Build::Debug,
        _ => Build::Unknown,
    }
}

fn ingress(run_dir: &Path) -> Option<u32> {
    pids(run_dir)
        .ok()?
        .into_iter()
        .find(|(name, _)| name.starts_with("ingress"))
        .map(|(_, pid)| pid)
}

fn pids(run_dir: &Path) -> Result<BTreeMap<String, u32>> {
    let mut pids = BTreeMap::new();
    let files = fs::read_dir(run_dir)
        .with_context(|| format!("{} (is the pipeline running?)", run_dir.display()))?;
    for file in files {
        let path = file?.path();
        if path.extension().is_none_or(|extension| extension != "pid") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        // PostgreSQL writes more lines than the pid into its own file.
        let text = fs::read_to_string(&path)?;
        if let Some(pid) = text
            .lines()
            .next()
            .and_then(|line| line.trim().parse().ok())
        {
            pids.insert(name.into_owned(), pid);
        }
    }
    Ok(pids)
}

/// From `/proc/<pid>/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    ticks: u64,
}

fn processes() -> BTreeMap<u32, Stat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, parse_stat(&stat)?))
    })
    .collect()
}

/// The name, in parentheses, may contain any character; the fields follow the last parenthesis.
fn parse_stat(stat: &str) -> Option<Stat> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // Field 3 of proc(5) is the first here: ppid is 4; utime, stime, cutime, cstime are 14 to 17.
    let ticks = number(11)? + number(12)? + number(13)? + number(14)?;
    Some(Stat {
        parent: u32::try_from(number(1)?).ok()?,
        ticks,
    })
}

fn usage(root: u32, processes: &BTreeMap<u32, Stat>) -> Usage {
    let family: Vec<u32> = processes
        .keys()
        .copied()
        .filter(|pid| descends(*pid, root, processes))
        .collect();
    let ticks: u64 = family.iter().map(|pid| processes[pid].ticks).sum();
    let memory: Vec<(u64, u64)> = family.iter().map(|pid| memory(*pid)).collect();
    let own: u64 = memory
        .iter()
        .map(|(peak, shared)| peak.saturating_sub(*shared))
        .sum();
    let shared = memory
        .iter()
        .map(|(_, shared)| *shared)
        .max()
        .unwrap_or_default();
    Usage {
        cpu: Duration::from_millis(ticks * 1000 / TICKS),
        peak_memory_kib: own + shared,
        wake_ups: family
            .iter()
            .filter_map(|pid| wake_ups(*pid))
            .reduce(|one, other| one + other),
    }
}

/// The voluntary context switches of the threads of a process.
fn wake_ups(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let switches = threads.flatten().filter_map(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        count.trim().parse::<u64>().ok()
    });
    Some(switches.sum())
}

fn descends(pid: u32, root: u32, processes: &BTreeMap<u32, Stat>) -> bool {
    let parent = |pid: &u32| processes.get(pid).map(|stat| stat.parent);
    // No tree of processes is deeper than this here. Without the bound, a pid that is reused during
    // the walk could make it endless.
    std::iter::successors(Some(pid), parent)
        .take(32)
        .any(|ancestor| ancestor == root)
}

/// `VmHWM` and `RssShmem` in KiB.
fn memory(pid: u32) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        value.split_ascii_whitespace().next()?.parse().ok()
    };
    (
        field("VmHWM:").unwrap_or_default(),
        field("RssShmem:").unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_parsed_whatever_the_name() {
        let stat = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 1 0 99 5 6";
        assert_eq!(
            parse_stat(stat),
            Some(Stat {
                parent: 7,
                ticks: 127
            })
        );
        assert_eq!(parse_stat("42 (short) S 7"), None);
    }

    #[test]
    fn descendants_are_found() {
        let stat = |parent| Stat { parent, ticks: 1 };
        let processes = BTreeMap::from([(1, stat(0)), (2, stat(1)), (3, stat(2)), (4, stat(1))]);
        assert!(descends(3, 2, &processes) && descends(2, 2, &processes));
        assert!(!descends(4, 2, &processes) && !descends(1, 2, &processes));
    }
}

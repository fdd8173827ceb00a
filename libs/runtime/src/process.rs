//! The metrics of the process itself: its processor time, memory, open files, threads and tasks.
//! Names and units follow OpenTelemetry's semantic conventions. The values are read at each scrape.
//!
//! All but those of the tasks come from Linux's `/proc`. On other systems these metrics are
//! missing, and the service works without them.

use std::fs;

use opentelemetry::{KeyValue, global};
use opentelemetry_semantic_conventions::{
    attribute::CPU_MODE,
    metric::{
        PROCESS_CPU_TIME, PROCESS_MEMORY_USAGE, PROCESS_THREAD_COUNT,
        PROCESS_UNIX_FILE_DESCRIPTOR_COUNT,
    },
};
use tokio::runtime::Handle;

use crate::metrics::Instruments;

pub(crate) fn observe() {
    let make = Instruments::of("runtime");
    let tasks = Handle::current().metrics();
    let queue = Handle::current().metrics();
    make.observe("tokio.runtime.tasks", "Unfinished tasks", move || {
        tasks.num_alive_tasks()
    });
    let depth = move || queue.global_queue_depth();
    make.observe(
        "tokio.runtime.queued_tasks",
        "Runnable tasks in the global queue",
        depth,
    );
    if Usage::read().is_some() {
        usage();
    }
}

fn usage() {
    let [user, system] = ["user", "system"].map(|mode| [KeyValue::new(CPU_MODE, mode)]);
    global::meter("runtime")
        .f64_observable_counter(PROCESS_CPU_TIME)
        .with_unit("s")
        .with_description("Processor time used")
        .with_callback(move |counter| {
            if let Some(usage) = Usage::read() {
                counter.observe(usage.user, &user);
                counter.observe(usage.system, &system);
            }
        })
        .build();
    level(PROCESS_MEMORY_USAGE, "By", "Physical memory in use", || {
        Some(Usage::read()?.memory)
    });
    level(PROCESS_THREAD_COUNT, "{thread}", "Threads", || {
        Some(Usage::read()?.threads)
    });
    level(
        PROCESS_UNIX_FILE_DESCRIPTOR_COUNT,
        "{file_descriptor}",
        "Open files and connections",
        open_files,
    );
}

/// Registers a metric. It is not shown while `value` returns `None`.
fn level(
    name: &'static str,
    unit: &'static str,
    description: &'static str,
    value: fn() -> Option<i64>,
) {
    global::meter("runtime")
        .i64_observable_up_down_counter(name)
        .with_unit(unit)
        .with_description(description)
        .with_callback(move |counter| {
            if let Some(value) = value() {
                counter.observe(value, &[]);
            }
        })
        .build();
}

fn open_files() -> Option<i64> {
    let open = fs::read_dir("/proc/self/fd").ok()?.count();
    // Reading the folder opens a file descriptor itself, which is not counted.
    i64::try_from(open.saturating_sub(1)).ok()
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Usage {
    /// Seconds.
    user: f64,
    system: f64,
    threads: i64,
    /// Bytes.
    memory: i64,
}

impl Usage {
    #[cfg(unix)]
    fn read() -> Option<Self> {
        let ticks = u32::try_from(rustix::param::clock_ticks_per_second()).ok()?;
        let page = i64::try_from(rustix::param::page_size()).ok()?;
        Self::parse(&fs::read_to_string("/proc/self/stat").ok()?, ticks, page)
    }

    #[cfg(not(unix))]
    fn read() -> Option<Self> {
        None
    }

    /// Parses a line `pid (name) state …`, see `man 5 proc_pid_stat`. The name may contain any
    /// character, also `)`, so the fields are counted from the last `) `.
    #[cfg(any(unix, test))]
    fn parse(stat: &str, ticks: u32, page: i64) -> Option<Self> {
        /// The number of the first field after the name.
        const STATE: usize = 3;
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - STATE).copied();
        let seconds = |number| Some(field(number)?.parse::<f64>().ok()? / f64::from(ticks));
        Some(Self {
            user: seconds(14)?,
            system: seconds(15)?,
            threads: field(20)?.parse().ok()?,
            memory: field(24)?.parse::<i64>().ok()?.checked_mul(page)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_linux_is_read_whatever_the_name() {
        let line = "4242 (a) b (c) S 1 2 3 0 -1 4194304 1 2 3 4 150 25 0 0 20 0 7 0 12345 987654 321 184467 1 1\n";
        let expected = Usage {
            user: 1.5,
            system: 0.25,
            threads: 7,
            memory: 321 * 4096,
        };
        assert_eq!(Usage::parse(line, 100, 4096), Some(expected));
        for odd in [
            "",
            "4242 (a",
            "4242 (a) S 1 2 3",
            "4242 (a) S x x x x x x x x x x x x x x x x x x x x x x x",
        ] {
            assert_eq!(Usage::parse(odd, 100, 4096), None, "{odd}");
        }
    }
}

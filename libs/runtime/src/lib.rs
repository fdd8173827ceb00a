//! What every service needs around its own work: settings, telemetry, the clock, the lifecycle and
//! the admin endpoint.
//!
//! A service consists of a `Config` and a function `run(config, shutdown)`. Its `main.rs` is one
//! call of [`main`], which reads the settings, starts the telemetry, calls `run`, and turns signals
//! into an orderly stop. Tests call `run` themselves, in their own process.
//!
//! The crate guarantees that a process ends. After a signal the *soft stop* begins: the service
//! takes no new work and has `SHUTDOWN_TIMEOUT` to finish the work in flight. If that is too short,
//! the *hard stop* drops what is left. The crate also guarantees that no task of a service ends
//! unnoticed: if one fails, panics or returns too early, the whole process stops with a failure and
//! is started again, because a service with a missing part would only seem to work.

pub mod client;
pub mod clock;
pub mod config;
pub mod connection;
pub mod csv;
pub mod files;
pub mod forwarded;
pub mod health;
mod healthcheck;
pub mod http;
pub mod lifecycle;
pub mod listener;
mod locks;
mod log_filter;
mod manual;
pub mod metrics;
pub mod outage;
pub mod past;
mod process;
pub mod rate_limit;
pub mod retry_after;
mod room;
pub mod sampler;
pub mod server;
mod setting_files;
mod shown;
pub mod telemetry;
pub mod terminal;
pub mod trace;
pub mod version;

pub use config::CommonConfig;
pub use lifecycle::Shutdown;
pub use locks::lock;
pub use room::make_room;

use std::process::ExitCode;

use lifecycle::Signals;

/// The exit status of a process that refuses its settings. It differs from that of a failure,
/// because starting the process again would not help.
const BAD_CONFIGURATION: u8 = 2;

/// The threads that run tasks. By default there are half as many as processors, because the other
/// half is left to PostgreSQL and the other programs on the same machine. On a machine of its own a
/// service can use all of them: then set `TOKIO_WORKER_THREADS`, which tokio reads itself.
fn threads() -> tokio::runtime::Builder {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    if std::env::var_os("TOKIO_WORKER_THREADS").is_none() {
        let processors = std::thread::available_parallelism();
        threads.worker_threads(processors.map_or(1, |number| number.get().div_ceil(2)));
    }
    threads
}

/// Checks the settings of a service: those of its own, which may need an executor and the
/// cryptography of the process, as in a start; and those that are variables only.
pub fn checked(check: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    telemetry::install_cryptography();
    telemetry::check(&|name: &str| std::env::var(name).ok())?;
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    executor.block_on(async { check() })
}

/// Runs a service until it ends, by itself, by a signal or by a failure. It reads the settings and
/// refuses those that `check` refuses, as [`config::parse`] says, starts the telemetry, calls
/// `run`, stops softly and, after `SHUTDOWN_TIMEOUT`, hard, and flushes the telemetry at the very
/// end, so that the last log lines of a failure are exported, too.
///
/// Signals are listened to before anything else, so that a process that is told to stop while it
/// still starts ends cleanly, too, and nobody takes that for a failure.
///
/// The exit status is 0 after a clean stop, 1 after a failure, which is logged once, and 2 for an
/// invalid setting, which is reported by one line on standard error.
pub fn main<C, F, R>(
    service: &'static str,
    run: F,
    check: impl FnOnce(&C) -> anyhow::Result<()>,
    common: impl FnOnce(&C) -> &CommonConfig,
) -> ExitCode
where
    C: clap::Parser,
    F: FnOnce(C, Shutdown) -> R,
    R: Future<Output = anyhow::Result<()>>,
{
    let begun = threads().enable_all().build().and_then(|tokio| {
        let context = tokio.enter();
        let signals = Signals::listen()?;
        drop(context);
        Ok((tokio, signals))
    });
    let (tokio, signals) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            terminal::say(format_args!("{service} cannot start its threads: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let config: C = config::parse(|config| checked(|| check(config)));
    let common = common(&config).clone();
    let telemetry = match telemetry::start(service, &common) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            terminal::say(format_args!("{service}: {error:#}"));
            return ExitCode::from(BAD_CONFIGURATION);
        }
    };
    metrics::build_info();
    let outcome = tokio.block_on(async {
        let shutdown = Shutdown::new();
        let service = run(config, shutdown.clone());
        lifecycle::supervise(&shutdown, common.shutdown_timeout, signals, service).await
    });
    drop(tokio);
    let code = match outcome {
        Ok(()) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Err(error) if error.is::<config::BadSetting>() => {
            terminal::say(format_args!("{service}: {error}"));
            ExitCode::from(BAD_CONFIGURATION)
        }
        Err(error) => {
            tracing::error!(
                error = format!("{error:#}"),
                "{service} failed, and the process ends with exit status 1"
            );
            ExitCode::FAILURE
        }
    };
    telemetry.flush();
    code
}

//! The frame of every service: configuration, telemetry, clock, lifecycle and admin endpoint.
//!
//! A service's `main.rs` is one call of [`main`]; tests call its `run`.

pub mod clock;
pub mod config;
pub mod connection;
pub mod health;
mod healthcheck;
pub mod http;
pub mod lifecycle;
pub mod listener;
pub mod metrics;
mod process;
pub mod sampler;
mod setting_files;
pub mod telemetry;
pub mod terminal;
pub mod trace;
pub mod version;

pub use config::CommonConfig;
pub use lifecycle::Shutdown;

use std::{
    process::ExitCode,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Exit status of a process that refuses its configuration.
const BAD_CONFIGURATION: u8 = 2;

/// Runs a service until a signal or a failure: configuration, telemetry, `run`, soft stop, hard stop, flush.
///
/// Exit status: 0 after a clean stop, 1 after a failure (logged once), 2 for an invalid configuration (one line on
/// standard error).
pub fn main<C, F, R>(service: &'static str, run: F, common: impl FnOnce(&C) -> &CommonConfig) -> ExitCode
where
    C: clap::Parser,
    F: FnOnce(C, Shutdown) -> R,
    R: Future<Output = anyhow::Result<()>>,
{
    let config: C = config::parse();
    let common = common(&config).clone();
    let telemetry = match telemetry::start(service, &common) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            eprintln!("{service}: {error:#}");
            return ExitCode::from(BAD_CONFIGURATION);
        }
    };
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(common.worker_threads())
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|tokio| {
            tokio.block_on(async {
                let shutdown = Shutdown::new();
                lifecycle::supervise(&shutdown, common.shutdown_timeout, run(config, shutdown.clone())).await
            })
        });
    let code = match outcome {
        Ok(()) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Err(error) if error.is::<config::BadSetting>() => {
            eprintln!("{service}: {error}");
            ExitCode::from(BAD_CONFIGURATION)
        }
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "{service} failed");
            ExitCode::FAILURE
        }
    };
    telemetry.flush();
    code
}

/// Locks a mutex, ignoring poisoning: a task that panics stops the whole service, and the other tasks still need the
/// value while they stop.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

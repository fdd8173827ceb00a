//! What the black-box tests have in common. They run the real binaries against a real `PostgreSQL`
//! and a real nats-server, over HTTP on loopback, and look at the system only as partners,
//! providers and operators do.
//!
//! A test starts with a [`stack`] and a [`shop`]. Each has a database, streams and ports of its
//! own, so tests run side by side and beside a local system. A test waits for a condition
//! ([`wait`]) and never for a time.
//!
//! - [`stack`]: a whole pipeline of a test's own; the usual starting point.
//! - [`shop`]: a sandbox partner with its client and its endpoint.
//! - [`client`]: a partner that signs and sends orders, and invalid requests on purpose; [`raw`]:
//!   the same as bytes.
//! - [`receiver`]: a partner's webhook endpoint that records what it gets.
//! - [`mailbox`]: the operator's mail relay, which records the mails to partners.
//! - [`esimctl`]: the operator's command line, run as a program; [`agent`]: what an agent sees of a
//!   program's tools.
//! - [`settings`]: the settings of a stage on a database of its own.
//! - [`process`], [`nats`], [`postgres`], [`database`]: the parts a stack consists of.
//! - [`wait`], [`progress`], [`names`], [`table`], [`http`], [`ports`], [`rows`]: small helpers for
//!   them.
//!
//! `tests/run` sets the environment that is needed: `TEST_DATABASE_URL` (a role that may create
//! databases), `TEST_NATS_URL`, `BIN_DIR` (default `target/debug`), `NATS_SERVER_BIN` (default:
//! `nats-server` in the search path), and, for a `PostgreSQL` of a test's own, `PG_BIN` (the folder
//! of its programs).

pub mod agent;
mod cleanup;
pub mod client;
pub mod database;
pub mod esimctl;
pub mod http;
pub mod mailbox;
pub mod names;
pub mod nats;
pub mod ports;
pub mod postgres;
pub mod process;
pub mod progress;
pub mod raw;
pub mod receiver;
mod record;
pub mod settings;
pub mod shop;
pub mod stack;
pub mod table;
pub mod wait;

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Makes an array of tuples from a table with one line per case: `name, … => expected;`.
#[macro_export]
macro_rules! rows {
    ($($($cell:expr),+ => $($expected:expr),+;)*) => {
        [$(($($cell),+, $($expected),+)),*]
    };
}

/// The repository's root folder.
pub fn workspace() -> PathBuf {
    let kit = Path::new(env!("CARGO_MANIFEST_DIR"));
    kit.ancestors().nth(2).unwrap_or(kit).to_path_buf()
}

/// The folder of the binaries under test: `BIN_DIR`, which may be relative to the repository.
pub fn bin_dir() -> PathBuf {
    workspace().join(std::env::var_os("BIN_DIR").unwrap_or_else(|| "target/debug".into()))
}

/// The folder of the local system that `deploy/local/up` starts: `LOCAL_DIR`, or `.local` in the
/// repository. It contains `run/<process>.pid` and `log/<process>.log`.
pub fn local_dir() -> PathBuf {
    std::env::var_os("LOCAL_DIR").map_or_else(|| workspace().join(".local"), PathBuf::from)
}

/// Reads an environment variable that must be set. The error names it.
fn required(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} must be set; tests/run does that"))
}

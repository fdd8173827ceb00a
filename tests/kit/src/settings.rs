//! The settings of a stage that a test runs in its own process, on a database and streams of its
//! own.

use crate::database::Database;
use crate::{ports, required};
use anyhow::Result;
use clap::Parser;
use clap::builder::{OsStr, Resettable};
use runtime::CommonConfig;
use std::collections::BTreeMap;
use std::sync::Once;
use uuid::Uuid;

/// A master key of known bytes. Test data is not secret, so the key need not be either.
pub const MASTER_KEY: &str = "test:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// The settings of a stage, by environment variable, with `more` added. The stage uses its own role
/// in the database.
pub fn of(
    stage: &str,
    database: &Database,
    more: &[(&str, &str)],
) -> Result<BTreeMap<String, String>> {
    let common = [
        ("ADMIN_LISTEN", format!("127.0.0.1:{}", ports::free()?)),
        ("DATABASE_URL", database.url_of(stage)?),
        ("NATS_URL", required("TEST_NATS_URL")?),
        (
            "STREAM_PREFIX",
            format!("test_{}_", Uuid::now_v7().simple()),
        ),
        ("MASTER_KEY", MASTER_KEY.to_owned()),
    ];
    let more = more
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()));
    Ok(common
        .into_iter()
        .chain(more)
        .map(|(name, value)| (name.to_owned(), value))
        .collect())
}

/// Starts the telemetry of a stage that runs in the process of a test, once. Without it there are
/// no metrics to read and no trace to continue.
pub fn telemetry(stage: &'static str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let common = CommonConfig {
            log: "warn".into(),
            ..CommonConfig::default()
        };
        // A failure shows in the test that reads a metric.
        drop(runtime::telemetry::start(stage, &common));
    });
}

/// Parses the settings into the configuration of a stage. Variables in the environment of the test
/// have no effect.
pub fn parse<C: Parser>(settings: &BTreeMap<String, String>) -> C {
    let flag = |name: &str| name.to_ascii_lowercase().replace('_', "-");
    let flags = settings
        .iter()
        .map(|(name, value)| format!("--{}={value}", flag(name)));
    let command = C::command().mut_args(|one| one.env(Resettable::<OsStr>::Reset));
    let matches = command.get_matches_from(["test".to_owned()].into_iter().chain(flags));
    C::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

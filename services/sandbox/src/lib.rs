//! The sandbox eSIM provider: an upstream of our own that sells nothing real.
//!
//! It speaks the USIMSA protocol over HTTP with that protocol's authentication, so the pipeline
//! buys from it exactly as it buys from a real provider. What an option does is scripted
//! ([`outcomes`]); what was bought is kept in a ledger ([`ledger`]) that is the witness when the
//! pipeline's promise is checked: a purchase is in the file before its answer is sent, and a
//! `kill -9` at any instant loses none.

mod auth;
mod error;
mod journal;
pub mod ledger;
pub mod outcomes;
mod profile;
pub mod protocol;
mod routes;

use std::{ffi::OsStr, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context;
use axum::serve::ListenerExt;
use clap::{
    Parser, ValueEnum,
    builder::{NonEmptyStringValueParser, TypedValueParser},
    error::ErrorKind,
};
use runtime::{CommonConfig, Shutdown};
use signing::SecretKey;

use crate::{auth::Credentials, ledger::Ledger, outcomes::Script, routes::Sandbox};

const EXAMPLES: &str = "Examples:
  Serve on the default port, with a ledger in the working folder:
    SANDBOX_ACCESS_KEY=sandbox SANDBOX_SECRET_KEY=c2VjcmV0LWtleQ== SANDBOX_LEDGER=ledger.jsonl sandbox
  Load its options into the pipeline's catalogue:
    sandbox catalogue | esimctl option import -
  What was bought:
    curl -s http://127.0.0.1:18090/ledger";

/// The sandbox eSIM provider: speaks the USIMSA protocol, buys nothing real, remembers every purchase
#[derive(Parser, Clone, Debug)]
#[command(name = "sandbox", version, after_help = EXAMPLES)]
pub struct Config {
    /// What to do; `serve` when nothing is said
    #[arg(value_enum)]
    pub command: Option<Command>,
    /// Address of the provider's API, `/ledger` and `/readyz`
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:18090")]
    pub listen: SocketAddr,
    /// File that keeps every purchase: JSON lines, created when missing. Its seed makes the
    /// activation codes, so only its owner may read it
    #[arg(
        long,
        env = "SANDBOX_LEDGER",
        required_unless_present = "command",
        required_if_eq("command", "serve")
    )]
    pub ledger: Option<PathBuf>,
    /// Access key that callers must send
    #[arg(
        long,
        env = "SANDBOX_ACCESS_KEY",
        hide_env_values = true,
        value_parser = NonEmptyStringValueParser::new(),
        required_unless_present = "command",
        required_if_eq("command", "serve")
    )]
    pub access_key: Option<String>,
    /// Secret that callers must sign with, in Base64
    #[arg(
        long,
        env = "SANDBOX_SECRET_KEY",
        hide_env_values = true,
        value_parser = SecretParser,
        required_unless_present = "command",
        required_if_eq("command", "serve")
    )]
    pub secret_key: Option<SecretKey>,
    #[command(flatten)]
    pub common: CommonConfig,
}

/// What the process is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Command {
    /// Serve the provider's API
    Serve,
    /// Print the options as JSON, for `esimctl option import`
    Catalogue,
}

impl AsRef<CommonConfig> for Config {
    fn as_ref(&self) -> &CommonConfig {
        &self.common
    }
}

/// Reads a Base64 secret; its errors don't repeat the value, as clap's own would.
#[derive(Clone)]
struct SecretParser;

impl TypedValueParser for SecretParser {
    type Value = SecretKey;

    fn parse_ref(
        &self,
        _: &clap::Command,
        _: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<SecretKey, clap::Error> {
        SecretKey::from_base64(&value.to_string_lossy()).map_err(|error| {
            clap::Error::raw(
                ErrorKind::ValueValidation,
                format!("invalid value for '--secret-key': {error}\n"),
            )
        })
    }
}

/// Serves until `shutdown`. Fails when the ledger can't be read or the address can't be had.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    let path = config.ledger.context("--ledger (SANDBOX_LEDGER) is missing")?;
    let credentials = Credentials {
        access_key: config
            .access_key
            .context("--access-key (SANDBOX_ACCESS_KEY) is missing")?,
        secret: config
            .secret_key
            .context("--secret-key (SANDBOX_SECRET_KEY) is missing")?,
    };
    let ledger = Ledger::open(&path)?;
    let bought = ledger.summary();
    let listener = runtime::health::listen("LISTEN", config.listen).await?;
    tracing::info!(
        listen = %listener.local_addr()?,
        ledger = %path.display(),
        purchases = bought.purchases,
        units = bought.units,
        "the sandbox provider is open"
    );
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY was not set");
        }
    });
    let sandbox = Sandbox {
        credentials,
        ledger,
        script: Script::default(),
    };
    let router = routes::router(Arc::new(sandbox));
    axum::serve(listener, router)
        .with_graceful_shutdown(shutdown.soft().cancelled_owned())
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_serve_are_asked_for_only_by_serve() {
        use clap::CommandFactory;
        Config::command().debug_assert();
        assert_eq!(
            Config::try_parse_from(["sandbox", "catalogue"]).unwrap().command,
            Some(Command::Catalogue)
        );
    }

    #[test]
    fn a_bad_secret_is_named_and_not_repeated() {
        let error = Config::try_parse_from(["sandbox", "--secret-key", "no*base64"])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("--secret-key") && !error.contains("no*base64"),
            "{error}"
        );
    }
}

//! The sandbox eSIM provider: an upstream of our own that sells nothing real.
//!
//! It speaks the USIMSA protocol over HTTP with that protocol's authentication, so the pipeline
//! buys from it exactly as it buys from a real provider. What an option does is scripted
//! ([`outcomes`]), the whole provider can be made to fail ([`faults`]); what was bought is kept in a ledger ([`ledger`]) that is the witness when the
//! pipeline's promise is checked: a purchase is in the file before its answer is sent, and a
//! `kill -9` at any instant loses none.

mod attempts;
mod auth;
mod callbacks;
mod error;
pub mod faults;
mod journal;
pub mod ledger;
mod observe;
pub mod outcomes;
mod profile;
pub mod protocol;
mod routes;
mod server;
pub mod summary;
mod units;

use std::{ffi::OsStr, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context;
use clap::{
    ArgAction, Parser, ValueEnum,
    builder::{NonEmptyStringValueParser, TypedValueParser},
    error::ErrorKind,
};
use runtime::{
    CommonConfig, Shutdown,
    health::{self, Readiness},
};
use signing::SecretKey;

pub use crate::callbacks::CallbackUrl;
use crate::{
    attempts::Attempts, auth::Credentials, ledger::Ledger, observe::Metrics, outcomes::Script,
    routes::Sandbox,
};

const EXAMPLES: &str = "Examples:
  Serve on the default port, with a ledger in the working folder:
    SANDBOX_ACCESS_KEY=sandbox SANDBOX_SECRET_KEY=c2VjcmV0LWtleQ== SANDBOX_LEDGER=ledger.jsonl sandbox
  Load its options into the pipeline's catalogue:
    sandbox catalogue | esimctl option import -
  What was bought:
    curl -s http://127.0.0.1:18090/ledger
  Let a tenth of all calls fail, and lift that again:
    curl -X PUT http://127.0.0.1:18090/faults -d '{\"error_rate\": 0.1}'
    curl -X PUT http://127.0.0.1:18090/faults -d '{}'";

/// The sandbox eSIM provider: speaks the USIMSA protocol, buys nothing real, remembers every purchase
#[derive(Parser, Clone, Debug)]
// Of its commands `serve` and `catalogue` are an argument and `healthcheck` a subcommand: to callers they are one.
#[command(name = "sandbox", version, override_usage = "sandbox [OPTIONS] [COMMAND]", after_help = EXAMPLES)]
pub struct Config {
    /// What to do; `serve` when nothing is said
    #[arg(value_enum)]
    pub command: Option<Command>,
    /// Address of the provider's API, `/ledger` and `/faults`
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:18090")]
    pub listen: SocketAddr,
    /// Where `/livez`, `/readyz` and `/metrics` are served
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:18091")]
    pub admin_listen: SocketAddr,
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
        value_parser = Secret(secret_key),
        required_unless_present = "command",
        required_if_eq("command", "serve")
    )]
    pub secret_key: Option<SecretKey>,
    /// Whether an order id that bought before is refused (code 9003); if not, it buys again
    #[arg(long, env = "SANDBOX_DETECT_DUPLICATES", default_value_t = true, action = ArgAction::Set)]
    pub detect_duplicates: bool,
    /// Where a unit is posted once it has become ready: the whole URL with its secret token, such
    /// as `http://127.0.0.1:18082/callbacks/sandbox/<token>`. No callbacks if it is left out
    #[arg(
        long,
        env = "SANDBOX_CALLBACK_URL",
        hide_env_values = true,
        value_parser = Secret(CallbackUrl::parse)
    )]
    pub callback_url: Option<CallbackUrl>,
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

/// Reads a secret value; its errors don't repeat the value, as clap's own would.
#[derive(Clone)]
struct Secret<T>(fn(&str) -> Result<T, String>);

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Secret<T> {
    type Value = T;

    fn parse_ref(
        &self,
        _: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        (self.0)(&value.to_string_lossy()).map_err(|reason| {
            let name = argument.and_then(clap::Arg::get_long).unwrap_or_default();
            clap::Error::raw(
                ErrorKind::ValueValidation,
                format!("invalid value for '--{name}': {reason}\n"),
            )
        })
    }
}

fn secret_key(text: &str) -> Result<SecretKey, String> {
    SecretKey::from_base64(text).map_err(|error| error.to_string())
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
    let bought = ledger.summary(None);
    let listener = runtime::listener::bind("LISTEN", config.listen).await?;
    health::serve(config.admin_listen, Readiness::new(&shutdown, &[])).await?;
    tracing::info!(
        listen = %listener.local_addr()?,
        admin = %config.admin_listen,
        ledger = %path.display(),
        purchases = bought.purchases,
        units = bought.units,
        "the sandbox provider is open"
    );
    let (callbacks, purchases) = callbacks::Queue::new();
    let faults = Arc::new(faults::Switch::default());
    let sandbox = Arc::new(Sandbox {
        credentials,
        ledger,
        script: Script::default(),
        attempts: Attempts::default(),
        metrics: Metrics::new(Arc::clone(&faults)),
        faults,
        detect_duplicates: config.detect_duplicates,
        callbacks: config.callback_url.is_some().then_some(callbacks),
        shutdown: shutdown.clone(),
    });
    if let Some(url) = config.callback_url {
        let calling = callbacks::run(url, Arc::clone(&sandbox), purchases, shutdown.soft());
        shutdown.spawn("callbacks", calling);
    }
    server::serve(listener, routes::router(sandbox), shutdown).await
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
        for (setting, value) in [
            ("--secret-key", "no*base64"),
            ("--callback-url", "no-url/token"),
            ("--callback-url", "ftp://host/token"),
        ] {
            let error = Config::try_parse_from(["sandbox", setting, value])
                .unwrap_err()
                .to_string();
            assert!(error.contains(setting) && !error.contains(value), "{error}");
        }
    }

    #[test]
    fn the_token_of_the_callback_url_is_not_printed() {
        let url = "http://127.0.0.1:18082/callbacks/sandbox/token";
        let config = Config::try_parse_from(["sandbox", "catalogue", "--callback-url", url]).unwrap();
        assert!(config.detect_duplicates && config.callback_url.is_some());
        assert!(!format!("{config:?}").contains("token"), "{config:?}");
    }
}

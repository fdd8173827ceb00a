//! The sandbox eSIM provider: an upstream of our own that sells nothing real.
//!
//! It speaks the USIMSA protocol over HTTP with that protocol's authentication, so the pipeline buys from it
//! exactly as it buys from a real provider. Each option follows its script ([`script`]), and faults can be
//! set at run time ([`faults`]). Purchases are kept in a ledger ([`ledger`]), which tests compare with what
//! the pipeline delivered: a purchase is in the file before its answer is sent, so a `kill -9` loses none.

mod attempts;
mod auth;
mod callbacks;
mod error;
mod faults;
mod garble;
mod journal;
mod ledger;
mod observe;
mod profile;
mod protocol;
mod purchase;
mod routes;
pub mod script;
mod server;
mod state;
mod summary;
mod units;

use std::{fmt::Display, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context;
use clap::{ArgAction, Parser, ValueEnum, builder::NonEmptyStringValueParser};
use runtime::{
    CommonConfig, Shutdown,
    config::BadSetting,
    health::{self, Readiness},
};
use secrecy::{ExposeSecret, SecretString};
use signing::SecretKey;

use crate::{auth::Credentials, ledger::Ledger, observe::Metrics, state::Sandbox};

const EXAMPLES: &str = "Examples:
  Serve on the default port, with a ledger in the working folder:
    SANDBOX_ACCESS_KEY=sandbox SANDBOX_SECRET_KEY=c2VjcmV0LWtleQ== SANDBOX_LEDGER=ledger.jsonl sandbox
  Load its options into the pipeline's catalogue:
    sandbox catalogue | esimctl option import -
  Show the purchases:
    curl -s http://127.0.0.1:18090/ledger
  Let a tenth of all calls fail, then lift the fault:
    curl -X PUT http://127.0.0.1:18090/faults -d '{\"error_rate\": 0.1}'
    curl -X PUT http://127.0.0.1:18090/faults -d '{}'";

/// The sandbox eSIM provider: speaks the USIMSA protocol, buys nothing real, records every purchase
#[derive(Parser, Clone, Debug)]
// `serve` and `catalogue` are values of an argument, `healthcheck` is a subcommand; the usage shows one COMMAND.
#[command(name = "sandbox", version, override_usage = "sandbox [OPTIONS] [COMMAND]", after_help = EXAMPLES)]
pub struct Config {
    /// The command; `serve` if omitted
    #[arg(value_enum)]
    pub command: Option<Command>,
    /// Address of the provider's API, `/ledger` and `/faults`
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:18090")]
    pub listen: SocketAddr,
    /// Address of `/livez`, `/readyz` and `/metrics`
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:18091")]
    pub admin_listen: SocketAddr,
    /// File of all purchases: JSON lines, created if missing. Activation codes derive from its seed, so
    /// only its owner may read it
    #[arg(long, env = "SANDBOX_LEDGER", required_unless_present = "command", required_if_eq("command", "serve"))]
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
        required_unless_present = "command",
        required_if_eq("command", "serve")
    )]
    pub secret_key: Option<SecretString>,
    /// Whether a repeated order id is refused (code 9003); otherwise it buys again
    #[arg(long, env = "SANDBOX_DETECT_DUPLICATES", default_value_t = true, action = ArgAction::Set)]
    pub detect_duplicates: bool,
    /// URL of callbacks, with its secret token, such as
    /// `http://127.0.0.1:18082/callbacks/sandbox/<token>`. No callbacks if omitted
    #[arg(long, env = "SANDBOX_CALLBACK_URL", hide_env_values = true)]
    pub callback_url: Option<SecretString>,
    #[command(flatten)]
    pub common: CommonConfig,
}

/// The command of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Command {
    /// Serve the provider's API
    Serve,
    /// Print the options as JSON, for `esimctl option import`
    Catalogue,
}

/// Parses a secret setting. The error names it and does not repeat its value, unlike clap's.
fn secret<T, E: Display>(
    name: &str,
    value: Option<&SecretString>,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> anyhow::Result<Option<T>> {
    let parsed = value.map(|value| parse(value.expose_secret()));
    parsed.transpose().map_err(|error| BadSetting::error(format!("{name}: {error}")))
}

/// Serves until `shutdown`. Fails if the ledger cannot be read or the address is not free.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    let path = config.ledger.context("--ledger (SANDBOX_LEDGER) is missing")?;
    let secret_key = secret("SANDBOX_SECRET_KEY", config.secret_key.as_ref(), SecretKey::from_base64)?;
    let credentials = Credentials {
        access_key: config.access_key.context("--access-key (SANDBOX_ACCESS_KEY) is missing")?,
        secret: secret_key.context("--secret-key (SANDBOX_SECRET_KEY) is missing")?,
    };
    let callback_url = secret("SANDBOX_CALLBACK_URL", config.callback_url.as_ref(), callbacks::url)?;
    let ledger = Arc::new(Ledger::open(&path)?);
    let bought = ledger.summary(None);
    let listener = runtime::listener::bind("LISTEN", config.listen).await?;
    health::serve(config.admin_listen, Readiness::new(&shutdown, &[])).await?;
    tracing::info!(
        listen = %listener.local_addr()?,
        admin = %config.admin_listen,
        ledger = %path.display(),
        purchases = bought.purchases,
        units = bought.units,
        "the sandbox provider has started"
    );
    let faults = Arc::new(faults::Switch::default());
    let callbacks = callback_url.map(|url| {
        let (queue, purchases) = callbacks::Queue::new();
        shutdown.spawn("callbacks", callbacks::run(url, Arc::clone(&ledger), purchases, shutdown.soft()));
        queue
    });
    let sandbox = Sandbox {
        credentials,
        ledger,
        attempts: Arc::default(),
        metrics: Arc::new(Metrics::new(Arc::clone(&faults))),
        faults,
        detect_duplicates: config.detect_duplicates,
        callbacks,
        shutdown: shutdown.clone(),
    };
    server::serve(listener, routes::router(sandbox), shutdown).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_secret_is_named_and_not_repeated() {
        let error = |value: &str, parse: fn(&str) -> Result<(), String>| {
            secret("SETTING", Some(&value.into()), parse).unwrap_err().to_string()
        };
        let key = |text: &str| SecretKey::from_base64(text).map(drop).map_err(|error| error.to_string());
        let url = |text: &str| callbacks::url(text).map(drop);
        for (value, error) in [
            ("no*base64", error("no*base64", key)),
            ("no-url/token", error("no-url/token", url)),
            ("ftp://host/token", error("ftp://host/token", url)),
        ] {
            assert!(error.starts_with("SETTING: ") && !error.contains(value), "{error}");
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

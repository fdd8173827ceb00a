//! The sandbox eSIM provider: a provider of our own that sells nothing real.
//!
//! It speaks the protocol of USIMSA over HTTP, with its authentication, so provisioners buy from it
//! exactly as they buy from a real provider. Sandbox partners order from it, and the tests use it
//! to make a provider fail in every way that we can think of: each option follows its script
//! ([`script`]), which says how the sandbox responds to an order of it. Faults of the whole
//! provider are set at run time ([`faults`]). For tests of other adapters, `tests/upstreams` adds
//! further protocols over the same ledger ([`serve`]).
//!
//! Its guarantee is the ledger ([`ledger`]), a file that lists every purchase. A purchase is
//! written to it before the response is sent, so a `kill -9` loses none. Tests compare the ledger
//! with what the pipeline delivered, and so they see whether anything was bought twice or never
//! delivered.
//!
//! ```text
//!              POST /api/v2/order, GET …, POST /api/v2/cancel/…
//! provisioner ───▶ routes ─ faults ─ auth ─ script ─▶ ledger ─▶ file
//!      ▲                                                │
//!      └───────────── callbacks ◀───────────────────────┘
//! test or operator ───▶ /ledger, /faults (without authentication)
//! ```

pub mod after;
mod attempts;
mod auth;
pub mod callbacks;
pub mod channel;
pub mod error;
pub mod faults;
pub mod garble;
mod journal;
pub mod ledger;
mod metrics;
mod observe;
pub mod profile;
pub mod protocol;
pub mod purchase;
mod routes;
pub mod sale;
pub mod script;
mod server;
mod state;
mod summary;
pub mod units;

use std::{fmt::Display, net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::Context;
use clap::{ArgAction, Args, Parser, ValueEnum, builder::NonEmptyStringValueParser};
use reqwest::Url;
use runtime::{
    CommonConfig, Shutdown,
    config::BadSetting,
    health::{self, Readiness},
    terminal,
};
use secrecy::{ExposeSecret, SecretString};
use signing::SecretKey;

pub use self::{
    routes::FurtherProtocols,
    state::{Sandbox, SandboxCredentials},
};
use crate::{
    channel::{CallbackChannel, CallbackQueue},
    ledger::Ledger,
    metrics::Metrics,
};

const EXAMPLES: &str = "Examples:
  Serve on the default port, with a ledger in the working folder:
    SANDBOX_ACCESS_KEY=sandbox SANDBOX_SECRET_KEY=c2VjcmV0LWtleQ== SANDBOX_LEDGER=ledger.jsonl sandbox
  Load its options into the pipeline's catalogue:
    sandbox catalogue | esimctl option apply -f -
  Show the purchases:
    curl -s http://127.0.0.1:18090/ledger
  Let a tenth of all calls fail, then lift the fault:
    curl -X PUT http://127.0.0.1:18090/faults -d '{\"error_rate\": 0.1}'
    curl -X PUT http://127.0.0.1:18090/faults -d '{}'";

/// The sandbox eSIM provider, which sells nothing real and records every purchase
///
/// It speaks the protocol of USIMSA, so the pipeline buys from it as from a real provider.
/// `/ledger` and `/faults` need no authentication: keep the sandbox on a private address.
#[derive(Parser, Clone, Debug)]
// `serve` and `catalogue` are values of an argument, and `healthcheck` is a subcommand, which
// `runtime` adds. The usage shows all three as one COMMAND.
#[command(name = "sandbox", version, override_usage = "sandbox [OPTIONS] [COMMAND]", after_help = EXAMPLES)]
pub struct Config {
    /// What the program does; `serve` if it is left out
    #[arg(value_enum)]
    pub command: Option<SandboxCommand>,
    /// The provider whose options `catalogue` prints
    ///
    /// The options of `usimsa` are live ones. They are for a test system in which the account of
    /// that provider is at the sandbox.
    #[arg(long, default_value = "sandbox", value_parser = ["sandbox", "usimsa"])]
    pub provider: String,
    #[command(flatten)]
    pub serve: ServeConfig,
}

/// What the provider's API needs.
#[derive(Args, Clone, Debug)]
pub struct ServeConfig {
    /// The address of the provider's API, `/ledger` and `/faults`
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:18090")]
    pub listen: SocketAddr,
    /// The address of `/livez`, `/readyz` and `/metrics`
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:18091")]
    pub admin_listen: SocketAddr,
    /// The file that records all purchases
    ///
    /// It consists of JSON lines, and is created if it is missing, readable by its owner only:
    /// whoever knows its seed knows all activation codes. One process at a time can use it.
    #[arg(
        long,
        env = "SANDBOX_LEDGER",
        required_unless_present = "command",
        required_if_eq("command", "serve")
    )]
    pub ledger: Option<PathBuf>,
    /// The access key that callers must send
    #[arg(
        long,
        env = "SANDBOX_ACCESS_KEY",
        hide_env_values = true,
        value_parser = NonEmptyStringValueParser::new(),
        required_unless_present = "command",
        required_if_eq("command", "serve")
    )]
    pub access_key: Option<String>,
    /// The secret key that callers must sign with, in Base64
    #[arg(
        long,
        env = "SANDBOX_SECRET_KEY",
        hide_env_values = true,
        required_unless_present = "command",
        required_if_eq("command", "serve")
    )]
    pub secret_key: Option<SecretString>,
    /// Whether a repeated order id is refused
    ///
    /// A refused repetition gets code 9003. With `false` it buys again, as at a provider without
    /// protection against repeated requests. `PUT /faults` can change this while the sandbox runs.
    #[arg(long, env = "SANDBOX_DETECT_DUPLICATES", default_value_t = true, action = ArgAction::Set)]
    pub detect_duplicates: bool,
    /// The URL of callbacks, including its secret token
    ///
    /// For example `http://127.0.0.1:18082/callbacks/sandbox/<token>`. Without it no callbacks are
    /// sent, and the provisioner finds late profiles by asking again.
    #[arg(long, env = "SANDBOX_CALLBACK_URL", hide_env_values = true)]
    pub callback_url: Option<SecretString>,
    #[command(flatten)]
    pub common: CommonConfig,
}

impl ServeConfig {
    /// Refuses secrets that cannot be used.
    pub fn check(&self) -> anyhow::Result<()> {
        self.secret_key()?;
        self.callback_url().map(drop)
    }

    fn secret_key(&self) -> anyhow::Result<Option<SecretKey>> {
        secret(
            "SANDBOX_SECRET_KEY",
            self.secret_key.as_ref(),
            SecretKey::from_base64,
        )
    }

    fn callback_url(&self) -> anyhow::Result<Option<Url>> {
        secret(
            "SANDBOX_CALLBACK_URL",
            self.callback_url.as_ref(),
            callbacks::url,
        )
    }
}

/// The command of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SandboxCommand {
    /// Serve the provider's API until the process is stopped
    Serve,
    /// Print the options as JSON, for `esimctl option apply`
    Catalogue,
}

/// Parses a setting whose value is secret. The error names the setting but does not repeat the
/// value, as an error of clap would.
pub fn secret<T, E: Display>(
    name: &str,
    value: Option<&SecretString>,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> anyhow::Result<Option<T>> {
    let parsed = value.map(|value| parse(value.expose_secret()));
    parsed
        .transpose()
        .map_err(|error| BadSetting::error(format!("{name}: {error}")))
}

/// Prints a catalogue as JSON. The status is that of the process.
pub fn print(catalogue: &serde_json::Value) -> ExitCode {
    match terminal::print(format_args!("{catalogue:#}")) {
        Err(error) if !terminal::is_closed(&error) => {
            terminal::say(format_args!("sandbox: {error:#}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Serves until `shutdown`.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    serve(config.serve, shutdown, |_| FurtherProtocols::default()).await
}

/// Serves, with further protocols, until `shutdown`. It fails if a setting is missing or wrong, if
/// the ledger cannot be read, or if an address is not free.
pub async fn serve(
    config: ServeConfig,
    shutdown: Shutdown,
    further: impl FnOnce(&Sandbox) -> FurtherProtocols,
) -> anyhow::Result<()> {
    let secret_key = config.secret_key()?;
    let callback_url = config.callback_url()?;
    let path = config
        .ledger
        .context("the file of purchases is not named: set --ledger (SANDBOX_LEDGER)")?;
    let credentials = SandboxCredentials {
        access_key: config
            .access_key
            .context("there is no access key: set --access-key (SANDBOX_ACCESS_KEY)")?,
        secret: secret_key
            .context("there is no secret key: set --secret-key (SANDBOX_SECRET_KEY)")?,
    };
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
    let (callbacks, purchases) = CallbackQueue::new();
    shutdown.spawn(
        "callbacks",
        callbacks::run(Arc::clone(&ledger), purchases, shutdown.soft()),
    );
    let usimsa = callback_url.map(|url| {
        Arc::new(CallbackChannel {
            url,
            messages: Box::new(callbacks::usimsa),
        })
    });
    let sandbox = Sandbox {
        credentials,
        ledger,
        attempts: Arc::default(),
        metrics: Arc::new(Metrics::new(Arc::clone(&faults))),
        faults,
        detect_duplicates: config.detect_duplicates,
        callbacks,
        usimsa,
        shutdown: shutdown.clone(),
    };
    let further = further(&sandbox);
    server::serve(listener, routes::router(sandbox, further), shutdown).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_secret_is_named_and_not_repeated() {
        let error = |value: &str, parse: fn(&str) -> Result<(), String>| {
            secret("SETTING", Some(&value.into()), parse)
                .unwrap_err()
                .to_string()
        };
        let key = |text: &str| {
            SecretKey::from_base64(text)
                .map(drop)
                .map_err(|error| error.to_string())
        };
        let url = |text: &str| callbacks::url(text).map(drop);
        for (value, error) in [
            ("no*base64", error("no*base64", key)),
            ("no-url/token", error("no-url/token", url)),
            ("ftp://host/token", error("ftp://host/token", url)),
        ] {
            assert!(
                error.starts_with("SETTING: ") && !error.contains(value),
                "{error}"
            );
        }
    }

    #[test]
    fn the_token_of_the_callback_url_is_not_printed() {
        let url = "http://127.0.0.1:18082/callbacks/sandbox/token";
        let config =
            Config::try_parse_from(["sandbox", "catalogue", "--callback-url", url]).unwrap();
        assert!(config.serve.detect_duplicates && config.serve.callback_url.is_some());
        assert!(!format!("{config:?}").contains("token"), "{config:?}");
    }
}

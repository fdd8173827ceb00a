//! The upstreams: the sandbox provider, which speaks the protocols of eSIM Access, Airalo
//! and Zendit, too.
//!
//! Only tests need them, so the product does not have them. Everything else is that of the sandbox
//! (`services/sandbox`): the scripts, the faults of the whole provider, and the one ledger that all
//! protocols sell from, so that a test sees by which protocol however often something was bought.

mod airalo;
mod esim_access;
mod form;
mod products;
mod state;
mod zendit;

use std::sync::Arc;

use axum::Router;
use clap::Parser;
use runtime::Shutdown;
use sandbox::{
    FurtherProtocols, SandboxCommand, ServeConfig, callbacks, channel::CallbackChannel, secret,
};
use secrecy::SecretString;
use serde_json::Value;

use crate::state::Upstreams;

/// The providers that tests buy from, which sell nothing real and record every purchase
///
/// It is the sandbox provider, which speaks the protocols of eSIM Access, Airalo and Zendit beside
/// that of USIMSA. `sandbox --help` says what the settings mean.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "upstreams",
    version,
    override_usage = "upstreams [OPTIONS] [COMMAND]"
)]
pub struct Config {
    /// What the program does; `serve` if it is left out
    #[arg(value_enum)]
    pub command: Option<SandboxCommand>,
    /// The provider whose options `catalogue` prints
    ///
    /// Those of another provider than `sandbox` are live options.
    #[arg(long, default_value = "sandbox", value_parser = ["airalo", "esim-access", "sandbox", "usimsa", "zendit"])]
    pub provider: String,
    #[command(flatten)]
    pub serve: ServeConfig,
    /// The URL of callbacks in the protocol of eSIM Access, including its secret token
    ///
    /// For example `http://127.0.0.1:18082/callbacks/esim-access/<token>`. Without it, purchases by
    /// this protocol get no callbacks.
    #[arg(long, env = "SANDBOX_ESIM_ACCESS_CALLBACK_URL", hide_env_values = true)]
    pub esim_access_callback_url: Option<SecretString>,
    /// The same in the protocol of Zendit
    #[arg(long, env = "SANDBOX_ZENDIT_CALLBACK_URL", hide_env_values = true)]
    pub zendit_callback_url: Option<SecretString>,
    /// Further places in the list of packages of Airalo, each with 16 packages
    ///
    /// The real list has about 3,200 packages.
    #[arg(long, default_value_t = 0)]
    pub airalo_places: usize,
}

/// Serves until `shutdown`.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    let url = secret(
        "SANDBOX_ESIM_ACCESS_CALLBACK_URL",
        config.esim_access_callback_url.as_ref(),
        callbacks::url,
    )?;
    let body = esim_access::callback;
    let esim_access = url.map(|url| Arc::new(CallbackChannel { url, body }));
    let url = secret(
        "SANDBOX_ZENDIT_CALLBACK_URL",
        config.zendit_callback_url.as_ref(),
        callbacks::url,
    )?;
    let body = zendit::callback;
    let zendit = url.map(|url| Arc::new(CallbackChannel { url, body }));
    sandbox::serve(config.serve, shutdown, |sandbox| FurtherProtocols {
        routes: Router::new()
            .merge(esim_access::routes())
            .merge(airalo::routes())
            .merge(zendit::routes())
            .with_state(Upstreams {
                sandbox: sandbox.clone(),
                token: airalo::token().into(),
                esim_access,
                zendit,
                zendit_failed: Arc::default(),
                iccids: Arc::default(),
                airalo_places: config.airalo_places,
            }),
        orders: &[esim_access::ORDER, airalo::ORDERS, zendit::PURCHASES],
    })
    .await
}

/// The scripted options of a provider, in the form that `esimctl option apply` reads.
pub fn catalogue(provider: &str) -> Value {
    let price = match provider {
        "airalo" => Some(airalo::PRICE_TEXT),
        "esim-access" => Some(esim_access::PRICE_TEXT),
        "zendit" => Some(zendit::PRICE_TEXT),
        _ => None,
    };
    sandbox::script::catalogue(provider, price)
}

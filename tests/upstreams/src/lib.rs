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
    FurtherProtocols, SandboxCommand, ServeConfig, callbacks,
    channel::{CallbackChannel, CallbackMessage},
    ledger::Ledger,
    profile::UnitNumber,
    purchase::LedgerPurchase,
    secret,
};
use secrecy::SecretString;
use serde_json::Value;
use url::Url;

use crate::state::{Iccids, Upstreams};

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
    /// The same in the protocol of Airalo, which has no callback about an order
    #[arg(long, env = "SANDBOX_AIRALO_CALLBACK_URL", hide_env_values = true)]
    pub airalo_callback_url: Option<SecretString>,
    /// Also send what the providers tell of the use of eSIMs, about those of `in-use`
    #[arg(long)]
    pub events: bool,
    /// Further places in the list of packages of Airalo, each with 16 packages
    ///
    /// The real list has about 3,200 packages.
    #[arg(long, default_value_t = 0)]
    pub airalo_places: usize,
}

/// Serves until `shutdown`.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    let url = |name, value: &Option<SecretString>| secret(name, value.as_ref(), callbacks::url);
    let esim_access = url(
        "SANDBOX_ESIM_ACCESS_CALLBACK_URL",
        &config.esim_access_callback_url,
    )?;
    let zendit = url("SANDBOX_ZENDIT_CALLBACK_URL", &config.zendit_callback_url)?;
    let airalo = url("SANDBOX_AIRALO_CALLBACK_URL", &config.airalo_callback_url)?;
    let iccids = Arc::<Iccids>::default();
    let has_events = config.events;
    let of_esim_access = {
        let iccids = Arc::clone(&iccids);
        channel(esim_access, move |ledger, purchase, unit, option_id| {
            let mut messages = vec![esim_access::made_event(purchase)];
            if has_events {
                messages.extend(esim_access::events_of_use(
                    ledger, &iccids, purchase, unit, option_id,
                ));
            }
            messages
        })
    };
    sandbox::serve(config.serve, shutdown, |sandbox| FurtherProtocols {
        routes: Router::new()
            .merge(esim_access::routes())
            .merge(airalo::routes())
            .merge(zendit::routes())
            .with_state(Upstreams {
                sandbox: sandbox.clone(),
                token: airalo::token().into(),
                esim_access: of_esim_access,
                zendit: channel(zendit, zendit::callback),
                airalo: channel(airalo.filter(|_| has_events), airalo::webhooks(sandbox)),
                zendit_failed: Arc::default(),
                iccids,
                airalo_places: config.airalo_places,
                airalo_pricing: Arc::default(),
                claims: Arc::default(),
            }),
        orders: &[
            esim_access::ORDER,
            esim_access::TOP_UP,
            airalo::ORDERS,
            airalo::TOP_UPS,
            zendit::PURCHASES,
        ],
    })
    .await
}

fn channel(
    url: Option<Url>,
    messages: impl Fn(&Ledger, &LedgerPurchase, UnitNumber, &str) -> Vec<CallbackMessage>
    + Send
    + Sync
    + 'static,
) -> Option<Arc<CallbackChannel>> {
    let messages = Box::new(messages);
    url.map(|url| Arc::new(CallbackChannel { url, messages }))
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

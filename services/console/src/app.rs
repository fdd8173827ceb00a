//! What all handlers share: the database, the settings that they read, and who else may say who
//! somebody is.

use std::sync::Arc;

use desk::operator::sessions::Lifetime;
use pg::Database;
use runtime::config::BadSetting;
use vault::{Keyring, Vault};

use crate::{
    alerts::AlertSender,
    config::{Config, ConsoleEnvironment},
    looks, metrics, openid,
};

/// Clones share everything.
#[derive(Clone)]
pub struct App(Arc<Parts>);

struct Parts {
    database: Database,
    /// The master key for profiles, if activation codes may be shown.
    vault: Option<Vault>,
    /// The master keys for keys and webhook secrets of partners, if new ones may be made.
    partner_vault: Option<Vault>,
    settings: ConsoleSettings,
    product: Arc<SystemLabel>,
    metrics: metrics::Metrics,
    /// Who else may say who somebody is.
    provider: Option<openid::OpenIdProvider>,
    /// What the overview shows.
    figures: looks::SharedSnapshots,
}

/// What the pages are about. Each one says it.
#[derive(Debug)]
pub(crate) struct SystemLabel {
    pub(crate) is_test: bool,
    /// Where it runs.
    pub(crate) place: Option<String>,
}

/// The settings that handlers read.
pub(crate) struct ConsoleSettings {
    /// Browsers reach the console by TLS.
    pub(crate) tls: bool,
    pub(crate) lifetime: Lifetime,
    /// Accounts may sign in with their passwords.
    pub(crate) passwords: bool,
    pub(crate) forwarded: bool,
    pub(crate) trace_url: Option<String>,
}

impl Config {
    /// Refuses what a start refuses after clap has taken it.
    pub fn check(&self) -> anyhow::Result<()> {
        let ca_file = self.openid.ca_file.as_deref();
        let metrics = metrics::AlertMetrics::default();
        AlertSender::open(&self.alerts, &self.console_url, ca_file, metrics)?;
        App::open(self).map(drop)
    }
}

impl App {
    pub(crate) fn open(config: &Config) -> anyhow::Result<Self> {
        let vault = config
            .console_activation_codes
            .then(|| config.master_key.vault(&[Keyring::Profiles]))
            .transpose()
            .map_err(BadSetting::error)?;
        // Who gives the console these keys wants it to make keys and webhook secrets of partners.
        let keys = &config.master_key;
        let makes_keys = keys.master_key_partners.is_some() && keys.master_key_webhooks.is_some();
        let partner_vault = makes_keys
            .then(|| keys.vault(&[Keyring::Partners, Keyring::Webhooks]))
            .transpose()
            .map_err(BadSetting::error)?;
        let database = config.database.open("console").map_err(BadSetting::error)?;
        let provider = openid::OpenIdProvider::open(&config.openid, &config.console_url)?;
        if provider.is_none() && !config.console_passwords {
            return Err(BadSetting::error(
                "nobody could sign in: switch CONSOLE_PASSWORDS on, or set OIDC_ISSUER",
            ));
        }
        Ok(Self(Arc::new(Parts {
            database,
            vault,
            partner_vault,
            settings: ConsoleSettings {
                tls: config.console_url.scheme() == "https",
                lifetime: Lifetime {
                    idle: config.console_session / 12,
                    most: config.console_session,
                },
                passwords: config.console_passwords,
                forwarded: config.console_forwarded,
                trace_url: config.console_trace_url.clone(),
            },
            product: Arc::new(SystemLabel {
                is_test: config.console_environment == ConsoleEnvironment::Test,
                place: config.console_place.clone(),
            }),
            metrics: metrics::Metrics::default(),
            provider,
            figures: looks::SharedSnapshots::default(),
        })))
    }

    pub(crate) fn database(&self) -> &Database {
        &self.0.database
    }

    pub(crate) fn vault(&self) -> Option<&Vault> {
        self.0.vault.as_ref()
    }

    pub(crate) fn partner_vault(&self) -> Option<&Vault> {
        self.0.partner_vault.as_ref()
    }

    pub(crate) fn settings(&self) -> &ConsoleSettings {
        &self.0.settings
    }

    pub(crate) fn product(&self) -> &Arc<SystemLabel> {
        &self.0.product
    }

    pub(crate) fn provider(&self) -> Option<&openid::OpenIdProvider> {
        self.0.provider.as_ref()
    }

    pub(crate) fn figures(&self) -> &looks::SharedSnapshots {
        &self.0.figures
    }

    pub(crate) fn metrics(&self) -> &metrics::Metrics {
        &self.0.metrics
    }
}

//! All providers that can be named in `PROVIDERS`, and our accounts at them. This module makes the
//! options of the command line and the environment variables from their lists of settings, so a new
//! provider needs no struct of its own.

use std::collections::BTreeMap;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use runtime::config::BadSetting;
use secrecy::SecretString;

use super::{
    account::{KnownProvider, ProviderAccount, variable},
    airalo, esim_access,
    provider::{PacedCalls, ProviderConnection},
    sandbox, usimsa,
};

/// All providers that can be configured.
const KNOWN: [KnownProvider; 4] = [
    airalo::KNOWN,
    esim_access::KNOWN,
    sandbox::KNOWN,
    usimsa::KNOWN,
];

/// Our accounts at all known providers.
#[derive(Clone, Debug)]
pub struct Accounts(BTreeMap<&'static str, ProviderAccount>);

impl Default for Accounts {
    /// No account has any setting.
    fn default() -> Self {
        let account = |known: &KnownProvider| (known.name, ProviderAccount::new(known.name));
        Self(KNOWN.iter().map(account).collect())
    }
}

impl Accounts {
    /// Accounts with one setting changed. Changes nothing if the provider has no such setting.
    #[must_use]
    pub fn with(mut self, provider: &str, setting: &str, value: &str) -> Self {
        self.set(provider, setting, value.into());
        self
    }

    fn set(&mut self, provider: &str, setting: &str, value: SecretString) {
        let known = KNOWN.iter().find(|known| known.name == provider);
        let setting = known.and_then(|known| {
            let variable = variable(known.name, setting);
            known.settings.iter().find(|one| one.variable == variable)
        });
        if let (Some(account), Some(setting)) = (self.0.get_mut(provider), setting) {
            account.values.insert(setting.variable, value);
        }
    }

    /// The value of a setting of a provider.
    pub fn get(&self, provider: &str, setting: &str) -> Option<&str> {
        self.0.get(provider)?.get(setting)
    }

    /// Creates the adapter of the provider with this name. Errors name the setting.
    pub fn connect(&self, name: &str, paced: PacedCalls) -> anyhow::Result<ProviderConnection> {
        let known = KNOWN.iter().find(|known| known.name == name);
        let (Some(known), Some(account)) = (known, self.0.get(name)) else {
            let names = KNOWN.map(|known| known.name).join(", ");
            return Err(BadSetting::error(format!(
                "{name:?} is not a provider that PROVIDERS can name; known are {names}"
            )));
        };
        (known.connect)(account, paced)
    }
}

impl Args for Accounts {
    fn augment_args(command: Command) -> Command {
        let settings = KNOWN.into_iter().flat_map(|known| {
            let settings = known.settings.iter();
            settings.map(move |setting| (known.heading, *setting))
        });
        command.args(settings.map(|(heading, setting)| {
            Arg::new(setting.variable)
                .long(setting.option)
                .env(setting.variable)
                .help(setting.help)
                .help_heading(heading)
                .hide_env_values(setting.is_secret())
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Accounts {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut accounts = Self::default();
        accounts.update_from_arg_matches(matches)?;
        Ok(accounts)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for known in KNOWN {
            for setting in known.settings {
                let value = matches.get_one::<String>(setting.variable);
                if let (Some(account), Some(value)) = (self.0.get_mut(known.name), value) {
                    let value = value.as_str().into();
                    account.values.insert(setting.variable, value);
                }
            }
        }
        Ok(())
    }
}

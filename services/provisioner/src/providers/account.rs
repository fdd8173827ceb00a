//! The settings of our accounts at the providers.
//!
//! Each provider lists its settings beside its adapter ([`KnownProvider::settings`]), and reads them
//! from its [`Account`] by the ends of their names, such as `ACCESS_KEY`. This module makes the options of the command line and the
//! environment variables from the lists, so a new provider needs no struct of its own. A variable
//! is the provider's name in capitals, with `_` for `-`, followed by the name of the setting, for
//! example `ESIM_ACCESS_URL`. Every error names the variable that is wrong.

use std::{collections::BTreeMap, fmt::Display};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use reqwest::{Url, header::HeaderValue};
use runtime::config::BadSetting;
use secrecy::{ExposeSecret, SecretString};
use signing::{SecretKey, Token};

use super::{Connected, KNOWN, KnownProvider, Paced};

/// A setting of an account.
#[derive(Clone, Copy)]
pub struct Setting {
    /// Its environment variable, such as `USIMSA_URL`.
    pub variable: &'static str,
    /// Its option on the command line, without `--`.
    pub option: &'static str,
    /// What it is, as the help of the program says it.
    pub help: &'static str,
}

impl Setting {
    /// The token of a provider that calls back.
    pub(super) const fn callback_token(variable: &'static str, option: &'static str) -> Self {
        Self {
            variable,
            option,
            help: "Token in the URL of callbacks from this provider: at least 16 letters, digits, `-` \
                   or `_`. It is the secret by which a callback is recognised, so make it random. \
                   Without a token the provider cannot call back, and profiles are asked for on a \
                   schedule only",
        }
    }

    /// Everything but the address is a key or a token. Help and logs do not show their values, and
    /// they may come from files.
    fn is_secret(self) -> bool {
        !self.variable.ends_with("_URL")
    }
}

/// The settings of one account, as they were given.
#[derive(Clone, Debug)]
pub struct Account {
    /// The provider's name in `PROVIDERS`.
    provider: &'static str,
    values: BTreeMap<&'static str, SecretString>,
}

impl Account {
    fn new(provider: &'static str) -> Self {
        Self {
            provider,
            values: BTreeMap::new(),
        }
    }

    /// The value of a setting, if it is set.
    pub fn get(&self, setting: &str) -> Option<&str> {
        let variable = variable(self.provider, setting);
        self.values
            .get(variable.as_str())
            .map(ExposeSecret::expose_secret)
    }

    /// The value of a setting without which the account cannot be used.
    pub(super) fn text(&self, setting: &str) -> anyhow::Result<&str> {
        self.get(setting).ok_or_else(|| {
            BadSetting::error(format!(
                "PROVIDERS names {}, but {} is not set: set it, or remove the provider from \
                 PROVIDERS",
                self.provider,
                variable(self.provider, setting)
            ))
        })
    }

    /// The base URL of the provider.
    pub(super) fn url(&self) -> anyhow::Result<Url> {
        let url = Url::parse(self.text("URL")?).map_err(|error| self.bad("URL", &error))?;
        if matches!(url.scheme(), "http" | "https") {
            return Ok(url);
        }
        Err(self.bad(
            "URL",
            &"it is not an http or https address, such as https://provider.example",
        ))
    }

    /// The value of a setting as a header that is not logged.
    pub(super) fn header(&self, setting: &str) -> anyhow::Result<HeaderValue> {
        let mut header = HeaderValue::from_str(self.text(setting)?).map_err(|_| {
            self.bad(
                setting,
                &"it contains characters that an HTTP header may not have; check for line breaks \
                  and other invisible characters",
            )
        })?;
        header.set_sensitive(true);
        Ok(header)
    }

    /// The key of signatures, given as Base64.
    pub(super) fn base64_key(&self) -> anyhow::Result<SecretKey> {
        SecretKey::from_base64(self.text("SECRET_KEY")?)
            .map_err(|error| self.bad("SECRET_KEY", &error))
    }

    /// The key of signatures, whose bytes are the characters of the setting.
    pub(super) fn text_key(&self) -> anyhow::Result<SecretKey> {
        SecretKey::from_bytes(self.text("SECRET_KEY")?.trim().as_bytes().to_vec())
            .map_err(|error| self.bad("SECRET_KEY", &error))
    }

    /// The token in the URL of callbacks; `None` if the provider does not call back.
    pub(super) fn callback_token(&self) -> anyhow::Result<Option<Token>> {
        let token = self.get("CALLBACK_TOKEN").map(Token::parse).transpose();
        token.map_err(|error| self.bad("CALLBACK_TOKEN", &error))
    }

    fn bad(&self, setting: &str, error: &dyn Display) -> anyhow::Error {
        BadSetting::error(format!("{}: {error}", variable(self.provider, setting)))
    }
}

/// The environment variable of a setting.
fn variable(provider: &str, setting: &str) -> String {
    let prefix = provider.to_uppercase().replace('-', "_");
    format!("{prefix}_{setting}")
}

/// Our accounts at all known providers.
#[derive(Clone, Debug)]
pub struct Accounts(BTreeMap<&'static str, Account>);

impl Default for Accounts {
    /// No account has any setting.
    fn default() -> Self {
        let account = |known: &KnownProvider| (known.name, Account::new(known.name));
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
    pub fn connect(&self, name: &str, paced: Paced) -> anyhow::Result<Connected> {
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

//! The settings of our account at one provider.
//!
//! Each provider lists its settings beside its adapter ([`KnownProvider::settings`]), and reads
//! them from its [`ProviderAccount`] by the ends of their names, such as `ACCESS_KEY`. A variable
//! is the provider's name in capitals, with `_` for `-`, followed by the name of the setting, for
//! example `ESIM_ACCESS_URL`. Every error names the variable that is wrong.

use std::{collections::BTreeMap, fmt::Display};

use reqwest::{Url, header::HeaderValue};
use runtime::config::BadSetting;
use secrecy::{ExposeSecret, SecretString};
use signing::{CallbackToken, SecretKey};

use super::provider::{PacedCalls, ProviderConnection};

/// A provider that can be named in `PROVIDERS`. The module of each one owns its settings, its
/// protocol and the reading of its callbacks.
#[derive(Clone, Copy)]
pub(super) struct KnownProvider {
    /// Letters, digits and `-`.
    pub(super) name: &'static str,
    /// Above its settings in the help.
    pub(super) heading: &'static str,
    /// The settings of our account.
    pub(super) settings: &'static [AccountSetting],
    /// Creates the adapter of an account. Errors name the setting.
    pub(super) connect: fn(&ProviderAccount, PacedCalls) -> anyhow::Result<ProviderConnection>,
}

/// A setting of an account.
#[derive(Clone, Copy)]
pub struct AccountSetting {
    /// Its environment variable, such as `USIMSA_URL`.
    pub variable: &'static str,
    /// Its option on the command line, without `--`.
    pub option: &'static str,
    /// What it is, as the help of the program says it.
    pub help: &'static str,
}

impl AccountSetting {
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
    pub(super) fn is_secret(self) -> bool {
        !self.variable.ends_with("_URL")
    }
}

/// The settings of one account, as they were given.
#[derive(Clone, Debug)]
pub struct ProviderAccount {
    /// The provider's name in `PROVIDERS`.
    provider: &'static str,
    pub(super) values: BTreeMap<&'static str, SecretString>,
}

impl ProviderAccount {
    pub(super) fn new(provider: &'static str) -> Self {
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
    pub(super) fn callback_token(&self) -> anyhow::Result<Option<CallbackToken>> {
        let token = self
            .get("CALLBACK_TOKEN")
            .map(CallbackToken::parse)
            .transpose();
        token.map_err(|error| self.bad("CALLBACK_TOKEN", &error))
    }

    fn bad(&self, setting: &str, error: &dyn Display) -> anyhow::Error {
        BadSetting::error(format!("{}: {error}", variable(self.provider, setting)))
    }
}

/// The environment variable of a setting.
pub(super) fn variable(provider: &str, setting: &str) -> String {
    let prefix = provider.to_uppercase().replace('-', "_");
    format!("{prefix}_{setting}")
}

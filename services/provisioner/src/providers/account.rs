//! The settings of an account that has an access key and a secret key. Each adapter declares them
//! under names of its own, with its own help text. This module checks them for all adapters, so
//! that every error names the environment variable that is wrong.

use reqwest::Url;
use runtime::config::BadSetting;
use secrecy::{ExposeSecret, SecretString};
use signing::{SecretKey, Token};

/// An account, checked.
pub(super) struct Credentials {
    /// The base URL of the provider.
    pub(super) url: Url,
    pub(super) access_key: String,
    pub(super) secret_key: SecretKey,
    /// The token in the URL of callbacks; `None` if the provider does not call back.
    pub(super) callback_token: Option<Token>,
}

/// How a provider writes the secret key of an account.
#[derive(Clone, Copy)]
pub(super) enum SecretForm {
    Base64,
    /// The characters themselves are the bytes of the key.
    Text,
}

/// The settings of an account as they were given.
pub(super) struct Settings<'a> {
    /// The provider's name in `PROVIDERS`.
    pub(super) provider: &'a str,
    /// The start of the names of its variables, for example `USIMSA`.
    pub(super) prefix: &'a str,
    pub(super) url: Option<&'a Url>,
    pub(super) access_key: Option<&'a str>,
    pub(super) secret_key: Option<&'a SecretString>,
    pub(super) secret_form: SecretForm,
    pub(super) callback_token: Option<&'a SecretString>,
}

impl Settings<'_> {
    /// Checks the settings. Errors name the variable.
    pub(super) fn check(&self) -> anyhow::Result<Credentials> {
        let url = self.url.ok_or_else(|| self.missing("URL"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(BadSetting::error(format!(
                "{}_URL is not an http or https address, such as https://provider.example",
                self.prefix
            )));
        }
        let access_key = self.access_key.ok_or_else(|| self.missing("ACCESS_KEY"))?;
        let secret_key = self.secret_key.ok_or_else(|| self.missing("SECRET_KEY"))?;
        let secret_key = match self.secret_form {
            SecretForm::Base64 => SecretKey::from_base64(secret_key.expose_secret()),
            SecretForm::Text => {
                SecretKey::from_bytes(secret_key.expose_secret().trim().as_bytes().to_vec())
            }
        };
        let callback_token = self
            .callback_token
            .map(|token| Token::parse(token.expose_secret()))
            .transpose();
        Ok(Credentials {
            url: url.clone(),
            access_key: access_key.to_owned(),
            secret_key: secret_key.map_err(|error| self.bad("SECRET_KEY", &error))?,
            callback_token: callback_token.map_err(|error| self.bad("CALLBACK_TOKEN", &error))?,
        })
    }

    /// A provider is configured, but one of its settings is not.
    fn missing(&self, setting: &str) -> anyhow::Error {
        BadSetting::error(format!(
            "PROVIDERS names {}, but {}_{setting} is not set: set it, or remove the provider from \
             PROVIDERS",
            self.provider, self.prefix
        ))
    }

    fn bad(&self, setting: &str, error: &dyn std::fmt::Display) -> anyhow::Error {
        BadSetting::error(format!("{}_{setting}: {error}", self.prefix))
    }
}

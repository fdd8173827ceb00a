//! The adapter of the sandbox, our own provider for tests. The sandbox speaks the protocol of
//! USIMSA, so only the settings of the account are here.

use reqwest::Url;
use secrecy::SecretString;

use super::{Connected, Limits, account, usimsa};

/// The settings of our account.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
#[command(next_help_heading = "Provider `sandbox`")]
pub struct Account {
    /// Base URL of the sandbox, for example `http://sandbox:8090`
    #[arg(id = "sandbox_url", long = "sandbox-url", env = "SANDBOX_URL")]
    pub url: Option<Url>,

    /// Access key of our account at the sandbox
    #[arg(
        id = "sandbox_access_key",
        long = "sandbox-access-key",
        env = "SANDBOX_ACCESS_KEY",
        hide_env_values = true
    )]
    pub access_key: Option<String>,

    /// Secret key of our account at the sandbox, Base64
    #[arg(
        id = "sandbox_secret_key",
        long = "sandbox-secret-key",
        env = "SANDBOX_SECRET_KEY",
        hide_env_values = true
    )]
    pub secret_key: Option<SecretString>,

    /// Token in the URL of callbacks from the sandbox: at least 16 letters, digits, `-` or `_`
    ///
    /// It is the secret by which a callback is recognised, so make it random. Without a token this
    /// provider cannot call back, and profiles are asked for on a schedule only.
    #[arg(
        id = "sandbox_callback_token",
        long = "sandbox-callback-token",
        env = "SANDBOX_CALLBACK_TOKEN",
        hide_env_values = true
    )]
    pub callback_token: Option<SecretString>,
}

/// Connects to the account. Errors name the setting.
pub fn connect(account: &Account, limits: Limits) -> anyhow::Result<Connected> {
    let settings = account::Settings {
        provider: "sandbox",
        prefix: "SANDBOX",
        url: account.url.as_ref(),
        access_key: account.access_key.as_deref(),
        secret_key: account.secret_key.as_ref(),
        secret_form: account::SecretForm::Base64,
        callback_token: account.callback_token.as_ref(),
    };
    usimsa::adapter(settings.check()?, limits, usimsa::Dialect::Sandbox)
}

//! The settings of an account at a provider: `<NAME>_URL`, `…_ACCESS_KEY`, `…_SECRET_KEY`, `…_CALLBACK_TOKEN`.

use reqwest::Url;
use runtime::config::BadSetting;
use secrecy::{ExposeSecret, SecretString};
use signing::{SecretKey, Token};

pub struct Credentials {
    /// The base URL of the provider.
    pub url: Url,
    pub access_key: String,
    pub secret_key: SecretKey,
    /// The token in the URL of callbacks; `None` if the provider does not call back.
    pub callback_token: Option<Token>,
}

/// Declares `Account`: `account!(name, prefix of the variables, name in the help, help of the URL)`.
macro_rules! account {
    ($name:literal, $prefix:literal, $shown:literal, $url:literal) => {
        /// The settings of an account.
        #[derive(clap::Args, Clone, Debug, Default)]
        #[group(skip)]
        #[command(next_help_heading = concat!("Provider `", $name, "`"))]
        pub struct Account {
            #[arg(id = concat!($name, "_url"), long = concat!($name, "-url"), env = concat!($prefix, "_URL"), help = $url)]
            pub url: Option<reqwest::Url>,
            #[arg(id = concat!($name, "_access_key"), long = concat!($name, "-access-key"), env = concat!($prefix, "_ACCESS_KEY"),
                hide_env_values = true, help = concat!("Access key of our account at ", $shown))]
            pub access_key: Option<String>,
            #[arg(id = concat!($name, "_secret_key"), long = concat!($name, "-secret-key"), env = concat!($prefix, "_SECRET_KEY"),
                hide_env_values = true, help = concat!("Secret key of our account at ", $shown, ", Base64"))]
            pub secret_key: Option<secrecy::SecretString>,
            #[arg(id = concat!($name, "_callback_token"), long = concat!($name, "-callback-token"), env = concat!($prefix, "_CALLBACK_TOKEN"),
                hide_env_values = true, help = "Token in the callback URL: at least 16 letters, digits, `-` or `_`")]
            pub callback_token: Option<secrecy::SecretString>,
        }

        impl Account {
            /// Checks the settings. Errors name the variable.
            pub fn credentials(&self) -> anyhow::Result<$crate::providers::account::Credentials> {
                let Self { url, access_key, secret_key, callback_token } = self.clone();
                $crate::providers::account::credentials($name, $prefix, url, access_key, secret_key, callback_token)
            }
        }
    };
}
pub(super) use account;

pub(super) fn credentials(
    name: &str,
    prefix: &str,
    url: Option<Url>,
    access_key: Option<String>,
    secret_key: Option<SecretString>,
    callback_token: Option<SecretString>,
) -> anyhow::Result<Credentials> {
    let missing =
        |setting: &str| BadSetting::error(format!("PROVIDERS names {name}, but {prefix}_{setting} is not set"));
    let bad = |setting: &str, error: &dyn std::fmt::Display| BadSetting::error(format!("{prefix}_{setting}: {error}"));
    let url = url.ok_or_else(|| missing("URL"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(BadSetting::error(format!("{prefix}_URL is not an http or https address")));
    }
    let secret_key = secret_key.ok_or_else(|| missing("SECRET_KEY"));
    Ok(Credentials {
        url,
        access_key: access_key.ok_or_else(|| missing("ACCESS_KEY"))?,
        secret_key: SecretKey::from_base64(secret_key?.expose_secret()).map_err(|error| bad("SECRET_KEY", &error))?,
        callback_token: callback_token
            .map(|token| Token::parse(token.expose_secret()))
            .transpose()
            .map_err(|error| bad("CALLBACK_TOKEN", &error))?,
    })
}

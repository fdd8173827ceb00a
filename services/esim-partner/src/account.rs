//! The account's keys, and signed requests to the API.
//!
//! [`Account::send`] is the only way in which the commands talk to the service. It signs the
//! method, the path, the query and the body, and returns a response of any status: the caller
//! decides what a status means. It never repeats a request, because only the caller knows whether
//! that is safe, and it follows no redirects, because a signed request must not go to another host.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use clap::Args;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;
use signing::{SecretKey, webhook::Secret};

use crate::profile;

const API: &str = "/api/v1/api_partner";
/// The timeout of a whole request. With a shorter one, more orders would end without an answer, and
/// each of these has to be repeated.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of entries of a page.
pub(crate) const PAGE: usize = 100;
/// The characters to percent-encode: all except the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Percent-encodes a segment of a path, or a value of a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[derive(Args, Clone, Debug)]
pub(crate) struct AccountConfig {
    /// Read the keys from this file, which has lines such as `ACCESS_KEY=…`
    #[arg(long, value_name = "FILE", global = true)]
    keys: Option<PathBuf>,
    /// Use the keys that `login` stored under this name [default: default]
    ///
    /// Names keep several accounts apart, for example a sandbox account and a live one.
    #[arg(long, value_name = "NAME", global = true, conflicts_with = "keys", value_parser = profile::name)]
    profile: Option<String>,
}

impl AccountConfig {
    pub(crate) fn file(&self) -> anyhow::Result<PathBuf> {
        profile::file(self.profile.as_deref())
    }
}

/// The account's settings by name, and the client that sends its requests.
pub(crate) struct Account {
    pub(crate) settings: BTreeMap<String, String>,
    http: reqwest::Client,
}

/// A response of any status.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) codes: String,
    request_id: String,
    pub(crate) date: String,
    /// The body as sent.
    pub(crate) text: String,
    /// The body; null if it isn't JSON.
    pub(crate) json: Value,
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether the same request may succeed later.
    pub(crate) fn is_temporary(&self) -> bool {
        self.status >= 500 || self.status == 429
    }

    /// The status, the error codes and the id of the request, for people. With the id we can find
    /// the request in our logs.
    pub(crate) fn summary(&self) -> String {
        let status = self.status;
        let codes = &self.codes;
        let id = &self.request_id;
        format!("HTTP status {status} {codes} (request {id})")
    }

    /// The JSON of a 2xx; an error for any other status.
    pub(crate) fn success<T: DeserializeOwned>(self) -> anyhow::Result<T> {
        ensure!(self.is_success(), "{}", self.summary());
        serde_json::from_value(self.json)
            .context("the answer has an unexpected form: check BASE_URL, and whether a newer esim-partner exists")
    }
}

/// A builder of a client that follows no redirects and has this timeout for the whole exchange.
pub(crate) fn http(timeout: Duration) -> reqwest::ClientBuilder {
    // This fails only if a cryptography provider is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(timeout)
}

impl Account {
    /// Reads the settings from the file that `--keys` names. Otherwise they come from the
    /// environment if it has a key and no profile is named, and otherwise from the file that
    /// `login` stored. Sources are never mixed, because a key of one account with the secret of
    /// another would only give a puzzling 401.
    pub(crate) fn read(config: &AccountConfig) -> anyhow::Result<Self> {
        let environment =
            || std::env::vars().filter(|(name, _)| profile::NAMES.contains(&name.as_str()));
        let settings = match &config.keys {
            Some(file) => profile::read(file)?,
            None if config.profile.is_none()
                && environment().any(|(name, _)| name != "BASE_URL" && name != "BRAND") =>
            {
                environment().collect()
            }
            None => {
                let file = config.file()?;
                let absent = config.profile.is_none() && !file.exists();
                if absent {
                    BTreeMap::new()
                } else {
                    profile::read(&file)?
                }
            }
        };
        Self::with(settings)
    }

    pub(crate) fn with(settings: BTreeMap<String, String>) -> anyhow::Result<Self> {
        let http = http(TIMEOUT)
            .build()
            .context("cannot create an HTTP client")?;
        Ok(Self { settings, http })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.settings
            .get(name)
            .is_some_and(|value| !value.is_empty())
    }

    fn setting(&self, name: &str) -> anyhow::Result<&str> {
        let value = self.settings.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty()).with_context(|| {
            format!(
                "{name} is not set: run `esim-partner login`, set it in the file of --keys, or set all keys in the environment"
            )
        })
    }

    /// The secret that signs the account's webhooks.
    pub(crate) fn webhook_secret(&self) -> anyhow::Result<Secret> {
        Secret::parse(self.setting("WEBHOOK_SECRET")?)
            .context("WEBHOOK_SECRET is not a webhook secret, which begins with whsec_")
    }

    /// Sends a request whose signature covers the query and the body. `path` is the part after the
    /// API's prefix, percent-encoded.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        query: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Answer> {
        // The client would resolve such segments before it sends the request, and ask for another
        // path.
        ensure!(
            !path.split('/').any(|segment| matches!(segment, "." | "..")),
            "the ids . and .. have a meaning of their own in a URL and cannot be looked up; use another id"
        );
        let access_key = self.setting("ACCESS_KEY")?;
        let path = format!("{API}{path}");
        let secret = SecretKey::from_base64(self.setting("SECRET_KEY")?)
            .context("SECRET_KEY is not a secret key in Base64")?;
        let timestamp = runtime::clock::unix_seconds().to_string();
        let separator = if query.is_empty() { "" } else { "?" };
        let target = format!("{path}{separator}{query}");
        let text = body.map(Value::to_string).unwrap_or_default();
        let digest = signing::request::digest(text.as_bytes());
        let signature =
            signing::request::sign_whole(&secret, method, &target, &timestamp, access_key, &digest);
        let base_url = self.setting("BASE_URL")?.trim_end_matches('/');
        let brand = self.setting("BRAND").unwrap_or("Service");
        let method = Method::from_bytes(method.as_bytes())?;
        let mut request = self
            .http
            .request(method, format!("{base_url}{target}"))
            .header(format!("X-{brand}-Access-Key"), access_key)
            .header(format!("X-{brand}-Timestamp"), timestamp)
            .header(format!("X-{brand}-Content-SHA256"), digest)
            .header(format!("X-{brand}-Signature"), signature);
        if body.is_some() {
            request = request
                .header("Content-Type", "application/json")
                .body(text);
        }
        let answer = request.send().await.context("no answer from the API")?;
        let header = |name: &str| {
            answer
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned()
        };
        let codes = header(&format!("x-{brand}-error"));
        let request_id = header("x-request-id");
        let date = header("date");
        let status = answer.status().as_u16();
        let text = answer
            .text()
            .await
            .context("the answer of the API broke off")?;
        let json = serde_json::from_str(&text).unwrap_or_default();
        Ok(Answer {
            status,
            codes,
            request_id,
            date,
            text,
            json,
        })
    }

    /// Sends a signed GET, and returns the JSON of a 2xx.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &str,
    ) -> anyhow::Result<T> {
        self.send("GET", path, query, None).await?.success()
    }
}

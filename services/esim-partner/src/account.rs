//! The account's keys, and signed requests.

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
/// The timeout of a request. A shorter one would leave more outcomes unknown.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most entries of a page.
pub(crate) const PAGE: usize = 100;
/// All characters except RFC 3986's unreserved ones.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A percent-encoded segment of a path, or value of a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[derive(Args, Clone, Debug)]
pub(crate) struct AccountConfig {
    /// File with lines such as `ACCESS_KEY=…`
    #[arg(long, value_name = "FILE", global = true)]
    keys: Option<PathBuf>,
    /// Name of the keys that `login` stores [default: default]
    #[arg(long, value_name = "NAME", global = true, conflicts_with = "keys", value_parser = profile::name)]
    profile: Option<String>,
}

impl AccountConfig {
    pub(crate) fn file(&self) -> anyhow::Result<PathBuf> {
        profile::file(self.profile.as_deref())
    }
}

/// The account's settings, by name.
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

    /// The status, the codes and the request's id, for people.
    pub(crate) fn summary(&self) -> String {
        let (status, codes, id) = (self.status, &self.codes, &self.request_id);
        format!("HTTP status {status} {codes} (request {id})")
    }

    /// The JSON of a 2xx.
    pub(crate) fn success<T: DeserializeOwned>(self) -> anyhow::Result<T> {
        ensure!(self.is_success(), "{}", self.summary());
        serde_json::from_value(self.json).context("the response has an unexpected form")
    }
}

/// A builder of a client without redirects, with a timeout for the whole exchange.
pub(crate) fn http(timeout: Duration) -> reqwest::ClientBuilder {
    // Fails only if a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(timeout)
}

impl Account {
    /// Reads the file that is named, or else the environment if it holds a key, or else the stored keys.
    pub(crate) fn read(config: &AccountConfig) -> anyhow::Result<Self> {
        let environment = || std::env::vars().filter(|(name, _)| profile::NAMES.contains(&name.as_str()));
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
                if absent { BTreeMap::new() } else { profile::read(&file)? }
            }
        };
        Self::with(settings)
    }

    pub(crate) fn with(settings: BTreeMap<String, String>) -> anyhow::Result<Self> {
        let http = http(TIMEOUT).build().context("cannot create an HTTP client")?;
        Ok(Self { settings, http })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.settings.get(name).is_some_and(|value| !value.is_empty())
    }

    fn setting(&self, name: &str) -> anyhow::Result<&str> {
        let value = self.settings.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty()).with_context(|| {
            format!(
                "{name} is not set: run `esim-partner login`, or set it in the file of --keys or in the environment"
            )
        })
    }

    /// The secret that signs the account's webhooks.
    pub(crate) fn webhook_secret(&self) -> anyhow::Result<Secret> {
        Secret::parse(self.setting("WEBHOOK_SECRET")?).context("WEBHOOK_SECRET")
    }

    /// Sends a request whose signature covers query and body. `path` is below the API's prefix, percent-encoded.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        query: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Answer> {
        // A URL has no such segments: they would be resolved before the request is sent.
        ensure!(
            !path.split('/').any(|segment| matches!(segment, "." | "..")),
            "the ids . and .. cannot stand in a URL; use another id"
        );
        let (access_key, path) = (self.setting("ACCESS_KEY")?, format!("{API}{path}"));
        let secret = SecretKey::from_base64(self.setting("SECRET_KEY")?).context("SECRET_KEY")?;
        let timestamp = runtime::clock::unix_seconds().to_string();
        let separator = if query.is_empty() { "" } else { "?" };
        let target = format!("{path}{separator}{query}");
        let text = body.map(Value::to_string).unwrap_or_default();
        let digest = signing::request::digest(text.as_bytes());
        let signature = signing::request::sign_whole(&secret, method, &target, &timestamp, access_key, &digest);
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
            request = request.header("Content-Type", "application/json").body(text);
        }
        let answer = request.send().await.context("no answer")?;
        let header = |name: &str| {
            answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        let codes = header(&format!("x-{brand}-error"));
        let (request_id, date) = (header("x-request-id"), header("date"));
        let status = answer.status().as_u16();
        let text = answer.text().await.context("the answer broke off")?;
        let json = serde_json::from_str(&text).unwrap_or_default();
        Ok(Answer { status, codes, request_id, date, text, json })
    }

    /// The JSON of a signed GET.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str, query: &str) -> anyhow::Result<T> {
        self.send("GET", path, query, None).await?.success()
    }
}

//! The account's keys, and signed requests.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use reqwest::Method;
use serde_json::Value;
use signing::{SecretKey, webhook::Secret};

const API: &str = "/api/v1/api_partner";
/// A shorter timeout only leaves more orders in doubt.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The waits before an order without a definite answer is sent again.
const RETRIES: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];

#[derive(Args, Clone, Debug)]
pub(crate) struct AccountConfig {
    /// File with lines such as `ACCESS_KEY=…`; without it, the environment counts
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
}

/// The account's settings, by name.
pub(crate) struct Account {
    settings: HashMap<String, String>,
    http: reqwest::Client,
}

/// A response of any status.
pub(crate) struct Answer {
    status: u16,
    /// The codes of the errors.
    codes: String,
    request_id: String,
    /// The body; null if it isn't JSON.
    pub(crate) json: Value,
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The status, the codes and the request's id, for people.
    pub(crate) fn told(&self) -> String {
        let Self {
            status,
            codes,
            request_id,
            ..
        } = self;
        format!("HTTP status {status} {codes} (request {request_id})")
    }
}

/// A client without redirects, with a timeout for the whole exchange.
pub(crate) fn http(timeout: Duration) -> anyhow::Result<reqwest::Client> {
    // Fails only if a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(timeout)
        .build();
    client.context("cannot create an HTTP client")
}

impl Account {
    /// Reads the keys file, or the environment.
    pub(crate) fn read(config: &AccountConfig) -> anyhow::Result<Self> {
        let settings = match &config.keys {
            Some(file) => {
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("cannot read the keys file {}", file.display()))?;
                let pairs = text.lines().filter_map(|line| line.split_once('='));
                pairs
                    .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
                    .collect()
            }
            None => std::env::vars().collect(),
        };
        Ok(Self {
            settings,
            http: http(TIMEOUT)?,
        })
    }

    fn setting(&self, name: &str) -> anyhow::Result<&str> {
        let value = self.settings.get(name).map(String::as_str);
        value
            .filter(|value| !value.is_empty())
            .with_context(|| format!("{name} is not set, in the keys file or the environment"))
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
        let (access_key, path) = (self.setting("ACCESS_KEY")?, format!("{API}{path}"));
        let secret = SecretKey::from_base64(self.setting("SECRET_KEY")?).context("SECRET_KEY")?;
        let timestamp = runtime::clock::unix_seconds().to_string();
        let separator = if query.is_empty() { "" } else { "?" };
        let target = format!("{path}{separator}{query}");
        let text = body.map(Value::to_string).unwrap_or_default();
        let digest = signing::request::digest(text.as_bytes());
        let signature =
            signing::request::sign_whole(&secret, method, &target, &timestamp, access_key, &digest);
        let base_url = self.setting("BASE_URL")?.trim_end_matches('/');
        let mut request = self
            .http
            .request(
                Method::from_bytes(method.as_bytes())?,
                format!("{base_url}{target}"),
            )
            .header("X-Service-Access-Key", access_key)
            .header("X-Service-Timestamp", timestamp)
            .header("X-Service-Content-SHA256", digest)
            .header("X-Service-Signature", signature);
        if body.is_some() {
            request = request.header("Content-Type", "application/json").body(text);
        }
        let answer = request.send().await.context("no answer")?;
        let header = |name: &str| {
            let value = answer.headers().get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let (codes, request_id) = (header("x-service-error"), header("x-request-id"));
        let status = answer.status().as_u16();
        let body = answer.bytes().await.context("the answer broke off")?;
        Ok(Answer {
            status,
            codes,
            request_id,
            json: serde_json::from_slice(&body).unwrap_or_default(),
        })
    }

    /// Posts an order until the answer says whether it is stored. Without a definite answer the same body is sent again.
    pub(crate) async fn post_until_known(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        for wait in RETRIES {
            match self.send("POST", path, "", Some(body)).await {
                Ok(answer) if answer.status < 500 && answer.status != 429 => return Ok(answer),
                Ok(answer) => eprintln!("esim-partner: {}; repeating the order in {wait:?}", answer.told()),
                Err(error) => eprintln!("esim-partner: {error:#}; repeating the order in {wait:?}"),
            }
            tokio::time::sleep(wait).await;
        }
        self.send("POST", path, "", Some(body))
            .await
            .context("it is unknown whether the order is stored: repeat the command")
    }
}

//! The account's keys, and signed requests to the API.
//!
//! [`ApiClient::send`] is the only way in which the commands talk to the service. It signs the
//! method, the path, the query and the body, and returns a response of any status: the caller
//! decides what a status means. An error without a code in `X-Service-Error` is not the service's:
//! something in between, such as a proxy, may have passed the request on before, so it counts as no
//! answer. `send` never repeats a request, because only the caller knows whether that is safe, and
//! it follows no redirects, because a signed request must not go to another host. No request takes
//! longer than [`TIMEOUT`] and no answer is longer than [`LARGEST_ANSWER`], whatever the other side
//! sends. The settings are checked when they are read ([`profile::check`]), so that a mistake is
//! named before anything is sent.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use clap::Args;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, StatusCode, Url};
use runtime::client;
use serde::de::DeserializeOwned;
use serde_json::Value;
use signing::{SecretKey, webhook::Secret};

use crate::profile::{self, base_url, check};

const API: &str = "/api/v1/api_partner";
/// The timeout of a whole request. With a shorter one, more orders would end without an answer, and
/// each of these has to be repeated.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum length of an answer, in bytes. The longest one of the service is an order with
/// 10,000 eSIMs, which has some 10 MB.
const LARGEST_ANSWER: usize = 32 << 20;
/// The error for an answer that is not as it is documented.
pub(crate) const UNEXPECTED: &str =
    "the answer has an unexpected form: check BASE_URL, and whether a newer esim-partner exists";
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
pub(crate) struct ApiClient {
    pub(crate) settings: BTreeMap<String, String>,
    http: reqwest::Client,
}

/// A response of the service, of any status.
pub(crate) struct ApiResponse {
    pub(crate) status: u16,
    /// The codes of an error. Empty for a success.
    pub(crate) codes: String,
    /// How long the service asks to wait before the next request.
    pub(crate) retry_after: Option<Duration>,
    /// What the answer to the repeat of an order says of it. Empty for other answers.
    repeat: String,
    request_id: String,
    pub(crate) date: String,
    /// The body as sent.
    pub(crate) text: String,
    /// The body; null if it isn't JSON.
    pub(crate) json: Value,
}

impl ApiResponse {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether the same request may succeed later.
    pub(crate) fn is_temporary(&self) -> bool {
        self.status >= 500 || matches!(self.status, 408 | 429) || self.is_undecided()
    }

    /// Whether it is the answer to the repeat of an order that may still be refused.
    fn is_undecided(&self) -> bool {
        self.status == 202 && self.repeat == "undecided"
    }

    /// The status, the error codes and the id of the request, for people. With the id we can find
    /// the request in our logs.
    pub(crate) fn summary(&self) -> String {
        let Self {
            status,
            codes,
            request_id,
            ..
        } = self;
        format!("HTTP status {status} {codes} (request {request_id})")
    }

    /// The JSON of a 2xx; an error for any other status.
    pub(crate) fn success<T: DeserializeOwned>(self) -> anyhow::Result<T> {
        ensure!(self.is_success(), "{}", self.summary());
        serde_json::from_value(self.json).context(UNEXPECTED)
    }
}

/// Fails if an answer is not the service's: an error without codes. A request that may have changed
/// something may have been carried out all the same.
fn ensure_ours(
    method: &Method,
    status: StatusCode,
    header: &str,
    codes: &str,
) -> anyhow::Result<()> {
    let is_ours = status.is_success() || !codes.trim().is_empty();
    let unknown = if *method == Method::GET {
        ""
    } else {
        "; it is unknown whether the request was carried out, so repeat it"
    };
    ensure!(
        is_ours,
        "HTTP status {} without {header} is not the service's but that of a proxy on the way, or BASE_URL or BRAND is \
         wrong{unknown}",
        status.as_u16()
    );
    Ok(())
}

/// A client for requests to the host of `url`, with this timeout for a whole exchange.
pub(crate) fn http(url: &Url, timeout: Duration) -> anyhow::Result<reqwest::Client> {
    client::to(url, timeout)
        .build()
        .context("cannot create an HTTP client")
}

/// Reads the body of an answer, up to [`LARGEST_ANSWER`].
async fn text_of(mut answer: reqwest::Response) -> anyhow::Result<String> {
    let mut body = Vec::new();
    let broke_off = "the answer of the API broke off";
    while let Some(chunk) = answer.chunk().await.context(broke_off)? {
        ensure!(
            body.len() + chunk.len() <= LARGEST_ANSWER,
            "the answer of the API is longer than {} MiB, which no answer of the service is: check BASE_URL",
            LARGEST_ANSWER >> 20
        );
        body.extend_from_slice(&chunk);
    }
    String::from_utf8(body)
        .ok()
        .context("the answer of the API is not UTF-8: check BASE_URL")
}

/// The settings in the environment.
fn environment() -> anyhow::Result<BTreeMap<String, String>> {
    let mut settings = BTreeMap::new();
    for name in profile::NAMES {
        let Some(value) = std::env::var_os(name) else {
            continue;
        };
        let value = value.into_string().ok();
        let value = value.with_context(|| format!("{name} in the environment is not UTF-8"))?;
        check(name, &value).context("in the environment")?;
        settings.insert(name.to_owned(), value);
    }
    Ok(settings)
}

impl ApiClient {
    /// Reads the settings from the file that `--keys` names. Otherwise they come from the
    /// environment if it has a key and no profile is named, and otherwise from the file that
    /// `login` stored. Sources are never mixed, because a key of one account with the secret of
    /// another would only give a puzzling 401.
    pub(crate) fn read(config: &AccountConfig) -> anyhow::Result<Self> {
        let set = |name: &str| std::env::var_os(name).is_some();
        let has_keys = ["ACCESS_KEY", "SECRET_KEY", "WEBHOOK_SECRET"]
            .into_iter()
            .any(set);
        let settings = match &config.keys {
            Some(file) => profile::read(file)?,
            None if config.profile.is_none() && has_keys => environment()?,
            None => {
                let file = config.file()?;
                match &config.profile {
                    None if !file.exists() => BTreeMap::new(),
                    Some(name) if !file.exists() => anyhow::bail!(
                        "no keys are stored under the name {name}: run `esim-partner --profile {name} login`"
                    ),
                    _ => profile::read(&file)?,
                }
            }
        };
        Self::with(settings, TIMEOUT)
    }

    /// Checks the settings. `timeout` is for each request as a whole.
    pub(crate) fn with(
        settings: BTreeMap<String, String>,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        for (name, value) in &settings {
            check(name, value)?;
        }
        let base = settings.get("BASE_URL").filter(|value| !value.is_empty());
        let client = match base {
            Some(base) => client::to(&base_url(base)?, timeout),
            // Without the setting no request is sent.
            None => client::direct(timeout),
        };
        let http = client.build().context("cannot create an HTTP client")?;
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

    /// Checks that requests can be sent, so that a setting that is missing is no failed request,
    /// which commands would repeat.
    pub(crate) fn ensure_complete(&self) -> anyhow::Result<()> {
        for name in ["BASE_URL", "ACCESS_KEY", "SECRET_KEY"] {
            self.setting(name)?;
        }
        Ok(())
    }

    /// The secret that signs the account's webhooks.
    pub(crate) fn webhook_secret(&self) -> anyhow::Result<Secret> {
        Secret::parse(self.setting("WEBHOOK_SECRET")?).context("WEBHOOK_SECRET")
    }

    /// Sends a request whose signature covers the query and the body. `path` is the part after the
    /// API's prefix, percent-encoded.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        query: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<ApiResponse> {
        self.exchange(method, path, query, body, false).await
    }

    /// Sends an order. A repeat asks for the answer of the first request, if that one was stored.
    pub(crate) async fn send_order(
        &self,
        body: &Value,
        is_repeat: bool,
    ) -> anyhow::Result<ApiResponse> {
        self.exchange("POST", "/orders", "", Some(body), is_repeat)
            .await
    }

    async fn exchange(
        &self,
        method: &str,
        path: &str,
        query: &str,
        body: Option<&Value>,
        is_repeat: bool,
    ) -> anyhow::Result<ApiResponse> {
        let access_key = self.setting("ACCESS_KEY")?;
        let path = format!("{API}{path}");
        let secret = SecretKey::from_base64(self.setting("SECRET_KEY")?).context("SECRET_KEY")?;
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
            .request(method.clone(), format!("{base_url}{target}"))
            .header(format!("X-{brand}-Access-Key"), access_key)
            .header(format!("X-{brand}-Timestamp"), timestamp)
            .header(format!("X-{brand}-Content-SHA256"), digest)
            .header(format!("X-{brand}-Signature"), signature);
        if body.is_some() {
            request = request
                .header("Content-Type", "application/json")
                .body(text);
        }
        if is_repeat {
            request = request.header(format!("X-{brand}-Repeat"), "answer");
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
        let codes_header = format!("X-{brand}-Error");
        let codes = header(&codes_header);
        ensure_ours(&method, answer.status(), &codes_header, &codes)?;
        let retry_after = header("retry-after").parse().ok().map(Duration::from_secs);
        let repeat = header(&format!("X-{brand}-Repeat"));
        let request_id = header("x-request-id");
        let date = header("date");
        let status = answer.status().as_u16();
        let text = text_of(answer).await?;
        let json = serde_json::from_str(&text).unwrap_or_default();
        Ok(ApiResponse {
            status,
            codes,
            retry_after,
            repeat,
            request_id,
            date,
            text,
            json,
        })
    }

    /// Looks an order up by the id that the partner gave it. It asks by a query, because a query
    /// can name every id, while clients and proxies remove `.` and `..` from a path. The answer has
    /// the JSON of the order, or the status 404 if there is none.
    pub(crate) async fn order(&self, external_order_id: &str) -> anyhow::Result<ApiResponse> {
        let query = format!("external_order_id={}", encoded(external_order_id));
        let mut answer = self.send("GET", "/orders", &query, None).await?;
        if !answer.is_success() {
            return Ok(answer);
        }
        let orders = answer.json["orders"].as_array_mut();
        let orders = orders.map(std::mem::take).context(UNEXPECTED)?;
        let Some(order) = orders.into_iter().next() else {
            answer.status = 404;
            "not_found".clone_into(&mut answer.codes);
            answer.json = Value::Null;
            return Ok(answer);
        };
        ensure!(order["external_order_id"] == external_order_id, UNEXPECTED);
        answer.json = order;
        Ok(answer)
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

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{SocketAddr, TcpListener},
        thread,
    };

    use super::*;

    /// Serves one connection: sends `head`, then `part` again and again until the client has gone,
    /// with this pause between two of them.
    fn server(head: &'static str, part: Vec<u8>, pause: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _ = client.read(&mut [0; 4096]).unwrap();
            let mut sent = client.write_all(head.as_bytes());
            while sent.is_ok() {
                thread::sleep(pause);
                sent = client.write_all(&part);
            }
        });
        address
    }

    fn account(address: SocketAddr, timeout: Duration) -> ApiClient {
        let settings = [
            ("BASE_URL", format!("http://{address}")),
            ("ACCESS_KEY", "ak".to_owned()),
            ("SECRET_KEY", "c2VjcmV0LWtleQ==".to_owned()),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value));
        ApiClient::with(settings.into(), timeout).unwrap()
    }

    #[tokio::test]
    async fn an_answer_without_end_is_given_up() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n";
        let endless = server(head, vec![b'x'; 1 << 20], Duration::ZERO);
        let account = account(endless, TIMEOUT);
        let error = account.send("GET", "/account", "", None).await.err();
        let error = format!("{:#}", error.unwrap());
        assert!(error.contains("longer than 32 MiB"), "{error}");
    }

    #[tokio::test]
    async fn a_dripping_answer_takes_no_longer_than_the_timeout() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
        let dripping = server(head, b"x".into(), Duration::from_millis(20));
        let account = account(dripping, Duration::from_millis(500));
        let began = std::time::Instant::now();
        let answer = account.send("GET", "/account", "", None).await;
        assert!(answer.is_err());
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn an_error_without_a_code_is_not_the_services() {
        let ours = |method, status: u16, codes| {
            let status = StatusCode::from_u16(status).unwrap();
            ensure_ours(&method, status, "X-Service-Error", codes)
                .map_err(|error| error.to_string())
        };
        assert_eq!(ours(Method::GET, 404, "not_found"), Ok(()));
        assert_eq!(ours(Method::POST, 201, ""), Ok(()));
        for status in [301, 401, 403, 404, 408, 413, 422, 429, 500, 502, 503] {
            let said = ours(Method::POST, status, " ").unwrap_err();
            assert!(
                said.contains("X-Service-Error") && said.contains("unknown"),
                "{said}"
            );
            let said = ours(Method::GET, status, "").unwrap_err();
            assert!(!said.contains("unknown"), "{said}");
        }
    }

    #[test]
    fn wrong_settings_are_named_before_anything_is_sent() {
        for (name, value) in [
            ("BASE_URL", "esim.example.com"),
            ("BASE_URL", "localhost:8080"),
            ("BASE_URL", "ftp://esim.example.com"),
            ("BASE_URL", "https://me:hush@esim.example.com"),
            ("BASE_URL", "https://esim.example.com?hush=1"),
            ("ACCESS_KEY", "hush\n"),
            ("ACCESS_KEY", "hüsh"),
            ("SECRET_KEY", "hush hush"),
            ("WEBHOOK_SECRET", "hush"),
            ("BRAND", "Service: hush"),
        ] {
            let error = check(name, value).unwrap_err();
            let error = format!("{error:#}");
            assert!(
                error.starts_with(name) && !error.contains("hush"),
                "{error}"
            );
        }
        assert!(check("BASE_URL", "http://127.0.0.1:8080/").is_ok());
        assert!(check("BASE_URL", "").is_ok());
    }
}

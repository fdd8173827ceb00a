//! A partner's HTTP client. It signs and sends requests as the specification says, and changes a
//! correct request into an invalid one where a test wants that.

use crate::esimctl::Partner;
use crate::http;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};
use signing::SecretKey;
use std::time::{Duration, Instant};

/// The canonical path of create-order.
pub const ORDERS: &str = "/api/v1/api_partner/orders";
/// The other form of the path, which ingress also serves.
pub const ORDERS_SHORT: &str = "/v1/api_partner/orders";

pub const ACCESS_KEY: &str = "x-service-access-key";
pub const SIGNATURE: &str = "x-service-signature";
pub const CONTENT_SHA256: &str = "x-service-content-sha256";
pub const TIMESTAMP: &str = "x-service-timestamp";
pub const DIGEST: &str = "x-service-content-sha256";

/// Sends the requests of one partner to one base URL. Clones are cheap and share connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base_url: String,
    access_key: String,
    secret: SecretKey,
}

/// One entry of the answer to an order, which stands for one unit.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Product {
    pub topup_id: String,
    pub option_id: String,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// The body as sent.
    pub body: Bytes,
    /// The time from the beginning of the request until the end of the answer.
    pub took: Duration,
}

impl Client {
    /// Makes a client. `base_url` has no path, as in `http://127.0.0.1:18080`. `secret_key` is
    /// Base64.
    pub fn new(base_url: &str, access_key: &str, secret_key: &str) -> Result<Self> {
        Ok(Self {
            http: http::client()?,
            base_url: base_url.trim_end_matches('/').to_owned(),
            access_key: access_key.to_owned(),
            secret: SecretKey::from_base64(secret_key)?,
        })
    }

    /// Makes the client of a partner that `esimctl` created.
    pub fn of(base_url: &str, partner: &Partner) -> Result<Self> {
        Self::new(base_url, &partner.access_key, &partner.secret_key)
    }

    /// Orders these items, each an `(option_id, qty)`.
    pub async fn order(&self, external_order_id: &str, items: &[(&str, u32)]) -> Result<Answer> {
        self.post(order(external_order_id, items).to_string())
            .send()
            .await
    }

    pub fn get(&self, path: &str) -> Request {
        self.post("").method("GET").path(path)
    }

    /// Makes a correct create-order request with any body. The methods of [`Request`] change it.
    pub fn post(&self, body: impl Into<Bytes>) -> Request {
        Request {
            client: self.clone(),
            method: "POST".into(),
            path: ORDERS.into(),
            query: String::new(),
            timestamp: runtime::clock::unix_seconds().to_string(),
            whole: false,
            changes: Vec::new(),
            body: body.into(),
        }
    }
}

/// The body of an order of these items, each an `(option_id, qty)`.
pub fn order(external_order_id: &str, items: &[(&str, u32)]) -> Value {
    let products: Vec<Value> = items
        .iter()
        .map(|(option_id, qty)| json!({"option_id": option_id, "qty": qty}))
        .collect();
    json!({"external_order_id": external_order_id, "products": products})
}

/// The entries of the body of a 201.
pub fn products(body: &[u8]) -> serde_json::Result<Vec<Product>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Created {
        products: Vec<Product>,
    }
    serde_json::from_slice(body).map(|created: Created| created.products)
}

/// A request, which is correct unless a test changes it. It is signed when it is sent. So the
/// signature fits changes by `method`, `path`, `timestamp`, `access_key` and `secret`, but `header`
/// and `without` change the request after it was signed.
#[derive(Clone, Debug)]
#[must_use]
pub struct Request {
    client: Client,
    method: String,
    path: String,
    query: String,
    timestamp: String,
    /// Whether the signature covers the query and the body.
    whole: bool,
    /// Changes of headers in their order: the name, and the new value or `None` to leave it out.
    changes: Vec<(String, Option<Vec<u8>>)>,
    body: Bytes,
}

impl Request {
    pub fn method(mut self, method: &str) -> Self {
        self.method = method.into();
        self
    }

    /// The path, without query.
    pub fn path(mut self, path: &str) -> Self {
        self.path = path.into();
        self
    }

    /// The query without `?`. It is signed only after [`Request::whole`].
    pub fn query(mut self, query: &str) -> Self {
        self.query = format!("?{query}");
        self
    }

    /// Makes the signature cover the query and the body.
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    pub fn access_key(mut self, access_key: &str) -> Self {
        self.client.access_key = access_key.into();
        self
    }

    pub fn secret(mut self, secret: SecretKey) -> Self {
        self.client.secret = secret;
        self
    }

    /// The text of the timestamp header. The signature covers it.
    pub fn timestamp(mut self, timestamp: &str) -> Self {
        self.timestamp = timestamp.into();
        self
    }

    /// Sets a timestamp this many seconds from now. A negative number is in the past.
    pub fn timestamp_from_now(self, seconds: i64) -> Self {
        let now = signing::parse_unix_time(&self.timestamp).unwrap_or_default();
        self.timestamp(&(now + seconds).to_string())
    }

    /// Replaces a header after signing. The value may be any bytes that HTTP can carry.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.changes
            .push((name.into(), Some(value.as_ref().into())));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.changes.push((name.into(), None));
        self
    }

    /// The signature of the request as it is now.
    pub fn signature(&self) -> String {
        let Client {
            secret, access_key, ..
        } = &self.client;
        if self.whole {
            let target = format!("{}{}", self.path, self.query);
            let digest = signing::request::digest(&self.body);
            return signing::request::sign_whole(
                secret,
                &self.method,
                &target,
                &self.timestamp,
                access_key,
                &digest,
            );
        }
        signing::request::sign(
            secret,
            &self.method,
            &self.path,
            &self.timestamp,
            access_key,
        )
    }

    /// Sends the request. It is an error if there is no whole answer within 30 s, or if the method,
    /// path or a header is one that HTTP cannot carry. Any status is fine.
    pub async fn send(self) -> Result<Answer> {
        let url = format!("{}{}{}", self.client.base_url, self.path, self.query);
        let method = reqwest::Method::from_bytes(self.method.as_bytes())?;
        let headers = self.headers()?;
        let start = Instant::now();
        let request = self
            .client
            .http
            .request(method, &url)
            .headers(headers)
            .body(self.body);
        let answer = request
            .send()
            .await
            .with_context(|| format!("{} {url}", self.method))?;
        let status = answer.status().as_u16();
        let headers = answer.headers().clone();
        let body = answer
            .bytes()
            .await
            .with_context(|| format!("reading the answer to {} {url}", self.method))?;
        Ok(Answer {
            status,
            headers,
            body,
            took: start.elapsed(),
        })
    }

    fn headers(&self) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        headers.insert(ACCESS_KEY, HeaderValue::from_str(&self.client.access_key)?);
        headers.insert(TIMESTAMP, HeaderValue::from_str(&self.timestamp)?);
        headers.insert(SIGNATURE, HeaderValue::from_str(&self.signature())?);
        if self.whole {
            let digest = signing::request::digest(&self.body);
            headers.insert(CONTENT_SHA256, HeaderValue::from_str(&digest)?);
        }
        for (name, value) in &self.changes {
            let name: HeaderName = name.parse()?;
            match value {
                Some(value) => headers.insert(name, HeaderValue::from_bytes(value)?),
                None => headers.remove(name),
            };
        }
        Ok(headers)
    }
}

impl Answer {
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("not JSON: {}", self.describe()))
    }

    /// The entries of a 201. Any other answer is an error that shows the whole answer.
    pub fn products(&self) -> Result<Vec<Product>> {
        ensure!(self.status == 201, "not accepted: {}", self.describe());
        products(&self.body).with_context(|| format!("unexpected body: {}", self.describe()))
    }

    fn describe(&self) -> String {
        format!("{} {}", self.status, String::from_utf8_lossy(&self.body))
    }
}

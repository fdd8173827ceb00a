//! A bucket of S3, or of another service that speaks its protocol, such as Ceph, or Google Cloud
//! Storage with an HMAC key.
//!
//! An archive needs three requests: one object is put, got and removed. So this is all that there
//! is of the protocol, with its signature of version 4, which covers the SHA-256 of what is sent.
//! Buckets are asked through a client of our own, without a proxy and without redirects.

use std::{env, fmt, str::FromStr, time::Duration};

use anyhow::{Context, bail};
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{Method, Response, StatusCode};
use sha2::{Digest, Sha256};
use time::{OffsetDateTime, macros::format_description};
use url::Url;

use crate::output::one_line;

/// The longest exchange with a bucket. Rows are locked meanwhile.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The environment variables are those of the tools of AWS.
const KEY_ID: &str = "AWS_ACCESS_KEY_ID";
const SECRET: &str = "AWS_SECRET_ACCESS_KEY";
const TOKEN: &str = "AWS_SESSION_TOKEN";
const REGION: &str = "AWS_REGION";
const ENDPOINT: &str = "AWS_ENDPOINT";
const ALLOW_HTTP: &str = "AWS_ALLOW_HTTP";

/// The bucket, or its service, cannot be used now. Another try may succeed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(String);

/// `s3://bucket/prefix`. It holds no keys, because a command line is no place for them.
#[derive(Clone, Debug)]
pub struct BucketUrl {
    bucket: String,
    /// Where the files are in the bucket: empty, or with a slash at the end.
    prefix: String,
}

impl FromStr for BucketUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "write a folder, or a bucket like `s3://bucket/archives`; keys come from the environment"
                .to_owned()
        };
        let (bucket, prefix) = text
            .strip_prefix("s3://")
            .map(|rest| rest.split_once('/').unwrap_or((rest, "")))
            .ok_or_else(wrong)?;
        let is_name = |text: &str, more: &str| {
            let is_known = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
            text.chars().all(is_known)
        };
        if bucket.is_empty() || !is_name(bucket, "-._") || !is_name(prefix, "-._/") {
            return Err(wrong());
        }
        let mut prefix = prefix.trim_matches('/').to_owned();
        if !prefix.is_empty() {
            prefix.push('/');
        }
        Ok(Self {
            bucket: bucket.to_owned(),
            prefix,
        })
    }
}

impl fmt::Display for BucketUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bucket, prefix } = self;
        write!(f, "s3://{bucket}/{prefix}")
    }
}

/// A bucket with the keys for it.
pub struct Bucket {
    named: BucketUrl,
    http: reqwest::Client,
    endpoint: Url,
    signer: Signer,
}

impl Bucket {
    /// Reads the environment, and sends nothing.
    pub fn open(named: &BucketUrl) -> anyhow::Result<Self> {
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let needed = |name: &'static str| {
            set(name).with_context(|| format!("{named} cannot be used: {name} is not set"))
        };
        let signer = Signer {
            key_id: needed(KEY_ID)?,
            secret: needed(SECRET)?,
            token: set(TOKEN),
            region: set(REGION).unwrap_or_else(|| "us-east-1".to_owned()),
        };
        let endpoint =
            set(ENDPOINT).unwrap_or_else(|| format!("https://s3.{}.amazonaws.com", signer.region));
        Ok(Self {
            named: named.clone(),
            http: runtime::client::direct(TIMEOUT).build()?,
            endpoint: endpoint_of(&endpoint, set(ALLOW_HTTP).as_deref())?,
            signer,
        })
    }

    /// The URL of an object, as tools of S3 take it.
    pub fn of(&self, name: &str) -> String {
        format!("{}{name}", self.named)
    }

    pub async fn put(&self, name: &str, bytes: &[u8], sha256: &str) -> anyhow::Result<()> {
        self.ask(Method::PUT, name, bytes, sha256).await.map(drop)
    }

    pub async fn get(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        let empty = hex::encode(Sha256::digest(b""));
        let response = self.ask(Method::GET, name, b"", &empty).await?;
        let read = response.bytes().await;
        Ok(read.map_err(|error| self.unavailable(&error))?.into())
    }

    /// A service answers 204, also if there was no such object.
    pub async fn remove(&self, name: &str) -> anyhow::Result<()> {
        let empty = hex::encode(Sha256::digest(b""));
        self.ask(Method::DELETE, name, b"", &empty).await.map(drop)
    }

    async fn ask(
        &self,
        method: Method,
        name: &str,
        body: &[u8],
        sha256: &str,
    ) -> anyhow::Result<Response> {
        let BucketUrl { bucket, prefix } = &self.named;
        let mut url = self.endpoint.clone();
        url.set_path(&format!("{bucket}/{prefix}{name}"));
        let headers = self
            .signer
            .headers(&method, &url, sha256, runtime::clock::now())?;
        let request = self.http.request(method, url).body(body.to_vec());
        let request = headers.into_iter().fold(request, |request, (name, value)| {
            request.header(name, value)
        });
        let response = request.send().await;
        let response = response.map_err(|error| self.unavailable(&error))?;
        let status = response.status();
        if matches!(status, StatusCode::OK | StatusCode::NO_CONTENT) {
            return Ok(response);
        }
        // The text of an error may repeat what was sent, so only its code is told.
        let text = response.text().await.unwrap_or_default();
        let code = text
            .split_once("<Code>")
            .and_then(|(_, rest)| rest.split_once("</Code>"))
            .map_or("no code", |(code, _)| code);
        let told = format!(
            "{} cannot be used: {status} ({})",
            self.named,
            one_line(code)
        );
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(Unavailable(told).into());
        }
        bail!(told)
    }

    fn unavailable(&self, error: &reqwest::Error) -> anyhow::Error {
        let why = if error.is_timeout() {
            format!("it did not answer within {TIMEOUT:?}")
        } else {
            let cause: &dyn std::error::Error = error;
            let mut last = cause;
            while let Some(source) = last.source() {
                last = source;
            }
            one_line(&last.to_string())
        };
        Unavailable(format!("{} cannot be used: {why}", self.named)).into()
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.named.fmt(f)
    }
}

/// The URL of the service. Without TLS anybody on the way reads the orders, so it has to be
/// allowed.
fn endpoint_of(text: &str, allow_http: Option<&str>) -> anyhow::Result<Url> {
    let url: Url = text
        .parse()
        .with_context(|| format!("{ENDPOINT} is not a URL"))?;
    let is_plain = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    let has_keys = !url.username().is_empty() || url.password().is_some();
    match url.scheme() {
        _ if !is_plain || has_keys || !url.has_host() => {
            bail!("{ENDPOINT} must be a scheme and a host, such as `https://s3.example.com`")
        }
        "https" => Ok(url),
        "http" if allow_http == Some("true") => Ok(url),
        "http" => bail!(
            "{ENDPOINT} has no TLS, so everybody on the way could read the orders: use https://, or set {ALLOW_HTTP}=true where \
             nobody is on the way"
        ),
        _ => bail!("{ENDPOINT} must begin with https://"),
    }
}

/// Signs requests: "AWS Signature Version 4" of the documentation of Amazon S3.
struct Signer {
    key_id: String,
    secret: String,
    token: Option<String>,
    region: String,
}

impl Signer {
    /// The headers of a request whose body has this SHA-256.
    fn headers(
        &self,
        method: &Method,
        url: &Url,
        sha256: &str,
        now: OffsetDateTime,
    ) -> anyhow::Result<Vec<(&'static str, String)>> {
        let now = now.to_offset(time::UtcOffset::UTC);
        let at = now.format(format_description!(
            "[year][month][day]T[hour][minute][second]Z"
        ))?;
        let day = &at[..8];
        let host = url.host_str().context("a host")?;
        let host = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        // In the order of their names.
        let mut signed = vec![
            ("host", host),
            ("x-amz-content-sha256", sha256.to_owned()),
            ("x-amz-date", at.clone()),
        ];
        if let Some(token) = &self.token {
            signed.push(("x-amz-security-token", token.clone()));
        }
        let names: Vec<&str> = signed.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines = signed.iter().fold(String::new(), |lines, (name, value)| {
            lines + name + ":" + value + "\n"
        });
        let request = format!("{method}\n{}\n\n{lines}\n{names}\n{sha256}", url.path());
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let text = format!(
            "AWS4-HMAC-SHA256\n{at}\n{scope}\n{}",
            hex::encode(Sha256::digest(request))
        );
        let key = format!("AWS4{}", self.secret).into_bytes();
        let key = [day, &self.region, "s3", "aws4_request"]
            .into_iter()
            .try_fold(key, |key, part| mac(&key, part))?;
        let signature = hex::encode(mac(&key, &text)?);
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}",
            self.key_id
        );
        signed.push(("authorization", authorization));
        Ok(signed)
    }
}

fn mac(key: &[u8], text: &str) -> anyhow::Result<Vec<u8>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key)?;
    mac.update(text.as_bytes());
    Ok(mac.finalize().into_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_bucket_is_named_without_keys() {
        for (text, shown) in [
            ("s3://acme-archives", "s3://acme-archives/"),
            ("s3://b/esim/2026/", "s3://b/esim/2026/"),
        ] {
            let url: BucketUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
        }
        for wrong in [
            "gs://b/a",
            "https://example.com/a",
            "s3:///a",
            "s3://key:secret@b/a",
            "s3://b/a?x=1",
            "s3://b/a b",
        ] {
            let error = wrong.parse::<BucketUrl>().unwrap_err();
            assert!(!error.contains("secret"), "{wrong}: {error}");
        }
    }

    #[test]
    fn without_tls_a_bucket_is_refused_unless_that_is_allowed() {
        for (endpoint, allowed, is_good) in [
            ("https://s3.example.com", None, true),
            ("http://127.0.0.1:9000", Some("true"), true),
            ("http://127.0.0.1:9000", None, false),
            ("http://127.0.0.1:9000", Some("false"), false),
            ("ftp://s3.example.com", Some("true"), false),
            ("https://key:secret@s3.example.com", None, false),
            ("https://s3.example.com/path", None, false),
        ] {
            let opened = endpoint_of(endpoint, allowed);
            assert_eq!(opened.is_ok(), is_good, "{endpoint} {allowed:?}");
        }
        let refused = endpoint_of("http://127.0.0.1:9000", None).unwrap_err();
        assert!(refused.to_string().contains(ALLOW_HTTP));
    }

    /// The example "GET Object" of the documentation without its header `Range`. The signature was
    /// computed by a few lines of Python, which give the documented one for the whole example.
    #[test]
    fn a_request_is_signed_as_the_tools_of_aws_sign_it() {
        let signer = Signer {
            key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            token: None,
            region: "us-east-1".into(),
        };
        let url: Url = "https://examplebucket.s3.amazonaws.com/test.txt"
            .parse()
            .unwrap();
        let empty = hex::encode(Sha256::digest(b""));
        let at = datetime!(2013-05-24 00:00 UTC);
        let headers = signer.headers(&Method::GET, &url, &empty, at).unwrap();
        let (_, authorization) = headers.last().unwrap();
        assert!(
            authorization.ends_with(
                "Signature=df548e2ce037944d03f3e68682813b093763996d597cf890ca3d9037fd231eb4"
            ),
            "{authorization}"
        );
    }
}

//! The USIMSA protocol, which the sandbox provider speaks too.
//!
//! Codes: `0000` ok, `9001` invalid product, `9003` order id already processed, `9999` server error.
//! The codes `9000` (malformed), `9002` (no such order) and `9005` (out of stock) are the sandbox's;
//! what the real service answers there isn't documented, and a code that isn't in the table counts as
//! unknown: the purchase is looked up, and parked if that doesn't settle it. docs/reliability.md has
//! the table of all answers.

use std::time::Duration;

use anyhow::Context;
use domain::{ActivationCode, Iccid, PlacementId};
use futures_util::{FutureExt, future::BoxFuture};
use pipeline::trace;
use reqwest::{
    Client, Method, StatusCode, Url,
    header::{self, HeaderMap},
    redirect,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use signing::{SecretKey, usimsa};
use tracing::{Instrument, Span, field, info_span};

use super::{CancelAnswer, FindAnswer, PlaceAnswer, Provider, ProviderUnit, Purchase, Trouble, UnitState};

/// The most of a provider's message that is kept, in characters.
const MAX_MESSAGE: usize = 200;

/// An account at a provider of this protocol.
pub struct Usimsa {
    client: Client,
    base: Url,
    access_key: String,
    secret_key: SecretKey,
}

#[derive(Serialize)]
struct OrderRequest<'a> {
    #[serde(rename = "orderId")]
    order_id: PlacementId,
    products: Vec<OrderProduct<'a>>,
}

#[derive(Serialize)]
struct OrderProduct<'a> {
    #[serde(rename = "optionId")]
    option_id: &'a str,
    qty: usize,
}

#[derive(Deserialize)]
struct Answer {
    code: String,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    products: Option<Vec<Product>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Product {
    topup_id: String,
    #[serde(default)]
    option_id: String,
    iccid: Option<String>,
    smdp: Option<String>,
    activate_code: Option<String>,
    expired_date: Option<String>,
    status: Option<String>,
}

/// A callback. It holds a whole profile, but anybody may have sent it: only the unit is read.
#[derive(Deserialize)]
struct Callback {
    #[serde(rename = "topupId")]
    topup_id: String,
}

impl Usimsa {
    /// An account at `base`; the whole of a call takes at most `timeout`.
    pub fn new(
        base: Url,
        access_key: String,
        secret_key: SecretKey,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let client = Client::builder()
            .timeout(timeout)
            .connect_timeout(timeout.min(Duration::from_secs(3)))
            .redirect(redirect::Policy::none())
            .no_proxy()
            .build()
            .context("cannot set up the provider's HTTP client")?;
        Ok(Self {
            client,
            base,
            access_key,
            secret_key,
        })
    }

    /// `route` is the path without its ids, for the span.
    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        route: &str,
        body: Option<&OrderRequest<'_>>,
    ) -> Result<T, Trouble> {
        let span = info_span!(
            "provider call",
            otel.name = format!("{method} {route}"),
            otel.kind = "client",
            otel.status_code = field::Empty,
            http.request.method = %method,
            url.template = route,
            url.full = field::Empty,
            server.address = self.base.host_str(),
            server.port = self.base.port_or_known_default(),
            http.response.status_code = field::Empty,
            error.type = field::Empty,
        );
        let mut status = None;
        let answer = self
            .exchange(method, path, body, &span, &mut status)
            .instrument(span.clone())
            .await;
        if let Some(status) = status {
            span.record("http.response.status_code", status.as_u16());
        }
        if let Err(trouble) = &answer {
            let refused = status.as_ref().filter(|status| status.as_u16() >= 400);
            span.record("error.type", refused.map_or(trouble.class(), StatusCode::as_str));
            span.record("otel.status_code", "ERROR");
        }
        answer
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&OrderRequest<'_>>,
        span: &Span,
        answered: &mut Option<StatusCode>,
    ) -> Result<T, Trouble> {
        let url = self
            .base
            .join(path)
            .map_err(|error| Trouble::NotSent(error.to_string()))?;
        // A base that names a user or a query would show them: then the template has to do.
        if url.username().is_empty() && url.password().is_none() && url.query().is_none() {
            span.record("url.full", url.as_str());
        }
        let timestamp = runtime::clock::unix_milliseconds().to_string();
        let signature = usimsa::sign(
            &self.secret_key,
            method.as_str(),
            url.path(),
            &timestamp,
            &self.access_key,
        );
        let mut request = self
            .client
            .request(method, url)
            .header("x-gat-timestamp", timestamp)
            .header("x-gat-access-key", &self.access_key)
            .header("x-gat-signature", signature);
        if let Some(context) = trace::context_of(span) {
            request = request.header(trace::TRACEPARENT, context);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(failure)?;
        let status = response.status();
        *answered = Some(status);
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let reason = format!("the provider does not let us in (HTTP {})", status.as_u16());
                return Err(Trouble::Denied(reason));
            }
            StatusCode::TOO_MANY_REQUESTS => {
                return Err(Trouble::Busy {
                    after: retry_after(response.headers()),
                    reason: "the provider is busy (HTTP 429)".into(),
                });
            }
            // Also 503, with or without Retry-After: a proxy may say so of an order that went through.
            status if !status.is_success() => {
                return Err(Trouble::Unknown(format!("HTTP {}", status.as_u16())));
            }
            _ => {}
        }
        let bytes = response
            .bytes()
            .await
            .map_err(|error| Trouble::Unknown(describe(&error.without_url())))?;
        // serde's message would quote the answer, which may hold activation codes.
        serde_json::from_slice(&bytes).map_err(|_| Trouble::Unknown("the answer cannot be read".into()))
    }

    async fn get(&self, placement_id: PlacementId) -> Result<FindAnswer, Trouble> {
        let path = format!("/api/v2/order/{placement_id}");
        let answer: Answer = self
            .call(Method::GET, &path, "/api/v2/order/{orderId}", None)
            .await?;
        match answer.code.as_str() {
            "0000" => Ok(FindAnswer::Found(units(answer.products.unwrap_or_default()))),
            "9002" => Ok(FindAnswer::NotFound),
            _ => Err(unknown_code(answer)),
        }
    }
}

impl Provider for Usimsa {
    fn place<'a>(&'a self, purchase: &'a Purchase) -> BoxFuture<'a, Result<PlaceAnswer, Trouble>> {
        async move {
            let products = purchase
                .items
                .iter()
                .map(|(option_id, qty)| OrderProduct { option_id, qty: *qty })
                .collect();
            let request = OrderRequest {
                order_id: purchase.placement_id,
                products,
            };
            let answer: Answer = self
                .call(Method::POST, "/api/v2/order", "/api/v2/order", Some(&request))
                .await?;
            match answer.code.as_str() {
                "0000" => Ok(PlaceAnswer::Bought(units(answer.products.unwrap_or_default()))),
                // An earlier attempt bought it: its units are asked for, like any others.
                "9003" => Ok(PlaceAnswer::Bought(Vec::new())),
                "9000" | "9001" | "9005" => Ok(PlaceAnswer::Rejected {
                    status: answer.code,
                    message: one_line(answer.message),
                }),
                _ => Err(unknown_code(answer)),
            }
        }
        .boxed()
    }

    fn find(&self, placement_id: PlacementId) -> BoxFuture<'_, Result<FindAnswer, Trouble>> {
        self.get(placement_id).boxed()
    }

    fn collect(&self, placement_id: PlacementId) -> BoxFuture<'_, Result<FindAnswer, Trouble>> {
        self.get(placement_id).boxed()
    }

    fn cancel<'a>(&'a self, unit_id: &'a str) -> BoxFuture<'a, Result<CancelAnswer, Trouble>> {
        async move {
            // Units are named by the provider: a name that isn't one path segment is none of its own.
            if !unit_id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            {
                return Err(Trouble::NotSent("the unit's id does not fit into a path".into()));
            }
            let path = format!("/api/v2/cancel/{unit_id}");
            let answer: Answer = self
                .call(Method::POST, &path, "/api/v2/cancel/{topupId}", None)
                .await?;
            match answer.code.as_str() {
                "0000" => Ok(CancelAnswer::Canceled),
                "9999" => Err(unknown_code(answer)),
                _ => Ok(CancelAnswer::Refused {
                    status: answer.code,
                    message: one_line(answer.message),
                }),
            }
        }
        .boxed()
    }

    fn parse_callback(&self, body: &[u8]) -> Option<String> {
        let callback: Callback = serde_json::from_slice(body).ok()?;
        Some(callback.topup_id)
    }
}

/// A code that isn't in the table, or says that the provider itself doesn't know.
fn unknown_code(answer: Answer) -> Trouble {
    Trouble::Unknown(format!(
        "code {}: {}",
        one_line(Some(answer.code)),
        one_line(answer.message)
    ))
}

/// `Retry-After` in seconds. Its other form, a date, isn't honoured: it would need the provider's clock.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

/// A request that failed without an answer: only one that found no connection certainly wasn't sent.
fn failure(error: reqwest::Error) -> Trouble {
    let error = error.without_url();
    let reason = describe(&error);
    if error.is_connect() || error.is_builder() {
        Trouble::NotSent(reason)
    } else {
        Trouble::Unknown(reason)
    }
}

fn describe(error: &reqwest::Error) -> String {
    let kind = if error.is_timeout() { "timed out: " } else { "" };
    let mut source: &dyn std::error::Error = error;
    while let Some(deeper) = source.source() {
        source = deeper;
    }
    format!("{kind}{source}")
}

fn units(products: Vec<Product>) -> Vec<ProviderUnit> {
    products
        .into_iter()
        .map(|product| {
            let state = state(&product);
            ProviderUnit {
                unit_id: product.topup_id,
                option_id: product.option_id,
                state,
            }
        })
        .collect()
}

/// A unit is ready when its whole profile is there; statuses differ from account to account.
fn state(product: &Product) -> UnitState {
    let profile = (
        &product.iccid,
        &product.smdp,
        &product.activate_code,
        &product.expired_date,
    );
    if let (Some(iccid), Some(smdp), Some(code), Some(date)) = profile {
        if let (Ok(iccid), Ok(code), Some(expired_date)) =
            (Iccid::parse(iccid), ActivationCode::new(smdp, code), day(date))
        {
            return UnitState::Ready {
                iccid,
                code,
                expired_date,
            };
        }
        tracing::error!(
            provider.unit.id = product.topup_id,
            "a profile has a shape that cannot be delivered"
        );
        return UnitState::Pending;
    }
    match product.status.as_deref() {
        Some(status @ ("FAILED" | "CANCELED" | "CANCELLED")) => {
            UnitState::Failed(format!("the provider says {status}"))
        }
        _ => UnitState::Pending,
    }
}

/// The day of a date or a time, `YYYY-MM-DD`.
fn day(text: &str) -> Option<String> {
    let day = text.get(..10)?;
    let shaped = day.bytes().enumerate().all(|(at, byte)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    shaped.then(|| day.to_owned())
}

/// A provider's message, fit for a 422 and for a log: one line, bounded.
fn one_line(message: Option<String>) -> String {
    let message = message.unwrap_or_default();
    let message: String = message.split_whitespace().collect::<Vec<_>>().join(" ");
    message.chars().take(MAX_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(text: &str) -> UnitState {
        state(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn a_unit_is_ready_only_with_its_whole_profile() {
        let whole = r#"{"topupId":"1","optionId":"o","iccid":"8982123456789012345F","smdp":"smdp.example",
                        "activateCode":"AB-12","expiredDate":"2026-12-31T00:00:00Z","status":"READY"}"#;
        let UnitState::Ready {
            iccid,
            code,
            expired_date,
        } = product(whole)
        else {
            panic!("not ready")
        };
        assert_eq!(iccid.as_str(), "8982123456789012345");
        assert_eq!(code.download_link(), "LPA:1$smdp.example$AB-12");
        assert_eq!(expired_date, "2026-12-31");
        for field in ["iccid", "smdp", "activateCode", "expiredDate"] {
            let part = whole.replace(field, "other");
            assert!(matches!(product(&part), UnitState::Pending), "{field}");
        }
        let odd = whole.replace("AB-12", "AB$12");
        assert!(matches!(product(&odd), UnitState::Pending));
    }

    #[test]
    fn failed_units_are_failed() {
        let failed = product(r#"{"topupId":"1","optionId":"o","status":"FAILED"}"#);
        assert!(matches!(failed, UnitState::Failed(_)));
        let unknown = product(r#"{"topupId":"1","optionId":"o","status":"SOMETHING"}"#);
        assert!(matches!(unknown, UnitState::Pending));
    }

    #[test]
    fn retry_after_is_read_in_seconds() {
        let read = |value: &'static str| {
            retry_after(&HeaderMap::from_iter([(
                header::RETRY_AFTER,
                header::HeaderValue::from_static(value),
            )]))
        };
        assert_eq!(read(" 7 "), Some(Duration::from_secs(7)));
        for odd in ["", "-1", "soon", "Fri, 20 Nov 2026 06:00:00 GMT"] {
            assert_eq!(read(odd), None, "{odd}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }

    #[test]
    fn a_wait_is_honoured_within_a_bound() {
        let busy = |after| Trouble::Busy {
            after,
            reason: String::new(),
        };
        let most = Duration::from_mins(10);
        assert_eq!(busy(None).after(most), Duration::ZERO);
        assert_eq!(
            busy(Some(Duration::from_secs(7))).after(most),
            Duration::from_secs(7)
        );
        assert_eq!(busy(Some(Duration::MAX)).after(most), most);
        assert_eq!(Trouble::Unknown(String::new()).after(most), Duration::ZERO);
    }

    #[test]
    fn messages_are_one_bounded_line() {
        assert_eq!(one_line(Some(" a\r\n b ".into())), "a b");
        assert_eq!(one_line(Some("ä".repeat(500))).chars().count(), MAX_MESSAGE);
        assert_eq!(one_line(None), "");
    }
}

//! The USIMSA protocol, which the sandbox provider speaks too.
//!
//! Codes: `0000` ok, `9001` invalid product, `9003` order id already processed, `9999` server error. The
//! codes `9000` (malformed), `9002` (no such order) and `9005` (out of stock) are the sandbox's. The real
//! service's codes for these cases are undocumented. Any other code counts as outcome unknown: the purchase
//! is looked up, and parked if look-ups do not settle it. docs/reliability.md lists all responses.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use domain::{ActivationCode, Iccid, PlacementId};
use futures_util::{FutureExt, future::BoxFuture};
use pipeline::trace;
use reqwest::{
    Client, Method, Response, StatusCode, Url,
    header::{self, HeaderMap, HeaderValue},
    redirect,
};
use serde::Deserialize;
use serde_json::{Value, json};
use signing::{SecretKey, usimsa};
use time::{Date, format_description::StaticFormatDescription, macros::format_description};
use tracing::{Instrument, Span, field, info_span};

use super::{
    Connected, FindAnswer, Limits, PlaceAnswer, Provider, ProviderId, ProviderUnit, Purchase, Trouble,
    UnitState,
    account::{Credentials, account},
    text::{BadId, one_line},
};

const ORDER: &str = "/api/v2/order";
const FETCH: &str = "/api/v2/order/{orderId}";
const DAY: StaticFormatDescription = format_description!("[year]-[month]-[day]");
/// No eSIM expires before this year.
const FIRST_YEAR: i32 = 2000;

account!("usimsa", "USIMSA", "USIMSA", "Base URL of USIMSA: scheme and host, without `/api`");

pub fn connect(account: &Account, limits: Limits) -> anyhow::Result<Connected> {
    adapter(account.credentials()?, limits)
}

/// Creates the adapter of an account at any provider of this protocol. Fails if the access key does not fit into a
/// header.
pub(super) fn adapter(account: Credentials, limits: Limits) -> anyhow::Result<Connected> {
    let base = &account.url;
    let client = Client::builder()
        .timeout(limits.timeout)
        .connect_timeout(limits.timeout.min(Duration::from_secs(3)))
        .redirect(redirect::Policy::none())
        .no_proxy()
        .build()
        .context("cannot build the provider's HTTP client")?;
    let mut access_key_header = HeaderValue::from_str(&account.access_key)
        .context("the access key has characters that no header may have")?;
    access_key_header.set_sensitive(true);
    let provider = Usimsa {
        client,
        order_url: base.join(ORDER).context("the provider's address takes no path")?,
        is_plain: base.username().is_empty() && base.password().is_none() && base.query().is_none(),
        access_key: account.access_key,
        secret_key: account.secret_key,
        access_key_header,
        answer_max: limits.answer_max,
    };
    Ok(Connected { provider: Arc::new(provider), callback_token: account.callback_token })
}

/// An account at a provider of this protocol.
struct Usimsa {
    client: Client,
    /// The URL of orders, parsed once.
    order_url: Url,
    /// Whether spans may show URLs: the base has no user, password or query.
    is_plain: bool,
    access_key: String,
    access_key_header: HeaderValue,
    secret_key: SecretKey,
    answer_max: usize,
}

#[derive(Deserialize)]
struct Answer {
    code: String,
    message: Option<String>,
    products: Option<Vec<Product>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Product {
    topup_id: String,
    option_id: Option<String>,
    iccid: Option<String>,
    smdp: Option<String>,
    activate_code: Option<String>,
    expired_date: Option<String>,
    status: Option<String>,
}

/// A callback. It holds a whole profile, but it is not authenticated, so only the unit is read.
#[derive(Deserialize)]
struct Callback {
    #[serde(rename = "topupId")]
    topup_id: String,
}

/// A request: method, path and the span's route.
struct Call<'a> {
    method: Method,
    url: Url,
    path: &'a str,
    route: &'static str,
    body: Option<Value>,
}

impl Usimsa {
    async fn call(&self, call: Call<'_>) -> Result<Answer, Trouble> {
        let span = info_span!(
            "provider call",
            otel.name = format!("{} {}", call.method, call.route), otel.kind = "client",
            otel.status_code = field::Empty, error.type = field::Empty,
            http.request.method = %call.method, http.response.status_code = field::Empty,
            url.template = call.route, url.full = field::Empty,
            server.address = self.order_url.host_str(), server.port = self.order_url.port_or_known_default(),
        );
        let mut status = None;
        let answer = self.exchange(call, &span, &mut status).instrument(span.clone()).await;
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

    async fn exchange(
        &self,
        call: Call<'_>,
        span: &Span,
        answered: &mut Option<StatusCode>,
    ) -> Result<Answer, Trouble> {
        if self.is_plain {
            span.record("url.full", call.url.as_str());
        }
        let timestamp = runtime::clock::unix_milliseconds().to_string();
        let signature =
            usimsa::sign(&self.secret_key, call.method.as_str(), call.path, &timestamp, &self.access_key);
        let mut request = self
            .client
            .request(call.method, call.url)
            .header("x-gat-timestamp", timestamp)
            .header("x-gat-access-key", self.access_key_header.clone())
            .header("x-gat-signature", signature);
        if let Some(context) = trace::context_of(span) {
            request = request.header(trace::TRACEPARENT, context);
        }
        if let Some(body) = call.body {
            request = request.json(&body);
        }
        let response = request.send().await.map_err(failure)?;
        let status = response.status();
        *answered = Some(status);
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let reason = format!("the provider denies access (HTTP {})", status.as_u16());
                return Err(Trouble::Denied(reason));
            }
            StatusCode::TOO_MANY_REQUESTS => {
                return Err(Trouble::Busy {
                    after: retry_after(response.headers()),
                    reason: "the provider is busy (HTTP 429)".into(),
                });
            }
            // This includes 503, with or without Retry-After: a proxy may send it for an order that went through.
            status if !status.is_success() => {
                return Err(Trouble::Unknown(format!("HTTP {}", status.as_u16())));
            }
            _ => {}
        }
        let body = read(response, self.answer_max).await?;
        // serde's message would quote the response, which may hold activation codes.
        serde_json::from_slice(&body)
            .map_err(|_| Trouble::Unknown("the response is unreadable: not the protocol's JSON".into()))
    }

    async fn get(&self, placement_id: PlacementId) -> Result<FindAnswer, Trouble> {
        let path = format!("{ORDER}/{placement_id}");
        let mut url = self.order_url.clone();
        url.set_path(&path);
        let answer =
            self.call(Call { method: Method::GET, url, path: &path, route: FETCH, body: None }).await?;
        match answer.code.as_str() {
            "0000" => Ok(FindAnswer::Found(units(answer.products)?)),
            "9002" => Ok(FindAnswer::NotFound),
            _ => Err(unknown_code(&answer)),
        }
    }
}

impl Provider for Usimsa {
    fn place<'a>(&'a self, purchase: &'a Purchase) -> BoxFuture<'a, Result<PlaceAnswer, Trouble>> {
        async move {
            let product = |(option, qty): &(String, usize)| json!({ "optionId": option, "qty": qty });
            let products: Vec<Value> = purchase.items.iter().map(product).collect();
            let answer = self
                .call(Call {
                    method: Method::POST,
                    url: self.order_url.clone(),
                    path: ORDER,
                    route: ORDER,
                    body: Some(json!({ "orderId": purchase.placement_id, "products": products })),
                })
                .await?;
            match answer.code.as_str() {
                "0000" => Ok(PlaceAnswer::Bought(units(answer.products)?)),
                // An earlier attempt bought it: its units are collected.
                "9003" => Ok(PlaceAnswer::Bought(Vec::new())),
                "9000" | "9001" | "9005" => Ok(PlaceAnswer::Rejected {
                    message: one_line(&answer.message.unwrap_or_default()),
                    status: answer.code,
                }),
                _ => Err(unknown_code(&answer)),
            }
        }
        .boxed()
    }

    fn find(&self, placement_id: PlacementId) -> BoxFuture<'_, Result<FindAnswer, Trouble>> {
        self.get(placement_id).boxed()
    }

    fn parse_callback(&self, body: &[u8]) -> Option<ProviderId> {
        let callback: Callback = serde_json::from_slice(body).ok()?;
        ProviderId::parse(callback.topup_id).ok()
    }
}

/// Reads a response of at most `most` bytes.
async fn read(mut response: Response, most: usize) -> Result<Vec<u8>, Trouble> {
    let too_large =
        || Trouble::Unknown(format!("the response has more than {most} bytes (PROVIDER_ANSWER_MAX)"));
    let announced = response.content_length().unwrap_or_default();
    let announced = usize::try_from(announced).map_err(|_| too_large())?;
    if announced > most {
        return Err(too_large());
    }
    let mut body = Vec::with_capacity(announced);
    while let Some(chunk) =
        response.chunk().await.map_err(|error| Trouble::Unknown(describe(&error.without_url())))?
    {
        if chunk.len() > most - body.len() {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The trouble of a code that is not in the table or that means "outcome unknown".
fn unknown_code(answer: &Answer) -> Trouble {
    let message = answer.message.as_deref().unwrap_or_default();
    Trouble::Unknown(format!("code {}: {}", one_line(&answer.code), one_line(message)))
}

/// `Retry-After` in seconds. A date is ignored: it would need the provider's clock.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// Classifies a request that got no response. It was certainly not sent only if there was no connection.
fn failure(error: reqwest::Error) -> Trouble {
    let error = error.without_url();
    let reason = describe(&error);
    if error.is_connect() || error.is_builder() { Trouble::NotSent(reason) } else { Trouble::Unknown(reason) }
}

fn describe(error: &reqwest::Error) -> String {
    let kind = if error.is_timeout() { "timed out: " } else { "" };
    let mut source: &dyn std::error::Error = error;
    while let Some(deeper) = source.source() {
        source = deeper;
    }
    one_line(&format!("{kind}{source}"))
}

/// The units of a response. One bad id makes the whole response unreadable: no unit of it is used.
fn units(products: Option<Vec<Product>>) -> Result<Vec<ProviderUnit>, Trouble> {
    let products = products.unwrap_or_default();
    let mut units = Vec::with_capacity(products.len());
    for (index, product) in products.into_iter().enumerate() {
        let bad = |field: &str, error: BadId| {
            Trouble::Unknown(format!("the response is unreadable: {field} of unit {} {error}", index + 1))
        };
        let state = state(&product);
        let unit_id = ProviderId::parse(product.topup_id).map_err(|error| bad("topupId", error))?;
        let option_id = product
            .option_id
            .filter(|id| !id.is_empty())
            .map(ProviderId::parse)
            .transpose()
            .map_err(|error| bad("optionId", error))?;
        let state = state.unwrap_or_else(|field| {
            tracing::error!(
                provider.unit.id = unit_id.as_str(),
                field,
                "a profile cannot be delivered: this field is unreadable"
            );
            UnitState::Pending
        });
        units.push(ProviderUnit { unit_id, option_id, state });
    }
    Ok(units)
}

/// The state of a unit, or the name of the field that is unreadable. A unit is ready when it has its
/// whole profile, because the names of statuses differ from account to account.
fn state(product: &Product) -> Result<UnitState, &'static str> {
    let profile = (&product.iccid, &product.smdp, &product.activate_code, &product.expired_date);
    if let (Some(iccid), Some(smdp), Some(code), Some(date)) = profile {
        return Ok(UnitState::Ready {
            iccid: Iccid::parse(iccid).map_err(|_| "iccid")?,
            code: ActivationCode::new(smdp, code).map_err(|_| "smdp or activateCode")?,
            expired_date: day(date).ok_or("expiredDate")?,
        });
    }
    Ok(match product.status.as_deref() {
        Some(status @ ("FAILED" | "CANCELED" | "CANCELLED")) => {
            UnitState::Failed(format!("the provider says {status}"))
        }
        _ => UnitState::Pending,
    })
}

/// The day of a date or of a date with time, `YYYY-MM-DD`.
fn day(text: &str) -> Option<String> {
    let (day, time) = text.split_at_checked(10)?;
    if !(time.is_empty() || time.starts_with(['T', ' '])) {
        return None;
    }
    let date = Date::parse(day, DAY).ok()?;
    (date.year() >= FIRST_YEAR).then(|| day.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{"topupId":"1","optionId":"o","iccid":"8982123456789012345F","smdp":"smdp.example",
                        "activateCode":"AB-12","expiredDate":"2026-12-31T00:00:00Z","status":"READY"}"#;

    fn product(text: &str) -> Result<UnitState, &'static str> {
        state(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn a_unit_is_ready_only_with_its_whole_profile() {
        let Ok(UnitState::Ready { iccid, code, expired_date }) = product(WHOLE) else { panic!("not ready") };
        assert_eq!(iccid.as_str(), "8982123456789012345");
        assert_eq!(code.download_link(), "LPA:1$smdp.example$AB-12");
        assert_eq!(expired_date, "2026-12-31");
        for field in ["iccid", "smdp", "activateCode", "expiredDate"] {
            let part = WHOLE.replace(field, "other");
            assert!(matches!(product(&part), Ok(UnitState::Pending)), "{field}");
        }
    }

    #[test]
    fn an_unreadable_profile_names_its_field() {
        let long = "A".repeat(256);
        for (from, to, field) in [
            ("AB-12", "AB$12", "smdp or activateCode"),
            ("AB-12", "", "smdp or activateCode"),
            ("AB-12", &long, "smdp or activateCode"),
            ("AB-12", r"AB\u0000", "smdp or activateCode"),
            ("smdp.example", "smdp/example", "smdp or activateCode"),
            ("smdp.example", r"smdp.\u202eexample", "smdp or activateCode"),
            ("8982123456789012345F", "89821234567890123", "iccid"),
            ("8982123456789012345F", "898212345678901234\u{664}", "iccid"),
            ("8982123456789012345F", "", "iccid"),
            ("2026-12-31T00:00:00Z", "9999-99-99", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-02-29", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-13-01", "expiredDate"),
            ("2026-12-31T00:00:00Z", "0000-00-00", "expiredDate"),
            ("2026-12-31T00:00:00Z", "0000-01-01", "expiredDate"),
            ("2026-12-31T00:00:00Z", "-026-12-31", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-12-3", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-12-311", "expiredDate"),
            ("2026-12-31T00:00:00Z", "31.12.2026", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-12-3ä", "expiredDate"),
            ("2026-12-31T00:00:00Z", "", "expiredDate"),
        ] {
            let odd = WHOLE.replace(from, to);
            assert_eq!(product(&odd).unwrap_err(), field, "{odd}");
        }
        for date in ["2026-12-31", "2028-02-29 23:59:59", "9999-12-31T00:00:00.000+09:00"] {
            let whole = WHOLE.replace("2026-12-31T00:00:00Z", date);
            let Ok(UnitState::Ready { expired_date, .. }) = product(&whole) else {
                panic!("{date} is not accepted")
            };
            assert_eq!(expired_date, &date[..10]);
        }
    }

    #[test]
    fn failed_units_are_failed() {
        let failed = product(r#"{"topupId":"1","optionId":"o","status":"FAILED"}"#);
        assert!(matches!(failed, Ok(UnitState::Failed(_))));
        let unknown = product(r#"{"topupId":"1","optionId":"o","status":"SOMETHING"}"#);
        assert!(matches!(unknown, Ok(UnitState::Pending)));
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
        let busy = |after| Trouble::Busy { after, reason: String::new() };
        let most = Duration::from_mins(10);
        assert_eq!(busy(None).after(most), Duration::ZERO);
        assert_eq!(busy(Some(Duration::from_secs(7))).after(most), Duration::from_secs(7));
        assert_eq!(busy(Some(Duration::MAX)).after(most), most);
        assert_eq!(Trouble::Unknown(String::new()).after(most), Duration::ZERO);
    }
}

//! The calls of our account at Airalo: how they carry its token, what a refusal means, and the
//! search for orders by their description.

use std::sync::Arc;

use reqwest::{
    StatusCode,
    header::{self, HeaderMap, HeaderValue},
};
use serde::de::DeserializeOwned;
use url::form_urlencoded;

use super::{
    prices::Prices,
    token::{AiraloToken, Tokens},
    wire::{self, AiraloOrder, AiraloOrders, AiraloRefusal},
};
use crate::providers::{
    http::{Call, Http, Size, parse},
    provider::Trouble,
};

pub(super) const ORDERS: &str = "/v2/orders";
pub(super) const USAGE: &str = "/v2/sims/{iccid}/usage";
/// The number of orders of one page of a list. Its pages (September 2026) name no largest one, and
/// `esimctl provider prove` asks for it.
pub(super) const PAGE: usize = 50;
/// The maximum number of pages of one search. A description contains our id in one order, so a
/// second page is already odd. If a search has more, its outcome is unknown.
pub(super) const PAGES: usize = 5;
/// The list of what can be added to an eSIM.
pub(super) const TOP_UPS: &str = "/v2/sims/{iccid}/topups";

/// What sends the calls of our account.
pub(super) struct AiraloCalls {
    pub(super) http: Http,
    pub(super) tokens: Tokens,
    pub(super) prices: Arc<Prices>,
}

/// What a refusal means for the call that got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The purchase is refused for good; it bought nothing.
    Rejected,
    /// Anything else: the code means that the outcome is unknown, or we do not know the code.
    Unknown,
}

/// The failure table: what a refusal with status 422 means.
///
/// A refusal is what names a reason for which nothing can have been sold. The provider's page on
/// errors (May 2025, September 2026) says of all of its codes that the request "cannot be
/// processed", but lists among them 53, "something unexpected", so that alone proves nothing. 13
/// ("the operator is undergoing maintenance, try again later"), 14 ("invalid checksum") and 43
/// ("bad request") do not say how far the request came: a purchase is looked up after them, and
/// never repeated. 23 and 73 refuse top-ups (see `top_up.rs`).
pub(super) fn outcome(refusal: &AiraloRefusal) -> Outcome {
    match refusal {
        // The credit is used up; too few eSIMs in stock; there is no such package, or none of it.
        AiraloRefusal::Code {
            code: 11 | 33 | 34, ..
        } => Outcome::Rejected,
        // A field of our request is not allowed, for example the quantity.
        AiraloRefusal::Invalid { data, meta }
            if meta.message == wire::INVALID && data.names_a_field() =>
        {
            Outcome::Rejected
        }
        AiraloRefusal::Code { .. }
        | AiraloRefusal::Invalid { .. }
        | AiraloRefusal::Absent { .. } => Outcome::Unknown,
    }
}

/// Whether a claim is refused, so that there is none: a field is not allowed, and of an ICCID the
/// list of faults is empty (its page on the request for a refund, September 2026).
pub(super) fn refuses_claim(refusal: &AiraloRefusal) -> bool {
    matches!(refusal, AiraloRefusal::Invalid { meta, .. } if meta.message == wire::INVALID)
}

/// A response whose body the protocol defines.
pub(super) enum AiraloReply {
    Done(Vec<u8>),
    Refused(AiraloRefusal),
}

impl AiraloCalls {
    /// Calls with a token. If a token that was good before is denied, nothing was carried out, and
    /// the next attempt gets a new one. If a new token is denied, our access is. That nothing was
    /// carried out is what HTTP says: with 401 a request "has not been applied", with 403 the
    /// server "refuses to fulfill it" (RFC 9110, sections 15.5.2 and 15.5.4).
    pub(super) async fn call(&self, call: Call<'_>) -> Result<AiraloReply, Trouble> {
        let token = self.tokens.get(&self.http).await?;
        self.call_with(&token, call).await
    }

    /// The content of a response that is not refused.
    pub(super) async fn done<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, Trouble> {
        match self.call(call).await? {
            AiraloReply::Done(body) => parse(&body),
            AiraloReply::Refused(refusal) => Err(trouble(&refusal)),
        }
    }

    pub(super) async fn call_with(
        &self,
        token: &AiraloToken,
        call: Call<'_>,
    ) -> Result<AiraloReply, Trouble> {
        let headers = HeaderMap::from_iter([
            (header::AUTHORIZATION, token.header.clone()),
            (header::ACCEPT, HeaderValue::from_static("application/json")),
        ]);
        let route = call.route;
        match self.http.call(Call { headers, ..call }).await {
            Ok((StatusCode::UNPROCESSABLE_ENTITY, body)) => Ok(AiraloReply::Refused(parse(&body)?)),
            Ok((StatusCode::FORBIDDEN, body)) if wire::is_foreign(&body) => Err(Trouble::Denied(
                "HTTP 403, code 89: our address is not on the list of the account; add it in \
                     the provider's portal"
                    .into(),
            )),
            Ok((StatusCode::FORBIDDEN, _)) => {
                let reason = "the provider denies access (HTTP 403)".to_owned();
                Err(self.denied(token, reason).await)
            }
            Ok((StatusCode::NOT_FOUND, body)) => match parse(&body) {
                Ok(AiraloRefusal::Invalid { meta, .. }) if [USAGE, TOP_UPS].contains(&route) => {
                    Ok(AiraloReply::Refused(AiraloRefusal::Absent { meta }))
                }
                _ => Err(Trouble::not_understood("HTTP 404")),
            },
            Ok((_, body)) => Ok(AiraloReply::Done(body)),
            Err(Trouble::Denied(reason)) => Err(self.denied(token, reason).await),
            Err(trouble) => Err(trouble),
        }
    }

    /// What it means that a token is denied, which is forgotten.
    pub(super) async fn denied(&self, token: &AiraloToken, reason: String) -> Trouble {
        self.tokens.forget(token).await;
        if token.is_new {
            return Trouble::Denied(reason);
        }
        Trouble::Busy {
            after: None,
            reason: format!("{reason}; the next attempt gets a new token"),
        }
    }

    /// Lists the orders whose description is this.
    pub(super) async fn described(&self, ours: &str) -> Result<Vec<AiraloOrder>, Trouble> {
        let mut found: Vec<AiraloOrder> = Vec::new();
        for page in 1..=PAGES {
            let query = form_urlencoded::Serializer::new(String::new())
                .append_pair("include", "sims,status")
                .append_pair("filter[description]", ours)
                .append_pair("limit", &PAGE.to_string())
                .append_pair("page", &page.to_string())
                .finish();
            if page > 1 {
                self.http.turn().await;
            }
            let listed = self.orders(&query).await?;
            let is_last = listed.data.len() < PAGE;
            // The filter also finds orders whose description only contains our id.
            let is_ours = |order: &AiraloOrder| order.description.as_deref() == Some(ours);
            found.extend(listed.data.into_iter().filter(is_ours));
            if is_last {
                return Ok(found);
            }
        }
        Err(Trouble::not_understood(format!(
            "the search has more than {PAGES} pages of {PAGE} orders, so it was not read to its end"
        )))
    }

    pub(super) async fn orders(&self, query: &str) -> Result<AiraloOrders, Trouble> {
        self.done(Call {
            query: Some(query),
            size: Size::List,
            ..Call::get(ORDERS, ORDERS)
        })
        .await
    }
}

/// The trouble of a call for which a refusal is no definite response.
pub(super) fn trouble(refusal: &AiraloRefusal) -> Trouble {
    let (code, message) = refusal.text();
    Trouble::not_understood(format!("code {code}: {message}"))
}

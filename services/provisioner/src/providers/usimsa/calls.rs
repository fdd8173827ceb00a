//! The calls of an account at a provider of this protocol, and how they are signed.

use reqwest::{
    Method, StatusCode,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use serde_json::Value;
use signing::{SecretKey, usimsa};

use super::wire::UsimsaReply;
use crate::providers::{
    http::{Call, CallBody, Http, header_of, path_of},
    provider::{DeliveredEsim, Trouble},
};

/// The sandbox shows the state of an eSIM in one call: its data, and whether it is given back.
pub(super) const USAGE: &str = "/api/v2/usage/{topupId}";
/// Clients differ in how they ask for one eSIM: with its id in the path, or in a body that is not
/// signed. A proof asks, and an extension.
pub(super) const TOPUP_PATH: &str = "/api/v2/topup/{topupId}";
pub(super) const TOPUP: &str = "/api/v2/topup";
const TIMESTAMP: HeaderName = HeaderName::from_static("x-gat-timestamp");
const ACCESS_KEY: HeaderName = HeaderName::from_static("x-gat-access-key");
pub(super) const SIGNATURE: HeaderName = HeaderName::from_static("x-gat-signature");

/// Who speaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::providers) enum Dialect {
    Usimsa,
    /// The sandbox proves that it has no such purchase, and shows whether it has an eSIM back.
    Sandbox,
}

/// An account at a provider of this protocol.
pub(super) struct Usimsa {
    pub(super) http: Http,
    pub(super) access_key: String,
    pub(super) access_key_header: HeaderValue,
    pub(super) secret_key: SecretKey,
    pub(super) dialect: Dialect,
}

/// What a code means for the call that got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UsimsaOutcome {
    Done,
    /// The order id was used before, so an earlier attempt has bought.
    BoughtBefore,
    /// The request is refused for good; it had no effect.
    Rejected,
    /// There is no order with this id.
    NoSuchOrder,
    /// A response to a look-up that proves neither a purchase nor its absence.
    Undecided,
    /// Anything else: the code means that the outcome is unknown, or we do not know the code.
    Unknown,
}

impl Usimsa {
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        route: &'static str,
        json: Option<&Value>,
    ) -> Result<UsimsaReply, Trouble> {
        let headers = self.signed(&method, path)?;
        self.send(method, path, route, json, headers).await
    }

    /// The headers of a call to this path, with its signature.
    pub(super) fn signed(&self, method: &Method, path: &str) -> Result<HeaderMap, Trouble> {
        let now = runtime::clock::unix_milliseconds().to_string();
        let signature = usimsa::sign(
            &self.secret_key,
            method.as_str(),
            path,
            &now,
            &self.access_key,
        );
        Ok(HeaderMap::from_iter([
            (TIMESTAMP, header_of(now)?),
            (ACCESS_KEY, self.access_key_header.clone()),
            (SIGNATURE, header_of(signature)?),
        ]))
    }

    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        route: &'static str,
        json: Option<&Value>,
        headers: HeaderMap,
    ) -> Result<UsimsaReply, Trouble> {
        let (status, body) = self.exchange(method, path, route, json, headers).await?;
        UsimsaReply::read(status, &body)
    }

    pub(super) async fn exchange(
        &self,
        method: Method,
        path: &str,
        route: &'static str,
        json: Option<&Value>,
        headers: HeaderMap,
    ) -> Result<(StatusCode, Vec<u8>), Trouble> {
        self.http
            .call(Call {
                method,
                headers,
                body: json.map(CallBody::json).transpose()?,
                ..Call::get(path, route)
            })
            .await
    }
}

/// The path of a call about an eSIM.
pub(super) fn of_unit(route: &str, esim: &DeliveredEsim) -> Result<String, Trouble> {
    path_of(route, "{topupId}", esim.unit_id.as_str())
}

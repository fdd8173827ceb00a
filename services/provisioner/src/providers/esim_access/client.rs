//! The calls of the protocol: how a request is signed and sent, and what the code of an error
//! means.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use signing::{SecretKey, esim_access};
use time::{
    OffsetDateTime, UtcOffset, format_description::StaticFormatDescription,
    macros::format_description,
};
use uuid::Uuid;

use super::wire::{
    self, EsimAccessEsim, EsimAccessFailure, EsimAccessPage, PAGE, Reply, order_number, units,
};
use crate::providers::{
    http::{Call, CallBody, Http, Size, header_of, parse, parse_part},
    provider::{BoughtUnits, DeliveredEsim, LookUpResponse, Trouble},
    text::one_line,
};

pub(super) const PACKAGES: &str = "/api/v1/open/package/list";
const QUERY: &str = "/api/v1/open/esim/query";

const ACCESS_CODE: HeaderName = HeaderName::from_static("rt-accesscode");
const TIMESTAMP: HeaderName = HeaderName::from_static("rt-timestamp");
const REQUEST_ID: HeaderName = HeaderName::from_static("rt-requestid");
const SIGNATURE: HeaderName = HeaderName::from_static("rt-signature");

/// A time of a search, in UTC, in the form of the reference (April 2026): `2010-06-30T01:20+00:00`.
/// It has no seconds.
const TIME: StaticFormatDescription =
    format_description!("[year]-[month]-[day]T[hour]:[minute]+00:00");

/// What signs and sends the calls of our account.
pub(super) struct Client {
    pub(super) http: Http,
    pub(super) access_code: String,
    pub(super) access_code_header: HeaderValue,
    pub(super) secret_key: SecretKey,
}

/// What the code of an error means for the call that got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EsimAccessOutcome {
    /// The purchase is refused for good; it bought nothing.
    Rejected,
    /// The request itself is wrong, so nothing was carried out, and a repeat of it would not help.
    Malformed,
    /// Access is denied, so nothing was carried out.
    Denied,
    /// The provider has too much to do. Its documents do not say that nothing was carried out.
    Busy,
    /// The purchase exists, and its profiles are not made yet.
    NotReady,
    /// There is no purchase with the order number that we asked for.
    NoSuchOrder,
    /// Anything else: the code means that the outcome is unknown, or we do not know the code.
    Unknown,
}

/// The failure table: what each documented code means (reference of April 2026, prints of the end
/// of 2025). 200008, "the order parameters are wrong", is not in it, because nobody has seen yet
/// what leads to it; neither are 200002, 200009 and 310403, which may refuse a cancellation.
pub(super) fn outcome(code: &str) -> EsimAccessOutcome {
    match code {
        // The price of a package, or the sum, is not the one that we sent; the balance is used up;
        // out of stock; there is no such package.
        "200005" | "200006" | "200007" | "200011" | "310241" | "310243" => {
            EsimAccessOutcome::Rejected
        }
        // A header is missing or malformed; the timestamp is too old, our address is not allowed,
        // the signature is wrong.
        "000101" | "000102" | "101001" | "101002" | "101003" => EsimAccessOutcome::Denied,
        // The method, the JSON, a mandatory parameter or a length is wrong; the request names
        // reference data that the provider does not have.
        "000103" | "000104" | "000105" | "000106" | "000107" | "310201" | "310211" | "310221"
        | "310231" | "310251" => EsimAccessOutcome::Malformed,
        "900001" => EsimAccessOutcome::Busy,
        "200010" => EsimAccessOutcome::NotReady,
        "310272" => EsimAccessOutcome::NoSuchOrder,
        _ => EsimAccessOutcome::Unknown,
    }
}

impl Client {
    pub(super) async fn call(&self, path: &'static str, request: &Value) -> Result<Reply, Trouble> {
        self.call_for(Size::Ordinary, path, request).await
    }

    /// The same for a response of this size.
    pub(super) async fn call_for(
        &self,
        size: Size,
        path: &'static str,
        request: &Value,
    ) -> Result<Reply, Trouble> {
        let body = CallBody::json(request)?;
        let headers = self.signed(&body.bytes)?;
        self.send(size, path, body, headers).await
    }

    /// The headers of a call with this body, with its signature.
    pub(super) fn signed(&self, body: &[u8]) -> Result<HeaderMap, Trouble> {
        let timestamp = runtime::clock::unix_milliseconds().to_string();
        let request_id = Uuid::now_v7().simple().to_string();
        let signature = esim_access::sign(
            &self.secret_key,
            &timestamp,
            &request_id,
            &self.access_code,
            body,
        );
        Ok(HeaderMap::from_iter([
            (ACCESS_CODE, self.access_code_header.clone()),
            (TIMESTAMP, header_of(timestamp)?),
            (REQUEST_ID, header_of(request_id)?),
            (SIGNATURE, header_of(signature)?),
        ]))
    }

    /// The headers of a call that is not signed. The reference allows it; whether an account can
    /// forbid it is not documented.
    pub(super) fn unsigned(&self) -> HeaderMap {
        HeaderMap::from_iter([(ACCESS_CODE, self.access_code_header.clone())])
    }

    pub(super) async fn send(
        &self,
        size: Size,
        path: &'static str,
        body: CallBody,
        headers: HeaderMap,
    ) -> Result<Reply, Trouble> {
        let call = Call {
            headers,
            body: Some(body),
            size,
            ..Call::post(path, path)
        };
        let (_, body) = self.http.call(call).await?;
        parse::<wire::Envelope>(&body)?.open()
    }

    /// Reads all eSIMs that match a filter, which must fit on one page: those of a purchase, or
    /// one.
    pub(super) async fn query(
        &self,
        filter: &Value,
    ) -> Result<Result<Vec<EsimAccessEsim>, EsimAccessFailure>, Trouble> {
        match self.page_for(Size::Ordinary, filter, 1).await? {
            Ok(page) if page.is_last(1) => Ok(Ok(page.esim_list)),
            Ok(_) => Err(Trouble::not_understood(format!(
                "the response lists {PAGE} eSIMs or more, and there should be fewer"
            ))),
            Err(failure) => Ok(Err(failure)),
        }
    }

    /// Asks for one eSIM.
    pub(super) async fn one(&self, esim: &DeliveredEsim) -> Result<EsimAccessEsim, Trouble> {
        let filter = json!({ "esimTranNo": esim.unit_id.as_str() });
        let mut listed = match self.query(&filter).await? {
            Ok(listed) => listed,
            Err(failure) => return Err(failure.trouble()),
        };
        match (listed.pop(), listed.is_empty()) {
            (Some(one), true) if one.is(&esim.unit_id) => Ok(one),
            _ => Err(Trouble::not_understood(
                "the response does not list exactly the eSIM that it was asked for",
            )),
        }
    }

    /// Reads one page of the eSIMs that match a filter, which may be many.
    pub(super) async fn page(
        &self,
        filter: &Value,
        number: u32,
    ) -> Result<Result<EsimAccessPage, EsimAccessFailure>, Trouble> {
        self.page_for(Size::List, filter, number).await
    }

    async fn page_for(
        &self,
        size: Size,
        filter: &Value,
        number: u32,
    ) -> Result<Result<EsimAccessPage, EsimAccessFailure>, Trouble> {
        let mut request = filter.clone();
        request["pager"] = json!({ "pageNum": number, "pageSize": PAGE });
        match self.call_for(size, QUERY, &request).await? {
            Reply::Done(page) => Ok(Ok(parse_part(&page)?)),
            Reply::Failed(failure) => Ok(Err(failure)),
        }
    }
}

/// A purchase of which a search has found these eSIMs. Others may be in another slot; a collect
/// brings them by the number of the order.
pub(super) fn found(ours: Vec<EsimAccessEsim>) -> Result<LookUpResponse, Trouble> {
    let number = ours.iter().find_map(|one| one.order_no.clone());
    Ok(LookUpResponse::Found(BoughtUnits {
        reference: number.map(order_number).transpose()?,
        units: units(ours)?,
    }))
}

/// A time in a form that is not in the reference, to try whether the provider takes it.
pub(super) fn spaced(at: OffsetDateTime) -> String {
    const SPACED: StaticFormatDescription =
        format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    written(at, SPACED)
}

/// The same in the form of the reference, but with seconds.
pub(super) fn to_the_second(at: OffsetDateTime) -> String {
    const SECONDS: StaticFormatDescription =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]+00:00");
    written(at, SECONDS)
}

fn written(at: OffsetDateTime, form: StaticFormatDescription) -> String {
    let text = at.to_offset(UtcOffset::UTC).format(form);
    text.unwrap_or_default()
}

/// The filter of the eSIMs that were made within a time, in whole minutes.
pub(super) fn within(since: OffsetDateTime, until: OffsetDateTime) -> Result<Value, Trouble> {
    let time = |at: OffsetDateTime| {
        at.to_offset(UtcOffset::UTC)
            .format(TIME)
            .map_err(|_| Trouble::NotSent("the time of the search cannot be written".into()))
    };
    // A minute that has begun belongs to the time.
    let until = until + Duration::from_secs(59);
    Ok(json!({ "startTime": time(since)?, "endTime": time(until)? }))
}

impl EsimAccessFailure {
    /// The trouble of a purchase or a give-back, which may have been carried out although the
    /// provider says that it is busy.
    pub(super) fn trouble_of_change(&self) -> Trouble {
        match self.trouble() {
            Trouble::Busy { reason, .. } => Trouble::not_understood(reason),
            trouble => trouble,
        }
    }

    /// The trouble of a call that changes nothing, for which the code is no definite response.
    pub(super) fn trouble(&self) -> Trouble {
        let reason = format!("code {}: {}", one_line(&self.code), self.message);
        match outcome(&self.code) {
            EsimAccessOutcome::Denied => Trouble::Denied(reason),
            EsimAccessOutcome::Busy => Trouble::Busy {
                after: None,
                reason,
            },
            EsimAccessOutcome::Rejected
            | EsimAccessOutcome::Malformed
            | EsimAccessOutcome::NotReady
            | EsimAccessOutcome::NoSuchOrder
            | EsimAccessOutcome::Unknown => Trouble::not_understood(reason),
        }
    }
}

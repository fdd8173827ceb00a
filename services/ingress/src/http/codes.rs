//! The table of errors: each has a stable code, a status, a message and an explanation.
//!
//! Guarantees: an error says the same everywhere. The response takes its status and message from here and names the
//! code in `X-<Brand>-Error`; the metrics and the log use the code as the reason; `/errors` and `docs/errors.md` are
//! made from the explanations. A code never changes its meaning, because partners' programs decide by it.
//!
//! [`super::error`] makes responses from it, [`crate::pages::errors`] the page.

use std::fmt::{self, Display, Formatter};

use axum::http::{HeaderValue, StatusCode};
use strum::{EnumMessage, EnumProperty, IntoStaticStr, VariantArray};

/// A stable code. Its comment is its section of the page: what is wrong and what to do, as Markdown without links.
/// `status` is the status of the response. `bought` says whether something was bought, for codes that create-order
/// answers with. `message` is the text in the response, with `{}` for a detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumMessage, EnumProperty, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Code {
    // The head of the request, and its body.
    /// Send exactly one `Host` header.
    #[strum(props(status = 400, bought = "no", message = "Exactly one Host header is required"))]
    Host,

    /// An authentication header appears twice. Send each once: a library that adds headers to those of an earlier
    /// attempt is a usual cause.
    #[strum(props(status = 400, bought = "no", message = "Header {} is repeated"))]
    RepeatedHeader,

    /// The body is missing, empty or not JSON. Bodies are read as sent: `Content-Encoding` is not supported.
    #[strum(props(status = 400, bought = "no", message = "Invalid JSON format"))]
    InvalidJson,

    /// The body is larger than the service accepts (64 KiB unless the operator changed it). Split the order.
    #[strum(props(status = 413, bought = "no", message = "Request body is larger than {} bytes"))]
    BodyTooLarge,

    /// The body did not arrive in time. Send it with the head, and check that `Content-Length` is its length in
    /// bytes.
    #[strum(props(status = 408, bought = "no", message = "Request body did not arrive in time"))]
    BodyTimeout,

    /// Nothing has this path or id. Check the path, and percent-encode ids in it. An id of another partner is
    /// unknown, too. An order that you cannot find was not stored.
    #[strum(props(status = 404, bought = "no", message = "Not found"))]
    NotFound,

    /// The path exists, but not with this method. `Allow` names its methods.
    #[strum(props(status = 405, bought = "no", message = "Method not allowed"))]
    MethodNotAllowed,

    // Authentication.
    /// At least one of the three authentication headers is missing or blank.
    #[strum(props(status = 401, bought = "no", message = "Missing required authentication headers."))]
    AuthenticationHeaderMissing,

    /// The timestamp is not Unix time in seconds, or is more than 300 s from our time. Our time is in the `Date`
    /// header of the answer. Correct your clock; milliseconds are a usual mistake.
    #[strum(props(status = 401, bought = "no", message = "Request timestamp is too old or invalid."))]
    TimestampInvalid,

    /// No active account has this access key. Check it, and that base URL and key belong together. After a rotation
    /// the old key ends with the overlap.
    #[strum(props(
        status = 401,
        bought = "no",
        message = "Invalid or missing access key. Please provide a valid {} header."
    ))]
    AccessKeyUnknown,

    /// Your account has no secret key. Ask us.
    #[strum(props(status = 401, bought = "no", message = "Missing secret key in partner record."))]
    SecretKeyMissing,

    /// The signature is not the one that we compute. Check your code with the guide's test vector. Usual mistakes:
    /// the secret key is not Base64-decoded; the path is signed with the query, without its prefix, or decoded; the
    /// text ends with a line feed; the timestamp in header and text differ; the signature is Base64 or uppercase.
    #[strum(props(status = 401, bought = "no", message = "Invalid signature."))]
    SignatureInvalid,

    /// Your account requires requests that sign their query and body. Send the body's SHA-256 in
    /// `X-<Brand>-Content-SHA256`, and sign it as the fifth line.
    #[strum(props(
        status = 401,
        bought = "no",
        message = "Missing {} header: this account's requests sign their body."
    ))]
    ContentSha256Missing,

    /// `X-<Brand>-Content-SHA256` is not the SHA-256 of the body as it arrived, in lowercase hexadecimal. Hash the
    /// bytes that are sent, not the object before it is serialized.
    #[strum(props(status = 401, bought = "no", message = "{} is not the SHA-256 of the body in lowercase hex."))]
    ContentSha256Invalid,

    /// Only sandbox accounts may listen for webhooks. Use the keys of a sandbox account.
    #[strum(props(status = 403, message = "Only sandbox accounts can listen"))]
    SandboxOnly,

    // Create-order.
    /// Send a non-blank string as `external_order_id`.
    #[strum(props(status = 422, bought = "no, now or later", message = "External order id can't be blank"))]
    ExternalOrderIdBlank,

    /// `external_order_id` is not a string, has more than 255 characters, or contains NUL.
    #[strum(props(status = 422, bought = "no, now or later", message = "External order id {}"))]
    ExternalOrderIdInvalid,

    /// An earlier order has this id. It is stored, and is bought or being bought: do not refund it. `Location` names
    /// the order; look it up to get its `topup_id`s and eSIMs. If it is another order, choose a new id.
    #[strum(props(
        status = 422,
        bought = "**yes**, by the earlier request",
        message = "External order id has already been taken"
    ))]
    ExternalOrderIdTaken,

    /// Send at least one item in `products`.
    #[strum(props(status = 422, bought = "no, now or later", message = "Products can't be blank"))]
    ProductsBlank,

    /// `products` is not an array.
    #[strum(props(status = 422, bought = "no, now or later", message = "Products must be an array"))]
    ProductsInvalid,

    /// The item is not an object with `option_id` and `qty`.
    #[strum(props(status = 422, bought = "no, now or later", message = "must be an object"))]
    ItemInvalid,

    /// The item has no `option_id`.
    #[strum(props(status = 422, bought = "no, now or later", message = "option_id can't be blank"))]
    OptionIdBlank,

    /// No option that you may order has this id. `GET /options` lists them. A sandbox account may order
    /// every enabled option, a live account the live ones of connected providers.
    #[strum(props(status = 422, bought = "no, now or later", message = "Product with option_id not found"))]
    OptionNotFound,

    /// `qty` is not a positive integer, written in digits only.
    #[strum(props(status = 422, bought = "no, now or later", message = "qty must be a positive integer"))]
    QtyInvalid,

    /// The order has more items than an order may have; `GET /account` shows the limit. Split it.
    #[strum(props(status = 422, bought = "no, now or later", message = "Products can't have more than {} items"))]
    TooManyItems,

    /// The order has more units than an order may have; `GET /account` shows the limit. Split it.
    #[strum(props(
        status = 422,
        bought = "no, now or later",
        message = "Products can't have more than {} units in total"
    ))]
    TooManyUnits,

    /// The provider rejected the order; the message says why. The id is free again. Order something else, or later.
    #[strum(props(status = 422, bought = "no, now or later", message = "{}"))]
    ProviderRejected,

    /// The provider could not be reached. The id is free again. Order again later.
    #[strum(props(status = 422, bought = "no, now or later", message = "API connection error (Order ID: {})"))]
    ProviderUnreachable,

    // Everything else that partners send.
    /// `limit` is not an integer from 1 to 100.
    #[strum(props(status = 422, message = "Limit must be an integer from 1 to {}"))]
    LimitInvalid,

    /// `cursor` is not a `next_cursor` of ours. Send it unchanged, percent-encoded, or begin without it.
    #[strum(props(status = 422, message = "Cursor is invalid"))]
    CursorInvalid,

    /// `created_after` is not an RFC 3339 time such as `2026-11-22T00:00:00Z`. Encode a `+` as `%2B`.
    #[strum(props(status = 422, message = "Created after must be a time such as 2026-11-22T00:00:00Z"))]
    CreatedAfterInvalid,

    /// `state` is not a state of orders.
    #[strum(props(status = 422, message = "State is unknown"))]
    StateInvalid,

    /// `wait` is not a whole number of seconds.
    #[strum(props(status = 422, message = "Wait must be a number of seconds"))]
    WaitInvalid,

    /// `events` is not a list of further events; the message names them. An empty list asks for none.
    #[strum(props(status = 422, message = "Events must be a list of {}"))]
    EventsInvalid,

    /// The body has no `url`. Send a string to set it, `null` to remove it.
    #[strum(props(status = 422, message = "Url is missing; null removes it"))]
    UrlMissing,

    /// The webhook URL is not an `http` or `https` URL of at most 2048 bytes without user, password and fragment.
    #[strum(props(status = 422, message = "Url is invalid: {}"))]
    UrlInvalid,

    /// Webhooks are not sent to this address or port: use a public address, or a name that resolves to public addresses
    /// only, and port 80, 443 or one above 1023. A live account needs `https`.
    #[strum(props(status = 422, message = "Url {}"))]
    UrlForbidden,

    /// The order's create-order request has no answer yet. Try to cancel it again in a few seconds.
    #[strum(props(
        status = 409,
        message = "The order's create request may not be answered yet; try again in a few seconds"
    ))]
    OrderNotAnswered,

    /// The order is bought, or may be; it can no longer be cancelled.
    #[strum(props(status = 409, message = "The order is bought, or may be; it can't be cancelled"))]
    OrderNotWaiting,

    /// The order was refused: there is nothing to cancel, and nothing was bought.
    #[strum(props(status = 409, message = "The order was refused; nothing was bought"))]
    OrderRefused,

    /// The eSIM is not ready, so there is no webhook to send again. Look the topup up later.
    #[strum(props(status = 409, message = "The eSIM is not ready"))]
    TopupNotReady,

    /// The fields of the eSIM were erased when their time was over. They cannot be sent again.
    #[strum(props(status = 409, message = "The eSIM's fields were erased and cannot be sent again"))]
    TopupErased,

    /// The event cannot be sent again. It is a test (`POST /webhook/test` sends a new one), or you no longer ask for
    /// events of its type, or the failed topup got ready, or its order was cancelled.
    #[strum(props(
        status = 409,
        message = "The event is a test, is no longer asked for, or is no longer true; it cannot be sent again"
    ))]
    EventVoid,

    /// Your account has no webhook URL. Set one: webhooks that wait are then sent.
    #[strum(props(status = 409, message = "There is no webhook URL; set one first"))]
    WebhookUrlMissing,

    /// Your endpoint is paused by our operators, so nothing is sent to it. Ask them.
    #[strum(props(status = 409, message = "The webhook endpoint is paused; ask us to resume it"))]
    WebhookPaused,

    /// The old keys or the old secret of the last rotation are still valid. Try again when the overlap has ended, or
    /// ask us to end it.
    #[strum(props(
        status = 409,
        message = "The old keys or the old secret of the last rotation are still valid; try again when they have ended"
    ))]
    RotationUnderWay,

    // Load, and our faults.
    /// Another create-order request with this id has no answer yet. Try again in a few seconds.
    #[strum(props(
        status = 503,
        bought = "no",
        message = "Another request with this external order id is not decided yet. Try again later"
    ))]
    OrderUndecided,

    /// Your account sends more requests, orders or units per second than it may. Send this one again after
    /// `Retry-After` seconds; `RateLimit-Limit` is the limit.
    #[strum(props(status = 429, bought = "no", message = "Rate limit exceeded: at most {} per second"))]
    RateLimited,

    /// Your account has as many requests in flight as it may. Send it again after `Retry-After` seconds, and fewer at
    /// once.
    #[strum(props(status = 429, bought = "no", message = "Limit exceeded: at most {} requests at once"))]
    TooManyInFlight,

    /// The webhook was sent a moment ago. Send the request again after `Retry-After` seconds.
    #[strum(props(status = 429, message = "The webhook was sent a moment ago; try again later"))]
    RedeliveredRecently,

    /// Your endpoint was tested a moment ago. Wait as long as `Retry-After` says.
    #[strum(props(status = 429, message = "The last test was sent a moment ago; try again later"))]
    TestedRecently,

    /// We are overloaded; this request stored nothing. Send it again after `Retry-After` seconds.
    #[strum(props(
        status = 503,
        bought = "no",
        message = "Too many requests in progress; nothing was stored. Try again later"
    ))]
    Overloaded,

    /// Our fault. An order may be stored: repeat the request with the same `external_order_id`, or look the order up.
    /// If it stays, send us the `X-Request-Id`.
    #[strum(props(status = 500, bought = "**maybe**", message = "Internal server error"))]
    InternalError,
}

impl Code {
    /// The code as it is written in the header.
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }

    pub(crate) fn status(self) -> StatusCode {
        let status = self.get_int("status").and_then(|status| u16::try_from(status).ok());
        status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The text in the response. A message with a detail is made by [`Self::message_with`].
    pub(crate) fn message(self) -> &'static str {
        self.get_str("message").unwrap_or_default()
    }

    pub(crate) fn message_with(self, detail: impl Display) -> String {
        self.message().replacen("{}", &detail.to_string(), 1)
    }

    /// What is wrong and what to do, as Markdown.
    pub(crate) fn explanation(self) -> String {
        self.get_documentation().unwrap_or_default().trim().replace('\n', " ")
    }

    /// Whether something was bought, for codes that create-order answers with.
    pub(crate) fn bought(self) -> Option<&'static str> {
        self.get_str("bought")
    }
}

/// A code with its item or parameter, as the error header names it: `qty_invalid; item=2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) code: Code,
    /// The index of the item, from 0.
    pub(crate) item: Option<usize>,
    /// The parameter or field.
    pub(crate) parameter: Option<&'static str>,
}

impl From<Code> for Named {
    fn from(code: Code) -> Self {
        Self { code, item: None, parameter: None }
    }
}

impl Display for Named {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        to.write_str(self.code.name())?;
        if let Some(item) = self.item {
            write!(to, "; item={item}")?;
        }
        if let Some(parameter) = self.parameter {
            write!(to, "; parameter={parameter}")?;
        }
        Ok(())
    }
}

/// The value of the error header.
pub(crate) fn header(errors: &[Named]) -> HeaderValue {
    let codes: Vec<String> = errors.iter().map(Named::to_string).collect();
    HeaderValue::from_str(&codes.join(", ")).unwrap_or(HeaderValue::from_static("invalid"))
}

/// The value of the `Link` header: the section of each code, once. `page` is the URL of the page.
pub(crate) fn links(page: &str, errors: &[Named]) -> Option<HeaderValue> {
    let mut links: Vec<String> = Vec::new();
    for error in errors {
        let link = format!("<{page}#{}>; rel=\"help\"", error.code.name());
        if !links.contains(&link) {
            links.push(link);
        }
    }
    HeaderValue::from_str(&links.join(", ")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_status_a_message_and_an_explanation() {
        for code in Code::VARIANTS {
            assert!(code.get_int("status").is_some() && code.status().as_u16() >= 400, "{}", code.name());
            assert!(!code.message().is_empty() && !code.explanation().is_empty(), "{}", code.name());
        }
    }

    #[test]
    fn the_guide_names_every_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/partner-guide.md");
        let guide = std::fs::read_to_string(path).unwrap();
        for code in Code::VARIANTS {
            assert!(guide.contains(&format!("`{}`", code.name())), "{}", code.name());
        }
    }

    #[test]
    fn links_name_each_section_once() {
        let of_item = |item| Named { item: Some(item), ..Code::QtyInvalid.into() };
        let errors = [of_item(1), of_item(2), Code::TooManyUnits.into()];
        assert_eq!(header(&errors), "qty_invalid; item=1, qty_invalid; item=2, too_many_units");
        assert_eq!(
            links("https://a.example/errors", &errors).unwrap(),
            "<https://a.example/errors#qty_invalid>; rel=\"help\", <https://a.example/errors#too_many_units>; rel=\"help\""
        );
    }
}

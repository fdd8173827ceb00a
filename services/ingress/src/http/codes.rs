//! The stable codes of errors, and the page that explains each of them.
//!
//! A response names its codes in `X-<Brand>-Error` and links their sections of the page in `Link`. `/errors` and
//! `docs/errors.md` are made from [`Code`].

use std::fmt::{self, Display, Formatter, Write};

use axum::http::HeaderValue;
use strum::{EnumMessage, EnumProperty, IntoStaticStr, VariantArray};

/// A stable code. Its comment is its section of the page: what is wrong and what to do, as Markdown without links.
/// `status` are the statuses that carry it; `bought` says whether something was bought, for codes that create-order
/// answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumMessage, EnumProperty, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Code {
    // The head of the request, and its body.
    /// The request is not HTTP/1.1. Check the line breaks and colons of its head; a proxy between us may have damaged
    /// it.
    #[strum(props(status = "400", bought = "no"))]
    Malformed,
    /// Send exactly one `Host` header.
    #[strum(props(status = "400", bought = "no"))]
    Host,
    /// An authentication header appears twice. Send each once: a library that adds headers to those of an earlier
    /// attempt is a usual cause.
    #[strum(props(status = "400", bought = "no"))]
    RepeatedHeader,
    /// The body is missing, empty or not JSON. Bodies are read as sent: `Content-Encoding` is not supported.
    #[strum(props(status = "400", bought = "no"))]
    InvalidJson,
    /// The path with the query is longer than a request's head may be. Send shorter parameters.
    #[strum(props(status = "414", bought = "no"))]
    UriTooLong,
    /// The head of the request is over 16 KiB or has over 100 headers. Send fewer or shorter headers.
    #[strum(props(status = "431", bought = "no"))]
    HeadTooLarge,
    /// The body is over 64 KiB. Split the order.
    #[strum(props(status = "413", bought = "no"))]
    BodyTooLarge,
    /// The head of the request did not arrive in time. Send it at once; open a connection only when there is a
    /// request.
    #[strum(props(status = "408", bought = "no"))]
    HeadTimeout,
    /// The body did not arrive in time. Send it with the head, and check that `Content-Length` is its length in
    /// bytes.
    #[strum(props(status = "408", bought = "no"))]
    BodyTimeout,
    /// Nothing has this path or id. Check the path, and percent-encode ids in it. An id of another partner is
    /// unknown, too. An order that you cannot find was not stored.
    #[strum(props(status = "404", bought = "no"))]
    NotFound,
    /// The path exists, but not with this method. `Allow` names its methods.
    #[strum(props(status = "405", bought = "no"))]
    MethodNotAllowed,
    // Authentication.
    /// At least one of the three authentication headers is missing or blank.
    #[strum(props(status = "401", bought = "no"))]
    AuthenticationHeaderMissing,
    /// The timestamp is not Unix time in seconds, or is more than 300 s from our time. Our time is in the `Date`
    /// header of the answer. Correct your clock; milliseconds are a usual mistake.
    #[strum(props(status = "401", bought = "no"))]
    TimestampInvalid,
    /// No active account has this access key. Check it, and that base URL and key belong together. After a rotation
    /// the old key ends with the overlap.
    #[strum(props(status = "401", bought = "no"))]
    AccessKeyUnknown,
    /// Your account has no secret key. Ask us.
    #[strum(props(status = "401", bought = "no"))]
    SecretKeyMissing,
    /// The signature is not the one that we compute. Check your code with the guide's test vector. Usual mistakes:
    /// the secret key is not Base64-decoded; the path is signed with the query, without its prefix, or decoded; the
    /// text ends with a line feed; the timestamp in header and text differ; the signature is Base64 or uppercase.
    #[strum(props(status = "401", bought = "no"))]
    SignatureInvalid,
    /// Your account requires requests that sign their query and body. Send the body's SHA-256 in
    /// `X-<Brand>-Content-SHA256`, and sign it as the fifth line.
    #[strum(props(status = "401", bought = "no"))]
    ContentSha256Missing,
    /// `X-<Brand>-Content-SHA256` is not the SHA-256 of the body as it arrived, in lowercase hexadecimal. Hash the
    /// bytes that are sent, not the object before it is serialized.
    #[strum(props(status = "401", bought = "no"))]
    ContentSha256Invalid,
    /// This exact signature was used before. Sign each request anew, a repeated one too.
    #[strum(props(status = "401", bought = "maybe, by the earlier request"))]
    SignatureReplayed,
    /// Only sandbox accounts may listen for webhooks. Use the keys of a sandbox account.
    #[strum(props(status = "403"))]
    SandboxOnly,
    // Create-order.
    /// Send a non-blank string as `external_order_id`.
    #[strum(props(status = "422", bought = "no, now or later"))]
    ExternalOrderIdBlank,
    /// `external_order_id` is not a string, has more than 255 characters, or contains NUL.
    #[strum(props(status = "422", bought = "no, now or later"))]
    ExternalOrderIdInvalid,
    /// An earlier order has this id. It is stored, and is bought or being bought: do not refund it. `Location` names
    /// the order; look it up to get its `topup_id`s and eSIMs. If it is another order, choose a new id.
    #[strum(props(status = "422", bought = "**yes**, by the earlier request"))]
    ExternalOrderIdTaken,
    /// Send at least one item in `products`.
    #[strum(props(status = "422", bought = "no, now or later"))]
    ProductsBlank,
    /// `products` is not an array.
    #[strum(props(status = "422", bought = "no, now or later"))]
    ProductsInvalid,
    /// The item is not an object with `option_id` and `qty`.
    #[strum(props(status = "422", bought = "no, now or later"))]
    ItemInvalid,
    /// The item has no `option_id`.
    #[strum(props(status = "422", bought = "no, now or later"))]
    OptionIdBlank,
    /// No option that you may order has this id. `GET /options` lists them. A sandbox account may order
    /// every enabled option, a live account the live ones of connected providers.
    #[strum(props(status = "422", bought = "no, now or later"))]
    OptionNotFound,
    /// `qty` is not a positive integer, written in digits only.
    #[strum(props(status = "422", bought = "no, now or later"))]
    QtyInvalid,
    /// The order has more items than an order may have; `GET /account` shows the limit. Split it.
    #[strum(props(status = "422", bought = "no, now or later"))]
    TooManyItems,
    /// The order has more units than an order may have; `GET /account` shows the limit. Split it.
    #[strum(props(status = "422", bought = "no, now or later"))]
    TooManyUnits,
    /// The provider rejected the order; the message says why. The id is free again. Order something else, or later.
    #[strum(props(status = "422", bought = "no, now or later"))]
    ProviderRejected,
    /// The provider could not be reached. The id is free again. Order again later.
    #[strum(props(status = "422", bought = "no, now or later"))]
    ProviderUnreachable,
    // Everything else that partners send.
    /// `limit` is not an integer from 1 to 100.
    #[strum(props(status = "422"))]
    LimitInvalid,
    /// `cursor` is not a `next_cursor` of ours. Send it unchanged, percent-encoded, or begin without it.
    #[strum(props(status = "422"))]
    CursorInvalid,
    /// `created_after` is not an RFC 3339 time such as `2026-11-22T00:00:00Z`. Encode a `+` as `%2B`.
    #[strum(props(status = "422"))]
    CreatedAfterInvalid,
    /// `state` is not a state of orders.
    #[strum(props(status = "422"))]
    StateInvalid,
    /// `wait` is not a whole number of seconds.
    #[strum(props(status = "422"))]
    WaitInvalid,
    /// `events` is not a list of further events; the message names them. An empty list asks for none.
    #[strum(props(status = "422"))]
    EventsInvalid,
    /// The body has no `url`. Send a string to set it, `null` to remove it.
    #[strum(props(status = "422"))]
    UrlMissing,
    /// The webhook URL is not an `http` or `https` URL of at most 2048 bytes without user, password and fragment.
    #[strum(props(status = "422"))]
    UrlInvalid,
    /// Webhooks are not sent to this address or port: use a public address, or a name that resolves to public addresses
    /// only, and port 80, 443 or one above 1023. A live account needs `https`.
    #[strum(props(status = "422"))]
    UrlForbidden,
    /// The order is bought, or may be; it can no longer be cancelled.
    #[strum(props(status = "409"))]
    OrderNotWaiting,
    /// The order was refused: there is nothing to cancel, and nothing was bought.
    #[strum(props(status = "409"))]
    OrderRefused,
    /// The eSIM is not ready, so there is no webhook to send again. Look the topup up later.
    #[strum(props(status = "409"))]
    TopupNotReady,
    /// The fields of the eSIM were erased when their time was over. They cannot be sent again.
    #[strum(props(status = "409"))]
    TopupErased,
    /// The event cannot be sent again. It is a test (`POST /webhook/test` sends a new one), or you no longer ask for
    /// events of its type, or the failed topup got ready, or its order was cancelled.
    #[strum(props(status = "409"))]
    EventVoid,
    /// Your account has no webhook URL. Set one: webhooks that wait are then sent.
    #[strum(props(status = "409"))]
    WebhookUrlMissing,
    /// Your endpoint is paused by our operators, so nothing is sent to it. Ask them.
    #[strum(props(status = "409"))]
    WebhookPaused,
    /// The old keys or the old secret of the last rotation are still valid. Try again when the overlap has ended, or
    /// ask us to end it.
    #[strum(props(status = "409"))]
    RotationUnderWay,
    // Load, and our faults.
    /// An earlier create-order request with this id has no answer yet. Try again in a few seconds.
    #[strum(props(status = "409 when cancelling, 503 when ordering", bought = "no"))]
    OrderUndecided,
    /// Your account sends more requests, orders or units per second than it may. Send this one again after
    /// `Retry-After` seconds; `RateLimit-Limit` is the limit.
    #[strum(props(status = "429", bought = "no"))]
    RateLimited,
    /// Your account has as many requests in flight as it may. Send it again after `Retry-After` seconds, and fewer at
    /// once.
    #[strum(props(status = "429", bought = "no"))]
    TooManyInFlight,
    /// The webhook was sent a moment ago. Send the request again after `Retry-After` seconds.
    #[strum(props(status = "429"))]
    RedeliveredRecently,
    /// Your endpoint was tested a moment ago. Wait as long as `Retry-After` says.
    #[strum(props(status = "429"))]
    TestedRecently,
    /// We are overloaded; this request stored nothing. Send it again after `Retry-After` seconds.
    #[strum(props(status = "503", bought = "no"))]
    Overloaded,
    /// Our fault. An order may be stored: repeat the request with the same `external_order_id`, or look the order up.
    /// If it stays, send us the `X-Request-Id`.
    #[strum(props(status = "500", bought = "**maybe**"))]
    InternalError,
}

impl Code {
    /// The code as it is written in the header.
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }

    fn text(self) -> String {
        self.get_documentation().unwrap_or_default().trim().replace('\n', " ")
    }

    /// The statuses, and whether something was bought.
    fn facts(self) -> String {
        let status = self.get_str("status").unwrap_or_default();
        let bought = self.get_str("bought").map_or(String::new(), |bought| format!(" Bought: {bought}."));
        format!("Status {status}.{bought}")
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

const TITLE: &str = "Errors";
const INTRODUCTION: &str = "Each error answer names its codes in `X-Service-Error`, of an item with its index (`qty_invalid; item=2`), of a parameter with its name (`limit_invalid; parameter=limit`), and links their sections of this page in `Link`. A code never changes its meaning; texts may change. With several codes, `external_order_id_taken` counts: the stored order stands whatever else is wrong with the request.";

/// The page as Markdown.
#[cfg(test)]
fn markdown() -> String {
    let mut page = format!(
        "<!-- Made from services/ingress/src/http/codes.rs: UPDATE_DOCS=1 cargo test -p ingress --lib codes -->\n# {TITLE}\n\n{INTRODUCTION}\n"
    );
    for code in Code::VARIANTS {
        let (name, facts, text) = (code.name(), code.facts(), code.text());
        let _ = write!(page, "\n## {name}\n\n{facts}\n\n{text}\n");
    }
    page
}

/// The page as HTML, below a head that names the style.
pub(crate) fn html() -> String {
    let mut page = format!("<h1>{TITLE}</h1>\n<p>{}</p>\n", inline(INTRODUCTION));
    for code in Code::VARIANTS {
        let (name, facts, text) = (code.name(), inline(&code.facts()), inline(&code.text()));
        let _ = write!(page, "<h2 id=\"{name}\"><a href=\"#{name}\">{name}</a></h2>\n<p>{facts}</p>\n<p>{text}</p>\n");
    }
    page
}

/// The Markdown of this list as HTML: it has code and bold spans only.
fn inline(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let spans = |text: &str, mark: &str, tag: &str| {
        let parts = text.split(mark).enumerate().map(|(index, part)| match index % 2 {
            0 => part.to_owned(),
            _ => format!("<{tag}>{part}</{tag}>"),
        });
        parts.collect::<String>()
    };
    spans(&spans(&text, "`", "code"), "**", "strong")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `UPDATE_DOCS=1` writes the file.
    #[test]
    fn the_stored_page_is_the_generated_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, markdown()).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(stored == markdown(), "docs/errors.md is old: run this test with UPDATE_DOCS=1");
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

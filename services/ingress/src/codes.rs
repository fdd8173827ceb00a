//! The stable codes of errors, and the page that explains each of them.
//!
//! A response names its codes in `X-<Brand>-Error` and links their sections of the page in `Link`. `/errors` and
//! `docs/errors.md` are made from this list.

use std::fmt::{self, Display, Formatter, Write};

use axum::http::HeaderValue;
use clap::ValueEnum;

/// A stable code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Code {
    // The head of the request, and its body.
    Malformed,
    Host,
    RepeatedHeader,
    InvalidJson,
    UriTooLong,
    HeadTooLarge,
    BodyTooLarge,
    HeadTimeout,
    BodyTimeout,
    NotFound,
    MethodNotAllowed,
    // Authentication.
    AuthenticationHeaderMissing,
    TimestampInvalid,
    AccessKeyUnknown,
    SecretKeyMissing,
    SignatureInvalid,
    ContentSha256Missing,
    ContentSha256Invalid,
    SignatureReplayed,
    SandboxOnly,
    // Create-order.
    ExternalOrderIdBlank,
    ExternalOrderIdInvalid,
    ExternalOrderIdTaken,
    ProductsBlank,
    ProductsInvalid,
    ItemInvalid,
    OptionIdBlank,
    OptionNotFound,
    QtyInvalid,
    TooManyItems,
    TooManyUnits,
    ProviderRejected,
    ProviderUnreachable,
    // Everything else that partners send.
    LimitInvalid,
    CursorInvalid,
    CreatedAfterInvalid,
    StateInvalid,
    WaitInvalid,
    EventsInvalid,
    UrlMissing,
    UrlInvalid,
    UrlForbidden,
    OrderNotWaiting,
    OrderRefused,
    TopupNotReady,
    TopupErased,
    EventVoid,
    WebhookUrlMissing,
    WebhookPaused,
    RotationUnderWay,
    // Load, and our faults.
    OrderUndecided,
    RateLimited,
    TooManyInFlight,
    RedeliveredRecently,
    TestedRecently,
    Overloaded,
    InternalError,
}

/// What the page says of a code.
struct Section {
    name: &'static str,
    /// The statuses that carry the code.
    status: &'static str,
    /// Whether something was bought, of codes that create-order answers with.
    bought: Option<&'static str>,
    /// What is wrong and what to do, as Markdown without links.
    text: &'static str,
}

const NO: Option<&str> = Some("no");
const NEVER: Option<&str> = Some("no, now or later");

impl Code {
    /// The code as it is written in the header.
    pub(crate) fn name(self) -> &'static str {
        self.section().name
    }

    #[expect(clippy::too_many_lines, reason = "a table")]
    fn section(self) -> Section {
        let (name, status, bought, text) = match self {
            Self::Malformed => (
                "malformed",
                "400",
                NO,
                "The request is not HTTP/1.1. Check the line breaks and colons of its head; a proxy between us may have damaged it.",
            ),
            Self::Host => ("host", "400", NO, "Send exactly one `Host` header."),
            Self::RepeatedHeader => (
                "repeated_header",
                "400",
                NO,
                "An authentication header appears twice. Send each once: a library that adds headers to those of an earlier attempt is a usual cause.",
            ),
            Self::InvalidJson => (
                "invalid_json",
                "400",
                NO,
                "The body is missing, empty or not JSON. Bodies are read as sent: `Content-Encoding` is not supported.",
            ),
            Self::UriTooLong => (
                "uri_too_long",
                "414",
                NO,
                "The path with the query is longer than a request's head may be. Send shorter parameters.",
            ),
            Self::HeadTooLarge => (
                "head_too_large",
                "431",
                NO,
                "The head of the request is over 16 KiB or has over 100 headers. Send fewer or shorter headers.",
            ),
            Self::BodyTooLarge => (
                "body_too_large",
                "413",
                NO,
                "The body is over 64 KiB. Split the order.",
            ),
            Self::HeadTimeout => (
                "head_timeout",
                "408",
                NO,
                "The head of the request did not arrive in time. Send it at once; open a connection only when there is a request.",
            ),
            Self::BodyTimeout => (
                "body_timeout",
                "408",
                NO,
                "The body did not arrive in time. Send it with the head, and check that `Content-Length` is its length in bytes.",
            ),
            Self::NotFound => (
                "not_found",
                "404",
                NO,
                "Nothing has this path or id. Check the path, and percent-encode ids in it. An id of another partner is unknown, too. An order that you cannot find was not stored.",
            ),
            Self::MethodNotAllowed => (
                "method_not_allowed",
                "405",
                NO,
                "The path exists, but not with this method. `Allow` names its methods.",
            ),
            Self::AuthenticationHeaderMissing => (
                "authentication_header_missing",
                "401",
                NO,
                "At least one of the three authentication headers is missing or blank.",
            ),
            Self::TimestampInvalid => (
                "timestamp_invalid",
                "401",
                NO,
                "The timestamp is not Unix time in seconds, or is more than 300 s from our time. Our time is in the `Date` header of the answer. Correct your clock; milliseconds are a usual mistake.",
            ),
            Self::AccessKeyUnknown => (
                "access_key_unknown",
                "401",
                NO,
                "No active account has this access key. Check it, and that base URL and key belong together. After a rotation the old key ends with the overlap.",
            ),
            Self::SecretKeyMissing => (
                "secret_key_missing",
                "401",
                NO,
                "Your account has no secret key. Ask us.",
            ),
            Self::SignatureInvalid => (
                "signature_invalid",
                "401",
                NO,
                "The signature is not the one that we compute. Check your code with the guide's test vector. Usual mistakes: the secret key is not Base64-decoded; the path is signed with the query, without its prefix, or decoded; the text ends with a line feed; the timestamp in header and text differ; the signature is Base64 or uppercase.",
            ),
            Self::ContentSha256Missing => (
                "content_sha256_missing",
                "401",
                NO,
                "Your account requires requests that sign their query and body. Send the body's SHA-256 in `X-<Brand>-Content-SHA256`, and sign it as the fifth line.",
            ),
            Self::ContentSha256Invalid => (
                "content_sha256_invalid",
                "401",
                NO,
                "`X-<Brand>-Content-SHA256` is not the SHA-256 of the body as it arrived, in lowercase hexadecimal. Hash the bytes that are sent, not the object before it is serialized.",
            ),
            Self::SignatureReplayed => (
                "signature_replayed",
                "401",
                Some("maybe, by the earlier request"),
                "This exact signature was used before. Sign each request anew, a repeated one too.",
            ),
            Self::SandboxOnly => (
                "sandbox_only",
                "403",
                None,
                "Only sandbox accounts may listen for webhooks. Use the keys of a sandbox account.",
            ),
            Self::ExternalOrderIdBlank => (
                "external_order_id_blank",
                "422",
                NEVER,
                "Send a non-blank string as `external_order_id`.",
            ),
            Self::ExternalOrderIdInvalid => (
                "external_order_id_invalid",
                "422",
                NEVER,
                "`external_order_id` is not a string, has more than 255 characters, or contains NUL.",
            ),
            Self::ExternalOrderIdTaken => (
                "external_order_id_taken",
                "422",
                Some("**yes**, by the earlier request"),
                "An earlier order has this id. It is stored, and is bought or being bought: do not refund it. `Location` names the order; look it up to get its `topup_id`s and eSIMs. If it is another order, choose a new id.",
            ),
            Self::ProductsBlank => (
                "products_blank",
                "422",
                NEVER,
                "Send at least one item in `products`.",
            ),
            Self::ProductsInvalid => ("products_invalid", "422", NEVER, "`products` is not an array."),
            Self::ItemInvalid => (
                "item_invalid",
                "422",
                NEVER,
                "The item is not an object with `option_id` and `qty`.",
            ),
            Self::OptionIdBlank => ("option_id_blank", "422", NEVER, "The item has no `option_id`."),
            Self::OptionNotFound => (
                "option_not_found",
                "422",
                NEVER,
                "No option that you may order has this id. `GET /options` lists them. Sandbox accounts order sandbox options, live accounts live ones.",
            ),
            Self::QtyInvalid => (
                "qty_invalid",
                "422",
                NEVER,
                "`qty` is not a positive integer, written in digits only.",
            ),
            Self::TooManyItems => (
                "too_many_items",
                "422",
                NEVER,
                "The order has more items than an order may have; `GET /account` shows the limit. Split it.",
            ),
            Self::TooManyUnits => (
                "too_many_units",
                "422",
                NEVER,
                "The order has more units than an order may have; `GET /account` shows the limit. Split it.",
            ),
            Self::ProviderRejected => (
                "provider_rejected",
                "422",
                NEVER,
                "The provider rejected the order; the message says why. The id is free again. Order something else, or later.",
            ),
            Self::ProviderUnreachable => (
                "provider_unreachable",
                "422",
                NEVER,
                "The provider could not be reached. The id is free again. Order again later.",
            ),
            Self::LimitInvalid => (
                "limit_invalid",
                "422",
                None,
                "`limit` is not an integer from 1 to 100.",
            ),
            Self::CursorInvalid => (
                "cursor_invalid",
                "422",
                None,
                "`cursor` is not a `next_cursor` of ours. Send it unchanged, percent-encoded, or begin without it.",
            ),
            Self::CreatedAfterInvalid => (
                "created_after_invalid",
                "422",
                None,
                "`created_after` is not an RFC 3339 time such as `2026-11-22T00:00:00Z`. Encode a `+` as `%2B`.",
            ),
            Self::StateInvalid => ("state_invalid", "422", None, "`state` is not a state of orders."),
            Self::WaitInvalid => (
                "wait_invalid",
                "422",
                None,
                "`wait` is not a whole number of seconds.",
            ),
            Self::EventsInvalid => (
                "events_invalid",
                "422",
                None,
                "`events` is not a list of `topup.failed` and `key.expiring`. An empty list asks for none.",
            ),
            Self::UrlMissing => (
                "url_missing",
                "422",
                None,
                "The body has no `url`. Send a string to set it, `null` to remove it.",
            ),
            Self::UrlInvalid => (
                "url_invalid",
                "422",
                None,
                "The webhook URL is not an `http` or `https` URL of at most 2048 bytes without user, password and fragment.",
            ),
            Self::UrlForbidden => (
                "url_forbidden",
                "422",
                None,
                "Webhooks are not sent to this address or port: use a public address, or a name that resolves to public addresses only, and port 80, 443 or one above 1023. A live account needs `https`.",
            ),
            Self::OrderNotWaiting => (
                "order_not_waiting",
                "409",
                None,
                "The order is bought, or may be; it can no longer be cancelled.",
            ),
            Self::OrderRefused => (
                "order_refused",
                "409",
                None,
                "The order was refused: there is nothing to cancel, and nothing was bought.",
            ),
            Self::TopupNotReady => (
                "topup_not_ready",
                "409",
                None,
                "The eSIM is not ready, so there is no webhook to send again. Look the topup up later.",
            ),
            Self::TopupErased => (
                "topup_erased",
                "409",
                None,
                "The fields of the eSIM were erased when their time was over. They cannot be sent again.",
            ),
            Self::EventVoid => (
                "event_void",
                "409",
                None,
                "The event cannot be sent again. It is a test (`POST /webhook/test` sends a new one), or you no longer ask for events of its type, or the failed topup did get ready.",
            ),
            Self::WebhookUrlMissing => (
                "webhook_url_missing",
                "409",
                None,
                "Your account has no webhook URL. Set one: webhooks that wait are then sent.",
            ),
            Self::WebhookPaused => (
                "webhook_paused",
                "409",
                None,
                "Your endpoint is paused by our operators, so nothing is sent to it. Ask them.",
            ),
            Self::RotationUnderWay => (
                "rotation_under_way",
                "409",
                None,
                "The old keys or the old secret of the last rotation are still valid. Try again when the overlap has ended, or ask us to end it.",
            ),
            Self::OrderUndecided => (
                "order_undecided",
                "409 when cancelling, 503 when ordering",
                NO,
                "An earlier create-order request with this id has no answer yet. Try again in a few seconds.",
            ),
            Self::RateLimited => (
                "rate_limited",
                "429",
                NO,
                "Your account sends more requests, orders or units per second than it may. Send this one again after `Retry-After` seconds; `RateLimit-Limit` is the limit.",
            ),
            Self::TooManyInFlight => (
                "too_many_in_flight",
                "429",
                NO,
                "Your account has as many requests in flight as it may. Send it again after `Retry-After` seconds, and fewer at once.",
            ),
            Self::TestedRecently => (
                "tested_recently",
                "429",
                None,
                "Your endpoint was tested a moment ago. Wait as long as `Retry-After` says.",
            ),
            Self::RedeliveredRecently => (
                "redelivered_recently",
                "429",
                None,
                "The webhook was sent a moment ago. Send the request again after `Retry-After` seconds.",
            ),
            Self::Overloaded => (
                "overloaded",
                "503",
                NO,
                "We are overloaded; this request stored nothing. Send it again after `Retry-After` seconds.",
            ),
            Self::InternalError => (
                "internal_error",
                "500",
                Some("**maybe**"),
                "Our fault. An order may be stored: repeat the request with the same `external_order_id`, or look the order up. If it stays, tell us the `X-Request-Id`.",
            ),
        };
        Section {
            name,
            status,
            bought,
            text,
        }
    }
}

/// A code with what it is about, as the error header names it: `qty_invalid; item=2`.
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
        Self {
            code,
            item: None,
            parameter: None,
        }
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
        "<!-- Made from services/ingress/src/codes.rs: UPDATE_DOCS=1 cargo test -p ingress --lib codes -->\n# {TITLE}\n\n{INTRODUCTION}\n"
    );
    for code in Code::value_variants() {
        let Section {
            name,
            status,
            bought,
            text,
        } = code.section();
        let _ = write!(page, "\n## {name}\n\n{}\n\n{text}\n", facts(status, bought));
    }
    page
}

/// The page as HTML, below a head that names the style.
pub(crate) fn html() -> String {
    let mut page = format!("<h1>{TITLE}</h1>\n<p>{}</p>\n", inline(INTRODUCTION));
    for code in Code::value_variants() {
        let Section {
            name,
            status,
            bought,
            text,
        } = code.section();
        let facts = facts(status, bought);
        let _ = write!(
            page,
            "<h2 id=\"{name}\"><a href=\"#{name}\">{name}</a></h2>\n<p>{}</p>\n<p>{}</p>\n",
            inline(&facts),
            inline(text)
        );
    }
    page
}

fn facts(status: &str, bought: Option<&str>) -> String {
    let bought = bought.map_or(String::new(), |bought| format!(" Bought: {bought}."));
    format!("Status {status}.{bought}")
}

/// The Markdown of this list as HTML: it has code and bold spans only.
fn inline(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let spans = |text: &str, mark: &str, tag: &str| {
        let parts = text.split(mark).enumerate();
        let parts = parts.map(|(index, part)| match index % 2 {
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
        assert!(
            stored == markdown(),
            "docs/errors.md is old: run this test with UPDATE_DOCS=1"
        );
    }

    #[test]
    fn every_code_has_one_section_of_its_name() {
        let page = html();
        for code in Code::value_variants() {
            let name = code.name();
            let variant = code.to_possible_value().unwrap();
            assert_eq!(name, variant.get_name().replace('-', "_"));
            assert_eq!(page.matches(&format!("id=\"{name}\"")).count(), 1, "{name}");
        }
    }

    #[test]
    fn the_guide_names_every_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/partner-guide.md");
        let guide = std::fs::read_to_string(path).unwrap();
        for code in Code::value_variants() {
            assert!(guide.contains(&format!("`{}`", code.name())), "{}", code.name());
        }
    }

    #[test]
    fn links_name_each_section_once() {
        let of_item = |item| Named {
            item: Some(item),
            ..Code::QtyInvalid.into()
        };
        let errors = [of_item(1), of_item(2), Code::TooManyUnits.into()];
        assert_eq!(
            header(&errors),
            "qty_invalid; item=1, qty_invalid; item=2, too_many_units"
        );
        assert_eq!(
            links("https://a.example/errors", &errors).unwrap(),
            "<https://a.example/errors#qty_invalid>; rel=\"help\", <https://a.example/errors#too_many_units>; rel=\"help\""
        );
    }
}

//! The headers that a partner sets for an endpoint, so that its own gateway lets our requests pass:
//! for example an API key. Ingress checks them when they are set, and the notifier sends them with
//! each request to the endpoint.
//!
//! Guarantee: a header that passes the checks can be sent as it is, and cannot change where a
//! request goes, where it ends, what its body is, or whether its signature is valid.

/// The maximum number of headers of one endpoint.
pub const MOST: usize = 10;
/// The maximum number of bytes of all names and values of one endpoint.
pub const MOST_BYTES: usize = 4096;

/// Names that a partner cannot set: those that frame the request or its connection, and those that
/// we set ourselves, in the form of [`as_read`].
const RESERVED: [&str; 13] = [
    "accept",
    "connection",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "traceparent",
    "tracestate",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
];
/// The beginnings of such names.
const RESERVED_BEGINNINGS: [&str; 3] = ["content-", "proxy-", "webhook-"];

/// The name as a gateway may read it: CGI and its descendants (WSGI, PHP, Rack) pass a header on as
/// a variable whose name has `_` for `-`, so `webhook_signature` could stand beside, or instead of,
/// our `webhook-signature`.
pub fn as_read(lower: &str) -> String {
    lower.replace('_', "-")
}

/// Why a header cannot be set. The message never repeats the value, which may be a secret.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadHeader {
    #[error("{0:?} is not a header name: use letters, digits and hyphens")]
    Name(String),
    #[error("{0} is set by us or by the connection and cannot be chosen")]
    Reserved(String),
    #[error("the value of {0} must have visible ASCII characters, with spaces only between them")]
    Value(String),
}

/// Checks a header, and returns its name in lower case, which is how it is stored and sent.
pub fn check(name: &str, value: &str) -> Result<String, BadHeader> {
    let lower = name.to_ascii_lowercase();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if lower.is_empty() || lower.len() > 100 || !lower.bytes().all(is_name) {
        // A name may be long or hold anything, so only its beginning is repeated.
        return Err(BadHeader::Name(lower.chars().take(100).collect()));
    }
    let read = as_read(&lower);
    let begins = |beginning: &&str| read.starts_with(*beginning);
    if RESERVED.contains(&read.as_str()) || RESERVED_BEGINNINGS.iter().any(begins) {
        return Err(BadHeader::Reserved(lower));
    }
    let is_visible = value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if value.is_empty() || value.trim() != value || !is_visible {
        return Err(BadHeader::Value(lower));
    }
    Ok(lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_headers_that_change_nothing_else_are_accepted() {
        for (name, value) in [
            ("X-Api-Key", "s3cret"),
            ("Authorization", "Bearer a b"),
            ("x_tenant", "~"),
        ] {
            assert_eq!(check(name, value), Ok(name.to_ascii_lowercase()));
        }
        for name in [
            "Host",
            "CONTENT-LENGTH",
            "content-type",
            "Connection",
            "Transfer-Encoding",
            "TE",
            "Proxy-Authorization",
            "Webhook-Signature",
            "webhook-",
            "traceparent",
            "webhook_signature",
            "WEBHOOK_ID",
            "Webhook_Timestamp",
            "content_length",
            "Content_Type",
            "transfer_encoding",
            "Transfer_Encoding",
            "keep_alive",
            "user_agent",
            "proxy_authorization",
        ] {
            let lower = name.to_ascii_lowercase();
            assert_eq!(check(name, "v"), Err(BadHeader::Reserved(lower)), "{name}");
        }
        for name in ["", "a b", "a:", "a\r\nb", "ä", "(a)", &"n".repeat(101)] {
            assert!(
                matches!(check(name, "v"), Err(BadHeader::Name(_))),
                "{name:?}"
            );
        }
        for value in ["", " a", "a ", "a\r\nHost: b", "a\tb", "ä", "\0"] {
            let refused = Err(BadHeader::Value("x-key".into()));
            assert_eq!(check("X-Key", value), refused, "{value:?}");
        }
    }
}

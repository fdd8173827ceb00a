//! The changes, as tables.

use super::{API, Known, Sent, flipped, key, later, text, uncovered};
use crate::shop::fresh;
use signing::{SecretKey, request};
use testkit::client::{ACCESS_KEY, DIGEST, ORDERS, ORDERS_SHORT, SIGNATURE, TIMESTAMP, order};
use testkit::rows;

/// A change, and the code of its refusal.
pub type Row = (&'static str, fn(&mut Sent, &Known), &'static str);

const WRONG: &str = "signature_invalid";
const STALE: &str = "timestamp_invalid";
const UNKNOWN: &str = "access_key_unknown";
const MISSING: &str = "authentication_header_missing";
const REPEATED: &str = "repeated_header";
const NOWHERE: &str = "not_found";
pub const BODY: &str = "content_sha256_invalid";
const UNSIGNED: &str = "content_sha256_missing";

/// Changes of any signed request.
pub const ANY: &[Row] = &rows! {
    // Another request with the captured headers.
    "the other form of the path", |s, _| s.to("POST", ORDERS_SHORT) => WRONG;
    "a list instead of an order", |s, _| s.to("GET", ORDERS) => WRONG;
    "the account", |s, _| s.to("GET", &format!("{API}/account")) => WRONG;
    "the options", |s, _| s.to("GET", &format!("{API}/options")) => WRONG;
    "a topup with its eSIM", |s, k| s.to("GET", &format!("{API}/topups/{}", k.topup)) => WRONG;
    "its deliveries", |s, k| s.to("GET", &format!("{API}/topups/{}/deliveries", k.topup)) => WRONG;
    "its redelivery", |s, k| s.to("POST", &format!("{API}/topups/{}/redeliver", k.topup)) => WRONG;
    "an order", |s, _| s.to("GET", &format!("{ORDERS}/first")) => WRONG;
    "a cancellation", |s, _| s.to("DELETE", &format!("{ORDERS}/first")) => WRONG;
    "the endpoint", |s, _| s.to("GET", &format!("{API}/webhook")) => WRONG;
    "another endpoint", |s, _| {
        s.to("PUT", &format!("{API}/webhook"));
        s.body = br#"{"url": "https://attacker.example/"}"#.to_vec();
    } => WRONG;
    "a new webhook secret", |s, _| s.to("POST", &format!("{API}/webhook/secret")) => WRONG;
    "new keys", |s, _| s.to("POST", &format!("{API}/keys")) => WRONG;
    "a method that is not there", |s, _| s.to("PATCH", ORDERS) => "method_not_allowed";
    "a method in lower case", |s, _| s.to("post", ORDERS) => "method_not_allowed";
    "a final slash", |s, _| s.to("POST", &format!("{ORDERS}/")) => NOWHERE;
    "two slashes", |s, _| s.to("POST", &format!("/{ORDERS}")) => NOWHERE;
    "a dot segment", |s, _| s.to("POST", "/api/v1/./api_partner/orders") => NOWHERE;
    "two dots", |s, _| s.to("POST", "/api/v1/x/../api_partner/orders") => NOWHERE;
    "an encoded letter", |s, _| s.to("POST", "/api/v1/api_partner/%6frders") => NOWHERE;
    "an encoded slash", |s, _| s.to("POST", "/api/v1/api_partner%2Forders") => NOWHERE;
    "upper case", |s, _| s.to("POST", "/API/v1/api_partner/orders") => NOWHERE;
    "a path parameter", |s, _| s.to("POST", &format!("{ORDERS};a=b")) => NOWHERE;
    // The timestamp.
    "a second later", |s, _| s.change(TIMESTAMP, |text| later(&text, 1)) => WRONG;
    "a second earlier", |s, _| s.change(TIMESTAMP, |text| later(&text, -1)) => WRONG;
    "a zero in front", |s, _| s.change(TIMESTAMP, |text| format!("0{text}")) => WRONG;
    "a plus in front", |s, _| s.change(TIMESTAMP, |text| format!("+{text}")) => STALE;
    "a fraction", |s, _| s.change(TIMESTAMP, |text| format!("{text}.0")) => STALE;
    "milliseconds", |s, _| s.change(TIMESTAMP, |text| format!("{text}000")) => STALE;
    "hexadecimal digits", |s, _| s.change(TIMESTAMP, |text| format!("0x{text}")) => STALE;
    "an old timestamp", |s, _| s.change(TIMESTAMP, |text| later(&text, -302)) => STALE;
    "a future timestamp", |s, _| s.change(TIMESTAMP, |text| later(&text, 302)) => STALE;
    "a huge timestamp", |s, _| s.set(TIMESTAMP, "9223372036854775808") => STALE;
    "two timestamps in one", |s, _| s.change(TIMESTAMP, |text| format!("{text}, {text}")) => STALE;
    "an empty timestamp", |s, _| s.set(TIMESTAMP, "") => MISSING;
    "no timestamp", |s, _| s.remove(TIMESTAMP) => MISSING;
    // The access key.
    "the attacker's access key", |s, k| s.set(ACCESS_KEY, &k.own.access_key) => WRONG;
    "an access key in upper case", |s, _| s.change(ACCESS_KEY, |key| key.to_uppercase()) => UNKNOWN;
    "a longer access key", |s, _| s.change(ACCESS_KEY, |key| format!("{key}0")) => UNKNOWN;
    "a shorter access key", |s, _| s.change(ACCESS_KEY, |key| key[1..].to_owned()) => UNKNOWN;
    "SQL", |s, _| s.change(ACCESS_KEY, |key| format!("{key}' OR '1'='1")) => UNKNOWN;
    "two access keys in one", |s, _| s.change(ACCESS_KEY, |key| format!("{key},{key}")) => UNKNOWN;
    "the partner's id", |s, k| s.set(ACCESS_KEY, &k.victim.partner_id) => UNKNOWN;
    "an empty access key", |s, _| s.set(ACCESS_KEY, "") => MISSING;
    "no access key", |s, _| s.remove(ACCESS_KEY) => MISSING;
    // The signature.
    "a signature in upper case", |s, _| s.change(SIGNATURE, |text| text.to_uppercase()) => WRONG;
    "a shorter signature", |s, _| s.change(SIGNATURE, |text| text[..63].to_owned()) => WRONG;
    "half a signature", |s, _| s.change(SIGNATURE, |text| text[..32].to_owned()) => WRONG;
    "a longer signature", |s, _| s.change(SIGNATURE, |text| format!("{text}0")) => WRONG;
    "another first digit", |s, _| s.change(SIGNATURE, |text| flipped(&text, 0)) => WRONG;
    "another last digit", |s, _| s.change(SIGNATURE, |text| flipped(&text, 63)) => WRONG;
    "zeros", |s, _| s.set(SIGNATURE, &"0".repeat(64)) => WRONG;
    "a signature with a prefix", |s, _| s.change(SIGNATURE, |text| format!("v1,{text}")) => WRONG;
    "two signatures in one", |s, _| s.change(SIGNATURE, |text| format!("{text} {text}")) => WRONG;
    "the signature of a NUL key", |s, _| s.sign(&key(&[0])) => WRONG;
    "the access key as key", |s, k| s.sign(&key(k.victim.access_key.as_bytes())) => WRONG;
    "the key as it is written", |s, k| s.sign(&key(k.victim.secret_key.as_bytes())) => WRONG;
    "the attacker's key",
        |s, k| s.sign(&SecretKey::from_base64(&k.own.secret_key).expect("esimctl prints Base64")) => WRONG;
    "lines with a carriage return", |s, k| s.sign_lines(&k.secret(), "\r") => WRONG;
    "lines with two ends", |s, k| s.sign_lines(&k.secret(), "\n") => WRONG;
    "an empty signature", |s, _| s.set(SIGNATURE, "") => MISSING;
    "no signature", |s, _| s.remove(SIGNATURE) => MISSING;
    "a signature under another name", |s, _| {
        let signature = s.get(SIGNATURE);
        s.remove(SIGNATURE);
        s.add("x_service_signature", &signature);
    } => MISSING;
    // Headers that two programs read differently.
    "the access key twice", |s, _| s.add(ACCESS_KEY, &s.get(ACCESS_KEY)) => REPEATED;
    "two access keys", |s, k| s.add(ACCESS_KEY, &k.own.access_key) => REPEATED;
    "the timestamp twice", |s, _| s.add(TIMESTAMP, &s.get(TIMESTAMP)) => REPEATED;
    "two timestamps", |s, _| s.add(TIMESTAMP, "1700000000") => REPEATED;
    "the signature twice", |s, _| s.add(SIGNATURE, &s.get(SIGNATURE)) => REPEATED;
    "two signatures", |s, _| s.add(SIGNATURE, &"0".repeat(64)) => REPEATED;
    "two hosts", |s, _| s.add("host", "attacker.example") => "host";
};

/// Changes of a request whose signature covers query and body.
pub const WHOLE: &[Row] = &rows! {
    "another order", |s, k| s.body = order(&fresh("other"), &[(&k.option, 1)]).to_string().into() => BODY;
    "more units", |s, _| s.body = text(s).replace("\"qty\":1", "\"qty\":9").into() => BODY;
    "a blank behind the body", |s, _| s.body.push(b' ') => BODY;
    "a blank before the body", |s, _| s.body.insert(0, b' ') => BODY;
    "half the body", |s, _| s.body.truncate(s.body.len() / 2) => BODY;
    "no body", |s, _| s.body.clear() => BODY;
    "a repeated body", |s, _| s.body = s.body.repeat(2) => BODY;
    "a large body", |s, _| s.body = vec![b' '; 60_000] => BODY;
    "another order with its digest", |s, k| {
        s.body = order(&fresh("other"), &[(&k.option, 1)]).to_string().into();
        s.set(DIGEST, &request::digest(&s.body));
    } => WRONG;
    "another digest", |s, _| s.set(DIGEST, &request::digest(b"")) => WRONG;
    "a digest in upper case", |s, _| s.change(DIGEST, |text| text.to_uppercase()) => WRONG;
    "a shorter digest", |s, _| s.change(DIGEST, |text| text[..63].to_owned()) => WRONG;
    "an empty digest", |s, _| s.set(DIGEST, "") => WRONG;
    "a blank digest", |s, _| s.set(DIGEST, " \t") => WRONG;
    "the digest twice", |s, _| s.add(DIGEST, &s.get(DIGEST)) => REPEATED;
    "two digests", |s, _| s.add(DIGEST, &request::digest(b"")) => REPEATED;
    "no digest", |s, _| s.remove(DIGEST) => WRONG;
    "no digest, another order",
        |s, k| { s.remove(DIGEST); s.body = order(&fresh("other"), &[(&k.option, 1)]).to_string().into(); }
        => WRONG;
    "the digest under another name",
        |s, _| { let digest = s.get(DIGEST); s.remove(DIGEST); s.add("x_service_content_sha256", &digest); }
        => WRONG;
    "the digest as part of the access key", |s, _| {
        let digest = s.get(DIGEST);
        s.remove(DIGEST);
        s.change(ACCESS_KEY, |key| format!("{key} {digest}"));
    } => UNKNOWN;
    "a query", |s, _| s.to("POST", &format!("{ORDERS}?dry_run=1")) => WRONG;
    "an empty query", |s, _| s.to("POST", &format!("{ORDERS}?")) => WRONG;
    // The partner itself signs, but not what it sends.
    "a signed digest in upper case",
        |s, k| { s.change(DIGEST, |text| text.to_uppercase()); s.sign(&k.secret()); } => BODY;
    "a signed digest of another body", |s, k| { s.set(DIGEST, &request::digest(b"{}")); s.sign(&k.secret()); }
        => BODY;
    "a signed word", |s, k| { s.set(DIGEST, "UNSIGNED-PAYLOAD"); s.sign(&k.secret()); } => BODY;
};

/// Requests of a partner that must sign its body: good ones, were it not for that.
pub const UNCOVERED: &[Row] = &rows! {
    "an order", |_, _| () => UNSIGNED;
    "an order with a query", |s, _| s.target += "?a=b" => UNSIGNED;
    "an order under the other path", |s, k| { s.to("POST", ORDERS_SHORT); s.sign(&k.secret()); } => UNSIGNED;
    "a list", |s, k| uncovered(s, k, "GET", "/orders") => UNSIGNED;
    "an order's look-up", |s, k| uncovered(s, k, "GET", "/orders/first") => UNSIGNED;
    "a cancellation", |s, k| uncovered(s, k, "DELETE", "/orders/first") => UNSIGNED;
    "a topup", |s, k| uncovered(s, k, "GET", &format!("/topups/{}", k.topup)) => UNSIGNED;
    "a redelivery", |s, k| uncovered(s, k, "POST", &format!("/topups/{}/redeliver", k.topup)) => UNSIGNED;
    "the account", |s, k| uncovered(s, k, "GET", "/account") => UNSIGNED;
    "the options", |s, k| uncovered(s, k, "GET", "/options") => UNSIGNED;
    "the endpoint", |s, k| uncovered(s, k, "GET", "/webhook") => UNSIGNED;
    "another endpoint", |s, k| {
        uncovered(s, k, "PUT", "/webhook");
        s.body = br#"{"url": "https://attacker.example/"}"#.to_vec();
    } => UNSIGNED;
    "a new webhook secret", |s, k| uncovered(s, k, "POST", "/webhook/secret") => UNSIGNED;
    "new keys", |s, k| uncovered(s, k, "POST", "/keys") => UNSIGNED;
};

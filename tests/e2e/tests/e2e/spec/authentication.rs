//! Section 5, and the 401 messages of section 7.

use super::Expected::{Denied, Error};
use super::{Expected, ONE, Row, world::World};
use runtime::clock::unix_seconds;
use signing::SecretKey;
use testkit::client::{ACCESS_KEY, ORDERS_SHORT, SIGNATURE, TIMESTAMP};
use testkit::rows;

const MISSING: Expected = Denied("Missing required authentication headers.");
const STALE: Expected = Denied("Request timestamp is too old or invalid.");
const UNKNOWN: Expected =
    Denied("Invalid or missing access key. Please provide a valid X-Service-Access-Key header.");
const NO_SECRET: Expected = Denied("Missing secret key in partner record.");
const WRONG: Expected = Denied("Invalid signature.");
const INTERNAL: Expected = Error(500, "Internal server error");

pub const ROWS: &[Row] = &rows! {
    "both path forms: with `api`", World::order => ONE;
    "both path forms: without `api`", |w| w.order().path(ORDERS_SHORT) => ONE;
    "the signature is over the path as requested: long for short", |w| {
        let signature = w.order().signature();
        w.order().path(ORDERS_SHORT).header(SIGNATURE, signature)
    } => WRONG;
    "the signature is over the path as requested: short for long", |w| {
        let signature = w.order().path(ORDERS_SHORT).signature();
        w.order().header(SIGNATURE, signature)
    } => WRONG;
    "the query string is not signed", |w| w.order().query("page=1&a=%20") => ONE;
    "a signature over the query string is wrong", |w| {
        let signature = w.order().path(&format!("{}?page=1", testkit::client::ORDERS)).signature();
        w.order().query("page=1").header(SIGNATURE, signature)
    } => WRONG;
    // All three headers present.
    "the access key is required", |w| w.order().without(ACCESS_KEY) => MISSING;
    "the signature is required", |w| w.order().without(SIGNATURE) => MISSING;
    "the timestamp is required", |w| w.order().without(TIMESTAMP) => MISSING;
    "none of the three", |w| w.order().without(ACCESS_KEY).without(SIGNATURE).without(TIMESTAMP) => MISSING;
    "an empty access key is missing", |w| w.order().header(ACCESS_KEY, "") => MISSING;
    "an empty signature is missing", |w| w.order().header(SIGNATURE, "") => MISSING;
    "an empty timestamp is missing", |w| w.order().header(TIMESTAMP, "") => MISSING;
    "a blank access key is missing", |w| w.order().header(ACCESS_KEY, "  \t") => MISSING;
    "a blank signature is missing", |w| w.order().header(SIGNATURE, " ") => MISSING;
    "a blank timestamp is missing", |w| w.order().header(TIMESTAMP, "\t") => MISSING;
    // The window.
    "299 s ago is within the window", |w| w.order().timestamp_from_now(-299) => ONE;
    "in 299 s is within the window", |w| w.order().timestamp_from_now(299) => ONE;
    "301 s ago is too old", |w| w.order().timestamp_from_now(-301) => STALE;
    // One second more than 301: ingress reads its clock later than the client did.
    "in 302 s is too far ahead", |w| w.order().timestamp_from_now(302) => STALE;
    "the epoch is too old", |w| w.order().timestamp("0") => STALE;
    "milliseconds are no seconds", |w| w.order().timestamp(&format!("{}000", unix_seconds())) => STALE;
    "a timestamp has no plus sign", |w| w.order().timestamp(&format!("+{}", unix_seconds())) => STALE;
    "a timestamp is not negative", |w| w.order().timestamp(&format!("-{}", unix_seconds())) => STALE;
    "a timestamp has no fraction", |w| w.order().timestamp(&format!("{}.0", unix_seconds())) => STALE;
    "a timestamp has no exponent", |w| w.order().timestamp("1e9") => STALE;
    "a timestamp has no blanks inside", |w| w.order().timestamp(&format!("1 {}", unix_seconds())) => STALE;
    "a timestamp is no word", |w| w.order().timestamp("now") => STALE;
    "a timestamp is no date", |w| w.order().timestamp("2026-01-01T00:00:00Z") => STALE;
    "a timestamp beyond 64 bits", |w| w.order().timestamp("99999999999999999999999999") => STALE;
    "a timestamp that isn't ASCII is present but wrong", |w| w.order().header(TIMESTAMP, b"\xd9\xa1\xff") => STALE;
    // The access key.
    "an unknown access key", |w| w.order().access_key("nobody") => UNKNOWN;
    "an access key with something behind it",
        |w| w.order().access_key(&format!("{}x", w.partner.access_key)) => UNKNOWN;
    "an access key with SQL in it", |w| w.order().access_key("' OR '1'='1") => UNKNOWN;
    "an access key that isn't ASCII is present but wrong", |w| w.order().header(ACCESS_KEY, b"\xff\xfe") => UNKNOWN;
    "a disabled partner", |w| w.ordered_by(&w.disabled) => UNKNOWN;
    // The secret key.
    "a partner without a secret key", |w| w.ordered_by(&w.without_secret) => NO_SECRET;
    "a secret key that can't be decrypted", |w| w.ordered_by(&w.undecryptable) => INTERNAL;
    // The signature.
    "the signature of another secret",
        |w| w.order().secret(SecretKey::from_bytes(b"somebody else's".to_vec()).expect("a key")) => WRONG;
    "the secret is decoded from Base64 before use", |w| {
        w.order().secret(SecretKey::from_bytes(w.partner.secret_key.clone().into_bytes()).expect("a key"))
    } => WRONG;
    "the signature is lowercase", |w| w.resigned(str::to_uppercase) => WRONG;
    "the signature is whole", |w| w.resigned(|signature| signature[..63].to_owned()) => WRONG;
    "the signature has nothing behind it", |w| w.resigned(|signature| format!("{signature}0")) => WRONG;
    "the signature is no word", |w| w.order().header(SIGNATURE, "please") => WRONG;
    "a signature that isn't ASCII is present but wrong", |w| w.order().header(SIGNATURE, b"\xe9\xff") => WRONG;
    "the method is signed",
        |w| w.signed_over(|path, timestamp, key| ["GET", path, timestamp, key].map(String::from)) => WRONG;
    "neither domain nor protocol is signed", |w| {
        w.signed_over(|path, timestamp, key| {
            ["POST", &format!("http://127.0.0.1{path}"), timestamp, key].map(String::from)
        })
    } => WRONG;
    "the timestamp sent is the one signed", |w| {
        w.signed_over(|path, timestamp, key| ["POST", path, &format!("{timestamp}0"), key].map(String::from))
    } => WRONG;
    "the access key is signed",
        |w| w.signed_over(|path, timestamp, _| ["POST", path, timestamp, "somebody"].map(String::from)) => WRONG;
    // The sequence: the first failing check decides the answer.
    "sequence: headers before timestamp and key",
        |w| w.order().timestamp("0").access_key("nobody").header(SIGNATURE, "") => MISSING;
    "sequence: timestamp before access key", |w| w.order().timestamp("0").access_key("nobody") => STALE;
    "sequence: timestamp before signature", |w| w.order().timestamp("0").header(SIGNATURE, "no") => STALE;
    "sequence: access key before signature", |w| w.order().access_key("nobody").header(SIGNATURE, "no") => UNKNOWN;
    "sequence: disabled before signature", |w| w.ordered_by(&w.disabled).header(SIGNATURE, "no") => UNKNOWN;
    "sequence: secret before signature", |w| w.ordered_by(&w.without_secret).header(SIGNATURE, "no") => NO_SECRET;
    "sequence: signature before the body", |w| w.post("{").header(SIGNATURE, "no") => WRONG;
    "sequence: headers before the body", |w| w.post("").without(SIGNATURE) => MISSING;
};

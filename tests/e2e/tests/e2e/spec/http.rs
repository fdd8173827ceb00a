//! Paths, methods, sizes and headers that the specification doesn't name.

use super::Expected::{Bare, Denied, Error, Unprocessable};
use super::{Expected, NOT_ALLOWED, NOT_FOUND, ONE, Row};
use anyhow::Result;
use testkit::client::{ACCESS_KEY, ORDERS_SHORT, SIGNATURE, TIMESTAMP};
use testkit::{raw, rows};

const TOO_LARGE: Expected = Error(413, "Request body is larger than 65536 bytes");
const ENCODED: Expected = Error(415, "The body must be sent without Content-Encoding");
const ONE_HOST: Expected = Error(400, "Exactly one Host header is required");
/// The largest body by default.
const MOST: usize = 64 * 1024;

pub const ROWS: &[Row] = &rows! {
    "Content-Type is not enforced: another one", |w| w.order().header("content-type", "text/plain") => ONE;
    "Content-Type is not enforced: none", |w| w.order().without("content-type") => ONE;
    "Content-Type is not enforced: nonsense", |w| w.order().header("content-type", b"\xff") => ONE;
    "header names are case-insensitive", |w| {
        let request = w.order();
        let signature = request.signature();
        request.without(SIGNATURE).header("X-SERVICE-SIGNATURE", signature)
    } => ONE;
    "404: another path", |w| w.order().path("/api/v1/api_partner/order") => NOT_FOUND;
    "404: the root", |w| w.order().path("/") => NOT_FOUND;
    "404: a trailing slash", |w| w.order().path("/api/v1/api_partner/orders/") => NOT_FOUND;
    "404: another version", |w| w.order().path("/api/v2/api_partner/orders") => NOT_FOUND;
    "404: another case", |w| w.order().path("/API/v1/api_partner/orders") => NOT_FOUND;
    "404: an encoded slash", |w| w.order().path("/api/v1/api_partner%2Forders") => NOT_FOUND;
    "404: an order", |w| w.order().method("GET").path("/api/v1/api_partner/orders/1") => NOT_FOUND;
    "404: a picture of something else", |w| w.client.get("/qr/https%3A%2F%2Fexample.com/300") => NOT_FOUND;
    "404: a picture of bytes that aren't UTF-8", |w| w.client.get("/qr/%FF/300") => NOT_FOUND;
    "405: PUT on the short path", |w| w.order().method("PUT").path(ORDERS_SHORT) => NOT_ALLOWED;
    "405: PUT", |w| w.order().method("PUT") => NOT_ALLOWED;
    "405: PATCH", |w| w.order().method("PATCH") => NOT_ALLOWED;
    "405: DELETE", |w| w.order().method("DELETE") => NOT_ALLOWED;
    "405: OPTIONS", |w| w.post("").method("OPTIONS") => NOT_ALLOWED;
    "HEAD lists orders without a body", |w| w.post("").method("HEAD") => Bare(200);
    "405: POST for a picture", |w| w.order().path("/qr/LPA%3A1%24smdp.example%24A/300") => NOT_ALLOWED;
    "64 KiB is not too large",
        |w| { let body = w.body().to_string(); w.post(format!("{body}{}", " ".repeat(MOST - body.len()))) } => ONE;
    "64 KiB and 1 byte is too large, whatever it is", |w| w.post(" ".repeat(MOST + 1)) => TOO_LARGE;
    "415: a compressed body", |w| w.order().header("content-encoding", "gzip") => ENCODED;
    "415: a body that was encoded twice", |w| w.order().header("content-encoding", "identity, BR") => ENCODED;
    "415: a compressed body of self-service", |w| {
        w.post("{}").method("PUT").path("/api/v1/api_partner/webhook").header("content-encoding", "gzip")
    } => ENCODED;
    "identity is no encoding", |w| w.order().header("content-encoding", "identity") => ONE;
    "without a body nothing is encoded",
        |w| w.post("").method("HEAD").header("content-encoding", "gzip") => Bare(200);
    "authentication comes before the size",
        |w| w.post(" ".repeat(MOST + 1)).header(SIGNATURE, "no") => Denied("Invalid signature.");
};

/// Requests that only bytes on a socket can make.
pub const RAW: &[Row<Result<Vec<u8>>>] = &rows! {
    "413 comes before the body is sent",
        |w| raw::head(&w.partner, &format!("Content-Length: {}", MOST + 1)) => TOO_LARGE;
    "413: a length that no machine has", |w| raw::head(&w.partner, "Content-Length: 9223372036854775807")
        => TOO_LARGE;
    "413: chunks without a length", |w| {
        let mut request = raw::head(&w.partner, "Transfer-Encoding: chunked")?;
        request.extend(raw::chunked(&vec![b' '; MOST + 1]));
        Ok(request)
    } => TOO_LARGE;
    "chunks without a length, but small enough", |w| {
        let mut request = raw::head(&w.partner, "Transfer-Encoding: chunked")?;
        request.extend(raw::chunked(w.body().to_string().as_bytes()));
        Ok(request)
    } => ONE;
    "neither body nor length", |w| raw::head(&w.partner, "Connection: keep-alive")
        => Error(400, "Invalid JSON format");
    "401 comes before the body is sent", |w| {
        let mut stranger = w.partner.clone();
        stranger.secret_key = "c29tZWJvZHkgZWxzZQ==".into();
        raw::head(&stranger, "Content-Length: 100")
    } => Denied("Invalid signature.");
    "413: the client is not asked for a body that is too large", |w| {
        raw::head(&w.partner, &format!("Expect: 100-continue\r\nContent-Length: {}", MOST + 1))
    } => TOO_LARGE;
    "400: no Host", |w| raw::head_to(&w.partner, "X: y", "Content-Length: 0") => ONE_HOST;
    "400: two access keys", |w| raw::head(&w.partner, &format!("{ACCESS_KEY}: {}", w.partner.access_key))
        => Error(400, "Header x-service-access-key is repeated");
    "400: two signatures", |w| raw::head(&w.partner, &format!("{SIGNATURE}: 00"))
        => Error(400, "Header x-service-signature is repeated");
    "400: two timestamps",
        |w| raw::head(&w.partner, &format!("{TIMESTAMP}:")) => Error(400, "Header x-service-timestamp is repeated");
    "a whole request as bytes", |w| raw::create_order(&w.partner, b"{}")
        => Unprocessable(&["External order id can't be blank", "Products can't be blank"]);
};

/// What ingress answers to heads that a proxy in front answers in its own words, or mends.
pub const DIRECT: &[Row<Result<Vec<u8>>>] = &rows! {
    "400: two Hosts", |w| raw::head_to(&w.partner, "Host: a\r\nHost: a", "Content-Length: 0") => ONE_HOST;
};

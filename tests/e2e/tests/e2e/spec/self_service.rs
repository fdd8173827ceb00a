//! Signed requests other than create-order: authentication, methods, parameters.

use super::Expected::{Bare, Denied, Error, Unprocessable};
use super::{NOT_ALLOWED, NOT_FOUND, Row};
use testkit::client::{Request, SIGNATURE};

use super::world::World;
use testkit::rows;

const REDELIVERY: &str = "/webhook/events/evt_019a0000000070008000000000000001/redeliver";

const UNKNOWN_TOPUP: &str = "/topups/20200101000000000000000000";

const UNKNOWN_ENDPOINT: &str = "/endpoints/0199aabb-ccdd-7eee-8fff-001122334455";

fn get(w: &World, path: &str) -> Request {
    ask(w, "GET", path)
}

fn ask(w: &World, method: &str, path: &str) -> Request {
    let path = format!("/api/v1/api_partner{path}");
    w.post("").method(method).path(&path)
}

pub const ROWS: &[Row] = &rows! {
    "401 on a look-up: a wrong signature",
        |w| get(w, "/account").header(SIGNATURE, "no") => Denied("Invalid signature.");
    "401 on a look-up: no signature",
        |w| get(w, "/orders").without(SIGNATURE) => Denied("Missing required authentication headers.");
    "401 on a look-up: signed for another path",
        |w| get(w, "/account").header(SIGNATURE, get(w, "/orders").signature())
        => Denied("Invalid signature.");
    "401 comes before an unknown id", |w| get(w, "/topups/1").header(SIGNATURE, "no")
        => Denied("Invalid signature.");
    "404: an order with a NUL", |w| get(w, "/orders/%00") => NOT_FOUND;
    "404: an order that isn't UTF-8", |w| get(w, "/orders/%FF") => NOT_FOUND;
    "404: an order's part", |w| get(w, "/orders/1/2") => NOT_FOUND;
    "404: no topup id", |w| get(w, "/topups/1") => NOT_FOUND;
    "404: an unknown topup", |w| get(w, "/topups/20200101000000000000000000") => NOT_FOUND;
    "422: all parameters of the walk of topups at fault are named",
        |w| get(w, "/topups").query("updated_since=now&updated_until=x&cursor=abc&limit=0")
        => Unprocessable(&["Limit must be an integer from 1 to 100",
            "Updated since must be a time such as 2026-11-22T00:00:00Z",
            "Updated until must be a time such as 2026-11-22T00:00:00Z",
            "Cursor is invalid; send next_cursor unchanged or leave it out"]);
    "422: an ICCID and a walk", |w| get(w, "/topups").query("updated_since=2026-11-22T00:00:00Z&iccid=898100")
        => Unprocessable(&["Parameter iccid is unknown; this request does not have it"]);
    "422: a time without a walk", |w| get(w, "/topups").query("updated_until=2026-11-22T00:00:00Z&iccid=898100")
        => Unprocessable(&["Parameter updated_until is unknown; this request does not have it"]);
    "422: a cursor of another list", |w| get(w, "/topups").query("cursor=AZoAAAAAcACAAAAAAAAAAQ")
        => Unprocessable(&["Cursor is invalid; send next_cursor unchanged or leave it out"]);
    "404: nothing of the API", |w| get(w, "/nothing") => NOT_FOUND;
    "405: PUT on an order", |w| ask(w, "PUT", "/orders/1") => NOT_ALLOWED;
    "405: GET on a redelivery", |w| get(w, "/topups/20200101000000000000000000/redeliver") => NOT_ALLOWED;
    "404: no event id", |w| ask(w, "POST", "/webhook/events/evt_1/redeliver") => NOT_FOUND;
    "404: redelivery of an unknown event", |w| ask(w, "POST", REDELIVERY) => NOT_FOUND;
    "405: GET on a redelivery of an event", |w| get(w, REDELIVERY) => NOT_ALLOWED;
    "422: a cursor of events that is none", |w| get(w, "/webhook/events").query("cursor=AZoAAAAAcACAAAAAAAAAAQ")
        => Unprocessable(&["Cursor is invalid; send next_cursor unchanged or leave it out"]);
    "405: DELETE on the list of webhooks", |w| ask(w, "DELETE", "/webhooks") => NOT_ALLOWED;
    "405: PUT on redeliveries", |w| ask(w, "PUT", "/webhooks/redeliver") => NOT_ALLOWED;
    "405: POST on a redelivery",
        |w| ask(w, "POST", "/webhooks/redeliver/01980000-0000-7000-8000-000000007530") => NOT_ALLOWED;
    "404: an unknown redelivery", |w| get(w, "/webhooks/redeliver/01980000-0000-7000-8000-000000007530") => NOT_FOUND;
    "404: no redelivery id", |w| get(w, "/webhooks/redeliver/1") => NOT_FOUND;
    "422: all parameters of the list of webhooks at fault are named",
        |w| get(w, "/webhooks").query("limit=0&cursor=abc&state=ready&since=now&until=1")
        => Unprocessable(&["Limit must be an integer from 1 to 100",
            "Cursor is invalid; send next_cursor unchanged or leave it out",
            "State must be pending, exhausted, no_endpoint or delivered",
            "Since must be a time such as 2026-11-22T00:00:00Z", "Until must be a time such as 2026-11-22T00:00:00Z"]);
    "401: a redelivery whose signature does not cover its body",
        |w| ask(w, "POST", "/webhooks/redeliver")
        => Denied("Missing X-Service-Content-SHA256 header: this request needs a signature that covers its body.");
    "400: a redelivery without a body", |w| ask(w, "POST", "/webhooks/redeliver").whole()
        => Error(400, "Invalid JSON format");
    "422: all faults of a redelivery are named", |w| {
        let body = r#"{"until": "x", "state": "no_endpoint"}"#;
        w.post(body).path("/v1/api_partner/webhooks/redeliver").whole()
    } => Unprocessable(&["Since must be a time such as 2026-11-22T00:00:00Z",
        "Until must be a time such as 2026-11-22T00:00:00Z", "State must be exhausted, pending or delivered"]);
    "409: a redelivery of a partner without a URL", |w| {
        w.post(r#"{"since": "2026-01-01T00:00:00Z"}"#).path("/api/v1/api_partner/webhooks/redeliver").whole()
    } => Error(409, "The account has no webhook URL; set one first");
    "404: no endpoint id", |w| get(w, "/endpoints/1") => NOT_FOUND;
    "404: an unknown endpoint", |w| get(w, UNKNOWN_ENDPOINT) => NOT_FOUND;
    "404: a test of an unknown endpoint", |w| ask(w, "POST", &format!("{UNKNOWN_ENDPOINT}/test")) => NOT_FOUND;
    "404: an unknown endpoint is deleted", |w| ask(w, "DELETE", UNKNOWN_ENDPOINT) => NOT_FOUND;
    "405: DELETE on the endpoints", |w| ask(w, "DELETE", "/endpoints") => NOT_ALLOWED;
    "405: GET on a pause", |w| get(w, &format!("{UNKNOWN_ENDPOINT}/pause")) => NOT_ALLOWED;
    "401 comes before an unknown endpoint", |w| get(w, UNKNOWN_ENDPOINT).header(SIGNATURE, "no")
        => Denied("Invalid signature.");
    "400: a new endpoint that isn't JSON", |w| {
        w.post("url").path("/api/v1/api_partner/endpoints")
    } => Error(400, "Invalid JSON format");
    "422: a new endpoint without a URL", |w| w.post("{}").path("/v1/api_partner/endpoints")
        => Unprocessable(&["Url is missing; send a string to set it, or null to remove your webhook URL"]);
    "422: headers that frame the request",
        |w| w.post(r#"{"url": "https://partner.example/", "headers": {"Content-Length": "1"}}"#)
            .path("/api/v1/api_partner/endpoints")
        => Unprocessable(&["Headers are invalid: content-length is set by us or by the connection and cannot be chosen"]);
    "422: an endpoint id of a redelivery that is none",
        |w| ask(w, "POST", "/topups/20200101000000000000000000/redeliver").query("endpoint_id=first")
        => Unprocessable(&["Endpoint id must be a UUID"]);
    // Data use and giving back.
    "401 on the data use: a wrong signature", |w| get(w, &format!("{UNKNOWN_TOPUP}/usage")).header(SIGNATURE, "no")
        => Denied("Invalid signature.");
    "401 on a give-back: no signature", |w| ask(w, "POST", &format!("{UNKNOWN_TOPUP}/give-back")).without(SIGNATURE)
        => Denied("Missing required authentication headers.");
    "404: the data use of no topup", |w| get(w, "/topups/1/usage") => NOT_FOUND;
    "404: the data use of an unknown topup", |w| get(w, &format!("{UNKNOWN_TOPUP}/usage")) => NOT_FOUND;
    "404: an unknown topup is given back", |w| ask(w, "POST", &format!("{UNKNOWN_TOPUP}/give-back")) => NOT_FOUND;
    "404: the give-back of an unknown topup", |w| get(w, &format!("{UNKNOWN_TOPUP}/give-back")) => NOT_FOUND;
    "404: an unknown topup is suspended", |w| ask(w, "POST", &format!("{UNKNOWN_TOPUP}/suspend")) => NOT_FOUND;
    "404: the suspension of an unknown topup", |w| get(w, &format!("{UNKNOWN_TOPUP}/suspension")) => NOT_FOUND;
    "404: the page of an unknown topup", |w| ask(w, "POST", &format!("{UNKNOWN_TOPUP}/install-page")) => NOT_FOUND;
    "404: the page of an unknown topup is ended", |w| ask(w, "DELETE", &format!("{UNKNOWN_TOPUP}/install-page")) => NOT_FOUND;
    "405: GET on a page", |w| get(w, &format!("{UNKNOWN_TOPUP}/install-page")) => NOT_ALLOWED;
    "401 on the look of pages", |w| get(w, "/account/install-pages").header(SIGNATURE, "no")
        => Denied("Invalid signature.");
    "405: POST on a suspension", |w| ask(w, "POST", &format!("{UNKNOWN_TOPUP}/suspension")) => NOT_ALLOWED;
    "405: POST on the data use", |w| ask(w, "POST", &format!("{UNKNOWN_TOPUP}/usage")) => NOT_ALLOWED;
    "405: DELETE on a give-back", |w| ask(w, "DELETE", &format!("{UNKNOWN_TOPUP}/give-back")) => NOT_ALLOWED;
    "422: a parameter of the data use", |w| get(w, &format!("{UNKNOWN_TOPUP}/usage")).query("fresh=1")
        => Unprocessable(&["Parameter fresh is unknown; this request does not have it"]);
    "422: a parameter of a give-back", |w| ask(w, "POST", &format!("{UNKNOWN_TOPUP}/give-back")).query("force=1")
        => Unprocessable(&["Parameter force is unknown; this request does not have it"]);
    "422: a cause of a give-back that is none, and another field", |w| {
        w.post(r#"{"cause": "boredom", "force": true}"#).path("/api/v1/api_partner/topups/20200101000000000000000000/give-back")
    } => Unprocessable(&["Cause is not one of those in the reference", "Parameter force is unknown; this request does not have it"]);
    "400: a give-back whose body isn't JSON", |w| {
        w.post("cause").path("/api/v1/api_partner/topups/20200101000000000000000000/give-back")
    } => Error(400, "Invalid JSON format");
    "HEAD on the data use of an unknown topup has no body",
        |w| ask(w, "HEAD", &format!("{UNKNOWN_TOPUP}/usage")) => Bare(404);
    "422: a look-up by a blank id", |w| get(w, "/orders").query("external_order_id=%20")
        => Unprocessable(&["External order id can't be blank"]);
    "422: a look-up by an id that no order can have", |w| get(w, "/orders").query("external_order_id=%00&limit=0")
        => Unprocessable(&["Limit must be an integer from 1 to 100", "External order id can't contain a NUL character"]);
    // What could not be printed.
    "422: a redelivery since the year 0", |w| {
        w.post(r#"{"since": "0000-01-01T00:00:00Z"}"#).path("/api/v1/api_partner/webhooks/redeliver").whole()
    } => Unprocessable(&["Since must be a time such as 2026-11-22T00:00:00Z"]);
    "422: a redelivery since a time that is before the year 1 in UTC", |w| {
        w.post(r#"{"since": "0001-01-01T00:00:00+01:00"}"#).path("/api/v1/api_partner/webhooks/redeliver").whole()
    } => Unprocessable(&["Since must be a time such as 2026-11-22T00:00:00Z"]);
    "422: orders after a time in the year 0", |w| get(w, "/orders").query("created_after=0000-06-01T00:00:00Z")
        => Unprocessable(&["Created after must be a time such as 2026-11-22T00:00:00Z"]);
    "422: webhooks of the year 0", |w| get(w, "/webhooks").query("since=0000-06-01T00:00:00Z&until=0000-07-01T00:00:00Z")
        => Unprocessable(&["Since must be a time such as 2026-11-22T00:00:00Z",
            "Until must be a time such as 2026-11-22T00:00:00Z"]);
    "422: a number with a sign", |w| get(w, "/orders").query("limit=%2B5")
        => Unprocessable(&["Limit must be an integer from 1 to 100"]);
    "422: a body of self-service that is no object",
        |w| w.post("[]").method("PUT").path("/api/v1/api_partner/webhook")
        => Unprocessable(&["Body must be a JSON object"]);
    // What is given twice.
    "422: a parameter that is given twice", |w| get(w, "/orders").query("limit=5&limit=6")
        => Unprocessable(&["Parameter limit is given more than once; send it once"]);
    "422: a parameter that is given twice, although both are the same", |w| get(w, "/options").query("country=JP&country=JP")
        => Unprocessable(&["Parameter country is given more than once; send it once"]);
    "422: a key that a body has twice", |w| {
        let body = r#"{"url": "https://one.example/", "url": "https://two.example/"}"#;
        w.post(body).method("PUT").path("/api/v1/api_partner/webhook")
    } => Unprocessable(&["Parameter url is given more than once; send it once"]);
    "422: a header that an endpoint has twice", |w| {
        let body = r#"{"url": "https://one.example/", "headers": {"X-A": "1", "X-A": "2"}}"#;
        w.post(body).path("/api/v1/api_partner/endpoints")
    } => Unprocessable(&["Parameter X-A is given more than once; send it once"]);
    "405: POST on options", |w| ask(w, "POST", "/options") => NOT_ALLOWED;
    "405: GET on keys", |w| get(w, "/keys") => NOT_ALLOWED;
    "405: DELETE on the webhook", |w| ask(w, "DELETE", "/webhook") => NOT_ALLOWED;
    "405: DELETE on the account", |w| ask(w, "DELETE", "/account") => NOT_ALLOWED;
    "HEAD on an unknown order has no body", |w| ask(w, "HEAD", "/orders/none") => Bare(404);
    "422: a cursor that is none", |w| get(w, "/orders").query("cursor=abc")
        => Unprocessable(&["Cursor is invalid; send next_cursor unchanged or leave it out"]);
    "422: a cursor of options that is none",
        |w| get(w, "/options").query("cursor=%00")
        => Unprocessable(&["Cursor is invalid; send next_cursor unchanged or leave it out"]);
    "422: all filters of options at fault are named",
        |w| get(w, "/options").query("country=jp&min_data_mb=0&max_data_mb=x&unlimited=yes&min_days=-1&max_days=%2B7&network=%20&kind=voice&updated_since=x")
        => Unprocessable(&["Network must be a name of 1 to 500 characters",
            "Parameter min_data_mb must be a whole number from 1 on",
            "Parameter max_data_mb must be a whole number from 1 on",
            "Parameter min_days must be a whole number from 1 on",
            "Parameter max_days must be a whole number from 1 on",
            "Kind must be data or data_voice_text",
            "Updated since must be a time such as 2026-11-22T00:00:00Z",
            "Country must be a code of ISO 3166-1 alpha-2 such as JP",
            "Unlimited must be true or false"]);
    "422: a region is no country", |w| get(w, "/options").query("country=EU")
        => Unprocessable(&["Country must be a code of ISO 3166-1 alpha-2 such as JP"]);
    "422: options are not filtered by what they cost us", |w| get(w, "/options").query("max_cost=1")
        => Unprocessable(&["Parameter max_cost is unknown; this request does not have it"]);
    "422: all parameters at fault are named",
        |w| get(w, "/orders").query("limit=101&created_after=today&state=lost")
        => Unprocessable(&["Limit must be an integer from 1 to 100",
            "Created after must be a time such as 2026-11-22T00:00:00Z",
            "State must be processing, ready, partly_failed, failed, refused or cancelled"]);
    "422: a parameter that orders do not have",
        |w| get(w, "/orders").query("created_before=2026-11-22T00%3A00%3A00Z&limit=x")
        => Unprocessable(&["Limit must be an integer from 1 to 100",
            "Parameter created_before is unknown; this request does not have it"]);
    "422: a parameter of a request that has none", |w| get(w, "/account").query("verbose=1")
        => Unprocessable(&["Parameter verbose is unknown; this request does not have it"]);
    "422: a parameter of an order", |w| get(w, "/orders/none").query("expand=topups")
        => Unprocessable(&["Parameter expand is unknown; this request does not have it"]);
    "422: a parameter of a change", |w| ask(w, "POST", "/webhook/test").query("url=x")
        => Unprocessable(&["Parameter url is unknown; this request does not have it"]);
    "403: a live account listens", |w| {
        w.stack.client(&w.live).expect("a client").get("/v1/api_partner/webhook/listen")
    } => Error(403, "Only sandbox accounts can do this");
    "422: all parameters of listening at fault are named",
        |w| get(w, "/webhook/listen").query("limit=0&cursor=MQ&created_after=x&wait=-1")
        => Unprocessable(&["Limit must be an integer from 1 to 100",
            "Cursor is invalid; send next_cursor unchanged or leave it out",
            "Created after must be a time such as 2026-11-22T00:00:00Z", "Wait must be a whole number of seconds"]);
    "403: a live account makes an event", |w| {
        let client = w.stack.client(&w.live).expect("a client");
        client.post(r#"{"type": "key.expiring"}"#).path("/v1/api_partner/sandbox/events")
    } => Error(403, "Only sandbox accounts can do this");
    "422: an event that cannot be made", |w| w.post("{}").path("/api/v1/api_partner/sandbox/events")
        => Unprocessable(&["Type must be key.expiring"]);
    "400: an event that isn't JSON", |w| w.post("key.expiring").path("/v1/api_partner/sandbox/events")
        => Error(400, "Invalid JSON format");
    "405: GET on making an event", |w| get(w, "/sandbox/events") => NOT_ALLOWED;
    "405: POST on listening", |w| ask(w, "POST", "/webhook/listen") => NOT_ALLOWED;
    "400: a webhook URL that isn't JSON",
        |w| w.post("url").method("PUT").path("/api/v1/api_partner/webhook") => Error(400, "Invalid JSON format");
    "422: no webhook URL", |w| w.post("{}").method("PUT").path("/api/v1/api_partner/webhook")
        => Unprocessable(&["Url is missing; send a string to set it, or null to remove your webhook URL"]);
    "400: a channel for notices that isn't JSON",
        |w| w.post("url").method("PUT").path("/api/v1/api_partner/notices") => Error(400, "Invalid JSON format");
    "422: no channel for notices", |w| w.post("{}").method("PUT").path("/api/v1/api_partner/notices")
        => Unprocessable(&["Send either url or email, and only one of them"]);
    "422: two channels for notices",
        |w| w.post(r#"{"url": "https://a.example", "email": "a@b.example"}"#).method("PUT")
            .path("/v1/api_partner/notices")
        => Unprocessable(&["Send either url or email, and only one of them",
            "Notices are not sent by e-mail here; send a url"]);
    "422: an e-mail address that is none",
        |w| w.post(r#"{"email": "Ops <ops@b.example>"}"#).method("PUT").path("/api/v1/api_partner/notices")
        => Unprocessable(&["Email is invalid: the part before the @ may have up to 64 letters, digits and the characters !#$%&'*+-/=?^_`{|}~, and single dots between them"]);
    "422: a URL for notices in our own network",
        |w| w.post(r#"{"url": "http://169.254.1.2/"}"#).method("PUT").path("/api/v1/api_partner/notices")
        => Unprocessable(&["Url has an address that webhooks are not sent to"]);
    "409: a code without a channel for notices",
        |w| w.post(r#"{"code": "7KQM-2XWB-9TRA"}"#).path("/api/v1/api_partner/notices/verify")
        => Error(409, "No channel for notices is set; set one first");
    "422: a code that isn't a string", |w| w.post(r#"{"code": 7}"#).path("/api/v1/api_partner/notices/verify")
        => Unprocessable(&["Code is invalid: it must be a string"]);
    "405: POST on notices", |w| ask(w, "POST", "/notices") => NOT_ALLOWED;
    "405: GET on the verification of notices", |w| get(w, "/notices/verify") => NOT_ALLOWED;
    "413: a webhook URL in a body that is too large", |w| {
        w.post(" ".repeat(64 * 1024 + 1)).method("PUT").path("/v1/api_partner/webhook")
    } => Error(413, "Request body is larger than 65536 bytes");
};

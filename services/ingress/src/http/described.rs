//! Types that only the `OpenAPI` document needs: the body of an order, error responses, and the
//! bodies of webhooks.
//!
//! The compiler does not compare these types with the code, so a change of a body or an error has
//! to be repeated here. The other bodies of requests have types beside their handlers.

#![expect(dead_code, reason = "only the document reads these types")]

use utoipa::{ToResponse, ToSchema};
use uuid::Uuid;

/// The body of create-order.
#[derive(ToSchema)]
pub(crate) struct OrderRequest {
    /// Your own id of the order, with at most 255 characters, which are compared exactly. It must be
    /// unique among your orders. If you repeat a request, send the same id, so that the order is
    /// stored only once. Do not use `.` or `..`, which many clients and proxies remove from a path.
    #[schema(example = "A-1042", min_length = 1, max_length = 255)]
    external_order_id: String,
    #[schema(min_items = 1)]
    products: Vec<OrderItem>,
}

/// An item of an order: an option and how many units of it are ordered.
#[derive(ToSchema)]
#[schema(as = Item)]
struct OrderItem {
    #[schema(example = "424b7b26-96e7-5c95-8df9-6654a3998070")]
    option_id: Uuid,
    #[schema(minimum = 1, example = 2)]
    qty: u32,
}

/// An error. Decide by the code in `X-Service-Error`, because texts may change.
#[derive(ToSchema)]
pub(crate) struct Message {
    error: String,
}

/// All errors of a request, so that you can correct them at once.
#[derive(ToSchema)]
pub(crate) struct Messages {
    errors: Vec<String>,
}

/// A failed authentication.
#[derive(ToSchema)]
#[schema(as = Denied)]
pub(crate) struct DeniedResponse {
    error: DeniedError,
}

/// The check that failed, as text. `X-Service-Error` has its code.
#[derive(ToSchema)]
struct DeniedError {
    #[schema(example = "unauthorized")]
    code: String,
    #[schema(example = "Invalid signature.")]
    message: String,
}

/// The body is missing or is not JSON
#[derive(ToResponse)]
#[response(headers(("X-Service-Error" = String, description = "`invalid_json`")))]
pub(crate) struct InvalidJson(#[to_schema] Message);

/// The head of the request is wrong: it has not exactly one `Host`, or it repeats an authentication
/// header
#[derive(ToResponse)]
pub(crate) struct BadRequest(#[to_schema] Message);

/// Nothing of this account has this id. An id of another partner gets the same answer
#[derive(ToResponse)]
#[response(headers(("X-Service-Error" = String, description = "`not_found`")))]
pub(crate) struct NotFound(#[to_schema] Message);

/// The order is finished and was moved into an archive, so it can be neither shown nor changed here
#[derive(ToResponse)]
#[response(headers(("X-Service-Error" = String, description = "`order_archived`")))]
pub(crate) struct Archived(#[to_schema] Message);

/// The path does not accept this method; `Allow` names those that it accepts
#[derive(ToResponse)]
#[response(headers(
    ("X-Service-Error" = String, description = "`method_not_allowed`"),
    ("Allow" = String, description = "The methods of the path")))]
pub(crate) struct MethodNotAllowed(#[to_schema] Message);

/// The body did not arrive in time
#[derive(ToResponse)]
#[response(headers(("X-Service-Error" = String, description = "`body_timeout`")))]
pub(crate) struct BodyTimeout(#[to_schema] Message);

/// The body is larger than `body_bytes` of the account
#[derive(ToResponse)]
#[response(headers(("X-Service-Error" = String, description = "`body_too_large`")))]
pub(crate) struct BodyTooLarge(#[to_schema] Message);

/// The body has a `Content-Encoding`, which is not supported
#[derive(ToResponse)]
#[response(headers(
    ("X-Service-Error" = String, description = "`content_encoding_unsupported`"),
    ("Accept-Encoding" = String, description = "`identity`")))]
pub(crate) struct ContentEncodingUnsupported(#[to_schema] Message);

/// The request is refused, and all its errors are named. This request bought nothing and never will
#[derive(ToResponse)]
#[response(headers(
    ("X-Service-Error" = String, description = "The codes of the errors. Codes of items have the index of the item, from 0: `option_not_found; item=1, qty_invalid; item=2`. If `external_order_id_taken` is one of several, an earlier order with this id is stored, whatever else is wrong"),
    ("Location" = String, description = "Only with `external_order_id_taken`: the path of the order that an earlier request stored")))]
pub(crate) struct Unprocessable(#[to_schema] Messages);

/// Something failed on our side. An order may be stored: repeat the request with the same
/// `external_order_id`, or look the order up
#[derive(ToResponse)]
pub(crate) struct Internal(#[to_schema] Message);

/// The authentication failed. Sign each request anew
#[derive(ToResponse)]
#[response(headers(("X-Service-Error" = String, description = "The check that failed, such as `signature_invalid`")))]
pub(crate) struct Unauthorized(#[to_schema] DeniedResponse);

/// The account has reached one of its limits, or uses its share of a limit of all accounts. Send the request again after `Retry-After` seconds
#[derive(ToResponse)]
#[response(headers(
    ("Retry-After" = u32, description = "The number of seconds after which to send the request again"),
    ("RateLimit-Limit" = u32, description = "The limit that is reached"),
    ("RateLimit-Remaining" = u32, description = "Always 0"),
    ("RateLimit-Reset" = u32, description = "The same number of seconds as `Retry-After`")))]
pub(crate) struct TooManyRequests(#[to_schema] Message);

/// The service is overloaded, or an earlier request with the same `external_order_id` has no answer
/// yet. This request stored nothing. Send it again after `Retry-After` seconds
#[derive(ToResponse)]
#[response(headers(("Retry-After" = u32, description = "The number of seconds after which to send the request again")))]
pub(crate) struct Overloaded(#[to_schema] Message);

/// A notice. Its type says what has happened, and its data has the fields that this type needs.
#[derive(ToSchema)]
pub(crate) struct NoticeEvent {
    /// `notice.verify`, `notice.endpoint_failing`, `notice.endpoint_blocked`,
    /// `notice.endpoint_recovered`, `notice.webhook_exhausted`, `notice.keys_expire` or
    /// `notice.source_addresses`.
    #[schema(example = "notice.endpoint_blocked")]
    r#type: String,
    #[schema(format = DateTime)]
    timestamp: String,
    data: NoticeData,
}

/// What has happened. Fields that do not apply to the type are missing.
#[derive(ToSchema)]
struct NoticeData {
    /// What to do, as a sentence for people.
    advice: String,
    /// The endpoint that it is about.
    endpoint_id: Option<Uuid>,
    /// The host of the endpoint's URL.
    #[schema(example = "shop.example.com")]
    host: Option<String>,
    /// Since when the endpoint fails, or failed until it recovered.
    #[schema(format = DateTime)]
    since: Option<String>,
    /// The number of attempts that failed in a row.
    failures: Option<i32>,
    /// The outcome of the last failed attempt, such as `status_5xx` or `timeout`.
    #[schema(example = "status_5xx")]
    outcome: Option<String>,
    /// Its HTTP status, if there was a response.
    status: Option<i32>,
    /// The `webhook-id` of the webhook whose retries have ended.
    webhook_id: Option<String>,
    /// What ends: `keys` or `webhook_secret`.
    credential: Option<String>,
    #[schema(format = DateTime)]
    ends_at: Option<String>,
    /// The addresses and networks from which webhooks come from now on.
    addresses: Option<Vec<String>>,
    /// The code of `notice.verify`.
    #[schema(example = "7KQM-2XWB-9TRA")]
    code: Option<String>,
}

/// `topup.failed`: a topup will never have an eSIM, although its order was answered with 201.
#[derive(ToSchema)]
pub(crate) struct TopupFailed {
    #[schema(example = "topup.failed")]
    r#type: String,
    #[schema(format = DateTime)]
    timestamp: String,
    data: TopupFailedData,
}

/// The topup that has failed.
#[derive(ToSchema)]
struct TopupFailedData {
    #[schema(example = "20250129123456123456789012")]
    topup_id: String,
    option_id: Uuid,
    #[schema(example = "A-1042")]
    external_order_id: String,
    /// Why it has failed, in the same words as in the look-up of the topup.
    #[schema(example = "The eSIM will not be delivered")]
    error: String,
}

/// `key.expiring`: the old keys or the old webhook secret of a rotation end soon. Replace them in
/// your programs before `ends_at`.
#[derive(ToSchema)]
pub(crate) struct KeyExpiring {
    #[schema(example = "key.expiring")]
    r#type: String,
    #[schema(format = DateTime)]
    timestamp: String,
    data: KeyExpiringData,
}

/// What ends, and when.
#[derive(ToSchema)]
struct KeyExpiringData {
    /// `keys` or `webhook_secret`. It is always the old one that ends.
    #[schema(example = "keys")]
    credential: String,
    #[schema(format = DateTime)]
    ends_at: String,
}

/// `webhook.test`: the answer to your request for a test of the endpoint.
#[derive(ToSchema)]
pub(crate) struct WebhookTest {
    #[schema(example = "webhook.test")]
    r#type: String,
    #[schema(format = DateTime)]
    timestamp: String,
    data: WebhookTestData,
}

#[derive(ToSchema)]
struct WebhookTestData {
    /// Return it in your answer, as `{"challenge": "…"}`, to prove once that your host wants our
    /// webhooks. Only a host that a sandbox account has chosen needs that.
    #[schema(example = "7KQM-2XWB-9TRA")]
    challenge: String,
}

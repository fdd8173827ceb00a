//! Types that only the `OpenAPI` document needs: the body of an order, and error responses.
//!
//! The compiler does not compare these types with the code, so a change of a body or an error has
//! to be repeated here. The other bodies of requests have types beside their handlers, and those of
//! webhooks are in the library `webhooks`.

#![expect(dead_code, reason = "only the document reads these types")]

use std::collections::HashMap;

use utoipa::{ToResponse, ToSchema};
use uuid::Uuid;

use crate::http::codes::ErrorCode;

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
    /// What you want to find again with the order, such as the number of a ticket or of a customer:
    /// at most 10 texts by name, whose names and texts have at most 1,024 bytes of UTF-8 together.
    /// Nobody interprets it. Look-ups, lists and events return it; the webhook `topup.ready` does
    /// not, because its fields are specified. It is erased with the order. An order with other
    /// metadata is another order.
    #[schema(example = json!({"ticket": "T-77"}))]
    metadata: Option<HashMap<String, String>>,
}

/// What a repeat of an order asks for.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Repeat {
    /// The answer of the order that an earlier request stored.
    Answer,
}

/// The order of an earlier request may still be refused.
#[derive(serde::Serialize, ToSchema)]
pub(crate) struct UndecidedOrder {
    message: &'static str,
}

impl UndecidedOrder {
    pub(crate) fn new() -> Self {
        Self {
            message: ErrorCode::OrderUndecided.message(),
        }
    }
}

/// An item of an order: an option and how many units of it are ordered.
#[derive(ToSchema)]
#[schema(as = Item)]
struct OrderItem {
    #[schema(example = "424b7b26-96e7-5c95-8df9-6654a3998070")]
    option_id: Uuid,
    #[schema(minimum = 1, example = 2)]
    qty: u32,
    /// The same for each topup of the item.
    #[schema(example = json!({"traveller": "2"}))]
    metadata: Option<HashMap<String, String>>,
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

/// The key that signed the request lacks a right, or may not be used from this address. The request
/// did nothing
#[derive(ToResponse)]
#[response(headers(("X-Service-Error" = String, description = "`right_missing` or `network_not_allowed`, or another code that says what the key may not do")))]
pub(crate) struct NotAllowed(#[to_schema] Message);

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

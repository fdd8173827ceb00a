//! Types that only the `OpenAPI` document needs: bodies that are read field by field, errors, and the bodies of
//! webhooks.

#![expect(dead_code, reason = "only the document reads these types")]

use utoipa::{ToResponse, ToSchema};
use uuid::Uuid;

/// The body of create-order.
#[derive(ToSchema)]
pub(crate) struct NewOrder {
    /// Your id of the order, at most 255 characters, unique among your orders.
    #[schema(example = "A-1042", min_length = 1, max_length = 255)]
    external_order_id: String,
    #[schema(min_items = 1)]
    products: Vec<Item>,
}

/// An item of an order.
#[derive(ToSchema)]
pub(crate) struct Item {
    #[schema(example = "424b7b26-96e7-5c95-8df9-6654a3998070")]
    option_id: Uuid,
    #[schema(minimum = 1, example = 2)]
    qty: u32,
}

/// An error.
#[derive(ToSchema)]
pub(crate) struct Message {
    error: String,
}

/// All errors of a request.
#[derive(ToSchema)]
pub(crate) struct Messages {
    errors: Vec<String>,
}

/// A failed authentication.
#[derive(ToSchema)]
pub(crate) struct Denied {
    error: DeniedError,
}

/// The check that failed.
#[derive(ToSchema)]
pub(crate) struct DeniedError {
    #[schema(example = "unauthorized")]
    code: String,
    #[schema(example = "Invalid signature.")]
    message: String,
}

/// The body is missing or is not JSON
#[derive(ToResponse)]
#[response(headers(("X-Service-Error" = String, description = "`invalid_json`")))]
pub(crate) struct InvalidJson(#[to_schema] Message);

/// The head of the request is wrong
#[derive(ToResponse)]
pub(crate) struct BadRequest(#[to_schema] Message);

/// Nothing has this id
#[derive(ToResponse)]
#[response(headers(("X-Service-Error" = String, description = "`not_found`")))]
pub(crate) struct NotFound(#[to_schema] Message);

/// Nothing was stored or bought by this request. Every error at once
#[derive(ToResponse)]
#[response(headers(
    ("X-Service-Error" = String, description = "The codes of the errors, of items with the index: `option_not_found; item=1, qty_invalid; item=2`"),
    ("Location" = String, description = "With `external_order_id_taken`: the path of the stored order")))]
pub(crate) struct Unprocessable(#[to_schema] Messages);

/// Our fault. An order may be stored: repeat the request or look the order up
#[derive(ToResponse)]
pub(crate) struct Internal(#[to_schema] Message);

/// Authentication failed
#[derive(ToResponse)]
#[response(headers(("X-Service-Error" = String, description = "The check that failed, such as `signature_invalid`")))]
pub(crate) struct Unauthorized(#[to_schema] Denied);

/// More than the account may send. Send it again after `Retry-After` seconds
#[derive(ToResponse)]
#[response(headers(
    ("Retry-After" = u32, description = "Seconds"),
    ("RateLimit-Limit" = u32, description = "The limit"),
    ("RateLimit-Remaining" = u32, description = "0"),
    ("RateLimit-Reset" = u32, description = "Seconds")))]
pub(crate) struct TooManyRequests(#[to_schema] Message);

/// Overload: nothing was stored. Send it again after `Retry-After` seconds
#[derive(ToResponse)]
#[response(headers(("Retry-After" = u32, description = "Seconds")))]
pub(crate) struct Overloaded(#[to_schema] Message);

/// The new URL, the new events, or both.
#[derive(ToSchema)]
pub(crate) struct NewEndpoint {
    /// An `https` URL of at most 2048 bytes, or `http` in the sandbox; null removes it.
    #[schema(example = "https://shop.example.com/webhooks")]
    url: Option<String>,
    /// The further events that are sent, of `topup.failed` and `key.expiring`. Without it, they stay.
    #[schema(example = json!(["topup.failed", "key.expiring"]))]
    events: Option<Vec<String>>,
}

/// `topup.failed`: a topup of an order that was answered with 201 will have no eSIM.
#[derive(ToSchema)]
pub(crate) struct TopupFailed {
    #[schema(example = "topup.failed")]
    r#type: String,
    #[schema(format = DateTime)]
    timestamp: String,
    data: TopupFailedData,
}

/// The topup.
#[derive(ToSchema)]
pub(crate) struct TopupFailedData {
    #[schema(example = "20250129123456123456789012")]
    topup_id: String,
    option_id: Uuid,
    #[schema(example = "A-1042")]
    external_order_id: String,
    /// Why, as in the look-up of the topup.
    #[schema(example = "The eSIM will not be delivered")]
    error: String,
}

/// `key.expiring`: the old keys or the old webhook secret of a rotation end soon.
#[derive(ToSchema)]
pub(crate) struct KeyExpiring {
    #[schema(example = "key.expiring")]
    r#type: String,
    #[schema(format = DateTime)]
    timestamp: String,
    data: KeyExpiringData,
}

/// What ends.
#[derive(ToSchema)]
pub(crate) struct KeyExpiringData {
    /// `keys` or `webhook_secret`: always the old one.
    #[schema(example = "keys")]
    credential: String,
    #[schema(format = DateTime)]
    ends_at: String,
}

/// `webhook.test`: you asked for a test.
#[derive(ToSchema)]
pub(crate) struct WebhookTest {
    #[schema(example = "webhook.test")]
    r#type: String,
    #[schema(format = DateTime)]
    timestamp: String,
    /// Empty.
    #[schema(value_type = Object)]
    data: (),
}

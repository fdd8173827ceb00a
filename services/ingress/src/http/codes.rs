//! The table of errors: each has a stable code, a status, a message and an explanation.
//!
//! Guarantees: an error says the same everywhere. The response takes its status and message from
//! here and names the code in `X-<Brand>-Error`. The metrics and the log use the code as the
//! reason. [`super::explanations`] has what `/errors` says about each. A code never changes
//! its meaning, because partners' programs decide by it.
//!
//! [`super::error`] makes responses from the table.
//! [`super::named`] writes codes into the headers of a response.

use std::fmt::Display;

use axum::http::StatusCode;
use strum::{EnumProperty, IntoStaticStr, VariantArray};

/// A stable code. `status` is the status of the response. `bought` says whether something was
/// bought, for codes that create-order answers with. `message` is the text in the response, with
/// `{}` for a detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumProperty, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum ErrorCode {
    // The head of the request, and its body.
    #[strum(props(
        status = 400,
        bought = "no",
        message = "Exactly one Host header is required"
    ))]
    Host,

    #[strum(props(status = 400, bought = "no", message = "Header {} is repeated"))]
    RepeatedHeader,

    #[strum(props(
        status = 400,
        bought = "no",
        message = "Header {} must be answer, or be left out"
    ))]
    RepeatInvalid,

    #[strum(props(status = 400, bought = "no", message = "Invalid JSON format"))]
    InvalidJson,

    #[strum(props(
        status = 415,
        bought = "no",
        message = "The body must be sent without Content-Encoding"
    ))]
    ContentEncodingUnsupported,

    #[strum(props(status = 422, bought = "no", message = "Body must be a JSON object"))]
    BodyNotObject,

    #[strum(props(
        status = 413,
        bought = "no",
        message = "Request body is larger than {} bytes"
    ))]
    BodyTooLarge,

    #[strum(props(
        status = 408,
        bought = "no",
        message = "The request body did not arrive in time; check Content-Length"
    ))]
    BodyTimeout,

    #[strum(props(status = 404, bought = "no", message = "Not found"))]
    NotFound,

    #[strum(props(
        status = 410,
        bought = "no, but **an earlier request ordered it**",
        message = "The order is archived; ask us if you need it"
    ))]
    OrderArchived,

    #[strum(props(status = 405, bought = "no", message = "Method not allowed"))]
    MethodNotAllowed,

    // Authentication.
    #[strum(props(
        status = 401,
        bought = "no",
        message = "Missing required authentication headers."
    ))]
    AuthenticationHeaderMissing,

    #[strum(props(
        status = 401,
        bought = "no",
        message = "Request timestamp is too old or invalid."
    ))]
    TimestampInvalid,

    #[strum(props(
        status = 401,
        bought = "no",
        message = "Invalid or missing access key. Please provide a valid {} header."
    ))]
    AccessKeyUnknown,

    #[strum(props(
        status = 401,
        bought = "no",
        message = "Missing secret key in partner record."
    ))]
    SecretKeyMissing,

    #[strum(props(status = 401, bought = "no", message = "Invalid signature."))]
    SignatureInvalid,

    #[strum(props(
        status = 401,
        bought = "no",
        message = "Missing {} header: this account accepts only requests whose signature covers the body."
    ))]
    ContentSha256Missing,

    #[strum(props(
        status = 401,
        bought = "no",
        message = "{} is not the SHA-256 of the body in lowercase hex."
    ))]
    ContentSha256Invalid,

    #[strum(props(
        status = 403,
        bought = "no",
        message = "The key may not be used from the address {}"
    ))]
    NetworkNotAllowed,

    #[strum(props(
        status = 403,
        bought = "no",
        message = "The key lacks the right {}, which this request needs"
    ))]
    RightMissing,

    #[strum(props(
        status = 403,
        message = "Only the first key of the account can do this"
    ))]
    FirstKeyRequired,

    #[strum(props(status = 403, message = "The key cannot give this to another one: {}"))]
    KeyNotGiven,

    #[strum(props(status = 403, message = "Only sandbox accounts can do this"))]
    SandboxOnly,

    // Create-order.
    #[strum(props(
        status = 422,
        bought = "no",
        message = "External order id can't be blank"
    ))]
    ExternalOrderIdBlank,

    #[strum(props(status = 422, bought = "no", message = "External order id {}"))]
    ExternalOrderIdInvalid,

    #[strum(props(
        status = 422,
        bought = "no, but **the earlier request ordered it**",
        message = "External order id has already been taken"
    ))]
    ExternalOrderIdTaken,

    #[strum(props(
        status = 409,
        bought = "no, but **an earlier request ordered something else**",
        message = "An earlier order with this external order id has other units; look it up, or choose a new id"
    ))]
    OrderDiffers,

    #[strum(props(status = 422, bought = "no", message = "Products can't be blank"))]
    ProductsBlank,

    #[strum(props(status = 422, bought = "no", message = "Products must be an array"))]
    ProductsInvalid,

    #[strum(props(status = 422, bought = "no", message = "must be an object"))]
    ItemInvalid,

    #[strum(props(status = 422, bought = "no", message = "option_id can't be blank"))]
    OptionIdBlank,

    #[strum(props(
        status = 422,
        bought = "no",
        message = "Product with option_id not found"
    ))]
    OptionNotFound,

    #[strum(props(
        status = 422,
        bought = "no",
        message = "qty must be a positive integer"
    ))]
    QtyInvalid,

    #[strum(props(
        status = 422,
        bought = "no",
        message = "metadata must be an object of at most 10 texts, with at most 1024 bytes"
    ))]
    MetadataInvalid,

    #[strum(props(
        status = 422,
        bought = "no",
        message = "Products can't have more than {} items"
    ))]
    TooManyItems,

    #[strum(props(
        status = 422,
        bought = "no",
        message = "Products can't have more than {} units in total"
    ))]
    TooManyUnits,

    #[strum(props(
        status = 422,
        bought = "no",
        message = "The key has reached its limit of units a day: {}"
    ))]
    UnitsPerDayReached,

    #[strum(props(
        status = 422,
        bought = "no",
        message = "The balance doesn't cover the order: {}"
    ))]
    BalanceInsufficient,

    #[strum(props(status = 422, bought = "no", message = "costs more than its max_price"))]
    PriceAboveMax,

    #[strum(props(
        status = 422,
        bought = "no",
        message = "max_price must be a whole number of the currency's minor unit, from 0 on"
    ))]
    MaxPriceInvalid,

    #[strum(props(status = 422, bought = "no", message = "{}"))]
    ProviderRejected,

    #[strum(props(
        status = 422,
        bought = "no",
        message = "API connection error (Order ID: {})"
    ))]
    ProviderUnreachable,

    #[strum(props(
        status = 422,
        bought = "no",
        message = "The provider carries nothing out at the moment (Order ID: {})"
    ))]
    ProviderUnavailable,

    // Everything else that partners send.
    #[strum(props(
        status = 422,
        message = "Parameter {} is unknown; this request does not have it"
    ))]
    ParameterUnknown,

    #[strum(props(
        status = 422,
        bought = "no",
        message = "Parameter {} is given more than once; send it once"
    ))]
    ParameterRepeated,

    #[strum(props(status = 422, message = "Limit must be an integer from 1 to {}"))]
    LimitInvalid,

    #[strum(props(
        status = 422,
        message = "Cursor is invalid; send next_cursor unchanged or leave it out"
    ))]
    CursorInvalid,

    #[strum(props(
        status = 422,
        message = "Created after must be a time such as 2026-11-22T00:00:00Z"
    ))]
    CreatedAfterInvalid,

    #[strum(props(
        status = 422,
        message = "State must be processing, ready, partly_failed, failed, refused or cancelled"
    ))]
    StateInvalid,

    #[strum(props(
        status = 422,
        message = "{} must be a time such as 2026-11-22T00:00:00Z"
    ))]
    TimeInvalid,

    #[strum(props(
        status = 422,
        message = "Country must be a code of ISO 3166-1 alpha-2 such as JP"
    ))]
    CountryInvalid,

    #[strum(props(
        status = 422,
        message = "Network must be a name of 1 to 500 characters"
    ))]
    NetworkInvalid,

    #[strum(props(status = 422, message = "Kind must be data or data_voice_text"))]
    KindInvalid,

    #[strum(props(
        status = 422,
        message = "Currency must be a code of ISO 4217 such as USD"
    ))]
    CurrencyInvalid,

    #[strum(props(
        status = 422,
        message = "After must be the number of an entry, from 0 on"
    ))]
    AfterInvalid,

    #[strum(props(
        status = 422,
        message = "{} must be a whole number of the currency's minor unit, from 0 to 1000000000000"
    ))]
    AmountInvalid,

    #[strum(props(
        status = 422,
        message = "Parameter {} must be a whole number from 1 on"
    ))]
    OptionNumberInvalid,

    #[strum(props(status = 422, message = "Unlimited must be true or false"))]
    UnlimitedInvalid,

    #[strum(props(status = 422, message = "State must be {}"))]
    WebhookStateInvalid,

    #[strum(props(status = 422, message = "Wait must be a whole number of seconds"))]
    WaitInvalid,

    #[strum(props(status = 422, message = "Cause is not one of those in the reference"))]
    CauseInvalid,

    #[strum(props(
        status = 422,
        message = "Iccid must have 18 to 20 digits, or be the last six of them"
    ))]
    IccidInvalid,

    #[strum(props(status = 422, message = "Endpoint id must be a UUID"))]
    EndpointIdInvalid,

    #[strum(props(status = 422, message = "Events must be a list of {}"))]
    EventsInvalid,

    #[strum(props(status = 422, message = "Type must be {}"))]
    EventTypeInvalid,

    #[strum(props(status = 422, message = "Headers are invalid: {}"))]
    HeadersInvalid,

    #[strum(props(
        status = 422,
        message = "Url is missing; send a string to set it, or null to remove your webhook URL"
    ))]
    UrlMissing,

    #[strum(props(status = 422, message = "Url is invalid: {}"))]
    UrlInvalid,

    #[strum(props(status = 422, message = "Url {}"))]
    UrlForbidden,

    #[strum(props(
        status = 422,
        message = "Send either url or email, and only one of them"
    ))]
    NoticeChannelMissing,

    #[strum(props(status = 422, message = "Email is invalid: {}"))]
    EmailInvalid,

    #[strum(props(
        status = 422,
        message = "Notices are not sent by e-mail here; send a url"
    ))]
    EmailNotOffered,

    #[strum(props(status = 422, message = "Code is invalid: {}"))]
    NoticeCodeInvalid,

    #[strum(props(
        status = 409,
        message = "The order's create request may not be answered yet; try again after Retry-After seconds"
    ))]
    OrderNotAnswered,

    #[strum(props(
        status = 409,
        message = "The order is bought, or may be, so it can no longer be cancelled"
    ))]
    OrderNotWaiting,

    #[strum(props(
        status = 409,
        message = "The order was refused, so nothing was bought and there is nothing to cancel"
    ))]
    OrderRefused,

    #[strum(props(
        status = 409,
        message = "The eSIM is not ready, so there is no webhook to send again"
    ))]
    TopupNotReady,

    #[strum(props(
        status = 409,
        message = "The eSIM's fields were erased and cannot be sent again"
    ))]
    TopupErased,

    #[strum(props(status = 409, message = "The eSIM was given back"))]
    TopupReturned,

    #[strum(props(
        status = 409,
        message = "The provider of this eSIM does not show its data use"
    ))]
    UsageNotAvailable,

    #[strum(props(
        status = 409,
        message = "The provider of this eSIM does not take eSIMs back"
    ))]
    GiveBackNotAvailable,

    #[strum(props(
        status = 409,
        message = "The eSIM is installed, so it cannot be given back"
    ))]
    EsimInstalled,

    #[strum(props(status = 409, message = "The provider does not take the eSIM back: {}"))]
    GiveBackRefused,

    #[strum(props(status = 409, message = "The eSIM is not given back; ask again later"))]
    GiveBackFailed,

    #[strum(props(
        status = 409,
        message = "The eSIM is being extended, so it cannot be given back now"
    ))]
    EsimExtending,

    #[strum(props(
        status = 409,
        message = "The eSIM is being given back, so it cannot be extended"
    ))]
    GiveBackOpen,

    #[strum(props(
        status = 409,
        message = "The provider of this eSIM neither suspends nor resumes eSIMs"
    ))]
    SuspensionNotAvailable,

    #[strum(props(
        status = 409,
        message = "The provider neither suspends nor resumes this eSIM: {}"
    ))]
    SuspensionRefused,

    #[strum(props(status = 409, message = "The eSIM is as it was; ask again later"))]
    SuspensionFailed,

    #[strum(props(
        status = 409,
        message = "The opposite request about this eSIM is under way"
    ))]
    SuspensionOpen,

    #[strum(props(
        status = 409,
        message = "Set how your pages to install from look first: PUT …/account/install-pages"
    ))]
    InstallPagesNotSet,

    #[strum(props(status = 422, message = "The pages to install from: {}"))]
    InstallPageInvalid,

    #[strum(props(
        status = 422,
        message = "The contrast of brand and brand_ink is {} : 1, and at least 4.5 : 1 is needed"
    ))]
    ContrastTooLow,

    #[strum(props(
        status = 409,
        message = "The external_id names another extension of your account"
    ))]
    ExtensionDiffers,

    #[strum(props(
        status = 409,
        message = "Another extension of the eSIM is under way or on hold: {}"
    ))]
    ExtensionOpen,

    #[strum(props(status = 409, message = "This option cannot be added to this eSIM"))]
    ExtensionNotOffered,

    #[strum(props(
        status = 409,
        message = "The provider does not add this to the eSIM: {}"
    ))]
    ExtensionRefused,

    #[strum(props(
        status = 409,
        message = "Nothing was added to the eSIM; order it again later, with a new external_id"
    ))]
    ExtensionFailed,

    #[strum(props(
        status = 409,
        message = "The event cannot be sent again: it is a test, you no longer ask for its type, or it is no longer true"
    ))]
    EventVoid,

    #[strum(props(
        status = 409,
        message = "The account does not ask for events of this type; ask for them with PUT /webhook first"
    ))]
    EventNotWanted,

    #[strum(props(
        status = 409,
        message = "The account has no webhook URL; set one first"
    ))]
    WebhookUrlMissing,

    #[strum(props(
        status = 409,
        message = "The webhook endpoint is paused; resume it, or ask us to if we paused it"
    ))]
    WebhookPaused,

    #[strum(props(
        status = 409,
        message = "Redelivery {} is running; wait for its end or cancel it"
    ))]
    RedeliveryRunning,

    #[strum(props(
        status = 409,
        message = "The account has {} endpoints, which is the maximum; delete one first"
    ))]
    TooManyEndpoints,

    #[strum(props(
        status = 409,
        message = "This is the account's first endpoint; change it with PUT /webhook"
    ))]
    FirstEndpoint,

    #[strum(props(status = 422, message = "Name must be a text of 1 to {} characters"))]
    KeyNameInvalid,

    #[strum(props(status = 422, message = "Rights must be a list of some of {}"))]
    RightsInvalid,

    #[strum(props(status = 422, message = "Networks are invalid: {}"))]
    NetworksInvalid,

    #[strum(props(
        status = 422,
        message = "Units per day must be a whole number from 0 on, or null"
    ))]
    UnitsPerDayInvalid,

    #[strum(props(
        status = 409,
        message = "The account has {} keys, which is the maximum; end one first"
    ))]
    TooManyKeys,

    #[strum(props(
        status = 409,
        message = "This is the account's first key; replace it with POST /keys"
    ))]
    FirstKey,

    #[strum(props(status = 409, message = "No channel for notices is set; set one first"))]
    NoticesNotSet,

    #[strum(props(
        status = 409,
        message = "The old keys or the old secret of the last rotation are still valid; try again when they have ended"
    ))]
    RotationUnderWay,

    // Load, and our faults.
    #[strum(props(
        status = 503,
        bought = "no",
        message = "An earlier request with this external order id is not answered yet; try again in a few seconds"
    ))]
    OrderUndecided,

    #[strum(props(
        status = 429,
        bought = "no",
        message = "Rate limit exceeded: at most {} per second"
    ))]
    RateLimited,

    #[strum(props(
        status = 503,
        message = "The provider does not answer; try again after Retry-After seconds"
    ))]
    UsageUnanswered,

    #[strum(props(
        status = 429,
        bought = "no",
        message = "Limit exceeded: at most {} orders in flight at once"
    ))]
    TooManyInFlight,

    #[strum(props(
        status = 429,
        message = "Your account's share is in use: {} of its requests are in progress"
    ))]
    ShareInUse,

    #[strum(props(
        status = 429,
        message = "The last attempt of this webhook, or your last redelivery, began a moment ago; try again after Retry-After seconds"
    ))]
    RedeliveredRecently,

    #[strum(props(
        status = 429,
        message = "The last test or sandbox event was a moment ago; try again after Retry-After seconds"
    ))]
    TestedRecently,

    #[strum(props(
        status = 429,
        message = "Too many codes were sent for your notices; try again after Retry-After seconds"
    ))]
    VerificationLimited,

    #[strum(props(
        status = 503,
        bought = "no",
        message = "Too many requests in progress; nothing was stored. Try again later"
    ))]
    Overloaded,

    #[strum(props(status = 500, bought = "**maybe**", message = "Internal server error"))]
    InternalError,
}

impl ErrorCode {
    /// The code as it is written in the header.
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }

    pub(crate) fn status(self) -> StatusCode {
        let status = self
            .get_int("status")
            .and_then(|status| u16::try_from(status).ok());
        status
            .and_then(|status| StatusCode::from_u16(status).ok())
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The text in the response. If the message has a detail, [`Self::message_with`] makes the
    /// text.
    pub(crate) fn message(self) -> &'static str {
        self.get_str("message").unwrap_or_default()
    }

    pub(crate) fn message_with(self, detail: impl Display) -> String {
        self.message().replacen("{}", &detail.to_string(), 1)
    }

    /// The code and its message, with what the provider said.
    pub(crate) fn said_by_provider(self, said: Option<&str>) -> (Self, String) {
        let said = said.filter(|said| !said.is_empty());
        (
            self,
            self.message_with(said.unwrap_or("it does not say why")),
        )
    }

    /// Whether something was bought, for codes that create-order answers with.
    pub(crate) fn bought(self) -> Option<&'static str> {
        self.get_str("bought")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_status_and_a_message() {
        for code in ErrorCode::VARIANTS {
            assert!(
                code.get_int("status").is_some() && code.status().as_u16() >= 400,
                "{}",
                code.name()
            );
            assert!(!code.message().is_empty(), "{}", code.name());
        }
    }
}

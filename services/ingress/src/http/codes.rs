//! The table of errors: each has a stable code, a status, a message and an explanation.
//!
//! Guarantees: an error says the same everywhere. The response takes its status and message from
//! here and names the code in `X-<Brand>-Error`. The metrics and the log use the code as the
//! reason. `/errors` and `docs/errors.md` are generated from the explanations. A code never changes
//! its meaning, because partners' programs decide by it.
//!
//! [`super::error`] makes responses from the table, and [`crate::pages::errors`] the page.
//! [`super::named`] writes codes into the headers of a response.

use std::fmt::Display;

use axum::http::StatusCode;
use strum::{EnumMessage, EnumProperty, IntoStaticStr, VariantArray};

/// A stable code. The comment of a variant is its section of the page: what is wrong and what to
/// do, for partners, in one paragraph of Markdown without links. `X-Service-` in it becomes the
/// brand's prefix. `status` is the status of the response. `bought` says whether something was
/// bought, for codes that create-order answers with. `message` is the text in the response, with
/// `{}` for a detail.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, EnumMessage, EnumProperty, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Code {
    // The head of the request, and its body.
    /// The request has no `Host` header, or several. Send exactly one, because a proxy could
    /// otherwise read the request differently from us. HTTP libraries add this header by
    /// themselves.
    #[strum(props(
        status = 400,
        bought = "no",
        message = "Exactly one Host header is required"
    ))]
    Host,

    /// An authentication header appears more than once. Send each of them once. A usual cause is a
    /// library that, on a retry, adds the new headers to those of the earlier attempt.
    #[strum(props(status = 400, bought = "no", message = "Header {} is repeated"))]
    RepeatedHeader,

    /// The body is missing, empty or not valid JSON, or its objects and arrays are nested more than
    /// 128 deep.
    #[strum(props(status = 400, bought = "no", message = "Invalid JSON format"))]
    InvalidJson,

    /// The body has a `Content-Encoding`, for example because it is compressed. We read bodies exactly
    /// as they arrive, so send it uncompressed and without this header.
    #[strum(props(
        status = 415,
        bought = "no",
        message = "The body must be sent without Content-Encoding"
    ))]
    ContentEncodingUnsupported,

    /// The body is JSON, but not an object with fields. Send an object, as the description of the
    /// request says.
    #[strum(props(status = 422, bought = "no", message = "Body must be a JSON object"))]
    BodyNotObject,

    /// The body is larger than we accept, which is 64 KiB unless we changed it; `GET /account`
    /// shows the limit as `body_bytes`. Split the order into several orders, each with an
    /// `external_order_id` of its own.
    #[strum(props(
        status = 413,
        bought = "no",
        message = "Request body is larger than {} bytes"
    ))]
    BodyTooLarge,

    /// The body did not arrive in time. Send it right after the headers, and check that
    /// `Content-Length` is its length in bytes and not in characters.
    #[strum(props(
        status = 408,
        bought = "no",
        message = "The request body did not arrive in time; check Content-Length"
    ))]
    BodyTimeout,

    /// Nothing has this path or id. Check the path, and percent-encode the ids in it once. For the id of
    /// another partner you get the same answer as for an unknown id. If you looked up an order, it
    /// is not stored at this moment. But an earlier request may still be on its way and store it a
    /// moment later. To be certain, repeat the order, or look it up again one minute after you sent
    /// the last request for it.
    #[strum(props(status = 404, bought = "no", message = "Not found"))]
    NotFound,

    /// The order, or the order of this topup, is finished and so old that we have moved it out of our
    /// system into an archive. It can be neither shown nor changed here, and its webhooks cannot be
    /// sent again. Its `external_order_id` stays taken for a year after that, unless we agreed on
    /// another time. Use the copy that you stored, or ask us if you need the order.
    #[strum(props(status = 410, message = "The order is archived; ask us if you need it"))]
    OrderArchived,

    /// The path exists, but does not accept this method. The header `Allow` names the methods that
    /// it accepts.
    #[strum(props(status = 405, bought = "no", message = "Method not allowed"))]
    MethodNotAllowed,

    // Authentication.
    /// At least one of the three authentication headers is missing or blank. They are
    /// `X-Service-Access-Key`, `X-Service-Signature` and `X-Service-Timestamp`.
    #[strum(props(
        status = 401,
        bought = "no",
        message = "Missing required authentication headers."
    ))]
    AuthenticationHeaderMissing,

    /// The timestamp is not the Unix time in seconds, or it differs by more than 300 s from our
    /// clock, whose time is in the `Date` header of the answer. Correct your clock, and sign each
    /// request anew when you send it. A frequent mistake is to send milliseconds.
    #[strum(props(
        status = 401,
        bought = "no",
        message = "Request timestamp is too old or invalid."
    ))]
    TimestampInvalid,

    /// No active account has this access key. Check that the key is complete, and that it belongs
    /// to the system at this base URL. If you or we have changed your keys, use the new pair: the
    /// old pair is accepted only during the overlap, which usually lasts a day. If your key should
    /// be valid, ask us, because we may have disabled your account.
    #[strum(props(
        status = 401,
        bought = "no",
        message = "Invalid or missing access key. Please provide a valid {} header."
    ))]
    AccessKeyUnknown,

    /// No secret key is stored for your account, so we cannot check any signature. You cannot
    /// correct this yourself: ask us for new keys.
    #[strum(props(
        status = 401,
        bought = "no",
        message = "Missing secret key in partner record."
    ))]
    SecretKeyMissing,

    /// The signature is not the one that we compute from your request. Check your code with the
    /// test vector of the guide. These are the frequent mistakes. The secret key is used as Base64
    /// text; it must be decoded first. The signed path is not the one that was sent; it must have
    /// its prefix (`/api/v1/api_partner`) and its percent-encoding. The query is signed although
    /// `X-Service-Content-SHA256` is not sent, or it is not signed although that header is sent.
    /// The signed text ends with a line feed. The timestamp in the header is not the signed one.
    /// The signature is written in Base64 or in uppercase; it must be lowercase hexadecimal.
    #[strum(props(status = 401, bought = "no", message = "Invalid signature."))]
    SignatureInvalid,

    /// Your account, or this kind of request, accepts only signatures that cover the query and the
    /// body; the message says which. Send the SHA-256 of the body in `X-Service-Content-SHA256`, and
    /// sign it as the fifth line of the text.
    #[strum(props(
        status = 401,
        bought = "no",
        message = "Missing {} header: this account accepts only requests whose signature covers the body."
    ))]
    ContentSha256Missing,

    /// `X-Service-Content-SHA256` is not the SHA-256 of the body as it arrived, in lowercase
    /// hexadecimal. Compute it over the bytes that you send. If you serialize the same object a
    /// second time, the bytes can differ.
    #[strum(props(
        status = 401,
        bought = "no",
        message = "{} is not the SHA-256 of the body in lowercase hex."
    ))]
    ContentSha256Invalid,

    /// Only sandbox accounts may send this request, because it is meant for development: listening
    /// for webhooks, or making an event. Use the keys of a sandbox account. A live account receives
    /// webhooks at its webhook URL, and events when they happen.
    #[strum(props(status = 403, message = "Only sandbox accounts can do this"))]
    SandboxOnly,

    // Create-order.
    /// `external_order_id` is missing, is null, or consists of white space only. Send your own id
    /// of the order as a string.
    #[strum(props(
        status = 422,
        bought = "no",
        message = "External order id can't be blank"
    ))]
    ExternalOrderIdBlank,

    /// `external_order_id` is not a string, has more than 255 characters, or contains a NUL
    /// character. The message says which of them it is.
    #[strum(props(status = 422, bought = "no", message = "External order id {}"))]
    ExternalOrderIdInvalid,

    /// An earlier order has this id, and that order is stored. This request ordered nothing, even
    /// if its body differs, because bodies are not compared. The units of the earlier order are
    /// bought or being bought, or some of them have failed since. So refund your customer only for
    /// units that are `failed`. `Location` names the order; look it up to get its `topup_id`s,
    /// their states and the eSIMs. If you meant to place another order, choose a new id for it.
    #[strum(props(
        status = 422,
        bought = "no, but **the earlier request ordered it**",
        message = "External order id has already been taken"
    ))]
    ExternalOrderIdTaken,

    /// `products` is missing or empty. Send at least one item.
    #[strum(props(status = 422, bought = "no", message = "Products can't be blank"))]
    ProductsBlank,

    /// `products` is not an array. Send an array of items, even for a single one.
    #[strum(props(status = 422, bought = "no", message = "Products must be an array"))]
    ProductsInvalid,

    /// The item is not a JSON object. Send an object with `option_id` and `qty`.
    #[strum(props(status = 422, bought = "no", message = "must be an object"))]
    ItemInvalid,

    /// The item has no `option_id`, or a blank one. `GET /options` lists the options that you may
    /// order.
    #[strum(props(status = 422, bought = "no", message = "option_id can't be blank"))]
    OptionIdBlank,

    /// No option that you may order has this id. `GET /options` lists the options that you may
    /// order. A live account may order the enabled live options of the connected providers. A
    /// sandbox account may order every enabled option, but all its orders go to our test provider,
    /// which sells nothing real.
    #[strum(props(
        status = 422,
        bought = "no",
        message = "Product with option_id not found"
    ))]
    OptionNotFound,

    /// `qty` is not a positive integer. Write it as a number in digits only: no string, no sign, no
    /// fraction and no exponent.
    #[strum(props(
        status = 422,
        bought = "no",
        message = "qty must be a positive integer"
    ))]
    QtyInvalid,

    /// The order has more items than we accept in one order; `GET /account` shows the limit. Split
    /// it into several orders, each with an `external_order_id` of its own.
    #[strum(props(
        status = 422,
        bought = "no",
        message = "Products can't have more than {} items"
    ))]
    TooManyItems,

    /// The order has more units in total than we accept in one order; `GET /account` shows the
    /// limit. Split it into several orders, each with an `external_order_id` of its own.
    #[strum(props(
        status = 422,
        bought = "no",
        message = "Products can't have more than {} units in total"
    ))]
    TooManyUnits,

    /// The provider rejected the order, and the message says why. You can use the
    /// `external_order_id` again. Order something else, or send the order again later.
    #[strum(props(status = 422, bought = "no", message = "{}"))]
    ProviderRejected,

    /// We could not reach the provider, so it is certain that nothing was bought. You can use the
    /// `external_order_id` again, so send the same order again later.
    #[strum(props(
        status = 422,
        bought = "no",
        message = "API connection error (Order ID: {})"
    ))]
    ProviderUnreachable,

    // Everything else that partners send.
    /// The query or the body has a parameter that this request does not have; the message names it.
    /// Correct its spelling, or leave it out. We refuse such a request instead of ignoring the
    /// parameter, because the answer would not be the one that you meant.
    #[strum(props(
        status = 422,
        message = "Parameter {} is unknown; this request does not have it"
    ))]
    ParameterUnknown,

    /// The query or an object of the body has this parameter twice. Send it once: we could only guess
    /// which of the two you mean, and a program between us may guess otherwise. An order with a
    /// repeated key buys nothing.
    #[strum(props(
        status = 422,
        bought = "no",
        message = "Parameter {} is given more than once; send it once"
    ))]
    ParameterRepeated,

    /// `limit` is not an integer from 1 to 100. Leave it out to get pages of 20 entries.
    #[strum(props(status = 422, message = "Limit must be an integer from 1 to {}"))]
    LimitInvalid,

    /// `cursor` is not a `next_cursor` from an earlier answer to the same kind of request. Send it
    /// unchanged and percent-encoded, or leave it out to begin with the first page.
    #[strum(props(
        status = 422,
        message = "Cursor is invalid; send next_cursor unchanged or leave it out"
    ))]
    CursorInvalid,

    /// `created_after` is not an RFC 3339 time such as `2026-11-22T00:00:00Z`. In a query, write
    /// the `+` of a time zone as `%2B`, because a plain `+` means a space there.
    #[strum(props(
        status = 422,
        message = "Created after must be a time such as 2026-11-22T00:00:00Z"
    ))]
    CreatedAfterInvalid,

    /// `state` is not a state of orders. The states are `processing`, `ready`, `partly_failed`,
    /// `failed`, `refused` and `cancelled`.
    #[strum(props(
        status = 422,
        message = "State must be processing, ready, partly_failed, failed, refused or cancelled"
    ))]
    StateInvalid,

    /// `since` or `until` is not an RFC 3339 time such as `2026-11-22T00:00:00Z`, or `since` is
    /// missing where it is required; `parameter` names which of them. In a query, write the `+` of a
    /// time zone as `%2B`, because a plain `+` means a space there.
    #[strum(props(
        status = 422,
        message = "{} must be a time such as 2026-11-22T00:00:00Z"
    ))]
    TimeInvalid,

    /// `country` is not a country code of ISO 3166-1 alpha-2 in capital letters, such as `JP`. Regions
    /// have no code; filter by one of their countries, and look at `countries` of what you get.
    #[strum(props(
        status = 422,
        message = "Country must be a code of ISO 3166-1 alpha-2 such as JP"
    ))]
    CountryInvalid,

    /// `min_data_mb`, `min_days` or `max_days` is not a whole number from 1 to 2147483647; `parameter`
    /// names which of them.
    #[strum(props(
        status = 422,
        message = "Parameter {} must be a whole number from 1 on"
    ))]
    OptionNumberInvalid,

    /// `unlimited` is neither `true` nor `false`. Leave it out to get both.
    #[strum(props(status = 422, message = "Unlimited must be true or false"))]
    UnlimitedInvalid,

    /// `state` is not a state of webhooks that this request accepts. The states are `pending`,
    /// `exhausted`, `no_endpoint` and `delivered`. Webhooks that wait for a URL (`no_endpoint`)
    /// cannot be sent again by a redelivery; they are sent when you set one.
    #[strum(props(status = 422, message = "State must be {}"))]
    WebhookStateInvalid,

    /// `wait` is not a whole number of seconds from 0 to 65535. We wait for at most about 20 s,
    /// also if you send a larger number.
    #[strum(props(status = 422, message = "Wait must be a whole number of seconds"))]
    WaitInvalid,

    /// `endpoint_id` is not the id of an endpoint, which is a UUID with hyphens. `GET /endpoints`
    /// lists yours.
    #[strum(props(status = 422, message = "Endpoint id must be a UUID"))]
    EndpointIdInvalid,

    /// `events` is not a list of names of further events. The message names the events that you can
    /// ask for. An empty list means that you want none.
    #[strum(props(status = 422, message = "Events must be a list of {}"))]
    EventsInvalid,

    /// `type` does not name an event that can be made in the sandbox. The message names those that
    /// can. The other events follow from what you order or ask for: a `topup.failed` from an order
    /// of the sandbox option `partly`, and a `webhook.test` from `POST /webhook/test`.
    #[strum(props(status = 422, message = "Type must be {}"))]
    EventTypeInvalid,

    /// `headers` cannot be used; the message says why. It must be an object of at most 10 headers with
    /// string values, together at most 4096 bytes. A name has letters, digits, `-` and `_`. Names
    /// that frame a request or that we set ourselves are refused, for example `Host`, `Connection`,
    /// `Content-Type` and those that begin with `webhook-`.
    #[strum(props(status = 422, message = "Headers are invalid: {}"))]
    HeadersInvalid,

    /// The body has neither `url` nor `events`, so there is nothing to change. For a further endpoint
    /// it has no `headers` either, and `null` counts as missing. To create one, `url` is required.
    /// Send a string as `url` to set the URL. `null` removes your webhook URL; a further endpoint
    /// has to be deleted instead.
    #[strum(props(
        status = 422,
        message = "Url is missing; send a string to set it, or null to remove your webhook URL"
    ))]
    UrlMissing,

    /// The webhook URL cannot be used; the message says why. It must be an `http` or `https` URL of
    /// at most 2048 bytes, without a user name, a password, a fragment (`#…`) and white space.
    #[strum(props(status = 422, message = "Url is invalid: {}"))]
    UrlInvalid,

    /// We do not send webhooks to this address or port. Use a public address, or a host name all of
    /// whose addresses are public. The port must be 80, 443 or at least 1024, unless we have
    /// allowed others. A live account needs `https`. In particular, `localhost` and private
    /// addresses are refused.
    #[strum(props(status = 422, message = "Url {}"))]
    UrlForbidden,

    /// The body must name either a `url` or an `email` for notices, and only one of them. Remove the
    /// channel with `DELETE /notices`.
    #[strum(props(
        status = 422,
        message = "Send either url or email, and only one of them"
    ))]
    NoticeChannelMissing,

    /// The e-mail address cannot be used; the message says why. It must have the form
    /// `name@example.com`, without a display name, quotes and an IP address.
    #[strum(props(status = 422, message = "Email is invalid: {}"))]
    EmailInvalid,

    /// We send no mails, so notices can only go to a URL. Send a `url`.
    #[strum(props(
        status = 422,
        message = "Notices are not sent by e-mail here; send a url"
    ))]
    EmailNotOffered,

    /// The code is not the one that we sent last to your channel for notices, or no code is valid
    /// any more; the message says which. A code is valid for half an hour, and five wrong ones end
    /// it. Set the channel again with `PUT /notices` to get a new code.
    #[strum(props(status = 422, message = "Code is invalid: {}"))]
    NoticeCodeInvalid,

    /// The create-order request of this order may still be waiting for its answer. If the order
    /// were cancelled now, you could get a 201 for a cancelled order. Try again after `Retry-After`
    /// seconds, which are about 6 at most. If you have the 201 already, you rarely get this error:
    /// then the process of ours that answered cannot be asked.
    #[strum(props(
        status = 409,
        message = "The order's create request may not be answered yet; try again after Retry-After seconds"
    ))]
    OrderNotAnswered,

    /// At least one unit of the order is bought, or may be bought, so the order can no longer be
    /// cancelled. Look the order up to see the states of its units.
    #[strum(props(
        status = 409,
        message = "The order is bought, or may be, so it can no longer be cancelled"
    ))]
    OrderNotWaiting,

    /// The create-order request of this order got a 422, so nothing was bought and there is nothing
    /// to cancel.
    #[strum(props(
        status = 409,
        message = "The order was refused, so nothing was bought and there is nothing to cancel"
    ))]
    OrderRefused,

    /// The eSIM of this topup is not ready, so there is no webhook to send again, no use to show and
    /// nothing to give back. Look the topup up
    /// to see its state. While it is `processing` or `on_hold`, you need do nothing: the webhook is
    /// sent as soon as the eSIM is ready. If it is `failed`, there is no eSIM and no webhook.
    #[strum(props(
        status = 409,
        message = "The eSIM is not ready, so there is no webhook to send again"
    ))]
    TopupNotReady,

    /// We have erased the fields of this eSIM, usually because 90 days have passed since its
    /// delivery. We can neither show nor send them again, so use the copy that you stored. Its data use
    /// can no longer be shown, and it can no longer be given back.
    #[strum(props(
        status = 409,
        message = "The eSIM's fields were erased and cannot be sent again"
    ))]
    TopupErased,

    /// You have given the eSIM of this topup back, so nobody can install it any more. There is nothing
    /// to send again and no use to show.
    #[strum(props(status = 409, message = "The eSIM was given back"))]
    TopupReturned,

    /// The provider of this eSIM does not show its data use. Asking again does not help.
    #[strum(props(
        status = 409,
        message = "The provider of this eSIM does not show its data use"
    ))]
    UsageNotAvailable,

    /// The provider of this eSIM takes no eSIM back. It stays yours.
    #[strum(props(
        status = 409,
        message = "The provider of this eSIM does not take eSIMs back"
    ))]
    GiveBackNotAvailable,

    /// The eSIM is installed on a device, or its installation has begun, so it cannot be given back.
    /// It stays yours.
    #[strum(props(
        status = 409,
        message = "The eSIM is installed, so it cannot be given back"
    ))]
    EsimInstalled,

    /// The provider does not take this eSIM back; the message says why if the provider did. For
    /// example, it has expired. It stays yours.
    #[strum(props(status = 409, message = "The provider does not take the eSIM back: {}"))]
    GiveBackRefused,

    /// The eSIM is not given back, because its provider could not be asked for half an hour, or
    /// because we looked into it and found it in its place. It stays yours. Ask again later.
    #[strum(props(status = 409, message = "The eSIM is not given back; ask again later"))]
    GiveBackFailed,

    /// The event cannot be sent again. Either it is a test, and `POST /webhook/test` sends a new
    /// one. Or you no longer ask for events of its type. Or it is no longer true, because the
    /// failed topup has become ready after all or its order was cancelled. Look the topup up to see
    /// which of these it is.
    #[strum(props(
        status = 409,
        message = "The event cannot be sent again: it is a test, you no longer ask for its type, or it is no longer true"
    ))]
    EventVoid,

    /// You do not ask for events of this type, so we would not send it. Ask for them with `PUT
    /// /webhook` and the list `events`, and make the event then.
    #[strum(props(
        status = 409,
        message = "The account does not ask for events of this type; ask for them with PUT /webhook first"
    ))]
    EventNotWanted,

    /// Your account has no webhook URL, so there is nowhere to send the webhook. Set a URL with
    /// `PUT /webhook`; the webhooks that wait for a URL are then sent.
    #[strum(props(
        status = 409,
        message = "The account has no webhook URL; set one first"
    ))]
    WebhookUrlMissing,

    /// The endpoint is paused, so nothing is sent to it. If you paused it, resume it with `POST
    /// /endpoints/{endpoint_id}/resume`. If we paused it, ask us to resume it. The webhooks that wait
    /// are then sent.
    #[strum(props(
        status = 409,
        message = "The webhook endpoint is paused; resume it, or ask us to if we paused it"
    ))]
    WebhookPaused,

    /// A redelivery of many webhooks is running, which `Location` and the message name. Wait until
    /// it has ended, or cancel it with `DELETE`.
    #[strum(props(
        status = 409,
        message = "Redelivery {} is running; wait for its end or cancel it"
    ))]
    RedeliveryRunning,

    /// Your account has as many endpoints as an account can have, which is ten with the first one.
    /// Delete one that you no longer need.
    #[strum(props(
        status = 409,
        message = "The account has {} endpoints, which is the maximum; delete one first"
    ))]
    TooManyEndpoints,

    /// This is the first endpoint of your account, which is its webhook URL. It cannot be deleted, and
    /// has no headers of its own. Change or remove its URL and its events with `PUT /webhook`.
    #[strum(props(
        status = 409,
        message = "This is the account's first endpoint; change it with PUT /webhook"
    ))]
    FirstEndpoint,

    /// There is no channel for notices that could be verified. Set one with `PUT /notices`.
    #[strum(props(status = 409, message = "No channel for notices is set; set one first"))]
    NoticesNotSet,

    /// You or we have changed your keys or your webhook secret, and the old ones are still valid.
    /// There can be only one old pair of keys, and one old secret, beside the new one. Try again
    /// when the overlap has ended, or ask us to end it.
    #[strum(props(
        status = 409,
        message = "The old keys or the old secret of the last rotation are still valid; try again when they have ended"
    ))]
    RotationUnderWay,

    // Load, and our faults.
    /// An earlier create-order request with this id has not got its answer yet, and its order may
    /// still be refused with a 422. Send the same request again in a few seconds. If the earlier
    /// order stands by then, you get `external_order_id_taken`. If it was refused, the repeated
    /// request places a new order.
    #[strum(props(
        status = 503,
        bought = "no",
        message = "An earlier request with this external order id is not answered yet; try again in a few seconds"
    ))]
    OrderUndecided,

    /// Your account sends more requests, orders or units per second than it may, or asks providers
    /// about eSIMs more often; the message says which. This request stored nothing. Send it again after `Retry-After` seconds.
    /// `RateLimit-Limit` is the limit per second.
    #[strum(props(
        status = 429,
        bought = "no",
        message = "Rate limit exceeded: at most {} per second"
    ))]
    RateLimited,

    /// The provider of this eSIM does not answer now, and we have no earlier answer about its data use.
    /// Ask again after `Retry-After` seconds.
    #[strum(props(
        status = 503,
        message = "The provider does not answer; try again after Retry-After seconds"
    ))]
    UsageUnanswered,

    /// Too many create-order requests of your account are waiting for their answers at the same
    /// time. This request stored nothing. Send it again after `Retry-After` seconds, and send fewer
    /// orders at the same time.
    #[strum(props(
        status = 429,
        bought = "no",
        message = "Limit exceeded: at most {} orders in flight at once"
    ))]
    TooManyInFlight,

    /// Your account has as many such requests in progress as it may have now. A single account can
    /// use at most half of what the others leave free, so that nobody is shut out, and only a few
    /// requests of `GET /webhook/listen`. This request changed nothing. Send it again after
    /// `Retry-After` seconds, and send fewer requests at the same time. `RateLimit-Limit` is the
    /// number that was in progress.
    #[strum(props(
        status = 429,
        message = "Your account's share is in use: {} of its requests are in progress"
    ))]
    ShareInUse,

    /// The last attempt to send this webhook began less than a minute ago, whoever caused it, or
    /// your last redelivery of many webhooks did. Ask again after `Retry-After` seconds.
    #[strum(props(
        status = 429,
        message = "The last attempt of this webhook, or your last redelivery, began a moment ago; try again after Retry-After seconds"
    ))]
    RedeliveredRecently,

    /// The last test of your endpoint, or the last event that you made in the sandbox, was less than
    /// 10 s ago. Ask for the next one after `Retry-After` seconds.
    #[strum(props(
        status = 429,
        message = "The last test or sandbox event was a moment ago; try again after Retry-After seconds"
    ))]
    TestedRecently,

    /// Your account has had a code for its channel for notices less than a minute ago, or five codes
    /// within a day. This limit protects people whose address somebody names by mistake. Set the
    /// channel after `Retry-After` seconds.
    #[strum(props(
        status = 429,
        message = "Too many codes were sent for your notices; try again after Retry-After seconds"
    ))]
    VerificationLimited,

    /// We are overloaded, and this request stored nothing. An earlier request with the same
    /// `external_order_id` may have stored its order. Send the request again after `Retry-After`
    /// seconds, or after a few seconds if there is no such header.
    #[strum(props(
        status = 503,
        bought = "no",
        message = "Too many requests in progress; nothing was stored. Try again later"
    ))]
    Overloaded,

    /// Your account is moving to another part of our system, which takes some seconds to minutes.
    /// This request stored nothing and changed nothing. An earlier request with the same
    /// `external_order_id` may have stored its order; that order moves along. Send the request again
    /// after `Retry-After` seconds until you get another answer.
    #[strum(props(
        status = 503,
        bought = "no",
        message = "Your account is being moved; nothing was stored. Try again in a few seconds"
    ))]
    PartnerMoving,

    /// Something failed on our side. If the request was an order, it may be stored and bought. Send
    /// it again with the same `external_order_id` until you get a definite answer: after pauses of
    /// 1, 2, 4 and 8 s, and then about once a minute, without a time limit. If the error persists, send us the `X-Request-Id` of the answer.
    #[strum(props(status = 500, bought = "**maybe**", message = "Internal server error"))]
    InternalError,
}

impl Code {
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

    /// What is wrong and what to do, as one paragraph of Markdown.
    pub(crate) fn explanation(self) -> String {
        self.get_documentation()
            .unwrap_or_default()
            .trim()
            .replace('\n', " ")
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
    fn every_code_has_a_status_a_message_and_an_explanation() {
        for code in Code::VARIANTS {
            assert!(
                code.get_int("status").is_some() && code.status().as_u16() >= 400,
                "{}",
                code.name()
            );
            assert!(
                !code.message().is_empty() && !code.explanation().is_empty(),
                "{}",
                code.name()
            );
        }
    }

    #[test]
    fn the_guide_names_every_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/partner-guide.md");
        let guide = std::fs::read_to_string(path).unwrap();
        for code in Code::VARIANTS {
            assert!(
                guide.contains(&format!("`{}`", code.name())),
                "{}",
                code.name()
            );
        }
    }
}

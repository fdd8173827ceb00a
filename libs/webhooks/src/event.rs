//! The bodies of events, which are the webhooks other than the specified one. They have the form
//! that Standard Webhooks recommends: a type, a time, and the data of this type. For example:
//!
//! ```json
//! {"type":"webhook.test","timestamp":"2026-01-31T12:00:00Z","data":{"challenge":"7KQM-2XWB-9TRA"}}
//! ```

use std::borrow::Cow;

use domain::{
    Amount, EndpointId, Metadata, OptionId,
    event::{EventKind, NoticeKind},
    product::Currency,
};
use serde::Serialize;
use store::{
    deliveries::{
        events::{BalanceLowContent, EventContent, ExtensionContent, Subject},
        notices::NoticeContent,
        offers::OptionsChangedContent,
    },
    esim_requests::{EsimChangeReason, UseContent},
};
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

/// The header with the kind of the event. The specified webhook does not have this header.
pub const TYPE: &str = "webhook-type";

/// The text that tells a partner about a provider's rejection.
pub fn rejection(status: &str, message: &str) -> String {
    format!("eSIM Request failed - Status: {status}, Message: {message}")
}

/// The text that tells a partner why a topup has failed. It is the provider's rejection if there
/// was one.
pub fn failure(refusal: Option<&(String, String)>) -> String {
    refusal.map_or_else(
        || "The eSIM will not be delivered".to_owned(),
        |(status, message)| rejection(status, message),
    )
}

/// What a notice advises the partner to do. It is part of its body and of its mail.
pub fn advice(kind: NoticeKind) -> &'static str {
    match kind {
        NoticeKind::Verify => {
            "Give this code to POST /notices/verify, or run esim-partner notices verify CODE, \
             within half an hour. Until then nothing else is sent here. If you did not expect this, \
             ignore it."
        }
        NoticeKind::EndpointFailing => {
            "If the endpoint goes on failing, we block it. Look at its log, and at the attempts of \
             its webhooks, which show what it answered. It must acknowledge webhooks with a 2xx \
             within 15 seconds."
        }
        NoticeKind::EndpointBlocked => {
            "Its webhooks wait and use up no retries. From time to time, at least every few \
             minutes, one of them is sent as a test. As soon as the endpoint acknowledges one, or a \
             test that you ask for, the others follow. If the endpoint has moved, set its new URL."
        }
        NoticeKind::EndpointRecovered => {
            "The webhooks that waited are being sent. Those whose retries had ended are not: list \
             the exhausted ones and have them redelivered."
        }
        NoticeKind::WebhookExhausted => {
            "We do not send this webhook again on our own, but nothing is lost: have it redelivered, \
             or look the eSIM up. You are not told of further ones until the endpoint has recovered \
             or a day has passed, so list the exhausted webhooks."
        }
        NoticeKind::KeysExpire => {
            "These are the old ones. Put the new ones into all of your programs before the old ones \
             end; afterwards requests that are signed with old keys get a 401."
        }
        NoticeKind::SourceAddresses => {
            "Webhooks come from these addresses from now on. If your firewall admits only known \
             addresses, let these through. Go on verifying the signature of each webhook."
        }
    }
}

#[derive(Serialize)]
pub struct EventBody<'a> {
    r#type: &'static str,
    /// The time when the event happened.
    #[serde(with = "rfc3339")]
    timestamp: OffsetDateTime,
    data: Data<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    TopupFailed(TopupFailedData<'a>),
    OfTopup(TopupData<'a>),
    Use(EsimUseData<'a>),
    Extension(ExtensionData<'a>),
    OrderCancelled(OrderCancelledData<'a>),
    BalanceLow(BalanceLowData<'a>),
    OptionsChanged(OptionsChangedData<'a>),
    KeyExpiring(KeyExpiringData<'a>),
    WebhookTest(WebhookTestData<'a>),
    Notice(NoticeData<'a>),
}

// The doc comments of the following types are part of the API description that partners read.

/// The topup that has failed.
#[derive(Serialize, ToSchema)]
struct TopupFailedData<'a> {
    #[schema(example = "20250129123456123456789012")]
    topup_id: &'a str,
    #[schema(value_type = Uuid)]
    option_id: OptionId,
    #[schema(example = "A-1042")]
    external_order_id: &'a str,
    /// Why it has failed, in the same words as in the look-up of the topup.
    #[schema(example = "The eSIM will not be delivered")]
    error: String,
    /// What the topup costs, in minor units of `currency`; left out if we have agreed no prices
    /// with you.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1250)]
    price: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "USD")]
    currency: Option<Currency>,
    /// What was held and is free again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1250)]
    released: Option<i64>,
    /// What you keep with the item of the topup, if you do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<HashMap<String, String>>)]
    metadata: Option<&'a Metadata>,
    /// What you keep with the order, if you do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<HashMap<String, String>>)]
    order_metadata: Option<&'a Metadata>,
}

/// The topup that it is about.
#[derive(Serialize, ToSchema)]
struct TopupData<'a> {
    #[schema(example = "20250129123456123456789012")]
    topup_id: &'a str,
    #[schema(value_type = Uuid)]
    option_id: OptionId,
    #[schema(example = "A-1042")]
    external_order_id: &'a str,
    /// What the topup costs, in minor units of `currency`; left out if we have agreed no prices
    /// with you.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1250)]
    price: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "USD")]
    currency: Option<Currency>,
    /// Of `esim.returned`: what your balance got back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1250)]
    refunded: Option<i64>,
    /// What you keep with the item of the topup, if you do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<HashMap<String, String>>)]
    metadata: Option<&'a Metadata>,
    /// What you keep with the order, if you do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<HashMap<String, String>>)]
    order_metadata: Option<&'a Metadata>,
}

/// What the provider says of the eSIM of a topup. Each value is null if the provider does not say
/// it.
#[derive(Serialize, ToSchema)]
struct EsimUseData<'a> {
    #[schema(example = "20250129123456123456789012")]
    topup_id: &'a str,
    #[schema(value_type = Uuid)]
    option_id: OptionId,
    #[schema(example = "A-1042")]
    external_order_id: &'a str,
    /// Of `esim.low_data`, how much of the data is used at least, in percent; of `esim.expiring`, how
    /// many days are left at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 75)]
    threshold: Option<u8>,
    /// Whether the eSIM is installed on a device, or its installation has begun.
    installed: Option<bool>,
    /// The data that was bought, in bytes; null for an eSIM without a limit, too.
    data_total_bytes: Option<u64>,
    data_used_bytes: Option<u64>,
    /// When the plan of the eSIM ends.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    ends_at: Option<OffsetDateTime>,
    /// When the provider counted the data, which may be hours before; null if it does not say it.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    as_of: Option<OffsetDateTime>,
    /// When the provider said this.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    read_at: OffsetDateTime,
    /// What the topup costs, in minor units of `currency`; left out if we have agreed no prices
    /// with you.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1250)]
    price: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "USD")]
    currency: Option<Currency>,
    /// What you keep with the item of the topup, if you do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<HashMap<String, String>>)]
    metadata: Option<&'a Metadata>,
    /// What you keep with the order, if you do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<HashMap<String, String>>)]
    order_metadata: Option<&'a Metadata>,
}

/// The extension that has ended, and the topup whose eSIM it is for.
#[derive(Serialize, ToSchema)]
struct ExtensionData<'a> {
    #[schema(example = "20250129123456123456789012")]
    topup_id: &'a str,
    #[schema(example = "A-1042")]
    external_order_id: &'a str,
    /// Your own id of the extension.
    #[schema(example = "A-1042-more")]
    external_id: &'a str,
    /// What was to be added.
    #[schema(value_type = Uuid)]
    option_id: OptionId,
    /// Whether the provider has sold another eSIM instead. Then the webhook of the topup comes
    /// again, with the new eSIM and the same `webhook-id`. A program that drops repeats looks the
    /// topup up.
    new_esim: bool,
    /// Why nothing was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "the provider does not add this to the eSIM")]
    error: Option<String>,
    /// What the extension costs, in minor units of `currency`; left out if we have agreed no prices
    /// with you.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1250)]
    price: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "USD")]
    currency: Option<Currency>,
    /// Of `extension.ready`: what your balance paid.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1250)]
    charged: Option<i64>,
    /// Of `extension.failed`: what was held and is free again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1250)]
    released: Option<i64>,
    /// What you keep with the item of the topup, if you do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<HashMap<String, String>>)]
    metadata: Option<&'a Metadata>,
    /// What you keep with the order, if you do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<HashMap<String, String>>)]
    order_metadata: Option<&'a Metadata>,
}

/// Why an extension was refused, as its partner is told.
fn extension_error(reason: Option<&str>, message: Option<&str>) -> String {
    let reason = reason.and_then(|name| name.parse::<EsimChangeReason>().ok());
    let reason = reason.map_or("nothing was added", EsimChangeReason::of_extension);
    match message {
        Some(message) => format!("{reason}: {message}"),
        None => reason.to_owned(),
    }
}

/// The order that was cancelled.
#[derive(Serialize, ToSchema)]
struct OrderCancelledData<'a> {
    #[schema(example = "A-1042")]
    external_order_id: &'a str,
    /// How many topups it had. None of them was bought.
    #[schema(example = 2)]
    units: u32,
    /// What its topups cost, in minor units of `currency`; left out if we have agreed no prices
    /// with you.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1250)]
    price: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "USD")]
    currency: Option<Currency>,
    /// What was held and is free again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1250)]
    released: Option<i64>,
    /// What you keep with the order, if you do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<HashMap<String, String>>)]
    metadata: Option<&'a Metadata>,
}

/// What the account had when it was found below your threshold.
#[derive(Serialize, ToSchema)]
struct BalanceLowData<'a> {
    #[schema(example = "USD")]
    currency: &'a str,
    /// What new orders may cost, in minor units, as `GET /balance` shows it.
    #[schema(example = 4200)]
    available: i64,
    /// The threshold that you have set.
    #[schema(example = 5000)]
    threshold: i64,
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    as_of: OffsetDateTime,
    /// The number of the last entry of the account at that time; 0 if it had none.
    #[schema(example = 17)]
    last_entry: i64,
}

impl<'a> From<&'a BalanceLowContent> for BalanceLowData<'a> {
    fn from(low: &'a BalanceLowContent) -> Self {
        let BalanceLowContent {
            currency,
            available,
            threshold,
            as_of,
            last_entry,
        } = low;
        Self {
            currency,
            available: *available,
            threshold: *threshold,
            as_of: *as_of,
            last_entry: *last_entry,
        }
    }
}

/// The options that have changed. Each list has at most 100 of them, and an option may be in the
/// last two lists.
#[derive(Serialize, ToSchema)]
struct OptionsChangedData<'a> {
    /// What you may order now and could not before.
    #[schema(value_type = Vec<Uuid>)]
    added: &'a [OptionId],
    /// What you may no longer order.
    #[schema(value_type = Vec<Uuid>)]
    removed: &'a [OptionId],
    /// What has another name or description.
    #[schema(value_type = Vec<Uuid>)]
    changed: &'a [OptionId],
    /// What has another price.
    #[schema(value_type = Vec<Uuid>)]
    repriced: &'a [OptionId],
    /// How many options have changed. If the lists have fewer, read `GET /options`.
    #[schema(example = 1)]
    total: usize,
}

impl<'a> From<&'a OptionsChangedContent> for OptionsChangedData<'a> {
    fn from(content: &'a OptionsChangedContent) -> Self {
        let OptionsChangedContent {
            added,
            removed,
            changed,
            repriced,
            total,
        } = content;
        Self {
            added,
            removed,
            changed,
            repriced,
            total: *total,
        }
    }
}

/// What ends, and when.
#[derive(Serialize, ToSchema)]
struct KeyExpiringData<'a> {
    /// `keys` or `webhook_secret`. It is always the old one that ends.
    #[schema(example = "keys")]
    credential: &'a str,
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    ends_at: OffsetDateTime,
}

#[derive(Serialize, ToSchema)]
struct WebhookTestData<'a> {
    /// Return it in your answer, as `{"challenge": "…"}`, to prove once that your host wants our
    /// webhooks. Only a host that a sandbox account has chosen needs that.
    #[schema(value_type = String, example = "7KQM-2XWB-9TRA")]
    challenge: Option<&'a str>,
}

/// What has happened. Fields that do not apply to the type are missing.
#[derive(Serialize, ToSchema)]
struct NoticeData<'a> {
    /// The endpoint that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Uuid>)]
    endpoint_id: Option<EndpointId>,
    /// The host of the endpoint's URL.
    #[schema(example = "shop.example.com")]
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    /// Since when the endpoint fails, or failed until it recovered.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none", with = "rfc3339::option")]
    since: Option<OffsetDateTime>,
    /// The number of attempts that failed in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    failures: Option<i32>,
    /// The outcome of the last failed attempt, such as `status_5xx` or `timeout`.
    #[schema(example = "status_5xx")]
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'a str>,
    /// Its HTTP status, if there was a response.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<i32>,
    /// The `webhook-id` of the webhook whose retries have ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook_id: Option<&'a str>,
    /// The addresses and networks from which webhooks come from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    addresses: Option<&'a [String]>,
    /// What ends: `keys` or `webhook_secret`.
    #[serde(skip_serializing_if = "Option::is_none")]
    credential: Option<&'a str>,
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none", with = "rfc3339::option")]
    ends_at: Option<OffsetDateTime>,
    /// The code of `notice.verify`.
    #[schema(example = "7KQM-2XWB-9TRA")]
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'a str>,
    /// What to do, as a sentence for people.
    advice: &'static str,
}

impl<'a> NoticeData<'a> {
    fn new(kind: NoticeKind, notice: &'a NoticeContent) -> Self {
        let NoticeContent {
            endpoint_id,
            host,
            since,
            failures,
            outcome,
            status,
            webhook_id,
            addresses,
            credential,
            ends_at,
            code,
        } = notice;
        Self {
            endpoint_id: endpoint_id.map(EndpointId::from),
            host: host.as_deref(),
            since: *since,
            failures: *failures,
            outcome: outcome.as_deref(),
            status: *status,
            webhook_id: webhook_id.as_deref(),
            addresses: addresses.as_deref(),
            credential: credential.as_deref(),
            ends_at: *ends_at,
            code: code.as_deref(),
            advice: advice(kind),
        }
    }
}

impl<'a> ExtensionData<'a> {
    fn new(
        event: &'a EventContent,
        kind: EventKind,
        (topup_id, external_order_id): (&'a str, &'a str),
        extension: &'a ExtensionContent,
    ) -> Self {
        let price = event.price.map(|price: Amount| price.minor);
        let failed = kind == EventKind::ExtensionFailed;
        Self {
            topup_id,
            external_order_id,
            external_id: &extension.external_id,
            option_id: extension.option_id,
            new_esim: extension.has_new_profile,
            error: failed.then(|| {
                extension_error(extension.reason.as_deref(), extension.message.as_deref())
            }),
            price,
            currency: event.price.map(|price| price.currency),
            charged: price.filter(|_| kind == EventKind::ExtensionReady),
            released: price.filter(|_| failed),
            metadata: event.kept.topup.as_ref(),
            order_metadata: event.kept.order.as_ref(),
        }
    }
}

impl<'a> EventBody<'a> {
    pub fn new(event: &'a EventContent) -> Self {
        let metadata = event.kept.topup.as_ref();
        let order_metadata = event.kept.order.as_ref();
        let price = event.price.map(|price: Amount| price.minor);
        let currency = event.price.map(|price| price.currency);
        let data = match &event.subject {
            Subject::TopupFailed {
                topup_id,
                external_order_id,
                option_id,
                refusal,
            } => Data::TopupFailed(TopupFailedData {
                topup_id,
                option_id: *option_id,
                external_order_id,
                error: failure(refusal.as_ref()),
                price,
                currency,
                released: price,
                metadata,
                order_metadata,
            }),
            Subject::OfTopup {
                kind,
                topup_id,
                external_order_id,
                option_id,
                usage,
            } => match usage {
                None => Data::OfTopup(TopupData {
                    topup_id,
                    option_id: *option_id,
                    external_order_id,
                    price,
                    currency,
                    refunded: price.filter(|_| *kind == EventKind::EsimReturned),
                    metadata,
                    order_metadata,
                }),
                Some(UseContent {
                    threshold,
                    read_at,
                    reading,
                }) => Data::Use(EsimUseData {
                    topup_id,
                    option_id: *option_id,
                    external_order_id,
                    threshold: *threshold,
                    installed: reading.installed,
                    data_total_bytes: reading.data_total,
                    data_used_bytes: reading.data_used,
                    ends_at: reading.ends_at,
                    as_of: reading.as_of,
                    read_at: *read_at,
                    price,
                    currency,
                    metadata,
                    order_metadata,
                }),
            },
            Subject::Extension {
                kind,
                topup_id,
                external_order_id,
                extension,
            } => Data::Extension(ExtensionData::new(
                event,
                *kind,
                (topup_id, external_order_id),
                extension,
            )),
            Subject::OrderCancelled {
                external_order_id,
                units,
            } => Data::OrderCancelled(OrderCancelledData {
                external_order_id,
                units: *units,
                price,
                currency,
                released: price,
                metadata: order_metadata,
            }),
            Subject::BalanceLow(low) => Data::BalanceLow(low.into()),
            Subject::OptionsChanged(options) => Data::OptionsChanged(options.into()),
            Subject::KeyExpiring {
                credential,
                ends_at,
            } => Data::KeyExpiring(KeyExpiringData {
                credential,
                ends_at: *ends_at,
            }),
            Subject::WebhookTest { challenge } => Data::WebhookTest(WebhookTestData {
                challenge: challenge.as_deref(),
            }),
            Subject::Notice { kind, notice } => Data::Notice(NoticeData::new(*kind, notice)),
        };
        Self {
            r#type: event.subject.name(),
            timestamp: event.created_at,
            data,
        }
    }
}

/// What the API description says of an event.
pub struct EventDescription {
    pub summary: &'static str,
    /// When it is sent.
    pub sent: Cow<'static, str>,
    /// What it says, which follows its name.
    pub meaning: &'static str,
    /// The schema of its data, with its name. Events that say the same share it.
    pub data: (Cow<'static, str>, RefOr<Schema>),
}

/// The schema of a type, with its name.
fn named<T: ToSchema>() -> (Cow<'static, str>, RefOr<Schema>) {
    (T::name(), T::schema())
}

/// What the API description says of the events of a kind. `None` if it is no event.
#[expect(clippy::too_many_lines, reason = "one entry for each kind")]
pub fn described(kind: EventKind) -> Option<EventDescription> {
    Some(match kind {
        EventKind::TopupReady => return None,
        EventKind::TopupFailed => EventDescription {
            summary: "A topup will have no eSIM",
            sent: Cow::Borrowed(
                "Sent when it is certain that a topup of an accepted order will have no eSIM, and only if you asked for it with `PUT /webhook`. In the sandbox it comes after an order of the option `partly`.",
            ),
            meaning: "a topup will never have an eSIM, although its order was answered with 201.",
            data: named::<TopupFailedData>(),
        },
        EventKind::TopupOnHold => EventDescription {
            summary: "A topup waits for a person",
            sent: Cow::Borrowed(
                "Sent once when it is not certain what became of the purchase of a topup, and only if you asked for it with `PUT /webhook`. In the sandbox it comes half an hour after an order of the option `never-ready`.",
            ),
            meaning: "we look into the purchase of a topup, which is ready, or fails, later. Tell your customer that it takes longer.",
            data: named::<TopupData>(),
        },
        EventKind::OrderCancelled => EventDescription {
            summary: "An order was cancelled",
            sent: Cow::Borrowed(
                "Sent after `DELETE /orders/{external_order_id}` has cancelled an order, and only if you asked for it with `PUT /webhook`. In the sandbox cancel an order of the option `cancellable`.",
            ),
            meaning: "nothing of an order was bought, and nothing of it will be. One program that cancels an order tells the others so.",
            data: named::<OrderCancelledData>(),
        },
        EventKind::ExtensionReady => EventDescription {
            summary: "An eSIM was extended",
            sent: Cow::Borrowed(
                "Sent when an extension of `POST /topups/{topup_id}/extensions` has ended as `added`, and only if you asked for it with `PUT /webhook`. In the sandbox extend an eSIM by the option `extension`.",
            ),
            meaning: "more data or days were added to an eSIM.",
            data: named::<ExtensionData>(),
        },
        EventKind::ExtensionFailed => EventDescription {
            summary: "An eSIM was not extended",
            sent: Cow::Borrowed(
                "Sent when it is certain that nothing is added by an extension, and only if you asked for it with `PUT /webhook`. In the sandbox extend an eSIM by the option `extension-expired`.",
            ),
            meaning: "nothing was added to an eSIM, nothing will be, and nothing is to be paid.",
            data: named::<ExtensionData>(),
        },
        EventKind::EsimInstalled => of_use(
            "An eSIM is installed",
            "at the first sign that an eSIM is installed on a device, at the latest when it has used data. Providers hear of it late, and some never before its first use",
            "the eSIM is on a device. It cannot be given back any more.",
        ),
        EventKind::EsimFirstUsed => of_use(
            "An eSIM is used for the first time",
            "when the first data of an eSIM is used",
            "the eSIM works, and at most providers its validity has begun.",
        ),
        EventKind::EsimLowData => of_use(
            "An eSIM has little data left",
            "once for each threshold, 75 and 90 % unless we agreed on others, when so much of the data of an eSIM is used. If several are passed between two looks, only the highest one is told",
            "now is the time to offer more data. `threshold` says how much is used at least, in percent.",
        ),
        EventKind::EsimUsedUp => of_use(
            "An eSIM has no data left",
            "when all data of an eSIM is used",
            "the traveller is offline unless more data is bought.",
        ),
        EventKind::EsimExpiring => of_use(
            "The plan of an eSIM ends soon",
            "three days and one day before the plan of an eSIM ends",
            "the plan ends soon, whether its data is used or not. `threshold` says how many days are left at most.",
        ),
        EventKind::EsimExpired => of_use(
            "The plan of an eSIM has ended",
            "when the plan of an eSIM has ended",
            "the eSIM has no data any more, and at most providers none can be added.",
        ),
        EventKind::EsimReturned => EventDescription {
            summary: "The provider has an eSIM back",
            sent: Cow::Borrowed(
                "Sent when a give-back has ended as `returned`, whoever has asked for it, and only if you asked for it with `PUT /webhook`. In the sandbox give back an eSIM of the option `ready`.",
            ),
            meaning: "nobody can install the eSIM any more. If we have agreed prices with you, what the topup cost is back in your balance.",
            data: named::<TopupData>(),
        },
        EventKind::BalanceLow => EventDescription {
            summary: "The balance is low",
            sent: Cow::Borrowed(
                "Sent within about a minute each time that what you have available falls below the threshold that you have set with `PUT /balance/{currency}`, and at once if it is below a new threshold; only if you asked for it with `PUT /webhook`.",
            ),
            meaning: "new orders will soon be refused with `balance_insufficient` unless you pay. It comes again after `available` has been at the threshold or above.",
            data: named::<BalanceLowData>(),
        },
        EventKind::OptionsChanged => EventDescription {
            summary: "Options have changed",
            sent: Cow::Borrowed(
                "Sent within about two minutes after the options that you may order have changed, or their prices, whether we changed them or a price has begun to be valid; and only if you asked for it with `PUT /webhook`. Changes that follow each other soon may be told together.",
            ),
            meaning: "read `GET /options`, or what the lists name of it.",
            data: named::<OptionsChangedData>(),
        },
        EventKind::KeyExpiring => EventDescription {
            summary: "Old keys or an old webhook secret end soon",
            sent: Cow::Borrowed(
                "Sent six hours before your old keys or your old webhook secret end, unless we agreed on another time, and only if you asked for it with `PUT /webhook`. In the sandbox `POST /sandbox/events` makes one, after which no key ends.",
            ),
            meaning: "the old keys or the old webhook secret of a rotation end soon. Replace them in\nyour programs before `ends_at`.",
            data: named::<KeyExpiringData>(),
        },
        EventKind::WebhookTest => EventDescription {
            summary: "A test",
            sent: Cow::Borrowed(
                "Sent once, without retries, when you ask for it with `POST /webhook/test`, and deleted if it cannot be sent within five minutes.",
            ),
            meaning: "the answer to your request for a test of the endpoint.",
            data: named::<WebhookTestData>(),
        },
    })
}

/// The description of an event about the use of an eSIM, which is sent `when`.
fn of_use(summary: &'static str, when: &'static str, meaning: &'static str) -> EventDescription {
    EventDescription {
        summary,
        sent: format!(
            "Sent once for an eSIM, {when}, and only if you asked for it with `PUT /webhook`. It follows from what the provider says, which may be hours old: see `as_of` and `read_at`. In the sandbox the option `runs-out` brings all of these events within minutes."
        )
        .into(),
        meaning,
        data: named::<EsimUseData>(),
    }
}

/// The schema of the data of notices.
pub fn notice_data() -> RefOr<Schema> {
    NoticeData::schema()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_notice_says_what_to_do() {
        for kind in NoticeKind::ALL {
            let advice = advice(*kind);
            assert!(advice.len() > 40 && advice.is_ascii(), "{kind:?}");
        }
    }

    #[test]
    fn each_kind_has_its_fields() {
        let body = |subject| {
            let event = EventContent {
                created_at: OffsetDateTime::UNIX_EPOCH,
                subject,
                kept: store::deliveries::events::Kept::default(),
                price: None,
            };
            serde_json::to_string(&EventBody::new(&event)).unwrap()
        };
        let failed = |refusal| Subject::TopupFailed {
            topup_id: "20250129123456123456789012".into(),
            external_order_id: "A-1".into(),
            option_id: "0197b0a0-0000-7000-8000-000000000001".parse().unwrap(),
            refusal,
        };
        let head = r#""timestamp":"1970-01-01T00:00:00Z","data":"#;
        let topup = concat!(
            r#"{"topup_id":"20250129123456123456789012","#,
            r#""option_id":"0197b0a0-0000-7000-8000-000000000001","external_order_id":"A-1","#
        );
        assert_eq!(
            body(failed(None)),
            format!(
                r#"{{"type":"topup.failed",{head}{topup}"error":"The eSIM will not be delivered"}}}}"#
            )
        );
        assert_eq!(
            body(failed(Some(("9001".into(), "No stock".into())))),
            format!(
                r#"{{"type":"topup.failed",{head}{topup}"error":"eSIM Request failed - Status: 9001, Message: No stock"}}}}"#
            )
        );
        let expiring = Subject::KeyExpiring {
            credential: "keys".into(),
            ends_at: OffsetDateTime::UNIX_EPOCH,
        };
        assert_eq!(
            body(expiring),
            format!(
                r#"{{"type":"key.expiring",{head}{{"credential":"keys","ends_at":"1970-01-01T00:00:00Z"}}}}"#
            )
        );
        assert_eq!(
            body(Subject::WebhookTest {
                challenge: Some("7KQM-2XWB-9TRA".into())
            }),
            format!(r#"{{"type":"webhook.test",{head}{{"challenge":"7KQM-2XWB-9TRA"}}}}"#)
        );
        let notice = NoticeContent {
            host: Some("shop.example.com".into()),
            status: Some(503),
            ..NoticeContent::default()
        };
        let blocked = body(Subject::Notice {
            kind: NoticeKind::EndpointBlocked,
            notice,
        });
        let start = format!(
            r#"{{"type":"notice.endpoint_blocked",{head}{{"host":"shop.example.com","status":503,"advice":"Its webhooks wait"#
        );
        assert!(blocked.starts_with(&start), "{blocked}");
    }
}

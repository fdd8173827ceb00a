//! What the result of an attempt is called: its class in the metrics, its record in the database,
//! and its log line. [`crate::deliver`] asks for all three after each attempt.

use domain::WebhookId;
use store::deliveries::{AttemptResult, ClaimedDelivery, DeliveryContent};
use tracing::field::{DisplayValue, display};

use crate::{
    schedule::{AfterAttempt, EndpointResponse},
    webhook::NoResponse,
};

/// What log lines and spans call a delivery: the ids that its partner sees.
pub(crate) struct LogIds<'a> {
    pub topup: Option<&'a str>,
    pub event: Option<DisplayValue<WebhookId>>,
}

impl<'a> LogIds<'a> {
    pub fn of(delivery: &'a ClaimedDelivery) -> Self {
        match &delivery.content {
            DeliveryContent::Esim(esim) => Self {
                topup: Some(esim.topup_id.as_str()),
                event: None,
            },
            DeliveryContent::Event(_) => Self {
                topup: None,
                event: Some(display(delivery.webhook_id())),
            },
        }
    }
}

/// Why an attempt got no response. The text is stored, logged and shown to operators and partners,
/// so it holds no URL and no secret.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum AttemptFailure {
    #[error(transparent)]
    NoResponse(#[from] NoResponse),
    /// Retention or an operator erased it before the delivery was attempted.
    #[error("the profile was erased, so the webhook cannot be sent any more")]
    Erased,
    #[error("the profile cannot be decrypted: {0}")]
    Profile(pg::Error),
    #[error("the webhook secret cannot be decrypted: {0}")]
    Secret(pg::Error),
    #[error("the headers of the endpoint cannot be decrypted: {0}")]
    Headers(pg::Error),
    #[error("the webhook cannot be encoded")]
    Unwritable,
    #[error("the code for the channel cannot be stored: {0}")]
    Code(pg::Error),
    /// It was verified or removed after the delivery was claimed.
    #[error("the channel is verified already or was removed, so no code is sent")]
    NoChannel,
    #[error("no mail relay is configured any more (SMTP_URL)")]
    NoRelay,
}

/// The response of an endpoint or a mail relay.
pub(crate) struct ReceiverResponse {
    pub(crate) response: EndpointResponse,
    /// The beginning of the body.
    pub(crate) beginning: Vec<u8>,
    /// Whether it returned the code of a test, which proves that the partner reads at this
    /// endpoint.
    pub(crate) proves: bool,
}

/// The result of an attempt.
pub(crate) type ExchangeResult = Result<ReceiverResponse, AttemptFailure>;

/// The class of an attempt's result, for metrics and the database.
pub(crate) fn class(exchange: &ExchangeResult) -> &'static str {
    match exchange {
        Ok(responded) => match responded.response.status {
            200..=299 => "delivered",
            300..=399 => "status_3xx",
            410 => "gone",
            429 => "too_many_requests",
            400..=499 => "status_4xx",
            500..=599 => "status_5xx",
            _ => "status_other",
        },
        Err(AttemptFailure::NoResponse(no_response)) => no_response.class(),
        Err(AttemptFailure::Erased) => "erased",
        Err(AttemptFailure::NoChannel) => "no_channel",
        Err(AttemptFailure::NoRelay) => "no_relay",
        Err(
            AttemptFailure::Profile(_)
            | AttemptFailure::Secret(_)
            | AttemptFailure::Headers(_)
            | AttemptFailure::Unwritable
            | AttemptFailure::Code(_),
        ) => "unreadable",
    }
}

/// What the record says beside the class, if the endpoint gave no readable response. Partners see
/// it, so faults of our own are not told here.
pub(crate) fn detail(exchange: &ExchangeResult) -> Option<String> {
    match exchange {
        Err(AttemptFailure::NoResponse(no_response)) => Some(no_response.to_string()),
        _ => None,
    }
}

/// The result as it is recorded. Only what went wrong at the endpoint counts towards blocking it.
/// `next_if_resent` is what it leads to if the schedule was begun anew while the attempt was in
/// flight, which only a failure asks.
pub(crate) fn result(
    exchange: &ExchangeResult,
    next: AfterAttempt,
    next_if_resent: impl FnOnce() -> AfterAttempt,
) -> AttemptResult {
    let wait = |next| match next {
        AfterAttempt::Retry(wait) => Some(wait),
        AfterAttempt::Delivered | AfterAttempt::Exhausted => None,
    };
    if next == AfterAttempt::Delivered {
        return AttemptResult::Delivered;
    }
    let error = match exchange {
        Ok(responded) => format!("responded {}", responded.response.status),
        Err(failure) => failure.to_string(),
    };
    AttemptResult::Failed {
        error,
        retry_in: wait(next),
        retry_if_resent: wait(next_if_resent()),
        endpoint_failed: matches!(exchange, Ok(_) | Err(AttemptFailure::NoResponse(_))),
    }
}

/// Writes the one log line of an attempt. A success is logged at debug level only, because there
/// is one for each unit.
pub(crate) fn log(
    delivery: &ClaimedDelivery,
    response: Option<EndpointResponse>,
    failure: Option<&AttemptFailure>,
    next: AfterAttempt,
) {
    let ClaimedDelivery {
        partner_id,
        endpoint,
        ended_attempts: attempt,
        content,
        ..
    } = delivery;
    let ids = LogIds::of(delivery);
    let further = (!endpoint.is_first()).then(|| display(endpoint.id));
    let (order_id, age) = match content {
        DeliveryContent::Esim(esim) => (Some(display(esim.order_id)), Some(esim.age)),
        DeliveryContent::Event(_) => (None, None),
    };
    let status = response.map(|response| response.status);
    let error = failure.map(display);
    macro_rules! log {
        ($level:ident, $($fields:tt)+) => {
            tracing::$level!(
                topup.id = ids.topup, event.id = &ids.event, partner.id = %partner_id,
                endpoint.id = further, order.id = order_id, attempt,
                $($fields)+
            )
        };
    }
    match (failure, next) {
        (_, AfterAttempt::Delivered) => log!(debug, status, ?age, "webhook delivered"),
        (
            Some(
                AttemptFailure::Profile(_)
                | AttemptFailure::Secret(_)
                | AttemptFailure::Headers(_)
                | AttemptFailure::Unwritable,
            ),
            _,
        ) => {
            log!(error, error, ?next, "webhook cannot be created");
        }
        (_, AfterAttempt::Retry(retry_in)) => {
            log!(
                info,
                status,
                error,
                ?retry_in,
                "webhook not delivered; retry scheduled"
            );
        }
        (_, AfterAttempt::Exhausted) => {
            log!(warn, status, error, "webhook not delivered; exhausted");
        }
    }
}

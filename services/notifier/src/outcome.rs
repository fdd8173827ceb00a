//! What the result of an attempt is called: its class in the metrics, its record in the database,
//! and its log line. [`crate::deliver`] asks for all three after each attempt.

use std::time::Duration;

use domain::WebhookId;
use store::deliveries::{AttemptResult, ClaimedDelivery, DeliveryContent};
use tracing::field::{DisplayValue, display};

use crate::{schedule::EndpointResponse, webhook::NoResponse};

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

impl AttemptFailure {
    /// Whether it is a fault of our own, about which neither the endpoint nor its partner can do
    /// anything.
    fn is_ours(&self) -> bool {
        match self {
            Self::Profile(_)
            | Self::Secret(_)
            | Self::Headers(_)
            | Self::Unwritable
            | Self::Code(_)
            | Self::NoRelay => true,
            Self::NoResponse(_) | Self::Erased | Self::NoChannel => false,
        }
    }
}

/// What came of an attempt: the response, or why there is none.
pub(crate) type ExchangeResult = Result<EndpointResponse, AttemptFailure>;

/// The class of an attempt's result, for metrics and the database.
pub(crate) fn class(exchange: &ExchangeResult) -> &'static str {
    match exchange {
        Ok(response) => match response.status {
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
        Err(_) => "unreadable",
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

/// When the next attempt is made, after one that failed.
#[derive(Clone, Copy)]
pub(crate) struct NextRetry {
    pub(crate) retry_in: Option<Duration>,
    /// The same, if somebody has the delivery sent again while the attempt is in flight, so that it
    /// was the first one of a new schedule.
    pub(crate) retry_if_resent: Option<Duration>,
}

/// The result as it is recorded. Only what went wrong at the endpoint counts towards blocking it.
pub(crate) fn result(exchange: &ExchangeResult, next: NextRetry) -> AttemptResult {
    let error = match exchange {
        Ok(response) if response.acknowledges() => return AttemptResult::Delivered,
        Ok(response) => format!("responded {}", response.status),
        Err(failure) => failure.to_string(),
    };
    AttemptResult::Failed {
        error,
        retry_in: next.retry_in,
        retry_if_resent: next.retry_if_resent,
        endpoint_failed: matches!(exchange, Ok(_) | Err(AttemptFailure::NoResponse(_))),
    }
}

/// Writes the one log line of an attempt. A success is logged at debug level only, because there
/// is one for each unit.
pub(crate) fn log(delivery: &ClaimedDelivery, exchange: &ExchangeResult, result: &AttemptResult) {
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
    let status = exchange.as_ref().ok().map(|response| response.status);
    let failure = exchange.as_ref().err();
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
    let retry_in = match result {
        AttemptResult::Delivered => return log!(debug, status, ?age, "webhook delivered"),
        AttemptResult::Failed { retry_in, .. } => retry_in,
    };
    if failure.is_some_and(AttemptFailure::is_ours) {
        log!(
            error,
            error,
            ?retry_in,
            "webhook not sent, by a fault of our own"
        );
    } else if let Some(retry_in) = retry_in {
        log!(
            info,
            status,
            error,
            ?retry_in,
            "webhook not delivered; retry scheduled"
        );
    } else {
        log!(warn, status, error, "webhook not delivered; exhausted");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use domain::{DeliveryId, EndpointKey, PartnerId};
    use pg::Error;
    use store::deliveries::{
        DeliveryTarget,
        events::{EventContent, Kept, Subject},
    };
    use tracing::{Event, Level, Metadata, Subscriber, span};

    use super::*;

    /// Notes the level of each line.
    #[derive(Clone, Default)]
    struct Levels(Arc<Mutex<Vec<Level>>>);

    impl Subscriber for Levels {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &Event<'_>) {
            self.0.lock().unwrap().push(*event.metadata().level());
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    fn delivery() -> ClaimedDelivery {
        let partner_id = PartnerId::new();
        ClaimedDelivery {
            id: DeliveryId::new(),
            partner_id,
            endpoint: EndpointKey::first(partner_id),
            leased: true,
            target: Arc::new(DeliveryTarget {
                url: None,
                host: None,
                headers: None,
                secrets: Vec::new(),
                environment: "live".into(),
            }),
            ended_attempts: 0,
            schedule_start: 0,
            content: DeliveryContent::Event(EventContent {
                created_at: runtime::clock::now(),
                subject: Subject::WebhookTest { challenge: None },
                kept: Kept::default(),
                price: None,
            }),
        }
    }

    #[test]
    fn a_fault_of_our_own_is_an_error_whether_or_not_it_is_retried() {
        let levels = Levels::default();
        let logged = |failure: AttemptFailure, retry_in: Option<Duration>| {
            let exchange = Err(failure);
            let next = NextRetry {
                retry_in,
                retry_if_resent: retry_in,
            };
            let result = result(&exchange, next);
            tracing::subscriber::with_default(levels.clone(), || {
                log(&delivery(), &exchange, &result);
            });
            levels.0.lock().unwrap().pop()
        };
        let away = || Error::from(sqlx::Error::PoolTimedOut);
        for retry_in in [None, Some(Duration::from_secs(5))] {
            for failure in [
                AttemptFailure::Profile(away()),
                AttemptFailure::Secret(away()),
                AttemptFailure::Headers(away()),
                AttemptFailure::Code(away()),
                AttemptFailure::Unwritable,
                AttemptFailure::NoRelay,
            ] {
                let told = failure.to_string();
                assert_eq!(logged(failure, retry_in), Some(Level::ERROR), "{told}");
            }
            let level = retry_in.map_or(Level::WARN, |_| Level::INFO);
            let timeout = AttemptFailure::NoResponse(NoResponse::Timeout);
            assert_eq!(logged(timeout, retry_in), Some(level));
        }
    }
}

//! The spans of one attempt: the work on a delivery and the request to its endpoint. They hold ids
//! only, never a path or a query, because those may hold a secret of the partner.

use opentelemetry_semantic_conventions::attribute::{ERROR_TYPE, HTTP_RESPONSE_STATUS_CODE};
use pipeline::{
    messaging_span,
    streams::READY,
    trace,
    worker::{TicketClass, Trigger},
};
use store::deliveries::{ClaimedDelivery, DeliveryContent};
use tracing::{Span, field::Empty, info_span};
use url::Url;

use crate::{outcome::LogIds, schedule::EndpointResponse, webhook::NoResponse};

/// The trace context that the endpoint gets if no span is recorded here: that of the order for the
/// first attempt of a topup, and otherwise a new one.
pub(super) fn passed_on(delivery: &ClaimedDelivery) -> Option<String> {
    if let DeliveryContent::Esim(esim) = &delivery.content
        && delivery.ended_attempts == 0
    {
        return esim.traceparent.clone();
    }
    let (trace, span): (u128, u64) = (rand::random(), rand::random());
    Some(format!("00-{trace:032x}-{span:016x}-00"))
}

/// The span of one request. It omits the path and the query, because they may hold a secret of the
/// partner.
pub(super) fn request_span(url: &Url, attempt: u32) -> Span {
    if !trace::is_recorded() {
        return Span::none();
    }
    info_span!(
        "POST webhook",
        otel.kind = "client", otel.status_code = Empty, error.type = Empty,
        http.request.method = "POST", http.response.status_code = Empty,
        http.request.resend_count = (attempt > 0).then_some(attempt),
        url.scheme = url.scheme(), server.address = url.host_str(),
        server.port = url.port_or_known_default(),
    )
}

/// Records the response of the endpoint, or why there is none, in the span of the request.
pub(super) fn record_response(span: &Span, response: &Result<EndpointResponse, NoResponse>) {
    match response {
        Ok(response) => {
            span.record(HTTP_RESPONSE_STATUS_CODE, response.status);
            if response.status >= 400 {
                span.record(ERROR_TYPE, tracing::field::display(response.status));
                span.record("otel.status_code", "ERROR");
            }
        }
        Err(no_response) => {
            span.record(ERROR_TYPE, no_response.class());
            span.record("otel.status_code", "ERROR");
        }
    }
}

/// The span of the work on a delivery. The first attempt belongs to the trace of the order. A later
/// one starts a trace of its own, with a link to that of the order.
pub(super) fn process_span(delivery: &ClaimedDelivery, trigger: &Trigger) -> Span {
    if !trace::is_recorded() {
        return Span::none();
    }
    let esim = match &delivery.content {
        DeliveryContent::Esim(esim) => Some(esim),
        DeliveryContent::Event(_) => None,
    };
    let ids = LogIds::of(delivery);
    let order_id = esim.map(|esim| tracing::field::display(esim.order_id));
    let span = if trigger.class == TicketClass::Fresh {
        messaging_span!(INFO, "process", "consumer", "process", READY;
            topup.id = ids.topup, event.id = ids.event, partner.id = %delivery.partner_id,
            order.id = order_id, attempt = delivery.ended_attempts,
        )
    } else {
        // No message caused this work, because the delivery was due.
        info_span!(
            parent: None,
            "due delivery",
            otel.kind = "internal", topup.id = ids.topup, event.id = ids.event, order.id = order_id,
            partner.id = %delivery.partner_id, attempt = delivery.ended_attempts,
        )
    };
    trace::follow(
        &span,
        trigger.traceparent.as_deref(),
        esim.and_then(|esim| esim.traceparent.as_deref()),
        delivery.ended_attempts == 0,
    );
    span
}

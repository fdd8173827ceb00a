//! The W3C trace context in the headers of HTTP requests and NATS messages. It is what joins the
//! spans of an order in three processes into one trace.

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

pub use crate::telemetry::is_recorded;

/// The name of the header with the context, in HTTP and in NATS.
pub const TRACEPARENT: &str = "traceparent";

/// The value of the header for a span. It is `None` if the span is not part of a trace.
pub fn context_of(span: &Span) -> Option<String> {
    let context = span.context();
    let span = context.span();
    let context = span.span_context();
    context.is_valid().then(|| {
        format!(
            "00-{}-{}-{:02x}",
            context.trace_id(),
            context.span_id(),
            context.trace_flags().to_u8()
        )
    })
}

/// Makes `span` a child of the span in a header. An invalid value is ignored, because a fault in
/// tracing must not stop an order.
pub fn set_parent(span: &Span, traceparent: Option<&str>) {
    if let Some(parent) = traceparent.and_then(parse) {
        let context = opentelemetry::Context::new().with_remote_span_context(parent);
        // This fails only if there is no tracer, which happens in tests.
        let _ = span.set_parent(context);
    }
}

/// Links `span` to the span in a header without making it the parent. Ingress treats the context of
/// a partner's request like this, because the partner can send any text.
pub fn link(span: &Span, traceparent: Option<&str>) {
    if let Some(linked) = traceparent.and_then(parse) {
        span.add_link(linked);
    }
}

/// Parses the value of the header. It returns `None` if the value is invalid.
pub fn parse(text: &str) -> Option<SpanContext> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let shaped = version == "00" && trace.len() == 32 && span.len() == 16 && flags.len() == 2;
    if !shaped || parts.next().is_some() {
        return None;
    }
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
        true,
        TraceState::default(),
    );
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_read_as_w3c_writes_them() {
        let context = parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        assert_eq!(
            context.trace_id().to_string(),
            "4bf92f3577b34da6a3ce929d0e0e4736"
        );
        assert_eq!(context.span_id().to_string(), "00f067aa0ba902b7");
        assert!(context.is_sampled() && context.is_remote());
        for bad in [
            "",
            "00-0-0-0",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}

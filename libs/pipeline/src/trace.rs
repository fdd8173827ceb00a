//! The spans of the pipeline, which make one trace from the partner's POST to its webhook. The W3C
//! trace context of the POST is stored with the order, and travels in NATS headers and HTTP
//! requests.
//!
//! If traces are not recorded, the functions that make spans return empty ones, which cost nothing.
//! docs/telemetry.md shows the tree of spans.

use opentelemetry::trace::{SpanContext, TraceContextExt};
use opentelemetry_semantic_conventions::attribute::DB_OPERATION_BATCH_SIZE;
use runtime::trace::parse;
pub use runtime::trace::{TRACEPARENT, context_of, is_recorded, link, set_parent};
use tracing::{Span, debug_span, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Connects the span of the work on a row with the span that caused this work. The cause is named
/// by the message, or else by the row.
///
/// The connection is a link. If the work `belongs` to that trace, the span also becomes a child in
/// it. A message about several orders has a trace of its own, so it is only linked, and the span
/// becomes a child in the trace of its row.
pub fn follow(span: &Span, message: Option<&str>, row: Option<&str>, belongs: bool) {
    let trace = |context: &str| parse(context).map(|context| context.trace_id());
    let of_row = |message: &&str| row.is_none_or(|row| trace(row) == trace(message));
    if belongs {
        set_parent(span, message.filter(of_row).or(row));
    }
    link(span, message.or(row));
}

/// Connects the span of a batch with the spans of its items. If all items share one trace, the span
/// of the batch becomes a child in that trace. Otherwise it starts a new trace and links to each
/// item.
pub fn gather<'a>(span: &Span, traceparents: impl Iterator<Item = Option<&'a str>>) {
    let contexts: Vec<SpanContext> = traceparents.flatten().filter_map(parse).collect();
    let mut rest = contexts.as_slice();
    if let Some((first, others)) = contexts.split_first()
        && others
            .iter()
            .all(|other| other.trace_id() == first.trace_id())
    {
        let _ =
            span.set_parent(opentelemetry::Context::new().with_remote_span_context(first.clone()));
        rest = others;
    }
    for context in rest {
        span.add_link(context.clone());
    }
}

/// Makes a new span of an operation on a stream, by the semantic conventions of OpenTelemetry:
/// `messaging_span!(level, name of the operation, kind of the span, type of the operation, stream;
/// further fields)`.
#[macro_export]
macro_rules! messaging_span {
    ($level:ident, $operation:literal, $kind:literal, $type:literal, $stream:expr; $($fields:tt)*) => {
        tracing::span!(
            parent: None,
            tracing::Level::$level,
            $operation,
            otel.name = format!("{} {}", $operation, $stream), otel.kind = $kind,
            messaging.system = "nats", messaging.destination.name = $stream,
            messaging.operation.name = $operation, messaging.operation.type = $type,
            $($fields)*
        )
    };
}

/// The span of publishing rows, linked to the trace contexts of the work that caused it. The
/// message carries the context of this span.
pub fn publish(stream: &'static str, traceparents: &[Option<String>]) -> Span {
    if !is_recorded() {
        return Span::none();
    }
    let span = messaging_span!(INFO, "publish", "producer", "send", stream;
        messaging.batch.message_count = traceparents.len());
    gather(&span, traceparents.iter().map(Option::as_deref));
    span
}

/// The span of accepting the messages of a pull, with their contexts. Its own context is not passed
/// on.
pub(crate) fn receive(
    stream: &'static str,
    consumer: &str,
    messages: usize,
    contexts: &[impl AsRef<str>],
) -> Span {
    if !is_recorded() {
        return Span::none();
    }
    let span = messaging_span!(DEBUG, "receive", "client", "receive", stream;
        messaging.consumer.group.name = consumer, messaging.batch.message_count = messages);
    gather(&span, contexts.iter().map(|context| Some(context.as_ref())));
    span
}

/// The span of a statement in PostgreSQL. Its context is not passed on.
pub fn statement(operation: &'static str, table: &'static str) -> Span {
    if !is_recorded() {
        return Span::none();
    }
    debug_span!(
        "statement",
        otel.name = format!("{operation} {table}"),
        otel.kind = "client",
        otel.status_code = Empty,
        db.system.name = "postgresql",
        db.operation.name = operation,
        db.collection.name = table,
        db.operation.batch.size = Empty,
    )
}

/// Records on a statement's span the number of rows and whether it failed.
pub fn executed(span: &Span, rows: usize, failed: bool) {
    // In the semantic conventions, a batch has at least two items.
    if rows > 1 {
        span.record(DB_OPERATION_BATCH_SIZE, rows);
    }
    if failed {
        span.record("otel.status_code", "ERROR");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use opentelemetry::trace::{SpanId, TracerProvider};
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanProcessor};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Keeps spans that have ended.
    #[derive(Clone, Debug, Default)]
    struct Kept(Arc<Mutex<Vec<SpanData>>>);

    impl SpanProcessor for Kept {
        fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &opentelemetry::Context) {}

        fn on_end(&self, span: SpanData) {
            self.0.lock().unwrap().push(span);
        }

        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }

        fn shutdown_with_timeout(&self, _: std::time::Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    /// The span of a batch whose messages came with these contexts.
    fn batch_of(traceparents: &[Option<&str>]) -> SpanData {
        let kept = Kept::default();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(kept.clone())
            .build();
        let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(spans), || {
            let contexts: Vec<String> = traceparents
                .iter()
                .flatten()
                .map(ToString::to_string)
                .collect();
            drop(receive(
                "TOPUP_JOBS",
                "provisioner",
                traceparents.len(),
                &contexts,
            ));
        });
        kept.0.lock().unwrap().pop().unwrap()
    }

    #[test]
    fn a_batch_is_of_its_messages_trace_or_linked_to_their_traces() {
        let one = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let same = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-01";
        let other = "00-5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b9-01";
        let together = batch_of(&[Some(one), Some(same), None]);
        assert_eq!(together.parent_span_id.to_string(), "00f067aa0ba902b7");
        assert_eq!(
            together.span_context.trace_id().to_string(),
            "4bf92f3577b34da6a3ce929d0e0e4736"
        );
        assert_eq!(together.links.len(), 1);

        let apart = batch_of(&[Some(one), Some(other)]);
        assert_eq!(apart.parent_span_id, SpanId::INVALID);
        let linked: Vec<String> = apart
            .links
            .iter()
            .map(|link| link.span_context.span_id().to_string())
            .collect();
        assert_eq!(linked, ["00f067aa0ba902b7", "00f067aa0ba902b9"]);
        assert_eq!(apart.name, "receive TOPUP_JOBS");

        let alone = batch_of(&[None]);
        assert_eq!(
            (alone.parent_span_id, alone.links.len()),
            (SpanId::INVALID, 0)
        );
    }
}

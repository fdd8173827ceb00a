//! Escapes what is exported as our own log lines escape it, because people read it in terminals and
//! pages, too: no hidden character of a partner or provider, and no password of a URL, reaches a
//! collector.
//!
//! Log records pass a processor before they are queued, and spans are changed when they are sent.

use std::{fmt, time::Duration};

use opentelemetry::{
    Array, InstrumentationScope, Value,
    logs::{AnyValue, LogRecord, Logger, LoggerProvider},
    trace::Status,
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    logs::{LogProcessor, SdkLogRecord, SdkLogger, SdkLoggerProvider},
    trace::SpanData,
};

use crate::terminal::{is_hidden, printable, without_passwords};

/// The text as it is exported; `None` if that is the text itself.
fn escaped(text: &str) -> Option<String> {
    let shown = without_passwords(text);
    let is_same = shown == text && !text.chars().any(is_hidden);
    (!is_same).then(|| printable(&shown))
}

/// Escapes the texts of log records.
pub(super) struct EscapedLogs {
    /// Makes the records that replace others, because the SDK lets nobody change the fields of one.
    blank: SdkLogger,
}

impl EscapedLogs {
    pub(super) fn new() -> Self {
        Self {
            blank: SdkLoggerProvider::builder().build().logger(""),
        }
    }
}

impl fmt::Debug for EscapedLogs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EscapedLogs").finish_non_exhaustive()
    }
}

/// The value as it is exported; `None` if that is the value itself.
fn escaped_value(value: &AnyValue) -> Option<AnyValue> {
    match value {
        AnyValue::String(text) => escaped(text.as_str()).map(|text| AnyValue::String(text.into())),
        // `tracing` makes no values that hold others, so these hold no text of ours.
        _ => None,
    }
}

impl LogProcessor for EscapedLogs {
    fn emit(&self, record: &mut SdkLogRecord, _: &InstrumentationScope) {
        let body = record.body().and_then(escaped_value);
        let is_escaped = record
            .attributes_iter()
            .any(|(_, value)| escaped_value(value).is_some());
        if body.is_none() && !is_escaped {
            return;
        }
        let mut new = self.blank.create_log_record();
        if let Some(name) = record.event_name() {
            new.set_event_name(name);
        }
        if let Some(target) = record.target() {
            new.set_target(target.clone());
        }
        if let Some(at) = record.timestamp() {
            new.set_timestamp(at);
        }
        if let Some(at) = record.observed_timestamp() {
            new.set_observed_timestamp(at);
        }
        if let Some(text) = record.severity_text() {
            new.set_severity_text(text);
        }
        if let Some(number) = record.severity_number() {
            new.set_severity_number(number);
        }
        if let Some(trace) = record.trace_context() {
            new.set_trace_context(trace.trace_id, trace.span_id, trace.trace_flags);
        }
        if let Some(body) = body.or_else(|| record.body().cloned()) {
            new.set_body(body);
        }
        new.add_attributes(record.attributes_iter().map(|(key, value)| {
            let value = escaped_value(value).unwrap_or_else(|| value.clone());
            (key.clone(), value)
        }));
        *record = new;
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Escapes the texts of a span.
pub(super) fn escape_span(span: &mut SpanData) {
    for attribute in &mut span.attributes {
        match &mut attribute.value {
            Value::String(text) => {
                if let Some(shown) = escaped(text.as_str()) {
                    *text = shown.into();
                }
            }
            Value::Array(Array::String(texts)) => {
                for text in texts {
                    if let Some(shown) = escaped(text.as_str()) {
                        *text = shown.into();
                    }
                }
            }
            _ => {}
        }
    }
    if let Status::Error { description } = &mut span.status
        && let Some(shown) = escaped(description)
    {
        *description = shown.into();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use opentelemetry::logs::Severity;
    use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Keeps the records as an exporter would get them.
    #[derive(Clone, Debug, Default)]
    struct Kept(Arc<Mutex<Vec<SdkLogRecord>>>);

    impl LogProcessor for Kept {
        fn emit(&self, record: &mut SdkLogRecord, _: &InstrumentationScope) {
            self.0.lock().unwrap().push(record.clone());
        }

        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }

        fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    #[test]
    fn what_is_exported_shows_no_password_and_no_hidden_character() {
        let kept = Kept::default();
        let provider = SdkLoggerProvider::builder()
            .with_log_processor(EscapedLogs::new())
            .with_log_processor(kept.clone())
            .build();
        let subscriber =
            tracing_subscriber::registry().with(OpenTelemetryTracingBridge::new(&provider));
        tracing::subscriber::with_default(subscriber, || {
            let url = "nats://me:hush@127.0.0.1:4222";
            tracing::warn!(
                server = url,
                order.id = "a\u{202e}b\u{200b}",
                count = 7,
                "cannot reach {url}\n\u{1b}[2J"
            );
            tracing::info!(server = "plain", "as it is");
        });
        let records = kept.0.lock().unwrap();
        let [odd, plain] = &records[..] else {
            panic!("{records:?}");
        };
        let text = |value: &AnyValue| match value {
            AnyValue::String(text) => text.as_str().to_owned(),
            other => format!("{other:?}"),
        };
        let attribute = |record: &SdkLogRecord, name: &str| {
            let found = record
                .attributes_iter()
                .find(|(key, _)| key.as_str() == name);
            found.map(|(_, value)| text(value))
        };
        let body = text(odd.body().unwrap());
        assert_eq!(
            body,
            "cannot reach nats://[redacted]@127.0.0.1:4222\\n\\u{1b}[2J"
        );
        assert_eq!(
            attribute(odd, "server").as_deref(),
            Some("nats://[redacted]@127.0.0.1:4222")
        );
        assert_eq!(
            attribute(odd, "order.id").as_deref(),
            Some("a\\u{202e}b\\u{200b}")
        );
        assert_eq!(attribute(odd, "count").as_deref(), Some("Int(7)"));
        assert_eq!(odd.severity_number(), Some(Severity::Warn));
        assert_eq!(odd.severity_text(), Some("WARN"));
        assert!(odd.target().is_some() && odd.observed_timestamp().is_some());
        assert_eq!(text(plain.body().unwrap()), "as it is");
        assert_eq!(attribute(plain, "server").as_deref(), Some("plain"));
    }

    #[test]
    fn a_text_that_shows_nothing_is_exported_as_it_is() {
        assert_eq!(escaped("order 1 of “Ünïtëd”, https://shop.example/"), None);
        assert_eq!(escaped("a\tb").as_deref(), Some("a\\tb"));
    }
}

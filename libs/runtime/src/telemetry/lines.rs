//! Writes log lines: one JSON object per line, or one line of text per event on a terminal.
//!
//! Operators and `tests/telemetry` rely on three properties that the formats of tracing-subscriber
//! do not have. First, a line has the ids of the spans around it as fields of its own (`order.id`),
//! and in JSON also `trace_id` and `span_id`, so that one search finds all lines of an order.
//! Second, it has no other field of a span, because spans of libraries may contain anything. Third,
//! no value can start a line of its own or move the cursor of a terminal, and none shows the
//! password of a URL.
//!
//! ```json
//! {"timestamp":"…","level":"WARN","target":"…","message":"…","order.id":"…","trace_id":"…"}
//! ```

use std::fmt;

use opentelemetry::{Context, trace::TraceContextExt};
use serde::Serialize;
use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_serde::fields::AsMap as _;
use tracing_subscriber::{
    field::RecordFields,
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

use crate::terminal::{escaped, printable, without_passwords};

/// The fields of spans that a line shows. Their values contain no white space, which [`Ids`] relies
/// on.
const IDS: [&str; 5] = [
    "partner.id",
    "order.id",
    "placement.id",
    "topup.id",
    "provider.name",
];

/// Keeps the ids among the fields of a span, as the text ` order.id=… partner.id=…`. The other
/// fields are not kept.
pub(super) struct Ids;

impl<'writer> FormatFields<'writer> for Ids {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = IdVisitor {
            writer,
            result: Ok(()),
        };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct IdVisitor<'writer> {
    writer: Writer<'writer>,
    result: fmt::Result,
}

impl Visit for IdVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if IDS.contains(&field.name()) && self.result.is_ok() {
            self.result = write!(self.writer, " {}={value:?}", field.name());
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

pub(super) enum LineFormat {
    Json,
    Text,
}

#[derive(Serialize)]
struct Line {
    timestamp: String,
    level: &'static str,
    target: Value,
    message: Value,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

impl<S: Subscriber + for<'span> LookupSpan<'span>> FormatEvent<S, Ids> for LineFormat {
    fn format_event(
        &self,
        context: &FmtContext<'_, S, Ids>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Map::new();
        // The spans are read from the innermost to the outermost, so if two have the same id, the
        // outer one wins. The event's own fields win over both.
        for span in context.event_scope().into_iter().flatten() {
            if let Some(ids) = span.extensions().get::<FormattedFields<Ids>>() {
                let ids = ids
                    .split_whitespace()
                    .filter_map(|pair| pair.split_once('='));
                fields.extend(ids.map(|(name, value)| (name.to_owned(), value.into())));
            }
        }
        if let Ok(Value::Object(own)) = serde_json::to_value(event.field_map()) {
            fields.extend(own);
        }
        // All events that come from the crate `log` have the same target. Their real target is a
        // field, and so are paths of the build machine, which nobody needs.
        let target = fields
            .remove("log.target")
            .unwrap_or_else(|| event.metadata().target().into());
        fields.retain(|name, _| !name.starts_with("log."));
        let line = Line {
            timestamp: now()?,
            level: event.metadata().level().as_str(),
            target,
            message: fields.remove("message").unwrap_or_default(),
            fields,
        };
        match self {
            Self::Json => line.json(writer),
            Self::Text => line.text(writer),
        }
    }
}

fn now() -> Result<String, fmt::Error> {
    let mut now = String::with_capacity(32);
    SystemTime.format_time(&mut Writer::new(&mut now))?;
    Ok(now)
}

impl Line {
    fn json(mut self, mut writer: Writer<'_>) -> fmt::Result {
        Context::map_current(|current| {
            let span = current.span();
            let span = span.span_context();
            if span.is_valid() {
                self.fields
                    .insert("trace_id".into(), span.trace_id().to_string().into());
                self.fields
                    .insert("span_id".into(), span.span_id().to_string().into());
            }
        });
        let line = serde_json::to_string(&self).map_err(|_| fmt::Error)?;
        writeln!(writer, "{}", escaped(&without_passwords(&line)))
    }

    fn text(&self, mut writer: Writer<'_>) -> fmt::Result {
        let shown = |value: &Value| {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            printable(&without_passwords(&text))
        };
        let Self {
            timestamp,
            level,
            target,
            message,
            fields,
        } = self;
        write!(
            writer,
            "{timestamp} {level:>5} {}: {}",
            shown(target),
            shown(message)
        )?;
        for (name, value) in fields {
            write!(writer, " {name}={}", shown(value))?;
        }
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::{fmt, layer::SubscriberExt};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(shape: LineFormat, emit: impl FnOnce()) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let provider = SdkTracerProvider::builder().build();
        let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let lines = fmt::layer()
            .fmt_fields(Ids)
            .event_format(shape)
            .with_ansi(false)
            .with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(lines).with(spans);
        tracing::subscriber::with_default(subscriber, emit);
        String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_line_of_the_crate_log_has_its_own_target() {
        let emit = || {
            tracing::info!(target: "log", { "log.target" = "rustls::check", "log.line" = 7 }, "looked");
        };
        let line: serde_json::Value = serde_json::from_str(&lines(LineFormat::Json, emit)).unwrap();
        assert_eq!(
            (&line["target"], line.get("log.line")),
            (&"rustls::check".into(), None)
        );
        let text = lines(LineFormat::Text, emit);
        assert!(text.ends_with(" rustls::check: looked\n"), "{text}");
    }

    fn emit() {
        let outer = tracing::info_span!(
            "outer",
            order.id = "one",
            http.route = "/",
            partner.id = tracing::field::Empty
        );
        let _outer = outer.enter();
        outer.record("partner.id", tracing::field::display("two"));
        let _inner = tracing::info_span!("inner", topup.id = 3).entered();
        tracing::warn!(
            order.id = "own",
            count = 7,
            text = "a\nb\x1b[2J\"",
            "it \n happened"
        );
    }

    #[test]
    fn a_json_line_has_the_ids_of_its_spans_and_of_its_trace() {
        let text = lines(LineFormat::Json, emit);
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["message"], "it \n happened");
        assert_eq!(line["text"], "a\nb\x1b[2J\"");
        assert_eq!(
            (&line["count"], &line["level"]),
            (&7.into(), &"WARN".into())
        );
        assert_eq!(line["order.id"], "own", "the event's own id counts");
        assert_eq!(
            (&line["partner.id"], &line["topup.id"]),
            (&"two".into(), &"3".into())
        );
        assert!(line.get("http.route").is_none());
        assert_eq!(line["trace_id"].as_str().unwrap().len(), 32);
        assert_eq!(line["span_id"].as_str().unwrap().len(), 16);
        assert_eq!(text.lines().count(), 1);

        let alone = lines(LineFormat::Json, || tracing::info!("alone"));
        let alone: serde_json::Value = serde_json::from_str(&alone).unwrap();
        assert!(alone.get("trace_id").is_none());
    }

    #[test]
    fn no_line_shows_a_password_or_a_hidden_character() {
        let emit = || {
            let url = "nats://me:hush@127.0.0.1:4222";
            tracing::warn!(
                server = url,
                order.id = "a\u{202e}b\u{200b}",
                "cannot reach {url}"
            );
        };
        for shape in [LineFormat::Json, LineFormat::Text] {
            let text = lines(shape, emit);
            assert!(!text.contains("hush"), "{text}");
            let hidden = text.trim_end().chars().any(crate::terminal::is_hidden);
            assert!(!hidden, "{text}");
        }
        let line: serde_json::Value = serde_json::from_str(&lines(LineFormat::Json, emit)).unwrap();
        assert_eq!(line["order.id"], "a\u{202e}b\u{200b}");
    }

    #[test]
    fn a_text_line_is_one_line() {
        let text = lines(LineFormat::Text, emit);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.contains('\x1b'), "{text}");
        assert!(
            text.contains(" WARN ") && text.contains("it \\n happened"),
            "{text}"
        );
        assert!(
            text.contains(" partner.id=two") && !text.contains("order.id=one"),
            "{text}"
        );
    }
}

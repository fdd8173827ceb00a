//! Log lines, as JSON with trace ids or as text. A line takes ids from the spans around it, and no other field.

use std::fmt::{self, Write};

use opentelemetry::{Context, trace::TraceContextExt};
use serde::Serializer;
use serde_json::Value;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::{LookupSpan, Scope},
};

use crate::terminal::printable;

/// The span fields that a line shows. Their values have no white space.
const IDS: [&str; 5] = ["partner.id", "order.id", "placement.id", "topup.id", "provider.name"];

/// The target of events from the crate `log`. Their real target is one of the fields with the prefix `log.`.
const OF_LOG: &str = "log";

/// Keeps the ids of a span: `order.id=… partner.id=…`.
pub(super) struct Ids;

impl<'writer> FormatFields<'writer> for Ids {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = IdVisitor { writer, result: Ok(()) };
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

/// The members of a line in their order. The first value of a name is kept.
#[derive(Default)]
struct Members(Vec<(String, Value)>);

impl Members {
    fn add(&mut self, name: &str, value: Value) {
        let name = match name {
            "log.target" => "target",
            "log.module_path" | "log.file" | "log.line" => return,
            name => name,
        };
        if self.0.iter().all(|(earlier, _)| earlier != name) {
            self.0.push((name.to_owned(), value));
        }
    }
}

impl Visit for Members {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field.name(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field.name(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field.name(), value.into());
    }
}

pub(super) enum Shape {
    /// One JSON object per line.
    Json,
    /// Time, level, target, message, fields, ids.
    Text,
}

impl<S: Subscriber + for<'span> LookupSpan<'span>> FormatEvent<S, Ids> for Shape {
    /// Time, level, target and fields of the event, then the ids of its spans, outermost first.
    fn format_event(&self, context: &FmtContext<'_, S, Ids>, writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let (mut members, metadata) = (Members::default(), event.metadata());
        let mut time = String::with_capacity(32);
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        members.add("timestamp", time.trim().into());
        members.add("level", metadata.level().as_str().into());
        if metadata.target() != OF_LOG {
            members.add("target", metadata.target().into());
        }
        event.record(&mut members);
        for span in context.event_scope().into_iter().flat_map(Scope::from_root) {
            if let Some(ids) = span.extensions().get::<FormattedFields<Ids>>() {
                let ids = ids.split_whitespace().filter_map(|pair| pair.split_once('='));
                ids.for_each(|(name, value)| members.add(name, value.into()));
            }
        }
        match self {
            Self::Json => json(members, writer),
            Self::Text => text(&members, *metadata.level(), writer),
        }
    }
}

fn json(mut members: Members, mut writer: Writer<'_>) -> fmt::Result {
    Context::map_current(|current| {
        let span = current.span();
        let span = span.span_context();
        if span.is_valid() {
            members.add("trace_id", span.trace_id().to_string().into());
            members.add("span_id", span.span_id().to_string().into());
        }
    });
    let mut line = Vec::with_capacity(256);
    serde_json::Serializer::new(&mut line).collect_map(members.0).map_err(|_| fmt::Error)?;
    writeln!(writer, "{}", String::from_utf8_lossy(&line))
}

fn text(members: &Members, level: Level, mut writer: Writer<'_>) -> fmt::Result {
    let (dim, plain) = if writer.has_ansi_escapes() { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
    let color = match level {
        _ if plain.is_empty() => "",
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        Level::DEBUG => "\x1b[34m",
        Level::TRACE => "\x1b[35m",
    };
    let (mut head, mut message, mut fields) = (String::new(), String::new(), String::new());
    for (name, value) in &members.0 {
        let value = value.as_str().map_or_else(|| value.to_string(), printable);
        match name.as_str() {
            "timestamp" => head = format!("{dim}{value}{plain} "),
            "level" => write!(head, "{color}{value:>5}{plain}")?,
            "target" => write!(head, " {dim}{value}:{plain}")?,
            "message" => message = format!(" {value}"),
            _ => write!(fields, " {dim}{name}={plain}{value}")?,
        }
    }
    writeln!(writer, "{head}{message}{fields}")
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

    fn lines(shape: Shape, emit: impl FnOnce()) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let provider = SdkTracerProvider::builder().build();
        let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let lines =
            fmt::layer().fmt_fields(Ids).event_format(shape).with_ansi(false).with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(lines).with(spans);
        tracing::subscriber::with_default(subscriber, emit);
        String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_line_of_the_crate_log_has_its_own_target() {
        let emit = || {
            tracing::info!(target: "log", { "log.target" = "rustls::check", "log.line" = 7 }, "looked");
        };
        let line: serde_json::Value = serde_json::from_str(&lines(Shape::Json, emit)).unwrap();
        assert_eq!((&line["target"], line.get("log.line")), (&"rustls::check".into(), None));
        let text = lines(Shape::Text, emit);
        assert!(text.ends_with(" rustls::check: looked\n"), "{text}");
    }

    fn emit() {
        let outer =
            tracing::info_span!("outer", order.id = "one", http.route = "/", partner.id = tracing::field::Empty);
        let _outer = outer.enter();
        outer.record("partner.id", tracing::field::display("two"));
        let _inner = tracing::info_span!("inner", topup.id = 3).entered();
        tracing::warn!(order.id = "own", count = 7, text = "a\nb\x1b[2J\"", "it \n happened");
    }

    #[test]
    fn a_json_line_has_the_ids_of_its_spans_and_of_its_trace() {
        let text = lines(Shape::Json, emit);
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["message"], "it \n happened");
        assert_eq!(line["text"], "a\nb\x1b[2J\"");
        assert_eq!((&line["count"], &line["level"]), (&7.into(), &"WARN".into()));
        assert_eq!(line["order.id"], "own", "the event's own id counts");
        assert_eq!((&line["partner.id"], &line["topup.id"]), (&"two".into(), &"3".into()));
        assert!(line.get("http.route").is_none());
        assert_eq!(line["trace_id"].as_str().unwrap().len(), 32);
        assert_eq!(line["span_id"].as_str().unwrap().len(), 16);
        assert_eq!(text.lines().count(), 1);

        let alone = lines(Shape::Json, || tracing::info!("alone"));
        let alone: serde_json::Value = serde_json::from_str(&alone).unwrap();
        assert!(alone.get("trace_id").is_none());
    }

    #[test]
    fn a_text_line_is_one_line() {
        let text = lines(Shape::Text, emit);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.contains('\x1b'), "{text}");
        assert!(text.contains(" WARN ") && text.contains("it \\n happened"), "{text}");
        assert!(text.contains(" partner.id=two") && !text.contains("order.id=one"), "{text}");
    }
}

//! Log lines, as JSON with trace ids or as text. A line takes ids from the spans around it, and no other field.

use std::fmt::{self, Write};

use opentelemetry::{Context, trace::TraceContextExt};
use serde::Serialize;
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
    registry::LookupSpan,
};

/// The span fields that a line shows. Their values have no white space.
const IDS: [&str; 5] = [
    "partner.id",
    "order.id",
    "placement.id",
    "topup.id",
    "provider.name",
];

/// The target of events from the crate `log`. Their real target is a field with the prefix `log.`, beside others.
const OF_LOG: &str = "log";

/// The name under which a field is shown, if it is shown.
fn shown(name: &str) -> Option<&str> {
    match name {
        "log.target" => Some("target"),
        "log.module_path" | "log.file" | "log.line" => None,
        name => Some(name),
    }
}

/// Keeps the ids of a span: `order.id=… partner.id=…`.
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

/// Calls `tell` with the ids of all spans around an event, outermost first.
fn ids_around<S>(
    context: &FmtContext<'_, S, Ids>,
    mut tell: impl FnMut(&str, &str) -> fmt::Result,
) -> fmt::Result
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let Some(scope) = context.event_scope() else {
        return Ok(());
    };
    for span in scope.from_root() {
        let extensions = span.extensions();
        let Some(fields) = extensions.get::<FormattedFields<Ids>>() else {
            continue;
        };
        for (name, value) in fields.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            tell(name, value)?;
        }
    }
    Ok(())
}

/// One JSON object per line.
pub(super) struct Json;

impl<S> FormatEvent<S, Ids> for Json
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, Ids>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::with_capacity(32);
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut object = Object {
            text: String::with_capacity(256),
            names: Vec::with_capacity(8),
        };
        object.member("timestamp", time.trim());
        object.member("level", event.metadata().level().as_str());
        let target = event.metadata().target();
        if target != OF_LOG {
            object.member("target", target);
        }
        event.record(&mut object);
        ids_around(context, |name, value| {
            object.member(name, value);
            Ok(())
        })?;
        Context::map_current(|current| {
            let span = current.span();
            let span = span.span_context();
            if span.is_valid() {
                object.member("trace_id", &span.trace_id().to_string());
                object.member("span_id", &span.span_id().to_string());
            }
        });
        writeln!(writer, "{}}}", object.text)
    }
}

/// A JSON object under construction. The first value of a name is kept.
struct Object {
    text: String,
    names: Vec<String>,
}

impl Object {
    fn member<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) {
        let Some(name) = shown(name).filter(|name| self.names.iter().all(|earlier| earlier != name)) else {
            return;
        };
        let Ok(value) = serde_json::to_string(value) else {
            return;
        };
        self.text.push(if self.names.is_empty() { '{' } else { ',' });
        self.names.push(name.to_owned());
        // A name needs no escape: it is a Rust identifier with dots, or one of our texts.
        self.text.push('"');
        self.text.push_str(name);
        self.text.push_str("\":");
        self.text.push_str(&value);
    }
}

impl Visit for Object {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.member(field.name(), &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.member(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.member(field.name(), &value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.member(field.name(), &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.member(field.name(), &value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.member(field.name(), &value);
    }
}

/// Text: time, level, target, message, fields, ids.
pub(super) struct Text;

impl<S> FormatEvent<S, Ids> for Text
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, Ids>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (dim, plain) = if writer.has_ansi_escapes() {
            ("\x1b[2m", "\x1b[0m")
        } else {
            ("", "")
        };
        let color = match *event.metadata().level() {
            _ if plain.is_empty() => "",
            Level::ERROR => "\x1b[31m",
            Level::WARN => "\x1b[33m",
            Level::INFO => "\x1b[32m",
            Level::DEBUG => "\x1b[34m",
            Level::TRACE => "\x1b[35m",
        };
        write!(writer, "{dim}")?;
        SystemTime.format_time(&mut writer)?;
        let mut pieces = Pieces::default();
        event.record(&mut pieces);
        let level = event.metadata().level();
        let target = pieces.target.as_deref().unwrap_or(event.metadata().target());
        write!(writer, "{plain} {color}{level:>5}{plain} {dim}{target}:{plain}")?;
        write!(writer, " {}{}", pieces.message, pieces.fields)?;
        ids_around(context, |name, value| {
            if pieces.names.contains(&name) {
                return Ok(());
            }
            write!(writer, " {dim}{name}={plain}{value}")
        })?;
        writeln!(writer)
    }
}

/// The message and the fields of an event.
#[derive(Default)]
struct Pieces {
    message: String,
    /// The target of an event from the crate `log`.
    target: Option<String>,
    fields: String,
    names: Vec<&'static str>,
}

impl Visit for Pieces {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing into a string doesn't fail.
        let _ = match shown(field.name()) {
            None => Ok(()),
            Some("message") => write!(OneLine(&mut self.message), "{value:?}"),
            Some(name) => {
                self.names.push(field.name());
                write!(OneLine(&mut self.fields), " {name}={value:?}")
            }
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "log.target" {
            self.target = Some(value.to_owned());
        } else {
            self.record_debug(field, &value);
        }
    }
}

/// Escapes control characters: foreign text must not start a line or move the terminal's cursor.
struct OneLine<'a>(&'a mut String);

impl Write for OneLine<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            if letter.is_control() {
                self.0.extend(letter.escape_default());
            } else {
                self.0.push(letter);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::{Layer, Registry, fmt, layer::SubscriberExt};

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

    fn lines<E>(format: E, emit: impl FnOnce()) -> String
    where
        E: FormatEvent<Registry, Ids> + Send + Sync + 'static,
    {
        let sink = Sink::default();
        let writer = sink.clone();
        let provider = SdkTracerProvider::builder().build();
        let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let lines = fmt::layer()
            .fmt_fields(Ids)
            .event_format(format)
            .with_ansi(false)
            .with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(lines.boxed()).with(spans);
        tracing::subscriber::with_default(subscriber, emit);
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_line_of_the_crate_log_has_its_own_target() {
        let emit = || {
            tracing::info!(target: "log", { "log.target" = "rustls::check", "log.line" = 7 }, "looked");
        };
        let line: serde_json::Value = serde_json::from_str(&lines(Json, emit)).unwrap();
        assert_eq!(
            (&line["target"], line.get("log.line")),
            (&"rustls::check".into(), None)
        );
        let text = lines(Text, emit);
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
        let text = lines(Json, emit);
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["message"], "it \n happened");
        assert_eq!(line["text"], "a\nb\x1b[2J\"");
        assert_eq!((&line["count"], &line["level"]), (&7.into(), &"WARN".into()));
        assert_eq!(line["order.id"], "own", "the event's own id counts");
        assert_eq!(
            (&line["partner.id"], &line["topup.id"]),
            (&"two".into(), &"3".into())
        );
        assert!(line.get("http.route").is_none());
        assert_eq!(line["trace_id"].as_str().unwrap().len(), 32);
        assert_eq!(line["span_id"].as_str().unwrap().len(), 16);
        assert_eq!(text.lines().count(), 1);

        let alone = lines(Json, || tracing::info!("alone"));
        let alone: serde_json::Value = serde_json::from_str(&alone).unwrap();
        assert!(alone.get("trace_id").is_none());
    }

    #[test]
    fn a_text_line_is_one_line() {
        let text = lines(Text, emit);
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

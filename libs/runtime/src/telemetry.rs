//! The logs, spans and metrics of a service. [`crate::main`] starts them before the service and
//! flushes them after it.
//!
//! Logs go to standard error, and metrics are shown at `/metrics`. Spans carry the W3C trace
//! context through the pipeline. If the standard `OTEL_*` variables name an endpoint, spans are
//! also recorded, and all three signals are sent there over OTLP.
//!
//! No order ever waits for a collector, whatever state it is in. Only the end of the process does,
//! for at most two seconds.

mod escaped;
mod export;
mod gate;
mod lines;
mod settings;
mod values;

use std::{
    io::IsTerminal,
    sync::{OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use opentelemetry::{global, trace::TracerProvider};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_sdk::{
    error::OTelSdkResult,
    logs::SdkLoggerProvider,
    metrics::SdkMeterProvider,
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracerProvider},
};
use tracing::{Metadata, Subscriber, subscriber::Interest};
use tracing_subscriber::{
    Layer,
    filter::{DynFilterFn, LevelFilter},
    fmt,
    layer::{self, Filter, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use self::{
    escaped::EscapedLogs,
    export::Transport,
    gate::ExportGate,
    lines::{Ids, LineFormat},
    settings::VariableReader,
};
use crate::{CommonConfig, config::LogFormat, log_filter::filter};

/// How long the end of the process waits for the flush at most.
const FLUSH: Duration = Duration::from_secs(2);

/// The providers of the three signals, which have to be flushed when the process ends.
pub struct Telemetry {
    tracer: SdkTracerProvider,
    meter: SdkMeterProvider,
    logger: Option<SdkLoggerProvider>,
}

impl Telemetry {
    /// Sends what is buffered. What the collector has not taken within two seconds is dropped.
    pub fn flush(self) {
        let Self {
            tracer,
            meter,
            logger,
        } = self;
        let flushes: [Box<dyn FnOnce() -> OTelSdkResult + Send>; 3] = [
            Box::new(move || tracer.shutdown_with_timeout(FLUSH)),
            Box::new(move || meter.shutdown_with_timeout(FLUSH)),
            Box::new(move || logger.map_or(Ok(()), |logger| logger.shutdown_with_timeout(FLUSH))),
        ];
        let (done, ended) = mpsc::channel();
        for flush in flushes {
            let done = done.clone();
            // Each flush waits for its own exporter, in a thread of its own, so that one that hangs
            // does not delay the others.
            thread::spawn(move || done.send(flush()));
        }
        drop(done);
        let deadline = Instant::now() + FLUSH;
        loop {
            match ended.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "telemetry was not flushed"),
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    return tracing::debug!("telemetry was not flushed in time");
                }
            }
        }
    }
}

/// The gate of recorded spans. [`start`] sets it, to `None` if spans are never recorded.
static RECORDED: OnceLock<Option<ExportGate>> = OnceLock::new();

/// Whether spans are recorded now. If not, callers need not create any, and pass on the trace
/// context of a request or a row unchanged. In a process that has not called [`start`] the answer
/// is yes, because that is a test with a subscriber of its own.
pub fn is_recorded() -> bool {
    match RECORDED.get() {
        None => true,
        Some(gate) => gate.as_ref().is_some_and(ExportGate::is_open),
    }
}

/// reqwest, tonic and async-nats use the cryptography provider of the process.
pub(crate) fn install_cryptography() {
    // This fails if there is one already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Refuses what a start refuses, and the values of standard variables that the SDK would ignore: it
/// would record and send other things than the operator asked for, and say nothing.
pub(crate) fn check(environment: VariableReader<'_>) -> anyhow::Result<()> {
    for signal in ["TRACES", "METRICS", "LOGS"] {
        settings::target(signal, environment)?;
    }
    values::check(environment)
}

/// Starts the logs, the spans and the metrics of this process. A second call in the same process
/// fails.
pub fn start(service: &'static str, config: &CommonConfig) -> anyhow::Result<Telemetry> {
    install_cryptography();
    global::set_text_map_propagator(TraceContextPropagator::new());

    let (telemetry, gate) = providers(service)?;
    let bridge = match &telemetry.logger {
        Some(logger) => {
            Some(OpenTelemetryTracingBridge::new(logger).with_filter(filter(&config.log)?))
        }
        None => None,
    };
    // Most spans of an order have the level DEBUG. Without an exporter they are not even created,
    // which saves their cost.
    let detail = if gate.is_some() {
        LevelFilter::DEBUG
    } else {
        LevelFilter::INFO
    };
    let spans = tracing_opentelemetry::layer()
        .with_tracer(telemetry.tracer.tracer(service))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(recorded(detail));
    let _ = RECORDED.set(gate);
    tracing_subscriber::registry()
        .with(lines(config.log_format).with_filter(filter(&config.log)?))
        .with(spans)
        .with(bridge)
        .try_init()
        .context("telemetry was started twice in one process")?;

    global::set_meter_provider(telemetry.meter.clone());
    Ok(telemetry)
}

/// Makes the providers of the three signals, and the gate of the spans if spans are exported.
fn providers(service: &'static str) -> anyhow::Result<(Telemetry, Option<ExportGate>)> {
    let environment = |name: &str| std::env::var(name).ok();
    check(&environment)?;
    let traces = settings::target("TRACES", &environment)?;
    let metrics = settings::target("METRICS", &environment)?;
    let logs = settings::target("LOGS", &environment)?;
    let resource = settings::resource(service);
    let transport = Transport::start()?;

    let gate = traces.as_ref().map(|_| ExportGate::new());
    let spans = SdkTracerProvider::builder().with_resource(resource.clone());
    let tracer = match (&traces, &gate) {
        (Some(target), Some(gate)) => spans
            .with_batch_exporter(transport.spans(target, gate.clone())?)
            .build(),
        // Spans that are not exported need ids, which are passed on, but nothing else.
        _ => spans.with_sampler(Sampler::AlwaysOff).build(),
    };

    let mut logger = None;
    if let Some(target) = &logs {
        let provider = SdkLoggerProvider::builder().with_resource(resource.clone());
        logger = Some(
            provider
                .with_log_processor(EscapedLogs::new())
                .with_batch_exporter(transport.logs(target)?)
                .build(),
        );
    }

    // Instruments are made by `opentelemetry::global::meter`. The admin endpoint shows what this
    // registry collects.
    let prometheus = opentelemetry_prometheus::exporter()
        .with_registry(prometheus::default_registry().clone())
        .scope_info_enabled(false)
        .build()
        .context("cannot set up metrics")?;
    let mut meter = SdkMeterProvider::builder()
        .with_resource(resource)
        .with_reader(prometheus);
    if let Some(target) = &metrics {
        meter = meter.with_periodic_exporter(transport.metrics(target)?);
    }
    Ok((
        Telemetry {
            tracer,
            meter: meter.build(),
            logger,
        },
        gate,
    ))
}

fn lines<S: Subscriber + for<'span> LookupSpan<'span>>(format: LogFormat) -> impl Layer<S> {
    let is_terminal = std::io::stderr().is_terminal();
    let shape = match format {
        LogFormat::Json => LineFormat::Json,
        LogFormat::Auto if !is_terminal => LineFormat::Json,
        LogFormat::Auto | LogFormat::Text => LineFormat::Text,
    };
    fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(is_terminal)
        // Otherwise a line that cannot be written is reported on standard error, too, with
        // `eprintln!`, which panics there: a log whose reader is gone must not stop a service.
        .log_internal_errors(false)
        .fmt_fields(Ids)
        .event_format(shape)
}

/// Selects the spans to record. The filter is evaluated for each span, and its decision is never
/// cached. Libraries such as sqlx probe whether a line would be logged, and a cached answer to such
/// a probe would drop the next span.
fn recorded<S: Subscriber>(detail: LevelFilter) -> impl Filter<S> {
    let is_ours = move |metadata: &Metadata<'_>| is_ours(metadata) && *metadata.level() <= detail;
    let is_wanted = move |metadata: &Metadata<'_>, _: &layer::Context<'_, S>| {
        is_ours(metadata) && (*metadata.level() <= LevelFilter::INFO || is_recorded())
    };
    DynFilterFn::new(is_wanted)
        .with_callsite_filter(move |metadata| {
            if is_ours(metadata) {
                Interest::sometimes()
            } else {
                Interest::never()
            }
        })
        .with_max_level_hint(detail)
}

/// Whether this is a span of ours, which has the field `otel.kind`. Spans of libraries are not
/// recorded, because they may contain anything, such as secrets. Events are not recorded with the
/// spans either, because they are sent as logs.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.fields().field("otel.kind").is_some()
}

//! Logs, spans and metrics. Spans always carry W3C trace context, so that one trace runs through the
//! whole pipeline whether or not somebody records it.

use std::io::IsTerminal;

use anyhow::{Context, bail};
use opentelemetry::{global, trace::TracerProvider};
use opentelemetry_sdk::{
    Resource, metrics::SdkMeterProvider, propagation::TraceContextPropagator, trace::SdkTracerProvider,
};
use tracing_subscriber::{
    EnvFilter, Layer, filter::LevelFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt,
};

use crate::{CommonConfig, config::LogFormat};

/// What has to be flushed when the process ends.
pub struct Telemetry {
    tracer: SdkTracerProvider,
    meter: SdkMeterProvider,
}

impl Telemetry {
    /// Sends what is still buffered.
    pub fn flush(self) {
        for result in [self.tracer.shutdown(), self.meter.shutdown()] {
            if let Err(error) = result {
                eprintln!("telemetry was not flushed: {error}");
            }
        }
    }
}

/// Starts logging (to standard error) and tracing for this process; once per process.
pub fn start(service: &'static str, config: &CommonConfig) -> anyhow::Result<Telemetry> {
    // A word that is no level would be taken for a target, and silence everything else.
    let is_filter = |part: &str| part.contains(['=', '[']) || part.parse::<LevelFilter>().is_ok();
    if let Some(odd) = config.log.split(',').map(str::trim).find(|part| !is_filter(part)) {
        bail!(
            "LOG: {odd:?} is neither a level nor a directive; write it like `info` or `info,ingress=debug`"
        );
    }
    // OpenTelemetry tells of its own doings in between ours; LOG may ask for that.
    let filter = EnvFilter::try_new(format!("opentelemetry=warn,{}", config.log))
        .with_context(|| format!("LOG={:?} is not a log filter such as `info`", config.log))?;
    global::set_text_map_propagator(TraceContextPropagator::new());
    let resource = Resource::builder().with_service_name(service).build();
    let provider = SdkTracerProvider::builder()
        .with_resource(resource.clone())
        .build();
    let spans = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer(service))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(LevelFilter::INFO);
    let json = match config.log_format {
        LogFormat::Auto => !std::io::stderr().is_terminal(),
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let lines = if json {
        lines.json().flatten_event(true).boxed()
    } else {
        lines.boxed()
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(spans)
        .try_init()
        .context("telemetry was started twice")?;
    // Instruments come from `opentelemetry::global::meter`; the admin endpoint shows this registry.
    let exporter = opentelemetry_prometheus::exporter()
        .with_registry(prometheus::default_registry().clone())
        .scope_info_enabled(false)
        .build()
        .context("cannot set up metrics")?;
    let meter = SdkMeterProvider::builder()
        .with_resource(resource)
        .with_reader(exporter)
        .build();
    global::set_meter_provider(meter.clone());
    crate::metrics::build_info();
    Ok(Telemetry {
        tracer: provider,
        meter,
    })
}

//! Exports telemetry over OTLP in a way that never slows or stops a service, whatever the collector
//! does.
//!
//! `telemetry::start` builds the exporters. The SDK calls them from threads of its own, behind
//! queues of a fixed length that drop what does not fit. Connections belong to a runtime with a
//! thread of its own, so a collector that hangs occupies no thread that serves orders. An outage is
//! logged once per signal when it begins and once when it ends, and not for each failed batch.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use opentelemetry::Context;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    LogExporter, MetricExporter, SpanExporter, WithHttpConfig, WithTonicConfig,
    tonic_types::transport::ClientTlsConfig,
};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    logs::LogBatch,
    metrics::{Temporality, data::ResourceMetrics, exporter::PushMetricExporter},
    trace::SpanData,
};
use tokio::runtime::Handle;

use super::{escaped::escape_span, gate::ExportGate, settings::ExportTarget};
use crate::{client, config::BadSetting, lock};

/// Builds the exporter of one signal. This is a macro because the builders of the three signals
/// have the same methods but no common trait. The exporter reads its other settings, such as
/// headers and compression, from the environment itself.
macro_rules! exporter {
    ($transport:ident, $target:ident, $Exporter:ident, $signal:literal) => {{
        let cause = Cause::default();
        let exporter = if $target.is_grpc {
            let _runtime = $transport.runtime.enter();
            $Exporter::builder()
                .with_tonic()
                .with_tls_config(ClientTlsConfig::new().with_enabled_roots())
                .build()
        } else {
            $Exporter::builder()
                .with_http()
                .with_http_client($transport.http($target, cause.clone())?)
                .build()
        };
        // The exporter's own error is not shown, because it repeats the address, which may contain
        // a key.
        let exporter = exporter.map_err(|_| {
            BadSetting::error(format!(
                "{}: the OTLP exporter cannot use this address; write it like http://collector:4318",
                $target.variable
            ))
        })?;
        Reporting {
            signal: $signal,
            endpoint: $target.shown.clone(),
            exporter,
            cause,
            gate: None,
            outage: Mutex::default(),
        }
    }};
}

/// The runtime to which the exporters' connections belong.
pub(super) struct Transport {
    runtime: Handle,
}

impl Transport {
    /// Starts the thread of the runtime, which lives as long as the process.
    pub(super) fn start() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("telemetry-io")
            .build()
            .context("cannot start the runtime of the telemetry")?;
        let handle = runtime.handle().clone();
        thread::Builder::new()
            .name("telemetry".into())
            .spawn(move || {
                // Log lines of this thread are not exported, because exporting them would cause new
                // ones.
                let _suppressed = Context::enter_telemetry_suppressed_scope();
                runtime.block_on(std::future::pending::<()>());
            })
            .context("cannot start the thread of the telemetry")?;
        Ok(Self { runtime: handle })
    }

    fn http(&self, target: &ExportTarget, cause: Cause) -> anyhow::Result<Client> {
        let http = client::direct(target.timeout)
            .build()
            .context("cannot set up the HTTP client of the telemetry")?;
        Ok(Client {
            http,
            cause,
            runtime: self.runtime.clone(),
        })
    }

    pub(super) fn spans(
        &self,
        target: &ExportTarget,
        gate: ExportGate,
    ) -> anyhow::Result<Reporting<SpanExporter>> {
        Ok(Reporting {
            gate: Some(gate),
            ..exporter!(self, target, SpanExporter, "spans")
        })
    }

    pub(super) fn metrics(
        &self,
        target: &ExportTarget,
    ) -> anyhow::Result<Reporting<MetricExporter>> {
        Ok(exporter!(self, target, MetricExporter, "metrics"))
    }

    pub(super) fn logs(&self, target: &ExportTarget) -> anyhow::Result<Reporting<LogExporter>> {
        Ok(exporter!(self, target, LogExporter, "logs"))
    }
}

/// The cause of the last failed HTTP request. It is kept here because the exporter's own error does
/// not contain it. It is `None` after a success.
type Cause = Arc<Mutex<Option<String>>>;

/// An HTTP client that sends on the runtime of the telemetry, because the threads in which the SDK
/// calls the exporters have no runtime.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    cause: Cause,
    runtime: Handle,
}

impl HttpClient for Client {
    fn send_bytes<'client, 'future>(
        &'client self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'future>>
    where
        'client: 'future,
        Self: 'future,
    {
        let http = self.http.clone();
        let cause = self.cause.clone();
        let sending = self.runtime.spawn(async move {
            let answer = http.send_bytes(request).await;
            *lock(&cause) = match &answer {
                Ok(answer) if answer.status().is_success() => None,
                Ok(answer) => Some(format!("HTTP status {}", answer.status())),
                Err(error) => Some(root(error.as_ref())),
            };
            answer
        });
        Box::pin(async move { sending.await? })
    }
}

/// The innermost cause of an error. The outer ones contain the URL, which may contain a key.
fn root(error: &(dyn Error + 'static)) -> String {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    match root.downcast_ref::<reqwest::Error>() {
        Some(_) => "the request or the response is not valid HTTP".into(),
        None => root.to_string(),
    }
}

/// Wraps an exporter and logs the beginning and the end of an outage of its collector.
pub(super) struct Reporting<E> {
    signal: &'static str,
    /// The endpoint for log lines, without its query, which may contain a key.
    endpoint: String,
    exporter: E,
    cause: Cause,
    /// The gate of spans, which is closed during an outage. Other signals have none.
    gate: Option<ExportGate>,
    outage: Mutex<Option<Outage>>,
}

struct Outage {
    began: Instant,
    dropped: usize,
}

impl<E> Reporting<E> {
    fn report(&self, result: &OTelSdkResult, size: usize) {
        let signal = self.signal;
        let endpoint = self.endpoint.as_str();
        let mut outage = lock(&self.outage);
        match (result, outage.as_mut()) {
            (Ok(()), None) | (Err(OTelSdkError::AlreadyShutdown), _) => {}
            (Ok(()), Some(Outage { began, dropped })) => {
                let seconds = began.elapsed().as_secs();
                let dropped = *dropped;
                *outage = None;
                tracing::info!(
                    signal,
                    endpoint,
                    dropped,
                    seconds,
                    "the OTLP collector accepts telemetry again"
                );
            }
            (Err(error), None) => {
                *outage = Some(Outage {
                    began: Instant::now(),
                    dropped: size,
                });
                let cause = self.cause_of(error);
                tracing::warn!(
                    signal,
                    endpoint,
                    cause,
                    "the OTLP collector does not accept telemetry, so it is dropped until the collector recovers; \
                     orders are not affected"
                );
            }
            (Err(_), Some(outage)) => outage.dropped += size,
        }
    }

    fn cause_of(&self, error: &OTelSdkError) -> String {
        match (lock(&self.cause).take(), error) {
            (Some(cause), _) => cause,
            (None, OTelSdkError::InternalFailure(error)) => match error.split_once("gRPC code: ") {
                Some((_, code)) => format!("gRPC status {code}"),
                None => error.clone(),
            },
            (None, error) => error.to_string(),
        }
    }
}

impl<E> fmt::Debug for Reporting<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporting")
            .field("signal", &self.signal)
            .finish_non_exhaustive()
    }
}

impl opentelemetry_sdk::trace::SpanExporter for Reporting<SpanExporter> {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        batch.iter_mut().for_each(escape_span);
        if let Some(gate) = &self.gate {
            gate.export_begins();
        }
        let size = batch.len();
        let result = self.exporter.export(batch).await;
        if let Some(gate) = &self.gate {
            gate.export_ended(result.is_ok());
        }
        self.report(&result, size);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl opentelemetry_sdk::logs::LogExporter for Reporting<LogExporter> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let size = batch.iter().count();
        let result = self.exporter.export(batch).await;
        self.report(&result, size);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl PushMetricExporter for Reporting<MetricExporter> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let result = self.exporter.export(metrics).await;
        self.report(&result, 1);
        result
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}

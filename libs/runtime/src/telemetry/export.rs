//! Sending over OTLP, so that nobody notices whether somebody listens: queues are bounded and drop
//! what doesn't fit, exporters have threads of their own, and what fails is told rarely.

use std::{
    fmt,
    pin::Pin,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use opentelemetry::Context;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    LogExporter, MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig,
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

use super::{
    gate::Gate,
    settings::{Protocol, Target},
};

/// How often it is told that nothing arrives.
const TOLD_EVERY: Duration = Duration::from_mins(5);
/// The most of a collector's answer that is read.
const MAX_ANSWER: usize = 64 * 1024;

/// The exporter of one signal. The builders have the same methods and no trait in common.
macro_rules! exporter {
    ($transport:ident, $target:ident, $Exporter:ident) => {
        match $target.protocol {
            Protocol::Http => $Exporter::builder()
                .with_http()
                .with_http_client($transport.http($target)?)
                .with_endpoint(&$target.endpoint)
                .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
                .with_timeout($target.timeout)
                .build()?,
            Protocol::Grpc => {
                let _runtime = $transport.runtime.enter();
                $Exporter::builder()
                    .with_tonic()
                    .with_tls_config(ClientTlsConfig::new().with_enabled_roots())
                    .with_endpoint(&$target.endpoint)
                    .with_timeout($target.timeout)
                    .build()?
            }
        }
    };
}

/// What exporters send with: a runtime that nothing else runs on.
pub(super) struct Transport {
    runtime: Handle,
}

impl Transport {
    /// Starts the runtime's thread, which lives as long as the process.
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
                // What sending logs is not sent again.
                let _suppressed = Context::enter_telemetry_suppressed_scope();
                runtime.block_on(std::future::pending::<()>());
            })
            .context("cannot start the thread of the telemetry")?;
        Ok(Self { runtime: handle })
    }

    fn http(&self, target: &Target) -> anyhow::Result<Client> {
        let http = reqwest::Client::builder()
            .timeout(target.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .context("cannot set up the HTTP client of the telemetry")?;
        Ok(Client {
            http,
            runtime: self.runtime.clone(),
        })
    }

    pub(super) fn spans(&self, target: &Target, gate: Gate) -> anyhow::Result<Told<SpanExporter>> {
        let exporter = exporter!(self, target, SpanExporter);
        Ok(Told {
            gate: Some(gate),
            ..Told::new("spans", exporter)
        })
    }

    pub(super) fn metrics(&self, target: &Target) -> anyhow::Result<Told<MetricExporter>> {
        let exporter = exporter!(self, target, MetricExporter);
        Ok(Told::new("metrics", exporter))
    }

    pub(super) fn logs(&self, target: &Target) -> anyhow::Result<Told<LogExporter>> {
        let exporter = exporter!(self, target, LogExporter);
        Ok(Told::new("logs", exporter))
    }
}

/// The workspace's HTTP client, on the telemetry's runtime: exporters run on threads that have none.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
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
        let sending = self.runtime.spawn(async move {
            let mut answer = http.execute(request.try_into()?).await?;
            let mut body = Vec::new();
            while let Some(piece) = answer.chunk().await? {
                let room = MAX_ANSWER.saturating_sub(body.len());
                body.extend_from_slice(&piece[..piece.len().min(room)]);
                if piece.len() > room {
                    break;
                }
            }
            let mut response = Response::builder().status(answer.status());
            if let Some(headers) = response.headers_mut() {
                *headers = std::mem::take(answer.headers_mut());
            }
            Ok::<_, HttpError>(response.body(Bytes::from(body))?)
        });
        Box::pin(async move { sending.await? })
    }
}

/// An exporter whose failures are told at once and then rarely, and that it works again.
pub(super) struct Told<E> {
    signal: &'static str,
    exporter: E,
    /// Closed while nothing arrives.
    gate: Option<Gate>,
    failing: Mutex<Option<Failing>>,
}

struct Failing {
    told: Instant,
    untold: u64,
}

impl<E> Told<E> {
    fn new(signal: &'static str, exporter: E) -> Self {
        Self {
            signal,
            exporter,
            gate: None,
            failing: Mutex::default(),
        }
    }

    fn tell(&self, result: &OTelSdkResult) {
        let signal = self.signal;
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        match (result, failing.as_mut()) {
            (Ok(()), None) | (Err(OTelSdkError::AlreadyShutdown), _) => {}
            (Ok(()), Some(_)) => {
                *failing = None;
                tracing::info!(signal, "the OTLP collector takes telemetry again");
            }
            (Err(error), None) => {
                let told = Instant::now();
                *failing = Some(Failing { told, untold: 0 });
                tracing::warn!(signal, %error, "the OTLP collector does not take telemetry; nothing waits for it");
            }
            (Err(error), Some(since)) => {
                since.untold += 1;
                if since.told.elapsed() >= TOLD_EVERY {
                    let batches = since.untold;
                    tracing::warn!(signal, %error, batches, "the OTLP collector still does not take telemetry");
                    *since = Failing {
                        told: Instant::now(),
                        untold: 0,
                    };
                }
            }
        }
    }
}

impl<E> fmt::Debug for Told<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told")
            .field("signal", &self.signal)
            .finish_non_exhaustive()
    }
}

impl opentelemetry_sdk::trace::SpanExporter for Told<SpanExporter> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        if let Some(gate) = &self.gate {
            gate.sending();
        }
        let result = self.exporter.export(batch).await;
        if let Some(gate) = &self.gate {
            gate.sent(result.is_ok());
        }
        self.tell(&result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl opentelemetry_sdk::logs::LogExporter for Told<LogExporter> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        self.tell(&result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl PushMetricExporter for Told<MetricExporter> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let result = self.exporter.export(metrics).await;
        self.tell(&result);
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

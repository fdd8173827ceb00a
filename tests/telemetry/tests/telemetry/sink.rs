//! A collector: accepts OTLP over HTTP and over gRPC on one port, and keeps every message, raw and
//! parsed.

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response};
use opentelemetry_proto::tonic::collector::{
    logs::v1::ExportLogsServiceRequest, metrics::v1::ExportMetricsServiceRequest,
    trace::v1::ExportTraceServiceRequest,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{span::SpanKind, status::StatusCode as SpanStatus};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use testkit::stack::{Builder, Stage};
use testkit::{http, wait};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub type Attributes = BTreeMap<String, String>;

#[derive(Clone, Debug)]
pub struct Span {
    pub service: String,
    pub name: String,
    pub kind: SpanKind,
    pub trace: String,
    pub id: String,
    /// Empty of a root.
    pub parent: String,
    pub attributes: Attributes,
    /// Trace and span.
    pub links: Vec<(String, String)>,
    pub failed: bool,
    pub events: usize,
}

#[derive(Clone, Debug)]
pub struct Log {
    pub service: String,
    pub body: String,
    pub trace: String,
    pub span: String,
}

#[derive(Clone, Debug, Default)]
pub struct Book {
    pub spans: Vec<Span>,
    pub logs: Vec<Log>,
    /// Service and name of each metric.
    pub metrics: BTreeSet<(String, String)>,
    /// The resource of each service.
    pub resources: BTreeMap<String, Attributes>,
    /// Service and protocol.
    pub protocols: BTreeSet<(String, &'static str)>,
    pub raw: Vec<Bytes>,
    pub authorization: BTreeSet<String>,
}

/// Serves on 127.0.0.1 until it is dropped.
pub struct Sink {
    pub url: String,
    book: Arc<Mutex<Book>>,
    server: JoinHandle<()>,
}

type Body = http_body_util::combinators::BoxBody<Bytes, Infallible>;

impl Sink {
    pub async fn start() -> Result<Self> {
        Self::start_on(0).await
    }

    /// Starts on a free port.
    pub async fn start_on(port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let book = Arc::new(Mutex::new(Book::default()));
        let shared = Arc::clone(&book);
        let server = http::serve(listener, move |request| {
            let answer = take(&shared, &request);
            async { answer }
        });
        Ok(Self { url, book, server })
    }

    pub fn book(&self) -> Book {
        lock(&self.book).clone()
    }

    /// Waits until the messages satisfy `condition`; returns all of them.
    pub async fn wait_until(&self, what: &str, condition: impl Fn(&Book) -> bool) -> Result<Book> {
        let look = async || Ok(condition(&lock(&self.book)).then_some(()));
        let waited = wait::until(Duration::from_secs(20), what, look).await;
        waited.inspect_err(|_| {
            for span in self.book().spans {
                eprintln!(
                    "{} {} {} of {}",
                    span.trace, span.service, span.name, span.parent
                );
            }
        })?;
        Ok(self.book())
    }

    /// Settings with which a service sends all telemetry here, soon.
    pub fn hears(&self, builder: Builder) -> Builder {
        Stage::ALL.into_iter().fold(builder, |builder, stage| {
            builder
                .env(stage, "OTEL_EXPORTER_OTLP_ENDPOINT", &self.url)
                .env(stage, "OTEL_BSP_SCHEDULE_DELAY", "100")
                .env(stage, "OTEL_BLRP_SCHEDULE_DELAY", "100")
                .env(stage, "OTEL_METRIC_EXPORT_INTERVAL", "500")
        })
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(book: &Mutex<Book>, request: &Request<Bytes>) -> Result<Response<Body>> {
    let header = |name: &str| {
        request
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let is_grpc = header("content-type").is_some_and(|kind| kind.starts_with("application/grpc"));
    let path = request.uri().path();
    let body = request.body();
    // A message of gRPC has a byte that says whether it is compressed, and four of its length.
    let message = if is_grpc {
        body.slice(5.min(body.len())..)
    } else {
        body.clone()
    };
    let protocol = if is_grpc { "grpc" } else { "http/protobuf" };
    let mut book = lock(book);
    book.raw.push(message.clone());
    book.authorization
        .extend(header("authorization").map(str::to_owned));
    if let Err(error) = book.read(path, protocol, message) {
        eprintln!("the sink cannot read {path}: {error:#}");
        return Ok(Response::builder()
            .status(400)
            .body(Full::default().boxed())?);
    }
    if !is_grpc {
        let response = Response::builder().header("content-type", "application/x-protobuf");
        return Ok(response.body(Full::default().boxed())?);
    }
    let status = (
        HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("0"),
    );
    let trailers = async { Some(Ok(HeaderMap::from_iter([status]))) };
    let empty = Full::new(Bytes::from_static(&[0; 5])).with_trailers(trailers);
    Ok(Response::builder()
        .header("content-type", "application/grpc")
        .body(empty.boxed())?)
}

impl Book {
    fn read(&mut self, path: &str, protocol: &'static str, message: Bytes) -> Result<()> {
        match path {
            "/v1/traces" | "/opentelemetry.proto.collector.trace.v1.TraceService/Export" => {
                for group in ExportTraceServiceRequest::decode(message)?.resource_spans {
                    named_by_convention(&group.schema_url)?;
                    let service = self.service(group.resource, protocol)?;
                    for span in group.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                        let links = span.links.iter();
                        self.spans.push(Span {
                            service: service.clone(),
                            kind: span.kind(),
                            name: span.name,
                            trace: hex::encode(span.trace_id),
                            id: hex::encode(span.span_id),
                            parent: hex::encode(span.parent_span_id),
                            links: links
                                .map(|link| {
                                    (hex::encode(&link.trace_id), hex::encode(&link.span_id))
                                })
                                .collect(),
                            attributes: attributes(span.attributes),
                            failed: span
                                .status
                                .is_some_and(|status| status.code() == SpanStatus::Error),
                            events: span.events.len(),
                        });
                    }
                }
            }
            "/v1/logs" | "/opentelemetry.proto.collector.logs.v1.LogsService/Export" => {
                for group in ExportLogsServiceRequest::decode(message)?.resource_logs {
                    named_by_convention(&group.schema_url)?;
                    let service = self.service(group.resource, protocol)?;
                    for log in group
                        .scope_logs
                        .into_iter()
                        .flat_map(|scope| scope.log_records)
                    {
                        self.logs.push(Log {
                            service: service.clone(),
                            body: log.body.map(text).unwrap_or_default(),
                            trace: hex::encode(log.trace_id),
                            span: hex::encode(log.span_id),
                        });
                    }
                }
            }
            "/v1/metrics" | "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export" => {
                for group in ExportMetricsServiceRequest::decode(message)?.resource_metrics {
                    named_by_convention(&group.schema_url)?;
                    let service = self.service(group.resource, protocol)?;
                    let metrics = group
                        .scope_metrics
                        .into_iter()
                        .flat_map(|scope| scope.metrics);
                    self.metrics
                        .extend(metrics.map(|metric| (service.clone(), metric.name)));
                }
            }
            other => anyhow::bail!("nothing is sent to {other}"),
        }
        Ok(())
    }

    fn service(&mut self, resource: Option<Resource>, protocol: &'static str) -> Result<String> {
        let resource = attributes(resource.context("no resource")?.attributes);
        let service = resource
            .get("service.name")
            .context("no service.name")?
            .clone();
        self.resources.insert(service.clone(), resource);
        self.protocols.insert((service.clone(), protocol));
        Ok(service)
    }
}

/// Whether the schema is one of OpenTelemetry's, which says to what a backend may translate the
/// names.
fn named_by_convention(schema_url: &str) -> Result<()> {
    let is_one = schema_url.starts_with("https://opentelemetry.io/schemas/1.");
    anyhow::ensure!(is_one, "the schema is {schema_url:?}");
    Ok(())
}

fn attributes(pairs: Vec<KeyValue>) -> Attributes {
    pairs
        .into_iter()
        .map(|pair| (pair.key, pair.value.map(text).unwrap_or_default()))
        .collect()
}

fn text(value: AnyValue) -> String {
    match value.value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(truth)) => truth.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

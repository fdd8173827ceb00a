//! The supported `OTEL_*` variables. An invalid one stops the start, or it would be noticed too late.

use std::{collections::BTreeMap, ffi::OsString, fmt::Display, str::FromStr, time::Duration};

use axum::http::{HeaderName, HeaderValue, Uri};
use opentelemetry::KeyValue;
use opentelemetry_sdk::trace::Sampler;
use reqwest::Url;

use crate::{config::BadSetting, version};

type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The settings. The SDK reads the variables of queues and intervals itself; they are only checked here.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) resource: Vec<KeyValue>,
    pub(super) traces: Option<(Target, Sampler)>,
    pub(super) metrics: Option<Target>,
    pub(super) logs: Option<Target>,
}

/// The target of one signal. Its headers are checked here; the exporter reads them itself.
#[derive(Debug, Default)]
pub(super) struct Target {
    /// The whole URL over HTTP, the server over gRPC.
    pub(super) endpoint: String,
    pub(super) protocol: Protocol,
    pub(super) timeout: Duration,
}

impl Target {
    /// The endpoint for the log, without its query, which may hold a key.
    pub(super) fn shown(&self) -> String {
        self.endpoint.split('?').next().unwrap_or_default().to_owned()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Protocol {
    Grpc,
    #[default]
    Http,
}

/// Bounds the memory of the queue.
const LONGEST_QUEUE: u32 = 1_000_000;

impl Settings {
    /// Reads and checks all variables. `service` is the default of the service name.
    pub(super) fn read(service: &'static str, environment: Environment<'_>) -> anyhow::Result<Self> {
        let read = Reader(environment);
        let resource = read.resource(service)?;
        for limit in ["ATTRIBUTE_COUNT", "EVENT_COUNT", "LINK_COUNT"] {
            read.number::<u32>(&format!("OTEL_SPAN_{limit}_LIMIT"))?;
        }
        let disabled = read.bool("OTEL_SDK_DISABLED")?;
        let traces = read.target("TRACES")?;
        let metrics = read.target("METRICS")?;
        let logs = read.target("LOGS")?;
        // Checks all variables, also those without effect.
        let (traces, sampler) = (read.within("OTEL_BSP_EXPORT_TIMEOUT", traces)?, read.sampler()?);
        let logs = read.within("OTEL_BLRP_EXPORT_TIMEOUT", logs)?;
        let metrics = read.within("OTEL_METRIC_EXPORT_TIMEOUT", metrics)?;
        read.check_queue("BSP")?;
        read.check_queue("BLRP")?;
        read.positive("OTEL_METRIC_EXPORT_INTERVAL", 1)?;
        let wanted = |target: &Target| !disabled && !target.endpoint.is_empty();
        Ok(Self {
            resource,
            traces: Some(traces).filter(wanted).map(|target| (target, sampler)),
            metrics: Some(metrics).filter(wanted),
            logs: Some(logs).filter(wanted),
        })
    }
}

struct Reader<'a>(Environment<'a>);

fn bad(name: &str, reason: impl Display) -> anyhow::Error {
    BadSetting::error(format!("{name}: {reason}"))
}

impl Reader<'_> {
    /// The value of a variable as it is; a blank one counts as not set.
    fn raw(&self, name: &str) -> anyhow::Result<Option<String>> {
        let text = (self.0)(name).map(OsString::into_string).transpose();
        let text = text.map_err(|_| bad(name, "is not a text"))?;
        Ok(text.filter(|text| !text.trim().is_empty()))
    }

    /// The value of a variable without blanks around it.
    fn text(&self, name: &str) -> anyhow::Result<Option<String>> {
        Ok(self.raw(name)?.map(|text| text.trim().to_owned()))
    }

    /// The variable of a signal, else the one of all signals, with its name.
    fn of(&self, signal: &str, what: &str) -> anyhow::Result<Option<(String, String)>> {
        for name in [format!("OTEL_EXPORTER_OTLP_{signal}_{what}"), format!("OTEL_EXPORTER_OTLP_{what}")] {
            if let Some(value) = self.text(&name)? {
                return Ok(Some((name, value)));
            }
        }
        Ok(None)
    }

    fn bool(&self, name: &str) -> anyhow::Result<bool> {
        match self.text(name)?.map(|text| text.to_ascii_lowercase()).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(bad(name, format!("{other:?} is neither true nor false"))),
        }
    }

    /// A number. The SDK ignores one with blanks around it, so it is refused.
    fn number<T: FromStr>(&self, name: &str) -> anyhow::Result<Option<T>> {
        self.raw(name)?
            .map(|text| text.parse().map_err(|_| bad(name, format!("{text:?} is not a whole number, or too large"))))
            .transpose()
    }

    fn positive(&self, name: &str, default: u32) -> anyhow::Result<u32> {
        match self.number(name)? {
            None => Ok(default),
            Some(0) => Err(bad(name, "must be more than 0")),
            Some(number) => Ok(number),
        }
    }

    fn milliseconds(&self, name: &str, default: u32) -> anyhow::Result<Duration> {
        Ok(Duration::from_millis(self.positive(name, default)?.into()))
    }

    fn check_queue(&self, prefix: &str) -> anyhow::Result<()> {
        let size_name = format!("OTEL_{prefix}_MAX_QUEUE_SIZE");
        let batch_name = format!("OTEL_{prefix}_MAX_EXPORT_BATCH_SIZE");
        let size = self.positive(&size_name, 2048)?;
        if size > LONGEST_QUEUE {
            return Err(bad(&size_name, format!("must be at most {LONGEST_QUEUE}")));
        }
        if self.positive(&batch_name, 1)? > size {
            return Err(bad(&batch_name, format!("must be at most {size_name} ({size})")));
        }
        self.positive(&format!("OTEL_{prefix}_SCHEDULE_DELAY"), 1)?;
        Ok(())
    }

    /// Limits the timeout of a target to the timeout of a whole export.
    fn within(&self, name: &str, mut target: Target) -> anyhow::Result<Target> {
        target.timeout = target.timeout.min(self.milliseconds(name, 30_000)?);
        Ok(target)
    }

    fn sampler(&self) -> anyhow::Result<Sampler> {
        const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
        const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
        const KNOWN: &str = "always_on, always_off, traceidratio, parentbased_always_on, \
                             parentbased_always_off, parentbased_traceidratio";
        let ratio = match self.text(ARGUMENT)? {
            None => 1.0,
            Some(text) => text
                .parse()
                .ok()
                .filter(|ratio| (0.0..=1.0).contains(ratio))
                .ok_or_else(|| bad(ARGUMENT, format!("{text:?} is not a number from 0 to 1")))?,
        };
        let name = self.text(SAMPLER)?.unwrap_or_else(|| "parentbased_always_on".into());
        let root = name.strip_prefix("parentbased_");
        let sampler = match root.unwrap_or(&name) {
            "always_on" => Sampler::AlwaysOn,
            "always_off" => Sampler::AlwaysOff,
            "traceidratio" => Sampler::TraceIdRatioBased(ratio),
            _ => return Err(bad(SAMPLER, format!("{name:?} is none of {KNOWN}"))),
        };
        Ok(if root.is_some() { Sampler::ParentBased(Box::new(sampler)) } else { sampler })
    }

    /// The target of a signal, which has this name in the variables; its endpoint is empty if it isn't exported.
    fn target(&self, signal: &str) -> anyhow::Result<Target> {
        let exporter = format!("OTEL_{signal}_EXPORTER");
        let exporter_is_set = match self.text(&exporter)?.as_deref() {
            None => false,
            Some("otlp") => true,
            Some("none") => return Ok(Target::default()),
            Some(other) => return Err(bad(&exporter, format!("{other:?} is neither otlp nor none"))),
        };
        let protocol = match self.of(signal, "PROTOCOL")? {
            None => Protocol::Http,
            Some((_, value)) if value == "http/protobuf" => Protocol::Http,
            Some((_, value)) if value == "grpc" => Protocol::Grpc,
            Some((name, other)) => {
                return Err(bad(&name, format!("{other:?} is neither http/protobuf nor grpc")));
            }
        };
        if let Some((name, value)) = self.of(signal, "COMPRESSION")?
            && !matches!(value.as_str(), "none" | "gzip")
        {
            return Err(bad(&name, format!("{value:?} is neither gzip nor none")));
        }
        // The exporter doesn't support them.
        for what in ["CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"] {
            if let Some((name, _)) = self.of(signal, what)? {
                return Err(bad(&name, "is not supported; set SSL_CERT_FILE or use the system's certificates"));
            }
        }
        if let Some((name, headers)) = self.of(signal, "HEADERS")? {
            check_headers(&name, &headers)?;
        }
        let timeout = match self.of(signal, "TIMEOUT")? {
            None => Duration::from_secs(10),
            Some((name, _)) => self.milliseconds(&name, 0)?,
        };
        let of_signal = format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT");
        let of_all = "OTEL_EXPORTER_OTLP_ENDPOINT";
        let endpoint = match (self.text(&of_signal)?, self.text(of_all)?, protocol) {
            (Some(own), _, _) => check_endpoint(&of_signal, own, protocol == Protocol::Grpc)?,
            (None, Some(base), Protocol::Http) => http_endpoint(&check_endpoint(of_all, base, true)?, signal),
            (None, Some(base), Protocol::Grpc) => check_endpoint(of_all, base, true)?,
            (None, None, _) if !exporter_is_set => return Ok(Target::default()),
            (None, None, Protocol::Http) => http_endpoint("http://localhost:4318", signal),
            (None, None, Protocol::Grpc) => "http://localhost:4317".into(),
        };
        Ok(Target { endpoint, protocol, timeout })
    }

    fn resource(&self, service: &'static str) -> anyhow::Result<Vec<KeyValue>> {
        const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
        let mut attributes = BTreeMap::from(
            [
                ("service.name", service),
                ("service.namespace", "esim"),
                ("service.version", version::VERSION),
                ("service.instance.id", &uuid::Uuid::now_v7().to_string()),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        if let Some(commit) = version::COMMIT {
            attributes.insert("vcs.ref.head.revision".into(), commit.into());
        }
        for pair in self.text(ATTRIBUTES)?.unwrap_or_default().split(',') {
            if pair.trim().is_empty() {
                continue;
            }
            let (key, value) = pair
                .split_once('=')
                .map(|(key, value)| (key.trim(), value.trim()))
                .filter(|(key, _)| !key.is_empty())
                .ok_or_else(|| bad(ATTRIBUTES, format!("{pair:?} is not of the form key=value")))?;
            let value = percent_decoded(value)
                .ok_or_else(|| bad(ATTRIBUTES, format!("the value of {key:?} is not percent-encoded")))?;
            attributes.insert(key.to_owned(), value);
        }
        if let Some(name) = self.text("OTEL_SERVICE_NAME")? {
            attributes.insert("service.name".into(), name);
        }
        Ok(attributes.into_iter().map(|(key, value)| KeyValue::new(key, value)).collect())
    }
}

fn http_endpoint(base: &str, signal: &str) -> String {
    format!("{}/v1/{}", base.trim_end_matches('/'), signal.to_ascii_lowercase())
}

/// An error without the value, which may hold a password.
fn check_endpoint(name: &str, endpoint: String, path_is_added: bool) -> anyhow::Result<String> {
    match endpoint_trouble(&endpoint, path_is_added) {
        None => Ok(endpoint),
        Some(trouble) => Err(bad(name, format!("{trouble}; write it like http://collector:4318"))),
    }
}

/// Why an exporter can't use the endpoint; `None` if it can.
fn endpoint_trouble(endpoint: &str, path_is_added: bool) -> Option<String> {
    let not_http = || Some("is not an http or https address".to_owned());
    let Some((_, rest)) = endpoint.split_once("://") else {
        return not_http();
    };
    let url = match endpoint.parse::<Url>() {
        Ok(url) if matches!(url.scheme(), "http" | "https") => url,
        Ok(_) => return not_http(),
        Err(error) => return Some(format!("is not an address: {error}")),
    };
    // `Url` repairs texts that the exporters' `Uri` refuses.
    if endpoint.parse::<Uri>().is_err() || rest.starts_with('/') {
        return Some("is not an address".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        let headers = "OTEL_EXPORTER_OTLP_HEADERS";
        return Some(format!("has a user or a password, which would not be sent: use {headers}"));
    }
    let server = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if server.ends_with(':') || url.port() == Some(0) {
        return Some("has no usable port, which is from 1 to 65535".into());
    }
    if url.fragment().is_some() || (path_is_added && url.query().is_some()) {
        return Some("has a `?` or `#`, which is not allowed".into());
    }
    None
}

/// Checks headers. Errors don't show values, which are credentials.
fn check_headers(name: &str, headers: &str) -> anyhow::Result<()> {
    for pair in headers.split(',').filter(|pair| !pair.trim().is_empty()) {
        let usable = pair.split_once('=').is_some_and(|(key, value)| {
            let value = percent_decoded(value.trim());
            key.trim().parse::<HeaderName>().is_ok() && value.is_some_and(|value| HeaderValue::from_str(&value).is_ok())
        });
        if !usable {
            return Err(bad(name, "is not of the form key=value,key=value"));
        }
    }
    Ok(())
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> anyhow::Result<Settings> {
        let find = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name)?;
            Some(OsString::from(found.1))
        };
        Settings::read("ingress", &find)
    }

    fn value(settings: &Settings, key: &str) -> Option<String> {
        let found = settings.resource.iter().find(|pair| pair.key.as_str() == key)?;
        Some(found.value.to_string())
    }

    #[test]
    fn nothing_is_sent_unless_it_is_asked_for() {
        for nothing in [
            &[][..],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"), ("OTEL_SDK_DISABLED", "True")],
        ] {
            let settings = read(nothing).unwrap();
            assert!(settings.traces.is_none() && settings.metrics.is_none() && settings.logs.is_none());
        }
        let some = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"), ("OTEL_LOGS_EXPORTER", "none")]);
        let some = some.unwrap();
        assert!(some.traces.is_some() && some.metrics.is_some() && some.logs.is_none());
        let standard = read(&[("OTEL_TRACES_EXPORTER", "otlp")]).unwrap();
        assert_eq!(standard.traces.unwrap().0.endpoint, "http://localhost:4318/v1/traces");
        assert!(standard.metrics.is_none());
    }

    #[test]
    fn a_signal_has_its_own_variables() {
        let settings = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/otlp/"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2000"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://metrics/push?tenant=a"),
            ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://collector:4317"),
            ("OTEL_BLRP_EXPORT_TIMEOUT", "500"),
        ]);
        let settings = settings.unwrap();
        let traces = settings.traces.unwrap().0;
        assert_eq!(traces.endpoint, "http://collector:4318/otlp/v1/traces");
        assert_eq!((traces.protocol, traces.timeout), (Protocol::Http, Duration::from_secs(2)));
        let metrics = settings.metrics.unwrap();
        assert_eq!(metrics.endpoint, "https://metrics/push?tenant=a");
        let logs = settings.logs.unwrap();
        assert_eq!(logs.endpoint, "http://collector:4317");
        assert_eq!((logs.protocol, logs.timeout), (Protocol::Grpc, Duration::from_millis(500)));
    }

    #[test]
    fn the_resource_names_the_process() {
        let ours = read(&[]).unwrap();
        assert_eq!(value(&ours, "service.name").unwrap(), "ingress");
        assert_eq!(value(&ours, "service.namespace").unwrap(), "esim");
        assert!(value(&ours, "service.instance.id").is_some());
        let theirs = read(&[
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=one, deployment.environment.name=a%20b"),
            ("OTEL_SERVICE_NAME", "other"),
        ]);
        let theirs = theirs.unwrap();
        assert_eq!(value(&theirs, "service.name").unwrap(), "other");
        assert_eq!(value(&theirs, "deployment.environment.name").unwrap(), "a b");
    }

    #[test]
    fn a_bad_value_is_one_line_that_names_the_variable() {
        // The bad values of each variable, separated by `|`.
        for (name, texts) in [
            ("OTEL_SDK_DISABLED", "yes"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_METRICS_EXPORTER", "console"),
            ("OTEL_LOGS_EXPORTER", "OTLP"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317|http://|http:collector:4318|http:///v1/traces"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://:4318|http://collector:|http://collector:0"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:99999|http://collector:port"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318:4318|http://[::1:4318"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://256.0.0.1:4318|http://col lector:4318"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/a b|http://user:password@collector:4318"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318?tenant=a|http://collector:4318/#traces"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://collector"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://collector:70000/push"),
            ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "https://collector/push#logs"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "tcp"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization|a=b\nc"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s|0"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "lzma"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/etc/ca.pem"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name|a=%zz"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
            ("OTEL_TRACES_SAMPLER_ARG", "1.5|nan"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0|2000000"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096"),
            ("OTEL_BSP_SCHEDULE_DELAY", "-1| 50"),
            ("OTEL_BSP_EXPORT_TIMEOUT", "soon"),
            ("OTEL_BLRP_MAX_QUEUE_SIZE", "many"),
            ("OTEL_BLRP_SCHEDULE_DELAY", "1.5"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
            ("OTEL_METRIC_EXPORT_TIMEOUT", "99999999999999999999"),
            ("OTEL_SPAN_LINK_COUNT_LIMIT", "none"),
        ] {
            for text in texts.split('|') {
                let error = read(&[(name, text)]).unwrap_err();
                assert!(error.is::<BadSetting>(), "{error:#}");
                let line = error.to_string();
                assert!(line.starts_with(name) && !line.contains('\n'), "{name}={text}: {line}");
            }
        }
    }

    #[test]
    fn what_may_be_secret_is_not_repeated() {
        for (name, text) in [
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer hush\n"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "hush"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "user:hush@collector"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:hush@collector"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:hush@collector:99999"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector?key=hush"),
        ] {
            if let Err(error) = read(&[(name, text)]) {
                assert!(!error.to_string().contains("hush"), "{error}");
            }
        }
    }
}

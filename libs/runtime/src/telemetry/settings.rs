//! Reads from the standard `OTEL_*` variables which signals are exported, and where to.
//!
//! The SDK reads most of these variables itself and uses its default if a value is invalid;
//! `values` refuses such values before. This module reads what the SDK leaves to its callers:
//! whether a signal is exported, and what our HTTP client and our log lines need. An address that
//! cannot work stops the start, because otherwise the operator would notice the missing telemetry
//! only on the day when it is needed. Errors never repeat an address, because it may contain a
//! password or a key.

use std::{env, time::Duration};

use opentelemetry::KeyValue;
use opentelemetry_sdk::{
    Resource,
    resource::{EnvResourceDetector, TelemetryResourceDetector},
};
use opentelemetry_semantic_conventions::{
    SCHEMA_URL,
    resource::{SERVICE_INSTANCE_ID, SERVICE_NAMESPACE, SERVICE_VERSION, VCS_REF_HEAD_REVISION},
};
use reqwest::Url;

use crate::{config::BadSetting, version};

/// Reads one variable. Tests pass a list of variables instead of the environment.
pub(super) type VariableReader<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Where to and how one signal is exported.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExportTarget {
    /// The variable from which the exporter takes the address. Errors name it.
    pub(super) variable: String,

    /// The address for log lines, without its query, which may contain a key.
    pub(super) shown: String,

    pub(super) is_grpc: bool,

    pub(super) timeout: Duration,
}

/// Reads the target of a signal: `TRACES`, `METRICS` or `LOGS`. It is `None` if the signal is not
/// exported.
pub(super) fn target(
    signal: &str,
    environment: VariableReader<'_>,
) -> anyhow::Result<Option<ExportTarget>> {
    let set = |name: &str| environment(name).filter(|value| !value.trim().is_empty());
    let is_disabled =
        set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let exporter = format!("OTEL_{signal}_EXPORTER");
    let is_exported = match set(&exporter).as_deref() {
        None => None,
        Some("none") => Some(false),
        Some("otlp") => Some(true),
        Some(_) => {
            return Err(BadSetting::error(format!(
                "{exporter}: the value must be otlp or none, because this program has no other exporter"
            )));
        }
    };

    let of_signal = |what: &str| {
        let names = [
            format!("OTEL_EXPORTER_OTLP_{signal}_{what}"),
            format!("OTEL_EXPORTER_OTLP_{what}"),
        ];
        names
            .into_iter()
            .find_map(|name| set(&name).map(|value| (name, value)))
    };
    let (variable, address) = of_signal("ENDPOINT").unzip();
    if is_disabled || !is_exported.unwrap_or(address.is_some()) {
        return Ok(None);
    }
    let variable = variable.unwrap_or(exporter);
    let shown = match address {
        Some(address) => without_query(&address).ok_or_else(|| {
            let rule = "the value must be an http or https address without user and password";
            BadSetting::error(format!(
                "{variable}: {rule}; write it like http://collector:4318"
            ))
        })?,
        None => "localhost".into(),
    };
    let milliseconds = of_signal("TIMEOUT").and_then(|(_, value)| value.parse().ok());
    let timeout = Duration::from_millis(milliseconds.unwrap_or(10_000));
    let is_grpc = of_signal("PROTOCOL").is_some_and(|(_, value)| value == "grpc");
    Ok(Some(ExportTarget {
        variable,
        shown,
        is_grpc,
        timeout,
    }))
}

/// Returns the address without its query, or `None` if an exporter cannot use it. An address with a
/// user or a password is among those, because the exporter would not send them.
fn without_query(address: &str) -> Option<String> {
    let mut url = address.parse::<Url>().ok()?;
    let has_credentials = !url.username().is_empty() || url.password().is_some();
    if !matches!(url.scheme(), "http" | "https") || has_credentials || url.port() == Some(0) {
        return None;
    }
    url.set_query(None);
    Some(url.as_str().trim_end_matches('/').to_owned())
}

/// The attributes that describe this process. Each of them can be replaced by the standard
/// variables `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`.
pub(super) fn resource(service: &'static str) -> Resource {
    let resource = Resource::builder_empty()
        .with_service_name(service)
        .with_schema_url(
            [
                KeyValue::new(SERVICE_NAMESPACE, "esim"),
                KeyValue::new(SERVICE_VERSION, version::VERSION),
                KeyValue::new(SERVICE_INSTANCE_ID, uuid::Uuid::now_v7().to_string()),
            ],
            SCHEMA_URL,
        )
        .with_attributes(version::COMMIT.map(|commit| KeyValue::new(VCS_REF_HEAD_REVISION, commit)))
        .with_detectors(&[
            Box::new(TelemetryResourceDetector),
            Box::new(EnvResourceDetector::new()),
        ]);
    match env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => resource.with_service_name(name).build(),
        _ => resource.build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(signal: &str, variables: &[(&str, &str)]) -> anyhow::Result<Option<ExportTarget>> {
        target(signal, &|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_signal_is_exported_only_if_the_variables_ask_for_it() {
        let collector = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
        for (variables, exported) in [
            (&[][..], false),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], false),
            (&[collector], true),
            (&[collector, ("OTEL_SDK_DISABLED", "True")], false),
            (&[collector, ("OTEL_LOGS_EXPORTER", "none")], false),
            (&[collector, ("OTEL_METRICS_EXPORTER", "none")], true),
            (&[("OTEL_LOGS_EXPORTER", "otlp")], true),
        ] {
            assert_eq!(
                read("LOGS", variables).unwrap().is_some(),
                exported,
                "{variables:?}"
            );
        }
    }

    #[test]
    fn the_variable_of_a_signal_comes_before_the_one_of_all_signals() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2000"),
            (
                "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
                "https://logs/push?tenant=hush",
            ),
            ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "500"),
        ];
        let spans = ExportTarget {
            variable: "OTEL_EXPORTER_OTLP_ENDPOINT".into(),
            shown: "http://collector:4318".into(),
            is_grpc: false,
            timeout: Duration::from_secs(2),
        };
        assert_eq!(read("TRACES", &variables).unwrap(), Some(spans));
        let logs = ExportTarget {
            variable: "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT".into(),
            shown: "https://logs/push".into(),
            is_grpc: true,
            timeout: Duration::from_millis(500),
        };
        assert_eq!(read("LOGS", &variables).unwrap(), Some(logs));
    }

    #[test]
    fn an_unusable_address_is_refused_without_repeating_it() {
        for address in [
            "hush:4317",
            "ftp://hush",
            "http://",
            "http://hush:0",
            "http://hush:99999",
            "http://user:hush@collector",
            "http://hush@collector",
            "http://user:hush@collector:99999",
        ] {
            let error = read("TRACES", &[("OTEL_EXPORTER_OTLP_ENDPOINT", address)]).unwrap_err();
            assert!(error.is::<BadSetting>(), "{error:#}");
            let line = format!("{error:#}");
            assert!(
                line.starts_with("OTEL_EXPORTER_OTLP_ENDPOINT: ") && !line.contains('\n'),
                "{line}"
            );
            assert!(!line.contains("hush"), "{line}");
        }
        let error = read("METRICS", &[("OTEL_METRICS_EXPORTER", "zipkin")]).unwrap_err();
        assert!(
            error.to_string().starts_with("OTEL_METRICS_EXPORTER: "),
            "{error}"
        );
    }
}

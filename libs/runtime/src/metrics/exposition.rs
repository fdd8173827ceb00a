//! The metrics as `/metrics` shows them: in `OpenMetrics`, which has exemplars, to whoever asks for
//! it, and otherwise in the older text format of Prometheus. The crate `prometheus` writes only the
//! latter.

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
};

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use super::exemplars::{self, Exemplar, Series};

pub(crate) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether an `Accept` header wants `OpenMetrics` 1.0.0 at least as much as the older text.
pub(crate) fn asks_for_openmetrics(accept: &str) -> bool {
    let openmetrics = weight(accept, "application/openmetrics-text", "1.0.0");
    openmetrics > 0.0 && openmetrics >= weight(accept, "text/plain", "0.0.4")
}

/// How much an `Accept` header wants a media type, from 0 to 1.
fn weight(accept: &str, wanted: &str, wanted_version: &str) -> f32 {
    let weights = accept.split(',').filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        if !parts.next()?.eq_ignore_ascii_case(wanted) {
            return None;
        }
        let mut weight = 1.0;
        for parameter in parts {
            match parameter.split_once('=') {
                Some(("version", version)) if version != wanted_version => return None,
                Some(("q", given)) => weight = given.parse().unwrap_or(0.0),
                _ => {}
            }
        }
        Some(weight)
    });
    weights.fold(0.0, f32::max)
}

/// Everything that is registered, in `OpenMetrics`.
pub(crate) fn openmetrics(families: &[MetricFamily]) -> Result<String, fmt::Error> {
    let mut text = String::new();
    for family in families {
        write_family(&mut text, family, &exemplars::of(family.name()))?;
    }
    text.write_str("# EOF\n")?;
    Ok(text)
}

fn write_family(text: &mut String, family: &MetricFamily, exemplars: &[Series]) -> fmt::Result {
    let name = family.name();
    // `OpenMetrics` names a counter without the suffix that its samples have.
    let (kind, base) = match (family.get_field_type(), name.strip_suffix("_total")) {
        (MetricType::COUNTER, Some(base)) => ("counter", base),
        (MetricType::GAUGE, _) => ("gauge", name),
        (MetricType::HISTOGRAM, _) => ("histogram", name),
        // No instrument of OpenTelemetry becomes one of these.
        (MetricType::COUNTER | MetricType::SUMMARY | MetricType::UNTYPED, _) => return Ok(()),
    };
    writeln!(text, "# HELP {base} {}", escaped(family.help()))?;
    writeln!(text, "# TYPE {base} {kind}")?;
    for metric in family.get_metric() {
        let labels = metric.get_label();
        let value = match family.get_field_type() {
            MetricType::HISTOGRAM => {
                write_histogram(text, name, metric, exemplars)?;
                continue;
            }
            MetricType::COUNTER => metric.get_counter().get_value(),
            _ => metric.get_gauge().get_value(),
        };
        write_sample(text, name, labels, None, &number(value))?;
        text.push('\n');
    }
    Ok(())
}

fn write_histogram(
    text: &mut String,
    name: &str,
    metric: &Metric,
    exemplars: &[Series],
) -> fmt::Result {
    let labels = metric.get_label();
    let named: BTreeMap<_, _> = labels
        .iter()
        .map(|label| (label.name().to_owned(), label.value().to_owned()))
        .collect();
    let exemplars = exemplars.iter().find(|series| series.labels == named);
    let of_bucket = |nth: usize| exemplars.and_then(|series| *series.buckets.get(nth)?);
    let histogram = metric.get_histogram();
    let bounded = histogram.get_bucket().iter();
    let bounded = bounded.filter(|bucket| bucket.upper_bound().is_finite());
    let buckets = bounded
        .map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()))
        .chain([(f64::INFINITY, histogram.get_sample_count())]);
    let bucket_name = format!("{name}_bucket");
    for (nth, (bound, count)) in buckets.enumerate() {
        write_sample(text, &bucket_name, labels, Some(bound), &count.to_string())?;
        if let Some(exemplar) = of_bucket(nth) {
            write_exemplar(text, &exemplar)?;
        }
        text.push('\n');
    }
    let sum = number(histogram.get_sample_sum());
    write_sample(text, &format!("{name}_sum"), labels, None, &sum)?;
    text.push('\n');
    let count = histogram.get_sample_count().to_string();
    write_sample(text, &format!("{name}_count"), labels, None, &count)?;
    text.push('\n');
    Ok(())
}

fn write_sample(
    text: &mut String,
    name: &str,
    labels: &[LabelPair],
    bound: Option<f64>,
    value: &str,
) -> fmt::Result {
    let labels = labels
        .iter()
        .map(|label| format!("{}=\"{}\"", label.name(), escaped(label.value())))
        .chain(bound.map(|bound| format!("le=\"{}\"", number(bound))))
        .collect::<Vec<_>>();
    text.write_str(name)?;
    if !labels.is_empty() {
        write!(text, "{{{}}}", labels.join(","))?;
    }
    write!(text, " {value}")
}

fn write_exemplar(text: &mut String, exemplar: &Exemplar) -> fmt::Result {
    let Exemplar {
        trace,
        span,
        seconds,
        at,
    } = exemplar;
    let second = at.div_euclid(1_000);
    let rest = at.rem_euclid(1_000);
    let seconds = number(*seconds);
    write!(
        text,
        " # {{trace_id=\"{trace}\",span_id=\"{span}\"}} {seconds} {second}.{rest:03}"
    )
}

/// A number with a point in it, as `OpenMetrics` wants the bounds of buckets.
fn number(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    format!("{value:?}")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use opentelemetry::{KeyValue, metrics::MeterProvider};
    use opentelemetry_sdk::metrics::SdkMeterProvider;

    use super::*;

    #[test]
    fn openmetrics_is_for_those_who_ask_for_it() {
        // As Prometheus 2.53 and 3.5 send it.
        for accept in [
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            "application/vnd.google.protobuf;q=0.7,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.5,*/*;q=0.1",
            "application/openmetrics-text",
        ] {
            assert!(asks_for_openmetrics(accept), "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "text/plain;version=0.0.4",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;version=1.0.0;q=0",
            // An operator who wants the older text first.
            "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5",
        ] {
            assert!(!asks_for_openmetrics(accept), "{accept}");
        }
    }

    #[test]
    fn exemplars_stand_behind_the_buckets_of_their_series() {
        let registry = prometheus::Registry::new();
        let reader = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            .build()
            .unwrap();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let meter = provider.meter("test");
        let counter = meter
            .u64_counter("esim.some")
            .with_description("a \"b\"\nc");
        counter.build().add(3, &[KeyValue::new("outcome", "o\\k")]);
        meter.f64_gauge("esim.level").build().record(1.5, &[]);
        let histogram = meter.f64_histogram("esim.took").with_unit("s");
        let histogram = histogram.with_boundaries(vec![0.5, 1.0]).build();
        for route in ["/a", "/b"] {
            histogram.record(0.75, &[KeyValue::new("http.route", route)]);
        }
        let series = Series {
            labels: BTreeMap::from([("http_route".to_owned(), "/b".to_owned())]),
            buckets: [None, Some(exemplar()), None].into(),
        };
        let mut text = String::new();
        for family in registry.gather() {
            write_family(&mut text, &family, std::slice::from_ref(&series)).unwrap();
        }
        assert_eq!(
            text,
            r#"# HELP esim_level 
# TYPE esim_level gauge
esim_level 1.5
# HELP esim_some a \"b\"\nc
# TYPE esim_some counter
esim_some_total{outcome="o\\k"} 3.0
# HELP esim_took_seconds 
# TYPE esim_took_seconds histogram
esim_took_seconds_bucket{http_route="/a",le="0.5"} 0
esim_took_seconds_bucket{http_route="/a",le="1.0"} 1
esim_took_seconds_bucket{http_route="/a",le="+Inf"} 1
esim_took_seconds_sum{http_route="/a"} 0.75
esim_took_seconds_count{http_route="/a"} 1
esim_took_seconds_bucket{http_route="/b",le="0.5"} 0
esim_took_seconds_bucket{http_route="/b",le="1.0"} 1 # {trace_id="0000000000000000000000000000002a",span_id="0000000000000007"} 0.75 1000.250
esim_took_seconds_bucket{http_route="/b",le="+Inf"} 1
esim_took_seconds_sum{http_route="/b"} 0.75
esim_took_seconds_count{http_route="/b"} 1
"#
        );
    }

    fn exemplar() -> Exemplar {
        Exemplar {
            trace: 42_u128.into(),
            span: 7.into(),
            seconds: 0.75,
            at: 1_000_250,
        }
    }
}

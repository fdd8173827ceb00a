//! The values of the standard variables that only the SDK reads, and of `TOKIO_WORKER_THREADS`,
//! which tokio reads.
//!
//! The SDK uses its default where it does not understand a value: with
//! `OTEL_TRACES_SAMPLER_ARG=0,1` it records everything. So each variable that docs/telemetry.md
//! names is checked here by the rule that stands there. Errors never repeat the value of a header,
//! which may be a key.

use crate::config::BadSetting;

use super::settings::VariableReader;

/// What a value must be.
#[derive(Clone, Copy)]
enum Rule {
    OneOf(&'static [&'static str]),
    /// A whole number from this one on.
    Number(u32),
    /// Pairs, separated by commas.
    Pairs,
}

const SAMPLERS: &[&str] = &[
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

const RULES: [(&str, Rule); 17] = [
    ("OTEL_TRACES_SAMPLER", Rule::OneOf(SAMPLERS)),
    (
        "OTEL_SDK_DISABLED",
        Rule::OneOf(&["true", "false", "True", "False", "TRUE", "FALSE"]),
    ),
    ("OTEL_RESOURCE_ATTRIBUTES", Rule::Pairs),
    ("OTEL_BSP_SCHEDULE_DELAY", Rule::Number(1)),
    ("OTEL_BSP_MAX_QUEUE_SIZE", Rule::Number(1)),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", Rule::Number(1)),
    ("OTEL_BSP_EXPORT_TIMEOUT", Rule::Number(1)),
    ("OTEL_BLRP_SCHEDULE_DELAY", Rule::Number(1)),
    ("OTEL_BLRP_MAX_QUEUE_SIZE", Rule::Number(1)),
    ("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", Rule::Number(1)),
    ("OTEL_BLRP_EXPORT_TIMEOUT", Rule::Number(1)),
    ("OTEL_METRIC_EXPORT_INTERVAL", Rule::Number(1)),
    ("OTEL_METRIC_EXPORT_TIMEOUT", Rule::Number(1)),
    ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", Rule::Number(0)),
    ("OTEL_SPAN_EVENT_COUNT_LIMIT", Rule::Number(0)),
    ("OTEL_SPAN_LINK_COUNT_LIMIT", Rule::Number(0)),
    ("TOKIO_WORKER_THREADS", Rule::Number(1)),
];

/// What can be set for all signals (`OTEL_EXPORTER_OTLP_…`) and for each
/// (`OTEL_EXPORTER_OTLP_TRACES_…`).
const OTLP: [(&str, Rule); 4] = [
    ("PROTOCOL", Rule::OneOf(&["http/protobuf", "grpc"])),
    ("COMPRESSION", Rule::OneOf(&["gzip", "none"])),
    ("TIMEOUT", Rule::Number(1)),
    ("HEADERS", Rule::Pairs),
];

pub(super) fn check(environment: VariableReader<'_>) -> anyhow::Result<()> {
    for (name, rule) in RULES {
        obey(name, rule, environment)?;
    }
    for signal in ["", "TRACES_", "METRICS_", "LOGS_"] {
        for (what, rule) in OTLP {
            obey(
                &format!("OTEL_EXPORTER_OTLP_{signal}{what}"),
                rule,
                environment,
            )?;
        }
    }
    check_ratio(environment)
}

fn set(name: &str, environment: VariableReader<'_>) -> Option<String> {
    environment(name).filter(|value| !value.trim().is_empty())
}

fn obey(name: &str, rule: Rule, environment: VariableReader<'_>) -> anyhow::Result<()> {
    let Some(value) = set(name, environment) else {
        return Ok(());
    };
    let refused = |reason: String| Err(BadSetting::error(format!("{name}{reason}")));
    match rule {
        Rule::OneOf(values) if !values.contains(&value.as_str()) => refused(format!(
            "={value}: the value must be {}",
            values.join(" or ")
        )),
        Rule::Number(least) if !value.parse().is_ok_and(|number: u32| number >= least) => refused(
            format!("={value}: the value must be a whole number from {least} on, without a unit"),
        ),
        Rule::Pairs if !value.split(',').all(is_pair) => refused(
            ": the value must be key=value, and several of these are separated by commas".into(),
        ),
        Rule::OneOf(_) | Rule::Number(_) | Rule::Pairs => Ok(()),
    }
}

fn is_pair(text: &str) -> bool {
    text.split_once('=')
        .is_some_and(|(key, _)| !key.trim().is_empty())
}

/// The share of traces counts only with a sampler that takes a share.
fn check_ratio(environment: VariableReader<'_>) -> anyhow::Result<()> {
    const NAME: &str = "OTEL_TRACES_SAMPLER_ARG";
    let Some(value) = set(NAME, environment) else {
        return Ok(());
    };
    let sampler = set("OTEL_TRACES_SAMPLER", environment);
    if !sampler.is_some_and(|name| name.ends_with("traceidratio")) {
        return Err(BadSetting::error(format!(
            "{NAME}={value} has no effect without OTEL_TRACES_SAMPLER=parentbased_traceidratio, so all traces or \
             none would be recorded: set both, or remove this one"
        )));
    }
    match value.parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(()),
        _ => Err(BadSetting::error(format!(
            "{NAME}={value}: the value must be a number from 0 to 1, such as 0.1 for one trace in ten"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(variables: &[(&str, &str)]) -> Result<(), String> {
        let environment = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        check(&environment).map_err(|error| error.to_string())
    }

    #[test]
    fn a_value_that_the_sdk_would_ignore_is_refused_by_name() {
        let ratio = ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio");
        for refused in [
            &[ratio, ("OTEL_TRACES_SAMPLER_ARG", "0,1")][..],
            &[ratio, ("OTEL_TRACES_SAMPLER_ARG", "10")],
            &[ratio, ("OTEL_TRACES_SAMPLER_ARG", "NaN")],
            &[("OTEL_TRACES_SAMPLER_ARG", "0.1")],
            &[("OTEL_TRACES_SAMPLER", "ratio")],
            &[("OTEL_TRACES_SAMPLER", "ALWAYS_OFF")],
            &[("OTEL_SDK_DISABLED", "yes")],
            &[("OTEL_BSP_SCHEDULE_DELAY", "5s")],
            &[("OTEL_BLRP_MAX_QUEUE_SIZE", "0")],
            &[("OTEL_SPAN_LINK_COUNT_LIMIT", "-1")],
            &[("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/json")],
            &[("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd")],
            &[("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "10s")],
            &[("OTEL_EXPORTER_OTLP_HEADERS", "Authorization: hush")],
            &[("OTEL_RESOURCE_ATTRIBUTES", "region")],
            &[("TOKIO_WORKER_THREADS", "0")],
        ] {
            let told = checked(refused).expect_err(&format!("{refused:?}"));
            let (name, _) = refused.last().unwrap();
            assert!(told.starts_with(name) && !told.contains("hush"), "{told}");
        }
    }

    #[test]
    fn what_the_sdk_understands_and_what_is_blank_is_taken() {
        let taken = [
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.01"),
            ("OTEL_SDK_DISABLED", "True"),
            ("OTEL_BSP_SCHEDULE_DELAY", "200"),
            ("OTEL_METRIC_EXPORT_INTERVAL", " "),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "Authorization=Basic%20aHVzaA==,x=1",
            ),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test"),
        ];
        assert_eq!(checked(&taken), Ok(()));
        assert_eq!(checked(&[("OTEL_TRACES_SAMPLER_ARG", "")]), Ok(()));
    }
}

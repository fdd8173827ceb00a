//! An invalid variable prevents the start, with one line that names it.

use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

async fn refused(service: &str, variable: &str, value: &str) {
    let started = Command::new(testkit::bin_dir().join(service))
        .env_clear()
        .env("DATABASE_URL", "postgres://user@127.0.0.1:1/none")
        .env("NATS_URL", "nats://127.0.0.1:1")
        .env("MASTER_KEY", "test:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
        .env("PUBLIC_URL", "http://127.0.0.1:1")
        .env("LISTEN", "127.0.0.1:0")
        .env("ADMIN_LISTEN", "127.0.0.1:0")
        .env(variable, value)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(20), started)
        .await
        .unwrap_or_else(|_| panic!("{service} runs with {variable}={value}"))
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{variable}={value}: {said}");
    assert_eq!(said.lines().count(), 1, "{variable}={value}: {said}");
    assert!(
        said.starts_with(&format!("{service}: {variable}: ")),
        "{variable}={value}: {said}"
    );
}

#[tokio::test]
async fn bad_values_stop_the_start_and_name_the_variable() {
    for (service, variable, value) in [
        ("ingress", "OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
        ("ingress", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:99999"),
        ("ingress", "OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("provisioner", "OTEL_TRACES_SAMPLER", "sometimes"),
        ("provisioner", "OTEL_TRACES_SAMPLER_ARG", "2"),
        ("provisioner", "OTEL_RESOURCE_ATTRIBUTES", "nonsense"),
        ("notifier", "OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ("notifier", "OTEL_METRIC_EXPORT_INTERVAL", "1m"),
        ("notifier", "OTEL_SDK_DISABLED", "maybe"),
    ] {
        refused(service, variable, value).await;
    }
}

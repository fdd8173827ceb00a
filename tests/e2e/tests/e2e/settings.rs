//! Every program refuses to start with an invalid or missing setting, with one line that names it.

use anyhow::{Result, ensure};
use std::{
    collections::BTreeMap,
    fs::Permissions,
    os::unix::fs::{PermissionsExt, symlink},
    time::Duration,
};
use testkit::{bin_dir, process::output, settings::MASTER_KEY};
use tokio::process::Command;

/// The settings that every program needs. No server listens there: programs check settings first.
const GOOD: &[(&str, &str)] = &[
    ("DATABASE_URL", "postgres://user@127.0.0.1:1/nothing"),
    ("NATS_URL", "nats://127.0.0.1:1"),
    ("MASTER_KEY", MASTER_KEY),
    ("LISTEN", "127.0.0.1:0"),
    ("ADMIN_LISTEN", "127.0.0.1:0"),
    ("SANDBOX_URL", "http://127.0.0.1:1"),
    ("SANDBOX_ACCESS_KEY", "key"),
    ("SANDBOX_SECRET_KEY", "c2VjcmV0"),
    ("SANDBOX_LEDGER", "/nonexistent/ledger"),
    ("PUBLIC_URL", "http://127.0.0.1:1"),
];
const SERVICES: &[&str] = &["ingress", "provisioner", "notifier"];
const ALL: &[&str] = &["ingress", "provisioner", "notifier", "sandbox"];

/// Programs, the setting that is wrong (`None`: missing), what else the line must not show.
const ROWS: &[(&[&str], &str, Option<&str>)] = &[
    (SERVICES, "DATABASE_URL", None),
    (SERVICES, "DATABASE_URL", Some("mysql")),
    (
        SERVICES,
        "DATABASE_URL",
        Some("postgres://127.0.0.1:seven/x"),
    ),
    (SERVICES, "PGPASSFILE", Some("/nonexistent/passwords")),
    (SERVICES, "NATS_URL", None),
    (SERVICES, "NATS_URL", Some("nats://::::")),
    (SERVICES, "STREAM_PREFIX", Some("a.b")),
    (SERVICES, "MASTER_KEY", None),
    (SERVICES, "MASTER_KEY", Some("")),
    (SERVICES, "MASTER_KEY", Some("test")),
    (SERVICES, "MASTER_KEY", Some("test:dG9vIHNob3J0")),
    (SERVICES, "MASTER_KEY_FILE", Some("/nonexistent/key")),
    (SERVICES, "ADMIN_LISTEN", Some("18081")),
    (&["ingress", "sandbox"], "LISTEN", Some("localhost")),
    (ALL, "LOG", Some("a=b=c")),
    (ALL, "LOG_FORMAT", Some("xml")),
    (ALL, "SHUTDOWN_TIMEOUT", Some("soon")),
    (&["ingress"], "BRAND", Some("My Brand")),
    (&["ingress"], "BRAND", Some("")),
    (&["ingress"], "PLACEMENT_WAIT", Some("2")),
    (&["ingress"], "PLACEMENT_WAIT", Some("21s")),
    (&["ingress"], "MAX_ITEMS", Some("0")),
    (&["ingress"], "MAX_UNITS", Some("many")),
    (&["ingress"], "MAX_IN_FLIGHT", Some("0")),
    (&["ingress"], "HEAD_TIMEOUT", Some("0s")),
    (&["ingress"], "PARTNER_ORDERS_PER_SECOND", Some("0")),
    (&["ingress"], "QUEUE_DEADLINE", Some("0s")),
    (&["ingress"], "REDELIVER_INTERVAL", Some("0s")),
    (&["ingress"], "WEBHOOK_HTTP_LIVE", Some("maybe")),
    (&["ingress"], "QR_BARE_UNTIL", Some("tomorrow")),
    (&["ingress", "notifier"], "QR_KEYS", Some("c2hvcnQ=")),
    (&["ingress"], "LISTEN_WAIT", Some("0s")),
    (&["provisioner"], "PROVIDERS", Some("acme")),
    (&["provisioner"], "SANDBOX_URL", None),
    (&["provisioner"], "SANDBOX_URL", Some("127.0.0.1")),
    (&["provisioner"], "SANDBOX_ACCESS_KEY", None),
    (&["provisioner"], "PROVIDER_CONCURRENCY", Some("0")),
    (&["provisioner"], "PROVIDER_TIMEOUT", Some("-1s")),
    (&["provisioner"], "SETTLE", Some("a while")),
    // It contradicts PROVIDER_TIMEOUT.
    (&["provisioner"], "SETTLE", Some("1s")),
    (
        &["provisioner", "sandbox"],
        "SANDBOX_SECRET_KEY",
        Some("n*t b64"),
    ),
    (&["provisioner", "sandbox"], "SANDBOX_SECRET_KEY", None),
    (&["ingress", "notifier"], "PUBLIC_URL", None),
    (&["ingress", "notifier"], "PUBLIC_URL", Some("example.com")),
    (
        &["ingress", "notifier"],
        "WEBHOOK_ALLOW",
        Some("127.0.0.0/40"),
    ),
    (
        &["ingress", "notifier"],
        "SOURCE_ADDRESSES",
        Some("198.51.100.0/40"),
    ),
    (&["ingress", "notifier"], "MAIL_FROM", Some("nobody")),
    (&["notifier"], "SMTP_URL", Some("relay.example.com")),
    (&["console"], "ALERT_URL", Some("alerts.example/hook")),
    (&["notifier"], "WEBHOOK_TIMEOUT", Some("15")),
    (&["notifier"], "DELIVERY_CONCURRENCY", Some("0")),
    (&["ingress", "provisioner"], "MAX_UNITS", Some("0")),
    (&["sandbox"], "SANDBOX_LEDGER", None),
    (&["sandbox"], "SANDBOX_ACCESS_KEY", Some("")),
    (
        &["ingress"],
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        Some("collector:4317"),
    ),
    (
        &["ingress"],
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        Some("http://collector:99999"),
    ),
    (
        &["provisioner"],
        "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
        Some("http://user:password@collector:4318"),
    ),
    (&["notifier"], "OTEL_TRACES_EXPORTER", Some("zipkin")),
    (ALL, "OTEL_TRACES_SAMPLER_ARG", Some("0,1")),
];

/// Starts a program and expects it to refuse: status 2, nothing on standard output, one line.
async fn refusal(program: &str, args: &[&str], env: &BTreeMap<&str, &str>) -> Result<String> {
    let mut run = Command::new(bin_dir().join(program));
    run.args(args).env_clear().envs(env);
    let output = output(&mut run, Duration::from_secs(10)).await?;
    let line = String::from_utf8(output.stderr)?;
    let status = output.status;
    ensure!(status.code() == Some(2), "{status}, and it said: {line}");
    ensure!(
        output.stdout.is_empty(),
        "standard output: {:?}",
        output.stdout
    );
    let lines = line.lines().count();
    ensure!(line.ends_with('\n') && lines == 1, "not one line: {line}");
    Ok(line)
}

#[tokio::test]
async fn a_bad_or_missing_setting_is_named_in_one_line() {
    let mut failed = Vec::new();
    for (programs, setting, value) in ROWS {
        for program in *programs {
            let mut env: BTreeMap<&str, &str> = GOOD.iter().copied().collect();
            env.remove(setting);
            env.extend(value.map(|value| (*setting, value)));
            if *setting == "MASTER_KEY_FILE" {
                env.remove("MASTER_KEY");
            }
            let secret = matches!(
                *setting,
                "DATABASE_URL" | "MASTER_KEY" | "SANDBOX_SECRET_KEY"
            );
            match refusal(program, &[], &env).await {
                Ok(line) if !line.contains(setting) => {
                    failed.push(format!("{program}, {setting}={value:?}: {line}"));
                }
                Ok(line)
                    if secret
                        && value.is_some_and(|value| value.len() > 5 && line.contains(value)) =>
                {
                    failed.push(format!("{program} shows {setting}: {line}"));
                }
                Ok(_) => {}
                Err(error) => failed.push(format!("{program}, {setting}={value:?}: {error:#}")),
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Whoever sees settings accepted restarts a process with them, which would then stay down.
#[tokio::test]
async fn config_show_refuses_what_a_start_refuses() {
    let mut failed = Vec::new();
    for (programs, setting, value) in ROWS {
        // What is missing is shown as missing.
        let Some(value) = value else { continue };
        for program in *programs {
            let mut env: BTreeMap<&str, &str> = GOOD.iter().copied().collect();
            env.insert(setting, value);
            if *setting == "MASTER_KEY_FILE" {
                env.remove("MASTER_KEY");
            }
            match refusal(program, &["config", "show"], &env).await {
                Ok(line) if line.contains(setting) => {}
                Ok(line) => failed.push(format!("{program}, {setting}={value}: {line}")),
                Err(error) => failed.push(format!("{program}, {setting}={value}: {error:#}")),
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[tokio::test]
async fn contradictions_and_unknown_flags_are_named_too() {
    let good: BTreeMap<&str, &str> = GOOD.iter().copied().collect();
    let mut both = good.clone();
    both.insert("MASTER_KEY_FILE", "/nonexistent/key");
    for program in SERVICES {
        let line = refusal(program, &[], &both).await.unwrap();
        assert!(line.contains("MASTER_KEY_FILE"), "{program}: {line}");
    }
    for program in ALL {
        let line = refusal(program, &["--no-such-flag"], &good).await.unwrap();
        assert!(line.contains("--no-such-flag"), "{program}: {line}");
    }
    let mut without = good.clone();
    without.remove("DATABASE_URL");
    let line = refusal("esimctl", &["partner", "list"], &without)
        .await
        .unwrap();
    assert!(line.contains("DATABASE_URL"), "esimctl: {line}");
    // A provider that is configured needs its account.
    let mut usimsa = good;
    usimsa.insert("PROVIDERS", "sandbox,usimsa");
    let line = refusal("provisioner", &[], &usimsa).await.unwrap();
    assert!(line.contains("USIMSA_"), "provisioner: {line}");
}

/// A mounted secret is open to the pod's group. sqlx would warn about such a password file once and
/// log in without a password.
#[tokio::test]
async fn a_password_file_that_is_open_to_others_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    // As kubelet writes it: the name leads through `..data` to the folder of its version.
    let version = folder.path().join("..2026_01_02_03_04_05.1");
    std::fs::create_dir(&version).unwrap();
    std::fs::write(version.join("pgpass"), "*:*:*:*:hush\n").unwrap();
    std::fs::set_permissions(version.join("pgpass"), Permissions::from_mode(0o440)).unwrap();
    symlink(version.file_name().unwrap(), folder.path().join("..data")).unwrap();
    symlink("..data/pgpass", folder.path().join("pgpass")).unwrap();

    let path = folder.path().join("pgpass");
    let mut settings: BTreeMap<&str, &str> = GOOD.iter().copied().collect();
    settings.insert("PGPASSFILE", path.to_str().unwrap());
    for program in SERVICES.iter().chain(&["esimctl"]) {
        let arguments: &[&str] = if *program == "esimctl" {
            &["partner", "list"]
        } else {
            &[]
        };
        let line = refusal(program, arguments, &settings).await.unwrap();
        for part in [
            "PGPASSFILE",
            path.to_str().unwrap(),
            "mode 0440",
            "DATABASE_URL_FILE",
        ] {
            assert!(
                line.contains(part) && !line.contains("hush"),
                "{program}, {part}: {line}"
            );
        }
    }
}

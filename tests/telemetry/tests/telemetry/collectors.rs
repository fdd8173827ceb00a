//! A missing collector, one that accepts connections and never answers, and one that refuses:
//! orders flow, processes stop in time, and the log has one line for the cause and one for the end.

use crate::sink::Sink;
use anyhow::{Context, Result};
use futures_util::future::{join_all, try_join_all};
use http_body_util::Empty;
use hyper::Response;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use testkit::process::{Process, Program};
use testkit::shop::Shop;
use testkit::stack::{Stack, Stage};
use testkit::{http, wait};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const ORDERS: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_collector_and_one_that_hangs_cost_nothing() {
    let unreachable = format!("http://127.0.0.1:{}", testkit::ports::free().unwrap());
    let port = testkit::ports::free().unwrap();
    let (hangs, held) = (
        format!("http://127.0.0.1:{port}"),
        trouble_on(port, Trouble::Hangs).await.unwrap(),
    );
    let mut builder = Stack::builder()
        .env(Stage::Ingress, "OTEL_EXPORTER_OTLP_ENDPOINT", &unreachable)
        .env(Stage::Provisioner, "OTEL_EXPORTER_OTLP_ENDPOINT", &hangs)
        .env(Stage::Notifier, "OTEL_EXPORTER_OTLP_ENDPOINT", &hangs)
        .env(Stage::Notifier, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    for stage in Stage::OURS {
        // Short intervals, so that queues fill and exports fail.
        builder = builder
            .env(stage, "OTEL_BSP_SCHEDULE_DELAY", "50")
            .env(stage, "OTEL_BSP_MAX_QUEUE_SIZE", "20")
            .env(stage, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5")
            .env(stage, "OTEL_BLRP_SCHEDULE_DELAY", "50")
            .env(stage, "OTEL_METRIC_EXPORT_INTERVAL", "100");
    }
    let mut stack = builder.start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let ready = stack.option("ready").unwrap().to_owned();
    let ids: Vec<String> = (0..ORDERS)
        .map(|number| format!("order {number}"))
        .collect();
    let items = [(ready.as_str(), 1)];
    for answer in try_join_all(ids.iter().map(|id| shop.client.order(id, &items)))
        .await
        .unwrap()
    {
        answer.products().unwrap();
    }
    shop.receiver
        .wait_for(ORDERS, Duration::from_secs(20))
        .await
        .unwrap();
    drop(shop);

    for stage in Stage::OURS {
        let process = stack.process(stage).unwrap();
        let began = Instant::now();
        let status = process.terminate(Duration::from_secs(20)).await.unwrap();
        let took = began.elapsed();
        assert!(status.success(), "{stage:?}: {status}");
        // The stop itself, and at most two seconds for the collector.
        assert!(took < Duration::from_secs(6), "{stage:?} took {took:?}");
        let log = process.log().unwrap();
        let complaints = log
            .lines()
            .filter(|line| line.contains("OTLP collector"))
            .count();
        // One for each signal.
        assert!(
            complaints <= 3,
            "{stage:?} complained {complaints} times:\n{log}"
        );
        assert!(!log.contains("opentelemetry"), "{log}");
    }
    let log = stack.process(Stage::Ingress).unwrap().log().unwrap();
    assert!(log.contains("does not accept telemetry"), "one line: {log}");
    held.abort();
}

/// The state of a collector's port during an outage.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Closed,
    Hangs,
    Refuses,
}

/// Serves the trouble until the task is aborted.
async fn trouble_on(port: u16, trouble: Trouble) -> Result<JoinHandle<()>> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    Ok(match trouble {
        Trouble::Closed => tokio::spawn(async move { drop(listener) }),
        Trouble::Hangs => tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((connection, _)) = listener.accept().await {
                held.push(connection);
            }
        }),
        Trouble::Refuses => http::serve(listener, async |_| {
            Ok(Response::builder().status(503).body(Empty::new())?)
        }),
    })
}

/// A process that sends everything soon, and with it the folder that it needs.
fn sender(port: u16, protocol: &str) -> Result<(Process, String, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    let url = format!("http://127.0.0.1:{}", testkit::ports::free()?);
    let admin = format!("127.0.0.1:{}", testkit::ports::free()?);
    let env = [
        ("LISTEN", url.trim_start_matches("http://")),
        ("ADMIN_LISTEN", &admin),
        ("SANDBOX_ACCESS_KEY", "key"),
        (
            "SANDBOX_SECRET_KEY",
            "c2FuZGJveC1zZWNyZXQta2V5LW9mLXRoZS10ZXN0cw==",
        ),
        (
            "SANDBOX_LEDGER",
            &folder.path().join("ledger").display().to_string(),
        ),
        ("LOG_FORMAT", "json"),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            &format!("http://127.0.0.1:{port}"),
        ),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=hush"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "300"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "50"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
    ];
    let mut env = BTreeMap::from(env.map(|(name, value)| (name.to_owned(), value.to_owned())));
    if protocol != "grpc" {
        let logs = format!("http://127.0.0.1:{port}/v1/logs?key=hush");
        env.insert("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT".into(), logs);
    }
    let program = Program {
        name: "sandbox".into(),
        binary: testkit::bin_dir().join("sandbox"),
        args: Vec::new(),
        env,
        ready_url: format!("http://{admin}/readyz"),
        log: folder.path().join("log"),
    };
    Ok((Process::new(program), url, folder))
}

/// Of each signal the one line that says `what`; none while one is missing.
fn told(process: &Process, what: &str) -> Result<Option<BTreeMap<String, Value>>> {
    let log = process.log()?;
    let mut told = BTreeMap::new();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).with_context(|| log.clone())?;
        let message = line["message"].as_str().unwrap_or_default();
        if message.contains(what) {
            let signal = line["signal"].as_str().context("no signal")?.to_owned();
            anyhow::ensure!(told.insert(signal, line).is_none(), "told twice: {log}");
        }
    }
    Ok((told.len() == 3).then_some(told))
}

async fn one_outage(protocol: &str, trouble: Trouble, causes: &[&str]) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let port = testkit::ports::free()?;
    let instead = trouble_on(port, trouble).await?;
    let (mut process, url, _folder) = sender(port, protocol)?;
    process.start().await?;
    let http = testkit::http::client()?;
    // A request that is logged and traced.
    let touch = async || {
        let set = http.put(format!("{url}/faults")).body("{}").send().await?;
        anyhow::ensure!(set.status() == 200);
        anyhow::Ok(())
    };
    let away = wait::until(PATIENCE, "the outage to be told", async || {
        touch().await?;
        told(&process, "does not accept telemetry")
    });
    for (signal, line) in away.await? {
        // The address as the operator set it; only the one of logs has a path, and its query is
        // left out.
        let path = if signal == "logs" && protocol != "grpc" {
            "/v1/logs"
        } else {
            ""
        };
        let endpoint = format!("http://127.0.0.1:{port}{path}");
        assert_eq!(line["endpoint"], endpoint, "{line}");
        assert_eq!(line["level"], "WARN", "{line}");
        let cause = line["cause"].as_str().context("no cause")?;
        assert!(
            causes.iter().any(|expected| cause.contains(expected)),
            "{line}"
        );
    }

    instead.abort();
    let _ = instead.await;
    let sink = Sink::start_on(port).await?;
    let back = wait::until(PATIENCE, "the end of the outage to be told", async || {
        touch().await?;
        told(&process, "accepts telemetry again")
    });
    for line in back.await?.values() {
        assert!(line["dropped"].as_u64() > Some(0), "{line}");
        assert!(
            line["seconds"].is_u64() && line["cause"].is_null(),
            "{line}"
        );
    }
    anyhow::ensure!(!sink.book().logs.is_empty());
    assert!(told(&process, "does not accept telemetry")?.is_some());
    process.terminate(PATIENCE).await?;
    assert!(!process.log()?.contains("hush"), "{}", process.log()?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_logged_once_with_its_cause_and_its_end() {
    let outages = [
        (
            "http/protobuf",
            Trouble::Closed,
            &["Connection refused"][..],
        ),
        ("http/protobuf", Trouble::Hangs, &["timed out"]),
        ("http/protobuf", Trouble::Refuses, &["HTTP status 503"]),
        ("grpc", Trouble::Closed, &["Connection refused"]),
        ("grpc", Trouble::Hangs, &["Timeout expired"]),
        ("grpc", Trouble::Refuses, &["gRPC status Unavailable"]),
    ];
    let outages = outages.map(|(protocol, trouble, causes)| async move {
        let told = one_outage(protocol, trouble, causes).await;
        told.unwrap_or_else(|error| panic!("{protocol}, {trouble:?}: {error:#}"));
    });
    join_all(outages).await;
}

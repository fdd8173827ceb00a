//! Names of endpoints, with a name server of the test's own: what they resolve to is judged, and
//! one that never responds delays no other endpoint.

use std::time::Duration;

use testkit::names::{NameServer, Zone};
use testkit::{process::Process, wait};
use tokio::time::Instant;
use webhooks::{dns::NameServers, guard::Networks};

use crate::{hostile::program, support::Bench};

/// Deliveries to endpoints whose name server never answers.
const SILENT: usize = 200;
/// Threads of the notifier: its own, but none for a lookup.
const THREADS: usize = 40;

const ZONE: Zone = &[
    ("good.test", &[[127, 0, 0, 1]]),
    ("private.test", &[[10, 0, 0, 1]]),
    ("mixed.test", &[[127, 0, 0, 1], [169, 254, 169, 254]]),
    ("fabric.test", &[[168, 63, 129, 16]]),
    ("denied.test", &[[127, 0, 0, 9]]),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_judged_by_all_that_it_resolves_to() {
    let server = NameServer::start(ZONE).await.unwrap();
    let bench = Bench::start_with(|config| {
        config.guard.webhook_resolvers = NameServers::parse(&server.address.to_string()).unwrap();
        config.guard.webhook_deny = Networks::parse("127.0.0.9").unwrap();
    })
    .await;
    for (host, error) in [
        ("private.test", Some("forbidden address")),
        ("mixed.test", Some("forbidden address")),
        ("fabric.test", Some("forbidden address")),
        ("denied.test", Some("forbidden address")),
        ("good.test:25", Some("forbidden port")),
        ("unknown.test", Some("name not resolved")),
        ("good.test", None),
        ("localhost", None),
    ] {
        let path = format!("/{}", host.replace([':', '.'], "-"));
        let url = bench.receiver.url(&path);
        let port = url.rsplit(':').next().unwrap().split('/').next().unwrap();
        let with_port = if host.contains(':') {
            host.to_owned()
        } else {
            format!("{host}:{port}")
        };
        let (partner, _) = bench
            .partner(Some(&format!("http://{with_port}{path}")))
            .await;
        let topup = bench.ready_and_announced(partner).await;
        assert_eq!(
            bench.attempted(&topup).await.error.as_deref(),
            error,
            "{host}"
        );
    }
    bench.abandon();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_server_that_never_answers_holds_neither_threads_nor_other_webhooks() {
    let server = NameServer::start(ZONE).await.unwrap();
    let bench = Bench::prepared().await;
    let folder = tempfile::tempdir().unwrap();
    let mut program = program(&bench, folder.path());
    program
        .env
        .insert("WEBHOOK_RESOLVERS".into(), server.address.to_string());
    let mut silent = Vec::new();
    for partner in 0..20 {
        let (partner, _) = bench
            .partner(Some(&format!("http://{partner}.silent.test:8080/hook")))
            .await;
        silent.extend(
            bench
                .copies(partner, SILENT / 20, Some(Duration::ZERO))
                .await,
        );
    }
    let good = bench
        .receiver
        .url("/good")
        .replace("127.0.0.1", "good.test");
    let (partner, _) = bench.partner(Some(&good)).await;
    let mut notifier = Process::new(program);
    notifier.start().await.unwrap();
    wait::soon("lookups in flight", async || {
        Ok((server.unanswered() >= SILENT / 5).then_some(()))
    })
    .await;
    let began = Instant::now();
    let topup = bench.ready_and_announced(partner).await;
    bench.delivered(&topup).await;
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    let threads = std::fs::read_dir(format!("/proc/{}/task", notifier.pid().unwrap()))
        .unwrap()
        .count();
    assert!(threads < THREADS, "{threads} threads");
    for topup in silent.iter().take(3) {
        let stored = bench.attempted(topup).await;
        // Whichever deadline ends it: the connection's or the resolver's.
        let error = stored.error.as_deref();
        assert!(
            matches!(error, Some("timeout" | "name not resolved")),
            "{error:?}"
        );
    }
    notifier.kill().await.unwrap();
}

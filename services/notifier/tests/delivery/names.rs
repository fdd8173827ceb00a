//! Names of endpoints, with a name server of the test's own: what they resolve to is judged, and one
//! that never responds delays no other endpoint.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use notifier::dns::NameServers;
use testkit::{process::Process, wait};
use tokio::{net::UdpSocket, time::Instant};
use webhooks::guard::Networks;

use crate::{hostile::program, support::Bench};

/// Deliveries to endpoints whose name server never answers.
const SILENT: usize = 200;
/// Threads of the notifier: its own, but none for a lookup.
const THREADS: usize = 40;

/// Names of the test's zone and their addresses. A name in `silent.test` gets no answer, any other
/// does not exist.
const ZONE: &[(&str, &[[u8; 4]])] = &[
    ("good.test", &[[127, 0, 0, 1]]),
    ("private.test", &[[10, 0, 0, 1]]),
    ("mixed.test", &[[127, 0, 0, 1], [169, 254, 169, 254]]),
    ("fabric.test", &[[168, 63, 129, 16]]),
    ("denied.test", &[[127, 0, 0, 9]]),
];

/// The answer to a query, in the format of RFC 1035.
fn answer(query: &[u8], silent: &AtomicUsize) -> Option<Vec<u8>> {
    let mut labels = Vec::new();
    let mut at = 12;
    while query[at] > 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..end]).to_ascii_lowercase());
        at = end;
    }
    let (name, question) = (labels.join("."), &query[12..at + 5]);
    if name.ends_with("silent.test") {
        silent.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    let known = ZONE.iter().find(|(known, _)| *known == name);
    let is_a = query[at + 1..at + 3] == [0, 1];
    let addresses = known.filter(|_| is_a).map_or(&[][..], |(_, addresses)| addresses);
    let code = if known.is_some() { 0x80 } else { 0x83 };
    let count = u8::try_from(addresses.len()).unwrap();
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, code, 0, 1, 0, count, 0, 0, 0, 0]);
    answer.extend(question);
    for address in addresses {
        // The name of the question, A, IN, a TTL of one second, four bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        answer.extend(address);
    }
    Some(answer)
}

/// Serves the zone; returns the address and the count of queries without answer.
async fn name_server() -> (SocketAddr, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    let silent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&silent);
    tokio::spawn(async move {
        let mut query = [0; 1024];
        while let Ok((read, from)) = socket.recv_from(&mut query).await {
            if let Some(answer) = answer(&query[..read], &count) {
                let _ = socket.send_to(&answer, from).await;
            }
        }
    });
    (address, silent)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_judged_by_all_that_it_resolves_to() {
    let (server, _) = name_server().await;
    let bench = Bench::start_with(|config| {
        config.webhook_resolvers = NameServers::parse(&server.to_string()).unwrap();
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
        let (partner, _) = bench.partner(Some(&format!("http://{with_port}{path}"))).await;
        let topup = bench.ready_and_announced(partner).await;
        let stored = bench.attempted(&topup).await;
        assert_eq!(stored.error.as_deref(), error, "{host}");
    }
    bench.abandon();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_server_that_never_answers_holds_neither_threads_nor_other_webhooks() {
    let (server, queries) = name_server().await;
    let bench = Bench::prepared().await;
    let folder = tempfile::tempdir().unwrap();
    let mut program = program(&bench, folder.path());
    program.env.insert("WEBHOOK_RESOLVERS".into(), server.to_string());
    let mut silent = Vec::new();
    for partner in 0..20 {
        let url = format!("http://{partner}.silent.test:8080/hook");
        let (partner, _) = bench.partner(Some(&url)).await;
        silent.extend(bench.copies(partner, SILENT / 20, Some(Duration::ZERO)).await);
    }
    let good = bench.receiver.url("/good").replace("127.0.0.1", "good.test");
    let (partner, _) = bench.partner(Some(&good)).await;
    let mut notifier = Process::new(program);
    notifier.start().await.unwrap();
    wait::soon("lookups in flight", async || {
        Ok((queries.load(Ordering::Relaxed) >= SILENT / 5).then_some(()))
    })
    .await;
    let began = Instant::now();
    let topup = bench.ready_and_announced(partner).await;
    bench.delivered(&topup).await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
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

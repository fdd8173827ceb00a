//! Verdicts and releases between an ingress and a provisioner.

use std::sync::{Arc, Mutex};

use domain::{OrderId, PlacementId};
use pipeline::handshake::{Hint, Release};
use pipeline::payload::{MOST, Releases, Said, Verdict, Verdicts};
use runtime::Shutdown;
use serde::de::DeserializeOwned;

use crate::bench::{Bench, connect, until};

/// The messages that arrive on a subject.
async fn heard<M: DeserializeOwned + Send + 'static>(bench: &Bench, subject: String) -> Arc<Mutex<Vec<M>>> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (nats, kept) = (connect(&bench.config).await, Arc::clone(&heard));
    let listening = nats.clone();
    tokio::spawn(async move { listening.listen(subject, |message| kept.lock().unwrap().push(message)).await });
    tokio::task::yield_now().await;
    // After this round trip, the server knows the subscription.
    nats.ensure_streams().await.unwrap();
    heard
}

fn verdict() -> Verdict {
    Verdict { order_id: OrderId::new(), placement_id: PlacementId::new(), said: Said::Placed }
}

#[tokio::test]
async fn verdicts_reach_the_ingress_that_waits_together() {
    let bench = Bench::new().await;
    let [one, other] = ["one", "other"].map(|instance| bench.nats.verdict_subject(instance));
    let (ones, others) = (heard::<Verdicts>(&bench, one.clone()).await, heard(&bench, other.clone()).await);
    let hints = bench.nats.verdicts("me", &Shutdown::new());
    let (to_one, to_other): (Vec<_>, Vec<_>) = (0..40).map(|_| (verdict(), verdict())).unzip();
    let addresses: [Arc<str>; 2] = [one.into(), other.into()];
    for verdicts in to_one.iter().zip(&to_other) {
        for (verdict, to) in [verdicts.0, verdicts.1].into_iter().zip(&addresses) {
            hints.push(Hint { to: Arc::clone(to), verdict: verdict.clone() });
        }
    }
    for (heard, expected) in [(ones, to_one), (others, to_other)] {
        let rows = || {
            let mut rows = Vec::new();
            for Verdicts::V2 { release_to, verdicts } in heard.lock().unwrap().iter() {
                assert_eq!(*release_to, bench.nats.release_subject("me"));
                assert!(verdicts.len() <= MOST);
                rows.extend(verdicts.clone());
            }
            rows
        };
        until("all verdicts", async || rows().len() == expected.len()).await;
        assert_eq!(rows(), expected);
        assert!(heard.lock().unwrap().len() <= 4, "they travel together");
    }
}

#[tokio::test]
async fn releases_go_to_addresses_of_ours_and_nowhere_else() {
    let bench = Bench::new().await;
    let ours = bench.nats.release_subject("me");
    let released = heard::<Releases>(&bench, ours.clone()).await;
    let forged = heard::<Releases>(&bench, format!("{}topup.elsewhere", bench.config.stream_prefix)).await;
    let releases = bench.nats.releases(&Shutdown::new());
    let placement_id = PlacementId::new();
    let long = "x".repeat(5_000);
    for to in [
        format!("{}topup.elsewhere", bench.config.stream_prefix),
        // The server would end the connection: a subject of it has at most 4 KiB.
        bench.nats.release_subject(&long),
        bench.nats.release_subject("me.elsewhere"),
        bench.nats.release_subject("me 0\r\n\r\nPUB topup.job.sandbox"),
        ours,
    ] {
        releases.push(Release { to: to.into(), placement_id });
    }
    until("the release", async || !released.lock().unwrap().is_empty()).await;
    let Releases::V2 { placements } = released.lock().unwrap()[0].clone();
    assert_eq!(placements, [placement_id]);
    bench.nats.flush().await;
    assert!(forged.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_unreadable_hint_is_passed_by() {
    let bench = Bench::new().await;
    let ours = bench.nats.release_subject("me");
    let released = heard::<Releases>(&bench, ours.clone()).await;
    let long = serde_json::json!({"type": "releases.v2", "placements": [PlacementId::new()]});
    for passed_by in ["nonsense".to_owned(), format!("{long}{}", " ".repeat(64 * 1024))] {
        bench.nats.client().publish(ours.clone(), passed_by.into()).await.unwrap();
    }
    let placement_id = PlacementId::new();
    let releases = bench.nats.releases(&Shutdown::new());
    releases.push(Release { to: ours.into(), placement_id });
    until("the release", async || !released.lock().unwrap().is_empty()).await;
    let Releases::V2 { placements } = released.lock().unwrap()[0].clone();
    assert_eq!(placements, [placement_id]);
}

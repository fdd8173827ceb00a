//! What goes wrong is told to whoever has no Prometheus, once by all consoles.

use std::time::Duration;

use desk::operator::health::life::FindingWatch;
use serde_json::json;
use signing::webhook::Secret;
use testkit::receiver::{Received, Receiver};

use crate::support::{Bench, PATIENCE};

const PATH: &str = "/hooks/token-in-the-path";

fn is_of(one: &Received, stage: &str) -> bool {
    one.json["finding"] == format!("stage_dead:{stage}")
}

fn id_of(one: &Received) -> &str {
    one.headers["webhook-id"].to_str().unwrap()
}

#[tokio::test]
async fn each_finding_that_opens_and_is_mended_is_told_once_by_two_consoles() {
    let receiver = Receiver::start().await.unwrap();
    let secret = Secret::from_bytes(vec![7; 32]).unwrap().to_text();
    receiver.verify(PATH, &secret).unwrap();
    // The first try is lost.
    receiver.fail_first(PATH, 503);
    let url = receiver.url(PATH);
    let settings = [("ALERT_URL", url.as_str()), ("ALERT_SECRET", &secret)];
    let bench = Bench::start_with(&settings).await;
    let mut connection = bench.database.connect().await.unwrap();
    let beside = bench.beside(&settings).await;
    let told = receiver
        .wait_until(
            PATIENCE * 2,
            "three dead stages, and what was lost",
            |all| {
                let taken = |is_it: &dyn Fn(&Received) -> bool| {
                    all.iter().any(|one| one.answer == 200 && is_it(one))
                };
                let mut stages = ["ingress", "provisioner", "notifier"].into_iter();
                let mut lost = all.iter().filter(|one| one.answer == 503);
                stages.all(|stage| taken(&|one| is_of(one, stage)))
                    && lost.all(|lost| taken(&|one| id_of(one) == id_of(lost)))
            },
        )
        .await
        .unwrap();
    assert!(told.iter().all(Received::is_valid));
    assert!(told.iter().any(|one| one.answer == 503));
    let taken: Vec<_> = told.iter().filter(|one| one.answer == 200).collect();
    let mut of_provisioner = taken.iter().filter(|one| is_of(one, "provisioner"));
    let body = &of_provisioner.next().unwrap().json;
    assert!(of_provisioner.next().is_none(), "told twice: {taken:?}");
    assert_eq!(body["change"], "opened");
    assert_eq!(body["severity"], "fault");
    assert_eq!(body["until"], json!(null));
    assert_eq!(body["link"], "http://127.0.0.1:8085/needs");
    for part in ["what", "since", "remedy", "text"] {
        assert!(!body[part].as_str().unwrap().is_empty(), "{body}");
    }

    sqlx::query(
        "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
         VALUES (gen_random_uuid(), 'provisioner', 1, 1, false, now() + interval '1 hour')",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    // A process that does not wait for a minute notes the end.
    let mut watch = FindingWatch::new(Duration::ZERO);
    let noted = watch.update(&mut connection).await.unwrap().noted;
    assert!(!noted.is_empty());
    let told = receiver
        .wait_until(PATIENCE, "the end", |all| {
            all.iter().any(|one| one.json["change"] == "mended")
        })
        .await
        .unwrap();
    let mended = told
        .iter()
        .find(|one| one.json["change"] == "mended")
        .unwrap();
    assert!(
        is_of(mended, "provisioner") && mended.json["until"].is_string(),
        "{:?}",
        mended.json
    );
    assert_eq!(mended.json["remedy"], json!(null));
    beside.stop().await;
    bench.stop().await;
}

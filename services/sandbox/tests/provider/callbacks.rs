//! Callbacks, as a provisioner gets them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::support::{Started, config, free_address, ledger_file, option, sorted, units};

const PATH: &str = "/callbacks/sandbox/token";

/// Starts a server that stands for the provisioner and answers each callback with 500, so that a
/// retry would be noticed. Returns its URL and the callbacks that it gets.
async fn partner() -> (String, mpsc::UnboundedReceiver<Value>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let router =
        Router::new()
            .route(
                PATH,
                post(
                    |State(sender): State<mpsc::UnboundedSender<Value>>,
                     Json(body): Json<Value>| async move {
                        sender.send(body).unwrap();
                        StatusCode::INTERNAL_SERVER_ERROR
                    },
                ),
            )
            .with_state(sender);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{PATH}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, receiver)
}

async fn next(callbacks: &mut mpsc::UnboundedReceiver<Value>) -> Value {
    tokio::time::timeout(Duration::from_secs(10), callbacks.recv())
        .await
        .unwrap()
        .unwrap()
}

#[tokio::test]
async fn a_unit_is_called_back_when_it_becomes_ready_and_a_duplicate_twice() {
    let (_folder, path) = ledger_file();
    let (url, mut callbacks) = partner().await;
    let mut settings = config(&path);
    settings.serve.callback_url = Some(url.into());
    let sandbox = Started::with(settings).await;

    let duplicate = sandbox
        .order("order-1", &[(&option("duplicate-callback"), 2)])
        .await;
    let mut counts: HashMap<String, u32> = HashMap::new();
    for _ in 0..4 {
        let topup = next(&mut callbacks).await["topupId"]
            .as_str()
            .unwrap()
            .to_owned();
        *counts.entry(topup).or_default() += 1;
    }
    for topup in sorted(&duplicate["products"], "topupId") {
        assert_eq!(counts[topup], 2);
    }

    let canceled = sandbox.order("order-4", &[(&option("delayed"), 1)]).await;
    sandbox
        .cancel(canceled["products"][0]["topupId"].as_str().unwrap())
        .await;
    let begun = Instant::now();
    sandbox.order("order-2", &[(&option("delayed"), 2)]).await;
    sandbox.order("order-3", &[(&option("partly"), 2)]).await;
    // These get no callback, because they are ready at the first GET or never. Neither do the
    // failed and the cancelled unit above.
    sandbox
        .order(
            "order-5",
            &[(&option("ready"), 2), (&option("never-ready"), 1)],
        )
        .await;
    let mut called = Vec::new();
    for _ in 0..3 {
        let callback = next(&mut callbacks).await;
        let is_partly = callback["optionId"] == option("partly");
        let seconds = if is_partly { 1 } else { 2 };
        assert!(
            begun.elapsed() >= Duration::from_secs(seconds),
            "{callback}"
        );
        called.push(callback);
    }
    called.sort_by_key(|callback| callback["optionId"] != option("partly"));
    let partly = called.remove(0);
    let fetched = sandbox.fetch("order-3").await;
    let is_partly = |unit: &&Value| unit["topupId"] == partly["topupId"];
    let ready = units(&fetched).iter().find(is_partly).unwrap();
    assert_eq!(ready["status"], "READY");
    let mut fields: Vec<_> = partly
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    fields.sort_unstable();
    let all = "activateCode downloadLink expiredDate iccid optionId qrcodeImgUrl smdp topupId";
    assert_eq!(fields.join(" "), all);
    for field in [
        "iccid",
        "smdp",
        "activateCode",
        "downloadLink",
        "expiredDate",
    ] {
        assert_eq!(partly[field], ready[field]);
    }
    let code = partly["activateCode"].as_str().unwrap();
    assert!(!partly["qrcodeImgUrl"].as_str().unwrap().contains(code));
    let fetched = sandbox.fetch("order-2").await;
    assert_eq!(called.len(), 2);
    for callback in &called {
        assert!(
            sorted(&fetched["products"], "topupId")
                .contains(&callback["topupId"].as_str().unwrap())
        );
    }

    // Nothing else came, and what was answered with 500 is not sent again, because the next
    // callback is one that is due after all others.
    let last = sandbox.order("order-6", &[(&option("delayed"), 1)]).await;
    assert_eq!(
        next(&mut callbacks).await["topupId"],
        last["products"][0]["topupId"]
    );
    sandbox.stop().await;
}

#[tokio::test]
async fn an_absent_partner_delays_no_order() {
    let (_folder, path) = ledger_file();
    let mut settings = config(&path);
    settings.serve.callback_url = Some(format!("http://{}{PATH}", free_address()).into());
    let sandbox = Started::with(settings).await;
    let begun = Instant::now();
    for n in 0..20 {
        let answer = sandbox
            .order(
                &format!("order-{n}"),
                &[(&option("duplicate-callback"), 100)],
            )
            .await;
        assert_eq!(answer["code"], "0000");
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
    sandbox.stop().await;
}

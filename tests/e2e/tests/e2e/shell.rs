//! A client written from the specification alone, in plain shell with openssl and curl.

use crate::shop::{Shop, open};
use anyhow::Result;
use serde_json::Value;
use std::{process::Output, time::Duration};
use testkit::{process::output, stack::Stack, workspace};
use tokio::process::Command;

/// Runs `tests/shell/order.sh` for `qty` units of an option.
async fn order(stack: &Stack, shop: &Shop, secret_key: &str, qty: &str) -> Result<Output> {
    let access_key = &shop.partner.access_key;
    let option = stack.option("ready")?;
    let mut run = Command::new(workspace().join("tests/shell/order.sh"));
    run.args([stack.base_url.as_str(), access_key, secret_key, option, qty]);
    output(&mut run, Duration::from_secs(40)).await
}

#[tokio::test]
async fn a_plain_shell_client_orders() {
    let (stack, shop) = open().await;

    let output = order(&stack, &shop, &shop.partner.secret_key, "2")
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let products = answer["products"].as_array().unwrap();
    assert_eq!(products.len(), 2, "{answer}");
    let topup_ids = products
        .iter()
        .map(|product| product["topup_id"].as_str().unwrap().to_owned());
    shop.delivered(&topup_ids.collect(), Duration::from_secs(20))
        .await
        .unwrap();

    // A wrong signature is refused.
    let output = order(&stack, &shop, "c29tZWJvZHkgZWxzZSdzIHNlY3JldA==", "2")
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["error"]["message"], "Invalid signature.");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "HTTP status 401\n");
}

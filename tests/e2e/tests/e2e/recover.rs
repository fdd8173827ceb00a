//! Restoring an old dump, while the provider has sold more since.

use crate::shop::{PATH, Shop, fresh, ids, show};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use testkit::receiver::{Received, Signature};
use testkit::stack::{Stack, Stage};
use testkit::{client::Client, process::output, wait};
use tokio::process::Command;

const RECOVER: [&str; 4] = ["recover", "--yes", "--reason", "a dump was restored"];
const LONG: Duration = Duration::from_mins(2);

/// A stack whose provider detects no duplicates, with a short settling delay.
async fn start() -> Result<Stack> {
    Stack::builder()
        .env(Stage::Sandbox, "SANDBOX_DETECT_DUPLICATES", "false")
        .env(Stage::Provisioner, "PROVIDER_TIMEOUT", "2s")
        .env(Stage::Provisioner, "SETTLE", "6s")
        .start()
        .await
}

/// `pg_dump` or `pg_restore` on the stack's database.
async fn postgres(program: &str, stack: &Stack, arguments: &[&str], file: &Path) -> Result<()> {
    let programs = std::env::var_os("PG_BIN").context("PG_BIN is not set")?;
    let mut command = Command::new(PathBuf::from(programs).join(program));
    command
        .arg(format!("--dbname={}", stack.database.url()))
        .args(arguments)
        .arg(file);
    let output = output(&mut command, LONG).await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{program}: {said}");
    Ok(())
}

async fn stop(stack: &mut Stack, stages: &[Stage]) -> Result<()> {
    for stage in stages {
        let status = stack
            .process(*stage)?
            .terminate(Duration::from_secs(30))
            .await?;
        ensure!(status.success(), "{stage:?}: {status}");
    }
    Ok(())
}

/// How often the provider sold each placement.
async fn sold(stack: &Stack) -> Result<BTreeMap<String, u64>> {
    let orders = stack.ledger().await?.orders.into_iter();
    Ok(orders
        .map(|order| (order.order_id, order.purchased_times))
        .collect())
}

async fn placement(stack: &Stack, external_order_id: &str) -> Result<(String, String)> {
    let order = show(stack, external_order_id).await?;
    let placement = &order["placements"][0];
    let text = |name: &str| {
        placement[name]
            .as_str()
            .map(str::to_owned)
            .context("placement")
    };
    Ok((text("placement_id")?, text("state")?))
}

async fn in_state(stack: &Stack, external_order_id: &str, wanted: &str) -> Result<()> {
    let what = format!("{external_order_id} to be {wanted}");
    let look = async || Ok((placement(stack, external_order_id).await?.1 == wanted).then_some(()));
    wait::until(LONG, &what, look).await
}

/// The orders before and after the dump.
struct Story {
    stack: Stack,
    shop: Shop,
    /// Delivered before the dump.
    before: BTreeSet<String>,
    /// In the dump and not bought yet: accepted, or placing with an unknown outcome.
    open: BTreeSet<String>,
    /// The placements of `open` that were accepted, and those that were placing.
    accepted: Vec<String>,
    placing: Vec<String>,
    /// Ordered after the dump.
    lost: (String, String),
}

/// Everything is bought and delivered after the dump; then the dump is restored.
async fn restored() -> Result<Story> {
    let mut stack = start().await?;
    let shop = Shop::open(&stack).await?;
    let option = stack.option("ready")?.to_owned();
    let before = ids(&shop.buy(&fresh("before"), &option, 2).await?);
    shop.delivered(&before, LONG).await?;

    let mut open = BTreeSet::new();
    let mut accepted = Vec::new();
    let mut placing = Vec::new();
    stack.set_faults(r#"{"down": true}"#).await?;
    for _ in 0..2 {
        let external = fresh("placing");
        open.extend(ids(&shop.buy(&external, &option, 2).await?));
        in_state(&stack, &external, "placing").await?;
        placing.push(placement(&stack, &external).await?.0);
    }
    stop(&mut stack, &[Stage::Provisioner]).await?;
    stack.set_faults("{}").await?;
    for _ in 0..4 {
        let external = fresh("accepted");
        open.extend(ids(&shop.buy(&external, &option, 2).await?));
        let (id, state) = placement(&stack, &external).await?;
        ensure!(state == "accepted", "{state}");
        accepted.push(id);
    }
    let folder = stack.process(Stage::Sandbox)?.program().log.clone();
    let dump = folder.with_file_name("dump");
    postgres("pg_dump", &stack, &["--format=custom", "--file"], &dump).await?;

    stack.process(Stage::Provisioner)?.start().await?;
    let external = fresh("lost");
    let lost = ids(&shop.buy(&external, &option, 1).await?);
    let lost_placement = placement(&stack, &external).await?.0;
    shop.delivered(&open.union(&lost).cloned().collect(), LONG)
        .await?;
    let refused = stack.esimctl.run::<Value>(&RECOVER).await.unwrap_err();
    ensure!(
        format!("{refused:#}").contains("stop all provisioners"),
        "{refused:#}"
    );

    stop(&mut stack, &Stage::OURS).await?;
    postgres(
        "pg_restore",
        &stack,
        &["--clean", "--if-exists", "--single-transaction"],
        &dump,
    )
    .await?;
    Ok(Story {
        stack,
        shop,
        before,
        open,
        accepted,
        placing,
        lost: (external, lost_placement),
    })
}

impl Story {
    async fn go_on(&mut self) -> Result<()> {
        for stage in Stage::OURS {
            self.stack.process(stage)?.start().await?;
        }
        Ok(())
    }

    /// Waits until every topup that was open in the dump has a second webhook.
    async fn delivered_again(&self) -> Result<Vec<Received>> {
        let again = |received: &[Received]| self.open.iter().all(|id| count(received, id) >= 2);
        let receiver = &self.shop.receiver;
        receiver
            .wait_until(LONG, "every webhook to come again", again)
            .await
    }
}

fn count(received: &[Received], topup_id: &str) -> usize {
    received
        .iter()
        .filter(|one| one.topup_id() == topup_id)
        .count()
}

/// Checks that repeated webhooks of a topup carry the same id and eSIM.
fn consistent(received: &[Received]) -> Result<()> {
    let mut told: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for one in received {
        ensure!(
            (one.path.as_str(), one.signature) == (PATH, Signature::Valid),
            "{one:?}"
        );
        let id = one
            .headers
            .get("webhook-id")
            .and_then(|id| id.to_str().ok());
        let of_this = (
            id.context("webhook-id")?,
            one.json["iccid"].as_str().context("iccid")?,
        );
        let first = told.entry(one.topup_id()).or_insert(of_this);
        ensure!(
            *first == of_this,
            "another eSIM, or another webhook-id: {one:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn what_was_bought_after_the_dump_is_found_and_not_bought_again() {
    let mut story = restored().await.unwrap();
    let stack = &story.stack;
    let dry: Value = stack.esimctl.run(&["recover", "--dry-run"]).await.unwrap();
    let done: Value = stack.esimctl.run(&RECOVER).await.unwrap();
    for (answer, dry_run) in [(&dry, true), (&done, false)] {
        let numbers =
            ["moved", "accepted", "placing", "parked"].map(|name| answer[name].as_i64().unwrap());
        assert_eq!(
            (numbers, answer["dry_run"].as_bool()),
            ([6, 4, 2, 0], Some(dry_run))
        );
    }
    let again: Value = stack.esimctl.run(&RECOVER).await.unwrap();
    assert_eq!(again["accepted"], 0, "{again}");

    // The provider's own list shows the purchase of the order that is lost. It is recorded.
    let list = stack.ledger_csv().await.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), list).unwrap();
    let path = file.path().to_str().unwrap();
    let ledger = ["--ledger", path, "--provider", "sandbox"];
    let command = [&RECOVER[..], &ledger].concat();
    let found = stack.esimctl.run::<Value>(&command).await.unwrap_err();
    let found = format!("{found:#}");
    assert!(
        found.contains("exit status: 3")
            && found.contains("without a placement: 1; in contradiction to the database: 0; of ours that it lacks: 0"),
        "{found}"
    );
    let actions: Value = stack.esimctl.run(&["action", "list"]).await.unwrap();
    assert!(actions.to_string().contains(&story.lost.1), "{actions}");

    story.go_on().await.unwrap();
    let received = story.delivered_again().await.unwrap();
    consistent(&received).unwrap();
    for id in &story.before {
        assert_eq!(
            count(&received, id),
            1,
            "it had been delivered before the dump"
        );
    }
    let sold = sold(&story.stack).await.unwrap();
    assert!(sold.values().all(|times| *times == 1), "{sold:?}");
    assert_eq!(sold.len(), 8, "one before, six in the dump, one after it");

    // An order id of the provider that no order has is a purchase to cancel; all others are
    // placements of ours.
    let (_, lost_placement) = &story.lost;
    for id in sold.keys() {
        assert_eq!(
            show(&story.stack, id).await.is_err(),
            id == lost_placement,
            "{id}"
        );
    }

    // An order after the dump is unknown here: the provider sold it, and the partner's repetition
    // buys another one.
    let (external, placement_id) = &story.lost;
    let unknown = show(&story.stack, external).await.unwrap_err();
    assert!(
        unknown.to_string().contains("there is no order"),
        "{unknown}"
    );
    let option = story.stack.option("ready").unwrap();
    let client: &Client = &story.shop.client;
    let answer = client.order(external, &[(option, 1)]).await.unwrap();
    story
        .shop
        .delivered(&ids(&answer.products().unwrap()), LONG)
        .await
        .unwrap();
    let sold = self::sold(&story.stack).await.unwrap();
    assert_eq!((sold.len(), sold[placement_id]), (9, 1));
}

/// Shows that the test above needs `esimctl recover`.
#[tokio::test]
async fn without_recovery_it_is_bought_twice() {
    let mut story = restored().await.unwrap();
    story.go_on().await.unwrap();
    story.delivered_again().await.unwrap();
    let sold = sold(&story.stack).await.unwrap();
    for id in &story.accepted {
        assert_eq!(sold[id], 2, "{id}");
    }
    // A recorded attempt is looked up with or without recovery.
    for id in &story.placing {
        assert_eq!(sold[id], 1, "{id}");
    }
}

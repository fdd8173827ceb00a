//! The promise under load: clients that hang up at any moment, a wiped JetStream with a backlog,
//! and verdicts of two providers in either order.

use crate::shop::{PATH, Shop, bought_once, fresh, ids, open, size, stored, stored_ids};
use anyhow::{Context, Result};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{collections::BTreeSet, time::Duration};
use testkit::stack::{Ledger, Stack, Stage, Stored};
use testkit::{client::Client, http, ports, process::Process, raw, wait};
use tokio::io::AsyncWriteExt;

/// `HANG_UPS` creates, 64 at a time; each client is gone 0 to 20 ms after its request was sent,
/// some with a FIN and some with a RST.
#[tokio::test]
async fn no_order_whose_client_hangs_up_lacks_its_webhooks() {
    const AT_ONCE: u64 = 64;
    let clients = size("HANG_UPS", 2_000);
    let (mut stack, shop) = open().await;
    let option = stack.option("ready").unwrap();
    // On a busy machine no order may be stored before its client loses patience, so then the
    // clients of the next round have more of it.
    for patience in [1, 5, 25] {
        let next = AtomicU64::new(0);
        let lanes = (0..AT_ONCE).map(async |_| {
            loop {
                let client = next.fetch_add(1, Ordering::Relaxed);
                if client >= clients {
                    return anyhow::Ok(());
                }
                let id = format!("hangs up {patience} {client}");
                let body = testkit::client::order(&id, &[(option, 1)]).to_string();
                let mut stream = raw::connect(&stack.base_url).await?;
                stream
                    .write_all(&raw::create_order(&shop.partner, body.as_bytes())?)
                    .await?;
                // The client's patience, not a wait for a condition.
                tokio::time::sleep(Duration::from_millis(client % 21) * patience).await;
                if client.is_multiple_of(2) {
                    stream.set_zero_linger()?;
                }
            }
        });
        futures_util::future::try_join_all(lanes).await.unwrap();
        if !stored_ids(&stack).await.unwrap().is_empty() {
            break;
        }
    }

    // A stopping ingress finishes its requests, so after its end the stored orders are final.
    let ingress = stack.process(Stage::Ingress).unwrap();
    let ended = ingress.terminate(Duration::from_secs(30)).await.unwrap();
    assert!(ended.success(), "ingress ended with {ended}");
    let topup_ids = stored_ids(&stack).await.unwrap();
    println!("{} of {clients} orders were stored", topup_ids.len());
    assert!(
        !topup_ids.is_empty(),
        "no order was stored: the test proves nothing"
    );
    shop.delivered(&topup_ids, Duration::from_mins(2))
        .await
        .unwrap();
    bought_once(&stack.ledger().await.unwrap()).unwrap();
}

/// `BACKLOG` topups are ready and announced when JetStream loses its storage.
#[tokio::test]
async fn a_wiped_jetstream_with_a_backlog_loses_nothing() {
    const UNITS: u32 = 100;
    let topups = size("BACKLOG", 1_000);
    let builder = Stack::builder().own_nats().without(Stage::Notifier);
    let mut stack = builder.start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let option = stack.option("ready").unwrap().to_owned();
    let mut topup_ids = BTreeSet::new();
    for _ in 0..topups.div_ceil(u64::from(UNITS)) {
        let products = shop.buy(&fresh("backlog"), &option, UNITS).await.unwrap();
        topup_ids.extend(ids(&products));
    }
    let stream = format!("{}TOPUP_READY", stack.prefix);
    let nats = async_nats::connect(stack.nats().unwrap().url())
        .await
        .unwrap();
    let jetstream = async_nats::jetstream::new(nats);
    let announced = async || {
        let ready = stored(&stack).await?.iter().all(|row| row.topup == "ready");
        let waiting = jetstream
            .get_stream(&stream)
            .await?
            .get_info()
            .await?
            .state
            .messages;
        Ok((ready && waiting >= topups / 32).then_some(waiting))
    };
    let waiting = wait::until(Duration::from_mins(1), "the backlog", announced);
    println!(
        "{} topups, {} events in the stream",
        topup_ids.len(),
        waiting.await.unwrap()
    );

    let server = stack.nats().unwrap();
    server.process.kill().await.unwrap();
    server.wipe().unwrap();
    server.process.start().await.unwrap();
    assert!(
        shop.receiver.received().is_empty(),
        "the notifier doesn't run yet"
    );
    stack
        .process(Stage::Notifier)
        .unwrap()
        .start()
        .await
        .unwrap();
    shop.delivered(&topup_ids, Duration::from_mins(3))
        .await
        .unwrap();
    bought_once(&stack.ledger().await.unwrap()).unwrap();
}

/// Two providers, each a sandbox of its own, and a live partner whose orders go to both.
struct TwoProviders {
    stack: Stack,
    shop: Shop,
    other: Process,
    other_url: String,
}

impl TwoProviders {
    const OPTIONS: [&str; 3] = ["ready", "refused", "out-of-stock"];

    async fn start() -> Result<Self> {
        let port = ports::free()?;
        let other_url = format!("http://127.0.0.1:{port}");
        let mut builder = Stack::builder();
        for stage in [Stage::Ingress, Stage::Provisioner] {
            builder = builder.env(stage, "PROVIDERS", "sandbox,usimsa");
        }
        let account = [
            ("ACCESS_KEY", "usimsa-test"),
            ("SECRET_KEY", "c2VjcmV0LWtleQ=="),
        ];
        for (name, value) in account {
            builder = builder.env(Stage::Provisioner, &format!("USIMSA_{name}"), value);
        }
        let builder = builder.env(Stage::Provisioner, "USIMSA_URL", &other_url);
        let mut stack = builder.start().await?;

        let mut program = stack.process(Stage::Sandbox)?.program().clone();
        program.name = "other sandbox".into();
        program.log.set_file_name("other-sandbox.log");
        let admin = format!("127.0.0.1:{}", ports::free()?);
        program.ready_url = format!("http://{admin}/readyz");
        let ledger = program
            .log
            .with_file_name("other-ledger")
            .display()
            .to_string();
        program.env.extend([
            ("LISTEN".into(), format!("127.0.0.1:{port}")),
            ("ADMIN_LISTEN".into(), admin),
            ("SANDBOX_LEDGER".into(), ledger),
        ]);
        for (name, value) in account {
            program.env.insert(format!("SANDBOX_{name}"), value.into());
        }
        let mut other = Process::new(program);
        other.start().await?;

        let mut options = Vec::new();
        for provider in ["sandbox", "usimsa"] {
            for name in Self::OPTIONS {
                options.push(json!({
                    "option_id": uuid::Uuid::now_v7(), "name": format!("{provider} {name}"),
                    "provider": provider, "provider_option_id": stack.option(name)?, "environment": "live",
                }));
            }
        }
        stack
            .esimctl
            .import(json!({ "options": options }).to_string())
            .await?;

        let mut shop = Shop::open(&stack).await?;
        shop.partner = stack
            .create_partner("live", Some(&shop.receiver.url(PATH)))
            .await?;
        shop.receiver.verify(PATH, &shop.partner.webhook_secret)?;
        shop.client = Client::of(&stack.base_url, &shop.partner)?;
        Ok(Self {
            stack,
            shop,
            other,
            other_url,
        })
    }

    /// Orders one unit of each provider, by its option and the provider's latency in milliseconds.
    /// Returns the answer, the units' final states, and the purchases.
    async fn order(
        &self,
        halves: [(&str, u64); 2],
    ) -> Result<(u16, String, Vec<String>, [u64; 2])> {
        let options = self.stack.esimctl.options().await?;
        let id_of = |name: &str| {
            let found = options.iter().find(|option| option.name == name);
            Ok::<_, anyhow::Error>(found.context("not in the catalogue")?.option_id.clone())
        };
        let mut items = Vec::new();
        let mut before = [0; 2];
        let providers = [
            ("sandbox", &self.stack.sandbox_url),
            ("usimsa", &self.other_url),
        ];
        for (number, (provider, url)) in providers.into_iter().enumerate() {
            let (option, latency) = halves[number];
            let faults = json!({ "latency_ms": latency });
            http::client()?
                .put(format!("{url}/faults"))
                .json(&faults)
                .send()
                .await?
                .error_for_status()?;
            items.push(id_of(&format!("{provider} {option}"))?);
            before[number] = purchases(url).await?;
        }
        let id = fresh("both");
        let answer = self
            .shop
            .client
            .order(&id, &[(&items[0], 1), (&items[1], 1)])
            .await?;
        let units = async || {
            let rows: Vec<Stored> = stored(&self.stack)
                .await?
                .into_iter()
                .filter(|row| row.external_order_id == id)
                .collect();
            let settled = |row: &Stored| match row.topup.as_str() {
                "ready" => row.delivery.as_deref() == Some("delivered"),
                other => other == "failed",
            };
            Ok(rows
                .iter()
                .all(settled)
                .then(|| rows.into_iter().map(|row| row.topup).collect::<Vec<_>>()))
        };
        let units = wait::until(Duration::from_secs(30), "the units to be settled", units).await?;
        let mut bought = [0; 2];
        for (number, (_, url)) in providers.into_iter().enumerate() {
            bought[number] = purchases(url).await? - before[number];
        }
        Ok((
            answer.status,
            String::from_utf8_lossy(&answer.body).into_owned(),
            units,
            bought,
        ))
    }
}

async fn purchases(url: &str) -> Result<u64> {
    let ledger = http::client()?.get(format!("{url}/ledger")).send().await?;
    Ok(ledger.json::<Ledger>().await?.purchases)
}

/// As decision 3 says: a 422 only if every placement can be refused; otherwise 201, and what was
/// refused is failed.
#[tokio::test]
async fn an_order_of_two_providers_is_answered_alike_whichever_verdict_comes_first() {
    let mut two = TwoProviders::start().await.unwrap();
    // Ingress waits for verdicts only once it has heard of both provisioners.
    let waits = async || {
        let (status, ..) = two.order([("out-of-stock", 0), ("refused", 0)]).await?;
        Ok((status == 422).then_some(()))
    };
    wait::soon("verdicts of both providers", waits).await;

    for [first, second] in [[0, 500], [500, 0], [0, 0]] {
        let order = two.order([("ready", first), ("refused", second)]).await;
        let (status, body, mut units, bought) = order.unwrap();
        units.sort();
        let case = format!("ready after {first} ms, refused after {second} ms: {status} {body}");
        assert_eq!((status, bought), (201, [1, 0]), "{case}");
        assert_eq!(units, ["failed", "ready"], "{case}");

        let order = two
            .order([("out-of-stock", first), ("refused", second)])
            .await;
        let (status, body, units, bought) = order.unwrap();
        let case = format!("sold out after {first} ms, refused after {second} ms: {status} {body}");
        assert_eq!((status, bought), (422, [0, 0]), "{case}");
        assert!(units.is_empty(), "{case}: {units:?}");
        let messages = ["Out of stock", "Option is not on sale"].map(|text| body.find(text));
        assert!(
            messages[0].is_some() && messages[0] < messages[1],
            "both messages, in the order of the items: {case}"
        );
    }

    // One refuses, and the other's verdict misses PLACEMENT_WAIT: it may be buying.
    let (status, body, mut units, bought) =
        two.order([("refused", 0), ("ready", 3_000)]).await.unwrap();
    units.sort();
    assert_eq!((status, bought), (201, [0, 1]), "{body}");
    assert_eq!(units, ["failed", "ready"], "{body}");
    two.other.kill().await.unwrap();
}

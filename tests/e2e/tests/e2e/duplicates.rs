//! One `external_order_id`, many creates at the same moment.

use crate::partner::header;
use crate::repeats::repeat;
use crate::shop::{Shop, fresh, ids, verdicts_come};
use anyhow::Result;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use testkit::client::{Answer, Client};
use testkit::stack::{Stack, Stage};
use testkit::wait;

const CREATES: usize = 16;
const ROUNDS: usize = 20;
/// Rounds at the same time: fewer requests wait than ingress lets wait.
const AT_ONCE: usize = 2;
const UNDECIDED: &str = r#"503 {"error":"An earlier request with this external order id is not answered yet; try again in a few seconds"}"#;
const TAKEN: &str = r#"422 {"errors":["External order id has already been taken"]}"#;

/// The same order, 16 times at once, by turns to each client.
async fn create(
    clients: &[Client],
    external_order_id: &str,
    option_id: &str,
) -> Result<Vec<Answer>> {
    let clients = clients.iter().cycle().take(CREATES);
    let items = [(option_id, 1)];
    futures_util::future::try_join_all(
        clients.map(|client| client.order(external_order_id, &items)),
    )
    .await
}

/// The answers of all rounds, each with an id of its own.
async fn rounds(clients: &[Client], name: &str, option_id: &str) -> Result<Vec<Vec<Answer>>> {
    let ids: Vec<String> = (0..ROUNDS).map(|_| fresh(name)).collect();
    let rounds = ids.iter().map(|id| create(clients, id, option_id));
    stream::iter(rounds)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// The number of answers of each kind.
fn counted(answers: &[Answer]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for Answer { status, body, .. } in answers {
        // What a 201 says differs from order to order.
        let body = if *status == 201 { &Bytes::new() } else { body };
        *counts
            .entry(format!("{status} {}", String::from_utf8_lossy(body)))
            .or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_sixteen_simultaneous_creates_one_wins() {
    let stack = Stack::builder()
        .replicas(Stage::Ingress, 2)
        .start()
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let both: Vec<Client> = stack
        .base_urls()
        .iter()
        .map(|base_url| Client::of(base_url, &shop.partner).unwrap())
        .collect();
    for client in &both {
        verdicts_come(&stack, client).await.unwrap();
    }

    let expected = BTreeMap::from([("201 ".to_owned(), 1), (TAKEN.to_owned(), CREATES - 1)]);
    let mut topup_ids = BTreeSet::new();
    for clients in [&both[..1], &both] {
        let ready = stack.option("ready").unwrap();
        for answers in rounds(clients, "same", ready).await.unwrap() {
            assert_eq!(counted(&answers), expected);
            let created = answers.iter().find(|answer| answer.status == 201).unwrap();
            topup_ids.extend(ids(&created.products().unwrap()));
        }
    }
    assert_eq!(topup_ids.len(), 2 * ROUNDS);
    let received = shop
        .delivered(&topup_ids, Duration::from_secs(30))
        .await
        .unwrap();
    assert_eq!(
        received.len(),
        2 * ROUNDS,
        "webhooks of orders without an answer"
    );
    assert_eq!(
        stack.ledger().await.unwrap().units,
        u64::try_from(2 * ROUNDS).unwrap()
    );

    // A refused order frees its id, perhaps while other requests use it. Nothing is bought for any
    // of them, so none is told that the id is taken: each is refused itself, or on a slow machine
    // is told after some seconds that it is not decided yet.
    let refusal =
        json!({"errors": ["eSIM Request failed - Status: 9001, Message: Option is not on sale"]});
    let refused = stack.option("refused").unwrap();
    for answers in rounds(&both, "refused", refused).await.unwrap() {
        let counts = counted(&answers);
        let of = |answer: &str| counts.get(answer).copied().unwrap_or_default();
        let refused = of(&format!("422 {refusal}"));
        assert!(
            refused >= 1 && refused + of(UNDECIDED) == CREATES,
            "{counts:?}"
        );
    }
    assert_eq!(
        stack.ledger().await.unwrap().units,
        u64::try_from(2 * ROUNDS).unwrap()
    );
}

/// While a request waits for an earlier order, that order may be refused, and another one may take
/// its place, again and again. Here one order stays undecided instead, which looks the same from
/// outside.
#[tokio::test]
async fn a_repeated_create_waits_for_as_long_as_one_order_takes() {
    let builder = Stack::builder().env(Stage::Ingress, "PLACEMENT_WAIT", "1s");
    let mut stack = builder.start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    verdicts_come(&stack, &shop.client).await.unwrap();
    stack.process(Stage::Provisioner).unwrap().pause().unwrap();
    let items = [(stack.option("ready").unwrap(), 1)];
    let id = fresh("undecided");
    let mut connection = stack.database.connect().await.unwrap();
    let mut undecided = async || {
        let until = "UPDATE orders SET answer_by = now() + interval '1 minute' WHERE external_order_id = $1";
        let until = sqlx::query(until).bind(&id).execute(&mut connection).await;
        until.unwrap().rows_affected() == 1
    };
    let first = shop.client.order(&id, &items);
    let repeated = async {
        wait::soon("the first order to be stored", async || {
            Ok(undecided().await.then_some(()))
        })
        .await;
        let began = Instant::now();
        // One that asks for the answer is told so with a success, because nothing is wrong.
        let (answer, asked) = tokio::join!(
            shop.client.order(&id, &items),
            repeat(&shop.client, &id, &items)
        );
        let asked = asked.unwrap();
        assert_eq!((asked.status, header(&asked, "retry-after")), (202, "1"));
        assert_eq!(header(&asked, "x-service-repeat"), "undecided");
        assert!(asked.json().unwrap()["message"].is_string());
        (answer.unwrap(), began.elapsed())
    };
    let (_, (answer, waited)) = tokio::join!(first, repeated);
    assert_eq!(
        counted(&[answer]),
        BTreeMap::from([(UNDECIDED.to_owned(), 1)])
    );
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    stack.process(Stage::Provisioner).unwrap().resume().unwrap();
}

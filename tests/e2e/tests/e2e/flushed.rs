//! `PostgreSQL` crashes right after somebody was told of an order that waits for a verdict. Such an
//! order is committed without a flush of the log, so each way to tell of it has to flush first.
//!
//! The provisioner and the notifier are stopped, because each of their commits would flush the
//! order, too. Ingress itself flushes once a second by its pulse, so a single round proves little,
//! and each way gets several.

use std::{
    collections::BTreeSet,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{Mutex, atomic::AtomicBool, atomic::Ordering},
    time::Duration,
};

use sqlx::Connection;
use testkit::postgres::PostgresServer;
use testkit::stack::{Stack, Stage};
use testkit::wait;

use crate::shop::{SOON, Shop, bought_once, fresh, ids, verdicts_come};

const ROUNDS: usize = 6;
/// How long it may take until look-ups have found what a crash has lost: the first lease, and the
/// lease of the attempt, whose process might still wait for the provider.
const LOOK_UPS: Duration = Duration::from_mins(4);

/// How somebody is told of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// The 201, after `PLACEMENT_WAIT` without a verdict.
    Answer,
    /// A look-up, while the request that placed the order still waits.
    LookUp,
    /// A list of orders, meanwhile.
    List,
}

async fn start(server: &PostgresServer, placement_wait: &str) -> (Stack, Shop) {
    let builder = Stack::builder().database_server(server.url()).env(
        Stage::Ingress,
        "PLACEMENT_WAIT",
        placement_wait,
    );
    let mut stack = builder.start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    verdicts_come(&stack, &shop.client).await.unwrap();
    stack.process(Stage::Notifier).unwrap().pause().unwrap();
    (stack, shop)
}

/// Waits until ingress hears of the provisioner, and stops it right after.
async fn only_heartbeats(stack: &mut Stack, shop: &Shop) {
    let provisioner = stack.process(Stage::Provisioner).unwrap();
    provisioner.resume().unwrap();
    provisioner.ready().await.unwrap();
    verdicts_come(stack, &shop.client).await.unwrap();
    stack.process(Stage::Provisioner).unwrap().pause().unwrap();
}

/// Whether an order waited for a verdict; `None` if it is not stored.
async fn waited(stack: &Stack, external_id: &str) -> Option<bool> {
    let mut connection = stack.database.connect().await.unwrap();
    let found = "SELECT answering IS NOT NULL FROM orders WHERE external_order_id = $1";
    let found = sqlx::query_scalar(found).bind(external_id);
    found.fetch_optional(&mut connection).await.unwrap()
}

/// Places an order, tells somebody of it and crashes the server. Returns whether that shows
/// anything.
async fn round(told: Told, server: &mut PostgresServer, stack: &mut Stack, shop: &Shop) -> bool {
    only_heartbeats(stack, shop).await;
    let id = fresh("told");
    let items = [(stack.option("ready").unwrap().to_owned(), 1)];
    let items: Vec<(&str, u32)> = items.iter().map(|(id, qty)| (id.as_str(), *qty)).collect();
    if told == Told::Answer {
        let answer = shop.client.order(&id, &items).await.unwrap();
        assert_eq!(answer.status, 201);
    } else {
        let ordering = shop.client.order(&id, &items);
        let looking = wait::until(SOON, "the order to be shown", async || {
            let path = match told {
                Told::LookUp => format!("/api/v1/api_partner/orders/{id}"),
                _ => "/api/v1/api_partner/orders".to_owned(),
            };
            let answer = shop.client.get(&path).send().await?;
            let is_shown = String::from_utf8_lossy(&answer.body).contains(&id);
            Ok((answer.status == 200 && is_shown).then_some(()))
        });
        tokio::select! {
            answer = ordering => panic!("the order was answered before it was looked up: {answer:?}"),
            looked = looking => looked.unwrap(),
        }
    }
    server.stop_immediately().await.unwrap();
    server.start_again().await.unwrap();
    let waited = waited(stack, &id).await;
    let ingress = stack.process(Stage::Ingress).unwrap();
    wait::until(SOON, "ingress to commit again", async || {
        Ok(ingress.ready().await.ok())
    })
    .await
    .unwrap();
    // An order that waits for no verdict is flushed by itself, and shows nothing.
    waited.unwrap_or_else(|| panic!("{told:?}: the order {id} was lost"))
}

/// A server that flushes nothing by itself.
async fn lazy_server(folder: &Path) -> PostgresServer {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711)).unwrap();
    let mut server = PostgresServer::start(folder).await.unwrap();
    server
        .sql("ALTER SYSTEM SET wal_writer_delay = '10s'")
        .await
        .unwrap();
    server.stop_fast().await.unwrap();
    server.start_again().await.unwrap();
    server
}

async fn survives(told: Told, placement_wait: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut server = lazy_server(folder.path()).await;
    let (mut stack, shop) = start(&server, placement_wait).await;
    let mut shown = 0;
    for _ in 0..ROUNDS {
        shown += usize::from(round(told, &mut server, &mut stack, &shop).await);
    }
    assert!(
        shown > ROUNDS / 2,
        "{shown} of {ROUNDS} orders waited for a verdict"
    );
}

#[tokio::test]
async fn an_order_that_was_answered_without_a_verdict_survives_a_crash_of_postgresql() {
    survives(Told::Answer, "400ms").await;
}

#[tokio::test]
async fn an_order_that_was_looked_up_survives_a_crash_of_postgresql() {
    survives(Told::LookUp, "5s").await;
}

#[tokio::test]
async fn an_order_that_was_listed_survives_a_crash_of_postgresql() {
    survives(Told::List, "5s").await;
}

/// The server crashes while the request waits for a verdict, and is back before the request is
/// answered. What was not flushed is gone, so the answer must not be a 201.
#[tokio::test]
async fn an_order_that_a_crash_has_lost_gets_no_201() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = lazy_server(folder.path()).await;
    let (mut stack, shop) = start(&server, "4s").await;
    let option = stack.option("ready").unwrap().to_owned();
    for _ in 0..10 {
        only_heartbeats(&mut stack, &shop).await;
        let id = fresh("lost");
        let items = [(option.as_str(), 1)];
        let crash = async {
            wait::until(SOON, "the order to be stored", async || {
                Ok(waited(&stack, &id).await)
            })
            .await
            .unwrap();
            server.stop_immediately().await.unwrap();
            server.start_again().await.unwrap();
        };
        let (answer, ()) = tokio::join!(shop.client.order(&id, &items), crash);
        let status = answer.unwrap().status;
        if waited(&stack, &id).await.is_none() {
            assert_eq!(status, 500, "the order {id} was lost");
            return;
        }
    }
    panic!("every order was flushed, so this test shows nothing");
}

/// Whether the settlements of this order are stored.
async fn settled(stack: &Stack, external_id: &str) -> bool {
    let mut connection = stack.database.connect().await.unwrap();
    let settled = "SELECT bool_and(state = 'placed') FROM placements JOIN orders USING (order_id)
                   WHERE external_order_id = $1";
    let settled = sqlx::query_scalar(settled).bind(external_id);
    settled.fetch_one(&mut connection).await.unwrap()
}

/// A purchase that a look-up finds again is settled without a flush. A crash right after the
/// webhook may lose it. Then the look-up brings the same eSIMs, and the webhook is repeated as it
/// was.
#[tokio::test]
async fn a_webhook_whose_settlement_a_crash_has_lost_is_repeated_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = lazy_server(folder.path()).await;
    let builder = Stack::builder().database_server(server.url());
    let mut stack = builder.start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let option = stack.option("ready").unwrap().to_owned();
    let mut all = BTreeSet::new();
    let mut lost = 0;
    for _ in 0..10 {
        verdicts_come(&stack, &shop.client).await.unwrap();
        let id = fresh("again");
        let topups = ids(&shop.buy(&id, &option, 2).await.unwrap());
        shop.delivered(&topups, SOON).await.unwrap();
        server.stop_immediately().await.unwrap();
        server.start_again().await.unwrap();
        lost += usize::from(!settled(&stack, &id).await);
        all.extend(topups);
        let ingress = stack.process(Stage::Ingress).unwrap();
        wait::until(SOON, "ingress to commit again", async || {
            Ok(ingress.ready().await.ok())
        })
        .await
        .unwrap();
        if lost == 2 {
            break;
        }
    }
    assert!(
        lost > 0,
        "every settlement was flushed, so this test shows nothing"
    );
    let delivered = async || {
        let mut connection = stack.database.connect().await?;
        let delivered = "SELECT topup_id FROM deliveries WHERE state = 'delivered'";
        let delivered: Vec<String> = sqlx::query_scalar(delivered)
            .fetch_all(&mut connection)
            .await?;
        let missing = all.iter().find(|topup| !delivered.contains(topup));
        Ok(missing.is_none().then_some(()))
    };
    wait::until(LOOK_UPS, "every unit to be delivered again", delivered)
        .await
        .unwrap();
    let received = shop.receiver.received();
    let mut repeated = 0;
    for topup in &all {
        let of_topup = received.iter().filter(|one| one.topup_id() == topup);
        let same: Vec<_> = of_topup
            .map(|one| (&one.headers["webhook-id"], &one.body))
            .collect();
        repeated += usize::from(same.len() > 1);
        assert!(same.windows(2).all(|pair| pair[0] == pair[1]), "{topup}");
    }
    assert!(repeated > 0, "{lost} settlements were lost");
    bought_once(&stack.ledger().await.unwrap()).unwrap();
}

/// How many partners' connections order at once while the log is cut.
const ORDERING: usize = 6;
/// How often the log is cut, and after how many further answers.
const CUTS: usize = 3;
const ANSWERS: usize = 40;

/// A position of the log, and what somebody was told of before it was flushed.
struct Cut {
    position: String,
    answered: Vec<String>,
    bought: Vec<String>,
}

/// A crash keeps a part of the log from its beginning, which has everything that was flushed. So
/// what was answered or bought before a moment must be in the log up to the position that was
/// flushed at that moment, whatever followed. Three servers are made from such parts of one log,
/// whose end falls between two records of orders that are under way.
#[tokio::test]
async fn what_was_answered_or_bought_is_in_each_part_of_the_log_that_a_crash_may_leave() {
    let folder = tempfile::tempdir().unwrap();
    let server = lazy_server(folder.path()).await;
    let builder = Stack::builder().database_server(server.url());
    let stack = builder.start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    verdicts_come(&stack, &shop.client).await.unwrap();
    let base = server.base(folder.path()).await.unwrap();
    let option = stack.option("ready").unwrap();
    let answered = Mutex::new(Vec::new());
    let done = AtomicBool::new(false);
    let ordering = async || {
        while !done.load(Ordering::Relaxed) {
            let id = fresh("cut");
            shop.buy(&id, option, 1).await.unwrap();
            answered.lock().unwrap().push(id);
        }
    };
    let cutting = async || {
        let mut cuts = Vec::new();
        for cut in 1..=CUTS {
            wait::until(SOON, "further answers", async || {
                Ok((answered.lock().unwrap().len() >= cut * ANSWERS).then_some(()))
            })
            .await
            .unwrap();
            let answered = answered.lock().unwrap().clone();
            let ledger = stack.ledger().await.unwrap();
            let position = server.flushed().await.unwrap();
            cuts.push(Cut {
                position,
                answered,
                bought: ledger
                    .orders
                    .into_iter()
                    .map(|order| order.order_id)
                    .collect(),
            });
        }
        // Each position must lie before the end of the log.
        let len = answered.lock().unwrap().len();
        wait::until(SOON, "answers after the last cut", async || {
            Ok((answered.lock().unwrap().len() > len + ORDERING).then_some(()))
        })
        .await
        .unwrap();
        done.store(true, Ordering::Relaxed);
        cuts
    };
    let orders = futures_util::future::join_all((0..ORDERING).map(|_| ordering()));
    let (cuts, _) = tokio::join!(cutting(), orders);
    for told in cuts {
        let cut = base.cut(&server, folder.path(), &told.position);
        let cut = cut.await.unwrap();
        let url = cut.url_of_copy(stack.database.url()).unwrap();
        let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
        let stored = "SELECT external_order_id FROM orders";
        let attempted = "SELECT placement_id::text FROM placements WHERE attempt > 0";
        for (what, query, told) in [
            ("answered", stored, &told.answered),
            ("bought", attempted, &told.bought),
        ] {
            let kept = sqlx::query_scalar(query).fetch_all(&mut connection);
            let kept: Vec<String> = kept.await.unwrap();
            let lost: Vec<_> = told.iter().filter(|one| !kept.contains(one)).collect();
            assert!(told.len() >= ANSWERS, "{} {what}", told.len());
            assert!(lost.is_empty(), "{what} and lost by a crash: {lost:?}");
        }
    }
}

//! What keeps an order in the tables, and what partners ask while it leaves them.

use desk::self_service::{
    esims,
    extensions::{ExtensionOrdered, order as order_extension},
};
use domain::{PartnerId, esim_change::GiveBackCause};
use pg::{
    TransactionEnd,
    transaction::{TransactionKind, TransactionRun},
};
use sqlx::Connection;
use testkit::wait;
use tools::archive;
use uuid::Uuid;

use super::accepted_ago;
use crate::{
    bench::{Bench, applied, bought_pending, parked, placement, topups},
    extensions,
};

/// Each of these keeps an order in the tables until it is undone.
const UNFINISHED: [(&str, &str); 13] = testkit::rows! {
    // A give-back whose next look nobody has planned is as open as one that is due.
    "INSERT INTO esim_requests (topup_id, partner_id, provider, give_back)
     SELECT topup_id, gen_random_uuid(), 'sandbox', 'sending' FROM topups" => "DELETE FROM esim_requests";
    "INSERT INTO esim_requests (topup_id, partner_id, provider, give_back)
     SELECT topup_id, gen_random_uuid(), 'sandbox', 'parked' FROM topups"
        => "UPDATE esim_requests SET give_back = 'refused'";
    "UPDATE esim_requests SET give_back = 'claimed'" => "UPDATE esim_requests SET give_back = 'refused'";
    "INSERT INTO extensions (extension_id, partner_id, topup_id, provider, external_id, option_id, provider_option_id, state)
     SELECT gen_random_uuid(), gen_random_uuid(), topup_id, 'sandbox', 'more', gen_random_uuid(), 'eu-5', 'sending' FROM topups"
        => "UPDATE extensions SET state = 'added'";
    "UPDATE extensions SET state = 'parked'" => "UPDATE extensions SET state = 'refused'";
    "INSERT INTO work SELECT placement_id, 'look_up', 'sandbox', '', partner_id, now() FROM placements"
        => "DELETE FROM work";
    // A report of the provider that no answer has confirmed.
    "INSERT INTO work SELECT derived_id('report', topup_id), 'usage', 'sandbox', topup_id, gen_random_uuid(), now() FROM topups"
        => "DELETE FROM work";
    "INSERT INTO held (id, state, provider, partner_id) SELECT placement_id, 'parked', 'sandbox', partner_id FROM placements" => "DELETE FROM held";
    "INSERT INTO held (id, state, provider, partner_id) SELECT delivery_id, 'exhausted', '', partner_id FROM deliveries" => "DELETE FROM held";
    "UPDATE deliveries SET state = 'pending'" => "UPDATE deliveries SET state = 'delivered'";
    "UPDATE placements SET state = 'parked'" => "UPDATE placements SET state = 'placed'";
    // Whatever their term is: nothing may bring a code into a file, or throw one away.
    "UPDATE esims SET profile = '\\x01'" => "UPDATE esims SET profile = NULL";
    "UPDATE walks SET days = 30 WHERE name = 'attempts'" => "DELETE FROM delivery_attempts";
};

#[tokio::test]
async fn an_order_stays_while_anything_of_it_is_open() {
    let bench = Bench::keeping_everything().await;
    let partner = PartnerId::new();
    let order = bench.delivered(partner, "o-1", 500).await;
    let expected = vec![order.order_id.uuid()];
    assert_eq!(bench.finished().await, expected);
    for (opens, ends) in UNFINISHED {
        bench.sql(opens).await;
        assert_eq!(bench.finished().await, Vec::<Uuid>::new(), "{opens}");
        bench.sql(ends).await;
        assert_eq!(bench.finished().await, expected, "{ends}");
    }
    // Placements on their way.
    for outcome in [Some(bought_pending as fn(_, _) -> _), Some(parked), None] {
        let open = bench.stored(accepted_ago(partner, 500)).await;
        if let Some(outcome) = outcome {
            bench.claim(&[placement(&open)]).await;
            bench.settle(&[outcome(placement(&open), 1)]).await;
        }
        assert_eq!(bench.finished().await, expected);
    }
}

/// Waits until a request waits for a batch or an erasure that has locked its order.
async fn ends_after_a_wait<T>(
    bench: &Bench,
    asking: impl Future<Output = T>,
    ending: impl Future<Output = ()>,
) -> T {
    let after_a_wait = async {
        wait::soon("the request to wait", async || {
            Ok(bench.waits_for_a_lock().await.then_some(()))
        })
        .await;
        ending.await;
    };
    tokio::join!(asking, after_a_wait).0
}

/// A partner asks for something while its order is being archived. The batch has judged the order
/// already, so a request that it does not see would be about an eSIM that is gone.
#[tokio::test]
async fn nothing_is_asked_about_an_order_that_is_being_archived() {
    let bench = Bench::keeping_everything().await;
    let partner = PartnerId::new();
    let option = bench.option().await;
    for asked in ["give_back", "extend", "usage"] {
        let order = bench.delivered(partner, asked, 500).await;
        let topup = topups(&order).remove(0);
        let mut archive = bench.ripe(10).await;
        let mut connection = bench.connection().await;
        let archiving = TransactionRun::new("a test");
        let mut transaction = archiving
            .begin(&mut connection, TransactionKind::Writing)
            .await
            .unwrap();
        let ids = [order.order_id.uuid()];
        let copied = archive::copy(&mut transaction, &archive, &ids)
            .await
            .unwrap();
        archive::complete(&mut transaction, &mut archive, &copied, "sum")
            .await
            .unwrap();
        let mut partners = bench.connection().await;
        let asking = async {
            match asked {
                "give_back" => {
                    esims::ask_give_back(&mut partners, partner, &topup, GiveBackCause::Other).await
                }
                "extend" => {
                    let new = extensions::new(&topup, "more-1", option);
                    let answer = order_extension(&mut partners, partner, new).await?;
                    assert!(matches!(answer, ExtensionOrdered::NotReady), "{answer:?}");
                    Ok(())
                }
                _ => esims::ask_usage(&mut partners, partner, &topup).await,
            }
        };
        let commit = async {
            let done = Ok::<_, pg::Error>(TransactionEnd::Commit(()));
            archiving.end_once(transaction, done).await.unwrap();
        };
        ends_after_a_wait(&bench, asking, commit).await.unwrap();
        for table in ["esim_requests", "extensions"] {
            assert_eq!(bench.count_of(table).await, 0, "{table}");
        }
    }
}

/// The same with an erasure, and the other way round: an order that is asked about is not erased.
#[tokio::test]
async fn a_give_back_and_an_erasure_exclude_each_other() {
    let bench = Bench::keeping_everything().await;
    let partner = PartnerId::new();
    let order = bench.delivered(partner, "o-1", 500).await;
    // Only an eSIM whose code is known can be given back.
    bench
        .sql("UPDATE esims SET profile = '\\x01', erased_at = NULL")
        .await;
    let topup = topups(&order).remove(0);
    let mut connection = bench.connection().await;
    let mut asked = connection.begin().await.unwrap();
    esims::ask_give_back(&mut asked, partner, &topup, GiveBackCause::Other)
        .await
        .unwrap();
    let mut operator = bench.connection().await;
    let erasing = desk::operator::erase::order(&mut operator, order.order_id, applied());
    let commit = async { asked.commit().await.unwrap() };
    let erased = ends_after_a_wait(&bench, erasing, commit).await;
    assert!(erased.is_err(), "{erased:?}");
    assert_eq!(bench.count_of("esim_requests").await, 1);

    bench
        .sql("UPDATE esim_requests SET give_back = NULL; DELETE FROM work")
        .await;
    let mut erasing = operator.begin().await.unwrap();
    desk::operator::erase::order(&mut erasing, order.order_id, applied())
        .await
        .unwrap();
    let asking = esims::ask_give_back(&mut connection, partner, &topup, GiveBackCause::Other);
    let commit = async { erasing.commit().await.unwrap() };
    ends_after_a_wait(&bench, asking, commit).await.unwrap();
    assert_eq!(bench.count_of("esim_requests").await, 0);
}

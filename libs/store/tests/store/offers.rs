//! What partners are told when the options change that they may order.

use desk::operator::prices::{self, NewPrice};
use domain::{Amount, OptionId, PartnerId, event::EventKind, product::Currency};
use futures_util::future::join_all;
use store::deliveries::{
    DeliveryContent,
    events::Subject,
    offers::{self, OptionsChangedContent},
};

use crate::bench::{Bench, applied};

impl Bench {
    /// What several notifiers that look at once tell. Each event is told to this partner.
    async fn changes(&self, partner: PartnerId) -> Vec<OptionsChangedContent> {
        let looks = (0..4).map(async |_| {
            let mut connection = self.connection().await;
            offers::tell_changes(&mut connection).await.unwrap()
        });
        let made: u64 = join_all(looks).await.into_iter().sum();
        let mut found = Vec::new();
        for delivery in self.all_due().await {
            assert_eq!(delivery.partner_id, partner);
            let DeliveryContent::Event(event) = delivery.content else {
                panic!("no event")
            };
            let Subject::OptionsChanged(content) = event.subject else {
                panic!("{event:?}")
            };
            found.push(content);
            let done = "WITH gone AS (DELETE FROM work WHERE id::text = $1)
                        DELETE FROM deliveries WHERE delivery_id::text = $1";
            self.set(done, delivery.id).await;
        }
        assert_eq!(u64::try_from(found.len()).unwrap(), made);
        found
    }
}

#[tokio::test]
async fn each_change_of_what_may_be_ordered_is_told_once() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    let silent = bench.partner(Some("https://silent.example/")).await;
    bench.set_events(silent, &[EventKind::KeyExpiring]).await;
    let first = bench.option().await;
    bench
        .set_events(partner, &[EventKind::OptionsChanged])
        .await;
    assert_eq!(bench.changes(partner).await, [], "it knows what there is");
    let second = bench.option().await;
    let one = |option: OptionId| OptionsChangedContent {
        total: 1,
        added: vec![option],
        ..OptionsChangedContent::default()
    };
    assert_eq!(bench.changes(partner).await, [one(second)]);
    assert_eq!(bench.changes(partner).await, [], "it is told");
    // What it does not see is no news: the route, and an option that costs us more.
    let route = "UPDATE options SET cost = 5, cost_currency = 'USD', provider = 'other' WHERE option_id::text = $1";
    bench.set(route, first).await;
    assert_eq!(bench.changes(partner).await, []);
    let named = "UPDATE options SET name = 'another' WHERE option_id::text = $1";
    bench.set(named, first).await;
    let gone = "UPDATE options SET enabled = false WHERE option_id::text = $1";
    bench.set(gone, second).await;
    let both = OptionsChangedContent {
        total: 2,
        changed: vec![first],
        removed: vec![second],
        ..OptionsChangedContent::default()
    };
    assert_eq!(bench.changes(partner).await, [both]);

    // A price list has only one of them, and later another price.
    let third = bench.option().await;
    assert_eq!(bench.changes(partner).await, [one(third)]);
    let currency = Currency::of_money("EUR").unwrap();
    let price = |minor, valid_from| NewPrice {
        option_id: first,
        amount: Some(Amount { minor, currency }),
        valid_from,
    };
    let later = runtime::clock::now() + time::Duration::hours(1);
    let mut connection = bench.connection().await;
    for wanted in [price(100, None), price(120, Some(later))] {
        prices::apply(&mut connection, "retail", currency, &[wanted], applied())
            .await
            .unwrap();
    }
    prices::assign(&mut connection, partner, Some("retail"), applied())
        .await
        .unwrap();
    let priced = OptionsChangedContent {
        total: 2,
        removed: vec![third],
        repriced: vec![first],
        ..OptionsChangedContent::default()
    };
    assert_eq!(bench.changes(partner).await, [priced]);
    assert_eq!(bench.changes(partner).await, [], "it is not valid yet");
    bench
        .sql("UPDATE prices SET valid_from = now() WHERE valid_from > now()")
        .await;
    let repriced = OptionsChangedContent {
        total: 1,
        repriced: vec![first],
        ..OptionsChangedContent::default()
    };
    assert_eq!(bench.changes(partner).await, [repriced]);

    // Who asks again begins anew.
    bench.set_events(partner, &[]).await;
    assert_eq!(bench.changes(partner).await, []);
    bench.set(named, third).await;
    bench
        .set_events(partner, &[EventKind::OptionsChanged])
        .await;
    assert_eq!(bench.changes(partner).await, []);
    assert_eq!(bench.changes(partner).await, []);
}

//! Money: what orders hold, and what becomes of it. Each test ends with the comparison of accounts,
//! entries and units that operators have ([`balances::check`]), so it also finds what the test does
//! not look at.

use std::collections::HashMap;

use desk::{
    operator::{
        balances::{self, AccountView, Booking, CreditLimit, NotBooked},
        books,
        health::{Finding, FindingKind, HealthReport, examine, finding::Severity, money},
        margin::{self, CalendarMonth, MarginBy, MarginFilter, MarginLine},
        prices::{self, NewPrice},
    },
    self_service::{
        self, OptionFilter, OptionPage, StatementRange,
        extensions::{ExtensionOrdered, ExtensionScope, order as extend},
    },
};
use domain::{
    Agreed, Amount, Environment, PartnerId,
    event::EventKind,
    money::{EntryKind, PricedUnit},
    product::Currency,
};
use futures_util::future::join_all;
use store::{
    deliveries::{
        DeliveryContent,
        events::{self, Subject},
    },
    orders::{self, Inserted, NewOrder, OrderCancellation},
    placements::{PlacementSettlement, Progress},
};

use crate::bench::{
    self, Bench, Told, answered, applied, bought, execute, order, placement, ready, rejected,
    topups, unit,
};
use crate::extensions::new;

fn eur(minor: i64) -> Amount {
    amount(minor, "EUR")
}

fn amount(minor: i64, code: &str) -> Amount {
    Amount {
        minor,
        currency: Currency::of_money(code).unwrap(),
    }
}

/// The order with this price for each of its units.
fn priced(mut order: NewOrder, price: Amount) -> NewOrder {
    let placements = order.placements.iter_mut();
    for topup in placements.flat_map(|one| &mut one.topups) {
        topup.agreed = Agreed {
            price: Some(price),
            ..topup.agreed
        };
    }
    order
}

fn with_prices(settlement: PlacementSettlement) -> PlacementSettlement {
    PlacementSettlement {
        is_priced: true,
        ..settlement
    }
}

impl Bench {
    async fn limit(&self, partner: PartnerId, currency: Currency, limit: CreditLimit) {
        let mut connection = self.connection().await;
        balances::set_limit(&mut connection, partner, currency, limit, applied())
            .await
            .unwrap();
    }

    async fn pay(&self, partner: PartnerId, amount: Amount, reference: &str) {
        let booking = Booking {
            partner_id: partner,
            kind: EntryKind::Deposit,
            amount,
            reference,
            reason: "paid",
            operator: "tester",
        };
        balances::book(&mut *self.connection().await, booking, applied())
            .await
            .unwrap();
    }

    /// A partner with a prepaid account in EUR and this balance.
    async fn prepaid(&self, minor: i64) -> PartnerId {
        let partner = self.partner(None).await;
        let amount = eur(minor);
        self.limit(partner, amount.currency, CreditLimit::UpTo(0))
            .await;
        if minor > 0 {
            self.pay(partner, amount, "first").await;
        }
        partner
    }

    async fn insert_limited(&self, orders: &[NewOrder]) -> Vec<Inserted> {
        orders::insert_limited(&mut *self.connection().await, orders)
            .await
            .unwrap()
    }

    async fn books(&self, partner: PartnerId) -> AccountView {
        let accounts = balances::accounts_of(&mut *self.connection().await, partner).await;
        accounts.unwrap().remove(0)
    }

    /// What the account has and what of it is held.
    async fn funds(&self, partner: PartnerId) -> (i64, i64) {
        let account = self.books(partner).await;
        (account.balance, account.held)
    }

    /// The entries as pairs of kind and amount, the oldest first.
    async fn booked(&self, partner: PartnerId) -> Vec<(String, i64)> {
        let mut connection = self.connection().await;
        let accounts = balances::with_last_entries(&mut connection, partner, 1000).await;
        let lines = accounts.unwrap().remove(0).last_entries;
        let lines = lines.into_iter().rev();
        lines.map(|line| (line.kind, line.amount)).collect()
    }

    async fn agrees(&self) {
        let found = balances::check(&mut *self.connection().await).await;
        assert_eq!(found.unwrap().disagreements, []);
    }

    /// Gives all eSIMs of the order back, as a provider's answer does.
    async fn returned(&self, order: &NewOrder) {
        for topup in topups(order) {
            self.set(
                "UPDATE esims SET returned_at = now(), erased_at = now(), profile = NULL WHERE topup_id = $1",
                topup,
            )
            .await;
        }
    }
}

#[tokio::test]
async fn each_fall_below_the_threshold_is_told_once() {
    let bench = Bench::new().await;
    let partner = bench.prepaid(1000).await;
    bench.set_events(partner, &[EventKind::BalanceLow]).await;
    let silent = bench.prepaid(10).await;
    let warn = async |partner: PartnerId, threshold: Option<i64>| {
        let mut connection = bench.connection().await;
        let set = self_service::warn_below(&mut connection, partner, "EUR", threshold);
        assert!(set.await.unwrap());
    };
    // Several notifiers look at once.
    let look = async || {
        let looks = (0..4).map(async |_| {
            let mut connection = bench.connection().await;
            events::low_balances(&mut connection, None).await.unwrap()
        });
        join_all(looks).await.into_iter().sum::<u64>()
    };
    let told = async || {
        let mut found = Vec::new();
        for delivery in bench.all_due().await {
            assert_eq!(delivery.partner_id, partner);
            let DeliveryContent::Event(event) = delivery.content else {
                panic!("no event")
            };
            let Subject::BalanceLow(low) = event.subject else {
                panic!("{event:?}")
            };
            assert_eq!(low.currency, "EUR");
            found.push((low.available, low.threshold, low.last_entry));
            let done = "WITH gone AS (DELETE FROM work WHERE id::text = $1) DELETE FROM deliveries WHERE delivery_id::text = $1";
            bench.set(done, delivery.id).await;
        }
        found
    };
    warn(partner, Some(500)).await;
    warn(silent, Some(500)).await;
    assert_eq!((look().await, told().await), (0, vec![]), "1000 is enough");
    let order = priced(answered(partner, 2), eur(250));
    bench.insert_limited(std::slice::from_ref(&order)).await;
    assert_eq!(
        (look().await, told().await),
        (0, vec![]),
        "500 is not below 500"
    );
    bench
        .insert_limited(&[priced(answered(partner, 1), eur(1))])
        .await;
    assert_eq!(look().await, 1);
    assert_eq!(told().await, [(499, 500, 1)]);
    bench
        .insert_limited(&[priced(answered(partner, 1), eur(1))])
        .await;
    assert_eq!((look().await, told().await), (0, vec![]), "it is told");
    // Enough again, and then not.
    bench.pay(partner, eur(2), "second").await;
    assert_eq!((look().await, told().await), (0, vec![]));
    bench
        .insert_limited(&[priced(answered(partner, 1), eur(100))])
        .await;
    assert_eq!(look().await, 1);
    assert_eq!(told().await, [(400, 500, 2)]);
    // The same threshold is no news; another one is compared at once.
    warn(partner, Some(500)).await;
    assert_eq!((look().await, told().await), (0, vec![]));
    warn(partner, Some(401)).await;
    assert_eq!((look().await, told().await), (0, vec![(400, 401, 2)]));
    warn(partner, Some(400)).await;
    warn(partner, None).await;
    assert_eq!((look().await, told().await), (0, vec![]));
    // A disabled partner is told when it is enabled again; an account without a limit has enough.
    bench
        .set(
            "UPDATE partners SET disabled_at = now() WHERE partner_id::text = $1",
            partner,
        )
        .await;
    warn(partner, Some(999)).await;
    assert_eq!(look().await, 0);
    bench
        .set(
            "UPDATE partners SET disabled_at = NULL WHERE partner_id::text = $1",
            partner,
        )
        .await;
    assert_eq!((look().await, told().await), (1, vec![(400, 999, 2)]));
    bench
        .limit(partner, eur(0).currency, CreditLimit::Unlimited)
        .await;
    bench
        .limit(partner, eur(0).currency, CreditLimit::UpTo(0))
        .await;
    assert_eq!(
        (look().await, told().await),
        (0, vec![]),
        "nobody looked in between"
    );
    let mut connection = bench.connection().await;
    let other = self_service::warn_below(&mut connection, partner, "JPY", Some(1));
    assert!(!other.await.unwrap());
    bench.agrees().await;
}

#[tokio::test]
async fn a_unit_is_held_charged_and_refunded_once() {
    let bench = Bench::new().await;
    let partner = bench.prepaid(1000).await;
    let order = priced(answered(partner, 2), eur(250));
    let stored = bench.insert_limited(std::slice::from_ref(&order)).await;
    assert_eq!(stored, [Inserted::Stored]);
    assert_eq!(bench.funds(partner).await, (1000, 500));
    bench.agrees().await;
    bench.claim(&[placement(&order)]).await;
    // One is ready and one fails, and the same outcome is recorded again by a look-up.
    let [one, other] = topups(&order).try_into().unwrap();
    let units = vec![
        ready(&one),
        unit(&other, Progress::Failed("sold out".into())),
    ];
    let outcome = with_prices(bought(placement(&order), 1, units, false));
    for _ in 0..2 {
        bench.settle(std::slice::from_ref(&outcome)).await;
        assert_eq!(bench.funds(partner).await, (750, 0));
        bench.agrees().await;
    }
    bench.returned(&order).await;
    assert_eq!(bench.funds(partner).await, (1000, 0));
    bench.agrees().await;
    let booked = bench.booked(partner).await;
    let mut kinds: Vec<&str> = booked.iter().map(|(kind, _)| kind.as_str()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["charge", "deposit", "refund", "release"]);
}

/// A purchase that was rejected turns out to be sold, and an operator takes it. Its price is no
/// longer held, and is charged all the same, even though the money was spent meanwhile.
#[tokio::test]
async fn a_unit_that_is_ready_after_it_failed_is_charged_late() {
    let bench = Bench::new().await;
    let partner = bench.prepaid(250).await;
    let [order, other] = [250, 240].map(|price| priced(answered(partner, 1), eur(price)));
    bench.insert_limited(std::slice::from_ref(&order)).await;
    let id = placement(&order);
    bench.claim(&[id]).await;
    bench.settle(&[with_prices(rejected(id, 1))]).await;
    assert_eq!(bench.funds(partner).await, (250, 0));
    bench.insert_limited(&[other]).await;
    let pending = with_prices(bench::bought_pending(id, 1));
    bench.settle(&[pending]).await;
    assert_eq!(bench.state(id).await, "parked");
    bench
        .sql(&format!(
            "SELECT resolve_placement('{id}', 'bought', NULL, NULL)"
        ))
        .await;
    let units = topups(&order).iter().map(ready).collect();
    bench
        .settle(&[with_prices(bought(id, 1, units, false))])
        .await;
    assert_eq!(bench.funds(partner).await, (0, 240));
    assert_eq!(bench.booked(partner).await[2], ("late_charge".into(), -250));
    bench.agrees().await;
    bench.returned(&order).await;
    assert_eq!(bench.funds(partner).await, (250, 240));
    bench.agrees().await;
}

/// A settlement that is recorded by the lean statement charges as well.
#[tokio::test]
async fn the_lean_settlement_charges() {
    let bench = Bench::new().await;
    let partner = bench.prepaid(1000).await;
    let orders = [1, 2].map(|units| priced(answered(partner, units), eur(100)));
    bench.insert_limited(&orders).await;
    bench
        .claim(&[placement(&orders[0]), placement(&orders[1])])
        .await;
    let settled = orders.each_ref().map(|order| {
        let units = topups(order).iter().map(ready).collect();
        let outcome = bought(placement(order), 1, units, true);
        with_prices(crate::bench::fresh(order, outcome))
    });
    bench.settle(&settled).await;
    assert_eq!(bench.funds(partner).await, (700, 0));
    // The account was updated once for both, and each unit has an entry.
    assert_eq!(bench.books(partner).await.entries, 4);
    bench.agrees().await;
}

#[tokio::test]
async fn an_order_that_is_refused_or_cancelled_holds_nothing() {
    let bench = Bench::new().await;
    let partner = bench.prepaid(300).await;
    let mut connection = bench.connection().await;
    let first = priced(order(partner, 2), eur(150));
    bench.insert_limited(std::slice::from_ref(&first)).await;
    bench.claim(&[placement(&first)]).await;
    bench
        .settle(&[with_prices(rejected(placement(&first), 1))])
        .await;
    let refused = orders::refuse(&mut connection, first.order_id, true).await;
    assert!(refused.unwrap().is_some());
    assert_eq!(bench.funds(partner).await, (300, 0));
    bench.agrees().await;
    let second = priced(answered(partner, 2), eur(150));
    let id = &second.external_order_id;
    bench.insert_limited(std::slice::from_ref(&second)).await;
    assert_eq!(bench.funds(partner).await, (300, 300));
    let cancelled = orders::cancel(&mut connection, partner, id, Some(second.order_id)).await;
    let cancelled = cancelled.unwrap();
    assert!(
        matches!(cancelled, OrderCancellation::Done(_)),
        "{cancelled:?}"
    );
    assert_eq!(bench.funds(partner).await, (300, 0));
    bench.agrees().await;
}

#[tokio::test]
async fn an_order_beyond_the_balance_holds_nothing_and_may_be_sent_again() {
    let bench = Bench::new().await;
    let partner = bench.prepaid(250).await;
    let named = |id: &str, units| NewOrder {
        external_order_id: id.to_owned(),
        ..priced(order(partner, units), eur(100))
    };
    // In one batch: the same id twice, one that is too large, and one without a price.
    let batch = [
        named("a", 2),
        named("a", 2),
        named("b", 1),
        order(partner, 5),
    ];
    let insufficient = |required, available| Inserted::BalanceInsufficient {
        required: eur(required),
        available: eur(available),
    };
    let stored = bench.insert_limited(&batch).await;
    let beyond = insufficient(100, 50);
    assert_eq!(
        stored,
        [Inserted::Stored, Inserted::Taken, beyond, Inserted::Stored]
    );
    assert_eq!(bench.funds(partner).await, (250, 200));
    // An id that is taken is told as taken, even with an empty account.
    let again = bench.insert_limited(&[named("a", 2), named("b", 1)]).await;
    assert_eq!(again, [Inserted::Taken, beyond]);
    bench.pay(partner, eur(50), "second").await;
    assert_eq!(
        bench.insert_limited(&[named("b", 1)]).await,
        [Inserted::Stored]
    );
    assert_eq!(bench.funds(partner).await, (300, 300));
    bench.agrees().await;
    // A partner without an account has nothing, and one that pays later has no limit.
    let other = bench.partner(None).await;
    let its = priced(order(other, 1), eur(100));
    let stored = bench.insert_limited(std::slice::from_ref(&its)).await;
    assert_eq!(stored, [insufficient(100, 0)]);
    let free = priced(order(other, 1), eur(0));
    assert_eq!(bench.insert_limited(&[free]).await, [Inserted::Stored]);
    bench
        .limit(other, eur(0).currency, CreditLimit::Unlimited)
        .await;
    assert_eq!(bench.insert_limited(&[its]).await, [Inserted::Stored]);
    assert_eq!(bench.funds(other).await, (0, 100));
    bench
        .limit(other, eur(0).currency, CreditLimit::UpTo(50))
        .await;
    let more = priced(order(other, 1), eur(1));
    assert_eq!(bench.insert_limited(&[more]).await, [insufficient(1, -50)]);
}

/// Ten processes that order at the same moment sell what is paid for.
#[tokio::test]
async fn nobody_spends_what_another_one_is_spending() {
    let bench = Bench::new().await;
    for _ in 0..5 {
        let partner = bench.prepaid(3).await;
        let at_once = (0..10).map(|_| async {
            let order = priced(answered(partner, 1), eur(1));
            bench.insert_limited(&[order]).await
        });
        let results = join_all(at_once).await;
        let stored = results.iter().filter(|one| **one == [Inserted::Stored]);
        assert_eq!(stored.count(), 3, "{results:?}");
        bench.agrees().await;
    }
}

/// Sixteen processes order, refuse, cancel, settle, repeat and pay at once. Exactly as much is sold
/// as there is, and nobody waits in a circle.
#[tokio::test]
async fn exactly_what_is_available_is_sold_however_many_sell() {
    let bench = Bench::new().await;
    let partner = bench.prepaid(60).await;
    let one_process = |process: usize| {
        let bench = &bench;
        async move {
            let mut sold = 0;
            for round in 0..12 {
                // Two processes each use the same ids.
                let order = NewOrder {
                    external_order_id: format!("{} {round}", process / 2),
                    ..priced(answered(partner, 1), eur(1))
                };
                let stored = bench.insert_limited(std::slice::from_ref(&order)).await;
                if stored != [Inserted::Stored] {
                    continue;
                }
                let id = placement(&order);
                match (process + round) % 4 {
                    0 => {
                        let mut connection = bench.connection().await;
                        let external_id = &order.external_order_id;
                        let answered = Some(order.order_id);
                        orders::cancel(&mut connection, partner, external_id, answered)
                            .await
                            .unwrap();
                    }
                    1 => {
                        bench.claim(&[id]).await;
                        bench.settle(&[with_prices(rejected(id, 1))]).await;
                    }
                    _ => {
                        bench.claim(&[id]).await;
                        let units = topups(&order).iter().map(ready).collect();
                        bench
                            .settle(&[with_prices(bought(id, 1, units, false))])
                            .await;
                        sold += 1;
                    }
                }
                if round == 5 && process == 0 {
                    bench.pay(partner, eur(7), "more").await;
                }
            }
            sold
        }
    };
    let sold: i64 = join_all((0..16).map(one_process)).await.into_iter().sum();
    bench.agrees().await;
    // What is left is sold out, so the sum is exact whatever happened before.
    let mut rest = 0;
    while bench
        .insert_limited(&[priced(answered(partner, 1), eur(1))])
        .await
        == [Inserted::Stored]
    {
        rest += 1;
    }
    let (balance, held) = bench.funds(partner).await;
    assert_eq!(balance, held);
    assert_eq!(
        sold + rest,
        bench
            .booked(partner)
            .await
            .iter()
            .filter(|(kind, _)| kind == "deposit")
            .map(|(_, amount)| amount)
            .sum::<i64>()
    );
    bench.agrees().await;
}

/// The statements do what the rule of the domain says, for any order of events, in currencies of
/// no, two and three decimals, with several units in one placement.
#[tokio::test]
async fn random_histories_add_up() {
    let bench = Bench::new().await;
    for (round, code) in ["JPY", "EUR", "JOD"]
        .into_iter()
        .cycle()
        .take(12)
        .enumerate()
    {
        let partner = bench.partner(None).await;
        let currency = Currency::of_money(code).unwrap();
        bench.limit(partner, currency, CreditLimit::Unlimited).await;
        let price = amount(1 + i64::try_from(round).unwrap(), code);
        let order = priced(answered(partner, 3), price);
        bench.insert_limited(std::slice::from_ref(&order)).await;
        bench.claim(&[placement(&order)]).await;
        let units = topups(&order);
        let mut model: HashMap<_, PricedUnit> = HashMap::new();
        let events: Vec<(usize, u8)> = (0..8)
            .map(|_| (rand::random_range(0..3), rand::random_range(0..3)))
            .collect();
        // The purchase itself succeeds, as far as its units are known.
        let pending = with_prices(bought(placement(&order), 1, Vec::new(), false));
        bench.settle(&[pending]).await;
        for (index, event) in &events {
            let topup = &units[*index];
            let known = model.entry(topup.clone()).or_default();
            match event {
                0 if !known.is_ready => {
                    known.has_failed = true;
                    let failed = unit(topup, Progress::Failed("gone".into()));
                    let outcome = bought(placement(&order), 1, vec![failed], false);
                    bench.settle(&[with_prices(outcome)]).await;
                }
                1 if !known.is_returned => {
                    known.is_ready = true;
                    // However it comes about: also after the unit has failed.
                    let id = placement(&order);
                    let made = format!(
                        "INSERT INTO esims (topup_id, provider, provider_unit_id, ready_at)
                         VALUES ('{topup}', 'sandbox', 'unit-{topup}', now())
                         ON CONFLICT (topup_id) DO UPDATE SET ready_at = now();
                         SELECT account_for(ARRAY['{id}'::uuid])"
                    );
                    bench.sql(&made).await;
                }
                2 if known.is_ready && !known.is_returned => {
                    known.is_returned = true;
                    bench
                        .set(
                            "UPDATE esims SET returned_at = now() WHERE topup_id = $1",
                            topup,
                        )
                        .await;
                }
                _ => {}
            }
            for entry in known.due() {
                *known = known.with(entry);
            }
        }
        let posted: i64 = model.values().map(|unit| unit.posted()).sum();
        let open = units
            .iter()
            .filter(|unit| model.get(unit).is_none_or(|one| one.is_held()));
        let open = i64::try_from(open.count()).unwrap();
        let expected = (posted * price.minor, open * price.minor);
        assert_eq!(bench.funds(partner).await, expected, "{code} {events:?}");
        bench.agrees().await;
    }
}

#[tokio::test]
async fn entries_are_numbered_and_stay() {
    let bench = Bench::new().await;
    let partner = bench.prepaid(500).await;
    let mut connection = bench.connection().await;
    let booking = |kind, minor, reference| Booking {
        partner_id: partner,
        kind,
        amount: eur(minor),
        reference,
        reason: "a correction",
        operator: "tester",
    };
    let correct = booking(EntryKind::Adjustment, -20, "note 1");
    let made = balances::book(&mut connection, correct, applied()).await;
    let made = made.unwrap();
    assert_eq!((made.number, made.balance), (2, 480));
    // A repeat says what was booked, and a preview books nothing.
    let again = balances::book(&mut connection, correct, applied()).await;
    assert!(
        matches!(again, Err(NotBooked::BookedBefore { number: 2, .. })),
        "{again:?}"
    );
    let preview = booking(EntryKind::Deposit, 7, "note 2");
    let seen = balances::book(&mut connection, preview, pg::actions::Mode::Preview).await;
    assert_eq!(seen.unwrap().number, 3);
    assert_eq!(bench.funds(partner).await, (480, 0));
    for statement in [
        "UPDATE account_entries SET amount = 0",
        "DELETE FROM account_entries",
        "TRUNCATE account_entries",
    ] {
        let refused = sqlx::query(statement).execute(&mut *connection).await;
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("never changed or deleted"), "{error}");
    }
    bench.agrees().await;
    // Whoever gets around this is found out.
    execute(
        &mut connection,
        "ALTER TABLE account_entries DISABLE TRIGGER USER;
         UPDATE account_entries SET amount = 600, balance = 600 WHERE number = 1",
    )
    .await;
    let found = balances::check(&mut connection)
        .await
        .unwrap()
        .disagreements;
    let told: Vec<&str> = found.iter().map(|one| one.what.as_str()).collect();
    assert_eq!(
        told,
        [
            "entry 2 does not follow from the one before",
            "the balance is 480, and the entries add up to 580"
        ]
    );
}

#[tokio::test]
async fn two_that_open_an_account_at_once_open_one() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let currency = eur(0).currency;
    join_all((0..8).map(|_| bench.limit(partner, currency, CreditLimit::UpTo(10)))).await;
    let accounts = balances::accounts_of(&mut *bench.connection().await, partner).await;
    assert_eq!(accounts.unwrap().len(), 1);
    let mut connection = bench.connection().await;
    let nobody = balances::set_limit(
        &mut connection,
        PartnerId::new(),
        currency,
        CreditLimit::UpTo(0),
        applied(),
    );
    let refused = nobody.await;
    assert!(
        matches!(refused, Err(NotBooked::NoSuchPartner)),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_statement_is_a_month_and_a_month_that_is_over_stays() {
    let bench = Bench::new().await;
    let partner = bench.prepaid(100).await;
    let mut connection = bench.connection().await;
    bench.pay(partner, eur(11), "second").await;
    // As if both had been booked in earlier months.
    execute(
        &mut connection,
        "ALTER TABLE account_entries DISABLE TRIGGER USER;
         UPDATE account_entries SET at = date_trunc('month', now(), 'UTC') - CASE number WHEN 1 THEN interval '1 us' ELSE interval '0' END;
         ALTER TABLE account_entries ENABLE TRIGGER USER",
    )
    .await;
    bench.pay(partner, eur(5), "third").await;
    let all = self_service::statements(&mut connection, partner, StatementRange::default())
        .await
        .told(&mut connection)
        .await;
    let told = all.iter().map(|one| {
        let numbers = (one.first_entry, one.last_entry);
        (one.opening, one.closing, numbers, one.is_open)
    });
    let told: Vec<_> = told.collect();
    assert_eq!(told, [(100, 116, (2, 3), true), (0, 100, (1, 1), false)]);
    assert_eq!(all[1].closing, all[0].opening);
    let page = self_service::entries(&mut connection, partner, "EUR", (2, 3), 1)
        .await
        .told(&mut connection)
        .await;
    assert_eq!(page.len(), 1);
    assert_eq!(page[0].reference.as_deref(), Some("second"));
    // Another partner sees nothing of it.
    let other = bench.partner(None).await;
    let none = self_service::entries(&mut connection, other, "EUR", (1, 9), 100)
        .await
        .told(&mut connection)
        .await;
    assert_eq!(none, []);
}

#[tokio::test]
async fn prices_begin_at_their_time_and_bound_what_is_offered() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let [sold, later] = [bench.option().await, bench.option().await];
    bench.option().await;
    let tomorrow = runtime::clock::now() + time::Duration::days(1);
    let price = |option_id, minor: Option<i64>, valid_from| NewPrice {
        option_id,
        amount: minor.map(eur),
        valid_from,
    };
    let wanted = [
        price(sold, Some(450), None),
        price(later, Some(700), Some(tomorrow)),
    ];
    let currency = eur(0).currency;
    let applied_once = prices::apply(&mut connection, "retail", currency, &wanted, applied()).await;
    assert_eq!(applied_once.unwrap().set.len(), 2);
    let again = prices::apply(&mut connection, "retail", currency, &wanted, applied()).await;
    let again = again.unwrap();
    assert_eq!((again.set.len(), again.unchanged.len()), (0, 2));
    let dollars = Currency::of_money("USD").unwrap();
    let other = prices::apply(&mut connection, "retail", dollars, &wanted, applied()).await;
    assert!(
        matches!(other, Err(prices::NotPriced::OtherCurrency(_))),
        "{other:?}"
    );
    let past = [price(
        sold,
        Some(1),
        Some(tomorrow - time::Duration::days(2)),
    )];
    let past = prices::apply(&mut connection, "retail", currency, &past, applied()).await;
    assert!(
        matches!(&past, Err(prices::NotPriced::BadPrices(bad)) if bad[..] == [(0, prices::BadPrice::InThePast(sold))]),
        "{past:?}"
    );
    let page = OptionPage {
        environment: Environment::Sandbox,
        providers: &[],
        price_list: Some("retail"),
        filter: OptionFilter::default(),
        after: None,
        limit: 10,
    };
    let offered = self_service::options(&mut connection, page).await.unwrap();
    let prices_of: Vec<_> = offered
        .iter()
        .map(|one| (one.option_id, one.price))
        .collect();
    assert_eq!(prices_of, [(sold, Some(450))]);
    let without = OptionPage {
        price_list: None,
        ..page
    };
    let all = self_service::options(&mut connection, without)
        .await
        .unwrap();
    assert_eq!(all.len(), 3);
    assert!(
        all.iter()
            .all(|one| one.price.is_none() && one.currency.is_none())
    );
    let lists = accounts::prices::changed_since(&mut connection, 0)
        .await
        .unwrap();
    let now = runtime::clock::now() + time::Duration::seconds(1);
    let at = |option, at| lists[0].price(option, at).map(|one| one.minor);
    assert_eq!((at(sold, now), at(later, now)), (Some(450), None));
    assert_eq!(at(later, tomorrow), Some(700));
}

/// A file with a price for at once and one for later may be applied before and after that time, and
/// what a list has may be applied to another one.
#[tokio::test]
async fn a_file_of_prices_may_be_applied_again() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let option = bench.option().await;
    let soon = runtime::clock::now() + time::Duration::milliseconds(300);
    let price = |minor, valid_from| NewPrice {
        option_id: option,
        amount: Some(eur(minor)),
        valid_from,
    };
    let file = [price(490, Some(soon)), price(450, None)];
    let currency = eur(0).currency;
    let first = prices::apply(&mut connection, "retail", currency, &file, applied()).await;
    assert_eq!(first.unwrap().set.len(), 2);
    let now = async |connection: &mut sqlx::PgConnection| {
        let shown = sqlx::query_scalar("SELECT amount FROM price_in('retail', $1)");
        let shown: i64 = shown
            .bind(option.uuid())
            .fetch_one(connection)
            .await
            .unwrap();
        shown
    };
    testkit::wait::soon("the later price", async || {
        let mut connection = bench.connection().await;
        Ok((now(&mut connection).await == 490).then_some(()))
    })
    .await;
    let again = prices::apply(&mut connection, "retail", currency, &file, applied()).await;
    assert_eq!(again.unwrap().set.len(), 0);
    assert_eq!(now(&mut connection).await, 490);
    let all = prices::prices(&mut connection, "retail").await.unwrap();
    let all = all.unwrap().into_iter();
    let copy: Vec<NewPrice> = all
        .map(|one| NewPrice {
            option_id: one.option_id,
            amount: one.price,
            valid_from: Some(one.valid_from),
        })
        .collect();
    for set in [1, 0] {
        let copied = prices::apply(
            &mut connection,
            "copy",
            currency,
            &copy[copy.len() - 1..],
            applied(),
        );
        assert_eq!(copied.await.unwrap().set.len(), set);
    }
}

#[tokio::test]
async fn an_extension_is_held_and_charged_or_released() {
    let bench = Bench::new().await;
    let partner = bench.prepaid(100).await;
    let ends = [EventKind::ExtensionReady, EventKind::ExtensionFailed];
    bench.set_events(partner, &ends).await;
    let mut connection = bench.connection().await;
    let option = bench.option().await;
    let wanted = [NewPrice {
        option_id: option,
        amount: Some(eur(60)),
        valid_from: None,
    }];
    prices::apply(
        &mut connection,
        "retail",
        eur(0).currency,
        &wanted,
        applied(),
    )
    .await
    .unwrap();
    let scope = ExtensionScope {
        environment: Environment::Sandbox,
        providers: &[],
        price_list: Some("retail"),
    };
    for (nth, end) in ["added", "refused"].into_iter().enumerate() {
        let topup = bench.esim(partner).await;
        let external_id = format!("more {nth}");
        let wanted = desk::self_service::extensions::NewExtension {
            scope,
            ..new(&topup, &external_id, option)
        };
        let ordered = extend(&mut connection, partner, wanted).await.unwrap();
        if nth == 1 {
            let ExtensionOrdered::BalanceInsufficient {
                required,
                available,
            } = ordered
            else {
                panic!("{ordered:?}");
            };
            assert_eq!((required, available), (eur(60), eur(40)));
            bench.pay(partner, eur(20), "more").await;
            let ordered = extend(&mut connection, partner, wanted).await.unwrap();
            assert!(
                matches!(ordered, ExtensionOrdered::Stored(_)),
                "{ordered:?}"
            );
        }
        // A repeat holds nothing more.
        extend(&mut connection, partner, wanted).await.unwrap();
        assert_eq!(bench.books(partner).await.held, 60);
        bench.agrees().await;
        execute(
            &mut connection,
            &format!("UPDATE extensions SET state = '{end}' WHERE external_id = '{external_id}'"),
        )
        .await;
        assert_eq!(bench.books(partner).await.held, 0);
        bench.agrees().await;
    }
    assert_eq!(bench.funds(partner).await, (60, 0));
    // The one that was refused was added after all, and the outcome comes twice.
    for _ in 0..2 {
        execute(
            &mut connection,
            "UPDATE extensions SET state = 'added' WHERE external_id = 'more 1'",
        )
        .await;
        assert_eq!(bench.funds(partner).await, (0, 0));
        bench.agrees().await;
    }
    let due = bench.all_due().await.into_iter();
    let events = due.filter_map(|one| match one.content {
        DeliveryContent::Event(event) => Some(event.price),
        DeliveryContent::Esim(_) => None,
    });
    assert_eq!(events.collect::<Vec<_>>(), [Some(eur(60)); 3]);
    let unlisted = bench.option().await;
    let topup = bench.esim(partner).await;
    let wanted = desk::self_service::extensions::NewExtension {
        scope,
        ..new(&topup, "unlisted", unlisted)
    };
    let refused = extend(&mut connection, partner, wanted).await.unwrap();
    assert!(
        matches!(refused, ExtensionOrdered::NotOffered),
        "{refused:?}"
    );
}

fn books_of(report: &HealthReport) -> Vec<&Finding> {
    let found = report.findings.iter();
    let of_money = found.filter(|one| {
        matches!(
            one.kind,
            FindingKind::AccountsDisagree { .. }
                | FindingKind::BalanceRunsOut(_)
                | FindingKind::SoldBelowCost(_)
        )
    });
    of_money.collect()
}

/// A notifier compares once a night, however many run, and what it finds is a finding until a later
/// comparison finds nothing.
#[tokio::test]
async fn the_comparison_of_the_night_is_made_once_and_what_it_finds_is_kept() {
    let bench = Bench::new().await;
    let mut notifier = bench.as_role("notifier").await;
    let mut other = bench.as_role("notifier").await;
    let mut console = bench.as_role("console").await;
    let none = books::check_tonight(&mut notifier).await.unwrap();
    assert_eq!(none, None, "nobody has an account");
    let partner = bench.prepaid(1000).await;
    let both = futures_util::join!(
        books::check_tonight(&mut notifier),
        books::check_tonight(&mut other)
    );
    let made = [both.0.unwrap(), both.1.unwrap()];
    let made: Vec<_> = made.into_iter().flatten().collect();
    assert_eq!(made.len(), 1, "{made:?}");
    assert_eq!(made[0].disagreements, []);
    assert_eq!(books::check_tonight(&mut notifier).await.unwrap(), None);
    assert!(books_of(&examine(&mut console).await.unwrap()).is_empty());

    let tampered = format!("UPDATE accounts SET posted = 1001 WHERE partner_id = '{partner}'");
    bench.sql(&tampered).await;
    bench
        .sql("UPDATE walks SET up_to = now() - interval '1 day' WHERE name = 'accounts'")
        .await;
    let found = books::check_tonight(&mut other).await.unwrap().unwrap();
    assert_eq!(found.disagreements.len(), 1);
    let report = examine(&mut console).await.unwrap();
    let [finding] = books_of(&report)[..] else {
        panic!("{:?}", report.findings)
    };
    assert_eq!(finding.severity(), Severity::Warning);
    let told = finding.told();
    assert!(
        told.what
            .starts_with("accounts disagree with what was ordered in 1 place, as was found at ")
            && told
                .what
                .ends_with(": partner in EUR: the balance is 1001, and the entries add up to 1000"),
        "{told:?}"
    );
    assert_eq!(told.alert, Some("AccountsDisagree"));
    let since = finding.since.unwrap();
    // An operator compares at once, and it is as old as before.
    let mut operator = bench.as_role("operator").await;
    books::check_now(&mut operator).await.unwrap().kept.unwrap();
    let report = examine(&mut console).await.unwrap();
    assert_eq!(books_of(&report)[0].since, Some(since));
    bench.sql("UPDATE accounts SET posted = 1000").await;
    books::check_now(&mut operator).await.unwrap().kept.unwrap();
    assert!(books_of(&examine(&mut console).await.unwrap()).is_empty());
}

/// A partner that has less left than it spends in a day is told, whatever it pays in between, and
/// only if its orders are real.
#[tokio::test]
async fn a_balance_that_does_not_last_a_day_is_found() {
    let bench = Bench::new().await;
    let partner = bench.prepaid(1000).await;
    bench.sql("UPDATE partners SET environment = 'live'").await;
    let mut notifier = bench.as_role("notifier").await;
    let buy = async |units| {
        let order = priced(answered(partner, units), eur(150));
        bench.insert_limited(std::slice::from_ref(&order)).await;
        bench.claim(&[placement(&order)]).await;
        let units = topups(&order).iter().map(ready).collect();
        let outcome = with_prices(bought(placement(&order), 1, units, false));
        bench.settle(&[outcome]).await;
        order
    };
    let running_out = async |connection: &mut sqlx::PgConnection| {
        let state = money::read(connection).await.unwrap();
        let all = state.running_out.into_iter();
        all.map(|one| (one.available.minor, one.spent.minor))
            .collect::<Vec<_>>()
    };
    buy(3).await;
    assert_eq!(
        running_out(&mut notifier).await,
        [],
        "450 of 1000 are spent"
    );
    let order = buy(1).await;
    assert_eq!(running_out(&mut notifier).await, [(400, 600)]);
    let report = examine(&mut *bench.connection().await).await.unwrap();
    let found = books_of(&report)[0];
    assert_eq!(
        found.told().what,
        "partner has 4.00 EUR left to order for, and has spent 6.00 EUR in the last 24 hours"
    );
    assert!(found.of(partner, true).is_some() && found.of(PartnerId::new(), true).is_none());
    // What is paid is not spent less, what comes back is, and credit counts.
    bench.pay(partner, eur(100), "second").await;
    assert_eq!(running_out(&mut notifier).await, [(500, 600)]);
    bench
        .limit(partner, eur(0).currency, CreditLimit::UpTo(50))
        .await;
    assert_eq!(running_out(&mut notifier).await, [(550, 600)]);
    bench.returned(&order).await;
    assert_eq!(running_out(&mut notifier).await, []);
    bench
        .limit(partner, eur(0).currency, CreditLimit::UpTo(0))
        .await;
    buy(3).await;
    assert_eq!(running_out(&mut notifier).await, [(200, 900)]);
    // Who owes and buys nothing does not run out.
    let idle = bench.prepaid(0).await;
    bench.sql("UPDATE partners SET environment = 'live'").await;
    let owes = Booking {
        partner_id: idle,
        kind: EntryKind::Adjustment,
        amount: eur(-700),
        reference: "owes",
        reason: "",
        operator: "tester",
    };
    balances::book(&mut *bench.connection().await, owes, applied())
        .await
        .unwrap();
    assert_eq!(running_out(&mut notifier).await, [(200, 900)]);
    bench
        .sql("UPDATE partners SET environment = 'sandbox'")
        .await;
    assert_eq!(running_out(&mut notifier).await, []);
}

/// Costs have four decimals, and currencies none, two or three.
#[tokio::test]
async fn a_price_below_the_cost_is_found_to_the_ten_thousandth_and_in_one_currency_only() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    bench.sql("UPDATE partners SET environment = 'live'").await;
    let mut connection = bench.connection().await;
    for (code, price, cost, of, is_below) in [
        ("EUR", 450, 45_000, "EUR", false),
        ("EUR", 450, 45_001, "EUR", true),
        ("EUR", 450, 99_999, "USD", false),
        ("JPY", 450, 4_500_000, "JPY", false),
        ("JPY", 450, 4_500_001, "JPY", true),
        ("JOD", 4_500, 45_000, "JOD", false),
        ("JOD", 4_499, 45_000, "JOD", true),
    ] {
        let option = bench.option().await;
        let cost = format!(
            "UPDATE options SET cost = {cost}, cost_currency = '{of}' WHERE option_id = '{option}'"
        );
        bench.sql(&cost).await;
        let wanted = [NewPrice {
            option_id: option,
            amount: Some(amount(price, code)),
            valid_from: None,
        }];
        let list = format!("list-{option}");
        let currency = Currency::of_money(code).unwrap();
        prices::apply(&mut connection, &list, currency, &wanted, applied())
            .await
            .unwrap();
        let found = money::read(&mut connection).await.unwrap().below_cost;
        assert_eq!(found, [], "no live partner has the list");
        prices::assign(&mut connection, partner, Some(&list), applied())
            .await
            .unwrap();
        let mut notifier = bench.as_role("notifier").await;
        let found = money::read(&mut notifier).await.unwrap().below_cost;
        let is_found = found
            .first()
            .is_some_and(|one| one.in_all == 1 && one.options.len() == 1);
        assert_eq!(is_found, is_below, "{code} {price} {found:?}");
        if is_below {
            let report = examine(&mut connection).await.unwrap();
            let what = books_of(&report)[0].told().what;
            assert!(
                what.starts_with(&format!("the price list {list} sells below cost: ")),
                "{what}"
            );
        }
        prices::assign(&mut connection, partner, None, applied())
            .await
            .unwrap();
    }
}

impl Bench {
    /// Sells a unit of a product for 4.50 EUR, while the option says what it costs, if anything.
    /// Afterwards each option costs something else.
    async fn sell(&self, partner: PartnerId, product: &str, cost: Option<&str>) -> NewOrder {
        let option = self.option().await;
        let mut order = priced(answered(partner, 1), eur(450));
        for topup in order.placements.iter_mut().flat_map(|one| &mut one.topups) {
            topup.agreed.option_id = option;
            product.clone_into(&mut topup.provider_option_id);
        }
        self.insert_limited(std::slice::from_ref(&order)).await;
        let id = placement(&order);
        if let Some(cost) = cost {
            let set = format!(
                "UPDATE options SET provider = p.provider, {cost} FROM placements p
                 WHERE option_id = '{option}' AND placement_id = '{id}'"
            );
            self.sql(&set).await;
        }
        self.claim(&[id]).await;
        let units = topups(&order).iter().map(ready).collect();
        self.settle(&[with_prices(bought(id, 1, units, false))])
            .await;
        self.sql("UPDATE options SET cost = 1, cost_currency = 'XXX'")
            .await;
        order
    }

    /// Sells a unit with a cost in another currency, which is given back, one whose price was
    /// agreed before the option became dearer, and two whose cost is not known.
    async fn sell_some(&self) -> PartnerId {
        let partner = self.prepaid(10_000).await;
        let same = "provider_option_id = 'gb-1', cost = 31234, cost_currency = 'USD'";
        let order = self.sell(partner, "gb-1", Some(same)).await;
        let dearer = "provider_option_id = 'gb-1@4.5', cost = 45000, cost_currency = 'EUR'";
        self.sell(partner, "gb-1@3.1234", Some(dearer)).await;
        self.sell(partner, "gb-2", Some(dearer)).await;
        self.sell(partner, "gb-1", None).await;
        self.returned(&order).await;
        partner
    }
}

/// An entry keeps what was sold and what it cost; a later change of the option changes nothing, and
/// a refund takes the same back.
#[tokio::test]
async fn an_entry_has_the_cost_of_its_purchase() {
    let bench = Bench::new().await;
    bench.sell_some().await;
    let rows = sqlx::query_as::<_, (String, Option<i64>, Option<String>, bool)>(
        "SELECT kind, cost, cost_currency, option_id IS NOT NULL AND provider IS NOT NULL
         FROM account_entries WHERE kind <> 'deposit' ORDER BY number",
    );
    let rows = rows.fetch_all(&mut *bench.connection().await).await;
    let rows = rows.unwrap();
    let entry = |kind: &str, cost: Option<i64>, code: Option<&str>| {
        (kind.to_owned(), cost, code.map(str::to_owned), true)
    };
    assert_eq!(
        rows,
        [
            entry("charge", Some(31_234), Some("USD")),
            entry("charge", Some(31_234), Some("EUR")),
            entry("charge", None, None),
            entry("charge", None, None),
            entry("refund", Some(31_234), Some("USD")),
        ]
    );
    bench.agrees().await;
}

/// What cost another currency or an unknown sum has a line of its own, and no margin.
#[tokio::test]
async fn a_margin_is_the_price_less_the_cost_in_one_currency() {
    let bench = Bench::new().await;
    let partner = bench.sell_some().await;
    let mut connection = bench.connection().await;
    let month = CalendarMonth::of(runtime::clock::now());
    let filter = MarginFilter {
        from: month.before(),
        to: month,
        partner: Some(partner),
        provider: None,
        option: None,
    };
    let lines = margin::margin(&mut connection, filter, &[MarginBy::Partner]).await;
    let told = |line: &MarginLine| {
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        format!(
            "{} {}/{} {} {}, cost {} {}, margin {} ({} %)",
            text(&line.partner),
            line.sold,
            line.returned,
            line.price,
            line.currency,
            text(&line.cost),
            text(&line.cost_currency),
            text(&line.margin),
            text(&line.percent),
        )
    };
    let lines = lines.unwrap();
    let all: Vec<String> = lines.iter().map(told).collect();
    assert_eq!(
        all,
        [
            "partner 2/0 9.00 EUR, cost - -, margin - (- %)",
            "partner 1/0 4.50 EUR, cost 3.1234 EUR, margin 1.3766 (30.5 %)",
            "partner 1/1 0.00 EUR, cost 0.00 USD, margin - (- %)",
        ]
    );
    let whys: Vec<Option<String>> = lines.iter().map(MarginLine::why_none).collect();
    let expected = [
        Some("its cost is not known".to_owned()),
        None,
        Some("no rate from USD to EUR is known".to_owned()),
    ];
    assert_eq!(whys, expected);
    // Each filter leaves something out, and what is not asked for is the same line.
    let by = &MarginBy::ALL;
    let each = margin::margin(&mut connection, filter, by).await.unwrap();
    assert_eq!(each.len(), 4, "{each:?}");
    assert!(
        each.iter()
            .all(|line| line.month == Some(month.to_string()))
    );
    let none = [
        MarginFilter {
            to: month.before(),
            ..filter
        },
        MarginFilter {
            partner: Some(PartnerId::new()),
            ..filter
        },
        MarginFilter {
            provider: Some("nobody"),
            ..filter
        },
        MarginFilter {
            option: Some(domain::OptionId::new()),
            ..filter
        },
    ];
    for filter in none {
        assert_eq!(
            margin::margin(&mut connection, filter, by).await.unwrap(),
            []
        );
    }
    let one = MarginFilter {
        option: each[0].option_id,
        provider: each[0].provider.as_deref(),
        ..filter
    };
    assert_eq!(
        margin::margin(&mut connection, one, by)
            .await
            .unwrap()
            .len(),
        1
    );
}

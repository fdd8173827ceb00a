//! Events about the use of eSIMs and about what waits for a person: each is told once, to who asked
//! for it. And polls, which stay within their budget.

use desk::self_service::esims;
use domain::{PartnerId, Reading, TopupId, event::EventKind};
use sqlx::PgConnection;
use store::{
    deliveries::{ClaimedDelivery, DeliveryContent, events::Subject},
    esim_requests,
    orders::NewOrder,
};
use time::Duration;

use crate::bench::{
    Bench, PROVIDER, answered, bought, execute, look, order, parked, placement, ready, topups,
};

const URL: &str = "https://partner.example/hook";
const LOW: [u8; 2] = [75, 90];
const USE: [EventKind; 6] = [
    EventKind::EsimInstalled,
    EventKind::EsimFirstUsed,
    EventKind::EsimLowData,
    EventKind::EsimUsedUp,
    EventKind::EsimExpiring,
    EventKind::EsimExpired,
];

impl Bench {
    /// A partner that asked for these events at its first endpoint.
    async fn asks_for(&self, kinds: &[EventKind]) -> PartnerId {
        let partner = self.partner(Some(URL)).await;
        self.set_events(partner, kinds).await;
        partner
    }

    /// Delivered eSIMs of a partner, about which something was asked.
    async fn asked_about(&self, partner: PartnerId, units: usize) -> Vec<TopupId> {
        let order = self.ready_units(partner, units).await;
        let mut connection = self.connection().await;
        for topup in &order {
            esims::ask_usage(&mut connection, partner, topup)
                .await
                .unwrap();
        }
        order
    }

    async fn ready_units(&self, partner: PartnerId, units: usize) -> Vec<TopupId> {
        let order = self.stored(answered(partner, units)).await;
        let units = topups(&order);
        assert_eq!(self.claim(&[placement(&order)]).await.len(), 1);
        let settled = bought(
            placement(&order),
            1,
            units.iter().map(ready).collect(),
            false,
        );
        self.settle(&[settled]).await;
        units
    }

    async fn read_use(&self, topup: &TopupId, reading: &Reading) {
        let mut connection = self.connection().await;
        esim_requests::record_reading(&mut connection, topup, reading, &LOW)
            .await
            .unwrap();
    }

    /// What the endpoints of a partner are told, with the thresholds, in the order of their names.
    async fn told_events(&self, partner: PartnerId) -> Vec<String> {
        sqlx::query_scalar(
            "SELECT concat_ws(' ', kind, notice->>'threshold') FROM deliveries
             WHERE partner_id = $1 AND kind <> 'topup.ready' ORDER BY 1",
        )
        .bind(partner.uuid())
        .fetch_all(&self.pool)
        .await
        .unwrap()
    }

    async fn due_events(&self) -> Vec<ClaimedDelivery> {
        let due = self.claim_due_deliveries(&look(1000, 1000)).await;
        let is_event = |one: &ClaimedDelivery| matches!(one.content, DeliveryContent::Event(_));
        due.into_iter().filter(is_event).collect()
    }

    async fn number(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query)
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

fn used(percent: u64) -> Reading {
    Reading {
        installed: Some(true),
        data_used: Some(percent * 10),
        data_total: Some(1000),
        ..Reading::default()
    }
}

fn subject(delivery: &ClaimedDelivery) -> &Subject {
    match &delivery.content {
        DeliveryContent::Event(event) => &event.subject,
        DeliveryContent::Esim(esim) => panic!("a topup: {esim:?}"),
    }
}

#[tokio::test]
async fn each_milestone_of_an_esim_is_told_once_to_who_asked() {
    let bench = Bench::new().await;
    let partner = bench.asks_for(&USE).await;
    let silent = bench.asks_for(&[]).await;
    let esim = bench.asked_about(partner, 1).await.remove(0);
    let other = bench.asked_about(silent, 1).await.remove(0);
    let read = async |reading: Reading| {
        bench.read_use(&esim, &reading).await;
        bench.read_use(&other, &reading).await;
    };
    read(used(0)).await;
    let mut expected = vec!["esim.installed"];
    assert_eq!(bench.told_events(partner).await, expected);
    // The provider counts less, and then again what it has counted before.
    for percent in [80, 10, 80, 100, 0, 100] {
        read(used(percent)).await;
    }
    expected.extend(["esim.first_used", "esim.low_data 75", "esim.used_up"]);
    expected.sort_unstable();
    assert_eq!(bench.told_events(partner).await, expected);
    let ended = Reading {
        ends_at: Some(runtime::clock::now() - Duration::hours(1)),
        ..used(100)
    };
    read(ended).await;
    expected.insert(0, "esim.expired");
    assert_eq!(bench.told_events(partner).await, expected);
    assert!(bench.told_events(silent).await.is_empty());

    // Whoever asks later hears only of what comes later.
    bench.set_events(silent, &USE).await;
    read(ended).await;
    assert!(bench.told_events(silent).await.is_empty());

    for delivery in bench.due_events().await {
        let Subject::OfTopup {
            topup_id, usage, ..
        } = subject(&delivery)
        else {
            panic!("{delivery:?}");
        };
        assert_eq!(topup_id, esim.as_str());
        assert_eq!(usage.as_ref().unwrap().reading.data_total, Some(1000));
    }
}

/// Reports that come twice, too late and at once, from several processes.
#[tokio::test(flavor = "multi_thread")]
async fn readings_of_several_processes_tell_each_milestone_once() {
    let bench = Bench::new().await;
    let partner = bench.asks_for(&USE).await;
    let esims = bench.asked_about(partner, 40).await;
    let read = async |connection: &mut PgConnection, percents: [u64; 6]| {
        for percent in percents {
            for esim in &esims {
                esim_requests::record_reading(connection, esim, &used(percent), &LOW)
                    .await
                    .unwrap();
            }
        }
    };
    let mut connections = [bench.connection().await, bench.connection().await];
    let [first, second] = &mut connections;
    tokio::join!(
        read(first, [0, 10, 76, 76, 91, 100]),
        read(second, [0, 5, 76, 91, 91, 100])
    );
    let told = bench.told_events(partner).await;
    for (event, most) in [
        ("esim.installed", 40),
        ("esim.first_used", 40),
        ("esim.low_data 75", 40),
        ("esim.low_data 90", 40),
        ("esim.used_up", 40),
    ] {
        let times = told.iter().filter(|one| *one == event).count();
        // One threshold may be passed together with the next one.
        let is_passed = event == "esim.low_data 75" && times < most;
        assert!(times == most || is_passed, "{event}: {times}");
    }
    let links = "SELECT count(*) FROM deliveries d JOIN further_deliveries f USING (delivery_id) WHERE d.kind LIKE 'esim.%'";
    assert_eq!(
        bench.number(links).await,
        i64::try_from(told.len()).unwrap()
    );
}

#[tokio::test]
async fn a_topup_that_waits_for_a_person_a_cancelled_order_and_a_returned_esim_are_told() {
    let bench = Bench::new().await;
    let kinds = [
        EventKind::TopupOnHold,
        EventKind::OrderCancelled,
        EventKind::EsimReturned,
    ];
    let partner = bench.asks_for(&kinds).await;
    let held = bench.stored(answered(partner, 2)).await;
    bench.claim(&[placement(&held)]).await;
    bench.settle(&[parked(placement(&held), 1)]).await;
    assert_eq!(bench.told_events(partner).await, ["topup.on_hold"; 2]);
    // One of them is ready after all before its event is sent.
    let units = topups(&held);
    bench
        .settle(&[bought(placement(&held), 1, vec![ready(&units[0])], false)])
        .await;
    let events = bench.due_events().await;
    let [on_hold] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert_eq!(subject(on_hold).name(), "topup.on_hold");

    let cancelled = bench
        .stored(NewOrder {
            answer_within: std::time::Duration::ZERO,
            ..order(partner, 3)
        })
        .await;
    let cancel = format!("SELECT refuse_order('{}', true)", cancelled.order_id.uuid());
    bench.sql(&cancel).await;
    let events = bench.due_events().await;
    let told: Vec<&Subject> = events.iter().map(subject).collect();
    let [
        Subject::OrderCancelled {
            external_order_id,
            units,
        },
    ] = told.as_slice()
    else {
        panic!("{told:?}");
    };
    assert_eq!(
        (external_order_id, *units),
        (&cancelled.external_order_id, 3)
    );

    let esim = bench.asked_about(partner, 1).await.remove(0);
    bench
        .sql(&format!(
            "UPDATE esim_requests SET give_back = 'returned' WHERE topup_id = '{esim}';
             SELECT mark_returned('{esim}'); SELECT mark_returned('{esim}')"
        ))
        .await;
    let events = bench.due_events().await;
    assert_eq!(subject(&events[0]).name(), "esim.returned");
    assert_eq!(bench.told_events(partner).await.len(), 3);
}

/// The eSIMs of a partner are followed from its wish on, within the budget, whoever asks for it.
#[tokio::test(flavor = "multi_thread")]
async fn polls_stay_within_their_budget_and_end_with_the_wish() {
    let bench = Bench::new().await;
    let partner = bench.asks_for(&[EventKind::EsimUsedUp]).await;
    let silent = bench.asks_for(&[EventKind::TopupFailed]).await;
    execute(
        &mut *bench.connection().await,
        "INSERT INTO providers (name) VALUES ('sandbox') ON CONFLICT DO NOTHING",
    )
    .await;
    let budget = async |minutes: u32| {
        let earlier = format!(
            "UPDATE providers SET polled_at = now() - interval '{minutes} minutes';
             UPDATE deliveries SET created_at = created_at - interval '2 minutes'"
        );
        bench.sql(&earlier).await;
    };
    let poll = async || {
        let mut connection = bench.connection().await;
        esim_requests::poll(&mut connection, PROVIDER, 60)
            .await
            .unwrap()
    };
    assert_eq!(poll().await, 0, "the wish is seen");
    bench
        .sql("UPDATE partner_endpoints SET polls_up_to = polls_up_to - interval '1 hour' WHERE polls_up_to IS NOT NULL")
        .await;
    bench.ready_units(partner, 8).await;
    bench.ready_units(silent, 3).await;
    // Three minutes at 60 in an hour are three polls, of two processes together.
    budget(3).await;
    let (one, other) = tokio::join!(poll(), poll());
    assert_eq!(one + other, 3);
    assert_eq!(poll().await, 0);
    let followed = "SELECT count(*) FROM esim_requests WHERE poll_at IS NOT NULL";
    assert_eq!(bench.number(followed).await, 8);
    let claimed = bench.claim_requests().await;
    assert_eq!(claimed.len(), 3);
    assert!(claimed.iter().all(|one| one.usage_asked));
    // An answer says when the next one is needed, and one that is over needs none.
    bench.read_use(&claimed[0].esim.topup_id, &used(10)).await;
    let ended = Reading {
        ends_at: Some(runtime::clock::now()),
        ..used(10)
    };
    bench.read_use(&claimed[1].esim.topup_id, &ended).await;
    let failed = esim_requests::UsageFailure::Failed;
    let mut connection = bench.connection().await;
    esim_requests::record_failure(&mut connection, &claimed[2].esim.topup_id, failed)
        .await
        .unwrap();
    assert_eq!(
        bench
            .number("SELECT count(*) FROM work WHERE kind = 'usage'")
            .await,
        0
    );
    assert_eq!(bench.number(followed).await, 7);
    // What is not used is kept for five minutes, so that nothing comes in a flood.
    budget(600).await;
    assert_eq!(poll().await, 5);
    bench.set_events(partner, &[]).await;
    bench
        .sql("UPDATE esim_requests SET poll_at = now() WHERE poll_at IS NOT NULL")
        .await;
    budget(600).await;
    poll().await;
    budget(600).await;
    poll().await;
    assert_eq!(bench.number(followed).await, 0);
}

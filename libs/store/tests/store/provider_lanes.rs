//! Lanes that provisioners hold back, the count of their unsettled attempts, and the shares of a
//! rate limit that replicas hold.

use std::time::Duration;

use store::{
    provider_lanes::{self, HeldBackLane, WaitingLane},
    providers,
};

use crate::bench::{Bench, PROVIDER};

fn held_back(lane: &str, max_in_flight: i32, held_for: u64) -> HeldBackLane {
    HeldBackLane {
        lane: lane.into(),
        max_in_flight,
        unsettled: 3,
        reason: format!("HTTP 500 {max_in_flight}"),
        held_for: Duration::from_secs(held_for),
    }
}

impl Bench {
    async fn report(&self, instance: &str, lanes: &[HeldBackLane]) {
        provider_lanes::report(&mut *self.connection().await, PROVIDER, instance, lanes)
            .await
            .unwrap();
    }

    async fn waiting(&self) -> Vec<WaitingLane> {
        provider_lanes::list(&mut *self.connection().await)
            .await
            .unwrap()
    }

    async fn share(&self, instance: &str) -> f64 {
        providers::share_of_rate(&mut *self.connection().await, PROVIDER, instance, 100.0)
            .await
            .unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_each_lane_once_while_a_process_holds_it_back() {
    let bench = Bench::new().await;
    bench
        .report("a", &[held_back("one", 1, 60), held_back("two", 1, 60)])
        .await;
    bench.report("b", &[held_back("one", 2, 30)]).await;
    let before = bench.waiting().await;
    let [one, two] = before.as_slice() else {
        panic!("{before:?}")
    };
    assert_eq!(
        (
            one.lane.as_str(),
            one.max_in_flight,
            one.unsettled,
            one.reason.as_str()
        ),
        ("one", 3, 3, "HTTP 500 2")
    );
    assert_eq!((two.lane.as_str(), two.max_in_flight), ("two", 1));

    // The next report of a process replaces its own rows only, and keeps since when a lane has been
    // held back.
    bench.report("a", &[held_back("one", 4, 0)]).await;
    let after = bench.waiting().await;
    let [again] = after.as_slice() else {
        panic!("{after:?}")
    };
    assert_eq!((again.max_in_flight, again.since), (6, one.since));

    bench.report("a", &[]).await;
    bench.report("b", &[]).await;
    assert_eq!(bench.waiting().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_leaves_behind_is_not_shown_and_is_deleted() {
    let bench = Bench::new().await;
    bench.report("gone", &[held_back("one", 1, 0)]).await;
    bench
        .sql("UPDATE provider_lanes SET updated_at = now() - interval '61 seconds'")
        .await;
    assert_eq!(bench.waiting().await, []);
    bench.report("alive", &[]).await;
    let left: i64 = bench
        .value(
            "SELECT count(*) FROM provider_lanes WHERE instance = $1",
            "gone",
        )
        .await;
    assert_eq!(left, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_unsettled_attempts_of_each_lane_are_counted_up_to_a_bound() {
    let bench = Bench::new().await;
    let insert = |kind: &str, lane: &str, count: usize| {
        format!(
            "INSERT INTO work (id, kind, provider, lane, partner_id, at)
             SELECT gen_random_uuid(), '{kind}', '{PROVIDER}', '{lane}', gen_random_uuid(), now()
             FROM generate_series(1, {count})"
        )
    };
    for (kind, lane, count) in [
        ("look_up", "a", 3),
        ("look_up", "b", 1_000),
        ("buy", "c", 5),
        ("collect", "a", 7),
    ] {
        bench.sql(&insert(kind, lane, count)).await;
    }
    let counted = providers::unsettled(&mut *bench.connection().await, PROVIDER)
        .await
        .unwrap();
    assert_eq!(counted, [("a".to_owned(), 3), ("b".to_owned(), 100)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_replica_gets_only_what_the_others_have_given_up() {
    let bench = Bench::new().await;
    let close = |share: f64, expected: f64| {
        assert!(
            (share - expected).abs() < 0.01,
            "{share} instead of {expected}"
        );
    };
    close(bench.share("a").await, 100.0);
    close(bench.share("b").await, 0.0);
    close(bench.share("a").await, 50.0);
    close(bench.share("b").await, 50.0);
    close(bench.share("c").await, 0.0);
    bench
        .sql("UPDATE provider_replicas SET until = now() WHERE instance = 'a'")
        .await;
    close(bench.share("c").await, 50.0);
    close(bench.share("b").await, 50.0);
}

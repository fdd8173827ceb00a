//! Breakers and the claims that they prevent, hints of callbacks, and backlogs.

use std::time::Duration;

use domain::{PartnerId, PlacementId};
use store::placements::{AttemptOutcome, PlacementClaim, Progress};
use store::providers::{
    self, BreakerLimits, BreakerState, Hinted, ProviderBacklog, ProviderBreaker,
};
use store::work::WorkKind;

use crate::bench::{
    Bench, LEASE, PROVIDER, not_found, order, order_of, parked, part, placement, settlement,
    topups, unit, unknown,
};

const LIMITS: BreakerLimits = BreakerLimits {
    failures: 3,
    open: Duration::from_secs(10),
    open_most: Duration::from_secs(35),
};

impl Bench {
    pub async fn registered() -> Self {
        let bench = Self::new().await;
        let names = [PROVIDER.to_owned(), "other".to_owned()];
        let mut connection = bench.connection().await;
        for _ in 0..2 {
            providers::register(&mut connection, &names).await.unwrap();
        }
        bench
    }

    async fn breaker(&self) -> ProviderBreaker {
        let all = providers::list(&mut *self.connection().await)
            .await
            .unwrap();
        assert_eq!(all.len(), 2, "{all:?}");
        all.into_iter()
            .find(|breaker| breaker.name == PROVIDER)
            .unwrap()
    }

    async fn failed(&self, version: i64) -> Option<ProviderBreaker> {
        let mut connection = self.connection().await;
        providers::failed(
            &mut connection,
            PROVIDER,
            version,
            &LIMITS,
            ("no answer", false),
        )
        .await
        .unwrap()
    }

    async fn answered(&self, version: i64) -> Option<ProviderBreaker> {
        providers::responded(&mut *self.connection().await, PROVIDER, version)
            .await
            .unwrap()
    }

    async fn probe(&self) -> Option<ProviderBreaker> {
        providers::probe(&mut *self.connection().await, PROVIDER, LEASE)
            .await
            .unwrap()
    }

    /// Lets time pass until the breaker allows a probe.
    async fn wait_for_half_open(&self) {
        self.set(
            "UPDATE providers SET open_until = now() WHERE name = $1",
            PROVIDER,
        )
        .await;
        assert_eq!(self.breaker().await.state, BreakerState::HalfOpen);
    }

    /// How long the breaker stays open, in seconds.
    async fn open_for(&self) -> f64 {
        let statement = "SELECT extract(epoch FROM open_until - changed_at)::float8 FROM providers WHERE name = $1";
        self.value(statement, PROVIDER).await
    }

    pub async fn overdue(&self) -> PlacementId {
        let id = placement(&self.stored(order(PartnerId::new(), 1)).await);
        self.make_due(id).await;
        id
    }

    async fn make_due(&self, id: PlacementId) {
        self.due_in(&[id], -60.0).await;
    }
}

#[tokio::test]
async fn a_failure_opens_a_breaker_and_calls_that_began_before_count_no_longer() {
    let bench = Bench::registered().await;
    let first = bench.breaker().await;
    assert_eq!((first.state, first.openings), (BreakerState::Closed, 0));
    let open = bench.failed(first.version).await.unwrap();
    assert_eq!((open.state, open.openings), (BreakerState::Open, 1));
    assert_eq!(open.reason.as_deref(), Some("no answer"));
    assert!((bench.open_for().await - 10.0).abs() < 0.1);
    assert_eq!(bench.failed(first.version).await, None);
    assert_eq!(bench.answered(first.version).await, None);
    assert_eq!(bench.breaker().await, open);
}

#[tokio::test]
async fn failures_at_the_same_time_open_it_once() {
    let bench = Bench::registered().await;
    let version = bench.breaker().await.version;
    let all = futures_util::future::join_all((0..8).map(|_| bench.failed(version))).await;
    assert_eq!(all.iter().flatten().count(), 1, "{all:?}");
    let breaker = bench.breaker().await;
    assert_eq!(breaker.openings, 1);
}

#[tokio::test]
async fn an_open_breaker_is_probed_once_at_a_time_and_opens_for_longer_each_time() {
    let bench = Bench::registered().await;
    let id = bench.overdue().await;
    let version = bench.breaker().await.version;
    let open = bench.failed(version).await.unwrap();
    assert_eq!(open.state, BreakerState::Open, "denied opens it at once");
    assert_eq!(bench.probe().await, None, "it is too early");

    for expected in [20.0, 35.0, 35.0] {
        bench.wait_for_half_open().await;
        assert!(bench.claim_due(PROVIDER, 1).await.is_empty());
        assert!(bench.claim(&[id]).await.is_empty());
        let probes = futures_util::future::join_all((0..4).map(|_| bench.probe())).await;
        let mut probes = probes.into_iter().flatten();
        let probe = probes.next().unwrap();
        assert_eq!(probes.next(), None);
        assert_eq!(probe.state, BreakerState::Open);
        bench.failed(probe.version).await.unwrap();
        assert!((bench.open_for().await - expected).abs() < 0.1);
    }

    bench.wait_for_half_open().await;
    let probe = bench.probe().await.unwrap();
    let claimed = bench.claim_as(PROVIDER, &[id], PlacementClaim::Probe).await;
    assert_eq!(claimed[0].placement_id, id);
    assert_eq!(claimed[0].attempt, 1, "open, it consumed no attempt");
    let closed = bench.answered(probe.version).await.unwrap();
    assert_eq!(closed.state, BreakerState::Closed);
    assert_eq!((closed.openings, closed.reason), (0, None));
    assert!(closed.version > probe.version);
}

#[tokio::test]
async fn nothing_is_probed_where_nothing_is_due() {
    let bench = Bench::registered().await;
    bench.failed(bench.breaker().await.version).await.unwrap();
    bench.wait_for_half_open().await;
    assert_eq!(bench.probe().await, None);
    bench.overdue().await;
    assert!(bench.probe().await.is_some());
}

#[tokio::test]
async fn an_operator_opens_and_closes_a_breaker() {
    let bench = Bench::registered().await;
    let id = bench.overdue().await;
    let elsewhere = bench.stored(order_of(vec![part("other", &[0])])).await;

    let before = bench.breaker().await.version;
    let hour = Duration::from_hours(1);
    let mut connection = bench.connection().await;
    let open = providers::open(&mut connection, PROVIDER, hour, "their maintenance").await;
    assert_eq!(open.unwrap().unwrap().state, BreakerState::Open);
    assert!((bench.open_for().await - 3600.0).abs() < 0.1);
    assert!(bench.claim_due(PROVIDER, 10).await.is_empty());
    assert_eq!(
        bench.answered(before).await,
        None,
        "an answer doesn't overrule it"
    );
    let elsewhere = placement(&elsewhere);
    assert_eq!(
        bench
            .claim_as("other", &[elsewhere], PlacementClaim::Fresh)
            .await
            .len(),
        1
    );

    let closed = providers::close(&mut connection, PROVIDER).await;
    assert_eq!(closed.unwrap().unwrap().state, BreakerState::Closed);
    bench.make_due(id).await;
    assert_eq!(bench.claim_due(PROVIDER, 10).await[0].placement_id, id);
    for unknown in [
        providers::open(&mut connection, "nobody", hour, "").await,
        providers::close(&mut connection, "nobody").await,
    ] {
        assert_eq!(unknown.unwrap(), None);
    }
}

#[tokio::test]
async fn hints_are_taken_once_a_second() {
    let bench = Bench::registered().await;
    let order = bench.placing(1).await;
    let id = placement(&order);
    let topup = &topups(&order)[0];
    let named = unit(topup, Progress::Pending);
    let unit_id = named.provider_unit_id.clone();
    let outcome = AttemptOutcome::Bought {
        reference: None,
        units: vec![named],
        listed: 1,
        collect_in: Some(Duration::from_mins(1)),
        park: None,
        announced: false,
    };
    bench.settle(&[settlement(id, 1, outcome)]).await;

    let mut connection = bench.connection().await;
    let mut hint = async |provider: &str| {
        providers::hint(&mut connection, provider, Hinted::Unit(&unit_id))
            .await
            .unwrap()
    };
    let due_in = async || -> f64 {
        let statement =
            "SELECT extract(epoch FROM at - now())::float8 FROM work WHERE id::text = $1";
        bench.value(statement, id).await
    };
    assert!(!hint("other").await, "units belong to a provider");
    assert!(due_in().await > 50.0);
    assert!(hint(PROVIDER).await);
    assert!(due_in().await <= 0.0);
    assert!(!hint(PROVIDER).await, "it is due already");

    // Claimed: another hint waits for its second.
    assert_eq!(bench.claim_due(PROVIDER, 10).await.len(), 1);
    assert!(hint(PROVIDER).await);
    let wait = due_in().await;
    assert!(wait > 0.0 && wait <= 1.0, "{wait}");
    assert!(!hint(PROVIDER).await);

    // A callback moves only placed placements.
    for state in ["accepted", "placing", "failed", "refused", "parked"] {
        let sql = format!(
            "UPDATE placements SET state = '{state}', hinted_at = NULL WHERE placement_id = '{id}'"
        );
        bench.sql(&sql).await;
        bench.due_in(&[id], 3600.0).await;
        assert!(!hint(PROVIDER).await, "{state}");
    }
}

/// After an outage usually nothing but look-ups is due. Each kind that a provider is called for
/// must be found, under the name that it has now.
#[tokio::test]
async fn work_of_each_kind_lets_a_probe_through_and_purchases_and_look_ups_are_counted() {
    let bench = Bench::registered().await;
    bench.overdue().await;
    let version = bench.breaker().await.version;
    bench.failed(version).await.unwrap();
    let counted = [&WorkKind::PURCHASES[..], &WorkKind::LOOKUPS].concat();
    for kind in [&counted[..], &WorkKind::REQUESTS].concat() {
        bench
            .set(
                "UPDATE work SET kind = $1, at = now() - interval '1 min'",
                kind.as_str(),
            )
            .await;
        bench.wait_for_half_open().await;
        let probe = bench.probe().await;
        assert!(
            probe.is_some(),
            "{kind:?} is due, and no probe gets through"
        );
        bench.failed(probe.unwrap().version).await.unwrap();

        let all = providers::backlogs(&mut *bench.connection().await, &[])
            .await
            .unwrap();
        let backlog = all
            .iter()
            .find(|backlog| backlog.provider == PROVIDER)
            .unwrap();
        assert_eq!(backlog.due, u64::from(counted.contains(&kind)), "{kind:?}");
    }
}

#[tokio::test]
async fn the_queue_reports_its_lag() {
    let bench = Bench::registered().await;
    let sql = "INSERT INTO options (option_id, name, provider, provider_option_id, environment)
             VALUES (gen_random_uuid(), $1, $1, 'x', 'live')";
    bench.set(sql, "nobody").await;
    bench
        .sql(r#"UPDATE options SET alternatives = '[{"provider": "second", "provider_option_id": "x"}]'"#)
        .await;
    let backlogs = async || {
        providers::backlogs(&mut *bench.connection().await, &[PROVIDER.to_owned()])
            .await
            .unwrap()
    };
    let idle = |provider: &str| ProviderBacklog {
        provider: provider.to_owned(),
        parked: 0,
        give_backs_parked: 0,
        extensions_parked: 0,
        on_sale: ["nobody", "second"].contains(&provider),
        due: 0,
        oldest_overdue: Duration::ZERO,
    };
    let mut before = backlogs().await;
    before.sort_by(|a, b| a.provider.cmp(&b.provider));
    let known = ["nobody", "other", PROVIDER, "second"].map(idle);
    assert_eq!(before, known, "an alternative is known, too");
    bench.overdue().await;
    let order = bench.placing(1).await;
    bench.settle(&[parked(placement(&order), 1)]).await;
    bench.set("UPDATE work SET provider = $1", "nobody").await;
    let now = backlogs().await;
    let of = |provider: &str| {
        now.iter()
            .find(|backlog| backlog.provider == provider)
            .unwrap()
    };
    assert_eq!((of(PROVIDER).parked, of("nobody").parked), (1, 0));
    assert_eq!((of(PROVIDER).due, of("nobody").due), (0, 1));
    assert!(of("nobody").oldest_overdue.abs_diff(Duration::from_mins(1)) < Duration::from_secs(20));
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_parked_alone() {
    let bench = Bench::registered().await;
    let bad = bench.overdue().await;
    let good = bench.overdue().await;
    // What the first claim reads is damaged, so it reads the topups, and there is a damaged one,
    // too.
    for damage in [
        "UPDATE placements SET first_claim = '{' WHERE placement_id::text = $1",
        "UPDATE topups SET topup_id = 'no topup id' WHERE placement_id::text = $1",
    ] {
        bench.set(damage, bad).await;
    }
    let claimed = bench.claim_due(PROVIDER, 10).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].placement_id, good);
    assert_eq!(bench.state(bad).await, "parked");
}

#[tokio::test]
async fn answers_that_leave_it_open_are_counted_in_a_row() {
    let bench = Bench::registered().await;
    let order = bench.placing(1).await;
    let id = placement(&order);
    let again = async || {
        bench.make_due(id).await;
        let claimed = bench.claim_due(PROVIDER, 1).await;
        (claimed[0].unknowns, claimed[0].attempt)
    };
    for unknowns in 1..4 {
        bench.settle(&[unknown(id, 1)]).await;
        assert_eq!(again().await, (unknowns, 1));
    }
    bench.settle(&[not_found(id, 1, false)]).await;
    assert_eq!(again().await, (0, 1));
    bench
        .settle(&[unknown(id, 1), not_found(id, 1, true)])
        .await;
    assert_eq!(again().await, (0, 2));
}

/// However often a breaker tests itself, it has failed since its first opening.
#[tokio::test]
async fn a_breaker_that_opens_again_has_failed_since_it_opened_first() {
    let bench = Bench::registered().await;
    let first = bench.failed(1).await.unwrap().failing_since.unwrap();
    let stored = bench.stored(order(PartnerId::new(), 1)).await;
    bench.due_in(&[placement(&stored)], -5.0).await;
    for _ in 0..3 {
        bench.sql("UPDATE providers SET open_until = now()").await;
        let probe = bench.probe().await.unwrap();
        let opened = bench.failed(probe.version).await.unwrap();
        assert_eq!(opened.failing_since, Some(first));
        assert!(opened.changed_at > first);
    }
    let probe = bench.breaker().await;
    let closed = bench.answered(probe.version).await.unwrap();
    assert_eq!(
        (closed.state, closed.failing_since),
        (BreakerState::Closed, None)
    );
    let again = bench.failed(closed.version).await.unwrap();
    assert!(again.failing_since > Some(first));
}

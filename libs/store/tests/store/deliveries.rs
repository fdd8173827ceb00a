//! Deliveries: how they are looked for, claimed, recorded, and moved to `no_endpoint`. The races
//! are tested, too: a URL that is just being set, and a delivery that becomes pending again while
//! its work is deleted.

use std::{collections::HashSet, pin::pin, time::Duration};

use desk::operator::endpoints::set_url;
use domain::{DeliveryId, EndpointId, EndpointKey, PartnerId, TopupId, endpoint::BlockPolicy};
use pg::Transaction;
use sqlx::PgConnection;
use store::deliveries::{
    self, AttemptResult, ClaimedDelivery, DeliveryClaim, EndedAttempt, endpoints,
};
use store::work;
use testkit::wait;

use crate::bench::{Bench, LEASE, committed, delivery_id, esim, iccid, ids, look};

const URL: Option<&str> = Some("https://partner.example/hook");
/// A whole attempt of a younger delivery ends within the first lease.
const YOUNGER_THAN: Duration = Duration::from_secs(10);
/// Blocks at the third failure.
pub const BLOCK_POLICY: BlockPolicy = BlockPolicy {
    failures: 3,
    first: Duration::from_secs(10),
    longest: Duration::from_secs(35),
};

impl Bench {
    /// First attempts that are young enough.
    async fn first(&self, topups: &[TopupId], younger_than: Duration) -> Vec<TopupId> {
        let claim = DeliveryClaim::Fresh { younger_than };
        let claimed = deliveries::claim(&mut *self.connection().await, &ids(topups), claim).await;
        topups_of(&claimed.unwrap().deliveries)
    }

    async fn take_due(&self, limit: usize, per_partner: usize) -> Vec<TopupId> {
        topups_of(&self.claim_due_deliveries(&look(limit, per_partner)).await)
    }

    pub async fn record(&self, attempts: &[EndedAttempt]) {
        let recorded =
            deliveries::record(&mut *self.connection().await, attempts, &BLOCK_POLICY, 100).await;
        recorded.unwrap();
    }

    async fn delivery(&self, topup: &TopupId) -> String {
        let statement = "SELECT to_jsonb(d)::text || coalesce(to_jsonb(due)::text, '')
            FROM deliveries d LEFT JOIN work due ON due.id = d.delivery_id WHERE topup_id = $1";
        self.value(statement, topup).await
    }

    /// State, number of ended attempts, and seconds until it is due.
    async fn summary(&self, topup: &TopupId) -> (String, i32, Option<i32>) {
        sqlx::query_as(
            "SELECT state, attempt, round(extract(epoch FROM at - now()))::int
             FROM deliveries LEFT JOIN work ON id = delivery_id WHERE topup_id = $1",
        )
        .bind(topup.as_str())
        .fetch_one(&self.pool)
        .await
        .unwrap()
    }
}

fn topups_of(read: &[ClaimedDelivery]) -> Vec<TopupId> {
    read.iter().map(|one| esim(one).topup_id.clone()).collect()
}

/// An attempt of due work with this result, at an unknown endpoint.
pub fn attempted(id: DeliveryId, attempt: u32, result: AttemptResult) -> EndedAttempt {
    let (status, class) = match result {
        AttemptResult::Delivered => (200, "delivered"),
        AttemptResult::Failed { .. } => (500, "status_5xx"),
    };
    EndedAttempt {
        id,
        endpoint_id: EndpointId::new(),
        is_event: false,
        leased: true,
        ended_attempts: attempt,
        schedule_start: 0,
        at: runtime::clock::now(),
        duration: Duration::from_millis(7),
        status: Some(status),
        class,
        detail: None,
        proves: false,
        response_start: Some(b"sealed".to_vec()),
        result,
    }
}

/// The endpoint responded 500.
pub fn failure(retry_in: Option<Duration>) -> AttemptResult {
    AttemptResult::Failed {
        error: "status 500".into(),
        retry_in,
        retry_if_resent: Some(Duration::from_hours(1)),
        endpoint_failed: true,
    }
}

fn delivered(topup_id: &TopupId, attempt: u32) -> EndedAttempt {
    attempted(delivery_id(topup_id), attempt, AttemptResult::Delivered)
}

fn failed(topup_id: &TopupId, attempt: u32, retry_in: Option<u64>) -> EndedAttempt {
    attempted(
        delivery_id(topup_id),
        attempt,
        failure(retry_in.map(Duration::from_secs)),
    )
}

#[tokio::test]
async fn a_first_attempt_is_taken_without_a_write() {
    let bench = Bench::new().await;
    let partner = bench.partner(URL).await;
    let announced = bench.deliveries(partner, 5, true).await;
    let tried = &announced[1..];
    bench
        .record(&[failed(&tried[0], 0, Some(300)), delivered(&tried[1], 0)])
        .await;
    bench
        .set(
            "UPDATE deliveries SET state = 'no_endpoint' WHERE topup_id = $1",
            &tried[2],
        )
        .await;
    let before = bench.delivery(&announced[0]).await;
    let named = &announced[..4];
    for _ in 0..2 {
        assert_eq!(bench.first(named, YOUNGER_THAN).await, announced[..1]);
    }
    assert_eq!(bench.delivery(&announced[0]).await, before);
    // A look at due work finds an attempt that could outlast the first lease.
    let sql = "UPDATE deliveries SET created_at = now() - interval '11 s' WHERE topup_id = $1";
    bench.set(sql, &announced[0]).await;
    assert!(bench.first(named, YOUNGER_THAN).await.is_empty());
    assert!(bench.first(&[], YOUNGER_THAN).await.is_empty());
}

#[tokio::test]
async fn a_claim_that_fails_after_its_leases_gives_them_back() {
    let bench = Bench::new().await;
    let partner = bench.partner(URL).await;
    let topups = bench.deliveries(partner, 2, false).await;
    let claim = DeliveryClaim::Due { lease: LEASE };
    // The leases can be taken, and the deliveries cannot be read.
    bench
        .sql("ALTER TABLE esims RENAME profile TO hidden")
        .await;
    let claimed = deliveries::claim(&mut *bench.connection().await, &ids(&topups), claim).await;
    assert!(claimed.is_err());
    bench
        .sql("ALTER TABLE esims RENAME hidden TO profile")
        .await;
    assert_eq!(
        bench.take_due(9, 9).await.len(),
        2,
        "nobody uses the leases"
    );
}

#[tokio::test]
async fn what_cannot_be_put_off_keeps_no_other_delivery_from_its_attempt() {
    let bench = Bench::new().await;
    let partner = bench.partner(URL).await;
    let topups = bench.deliveries(partner, 2, false).await;
    bench
        .set(
            "UPDATE deliveries SET state = 'exhausted' WHERE topup_id = $1",
            &topups[0],
        )
        .await;
    bench
        .sql(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
             CREATE TRIGGER fail BEFORE DELETE ON work FOR EACH ROW EXECUTE FUNCTION fail()",
        )
        .await;
    assert_eq!(bench.take_due(9, 9).await, topups[1..]);
}

#[tokio::test]
async fn a_delivery_comes_with_all_that_its_webhook_needs() {
    let bench = Bench::new().await;
    let partner = bench.partner(URL).await;
    let topup = &bench.deliveries(partner, 1, false).await[0];
    let one = &bench.claim_due_deliveries(&look(1, 1)).await[0];
    let content = esim(one);
    assert_eq!((&content.topup_id, one.partner_id), (topup, partner));
    assert_eq!(
        (one.id, one.webhook_id()),
        (delivery_id(topup), topup.clone().into())
    );
    assert_eq!(content.iccid, iccid(topup).as_str());
    assert_eq!(content.profile, b"sealed");
    assert_eq!((one.target.url.as_deref(), one.ended_attempts), (URL, 0));
    assert_eq!(content.external_order_id, content.order_id.to_string());
    assert!(content.age < Duration::from_secs(10));
}

#[tokio::test]
async fn what_is_due_is_taken_by_turns_and_leased() {
    let bench = Bench::new().await;
    let busy = bench.partner(URL).await;
    let idle = bench.partner(URL).await;
    let many = bench.deliveries(busy, 10, false).await;
    let few = bench.deliveries(idle, 2, false).await;
    bench.deliveries(idle, 3, true).await; // not due yet
    // The last one has been overdue the longest.
    for topup in &many[7..] {
        bench.deliver_in(std::slice::from_ref(topup), -3600.0).await;
    }
    let first: HashSet<TopupId> = bench.take_due(100, 3).await.into_iter().collect();
    assert_eq!(first, many[7..].iter().chain(&few).cloned().collect());

    // All others are still leased.
    for (limit, taken) in [(2, 2), (0, 0), (100, 5), (100, 0)] {
        assert_eq!(bench.take_due(limit, 100).await.len(), taken, "{limit}");
    }
}

#[tokio::test]
async fn a_look_walks_over_all_partners_a_page_at_a_time() {
    let bench = Bench::new().await;
    let mut all = HashSet::new();
    for _ in 0..7 {
        let partner = bench.partner(URL).await;
        all.extend(ids(&bench.deliveries(partner, 1, false).await));
    }
    let mut connection = bench.connection().await;
    let mut seen = HashSet::new();
    let mut next = look(3, 9);
    let mut looks = 0;
    loop {
        let found = work::due_deliveries(&mut connection, &next).await.unwrap();
        assert!(found.due.len() <= 3);
        seen.extend(found.due.into_iter().map(|one| one.id));
        looks += 1;
        let Some(after) = found.after else { break };
        next.after = Some(after);
    }
    assert_eq!((seen, looks), (all, 3));
}

#[tokio::test]
async fn no_delivery_is_claimed_twice_as_due() {
    let bench = Bench::new().await;
    let mut all = HashSet::new();
    for _ in 0..3 {
        let partner = bench.partner(URL).await;
        all.extend(ids(&bench.deliveries(partner, 100, false).await));
    }
    let find = async |connection: &mut PgConnection| -> Vec<DeliveryId> {
        let found = work::due_deliveries(connection, &look(9, 5))
            .await
            .unwrap()
            .due;
        assert!(found.len() <= 9);
        found.into_iter().map(|one| one.id).collect()
    };
    let claim = async |connection: &mut PgConnection, found: &[DeliveryId]| -> Vec<DeliveryId> {
        let claimed = deliveries::claim(connection, found, DeliveryClaim::Due { lease: LEASE })
            .await
            .unwrap();
        claimed.deliveries.into_iter().map(|one| one.id).collect()
    };
    // Two processes see the same rows due, because a look leases nothing.
    let mut one = bench.connection().await;
    let mut other = bench.connection().await;
    let seen = find(&mut one).await;
    let also_seen = find(&mut other).await;
    assert_eq!(seen, also_seen);
    let mut taken = claim(&mut one, &seen).await;
    assert_eq!(taken.len(), seen.len());
    assert_eq!(claim(&mut other, &seen).await, []);
    deliveries::put_back(&mut one, &seen[..1]).await.unwrap();
    assert_eq!(claim(&mut other, &seen).await, seen[..1], "put back");
    drop((one, other));

    let takers = (0..6).map(|_| async {
        let mut mine = Vec::new();
        let mut connection = bench.connection().await;
        loop {
            let found = find(&mut connection).await;
            if found.is_empty() {
                return mine;
            }
            mine.extend(claim(&mut connection, &found).await);
        }
    });
    taken.extend(futures_util::future::join_all(takers).await.concat());
    assert_eq!(taken.len(), 300);
    assert_eq!(taken.into_iter().collect::<HashSet<_>>(), all);
}

/// A delivery waits for a permit while its endpoint is blocked, or while another process finishes
/// it.
#[tokio::test]
async fn a_claim_takes_no_lease_in_vain_and_deletes_finished_work() {
    let bench = Bench::new().await;
    let partner = bench.partner(URL).await;
    let topups = bench.deliveries(partner, 3, false).await;
    let mut connection = bench.connection().await;
    let claim = DeliveryClaim::Due { lease: LEASE };
    bench
        .set(
            "UPDATE deliveries SET state = 'delivered' WHERE topup_id = $1",
            &topups[0],
        )
        .await;
    let claimed = deliveries::claim(&mut connection, &ids(&topups[..2]), claim)
        .await
        .unwrap()
        .deliveries;
    assert_eq!(topups_of(&claimed), topups[1..2]);
    assert!(claimed[0].leased);
    let left: i64 = bench
        .value(
            "SELECT count(*) FROM work WHERE partner_id::text = $1",
            partner,
        )
        .await;
    assert_eq!(left, 2, "the work of the delivered one is gone");

    let block = "UPDATE partner_endpoints SET blocked_until = now() + interval '1 hour' WHERE endpoint_id::text = $1";
    bench.set(block, partner).await;
    assert!(
        deliveries::claim(&mut connection, &ids(&topups[2..]), claim)
            .await
            .unwrap()
            .deliveries
            .is_empty()
    );
    assert!(
        bench
            .summary(&topups[2])
            .await
            .2
            .is_some_and(|wait| wait <= 0),
        "it stays due"
    );
    // After the block one of several is the probe, and the others stay due.
    bench.deliver_in(&topups[1..], 0.0).await;
    bench
        .set(
            "UPDATE partner_endpoints SET blocked_until = now() WHERE endpoint_id::text = $1",
            partner,
        )
        .await;
    let probes = deliveries::claim(&mut connection, &ids(&topups[1..]), claim)
        .await
        .unwrap()
        .deliveries;
    assert_eq!(probes.len(), 1);
    let due: i64 = bench
        .value(
            "SELECT count(*) FROM work WHERE at <= now() AND partner_id::text = $1",
            partner,
        )
        .await;
    assert_eq!(due, 1);
}

/// Most attempts are first ones of topups that are acknowledged: one update records them.
#[tokio::test]
async fn an_acknowledged_first_attempt_is_recorded_and_what_is_left_of_it_goes_later() {
    let bench = Bench::new().await;
    let partner = bench.partner(URL).await;
    let topups = bench.deliveries(partner, 4, true).await;
    let first = |topup: &TopupId| EndedAttempt {
        endpoint_id: partner.first_endpoint(),
        leased: false,
        ..delivered(topup, 0)
    };
    let mut connection = bench.connection().await;
    // The message came twice: one of its rows was deferred, another process exhausted another row.
    deliveries::defer(&mut connection, &ids(&topups[1..2]))
        .await
        .unwrap();
    bench.record(&[failed(&topups[2], 0, None)]).await;
    let fail = EndedAttempt {
        endpoint_id: partner.first_endpoint(),
        ..failed(&topups[3], 0, Some(60))
    };
    bench.record(&[fail]).await;
    let failures = "SELECT failures FROM partner_endpoints WHERE endpoint_id::text = $1";
    assert_eq!(bench.value::<i32>(failures, partner).await, 1);

    bench
        .record(&topups[..2].iter().map(first).collect::<Vec<_>>())
        .await;
    assert_eq!(
        bench.value::<i32>(failures, partner).await,
        0,
        "the endpoint answers"
    );
    bench.record(&[first(&topups[2])]).await;
    for (topup, attempts) in topups[..3].iter().zip([1, 1, 2]) {
        let (state, attempt, _) = bench.summary(topup).await;
        assert_eq!((state.as_str(), attempt), ("delivered", attempts));
        let statement =
            "SELECT status = 200 AND duration_ms = 7 AND error IS NULL AND attempted_at IS NOT NULL
                AND delivered_at IS NOT NULL FROM deliveries WHERE topup_id = $1";
        assert!(bench.value::<bool>(statement, topup).await);
    }
    assert_eq!(
        bench
            .value::<i64>(
                "SELECT count(*) FROM held WHERE partner_id::text = $1",
                partner
            )
            .await,
        0
    );
    // The first and the third have no attempt of their own in the table; the exhausted one has its
    // failure.
    let kept = "SELECT count(*) FROM delivery_attempts WHERE class = $1";
    assert_eq!(bench.value::<i64>(kept, "delivered").await, 0);
    assert_eq!(bench.value::<i64>(kept, "status_5xx").await, 2);
    // The deferred one still has work, which the next claim deletes.
    assert!(bench.summary(&topups[1]).await.2.is_some());
    assert!(bench.take_due(10, 10).await.is_empty());
    assert_eq!(bench.summary(&topups[1]).await.2, None);
}

#[tokio::test]
async fn an_attempt_is_recorded_once() {
    let bench = Bench::new().await;
    let partner = bench.partner(URL).await;
    let topups = bench.deliveries(partner, 3, false).await;
    let one = &topups[0];
    let other = &topups[1];
    let batch = [failed(one, 0, Some(300)), delivered(other, 0)];
    bench.record(&batch).await;
    assert_eq!(bench.summary(one).await, ("pending".into(), 1, Some(300)));
    assert_eq!(bench.summary(other).await, ("delivered".into(), 1, None));
    let before = (bench.delivery(one).await, bench.delivery(other).await);
    bench.record(&batch).await;
    bench
        .record(&[
            failed(one, 0, None),
            failed(one, 2, None),
            failed(other, 1, None),
        ])
        .await;
    bench.record(&[delivered(other, 1)]).await;
    bench.record(&[]).await;
    assert_eq!(
        (bench.delivery(one).await, bench.delivery(other).await),
        before
    );
    bench.record(&[failed(one, 1, Some(5))]).await;
    assert_eq!(bench.summary(one).await, ("pending".into(), 2, Some(5)));
    // An event that came twice may be acknowledged once and fail once, in one batch.
    let mut plain = delivered(&topups[2], 0);
    plain.leased = false;
    bench.record(&[plain, failed(&topups[2], 0, None)]).await;
    let kept = "SELECT class FROM delivery_attempts JOIN deliveries USING (delivery_id) WHERE topup_id = $1";
    assert_eq!(bench.value::<String>(kept, &topups[2]).await, "status_5xx");
}

#[tokio::test]
async fn what_arrived_is_delivered_whoever_gave_it_up() {
    let bench = Bench::new().await;
    let partner = bench.partner(URL).await;
    let topups = bench.deliveries(partner, 3, false).await;
    bench
        .record(&[failed(&topups[0], 0, None), failed(&topups[2], 0, Some(60))])
        .await;
    assert_eq!(
        bench.summary(&topups[0]).await,
        ("exhausted".into(), 1, None)
    );
    bench
        .set(
            "UPDATE deliveries SET state = 'no_endpoint' WHERE topup_id = $1",
            &topups[1],
        )
        .await;
    let arrived: Vec<EndedAttempt> = topups.iter().map(|topup| delivered(topup, 0)).collect();
    bench.record(&arrived).await;
    for topup in &topups {
        let (state, _, due) = bench.summary(topup).await;
        assert_eq!((state.as_str(), due), ("delivered", None));
        let statement = "SELECT status = 200 AND error IS NULL AND delivered_at IS NOT NULL
                FROM deliveries WHERE topup_id = $1";
        assert!(bench.value::<bool>(statement, topup).await);
    }
}

#[tokio::test]
async fn without_an_endpoint_a_delivery_waits_for_one() {
    let bench = Bench::new().await;
    let without = bench.partner(None).await;
    let with = bench.partner(URL).await;
    let waiting = bench.deliveries(without, 2, false).await;
    let others = bench.deliveries(with, 1, false).await;
    let mut connection = bench.connection().await;
    bench.record(&[delivered(&waiting[1], 0)]).await;
    let all = ids(&[&waiting[..], &others[..]].concat());
    for expected in [1, 0] {
        assert_eq!(
            deliveries::set_no_endpoint(&mut connection, &all)
                .await
                .unwrap(),
            expected
        );
    }
    assert_eq!(
        bench.summary(&waiting[0]).await,
        ("no_endpoint".into(), 0, None)
    );
    assert!(!bench.take_due(10, 10).await.contains(&waiting[0]));
    assert_eq!(bench.set_url(without, None).await, Some(0));
    assert_eq!(bench.set_url(without, URL).await, Some(1));
    assert_eq!(bench.take_due(10, 10).await, waiting[..1]);
    assert_eq!(bench.set_url(PartnerId::new(), URL).await, None);
}

/// Work is left behind by a sweep that saw the delivery pending before it lost its URL. A notifier
/// finds that work at the moment when the partner sets a URL.
#[tokio::test]
async fn the_work_of_a_delivery_that_becomes_pending_again_is_not_deleted() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let topups = bench.deliveries(partner, 1, false).await;
    let named = ids(&topups);
    assert_eq!(
        deliveries::set_no_endpoint(&mut *bench.connection().await, &named)
            .await
            .unwrap(),
        1
    );
    let left_behind = "INSERT INTO work (id, kind, provider, lane, partner_id, at)
        SELECT delivery_id, 'deliver', '', '', partner_id, now() FROM deliveries WHERE topup_id = $1";
    bench.set(left_behind, &topups[0]).await;
    bench
        .sql("UPDATE partner_endpoints SET moving_since = now()")
        .await;

    // The claim takes the lease and then waits, because it cannot read the partner.
    let mut holder = bench.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE partners IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *holder)
        .await
        .unwrap();
    let claim = async {
        let claimed = deliveries::claim(
            &mut *bench.connection().await,
            &named,
            DeliveryClaim::Due { lease: LEASE },
        )
        .await;
        claimed.unwrap().deliveries
    };
    let setting = async {
        wait::soon("the lease", async || {
            Ok((bench.summary(&topups[0]).await.2 > Some(0)).then_some(()))
        })
        .await;
        let mut operator = bench.pool.begin().await.unwrap();
        assert_eq!(
            endpoints::move_waiting(&mut operator, EndpointKey::first(partner), 10)
                .await
                .unwrap()
                .due,
            1
        );
        holder.rollback().await.unwrap();
        // Now the claim sees that the delivery is not pending, and wants to delete its work.
        let waiting = "SELECT exists(SELECT FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%DELETE%' AND $1 <> '')";
        wait::soon("the deletion", async || {
            Ok((bench.value::<bool>(waiting, partner).await).then_some(()))
        })
        .await;
        operator.commit().await.unwrap();
    };
    let (claimed, ()) = tokio::join!(claim, setting);
    assert!(claimed.is_empty());
    assert_eq!(
        bench.summary(&topups[0]).await,
        ("pending".into(), 0, Some(0))
    );
}

/// The notifier has seen that there is no URL, and waits for a row, when an operator sets one. The
/// operator's statements must wait for the notifier, because they would not find what it is about
/// to hold.
#[tokio::test]
async fn a_url_that_is_just_being_set_is_never_missed() {
    const WAITING: &str = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND $1 <> ''";
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let topups = bench.deliveries(partner, 1, false).await;
    let named = ids(&topups);
    let mut holder = bench.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM deliveries FOR UPDATE")
        .execute(&mut *holder)
        .await
        .unwrap();
    let mut notifier = bench.connection().await;
    let give_up = deliveries::set_no_endpoint(&mut notifier, &named);
    let set = async {
        let waits = async || Ok((bench.value::<i64>(WAITING, partner).await == 1).then_some(()));
        wait::soon("the notifier waits for the delivery", waits).await;
        let mut setting = pin!(async {
            let set =
                async |transaction: &mut Transaction<'_>| set_url(transaction, partner, URL).await;
            committed(&mut *bench.connection().await, set).await?;
            // The notifier may do this at once, and nobody looks again later.
            Ok::<_, pg::Error>(bench.move_waiting(EndpointKey::first(partner)).await)
        });
        let waits = async || Ok((bench.value::<i64>(WAITING, partner).await == 2).then_some(()));
        let early = tokio::select! {
            early = &mut setting => Some(early),
            () = wait::soon("the operator waits for the notifier", waits) => None,
        };
        holder.rollback().await.unwrap();
        match early {
            Some(early) => early,
            None => setting.await,
        }
    };
    let (given_up, due) = tokio::join!(give_up, set);
    assert_eq!(
        (given_up.unwrap(), due.unwrap()),
        (1, 1),
        "what is given up becomes due"
    );
    assert_eq!(
        bench.summary(&topups[0]).await,
        ("pending".into(), 0, Some(0))
    );
}

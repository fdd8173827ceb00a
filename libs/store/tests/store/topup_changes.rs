//! The walk of a partner over the changes of its topups: each one is found once, in whatever pages,
//! also if it commits late, and no other partner's.

use std::{collections::BTreeSet, time::Duration};

use desk::self_service::{self, ChangePage, ChangePosition, TopupChange, TopupChanges};
use domain::{PartnerId, TopupId};
use store::{orders::NewOrder, placements};
use time::OffsetDateTime;

use crate::bench::{Bench, Told as _, answered, bought, order, placement, ready, rejected, topups};

const LONG_AGO: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

impl Bench {
    /// All changes after `since`, in pages of `limit`, and until when they are complete.
    async fn walked(
        &self,
        partner: PartnerId,
        since: OffsetDateTime,
        limit: u16,
    ) -> (Vec<(TopupId, TopupChange)>, OffsetDateTime) {
        let mut found = Vec::new();
        let mut after = ChangePosition::after(since);
        loop {
            let page = ChangePage {
                after,
                until: None,
                limit,
            };
            let TopupChanges {
                changes,
                next,
                complete_until,
            } = self.page(partner, &page).await;
            assert!(changes.len() <= usize::from(limit));
            found.extend(
                changes
                    .into_iter()
                    .map(|one| (one.unit.topup_id, one.change)),
            );
            match next {
                Some(next) => after = next,
                None => return (found, complete_until),
            }
        }
    }

    async fn page(&self, partner: PartnerId, page: &ChangePage) -> TopupChanges {
        let mut connection = self.as_role("ingress").await;
        let found = self_service::changes(&mut connection, partner, page).await;
        found.told(&mut connection).await
    }

    /// An order whose units are ready.
    async fn became_ready(&self, partner: PartnerId, units: usize) -> NewOrder {
        let order = self.stored(answered(partner, units)).await;
        self.claim(&[placement(&order)]).await;
        let bought = bought(
            placement(&order),
            1,
            topups(&order).iter().map(ready).collect(),
            true,
        );
        self.settle(&[bought]).await;
        order
    }

    async fn became_failed(&self, order: NewOrder) -> NewOrder {
        let order = self.stored(order).await;
        self.claim(&[placement(&order)]).await;
        self.settle(&[rejected(placement(&order), 1)]).await;
        order
    }

    /// Everything that has changed until now did so this long ago, and the sweeps have come to now.
    async fn shift(&self, ago: &str) {
        self.sql(&format!(
            "UPDATE deliveries SET created_at = created_at - interval '{ago}';
             UPDATE topup_changes SET at = at - interval '{ago}';
             UPDATE walks SET up_to = now() WHERE name IN ('placements', 'deliveries')"
        ))
        .await;
    }

    /// Where the sweeps are after this many of them.
    async fn swept_up_to(&self, sweeps: u32) -> OffsetDateTime {
        let mut connection = self.as_role("provisioner").await;
        for _ in 0..sweeps {
            placements::sweep(&mut connection, Duration::from_secs(10))
                .await
                .unwrap();
        }
        let up_to = "SELECT max(up_to) FROM walks WHERE name IN ('placements', 'deliveries')";
        sqlx::query_scalar(up_to)
            .fetch_one(&mut connection)
            .await
            .unwrap()
    }
}

/// Changes of one time come in the order of the ids.
fn all(order: &NewOrder, change: TopupChange) -> Vec<(TopupId, TopupChange)> {
    let mut ids = topups(order);
    ids.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
    ids.into_iter().map(|one| (one, change)).collect()
}

#[tokio::test]
async fn each_change_is_walked_once_in_pages_of_every_size() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let other = bench.partner(None).await;
    // The units of one order become ready at the same time.
    let first = bench.became_ready(partner, 5).await;
    bench.shift("1 hour").await;
    let lost = bench.became_failed(answered(partner, 3)).await;
    let theirs = bench.became_ready(other, 1).await;
    bench.became_failed(answered(other, 1)).await;
    // It is given back, and stays listed as ready at the time when it was.
    let returned = topups(&first)[0].clone();
    let extended = topups(&first)[1].clone();
    let extend = "WITH made AS (
                      INSERT INTO extensions (extension_id, partner_id, topup_id, provider, external_id, option_id,
                                              provider_option_id)
                      SELECT gen_random_uuid(), gen_random_uuid(), $1, 'sandbox', 'x', gen_random_uuid(), 'x')
                  SELECT 1";
    bench.set(extend, &extended).await;
    bench.sql("UPDATE extensions SET state = 'sending'").await;
    bench.sql("UPDATE extensions SET state = 'added'").await;
    let give_back = "UPDATE esims SET returned_at = now(), erased_at = now(), profile = NULL WHERE topup_id = $1";
    bench.set(give_back, &returned).await;

    let (now, complete_until) = bench.walked(partner, LONG_AGO, 100).await;
    assert_eq!(
        now,
        all(&first, TopupChange::Ready),
        "the others may come late"
    );
    bench.shift("3 minutes").await;
    let mut expected = all(&first, TopupChange::Ready);
    expected.extend(all(&lost, TopupChange::Failed));
    expected.push((extended, TopupChange::Extended));
    expected.push((returned, TopupChange::Returned));
    for limit in [1, 2, 5, 100] {
        let (found, _) = bench.walked(partner, LONG_AGO, limit).await;
        assert_eq!(found, expected, "{limit}");
    }
    let (found, _) = bench.walked(other, LONG_AGO, 100).await;
    assert_eq!(found[0], (topups(&theirs)[0].clone(), TopupChange::Ready));
    assert_eq!(found.len(), 2);
    let (found, _) = bench.walked(PartnerId::new(), LONG_AGO, 100).await;
    assert!(found.is_empty());

    // A walk until a time ends there, and says that it is complete until then.
    let page = ChangePage {
        after: ChangePosition::after(LONG_AGO),
        until: Some(complete_until - time::Duration::minutes(30)),
        limit: 100,
    };
    let until = bench.page(partner, &page).await;
    assert_eq!(until.changes.len(), 5);
    assert_eq!(until.complete_until, page.until.unwrap());
}

/// A transaction that begins before a walk and commits after it is found by the next walk, which
/// goes on where the first one was complete.
#[tokio::test]
async fn a_change_that_commits_late_is_in_the_next_walk() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let early = bench.became_ready(partner, 1).await;
    bench.shift("5 minutes").await;
    let late = bench.stored(answered(partner, 2)).await;
    let mut connection = bench.connection().await;
    let mut transaction = sqlx::Connection::begin(&mut *connection).await.unwrap();
    let fail = "UPDATE topups SET state = 'failed' WHERE placement_id = $1";
    sqlx::query(fail)
        .bind(placement(&late).uuid())
        .execute(&mut *transaction)
        .await
        .unwrap();
    // One that begins later commits first.
    let between = bench.became_ready(partner, 1).await;
    let (first, complete_until) = bench.walked(partner, LONG_AGO, 1).await;
    assert_eq!(first, all(&early, TopupChange::Ready));
    transaction.commit().await.unwrap();
    bench
        .sql("UPDATE orders SET answer_by = answer_by - interval '1 minute'")
        .await;
    let mut expected: BTreeSet<String> = topups(&late).iter().map(ToString::to_string).collect();
    expected.extend(topups(&between).iter().map(ToString::to_string));
    // Two minutes later the walk goes on.
    bench.shift("2 minutes").await;
    let since = complete_until - time::Duration::minutes(2);
    let (second, _) = bench.walked(partner, since, 1).await;
    let second: BTreeSet<String> = second.iter().map(|(id, _)| id.to_string()).collect();
    assert_eq!(second, expected);
}

/// A commit hangs for minutes, because a standby is away. No walk meanwhile passes its change.
#[tokio::test]
async fn a_change_whose_commit_hangs_is_passed_by_no_walk() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let early = bench.became_ready(partner, 1).await;
    let late = bench.stored(answered(partner, 2)).await;
    bench.shift("1 hour").await;
    bench
        .sql(
            "UPDATE orders SET answer_by = answer_by - interval '1 hour';
             UPDATE walks SET up_to = now() - interval '5 minutes' WHERE name IN ('placements', 'deliveries')",
        )
        .await;
    let mut connection = bench.connection().await;
    let mut hanging = sqlx::Connection::begin(&mut *connection).await.unwrap();
    // It began three minutes ago.
    for statement in [
        "UPDATE topups SET state = 'failed' WHERE placement_id = $1",
        "UPDATE topup_changes SET at = at - interval '3 minutes' WHERE $1 IS NOT NULL",
    ] {
        let statement = sqlx::query(statement).bind(placement(&late).uuid());
        statement.execute(&mut *hanging).await.unwrap();
    }
    let hung_at: OffsetDateTime = sqlx::query_scalar("SELECT max(at) FROM topup_changes")
        .fetch_one(&mut *hanging)
        .await
        .unwrap();
    assert!(bench.swept_up_to(50).await < hung_at);
    let (first, complete_until) = bench.walked(partner, LONG_AGO, 1).await;
    assert_eq!(first, all(&early, TopupChange::Ready));
    assert!(complete_until < hung_at, "{complete_until} {hung_at}");
    hanging.commit().await.unwrap();
    assert!(bench.swept_up_to(100).await > hung_at);
    let (second, complete_until) = bench.walked(partner, complete_until, 1).await;
    assert_eq!(second, all(&late, TopupChange::Failed));
    assert!(complete_until > hung_at, "{complete_until} {hung_at}");
}

/// Nobody has heard of the topups of an order that was answered with 422. Those of a cancelled one
/// have failed.
#[tokio::test]
async fn a_refused_order_changes_nothing_and_a_cancelled_one_has_failed() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let refused = bench.became_failed(order(partner, 2)).await;
    assert!(bench.refuse(&refused).await.is_some());
    let cancelled = bench.stored(answered(partner, 1)).await;
    bench.cancel(&cancelled).await;
    bench.shift("3 minutes").await;
    for limit in [1, 100] {
        let (found, _) = bench.walked(partner, LONG_AGO, limit).await;
        assert_eq!(found, all(&cancelled, TopupChange::Failed));
    }
}

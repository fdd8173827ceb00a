//! The notifier's work that it does in batches: a row of `work` exists as long as there is
//! something to do, whoever caused it, and none is lost that comes while another one is finished.

use std::time::Duration;

use accounts::partners::endpoints::EndpointUpdate;
use desk::self_service;
use domain::{EndpointKey, PartnerId};
use sqlx::PgConnection;
use store::deliveries::batches::{self, ClaimedBatch};
use store::deliveries::endpoints;
use store::deliveries::resends::{self, ResendSelection, ResendStart};
use store::work::WorkKind;
use uuid::Uuid;

use crate::bench::{Bench, execute, look};

const URL: &str = "https://partner.example/hook";
const LEASE: Duration = Duration::from_mins(1);

async fn due(connection: &mut PgConnection) -> Vec<Uuid> {
    let found = batches::due(connection, &look(100, 10)).await.unwrap();
    found.due.into_iter().map(|one| one.id).collect()
}

/// Leases all that is due.
async fn claim(connection: &mut PgConnection) -> Vec<ClaimedBatch> {
    let due = due(connection).await;
    batches::claim(connection, &due, LEASE).await.unwrap()
}

impl Bench {
    async fn new_url(&self, partner: PartnerId, url: &str) {
        let change = EndpointUpdate {
            url: Some(Some(url)),
            ..EndpointUpdate::default()
        };
        let first = EndpointKey::first(partner);
        let changed =
            self_service::change_endpoint(&mut *self.connection().await, first, &change).await;
        assert_eq!(changed.unwrap(), Some(true));
    }

    async fn begin_resend(&self, partner: PartnerId) -> Uuid {
        let wanted = ResendSelection {
            state: None,
            since: time::OffsetDateTime::UNIX_EPOCH,
            until: None,
        };
        let mut connection = self.connection().await;
        match resends::begin(&mut connection, partner, &wanted, Duration::ZERO).await {
            Ok(ResendStart::Begun(begun)) => begun.resend_id,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_moved_endpoint_is_work_until_its_deliveries_are_due() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    bench.new_url(partner, "https://one.example/").await;
    let mut notifier = bench.as_role("notifier").await;
    let claimed = claim(&mut notifier).await;
    assert_eq!(claimed.len(), 1);
    let key = EndpointKey::first(partner);
    assert_eq!(
        (claimed[0].id, claimed[0].kind, claimed[0].partner_id),
        (key.id.uuid(), WorkKind::Moved, partner)
    );
    assert!(claim(&mut notifier).await.is_empty(), "it is leased");
    let moved = endpoints::move_waiting(&mut notifier, key, 10).await;
    assert!(!moved.unwrap().more);

    // The URL changes once more before the first move is recorded as done: its work stays.
    bench.new_url(partner, "https://two.example/").await;
    batches::done(&mut notifier, &claimed[0]).await.unwrap();
    batches::again(&mut notifier, &claimed[0], LEASE)
        .await
        .unwrap();
    let claimed = claim(&mut notifier).await;
    assert_eq!(claimed.len(), 1);
    let moved = endpoints::move_waiting(&mut notifier, key, 10).await;
    assert!(!moved.unwrap().more);
    batches::again(&mut notifier, &claimed[0], Duration::ZERO)
        .await
        .unwrap();
    let claimed = claim(&mut notifier).await;
    assert_eq!(claimed.len(), 1);
    batches::done(&mut notifier, &claimed[0]).await.unwrap();
    assert!(due(&mut notifier).await.is_empty());
}

#[tokio::test]
async fn a_resend_is_work_until_it_has_ended() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let other = bench.partner(Some(URL)).await;
    let ended = bench.begin_resend(partner).await;
    let cancelled = bench.begin_resend(other).await;
    let mut notifier = bench.as_role("notifier").await;
    let mut found = due(&mut notifier).await;
    found.sort_unstable();
    let mut expected = [ended, cancelled];
    expected.sort_unstable();
    assert_eq!(found, expected);

    // Nothing matches, so the walk comes to its end and then ends the resend.
    let mut steps = Vec::new();
    loop {
        let step = resends::step(&mut notifier, ended, 10).await.unwrap();
        steps.push(step);
        if step.ended {
            break;
        }
        assert!(!step.gone && steps.len() < 10, "{steps:?}");
    }
    let step = resends::step(&mut notifier, ended, 10).await.unwrap();
    assert!(step.gone && !step.ended, "{step:?}");
    resends::cancel(&mut *bench.connection().await, other, cancelled)
        .await
        .unwrap();
    let step = resends::step(&mut notifier, cancelled, 10).await.unwrap();
    assert!(step.gone && !step.ended, "{step:?}");
}

/// Another notifier does the next batch of the resend: it is neither gone nor done.
#[tokio::test]
async fn a_resend_that_another_process_works_on_is_not_gone() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some(URL)).await;
    let id = bench.begin_resend(partner).await;
    let mut other = bench.as_role("notifier").await;
    let lock = format!("BEGIN; SELECT FROM resends WHERE resend_id = '{id}' FOR UPDATE");
    execute(&mut other, &lock).await;
    let mut notifier = bench.as_role("notifier").await;
    let step = resends::step(&mut notifier, id, 10).await.unwrap();
    assert!(!step.gone && !step.ended && !step.more, "{step:?}");
}

/// Old events are deleted and ending keys looked for once a minute, by whichever notifier comes
/// first.
#[tokio::test]
async fn the_notices_are_one_row_for_all_partners_and_processes() {
    let bench = Bench::new().await;
    let mut notifier = bench.as_role("notifier").await;
    for _ in 0..2 {
        batches::begin_notices(&mut notifier).await.unwrap();
    }
    let claimed = claim(&mut notifier).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].kind, WorkKind::Notices);
    batches::again(&mut notifier, &claimed[0], LEASE)
        .await
        .unwrap();
    assert!(due(&mut notifier).await.is_empty());
    // Another process starts.
    batches::begin_notices(&mut notifier).await.unwrap();
    assert_eq!(claim(&mut notifier).await.len(), 1);
}

/// Deliveries that wait for a URL go on waiting when a pause ends. Otherwise they would become due
/// and be held again, over and over, because a move ends only when none is held for a URL.
#[tokio::test]
async fn the_end_of_a_pause_without_a_url_moves_nothing() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let first = EndpointKey::first(partner);
    let mut connection = bench.connection().await;
    endpoints::pause(&mut connection, first.id).await.unwrap();
    endpoints::resume(&mut connection, first).await.unwrap();
    self_service::pause_endpoint(&mut connection, first)
        .await
        .unwrap();
    self_service::resume_endpoint(&mut connection, first)
        .await
        .unwrap();
    assert!(due(&mut connection).await.is_empty());
    bench
        .sql("UPDATE partner_endpoints SET url = 'https://partner.example/hook'")
        .await;
    endpoints::resume(&mut connection, first).await.unwrap();
    assert_eq!(due(&mut connection).await, [first.id.uuid()]);
}

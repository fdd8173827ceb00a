//! Resends that operators ask for: their preview, their start and their early end.

use std::time::Duration;

use desk::operator::{
    resends as asked,
    resends::{NotStarted, ResendCancellation},
};
use domain::standing::DeliveryState;
use pg::actions::{Action, Actor};
use store::deliveries::resends::{self, MatchCount, ResendSelection};

use uuid::Uuid;

use crate::{bench::Bench, console::action};

/// The work is done by the notifiers, whatever becomes of the program that started it.
#[tokio::test]
async fn a_resend_sends_what_matches_at_several_partners_and_can_be_cancelled() {
    let bench = Bench::new().await;
    let mut partners = Vec::new();
    for _ in 0..3 {
        let partner = bench.partner(Some("https://partner.example/")).await;
        bench.deliveries(partner, 2, false).await;
        partners.push(partner);
    }
    bench
        .sql("UPDATE deliveries SET state = 'exhausted', attempt = 1, attempted_at = now()")
        .await;
    bench.sql("DELETE FROM work").await;
    bench
        .sql("INSERT INTO held (id, state, provider, partner_id) SELECT delivery_id, 'exhausted', '', partner_id FROM deliveries")
        .await;
    let wanted = ResendSelection {
        state: Some(DeliveryState::Exhausted),
        since: time::OffsetDateTime::UNIX_EPOCH,
        until: None,
    };
    // The third partner has a resend of its own.
    let own = resends::begin(
        &mut *bench.connection().await,
        partners[2],
        &wanted,
        Duration::ZERO,
    )
    .await
    .unwrap();
    assert!(matches!(own, resends::ResendStart::Begun(_)));

    let mut console = bench.as_role("console").await;
    let preview = asked::preview(&mut console, None, &wanted).await.unwrap();
    let four = MatchCount {
        number: 4,
        all: true,
    };
    assert_eq!((preview.matching, preview.parts.len()), (four, 3));
    assert_eq!(preview.unseen, 0);
    // A partner without webhooks costs no count, and those that were not counted are named.
    bench.partner(Some("https://idle.example/")).await;
    let hasty = asked::preview_within(&mut console, None, &wanted, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!((hasty.parts.len(), hasty.unseen), (0, 3));
    assert!(!hasty.matching.all);
    let start = Action {
        actor: Actor::console("ana", "192.0.2.1"),
        ..action(domain::Command::ResendStart)
    };
    bench.account("ana").await;
    let id = Uuid::now_v7();
    let started = asked::start(&mut console, id, None, &wanted, start)
        .await
        .unwrap();
    assert_eq!((started.parts, started.skipped, started.resent), (2, 1, 0));
    assert!(started.ended_at.is_none());
    let again = asked::start(&mut console, Uuid::now_v7(), None, &wanted, start).await;
    assert!(matches!(again, Err(NotStarted::Nothing)));
    let again = asked::start(&mut console, id, None, &wanted, start).await;
    assert!(matches!(again, Err(NotStarted::Already)));

    let found = asked::find(&mut console, started.resend_id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (found.asked_by.as_str(), found.via.as_str()),
        ("ana", "console")
    );
    let cancel = Action {
        command: domain::Command::ResendCancel,
        ..start
    };
    let ended = asked::cancel(&mut console, started.resend_id, cancel).await;
    let Ok(ResendCancellation::Now(ended)) = ended else {
        panic!("{ended:?}");
    };
    // A second one changes nothing and says so.
    let again = asked::cancel(&mut console, started.resend_id, cancel).await;
    assert!(
        matches!(again, Ok(ResendCancellation::EndedBefore(_))),
        "{again:?}"
    );
    assert!(ended.cancelled_at.is_some() && ended.ended_at.is_some());
    assert_eq!((ended.parts, ended.ended), (2, 2));
    // The partner's own one goes on.
    let running = resends::running(&mut console, None, 10).await.unwrap();
    assert_eq!(running.len(), 1);
    assert_eq!(running[0].partner_id, partners[2].uuid());
    // Both are listed, and nothing that is only a part.
    assert_eq!(asked::list(&mut console, 10).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_preview_that_can_not_count_all_webhooks_counts_the_newest_and_says_so() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    // More than a count looks at were delivered three days ago, two a minute ago.
    let sql = format!(
        "INSERT INTO deliveries (delivery_id, partner_id, kind, state, attempt, attempted_at, created_at)
         SELECT gen_random_uuid(), '{partner}', 'topup.ready', 'delivered', 1, at, at
         FROM generate_series(1, 20002) n,
              LATERAL (SELECT now() - CASE WHEN n > 2 THEN interval '3 days' ELSE interval '1 minute' END AS at) moment"
    );
    bench.sql(&sql).await;
    let wanted = ResendSelection {
        state: Some(DeliveryState::Delivered),
        since: runtime::clock::now() - Duration::from_hours(1),
        until: None,
    };
    let mut console = bench.as_role("console").await;
    let preview = asked::preview(&mut console, Some(partner), &wanted)
        .await
        .unwrap();
    assert_eq!(
        preview.matching,
        MatchCount {
            number: 2,
            all: false,
        }
    );
}

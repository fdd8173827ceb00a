//! Resends that operators ask for: their preview, their start and their early end.

use std::time::Duration;

use desk::operator::{
    resends as asked,
    resends::{Cancelled, NotStarted},
};
use domain::standing::DeliveryState;
use pg::{
    actions::{Action, Actor},
    schema::{self, Patience},
};
use store::deliveries::resends::{self, Counted, Wanted};

use sqlx::migrate::{Migration, Migrator};
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
    let wanted = Wanted {
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
    assert!(matches!(own, resends::Begun::Begun(_)));

    let mut console = bench.as_role("console").await;
    let preview = asked::preview(&mut console, None, &wanted).await.unwrap();
    let four = Counted {
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
    let Ok(Cancelled::Now(ended)) = ended else {
        panic!("{ended:?}");
    };
    // A second one changes nothing and says so.
    let again = asked::cancel(&mut console, started.resend_id, cancel).await;
    assert!(matches!(again, Ok(Cancelled::EndedBefore(_))), "{again:?}");
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
    let wanted = Wanted {
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
        Counted {
            number: 2,
            all: false,
        }
    );
}

/// What was stored before there were resends is shown and goes on.
#[tokio::test]
async fn redeliveries_and_operations_are_carried_over() {
    let bench = Bench::empty().await;
    let mut connection = bench.connection().await;
    let known: Vec<Migration> = schema::migrations().iter().cloned().collect();
    let resends = known
        .iter()
        .find(|one| one.description == "resends")
        .unwrap();
    let before = known.iter().filter(|one| one.version < resends.version);
    let before = Migrator::with_migrations(before.cloned().collect());
    let quick = Patience::default();
    schema::apply(&mut connection, &before, quick, |_| {})
        .await
        .unwrap();
    let ids: Vec<Uuid> = (0..7).map(|_| Uuid::now_v7()).collect();
    let [own, running, ended, operation, forgotten, partner, other] = ids[..] else {
        unreachable!()
    };
    bench
        .sql(&format!(
            "INSERT INTO redeliveries (redelivery_id, partner_id, state, since, until, matching, phase, after_at, after_id,
                                       redelivered, created_at, ended_at)
             VALUES ('{own}', '{partner}', 'exhausted', '2026-01-01', '2026-01-02', 9, 'sending', now(), '{own}', 9,
                     '2026-01-03', '2026-01-04'),
                    ('{running}', '{partner}', NULL, '2026-01-01', '2026-01-02', 5, 'exhausted', NULL, NULL, 3, now(), NULL),
                    ('{ended}', '{other}', NULL, '2026-01-01', '2026-01-02', 4, 'sending', NULL, NULL, 4, now(), now());
             INSERT INTO operations (operation_id, kind, filter, operator, via, reason, skipped, created_at)
             VALUES ('{operation}', 'delivery replay', '{{\"state\": null, \"since\": \"2026-01-01T00:00:00Z\", \"until\": null}}',
                     'ana', 'console', 'our outage', 2, now()),
                    ('{forgotten}', 'delivery replay', '{{\"state\": \"delivered\", \"since\": \"2025-01-01T00:00:00Z\"}}',
                     'bob', 'esimctl', 'old', 0, '2025-01-02');
             INSERT INTO operation_parts VALUES ('{operation}', '{running}'), ('{operation}', '{ended}'),
                                                ('{forgotten}', gen_random_uuid())"
        ))
        .await;
    schema::migrate(&mut connection).await.unwrap();

    let listed = asked::list(&mut connection, 10).await.unwrap();
    let shown: Vec<_> = listed
        .iter()
        .map(|one| {
            let ended = one.ended_at.is_some();
            (
                one.resend_id,
                one.asked_by.as_str(),
                one.parts,
                one.resent,
                one.skipped,
                ended,
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            (operation, "ana", 2, 7, 2, false),
            (own, "partner", 1, 9, 0, true),
            (forgotten, "bob", 0, 0, 0, true),
        ]
    );
    assert_eq!(listed[2].state.as_str(), Some("delivered"));
    // The partner has the same ids as before.
    let of_partner = resends::list(&mut connection, partner.into(), 10)
        .await
        .unwrap();
    let of_partner: Vec<Uuid> = of_partner.iter().map(|one| one.resend_id).collect();
    assert_eq!(of_partner, [running, own]);
}

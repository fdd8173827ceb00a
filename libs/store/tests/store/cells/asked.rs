//! What partners and operators have asked for moves with a partner, or stays with its resend. And what
//! a move checks of further providers.

use desk::{operator::resends, self_service::esims};
use domain::GiveBackState;
use store::esim_requests;
use tools::cells::{
    check,
    moving::{NotMoved, Phase, Ready},
};
use uuid::Uuid;

use super::{NO_LEASE, Pair, all_ready, count};
use crate::bench::{PROVIDER, bought, placement, ready, topups};

/// What was asked about delivered eSIMs moves with them and is answered in the target. A give-back whose
/// outcome is not known waits at a provider where the cells have different accounts, because the other
/// account does not show the eSIM.
#[tokio::test]
async fn what_was_asked_about_esims_moves_and_is_answered_in_the_target() {
    let pair = Pair::new().await;
    let order = pair.placing().await;
    let topup = topups(&order).remove(0);
    pair.a
        .settle(&[bought(placement(&order), 1, vec![ready(&topup)], false)])
        .await;
    let mut connection = pair.a.connection().await;
    esims::ask_give_back(&mut connection, pair.partner, &topup)
        .await
        .unwrap();
    let read = domain::give_back::GiveBack::NEW;
    let begun = esim_requests::begin(&mut connection, &topup, read).await;
    assert_eq!(begun.unwrap(), Some(1));
    pair.a
        .sql("INSERT INTO history (order_id, placement_id, kind) SELECT order_id, placement_id, 'unknown' FROM placements")
        .await;
    let mut session = pair.session().await;
    let mut moving = session.move_of(pair.partner);
    moving.begin().await.unwrap();
    for (separate, ready) in [(vec![PROVIDER.to_owned()], 0), (vec![], 1)] {
        let asked = Ready {
            separate: &separate,
            ..all_ready()
        };
        assert_eq!(
            moving.ready(asked).await.unwrap().len(),
            ready,
            "{separate:?}"
        );
    }
    session.killed(&pair.a).await;

    let moved = pair.run().await;
    assert_eq!((moved.esim_requests, moved.history), (1, 1));
    let left = "SELECT count(*) FROM history";
    assert_eq!(
        (count(&pair.a, left).await, count(&pair.b, left).await),
        (0, 1)
    );
    assert_eq!(
        count(&pair.a, "SELECT count(*) FROM esim_requests").await,
        0
    );
    let mut connection = pair.b.connection().await;
    let rows = crate::esim_requests::due_requests(&mut connection).await;
    let claimed = esim_requests::claim(&mut connection, PROVIDER, &rows, NO_LEASE, false)
        .await
        .unwrap();
    let open = claimed[0].give_back.unwrap().now;
    assert_eq!((open.state, open.attempt), (GiveBackState::Sending, 1));
}

/// What a resend of several partners has sent stays visible with it, although the partner has gone.
#[tokio::test]
async fn the_ended_parts_of_a_resend_stay_with_it() {
    let pair = Pair::new().await;
    let asked = Uuid::now_v7();
    pair.a
        .sql(&format!(
            "INSERT INTO resends (resend_id, since, until, phase, ended_at) VALUES ('{asked}', now(), now(), 'sending', now());
             INSERT INTO resends (resend_id, partner_id, since, until, phase, resent, ended_at, batch_id)
             SELECT gen_random_uuid(), '{}', now(), now(), 'sending', 7, now(), batch
             FROM unnest(ARRAY['{asked}', NULL]::uuid[]) batch",
            pair.partner
        ))
        .await;
    pair.run().await;
    let left = "SELECT count(*) FROM resends WHERE partner_id IS NOT NULL";
    assert_eq!(
        (count(&pair.a, left).await, count(&pair.b, left).await),
        (1, 2)
    );
    let shown = resends::find(&mut *pair.a.connection().await, asked).await;
    assert_eq!(shown.unwrap().unwrap().resent, 7);
}

/// A further provider that only one of the cells asks, or that nobody serves there, is found before
/// anything changes. So is a resend of operators that is sending webhooks of the partner.
#[tokio::test]
async fn a_move_is_refused_for_further_providers_and_running_resends() {
    let pair = Pair::new().await;
    let begin = async || {
        let mut session = pair.session().await;
        let begun = session.move_of(pair.partner).begin().await;
        session.killed(&pair.a).await;
        begun
    };
    pair.a
        .sql(
            "INSERT INTO options (option_id, name, provider, provider_option_id, environment)
             VALUES (gen_random_uuid(), 'one', 'sandbox', 'one', 'sandbox')",
        )
        .await;
    // The same option, but another cell would ask a further provider for it.
    let options: String =
        sqlx::query_scalar("SELECT jsonb_agg(to_jsonb(o) - 'version')::text FROM options o")
            .fetch_one(&pair.a.pool)
            .await
            .unwrap();
    pair.b
        .sql(&format!(
            "INSERT INTO options SELECT * FROM jsonb_populate_recordset(NULL::options, '{options}');
             UPDATE options SET alternatives = '[{{\"provider\": \"second\", \"provider_option_id\": \"x\"}}]'"
        ))
        .await;
    let refused = begin().await;
    assert!(
        matches!(refused, Err(NotMoved::Catalogue { options: 1, .. })),
        "{refused:?}"
    );
    // Now it is the same, but nobody serves the second provider there.
    pair.a
        .sql(r#"UPDATE options SET alternatives = '[{"provider": "second", "provider_option_id": "x"}]'"#)
        .await;
    let known = check::providers(&mut *pair.a.connection().await).await;
    assert_eq!(known.unwrap(), ["sandbox", "second"]);
    pair.a
        .sql("INSERT INTO providers (name) VALUES ('sandbox'), ('second'), ('retired')")
        .await;
    pair.b
        .sql("INSERT INTO providers (name) VALUES ('sandbox')")
        .await;
    let refused = begin().await;
    assert!(
        matches!(&refused, Err(NotMoved::Providers { providers, .. }) if providers == "second"),
        "{refused:?}"
    );
    for bench in [&pair.a, &pair.b] {
        bench
            .sql("DELETE FROM options; DELETE FROM providers")
            .await;
    }

    let operation = Uuid::now_v7();
    pair.a
        .sql(&format!(
            "INSERT INTO resends (resend_id, partner_id, since, until, phase, batch_id)
             VALUES (gen_random_uuid(), '{}', now(), now(), 'exhausted', '{operation}')",
            pair.partner
        ))
        .await;
    let refused = begin().await;
    assert!(
        matches!(refused, Err(NotMoved::Resend(id)) if id == operation),
        "{refused:?}"
    );
    pair.a.sql("UPDATE resends SET ended_at = now()").await;
    assert_eq!(begin().await.unwrap(), Phase::Source);
}

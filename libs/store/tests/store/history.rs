//! What did not go straight is remembered, and what goes straight costs nothing.

use std::time::Duration;

use desk::operator::{
    orders,
    placements::{self, Decision},
    story,
};
use domain::{PartnerId, Reason, placement::Resolution, reason::ReasonCode};
use store::history::{self, HistoryRow};
use store::placements::{AttemptOutcome, PlacementSettlement, Progress, SettledUnit};
use store::providers::{self, BreakerLimits};

use crate::bench::{Bench, Told as _, applied, bought, order, placement, ready, topups};

const SOON: Duration = Duration::ZERO;

impl Bench {
    async fn noted(&self, order: &store::orders::NewOrder) -> Vec<HistoryRow> {
        let mut connection = self.connection().await;
        history::of_order(&mut connection, order.order_id.uuid())
            .await
            .unwrap()
    }
}

fn kinds(noted: &[HistoryRow]) -> Vec<(&str, Option<i32>)> {
    noted
        .iter()
        .map(|one| (one.kind.as_str(), one.attempt))
        .collect()
}

fn settled(
    order: &store::orders::NewOrder,
    attempt: u32,
    outcome: AttemptOutcome,
) -> PlacementSettlement {
    PlacementSettlement {
        placement_id: placement(order),
        attempt,
        outcome,
        is_priced: false,
        known: None,
    }
}

#[tokio::test]
async fn an_order_that_goes_straight_has_no_history() {
    let bench = Bench::new().await;
    let order = bench.stored(order(PartnerId::new(), 1)).await;
    bench.claim(&[placement(&order)]).await;
    let topup = topups(&order).remove(0);
    bench
        .settle(&[bought(placement(&order), 1, vec![ready(&topup)], true)])
        .await;
    assert!(bench.noted(&order).await.is_empty());
}

/// Each attempt and each look-up is remembered, although the row of the placement has the last
/// only.
#[tokio::test]
async fn attempts_look_ups_and_what_an_operator_found_are_remembered() {
    let bench = Bench::new().await;
    let order = bench.stored(order(PartnerId::new(), 1)).await;
    bench.claim(&[placement(&order)]).await;
    let not_bought = AttemptOutcome::NotBought {
        retry_in: SOON,
        reason: Reason::with(ReasonCode::NotSent, "connection refused"),
    };
    bench.settle(&[settled(&order, 1, not_bought)]).await;
    bench.claim(&[placement(&order)]).await;
    let unknown = AttemptOutcome::Unknown {
        look_in: SOON,
        reason: Reason::with(ReasonCode::OutcomeUnknown, "timeout"),
    };
    bench.settle(&[settled(&order, 2, unknown)]).await;
    for after_settling_delay in [false, true] {
        let not_found = AttemptOutcome::NotFound {
            after_settling_delay,
            look_in: SOON,
        };
        bench.settle(&[settled(&order, 2, not_found)]).await;
    }
    bench.claim(&[placement(&order)]).await;
    let parked = AttemptOutcome::Parked {
        reason: Reason::with(ReasonCode::OutcomeUnknown, "in doubt for too long"),
    };
    bench.settle(&[settled(&order, 3, parked)]).await;
    // A late one changes nothing, and so it leaves nothing.
    let late = AttemptOutcome::NotBought {
        retry_in: SOON,
        reason: ReasonCode::NotSent.into(),
    };
    bench.settle(&[settled(&order, 1, late)]).await;
    let decision = Decision {
        resolution: Resolution::NotBought,
        reference: None,
        bought_at: None,
        seen: None,
    };
    let mut connection = bench.connection().await;
    placements::resolve(&mut connection, placement(&order), decision, applied())
        .await
        .unwrap();

    let noted = bench.noted(&order).await;
    assert_eq!(
        kinds(&noted),
        [
            ("not_bought", Some(1)),
            ("unknown", Some(2)),
            ("not_found", Some(2)),
            ("not_found", Some(2)),
            ("parked", Some(3)),
            ("resolved", Some(3)),
        ]
    );
    let unknown = Reason::with(ReasonCode::OutcomeUnknown, "timeout");
    assert_eq!(noted[1].reason.0, Some(unknown));
    let before = noted[5].before.as_deref().unwrap();
    assert!(before.contains("in doubt for too long"), "{before}");
    // An erasure leaves what happened and when, without the texts.
    let erased = desk::operator::erase::order(&mut connection, order.order_id, applied()).await;
    erased.unwrap();
    let (before, after) = bench.changed().await;
    assert_eq!(before["erased"], false);
    assert_eq!(after["erased"]["orders"], 1, "{after}");
    let noted = bench.noted(&order).await;
    assert_eq!(noted.len(), 6);
    assert!(
        noted
            .iter()
            .all(|one| one.reason.0.is_none() && one.before.is_none())
    );
}

/// What an operator has resolved as not bought was confirmed and parked all the same: the provider
/// may bill it.
#[tokio::test]
async fn a_purchase_that_was_given_up_stays_confirmed_and_parked_in_its_story() {
    let bench = Bench::new().await;
    let order = bench.stored(order(PartnerId::new(), 1)).await;
    bench.claim(&[placement(&order)]).await;
    let unknown = AttemptOutcome::Unknown {
        look_in: SOON,
        reason: Reason::with(ReasonCode::OutcomeUnknown, "timeout"),
    };
    bench.settle(&[settled(&order, 1, unknown)]).await;
    for park in [None, Some(ReasonCode::ProfilesLate.into())] {
        let late = AttemptOutcome::Bought {
            reference: Some("no-4711".into()),
            units: vec![],
            listed: 0,
            collect_in: Some(SOON),
            park,
            announced: true,
        };
        bench.settle(&[settled(&order, 1, late)]).await;
    }
    let decision = Decision {
        resolution: Resolution::NotBought,
        reference: None,
        bought_at: None,
        seen: None,
    };
    let mut connection = bench.connection().await;
    placements::resolve(&mut connection, placement(&order), decision, applied())
        .await
        .unwrap();
    let view = orders::read(&mut connection, &[order.order_id.uuid()])
        .await
        .told(&mut connection)
        .await;
    let moments = story::timeline(&mut connection, &view[0]).await;
    let told: Vec<String> = moments
        .unwrap()
        .iter()
        .filter_map(|moment| story::told(&moment.what))
        .collect();
    let place = |begins: &str| {
        let found = told.iter().position(|one| one.contains(begins));
        found.unwrap_or_else(|| panic!("no {begins:?} in {told:#?}"))
    };
    let places = [
        place("try 1 of the purchase was sent"),
        place("gave no usable response: it is not known"),
        place("confirmed the purchase"),
        place("on hold: it is bought, but its profiles do not come"),
        place("an operator resolved it: failed at sandbox instead of parked"),
    ];
    assert!(places.is_sorted(), "{told:#?}");
    let changed: (Option<serde_json::Value>, Option<serde_json::Value>) =
        sqlx::query_as("SELECT before, after FROM operator_actions ORDER BY at DESC LIMIT 1")
            .fetch_one(&mut *connection)
            .await
            .unwrap();
    let before = changed.0.unwrap();
    let after = changed.1.unwrap();
    assert_eq!(
        (&before["state"], &after["state"]),
        (&"parked".into(), &"failed".into())
    );
    assert!(before["placed_at"].is_string(), "{before}");
}

/// A late response that ends the wait for an operator is remembered.
#[tokio::test]
async fn a_wait_that_a_late_response_ended_is_remembered() {
    let bench = Bench::new().await;
    let order = bench.stored(order(PartnerId::new(), 1)).await;
    bench.claim(&[placement(&order)]).await;
    let parked = AttemptOutcome::Parked {
        reason: ReasonCode::OutcomeUnknown.into(),
    };
    bench.settle(&[settled(&order, 1, parked)]).await;
    let topup = topups(&order).remove(0);
    bench
        .settle(&[bought(placement(&order), 1, vec![ready(&topup)], true)])
        .await;
    let noted = bench.noted(&order).await;
    assert_eq!(kinds(&noted), [("parked", Some(1)), ("cleared", None)]);
}

/// A block of an endpoint and its end are remembered, whichever statement sets them, and the story
/// of an order that waited for the endpoint tells them.
#[tokio::test]
async fn a_block_of_an_endpoint_and_its_end_are_remembered() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    let order = bench.stored(order(partner, 1)).await;
    for change in [
        "UPDATE partner_endpoints SET failures = 20, blocks = 1, blocked_until = now() + interval '5 s'",
        // A failed probe prolongs the block.
        "UPDATE partner_endpoints SET blocks = 2, blocked_until = now() + interval '10 s'",
        "UPDATE partner_endpoints SET failures = 0, blocks = 0, blocked_until = NULL",
    ] {
        bench.sql(change).await;
    }
    let noted: Vec<String> =
        sqlx::query_scalar("SELECT kind FROM history WHERE endpoint_id = $1 ORDER BY at")
            .bind(partner.uuid())
            .fetch_all(&bench.pool)
            .await
            .unwrap();
    assert_eq!(noted, ["blocked", "unblocked"]);
    let mut connection = bench.connection().await;
    let view = orders::read(&mut connection, &[order.order_id.uuid()])
        .await
        .told(&mut connection)
        .await;
    let moments = story::timeline(&mut connection, &view[0]).await.unwrap();
    let told = moments
        .iter()
        .filter_map(|moment| story::told(&moment.what));
    let told: Vec<String> = told.filter(|one| one.contains("block")).collect();
    assert_eq!(told.len(), 2, "{told:?}");
}

/// An error that goes away hides nothing: what was found out is noted and told when the settlement
/// is repeated. So nothing is changed before it is noted.
#[tokio::test]
async fn a_transient_error_loses_no_note_and_no_alarm() {
    let bench = Bench::new().await;
    bench
        .sql(
            "CREATE SEQUENCE failures;
             CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF nextval('failures') % 2 = 1 THEN
                     RAISE EXCEPTION 'no space is left' USING ERRCODE = '53100';
                 END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER fails BEFORE INSERT ON history FOR EACH ROW WHEN (NEW.kind IN ('disputed', 'cleared'))
             EXECUTE FUNCTION fail_once()",
        )
        .await;
    let twice = async |settlement: PlacementSettlement| {
        let batch = [settlement];
        let mut connection = bench.connection().await;
        let error = store::placements::settle(&mut connection, &batch)
            .await
            .unwrap_err();
        assert!(error.is_transient(), "{error}");
        store::placements::settle(&mut connection, &batch)
            .await
            .unwrap()
            .remove(0)
    };

    let unexpected = bench.placing(1).await;
    bench.sql("UPDATE placements SET state = 'failed'").await;
    let purchase = bought(
        placement(&unexpected),
        1,
        vec![ready(&topups(&unexpected)[0])],
        true,
    );
    let told = twice(purchase).await;
    assert!(told.moved && told.unexpected, "{told:?}");
    assert_eq!(
        kinds(&bench.noted(&unexpected).await),
        [("disputed", Some(1))]
    );

    let cleared = bench.placing(1).await;
    let parked = AttemptOutcome::Parked {
        reason: ReasonCode::OutcomeUnknown.into(),
    };
    bench.settle(&[settled(&cleared, 1, parked)]).await;
    let purchase = bought(
        placement(&cleared),
        1,
        vec![ready(&topups(&cleared)[0])],
        true,
    );
    assert!(twice(purchase).await.moved);
    let noted = bench.noted(&cleared).await;
    assert_eq!(kinds(&noted), [("parked", Some(1)), ("cleared", None)]);
}

/// A unit that fails is remembered with the time, which is stored nowhere else.
#[tokio::test]
async fn a_failed_unit_and_a_purchase_that_nobody_expected_are_remembered() {
    let bench = Bench::new().await;
    let order = bench.stored(order(PartnerId::new(), 1)).await;
    bench.claim(&[placement(&order)]).await;
    let unit = SettledUnit {
        topup_id: topups(&order).remove(0),
        provider_unit_id: "unit 1".into(),
        progress: Progress::Failed("no stock".into()),
    };
    bench
        .settle(&[bought(placement(&order), 1, vec![unit], true)])
        .await;
    bench
        .settle(&[bought(placement(&order), 2, vec![], true)])
        .await;
    let noted = bench.noted(&order).await;
    assert_eq!(
        kinds(&noted),
        [("unit_failed", None), ("disputed", Some(1))]
    );
    assert!(noted[0].topup_id.is_some());
}

/// The story draws a failed unit at the time of its failure, and not before the confirmation.
#[tokio::test]
async fn a_failed_unit_is_told_at_its_time() {
    let bench = Bench::new().await;
    let order = bench.stored(order(PartnerId::new(), 2)).await;
    bench.claim(&[placement(&order)]).await;
    let topups = topups(&order);
    let failed = SettledUnit {
        topup_id: topups[1].clone(),
        provider_unit_id: "unit 2".into(),
        progress: Progress::Failed("no stock".into()),
    };
    bench
        .settle(&[bought(placement(&order), 1, vec![ready(&topups[0])], true)])
        .await;
    bench
        .settle(&[bought(placement(&order), 1, vec![failed], true)])
        .await;
    let mut connection = bench.connection().await;
    let view = orders::read(&mut connection, &[order.order_id.uuid()])
        .await
        .told(&mut connection)
        .await;
    let moments = story::timeline(&mut connection, &view[0]).await.unwrap();
    let told: Vec<String> = moments
        .iter()
        .filter_map(|one| story::told(&one.what))
        .collect();
    let last = told.last().unwrap();
    assert_eq!(
        last, "1 eSIM failed: the provider will not supply it: no stock",
        "{told:?}"
    );
}

/// Nobody can change what is remembered, and the notifier forgets only what is about no order.
#[tokio::test]
async fn breakers_are_remembered_for_the_term_of_attempts() {
    let bench = Bench::new().await;
    bench
        .sql("INSERT INTO providers (name) VALUES ('sandbox')")
        .await;
    let mut connection = bench.connection().await;
    let limits = BreakerLimits {
        failures: 1,
        open: Duration::from_secs(1),
        open_most: Duration::from_secs(1),
    };
    let opened = providers::failed(&mut connection, "sandbox", 1, &limits, ("no answer", false))
        .await
        .unwrap()
        .unwrap();
    // What came too late leaves nothing.
    let late = providers::failed(&mut connection, "sandbox", 1, &limits, ("late", false)).await;
    assert!(late.unwrap().is_none());
    providers::responded(&mut connection, "sandbox", opened.version)
        .await
        .unwrap();
    let noted: Vec<(String, Option<String>)> =
        sqlx::query_as("SELECT kind, detail FROM history WHERE provider = 'sandbox' ORDER BY at")
            .fetch_all(&bench.pool)
            .await
            .unwrap();
    assert_eq!(
        noted,
        [
            ("breaker_opened".into(), Some("no answer".into())),
            ("breaker_closed".into(), None)
        ]
    );
    bench
        .sql("UPDATE history SET at = now() - interval '31 days' WHERE kind = 'breaker_opened'")
        .await;
    let mut notifier = bench.as_role("notifier").await;
    assert_eq!(history::forget(&mut notifier, 10).await.unwrap(), 1);
    for (role, change) in [
        ("provisioner", "UPDATE history SET detail = NULL"),
        ("provisioner", "DELETE FROM history"),
        ("console", "UPDATE history SET detail = NULL"),
        ("console", "DELETE FROM history"),
        ("operator", "DELETE FROM history"),
        ("notifier", "UPDATE history SET detail = NULL"),
    ] {
        let mut role_of = bench.as_role(role).await;
        let refused = sqlx::raw_sql(change).execute(&mut role_of).await;
        let code = refused.expect_err(change);
        let code = code.as_database_error().unwrap().code().unwrap();
        assert_eq!(code, "42501", "{role}: {change}");
    }
}

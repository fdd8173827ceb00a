//! The story of an order: its sentence for the partner, and its timeline.

use std::time::Duration;

use desk::operator::{
    deliveries,
    health::{self, FindingKind},
    orders,
    placements::{self, Decision},
    story::{self, EsimChangeStep, MomentKind, StoryMoment},
};
use domain::{
    PartnerId, TopupId,
    esim_change::EsimChangeKind,
    placement::Resolution,
    standing::{NextActor, Standing},
};
use pg::Transaction;
use pg::actions::{self, Action, ActionChange};
use store::figures::{self, Count, Figure, Measure};

use crate::bench::{
    Bench, PROVIDER, Told as _, answered, bought, order, parked, placement, ready, topups,
};
use crate::console::action;
use crate::further::READY;

impl Bench {
    /// Gives every stage a process that lives.
    async fn alive(&self) {
        self.sql(
            "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
             SELECT gen_random_uuid(), stage, 1, 1, false, now() + interval '1 hour'
             FROM unnest(ARRAY['ingress', 'provisioner', 'notifier']) stage",
        )
        .await;
    }
}

/// The provider does not take a unit back, because it is installed.
async fn not_taken_back(bench: &Bench, topup: &TopupId) {
    bench
        .sql(&format!(
            "INSERT INTO esim_requests (topup_id, partner_id, provider, give_back, reason, give_back_asked_at, ended_at)
             SELECT '{topup}', partner_id, '{PROVIDER}', 'refused', 'installed', now(), now() FROM orders"
        ))
        .await;
}

/// The retries of all webhooks have ended.
async fn exhausted(bench: &Bench) {
    bench
        .sql("UPDATE deliveries SET state = 'exhausted', attempt = 1, status = 503, error = 'status 503', attempted_at = now()")
        .await;
    bench
        .sql(
            "INSERT INTO delivery_attempts (delivery_id, attempt, at, duration_ms, status, class)
             SELECT delivery_id, 0, now(), 12, 503, 'status_5xx' FROM deliveries",
        )
        .await;
}

/// The row of work ends some seconds after what it was for.
async fn collects_soon(bench: &Bench) {
    bench
        .sql(
            "INSERT INTO work (id, kind, provider, lane, partner_id, at)
             SELECT placement_id, 'collect', p.provider, p.lane, p.partner_id, now() + interval '13 seconds'
             FROM placements p",
        )
        .await;
}

/// The moment of a give-back that is refused so.
fn kept(topup: &TopupId) -> MomentKind {
    MomentKind::EsimChanged {
        topup_id: topup.to_string(),
        change: EsimChangeKind::GiveBack,
        external_id: None,
        step: EsimChangeStep::Refused,
        attempt: None,
        reason: Some("the eSIM is installed".to_owned()),
    }
}

#[tokio::test]
async fn an_order_tells_its_story() {
    let bench = Bench::new().await;
    bench.alive().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    let stored = bench.stored(order(partner, 2)).await;
    let topups = topups(&stored);
    let mut console = bench.as_role("console").await;
    let mut sentence = async || {
        let read = orders::read(&mut console, &[stored.order_id.uuid()])
            .await
            .told(&mut console)
            .await;
        let timeline = story::timeline(&mut console, &read[0]).await.unwrap();
        (story::sentence(&read[0], runtime::clock::now()), timeline)
    };
    let (told, timeline) = sentence().await;
    assert!(
        told.ends_with("both eSIMs are being bought or prepared by the provider."),
        "{told}"
    );
    assert_eq!(timeline[0].what, MomentKind::Accepted);

    bench.claim(&[placement(&stored)]).await;
    bench
        .settle(&[bought(
            placement(&stored),
            1,
            topups.iter().map(ready).collect(),
            true,
        )])
        .await;
    exhausted(&bench).await;
    collects_soon(&bench).await;
    let (told, timeline) = sentence().await;
    let is_due = |moment: &StoryMoment| matches!(moment.what, MomentKind::Due { .. });
    assert!(
        !timeline.iter().any(is_due),
        "nothing is to come: {timeline:?}"
    );
    assert!(
        told.contains("both eSIMs are ready, but their webhooks were not acknowledged"),
        "{told}"
    );
    assert!(told.contains("last responded 503"), "{told}");
    let placement_id = placement(&stored).uuid();
    let has = |what: &MomentKind| timeline.iter().any(|moment| moment.what == *what);
    assert!(
        has(&MomentKind::Attempted {
            placement_id,
            provider: PROVIDER.into(),
            attempt: 1
        }),
        "{timeline:?}"
    );
    assert!(
        has(&MomentKind::Placed {
            placement_id,
            provider: PROVIDER.into(),
            by: None,
        }),
        "{timeline:?}"
    );
    let webhooks = timeline.iter().filter(|moment| {
        matches!(
            &moment.what,
            MomentKind::Webhook {
                status: Some(503),
                duration_ms: 12,
                attempt: 1,
                ..
            }
        )
    });
    assert_eq!(webhooks.count(), 2, "{timeline:?}");
    assert!(timeline.is_sorted_by_key(|moment| moment.at));

    // How often it was tried, and that an eSIM was not taken back, is said to the partner, too.
    bench.sql("UPDATE deliveries SET attempt = 3").await;
    not_taken_back(&bench, &topups[0]).await;
    let (told, timeline) = sentence().await;
    assert!(told.contains("last responded 503 in attempt 3"), "{told}");
    assert!(
        told.ends_with(
            "; your request to give 1 of the 2 eSIMs back was refused (the eSIM is installed), so it stays with you."
        ),
        "{told}"
    );
    let refused = kept(&topups[0]);
    assert!(
        timeline.iter().any(|moment| moment.what == refused),
        "{timeline:?}"
    );

    // Without the breakdown, a mixture of states would read as one.
    bench.sql("UPDATE deliveries SET state = 'delivered', delivered_at = now() WHERE delivery_id = (SELECT min(delivery_id::text)::uuid FROM deliveries)").await;
    let (told, _) = sentence().await;
    assert!(
        told.contains(": 1 of the 2 eSIMs is ready and delivered"),
        "{told}"
    );
    assert!(told.contains("; 1 of the 2 eSIMs is ready, but"), "{told}");
}

/// An order whose webhooks have failed once and wait.
async fn failing(bench: &Bench, partner: PartnerId) -> store::orders::NewOrder {
    let stored = bench.stored(order(partner, 1)).await;
    bench.claim(&[placement(&stored)]).await;
    let units = topups(&stored).iter().map(ready).collect();
    bench
        .settle(&[bought(placement(&stored), 1, units, true)])
        .await;
    bench
        .sql("UPDATE deliveries SET attempt = 1, status = 503, error = 'status 503', attempted_at = now()")
        .await;
    bench
        .sql(
            "INSERT INTO work (id, kind, provider, lane, partner_id, at)
             SELECT delivery_id, 'deliver', '', '', partner_id, now() - interval '1 minute' FROM deliveries
             ON CONFLICT (id) DO UPDATE SET at = excluded.at",
        )
        .await;
    stored
}

#[tokio::test]
async fn the_sentence_says_what_holds_a_webhook_up_and_names_no_time_in_the_past() {
    let bench = Bench::new().await;
    bench.alive().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    let stored = failing(&bench, partner).await;
    let mut console = bench.as_role("console").await;
    let mut told = async |endpoint: &str| {
        bench
            .sql(&format!(
                "UPDATE partner_endpoints e SET blocked_until = new.until::timestamptz, paused_by_partner = new.paused_by_partner
                 FROM (VALUES {endpoint}) AS new (id, until, paused_by_partner) WHERE e.endpoint_id = new.id::uuid"
            ))
            .await;
        let read = orders::read(&mut console, &[stored.order_id.uuid()])
            .await
            .told(&mut console)
            .await;
        story::sentence(&read[0], runtime::clock::now())
    };
    let id = partner.uuid();
    for (endpoint, says) in [
        (
            format!("('{id}', NULL, false)"),
            "the next attempt is due now",
        ),
        (
            format!("('{id}', now() + interval '4 minutes', false)"),
            "the next one is at 2",
        ),
        (
            format!("('{id}', now() - interval '1 minute', false)"),
            "the next one is due now",
        ),
        (format!("('{id}', 'infinity', false)"), "paused by us"),
        (
            format!("('{id}', 'infinity', true)"),
            "you have paused your endpoint",
        ),
    ] {
        let told = told(&endpoint).await;
        assert!(
            told.contains(says) && told.contains("last responded 503"),
            "{endpoint}: {told}"
        );
    }

    // A webhook that is sent again was delivered before, and the sentence does not deny it.
    bench
        .sql(
            "INSERT INTO delivery_attempts (delivery_id, attempt, at, duration_ms, status, class)
             SELECT delivery_id, 0, now(), 12, 200, 'delivered' FROM deliveries",
        )
        .await;
    let told = told(&format!("('{id}', NULL, false)")).await;
    assert!(
        told.contains("was delivered to your endpoint before, and the webhook is being sent again"),
        "{told}"
    );
}

#[tokio::test]
async fn the_timeline_has_failed_units_and_what_operators_did() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    bench.account("tester").await;
    let mut console = bench.as_role("console").await;
    for (resolution, command, place) in [
        (Resolution::Bought, domain::Command::PlacementBought, ""),
        // The record of `--provider` names the provider, too.
        (
            Resolution::Bought,
            domain::Command::PlacementBought,
            " at sandbox",
        ),
        (
            Resolution::NotBought,
            domain::Command::PlacementNotBought,
            "",
        ),
    ] {
        let stored = bench.stored(answered(partner, 2)).await;
        bench.claim(&[placement(&stored)]).await;
        bench.settle(&[parked(placement(&stored), 1)]).await;
        let target = format!("placement {}{place}", placement(&stored));
        let action = Action {
            actor: actions::Actor::console("tester", "192.0.2.1"),
            target: &target,
            ..action(command)
        };
        let mode = actions::Mode::Apply(action);
        let id = placement(&stored);
        let decision = Decision {
            resolution,
            bought_at: None,
            reference: None,
            seen: None,
        };
        placements::resolve(&mut console, id, decision, mode)
            .await
            .unwrap();
        let read = orders::read(&mut console, &[stored.order_id.uuid()])
            .await
            .told(&mut console)
            .await;
        let timeline = story::timeline(&mut console, &read[0]).await.unwrap();
        let has =
            |matches: &dyn Fn(&MomentKind) -> bool| timeline.iter().any(|one| matches(&one.what));
        assert!(
            has(
                &|what| matches!(what, MomentKind::Acted { command: done, operator, .. } if *done == command && operator == "tester")
            ),
            "{timeline:?}"
        );
        let told = story::sentence(&read[0], runtime::clock::now());
        if resolution == Resolution::Bought {
            assert!(
                has(
                    &|what| matches!(what, MomentKind::Placed { by: Some(by), .. } if by == "tester")
                ),
                "{timeline:?}"
            );
        } else {
            assert!(
                has(&|what| matches!(
                    what,
                    MomentKind::Failed {
                        units: 2,
                        is_exact: true,
                        ..
                    }
                )),
                "{timeline:?}"
            );
            assert!(told.contains("both eSIMs failed for good"), "{told}");
        }
    }
}

#[tokio::test]
async fn the_timeline_has_what_operators_did_however_much_they_did_elsewhere() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    let stored = bench.stored(order(partner, 1)).await;
    bench
        .sql(
            "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason)
             SELECT gen_random_uuid(), 'other', 'delivery replay', 'topup ' || n, 1, 'busy' FROM generate_series(1, 6000) n",
        )
        .await;
    let target = format!("order {}", stored.order_id);
    let mut console = bench.as_role("console").await;
    bench.account("tester").await;
    let done = Action {
        actor: actions::Actor::console("tester", "192.0.2.1"),
        target: &target,
        ..action(domain::Command::OrderErase)
    };
    let nothing = async |_: &mut Transaction<'_>| Ok(Some(((), ActionChange::nothing())));
    actions::recorded(&mut console, done, nothing)
        .await
        .unwrap();
    let read = orders::read(&mut console, &[stored.order_id.uuid()])
        .await
        .told(&mut console)
        .await;
    let timeline = story::timeline(&mut console, &read[0]).await.unwrap();
    let acted: Vec<_> = timeline
        .iter()
        .filter_map(|one| match &one.what {
            MomentKind::Acted { operator, .. } => Some(operator.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(acted, ["tester"]);
}

/// The sentence of an order, and how its first unit stands.
async fn told(bench: &Bench, order: uuid::Uuid) -> (String, Standing) {
    let mut console = bench.as_role("console").await;
    let read = orders::read(&mut console, &[order])
        .await
        .told(&mut console)
        .await;
    let sentence = story::sentence(&read[0], runtime::clock::now());
    (sentence, read[0].standing(&read[0].topups[0]))
}

#[tokio::test]
async fn a_unit_that_one_of_two_endpoints_does_not_take_is_not_told_as_delivered() {
    let bench = Bench::new().await;
    bench.alive().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    bench.further(partner, "second", READY).await;
    let stored = bench.stored(order(partner, 1)).await;
    let id = stored.order_id.uuid();
    bench.claim(&[placement(&stored)]).await;
    let units = topups(&stored).iter().map(ready).collect();
    bench
        .settle(&[bought(placement(&stored), 1, units, true)])
        .await;
    // The fan-out makes the webhook to the second endpoint.
    bench
        .sql(
            "INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, endpoint_id)
             SELECT gen_random_uuid(), d.partner_id, d.kind, d.topup_id, d.order_id, f.endpoint_id
             FROM deliveries d, partner_endpoints f
             WHERE f.nth > 0 AND d.endpoint_id IS NULL
               AND NOT EXISTS (SELECT FROM deliveries x WHERE x.endpoint_id = f.endpoint_id);
             INSERT INTO further_deliveries (topup_id, delivery_id)
             SELECT topup_id, delivery_id FROM deliveries WHERE endpoint_id IS NOT NULL
             ON CONFLICT DO NOTHING;
             UPDATE deliveries SET state = 'delivered', attempt = 1, status = 200, attempted_at = now(), delivered_at = now()
             WHERE endpoint_id IS NULL;
             UPDATE deliveries SET attempt = 3, status = 500, error = 'status 500', attempted_at = now()
             WHERE endpoint_id IS NOT NULL",
        )
        .await;
    let (sentence, standing) = told(&bench, id).await;
    assert_eq!(standing, Standing::Failing, "{sentence}");
    let to = "not yet acknowledged by your endpoint second.example";
    assert!(
        sentence.contains("delivered to your first endpoint") && sentence.contains(to),
        "{sentence}"
    );
    assert!(sentence.contains("last responded 500"), "{sentence}");
    let mut connection = bench.connection().await;
    let undelivered = orders::undelivered(&mut connection, &[id]).await.unwrap();
    assert_eq!(
        (undelivered[&id].waiting, undelivered[&id].given_up),
        (1, 0)
    );
    let shown = deliveries::further(&mut connection, &topups(&stored)[0]).await;
    let shown = shown.unwrap();
    assert_eq!((shown.len(), shown[0].status), (1, Some(500)));

    bench
        .sql("UPDATE deliveries SET state = 'exhausted' WHERE endpoint_id IS NOT NULL")
        .await;
    let (sentence, standing) = told(&bench, id).await;
    assert_eq!(standing.must_act(), NextActor::Partner, "{sentence}");
    let undelivered = orders::undelivered(&mut connection, &[id]).await.unwrap();
    assert_eq!(undelivered[&id].given_up, 1);

    bench
        .sql("UPDATE deliveries SET state = 'delivered', delivered_at = now() WHERE endpoint_id IS NOT NULL")
        .await;
    let (sentence, standing) = told(&bench, id).await;
    assert_eq!(standing, Standing::Delivered, "{sentence}");
    let undelivered = orders::undelivered(&mut connection, &[id]).await.unwrap();
    assert!(undelivered.is_empty());
}

#[tokio::test]
async fn while_a_stage_is_dead_everybody_is_told_that_the_order_waits_for_us() {
    let bench = Bench::new().await;
    bench.alive().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    let stored = bench.stored(order(partner, 1)).await;
    let id = stored.order_id.uuid();
    let dies = |stage: &str| {
        format!("UPDATE pulses SET at = now() - interval '1 minute' WHERE stage = '{stage}'")
    };
    let lives = "UPDATE pulses SET at = now() + interval '1 hour'";
    let findings = async || {
        let report = health::examine(&mut *bench.connection().await).await;
        let report = report.unwrap();
        report
            .needed()
            .filter(|one| matches!(one.kind, FindingKind::StageDead { .. }))
            .count()
    };
    assert!(told(&bench, id).await.0.contains("being bought"));
    assert_eq!(findings().await, 0);

    bench.sql(&dies("provisioner")).await;
    let (sentence, standing) = told(&bench, id).await;
    assert!(
        sentence.contains("our service that buys does not work, since")
            && !sentence.contains("being bought"),
        "{sentence}"
    );
    assert_eq!((standing, findings().await), (Standing::Stalled, 1));
    assert_eq!(standing.must_act(), NextActor::Operator);
    bench.sql(lives).await;
    assert!(told(&bench, id).await.0.contains("being bought"));

    bench.claim(&[placement(&stored)]).await;
    let units = topups(&stored).iter().map(ready).collect();
    bench
        .settle(&[bought(placement(&stored), 1, units, true)])
        .await;
    bench.sql(&dies("notifier")).await;
    let (sentence, standing) = told(&bench, id).await;
    assert!(
        sentence.contains("is ready") && sentence.contains("our service that sends webhooks"),
        "{sentence}"
    );
    assert_eq!(
        (standing.must_act(), findings().await),
        (NextActor::Operator, 1)
    );
    bench.sql(lives).await;
    let (sentence, standing) = told(&bench, id).await;
    assert_eq!(standing.must_act(), NextActor::Nobody, "{sentence}");
}

#[tokio::test]
async fn what_takes_much_longer_than_before_is_found_with_since_when() {
    let bench = Bench::new().await;
    bench.alive().await;
    let now = runtime::clock::now();
    let minute = now
        .replace_second(0)
        .unwrap()
        .replace_nanosecond(0)
        .unwrap();
    let add = async |ago: time::Duration, took: Duration| {
        let mut count = Count::default();
        for _ in 0..30 {
            count.note(Some(took), false);
        }
        let figure = Figure {
            at: minute - ago,
            measure: Measure::Bought,
            subject: "usimsa".to_owned(),
            count,
        };
        let mut connection = bench.connection().await;
        figures::add(&mut connection, uuid::Uuid::now_v7(), &[figure])
            .await
            .unwrap();
    };
    let slow = async || {
        let report = health::examine(&mut *bench.connection().await).await;
        let report = report.unwrap();
        let mut all = report.findings.into_iter();
        all.find(|one| matches!(one.kind, FindingKind::Slow { .. }))
    };
    for hours in 4..12 {
        add(time::Duration::hours(hours), Duration::from_millis(80)).await;
    }
    assert!(slow().await.is_none());
    // It has been slow for three hours.
    for minutes in (0..180).step_by(5) {
        add(time::Duration::minutes(minutes), Duration::from_secs(5)).await;
    }
    let found = slow().await.expect("it is slow");
    let ago = now - found.since.unwrap();
    assert!(
        (2.0..=4.0).contains(&(ago.as_seconds_f64() / 3_600.0)),
        "{found:?}"
    );
    assert!(found.needs_person() && found.told().what.contains("usimsa"));
    assert_eq!(found.told().alert, Some("SlowerThanBefore"));
}

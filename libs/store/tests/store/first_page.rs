//! What the first page of the console must name although it sees the database only: NATS that is
//! down, and a provider that denies our account. And what it says of purchases on hold that an
//! operator asks about.

use std::time::Duration;

use desk::operator::{
    health::{self, Finding, FindingKind, stages::Stage},
    placements as operated,
};
use domain::{Command, HistoryKind, PlacementId, Reason, reason::ReasonCode};
use pg::actions::{Action, Actor, Via};
use store::{
    placements::{Activity, PlacementClaim, asked},
    providers::{self, BreakerLimits},
};

use crate::bench::{Bench, PROVIDER, bought_pending, parked, placement};

/// What is found by a look at the whole system, by the role of the console.
async fn found(bench: &Bench, is_wanted: impl Fn(&FindingKind) -> bool) -> Option<Finding> {
    let mut console = bench.as_role("console").await;
    let report = health::examine(&mut console).await.unwrap();
    report.findings.into_iter().find(|one| is_wanted(&one.kind))
}

#[tokio::test]
async fn a_process_without_nats_says_so_with_its_pulse() {
    let bench = Bench::new().await;
    let down = async || found(&bench, |kind| matches!(kind, FindingKind::NatsDown { .. })).await;
    bench.store.note_nats(false, None);
    bench.store.pulse().await.unwrap();
    bench.sql("UPDATE pulses SET stage = 'notifier'").await;
    assert!(down().await.is_none(), "it makes a new connection at once");
    bench
        .sql("UPDATE pulses SET no_nats_since = no_nats_since - interval '10 seconds'")
        .await;
    bench.store.pulse().await.unwrap();
    let finding = down().await.unwrap();
    let told = finding.told();
    assert!(told.needs_person && told.since.is_some(), "{told:?}");
    assert!(told.what.contains("notifier"), "{told:?}");
    bench.store.note_nats(true, None);
    bench.store.pulse().await.unwrap();
    assert!(down().await.is_none());
}

#[tokio::test]
async fn a_process_whose_messages_nats_refuses_says_so_with_its_pulse() {
    let bench = Bench::new().await;
    let refused = async || {
        let finding = found(&bench, |kind| {
            matches!(kind, FindingKind::NatsRefuses { .. })
        })
        .await;
        finding.map(|finding| finding.told())
    };
    let pulse = async |what: Option<&str>| {
        bench.store.note_nats(true, what.map(str::to_owned));
        bench.store.pulse().await.unwrap();
        bench.sql("UPDATE pulses SET stage = 'provisioner'").await;
    };
    pulse(None).await;
    assert!(refused().await.is_none());
    pulse(Some("publish TOPUP_READY, ask TOPUP_JOBS")).await;
    let told = refused().await.unwrap();
    assert!(told.needs_person && told.since.is_some(), "{told:?}");
    assert!(
        told.what.contains("provisioner") && told.what.contains("publish TOPUP_READY"),
        "{told:?}"
    );
    let since = told.since;
    pulse(Some("publish TOPUP_READY")).await;
    assert_eq!(refused().await.unwrap().since, since);
    // A stolen role of a stage tells operators nothing else by it.
    bench.store.note_nats(true, Some("call 0900".to_owned()));
    assert!(bench.store.pulse().await.is_err());
    pulse(None).await;
    assert!(refused().await.is_none());
}

#[tokio::test]
async fn a_process_whose_clock_has_stepped_is_named() {
    let bench = Bench::new().await;
    bench.store.pulse().await.unwrap();
    let off = async || found(&bench, |kind| matches!(kind, FindingKind::ClockOff { .. })).await;
    assert!(off().await.is_none());
    bench
        .sql("UPDATE pulses SET stage = 'notifier', clock_ahead = 600, clock_off_since = now()")
        .await;
    let told = off().await.unwrap().told();
    assert!(told.needs_person && told.since.is_some(), "{told:?}");
    assert_eq!(
        told.what,
        "the clock of a process of notifier is 600 s behind PostgreSQL's, so that process does nothing"
    );
    // The next pulse of a process whose clock agrees takes it back.
    bench.store.pulse().await.unwrap();
    assert!(off().await.is_none());
}

#[tokio::test]
async fn a_provider_that_denies_our_account_needs_a_person_until_it_answers() {
    let bench = Bench::new().await;
    let mut connection = bench.as_role("provisioner").await;
    providers::register(&mut connection, &[PROVIDER.to_owned()])
        .await
        .unwrap();
    let limits = BreakerLimits {
        failures: 1,
        open: Duration::from_secs(10),
        open_most: Duration::from_secs(10),
    };
    let open = async || {
        found(&bench, |kind| {
            matches!(kind, FindingKind::BreakerOpen { .. })
        })
        .await
    };
    let version = providers::list(&mut connection).await.unwrap()[0].version;
    let failed = providers::failed(&mut connection, PROVIDER, version, &limits, ("401", true));
    let failed = failed.await.unwrap().unwrap();
    assert!(failed.denied);
    let told = open().await.unwrap().told();
    assert!(told.needs_person, "{told:?}");
    assert!(told.what.contains("denies our account"), "{told:?}");
    assert_eq!(
        told.command.as_deref(),
        Some("esimctl provider check sandbox")
    );

    // A later failure for another reason ends by itself.
    let later = providers::failed(
        &mut connection,
        PROVIDER,
        failed.version,
        &limits,
        ("500", false),
    );
    let later = later.await.unwrap().unwrap();
    let told = open().await.unwrap().told();
    let first =
        "provisioner has to run again first, because nothing else ends this; then nothing: ";
    assert!(
        told.needs_person && told.remedy.starts_with(first),
        "{told:?}"
    );
    bench
        .sql(
            "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
             VALUES (gen_random_uuid(), 'provisioner', 1, 1, false, now() + interval '1 hour')",
        )
        .await;
    assert!(!open().await.unwrap().needs_person());
    let closed = providers::responded(&mut connection, PROVIDER, later.version).await;
    assert!(!closed.unwrap().unwrap().denied);
    assert!(open().await.is_none());
    providers::note_balance(&mut connection, PROVIDER, "12.50 USD")
        .await
        .unwrap();
    let all = providers::list(&mut connection).await.unwrap();
    assert_eq!(all[0].balance.as_deref(), Some("12.50 USD"));
    assert!(all[0].balance_at.is_some());
}

/// An option of a provider that nobody serves matters while it is on sale, and afterwards only for
/// an order of it that waits.
#[tokio::test]
async fn an_option_out_of_sale_needs_no_provisioner() {
    let bench = Bench::registered().await;
    let unserved =
        async || found(&bench, |kind| matches!(kind, FindingKind::Unserved { .. })).await;
    let sql = "INSERT INTO options (option_id, name, provider, provider_option_id, environment)
               VALUES (gen_random_uuid(), $1, $1, 'x', 'live')";
    bench.set(sql, "nobody").await;
    let told = unserved().await.expect("it is on sale").told();
    assert!(told.what.contains("nobody"), "{told:?}");
    assert!(told.felt.contains("option_not_found"), "{told:?}");
    bench.sql("UPDATE options SET enabled = false").await;
    assert!(unserved().await.is_none());
    let others = r#"[{"provider": "second", "provider_option_id": "x"}]"#;
    let alternatives = |enabled: bool| {
        format!("UPDATE options SET enabled = {enabled}, alternatives = '{others}'")
    };
    bench.sql(&alternatives(true)).await;
    assert!(unserved().await.unwrap().told().what.contains("second"));
    bench.sql(&alternatives(false)).await;
    assert!(unserved().await.is_none());
    bench.overdue().await;
    bench.set("UPDATE work SET provider = $1", "nobody").await;
    assert!(unserved().await.is_some(), "its order waits");
}

/// Webhooks to an endpoint that its partner has set itself, and not proven yet, wait for a notifier
/// like all others: only a block or a pause holds them back.
#[tokio::test]
async fn webhooks_to_an_endpoint_that_is_not_proven_wait_for_a_dead_notifier() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    bench.deliveries(partner, 1, true).await;
    let count = async || {
        let dead = |kind: &FindingKind| {
            matches!(
                kind,
                FindingKind::StageDead {
                    stage: Stage::Notifier,
                    ..
                }
            )
        };
        let finding = found(&bench, dead).await.expect("no notifier runs");
        let FindingKind::StageDead { waiting, .. } = finding.kind else {
            panic!("{finding:?}");
        };
        waiting
    };
    let unproven =
        "UPDATE partner_endpoints SET unproven_since = now(), blocked_until = $1::timestamptz";
    bench.set(unproven, "tomorrow").await;
    assert_eq!(count().await, 1, "no sweep has passed it");
    bench.deliveries(partner, 1, false).await;
    assert_eq!(count().await, 2, "the second one is due");
    bench.set(unproven, "infinity").await;
    assert_eq!(count().await, 0, "it is paused");
    bench.set(unproven, "tomorrow").await;
    bench.sql("UPDATE partner_endpoints SET failures = 1").await;
    assert_eq!(count().await, 0, "it is blocked after failures");
}

fn action() -> Action<'static> {
    Action {
        actor: Actor {
            name: "ana",
            via: Via::Console,
            source: None,
        },
        command: Command::ProviderReconcile,
        target: "provider sandbox",
        reason: "a test",
    }
}

#[tokio::test]
async fn purchases_on_hold_are_asked_about_and_stay_there_unless_they_are_found() {
    let bench = Bench::new().await;
    let orders = [
        bench.placing(1).await,
        bench.placing(1).await,
        bench.placing(1).await,
    ];
    let ids = orders.each_ref().map(placement);
    bench.settle(&[parked(ids[0], 1), parked(ids[1], 1)]).await;
    bench.account("ana").await;
    let mut console = bench.as_role("console").await;
    let seen = ("sandbox", "never");
    let asked = operated::ask(&mut console, &ids, seen, action()).await;
    assert_eq!(asked.unwrap(), Some(2), "the third one is not on hold");
    let again = operated::ask(&mut console, &ids, seen, action()).await;
    assert_eq!(again.unwrap(), None, "the form has asked already");
    let changed = bench.changed().await.1;
    assert_eq!(changed["asked"].as_array().unwrap().len(), 2, "{changed}");
    let mut claimed = bench
        .claim_as(PROVIDER, &ids[..2], PlacementClaim::Due(Activity::LookUps))
        .await;
    claimed.sort_by_key(|one| one.placement_id == ids[1]);
    assert_eq!(claimed.len(), 2);
    assert!(claimed.iter().all(|one| one.placed_age.is_none()));

    // The provider has the first, and not the second.
    let settled = bench.settle(&[bought_pending(ids[0], 1)]).await;
    assert!(settled[0].moved);
    let mut provisioner = bench.as_role("provisioner").await;
    for attempt in [2, 1] {
        asked::note(
            &mut provisioner,
            ids[1],
            attempt,
            HistoryKind::NotFound,
            None,
        )
        .await
        .unwrap();
    }
    let uuids = ids.map(PlacementId::uuid);
    let answers = asked::answers(&mut console, &uuids).await.unwrap();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert!(answers[&ids[1].uuid()].proves_absence());
    let state = bench.read(ids[1]).await.state;
    assert_eq!(state.as_str(), "parked");

    // The question has ended, and a late answer to it is not noted.
    let late = Reason::with(ReasonCode::OutcomeUnknown, "late");
    let noted = asked::note(
        &mut provisioner,
        ids[1],
        1,
        HistoryKind::Unknown,
        Some(&late),
    );
    noted.await.unwrap();
    let answers = asked::answers(&mut console, &uuids).await.unwrap();
    assert!(answers[&ids[1].uuid()].proves_absence(), "{answers:?}");
    assert!(
        bench
            .claim_as(PROVIDER, &ids[1..2], PlacementClaim::Due(Activity::LookUps))
            .await
            .is_empty()
    );
}

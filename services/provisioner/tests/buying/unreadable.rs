//! Answers that no provider should give, and outcomes that the database refuses: each costs its own
//! placement, with a clear reason, and no other.

use std::time::Duration;

use domain::PlacementId;
use serde_json::json;
use testkit::wait;

use crate::support::Bench;

/// The most memory that the provisioner may use, in kB.
const MOST_KILOBYTES: usize = 150_000;

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_answer_parks_its_placement_with_a_reason_and_others_go_on() {
    let bench = Bench::start(|config| config.park_after = Duration::from_millis(1)).await;
    let garbled = [
        ("never-ready", "long_unit_id", "topupId of unit 1 has 60"),
        ("delayed", "empty_unit_id", "topupId of unit 1 is empty"),
        (
            "partly",
            "nul_unit_id",
            "topupId of unit 1 has characters other",
        ),
        ("slow", "no_json", "not the protocol's JSON"),
        ("duplicate-callback", "huge", "more than 1048576 bytes"),
    ];
    let faults: serde_json::Map<_, _> = garbled
        .iter()
        .map(|(option, garble, _)| ((*option).to_owned(), json!(garble)))
        .collect();
    bench.sandbox.faults(json!({ "garbled": faults })).await;
    let mut bad = Vec::new();
    for (option, garble, reason) in garbled {
        bad.push((garble, reason, bench.accept(&[option, option]).await));
    }
    for _ in 0..5 {
        let good = bench.accept(&["ready"]).await;
        assert_eq!(bench.ready(good).await.attempt, 1);
    }
    for (garble, reason, id) in bad {
        let stored = bench.hurry(id, |stored| stored.state == "parked").await;
        let said = stored.reason.unwrap();
        assert!(
            said.contains(reason) && said.len() < 300,
            "{garble}: {said}"
        );
        assert_eq!((stored.attempt, stored.deliveries), (1, 0), "{garble}");
        assert_eq!(bench.sandbox.bought(id).await, (1, 2), "{garble}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_reaches_the_database_as_one_clean_line() {
    let bench = Bench::start(|_| {}).await;
    bench
        .sandbox
        .faults(json!({ "garbled": { "refused": "odd_message" } }))
        .await;
    let id = bench.accept(&["refused"]).await;
    let stored = bench.until(id, |stored| stored.failed == 1).await;
    assert_eq!(
        (stored.state.as_str(), stored.reason.as_deref()),
        (
            "failed",
            Some("rejected: 9001 sold out [31m X-Injected: 1 gnp.exe")
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_with_an_impossible_date_waits_for_its_correction() {
    let bench = Bench::start(|_| {}).await;
    bench
        .sandbox
        .faults(json!({ "garbled": { "duplicate-callback": "bad_date" } }))
        .await;
    let id = bench.accept(&["duplicate-callback"]).await;
    let collected = async || {
        let looks = bench
            .calls(&["call=\"collect\"", "outcome=\"found\""])
            .await;
        bench.make_due(id).await;
        Ok((looks >= 3.0).then_some(()))
    };
    wait::soon("three looks", collected).await;
    let stored = bench.look(id).await;
    assert_eq!(
        (stored.state.as_str(), stored.pending, stored.deliveries),
        ("placed", 1, 0)
    );
    bench.sandbox.faults(json!({})).await;
    assert_eq!(
        bench.hurry(id, |stored| stored.ready == 1).await.deliveries,
        1
    );
    assert_eq!(bench.sandbox.bought(id).await, (1, 1));
}

/// What cannot be read is parked with the name of its field, and an operator can enter the profile.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_profile_is_entered_by_hand() {
    let mut bench = Bench::start(|config| config.park_after = Duration::from_millis(1)).await;
    bench
        .sandbox
        .faults(json!({ "garbled": { "duplicate-callback": "bad_date" } }))
        .await;
    let id = bench.accept(&["duplicate-callback"]).await;
    let stored = bench.hurry(id, |stored| stored.state == "parked").await;
    let reason = stored.reason.unwrap();
    assert_eq!(reason, "profile_unreadable: expiredDate");
    assert!(stored.bought && stored.pending == 1);
    // No look at the provider is under way while the profile is entered.
    bench.stop().await;
    let topup: String = sqlx::query_scalar("SELECT topup_id FROM topups WHERE placement_id = $1")
        .bind(id.uuid())
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("code.txt");
    let enter = async |code: &str, iccid: &str| {
        std::fs::write(&file, code).unwrap();
        let file = file.display();
        bench
            .esimctl(&format!(
                "placement enter {topup} --iccid {iccid} --expires 2027-01-31 --code-file {file} --yes --reason mail"
            ))
            .await
    };
    let refused = enter("LPA:1$smdp.example.com$BY-HAND$$1", "8982123456789012345").await;
    assert!(
        refused["error"]
            .as_str()
            .unwrap()
            .contains("confirmation code"),
        "{refused}"
    );
    let entered = enter(
        "\u{feff}\"lpa:1$smdp.example.com$BY-HAND\"\r\n",
        "8982123456789012345",
    )
    .await;
    assert_eq!(
        (&entered["state"], &entered["pending"]),
        (&json!("placed"), &json!(0)),
        "{entered}"
    );
    let stored = bench.look(id).await;
    assert_eq!((stored.ready, stored.deliveries, stored.due), (1, 1, false));
    let again = enter("1$smdp.example.com$OTHER", "8982123456789012346").await;
    assert!(again["error"].as_str().unwrap().contains("ready already"));
    let recorded: String = sqlx::query_scalar(
        "SELECT target FROM operator_actions WHERE command = 'placement enter' AND reason = 'mail'",
    )
    .fetch_one(&bench.pool)
    .await
    .unwrap();
    assert_eq!(recorded, format!("topup {topup}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_answers_cost_no_memory_also_after_a_restart() {
    let bench = Bench::stopped(|config| {
        config.provider_timeout = Duration::from_secs(20);
        config.settle = Duration::from_mins(1);
    })
    .await;
    bench
        .sandbox
        .faults(json!({ "garbled": { "never-ready": "huge" } }))
        .await;
    let mut process = bench.process();
    process.start().await.unwrap();
    let mut placements = Vec::new();
    for _ in 0..3 {
        placements.push(bench.accept(&["never-ready"]).await);
    }
    for restart in [true, false] {
        for id in &placements {
            let before = bench.look(*id).await.unknowns;
            bench.hurry(*id, |stored| stored.unknowns > before).await;
        }
        let peak = process.peak_memory().unwrap();
        assert!(peak < MOST_KILOBYTES, "{peak} kB at the peak");
        if restart {
            process.kill().await.unwrap();
            // The next process meets the same answers.
            for id in &placements {
                bench.due_now(*id).await;
            }
            process.start().await.unwrap();
        }
    }
    for id in placements {
        assert_eq!(bench.sandbox.bought(id).await, (1, 1));
    }
    process.kill().await.unwrap();
}

/// Lets the database refuse outcomes of this placement with this error, unless it is parked.
async fn refuse(bench: &Bench, id: PlacementId, code: &str) {
    let name = format!("refuse_{}", id.uuid().simple());
    let statement = format!(
        "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN RAISE EXCEPTION 'refused by the test' USING ERRCODE = '{code}'; END $$;
         CREATE TRIGGER {name} BEFORE UPDATE ON placements FOR EACH ROW
         WHEN (NEW.placement_id = '{id}' AND NEW.state = 'placed') EXECUTE FUNCTION {name}()"
    );
    bench.sql(&statement).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_too_large_for_the_database_parks_its_placement() {
    let bench = Bench::start(|_| {}).await;
    let id = bench.store("sandbox", 1, &["ready"]).await[0];
    refuse(&bench, id, "54000").await;
    bench.announce("sandbox", &[id]).await;
    let stored = bench.until(id, |stored| stored.state == "parked").await;
    assert_eq!(stored.reason.as_deref(), Some("response_unstorable"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_that_the_database_refuses_for_ever_holds_no_slot_for_ever() {
    // As many bad placements as there are slots.
    let bench = Bench::start(|config| config.provider_concurrency = 2).await;
    let bad = bench.store("sandbox", 2, &["ready"]).await;
    for id in &bad {
        refuse(&bench, *id, "P0001").await;
        bench.announce("sandbox", &[*id]).await;
    }
    for id in &bad {
        let bought = async || Ok((bench.sandbox.bought(*id).await.0 == 1).then_some(()));
        wait::soon("the bad purchases", bought).await;
    }
    for _ in 0..5 {
        let good = bench.accept(&["ready"]).await;
        bench.ready(good).await;
    }
    for id in bad {
        assert_eq!(bench.look(id).await.state, "placing");
        assert_eq!(bench.sandbox.bought(id).await, (1, 1));
    }
}

//! What was wrong is kept: noted once, however many processes look, and in the record for good.

use std::time::Duration;

use desk::operator::health::{
    self, alerts,
    finding::Severity,
    life::{self, FindingChange, FindingEvent, FindingWatch, TakeFrom, Taken},
};
use store::history;
use time::OffsetDateTime;

use crate::bench::{Bench, execute};

/// Each stage has committed so many seconds ago.
async fn pulses(bench: &Bench, ago: i64) {
    bench
        .sql(&format!(
            "DELETE FROM pulses;
             INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
             SELECT gen_random_uuid(), stage, 1, 1, false, now() - interval '{ago} s'
             FROM unnest('{{ingress,provisioner,notifier}}'::text[]) AS stage"
        ))
        .await;
}

/// The process with the pulse of this stage has died a while ago.
const DIES: &str = "UPDATE pulses SET at = now() - interval '12 s' WHERE stage = 'provisioner'";

async fn look(bench: &Bench, role: &str, watch: &mut FindingWatch) -> Vec<FindingEvent> {
    let mut connection = bench.as_role(role).await;
    watch.update(&mut connection).await.unwrap().noted
}

fn changes(events: &[FindingEvent]) -> Vec<(FindingChange, &str)> {
    let all = events.iter();
    all.map(|one| (one.change, one.key.as_str())).collect()
}

const PROVISIONER: &str = "stage_dead:provisioner";

#[tokio::test]
async fn what_was_wrong_is_noted_once_and_kept() {
    let bench = Bench::new().await;
    pulses(&bench, -60).await;
    // What flickers is tried where time is made up.
    let mut console = FindingWatch::new(Duration::ZERO);
    let mut beside = FindingWatch::new(Duration::ZERO);
    assert_eq!(look(&bench, "console", &mut console).await, []);
    bench.sql(DIES).await;
    let opened = look(&bench, "console", &mut console).await;
    assert_eq!(changes(&opened), [(FindingChange::Opened, PROVISIONER)]);
    assert_eq!(opened[0].span.severity, Severity::Fault);
    let lasted = opened[0].at - opened[0].span.since;
    assert!(lasted >= Duration::from_secs(12), "since its last pulse");
    assert_eq!(
        look(&bench, "operator", &mut beside).await,
        [],
        "noted already"
    );

    pulses(&bench, -60).await;
    let mended = look(&bench, "operator", &mut beside).await;
    assert_eq!(changes(&mended), [(FindingChange::Mended, PROVISIONER)]);
    assert!(!mended[0].span.at_latest, "{mended:?}");
    assert_eq!(look(&bench, "console", &mut console).await, []);

    // Another process, which remembers nothing, reads what is open.
    let mut later = FindingWatch::default();
    assert_eq!(look(&bench, "console", &mut later).await, []);

    // It stays for good, beside what ends after a term.
    execute(
        &mut *bench.connection().await,
        "INSERT INTO history (provider, kind) VALUES ('sandbox', 'breaker_opened');
         UPDATE history SET at = at - interval '400 days'",
    )
    .await;
    let mut notifier = bench.as_role("notifier").await;
    assert_eq!(history::forget(&mut notifier, 100).await.unwrap(), 1);
    let mut operator = bench.as_role("operator").await;
    let kept = life::events(&mut operator, OffsetDateTime::UNIX_EPOCH).await;
    let kept = kept.unwrap();
    let expected = [
        (FindingChange::Opened, PROVISIONER),
        (FindingChange::Mended, PROVISIONER),
    ];
    assert_eq!(changes(&kept), expected);
    assert_eq!(
        kept[1].what,
        "nothing was bought, because no provisioner ran"
    );
    // Until an operator sets a term for the record.
    bench
        .sql("UPDATE walks SET days = 365 WHERE name = 'audit'")
        .await;
    assert_eq!(history::forget(&mut notifier, 100).await.unwrap(), 2);
}

/// Several consoles see one outage of PostgreSQL, each a little differently.
#[tokio::test]
async fn one_outage_is_noted_once_by_all_who_saw_it() {
    let bench = Bench::new().await;
    pulses(&bench, -60).await;
    let now = runtime::clock::now();
    let mut noted = Vec::new();
    for seconds in [40, 38, 25] {
        let mut watch = FindingWatch::default();
        watch.outage(now - Duration::from_secs(seconds), "connection refused");
        noted.extend(look(&bench, "console", &mut watch).await);
        assert_eq!(look(&bench, "console", &mut watch).await, []);
    }
    let expected = [FindingChange::Opened, FindingChange::Mended].map(|it| (it, "database_down"));
    assert_eq!(changes(&noted), expected);
    // The next one is another one.
    bench
        .sql(
            "UPDATE history SET at = at - interval '1 h', before = jsonb_set(before, '{until}', to_jsonb(now() - interval '1 h'))",
        )
        .await;
    let mut watch = FindingWatch::default();
    watch.outage(now - Duration::from_secs(30), "connection refused");
    assert_eq!(
        changes(&look(&bench, "console", &mut watch).await),
        expected
    );
}

/// Many endpoints hide neither what stopped orders nor that a matter is over.
#[tokio::test]
async fn a_night_of_many_endpoints_hides_nothing() {
    let bench = Bench::new().await;
    pulses(&bench, -60).await;
    let mut watch = FindingWatch::new(Duration::ZERO);
    bench.sql(DIES).await;
    assert_eq!(look(&bench, "console", &mut watch).await.len(), 1);
    let action = |name| pg::actions::Action {
        actor: pg::actions::Actor::esimctl(name),
        command: domain::Command::FindingTake,
        target: "finding stage_dead:provisioner",
        reason: "",
    };
    let mut operator = bench.as_role("operator").await;
    let hour = Duration::from_hours(1);
    let mut take = async |name, from| {
        life::take(&mut operator, PROVISIONER, hour, from, action(name))
            .await
            .unwrap()
    };
    let taken = take("ana", TakeFrom::Nobody).await;
    assert!(matches!(taken, Taken::Yours { before: None, .. }));
    let taken = take("bob", TakeFrom::Nobody).await;
    assert!(matches!(taken, Taken::Theirs(ana) if ana.by == "ana"));
    let taken = take("ana", TakeFrom::Nobody).await;
    assert!(matches!(taken, Taken::Yours { before: None, .. }));
    let taken = take("bob", TakeFrom::Anybody).await;
    assert!(matches!(taken, Taken::Yours { before: Some(ana), .. } if ana.by == "ana"));

    pulses(&bench, -60).await;
    assert_eq!(look(&bench, "console", &mut watch).await.len(), 1);
    bench
        .sql(
            "INSERT INTO history (provider, kind, reason, detail, before)
               SELECT '', 'finding_mended', 'blocked:' || n, 'an endpoint was blocked',
                      jsonb_build_object('severity', 'mends', 'was', '', 'since', now(), 'until', now(), 'at_latest', false)
               FROM generate_series(1, 600) n",
        )
        .await;
    let mut console = bench.as_role("console").await;
    let since = runtime::clock::now() - hour;
    let mended = life::mended(&mut console, since).await.unwrap();
    assert_eq!(mended.len(), 500);
    assert!(mended.iter().any(|one| one.key == PROVISIONER));
    bench.sql(DIES).await;
    let report = health::examine(&mut console).await.unwrap();
    assert_eq!(report.findings[0].taken, None, "the former one is over");
}

/// The oldest first, but a fault before what is none. Of one finding the next event waits until
/// the one before was told, so that nobody reads that something is mended before that it broke.
#[tokio::test]
async fn faults_are_told_first_and_each_finding_in_its_order() {
    let bench = Bench::new().await;
    let event = |key: &str, kind: &str, severity: &str, ago: u32| {
        let span = format!(
            r#"{{"severity": "{severity}", "was": "it was", "since": "2026-01-01T00:00:00Z", "until": null, "at_latest": false}}"#
        );
        format!(
            "INSERT INTO history (provider, kind, reason, detail, after, at)
             VALUES ('', '{kind}', '{key}', 'it is', '{span}', now() - interval '{ago} s');"
        )
    };
    let mut rows = event("slow", "finding_opened", "warning", 50);
    rows += &event("down", "finding_opened", "fault", 40);
    rows += &event("down", "finding_mended", "fault", 30);
    // One that a newer version has written keeps none of the others waiting.
    rows += &event("newer", "finding_opened", "disaster", 60);
    bench.sql(&rows).await;
    let mut console = bench.as_role("console").await;
    let mut told = Vec::new();
    for _ in 0..6 {
        let Some(event) = alerts::reserve(&mut console).await.unwrap() else {
            continue;
        };
        told.push((event.key.clone(), event.change));
        // The fault gets through only later.
        if told.len() > 1 {
            alerts::told(&mut console, &event).await.unwrap();
        }
    }
    let expected = [
        ("down".to_owned(), FindingChange::Opened),
        ("slow".to_owned(), FindingChange::Opened),
    ];
    assert_eq!(told, expected, "the end waits for its beginning");
    bench
        .sql("UPDATE history SET at = at - interval '30 s' WHERE kind = 'finding_alert'")
        .await;
    let again = alerts::reserve(&mut console).await.unwrap().unwrap();
    assert_eq!(
        (again.key.as_str(), again.change),
        ("down", FindingChange::Opened)
    );
    alerts::told(&mut console, &again).await.unwrap();
    let end = alerts::reserve(&mut console).await.unwrap().unwrap();
    assert_eq!(
        (end.key.as_str(), end.change),
        ("down", FindingChange::Mended)
    );
}

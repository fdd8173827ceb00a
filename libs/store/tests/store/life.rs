//! What was wrong is kept: noted once, however many processes look, and in the record for good.

use std::time::Duration;

use desk::operator::health::{
    finding::Severity,
    life::{self, FindingChange, FindingEvent, FindingWatch},
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
    watch.look(&mut connection).await.unwrap()
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

//! What partners get is found from what ingress counts: that orders fail, of all partners or of
//! one, and what a good verdict rests on.

use std::time::Duration;

use accounts::{
    partners::keys,
    refused::{self, RefusedKind, RefusedRequest},
};
use desk::operator::health::{
    self, Finding, FindingKind, HealthReport,
    finding::{FailureKind, Severity},
};
use domain::PartnerId;
use store::figures::{self, Count, Figure, Measure};
use time::OffsetDateTime;

use crate::bench::{Bench, config, order};

/// Adds requests of this many seconds ago, of which so many failed.
async fn add(bench: &Bench, ago: i64, measure: Measure, subject: &str, (n, failed): (u64, u64)) {
    let mut count = Count::default();
    for nth in 0..n {
        count.note(Some(Duration::from_millis(5)), nth < failed);
    }
    let at = runtime::clock::now() - time::Duration::seconds(ago);
    let tick = at.unix_timestamp() / 10 * 10;
    let figure = Figure {
        at: OffsetDateTime::from_unix_timestamp(tick).unwrap(),
        measure,
        subject: subject.to_owned(),
        count,
    };
    let mut ingress = bench.as_role("ingress").await;
    figures::add(&mut ingress, uuid::Uuid::now_v7(), &[figure])
        .await
        .unwrap();
}

async fn looked(bench: &Bench) -> HealthReport {
    bench
        .sql(
            "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
             SELECT gen_random_uuid(), stage, 1, 1, false, now() + interval '1 hour'
             FROM unnest('{ingress,provisioner,notifier}'::text[]) AS stage",
        )
        .await;
    let mut console = bench.as_role("console").await;
    health::examine(&mut console).await.unwrap()
}

fn failing(report: &HealthReport) -> Vec<&Finding> {
    let all = report.findings.iter();
    all.filter(|one| matches!(one.kind, FindingKind::OrdersFail { .. }))
        .collect()
}

#[tokio::test]
async fn a_good_verdict_names_the_orders_that_it_rests_on() {
    let bench = Bench::new().await;
    let report = looked(&bench).await;
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(
        report.verdict(),
        "Nothing wrong shows, but no order came in the last 10 minutes."
    );
    add(&bench, 30, Measure::Answered, "", (114, 1)).await;
    let partner = bench.partner(None).await.to_string();
    add(&bench, 30, Measure::Invalid, &partner, (1, 0)).await;
    let report = looked(&bench).await;
    assert_eq!(
        report.verdict(),
        "Everything works: 112 of 114 orders were accepted in the last 10 minutes."
    );
}

#[tokio::test]
async fn orders_that_all_fail_are_a_fault_at_once_until_some_get_through() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await.to_string();
    add(&bench, 300, Measure::Answered, "", (100, 0)).await;
    add(&bench, 20, Measure::Answered, "", (3, 3)).await;
    add(&bench, 20, Measure::Errors, &partner, (3, 0)).await;
    let report = looked(&bench).await;
    let found = failing(&report);
    assert_eq!(found.len(), 1, "{:?}", report.findings);
    let told = found[0].told();
    assert_eq!(told.severity, Severity::Fault);
    assert!(told.needs_person && told.since.is_some(), "{told:?}");
    assert_eq!(told.alert, Some("IngressErrors"));
    assert!(
        told.what.starts_with(
            "orders fail with a 5xx: all 3 of the newest; felt by partner, the last one at "
        ),
        "{told:?}"
    );
    assert!(report.verdict().starts_with("1 thing is wrong"));
    // Everybody who looks at a partner has to know of it.
    let other = PartnerId::new();
    assert!(found[0].of(other, false).is_some() && found[0].of(other, true).is_some());
    add(&bench, 0, Measure::Answered, "", (3, 0)).await;
    let report = looked(&bench).await;
    assert!(failing(&report).is_empty(), "{:?}", report.findings);
}

#[tokio::test]
async fn requests_of_one_partner_that_all_get_a_401_are_its_matter() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let subject = partner.to_string();
    add(&bench, 20, Measure::Answered, "", (50, 0)).await;
    add(&bench, 20, Measure::Denied, &subject, (4, 0)).await;
    assert!(failing(&looked(&bench).await).is_empty(), "four are few");
    add(&bench, 10, Measure::Denied, &subject, (296, 0)).await;
    let report = looked(&bench).await;
    let found = failing(&report);
    assert_eq!(found.len(), 1, "{:?}", report.findings);
    let told = found[0].told();
    assert_eq!(told.severity, Severity::Warning);
    assert!(
        told.what.starts_with(
            "requests of partner are answered with a 401: all 300 of the newest, the last one at "
        ),
        "{told:?}"
    );
    let show = format!("esimctl partner show {subject} --refused");
    assert_eq!(told.command, Some(show));
    assert!(found[0].of(partner, false).is_some());
    assert!(found[0].of(PartnerId::new(), false).is_none());
    // An order of it gets through, some minutes later.
    bench
        .sql("UPDATE minutely SET at = at - interval '30 minutes' WHERE measure = 'denied'")
        .await;
    assert_eq!(failing(&looked(&bench).await).len(), 1, "it goes on");
    bench.stored(order(partner, 1)).await;
    assert!(failing(&looked(&bench).await).is_empty());
}

#[tokio::test]
async fn a_key_that_is_used_after_its_end_is_named_with_its_partners_401() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    let subject = partner.to_string();
    add(&bench, 20, Measure::Denied, &subject, (12, 0)).await;
    bench
        .sql("UPDATE partners SET access_key = 'ak_new', old_access_key = 'ak_old', old_keys_until = now()")
        .await;
    let told = failing(&looked(&bench).await)[0].told();
    assert!(!told.what.contains("ak_"), "it is not used: {told:?}");
    let mut ingress = bench.as_role("ingress").await;
    let used = keys::ended_used(&mut ingress, &["ak_old".to_owned()]).await;
    used.unwrap();
    let report = looked(&bench).await;
    let found = failing(&report)[0];
    let told = found.told();
    assert!(
        told.what
            .contains("; its first key (ak_old), which ended at "),
        "{told:?}"
    );
    assert!(told.what.contains(", is still used, since "), "{told:?}");
    assert!(
        told.remedy
            .starts_with("tell the partner which key has ended"),
        "{told:?}"
    );
    let text = found.for_partner().unwrap();
    assert!(
        text.contains("and use your first key (ak_old), which ended at "),
        "{text}"
    );
}

/// A partner with nothing left and one that sends nonsense are not told alike.
#[tokio::test]
async fn the_code_that_leads_is_named_with_its_count() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    add(&bench, 20, Measure::Invalid, &partner.to_string(), (9, 0)).await;
    assert!(
        !failing(&looked(&bench).await)[0]
            .told()
            .what
            .contains("kept")
    );
    let request = |status, reason| RefusedRequest {
        request_id: uuid::Uuid::now_v7(),
        partner_id: partner,
        kind: RefusedKind::Order,
        at: runtime::clock::now(),
        status,
        reason,
        errors: reason.to_owned(),
        method: "POST".to_owned(),
        path: "/orders".to_owned(),
        external_order_id: None,
        unrecorded: 0,
    };
    let all = [
        request(422, "balance_insufficient"),
        request(422, "qty_invalid"),
        request(429, "rate_limited"),
        request(429, "rate_limited"),
        request(429, "rate_limited"),
        request(422, "balance_insufficient"),
    ];
    refused::keep(&mut *bench.connection().await, &all, 100)
        .await
        .unwrap();
    let report = looked(&bench).await;
    let told = failing(&report)[0].told();
    assert!(
        told.what
            .ends_with("; 2 of the 3 that are kept got balance_insufficient"),
        "{told:?}"
    );
    assert!(
        told.remedy.contains("nothing left to order for"),
        "{told:?}"
    );
}

#[tokio::test]
async fn requests_of_several_partners_that_all_get_a_401_are_a_fault_of_ours() {
    let bench = Bench::new().await;
    let one = bench.partner(None).await.to_string();
    let two = bench.partner(None).await.to_string();
    for partner in [&one, &two] {
        add(&bench, 20, Measure::Denied, partner, (5, 0)).await;
    }
    let report = looked(&bench).await;
    assert_eq!(failing(&report)[0].severity(), Severity::Warning, "tests");
    bench.sql("UPDATE partners SET environment = 'live'").await;
    let report = looked(&bench).await;
    let found = failing(&report);
    assert_eq!(found.len(), 1, "{:?}", report.findings);
    assert_eq!(found[0].severity(), Severity::Fault);
    let is_of_all = |kind: &FindingKind| {
        matches!(
            kind,
            FindingKind::OrdersFail {
                how: FailureKind::Denied,
                partner: None,
                everything: true,
                failed: 10,
                ..
            }
        )
    };
    assert!(is_of_all(&found[0].kind), "{found:?}");
}

#[tokio::test]
async fn requests_without_a_known_key_are_told_where_orders_came_before() {
    let bench = Bench::new().await;
    add(&bench, 20, Measure::Denied, "", (300, 0)).await;
    assert!(failing(&looked(&bench).await).is_empty(), "a scanner");
    add(&bench, 7_200, Measure::Answered, "", (50, 0)).await;
    let report = looked(&bench).await;
    let found = failing(&report);
    assert_eq!(found.len(), 1, "{:?}", report.findings);
    assert_eq!(found[0].severity(), Severity::Fault);
    assert!(
        found[0]
            .told()
            .what
            .contains("without an access key that we know")
    );
}

#[tokio::test]
async fn webhooks_without_an_address_are_a_matter_of_their_partner() {
    let bench = Bench::new().await;
    let partner = bench.partner(None).await;
    bench
        .sql(&format!(
            "INSERT INTO held (id, state, provider, lane, partner_id, at)
             SELECT gen_random_uuid(), 'no_endpoint', '', '', '{partner}', now() - interval '1 hour'
             FROM generate_series(1, 80)"
        ))
        .await;
    let report = looked(&bench).await;
    let found = report.findings.iter();
    let mut found = found.filter(|one| matches!(one.kind, FindingKind::NoAddress { .. }));
    let found = found.next().expect("a finding");
    let told = found.told();
    assert!(told.needs_person && told.since.is_some(), "{told:?}");
    assert_eq!(
        told.what,
        "80 webhooks of partner wait for an address: partner has set no URL for them"
    );
    assert!(found.of(partner, false).is_some());
    assert!(found.of(PartnerId::new(), false).is_none());
}

/// What stops orders is told by whoever looks, although reading goes on.
#[tokio::test]
async fn a_server_without_room_takes_no_pulse_and_is_named() {
    let bench = Bench::new().await;
    bench.store.pulse().await.unwrap();
    // The same statement fails on a full disk, with another sentence.
    let full = "DO $$ BEGIN
        EXECUTE format('ALTER DATABASE %I SET temp_file_limit = 0', current_database());
    END $$";
    bench.sql(full).await;
    let store = config(bench.database.url()).open("ingress").unwrap();
    let error = store.pulse().await.unwrap_err();
    assert!(error.to_string().contains("temporary file"), "{error}");
    let report = looked(&bench).await;
    let first = &report.findings[0];
    assert!(
        matches!(first.kind, FindingKind::DatabaseDown { .. }),
        "{first:?}"
    );
    assert_eq!(first.severity(), Severity::Fault);
}

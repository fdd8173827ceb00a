//! What the console needs below its pages: operators who sign in, the search, the story of an
//! order, what needs a person, and figures.

use std::time::Duration;

use desk::operator::{
    accounts::{self, NotSet, OperatorNotChanged, OperatorRole},
    breakers,
    health::{self, FindingKind, waiting},
    search::{self, MatchedId},
    sessions::{self, Browser, Lifetime, NewSession, NotSignedIn, Person, SessionPolicy},
};
use domain::Command;
use pg::actions::{self, Action, Actor};
use secrecy::SecretString;
use sqlx::Connection;
use store::figures::{self, Count, Figure, FigureSpan, Figures, Measure};
use store::placements::AttemptOutcome;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::bench::{
    Bench, PROVIDER, Told as _, iccid, order, parked, placement, ready, settlement, topups,
};

pub const LIFETIME: Lifetime = Lifetime {
    idle: Duration::from_mins(30),
    most: Duration::from_hours(8),
};
pub const ACCEPTED: SessionPolicy<'static> = SessionPolicy {
    idle: LIFETIME.idle,
    local: true,
    issuer: Some(ISSUER),
    by_person: true,
};
pub const ISSUER: &str = "https://id.example";
pub const PASSWORD: &str = "correct horse battery";

/// A browser, and the session that it has.
pub fn browser(before: Option<&SecretString>) -> Browser<'_> {
    Browser {
        source: "192.0.2.1",
        before,
    }
}

pub fn action(command: Command) -> Action<'static> {
    Action {
        actor: Actor::esimctl("tester"),
        command,
        target: "operator ana",
        reason: "a test",
    }
}

impl Bench {
    /// A connection with the privileges of a role.
    pub async fn as_role(&self, role: &str) -> sqlx::PgConnection {
        let url = self.database.url_of(role).unwrap();
        sqlx::PgConnection::connect(&url).await.unwrap()
    }

    /// An account without a password, so that the console may record what somebody does.
    pub async fn account(&self, name: &str) {
        self.sql(&format!(
            "INSERT INTO operators (operator_id, name, role) VALUES (gen_random_uuid(), '{name}', 'operator')"
        ))
        .await;
    }

    pub async fn sign_in(&self, name: &str, password: &str) -> Result<NewSession, NotSignedIn> {
        let mut console = self.as_role("console").await;
        let password = SecretString::from(password);
        sessions::sign_in(&mut console, name, password, browser(None), LIFETIME).await
    }

    /// An operator with a password.
    pub async fn ana(&self, role: OperatorRole) {
        let mut shell = self.as_role("operator").await;
        let made = accounts::create(&mut shell, "ana", role, action(Command::OperatorCreate)).await;
        let mut console = self.as_role("console").await;
        let token = made.unwrap().token;
        let name = accounts::set_up(&mut console, &token, PASSWORD.into(), "192.0.2.1").await;
        assert_eq!(name.unwrap(), "ana");
    }
}

/// All of it with the privileges of the roles that do it.
#[tokio::test]
async fn an_operator_sets_a_password_by_the_link_once_and_signs_in() {
    let bench = Bench::new().await;
    let mut shell = bench.as_role("operator").await;
    let mut console = bench.as_role("console").await;
    let made = accounts::create(
        &mut shell,
        "ana",
        OperatorRole::Support,
        action(Command::OperatorCreate),
    )
    .await;
    let token = made.unwrap().token;
    let again = accounts::create(
        &mut shell,
        "ana",
        OperatorRole::Viewer,
        action(Command::OperatorCreate),
    )
    .await;
    assert!(matches!(again, Err(OperatorNotChanged::Exists)));
    assert!(matches!(
        bench.sign_in("ana", PASSWORD).await,
        Err(NotSignedIn::Wrong)
    ));

    let found = accounts::of_link(&mut console, &token).await.unwrap();
    assert_eq!(found.as_deref(), Some("ana"));
    let short = accounts::set_up(&mut console, &token, "short".into(), "x").await;
    assert!(matches!(short, Err(NotSet::Password(_))));
    accounts::set_up(&mut console, &token, PASSWORD.into(), "192.0.2.1")
        .await
        .unwrap();
    let used = accounts::set_up(&mut console, &token, "another long password".into(), "x").await;
    assert!(matches!(used, Err(NotSet::Invalid)));

    let opened = bench.sign_in("ana", PASSWORD).await.unwrap();
    assert_eq!(
        (opened.session.name.as_str(), opened.session.role),
        ("ana", OperatorRole::Support)
    );
    let session = sessions::find(&mut console, &opened.token, ACCEPTED)
        .await
        .unwrap();
    assert_eq!(session.unwrap().source, "192.0.2.1");
    let other = SecretString::from("no such token");
    assert!(
        sessions::find(&mut console, &other, ACCEPTED)
            .await
            .unwrap()
            .is_none()
    );

    // A role holds at once, and a disabled operator is signed out at once.
    accounts::set_role(
        &mut shell,
        "ana",
        OperatorRole::Viewer,
        action(Command::OperatorRole),
    )
    .await
    .unwrap();
    let session = sessions::find(&mut console, &opened.token, ACCEPTED)
        .await
        .unwrap();
    assert_eq!(session.unwrap().role, OperatorRole::Viewer);
    accounts::set_disabled(&mut shell, "ana", true, action(Command::OperatorDisable))
        .await
        .unwrap();
    accounts::set_disabled(&mut shell, "ana", false, action(Command::OperatorEnable))
        .await
        .unwrap();
    assert!(
        sessions::find(&mut console, &opened.token, ACCEPTED)
            .await
            .unwrap()
            .is_none()
    );

    // So is one whose password was reset.
    let opened = bench.sign_in("ana", PASSWORD).await.unwrap();
    accounts::reset(&mut shell, "ana", action(Command::OperatorReset))
        .await
        .unwrap();
    assert!(
        sessions::find(&mut console, &opened.token, ACCEPTED)
            .await
            .unwrap()
            .is_none()
    );
    assert!(matches!(
        bench.sign_in("ana", PASSWORD).await,
        Err(NotSignedIn::Wrong)
    ));

    let recorded = actions::list(&mut shell, &actions::ActionFilter::default(), 100)
        .await
        .unwrap();
    let role = recorded
        .iter()
        .find(|one| one.command == Command::OperatorRole)
        .unwrap();
    assert_eq!(role.via.as_deref(), Some("esimctl"));
    assert_eq!(role.before.as_deref(), Some(r#"{"role": "support"}"#));
    assert_eq!(role.after.as_deref(), Some(r#"{"role": "viewer"}"#));
    let all = format!("{recorded:?}");
    assert!(!all.contains("argon2") && !all.contains(PASSWORD), "{all}");
}

#[tokio::test]
async fn a_session_ends_when_it_is_closed_unused_or_old() {
    let bench = Bench::new().await;
    bench.ana(OperatorRole::Viewer).await;
    let mut console = bench.as_role("console").await;
    for end in [
        "UPDATE operator_sessions SET used_at = now() - interval '31 minutes'",
        "UPDATE operator_sessions SET ends_at = now() - interval '1 second'",
    ] {
        let opened = bench.sign_in("ana", PASSWORD).await.unwrap();
        assert!(
            sessions::find(&mut console, &opened.token, ACCEPTED)
                .await
                .unwrap()
                .is_some()
        );
        bench.sql(end).await;
        assert!(
            sessions::find(&mut console, &opened.token, ACCEPTED)
                .await
                .unwrap()
                .is_none()
        );
    }
    let opened = bench.sign_in("ana", PASSWORD).await.unwrap();
    sessions::close(&mut console, &opened.token).await.unwrap();
    assert!(
        sessions::find(&mut console, &opened.token, ACCEPTED)
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn a_page_that_refreshes_itself_keeps_no_session_alive() {
    let bench = Bench::new().await;
    bench.ana(OperatorRole::Viewer).await;
    let mut console = bench.as_role("console").await;
    let opened = bench.sign_in("ana", PASSWORD).await.unwrap();
    let used = async || {
        let sql = "SELECT used_at > now() - interval '1 minute' FROM operator_sessions";
        let mut connection = bench.connection().await;
        let used: bool = sqlx::query_scalar(sql)
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        used
    };
    for by_person in [false, true] {
        bench
            .sql("UPDATE operator_sessions SET used_at = now() - interval '20 minutes'")
            .await;
        let accepted = SessionPolicy {
            by_person,
            ..ACCEPTED
        };
        let found = sessions::find(&mut console, &opened.token, accepted).await;
        assert!(found.unwrap().is_some());
        assert_eq!(used().await, by_person);
    }
}

#[tokio::test]
async fn a_session_of_an_openid_provider_lasts_while_its_issuer_is_trusted() {
    let bench = Bench::new().await;
    bench.ana(OperatorRole::Viewer).await;
    let mut console = bench.as_role("console").await;
    let person = Person {
        issuer: ISSUER.into(),
        subject: "7".into(),
        name: "oidc:ana@example.com".into(),
        role: OperatorRole::Support,
    };
    let browser = browser(None);
    sessions::attempt(&mut console, browser.source)
        .await
        .unwrap();
    let opened = sessions::open(&mut console, &person, browser, LIFETIME).await;
    let opened = opened.unwrap();
    let local = bench.sign_in("ana", PASSWORD).await.unwrap();
    let mut find = async |opened: &NewSession, accepted| {
        let found = sessions::find(&mut console, &opened.token, accepted).await;
        found.unwrap().map(|found| (found.name, found.role))
    };
    let named = Some((person.name.clone(), OperatorRole::Support));
    assert_eq!(find(&opened, ACCEPTED).await, named);
    for issuer in [None, Some("https://other.example")] {
        let accepted = SessionPolicy { issuer, ..ACCEPTED };
        assert_eq!(find(&opened, accepted).await, None);
        assert!(find(&local, accepted).await.is_some());
    }
    let accepted = SessionPolicy {
        local: false,
        ..ACCEPTED
    };
    assert_eq!(find(&local, accepted).await, None);
    assert_eq!(find(&opened, accepted).await, named);

    // With a shell both are signed out, and no account can have such a name.
    let mut shell = bench.as_role("operator").await;
    for (name, opened) in [(person.name.as_str(), &opened), ("ana", &local)] {
        let ended = accounts::sign_out(&mut shell, name, action(Command::OperatorSignOut)).await;
        assert_eq!(ended.unwrap(), 1, "{name}");
        assert_eq!(find(opened, ACCEPTED).await, None);
    }
    let made = accounts::create(
        &mut shell,
        &person.name,
        OperatorRole::Viewer,
        action(Command::OperatorCreate),
    )
    .await;
    assert!(matches!(made, Err(OperatorNotChanged::BadName)));
}

#[tokio::test]
async fn one_search_finds_an_order_by_each_of_its_ids() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    bench
        .sql("INSERT INTO providers (name) VALUES ('sandbox')")
        .await;
    let external = "acme/1001?&#";
    let mut new = order(partner, 1);
    new.external_order_id = external.into();
    let trace = "0af7651916cd43dd8448eb211c80319c";
    new.traceparent = Some(format!("00-{trace}-b7ad6b7169203331-01"));
    let stored = bench.stored(new).await;
    let topup = topups(&stored)[0].clone();
    bench.claim(&[placement(&stored)]).await;
    let outcome = AttemptOutcome::Bought {
        reference: Some("NO/4711?&#".into()),
        units: vec![ready(&topup)],
        listed: 1,
        collect_in: None,
        park: None,
        announced: true,
    };
    bench
        .settle(&[settlement(placement(&stored), 1, outcome)])
        .await;
    let iccid = iccid(&topup).as_str().to_owned();
    let spaced = format!(" {} {} ", &iccid[..4], &iccid[4..]);
    let checked = match domain::KnownIccid::parse(&iccid) {
        Some(domain::KnownIccid::Whole(forms)) => forms[1].clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(checked.len(), iccid.len() + 1, "with its check digit");
    let end = iccid[iccid.len() - 6..].to_owned();
    let mut console = bench.as_role("console").await;
    for (id, by) in [
        (external.to_owned(), MatchedId::ExternalOrderId),
        (stored.order_id.to_string(), MatchedId::Order),
        (placement(&stored).to_string(), MatchedId::Placement),
        (topup.to_string(), MatchedId::Topup),
        (iccid, MatchedId::Iccid),
        (spaced, MatchedId::Iccid),
        (checked, MatchedId::Iccid),
        (end, MatchedId::Iccid),
        (trace.to_uppercase(), MatchedId::Trace),
        (format!("unit-{topup}"), MatchedId::Provider),
        ("NO/4711?&#".to_owned(), MatchedId::Provider),
    ] {
        let hits = search::find(&mut console, &id)
            .await
            .told(&mut console)
            .await;
        let found: Vec<_> = hits
            .orders
            .iter()
            .map(|hit| (hit.order_id, hit.by))
            .collect();
        assert_eq!(found, [(stored.order_id.uuid(), by)], "{id}");
    }
    let name: String = bench
        .value(
            "SELECT name FROM partners WHERE partner_id::text = $1",
            partner,
        )
        .await;
    let hits = search::find(&mut console, &name.to_uppercase())
        .await
        .told(&mut console)
        .await;
    assert_eq!(hits.partners[0].partner_id, partner.uuid());
    // One wrong character is no hit, but what may have been meant.
    let mut digits = topup.to_string();
    let last = if digits.pop() == Some('7') { '8' } else { '7' };
    digits.push(last);
    for wrong in ["acme/1010?&#", "acme/001?&#", "acme/11001?&#", &digits] {
        let hits = search::find(&mut console, wrong)
            .await
            .told(&mut console)
            .await;
        assert!(hits.is_empty(), "{wrong}: {hits:?}");
        assert_eq!(hits.meant[0].order_id, stored.order_id.uuid(), "{wrong}");
    }
    assert!(
        search::find(&mut console, "nothing")
            .await
            .told(&mut console)
            .await
            .is_empty()
    );

    // A purchase that is retried has another number.
    bench
        .sql("UPDATE placements SET provider_reference = NULL")
        .await;
    assert!(
        search::find(&mut console, "NO/4711?&#")
            .await
            .told(&mut console)
            .await
            .is_empty()
    );
}

/// Upper and lower case, and what stands between words and numbers, do not matter.
#[tokio::test]
async fn an_order_is_found_however_its_id_is_spelled() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    let mut ids = Vec::new();
    for external in ["WL-501", "WL-5012"] {
        let mut new = order(partner, 1);
        new.external_order_id = external.into();
        ids.insert(0, bench.stored(new).await.order_id.uuid());
    }
    let mut console = bench.as_role("console").await;
    // A whole id is not taken for the beginning of another one.
    let whole = &ids[1..];
    for (typed, expected) in [
        ("wl 501", whole),
        ("WL501", whole),
        ("wl-501", whole),
        ("Wl_501", whole),
        ("wl 50", &ids),
        ("WL50", &ids),
    ] {
        let hits = search::find(&mut console, typed)
            .await
            .told(&mut console)
            .await;
        let found: Vec<_> = hits.orders.iter().map(|hit| hit.order_id).collect();
        assert_eq!(found, expected, "{typed}");
    }
}

#[tokio::test]
async fn a_line_that_was_sold_twice_lists_the_newest_order_first() {
    let bench = Bench::new().await;
    let mut orders = Vec::new();
    for _ in 0..2 {
        let sold = bench.placing(1).await;
        let outcome = AttemptOutcome::Bought {
            reference: None,
            units: vec![ready(&topups(&sold)[0])],
            listed: 1,
            collect_in: None,
            park: None,
            announced: true,
        };
        bench
            .settle(&[settlement(placement(&sold), 1, outcome)])
            .await;
        orders.insert(0, sold.order_id.uuid());
    }
    let line = "8949000000000000123";
    bench
        .sql(&format!("UPDATE esims SET iccid = '{line}'"))
        .await;
    let mut console = bench.as_role("console").await;
    let hits = search::find(&mut console, line)
        .await
        .told(&mut console)
        .await;
    let found: Vec<_> = hits.orders.iter().map(|hit| hit.order_id).collect();
    assert_eq!(found, orders);
}

#[tokio::test]
async fn what_needs_a_person_is_one_list_with_one_action_each() {
    let bench = Bench::new().await;
    let mut console = bench.as_role("console").await;
    bench
        .sql(
            "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
             SELECT gen_random_uuid(), stage, 1, 1, false, now() + interval '1 hour'
             FROM unnest('{ingress,provisioner,notifier}'::text[]) AS stage",
        )
        .await;
    let report = health::examine(&mut console).await.unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let verdict = report.verdict();
    assert!(
        verdict.starts_with("Nothing wrong shows, but no order"),
        "{verdict}"
    );
    bench
        .sql("INSERT INTO providers (name) VALUES ('sandbox')")
        .await;
    let stored = [bench.placing(1).await, bench.placing(1).await];
    bench
        .settle(&[
            parked(placement(&stored[0]), 1),
            parked(placement(&stored[1]), 1),
        ])
        .await;
    // An open breaker lets nothing be claimed, so it opens last.
    bench.account("ana").await;
    let open = Action {
        actor: Actor::console("ana", "192.0.2.1"),
        command: Command::ProviderOpen,
        target: "provider sandbox",
        ..action(Command::OperatorSignOut)
    };
    let an_hour = Some(Duration::from_hours(1));
    let opened = breakers::set(&mut console, PROVIDER, None, an_hour, open).await;
    opened.unwrap();
    let partner = bench.partner(Some("https://partner.example/")).await;
    let pause =
        "UPDATE partner_endpoints SET blocked_until = 'infinity' WHERE endpoint_id::text = $1";
    bench.set(pause, partner).await;
    let record =
        "INSERT INTO operator_actions (action_id, at, operator, command, target, affected, reason)
                  VALUES (gen_random_uuid(), now() - interval '1 hour', 'ana', 'endpoint pause',
                          'endpoint ' || $1 || ' of partner ' || $1, 1, 'their move')";
    bench.set(record, partner).await;
    let hold = "INSERT INTO held (id, state, provider, partner_id) VALUES (gen_random_uuid(), 'exhausted', '', $1::uuid)";
    bench.set(hold, partner).await;

    let report = health::examine(&mut console).await.unwrap();
    assert_eq!(
        report.verdict(),
        "3 things are wrong, and 1 more ends by itself."
    );
    let [parked, exhausted, paused, open] = &report.findings[..] else {
        panic!("{:?}", report.findings);
    };
    // Purchases that were parked for one reason at one provider are one matter.
    let FindingKind::Parked { purchases, .. } = &parked.kind else {
        panic!("{parked:?}");
    };
    assert_eq!(purchases.len(), 2);
    assert!(parked.since.is_some() && exhausted.since.is_some());
    // Since when an endpoint is paused is known by the record of the pause.
    let since = paused.since.expect("since when it is paused");
    let hour = (report.at - since).whole_minutes();
    assert!((59..=61).contains(&hour), "{since}");
    let commands = [exhausted, paused].map(|one| one.told().command.unwrap());
    assert_eq!(
        commands,
        [
            format!("esimctl resend start --partner {partner} --since 48h --reason TEXT"),
            format!("esimctl endpoint resume {partner}"),
        ]
    );
    // What an operator has opened for a time ends then, and says that it was an operator.
    let told = open.told();
    assert!(!told.needs_person, "{told:?}");
    assert_eq!(
        told.command,
        Some(format!("esimctl provider close {PROVIDER}"))
    );
    let begin = format!("an operator has stopped buying at {PROVIDER} until ");
    assert!(told.what.starts_with(&begin), "{told:?}");
    // One that failed calls have opened tests itself, so nobody is asked to close it.
    bench.sql("UPDATE providers SET openings = 1").await;
    let report = health::examine(&mut console).await.unwrap();
    let told = report.findings[3].told();
    assert!(!told.needs_person && told.command.is_none(), "{told:?}");
    assert!(
        told.remedy.starts_with("nothing: from ")
            && told.remedy.contains("a running provisioner tests it"),
        "{told:?}"
    );

    let recorded = actions::list(&mut console, &actions::ActionFilter::default(), 1)
        .await
        .unwrap();
    let before: serde_json::Value = recorded[0].before.as_deref().unwrap().parse().unwrap();
    let after: serde_json::Value = recorded[0].after.as_deref().unwrap().parse().unwrap();
    assert_eq!(
        (&before["state"], &after["state"]),
        (&"closed".into(), &"open".into())
    );
}

/// Two processes count the same events, in two minutes of one hour and in several writes.
#[tokio::test]
async fn figures_are_added_up_over_processes_and_writes() {
    let bench = Bench::new().await;
    let counted = |at, measure, subject: &str, millis: &[u64]| {
        let mut count = Count::default();
        for millis in millis {
            count.note(Some(Duration::from_millis(*millis)), *millis > 1_000);
        }
        Figure {
            at,
            measure,
            subject: subject.to_owned(),
            count,
        }
    };
    let hour: OffsetDateTime = sqlx::query_scalar("SELECT date_trunc('hour', now(), 'UTC')")
        .fetch_one(&mut *bench.connection().await)
        .await
        .unwrap();
    let next = hour + Duration::from_mins(1);
    let mut ingress = bench.as_role("ingress").await;
    let mut provisioner = bench.as_role("provisioner").await;
    let first = Uuid::now_v7();
    let second = Uuid::now_v7();
    let call = Measure::Call;
    let two_minutes = [
        counted(hour, call, "usimsa", &[40, 40]),
        counted(next, call, "usimsa", &[40]),
        counted(hour, call, "airalo", &[5_000]),
    ];
    figures::add(&mut provisioner, first, &two_minutes)
        .await
        .unwrap();
    figures::add(&mut provisioner, first, &two_minutes[..1])
        .await
        .unwrap();
    figures::add(&mut provisioner, second, &two_minutes[..1])
        .await
        .unwrap();
    let answered = [counted(hour, Measure::Answered, "", &[80])];
    figures::add(&mut ingress, second, &answered).await.unwrap();

    let mut console = bench.as_role("console").await;
    let hours = Figures::read(&mut console, FigureSpan::Hour, 24, true)
        .await
        .unwrap();
    let found: Vec<_> = hours
        .by_subject()
        .into_iter()
        .map(|(measure, subject, count)| (measure, subject, count.n, count.failed))
        .collect();
    assert_eq!(
        found,
        [
            (Measure::Answered, String::new(), 1, 0),
            (call, "airalo".to_owned(), 1, 1),
            (call, "usimsa".to_owned(), 7, 0),
        ]
    );
    let sums = hours.sums();
    assert_eq!(sums[&call].histogram.iter().sum::<u64>(), 8);
    assert!(sums[&call].within(1.0).unwrap().over >= 2.5, "{sums:?}");
    let minutes = Figures::read(&mut console, FigureSpan::Minute, 120, false)
        .await
        .unwrap();
    let minutes = minutes.by_time();
    let calls: Vec<_> = minutes
        .iter()
        .map(|(at, counts)| (*at, counts[&call].n))
        .collect();
    assert_eq!(calls, [(hour, 7), (next, 1)]);

    bench
        .sql("UPDATE minutely SET at = at - interval '49 hours'")
        .await;
    figures::erase_old(&mut provisioner).await.unwrap();
    let left = Figures::read(&mut console, FigureSpan::Minute, 10_000, false)
        .await
        .unwrap();
    assert!(left.by_time().is_empty(), "{left:?}");
    let left = Figures::read(&mut console, FigureSpan::Hour, 100, false)
        .await
        .unwrap();
    assert_eq!(left.sums()[&call].n, 8);
}

#[tokio::test]
async fn the_backlog_of_each_provider_and_endpoint_is_read() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    let stored = bench.stored(order(partner, 1)).await;
    bench.due_in(&[placement(&stored)], -5.0).await;
    bench.deliveries(partner, 3, false).await;
    bench
        .sql("UPDATE work SET at = now() - interval '7 s' WHERE kind = 'deliver'")
        .await;
    bench.sql("INSERT INTO options (option_id, provider, provider_option_id, name, environment) VALUES (gen_random_uuid(), 'sandbox', 'a', 'a', 'sandbox')").await;
    let mut console = bench.as_role("console").await;
    let backlogs = store::providers::backlogs(&mut console, &[]).await.unwrap();
    let read = waiting::read(&mut console, &backlogs).await.unwrap();
    let provider = waiting::WaitingQueue::Provider {
        name: PROVIDER.into(),
    };
    let endpoint = waiting::WaitingQueue::Endpoint {
        endpoint_id: partner.uuid(),
        partner_id: partner.uuid(),
    };
    assert_eq!(read.queues[&provider].due, 1);
    assert_eq!(read.queues[&endpoint].due, 3);
    assert!(read.queues[&endpoint].oldest_overdue >= 7.0);

    // What no sweep has passed waits, too, once each, whether somebody sweeps or not.
    bench.stored(order(partner, 2)).await;
    bench.deliveries(partner, 1, false).await;
    bench.sql("DELETE FROM work WHERE kind = 'deliver'").await;
    let read = waiting::read(&mut console, &backlogs).await.unwrap();
    let young = |queue| (read.queues[queue].due, read.queues[queue].young);
    assert_eq!(young(&provider), (1, 1));
    assert_eq!(young(&endpoint), (0, 4));
}

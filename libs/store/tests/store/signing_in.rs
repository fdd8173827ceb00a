//! What protects the sign-in at the console: the names of accounts, the links, the counts of
//! attempts, and the ends of sessions.

use std::time::Duration;

use desk::operator::{
    accounts::{self, NotSet, OperatorNotChanged, OperatorRole},
    sessions::{self, NotSignedIn, Person, SessionPolicy},
};
use pg::actions::{self, ActionFilter};
use secrecy::SecretString;

use crate::{
    bench::Bench,
    console::{ACCEPTED, ISSUER, LIFETIME, PASSWORD, action, browser},
};

#[tokio::test]
async fn no_account_has_a_name_that_looks_like_another_one() {
    let bench = Bench::new().await;
    let mut shell = bench.as_role("operator").await;
    for name in [
        "",
        "a na",
        "ana\u{ad}",
        "ana\u{61c}",
        "ana\u{34f}",
        "ana\u{3164}",
        "ana\u{e0041}",
        "\u{200b}oidc:ana@example.com",
        "\u{202e}ana",
        "\u{430}na",
        "oidc:ana",
        "OIDC:ana",
        "oIdc:ana",
    ] {
        let made = accounts::create(
            &mut shell,
            name,
            OperatorRole::Viewer,
            action(domain::Command::OperatorCreate),
        )
        .await;
        assert!(matches!(made, Err(OperatorNotChanged::BadName)), "{name:?}");
    }
    for name in ["ana", "ana.b_c-d+e@example.com", "oidc", "x"] {
        let made = accounts::create(
            &mut shell,
            name,
            OperatorRole::Viewer,
            action(domain::Command::OperatorCreate),
        )
        .await;
        assert!(made.is_ok(), "{name}");
    }
}

#[tokio::test]
async fn a_link_that_sets_a_password_is_recorded_and_ends_with_its_account() {
    let bench = Bench::new().await;
    bench.ana(OperatorRole::Viewer).await;
    let mut shell = bench.as_role("operator").await;
    let recorded = actions::list(&mut shell, &ActionFilter::default(), 10)
        .await
        .unwrap();
    let set = recorded
        .iter()
        .find(|one| one.command == domain::Command::OperatorSetUp)
        .unwrap();
    assert_eq!(
        (set.operator.as_str(), set.target.as_str()),
        ("ana", "operator ana")
    );
    assert_eq!(
        (set.via.as_deref(), set.source.as_deref()),
        (Some("console"), Some("192.0.2.1"))
    );

    let made = accounts::create(
        &mut shell,
        "eve",
        OperatorRole::Viewer,
        action(domain::Command::OperatorCreate),
    )
    .await;
    let token = made.unwrap().token;
    for disabled in [true, false] {
        accounts::set_disabled(
            &mut shell,
            "eve",
            disabled,
            action(domain::Command::OperatorCreate),
        )
        .await
        .unwrap();
    }
    let mut console = bench.as_role("console").await;
    let set = accounts::set_up(&mut console, &token, PASSWORD.into(), "x").await;
    assert!(matches!(set, Err(NotSet::Invalid)));
}

#[tokio::test]
async fn a_new_session_ends_the_one_that_its_browser_had() {
    let bench = Bench::new().await;
    bench.ana(OperatorRole::Viewer).await;
    let mut console = bench.as_role("console").await;
    let first = bench.sign_in("ana", PASSWORD).await.unwrap();
    let other = bench.sign_in("ana", PASSWORD).await.unwrap();
    let password = SecretString::from(PASSWORD);
    let browser_of = browser(Some(&first.token));
    let second = sessions::sign_in(&mut console, "ana", password, browser_of, LIFETIME).await;
    let second = second.unwrap();
    let person = Person {
        issuer: ISSUER.into(),
        subject: "7".into(),
        name: "oidc:7".into(),
        role: OperatorRole::Viewer,
    };
    let browser_of = browser(Some(&second.token));
    let third = sessions::open(&mut console, &person, browser_of, LIFETIME).await;
    for (token, lives) in [
        (&first.token, false),
        (&second.token, false),
        (&third.unwrap().token, true),
        // In another browser.
        (&other.token, true),
    ] {
        let found = sessions::find(&mut console, token, ACCEPTED).await.unwrap();
        assert_eq!(found.is_some(), lives);
    }
}

#[tokio::test]
async fn a_short_idle_time_ends_no_session_in_use() {
    let bench = Bench::new().await;
    bench.ana(OperatorRole::Viewer).await;
    let mut console = bench.as_role("console").await;
    let opened = bench.sign_in("ana", PASSWORD).await.unwrap();
    let accepted = SessionPolicy {
        idle: Duration::from_secs(50),
        ..ACCEPTED
    };
    let idle = async || -> f64 {
        let sql = "SELECT extract(epoch FROM now() - used_at)::float8 FROM operator_sessions";
        let mut connection = bench.connection().await;
        sqlx::query_scalar(sql)
            .fetch_one(&mut *connection)
            .await
            .unwrap()
    };
    for (ago, is_noted) in [(1, false), (30, true)] {
        bench
            .sql(&format!(
                "UPDATE operator_sessions SET used_at = now() - interval '{ago} seconds'"
            ))
            .await;
        let before = idle().await;
        let found = sessions::find(&mut console, &opened.token, accepted).await;
        assert!(found.unwrap().is_some());
        assert_eq!(idle().await < before, is_noted, "{ago} s ago");
    }
}

#[tokio::test]
async fn guesses_are_limited_for_a_name_whether_or_not_it_exists() {
    let bench = Bench::new().await;
    bench.ana(OperatorRole::Viewer).await;
    for name in ["ana", "nobody"] {
        for _ in 0..sessions::PER_NAME {
            let guess = bench.sign_in(name, "a wrong password").await;
            assert!(matches!(guess, Err(NotSignedIn::Wrong)), "{name}");
        }
        let guess = bench.sign_in(name, PASSWORD).await;
        assert!(matches!(guess, Err(NotSignedIn::TooMany { .. })), "{name}");
    }
    bench
        .sql("UPDATE operator_sign_ins SET until = now() - interval '1 second'")
        .await;
    bench.sign_in("ana", PASSWORD).await.unwrap();
}

#[tokio::test]
async fn an_owner_of_many_addresses_has_one_count() {
    let bench = Bench::new().await;
    let mut console = bench.as_role("console").await;
    for (sources, last) in [
        (["2001:db8:1:2::", "2001:db8:1:2:ffff::"], "2001:db8:1:2::9"),
        (["203.0.113.5", "::ffff:203.0.113.5"], "203.0.113.5"),
    ] {
        for attempt in 0..sessions::PER_SOURCE {
            let source = if attempt % 2 == 0 {
                sources[0]
            } else {
                sources[1]
            };
            sessions::attempt(&mut console, source).await.unwrap();
        }
        let limited = sessions::attempt(&mut console, last).await;
        assert!(
            matches!(limited, Err(NotSignedIn::TooMany { .. })),
            "{last}"
        );
    }
    for other in ["2001:db8:1:3::", "203.0.113.6"] {
        sessions::attempt(&mut console, other).await.unwrap();
    }
}

#[tokio::test]
async fn a_flood_of_names_does_not_free_a_name_that_is_limited() {
    let bench = Bench::new().await;
    bench.ana(OperatorRole::Viewer).await;
    for _ in 0..sessions::PER_NAME {
        let guess = bench.sign_in("ana", "a wrong password").await;
        assert!(matches!(guess, Err(NotSignedIn::Wrong)));
    }
    bench
        .sql(
            "INSERT INTO operator_sign_ins (subject, attempts, until)
             SELECT 'name made up ' || n, 1, now() + interval '1 hour' FROM generate_series(1, 10000) n",
        )
        .await;
    bench.sign_in("nobody", PASSWORD).await.unwrap_err();
    let guess = bench.sign_in("ana", PASSWORD).await;
    assert!(matches!(guess, Err(NotSignedIn::TooMany { .. })));
}

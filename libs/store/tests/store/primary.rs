//! The pulse, the commit fence, and servers that must not be used.

use std::time::Duration;

use store::{
    Database, Error,
    primary::{DurabilityConfig, Unfit},
    providers,
    schema::SchemaError,
};

use crate::bench::{Bench, VAULT, config};

/// A pool of its own, with these demands.
fn opened(bench: &Bench, durability: DurabilityConfig) -> Database {
    let mut config = config(bench.database.url());
    config.durability = durability;
    config.open("store tests").unwrap()
}

/// The breakers that are open for years, with their reasons.
async fn open_for_years(bench: &Bench) -> Vec<(String, String)> {
    let breakers = providers::list(&mut *bench.connection().await).await;
    let open = breakers
        .unwrap()
        .into_iter()
        .filter(|breaker| breaker.open_until.is_some_and(|until| until.year() == 9999));
    open.map(|breaker| (breaker.name, breaker.reason.unwrap_or_default()))
        .collect()
}

#[tokio::test]
async fn a_pulse_that_went_back_opens_the_breakers_of_all_providers() {
    let bench = Bench::new().await;
    let names = ["a", "b"].map(str::to_owned);
    providers::register(&mut *bench.connection().await, &names)
        .await
        .unwrap();
    for _ in 0..3 {
        assert_eq!(bench.store.pulse().await.unwrap().losses, 0);
    }
    assert_eq!(open_for_years(&bench).await, []);

    bench.sql("UPDATE pulses SET number = number - 1").await;
    assert_eq!(bench.store.pulse().await.unwrap().losses, 1);
    let open = open_for_years(&bench).await;
    let [(first, reason), (second, _)] = open.as_slice() else {
        panic!("{open:?}")
    };
    assert_eq!([first, second], ["a", "b"]);
    assert!(
        reason.contains("has pulse 2") && reason.contains("pulse 3 was acknowledged"),
        "{reason}"
    );

    // The operator closes them, and nothing opens them again.
    for name in ["a", "b"] {
        providers::close(&mut *bench.connection().await, name)
            .await
            .unwrap();
    }
    assert_eq!(bench.store.pulse().await.unwrap().losses, 1);
    assert_eq!(open_for_years(&bench).await, []);

    // The row of this process is gone, as in a database that was restored from an old backup.
    bench.sql("DELETE FROM pulses").await;
    assert_eq!(bench.store.pulse().await.unwrap().losses, 2);
    assert_eq!(open_for_years(&bench).await.len(), 2);
}

#[tokio::test]
async fn a_server_without_synchronous_commit_is_refused_unless_that_is_allowed() {
    let bench = Bench::new().await;
    let name: String = sqlx::query_scalar("SELECT current_database()")
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    bench
        .sql(&format!(
            "ALTER DATABASE \"{name}\" SET synchronous_commit = off"
        ))
        .await;
    let refused = opened(&bench, DurabilityConfig::default())
        .pulse()
        .await
        .unwrap_err();
    assert!(
        matches!(refused, Error::Unfit(Unfit::AsynchronousCommit)),
        "{refused}"
    );
    let allowed = opened(
        &bench,
        DurabilityConfig {
            allow_asynchronous_commit: true,
            ..DurabilityConfig::default()
        },
    );
    assert!(!allowed.pulse().await.unwrap().is_replicated);
    // Standbys are demanded all the same, and the start ends instead of waiting for one.
    let demanding = opened(
        &bench,
        DurabilityConfig {
            allow_asynchronous_commit: true,
            require_synchronous: true,
        },
    );
    let wait = store::schema::wait(&demanding, &VAULT);
    let refused = tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .unwrap()
        .unwrap_err();
    assert!(
        matches!(refused, SchemaError::Unfit(Unfit::NotReplicated { .. })),
        "{refused}"
    );
}

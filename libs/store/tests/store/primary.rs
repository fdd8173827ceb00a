//! The pulse, the commit fence, and servers that must not be used.

use std::{
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use pg::{
    Database, Error,
    primary::{DurabilityConfig, Unfit},
    schema::{self, SchemaError},
};
use sqlx::{Connection, PgConnection};
use store::providers;
use testkit::postgres::PostgresServer;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use url::Url;

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

/// The pulse that finds a loss writes nothing, because a number that hides the loss would stay if
/// this process heard no response, or could not stop the purchases.
#[tokio::test]
async fn a_loss_that_stopped_nothing_yet_is_found_by_the_next_pulse() {
    let bench = Bench::new().await;
    providers::register(&mut *bench.connection().await, &["a".to_owned()])
        .await
        .unwrap();
    for _ in 0..3 {
        bench.store.pulse().await.unwrap();
    }
    bench
        .sql(
            "UPDATE pulses SET number = number - 1;
             ALTER FUNCTION commits_lost(uuid, bigint, bigint) RENAME TO commits_lost_hidden",
        )
        .await;
    bench.store.pulse().await.unwrap_err();
    bench
        .sql("ALTER FUNCTION commits_lost_hidden(uuid, bigint, bigint) RENAME TO commits_lost")
        .await;
    assert_eq!(bench.store.pulse().await.unwrap().losses, 1);
    assert_eq!(open_for_years(&bench).await.len(), 1);
    // After that the pulse goes on.
    assert_eq!(bench.store.pulse().await.unwrap().losses, 1);
    let number = sqlx::query_scalar::<_, i64>("SELECT number FROM pulses");
    assert_eq!(number.fetch_one(&bench.pool).await.unwrap(), 6);
}

#[tokio::test]
async fn a_server_without_synchronous_commit_is_refused_and_one_without_standbys_if_that_is_demanded()
 {
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
    bench
        .sql(&format!(
            "ALTER DATABASE \"{name}\" SET synchronous_commit = local"
        ))
        .await;
    let allowed = opened(&bench, DurabilityConfig::default());
    assert!(!allowed.pulse().await.unwrap().is_replicated);
    // If standbys are demanded, the start ends instead of waiting for one.
    let demanding = opened(
        &bench,
        DurabilityConfig {
            require_synchronous: true,
        },
    );
    let wait = accounts::start::wait(&demanding, &VAULT);
    let refused = tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .unwrap()
        .unwrap_err();
    assert!(
        matches!(refused, SchemaError::Unfit(Unfit::NotReplicated { .. })),
        "{refused}"
    );
}

/// A route to the primary, as a proxy or a virtual address is one. When it is switched, new
/// connections go to the other server, and old ones stay where they are.
struct Route {
    address: SocketAddr,
    server: watch::Sender<String>,
}

impl Route {
    async fn to(server: &PostgresServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let route = Self {
            address: listener.local_addr().unwrap(),
            server: watch::Sender::new(address_of(server)),
        };
        let current = route.server.subscribe();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server = current.borrow().clone();
                tokio::spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(server).await {
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        route
    }

    fn switch_to(&self, server: &PostgresServer) {
        self.server.send_replace(address_of(server));
    }
}

fn address_of(server: &PostgresServer) -> String {
    let url: Url = server.url().parse().unwrap();
    format!("{}:{}", url.host_str().unwrap(), url.port().unwrap())
}

/// The pool of a process that reaches the server by the route.
fn through(route: &Route, server: &PostgresServer) -> Database {
    let mut url: Url = server.url().parse().unwrap();
    url.set_port(Some(route.address.port())).unwrap();
    config(url.as_str()).open("store tests").unwrap()
}

/// A migrated primary with an asynchronous standby and one provider, and a pool that reaches the
/// primary by a route.
struct Pair {
    primary: PostgresServer,
    standby: PostgresServer,
    route: Route,
    database: Database,
    /// Holds the servers' data.
    _folder: tempfile::TempDir,
}

impl Pair {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let primary = PostgresServer::start(folder.path()).await.unwrap();
        let mut connection = PgConnection::connect(primary.url()).await.unwrap();
        schema::migrate(&mut connection).await.unwrap();
        providers::register(&mut connection, &["a".to_owned()])
            .await
            .unwrap();
        let standby = primary.start_standby(folder.path()).await.unwrap();
        let route = Route::to(&primary).await;
        let database = through(&route, &primary);
        Self {
            primary,
            standby,
            route,
            database,
            _folder: folder,
        }
    }

    /// The standby takes the place of the primary.
    async fn fail_over(&self) {
        self.standby.promote().await.unwrap();
        self.route.switch_to(&self.standby);
    }

    /// Whether nothing may be bought.
    async fn is_fenced(&self) -> bool {
        let mut connection = PgConnection::connect(self.standby.url()).await.unwrap();
        let breakers = providers::list(&mut connection).await.unwrap();
        breakers[0].open_until.is_some()
    }

    /// Writes something that is not there yet.
    async fn write(&self, provider: &str) -> Result<(), Error> {
        let names = [provider.to_owned()];
        self.database
            .run(async |connection| providers::register(connection, &names).await)
            .await
    }
}

#[tokio::test]
async fn after_the_loss_of_the_primary_a_synchronous_standby_goes_on_and_an_asynchronous_one_is_fenced()
 {
    for is_synchronous in [true, false] {
        let mut pair = Pair::start().await;
        if is_synchronous {
            pair.primary.require_standby().await.unwrap();
        }
        for _ in 0..2 {
            let pulse = pair.database.pulse().await.unwrap();
            assert_eq!((pulse.is_replicated, pulse.losses), (is_synchronous, 0));
        }
        pair.primary.stop_immediately().await.unwrap();
        pair.fail_over().await;

        // Whatever comes first, the fence comes before it.
        testkit::wait::soon("a write on the new primary", async || {
            Ok(pair.write("b").await.is_ok().then_some(()))
        })
        .await;
        assert_eq!(pair.is_fenced().await, !is_synchronous);
        let pulse = pair.database.pulse().await.unwrap();
        assert_eq!(pulse.losses, u64::from(!is_synchronous));
        assert!(!pulse.is_replicated);
    }
}

#[tokio::test]
async fn a_process_that_slept_since_the_standby_was_missing_raises_no_alarm() {
    let mut pair = Pair::start().await;
    assert!(!pair.database.pulse().await.unwrap().is_replicated);
    pair.primary.require_standby().await.unwrap();
    // Another process sees that commits wait for the standby now.
    let other = through(&pair.route, &pair.primary);
    assert!(other.pulse().await.unwrap().is_replicated);
    pair.primary.stop_immediately().await.unwrap();
    pair.fail_over().await;
    testkit::wait::soon("a write on the new primary", async || {
        Ok(pair.write("b").await.is_ok().then_some(()))
    })
    .await;
    assert!(!pair.is_fenced().await);
}

#[tokio::test]
async fn a_process_that_is_not_the_first_on_a_new_primary_raises_no_alarm() {
    let mut pair = Pair::start().await;
    let other = through(&pair.route, &pair.primary);
    assert!(!pair.database.pulse().await.unwrap().is_replicated);
    pair.primary.require_standby().await.unwrap();
    assert!(other.pulse().await.unwrap().is_replicated);
    pair.primary.stop_immediately().await.unwrap();
    pair.fail_over().await;
    // The other process goes on and replaces the only pulse that waited for the standby.
    testkit::wait::soon("a pulse on the new primary", async || {
        Ok(other.pulse().await.is_ok().then_some(()))
    })
    .await;
    testkit::wait::soon("a write on the new primary", async || {
        Ok(pair.write("b").await.is_ok().then_some(()))
    })
    .await;
    assert!(!pair.is_fenced().await);
}

#[tokio::test]
async fn pulses_of_a_cluster_that_was_dumped_hide_no_loss() {
    let mut pair = Pair::start().await;
    // The dump was loaded into a new cluster, whose timelines begin at 1 again.
    let mut connection = PgConnection::connect(pair.primary.url()).await.unwrap();
    let loaded = "INSERT INTO pulses (instance, stage, number, timeline, replicated, at)
                  SELECT gen_random_uuid(), 'ingress', 7, timeline, true, now() FROM unnest('{2,5}'::bigint[]) AS timeline";
    sqlx::raw_sql(loaded)
        .execute(&mut connection)
        .await
        .unwrap();
    for _ in 0..2 {
        assert!(!pair.database.pulse().await.unwrap().is_replicated);
    }
    pair.primary.stop_immediately().await.unwrap();
    pair.fail_over().await;
    testkit::wait::soon("a write on the new primary", async || {
        Ok(pair.write("b").await.is_ok().then_some(()))
    })
    .await;
    assert!(pair.is_fenced().await);
}

#[tokio::test]
async fn losses_of_a_cluster_that_was_dumped_hide_none() {
    let mut pair = Pair::start().await;
    let mut connection = PgConnection::connect(pair.primary.url()).await.unwrap();
    // The dump was loaded into a new cluster, whose timelines begin at 1 again. Before that, an
    // operator has dealt with what the dump lacks.
    let loaded = "INSERT INTO commit_losses (timeline, told)
                  SELECT timeline, 'of the cluster that was dumped' FROM unnest('{2,5}'::bigint[]) AS timeline;
                  INSERT INTO commit_losses (timeline, told) VALUES (1, 'esimctl recover')";
    sqlx::raw_sql(loaded)
        .execute(&mut connection)
        .await
        .unwrap();
    assert!(!pair.database.pulse().await.unwrap().is_replicated);
    let mut connection = PgConnection::connect(pair.standby.url()).await.unwrap();
    testkit::wait::soon("the standby to have what a process did", async || {
        let pulses = "SELECT EXISTS (SELECT FROM pulses)";
        let pulsed: bool = sqlx::query_scalar(pulses)
            .fetch_one(&mut connection)
            .await?;
        Ok(pulsed.then_some(()))
    })
    .await;
    pair.primary.stop_immediately().await.unwrap();
    pair.fail_over().await;
    testkit::wait::soon("a write on the new primary", async || {
        Ok(pair.write("b").await.is_ok().then_some(()))
    })
    .await;
    assert!(pair.is_fenced().await);
    // What is this cluster's is remembered, also by a process that starts later.
    through(&pair.route, &pair.primary).pulse().await.unwrap();
    let known = "SELECT timeline, split_part(told, ':', 1) FROM commit_losses ORDER BY timeline";
    let known: Vec<(i64, String)> = sqlx::query_as(known)
        .fetch_all(&mut connection)
        .await
        .unwrap();
    let expected = [(1, "esimctl recover"), (2, "commits may be lost")];
    assert_eq!(known, expected.map(|(at, told)| (at, told.to_owned())));
}

#[tokio::test]
async fn a_primary_that_froze_and_was_replaced_is_not_believed() {
    let pair = Pair::start().await;
    pair.database.pulse().await.unwrap();
    let frozen_at = Instant::now();
    pair.primary.freeze().unwrap();
    // This statement waits at the frozen primary, which will commit it.
    let database = pair.database.clone();
    let waiting = tokio::spawn(async move {
        let names = ["lost".to_owned()];
        database
            .run(async |connection| providers::register(connection, &names).await)
            .await
    });
    pair.fail_over().await;
    // Without a silence of two seconds, nothing is suspicious.
    tokio::time::sleep_until((frozen_at + Duration::from_millis(2500)).into()).await;
    pair.primary.thaw().unwrap();

    let answered: Result<(), Error> = waiting.await.unwrap();
    let error = answered.unwrap_err();
    assert!(matches!(error, Error::Replaced), "{error}");
    // The new primary is used from now on, although the old one still accepts commits.
    pair.write("kept").await.unwrap();
    let mut connection = PgConnection::connect(pair.standby.url()).await.unwrap();
    let names: Vec<String> = providers::list(&mut connection)
        .await
        .unwrap()
        .into_iter()
        .map(|breaker| breaker.name)
        .collect();
    assert_eq!(names, ["a", "kept"]);
    assert!(pair.is_fenced().await);

    // A route that leads back to the old primary is refused.
    pair.route.switch_to(&pair.primary);
    let mut refused = None;
    let held = pair.database.run(async |_| {
        // The only open connection is in use, so the pool tries for three seconds to open another.
        refused = Some(pair.write("lost").await);
        Ok::<_, Error>(())
    });
    // After this silence, the connection in use is not believed either.
    held.await.unwrap_err();
    let refused = refused.unwrap();
    let error = refused.unwrap_err();
    assert!(
        matches!(error, Error::Unfit(Unfit::Replaced { .. })),
        "{error}"
    );
}

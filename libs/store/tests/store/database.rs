//! The pool of connections: every use of the database has a time limit, and connections that stay
//! silent are replaced.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pg::{Database, Error};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, watch};
use url::Url;

use crate::bench::{Bench, config};

/// Relays to `PostgreSQL`. Once silenced, existing connections stay open and carry nothing, as
/// behind a firewall that dropped their state; new ones work.
struct Relay {
    address: SocketAddr,
    generation: watch::Sender<u32>,
}

impl Relay {
    async fn start(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = Self {
            address: listener.local_addr().unwrap(),
            generation: watch::Sender::new(0),
        };
        let generations = relay.generation.subscribe();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut generation = generations.clone();
                let server = server.clone();
                generation.mark_unchanged();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = generation.changed() => {
                            // Held open until the test is over.
                            let _ = generation.wait_for(|_| false).await;
                        }
                    }
                });
            }
        });
        relay
    }

    fn silence(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }
}

/// Connects through the relay, with at most `connections` connections.
async fn through_a_relay(bench: &Bench, connections: u32) -> (Relay, Database) {
    let mut url: Url = bench.database.url().parse().unwrap();
    let server = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
    let relay = Relay::start(server).await;
    url.set_ip_host(relay.address.ip()).unwrap();
    url.set_port(Some(relay.address.port())).unwrap();
    let mut config = config(url.as_str());
    config.database_connections = connections;
    config.database_timeout = Duration::from_millis(500);
    (relay, config.open("store tests").unwrap())
}

async fn sleep(database: &Database, seconds: f64) -> Result<(), Error> {
    database
        .run(async |connection| {
            let sleep = sqlx::query("SELECT pg_sleep($1)").bind(seconds);
            Ok(sleep.execute(connection).await.map(drop)?)
        })
        .await
}

#[tokio::test]
async fn a_statement_that_takes_too_long_is_ended_by_the_server() {
    let bench = Bench::empty().await;
    let (_relay, database) = through_a_relay(&bench, 1).await;
    let error = sleep(&database, 60.0).await.unwrap_err();
    let Error::Database { cause: error, .. } = error else {
        panic!("{error}")
    };
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code);
    assert_eq!(code.as_deref(), Some("57014"), "{error}");
    sleep(&database, 0.0).await.unwrap();
}

#[tokio::test]
async fn one_wait_is_enough_for_all_connections_that_fell_silent() {
    let bench = Bench::empty().await;
    let (relay, database) = through_a_relay(&bench, 4).await;
    let all_open = Barrier::new(4);
    let holds = async || {
        let waits = database.run(async |_| {
            all_open.wait().await;
            Ok::<(), Error>(())
        });
        waits.await
    };
    for opened in join_all((0..4).map(|_| holds())).await {
        opened.unwrap();
    }
    assert_eq!(database.connections(), (0, 4));
    relay.silence();
    let began = Instant::now();
    let error = sleep(&database, 0.0).await.unwrap_err();
    assert!(matches!(error, Error::Silent(_)), "{error}");
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(2500), "{waited:?}");
    for _ in 0..4 {
        sleep(&database, 0.0).await.unwrap();
    }
}

#[tokio::test]
async fn a_silent_connection_whose_user_went_away_does_not_keep_its_place() {
    let bench = Bench::empty().await;
    let (relay, database) = through_a_relay(&bench, 1).await;
    sleep(&database, 0.0).await.unwrap();
    relay.silence();
    let user = tokio::time::timeout(Duration::from_millis(100), sleep(&database, 0.0));
    assert!(user.await.is_err(), "nobody answers");
    // Waits for the only connection.
    sleep(&database, 0.0).await.unwrap();
}

//! The services' pool: nothing waits for the database without a deadline.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use sqlx::{
    PgConnection, PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::{Error, nodelay};

/// The longest wait for a connection of the pool.
const ACQUIRE: Duration = Duration::from_secs(3);
/// How long after the server's own limit a connection without a response counts as dead.
const SILENCE: Duration = Duration::from_secs(2);

/// A pool of connections with a deadline for each use. Clones share the pool.
#[derive(Clone, Debug)]
pub struct Database {
    pool: PgPool,
    port: u16,
    /// The server ends a statement after this time.
    timeout: Duration,
    silent: Silent,
}

/// The time when a connection last stopped responding. The cause (a failover, a firewall) probably hit all connections
/// that were open then, so the pool closes them at their next use without another wait.
#[derive(Clone, Debug, Default)]
struct Silent(Arc<Mutex<Option<Instant>>>);

impl Silent {
    fn now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether a connection of this age was open at that time.
    fn met(&self, age: Duration) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() <= age)
    }
}

impl Database {
    /// Connects at the first use: a service starts without its database.
    pub(crate) fn open(session: PgConnectOptions, connections: u32, timeout: Duration) -> Self {
        let silent = Silent::default();
        let known = silent.clone();
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(ACQUIRE)
            // A dead connection is noticed at its use; a ping before each use would cost a round trip.
            .test_before_acquire(false)
            .before_acquire(move |_, about| {
                let usable = !known.met(about.age);
                Box::pin(async move { Ok(usable) })
            });
        let port = session.get_port();
        let pool = pool.after_connect(move |_, _| {
            nodelay::disable_nagle(port);
            Box::pin(async { Ok(()) })
        });
        Self { pool: pool.connect_lazy_with(session), port, timeout, silent }
    }

    /// Runs `work` on a connection. Without a response in time it is closed, and the result unknown.
    pub async fn run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, E> {
        let deadline = self.timeout + SILENCE;
        let mut borrowed = Borrowed { connection: None, deadline, silent: self.silent.clone() };
        let acquired = self.acquire().await.map_err(|error| self.no_connection(error))?;
        let connection = borrowed.connection.insert(acquired);
        if let Ok(done) = tokio::time::timeout(deadline, work(connection)).await {
            return done;
        }
        self.silent.now();
        drop(borrowed.connection.take().map(PoolConnection::detach));
        Err(Error::Silent(deadline).into())
    }

    async fn acquire(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        let opens = self.pool.num_idle() == 0 && self.pool.size() < self.pool.options().get_max_connections();
        if !opens {
            return self.pool.acquire().await;
        }
        // Boxed, because the future of an opening is large and rarely needed.
        Box::pin(nodelay::opened(self.port, self.pool.acquire())).await
    }

    fn no_connection(&self, error: sqlx::Error) -> Error {
        if !matches!(error, sqlx::Error::PoolTimedOut) {
            return error.into();
        }
        let session = self.pool.connect_options();
        let address = match session.get_socket() {
            Some(folder) => folder.display().to_string(),
            None => format!("{}:{}", session.get_host(), session.get_port()),
        };
        Error::NoConnection { address, waited: ACQUIRE, most: self.pool.options().get_max_connections() }
    }

    /// The numbers of open and of idle connections.
    pub fn connections(&self) -> (u32, usize) {
        (self.pool.size(), self.pool.num_idle())
    }
}

/// A connection that returns to the pool when it is dropped: within a deadline, even during a statement.
struct Borrowed {
    connection: Option<PoolConnection<Postgres>>,
    deadline: Duration,
    silent: Silent,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        let returned = tokio::time::timeout(self.deadline, connection.return_to_pool());
        let silent = self.silent.clone();
        tokio::spawn(async move {
            if returned.await.is_err() {
                silent.now();
            }
        });
    }
}

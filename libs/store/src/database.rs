//! Access of a service to the database: through a pool, always with a deadline.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use sqlx::{
    PgConnection, PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::Error;

/// Time limit for getting a connection.
const ACQUIRE: Duration = Duration::from_secs(3);
/// Wait beyond the server's own statement limit. After that, the connection is dead.
const SILENCE: Duration = Duration::from_secs(2);

/// A pool of connections with a time limit per use. Clones share the pool.
#[derive(Clone, Debug)]
pub struct Database {
    pool: PgPool,
    /// Time limit after which the server cancels a statement.
    timeout: Duration,
    silent: Silent,
}

/// When a connection last fell silent. A failover or a firewall usually affects all connections that were
/// open at that time, so the pool closes them instead of waiting for each.
#[derive(Clone, Debug, Default)]
struct Silent(Arc<Mutex<Option<Instant>>>);

impl Silent {
    fn now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether a connection of this age may be silent too.
    fn met(&self, age: Duration) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() <= age)
    }
}

impl Database {
    /// Connects when first used: a service starts without its database.
    pub(crate) fn open(session: PgConnectOptions, connections: u32, timeout: Duration) -> Self {
        let silent = Silent::default();
        let known = silent.clone();
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(ACQUIRE)
            // A dead connection shows when it is used; a ping before each use costs a round trip.
            .test_before_acquire(false)
            .before_acquire(move |_, about| {
                let usable = !known.met(about.age);
                Box::pin(async move { Ok(usable) })
            });
        Self {
            pool: pool.connect_lazy_with(session),
            timeout,
            silent,
        }
    }

    /// Runs `work` on a connection. If no response arrives in time, the outcome is unknown and the connection
    /// is closed.
    pub async fn run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, E> {
        let deadline = self.timeout + SILENCE;
        let mut borrowed = Borrowed {
            connection: None,
            deadline,
            silent: self.silent.clone(),
        };
        let acquired = self
            .pool
            .acquire()
            .await
            .map_err(|error| self.no_connection(error))?;
        let connection = borrowed.connection.insert(acquired);
        if let Ok(done) = tokio::time::timeout(deadline, work(connection)).await {
            return done;
        }
        self.silent.now();
        drop(borrowed.connection.take().map(PoolConnection::detach));
        Err(Error::Silent(deadline).into())
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
        Error::NoConnection {
            address,
            waited: ACQUIRE,
            most: self.pool.options().get_max_connections(),
        }
    }

    /// The number of open connections, and of idle ones among them.
    pub fn connections(&self) -> (u32, usize) {
        (self.pool.size(), self.pool.num_idle())
    }
}

/// A connection that returns to the pool when dropped, even in the middle of a statement. The pool then waits
/// for that statement to finish; without a deadline it would wait forever on a dead server.
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

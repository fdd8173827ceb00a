//! How a service uses the database: through a pool, and never without a deadline.

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

/// How long a connection may take to be had.
const ACQUIRE: Duration = Duration::from_secs(3);
/// What an answer may take beyond the server's own limit: longer, and there is nobody who answers.
const SILENCE: Duration = Duration::from_secs(2);

/// A pool of connections, and how long one may be used for one thing. Clones are the same pool.
#[derive(Clone, Debug)]
pub struct Database {
    pool: PgPool,
    /// After which the server ends a statement.
    timeout: Duration,
    silent: Silent,
}

/// When a connection last fell silent. Whatever made it so, a failover or a firewall, is likely to have
/// met those that were open with it: they are closed, instead of being waited for one by one.
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
            // A connection that died is noticed when it is used; a ping before each use costs a round trip.
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

    /// Does something with a connection. Where no answer comes in time, nobody knows what became of it,
    /// and the connection is closed.
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

    /// How many connections are open, and how many of those are idle.
    pub fn connections(&self) -> (u32, usize) {
        (self.pool.size(), self.pool.num_idle())
    }
}

/// A connection that goes back to the pool when it is dropped, also in the midst of a statement. The pool
/// waits until it is done with that; without a deadline, where nobody answers any more, for ever.
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

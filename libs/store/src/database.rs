//! The services' connections to PostgreSQL. Nothing waits for the database without a deadline.
//!
//! The pool is our own because of what a general one costs per use: sqlx's pings each connection when it is
//! returned, which doubles the round trips of a service that runs one statement at a time, and it hands
//! them out in turn, so that every one of them keeps all plans cold. Here the connection that was returned last is
//! used next. At low load a stage therefore works on one or two warm connections, and opens further ones only when
//! its loops overlap.
//!
//! Guarantees: at most `DATABASE_CONNECTIONS` are open. A connection is reused only if its last use ended with a clean
//! result. After an error, an abandoned use or a forgotten transaction it must first answer a ping; after a silence or a
//! failed ping it is closed, and so is every other connection that was open at that time.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use sqlx::{Connection, PgConnection, postgres::PgConnectOptions};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{Error, Result, nodelay};

/// The longest wait for a connection: for one that is in use, or for a server that is starting.
const ACQUIRE: Duration = Duration::from_secs(3);
/// The first pause before another attempt to connect to a server that does not accept connections yet. It doubles with
/// each attempt.
const CONNECT_AGAIN: Duration = Duration::from_millis(50);
/// How long after the server's own limit a connection without a response counts as dead.
const SILENCE: Duration = Duration::from_secs(2);
/// An older connection is closed after its use, so that the memory of its backend is freed, and so that a service
/// follows a name that points to another server now.
const LIFETIME: Duration = Duration::from_mins(30);

/// A pool of connections with a deadline for each use. Clones share the pool.
#[derive(Clone, Debug)]
pub struct Database {
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    session: PgConnectOptions,
    /// A use without a response within this time is given up.
    deadline: Duration,
    most: usize,
    /// One permit for each connection in use. A use takes an idle connection if there is one, so this also limits
    /// the number of open ones.
    permits: Arc<Semaphore>,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// The one that was returned last is at the end, and is used next.
    connections: Vec<Open>,
    /// When a connection was last found dead. The cause (a failover, a restart, a firewall) probably hit all connections
    /// that were open then, so these are closed without another wait.
    lost_at: Option<Instant>,
}

#[derive(Debug)]
struct Open {
    connection: PgConnection,
    since: Instant,
}

impl Open {
    /// Whether nothing is left to be sent, such as the rollback of a transaction that was dropped.
    fn is_clean(&self) -> bool {
        !self.connection.should_flush() && !self.connection.is_in_transaction()
    }
}

impl Database {
    /// Connects at the first use: a service starts without its database. The server ends a statement after
    /// `statement_timeout`.
    pub(crate) fn open(session: PgConnectOptions, connections: u32, statement_timeout: Duration) -> Self {
        let most = usize::try_from(connections).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self {
            pool: Arc::new(Pool {
                session,
                deadline: statement_timeout + SILENCE,
                most,
                permits: Arc::new(Semaphore::new(most)),
                idle: Mutex::default(),
            }),
        }
    }

    /// Runs `work` on a connection. Without a response in time the connection is closed, and the result unknown.
    pub async fn run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut used = self.pool.acquire().await?;
        let Some(open) = &mut used.open else {
            return Err(self.pool.no_connection().into());
        };
        if let Ok(done) = timeout(self.pool.deadline, work(&mut open.connection)).await {
            used.succeeded = done.is_ok();
            done
        } else {
            self.pool.lost();
            used.open = None;
            Err(Error::Silent(self.pool.deadline).into())
        }
    }

    /// The number of connections in use, and of those that are free or may still be opened.
    pub fn connections(&self) -> (usize, usize) {
        let free = self.pool.permits.available_permits();
        (self.pool.most.saturating_sub(free), free)
    }
}

impl Pool {
    async fn acquire(self: &Arc<Self>) -> Result<Used> {
        let began = Instant::now();
        let waiting = timeout(ACQUIRE, Arc::clone(&self.permits).acquire_owned());
        let Ok(Ok(permit)) = waiting.await else {
            return Err(self.no_connection());
        };
        let open = match self.take_idle() {
            Some(open) => open,
            None => self.connect(ACQUIRE.saturating_sub(began.elapsed())).await?,
        };
        Ok(Used { open: Some(open), succeeded: false, pool: Arc::clone(self), permit: Some(permit) })
    }

    fn take_idle(&self) -> Option<Open> {
        let mut idle = self.idle();
        let lost_at = idle.lost_at;
        while let Some(open) = idle.connections.pop() {
            if lost_at.is_none_or(|lost_at| open.since > lost_at) {
                return Some(open);
            }
        }
        None
    }

    /// Opens a connection, with retries while the server is starting or has no room.
    async fn connect(&self, patience: Duration) -> Result<Open> {
        let mut last = None;
        let connecting = async {
            let mut pause = CONNECT_AGAIN;
            loop {
                // Boxed, because it is large and rare, and every use of the pool would carry it.
                let opening = Box::pin(PgConnection::connect_with(&self.session));
                match nodelay::opened(self.session.get_port(), opening).await {
                    Ok(connection) => return Ok(Open { connection, since: Instant::now() }),
                    Err(error) if is_transient(&error) => last = Some(error),
                    Err(error) => return Err(error.into()),
                }
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        };
        match timeout(patience, connecting).await {
            Ok(result) => result,
            Err(_) => Err(last.map_or_else(|| self.no_connection(), Error::from)),
        }
    }

    /// Takes a connection back after a clean use.
    fn put_back(&self, open: Open) {
        if open.since.elapsed() > LIFETIME {
            // Tells the server, whose log would otherwise mention a client that vanished.
            tokio::spawn(timeout(self.deadline, open.connection.close()));
        } else {
            self.idle().connections.push(open);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks all connections that are open now as lost, so that the pool closes them instead of using them again.
    fn lost(&self) {
        self.idle().lost_at = Some(Instant::now());
    }

    fn no_connection(&self) -> Error {
        let address = match self.session.get_socket() {
            Some(folder) => folder.display().to_string(),
            None => format!("{}:{}", self.session.get_host(), self.session.get_port()),
        };
        Error::NoConnection { address, waited: ACQUIRE, most: self.most }
    }
}

/// Whether the server may accept a connection soon: it is down, it is starting (57P03), or it has no room (53300).
fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        sqlx::Error::Database(error) => matches!(error.code().as_deref(), Some("57P03" | "53300")),
        _ => false,
    }
}

/// A connection in use. When it is dropped, even during a statement, it returns to the pool.
struct Used {
    open: Option<Open>,
    /// The work returned a result, and it was no error.
    succeeded: bool,
    pool: Arc<Pool>,
    /// Returned after the connection, so that the next user finds it.
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Used {
    fn drop(&mut self) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        if self.succeeded && open.is_clean() {
            self.pool.put_back(open);
            return;
        }
        let pool = Arc::clone(&self.pool);
        let permit = self.permit.take();
        tokio::spawn(async move {
            // Reads what is left of an abandoned statement, and sends the rollback of an abandoned transaction.
            match timeout(pool.deadline, open.connection.ping()).await {
                Ok(Ok(())) => pool.put_back(open),
                Ok(Err(_)) | Err(_) => pool.lost(),
            }
            drop(permit);
        });
    }
}

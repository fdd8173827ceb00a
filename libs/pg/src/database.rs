//! The pool of connections to PostgreSQL that each service has. Nothing waits for the database
//! without a deadline.
//!
//! The pool is our own because of what a general one costs. The pool of sqlx pings each connection
//! when it is returned, which doubles the round trips of a service that runs one statement at a
//! time. It also hands out the connections in turn, so that all of them are used rarely and none
//! keeps its plans warm. Here, the connection that was returned last is used next. So at low load a
//! stage works on one or two warm connections, and opens more of them only when several of its
//! tasks need one at the same time.
//!
//! Guarantees:
//!
//! - At most `DATABASE_CONNECTIONS` connections are in use. No more are open, with two exceptions:
//!   one that is being closed may overlap its successor for a moment, and after a silence one more
//!   is opened to find out whether the server is still the primary.
//! - A connection is reused without a check only if its last use ended with a clean result. After
//!   an error, an abandoned use or a forgotten transaction, it must first answer a ping.
//! - After a silence or a failed ping, the connection is closed, and so is every other connection
//!   that was open at that time, because the cause has probably hit all of them.
//! - A connection leads to the current primary, and a server that commits less safely than the
//!   operator demands is not used ([`crate::primary`]).
//!
//! [`Database::run`] is the only way to use a connection of the pool. If it ends because the server
//! was silent or was replaced, or because the connection broke, whether the statement took effect
//! is unknown, as after a crash.

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

use crate::{
    Error, Result, nodelay,
    primary::{DurabilityConfig, Primary, Pulse},
};

/// The longest wait for a connection, whether all are in use or the server is starting.
const ACQUIRE: Duration = Duration::from_secs(3);
/// The first pause before another attempt to connect to a server that does not accept connections
/// yet. It doubles with each attempt.
const CONNECT_AGAIN: Duration = Duration::from_millis(50);
/// How long after the limit of the server itself (`statement_timeout`) a connection without a
/// response counts as dead.
const SILENCE: Duration = Duration::from_secs(2);
/// A connection that is older than this is closed after its use. That frees the memory of its
/// backend, and makes a service follow a name that has come to point to another server.
const LIFETIME: Duration = Duration::from_mins(30);

/// A pool of connections with a deadline for each use. Clones share the pool.
#[derive(Clone, Debug)]
pub struct Database {
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    options: PgConnectOptions,
    /// A use that has no response within this time is given up.
    deadline: Duration,
    /// The maximum number of open connections (`DATABASE_CONNECTIONS`).
    max_open: usize,
    /// One permit for each connection in use. A use takes an idle connection if there is one, so
    /// this also limits the number of open ones.
    permits: Arc<Semaphore>,
    idle: Mutex<Idle>,
    primary: Primary,
    /// Held while a new connection is opened to find out whether the server is still the primary,
    /// so that the responses after a silence share one such connection.
    verifying: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Idle {
    /// The connections that nobody uses. The one that was returned last is at the end, and is used
    /// next.
    connections: Vec<Open>,
    /// When a connection was last found dead. The cause (a failover, a restart, a firewall)
    /// probably hit all connections that were open then, so these are closed without another wait.
    lost_at: Option<Instant>,
}

#[derive(Debug)]
struct Open {
    connection: PgConnection,
    opened_at: Instant,
    /// The timeline of the server, by which a server is recognised that was replaced.
    timeline: u32,
}

impl Open {
    /// Whether nothing is left to be sent, such as the rollback of a transaction that was dropped.
    fn is_clean(&self) -> bool {
        !self.connection.should_flush() && !self.connection.is_in_transaction()
    }
}

impl Database {
    /// Creates the pool of a stage without connecting, so that a service can start without its
    /// database. The server ends a statement after `statement_timeout`.
    pub(crate) fn open(
        stage: &str,
        options: PgConnectOptions,
        connections: u32,
        statement_timeout: Duration,
        durability: DurabilityConfig,
    ) -> Self {
        let max_open = usize::try_from(connections)
            .unwrap_or(usize::MAX)
            .min(Semaphore::MAX_PERMITS);
        Self {
            pool: Arc::new(Pool {
                options,
                deadline: statement_timeout + SILENCE,
                max_open,
                permits: Arc::new(Semaphore::new(max_open)),
                idle: Mutex::default(),
                primary: Primary::new(stage, durability),
                verifying: tokio::sync::Mutex::default(),
            }),
        }
    }

    /// Refuses as [`Self::run`] does while the last pulse found the server and this process unfit
    /// to work together.
    pub fn check(&self) -> Result<()> {
        self.pool.primary.check()
    }

    /// Runs `work` on a connection. If there is no response in time, the connection is closed, and
    /// whether the work took effect is unknown. That is unknown, too, if the server responded but
    /// turns out to have been replaced meanwhile.
    pub async fn run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, E> {
        self.check()?;
        self.use_connection(work).await
    }

    /// Commits the next pulse of this process; the caller does so once a second. It also runs while
    /// the server is not fit for other work, because the pulse finds out when it is fit again.
    pub async fn pulse(&self) -> Result<Pulse> {
        let primary = &self.pool.primary;
        let sent = self.use_connection(async |connection| primary.pulse(connection).await);
        Ok(primary.acknowledge(sent.await?))
    }

    /// Notes whether NATS is up for this process, and what it refuses to it, which its next pulses
    /// tell.
    pub fn note_nats(&self, is_up: bool, refused: Option<String>) {
        self.pool.primary.note_nats(is_up, refused);
    }

    /// Notes that this process ends in an orderly way, after its last pulse.
    pub async fn stopped(&self) -> Result<()> {
        let primary = &self.pool.primary;
        self.use_connection(async |connection| primary.stopped(connection).await)
            .await
    }

    /// Opens a connection to find out where new connections lead. A primary that was replaced while
    /// it went on responding is noticed by nothing else.
    pub async fn look_again(&self) -> Result<()> {
        self.pool.look_again().await
    }

    async fn use_connection<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut used = self.pool.acquire().await?;
        // There always is one: `acquire` puts it in, and only the silence below and the end of
        // `used` take it out.
        let Some(open) = &mut used.open else {
            return Err(self.pool.no_connection().into());
        };
        let timeline = open.timeline;
        if self.pool.primary.is_silent() {
            self.pool.verify(timeline).await?;
        }
        let Ok(done) = timeout(self.pool.deadline, work(&mut open.connection)).await else {
            self.pool.mark_all_lost();
            used.open = None;
            return Err(Error::Silent(self.pool.deadline).into());
        };
        used.succeeded = done.is_ok();
        if done.is_ok() && !self.pool.primary.is_believed(timeline) {
            self.pool.verify(timeline).await?;
        }
        done
    }

    /// The number of connections in use, and of those that are free or may still be opened.
    pub fn connections(&self) -> (usize, usize) {
        let free = self.pool.permits.available_permits();
        (self.pool.max_open.saturating_sub(free), free)
    }
}

impl Pool {
    /// Waits for a permit, and takes an idle connection or opens one. Both together may take
    /// [`ACQUIRE`].
    async fn acquire(self: &Arc<Self>) -> Result<Used> {
        let began = Instant::now();
        let waiting = timeout(ACQUIRE, Arc::clone(&self.permits).acquire_owned());
        let Ok(Ok(permit)) = waiting.await else {
            return Err(self.no_connection());
        };
        let open = match self.take_idle() {
            Some(open) => open,
            None => {
                self.connect(ACQUIRE.saturating_sub(began.elapsed()))
                    .await?
            }
        };
        Ok(Used {
            open: Some(open),
            succeeded: false,
            pool: Arc::clone(self),
            permit: Some(permit),
        })
    }

    /// Takes the connection that was returned last. Drops those that were open when a connection
    /// was found dead.
    fn take_idle(&self) -> Option<Open> {
        let mut idle = self.lock_idle();
        let lost_at = idle.lost_at;
        while let Some(open) = idle.connections.pop() {
            let is_lost = lost_at.is_some_and(|lost_at| open.opened_at <= lost_at);
            if !is_lost && !self.primary.is_replaced(open.timeline) {
                return Some(open);
            }
        }
        None
    }

    /// Opens a connection. It retries while the server is starting or has no room, for as long as
    /// `patience` lasts.
    async fn connect(&self, patience: Duration) -> Result<Open> {
        let mut last = None;
        let connecting = async {
            let mut pause = CONNECT_AGAIN;
            loop {
                // Boxed, because this future is large and rarely needed, and every use of the pool
                // would carry it.
                let opening = Box::pin(PgConnection::connect_with(&self.options));
                let opened = nodelay::opened(&self.options, opening).await;
                let examined = match opened {
                    Ok(mut connection) => {
                        let examined = self.primary.examine(&mut connection).await;
                        examined.map(|timeline| (connection, timeline))
                    }
                    Err(error) => Err(error.into()),
                };
                match examined {
                    Ok((connection, timeline)) => {
                        return Ok(Open {
                            connection,
                            opened_at: Instant::now(),
                            timeline,
                        });
                    }
                    Err(error) if is_transient(&error) => last = Some(error),
                    Err(error) => return Err(error),
                }
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        };
        match timeout(patience, connecting).await {
            Ok(result) => result,
            Err(_) => Err(last.unwrap_or_else(|| self.no_connection())),
        }
    }

    /// Finds out by a new connection whether the server on this timeline is still the primary.
    /// Otherwise what it said does not count. All callers share one new connection.
    async fn verify(&self, timeline: u32) -> Result<()> {
        let verifying = async {
            let _one_at_a_time = self.verifying.lock().await;
            if self.primary.is_silent() {
                self.look_again().await?;
            }
            Ok(())
        };
        let verified = timeout(ACQUIRE, verifying).await;
        verified.unwrap_or_else(|_| Err(self.no_connection()))?;
        if self.primary.is_replaced(timeline) {
            return Err(Error::Replaced);
        }
        Ok(())
    }

    async fn look_again(&self) -> Result<()> {
        let open = self.connect(ACQUIRE).await?;
        tokio::spawn(timeout(self.deadline, open.connection.close()));
        Ok(())
    }

    /// Takes a connection back after a clean use.
    fn put_back(&self, open: Open) {
        if open.opened_at.elapsed() > LIFETIME {
            // The close tells the server, whose log would otherwise mention a client that vanished.
            tokio::spawn(timeout(self.deadline, open.connection.close()));
        } else {
            self.lock_idle().connections.push(open);
        }
    }

    fn lock_idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks all connections that are open now as lost, so that the pool closes them instead of
    /// using them again.
    fn mark_all_lost(&self) {
        self.lock_idle().lost_at = Some(Instant::now());
    }

    fn no_connection(&self) -> Error {
        let address = match self.options.get_socket() {
            Some(folder) => folder.display().to_string(),
            None => format!("{}:{}", self.options.get_host(), self.options.get_port()),
        };
        Error::NoConnection {
            address,
            waited: ACQUIRE,
            most: self.max_open,
        }
    }
}

/// Whether the server may accept a connection soon, because it is down, is starting (57P03), or has
/// no free connection (53300), or because a failover is under way and the address still leads to
/// the wrong server.
fn is_transient(error: &Error) -> bool {
    match error {
        Error::Unfit(unfit) => !unfit.needs_operator(),
        Error::Database { cause, .. } => match &**cause {
            sqlx::Error::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
            sqlx::Error::Database(error) => {
                matches!(error.code().as_deref(), Some("57P03" | "53300"))
            }
            _ => false,
        },
        _ => false,
    }
}

/// A connection in use. When it is dropped, even in the middle of a statement, the connection
/// returns to the pool, after a check if necessary.
struct Used {
    open: Option<Open>,
    /// Whether the work returned a result, and not an error.
    succeeded: bool,
    pool: Arc<Pool>,
    /// The permit is returned after the connection, so that the next user finds this connection
    /// instead of opening one.
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
            // The ping reads what is left of an abandoned statement, and sends the rollback of an
            // abandoned transaction.
            match timeout(pool.deadline, open.connection.ping()).await {
                Ok(Ok(())) => pool.put_back(open),
                Ok(Err(_)) | Err(_) => pool.mark_all_lost(),
            }
            drop(permit);
        });
    }
}

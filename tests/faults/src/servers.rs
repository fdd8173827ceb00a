//! The servers that the stages need: one PostgreSQL and one nats-server, or with `--cluster` a
//! primary with a standby behind a proxy for each stage, and three nats-servers.
//!
//! This module also plays the failover manager. It notices a fault of the primary only after
//! [`NOTICED`], promotes the standby, leads the proxies to it, and makes a new standby, so that the
//! next failover is possible. An asynchronous standby gets nothing during the last [`LAG`] before
//! the primary fails, so the commits of this time are lost with the primary. Connections that led
//! to the old primary stay open, as they do with real managers.

use crate::fault::{Fault, Terms};
use crate::packets::{self, Dropped};
use crate::preload::{Spoiled, Spoiling};
use crate::proxy::Proxy;
use anyhow::{Context, Result, bail};
use futures_util::StreamExt;
use futures_util::stream::select_all;
use sqlx::{Connection, PgConnection};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use testkit::nats::{NatsCluster, NatsServer};
use testkit::postgres::PostgresServer;
use testkit::stack::Stage;
use testkit::wait;
use tokio::task::JoinSet;
use tokio::time::sleep;
use url::Url;

/// How long the failover manager takes to notice that the primary is gone. Real ones take longer.
const NOTICED: Duration = Duration::from_secs(3);
/// `DATABASE_TIMEOUT` of the stages with `--cluster`. A frozen primary is silent for longer.
pub const DATABASE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a primary that was frozen and replaced goes on before it is stopped.
const ZOMBIE: Duration = Duration::from_secs(4);
/// How often a standby is made anew, at most, before the run gives up, and the pause before each.
const COPIES: u32 = 4;
const COPY_AGAIN: Duration = Duration::from_secs(2);
/// How long the stages may take to see that their commits wait for a standby. They look once a
/// second, unless they are stalled or have just been restarted, too.
const SEEN: Duration = Duration::from_mins(2);
/// How long before its promotion an asynchronous standby gets no commits any more.
const LAG: Duration = Duration::from_secs(3);
/// How long a commit that waits for the flush of another one is looked for.
const FOUND: Duration = Duration::from_secs(5);

/// `PostgreSQL`, alone or with a standby.
pub struct Postgres {
    pub primary: PostgresServer,
    pair: Option<Pair>,
    losses: Vec<Lost>,
}

struct Pair {
    standby: PostgresServer,
    /// Whether each commit waits for the standby.
    is_synchronous: bool,
    /// The way of each stage to the primary. All processes of a stage share it.
    of_stages: BTreeMap<Stage, Proxy>,
    /// The way of operators and of this program. It is never cut.
    of_operators: Proxy,
    folder: PathBuf,
    /// How many standbys were made.
    copies: u32,
}

/// Commits that were acknowledged within this time are gone.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    pub from: Instant,
    pub until: Instant,
}

impl Postgres {
    pub async fn start(
        folder: &Path,
        terms: &Terms,
        env: BTreeMap<String, String>,
    ) -> Result<Self> {
        let primary = PostgresServer::start_with(folder, env).await?;
        if !terms.is_cluster {
            return Ok(Self {
                primary,
                pair: None,
                losses: Vec::new(),
            });
        }
        let server = address(&primary)?;
        let mut of_stages = BTreeMap::new();
        for stage in Stage::OURS {
            of_stages.insert(stage, Proxy::start(server).await?);
        }
        let of_operators = Proxy::start(server).await?;
        let standby = copy(&primary, folder, 0).await?;
        let is_synchronous = !terms.is_asynchronous;
        if is_synchronous {
            primary.require_standby().await?;
        }
        let pair = Pair {
            standby,
            is_synchronous,
            of_stages,
            of_operators,
            folder: folder.to_owned(),
            copies: 1,
        };
        Ok(Self {
            primary,
            pair: Some(pair),
            losses: Vec::new(),
        })
    }

    /// The superuser's URL, as operators reach the server.
    pub fn url(&self) -> Result<String> {
        let Some(pair) = &self.pair else {
            return Ok(self.primary.url().to_owned());
        };
        with_port(self.primary.url(), pair.of_operators.port())
    }

    /// The ports at which the stages reach the server, if these differ from that of [`Self::url`].
    pub fn ports(&self) -> BTreeMap<Stage, u16> {
        let proxies = self.pair.iter().flat_map(|pair| &pair.of_stages);
        proxies
            .map(|(stage, proxy)| (*stage, proxy.port()))
            .collect()
    }

    /// The times whose commits are lost.
    pub fn losses(&self) -> &[Lost] {
        &self.losses
    }

    /// The URL of a database of the stages that leads to the primary without the proxy, which ends
    /// with this program.
    pub fn direct(&self, url: &str) -> Result<String> {
        with_port(url, address(&self.primary)?.port())
    }

    /// Plays a fault that concerns the pair. `undone` is called when orders can succeed again.
    /// `database` is the URL of the stages' database.
    pub async fn fail_over(
        &mut self,
        fault: Fault,
        lasts: Duration,
        database: &str,
        undone: impl FnOnce() + Send,
    ) -> Result<()> {
        match fault {
            Fault::PrimaryKilled => {
                let lost_from = self.fall_behind().await?;
                self.primary.stop_immediately().await?;
                sleep(NOTICED).await;
                self.promote().await?;
                self.note_loss(lost_from);
                undone();
            }
            Fault::SwitchedOver => {
                // The primary sends everything to its standby before it ends.
                self.primary.stop_fast().await?;
                self.promote().await?;
                undone();
            }
            Fault::PrimaryFrozen => {
                let lost_from = self.fall_behind().await?;
                self.primary.freeze()?;
                sleep(NOTICED).await;
                self.promote().await?;
                self.note_loss(lost_from);
                undone();
                sleep(lasts.saturating_sub(NOTICED)).await;
                // The old primary goes on as if nothing had happened, with its old connections.
                let zombie = &mut self.pair.as_mut().context("there is no standby")?.standby;
                zombie.thaw()?;
                sleep(ZOMBIE).await;
                zombie.stop_immediately().await?;
            }
            Fault::StandbyLost => {
                let pair = self.pair.as_mut().context("there is no standby")?;
                pair.standby.stop_immediately().await?;
                sleep(lasts).await;
                pair.standby.start_again().await?;
                undone();
                return Ok(());
            }
            Fault::Cut(stage) => {
                let pair = self.pair.as_ref().context("there is no standby")?;
                let is_cut = |of: &Stage| stage.is_none_or(|stage| stage == *of);
                let proxies = pair.of_stages.iter().filter(|(of, _)| is_cut(of));
                let proxies: Vec<&Proxy> = proxies.map(|(_, proxy)| proxy).collect();
                for proxy in &proxies {
                    proxy.cut();
                }
                sleep(lasts).await;
                for proxy in &proxies {
                    proxy.restore();
                }
                undone();
                return Ok(());
            }
            _ => bail!("not a fault of a primary and its standby"),
        }
        self.replace_standby(database).await
    }

    /// Plays a fault of the disk. Returns how often it was met.
    pub async fn spoil_disk(&mut self, fault: Fault, lasts: Duration) -> Result<u64> {
        let primary = &mut self.primary;
        let spoil = |what, value| Spoiling::begin(primary.env(), primary.pid(), what, value);
        let spoiling = match fault {
            Fault::FlushingSlowly(each) => {
                spoil(Spoiled::Flushes, i64::try_from(each.as_millis())?)?
            }
            Fault::DiskHanging => spoil(Spoiled::Flushes, i64::MAX)?,
            Fault::DiskFull => spoil(Spoiled::Space, 1)?,
            Fault::CommitHeld => {
                // While flushes are slow, one commit waits for the flush of another one.
                let slow = spoil(Spoiled::Flushes, 300)?;
                let waiting = primary.stall_commit(Stage::Ingress.name(), FOUND).await;
                slow.lift()?;
                let Some(waiting) = waiting? else {
                    return Ok(0);
                };
                sleep(lasts).await;
                waiting.resume()?;
                return Ok(1);
            }
            _ => bail!("not a fault of a disk"),
        };
        sleep(lasts).await;
        let met = spoiling.lift()?;
        // A server that cannot write its log ends.
        primary.stand_up().await?;
        Ok(met)
    }

    /// Passes the answers to ingress on later than they come. Returns how many.
    pub async fn answer_late(&self, late: Duration, lasts: Duration) -> Result<u64> {
        let pair = self.pair.as_ref().context("there is no proxy")?;
        let proxy = pair.of_stages.get(&Stage::Ingress).context("no proxy")?;
        let before = proxy.answer_late(late);
        sleep(lasts).await;
        Ok(proxy.answer_late(Duration::ZERO) - before)
    }

    /// Lets an asynchronous standby miss commits. Returns since when, or `None` if the standby is
    /// synchronous and misses nothing.
    async fn fall_behind(&self) -> Result<Option<Instant>> {
        let pair = self.pair.as_ref().context("there is no standby")?;
        if pair.is_synchronous {
            return Ok(None);
        }
        let from = Instant::now();
        pair.standby.detach().await?;
        sleep(LAG).await;
        Ok(Some(from))
    }

    /// Notes the commits since `from` as lost, after the promotion.
    fn note_loss(&mut self, from: Option<Instant>) {
        let until = Instant::now();
        self.losses.extend(from.map(|from| Lost { from, until }));
    }

    /// Makes the standby the primary. The old primary takes the standby's place in this struct.
    async fn promote(&mut self) -> Result<()> {
        let pair = self.pair.as_mut().context("there is no standby")?;
        pair.standby.promote().await?;
        let server = address(&pair.standby)?;
        for proxy in pair.of_stages.values().chain([&pair.of_operators]) {
            proxy.lead_to(server);
        }
        std::mem::swap(&mut self.primary, &mut pair.standby);
        Ok(())
    }

    /// Makes a new standby in place of the old primary, which no longer runs.
    async fn replace_standby(&mut self, database: &str) -> Result<()> {
        let pair = self.pair.as_mut().context("there is no standby")?;
        // The disk may still be spoiled by another fault, so that the first copy fails.
        let mut left = COPIES;
        let standby = loop {
            let copied = copy(&self.primary, &pair.folder, pair.copies).await;
            pair.copies += 1;
            left -= 1;
            match copied {
                Err(error) if left == 0 => return Err(error),
                Err(_) => sleep(COPY_AGAIN).await,
                Ok(standby) => break standby,
            }
        };
        // A run of hours replaces hundreds of servers, and their data would fill the disk.
        std::mem::replace(&mut pair.standby, standby).wipe()?;
        if pair.is_synchronous {
            self.primary.require_standby().await?;
            self.commits_are_seen_to_wait(database).await?;
        }
        Ok(())
    }

    /// Waits until a stage has noted that commits wait for the standby. After a promotion before
    /// that, nobody could know that no commit was lost, and the stages would rightly stop buying
    /// until an operator has looked.
    async fn commits_are_seen_to_wait(&self, database: &str) -> Result<()> {
        let mut connection = PgConnection::connect(&self.direct(database)?).await?;
        let now = "SELECT clock_timestamp()::text";
        let since: String = sqlx::query_scalar(now).fetch_one(&mut connection).await?;
        wait::until(SEEN, "a pulse that waited for the standby", async || {
            let noted =
                "SELECT EXISTS (SELECT FROM pulses WHERE replicated AND at > $1::timestamptz)";
            let noted: bool = sqlx::query_scalar(noted)
                .bind(&since)
                .fetch_one(&mut connection)
                .await?;
            Ok(noted.then_some(()))
        })
        .await?;
        Ok(connection.close().await?)
    }
}

/// Makes a standby in a folder of its own.
async fn copy(primary: &PostgresServer, folder: &Path, number: u32) -> Result<PostgresServer> {
    let folder = folder.join(format!("copy-{number}"));
    std::fs::create_dir(&folder)?;
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o711))?;
    primary.start_standby(&folder).await
}

fn with_port(url: &str, port: u16) -> Result<String> {
    let mut url: Url = url.parse()?;
    if url.set_port(Some(port)).is_err() {
        bail!("{url} takes no port");
    }
    Ok(url.into())
}

fn address(server: &PostgresServer) -> Result<SocketAddr> {
    let url: Url = server.url().parse()?;
    let addresses = url.socket_addrs(|| None)?;
    addresses.first().copied().context("no address")
}

/// The nats-servers: one, or three that form a cluster.
pub struct Nats {
    servers: Vec<NatsServer>,
}

impl Nats {
    pub fn one(server: NatsServer) -> Self {
        Self {
            servers: vec![server],
        }
    }

    pub fn three(cluster: NatsCluster) -> Self {
        Self {
            servers: cluster.servers,
        }
    }

    /// The ports of the servers.
    pub fn ports(&self) -> Result<Vec<u16>> {
        let servers = self.servers.iter();
        servers.map(|server| packets::port(server.url())).collect()
    }

    /// The server that leads the stream, or the first one if that is not known.
    async fn leader(&self, stream: &str) -> usize {
        let led = async {
            let client = async_nats::connect(self.servers[0].url()).await.ok()?;
            let stream = async_nats::jetstream::new(client)
                .get_stream(stream)
                .await
                .ok()?;
            let leader = stream.cached_info().cluster.as_ref()?.leader.clone()?;
            leader.strip_prefix("nats-")?.parse().ok()
        };
        let led: Option<usize> = tokio::time::timeout(Duration::from_secs(2), led)
            .await
            .ok()
            .flatten();
        led.filter(|number| *number < self.servers.len())
            .unwrap_or_default()
    }

    /// Plays a fault. `stream` is the stream of jobs, whose leader counts as the leader. Returns
    /// how many packets were dropped or jobs repeated, if any should be.
    pub async fn befall(
        &mut self,
        fault: Fault,
        lasts: Duration,
        stream: &str,
    ) -> Result<Option<u64>> {
        let leader = self.leader(stream).await;
        if let Fault::JobsRepeated(late) = fault {
            return repeat(self.servers[leader].url(), stream, late, lasts).await;
        }
        let all = 0..self.servers.len();
        let victims: Vec<usize> = match fault {
            Fault::Stalled | Fault::Killed | Fault::Vanished => vec![leader],
            Fault::MajorityLost => all.filter(|number| *number != leader).collect(),
            Fault::Wiped => all.collect(),
            _ => bail!("not a fault of NATS"),
        };
        if fault == Fault::Stalled {
            self.servers[leader].process.pause()?;
            sleep(lasts).await;
            self.servers[leader].process.resume()?;
            return Ok(None);
        }
        let dropped = if fault == Fault::Vanished {
            let port = packets::port(self.servers[leader].url())?;
            Some(Dropped::all(&[port]).await?)
        } else {
            None
        };
        for victim in &victims {
            self.servers[*victim].process.kill().await?;
        }
        if fault == Fault::Wiped {
            for server in &self.servers {
                server.wipe()?;
            }
        }
        sleep(lasts).await;
        let met = match dropped {
            Some(dropped) => Some(dropped.lift().await?),
            None => None,
        };
        // All are started before the first one is waited for, because a server of a cluster is
        // ready only once a majority runs.
        for victim in &victims {
            self.servers[*victim].process.spawn()?;
        }
        for victim in &victims {
            self.servers[*victim].process.ready().await?;
        }
        Ok(met)
    }
}

/// Publishes each message of a stream once more, so much later. Returns how many, or `None` if
/// there was no stream all the while, because its servers were wiped and no service has made it
/// again yet.
async fn repeat(url: &str, stream: &str, late: Duration, lasts: Duration) -> Result<Option<u64>> {
    let until = tokio::time::Instant::now() + lasts;
    // It does not hear what it publishes itself.
    let client = async_nats::ConnectOptions::new().no_echo();
    let client = client.connect(url).await?;
    let context = async_nats::jetstream::new(client.clone());
    let made = wait::until(lasts, "the stream of jobs", async || {
        Ok(context.get_stream(stream).await.ok())
    });
    let Ok(stream) = made.await else {
        return Ok(None);
    };
    let mut heard = Vec::new();
    for subject in stream.cached_info().config.subjects.clone() {
        heard.push(client.subscribe(subject).await?);
    }
    let mut heard = select_all(heard);
    let mut repeating = JoinSet::new();
    while let Ok(Some(message)) = tokio::time::timeout_at(until, heard.next()).await {
        let client = client.clone();
        repeating.spawn(async move {
            sleep(late).await;
            let headers = message.headers.unwrap_or_default();
            client
                .publish_with_headers(message.subject, headers, message.payload)
                .await
        });
    }
    let mut repeated = 0;
    while let Some(published) = repeating.join_next().await {
        published??;
        repeated += 1;
    }
    client.flush().await?;
    Ok(Some(repeated))
}

//! Applies the planned faults to the running system and undoes them. It also restarts processes
//! that end although no fault was planned for them. That is reported and makes the run red, because
//! no fault may make another process end.

use crate::book::lock;
use crate::events::Events;
use crate::fault::{Fault, Planned, REPLICAS, Target, Terms, in_millis};
use crate::packets::{self, Dropped};
use crate::preload::{Spoiled, Spoiling};
use crate::servers::{Nats, Postgres};
use crate::tls::Tls;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as Plain};
use std::time::{Duration, Instant};
use testkit::esimctl::Esimctl;
use testkit::names::NameServer;
use testkit::process::Process;
use testkit::stack::{Stack, Stage};
use tokio::sync::Mutex;

/// How long a process may take to end after SIGTERM.
pub const STOP: Duration = Duration::from_secs(30);
/// The interval at which processes are checked for having ended by themselves.
const WATCH: Duration = Duration::from_millis(300);

/// How long a process may take to ask for memory. It does so several times a second.
const ALLOCATES: Duration = Duration::from_secs(10);
/// The signal with which a program in Rust ends that gets no memory (SIGABRT).
const ABORTED: i32 = 6;
/// How long a fault waits for a process that has been started again a moment ago.
const READY: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Serialize)]
pub struct Happened {
    pub kind: String,
    /// The beginning of the fault, since the start of the run. `until` is its end.
    pub from: Duration,
    pub until: Duration,
    /// Whether a provisioner or the provider stood still.
    pub stalls_purchases: bool,
    /// Whether what the database has not flushed may be lost.
    pub crashes_database: bool,
    /// Whether commits may have ended only with it.
    pub delays_commits: bool,
    /// How often it was met, if somebody counted that: clock readings, sockets that were not
    /// opened, allocations, flushes, writes, answers, commits, packets, jobs, events,
    /// names or certificates.
    pub met: Option<u64>,
}

/// What a fault leaves.
#[derive(Default)]
struct Undone {
    /// Its end, if that is earlier than the end of the cleaning up: after a failover, a new standby
    /// is made while orders succeed again.
    at: Option<Duration>,
    met: Option<u64>,
}

impl From<Option<u64>> for Undone {
    fn from(met: Option<u64>) -> Self {
        Self { at: None, met }
    }
}

/// What the run plays around the system.
pub struct Surroundings {
    pub names: NameServer,
    pub tls: Tls,
    pub events: Events,
}

pub struct Victims {
    pub(crate) processes: BTreeMap<Target, Mutex<Process>>,
    nats: Mutex<Nats>,
    postgres: Arc<Mutex<Postgres>>,
    around: Surroundings,
    /// The stream of jobs, whose leader is the leader of NATS.
    stream: String,
    pub(crate) sandbox_url: String,
    /// How long each call to the provider takes, unless a fault makes it slower.
    latency: Duration,
    database_url: String,
    /// The ports of the database, of NATS and of the sandbox.
    ports: Vec<u16>,
    pub(crate) http: reqwest::Client,
    pub(crate) esimctl: Esimctl,
    epoch: Instant,
    happened: Plain<Vec<Happened>>,
    troubles: Plain<Vec<String>>,
    /// How many promotions of an asynchronous standby did not stop the buying.
    unfenced: AtomicUsize,
    is_asynchronous: bool,
}

impl Victims {
    /// Takes the processes out of a running stack.
    pub fn of(
        stack: &mut Stack,
        postgres: Arc<Mutex<Postgres>>,
        nats: Nats,
        around: Surroundings,
        epoch: Instant,
        terms: &Terms,
    ) -> Result<Self> {
        let mut processes = BTreeMap::new();
        for stage in Stage::ALL {
            for (replica, process) in stack.take_processes(stage).into_iter().enumerate() {
                processes.insert(Target::Process(stage, replica), Mutex::new(process));
            }
        }
        let mut provisioners = Vec::new();
        for replica in 0..REPLICAS {
            let process = &processes[&Target::Process(Stage::Provisioner, replica)];
            let listens = process.try_lock()?.program().env.get("LISTEN").cloned();
            provisioners.extend(listens);
        }
        around.events.pass_to(provisioners)?;
        let mut ports = nats.ports()?;
        ports.extend([
            packets::port(stack.database.url())?,
            packets::port(&stack.sandbox_url)?,
        ]);
        Ok(Self {
            ports,
            processes,
            nats: Mutex::new(nats),
            postgres,
            around,
            stream: format!("{}TOPUP_JOBS", stack.prefix),
            sandbox_url: stack.sandbox_url.clone(),
            database_url: stack.database.url().to_owned(),
            http: testkit::http::client()?,
            esimctl: stack.esimctl.clone(),
            epoch,
            happened: Plain::default(),
            troubles: Plain::default(),
            unfenced: AtomicUsize::new(0),
            latency: terms.provider_latency,
            is_asynchronous: terms.is_asynchronous,
        })
    }

    /// Applies all faults at their times. Returns when the last one has been undone.
    pub async fn suffer(&self, schedule: &[Planned]) {
        let faults = schedule.iter().map(|planned| async {
            tokio::time::sleep_until((self.epoch + planned.at).into()).await;
            let from = self.epoch.elapsed();
            let kind = planned.kind();
            match self.make(planned).await {
                Ok(Undone { at, met }) => {
                    let until = at.unwrap_or_else(|| self.epoch.elapsed());
                    lock(&self.happened).push(Happened {
                        kind,
                        from,
                        until,
                        stalls_purchases: planned.stalls_purchases(),
                        crashes_database: planned.crashes_database(),
                        delays_commits: planned.delays_commits(),
                        met,
                    });
                }
                Err(error) => self.trouble(&format!("{kind}: {error:#}")),
            }
        });
        futures_util::future::join_all(faults).await;
    }

    /// Restarts processes that ended by themselves, as an orchestrator would. Never returns.
    pub async fn watch(&self) {
        let mut looks = tokio::time::interval(WATCH);
        loop {
            looks.tick().await;
            for process in self.processes.values() {
                // If the process is locked, a fault is killing or starting it now.
                let Ok(mut process) = process.try_lock() else {
                    continue;
                };
                if let Err(error) = self.revive(&mut process).await {
                    self.trouble(&format!("{error:#}"));
                }
            }
        }
    }

    async fn revive(&self, process: &mut Process) -> Result<()> {
        if process.pid().is_none() || process.exited()?.is_none() {
            return Ok(());
        }
        let status = process.wait(STOP).await?;
        let name = process.program().name.clone();
        self.trouble(&format!("{name} ended by itself: {status}"));
        process.spawn()
    }

    pub fn happened(&self) -> Vec<Happened> {
        lock(&self.happened).clone()
    }

    pub fn troubles(&self) -> Vec<String> {
        let mut troubles = lock(&self.troubles).clone();
        for process in self.processes.values() {
            let Ok(process) = process.try_lock() else {
                continue;
            };
            let log = process.log().unwrap_or_default();
            let name = &process.program().name;
            let panics = log.lines().filter(|line| line.contains("panicked at"));
            troubles.extend(panics.map(|line| format!("{name}: {line}")));
        }
        troubles
    }

    /// The forged events that were taken.
    pub fn believed(&self) -> Vec<String> {
        self.around.events.believed()
    }

    pub fn note_unfenced(&self) {
        self.unfenced.fetch_add(1, Ordering::Relaxed);
    }

    pub fn unfenced(&self) -> usize {
        self.unfenced.load(Ordering::Relaxed)
    }

    /// Ends the faults that the sandbox itself plays.
    pub async fn lift(&self) -> Result<()> {
        self.provider(&json!({})).await
    }

    /// Makes the provider as slow as it should be, because a new process of it is not.
    async fn delay(&self, target: Target) -> Result<()> {
        if self.latency.is_zero() || target != Target::Process(Stage::Sandbox, 0) {
            return Ok(());
        }
        self.lift().await
    }

    fn trouble(&self, text: &str) {
        lock(&self.troubles).push(text.to_owned());
    }

    async fn make(&self, planned: &Planned) -> Result<Undone> {
        match planned.target {
            Target::Process(..) => {
                let process = self
                    .processes
                    .get(&planned.target)
                    .context("no such process")?;
                let mut process = process.lock().await;
                if let Some(faults) = planned.fault.of_provider() {
                    self.play(&faults, planned.lasts).await?;
                    return Ok(Undone::default());
                }
                if planned.fault == Fault::Vanished {
                    let dropped = Dropped::all(&[packets::port(&self.sandbox_url)?]).await?;
                    let killed = process.kill().await;
                    tokio::time::sleep(planned.lasts).await;
                    // Whatever has failed, no rule may stay.
                    let met = dropped.lift().await?;
                    killed?;
                    process.spawn()?;
                    self.delay(planned.target).await?;
                    return Ok(Some(met).into());
                }
                let undone = befall(&mut process, planned).await?;
                self.delay(planned.target).await?;
                Ok(undone.into())
            }
            Target::Postgres => self.befall_postgres(planned).await,
            Target::Nats => {
                let mut nats = self.nats.lock().await;
                let met = nats
                    .befall(planned.fault, planned.lasts, &self.stream)
                    .await?;
                Ok(met.into())
            }
            Target::Names => {
                let Fault::NamesFailing(how) = planned.fault else {
                    anyhow::bail!("not a fault of a name server");
                };
                let before = self.around.names.unanswered();
                self.around.names.fail(Some(how));
                tokio::time::sleep(planned.lasts).await;
                self.around.names.fail(None);
                let met = self.around.names.unanswered() - before;
                Ok(Some(u64::try_from(met)?).into())
            }
            Target::Endpoint => {
                let before = self.around.tls.refused();
                self.around.tls.expire(true);
                tokio::time::sleep(planned.lasts).await;
                self.around.tls.expire(false);
                Ok(Some(self.around.tls.refused() - before).into())
            }
            Target::Events => {
                self.around.events.befall(Some(planned.fault));
                tokio::time::sleep(planned.lasts).await;
                Ok(Some(self.around.events.befall(None)).into())
            }
            Target::Network => {
                let dropped = Dropped::some(&self.ports).await?;
                tokio::time::sleep(planned.lasts).await;
                Ok(Some(dropped.lift().await?).into())
            }
        }
    }

    async fn play(&self, faults: &Value, lasts: Duration) -> Result<()> {
        self.provider(faults).await?;
        tokio::time::sleep(lasts).await;
        self.lift().await
    }

    async fn provider(&self, faults: &Value) -> Result<()> {
        let url = format!("{}/faults", self.sandbox_url);
        let mut faults = faults.clone();
        let slower = faults["latency_ms"].as_u64();
        faults["latency_ms"] = json!(slower.unwrap_or_default().max(in_millis(self.latency)));
        // A sandbox that was started a moment ago may not listen yet.
        let set = async || match self.http.put(&url).json(&faults).send().await {
            Ok(answer) if answer.status().is_success() => Ok(Some(())),
            Ok(answer) => anyhow::bail!("PUT /faults: {}", answer.status()),
            Err(_) => Ok(None),
        };
        testkit::wait::until(Duration::from_secs(20), "the sandbox to take faults", set).await
    }

    async fn befall_postgres(&self, planned: &Planned) -> Result<Undone> {
        let mut postgres = self.postgres.lock().await;
        match planned.fault {
            Fault::ConnectionsCut => {
                let mut connection = PgConnection::connect(&self.database_url).await?;
                let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                           WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
                sqlx::query(cut).execute(&mut connection).await?;
                connection.close().await?;
                Ok(Undone::default())
            }
            Fault::StoppedImmediately => {
                postgres.primary.stop_immediately().await?;
                tokio::time::sleep(planned.lasts).await;
                postgres.primary.start_again().await?;
                Ok(Undone::default())
            }
            Fault::Vanished => {
                let dropped = Dropped::all(&[packets::port(&self.database_url)?]).await?;
                let stopped = postgres.primary.stop_immediately().await;
                tokio::time::sleep(planned.lasts).await;
                let met = dropped.lift().await?;
                stopped?;
                postgres.primary.start_again().await?;
                Ok(Some(met).into())
            }
            Fault::FlushingSlowly(_) | Fault::DiskHanging | Fault::DiskFull | Fault::CommitHeld => {
                let met = postgres.spoil_disk(planned.fault, planned.lasts).await?;
                Ok(Some(met).into())
            }
            Fault::AnsweringLate(late) => {
                let met = postgres.answer_late(late, planned.lasts).await?;
                Ok(Some(met).into())
            }
            fault => {
                let mut at = None;
                let note = || at = Some(self.epoch.elapsed());
                let database = &self.database_url;
                postgres
                    .fail_over(fault, planned.lasts, database, note)
                    .await?;
                if self.is_asynchronous && fault.promotes() {
                    self.recover().await?;
                    at = Some(self.epoch.elapsed());
                }
                Ok(Undone { at, met: None })
            }
        }
    }
}

/// Whether the process is ready, or will be soon.
async fn is_ready(process: &mut Process) -> bool {
    let ready = tokio::time::timeout(READY, process.ready()).await;
    ready.is_ok_and(|ready| ready.is_ok())
}

/// Applies a fault to one process. Returns how often it was met, if somebody counts that. A restart
/// does not wait until the process is ready, because the servers that it needs may be down.
async fn befall(process: &mut Process, planned: &Planned) -> Result<Option<u64>> {
    // A process that cannot open what it needs to start ends, as it should, and one that has just
    // begun has no clock or memory to spoil yet. What is not applied counts neither as met nor as
    // missed.
    let needs_ready = matches!(
        planned.fault,
        Fault::FilesExhausted | Fault::MemoryExhausted | Fault::ClockStepped(_)
    );
    if needs_ready && !is_ready(process).await {
        return Ok(None);
    }
    match planned.fault {
        Fault::Killed => {
            process.kill().await?;
            tokio::time::sleep(planned.lasts).await;
            process.spawn()?;
        }
        Fault::Restarted => {
            let ended = process.terminate(STOP).await;
            process.spawn()?;
            let status = ended?;
            ensure!(status.success(), "{status} after SIGTERM");
        }
        Fault::Stalled => {
            process.pause()?;
            tokio::time::sleep(planned.lasts).await;
            process.resume()?;
        }
        Fault::FilesExhausted => {
            let spoiled = spoil(process, Spoiled::Files, 1)?;
            process.exhaust_files(true)?;
            tokio::time::sleep(planned.lasts).await;
            process.exhaust_files(false)?;
            return Ok(Some(spoiled.lift()?));
        }
        Fault::MemoryExhausted => {
            let spoiled = spoil(process, Spoiled::Memory, 1)?;
            let ended = process.wait(ALLOCATES).await;
            tokio::time::sleep(planned.lasts).await;
            process.spawn()?;
            let status = ended?;
            ensure!(status.signal() == Some(ABORTED), "{status} without memory");
            return Ok(Some(spoiled.lift()?));
        }
        Fault::ClockStepped(seconds) => {
            let spoiled = spoil(process, Spoiled::Clock, seconds)?;
            tokio::time::sleep(planned.lasts).await;
            return Ok(Some(spoiled.lift()?));
        }
        _ => anyhow::bail!("not a fault of a process"),
    }
    Ok(None)
}

fn spoil(process: &Process, what: Spoiled, value: i64) -> Result<Spoiling> {
    Spoiling::begin(&process.program().env, process.pid(), what, value)
}

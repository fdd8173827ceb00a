//! What may go wrong in a run, and the terms of a run.

use serde_json::{Value, json};
use std::time::Duration;
use testkit::names::Failing;
use testkit::stack::Stage;

/// The number of processes of each stage.
pub const REPLICAS: usize = 2;
/// What a fault concerns. A target has one fault at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A process, with the number of the replica.
    Process(Stage, usize),
    Postgres,
    Nats,
    /// What passes between the stages and their servers.
    Network,
    /// The name server of the endpoints.
    Names,
    /// The endpoint behind TLS.
    Endpoint,
    /// The events of the provider.
    Events,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It is killed (SIGKILL), and started again when the fault ends.
    Killed,
    /// It is stopped (SIGTERM), and started again when it has ended, as in a rolling restart.
    Restarted,
    /// It is stalled (SIGSTOP), and goes on when the fault ends (SIGCONT).
    Stalled,
    /// It opens no further file or connection until the fault ends.
    FilesExhausted,
    /// It gets no further memory, so its next allocation ends it. It is started again when the
    /// fault ends.
    MemoryExhausted,
    /// Its wall clock is that many seconds ahead, or behind if they are negative.
    ClockStepped(i64),
    /// A server, or the provider, is killed while no packet passes: nobody is told that the
    /// connections have ended. When the fault ends, packets pass again, and it is started again.
    Vanished,
    /// Network only: one of ten packets between the stages and their servers is lost.
    PacketsLost,
    /// `PostgreSQL` only: each flush to disk takes that long, or until the fault ends.
    FlushingSlowly(Duration),
    /// `PostgreSQL` only: no flush to disk ends before the fault does.
    DiskHanging,
    /// `PostgreSQL` only: no file can grow.
    DiskFull,
    /// `PostgreSQL` only: a process of it that commits for ingress stands still. What it commits is
    /// stored, and nobody sees it until the fault ends.
    CommitHeld,
    /// `PostgreSQL` only: its answers to ingress are that late.
    AnsweringLate(Duration),
    /// Endpoint only: its certificate has expired, and is renewed when the fault ends.
    CertificateExpired,
    /// Name server only: it says that it has failed, or nothing at all.
    NamesFailing(Failing),
    /// Events only: each arrives that much later.
    EventsLate(Duration),
    /// Events only: each arrives several times, at both provisioners.
    EventsRepeated,
    /// Events only: none arrives.
    EventsLost,
    /// Events only: before each a forged one arrives, and one with a wrong token.
    EventsForged,
    /// `PostgreSQL` only: it stops as by `pg_ctl stop -m immediate`, and is started again when the
    /// fault ends.
    StoppedImmediately,
    /// `PostgreSQL` only: every connection is ended by `pg_terminate_backend`.
    ConnectionsCut,
    /// The primary is killed, and its standby is promoted.
    PrimaryKilled,
    /// The primary freezes, is replaced by its standby, and then goes on with its old connections.
    PrimaryFrozen,
    /// The primary is shut down, and its standby is promoted at once.
    SwitchedOver,
    /// The standby is killed, and started again when the fault ends. Commits wait for it.
    StandbyLost,
    /// `PostgreSQL` only: nothing passes between the primary and the processes of this stage, or of
    /// all stages.
    Cut(Option<Stage>),
    /// NATS only: each job is published once more, that much later, as by a publisher that lost the
    /// acknowledgement.
    JobsRepeated(Duration),
    /// NATS only: all servers but the leader are killed, and started again when the fault ends.
    MajorityLost,
    /// NATS only: all servers are killed, their storage is deleted, and they are started again when
    /// the fault ends.
    Wiped,
    /// Sandbox only: the connection of every call is closed.
    Down,
    /// Sandbox only: calls are carried out, but their responses come late.
    Slow(Duration),
    /// Sandbox only: half of all calls get a 500, and half of these are carried out nevertheless.
    Erring,
    /// Sandbox only: half of all orders are bought, but get no response.
    Silent,
    /// Sandbox only: look-ups do not see a purchase until it has this age.
    Lagging(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The beginning of the fault, since the first order.
    pub at: Duration,
    pub target: Target,
    pub fault: Fault,
    pub lasts: Duration,
}

#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each one is a setting that any other may go with"
)]
pub struct Terms {
    pub seed: u64,
    /// The time in which orders are placed and faults begin.
    pub length: Duration,
    /// The mean time between the beginnings of two faults.
    pub every: Duration,
    /// The settling delay of the provisioners, which limits stalls and lags.
    pub settle: Duration,
    /// Whether the provider refuses to sell a placement twice. If it does not, no stall is longer
    /// than `settle`.
    pub detects_duplicates: bool,
    /// Whether `PostgreSQL` has a standby and NATS three servers.
    pub is_cluster: bool,
    /// Whether commits do not wait for the standby, so that a promotion loses some.
    pub is_asynchronous: bool,
    /// Whether the stages can stop the buying when commits were lost.
    pub is_fenced: bool,
    /// Whether the run has a network of its own, whose packets it can drop.
    pub loses_packets: bool,
    /// The provider that the sandbox plays.
    pub provider: &'static str,
    /// Whether it sends events when eSIMs become ready.
    pub sends_events: bool,
    /// How long each call to it takes, unless a fault makes it slower.
    pub provider_latency: Duration,
    /// Only faults are planned whose kind has one of these texts in its name; any if there is none.
    pub only: Vec<String>,
}

impl Planned {
    /// The name of the kind for the report, such as "ingress killed".
    pub fn kind(&self) -> String {
        let target = match self.target {
            Target::Process(Stage::Sandbox, _) => "provider",
            Target::Process(stage, _) => stage.name(),
            Target::Postgres => "PostgreSQL",
            Target::Nats => "NATS",
            Target::Network => "network",
            Target::Names => "name server",
            Target::Endpoint => "endpoint",
            Target::Events => "events",
        };
        let fault = match self.fault {
            Fault::Killed => "killed",
            Fault::Restarted => "restarted",
            Fault::Stalled => "stalled",
            Fault::FilesExhausted => "out of files",
            Fault::MemoryExhausted => "out of memory",
            Fault::Vanished => "vanished",
            Fault::PacketsLost => "losing packets",
            Fault::FlushingSlowly(_) => "flushing slowly",
            Fault::DiskHanging => "disk hanging",
            Fault::DiskFull => "disk full",
            Fault::CommitHeld => "commit held",
            Fault::AnsweringLate(_) => "answering ingress late",
            Fault::CertificateExpired => "with an expired certificate",
            Fault::NamesFailing(Failing::Openly) => "failing",
            Fault::NamesFailing(Failing::Silently) => "silent",
            Fault::ClockStepped(seconds) if seconds < 0 => "clock stepped back",
            Fault::ClockStepped(_) => "clock stepped forward",
            Fault::StoppedImmediately => "stopped at once",
            Fault::ConnectionsCut => "connections cut",
            Fault::PrimaryKilled => "primary killed, standby promoted",
            Fault::PrimaryFrozen => "primary frozen, replaced, resumed",
            Fault::SwitchedOver => "switched over",
            Fault::StandbyLost => "standby lost",
            Fault::Cut(None) => "cut off from all stages",
            Fault::Cut(Some(Stage::Ingress)) => "cut off from ingress",
            Fault::Cut(Some(Stage::Provisioner)) => "cut off from provisioners",
            Fault::Cut(Some(_)) => "cut off from notifiers",
            Fault::JobsRepeated(_) => "repeating jobs",
            Fault::EventsLate(_) => "late",
            Fault::EventsRepeated => "repeated",
            Fault::EventsLost => "lost",
            Fault::EventsForged => "forged",
            Fault::MajorityLost => "majority lost",
            Fault::Wiped => "killed and wiped",
            Fault::Down => "down",
            Fault::Slow(_) => "slow",
            Fault::Erring => "erring",
            Fault::Silent => "buying silently",
            Fault::Lagging(_) => "lagging",
        };
        format!("{target} {fault}")
    }

    /// Whether a provisioner or the provider stands still, so that a purchase may be late.
    pub fn stalls_purchases(&self) -> bool {
        let buys = [Stage::Provisioner, Stage::Sandbox];
        let Target::Process(stage, _) = self.target else {
            return false;
        };
        self.fault == Fault::Stalled && buys.contains(&stage)
    }

    /// Whether what the database has not flushed may be lost.
    pub fn crashes_database(&self) -> bool {
        let ends = [Fault::StoppedImmediately, Fault::DiskFull, Fault::Vanished];
        self.target == Target::Postgres && ends.contains(&self.fault)
    }

    /// Whether a commit that was about to end when the fault began may end only with it.
    pub fn delays_commits(&self) -> bool {
        matches!(
            self.fault,
            Fault::FlushingSlowly(_) | Fault::DiskHanging | Fault::DiskFull | Fault::CommitHeld
        )
    }

    pub fn end(&self) -> Duration {
        self.at + self.lasts
    }
}

impl Fault {
    /// Whether a standby becomes the primary.
    pub fn promotes(self) -> bool {
        matches!(
            self,
            Self::PrimaryKilled | Self::PrimaryFrozen | Self::SwitchedOver
        )
    }

    /// The body of `PUT /faults` for the faults that the sandbox plays itself. It is `None` for
    /// others.
    pub fn of_provider(self) -> Option<Value> {
        match self {
            Self::Down => Some(json!({"down": true})),
            Self::Slow(latency) => Some(json!({"latency_ms": in_millis(latency)})),
            Self::Erring => Some(json!({"error_rate": 0.5, "error_buys": 0.5})),
            Self::Silent => Some(json!({"silent_rate": 0.5})),
            Self::Lagging(lag) => Some(
                json!({"not_found_lag_ms": in_millis(lag), "silent_rate": 0.3, "error_rate": 0.2}),
            ),
            _ => None,
        }
    }
}

pub fn in_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

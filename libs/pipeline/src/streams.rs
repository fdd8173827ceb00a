//! The connection to NATS, and its streams, consumers and subjects. All services use NATS through
//! [`Nats`].
//!
//! Streams and consumers are created where they are missing, at the start and again after an error,
//! so that NATS may lose its storage at any time. Nothing here is needed for correctness: while
//! NATS is down, messages are dropped, and the stages find their rows in PostgreSQL. A cluster that
//! accepts connections and cannot store messages counts as down, too ([`crate::majority`]).

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use async_nats::{
    Client, Event, ServerError,
    connection::State,
    jetstream::{
        self, ErrorCode,
        consumer::{AckPolicy, PullConsumer, pull},
        context::{CreateStreamError, CreateStreamErrorKind},
        stream::{Config, DiscardPolicy, RetentionPolicy, StorageType},
    },
};
use clap::Args;
use runtime::{config::BadSetting, sampler::Sampler};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::{
    access::NatsAccess,
    majority::{self, MajorityWatch},
    refused::RefusedPermissions,
};

pub use crate::payload::{DEAD, JOBS, READY};

const MIB: i64 = 1024 * 1024;
/// The size of a stream of jobs or readiness events, in bytes. NATS reserves as much of its memory.
/// It is enough for the messages of one minute at some thousands of orders per second.
const WORK_BYTES: i64 = 16 * MIB;
/// The longest time that a flush may take at the end of a process.
const FLUSH: Duration = Duration::from_secs(2);
/// The interval between log lines about unpublished messages.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// The age after which a message is dropped, whether it was taken or not. Its rows have long been
/// due then.
const MAX_AGE: Duration = Duration::from_mins(1);
/// The maximum number of messages for one provider, so that a provider that nobody serves leaves
/// room for the others.
const MAX_JOBS: i64 = 10_000;
/// The largest message that a stream accepts, in bytes. Ours have at most about 5 KiB.
const MAX_MESSAGE: i32 = 64 * 1024;

/// The maximum number of consumers of a stream of work. There is one for each provider, or one for
/// all notifiers. Whoever has the credentials of a stage may create others, and each takes about 50
/// KiB of the server.
const MAX_CONSUMERS: i32 = 64;

/// The address of NATS, and the settings of its streams.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "NATS")]
pub struct NatsConfig {
    /// Address of NATS, for example `nats://host:4222` or `tls://host:4222`
    ///
    /// The addresses of several servers of a cluster are separated by commas. An address may
    /// contain user and password, which count only if no other setting holds credentials.
    #[arg(long, env = "NATS_URL", hide_env_values = true)]
    pub nats_url: SecretString,
    #[command(flatten)]
    pub access: NatsAccess,
    /// Prefix of the names of streams and subjects
    ///
    /// Several systems can share a NATS server if each has a prefix of its own. All services of one
    /// system need the same one.
    #[arg(long, env = "STREAM_PREFIX", default_value = "", value_parser = prefix)]
    pub stream_prefix: String,
    /// Number of servers that keep a copy of each stream
    ///
    /// Use 3 in a cluster of three servers, so that one of them can fail. The number cannot exceed
    /// that of the servers. It applies when a stream is created; existing streams are not changed.
    #[arg(
        long,
        env = "STREAM_REPLICAS",
        default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(1..=5)
    )]
    pub stream_replicas: u8,
}

/// Parses the name of a provider: lowercase letters, digits, `_` and `-`. The name is also part of
/// its subjects, where other characters would have a meaning of their own.
pub fn provider_name(text: &str) -> Result<String, String> {
    if is_plain(text) && !text.is_empty() && text == text.to_ascii_lowercase() {
        Ok(text.to_owned())
    } else {
        Err("a provider's name is made of lowercase letters, digits, `_` and `-`".into())
    }
}

fn prefix(text: &str) -> Result<String, String> {
    if is_plain(text) {
        Ok(text.to_owned())
    } else {
        Err("only letters, digits, `_` and `-` are allowed".into())
    }
}

fn is_plain(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

/// The addresses of `NATS_URL`.
fn servers(config: &NatsConfig) -> anyhow::Result<Vec<async_nats::ServerAddr>> {
    config
        .nats_url
        .expose_secret()
        .split(',')
        .map(|url| Some(url.trim()).filter(|url| !url.is_empty())?.parse().ok())
        .collect::<Option<_>>()
        .ok_or_else(|| {
            BadSetting::error(
                "NATS_URL is not of the form nats://host:port, or \
                 nats://user:password@host:port; separate several addresses by commas",
            )
        })
}

impl NatsConfig {
    /// Refuses what [`Nats::connect`] refuses.
    pub fn check(&self, name: &str) -> anyhow::Result<()> {
        let mut servers = servers(self)?;
        self.access.options_for(name, &mut servers).map(drop)
    }
}

/// What the server has refused is logged once, because each order would log it again.
fn log_event(event: &Event, refused: &RefusedPermissions) {
    match event {
        Event::ServerError(ServerError::Other(report)) => {
            let (is_refusal, is_first) = refused.note(report);
            if is_refusal && is_first {
                tracing::error!(
                    report,
                    "NATS refuses what this process needs, so orders are carried out, but late; give its user the \
                     permissions of deploy/nats/nats.conf"
                );
            } else if !is_refusal {
                tracing::warn!(error = report, "NATS reports an error");
            }
        }
        Event::Connected => tracing::info!("connected to NATS"),
        Event::Disconnected => {
            tracing::warn!(
                "NATS is disconnected, so nothing is published; reconnecting. Until then the \
                 stages find their rows in PostgreSQL once they are due"
            );
        }
        Event::ServerError(error) => tracing::warn!(%error, "NATS reports an error"),
        // The client emits this for each failed attempt to reconnect, so it is logged at debug
        // level only.
        Event::ClientError(error) => tracing::debug!(%error, "no connection to NATS"),
        event => tracing::info!(%event, "NATS connection event"),
    }
}

/// A connection to NATS, which also knows the names of streams and subjects. Cheap to clone.
#[derive(Clone)]
pub struct Nats {
    client: Client,
    pub(crate) context: jetstream::Context,
    config: NatsConfig,
    /// Whether NATS was up at the last check, and has not been disconnected since then.
    was_up: watch::Receiver<bool>,
    /// Limits the log lines about unpublished messages, because every publish fails while NATS is
    /// down.
    pub(crate) unpublished: Arc<Sampler>,
    pub(crate) refused: Arc<RefusedPermissions>,
    /// One token for each item that waits in a batcher.
    pub(crate) unsent: TaskTracker,
}

impl Nats {
    /// Connects to NATS, and starts to watch whether JetStream can store messages. If NATS is down,
    /// it connects in the background, so that a service can start without it. `name` is the name of
    /// the connection on the server.
    pub async fn connect(config: &NatsConfig, name: &str) -> anyhow::Result<Self> {
        let mut servers = servers(config)?;
        let refused = Arc::new(RefusedPermissions::new(&config.stream_prefix));
        let reported = Arc::clone(&refused);
        // The first check follows at once. Until then a connection counts as enough.
        let (is_up, was_up) = watch::channel(true);
        let breaks = is_up.clone();
        let client = config
            .access
            .options_for(name, &mut servers)?
            .retry_on_initial_connect()
            .reconnect_delay_callback(|attempts| {
                Duration::from_millis(100 * u64::try_from(attempts).unwrap_or(10).min(10))
            })
            .event_callback(move |event| {
                if matches!(event, Event::Disconnected) {
                    breaks.send_replace(false);
                }
                log_event(&event, &reported);
                std::future::ready(())
            })
            .connect(servers)
            .await
            .context("cannot start the connection to NATS_URL")?;
        let context = jetstream::ContextBuilder::new()
            .timeout(Duration::from_secs(5))
            .ack_timeout(Duration::from_secs(5))
            .max_ack_inflight(50_000)
            .backpressure_on_inflight(false)
            .build(client.clone());
        let nats = Self {
            client,
            context,
            config: config.clone(),
            was_up,
            unpublished: Arc::new(Sampler::every(LOG_EVERY)),
            refused,
            unsent: TaskTracker::new(),
        };
        tokio::spawn(majority::watch(MajorityWatch {
            client: nats.client.clone(),
            context: nats.context.clone(),
            streams: [JOBS, READY].map(|stream| nats.stream_name(stream)),
            is_up,
        }));
        Ok(nats)
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whether NATS is up: it is connected, and JetStream can store messages. If it is not,
    /// messages to streams are dropped instead of queued, because their rows start once they are
    /// due.
    pub fn is_up(&self) -> bool {
        *self.was_up.borrow() && self.is_connected()
    }

    /// What the server refuses for lack of a permission, for operators; `None` if nothing.
    pub fn refused(&self) -> Option<String> {
        self.refused.lasting()
    }

    /// Whether there is a connection. Reports need no more than that, because no server stores
    /// them: one that survives alone still passes them on, and ingress still waits for the verdicts
    /// on orders that it accepted a moment ago.
    pub(crate) fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Waits until NATS is up, polling several times a second.
    pub async fn until_up(&self) {
        while !self.is_up() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until NATS is down, even if it is only for a moment.
    pub(crate) async fn until_down(&self) {
        // The senders live as long as this connection, so this cannot fail.
        let _ = self.was_up.clone().wait_for(|is_up| !is_up).await;
    }

    /// Sends the messages that are buffered here and in batchers. This is the last thing that a
    /// process does before it ends.
    pub async fn flush(&self) {
        if self.is_connected() {
            self.unsent.close();
            let flushed = async {
                self.unsent.wait().await;
                self.client.flush().await
            };
            let _ = tokio::time::timeout(FLUSH, flushed).await;
        }
    }

    /// Sends what the connection has buffered, so that an effect has happened before its failpoint.
    #[cfg(all(feature = "failpoints", debug_assertions))]
    pub(crate) async fn send_now(&self) {
        let _ = tokio::time::timeout(FLUSH, self.client.flush()).await;
    }

    pub fn job_subject(&self, provider: &str) -> String {
        format!("{}topup.job.{provider}", self.config.stream_prefix)
    }

    /// The one subject of all readiness events. Unlike a job's, it names no provider, because every
    /// notifier serves every partner. It ends in `batch` only because the stream and the
    /// permissions cover the subjects below `topup.ready`, and not that subject itself.
    pub fn ready_batch_subject(&self) -> String {
        format!("{}topup.ready.batch", self.config.stream_prefix)
    }

    /// The subjects of the stream of readiness events.
    pub fn ready_subjects(&self) -> String {
        format!("{}topup.ready.>", self.config.stream_prefix)
    }

    pub fn dead_subject(&self, kind: &str) -> String {
        format!("{}topup.dead.{kind}", self.config.stream_prefix)
    }

    /// The subject on which one ingress process receives reports about the orders that it is
    /// answering.
    pub fn reports_subject(&self, ingress: Uuid) -> String {
        format!(
            "{}topup.answer.{}",
            self.config.stream_prefix,
            ingress.simple()
        )
    }

    /// The subject on which all ingress processes, or the one with this id, hear of answers that
    /// have left.
    pub fn left_subject(&self, ingress: Option<Uuid>) -> String {
        let to = ingress.map_or_else(|| "all".to_owned(), |id| id.simple().to_string());
        format!("{}topup.left.{to}", self.config.stream_prefix)
    }

    /// The subject of the heartbeats of a provider, or of all providers if `provider` is `*`.
    pub fn heartbeat_subject(&self, provider: &str) -> String {
        format!("{}topup.heartbeat.{provider}", self.config.stream_prefix)
    }

    /// A stream's name on this server.
    pub fn stream_name(&self, base: &str) -> String {
        format!("{}{base}", self.config.stream_prefix)
    }

    /// Creates missing streams. A stream that exists is left alone, because an operator may have
    /// changed it.
    ///
    /// The streams of work are kept in memory, drop their oldest messages when they are full, and
    /// forget every message after [`MAX_AGE`]. Nothing depends on them: a message says only that a
    /// row is new, and the sweep finds every row whose message was lost. The stream of dead
    /// messages is kept on disk, because an operator should be able to look at it days later.
    pub async fn ensure_streams(&self) -> anyhow::Result<()> {
        let work = |base: &str, subject: String| Config {
            name: self.stream_name(base),
            subjects: vec![subject],
            retention: RetentionPolicy::Limits,
            storage: StorageType::Memory,
            discard: DiscardPolicy::Old,
            max_bytes: WORK_BYTES,
            max_age: MAX_AGE,
            max_message_size: MAX_MESSAGE,
            max_consumers: MAX_CONSUMERS,
            num_replicas: self.config.stream_replicas.into(),
            ..Config::default()
        };
        let dead = Config {
            name: self.stream_name(DEAD),
            subjects: vec![self.dead_subject(">")],
            retention: RetentionPolicy::Limits,
            storage: StorageType::File,
            discard: DiscardPolicy::Old,
            max_bytes: 256 * MIB,
            max_age: Duration::from_hours(30 * 24),
            num_replicas: self.config.stream_replicas.into(),
            ..Config::default()
        };
        let jobs = Config {
            max_messages_per_subject: MAX_JOBS,
            ..work(JOBS, self.job_subject(">"))
        };
        for config in [jobs, work(READY, self.ready_subjects()), dead] {
            let name = config.name.clone();
            if let Err(error) = self.context.get_or_create_stream(config).await {
                let servers = TooFewServers(self.config.stream_replicas);
                let too_few = has_too_few_servers(&error);
                let error =
                    anyhow::Error::new(error).context(format!("cannot make the stream {name}"));
                return Err(if too_few {
                    error.context(servers)
                } else {
                    error
                });
            }
        }
        Ok(())
    }

    /// The durable consumer of a source. It and its streams are created if they are missing. The
    /// server counts a message as taken once it has sent it, without an acknowledgement. If the
    /// process that took it dies, the sweep finds its rows, which is sooner than a redelivery would
    /// be.
    pub(crate) async fn consumer(&self, source: &MessageSource) -> anyhow::Result<PullConsumer> {
        self.ensure_streams().await?;
        self.context
            .create_consumer_on_stream(
                pull::Config {
                    durable_name: Some(source.durable.clone()),
                    filter_subject: source.subject.clone(),
                    ack_policy: AckPolicy::None,
                    ..pull::Config::default()
                },
                self.stream_name(source.stream),
            )
            .await
            .with_context(|| format!("cannot make the consumer {}", source.durable))
    }
}

/// The cluster has fewer servers than `STREAM_REPLICAS`, which no retry can change.
#[derive(Debug, thiserror::Error)]
#[error(
    "STREAM_REPLICAS={0} needs a cluster of at least {0} NATS servers: start what is missing, or \
     set STREAM_REPLICAS to the number of servers"
)]
pub(crate) struct TooFewServers(u8);

fn has_too_few_servers(error: &CreateStreamError) -> bool {
    let CreateStreamErrorKind::JetStream(error) = error.kind() else {
        return false;
    };
    let code = error.error_code();
    code == ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED || code == ErrorCode::CLUSTER_NO_PEERS
}

/// Where the messages of a stage come from.
#[derive(Clone, Debug)]
pub struct MessageSource {
    /// The stream, without prefix.
    pub stream: &'static str,
    /// The consumer's durable name; replicas share it.
    pub durable: String,
    /// The filter on the stream's subjects.
    pub subject: String,
}

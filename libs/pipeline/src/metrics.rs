//! The metrics that all stages share: the rows that a stage works on, the rows that are due, and
//! the messages that wait in JetStream. docs/metrics.md describes each.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_nats::jetstream::{consumer::pull, stream::ClusterInfo};
use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge, UpDownCounter},
};
use pg::primary::Pulse;
use runtime::{Shutdown, lock, metrics::Instruments};

use crate::{Nats, queues::TicketClass};

/// The interval between two reads of JetStream's state.
const PERIOD: Duration = Duration::from_secs(5);

/// Metrics of the rows that a stage works on.
#[derive(Clone)]
pub(crate) struct RowMetrics {
    in_flight: UpDownCounter<i64>,
    claimed: Counter<u64>,
    deferred: Counter<u64>,
    swept: Counter<u64>,
    drained: Counter<u64>,
    stage: [KeyValue; 1],
    /// The attributes of [`due_of`].
    due: Arc<[KeyValue]>,
}

/// Counts a row as in flight until it is dropped.
pub(crate) struct InFlight {
    metrics: RowMetrics,
    class: TicketClass,
}

/// The attributes of due rows: the stage, and the provider if the stage has several.
fn due_of(stage: &'static str, provider: Option<String>) -> Arc<[KeyValue]> {
    let provider = provider.map(|provider| KeyValue::new("provider", provider));
    std::iter::once(KeyValue::new("stage", stage))
        .chain(provider)
        .collect()
}

/// The gauge of the rows that are due in PostgreSQL. Each stage reads their number and shows it
/// here.
#[derive(Clone)]
pub struct DueRows(Gauge<u64>, &'static str);

impl DueRows {
    pub fn new(stage: &'static str) -> Self {
        let description = "Rows that are due in PostgreSQL, counted up to a limit";
        Self(
            Instruments::of("pipeline").gauge("esim.due.rows", description),
            stage,
        )
    }

    pub fn show(&self, provider: Option<String>, rows: u64) {
        self.0.record(rows, &due_of(self.1, provider));
    }
}

/// What the pulse of a process shows about PostgreSQL.
pub(crate) struct PulseMetrics {
    commit: Gauge<f64>,
    replicated: Gauge<u64>,
    clock_ahead: Gauge<f64>,
    losses: Gauge<u64>,
}

impl PulseMetrics {
    pub(crate) fn new() -> Self {
        let make = Instruments::of("pipeline");
        let metrics = Self {
            commit: make.seconds(
                "esim.database.commit",
                "How long the last pulse of this process took to commit",
            ),
            replicated: make.gauge(
                "esim.database.replicated",
                "1 if commits wait for a standby, so that they survive the loss of the primary, \
                 else 0",
            ),
            clock_ahead: make.seconds(
                "esim.database.clock_ahead",
                "How far PostgreSQL's clock is at least ahead of this process's; negative if it is behind",
            ),
            losses: make.gauge(
                "esim.database.losses",
                "How often this process has been the first to find that PostgreSQL lost commits",
            ),
        };
        // A rise can be seen only if there is a value before it.
        metrics.losses.record(0, &[]);
        metrics
    }

    pub(crate) fn show(&self, pulse: &Pulse, took: Duration) {
        self.commit.record(took.as_secs_f64(), &[]);
        self.replicated.record(pulse.is_replicated.into(), &[]);
        self.clock_ahead.record(pulse.clock_ahead, &[]);
        self.losses.record(pulse.losses, &[]);
    }
}

impl RowMetrics {
    pub(crate) fn new(stage: &'static str, provider: Option<String>) -> Self {
        let make = Instruments::of("pipeline");
        let metrics = Self {
            in_flight: global::meter("pipeline")
                .i64_up_down_counter("esim.jobs.in_flight")
                .with_description("Rows that this process works on")
                .build(),
            claimed: make.counter(
                "esim.jobs.claimed",
                "Rows that were claimed, because of a message or because they were due",
            ),
            deferred: make.counter(
                "esim.jobs.deferred",
                "Rows of messages that became due at once, because their lane is full, slow or \
                 failing",
            ),
            swept: make.counter(
                "esim.due.swept",
                "Rows that became due because their first lease ended without an outcome",
            ),
            drained: make.counter("esim.due.drained", "Due rows that were worked on"),
            stage: [KeyValue::new("stage", stage)],
            due: due_of(stage, provider),
        };
        // A rate can be computed only if its counter exists from the start, so each begins with 0.
        metrics.deferred.add(0, &metrics.due);
        metrics.drained.add(0, &metrics.due);
        metrics.swept.add(0, &metrics.stage);
        metrics
    }

    pub(crate) fn claimed(&self, rows: usize, class: TicketClass) {
        let source = match class {
            TicketClass::Fresh => "message",
            TicketClass::Due => "due",
        };
        let [stage] = self.stage.clone();
        self.claimed
            .add(count(rows), &[stage, KeyValue::new("source", source)]);
    }

    pub(crate) fn deferred(&self, rows: usize) {
        self.deferred.add(count(rows), &self.due);
    }

    pub(crate) fn swept(&self, rows: u64) {
        self.swept.add(rows, &self.stage);
    }

    pub(crate) fn count_in_flight(&self, class: TicketClass) -> InFlight {
        self.in_flight.add(1, &self.stage);
        InFlight {
            metrics: self.clone(),
            class,
        }
    }
}

fn count(rows: usize) -> u64 {
    u64::try_from(rows).unwrap_or(u64::MAX)
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.metrics.in_flight.add(-1, &self.metrics.stage);
        if self.class == TicketClass::Due {
            self.metrics.drained.add(1, &self.metrics.due);
        }
    }
}

/// A stream to watch, with the consumers of this process.
#[derive(Clone, Debug)]
pub struct WatchedStream {
    /// The stream, without prefix.
    pub stream: &'static str,
    /// The durable names of the consumers.
    pub consumers: Vec<String>,
}

/// What JetStream last reported, for each of [`GAUGES`]. It is empty during an outage, because old
/// numbers would mislead.
type Seen = [Vec<(u64, Vec<KeyValue>)>; 3];

/// The gauges of streams and consumers, with their descriptions.
const GAUGES: [(&str, &str); 3] = [
    (
        "esim.stream.messages",
        "Messages in a stream, taken ones of the last minute included",
    ),
    (
        "esim.stream.replicas",
        "Servers that hold a stream, by state: current, lagging, offline",
    ),
    (
        "esim.consumer.pending",
        "Messages that a consumer has not taken yet",
    ),
];

/// Reads the state of streams and consumers until the soft stop, and shows it as gauges.
pub async fn watch(
    nats: Nats,
    watched: Vec<WatchedStream>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    show(&seen);
    let mut ticks = shutdown.ticks(PERIOD);
    while ticks.next().await {
        let looked = look(&nats, &watched).await;
        *lock(&seen) = looked;
    }
    Ok(())
}

async fn look(nats: &Nats, watched: &[WatchedStream]) -> Seen {
    let mut seen = Seen::default();
    let [messages, by_state, pending] = &mut seen;
    if !nats.is_up() {
        return seen;
    }
    for WatchedStream { stream, consumers } in watched {
        // A missing stream is left out here. It is created by whoever publishes to it or pulls from
        // it.
        let Ok(found) = nats.context.get_stream(nats.stream_name(stream)).await else {
            continue;
        };
        let of_stream = KeyValue::new("stream", *stream);
        messages.push((found.cached_info().state.messages, vec![of_stream.clone()]));
        for (state, servers) in replicas(found.cached_info().cluster.as_ref()) {
            by_state.push((
                servers,
                vec![of_stream.clone(), KeyValue::new("state", state)],
            ));
        }
        for name in consumers {
            let Ok(consumer) = found.get_consumer::<pull::Config>(name).await else {
                continue;
            };
            let info = consumer.cached_info();
            let of = vec![of_stream.clone(), KeyValue::new("consumer", name.clone())];
            pending.push((info.num_pending, of));
        }
    }
    seen
}

/// The servers that hold a stream, by state. A server without a cluster holds its streams alone.
fn replicas(cluster: Option<&ClusterInfo>) -> [(&'static str, u64); 3] {
    let others = cluster.map_or(&[][..], |cluster| &cluster.replicas);
    let leaders = usize::from(cluster.is_none_or(|cluster| cluster.leader.is_some()));
    let offline = others.iter().filter(|peer| peer.offline).count();
    let current = others
        .iter()
        .filter(|peer| peer.current && !peer.offline)
        .count();
    [
        ("current", count(leaders + current)),
        ("lagging", count(others.len() - current - offline)),
        ("offline", count(offline)),
    ]
}

fn show(seen: &Arc<Mutex<Seen>>) {
    for (index, (name, description)) in GAUGES.into_iter().enumerate() {
        let seen = Arc::clone(seen);
        global::meter("pipeline")
            .u64_observable_gauge(name)
            .with_description(description)
            .with_callback(move |gauge| {
                for (value, of) in &lock(&seen)[index] {
                    gauge.observe(*value, of);
                }
            })
            .build();
    }
}

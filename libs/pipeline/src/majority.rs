//! Watches whether JetStream can store messages, because a connection to NATS does not show it.
//!
//! A cluster of three servers stores a message once two of them have it. If two servers die, the
//! third one still accepts connections and messages, and loses every message. A stage that trusted
//! its connection would be worse off than without NATS: ingress would wait for verdicts on jobs
//! that nobody gets, and the provisioner would announce deliveries to nobody instead of making them
//! due. So a cluster without a majority counts as down, and [`Nats::is_up`](crate::Nats::is_up)
//! says so.
//!
//! [`watch`] asks the leaders of both streams of work for their state. Two things show that nothing
//! can be stored: nobody responds, because the stream has no leader; or its leader has not heard
//! from enough of the other servers for [`SILENCE`]. The second one matters because a leader that
//! has lost the others goes on responding for some 20 s, and calls them up to date as long as that.
//! The only figure that changes at once is the time since it last heard from them.

use std::time::{Duration, Instant};

use async_nats::{
    Client,
    connection::State,
    jetstream::{
        self, ErrorCode,
        context::{GetStreamError, GetStreamErrorKind},
        stream::ClusterInfo,
    },
};
use opentelemetry::metrics::Gauge;
use runtime::metrics::Instruments;
use tokio::{sync::watch::Sender, time::timeout};

/// The pause between two checks while NATS is up.
const PERIOD: Duration = Duration::from_secs(1);
/// The pause while the one server of a system without a cluster is up. It has no majority to lose,
/// and the client notices at once if the connection breaks.
const ALONE_PERIOD: Duration = Duration::from_secs(5);
/// The pause while it is down, or may be. It is shorter, so that messages are used again soon.
const DOWN_PERIOD: Duration = Duration::from_millis(250);
/// How long a check waits for a response.
const RESPONSE: Duration = Duration::from_millis(500);
/// How long a fault must last before it counts. A stream that is being created has no leader for a
/// moment, for example, and that is no outage. It is longer than one check, so that a single
/// response that is lost does not count either.
const LASTING: Duration = Duration::from_secs(1);
/// The silence after which a server counts as gone. The servers of a stream send each other a
/// heartbeat each second, so a healthy one is never silent for much longer than that.
const SILENCE: Duration = Duration::from_secs(2);

/// What [`watch`] needs of a connection.
pub(crate) struct MajorityWatch {
    pub(crate) client: Client,
    pub(crate) context: jetstream::Context,
    /// The names of the streams of work.
    pub(crate) streams: [String; 2],
    /// The result of the last check. The watch ends when nobody looks at it any more.
    pub(crate) is_up: Sender<bool>,
}

/// Who stores the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Servers {
    /// A server without a cluster.
    One,
    Several,
}

impl Servers {
    fn of(cluster: &ClusterInfo) -> Self {
        let is_named = cluster.name.as_ref().is_some_and(|name| !name.is_empty());
        if is_named || !cluster.replicas.is_empty() {
            Self::Several
        } else {
            Self::One
        }
    }
}

/// Why messages cannot be stored.
#[derive(Debug)]
struct Fault {
    reason: String,
    /// How long that has been so at least when the check began.
    lasted: Duration,
}

/// Checks JetStream once a second until the connection is dropped, and a server without a cluster
/// every five seconds. Each change is logged once, and `esim_nats_up` shows the state.
pub(crate) async fn watch(watched: MajorityWatch) {
    let gauge = nats_up();
    let mut since: Option<Instant> = None;
    let mut logged: Option<Instant> = None;
    // Since when it is connected without using messages.
    let mut waiting: Option<Instant> = None;
    while !watched.is_up.is_closed() {
        let began = Instant::now();
        // A connection that broke is logged by the client's own event, so it needs no line here.
        let is_connected = watched.client.connection_state() == State::Connected;
        let was_up = *watched.is_up.borrow();
        waiting = (is_connected && !was_up).then(|| waiting.unwrap_or(began));
        // Right after two servers have died, the third one has heard from them less than `SILENCE`
        // ago. A stage that reconnects to it must not take that for a majority, so it waits until
        // the server has heard from the others again.
        let silence = waiting.map_or(SILENCE, |waiting| SILENCE.min(waiting.elapsed()));
        let state = if is_connected {
            watched.state(silence).await
        } else {
            Ok(Servers::Several)
        };
        let is_alone = matches!(state, Ok(Servers::One));
        let fault = state.err();
        since = fault.as_ref().map(|fault| {
            let from = began.checked_sub(fault.lasted).unwrap_or(began);
            since.map_or(from, |since| since.min(from))
        });
        let is_faulty = since.is_some_and(|since| since.elapsed() >= LASTING);
        // A stage that uses messages goes on until a fault has lasted. One that does not use them
        // begins only after a check without any fault, so that the state does not alternate.
        let works = fault.is_none() || was_up && !is_faulty;
        let up = is_connected && works;
        watched.is_up.send_replace(up);
        gauge.record(up.into(), &[]);
        if is_faulty && logged.is_none() {
            logged = since;
            tracing::warn!(
                reason = fault.as_ref().map(|fault| fault.reason.as_str()),
                "JetStream stores no messages although NATS accepts connections, so nothing is \
                 published, as if NATS were down. Until that ends the stages find their rows in \
                 PostgreSQL once they are due; start the NATS servers that are missing, because a \
                 majority of them must run"
            );
        }
        if up && let Some(began) = logged.take() {
            let seconds = began.elapsed().as_secs();
            tracing::info!(
                seconds,
                "JetStream stores messages again, so the stages publish and pull them as before"
            );
        }
        let is_sound = up && fault.is_none();
        let pause = if !is_sound {
            DOWN_PERIOD
        } else if is_alone {
            ALONE_PERIOD
        } else {
            PERIOD
        };
        // A connection that breaks ends the pause, so that it is checked again as soon as it is
        // back.
        let mut breaks = watched.is_up.subscribe();
        let _ = timeout(pause, breaks.wait_for(|is_up| up && !is_up)).await;
    }
}

impl MajorityWatch {
    /// Whether one server or several store the messages. The error is why they cannot be stored in
    /// one of the streams. A server that was not heard from for `silence` counts as gone.
    async fn state(&self, silence: Duration) -> Result<Servers, Fault> {
        let [jobs, ready] = &self.streams;
        let (jobs, ready) =
            tokio::join!(self.state_of(jobs, silence), self.state_of(ready, silence));
        Ok(match (jobs?, ready?) {
            (Servers::One, Servers::One) => Servers::One,
            _ => Servers::Several,
        })
    }

    async fn state_of(&self, stream: &str, silence: Duration) -> Result<Servers, Fault> {
        match timeout(RESPONSE, self.context.get_stream(stream)).await {
            Ok(Ok(found)) => {
                let Some(cluster) = &found.cached_info().cluster else {
                    return Ok(Servers::One);
                };
                match without_majority(stream, cluster, silence) {
                    Some(fault) => Err(fault),
                    None => Ok(Servers::of(cluster)),
                }
            }
            // Whoever publishes to the stream or pulls from it creates it.
            Ok(Err(error)) if is_missing(&error) => Ok(Servers::Several),
            Ok(Err(error)) => Err(Fault {
                reason: format!("the state of {stream} cannot be read: {error}"),
                lasted: Duration::ZERO,
            }),
            Err(_) => Err(Fault {
                reason: format!("no server responds about {stream}, so it has no leader"),
                lasted: Duration::ZERO,
            }),
        }
    }
}

fn is_missing(error: &GetStreamError) -> bool {
    matches!(
        error.kind(),
        GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND
    )
}

/// Says that a stream has no leader, or that its leader hears from too few servers to make up a
/// majority with them. `None` if messages can be stored.
fn without_majority(stream: &str, cluster: &ClusterInfo, silence: Duration) -> Option<Fault> {
    if cluster.leader.as_deref().unwrap_or_default().is_empty() {
        return Some(Fault {
            reason: format!("{stream} has no leader"),
            lasted: Duration::ZERO,
        });
    }
    let others = &cluster.replicas;
    let heard = others
        .iter()
        .filter(|peer| !peer.offline && peer.active < silence)
        .count();
    let servers = others.len() + 1;
    let working = heard + 1;
    (2 * working <= servers).then(|| Fault {
        reason: format!("only {working} of the {servers} servers of {stream} are working"),
        lasted: silence,
    })
}

/// The gauge that says whether NATS is up, as [`Nats::is_up`](crate::Nats::is_up) does.
fn nats_up() -> Gauge<u64> {
    Instruments::of("pipeline").gauge(
        "esim.nats.up",
        "1 if this process is connected to NATS and JetStream can store messages, else 0",
    )
}

#[cfg(test)]
mod tests {
    use async_nats::jetstream::stream::PeerInfo;

    use super::*;

    /// A stream that is led by a server, with the time since each of the others was last heard.
    fn cluster(silences: &[Duration]) -> ClusterInfo {
        let mut cluster: ClusterInfo =
            serde_json::from_value(serde_json::json!({ "leader": "nats-0" })).unwrap();
        cluster.replicas = silences
            .iter()
            .map(|active| PeerInfo {
                name: "other".into(),
                current: true,
                active: *active,
                ..PeerInfo::default()
            })
            .collect();
        cluster
    }

    #[test]
    fn a_server_is_alone_only_without_a_cluster() {
        let mut alone = cluster(&[]);
        assert_eq!(Servers::of(&alone), Servers::One);
        assert_eq!(Servers::of(&cluster(&[SILENCE])), Servers::Several);
        // A stream with one replica, of which another server of the cluster is the leader.
        alone.name = Some("nats".into());
        assert_eq!(Servers::of(&alone), Servers::Several);
    }

    #[test]
    fn a_leader_that_hears_from_too_few_servers_stores_nothing() {
        let heard = Duration::from_millis(990);
        for enough in [&[][..], &[heard, heard], &[heard, SILENCE]] {
            assert!(without_majority("JOBS", &cluster(enough), SILENCE).is_none());
        }
        for too_few in [&[SILENCE][..], &[SILENCE, SILENCE]] {
            let fault = without_majority("JOBS", &cluster(too_few), SILENCE).unwrap();
            let servers = too_few.len() + 1;
            let reason = format!("only 1 of the {servers} servers of JOBS are working");
            assert_eq!(fault.reason, reason);
            assert!(fault.lasted >= LASTING, "it counts at once");
        }

        // To a stage that has just reconnected, what was heard before that proves nothing.
        let before = Duration::from_millis(250);
        assert!(without_majority("JOBS", &cluster(&[heard, heard]), before).is_some());

        let mut offline = cluster(&[heard, heard]);
        for peer in &mut offline.replicas {
            peer.offline = true;
        }
        assert!(without_majority("JOBS", &offline, SILENCE).is_some());
        let mut leaderless = cluster(&[heard, heard]);
        leaderless.leader = None;
        let fault = without_majority("JOBS", &leaderless, SILENCE).unwrap();
        assert_eq!(fault.reason, "JOBS has no leader");
        assert!(fault.lasted < LASTING, "an election is no outage yet");
    }
}

//! NATS: whether it takes our user, has its streams, and keeps the same time.

use std::{path::Path, time::Duration};

use async_nats::{Client, ConnectErrorKind, ServerAddr};
use desk::operator::{
    health::{Finding, FindingKind, finding::Clock},
    words::counted,
};
use pipeline::{
    NatsAccess,
    streams::{DEAD, JOBS, READY},
};
use runtime::files;
use secrecy::ExposeSecret;
use serde::Deserialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::time::timeout;

use crate::{
    doctor::{
        command::DoctorArgs,
        database::{seconds_of, skew},
        line::Lines,
    },
    output::one_line,
};

const PATIENCE: Duration = Duration::from_secs(5);
const STAGES: [&str; 3] = ["ingress", "provisioner", "notifier"];
const DOWN: &str = "docs/operations.md#natsdown";

pub async fn check(command: &DoctorArgs, lines: &mut Lines<'_>) {
    let url = command.nats_url.as_ref();
    let Some(url) = url.filter(|url| !url.expose_secret().is_empty()) else {
        lines.warning(
            "nats",
            "not checked, because NATS_URL is not set",
            "set NATS_URL and NATS_PASSWORD, or say --without nats",
            DOWN,
        );
        return;
    };
    let servers: Option<Vec<ServerAddr>> = url
        .expose_secret()
        .split(',')
        .map(|url| url.trim().parse().ok())
        .collect();
    let Some(servers) = servers else {
        lines.fault(
            "nats",
            "NATS_URL is not of the form nats://host:port",
            "correct it; separate several addresses by commas",
            DOWN,
        );
        return;
    };
    if let Some(client) = connect(&command.access, "operator", &servers, lines).await {
        server(&client, lines);
        for stream in [JOBS, READY, DEAD] {
            stream_of(command, stream, &client, lines).await;
        }
    }
    if let Some(secrets) = &command.secrets {
        for stage in STAGES {
            log_in(command, stage, secrets, &servers, lines).await;
        }
    }
}

async fn connect(
    access: &NatsAccess,
    user: &str,
    servers: &[ServerAddr],
    lines: &mut Lines<'_>,
) -> Option<Client> {
    let mut servers = servers.to_vec();
    let options = match access.options_for(user, &mut servers) {
        Ok(options) => options.connection_timeout(PATIENCE).max_reconnects(1),
        Err(error) => {
            lines.fault(
                "nats",
                one_line(&format!("{error:#}")),
                "correct the setting",
                DOWN,
            );
            return None;
        }
    };
    match timeout(PATIENCE, options.connect(servers)).await {
        Ok(Ok(client)) => {
            lines.fine("nats", format!("it takes the user {user}"));
            return Some(client);
        }
        Ok(Err(error)) if error.kind() == ConnectErrorKind::AuthorizationViolation => lines.fault(
            "nats",
            format!("it refuses the user {user} or its password"),
            "give server and client the same password, and restart both",
            "docs/operations.md#rotate-keys",
        ),
        Ok(Err(error)) => down(
            format!("it cannot be reached: {}", one_line(&error.to_string())),
            lines,
        ),
        Err(_) => down(format!("it does not answer within {PATIENCE:?}"), lines),
    }
    None
}

fn found(kind: FindingKind, lines: &mut Lines<'_>) {
    lines.finding(Finding::new(kind, None));
}

fn down(why: String, lines: &mut Lines<'_>) {
    found(FindingKind::NatsDown { why }, lines);
}

fn server(client: &Client, lines: &mut Lines<'_>) {
    let info = client.server_info();
    if info.jetstream {
        lines.fine("jetstream", format!("server {}", info.version));
    } else {
        lines.fault(
            "jetstream",
            "the server runs without JetStream, so no message is kept",
            "start it with the configuration in deploy/nats",
            DOWN,
        );
    }
}

/// What we read of the description of a stream.
#[derive(Deserialize)]
struct Described {
    error: Option<Refused>,
    config: Option<Config>,
    state: Option<StreamState>,
    cluster: Option<ClusterState>,
    ts: Option<String>,
}

#[derive(Deserialize)]
struct Refused {
    code: u16,
    description: String,
}

#[derive(Deserialize)]
struct Config {
    num_replicas: u64,
}

#[derive(Deserialize)]
struct StreamState {
    messages: u64,
    consumer_count: u64,
}

#[derive(Deserialize)]
struct ClusterState {
    leader: Option<String>,
    #[serde(default)]
    replicas: Vec<Replica>,
}

#[derive(Deserialize)]
struct Replica {
    name: String,
    current: bool,
    #[serde(default)]
    offline: bool,
}

async fn stream_of(command: &DoctorArgs, base: &str, client: &Client, lines: &mut Lines<'_>) {
    let name = format!("{}{base}", command.stream_prefix);
    let before = runtime::clock::now();
    let asked = client.request(format!("$JS.API.STREAM.INFO.{name}"), "".into());
    let answer = match timeout(PATIENCE, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            unanswered(&name, &error.to_string(), lines);
            return;
        }
        Err(_) => {
            unanswered(&name, "no answer", lines);
            return;
        }
    };
    let after = runtime::clock::now();
    let described: Described = match serde_json::from_slice(&answer.payload) {
        Ok(described) => described,
        Err(error) => {
            unanswered(
                &name,
                &format!("the answer is not understood: {error}"),
                lines,
            );
            return;
        }
    };
    if let Some(error) = described.error {
        if error.code == 404 {
            found(FindingKind::StreamMissing { stream: name }, lines);
        } else {
            unanswered(&name, &error.description, lines);
        }
        return;
    }
    replicas(command, &name, &described, lines);
    if let Some(state) = &described.state {
        messages(base, &name, state, lines);
    }
    let there = described
        .ts
        .and_then(|ts| OffsetDateTime::parse(&ts, &Rfc3339).ok());
    if let Some(there) = there
        && base == JOBS
    {
        let here = before + (after - before) / 2;
        skew(Clock::Nats, seconds_of(there) - seconds_of(here), lines);
    }
}

fn unanswered(name: &str, why: &str, lines: &mut Lines<'_>) {
    lines.fault(
        "streams",
        format!("JetStream does not describe {name}: {}", one_line(why)),
        "a cluster needs most of its servers; see the log of NATS",
        DOWN,
    );
}

fn counted_copies(copies: u64) -> String {
    counted(i64::try_from(copies).unwrap_or(i64::MAX), "copy", "copies")
}

fn replicas(command: &DoctorArgs, name: &str, described: &Described, lines: &mut Lines<'_>) {
    let copies = described
        .config
        .as_ref()
        .map_or(0, |config| config.num_replicas);
    let cluster = described.cluster.as_ref();
    let behind: Vec<&str> = cluster
        .map(|cluster| cluster.replicas.as_slice())
        .unwrap_or_default()
        .iter()
        .filter(|one| one.offline || !one.current)
        .map(|one| one.name.as_str())
        .collect();
    if cluster.is_some_and(|cluster| cluster.leader.as_deref() == Some("")) {
        lines.fault(
            "streams",
            format!("{name} has no leader"),
            "start the NATS servers that are down",
            DOWN,
        );
    } else if !behind.is_empty() {
        let kind = FindingKind::ReplicasMissing {
            stream: name.to_owned(),
            on: behind.into_iter().map(str::to_owned).collect(),
        };
        found(kind, lines);
    } else if copies != command.stream_replicas {
        lines.warning(
            "streams",
            format!("{name} has {}, but STREAM_REPLICAS is {}", counted_copies(copies), command.stream_replicas),
            "set STREAM_REPLICAS as the services have it; an existing stream is changed with the command line of NATS",
            "docs/operations.md#streamreplicasmissing",
        );
    } else {
        lines.fine("streams", format!("{name} has {}", counted_copies(copies)));
    }
}

fn messages(base: &str, name: &str, state: &StreamState, lines: &mut Lines<'_>) {
    if base == DEAD {
        if state.messages > 0 {
            let kind = FindingKind::DeadMessages {
                stream: name.to_owned(),
                messages: state.messages,
            };
            found(kind, lines);
        } else {
            lines.fine("dead messages", "there are none");
        }
    } else if state.consumer_count == 0 {
        let kind = FindingKind::ConsumerMissing {
            stream: name.to_owned(),
        };
        found(kind, lines);
    } else {
        lines.fine("consumers", format!("{name} has {}", state.consumer_count));
    }
}

/// Logs in as a stage with the password of its file.
async fn log_in(
    command: &DoctorArgs,
    stage: &str,
    secrets: &Path,
    servers: &[ServerAddr],
    lines: &mut Lines<'_>,
) {
    let file = secrets.join(format!("nats-{stage}"));
    match files::value(&file) {
        Ok(password) => {
            let access = NatsAccess {
                nats_password: Some(password.into()),
                nats_ca_file: command.access.nats_ca_file.clone(),
            };
            connect(&access, stage, servers, lines).await;
        }
        Err(error) => lines.fault(
            "nats",
            format!("{error:#}"),
            "name the folder that `esimctl secrets create` has made",
            "docs/operations.md#start",
        ),
    }
}

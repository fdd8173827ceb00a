//! NATS for tests: a server of a test's own, and on the shared server the removal of a test's
//! streams.

use crate::process::{Process, Program};
use crate::{cleanup, ports};
use anyhow::{Context, Result};
use futures_util::TryStreamExt;
use std::collections::BTreeMap;
use std::path::Path;

/// A real `nats-server` with `JetStream` in a folder of its own, for tests that stop it or lose its
/// storage. Its port stays the same over restarts.
#[derive(Debug)]
pub struct NatsServer {
    /// The process, which the test may stop, kill, stall and start again. Its storage stays.
    pub process: Process,
    store: std::path::PathBuf,
    url: String,
}

impl NatsServer {
    /// Starts `NATS_SERVER_BIN` (default: `nats-server` in the search path), with its storage and
    /// its log in `folder`.
    pub async fn start(folder: &Path) -> Result<Self> {
        Self::start_with(folder, None).await
    }

    /// Does the same with a configuration file.
    pub async fn start_with(folder: &Path, config: Option<&Path>) -> Result<Self> {
        let config = config.map(|config| ["-c".into(), config.display().to_string()]);
        let further = config.into_iter().flatten().collect();
        let mut server = Self::new(folder, "nats-server", further)?;
        server.process.start().await?;
        Ok(server)
    }

    /// Chooses the ports of a server, and makes its process, which is not started yet.
    fn new(folder: &Path, name: &str, further: Vec<String>) -> Result<Self> {
        let binary = std::env::var_os("NATS_SERVER_BIN").unwrap_or_else(|| "nats-server".into());
        let port = ports::free()?;
        let monitor = ports::free()?;
        let store = folder.join("jetstream");
        let args = format!("-n {name} -a 127.0.0.1 -p {port} -m {monitor} -js -sd");
        let mut args: Vec<String> = args.split(' ').map(String::from).collect();
        args.push(store.display().to_string());
        args.extend(further);
        let process = Process::new(Program {
            name: name.into(),
            binary: binary.into(),
            args,
            env: BTreeMap::new(),
            ready_url: format!("http://127.0.0.1:{monitor}/healthz"),
            log: folder.join("nats-server.log"),
        });
        Ok(Self {
            process,
            store,
            url: format!("nats://127.0.0.1:{port}"),
        })
    }

    /// The value for `NATS_URL`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Deletes the storage of a stopped server, and with it all streams, consumers and messages.
    pub fn wipe(&self) -> Result<()> {
        anyhow::ensure!(
            self.process.pid().is_none(),
            "stop nats-server before its storage is deleted"
        );
        std::fs::remove_dir_all(&self.store)
            .with_context(|| format!("cannot delete {}", self.store.display()))
    }
}

/// Three real `nats-server`s that form a cluster, for tests that take its majority away. Streams
/// with three copies (`STREAM_REPLICAS=3`) work while two of the servers do.
#[derive(Debug)]
pub struct NatsCluster {
    /// The servers, whose names in the cluster are `nats-0`, `nats-1` and `nats-2`. The test may
    /// stop, kill, stall and start each of them.
    pub servers: Vec<NatsServer>,
}

impl NatsCluster {
    /// Starts the servers, each in a folder of its own below `folder`, and waits until they have
    /// found each other.
    pub async fn start(folder: &Path) -> Result<Self> {
        let ports: Vec<u16> = (0..3).map(|_| ports::free()).collect::<Result<_>>()?;
        let addresses: Vec<String> = ports
            .iter()
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .collect();
        let routes = addresses.join(",");
        let mut servers = Vec::new();
        for (number, address) in addresses.iter().enumerate() {
            let name = format!("nats-{number}");
            let folder = folder.join(&name);
            std::fs::create_dir(&folder)?;
            let cluster = ["--cluster_name", "test", "--cluster", address, "--routes"];
            let mut further: Vec<String> = cluster.map(String::from).into();
            further.push(routes.clone());
            let mut server = NatsServer::new(&folder, &name, further)?;
            server.process.spawn()?;
            servers.push(server);
        }
        // A server is ready only once a majority of them runs.
        for server in &mut servers {
            server.process.ready().await?;
        }
        Ok(Self { servers })
    }

    /// The value for `NATS_URL`.
    pub fn url(&self) -> String {
        let urls: Vec<&str> = self.servers.iter().map(NatsServer::url).collect();
        urls.join(",")
    }
}

/// The `NATS_URL` of a stage on the shared server, with the stage's own user. It is read from
/// `INGRESS_NATS_URL` and so on.
pub fn url_of(stage: &str) -> Result<String> {
    crate::required(&format!("{}_NATS_URL", stage.to_uppercase()))
}

/// Connects with the user and the password that the URL contains. The client itself would ignore
/// them.
pub async fn connect(url: &str) -> Result<async_nats::Client> {
    let address: async_nats::ServerAddr = url.parse()?;
    let mut options = async_nats::ConnectOptions::new();
    if let (Some(user), Some(password)) = (address.username(), address.password()) {
        options = options.user_and_password(user.to_owned(), password.to_owned());
    }
    Ok(options.connect(address).await?)
}

/// The streams of one test on the shared server. They are deleted when this is dropped.
#[derive(Debug)]
pub struct OwnStreams {
    url: String,
    prefix: String,
}

impl OwnStreams {
    /// Takes the streams whose names begin with `prefix`, on the server at `url`.
    pub fn new(url: &str, prefix: &str) -> Self {
        Self {
            url: url.into(),
            prefix: prefix.into(),
        }
    }

    async fn delete(&self) -> Result<()> {
        let jetstream = async_nats::jetstream::new(connect(&self.url).await?);
        let names: Vec<String> = jetstream.stream_names().try_collect().await?;
        for name in names.iter().filter(|name| name.starts_with(&self.prefix)) {
            jetstream.delete_stream(name).await?;
        }
        Ok(())
    }
}

impl Drop for OwnStreams {
    fn drop(&mut self) {
        cleanup::run(&format!("streams {}*", self.prefix), self.delete());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_nats::jetstream::{self, stream::Config};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn only_streams_with_the_prefix_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let server = NatsServer::start(folder.path()).await.unwrap();
        let jetstream = jetstream::new(connect(server.url()).await.unwrap());
        for name in ["a_JOBS", "a_READY", "b_JOBS"] {
            let stream = Config {
                name: name.into(),
                subjects: vec![name.into()],
                ..Config::default()
            };
            jetstream.create_stream(stream).await.unwrap();
        }
        drop(OwnStreams::new(server.url(), "a_"));
        let left: Vec<String> = jetstream.stream_names().try_collect().await.unwrap();
        assert_eq!(left, ["b_JOBS"]);
    }
}

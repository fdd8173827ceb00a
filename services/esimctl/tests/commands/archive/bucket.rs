//! Archives in a bucket: at a server that speaks S3 and checks each signature, and at one that
//! loses a part of what it is sent.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, Response, StatusCode};
use sha2::{Digest, Sha256};
use testkit::wait;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    sync::Notify,
};

use super::{Archiver, shell};
use crate::support::{CONFIRMED, Ended, run};

const SECRET: &str = "the-secret-of-the-bucket";
const S3: &str = "s3://archives/esim";

/// A server with an empty bucket.
struct Bucket {
    endpoint: String,
    /// Where the server keeps its buckets.
    folder: tempfile::TempDir,
    _server: Child,
}

impl Bucket {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("archives")).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let server = Command::new(std::env::var("BUCKET_SERVER").unwrap())
            .args(["serve", "--host", "127.0.0.1", "--no-access-log"])
            .args(["--port", &address.port().to_string(), "--data-dir"])
            .arg(folder.path())
            .envs([("NANIO_ACCESS_KEY", "key"), ("NANIO_SECRET_KEY", SECRET)])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        wait::soon("the server of the bucket", async || {
            Ok(TcpStream::connect(address).await.ok().map(drop))
        })
        .await;
        Self {
            endpoint: format!("http://{address}"),
            folder,
            _server: server,
        }
    }
}

impl Archiver {
    /// A run into the bucket of this service, with changed settings.
    async fn run_into(&self, endpoint: &str, settings: &[(&str, &str)]) -> Ended {
        run(self.command_into(endpoint).envs(settings.iter().copied())).await
    }

    /// The command of a run into the bucket of this service.
    fn command_into(&self, endpoint: &str) -> Command {
        let to = ["archive", "run", "--older-than", "400d", "--to", S3];
        let mut command = self.operator.command(&[&to[..], &CONFIRMED].concat());
        command.envs([
            ("AWS_ENDPOINT", endpoint),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
        ]);
        command
    }

    /// Nothing was deleted, and nothing is reserved.
    async fn is_untouched(&mut self) {
        for (statement, expected) in [
            ("SELECT count(*) FROM orders", 1),
            ("SELECT count(*) FROM archived_orders", 0),
            ("SELECT count(*) FROM archives", 0),
        ] {
            assert_eq!(self.number(statement).await, expected, "{statement}");
        }
    }
}

#[tokio::test]
async fn finished_orders_go_into_a_bucket_over_tls_or_where_that_is_allowed() {
    let mut archiver = Archiver::new().await;
    archiver.order("o-1", 1).await;
    let bucket = Bucket::start().await;
    for (settings, said) in [
        (&[("AWS_ALLOW_HTTP", "")][..], "AWS_ALLOW_HTTP=true"),
        (&[("AWS_ALLOW_HTTP", "false")], "AWS_ALLOW_HTTP=true"),
        (&[("AWS_SECRET_ACCESS_KEY", "")], "AWS_SECRET_ACCESS_KEY"),
        (
            &[("AWS_SECRET_ACCESS_KEY", "another-secret")],
            "nothing was changed",
        ),
    ] {
        let refused = archiver.run_into(&bucket.endpoint, settings).await;
        assert!(!format!("{refused:?}").contains("another-secret"));
        refused.fails(1, said);
        archiver.is_untouched().await;
    }
    assert_eq!(
        fs::read_dir(bucket.folder.path().join("archives"))
            .unwrap()
            .count(),
        0
    );

    archiver
        .run_into(&bucket.endpoint, &[])
        .await
        .says("1 orders were moved into 1 files in s3://archives/esim/");
    assert_eq!(archiver.number("SELECT count(*) FROM orders").await, 0);
    let found = bucket.folder.path().join("archives/esim");
    let check = format!(
        "cd '{}' && sha256sum -c *.sha256 && zcat orders-1-*.jsonl.gz",
        found.display()
    );
    assert!(shell(&archiver, &check).contains("\"external_order_id\": \"o-1\""));
    let listed = archiver.operator.run(&["archive", "list"]).await;
    listed.says("s3://archives/esim/orders-1-");
}

/// The service says that it has stored a file, and has lost a byte of it.
#[tokio::test]
async fn an_order_whose_file_is_not_what_was_written_stays() {
    let mut archiver = Archiver::new().await;
    archiver.order("o-1", 1).await;
    let before = archiver.rows().await;
    let stored: Arc<Mutex<Vec<u8>>> = Arc::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let serving = testkit::http::serve(listener, move |request: Request<Bytes>| {
        let mut stored = stored.lock().unwrap();
        let answer = if request.method() == Method::GET {
            Full::from(stored.clone())
        } else {
            stored.clear();
            stored.extend_from_slice(request.body());
            if request.uri().path().ends_with(".jsonl.gz") {
                stored.pop();
            }
            Full::default()
        };
        async move { Ok(Response::new(answer)) }
    });
    let refused = archiver.run_into(&endpoint, &[]).await;
    refused.fails(1, "is not what was written");
    assert_eq!(archiver.rows().await, before);
    serving.abort();
}

/// A bucket that keeps the first archive on the way until it is told to store it.
#[derive(Clone, Default)]
struct Slow {
    objects: Arc<Mutex<BTreeMap<String, Bytes>>>,
    is_on_the_way: Arc<AtomicBool>,
    arrives: Arc<Notify>,
    has_arrived: Arc<AtomicBool>,
}

impl Slow {
    async fn answer(self, request: Request<Bytes>) -> Response<Full<Bytes>> {
        let name = request.uri().path().to_owned();
        let mut answer = Response::new(Full::default());
        match *request.method() {
            Method::GET => {
                let found = self.objects.lock().unwrap().get(&name).cloned();
                *answer.body_mut() = Full::from(found.unwrap());
            }
            Method::DELETE => {
                self.objects.lock().unwrap().remove(&name);
                *answer.status_mut() = StatusCode::NO_CONTENT;
            }
            _ => {
                let is_first =
                    name.ends_with(".jsonl.gz") && !self.is_on_the_way.swap(true, Relaxed);
                if is_first {
                    self.arrives.notified().await;
                }
                let object = request.into_body();
                self.objects.lock().unwrap().insert(name, object);
                self.has_arrived.fetch_or(is_first, Relaxed);
            }
        }
        answer
    }
}

/// A run is stopped while its file is on the way, the database ends its session, and another run
/// moves the orders. When the first one goes on, the file that counts is as it was completed, and
/// there is no other one.
#[tokio::test]
async fn a_run_that_goes_on_late_replaces_no_file() {
    let mut archiver = Archiver::new().await;
    archiver.order("o-1", 1).await;
    let bucket = Slow::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let serving = testkit::http::serve(listener, {
        let bucket = bucket.clone();
        move |request: Request<Bytes>| {
            let answer = bucket.clone().answer(request);
            async move { Ok(answer.await) }
        }
    });
    let mut late = archiver.command_into(&endpoint).spawn().unwrap();
    wait::soon("the file to be on the way", async || {
        Ok(bucket.is_on_the_way.load(Relaxed).then_some(()))
    })
    .await;
    let signal = |name: &str| {
        let pid = late.id().unwrap().to_string();
        let sent = std::process::Command::new("kill")
            .args([name, &pid])
            .status();
        assert!(sent.unwrap().success());
    };
    signal("-STOP");
    for statement in [
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
        // The file of the other run differs.
        "UPDATE orders SET traceparent = 'another'",
    ] {
        sqlx::query(statement)
            .execute(&mut archiver.connection)
            .await
            .unwrap();
    }
    archiver.no_run_is_left().await;
    let moved = archiver.run_into(&endpoint, &[]).await;
    moved.says("1 orders were moved into 1 files");
    bucket.arrives.notify_one();
    wait::soon("the late file to arrive", async || {
        Ok(bucket.has_arrived.load(Relaxed).then_some(()))
    })
    .await;
    signal("-CONT");
    assert!(!late.wait().await.unwrap().success());

    let query = "SELECT file, sha256 FROM archives";
    let archives: Vec<(String, String)> = sqlx::query_as(query)
        .fetch_all(&mut archiver.connection)
        .await
        .unwrap();
    let [(file, sha256)] = archives.try_into().unwrap();
    let name = file.strip_prefix("s3:/").unwrap().to_owned();
    let objects = bucket.objects.lock().unwrap();
    let names: Vec<&String> = objects.keys().collect();
    let sums = format!("{name}.sha256");
    assert_eq!(
        names,
        ["/archives/esim/README.txt", name.as_str(), sums.as_str()]
    );
    assert_eq!(hex::encode(Sha256::digest(&objects[&name])), sha256);
    serving.abort();
}

//! Archives in a bucket, at a server that speaks S3 and checks each signature.

use std::{fs, net::TcpListener, os::unix::fs::MetadataExt, process::Stdio};

use serde_json::{Value, json};
use testkit::wait;
use tokio::{net::TcpStream, process::Child};

use super::Archiver;
use crate::support::{CONFIRMED, Ended, run};

const SECRET: &str = "the-secret-of-the-bucket";

struct Bucket {
    endpoint: String,
    /// Where the server keeps its buckets, each of which is a folder.
    folder: tempfile::TempDir,
    _server: Child,
}

impl Bucket {
    async fn start() -> Self {
        let program = std::env::var("BUCKET_SERVER").unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("archives")).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let server = tokio::process::Command::new(program)
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
    async fn with_bucket(&self, bucket: &Bucket, secret: &str, arguments: &[&str]) -> Ended {
        let mut command = self.operator.command(arguments);
        command.envs([
            ("AWS_ENDPOINT", bucket.endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", secret),
        ]);
        run(&mut command).await
    }

    async fn copied(&self, bucket: &Bucket, url: &str) -> Value {
        let run = [&self.run()[..], &["--copy-to", url, "--json"]].concat();
        self.with_bucket(bucket, SECRET, &run).await.json()
    }
}

#[tokio::test]
async fn complete_archives_are_copied_to_a_bucket_and_restored_from_it() {
    const URL: &str = "s3://archives/esim";
    let mut archiver = Archiver::new().await;
    let order = archiver.order("o-1", 1).await;
    // More than one part of an upload, and nothing that gzip makes smaller.
    let mut profile: Vec<u8> = vec![0; 11_000_000];
    rand::fill(&mut profile[..]);
    sqlx::query("ALTER TABLE esims DROP CONSTRAINT esims_bounds")
        .execute(&mut archiver.connection)
        .await
        .unwrap();
    sqlx::query("UPDATE esims SET profile = $1")
        .bind(profile)
        .execute(&mut archiver.connection)
        .await
        .unwrap();
    let before = archiver.rows().await;
    let bucket = Bucket::start().await;

    let copy = [&archiver.run()[..], &["--copy-to", URL]].concat();
    let refused = archiver.with_bucket(&bucket, "another-secret", &copy).await;
    assert!(!format!("{refused:?}").contains("another-secret"));
    refused.fails(1, "nothing was changed");
    assert_eq!(archiver.number("SELECT count(*) FROM orders").await, 1);

    let ran = archiver.copied(&bucket, URL).await;
    assert_eq!((&ran["orders"], &ran["copied"]), (&json!(1), &json!(1)));
    assert_eq!(archiver.copied(&bucket, URL).await["copied"], 0);
    // What an earlier run has not copied is copied by the next one.
    archiver.order("o-2", 2).await;
    archiver.operator.run(&archiver.run()).await.text();
    assert_eq!(archiver.copied(&bucket, URL).await["copied"], 1);
    fs::remove_dir_all(archiver.folder.path().join("archive-1")).unwrap();

    let verify = ["archive", "list", "--verify", URL];
    let verified = archiver.with_bucket(&bucket, SECRET, &verify).await;
    verified.says("s3://archives/esim/archive-2");
    let id = order.id.to_string();
    for from in [URL, "s3://archives/esim/archive-1"] {
        let show = ["archive", "show", &id, "--from", from];
        archiver
            .with_bucket(&bucket, SECRET, &show)
            .await
            .says("o-1");
    }
    let file = bucket
        .folder
        .path()
        .join("archives/esim/archive-2/orders.csv.gz");
    fs::remove_file(&file).unwrap();
    let verified = archiver.with_bucket(&bucket, SECRET, &verify).await;
    assert_eq!(verified.code, Some(1), "{verified:?}");
    assert!(verified.stdout.contains("cannot open"), "{verified:?}");
    let restore = ["archive", "restore", "1", "--from", URL];
    let restore = [&restore[..], &CONFIRMED].concat();
    archiver
        .with_bucket(&bucket, SECRET, &restore)
        .await
        .says("1 orders of archive 1");
    assert_eq!(archiver.rows().await, before);
}

#[tokio::test]
async fn a_bucket_may_be_a_folder_and_holds_one_archive_of_a_number() {
    let mut archiver = Archiver::new().await;
    archiver.order("o-1", 1).await;
    let copies = tempfile::tempdir().unwrap();
    let url = format!("file://{}", copies.path().display());
    let run = [&archiver.run()[..], &["--copy-to", &url]].concat();
    let operator = &archiver.operator;
    operator.run(&run).await.says("1 archives were copied");
    for path in ["archive-1", "archive-1/manifest.json"] {
        let mode = fs::metadata(copies.path().join(path)).unwrap().mode();
        assert_eq!(mode & 0o077, 0, "others may read {path}");
    }
    let verify = ["archive", "list", "--verify", &url];
    operator.run(&verify).await.says("archive-1");
    fs::write(copies.path().join("archive-1/manifest.json"), "{}").unwrap();
    operator.run(&run).await.fails(1, "another archive 1");
    for url in ["s3://key:secret@archives", "https://example.com/archives"] {
        let run = [&archiver.run()[..], &["--copy-to", url]].concat();
        let refused = operator.run(&run).await;
        assert!(!refused.stderr.contains("key:secret@") || refused.code == Some(2));
        refused.fails(2, "--copy-to");
    }
}

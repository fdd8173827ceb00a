//! Archives in a bucket, at servers that speak S3 and as Azure's storage does, and check each signature.

use std::{fs, net::TcpListener, os::unix::fs::MetadataExt, path::Path, process::Stdio};

use base64::{Engine, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use testkit::wait;
use time::format_description::well_known::Rfc2822;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
};

use super::Archiver;
use crate::support::{CONFIRMED, Ended, run};

const SECRET: &str = "the-secret-of-the-bucket";
const S3: &str = "s3://archives/esim";

/// A server with an empty bucket.
struct Bucket {
    url: &'static str,
    /// What esimctl needs to use it.
    settings: Vec<(&'static str, String)>,
    /// Which of the settings is its secret.
    secret: &'static str,
    /// Where the server keeps its buckets.
    folder: tempfile::TempDir,
    _server: Child,
}

/// Starts a server: `arguments` gets a folder and a free address. Returns its address.
async fn serve(
    program: &str,
    arguments: impl FnOnce(&mut Command, &Path, u16),
) -> (String, tempfile::TempDir, Child) {
    let folder = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let mut command = Command::new(program);
    arguments(&mut command, folder.path(), address.port());
    let server = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    wait::soon("the server of the bucket", async || {
        Ok(TcpStream::connect(address).await.ok().map(drop))
    })
    .await;
    (format!("http://{address}"), folder, server)
}

impl Bucket {
    async fn s3() -> Self {
        let program = std::env::var("BUCKET_SERVER").unwrap();
        let (endpoint, folder, server) = serve(&program, |command, folder, port| {
            fs::create_dir(folder.join("archives")).unwrap();
            command
                .args(["serve", "--host", "127.0.0.1", "--no-access-log"])
                .args(["--port", &port.to_string(), "--data-dir"])
                .arg(folder)
                .envs([("NANIO_ACCESS_KEY", "key"), ("NANIO_SECRET_KEY", SECRET)]);
        })
        .await;
        Self {
            url: S3,
            settings: vec![
                ("AWS_ENDPOINT", endpoint),
                ("AWS_ALLOW_HTTP", "true".into()),
                ("AWS_REGION", "us-east-1".into()),
                ("AWS_ACCESS_KEY_ID", "key".into()),
                ("AWS_SECRET_ACCESS_KEY", SECRET.into()),
            ],
            secret: "AWS_SECRET_ACCESS_KEY",
            folder,
            _server: server,
        }
    }

    async fn azure() -> Option<Self> {
        let program = std::env::var("AZURE_SERVER").unwrap();
        if program.is_empty() {
            return None;
        }
        let key = BASE64_STANDARD.encode(SECRET);
        let (endpoint, folder, server) = serve(&program, |command, folder, port| {
            command
                .args(["--silent", "--disableTelemetry", "--skipApiVersionCheck"])
                .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()])
                .arg("--location")
                .arg(folder)
                .env("AZURITE_ACCOUNTS", format!("acme:{key}"));
        })
        .await;
        make_container(&endpoint).await;
        Some(Self {
            url: "az://archives/esim",
            settings: vec![
                ("AZURE_STORAGE_USE_EMULATOR", "true".into()),
                ("AZURITE_BLOB_STORAGE_URL", endpoint),
                ("AZURE_STORAGE_ACCOUNT_NAME", "acme".into()),
                ("AZURE_STORAGE_ACCOUNT_KEY", key),
            ],
            secret: "AZURE_STORAGE_ACCOUNT_KEY",
            folder,
            _server: server,
        })
    }
}

/// Makes the container, which esimctl does not do. The request is signed as Azure's "Shared Key" says.
async fn make_container(endpoint: &str) {
    const VERSION: &str = "2021-08-06";
    let date = runtime::clock::now().format(&Rfc2822).unwrap();
    let date = date.replace("+0000", "GMT");
    let signed = format!(
        "PUT{}x-ms-date:{date}\nx-ms-version:{VERSION}\n/acme/acme/archives\nrestype:container",
        "\n".repeat(12)
    );
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(signed.as_bytes());
    let signature = BASE64_STANDARD.encode(mac.finalize().into_bytes());
    let made = testkit::http::client()
        .unwrap()
        .put(format!("{endpoint}/acme/archives?restype=container"))
        .header("x-ms-date", date)
        .header("x-ms-version", VERSION)
        .header("authorization", format!("SharedKey acme:{signature}"))
        .header("content-length", "0")
        .send()
        .await
        .unwrap();
    assert_eq!(made.status(), 201);
}

impl Archiver {
    async fn with_bucket(&self, bucket: &Bucket, arguments: &[&str]) -> Ended {
        let mut command = self.operator.command(arguments);
        command.envs(bucket.settings.iter().map(|(name, value)| (name, value)));
        run(&mut command).await
    }

    async fn copied(&self, bucket: &Bucket) -> Value {
        let run = [&self.run()[..], &["--copy-to", bucket.url, "--json"]].concat();
        self.with_bucket(bucket, &run).await.json()
    }

    /// Makes the profiles of all eSIMs large: more than one part of an upload, and nothing that gzip
    /// makes smaller.
    async fn enlarge(&mut self) {
        let mut profile: Vec<u8> = vec![0; 11_000_000];
        rand::fill(&mut profile[..]);
        sqlx::query("ALTER TABLE esims DROP CONSTRAINT esims_bounds")
            .execute(&mut self.connection)
            .await
            .unwrap();
        sqlx::query("UPDATE esims SET profile = $1")
            .bind(profile)
            .execute(&mut self.connection)
            .await
            .unwrap();
    }

    /// A wrong secret changes nothing, and is not shown.
    async fn is_refused_without_the_secret(&mut self, bucket: &Bucket) {
        let wrong = BASE64_STANDARD.encode("another secret");
        let copy = [&self.run()[..], &["--copy-to", bucket.url]].concat();
        let mut command = self.operator.command(&copy);
        command.envs(bucket.settings.iter().map(|(name, value)| (name, value)));
        let refused = run(command.env(bucket.secret, &wrong)).await;
        assert!(!format!("{refused:?}").contains(&wrong));
        refused.fails(1, "nothing was changed");
        assert_eq!(self.number("SELECT count(*) FROM orders").await, 1);
    }
}

#[tokio::test]
async fn archives_are_copied_to_azure_and_restored_from_it() {
    let Some(bucket) = Bucket::azure().await else {
        eprintln!("without Node 20 there is no AZURE_SERVER: Azure is NOT tested");
        return;
    };
    let mut archiver = Archiver::new().await;
    let order = archiver.order("o-1", 1).await;
    archiver.enlarge().await;
    let before = archiver.rows().await;
    archiver.is_refused_without_the_secret(&bucket).await;
    assert_eq!(archiver.copied(&bucket).await["copied"], 1);
    assert_eq!(archiver.copied(&bucket).await["copied"], 0);
    fs::remove_dir_all(archiver.folder.path().join("archive-1")).unwrap();

    let verify = ["archive", "list", "--verify", bucket.url];
    let verified = archiver.with_bucket(&bucket, &verify).await;
    verified.says("az://archives/esim/archive-1");
    let id = order.id.to_string();
    let show = ["archive", "show", &id, "--from", bucket.url];
    archiver.with_bucket(&bucket, &show).await.says("o-1");
    let restore = ["archive", "restore", "1", "--from", bucket.url];
    let restore = [&restore[..], &CONFIRMED].concat();
    let restored = archiver.with_bucket(&bucket, &restore).await;
    restored.says("1 orders of archive 1");
    assert_eq!(archiver.rows().await, before);
}

#[tokio::test]
async fn complete_archives_are_copied_to_a_bucket_and_restored_from_it() {
    let mut archiver = Archiver::new().await;
    let order = archiver.order("o-1", 1).await;
    archiver.enlarge().await;
    let before = archiver.rows().await;
    let bucket = Bucket::s3().await;

    archiver.is_refused_without_the_secret(&bucket).await;

    let ran = archiver.copied(&bucket).await;
    assert_eq!((&ran["orders"], &ran["copied"]), (&json!(1), &json!(1)));
    assert_eq!(archiver.copied(&bucket).await["copied"], 0);
    // What an earlier run has not copied is copied by the next one.
    archiver.order("o-2", 2).await;
    archiver.operator.run(&archiver.run()).await.text();
    assert_eq!(archiver.copied(&bucket).await["copied"], 1);
    fs::remove_dir_all(archiver.folder.path().join("archive-1")).unwrap();

    let verify = ["archive", "list", "--verify", S3];
    let verified = archiver.with_bucket(&bucket, &verify).await;
    verified.says("s3://archives/esim/archive-2");
    let id = order.id.to_string();
    for from in [S3, "s3://archives/esim/archive-1"] {
        let show = ["archive", "show", &id, "--from", from];
        archiver.with_bucket(&bucket, &show).await.says("o-1");
    }
    let file = bucket
        .folder
        .path()
        .join("archives/esim/archive-2/orders.csv.gz");
    fs::remove_file(&file).unwrap();
    let verified = archiver.with_bucket(&bucket, &verify).await;
    assert_eq!(verified.code, Some(1), "{verified:?}");
    let missing = "cannot open s3://archives/esim/archive-2/orders.csv.gz";
    assert!(verified.stdout.contains(missing), "{verified:?}");
    // Whatever is wrong with the copies is said about the bucket, which the operator has named.
    let restore = [&["archive", "restore", "2"][..], &CONFIRMED].concat();
    for (from, command) in [
        (S3, &restore[..]),
        (
            "s3://archives/esim/archive-2",
            &["archive", "show", "o-2"][..],
        ),
    ] {
        let refused = [command, &["--from", from]].concat();
        let refused = archiver.with_bucket(&bucket, &refused).await;
        assert!(refused.stderr.contains(missing), "{refused:?}");
        assert!(!refused.stderr.contains("/tmp"), "{refused:?}");
    }
    let nothing = ["archive", "list", "--verify", "s3://archives/esim/nothing"];
    archiver
        .with_bucket(&bucket, &nothing)
        .await
        .fails(1, "there is no archive in s3://archives/esim/nothing");
    let restore = ["archive", "restore", "1", "--from", S3];
    let restore = [&restore[..], &CONFIRMED].concat();
    archiver
        .with_bucket(&bucket, &restore)
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

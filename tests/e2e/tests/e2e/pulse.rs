//! What the pulse shows: a server that accepts connections but commits nothing, and a server that
//! must not be used.

use crate::health::{Console, mended_again, seen_by_all};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testkit::postgres::PostgresServer;
use testkit::shop::Shop;
use testkit::stack::{Stack, Stage};
use testkit::{http, wait};

/// A file system that is small enough to be filled.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts it. Where this process may not mount anything, it is an error.
    fn mount(path: PathBuf) -> Result<Self> {
        fs::create_dir(&path)?;
        let options = ["-t", "tmpfs", "-o", "size=300m,mode=711", "tmpfs"];
        let mut mount = Command::new("mount");
        let done = mount.args(options).arg(&path).output()?;
        ensure!(done.status.success(), "{done:?}");
        Ok(Self { path })
    }

    /// Takes all of its room.
    fn fill(&self) -> Result<()> {
        let mut file = OpenOptions::new();
        let mut file = file.create(true).append(true).open(self.filler())?;
        let chunk = vec![7_u8; 1 << 20];
        for size in [1 << 20, 1 << 12] {
            while file.write_all(&chunk[..size]).is_ok() {}
        }
        Ok(())
    }

    fn empty(&self) -> Result<()> {
        fs::remove_file(self.filler()).context("the filler")
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        let _ = unmount.arg("-l").arg(&self.path).output();
    }
}

/// Starts a stack on such a disk; `None` where nothing can be mounted.
async fn on_a_small_disk(folder: &Path) -> Option<(SmallDisk, PostgresServer, Stack)> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o711)).unwrap();
    let disk = match SmallDisk::mount(folder.join("disk")) {
        Ok(disk) => disk,
        Err(error) => {
            println!("left out, because nothing can be mounted here: {error:#}");
            return None;
        }
    };
    let server = PostgresServer::start(&disk.path).await.unwrap();
    let builder = Stack::builder().database_server(server.url());
    let stack = builder.start().await.unwrap();
    Some((disk, server, stack))
}

/// A full disk keeps orders from being stored, while everything that is stored can be read. The
/// test of crate store that leaves no room for temporary files shows the same without a mount.
#[tokio::test]
async fn a_full_disk_makes_the_stages_not_ready_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let Some((disk, _server, mut stack)) = on_a_small_disk(folder.path()).await else {
        return;
    };
    let mut console = Console::start(&stack, folder.path()).await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let ready = stack.option("ready").unwrap().to_owned();
    shop.buy("before", &ready, 1).await.unwrap();
    // A server that has no room for its next segment of WAL ends, which is another fault.
    let mut database = stack.database.connect().await.unwrap();
    for statement in ["SELECT pg_switch_wal()", "CHECKPOINT"] {
        sqlx::query(statement).execute(&mut database).await.unwrap();
    }
    disk.fill().unwrap();
    let http = http::client().unwrap();
    for stage in Stage::OURS {
        let url = stack.process(stage).unwrap().program().ready_url.clone();
        wait::soon(&format!("{} not to be ready", stage.name()), async || {
            let answer = http.get(&url).send().await?;
            let is_away = answer.status() == 503;
            let text = answer.text().await?;
            Ok((is_away && text.contains("No space left")).then_some(()))
        })
        .await;
    }
    let (_, attention): (_, Value) = stack
        .esimctl
        .run_allowing(&["attention"], &[3])
        .await
        .unwrap();
    let first = &attention["needs_person"][0];
    assert_eq!(first["finding"]["kind"], "database_down", "{attention}");
    assert_eq!(first["told"]["severity"], "fault", "{attention}");
    let what = first["told"]["what"].as_str().unwrap();
    assert!(what.contains("No space left"), "{what}");
    seen_by_all(&stack, &mut console, ("No space left", "fault"), true)
        .await
        .unwrap();
    disk.empty().unwrap();
    for stage in Stage::OURS {
        stack.process(stage).unwrap().ready().await.unwrap();
    }
    mended_again(&stack, "No space left").await.unwrap();
    shop.buy("after", &ready, 1).await.unwrap();
}

#[tokio::test]
async fn a_stage_is_not_ready_while_nothing_can_be_committed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let server = PostgresServer::start(folder.path()).await.unwrap();
    let builder = Stack::builder().database_server(server.url());
    let mut stack = builder.start().await.unwrap();
    let http = http::client().unwrap();

    // Connections stay open, and new ones are accepted by the kernel. An outage gets one line per
    // second, so the one that names the commit need not be the first.
    server.freeze().unwrap();
    for stage in Stage::OURS {
        let url = stack.process(stage).unwrap().program().ready_url.clone();
        wait::soon(&format!("{} not to be ready", stage.name()), async || {
            let answer = http.get(&url).send().await?;
            if answer.status() != 503 {
                return Ok(None);
            }
            // It says so in the words of `esimctl attention`.
            let body: serde_json::Value = answer.json().await?;
            let found = &body["findings"][0];
            let is_told = found["alert"] == "DatabaseDown" && found["since"].is_string();
            Ok(is_told.then_some(()))
        })
        .await;
        let process = stack.process(stage).unwrap();
        let named = async || {
            Ok(process
                .log()?
                .contains("cannot commit to PostgreSQL")
                .then_some(()))
        };
        wait::soon("the line about commits", named).await;
    }
    server.thaw().unwrap();
    for stage in Stage::OURS {
        let process = stack.process(stage).unwrap();
        process.ready().await.unwrap();
        let over = async || {
            Ok(process
                .log()?
                .contains("PostgreSQL works again")
                .then_some(()))
        };
        wait::soon("the line at the end", over).await;
    }
}

#[tokio::test]
async fn a_stage_refuses_to_start_without_the_standby_that_the_operator_requires() {
    let mut stack = Stack::start().await.unwrap();
    for stage in Stage::OURS {
        let process = stack.process(stage).unwrap();
        process.terminate(Duration::from_secs(30)).await.unwrap();
        let settings = &mut process.program_mut().env;
        settings.insert("REQUIRE_SYNCHRONOUS".into(), "true".into());
        process.spawn().unwrap();
        let status = process.wait(Duration::from_secs(20)).await.unwrap();
        assert!(!status.success(), "{status}");
        let log = process.log().unwrap();
        assert!(
            log.contains("REQUIRE_SYNCHRONOUS is set: connect a synchronous standby"),
            "{log}"
        );
    }
}

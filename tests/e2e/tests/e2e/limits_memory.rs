//! Bodies that never end don't fill the memory.

use anyhow::{Context, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use rustix::process::{Resource, getrlimit, setrlimit};
use testkit::stack::{Stack, Stage};
use testkit::{raw, wait};
use tokio::io::AsyncWriteExt;

/// `resources.limits.memory` of ingress in deploy/kubernetes.
const CONTAINER: u64 = 256 * 1024 * 1024;
const UNFINISHED: usize = 3_000;

/// The peak of a process's physical memory, in bytes.
pub fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .context("no VmHWM")?;
    Ok(kib.parse::<u64>()? * 1024)
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn three_thousand_unfinished_bodies_stay_within_the_memory_limit() {
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).unwrap();
    let mut stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let body = vec![b' '; 63 * 1024];
    let send = async || {
        let mut connection = raw::connect(&stack.base_url).await?;
        let head = raw::head(&partner, "Content-Length: 65536")?;
        // A refused one may be closed before all of it is sent.
        let _ = connection.write_all(&[head, body.clone()].concat()).await;
        anyhow::Ok(connection)
    };
    let held: Vec<_> = stream::iter(0..UNFINISHED)
        .map(|_| send())
        .buffer_unordered(64)
        .try_collect()
        .await
        .unwrap();
    assert_eq!(held.len(), UNFINISHED);
    // Another partner orders meanwhile.
    let other = stack.create_partner("sandbox", None).await.unwrap();
    let ready = stack.option("ready").unwrap().to_owned();
    let client = stack.client(&other).unwrap();
    let ordered = async || {
        let answer = client
            .order(&crate::shop::fresh("memory"), &[(&ready, 1)])
            .await?;
        Ok((answer.status == 201).then_some(()))
    };
    wait::soon("an order meanwhile", ordered).await;
    let peak = resident(stack.process(Stage::Ingress).unwrap().pid().unwrap()).unwrap();
    println!("peak: {} MiB", peak / 1024 / 1024);
    assert!(peak < CONTAINER, "{} MiB", peak / 1024 / 1024);
}

//! Drops packets in the network namespace of the run (`--lose-packets`), by rules of iptables.

use anyhow::{Context, Result, ensure};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use testkit::process;
use tokio::process::Command;
use url::Url;

/// The share of packets that a lossy network loses.
const SHARE: &str = "0.1";

/// Rules that drop packets to and from some ports, in a chain of their own.
pub struct Dropped {
    chain: String,
}

impl Dropped {
    /// Drops every packet.
    pub async fn all(ports: &[u16]) -> Result<Self> {
        Self::begin(ports, &[]).await
    }

    /// Drops one of ten packets.
    pub async fn some(ports: &[u16]) -> Result<Self> {
        let by_chance = [
            "-m",
            "statistic",
            "--mode",
            "random",
            "--probability",
            SHARE,
        ];
        Self::begin(ports, &by_chance).await
    }

    async fn begin(ports: &[u16], matching: &[&str]) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let chain = format!("faults-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        iptables(&["-N", &chain]).await?;
        for port in ports {
            for end in ["--dport", "--sport"] {
                let port = port.to_string();
                let rule = ["-A", &chain, "-p", "tcp", end, &port];
                iptables(&[&rule[..], matching, &["-j", "DROP"]].concat()).await?;
            }
        }
        iptables(&["-A", "INPUT", "-j", &chain]).await?;
        Ok(Self { chain })
    }

    /// Lets all packets pass again. Returns how many were dropped.
    pub async fn lift(self) -> Result<u64> {
        iptables(&["-D", "INPUT", "-j", &self.chain]).await?;
        let rules = iptables(&["-vnxL", &self.chain]).await?;
        let counts = rules.lines().skip(2).map(|rule| {
            let packets = rule.split_whitespace().next().context("an empty rule")?;
            Ok(packets.parse::<u64>()?)
        });
        let dropped = counts.sum::<Result<u64>>()?;
        iptables(&["-F", &self.chain]).await?;
        iptables(&["-X", &self.chain]).await?;
        Ok(dropped)
    }
}

/// The port of a URL that names one.
pub fn port(url: &str) -> Result<u16> {
    url.parse::<Url>()?.port().context("the URL has no port")
}

async fn iptables(arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("iptables");
    let output = process::output(command.arg("-w").args(arguments), Duration::from_secs(10));
    let output = output.await?;
    ensure!(
        output.status.success(),
        "iptables {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8(output.stdout)?)
}

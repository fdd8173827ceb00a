//! Plays the operator after an asynchronous standby was promoted, in the steps of
//! docs/operations.md: ingress and the provisioners are stopped, `esimctl recover` compares the
//! provider's list with the database, and the breakers are closed.
//!
//! The operator acts only if the commit fence has stopped the buying. If it has not, nobody knows
//! that commits were lost, so the run goes on without an operator, and is red.

use crate::fault::Target;
use crate::inject::{STOP, Victims};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::time::Duration;
use testkit::process::Process;
use testkit::stack::Stage;
use testkit::wait::until;
use tokio::sync::MutexGuard;

/// How long the stages may take to notice that commits were lost. Each of them opens a connection
/// at least every ten seconds.
const NOTICED: Duration = Duration::from_secs(15);
/// How long the connections of stopped provisioners may stay open.
const DISCONNECTED: Duration = Duration::from_secs(20);

impl Victims {
    /// Repairs what a promotion of an asynchronous standby has left. Does nothing but noting it if
    /// the buying was not stopped.
    pub async fn recover(&self) -> Result<()> {
        let fenced = until(NOTICED, "the commit fence", async || {
            Ok(self.is_fenced().await.unwrap_or(false).then_some(()))
        });
        if fenced.await.is_err() {
            self.note_unfenced();
            return Ok(());
        }
        let mut ingress = self.stopped(Stage::Ingress).await?;
        let mut provisioners = self.stopped(Stage::Provisioner).await?;
        let list = self.purchases().await?;
        let file = list.path().display().to_string();
        let args = [
            "recover",
            "--ledger",
            &file,
            "--provider",
            "sandbox",
            "--reason",
            "standby promoted",
            "--yes",
        ];
        until(DISCONNECTED, "esimctl recover", async || {
            // Exit status 3 says that purchases contradict the database, which is why it runs.
            match self.esimctl.run_allowing::<Value>(&args, &[3]).await {
                Ok(_) => Ok(Some(())),
                Err(error) if format!("{error:#}").contains("provisioners have connections") => {
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        })
        .await?;
        self.resolve_bought().await?;
        start(&mut provisioners).await?;
        let _: Value = self.esimctl.run(&["provider", "close", "sandbox"]).await?;
        start(&mut ingress).await
    }

    /// Resolves the placements whose purchase ended after the promotion, so that the provisioner
    /// found that the attempt is no longer recorded.
    async fn resolve_bought(&self) -> Result<()> {
        let list = ["placement", "list", "--state", "parked", "--limit", "10000"];
        let listed: Value = self.esimctl.run(&list).await?;
        let parked = listed["placements"].as_array().context("no placements")?;
        for placement in parked {
            let reason = placement["reason"].as_str().unwrap_or_default();
            let Some(id) = placement["placement_id"].as_str() else {
                bail!("a placement has no id: {placement}");
            };
            if reason.starts_with("bought_unexpectedly") {
                let resolve = [
                    "placement",
                    "resolve",
                    id,
                    "--bought",
                    "--reason",
                    "standby promoted",
                    "--yes",
                ];
                let _: Value = self.esimctl.run(&resolve).await?;
            }
        }
        Ok(())
    }

    /// The purchases of the provider that have no placement here, by the order id that we sent. The
    /// list is complete only while nothing is being bought.
    pub async fn orphans(&self) -> Result<Vec<String>> {
        let list = self.purchases().await?;
        let file = list.path().display().to_string();
        let args = [
            "recover",
            "--ledger",
            &file,
            "--provider",
            "sandbox",
            "--dry-run",
        ];
        let (_, found): (_, Value) = self.esimctl.run_allowing(&args, &[3]).await?;
        let findings = found["ledger"]["findings"].as_array();
        let findings = findings.context("no findings in what esimctl recover printed")?;
        let orphans = findings.iter().filter(|one| one["kind"] == "orphan");
        let orphans = orphans.filter_map(|one| one["order_id"].as_str());
        Ok(orphans.map(str::to_owned).collect())
    }

    /// Whether the breakers are open because of lost commits.
    async fn is_fenced(&self) -> Result<bool> {
        let listed: Value = self.esimctl.run(&["provider", "list"]).await?;
        let providers = listed["providers"].as_array().context("no providers")?;
        let reasons = providers.iter().map(|one| one["reason"].as_str());
        Ok(reasons
            .into_iter()
            .all(|reason| reason.is_some_and(|text| text.starts_with("commits "))))
    }

    /// Writes the provider's list of purchases to a file.
    async fn purchases(&self) -> Result<tempfile::NamedTempFile> {
        let url = format!("{}/ledger.csv", self.sandbox_url);
        // The sandbox may be restarting because of another fault.
        let list = until(DISCONNECTED, "the provider's list", async || {
            match self.http.get(&url).send().await {
                Ok(answer) => Ok(Some(answer.error_for_status()?.text().await?)),
                Err(_) => Ok(None),
            }
        });
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), list.await?)?;
        Ok(file)
    }

    /// Stops all processes of a stage. As long as the result is kept, no fault concerns them.
    async fn stopped(&self, stage: Stage) -> Result<Vec<MutexGuard<'_, Process>>> {
        let mut stopped = Vec::new();
        for (target, process) in &self.processes {
            if !matches!(target, Target::Process(of, _) if *of == stage) {
                continue;
            }
            let mut process = process.lock().await;
            // Its exit status does not matter: a process that another fault has just started is
            // ended by the signal itself.
            process.terminate(STOP).await?;
            stopped.push(process);
        }
        Ok(stopped)
    }
}

/// Starts these processes, and waits until they are ready.
async fn start(processes: &mut [MutexGuard<'_, Process>]) -> Result<()> {
    for process in processes.iter_mut() {
        process.spawn()?;
    }
    for process in processes {
        process.ready().await?;
    }
    Ok(())
}

//! Runs esimctl, the operator's command line, as a program, and parses what it prints with
//! `--json`.

use crate::bin_dir;
use crate::process::output;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::process::Command;

const TIMEOUT: Duration = Duration::from_mins(1);

/// The output of `esimctl partner create`.
#[derive(Clone, Debug, Deserialize)]
pub struct Partner {
    pub partner_id: String,
    pub access_key: String,
    /// Base64.
    pub secret_key: String,
    /// `whsec_` and Base64.
    pub webhook_secret: String,
}

/// An element of the output of `esimctl option list`.
#[derive(Clone, Debug, Deserialize)]
pub struct CatalogueOption {
    pub option_id: String,
    pub name: String,
    pub provider: String,
    pub provider_option_id: String,
    /// `sandbox` or `live`.
    pub environment: String,
}

/// The times that are stored with an order, as `esimctl order show` prints them.
#[derive(Clone, Debug, Deserialize)]
pub struct OrderTimes {
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    pub placements: Vec<PlacementTimes>,
    pub topups: Vec<TopupTimes>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct PlacementTimes {
    pub placement_id: String,
    /// The time when it was recorded as bought.
    #[serde(with = "time::serde::rfc3339::option")]
    pub placed_at: Option<OffsetDateTime>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct TopupTimes {
    pub topup_id: String,
    pub placement_id: String,
    /// The time when its profile was stored.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ready_at: Option<OffsetDateTime>,
    /// The time when it was recorded that the endpoint had acknowledged its webhook.
    #[serde(with = "time::serde::rfc3339::option")]
    pub delivered_at: Option<OffsetDateTime>,
}

/// Whether only the owner of the tables may run this command.
pub fn needs_owner(args: &[&str]) -> bool {
    args.first()
        .is_some_and(|command| ["migrate", "recover", "master-key", "archive"].contains(command))
}

/// Runs `esimctl` with a fixed set of settings.
#[derive(Clone, Debug)]
pub struct Esimctl {
    binary: PathBuf,
    env: Vec<(String, String)>,
    /// The `DATABASE_URL` for the commands that only the owner of the tables may run.
    owner: Option<String>,
    /// Who is recorded for changes.
    operator: &'static str,
}

impl Esimctl {
    /// `env` is added to the environment of this process.
    pub fn new(env: impl IntoIterator<Item = (String, String)>) -> Self {
        Self {
            binary: bin_dir().join("esimctl"),
            env: env.into_iter().collect(),
            owner: None,
            operator: "test",
        }
    }

    /// Makes changes under this name.
    #[must_use]
    pub fn acting_as(mut self, operator: &'static str) -> Self {
        self.operator = operator;
        self
    }

    /// Runs `migrate`, `recover`, `master-key` and `archive` with this `DATABASE_URL`.
    #[must_use]
    pub fn with_owner(mut self, database_url: &str) -> Self {
        self.owner = Some(database_url.to_owned());
        self
    }

    /// Adds settings, such as those of an account at a provider.
    #[must_use]
    pub fn with_settings(mut self, settings: impl IntoIterator<Item = (String, String)>) -> Self {
        self.env.extend(settings);
        self
    }

    /// Runs `esimctl <args> --json` and parses its output.
    ///
    /// It is an error if the program fails, takes longer than 60 s, or prints something else. The
    /// error shows what it said.
    pub async fn run<T: DeserializeOwned>(&self, args: &[&str]) -> Result<T> {
        Ok(self.run_allowing(args, &[]).await?.1)
    }

    /// Does the same, but the program may also end with one of these exit statuses. Returns its
    /// exit status and its output.
    pub async fn run_allowing<T: DeserializeOwned>(
        &self,
        args: &[&str],
        statuses: &[i32],
    ) -> Result<(i32, T)> {
        let shown = format!("esimctl {}", args.join(" "));
        let mut command = Command::new(&self.binary);
        command
            .args(args)
            .arg("--json")
            // The webhook receivers of the tests speak http, which live partners may not use
            // otherwise.
            .env("WEBHOOK_HTTP_LIVE", "true")
            // Without a name no change is made.
            .env("ESIMCTL_OPERATOR", self.operator)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        if !self.env.is_empty() {
            for purpose in ["PARTNERS", "WEBHOOKS", "PROFILES"] {
                command.env_remove(format!("MASTER_KEY_{purpose}_FILE"));
            }
        }
        if let Some(owner) = self.owner.as_ref().filter(|_| needs_owner(args)) {
            command.env("DATABASE_URL", owner);
        }
        let output = output(&mut command, TIMEOUT).await;
        let output = output.with_context(|| shown.clone())?;
        let status = output.status.code().unwrap_or(-1);
        if status != 0 && !statuses.contains(&status) {
            bail!(
                "{shown}: {}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let parsed = serde_json::from_slice(&output.stdout).with_context(|| {
            format!(
                "{shown}: unexpected output: {}",
                String::from_utf8_lossy(&output.stdout)
            )
        })?;
        Ok((status, parsed))
    }

    /// Runs `partner create`. `environment` is `sandbox` or `live`. A sandbox partner, too, has the
    /// rates of the settings, because tests order much.
    pub async fn create_partner(
        &self,
        name: &str,
        environment: &str,
        webhook_url: Option<&str>,
    ) -> Result<Partner> {
        let mut args = vec![
            "partner",
            "create",
            "--name",
            name,
            "--environment",
            environment,
            "--orders-per-second",
            "default",
            "--units-per-second",
            "default",
        ];
        if let Some(url) = webhook_url {
            args.extend(["--webhook-url", url]);
        }
        self.run(&args).await
    }

    /// Runs `order show` with an order id, a topup id or an external order id, and returns every
    /// matching order.
    pub async fn order_times(&self, id: &str) -> Result<Vec<OrderTimes>> {
        #[derive(Deserialize)]
        struct Found {
            orders: Vec<OrderTimes>,
        }
        self.run(&["order", "show", id])
            .await
            .map(|found: Found| found.orders)
    }

    /// Runs `option apply` with a catalogue in JSON, and returns what it counted.
    pub async fn import(&self, catalogue: impl AsRef<[u8]>) -> Result<Value> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), catalogue)?;
        self.run(&["option", "apply", "-f", &file.path().display().to_string()])
            .await
    }

    pub async fn options(&self) -> Result<Vec<CatalogueOption>> {
        self.run(&["option", "list"]).await
    }

    pub async fn sandbox_option(&self, name: &str) -> Result<CatalogueOption> {
        self.option_of("sandbox", name).await
    }

    /// The option with this name of a provider.
    pub async fn option_of(&self, provider: &str, name: &str) -> Result<CatalogueOption> {
        let mut options = self.options().await?.into_iter();
        options
            .find(|option| option.name == name && option.provider == provider)
            .with_context(|| format!("the catalogue has no option {name} of provider {provider}"))
    }
}

//! A whole pipeline for one test, with a database, streams, processes and ports of its own. Only
//! the PostgreSQL and NATS servers are shared with other tests.
//!
//! The same tests can also check a system that runs already, such as one in containers, if
//! `TEST_BASE_URL` names it. `TEST_DATABASE_URL` is then its database and `TEST_SANDBOX_URL` its
//! sandbox, and `esimctl` in `BIN_DIR` must be configured for it. Tests that change settings or
//! stop processes fail there.
//!
//! ```ignore
//! let stack = Stack::builder().env(Stage::Ingress, "PLACEMENT_WAIT", "0s").start().await?;
//! let partner = stack.create_partner("sandbox", Some(&receiver.url("/a"))).await?;
//! let answer = stack.client(&partner)?.order("order-1", &[(stack.option("ready")?, 2)]).await?;
//! ```

mod plan;
mod stage;

pub use self::stage::{CALLBACK_TOKEN, SANDBOX_ACCESS_KEY, SANDBOX_SECRET_KEY, Stage};
use self::{
    plan::Plan,
    stage::{SANDBOX, seller},
};
use crate::client::Client;
use crate::database::Database;
use crate::esimctl::{CatalogueOption, Esimctl, Partner};
use crate::nats::{self, NatsServer, OwnStreams};
use crate::process::{Process, output};
use crate::settings::MASTER_KEY;
use crate::{bin_dir, http, ports, required};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::process::Command;
use url::Url;
use uuid::Uuid;

/// The purchases that the sandbox provider recorded.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Ledger {
    pub purchases: u64,
    pub units: u64,
    pub orders: Vec<LedgerOrder>,
    #[serde(default)]
    pub extensions: Vec<LedgerExtension>,
    /// The units that are suspended.
    #[serde(default)]
    pub suspended: Vec<String>,
}

/// What was added to an eSIM.
#[derive(Clone, Debug, Deserialize)]
pub struct LedgerExtension {
    pub extension_id: String,
    /// The provider's id of the unit.
    pub topup_id: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct LedgerOrder {
    pub order_id: String,
    pub units: u64,
    pub purchased_times: u64,
    /// The units that the provider has back.
    pub canceled: u64,
}

/// A topup as it is stored, with the states of its parts.
#[derive(Debug, sqlx::FromRow)]
pub struct Stored {
    pub external_order_id: String,
    pub access_key: String,
    pub placement_id: String,
    pub topup_id: String,
    pub refused: bool,
    pub placement: String,
    pub topup: String,
    pub delivery: Option<String>,
}

/// An extension as it is stored.
#[derive(Debug, sqlx::FromRow)]
pub struct StoredExtension {
    pub extension_id: String,
    pub external_id: String,
    pub topup_id: String,
    /// The provider's id of the unit.
    pub unit_id: String,
    pub state: String,
    /// What its partner pays, in minor units.
    pub price: Option<i64>,
    pub partner_id: String,
}

/// Describes the stack to start. By default it has one process of each stage and uses the shared
/// NATS server of `TEST_NATS_URL`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Builder {
    env: Vec<(Stage, String, String)>,
    left_out: BTreeSet<Stage>,
    replicas: BTreeMap<Stage, usize>,
    own_nats: bool,
    nats: Option<String>,
    callbacks: bool,
    callback_relay: Option<String>,
    database_server: Option<String>,
    database: Option<String>,
    database_ports: BTreeMap<Stage, u16>,
    provider: Option<String>,
}

impl Builder {
    /// Sets or overrides a setting of every replica of a stage: a variable, or an argument such as
    /// `--resend-due`, because what only tests set has no variable.
    pub fn env(mut self, stage: Stage, name: &str, value: &str) -> Self {
        self.env.push((stage, name.into(), value.into()));
        self
    }

    /// Does not start the stage. The test can start it later with [`Stack::process`].
    pub fn without(mut self, stage: Stage) -> Self {
        self.left_out.insert(stage);
        self
    }

    /// Runs several processes of a stage. There can be only one sandbox, because its ledger has one
    /// owner.
    pub fn replicas(mut self, stage: Stage, count: usize) -> Self {
        self.replicas.insert(stage, count);
        self
    }

    /// Runs a `nats-server` of the test's own, which the test may stop and wipe.
    pub fn own_nats(mut self) -> Self {
        self.own_nats = true;
        self
    }

    /// Uses these NATS servers, which the test has started, instead of that of `TEST_NATS_URL`. The
    /// value is that of `NATS_URL`.
    pub fn nats(mut self, url: &str) -> Self {
        self.nats = Some(url.into());
        self
    }

    /// Lets the sandbox call the first provisioner back when a profile is ready.
    pub fn callbacks(mut self) -> Self {
        self.callbacks = true;
        self
    }

    /// Does the same, and lets the sandbox post its callbacks to this address instead. Whoever is
    /// there passes them on.
    pub fn callbacks_by(mut self, relay: &str) -> Self {
        self.callback_relay = Some(relay.into());
        self.callbacks()
    }

    /// Buys from this provider, whose account is at the sandbox, by the protocol of the provider.
    /// The catalogue has its options, and partners are live ones.
    pub fn provider(mut self, name: &str) -> Self {
        if name != SANDBOX {
            self.provider = Some(name.into());
        }
        self
    }

    /// Creates the database on this server instead of that of `TEST_DATABASE_URL`. The role in the
    /// URL must be allowed to create databases and roles.
    pub fn database_server(mut self, url: &str) -> Self {
        self.database_server = Some(url.into());
        self
    }

    /// Uses this database, which another stack has created or which is a copy of such a one. It is
    /// neither migrated nor dropped.
    pub fn database(mut self, url: &str) -> Self {
        self.database = Some(url.into());
        self
    }

    /// Lets a stage reach the server of the database at this port, which may be that of a proxy of
    /// its own.
    pub fn database_port(mut self, stage: Stage, port: u16) -> Self {
        self.database_ports.insert(stage, port);
        self
    }

    /// Creates and migrates the database, imports the sandbox's catalogue, and waits until every
    /// stage is ready.
    pub async fn start(self) -> Result<Stack> {
        if let Ok(base_url) = std::env::var("TEST_BASE_URL") {
            ensure!(
                self == Self::default(),
                "this test needs a system of its own: run it without TEST_BASE_URL"
            );
            return Stack::attached(base_url).await;
        }
        let dir = tempfile::Builder::new().prefix("stack-").tempdir()?;
        let database = match (&self.database, &self.database_server) {
            (Some(database), _) => Database::existing(database)?,
            (None, None) => Database::create().await?,
            (None, Some(server)) => Database::create_on(server).await?,
        };
        let prefix = format!("{}_", Uuid::now_v7().simple());
        let (own_nats, streams, nats_url) = if self.own_nats {
            let server = NatsServer::start(dir.path()).await?;
            let url = server.url().to_owned();
            (Some(server), None, url)
        } else if let Some(url) = &self.nats {
            (None, None, url.clone())
        } else {
            let url = required("TEST_NATS_URL")?;
            (None, Some(OwnStreams::new(&url, &prefix)), url)
        };

        let mut common = env([
            ("DATABASE_URL", &database.url_of("operator")?),
            ("NATS_URL", &nats_url),
            ("STREAM_PREFIX", &prefix),
            ("MASTER_KEY", MASTER_KEY),
            ("LOG", "info"),
            ("LOG_FORMAT", "text"),
        ]);
        let provider = self.provider.as_deref();
        if let Some(name) = provider {
            common.insert("PROVIDERS".into(), format!("{SANDBOX},{name}"));
            // The endpoints of these live partners are in this process.
            common.insert("WEBHOOK_HTTP_LIVE".into(), "true".into());
        }
        let esimctl = Esimctl::new(common.clone()).with_owner(database.url());
        if self.database.is_none() {
            let _: serde_json::Value = esimctl.run(&["migrate"]).await?;
            import_catalogue(&esimctl, provider.unwrap_or(SANDBOX)).await?;
        }
        let options = esimctl.options().await?;

        let plan = Plan {
            dir: dir.path(),
            common: &common,
            sandbox_port: ports::free()?,
            ingress_port: ports::free()?,
            callback_port: self.callbacks.then(ports::free).transpose()?,
            callback_relay: self.callback_relay.as_deref(),
            provider,
        };
        let esimctl = esimctl.with_settings(plan.account());
        let processes = self.processes(&plan, &database)?;
        let base_url = plan.base_url();
        let sandbox_url = plan.sandbox_url();
        let mut stack = Stack {
            processes,
            nats: own_nats,
            _streams: streams,
            database,
            dir,
            esimctl,
            options,
            base_url,
            sandbox_url,
            sold_before: Ledger::default(),
            environment: if self.provider.is_some() {
                "live"
            } else {
                "sandbox"
            },
            prefix,
        };
        let started = stack.start_all(&self.left_out).await;
        started.with_context(|| format!("starting a stack in {}", stack.dir.path().display()))?;
        Ok(stack)
    }

    /// The processes of all stages, with their settings, none of them started.
    fn processes(
        &self,
        plan: &Plan<'_>,
        database: &Database,
    ) -> Result<BTreeMap<Stage, Vec<Process>>> {
        let mut processes = BTreeMap::new();
        for stage in Stage::ALL {
            let count = self.replicas.get(&stage).copied().unwrap_or(1);
            ensure!(
                stage != Stage::Sandbox || count == 1,
                "a stack has exactly one sandbox, because its ledger has one owner"
            );
            let mut replicas = Vec::new();
            for replica in 0..count {
                let mut program = plan.program(stage, replica)?;
                if stage != Stage::Sandbox {
                    let mut url: Url = database.url_of(stage.name())?.parse()?;
                    if let Some(port) = self.database_ports.get(&stage) {
                        ensure!(url.set_port(Some(*port)).is_ok(), "{url} takes no port");
                    }
                    program.env.insert("DATABASE_URL".into(), url.into());
                    if !self.own_nats && self.nats.is_none() {
                        program
                            .env
                            .insert("NATS_URL".into(), nats::url_of(stage.name())?);
                    }
                }
                for (_, name, value) in self.env.iter().filter(|(of, _, _)| *of == stage) {
                    if name.starts_with("--") {
                        program.args.push(format!("{name}={value}"));
                    } else {
                        program.env.insert(name.clone(), value.clone());
                    }
                }
                replicas.push(Process::new(program));
            }
            processes.insert(stage, replicas);
        }
        Ok(processes)
    }
}

/// A running pipeline. When it is dropped, its processes are killed, and its database and streams
/// are deleted. If the test panicked, its logs stay, and a line on standard error says where they
/// are.
#[derive(Debug)]
pub struct Stack {
    // Fields are dropped in this order, so the processes end before the servers that they use.
    processes: BTreeMap<Stage, Vec<Process>>,
    nats: Option<NatsServer>,
    _streams: Option<OwnStreams>,
    pub database: Database,
    dir: TempDir,
    pub esimctl: Esimctl,
    options: Vec<CatalogueOption>,
    /// The base URL of the first ingress, such as `http://127.0.0.1:20001`.
    pub base_url: String,
    pub sandbox_url: String,
    /// The sandbox's purchases before this stack was attached.
    sold_before: Ledger,
    /// The environment whose partners can order the options of [`Stack::option`].
    pub environment: &'static str,
    /// `STREAM_PREFIX`.
    pub prefix: String,
}

impl Stack {
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts one process of each stage with the default settings.
    pub async fn start() -> Result<Self> {
        Self::builder().start().await
    }

    /// Does the same with these settings of one stage.
    pub async fn with(stage: Stage, settings: &[(&str, &str)]) -> Result<Self> {
        let with = |builder: Builder, (name, value): &(&str, &str)| builder.env(stage, name, value);
        settings.iter().fold(Self::builder(), with).start().await
    }

    async fn attached(base_url: String) -> Result<Self> {
        let esimctl = Esimctl::new([]);
        let mut stack = Self {
            processes: BTreeMap::new(),
            nats: None,
            _streams: None,
            database: Database::existing(&required("TEST_DATABASE_URL")?)?,
            dir: tempfile::Builder::new().prefix("stack-").tempdir()?,
            options: esimctl.options().await?,
            esimctl,
            base_url,
            sandbox_url: required("TEST_SANDBOX_URL")?,
            sold_before: Ledger::default(),
            environment: "sandbox",
            prefix: String::new(),
        };
        stack.sold_before = stack.ledger().await?;
        Ok(stack)
    }

    /// Creates a partner with a random name; `environment` is `sandbox` or `live`.
    pub async fn create_partner(
        &self,
        environment: &str,
        webhook_url: Option<&str>,
    ) -> Result<Partner> {
        self.esimctl
            .create_partner(
                &format!("partner {}", Uuid::now_v7()),
                environment,
                webhook_url,
            )
            .await
    }

    pub fn client(&self, partner: &Partner) -> Result<Client> {
        Client::of(&self.base_url, partner)
    }

    pub fn base_urls(&self) -> Vec<String> {
        let replicas = self.processes.get(&Stage::Ingress).into_iter().flatten();
        let listening = replicas.filter_map(|one| one.program().env.get("LISTEN"));
        listening.map(|listen| format!("http://{listen}")).collect()
    }

    /// The `option_id` of a sandbox option, such as `ready`, `delayed`, `refused` or
    /// `out-of-stock`.
    pub fn option(&self, name: &str) -> Result<&str> {
        let found = self.options.iter().find(|option| option.name == name);
        Ok(&found
            .with_context(|| format!("the sandbox offers no option named {name}"))?
            .option_id)
    }

    /// All purchases of the sandbox provider as CSV, for `esimctl recover --ledger`.
    pub async fn ledger_csv(&self) -> Result<String> {
        let answer = http::client()?
            .get(format!("{}/ledger.csv", self.sandbox_url))
            .send()
            .await?;
        Ok(answer.error_for_status()?.text().await?)
    }

    /// The purchases that the sandbox provider has recorded since this stack was started or
    /// attached.
    pub async fn ledger(&self) -> Result<Ledger> {
        let answer = http::client()?
            .get(format!("{}/ledger", self.sandbox_url))
            .send()
            .await?;
        let mut ledger: Ledger = answer
            .error_for_status()?
            .json()
            .await
            .context("unexpected shape of the ledger")?;
        let before = &self.sold_before;
        ledger.purchases -= before.purchases;
        ledger.units -= before.units;
        if !before.orders.is_empty() {
            let old: BTreeSet<&str> = before
                .orders
                .iter()
                .map(|order| order.order_id.as_str())
                .collect();
            ledger
                .orders
                .retain(|order| !old.contains(order.order_id.as_str()));
        }
        Ok(ledger)
    }

    /// All extensions as they are stored.
    pub async fn extensions(&self) -> Result<Vec<StoredExtension>> {
        let query = "SELECT extension_id::text, external_id, topup_id, coalesce(provider_unit_id, '') AS unit_id, state,
                            price, extensions.partner_id::text
                     FROM extensions LEFT JOIN esims USING (topup_id)";
        let mut database = self.database.connect().await?;
        Ok(sqlx::query_as(query).fetch_all(&mut database).await?)
    }

    /// The topups that are stored, without those that a test has filled in as finished ones.
    pub async fn stored(&self) -> Result<Vec<Stored>> {
        let mut database = self.database.connect().await?;
        let stored = sqlx::query_as(
            "SELECT o.external_order_id, a.access_key, p.placement_id::text, t.topup_id, o.refused_at IS NOT NULL AS refused,
                    p.state AS placement, d.state AS delivery,
                    CASE WHEN e.ready_at IS NULL THEN t.state ELSE 'ready' END AS topup
             FROM topups t LEFT JOIN esims e USING (topup_id) JOIN placements p USING (placement_id)
             JOIN orders o ON o.order_id = p.order_id JOIN partners a ON a.partner_id = o.partner_id
             LEFT JOIN deliveries d ON d.delivery_id = e.delivery_id
             WHERE o.external_order_id NOT LIKE 'filled-%'",
        );
        Ok(stored.fetch_all(&mut database).await?)
    }

    /// The number that a query returns.
    pub async fn count(&self, query: &'static str) -> Result<usize> {
        let mut database = self.database.connect().await?;
        let count: i64 = sqlx::query_scalar(query).fetch_one(&mut database).await?;
        Ok(usize::try_from(count)?)
    }

    /// Sets the faults that the sandbox provider plays, as the JSON that its `PUT /faults` takes.
    /// `{}` ends them.
    pub async fn set_faults(&self, json: &'static str) -> Result<()> {
        let answer = http::client()?
            .put(format!("{}/faults", self.sandbox_url))
            .body(json)
            .send()
            .await?;
        answer.error_for_status()?;
        Ok(())
    }

    /// The first process of a stage, for tests that stop it, start it again or read its log.
    pub fn process(&mut self, stage: Stage) -> Result<&mut Process> {
        self.replicas(stage)
            .first_mut()
            .with_context(|| format!("no {} in this stack", stage.name()))
    }

    pub fn replicas(&mut self, stage: Stage) -> &mut [Process] {
        self.processes
            .get_mut(&stage)
            .map_or(&mut [], Vec::as_mut_slice)
    }

    /// Moves the processes of a stage out of the stack, for tests that act on several of them at
    /// once.
    pub fn take_processes(&mut self, stage: Stage) -> Vec<Process> {
        self.processes.remove(&stage).unwrap_or_default()
    }

    /// Moves the stack's own `nats-server` out of the stack.
    pub fn take_nats(&mut self) -> Result<NatsServer> {
        self.nats
            .take()
            .context("build the stack with own_nats() to control its NATS server")
    }

    /// Keeps the database and the folder when the stack is dropped. Returns the folder, which
    /// contains the logs and the sandbox's ledger.
    pub fn keep(&mut self) -> &Path {
        self.database.keep();
        self.dir.disable_cleanup(true);
        self.dir.path()
    }

    pub fn nats(&mut self) -> Result<&mut NatsServer> {
        self.nats
            .as_mut()
            .context("build the stack with own_nats() to control its NATS server")
    }

    async fn start_all(&mut self, left_out: &BTreeSet<Stage>) -> Result<()> {
        let stages = self
            .processes
            .iter_mut()
            .filter(|(stage, _)| !left_out.contains(stage));
        futures_util::future::try_join_all(
            stages
                .flat_map(|(_, replicas)| replicas)
                .map(Process::start),
        )
        .await?;
        Ok(())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.dir.disable_cleanup(true);
            eprintln!(
                "the logs of this test's processes are in {}",
                self.dir.path().display()
            );
        }
    }
}

fn env<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Imports the catalogue that the sandbox has for this provider, like `sandbox catalogue --provider
/// NAME | esimctl option apply -f -`.
async fn import_catalogue(esimctl: &Esimctl, provider: &str) -> Result<()> {
    let mut command = Command::new(bin_dir().join(seller(provider)));
    let output = output(
        command.args(["catalogue", "--provider", provider]),
        Duration::from_secs(30),
    )
    .await?;
    ensure!(
        output.status.success(),
        "sandbox catalogue: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    esimctl.import(&output.stdout).await.map(drop)
}

//! A provisioner with its own database, streams, ports and sandbox providers.

use std::net::{Ipv4Addr, SocketAddr};
use std::{collections::BTreeMap, path::Path, time::Duration};

use domain::{OptionId, OrderId, PartnerId, PlacementId, TopupIds};
use pg::schema;
use pipeline::Nats;
use pipeline::payload::{JobMessage, JobPlacement};
use provisioner::Config;
use runtime::{Shutdown, clock};
use sandbox::script;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use store::orders::{self, Alternative, NewOrder, NewPlacement, NewTopup};
use tempfile::TempDir;
use testkit::process::{Process, Program};
use testkit::{database::Database, nats::OwnStreams, ports, wait};
use tokio::task::JoinHandle;
use uuid::Uuid;

pub use crate::seller::Seller;

pub const ACCESS_KEY: &str = "access";
pub const SECRET_KEY: &str = "c2FuZGJveC1zZWNyZXQ=";
pub const WRONG_KEY: &str = "d3Jvbmcta2V5";
pub const TOKEN: &str = "callback-token-of-the-sandbox";
/// The timeout of every wait in these tests.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// Everything around a provisioner, and the provisioner unless it is stopped.
pub struct Bench {
    pub config: Config,
    /// Those that `config` began with.
    settings: BTreeMap<String, String>,
    pub pool: sqlx::PgPool,
    pub nats: Nats,
    pub sandbox: Seller,
    ids: TopupIds,
    running: Option<Running>,
    pub http: reqwest::Client,
    folder: TempDir,
    _streams: OwnStreams,
    database: Database,
}

/// A provisioner in this process.
struct Running {
    shutdown: Shutdown,
    /// `None` after its end was observed.
    ending: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Drop for Running {
    /// A running provisioner would create deleted streams again.
    fn drop(&mut self) {
        self.shutdown.stop();
        if let Some(ending) = self.ending.take() {
            let ended = tokio::time::timeout(PATIENCE, ending);
            let _ =
                tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(ended));
        }
    }
}

/// A placement as it is stored.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Stored {
    pub state: String,
    pub attempt: i32,
    pub reason: Option<String>,
    pub bought: bool,
    pub not_found: bool,
    pub unknowns: i32,
    /// The provider's own id of the purchase.
    pub reference: Option<String>,
    pub due: bool,
    /// The number of units in each state.
    pub pending: i64,
    pub ready: i64,
    pub failed: i64,
    /// The number of deliveries.
    pub deliveries: i64,
}

/// Changes one setting of our account at a provider.
pub fn change_account(config: &mut Config, provider: &str, setting: &str, value: &str) {
    config.accounts = config.accounts.clone().with(provider, setting, value);
}

pub fn address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, ports::free().unwrap()).into()
}

pub async fn answers(http: &reqwest::Client, url: &str) {
    wait::soon(url, async || {
        let answer = http.get(url).send().await;
        Ok(answer
            .ok()
            .filter(|answer| answer.status().is_success())
            .map(drop))
    })
    .await;
}

impl Bench {
    /// A running provisioner with short times.
    pub async fn start(change: impl FnOnce(&mut Config)) -> Self {
        let mut bench = Self::stopped(change).await;
        bench.run().await;
        bench
    }

    /// Prepares a bench without starting its provisioner.
    pub async fn stopped(change: impl FnOnce(&mut Config)) -> Self {
        testkit::settings::telemetry("provisioner");
        let http = testkit::http::client().unwrap();
        let listen = address();
        let sandbox =
            Seller::start(Some(&format!("http://{listen}/callbacks/sandbox/{TOKEN}"))).await;
        let database = Database::create().await.unwrap();
        let url = sandbox.url().to_string();
        let listen = listen.to_string();
        let more = [
            ("LISTEN", listen.as_str()),
            ("PROVIDER_CONCURRENCY", "64"),
            ("PROVIDER_TIMEOUT", "500ms"),
            ("SETTLE", "1500ms"),
            ("BREAKER_OPEN_MOST", "6h"),
            ("SANDBOX_URL", &url),
            ("SANDBOX_ACCESS_KEY", ACCESS_KEY),
            ("SANDBOX_SECRET_KEY", SECRET_KEY),
            ("SANDBOX_CALLBACK_TOKEN", TOKEN),
            ("AIRALO_URL", &url),
            ("AIRALO_ACCESS_KEY", ACCESS_KEY),
            ("AIRALO_SECRET_KEY", SECRET_KEY),
            ("AIRALO_CALLBACK_TOKEN", TOKEN),
            ("ESIM_ACCESS_URL", &url),
            ("ESIM_ACCESS_ACCESS_KEY", ACCESS_KEY),
            ("ESIM_ACCESS_SECRET_KEY", SECRET_KEY),
            ("ESIM_ACCESS_CALLBACK_TOKEN", TOKEN),
            ("USIMSA_ACCESS_KEY", ACCESS_KEY),
            ("USIMSA_SECRET_KEY", SECRET_KEY),
            ("ZENDIT_URL", &url),
            ("ZENDIT_ACCESS_KEY", ACCESS_KEY),
            ("ZENDIT_CALLBACK_TOKEN", TOKEN),
        ];
        let settings = testkit::settings::of("provisioner", &database, &more).unwrap();
        let mut config: Config = testkit::settings::parse(&settings);
        // The faults that most tests make are about one order and not about the provider.
        config.breaker_failures = 1000;
        change(&mut config);
        let pool = sqlx::PgPool::connect_lazy(database.url()).unwrap();
        schema::migrate(&mut pool.acquire().await.unwrap())
            .await
            .unwrap();
        let streams = OwnStreams::new(
            config.nats.nats_url.expose_secret(),
            &config.nats.stream_prefix,
        );
        let nats = Nats::connect(&config.nats, "test").await.unwrap();
        nats.until_up().await;
        Self {
            config,
            settings,
            pool,
            nats,
            sandbox,
            ids: TopupIds::new([0; 32]),
            running: None,
            http,
            folder: tempfile::tempdir().unwrap(),
            _streams: streams,
            database,
        }
    }

    /// Starts the provisioner in this process.
    pub async fn run(&mut self) {
        let shutdown = Shutdown::new();
        let ending = Some(tokio::spawn(provisioner::run(
            self.config.clone(),
            shutdown.clone(),
        )));
        self.running = Some(Running { shutdown, ending });
        answers(
            &self.http,
            &format!("http://{}/readyz", self.config.admin_listen),
        )
        .await;
        // Readiness follows the database, and the process registers its providers beside that. A
        // test that changes their rows would change none before they exist.
        for provider in &self.config.providers {
            wait::soon(&format!("the row of provider {provider}"), async || {
                let mut connection = self.pool.acquire().await?;
                let all = store::providers::list(&mut connection).await?;
                Ok(all
                    .iter()
                    .any(|known| known.name == *provider)
                    .then_some(()))
            })
            .await;
        }
    }

    /// Stops it as a signal would, and expects a clean end.
    pub async fn stop(&mut self) {
        let mut running = self.running.take().unwrap();
        running.shutdown.stop();
        tokio::time::timeout(PATIENCE, running.ending.take().unwrap())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        // Its admin endpoint lives as long as the process.
        self.config.admin_listen = address();
    }

    /// The provisioner as a process of its own, to be killed. Not started yet.
    pub fn process(&self) -> Process {
        let config = &self.config;
        let mut env = self.settings.clone();
        let changed = [
            ("PROVIDER_TIMEOUT", format!("{:?}", config.provider_timeout)),
            ("SETTLE", format!("{:?}", config.settle)),
        ];
        env.extend(changed.map(|(name, value)| (name.to_owned(), value)));
        Process::new(Program {
            name: "provisioner".into(),
            binary: env!("CARGO_BIN_EXE_provisioner").into(),
            args: Vec::new(),
            env,
            ready_url: format!("http://{}/readyz", config.admin_listen),
            log: self.folder.path().join("provisioner.log"),
        })
    }

    /// Stores orders that are answered already, each of these options of the sandbox, from this
    /// provider.
    pub async fn store(&self, provider: &str, orders: usize, options: &[&str]) -> Vec<PlacementId> {
        let new: Vec<NewOrder> = (0..orders).map(|_| self.order(provider, options)).collect();
        for batch in new.chunks(500) {
            let mut connection = self.pool.acquire().await.unwrap();
            let stored = orders::insert(&mut connection, batch).await.unwrap();
            assert!(stored.iter().all(|stored| *stored));
        }
        new.iter()
            .map(|order| order.placements[0].placement_id)
            .collect()
    }

    /// Stores an order for the sandbox that an ingress process is still answering, without
    /// publishing its job.
    pub async fn store_pending(&self, ingress: Uuid, options: &[&str]) -> NewOrder {
        let within = Duration::from_mins(1);
        let order = NewOrder {
            answering: Some(ingress),
            answer_within: within,
            ..self.order("sandbox", options)
        };
        let mut connection = self.pool.acquire().await.unwrap();
        assert_eq!(
            orders::insert(&mut connection, std::slice::from_ref(&order))
                .await
                .unwrap(),
            [true]
        );
        order
    }

    fn order(&self, provider: &str, options: &[&str]) -> NewOrder {
        let order_id = OrderId::new();
        let topups = options.iter().enumerate().map(|(position, option)| {
            NewTopup::new(
                self.ids.next(clock::now()),
                position,
                OptionId::new(),
                provider_option(option),
            )
        });
        let lane = domain::lane(options.iter().copied());
        let placement = NewPlacement {
            placement_id: PlacementId::new(),
            provider: provider.into(),
            lane,
            alternatives: Vec::new(),
            topups: topups.collect(),
        };
        NewOrder {
            order_id,
            ..NewOrder::new(PartnerId::new(), order_id.to_string(), vec![placement])
        }
    }

    /// Publishes jobs of placements, as ingress does: many in one message.
    pub async fn announce(&self, provider: &str, ids: &[PlacementId]) {
        for batch in ids.chunks(64) {
            let uuids: Vec<Uuid> = batch.iter().map(|id| id.uuid()).collect();
            let find = "SELECT placement_id, partner_id, lane FROM placements WHERE placement_id = ANY ($1)";
            let found: Vec<(Uuid, Uuid, String)> = sqlx::query_as(find)
                .bind(uuids)
                .fetch_all(&self.pool)
                .await
                .unwrap();
            let placements = found
                .into_iter()
                .map(|(placement, partner, lane)| JobPlacement {
                    placement_id: placement.into(),
                    partner_id: partner.into(),
                    lane,
                });
            let job = JobMessage::V1 {
                placements: placements.collect(),
            };
            self.nats
                .publish(self.nats.job_subject(provider), job, None)
                .await;
        }
    }

    /// Stores an order for the sandbox and publishes its job.
    pub async fn accept(&self, options: &[&str]) -> PlacementId {
        self.accept_at("sandbox", options).await
    }

    /// Stores an order for this provider and publishes its job.
    pub async fn accept_at(&self, provider: &str, options: &[&str]) -> PlacementId {
        let placement_id = self.store(provider, 1, options).await[0];
        self.announce(provider, &[placement_id]).await;
        placement_id
    }

    /// Stores an order of one unit that goes from each of these providers to the next one, with the
    /// option of the sandbox that it gets there, and publishes its job.
    pub async fn accept_routed(&self, pairs: &[(&str, &str)]) -> PlacementId {
        let (provider, option) = pairs[0];
        let mut order = self.order(provider, &[option]);
        let placement = &mut order.placements[0];
        let placement_id = placement.placement_id;
        let option_id = placement.topups[0].agreed.option_id;
        let alternative = |(provider, option): &(&str, &str)| Alternative {
            provider: (*provider).to_owned(),
            lane: (*option).to_owned(),
            options: [(option_id, provider_option(option))].into(),
        };
        placement.alternatives = pairs[1..].iter().map(alternative).collect();
        let mut connection = self.pool.acquire().await.unwrap();
        let stored = orders::insert(&mut connection, &[order]).await.unwrap();
        assert_eq!(stored, [true]);
        self.announce(provider, &[placement_id]).await;
        placement_id
    }

    /// Reads a placement.
    pub async fn look(&self, id: PlacementId) -> Stored {
        sqlx::query_as(
            "SELECT p.state, p.attempt, p.reason, placed_at IS NOT NULL AS bought, not_found_at IS NOT NULL AS not_found,
                    unknowns, provider_reference AS reference, EXISTS (SELECT FROM work WHERE work.id = p.placement_id) AS due,
                    count(*) FILTER (WHERE t.state = 'pending' AND e.ready_at IS NULL) AS pending,
                    count(*) FILTER (WHERE e.ready_at IS NOT NULL) AS ready,
                    count(*) FILTER (WHERE t.state = 'failed') AS failed, count(d.topup_id) AS deliveries
             FROM placements p JOIN topups t USING (placement_id) LEFT JOIN esims e USING (topup_id)
                  LEFT JOIN deliveries d USING (topup_id)
             WHERE p.placement_id = $1 GROUP BY p.placement_id",
        )
        .bind(id.uuid())
        .fetch_one(&self.pool)
        .await
        .unwrap()
    }

    /// Reads a placement when `condition` holds.
    pub async fn until(&self, id: PlacementId, condition: impl Fn(&Stored) -> bool) -> Stored {
        self.until_after(id, async || {}, condition).await
    }

    /// Reads a placement when `condition` holds; every wait is due at once.
    pub async fn hurry(&self, id: PlacementId, condition: impl Fn(&Stored) -> bool) -> Stored {
        self.until_after(id, async || self.make_due(id).await, condition)
            .await
    }

    /// Reads a placement when `condition` holds; `meanwhile` runs before each look.
    pub async fn until_after(
        &self,
        id: PlacementId,
        meanwhile: impl AsyncFn(),
        condition: impl Fn(&Stored) -> bool,
    ) -> Stored {
        let mut last = None;
        let found = wait::until(PATIENCE, "a placement to get there", async || {
            meanwhile().await;
            let stored = self.look(id).await;
            last = Some(stored.clone());
            Ok(condition(&stored).then_some(stored))
        })
        .await;
        found.unwrap_or_else(|error| panic!("{error}: {last:?}"))
    }

    /// Waits until every unit has its profile.
    pub async fn ready(&self, id: PlacementId) -> Stored {
        self.until(id, |stored| stored.pending == 0 && stored.ready > 0)
            .await
    }

    /// Makes a placement due unless it is leased. A lease is longer than any wait in these tests.
    pub async fn make_due(&self, id: PlacementId) {
        self.sql(&format!(
            "UPDATE work SET at = now() WHERE id = '{id}' AND at < now() + interval '8 seconds'"
        ))
        .await;
    }

    /// Makes a placement due, leased or not, and also during its first lease. The lease of an
    /// attempt ends, too.
    ///
    /// These are two statements, because one statement that locks both rows could deadlock with the
    /// end of a look, which locks the placement first.
    pub async fn due_now(&self, id: PlacementId) {
        self.sql(&format!(
            "UPDATE placements SET attempted_at = attempted_at - interval '50 seconds'
             WHERE placement_id = '{id}' AND state = 'placing'"
        ))
        .await;
        self.set(
            "INSERT INTO work (id, kind, provider, lane, partner_id, at)
             SELECT placement_id, kind_of_work(state, attempt), provider, lane, partner_id, now()
             FROM placements WHERE placement_id = $1
             ON CONFLICT (id) DO UPDATE SET at = now(), kind = excluded.kind",
            id,
        )
        .await;
    }

    /// Runs a statement on a placement (`$1`), leased or not.
    pub async fn set(&self, statement: &'static str, id: PlacementId) {
        let done = sqlx::query(statement)
            .bind(id.uuid())
            .execute(&self.pool)
            .await
            .unwrap();
        assert_eq!(done.rows_affected(), 1, "{statement}");
    }

    /// Runs statements.
    pub async fn sql(&self, statements: &str) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statements))
            .execute(&self.pool)
            .await
            .unwrap();
    }

    /// The state of a provider's breaker, and what it counted.
    pub async fn breaker(&self, provider: &str) -> (&'static str, i32) {
        let mut connection = self.pool.acquire().await.unwrap();
        let all = store::providers::list(&mut connection).await.unwrap();
        let one = all
            .into_iter()
            .find(|breaker| breaker.name == provider)
            .unwrap();
        (one.state.as_str(), one.openings)
    }

    pub async fn until_breaker(&self, provider: &str, state: &str) {
        wait::soon(&format!("the breaker to be {state}"), async || {
            Ok((self.breaker(provider).await.0 == state).then_some(()))
        })
        .await;
    }

    /// Lets the time pass until a breaker lets a probe through.
    pub async fn half_open(&self, provider: &str) {
        self.sql(&format!(
            "UPDATE providers SET open_until = now() WHERE name = '{provider}'"
        ))
        .await;
    }

    /// The value of a metric, by the beginning of its line; 0 if there is none.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        self.metrics()
            .await
            .lines()
            .find(|line| line.starts_with(name) && labels.iter().all(|label| line.contains(label)))
            .and_then(|line| line.rsplit_once(' ')?.1.parse().ok())
            .unwrap_or_default()
    }

    /// The number of calls to providers with these labels.
    pub async fn calls(&self, labels: &[&str]) -> f64 {
        self.metric("esim_provider_calls_total", labels).await
    }

    /// Every metric, as text.
    pub async fn metrics(&self) -> String {
        let url = format!("http://{}/metrics", self.config.admin_listen);
        self.http
            .get(url)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
    }

    /// Calls back as a provider does.
    pub async fn call_back(&self, path: &str, body: impl Into<reqwest::Body>) -> u16 {
        let url = format!("http://{}{path}", self.config.listen);
        self.http
            .post(url)
            .body(body)
            .send()
            .await
            .unwrap()
            .status()
            .as_u16()
    }

    /// The provider's unit of a placement's only topup.
    pub async fn unit(&self, id: PlacementId) -> String {
        let unit = "SELECT esims.provider_unit_id FROM esims JOIN topups USING (topup_id) WHERE placement_id = $1";
        sqlx::query_scalar(unit)
            .bind(id.uuid())
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }

    /// Runs the operator's command line; answers what it printed as JSON.
    pub async fn esimctl(&self, arguments: &str) -> Value {
        let mut command = tokio::process::Command::new(esimctl());
        // The accounts at the providers are among the settings.
        command
            .args(arguments.split(' '))
            .arg("--json")
            .envs(&self.settings)
            .env("DATABASE_URL", self.database.url());
        let output = command.output().await.unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            serde_json::from_slice(&output.stdout).unwrap()
        } else {
            json!({ "error": error.trim() })
        }
    }
}

/// The provider's id of an option of the sandbox. A price behind `@` stays, and so does all that is
/// behind a `=`, which is an id itself.
pub fn provider_option(option: &str) -> String {
    if let Some(id) = option.strip_prefix('=') {
        return id.to_owned();
    }
    let id = |name| script::option_id(name).to_string();
    match option.split_once('@') {
        Some((name, price)) => format!("{}@{price}", id(name)),
        None => id(option),
    }
}

fn esimctl() -> impl AsRef<std::ffi::OsStr> {
    let binary = testkit::bin_dir().join("esimctl");
    assert!(
        Path::new(&binary).exists(),
        "{} is missing; tests/run builds it",
        binary.display()
    );
    binary
}

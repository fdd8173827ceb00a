//! The system under test, with processes and servers of its own, and the partners around it.

use crate::book::{Arrival, Book, lock};
use crate::client::Clients;
use crate::endpoints;
use crate::events::Events;
use crate::fault::{REPLICAS, Terms};
use crate::inject::{Happened, Surroundings, Victims};
use crate::money;
use crate::orders::{Behaviour, OPTIONS, PARTNERS, ROUTED, is_routed};
use crate::preload;
use crate::returns::Returns;
use crate::servers::{DATABASE_TIMEOUT, Nats, Postgres};
use crate::stored::{self, Books, OnTheWay, Stored};
use crate::tls::{Certificates, Tls};
use crate::verdict::{Evidence, Loss, Sold};
use anyhow::Result;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};
use tempfile::TempDir;
use testkit::esimctl::Partner;
use testkit::names::NameServer;
use testkit::nats::NatsCluster;
use testkit::receiver::Receiver;
use testkit::stack::{Stack, Stage};
use tokio::sync::Mutex;

/// The first waits between delivery attempts, in seconds. They are shorter than in production, so
/// that the run sees many retries. [`LATER`] longer ones follow.
const FIRST_WAITS: [u64; 8] = [1, 2, 5, 5, 10, 10, 20, 20];
const LATER: usize = 24;

/// How long clients may go on after the end of the faults until they must have a definite answer.
const CLIENTS: Duration = Duration::from_secs(90);

/// The ids of [`ROUTED`].
const ROUTED_IDS: [&str; 2] = [
    "01990000-0000-7000-8000-000000000001",
    "01990000-0000-7000-8000-000000000002",
];

/// What a run is asked to do beyond its faults.
#[derive(Clone, Debug)]
pub struct Load {
    /// The options of every order; empty for a mix.
    pub items: Vec<&'static str>,
    /// The number of equal requests that a client sends at once.
    pub at_once: u8,
    pub settings: Vec<Setting>,
}

/// A variable of every process of a stage.
#[derive(Clone, Debug)]
pub struct Setting {
    pub stage: Stage,
    pub name: String,
    pub value: String,
}

/// The whole world of a run. Its fields are dropped in this order, so processes end before the
/// servers that they use.
pub struct World {
    /// The provider that the sandbox plays.
    provider: &'static str,
    detects_duplicates: bool,
    settle: Duration,
    /// The moment `epoch` in Unix time.
    began: Duration,
    pub victims: Arc<Victims>,
    pub clients: Arc<Clients>,
    pub book: Arc<Book>,
    pub epoch: Instant,
    pub receiver: Receiver,
    returns: Returns,
    /// The option by which eSIMs are extended.
    extension: String,
    stack: Stack,
    postgres: Arc<Mutex<Postgres>>,
    folder: TempDir,
}

impl World {
    /// Starts everything. The times of the run count from the moment when all parts are ready.
    pub async fn start(terms: &Terms, load: &Load, park_after: Duration) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("faults-").tempdir()?;
        // The user that PostgreSQL runs as must be able to enter the folder.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711))?;
        let preloaded = preload::variables(folder.path())?;
        let of_postgres = preloaded.iter().cloned().collect();
        let postgres = Postgres::start(folder.path(), terms, of_postgres).await?;
        let cluster = if terms.is_cluster {
            Some(NatsCluster::start(folder.path()).await?)
        } else {
            None
        };
        let nats_url = cluster.as_ref().map(NatsCluster::url);
        let database_url = postgres.url()?;
        let ports = postgres.ports();
        let names = NameServer::start(endpoints::ZONE).await?;
        let certificates = Certificates::make(folder.path(), endpoints::HOST).await?;
        let for_endpoints = [
            ("WEBHOOK_RESOLVERS".to_owned(), names.address.to_string()),
            ("SSL_CERT_FILE".to_owned(), certificates.root()?),
        ];
        let variables = variables(&preloaded, for_endpoints);
        let events = Events::start(terms.provider).await?;
        let reached = Reached {
            database: &database_url,
            database_ports: &ports,
            nats: nats_url.as_deref(),
            events: &events.url(),
        };
        let mut stack = start_stack(terms, load, &variables, park_after, &reached).await?;
        stored::observe(&mut stack.database.connect().await?).await?;
        if !terms.is_fenced {
            take_fence_out(&stack).await?;
        }
        let nats = match cluster {
            Some(cluster) => Nats::three(cluster),
            None => Nats::one(stack.take_nats()?),
        };

        let epoch = Instant::now();
        let began = Duration::from_millis(u64::try_from(runtime::clock::unix_milliseconds())?);
        let book = Arc::new(Book::default());
        let receiver = Receiver::start().await?;
        endpoints::misbehave(&receiver);
        let tls = Tls::start(&certificates, endpoints::address(&receiver)?).await?;
        let partners = partners(&stack, &receiver, &tls).await?;
        let mut options = BTreeMap::new();
        for (name, _) in OPTIONS {
            options.insert(name, stack.option(name)?.to_owned());
        }
        if load.items.iter().any(|name| is_routed(name)) {
            import_routed(&stack, terms.provider).await?;
            for ((name, _), id) in ROUTED.into_iter().zip(ROUTED_IDS) {
                options.insert(name, id.to_owned());
            }
        }
        money::agree(&mut stack.database.connect().await?, &partners).await?;
        let ingresses = stack.base_urls();
        let postgres = Arc::new(Mutex::new(postgres));
        let victims = Arc::new(Victims::of(
            &mut stack,
            Arc::clone(&postgres),
            nats,
            Surroundings { names, tls, events },
            epoch,
            terms,
        )?);
        victims.lift().await?;
        let clients = Arc::new(Clients {
            seed: terms.seed,
            items: load.items.clone(),
            at_once: load.at_once,
            epoch,
            book: Arc::clone(&book),
            ingresses,
            partners,
            options,
            deadline: epoch.elapsed() + terms.length + CLIENTS,
        });
        Ok(Self {
            provider: terms.provider,
            detects_duplicates: terms.detects_duplicates,
            settle: terms.settle,
            began,
            victims,
            clients,
            book,
            epoch,
            receiver,
            returns: Returns::default(),
            extension: stack.option("extension")?.to_owned(),
            stack,
            postgres,
            folder,
        })
    }

    /// Lets partners give delivered eSIMs back and extend others. Never returns.
    pub async fn change_esims(&self) {
        let ingress = &self.clients.ingresses[0];
        let database = &self.stack.database;
        let partners = &self.clients.partners;
        let option = &self.extension;
        self.returns
            .go_on(database, ingress, partners, option)
            .await;
    }

    /// Ends the faults of the provider, lets all endpoints respond 200, and sets the URL of the
    /// partner that had none, so that everything can come to rest.
    pub async fn heal(&self) -> Result<()> {
        self.victims.lift().await?;
        endpoints::heal(&self.receiver);
        for (index, (behaviour, _)) in PARTNERS.into_iter().enumerate() {
            if behaviour == Behaviour::Absent {
                // It is not the one behind TLS.
                let url = endpoints::url(&self.receiver, index, 0)?;
                let partner = &self.clients.partners[index].partner_id;
                let set = ["partner", "set", partner, "--webhook-url", &url];
                let _: Value = self.stack.esimctl.run(&set).await?;
            }
        }
        Ok(())
    }

    /// Reads what is in flight. It gives up soon, because a fault may have cut the database off,
    /// and faults do not go on while the progress line is drawn.
    pub async fn on_the_way(&self) -> Result<OnTheWay> {
        let reading = async {
            let mut connection = self.stack.database.connect().await?;
            // A server that is asked again before it has answered would do nothing else in the end.
            sqlx::query("SET statement_timeout = '5s'")
                .execute(&mut connection)
                .await?;
            OnTheWay::read(&mut connection).await
        };
        tokio::time::timeout(Duration::from_secs(6), reading).await?
    }

    pub async fn evidence(&self) -> Result<Evidence> {
        let names = self.clients.options.iter();
        let names = names.map(|(name, id)| (id.clone(), *name)).collect();
        let arrival = |one: testkit::receiver::Received| {
            Ok(Arrival {
                at: one.at.saturating_duration_since(self.epoch),
                partner: one.path.trim_start_matches('/').parse()?,
                topup_id: one.topup_id().to_owned(),
                iccid: one.json["iccid"].as_str().unwrap_or_default().to_owned(),
                acknowledged: one.answer == 200,
                genuine: one.is_valid(),
            })
        };
        let arrivals = self
            .receiver
            .received()
            .into_iter()
            .map(arrival)
            .collect::<Result<_>>()?;
        let partners = self.clients.partners.iter();
        let asked = lock(&self.book).clone();
        let losses = self.postgres.lock().await.losses().to_vec();
        let losses: Vec<Loss> = losses
            .into_iter()
            .map(|lost| Loss {
                from: lost.from.saturating_duration_since(self.epoch),
                until: lost.until.saturating_duration_since(self.epoch),
            })
            .collect();
        let orphans = if losses.is_empty() {
            Vec::new()
        } else {
            self.victims.orphans().await?
        };
        let ledger = self.stack.ledger().await?;
        Ok(Evidence {
            orphans: orphans.into_iter().collect(),
            losses,
            provider: self.provider,
            asked,
            arrivals,
            ledger: ledger.orders,
            extended: ledger.extensions,
            extensions: self.stack.extensions().await?,
            books: Books::read(&mut self.stack.database.connect().await?).await?,
            sold: self.sold().await?,
            began: self.began,
            detects_duplicates: self.detects_duplicates,
            settle: self.settle,
            stalls: self.spans(|one| one.stalls_purchases),
            crashes: self.crashes(),
            slow_commits: self.spans(|one| one.delays_commits),
            stored: Stored::read(&mut self.stack.database.connect().await?, &names).await?,
            partners: partners.map(|one| one.partner_id.clone()).collect(),
            given_back: self.returns.asked(),
        })
    }

    /// When the faults of a kind began and ended.
    fn spans(&self, is: impl Fn(&Happened) -> bool) -> Vec<(Duration, Duration)> {
        let happened = self.victims.happened().into_iter();
        let faults = happened.filter(|one| is(one));
        faults.map(|one| (one.from, one.until)).collect()
    }

    fn crashes(&self) -> Vec<Duration> {
        let happened = self.victims.happened().into_iter();
        let crashes = happened.filter(|one| one.crashes_database);
        crashes.map(|one| one.from).collect()
    }

    /// Each purchase, from the ledger as a real provider would export it.
    async fn sold(&self) -> Result<Vec<Sold>> {
        let csv = self.stack.ledger_csv().await?;
        let purchases = csv.lines().skip(1).map(|line| {
            let mut fields = line.split(',').map(|field| field.trim_matches('"'));
            let order_id = fields.next().unwrap_or_default().to_owned();
            let at = humantime::parse_rfc3339_weak(fields.next().unwrap_or_default())?;
            let at = at.duration_since(UNIX_EPOCH)?;
            Ok(Sold {
                order_id,
                at: at.saturating_sub(self.began),
                option: fields.nth(1).unwrap_or_default().to_owned(),
            })
        });
        purchases.collect()
    }

    /// Keeps the database and the folder for inspection, and returns instructions for it.
    pub async fn keep(mut self) -> Result<String> {
        let logs = self.stack.keep().to_owned();
        self.folder.disable_cleanup(true);
        let mut postgres = self.postgres.lock().await;
        postgres.primary.stop_fast().await?;
        Ok(format!(
            "To look at it (logs of every process, the sandbox's ledger, the database):
  cd {logs}
  {start} &
  export DATABASE_URL={database} MASTER_KEY={key}
  {esimctl} order show <order id, topup id or external order id>
  grep -h <id> *.log ledger
and afterwards: kill %1; rm -r {logs} {folder}",
            logs = logs.display(),
            folder = self.folder.path().display(),
            start = postgres.primary.command_line(),
            database = postgres.direct(self.stack.database.url())?,
            key = testkit::settings::MASTER_KEY,
            esimctl = testkit::bin_dir().join("esimctl").display(),
        ))
    }
}

/// Creates the partners, whose webhooks go to the receiver.
async fn partners(stack: &Stack, receiver: &Receiver, tls: &Tls) -> Result<Vec<Partner>> {
    let mut partners = Vec::new();
    for (index, (behaviour, _)) in PARTNERS.into_iter().enumerate() {
        let url = endpoints::url(receiver, index, tls.port())?;
        let url = (behaviour != Behaviour::Absent).then_some(url);
        let name = format!("{behaviour:?}").to_lowercase();
        let partner = stack
            .esimctl
            .create_partner(&name, stack.environment, url.as_deref())
            .await?;
        receiver.verify(&endpoints::path(index), &partner.webhook_secret)?;
        partners.push(partner);
    }
    Ok(partners)
}

/// Imports the options that two providers sell.
async fn import_routed(stack: &Stack, provider: &str) -> Result<()> {
    let of = async |name| stack.esimctl.option_of(provider, name).await;
    // The sandbox knows its options by the same ids in all protocols. At Airalo a price follows.
    let sold_out = of("out-of-stock").await?.provider_option_id;
    let sold_out = sold_out.split('@').next().unwrap_or_default();
    let mut options = Vec::new();
    for ((name, sold), id) in ROUTED.into_iter().zip(ROUTED_IDS) {
        let sold = of(sold).await?.provider_option_id;
        options.push(json!({
            "option_id": id, "name": name, "environment": stack.environment,
            "provider": "sandbox", "provider_option_id": sold_out,
            "alternatives": [{"provider": provider, "provider_option_id": sold}],
        }));
    }
    let catalogue = json!({ "options": options }).to_string();
    stack.esimctl.import(catalogue).await?;
    Ok(())
}

/// The variables of the processes of each stage: what is loaded into all, and what notifiers need.
fn variables(
    preloaded: &[(String, String)],
    for_endpoints: [(String, String); 2],
) -> Vec<(Stage, (String, String))> {
    let of_all = Stage::OURS.map(|stage| preloaded.iter().map(move |one| (stage, one.clone())));
    let of_notifiers = for_endpoints.map(|one| (Stage::Notifier, one));
    of_all.into_iter().flatten().chain(of_notifiers).collect()
}

/// Makes the commit fence do nothing: the stages notice that commits were lost, and buy on.
async fn take_fence_out(stack: &Stack) -> Result<()> {
    let without =
        "CREATE OR REPLACE FUNCTION commits_lost(process uuid, acknowledged bigint, new_timeline bigint)
         RETURNS boolean LANGUAGE sql AS 'SELECT false'";
    let mut connection = stack.database.connect().await?;
    sqlx::raw_sql(without).execute(&mut connection).await?;
    Ok(())
}

/// Where the stages reach what the run has started.
struct Reached<'a> {
    database: &'a str,
    /// The ports of a stage's own proxies to the database.
    database_ports: &'a BTreeMap<Stage, u16>,
    /// Without it the stack gets a nats-server of its own.
    nats: Option<&'a str>,
    /// Where the provider posts its events.
    events: &'a str,
}

async fn start_stack(
    terms: &Terms,
    load: &Load,
    variables: &[(Stage, (String, String))],
    park_after: Duration,
    reached: &Reached<'_>,
) -> Result<Stack> {
    let text = |duration: Duration| humantime::format_duration(duration).to_string();
    // Together, the waits are longer than the run. Otherwise deliveries to an endpoint that only
    // heals at the end would be exhausted before.
    let later = (terms.length / 20).as_secs().max(5);
    let waits = FIRST_WAITS
        .into_iter()
        .chain(std::iter::repeat_n(later, LATER));
    let waits: Vec<String> = waits.map(|seconds| format!("{seconds}s")).collect();
    let mut builder = Stack::builder()
        .provider(terms.provider)
        .callbacks_by(reached.events)
        .database_server(reached.database);
    builder = match reached.nats {
        Some(url) => builder.nats(url),
        None => builder.own_nats(),
    };
    for (stage, port) in reached.database_ports {
        builder = builder.database_port(*stage, *port);
    }
    for stage in Stage::OURS {
        builder = builder
            .replicas(stage, REPLICAS)
            .env(stage, "SHUTDOWN_TIMEOUT", "15s");
        if terms.is_cluster {
            builder = builder.env(stage, "STREAM_REPLICAS", "3").env(
                stage,
                "DATABASE_TIMEOUT",
                &text(DATABASE_TIMEOUT),
            );
        }
    }
    let settings = [
        // It is longer than the default, so that slow calls of the provider also lead to verdicts
        // in time.
        (Stage::Ingress, "PLACEMENT_WAIT", "3s".into()),
        (Stage::Provisioner, "PROVIDER_TIMEOUT", "2s".into()),
        (Stage::Provisioner, "SETTLE", text(terms.settle)),
        (Stage::Provisioner, "PARK_AFTER", text(park_after)),
        (Stage::Provisioner, "--breaker-open-most", "6s".into()),
        (Stage::Notifier, "WEBHOOK_TIMEOUT", "3s".into()),
        (Stage::Notifier, "RETRY_SCHEDULE", waits.join(",")),
        (Stage::Notifier, "--endpoint-block-longest", "5s".into()),
        (
            Stage::Sandbox,
            "SANDBOX_DETECT_DUPLICATES",
            terms.detects_duplicates.to_string(),
        ),
    ];
    for (stage, name, value) in settings {
        builder = builder.env(stage, name, &value);
    }
    for (stage, (name, value)) in variables {
        builder = builder.env(*stage, name, value);
    }
    for one in &load.settings {
        builder = builder.env(one.stage, &one.name, &one.value);
    }
    builder.start().await
}

//! A notifier with its own database, streams and admin port.

use std::{collections::BTreeMap, time::Duration};

use accounts::partners::{self, NewPartner};
use accounts::profile::{Profile, SealedProfile};
use domain::{
    ActivationCode, DeliveryId, EndpointKey, Environment, Iccid, OptionId, PartnerId, PlacementId,
    TopupId, TopupIds,
};
use notifier::Config;
use pg::schema;
use pipeline::Nats;
use pipeline::payload::{ReadyDelivery, ReadyMessage};
use runtime::{Shutdown, clock};
use secrecy::ExposeSecret;
use signing::{SecretKey, webhook::Secret};
use sqlx::Connection;
use store::deliveries::endpoints;
use store::orders::{self, NewOrder, NewPlacement, NewTopup};
use store::placements::{
    self, AttemptOutcome, PlacementClaim, PlacementSettlement, Progress, ReadyProfile, SettledUnit,
};
use testkit::{database::Database, nats::OwnStreams, receiver::Receiver, wait};
use tokio::task::JoinHandle;
use uuid::Uuid;
use vault::{Keyring, Vault};

/// The timeout of every wait in these tests.
pub const PATIENCE: Duration = Duration::from_secs(20);
pub const PUBLIC_URL: &str = "https://esim.example.com";
/// The trace context of every order's POST.
pub const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A running notifier with everything around it.
pub struct Bench {
    pub receiver: Receiver,
    pub nats: Nats,
    pub config: Config,
    /// Those that `config` began with.
    pub settings: BTreeMap<String, String>,
    pub pool: sqlx::PgPool,
    vault: Vault,
    ids: TopupIds,
    shutdown: Shutdown,
    /// `None` if the test runs its own notifier.
    running: Option<JoinHandle<anyhow::Result<()>>>,
    _streams: OwnStreams,
    database: Database,
}

/// A stored delivery.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Stored {
    pub state: String,
    pub attempt: i32,
    pub status: Option<i32>,
    pub error: Option<String>,
    /// The seconds until it is due.
    pub due_in: Option<f64>,
}

/// Settings for the test's own database and streams.
pub fn settings(database: &Database) -> BTreeMap<String, String> {
    let more = [
        ("PUBLIC_URL", PUBLIC_URL),
        ("WEBHOOK_ALLOW", "127.0.0.0/8"),
        ("WEBHOOK_TIMEOUT", "2s"),
        ("RETRY_SCHEDULE", "5s,5m,30m,2h"),
        ("DELIVERY_CONCURRENCY", "32"),
        ("ENDPOINT_FAILURES", "0"),
        ("DATABASE_CONNECTIONS", "4"),
    ];
    testkit::settings::of("notifier", database, &more).unwrap()
}

pub fn config(settings: &BTreeMap<String, String>) -> Config {
    testkit::settings::telemetry("notifier");
    let mut config: Config = testkit::settings::parse(settings);
    config.endpoint_concurrency = 8;
    config.host_concurrency = 32;
    config
}

impl Bench {
    /// Starts a notifier and waits until it is ready.
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// The same, with settings changed.
    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let mut bench = Self::prepare(change).await;
        bench.go().await;
        bench
    }

    /// The same, with a partner whose webhooks go to a path of the receiver.
    pub async fn start_for(path: &str) -> (Self, PartnerId) {
        let bench = Self::start().await;
        let partner = bench.partner_at(path).await;
        (bench, partner)
    }

    /// Starts the notifier of a bench that is prepared.
    pub async fn go(&mut self) {
        self.running = Some(tokio::spawn(notifier::run(
            self.config.clone(),
            self.shutdown.clone(),
        )));
        self.says_ready(true).await;
    }

    /// Starts everything but the notifier.
    pub async fn prepared() -> Self {
        Self::prepare(|_| {}).await
    }

    async fn prepare(change: impl FnOnce(&mut Config)) -> Self {
        let database = Database::create().await.unwrap();
        let settings = settings(&database);
        let mut config = config(&settings);
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
            receiver: Receiver::start().await.unwrap(),
            nats,
            pool,
            vault: config.master_key.vault(&Keyring::ALL).unwrap(),
            ids: TopupIds::new([0; 32]),
            shutdown: Shutdown::new(),
            running: None,
            config,
            settings,
            _streams: streams,
            database,
        }
    }

    /// Stops it as a signal would, and expects a clean end.
    pub async fn stop(&mut self) {
        self.shutdown.stop();
        tokio::time::timeout(PATIENCE, self.running.take().unwrap())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }

    /// Ends it without waiting for work in flight.
    pub fn abandon(self) {
        self.shutdown.stop();
    }

    pub async fn pause(&self, partner: PartnerId) {
        let mut connection = self.pool.acquire().await.unwrap();
        endpoints::pause(&mut connection, partner.first_endpoint())
            .await
            .unwrap();
    }

    pub async fn resume(&self, partner: PartnerId) {
        let mut connection = self.pool.acquire().await.unwrap();
        endpoints::resume(&mut connection, EndpointKey::first(partner))
            .await
            .unwrap();
    }

    /// Reads the metrics of the admin endpoint.
    pub async fn metrics(&self) -> String {
        let url = format!("http://{}/metrics", self.config.admin_listen);
        testkit::http::client()
            .unwrap()
            .get(url)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
    }

    /// Stores `count` units of this partner in one statement: due in `due_in`, or else within their
    /// first lease, which is longer than in production, for slow machines.
    pub async fn copies(
        &self,
        partner: PartnerId,
        count: usize,
        due_in: Option<Duration>,
    ) -> Vec<TopupId> {
        let ids: Vec<TopupId> = (0..count).map(|_| self.ids.next(clock::now())).collect();
        let seal = |id| profile().seal(&self.vault, partner, id).unwrap().sealed;
        let profiles: Vec<Vec<u8>> = ids.iter().map(seal).collect();
        sqlx::query(
            "WITH new AS (
                 SELECT gen_random_uuid() AS order_id, gen_random_uuid() AS placement_id,
                        gen_random_uuid() AS delivery_id, topup_id, profile
                 FROM unnest($2::text[], $3::bytea[]) AS new(topup_id, profile)
             ), ordered AS (
                 INSERT INTO orders (order_id, partner_id, external_order_id, answer_by)
                 SELECT order_id, $1, topup_id, now() FROM new
             ), placed AS (
                 INSERT INTO placements (placement_id, order_id, partner_id, provider, lane, state)
                 SELECT placement_id, order_id, $1, 'sandbox', 'option', 'placed' FROM new
             ), units AS (
                 INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
                 SELECT topup_id, placement_id, 0, $4, 'option' FROM new
             ), stored AS (
                 INSERT INTO esims (topup_id, provider, provider_unit_id, iccid, profile, ready_at, delivery_id)
                 SELECT topup_id, 'sandbox', topup_id, substring(topup_id FROM 9), profile, now(), delivery_id FROM new
             ), delivered AS (
                 INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, created_at)
                 SELECT delivery_id, $1, 'topup.ready', topup_id, order_id,
                        CASE WHEN $5::float8 IS NULL THEN now() + interval '90 seconds' ELSE now() END
                 FROM new
             )
             INSERT INTO work (id, kind, provider, lane, partner_id, at)
             SELECT delivery_id, 'deliver', '', '', $1, now() + make_interval(secs => $5) FROM new
             WHERE $5 IS NOT NULL",
        )
        .bind(partner.uuid())
        .bind(ids.iter().map(ToString::to_string).collect::<Vec<_>>())
        .bind(profiles)
        .bind(option_id().uuid())
        .bind(due_in.map(|due_in| due_in.as_secs_f64()))
        .execute(&self.pool)
        .await
        .unwrap();
        ids
    }

    /// A partner whose webhooks go to `url`.
    pub async fn partner(&self, url: Option<&str>) -> (PartnerId, Secret) {
        let partner_id = PartnerId::new();
        let secret = Secret::from_bytes(partner_id.uuid().as_bytes().repeat(2)).unwrap();
        let new = NewPartner {
            partner_id,
            name: "partner",
            environment: Environment::Sandbox,
            access_key: &partner_id.to_string(),
            secret_key: &SecretKey::from_bytes(vec![1; 32]).unwrap(),
            webhook_url: url,
            webhook_secret: &secret,
            limits: accounts::partners::PartnerLimits::default(),
        };
        partners::create(&mut self.pool.acquire().await.unwrap(), &self.vault, &new)
            .await
            .unwrap();
        (partner_id, secret)
    }

    /// A partner whose webhooks go to a path of the receiver, which checks their signatures.
    pub async fn partner_at(&self, path: &str) -> PartnerId {
        let (partner_id, secret) = self.partner(Some(&self.receiver.url(path))).await;
        self.receiver.verify(path, &secret.to_text()).unwrap();
        partner_id
    }

    /// Stores an order of one unit with its profile, without an event.
    pub async fn ready(&self, partner_id: PartnerId) -> TopupId {
        let mut connection = self.pool.acquire().await.unwrap();
        let placement_id = PlacementId::new();
        let topup_id = self.ids.next(clock::now());
        let topup = NewTopup::new(topup_id.clone(), 0, option_id(), "option");
        let placement = NewPlacement {
            placement_id,
            provider: "sandbox".into(),
            lane: "option".into(),
            alternatives: Vec::new(),
            topups: vec![topup],
        };
        let external_order_id = format!("order of {topup_id}");
        let order = NewOrder {
            traceparent: Some(TRACEPARENT.into()),
            ..NewOrder::new(partner_id, external_order_id, vec![placement])
        };
        assert_eq!(
            orders::insert(&mut connection, &[order]).await.unwrap(),
            [true]
        );
        let claimed = placements::claim(
            &mut connection,
            "sandbox",
            &[placement_id],
            PlacementClaim::Fresh,
            PATIENCE,
        )
        .await
        .unwrap();
        let delivery_id = DeliveryId::new();
        let unit = SettledUnit {
            topup_id: topup_id.clone(),
            provider_unit_id: topup_id.to_string(),
            progress: Progress::Ready(ReadyProfile {
                iccid: Iccid::parse(iccid(&topup_id)).unwrap(),
                profile: SealedProfile {
                    code_digest: Some(topup_id.as_str().into()),
                    ..profile().seal(&self.vault, partner_id, &topup_id).unwrap()
                },
                delivery_id,
            }),
        };
        let outcome = AttemptOutcome::Bought {
            reference: None,
            units: vec![unit],
            listed: 1,
            collect_in: None,
            park: None,
            announced: true,
        };
        let settlement = PlacementSettlement {
            placement_id,
            attempt: claimed[0].attempt,
            outcome,
            is_priced: false,
            known: None,
        };
        let settled = placements::settle(&mut connection, &[settlement])
            .await
            .unwrap();
        assert_eq!(settled[0].ready, [delivery_id]);
        topup_id
    }

    /// The delivery of a ready unit.
    pub async fn delivery_of(&self, topup_id: &TopupId) -> DeliveryId {
        let find = "SELECT delivery_id FROM esims WHERE topup_id = $1";
        let id: Uuid = sqlx::query_scalar(find)
            .bind(topup_id.as_str())
            .fetch_one(&self.pool)
            .await
            .unwrap();
        id.into()
    }

    /// Publishes the readiness event, as the provisioner does.
    pub async fn announce(&self, partner_id: PartnerId, topup_id: &TopupId) {
        let delivery_id = self.delivery_of(topup_id).await;
        let event = ReadyMessage::V1 {
            deliveries: vec![ReadyDelivery {
                delivery_id,
                partner_id,
            }],
        };
        self.nats
            .publish(self.nats.ready_batch_subject(), event, None)
            .await;
    }

    /// Stores a ready unit and announces it.
    pub async fn ready_and_announced(&self, partner_id: PartnerId) -> TopupId {
        let topup_id = self.ready(partner_id).await;
        self.announce(partner_id, &topup_id).await;
        topup_id
    }

    /// Reads a delivery.
    pub async fn look(&self, topup_id: &TopupId) -> sqlx::Result<Stored> {
        sqlx::query_as(
            "SELECT state, attempt, status, error, extract(epoch FROM at - now())::float8 AS due_in
             FROM deliveries LEFT JOIN work ON id = delivery_id WHERE topup_id = $1",
        )
        .bind(topup_id.as_str())
        .fetch_one(&self.pool)
        .await
    }

    /// Reads a delivery when `condition` holds.
    pub async fn stored(&self, topup_id: &TopupId, condition: impl Fn(&Stored) -> bool) -> Stored {
        let mut last = None;
        let found = wait::until(PATIENCE, "a delivery to be recorded", async || {
            let stored = self.look(topup_id).await?;
            last = Some(stored.clone());
            Ok(condition(&stored).then_some(stored))
        })
        .await;
        found.unwrap_or_else(|error| panic!("{error}: {last:?}"))
    }

    pub async fn delivered(&self, topup_id: &TopupId) -> Stored {
        self.stored(topup_id, |stored| stored.state == "delivered")
            .await
    }

    /// A new unit of this partner is delivered.
    pub async fn delivers(&self, partner: PartnerId) {
        let topup = self.ready_and_announced(partner).await;
        self.delivered(&topup).await;
    }

    pub async fn attempted(&self, topup_id: &TopupId) -> Stored {
        self.stored(topup_id, |stored| stored.attempt > 0).await
    }

    /// Cuts all connections to the database and refuses new ones while `meanwhile` runs.
    pub async fn without_database(&self, meanwhile: impl Future<Output = ()>) {
        let (_, name) = self.database.url().rsplit_once('/').unwrap();
        let server = std::env::var("TEST_DATABASE_URL").unwrap();
        let mut admin = sqlx::PgConnection::connect(&server).await.unwrap();
        let allow = |allow: bool| {
            sqlx::AssertSqlSafe(format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {allow}"))
        };
        sqlx::raw_sql(allow(false))
            .execute(&mut admin)
            .await
            .unwrap();
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
        sqlx::query(cut)
            .bind(name)
            .execute(&mut admin)
            .await
            .unwrap();
        meanwhile.await;
        sqlx::raw_sql(allow(true))
            .execute(&mut admin)
            .await
            .unwrap();
    }

    /// Waits until the notifier's readiness is `ready`.
    pub async fn says_ready(&self, ready: bool) {
        let url = format!("http://{}/readyz", self.config.admin_listen);
        let http = testkit::http::client().unwrap();
        wait::soon(&format!("readiness to be {ready}"), async || {
            let answer = http.get(&url).send().await;
            Ok(answer
                .ok()
                .filter(|answer| answer.status().is_success() == ready)
                .map(drop))
        })
        .await;
    }

    /// Makes all deliveries of this partner due.
    pub async fn make_due_of(&self, partner: PartnerId) {
        self.make_due_if(&format!("partner_id = '{partner}'")).await;
    }

    /// Makes all pending deliveries due.
    pub async fn make_due(&self) {
        self.make_due_if("true").await;
    }

    async fn make_due_if(&self, condition: &str) {
        self.sql(&format!(
            "INSERT INTO work (id, kind, provider, lane, partner_id, at)
             SELECT delivery_id, 'deliver', '', '', partner_id, now() FROM deliveries
             WHERE state = 'pending' AND {condition}
             ON CONFLICT (id) DO UPDATE SET at = excluded.at"
        ))
        .await;
    }

    /// Runs statements.
    pub async fn sql(&self, statements: &str) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statements))
            .execute(&self.pool)
            .await
            .unwrap();
    }
}

fn profile() -> Profile {
    Profile {
        code: ActivationCode::new("smdp.example.com", "A1-B2").unwrap(),
        expired_date: "2026-12-31".into(),
    }
}

pub fn option_id() -> OptionId {
    "0197b0a0-0000-7000-8000-000000000001".parse().unwrap()
}

/// The ICCID that a unit here gets: as unique as the unit.
pub fn iccid(topup_id: &TopupId) -> &str {
    &topup_id.as_str()[8..]
}

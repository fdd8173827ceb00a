//! The bench: a migrated database of its own for one test, with helpers that create the data of the
//! tests and run statements as the services do.

use std::{sync::LazyLock, time::Duration};

use accounts::partners::{self, NewPartner};
use accounts::profile::SealedProfile;
use desk::operator::endpoints::set_url;
use domain::event::EventKind;
use domain::reason::{Reason, ReasonCode};
use domain::{
    DeliveryId, EndpointKey, Environment, Iccid, OptionId, OrderId, PartnerId, PlacementId,
    TopupId, TopupIds,
};
use pg::actions::{Action, Actor, Mode};
use pg::config::{DatabaseConfig, PoolConfig};
use pg::primary::DurabilityConfig;
use pg::schema;
use pg::{Transaction, TransactionEnd, transaction};
use secrecy::SecretString;
use signing::{SecretKey, webhook};
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, pool::PoolConnection};
use store::Unflushed;
use store::deliveries::{self, ClaimedDelivery, DeliveryContent, EsimContent};
use store::orders::{self, NewOrder, NewPlacement, NewTopup};
use store::placements::{
    self, Activity, AttemptOutcome, ClaimedPlacement, ClaimedTopup, PlacementClaim,
    PlacementSettlement, Progress, ReadyProfile, SettledUnit, SettlementEffect,
};
use store::work::{self, WorkLook};
use testkit::database::Database;
use uuid::Uuid;
use vault::Vault;

/// The provider of every placement, unless a test is about several.
pub const PROVIDER: &str = "sandbox";
/// Long enough that no lease ends during a test.
pub const LEASE: Duration = Duration::from_mins(10);

/// The vault of all tests.
pub static VAULT: LazyLock<Vault> = LazyLock::new(|| vault(OLD_KEY));
/// The key of [`VAULT`].
pub const OLD_KEY: &str = "test:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
pub const NEW_KEY: &str = "second:AQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

pub fn vault(keys: &str) -> Vault {
    Vault::parse(&SecretString::from(keys)).unwrap()
}

/// The record of an operator's command.
pub const ACTION: Action<'static> = Action {
    actor: Actor::esimctl("tester"),
    command: domain::Command::PlacementRetry,
    target: "placement",
    reason: "a test",
};

/// An operator's command that commits.
pub fn applied() -> Mode<'static> {
    Mode::Apply(ACTION)
}

/// The settings of services, except for the number of connections.
pub fn config(url: &str) -> PoolConfig {
    PoolConfig {
        server: DatabaseConfig {
            database_url: SecretString::from(url),
        },
        database_connections: 10,
        database_timeout: Duration::from_secs(8),
        durability: DurabilityConfig::default(),
    }
}

/// A migrated database.
pub struct Bench {
    /// For raw statements; services go through [`Bench::store`].
    pub pool: PgPool,
    /// The database as services use it.
    pub store: pg::Database,
    pub database: Database,
}

/// Does one thing in a transaction of its own.
pub async fn committed<T>(
    connection: &mut PgConnection,
    work: impl AsyncFnOnce(&mut Transaction<'_>) -> pg::Result<T>,
) -> pg::Result<T> {
    let work = async |transaction: &mut Transaction<'_>| {
        work(transaction).await.map(TransactionEnd::Commit)
    };
    transaction::once(
        connection,
        transaction::TransactionKind::Writing,
        "a test",
        work,
    )
    .await
}

impl Bench {
    pub async fn new() -> Self {
        let bench = Self::of(Database::create().await.unwrap());
        schema::migrate(&mut *bench.connection().await)
            .await
            .unwrap();
        // The sweep of a copied database begins when its template was migrated.
        bench
            .sql("UPDATE walks SET up_to = now() WHERE name IN ('placements', 'deliveries')")
            .await;
        bench
    }

    /// A database without migrations.
    pub async fn empty() -> Self {
        Self::of(Database::empty().await.unwrap())
    }

    pub fn of(database: Database) -> Self {
        let config = config(database.url());
        Self {
            pool: PgPool::connect_lazy_with(config.session("store tests").unwrap()),
            store: config.open("store tests").unwrap(),
            database,
        }
    }

    /// What the newest recorded action has changed: before and after.
    pub async fn changed(&self) -> (serde_json::Value, serde_json::Value) {
        let (before, after): (Option<_>, Option<_>) = sqlx::query_as(
            "SELECT before, after FROM operator_actions ORDER BY action_id DESC LIMIT 1",
        )
        .fetch_one(&mut *self.connection().await)
        .await
        .unwrap();
        (before.unwrap_or_default(), after.unwrap_or_default())
    }

    pub async fn connection(&self) -> PoolConnection<Postgres> {
        self.pool.acquire().await.unwrap()
    }

    /// Stores orders; all must be new.
    pub async fn store(&self, orders: &[NewOrder]) {
        let stored = orders::insert(&mut *self.connection().await, orders).await;
        assert_eq!(stored.unwrap(), vec![true; orders.len()]);
    }

    pub async fn stored(&self, order: NewOrder) -> NewOrder {
        self.store(std::slice::from_ref(&order)).await;
        order
    }

    /// Stores an order of `units` units from one provider, with a recorded first attempt.
    pub async fn placing(&self, units: usize) -> NewOrder {
        let order = self.stored(order(PartnerId::new(), units)).await;
        assert_eq!(self.claim(&[placement(&order)]).await[0].attempt, 1);
        order
    }

    /// Claims placements that messages name.
    pub async fn claim(&self, placements: &[PlacementId]) -> Vec<ClaimedPlacement> {
        self.claim_as(PROVIDER, placements, PlacementClaim::Fresh)
            .await
    }

    pub async fn claim_as(
        &self,
        provider: &str,
        named: &[PlacementId],
        which: PlacementClaim,
    ) -> Vec<ClaimedPlacement> {
        placements::claim(&mut *self.connection().await, provider, named, which, LEASE)
            .await
            .unwrap()
    }

    /// The placements of a provider that are due, purchases first; nothing is leased.
    pub async fn find_due(&self, provider: &str, limit: usize) -> Vec<PlacementId> {
        let look = WorkLook {
            limit,
            rows_per_queue: limit,
            ..WorkLook::default()
        };
        let mut due = Vec::new();
        for activity in [Activity::Purchases, Activity::LookUps] {
            let found =
                placements::due(&mut *self.connection().await, provider, activity, &look).await;
            due.extend(found.unwrap().due.into_iter().map(|one| one.id));
        }
        due
    }

    /// Claims what is due, as the two workers of a provisioner do.
    pub async fn claim_due(&self, provider: &str, limit: usize) -> Vec<ClaimedPlacement> {
        let due = self.find_due(provider, limit).await;
        let of = async |activity| {
            self.claim_as(provider, &due, PlacementClaim::Due(activity))
                .await
        };
        [of(Activity::Purchases).await, of(Activity::LookUps).await].concat()
    }

    /// Makes placements due that many seconds from now, negative in the past.
    pub async fn due_in(&self, placements: &[PlacementId], seconds: f64) {
        let statement = "
            INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
            SELECT placement_id, kind_of_work(state, attempt), provider, lane, partner_id,
                   now() + make_interval(secs => $2)
            FROM placements WHERE placement_id::text = ANY ($1)
            ON CONFLICT (id) DO UPDATE SET at = excluded.at";
        self.move_due(statement, placements, seconds).await;
    }

    /// Makes deliveries due that many seconds from now, negative in the past.
    pub async fn deliver_in(&self, topups: &[TopupId], seconds: f64) {
        let statement = "
            INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
            SELECT delivery_id, 'deliver', '', '', partner_id, now() + make_interval(secs => $2)
            FROM deliveries WHERE topup_id = ANY ($1)
            ON CONFLICT (id) DO UPDATE SET at = excluded.at";
        self.move_due(statement, topups, seconds).await;
    }

    async fn move_due(&self, statement: &'static str, ids: &[impl ToString], seconds: f64) {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        sqlx::query(statement)
            .bind(ids)
            .bind(seconds)
            .execute(&self.pool)
            .await
            .unwrap();
    }

    /// Claims what is due, as a notifier does.
    pub async fn claim_due_deliveries(&self, look: &WorkLook) -> Vec<ClaimedDelivery> {
        let mut connection = self.connection().await;
        let found = work::due_deliveries(&mut connection, look).await.unwrap();
        let due: Vec<DeliveryId> = found.due.into_iter().map(|one| one.id).collect();
        deliveries::claim(
            &mut connection,
            &due,
            deliveries::DeliveryClaim::Due { lease: LEASE },
        )
        .await
        .unwrap()
        .deliveries
    }

    pub async fn settle(&self, settlements: &[PlacementSettlement]) -> Vec<SettlementEffect> {
        placements::settle(&mut *self.connection().await, settlements)
            .await
            .unwrap()
    }

    /// Stores deliveries of one order of this partner; they are due in 30 s if `announced`, or now.
    pub async fn deliveries(
        &self,
        partner_id: PartnerId,
        count: usize,
        announced: bool,
    ) -> Vec<TopupId> {
        let order = self.stored(answered(partner_id, count)).await;
        let id = placement(&order);
        self.claim(&[id]).await;
        self.settle(&[bought(
            id,
            1,
            topups(&order).iter().map(ready).collect(),
            announced,
        )])
        .await;
        topups(&order)
    }

    pub async fn partner(&self, webhook_url: Option<&str>) -> PartnerId {
        let partner_id = PartnerId::new();
        let new = NewPartner {
            partner_id,
            name: "partner",
            environment: Environment::Sandbox,
            access_key: &partner_id.to_string(),
            secret_key: &SecretKey::from_bytes(vec![7; 32]).unwrap(),
            webhook_url,
            webhook_secret: &webhook::Secret::from_bytes(vec![7; 32]).unwrap(),
            limits: accounts::partners::PartnerLimits::default(),
        };
        partners::create(&mut *self.connection().await, &VAULT, &new)
            .await
            .unwrap();
        partner_id
    }

    /// Sets or removes a partner's URL, as an operator, and makes due what waited for it, as the
    /// notifiers do. Returns the number of deliveries that became due.
    pub async fn set_url(&self, partner: PartnerId, url: Option<&str>) -> Option<u64> {
        let mut connection = self.connection().await;
        let set =
            async |transaction: &mut Transaction<'_>| set_url(transaction, partner, url).await;
        committed(&mut connection, set).await.unwrap()?;
        Some(self.move_waiting(EndpointKey::first(partner)).await)
    }

    pub async fn set_events(&self, partner: PartnerId, kinds: &[EventKind]) {
        assert!(
            committed(
                &mut *self.connection().await,
                async |transaction: &mut Transaction<'_>| partners::set_events(
                    transaction,
                    partner,
                    kinds
                )
                .await
            )
            .await
            .unwrap()
        );
    }

    pub async fn sql(&self, statement: &str) {
        execute(&mut *self.connection().await, statement).await;
    }

    /// Runs a statement on one row: `$1` is its id.
    pub async fn set(&self, statement: &'static str, id: impl ToString) {
        let done = sqlx::query(statement)
            .bind(id.to_string())
            .execute(&self.pool)
            .await
            .unwrap();
        assert!(done.rows_affected() > 0, "{statement}");
    }

    /// All stored data of an order, as text: equal only if nothing has changed.
    pub async fn everything(&self, order: OrderId) -> Vec<Option<String>> {
        sqlx::query_scalar(
            "SELECT to_jsonb(o)::text FROM orders o WHERE order_id = $1
             UNION ALL SELECT to_jsonb(p)::text FROM placements p WHERE order_id = $1
             UNION ALL SELECT to_jsonb(w)::text FROM work w JOIN placements p ON p.placement_id = w.id WHERE order_id = $1
             UNION ALL SELECT to_jsonb(h)::text FROM held h JOIN placements p ON p.placement_id = h.id WHERE order_id = $1
             UNION ALL SELECT to_jsonb(t)::text FROM topups t JOIN placements p USING (placement_id) WHERE p.order_id = $1
             UNION ALL SELECT unnest(ARRAY[to_jsonb(e)::text, to_jsonb(d)::text, to_jsonb(due)::text, to_jsonb(held)::text])
                 FROM topups t JOIN placements p USING (placement_id)
                 LEFT JOIN esims e USING (topup_id) LEFT JOIN deliveries d USING (topup_id)
                 LEFT JOIN work due ON due.id = d.delivery_id LEFT JOIN held ON held.id = d.delivery_id
                 WHERE p.order_id = $1
             ORDER BY 1 NULLS FIRST",
        )
        .bind(order.uuid())
        .fetch_all(&self.pool)
        .await
        .unwrap()
    }

    /// A value from a statement on the row with this id, which is `$1`.
    pub async fn value<T>(&self, statement: &'static str, id: impl ToString) -> T
    where
        T: Send + Unpin + for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
    {
        sqlx::query_scalar(statement)
            .bind(id.to_string())
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }

    pub async fn state(&self, placement: PlacementId) -> String {
        self.value(
            "SELECT state FROM placements WHERE placement_id::text = $1",
            placement,
        )
        .await
    }

    /// The state of a topup and of its delivery, or `none`.
    pub async fn states(&self, topup: &TopupId) -> (String, String) {
        let statement = "SELECT CASE WHEN e.ready_at IS NULL THEN t.state ELSE 'ready' END || '/' || coalesce(d.state, 'none')
            FROM topups t LEFT JOIN esims e USING (topup_id) LEFT JOIN deliveries d USING (topup_id) WHERE topup_id = $1";
        let states: String = self.value(statement, topup).await;
        let (topup, delivery) = states.split_once('/').unwrap();
        (topup.to_owned(), delivery.to_owned())
    }
}

/// What was read of orders, told after its flush.
pub trait Told<T> {
    async fn told(self, connection: &mut PgConnection) -> T;
}

impl<T> Told<T> for Result<Unflushed<T>, pg::Error> {
    async fn told(self, connection: &mut PgConnection) -> T {
        self.unwrap().after_flush(connection).await.unwrap()
    }
}

/// Runs statements on a connection.
pub async fn execute(connection: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements))
        .execute(connection)
        .await
        .unwrap();
}

pub fn topup_id() -> TopupId {
    static IDS: LazyLock<TopupIds> = LazyLock::new(|| TopupIds::new(rand::random()));
    IDS.next(runtime::clock::now())
}

/// A new order of `units` units from one provider, under a random external id.
pub fn order(partner_id: PartnerId, units: usize) -> NewOrder {
    let order_id = OrderId::new();
    let positions: Vec<usize> = (0..units).collect();
    let placements = vec![part(PROVIDER, &positions)];
    NewOrder {
        order_id,
        answer_within: Duration::from_secs(5),
        answering: Some(Uuid::now_v7()),
        ..NewOrder::new(partner_id, order_id.to_string(), placements)
    }
}

/// An order whose answer has left.
pub fn answered(partner_id: PartnerId, units: usize) -> NewOrder {
    NewOrder {
        answer_within: Duration::ZERO,
        ..order(partner_id, units)
    }
}

/// An order of these placements.
pub fn order_of(placements: Vec<NewPlacement>) -> NewOrder {
    NewOrder {
        placements,
        ..order(PartnerId::new(), 0)
    }
}

/// The part of an order with these positions in the response.
pub fn part(provider: &str, positions: &[usize]) -> NewPlacement {
    let topup = |position: &usize| {
        NewTopup::new(
            topup_id(),
            *position,
            OptionId::new(),
            format!("option-{position}"),
        )
    };
    NewPlacement {
        placement_id: PlacementId::new(),
        provider: provider.to_owned(),
        lane: "lane".into(),
        alternatives: Vec::new(),
        topups: positions.iter().map(topup).collect(),
    }
}

pub fn placement(order: &NewOrder) -> PlacementId {
    order.placements[0].placement_id
}

pub fn topups(order: &NewOrder) -> Vec<TopupId> {
    order
        .placements
        .iter()
        .flat_map(|part| &part.topups)
        .map(|unit| unit.topup_id.clone())
        .collect()
}

pub fn settlement(
    placement_id: PlacementId,
    attempt: u32,
    outcome: AttemptOutcome,
) -> PlacementSettlement {
    PlacementSettlement {
        placement_id,
        attempt,
        outcome,
        is_priced: false,
        known: None,
    }
}

/// The settlement of a placement that was claimed fresh, so that the lean statement records it if
/// it can.
pub fn fresh(order: &NewOrder, mut settlement: PlacementSettlement) -> PlacementSettlement {
    let units = order.placements.iter().flat_map(|part| &part.topups);
    let claimed = units.map(|unit| {
        let agreed = unit.agreed.stored();
        ClaimedTopup::new(
            unit.topup_id.clone(),
            agreed,
            unit.provider_option_id.clone(),
        )
    });
    let claimed = ClaimedPlacement {
        traceparent: order.traceparent.clone(),
        ..ClaimedPlacement::new(
            settlement.placement_id,
            order.order_id,
            order.partner_id,
            order.external_order_id.clone(),
            runtime::clock::now(),
            claimed.collect(),
        )
    };
    settlement.known = Some(claimed.known_columns(PROVIDER, false));
    settlement
}

/// A purchase whose units are all known; nothing is left to collect.
pub fn bought(
    placement_id: PlacementId,
    attempt: u32,
    units: Vec<SettledUnit>,
    announced: bool,
) -> PlacementSettlement {
    settlement(
        placement_id,
        attempt,
        AttemptOutcome::Bought {
            reference: None,
            listed: units.len(),
            units,
            collect_in: None,
            park: None,
            announced,
        },
    )
}

/// A purchase without profiles so far.
pub fn bought_pending(placement_id: PlacementId, attempt: u32) -> PlacementSettlement {
    let outcome = AttemptOutcome::Bought {
        reference: None,
        units: Vec::new(),
        listed: 0,
        collect_in: Some(Duration::from_mins(1)),
        park: None,
        announced: false,
    };
    settlement(placement_id, attempt, outcome)
}

pub fn not_bought(placement_id: PlacementId, attempt: u32) -> PlacementSettlement {
    let outcome = AttemptOutcome::NotBought {
        retry_in: Duration::from_mins(1),
        reason: Reason::with(ReasonCode::NotSent, "no connection"),
    };
    settlement(placement_id, attempt, outcome)
}

pub fn rejected(placement_id: PlacementId, attempt: u32) -> PlacementSettlement {
    let outcome = AttemptOutcome::Rejected {
        status: "9001".into(),
        message: "it refused".into(),
    };
    settlement(placement_id, attempt, outcome)
}

pub fn unknown(placement_id: PlacementId, attempt: u32) -> PlacementSettlement {
    let outcome = AttemptOutcome::Unknown {
        look_in: Duration::from_mins(1),
        reason: Reason::with(ReasonCode::OutcomeUnknown, "no answer"),
    };
    settlement(placement_id, attempt, outcome)
}

pub fn not_found(
    placement_id: PlacementId,
    attempt: u32,
    after_settling_delay: bool,
) -> PlacementSettlement {
    settlement(
        placement_id,
        attempt,
        AttemptOutcome::NotFound {
            after_settling_delay,
            look_in: Duration::from_mins(1),
        },
    )
}

pub fn parked(placement_id: PlacementId, attempt: u32) -> PlacementSettlement {
    settlement(
        placement_id,
        attempt,
        AttemptOutcome::Parked {
            reason: Reason::with(ReasonCode::OutcomeUnknown, "no answer"),
        },
    )
}

pub fn disputed(placement_id: PlacementId, attempt: u32) -> PlacementSettlement {
    settlement(
        placement_id,
        attempt,
        AttemptOutcome::Unstorable {
            reason: Reason::with(ReasonCode::SoldTwice, "the activation code"),
        },
    )
}

/// A unit of a topup that is named after it.
pub fn unit(topup_id: &TopupId, progress: Progress) -> SettledUnit {
    SettledUnit {
        topup_id: topup_id.clone(),
        provider_unit_id: format!("unit-{topup_id}"),
        progress,
    }
}

pub fn ready(topup_id: &TopupId) -> SettledUnit {
    let progress = Progress::Ready(ReadyProfile {
        iccid: iccid(topup_id),
        profile: sealed(topup_id),
        delivery_id: delivery_id(topup_id),
    });
    unit(topup_id, progress)
}

/// A profile that nobody opens, with a digest of its own for each topup.
pub fn sealed(topup_id: &TopupId) -> SealedProfile {
    SealedProfile {
        sealed: b"sealed".to_vec(),
        code_digest: Some(topup_id.as_str().into()),
    }
}

/// The delivery of a topup: the tests derive its id, so that they can name it.
pub fn delivery_id(topup_id: &TopupId) -> DeliveryId {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, topup_id.as_str().as_bytes()).into()
}

/// The deliveries of topups.
pub fn ids(topups: &[TopupId]) -> Vec<DeliveryId> {
    topups.iter().map(delivery_id).collect()
}

/// The content of a topup's delivery.
pub fn esim(delivery: &ClaimedDelivery) -> &EsimContent {
    match &delivery.content {
        DeliveryContent::Esim(esim) => esim,
        DeliveryContent::Event(event) => panic!("an event: {event:?}"),
    }
}

/// A distinct ICCID for each topup.
pub fn iccid(topup_id: &TopupId) -> Iccid {
    Iccid::parse(&format!("89{}", &topup_id.as_str()[10..])).unwrap()
}

/// A look for at most `limit` deliveries.
pub fn look(limit: usize, per_partner: usize) -> WorkLook {
    WorkLook {
        limit,
        rows_per_queue: per_partner,
        ..WorkLook::default()
    }
}

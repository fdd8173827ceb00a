//! Partners and catalogue in memory. Refreshed twice a second by what changed, so that a revoked
//! partner stops within a second; what isn't there is looked up before it is denied, so that a new
//! partner works at once. Neither needs NATS, and what is known outlives the database.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use domain::{Environment, OptionId, PartnerId};
use governor::{DefaultDirectRateLimiter, Quota};
use runtime::{Shutdown, health::Readiness};
use signing::SecretKey;
use store::{
    Database, Error, PgConnection,
    options::ProductOption,
    partners::{self, Credentials},
    schema::SchemaError,
    vault::Vault,
};

const REFRESH: Duration = Duration::from_millis(500);
/// How long a look-up waits for those before it.
const TURN: Duration = Duration::from_secs(2);
/// How many unknown keys or options are looked up per second before they are denied unseen.
const LOOK_UPS: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// A partner, as far as its requests are concerned.
#[derive(Clone, Debug)]
pub struct Partner {
    /// Its id.
    pub partner_id: PartnerId,
    /// Where it belongs.
    pub environment: Environment,
    /// Whether its requests are denied.
    pub disabled: bool,
    /// What its requests are signed with.
    pub key: Key,
}

/// What a partner's requests are signed with.
#[derive(Clone, Debug)]
pub enum Key {
    /// The partner has none.
    Missing,
    /// It is stored, but can't be decrypted.
    Unusable,
    /// It is known.
    Known(SecretKey),
}

/// Partners by access key, options by id.
pub struct Directory {
    database: Database,
    vault: Vault,
    partners: RwLock<HashMap<String, Arc<Partner>>>,
    options: RwLock<HashMap<OptionId, Arc<ProductOption>>>,
    look_ups: DefaultDirectRateLimiter,
    /// Held by the one who looks something up.
    looking: tokio::sync::Mutex<()>,
}

/// What was read from the database.
#[derive(Default)]
struct Seen {
    /// Its schema, and that it is the right one.
    schema: bool,
    /// The newest version of a partner.
    partners: i64,
    /// The newest version of an option.
    options: i64,
}

impl Directory {
    /// Knows nothing yet, and looks everything up until [`Directory::refresh`] runs.
    pub fn new(database: Database, vault: Vault) -> Self {
        Self {
            database,
            vault,
            partners: RwLock::default(),
            options: RwLock::default(),
            look_ups: DefaultDirectRateLimiter::direct(Quota::per_second(LOOK_UPS)),
            looking: tokio::sync::Mutex::default(),
        }
    }

    /// The partner with this access key.
    pub async fn partner(&self, access_key: &str) -> Result<Option<Arc<Partner>>, Error> {
        if let Some(known) = self.known_partner(access_key) {
            return Ok(Some(known));
        }
        // One at a time: however many requests a new partner begins with, it is looked up once.
        let _turn = self.turn().await?;
        let known = self.known_partner(access_key);
        if known.is_some() || self.look_ups.check().is_err() {
            return Ok(known);
        }
        let found = self
            .database
            .run(async |connection| partners::by_access_key(connection, access_key).await)
            .await?;
        Ok(found.map(|credentials| self.learn_partner(credentials)))
    }

    /// The right to look something up. While the database is away, those who wait for it are many.
    async fn turn(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, Error> {
        let turn = tokio::time::timeout(TURN, self.looking.lock()).await;
        turn.map_err(|_| Error::timed_out())
    }

    fn known_partner(&self, access_key: &str) -> Option<Arc<Partner>> {
        let partners = self.partners.read().unwrap_or_else(PoisonError::into_inner);
        partners.get(access_key).cloned()
    }

    fn known_options(&self, ids: &[OptionId]) -> HashMap<OptionId, Arc<ProductOption>> {
        let options = self.options.read().unwrap_or_else(PoisonError::into_inner);
        ids.iter()
            .filter_map(|id| Some((*id, Arc::clone(options.get(id)?))))
            .collect()
    }

    /// Those of `ids` that are options, by id.
    pub async fn options(&self, ids: &[OptionId]) -> Result<HashMap<OptionId, Arc<ProductOption>>, Error> {
        let known = self.known_options(ids);
        if ids.iter().all(|id| known.contains_key(id)) {
            return Ok(known);
        }
        let _turn = self.turn().await?;
        let mut known = self.known_options(ids);
        let missing: Vec<_> = ids
            .iter()
            .filter(|id| !known.contains_key(id))
            .map(|id| id.uuid())
            .collect();
        if !missing.is_empty() && self.look_ups.check().is_ok() {
            let found = self
                .database
                .run(async |connection| store::options::by_ids(connection, &missing).await);
            for (option, _) in found.await? {
                known.insert(option.option_id, self.learn_option(option));
            }
        }
        Ok(known)
    }

    fn learn_partner(&self, credentials: Credentials) -> Arc<Partner> {
        let key = match &credentials.secret_key {
            None => Key::Missing,
            Some(sealed) => {
                partners::open_secret_key(&self.vault, credentials.partner_id, sealed).map_or_else(
                    |error| {
                        tracing::error!(partner.id = %credentials.partner_id, %error, "a partner's secret key is unusable");
                        Key::Unusable
                    },
                    Key::Known,
                )
            }
        };
        let partner = Arc::new(Partner {
            partner_id: credentials.partner_id,
            environment: credentials.environment,
            disabled: credentials.disabled,
            key,
        });
        let mut partners = self.partners.write().unwrap_or_else(PoisonError::into_inner);
        partners.insert(credentials.access_key, Arc::clone(&partner));
        partner
    }

    fn learn_option(&self, option: ProductOption) -> Arc<ProductOption> {
        let option = Arc::new(option);
        let mut options = self.options.write().unwrap_or_else(PoisonError::into_inner);
        options.insert(option.option_id, Arc::clone(&option));
        option
    }

    /// Keeps up with the database until the soft stop. The first time it is reached, its schema is
    /// checked; a wrong one is an error.
    pub async fn refresh(self: Arc<Self>, readiness: Readiness, shutdown: Shutdown) -> anyhow::Result<()> {
        let stop = shutdown.soft();
        let mut seen = Seen::default();
        loop {
            let changes = async |connection: &mut PgConnection| self.changes(connection, &mut seen).await;
            match self.database.run(changes).await {
                Ok(()) => readiness.well("database"),
                Err(SchemaError::Store(error)) => {
                    // Ready all the same once it was there: partners get the specified 500.
                    tracing::warn!(%error, "partners and catalogue were not refreshed");
                }
                Err(wrong) => return Err(wrong.into()),
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(REFRESH) => {}
            }
        }
    }

    async fn changes(&self, connection: &mut PgConnection, seen: &mut Seen) -> Result<(), SchemaError> {
        if !seen.schema {
            store::schema::check_all(connection, &self.vault).await?;
            seen.schema = true;
        }
        for credentials in partners::changed_since(connection, seen.partners).await? {
            seen.partners = seen.partners.max(credentials.version);
            self.learn_partner(credentials);
        }
        for (option, version) in store::options::changed_since(connection, seen.options).await? {
            seen.options = seen.options.max(version);
            self.learn_option(option);
        }
        Ok(())
    }
}

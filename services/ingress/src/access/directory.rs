//! Caches partners and the catalogue in memory.
//!
//! Guarantees: changes are read twice a second, so a revoked partner is denied within a second. An unknown key or option
//! is looked up before it is denied, so a new partner works at once. A key that a rotation replaced is denied after its
//! end, by the clock of this process. The cache stays valid while the database is away.
//!
//! [`super::authentication`] asks for partners, [`crate::orders::accept`] for options. Relies on the versions that the
//! database gives to each change, and not on NATS.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{Arc, PoisonError, RwLock, RwLockWriteGuard},
    time::{Duration, Instant},
};

use domain::{Environment, OptionId, PartnerId};
use governor::{DefaultDirectRateLimiter, Quota};
use runtime::{Shutdown, health::Readiness};
use signing::SecretKey;
use store::{
    Database, Error, PgConnection,
    options::ProductOption,
    partners::{self, Credentials, Keys, Limits},
    schema::SchemaError,
    vault::Vault,
};
use uuid::Uuid;

const REFRESH: Duration = Duration::from_millis(500);
/// The longest wait of a query for the query before it.
const LOOK_UP_WAIT: Duration = Duration::from_secs(2);
/// The most queries per second; further unknown keys and options are denied without a query.
const LOOK_UPS: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// A partner, as seen by requests with one of its access keys.
#[derive(Clone, Debug)]
pub(crate) struct KnownPartner {
    pub(crate) id: PartnerId,
    pub(crate) environment: Environment,
    pub(crate) disabled: bool,
    pub(crate) key: Key,
    pub(crate) limits: Limits,
    /// Requests that do not sign their query and body are denied.
    pub(crate) signed_body_required: bool,
    /// When this access key ends, if a rotation has replaced it.
    until: Option<Instant>,
}

impl KnownPartner {
    fn ended(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }
}

/// The key that a partner's requests are signed with.
#[derive(Clone, Debug)]
pub(crate) enum Key {
    Missing,
    /// The stored key cannot be decrypted.
    Unusable,
    Known(SecretKey),
}

#[derive(Default)]
struct Partners {
    by_access_key: HashMap<String, Arc<KnownPartner>>,
    /// The version and the access keys of each known partner.
    known: HashMap<PartnerId, (i64, Vec<String>)>,
    /// The access keys that have an end.
    ending: Vec<String>,
}

impl Partners {
    /// Replaces a partner's keys, unless a newer version is known.
    fn learn(&mut self, partner_id: PartnerId, version: i64, keys: Vec<(String, KnownPartner)>) {
        let (known, access_keys) = self.known.entry(partner_id).or_default();
        if version < *known {
            return;
        }
        for gone in access_keys.drain(..) {
            self.by_access_key.remove(&gone);
        }
        *known = version;
        for (access_key, partner) in keys {
            access_keys.push(access_key.clone());
            if partner.until.is_some() {
                self.ending.push(access_key.clone());
            }
            self.by_access_key.insert(access_key, Arc::new(partner));
        }
    }

    /// Drops the keys that have ended, with their secrets.
    fn forget_ended(&mut self) {
        let by_access_key = &mut self.by_access_key;
        self.ending.retain(|access_key| {
            let Some(partner) = by_access_key.get(access_key) else { return false };
            let ended = partner.ended();
            if ended {
                by_access_key.remove(access_key);
            }
            !ended
        });
    }
}

pub(crate) type Options = HashMap<OptionId, Arc<ProductOption>>;

pub(crate) struct Directory {
    database: Database,
    vault: Vault,
    partners: RwLock<Partners>,
    options: RwLock<Options>,
    look_ups: DefaultDirectRateLimiter,
    /// Held during a query.
    looking: tokio::sync::Mutex<()>,
}

/// The progress of reading the database: the newest versions that were read.
#[derive(Default)]
struct Seen {
    schema: bool,
    partners: i64,
    options: i64,
}

impl Directory {
    /// Creates an empty cache. Until [`Directory::refresh`] fills it, every key and option is queried.
    pub(crate) fn new(database: Database, vault: Vault) -> Self {
        Self {
            database,
            vault,
            partners: RwLock::default(),
            options: RwLock::default(),
            look_ups: DefaultDirectRateLimiter::direct(Quota::per_second(LOOK_UPS)),
            looking: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) async fn partner(&self, access_key: &str) -> Result<Option<Arc<KnownPartner>>, Error> {
        if let Some(known) = self.known_partner(access_key) {
            return Ok(valid(known));
        }
        // One query at a time: a new partner's first requests cause only one. Its outcome serves all that wait, also
        // those whose turn did not come in time.
        let turn = self.turn().await;
        if let Some(known) = self.known_partner(access_key) {
            return Ok(valid(known));
        }
        let _turn = turn?;
        if self.look_ups.check().is_err() {
            return Ok(None);
        }
        let asked = Instant::now();
        let looking = self.database.run(async |connection| partners::by_access_key(connection, access_key).await);
        if let Some(credentials) = looking.await? {
            self.learn_partner(&credentials, asked);
        }
        Ok(self.known_partner(access_key).and_then(valid))
    }

    /// Adds a partner that no database has.
    #[cfg(fuzzing)]
    pub(crate) fn learn_for_fuzzing(&self, access_key: &str, secret: SecretKey, signed_body_required: bool) {
        let partner = KnownPartner {
            id: PartnerId::new(),
            environment: Environment::Sandbox,
            disabled: false,
            key: Key::Known(secret),
            limits: Limits::default(),
            signed_body_required,
            until: None,
        };
        self.partners_mut().learn(partner.id, 1, vec![(access_key.to_owned(), partner)]);
    }

    /// Waits for the turn to query. While the database is away, many requests wait here.
    async fn turn(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, Error> {
        tokio::time::timeout(LOOK_UP_WAIT, self.looking.lock()).await.map_err(|_| Error::timed_out())
    }

    fn known_partner(&self, access_key: &str) -> Option<Arc<KnownPartner>> {
        self.partners.read().unwrap_or_else(PoisonError::into_inner).by_access_key.get(access_key).cloned()
    }

    fn partners_mut(&self) -> RwLockWriteGuard<'_, Partners> {
        self.partners.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The options that are known, and the ids of those that are not.
    fn known_options(&self, ids: &[OptionId]) -> (Options, Vec<Uuid>) {
        let options = self.options.read().unwrap_or_else(PoisonError::into_inner);
        let (mut known, mut missing) = (HashMap::new(), Vec::new());
        for id in ids {
            match options.get(id) {
                Some(option) => drop(known.insert(*id, Arc::clone(option))),
                None => missing.push(id.uuid()),
            }
        }
        (known, missing)
    }

    /// Returns the known options among `ids`.
    pub(crate) async fn options(&self, ids: &[OptionId]) -> Result<Options, Error> {
        let (known, missing) = self.known_options(ids);
        if missing.is_empty() {
            return Ok(known);
        }
        let turn = self.turn().await;
        let (mut known, missing) = self.known_options(ids);
        if missing.is_empty() {
            return Ok(known);
        }
        let _turn = turn?;
        if self.look_ups.check().is_ok() {
            let found = self.database.run(async |connection| store::options::by_ids(connection, &missing).await);
            for (option, _) in found.await? {
                known.insert(option.option_id, self.learn_option(option));
            }
        }
        Ok(known)
    }

    /// Caches the keys of a partner. Their remaining time counts from `asked`, the time of the query.
    fn learn_partner(&self, credentials: &Credentials, asked: Instant) {
        let partner = |keys: &Keys| {
            let partner = KnownPartner {
                id: credentials.partner_id,
                environment: credentials.environment,
                disabled: credentials.disabled,
                key: self.open(credentials.partner_id, keys.secret_key.as_deref()),
                limits: credentials.limits,
                signed_body_required: credentials.signed_body_required,
                until: keys.ends_in.map(|left| asked + left),
            };
            (keys.access_key.clone(), partner)
        };
        let keys = credentials.keys.iter().map(partner).collect();
        self.partners_mut().learn(credentials.partner_id, credentials.version, keys);
    }

    fn open(&self, partner_id: PartnerId, sealed: Option<&[u8]>) -> Key {
        match sealed.map(|sealed| partners::open_secret_key(&self.vault, partner_id, sealed)) {
            None => Key::Missing,
            Some(Ok(secret)) => Key::Known(secret),
            Some(Err(error)) => {
                tracing::error!(partner.id = %partner_id, %error, "a partner's secret key is unusable");
                Key::Unusable
            }
        }
    }

    fn learn_option(&self, option: ProductOption) -> Arc<ProductOption> {
        let option = Arc::new(option);
        let mut options = self.options.write().unwrap_or_else(PoisonError::into_inner);
        options.insert(option.option_id, Arc::clone(&option));
        option
    }

    /// Reads the database's changes until the soft stop. A wrong schema is an error; it is checked once,
    /// when the database is first reached.
    pub(crate) async fn refresh(self: Arc<Self>, ready: Readiness, shutdown: Shutdown) -> anyhow::Result<()> {
        let stop = shutdown.soft();
        let mut seen = Seen::default();
        loop {
            let changes = async |connection: &mut PgConnection| self.changes(connection, &mut seen).await;
            match self.database.run(changes).await {
                Ok(()) => ready.set_ready("database"),
                Err(SchemaError::Store(error)) => {
                    // Readiness stays as it is: partners get the specified 500.
                    tracing::warn!(%error, "cannot read changes of partners and catalogue; will retry");
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
        let asked = Instant::now();
        for credentials in partners::changed_since(connection, seen.partners).await? {
            seen.partners = seen.partners.max(credentials.version);
            self.learn_partner(&credentials, asked);
        }
        for (option, version) in store::options::changed_since(connection, seen.options).await? {
            seen.options = seen.options.max(version);
            self.learn_option(option);
        }
        // Keys are dropped only while the database responds: a dropped key needs a query.
        self.partners_mut().forget_ended();
        Ok(())
    }
}

fn valid(partner: Arc<KnownPartner>) -> Option<Arc<KnownPartner>> {
    (!partner.ended()).then_some(partner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(partners: &mut Partners, id: PartnerId, version: i64, keys: &[(&str, Option<Instant>)]) {
        let keys = keys.iter().map(|(access_key, until)| {
            let partner = KnownPartner {
                id,
                environment: Environment::Sandbox,
                disabled: false,
                key: Key::Missing,
                limits: Limits::default(),
                signed_body_required: false,
                until: *until,
            };
            ((*access_key).to_owned(), partner)
        });
        partners.learn(id, version, keys.collect());
    }

    fn known(partners: &Partners) -> Vec<&str> {
        let mut known: Vec<_> = partners.by_access_key.keys().map(String::as_str).collect();
        known.sort_unstable();
        known
    }

    #[test]
    fn what_a_partner_has_no_more_is_dropped() {
        let mut partners = Partners::default();
        let (one, other) = (PartnerId::new(), PartnerId::new());
        let later = Instant::now() + Duration::from_hours(1);
        learn(&mut partners, one, 1, &[("a", None)]);
        learn(&mut partners, other, 2, &[("b", None)]);
        learn(&mut partners, one, 3, &[("c", None), ("a", Some(later))]);
        partners.forget_ended();
        assert_eq!(known(&partners), ["a", "b", "c"]);
        // A query that was slower than the refresh.
        learn(&mut partners, one, 1, &[("a", None)]);
        assert_eq!(partners.by_access_key["a"].until, Some(later));
        learn(&mut partners, one, 4, &[("d", None)]);
        assert_eq!(known(&partners), ["b", "d"]);
    }

    #[test]
    fn old_keys_end_by_the_clock() {
        let mut partners = Partners::default();
        let now = Instant::now();
        learn(&mut partners, PartnerId::new(), 1, &[("new", None), ("old", Some(now))]);
        assert!(valid(Arc::clone(&partners.by_access_key["old"])).is_none());
        assert!(valid(Arc::clone(&partners.by_access_key["new"])).is_some());
        partners.forget_ended();
        assert_eq!(known(&partners), ["new"]);
        assert!(partners.ending.is_empty());
    }
}

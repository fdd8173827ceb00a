//! The directory caches partners and the catalogue in memory, so that a valid order needs no query
//! before it is stored.
//!
//! Guarantees:
//!
//! - Changes are read from the database twice a second. A partner that is disabled is therefore
//!   denied within a second, as long as the database responds.
//! - An unknown access key or option is looked up before it is denied, so that a new partner or
//!   option works at once. The look-ups have a rate limit, because anyone can send invented keys.
//!   While it is reached, an option that is not in the cache may exist all the same, so the order
//!   gets a 503: its partner must not take it for refused. A key gets the 401 that nearly all of
//!   these deserve; a partner that was made within the last half second repeats its request.
//! - A further key of a partner leads to the same partner, with the rights of the key. It changes
//!   and ends like anything else of its partner.
//! - A key that a rotation replaced is denied after its end, by the clock of this process.
//! - It is known whose a key was that has ended, so that a request with it counts as one of this
//!   partner. Such keys come from the database only, at most 21 of a partner, so nobody can make
//!   this process or a table hold more by inventing some; and they need no look-up.
//! - While the database is away, the cache stays valid. Orders then fail when they are stored.
//!
//! [`super::authentication`] asks for partners, [`crate::orders::check`] for options. The module
//! relies on two kinds of numbers of the database. While the configuration version stays
//! ([`options::configuration_version`]), nothing has changed. Otherwise the row versions tell which
//! partners and options have: a reader that remembers the greatest one it has seen finds everything
//! that came later ([`options::changed_since`]). It does not rely on NATS.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{
        Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use accounts::{
    options::{self, ProductOption, StoredOption},
    partners::{self, PartnerCredentials, PartnerKeys, PartnerLimits, keys},
    prices::{self, PriceList},
};
use domain::{Environment, KeyId, KeyTerms, OptionId, PartnerId, Rights};
use pg::{Database, Error, PgConnection};
use pipeline::{pulse, streams::Nats};
use runtime::{
    Shutdown,
    clock::{self, Moment},
    health::Readiness,
    lock, outage,
    rate_limit::RateLimit,
};
use signing::SecretKey;
use store::orders::LimitedKey;
use uuid::Uuid;
use vault::Vault;

use crate::http::error::ApiError;

/// A read that took no longer than this says precisely enough when a replaced key ends.
const PRECISE: Duration = Duration::from_millis(20);
/// How often the end of a replaced key is read again at most, because the reads took too long.
const READ_AGAIN: u8 = 60;
/// The time between two reads of the changes.
const REFRESH: Duration = Duration::from_millis(500);
/// The longest time that a request waits for its turn to look something up. Only one look-up runs
/// at a time.
const LOOK_UP_WAIT: Duration = Duration::from_secs(2);
/// How often the use of one key is noted at most, in seconds, also of an ended one. More often
/// would make each request cost a write.
const NOTED_EVERY: i64 = 60;
/// The maximum number of look-ups per second. Beyond it, unknown keys get a 401 and orders of
/// unknown options a 503 without a query, so that a flood of invented ones does not load the
/// database.
const LOOK_UPS: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// A partner, as requests with one of its access keys see it. There is one of these for each of its
/// keys, and during a rotation of the first key two for that.
#[derive(Clone, Debug)]
pub(crate) struct KnownPartner {
    pub(crate) id: PartnerId,
    pub(crate) environment: Environment,
    pub(crate) disabled: bool,
    pub(crate) key: Key,
    /// What requests with this key may do.
    pub(crate) credential: Arc<Credential>,
    pub(crate) limits: PartnerLimits,
    /// Whether requests are denied unless their signature covers the query and the body.
    pub(crate) signed_body_required: bool,
    /// The name of its price list. Without one it sees no prices and pays none.
    pub(crate) price_list: Option<Arc<str>>,
    /// When this access key ends, if a rotation has replaced it; otherwise it has no end.
    until: Option<Moment>,
}

impl KnownPartner {
    /// The key of the request with its limit of units a day; `None` if it has no limit.
    pub(crate) fn limited_key(&self) -> Option<LimitedKey> {
        let units_per_day = self.credential.terms.units_per_day?;
        Some(LimitedKey {
            key_id: self.credential.key_id,
            units_per_day,
        })
    }

    /// A partner that is in no database.
    #[cfg(test)]
    pub(crate) fn example(environment: Environment) -> Self {
        Self {
            id: PartnerId::new(),
            environment,
            disabled: false,
            key: Key::Missing,
            credential: Credential::example(),
            limits: PartnerLimits::default(),
            signed_body_required: false,
            price_list: None,
            until: None,
        }
    }

    fn ended(&self) -> bool {
        self.until.is_some_and(Moment::has_passed)
    }
}

/// What a request with a key may do, and when the key was used.
#[derive(Debug)]
pub(crate) struct Credential {
    /// The id of the key; that of the first one is the partner's id.
    pub(crate) key_id: KeyId,
    pub(crate) access_key: String,
    /// Whether it is the first key of the partner, which the specification knows.
    pub(crate) is_first: bool,
    pub(crate) terms: KeyTerms,
    /// When its last use was noted here, in seconds of Unix time; 0 if it never was.
    noted_at: AtomicI64,
}

impl Credential {
    fn of_first_key(partner_id: PartnerId, access_key: &str) -> Arc<Self> {
        Arc::new(Self {
            key_id: partner_id.first_key(),
            access_key: access_key.to_owned(),
            is_first: true,
            terms: KeyTerms::of_first_key(),
            noted_at: AtomicI64::new(0),
        })
    }

    #[cfg(test)]
    fn example() -> Arc<Self> {
        Self::of_first_key(PartnerId::new(), "")
    }
}

/// Whether a use at this time is the first one within a minute here. `noted_at` is the time of the
/// last one that was.
fn is_first_in_a_minute(noted_at: &AtomicI64, now: i64) -> bool {
    let before = noted_at.load(Ordering::Relaxed);
    now.saturating_sub(before) >= NOTED_EVERY
        && noted_at
            .compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
}

/// Whose a key was that has ended.
struct Ended {
    partner_id: PartnerId,
    /// When its use was noted here, in seconds of Unix time; 0 if it never was.
    noted_at: AtomicI64,
}

impl Ended {
    fn of(partner_id: PartnerId) -> Self {
        Self {
            partner_id,
            noted_at: AtomicI64::new(0),
        }
    }
}

/// The secret key that a partner signs its requests with.
#[derive(Clone, Debug)]
pub(crate) enum Key {
    Missing,
    /// The stored key cannot be decrypted, for example because this process does not have its
    /// master key, or something else of the partner's row cannot be read. Requests get a 500 and
    /// not a 401, because the fault is ours.
    Unusable,
    Known(SecretKey),
}

#[derive(Default)]
struct Partners {
    by_access_key: HashMap<String, Arc<KnownPartner>>,
    /// The newest known row version of each partner, and the access keys that it has in it.
    known: HashMap<PartnerId, (i64, Vec<String>)>,
    /// The access keys that a rotation has replaced. They are dropped when they have ended.
    ending: Vec<String>,
    /// The access keys that have ended.
    ended: HashMap<String, Ended>,
    ended_of: HashMap<PartnerId, Vec<String>>,
}

impl Partners {
    /// Replaces the keys of a partner, unless a newer row version is known. A look-up that was
    /// slower than the refresh would otherwise bring back old keys.
    ///
    /// If this row version is known already, a replaced key ends at the later of the two times.
    /// Both are at most the true one, so the later one is closer to it.
    fn learn(
        &mut self,
        partner_id: PartnerId,
        row_version: i64,
        mut keys: Vec<(String, KnownPartner)>,
        ended: Vec<String>,
    ) {
        let (known, access_keys) = self.known.entry(partner_id).or_default();
        if row_version < *known {
            return;
        }
        if row_version == *known {
            for (access_key, partner) in &mut keys {
                let before = self.by_access_key.get(access_key);
                let before = before.and_then(|before| before.until);
                let later = |until: Moment| before.map_or(until, |before| until.later(before));
                partner.until = partner.until.map(later);
            }
        }
        for gone in access_keys.drain(..) {
            self.by_access_key.remove(&gone);
        }
        *known = row_version;
        for (access_key, partner) in keys {
            access_keys.push(access_key.clone());
            if partner.until.is_some() {
                self.ending.push(access_key.clone());
            }
            self.by_access_key.insert(access_key, Arc::new(partner));
        }
        let mut before = HashMap::new();
        for access_key in self.ended_of.remove(&partner_id).unwrap_or_default() {
            if let Some(gone) = self.ended.remove(&access_key) {
                before.insert(access_key, gone);
            }
        }
        for access_key in &ended {
            let stays = before.remove(access_key);
            let stays = stays.unwrap_or_else(|| Ended::of(partner_id));
            self.ended.insert(access_key.clone(), stays);
        }
        if !ended.is_empty() {
            self.ended_of.insert(partner_id, ended);
        }
    }

    /// Drops the keys that have ended, and with them their secrets. Whose they were stays known.
    fn forget_ended(&mut self) {
        let by_access_key = &mut self.by_access_key;
        let ended = &mut self.ended;
        let ended_of = &mut self.ended_of;
        self.ending.retain(|access_key| {
            let Some(partner) = by_access_key.get(access_key) else {
                return false;
            };
            let has_ended = partner.ended();
            if has_ended {
                let of = ended_of.entry(partner.id).or_default();
                of.push(access_key.clone());
                ended.insert(access_key.clone(), Ended::of(partner.id));
                by_access_key.remove(access_key);
            }
            !has_ended
        });
    }
}

/// Why it is not known whether there is such an option.
#[derive(Debug)]
pub(crate) enum NotLookedUp {
    /// The look-ups have reached their rate limit.
    LimitReached,
    Database(Error),
}

impl From<Error> for NotLookedUp {
    fn from(error: Error) -> Self {
        Self::Database(error)
    }
}

impl From<NotLookedUp> for ApiError {
    fn from(error: NotLookedUp) -> Self {
        match error {
            NotLookedUp::LimitReached => Self::overloaded("look_ups"),
            NotLookedUp::Database(error) => Self::internal(error),
        }
    }
}

pub(crate) type OptionsById = HashMap<OptionId, Arc<ProductOption>>;

pub(crate) struct Directory {
    database: Database,
    vault: Vault,
    partners: RwLock<Partners>,
    options: RwLock<OptionsById>,
    prices: RwLock<HashMap<String, Arc<PriceList>>>,
    look_ups: RateLimit,
    /// The keys that were used and whose use is not written yet.
    used: Mutex<Vec<Uuid>>,
    /// The same of keys that have ended.
    ended_used: Mutex<Vec<String>>,
    /// Held during a look-up, so that only one runs at a time.
    looking: tokio::sync::Mutex<()>,
}

/// What of the database the cache holds.
#[derive(Default)]
struct Seen {
    /// The configuration version when everything was read last.
    configuration_version: Option<i64>,
    /// The greatest row version of the partners that were read.
    partners: i64,
    /// The greatest row version of the options that were read.
    options: i64,
    /// The greatest row version of the price lists that were read.
    price_lists: i64,
    /// How often the partners were read again because of [`PRECISE`].
    read_again: u8,
}

/// What has changed in the database since [`Seen`].
struct Changes {
    configuration_version: i64,
    partners: Vec<PartnerCredentials>,
    options: Vec<StoredOption>,
    price_lists: Vec<PriceList>,
    /// The moment before the partners were read, from which the ends of their keys count.
    asked: Moment,
    /// How long that read took.
    took: Duration,
}

impl Directory {
    /// See [`Database::check`].
    pub(crate) fn check_database(&self) -> pg::Result<()> {
        self.database.check()
    }

    /// Creates an empty cache. Until [`Directory::refresh`] has filled it, each key and option is
    /// looked up when it is first asked for.
    pub(crate) fn new(database: Database, vault: Vault) -> Self {
        Self {
            database,
            vault,
            partners: RwLock::default(),
            options: RwLock::default(),
            prices: RwLock::default(),
            look_ups: RateLimit::per_second(LOOK_UPS),
            used: Mutex::default(),
            ended_used: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the partner with this access key, which may be disabled. `None` if no valid key is
    /// known, or if the look-ups have reached their rate limit.
    pub(crate) async fn partner(
        &self,
        access_key: &str,
    ) -> Result<Option<Arc<KnownPartner>>, Error> {
        if let Some(known) = self.known_partner(access_key) {
            return Ok(valid(known));
        }
        if self.ended_key(access_key, |_| ()).is_some() {
            return Ok(None);
        }
        // Only one look-up runs at a time, so that the first requests of a new partner cause a
        // single query. Its result serves all requests that wait for their turn. A request whose
        // turn did not come in time therefore looks into the cache once more before it fails.
        let turn = self.turn().await;
        if let Some(known) = self.known_partner(access_key) {
            return Ok(valid(known));
        }
        let _turn = turn?;
        if self.look_ups.try_one().is_err() {
            return Ok(None);
        }
        let asked = Moment::now();
        let looking = self
            .database
            .run(async |connection| partners::by_access_key(connection, access_key).await);
        if let Some(credentials) = looking.await? {
            self.learn_partner(&credentials, asked);
        }
        Ok(self.known_partner(access_key).and_then(valid))
    }

    /// Whose this access key is or was, if the cache knows it. That a key is still named after its
    /// end is noted, at most once a minute.
    pub(crate) fn owner(&self, access_key: &str) -> Option<PartnerId> {
        let known = self.known_partner(access_key);
        if let Some(valid) = known.clone().and_then(valid) {
            return Some(valid.id);
        }
        let now = clock::unix_seconds();
        let noted = self.ended_key(access_key, |ended| {
            if is_first_in_a_minute(&ended.noted_at, now) {
                lock(&self.ended_used).push(access_key.to_owned());
            }
            ended.partner_id
        });
        // It has ended a moment ago and is not dropped yet.
        noted.or_else(|| known.map(|known| known.id))
    }

    /// Notes that a request was signed with this key. It is written with the next refresh, and for
    /// one key at most once a minute.
    pub(crate) fn note_use(&self, credential: &Credential) {
        if is_first_in_a_minute(&credential.noted_at, clock::unix_seconds()) {
            lock(&self.used).push(credential.key_id.uuid());
        }
    }

    /// Writes which keys were used. What could not be written is noted again by a later request,
    /// and the refresh, which fails as well, says why.
    async fn write_uses(&self) {
        let used = std::mem::take(&mut *lock(&self.used));
        let ended = std::mem::take(&mut *lock(&self.ended_used));
        if used.is_empty() && ended.is_empty() {
            return;
        }
        let write = async |connection: &mut PgConnection| {
            if !used.is_empty() {
                keys::used(&mut *connection, &used).await?;
            }
            if !ended.is_empty() {
                keys::ended_used(connection, &ended).await?;
            }
            Ok::<_, Error>(())
        };
        if let Err(error) = self.database.run(write).await {
            tracing::debug!(%error, "when keys were used last is not written");
        }
    }

    /// Adds a partner that is in no database, for the fuzz targets.
    #[cfg(debug_assertions)]
    pub(crate) fn learn_for_fuzzing(
        &self,
        access_key: &str,
        secret: SecretKey,
        signed_body_required: bool,
    ) {
        let id = PartnerId::new();
        let partner = KnownPartner {
            id,
            environment: Environment::Sandbox,
            disabled: false,
            key: Key::Known(secret),
            credential: Credential::of_first_key(id, access_key),
            limits: PartnerLimits::default(),
            signed_body_required,
            price_list: None,
            until: None,
        };
        self.partners_mut().learn(
            partner.id,
            1,
            vec![(access_key.to_owned(), partner)],
            Vec::new(),
        );
    }

    /// Waits for the turn to look something up. While the database is away, many requests wait
    /// here, so the wait is bounded.
    async fn turn(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, Error> {
        tokio::time::timeout(LOOK_UP_WAIT, self.looking.lock())
            .await
            .map_err(|_| Error::timed_out())
    }

    fn known_partner(&self, access_key: &str) -> Option<Arc<KnownPartner>> {
        self.partners
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .by_access_key
            .get(access_key)
            .cloned()
    }

    fn ended_key<T>(&self, access_key: &str, read: impl FnOnce(&Ended) -> T) -> Option<T> {
        let partners = self.partners.read();
        let partners = partners.unwrap_or_else(PoisonError::into_inner);
        partners.ended.get(access_key).map(read)
    }

    fn partners_mut(&self) -> RwLockWriteGuard<'_, Partners> {
        self.partners
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Splits `ids` into the options that are cached, and the ids of those that are not.
    fn known_options(&self, ids: &[OptionId]) -> (OptionsById, Vec<Uuid>) {
        let options = self.options.read().unwrap_or_else(PoisonError::into_inner);
        let mut known = HashMap::new();
        let mut missing = Vec::new();
        for id in ids {
            match options.get(id) {
                Some(option) => drop(known.insert(*id, Arc::clone(option))),
                None => missing.push(id.uuid()),
            }
        }
        (known, missing)
    }

    /// Returns the options among `ids` that exist, enabled or not. Those that are not cached are
    /// looked up.
    pub(crate) async fn options(&self, ids: &[OptionId]) -> Result<OptionsById, NotLookedUp> {
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
        let counted = self.look_ups.try_one();
        counted.map_err(|_| NotLookedUp::LimitReached)?;
        let looking = self
            .database
            .run(async |connection| options::by_ids(connection, &missing).await);
        for row in looking.await? {
            // One that cannot be read was logged when its change was read.
            if let Ok(option) = row.option {
                known.insert(option.option_id, self.learn_option(option));
            }
        }
        Ok(known)
    }

    /// The price list of a partner; `None` if it has none. A list that is not in the cache is
    /// looked up, so that its partner does not take it for empty.
    pub(crate) async fn price_list(
        &self,
        partner: &KnownPartner,
    ) -> Result<Option<Arc<PriceList>>, ApiError> {
        let Some(name) = &partner.price_list else {
            return Ok(None);
        };
        if let Some(known) = self.known_prices(name) {
            return Ok(Some(known));
        }
        let turn = self.turn().await;
        if let Some(known) = self.known_prices(name) {
            return Ok(Some(known));
        }
        let _turn = turn.map_err(ApiError::internal)?;
        let counted = self.look_ups.try_one();
        counted.map_err(|_| NotLookedUp::LimitReached)?;
        let looking = self
            .database
            .run(async |connection| prices::changed_since(connection, 0).await);
        for list in looking.await.map_err(ApiError::internal)? {
            self.learn_prices(list);
        }
        // One that cannot be read is told by the log.
        let known = self.known_prices(name);
        known.map(Some).ok_or(ApiError::overloaded("price_list"))
    }

    fn known_prices(&self, name: &str) -> Option<Arc<PriceList>> {
        let prices = self.prices.read().unwrap_or_else(PoisonError::into_inner);
        prices.get(name).cloned()
    }

    /// Caches a price list, unless a newer version of it is known.
    fn learn_prices(&self, list: PriceList) {
        let mut prices = self.prices.write().unwrap_or_else(PoisonError::into_inner);
        let known = prices.get(&list.name);
        if known.is_none_or(|known| known.row_version < list.row_version) {
            prices.insert(list.name.clone(), Arc::new(list));
        }
    }

    /// Caches the keys of a partner. The database says how long a replaced key remains valid. This
    /// time counts from `asked`, the moment before the query, so that the key never ends too late.
    /// It ends too early by as much as the query took until PostgreSQL saw it, so [`Self::learn`]
    /// has the partners read again after a slow query.
    fn learn_partner(&self, credentials: &PartnerCredentials, asked: Moment) {
        if credentials.environment.is_none() {
            tracing::error!(
                partner.id = %credentials.partner_id,
                "a partner's row has an environment that this version does not know, so its requests \
                 get 500; the other partners are served. Correct the row, or install the version \
                 that wrote it"
            );
        }
        let id = credentials.partner_id;
        let price_list: Option<Arc<str>> = credentials.price_list.as_deref().map(Into::into);
        let partner = |key, credential: Arc<Credential>, until| {
            let key = match credentials.environment {
                Some(_) => key,
                None => Key::Unusable,
            };
            let access_key = credential.access_key.clone();
            let partner = KnownPartner {
                id,
                // Without a usable key nothing is bought for it, whatever stands here.
                environment: credentials.environment.unwrap_or(Environment::Sandbox),
                disabled: credentials.disabled,
                key,
                credential,
                limits: credentials.limits,
                signed_body_required: credentials.signed_body_required,
                price_list: price_list.clone(),
                until,
            };
            (access_key, partner)
        };
        let first = credentials.keys.iter().map(|keys: &PartnerKeys| {
            let sealed = keys.secret_key.as_deref();
            let opened = sealed.map(|sealed| partners::open_secret_key(&self.vault, id, sealed));
            let until = keys.ends_in.map(|left| asked + left);
            let credential = Credential::of_first_key(id, &keys.access_key);
            partner(usable(id, opened), credential, until)
        });
        let further = credentials.further_keys.iter().map(|key| {
            // A key whose terms cannot be read may do nothing.
            let opened = key.terms.as_ref().map(|_| key.open(&self.vault, id));
            let usable = opened.map_or(Key::Unusable, |opened| usable(id, Some(opened)));
            let terms = key.terms.clone().unwrap_or(KeyTerms {
                rights: Rights::default(),
                networks: Vec::new(),
                units_per_day: Some(0),
            });
            let credential = Arc::new(Credential {
                key_id: key.key_id,
                access_key: key.access_key.clone(),
                is_first: false,
                terms,
                noted_at: AtomicI64::new(0),
            });
            partner(usable, credential, None)
        });
        let keys = first.chain(further).collect();
        let ended = credentials.ended_keys.clone();
        self.partners_mut()
            .learn(credentials.partner_id, credentials.row_version, keys, ended);
    }

    /// Forgets an option whose row cannot be read, so that nobody orders it as it was before.
    fn set_aside(&self, option_id: OptionId, error: &Error) {
        tracing::error!(
            option.id = %option_id,
            %error,
            "an option cannot be read, so it cannot be ordered; the other options can. Import it again"
        );
        let mut options = self.options.write().unwrap_or_else(PoisonError::into_inner);
        options.remove(&option_id);
    }

    fn learn_option(&self, option: ProductOption) -> Arc<ProductOption> {
        let option = Arc::new(option);
        let mut options = self.options.write().unwrap_or_else(PoisonError::into_inner);
        options.insert(option.option_id, Arc::clone(&option));
        option
    }

    /// Keeps the cache up to date until the soft stop. A wrong schema, or a database that must not
    /// be used, is an error that ends the process. Once the cache is filled, the pulse begins,
    /// which keeps the readiness up to date: before that, requests of known partners could be
    /// denied, because the look-ups have a limit.
    pub(crate) async fn refresh(
        self: Arc<Self>,
        nats: Nats,
        ready: Readiness,
        shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        let stop = shutdown.soft();
        let checking = accounts::start::wait(&self.database, &self.vault);
        match stop.run_until_cancelled(checking).await {
            None => return Ok(()),
            Some(checked) => checked?,
        }
        let pulse = pulse::run(self.database.clone(), nats, ready, shutdown.clone());
        let mut not_pulsing = Some(pulse);
        let mut seen = Seen::default();
        loop {
            let reading = async |connection: &mut PgConnection| changes(connection, &seen).await;
            let read = self.database.run(reading).await;
            match read {
                Ok(changes) => {
                    if let Some(changes) = changes {
                        self.learn(changes, &mut seen);
                    }
                    // Ended keys are dropped only while the database responds. A request with a key
                    // that is not cached needs a look-up, so without the database it would get a
                    // 500 instead of a 401.
                    self.partners_mut().forget_ended();
                    self.write_uses().await;
                    if let Some(pulse) = not_pulsing.take() {
                        shutdown.spawn("pulse", pulse);
                    }
                }
                Err(error) => {
                    if let Some(others) = outage::DATABASE.failed() {
                        tracing::error!(
                            %error,
                            others,
                            "cannot read the changes of partners and options; ingress goes on with \
                             those that it knows, and retries in half a second"
                        );
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(REFRESH) => {}
            }
        }
    }

    /// Brings changes into the cache, and notes in `seen` how far it is now.
    fn learn(&self, changes: Changes, seen: &mut Seen) {
        let mut greatest = seen.partners;
        let mut any_ends = false;
        for credentials in &changes.partners {
            greatest = greatest.max(credentials.row_version);
            any_ends |= credentials.keys.iter().any(|keys| keys.ends_in.is_some());
            self.learn_partner(credentials, changes.asked);
        }
        if any_ends && changes.took > PRECISE && seen.read_again < READ_AGAIN {
            // `seen.partners` stays, so that the next read brings the same partners once more.
            seen.read_again += 1;
        } else {
            seen.partners = greatest;
            seen.read_again = 0;
        }
        for changed in changes.options {
            seen.options = seen.options.max(changed.row_version);
            match changed.option {
                Ok(option) => drop(self.learn_option(option)),
                Err(error) => self.set_aside(changed.option_id, &error),
            }
        }
        for list in changes.price_lists {
            seen.price_lists = seen.price_lists.max(list.row_version);
            self.learn_prices(list);
        }
        seen.configuration_version = Some(changes.configuration_version);
    }
}

/// Reads what has changed since `seen`; `None` if nothing has. Changes nothing itself.
async fn changes(connection: &mut PgConnection, seen: &Seen) -> Result<Option<Changes>, Error> {
    // One small read while nothing has changed, which is nearly always. It comes first, so that
    // what changes during the further reads is read again.
    let configuration_version = options::configuration_version(connection).await?;
    if seen.configuration_version == Some(configuration_version) && seen.read_again == 0 {
        return Ok(None);
    }
    let asked = Moment::now();
    let partners = partners::changed_since(connection, seen.partners).await?;
    let took = asked.monotonic.elapsed();
    let options = options::changed_since(connection, seen.options).await?;
    let price_lists = prices::changed_since(connection, seen.price_lists).await?;
    Ok(Some(Changes {
        configuration_version,
        partners,
        options,
        price_lists,
        asked,
        took,
    }))
}

/// The secret key that was opened, if there is one.
fn usable(partner_id: PartnerId, opened: Option<pg::Result<SecretKey>>) -> Key {
    match opened {
        None => Key::Missing,
        Some(Ok(secret)) => Key::Known(secret),
        Some(Err(error)) => {
            tracing::error!(
                partner.id = %partner_id,
                %error,
                "a partner's secret key cannot be decrypted, so its requests get 500; check the master keys"
            );
            Key::Unusable
        }
    }
}

/// The partner, unless the access key that was asked for has ended.
fn valid(partner: Arc<KnownPartner>) -> Option<Arc<KnownPartner>> {
    (!partner.ended()).then_some(partner)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use pg::{
        config::{DatabaseConfig, PoolConfig},
        primary::DurabilityConfig,
    };

    use super::*;

    fn learn(
        partners: &mut Partners,
        id: PartnerId,
        row_version: i64,
        keys: &[(&str, Option<Moment>)],
    ) {
        let keys = keys.iter().map(|(access_key, until)| {
            let partner = KnownPartner {
                id,
                environment: Environment::Sandbox,
                disabled: false,
                key: Key::Missing,
                credential: Credential::of_first_key(id, access_key),
                limits: PartnerLimits::default(),
                signed_body_required: false,
                price_list: None,
                until: *until,
            };
            ((*access_key).to_owned(), partner)
        });
        partners.learn(id, row_version, keys.collect(), Vec::new());
    }

    /// Whoever sends invented keys must not make a partner believe that an option does not exist. A
    /// stranger gets no 5xx, which would count as a failure of ours.
    #[tokio::test]
    async fn an_option_that_cannot_be_looked_up_is_not_called_unknown() {
        let server = DatabaseConfig {
            database_url: "postgres://localhost/none".into(),
        };
        let database = PoolConfig {
            server,
            database_connections: 1,
            database_timeout: Duration::from_secs(5),
            durability: DurabilityConfig::default(),
        }
        .open("test")
        .unwrap();
        let directory = Directory::new(database, Vault::of(&[]).unwrap());
        // Used up for an hour, because a limit that is used up now allows one more within a
        // millisecond.
        let in_an_hour = Instant::now() + Duration::from_hours(1);
        let all = directory.look_ups.ask(LOOK_UPS, in_an_hour).unwrap();
        all.take();
        assert!(directory.partner("invented").await.unwrap().is_none());
        let options = directory.options(&[OptionId::new()]).await;
        let error = ApiError::from(options.unwrap_err());
        assert!(matches!(error, ApiError::Unavailable { .. }), "{error:?}");
    }

    fn known(partners: &Partners) -> Vec<&str> {
        let mut known: Vec<_> = partners.by_access_key.keys().map(String::as_str).collect();
        known.sort_unstable();
        known
    }

    #[test]
    fn what_a_partner_has_no_more_is_dropped() {
        let mut partners = Partners::default();
        let one = PartnerId::new();
        let other = PartnerId::new();
        let later = Moment::now() + Duration::from_hours(1);
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
    fn the_end_of_an_old_key_becomes_more_precise_and_never_later_than_it_was_read() {
        let mut partners = Partners::default();
        let partner = PartnerId::new();
        let early = Moment::now() + Duration::from_mins(1);
        let end = early + Duration::from_secs(1);
        for read in [early, end, early] {
            learn(
                &mut partners,
                partner,
                1,
                &[("new", None), ("old", Some(read))],
            );
        }
        assert_eq!(partners.by_access_key["old"].until, Some(end));
        assert_eq!(partners.by_access_key["new"].until, None);
        // An operator has shortened the overlap.
        learn(&mut partners, partner, 2, &[("old", Some(early))]);
        assert_eq!(partners.by_access_key["old"].until, Some(early));
    }

    #[test]
    fn old_keys_end_by_the_clock() {
        let mut partners = Partners::default();
        let now = Moment::now();
        learn(
            &mut partners,
            PartnerId::new(),
            1,
            &[("new", None), ("old", Some(now))],
        );
        assert!(valid(Arc::clone(&partners.by_access_key["old"])).is_none());
        assert!(valid(Arc::clone(&partners.by_access_key["new"])).is_some());
        partners.forget_ended();
        assert_eq!(known(&partners), ["new"]);
        assert!(partners.ending.is_empty());
    }

    fn ended(partners: &Partners) -> Vec<(&str, PartnerId)> {
        let ended = partners.ended.iter();
        let mut ended: Vec<_> = ended
            .map(|(key, of)| (key.as_str(), of.partner_id))
            .collect();
        ended.sort_unstable();
        ended
    }

    #[test]
    fn whose_an_ended_key_was_stays_known_as_long_as_the_database_keeps_it() {
        let mut partners = Partners::default();
        let one = PartnerId::new();
        let now = Moment::now();
        learn(&mut partners, one, 1, &[("new", None), ("old", Some(now))]);
        partners.forget_ended();
        assert_eq!(ended(&partners), [("old", one)]);
        let noted = &partners.ended["old"].noted_at;
        assert!(is_first_in_a_minute(noted, 100));
        assert!(!is_first_in_a_minute(noted, 159));
        assert!(is_first_in_a_minute(noted, 160));
        let kept = ["old".to_owned(), "older".to_owned()];
        partners.learn(one, 2, Vec::new(), kept.to_vec());
        assert_eq!(ended(&partners), [("old", one), ("older", one)]);
        let noted = partners.ended["old"].noted_at.load(Ordering::Relaxed);
        assert_eq!(noted, 160, "it is not noted anew");
        partners.learn(one, 3, Vec::new(), vec!["older".to_owned()]);
        assert_eq!(ended(&partners), [("older", one)]);
        partners.learn(one, 4, Vec::new(), Vec::new());
        assert!(partners.ended.is_empty() && partners.ended_of.is_empty());
    }
}

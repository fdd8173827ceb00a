//! Partner accounts: their credentials, limits, state and [endpoints].
//!
//! `esimctl` creates and changes partners. Ingress keeps the credentials in memory, with the
//! changes that [`changed_since`] returns, and looks up unknown access keys with [`by_access_key`].
//! Keys and secrets are sealed by a [`Vault`] and bound to their partner; they are opened only
//! where they are used. A rotation keeps the old keys or the old secret valid during an overlap, so
//! that a partner can switch at any time within it.

use std::{collections::HashMap, time::Duration};

use domain::{Environment, PartnerId, Right};
use pg::{Result, Transaction, TransactionEnd, age, seconds, signed, transaction, unsigned};
use signing::{SecretKey, webhook};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;
use vault::{Keyring, Purpose, Vault, VaultError, some_opened};

pub mod endpoints;
pub mod keys;

pub use domain::rotation::{Overlap, RotationResult};
pub use endpoints::{rotate_secret, set_events};
use keys::FurtherCredentials;

/// The limits of a partner in each ingress process. `None` means the default of the setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PartnerLimits {
    /// The maximum number of orders in flight.
    pub max_in_flight: Option<u32>,
    pub requests_per_second: Option<u32>,
    pub orders_per_second: Option<u32>,
    pub units_per_second: Option<u32>,
}

impl PartnerLimits {
    /// The limits with which an account begins. Anybody may get a sandbox account, and each unit of
    /// an order becomes a webhook to each of up to ten hosts, so such an account begins with low
    /// rates. An operator raises them for a partner that tests its load.
    pub fn at_first(environment: Environment) -> Self {
        match environment {
            Environment::Live => Self::default(),
            Environment::Sandbox => Self {
                orders_per_second: Some(5),
                units_per_second: Some(5),
                ..Self::default()
            },
        }
    }

    /// The limits with these changes.
    #[must_use]
    pub fn with(self, new: &NewLimits) -> Self {
        Self {
            max_in_flight: new.max_in_flight.of(self.max_in_flight),
            requests_per_second: new.requests_per_second.of(self.requests_per_second),
            orders_per_second: new.orders_per_second.of(self.orders_per_second),
            units_per_second: new.units_per_second.of(self.units_per_second),
        }
    }
}

/// A partner account without its secrets. Its limits are those of [`PartnerLimits`].
#[derive(Clone, Debug, serde::Serialize)]
pub struct Partner {
    pub partner_id: Uuid,
    pub name: String,
    /// `sandbox` or `live`.
    pub environment: String,
    /// The value of `X-Service-Access-Key`.
    pub access_key: String,
    /// Whether it is an account with keys. An erased one has none.
    pub has_secret_key: bool,
    /// Whether all its keys were [ended](end_keys), so that it can sign nothing until it gets new
    /// ones. Then `access_key` is no key.
    pub keys_ended: bool,
    /// The access key before the last rotation, during the overlap.
    pub old_access_key: Option<String>,
    /// When the old keys end; `None` if there are none.
    #[serde(with = "time::serde::rfc3339::option")]
    pub old_keys_until: Option<OffsetDateTime>,
    pub webhook_url: Option<String>,
    /// The further events that the partner asked for.
    pub webhook_events: Vec<String>,
    /// The time until which the old secret signs webhooks, too; `None` if there is none.
    #[serde(with = "time::serde::rfc3339::option")]
    pub old_webhook_secret_until: Option<OffsetDateTime>,
    pub max_in_flight: Option<i32>,
    pub requests_per_second: Option<i32>,
    pub orders_per_second: Option<i32>,
    pub units_per_second: Option<i32>,
    /// Requests that do not sign their query and body are denied.
    pub signed_body_required: bool,
    /// Since when the partner is disabled, so that its requests are denied.
    #[serde(with = "time::serde::rfc3339::option")]
    pub disabled_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

pub struct NewPartner<'a> {
    pub partner_id: PartnerId,
    pub name: &'a str,
    /// A sandbox partner buys nothing real.
    pub environment: Environment,
    /// The value of `X-Service-Access-Key`.
    pub access_key: &'a str,
    pub secret_key: &'a SecretKey,
    pub webhook_url: Option<&'a str>,
    pub webhook_secret: &'a webhook::Secret,
    pub limits: PartnerLimits,
}

/// What ingress needs to authenticate the requests of a partner.
#[derive(Clone, Debug)]
pub struct PartnerCredentials {
    pub partner_id: PartnerId,
    /// A sandbox partner buys nothing real. `None` if the row holds a name that this version does
    /// not know; then the partner cannot be served, but the others can.
    pub environment: Option<Environment>,
    /// The valid keys: the current pair and, during an overlap, also the old one.
    pub keys: Vec<PartnerKeys>,
    /// The further keys. They may be newer than the row version, and then they are read again.
    pub further_keys: Vec<FurtherCredentials>,
    /// The access keys that ended last. Requests with them are denied, and told to this partner.
    pub ended_keys: Vec<String>,
    pub disabled: bool,
    pub limits: PartnerLimits,
    /// Requests that do not sign their query and body are denied.
    pub signed_body_required: bool,
    /// The name of its price list, if it has one.
    pub price_list: Option<String>,
    /// The row version of the last change, for [`changed_since`].
    pub row_version: i64,
}

#[derive(Clone, Debug)]
pub struct PartnerKeys {
    /// The value of `X-Service-Access-Key`.
    pub access_key: String,
    /// The sealed secret key, if there is one; see [`open_secret_key`].
    pub secret_key: Option<Vec<u8>>,
    /// How long the pair is still valid; `None` if it has no end.
    pub ends_in: Option<Duration>,
}

pub async fn create(
    connection: &mut PgConnection,
    vault: &Vault,
    new: &NewPartner<'_>,
) -> Result<()> {
    let id = new.partner_id;
    let secret_key = vault.seal(Purpose::SecretKey(id), new.secret_key.expose())?;
    transaction!(connection, "partners::create", |transaction| {
        let statement = sqlx::query!(
            "INSERT INTO partners (partner_id, name, environment, access_key, secret_key,
                               max_in_flight, requests_per_second, orders_per_second, units_per_second)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            id.uuid(),
            new.name,
            new.environment.as_str(),
            new.access_key,
            secret_key,
            new.limits.max_in_flight.map(signed),
            new.limits.requests_per_second.map(signed),
            new.limits.orders_per_second.map(signed),
            new.limits.units_per_second.map(signed),
        );
        statement.execute(&mut **transaction).await?;
        endpoints::set_first(transaction, vault, id, new.webhook_url, new.webhook_secret).await?;
        Ok(TransactionEnd::Commit(()))
    })
}

/// A query for [`Partner`]s that match a condition on the row `p`.
macro_rules! partners {
    ($condition:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            Partner,
            r#"SELECT p.partner_id, name, environment, access_key, erased_at IS NULL AS "has_secret_key!",
                      starts_with(access_key, 'ended-') AS "keys_ended!",
                      CASE WHEN old_keys_until > now() THEN old_access_key END AS old_access_key,
                      CASE WHEN old_keys_until > now() THEN old_keys_until END AS old_keys_until, e.url AS webhook_url,
                      array_remove(e.events, 'topup.ready') AS "webhook_events!",
                      CASE WHEN e.secret_ends[2] > now() THEN e.secret_ends[2] END AS old_webhook_secret_until,
                      max_in_flight, requests_per_second, orders_per_second, units_per_second, signed_body_required,
                      disabled_at, p.created_at
               FROM partners p
               JOIN partner_endpoints e ON e.endpoint_id = p.partner_id
               WHERE "# + $condition
            $(, $argument)*
        )
    };
}

/// All partners, oldest first.
pub async fn list(connection: &mut PgConnection) -> Result<Vec<Partner>> {
    let all = partners!("true ORDER BY p.created_at, p.partner_id");
    Ok(all.fetch_all(connection).await?)
}

/// Which partners a page of the list has.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartnerFilter<'a> {
    /// A part of the name in any case, the whole id, or the whole access key. Empty: any.
    pub named: &'a str,
    pub environment: Option<Environment>,
    pub only_disabled: bool,
    /// Only these.
    pub among: Option<&'a [Uuid]>,
}

/// A page of the partners by name, behind `offset`, and how many there are. Those in `first` come
/// before all others, in their order.
pub async fn page(
    connection: &mut PgConnection,
    wanted: &PartnerFilter<'_>,
    first: &[Uuid],
    (offset, limit): (i64, i64),
) -> Result<(Vec<Partner>, i64)> {
    let matching = sqlx::query!(
        r#"SELECT partner_id, count(*) OVER () AS "total!" FROM partners
           LEFT JOIN unnest($5::uuid[]) WITH ORDINALITY AS first (id, nth) ON id = partner_id
           WHERE ($1 = '' OR strpos(lower(name), lower($1)) > 0 OR strpos(name, $1) > 0 OR partner_id::text = lower($1)
                  OR access_key = $1)
             AND ($2::text IS NULL OR environment = $2)
             AND (NOT $3::boolean OR disabled_at IS NOT NULL)
             AND ($4::uuid[] IS NULL OR partner_id = ANY ($4))
           ORDER BY nth, lower(name), partner_id
           OFFSET $6 LIMIT $7"#,
        wanted.named,
        wanted.environment.map(Environment::as_str),
        wanted.only_disabled,
        wanted.among,
        first,
        offset,
        limit,
    );
    let matching = matching.fetch_all(&mut *connection).await?;
    let total = matching.first().map_or(0, |row| row.total);
    let ids: Vec<Uuid> = matching.into_iter().map(|row| row.partner_id).collect();
    let found = partners!("p.partner_id = ANY ($1)", &ids);
    let found = found.fetch_all(connection).await?.into_iter();
    let mut found: HashMap<Uuid, Partner> = found.map(|one| (one.partner_id, one)).collect();
    let in_order = ids.iter().filter_map(|id| found.remove(id));
    Ok((in_order.collect(), total))
}

/// The partners whose name a text is, or of whose names it is a part, in any case.
#[derive(Clone, Debug, Default)]
pub struct PartnersOfName {
    /// Some of them by name, those whose whole name it is first.
    pub some: Vec<(PartnerId, String)>,
    /// How many have it as their whole name, and how many as a part.
    pub whole: i64,
    pub part: i64,
}

/// Finds [`PartnersOfName`]. Partners are few, so their names have no index.
pub async fn named(connection: &mut PgConnection, text: &str, most: i64) -> Result<PartnersOfName> {
    let query = sqlx::query!(
        r#"SELECT partner_id, name, count(*) FILTER (WHERE lower(name) = lower($1)) OVER () AS "whole!",
                  count(*) OVER () AS "part!"
           FROM partners WHERE strpos(lower(name), lower($1)) > 0 OR strpos(name, $1) > 0
           ORDER BY lower(name) = lower($1) DESC, name, partner_id LIMIT $2"#,
        text,
        most,
    );
    let rows = query.fetch_all(connection).await?;
    Ok(PartnersOfName {
        whole: rows.first().map_or(0, |row| row.whole),
        part: rows.first().map_or(0, |row| row.part),
        some: rows
            .into_iter()
            .map(|row| (row.partner_id.into(), row.name))
            .collect(),
    })
}

/// The names of these partners. An id that is not among the partners has none.
pub async fn names(
    connection: &mut PgConnection,
    partners: &[Uuid],
) -> Result<HashMap<Uuid, String>> {
    let query = sqlx::query!(
        "SELECT partner_id, name FROM partners WHERE partner_id = ANY ($1)",
        partners,
    );
    let found = query.fetch_all(connection).await?;
    Ok(found
        .into_iter()
        .map(|row| (row.partner_id, row.name))
        .collect())
}

/// The names of these partners, and whether they are live ones.
pub async fn names_and_live(
    connection: &mut PgConnection,
    partners: &[Uuid],
) -> Result<HashMap<Uuid, (String, bool)>> {
    let query = sqlx::query!(
        r#"SELECT partner_id, name, environment = 'live' AS "is_live!" FROM partners WHERE partner_id = ANY ($1)"#,
        partners,
    );
    let found = query.fetch_all(connection).await?.into_iter();
    let found = found.map(|row| (row.partner_id, (row.name, row.is_live)));
    Ok(found.collect())
}

/// A partner by id, the access key of one of its keys, or the access key before the last rotation.
pub async fn show(
    connection: &mut PgConnection,
    id_or_access_key: &str,
) -> Result<Option<Partner>> {
    // The id is compared as one, so that each of the three is found by its index.
    let id: Option<Uuid> = id_or_access_key.parse().ok();
    let found = partners!(
        "p.partner_id = $1 OR access_key = $2 OR old_access_key = $2
         OR p.partner_id = (SELECT k.partner_id FROM partner_keys k WHERE k.access_key = $2)
         ORDER BY p.created_at, p.partner_id LIMIT 1",
        id,
        id_or_access_key,
    );
    Ok(found.fetch_optional(connection).await?)
}

/// Keeps other changes of a partner out until the end of the transaction. Returns whether it
/// exists.
pub async fn lock(transaction: &mut Transaction<'_>, partner_id: PartnerId) -> Result<bool> {
    let query = sqlx::query!(
        "SELECT partner_id FROM partners WHERE partner_id = $1 FOR NO KEY UPDATE",
        partner_id.uuid()
    );
    Ok(query.fetch_optional(&mut **transaction).await?.is_some())
}

/// Disables a partner, so that its requests are denied, or enables it again. Orders that were
/// accepted go on. Returns whether the partner exists.
pub async fn set_disabled(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    disabled: bool,
) -> Result<bool> {
    let update = sqlx::query!(
        "UPDATE partners SET disabled_at = CASE WHEN $2 THEN coalesce(disabled_at, now()) END WHERE partner_id = $1",
        partner_id.uuid(),
        disabled,
    );
    Ok(update.execute(connection).await?.rows_affected() > 0)
}

/// A change of one of a partner's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// The limit stays.
    #[default]
    Keep,
    /// The limit becomes the default of the setting.
    Default,
    /// The partner gets a limit of its own.
    Own(u32),
}

impl Limit {
    fn changes(self) -> bool {
        self != Self::Keep
    }

    fn of(self, before: Option<u32>) -> Option<u32> {
        match self {
            Self::Keep => before,
            Self::Default => None,
            Self::Own(most) => Some(most),
        }
    }

    fn value(self) -> Option<i32> {
        match self {
            Self::Keep | Self::Default => None,
            Self::Own(most) => Some(signed(most)),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct NewLimits {
    pub max_in_flight: Limit,
    pub requests_per_second: Limit,
    pub orders_per_second: Limit,
    pub units_per_second: Limit,
}

/// Changes a partner's limits. Returns whether the partner exists.
pub async fn set_limits(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    new: &NewLimits,
) -> Result<bool> {
    let update = sqlx::query!(
        "UPDATE partners
         SET max_in_flight = CASE WHEN $2 THEN $3 ELSE max_in_flight END,
             requests_per_second = CASE WHEN $4 THEN $5 ELSE requests_per_second END,
             orders_per_second = CASE WHEN $6 THEN $7 ELSE orders_per_second END,
             units_per_second = CASE WHEN $8 THEN $9 ELSE units_per_second END
         WHERE partner_id = $1",
        partner_id.uuid(),
        new.max_in_flight.changes(),
        new.max_in_flight.value(),
        new.requests_per_second.changes(),
        new.requests_per_second.value(),
        new.orders_per_second.changes(),
        new.orders_per_second.value(),
        new.units_per_second.changes(),
        new.units_per_second.value(),
    );
    Ok(update.execute(connection).await?.rows_affected() > 0)
}

/// Sets whether requests that do not sign query and body are denied. Returns whether the partner
/// exists.
pub async fn set_signed_body_required(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    required: bool,
) -> Result<bool> {
    let update = sqlx::query!(
        "UPDATE partners SET signed_body_required = $2 WHERE partner_id = $1",
        partner_id.uuid(),
        required,
    );
    Ok(update.execute(connection).await?.rows_affected() > 0)
}

/// Replaces a partner's keys. The old ones stay valid during the overlap. A partner has at most one
/// old pair, so a rotation during the last overlap must keep that pair (`keep_old`) or end it (an
/// overlap of 0). Otherwise it is refused, because it would end keys that the partner may still
/// use.
pub async fn rotate_keys(
    transaction: &mut Transaction<'_>,
    vault: &Vault,
    partner_id: PartnerId,
    access_key: &str,
    secret_key: &SecretKey,
    overlap: Overlap,
) -> Result<RotationResult> {
    let sealed = vault.seal(Purpose::SecretKey(partner_id), secret_key.expose())?;
    let query = sqlx::query_scalar!(
        "UPDATE partners
         SET access_key = $2, secret_key = $3,
             old_access_key = CASE WHEN $4 = 0::float8 OR ended THEN NULL WHEN $5 THEN old_access_key ELSE access_key END,
             old_secret_key = CASE WHEN $4 = 0::float8 OR ended THEN NULL WHEN $5 THEN old_secret_key ELSE secret_key END,
             old_keys_until = CASE WHEN $4 > 0::float8 AND NOT ended THEN now() + make_interval(secs => $4) END
         FROM (SELECT starts_with(access_key, 'ended-') AS ended FROM partners WHERE partner_id = $1 FOR NO KEY UPDATE) was
         WHERE partner_id = $1 AND ($4 = 0::float8 OR coalesce(old_keys_until > now(), false) = $5)
         RETURNING old_keys_until",
        partner_id.uuid(),
        access_key,
        sealed,
        seconds(overlap.lasts),
        overlap.keep_old,
    );
    Ok(query
        .fetch_optional(&mut **transaction)
        .await?
        .map_or(RotationResult::Refused, RotationResult::Until))
}

/// The keys of a partner after some of them were ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedKeys {
    /// The access keys that work no more.
    pub ended: Vec<String>,
    /// The one that orders can go on with, if there is one: one of the first ones, or the oldest
    /// further one that may order.
    pub goes_on: Option<String>,
    /// The names of the further keys that work on. The partner has to look through them, because
    /// whoever had the ended key may have made one.
    pub further: Vec<String>,
}

/// Ends keys of a partner at once, because they are in wrong hands: the one with this access key,
/// or all of them, the further ones included. Nothing is made in their place, so this needs no
/// master key. An old key that is still valid in an overlap goes on in place of a current one that
/// ends, and then has no end. Returns `None` if the partner has no such valid key.
pub async fn end_keys(
    transaction: &mut Transaction<'_>,
    partner_id: PartnerId,
    leaked: Option<&str>,
) -> Result<Option<EndedKeys>> {
    let query = sqlx::query!(
        r#"SELECT CASE WHEN NOT starts_with(access_key, 'ended-') THEN access_key END AS current,
                  CASE WHEN old_keys_until > now() THEN old_access_key END AS old
           FROM partners WHERE partner_id = $1 AND erased_at IS NULL FOR NO KEY UPDATE"#,
        partner_id.uuid(),
    );
    let Some(keys) = query.fetch_optional(&mut **transaction).await? else {
        return Ok(None);
    };
    let is_leaked = |key: &String| leaked.is_none_or(|leaked| leaked == key);
    let valid = [&keys.current, &keys.old].into_iter().flatten();
    let (first, left): (Vec<&String>, Vec<&String>) = valid.partition(|key| is_leaked(key));
    let further = keys::end(transaction, partner_id, leaked).await?;
    // The current one, if both are left.
    let goes_on = left.into_iter().next().cloned();
    let is_first = !first.is_empty();
    let ended: Vec<String> = first.into_iter().cloned().chain(further).collect();
    if ended.is_empty() {
        return Ok(None);
    }
    if !is_first {
        return ended_of(transaction, partner_id, ended, goes_on).await;
    }
    let statement = sqlx::query!(
        "UPDATE partners
         SET access_key = coalesce($2, 'ended-' || gen_random_uuid()),
             secret_key = CASE $2 WHEN access_key THEN secret_key WHEN old_access_key THEN old_secret_key END,
             old_access_key = NULL, old_secret_key = NULL, old_keys_until = NULL
         WHERE partner_id = $1",
        partner_id.uuid(),
        goes_on,
    );
    statement.execute(&mut **transaction).await?;
    ended_of(transaction, partner_id, ended, goes_on).await
}

/// The keys that were ended. If none of the first ones goes on, a further one that may order does.
async fn ended_of(
    transaction: &mut Transaction<'_>,
    partner_id: PartnerId,
    ended: Vec<String>,
    first: Option<String>,
) -> Result<Option<EndedKeys>> {
    let further = keys::list(transaction, partner_id, None).await?;
    let orders = |key: &&keys::FurtherKey| {
        let mut rights = key.rights.iter();
        rights.any(|right| right == Right::Order.as_str())
    };
    let goes_on = first.or_else(|| Some(further.iter().find(orders)?.access_key.clone()));
    Ok(Some(EndedKeys {
        ended,
        goes_on,
        further: further.into_iter().map(|key| key.name).collect(),
    }))
}

/// Reads the credentials of the partners that match a condition.
macro_rules! credentials {
    ($connection:expr, $condition:literal, $argument:expr) => {
        sqlx::query!(
            r#"SELECT partner_id, environment, access_key, secret_key, old_access_key, old_secret_key,
                      -- A time that is not finite must not make the statement fail for all partners.
                      CASE WHEN old_keys_until > now()
                           THEN extract(epoch FROM least(old_keys_until, now() + interval '10 years') - now())::float8
                      END AS old_ends_in,
                      disabled_at IS NOT NULL AS "disabled!",
                      max_in_flight, requests_per_second, orders_per_second, units_per_second, signed_body_required,
                      price_list, version
               FROM partners WHERE "#
                + $condition,
            $argument
        )
        .fetch_all($connection)
        .await?
        .into_iter()
        .map(|row| {
            let new = PartnerKeys { access_key: row.access_key, secret_key: row.secret_key, ends_in: None };
            let old = row.old_access_key.zip(row.old_ends_in);
            let old = old.map(|(access_key, ends_in)| PartnerKeys {
                access_key,
                secret_key: row.old_secret_key,
                ends_in: Some(age(ends_in)),
            });
            PartnerCredentials {
                partner_id: row.partner_id.into(),
                environment: row.environment.parse().ok(),
                keys: std::iter::once(new).chain(old).collect(),
                further_keys: Vec::new(),
                ended_keys: Vec::new(),
                disabled: row.disabled,
                limits: PartnerLimits {
                    max_in_flight: row.max_in_flight.map(unsigned),
                    requests_per_second: row.requests_per_second.map(unsigned),
                    orders_per_second: row.orders_per_second.map(unsigned),
                    units_per_second: row.units_per_second.map(unsigned),
                },
                signed_body_required: row.signed_body_required,
                price_list: row.price_list,
                row_version: row.version,
            }
        })
    };
}

/// The credentials of partners that changed after this row version. Each change of a partner gets
/// the next one, as it does for [options](crate::options::changed_since).
pub async fn changed_since(
    connection: &mut PgConnection,
    row_version: i64,
) -> Result<Vec<PartnerCredentials>> {
    let changed = credentials!(&mut *connection, "version > $1", row_version).collect();
    with_other_keys(connection, changed).await
}

/// Adds the further and the ended keys of these partners, which are read by statements of their
/// own: a key that is made or ended between them raises the row version, so it is read again.
async fn with_other_keys(
    connection: &mut PgConnection,
    mut found: Vec<PartnerCredentials>,
) -> Result<Vec<PartnerCredentials>> {
    let ids: Vec<Uuid> = found.iter().map(|one| one.partner_id.uuid()).collect();
    let mut further = keys::credentials(&mut *connection, &ids).await?;
    let mut ended = keys::ended(connection, &ids).await?;
    for partner in &mut found {
        let keys = further.remove(&partner.partner_id.uuid());
        partner.further_keys = keys.unwrap_or_default();
        let ended = ended.remove(&partner.partner_id.uuid());
        partner.ended_keys = ended.unwrap_or_default();
    }
    Ok(found)
}

/// The credentials of the partner with this access key: the current one, an old one that is still
/// valid, or a further one.
pub async fn by_access_key(
    connection: &mut PgConnection,
    access_key: &str,
) -> Result<Option<PartnerCredentials>> {
    let found = credentials!(
        &mut *connection,
        "access_key = $1 OR (old_access_key = $1 AND old_keys_until > now())
         OR partner_id = (SELECT k.partner_id FROM partner_keys k WHERE k.access_key = $1)",
        access_key
    );
    Ok(with_other_keys(connection, found.collect()).await?.pop())
}

/// Checks that the master keys of a vault open the stored secrets, for the purposes that the vault
/// holds. For each key in use it tries the secrets of the ten newest partners. It is an error if a
/// key is missing, or if the keys open none of the secrets. If they open only some, the others are
/// damaged rows, which must not keep a service from starting.
pub async fn check_master_key(connection: &mut PgConnection, vault: &Vault) -> Result<()> {
    if vault.holds(Keyring::Partners) {
        let newest = newest_keys(connection).await?.into_iter();
        let opened = newest.map(|row| vault.open(row.purpose(), &row.sealed));
        some_opened(opened)?;
    }
    if vault.holds(Keyring::Webhooks) {
        endpoints::check_keys(connection, vault).await?;
    }
    if vault.holds(Keyring::Profiles) {
        crate::profile::check_keys(connection, vault).await?;
    }
    Ok(())
}

struct StoredKey {
    partner_id: Uuid,
    /// `None` for the first key of the partner.
    key_id: Option<Uuid>,
    sealed: Vec<u8>,
}

impl StoredKey {
    fn purpose(&self) -> Purpose<'static> {
        let partner_id = self.partner_id.into();
        match self.key_id {
            Some(key_id) => Purpose::FurtherKey(partner_id, key_id.into()),
            None => Purpose::SecretKey(partner_id),
        }
    }
}

/// For each master key in use, ten request-signing keys of the newest partners that have keys under
/// it; old ones are among them if they are still valid. A sealed value begins with the length and
/// the id of its key, so the statement can group by key without opening anything. The keys of one
/// partner may be under different master keys.
async fn newest_keys(connection: &mut PgConnection) -> Result<Vec<StoredKey>> {
    let query = sqlx::query_as!(
        StoredKey,
        r#"SELECT partner_id AS "partner_id!", key_id, sealed AS "sealed!" FROM (
             SELECT partner_id, key_id, sealed, row_number() OVER (
                        PARTITION BY substring(sealed FROM 1 FOR 1 + get_byte(sealed, 0)) ORDER BY created_at DESC
                    ) AS place
             FROM (
                 SELECT partner_id, NULL::uuid AS key_id, sealed, created_at FROM partners
                 CROSS JOIN LATERAL (VALUES (secret_key), (CASE WHEN old_keys_until > now() THEN old_secret_key END)
                 ) AS secret (sealed)
                 UNION ALL SELECT partner_id, key_id, secret_key, created_at FROM partner_keys
             ) AS every WHERE octet_length(sealed) > 0
         ) by_key WHERE place <= 10"#
    );
    Ok(query.fetch_all(connection).await?)
}

/// Opens a partner's sealed request-signing key.
pub fn open_secret_key(vault: &Vault, partner_id: PartnerId, sealed: &[u8]) -> Result<SecretKey> {
    let bytes = vault.open(Purpose::SecretKey(partner_id), sealed)?;
    SecretKey::from_bytes(bytes).map_err(|_| VaultError::Damaged.into())
}

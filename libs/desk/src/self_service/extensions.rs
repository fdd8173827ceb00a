//! What can be added to a partner's delivered eSIM, and the extensions that it orders.
//!
//! Ingress stores the question or the extension; a provisioner asks the provider
//! ([`store::esim_requests`]) or buys ([`store::extensions`]).
//!
//! Guarantees: an external id names one extension for ever, so that a repeat buys nothing. An eSIM
//! has at most one extension whose outcome is open, and none while it is being given back, because
//! what its provider shows afterwards must prove one change.

use std::time::Duration;

use accounts::{options, prices::currency};
use domain::{Amount, Environment, EsimChangeState, ExtensionId, OptionId, PartnerId, TopupId};
use pg::{Error, Result, Transaction, TransactionEnd, age, transaction};
use serde::Deserialize;
use sqlx::PgConnection;
use store::{
    Unflushed,
    esim_requests::EsimChangeReason,
    extensions::state_named,
    funds::{self, Funds},
    orders::LimitedKey,
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    account::{OfferedOption, facts},
    esims::{keep_order, wait_for_turn},
};

/// An extension as its partner sees it.
#[derive(Clone, Debug)]
pub struct PartnerExtension {
    pub extension_id: ExtensionId,
    pub topup_id: String,
    pub external_id: String,
    pub option_id: OptionId,
    pub state: EsimChangeState,
    pub asked_at: OffsetDateTime,
    pub ended_at: Option<OffsetDateTime>,
    pub reason: Option<EsimChangeReason>,
    /// What the provider said.
    pub message: Option<String>,
    /// Whether the provider has sold another eSIM instead, so that the topup has a new profile.
    pub has_new_profile: bool,
}

/// A row of an extension.
struct Row {
    extension_id: Uuid,
    topup_id: String,
    external_id: String,
    option_id: Uuid,
    state_name: String,
    asked_at: OffsetDateTime,
    ended_at: Option<OffsetDateTime>,
    reason: Option<String>,
    message: Option<String>,
    has_new_profile: bool,
}

impl TryFrom<Row> for PartnerExtension {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        Ok(Self {
            extension_id: row.extension_id.into(),
            topup_id: row.topup_id,
            external_id: row.external_id,
            option_id: row.option_id.into(),
            state: state_named(&row.state_name)?,
            asked_at: row.asked_at,
            ended_at: row.ended_at,
            reason: row.reason.and_then(|name| name.parse().ok()),
            message: row.message,
            has_new_profile: row.has_new_profile,
        })
    }
}

/// The extensions of one of the partner's units, the oldest first.
pub async fn extensions(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
) -> Result<Unflushed<Vec<PartnerExtension>>> {
    let query = sqlx::query_as!(
        Row,
        "SELECT extension_id, topup_id, external_id, option_id, state AS state_name, asked_at, ended_at, reason, message, has_new_profile
         FROM extensions WHERE topup_id = $2 AND partner_id = $1 ORDER BY asked_at, extension_id",
        partner_id.uuid(),
        topup_id.as_str(),
    );
    let found = query.fetch_all(connection).await?.into_iter();
    let found: Result<Vec<PartnerExtension>> = found.map(TryInto::try_into).collect();
    Ok(Unflushed::of(found?))
}

/// The partner's extension of this external id.
async fn named(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    external_id: &str,
) -> Result<Option<PartnerExtension>> {
    let query = sqlx::query_as!(
        Row,
        "SELECT extension_id, topup_id, external_id, option_id, state AS state_name, asked_at, ended_at, reason, message, has_new_profile
         FROM extensions WHERE partner_id = $1 AND external_id = $2",
        partner_id.uuid(),
        external_id,
    );
    let found = query.fetch_optional(connection).await?;
    found.map(TryInto::try_into).transpose()
}

/// Which options may extend an eSIM of a partner.
#[derive(Clone, Copy, Debug)]
pub struct ExtensionScope<'a> {
    pub environment: Environment,
    /// The connected providers.
    pub providers: &'a [String],
    /// The price list of the partner, if it has one: only what that has now can be added.
    pub price_list: Option<&'a str>,
}

/// What can be added to an eSIM, as its provider said it last.
#[derive(Clone, Debug)]
pub struct Offers {
    /// Whether the question waits for an answer.
    pub open: bool,
    /// When the provider said it, and how long ago; `None` if it never has.
    pub said: Option<(OffsetDateTime, Duration)>,
    /// The options of our catalogue that it names. One that we do not sell is left out.
    pub options: Vec<OfferedOption>,
}

/// A package of an answer that is stored as `esim_requests.offers`.
#[derive(Deserialize)]
struct StoredOffer {
    provider_option_id: String,
}

/// Reads what can be added to one of the partner's units.
pub async fn offers(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
    scope: ExtensionScope<'_>,
) -> Result<Unflushed<Offers>> {
    let query = sqlx::query!(
        r#"SELECT r.offers_asked_at IS NOT NULL AS "open!", r.offers::text AS offers, r.offers_at,
                  extract(epoch FROM now() - r.offers_at)::float8 AS age
           FROM esim_requests r WHERE r.topup_id = $2 AND r.partner_id = $1"#,
        partner_id.uuid(),
        topup_id.as_str(),
    );
    let Some(row) = query.fetch_optional(&mut *connection).await? else {
        let options = Vec::new();
        return Ok(Unflushed::of(Offers {
            open: false,
            said: None,
            options,
        }));
    };
    let said = row
        .offers_at
        .map(|at| (at, age(row.age.unwrap_or_default())));
    let listed: Option<Vec<StoredOffer>> = match &row.offers {
        Some(text) => serde_json::from_str(text)
            .map_err(|error| Error::Unreadable(format!("what can be added to an eSIM: {error}")))?,
        None => Some(Vec::new()),
    };
    let listed = listed.map(|offers| -> Vec<String> {
        let ids = offers.into_iter();
        ids.map(|offer| offer.provider_option_id).collect()
    });
    let options = match listed {
        Some(listed) if listed.is_empty() => Vec::new(),
        listed => sellable(connection, topup_id, scope, listed.as_deref()).await?,
    };
    Ok(Unflushed::of(Offers {
        open: row.open,
        said,
        options,
    }))
}

/// The options of our catalogue that lead to the provider of an eSIM, of which only those whose
/// packages are `listed`; `None` if the provider has no such list. The caller has checked that the
/// eSIM is one of the partner.
async fn sellable(
    connection: &mut PgConnection,
    topup_id: &TopupId,
    scope: ExtensionScope<'_>,
    listed: Option<&[String]>,
) -> Result<Vec<OfferedOption>> {
    let rows = sqlx::query!(
        r#"SELECT o.option_id, o.name, o.details::text AS "details!", o.countries, o.data_mb, o.unlimited, o.days,
                  o.facts::text AS facts, o.told::text AS told, greatest(o.updated_at, price.valid_from) AS "updated_at!",
                  price.amount AS "price?", price.currency AS "currency?"
           FROM esims e
           JOIN options o ON o.enabled AND ($2 OR (o.environment = 'live' AND e.provider = ANY ($3)))
           LEFT JOIN LATERAL price_in($5, o.option_id) price ON true
           WHERE e.topup_id = $1 AND ($5::text IS NULL OR price.amount IS NOT NULL)
             AND ($4::text[] IS NULL OR option_at(o, e.provider) = ANY ($4)
                  -- The id of ours may name the most that we pay.
                  OR regexp_replace(option_at(o, e.provider), '@[^@]*$', '') = ANY ($4))
             AND option_at(o, e.provider) IS NOT NULL
           ORDER BY o.option_id LIMIT 100"#,
        topup_id.as_str(),
        scope.environment == Environment::Sandbox,
        scope.providers,
        listed,
        scope.price_list,
    );
    let rows = rows.fetch_all(connection).await?.into_iter();
    let offered = rows.map(|row| OfferedOption {
        option_id: row.option_id.into(),
        name: row.name,
        details: options::details(&row.details).unwrap_or_default(),
        countries: row.countries,
        data_mb: row.data_mb,
        unlimited: row.unlimited,
        days: row.days,
        facts: facts(row.told.as_deref(), row.facts.as_deref()),
        updated_at: row.updated_at,
        price: row.price,
        currency: row.currency,
    });
    Ok(offered.collect())
}

/// Asks what can be added to a ready unit of the partner. An open question stays as it is.
pub async fn ask_offers(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
) -> Result<()> {
    transaction!(connection, "extensions::ask_offers", |transaction| {
        keep_order(transaction, topup_id).await?;
        let statement = sqlx::query!(
            "INSERT INTO esim_requests AS r (topup_id, partner_id, provider, offers_asked_at)
             SELECT u.topup_id, u.partner_id, e.provider, now()
             FROM partner_units u JOIN esims e ON e.topup_id = u.topup_id
             WHERE u.topup_id = $2 AND u.partner_id = $1 AND u.ready_at IS NOT NULL AND u.erased_at IS NULL
             ON CONFLICT (topup_id) DO UPDATE SET offers_asked_at = now() WHERE r.offers_asked_at IS NULL",
            partner_id.uuid(),
            topup_id.as_str(),
        );
        statement.execute(&mut **transaction).await?;
        // Ingress does not see work of this kind, and a conflict target would read it.
        let statement = sqlx::query!(
            "INSERT INTO work (id, kind, provider, lane, partner_id, at)
             SELECT derived_id('offers', r.topup_id), 'usage', r.provider, r.topup_id, r.partner_id, now()
             FROM esim_requests r
             WHERE r.topup_id = $2 AND r.partner_id = $1 AND r.offers_asked_at IS NOT NULL
             ON CONFLICT DO NOTHING",
            partner_id.uuid(),
            topup_id.as_str(),
        );
        statement.execute(&mut **transaction).await?;
        Ok(TransactionEnd::Commit(()))
    })
}

/// An extension that a partner orders.
#[derive(Clone, Copy, Debug)]
pub struct NewExtension<'a> {
    pub topup_id: &'a TopupId,
    pub external_id: &'a str,
    pub option_id: OptionId,
    pub scope: ExtensionScope<'a>,
    /// The key that signed it, if that may order only so many units a day.
    pub limited_key: Option<LimitedKey>,
}

/// What became of an order of an extension.
#[derive(Clone, Debug)]
pub enum ExtensionOrdered {
    /// It is stored, now or, if it is a repeat, before.
    Stored(PartnerExtension),
    /// The external id names another extension.
    Differs,
    /// Another extension of the eSIM is open, which has this external id.
    Busy(String),
    /// The eSIM is being given back.
    GivingBack,
    /// No option of this id leads to the provider of the eSIM.
    NotOffered,
    /// The key has ordered its units of the day.
    OverLimit,
    /// It costs more than is available in the partner's account.
    BalanceInsufficient { required: Amount, available: Amount },
    /// The eSIM is not ready, erased or given back.
    NotReady,
}

/// Orders an extension of a unit of the partner, unless its external id is taken.
pub async fn order(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    new: NewExtension<'_>,
) -> Result<ExtensionOrdered> {
    transaction!(connection, "extensions::order", |transaction| {
        keep_order(transaction, new.topup_id).await?;
        // Two requests of one external id, or of one eSIM, wait here for each other.
        let id = format!("extension {partner_id} {}", new.external_id);
        wait_for_turn(transaction, &id).await?;
        wait_for_turn(transaction, new.topup_id.as_str()).await?;
        let id = match refused(transaction, partner_id, new).await? {
            Some(refused) => return Ok(TransactionEnd::Rollback(refused)),
            None => ExtensionId::new(),
        };
        let mut price = None;
        if let Some(price_list) = new.scope.price_list {
            let asked = price_of(transaction, price_list, new.option_id).await?;
            let Some(asked) = asked else {
                return Ok(TransactionEnd::Rollback(ExtensionOrdered::NotOffered));
            };
            let funds = Funds::lock(transaction, &[partner_id.uuid()]).await?;
            if let Some(available) = funds.shortage(partner_id, asked) {
                return Ok(TransactionEnd::Rollback(
                    ExtensionOrdered::BalanceInsufficient {
                        required: asked,
                        available,
                    },
                ));
            }
            funds::hold(transaction, std::iter::once((partner_id, asked))).await?;
            price = Some(asked);
        }
        let statement = sqlx::query!(
            "INSERT INTO extensions (extension_id, partner_id, topup_id, provider, external_id, option_id, provider_option_id,
                                     price, currency)
             SELECT $1, $2, e.topup_id, e.provider, $4, o.option_id, option_at(o, e.provider), $8, $9
             FROM esims e JOIN options o ON o.option_id = $5
             WHERE e.topup_id = $3 AND o.enabled AND ($6 OR (o.environment = 'live' AND e.provider = ANY ($7)))
               AND option_at(o, e.provider) IS NOT NULL",
            id.uuid(),
            partner_id.uuid(),
            new.topup_id.as_str(),
            new.external_id,
            new.option_id.uuid(),
            new.scope.environment == Environment::Sandbox,
            new.scope.providers,
            price.map(|price| price.minor),
            price.map(|price| price.currency.to_string()),
        );
        if statement.execute(&mut **transaction).await?.rows_affected() == 0 {
            return Ok(TransactionEnd::Rollback(ExtensionOrdered::NotOffered));
        }
        let statement = sqlx::query!(
            "INSERT INTO work (id, kind, provider, lane, partner_id, at)
             SELECT derived_id('extend', topup_id), 'extend', provider, topup_id, partner_id, now()
             FROM extensions WHERE extension_id = $1
             ON CONFLICT DO NOTHING",
            id.uuid(),
        );
        statement.execute(&mut **transaction).await?;
        let stored = named(transaction, partner_id, new.external_id).await?;
        let missing = || Error::Unreadable("the extension that was just stored".into());
        Ok(TransactionEnd::Commit(ExtensionOrdered::Stored(
            stored.ok_or_else(missing)?,
        )))
    })
}

/// What an option costs now in a price list; `None` if the list does not have it.
async fn price_of(
    transaction: &mut Transaction<'_>,
    price_list: &str,
    option_id: OptionId,
) -> Result<Option<Amount>> {
    let query = sqlx::query!(
        r#"SELECT amount, currency AS "currency!" FROM price_in($1, $2)"#,
        price_list,
        option_id.uuid(),
    );
    let Some(row) = query.fetch_optional(&mut **transaction).await? else {
        return Ok(None);
    };
    let currency = currency(&row.currency)?;
    Ok(row.amount.map(|minor| Amount { minor, currency }))
}

/// Why an extension is not stored anew, under the locks of [`order`]; `None` if it may be.
async fn refused(
    transaction: &mut Transaction<'_>,
    partner_id: PartnerId,
    new: NewExtension<'_>,
) -> Result<Option<ExtensionOrdered>> {
    if let Some(known) = named(transaction, partner_id, new.external_id).await? {
        let is_same = known.topup_id == new.topup_id.as_str() && known.option_id == new.option_id;
        return Ok(Some(if is_same {
            ExtensionOrdered::Stored(known)
        } else {
            ExtensionOrdered::Differs
        }));
    }
    let query = sqlx::query!(
        r#"SELECT u.ready_at IS NOT NULL AND u.erased_at IS NULL AND u.returned_at IS NULL AS "ready!",
                  coalesce(r.give_back IN ('asked', 'sending', 'claimed', 'parked', 'returned'), false) AS "giving_back!",
                  (SELECT x.external_id FROM extensions x
                   WHERE x.topup_id = u.topup_id AND x.state IN ('asked', 'sending', 'parked')) AS open
           FROM partner_units u LEFT JOIN esim_requests r ON r.topup_id = u.topup_id
           WHERE u.topup_id = $2 AND u.partner_id = $1"#,
        partner_id.uuid(),
        new.topup_id.as_str(),
    );
    let Some(unit) = query.fetch_optional(&mut **transaction).await? else {
        return Ok(Some(ExtensionOrdered::NotReady));
    };
    if !unit.ready {
        return Ok(Some(ExtensionOrdered::NotReady));
    }
    if unit.giving_back {
        return Ok(Some(ExtensionOrdered::GivingBack));
    }
    if let Some(open) = unit.open {
        return Ok(Some(ExtensionOrdered::Busy(open)));
    }
    let Some(key) = new.limited_key else {
        return Ok(None);
    };
    let counted = sqlx::query_scalar!(
        r#"INSERT INTO partner_key_uses AS u (key_id, day, units)
           VALUES ($1, date_trunc('day', now(), 'UTC'), 1)
           ON CONFLICT (key_id) DO UPDATE
           SET day = greatest(u.day, excluded.day), units = CASE WHEN u.day >= excluded.day THEN u.units ELSE 0 END + 1
           RETURNING units"#,
        key.key_id.uuid(),
    );
    let units = counted.fetch_one(&mut **transaction).await?;
    Ok((units > i64::from(key.units_per_day)).then_some(ExtensionOrdered::OverLimit))
}

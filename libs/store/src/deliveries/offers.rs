//! Tells partners when the options change that they may order (the event `options.changed`).
//!
//! An endpoint that asks for it keeps what its partner was offered when it was looked at last. A
//! look compares that with what is offered now, and the difference is told in one event, which
//! commits together with the new state. So it makes no difference what has changed an option: a
//! file, a price list that was assigned, or a price that begins to be valid.
//!
//! Guarantee: whoever asks for it is told each difference once, however many processes look, and
//! nobody is told what was so when it began to ask. Offered is what is enabled and has a price if
//! the partner has a price list; which providers are connected knows only ingress.
//!
//! The notifier calls [`tell_changes`] regularly. The versions of the catalogue and of the price
//! list say whether anything can have changed, so a look without a change reads no option.

use std::collections::BTreeMap;

use domain::{Amount, DeliveryId, Environment, OptionId};
use pg::{Result, TransactionEnd, transaction};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use uuid::Uuid;

/// How many options a list of an event names at most.
const MOST_NAMED: usize = 100;

/// What an `options.changed` says: at most [`MOST_NAMED`] options in each list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OptionsChangedContent {
    pub added: Vec<OptionId>,
    pub removed: Vec<OptionId>,
    /// They have another name or description.
    pub changed: Vec<OptionId>,
    pub repriced: Vec<OptionId>,
    /// How many options are different.
    pub total: usize,
}

/// An option as a partner is offered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Offer {
    /// A digest of its name and description.
    digest: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    price: Option<Amount>,
}

type Offers = BTreeMap<OptionId, Offer>;

/// What is different; `None` if nothing is.
fn difference(before: &Offers, now: &Offers) -> Option<OptionsChangedContent> {
    let mut found = OptionsChangedContent::default();
    let name = |list: &mut Vec<OptionId>, option: &OptionId| {
        if list.len() < MOST_NAMED {
            list.push(*option);
        }
    };
    for (option, offer) in now {
        let Some(was) = before.get(option) else {
            name(&mut found.added, option);
            found.total += 1;
            continue;
        };
        if was.digest != offer.digest {
            name(&mut found.changed, option);
        }
        if was.price != offer.price {
            name(&mut found.repriced, option);
        }
        found.total += usize::from(was != offer);
    }
    for option in before.keys().filter(|option| !now.contains_key(option)) {
        name(&mut found.removed, option);
        found.total += 1;
    }
    (found.total > 0).then_some(found)
}

/// Tells each endpoint that asks for it what its partner may order now and could not before, or the
/// other way round. Returns the number of new events.
pub async fn tell_changes(connection: &mut PgConnection) -> Result<u64> {
    // What was offered to whoever no longer asks is forgotten.
    let forgotten = sqlx::query!(
        "UPDATE partner_endpoints SET offered = NULL, offered_by = NULL
         WHERE offered_by IS NOT NULL AND 'options.changed' <> ALL (events)"
    );
    forgotten.execute(&mut *connection).await?;
    let behind = sqlx::query_scalar!(
        "SELECT e.endpoint_id FROM partner_endpoints e JOIN partners p ON p.partner_id = e.partner_id
         WHERE 'options.changed' = ANY (e.events) AND p.disabled_at IS NULL
           AND e.offered_by IS DISTINCT FROM offered_by(p.price_list)
         ORDER BY e.endpoint_id"
    );
    let mut told = 0;
    for endpoint in behind.fetch_all(&mut *connection).await? {
        told += u64::from(tell(connection, endpoint).await?);
    }
    Ok(told)
}

/// Compares what the partner of an endpoint is offered with what it was offered, and makes the
/// event. Returns whether there is one.
async fn tell(connection: &mut PgConnection, endpoint: Uuid) -> Result<bool> {
    transaction!(connection, "offers::tell", |transaction| {
        // Of two processes the second one waits here, and then finds nothing that is behind. The
        // versions are read before the options, so what changes in between is found by the next
        // look.
        let query = sqlx::query!(
            r#"SELECT e.partner_id, p.environment, p.price_list, e.offered::text AS offered,
                      offered_by(p.price_list) AS "offered_by!"
               FROM partner_endpoints e JOIN partners p ON p.partner_id = e.partner_id
               WHERE e.endpoint_id = $1 AND 'options.changed' = ANY (e.events)
                 AND e.offered_by IS DISTINCT FROM offered_by(p.price_list)
               FOR NO KEY UPDATE OF e"#,
            endpoint,
        );
        let Some(of) = query.fetch_optional(&mut **transaction).await? else {
            return Ok(TransactionEnd::Rollback(false));
        };
        let query = sqlx::query!(
            r#"SELECT o.option_id, md5(ROW(o.name, o.details, o.countries, o.data_mb, o.unlimited, o.days, o.told, o.facts)::text) AS "digest!",
                      price.amount AS "price?", price.currency AS "currency?"
               FROM options o LEFT JOIN LATERAL price_in($1, o.option_id) price ON true
               WHERE o.enabled AND ($1::text IS NULL OR price.amount IS NOT NULL) AND ($2 OR o.environment = 'live')"#,
            of.price_list,
            of.environment == Environment::Sandbox.as_str(),
        );
        let mut now = Offers::new();
        for row in query.fetch_all(&mut **transaction).await? {
            let price = match row.price.zip(row.currency) {
                Some((minor, code)) => Some(Amount {
                    minor,
                    currency: accounts::prices::currency(&code)?,
                }),
                None => None,
            };
            let digest = row.digest;
            now.insert(row.option_id.into(), Offer { digest, price });
        }
        // What cannot be read counts as never offered: then nothing is told, and the next change
        // is.
        let before: Option<Offers> = of
            .offered
            .and_then(|offered| serde_json::from_str(&offered).ok());
        let content = before.and_then(|before| difference(&before, &now));
        let statement = sqlx::query!(
            "UPDATE partner_endpoints SET offered = $2::text::jsonb, offered_by = $3 WHERE endpoint_id = $1",
            endpoint,
            serde_json::to_string(&now).unwrap_or_default(),
            of.offered_by,
        );
        statement.execute(&mut **transaction).await?;
        let Some(content) = content else {
            return Ok(TransactionEnd::Commit(false));
        };
        let statement = sqlx::query!(
            "WITH created AS (
                 INSERT INTO deliveries (delivery_id, partner_id, kind, endpoint_id, notice)
                 VALUES ($1, $2, 'options.changed', nullif($3::uuid, $2), $4::text::jsonb)
             )
             INSERT INTO work (id, kind, provider, lane, partner_id, at)
             VALUES ($1, 'deliver', '', coalesce(nullif($3::uuid, $2)::text, ''), $2, now())",
            DeliveryId::new().uuid(),
            of.partner_id,
            endpoint,
            serde_json::to_string(&content).unwrap_or_default(),
        );
        statement.execute(&mut **transaction).await?;
        Ok(TransactionEnd::Commit(true))
    })
}

#[cfg(test)]
mod tests {
    use domain::product::Currency;

    use super::*;

    #[test]
    fn a_difference_names_each_option_and_has_an_end() {
        let id = |number: u128| OptionId::from(Uuid::from_u128(number));
        let offer = |digest: &str, minor: Option<i64>| Offer {
            digest: digest.to_owned(),
            price: minor.map(|minor| Amount {
                minor,
                currency: Currency::of_money("EUR").unwrap(),
            }),
        };
        let before = Offers::from([
            (id(1), offer("a", Some(1))),
            (id(2), offer("a", Some(1))),
            (id(3), offer("a", Some(1))),
            (id(4), offer("a", Some(1))),
        ]);
        assert_eq!(difference(&before, &before), None);
        let now = Offers::from([
            (id(1), offer("b", Some(2))),
            (id(2), offer("a", Some(2))),
            (id(3), offer("a", Some(1))),
            (id(5), offer("a", None)),
        ]);
        let expected = OptionsChangedContent {
            added: vec![id(5)],
            removed: vec![id(4)],
            changed: vec![id(1)],
            repriced: vec![id(1), id(2)],
            total: 4,
        };
        assert_eq!(difference(&before, &now), Some(expected));
        let many = (0..1000).map(|number| (id(number), offer("a", None)));
        let found = difference(&Offers::new(), &many.collect()).unwrap();
        assert_eq!((found.added.len(), found.total), (MOST_NAMED, 1000));
        // It is stored as it is read.
        let text = serde_json::to_string(&before).unwrap();
        assert_eq!(serde_json::from_str::<Offers>(&text).unwrap(), before);
    }
}

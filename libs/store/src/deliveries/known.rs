//! The lean claim of fresh deliveries: it reads the delivery and its eSIM, and takes the endpoint
//! from what an earlier [claim](super::claim()) has read.
//!
//! It exists because nearly every webhook goes to an endpoint that this notifier has just used, and
//! because each table that a statement opens costs as much as its rows.
//!
//! Guarantee: no webhook goes to a URL that had changed, or is signed with a secret that had been
//! replaced, when the statement began, and none to an endpoint that was blocked or paused then.
//! Each such change raises the version of the configuration (`system.version`) in its own
//! transaction, by the triggers in `libs/pg/schema.sql` that call `configuration_changed` at its
//! commit; they name the columns that count. The statement compares that version in its own
//! snapshot with the one in which the endpoints were read, and returns nothing if they differ. The
//! endpoint is that of the partner in the delivery's row, so no message can choose it.

use std::{sync::Arc, time::Duration};

use domain::{DeliveryId, EndpointId, EndpointKey, PartnerId, StoredAgreed};
use pg::{Result, age, seconds, unsigned, uuids};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::claim::{ClaimedDelivery, DeliveryContent, DeliveryTarget, EsimContent};

struct Row {
    delivery_id: Uuid,
    partner_id: Uuid,
    schedule_start: i32,
    topup_id: String,
    order_id: Uuid,
    external_order_id: String,
    option_id: Uuid,
    terms: Option<String>,
    traceparent: Option<String>,
    age: f64,
    iccid: String,
    profile: Vec<u8>,
    ready_age: f64,
    now: OffsetDateTime,
}

/// Claims first attempts of ready units that are `younger_than` this, as [`claim`](super::claim())
/// does [fresh ones](super::DeliveryClaim::Fresh), if `known` knows the first endpoint of the
/// partner at this configuration version and at the time of the statement, which is that of the
/// database: a clock of this process may stand still while its machine is suspended. The other
/// deliveries are not returned, and neither are those that any other condition concerns; `claim`
/// decides about them.
pub async fn claim_known(
    connection: &mut PgConnection,
    ids: &[DeliveryId],
    younger_than: Duration,
    configuration_version: i64,
    known: impl Fn(EndpointId, OffsetDateTime) -> Option<Arc<DeliveryTarget>>,
) -> Result<Vec<ClaimedDelivery>> {
    let rows = sqlx::query_as!(
        Row,
        r#"SELECT d.delivery_id, d.partner_id, d.schedule_start, d.topup_id AS "topup_id!", d.order_id AS "order_id!",
                  d.external_order_id AS "external_order_id!", d.option_id AS "option_id!", d.terms, d.traceparent,
                  extract(epoch FROM now() - d.ordered_at)::float8 AS "age!", e.iccid AS "iccid!",
                  e.profile AS "profile!", extract(epoch FROM now() - e.ready_at)::float8 AS "ready_age!",
                  now() AS "now!"
           FROM deliveries d
           JOIN esims e ON e.topup_id = d.topup_id
           WHERE d.delivery_id = ANY ($1)
             AND (SELECT version FROM system) = $2
             AND d.state = 'pending' AND d.kind = 'topup.ready' AND d.endpoint_id IS NULL AND d.attempt = 0
             AND d.created_at > now() - make_interval(secs => $3)
             -- What an operator has entered lacks these, and an erased profile is missing.
             AND d.order_id IS NOT NULL AND d.option_id IS NOT NULL AND d.external_order_id IS NOT NULL
             AND d.ordered_at IS NOT NULL AND e.ready_at IS NOT NULL AND e.iccid IS NOT NULL
             AND e.profile IS NOT NULL"#,
        &uuids(ids),
        configuration_version,
        seconds(younger_than),
    );
    let rows = rows.fetch_all(connection).await?.into_iter();
    let deliveries = rows.filter_map(|row| {
        let endpoint = EndpointKey::first(row.partner_id.into());
        let target = known(endpoint.id, row.now)?;
        row.into_delivery(endpoint, target)
    });
    Ok(deliveries.collect())
}

impl Row {
    fn into_delivery(
        self,
        endpoint: EndpointKey,
        target: Arc<DeliveryTarget>,
    ) -> Option<ClaimedDelivery> {
        let agreed = StoredAgreed {
            option_id: self.option_id.into(),
            terms: self.terms,
        };
        Some(ClaimedDelivery {
            id: self.delivery_id.into(),
            partner_id: PartnerId::from(self.partner_id),
            endpoint,
            leased: false,
            target,
            ended_attempts: 0,
            schedule_start: unsigned(self.schedule_start),
            content: DeliveryContent::Esim(EsimContent {
                topup_id: self.topup_id.parse().ok()?,
                order_id: self.order_id.into(),
                external_order_id: self.external_order_id,
                agreed: agreed.read().ok()?,
                iccid: self.iccid,
                profile: self.profile,
                erased: false,
                age: age(self.age),
                ready_age: age(self.ready_age),
                traceparent: self.traceparent,
            }),
        })
    }
}

//! A partner's view of its own account, orders and deliveries. Every statement names the partner, so
//! another partner's ids look like ids that do not exist.
//!
//! The self-service handlers of ingress call these functions. Each change commits with its record, as
//! the changes of operators do. Types with a schema are answers of the API: partners read their comments.

mod account;
mod deliveries;
mod orders;
mod webhooks;

use domain::PartnerId;
use sqlx::PgConnection;

pub use self::{
    account::{Account, OfferedOption, account, options, rotate},
    deliveries::{Delivery, Redelivered, attempts, delivery, redeliver},
    orders::{OrderHead, OrderPage, OrderState, Unit, UnitState, Units, count, order, orders, unit, units},
    webhooks::{Endpoint, Position, StoredWebhook, endpoint, set_webhook, webhook_secrets, webhook_url, webhooks},
};
pub use crate::operator::deliveries::AttemptView as Attempt;
use crate::{
    Result,
    operator::actions::{self, Action},
};

/// The name under which a partner's own changes are recorded.
pub(crate) const PARTNER: &str = "partner";
/// The recorded reason of a partner's own changes.
pub(crate) const REASON: &str = "requested by the partner";

/// Records a change of the partner's own account in the transaction of the change.
async fn record_change(connection: &mut PgConnection, command: &'static str, partner_id: PartnerId) -> Result<()> {
    let action = Action { operator: PARTNER, command, target: &format!("partner {partner_id}"), reason: REASON };
    Ok(actions::record(connection, action, 1).await?)
}

//! Pauses and resumes endpoints, as operators do, and records it. The rules are those of
//! [`crate::deliveries::endpoints`].

use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::actions::{self, Action, Changed};
use crate::{
    Result,
    deliveries::endpoints::{self, EndpointKey},
};

/// The state of an endpoint, as [`endpoints::list`] names it.
async fn state(connection: &mut PgConnection, endpoint: EndpointKey) -> Result<Option<String>> {
    let all = endpoints::list(connection, Some(endpoint.partner_id)).await?;
    let one = all
        .into_iter()
        .find(|one| one.endpoint_id == endpoint.id.uuid());
    Ok(one.map(|one| one.state))
}

/// Sends nothing to an endpoint until it is resumed.
pub async fn pause(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    action: Action<'_>,
) -> Result<()> {
    let mut transaction = connection.begin().await?;
    let before = state(&mut transaction, endpoint).await?;
    endpoints::pause(&mut transaction, endpoint.id).await?;
    let changed = Changed::between(json!({ "state": before }), json!({ "state": "paused" }));
    Ok(actions::commit(transaction, action, 1, changed).await?)
}

/// Ends a pause or a block. Returns how many deliveries are due now because of it.
pub async fn resume(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    action: Action<'_>,
) -> Result<u64> {
    let mut transaction = connection.begin().await?;
    let before = state(&mut transaction, endpoint).await?;
    let due = endpoints::resume(&mut transaction, endpoint).await?;
    let changed = Changed::between(
        json!({ "state": before }),
        json!({ "state": "open", "deliveries_due": due }),
    );
    let affected = i64::try_from(due).unwrap_or(i64::MAX);
    actions::commit(transaction, action, affected, changed).await?;
    Ok(due)
}

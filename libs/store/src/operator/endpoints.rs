//! Pauses and resumes endpoints, as operators do, and records it. The rules are those of
//! [`crate::deliveries::endpoints`].

use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::actions::{self, Action, Changed};
use crate::{
    Error, Result,
    deliveries::endpoints::{self, EndpointKey},
};

/// Why an endpoint stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum NotChanged {
    #[error("there is no such endpoint")]
    Unknown,
    #[error("the endpoint was {seen} when the page was shown, and is {now} now")]
    Changed { seen: String, now: String },
    #[error(transparent)]
    Store(#[from] Error),
}

/// The state of an endpoint before a change. If its operator has `seen` a state, another one is a
/// conflict. The row is locked first, so that the state holds until the change is committed. An
/// endpoint that has never failed has no row; should it begin to fail in this moment, then its first
/// failures are not noticed, which does no harm.
async fn before(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    seen: Option<&str>,
) -> Result<String, NotChanged> {
    let statement = sqlx::query!(
        "SELECT partner_id FROM endpoints WHERE partner_id = $1 FOR UPDATE",
        endpoint.id.uuid(),
    );
    statement.fetch_optional(&mut *connection).await?;
    let now = state(connection, endpoint).await?;
    let now = now.ok_or(NotChanged::Unknown)?;
    match seen {
        Some(seen) if seen != now => Err(NotChanged::Changed {
            seen: seen.to_owned(),
            now,
        }),
        _ => Ok(now),
    }
}

/// The state of an endpoint, as [`endpoints::list`] names it.
async fn state(connection: &mut PgConnection, endpoint: EndpointKey) -> Result<Option<String>> {
    let all = endpoints::list(connection, Some(endpoint.partner_id)).await?;
    let one = all
        .into_iter()
        .find(|one| one.endpoint_id == endpoint.id.uuid());
    Ok(one.map(|one| one.state))
}

/// Sends nothing to an endpoint until it is resumed. `seen` is the state that the operator has looked
/// at: if there is one, an endpoint that has changed since stays as it is.
pub async fn pause(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    seen: Option<&str>,
    action: Action<'_>,
) -> Result<(), NotChanged> {
    let mut transaction = connection.begin().await?;
    let before = before(&mut transaction, endpoint, seen).await?;
    endpoints::pause(&mut transaction, endpoint.id).await?;
    let changed = Changed::between(json!({ "state": before }), json!({ "state": "paused" }));
    Ok(actions::commit(transaction, action, 1, changed).await?)
}

/// Ends a pause or a block; `seen` as for [`pause`]. Returns how many deliveries are due now because
/// of it.
pub async fn resume(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    seen: Option<&str>,
    action: Action<'_>,
) -> Result<u64, NotChanged> {
    let mut transaction = connection.begin().await?;
    let before = before(&mut transaction, endpoint, seen).await?;
    let due = endpoints::resume(&mut transaction, endpoint).await?;
    let changed = Changed::between(
        json!({ "state": before }),
        json!({ "state": "open", "deliveries_due": due }),
    );
    let affected = i64::try_from(due).unwrap_or(i64::MAX);
    actions::commit(transaction, action, affected, changed).await?;
    Ok(due)
}

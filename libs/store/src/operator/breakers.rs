//! Opens and closes the breakers of providers, as operators do, and records it.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use super::actions::{self, Action, Changed, Mode};
use crate::{
    Result,
    providers::{self, ProviderBreaker},
};

fn shown(breaker: &ProviderBreaker) -> Value {
    json!({ "state": breaker.state.as_str(), "reason": breaker.reason })
}

async fn state(connection: &mut PgConnection, name: &str) -> Result<Option<Value>> {
    let all = providers::list(connection).await?;
    Ok(all.iter().find(|one| one.name == name).map(shown))
}

/// Opens a breaker for a time; `None` if there is no such provider. See [`providers::open`].
pub async fn open(
    connection: &mut PgConnection,
    name: &str,
    duration: Duration,
    action: Action<'_>,
) -> Result<Option<ProviderBreaker>> {
    let mut transaction = connection.begin().await?;
    let before = state(&mut transaction, name).await?;
    let Some(breaker) = providers::open(&mut transaction, name, duration, action.reason).await?
    else {
        return Ok(None);
    };
    let after = shown(&breaker);
    let changed = Changed {
        before: before.as_ref(),
        after: Some(&after),
    };
    actions::finish_with(transaction, Mode::Apply(action), 1, changed).await?;
    Ok(Some(breaker))
}

/// What became of closing a breaker.
pub enum Closing {
    Closed(ProviderBreaker),
    /// It has changed since the operator looked at it, so nothing was done.
    Changed,
    /// There is no such provider.
    Unknown,
}

/// Closes a breaker. `seen` is the version that the operator has looked at, if that is known. See
/// [`providers::close`].
pub async fn close(
    connection: &mut PgConnection,
    name: &str,
    seen: Option<i64>,
    action: Action<'_>,
) -> Result<Closing> {
    let mut transaction = connection.begin().await?;
    let before = state(&mut transaction, name).await?;
    let Some(breaker) = providers::close(&mut transaction, name).await? else {
        return Ok(Closing::Unknown);
    };
    // The update has counted on from the version that it found.
    if seen.is_some_and(|seen| breaker.version != seen + 1) {
        transaction.rollback().await?;
        return Ok(Closing::Changed);
    }
    let after = shown(&breaker);
    let changed = Changed {
        before: before.as_ref(),
        after: Some(&after),
    };
    actions::finish_with(transaction, Mode::Apply(action), 1, changed).await?;
    Ok(Closing::Closed(breaker))
}

//! The record of what operators have changed, and why. Changes that partners make themselves are
//! recorded here, too, with `partner` as the operator.

use sqlx::{PgConnection, Postgres, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::Result;

/// A command that changes something, as it is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Action<'a> {
    pub operator: &'a str,
    /// The command with its subcommand and flags, such as `placement resolve --retry`.
    pub command: &'a str,
    /// What the command named, such as `placement 0199…`.
    pub target: &'a str,
    pub reason: &'a str,
}

/// Whether a command previews its change or commits it.
#[derive(Clone, Copy, Debug)]
pub enum Mode<'a> {
    /// Makes the change and rolls it back, so that the counts are exact.
    Preview,
    /// Commits the change together with its record.
    Apply(Action<'a>),
}

/// Ends the transaction of a command as its mode says. `affected` is the number of changed rows.
pub(crate) async fn finish(
    mut transaction: Transaction<'_, Postgres>,
    mode: Mode<'_>,
    affected: i64,
) -> Result<(), sqlx::Error> {
    let Mode::Apply(action) = mode else {
        return transaction.rollback().await;
    };
    record(&mut transaction, action, affected).await?;
    transaction.commit().await
}

/// Records an action in the transaction of its change.
pub async fn record(
    connection: &mut PgConnection,
    action: Action<'_>,
    affected: i64,
) -> Result<(), sqlx::Error> {
    let statement = sqlx::query!(
        "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason)
         VALUES ($1, $2, $3, $4, $5, $6)",
        Uuid::now_v7(),
        action.operator,
        action.command,
        action.target,
        affected,
        action.reason,
    );
    statement.execute(connection).await?;
    Ok(())
}

#[derive(Clone, Debug, serde::Serialize)]
pub struct Recorded {
    /// When the transaction of the change began.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The operator's name as given to `esimctl`, or `partner`.
    pub operator: String,
    pub database_role: String,
    pub command: String,
    pub target: String,
    /// The number of changed rows.
    pub affected: i64,
    pub reason: String,
}

/// The newest actions since a time, at most `limit`.
pub async fn list(
    connection: &mut PgConnection,
    since: Option<OffsetDateTime>,
    limit: u32,
) -> Result<Vec<Recorded>> {
    let actions = sqlx::query_as!(
        Recorded,
        "SELECT at, operator, database_role, command, target, affected, reason
         FROM operator_actions WHERE at >= coalesce($1, '-infinity'::timestamptz) ORDER BY at DESC LIMIT $2",
        since,
        i64::from(limit),
    );
    Ok(actions.fetch_all(connection).await?)
}

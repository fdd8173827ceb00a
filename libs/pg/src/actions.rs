//! The record of what operators have changed, and why. Changes that partners make themselves are
//! recorded here, too, with `partner` as the operator.

use std::collections::HashMap;

use domain::{Command, Stored, command::CountedRows};
use serde_json::Value;
use sqlx::PgConnection;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use crate::{
    Result, Transaction, TransactionEnd, rfc3339,
    transaction::{self, TransactionKind},
};

/// The operator that is recorded for changes that partners make themselves. No operator may have
/// this name, because such records have a term of their own and stand apart from those of
/// operators.
pub const PARTNER: &str = "partner";

/// The recorded reason of a change that a partner makes itself.
pub const REASON: &str = "requested by the partner";

/// Through which program somebody acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Via {
    Esimctl,
    Console,
    /// The requests that partners sign.
    Api,
}

/// Who acts.
#[derive(Clone, Copy, Debug)]
pub struct Actor<'a> {
    /// The operator's name, or `partner`.
    pub name: &'a str,
    pub via: Via,
    /// The address of the browser, or the access key that signed the request of a partner. For
    /// `esimctl` it is the address that the database sees, so none is given.
    pub source: Option<&'a str>,
}

impl<'a> Actor<'a> {
    /// A partner, by a request of its own.
    pub const PARTNER: Actor<'static> = Actor {
        name: PARTNER,
        via: Via::Api,
        source: None,
    };

    /// Somebody with a shell.
    pub const fn esimctl(name: &'a str) -> Self {
        Self {
            name,
            via: Via::Esimctl,
            source: None,
        }
    }

    /// An operator who has signed in at the console, with the address of the browser.
    pub const fn console(name: &'a str, source: &'a str) -> Self {
        Self {
            name,
            via: Via::Console,
            source: Some(source),
        }
    }
}

/// A command that changes something, as it is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Action<'a> {
    pub actor: Actor<'a>,
    pub command: Command,
    /// What the command named, such as `placement 0199…`.
    pub target: &'a str,
    pub reason: &'a str,
}

impl<'a> Action<'a> {
    /// What a partner does by a request of its own.
    pub const fn of_partner(command: Command, target: &'a str) -> Self {
        Self {
            actor: Actor::PARTNER,
            command,
            target,
            reason: REASON,
        }
    }
}

/// What an action changed, without secrets.
#[derive(Clone, Debug, Default)]
pub struct ActionChange {
    before: Option<Value>,
    after: Option<Value>,
}

impl ActionChange {
    pub fn between(before: Value, after: Value) -> Self {
        Self {
            before: Some(before),
            after: Some(after),
        }
    }

    /// Something that was not there before.
    pub fn created(after: Value) -> Self {
        Self {
            before: None,
            after: Some(after),
        }
    }

    /// Something that no longer exists.
    pub fn removed(before: Value) -> Self {
        Self {
            before: Some(before),
            after: None,
        }
    }

    /// Nothing: the action shows something, or only leaves the record.
    pub fn nothing() -> Self {
        Self::default()
    }
}

/// Whether a command previews its change or commits it.
#[derive(Clone, Copy, Debug)]
pub enum Mode<'a> {
    /// Makes the change and rolls it back, so that the counts are exact.
    Preview,
    /// Commits the change together with its record.
    Apply(Action<'a>),
}

impl Mode<'_> {
    /// Records a command in the transaction of its change, unless it is a preview. `affected` is
    /// the number of changed rows, and `changed` what is recorded of them.
    pub async fn record(
        self,
        transaction: &mut Transaction<'_>,
        affected: i64,
        changed: ActionChange,
    ) -> Result<(), sqlx::Error> {
        match self {
            Self::Preview => Ok(()),
            Self::Apply(action) => record(transaction, action, affected, changed).await,
        }
    }

    /// How the transaction of a command ends.
    pub fn end<T>(self, done: T) -> TransactionEnd<T> {
        match self {
            Self::Preview => TransactionEnd::Rollback(done),
            Self::Apply(_) => TransactionEnd::Commit(done),
        }
    }
}

/// Makes a change and its record in one transaction. `change` returns its result with what is
/// recorded of it, or `None` if it changed nothing, which leaves no record.
pub async fn recorded<T>(
    connection: &mut PgConnection,
    action: Action<'_>,
    change: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<Option<(T, ActionChange)>>,
) -> Result<Option<T>> {
    let change = async |transaction: &mut Transaction<'_>| {
        let Some((result, changed)) = change(transaction).await? else {
            return Ok(TransactionEnd::Rollback(None));
        };
        record(transaction, action, 1, changed).await?;
        Ok(TransactionEnd::Commit(Some(result)))
    };
    transaction::once(
        connection,
        TransactionKind::Writing,
        action.command.as_str(),
        change,
    )
    .await
}

/// Records an action in the transaction of its change, with what it changed.
pub async fn record(
    transaction: &mut Transaction<'_>,
    action: Action<'_>,
    affected: i64,
    changed: ActionChange,
) -> Result<(), sqlx::Error> {
    let via: &'static str = action.actor.via.into();
    let statement = sqlx::query!(
        "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via, source, before, after)
         VALUES ($1, $2, $3, $4, $5, $6, $7, coalesce($8, CASE WHEN $7 = 'esimctl' THEN host(inet_client_addr()) END),
                 $9::text::jsonb, $10::text::jsonb)",
        Uuid::now_v7(),
        action.actor.name,
        action.command.as_str(),
        action.target,
        affected,
        action.reason,
        via,
        action.actor.source,
        changed.before.map(|value| value.to_string()),
        changed.after.map(|value| value.to_string()),
    );
    statement.execute(&mut **transaction).await?;
    Ok(())
}

#[derive(Clone, Debug, serde::Serialize)]
pub struct RecordedAction {
    /// When the transaction of the change began.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The operator's name as given to `esimctl`, or `partner`.
    pub operator: String,
    pub database_role: String,
    pub command: Stored<Command>,
    pub target: String,
    /// The number of changed rows.
    pub affected: i64,
    pub reason: String,
    /// `esimctl`, `console` or `api`; `None` if the database recorded it itself.
    pub via: Option<String>,
    /// The address of the browser, or from which the database saw `esimctl`; of a partner's change
    /// of its keys the access key that signed it.
    pub source: Option<String>,
    /// What was changed, as JSON without secrets.
    pub before: Option<String>,
    pub after: Option<String>,
}

impl RecordedAction {
    /// See [`changed_nothing`].
    pub fn changed_nothing(&self) -> bool {
        changed_nothing(&self.command, self.affected, self.after.is_some())
    }
}

/// Whether an action found nothing to change, for example a webhook that was sent meanwhile. What
/// is recorded with its state `after` was changed, even if no further row was, as when an endpoint
/// is resumed for which no webhook waits. Showing something changes nothing on purpose.
pub fn changed_nothing(command: &Stored<Command>, affected: i64, has_after: bool) -> bool {
    let changes = match command.known().map(Command::counts) {
        Some(CountedRows::Webhooks | CountedRows::Rows) | None => true,
        Some(CountedRows::Nothing) => false,
    };
    changes && affected == 0 && !has_after
}

/// Which recorded actions to list; `None` matches all.
#[derive(Clone, Copy, Debug, Default)]
pub struct ActionFilter<'a> {
    pub since: Option<OffsetDateTime>,
    /// The end of the range of time, exclusive: a page begins where the one before it ended.
    pub until: Option<OffsetDateTime>,
    /// Only the actions of this one. Those of partners are listed if this is [`PARTNER`], and only
    /// then, so that no partner pushes the actions of operators out of a list.
    pub operator: Option<&'a str>,
}

/// The newest actions that match, at most `limit`.
pub async fn list(
    connection: &mut PgConnection,
    filter: &ActionFilter<'_>,
    limit: u32,
) -> Result<Vec<RecordedAction>> {
    let actions = sqlx::query_as!(
        RecordedAction,
        "SELECT at, operator, database_role, command, target, affected, reason, via, source,
                before::text AS before, after::text AS after
         FROM operator_actions
         WHERE (operator = 'partner') = $5
           AND at >= coalesce($1, '-infinity'::timestamptz) AND at < coalesce($3, 'infinity'::timestamptz)
           AND ($4::text IS NULL OR operator = $4)
         ORDER BY at DESC LIMIT $2",
        filter.since,
        i64::from(limit),
        filter.until,
        filter.operator,
        filter.operator == Some(PARTNER),
    );
    Ok(actions.fetch_all(connection).await?)
}

/// When a command was recorded last for each of these ids, which are the second words of its
/// targets.
pub async fn last(
    connection: &mut PgConnection,
    ids: &[String],
    command: Command,
) -> Result<HashMap<String, OffsetDateTime>> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let query = sqlx::query!(
        r#"SELECT left(split_part(target, ' ', 2), 100) AS "of!", max(at) AS "at!" FROM operator_actions
           WHERE left(split_part(target, ' ', 2), 100) = ANY ($1) AND command = $2
           GROUP BY 1"#,
        ids,
        command.as_str(),
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    Ok(rows.map(|row| (row.of, row.at)).collect())
}

/// When a command was recorded last for this id, which is the second word of its targets, as a text
/// that the form of a page carries along. If it is another one when the form is sent, the command
/// was carried out meanwhile, perhaps by the same form.
pub async fn mark(connection: &mut PgConnection, id: &str, command: Command) -> Result<String> {
    let found = last(connection, &[id.to_owned()], command).await?;
    let at = found.into_values().next();
    Ok(at.map_or_else(|| "never".to_owned(), rfc3339))
}

/// Whether none of these commands was recorded for any of these ids, which are the second words of
/// its targets, since a page was made. `read_at` is when the page read what it shows, as
/// [`rfc3339`](crate::rfc3339) writes it.
pub async fn is_as_seen(
    connection: &mut PgConnection,
    ids: &[String],
    commands: &[Command],
    read_at: &str,
) -> Result<bool> {
    let Ok(read_at) = OffsetDateTime::parse(read_at, &Rfc3339) else {
        return Ok(false);
    };
    let commands: Vec<&str> = commands.iter().map(|command| command.as_str()).collect();
    let query = sqlx::query_scalar!(
        r#"SELECT NOT EXISTS (
               SELECT FROM operator_actions
               WHERE left(split_part(target, ' ', 2), 100) = ANY ($1) AND command = ANY ($2) AND at >= $3) AS "as_seen!""#,
        ids,
        &commands as &[&str],
        read_at,
    );
    Ok(query.fetch_one(connection).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_left_everything_as_it_was_is_marked() {
        let nothing = |command: &str, affected, has_after| {
            changed_nothing(&command.to_owned().into(), affected, has_after)
        };
        assert!(nothing("resend start", 0, false));
        assert!(!nothing("resend start", 2, false));
        assert!(!nothing("endpoint resume", 0, true));
        assert!(!nothing("topup show-code", 0, false));
        assert!(nothing("a command of another version", 0, false));
    }
}

//! Signing in at the console, and its sessions.
//!
//! Guarantees:
//!
//! - An unknown name, a disabled operator and a wrong password get the same answer after the same
//!   work, so that nobody learns which names exist.
//! - An attempt is counted before its password is checked, so that attempts at the same time do not
//!   get around the limits: [`PER_NAME`] for a name and [`PER_SOURCE`] for an address within
//!   [`WINDOW`]. A success ends the count of its name.
//! - At most [`MOST_COUNTED`] counts are stored. Beyond that the one that ends first is given up, so
//!   that a flood of made-up names fills no disk.
//! - The database holds digests of tokens only, so that a copy of it opens no session.

use std::time::Duration;

use secrecy::SecretString;
use signing::{generate::NotGenerated, password, token};
use sqlx::{Connection, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use super::accounts::Role;
use crate::{Error, Result, seconds};

/// For how long attempts are counted.
pub const WINDOW: Duration = Duration::from_mins(15);
/// The most attempts for one name within the window.
pub const PER_NAME: i32 = 10;
/// The most attempts from one address within the window.
pub const PER_SOURCE: i32 = 30;
/// The most counts that are stored.
const MOST_COUNTED: i64 = 10_000;
/// The most bytes of a name that are looked at.
const LONGEST: usize = 400;

/// How long sessions last.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    /// Without a request.
    pub idle: Duration,
    /// At most.
    pub most: Duration,
}

/// A new session. The token goes into the browser's cookie and is not stored.
#[derive(Debug)]
pub struct Opened {
    pub token: SecretString,
    pub session: Session,
}

/// A signed-in operator.
#[derive(Clone, Debug)]
pub struct Session {
    pub operator_id: Uuid,
    pub name: String,
    pub role: Role,
    /// The address from which it was opened.
    pub source: String,
    pub ends_at: OffsetDateTime,
}

/// Why nobody was signed in.
#[derive(Debug, thiserror::Error)]
pub enum NotSignedIn {
    #[error("the name or the password is wrong")]
    Wrong,
    /// The limit of attempts is reached, for the name or the address.
    #[error("too many attempts for this name or from this address; wait up to {} minutes", WINDOW.as_secs() / 60)]
    TooMany,
    #[error(transparent)]
    NotGenerated(#[from] NotGenerated),
    #[error(transparent)]
    Store(#[from] Error),
}

/// Runs work of some milliseconds on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::Unreadable(format!("hashing a password failed: {error}")))
}

/// Checks a name and a password, and opens a session. `source` is the address of the browser.
pub async fn sign_in(
    connection: &mut PgConnection,
    name: &str,
    password: SecretString,
    source: &str,
    lifetime: Lifetime,
) -> Result<Opened, NotSignedIn> {
    let name = name.get(..LONGEST.min(name.len())).unwrap_or_default();
    let by_name = format!("name {name}");
    let by_source = format!("source {source}");
    // An address that is over its limit adds no names, because a flood of names would push the counts
    // of others out of the bounded table.
    if counted(connection, &by_source).await? > PER_SOURCE
        || counted(connection, &by_name).await? > PER_NAME
    {
        return Err(NotSignedIn::TooMany);
    }
    let query = sqlx::query!(
        "SELECT operator_id, name, role, password FROM operators WHERE name = $1 AND disabled_at IS NULL",
        name,
    );
    let found = query.fetch_optional(&mut *connection).await?;
    let hashed = found.as_ref().and_then(|row| row.password.clone());
    let right = blocking(move || password::verify(&password, hashed.as_deref())).await?;
    let (true, Some(row)) = (right, found) else {
        return Err(NotSignedIn::Wrong);
    };
    let token = token::generate()?;
    let mut transaction = connection.begin().await?;
    // Disabled in the meantime, or with another password: then no session begins.
    let statement = sqlx::query!(
        "UPDATE operators SET signed_in_at = now()
         WHERE operator_id = $1 AND disabled_at IS NULL AND password = $2",
        row.operator_id,
        row.password,
    );
    if statement.execute(&mut *transaction).await?.rows_affected() == 0 {
        return Err(NotSignedIn::Wrong);
    }
    let statement = sqlx::query_scalar!(
        "INSERT INTO operator_sessions (token_digest, operator_id, source, ends_at)
         VALUES ($1, $2, $3, now() + make_interval(secs => $4)) RETURNING ends_at",
        &token::digest(&token)[..],
        row.operator_id,
        source,
        seconds(lifetime.most),
    );
    let ends_at = statement.fetch_one(&mut *transaction).await?;
    let statement = sqlx::query!("DELETE FROM operator_sign_ins WHERE subject = $1", by_name);
    statement.execute(&mut *transaction).await?;
    // Ended sessions of anybody go with the next one that begins, so no other program tidies up.
    let statement = sqlx::query!("DELETE FROM operator_sessions WHERE ends_at < now()");
    statement.execute(&mut *transaction).await?;
    transaction.commit().await?;
    let session = Session {
        operator_id: row.operator_id,
        name: row.name,
        role: row.role.parse().map_err(|_| unknown(&row.role))?,
        source: source.to_owned(),
        ends_at,
    };
    Ok(Opened { token, session })
}

fn unknown(role: &str) -> Error {
    Error::Unreadable(format!("the operator's role {role:?}"))
}

/// Counts an attempt, and returns the number within the window.
async fn counted(connection: &mut PgConnection, subject: &str) -> Result<i32> {
    // `ended` and `surplus` bound the table before the row is added.
    let statement = sqlx::query_scalar!(
        "WITH ended AS (
             DELETE FROM operator_sign_ins WHERE until < now() AND subject <> $1
         ), surplus AS (
             DELETE FROM operator_sign_ins WHERE subject = ANY (ARRAY (
                 SELECT subject FROM operator_sign_ins WHERE subject <> $1 ORDER BY until DESC OFFSET $3))
         )
         INSERT INTO operator_sign_ins AS s (subject, attempts, until)
         VALUES ($1, 1, now() + make_interval(secs => $2))
         ON CONFLICT (subject) DO UPDATE
         SET attempts = CASE WHEN s.until < now() THEN 1 ELSE least(s.attempts, 1000000) + 1 END,
             until = CASE WHEN s.until < now() THEN excluded.until ELSE s.until END
         RETURNING attempts",
        subject,
        seconds(WINDOW),
        MOST_COUNTED - 1,
    );
    Ok(statement.fetch_one(connection).await?)
}

/// The session of a token, if it has not ended and its operator is not disabled. It notes the use,
/// at most once a minute.
pub async fn find(
    connection: &mut PgConnection,
    token: &SecretString,
    lifetime: Lifetime,
) -> Result<Option<Session>> {
    let digest = token::digest(token);
    let query = sqlx::query!(
        r#"SELECT o.operator_id, o.name, o.role, s.source, s.ends_at, s.used_at < now() - interval '1 minute' AS "note!"
           FROM operator_sessions s JOIN operators o ON o.operator_id = s.operator_id
           WHERE s.token_digest = $1 AND s.ends_at > now() AND s.used_at > now() - make_interval(secs => $2)
             AND o.disabled_at IS NULL"#,
        &digest[..],
        seconds(lifetime.idle),
    );
    let Some(row) = query.fetch_optional(&mut *connection).await? else {
        return Ok(None);
    };
    if row.note {
        let statement = sqlx::query!(
            "UPDATE operator_sessions SET used_at = now() WHERE token_digest = $1",
            &digest[..],
        );
        statement.execute(connection).await?;
    }
    Ok(Some(Session {
        operator_id: row.operator_id,
        name: row.name,
        role: row.role.parse().map_err(|_| unknown(&row.role))?,
        source: row.source,
        ends_at: row.ends_at,
    }))
}

/// Ends the session of a token.
pub async fn close(connection: &mut PgConnection, token: &SecretString) -> Result<()> {
    let statement = sqlx::query!(
        "DELETE FROM operator_sessions WHERE token_digest = $1",
        &token::digest(token)[..],
    );
    statement.execute(connection).await?;
    Ok(())
}

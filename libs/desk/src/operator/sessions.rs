//! Signing in at the console, and its sessions.
//!
//! Guarantees:
//!
//! - An unknown name, a disabled operator and a wrong password get the same answer after the same
//!   work, so that nobody learns which names exist.
//! - An attempt is counted before its password is checked, so that attempts at the same time do not
//!   get around the limits: [`PER_NAME`] for a name and [`PER_SOURCE`] for an address within
//!   [`WINDOW`]. A success ends the count of its name, and does not count for its address, so that
//!   many operators behind one address do not lock each other out.
//! - Addresses of IPv6 are counted by their network of 64 bits, because its owner has all of them.
//! - At most [`MOST_COUNTED`] counts are stored, so that a flood of made-up names fills no disk.
//!   Beyond that the one that ends first is given up, and those that refuse attempts come last, so
//!   that a flood does not open again what was closed.
//! - The database holds digests of tokens only, so that a copy of it opens no session.
//!
//! People whom an OpenID provider knows have no account here. Their session names the issuer, so
//! that it ends with the setting that trusts this issuer, and it keeps the role that the provider
//! gave them when it began.

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use pg::{Error, Result, Transaction, TransactionEnd, seconds, transaction};
use secrecy::SecretString;
use signing::{generate::NotGenerated, password, token};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::accounts::{OperatorRole, blocking};

/// For how long attempts are counted.
pub const WINDOW: Duration = Duration::from_mins(15);
/// The maximum number of attempts for one name within the window.
pub const PER_NAME: i32 = 10;
/// The maximum number of attempts from one address within the window.
pub const PER_SOURCE: i32 = 30;
/// The maximum number of counts that are stored.
const MOST_COUNTED: i64 = 10_000;
/// The maximum number of bytes of a name that are looked at.
const LONGEST: usize = 400;

/// How often the use of a session is noted at most; see [`note_after`].
const NOTE: Duration = Duration::from_mins(1);

/// How long sessions last.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    /// Without a request.
    pub idle: Duration,
    /// At most.
    pub most: Duration,
}

/// How long after the last noted use of a session another one is noted. A request costs no write
/// each time, and yet a session ends at most a tenth earlier than its last use says.
fn note_after(idle: Duration) -> Duration {
    NOTE.min(idle / 10)
}

/// The browser that signs in.
#[derive(Clone, Copy, Debug)]
pub struct Browser<'a> {
    /// Its address.
    pub source: &'a str,
    /// The token of the session that it had until now. That session ends with the new one, because
    /// the browser forgets its token, and nobody could sign it out any more.
    pub before: Option<&'a SecretString>,
}

/// Which sessions count for a request.
#[derive(Clone, Copy, Debug)]
pub struct SessionPolicy<'a> {
    /// How long a session lasts without a request.
    pub idle: Duration,
    /// Sessions of accounts, whose operators sign in with a password.
    pub local: bool,
    /// Sessions that this OpenID provider has opened.
    pub issuer: Option<&'a str>,
    /// Whether a person made the request. A page that refreshes itself must not keep a session
    /// alive for as long as it is open.
    pub by_person: bool,
}

/// Somebody whom an OpenID provider knows.
#[derive(Clone, Debug)]
pub struct Person {
    pub issuer: String,
    /// The provider's lasting id of the person.
    pub subject: String,
    /// What recorded actions name. It begins with [`super::accounts::OF_PROVIDER`], which no
    /// account does.
    pub name: String,
    pub role: OperatorRole,
}

/// A new session. The token goes into the browser's cookie and is not stored.
#[derive(Debug)]
pub struct NewSession {
    pub token: SecretString,
    pub session: OperatorSession,
}

/// A signed-in operator.
#[derive(Clone, Debug)]
pub struct OperatorSession {
    pub operator_id: Uuid,
    pub name: String,
    pub role: OperatorRole,
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
    #[error("too many attempts for this name or from this address; wait {} min", .wait.as_secs().div_ceil(60))]
    TooMany {
        /// How long until attempts count anew.
        wait: Duration,
    },
    #[error(transparent)]
    NotGenerated(#[from] NotGenerated),
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(NotSignedIn);

/// Checks a name and a password, and opens a session.
pub async fn sign_in(
    connection: &mut PgConnection,
    name: &str,
    password: SecretString,
    browser: Browser<'_>,
    lifetime: Lifetime,
) -> Result<NewSession, NotSignedIn> {
    let name = name.get(..LONGEST.min(name.len())).unwrap_or_default();
    let by_name = format!("name {name}");
    let by_source = counted_source(browser.source);
    // An address that is over its limit adds no names, because a flood of names would push the
    // counts of others out of the bounded table.
    within(connection, &by_source, PER_SOURCE).await?;
    within(connection, &by_name, PER_NAME).await?;
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
    let ends_at = transaction!(connection, "sessions::sign_in", |transaction| -> Result<
        OffsetDateTime,
        NotSignedIn,
    > {
        // Disabled in the meantime, or with another password: then no session begins.
        let statement = sqlx::query!(
            "UPDATE operators SET signed_in_at = now()
         WHERE operator_id = $1 AND disabled_at IS NULL AND password = $2",
            row.operator_id,
            row.password,
        );
        if statement.execute(&mut **transaction).await?.rows_affected() == 0 {
            return Err(NotSignedIn::Wrong);
        }
        let ends_at = begin(
            transaction,
            &token,
            row.operator_id,
            None,
            browser,
            lifetime,
        )
        .await?;
        let statement = sqlx::query!("DELETE FROM operator_sign_ins WHERE subject = $1", by_name);
        statement.execute(&mut **transaction).await?;
        Ok(TransactionEnd::Commit(ends_at))
    })?;
    let session = OperatorSession {
        operator_id: row.operator_id,
        name: row.name,
        role: row.role.parse().map_err(|_| unknown(&row.role))?,
        source: browser.source.to_owned(),
        ends_at,
    };
    Ok(NewSession { token, session })
}

/// Counts an attempt to sign in by an OpenID provider. It is counted before the provider is asked,
/// so that nobody uses the console to flood the provider.
pub async fn attempt(connection: &mut PgConnection, source: &str) -> Result<(), NotSignedIn> {
    within(connection, &counted_source(source), PER_SOURCE).await
}

/// What the attempts from an address are counted by.
fn counted_source(source: &str) -> String {
    match source.parse().map(|address: IpAddr| address.to_canonical()) {
        Ok(IpAddr::V6(address)) => {
            let network = u128::from(address) >> 64 << 64;
            format!("source {}/64", Ipv6Addr::from(network))
        }
        Ok(address) => format!("source {address}"),
        Err(_) => format!("source {source}"),
    }
}

/// Opens a session for somebody whom an OpenID provider has named, after [`attempt`].
pub async fn open(
    connection: &mut PgConnection,
    person: &Person,
    browser: Browser<'_>,
    lifetime: Lifetime,
) -> Result<NewSession, NotSignedIn> {
    // The subject alone is unique at its issuer only.
    let identity = format!("{} {}", person.issuer, person.subject);
    let operator_id = Uuid::new_v5(&Uuid::NAMESPACE_URL, identity.as_bytes());
    let token = token::generate()?;
    let ends_at = transaction!(connection, "sessions::open", |transaction| -> Result<
        OffsetDateTime,
        NotSignedIn,
    > {
        begin(
            transaction,
            &token,
            operator_id,
            Some(person),
            browser,
            lifetime,
        )
        .await
        .map(TransactionEnd::Commit)
        .map_err(NotSignedIn::from)
    })?;
    let session = OperatorSession {
        operator_id,
        name: person.name.clone(),
        role: person.role,
        source: browser.source.to_owned(),
        ends_at,
    };
    Ok(NewSession { token, session })
}

/// Stores a session, ends the one that the browser had before, and takes the success out of the
/// count of its address. Returns the end of the session.
async fn begin(
    transaction: &mut Transaction<'_>,
    token: &SecretString,
    operator_id: Uuid,
    person: Option<&Person>,
    browser: Browser<'_>,
    lifetime: Lifetime,
) -> Result<OffsetDateTime> {
    if let Some(before) = browser.before {
        close(transaction, before).await?;
    }
    let statement = sqlx::query_scalar!(
        "INSERT INTO operator_sessions (token_digest, operator_id, source, ends_at, issuer, name, role)
         VALUES ($1, $2, $3, now() + make_interval(secs => $4), $5, $6, $7) RETURNING ends_at",
        &token::digest(token)[..],
        operator_id,
        browser.source,
        seconds(lifetime.most),
        person.map(|person| person.issuer.as_str()),
        person.map(|person| person.name.as_str()),
        person.map(|person| person.role.as_str()),
    );
    let ends_at = statement.fetch_one(&mut **transaction).await?;
    let statement = sqlx::query!(
        "UPDATE operator_sign_ins SET attempts = attempts - 1 WHERE subject = $1 AND attempts > 0",
        counted_source(browser.source),
    );
    statement.execute(&mut **transaction).await?;
    // Ended sessions of anybody go with the next one that begins, so no other program tidies up.
    let statement = sqlx::query!("DELETE FROM operator_sessions WHERE ends_at < now()");
    statement.execute(&mut **transaction).await?;
    Ok(ends_at)
}

fn unknown(role: &str) -> Error {
    Error::Unreadable(format!("the operator's role {role:?}"))
}

/// Counts an attempt, and refuses it if there were too many within the window.
async fn within(
    connection: &mut PgConnection,
    subject: &str,
    most: i32,
) -> Result<(), NotSignedIn> {
    // `ended` and `surplus` bound the table before the row is added. The count that has reached the
    // limit of names goes last, so that attempts under many other names do not free it.
    let statement = sqlx::query!(
        r#"WITH ended AS (
             DELETE FROM operator_sign_ins WHERE until < now() AND subject <> $1
         ), surplus AS (
             DELETE FROM operator_sign_ins WHERE subject = ANY (ARRAY (
                 SELECT subject FROM operator_sign_ins WHERE subject <> $1 ORDER BY attempts >= $4 DESC, until DESC OFFSET $3))
         )
         INSERT INTO operator_sign_ins AS s (subject, attempts, until)
         VALUES ($1, 1, now() + make_interval(secs => $2))
         ON CONFLICT (subject) DO UPDATE
         SET attempts = CASE WHEN s.until < now() THEN 1 ELSE least(s.attempts, 1000000) + 1 END,
             until = CASE WHEN s.until < now() THEN excluded.until ELSE s.until END
         RETURNING attempts, extract(epoch FROM until - now())::float8 AS "left!""#,
        subject,
        seconds(WINDOW),
        MOST_COUNTED - 1,
        PER_NAME,
    );
    let counted = statement.fetch_one(connection).await?;
    if counted.attempts > most {
        let wait = Duration::try_from_secs_f64(counted.left).unwrap_or_default();
        return Err(NotSignedIn::TooMany { wait });
    }
    Ok(())
}

/// The session of a token, if it has not ended, is accepted, and its operator is not disabled. It
/// notes the use by a person, at most once a minute or a tenth of the idle time.
pub async fn find(
    connection: &mut PgConnection,
    token: &SecretString,
    accepted: SessionPolicy<'_>,
) -> Result<Option<OperatorSession>> {
    let digest = token::digest(token);
    let query = sqlx::query!(
        r#"SELECT s.operator_id, coalesce(s.name, o.name) AS "name!", coalesce(s.role, o.role) AS "role!", s.source, s.ends_at,
                  s.used_at < now() - make_interval(secs => $5) AS "note!"
           FROM operator_sessions s LEFT JOIN operators o ON o.operator_id = s.operator_id AND s.issuer IS NULL
           WHERE s.token_digest = $1 AND s.ends_at > now() AND s.used_at > now() - make_interval(secs => $2)
             AND CASE WHEN s.issuer IS NULL THEN $3 AND o.operator_id IS NOT NULL AND o.disabled_at IS NULL
                      ELSE s.issuer = $4 END"#,
        &digest[..],
        seconds(accepted.idle),
        accepted.local,
        accepted.issuer,
        seconds(note_after(accepted.idle)),
    );
    let Some(row) = query.fetch_optional(&mut *connection).await? else {
        return Ok(None);
    };
    if row.note && accepted.by_person {
        let statement = sqlx::query!(
            "UPDATE operator_sessions SET used_at = now() WHERE token_digest = $1",
            &digest[..],
        );
        statement.execute(connection).await?;
    }
    Ok(Some(OperatorSession {
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

//! Operators who sign in at the console (`esimctl operator`).
//!
//! Nobody but an operator ever knows the password: whoever creates the account passes on a one-time
//! link, and with it the operator sets the password. Only the digest of the link's token is stored.
//! The link ends when it is used, when another one is made, when the account is disabled, and after
//! [`SETUP_LASTS`]. That it set a password is recorded, so that the operator can be asked whether
//! it was them.

use std::time::Duration;

use pg::{
    Error, Result, Transaction, TransactionEnd,
    actions::{self, Action, ActionChange, Actor},
    rfc3339, seconds, transaction,
};
use secrecy::SecretString;
use serde::Serialize;
use serde_json::json;
use signing::{generate::NotGenerated, password, token};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// How long a link is valid.
pub const SETUP_LASTS: Duration = Duration::from_hours(24);
/// The maximum number of characters of a name.
pub const LONGEST_NAME: usize = 100;
/// How the names of people whom an OpenID provider knows begin. No account has such a name, so that
/// a record cannot be mistaken.
pub const OF_PROVIDER: &str = "oidc:";

/// What an operator may do. Each role may do what the ones before it may.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    strum::IntoStaticStr,
    strum::EnumString,
    strum::VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum OperatorRole {
    /// Looks at everything but activation codes.
    Viewer,
    /// Sends webhooks again and sees activation codes, if the console shows them.
    Support,
    /// Does everything that the console can do.
    Operator,
}

impl OperatorRole {
    /// The name in the database and in `esimctl`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// An operator's account.
#[derive(Clone, Debug, Serialize)]
pub struct OperatorAccount {
    pub operator_id: Uuid,
    pub name: String,
    pub role: OperatorRole,
    /// Whether the operator has set a password.
    pub has_password: bool,
    /// Until when a link to set the password is valid, if there is one.
    #[serde(with = "time::serde::rfc3339::option")]
    pub setup_until: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub disabled_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub signed_in_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// A new link to set a password. The token is shown once and is not stored.
#[derive(Debug)]
pub struct SetUp {
    pub name: String,
    pub token: SecretString,
    pub until: OffsetDateTime,
}

/// Why an account was not created or changed.
#[derive(Debug, thiserror::Error)]
pub enum OperatorNotChanged {
    #[error("there is no operator of this name; see `esimctl operator list`")]
    Unknown,
    #[error(
        "there is an operator of this name already; `esimctl operator set NAME --new-password` makes a new link"
    )]
    Exists,
    #[error(
        "a name has 1 to {LONGEST_NAME} characters: ASCII letters, digits and punctuation such as . _ - @ +, without blanks, \
         because records must show the whole name and other alphabets have letters that look the same. It does not begin \
         with {OF_PROVIDER} in small or capital letters, because recorded actions of people who sign in by OpenID Connect do, \
         and it is not partner, because changes that partners make themselves are recorded under that name"
    )]
    BadName,
    #[error(transparent)]
    NotGenerated(#[from] NotGenerated),
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(OperatorNotChanged);

/// Why a link did not set a password.
#[derive(Debug, thiserror::Error)]
pub enum NotSet {
    #[error(
        "the link was used, was replaced or has ended; ask for a new one (`esimctl operator set NAME --new-password`)"
    )]
    Invalid,
    #[error(transparent)]
    Password(#[from] password::NotHashed),
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(NotSet);

/// Whether a record shows a name as it is, so that two names that look the same are the same. Only
/// visible ASCII characters are accepted: Unicode has many others that nobody sees, that change the
/// direction of the text around them, or that look like another letter.
pub fn is_readable(name: &str, longest: usize) -> bool {
    (1..=longest).contains(&name.len()) && name.bytes().all(|one| one.is_ascii_graphic())
}

/// Whether an account may have this name.
fn is_name(name: &str) -> bool {
    let begin = name.get(..OF_PROVIDER.len());
    is_readable(name, LONGEST_NAME)
        && name != actions::PARTNER
        && !begin.is_some_and(|begin| begin.eq_ignore_ascii_case(OF_PROVIDER))
}

/// Creates an operator without a password, and a link to set it.
pub async fn create(
    connection: &mut PgConnection,
    name: &str,
    role: OperatorRole,
    action: Action<'_>,
) -> Result<SetUp, OperatorNotChanged> {
    if !is_name(name) {
        return Err(OperatorNotChanged::BadName);
    }
    let token = token::generate()?;
    let until = transaction!(connection, "accounts::create", |transaction| -> Result<
        OffsetDateTime,
        OperatorNotChanged,
    > {
        let statement = sqlx::query_scalar!(
            r#"INSERT INTO operators (operator_id, name, role, setup_digest, setup_until)
           VALUES ($1, $2, $3, $4, now() + make_interval(secs => $5))
           ON CONFLICT (name) DO NOTHING RETURNING setup_until AS "until!""#,
            Uuid::now_v7(),
            name,
            role.as_str(),
            &token::digest(&token)[..],
            seconds(SETUP_LASTS),
        );
        let until = statement.fetch_optional(&mut **transaction).await?;
        let until = until.ok_or(OperatorNotChanged::Exists)?;
        let changed = ActionChange::created(json!({ "role": role }));
        actions::record(transaction, action, 1, changed).await?;
        Ok(TransactionEnd::Commit(until))
    })?;
    Ok(SetUp {
        name: name.to_owned(),
        token,
        until,
    })
}

/// Makes a new link. The password and the sessions of the operator end at once, because a reset is
/// also what helps after a theft.
pub async fn reset(
    connection: &mut PgConnection,
    name: &str,
    action: Action<'_>,
) -> Result<SetUp, OperatorNotChanged> {
    let token = token::generate()?;
    let until = transaction!(connection, "accounts::reset", |transaction| -> Result<
        OffsetDateTime,
        OperatorNotChanged,
    > {
        let statement = sqlx::query!(
            r#"UPDATE operators SET password = NULL, setup_digest = $2, setup_until = now() + make_interval(secs => $3)
           WHERE name = $1 RETURNING operator_id, setup_until AS "until!""#,
            name,
            &token::digest(&token)[..],
            seconds(SETUP_LASTS),
        );
        let row = statement.fetch_optional(&mut **transaction).await?;
        let row = row.ok_or(OperatorNotChanged::Unknown)?;
        end_sessions(transaction, row.operator_id).await?;
        let changed = ActionChange::created(json!({ "link_until": rfc3339(row.until) }));
        actions::record(transaction, action, 1, changed).await?;
        Ok(TransactionEnd::Commit(row.until))
    })?;
    Ok(SetUp {
        name: name.to_owned(),
        token,
        until,
    })
}

/// Lets an operator sign in no more, or again. Disabling ends the sessions and the link at once, so
/// that a link that somebody still has does not work again when the account is enabled.
pub async fn set_disabled(
    connection: &mut PgConnection,
    name: &str,
    disabled: bool,
    action: Action<'_>,
) -> Result<OperatorAccount, OperatorNotChanged> {
    transaction!(connection, "accounts::set_disabled", |transaction| {
        let before = locked(transaction, name).await?;
        let statement = sqlx::query!(
            "UPDATE operators
         SET disabled_at = CASE WHEN $2 THEN coalesce(disabled_at, now()) END,
             setup_digest = CASE WHEN NOT $2 THEN setup_digest END, setup_until = CASE WHEN NOT $2 THEN setup_until END
         WHERE name = $1",
            name,
            disabled,
        );
        statement.execute(&mut **transaction).await?;
        if disabled {
            end_sessions(transaction, before.operator_id).await?;
        }
        let after = locked(transaction, name).await?;
        let changed = ActionChange::between(
            json!({ "disabled": before.disabled_at.is_some() }),
            json!({ "disabled": disabled }),
        );
        actions::record(transaction, action, 1, changed).await?;
        Ok(TransactionEnd::Commit(after))
    })
}

/// Gives an operator another role. It holds from the next request of its sessions on.
pub async fn set_role(
    connection: &mut PgConnection,
    name: &str,
    role: OperatorRole,
    action: Action<'_>,
) -> Result<OperatorAccount, OperatorNotChanged> {
    transaction!(connection, "accounts::set_role", |transaction| {
        let before = locked(transaction, name).await?;
        let statement = sqlx::query!(
            "UPDATE operators SET role = $2 WHERE name = $1",
            name,
            role.as_str()
        );
        statement.execute(&mut **transaction).await?;
        let changed =
            ActionChange::between(json!({ "role": before.role }), json!({ "role": role }));
        actions::record(transaction, action, 1, changed).await?;
        Ok(TransactionEnd::Commit(OperatorAccount { role, ..before }))
    })
}

/// Ends all sessions of an operator or of a person whom an OpenID provider knows, and returns their
/// number. An account may sign in again at once, and so may a person whom the provider still sends.
pub async fn sign_out(
    connection: &mut PgConnection,
    name: &str,
    action: Action<'_>,
) -> Result<u64> {
    transaction!(connection, "accounts::sign_out", |transaction| {
        let statement = sqlx::query!(
            "DELETE FROM operator_sessions
         WHERE name = $1 OR (issuer IS NULL AND operator_id = (SELECT operator_id FROM operators WHERE name = $1))",
            name,
        );
        let ended = statement.execute(&mut **transaction).await?.rows_affected();
        let affected = i64::try_from(ended).unwrap_or(i64::MAX);
        let changed = if ended > 0 {
            ActionChange::between(json!({ "sessions": ended }), json!({ "sessions": 0 }))
        } else {
            ActionChange::nothing()
        };
        actions::record(transaction, action, affected, changed).await?;
        Ok(TransactionEnd::Commit(ended))
    })
}

async fn end_sessions(transaction: &mut Transaction<'_>, operator_id: Uuid) -> Result<()> {
    let statement = sqlx::query!(
        "DELETE FROM operator_sessions WHERE operator_id = $1",
        operator_id
    );
    statement.execute(&mut **transaction).await?;
    Ok(())
}

/// Reads the accounts that match a condition.
macro_rules! accounts {
    ($condition:literal $(, $argument:expr)*) => {
        sqlx::query!(
            r#"SELECT operator_id, name, role, password IS NOT NULL AS "has_password!",
                      CASE WHEN setup_digest IS NOT NULL AND setup_until > now() THEN setup_until END AS setup_until,
                      disabled_at, signed_in_at, created_at
               FROM operators "# + $condition
            $(, $argument)*
        )
        .try_map(|row| {
            let role = row
                .role
                .parse()
                .map_err(|_| sqlx::Error::Decode(format!("the role {:?}", row.role).into()))?;
            Ok(OperatorAccount {
                operator_id: row.operator_id,
                name: row.name,
                role,
                has_password: row.has_password,
                setup_until: row.setup_until,
                disabled_at: row.disabled_at,
                signed_in_at: row.signed_in_at,
                created_at: row.created_at,
            })
        })
    };
}

/// The account of this name, locked for a change.
async fn locked(
    transaction: &mut Transaction<'_>,
    name: &str,
) -> Result<OperatorAccount, OperatorNotChanged> {
    let found = accounts!("WHERE name = $1 FOR UPDATE", name);
    let found = found.fetch_optional(&mut **transaction).await?;
    found.ok_or(OperatorNotChanged::Unknown)
}

/// All accounts, by name.
pub async fn list(connection: &mut PgConnection) -> Result<Vec<OperatorAccount>> {
    Ok(accounts!("ORDER BY name").fetch_all(connection).await?)
}

/// The name of the operator whose password this link sets; `None` if the link is not valid.
pub async fn of_link(
    connection: &mut PgConnection,
    token: &SecretString,
) -> Result<Option<String>> {
    let query = sqlx::query_scalar!(
        "SELECT name FROM operators WHERE setup_digest = $1 AND setup_until > now() AND disabled_at IS NULL",
        &token::digest(token)[..],
    );
    Ok(query.fetch_optional(connection).await?)
}

/// Sets the password by a link, uses the link up, and records that with `source`, the address of
/// the browser. Returns the operator's name. The password is hashed before the transaction, on a
/// thread that may block.
pub async fn set_up(
    connection: &mut PgConnection,
    token: &SecretString,
    password: SecretString,
    source: &str,
) -> Result<String, NotSet> {
    if of_link(connection, token).await?.is_none() {
        return Err(NotSet::Invalid);
    }
    let hashed = blocking(move || password::hash(&password)).await??;
    transaction!(connection, "accounts::set_up", |transaction| {
        let statement = sqlx::query_scalar!(
            "UPDATE operators SET password = $2, setup_digest = NULL, setup_until = NULL
         WHERE setup_digest = $1 AND setup_until > now() AND disabled_at IS NULL RETURNING name",
            &token::digest(token)[..],
            hashed,
        );
        let name = statement.fetch_optional(&mut **transaction).await?;
        let name = name.ok_or(NotSet::Invalid)?;
        let action = Action {
            actor: Actor::console(&name, source),
            command: domain::Command::OperatorSetUp,
            target: &format!("operator {name}"),
            reason: "a password was set by the one-time link",
        };
        let changed = ActionChange::created(json!({ "password": "set" }));
        actions::record(transaction, action, 1, changed).await?;
        Ok(TransactionEnd::Commit(name))
    })
}

/// Runs work of some milliseconds on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::Unreadable(format!("hashing a password failed: {error}")))
}

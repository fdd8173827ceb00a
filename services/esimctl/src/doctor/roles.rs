//! The roles of the database: that of the doctor itself, and whether each stage's has what its
//! program needs.

use std::{path::Path, time::Duration};

use desk::operator::health::session::{self, ExaminedSession};
use pg::{
    PgConnection,
    schema::{DatabaseRole, ROLES},
};
use runtime::files;
use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use tokio::time::timeout;

use crate::{doctor::line::Lines, output::one_line};

const PATIENCE: Duration = Duration::from_secs(10);
/// The maximum number of missing privileges that a line names.
const NAMED: usize = 3;

const SEE: &str = "docs/operations.md#start";

/// The role of the doctor's own session.
pub fn own(session: &ExaminedSession, lines: &mut Lines<'_>) {
    let role = &session.role;
    let is_stage = ROLES
        .iter()
        .any(|known| known.name == role && known.of != "operator");
    if is_stage {
        lines.fault(
            "role",
            format!("DATABASE_URL logs in as {role}, the role of a stage, which may not do an operator's work"),
            "use the URL of esim_operator, or the owner's for migrate, recover, master-key and archive",
            SEE,
        );
    } else if session.is_superuser {
        lines.warning(
            "role",
            format!("DATABASE_URL logs in as {role}, a superuser, so a mistake can destroy the whole server"),
            "use the URL of esim_operator",
            SEE,
        );
    } else if role == "esim_operator" || session.owner.as_ref() == Some(role) {
        lines.fine("role", role.clone());
    } else {
        lines.warning(
            "role",
            format!("DATABASE_URL logs in as {role}, which is neither esim_operator nor the owner of the tables"),
            "use the URL of esim_operator",
            SEE,
        );
    }
}

/// The privileges of all roles.
pub async fn check(connection: &mut PgConnection, lines: &mut Lines<'_>) {
    let mut none = 0;
    for role in ROLES {
        match session::role(connection, role).await {
            Ok(None) => none += 1,
            Ok(Some(state)) => one(role, &state, lines),
            Err(error) => lines.fault(
                "privileges",
                format!("those of {} cannot be read: {error}", role.name),
                "see the log of PostgreSQL",
                "docs/operations.md#databasedown",
            ),
        }
    }
    if none == ROLES.len() {
        lines.warning(
            "privileges",
            "no stage has a role of its own, so whoever steals one stage's password can do everything",
            "create the roles with `esimctl migrate --roles FOLDER`, and give each stage its own URL",
            SEE,
        );
    } else if none > 0 {
        lines.fault(
            "privileges",
            format!("{none} of the roles {} do not exist", ROLES.map(|role| role.name).join(", ")),
            "create them (`esimctl migrate --roles FOLDER`, or the database's operator), then run `esimctl migrate`",
            SEE,
        );
    }
}

fn one(role: DatabaseRole, state: &session::RoleState, lines: &mut Lines<'_>) {
    let name = role.name;
    if !state.logs_in {
        lines.fault(
            "privileges",
            format!("{name} may not log in"),
            format!("ALTER ROLE {name} LOGIN"),
            SEE,
        );
    }
    if state.is_powerful {
        lines.warning(
            "privileges",
            format!("{name} may do the work of all roles, because it is a superuser, creates roles or is a member of the owner"),
            "take that privilege away",
            SEE,
        );
    }
    if !state.settings.is_empty() {
        lines.warning(
            "privileges",
            format!(
                "{name} has settings of its own ({}), which somebody with its password may have left behind",
                one_line(&state.settings.join(", "))
            ),
            format!("run `esimctl migrate`, or as an administrator of PostgreSQL: ALTER ROLE {name} RESET ALL"),
            "docs/operations.md#rotate-keys",
        );
    }
    if state.missing.is_empty() {
        lines.fine("privileges", format!("{name} has what it needs"));
    } else {
        let more = state.missing.len().saturating_sub(NAMED);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let named: Vec<&str> = state
            .missing
            .iter()
            .take(NAMED)
            .map(String::as_str)
            .collect();
        lines.fault(
            "privileges",
            format!("{name} lacks {}{more}", named.join(", ")),
            "run `esimctl migrate` as the owner of the tables, which grants what is missing",
            SEE,
        );
    }
}

/// Logs in as each role with the password of its file.
pub async fn log_in(options: &PgConnectOptions, secrets: &Path, lines: &mut Lines<'_>) {
    for role in ROLES {
        let file = secrets.join(format!("database-{}", role.of));
        let password = match files::value(&file) {
            Ok(password) => password,
            Err(error) => {
                lines.fault(
                    "logins",
                    format!("{error:#}"),
                    "name the folder that `esimctl secrets create` has made",
                    SEE,
                );
                continue;
            }
        };
        let own = options.clone().username(role.name).password(&password);
        match timeout(PATIENCE, own.connect()).await {
            Ok(Ok(_)) => lines.fine("logins", format!("{} logs in", role.name)),
            Ok(Err(error)) => lines.fault(
                "logins",
                format!(
                    "PostgreSQL refuses {}: {}",
                    role.name,
                    one_line(&error.to_string())
                ),
                "set the role's password to that of the file: `esimctl migrate --roles FOLDER`",
                "docs/operations.md#rotate-keys",
            ),
            Err(_) => lines.fault(
                "logins",
                format!(
                    "PostgreSQL does not answer {} within {PATIENCE:?}",
                    role.name
                ),
                "see the log of PostgreSQL",
                "docs/operations.md#databasedown",
            ),
        }
    }
}

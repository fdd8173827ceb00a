//! The database roles: one for each stage, one for operators with a shell, and one for
//! the console. Each has the privileges that its
//! own statements need (`libs/pg/roles`), so that whoever steals the credentials of one stage
//! cannot do the work of another.
//!
//! The owner of the tables grants these privileges and needs no other privilege for that, so no
//! superuser is involved. Roles that do not exist are skipped. A database without any of them
//! works, too; then all programs log in as the owner.

use std::{fmt, time::Duration};

use sqlx::{AssertSqlSafe, PgConnection};

use crate::{Result, TransactionEnd, transaction};

/// A role of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseRole {
    /// The name of the role in PostgreSQL, which is also the login of the stage.
    pub name: &'static str,
    /// The name of the stage, or `operator`.
    pub of: &'static str,
    grants: &'static str,
}

/// One privilege that a role needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Privilege {
    /// For example `SELECT`.
    pub verb: &'static str,
    /// A column of the table, if the privilege is for one.
    pub column: Option<&'static str>,
    /// The table, or the function with the types of its arguments.
    pub object: &'static str,
    /// Whether the object is a function.
    pub function: bool,
}

impl fmt::Display for Privilege {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.column {
            Some(column) => write!(f, "{} ({column}) ON {}", self.verb, self.object),
            None => write!(f, "{} ON {}", self.verb, self.object),
        }
    }
}

impl DatabaseRole {
    /// The privileges that [`grant`] gives the role, one for each verb, column and table.
    pub fn privileges(self) -> Vec<Privilege> {
        self.grants
            .split(';')
            .filter_map(|statement| {
                let (_, grant) = statement.split_once("GRANT ")?;
                // What stands before is a comment, and what stands after names the role.
                let (grant, _) = grant.rsplit_once(" TO ").or(grant.rsplit_once("TO "))?;
                grant.split_once(" ON ")
            })
            .flat_map(|(verbs, objects)| {
                let objects = objects.trim();
                let function = objects.strip_prefix("FUNCTION ");
                let objects = match function {
                    Some(function) => vec![function],
                    None => outer_commas(objects),
                };
                outer_commas(verbs).into_iter().flat_map(move |verb| {
                    let (verb, columns) = match verb.split_once('(') {
                        Some((verb, columns)) => {
                            (verb.trim(), outer_commas(columns.trim_end_matches(')')))
                        }
                        None => (verb, Vec::new()),
                    };
                    let columns: Vec<Option<&'static str>> = if columns.is_empty() {
                        vec![None]
                    } else {
                        columns.into_iter().map(Some).collect()
                    };
                    let objects = objects.clone();
                    columns.into_iter().flat_map(move |column| {
                        let each = objects.clone().into_iter();
                        each.map(move |object| Privilege {
                            verb,
                            column,
                            object,
                            function: function.is_some(),
                        })
                    })
                })
            })
            .collect()
    }
}

/// Splits a list at the commas that are outside of parentheses.
fn outer_commas(list: &'static str) -> Vec<&'static str> {
    let mut depth = 0;
    let parts = list.split(move |character| {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    });
    parts.map(str::trim).collect()
}

macro_rules! role {
    ($of:literal) => {
        DatabaseRole {
            name: concat!("esim_", $of),
            of: $of,
            grants: include_str!(concat!("../../roles/", $of, ".sql")),
        }
    };
}

pub const ROLES: [DatabaseRole; 5] = [
    role!("ingress"),
    role!("provisioner"),
    role!("notifier"),
    role!("operator"),
    role!("console"),
];

/// How often a grant is tried again after a conflict. PostgreSQL refuses to change a row of its
/// catalogue that another session has changed in the meantime, which happens if two migrators grant
/// at once.
const CONFLICTS: u32 = 10;

/// Revokes all privileges of the role on tables, views and functions of this owner, so that a grant
/// of an older version does not stay. Then it grants what every role needs: the use of the schema,
/// the tables that the check at the start reads, and, if the owner may pass it on, the role
/// `pg_read_all_stats`. Without that one, the metrics of the server do not see the sessions of
/// other roles.
const REVOKE: &str = "DO $$
DECLARE
    owned regclass;
    called regprocedure;
BEGIN
    FOR owned IN
        SELECT oid FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v')
          AND pg_has_role(relowner, 'USAGE')
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM ROLE_NAME', owned);
    END LOOP;
    FOR called IN
        SELECT oid FROM pg_proc
        WHERE pronamespace = current_schema()::regnamespace AND prokind = 'f' AND pg_has_role(proowner, 'USAGE')
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM ROLE_NAME', called);
    END LOOP;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO ROLE_NAME', current_schema());
    IF pg_has_role('pg_read_all_stats', 'USAGE WITH ADMIN OPTION') THEN
        GRANT pg_read_all_stats TO ROLE_NAME;
    END IF;
END
$$;
GRANT SELECT ON _sqlx_migrations, _schema_serves TO ROLE_NAME;
";

/// Grants each existing role its privileges on tables, and takes all others away, together with the
/// [settings](settings) that somebody has given the role. Returns the roles that exist.
///
/// The privileges change in one transaction, so a running session sees either the old or the new
/// ones and never none.
pub async fn grant(connection: &mut PgConnection) -> Result<Vec<DatabaseRole>> {
    let mut granted = Vec::new();
    for role in ROLES {
        if !exists(connection, role).await? {
            continue;
        }
        reset_settings(connection, role).await?;
        retry(
            connection,
            &(REVOKE.replace("ROLE_NAME", role.name) + role.grants),
        )
        .await?;
        granted.push(role);
    }
    Ok(granted)
}

/// The settings that a role has of its own (`ALTER ROLE … SET`), in all databases or in this one,
/// such as `search_path=evil`. A role may set most of them for itself. So whoever has stolen its
/// password can leave them behind, and a new password does not end them.
pub async fn settings(connection: &mut PgConnection, role: DatabaseRole) -> Result<Vec<String>> {
    let query = sqlx::query_scalar(
        "SELECT unnest(s.setconfig) FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole
         WHERE r.rolname = $1
           AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
         ORDER BY 1",
    );
    Ok(query.bind(role.name).fetch_all(connection).await?)
}

/// Ends the [settings] of a role. Where the owner may not change the role, for example because
/// another tool has created it, they stay, and [`settings`] goes on to tell them.
async fn reset_settings(connection: &mut PgConnection, role: DatabaseRole) -> Result<()> {
    if settings(connection, role).await?.is_empty() {
        return Ok(());
    }
    let name = role.name;
    let statements = format!(
        "ALTER ROLE {name} RESET ALL;
         DO $$ BEGIN EXECUTE format('ALTER ROLE {name} IN DATABASE %I RESET ALL', current_database()); END $$"
    );
    match retry(connection, &statements).await {
        Err(error) if error.is_denied() => Ok(()),
        done => done,
    }
}

/// The roles that do not exist yet. Where an operator of the database creates them, this may be a
/// while after the database itself.
pub async fn missing(connection: &mut PgConnection) -> Result<Vec<DatabaseRole>> {
    let mut missing = Vec::new();
    for role in ROLES {
        if !exists(connection, role).await? {
            missing.push(role);
        }
    }
    Ok(missing)
}

/// Creates the role with a login, or changes its password. `verifier` is what PostgreSQL stores
/// instead of a password, a SCRAM-SHA-256 secret, so the password itself does not get into the log
/// of the server. The owner needs `CREATEROLE` for this.
pub async fn set_password(
    connection: &mut PgConnection,
    role: DatabaseRole,
    verifier: &str,
) -> Result<()> {
    let verb = if exists(connection, role).await? {
        "ALTER"
    } else {
        "CREATE"
    };
    let quoted = verifier.replace('\'', "''");
    let statement = format!("{verb} ROLE {} LOGIN PASSWORD '{quoted}'", role.name);
    retry(connection, &statement).await
}

async fn exists(connection: &mut PgConnection, role: DatabaseRole) -> Result<bool> {
    let exists = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)")
        .bind(role.name);
    Ok(exists.fetch_one(connection).await?)
}

/// Executes the statements in one transaction, and tries again after a conflict with another
/// session that changed the same row of the catalogue.
async fn retry(connection: &mut PgConnection, statements: &str) -> Result<()> {
    let mut conflicts = 0;
    loop {
        let done = transaction!(connection, "roles", |transaction| -> Result<()> {
            let statements = sqlx::raw_sql(AssertSqlSafe(statements));
            statements.execute(&mut **transaction).await?;
            Ok(TransactionEnd::Commit(()))
        });
        match done {
            Err(error) if error.is_concurrent_update() && conflicts < CONFLICTS => conflicts += 1,
            ended => return ended,
        }
        tokio::time::sleep(Duration::from_millis(20) * conflicts).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_privileges_of_a_role_are_those_of_its_file() {
        let of = |name: &str| {
            let role = ROLES.into_iter().find(|role| role.of == name).unwrap();
            let privileges = role.privileges();
            privileges
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let ingress = of("ingress");
        for one in [
            "SELECT (partner_id) ON partners",
            "SELECT ON placements",
            "INSERT ON orders",
            "INSERT (endpoint_id) ON partner_endpoints",
            "UPDATE (blocked_until) ON partner_endpoints",
            "EXECUTE ON refuse_order(uuid, boolean)",
            "EXECUTE ON commits_lost(uuid, bigint, bigint)",
            "DELETE ON pulses",
        ] {
            assert!(
                ingress.iter().any(|known| known == one),
                "no {one} in {ingress:?}"
            );
        }
        for role in ROLES {
            for privilege in of(role.of) {
                let words = privilege.replace(", ", "");
                assert!(
                    !words.contains(['\n', ',', ';']),
                    "{}: {privilege}",
                    role.of
                );
            }
        }
    }
}

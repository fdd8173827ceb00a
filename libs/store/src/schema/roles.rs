//! One database role per stage and one for operators, each with the privileges of its statements: `libs/store/roles`.
//!
//! The owner of the tables grants. It needs no privilege beyond that, so this works without a superuser.
//! Roles that do not exist are skipped: a database without them serves the owner alone, as before.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::Result;

/// A role of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// The name in PostgreSQL, under which a stage logs in.
    pub name: &'static str,
    /// The name of the stage, or `operator`.
    pub of: &'static str,
    grants: &'static str,
}

macro_rules! role {
    ($of:literal) => {
        Role { name: concat!("esim_", $of), of: $of, grants: include_str!(concat!("../../roles/", $of, ".sql")) }
    };
}

pub const ROLES: [Role; 4] = [role!("ingress"), role!("provisioner"), role!("notifier"), role!("operator")];

/// How often a grant is tried again when another session changes the same row of the catalogue.
const CONFLICTS: u32 = 10;

/// Revokes all privileges of the role on tables of this owner, so that no older grant stays.
const REVOKE: &str = "DO $$
DECLARE
    owned regclass;
BEGIN
    FOR owned IN
        SELECT oid FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v')
          AND pg_has_role(relowner, 'USAGE')
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM ROLE_NAME', owned);
    END LOOP;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO ROLE_NAME', current_schema());
    IF pg_has_role('pg_read_all_stats', 'USAGE WITH ADMIN OPTION') THEN
        GRANT pg_read_all_stats TO ROLE_NAME;
    END IF;
END
$$;
GRANT SELECT ON _sqlx_migrations, _schema_serves TO ROLE_NAME;
";

/// Grants each existing role its privileges, and takes all others on tables. Returns the roles.
///
/// Running sessions see either the old or the new privileges.
pub async fn grant(connection: &mut PgConnection) -> Result<Vec<Role>> {
    let mut granted = Vec::new();
    for role in ROLES {
        if !exists(connection, role).await? {
            continue;
        }
        retry(connection, &(REVOKE.replace("ROLE_NAME", role.name) + role.grants)).await?;
        granted.push(role);
    }
    Ok(granted)
}

/// Creates the role, or gives it this password. `verifier` is what PostgreSQL stores of a password: a SCRAM-SHA-256
/// secret. The owner needs `CREATEROLE`.
pub async fn set_password(connection: &mut PgConnection, role: Role, verifier: &str) -> Result<()> {
    let verb = if exists(connection, role).await? { "ALTER" } else { "CREATE" };
    let quoted = verifier.replace('\'', "''");
    let statement = format!("{verb} ROLE {} LOGIN PASSWORD '{quoted}'", role.name);
    retry(connection, &statement).await
}

async fn exists(connection: &mut PgConnection, role: Role) -> Result<bool> {
    let exists = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)").bind(role.name);
    Ok(exists.fetch_one(connection).await?)
}

/// PostgreSQL refuses a change of a catalogue row that another session has just changed.
async fn retry(connection: &mut PgConnection, statements: &str) -> Result<()> {
    let mut conflicts = 0;
    loop {
        let mut transaction = connection.begin().await?;
        match sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut *transaction).await {
            Ok(_) => return Ok(transaction.commit().await?),
            Err(error) => {
                transaction.rollback().await?;
                let changed =
                    error.as_database_error().is_some_and(|error| error.message().contains("concurrently updated"));
                if !changed || conflicts == CONFLICTS {
                    return Err(error.into());
                }
            }
        }
        conflicts += 1;
        tokio::time::sleep(Duration::from_millis(20) * conflicts).await;
    }
}

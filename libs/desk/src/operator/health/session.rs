//! The session and its role, the server's settings, and the privileges of the stages' roles. It
//! reads catalogues and settings only, which every role may do, and changes nothing.

use pg::{Result, count, schema::DatabaseRole};
use sqlx::{PgConnection, Row};

/// The session of the caller, and the settings of its server that orders depend on.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent fact that the server states"
)]
pub struct ExaminedSession {
    /// The role that has logged in.
    pub role: String,
    /// The owner of the table `orders`; `None` if there is no such table.
    pub owner: Option<String>,
    pub is_superuser: bool,
    /// Whether the role sees the sessions of others and the standbys.
    pub sees_statistics: bool,
    /// For example 150004.
    pub version: i32,
    pub is_standby: bool,
    /// The server's time, in seconds since 1970.
    pub now: f64,
    pub synchronous_commit: String,
    pub synchronous_standby_names: String,
    pub fsync: bool,
    pub full_page_writes: bool,
    pub archives: bool,
    /// Connections of clients now, and the most that the server accepts of roles without
    /// privileges.
    pub connections: u64,
    pub max_connections: u64,
    /// Whether the connection is encrypted.
    pub encrypted: bool,
}

/// Reads [`ExaminedSession`].
pub async fn session(connection: &mut PgConnection) -> Result<ExaminedSession> {
    let row = sqlx::query(
        "SELECT current_user::text AS role,
                (SELECT pg_get_userbyid(relowner)::text FROM pg_class WHERE oid = to_regclass('orders')) AS owner,
                (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS is_superuser,
                pg_has_role('pg_read_all_stats', 'USAGE') AS sees_statistics,
                current_setting('server_version_num')::int AS version,
                pg_is_in_recovery() AS is_standby,
                extract(epoch FROM clock_timestamp())::float8 AS now,
                current_setting('synchronous_commit') AS synchronous_commit,
                current_setting('synchronous_standby_names') AS synchronous_standby_names,
                current_setting('fsync')::bool AS fsync,
                current_setting('full_page_writes')::bool AS full_page_writes,
                current_setting('archive_mode') <> 'off' AS archives,
                (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
                current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
                    AS max_connections,
                coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false) AS encrypted",
    )
    .fetch_one(connection)
    .await?;
    Ok(ExaminedSession {
        role: row.try_get("role")?,
        owner: row.try_get("owner")?,
        is_superuser: row.try_get("is_superuser")?,
        sees_statistics: row.try_get("sees_statistics")?,
        version: row.try_get("version")?,
        is_standby: row.try_get("is_standby")?,
        now: row.try_get("now")?,
        synchronous_commit: row.try_get("synchronous_commit")?,
        synchronous_standby_names: row.try_get("synchronous_standby_names")?,
        fsync: row.try_get("fsync")?,
        full_page_writes: row.try_get("full_page_writes")?,
        archives: row.try_get("archives")?,
        connections: count(row.try_get("connections")?),
        max_connections: count(row.try_get("max_connections")?),
        encrypted: row.try_get("encrypted")?,
    })
}

/// A role of a stage as the server has it.
#[derive(Clone, Debug)]
pub struct RoleState {
    /// Whether it may log in.
    pub logs_in: bool,
    /// Whether it could do the work of every other role: it is a superuser, may create roles, or is
    /// a member of the tables' owner.
    pub is_powerful: bool,
    /// Privileges that its program needs and that it lacks, such as `SELECT ON orders`.
    pub missing: Vec<String>,
    /// Its [settings](pg::schema::settings).
    pub settings: Vec<String>,
}

/// Reads the state of a role; `None` if it does not exist.
pub async fn role(connection: &mut PgConnection, role: DatabaseRole) -> Result<Option<RoleState>> {
    let row = sqlx::query(
        "SELECT rolcanlogin, rolsuper OR rolcreaterole OR rolbypassrls OR coalesce(
                    (SELECT pg_has_role(r.oid, relowner, 'MEMBER') FROM pg_class WHERE oid = to_regclass('orders')),
                    false) AS powerful
         FROM pg_roles r WHERE rolname = $1",
    )
    .bind(role.name)
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let mut missing = Vec::new();
    for privilege in role.privileges() {
        // A table that is missing shows as an old schema, and says nothing about privileges.
        let has = match (privilege.function, privilege.column) {
            (true, _) => "SELECT has_function_privilege($1, to_regprocedure($3)::oid, $2)",
            (_, None) => "SELECT has_table_privilege($1, to_regclass($3)::oid, $2)",
            (_, Some(_)) => "SELECT has_column_privilege($1, to_regclass($3)::oid, $4, $2)",
        };
        let mut query = sqlx::query_scalar::<_, Option<bool>>(has)
            .bind(role.name)
            .bind(privilege.verb)
            .bind(privilege.object);
        if let Some(column) = privilege.column {
            query = query.bind(column);
        }
        if query.fetch_one(&mut *connection).await? == Some(false) {
            missing.push(privilege.to_string());
        }
    }
    Ok(Some(RoleState {
        logs_in: row.try_get("rolcanlogin")?,
        is_powerful: row.try_get("powerful")?,
        missing,
        settings: pg::schema::settings(connection, role).await?,
    }))
}

/// Indexes that PostgreSQL does not use, because their build was interrupted.
pub async fn invalid_indexes(connection: &mut PgConnection) -> Result<Vec<String>> {
    let query = sqlx::query_scalar(
        "SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
         WHERE NOT indisvalid AND relnamespace = current_schema()::regnamespace ORDER BY 1",
    );
    Ok(query.fetch_all(connection).await?)
}

//! PostgreSQL: whether it can be reached, its schema, its durability and its clock.

use std::time::Duration;

use desk::operator::health::{
    self, Finding, FindingKind,
    finding::Clock,
    session::{self, ExaminedSession},
};
use pg::{
    PgConnection,
    schema::{self, SchemaError},
    server::{self, ServerState},
};
use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use time::OffsetDateTime;
use tokio::time::timeout;

use crate::{
    doctor::{
        command::DoctorArgs,
        line::{Area, Lines},
        roles,
    },
    output::one_line,
};

const PATIENCE: Duration = Duration::from_secs(10);
/// The difference of clocks that is a warning.
const SKEW: f64 = 2.0;
/// The oldest supported major version of PostgreSQL.
const OLDEST: i32 = 15;

/// Checks the server. Returns the connection if the schema is the one of this version, because the
/// other checks need it.
pub async fn check(
    command: &DoctorArgs,
    options: PgConnectOptions,
    lines: &mut Lines<'_>,
) -> Option<PgConnection> {
    let mut connection = connect(&options, lines).await?;
    let before = runtime::clock::now();
    let session = match session::session(&mut connection).await {
        Ok(session) => session,
        Err(error) => {
            lines.fault(
                "settings",
                format!("the server's settings cannot be read: {error}"),
                "point DATABASE_URL at PostgreSQL itself",
                "docs/operations.md#databasedown",
            );
            return None;
        }
    };
    clock(&session, before, lines);
    version(&session, &options, lines);
    synchronous(command, &session, lines);
    let usable = schema(&mut connection, lines).await;
    roles::own(&session, lines);
    match server::find_room(&mut connection).await {
        Ok(()) => lines.fine("room", "there is room to write on its disk"),
        Err(error) => {
            let why = error.to_string();
            lines.finding(Finding::new(FindingKind::DatabaseDown { why }, None));
        }
    }
    match server::server(&mut connection).await {
        Ok(server) => state(command, &session, &server, lines),
        Err(error) => lines.fault(
            "server",
            format!("the server's state cannot be read: {error}"),
            "see the log of PostgreSQL",
            "docs/operations.md#databasedown",
        ),
    }
    if !usable {
        return None;
    }
    roles::check(&mut connection, lines).await;
    Some(connection)
}

async fn connect(options: &PgConnectOptions, lines: &mut Lines<'_>) -> Option<PgConnection> {
    let why = match timeout(PATIENCE, options.connect()).await {
        Err(_) => format!("it does not answer within {PATIENCE:?}"),
        Ok(Err(error)) => match SchemaError::refused(&error) {
            Some(pooler) => {
                lines.fault(
                    "connection",
                    one_line(&pooler.to_string()),
                    "point DATABASE_URL at PostgreSQL itself",
                    "docs/operations.md#upgrade",
                );
                return None;
            }
            None => format!("it cannot be reached: {}", one_line(&error.to_string())),
        },
        Ok(Ok(connection)) => {
            lines.fine("connection", "PostgreSQL answers");
            return Some(connection);
        }
    };
    lines.finding(Finding::new(FindingKind::DatabaseDown { why }, None));
    None
}

/// Compares the server's clock with the middle of the time that its answer took.
fn clock(session: &ExaminedSession, before: OffsetDateTime, lines: &mut Lines<'_>) {
    let after = runtime::clock::now();
    let middle = before + (after - before) / 2;
    let here = seconds_of(middle);
    skew(Clock::Postgresql, session.now - here, lines);
}

pub fn seconds_of(moment: OffsetDateTime) -> f64 {
    (moment - OffsetDateTime::UNIX_EPOCH).as_seconds_f64()
}

/// The line about a clock that is this many seconds ahead of ours.
pub fn skew(of: Clock, ahead: f64, lines: &mut Lines<'_>) {
    if ahead.abs() < SKEW {
        let check = match of {
            Clock::Postgresql | Clock::Nats | Clock::Stage(_) => "clock",
            Clock::Openid => "openid clock",
        };
        lines.fine(
            check,
            format!("the clock of {} agrees with ours", of.owner()),
        );
    } else {
        lines.finding(Finding::new(FindingKind::ClockOff { of, ahead }, None));
    }
}

fn version(session: &ExaminedSession, options: &PgConnectOptions, lines: &mut Lines<'_>) {
    let major = session.version / 10_000;
    if major < OLDEST {
        lines.fault(
            "version",
            format!("PostgreSQL {major} is too old"),
            format!("upgrade it to {OLDEST} or newer"),
            "docs/operations.md#upgrade",
        );
    } else {
        lines.fine("version", format!("PostgreSQL {major}"));
    }
    let host = options.get_host();
    let here = options.get_socket().is_some()
        || host.starts_with('/')
        || host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback());
    if session.encrypted || here {
        lines.fine(
            "encryption",
            "the connection is encrypted, or stays on this machine",
        );
    } else {
        lines.warning(
            "encryption",
            "passwords and orders go over the network to PostgreSQL without TLS",
            "set sslmode=verify-full and sslrootcert",
            "docs/operations.md#start",
        );
    }
}

/// Whether commits wait for a standby as the stages demand.
fn synchronous(command: &DoctorArgs, session: &ExaminedSession, lines: &mut Lines<'_>) {
    let replicated = !session.synchronous_standby_names.is_empty()
        && !["local", "off"].contains(&session.synchronous_commit.as_str());
    if command.require_synchronous && !replicated {
        lines.finding(Finding::new(FindingKind::NotSynchronous, None));
    } else {
        let what = if replicated {
            "a standby"
        } else {
            "no standby"
        };
        lines.fine(
            "synchronous",
            format!("commits wait for {what}, as they should"),
        );
    }
}

/// Whether the schema is one that this version works with.
async fn schema(connection: &mut PgConnection, lines: &mut Lines<'_>) -> bool {
    match schema::check(connection).await {
        Ok(version) => {
            lines.fine("schema", format!("version {version} serves this version"));
        }
        Err(error) => {
            let remedy = match &error {
                SchemaError::Behind { .. } => "run `esimctl migrate` as the owner of the tables",
                SchemaError::Ahead { .. } => "use the esimctl of the version that runs",
                SchemaError::BeforeBaseline => {
                    "name an empty database, and run `esimctl migrate` on it"
                }
                _ => "point DATABASE_URL at PostgreSQL itself, and at the database of the system",
            };
            lines.fault(
                "schema",
                one_line(&error.to_string()),
                remedy,
                "docs/operations.md#upgrade",
            );
            return false;
        }
    }
    match session::invalid_indexes(connection).await {
        Ok(invalid) if invalid.is_empty() => lines.fine("indexes", "all are built"),
        Ok(invalid) => lines.warning(
            "indexes",
            format!("their build was interrupted: {}", invalid.join(", ")),
            "run `esimctl migrate` again, which builds them anew",
            "docs/operations.md#upgrade",
        ),
        Err(error) => lines.warning(
            "indexes",
            format!("cannot be read: {error}"),
            "see the log of PostgreSQL",
            "docs/operations.md#databasedown",
        ),
    }
    true
}

/// What the health of the system says about the server, and what it could not see.
fn state(
    command: &DoctorArgs,
    session: &ExaminedSession,
    server: &ServerState,
    lines: &mut Lines<'_>,
) {
    let mut findings = Vec::new();
    health::of_server(session, server, &mut findings);
    // Whether WAL is archived at all is part of the backup, which somebody may have left out on
    // purpose.
    let wants_backup = command.wants(Area::Backup);
    findings.retain(|one| wants_backup || !matches!(one.kind, FindingKind::NotArchived));
    let used = format!(
        "{} of {} connections",
        session.connections, session.max_connections
    );
    let mut fine = vec![
        ("primary", "it takes writes".to_owned()),
        (
            "durability",
            "a commit is on disk before it is acknowledged".to_owned(),
        ),
        ("connections", used),
        (
            "wraparound",
            format!("the oldest row is {} transactions old", server.xid_age),
        ),
    ];
    if session.sees_statistics {
        let archived = if session.archives {
            "WAL is archived"
        } else {
            "left out with the backup"
        };
        fine.extend([
            (
                "statistics",
                "standbys and other sessions are visible".to_owned(),
            ),
            ("transactions", "none is open for long".to_owned()),
            ("archive", archived.to_owned()),
            ("standbys", format!("{} stream", server.standbys)),
        ]);
    } else {
        lines.warning(
            "statistics",
            format!(
                "{} cannot see standbys and other sessions, so they were not checked",
                session.role
            ),
            format!(
                "run as a superuser: psql -c 'GRANT pg_read_all_stats TO {}'",
                session.role
            ),
            "docs/operations.md#what-prometheus-scrapes",
        );
    }
    lines.findings(findings, &fine);
}

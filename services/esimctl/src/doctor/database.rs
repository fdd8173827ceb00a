//! PostgreSQL: whether it can be reached, its schema, its durability and its clock.

use std::time::Duration;

use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use store::{
    PgConnection,
    operator::health::{self, Session},
    schema::{self, SchemaError},
    server::{self, Server},
};
use time::OffsetDateTime;
use tokio::time::timeout;

use crate::{
    doctor::{Command, line::Lines, roles},
    output::one_line,
};

const PATIENCE: Duration = Duration::from_secs(10);
/// The difference of clocks that is a warning, and the one at which no stage starts.
const SKEW: f64 = 2.0;
const SKEW_AT_START: f64 = 30.0;
/// The oldest supported major version of PostgreSQL.
const OLDEST: i32 = 15;
/// From these ages of the oldest transaction id on, in transactions. As in the alerts `XidAgeHigh` and
/// `XidAgeCritical`.
const XID_HIGH: u64 = 500_000_000;
const XID_CRITICAL: u64 = 1_500_000_000;

/// Checks the server. Returns the connection if the schema is the one of this version, because the
/// other checks need it.
pub async fn check(
    command: &Command,
    options: PgConnectOptions,
    lines: &mut Lines<'_>,
) -> Option<PgConnection> {
    let mut connection = connect(&options, lines).await?;
    let before = runtime::clock::now();
    let session = match health::session(&mut connection).await {
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
    durability(command, &session, lines);
    connections(&session, lines);
    let usable = schema(&mut connection, lines).await;
    roles::own(&session, lines);
    match server::server(&mut connection).await {
        Ok(server) => state(&session, &server, lines),
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
    let remedy = "check DATABASE_URL, the password and that the server is up";
    let see = "docs/operations.md#databasedown";
    match timeout(PATIENCE, options.connect()).await {
        Err(_) => lines.fault(
            "connection",
            format!("PostgreSQL does not answer within {PATIENCE:?}"),
            remedy,
            see,
        ),
        Ok(Err(error)) => match SchemaError::refused(&error) {
            Some(pooler) => lines.fault(
                "connection",
                one_line(&pooler.to_string()),
                "point DATABASE_URL at PostgreSQL itself",
                "docs/operations.md#upgrade",
            ),
            None => lines.fault(
                "connection",
                format!(
                    "PostgreSQL cannot be reached: {}",
                    one_line(&error.to_string())
                ),
                remedy,
                see,
            ),
        },
        Ok(Ok(connection)) => {
            lines.fine("connection", "PostgreSQL answers");
            return Some(connection);
        }
    }
    None
}

/// Compares the server's clock with the middle of the time that its answer took.
fn clock(session: &Session, before: OffsetDateTime, lines: &mut Lines<'_>) {
    let after = runtime::clock::now();
    let middle = before + (after - before) / 2;
    let here = seconds_of(middle);
    let ahead = session.now - here;
    skew("clock", "PostgreSQL", ahead, lines);
}

pub fn seconds_of(moment: OffsetDateTime) -> f64 {
    (moment - OffsetDateTime::UNIX_EPOCH).as_seconds_f64()
}

/// The line about a clock that is this many seconds ahead of ours.
pub fn skew(check: &'static str, of: &str, ahead: f64, lines: &mut Lines<'_>) {
    if ahead.abs() < SKEW {
        lines.fine(check, format!("the clock of {of} agrees with ours"));
    } else {
        let side = if ahead > 0.0 { "ahead of" } else { "behind" };
        lines.bad(
            ahead.abs() > SKEW_AT_START,
            check,
            format!(
                "the clock of {of} is {:.0} s {side} this machine's",
                ahead.abs()
            ),
            "synchronise the clocks of all machines (NTP); no stage starts at a difference of 30 s",
            "docs/operations.md#clockskew",
        );
    }
}

fn version(session: &Session, options: &PgConnectOptions, lines: &mut Lines<'_>) {
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

fn durability(command: &Command, session: &Session, lines: &mut Lines<'_>) {
    if session.is_standby {
        lines.fault(
            "primary",
            "DATABASE_URL leads to a standby, which takes no orders",
            "point DATABASE_URL, or the proxy that it names, at the primary",
            "docs/operations.md#failover-of-postgresql",
        );
    } else {
        lines.fine("primary", "it takes writes");
    }
    let unsafe_settings: Vec<&str> = [
        ("fsync", session.fsync),
        ("full_page_writes", session.full_page_writes),
        ("synchronous_commit", session.synchronous_commit != "off"),
    ]
    .into_iter()
    .filter_map(|(name, safe)| (!safe).then_some(name))
    .collect();
    if unsafe_settings.is_empty() {
        lines.fine(
            "durability",
            "a commit is on disk before it is acknowledged",
        );
    } else {
        lines.fault(
            "durability",
            format!(
                "a crash of the server loses answered orders, because it is off: {}",
                unsafe_settings.join(", ")
            ),
            "turn it on and restart PostgreSQL",
            "docs/operations.md#commitslost",
        );
    }
    let replicated = !session.synchronous_standby_names.is_empty()
        && !["local", "off"].contains(&session.synchronous_commit.as_str());
    if command.require_synchronous && !replicated {
        lines.fault(
            "synchronous",
            "commits wait for no standby, although REQUIRE_SYNCHRONOUS is set, so no stage works",
            "connect a synchronous standby and name it in synchronous_standby_names",
            "docs/operations.md#standbynotsynchronous",
        );
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

fn connections(session: &Session, lines: &mut Lines<'_>) {
    let used = format!(
        "{} of {} connections",
        session.connections, session.max_connections
    );
    if session.connections * 10 >= session.max_connections * 8 {
        lines.warning(
            "connections",
            format!("{used} are in use"),
            "lower DATABASE_CONNECTIONS, or raise max_connections",
            "docs/operations.md#databasepoolexhausted",
        );
    } else {
        lines.fine("connections", used);
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
    match health::invalid_indexes(connection).await {
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

fn state(session: &Session, server: &Server, lines: &mut Lines<'_>) {
    let age = server.xid_age;
    if age < XID_HIGH {
        lines.fine(
            "wraparound",
            format!("the oldest row is {age} transactions old"),
        );
    } else {
        let see = if age < XID_CRITICAL {
            "docs/operations.md#xidagehigh"
        } else {
            "docs/operations.md#xidagecritical"
        };
        lines.bad(
            age >= XID_CRITICAL,
            "wraparound",
            format!("the oldest row is {age} transactions old; PostgreSQL stops all writes near 2 billion"),
            "find what holds vacuum back",
            see,
        );
    }
    if !session.sees_statistics {
        lines.warning(
            "statistics",
            format!(
                "{} cannot see standbys and other sessions, so they were not checked",
                session.role
            ),
            "grant it pg_read_all_stats",
            "docs/operations.md#what-prometheus-scrapes",
        );
        return;
    }
    lines.fine("statistics", "standbys and other sessions are visible");
    if server.longest_transaction > Duration::from_hours(1) {
        lines.warning(
            "transactions",
            format!(
                "a transaction has been open for {:?}",
                round(server.longest_transaction)
            ),
            "find its session and end it",
            "docs/operations.md#longtransaction",
        );
    } else {
        lines.fine("transactions", "none is open for long");
    }
    if !session.archives {
        lines.warning(
            "archive",
            "WAL is not archived, so a restore loses everything since the last base backup",
            "set archive_mode and archive_command, or use the operator's plug-in",
            "docs/operations.md#back-up-and-restore",
        );
    } else if server.unarchived > Duration::from_mins(10) {
        lines.fault(
            "archive",
            format!(
                "WAL has not been archived for {:?}",
                round(server.unarchived)
            ),
            "see the log of the archiver; the disk fills until it works",
            "docs/operations.md#archivelags",
        );
    } else {
        lines.fine("archive", "WAL is archived");
    }
    if !session.synchronous_standby_names.is_empty() && server.standbys == 0 {
        lines.fault(
            "standbys",
            "synchronous_standby_names names a standby, but none streams, so commits wait",
            "start the standby; only if it is lost for good, empty synchronous_standby_names",
            "docs/operations.md#standbymissing",
        );
    } else if server.standby_lag > Duration::from_mins(1) {
        lines.warning(
            "standbys",
            format!("a standby is {:?} behind", round(server.standby_lag)),
            "see the load of the standby and the network to it",
            "docs/operations.md#standbylags",
        );
    } else {
        lines.fine("standbys", format!("{} stream", server.standbys));
    }
}

pub fn round(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs())
}

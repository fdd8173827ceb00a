//! `esimctl doctor`: looks at everything that a working system needs, and says what is wrong, with
//! the remedy and the section of the runbook.
//!
//! It runs on an operator's machine or in a pod, and changes nothing. It looks from outside: at
//! PostgreSQL, at NATS, at the OpenID provider of the console and at files. It asks no process of
//! the services, because their admin ports are closed to most places, but each of them shows in the
//! database that it runs. Each check is one line: fine, a warning or a fault. A check that cannot
//! be made, because it was not told where to look, is a warning, so that nobody takes silence for
//! health; `--without` leaves it out on purpose. One check never keeps the others from being made.

mod command;
mod database;
mod files;
mod keys;
pub(crate) mod line;
mod names;
mod nats;
mod openid;
mod roles;
mod work;

use desk::operator::words::counted;
use pg::PgConnection;
use serde_json::json;

pub use self::command::DoctorArgs;
use crate::{
    console::Console,
    doctor::line::{Area, Line, Lines, State},
};

pub const EXAMPLES: &str = "Examples:
  esimctl doctor
  esimctl doctor --quiet                          prints only what is not fine
  esimctl doctor --without nats,backup --json
  esimctl doctor --secrets secrets/ --metrics /var/lib/node_exporter/esim_backup.prom

It needs DATABASE_URL of the operator's role. NATS_URL with NATS_PASSWORD, the master keys, and files of metrics are
optional; what they would show is a warning without them, until --without leaves it out. Sign-in by OpenID Connect is
checked if OIDC_ISSUER is set: give the doctor all OIDC_… settings of the console. The metrics of CloudNativePG's
pod are such a file, too: kubectl get --raw /api/v1/namespaces/esim/pods/esim-db-1:9187/proxy/metrics >db.prom

Exit status: 0 everything is fine or ends by itself, 1 there are warnings, 2 there are faults (or arguments or settings
are wrong). --json prints {\"state\":…,\"lines\":[{\"state\":…,\"area\":…,\"check\":…,\"found\":…,\"remedy\":…,\"see\":…}]}.";

/// Runs all checks, prints their lines and returns the exit status.
pub async fn run(command: &DoctorArgs, console: &Console) -> anyhow::Result<u8> {
    let options = console.database()?;
    let mut lines = Vec::new();
    let mut connection;
    if command.wants(Area::Database) {
        let mut found = Lines::of(Area::Database, &mut lines);
        connection = database::check(command, options.clone(), &mut found).await;
        if let Some(secrets) = &command.secrets {
            roles::log_in(&options, secrets, &mut found).await;
        }
    } else {
        // The other areas need a connection, too. If there is none, their lines are missing, and
        // the reason is a fault all the same.
        let mut none = Vec::new();
        let mut found = Lines::of(Area::Database, &mut none);
        connection = database::check(command, options, &mut found).await;
        if connection.is_none() {
            lines.extend(none.into_iter().filter(|line| line.state == State::Fault));
        }
    }
    if let Some(connection) = &mut connection {
        of_database(command, connection, &mut lines).await;
    }
    if command.wants(Area::Nats) {
        nats::check(command, &mut Lines::of(Area::Nats, &mut lines)).await;
    }
    if command.wants(Area::Openid) {
        openid::check(&command.openid, &mut Lines::of(Area::Openid, &mut lines)).await;
    }
    if command.wants(Area::Backup) {
        files::check(&command.metrics, &mut Lines::of(Area::Backup, &mut lines));
    }
    print(command, console, &lines)
}

/// The areas that read the database.
async fn of_database(command: &DoctorArgs, connection: &mut PgConnection, lines: &mut Vec<Line>) {
    if command.wants(Area::Keys) {
        keys::check(command, connection, &mut Lines::of(Area::Keys, lines)).await;
    }
    work::check(command, connection, lines).await;
    if command.wants(Area::Names) {
        names::check(
            &command.webhook_resolvers,
            connection,
            &mut Lines::of(Area::Names, lines),
        )
        .await;
    }
}

fn print(command: &DoctorArgs, console: &Console, lines: &[Line]) -> anyhow::Result<u8> {
    let worst = lines.iter().map(|line| line.state).max();
    let worst = worst.unwrap_or(State::Fine);
    let shown: Vec<&Line> = lines
        .iter()
        .filter(|line| !command.quiet || line.state != State::Fine)
        .collect();
    if console.is_json() || !shown.is_empty() {
        console.print(&json!({ "state": worst, "lines": shown }), || {
            let mut text: Vec<String> = shown.iter().map(|line| line.text()).collect();
            let count = |state| {
                let lines = lines.iter().filter(|line| line.state == state).count();
                i64::try_from(lines).unwrap_or(i64::MAX)
            };
            let mends = match count(State::Mends) {
                0 => String::new(),
                number => {
                    let ends = counted(number, "ends by itself", "end by themselves");
                    format!("{ends}, ")
                }
            };
            text.push(format!(
                "{} fine, {mends}{}, {}",
                count(State::Fine),
                counted(count(State::Warning), "warning", "warnings"),
                counted(count(State::Fault), "fault", "faults"),
            ));
            text.join("\n")
        })?;
    }
    Ok(line::exit_status(lines))
}

#[cfg(test)]
mod tests {
    /// The anchors of the headings of a page, as GitHub makes them.
    fn anchors(page: &str) -> Vec<String> {
        let headings = page.lines().filter(|line| line.starts_with("##"));
        headings
            .map(|line| {
                let text = line.trim_start_matches('#').trim().to_lowercase();
                let kept = text
                    .chars()
                    .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-');
                kept.collect::<String>().replace(' ', "-")
            })
            .collect()
    }

    #[test]
    fn every_section_that_a_line_names_exists() {
        let page = include_str!("../../../docs/operations.md");
        let anchors = anchors(page);
        let sources = [
            include_str!("doctor/database.rs"),
            include_str!("doctor/roles.rs"),
            include_str!("doctor/keys.rs"),
            include_str!("doctor/nats.rs"),
            include_str!("doctor/openid.rs"),
            include_str!("doctor/work.rs"),
            include_str!("doctor/names.rs"),
            include_str!("doctor/files.rs"),
        ];
        let mut named = 0;
        for source in sources {
            for rest in source.split("docs/operations.md#").skip(1) {
                let anchor: String = rest
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '-')
                    .collect();
                assert!(anchors.contains(&anchor), "{anchor} is no section");
                named += 1;
            }
        }
        assert!(named > 15, "{named}");
        // A finding names the section of its alert, which the stage `observability` compares with
        // the page, or one of these.
        let findings = include_str!("../../../libs/desk/src/operator/health/finding.rs");
        let (_, sections) = findings.split_once("pub fn see(&self)").unwrap();
        let (sections, _) = sections.split_once("docs/operations.md#").unwrap();
        let of_findings: Vec<&str> = sections
            .split('"')
            .skip(1)
            .step_by(2)
            .filter(|section| !section.is_empty())
            .collect();
        assert!(of_findings.len() > 3, "{of_findings:?}");
        for anchor in of_findings {
            assert!(
                anchors.iter().any(|one| one == anchor),
                "{anchor} is no section"
            );
        }
    }
}

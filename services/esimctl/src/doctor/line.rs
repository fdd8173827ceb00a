//! What a check has found: one line for each.

use std::borrow::Cow;

use clap::ValueEnum;
use desk::operator::health::{
    Finding, FindingKind,
    finding::{Clock, Matter, Severity},
};
use serde::Serialize;

use crate::output::printable;

/// What the checks are about, for `--without`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// Server, schema, roles, durability, standbys, clock
    Database,
    /// Master keys, and the files of secrets
    Keys,
    /// Server, users and streams
    Nats,
    /// Whether each stage runs
    Stages,
    /// Due rows, breakers, endpoints, retention
    Work,
    /// Name servers for webhooks
    Names,
    /// Sign-in at the console by OpenID Connect
    Openid,
    /// Last base backup, last tested restore, disks
    Backup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Fine,
    /// Something is wrong that ends by itself. Nobody is needed.
    Mends,
    /// Orders go on. Look at it today.
    Warning,
    /// Orders are refused, late or not safe, or soon will be.
    Fault,
}

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub state: State,
    pub area: Area,
    /// A short name of the check, for scripts.
    pub check: &'static str,
    pub found: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The section that explains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub see: Option<Cow<'static, str>>,
    /// What was found as a code, where `status`, `attention` and the console know it, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finding: Option<Finding>,
    /// The alert that fires for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alert: Option<&'static str>,
}

impl Line {
    /// The text for people. Control characters are escaped, because names come from partners.
    pub fn text(&self) -> String {
        let state = match self.state {
            State::Fine => "fine",
            State::Mends => "mends",
            State::Warning => "warning",
            State::Fault => "FAULT",
        };
        let mut text = format!("{state:7}  {}: {}", self.check, printable(&self.found));
        if let Some(remedy) = &self.remedy {
            text = format!("{text}\n         do: {}", printable(remedy));
        }
        if let Some(see) = &self.see {
            text = format!("{text}\n         see: {see}");
        }
        text
    }
}

/// The lines of one area.
pub struct Lines<'a> {
    area: Area,
    lines: &'a mut Vec<Line>,
}

impl<'a> Lines<'a> {
    pub fn of(area: Area, lines: &'a mut Vec<Line>) -> Self {
        Self { area, lines }
    }

    pub fn fine(&mut self, check: &'static str, found: impl Into<String>) {
        self.lines.push(Line {
            state: State::Fine,
            area: self.area,
            check,
            found: found.into(),
            remedy: None,
            see: None,
            finding: None,
            alert: None,
        });
    }

    pub fn warning(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
        see: &'static str,
    ) {
        self.push(State::Warning, check, (found.into(), remedy.into(), see));
    }

    pub fn fault(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
        see: &'static str,
    ) {
        self.push(State::Fault, check, (found.into(), remedy.into(), see));
    }

    /// A fault if `is_fault`, and otherwise a warning.
    pub fn bad(
        &mut self,
        is_fault: bool,
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
        see: &'static str,
    ) {
        let state = if is_fault {
            State::Fault
        } else {
            State::Warning
        };
        self.push(state, check, (found.into(), remedy.into(), see));
    }

    fn push(
        &mut self,
        state: State,
        check: &'static str,
        (found, remedy, see): (String, String, &'static str),
    ) {
        self.lines.push(Line {
            state,
            area: self.area,
            check,
            found,
            remedy: Some(remedy),
            see: Some(see.into()),
            finding: None,
            alert: None,
        });
    }

    /// A line of what the health of the system has found.
    pub fn finding(&mut self, finding: Finding) {
        let told = finding.told();
        let (area, check) = place(&finding.kind);
        let remedy = match &told.command {
            Some(command) => format!("{}: `{command}`", told.remedy),
            None => told.remedy.into_owned(),
        };
        self.lines.push(Line {
            state: match told.severity {
                Severity::Mends => State::Mends,
                Severity::Warning => State::Warning,
                Severity::Fault => State::Fault,
            },
            area,
            check,
            found: told.what,
            remedy: Some(remedy),
            see: Some(told.see.into()),
            finding: Some(finding),
            alert: told.alert,
        });
    }

    /// The lines of what was found in this area, and a line for each of these checks that has found
    /// nothing.
    pub fn findings(
        &mut self,
        findings: impl IntoIterator<Item = Finding>,
        fine: &[(&'static str, String)],
    ) {
        let mut found = Vec::new();
        for finding in findings {
            let (area, check) = place(&finding.kind);
            if area == self.area {
                found.push(check);
                self.finding(finding);
            }
        }
        for (check, text) in fine {
            if !found.contains(check) {
                self.fine(check, text.clone());
            }
        }
    }
}

/// The lines of what was found in these areas, unless a check of their own has found it already.
pub fn others(
    lines: &mut Vec<Line>,
    findings: impl IntoIterator<Item = Finding>,
    wanted: impl Fn(Area) -> bool,
) {
    for finding in findings {
        let (area, _) = place(&finding.kind);
        let is_other = !matches!(area, Area::Stages | Area::Work) && wanted(area);
        let matter = finding.kind.matter();
        let is_known = lines.iter().any(|line| {
            let known = line.finding.as_ref();
            known.is_some_and(|known| known.kind.matter() == matter)
        });
        if is_other && !is_known {
            Lines::of(area, lines).finding(finding);
        }
    }
}

/// The exit status of the doctor: that of its worst line.
pub fn exit_status(lines: &[Line]) -> u8 {
    match lines.iter().map(|line| line.state).max() {
        None | Some(State::Fine | State::Mends) => 0,
        Some(State::Warning) => 1,
        Some(State::Fault) => 2,
    }
}

/// The area and the check in which something shows.
pub fn place(kind: &FindingKind) -> (Area, &'static str) {
    match kind.matter() {
        Matter::ClockOff
            if matches!(
                kind,
                FindingKind::ClockOff {
                    of: Clock::Openid,
                    ..
                }
            ) =>
        {
            (Area::Openid, "openid clock")
        }
        Matter::DatabaseDown => (Area::Database, "connection"),
        Matter::OnStandby => (Area::Database, "primary"),
        Matter::NotDurable => (Area::Database, "durability"),
        Matter::NotSynchronous => (Area::Database, "synchronous"),
        Matter::StandbyMissing | Matter::StandbyLags => (Area::Database, "standbys"),
        Matter::ClockOff => (Area::Database, "clock"),
        Matter::Wraparound => (Area::Database, "wraparound"),
        Matter::ConnectionsFew => (Area::Database, "connections"),
        Matter::LongTransaction => (Area::Database, "transactions"),
        Matter::NotArchived | Matter::ArchiveLags => (Area::Database, "archive"),
        Matter::StageDead | Matter::ProcessesMissing => (Area::Stages, "stages"),
        Matter::CommitsLost | Matter::BreakerOpen => (Area::Work, "breakers"),
        Matter::Unserved => (Area::Work, "providers"),
        Matter::PurchasesLate => (Area::Work, "due placements"),
        Matter::WebhooksLate => (Area::Work, "due webhooks"),
        Matter::Slow => (Area::Work, "speed"),
        Matter::Parked => (Area::Work, "parked"),
        Matter::GiveBacksParked => (Area::Work, "parked give-backs"),
        Matter::ExtensionsParked => (Area::Work, "parked extensions"),
        Matter::OrdersFail => (Area::Work, "orders"),
        Matter::NoAddress => (Area::Work, "webhooks without an address"),
        Matter::Exhausted => (Area::Work, "exhausted webhooks"),
        Matter::Paused | Matter::Blocked => (Area::Work, "endpoints"),
        Matter::LanesHeldBack => (Area::Work, "lanes"),
        Matter::AccountsDisagree => (Area::Work, "accounts"),
        Matter::BalanceRunsOut => (Area::Work, "balances"),
        Matter::SoldBelowCost => (Area::Work, "prices"),
        Matter::RetentionBehind => (Area::Work, "retention"),
        Matter::NatsDown => (Area::Nats, "nats"),
        Matter::NatsRefuses => (Area::Nats, "permissions"),
        Matter::StreamMissing | Matter::ReplicasMissing => (Area::Nats, "streams"),
        Matter::ConsumerMissing => (Area::Nats, "consumers"),
        Matter::DeadMessages => (Area::Nats, "dead messages"),
        Matter::BackupOld => (Area::Backup, "backup"),
        Matter::DrillOld => (Area::Backup, "drill"),
        Matter::DiskFilling => (Area::Backup, "disk"),
    }
}

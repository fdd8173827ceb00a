//! What a check has found: one line for each.

use clap::ValueEnum;
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
    pub see: Option<&'static str>,
}

impl Line {
    /// The text for people. Control characters are escaped, because names come from partners.
    pub fn text(&self) -> String {
        let state = match self.state {
            State::Fine => "fine",
            State::Warning => "warning",
            State::Fault => "FAULT",
        };
        let mut text = format!("{state:7}  {}: {}", self.check, printable(&self.found));
        if let Some(remedy) = &self.remedy {
            text = format!("{text}\n         do: {}", printable(remedy));
        }
        if let Some(see) = self.see {
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
            see: Some(see),
        });
    }
}

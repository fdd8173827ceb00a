//! What people are told when a program cannot use PostgreSQL. The program that notices it can read
//! nothing else, so its readiness tells it (`/readyz`); `esimctl doctor` tells the same. It stands
//! here, below all that reads findings, because every stage needs it, and no stage needs what reads
//! them.

use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// The alert that fires if a program cannot use the server.
pub const ALERT: &str = "DatabaseDown";
/// Who feels it.
pub const FELT: &str = "If all processes see it, no partner can order: orders get a 500.";
/// What to do.
pub const REMEDY: &str =
    "see whether the server is up and its disk has room; this program tries again by itself";
/// The same of clocks that differ.
pub const CLOCK_ALERT: &str = "ClockSkew";
pub const CLOCK_FELT: &str =
    "Partners sign the time of their requests: from five minutes on, orders get a 401.";
pub const CLOCK_REMEDY: &str =
    "synchronise the clocks of all machines (NTP); no stage works at a difference of 30 s";
/// The difference in seconds at which nothing works.
pub const CLOCK_FAULT: f64 = 30.0;
/// The difference at which the alert fires, so that somebody mends it before that.
pub const CLOCK_GRAVE: f64 = 10.0;

/// Why a program cannot use the server.
#[derive(Clone, Debug)]
pub enum ServerAway {
    /// It takes no work: the error.
    Down(String),
    /// By how many seconds its clock is ahead of the program's.
    Clock(f64),
}

/// What it is if the server takes no work.
pub fn what(why: &str) -> String {
    format!("PostgreSQL takes no work of this program: {why}")
}

/// What it is if a clock is so many seconds ahead of another one.
pub fn clock(whose: &str, ahead: f64, compared: &str) -> String {
    let side = if ahead > 0.0 { "ahead of" } else { "behind" };
    format!(
        "the clock of {whose} is {:.0} s {side} {compared}",
        ahead.abs()
    )
}

impl ServerAway {
    /// The finding in sentences, as the detail of a readiness and in the form of those that are
    /// read.
    pub fn told(&self, since: OffsetDateTime) -> Value {
        let (is_fault, what, felt, remedy, alert) = match self {
            Self::Down(why) => (true, what(why), FELT, REMEDY, ALERT),
            Self::Clock(ahead) => (
                ahead.abs() > CLOCK_GRAVE,
                clock("PostgreSQL", *ahead, "this machine's"),
                CLOCK_FELT,
                CLOCK_REMEDY,
                CLOCK_ALERT,
            ),
        };
        json!({
            "severity": if is_fault { "fault" } else { "warning" }, "needs_person": true, "what": what,
            "since": since.format(&Rfc3339).ok(), "felt": felt, "do": remedy, "command": null,
            "see": format!("docs/operations.md#{}", alert.to_lowercase()), "alert": is_fault.then_some(alert),
        })
    }
}

//! `esimctl provider`: shows, opens and closes the breakers of the providers, lists the lanes whose
//! purchases are held back, tries an account ([`crate::provider_check`]), proves what it promises
//! ([`crate::provider_prove`]), and compares the
//! provider's list of purchases with ours ([`crate::reconcile`]).
//!
//! A breaker is a row that all provisioners read, so a change made here stops or resumes the work
//! of every replica. While a breaker is open, orders are accepted and wait. A lane, which is
//! usually one option, is held back by each provisioner for itself when its purchases fail; that
//! needs no operator, and this module only shows it.

use std::time::Duration;

use anyhow::anyhow;
use clap::{Subcommand, builder::NonEmptyStringValueParser};
use desk::operator::breakers::{self, BreakerNotChanged};
use serde_json::json;
use store::{
    provider_lanes::{self, MOST_UNSETTLED, WaitingLane},
    providers::{self, ProviderBreaker},
};

use crate::{
    confirm::ChangeAuthor,
    console::{self, Console},
    output::{TableRow, cells, or_dash, printable, utc},
    provider_check::{self, ProviderCheckArgs},
    provider_prove::{self, ProviderProveArgs},
    reconcile::{self, Reconcile},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl provider list
  esimctl provider list --json
  esimctl provider list --lanes

A lane is a group of purchases that usually fail together, in general those of one option. The list names it as the
provider does. While a lane is held back, its orders wait, and other lanes are not affected. You need not reset
anything: the first purchases that succeed raise the limit again.

--json prints {\"providers\":[…]}, or {\"lanes\":[…]}";

const OPEN_EXAMPLES: &str = "Examples:
  esimctl provider open usimsa --for 1h --reason 'their maintenance until 3:00'

Nothing new is sent to the provider, and requests that are in flight are finished. Orders are still accepted, and wait.
When the time is over, one probe is sent, and if the provider responds, all work goes on.";

const CLOSE_EXAMPLES: &str = "Examples:
  esimctl provider close usimsa

Run it when the provider works again. The waiting work goes on at once. If calls fail, the breaker opens again by itself.";

#[derive(Subcommand, Clone, Debug)]
pub enum ProviderCommand {
    /// List all providers that were ever configured, with their breakers
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// List the lanes (usually single options) whose purchases are held back instead, and why
        #[arg(long)]
        lanes: bool,
    },
    /// Open a provider's breaker, so that nothing is bought there for a while
    #[command(after_help = OPEN_EXAMPLES)]
    Open {
        /// The provider's name, as `esimctl provider list` shows it
        name: String,
        /// How long the breaker stays open, such as `1h`; at most a year
        #[arg(long = "for", value_name = "DURATION", allow_hyphen_values = true, value_parser = duration)]
        duration: Duration,
        /// The reason, which `esimctl provider list` shows
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        reason: String,
        #[command(flatten)]
        by: ChangeAuthor,
    },
    /// Try our account at a provider: keys, balance and clock; nothing is bought
    #[command(after_help = provider_check::EXAMPLES)]
    Check(Box<ProviderCheckArgs>),
    /// Prove with a few purchases what a provider's documents promise, and give them back
    #[command(after_help = provider_prove::EXAMPLES)]
    Prove(Box<ProviderProveArgs>),
    /// Compare the provider's list of purchases with ours: unknown, missing, duplicate or
    /// differently priced
    #[command(after_help = reconcile::EXAMPLES)]
    Reconcile(Box<Reconcile>),
    /// Close a provider's breaker, so that its work goes on at once
    #[command(after_help = CLOSE_EXAMPLES)]
    Close {
        /// The provider's name, as `esimctl provider list` shows it
        name: String,
        /// Why you make the change, which is recorded
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        #[command(flatten)]
        by: ChangeAuthor,
    },
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = runtime::config::duration(text)?;
    if duration.is_zero() || duration > Duration::from_hours(24 * 365) {
        return Err("must be more than 0 and at most a year".into());
    }
    Ok(duration)
}

pub async fn run(command: &ProviderCommand, console: &Console) -> anyhow::Result<()> {
    if let ProviderCommand::Check(check) = command {
        return provider_check::run(check, console).await;
    }
    if let ProviderCommand::Prove(prove) = command {
        return provider_prove::run(prove, console).await;
    }
    if let ProviderCommand::Reconcile(reconcile) = command {
        return reconcile::run(reconcile, console).await;
    }
    let mut connection = console.connect().await?;
    let (name, changed) = match command {
        ProviderCommand::Check(_) | ProviderCommand::Prove(_) | ProviderCommand::Reconcile(_) => {
            return Ok(());
        }
        ProviderCommand::List { lanes: false } => {
            let all = providers::list(&mut connection).await?;
            let none = "There are no providers yet: a provisioner adds its own when it starts.";
            return console.print(&json!({ "providers": all }), || {
                console::list(&all, none, row)
            });
        }
        ProviderCommand::List { lanes: true } => {
            let all = provider_lanes::list(&mut connection).await?;
            let none = "No lane is held back.";
            return console.print(&json!({ "lanes": all }), || {
                console::list(&all, none, lane_row)
            });
        }
        ProviderCommand::Open {
            name,
            duration,
            reason,
            by,
        } => {
            let target = format!("provider {name}");
            let action = by.action(domain::Command::ProviderOpen, &target, reason);
            let opened = breakers::set(&mut connection, name, None, Some(*duration), action);
            (name, opened.await)
        }
        ProviderCommand::Close { name, reason, by } => {
            let target = format!("provider {name}");
            let action = by.action(domain::Command::ProviderClose, &target, reason);
            let closed = breakers::set(&mut connection, name, None, None, action);
            (name, closed.await)
        }
    };
    let breaker = changed.map_err(|error| match error {
        BreakerNotChanged::Unknown => {
            anyhow!("there is no provider {name:?}; see `esimctl provider list`")
        }
        error => error.into(),
    })?;
    console.print(&breaker, || describe(&breaker))
}

fn row(breaker: &ProviderBreaker) -> TableRow<6> {
    cells!(breaker:
        provider = breaker.name.clone(), breaker = breaker.state.as_str().to_owned(),
        "open until" = or_dash(breaker.open_until.map(utc)), openings, since = utc(breaker.changed_at),
        reason = or_dash(breaker.reason.as_ref()),
    )
}

fn lane_row(lane: &WaitingLane) -> TableRow<4> {
    cells!(lane: provider, lane, since = utc(lane.since), "why it waits" = why(lane))
}

/// Why the orders of a lane wait, in one sentence. `esimctl order show` prints it too.
pub fn why(lane: &WaitingLane) -> String {
    let failure = if lane.reason.is_empty() {
        String::new()
    } else {
        format!("; the last failure: {}", lane.reason)
    };
    let unsettled = lane.unsettled;
    if usize::try_from(unsettled).is_ok_and(|unsettled| unsettled >= MOST_UNSETTLED) {
        return format!(
            "{unsettled} of its attempts have an unknown outcome, and at {MOST_UNSETTLED} no further purchase begins until \
             look-ups have settled some of them{failure}"
        );
    }
    let purchases = if lane.max_in_flight == 1 {
        "purchase"
    } else {
        "purchases"
    };
    let in_flight = lane.max_in_flight;
    format!(
        "its purchases fail, so at most {in_flight} {purchases} at a time may be in flight{failure}"
    )
}

fn describe(breaker: &ProviderBreaker) -> String {
    let name = printable(&breaker.name);
    match breaker.open_until {
        Some(until) => format!(
            "nothing new is sent to {name} until {}; its work waits",
            utc(until)
        ),
        None => format!("the work of {name} goes on"),
    }
}

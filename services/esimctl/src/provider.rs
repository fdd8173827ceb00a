//! `esimctl provider`: the breakers of the providers.

use std::time::Duration;

use anyhow::Context;
use clap::{Subcommand, builder::NonEmptyStringValueParser};
use serde_json::json;
use store::providers::{self, ProviderBreaker};

use crate::{
    console::{self, Console},
    output::{Row, cells, or_dash, printable, utc},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl provider list
  esimctl provider list --json

--json prints {\"providers\":[…]}";

const OPEN_EXAMPLES: &str = "Examples:
  esimctl provider open usimsa --for 1h --reason 'their maintenance until 3:00'

Nothing new is sent to the provider; requests in flight are finished. Orders are accepted and wait. After the time,
one probe is sent, and work goes on if the provider responds.";

const CLOSE_EXAMPLES: &str = "Examples:
  esimctl provider close usimsa

Work goes on at once. The breaker opens again if calls fail.";

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// List all providers that were ever configured, with their breakers
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Open a provider's breaker; its placements wait
    #[command(after_help = OPEN_EXAMPLES)]
    Open {
        /// The provider's name
        name: String,
        /// How long the breaker stays open
        #[arg(long = "for", value_name = "DURATION", allow_hyphen_values = true, value_parser = duration)]
        duration: Duration,
        /// The reason, which `esimctl provider list` shows
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        reason: String,
    },
    /// Close a provider's breaker; its placements continue
    #[command(after_help = CLOSE_EXAMPLES)]
    Close {
        /// The provider's name
        name: String,
    },
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = runtime::config::duration(text)?;
    if duration.is_zero() || duration > Duration::from_hours(24 * 365) {
        return Err("must be more than 0 and at most a year".into());
    }
    Ok(duration)
}

pub async fn run(command: &Command, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let (name, changed) = match command {
        Command::List => {
            let all = providers::list(&mut connection).await?;
            let none = "There are no providers yet: a provisioner adds its own when it starts.";
            return console.print(&json!({ "providers": all }), || console::list(&all, none, row));
        }
        Command::Open { name, duration, reason } => {
            (name, providers::open(&mut connection, name, *duration, reason).await?)
        }
        Command::Close { name } => (name, providers::close(&mut connection, name).await?),
    };
    let breaker = changed.with_context(|| format!("there is no provider {name:?}; see `esimctl provider list`"))?;
    console.print(&breaker, || describe(&breaker))
}

fn row(breaker: &ProviderBreaker) -> Row<6> {
    cells!(breaker:
        provider = breaker.name.clone(), breaker = breaker.state.as_str().to_owned(),
        "open until" = or_dash(breaker.open_until.map(utc)), failures, since = utc(breaker.changed_at),
        reason = or_dash(breaker.reason.as_ref()),
    )
}

fn describe(breaker: &ProviderBreaker) -> String {
    let name = printable(&breaker.name);
    match breaker.open_until {
        Some(until) => format!("nothing new is sent to {name} until {}; its work waits", utc(until)),
        None => format!("the work of {name} goes on"),
    }
}

//! `esimctl placement`: purchases, above all those that wait for an operator.

use anyhow::bail;
use clap::{
    Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use domain::{PlacementId, PlacementState, placement::Resolution};
use serde_json::json;
use store::{
    config::DatabaseConfig,
    operator::placements::{self, Listed, NotResolved, Resolved},
};

use crate::{
    database::connect,
    output::{Output, moment, table},
};

pub const EXAMPLES: &str = "Examples:
  esimctl placement list --state parked
  esimctl placement resolve 0199aabb-ccdd-7eee-8fff-001122334455 --bought";

const LIST_EXAMPLES: &str = "Examples:
  esimctl placement list --state parked
  esimctl placement list --state parked --provider usimsa --json
  esimctl placement list --provider sandbox --limit 20

What is parked is listed oldest first, everything else newest first. --json prints {\"placements\":[…]}";

const RESOLVE_EXAMPLES: &str = "Examples:
  esimctl placement resolve 0199aabb-ccdd-7eee-8fff-001122334455 --bought
  esimctl placement resolve 0199aabb-ccdd-7eee-8fff-001122334455 --not-bought
  esimctl placement resolve 0199aabb-ccdd-7eee-8fff-001122334455 --retry

Look the placement id up at the provider first: there it is the order id.
  --bought      it is there: its profiles are collected and delivered
  --not-bought  it isn't there, or its price was given back: units without a profile fail
  --retry       it isn't there: it is bought by a new attempt. If it was there after all, it is bought twice,
                unless the provider refuses an order id that it knows";

const MOST: i64 = 10_000;

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// List placements: the parts of orders that are bought from one provider in one purchase
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// Only those in this state
        #[arg(long, value_parser = PossibleValuesParser::new(PlacementState::ALL.map(PlacementState::as_str))
            .try_map(|name| name.parse::<PlacementState>()))]
        state: Option<PlacementState>,
        /// Only those of this provider
        #[arg(long)]
        provider: Option<String>,
        /// The most to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=MOST))]
        limit: i64,
    },
    /// Settle a placement that is parked
    #[command(after_help = RESOLVE_EXAMPLES)]
    Resolve {
        /// Its id
        #[arg(value_name = "ID")]
        placement_id: PlacementId,
        #[command(flatten)]
        found: Found,
    },
}

/// What the operator found at the provider.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Found {
    /// The provider has it
    #[arg(long)]
    bought: bool,
    /// The provider doesn't have it, or gave its price back: give it up
    #[arg(long)]
    not_bought: bool,
    /// The provider doesn't have it: buy it
    #[arg(long)]
    retry: bool,
}

impl Found {
    fn resolution(&self) -> Resolution {
        if self.bought {
            Resolution::Bought
        } else if self.retry {
            Resolution::Retry
        } else {
            Resolution::NotBought
        }
    }
}

pub async fn run(command: &Command, database: &DatabaseConfig, output: &Output) -> anyhow::Result<()> {
    let mut connection = connect(database).await?;
    match command {
        Command::List {
            state,
            provider,
            limit,
        } => {
            let found = placements::list(&mut connection, *state, provider.as_deref(), *limit).await?;
            output.print(&json!({ "placements": found }), || list(&found, *limit))
        }
        Command::Resolve { placement_id, found } => {
            match placements::resolve(&mut connection, *placement_id, found.resolution()).await {
                Ok(resolved) => output.print(&resolved, || describe(&resolved)),
                Err(NotResolved::Unknown) => {
                    bail!("there is no placement {placement_id}; see `esimctl placement list --state parked`")
                }
                Err(reason) => bail!("placement {placement_id} was not settled: {reason}"),
            }
        }
    }
}

fn list(found: &[Listed], limit: i64) -> String {
    if found.is_empty() {
        return "There are no such placements.".to_owned();
    }
    let rows = found.iter().map(|one| {
        [
            one.placement_id.to_string(),
            one.provider.clone(),
            one.state.clone(),
            one.attempt.to_string(),
            if one.bought { "yes" } else { "-" }.to_owned(),
            format!("{}/{}", one.pending, one.units),
            format!("{} UTC", moment(one.created_at)),
            one.external_order_id.clone(),
            one.reason.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    });
    let header = [
        "placement_id",
        "provider",
        "state",
        "attempt",
        "bought",
        "pending",
        "accepted",
        "external_order_id",
        "reason",
    ];
    let text = table(header, rows);
    if i64::try_from(found.len()).is_ok_and(|shown| shown >= limit) {
        format!("{text}\n\nThere may be more: only {limit} are shown.")
    } else {
        text
    }
}

fn describe(resolved: &Resolved) -> String {
    let Resolved {
        placement_id,
        attempt,
        pending,
        failed,
        ready,
        ..
    } = resolved;
    let units = format!("units now: {pending} pending, {failed} failed, {ready} ready");
    let what = match resolved.state {
        PlacementState::Placed => "is bought; its profiles are collected now".to_owned(),
        PlacementState::Accepted => format!("will be bought by attempt {}", attempt + 1),
        _ => "is given up as not bought".to_owned(),
    };
    format!("placement {placement_id} {what}; {units}")
}

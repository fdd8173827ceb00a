//! `esimctl placement`: lists placements, and resolves parked ones.

use anyhow::anyhow;
use clap::{
    Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use domain::{PlacementId, PlacementState, placement::Resolution};
use serde_json::json;
use store::operator::{
    actions::Mode,
    placements::{self, Listed, NotResolved, Resolved},
};

use crate::{
    confirm::Confirm,
    console::{self, Console},
    output::{Row, cells, or_dash, utc},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl placement list --state parked
  esimctl placement list --state parked --provider usimsa --json
  esimctl placement list --provider sandbox --limit 20

Parked placements are listed oldest first, all others newest first. --json prints {\"placements\":[…]}";

const RESOLVE_EXAMPLES: &str = "Examples:
  esimctl placement resolve 0199aabb-ccdd-7eee-8fff-001122334455 --bought --reason 'their portal lists it'
  esimctl placement resolve 0199aabb-ccdd-7eee-8fff-001122334455 --not-bought --reason 'refunded, ticket 4711'
  esimctl placement resolve 0199aabb-ccdd-7eee-8fff-001122334455 --retry --dry-run

Look up the placement id at the provider first: there it is the order id.
  --bought      the provider has the purchase: its profiles are collected and delivered
  --not-bought  the provider doesn't have it, or refunded it: units without a profile fail
  --retry       the provider doesn't have it: a new attempt buys it. If the provider has it, it is bought twice,
                unless the provider refuses an order id that it knows";

const MOST: i64 = 10_000;

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// List placements: each is the part of an order that is bought in one purchase
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// Only placements in this state
        #[arg(long, value_parser = PossibleValuesParser::new(PlacementState::ALL.map(PlacementState::as_str))
            .try_map(|name| name.parse::<PlacementState>()))]
        state: Option<PlacementState>,
        /// Only placements of this provider
        #[arg(long)]
        provider: Option<String>,
        /// The most placements to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=MOST))]
        limit: i64,
    },
    /// Resolve a parked placement; --retry buys
    #[command(after_help = RESOLVE_EXAMPLES)]
    Resolve {
        /// The placement id, which is the order id at the provider
        #[arg(value_name = "ID")]
        placement_id: PlacementId,
        #[command(flatten)]
        found: Found,
        #[command(flatten)]
        confirm: Confirm,
    },
}

/// The operator's finding at the provider.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Found {
    /// The provider has the purchase: collect and deliver it
    #[arg(long)]
    bought: bool,
    /// The provider does not have the purchase, or refunded it: fail it
    #[arg(long)]
    not_bought: bool,
    /// The provider does not have the purchase: buy it
    #[arg(long)]
    retry: bool,
}

impl Found {
    /// The resolution, and the command as it is recorded.
    fn resolution(&self) -> (Resolution, &'static str) {
        if self.bought {
            (Resolution::Bought, "placement resolve --bought")
        } else if self.retry {
            (Resolution::Retry, "placement resolve --retry")
        } else {
            (Resolution::NotBought, "placement resolve --not-bought")
        }
    }
}

pub async fn run(command: &Command, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    match command {
        Command::List { state, provider, limit } => {
            let found = placements::list(&mut connection, *state, provider.as_deref(), *limit).await?;
            console.print(&json!({ "placements": found }), || list(&found, *limit))
        }
        Command::Resolve { placement_id, found, confirm } => {
            let (resolution, command) = found.resolution();
            let target = format!("placement {placement_id}");
            let resolve = async |mode: Mode<'_>| {
                let resolved = placements::resolve(&mut connection, *placement_id, resolution, mode);
                resolved.await.map_err(|error| not_resolved(*placement_id, &error))
            };
            let print = |resolved: &Resolved, dry_run| {
                let text = if dry_run { preview } else { describe };
                console.print(resolved, || text(resolved))
            };
            confirm.carry_out(command, &target, resolve, preview, print).await
        }
    }
}

fn not_resolved(placement_id: PlacementId, error: &NotResolved) -> anyhow::Error {
    match error {
        NotResolved::Unknown => {
            anyhow!("there is no placement {placement_id}; see `esimctl placement list --state parked`")
        }
        reason => anyhow!("placement {placement_id} was not settled: {reason}"),
    }
}

fn preview(preview: &Resolved) -> String {
    let Resolved { placement_id, provider, state, attempt, pending, failed, ready, .. } = preview;
    let consequence = match state {
        PlacementState::Placed => format!("{pending} units are collected from {provider} and delivered"),
        PlacementState::Accepted => format!(
            "BUYS {pending} units from {provider} by attempt {}; if {provider} has the purchase, it is bought twice",
            attempt + 1
        ),
        _ => format!("{failed} units fail for good, and the partner gets no webhook for them"),
    };
    format!("placement {placement_id}: {consequence} (units with a profile: {ready})")
}

fn list(found: &[Listed], limit: i64) -> String {
    let text = console::list(found, "There are no such placements.", row);
    if i64::try_from(found.len()).is_ok_and(|shown| shown >= limit) {
        format!("{text}\n\nThere may be more: only {limit} are shown.")
    } else {
        text
    }
}

fn row(one: &Listed) -> Row<9> {
    cells!(one:
        placement_id, provider, state, attempt, bought = if one.bought { "yes" } else { "-" }.to_owned(),
        pending = format!("{}/{}", one.pending, one.units), accepted = utc(one.created_at), external_order_id,
        reason = or_dash(one.reason.as_ref()),
    )
}

fn describe(resolved: &Resolved) -> String {
    let Resolved { placement_id, state, attempt, pending, failed, ready, .. } = resolved;
    let units = format!("units now: {pending} pending, {failed} failed, {ready} ready");
    let what = match state {
        PlacementState::Placed => "is bought; its profiles are collected now".to_owned(),
        PlacementState::Accepted => format!("will be bought by attempt {}", attempt + 1),
        _ => "is given up as not bought".to_owned(),
    };
    format!("placement {placement_id} {what}; {units}")
}

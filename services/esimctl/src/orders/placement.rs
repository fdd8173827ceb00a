//! `esimctl placement`: lists placements, and resolves parked ones.
//!
//! A placement is the part of an order that is bought in one purchase. It is parked when its
//! outcome stays unknown, or when the provider contradicts what is stored. The provider may or may
//! not have sold it, and money is at stake either way, so no program decides. The operator looks
//! the placement up at the provider and says what was found. Only `resolve --retry` can buy twice,
//! so its preview says so in capitals, and every resolution is recorded with a reason (`confirm`).

use std::path::PathBuf;

use accounts::profile::Profile;
use anyhow::{Context, anyhow};
use clap::{
    Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use desk::operator::words::{counted, noun};
use desk::operator::{
    entered::{self, EnteredUnit, NotEntered, ProfileEntry},
    placements::{self, Decision, ListedPlacement, PlacementNotResolved, ResolvedPlacement},
};
use domain::{ActivationCode, Iccid, PlacementId, PlacementState, TopupId, placement::Resolution};
use pg::{actions::Mode, config::MasterKeyConfig};
use runtime::files;
use serde_json::json;
use time::{Date, format_description::StaticFormatDescription, macros::format_description};
use vault::Keyring;

use crate::{
    confirm::{Confirm, ConfirmedChange},
    console::{self, Console},
    output::{TableRow, cells, or_dash, utc},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl placement list --state parked
  esimctl placement list --state parked --provider usimsa --json
  esimctl placement list --provider sandbox --limit 20

With `--state parked` the oldest placement comes first, because it has waited longest; otherwise the newest comes first.
--json prints {\"placements\":[…]}";

const RESOLVE_EXAMPLES: &str = "Examples:
  esimctl placement resolve 0199aabb-ccdd-7eee-8fff-001122334455 --bought --reason 'their portal lists it'
  esimctl placement resolve 0199aabb-ccdd-7eee-8fff-001122334455 --bought --provider airalo --reason 'found there'
  esimctl placement resolve 0199aabb-ccdd-7eee-8fff-001122334455 --not-bought --reason 'refunded, ticket 4711'
  esimctl placement resolve 0199aabb-ccdd-7eee-8fff-001122334455 --retry --dry-run

Before you run it, look the placement id up at the provider, where it is the order id. Then say what you found:
  --bought      the provider has the purchase: its profiles are collected and delivered
  --not-bought  the provider does not have it, or refunded it: units without a profile fail for good
  --retry       the provider does not have it: a new attempt buys it. If the provider has it after all, it is bought twice,
                unless the provider refuses an order id that it knows

If `esimctl placement list` names further providers (elsewhere), look the placement id up at each of them. After a restored
dump any of them may have sold it. --bought --provider NAME says which one has it. A purchase at eSIM Access from
before the restore needs --reference, too, because the time of its attempt is not known any more.";

const ENTER_EXAMPLES: &str = "Example:
  esimctl placement enter 20250129123456618033988749 --iccid 8982123456789012345 --expires 2027-01-31 \\
    --code-file code.txt --reason 'the provider sent it by mail, ticket 4711'

The unit becomes ready, its profile is stored encrypted, and its webhook is sent. Once no unit of its placement is missing,
the placement is no longer parked. Delete the file afterwards. The command needs the master key of the profiles.";

const MOST: i64 = 10_000;

#[derive(Subcommand, Clone, Debug)]
pub enum PlacementCommand {
    /// List placements
    ///
    /// A placement is the part of an order that is bought in one purchase.
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// List only placements in this state
        #[arg(long, value_parser = PossibleValuesParser::new(PlacementState::ALL.map(PlacementState::as_str))
            .try_map(|name| name.parse::<PlacementState>()))]
        state: Option<PlacementState>,
        /// List only placements of this provider
        #[arg(long)]
        provider: Option<String>,
        /// The maximum number of placements to list
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=MOST))]
        limit: i64,
    },
    /// Record the outcome of a parked placement, so that its order goes on
    ///
    /// One of `--bought`, `--not-bought` and `--retry` is needed. Only `--retry` buys.
    #[command(after_help = RESOLVE_EXAMPLES)]
    Resolve {
        /// The placement id, which is the order id at the provider
        #[arg(value_name = "ID")]
        placement_id: PlacementId,
        #[command(flatten)]
        found: PlacementFindingArgs,
        /// The provider that has the purchase, if the option names several
        ///
        /// Without it, that is the provider which `esimctl placement list` shows.
        #[arg(long, value_name = "NAME", conflicts_with_all = ["not_bought", "retry"])]
        provider: Option<String>,
        /// The provider's own number of the purchase, such as the order number in its portal
        ///
        /// eSIM Access finds a purchase by its number, or by the time of its attempt. After a
        /// restore of the database this time is not known, so give the number.
        #[arg(long, value_name = "NUMBER", conflicts_with_all = ["not_bought", "retry"])]
        reference: Option<String>,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Enter the profile of a bought unit by hand, so that it is delivered
    ///
    /// For a profile that the provider has sent in a form that cannot be read, or by another way.
    #[command(after_help = ENTER_EXAMPLES)]
    Enter {
        /// The topup id of the unit
        #[arg(value_name = "TOPUP_ID")]
        topup_id: TopupId,
        /// The ICCID of the eSIM
        #[arg(long, value_name = "DIGITS", value_parser = Iccid::parse)]
        iccid: Iccid,
        /// The last day on which the eSIM can be used, such as 2027-01-31
        #[arg(long, value_name = "DATE", value_parser = day)]
        expires: String,
        /// A file with the activation code, such as `LPA:1$smdp.example.com$AB-12`
        ///
        /// It is read from a file, because whoever sees a command line could install the eSIM.
        #[arg(long, value_name = "FILE")]
        code_file: PathBuf,
        /// The provider's id of the unit, if the provider has not named it yet
        #[arg(long, value_name = "ID")]
        unit: Option<String>,
        #[command(flatten)]
        master_key: MasterKeyConfig,
        #[command(flatten)]
        confirm: Confirm,
    },
}

/// A real day.
fn day(text: &str) -> Result<String, time::error::Parse> {
    const DAY: StaticFormatDescription = format_description!("[year]-[month]-[day]");
    Date::parse(text, DAY)?;
    Ok(text.to_owned())
}

/// What the operator found at the provider.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct PlacementFindingArgs {
    /// The provider has the purchase: collect its profiles and deliver them
    #[arg(long)]
    bought: bool,
    /// The provider does not have the purchase, or refunded it: units without a profile fail
    #[arg(long)]
    not_bought: bool,
    /// The provider does not have the purchase: BUY it with a new attempt
    #[arg(long)]
    retry: bool,
}

impl PlacementFindingArgs {
    /// The resolution, and the command in the form in which it is recorded.
    fn resolution(&self) -> (Resolution, domain::Command) {
        if self.bought {
            (Resolution::Bought, domain::Command::PlacementBought)
        } else if self.retry {
            (Resolution::Retry, domain::Command::PlacementRetry)
        } else {
            (Resolution::NotBought, domain::Command::PlacementNotBought)
        }
    }
}

pub async fn run(command: &PlacementCommand, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    match command {
        PlacementCommand::List {
            state,
            provider,
            limit,
        } => {
            let found =
                placements::list(&mut connection, *state, provider.as_deref(), *limit).await?;
            let found = found.after_flush(&mut connection).await?;
            console.print(&json!({ "placements": found }), || list(&found, *limit))
        }
        PlacementCommand::Resolve {
            placement_id,
            found,
            provider,
            reference,
            confirm,
        } => {
            let (resolution, command) = found.resolution();
            let target = match provider {
                Some(provider) => format!("placement {placement_id} at {provider}"),
                None => format!("placement {placement_id}"),
            };
            let decision = Decision {
                resolution,
                bought_at: provider.as_deref(),
                reference: reference.as_deref(),
                seen: None,
            };
            let run = async |mode: Mode<'_>| {
                let resolved = placements::resolve(&mut connection, *placement_id, decision, mode);
                resolved
                    .await
                    .map_err(|error| not_resolved(*placement_id, &error))
            };
            let print = |resolved: &ResolvedPlacement, dry_run| {
                let text = if dry_run { preview } else { describe };
                console.print(resolved, || text(resolved))
            };
            let change = ConfirmedChange {
                run,
                describe: preview,
                print,
            };
            confirm.carry_out(command, &target, change).await
        }
        PlacementCommand::Enter {
            topup_id,
            iccid,
            expires,
            code_file,
            unit,
            master_key,
            confirm,
        } => {
            let vault = master_key.vault(&[Keyring::Profiles])?;
            let file = code_file.display();
            let text = files::value(code_file)?;
            let code = ActivationCode::parse(&text).with_context(|| {
                format!("{file} holds no activation code that can be delivered")
            })?;
            let profile = Profile {
                code,
                expired_date: expires.clone(),
            };
            let entered = ProfileEntry {
                topup_id,
                iccid,
                profile: &profile,
                unit: unit.as_deref(),
            };
            let run = async |mode: Mode<'_>| {
                let ready = entered::enter(&mut connection, &vault, &entered, mode).await;
                ready.map_err(|error| not_entered(topup_id, &error))
            };
            let print = |ready: &EnteredUnit, dry_run| {
                let text = if dry_run { will_be_ready } else { is_ready };
                console.print(ready, || text(ready))
            };
            let change = ConfirmedChange {
                run,
                describe: will_be_ready,
                print,
            };
            confirm
                .carry_out(
                    domain::Command::PlacementEnter,
                    &format!("topup {topup_id}"),
                    change,
                )
                .await
        }
    }
}

fn not_entered(topup_id: &TopupId, error: &NotEntered) -> anyhow::Error {
    anyhow!("no profile was entered for topup {topup_id}: {error}")
}

fn will_be_ready(ready: &EnteredUnit) -> String {
    format!(
        "topup {} becomes ready with this profile, and its webhook is sent; {}",
        ready.topup_id,
        missing(ready)
    )
}

fn is_ready(ready: &EnteredUnit) -> String {
    format!(
        "topup {} is ready, and its webhook is sent; {}",
        ready.topup_id,
        missing(ready)
    )
}

fn missing(ready: &EnteredUnit) -> String {
    let placement = ready.placement_id;
    match ready.pending {
        0 => format!("nothing of placement {placement} is missing any more"),
        1 => format!("1 unit of placement {placement} still has no profile"),
        more => format!("{more} units of placement {placement} still have no profile"),
    }
}

fn not_resolved(placement_id: PlacementId, error: &PlacementNotResolved) -> anyhow::Error {
    match error {
        PlacementNotResolved::Unknown => {
            anyhow!(
                "there is no placement {placement_id}; see `esimctl placement list --state parked`"
            )
        }
        reason => anyhow!("placement {placement_id} was not resolved: {reason}"),
    }
}

fn preview(preview: &ResolvedPlacement) -> String {
    let ResolvedPlacement {
        placement_id,
        provider,
        state,
        attempt,
        pending,
        failed,
        ready,
        ..
    } = preview;
    let consequence = match state {
        PlacementState::Placed => {
            format!(
                "{} {} collected from {provider} and delivered",
                counted(*pending, "unit", "units"),
                noun(*pending, "is", "are")
            )
        }
        PlacementState::Accepted => format!(
            "BUYS {} from {provider} by attempt {}; if {provider} has the purchase, it is bought twice",
            counted(*pending, "unit", "units"),
            attempt + 1
        ),
        _ => format!(
            "{} {} for good; the partner gets `topup.failed` if it asked for that event, otherwise tell it yourself",
            counted(*failed, "unit", "units"),
            noun(*failed, "fails", "fail")
        ),
    };
    format!("placement {placement_id}: {consequence} (units with a profile: {ready})")
}

fn list(found: &[ListedPlacement], limit: i64) -> String {
    let text = console::list(found, "There are no such placements.", row);
    if i64::try_from(found.len()).is_ok_and(|shown| shown >= limit) {
        format!(
            "{text}\n\nThere may be more: only {limit} placements are shown, and a larger --limit shows more."
        )
    } else {
        text
    }
}

fn row(one: &ListedPlacement) -> TableRow<11> {
    let elsewhere = Some(one.elsewhere.join(", ")).filter(|names| !names.is_empty());
    cells!(one:
        placement_id, provider, elsewhere = or_dash(elsewhere), option = one.lane.clone(), state, attempt, bought = if one.bought { "yes" } else { "-" }.to_owned(),
        pending = format!("{}/{}", one.pending, one.units), accepted = utc(one.created_at), external_order_id,
        reason = or_dash(one.reason.told()),
    )
}

fn describe(resolved: &ResolvedPlacement) -> String {
    let ResolvedPlacement {
        placement_id,
        state,
        attempt,
        pending,
        failed,
        ready,
        ..
    } = resolved;
    let units = format!("units now: {pending} pending, {failed} failed, {ready} ready");
    let what = match state {
        PlacementState::Placed => "is bought; its profiles are collected now".to_owned(),
        PlacementState::Accepted => format!("will be bought by attempt {}", attempt + 1),
        _ => "is given up as not bought".to_owned(),
    };
    format!("placement {placement_id} {what}; {units}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_unit_is_told_as_one() {
        let resolved = |state, units| ResolvedPlacement {
            placement_id: PlacementId::new(),
            order_id: domain::OrderId::new(),
            provider: "sandbox".to_owned(),
            state,
            attempt: 1,
            pending: units,
            failed: units,
            ready: 0,
        };
        for (state, one, two) in [
            (
                PlacementState::Placed,
                ": 1 unit is collected",
                ": 2 units are collected",
            ),
            (
                PlacementState::Accepted,
                ": BUYS 1 unit from",
                ": BUYS 2 units from",
            ),
            (
                PlacementState::Failed,
                ": 1 unit fails for good",
                ": 2 units fail for good",
            ),
        ] {
            let told = [1, 2].map(|units| preview(&resolved(state, units)));
            assert!(told[0].contains(one) && told[1].contains(two), "{told:?}");
        }
    }
}

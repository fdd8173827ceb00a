//! `esimctl recover`: prepares the database after a restore, before the provisioners start.
//!
//! A restored dump is older than what happened at the provider: placements that are unfinished in
//! it may have been bought since. If a provisioner started on it, it would buy them again. So this
//! command moves every unfinished placement to "outcome unknown", and the provisioners then look
//! each one up before they buy anything. The work is done by `tools::recover`, which refuses to run
//! while a provisioner is connected. Orders that came after the dump are gone from the database;
//! their purchases are found with the provider's own list (`--ledger`, see `ledger`).

use clap::Args;
use desk::operator::words::counted;
use pg::actions::Mode;
use serde_json::json;
use tools::recover::{self, RecoveryCounts};

use crate::{
    confirm::{Confirm, ConfirmedChange},
    console::Console,
    ledger,
    output::{cells, table, utc},
};

pub const EXAMPLES: &str = "Examples:
  esimctl recover --dry-run
  esimctl recover --reason 'restored the dump of 03:00'
  esimctl recover --park-unanswered --reason 'restored the dump of 03:00' --yes
  esimctl recover --ledger purchases.csv --provider usimsa --dry-run
  curl -s \"$SANDBOX_URL/ledger.csv\" | esimctl recover --ledger - --provider sandbox --reason 'standby promoted' --yes

Run it after a dump was restored and before any provisioner starts. The provider may have sold placements that are not
yet bought in the dump. So every placement that is accepted or placing is looked up at the provider by its id, and is
bought only if the provider still does not have it after the settling delay (SETTLE). The command refuses to run while a
provisioner is connected. A second run does no harm: it only starts the settling delay again.

A placement whose option names further providers may have been sold by any of them, so it is parked, and the output names
the providers at which to look it up.

Orders that came after the dump are missing in the database, but may have been bought. --ledger finds them in the
provider's own list of purchases. It is a CSV file with a header. The column order_id, the order id that we sent, is
required. The columns provider_order_id, at, units, option, iccids and partner are shown if they are there. units and paid,
the price of a unit or of all, are compared, and other columns are ignored:

  order_id,at,units,option
  0199aabb-ccdd-7eee-8fff-001122334455,2025-01-29T12:34:56Z,2,JP-7D-1G

Each line is one purchase, so an order id that occurs twice was bought twice. The command lists orphans (purchases whose
placement is not in the database) and mismatches, each with what to do. It buys and cancels nothing at the provider.
Purchases of placements that are accepted or placing are adopted, because the provisioners look these up. Orphans are
recorded, and `esimctl action list` shows them. With --dry-run it only compares, records and moves nothing, and
provisioners may run. The exit status is 3 if there are orphans or mismatches.";

/// The maximum number of orders that the text lists.
const NAMED: usize = 20;

#[derive(Args, Clone, Debug)]
pub struct RecoverArgs {
    #[command(flatten)]
    confirm: Confirm,
    /// Park the placements of orders that had no answer yet when the dump was taken
    ///
    /// Such an order may have been answered with 422 after the dump, and then it must not be
    /// bought. An operator decides on each parked placement with `esimctl placement resolve`.
    /// Without this option they are bought if the provider does not have them.
    #[arg(long)]
    park_unanswered: bool,
    /// Compare the provider's list of purchases in this CSV file with the database
    ///
    /// `-` is standard input. The file may be of any size. With `--dry-run` the command only
    /// compares, so that provisioners may run meanwhile.
    #[arg(long, value_name = "FILE")]
    ledger: Option<String>,
    /// The provider whose list it is; needed if there are several providers
    #[arg(long, value_name = "NAME", requires = "ledger")]
    provider: Option<String>,
}

/// What becomes of the placements of orders that had no answer yet.
#[derive(Clone, Copy)]
enum Treatment {
    Bought,
    Parked,
}

pub async fn run(command: &RecoverArgs, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let (treatment, target) = if command.park_unanswered {
        (Treatment::Parked, "all placements, --park-unanswered")
    } else {
        (Treatment::Bought, "all placements")
    };
    let found = match &command.ledger {
        Some(file) => {
            let provider = ledger::provider(&mut connection, command.provider.as_deref()).await?;
            Some(ledger::compare(&mut connection, file, &provider).await?)
        }
        None => None,
    };
    if let Some(found) = found.as_ref().filter(|_| command.confirm.dry_run) {
        let mut shown = ledger::shown(found);
        shown["dry_run"] = json!(true);
        console.print(&json!({ "ledger": shown }), || ledger::described(found))?;
        return Ok(ledger::check(found)?);
    }
    let park = command.park_unanswered;
    // Orphans are recorded first, because what was found stays true even if the recovery then
    // fails, for example because a provisioner is still connected.
    let run = async |mode: Mode<'_>| {
        if let (Some(found), Mode::Apply(action)) = (&found, mode) {
            tools::ledger::record_orphans(&mut connection, &found.provider, action).await?;
        }
        Ok(recover::recover(&mut connection, park, mode).await?)
    };
    let with_ledger = |text: String| match &found {
        Some(found) => format!("{}\n\n{text}", ledger::described(found)),
        None => text,
    };
    let describe =
        |recovered: &RecoveryCounts| with_ledger(described(recovered, treatment, "would be moved"));
    let print = |recovered: &RecoveryCounts, dry_run| {
        let mut shown = json!(recovered);
        if let Some(found) = &found {
            shown["ledger"] = ledger::shown(found);
        }
        shown["dry_run"] = json!(dry_run);
        shown["moved"] = json!(recovered.accepted + recovered.placing);
        let moved = if dry_run { "would be moved" } else { "moved" };
        console.print(&shown, || {
            with_ledger(described(recovered, treatment, moved))
        })
    };
    let change = ConfirmedChange {
        run,
        describe,
        print,
    };
    command
        .confirm
        .carry_out(domain::Command::Recover, target, change)
        .await?;
    match &found {
        Some(found) => Ok(ledger::check(found)?),
        None => Ok(()),
    }
}

/// The effect of the command as text. `moved` is the verb: "moved", or "would be moved".
fn described(recovered: &RecoveryCounts, treatment: Treatment, moved: &str) -> String {
    let RecoveryCounts {
        accepted,
        placing,
        parked,
        routed,
        unanswered,
        parked_before,
        newest_order_at,
    } = recovered;
    let placements = counted(accepted + placing, "placement", "placements");
    let looked_up = accepted + placing - parked;
    let mut lines = vec![format!(
        "{placements} {moved} (accepted: {accepted}, placing: {placing}). Of these, the provider \
         is asked about {looked_up}, and {parked} wait for an operator (parked)"
    )];
    match newest_order_at {
        Some(at) => lines.push(format!(
            "The newest order is of {}; orders that came later are missing in this database. The \
             section \"Find purchases that have no placement\" of docs/reference.md says how to \
             find their purchases with --ledger",
            utc(*at)
        )),
        None => lines.push("There are no orders".to_owned()),
    }
    if *parked_before > 0 {
        let placements = counted(*parked_before, "placement is", "placements are");
        lines.push(format!(
            "{placements} parked in the dump, and an operator may have resolved that after it: look \
             each one up at the provider again"
        ));
    }
    if !routed.is_empty() {
        let count = i64::try_from(routed.len()).unwrap_or(i64::MAX);
        let placements = counted(count, "parked placement", "parked placements");
        lines.push(format!(
            "{placements} may have been bought at any of several providers after the dump. Look each one up at all of \
             them, then run `esimctl placement resolve ID --bought --provider NAME`, or --not-bought or --retry if none \
             has it:"
        ));
        let rows = routed.iter().take(NAMED);
        lines.push(table(rows.map(
            |one| cells!(one: placement_id, order_id, providers = one.providers.join(", ")),
        )));
        if routed.len() > NAMED {
            lines.push("… and more; --json lists all".to_owned());
        }
    }
    if !unanswered.is_empty() {
        let orders = counted(
            i64::try_from(unanswered.len()).unwrap_or(i64::MAX),
            "order",
            "orders",
        );
        let placements = match treatment {
            Treatment::Parked => "the placements are parked",
            Treatment::Bought => "the placements are still bought (--park-unanswered parks them)",
        };
        lines.push(format!(
            "{orders} may have been answered with 422 after the dump; {placements}:"
        ));
        let rows = unanswered.iter().take(NAMED);
        lines.push(table(rows.map(
            |order| cells!(order: order_id, partner_id, external_order_id),
        )));
        if unanswered.len() > NAMED {
            lines.push("… and more; --json lists all".to_owned());
        }
    }
    lines.join("\n")
}

//! `esimctl recover`: prepares a restored dump before provisioners start.

use clap::Args;
use serde_json::json;
use store::{
    operator::actions::Mode,
    recover::{self, Recovered},
};

use crate::{
    confirm::Confirm,
    console::Console,
    output::{cells, table, utc},
};

pub const EXAMPLES: &str = "Examples:
  esimctl recover --dry-run
  esimctl recover --reason 'restored the dump of 03:00'
  esimctl recover --park-unanswered --reason 'restored the dump of 03:00' --yes

Run it after a dump was restored and before provisioners start. The provider may have sold placements that are not
bought in the dump. So every placement that is accepted or placing is looked up by its id. It is bought only if the
provider still does not have it after SETTLE. The command refuses to run while a provisioner is connected. A second run
only starts SETTLE again.

Orders that came after the dump are missing here, but may have been bought: see docs/operations.md.";

/// The most orders that the text lists.
const NAMED: usize = 20;

#[derive(Args, Clone, Debug)]
pub struct Command {
    #[command(flatten)]
    confirm: Confirm,
    /// Park placements of orders that had no answer yet when the dump was taken: the answer may have been 422.
    /// Without this option they are bought if the provider does not have them
    #[arg(long)]
    park_unanswered: bool,
}

pub async fn run(command: &Command, console: &Console) -> anyhow::Result<()> {
    let park = command.park_unanswered;
    let mut connection = console.connect().await?;
    let target = if park { "all placements, --park-unanswered" } else { "all placements" };
    let recover = async |mode: Mode<'_>| Ok(recover::recover(&mut connection, park, mode).await?);
    let preview = |recovered: &Recovered| describe(recovered, park, true);
    let print = |recovered: &Recovered, dry_run| {
        let mut shown = json!(recovered);
        shown["dry_run"] = json!(dry_run);
        shown["moved"] = json!(recovered.accepted + recovered.placing);
        console.print(&shown, || describe(recovered, park, dry_run))
    };
    command.confirm.carry_out("recover", target, recover, preview, print).await
}

fn describe(recovered: &Recovered, park: bool, preview: bool) -> String {
    let Recovered { accepted, placing, parked, unanswered, parked_before, newest_order_at } = recovered;
    let verb = if preview { "would be moved" } else { "moved" };
    let (moved, looked_up) = (accepted + placing, accepted + placing - parked);
    let mut lines = vec![format!(
        "{moved} placements {verb}: {accepted} were accepted, {placing} were placing; {looked_up} of them will be looked up, {parked} are parked"
    )];
    match newest_order_at {
        Some(at) => lines.push(format!("The newest order is of {}; later orders are lost", utc(*at))),
        None => lines.push("There are no orders".to_owned()),
    }
    if *parked_before > 0 {
        lines.push(format!(
            "{parked_before} placements were parked before. An operator may have settled them after the dump: look up each at the provider again"
        ));
    }
    if !unanswered.is_empty() {
        let count = unanswered.len();
        let bought = "they are still bought (--park-unanswered parks them)";
        let rest = if park { "their placements are parked" } else { bought };
        lines.push(format!("{count} orders may have been answered with 422 after the dump; {rest}:"));
        let rows = unanswered.iter().take(NAMED);
        lines.push(table(rows.map(|order| cells!(order: order_id, partner_id, external_order_id))));
        if unanswered.len() > NAMED {
            lines.push("… and more; --json lists all".to_owned());
        }
    }
    lines.join("\n")
}

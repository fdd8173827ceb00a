//! `esimctl recover`: after an old dump was restored, before provisioners start.

use clap::Args;
use serde_json::json;
use store::{
    config::DatabaseConfig,
    recover::{self, Recovered},
};

use crate::{
    database::connect,
    output::{Output, moment, table},
};

pub const EXAMPLES: &str = "Examples:
  esimctl recover --dry-run             says what it would move
  esimctl recover                       after a dump was restored, before provisioners start
  esimctl recover --park-unanswered     what may have been refused is left to you

A dump is older than the world: what it calls not bought may have been bought since. So every placement that is
accepted or placing is looked up by its id, and bought only if the provider doesn't have it, SETTLE from now.
Refused while a provisioner is connected. Doing it again only begins SETTLE again.

What was ordered after the dump is lost here, but may have been bought: see docs/operations.md.";

/// How many orders are named.
const NAMED: usize = 20;

#[derive(Args, Clone, Debug)]
pub struct Command {
    /// Move nothing
    #[arg(long)]
    dry_run: bool,
    /// Park placements of orders that may have been answered with 422 after the dump: those that were waiting
    /// for their answer when it was taken. Otherwise they are bought if the provider doesn't have them
    #[arg(long)]
    park_unanswered: bool,
}

pub async fn run(command: &Command, database: &DatabaseConfig, output: &Output) -> anyhow::Result<()> {
    let Command {
        dry_run,
        park_unanswered,
    } = *command;
    let mut connection = connect(database).await?;
    let recovered = recover::recover(&mut connection, park_unanswered, dry_run).await?;
    let mut shown = json!(recovered);
    shown["dry_run"] = json!(dry_run);
    shown["moved"] = json!(recovered.accepted + recovered.placing);
    output.print(&shown, || describe(&recovered, command))
}

fn describe(recovered: &Recovered, command: &Command) -> String {
    let Recovered {
        accepted,
        placing,
        parked,
        unanswered,
        parked_before,
        newest_order_at,
    } = recovered;
    let verb = if command.dry_run {
        "would be moved"
    } else {
        "moved"
    };
    let mut lines = vec![format!(
        "{} placements {verb}: {accepted} were accepted, {placing} were placing; {} of them will be looked up, {parked} are parked",
        accepted + placing,
        accepted + placing - parked,
    )];
    match newest_order_at {
        Some(at) => lines.push(format!(
            "The newest order is of {} UTC; what was ordered later is lost",
            moment(*at)
        )),
        None => lines.push("There are no orders".to_owned()),
    }
    if *parked_before > 0 {
        lines.push(format!(
            "{parked_before} placements were parked before. They may have been settled after the dump: look each up at the provider again"
        ));
    }
    if !unanswered.is_empty() {
        lines.push(format!(
            "{} orders may have been answered with 422 after the dump{}:",
            unanswered.len(),
            if command.park_unanswered {
                "; their placements are parked"
            } else {
                ", and are bought all the same (--park-unanswered leaves them to you)"
            }
        ));
        let rows = unanswered.iter().take(NAMED).map(|order| {
            [
                order.order_id.to_string(),
                order.partner_id.to_string(),
                order.external_order_id.clone(),
            ]
        });
        lines.push(table(["order_id", "partner_id", "external_order_id"], rows));
        if unanswered.len() > NAMED {
            lines.push("… and more; --json names all".to_owned());
        }
    }
    lines.join("\n")
}

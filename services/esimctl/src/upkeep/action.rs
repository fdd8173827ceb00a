//! `esimctl action`: the record of what operators and partners changed.
//!
//! Commands that cannot be taken back write their record in the transaction of their change (see
//! `confirm`), so there is no change without a record. This module only reads it.

use clap::{Args, Subcommand};
use pg::actions::{self, ActionFilter, RecordedAction};
use runtime::past::past;
use time::OffsetDateTime;

use crate::{
    console::Console,
    output::{TableRow, cells, or_dash, utc},
    range::check_range,
};

const EXAMPLES: &str = "Examples:
  esimctl action list
  esimctl action list --since 7d --json
  esimctl action list --by partner
  esimctl action list --by ana --since 2025-01-29T00:00:00Z --until 2025-01-30T00:00:00Z

The console records what is done there under the name of the same command. The column `from` says through which program
and from which address an action came: for esimctl, the address that the database saw.

The record holds the commands that ask for a reason: `resend start`, `placement resolve`, `recover`, `option set`,
`catalogue pull`, `give-back resolve`, `extension resolve`, `order erase`, `partner erase`,
`retention set` and `archive run`. It also holds every change by `esimctl partner`, `provider open`, `provider close`, `endpoint pause`,
`endpoint resume`, and the changes of `operator` and `resend`. `--by partner` lists instead what partners changed by
requests of their own, which has a term of its own (`changes` of `esimctl retention list`): `topup redeliver`,
`event redeliver`, `webhooks redeliver`, `webhooks redeliver cancel`, `order
cancel`, `webhook set`, `webhook secret rotate` or `keys rotate`.";

#[derive(Subcommand, Clone, Debug)]
pub enum ActionCommand {
    /// List the recorded actions, newest first
    ///
    /// Each row says when the change was made, by whom, with which command, how many rows it
    /// changed, and why.
    #[command(after_help = EXAMPLES)]
    List(ActionListArgs),
}

#[derive(Args, Clone, Debug)]
pub struct ActionListArgs {
    /// List only actions since this time
    ///
    /// It is a time such as `2025-01-29T12:00:00Z`, or an age such as `2h`, of at most 365 days.
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: Option<OffsetDateTime>,
    /// List only actions before this time
    #[arg(long, value_name = "TIME", value_parser = past)]
    until: Option<OffsetDateTime>,
    /// List only the actions of this operator; `partner` lists the changes of all partners instead
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// The maximum number of actions to list
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

pub async fn run(command: &ActionCommand, console: &Console) -> anyhow::Result<()> {
    let ActionCommand::List(asked) = command;
    check_range(asked.since, asked.until)?;
    let filter = ActionFilter {
        since: asked.since,
        until: asked.until,
        operator: asked.by.as_deref(),
    };
    let found = actions::list(&mut console.connect().await?, &filter, asked.limit).await?;
    console.print_list(&found, "There are no recorded actions.", row)
}

fn row(action: &RecordedAction) -> TableRow<9> {
    let operator = format!("{} ({})", action.operator, action.database_role);
    let from = match (&action.via, &action.source) {
        (Some(via), Some(source)) => format!("{via} at {source}"),
        (via, _) => or_dash(via.as_ref()),
    };
    cells!(action:
        at = utc(action.at), operator = operator, from = from, command, target, affected,
        before = or_dash(action.before.as_ref()), after = or_dash(action.after.as_ref()), reason,
    )
}

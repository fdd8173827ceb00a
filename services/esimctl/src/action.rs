//! `esimctl action`: the record of operators' changes.

use clap::{Args, Subcommand};
use store::{
    config::DatabaseConfig,
    operator::actions::{self, Recorded},
};
use time::OffsetDateTime;

use crate::{
    database::connect,
    moment::past,
    output::{Output, moment, table},
};

pub const EXAMPLES: &str = "Examples:
  esimctl action list
  esimctl action list --since 7d --json

The record holds `delivery replay`, `placement resolve`, `recover`, `order erase`, `partner erase` and
`retention set`. Operator `partner` is a partner's own request: `topup redeliver`, `order cancel`, `webhook set`,
`webhook secret rotate`, `keys rotate`.";

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// List the recorded actions, newest first
    #[command(after_help = EXAMPLES)]
    List(List),
}

#[derive(Args, Clone, Debug)]
pub struct List {
    /// Only actions since this time: a time such as `2025-01-29T12:00:00Z`, or an age such as `2h`
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: Option<OffsetDateTime>,
    /// The most actions to list
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

pub async fn run(command: &Command, database: &DatabaseConfig, output: &Output) -> anyhow::Result<()> {
    let Command::List(asked) = command;
    let mut connection = connect(database).await?;
    let found = actions::list(&mut connection, asked.since, asked.limit).await?;
    output.print(&found, || list(&found))
}

fn list(found: &[Recorded]) -> String {
    if found.is_empty() {
        return "There are no recorded actions.".to_owned();
    }
    let rows = found.iter().map(|action| {
        [
            format!("{} UTC", moment(action.at)),
            format!("{} ({})", action.operator, action.database_role),
            action.command.clone(),
            action.target.clone(),
            action.affected.to_string(),
            action.reason.clone(),
        ]
    });
    table(
        ["at", "operator", "command", "target", "affected", "reason"],
        rows,
    )
}

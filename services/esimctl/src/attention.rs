//! `esimctl attention`: everything that waits for a person, each with the command that ends the wait.
//! `esimctl doctor` looks for faults of the system instead, and counts what is listed here.

use clap::Args;
use serde_json::json;
use store::operator::attention::{self, Item};

use crate::{
    console::{Console, list},
    output::{Row, cells},
};

pub const EXAMPLES: &str = "Examples:
  esimctl attention
  esimctl attention --json

First come breakers that are not closed, then parked placements by their reasons and parked give-backs, then endpoints to
which nothing is sent, and last webhooks that have used up their retries. Look into the cause before you run a command.";

#[derive(Args, Clone, Debug)]
pub struct Command {
    /// The maximum number of parked placements, and of parked give-backs, to list; the oldest come first
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=10_000))]
    limit: i64,
}

pub async fn run(asked: &Command, console: &Console) -> anyhow::Result<()> {
    let items = attention::list(&mut console.connect().await?, asked.limit).await?;
    let json: Vec<_> = items
        .iter()
        .map(|item| json!({ "item": item, "sentence": item.sentence(), "command": item.remedy().command() }))
        .collect();
    console.print(&json, || list(&items, "Nothing waits for a person.", row))
}

fn row(item: &Item) -> Row<2> {
    cells!(item: what = item.sentence(), command = item.remedy().command())
}

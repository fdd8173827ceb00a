//! `esimctl retention`: shows and sets how long each class of data is kept.
//!
//! This module only stores the terms. The notifiers read them and erase what is past its term, for
//! good. A shorter term can therefore erase much data, so `set` previews, asks and records a reason
//! (`confirm`).

use clap::{Args, Subcommand};
use desk::operator::words::counted;
use desk::{
    operator::retention_terms::{self, Term},
    retention::DataClass,
};
use pg::actions::Mode;
use serde_json::json;

use crate::{
    confirm::{Confirm, ConfirmedChange},
    console::Console,
    output::{TableRow, cells},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl retention list
  esimctl retention list --json

The classes:
  profiles  the eSIMs; the term begins when the webhook is delivered
  attempts  the attempts of webhooks with the responses of endpoints, and events
  audit     the actions that `esimctl action list` shows, and changes that partners made themselves
  changes   changes that partners made themselves (`esimctl action list --by partner`)
  refusals  requests of partners that were refused, which `esimctl partner show --refused` shows
  orders    finished orders, from the order on; `esimctl archive run` moves them into files
  archived  what is remembered of archived orders: their external ids stay taken for this long after the archiving
Unless `orders` has a term, orders themselves are kept for ever, without the data of the other classes.";

const SET_EXAMPLES: &str = "Examples:
  esimctl retention set attempts --days 14 --reason 'data protection officer'
  esimctl retention set profiles --for-ever --reason 'contract 17'

Notifiers erase data that is past its term, for good. A webhook whose profile is erased cannot be sent again. A new term
also applies to data that is stored already, because the notifiers then read through all stored data of the class
again. A term of `orders` erases nothing by itself; it is the age from which `esimctl archive run` moves orders.";

#[derive(Subcommand, Clone, Debug)]
pub enum RetentionCommand {
    /// List the classes of data and how long each is kept
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Set how long a class of data is kept
    #[command(after_help = SET_EXAMPLES)]
    Set(RetentionSetArgs),
}

#[derive(Args, Clone, Debug)]
pub struct RetentionSetArgs {
    /// The class of data: `profiles`, `attempts` (of webhooks), `audit` (recorded actions),
    /// `changes` (recorded changes by partners), `refusals` (refused requests), `orders` or
    /// `archived` (what is remembered of archived orders)
    #[arg(value_parser = str::parse::<DataClass>)]
    class: DataClass,
    #[command(flatten)]
    term: NewTerm,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
struct NewTerm {
    /// Erase the data after this many days (1 to 36,500), or archive it if the class is `orders`
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..=36_500))]
    days: Option<i32>,
    /// Keep the data for ever
    #[arg(long)]
    for_ever: bool,
}

pub async fn run(command: &RetentionCommand, console: &Console) -> anyhow::Result<()> {
    match command {
        RetentionCommand::List => {
            let terms = retention_terms::list(&mut console.connect().await?).await?;
            console.print_list(&terms, "There are no terms.", row)
        }
        RetentionCommand::Set(asked) => set(asked, console).await,
    }
}

fn row(term: &Term) -> TableRow<2> {
    cells!(term: class, kept = kept(term.days))
}

fn kept(days: Option<i32>) -> String {
    days.map_or_else(
        || "for ever".to_owned(),
        |days| counted(days, "day", "days"),
    )
}

async fn set(asked: &RetentionSetArgs, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let class = asked.class.as_str();
    let before = retention_terms::list(&mut connection).await?;
    let old = kept(
        before
            .iter()
            .find(|term| term.class == class)
            .and_then(|term| term.days),
    );
    let new = kept(asked.term.days);
    let described = |verb: &str| format!("{class} {verb} kept {new}; before: {old}");
    let run = async |mode: Mode<'_>| {
        Ok(retention_terms::set(&mut connection, asked.class, asked.term.days, mode).await?)
    };
    let effect = if asked.class == DataClass::Orders {
        "Older orders that are finished are moved into files by `esimctl archive run`."
    } else {
        "Older data is erased for good."
    };
    let describe = |(): &()| format!("{}. {effect}", described("will be"));
    let print = |(): &(), dry_run| {
        let shown = json!({ "class": class, "kept": new, "before": old, "dry_run": dry_run });
        console.print(&shown, || {
            described(if dry_run { "would be" } else { "are" })
        })
    };
    let target = format!("{class}: {new}");
    let change = ConfirmedChange {
        run,
        describe,
        print,
    };
    asked
        .confirm
        .carry_out(domain::Command::RetentionSet, &target, change)
        .await
}

//! `esimctl retention`: how long each class of data is kept.

use anyhow::bail;
use clap::{Args, Subcommand};
use domain::PartnerId;
use serde_json::json;
use store::{
    operator::{
        actions::Mode,
        terms::{self, Keep, Term},
    },
    retention::Class,
};

use crate::{
    confirm::Confirm,
    console::Console,
    lookup::find_id,
    output::{Row, cells},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl retention list
  esimctl retention list --json

profiles: the term begins with the delivery of the webhook. attempts: attempts of webhooks, with the responses of
endpoints. audit: the actions that `esimctl action list` shows. Orders are kept for ever, without this data.";

const SET_EXAMPLES: &str = "Examples:
  esimctl retention set attempts --days 14 --reason 'data protection officer'
  esimctl retention set profiles --for-ever --partner ak_0123456789abcdef01234567 --reason 'contract 17'
  esimctl retention set profiles --default --partner ak_0123456789abcdef01234567 --reason 'contract 17 ended'

Notifiers erase data past its term for good. A webhook whose profile is erased can't be sent again. A new term applies
to all stored data: the walk over the history begins again.";

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// List the terms, defaults first
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Set the term of a class, for all partners or for one
    #[command(after_help = SET_EXAMPLES)]
    Set(Set),
}

#[derive(Args, Clone, Debug)]
pub struct Set {
    /// profiles, attempts or audit
    #[arg(value_parser = str::parse::<Class>)]
    class: Class,
    #[command(flatten)]
    term: NewTerm,
    /// Only data of this partner, by id or access key
    #[arg(long, value_name = "ID|ACCESS_KEY")]
    partner: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct NewTerm {
    /// Erase after this many days
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..=36_500))]
    days: Option<i32>,
    /// Erase nothing
    #[arg(long)]
    for_ever: bool,
    /// Remove the partner's own term
    #[arg(long, requires = "partner")]
    default: bool,
}

pub async fn run(command: &Command, console: &Console) -> anyhow::Result<()> {
    match command {
        Command::List => {
            let terms = terms::list(&mut console.connect().await?).await?;
            console.print_list(&terms, "There are no terms.", row)
        }
        Command::Set(asked) => set(asked, console).await,
    }
}

fn row(term: &Term) -> Row<3> {
    let partner = term.partner_id.map_or_else(|| "all others".to_owned(), |id| id.to_string());
    cells!(term: class, partner = partner, kept = kept(term.days))
}

fn kept(days: Option<i32>) -> String {
    days.map_or_else(|| "for ever".to_owned(), |days| format!("{days} days"))
}

async fn set(asked: &Set, console: &Console) -> anyhow::Result<()> {
    if asked.class == Class::Audit && asked.partner.is_some() {
        bail!("recorded actions belong to no partner: leave out --partner");
    }
    let mut connection = console.connect().await?;
    let partner = find_id(&mut connection, asked.partner.as_ref()).await?;
    let (keep, new) = match asked.term.days {
        Some(days) => (Keep::Days(days), kept(Some(days))),
        None if asked.term.default => (Keep::Default, "as by default".to_owned()),
        None => (Keep::ForEver, kept(None)),
    };
    let class = asked.class.as_str();
    let whose = partner.map_or_else(|| "all others".to_owned(), |id| format!("partner {id}"));
    let before = terms::list(&mut connection).await?;
    let old = before
        .iter()
        .find(|term| term.class == class && term.partner_id == partner.map(PartnerId::uuid))
        .map_or_else(|| "as by default".to_owned(), |term| kept(term.days));
    let said = |verb: &str| format!("{class} of {whose} {verb} kept {new}; before: {old}");
    let set = async |mode: Mode<'_>| Ok(terms::set(&mut connection, asked.class, partner, keep, mode).await?);
    let preview = |(): &()| format!("{}. Older data is erased for good.", said("will be"));
    let print = |(): &(), dry_run| {
        let shown = json!({ "class": class, "partner_id": partner, "kept": new, "before": old, "dry_run": dry_run });
        console.print(&shown, || said(if dry_run { "would be" } else { "are" }))
    };
    let target = format!("{class} of {whose}: {new}");
    asked.confirm.carry_out("retention set", &target, set, preview, print).await
}

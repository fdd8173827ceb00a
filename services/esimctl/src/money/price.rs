//! `esimctl price`: lists the price lists, sets their prices by a file ([`crate::price_file`]) or
//! by a rule over the costs ([`crate::price_markup`]), and gives a partner its list.
//!
//! A partner without a list orders without prices and pays nothing here. Ingress reads changes
//! within seconds and copies the price into each unit of an order, so no later change touches what
//! was ordered.

use clap::{Args, Subcommand};
use desk::operator::prices::{self, ListAssigned, PriceListView, PriceView};
use pg::{PgConnection, actions::Mode};
use serde_json::json;

use crate::{
    confirm::{self, Confirm},
    console::Console,
    lookup::{PartnerArgs, find},
    output::{TableRow, cells, or_dash, printable, utc},
    price_file::{self, PriceApplyArgs},
    price_markup::{self, PriceMarkupArgs},
    terms,
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl price list
  esimctl price list retail
  esimctl price list retail --json > prices.json && esimctl price apply retail --currency EUR -f prices.json

Without a name it shows all lists: their currency, how many options they have now, and their partners. With a name it shows
the prices of the list that are valid now or later. `esimctl price apply` takes what --json prints then.";

const ASSIGN_EXAMPLES: &str = "Examples:
  esimctl price assign 'Acme Travel' retail --reason 'contract 4711'
  esimctl price assign ak_0123456789abcdef01234567 retail --dry-run
  esimctl price assign 'Acme Travel' --none --reason 'they are invoiced elsewhere'

From its next order on the partner pays the prices of the list, and cannot order what the list does not have. It needs an
account in the currency of the list, which `esimctl account limit` opens; without one it can order only what costs nothing.
Without a list it orders everything again, without prices. What was ordered before keeps its price.";

#[derive(Subcommand, Clone, Debug)]
pub enum PriceCommand {
    /// List all price lists, or the prices of one
    #[command(after_help = LIST_EXAMPLES)]
    List(PriceShowArgs),
    /// Set prices of a list by a file, and make the list if there is none
    ///
    /// The same file again changes nothing, so a script may apply it at every deployment.
    #[command(after_help = price_file::EXAMPLES)]
    Apply(PriceApplyArgs),
    /// Set prices of a list by a rule over what the options cost us
    #[command(after_help = price_markup::EXAMPLES)]
    Markup(PriceMarkupArgs),
    /// Give a partner a price list, or take it away
    #[command(after_help = ASSIGN_EXAMPLES)]
    Assign(PriceAssignArgs),
}

#[derive(Args, Clone, Debug)]
pub struct PriceShowArgs {
    /// The name of a price list
    #[arg(value_name = "LIST", value_parser = terms::name)]
    price_list: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct PriceAssignArgs {
    #[command(flatten)]
    which: PartnerArgs,
    /// The name of the price list
    #[arg(value_name = "LIST", value_parser = terms::name, required_unless_present = "none")]
    price_list: Option<String>,
    /// Take the list away from the partner
    #[arg(long, conflicts_with = "price_list")]
    none: bool,
    #[command(flatten)]
    confirm: Confirm,
}

pub async fn run(command: &PriceCommand, console: &Console) -> anyhow::Result<()> {
    match command {
        PriceCommand::List(PriceShowArgs { price_list: None }) => {
            let lists = prices::lists(&mut console.connect().await?).await?;
            let none = "There are no price lists; see `esimctl price apply --help`.";
            console.print_list(&lists, none, list_row)
        }
        PriceCommand::List(PriceShowArgs {
            price_list: Some(list),
        }) => show(&mut console.connect().await?, list, console).await,
        PriceCommand::Apply(asked) => price_file::apply(asked, console).await,
        PriceCommand::Markup(asked) => price_markup::markup(asked, console).await,
        PriceCommand::Assign(asked) => assign(asked, console).await,
    }
}

fn list_row(list: &PriceListView) -> TableRow<4> {
    let partners = or_dash(Some(list.partners.join(", ")).filter(|names| !names.is_empty()));
    cells!(list: "price list" = list.price_list.clone(), currency, options, partners = partners)
}

/// Shows the prices of a list. In JSON they have the form of a file of prices.
async fn show(connection: &mut PgConnection, list: &str, console: &Console) -> anyhow::Result<()> {
    let found = prices::prices(connection, list).await?;
    let found = found.ok_or_else(|| {
        anyhow::anyhow!("there is no price list {list:?}; `esimctl price list` shows all")
    })?;
    if console.is_json() {
        let entries: Vec<_> = found
            .iter()
            .map(|one| {
                let amount = one.price.map(|amount| amount.decimal());
                json!({
                    "option_id": one.option_id, "option": one.option, "price": amount,
                    "valid_from": pg::rfc3339(one.valid_from),
                })
            })
            .collect();
        return console.print(&entries, String::new);
    }
    console.print_list(&found, "The list has no price.", price_row)
}

fn price_row(one: &PriceView) -> TableRow<4> {
    let price = one
        .price
        .map_or("not in the list".to_owned(), |amount| amount.to_string());
    cells!(one: option_id, option, price = price, "valid from" = utc(one.valid_from))
}

async fn assign(asked: &PriceAssignArgs, console: &Console) -> anyhow::Result<()> {
    let list = asked.price_list.as_deref().filter(|_| !asked.none);
    let mut connection = console.connect().await?;
    let partner = find(&mut connection, &asked.which.partner).await?;
    let id = partner.partner_id;
    let run = async |mode: Mode<'_>| {
        let assigned = prices::assign(&mut connection, id.into(), list, mode).await;
        assigned.map_err(|error| anyhow::Error::new(error).context("nothing was changed"))
    };
    let told = |done: &ListAssigned, dry_run| {
        let name = printable(&partner.name);
        let had = done.was.as_ref();
        let had = had.map_or("no price list".to_owned(), |was| {
            format!("the price list {was}")
        });
        let verb = if dry_run { "would get" } else { "gets" };
        match &done.price_list {
            list if *list == done.was => format!("{name} ({id}) has {had} already"),
            None => format!(
                "{name} ({id}) {verb} no price list, so it orders without prices; it had {had}"
            ),
            Some(list) if done.has_account => {
                format!("{name} ({id}) {verb} the price list {list}; it had {had}")
            }
            Some(list) => format!(
                "{name} ({id}) {verb} the price list {list}; it had {had}\nwarning: it has no account in the currency of the list, so \
                 it can order only what costs nothing; open one with `esimctl account limit`"
            ),
        }
    };
    let print = |done: &ListAssigned, dry_run| {
        let mut shown = json!(done);
        shown["dry_run"] = json!(dry_run);
        console.print(&shown, || told(done, dry_run))
    };
    let target = format!("partner {id}");
    let change = confirm::ConfirmedChange {
        run,
        describe: |done: &ListAssigned| told(done, true),
        print,
    };
    let command = domain::Command::PriceAssign;
    asked.confirm.carry_out(command, &target, change).await
}

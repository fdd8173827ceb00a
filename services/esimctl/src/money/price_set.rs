//! Sets prices of a list, all of them or none, with a plan: what `price apply` and `price markup`
//! have in common.

use clap::Args;
use desk::operator::prices::{self, NewPrice, NotPriced, PriceSet};
use domain::product::Currency;
use pg::actions::Mode;
use serde_json::{Value, json};

use crate::{
    confirm::ReasonArgs,
    console::Console,
    manifest,
    plan::{Plan, PlannedEffect, PlannedEntry},
    terms,
};

/// Which list gets prices, and how.
#[derive(Args, Clone, Debug)]
pub struct PriceListArgs {
    /// The name of the price list, which is made if there is none
    #[arg(value_name = "LIST", value_parser = terms::name)]
    pub price_list: String,
    /// The currency of the list, a code of ISO 4217
    #[arg(long, value_name = "CODE", value_parser = Currency::of_money)]
    pub currency: Currency,
    // This field stands before `dry_run`: clap reads the fields in this order and removes each
    // value from the arguments, and `ChangeAuthor` needs to see whether `--dry-run` was given.
    #[command(flatten)]
    why: ReasonArgs,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// A price with the place where it stands, such as `line 3: prices[0]`.
pub struct PlacedPrice {
    pub at: String,
    pub price: NewPrice,
}

/// Sets the prices and prints what that changes. The fields of the object `more` are added to the
/// result in JSON.
pub async fn carry_out(
    asked: &PriceListArgs,
    prices: Vec<PlacedPrice>,
    console: &Console,
    more: Value,
) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let target = format!("price list {}", asked.price_list);
    let mode = if asked.dry_run {
        Mode::Preview
    } else {
        Mode::Apply(asked.why.action(domain::Command::PriceApply, &target))
    };
    let news: Vec<NewPrice> = prices.iter().map(|one| one.price.clone()).collect();
    let list = asked.price_list.as_str();
    let applied = match prices::apply(&mut connection, list, asked.currency, &news, mode).await {
        Ok(applied) => applied,
        Err(NotPriced::BadPrices(bad)) => {
            let faults = bad.into_iter().map(|(index, why)| {
                let at = prices.get(index).map_or("", |one| one.at.as_str());
                format!("{at}: {why}")
            });
            let faults = manifest::without_faults(faults.collect());
            return faults.map_err(|error| error.context("no price was changed"));
        }
        Err(error) => return Err(anyhow::Error::new(error).context("no price was changed")),
    };
    let set = applied.set.iter().map(|one| planned(one, true));
    let unchanged = applied.unchanged.iter().map(|one| planned(one, false));
    let plan = Plan(set.chain(unchanged).collect());
    let add = |shown: &mut Value| {
        shown["price_list"] = json!(applied.price_list);
        shown["currency"] = json!(applied.currency);
        shown["new_list"] = json!(applied.is_new);
        if let (Some(shown), Some(fields)) = (shown.as_object_mut(), more.as_object()) {
            shown.extend(fields.clone());
        }
    };
    if asked.dry_run {
        return plan.print_dry_run(console, add);
    }
    let mut shown = plan.json(false);
    add(&mut shown);
    console.print(&shown, || plan.text(false))
}

fn planned(one: &PriceSet, is_changed: bool) -> PlannedEntry {
    let effect = match (is_changed, one.was) {
        (false, _) => PlannedEffect::Unchanged,
        (true, None) => PlannedEffect::Create,
        (true, Some(_)) => PlannedEffect::Change,
    };
    let told = |amount: Option<domain::Amount>| match amount {
        Some(amount) => amount.to_string(),
        None => "not in the list".to_owned(),
    };
    let from = one.valid_from.map_or("at once".to_owned(), |from| {
        format!("from {}", pg::rfc3339(from))
    });
    let changes = vec![format!("{} → {}", told(one.was), told(one.price)), from];
    PlannedEntry {
        effect,
        id: Some(one.option_id.to_string()),
        name: one.option.clone(),
        changes: if is_changed { changes } else { Vec::new() },
    }
}

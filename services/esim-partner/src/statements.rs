//! Statements: all entries of a month of the account, as JSON or as CSV for a spreadsheet.

use anyhow::{Context, ensure};
use clap::Args;
use domain::{Amount, product::Currency};
use runtime::terminal::print;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::account::{ApiClient, PAGE, UNEXPECTED, encoded};

pub(crate) const EXAMPLES: &str = "Examples:
  esim-partner statements
  esim-partner statements 2026-11-USD
  esim-partner statements 2026-11-USD --csv > november.csv

All amounts of the JSON are whole numbers of the currency's minor unit. A statement has all of its entries.";

/// The maximum number of pages of a statement: a million entries.
const MOST_PAGES: usize = 10_000;

/// An entry, as far as the CSV shows it.
#[derive(Deserialize)]
struct Entry {
    number: i64,
    at: String,
    kind: String,
    amount: i64,
    balance: i64,
    topup_id: Option<String>,
    external_id: Option<String>,
    external_order_id: Option<String>,
    option_id: Option<String>,
    reference: Option<String>,
}

/// The list of the statements, or one of them.
#[derive(Args, Clone, Debug)]
pub(crate) struct Statements {
    /// Month and currency, as the list shows them: 2026-11-USD
    statement: Option<String>,
    /// Print the entries as CSV, with decimal amounts
    #[arg(long, requires = "statement")]
    csv: bool,
}

impl Statements {
    pub(crate) async fn run(&self, account: &ApiClient) -> anyhow::Result<bool> {
        if let Some(name) = &self.statement {
            return show(account, name, self.csv).await;
        }
        let all: Value = account.get("/statements", "").await?;
        print(serde_json::to_string_pretty(&all)?)?;
        Ok(true)
    }
}

/// Prints a statement with all of its entries.
async fn show(account: &ApiClient, name: &str, csv: bool) -> anyhow::Result<bool> {
    let path = format!("/statements/{}", encoded(name));
    let mut entries: Vec<Value> = Vec::new();
    let mut statement = Value::Null;
    let mut after = None;
    for _ in 0..MOST_PAGES {
        let query = match after {
            Some(after) => format!("limit={PAGE}&after={after}"),
            None => format!("limit={PAGE}"),
        };
        let mut page: Value = account.get(&path, &query).await?;
        let of_page = page["entries"].as_array_mut().context(UNEXPECTED)?;
        entries.append(of_page);
        after = page["next_after"].as_i64();
        statement = page;
        if after.is_none() {
            break;
        }
    }
    ensure!(
        after.is_none(),
        "the statement has more than a million entries; read it by the API, page by page"
    );
    if csv {
        print(table(&statement, entries)?)?;
    } else {
        statement["entries"] = json!(entries);
        print(serde_json::to_string_pretty(&statement)?)?;
    }
    Ok(true)
}

/// The entries as CSV, with amounts in the unit of the currency.
fn table(statement: &Value, entries: Vec<Value>) -> anyhow::Result<String> {
    let code = statement["currency"].as_str().context(UNEXPECTED)?;
    let currency = Currency::of_money(code).context(UNEXPECTED)?;
    let decimal = |minor| Amount { minor, currency }.decimal();
    let names = [
        "number",
        "at",
        "kind",
        "amount",
        "balance",
        "currency",
        "topup_id",
        "external_id",
        "external_order_id",
        "option_id",
        "reference",
    ];
    let mut rows = Vec::with_capacity(entries.len());
    for entry in entries {
        let entry: Entry = serde_json::from_value(entry).context(UNEXPECTED)?;
        rows.push([
            entry.number.to_string(),
            entry.at,
            entry.kind,
            decimal(entry.amount),
            decimal(entry.balance),
            code.to_owned(),
            entry.topup_id.unwrap_or_default(),
            entry.external_id.unwrap_or_default(),
            entry.external_order_id.unwrap_or_default(),
            entry.option_id.unwrap_or_default(),
            entry.reference.unwrap_or_default(),
        ]);
    }
    Ok(runtime::csv::table(&names, rows).trim_end().to_owned())
}

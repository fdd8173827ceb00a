//! `esimctl price apply`: sets the prices of a list by a file.
//!
//! The whole file is read and checked before anything is changed, and everything is written in one
//! transaction with its record: a file with any fault changes nothing. Options that the file does
//! not mention stay as they are. The file is YAML or JSON, as `price list LIST --json` prints it,
//! or CSV as spreadsheets write it. Amounts are never read as binary numbers, so none is rounded.

use std::collections::HashMap;

use anyhow::{Context, bail, ensure};
use clap::Args;
use desk::operator::prices::NewPrice;
use domain::{Amount, OptionId, product::Currency};
use serde::Deserialize;
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    console::Console,
    csv::{Record, Records},
    manifest::{self, ManifestArgs, ManifestField},
    price_set::{self, PlacedPrice, PriceListArgs},
};

pub const EXAMPLES: &str = "Examples:
  esimctl price apply retail --currency EUR -f prices.yaml --dry-run
  esimctl price apply retail --currency EUR -f prices.csv --reason 'prices of December'
  esimctl price list retail --json | esimctl price apply retail-2 --currency EUR -f -

The file is YAML or JSON:
  prices:
    - {option_id: d4c6c0a4-7f65-4f0b-9d0e-1f6f5a6f3c11, price: \"4.50\"}
    - {option_id: d4c6c0a4-7f65-4f0b-9d0e-1f6f5a6f3c11, price: \"4.90\", valid_from: 2026-12-01T00:00:00Z}
    - {option_id: 5b1f0c1e-93a4-4c06-8d5c-0f3f0f3a7a10, price: null}
or CSV as spreadsheets write it, separated by commas or semicolons:
  option_id,price,valid_from
  d4c6c0a4-7f65-4f0b-9d0e-1f6f5a6f3c11,4.50,
  5b1f0c1e-93a4-4c06-8d5c-0f3f0f3a7a10,none,2026-12-01T00:00:00Z

A price has at most as many decimals as its currency, after a point: 4.50 for EUR, 450 for JPY, 4.500 for JOD. Without
valid_from it is valid at once. null, or none in CSV, takes the option out of the list: partners with this list can no
longer order it. Options that are not in the file stay as they are. A price that was valid is never changed, and what was
ordered keeps its price. A file with any fault changes nothing.

--dry-run prints what would change, and ends with status 0 if that is nothing and 3 otherwise.";

/// The end of the time for which prices can be stored.
const LAST_YEAR: i32 = 9_998;

#[derive(Args, Clone, Debug)]
pub struct PriceApplyArgs {
    #[command(flatten)]
    list: PriceListArgs,
    #[command(flatten)]
    source: ManifestArgs,
}

pub async fn apply(asked: &PriceApplyArgs, console: &Console) -> anyhow::Result<()> {
    // Read everything before anything can fail: the program that writes to our standard input would
    // otherwise see a broken pipe and report that instead of our error.
    let text = asked.source.read()?;
    let name = asked.source.name();
    let prices = parse(&text, name, asked.list.currency)
        .with_context(|| format!("no price was changed by {name}"))?;
    price_set::carry_out(&asked.list, prices, console, json!({})).await
}

/// A price of the file, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceEntry {
    option_id: OptionId,
    #[serde(default)]
    price: ManifestField<Value>,
    #[serde(default)]
    valid_from: Option<String>,
    /// The name of the option and the currency, which `price list` prints for its readers.
    #[serde(default, rename = "option")]
    _option: Option<String>,
    #[serde(default)]
    currency: Option<String>,
}

impl PriceEntry {
    /// The price in the currency of the list, or what is wrong with which field.
    fn checked(self, currency: Currency) -> Result<NewPrice, String> {
        if let Some(other) = self.currency.filter(|other| other != currency.as_str()) {
            return Err(format!(
                "currency: it is {other}, and the list has prices in {currency}"
            ));
        }
        let price = match self.price {
            ManifestField::LeftOut => {
                Err("it is missing; null takes the option out of the list".to_owned())
            }
            ManifestField::Null => Ok(None),
            ManifestField::Value(Value::String(text)) => amount(&text, currency).map(Some),
            // It prints as it was written, which `manifest` has checked.
            ManifestField::Value(Value::Number(number)) => {
                amount(&number.to_string(), currency).map(Some)
            }
            ManifestField::Value(_) => Err("it is neither an amount nor null".to_owned()),
        };
        let valid_from = self.valid_from.as_deref().map(moment).transpose();
        Ok(NewPrice {
            option_id: self.option_id,
            amount: price.map_err(|fault| format!("price: {fault}"))?,
            valid_from: valid_from.map_err(|fault| format!("valid_from: {fault}"))?,
        })
    }
}

/// Reads a price; the error says how to write it.
fn amount(text: &str, currency: Currency) -> Result<Amount, String> {
    if text.contains(',') {
        return Err(format!(
            "{text:?} has a comma: write the decimals behind a point and thousands without a sign, such as 4.50"
        ));
    }
    match Amount::parse(text, currency) {
        Ok(amount) if amount.minor < 0 => Err(format!("{text} is below 0")),
        Ok(amount) => Ok(amount),
        Err(error) => Err(format!("{text:?} in {currency}: {error}")),
    }
}

fn moment(text: &str) -> Result<OffsetDateTime, String> {
    let moment = OffsetDateTime::parse(text, &Rfc3339).ok();
    let moment = moment.filter(|moment| moment.year() <= LAST_YEAR);
    moment.ok_or_else(|| format!("{text:?} is not a time such as 2026-12-01T00:00:00Z"))
}

/// Parses and checks the whole file, so that one error can name the faults of several prices.
fn parse(text: &str, name: &str, currency: Currency) -> anyhow::Result<Vec<PlacedPrice>> {
    let mut faults = Vec::new();
    let mut prices: Vec<PlacedPrice> = Vec::new();
    let entries: Vec<ReadEntry> = if let Some(separator) = csv_separator(text, name) {
        of_csv(text, separator)?
    } else {
        let entries = manifest::entries(text, "prices")?.into_iter();
        let read = entries.map(|entry| (entry.at.clone(), entry.read()));
        read.collect()
    };
    ensure!(!entries.is_empty(), "the file has no price");
    let mut first_with: HashMap<(OptionId, Option<OffsetDateTime>), String> = HashMap::new();
    for (at, entry) in entries {
        let price = match entry.map(|entry| entry.checked(currency)) {
            Ok(Ok(price)) => price,
            Ok(Err(fault)) => {
                faults.push(format!("{at}: {fault}"));
                continue;
            }
            Err(fault) => {
                faults.push(fault);
                continue;
            }
        };
        let key = (price.option_id, price.valid_from);
        if let Some(first) = first_with.get(&key) {
            faults.push(format!(
                "{at}: the option and the time are those of {first}"
            ));
        } else {
            first_with.insert(key, at.clone());
        }
        prices.push(PlacedPrice { at, price });
    }
    manifest::without_faults(faults)?;
    Ok(prices)
}

/// What separates the fields of a CSV file; `None` if the file is no CSV. A file is one by its
/// name, or by its first line, which names the columns.
fn csv_separator(text: &str, name: &str) -> Option<char> {
    let is_named = name.to_lowercase().ends_with(".csv");
    let first = text.lines().find(|line| !line.trim().is_empty())?;
    let separator = [';', '\t', ',']
        .into_iter()
        .find(|one| first.contains(*one));
    let separator = separator.unwrap_or(',');
    let mut columns = first
        .split(separator)
        .map(|column| column.trim().trim_matches('"'));
    (is_named || columns.any(|column| column.eq_ignore_ascii_case("option_id")))
        .then_some(separator)
}

/// An entry with its place, or its fault.
type ReadEntry = (String, Result<PriceEntry, String>);

/// Reads the rows of a CSV file below the names of its columns.
fn of_csv(text: &str, separator: char) -> anyhow::Result<Vec<ReadEntry>> {
    let mut records = Records::separated_by(text.as_bytes(), separator);
    let head = records.next()?.context("the file is empty")?;
    let columns = Columns::of(&head)?;
    let mut entries = Vec::new();
    while let Some(record) = records.next()? {
        // Spreadsheets write rows that were emptied, too.
        if record.fields.iter().all(|field| field.trim().is_empty()) {
            continue;
        }
        let at = format!("line {}", record.line);
        let entry = columns.entry(&record, &head);
        let entry = entry.map_err(|fault| format!("{at}: {fault}"));
        entries.push((at, entry));
    }
    Ok(entries)
}

/// Where the columns stand in a row.
struct Columns {
    option_id: usize,
    price: usize,
    valid_from: Option<usize>,
    currency: Option<usize>,
}

impl Columns {
    fn of(head: &Record) -> anyhow::Result<Self> {
        let names: Vec<String> = head
            .fields
            .iter()
            .map(|name| name.trim().to_lowercase())
            .collect();
        let at = |wanted: &str| names.iter().position(|name| name == wanted);
        for (index, name) in names.iter().enumerate() {
            let known = ["option_id", "price", "valid_from", "currency", "option", ""];
            if !known.contains(&name.as_str()) || !name.is_empty() && at(name) != Some(index) {
                bail!(
                    "line {}: the column {name:?} is unknown or stands twice; there are option_id, price, valid_from, currency and \
                     option",
                    head.line
                );
            }
        }
        let wanted =
            "the first line must name the columns option_id and price, and may name valid_from";
        Ok(Self {
            option_id: at("option_id").context(wanted)?,
            price: at("price").context(wanted)?,
            valid_from: at("valid_from"),
            currency: at("currency"),
        })
    }

    fn entry(&self, row: &Record, head: &Record) -> Result<PriceEntry, String> {
        if row.fields.len() > head.fields.len() {
            return Err(format!(
                "it has {} fields, and the first line names {}; if its price has a decimal comma, write a point",
                row.fields.len(),
                head.fields.len()
            ));
        }
        let field = |index: Option<usize>| {
            let text = index.and_then(|index| row.fields.get(index));
            text.map(|text| text.trim()).filter(|text| !text.is_empty())
        };
        let option_id = field(Some(self.option_id)).ok_or("option_id: it is missing")?;
        let price = match field(Some(self.price)) {
            None => {
                return Err(
                    "price: it is missing; none takes the option out of the list".to_owned(),
                );
            }
            Some("none") => ManifestField::Null,
            Some(text) => ManifestField::Value(Value::from(text)),
        };
        let option_id = option_id
            .parse::<OptionId>()
            .map_err(|error| format!("option_id: {option_id:?}: {error}"))?;
        Ok(PriceEntry {
            option_id,
            price,
            valid_from: field(self.valid_from).map(str::to_owned),
            _option: None,
            currency: field(self.currency).map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "d4c6c0a4-7f65-4f0b-9d0e-1f6f5a6f3c11";
    const OTHER: &str = "d5c6c0a4-7f65-4f0b-9d0e-1f6f5a6f3c11";

    fn read(text: &str, code: &str) -> anyhow::Result<Vec<String>> {
        let currency = Currency::of_money(code).unwrap();
        let prices = parse(text, "-", currency)?.into_iter();
        let shown = prices.map(|one| {
            let price = one.price.amount.map(|amount| amount.to_string());
            let from = one.price.valid_from.map(pg::rfc3339);
            assert_eq!(
                one.price.option_id.to_string(),
                ID,
                "the tests use this one"
            );
            format!(
                "{}: {} {}",
                one.at,
                price.unwrap_or("none".into()),
                from.unwrap_or("-".into())
            )
        });
        Ok(shown.collect())
    }

    #[test]
    fn a_file_is_yaml_json_or_what_a_spreadsheet_writes() {
        let yaml = format!(
            "prices:\n- {{option_id: {ID}, price: \"4.50\"}}\n- {{option_id: {ID}, price: null, valid_from: 2026-12-01T00:00:00Z}}\n"
        );
        let expected = [
            "line 2: prices[0]: 4.50 EUR -",
            "line 3: prices[1]: none 2026-12-01T00:00:00Z",
        ];
        assert_eq!(read(&yaml, "EUR").unwrap(), expected);
        let json = json!([
            {"option_id": ID, "option": "Japan", "currency": "EUR", "price": 4.5},
            {"option_id": ID, "price": null, "valid_from": "2026-12-01T01:00:00+01:00"},
        ]);
        assert!(read(&json.to_string(), "EUR").unwrap()[0].ends_with("4.50 EUR -"));
        let rows = format!(
            "option_id;price;valid_from;\r\n{ID};4.50;;\r\n\r\n;;;\r\n\"{ID}\";none;2026-12-01T00:00:00Z;\r\n"
        );
        let expected = ["line 2: 4.50 EUR -", "line 5: none 2026-12-01T00:00:00Z"];
        assert_eq!(read(&rows, "EUR").unwrap(), expected);
        assert_eq!(
            read(&rows.replace(';', ","), "EUR").unwrap(),
            expected,
            "with commas"
        );
        let columns = format!("Price,Option,OPTION_ID\n450,\"Japan, 1 GB\",{ID}\n");
        assert_eq!(read(&columns, "JPY").unwrap(), ["line 2: 450 JPY -"]);
        let three = format!("option_id,price\n{ID},4.505\n");
        assert_eq!(read(&three, "JOD").unwrap(), ["line 2: 4.505 JOD -"]);
    }

    #[test]
    fn each_fault_names_its_line_and_what_to_write() {
        for (text, code, part) in testkit::rows! {
            format!("option_id,price\n{ID},\"4,50\"\n"), "EUR"
                => r#"line 2: price: "4,50" has a comma: write the decimals behind a point"#;
            format!("option_id;price\n{ID};1.234,50\n"), "EUR" => "has a comma";
            format!("option_id,price\n{ID},4,50\n"), "EUR" => "if its price has a decimal comma, write a point";
            format!("option_id,price\n{ID},4.505\n"), "EUR" => "it is not an amount of its currency";
            format!("option_id,price\n{ID},4.5\n"), "JPY" => "it is not an amount of its currency";
            format!("option_id,price\n{ID},-1\n"), "EUR" => "-1 is below 0";
            format!("option_id,price\n{ID},\n"), "EUR" => "line 2: price: it is missing; none takes";
            format!("option_id,price\nJP,1\n"), "EUR" => r#"line 2: option_id: "JP": "#;
            format!("option_id,price,valid_from\n{ID},1,1.12.2026\n"), "EUR" => "is not a time such as";
            format!("option_id,price,valid_from\n{ID},1,9999-12-31T00:00:00Z\n"), "EUR" => "is not a time such as";
            format!("option_id,cost\n{ID},1\n"), "EUR" => r#"the column "cost" is unknown"#;
            format!("option_id,price,price\n{ID},1,1\n"), "EUR" => r#"the column "price" is unknown or stands twice"#;
            format!("option_id\n{ID}\n"), "EUR" => "must name the columns option_id and price";
            format!("option_id,price,currency\n{ID},1,USD\n"), "EUR" => "line 2: currency: it is USD";
            "option_id,price\n".to_owned(), "EUR" => "has no price";
            "prices: []\n".to_owned(), "EUR" => "has no price";
            format!("prices:\n- {{option_id: {ID}, price: 4.50}}\n"), "EUR" => "4.50 is read as the number 4.5: put it in quotes";
            format!("prices:\n- {{option_id: {ID}}}\n"), "EUR" => "prices[0]: price: it is missing; null takes";
            format!("prices:\n- {{option_id: {ID}, price: true}}\n"), "EUR" => "neither an amount nor null";
            format!("prices:\n- {{option_id: {ID}, prize: 1}}\n"), "EUR" => "unknown field `prize`";
        } {
            let error = format!("{:#}", read(&text, code).unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn all_faults_come_at_once() {
        let rows = format!("option_id,price\n{ID},\"1,5\"\n{ID},2\n{ID},3\n{OTHER},x\n");
        let error = read(&rows, "EUR").unwrap_err().to_string();
        for part in [
            "line 2: price",
            "line 4: the option and the time are those of line 3",
            "line 5: price",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_name_ending_in_csv_is_csv() {
        let currency = Currency::of_money("EUR").unwrap();
        let error = parse("id;amount\n", "Prices.CSV", currency).err().unwrap();
        assert!(error.to_string().contains("the column \"id\""), "{error}");
    }
}

//! `esimctl recover --ledger`: reads the provider's own list of purchases from a file, has it
//! compared with the placements (`tools::ledger`), and shows what differs.
//! `esimctl provider reconcile` gets the list from the provider and uses the rest.
//!
//! After commits were lost, for example because an asynchronous standby was promoted, purchases may
//! exist whose placement is gone. Only the provider knows them. USIMSA has no call that lists
//! orders, so the operator exports the list from the portal as CSV; the sandbox serves its list in
//! the same format (`GET /ledger.csv`).

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead, BufReader},
};

use anyhow::{Context, bail, ensure};
use desk::operator::words::counted;
use domain::product::Price;
use pg::PgConnection;
use serde_json::{Value, json};
use store::providers;
use tools::ledger::{
    self, Comparison, CompletePeriod, Difference, LedgerFinding, ListedPurchase, Loader,
};

use crate::{
    csv::{Record, Records},
    exit::Discrepancies,
    output::{TableRow, cells, or_dash, table},
};

/// The maximum number of findings that `--json` lists.
const MOST: i64 = 100_000;
/// The maximum number of findings that the text lists.
const NAMED: usize = 100;
/// The longest field, in characters. Longer ones are no ids, times or names.
const LONGEST_FIELD: usize = 10_000;

/// Fails with [`Discrepancies`] if the comparison has found orphans or mismatches, or if something
/// is missing.
pub fn check(found: &Comparison) -> Result<(), Discrepancies> {
    if found.orphans == 0 && found.mismatches == 0 && found.missing == 0 {
        return Ok(());
    }
    Err(Discrepancies {
        provider: found.provider.clone(),
        orphans: found.orphans,
        mismatches: found.mismatches,
        missing: found.missing,
    })
}

/// Compares the loaded list with the placements.
pub async fn of_loaded(
    connection: &mut PgConnection,
    provider: &str,
    complete: Option<CompletePeriod>,
) -> anyhow::Result<Comparison> {
    Ok(ledger::compare(connection, provider, complete, MOST).await?)
}

/// The name of the provider whose list it is. It may be left out if there is only one.
pub async fn provider(
    connection: &mut PgConnection,
    named: Option<&str>,
) -> anyhow::Result<String> {
    let known = providers::list(connection).await?;
    let mut names = known.into_iter().map(|provider| provider.name);
    let names: Vec<String> = match named {
        Some(named) => names.by_ref().filter(|name| name == named).collect(),
        None => names.collect(),
    };
    match (<[String; 1]>::try_from(names), named) {
        (Ok([name]), _) => Ok(name),
        (Err(_), Some(named)) => {
            bail!("there is no provider {named:?}; see `esimctl provider list`")
        }
        (Err(names), None) if names.is_empty() => bail!(
            "no provisioner has ever started on this database, so it has no provider whose list could be compared"
        ),
        (Err(names), None) => bail!(
            "say whose list it is, because there are several providers: --provider with one of {}",
            names.join(", ")
        ),
    }
}

/// Reads the file, or standard input if it is `-`, and compares it with the placements.
pub async fn compare(
    connection: &mut PgConnection,
    file: &str,
    provider: &str,
) -> anyhow::Result<Comparison> {
    let source: Box<dyn BufRead> = if file == "-" {
        Box::new(io::stdin().lock())
    } else {
        let opened = File::open(file).with_context(|| format!("cannot open {file}"))?;
        Box::new(BufReader::new(opened))
    };
    load(connection, Records::new(source))
        .await
        .with_context(|| format!("nothing was compared or changed: {file}"))?;
    let found = of_loaded(connection, provider, None).await?;
    ensure!(
        found.purchases == 0 || found.not_ours < found.purchases,
        "none of the {} order ids in {file} has the form of a placement id (a UUID): the column order_id must hold the \
         order id that we sent to the provider, not the provider's own number",
        found.purchases
    );
    Ok(found)
}

async fn load<R: BufRead>(
    connection: &mut PgConnection,
    mut records: Records<R>,
) -> anyhow::Result<()> {
    let header = records
        .next()?
        .context("the file is empty; it needs a header line such as order_id,at,units,option")?;
    let columns = Columns::of(&header)?;
    let mut loader = Loader::begin(connection).await?;
    while let Some(record) = records.next()? {
        let line = record.line;
        let purchase = columns
            .purchase(&record)
            .with_context(|| format!("line {line}"))?;
        loader.add(&purchase).await?;
    }
    loader.finish().await?;
    Ok(())
}

/// The places of the columns in the file.
#[derive(Debug)]
struct Columns {
    number: usize,
    order_id: usize,
    provider_order_id: Option<usize>,
    at: Option<usize>,
    units: Option<usize>,
    option: Option<usize>,
    iccids: Option<usize>,
    partner: Option<usize>,
    paid: Option<usize>,
}

impl Columns {
    fn of(header: &Record) -> anyhow::Result<Self> {
        let names: Vec<&str> = header.fields.iter().map(|name| name.trim()).collect();
        let place = |name: &str| -> anyhow::Result<Option<usize>> {
            let mut places = (0..names.len()).filter(|place| names[*place] == name);
            let first = places.next();
            ensure!(
                places.next().is_none(),
                "line {}: the header has the column {name} twice",
                header.line
            );
            Ok(first)
        };
        let order_id = place("order_id")?.with_context(|| {
            format!(
                "line {}: the header has no column order_id, only {}; name the column with the order id that we sent \
                 order_id, and separate the columns by commas",
                header.line,
                names.join(", ")
            )
        })?;
        Ok(Self {
            number: names.len(),
            order_id,
            provider_order_id: place("provider_order_id")?,
            at: place("at")?,
            units: place("units")?,
            option: place("option")?,
            iccids: place("iccids")?,
            partner: place("partner")?,
            paid: place("paid")?,
        })
    }

    fn purchase(&self, record: &Record) -> anyhow::Result<ListedPurchase> {
        let fields = &record.fields;
        ensure!(
            fields.len() == self.number,
            "it has {} fields, but the header has {}: put a field that has a comma in quotes",
            fields.len(),
            self.number
        );
        for field in fields {
            ensure!(
                !field.contains('\0'),
                "it holds a NUL character, which no id or name has: save the file as UTF-8"
            );
            ensure!(
                field.chars().count() <= LONGEST_FIELD,
                "a field is longer than {LONGEST_FIELD} characters; probably a quote is not closed"
            );
        }
        let optional = |place: Option<usize>| {
            let text = fields[place?].trim();
            (!text.is_empty()).then(|| text.to_owned())
        };
        let order_id = fields[self.order_id].trim().to_owned();
        ensure!(
            !order_id.is_empty(),
            "its order_id is blank; remove the line, or write the order id that we sent"
        );
        let units = optional(self.units).map(|text| {
            let units: Option<i32> = text.parse().ok().filter(|units| *units > 0);
            units.with_context(|| {
                format!("units is {text:?}, which is not a number from 1 on; leave it blank if it is not known")
            })
        });
        let paid = optional(self.paid).map(|text| {
            let paid: Option<Price> = Price::parse(&text);
            paid.with_context(|| {
                format!("paid is {text:?}, which is not a price such as 1.50; write it without a currency, or leave it blank")
            })
        });
        Ok(ListedPurchase {
            line: record.line,
            order_id,
            provider_order_id: optional(self.provider_order_id),
            at: optional(self.at),
            units: units.transpose()?,
            option: optional(self.option),
            iccids: optional(self.iccids),
            partner: optional(self.partner),
            paid: paid.transpose()?,
        })
    }
}

/// The comparison as JSON, each finding with what to do about it.
pub fn shown(found: &Comparison) -> Value {
    let mut shown = json!(found);
    let listed = found.orphans + found.mismatches + found.not_ours + found.missing;
    shown["all_findings_listed"] = json!(listed <= MOST);
    if let Some(findings) = shown["findings"].as_array_mut() {
        for (finding, of) in findings.iter_mut().zip(&found.findings) {
            finding["remedy"] = json!(remedy(of.kind));
        }
    }
    shown
}

/// The comparison as text.
pub fn described(found: &Comparison) -> String {
    let Comparison {
        provider,
        purchases,
        orphans,
        mismatches,
        placing,
        not_ours,
        missing,
        findings,
    } = found;
    let mut lines = vec![format!(
        "The list of {provider} has {}: {orphans} without a placement (orphans), {mismatches} in contradiction to \
         the database, and {placing} of placements that are being bought, which the provisioners look up anyway",
        counted(*purchases, "purchase", "purchases")
    )];
    if *not_ours > 0 {
        lines.push(format!(
            "{not_ours} more with an order id that is no placement id, which this system did not buy"
        ));
    }
    if *missing > 0 {
        lines.push(format!(
            "{} missing in the list",
            counted(*missing, "purchase of ours is", "purchases of ours are")
        ));
    }
    if findings.is_empty() {
        return lines.join("\n");
    }
    lines.push(table(findings.iter().take(NAMED).map(row)));
    if findings.len() > NAMED {
        lines.push("… and more; --json lists them".to_owned());
    }
    let kinds: BTreeSet<Difference> = findings.iter().map(|finding| finding.kind).collect();
    lines.extend(
        kinds
            .into_iter()
            .map(|kind| format!("{}: {}", <&str>::from(kind), remedy(kind))),
    );
    lines.join("\n")
}

fn row(finding: &LedgerFinding) -> TableRow<10> {
    cells!(finding:
        kind = <&str>::from(finding.kind).to_owned(), line = or_dash(finding.line), order_id, "bought at" = or_dash(finding.at.as_ref()),
        option = or_dash(finding.option.as_ref()), units = or_dash(finding.units),
        "units here" = or_dash(finding.units_here), state = or_dash(finding.state.0.as_ref()),
        partner = finding.partner.clone().unwrap_or_else(|| "unknown".to_owned()),
        external_order_id = or_dash(finding.external_order_id.as_ref()),
    )
}

/// What a finding of this kind means, and what the operator does about it.
fn remedy(kind: Difference) -> &'static str {
    match kind {
        Difference::Orphan => {
            "the provider has sold it, and its order is not in this database. It is never bought again under this id, but a \
             partner that repeats its order gets a new one. Cancel it at the provider, or hand its profiles to the partner"
        }
        Difference::BoughtTwice => {
            "the provider has sold this placement more than once. Cancel all but one of these purchases at the provider"
        }
        Difference::NotBoughtHere => {
            "the placement is refused or failed here, so nothing of it is delivered. Cancel the purchase at the provider"
        }
        Difference::Parked => {
            "the placement waits for an operator, and the provider has the purchase: run `esimctl placement resolve ID \
             --bought` (with --provider NAME if the placement is at another provider now), or cancel the purchase and run it with --not-bought"
        }
        Difference::Forgotten => {
            "the placement is accepted, so this database does not know the attempt that bought it, and would buy it again. \
             `esimctl recover` without --dry-run has it looked up, and adopts the purchase; one that could go to several \
             providers is parked instead, for `esimctl placement resolve ID --bought --provider NAME`"
        }
        Difference::OtherProvider => {
            "the placement belongs to another provider. Check --provider; if it is right, cancel the purchase"
        }
        Difference::PriceDiffers => {
            "we paid another price than the option named when it was ordered. Compare the provider's invoice, and take the new \
             price over with `esimctl catalogue pull`; a price that was raised unannounced is the provider's to give back"
        }
        Difference::Missing => {
            "we have recorded the purchase, and the provider's list does not have it. Look it up in the provider's portal by \
             the order id. If it was not sold, its eSIMs may not work: ask the provider before partners notice"
        }
        Difference::UnitsDiffer => {
            "the provider has sold another number of units than the order has. Compare `esimctl order show ID` with the \
             provider's record, and cancel units that are too many"
        }
        Difference::NotOurs => "this system did not make the purchase; nothing is to be done here",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(line: i64, fields: &[&str]) -> Record {
        Record {
            line,
            fields: fields.iter().map(|field| (*field).to_owned()).collect(),
        }
    }

    #[test]
    fn columns_are_found_by_their_names_and_others_are_ignored() {
        let columns = Columns::of(&record(1, &["price", " units", "order_id", "at"])).unwrap();
        let purchase = columns
            .purchase(&record(2, &["1.50", "2", " o-1 ", ""]))
            .unwrap();
        assert_eq!((purchase.line, purchase.order_id.as_str()), (2, "o-1"));
        assert_eq!((purchase.units, purchase.at), (Some(2), None));
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        let columns = Columns::of(&record(1, &["order_id", "units"])).unwrap();
        for (fields, part) in testkit::rows! {
            &["o-1"][..] => "it has 1 fields, but the header has 2";
            &[" ", "1"] => "its order_id is blank";
            &["o-1", "0"] => r#"units is "0""#;
            &["o-1", "many"] => r#"units is "many""#;
            &["o\0", "1"] => "NUL";
        } {
            let error = columns
                .purchase(&record(2, fields))
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{error}");
        }
        for (header, part) in testkit::rows! {
            &["id", "units"][..] => "no column order_id, only id, units";
            &["order_id", "at", "at"] => "the column at twice";
        } {
            let error = Columns::of(&record(1, header)).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

//! `esimctl account margin`: what partners pay for what they get, less what it cost us.
//!
//! The sums are those of [`desk::operator::margin`]: what each entry has copied. What cost another
//! currency than it was sold for, or an unknown sum, has a line of its own and no margin.

use clap::{Args, builder::NonEmptyStringValueParser};
use desk::operator::{
    margin::{self, CalendarMonth, MarginBy, MarginFilter, MarginLine},
    options,
};
use runtime::csv::table;

use crate::{
    console::{self, Console},
    lookup::find_id,
    option::one,
    output::{cells, or_dash},
};

pub const EXAMPLES: &str = "Examples:
  esimctl account margin
  esimctl account margin --from 2026-01 --to 2026-03 --by partner --csv > margin.csv
  esimctl account margin --partner 'Acme Travel' --provider airalo --by month,option --json

A line has what was charged in these months, in UTC, less what was refunded, and what the units and extensions cost. The cost
is that of the purchase, copied when it was charged; it is not known of entries of an earlier version, of an option without a
cost, and of what a further provider of an option has sold. No rate of currencies is known, so what cost another currency than
it was sold for, or an unknown sum, stands in a line of its own, without a margin.";

#[derive(Args, Clone, Debug)]
pub struct AccountMarginArgs {
    /// The first month, such as 2026-11 [default: the last one, or that of --to]
    #[arg(long, value_name = "MONTH")]
    from: Option<CalendarMonth>,
    /// The last month [default: this one]
    #[arg(long, value_name = "MONTH")]
    to: Option<CalendarMonth>,
    /// What has a line of its own: month, partner, provider, option [default: all of them]
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    by: Vec<MarginBy>,
    /// Only what this partner has bought, named by its id, access key or unique name
    #[arg(long, value_name = "ID|ACCESS_KEY|NAME")]
    partner: Option<String>,
    /// Only what this provider has sold
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    provider: Option<String>,
    /// Only this option, named by its id, its name, or its name at the provider
    #[arg(long, value_name = "NAME|ID", value_parser = NonEmptyStringValueParser::new())]
    option: Option<String>,
    /// Print the lines as CSV, with a line of names
    #[arg(long)]
    csv: bool,
}

pub async fn run(asked: &AccountMarginArgs, console: &Console) -> anyhow::Result<()> {
    let now = CalendarMonth::of(runtime::clock::now());
    let to = asked.to.unwrap_or(now);
    let from = asked.from.unwrap_or_else(|| match asked.to {
        Some(to) => to,
        None => now.before(),
    });
    anyhow::ensure!(
        from <= to,
        "--from {from} is after the last month, {to}; --to names another one"
    );
    let mut connection = console.connect().await?;
    let option = match &asked.option {
        Some(typed) => Some(one(options::named(&mut connection, typed).await?, typed)?.option_id),
        None => None,
    };
    let filter = MarginFilter {
        from,
        to,
        partner: find_id(&mut connection, asked.partner.as_ref()).await?,
        provider: asked.provider.as_deref(),
        option,
    };
    let by = if asked.by.is_empty() {
        &MarginBy::ALL[..]
    } else {
        &asked.by
    };
    let lines = margin::margin(&mut connection, filter, by).await?;
    console.print(&lines, || {
        if asked.csv {
            return table(&MarginLine::COLUMNS, lines.iter().map(MarginLine::cells))
                .trim_end_matches('\n')
                .to_owned();
        }
        let none = "Nothing was charged to these in these months.";
        console::list(&lines, none, |line: &MarginLine| {
            let margin = line.margin.clone().or_else(|| line.why_none());
            cells!(line:
                month = or_dash(line.month.as_ref()), partner = or_dash(line.partner.as_ref()),
                provider = or_dash(line.provider.as_ref()), option = or_dash(line.option.as_ref()), sold, returned,
                price = format!("{} {}", line.price, line.currency), cost = cost(line),
                margin = or_dash(margin.as_ref()), "%" = or_dash(line.percent.as_ref()),
            )
        })
    })
}

fn cost(line: &MarginLine) -> String {
    let both = line.cost.as_ref().zip(line.cost_currency.as_ref());
    both.map_or_else(|| "–".to_owned(), |(cost, code)| format!("{cost} {code}"))
}

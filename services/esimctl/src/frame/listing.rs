//! What `order list` and `delivery list` have in common: their filters, and pages that say how they
//! go on.

use clap::{Args, builder::NonEmptyStringValueParser};
use desk::operator::options;
use domain::{OptionId, PartnerId};
use pg::PgConnection;
use runtime::{csv::table, past::past};
use serde::Serialize;
use time::OffsetDateTime;

use crate::{
    console::{self, Console},
    lookup::find_id,
    option::one,
    output::TableRow,
    range::check_range,
};

#[derive(Args, Clone, Debug)]
pub struct Listing {
    /// List only those of this partner, named by its id, access key or unique name
    #[arg(long, value_name = "ID|ACCESS_KEY|NAME")]
    pub partner: Option<String>,
    /// List only those of this option, named by its id, its name, or its name at the provider
    #[arg(long, value_name = "NAME|ID", value_parser = NonEmptyStringValueParser::new())]
    option: Option<String>,
    /// List only those of which this provider sells a part
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub provider: Option<String>,
    /// List only those since this time
    ///
    /// It is a time such as `2025-01-29T12:00:00Z`, or an age such as `2h`, of at most 365 days.
    #[arg(long, value_name = "TIME", value_parser = past)]
    pub since: Option<OffsetDateTime>,
    /// List only those before this time, in the form of `--since`
    #[arg(long, value_name = "TIME", value_parser = past)]
    pub until: Option<OffsetDateTime>,
    /// The maximum number of rows
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub limit: u16,
    /// Print the rows as CSV, with a line of names
    #[arg(long)]
    csv: bool,
}

/// What the names of a filter stand for.
pub struct FilterIds {
    pub partner_id: Option<PartnerId>,
    pub option_id: Option<OptionId>,
}

impl Listing {
    /// Checks the range of time, and finds the partner and the option.
    pub async fn named(&self, connection: &mut PgConnection) -> anyhow::Result<FilterIds> {
        check_range(self.since, self.until)?;
        let option_id = match &self.option {
            Some(typed) => Some(one(options::named(connection, typed).await?, typed)?.option_id),
            None => None,
        };
        Ok(FilterIds {
            partner_id: find_id(connection, self.partner.as_ref()).await?,
            option_id,
        })
    }

    /// Prints a page. `none` is said if it has no rows, and `next` is the cursor of the next one.
    pub fn print<P: Serialize, T, const N: usize>(
        &self,
        console: &Console,
        page: &P,
        (rows, next): (&[T], Option<String>),
        none: &str,
        row: impl Fn(&T) -> TableRow<N>,
    ) -> anyhow::Result<()> {
        console.print(page, || {
            if self.csv {
                return csv(rows.iter().map(row));
            }
            let shown = console::list(rows, none, row);
            match next {
                None => shown,
                Some(cursor) => {
                    format!(
                        "{shown}\n\nThe list goes on: repeat the command with --cursor {cursor}"
                    )
                }
            }
        })
    }
}

/// Rows as CSV, with the names of their columns in the first line.
fn csv<const N: usize>(rows: impl Iterator<Item = TableRow<N>>) -> String {
    let rows: Vec<TableRow<N>> = rows.collect();
    let Some(first) = rows.first() else {
        return String::new();
    };
    let names = first.each_ref().map(|(name, _)| name.replace(' ', "_"));
    let fields = rows.into_iter().map(|row| row.map(|(_, cell)| cell));
    table(&names, fields).trim_end_matches('\n').to_owned()
}

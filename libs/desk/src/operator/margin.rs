//! What we earn: what partners pay for what they get, less what it costs us (`esimctl account
//! margin` and a page of the console).
//!
//! Both are copied into the entry of each unit when it is charged, so no later change of a price or
//! of an option touches them. A cost keeps its own currency, and nothing here converts it: no rate
//! of currencies is known. What cost something in another currency, or an unknown sum, stands in a
//! line of its own, without a margin.

use std::collections::BTreeMap;

use domain::{Amount, OptionId, PartnerId, product::Currency};
use pg::Result;
use serde::Serialize;
use sqlx::PgConnection;
use store::Unflushed;
use time::{Date, Month, OffsetDateTime, Time};

use super::health::money::{COST_DECIMALS, parts_of_cost};

/// By what lines are told apart.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
pub enum MarginBy {
    Month,
    Partner,
    Provider,
    Option,
}

impl MarginBy {
    pub const ALL: [Self; 4] = [Self::Month, Self::Partner, Self::Provider, Self::Option];

    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What is added up.
#[derive(Clone, Copy, Debug)]
pub struct MarginFilter<'a> {
    /// From the begin of this month on, in UTC.
    pub from: CalendarMonth,
    /// Up to the end of this month.
    pub to: CalendarMonth,
    pub partner: Option<PartnerId>,
    pub provider: Option<&'a str>,
    pub option: Option<OptionId>,
}

/// A month such as `2026-11`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CalendarMonth {
    year: i32,
    month: u8,
}

impl CalendarMonth {
    /// The month of a time, in UTC.
    pub fn of(at: OffsetDateTime) -> Self {
        let date = at.to_offset(time::UtcOffset::UTC).date();
        Self {
            year: date.year(),
            month: date.month().into(),
        }
    }

    #[must_use]
    pub fn before(self) -> Self {
        match self.month {
            ..=1 => Self {
                year: self.year - 1,
                month: 12,
            },
            month => Self {
                month: month - 1,
                ..self
            },
        }
    }

    fn after(self) -> Self {
        match self.month {
            12.. => Self {
                year: self.year + 1,
                month: 1,
            },
            month => Self {
                month: month + 1,
                ..self
            },
        }
    }

    fn first_moment(self) -> OffsetDateTime {
        let month = Month::try_from(self.month).unwrap_or(Month::January);
        let date = Date::from_calendar_date(self.year, month, 1);
        date.map_or(OffsetDateTime::UNIX_EPOCH, |date| {
            OffsetDateTime::new_utc(date, Time::MIDNIGHT)
        })
    }
}

impl std::fmt::Display for CalendarMonth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04}-{:02}", self.year, self.month)
    }
}

impl std::str::FromStr for CalendarMonth {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let parts = text.split_once('-').filter(|(year, month)| {
            let is_number = |part: &str| part.bytes().all(|digit| digit.is_ascii_digit());
            year.len() == 4 && month.len() == 2 && is_number(year) && is_number(month)
        });
        let read = parts.and_then(|(year, month)| {
            let (year, month): (i32, u8) = (year.parse().ok()?, month.parse().ok()?);
            let is_real = (2000..=9998).contains(&year) && (1..=12).contains(&month);
            is_real.then_some(Self { year, month })
        });
        read.ok_or("it is not a month such as 2026-11")
    }
}

/// Units that were sold for one currency and cost one currency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MarginLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub month: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partner_id: Option<PartnerId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option_id: Option<OptionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option: Option<String>,
    pub sold: i64,
    /// Those of them that were given back, whose price and cost came back.
    pub returned: i64,
    /// The currency of the price.
    pub currency: Currency,
    /// What the partner pays for them, as a decimal number.
    pub price: String,
    /// The currency of the cost; `None` if the cost is not known.
    pub cost_currency: Option<String>,
    pub cost: Option<String>,
    /// Price less cost; `None` if the cost is not known or has another currency.
    pub margin: Option<String>,
    /// The margin in percent of the price.
    pub percent: Option<String>,
}

impl MarginLine {
    /// The columns of CSV.
    pub const COLUMNS: [&'static str; 14] = [
        "month",
        "partner_id",
        "partner",
        "provider",
        "option_id",
        "option",
        "sold",
        "returned",
        "currency",
        "price",
        "cost_currency",
        "cost",
        "margin",
        "percent",
    ];

    /// The line as CSV has it.
    pub fn cells(&self) -> [String; 14] {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        [
            text(&self.month),
            text(&self.partner_id.map(|id| id.to_string())),
            text(&self.partner),
            text(&self.provider),
            text(&self.option_id.map(|id| id.to_string())),
            text(&self.option),
            self.sold.to_string(),
            self.returned.to_string(),
            self.currency.to_string(),
            self.price.clone(),
            text(&self.cost_currency),
            text(&self.cost),
            text(&self.margin),
            text(&self.percent),
        ]
    }

    /// Why there is no margin.
    pub fn why_none(&self) -> Option<String> {
        match (&self.margin, &self.cost_currency) {
            (Some(_), _) => None,
            (None, None) => Some("its cost is not known".to_owned()),
            (None, Some(code)) => {
                Some(format!("no rate from {code} to {} is known", self.currency))
            }
        }
    }
}

/// What tells a line from others; what is not asked for is the same for all.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct LineKey {
    month: String,
    partner: String,
    partner_id: Option<PartnerId>,
    provider: String,
    option: String,
    option_id: Option<OptionId>,
    currency: String,
    cost_currency: Option<String>,
}

#[derive(Default)]
struct Sums {
    sold: i64,
    returned: i64,
    /// In minor units.
    price: i128,
    /// In ten-thousandths.
    cost: i128,
}

/// The margin of these months, by what is asked for; in the order of months, partners, providers
/// and options.
pub async fn margin(
    connection: &mut PgConnection,
    filter: MarginFilter<'_>,
    by: &[MarginBy],
) -> Result<Vec<MarginLine>> {
    let rows = sqlx::query!(
        r#"-- Names are looked up once for each line, because a join could compare each entry with each option.
           SELECT sums.month AS "month!", sums.partner_id AS "partner_id!",
                  (SELECT r.name FROM partners r WHERE r.partner_id = sums.partner_id) AS "partner!",
                  sums.provider, sums.option_id,
                  (SELECT o.name FROM options o WHERE o.option_id = sums.option_id) AS option,
                  sums.currency AS "currency!", sums.cost_currency, sums.sold AS "sold!", sums.returned AS "returned!",
                  sums.price AS "price!", sums.cost
           FROM (SELECT to_char(n.at AT TIME ZONE 'UTC', 'YYYY-MM') AS month, a.partner_id, n.provider, n.option_id, a.currency,
                        n.cost_currency,
                        count(*) FILTER (WHERE n.kind <> 'refund') AS sold,
                        count(*) FILTER (WHERE n.kind = 'refund') AS returned,
                        (-sum(n.amount))::text AS price,
                        sum(CASE n.kind WHEN 'refund' THEN -n.cost ELSE n.cost END)::text AS cost
                 FROM accounts a
                 JOIN account_entries n ON n.partner_id = a.partner_id AND n.currency = a.currency
                 WHERE n.at >= $1 AND n.at < $2 AND n.kind IN ('charge', 'late_charge', 'refund')
                   AND ($3::uuid IS NULL OR a.partner_id = $3) AND ($4::text IS NULL OR n.provider = $4)
                   AND ($5::uuid IS NULL OR n.option_id = $5)
                 GROUP BY 1, 2, 3, 4, 5, 6) sums"#,
        filter.from.first_moment(),
        filter.to.after().first_moment(),
        filter.partner.map(PartnerId::uuid),
        filter.provider,
        filter.option.map(OptionId::uuid),
    );
    let mut lines: BTreeMap<LineKey, Sums> = BTreeMap::new();
    for row in rows.fetch_all(&mut *connection).await? {
        let is_by = |one| by.contains(&one);
        let key = LineKey {
            month: if is_by(MarginBy::Month) {
                row.month
            } else {
                String::new()
            },
            partner: if is_by(MarginBy::Partner) {
                row.partner
            } else {
                String::new()
            },
            partner_id: is_by(MarginBy::Partner).then(|| row.partner_id.into()),
            provider: row
                .provider
                .filter(|_| is_by(MarginBy::Provider))
                .unwrap_or_default(),
            option: row
                .option
                .filter(|_| is_by(MarginBy::Option))
                .unwrap_or_default(),
            option_id: row
                .option_id
                .filter(|_| is_by(MarginBy::Option))
                .map(OptionId::from),
            currency: row.currency,
            cost_currency: row.cost_currency,
        };
        let sums = lines.entry(key).or_default();
        sums.sold += row.sold;
        sums.returned += row.returned;
        sums.price += row.price.parse().unwrap_or(0);
        sums.cost += row.cost.and_then(|cost| cost.parse().ok()).unwrap_or(0);
    }
    let lines = lines.into_iter().map(|(key, sums)| line(key, &sums, by));
    let lines: Result<Vec<MarginLine>> = lines.collect();
    Unflushed::of(lines?).after_flush(connection).await
}

fn line(key: LineKey, sums: &Sums, by: &[MarginBy]) -> Result<MarginLine> {
    let currency = accounts::prices::currency(&key.currency)?;
    let is_same = key.cost_currency.as_deref() == Some(currency.as_str());
    let price = sums.price * i128::from(parts_of_cost(currency));
    let margin = is_same.then(|| price - sums.cost);
    let minor = i64::try_from(sums.price).unwrap_or(i64::MAX);
    let asked = |one, text: String| by.contains(&one).then_some(text);
    let named = |one, text: String| asked(one, text).filter(|text| !text.is_empty());
    Ok(MarginLine {
        month: asked(MarginBy::Month, key.month),
        partner_id: key.partner_id,
        partner: asked(MarginBy::Partner, key.partner),
        provider: named(MarginBy::Provider, key.provider),
        option_id: key.option_id,
        option: named(MarginBy::Option, key.option),
        sold: sums.sold,
        returned: sums.returned,
        currency,
        price: Amount { minor, currency }.decimal(),
        cost: key
            .cost_currency
            .is_some()
            .then(|| decimal(sums.cost, COST_DECIMALS)),
        cost_currency: key.cost_currency,
        margin: margin.map(|margin| decimal(margin, COST_DECIMALS)),
        percent: margin
            .filter(|_| price > 0)
            .map(|margin| decimal(tenths_of_percent(margin, price), 1)),
    })
}

/// A part of a whole in tenths of a percent, rounded down.
fn tenths_of_percent(part: i128, whole: i128) -> i128 {
    (part * 1000).div_euclid(whole)
}

/// A number with so many decimals, of which those behind the second are left out if they are 0.
fn decimal(parts: i128, decimals: usize) -> String {
    let sign = if parts < 0 { "-" } else { "" };
    let digits = format!("{:0>width$}", parts.unsigned_abs(), width = decimals + 1);
    let (whole, part) = digits.split_at(digits.len() - decimals);
    let kept = part.trim_end_matches('0').len().max(decimals.min(2));
    format!("{sign}{whole}.{}", &part[..kept])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_is_written_as_in_iso_8601() {
        for (text, before, after) in [
            ("2026-11", "2026-10", "2026-12"),
            ("2026-01", "2025-12", "2026-02"),
            ("2026-12", "2026-11", "2027-01"),
        ] {
            let month: CalendarMonth = text.parse().unwrap();
            assert_eq!(month.to_string(), text);
            assert_eq!(month.before().to_string(), before);
            assert_eq!(month.after().to_string(), after);
            assert_eq!(CalendarMonth::of(month.first_moment()), month);
            assert_eq!(
                CalendarMonth::of(month.first_moment() - time::Duration::nanoseconds(1)),
                month.before()
            );
        }
        for bad in [
            "2026-13",
            "2026-00",
            "2026-1",
            "26-11",
            "2026-11-01",
            "+026-11",
            "",
            "1999-12",
        ] {
            assert!(bad.parse::<CalendarMonth>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sums_are_written_with_at_least_two_decimals() {
        for (parts, text) in [
            (0, "0.00"),
            (45_000, "4.50"),
            (31_234, "3.1234"),
            (-1, "-0.0001"),
            (-123_450_000, "-12345.00"),
        ] {
            assert_eq!(decimal(parts, 4), text);
        }
        assert_eq!(decimal(tenths_of_percent(1, 3), 1), "33.3");
        assert_eq!(decimal(tenths_of_percent(-1, 3), 1), "-33.4");
    }
}

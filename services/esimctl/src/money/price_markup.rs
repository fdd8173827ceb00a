//! `esimctl price markup`: sets the prices of a list by a rule over what the options cost us.
//!
//! A price is the cost and a percentage of it, at least the cost and a minimum, rounded up to a
//! multiple of a step. All of it is computed in whole numbers, so a price is never below what the
//! rule says, and the same rule always gives the same price. What the rule gives is set as a file
//! of these prices would be ([`crate::price_set`]).

use std::str::FromStr;

use accounts::options;
use anyhow::{Context, ensure};
use clap::Args;
use desk::operator::prices::NewPrice;
use domain::{
    Amount,
    money::MOST_AMOUNT,
    product::{Cost, Currency, Price},
};
use runtime::terminal::say;
use serde::Serialize;
use serde_json::json;

use crate::{
    console::Console,
    output::printable,
    price_set::{self, PlacedPrice, PriceListArgs},
};

pub const EXAMPLES: &str = "Examples:
  esimctl price markup retail --currency USD --percent 30 --dry-run
  esimctl price markup retail --currency USD --percent 30 --minimum 0.50 --round-to 0.10 --reason 'margin of 2027'

A price is the cost and --percent of it, at least the cost and --minimum, rounded up to a multiple of --round-to. An option
that costs 4.1234 USD gets 5.40 by the second example. The cost is what `esimctl catalogue pull` or a file of options has
stored: that of the provider that is asked first. Options whose cost is not known, or is in another currency, are left out
and named, and keep the price that they have. When costs change, run the command again.

--dry-run prints what would change, and ends with status 0 if that is nothing and 3 otherwise.";

/// The number of options without a price that a warning names. JSON has all of them.
const MOST_NAMED: usize = 20;
/// The parts of a currency's unit in which costs are counted, times those of a percentage.
const PARTS: u128 = 10_000 * 10_000;

#[derive(Args, Clone, Debug)]
pub struct PriceMarkupArgs {
    #[command(flatten)]
    list: PriceListArgs,
    /// What is added to the cost, in percent with at most two decimals
    #[arg(long, value_name = "NUMBER")]
    percent: Percent,
    /// What is added to the cost at least, as an amount of the currency [default: 0]
    #[arg(long, value_name = "AMOUNT")]
    minimum: Option<String>,
    /// Prices are rounded up to a multiple of this amount [default: the least amount of the
    /// currency]
    #[arg(long, value_name = "AMOUNT")]
    round_to: Option<String>,
}

/// Hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Percent(u32);

/// The highest percentage, in hundredths.
const MOST_PERCENT: u32 = 10_000_000;

impl FromStr for Percent {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A price has four decimals, so these two are its first ones.
        let parsed = Price::parse(text).map(|parts| parts.0);
        let hundredths = parsed.filter(|parts| parts % 100 == 0);
        let hundredths = hundredths.and_then(|parts| u32::try_from(parts / 100).ok());
        hundredths
            .filter(|hundredths| *hundredths <= MOST_PERCENT)
            .map(Self)
            .ok_or(
                "it is not a percentage from 0 to 100000 with at most two decimals, such as 12.5",
            )
    }
}

/// How a price is made from a cost.
#[derive(Clone, Copy, Debug)]
struct MarkupRule {
    currency: Currency,
    percent: Percent,
    /// In minor units, from 0 on.
    minimum: i64,
    /// In minor units, from 1 on.
    round_to: i64,
}

impl MarkupRule {
    fn of(asked: &PriceMarkupArgs) -> anyhow::Result<Self> {
        let currency = asked.list.currency;
        let minor = |option: &str, text: Option<&String>, otherwise: i64| {
            let Some(text) = text else {
                return Ok(otherwise);
            };
            let amount = Amount::parse(text, currency);
            let amount = amount.with_context(|| format!("{option} {text} in {currency}"))?;
            anyhow::Ok(amount.minor)
        };
        let rule = Self {
            currency,
            percent: asked.percent,
            minimum: minor("--minimum", asked.minimum.as_ref(), 0)?,
            round_to: minor("--round-to", asked.round_to.as_ref(), 1)?,
        };
        ensure!(
            rule.minimum >= 0,
            "--minimum is below 0, so options would be sold below their cost"
        );
        ensure!(
            rule.round_to > 0,
            "--round-to must be more than 0; leave it out for the least amount of the currency"
        );
        Ok(rule)
    }

    /// The price of what costs this; the error says why there is none.
    fn price(&self, cost: Option<Cost>) -> Result<Amount, String> {
        let cost = cost.ok_or("its cost is not known")?;
        if cost.currency != self.currency {
            return Err(format!("it costs {cost}, which is another currency"));
        }
        let minor = self.minor(cost.price);
        let minor =
            minor.ok_or_else(|| format!("it costs {cost}, which is too much for a price"))?;
        Ok(Amount {
            minor,
            currency: self.currency,
        })
    }

    /// The price in minor units; `None` if it is more than an amount may be.
    fn minor(&self, cost: Price) -> Option<i64> {
        let exponent = u32::try_from(self.currency.exponent()?).ok()?;
        // In ten-thousandths of ten-thousandths of a minor unit, of which nothing is lost.
        let cost = u128::from(cost.0).checked_mul(10_u128.checked_pow(exponent)?)?;
        let by_percent = cost.checked_mul(10_000 + u128::from(self.percent.0))?;
        let minimum = u128::try_from(self.minimum).ok()?.checked_mul(PARTS)?;
        let by_minimum = cost.checked_mul(10_000)?.checked_add(minimum)?;
        let step = u128::try_from(self.round_to).ok()?;
        let steps = by_percent
            .max(by_minimum)
            .div_ceil(step.checked_mul(PARTS)?);
        let minor = i64::try_from(steps.checked_mul(step)?).ok()?;
        (minor <= MOST_AMOUNT).then_some(minor)
    }
}

/// An option that the rule gives no price.
#[derive(Serialize)]
struct LeftOutOption {
    #[serde(skip_serializing_if = "Option::is_none")]
    option_id: Option<domain::OptionId>,
    option: String,
    why: String,
}

pub async fn markup(asked: &PriceMarkupArgs, console: &Console) -> anyhow::Result<()> {
    let rule = MarkupRule::of(asked)?;
    let stored = options::all(&mut console.connect().await?).await?;
    let (catalogue, unreadable) = options::readable(stored);
    let mut left_out: Vec<LeftOutOption> = Vec::new();
    let mut prices = Vec::with_capacity(catalogue.len());
    for option in catalogue {
        let cost = option.standard.and_then(|standard| standard.cost);
        match rule.price(cost) {
            Ok(amount) => prices.push(PlacedPrice {
                at: format!("option {}", option.name),
                price: NewPrice {
                    option_id: option.option_id,
                    amount: Some(amount),
                    valid_from: None,
                },
            }),
            Err(why) => left_out.push(LeftOutOption {
                option_id: Some(option.option_id),
                option: option.name,
                why,
            }),
        }
    }
    left_out.extend(unreadable.into_iter().map(|error| LeftOutOption {
        option_id: None,
        option: error,
        why: "its row cannot be read".to_owned(),
    }));
    ensure!(
        !prices.is_empty(),
        "no option has a cost in {}, so no price was changed; `esimctl option list` shows costs, and `esimctl catalogue pull` or \
         a file of options sets them",
        rule.currency
    );
    if !left_out.is_empty() && !console.is_json() {
        say(format_args!("esimctl: {}", warning(&left_out)));
    }
    price_set::carry_out(
        &asked.list,
        prices,
        console,
        json!({ "left_out": left_out }),
    )
    .await
}

/// Names what the rule gives no price, because partners with the list may be unable to order it.
fn warning(left_out: &[LeftOutOption]) -> String {
    let named = left_out.iter().take(MOST_NAMED);
    let mut named: Vec<String> = named
        .map(|one| format!("{} ({})", printable(&one.option), one.why))
        .collect();
    let more = left_out.len().saturating_sub(MOST_NAMED);
    if more > 0 {
        named.push(format!("and {more} more, which --json lists"));
    }
    format!(
        "left out, so they keep the price that they have, if any: {}",
        named.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(code: &str, percent: &str, minimum: &str, round_to: &str) -> MarkupRule {
        let currency = Currency::of_money(code).unwrap();
        let minor = |text| Amount::parse(text, currency).unwrap().minor;
        MarkupRule {
            currency,
            percent: percent.parse().unwrap(),
            minimum: minor(minimum),
            round_to: minor(round_to),
        }
    }

    #[test]
    fn a_price_is_the_cost_and_its_part_rounded_up() {
        for (cost, code, percent, minimum, round_to, price) in [
            ("4.1234", "USD", "30", "0.50", "0.10", "5.40"),
            ("4.00", "USD", "25", "0", "0.01", "5.00"),
            ("4.0001", "USD", "25", "0", "0.01", "5.01"),
            ("1.00", "USD", "12.25", "0.50", "0.01", "1.50"),
            ("0.00", "USD", "30", "0", "0.01", "0.00"),
            ("0.00", "USD", "30", "0.01", "1", "1.00"),
            ("450.5", "JPY", "10", "0", "1", "496"),
            ("450.5", "JPY", "10", "0", "50", "500"),
            ("1.2345", "JOD", "0", "0", "0.001", "1.235"),
        ] {
            let rule = rule(code, percent, minimum, round_to);
            let cost = Cost {
                price: Price::parse(cost).unwrap(),
                currency: rule.currency,
            };
            assert_eq!(
                rule.price(Some(cost)).unwrap().decimal(),
                price,
                "{cost} {rule:?}"
            );
        }
        let usd = rule("USD", "30", "0", "0.01");
        let euros = Cost {
            price: Price(1),
            currency: Currency::of_money("EUR").unwrap(),
        };
        assert!(
            usd.price(Some(euros))
                .unwrap_err()
                .contains("another currency")
        );
        assert!(usd.price(None).unwrap_err().contains("not known"));
        // The greatest cost that can be written, and the greatest that can be stored.
        for cost in ["999999999999.9999".parse().unwrap(), Price(u64::MAX)] {
            assert_eq!(usd.minor(cost), None, "{cost}");
            assert_eq!(rule("CLF", "100000", "0", "0.0001").minor(cost), None);
        }
    }

    #[test]
    fn a_percentage_has_two_decimals() {
        for (text, hundredths) in [
            ("30", 3000),
            ("12.5", 1250),
            ("0.01", 1),
            ("100000", 10_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Percent(hundredths)), "{text}");
        }
        for bad in [
            "",
            "-1",
            "30%",
            "0.001",
            "100000.01",
            "1e2",
            "12,5",
            "99999999999",
        ] {
            assert!(bad.parse::<Percent>().is_err(), "{bad}");
        }
    }

    proptest! {
        /// Compared in the smallest parts of a minor unit, in which all of it is a whole number.
        #[test]
        fn a_price_is_never_below_the_rule_and_less_than_a_step_above_it(
            exponent in 0..3_usize, cost in 0..1_000_000_000_u64, percent in 0..100_000_u32,
            minimum in 0..1_000_000_i64, round_to in 1..100_000_i64,
        ) {
            let (code, minor_units) = [("JPY", 1), ("USD", 100), ("JOD", 1000)][exponent];
            let currency = Currency::of_money(code).unwrap();
            prop_assert_eq!(10_u128.pow(u32::try_from(currency.exponent().unwrap()).unwrap()), minor_units);
            let rule = MarkupRule { currency, percent: Percent(percent), minimum, round_to };
            let price = rule.minor(Price(cost)).unwrap();
            prop_assert!(price >= 0);
            prop_assert_eq!(price % round_to, 0);
            let parts = |minor: i64| u128::try_from(minor).unwrap() * PARTS;
            let cost = u128::from(cost) * minor_units * 10_000;
            let with_minimum = cost + parts(minimum);
            let with_percent = cost + cost / 10_000 * u128::from(percent);
            prop_assert!(parts(price) >= with_minimum);
            prop_assert!(parts(price) >= with_percent);
            prop_assert!(parts(price) < with_minimum.max(with_percent) + parts(round_to));
        }
    }
}

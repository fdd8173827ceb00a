//! The price guard: an option may say the most that we pay for its product, so that a price that
//! the provider has raised is never paid silently.
//!
//! The price stands behind the product in the option's id at the provider: `JC016@1.50` is the
//! product `JC016` for at most 1.50 in the currency of the account. That id is copied into each
//! unit when its order is stored. So an order is bought at the price for which it was accepted,
//! even if the catalogue changes before it is bought. An option without a price is bought at any
//! price.

use std::fmt;

/// How many parts of a currency's unit a price is counted in.
const PARTS: u64 = 10_000;
/// The longest whole part of a price, in digits. More would not fit.
const WHOLE: usize = 12;

/// A price in ten-thousandths of the currency's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Price(pub(super) u64);

impl Price {
    /// Parses a decimal number of at most four places, such as `1.5`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_number =
            |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        if !is_number(whole) || whole.len() > WHOLE || !is_number(part) || part.len() > 4 {
            return None;
        }
        let whole: u64 = whole.parse().ok()?;
        let part: u64 = format!("{part:0<4}").parse().ok()?;
        Some(Self(whole * PARTS + part))
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = format!("{:04}", self.0 % PARTS);
        let part = part.trim_end_matches('0');
        write!(f, "{}.{part:0<2}", self.0 / PARTS)
    }
}

/// A product and the most that we pay for one unit of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms<'a> {
    pub(super) product: &'a str,
    pub(super) most: Option<Price>,
}

/// The text behind `@` is no price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadPrice;

/// Reads the id of an option at the provider.
pub(super) fn terms(provider_option_id: &str) -> Result<Terms<'_>, BadPrice> {
    let Some((product, price)) = provider_option_id.rsplit_once('@') else {
        return Ok(Terms {
            product: provider_option_id,
            most: None,
        });
    };
    let most = Some(Price::parse(price).ok_or(BadPrice)?);
    Ok(Terms { product, most })
}

/// The product of an option, whatever its price.
pub(super) fn product(provider_option_id: &str) -> &str {
    provider_option_id
        .rsplit_once('@')
        .map_or(provider_option_id, |(product, _)| product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_may_name_the_most_that_is_paid() {
        let of = |text| terms(text).map(|terms| (terms.product, terms.most.map(|most| most.0)));
        assert_eq!(of("JC016"), Ok(("JC016", None)));
        assert_eq!(of("JC016@1.5"), Ok(("JC016", Some(15_000))));
        assert_eq!(of("a@b@0.0001"), Ok(("a@b", Some(1))));
        for bad in [
            "a@",
            "a@x",
            "a@1.",
            "a@.5",
            "a@-1",
            "a@1.00001",
            "a@1,5",
            "a@1e3",
            "a@ 1",
        ] {
            assert_eq!(of(bad), Err(BadPrice), "{bad}");
        }
        assert_eq!(of("a@1234567890123"), Err(BadPrice));
        assert_eq!(product("JC016@x"), "JC016");
    }

    #[test]
    fn a_price_is_shown_as_it_is_written() {
        for text in ["1.50", "0.00", "12.3456", "7.05"] {
            assert_eq!(Price::parse(text).unwrap().to_string(), text);
        }
    }
}

//! Money of partners: amounts in the minor unit of a currency, as whole numbers.
//!
//! A price, a balance and every entry of an account is such a whole number, so sums need no
//! rounding. How many decimals a currency has, such as none for JPY, two for USD and three for JOD,
//! is the exponent of ISO 4217; nothing here assumes two. What a provider costs us has its own unit
//! ([`crate::product::Price`]), because providers quote ten-thousandths.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::product::{BadField, Currency};

/// The greatest amount that is accepted anywhere, in minor units. Sums of any number of units of an
/// order stay far below the end of a 64-bit number.
pub const MOST_AMOUNT: i64 = 1_000_000_000_000;

/// An amount of money. Negative ones are taken from a partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Amount {
    /// In the minor unit of the currency, such as cents.
    #[serde(rename = "amount")]
    pub minor: i64,
    pub currency: Currency,
}

impl Amount {
    /// Reads an amount as people write it, such as `12.50`, in this currency. More decimals than
    /// the currency has are an error and not rounded.
    pub fn parse(text: &str, currency: Currency) -> Result<Self, BadField> {
        let bad = BadField(
            "it is not an amount of its currency, such as 12.50 for USD, 1250 for JPY or 12.500 for JOD",
        );
        let exponent = currency.exponent().ok_or(NO_MINOR_UNIT)?;
        let (sign, digits) = match text.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, text),
        };
        let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
        let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
        let has_point = digits.len() > whole.len();
        if whole.is_empty()
            || whole.len() > 13
            || !is_number(whole)
            || !is_number(part)
            || part.len() > exponent
            || has_point && part.is_empty()
        {
            return Err(bad);
        }
        let minor: i64 = format!("{whole}{part:0<exponent$}")
            .parse()
            .map_err(|_| bad)?;
        if minor > MOST_AMOUNT {
            return Err(BadField("it is more than 1,000,000,000,000 minor units"));
        }
        Ok(Self {
            minor: sign * minor,
            currency,
        })
    }

    /// The amount as a decimal number, without its currency.
    pub fn decimal(&self) -> String {
        let exponent = self.currency.exponent().unwrap_or(0);
        let sign = if self.minor < 0 { "-" } else { "" };
        let digits = format!(
            "{:0>width$}",
            self.minor.unsigned_abs(),
            width = exponent + 1
        );
        let (whole, part) = digits.split_at(digits.len() - exponent);
        if part.is_empty() {
            format!("{sign}{whole}")
        } else {
            format!("{sign}{whole}.{part}")
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.decimal(), self.currency)
    }
}

const NO_MINOR_UNIT: BadField =
    BadField("it is no currency of ISO 4217 in which amounts can be written, such as USD");

impl Currency {
    /// How many decimals its amounts have; `None` if ISO 4217 does not know the code, or gives it
    /// none, as for gold.
    pub fn exponent(&self) -> Option<usize> {
        let known = iso_currency::Currency::from_code(self.as_str())?;
        known.exponent().map(usize::from)
    }

    /// Reads the code of a currency that amounts can be written in.
    pub fn of_money(code: &str) -> Result<Self, BadField> {
        let currency: Self = code.parse()?;
        currency.exponent().map(|_| currency).ok_or(NO_MINOR_UNIT)
    }
}

/// What an entry of an account is about.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum EntryKind {
    /// A unit became ready. Its price was held since its order.
    Charge,
    /// A unit failed, so the hold of its price ended.
    Release,
    /// A unit became ready after its hold had ended. Its price was not held, so this may exceed
    /// what was available.
    LateCharge,
    /// A unit was given back, so its price came back.
    Refund,
    /// The partner paid.
    Deposit,
    /// A correction by an operator.
    Adjustment,
}

impl EntryKind {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What has happened to a unit that has a price.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PricedUnit {
    pub is_ready: bool,
    pub has_failed: bool,
    pub is_returned: bool,
    /// The entries that it has.
    pub charged: bool,
    pub released: bool,
    pub charged_late: bool,
    pub refunded: bool,
}

impl PricedUnit {
    /// The entries that its account lacks. After them it lacks none, however often this is asked.
    /// The SQL function `account_for` writes them; a test compares the two.
    pub fn due(self) -> Vec<EntryKind> {
        let mut due = Vec::new();
        let is_open = !self.charged && !self.released;
        if self.is_ready && is_open {
            due.push(EntryKind::Charge);
        }
        if self.is_ready && self.released && !self.charged_late {
            due.push(EntryKind::LateCharge);
        }
        if self.has_failed && !self.is_ready && is_open {
            due.push(EntryKind::Release);
        }
        if self.is_ready && self.is_returned && !self.refunded {
            due.push(EntryKind::Refund);
        }
        due
    }

    /// The unit with this entry.
    #[must_use]
    pub fn with(mut self, entry: EntryKind) -> Self {
        match entry {
            EntryKind::Charge => self.charged = true,
            EntryKind::Release => self.released = true,
            EntryKind::LateCharge => self.charged_late = true,
            EntryKind::Refund => self.refunded = true,
            EntryKind::Deposit | EntryKind::Adjustment => {}
        }
        self
    }

    /// What its entries have changed the balance by, for a price of one.
    pub fn posted(self) -> i64 {
        i64::from(self.refunded) - i64::from(self.charged) - i64::from(self.charged_late)
    }

    /// Whether its price is held.
    pub fn is_held(self) -> bool {
        !self.charged && !self.released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn currency(code: &str) -> Currency {
        Currency::of_money(code).unwrap()
    }

    #[test]
    fn amounts_have_the_decimals_of_their_currency() {
        for (text, code, minor) in [
            ("12.50", "USD", 1250),
            ("12.5", "USD", 1250),
            ("12", "EUR", 1200),
            ("0.01", "EUR", 1),
            ("1250", "JPY", 1250),
            ("12.500", "JOD", 12_500),
            ("-3.10", "USD", -310),
            ("0", "KRW", 0),
        ] {
            let amount = Amount::parse(text, currency(code)).unwrap();
            assert_eq!(amount.minor, minor, "{text} {code}");
            assert_eq!(
                Amount::parse(&amount.decimal(), currency(code)).unwrap(),
                amount
            );
        }
        assert_eq!(
            Amount::parse("-0.05", currency("USD")).unwrap().to_string(),
            "-0.05 USD"
        );
        assert_eq!(
            Amount::parse("7", currency("JPY")).unwrap().to_string(),
            "7 JPY"
        );
        assert_eq!(
            Amount::parse("0.007", currency("KWD")).unwrap().to_string(),
            "0.007 KWD"
        );
        for (bad, code) in [
            ("12.50", "JPY"),
            ("1.234", "USD"),
            ("1.2345", "JOD"),
            ("", "USD"),
            ("-", "USD"),
            (".5", "USD"),
            ("5.", "USD"),
            ("1,5", "USD"),
            ("1e3", "USD"),
            ("+1", "USD"),
            (" 1", "USD"),
            ("--1", "USD"),
            ("10000000000.01", "USD"),
            ("99999999999999", "JPY"),
        ] {
            assert!(Amount::parse(bad, currency(code)).is_err(), "{bad} {code}");
        }
    }

    #[test]
    fn a_currency_of_money_is_one_of_the_standard() {
        for (code, exponent) in [("USD", 2), ("JPY", 0), ("KRW", 0), ("JOD", 3), ("BHD", 3)] {
            assert_eq!(currency(code).exponent(), Some(exponent));
        }
        for bad in ["", "usd", "US", "USDT", "ABC", "XAU", "XXX"] {
            assert!(Currency::of_money(bad).is_err(), "{bad}");
        }
    }

    /// Whatever happens to a unit and in whatever order, its account ends as if everything had been
    /// known from the beginning: it is charged once if it is ready, and refunded at most once.
    #[test]
    fn each_unit_is_accounted_for_once() {
        for events in 0..27_u8 {
            let order = [events % 3, events / 3 % 3, events / 9 % 3];
            let mut unit = PricedUnit::default();
            for event in order {
                match event {
                    0 => unit.has_failed = !unit.is_ready,
                    1 => unit.is_ready = true,
                    _ => unit.is_returned = unit.is_ready,
                }
                for entry in unit.due() {
                    unit = unit.with(entry);
                }
                assert_eq!(unit.due(), [], "{order:?} {unit:?}");
                assert!(!(unit.charged && unit.released), "{unit:?}");
                let expected = i64::from(unit.is_returned) - i64::from(unit.is_ready);
                assert_eq!(unit.posted(), expected, "{order:?} {unit:?}");
                assert_eq!(
                    unit.is_held(),
                    !unit.is_ready && !unit.has_failed && !unit.released
                );
            }
        }
    }
}

//! The standard fields of a product: where it can be used, how much data it has, for how long, and
//! what it costs us. Providers write them in different ways; their adapters translate them into
//! these types, so that products of different providers can be compared, and partners can filter by
//! them.
//!
//! Each type can only hold a value that makes sense, because what a provider sends is not trusted.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The assigned codes of ISO 3166-1 alpha-2, and XK, which providers use for Kosovo.
const COUNTRIES: &str = "\
    AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN \
    BO BQ BR BS BT BV BW BY BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ \
    DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK FM FO FR GA GB GD GE GF GG GH GI GL \
    GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR IS IT JE JM \
    JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME \
    MF MG MH MK ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP \
    NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW PY QA RE RO RS RU RW SA SB SC SD \
    SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM TN TO \
    TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS XK YE YT ZA ZM ZW";

/// How many parts of a currency's unit a price is counted in.
const PARTS: u64 = 10_000;
/// The longest whole part of a price, in digits. More would not fit.
const WHOLE: usize = 12;
/// The most data of a product that is not unlimited, in MB. It is a petabyte; more is a mistake.
const MOST_MB: u32 = 1 << 30;
/// The longest validity of a product, in days.
const MOST_DAYS: u16 = 3_660;

/// A text is not a value of its type. It says which form is expected and does not repeat the text,
/// which may hold anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadField(pub(crate) &'static str);

/// A country as a code of ISO 3166-1 alpha-2, such as `JP`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Country([u8; 2]);

impl Country {
    pub fn as_str(&self) -> &str {
        // It was made from ASCII letters.
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Country {
    type Err = BadField;

    fn from_str(text: &str) -> Result<Self, BadField> {
        let known = COUNTRIES.split(' ').find(|code| *code == text);
        let code = known.and_then(|code| code.as_bytes().try_into().ok());
        code.map(Self).ok_or(BadField(
            "it is not a country code of ISO 3166-1 alpha-2 in capital letters, such as JP",
        ))
    }
}

/// The code of a currency, three capital letters, such as `USD`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Currency([u8; 3]);

impl Currency {
    pub fn as_str(&self) -> &str {
        // It was made from ASCII letters.
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Currency {
    type Err = BadField;

    fn from_str(text: &str) -> Result<Self, BadField> {
        let letters: Option<[u8; 3]> = text.as_bytes().try_into().ok();
        letters
            .filter(|letters| letters.iter().all(u8::is_ascii_uppercase))
            .map(Self)
            .ok_or(BadField(
                "it is not the code of a currency, three capital letters, such as USD",
            ))
    }
}

/// A price in ten-thousandths of the currency's unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price(pub u64);

impl Price {
    /// Parses a decimal number of at most four places, such as `1.5`.
    pub fn parse(text: &str) -> Option<Self> {
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

impl FromStr for Price {
    type Err = BadField;

    fn from_str(text: &str) -> Result<Self, BadField> {
        Self::parse(text).ok_or(BadField(
            "it is not a price, a decimal number of at most four places, such as 1.50",
        ))
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = format!("{:04}", self.0 % PARTS);
        let part = part.trim_end_matches('0');
        write!(f, "{}.{part:0<2}", self.0 / PARTS)
    }
}

/// How much data a product has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// In MB, of which 1024 are a GB.
    Megabytes(u32),
    Unlimited,
}

impl Data {
    /// A bounded amount. None is refused, because a product without data is no product of ours.
    pub fn megabytes(megabytes: u64) -> Option<Self> {
        let megabytes = u32::try_from(megabytes).ok()?;
        (1..=MOST_MB)
            .contains(&megabytes)
            .then_some(Self::Megabytes(megabytes))
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Megabytes(megabytes) => write!(f, "{megabytes} MB"),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Megabytes(megabytes) => megabytes.serialize(serializer),
            Self::Unlimited => "unlimited".serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        let data = match Written::deserialize(deserializer) {
            Ok(Written::Number(megabytes)) => Self::megabytes(megabytes),
            Ok(Written::Text(text)) => (text == "unlimited").then_some(Self::Unlimited),
            Err(_) => None,
        };
        data.ok_or_else(|| {
            de::Error::custom("it must be a number of MB from 1 on, or \"unlimited\"")
        })
    }
}

/// What is known of a product in the same form for all providers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Standard {
    /// Where it can be used: at least one country, sorted, each once.
    #[serde(deserialize_with = "countries")]
    pub countries: Vec<Country>,
    #[serde(rename = "data_mb")]
    pub data: Data,
    /// For how many days it is valid.
    #[serde(deserialize_with = "days")]
    pub days: u16,
    /// What the provider asks of us for one unit. Partners do not see it.
    #[serde(default)]
    pub cost: Option<Cost>,
}

impl Standard {
    /// Sorts the countries. `None` if there is no country, or if the number of days makes no sense.
    pub fn new(
        mut countries: Vec<Country>,
        data: Data,
        days: u16,
        cost: Option<Cost>,
    ) -> Option<Self> {
        countries.sort_unstable();
        countries.dedup();
        let is_good = !countries.is_empty() && (1..=MOST_DAYS).contains(&days);
        is_good.then_some(Self {
            countries,
            data,
            days,
            cost,
        })
    }
}

/// What the provider asks of us for one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    pub price: Price,
    pub currency: Currency,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.price, self.currency)
    }
}

fn countries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Country>, D::Error> {
    let mut countries = Vec::<Country>::deserialize(deserializer)?;
    countries.sort_unstable();
    countries.dedup();
    if countries.is_empty() {
        return Err(de::Error::custom("there must be at least one country"));
    }
    Ok(countries)
}

fn days<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let days = u16::deserialize(deserializer)?;
    if (1..=MOST_DAYS).contains(&days) {
        Ok(days)
    } else {
        Err(de::Error::custom(format!(
            "it must be from 1 to {MOST_DAYS}"
        )))
    }
}

/// Lets a type be written and read as its text.
macro_rules! as_text {
    ($($type:ident),+) => {
        $(
            impl fmt::Debug for $type {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    fmt::Display::fmt(self, f)
                }
            }

            impl Serialize for $type {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.collect_str(self)
                }
            }

            impl<'de> Deserialize<'de> for $type {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
                }
            }
        )+
    };
}

as_text!(Country, Currency, Price);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_country_is_an_assigned_code() {
        for good in ["JP", "US", "XK", "ZW", "AD"] {
            assert_eq!(good.parse::<Country>().unwrap().as_str(), good);
        }
        for bad in [
            "",
            "J",
            "jp",
            "JPN",
            "ZZ",
            "UK",
            "EU",
            "J P",
            " JP",
            "D A",
            "\u{ff2a}\u{ff30}",
        ] {
            assert!(bad.parse::<Country>().is_err(), "{bad}");
        }
        assert_eq!(COUNTRIES.split(' ').count(), 250);
    }

    #[test]
    fn a_price_is_shown_as_it_is_written() {
        for text in ["1.50", "0.00", "12.3456", "7.05"] {
            assert_eq!(Price::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Price::parse("1.5"), Some(Price(15_000)));
        for bad in [
            "",
            "x",
            "1.",
            ".5",
            "-1",
            "1.00001",
            "1,5",
            "1e3",
            " 1",
            "1234567890123",
        ] {
            assert_eq!(Price::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn standard_fields_are_read_as_they_are_written_and_nothing_else_is() {
        let whole = json!({
            "countries": ["FR", "DE", "FR"], "data_mb": 1024, "days": 7,
            "cost": { "price": "1.50", "currency": "USD" },
        });
        let read: Standard = serde_json::from_value(whole.clone()).unwrap();
        let mut sorted = whole.clone();
        sorted["countries"] = json!(["DE", "FR"]);
        assert_eq!(serde_json::to_value(&read).unwrap(), sorted);
        let with = |field: &str, value: serde_json::Value| {
            let mut changed = whole.clone();
            changed[field] = value;
            serde_json::from_value::<Standard>(changed)
        };
        assert_eq!(
            with("data_mb", json!("unlimited")).unwrap().data,
            Data::Unlimited
        );
        assert_eq!(with("cost", json!(null)).unwrap().cost, None);
        for (field, value) in [
            ("countries", json!([])),
            ("countries", json!(["Japan"])),
            ("countries", json!("JP")),
            ("data_mb", json!(null)),
            ("data_mb", json!(0)),
            ("data_mb", json!(-1)),
            ("data_mb", json!(1.5)),
            ("data_mb", json!("1024")),
            ("data_mb", json!(u64::MAX)),
            ("days", json!(0)),
            ("days", json!(4_000)),
            ("days", json!("7")),
            ("cost", json!({ "price": "1.50" })),
            ("cost", json!({ "price": 1.5, "currency": "USD" })),
            ("cost", json!({ "price": "1.50", "currency": "usd" })),
            ("other", json!(1)),
        ] {
            assert!(with(field, value.clone()).is_err(), "{field}: {value}");
        }
    }
}

//! What the traveller's page shows of a partner: the shop's name, two colours, and where it helps.
//!
//! A partner sets it itself, so every text is checked before it is stored: no name can turn the
//! direction of the text around it, and no pair of colours makes the page unreadable.

use std::fmt;

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

/// A language of the page, by its tag of BCP 47.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    EnumString,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
#[strum(serialize_all = "lowercase", ascii_case_insensitive)]
#[serde(rename_all = "lowercase")]
pub enum PageLanguage {
    En,
    De,
    Es,
    Fr,
    It,
    Pt,
    Ar,
    Ja,
    Ko,
    #[strum(to_string = "zh-Hans")]
    #[serde(rename = "zh-Hans")]
    ZhHans,
}

impl PageLanguage {
    /// Its tag, such as `zh-Hans`.
    pub fn tag(self) -> &'static str {
        self.into()
    }
}

/// A colour without transparency, as `#14506b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Colour([u8; 3]);

/// A text is no colour.
#[derive(Debug, thiserror::Error)]
#[error("it must be a colour such as #14506b")]
pub struct NoColour;

impl TryFrom<String> for Colour {
    type Error = NoColour;

    fn try_from(text: String) -> Result<Self, NoColour> {
        Self::parse(&text)
    }
}

impl From<Colour> for String {
    fn from(colour: Colour) -> Self {
        format!("#{}", colour.hex())
    }
}

impl Colour {
    /// Reads `#` and six hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, NoColour> {
        text.strip_prefix('#')
            .and_then(Self::of_hex)
            .ok_or(NoColour)
    }

    /// Reads the six digits alone.
    pub fn of_hex(digits: &str) -> Option<Self> {
        let is_hex = digits.len() == 6 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = is_hex.then(|| u32::from_str_radix(digits, 16).ok())??;
        let [_, red, green, blue] = number.to_be_bytes();
        Some(Self([red, green, blue]))
    }

    /// The six digits alone.
    pub fn hex(self) -> String {
        let Self([red, green, blue]) = self;
        format!("{red:02x}{green:02x}{blue:02x}")
    }

    /// The relative luminance of WCAG 2.2.
    fn luminance(self) -> f64 {
        let linear = |part: u8| {
            let part = f64::from(part) / 255.0;
            if part <= 0.040_45 {
                part / 12.92
            } else {
                ((part + 0.055) / 1.055).powf(2.4)
            }
        };
        let Self([red, green, blue]) = self;
        0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
    }

    /// The contrast of two colours by WCAG 2.2: from 1, for the same colour, to 21.
    pub fn contrast(self, other: Self) -> f64 {
        let one = self.luminance() + 0.05;
        let other = other.luminance() + 0.05;
        one.max(other) / one.min(other)
    }
}

/// The least contrast of text with what is behind it, as WCAG 2.2 asks for at level AA.
pub const LEAST_CONTRAST: f64 = 4.5;

/// The longest name of a shop, in characters.
pub const LONGEST_NAME: usize = 60;

/// What the page shows of a partner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shop {
    pub name: String,
    /// The colour of the bar and of the button, and that of the text on them.
    pub brand: Colour,
    pub brand_ink: Colour,
    /// Where it helps: at least one of the two.
    pub help_email: Option<String>,
    pub help_url: Option<String>,
    /// The languages that travellers can choose, the first one if they ask for none of them.
    pub languages: Vec<PageLanguage>,
}

impl fmt::Display for Shop {
    /// For operators.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let help = [&self.help_email, &self.help_url].into_iter().flatten();
        let help: Vec<&str> = help.map(String::as_str).collect();
        let tags: Vec<&str> = self.languages.iter().map(|one| one.tag()).collect();
        let [ink, brand] = [self.brand_ink.hex(), self.brand.hex()];
        let (help, tags) = (help.join(", "), tags.join(", "));
        write!(
            f,
            "“{}”, #{ink} on #{brand}; help: {help}; {tags}",
            self.name
        )
    }
}

/// What is stored as a shop is damaged.
#[derive(Debug, thiserror::Error)]
#[error("the shop of a partner: {0}")]
pub struct UnreadableShop(#[from] serde_json::Error);

impl Shop {
    /// As it is stored.
    pub fn stored(&self) -> String {
        // Texts can always be written.
        serde_json::to_string(self).unwrap_or_default()
    }

    pub fn read(stored: &str) -> Result<Self, UnreadableShop> {
        Ok(serde_json::from_str(stored)?)
    }
}

/// Whether a text has one line that people can read: no control characters, and none that turns the
/// direction of what follows.
pub fn is_plain(text: &str) -> bool {
    let turns = |one: char| matches!(one, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !text.trim().is_empty() && !text.chars().any(|one| one.is_control() || turns(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colour(text: &str) -> Colour {
        Colour::parse(text).unwrap()
    }

    #[test]
    fn contrast_is_that_of_wcag() {
        let contrast = |one, other| format!("{:.2}", colour(one).contrast(colour(other)));
        assert_eq!(contrast("#000000", "#FFFFFF"), "21.00");
        assert_eq!(contrast("#777777", "#ffffff"), "4.48");
        assert_eq!(contrast("#ffffff", "#767676"), "4.54");
        assert_eq!(contrast("#14506b", "#14506b"), "1.00");
    }

    #[test]
    fn only_six_digits_are_a_colour() {
        assert_eq!(String::from(colour("#A0b1C2")), "#a0b1c2");
        for bad in [
            "", "#", "14506b", "#14506", "#14506b0", "#+4506b", "#14506g", "red", "#é4506",
        ] {
            assert!(Colour::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_shop_is_read_as_stored() {
        let shop = Shop {
            name: "Nörvada <b>".into(),
            brand: colour("#14506b"),
            brand_ink: colour("#ffffff"),
            help_email: Some("help@norvada.example".into()),
            help_url: None,
            languages: PageLanguage::VARIANTS.to_vec(),
        };
        assert_eq!(Shop::read(&shop.stored()).unwrap(), shop);
        let shown = "“Nörvada <b>”, #ffffff on #14506b; help: help@norvada.example; en, de,";
        assert!(shop.to_string().starts_with(shown), "{shop}");
        for language in PageLanguage::VARIANTS {
            assert_eq!(language.tag().to_lowercase().parse(), Ok(*language));
        }
    }

    #[test]
    fn a_name_cannot_turn_the_text_around_it() {
        assert!(is_plain("Zolani Roam") && is_plain("شركة"));
        for bad in ["", "  ", "a\nb", "a\u{202e}b", "\u{2066}a", "a\0"] {
            assert!(!is_plain(bad), "{bad:?}");
        }
    }
}

//! The texts of the traveller's page in ten languages, one file for each, and how each language
//! writes numbers and dates.
//!
//! Guarantees: every language has the same keys with the same placeholders (a test compares them).
//! What is filled into a text is escaped and isolated, so that a hostile name stays text and does
//! not turn what stands around it, in Arabic least of all.
//!
//! The names of countries and months and the forms of dates and numbers are those of CLDR; the
//! digits are Western ones in every language. Times are in UTC and say so, because nobody tells us
//! where the traveller is.

use std::{collections::HashMap, sync::LazyLock};

use domain::PageLanguage;
use strum::VariantArray;
use time::{Date, OffsetDateTime, UtcOffset};

/// The texts of a language by their keys.
type Keys = HashMap<String, String>;

macro_rules! file {
    ($name:literal) => {
        include_str!(concat!($name, ".json"))
    };
}

/// The file of a language.
fn file(language: PageLanguage) -> &'static str {
    match language {
        PageLanguage::En => file!("en"),
        PageLanguage::De => file!("de"),
        PageLanguage::Es => file!("es"),
        PageLanguage::Fr => file!("fr"),
        PageLanguage::It => file!("it"),
        PageLanguage::Pt => file!("pt"),
        PageLanguage::Ar => file!("ar"),
        PageLanguage::Ja => file!("ja"),
        PageLanguage::Ko => file!("ko"),
        PageLanguage::ZhHans => file!("zh-hans"),
    }
}

/// The texts of all languages. They are part of the program, so each file is read once.
static TEXTS: LazyLock<Vec<Texts>> = LazyLock::new(|| {
    let read = |language: &PageLanguage| Texts {
        language: *language,
        keys: serde_json::from_str(file(*language)).unwrap_or_default(),
    };
    PageLanguage::VARIANTS.iter().map(read).collect()
});

/// The names of countries by language and code.
static PLACES: LazyLock<HashMap<String, Keys>> =
    LazyLock::new(|| serde_json::from_str(file!("places")).unwrap_or_default());

/// Escapes a text for an element or an attribute of HTML.
pub(super) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            // What a browser would not show, a reader should not have to guess.
            _ if one.is_control() => html.push('\u{fffd}'),
            _ => html.push(one),
        }
    }
    html
}

/// What is filled into a text.
#[derive(Clone, Debug)]
pub(super) enum Filling {
    /// A name, a number or a date, in whatever direction it is written.
    Name(String),
    /// What is always read from left to right, such as the number of an order.
    Code(String),
}

impl Filling {
    fn html(&self) -> String {
        match self {
            Self::Name(text) => format!("<bdi>{}</bdi>", escaped(text)),
            Self::Code(text) => format!("<bdi class=\"ltr\" dir=\"ltr\">{}</bdi>", escaped(text)),
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Name(text) | Self::Code(text) => text,
        }
    }
}

/// What the texts of one page are filled with, by the names of the placeholders.
pub(super) type Fillings = HashMap<&'static str, Filling>;

/// Replaces each placeholder of a text, and what is between them by `around`. What is filled in is
/// not read again.
fn fill(text: &str, around: impl Fn(&str) -> String, filled: impl Fn(&str) -> String) -> String {
    let mut made = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('{') {
        let Some((name, after)) = behind.split_once('}') else {
            break;
        };
        made.push_str(&around(before));
        made.push_str(&filled(name));
        rest = after;
    }
    made.push_str(&around(rest));
    made
}

/// The texts of a language.
pub(super) struct Texts {
    pub(super) language: PageLanguage,
    keys: Keys,
}

impl Texts {
    pub(super) fn of(language: PageLanguage) -> &'static Self {
        // The variants are numbered as they stand in the list.
        &TEXTS[language as usize]
    }

    fn get(&self, key: &str) -> &str {
        self.keys.get(key).map_or("", String::as_str)
    }

    /// `ltr` or `rtl`.
    pub(super) fn direction(&self) -> &str {
        self.get("direction")
    }

    /// A text as HTML.
    pub(super) fn html(&self, key: &str, fillings: &Fillings) -> String {
        let filled = |name: &str| fillings.get(name).map(Filling::html).unwrap_or_default();
        let made = fill(self.get(key), escaped, filled);
        made.replace("SM-DP+", "<bdi dir=\"ltr\">SM-DP+</bdi>")
    }

    /// A text without markup, for a title or a label. It is not escaped yet.
    pub(super) fn plain(&self, key: &str, fillings: &Fillings) -> String {
        let filled = |name: &str| {
            let filling = fillings.get(name).map(Filling::text);
            filling.unwrap_or_default().to_owned()
        };
        fill(self.get(key), str::to_owned, filled)
    }

    /// A text with one placeholder, or without one.
    fn with(&self, key: &str, name: &'static str, value: String) -> String {
        self.plain(key, &Fillings::from([(name, Filling::Name(value))]))
    }

    /// The name of a country; its code if this language has none.
    pub(super) fn place(&self, country: &str) -> String {
        let places = PLACES.get(&self.language.tag().to_lowercase());
        let name = places.and_then(|places| places.get(country));
        name.map_or(country, String::as_str).to_owned()
    }

    /// A number of days, such as `10 days`, in the form that the language has for it.
    pub(super) fn days(&self, number: u32) -> String {
        let form = plural(self.language, number);
        self.with(&format!("days.{form}"), "number", number.to_string())
    }

    /// An amount of data: in GB with at most two decimals, or in MB if it is less.
    pub(super) fn data(&self, bytes: u64) -> String {
        const MB: u64 = 1 << 20;
        const GB: u64 = 1 << 30;
        if bytes < GB {
            return self.with("data.mb", "number", (bytes / MB).to_string());
        }
        // Rounded down, so that what is left is never more than there is.
        let hundredths = u128::from(bytes) * 100 / u128::from(GB);
        let whole = hundredths / 100;
        let decimals = format!("{:02}", hundredths % 100);
        let decimals = decimals.trim_end_matches('0');
        let number = if decimals.is_empty() {
            whole.to_string()
        } else {
            format!("{whole}{}{decimals}", self.get("decimal"))
        };
        self.with("data.gb", "number", number)
    }

    /// A date, such as `26 May 2027`.
    pub(super) fn date(&self, date: Date) -> String {
        let month = self.get("months").split('|');
        let month = month.clone().nth(usize::from(u8::from(date.month())) - 1);
        let fillings = Fillings::from([
            ("day", Filling::Name(date.day().to_string())),
            ("month", Filling::Name(month.unwrap_or_default().to_owned())),
            ("year", Filling::Name(date.year().to_string())),
        ]);
        self.plain("date", &fillings)
    }

    /// A time, such as `26 May 2027, 08:12 UTC`.
    pub(super) fn moment(&self, at: OffsetDateTime) -> String {
        let at = at.to_offset(UtcOffset::UTC);
        let clock = format!("{:02}:{:02}", at.hour(), at.minute());
        let fillings = Fillings::from([
            ("date", Filling::Name(self.date(at.date()))),
            ("clock", Filling::Name(clock)),
        ]);
        self.plain("moment", &fillings)
    }
}

/// The plural form of a whole number by CLDR.
fn plural(language: PageLanguage, number: u32) -> &'static str {
    match (language, number) {
        (PageLanguage::Ja | PageLanguage::Ko | PageLanguage::ZhHans, _) => "other",
        (PageLanguage::Ar, _) => match (number, number % 100) {
            (1, _) => "one",
            (2, _) => "two",
            (_, 3..=10) => "few",
            (_, 11..=99) => "many",
            _ => "other",
        },
        (PageLanguage::Fr | PageLanguage::Pt, 0) | (_, 1) => "one",
        (
            PageLanguage::En
            | PageLanguage::De
            | PageLanguage::Es
            | PageLanguage::Fr
            | PageLanguage::It
            | PageLanguage::Pt,
            _,
        ) => "other",
    }
}

/// The language for a traveller: the one that the address names, or that the browser prefers, as
/// far as the shop offers it; otherwise the first one that the shop offers.
pub(super) fn choose(
    offered: &[PageLanguage],
    named: Option<&str>,
    accepted: Option<&str>,
) -> PageLanguage {
    let named = named.and_then(|tag| tag.parse().ok());
    if let Some(named) = named.filter(|named| offered.contains(named)) {
        return named;
    }
    // `q` is 1 unless it is given. Among equal ones the first counts.
    let mut wanted: Vec<(PageLanguage, f32)> = Vec::new();
    for range in accepted.unwrap_or_default().split(',').take(32) {
        let mut parts = range.split(';').map(str::trim);
        let tag = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q="));
        let weight: f32 = weight
            .map_or(Some(1.0), |text| text.parse().ok())
            .unwrap_or(0.0);
        let language = of_tag(tag).filter(|language| offered.contains(language));
        wanted.extend(
            language
                .filter(|_| weight > 0.0)
                .map(|language| (language, weight)),
        );
    }
    let best = wanted.iter().map(|(_, weight)| *weight).fold(0.0, f32::max);
    let first = wanted.iter().find(|(_, weight)| *weight >= best);
    first.map_or_else(
        || offered.first().copied().unwrap_or(PageLanguage::En),
        |(language, _)| *language,
    )
}

/// The language of a tag such as `de-AT` or `zh-CN`. Who reads traditional characters is not given
/// simplified ones.
fn of_tag(tag: &str) -> Option<PageLanguage> {
    let tag = tag.to_ascii_lowercase();
    let (primary, rest) = tag.split_once('-').unwrap_or((&tag, ""));
    match primary {
        "zh" => {
            let traditional = ["hant", "tw", "hk", "mo"];
            let is_traditional = rest.split('-').any(|part| traditional.contains(&part));
            (!is_traditional).then_some(PageLanguage::ZhHans)
        }
        _ => primary.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use time::macros::{date, datetime};

    use super::*;

    fn placeholders(text: &str) -> BTreeSet<&str> {
        let parts = text.split('{').skip(1);
        parts
            .filter_map(|part| Some(part.split_once('}')?.0))
            .collect()
    }

    #[test]
    fn each_language_has_the_same_keys_and_placeholders() {
        let english = Texts::of(PageLanguage::En);
        let names: BTreeSet<&String> = english.keys.keys().collect();
        assert!(names.len() > 80, "{}", names.len());
        for language in PageLanguage::VARIANTS {
            let texts = Texts::of(*language);
            assert_eq!(texts.language, *language);
            assert_eq!(
                texts.keys.keys().collect::<BTreeSet<_>>(),
                names,
                "{language:?}"
            );
            for (key, text) in &texts.keys {
                assert!(!text.trim().is_empty(), "{language:?} {key}");
                // Some languages have words for one and two, in place of the number.
                if matches!(&**key, "days.one" | "days.two") {
                    continue;
                }
                let expected = placeholders(&english.keys[key]);
                assert_eq!(placeholders(text), expected, "{language:?} {key}");
            }
            assert_eq!(texts.get("months").split('|').count(), 12, "{language:?}");
            let direction = if *language == PageLanguage::Ar {
                "rtl"
            } else {
                "ltr"
            };
            assert_eq!(texts.direction(), direction);
            let places = &PLACES[&language.tag().to_lowercase()];
            let english = &PLACES["en"];
            assert!(english.len() > 240 && places.keys().all(|code| english.contains_key(code)));
            assert_eq!(places.len(), english.len(), "{language:?}");
        }
    }

    #[test]
    fn each_key_of_the_template_exists_and_each_text_is_used() {
        let template = include_str!("../../../templates/install.html");
        let source = concat!(include_str!("../install.rs"), include_str!("view.rs"));
        let own = include_str!("texts.rs")
            .split("#[cfg(test)]")
            .next()
            .unwrap();
        let english = Texts::of(PageLanguage::En);
        let calls = ["self.t(\"", "self.label(\""];
        for call in calls {
            for part in template.split(call).skip(1) {
                let key = part.split('"').next().unwrap();
                assert!(english.keys.contains_key(key), "{key}");
            }
        }
        for key in english.keys.keys() {
            let quoted = format!("\"{key}\"");
            let numbered = ["days.", "iphone.", "samsung.", "pixel.", "steps."];
            let is_used = [template, source, own]
                .iter()
                .any(|text| text.contains(&quoted));
            assert!(
                is_used || numbered.iter().any(|start| key.starts_with(start)),
                "{key} is not used"
            );
        }
    }

    #[test]
    fn numbers_and_dates_follow_the_language() {
        const GB: u64 = 1 << 30;
        for (language, date, data, days) in [
            (PageLanguage::En, "26 May 2027", "1.25 GB", "10 days"),
            (PageLanguage::De, "26. Mai 2027", "1,25 GB", "10 Tage"),
            (PageLanguage::Es, "26 de mayo de 2027", "1,25 GB", "10 días"),
            (PageLanguage::Fr, "26 mai 2027", "1,25 Go", "10 jours"),
            (PageLanguage::It, "26 maggio 2027", "1,25 GB", "10 giorni"),
            (PageLanguage::Pt, "26 de maio de 2027", "1,25 GB", "10 dias"),
            (PageLanguage::Ar, "26 مايو 2027", "1.25 غيغابايت", "10 أيام"),
            (PageLanguage::Ja, "2027年5月26日", "1.25 GB", "10日"),
            (PageLanguage::Ko, "2027년 5월 26일", "1.25GB", "10일"),
            (PageLanguage::ZhHans, "2027年5月26日", "1.25 GB", "10 天"),
        ] {
            let texts = Texts::of(language);
            assert_eq!(texts.date(date!(2027 - 05 - 26)), date);
            assert_eq!(texts.data(GB + GB / 4), data);
            assert_eq!(texts.days(10), days);
        }
        let english = Texts::of(PageLanguage::En);
        for (bytes, text) in [
            (0, "0 MB"),
            (GB - 1, "1023 MB"),
            (3 * GB, "3 GB"),
            (3 * GB + GB / 2, "3.5 GB"),
            (u64::MAX, "17179869183.99 GB"),
        ] {
            assert_eq!(english.data(bytes), text);
        }
        assert_eq!(english.days(1), "1 day");
        let at = datetime!(2027-05-26 23:30 -2);
        assert_eq!(english.moment(at), "27 May 2027, 01:30 UTC");
        let arabic = Texts::of(PageLanguage::Ar);
        let numbers = [1, 2, 3, 11, 100, 103].map(|number| arabic.days(number));
        let expected = [
            "يوم واحد",
            "يومان",
            "3 أيام",
            "11 يومًا",
            "100 يوم",
            "103 أيام",
        ];
        assert_eq!(numbers, expected);
        assert_eq!(arabic.place("JP"), "اليابان");
        assert_eq!(arabic.place("??"), "??");
    }

    #[test]
    fn what_is_filled_in_stays_text() {
        let texts = Texts::of(PageLanguage::En);
        let hostile = "\"><script>alert(1)</script>{order}&\u{0}";
        let fillings = Fillings::from([
            ("shop", Filling::Name(hostile.into())),
            ("order", Filling::Code("O'1".into())),
        ]);
        let html = texts.html("from", &fillings);
        let expected = "eSIM from <bdi>&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;{order}&amp;\u{fffd}</bdi>";
        assert_eq!(html, expected);
        assert_eq!(
            texts.html("number", &fillings),
            "Order <bdi class=\"ltr\" dir=\"ltr\">O&#39;1</bdi>"
        );
        assert_eq!(texts.plain("number", &fillings), "Order O'1");
        assert_eq!(texts.html("number", &Fillings::new()), "Order ");
    }

    #[test]
    fn the_address_then_the_browser_then_the_shop_choose_the_language() {
        use PageLanguage::{De, En, Ja, ZhHans};
        let all = PageLanguage::VARIANTS;
        for (offered, named, accepted, chosen) in [
            (all, None, None, En),
            (all, Some("ja"), Some("de"), Ja),
            (all, Some("ZH-hans"), None, ZhHans),
            (all, Some("xx"), Some("de-AT,en;q=0.9"), De),
            (all, None, Some("sv, en;q=0.3, ja;q=0.7"), Ja),
            (all, None, Some("de;q=0, *"), En),
            (all, None, Some("zh-TW, zh-CN;q=0.5"), ZhHans),
            (all, None, Some("zh-Hant-HK"), En),
            (all, None, Some(";;q=x,,"), En),
            (&[Ja, De], None, Some("en"), Ja),
            (&[Ja, De], Some("en"), Some("de"), De),
            (&[], None, None, En),
        ] {
            assert_eq!(
                choose(offered, named, accepted),
                chosen,
                "{named:?} {accepted:?}"
            );
        }
    }
}

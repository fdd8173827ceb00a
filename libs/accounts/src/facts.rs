//! What a shop tells about an option beside its price: networks, when it starts, whether it can be
//! extended, and the like.
//!
//! Each provider tells some of it, in its own words. Its adapter translates what it understands
//! into [`Facts`]; a fact that nobody tells is `None`, never a guess. A file of the operator may
//! set a fact by hand, and then that counts ([`Facts::over`]). Nothing that buys depends on them.
//!
//! Each type can only hold a value that makes sense, because what a provider sends is not trusted.

use std::{collections::BTreeMap, fmt};

use domain::product::Country;
use pg::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// The longest text of a fact, in characters.
const LONGEST_TEXT: usize = 500;
/// The most days of a time. It is ten years; more is a mistake.
const MOST_DAYS: u16 = 3_660;
/// The most that the facts of an option may take as JSON, in bytes. Those of a product for 150
/// countries take about 25 KB.
pub const LARGEST: usize = 64 << 10;

/// One line of text for people.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String")]
#[schema(value_type = String)]
pub struct FactText(String);

impl TryFrom<String> for FactText {
    type Error = &'static str;

    fn try_from(text: String) -> std::result::Result<Self, &'static str> {
        let is_good = !text.trim().is_empty()
            && text.chars().count() <= LONGEST_TEXT
            && !text.chars().any(char::is_control);
        is_good
            .then_some(Self(text))
            .ok_or("it must be one line of 1 to 500 characters")
    }
}

/// The address of a picture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String")]
#[schema(value_type = String)]
pub struct Picture(String);

impl TryFrom<String> for Picture {
    type Error = &'static str;

    fn try_from(text: String) -> std::result::Result<Self, &'static str> {
        let url = url::Url::parse(&text).ok();
        let url = url.filter(|url| {
            url.scheme() == "https"
                && url.has_host()
                && url.username().is_empty()
                && url.password().is_none()
                && url.as_str().len() <= LONGEST_TEXT
        });
        url.map(|url| Self(url.into()))
            .ok_or("it must be an https:// URL without a password")
    }
}

/// A language, such as `de` or `pt-BR`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String")]
#[schema(value_type = String)]
pub struct Language(String);

impl TryFrom<String> for Language {
    type Error = &'static str;

    fn try_from(text: String) -> std::result::Result<Self, &'static str> {
        let mut parts = text.split('-');
        let language = parts.next().unwrap_or_default();
        let is_language =
            language.len() == 2 && language.bytes().all(|byte| byte.is_ascii_lowercase());
        let is_country = (parts.next()).is_none_or(|country| country.parse::<Country>().is_ok());
        let is_good = is_language && is_country && parts.next().is_none();
        is_good
            .then_some(Self(text))
            .ok_or("it must be a language such as de or pt-BR")
    }
}

/// A number of days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "u64")]
#[schema(value_type = u16, minimum = 1, maximum = 3660)]
pub struct Days(u16);

impl TryFrom<u64> for Days {
    type Error = &'static str;

    fn try_from(days: u64) -> std::result::Result<Self, &'static str> {
        let days = u16::try_from(days).ok();
        days.filter(|days| (1..=MOST_DAYS).contains(days))
            .map(Self)
            .ok_or("it must be from 1 to 3660 days")
    }
}

/// What a plan is for.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    ToSchema,
    strum::EnumString,
    strum::Display,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum PlanKind {
    /// Data only.
    Data,
    /// Data, calls and text messages.
    DataVoiceText,
}

/// A generation of mobile networks.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    ToSchema,
    strum::Display,
)]
pub enum Generation {
    #[serde(rename = "2G")]
    #[strum(serialize = "2G")]
    Second,
    #[serde(rename = "3G")]
    #[strum(serialize = "3G")]
    Third,
    #[serde(rename = "4G")]
    #[strum(serialize = "4G")]
    Fourth,
    #[serde(rename = "5G")]
    #[strum(serialize = "5G")]
    Fifth,
}

/// A network that the eSIM can use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Its name, such as `NTT Docomo`.
    #[schema(example = "NTT Docomo")]
    pub name: FactText,
    /// Empty if it is not known.
    #[serde(default)]
    pub generations: Vec<Generation>,
}

/// Which networks the eSIM can use in a country.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Coverage)]
pub struct CountryCoverage {
    /// A code of ISO 3166-1 alpha-2.
    #[schema(value_type = String, example = "JP")]
    pub country: Country,
    /// The generations of the country's networks; empty if they are not known.
    #[serde(default)]
    pub generations: Vec<Generation>,
    /// Empty if they are not known.
    #[serde(default)]
    pub networks: Vec<Network>,
}

/// What begins the days of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Activation {
    /// The installation of the eSIM.
    Installation,
    /// Its first connection to a network.
    FirstUse,
}

/// Whether data or days can be added to the eSIM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Extendable {
    No,
    Yes,
    /// By a number of days.
    ByDays,
}

/// Whether the data becomes slower or ends after heavy use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FairUse {
    pub applies: bool,
    /// In the provider's words; null if it does not tell.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "1 Mbps after 2 GB a day")]
    pub policy: Option<FactText>,
}

/// How many minutes or messages a plan includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Allowance {
    /// 0 if it includes none; null if it is unlimited.
    #[serde(default)]
    pub amount: Option<u32>,
    #[serde(default)]
    pub unlimited: bool,
}

/// What has to be entered in a phone before it has data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessPoint {
    /// Whether the phone finds it by itself.
    pub automatic: bool,
    /// The name of the access point; null if it is not known or not needed.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "internet")]
    pub name: Option<FactText>,
}

/// The access point by kind of phone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccessPoints {
    pub ios: Option<AccessPoint>,
    pub android: Option<AccessPoint>,
}

/// What is known of an option beside its countries, data and days. Null is what the provider does
/// not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Facts {
    /// `data`, or `data_voice_text` with calls and text messages.
    pub kind: Option<PlanKind>,
    /// The networks by country.
    pub coverage: Option<Vec<CountryCoverage>>,
    /// The generations of its networks, in all countries together.
    pub generations: Option<Vec<Generation>>,
    /// How fast it is, in the provider's words.
    #[schema(value_type = Option<String>)]
    pub speed: Option<FactText>,
    /// What begins its days: `installation` or `first_use`.
    pub activation: Option<Activation>,
    /// For how many days after its purchase the eSIM can be installed.
    #[schema(value_type = Option<u16>, example = 365)]
    pub install_within_days: Option<Days>,
    /// After how many days an eSIM ends that was not used.
    #[schema(value_type = Option<u16>, example = 180)]
    pub unused_expires_days: Option<Days>,
    /// Whether data or days can be added to the eSIM: `no`, `yes`, or `by_days`.
    pub top_up: Option<Extendable>,
    pub fair_use: Option<FairUse>,
    /// Minutes of calls.
    pub voice: Option<Allowance>,
    /// Text messages that can be sent.
    pub sms: Option<Allowance>,
    /// Whether phones can send text messages to the eSIM.
    pub receives_sms: Option<bool>,
    /// Whether the traveller must prove an identity before the eSIM works.
    pub identity_check: Option<bool>,
    pub apn: Option<AccessPoints>,
    /// Whether the phone may share its data with other devices.
    pub hotspot: Option<bool>,
    /// The countries in which its traffic enters the internet.
    #[schema(value_type = Option<Vec<String>>, example = json!(["HK"]))]
    pub exit_countries: Option<Vec<Country>>,
    /// The URL of a picture.
    #[schema(value_type = Option<String>, example = "https://cdn.example.com/operator.png")]
    pub picture: Option<Picture>,
    /// Its name in further languages, by their codes, such as `de` or `pt-BR`.
    #[schema(value_type = Option<Object>, example = json!({ "de": "Japan, 7 Tage, 1 GB" }))]
    pub names: Option<BTreeMap<Language, FactText>>,
}

/// Who says a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum FactOrigin {
    /// The provider told it, and `esimctl catalogue pull` took it over.
    Provider,
    /// A file of the operator set it by hand, whatever the provider tells.
    File,
}

/// A fact as people read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShownFact {
    pub fact: String,
    pub value: String,
    pub origin: FactOrigin,
}

impl Facts {
    /// The facts that are known, by their names.
    fn known(&self) -> Map<String, Value> {
        let all = json!(self);
        let all = all.as_object().cloned().unwrap_or_default();
        all.into_iter()
            .filter(|(_, fact)| !fact.is_null())
            .collect()
    }

    /// These facts where there are some, and otherwise those.
    #[must_use]
    pub fn over(self, told: Self) -> Self {
        Self {
            kind: self.kind.or(told.kind),
            coverage: self.coverage.or(told.coverage),
            generations: self.generations.or(told.generations),
            speed: self.speed.or(told.speed),
            activation: self.activation.or(told.activation),
            install_within_days: self.install_within_days.or(told.install_within_days),
            unused_expires_days: self.unused_expires_days.or(told.unused_expires_days),
            top_up: self.top_up.or(told.top_up),
            fair_use: self.fair_use.or(told.fair_use),
            voice: self.voice.or(told.voice),
            sms: self.sms.or(told.sms),
            receives_sms: self.receives_sms.or(told.receives_sms),
            identity_check: self.identity_check.or(told.identity_check),
            apn: self.apn.or(told.apn),
            hotspot: self.hotspot.or(told.hotspot),
            exit_countries: self.exit_countries.or(told.exit_countries),
            picture: self.picture.or(told.picture),
            names: self.names.or(told.names),
        }
    }

    /// What both say alike.
    #[must_use]
    pub fn agreed(&self, other: &Self) -> Self {
        let other = other.known();
        let same = self.known().into_iter();
        let same = same.filter(|(fact, value)| other.get(fact) == Some(value));
        // These are facts of ours, so they can be read.
        serde_json::from_value(Value::Object(same.collect())).unwrap_or_default()
    }

    /// The names of the facts in which they differ.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let ours = self.known();
        let theirs = other.known();
        let names = ours.keys().chain(theirs.keys());
        let differ = names.filter(|name| ours.get(*name) != theirs.get(*name));
        let mut differ: Vec<String> = differ.cloned().collect();
        differ.sort_unstable();
        differ.dedup();
        differ
    }

    /// The facts as they are stored: only those that are known, and null if there is none.
    #[must_use]
    pub fn stored(&self) -> Option<String> {
        let known = self.known();
        (!known.is_empty()).then(|| Value::Object(known).to_string())
    }

    /// Reads them as they are stored.
    pub fn read(stored: Option<&str>) -> Result<Self> {
        let Some(stored) = stored else {
            return Ok(Self::default());
        };
        serde_json::from_str(stored)
            .map_err(|error| Error::Unreadable(format!("facts of an option: {error}")))
    }

    /// The facts of an option as people read them: those of its file, and otherwise those that its
    /// provider tells.
    #[must_use]
    pub fn shown(told: &Self, by_hand: &Self) -> Vec<ShownFact> {
        let set = by_hand.known();
        let all = by_hand.clone().over(told.clone()).lines();
        let shown = all.into_iter().map(|(fact, value)| ShownFact {
            fact: fact.to_owned(),
            value,
            origin: if set.contains_key(fact) {
                FactOrigin::File
            } else {
                FactOrigin::Provider
            },
        });
        shown.collect()
    }

    /// Each known fact in a few words, by its name.
    fn lines(&self) -> Vec<(&'static str, String)> {
        // Every field is named, so that a new one cannot be forgotten.
        let Self {
            kind,
            coverage,
            generations,
            speed,
            activation,
            install_within_days,
            unused_expires_days,
            top_up,
            fair_use,
            voice,
            sms,
            receives_sms,
            identity_check,
            apn,
            hotspot,
            exit_countries,
            picture,
            names,
        } = self;
        let mut lines = Vec::new();
        let mut line = |fact: &'static str, value: Option<String>| {
            lines.extend(value.map(|value| (fact, value)));
        };
        let yes = |is: &bool| if *is { "yes" } else { "no" }.to_owned();
        let days = |days: &Days| format!("{} days", days.0);
        line("kind", kind.map(|kind| kind.to_string()));
        line("coverage", coverage.as_deref().map(covered));
        line("generations", generations.as_deref().map(listed));
        line("speed", speed.as_ref().map(|speed| speed.0.clone()));
        line("activation", activation.map(|begins| begins.to_string()));
        line(
            "install_within_days",
            install_within_days.as_ref().map(days),
        );
        line(
            "unused_expires_days",
            unused_expires_days.as_ref().map(days),
        );
        line("top_up", top_up.map(|top_up| top_up.to_string()));
        line(
            "fair_use",
            fair_use
                .as_ref()
                .map(|rule| match (rule.applies, &rule.policy) {
                    (false, _) => "none".to_owned(),
                    (true, None) => "yes".to_owned(),
                    (true, Some(policy)) => policy.0.clone(),
                }),
        );
        line("voice", voice.as_ref().map(Allowance::words));
        line("sms", sms.as_ref().map(Allowance::words));
        line("receives_sms", receives_sms.as_ref().map(yes));
        line("identity_check", identity_check.as_ref().map(yes));
        line("apn", apn.as_ref().map(AccessPoints::words));
        line("hotspot", hotspot.as_ref().map(yes));
        line("exit_countries", exit_countries.as_deref().map(listed));
        line("picture", picture.as_ref().map(|picture| picture.0.clone()));
        line(
            "names",
            names.as_ref().map(|names| {
                let names: Vec<String> = names
                    .iter()
                    .map(|(language, name)| format!("{}: {}", language.0, name.0))
                    .collect();
                names.join("; ")
            }),
        );
        lines
    }
}

impl Allowance {
    fn words(&self) -> String {
        match (self.unlimited, self.amount) {
            (true, _) => "unlimited".to_owned(),
            (false, amount) => amount.unwrap_or_default().to_string(),
        }
    }
}

impl AccessPoints {
    fn words(&self) -> String {
        let phones = [("iOS", &self.ios), ("Android", &self.android)];
        let words = phones.into_iter().filter_map(|(phone, point)| {
            let point = point.as_ref()?;
            let name = point.name.as_ref().map_or("", |name| name.0.as_str());
            Some(match (point.automatic, name) {
                (true, _) => format!("{phone}: automatic"),
                (false, "") => format!("{phone}: by hand"),
                (false, name) => format!("{phone}: {name}"),
            })
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

fn listed<T: fmt::Display>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    values.join(", ")
}

/// The networks of each country in a few words.
fn covered(coverage: &[CountryCoverage]) -> String {
    let with = |name: &str, generations: &[Generation]| {
        if generations.is_empty() {
            name.to_owned()
        } else {
            format!("{name} ({})", listed(generations))
        }
    };
    let countries = coverage.iter().map(|of| {
        if of.networks.is_empty() {
            return with(of.country.as_str(), &of.generations);
        }
        let networks = of.networks.iter();
        let networks = networks.map(|network| with(&network.name.0, &network.generations));
        format!(
            "{}: {}",
            of.country,
            networks.collect::<Vec<_>>().join(", ")
        )
    });
    countries.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(facts: Value) -> Facts {
        serde_json::from_value(facts).unwrap()
    }

    fn whole() -> Value {
        json!({
            "kind": "data",
            "coverage": [{ "country": "JP", "generations": ["4G", "5G"],
                           "networks": [{ "name": "NTT Docomo", "generations": ["4G", "5G"] }] }],
            "generations": ["4G", "5G"],
            "speed": "Fast",
            "activation": "first_use",
            "install_within_days": 365,
            "unused_expires_days": 180,
            "top_up": "by_days",
            "fair_use": { "applies": true, "policy": "1 Mbps" },
            "voice": { "amount": 100, "unlimited": false },
            "sms": { "amount": null, "unlimited": true },
            "receives_sms": true,
            "identity_check": false,
            "apn": { "ios": { "automatic": true, "name": null }, "android": { "automatic": false, "name": "internet" } },
            "hotspot": true,
            "exit_countries": ["HK"],
            "picture": "https://cdn.example.com/a.png",
            "names": { "de": "Japan", "pt-BR": "Japão" },
        })
    }

    #[test]
    fn facts_are_read_as_they_are_written_and_nothing_else_is() {
        assert_eq!(json!(facts(whole())), whole());
        let stored = facts(whole()).stored();
        assert_eq!(Facts::read(stored.as_deref()).unwrap(), facts(whole()));
        assert_eq!(Facts::default().stored(), None);
        assert_eq!(facts(json!({ "hotspot": null })), Facts::default());
        for wrong in [
            json!({ "other": 1 }),
            json!({ "kind": "voice" }),
            json!({ "generations": ["6G"] }),
            json!({ "speed": " " }),
            json!({ "speed": "a\nb" }),
            json!({ "speed": "x".repeat(501) }),
            json!({ "install_within_days": 0 }),
            json!({ "install_within_days": 3_661 }),
            json!({ "unused_expires_days": -1 }),
            json!({ "picture": "http://cdn.example.com/a.png" }),
            json!({ "picture": "https://me:word@cdn.example.com/a.png" }),
            json!({ "picture": "/img/flags/jp.png" }),
            json!({ "names": { "German": "Japan" } }),
            json!({ "names": { "de-XX": "Japan" } }),
            json!({ "exit_countries": ["UK"] }),
            json!({ "coverage": [{ "networks": [] }] }),
            json!({ "coverage": [{ "country": "JP", "cities": [] }] }),
            json!({ "apn": { "symbian": null } }),
        ] {
            let read = serde_json::from_value::<Facts>(wrong.clone());
            assert!(read.is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_file_sets_counts_and_is_shown_as_such() {
        let told = facts(json!({ "hotspot": false, "top_up": "yes", "speed": "Fast" }));
        let by_hand = facts(json!({ "hotspot": true, "names": { "de": "Japan" } }));
        let both = by_hand.clone().over(told.clone());
        assert_eq!(
            both,
            facts(
                json!({ "hotspot": true, "top_up": "yes", "speed": "Fast", "names": { "de": "Japan" } })
            )
        );
        let shown: Vec<String> = Facts::shown(&told, &by_hand)
            .iter()
            .map(|one| format!("{} {} {}", one.fact, one.value, one.origin))
            .collect();
        assert_eq!(
            shown,
            [
                "speed Fast provider",
                "top_up yes provider",
                "hotspot yes file",
                "names de: Japan file"
            ]
        );
        assert_eq!(
            told.differences(&by_hand),
            ["hotspot", "names", "speed", "top_up"]
        );
        assert_eq!(
            told.agreed(&both),
            facts(json!({ "top_up": "yes", "speed": "Fast" }))
        );
    }

    #[test]
    fn each_fact_is_shown() {
        let whole = facts(whole());
        let shown = Facts::shown(&whole, &Facts::default());
        let names: Vec<&str> = shown.iter().map(|one| one.fact.as_str()).collect();
        let known = whole.known();
        let mut known: Vec<&str> = known.keys().map(String::as_str).collect();
        known.sort_unstable();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, known);
        let values: Vec<&str> = shown.iter().map(|one| one.value.as_str()).collect();
        for value in [
            "JP: NTT Docomo (4G, 5G)",
            "unlimited",
            "iOS: automatic, Android: internet",
            "de: Japan; pt-BR: Japão",
        ] {
            assert!(values.contains(&value), "{values:?}");
        }
    }
}

//! The products of the sandbox, as the protocols with a catalogue list them: the scripted options
//! ([`sandbox::script`]), and some more that show what an import makes of other countries, and what
//! it refuses. Each of the further ones can be ordered and behaves as `ready`.

use std::sync::LazyLock;

use sandbox::script::{self, COUNTRIES, DAYS, MEGABYTES, option_id};

/// A product of the catalogue.
pub struct Product {
    /// The id by which it is ordered.
    pub id: String,
    pub name: &'static str,
    /// Codes of ISO 3166-1 alpha-2.
    pub countries: &'static [&'static str],
    /// In MB; `None` is unlimited.
    pub megabytes: Option<u32>,
    pub days: u16,
    pub kind: Kind,
}

/// Whether a product is an ordinary one, or why it cannot be resold by a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ordinary,
    NeedsConfirmationCode,
    /// Its user must prove an identity. Only Airalo has such products.
    NeedsIdentity,
    /// Its data is counted by the day. Only eSIM Access has such products.
    ByTheDay,
    TopUp,
}

/// The products that are no scripted options: name, countries, data in MB, days, kind.
type Further = (
    &'static str,
    &'static [&'static str],
    Option<u32>,
    u16,
    Kind,
);
const FURTHER: &[Further] = &[
    (
        "europe",
        &["DE", "FR", "IT"],
        Some(10 * 1024),
        30,
        Kind::Ordinary,
    ),
    ("unlimited", &["KR"], None, 7, Kind::Ordinary),
    (
        "confirmation-code",
        &["TH"],
        Some(1024),
        7,
        Kind::NeedsConfirmationCode,
    ),
    ("identity", &["TW"], Some(1024), 7, Kind::NeedsIdentity),
    ("by-the-day", &["JP"], Some(1024), 1, Kind::ByTheDay),
    ("top-up", &["JP"], Some(1024), 7, Kind::TopUp),
];

static ALL: LazyLock<Vec<Product>> = LazyLock::new(listed);

/// What can be added to each eSIM. The other product of its kind is for eSIMs of another region.
pub fn top_ups() -> impl Iterator<Item = &'static Product> {
    all()
        .iter()
        .filter(|one| one.kind == Kind::TopUp && one.name.starts_with("extension"))
}

/// All products.
pub fn all() -> &'static [Product] {
    &ALL
}

fn listed() -> Vec<Product> {
    let scripted = script::names().map(|name| Product {
        id: option_id(name).to_string(),
        name,
        countries: COUNTRIES,
        megabytes: Some(MEGABYTES),
        days: DAYS,
        kind: if name.starts_with("extension") {
            Kind::TopUp
        } else {
            Kind::Ordinary
        },
    });
    let further = FURTHER
        .iter()
        .map(|(name, countries, megabytes, days, kind)| Product {
            id: option_id(name).to_string(),
            name,
            countries,
            megabytes: *megabytes,
            days: *days,
            kind: *kind,
        });
    scripted.chain(further).collect()
}

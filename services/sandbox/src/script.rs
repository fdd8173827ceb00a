//! The scripts: what each option of the sandbox does.
//!
//! An option's name says how it behaves, for example `bought-then-silent`, and its id is derived
//! from the name. Partners order such an option to see how their own systems cope, and the tests to
//! see how the pipeline copes. A new option is one entry in [`SCRIPTS`], one row in
//! docs/sandbox.md, and what partners see of it in [`domain::sandbox`]. An option without a script
//! behaves as `ready`.
//!
//! Three options make ingress misbehave and not this provider: `stored-then-500`, `answer-lost` and
//! `limited-first`. They are here because the catalogue is made of the scripts. Ingress plays them
//! at the edge of create-order, for sandbox accounts only.

use std::{collections::HashMap, sync::LazyLock, time::Duration};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::protocol::{Product, code};

/// The days for which a scripted option is valid, and its data in MB.
pub const DAYS: u16 = 30;
pub const MEGABYTES: u32 = 5 * 1024;
/// Where a scripted option can be used.
pub const COUNTRIES: &[&str] = &["JP"];

/// How the sandbox answers an order of an option, and what happens to its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    pub at_post: AtPost,
    pub at_get: AtGet,
    /// The number of callbacks for each unit that becomes ready.
    pub callbacks: u8,
    pub after: AfterDeliveryScript,
    pub at_extend: AtExtend,
}

/// What an extension by the option comes to. What `at_post` says of an order, such as a refusal or
/// an answer that is lost, holds for an extension, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtExtend {
    /// It adds its data and days at once.
    Adds,
    /// It adds them this much later.
    AddsAfter(Duration),
    /// It sells another unit instead.
    SellsAnother,
    /// It is refused because the eSIM has expired, whatever a look showed a moment before.
    HasExpired,
}

/// What `POST /api/v2/order` does. An order is bought whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtPost {
    /// Buys and answers `0000`.
    Buys,
    /// Answers with a business error; nothing is bought.
    Refuses(ScriptedRefusal),
    /// Buys, then answers 500.
    BuysThenErrs,
    /// Buys, then never answers.
    BuysThenIsSilent,
    /// Buys at once and answers after this time.
    BuysThenWaits(Duration),
    /// The first attempts of an order id get 500 and buy nothing; the next one buys.
    ErrsFirst(u32),
    /// The first attempts of an order id get 429 and buy nothing; the next one buys.
    LimitsFirst {
        attempts: u32,
        /// The seconds in `Retry-After`.
        retry_after: u16,
    },
}

/// How `GET /api/v2/order/{orderId}` shows a unit. Times count from the purchase. Delayed units
/// become ready one by one ([`crate::units`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtGet {
    /// The unit is ready at the first GET.
    Ready,
    /// The first unit is ready after this time.
    ReadyAfter(Duration),
    /// Like [`AtGet::ReadyAfter`], but the first unit fails.
    FirstFails(Duration),
    Never,
}

/// What becomes of a unit after its delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterDeliveryScript {
    /// Nobody installs it, so it can be given back.
    Unused,
    /// It is installed, and some of its data is used. It cannot be given back.
    InUse,
    /// It is installed, uses up its data within a quarter of an hour, and ends.
    RunsOut,
    /// Like [`Self::Unused`], but a give-back is carried out and then answered with 500.
    LostReturn,
    /// Like [`Self::LostReturn`], and from then on each question about the unit gets 500, too.
    UnclearReturn,
}

impl AfterDeliveryScript {
    /// Whether somebody installs it.
    pub fn is_installed(self) -> bool {
        matches!(self, Self::InUse | Self::RunsOut)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptedRefusal {
    pub code: &'static str,
    pub message: &'static str,
}

/// The order is bought at once, and its units are ready at the first GET. Options without a script
/// behave like this too.
const READY: Script = Script {
    at_post: AtPost::Buys,
    at_get: AtGet::Ready,
    callbacks: 0,
    after: AfterDeliveryScript::Unused,
    at_extend: AtExtend::Adds,
};

const NOT_ON_SALE: ScriptedRefusal = ScriptedRefusal {
    code: code::INVALID_PRODUCT,
    message: "Option is not on sale",
};
const SOLD_OUT: ScriptedRefusal = ScriptedRefusal {
    code: code::OUT_OF_STOCK,
    message: "Out of stock",
};

const SCRIPTS: &[(&str, Script)] = &[
    ("ready", READY),
    (
        "delayed",
        Script {
            at_get: AtGet::ReadyAfter(Duration::from_secs(2)),
            callbacks: 1,
            ..READY
        },
    ),
    (
        "refused",
        Script {
            at_post: AtPost::Refuses(NOT_ON_SALE),
            ..READY
        },
    ),
    (
        "out-of-stock",
        Script {
            at_post: AtPost::Refuses(SOLD_OUT),
            ..READY
        },
    ),
    (
        "bought-then-error",
        Script {
            at_post: AtPost::BuysThenErrs,
            ..READY
        },
    ),
    (
        "bought-then-silent",
        Script {
            at_post: AtPost::BuysThenIsSilent,
            ..READY
        },
    ),
    (
        "never-ready",
        Script {
            at_get: AtGet::Never,
            ..READY
        },
    ),
    (
        "partly",
        Script {
            at_get: AtGet::FirstFails(Duration::from_secs(1)),
            callbacks: 1,
            ..READY
        },
    ),
    (
        "duplicate-callback",
        Script {
            callbacks: 2,
            ..READY
        },
    ),
    (
        "slow",
        Script {
            at_post: AtPost::BuysThenWaits(Duration::from_secs(5)),
            ..READY
        },
    ),
    (
        "flapping",
        Script {
            at_post: AtPost::ErrsFirst(2),
            ..READY
        },
    ),
    (
        "rate-limited",
        Script {
            at_post: AtPost::LimitsFirst {
                attempts: 2,
                retry_after: 1,
            },
            ..READY
        },
    ),
    (
        "cancellable",
        Script {
            at_post: AtPost::LimitsFirst {
                attempts: 1,
                retry_after: 60,
            },
            ..READY
        },
    ),
    (
        "in-use",
        Script {
            callbacks: 1,
            after: AfterDeliveryScript::InUse,
            ..READY
        },
    ),
    (
        "runs-out",
        Script {
            callbacks: 1,
            after: AfterDeliveryScript::RunsOut,
            ..READY
        },
    ),
    (
        "return-lost",
        Script {
            after: AfterDeliveryScript::LostReturn,
            ..READY
        },
    ),
    (
        "return-unclear",
        Script {
            after: AfterDeliveryScript::UnclearReturn,
            ..READY
        },
    ),
    ("extension", READY),
    (
        "extension-lost",
        Script {
            at_post: AtPost::BuysThenErrs,
            ..READY
        },
    ),
    (
        "extension-late",
        Script {
            at_post: AtPost::BuysThenErrs,
            at_extend: AtExtend::AddsAfter(Duration::from_secs(5)),
            ..READY
        },
    ),
    (
        "extension-expired",
        Script {
            at_extend: AtExtend::HasExpired,
            ..READY
        },
    ),
    (
        "extension-other",
        Script {
            at_extend: AtExtend::SellsAnother,
            ..READY
        },
    ),
    ("stored-then-500", READY),
    ("answer-lost", READY),
    ("limited-first", READY),
];

/// The option id of a scripted option, which is the same in the catalogue and at the provider.
pub fn option_id(name: &str) -> Uuid {
    domain::sandbox_option(name).uuid()
}

/// The names of all scripted options.
pub fn names() -> impl Iterator<Item = &'static str> {
    SCRIPTS.iter().map(|(name, _)| *name)
}

pub fn is_scripted(name: &str) -> bool {
    SCRIPTS.iter().any(|(scripted, _)| *scripted == name)
}

/// The scripted options, in the form that `esimctl option apply` reads. They are those of
/// `provider`, which the sandbox plays: for a real provider they are live options with ids of their
/// own, so that both can be in one catalogue, and each names `price`, in dollars, if the provider's
/// protocol has prices. Their details are filled in like those of a live option, so that
/// a partner can test how its program shows them.
pub fn catalogue(provider: &str, price: Option<&str>) -> Value {
    let guard = price.map(|price| format!("@{price}")).unwrap_or_default();
    let cost = price.map(|price| json!({ "price": price, "currency": "USD" }));
    let options = SCRIPTS.iter().map(|(name, _)| {
        let id = option_id(name);
        let is_sandbox = provider == "sandbox";
        let live_id = || option_id(&format!("{provider}/{name}"));
        let mut option = json!({
            "option_id": if is_sandbox { id } else { live_id() },
            "name": name,
            "provider": provider,
            "provider_option_id": format!("{id}{guard}"),
            "environment": if is_sandbox { "sandbox" } else { "live" },
            "details": {"country": "JP", "days": 30, "data_gb": 5, "outcome": domain::sandbox::outcome(name)},
            "standard": {
                "countries": COUNTRIES,
                "data_mb": MEGABYTES,
                "days": DAYS,
                "cost": cost,
            },
        });
        // A provider tells its own by its list of products.
        if is_sandbox {
            option["facts"] = facts();
        }
        option
    });
    json!({ "options": options.collect::<Vec<_>>() })
}

/// What a shop tells about an option of the sandbox.
fn facts() -> Value {
    let networks = json!([{ "name": "Sandbox Mobile", "generations": ["4G", "5G"] }]);
    let covered = |country: &&str| json!({ "country": country, "generations": ["4G", "5G"], "networks": networks });
    json!({
        "kind": "data",
        "coverage": COUNTRIES.iter().map(covered).collect::<Vec<_>>(),
        "generations": ["4G", "5G"],
        "activation": "first_use",
        "unused_expires_days": 180,
        "top_up": "yes",
        "fair_use": { "applies": false },
        "identity_check": false,
        "apn": { "ios": { "automatic": true }, "android": { "automatic": false, "name": "sandbox" } },
        "hotspot": true,
        "exit_countries": COUNTRIES,
    })
}

fn find(option_id: &str) -> Option<(&'static str, Script)> {
    static BY_ID: LazyLock<HashMap<Uuid, (&str, Script)>> = LazyLock::new(|| {
        SCRIPTS
            .iter()
            .map(|scripted| (self::option_id(scripted.0), *scripted))
            .collect()
    });
    BY_ID.get(&Uuid::parse_str(option_id).ok()?).copied()
}

/// An id that no product has. `esimctl provider prove` orders it to see how it is refused.
const NO_PRODUCT: &str = "no-such-product";

/// The script of an option. Any other id has the script `READY`, because a sandbox partner may
/// order every live option, and the sandbox then gets an id that it does not know.
pub fn of(option_id: &str) -> Script {
    if option_id == NO_PRODUCT {
        return Script {
            at_post: AtPost::Refuses(NOT_ON_SALE),
            ..READY
        };
    }
    find(option_id).map_or(READY, |(_, script)| script)
}

pub(crate) fn name(option_id: &str) -> Option<&'static str> {
    find(option_id).map(|(name, _)| name)
}

/// The names of the options that are made to extend an eSIM. Each other one extends it, too.
pub fn extensions() -> impl Iterator<Item = &'static str> {
    names().filter(|name| name.starts_with("extension"))
}

/// What POST does with an order of several options, which is bought whole or not at all. The first
/// refusal decides. Without a refusal, the first product decides that does more than buy.
pub(crate) fn at_post(products: &[Product]) -> AtPost {
    let each = products
        .iter()
        .map(|product| of(&product.option_id).at_post);
    let decisive = each.min_by_key(|at_post| match at_post {
        AtPost::Refuses(_) => 0,
        AtPost::Buys => 2,
        _ => 1,
    });
    decisive.unwrap_or(AtPost::Buys)
}

pub(crate) fn calls_back(products: &[Product]) -> bool {
    products
        .iter()
        .any(|product| of(&product.option_id).callbacks > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_of_several_options_does_what_one_of_them_does() {
        let at_post = |names: &[&str]| {
            let products: Vec<_> = names
                .iter()
                .map(|name| Product {
                    option_id: option_id(name).to_string(),
                    qty: 1,
                })
                .collect();
            super::at_post(&products)
        };
        assert_eq!(at_post(&["ready", "delayed"]), AtPost::Buys);
        assert_eq!(
            at_post(&["ready", "flapping", "slow"]),
            AtPost::ErrsFirst(2)
        );
        assert_eq!(
            at_post(&["slow", "out-of-stock", "refused"]),
            AtPost::Refuses(SOLD_OUT)
        );
    }

    #[test]
    fn the_documentation_lists_every_option() {
        let documented: Vec<_> = include_str!("../../../docs/sandbox.md")
            .lines()
            .skip_while(|line| *line != "## Options")
            .take_while(|line| *line != "## Faults of the whole provider")
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
            .collect();
        assert_eq!(documented, names().collect::<Vec<_>>());
        let seen = domain::sandbox::OPTIONS.map(|(name, _)| name);
        assert_eq!(seen.as_slice(), documented);
    }
}

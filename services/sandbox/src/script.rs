//! What each option does. A new option is one line in [`SCRIPTS`].

use std::{collections::HashMap, time::Duration};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::protocol::{Product, code};

/// How the sandbox answers an order of one option, and what happens to its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    pub at_post: AtPost,
    pub at_get: AtGet,
    /// Callbacks for each unit that becomes ready.
    pub callbacks: u8,
}

/// What `POST /api/v2/order` does. An order is bought whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtPost {
    /// Buys and answers `0000`.
    Buys,
    /// Answers with a business error; nothing is bought.
    Refuses(Refusal),
    /// Buys, then answers 500.
    BuysThenErrs,
    /// Buys, then never answers.
    BuysThenIsSilent,
    /// Buys at once and answers after this time.
    BuysThenWaits(Duration),
    /// The first attempts of an order id get 500 and buy nothing; the next one buys.
    ErrsFirst(u32),
    /// The first attempts of an order id get 429 and buy nothing; the next one buys.
    LimitsFirst(u32),
}

/// How `GET` shows a unit; times count from the purchase. Delayed units become ready one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtGet {
    /// Ready at the first GET.
    Ready,
    /// The first unit is ready after this time.
    ReadyAfter(Duration),
    /// Like [`AtGet::ReadyAfter`], but the first unit fails.
    FirstFails(Duration),
    Never,
}

/// A business error: the order is answered with it and nothing is bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: &'static str,
    pub message: &'static str,
}

impl Script {
    const fn at_post(self, at_post: AtPost) -> Self {
        Self { at_post, ..self }
    }

    const fn at_get(self, at_get: AtGet) -> Self {
        Self { at_get, ..self }
    }

    const fn callbacks(self, callbacks: u8) -> Self {
        Self { callbacks, ..self }
    }
}

/// Buys at once; units are ready at the first GET. Options without a script behave like this too.
const READY: Script = Script { at_post: AtPost::Buys, at_get: AtGet::Ready, callbacks: 0 };

const NOT_ON_SALE: Refusal = Refusal { code: code::INVALID_PRODUCT, message: "Option is not on sale" };
const SOLD_OUT: Refusal = Refusal { code: code::OUT_OF_STOCK, message: "Out of stock" };
const ONE_SECOND: Duration = Duration::from_secs(1);
const TWO_SECONDS: Duration = Duration::from_secs(2);
const FIVE_SECONDS: Duration = Duration::from_secs(5);

const SCRIPTS: &[(&str, Script)] = &[
    ("ready", READY),
    ("delayed", READY.at_get(AtGet::ReadyAfter(TWO_SECONDS)).callbacks(1)),
    ("refused", READY.at_post(AtPost::Refuses(NOT_ON_SALE))),
    ("out-of-stock", READY.at_post(AtPost::Refuses(SOLD_OUT))),
    ("bought-then-error", READY.at_post(AtPost::BuysThenErrs)),
    ("bought-then-silent", READY.at_post(AtPost::BuysThenIsSilent)),
    ("never-ready", READY.at_get(AtGet::Never)),
    ("partly", READY.at_get(AtGet::FirstFails(ONE_SECOND)).callbacks(1)),
    ("duplicate-callback", READY.callbacks(2)),
    ("slow", READY.at_post(AtPost::BuysThenWaits(FIVE_SECONDS))),
    ("flapping", READY.at_post(AtPost::ErrsFirst(2))),
    ("rate-limited", READY.at_post(AtPost::LimitsFirst(2))),
];

/// The option id of a scripted option, in the catalogue and at the provider.
pub fn option_id(name: &str) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("sandbox/{name}").as_bytes())
}

pub fn is_scripted(name: &str) -> bool {
    SCRIPTS.iter().any(|(scripted, _)| *scripted == name)
}

/// The scripted options in the form that `esimctl option import` reads.
pub fn catalogue() -> Value {
    let options = SCRIPTS.iter().map(|(name, _)| {
        let id = option_id(name);
        json!({
            "option_id": id,
            "name": name,
            "provider": "sandbox",
            "provider_option_id": id,
            "environment": "sandbox",
        })
    });
    json!({ "options": options.collect::<Vec<_>>() })
}

pub struct Scripts(HashMap<Uuid, (&'static str, Script)>);

impl Default for Scripts {
    fn default() -> Self {
        let by_id = |(name, script): &(&'static str, Script)| (option_id(name), (*name, *script));
        Self(SCRIPTS.iter().map(by_id).collect())
    }
}

impl Scripts {
    fn find(&self, option_id: &str) -> Option<(&'static str, Script)> {
        let id = Uuid::parse_str(option_id).ok()?;
        self.0.get(&id).copied()
    }

    /// The script of an option. Any other id, UUID or not, behaves like `ready`: a sandbox partner
    /// may order any option of the live catalogue.
    pub fn of(&self, option_id: &str) -> Script {
        self.find(option_id).map_or(READY, |(_, script)| script)
    }

    pub fn name(&self, option_id: &str) -> Option<&'static str> {
        self.find(option_id).map(|(name, _)| name)
    }

    /// What an order of several products does: the first refusal decides; without a refusal, the
    /// first product that does more than buy.
    pub fn at_post(&self, products: &[Product]) -> AtPost {
        products
            .iter()
            .map(|product| self.of(&product.option_id).at_post)
            .min_by_key(|at_post| match at_post {
                AtPost::Refuses(_) => 0,
                AtPost::Buys => 2,
                _ => 1,
            })
            .unwrap_or(AtPost::Buys)
    }

    pub fn calls_back(&self, products: &[Product]) -> bool {
        products.iter().any(|product| self.of(&product.option_id).callbacks > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_of_several_options_does_what_one_of_them_does() {
        let scripts = Scripts::default();
        let at_post = |names: &[&str]| {
            let products: Vec<_> =
                names.iter().map(|name| Product { option_id: option_id(name).to_string(), qty: 1 }).collect();
            scripts.at_post(&products)
        };
        assert_eq!(at_post(&["ready", "delayed"]), AtPost::Buys);
        assert_eq!(at_post(&["ready", "flapping", "slow"]), AtPost::ErrsFirst(2));
        assert_eq!(at_post(&["slow", "out-of-stock", "refused"]), AtPost::Refuses(SOLD_OUT));
    }

    #[test]
    fn the_documentation_lists_every_option() {
        let documented: Vec<_> = include_str!("../../../docs/sandbox.md")
            .lines()
            .skip_while(|line| *line != "## Options")
            .take_while(|line| *line != "## Faults of the whole provider")
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
            .collect();
        assert_eq!(documented, SCRIPTS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }
}

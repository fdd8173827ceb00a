//! What each option does. [`SCRIPT`] is the whole script: a new option is one line there.

use std::{collections::HashMap, time::Duration};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::protocol::code;

/// How the sandbox treats the units of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The answer to an order that names the option, if it is refused: then nothing is bought.
    pub refuses: Option<Refusal>,
    /// How long after the purchase the profile can be fetched.
    pub ready_after: Duration,
}

/// A business error: the order is answered with it and nothing is bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: &'static str,
    pub message: &'static str,
}

/// Bought at once, the profile is there at the first GET. Also what unscripted options do.
const READY: Outcome = Outcome {
    refuses: None,
    ready_after: Duration::ZERO,
};

const NOT_ON_SALE: Refusal = Refusal {
    code: code::INVALID_PRODUCT,
    message: "Option is not on sale",
};
const SOLD_OUT: Refusal = Refusal {
    code: code::OUT_OF_STOCK,
    message: "Out of stock",
};

/// The options by name.
const SCRIPT: &[(&str, Outcome)] = &[
    ("ready", READY),
    (
        "delayed",
        Outcome {
            ready_after: Duration::from_secs(2),
            ..READY
        },
    ),
    (
        "refused",
        Outcome {
            refuses: Some(NOT_ON_SALE),
            ..READY
        },
    ),
    (
        "out-of-stock",
        Outcome {
            refuses: Some(SOLD_OUT),
            ..READY
        },
    ),
];

/// The option id of a scripted option: the same in every catalogue and at the provider.
pub fn option_id(name: &str) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("sandbox/{name}").as_bytes())
}

/// The scripted options in the form that `esimctl option import` reads.
pub fn catalogue() -> Value {
    let options = SCRIPT.iter().map(|(name, _)| {
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

/// The script, looked up by option id.
pub struct Script(HashMap<Uuid, Outcome>);

impl Default for Script {
    /// The script of [`SCRIPT`].
    fn default() -> Self {
        Self(
            SCRIPT
                .iter()
                .map(|(name, outcome)| (option_id(name), *outcome))
                .collect(),
        )
    }
}

impl Script {
    /// What an option does. Ids that aren't scripted, UUID or not, behave as `ready`: a sandbox
    /// partner may order any option of the live catalogue.
    pub fn outcome(&self, option_id: &str) -> Outcome {
        let scripted = Uuid::parse_str(option_id).ok().and_then(|id| self.0.get(&id));
        scripted.copied().unwrap_or(READY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripted_options_are_found_by_id_and_others_are_ready() {
        let script = Script::default();
        for (name, outcome) in SCRIPT {
            assert_eq!(script.outcome(&option_id(name).to_string()), *outcome, "{name}");
        }
        assert_eq!(script.outcome(&Uuid::nil().to_string()), READY);
        assert_eq!(script.outcome("merhaba-7days-1gb"), READY);
    }

    #[test]
    fn the_catalogue_lists_every_option_once() {
        let catalogue = catalogue();
        let options = catalogue["options"].as_array().unwrap();
        assert_eq!(options.len(), SCRIPT.len());
        assert_eq!(options[0]["name"], "ready");
        assert_eq!(options[0]["option_id"], options[0]["provider_option_id"]);
        let ids: std::collections::HashSet<_> = options.iter().map(|o| o["option_id"].as_str()).collect();
        assert_eq!(ids.len(), SCRIPT.len());
    }
}

//! The check of an order against the catalogue: it turns a [`Draft`] into the order that is stored,
//! with its placements and topups.
//!
//! Guarantee: an order with errors is not stored, and one response names all of its errors, those of
//! the body and those that only the catalogue and the database show.
//!
//! [`super::create`] calls [`Orders::check`] before it submits the order to [`super::accept`].

use std::collections::BTreeMap;

use domain::{
    Environment, OptionId, PlacementId,
    cut::{self, Pair},
};
use pipeline::{timing::ANSWER, trace};
use runtime::clock;
use store::orders::{Alternative, NewOrder, NewPlacement, NewTopup};
use tracing::Span;

use super::{
    accept::Orders,
    request::{Draft, Item},
};
use crate::{
    access::directory::{KnownPartner, Options},
    http::{
        codes::Code,
        error::{ApiError, Fault},
    },
};

/// The provider that every order of a sandbox partner goes to.
pub(crate) const SANDBOX: &str = "sandbox";

/// A unit of an order before it belongs to a placement.
struct NewUnit<'a> {
    provider: &'a str,
    option_id: OptionId,
    provider_option_id: String,
    /// Where else it can be bought.
    alternatives: Vec<Pair>,
}

impl Orders {
    /// Turns a draft into an order, or returns all its errors: those of the draft, and those that
    /// only the catalogue and the database show.
    ///
    /// A live partner can order only live options of the configured providers. A sandbox partner
    /// can order every enabled option, because none of its orders reaches a real provider.
    pub(crate) async fn check(
        &self,
        partner: &KnownPartner,
        draft: Draft,
    ) -> Result<NewOrder, ApiError> {
        let Draft {
            external_order_id,
            items,
            mut errors,
        } = draft;
        let ids: Vec<_> = items.iter().filter_map(|item| item.option_id).collect();
        let mut options = self
            .directory
            .options(&ids)
            .await
            .map_err(ApiError::internal)?;
        options.retain(|_, option| {
            let live = || {
                option.environment == Environment::Live && self.providers.contains(&option.provider)
            };
            option.enabled && (partner.environment == Environment::Sandbox || live())
        });
        let exists = |item: &Item| item.option_id.is_some_and(|id| options.contains_key(&id));
        let missing: Vec<usize> = items
            .iter()
            .filter(|item| !exists(item))
            .map(|item| item.index)
            .collect();
        if !missing.is_empty() {
            errors.push(Fault {
                items: missing,
                ..Fault::new(Code::OptionNotFound)
            });
        }
        let Some(external_order_id) = external_order_id else {
            return Err(ApiError::Unprocessable(errors));
        };
        if errors.is_empty() {
            let placements = self.placements(partner, &items, &options);
            return Ok(NewOrder {
                traceparent: trace::context_of(&Span::current()),
                answer_within: ANSWER,
                ..NewOrder::new(partner.id, external_order_id, placements)
            });
        }
        // The order has errors and will not be stored, which would show whether its external id is
        // taken. So the id is looked up, and one response lists all errors.
        let taken = self.database.run(async |connection| {
            store::orders::is_taken(connection, partner.id, &external_order_id).await
        });
        if taken.await.map_err(ApiError::internal)? {
            errors.insert(0, Fault::new(Code::ExternalOrderIdTaken));
        }
        Err(ApiError::Unprocessable(errors))
    }

    /// Creates one placement for each purchase of the order. Usually that is one for each provider;
    /// [`domain::cut`] says which providers need several. They are in the order of the items.
    fn placements(
        &self,
        partner: &KnownPartner,
        items: &[Item],
        options: &Options,
    ) -> Vec<NewPlacement> {
        let now = clock::now();
        let mut units = Vec::new();
        for item in items {
            let Some(option) = item.option_id.and_then(|id| options.get(&id)) else {
                continue;
            };
            // Orders of a sandbox partner go only to the sandbox, which knows the options of other
            // providers by our option id, and they never go on to another provider.
            let sandbox = partner.environment == Environment::Sandbox;
            let (provider, provider_option_id) = if sandbox && option.provider != SANDBOX {
                (SANDBOX, option.option_id.to_string())
            } else {
                (option.provider.as_str(), option.provider_option_id.clone())
            };
            // A provider that is not configured would never be asked, so the order would wait for it
            // forever.
            let is_served = |pair: &&Pair| !sandbox && self.providers.contains(&pair.provider);
            let alternatives: Vec<Pair> = option
                .alternatives
                .iter()
                .filter(is_served)
                .cloned()
                .collect();
            for _ in 0..item.quantity {
                units.push(NewUnit {
                    provider,
                    option_id: option.option_id,
                    provider_option_id: provider_option_id.clone(),
                    alternatives: alternatives.clone(),
                });
            }
        }
        let purchases = cut::into_purchases(units.iter().map(|unit| cut::Unit {
            provider: unit.provider,
            provider_option_id: &unit.provider_option_id,
            alternatives: &unit.alternatives,
        }));
        let mut placements: Vec<NewPlacement> = Vec::with_capacity(1);
        for (position, (unit, purchase)) in units.into_iter().zip(purchases).enumerate() {
            // Purchases are numbered in the order in which they are needed, so a new number is the
            // next one.
            if purchase == placements.len() {
                placements.push(NewPlacement {
                    placement_id: PlacementId::new(),
                    provider: unit.provider.to_owned(),
                    lane: String::new(),
                    alternatives: unit.alternatives.iter().map(alternative).collect(),
                    topups: Vec::new(),
                });
            }
            let placement = &mut placements[purchase];
            for (alternative, pair) in placement.alternatives.iter_mut().zip(unit.alternatives) {
                alternative
                    .options
                    .insert(unit.option_id, pair.provider_option_id);
            }
            placement.topups.push(NewTopup {
                topup_id: self.topup_ids.next(now),
                position,
                option_id: unit.option_id,
                provider_option_id: unit.provider_option_id,
            });
        }
        for placement in &mut placements {
            let topups = placement.topups.iter();
            placement.lane = domain::lane(topups.map(|topup| topup.provider_option_id.as_str()));
            for alternative in &mut placement.alternatives {
                let options = alternative.options.values();
                alternative.lane = domain::lane(options.map(String::as_str));
            }
        }
        placements
    }
}

/// The further provider of a placement, whose options are not filled in yet. All units of the
/// placement name the same further providers.
fn alternative(pair: &Pair) -> Alternative {
    Alternative {
        provider: pair.provider.clone(),
        lane: String::new(),
        options: BTreeMap::new(),
    }
}

/// Whether the taken external id is the only error, so that the request repeats an earlier one.
pub(super) fn is_only_taken(errors: &[Fault]) -> bool {
    matches!(errors, [only] if only.code == Code::ExternalOrderIdTaken)
}

/// Whether the taken external id is among the errors, so that an order with this id is stored.
pub(super) fn names_taken(errors: &[Fault]) -> bool {
    errors
        .iter()
        .any(|fault| fault.code == Code::ExternalOrderIdTaken)
}

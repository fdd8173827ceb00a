//! The check of an order against the catalogue: it turns a [`Draft`] into the order that is stored,
//! with its placements and topups.
//!
//! Guarantee: an order with errors is not stored, and one response names all of its errors, those
//! of the body and those that only the catalogue and the database show.
//!
//! [`super::create`] calls [`OrderService::check`] before it submits the order to
//! [`super::accept`].

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use accounts::prices::PriceList;
use domain::{
    Agreed, Amount, Environment, OptionId, OrderId, PlacementId,
    cut::{self, OptionAtProvider},
};
use pipeline::trace;
use runtime::clock;
use store::orders::{Alternative, NewOrder, NewPlacement, NewTopup};
use time::OffsetDateTime;
use tracing::Span;

use super::{
    accept::OrderService,
    request::{Draft, MaxPrice, RequestedItem},
};
use crate::{
    access::directory::{KnownPartner, OptionsById},
    http::{
        codes::ErrorCode,
        error::{ApiError, RequestFault},
    },
};

/// The provider that every order of a sandbox partner goes to.
pub(crate) const SANDBOX: &str = "sandbox";

/// A unit of an order before it belongs to a placement.
struct NewUnit<'a> {
    provider: &'a str,
    topup: NewTopup,
    /// Where else it can be bought.
    alternatives: Vec<OptionAtProvider>,
}

/// What a partner pays at the time of its order.
struct Prices {
    /// `None` if it sees no prices and pays none.
    list: Option<Arc<PriceList>>,
    at: OffsetDateTime,
}

impl Prices {
    fn of(&self, option: OptionId) -> Option<Amount> {
        self.list.as_ref()?.price(option, self.at)
    }

    /// Whether the partner may order the option: one that its list does not have is not for it.
    fn sells(&self, option: OptionId) -> bool {
        self.list.is_none() || self.of(option).is_some()
    }

    /// What is wrong with `max_price` of an item.
    fn fault(&self, item: &RequestedItem) -> Option<RequestFault> {
        self.list.as_ref()?;
        let price = item.option_id.and_then(|id| self.of(id));
        let code = match (item.max_price, price) {
            (MaxPrice::Invalid, _) => ErrorCode::MaxPriceInvalid,
            (MaxPrice::Most(most), Some(price)) if price.minor > most => ErrorCode::PriceAboveMax,
            _ => return None,
        };
        Some(RequestFault::of_item(item.index, code))
    }
}

impl OrderService {
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
            metadata,
            mut errors,
        } = draft;
        let ids: Vec<_> = items.iter().filter_map(|item| item.option_id).collect();
        let mut options = self.directory.options(&ids).await?;
        let prices = Prices {
            list: self.directory.price_list(partner).await?,
            at: clock::now(),
        };
        options.retain(|id, option| {
            let live = || {
                option.environment == Environment::Live && self.providers.contains(&option.provider)
            };
            let is_sold = option.enabled && (partner.environment == Environment::Sandbox || live());
            is_sold && prices.sells(*id)
        });
        let exists =
            |item: &RequestedItem| item.option_id.is_some_and(|id| options.contains_key(&id));
        let missing: Vec<usize> = items
            .iter()
            .filter(|item| !exists(item))
            .map(|item| item.index)
            .collect();
        if !missing.is_empty() {
            errors.push(RequestFault {
                items: missing,
                ..RequestFault::new(ErrorCode::OptionNotFound)
            });
        }
        errors.extend(items.iter().filter_map(|item| prices.fault(item)));
        let Some(external_order_id) = external_order_id else {
            return Err(ApiError::Unprocessable(errors));
        };
        if errors.is_empty() {
            let placements = self.placements(partner, &items, &options, &prices);
            return Ok(NewOrder {
                order_id: OrderId::new(),
                partner_id: partner.id,
                external_order_id,
                traceparent: trace::context_of(&Span::current()),
                answer_within: Duration::ZERO,
                answering: None,
                placements,
                metadata,
                limited_key: partner.limited_key(),
            });
        }
        // The order has errors and will not be stored, which would show whether its external id is
        // taken. So the id is looked up, and one response lists all errors.
        let taken = self.database.run(async |connection| {
            store::orders::is_taken(connection, partner.id, &external_order_id).await
        });
        if taken.await.map_err(ApiError::internal)? {
            errors.insert(0, RequestFault::new(ErrorCode::ExternalOrderIdTaken));
        }
        Err(ApiError::Unprocessable(errors))
    }

    /// Creates one placement for each purchase of the order. Usually that is one for each provider;
    /// [`domain::cut`] says which providers need several. They are in the order of the items.
    fn placements(
        &self,
        partner: &KnownPartner,
        items: &[RequestedItem],
        options: &OptionsById,
        prices: &Prices,
    ) -> Vec<NewPlacement> {
        let units = self.units(partner, items, options, prices);
        let purchases = cut::into_purchases(units.iter().map(|unit| cut::CutUnit {
            provider: unit.provider,
            provider_option_id: &unit.topup.provider_option_id,
            alternatives: &unit.alternatives,
        }));
        let mut units_by_purchase: Vec<Vec<NewUnit<'_>>> = Vec::with_capacity(1);
        for (unit, purchase) in units.into_iter().zip(purchases) {
            // Purchases are numbered in the order in which they are needed, so a new number is the
            // next one.
            match units_by_purchase.get_mut(purchase) {
                Some(units) => units.push(unit),
                None => units_by_purchase.push(vec![unit]),
            }
        }
        units_by_purchase.into_iter().map(placement).collect()
    }

    /// The units of an order, each with the provider that it is bought from.
    fn units<'a>(
        &self,
        partner: &KnownPartner,
        items: &[RequestedItem],
        options: &'a OptionsById,
        prices: &Prices,
    ) -> Vec<NewUnit<'a>> {
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
            // A provider that is not configured would never be asked, so the order would wait for
            // it forever.
            let is_served =
                |one: &&OptionAtProvider| !sandbox && self.providers.contains(&one.provider);
            let alternatives: Vec<OptionAtProvider> = option
                .alternatives
                .iter()
                .filter(is_served)
                .cloned()
                .collect();
            for _ in 0..item.quantity {
                units.push(NewUnit {
                    provider,
                    // Neither is made by `new`, so that a new field cannot be forgotten here.
                    topup: NewTopup {
                        topup_id: self.topup_ids.next(prices.at),
                        position: units.len(),
                        agreed: Agreed {
                            option_id: option.option_id,
                            price: prices.of(option.option_id),
                        },
                        provider_option_id: provider_option_id.clone(),
                        metadata: item.metadata.clone(),
                    },
                    alternatives: alternatives.clone(),
                });
            }
        }
        units
    }
}

/// The placement of the units of one purchase, which have the same provider and the same further
/// providers.
fn placement(units: Vec<NewUnit<'_>>) -> NewPlacement {
    let first = units.first();
    let provider = first.map_or_else(String::new, |unit| unit.provider.to_owned());
    let alternatives = alternatives(&units);
    let topups: Vec<NewTopup> = units.into_iter().map(|unit| unit.topup).collect();
    let products = topups.iter().map(|topup| topup.provider_option_id.as_str());
    NewPlacement {
        placement_id: PlacementId::new(),
        provider,
        lane: domain::lane(products),
        alternatives,
        topups,
    }
}

/// The further providers of the units of one purchase, each with its names of their options. All of
/// these units name the same providers in the same order.
fn alternatives(units: &[NewUnit<'_>]) -> Vec<Alternative> {
    let alternatives: &[OptionAtProvider] = match units.first() {
        Some(unit) => &unit.alternatives,
        None => &[],
    };
    let further = |(nth, one): (usize, &OptionAtProvider)| {
        let names = units.iter().filter_map(|unit| {
            let named = unit.alternatives.get(nth)?;
            Some((
                unit.topup.agreed.option_id,
                named.provider_option_id.clone(),
            ))
        });
        let options: BTreeMap<OptionId, String> = names.collect();
        Alternative {
            provider: one.provider.clone(),
            lane: domain::lane(options.values().map(String::as_str)),
            options,
        }
    };
    alternatives.iter().enumerate().map(further).collect()
}

/// Whether the taken external id is among the errors, so that an order with this id is stored.
pub(super) fn any_is_taken(errors: &[RequestFault]) -> bool {
    errors
        .iter()
        .any(|fault| fault.code == ErrorCode::ExternalOrderIdTaken)
}

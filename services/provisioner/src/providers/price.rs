//! The price guard: an option may say the most that we pay for its product, so that a price that
//! the provider has raised is never paid silently.
//!
//! The price stands behind the product in the option's id at the provider: `JC016@1.50` is the
//! product `JC016` for at most 1.50 in the currency of the account. That id is copied into each
//! unit when its order is stored. So an order is bought at the price for which it was accepted,
//! even if the catalogue changes before it is bought. An option without a price is bought at any
//! price.

use std::time::Duration;

pub(super) use domain::product::Price;

use super::provider::{Heard, LookUpRequest, Trouble};

/// A product and the most that we pay for one unit of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PricedProduct<'a> {
    pub(super) product: &'a str,
    pub(super) most: Option<Price>,
}

/// Reads the id of an option at the provider, or refuses its purchase.
pub(super) fn priced_product(provider_option_id: &str) -> Result<PricedProduct<'_>, Trouble> {
    let Some((product, price)) = provider_option_id.rsplit_once('@') else {
        return Ok(PricedProduct {
            product: provider_option_id,
            most: None,
        });
    };
    let most = Price::parse(price).ok_or_else(|| {
        Trouble::RefusedHere("the price behind @ in the option's id is unreadable".into())
    })?;
    Ok(PricedProduct {
        product,
        most: Some(most),
    })
}

/// Refuses a purchase whose option allows less than the provider asks for a unit now. `unlisted`
/// says what it means that the provider names no price.
pub(super) fn compare(price: Option<Price>, most: Price, unlisted: &str) -> Result<(), Trouble> {
    match price {
        Some(price) if price <= most => Ok(()),
        Some(price) => Err(Trouble::RefusedHere(format!(
            "the price of the option is {price} now"
        ))),
        None => Err(Trouble::RefusedHere(unlisted.to_owned())),
    }
}

/// What it means for a purchase that the provider's prices were not read. Whatever became of the
/// call, the purchase was not sent. An answer that cannot be read shows that the provider is there,
/// so the purchase waits for a better one.
pub(super) fn unread(trouble: Trouble, after: Duration) -> Trouble {
    let told = |reason: &str| format!("the provider's prices cannot be read: {reason}");
    match trouble {
        Trouble::Denied(_)
        | Trouble::Busy { .. }
        | Trouble::Waiting { .. }
        | Trouble::RefusedHere(_) => trouble,
        Trouble::NotSent(reason)
        | Trouble::Unknown {
            heard: Heard::Nothing,
            reason,
        } => Trouble::NotSent(told(&reason)),
        Trouble::Unknown { reason, .. } => Trouble::Waiting {
            after,
            reason: told(&reason),
        },
    }
}

/// Whether a purchase of this product may be the one that is asked about.
pub(super) fn may_be_of(look_up: &LookUpRequest, named: &str) -> bool {
    let is_it = |option: &String| product(option) == named;
    look_up.options.is_empty() || look_up.options.iter().any(is_it)
}

/// The product of an option, whatever its price.
pub(super) fn product(provider_option_id: &str) -> &str {
    provider_option_id
        .rsplit_once('@')
        .map_or(provider_option_id, |(product, _)| product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_may_name_the_most_that_is_paid() {
        let of = |text| {
            priced_product(text).map(|priced| (priced.product, priced.most.map(|most| most.0)))
        };
        assert_eq!(of("JC016"), Ok(("JC016", None)));
        assert_eq!(of("JC016@1.5"), Ok(("JC016", Some(15_000))));
        assert_eq!(of("a@b@0.0001"), Ok(("a@b", Some(1))));
        for bad in [
            "a@",
            "a@x",
            "a@1.",
            "a@.5",
            "a@-1",
            "a@1.00001",
            "a@1,5",
            "a@1e3",
            "a@ 1",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
        assert!(of("a@1234567890123").is_err());
        assert_eq!(product("JC016@x"), "JC016");
    }
}

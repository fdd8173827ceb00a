//! The catalogue of Zendit: its offers, and what one of them costs.

use accounts::facts::{Allowance, CountryCoverage, FactText, Facts, PlanKind};
use domain::product::{Cost, Country, Currency, Data, Price, Standard};
use serde::Deserialize;
use serde_json::Value;

use super::wire::{minor, next};
use crate::providers::{
    http::parse,
    lists::{
        ListPage, ProductOffer, UnsuitableProduct, name, needs_confirmation_code, number, product,
        text,
    },
    provider::Trouble,
    text::one_line,
    told::{ToldFacts, flag, some, whole},
};

/// Its fields are those of the node-sdk 1.9.0 (March 2026).
#[derive(Deserialize)]
struct Offers {
    list: Vec<Value>,
    total: u64,
}

/// Whether the offer is switched on for our account. One that is not cannot be bought, and the
/// catalogue lists it all the same.
fn is_enabled(offer: &Value) -> bool {
    offer.get("enabled") != Some(&Value::Bool(false))
}

/// Whether the offer has one price. One with a range of prices needs a price in its purchase.
fn is_fixed(offer: &Value) -> bool {
    text(offer, "priceType") == Some("FIXED")
}

/// Reads a page for an import.
pub(super) fn listed(body: &[u8], page: u32) -> Result<ListPage<ProductOffer>, Trouble> {
    let offers: Offers = parse(body)?;
    let sold = offers.list.iter().filter(|offer| is_enabled(offer));
    let entries = sold.map(|offer| ProductOffer {
        product: product(offer, "offerId"),
        name: full_name(offer),
        standard: standard(offer),
        told: told(offer),
    });
    Ok(ListPage {
        entries: entries.collect(),
        next: next(page, offers.total),
    })
}

/// What we pay for this offer; `None` if it cannot be bought at a price that we know, because it is
/// switched off, has a range of prices, or names none.
pub(super) fn price_of(body: &[u8], id: &str) -> Result<Option<Price>, Trouble> {
    let offer: Value = parse(body)?;
    if text(&offer, "offerId") != Some(id) {
        return Err(Trouble::not_understood("the response is another offer"));
    }
    let is_sold = is_enabled(&offer) && is_fixed(&offer);
    Ok(is_sold.then(|| price(&offer)).flatten())
}

/// What an offer adds to an eSIM.
pub(super) struct ZenditPlan {
    /// What we pay, if the offer has one price.
    pub(super) price: Option<Price>,
    /// In bytes.
    pub(super) data: Option<u64>,
    pub(super) days: Option<u32>,
}

/// What this offer adds; `None` if it is switched off.
pub(super) fn plan_of(body: &[u8], id: &str) -> Result<Option<ZenditPlan>, Trouble> {
    let offer: Value = parse(body)?;
    if text(&offer, "offerId") != Some(id) {
        return Err(Trouble::not_understood("the response is another offer"));
    }
    let data = data(&offer).and_then(|data| match data {
        Data::Megabytes(megabytes) => Some(u64::from(megabytes) << 20),
        Data::Unlimited => None,
    });
    let plan = ZenditPlan {
        price: is_fixed(&offer).then(|| price(&offer)).flatten(),
        data,
        days: number(&offer, "durationDays").and_then(|days| days.try_into().ok()),
    };
    Ok(is_enabled(&offer).then_some(plan))
}

fn full_name(offer: &Value) -> String {
    let parts = ["brandName", "shortNotes"].map(|field| name(offer, field));
    one_line(&parts.join(" "))
}

/// What we pay for an offer: its fixed cost and the fee. It is not documented whether the fee is
/// part of the fixed cost, so the offer may be taken for dearer than it is, and never for cheaper.
fn price(offer: &Value) -> Option<Price> {
    let cost = offer.get("cost")?;
    let fee = match cost.get("fee") {
        None | Some(Value::Null) => 0,
        Some(_) => number(cost, "fee")?,
    };
    let amount = number(cost, "fixed")?.checked_add(fee)?;
    minor(amount, number(cost, "currencyDivisor")?)
}

/// The destination and the countries of the roaming. A regional offer has the latter only.
fn countries(offer: &Value) -> Vec<Country> {
    let roaming = offer.get("roaming").and_then(Value::as_array);
    let roaming = roaming.into_iter().flatten();
    let codes = roaming.filter_map(|place| text(place, "country"));
    let codes = text(offer, "country").into_iter().chain(codes);
    let mut countries: Vec<Country> = codes.filter_map(|code| code.parse().ok()).collect();
    countries.sort_unstable();
    countries.dedup();
    countries
}

fn data(offer: &Value) -> Option<Data> {
    match offer.get("dataUnlimited") {
        Some(Value::Bool(true)) => return Some(Data::Unlimited),
        None | Some(Value::Null | Value::Bool(false)) => {}
        Some(_) => return None,
    }
    let megabytes = offer.get("dataGB")?.as_f64()? * 1024.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the conversion saturates, and an amount that is no sensible one is refused"
    )]
    let megabytes = megabytes.round() as u64;
    Data::megabytes(megabytes)
}

/// What a shop tells about an offer. It names no networks, only their generations.
fn told(offer: &Value) -> ToldFacts {
    let mut told = ToldFacts::default();
    let mut coverage = Vec::new();
    let roaming = told.read(offer, "roaming", |listed| listed.as_array().cloned());
    let roaming = roaming.unwrap_or_default();
    for place in std::iter::once(offer).chain(&roaming) {
        let generations = told.generations(place, "dataSpeeds");
        let country = told.country(place, "country");
        coverage.extend(country.map(|country| CountryCoverage {
            country,
            generations,
            networks: Vec::new(),
        }));
    }
    coverage.sort_unstable();
    coverage.dedup_by_key(|one| one.country);
    let voice = allowance(&mut told, offer, "voiceMinutes", "voiceUnlimited");
    let sms = allowance(&mut told, offer, "smsNumber", "smsUnlimited");
    let includes = |one: Allowance| one.unlimited || one.amount != Some(0);
    told.facts = Facts {
        kind: match (voice.map(includes), sms.map(includes)) {
            (Some(false), Some(false)) => Some(PlanKind::Data),
            (Some(true), Some(true)) => Some(PlanKind::DataVoiceText),
            _ => None,
        },
        coverage: some(coverage),
        generations: some(told.generations(offer, "dataSpeeds")),
        speed: told.read(offer, "subTypes", speed),
        voice,
        sms,
        ..Facts::default()
    };
    told.bounded()
}

/// The class of an offer that is about its speed.
fn speed(classes: &Value) -> Option<FactText> {
    let classes = classes.as_array()?.iter().filter_map(Value::as_str);
    let mut speeds = classes.filter(|one| ["Standard", "Fast", "Faster", "Fastest"].contains(one));
    FactText::try_from(speeds.next()?.to_owned()).ok()
}

/// The number is 0 where it is unlimited, too.
fn allowance(
    told: &mut ToldFacts,
    offer: &Value,
    amount: &'static str,
    unlimited: &'static str,
) -> Option<Allowance> {
    let amount = told.read(offer, amount, |amount| u32::try_from(whole(amount)?).ok());
    let unlimited = told.read(offer, unlimited, flag)?;
    if unlimited {
        return Some(Allowance {
            amount: None,
            unlimited,
        });
    }
    amount.map(|amount| Allowance {
        amount: Some(amount),
        unlimited,
    })
}

fn standard(offer: &Value) -> Result<Standard, UnsuitableProduct> {
    let unreadable = UnsuitableProduct::Unreadable;
    product(offer, "offerId").ok_or(unreadable("offerId"))?;
    if offer.get("enabled") != Some(&Value::Bool(true)) {
        return Err(unreadable("enabled"));
    }
    if !is_fixed(offer) {
        return Err(unreadable("priceType"));
    }
    if text(offer, "productType") != Some("ESIM") {
        return Err(unreadable("productType"));
    }
    let notes = ["notes", "shortNotes"];
    if needs_confirmation_code(notes.iter().filter_map(|field| text(offer, field))) {
        return Err(UnsuitableProduct::ConfirmationCode);
    }
    let countries = countries(offer);
    if countries.is_empty() {
        return Err(unreadable("country"));
    }
    let data = data(offer).ok_or(unreadable("dataGB"))?;
    let currency = offer.get("cost").and_then(|cost| text(cost, "currency"));
    let currency: Option<Currency> = currency.and_then(|code| code.parse().ok());
    let cost = Cost {
        price: price(offer).ok_or(unreadable("cost"))?,
        currency: currency.ok_or(unreadable("cost"))?,
    };
    let days = number(offer, "durationDays").and_then(|days| days.try_into().ok());
    days.and_then(|days| Standard::new(countries, data, days, Some(cost)))
        .ok_or(unreadable("durationDays"))
}

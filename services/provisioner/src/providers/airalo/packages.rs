//! The catalogue of Airalo: countries and regions, in each the operators, and at each operator the
//! packages. It is read whole for an import ([`Place`]), and for its prices only ([`PricedPlace`]),
//! which costs a fraction of the memory and the time.

use std::{fmt, marker::PhantomData};

use accounts::facts::{
    AccessPoint, AccessPoints, Activation, Allowance, CountryCoverage, Extendable, Facts, FairUse,
    Picture, PlanKind,
};
use domain::product::{Cost, Country, Currency, Data, Price, Standard};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use crate::providers::{
    extension::ExtensionOffer,
    lists::{
        ListPage, ProductOffer, UnsuitableProduct, name, needs_confirmation_code, number, product,
        text,
    },
    provider::Trouble,
    text::one_line,
    told::{ToldFacts, days, flag, line, some, together, whole},
};

/// A page of the catalogue, of which each place is a `P`.
#[derive(Deserialize)]
#[serde(bound = "P: Deserialize<'de>")]
pub(super) struct AiraloPackages<P> {
    #[serde(deserialize_with = "list_or_object")]
    data: Vec<P>,
    meta: Value,
    #[serde(default)]
    pricing: Value,
}

/// Reads a list. The documents of three dates (2025 to September 2026) say that from the second
/// page on it is an object whose keys are the indexes, and their examples show an array.
fn list_or_object<'de, D: Deserializer<'de>, P: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<P>, D::Error> {
    struct Entries<P>(PhantomData<P>);

    impl<'de, P: Deserialize<'de>> Visitor<'de> for Entries<P> {
        type Value = Vec<P>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a list, or an object of indexes")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<P>, A::Error> {
            let mut entries = Vec::new();
            while let Some(entry) = list.next_element()? {
                entries.push(entry);
            }
            Ok(entries)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Vec<P>, A::Error> {
            let mut entries = Vec::new();
            while let Some((IgnoredAny, entry)) = object.next_entry()? {
                entries.push(entry);
            }
            Ok(entries)
        }
    }

    deserializer.deserialize_any(Entries(PhantomData))
}

/// A country or a region.
#[derive(Deserialize)]
pub(super) struct Place {
    country_code: Option<String>,
    operators: Vec<Operator>,
}

#[derive(Deserialize)]
struct Operator {
    packages: Vec<Value>,
    /// The other fields, of which none must be there.
    #[serde(flatten)]
    about: Value,
}

/// A country or a region, of which only the prices and what limits a start are read.
#[derive(Deserialize)]
pub(super) struct PricedPlace {
    operators: Vec<PricedOperator>,
}

#[derive(Deserialize)]
struct PricedOperator {
    packages: Vec<PricedPackage>,
    #[serde(default)]
    install_window_days: Value,
}

/// What the list says of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    /// What we pay for a unit.
    pub(super) price: Price,
    /// For how many days after its purchase an eSIM can be started, if its operator limits it.
    pub(super) install_window: Option<u16>,
}

impl Listed {
    /// The higher price and the shorter time.
    pub(super) fn or_worse(self, other: Self) -> Self {
        let windows = [self.install_window, other.install_window];
        Self {
            price: self.price.max(other.price),
            install_window: windows.into_iter().flatten().min(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PricedPackage {
    id: Value,
    price: Value,
    net_price: Value,
}

/// The part of the price for consumers that we do not pay, in millionths.
#[derive(Clone, Copy)]
struct Discount(u64);

impl Discount {
    const WHOLE: u64 = 1_000_000;

    /// With `discount_pricing` packages have no net price, and we pay their price less a percentage
    /// (seen in its list of top-ups, September 2026). What cannot be read is no discount, so that
    /// we never believe that a package is cheaper than it is.
    fn of(pricing: &Value) -> Self {
        if text(pricing, "model") != Some("discount_pricing") {
            return Self(0);
        }
        // A percentage of four places counts millionths.
        let percentage = amount(pricing.get("discount_percentage").unwrap_or(&Value::Null));
        let part = percentage.flatten().map_or(0, |percentage| percentage.0);
        Self(if part <= Self::WHOLE { part } else { 0 })
    }

    /// What we pay, rounded up.
    fn off(self, price: Price) -> Price {
        let paid = price.0.saturating_mul(Self::WHOLE - self.0);
        Price(paid.div_ceil(Self::WHOLE))
    }
}

impl<P> AiraloPackages<P> {
    /// The number of the page after this one; `None` after the last one.
    fn next(&self, page: u32) -> Result<Option<u32>, Trouble> {
        let last = number(&self.meta, "last_page")
            .ok_or_else(|| Trouble::unreadable("it does not name the last page"))?;
        Ok((u64::from(page) < last).then(|| page.saturating_add(1)))
    }
}

impl AiraloPackages<PricedPlace> {
    /// The packages whose id and price can be read.
    pub(super) fn priced(self, page: u32) -> Result<ListPage<(String, Listed)>, Trouble> {
        let next = self.next(page)?;
        let discount = Discount::of(&self.pricing);
        let mut entries = Vec::new();
        for operator in self.data.iter().flat_map(|place| &place.operators) {
            let window = operator.install_window_days.as_u64();
            let install_window = window.and_then(|days| days.try_into().ok());
            entries.extend(operator.packages.iter().filter_map(|package| {
                let id = package.id.as_str()?.to_owned();
                let price = price(&package.net_price, &package.price, discount)?;
                let listed = Listed {
                    price,
                    install_window,
                };
                Some((id, listed))
            }));
        }
        Ok(ListPage { entries, next })
    }
}

impl AiraloPackages<Place> {
    pub(super) fn listed(self, page: u32) -> Result<ListPage<ProductOffer>, Trouble> {
        let next = self.next(page)?;
        let discount = Discount::of(&self.pricing);
        let mut entries = Vec::new();
        for place in &self.data {
            for operator in &place.operators {
                let of_operator = of_operator(&operator.about);
                for package in &operator.packages {
                    entries.push(ProductOffer {
                        product: product(package, "id"),
                        name: full_name(place, operator, package),
                        standard: standard(place, operator, package, discount),
                        told: of_package(of_operator.clone(), &operator.about, package),
                    });
                }
            }
        }
        Ok(ListPage { entries, next })
    }
}

/// What can be added to an eSIM. The list is documented with an array; as that of the packages is
/// also documented as an object of indexes, both are read.
#[derive(Deserialize)]
pub(super) struct AiraloTopUps {
    #[serde(deserialize_with = "list_or_object")]
    data: Vec<Value>,
    #[serde(default)]
    pricing: Value,
}

impl AiraloTopUps {
    /// Those whose id can be read.
    pub(super) fn offers(&self) -> Vec<ExtensionOffer> {
        let discount = Discount::of(&self.pricing);
        let offer = |package: &Value| {
            let of = |field: &str| package.get(field).unwrap_or(&Value::Null);
            let is_limited = of("is_unlimited") != &Value::Bool(true);
            let amount = number(package, "amount").filter(|amount| is_limited && *amount > 0);
            let currency: Option<Currency> = USD.parse().ok();
            let price = price(of("net_price"), of("price"), discount);
            Some(ExtensionOffer {
                provider_option_id: product(package, "id")?,
                name: name(package, "title"),
                data: amount.and_then(|megabytes| megabytes.checked_mul(MB)),
                days: number(package, "day").and_then(|days| days.try_into().ok()),
                cost: price
                    .zip(currency)
                    .map(|(price, currency)| Cost { price, currency }),
            })
        };
        self.data.iter().filter_map(offer).collect()
    }
}

/// The title of a package says how much and how long; that of its operator is a brand.
fn full_name(place: &Place, operator: &Operator, package: &Value) -> String {
    let brand = name(&operator.about, "title");
    let where_ = place.country_code.clone().unwrap_or_default();
    let where_ = where_.parse::<Country>().map(|country| country.to_string());
    let parts = [brand, where_.unwrap_or_default(), name(package, "title")];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    one_line(&parts.join(" "))
}

/// The texts about a product in which a condition may stand.
fn texts<'a>(operator: &'a Operator, package: &'a Value) -> impl Iterator<Item = &'a str> {
    let about = &operator.about;
    let fields = ["other_info", "warning"].map(|field| text(about, field));
    let own = ["title", "short_info"].map(|field| text(package, field));
    let info = about.get("info").and_then(Value::as_array);
    let info = info.into_iter().flatten().filter_map(Value::as_str);
    fields.into_iter().chain(own).flatten().chain(info)
}

fn countries(place: &Place, operator: &Operator) -> Vec<Country> {
    let listed = operator.about.get("countries").and_then(Value::as_array);
    let listed = listed.into_iter().flatten();
    let codes = listed.filter_map(|country| text(country, "country_code")?.parse().ok());
    let codes: Vec<Country> = codes.collect();
    if !codes.is_empty() {
        return codes;
    }
    let own = place.country_code.as_deref();
    own.and_then(|code| code.parse().ok()).into_iter().collect()
}

fn standard(
    place: &Place,
    operator: &Operator,
    package: &Value,
    discount: Discount,
) -> Result<Standard, UnsuitableProduct> {
    product(package, "id").ok_or(UnsuitableProduct::Unreadable("id"))?;
    match text(package, "type") {
        Some("sim") => {}
        Some("topup") => return Err(UnsuitableProduct::TopUp),
        _ => return Err(UnsuitableProduct::Unreadable("type")),
    }
    if needs_confirmation_code(texts(operator, package)) {
        return Err(UnsuitableProduct::ConfirmationCode);
    }
    match operator.about.get("is_kyc_verify") {
        None | Some(Value::Null | Value::Bool(false)) => {}
        Some(Value::Bool(true)) => return Err(UnsuitableProduct::Identity),
        Some(Value::Number(number)) if number.as_u64() == Some(0) => {}
        Some(Value::Number(number)) if number.as_u64() == Some(1) => {
            return Err(UnsuitableProduct::Identity);
        }
        Some(_) => return Err(UnsuitableProduct::Unreadable("is_kyc_verify")),
    }
    let countries = countries(place, operator);
    if countries.is_empty() {
        return Err(UnsuitableProduct::Unreadable("countries"));
    }
    let data = match package.get("is_unlimited") {
        Some(Value::Bool(true)) => Some(Data::Unlimited),
        None | Some(Value::Null | Value::Bool(false)) => {
            number(package, "amount").and_then(Data::megabytes)
        }
        Some(_) => return Err(UnsuitableProduct::Unreadable("is_unlimited")),
    };
    let data = data.ok_or(UnsuitableProduct::Unreadable("amount"))?;
    let of = |field: &str| package.get(field).unwrap_or(&Value::Null);
    let cost = Cost {
        price: price(of("net_price"), of("price"), discount)
            .ok_or(UnsuitableProduct::Unreadable("price"))?,
        currency: USD
            .parse::<Currency>()
            .map_err(|_| UnsuitableProduct::Unreadable("price"))?,
    };
    let days = number(package, "day").and_then(|days| days.try_into().ok());
    days.and_then(|days| Standard::new(countries, data, days, Some(cost)))
        .ok_or(UnsuitableProduct::Unreadable("day"))
}

/// What a shop tells about all packages of an operator. The fields are those of its documents
/// (September 2026).
fn of_operator(about: &Value) -> ToldFacts {
    let mut told = ToldFacts::default();
    let coverages = told.read(about, "coverages", |listed| listed.as_array().cloned());
    let mut coverage = Vec::new();
    for covered in coverages.unwrap_or_default() {
        let networks = told.networks(&covered, "networks", "name", "types");
        let Some(country) = told.country(&covered, "code") else {
            continue;
        };
        let generations = networks
            .iter()
            .flat_map(|one| one.generations.iter().copied());
        coverage.push(CountryCoverage {
            country,
            generations: together(generations).unwrap_or_default(),
            networks,
        });
    }
    coverage.sort_unstable();
    let generations = coverage
        .iter()
        .flat_map(|one| one.generations.iter().copied());
    let generations = together(generations);
    told.facts = Facts {
        kind: told.read(about, "plan_type", |kind| match kind.as_str()? {
            "data" => Some(PlanKind::Data),
            "data-voice-text" => Some(PlanKind::DataVoiceText),
            _ => None,
        }),
        coverage: some(coverage),
        generations,
        activation: told.read(about, "activation_policy", |policy| {
            match policy.as_str()? {
                "installation" => Some(Activation::Installation),
                "first-usage" => Some(Activation::FirstUse),
                _ => None,
            }
        }),
        install_within_days: told.read(about, "install_window_days", days),
        top_up: told.read(about, "rechargeability", |can| {
            Some(if flag(can)? {
                Extendable::Yes
            } else {
                Extendable::No
            })
        }),
        identity_check: told.read(about, "is_kyc_verify", flag),
        apn: told.read(about, "apn", access_points),
        picture: told.read(about, "image", |image| {
            Picture::try_from(text(image, "url")?.to_owned()).ok()
        }),
        ..Facts::default()
    };
    told
}

/// What a shop tells about a package. It has the rule of fair use itself, or its operator has it.
fn of_package(mut told: ToldFacts, about: &Value, package: &Value) -> ToldFacts {
    let has_rule = package.get("is_fair_usage_policy").is_some();
    let rule = if has_rule { package } else { about };
    let policy = told.read(rule, "fair_usage_policy", line);
    let applies = told.read(rule, "is_fair_usage_policy", flag);
    told.facts.fair_use = applies.map(|applies| FairUse {
        applies,
        policy: policy.filter(|_| applies),
    });
    let amount = |amount: &Value| {
        let amount = whole(amount)?.try_into().ok()?;
        Some(Allowance {
            amount: Some(amount),
            unlimited: false,
        })
    };
    told.facts.voice = told.read(package, "voice", amount);
    told.facts.sms = told.read(package, "text", amount);
    told.bounded()
}

fn access_points(apn: &Value) -> Option<AccessPoints> {
    let of = |phone: &str| {
        let apn = apn.get(phone)?;
        let automatic = match text(apn, "apn_type")? {
            "automatic" => true,
            "manual" => false,
            _ => return None,
        };
        Some(AccessPoint {
            automatic,
            name: apn.get("apn_value").and_then(line),
        })
    };
    let points = AccessPoints {
        ios: of("ios"),
        android: of("android"),
    };
    (points.ios.is_some() || points.android.is_some()).then_some(points)
}

/// The bytes of a MB; a package of 1 GB has 1024 MB.
const MB: u64 = 1 << 20;
/// The currency of the fields that are read here.
const USD: &str = "USD";

/// What we pay: the net price if the package names one, and otherwise its price less the discount.
fn price(net_price: &Value, price: &Value, discount: Discount) -> Option<Price> {
    match amount(net_price) {
        Some(net_price) => net_price,
        None => amount(price)?.map(|price| discount.off(price)),
    }
}

/// A number, which may be written as a text. `None` if there is none, and `Some(None)` if it cannot
/// be read.
#[expect(
    clippy::option_option,
    reason = "a price that is unreadable must not be taken for one that is not there"
)]
fn amount(field: &Value) -> Option<Option<Price>> {
    match field {
        Value::Null => None,
        Value::Number(number) => Some(Price::parse(&number.to_string())),
        Value::String(text) => Some(Price::parse(text)),
        _ => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn priced(data: &Value, pricing: &Value) -> Vec<(String, Listed)> {
        let page = json!({ "data": data, "meta": { "last_page": 1 }, "pricing": pricing });
        let page: AiraloPackages<PricedPlace> = serde_json::from_value(page).unwrap();
        page.priced(1).unwrap().entries
    }

    fn place(net_price: &Value, window: &Value) -> Value {
        let package = json!({ "id": "P", "price": 4.5, "net_price": net_price });
        json!({ "operators": [{ "install_window_days": window, "packages": [package] }] })
    }

    /// With `discount_pricing` packages have no net price. From the second page on the list is an
    /// object of indexes (its documents of 2025 and of September 2026).
    #[test]
    fn the_list_that_is_compared_says_what_we_pay_in_each_of_its_shapes() {
        let net = json!({ "model": "net_pricing", "discount_percentage": 0 });
        let discount = json!({ "model": "discount_pricing", "discount_percentage": 20 });
        for (net_price, pricing, paid) in [
            (json!(1.1), &net, 11_000),
            (json!("1.10"), &net, 11_000),
            (json!(null), &discount, 36_000),
            (json!(null), &Value::Null, 45_000),
        ] {
            let place = place(&net_price, &json!(30));
            for data in [json!([place]), json!({ "25": place })] {
                let listed = Listed {
                    price: Price(paid),
                    install_window: Some(30),
                };
                assert_eq!(priced(&data, pricing), [("P".to_owned(), listed)], "{data}");
            }
        }
    }

    #[test]
    fn a_price_that_cannot_be_read_is_none_and_a_window_that_cannot_be_is_no_limit() {
        let list = json!([place(&json!("free"), &json!(30))]);
        assert!(priced(&list, &Value::Null).is_empty());
        for window in [json!(null), json!("30"), json!(-1), json!(70_000)] {
            let list = json!([place(&json!(1.1), &window)]);
            assert_eq!(priced(&list, &Value::Null)[0].1.install_window, None);
        }
    }

    /// One package may be listed in several places.
    #[test]
    fn of_a_package_that_is_listed_twice_the_higher_price_and_the_shorter_time_count() {
        let of = |price, install_window| Listed {
            price: Price(price),
            install_window,
        };
        assert_eq!(of(1, Some(90)).or_worse(of(2, Some(30))), of(2, Some(30)));
        assert_eq!(of(2, None).or_worse(of(1, Some(30))), of(2, Some(30)));
        assert_eq!(of(2, None).or_worse(of(1, None)), of(2, None));
    }
}

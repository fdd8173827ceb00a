//! The catalogue of Airalo: countries and regions, in each the operators, and at each operator the
//! packages.

use domain::product::{Cost, Country, Currency, Data, Price, Standard};
use serde::Deserialize;
use serde_json::Value;

use crate::providers::{
    lists::{
        ListPage, ProductOffer, UnsuitableProduct, name, needs_confirmation_code, number, product,
        text,
    },
    provider::Trouble,
    text::one_line,
};

/// A page of the catalogue.
#[derive(Deserialize)]
pub(super) struct AiraloPackages {
    data: Vec<Place>,
    meta: Value,
}

/// A country or a region.
#[derive(Deserialize)]
struct Place {
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

impl AiraloPackages {
    /// The number of the page after this one; `None` after the last one.
    fn next(&self, page: u32) -> Result<Option<u32>, Trouble> {
        let last = number(&self.meta, "last_page").ok_or_else(|| {
            Trouble::Unknown("the response is unreadable: it does not name the last page".into())
        })?;
        Ok((u64::from(page) < last).then(|| page.saturating_add(1)))
    }

    /// The packages whose id and price can be read, with what we pay for a unit.
    pub(super) fn priced(self, page: u32) -> Result<ListPage<(String, Price)>, Trouble> {
        let next = self.next(page)?;
        let operators = self.data.iter().flat_map(|place| &place.operators);
        let packages = operators.flat_map(|operator| &operator.packages);
        let entries = packages.filter_map(|package| {
            let id = product(package, "id")?;
            Some((id.into(), price(package)?))
        });
        Ok(ListPage {
            entries: entries.collect(),
            next,
        })
    }

    pub(super) fn listed(self, page: u32) -> Result<ListPage<ProductOffer>, Trouble> {
        let next = self.next(page)?;
        let mut entries = Vec::new();
        for place in &self.data {
            for operator in &place.operators {
                for package in &operator.packages {
                    entries.push(ProductOffer {
                        product: product(package, "id"),
                        name: full_name(place, operator, package),
                        terms: terms(place, operator, package),
                    });
                }
            }
        }
        Ok(ListPage { entries, next })
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

fn terms(
    place: &Place,
    operator: &Operator,
    package: &Value,
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
    let cost = Cost {
        price: price(package).ok_or(UnsuitableProduct::Unreadable("price"))?,
        currency: USD
            .parse::<Currency>()
            .map_err(|_| UnsuitableProduct::Unreadable("price"))?,
    };
    let days = number(package, "day").and_then(|days| days.try_into().ok());
    days.and_then(|days| Standard::new(countries, data, days, Some(cost)))
        .ok_or(UnsuitableProduct::Unreadable("day"))
}

/// The currency of the fields that are read here.
const USD: &str = "USD";

/// What we pay: the net price if the package names one, and otherwise its price.
fn price(package: &Value) -> Option<Price> {
    let of = |field: &str| match package.get(field) {
        None | Some(Value::Null) => None,
        Some(Value::Number(number)) => Some(Price::parse(&number.to_string())),
        Some(Value::String(text)) => Some(Price::parse(text)),
        Some(_) => Some(None),
    };
    of("net_price").or_else(|| of("price"))?
}

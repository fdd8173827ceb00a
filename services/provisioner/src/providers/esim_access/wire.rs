//! The messages of the eSIM Access protocol. What is not exactly as expected is unknown.

use accounts::facts::{Activation, CountryCoverage, Extendable, Facts, FairUse, PlanKind};
use domain::{
    ActivationCode, ExtensionId, Iccid, PlacementId,
    extension::Baseline,
    product::{Cost, Country, Data, Price, Standard},
};
use serde::Deserialize;
use serde_json::Value;

use store::esim_requests::Reading;
use time::OffsetDateTime;

use crate::providers::{
    extension::{ProviderProfile, Seen},
    http::parse_part,
    lists::{
        ProductOffer, SoldPurchase, UnsuitableProduct, name, needs_confirmation_code, number,
        product, text,
    },
    provider::{
        Balance, Custody, EsimStatus, ProfileFault, ProviderUnit, ProviderUnitState, Trouble,
        UnitFields, filled, id_in,
    },
    text::{ProviderId, day, moment, one_line},
    told::{ToldFacts, days, line, some, together, whole},
};

/// The size of a page. It is the largest one that the reference allows (5 to 500, April 2026), and
/// a purchase has fewer units ([`domain::cut`]), so its eSIMs are always on the first page.
pub(super) const PAGE: u32 = 500;

/// The shape of each response.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Envelope {
    success: Success,
    error_code: Option<String>,
    #[serde(alias = "errorMessage")]
    error_msg: Option<String>,
    obj: Option<Value>,
}

/// The provider writes a truth value in both ways.
#[derive(Deserialize)]
#[serde(untagged)]
enum Success {
    Flag(bool),
    Text(String),
}

/// What a response says.
pub(super) enum Reply {
    /// The call was carried out, with this result.
    Done(Value),
    Failed(EsimAccessFailure),
}

/// An error of the protocol.
pub(super) struct EsimAccessFailure {
    /// Exactly as it was sent.
    pub(super) code: String,
    /// One short line.
    pub(super) message: String,
}

impl Envelope {
    /// A response that says both or neither of success and failure is not understood, so the
    /// outcome of its call is unknown.
    pub(super) fn open(self) -> Result<Reply, Trouble> {
        let success = match self.success {
            Success::Flag(success) => Some(success),
            Success::Text(text) => match text.as_str() {
                "true" => Some(true),
                "false" => Some(false),
                _ => None,
            },
        };
        // `0` and an empty text mean that there is no error.
        let code = self
            .error_code
            .filter(|code| !matches!(code.as_str(), "" | "0"));
        match (success, code, self.obj) {
            (Some(true), None, Some(result)) => Ok(Reply::Done(result)),
            (Some(false), Some(code), _) => Ok(Reply::Failed(EsimAccessFailure {
                code,
                message: one_line(&self.error_msg.unwrap_or_default()),
            })),
            _ => Err(Trouble::unreadable("it says neither success nor failure")),
        }
    }
}

/// The result of a purchase.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EsimAccessOrder {
    pub(super) order_no: String,
    transaction_id: Option<String>,
}

impl EsimAccessOrder {
    pub(super) fn is_for_another(&self, placement_id: PlacementId) -> bool {
        belongs(self.transaction_id.as_deref(), placement_id) == Some(false)
    }
}

/// The account, in ten-thousandths of a dollar.
#[derive(Deserialize)]
pub(super) struct EsimAccessAccount {
    balance: i64,
}

impl EsimAccessAccount {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a balance that is too large for the exact number needs no attention"
    )]
    pub(super) fn balance(&self) -> Balance {
        Balance {
            amount: self.balance as f64 / 10_000.0,
            currency: "USD".to_owned(),
        }
    }
}

/// A page of eSIMs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EsimAccessPage {
    pub(super) esim_list: Vec<EsimAccessEsim>,
    pager: Option<Pager>,
}

#[derive(Deserialize)]
struct Pager {
    total: Option<u64>,
}

impl EsimAccessPage {
    /// Whether no page follows the one with this number: the provider counts all entries. If it
    /// does not, a page that is not full is the last one.
    pub(super) fn is_last(&self, number: u32) -> bool {
        match self.pager.as_ref().and_then(|pager| pager.total) {
            Some(total) => total <= u64::from(PAGE) * u64::from(number),
            None => self.esim_list.len() < PAGE as usize,
        }
    }
}

/// An eSIM that the provider has made for a purchase.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EsimAccessEsim {
    esim_tran_no: String,
    pub(super) order_no: Option<String>,
    transaction_id: Option<String>,
    iccid: Option<String>,
    ac: Option<String>,
    expired_time: Option<String>,
    esim_status: Option<String>,
    smdp_status: Option<String>,
    total_volume: Option<u64>,
    order_usage: Option<u64>,
    // Only extensions need these, so whatever they are makes no purchase unreadable.
    #[serde(default)]
    total_duration: Value,
    #[serde(default)]
    duration_unit: Value,
    #[serde(default)]
    package_list: Vec<ListedPackage>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedPackage {
    package_code: Option<String>,
    /// A package can be ordered by this name of it, too.
    slug: Option<String>,
    create_time: Option<String>,
    /// The ids of an extension, which no document shows here (see [`super::top_up`]).
    #[serde(default)]
    esim_tran_no: Value,
    #[serde(default)]
    transaction_id: Value,
}

impl EsimAccessEsim {
    /// The id of the purchase, as the eSIM names it.
    pub(super) fn transaction_id(&self) -> Option<&str> {
        self.transaction_id.as_deref().filter(|id| !id.is_empty())
    }

    /// Which names of its purchase and package it has. The example of the reference has our id.
    pub(super) fn named(&self) -> (String, Option<bool>) {
        let package = self.package_list.first();
        let of_package = |name: fn(&ListedPackage) -> Option<&String>| {
            package.is_some_and(|package| filled(name(package)).is_some())
        };
        let has_our_id = self.transaction_id().is_some();
        let fields = [
            ("transactionId", has_our_id),
            ("packageCode", of_package(|one| one.package_code.as_ref())),
            ("slug", of_package(|one| one.slug.as_ref())),
        ];
        let fields = fields.map(|(field, is_there)| {
            let without = if is_there { "" } else { "no " };
            format!("{without}{field}")
        });
        (fields.join(", "), Some(has_our_id))
    }

    /// Whether the eSIM belongs to the purchase with our id; `None` if it does not say so.
    pub(super) fn belongs_to(&self, placement_id: PlacementId) -> Option<bool> {
        belongs(self.transaction_id.as_deref(), placement_id)
    }

    /// The eSIM as a part of its purchase.
    pub(super) fn sold(self) -> Result<SoldPurchase, Trouble> {
        let unit = id_in("esimTranNo", self.esim_tran_no)?;
        let package = self.package_list.into_iter().next();
        let code = package.as_ref().and_then(|one| one.package_code.clone());
        let option = code.filter(|code| !code.is_empty());
        let option = option.map(|code| id_in("packageCode", code)).transpose()?;
        Ok(SoldPurchase {
            order_id: one_line(&self.transaction_id.unwrap_or_default()),
            reference: order_number(self.order_no.unwrap_or_default())?,
            unit: Some(unit),
            at: package
                .and_then(|one| one.create_time)
                .map(|at| one_line(&at)),
            units: 1,
            option,
            price: None,
        })
    }

    pub(super) fn esim_status(&self) -> Option<&str> {
        self.esim_status.as_deref()
    }

    /// What an extension adds to.
    pub(super) fn seen(&self) -> Seen {
        let unit = self.duration_unit.as_str();
        let is_in_days = unit.is_none_or(|unit| unit.eq_ignore_ascii_case("day"));
        let days = self.total_duration.as_u64().filter(|_| is_in_days);
        Seen {
            data_total: self.total_volume,
            days_total: days.and_then(|days| days.try_into().ok()),
            // Before its first use this is the last moment at which it can be started, so it also
            // changes when the plan starts.
            ends_at: None,
        }
    }

    pub(super) fn baseline(&self) -> Baseline {
        let seen = self.seen();
        let ids = self.package_list.iter().flat_map(|package| {
            [&package.esim_tran_no, &package.transaction_id].map(Value::as_str)
        });
        Baseline {
            data_total: seen.data_total,
            days_total: seen.days_total,
            ends_at: self.expired_time.as_deref().and_then(moment),
            packages: ids.flatten().map(one_line).collect(),
            ..Baseline::default()
        }
    }

    /// Whether a package names this extension by our id.
    pub(super) fn has_package_of(&self, extension_id: ExtensionId) -> bool {
        let ours = extension_id.to_string();
        let mut packages = self.package_list.iter();
        packages.any(|package| package.transaction_id.as_str() == Some(&ours))
    }

    /// Whether this is the eSIM with the provider's id.
    pub(super) fn is(&self, unit_id: &ProviderId) -> bool {
        self.esim_tran_no == unit_id.as_str()
    }

    /// The state of the eSIM after its delivery. It can be given back exactly if it is allocated
    /// and nobody has begun to download it.
    pub(super) fn status(&self) -> Result<EsimStatus, Trouble> {
        let (Some(esim), Some(smdp)) = (self.esim_status.as_deref(), self.smdp_status.as_deref())
        else {
            return Err(Trouble::unreadable("it does not say the state of the eSIM"));
        };
        let is_begun = matches!(esim, "IN_USE" | "USED_UP" | "USED_EXPIRED" | "SUSPENDED");
        // A download alone may have failed; an installation follows it.
        let installed = match smdp {
            "RELEASED" => Some(false),
            "INSTALLATION" | "ENABLED" | "DISABLED" | "DELETED" => Some(true),
            _ => None,
        };
        let custody = match (esim, smdp) {
            ("CANCEL", _) => Custody::Returned,
            ("GOT_RESOURCE", "RELEASED") => Custody::Returnable,
            _ => Custody::Kept(one_line(&format!("the provider says {esim}, {smdp}"))),
        };
        Ok(EsimStatus {
            reading: Reading {
                installed,
                data_used: self.order_usage,
                data_total: self.total_volume,
                // Before its first use this is the last moment at which it can be started.
                ends_at: (is_begun.then_some(self.expired_time.as_deref()).flatten())
                    .and_then(moment),
                as_of: None,
                only_downloaded: smdp == "DOWNLOAD",
            },
            custody,
            suspended: match esim {
                "SUSPENDED" => Some(true),
                "GOT_RESOURCE" | "IN_USE" | "USED_UP" => Some(false),
                _ => None,
            },
        })
    }

    /// Reads the state of the eSIM; the error is the name of the field that is unreadable.
    fn state(&self) -> Result<ProviderUnitState, ProfileFault> {
        let status = self.esim_status.as_deref().unwrap_or_default();
        // The table of the query writes REVOKE, and that of the events REVOKED (April 2026).
        if matches!(status, "CANCEL" | "REVOKE" | "REVOKED") {
            return Ok(ProviderUnitState::Failed(format!(
                "the provider says {status}"
            )));
        }
        let profile = (
            filled(self.iccid.as_ref()),
            filled(self.ac.as_ref()),
            filled(self.expired_time.as_ref()),
        );
        let (Some(iccid), Some(code), Some(expires)) = profile else {
            return Ok(ProviderUnitState::Pending);
        };
        // Nobody can use an eSIM in another state, or nobody knows whether, because new states
        // appear.
        if !USABLE.contains(&status) {
            tracing::error!(
                provider.unit.id = one_line(&self.esim_tran_no),
                provider.unit.state = one_line(status),
                "an eSIM that is not delivered yet is in a state in which it may be useless, so it \
                 is held"
            );
            return Err("esimStatus".into());
        }
        Ok(ProviderUnitState::Ready(ProviderProfile {
            iccid: Iccid::parse(iccid).map_err(|_| "iccid")?,
            code: ActivationCode::read(None, code)
                .map_err(|error| ProfileFault::of_code(&error, "ac"))?,
            is_code_shared: false,
            expired_date: day(expires).ok_or("expiredTime")?,
        }))
    }
}

/// The states of an eSIM that can be delivered, in the order in which they follow (reference of
/// April 2026).
const USABLE: [&str; 6] = [
    "CREATE",
    "PAYING",
    "PAID",
    "GETTING_RESOURCE",
    "GOT_RESOURCE",
    "IN_USE",
];

/// The data that eSIMs have used.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Usages {
    esim_usage_list: Vec<Counted>,
}

/// The data that an eSIM has used, in bytes.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Counted {
    esim_tran_no: String,
    pub(super) data_usage: u64,
    pub(super) total_data: u64,
    last_update_time: Option<String>,
}

impl Counted {
    /// When it was counted.
    pub(super) fn at(&self) -> Option<OffsetDateTime> {
        self.last_update_time.as_deref().and_then(moment)
    }
}

/// What an eSIM has used; `None` if the result does not say it.
pub(super) fn counted(result: &Value, unit_id: &ProviderId) -> Option<Counted> {
    let usages: Usages = parse_part(result).ok()?;
    let is_it = |one: &Counted| one.esim_tran_no == unit_id.as_str();
    usages.esim_usage_list.into_iter().find(is_it)
}

fn belongs(transaction_id: Option<&str>, placement_id: PlacementId) -> Option<bool> {
    transaction_id
        .filter(|id| !id.is_empty())
        .map(|id| id == placement_id.to_string())
}

/// The provider's order number. Without a good one the response is not understood, because the
/// purchase could not be found by it.
pub(super) fn order_number(text: String) -> Result<ProviderId, Trouble> {
    id_in("orderNo", text)
}

/// Reads eSIMs as units. One bad id makes the whole response unreadable, and no unit of it is used,
/// because a damaged response cannot be trusted in part.
pub(super) fn units(allocated: Vec<EsimAccessEsim>) -> Result<Vec<ProviderUnit>, Trouble> {
    const FIELDS: UnitFields = UnitFields {
        unit: "eSIM",
        unit_id: "esimTranNo",
        product_id: "packageCode",
    };
    let mut units: Vec<ProviderUnit> = Vec::with_capacity(allocated.len());
    for (index, one) in allocated.into_iter().enumerate() {
        let state = one.state();
        let package = one.package_list.into_iter().next();
        let (product_id, slug) =
            package.map_or((None, None), |package| (package.package_code, package.slug));
        let mut unit = FIELDS.read(index, one.esim_tran_no, product_id, state)?;
        unit.product_alias = slug.and_then(|slug| ProviderId::parse(slug).ok());
        units.push(unit);
    }
    Ok(units)
}

/// The products, each of which is read by itself.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EsimAccessPackages {
    pub(super) package_list: Vec<Value>,
}

/// The bytes of a MB.
const MEGABYTE: u64 = 1 << 20;

pub(super) fn offer(package: &Value) -> ProductOffer {
    ProductOffer {
        product: product(package, "packageCode"),
        name: name(package, "name"),
        standard: standard(package),
        told: told(package),
    }
}

/// What a shop tells about a product. The fields are those of its documents (April 2026); they name
/// no product with calls, so that all are for data only.
fn told(package: &Value) -> ToldFacts {
    let mut told = ToldFacts::default();
    let places = told.read(package, "locationNetworkList", |listed| {
        listed.as_array().cloned()
    });
    let mut coverage = Vec::new();
    for place in places.unwrap_or_default() {
        let networks = told.networks(&place, "operatorList", "operatorName", "networkType");
        // Its older documents have no code of a place, but a product of one place names that.
        let country = match place.get("locationCode") {
            Some(_) => told.country(&place, "locationCode"),
            None => text(package, "location").and_then(|code| code.parse().ok()),
        };
        let Some(country) = country else {
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
    told.facts = Facts {
        kind: Some(PlanKind::Data),
        coverage: some(coverage),
        generations: some(told.generations(package, "speed")),
        activation: told.read(package, "activeType", |begins| match whole(begins)? {
            1 => Some(Activation::Installation),
            2 => Some(Activation::FirstUse),
            _ => None,
        }),
        unused_expires_days: told.read(package, "unusedValidTime", days),
        top_up: told.read(package, "supportTopUpType", |can| match whole(can)? {
            1 => Some(Extendable::No),
            2 => Some(Extendable::Yes),
            3 => Some(Extendable::ByDays),
            _ => None,
        }),
        fair_use: told.read(package, "fupPolicy", |policy| {
            Some(FairUse {
                applies: true,
                policy: Some(line(policy)?),
            })
        }),
        // 2 is by its API only, so a phone cannot send one.
        receives_sms: told.read(package, "smsStatus", |status| match whole(status)? {
            0 | 2 => Some(false),
            1 => Some(true),
            _ => None,
        }),
        exit_countries: told.read(package, "ipExport", exit_countries),
        ..Facts::default()
    };
    told.bounded()
}

/// The countries of texts such as `HK`, `NL/FR` and `Norway/NO`, which are all in its list.
fn exit_countries(exits: &Value) -> Option<Vec<Country>> {
    let parts = exits.as_str()?.split(['/', ',']).map(str::trim);
    let countries = parts.filter_map(|part| match part {
        // It is the usual name of the country, although it is not its code.
        "UK" => "GB".parse().ok(),
        code => code.parse().ok(),
    });
    let mut countries: Vec<Country> = countries.collect();
    countries.sort_unstable();
    countries.dedup();
    some(countries)
}

/// Reads what a product is; the price is in ten-thousandths already.
fn standard(package: &Value) -> Result<Standard, UnsuitableProduct> {
    let code =
        product(package, "packageCode").ok_or(UnsuitableProduct::Unreadable("packageCode"))?;
    if code.as_str().starts_with("TOPUP_") {
        return Err(UnsuitableProduct::TopUp);
    }
    let texts = ["name", "description"].map(|field| text(package, field));
    if needs_confirmation_code(texts.into_iter().flatten()) {
        return Err(UnsuitableProduct::ConfirmationCode);
    }
    // 1 is an amount of data for the whole time. The other types count by the day, and their orders
    // need a number of days.
    match number(package, "dataType") {
        Some(1) => {}
        Some(_) => return Err(UnsuitableProduct::DailyData),
        None => return Err(UnsuitableProduct::Unreadable("dataType")),
    }
    let unit =
        text(package, "durationUnit").ok_or(UnsuitableProduct::Unreadable("durationUnit"))?;
    if !unit.eq_ignore_ascii_case("day") {
        return Err(UnsuitableProduct::Period);
    }
    let location = text(package, "location").ok_or(UnsuitableProduct::Unreadable("location"))?;
    // Some products name parts of a country, too, such as an island, by codes of their own. These
    // are left out, because what a partner is promised must be certain.
    let countries = location
        .split(',')
        .filter_map(|code| code.trim().parse().ok());
    let countries: Vec<_> = countries.collect();
    if countries.is_empty() {
        return Err(UnsuitableProduct::Unreadable("location"));
    }
    let volume = number(package, "volume").and_then(|bytes| Data::megabytes(bytes / MEGABYTE));
    let data = volume.ok_or(UnsuitableProduct::Unreadable("volume"))?;
    let price = number(package, "price").map(Price);
    let price = price.filter(|price| price.0 <= MOST_PRICE);
    let currency = text(package, "currencyCode").and_then(|code| code.parse().ok());
    let cost = Cost {
        price: price.ok_or(UnsuitableProduct::Unreadable("price"))?,
        currency: currency.ok_or(UnsuitableProduct::Unreadable("currencyCode"))?,
    };
    let days = number(package, "duration").and_then(|days| days.try_into().ok());
    days.and_then(|days| Standard::new(countries, data, days, Some(cost)))
        .ok_or(UnsuitableProduct::Unreadable("duration"))
}

/// The highest price that makes sense, in ten-thousandths. A higher one is a mistake.
const MOST_PRICE: u64 = 1_000_000 * 10_000;

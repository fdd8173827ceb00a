//! The messages of the Airalo Partner API. What is not exactly as expected is unknown.

use std::collections::BTreeMap;

use domain::{ActivationCode, Iccid, PlacementId, esim_change::GiveBackCause};
use serde::Deserialize;
use serde_json::Number;
use store::esim_requests::Reading;
use time::PrimitiveDateTime;

use crate::providers::{
    extension::ProviderProfile,
    http::parse,
    lists::SoldPurchase,
    price::Price,
    provider::{
        Balance, BoughtUnits, Custody, EsimStatus, ProfileFault, ProviderUnit, ProviderUnitState,
        Trouble, filled, id_in,
    },
    text::{MOMENT, ProviderId, moment, one_line, start_by, text_or_none},
};

/// For how many days after its purchase an eSIM is taken to be usable if its operator does not say
/// it. Some operators recycle what nobody uses, often after about 90 days (Airalo's help for
/// consumers, September 2026).
const START_WITHIN: u16 = 90;
/// The SM-DP+ address and the activation code of all eSIMs of the test mode (three examples of
/// September 2026). Nobody can install them.
const TEST: (&str, &str) = ("lpa.airalo.com", "TEST");
/// The code with which a call from an address is refused that is not on the list of our account.
/// The token stays good (its page on errors, September 2026).
const FOREIGN_ADDRESS: u32 = 89;
/// The states of an order that has come to nothing.
const FAILURES: [&str; 2] = ["failed", "refunded"];
/// The message of a refusal because of a field. A refusal with another one is not understood.
pub(super) const INVALID: &str = "the parameter is invalid";

/// A number that the provider also writes as a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Amount {
    Number(Number),
    Text(String),
}

impl Amount {
    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Single {
    pub(super) data: AiraloOrder,
}

#[derive(Deserialize)]
pub(super) struct AiraloOrders {
    pub(super) data: Vec<AiraloOrder>,
}

/// An order, which buys one package.
#[derive(Deserialize)]
pub(super) struct AiraloOrder {
    id: u64,
    /// `sim` or `topup`.
    #[serde(rename = "type")]
    kind: Option<String>,
    pub(super) package_id: String,
    pub(super) description: Option<String>,
    quantity: Option<Amount>,
    #[serde(default, deserialize_with = "text_or_none")]
    created_at: Option<String>,
    /// What we pay. Not all examples have it; `price` is what consumers pay.
    net_price: Option<Amount>,
    #[serde(default)]
    sims: Vec<Sim>,
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Sim {
    id: u64,
    iccid: Option<String>,
    lpa: Option<String>,
    matching_id: Option<String>,
    confirmation_code: Option<String>,
}

#[derive(Deserialize)]
struct Status {
    slug: String,
}

impl AiraloOrder {
    /// Airalo's id of the order.
    pub(super) fn number(&self) -> String {
        self.id.to_string()
    }

    /// Whether the order says that it is not the purchase with our id.
    pub(super) fn is_for_another(&self, placement_id: PlacementId) -> bool {
        let ours = placement_id.to_string();
        self.description
            .as_ref()
            .is_some_and(|description| *description != ours)
    }

    /// Whether the order adds data to an eSIM, and so has none of its own.
    pub(super) fn is_top_up(&self) -> bool {
        self.kind.as_deref() == Some("topup")
    }

    /// The state of an order that is not paid, or whose money is given back.
    pub(super) fn failure(&self) -> Option<&str> {
        let slug = self.status.as_ref().map(|status| status.slug.as_str());
        slug.filter(|slug| FAILURES.contains(slug))
    }

    /// What we pay, if the order names it.
    pub(super) fn paid(&self) -> Option<Price> {
        Price::parse(&self.net_price.as_ref()?.text())
    }

    /// The order as an entry of the list of purchases.
    pub(super) fn sold(&self) -> Result<SoldPurchase, Trouble> {
        let quantity = self
            .quantity
            .as_ref()
            .and_then(|units| units.text().parse().ok());
        Ok(SoldPurchase {
            order_id: one_line(self.description.as_deref().unwrap_or_default()),
            reference: id_in("id", self.number())?,
            unit: None,
            at: self.created_at.as_deref().map(one_line),
            units: quantity
                .filter(|units| *units > 0)
                .ok_or_else(|| Trouble::unreadable("quantity of an order"))?,
            option: Some(id_in("package_id", self.package_id.clone())?),
            price: self.paid(),
        })
    }

    /// The last day on which the eSIMs can still be started. No order names it; the validity of
    /// its package begins with the start.
    fn start_by(&self, placement_id: PlacementId, install_window: Option<u16>) -> Option<String> {
        let created = self.created_at.as_deref();
        let created = created.and_then(|at| PrimitiveDateTime::parse(at, MOMENT).ok());
        let created = created.map(PrimitiveDateTime::date);
        let days = install_window.unwrap_or(START_WITHIN);
        start_by(created, placement_id, days, "created_at")
    }
}

impl Sim {
    /// Reads the state of an eSIM; the error is the name of the field that is unreadable.
    fn state(
        &self,
        order: &AiraloOrder,
        placement_id: PlacementId,
        install_window: Option<u16>,
    ) -> Result<ProviderUnitState, ProfileFault> {
        if let Some(slug) = order.failure() {
            return Ok(ProviderUnitState::Failed(format!(
                "the provider says {slug}"
            )));
        }
        let slug = order.status.as_ref().map(|status| status.slug.as_str());
        let profile = (
            filled(self.iccid.as_ref()),
            filled(self.lpa.as_ref()),
            filled(self.matching_id.as_ref()),
        );
        let (Some(iccid), Some(smdp), Some(code)) = profile else {
            return Ok(ProviderUnitState::Pending);
        };
        // Of an order that is refunded in part, it does not say which eSIM is; of another state
        // nobody knows what it means, because new ones appear.
        if let Some(slug) = slug.filter(|slug| *slug != "completed") {
            tracing::error!(
                provider.unit.id = self.id,
                provider.unit.state = one_line(slug),
                "the order of an eSIM that is not delivered yet is in a state in which it may be \
                 useless, so it is held"
            );
            return Err("status".into());
        }
        // The webhook has no field for a confirmation code, and without it the eSIM is useless.
        if filled(self.confirmation_code.as_ref()).is_some() {
            return Err(ProfileFault::ConfirmationCode);
        }
        let is_code_shared = (smdp, code) == TEST;
        if is_code_shared {
            tracing::warn!(
                provider.unit.id = self.id,
                "our account at Airalo is in its test mode, so nobody can install this eSIM; it is \
                 delivered all the same"
            );
        }
        Ok(ProviderUnitState::Ready(ProviderProfile {
            iccid: Iccid::parse(iccid).map_err(|_| "iccid")?,
            is_code_shared,
            code: ActivationCode::read(Some(smdp), code)
                .map_err(|error| ProfileFault::of_code(&error, "lpa or matching_id"))?,
            expired_date: order
                .start_by(placement_id, install_window)
                .ok_or("created_at")?,
        }))
    }
}

/// Reads orders as one purchase. If there are several with our id, something was bought twice; all
/// of their units are listed, and the surplus is logged where they are assigned. `install_window`
/// says for how many days after its purchase an eSIM of a package can be started.
pub(super) fn bought(
    placement_id: PlacementId,
    orders: Vec<AiraloOrder>,
    install_window: impl Fn(&str) -> Option<u16>,
) -> Result<BoughtUnits, Trouble> {
    let first = orders.iter().map(|order| order.id).min();
    let reference = first.map(|id| id_in("id", id.to_string())).transpose()?;
    let mut units = Vec::new();
    for order in orders {
        let product_id = id_in("package_id", order.package_id.clone())?;
        let window = install_window(&order.package_id);
        for sim in &order.sims {
            let unit_id = id_in("sims.id", sim.id.to_string())?;
            let state = ProviderUnitState::read(&unit_id, sim.state(&order, placement_id, window));
            units.push(ProviderUnit {
                unit_id,
                product_id: Some(product_id.clone()),
                product_alias: None,
                state,
            });
        }
    }
    Ok(BoughtUnits { reference, units })
}

#[derive(Deserialize)]
pub(super) struct AiraloAccount {
    data: Balances,
}

#[derive(Deserialize)]
struct Balances {
    balances: OneBalance,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OneBalance {
    available_balance: Available,
}

#[derive(Deserialize)]
struct Available {
    amount: f64,
    currency: String,
}

impl AiraloAccount {
    pub(super) fn balance(self) -> Balance {
        let Available { amount, currency } = self.data.balances.available_balance;
        Balance {
            amount,
            currency: one_line(&currency),
        }
    }
}

/// The data of an eSIM. Airalo counts in MB, and a package of 1 GB has 1024 of them (its examples,
/// September 2026).
const MB: f64 = 1_048_576.0;

#[derive(Deserialize)]
pub(super) struct AiraloUsage {
    data: Usage,
}

#[derive(Deserialize)]
struct Usage {
    /// MB.
    remaining: f64,
    total: f64,
    expired_at: Option<String>,
    /// Null if the eSIM is recycled.
    is_unlimited: Option<bool>,
    status: String,
}

impl AiraloUsage {
    /// The state of the eSIM. Airalo says whether its package was activated, which needs an
    /// installed eSIM; a package that is not active says nothing about the installation.
    pub(super) fn status(self) -> Result<EsimStatus, Trouble> {
        let Usage {
            remaining,
            total,
            expired_at,
            is_unlimited,
            status,
        } = self.data;
        let is_amount = |amount: f64| amount.is_finite() && (0.0..1e12).contains(&amount);
        if !is_amount(remaining) || !is_amount(total) {
            return Err(Trouble::unreadable(
                "remaining or total is no amount of data",
            ));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the amount is not negative and far from the largest number"
        )]
        let bytes = |megabytes: f64| (megabytes * MB).round() as u64;
        let is_active = matches!(status.as_str(), "ACTIVE" | "FINISHED");
        let is_begun = is_active || status == "EXPIRED";
        // The amounts of an unlimited package are 0 and to be ignored, and so are those of a
        // recycled eSIM.
        let is_recycled = status == "RECYCLED";
        let is_counted = !is_recycled && is_unlimited != Some(true);
        Ok(EsimStatus {
            reading: Reading {
                installed: is_active.then_some(true),
                data_used: is_counted.then(|| bytes((total - remaining).max(0.0))),
                data_total: is_counted.then(|| bytes(total)),
                ends_at: is_begun
                    .then_some(expired_at.as_deref().and_then(moment))
                    .flatten(),
                // Its figures are up to 20 minutes old, and an hour in the test mode (its pages of
                // September 2026), but it does not say how old these are.
                as_of: None,
                only_downloaded: false,
            },
            custody: if is_recycled {
                let recycled = "its operator has recycled the eSIM, so it cannot be used any more";
                Custody::Kept(recycled.to_owned())
            } else {
                Custody::Returnable
            },
            suspended: None,
        })
    }
}

/// The answer to a claim.
#[derive(Deserialize)]
pub(super) struct AiraloClaim {
    data: ClaimId,
}

#[derive(Deserialize)]
struct ClaimId {
    refund_id: Amount,
}

impl AiraloClaim {
    pub(super) fn id(&self) -> Result<ProviderId, Trouble> {
        id_in("refund_id", self.data.refund_id.text())
    }
}

/// What a claim calls the cause (its page on the request for a refund, September 2026).
pub(super) fn cause(cause: GiveBackCause) -> &'static str {
    match cause {
        GiveBackCause::InstallationFailure => "INSTALLATION_FAILURE",
        GiveBackCause::NoCoverage => "NO_COVERAGE",
        GiveBackCause::ChangeOfPlan => "CHANGE_OF_PLAN",
        GiveBackCause::WrongPurchase => "WRONG_PURCHASE",
        GiveBackCause::Other => "OTHERS",
    }
}

/// Whether the money of an eSIM was credited, by the order that has sold it. An order that is
/// refunded in part does not say which of its eSIMs is; neither it nor a new state is a verdict.
pub(super) fn custody(orders: &[AiraloOrder], iccid: &Iccid) -> Custody {
    let is_it = |sim: &Sim| {
        sim.iccid
            .as_deref()
            .and_then(|named| Iccid::parse(named).ok())
    };
    let mut sold = orders.iter().filter(|order| {
        let mut sims = order.sims.iter();
        !order.is_top_up() && sims.any(|sim| is_it(sim).as_ref() == Some(iccid))
    });
    let (Some(order), None) = (sold.next(), sold.next()) else {
        return Custody::ClaimUnshown("Airalo lists not one order of the eSIM".to_owned());
    };
    match order.status.as_ref().map(|status| status.slug.as_str()) {
        Some("refunded") => Custody::Returned,
        Some(slug) => Custody::ClaimUnshown(format!("the order of the eSIM is {}", one_line(slug))),
        None => Custody::ClaimUnshown("the order of the eSIM names no state".to_owned()),
    }
}

/// The state of an eSIM that Airalo says it does not know.
pub(super) fn not_known() -> EsimStatus {
    EsimStatus {
        reading: Reading::default(),
        custody: Custody::Kept("Airalo does not know the ICCID".to_owned()),
        suspended: None,
    }
}

/// The body of a 422, and of a 404.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum AiraloRefusal {
    Code {
        code: u32,
        reason: String,
    },
    /// Fields of our request are not allowed, each with the reason.
    Invalid {
        data: FieldFaults,
        meta: Meta,
    },
    /// There is no such thing.
    #[serde(skip)]
    Absent {
        meta: Meta,
    },
}

/// What is wrong with the fields of our request. Some calls answer with an empty list.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum FieldFaults {
    Fields(BTreeMap<String, String>),
    List(Vec<String>),
}

impl FieldFaults {
    pub(super) fn names_a_field(&self) -> bool {
        matches!(self, Self::Fields(fields) if !fields.is_empty())
    }
}

#[derive(Deserialize)]
pub(super) struct Meta {
    pub(super) message: String,
}

impl AiraloRefusal {
    /// The status and the message for the partner, each one short line.
    pub(super) fn text(&self) -> (String, String) {
        match self {
            Self::Code { code, reason } => (code.to_string(), one_line(reason)),
            Self::Invalid { data, meta } => {
                let faults: Vec<String> = match data {
                    FieldFaults::Fields(fields) => fields
                        .iter()
                        .map(|(field, fault)| format!("{field}: {fault}"))
                        .collect(),
                    FieldFaults::List(list) if list.is_empty() => vec![meta.message.clone()],
                    FieldFaults::List(list) => list.clone(),
                };
                ("422".to_owned(), one_line(&faults.join("; ")))
            }
            Self::Absent { meta } => ("404".to_owned(), one_line(&meta.message)),
        }
    }
}

/// Whether a refusal with status 403 says that our address is not on the list.
pub(super) fn is_foreign(body: &[u8]) -> bool {
    matches!(
        parse(body),
        Ok(AiraloRefusal::Code {
            code: FOREIGN_ADDRESS,
            ..
        })
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its operators say `install_window_days`, for example 1825 (pages of September 2026). The
    /// validity of a package begins with the first use, so it says nothing about this day.
    #[test]
    fn the_last_day_to_start_follows_from_the_install_window_and_not_from_the_validity() {
        let order = r#"{"id":7,"package_id":"P","validity":7,"created_at":"2026-11-20 23:59:59"}"#;
        let order: AiraloOrder = serde_json::from_str(order).unwrap();
        for (window, last) in [
            (Some(0), "2026-11-20"),
            (Some(30), "2026-12-20"),
            (Some(1825), "2031-11-19"),
            // Its help for consumers says that many operators wait about 90 days.
            (None, "2027-02-18"),
        ] {
            let start_by = order.start_by(PlacementId::new(), window);
            assert_eq!(start_by.as_deref(), Some(last), "{window:?}");
        }
    }

    /// A paid eSIM is not held because of the time from which its last day is only estimated.
    #[test]
    fn without_a_time_of_the_order_the_day_of_ours_counts() {
        let ours = "0199aabb-ccdd-7eee-8fff-001122334455".parse().unwrap();
        for created_at in ["null", "7", r#""soon""#] {
            let order = format!(r#"{{"id":7,"package_id":"P","created_at":{created_at}}}"#);
            let order: AiraloOrder = serde_json::from_str(&order).unwrap();
            let start_by = order.start_by(ours, None);
            assert_eq!(start_by.as_deref(), Some("2026-01-01"), "{created_at}");
        }
    }
}

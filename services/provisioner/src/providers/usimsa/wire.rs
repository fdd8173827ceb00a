//! The responses of a provider of this protocol, and how they are read.

use domain::{ActivationCode, Iccid};
use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use store::esim_requests::Reading;

use crate::providers::{
    extension::ProviderProfile,
    http::parse,
    provider::{
        Custody, DeliveredEsim, EsimStatus, ProfileFault, ProviderUnit, ProviderUnitState, Trouble,
        UnitFields, filled,
    },
    text::{day, moment, one_line},
};

#[derive(Deserialize)]
pub(super) struct UsimsaReply {
    /// If this is no success, neither `0000` nor an absence is believed; all other codes mean the
    /// same.
    #[serde(skip)]
    pub(super) status: StatusCode,
    pub(super) code: String,
    pub(super) message: Option<String>,
    pub(super) products: Option<Vec<UsimsaProduct>>,
    pub(super) usage: Option<Value>,
    device: Option<Value>,
    #[serde(rename = "installCount")]
    install_count: Option<Value>,
}

/// The data that an eSIM of USIMSA has used.
#[derive(Deserialize)]
pub(super) struct Daily {
    history: Vec<Day>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Day {
    usage_mb: Value,
}

/// The state of an eSIM of the sandbox.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UsimsaUsage {
    #[serde(rename = "topupId")]
    pub(super) unit_id: String,
    installed: bool,
    pub(super) canceled: bool,
    #[serde(default)]
    suspended: bool,
    used_bytes: u64,
    pub(super) total_bytes: u64,
    pub(super) ends_at: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UsimsaProduct {
    /// The provider's id of the unit. Its protocol calls it `topupId`; it is not one of our topup
    /// ids.
    #[serde(rename = "topupId")]
    pub(super) unit_id: String,
    pub(super) option_id: Option<String>,
    pub(super) iccid: Option<String>,
    pub(super) smdp: Option<String>,
    pub(super) activate_code: Option<String>,
    pub(super) expired_date: Option<String>,
    pub(super) status: Option<String>,
}

impl UsimsaReply {
    pub(super) fn read(status: StatusCode, body: &[u8]) -> Result<Self, Trouble> {
        match parse::<Self>(body) {
            Ok(reply) => Ok(Self { status, ..reply }),
            Err(trouble) if status.is_success() => Err(trouble),
            Err(_) => Err(Trouble::not_understood(format!("HTTP {}", status.as_u16()))),
        }
    }

    pub(super) fn is_success(&self) -> bool {
        self.status.is_success()
    }

    /// Whether a device has installed the eSIM, if the response says it.
    pub(super) fn is_installed(&self) -> Option<bool> {
        let device = self.device.as_ref();
        let at = device.and_then(|device| device.get("installTime")?.as_str());
        let is_timed = at.is_some_and(|at| !at.trim().is_empty());
        let count = self.install_count.as_ref().and_then(Value::as_u64);
        match (is_timed, count) {
            (true, _) => Some(true),
            (false, count) => count.map(|count| count > 0),
        }
    }
}

/// The bytes of a MB. No source says how USIMSA counts; a text such as `1.5GB` is taken for 1024 of
/// them.
const MEGABYTE: f64 = 1_048_576.0;

impl Daily {
    /// The data of all days.
    pub(super) fn bytes(&self) -> Result<u64, Trouble> {
        let days = self.history.iter().map(|day| megabytes(&day.usage_mb));
        let sum: Option<f64> = days.sum();
        let bytes = sum.map(|sum| sum * MEGABYTE);
        let bytes = bytes
            .filter(|bytes| *bytes < 1e18)
            .ok_or_else(|| Trouble::unreadable("usageMb is no amount of data"))?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the amount is not negative and far from the largest number"
        )]
        let bytes = bytes.round() as u64;
        Ok(bytes)
    }
}

/// An amount of data in MB: a number, or a text that may name the unit, such as `1.5GB`.
fn megabytes(amount: &Value) -> Option<f64> {
    let amount: f64 = match amount {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => {
            let text = text.trim().to_ascii_uppercase();
            match (text.strip_suffix("GB"), text.strip_suffix("MB")) {
                (Some(gigabytes), _) => gigabytes.trim().parse::<f64>().ok()? * 1024.0,
                (None, Some(megabytes)) => megabytes.trim().parse().ok()?,
                (None, None) => text.parse().ok()?,
            }
        }
        _ => return None,
    };
    (0.0..1e12).contains(&amount).then_some(amount)
}

impl UsimsaUsage {
    pub(super) fn status(&self, esim: &DeliveredEsim) -> Result<EsimStatus, Trouble> {
        if self.unit_id != esim.unit_id.as_str() {
            return Err(Trouble::not_understood("the response is another eSIM"));
        }
        let custody = if self.canceled {
            Custody::Returned
        } else if self.installed {
            Custody::Kept("the eSIM is installed".to_owned())
        } else {
            Custody::Returnable
        };
        Ok(EsimStatus {
            reading: Reading {
                installed: Some(self.installed),
                data_used: Some(self.used_bytes),
                data_total: Some(self.total_bytes),
                ends_at: self.installed.then(|| moment(&self.ends_at)).flatten(),
                as_of: None,
                only_downloaded: false,
            },
            custody,
            suspended: (!self.canceled).then_some(self.suspended),
        })
    }
}

/// The trouble for a code that is not in the table of its call.
pub(super) fn unknown_code(reply: &UsimsaReply) -> Trouble {
    Trouble::not_understood(code_said(reply))
}

pub(super) fn code_said(reply: &UsimsaReply) -> String {
    let message = reply.message.as_deref().unwrap_or_default();
    format!("code {}: {}", one_line(&reply.code), one_line(message))
}

/// Reads the units of a response. One bad id makes the whole response unreadable, and no unit of it
/// is used, because a damaged response cannot be trusted in part.
pub(super) fn units(products: Option<Vec<UsimsaProduct>>) -> Result<Vec<ProviderUnit>, Trouble> {
    const FIELDS: UnitFields = UnitFields {
        unit: "unit",
        unit_id: "topupId",
        product_id: "optionId",
    };
    let products = products.unwrap_or_default();
    let read = |(index, product): (usize, UsimsaProduct)| {
        let state = state(&product);
        FIELDS.read(index, product.unit_id, product.option_id, state)
    };
    products.into_iter().enumerate().map(read).collect()
}

/// Reads the state of a unit; the error is the name of the field that is unreadable. A unit counts
/// as ready when it has its whole profile, and not by its status, because the names of statuses
/// differ from account to account.
pub(super) fn state(product: &UsimsaProduct) -> Result<ProviderUnitState, ProfileFault> {
    let profile = (
        filled(product.iccid.as_ref()),
        filled(product.smdp.as_ref()),
        filled(product.activate_code.as_ref()),
        filled(product.expired_date.as_ref()),
    );
    if let (Some(iccid), Some(smdp), Some(code), Some(date)) = profile {
        return Ok(ProviderUnitState::Ready(ProviderProfile {
            iccid: Iccid::parse(iccid).map_err(|_| "iccid")?,
            code: ActivationCode::read(Some(smdp), code)
                .map_err(|error| ProfileFault::of_code(&error, "smdp or activateCode"))?,
            is_code_shared: false,
            expired_date: day(date).ok_or("expiredDate")?,
        }));
    }
    Ok(match product.status.as_deref() {
        Some(status @ ("FAILED" | "CANCELED" | "CANCELLED")) => {
            ProviderUnitState::Failed(format!("the provider says {status}"))
        }
        _ => ProviderUnitState::Pending,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{"topupId":"1","optionId":"o","iccid":"8982123456789012345F","smdp":"smdp.example",
                        "activateCode":"AB-12","expiredDate":"2026-12-31T00:00:00Z","status":"READY"}"#;

    fn product(text: &str) -> Result<ProviderUnitState, ProfileFault> {
        state(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn a_unit_is_ready_only_with_its_whole_profile() {
        let Ok(ProviderUnitState::Ready(ProviderProfile {
            iccid,
            code,
            expired_date,
            ..
        })) = product(WHOLE)
        else {
            panic!("not ready")
        };
        assert_eq!(iccid.as_str(), "8982123456789012345");
        assert_eq!(code.download_link(), "LPA:1$smdp.example$AB-12");
        assert_eq!(expired_date, "2026-12-31");
        for field in ["iccid", "smdp", "activateCode", "expiredDate"] {
            let part = WHOLE.replace(field, "other");
            assert!(
                matches!(product(&part), Ok(ProviderUnitState::Pending)),
                "{field}"
            );
        }
    }

    #[test]
    fn an_unreadable_profile_names_its_field() {
        let long = "A".repeat(256);
        for (from, to, field) in [
            ("AB-12", "AB$12", "smdp or activateCode"),
            ("AB-12", &long, "smdp or activateCode"),
            ("AB-12", r"AB\u0000", "smdp or activateCode"),
            ("smdp.example", "smdp/example", "smdp or activateCode"),
            (
                "smdp.example",
                r"smdp.\u202eexample",
                "smdp or activateCode",
            ),
            ("8982123456789012345F", "89821234567890123", "iccid"),
            ("8982123456789012345F", "898212345678901234\u{664}", "iccid"),
            ("2026-12-31T00:00:00Z", "9999-99-99", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-02-29", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-13-01", "expiredDate"),
            ("2026-12-31T00:00:00Z", "0000-00-00", "expiredDate"),
            ("2026-12-31T00:00:00Z", "0000-01-01", "expiredDate"),
            ("2026-12-31T00:00:00Z", "-026-12-31", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-12-3", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-12-311", "expiredDate"),
            ("2026-12-31T00:00:00Z", "31.12.2026", "expiredDate"),
            ("2026-12-31T00:00:00Z", "2026-12-3ä", "expiredDate"),
        ] {
            let odd = WHOLE.replace(from, to);
            assert_eq!(
                product(&odd).unwrap_err(),
                ProfileFault::Field(field),
                "{odd}"
            );
        }
        for date in [
            "2026-12-31",
            "2028-02-29 23:59:59",
            "9999-12-31T00:00:00.000+09:00",
        ] {
            let whole = WHOLE.replace("2026-12-31T00:00:00Z", date);
            let Ok(ProviderUnitState::Ready(profile)) = product(&whole) else {
                panic!("{date} is not accepted")
            };
            assert_eq!(profile.expired_date, &date[..10]);
        }
    }

    #[test]
    fn failed_units_are_failed() {
        let failed = product(r#"{"topupId":"1","optionId":"o","status":"FAILED"}"#);
        assert!(matches!(failed, Ok(ProviderUnitState::Failed(_))));
        let unknown = product(r#"{"topupId":"1","optionId":"o","status":"SOMETHING"}"#);
        assert!(matches!(unknown, Ok(ProviderUnitState::Pending)));
    }
}

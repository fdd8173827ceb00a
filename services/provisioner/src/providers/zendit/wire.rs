//! The messages of Zendit. Their fields and states are those of the models that Zendit generates
//! from its `OpenAPI` description (node-sdk 1.9.0, March 2026; php-sdk 1.8.0, September 2025) and
//! of its reference (a print of 2025). New fields and states have appeared since, so unknown fields
//! are ignored, and a unit in an unknown state is held.

use domain::{ActivationCode, Iccid, PlacementId};
use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};
use store::esim_requests::Reading;
use time::{Date, OffsetDateTime, format_description::well_known::Rfc3339};

use crate::providers::{
    extension::{AddedExtension, ExtensionSeen, ProviderProfile, under_way},
    http::parse,
    lists::{ListPage, PurchasePeriod, SoldPurchase},
    price::Price,
    provider::{
        BadCallback, Balance, Custody, EsimStatus, Hint, ProfileFault, ProviderUnit,
        ProviderUnitState, Trouble, filled, id_in,
    },
    text::{DAY, day, one_line, start_by, text_or_none},
};

/// The entries of one page of a list, the most that are allowed (its reference, 2025).
pub(super) const PAGE: u32 = 1_024;
/// For how long after its purchase an eSIM is taken to be usable. Zendit does not say it; it is
/// what Airalo says of its operators.
const START_WITHIN: u16 = 90;
/// The code of a refusal because there is no such thing, with status 404 (its page on errors, and
/// the reference of `GET /esim/purchases/{transactionId}`).
const NOT_FOUND: &str = "NOT_FOUND";
/// The ten-thousandths in which a [`Price`] counts.
const PARTS: u128 = 10_000;
/// The bytes of a GB, as our catalogue counts them. Zendit does not say how it does.
const GB: f64 = 1_073_741_824.0;

/// What the state of a purchase or of a refund means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZenditState {
    /// It is under way.
    Open,
    Done,
    /// It has ended without effect, and reserved money is given back.
    Failed,
    Unknown,
}

impl ZenditState {
    pub(super) fn of(status: &str) -> Self {
        match status {
            "ACCEPTED" | "PENDING" | "AUTHORIZED" | "IN_PROGRESS" => Self::Open,
            "DONE" => Self::Done,
            "FAILED" => Self::Failed,
            _ => Self::Unknown,
        }
    }
}

/// A request that is not carried out, in the form of the protocol.
#[derive(Deserialize)]
struct ErrorBody {
    #[serde(rename = "errorCode")]
    code: String,
    message: String,
}

/// A refusal with its status.
pub(super) struct ZenditRefusal {
    status: StatusCode,
    /// One short line.
    pub(super) code: String,
    /// One short line.
    pub(super) message: String,
}

impl ZenditRefusal {
    pub(super) fn read(status: StatusCode, body: &[u8]) -> Result<Self, Trouble> {
        // It must be an object; serde would take a list of its fields, too.
        let object = parse::<Map<String, Value>>(body).ok().map(Value::Object);
        let read: Option<ErrorBody> = object.and_then(|body| serde_json::from_value(body).ok());
        let body = read.filter(|body| !body.code.is_empty());
        let body =
            body.ok_or_else(|| Trouble::not_understood(format!("HTTP {}", status.as_u16())))?;
        Ok(Self {
            status,
            code: one_line(&body.code),
            message: one_line(&body.message),
        })
    }

    /// Whether it says that what the path or the request names does not exist. Status and code must
    /// both say so.
    pub(super) fn is_absence(&self) -> bool {
        self.status == StatusCode::NOT_FOUND && self.code == NOT_FOUND
    }

    /// The trouble of a call for which it is no definite response.
    pub(super) fn trouble(&self) -> Trouble {
        Trouble::not_understood(format!(
            "HTTP {}, {}: {}",
            self.status.as_u16(),
            self.code,
            self.message
        ))
    }
}

/// The answer to a purchase.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Accepted {
    pub(super) status: String,
    pub(super) transaction_id: String,
}

/// A purchase.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Purchased {
    pub(super) transaction_id: String,
    status: String,
    pub(super) offer_id: Option<String>,
    #[serde(default, deserialize_with = "text_or_none")]
    created_at: Option<String>,
    confirmation: Option<Confirmation>,
    error: Option<PurchaseError>,
    refund: Option<Refund>,
    cost: Option<u64>,
    cost_currency_divisor: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Confirmation {
    iccid: Option<String>,
    smdp_address: Option<String>,
    activation_code: Option<String>,
}

#[derive(Deserialize)]
struct PurchaseError {
    code: Option<String>,
    message: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Refund {
    pub(super) status: String,
}

impl Refund {
    /// Its state in words.
    pub(super) fn said(&self) -> String {
        format!("the refund is {}", one_line(&self.status))
    }
}

impl Purchased {
    /// The only unit of the purchase. Its id is our id of the purchase, because Zendit has no other
    /// one.
    pub(super) fn unit(self) -> Result<ProviderUnit, Trouble> {
        let state = self.state();
        let unit_id = id_in("transactionId", self.transaction_id)?;
        let offer_id = self.offer_id.filter(|id| !id.is_empty());
        let product_id = offer_id.map(|id| id_in("offerId", id)).transpose()?;
        Ok(ProviderUnit {
            state: ProviderUnitState::read(&unit_id, state),
            unit_id,
            product_id,
            product_alias: None,
        })
    }

    /// What the refund of the purchase has come to, if there is one.
    fn refund(&self) -> Option<ZenditState> {
        let refund = self.refund.as_ref()?;
        Some(ZenditState::of(&refund.status))
    }

    fn state(&self) -> Result<ProviderUnitState, ProfileFault> {
        match ZenditState::of(&self.status) {
            ZenditState::Open => return Ok(ProviderUnitState::Pending),
            ZenditState::Failed => return Ok(ProviderUnitState::Failed(self.failure())),
            ZenditState::Unknown => return Err("status".into()),
            ZenditState::Done => {}
        }
        match self.refund() {
            // A refund that has failed leaves the eSIM as it is.
            None | Some(ZenditState::Failed) => {}
            Some(ZenditState::Done) => {
                return Ok(ProviderUnitState::Failed("it is refunded".into()));
            }
            Some(ZenditState::Open | ZenditState::Unknown) => return Err("refund".into()),
        }
        let Some(confirmation) = &self.confirmation else {
            return Ok(ProviderUnitState::Pending);
        };
        let profile = (
            filled(confirmation.iccid.as_ref()),
            filled(confirmation.smdp_address.as_ref()),
            filled(confirmation.activation_code.as_ref()),
        );
        let (Some(iccid), Some(smdp), Some(code)) = profile else {
            return Ok(ProviderUnitState::Pending);
        };
        Ok(ProviderUnitState::Ready(ProviderProfile {
            iccid: Iccid::parse(iccid).map_err(|_| "iccid")?,
            is_code_shared: false,
            code: ActivationCode::read(Some(smdp), code)
                .map_err(|error| ProfileFault::of_code(&error, "smdpAddress or activationCode"))?,
            expired_date: self.start_by().ok_or("createdAt")?,
        }))
    }

    /// The last day on which the eSIM can still be started, which Zendit does not name.
    fn start_by(&self) -> Option<String> {
        let created = self.created_at.as_deref().and_then(day);
        let created = created.and_then(|day| Date::parse(&day, DAY).ok());
        let ours = self.transaction_id.parse().ok()?;
        start_by(created, ours, START_WITHIN, "createdAt")
    }

    /// What became of the purchase as a plan for the eSIM with this ICCID.
    pub(super) fn extension(self, iccid: &Iccid) -> Result<ExtensionSeen, Trouble> {
        let refused = |status: &str, message: String| ExtensionSeen::Refused {
            status: status.to_owned(),
            message,
        };
        match ZenditState::of(&self.status) {
            ZenditState::Open => return Err(under_way(&self.status)),
            ZenditState::Failed => return Ok(refused("FAILED", self.failure())),
            ZenditState::Unknown => {
                return Err(Trouble::unreadable("the state of the purchase"));
            }
            ZenditState::Done => {}
        }
        match self.refund() {
            None | Some(ZenditState::Failed) => {}
            Some(ZenditState::Done) => {
                return Ok(refused("FAILED", "the purchase is refunded".to_owned()));
            }
            Some(ZenditState::Open | ZenditState::Unknown) => {
                return Err(Trouble::not_understood("the refund has not ended yet"));
            }
        }
        let confirmation = self.confirmation.as_ref();
        let named = confirmation.and_then(|one| filled(one.iccid.as_ref()));
        let code = confirmation.and_then(|one| filled(one.activation_code.as_ref()));
        if named.is_none() && code.is_some() {
            return Err(Trouble::unreadable("the ICCID of a profile"));
        }
        let is_it = |named: &str| Iccid::parse(named).is_ok_and(|named| named == *iccid);
        if named.is_none_or(is_it) {
            return Ok(ExtensionSeen::Added(AddedExtension::default()));
        }
        // The provider has sold another eSIM.
        match self.state() {
            Ok(ProviderUnitState::Ready(profile)) => Ok(ExtensionSeen::Added(AddedExtension {
                reference: Some(id_in("transactionId", self.transaction_id)?),
                profile: Some(profile),
            })),
            _ => Err(Trouble::unreadable("the profile of another eSIM")),
        }
    }

    /// Why the purchase has failed.
    fn failure(&self) -> String {
        let said = |error: &PurchaseError| {
            let code = error.code.as_deref().unwrap_or_default();
            let message = error.message.as_deref().unwrap_or_default();
            one_line(&format!("the provider says FAILED: {code} {message}"))
        };
        let said = self.error.as_ref().map(said);
        said.unwrap_or_else(|| "the provider says FAILED".into())
    }

    /// The purchase as an entry of the list of purchases.
    fn sold(self) -> Result<SoldPurchase, Trouble> {
        let price = self
            .cost
            .zip(self.cost_currency_divisor)
            .and_then(|(cost, divisor)| minor(cost, divisor));
        Ok(SoldPurchase {
            order_id: one_line(&self.transaction_id),
            reference: id_in("transactionId", self.transaction_id)?,
            unit: None,
            at: self.created_at.as_deref().map(one_line),
            units: 1,
            option: self.offer_id.map(|id| id_in("offerId", id)).transpose()?,
            price,
        })
    }

    /// Whether the purchase may be one of this time. One whose time cannot be read may be.
    fn is_within(&self, span: PurchasePeriod) -> bool {
        let created = self.created_at.as_deref();
        let created = created.and_then(time);
        created.is_none_or(|at| (span.since..=span.until).contains(&at))
    }
}

/// The moment of a time. The form is not documented; parts of a second and any zone are read.
fn time(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}

/// An amount of the smallest parts of a currency, such as cents, of which `divisor` are its unit.
/// It is rounded up, so that nothing looks cheaper than it is.
pub(super) fn minor(amount: u64, divisor: u64) -> Option<Price> {
    let parts = u128::from(amount) * PARTS;
    let divisor = (divisor > 0).then_some(u128::from(divisor))?;
    parts.div_ceil(divisor).try_into().ok().map(Price)
}

#[derive(Deserialize)]
struct PurchaseList {
    list: Vec<Purchased>,
    total: u64,
}

/// The number of the page after this one of a list with so many entries; `None` after the last one.
pub(super) fn next(page: u32, total: u64) -> Option<u32> {
    (u64::from(page) * u64::from(PAGE) < total).then(|| page.saturating_add(1))
}

/// Reads a page of the list of purchases. What has failed was not sold.
pub(super) fn sold(
    body: &[u8],
    span: PurchasePeriod,
    page: u32,
) -> Result<ListPage<SoldPurchase>, Trouble> {
    let listed: PurchaseList = parse(body)?;
    let ours = listed
        .list
        .into_iter()
        .filter(|one| ZenditState::of(&one.status) != ZenditState::Failed && one.is_within(span));
    let entries: Result<Vec<SoldPurchase>, Trouble> = ours.map(Purchased::sold).collect();
    Ok(ListPage {
        entries: entries?,
        next: next(page, listed.total),
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ZenditAccount {
    available_balance: i64,
    currency: String,
    currency_divisor: u32,
}

impl ZenditAccount {
    pub(super) fn balance(self) -> Result<Balance, Trouble> {
        if self.currency_divisor == 0 {
            return Err(Trouble::unreadable("currencyDivisor is 0"));
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "a balance is far below the 9 * 10^15 cents from which digits are lost"
        )]
        let amount = self.available_balance as f64 / f64::from(self.currency_divisor);
        Ok(Balance {
            amount,
            currency: one_line(&self.currency),
        })
    }
}

/// What is left of the plans of an eSIM.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plans {
    first_installed_at: Option<String>,
    list: Vec<Plan>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Plan {
    iccid: String,
    end_at: Option<String>,
    start_at: Option<String>,
    #[serde(rename = "initialDataGB")]
    initial: Option<f64>,
    #[serde(rename = "remainingDataGB")]
    remaining: Option<f64>,
    unlimited: Option<bool>,
}

impl Plans {
    /// What became of the eSIM of a purchase. Zendit names the time of the installation, and of the
    /// begin of a plan, which needs an installed eSIM. Without either it says nothing about it.
    pub(super) fn status(
        self,
        purchased: &Purchased,
        iccid: &Iccid,
    ) -> Result<EsimStatus, Trouble> {
        if self.list.iter().any(|plan| plan.iccid != iccid.as_str()) {
            return Err(Trouble::not_understood("the response is another eSIM"));
        }
        let is_begun = |plan: &Plan| filled(plan.start_at.as_ref()).is_some();
        let is_installed =
            filled(self.first_installed_at.as_ref()).is_some() || self.list.iter().any(is_begun);
        let refund = purchased.refund.as_ref();
        let custody = match refund.map(|refund| (ZenditState::of(&refund.status), refund)) {
            Some((ZenditState::Done, _)) => Custody::Returned,
            Some((ZenditState::Failed, _)) => Custody::Kept("its refund has failed".to_owned()),
            Some((ZenditState::Open | ZenditState::Unknown, refund)) => {
                Custody::Claimed(refund.said())
            }
            None if is_installed => Custody::Kept("the eSIM is installed".to_owned()),
            None => Custody::Returnable,
        };
        let (data_used, data_total) = self.data().unzip();
        // With several plans, the last one to end says until when the eSIM can be used. One without
        // an end has not begun, so it will end after all others.
        let ends = self.list.iter().map(|plan| plan.end_at.as_deref());
        let ends: Option<Vec<_>> = ends.map(|end| end.and_then(time)).collect();
        Ok(EsimStatus {
            reading: Reading {
                installed: is_installed.then_some(true),
                data_used,
                data_total,
                ends_at: ends.and_then(|ends| ends.into_iter().max()),
                as_of: None,
                only_downloaded: false,
            },
            custody,
            suspended: None,
        })
    }

    /// The bytes that are used, and all; `None` if a plan is unlimited or its data is not told.
    fn data(&self) -> Option<(u64, u64)> {
        let is_amount = |amount: &f64| amount.is_finite() && (0.0..1e9).contains(amount);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the amount is not negative and far from the largest number"
        )]
        let bytes = |amount: f64| (amount * GB).round() as u64;
        let mut all = None;
        for plan in &self.list {
            if plan.unlimited == Some(true) {
                return None;
            }
            let initial = plan.initial.filter(is_amount).map(bytes)?;
            let left = plan.remaining.filter(is_amount).map(bytes)?;
            let (used, total) = all.unwrap_or((0, 0));
            all = Some((used + initial.saturating_sub(left), total + initial));
        }
        all
    }
}

/// A callback. It is the whole purchase, but it is not authenticated, so only the id is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Callback {
    transaction_id: String,
}

/// What a callback tells us. An id that is not of our form is that of a purchase which something
/// else has made with this account.
pub(super) fn callback(body: &[u8]) -> Result<Hint, BadCallback> {
    let callback: Callback = serde_json::from_slice(body).map_err(|_| BadCallback::Unreadable)?;
    let placement_id: Option<PlacementId> = callback.transaction_id.parse().ok();
    Ok(placement_id.map_or(Hint::Nothing, Hint::Purchase))
}

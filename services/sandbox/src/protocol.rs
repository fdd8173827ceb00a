//! The wire format of the USIMSA protocol, as the sandbox serves it.
//!
//! An error of the business, such as an unknown order, has HTTP status 200 and a code in the body.
//! The provisioner has definitions of its own, so a mistake in either of them shows up in the
//! tests.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// The codes of answers. Those that are marked "made up" exist only at the sandbox, because we do
/// not know the code that the protocol uses for the case.
pub mod code {
    pub const OK: &str = "0000";
    /// The request does not follow the protocol. Made up.
    pub const MALFORMED: &str = "9000";
    /// A product is not on sale.
    pub const INVALID_PRODUCT: &str = "9001";
    /// There is no such order. Made up.
    pub const NOT_FOUND: &str = "9002";
    /// The order id was processed before.
    pub const DUPLICATE: &str = "9003";
    /// A product is out of stock. Made up.
    pub const OUT_OF_STOCK: &str = "9005";
    /// In a cancellation: there is no such topup.
    pub const NO_TOPUP: &str = "9001";
    /// In a cancellation: the eSIM was cancelled before.
    pub const CANCELED_BEFORE: &str = "9002";
    /// In a cancellation: the eSIM is installed.
    pub const INSTALLED: &str = "9004";
    /// In an extension or a suspension: the state of the eSIM does not allow it. Made up.
    pub const OVER: &str = "9006";
    /// In a query: there is no such topup.
    pub const QUERY_NO_TOPUP: &str = "1001";
    /// In a query: the eSIM has used no data yet.
    pub const QUERY_UNUSED: &str = "1002";
    /// In a query: the eSIM is cancelled.
    pub const QUERY_CANCELED: &str = "1003";
    /// Too many requests; HTTP status 429 with `Retry-After`. Made up.
    pub const RATE_LIMITED: &str = "9011";
    /// Authentication failed; the only code with HTTP status 401. Made up.
    pub const UNAUTHORIZED: &str = "9010";
    /// The provider failed, and may have bought something; HTTP status 500.
    pub const SERVER_ERROR: &str = "9999";
}

/// Body of `POST /api/v2/order`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OrderBody {
    /// The caller's id of the order; one id buys once.
    pub order_id: String,
    pub products: Vec<Product>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Product {
    pub option_id: String,
    pub qty: u32,
}

/// The body of every answer that lists products.
#[derive(Serialize)]
pub struct ProductList<T> {
    pub products: Vec<T>,
    pub code: &'static str,
    pub message: Cow<'static, str>,
}

impl<T> ProductList<T> {
    pub fn new(
        products: Vec<T>,
        code: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            products,
            code,
            message: message.into(),
        }
    }
}

/// The body of an answer without products.
#[derive(Serialize)]
pub struct Status {
    pub code: &'static str,
    pub message: Cow<'static, str>,
}

/// A unit in the answer to a purchase.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BoughtUnit<'a> {
    pub topup_id: String,
    pub option_id: &'a str,
}

/// A unit in the answer to `GET /api/v2/order/{orderId}`. The fields of the profile are present if
/// `status` is `READY`. The optional field `qrCodeImgUrl` is left out, because it would repeat the
/// activation code.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnitAnswer<'a> {
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    pub topup_id: String,
    pub option_id: &'a str,
    pub status: UnitStatus,
    #[serde(flatten)]
    pub profile: Option<ProfileAnswer>,
}

/// The body of a callback: a unit that has become ready.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Callback<'a> {
    pub topup_id: String,
    pub option_id: &'a str,
    #[serde(flatten)]
    pub profile: ProfileAnswer,
    /// The answer to `GET` spells this field `qrCodeImgUrl`.
    pub qrcode_img_url: String,
}

/// The body of the answer to `GET /api/v2/topup/{topupId}/usage/daily`.
#[derive(Serialize)]
pub struct DailyAnswer {
    pub code: &'static str,
    pub message: &'static str,
    pub usage: DailyUsage,
}

#[derive(Serialize)]
pub struct DailyUsage {
    pub history: Vec<DayUsage>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DayUsage {
    pub date: String,
    pub usage_mb: u64,
}

/// Body of `POST /api/v2/extend`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtendBody {
    /// The caller's id of the extension. USIMSA has none.
    #[serde(default)]
    pub extension_id: String,
    pub topup_id: String,
    pub option_id: String,
}

/// The body of the answer to it. The fields of a profile are there if another eSIM was sold.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtendAnswer {
    pub code: &'static str,
    pub message: &'static str,
    /// `YYYY-MM-DD`, of the eSIM that was extended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expired_date: Option<String>,
    /// Of the other eSIM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topup_id: Option<String>,
    #[serde(flatten)]
    pub profile: Option<ProfileAnswer>,
}

/// The body of the answer to `GET /api/v2/extend/{extensionId}`, which only the sandbox has.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionAnswer {
    pub code: &'static str,
    pub message: &'static str,
    pub extension_id: String,
    /// The eSIM that was to be extended.
    pub topup_id: String,
    pub option_id: String,
    /// `READY` once it has taken effect.
    pub status: UnitStatus,
    /// Of the other eSIM, if one was sold.
    #[serde(flatten)]
    pub profile: Option<ProfileAnswer>,
}

/// The body of the answer to `GET /api/v2/topup/{topupId}/extensions`, which only the sandbox has.
#[derive(Serialize)]
pub struct ExtensionsAnswer {
    pub code: &'static str,
    pub message: &'static str,
    pub extensions: Vec<ListedExtension>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedExtension {
    pub option_id: String,
    pub name: &'static str,
    pub bytes: u64,
    pub days: i64,
}

/// The body of the answer to `GET /api/v2/topup/{topupId}`.
#[derive(Serialize)]
pub struct TopupAnswer {
    pub code: &'static str,
    pub message: &'static str,
    pub topup: ShownTopup,
}

/// An eSIM; times are without a zone, which means UTC.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShownTopup {
    pub topup_id: String,
    pub create_time: String,
    pub active_time: String,
    pub expire_time: String,
    /// MB.
    pub usage: u64,
    pub status: &'static str,
    pub activation_status: &'static str,
}

/// The body of the answer to `GET /api/v2/iccid/{iccid}/device`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceAnswer {
    pub code: &'static str,
    pub message: &'static str,
    /// `None` if no device has installed the eSIM.
    pub device: Option<InstallingDevice>,
    pub install_count: u32,
    /// Without a zone, which means UTC.
    pub update_time: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InstallingDevice {
    pub install_time: String,
    pub install_device: &'static str,
    pub eid: String,
}

/// The body of the answer to `GET /api/v2/usage/{topupId}`, which only the sandbox has.
#[derive(Serialize)]
pub struct UsageAnswer {
    pub code: &'static str,
    pub message: &'static str,
    pub usage: UnitUsage,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnitUsage {
    pub topup_id: String,
    pub installed: bool,
    pub canceled: bool,
    pub suspended: bool,
    pub used_bytes: u64,
    pub total_bytes: u64,
    #[serde(with = "time::serde::rfc3339")]
    pub ends_at: OffsetDateTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum UnitStatus {
    Pending,
    Ready,
    Failed,
    Canceled,
}

/// The data that installs an eSIM. It has no `Debug`, because the activation code must not get into
/// a log.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProfileAnswer {
    /// 20 digits, of which the last one is the check digit by the Luhn algorithm.
    pub iccid: String,
    pub smdp: &'static str,
    /// 32 upper-case hexadecimal digits.
    pub activate_code: String,
    /// `LPA:1$<smdp>$<activateCode>`.
    pub download_link: String,
    /// `YYYY-MM-DD`.
    pub expired_date: String,
}

//! An extension: more data or days for an eSIM that is delivered.

use serde::{Deserialize, Serialize};
use time::{OffsetDateTime, serde::rfc3339};

/// What the provider said of an eSIM just before an attempt to extend it, and what the package adds
/// to it. Where nothing at the provider names the attempt, a later look is compared with it. Each
/// part is empty if the provider does not say it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// All data of the eSIM, in bytes.
    #[serde(default)]
    pub data_total: Option<u64>,
    /// For how many days the plan of the eSIM is, whether or not it has begun.
    #[serde(default)]
    pub days_total: Option<u32>,
    /// When the plan of the eSIM ends, or, before its start, when it can no longer be started.
    #[serde(default, with = "rfc3339::option")]
    pub ends_at: Option<OffsetDateTime>,
    /// The provider's ids of the packages of the eSIM.
    #[serde(default)]
    pub packages: Vec<String>,
    /// What the package adds, in bytes.
    #[serde(default)]
    pub adds_data: Option<u64>,
    #[serde(default)]
    pub adds_days: Option<u32>,
}

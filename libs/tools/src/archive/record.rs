//! What the database knows of an archive.

use std::{collections::BTreeMap, time::Duration};

use pg::seconds;
use time::OffsetDateTime;
use uuid::Uuid;

/// How long an external id is reserved before its order may be deleted. A statement that stores
/// orders and does not see the reservation yet began before it. Such a statement ends within 11 s
/// (the longest `DATABASE_TIMEOUT` and the 2 s after which its connection is closed), and until
/// then it still finds the order itself.
pub const GRACE: Duration = Duration::from_secs(20);

/// The grace in the form of a parameter.
pub(super) fn grace() -> f64 {
    seconds(GRACE)
}

/// One archive, as the database knows it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Archive {
    pub archive: i32,
    /// Where its folder was when it was written.
    pub folder: String,
    #[serde(with = "time::serde::rfc3339")]
    pub began_at: OffsetDateTime,
    /// `None` while the run is under way, or after it was interrupted.
    #[serde(with = "time::serde::rfc3339::option")]
    pub completed_at: Option<OffsetDateTime>,
    /// Orders from before this time are archived.
    #[serde(with = "time::serde::rfc3339")]
    pub ordered_before: OffsetDateTime,
    /// The number of orders that were moved into it.
    pub orders: i64,
    /// How many of them were restored since.
    pub restored: i64,
    /// The times of the oldest and of the newest order.
    #[serde(with = "time::serde::rfc3339::option")]
    pub first_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub last_at: Option<OffsetDateTime>,
    /// What is committed of each file, by its name.
    pub files: BTreeMap<String, FileState>,
    /// The ids of the master keys that its profiles and responses of endpoints need.
    pub keys: Vec<String>,
    pub manifest_sha256: Option<String>,
    #[serde(skip)]
    pub reserved_to: Uuid,
    #[serde(skip)]
    pub moved_to: Uuid,
}

/// The part of a file whose rows are committed as moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FileState {
    pub bytes: u64,
    pub rows: u64,
}

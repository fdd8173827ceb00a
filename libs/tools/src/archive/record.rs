//! What the database knows of an archive.

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

/// How long an external id is reserved before its order may be deleted. A statement that stores
/// orders and does not see the reservation yet began before it. Such a statement ends within 11 s
/// (the longest `DATABASE_TIMEOUT` and the 2 s after which its connection is closed), and until
/// then it still finds the order itself.
pub const GRACE: Duration = Duration::from_secs(20);

/// One archive: a file of finished orders.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Archive {
    pub archive: i32,
    /// Where the file was stored: a path or the URL of an object.
    pub file: String,
    #[serde(with = "time::serde::rfc3339")]
    pub began_at: OffsetDateTime,
    /// `None` while its orders are reserved and still in the tables.
    #[serde(with = "time::serde::rfc3339::option")]
    pub completed_at: Option<OffsetDateTime>,
    /// The first and the last order that were reserved for it.
    pub first_order: Uuid,
    pub last_order: Uuid,
    /// The number of orders in it.
    pub orders: i64,
    pub sha256: Option<String>,
}

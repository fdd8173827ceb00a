//! The manifest of an archive, and the names of its files.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// What an archive holds, and the sums to check it by.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    pub archive: i32,
    /// The version of the program that completed the archive.
    pub version: String,
    /// The version of the database's schema.
    pub schema: i64,
    #[serde(with = "time::serde::rfc3339")]
    pub began_at: OffsetDateTime,
    /// Orders from before this time were archived.
    #[serde(with = "time::serde::rfc3339")]
    pub ordered_before: OffsetDateTime,
    pub orders: u64,
    /// The times and the ids of the oldest and of the newest order.
    #[serde(with = "time::serde::rfc3339::option")]
    pub first_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub last_at: Option<OffsetDateTime>,
    pub first_order: Option<String>,
    pub last_order: Option<String>,
    /// The ids of the master keys for profiles without which the encrypted values cannot be read.
    pub keys: Vec<String>,
    pub files: Vec<ManifestFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    pub name: String,
    pub table: String,
    pub rows: u64,
    pub bytes: u64,
    pub sha256: String,
}

pub fn file_name(table: &str) -> String {
    format!("{table}.csv.gz")
}

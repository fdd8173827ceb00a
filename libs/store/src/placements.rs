//! Placements: claimed by provisioners, settled in batches.

mod claim;
mod settle;

use std::time::Duration;

pub use claim::{Claim, Claimed, ClaimedTopup, claim};
pub use settle::{Outcome, Progress, Settled, Settlement, Unit, settle};

/// The lease of a delivery that a readiness event announces: redrive picks it up afterwards.
pub const ANNOUNCED: Duration = Duration::from_secs(30);

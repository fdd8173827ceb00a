//! Placements: claimed by provisioners, settled in batches.

mod claim;
mod settle;

use std::time::Duration;

pub use claim::{Claim, Claimed, ClaimedTopup, claim};
pub use settle::{Outcome, Progress, Settled, Settlement, Unit, settle};

/// How long a delivery that is announced by a readiness event waits for it, and is left to it, before
/// the notifier takes it up by itself.
pub const ANNOUNCED: Duration = Duration::from_secs(30);

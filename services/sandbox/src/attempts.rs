//! Counts the attempts of each order id, for options whose first attempts fail, such as
//! `flapping` and `rate-limited`.
//!
//! The counts are in memory only, so a restart of the sandbox forgets them, and the next attempt is
//! the first one again.

use std::{collections::HashMap, sync::Mutex};

use runtime::lock;

/// The maximum number of order ids that are counted at a time, which bounds the memory. An attempt
/// of a further one does not fail.
const MAX_ORDERS: usize = 100_000;

#[derive(Default)]
pub struct AttemptCounts(Mutex<HashMap<String, u32>>);

impl AttemptCounts {
    /// Counts an attempt, and returns whether it must fail because it is one of the first
    /// `failures` of its order id. The attempt that may succeed removes the count.
    pub fn fails(&self, order_id: &str, failures: u32) -> bool {
        let mut counts = lock(&self.0);
        let before = counts.get(order_id).copied();
        if before.unwrap_or(0) >= failures {
            counts.remove(order_id);
            return false;
        }
        if before.is_none() && counts.len() >= MAX_ORDERS {
            return false;
        }
        *counts.entry(order_id.to_owned()).or_default() += 1;
        true
    }
}

//! Counts the attempts of each order id, for options whose first attempts fail. A restart forgets them.

use std::{collections::HashMap, sync::Mutex};

use runtime::lock;

/// The most order ids counted at a time. Another one succeeds at once.
const MAX_ORDERS: usize = 100_000;

#[derive(Default)]
pub struct Attempts(Mutex<HashMap<String, u32>>);

impl Attempts {
    /// Counts an attempt and returns whether it is one of the first `failures`. The next one ends the count.
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

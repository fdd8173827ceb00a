//! The webhooks of a run over time. They show whether the first orders of a burst wait for
//! something that an average hides.

use serde::{Deserialize, Serialize};
use std::time::Instant;

/// The number of times in a run, beside the last one.
const STEPS: usize = 50;

/// How many webhooks had arrived at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arrived {
    /// Seconds since the first order was sent.
    pub after_s: f64,
    pub webhooks: u64,
}

/// The times of some arrivals, the first and the last one among them.
pub fn arrived(arrivals: &[Instant], start: Instant) -> Vec<Arrived> {
    let every = arrivals.len().div_ceil(STEPS).max(1);
    let last = arrivals.len().checked_sub(1);
    let shown = (0..arrivals.len()).step_by(every).chain(last);
    let mut arrived: Vec<Arrived> = shown
        .filter_map(|index| {
            let after = arrivals.get(index)?.saturating_duration_since(start);
            Some(Arrived {
                after_s: after.as_secs_f64(),
                webhooks: u64::try_from(index + 1).ok()?,
            })
        })
        .collect();
    arrived.dedup();
    arrived
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_last_arrival_is_always_shown() {
        let start = Instant::now();
        let arrivals = |count: u32| -> Vec<Instant> {
            (1..=count)
                .map(|second| start + Duration::from_secs(second.into()))
                .collect()
        };
        assert!(arrived(&[], start).is_empty());
        for count in [1, 49, 50, 51, 200, 1_001] {
            let shown = arrived(&arrivals(count), start);
            assert!(shown.len() <= STEPS + 1, "{} of {count}", shown.len());
            let ends = [shown.first(), shown.last()].map(|one| one.unwrap().webhooks);
            assert_eq!(ends, [1, count.into()]);
        }
    }
}

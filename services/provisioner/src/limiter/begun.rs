//! A purchase in flight, as the limits of its lane count it.

use std::time::Instant;

/// The result of a purchase for its lane.
#[derive(Clone, Copy, Debug)]
pub enum PurchaseResult<'a> {
    /// The provider bought or rejected it.
    Responded,
    /// It was certainly not sent, with the reason.
    NotSent(&'a str),
    /// Its outcome is unknown, with the reason. A look-up decides.
    Unknown(&'a str),
    /// The provider was busy or denied access, which says nothing about the lane.
    Inconclusive,
}

/// Counts the end of a purchase.
type End = Box<dyn FnOnce(PurchaseResult<'_>, Instant) + Send>;

/// A purchase in flight. It ends by [`PurchaseInFlight::end`]. If it is dropped instead, for
/// example because its task panicked, its outcome counts as unknown, which it is.
pub struct PurchaseInFlight(Option<End>);

impl PurchaseInFlight {
    pub(super) fn new(end: impl FnOnce(PurchaseResult<'_>, Instant) + Send + 'static) -> Self {
        Self(Some(Box::new(end)))
    }

    /// Records the result of the purchase.
    pub fn end(mut self, result: PurchaseResult<'_>, now: Instant) {
        if let Some(end) = self.0.take() {
            end(result, now);
        }
    }
}

impl Drop for PurchaseInFlight {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            let result = PurchaseResult::Unknown("the purchase was broken off by this process");
            end(result, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::mpsc,
    };

    use super::*;

    #[test]
    fn a_purchase_whose_task_panics_is_not_in_flight_for_ever() {
        let (ended, results) = mpsc::channel();
        let count = move |result: PurchaseResult<'_>, _| {
            let is_unknown = matches!(result, PurchaseResult::Unknown(_));
            ended.send(is_unknown).unwrap();
        };
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _begun = PurchaseInFlight::new(count.clone());
            panic!("in the adapter");
        }));
        assert!(panicked.is_err());
        assert_eq!(results.try_recv(), Ok(true));
        PurchaseInFlight::new(count).end(PurchaseResult::Responded, Instant::now());
        assert_eq!(results.try_recv(), Ok(false));
        assert!(results.try_recv().is_err(), "each purchase ends once");
    }
}

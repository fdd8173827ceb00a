//! The record of a run: one entry per topup, counters, latencies.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};

/// The record of a run, which the tasks of one thread share. The key of a topup is its 26 digits as
/// a number.
#[derive(Default)]
pub struct Book {
    topups: RefCell<HashMap<u128, Topup>>,
    totals: RefCell<Totals>,
    /// Accepted topups without webhook.
    waiting: Cell<u64>,
    window_end: Cell<Option<Instant>>,
    permits: RefCell<Option<Rc<Semaphore>>>,
    complete: Notify,
}

/// What is known about a topup. Its answer and its webhook may be read in any order, because the
/// sink and the generator are different tasks.
#[derive(Default)]
struct Topup {
    sent: Option<Instant>,
    arrived: Option<Instant>,
}

/// Counters over the whole run, some also over the window.
#[derive(Clone, Default)]
pub struct Totals {
    /// Orders that were answered with 201.
    pub orders: u64,
    pub orders_in_window: u64,
    /// Topups in those answers.
    pub topups: u64,
    /// First webhooks of topups.
    pub webhooks: u64,
    pub webhooks_in_window: u64,
    /// Further webhooks of the same topup.
    pub duplicates: u64,
    pub errors: u64,
    pub errors_by_kind: BTreeMap<String, Errors>,
    pub answer: Latency,
    pub order_to_webhook: Latency,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Errors {
    pub count: u64,
    /// The first 200 characters of the first example.
    pub first: String,
}

/// The longest latency that is recorded. Longer ones count as this one.
const LONGEST: Duration = Duration::from_hours(1);

/// Latencies in microseconds, with three significant digits.
#[derive(Clone)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    #[expect(
        clippy::expect_used,
        reason = "these bounds are constants that histograms accept"
    )]
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, micros(LONGEST), 3).expect("bounds of a histogram"))
    }
}

impl Latency {
    fn record(&mut self, latency: Duration) {
        self.0.saturating_record(micros(latency));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The histogram: for each bucket that is not empty, its highest latency in microseconds and
    /// its count.
    pub fn buckets(&self) -> Vec<(u64, u64)> {
        let recorded = self.0.iter_recorded();
        recorded
            .map(|bucket| {
                (
                    bucket.value_iterated_to(),
                    bucket.count_since_last_iteration(),
                )
            })
            .collect()
    }

    /// The number of latencies that are at most this one.
    pub fn within(&self, longest: Duration) -> u64 {
        self.0.count_between(0, micros(longest))
    }

    /// A quantile in milliseconds. That of `1.0` is the maximum.
    pub fn quantile(&self, quantile: f64) -> f64 {
        Duration::from_micros(self.0.value_at_quantile(quantile)).as_secs_f64() * 1000.0
    }
}

impl Book {
    pub fn open(&self, window_end: Instant) {
        self.window_end.set(Some(window_end));
    }

    /// Each webhook returns one of these permits.
    pub fn release_to(&self, permits: Option<Rc<Semaphore>>) {
        self.permits.replace(permits);
    }

    /// Records a 201 with these topups. Their latencies count from `sent`.
    pub fn accepted(&self, sent: Instant, answered: Instant, topups: &[u128]) {
        let mut book = self.topups.borrow_mut();
        let mut totals = self.totals.borrow_mut();
        totals.orders += 1;
        totals.orders_in_window += u64::from(self.in_window(answered));
        totals
            .answer
            .record(answered.saturating_duration_since(sent));
        for topup_id in topups {
            let topup = book.entry(*topup_id).or_default();
            if topup.sent.replace(sent).is_some() {
                totals.fail("topup_id given twice", &topup_id.to_string());
                continue;
            }
            totals.topups += 1;
            match topup.arrived {
                Some(arrived) => totals
                    .order_to_webhook
                    .record(arrived.saturating_duration_since(sent)),
                None => self.waiting.update(|waiting| waiting + 1),
            }
        }
    }

    /// Records orders that are already stored, of one topup each. Their latencies count from
    /// `since`.
    pub fn stored(&self, since: Instant, topups: impl IntoIterator<Item = u128>) {
        let mut book = self.topups.borrow_mut();
        let mut totals = self.totals.borrow_mut();
        for topup_id in topups {
            book.entry(topup_id).or_default().sent = Some(since);
            totals.orders += 1;
            totals.topups += 1;
            self.waiting.update(|waiting| waiting + 1);
        }
    }

    /// The arrival times of each topup's first webhook, in order.
    pub fn arrivals(&self) -> Vec<Instant> {
        let book = self.topups.borrow();
        let mut arrivals: Vec<Instant> = book.values().filter_map(|topup| topup.arrived).collect();
        arrivals.sort_unstable();
        arrivals
    }

    pub fn webhook(&self, topup_id: u128, at: Instant) {
        let mut book = self.topups.borrow_mut();
        let mut totals = self.totals.borrow_mut();
        let topup = book.entry(topup_id).or_default();
        if topup.arrived.is_some() {
            totals.duplicates += 1;
            return;
        }
        topup.arrived = Some(at);
        totals.webhooks += 1;
        totals.webhooks_in_window += u64::from(self.in_window(at));
        if let Some(permits) = &*self.permits.borrow() {
            permits.add_permits(1);
        }
        if let Some(sent) = topup.sent {
            totals
                .order_to_webhook
                .record(at.saturating_duration_since(sent));
            self.waiting.update(|waiting| waiting - 1);
            if self.waiting.get() == 0 {
                self.complete.notify_one();
            }
        }
    }

    /// Counts an error. Of each kind, the first `example` is kept.
    pub fn failed(&self, kind: &str, example: &str) {
        self.totals.borrow_mut().fail(kind, example);
    }

    pub fn waiting(&self) -> u64 {
        self.waiting.get()
    }

    /// Returns when `waiting` may have become zero. The caller has to check it again.
    pub async fn nothing_waiting(&self) {
        self.complete.notified().await;
    }

    /// The number of webhooks of topups that no 201 named, for example because the answer to their
    /// order was lost.
    pub fn unasked(&self) -> u64 {
        let totals = self.totals.borrow();
        totals.webhooks - (totals.topups - self.waiting())
    }

    pub fn totals(&self) -> std::cell::Ref<'_, Totals> {
        self.totals.borrow()
    }

    fn in_window(&self, at: Instant) -> bool {
        self.window_end.get().is_some_and(|end| at <= end)
    }
}

impl Totals {
    fn fail(&mut self, kind: &str, example: &str) {
        self.errors += 1;
        let entry = self.errors_by_kind.entry(kind.to_owned());
        let errors = entry.or_insert_with(|| Errors {
            count: 0,
            first: example.chars().take(200).collect(),
        });
        errors.count += 1;
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_webhooks_meet_in_either_order() {
        let book = Book::default();
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        book.open(after(100));
        book.accepted(start, after(10), &[1, 2]);
        book.webhook(3, after(15));
        assert_eq!((book.waiting(), book.unasked()), (2, 1));
        book.webhook(1, after(20));
        book.accepted(after(5), after(25), &[3]);
        book.webhook(2, after(150));
        book.webhook(2, after(160));

        assert_eq!((book.waiting(), book.unasked()), (0, 0));
        let totals = book.totals();
        assert_eq!((totals.orders, totals.topups, totals.webhooks), (2, 3, 3));
        assert_eq!(
            (totals.webhooks_in_window, totals.duplicates, totals.errors),
            (2, 1, 0)
        );
        assert!((totals.order_to_webhook.quantile(1.0) - 150.0).abs() < 1.0);
        assert!((totals.order_to_webhook.quantile(0.01) - 10.0).abs() < 0.1);
        assert!((totals.answer.quantile(1.0) - 20.0).abs() < 0.1);
    }

    #[test]
    fn a_topup_id_that_is_given_twice_is_an_error() {
        let book = Book::default();
        book.accepted(Instant::now(), Instant::now(), &[1]);
        book.accepted(Instant::now(), Instant::now(), &[1]);
        assert_eq!((book.totals().errors, book.waiting()), (1, 1));
        book.failed("status 500", "first");
        book.failed("status 500", "second");
        let totals = book.totals();
        let errors = &totals.errors_by_kind["status 500"];
        assert_eq!((errors.count, errors.first.as_str()), (2, "first"));
    }
}

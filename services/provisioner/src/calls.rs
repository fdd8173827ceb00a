//! The calls to a provider: paced by the rate limit, measured, and reported to the breaker.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use domain::PlacementId;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use pipeline::{Effect, perform};

use crate::{
    breaker::Breaker,
    metrics::Metrics,
    providers::{FindAnswer, PlaceAnswer, Provider, Purchase, Trouble},
};

/// The longest wait of a call for the rate limit. The placements in flight are limited so that each of
/// their two calls waits no longer.
pub const TURNS: Duration = Duration::from_secs(5);

/// A provider, its rate limit and its breaker.
pub struct Calls {
    name: String,
    provider: Arc<dyn Provider>,
    limiter: Option<DefaultDirectRateLimiter>,
    breaker: Arc<Breaker>,
    metrics: Metrics,
}

impl Calls {
    /// Creates the calls to a provider. `rate` is in calls per second; 0 means no limit.
    pub fn new(
        name: String,
        provider: Arc<dyn Provider>,
        rate: u32,
        breaker: Arc<Breaker>,
        metrics: Metrics,
    ) -> Self {
        // No bursts: they would exceed the provider's own limit.
        let quota = NonZeroU32::new(rate).map(|rate| Quota::per_second(rate).allow_burst(NonZeroU32::MIN));
        Self {
            name,
            provider,
            limiter: quota.map(RateLimiter::direct),
            breaker,
            metrics,
        }
    }

    /// Sends a purchase. Returns `None` and sends nothing if its turn comes after `send_by`.
    pub async fn place(&self, purchase: &Purchase, send_by: Instant) -> Option<Result<PlaceAnswer, Trouble>> {
        self.turn().await;
        if Instant::now() > send_by {
            return None;
        }
        let place = perform(Effect::Place, self.provider.place(purchase));
        let outcome = |answer: &PlaceAnswer| match answer {
            PlaceAnswer::Bought(_) => "bought",
            PlaceAnswer::Rejected { .. } => "rejected",
        };
        Some(self.measure("place", place, outcome).await)
    }

    /// Looks up a purchase.
    pub async fn find(&self, placement_id: PlacementId) -> Result<FindAnswer, Trouble> {
        self.turn().await;
        let find = perform(Effect::Find, self.provider.find(placement_id));
        self.measure("find", find, found).await
    }

    /// Collects the profiles of a purchase.
    pub async fn collect(&self, placement_id: PlacementId) -> Result<FindAnswer, Trouble> {
        self.turn().await;
        let collect = perform(Effect::Collect, self.provider.collect(placement_id));
        self.measure("collect", collect, found).await
    }

    async fn turn(&self) {
        if let Some(limiter) = &self.limiter {
            limiter.until_ready().await;
        }
    }

    async fn measure<T>(
        &self,
        call: &'static str,
        calling: impl Future<Output = Result<T, Trouble>>,
        outcome: fn(&T) -> &'static str,
    ) -> Result<T, Trouble> {
        let (since, began) = (self.breaker.begin(), Instant::now());
        let answer = calling.await;
        let outcome = match &answer {
            Ok(answer) => outcome(answer),
            Err(trouble) => trouble.class(),
        };
        self.metrics.call(&self.name, call, outcome, began.elapsed());
        match &answer {
            Ok(_) => self.breaker.answered(since).await,
            Err(trouble) => self.breaker.failed(since, trouble).await,
        }
        answer
    }
}

fn found(answer: &FindAnswer) -> &'static str {
    match answer {
        FindAnswer::Found(_) => "found",
        FindAnswer::NotFound => "not_found",
    }
}

//! Our account at a provider: every call of it goes through here, is paced by the rate limit, measured,
//! and told to the breaker.

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

/// With a rate limit, no more placements are under way than it lets through in this time: each waits
/// for its turn at most this long for each of its two calls.
pub const TURNS: Duration = Duration::from_secs(5);

/// A provider and the limits under which it is called.
pub struct Account {
    name: String,
    provider: Arc<dyn Provider>,
    limiter: Option<DefaultDirectRateLimiter>,
    breaker: Arc<Breaker>,
    metrics: Metrics,
}

impl Account {
    /// `rate`: calls per second, without a limit if it is 0.
    pub fn new(
        name: String,
        provider: Arc<dyn Provider>,
        rate: u32,
        breaker: Arc<Breaker>,
        metrics: Metrics,
    ) -> Self {
        // Evenly: what a burst saves, the provider's own limit takes back.
        let quota = NonZeroU32::new(rate).map(|rate| Quota::per_second(rate).allow_burst(NonZeroU32::MIN));
        Self {
            name,
            provider,
            limiter: quota.map(RateLimiter::direct),
            breaker,
            metrics,
        }
    }

    /// Buys, unless its turn comes after `send_by`: `None` then, and nothing was sent.
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

    /// Looks a purchase up.
    pub async fn find(&self, placement_id: PlacementId) -> Result<FindAnswer, Trouble> {
        self.turn().await;
        let find = perform(Effect::Find, self.provider.find(placement_id));
        self.measure("find", find, found).await
    }

    /// Asks for the profiles of a purchase.
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

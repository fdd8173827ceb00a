//! A limit of so many per second, with a burst.
//!
//! Guarantees: a limit that was left alone allows one burst at once, and afterwards as many per
//! second as it says. What is asked for and not taken is not used up, so whoever has several limits
//! can ask all of them before it uses up one. Ingress limits partners and itself with it, and the
//! provisioner callbacks. Each process counts for itself.

use std::{
    num::NonZeroU32,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use crate::lock;

pub struct RateLimit {
    per_second: NonZeroU32,
    burst: NonZeroU32,
    /// When the whole burst is possible again. Each use moves this time on by as long as its count
    /// takes at the rate, and it may lie ahead by one burst at most.
    full_at: Mutex<Instant>,
}

/// What a [`RateLimit`] allows. It is used up only by [`Allowed::take`]. Until then the limit stays
/// locked, so nobody else can use it up meanwhile.
pub struct Allowed<'a> {
    full_at: MutexGuard<'a, Instant>,
    /// The time that the use moves `full_at` to.
    then_full_at: Instant,
    /// How much of the burst is used then.
    pub used: u32,
}

impl Allowed<'_> {
    pub fn take(mut self) {
        *self.full_at = self.then_full_at;
    }
}

impl RateLimit {
    /// Creates a limit whose burst is one second's worth.
    pub fn per_second(per_second: NonZeroU32) -> Self {
        Self::with_burst(per_second, per_second)
    }

    pub fn with_burst(per_second: NonZeroU32, burst: NonZeroU32) -> Self {
        Self {
            per_second,
            burst,
            full_at: Mutex::new(Instant::now()),
        }
    }

    /// Whether the limit allows `count` more, or how long it takes until it does. Nothing is used
    /// up before [`Allowed::take`]. A count larger than the burst is never allowed.
    pub fn ask(&self, count: NonZeroU32, now: Instant) -> Result<Allowed<'_>, Duration> {
        let full_at = lock(&self.full_at);
        let then_full_at = (*full_at).max(now) + self.time_of(count);
        let ahead = then_full_at.saturating_duration_since(now);
        let wait = ahead.saturating_sub(self.time_of(self.burst));
        if wait > Duration::ZERO {
            return Err(wait);
        }
        // Of a use that is partly over, the rest counts as one, so that what is left is said to be
        // too little rather than too much.
        let used = ahead.as_nanos() * u128::from(self.per_second.get());
        let used = u32::try_from(used.div_ceil(Duration::from_secs(1).as_nanos()));
        Ok(Allowed {
            full_at,
            then_full_at,
            used: used.unwrap_or(u32::MAX).min(self.burst.get()),
        })
    }

    /// Uses up one, or says how long it takes until that is possible.
    pub fn try_one(&self) -> Result<(), Duration> {
        let allowed = self.ask(NonZeroU32::MIN, Instant::now())?;
        allowed.take();
        Ok(())
    }

    /// Waits until one is possible, and uses it up. It is safe to cancel.
    pub async fn one(&self) {
        while let Err(wait) = self.try_one() {
            tokio::time::sleep(wait).await;
        }
    }

    /// How long `count` takes at this rate.
    fn time_of(&self, count: NonZeroU32) -> Duration {
        Duration::from_secs(count.get().into()) / self.per_second.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: NonZeroU32 = NonZeroU32::new(3).unwrap();

    #[test]
    fn a_rate_comes_back_as_it_says() {
        let rate = RateLimit::per_second(THREE);
        let began = Instant::now() + Duration::from_secs(1);
        let take = |after: Duration| {
            let allowed = rate.ask(NonZeroU32::MIN, began + after).ok()?;
            let used = allowed.used;
            allowed.take();
            Some(used)
        };
        let [at_once, third] = [Duration::ZERO, Duration::from_secs(1) / 3];
        let burst = [Some(1), Some(2), Some(3), None];
        assert_eq!([(); 4].map(|()| take(at_once)), burst);
        assert_eq!([(); 2].map(|()| take(third)), [Some(3), None]);
        // After a long pause no more than one burst is possible.
        assert_eq!([(); 4].map(|()| take(Duration::from_secs(100))), burst);
    }

    #[test]
    fn what_is_not_taken_is_not_used_up() {
        let rate = RateLimit::with_burst(NonZeroU32::MIN, THREE);
        let now = Instant::now() + Duration::from_secs(1);
        assert_eq!(rate.ask(THREE, now).map(|allowed| allowed.used), Ok(3));
        assert!(rate.ask(THREE, now).is_ok_and(|allowed| {
            allowed.take();
            true
        }));
        let wait = rate.ask(THREE, now).map(|allowed| allowed.used);
        assert_eq!(wait, Err(Duration::from_secs(3)));
    }
}

//! The rate limits of each partner: requests, orders, units and questions about eSIMs per second.
//!
//! Guarantees: each limit allows a burst of one second's worth, and a request beyond it gets a 429
//! that says when to come back. A request that one of its limits refuses uses nothing of the others
//! that are asked for it together, so that whoever obeys the 429 is not held up by it. The state of
//! a partner that has sent nothing for a minute may be dropped once it would be allowed a full
//! burst again anyway, so that being forgotten gives nobody more.
//!
//! Called by [`super::admission`]. Relies on the limits in the [`directory`](super::directory),
//! where an operator's change arrives within a second while the database responds. Each process
//! counts for itself, so with several replicas the rates add up.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use accounts::partners::PartnerLimits;
use domain::{Environment, PartnerId};
use runtime::{
    lock, make_room,
    rate_limit::{Allowed, RateLimit},
};

use crate::{
    access::directory::KnownPartner,
    http::{
        codes::ErrorCode,
        error::{ApiError, RateState, ReachedLimit},
    },
    limits::LimitsConfig,
};

/// Maximum number of questions per second of one partner that go to a provider. These are `GET
/// …/topups/{topup_id}/usage` without an answer that is new enough, and the changes to an eSIM,
/// such as `POST …/topups/{topup_id}/give-back`. Further ones get a 429 with Retry-After. The calls
/// to a provider are few (`PROVIDER_RATE`), and purchases need them, too.
const PARTNER_ESIM_REQUESTS_PER_SECOND: NonZeroU32 = NonZeroU32::new(5).unwrap();

/// After this time without requests, the state of a partner may be dropped, if its bursts are full
/// again.
const FORGOTTEN: Duration = Duration::from_mins(1);

pub(crate) struct Rates {
    limits: LimitsConfig,
    max_units: u32,
    partners: Mutex<HashMap<PartnerId, KnownRates>>,
}

struct KnownRates {
    rates: Arc<PartnerRates>,
    used: Instant,
}

/// What one partner may send. Each [`Rate`] is counted by itself.
pub(crate) struct PartnerRates {
    /// What an operator has set for the partner.
    limits: PartnerLimits,
    /// All signed requests, also those that one of the other rates counts.
    requests: Rate,
    orders: Rate,
    /// The units of its orders.
    units: Rate,
    /// Self-service: questions about delivered eSIMs, and give-backs.
    esim_requests: Rate,
    /// Self-service: recorded changes of its account.
    changes: Rate,
}

/// How many recorded changes a partner may make per second, and how many at once. Each leaves a row
/// that is kept for ever, and no partner changes its account for long at this pace by hand. Nobody
/// needs to set it.
const CHANGES: NonZeroU32 = NonZeroU32::new(10).unwrap();
const CHANGES_AT_ONCE: u32 = 200;
/// For how many seconds the own rate of a sandbox account's units suffices for its largest order.
const SANDBOX_ORDER: u32 = 10;

/// The limits that hold for a partner: its own where an operator has set one, otherwise those of
/// this process.
pub(crate) struct PerSecond {
    pub(crate) requests: u32,
    pub(crate) orders: u32,
    pub(crate) units: u32,
}

/// A limit of a partner.
struct Rate {
    what: &'static str,
    /// The name of the limit in the metrics and the log.
    limit_name: &'static str,
    per_second: NonZeroU32,
    burst: NonZeroU32,
    limit: RateLimit,
}

impl Rates {
    /// Creates the rate limits. `max_units` is the maximum number of units of one order; an order
    /// that its partner may send always fits into a burst.
    pub(crate) fn new(limits: &LimitsConfig, max_units: u32) -> Self {
        Self {
            limits: limits.clone(),
            max_units,
            partners: Mutex::default(),
        }
    }

    /// Returns the state of a partner's rates. After a change of its limits it begins with a full
    /// burst.
    pub(crate) fn of(&self, partner: &KnownPartner) -> Arc<PartnerRates> {
        let now = Instant::now();
        let mut partners = lock(&self.partners);
        if let Some(known) = partners.get_mut(&partner.id)
            && known.rates.limits == partner.limits
        {
            known.used = now;
            return Arc::clone(&known.rates);
        }
        make_room(&mut partners, |_, known| {
            now.saturating_duration_since(known.used) < FORGOTTEN.max(known.rates.full_after())
        });
        let rates = Arc::new(self.rates(partner.limits, self.units_per_order(partner)));
        partners.insert(
            partner.id,
            KnownRates {
                rates: Arc::clone(&rates),
                used: now,
            },
        );
        rates
    }

    /// The maximum number of units in one order of this partner. A sandbox account is free, and
    /// each of its units becomes a webhook to each of its hosts, so there an own rate bounds the
    /// single order, too. Orders of a live partner cost money, and keep the whole size whatever its
    /// rate is.
    pub(crate) fn units_per_order(&self, partner: &KnownPartner) -> u32 {
        let own = partner.limits.units_per_second;
        own.filter(|_| partner.environment == Environment::Sandbox)
            .map_or(self.max_units, |own| {
                own.saturating_mul(SANDBOX_ORDER).min(self.max_units)
            })
    }

    fn rates(&self, limits: PartnerLimits, units_per_order: u32) -> PartnerRates {
        let all = &self.limits;
        let own = |limit: Option<u32>, default| limit.and_then(NonZeroU32::new).unwrap_or(default);
        let requests = own(
            limits.requests_per_second,
            all.partner_requests_per_second(),
        );
        let orders = own(limits.orders_per_second, all.partner_orders_per_second);
        let units = own(limits.units_per_second, all.partner_units_per_second());
        PartnerRates {
            limits,
            requests: Rate::new("requests", "requests_per_second", requests, 1),
            orders: Rate::new("orders", "orders_per_second", orders, 1),
            units: Rate::new("units", "units_per_second", units, units_per_order),
            esim_requests: Rate::new(
                "questions to providers about eSIMs",
                "esim_requests_per_second",
                PARTNER_ESIM_REQUESTS_PER_SECOND,
                1,
            ),
            changes: Rate::new(
                "changes that are recorded",
                "changes_per_second",
                CHANGES,
                CHANGES_AT_ONCE,
            ),
        }
    }
}

impl PartnerRates {
    pub(crate) fn count_request(&self) -> Result<RateState, ApiError> {
        self.requests.check(NonZeroU32::MIN)
    }

    /// Counts an order and its units. Returns what is left of the rate of orders. An order that one
    /// of the two refuses uses nothing of the other.
    pub(crate) fn count_order(&self, units: NonZeroU32) -> Result<RateState, ApiError> {
        self.order_at(units, Instant::now())
    }

    fn order_at(&self, units: NonZeroU32, now: Instant) -> Result<RateState, ApiError> {
        let order = self.orders.ask(NonZeroU32::MIN, now)?;
        let state = self.orders.state(&order);
        self.units.ask(units, now)?.take();
        order.take();
        Ok(state)
    }

    /// Counts a question to a provider about a delivered eSIM.
    pub(crate) fn count_esim_request(&self) -> Result<RateState, ApiError> {
        self.esim_requests.check(NonZeroU32::MIN)
    }

    /// Counts a change that is recorded.
    pub(crate) fn count_change(&self) -> Result<RateState, ApiError> {
        self.changes.check(NonZeroU32::MIN)
    }

    /// After how long without requests every rate has its full burst again.
    fn full_after(&self) -> Duration {
        let all = [
            &self.requests,
            &self.orders,
            &self.units,
            &self.esim_requests,
            &self.changes,
        ];
        let seconds = all.map(|rate| rate.burst.get().div_ceil(rate.per_second.get()));
        Duration::from_secs(seconds.into_iter().max().unwrap_or_default().into())
    }

    pub(crate) fn per_second(&self) -> PerSecond {
        PerSecond {
            requests: self.requests.per_second.get(),
            orders: self.orders.per_second.get(),
            units: self.units.per_second.get(),
        }
    }
}

impl Rate {
    /// Creates a limit whose burst is one second's worth, and at least `least`, so that the largest
    /// allowed request always fits.
    fn new(
        what: &'static str,
        limit_name: &'static str,
        per_second: NonZeroU32,
        least: u32,
    ) -> Self {
        let burst = NonZeroU32::new(least)
            .unwrap_or(NonZeroU32::MIN)
            .max(per_second);
        Self {
            what,
            limit_name,
            per_second,
            burst,
            limit: RateLimit::with_burst(per_second, burst),
        }
    }

    /// Uses up `count` of the rate, or says when to come back.
    fn check(&self, count: NonZeroU32) -> Result<RateState, ApiError> {
        let allowed = self.ask(count, Instant::now())?;
        let state = self.state(&allowed);
        allowed.take();
        Ok(state)
    }

    /// Whether the rate allows `count` more. Nothing is used up before [`Allowed::take`]. An order
    /// has at most `units_per_order` units, and the burst is at least that large, so every count
    /// passes once the whole burst is possible again.
    fn ask(&self, count: NonZeroU32, now: Instant) -> Result<Allowed<'_>, ApiError> {
        let allowed = self.limit.ask(count, now);
        allowed.map_err(|wait| self.limited(wait))
    }

    /// What is left of the rate after this use.
    fn state(&self, allowed: &Allowed<'_>) -> RateState {
        RateState {
            limit: self.per_second.get(),
            remaining: self.burst.get() - allowed.used,
            reset: allowed.used.div_ceil(self.per_second.get()),
        }
    }

    fn limited(&self, wait: Duration) -> ApiError {
        let limit = self.per_second.get();
        let message = ErrorCode::RateLimited.message_with(format_args!("{limit} {}", self.what));
        ApiError::Limited(ReachedLimit {
            code: ErrorCode::RateLimited,
            limit_name: self.limit_name,
            message,
            limit,
            wait,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Settings {
        #[command(flatten)]
        limits: LimitsConfig,
    }

    fn limits() -> LimitsConfig {
        Settings::parse_from(["ingress"]).limits
    }

    #[test]
    fn an_order_that_one_limit_refuses_uses_nothing_of_the_other() {
        let rates = Rates::new(&limits(), 10).rates(
            PartnerLimits {
                orders_per_second: Some(2),
                units_per_second: Some(10),
                ..PartnerLimits::default()
            },
            10,
        );
        let units = |count| NonZeroU32::new(count).unwrap();
        let remaining =
            |refused: Result<RateState, ApiError>| refused.map(|rate| rate.remaining).ok();
        let now = Instant::now();
        assert_eq!(remaining(rates.order_at(units(10), now)), Some(1));
        // The units are used up, so this order is refused, and one order stays possible.
        assert_eq!(remaining(rates.order_at(units(10), now)), None);
        let one = rates.orders.ask(NonZeroU32::MIN, now).unwrap();
        assert_eq!(one.used, 2);
        one.take();
        // Now the orders are used up, and the units come back as if nobody had asked for any.
        let later = now + Duration::from_secs(1);
        assert!(rates.order_at(NonZeroU32::MIN, now).is_err());
        let all = rates.units.ask(units(10), later).unwrap();
        assert_eq!(rates.units.state(&all).remaining, 0);
    }

    #[test]
    fn a_rate_has_a_burst_of_one_second_and_says_when_to_come_back() {
        let rate = Rate::new(
            "units",
            "units_per_second",
            NonZeroU32::new(10).unwrap(),
            1000,
        );
        let state = rate.check(NonZeroU32::new(900).unwrap()).unwrap();
        assert_eq!(
            state,
            RateState {
                limit: 10,
                remaining: 100,
                reset: 90
            }
        );
        let Err(ApiError::Limited(ReachedLimit { wait, .. })) =
            rate.check(NonZeroU32::new(200).unwrap())
        else {
            panic!("the request was not limited");
        };
        assert!(
            wait > Duration::from_secs(9) && wait <= Duration::from_secs(10),
            "{wait:?}"
        );
        let rate = Rate::new(
            "orders",
            "orders_per_second",
            NonZeroU32::new(2).unwrap(),
            1,
        );
        assert_eq!(
            [(); 3].map(|()| rate.check(NonZeroU32::MIN).is_ok()),
            [true, true, false]
        );
    }
}

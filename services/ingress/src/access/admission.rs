//! Admission: how many requests may be in flight, in all and for each partner.
//!
//! Guarantees: the orders, the memory of their bodies and units, the self-service requests and the listeners in flight
//! are bounded. A partner can fill at most half of what the other partners leave free, so that a flood of one leaves room
//! for everyone else. A request that is refused here has stored nothing.
//!
//! Create-order calls [`Admission::order`] after the signature is checked and before the body is read, and
//! [`Admitted::units`] once the units are known; self-service calls [`Admission::self_service`]. Each limit holds for one
//! process. Relies on permits being dropped when the request ends, and on [`super::rates`] for requests per second.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{Arc, Mutex},
    time::Duration,
};

use domain::PartnerId;
use opentelemetry::global;
use runtime::lock;

use crate::{
    access::{
        directory::KnownPartner,
        limits::LimitsConfig,
        rates::{PartnerRates, Rates},
    },
    http::{
        codes::Code,
        error::{ApiError, Limited},
    },
};

const MIB: u64 = 1024 * 1024;
/// The memory that a unit of an order needs until the order is answered, in bytes, rounded up.
const UNIT: u64 = 512;

/// A bound of what is in flight, which partners share. The unit is a request, or a byte.
#[derive(Debug)]
struct InFlightLimit {
    capacity: u64,
    in_flight: Mutex<InFlight>,
}

#[derive(Debug, Default)]
struct InFlight {
    all: u64,
    by_partner: HashMap<PartnerId, u64>,
}

/// The bound that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// The capacity for all partners.
    Capacity,
    /// The partner's share of it.
    Share,
    /// The limit that an operator has set for the partner.
    Own,
}

/// A request's part of an [`InFlightLimit`]; dropping it frees the part.
#[derive(Debug)]
pub(crate) struct InFlightPermit {
    limit: Arc<InFlightLimit>,
    partner: PartnerId,
    amount: u64,
}

impl InFlightLimit {
    fn new(capacity: u64) -> Arc<Self> {
        Arc::new(Self { capacity, in_flight: Mutex::default() })
    }

    /// Takes a permit for `amount`, or names the bound that refuses it. `own` is the partner's own limit.
    fn acquire(self: &Arc<Self>, partner: PartnerId, amount: u64, own: Option<u64>) -> Result<InFlightPermit, Bound> {
        self.add(partner, amount, 0, own)?;
        Ok(InFlightPermit { limit: Arc::clone(self), partner, amount })
    }

    /// Adds to what the partner has in flight, of which the same request already holds `held`.
    fn add(&self, partner: PartnerId, amount: u64, held: u64, own: Option<u64>) -> Result<(), Bound> {
        let mut in_flight = lock(&self.in_flight);
        let mine = in_flight.by_partner.get(&partner).copied().unwrap_or_default();
        let free = self.capacity.saturating_sub(in_flight.all);
        if own.is_some_and(|own| mine + amount > own) {
            return Err(Bound::Own);
        }
        if amount > free {
            return Err(Bound::Capacity);
        }
        // Half of what the others leave free, which is `free + mine`. A partner's only request is always within the share,
        // so that no partner is shut out.
        if mine > held && mine + amount > u64::midpoint(free, mine) {
            return Err(Bound::Share);
        }
        in_flight.all += amount;
        in_flight.by_partner.insert(partner, mine + amount);
        Ok(())
    }

    fn remove(&self, partner: PartnerId, amount: u64) {
        let mut in_flight = lock(&self.in_flight);
        in_flight.all -= amount;
        if let Some(mine) = in_flight.by_partner.get_mut(&partner) {
            *mine -= amount;
            if *mine == 0 {
                in_flight.by_partner.remove(&partner);
            }
        }
    }

    fn all(&self) -> u64 {
        lock(&self.in_flight).all
    }
}

impl InFlightPermit {
    /// Changes the amount. On an error the amount stays the same.
    fn resize(&mut self, amount: u64) -> Result<(), Bound> {
        if amount > self.amount {
            self.limit.add(self.partner, amount - self.amount, self.amount, None)?;
        } else {
            self.limit.remove(self.partner, self.amount - amount);
        }
        self.amount = amount;
        Ok(())
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.limit.remove(self.partner, self.amount);
    }
}

pub(crate) struct Admission {
    orders: Arc<InFlightLimit>,
    memory: Arc<InFlightLimit>,
    self_service: Arc<InFlightLimit>,
    listeners: Arc<InFlightLimit>,
    pub(crate) rates: Rates,
}

impl Admission {
    /// Creates the limits. `max_units` is the maximum number of units of one order.
    pub(crate) fn new(limits: &LimitsConfig, max_units: u32) -> Self {
        // One body and one order always fit.
        let least = u64::from(limits.max_body).max(u64::from(max_units) * UNIT);
        let admission = Self {
            orders: InFlightLimit::new(limits.max_in_flight.into()),
            memory: InFlightLimit::new((u64::from(limits.max_in_flight_memory) * MIB).max(least)),
            self_service: InFlightLimit::new(limits.self_service_in_flight.into()),
            listeners: InFlightLimit::new(limits.listeners.into()),
            rates: Rates::new(limits, max_units),
        };
        admission.observe();
        admission
    }

    fn observe(&self) {
        let meter = global::meter("ingress");
        let gauge = |name, description, limit: &Arc<InFlightLimit>| {
            let observed = Arc::clone(limit);
            let instrument = meter.u64_observable_gauge(name).with_description(description);
            instrument.with_callback(move |gauge| gauge.observe(observed.all(), &[]))
        };
        gauge("esim.orders.in_flight", "Orders that are being read, stored or answered", &self.orders).build();
        let description = "Estimated memory of the bodies and units of orders in flight";
        gauge("esim.orders.in_flight.memory", description, &self.memory).with_unit("By").build();
        let description = "Signed requests other than orders that are in flight";
        gauge("esim.self_service.in_flight", description, &self.self_service).build();
        let description = "Requests of sandbox accounts that wait for webhooks";
        gauge("esim.listeners", description, &self.listeners).build();
    }

    /// Admits an order whose body has at most `body` bytes, before the body is read.
    pub(crate) fn order(&self, partner: &KnownPartner, body: u64) -> Result<Admitted, ApiError> {
        let rates = self.rates.of(partner);
        rates.request()?;
        let own = partner.limits.max_in_flight;
        let in_flight = self.orders.acquire(partner.id, 1, own.map(u64::from)).map_err(|bound| match bound {
            Bound::Capacity => ApiError::overloaded("in_flight"),
            Bound::Share => ApiError::overloaded("in_flight_share"),
            Bound::Own => too_many(own.unwrap_or_default()),
        })?;
        let memory = self.memory.acquire(partner.id, body, None).map_err(out_of_memory)?;
        Ok(Admitted { _in_flight: in_flight, memory, rates })
    }

    /// Admits a self-service request. It counts as a request of the partner, and not as an order in flight.
    pub(crate) fn self_service(&self, partner: &KnownPartner) -> Result<InFlightPermit, ApiError> {
        self.rates.of(partner).request()?;
        self.self_service.acquire(partner.id, 1, None).map_err(|bound| match bound {
            Bound::Share => ApiError::overloaded("self_service_share"),
            Bound::Capacity | Bound::Own => ApiError::overloaded("self_service"),
        })
    }

    /// Admits a [self-service request](Self::self_service) that waits for webhooks.
    pub(crate) fn listener(&self, partner: &KnownPartner) -> Result<InFlightPermit, ApiError> {
        self.listeners.acquire(partner.id, 1, None).map_err(|bound| match bound {
            Bound::Share => ApiError::overloaded("listeners_share"),
            Bound::Capacity | Bound::Own => ApiError::overloaded("listeners"),
        })
    }

    /// The partner's orders in flight in this process.
    pub(crate) fn orders_in_flight(&self, partner: PartnerId) -> u64 {
        lock(&self.orders.in_flight).by_partner.get(&partner).copied().unwrap_or_default()
    }
}

/// An order that is in flight until this is dropped.
pub(crate) struct Admitted {
    _in_flight: InFlightPermit,
    memory: InFlightPermit,
    rates: Arc<PartnerRates>,
}

impl Admitted {
    /// Admits the units of the order, after its body is parsed. From here on the permit counts the memory of the units
    /// instead of the body's, because the body is dropped as soon as it is parsed.
    pub(crate) fn units(&mut self, units: NonZeroU32) -> Result<(), ApiError> {
        self.rates.order(units)?;
        self.memory.resize(u64::from(units.get()) * UNIT).map_err(out_of_memory)
    }
}

fn too_many(limit: u32) -> ApiError {
    let code = Code::TooManyInFlight;
    let message = code.message_with(limit);
    ApiError::Limited(Limited { code, bound: "max_in_flight", message, limit, wait: Duration::from_secs(1) })
}

fn out_of_memory(bound: Bound) -> ApiError {
    ApiError::overloaded(match bound {
        Bound::Share => "memory_share",
        Bound::Capacity | Bound::Own => "memory",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes permits until one is refused.
    fn flood(limit: &Arc<InFlightLimit>, partner: PartnerId) -> (Vec<InFlightPermit>, Bound) {
        let mut taken = Vec::new();
        loop {
            match limit.acquire(partner, 1, None) {
                Ok(permit) => taken.push(permit),
                Err(bound) => return (taken, bound),
            }
        }
    }

    #[test]
    fn a_flood_leaves_half_of_what_is_free_to_the_others() {
        let limit = InFlightLimit::new(1000);
        let [one, other, third] = [PartnerId::new(), PartnerId::new(), PartnerId::new()];
        let (mut of_one, bound) = flood(&limit, one);
        assert_eq!((of_one.len(), bound), (500, Bound::Share));
        let (mut of_other, _) = flood(&limit, other);
        assert_eq!(of_other.len(), 250);
        // As orders end, both partners reach the same share.
        for _ in 0..500 {
            for (partner, taken) in [(one, &mut of_one), (other, &mut of_other)] {
                taken.pop();
                taken.extend(flood(&limit, partner).0);
            }
        }
        assert_eq!((of_one.len(), of_other.len()), (333, 333));
        assert_eq!(limit.acquire(third, 334, None).unwrap().amount, 334);
        assert_eq!(limit.acquire(third, 335, None).unwrap_err(), Bound::Capacity);
        drop((of_one, of_other));
        assert!(lock(&limit.in_flight).all == 0 && lock(&limit.in_flight).by_partner.is_empty());
    }

    #[test]
    fn a_partner_has_its_own_limit_and_one_permit_that_fits() {
        let limit = InFlightLimit::new(2);
        let [one, other] = [PartnerId::new(), PartnerId::new()];
        let first = limit.acquire(one, 1, Some(1)).unwrap();
        assert_eq!(limit.acquire(one, 1, Some(1)).unwrap_err(), Bound::Own);
        assert_eq!(limit.acquire(one, 1, None).unwrap_err(), Bound::Share);
        let mut last = limit.acquire(other, 1, None).unwrap();
        assert_eq!(limit.acquire(PartnerId::new(), 1, None).unwrap_err(), Bound::Capacity);
        drop(first);
        assert_eq!(last.resize(3), Err(Bound::Capacity));
        assert_eq!(last.amount, 1);
        last.resize(0).unwrap();
        assert_eq!(lock(&limit.in_flight).all, 0);
    }

    #[test]
    fn a_partners_only_request_may_grow_to_everything() {
        let limit = InFlightLimit::new(10);
        let partner = PartnerId::new();
        let mut only = limit.acquire(partner, 1, None).unwrap();
        only.resize(10).unwrap();
        only.resize(1).unwrap();
        let mut second = limit.acquire(partner, 1, None).unwrap();
        assert_eq!(second.resize(9), Err(Bound::Share));
    }
}

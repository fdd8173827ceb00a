//! Admits orders: bounds the orders in flight and their memory, and applies each partner's limits. The
//! request is admitted before its body is read.

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
        directory::Partner,
        limits::LimitsConfig,
        rates::{PartnerRates, Rates},
    },
    http::{codes::Code, error::ApiError},
};

const MIB: u64 = 1024 * 1024;
/// The memory that a unit of an order needs until the order is answered, in bytes, rounded up.
const UNIT: u64 = 512;

/// Places that partners share by weight. A partner with places takes at most half of what the other
/// partners leave, so that a flood leaves room for everyone else.
#[derive(Debug)]
struct Places {
    capacity: u64,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    by_partner: HashMap<PartnerId, u64>,
}

/// The bound that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    /// All places are taken.
    All,
    /// The partner's share is taken.
    Share,
    /// The partner's own limit is reached.
    Own,
}

/// Taken places; dropping frees them.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    partner: PartnerId,
    weight: u64,
}

impl Places {
    fn new(capacity: u64) -> Arc<Self> {
        Arc::new(Self { capacity, taken: Mutex::default() })
    }

    fn take(self: &Arc<Self>, partner: PartnerId, weight: u64, own: Option<u64>) -> Result<Place, Full> {
        self.add(partner, weight, own)?;
        Ok(Place { places: Arc::clone(self), partner, weight })
    }

    fn add(&self, partner: PartnerId, weight: u64, own: Option<u64>) -> Result<(), Full> {
        let mut taken = lock(&self.taken);
        let mine = taken.by_partner.get(&partner).copied().unwrap_or_default();
        let free = self.capacity.saturating_sub(taken.all);
        if own.is_some_and(|own| mine + weight > own) {
            return Err(Full::Own);
        }
        if weight > free {
            return Err(Full::All);
        }
        if mine > 0 && mine + weight > u64::midpoint(free, mine) {
            return Err(Full::Share);
        }
        taken.all += weight;
        taken.by_partner.insert(partner, mine + weight);
        Ok(())
    }

    fn remove(&self, partner: PartnerId, weight: u64) {
        let mut taken = lock(&self.taken);
        taken.all -= weight;
        if let Some(mine) = taken.by_partner.get_mut(&partner) {
            *mine -= weight;
            if *mine == 0 {
                taken.by_partner.remove(&partner);
            }
        }
    }
}

impl Place {
    /// Changes the weight. On an error the weight stays the same.
    fn resize(&mut self, weight: u64) -> Result<(), Full> {
        if weight > self.weight {
            self.places.add(self.partner, weight - self.weight, None)?;
        } else {
            self.places.remove(self.partner, self.weight - weight);
        }
        self.weight = weight;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.remove(self.partner, self.weight);
    }
}

pub(crate) struct Admission {
    in_flight: Arc<Places>,
    memory: Arc<Places>,
    self_service: Arc<Places>,
    listeners: Arc<Places>,
    pub(crate) rates: Rates,
}

impl Admission {
    /// Creates the limits. `max_units` is the most units of one order.
    pub(crate) fn new(limits: &LimitsConfig, max_units: u32) -> Self {
        // One body and one order always fit.
        let least = u64::from(limits.max_body).max(u64::from(max_units) * UNIT);
        let memory = Places::new((u64::from(limits.max_in_flight_memory) * MIB).max(least));
        let in_flight = Places::new(limits.max_in_flight.into());
        let self_service = Places::new(limits.self_service_in_flight.into());
        let listeners = Places::new(limits.listeners.into());
        let meter = global::meter("ingress");
        let gauge = |name, description, places: &Arc<Places>| {
            let observed = Arc::clone(places);
            let instrument = meter.u64_observable_gauge(name).with_description(description);
            instrument.with_callback(move |gauge| gauge.observe(lock(&observed.taken).all, &[]))
        };
        gauge("esim.orders.in_flight", "Orders that are being read, stored or answered", &in_flight).build();
        let description = "Estimated memory of the bodies and units of orders in flight";
        gauge("esim.orders.in_flight.memory", description, &memory).with_unit("By").build();
        let description = "Signed requests other than orders that are in flight";
        gauge("esim.self_service.in_flight", description, &self_service).build();
        gauge("esim.listeners", "Requests of sandbox accounts that wait for webhooks", &listeners).build();
        Self { in_flight, memory, self_service, listeners, rates: Rates::new(limits, max_units) }
    }

    /// Admits a request whose body has at most `body` bytes, before the body is read.
    pub(crate) fn enter(&self, partner: &Partner, body: u64) -> Result<Admitted, ApiError> {
        let rates = self.rates.of(partner);
        rates.request()?;
        let own = partner.limits.max_in_flight;
        let in_flight = self.in_flight.take(partner.id, 1, own.map(u64::from));
        let in_flight = in_flight.map_err(|full| match full {
            Full::All => overloaded("in_flight"),
            Full::Share => overloaded("in_flight_share"),
            Full::Own => too_many(own.unwrap_or_default()),
        })?;
        let memory = self.memory.take(partner.id, body, None).map_err(memory)?;
        Ok(Admitted { _in_flight: in_flight, memory, rates })
    }

    /// Admits a request other than an order. It counts as a request, and it takes no place of an order.
    pub(crate) fn visit(&self, partner: &Partner) -> Result<Place, ApiError> {
        self.rates.of(partner).request()?;
        let message = "Too many requests in progress; try again later";
        visit(&self.self_service, partner, ["self_service", "self_service_share"], message)
    }

    /// Admits a [visit](Self::visit) that waits for webhooks.
    pub(crate) fn listen(&self, partner: &Partner) -> Result<Place, ApiError> {
        let message = "Too many requests wait for webhooks; try again later";
        visit(&self.listeners, partner, ["listeners", "listeners_share"], message)
    }

    /// The partner's orders in flight in this process.
    pub(crate) fn in_flight(&self, partner: PartnerId) -> u64 {
        lock(&self.in_flight.taken).by_partner.get(&partner).copied().unwrap_or_default()
    }
}

/// An order that is in flight until this is dropped.
pub(crate) struct Admitted {
    _in_flight: Place,
    memory: Place,
    rates: Arc<PartnerRates>,
}

impl Admitted {
    /// Admits an order of `units` after its body is read.
    pub(crate) fn order(&mut self, units: NonZeroU32) -> Result<(), ApiError> {
        self.rates.order(units)?;
        self.memory.resize(u64::from(units.get()) * UNIT).map_err(memory)
    }
}

/// Takes a place. The two reasons are for: all places taken, and the partner's share taken.
fn visit(
    places: &Arc<Places>,
    partner: &Partner,
    [all, share]: [&'static str; 2],
    message: &'static str,
) -> Result<Place, ApiError> {
    places
        .take(partner.id, 1, None)
        .map_err(|full| ApiError::overloaded(if full == Full::Share { share } else { all }, message))
}

fn overloaded(reason: &'static str) -> ApiError {
    ApiError::overloaded(reason, "Too many orders in progress; try again later")
}

fn too_many(limit: u32) -> ApiError {
    let message = format!("Limit exceeded: at most {limit} requests at once").into();
    let (reason, wait) = ("max_in_flight", Duration::from_secs(1));
    ApiError::Limited { code: Code::TooManyInFlight, reason, message, limit, wait }
}

fn memory(full: Full) -> ApiError {
    overloaded(match full {
        Full::Share => "memory_share",
        Full::All | Full::Own => "memory",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes places of weight 1 until none is left.
    fn flood(places: &Arc<Places>, partner: PartnerId) -> (Vec<Place>, Full) {
        let mut taken = Vec::new();
        loop {
            match places.take(partner, 1, None) {
                Ok(place) => taken.push(place),
                Err(full) => return (taken, full),
            }
        }
    }

    #[test]
    fn a_flood_leaves_half_of_what_is_free_to_the_others() {
        let places = Places::new(1000);
        let [one, other, third] = [PartnerId::new(), PartnerId::new(), PartnerId::new()];
        let (mut of_one, full) = flood(&places, one);
        assert_eq!((of_one.len(), full), (500, Full::Share));
        let (mut of_other, _) = flood(&places, other);
        assert_eq!(of_other.len(), 250);
        // As orders end, both partners reach the same share.
        for _ in 0..500 {
            for (partner, taken) in [(one, &mut of_one), (other, &mut of_other)] {
                taken.pop();
                taken.extend(flood(&places, partner).0);
            }
        }
        assert_eq!((of_one.len(), of_other.len()), (333, 333));
        assert_eq!(places.take(third, 334, None).unwrap().weight, 334);
        assert_eq!(places.take(third, 335, None).unwrap_err(), Full::All);
        drop((of_one, of_other));
        assert!(lock(&places.taken).all == 0 && lock(&places.taken).by_partner.is_empty());
    }

    #[test]
    fn a_partner_has_its_own_limit_and_one_place_that_fits() {
        let places = Places::new(2);
        let [one, other] = [PartnerId::new(), PartnerId::new()];
        let first = places.take(one, 1, Some(1)).unwrap();
        assert_eq!(places.take(one, 1, Some(1)).unwrap_err(), Full::Own);
        assert_eq!(places.take(one, 1, None).unwrap_err(), Full::Share);
        let mut last = places.take(other, 1, None).unwrap();
        assert_eq!(places.take(PartnerId::new(), 1, None).unwrap_err(), Full::All);
        drop(first);
        assert_eq!(last.resize(3), Err(Full::All));
        assert_eq!(last.weight, 1);
        last.resize(0).unwrap();
        assert_eq!(lock(&places.taken).all, 0);
    }
}

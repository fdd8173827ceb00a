//! Admission decides how many requests may be in flight, in all and for each partner.
//!
//! Guarantees: the orders, the memory of their bodies and units, the self-service requests and the
//! listeners in flight are bounded. A partner can fill at most half of what the other partners
//! leave free, so that a flood of one partner leaves room for everyone else. With a capacity of
//! 1000, for example, the first busy partner gets 500 places and the second one 250; as their
//! orders end, both approach 333. A request that is refused here has stored nothing.
//!
//! Create-order calls [`Admission::order`] after the signature is checked and before the body is
//! read, and [`AdmittedOrder::count_order`] once the units are known. Self-service calls
//! [`Admission::self_service`], which lets a request wait a moment for its turn, or
//! [`Admission::listener`] for long polls. Each limit holds for
//! one process. The module relies on permits being dropped when the request ends, and on
//! [`super::rates`] for requests per second.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use domain::PartnerId;
use runtime::lock;
use tokio::sync::Notify;

use crate::{
    access::{
        directory::KnownPartner,
        overload::Overload,
        rates::{PartnerRates, Rates},
    },
    http::{
        codes::ErrorCode,
        error::{ApiError, RateState, ReachedLimit},
    },
    limits::LimitsConfig,
    metrics::{AdmissionGauges, GaugeReader},
};

/// Maximum estimated memory for orders in flight, in MiB. An order counts with the size of its body
/// while the body is read, and then with 512 bytes per unit. Further orders get a 503 with Retry-
/// After. Partners share this limit like `MAX_IN_FLIGHT`. If the value is too small for one body of
/// `MAX_BODY` or one order of `MAX_UNITS`, it is raised so that each of them fits.
const MAX_IN_FLIGHT_MEMORY: u32 = 64;
/// Maximum number of self-service requests in flight. These are all signed requests except create-
/// order and `GET …/webhook/listen`. Further requests wait for up to `QUEUE_DEADLINE`. A single
/// partner can use at most half of what the other partners leave free. The limit is separate from
/// `MAX_IN_FLIGHT`, so that a flood of look-ups takes no room from orders. Two connections serve
/// them all, so more would only wait in another place.
const SELF_SERVICE_IN_FLIGHT: u32 = 64;
/// Maximum number of self-service requests that wait until fewer are in flight. A few look-ups at
/// once are no flood, so they wait a moment instead of being refused. Further requests are refused
/// at once: with a 429 if the partner has used up its share of the places in flight, otherwise with
/// a 503, both with Retry-After. A single partner can use at most half of what the other partners
/// leave free.
const SELF_SERVICE_WAITING: u32 = 256;
/// Maximum number of sandbox accounts' requests that wait for webhooks. These are requests of `GET
/// …/webhook/listen`. Each of them stays open for up to `LISTEN_WAIT` and looks at the database
/// once a second, so this bounds what they cost it. They do not count towards the requests in
/// flight. Further requests get a 503 with Retry-After.
const LISTENERS: u32 = 128;
/// Maximum number of one sandbox account's requests that wait for webhooks: one for each of a few
/// developers. Further requests of the account get a 429 with Retry-After, so that one account
/// cannot take all places.
const PARTNER_LISTENERS: u32 = 4;

const MIB: u64 = 1024 * 1024;
/// The memory that one unit of an order needs until the order is answered, in bytes. It is an
/// estimate, rounded up.
const UNIT: u64 = 512;

/// A bound on what is in flight, which all partners share. Amounts are requests or bytes, depending
/// on the limit.
#[derive(Debug)]
struct InFlightLimit {
    in_flight: Mutex<InFlight>,
    /// Told when a permit is returned.
    freed: Notify,
}

#[derive(Debug)]
struct InFlight {
    capacity: u64,
    all: u64,
    by_partner: HashMap<PartnerId, u64>,
}

/// The bound that a request would exceed. It decides between a 503 and a 429, and becomes the
/// reason in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// The capacity for all partners.
    Capacity,
    /// The share of the capacity that the partner may use now.
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
        Arc::new(Self {
            in_flight: Mutex::new(InFlight {
                capacity,
                all: 0,
                by_partner: HashMap::new(),
            }),
            freed: Notify::new(),
        })
    }

    /// Takes a permit for `amount`, or names the bound that refuses it. `own` is the partner's own
    /// limit.
    fn acquire(
        self: &Arc<Self>,
        partner: PartnerId,
        amount: u64,
        own: Option<u64>,
    ) -> Result<InFlightPermit, Bound> {
        self.add(partner, amount, 0, own)?;
        Ok(InFlightPermit {
            limit: Arc::clone(self),
            partner,
            amount,
        })
    }

    /// Adds `amount` to what the partner has in flight. `held` is the part of the partner's use
    /// that the same request already has; it is not 0 when a permit grows.
    fn add(
        &self,
        partner: PartnerId,
        amount: u64,
        held: u64,
        own: Option<u64>,
    ) -> Result<(), Bound> {
        let mut in_flight = lock(&self.in_flight);
        let mine = in_flight
            .by_partner
            .get(&partner)
            .copied()
            .unwrap_or_default();
        let free = in_flight.capacity.saturating_sub(in_flight.all);
        if own.is_some_and(|own| mine + amount > own) {
            return Err(Bound::Own);
        }
        if amount > free {
            return Err(Bound::Capacity);
        }
        // A partner may use half of what the others leave free, which is `free + mine`. The share
        // does not apply if nothing else of the partner is in flight, so that a single request is
        // refused only when the capacity is used up. Otherwise a partner could be shut out entirely
        // while the others are busy.
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
        drop(in_flight);
        self.freed.notify_waiters();
    }

    /// Like [`Self::acquire`], but waits for up to `wait` until there is room.
    async fn acquire_within(
        self: &Arc<Self>,
        partner: PartnerId,
        wait: Duration,
    ) -> Result<InFlightPermit, Bound> {
        let until = tokio::time::Instant::now() + wait;
        loop {
            let mut freed = pin!(self.freed.notified());
            // From here on the notification of a permit that is returned meanwhile is not missed.
            freed.as_mut().enable();
            let bound = match self.acquire(partner, 1, None) {
                Ok(permit) => return Ok(permit),
                Err(bound) => bound,
            };
            if tokio::time::timeout_at(until, freed).await.is_err() {
                return Err(bound);
            }
        }
    }

    /// How much of the limit a partner uses.
    fn used_by(&self, partner: PartnerId) -> u64 {
        let in_flight = lock(&self.in_flight);
        in_flight
            .by_partner
            .get(&partner)
            .copied()
            .unwrap_or_default()
    }

    fn all(&self) -> u64 {
        lock(&self.in_flight).all
    }

    fn capacity(&self) -> u64 {
        lock(&self.in_flight).capacity
    }

    /// Permits that exceed the new capacity stay; new ones are refused until enough are returned.
    fn set_capacity(&self, capacity: u64) {
        lock(&self.in_flight).capacity = capacity;
    }
}

impl InFlightPermit {
    /// Changes the amount. If there is no room for a larger amount, the permit keeps its old one.
    fn resize(&mut self, amount: u64) -> Result<(), Bound> {
        if amount > self.amount {
            self.limit
                .add(self.partner, amount - self.amount, self.amount, None)?;
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
    overload: Arc<Mutex<Overload>>,
    memory: Arc<InFlightLimit>,
    self_service: Arc<InFlightLimit>,
    /// The self-service requests that wait for a permit of `self_service`.
    waiting: Arc<InFlightLimit>,
    /// `QUEUE_DEADLINE`.
    wait: Duration,
    listeners: Arc<InFlightLimit>,
    /// `MAX_IN_FLIGHT`: the capacity of `orders` unless the process is overloaded.
    most_in_flight: u64,
    pub(crate) rates: Rates,
}

impl Admission {
    /// Creates the limits. `max_body` is the maximum size of a body in bytes, and `max_units` the
    /// maximum number of units of one order.
    pub(crate) fn new(limits: &LimitsConfig, max_body: usize, max_units: u32) -> Self {
        // The largest allowed body and the largest allowed order must fit alone, or they would be
        // refused forever.
        let least = (max_body as u64).max(u64::from(max_units) * UNIT);
        let admission = Self {
            orders: InFlightLimit::new(limits.max_in_flight.into()),
            overload: Arc::new(Mutex::new(Overload::new(
                limits.max_in_flight.into(),
                limits.target_delay,
                Instant::now(),
            ))),
            memory: InFlightLimit::new((u64::from(MAX_IN_FLIGHT_MEMORY) * MIB).max(least)),
            self_service: InFlightLimit::new(SELF_SERVICE_IN_FLIGHT.into()),
            waiting: InFlightLimit::new(SELF_SERVICE_WAITING.into()),
            wait: limits.queue_deadline,
            listeners: InFlightLimit::new(LISTENERS.into()),
            most_in_flight: limits.max_in_flight.into(),
            rates: Rates::new(limits, max_units),
        };
        admission.observe();
        admission
    }

    fn observe(&self) {
        let in_flight = |limit: &Arc<InFlightLimit>| -> GaugeReader {
            let limit = Arc::clone(limit);
            Box::new(move || limit.all())
        };
        let orders = Arc::clone(&self.orders);
        let gauges = AdmissionGauges {
            orders: in_flight(&self.orders),
            orders_limit: Box::new(move || orders.capacity()),
            memory: in_flight(&self.memory),
            self_service: in_flight(&self.self_service),
            listeners: in_flight(&self.listeners),
        };
        gauges.register();
    }

    /// Counts a request of a partner. Returns what is left of its requests per second, which is in
    /// the answer to this request whatever else becomes of it.
    pub(crate) fn request(&self, partner: &KnownPartner) -> Result<RateState, ApiError> {
        self.rates.of(partner).request()
    }

    /// Admits an order whose body has at most `body` bytes. It is called before the body is read,
    /// so that the memory is reserved before it is used.
    pub(crate) fn order(
        &self,
        partner: &KnownPartner,
        body: u64,
    ) -> Result<AdmittedOrder, ApiError> {
        let rates = self.rates.of(partner);
        let own = partner.limits.max_in_flight;
        let is_overloaded = self.orders.capacity() < self.most_in_flight;
        let in_flight = self
            .orders
            .acquire(partner.id, 1, own.map(u64::from))
            .map_err(|bound| match bound {
                Bound::Capacity if is_overloaded => ApiError::overloaded("delay"),
                Bound::Share if is_overloaded => ApiError::overloaded("delay_share"),
                Bound::Capacity => ApiError::overloaded("in_flight"),
                Bound::Share => ApiError::overloaded("in_flight_share"),
                Bound::Own => too_many(own.unwrap_or_default()),
            })?;
        let memory = self
            .memory
            .acquire(partner.id, body, None)
            .map_err(out_of_memory)?;
        Ok(AdmittedOrder {
            in_flight,
            overload: Arc::clone(&self.overload),
            memory,
            rates,
        })
    }

    /// Admits a self-service request, which is no order in flight. If there is no room, it waits a
    /// moment, because a few look-ups at the same time are no flood.
    pub(crate) async fn self_service(
        &self,
        partner: &KnownPartner,
    ) -> Result<InFlightPermit, ApiError> {
        let refused = |bound| match bound {
            Bound::Share | Bound::Own => {
                share_in_use("self_service_share", self.self_service.used_by(partner.id))
            }
            Bound::Capacity => ApiError::overloaded("self_service"),
        };
        match self.self_service.acquire(partner.id, 1, None) {
            Ok(permit) => Ok(permit),
            Err(bound) => {
                let waiting = self.waiting.acquire(partner.id, 1, None);
                let _waiting = waiting.map_err(|_| refused(bound))?;
                self.self_service
                    .acquire_within(partner.id, self.wait)
                    .await
                    .map_err(refused)
            }
        }
    }

    /// Admits a request that waits for webhooks. It is not among those of [`Self::self_service`].
    pub(crate) fn listener(&self, partner: &KnownPartner) -> Result<InFlightPermit, ApiError> {
        let own = Some(PARTNER_LISTENERS.into());
        let in_flight = self.listeners.acquire(partner.id, 1, own);
        in_flight.map_err(|bound| match bound {
            Bound::Share | Bound::Own => {
                share_in_use("listeners_share", self.listeners.used_by(partner.id))
            }
            Bound::Capacity => ApiError::overloaded("listeners"),
        })
    }

    /// The number of orders that the partner has in flight in this process.
    pub(crate) fn orders_in_flight(&self, partner: PartnerId) -> u64 {
        self.orders.used_by(partner)
    }
}

/// An order that is in flight until this is dropped.
pub(crate) struct AdmittedOrder {
    in_flight: InFlightPermit,
    overload: Arc<Mutex<Overload>>,
    memory: InFlightPermit,
    rates: Arc<PartnerRates>,
}

impl AdmittedOrder {
    /// Counts the order and its units against the partner's rates, after its body is parsed. From
    /// here on the permit counts the memory of the units instead of that of the body, because the
    /// body is dropped as soon as it is parsed. The rates come last, because they are not given
    /// back, and an order that is refused for lack of memory should use up none of them.
    ///
    /// Returns what is left of the partner's orders per second.
    pub(crate) fn count_order(&mut self, units: NonZeroU32) -> Result<RateState, ApiError> {
        self.memory
            .resize(u64::from(units.get()) * UNIT)
            .map_err(out_of_memory)?;
        self.rates.order(units)
    }
}

impl AdmittedOrder {
    /// Notes how long the order took since `began`, without the time that it waited for its
    /// provider. If all orders take too long, fewer are admitted from now on ([`Overload`]).
    pub(crate) fn took(&self, began: Instant, delay: Duration) {
        adapt(&self.in_flight.limit, &self.overload, began, delay);
    }
}

/// Lowers the capacity of orders while they take too long, and raises it again.
fn adapt(limit: &InFlightLimit, overload: &Mutex<Overload>, began: Instant, delay: Duration) {
    let now = Instant::now();
    if let Some(capacity) = lock(overload).observe(now, began, delay, limit.all()) {
        limit.set_capacity(capacity);
    }
}

fn too_many(limit: u32) -> ApiError {
    let code = ErrorCode::TooManyInFlight;
    let message = code.message_with(limit);
    ApiError::Limited(ReachedLimit {
        code,
        bound: "max_in_flight",
        message,
        limit,
        wait: Duration::from_secs(1),
    })
}

/// 429: the partner uses its share of a limit that all partners share. `bound` names the limit.
fn share_in_use(bound: &'static str, used: u64) -> ApiError {
    let code = ErrorCode::ShareInUse;
    ApiError::Limited(ReachedLimit {
        code,
        bound,
        message: code.message_with(used),
        limit: u32::try_from(used).unwrap_or(u32::MAX),
        wait: Duration::from_secs(1),
    })
}

fn out_of_memory(bound: Bound) -> ApiError {
    ApiError::overloaded(match bound {
        Bound::Share => "memory_share",
        Bound::Capacity | Bound::Own => "memory",
    })
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use domain::Environment;

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
        assert_eq!(
            limit.acquire(third, 335, None).unwrap_err(),
            Bound::Capacity
        );
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
        assert_eq!(
            limit.acquire(PartnerId::new(), 1, None).unwrap_err(),
            Bound::Capacity
        );
        drop(first);
        assert_eq!(last.resize(3), Err(Bound::Capacity));
        assert_eq!(last.amount, 1);
        last.resize(0).unwrap();
        assert_eq!(lock(&limit.in_flight).all, 0);
    }

    #[tokio::test]
    async fn a_request_beyond_the_share_waits_for_the_end_of_another_one() {
        let limit = InFlightLimit::new(4);
        let partner = PartnerId::new();
        let (mut taken, bound) = flood(&limit, partner);
        assert_eq!((taken.len(), bound), (2, Bound::Share));
        let wait = Duration::from_millis(20);
        let late = limit.acquire_within(partner, wait).await;
        assert_eq!(late.unwrap_err(), Bound::Share);
        let waiting = limit.acquire_within(partner, Duration::from_mins(1));
        let ends = async {
            tokio::task::yield_now().await;
            taken.pop();
        };
        let (permit, ()) = tokio::join!(waiting, ends);
        permit.unwrap();
    }

    #[test]
    fn orders_that_all_take_too_long_lower_the_capacity_for_new_ones() {
        let limit = InFlightLimit::new(4096);
        let long_ago = Instant::now().checked_sub(Duration::from_mins(1)).unwrap();
        let target = Duration::from_millis(200);
        let overload = Mutex::new(Overload::new(4096, target, long_ago));
        let held = limit.acquire(PartnerId::new(), 2000, None).unwrap();
        for _ in 0..100 {
            adapt(&limit, &overload, Instant::now(), target * 5);
            if limit.capacity() < 4096 {
                break;
            }
        }
        assert_eq!(limit.capacity(), 400);
        let new = limit.acquire(PartnerId::new(), 1, None);
        assert_eq!(new.unwrap_err(), Bound::Capacity);
        drop(held);
        limit.acquire(PartnerId::new(), 1, None).unwrap();
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

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        limits: LimitsConfig,
    }

    /// Each request that listens stays open for a while, so their number is bounded: that of one
    /// account by a 429, and that of all accounts by a 503.
    #[test]
    fn of_requests_that_listen_there_are_128_and_four_of_an_account() {
        let program: Program = clap::Parser::parse_from(["program"]);
        let admission = Admission::new(&program.limits, 64 * 1024, 100);
        let listen = |partner: &KnownPartner| admission.listener(partner);
        let refused = |partner: &KnownPartner| {
            let response = listen(partner).err().unwrap().into_response();
            assert!(response.headers().contains_key("retry-after"));
            response.status().as_u16()
        };
        let account = || KnownPartner::example(Environment::Sandbox);
        let one = account();
        let of_one: Vec<_> = (0..4).map(|_| listen(&one).ok().unwrap()).collect();
        assert_eq!(refused(&one), 429);
        let mut of_others: Vec<_> = (4..128).map(|_| listen(&account()).ok().unwrap()).collect();
        assert_eq!((of_one.len(), of_others.len()), (4, 124));
        assert_eq!(refused(&account()), 503);
        // Whoever ends makes room.
        of_others.pop();
        listen(&account()).ok().unwrap();
    }
}

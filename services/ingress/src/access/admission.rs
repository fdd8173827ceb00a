//! Admission decides how many requests may be in flight, in all and for each partner.
//!
//! Guarantees: the orders, the memory of their bodies and units, the self-service requests and the
//! listeners in flight are bounded, each by an [`InFlightLimit`], which leaves room for the other
//! partners. A request that is refused here has stored nothing.
//!
//! Create-order calls [`Admission::admit_order`] after the signature is checked and before the body
//! is read, and [`AdmittedOrder::count_order`] once the units are known. Self-service calls
//! [`Admission::admit_self_service`], which lets a request wait a moment for its turn, or
//! [`Admission::admit_listener`] for long polls. Each limit holds for one process. The module
//! relies on permits being dropped when the request ends, and on [`super::rates`] for requests per
//! second.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use domain::PartnerId;

use crate::{
    access::{
        directory::KnownPartner,
        in_flight::{Bound, InFlightLimit, InFlightPermit},
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

pub(crate) struct Admission {
    orders: Arc<InFlightLimit>,
    /// Lowers the capacity of `orders` while they take too long.
    overload: Arc<Overload>,
    memory: Arc<InFlightLimit>,
    self_service: Arc<InFlightLimit>,
    /// The self-service requests that wait for a permit of `self_service`.
    waiting: Arc<InFlightLimit>,
    /// `QUEUE_DEADLINE`.
    wait: Duration,
    listeners: Arc<InFlightLimit>,
    pub(crate) rates: Rates,
}

impl Admission {
    /// Creates the limits. `max_body` is the maximum size of a body in bytes, and `max_units` the
    /// maximum number of units of one order.
    pub(crate) fn new(limits: &LimitsConfig, max_body: usize, max_units: u32) -> Self {
        // The largest allowed body and the largest allowed order must fit alone, or they would be
        // refused forever.
        let least = (max_body as u64).max(u64::from(max_units) * UNIT);
        let orders = InFlightLimit::new(limits.max_in_flight.into());
        let overload = Overload::new(&orders, limits.target_delay, Instant::now());
        let admission = Self {
            orders,
            overload: Arc::new(overload),
            memory: InFlightLimit::new((u64::from(MAX_IN_FLIGHT_MEMORY) * MIB).max(least)),
            self_service: InFlightLimit::new(SELF_SERVICE_IN_FLIGHT.into()),
            waiting: InFlightLimit::new(SELF_SERVICE_WAITING.into()),
            wait: limits.queue_deadline,
            listeners: InFlightLimit::new(LISTENERS.into()),
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
    pub(crate) fn count_request(&self, partner: &KnownPartner) -> Result<RateState, ApiError> {
        self.rates.of(partner).count_request()
    }

    /// Admits an order whose body has at most `body` bytes. It is called before the body is read,
    /// so that the memory is reserved before it is used.
    pub(crate) fn admit_order(
        &self,
        partner: &KnownPartner,
        body: u64,
    ) -> Result<AdmittedOrder, ApiError> {
        let rates = self.rates.of(partner);
        let own = partner.limits.max_in_flight;
        let is_overloaded = self.overload.is_lasting();
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
            _in_flight: in_flight,
            overload: Arc::clone(&self.overload),
            memory,
            rates,
        })
    }

    /// Admits a self-service request, which is no order in flight. If there is no room, it waits a
    /// moment, because a few look-ups at the same time are no flood.
    pub(crate) async fn admit_self_service(
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

    /// Admits a request that waits for webhooks. It is not among those of
    /// [`Self::admit_self_service`].
    pub(crate) fn admit_listener(
        &self,
        partner: &KnownPartner,
    ) -> Result<InFlightPermit, ApiError> {
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
    _in_flight: InFlightPermit,
    overload: Arc<Overload>,
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
        self.rates.count_order(units)
    }

    /// Notes how long the order took since `began`, without the time that it waited for its
    /// provider. If all orders take too long, fewer are admitted from now on ([`Overload`]).
    pub(crate) fn took(&self, began: Instant, delay: Duration) {
        self.overload.note(Instant::now(), began, delay);
    }
}

fn too_many(limit: u32) -> ApiError {
    let code = ErrorCode::TooManyInFlight;
    let message = code.message_with(limit);
    ApiError::Limited(ReachedLimit {
        code,
        limit_name: "max_in_flight",
        message,
        limit,
        wait: Duration::from_secs(1),
    })
}

/// 429: the partner uses its share of a limit that all partners share.
fn share_in_use(limit_name: &'static str, used: u64) -> ApiError {
    let code = ErrorCode::ShareInUse;
    ApiError::Limited(ReachedLimit {
        code,
        limit_name,
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
        let listen = |partner: &KnownPartner| admission.admit_listener(partner);
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

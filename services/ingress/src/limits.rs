//! The settings that limit the load of ingress. Each limit holds for one process, so with several
//! replicas the limits add up.
//!
//! A limit delays or refuses work, and never loses any. Each help text says what happens at the
//! limit, and `docs/reference.md` has a row for it with the metric that shows it. The modules that
//! enforce a limit take the value from here.

use std::{num::NonZeroU32, time::Duration};

use clap::{Args, value_parser};
use runtime::config::positive_duration;

/// The limits of one process that are settings. What nobody needs another value of is a constant in
/// the module that enforces it.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct LimitsConfig {
    /// Maximum number of open connections
    ///
    /// When a further connection comes, an idle connection of whoever holds most of them gets a 503
    /// and is closed instead: a partner with more than an equal share, or else the source with the
    /// most connections on which nobody has authenticated. If there is none, the further connection
    /// is. So nobody keeps others out, with keys or without. Finer limits for each client belong to
    /// the proxy in front.
    #[arg(long, env = "MAX_CONNECTIONS", default_value_t = 4096, value_parser = value_parser!(u32).range(1..))]
    pub max_connections: u32,

    /// Maximum time until the head of a request has arrived
    ///
    /// The time counts from the start of the connection, or from the previous response on it. Then
    /// the connection is closed, so it is also the time for which idle connections stay open. It
    /// must be longer than a proxy in front keeps idle connections; otherwise ingress may close a
    /// connection at the moment at which the proxy sends a request on it.
    #[arg(long, env = "HEAD_TIMEOUT", default_value = "75s", value_parser = positive_duration)]
    pub head_timeout: Duration,

    /// Maximum number of orders in flight
    ///
    /// An order is in flight from its admission until it is answered. Further orders get a 503 with
    /// Retry-After, before their bodies are read. A single partner can use at most half of what the
    /// other partners leave free, so that one busy partner cannot block everybody. An operator can
    /// set a limit for a single partner; orders of this partner beyond it get a 429.
    #[arg(long, env = "MAX_IN_FLIGHT", default_value_t = 4096, value_parser = value_parser!(u32).range(1..))]
    pub max_in_flight: u32,

    /// Time that an order may take before fewer orders are admitted
    ///
    /// The time counts without what the provider takes. If even the fastest of the last orders took
    /// longer, this process or its database has too much to do. Then the number of orders that may
    /// be in flight is lowered until the time is reached again, and further orders get a 503 with
    /// Retry-After at once, instead of a late answer. It is never lowered below 256. Where the
    /// commits alone take so long, for example because a standby is far away, raise this time.
    #[arg(long, default_value = "200ms", value_parser = positive_duration)]
    pub target_delay: Duration,

    /// Maximum time that a request waits for its turn
    ///
    /// Orders queue while the database is slow or busy. An order whose turn does not come in this
    /// time is taken out of the queue, is not stored, and gets a 503 with Retry-After. A
    /// self-service request waits for as long until fewer than 64 of them are in flight. If 256
    /// wait already, or its time is over, it gets a 429 if the partner has used up its share,
    /// otherwise a 503, both with Retry-After.
    #[arg(long, env = "QUEUE_DEADLINE", default_value = "2s", value_parser = positive_duration)]
    pub queue_deadline: Duration,

    /// Maximum number of orders per second of one partner
    ///
    /// Only orders whose bodies have no errors count. Further orders get a 429 with Retry-After. A
    /// burst of one second's worth is allowed. A partner may send five times as many signed
    /// requests of all kinds per second, and order five times as many units; for units the burst is
    /// one order with `MAX_UNITS` if that is more, so that the largest order always fits.
    /// `esimctl partner set` can give a partner other limits, each of its own.
    #[arg(long, env = "PARTNER_ORDERS_PER_SECOND", default_value = "2000")]
    pub partner_orders_per_second: NonZeroU32,

    /// Minimum time between two requests of a partner that make us send the same thing again
    ///
    /// It is the time between the last attempt of a webhook and its redelivery at the partner's
    /// request, and the time between two codes that verify a channel for notices. Between two tests
    /// of an endpoint it is a sixth of it. A request that comes sooner gets a 429 with Retry-After.
    /// An operator can have a webhook sent again at any time.
    #[arg(long, env = "REDELIVER_INTERVAL", default_value = "60s", value_parser = positive_duration)]
    pub redeliver_interval: Duration,

    /// Maximum time that `GET …/webhook/listen` waits for webhooks
    ///
    /// After this time its answer is empty, and the client asks again. It must be shorter than the
    /// response timeout of a proxy in front; otherwise the proxy ends the request with an error.
    #[arg(long, env = "LISTEN_WAIT", default_value = "20s", value_parser = positive_duration)]
    pub listen_wait: Duration,
}

/// Maximum size of the body of a request, in bytes, unless orders may have more than 100 items. It
/// has room for twice the 100 items that `MAX_ITEMS` allows by default.
const MAX_BODY: u32 = 64 * 1024;

/// The maximum size of the body of a request, in bytes: with room for an order of `max_items`, at
/// 640 bytes for each of them, so nobody has to keep the two in step. A request with a larger body
/// gets a 413. If `Content-Length` already says so, the body is refused before it is read.
pub(crate) fn max_body(max_items: u16) -> usize {
    size(MAX_BODY.max(u32::from(max_items) * 640))
}

/// How many requests and units a partner has for each order.
const FIVE: NonZeroU32 = NonZeroU32::new(5).unwrap();

impl LimitsConfig {
    /// How many signed requests a partner may send per second. They are more than the orders,
    /// which are requests, too, so that who orders as fast as allowed can also look something up.
    pub(crate) fn partner_requests_per_second(&self) -> NonZeroU32 {
        self.partner_orders_per_second.saturating_mul(FIVE)
    }

    /// How many units a partner may order per second.
    pub(crate) fn partner_units_per_second(&self) -> NonZeroU32 {
        self.partner_orders_per_second.saturating_mul(FIVE)
    }

    /// The minimum time between two tests of one endpoint. A developer repeats a test sooner than a
    /// redelivery, and it costs one request.
    pub(crate) fn test_interval(&self) -> Duration {
        self.redeliver_interval / 6
    }
}

/// The maximum size of one order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderSize {
    /// The number of items in `products`.
    pub(crate) items: usize,
    /// The number of units in total: the sum of all `qty`.
    pub(crate) units: u64,
}

pub(crate) fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orders::request;

    #[test]
    fn the_largest_order_fits_into_the_largest_body() {
        let item = r#"{ "option_id": "6f9619ff-8b86-d011-b42d-00c04fc964ff", "qty": 10 }"#;
        // The longest way to write one character in JSON is as two escaped surrogates.
        let id = "\\ud83d\\udcf1".repeat(255);
        let items = vec![item; 100].join(",\n        ");
        let body = format!(r#"{{ "external_order_id": "{id}", "products": [ {items} ] }}"#);
        let max = OrderSize {
            items: 100,
            units: 1000,
        };
        let draft = request::read(body.as_bytes(), max).unwrap();
        assert!(draft.errors.is_empty() && draft.items.len() == 100);
        assert!(body.len() < max_body(100) / 2, "{}", body.len());
    }
}

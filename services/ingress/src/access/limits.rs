//! The settings that limit the load of ingress. Each limit holds for one process, so with several
//! replicas the limits add up.
//!
//! A limit delays or refuses work, and never loses any. Each help text says what happens at the
//! limit, and `docs/reference.md` has a row for it with the metric that shows it. The modules that
//! enforce a limit take the value from here.

use std::{num::NonZeroU32, time::Duration};

use clap::{Args, value_parser};
use runtime::config::positive_duration;

/// The limits of one process. Those with `skip` are no settings, because nobody needs another value:
/// their comments say why. They are fields all the same, so that unit tests can change them.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct LimitsConfig {
    /// Maximum size of the head of a request, in bytes. A request with a larger head gets a 431. The
    /// longest head that a partner needs, with a traceparent and a proxy's headers, has 2 KiB.
    #[arg(skip = 16 * 1024_u32)]
    pub max_head: u32,

    /// Maximum size of the body of a request, in bytes. A request with a larger body gets a 413. If
    /// `Content-Length` already says so, the body is refused before it is read. It has room for
    /// twice the 100 items that `MAX_ITEMS` allows by default; [`LimitsConfig::fit`] raises it for
    /// a larger `MAX_ITEMS`, so nobody has to keep the two in step.
    #[arg(skip = 64 * 1024_u32)]
    pub max_body: u32,

    /// Maximum number of open connections
    ///
    /// When a further connection comes, an idle connection on which nobody has authenticated gets a
    /// 503 and is closed instead: the oldest one of the source with the most of them. If there is
    /// none, the further connection is. So a client without keys keeps nobody out. Finer limits for
    /// each client belong to the proxy in front.
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

    /// Maximum time for the body of a request to arrive. The time counts from the moment at which
    /// ingress begins to read the body. A slower request gets a 408. The largest body arrives in it
    /// at 5 kB/s, which is slower than any line that a server has.
    #[arg(skip = Duration::from_secs(15))]
    pub body_timeout: Duration,

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

    /// Maximum estimated memory for orders in flight, in MiB. An order counts with the size of its body while the body is read, and then with 512 bytes
    /// per unit. Further orders get a 503 with Retry-After. Partners share this limit like
    /// `MAX_IN_FLIGHT`. If the value is too small for one body of `MAX_BODY` or one order of
    /// `MAX_UNITS`, it is raised so that each of them fits.
    #[arg(skip = 64_u32)]
    pub max_in_flight_memory: u32,

    /// Maximum time that a request waits for its turn
    ///
    /// Orders queue while the database is slow or busy. An order whose turn does not come in this
    /// time is taken out of the queue, is not stored, and gets a 503 with Retry-After. A
    /// self-service request waits for as long until fewer than 64 of them are in flight. If 256 wait already, or its time is over, it gets a 429 if the
    /// partner has used up its share, otherwise a 503, both with Retry-After.
    #[arg(long, env = "QUEUE_DEADLINE", default_value = "2s", value_parser = positive_duration)]
    pub queue_deadline: Duration,

    /// Maximum number of orders per second of one partner
    ///
    /// Only orders whose bodies have no errors count. Further orders get a 429 with Retry-After. A
    /// burst of one second's worth is allowed. A partner may send five times as many signed requests
    /// of all kinds per second, and order five times as many units; for units the burst is one
    /// order with `MAX_UNITS` if that is more, so that the largest order always fits. `esimctl
    /// partner set` can give a partner other limits, each of its own.
    #[arg(long, env = "PARTNER_ORDERS_PER_SECOND", default_value = "2000")]
    pub partner_orders_per_second: NonZeroU32,

    /// Maximum number of self-service requests in flight. These are all signed requests except
    /// create-order and `GET …/webhook/listen`. Further requests wait for up to `QUEUE_DEADLINE`. A
    /// single partner can use at most half of what the other partners leave free. The limit is
    /// separate from `MAX_IN_FLIGHT`, so that a flood of look-ups takes no room from orders. Two
    /// connections serve them all, so more would only wait in another place.
    #[arg(skip = 64_u32)]
    pub self_service_in_flight: u32,

    /// Maximum number of self-service requests that wait until fewer are in flight. A few look-ups at once are no flood, so they wait a moment instead of being refused. Further
    /// requests are refused at once: with a 429 if the partner has used up its share of
    /// the places in flight, otherwise with a 503, both with Retry-After. A single partner can
    /// use at most half of what the other partners leave free.
    #[arg(skip = 256_u32)]
    pub self_service_waiting: u32,

    /// Maximum number of database connections that self-service requests use at once, so that orders
    /// always find a free one. A look-up takes a millisecond, so two serve what one process can. A
    /// request that waits 2s for a connection gets a 503 with Retry-After.
    #[arg(skip = 2_u16)]
    pub self_service_concurrency: u16,

    /// Minimum time between two requests of a partner that make us send the same thing again
    ///
    /// It is the time between the last attempt of a webhook and its redelivery at the partner's
    /// request, and the time between two codes that verify a channel for notices. Between two tests
    /// of an endpoint it is a sixth of it. A request that comes sooner gets a 429 with Retry-After.
    /// An operator can have a webhook sent again at any time.
    #[arg(long, env = "REDELIVER_INTERVAL", default_value = "60s", value_parser = positive_duration)]
    pub redeliver_interval: Duration,

    /// Maximum number of questions per second of one partner that go to a provider. These are `GET …/topups/{topup_id}/usage` without an answer that is new enough, and
    /// `POST …/topups/{topup_id}/give-back`. Further ones get a 429 with Retry-After. The calls to a
    /// provider are few (`PROVIDER_RATE`), and purchases need them, too.
    #[arg(skip = NonZeroU32::new(5).unwrap_or(NonZeroU32::MIN))]
    pub partner_esim_requests_per_second: NonZeroU32,

    /// How old a provider's answer about the data use of an eSIM may be to be served again. An older one is served only if the provider does not answer now. Providers count the data with
    /// a delay of an hour or more, so asking more often shows nothing new.
    #[arg(skip = Duration::from_mins(5))]
    pub usage_fresh: Duration,

    /// Maximum time that a request about a delivered eSIM waits for the provider. After this time a
    /// question about the data use gets the last answer, or a 503 with Retry-After if there is none.
    /// A give-back gets a 202 and goes on. It is longer than `PROVIDER_TIMEOUT` of the provisioner
    /// by default, and short enough for the clients of partners.
    #[arg(skip = Duration::from_secs(12))]
    pub esim_request_wait: Duration,

    /// Maximum number of sandbox accounts' requests that wait for webhooks. These are requests of
    /// `GET …/webhook/listen`. Each of them stays open for up to `LISTEN_WAIT` and looks at the
    /// database once a second, so this bounds what they cost it. They do not count towards
    /// the requests in flight. Further requests get a 503 with Retry-After.
    #[arg(skip = 128_u32)]
    pub listeners: u32,

    /// Maximum number of one sandbox account's requests that wait for webhooks: one for each of a few
    /// developers. Further requests of the account get a 429 with Retry-After, so that one account cannot take
    /// all places.
    #[arg(skip = 4_u32)]
    pub partner_listeners: u32,

    /// Maximum time that `GET …/webhook/listen` waits for webhooks
    ///
    /// After this time its answer is empty, and the client asks again. It must be shorter than the
    /// response timeout of a proxy in front; otherwise the proxy ends the request with an error.
    #[arg(long, env = "LISTEN_WAIT", default_value = "20s", value_parser = positive_duration)]
    pub listen_wait: Duration,

    /// Maximum time that `POST …/webhook/test` waits for the outcome of the test. After this time it
    /// gets a 202, and the partner can look the event up. It is longer than the notifier's
    /// `WEBHOOK_TIMEOUT` by default, so that also the test of a slow endpoint gets its outcome.
    #[arg(skip = Duration::from_secs(20))]
    pub webhook_test_wait: Duration,

    /// Maximum number of codes per partner within 24 hours that verify a channel for notices. It
    /// bounds what a stranger gets whose e-mail address a partner names by mistake or on purpose. A
    /// further code gets a 429 with Retry-After.
    #[arg(skip = 5_u32)]
    pub notice_verifications_per_day: u32,

    /// Maximum number of QR pictures that are drawn at once. Further ones wait for up to `qr_wait`. The limit is low because drawing costs processor
    /// time, anyone can ask for pictures, and orders come first.
    #[arg(skip = 1_u16)]
    pub qr_concurrency: u16,

    /// Maximum number of QR pictures of one source that wait to be drawn next. A source is an IPv4 address or an IPv6 /64. Its further pictures wait until these are drawn,
    /// so a flood from one source makes the pictures of the others wait for only so many of its own.
    /// Behind a proxy, which is then the only source, the pictures are drawn in the order in which
    /// they were asked for.
    #[arg(skip = 8_u16)]
    pub qr_per_source: u16,

    /// Maximum number of QR pictures that are drawn per second. A picture takes a millisecond of one
    /// processor, so this is a tenth of it. Further ones wait for up to `qr_wait`.
    #[arg(skip = NonZeroU32::new(100).unwrap_or(NonZeroU32::MIN))]
    pub qr_rate: NonZeroU32,

    /// Maximum time that a request waits for its QR picture to be drawn. After this time it gets a 503 with Retry-After.
    #[arg(skip = Duration::from_secs(1))]
    pub qr_wait: Duration,

    /// Maximum number of log lines per second about refused requests. Further refused requests are not logged, so that a flood of them does not fill the log. The
    /// metrics count all of them, and the next line has the number of missing ones in `suppressed`.
    #[arg(skip = 20_u32)]
    pub refusals_logged: u32,

    /// Maximum number of refused requests of one partner that are kept for operators. `esimctl partner show --refused` and the console show them. The number holds for each of three
    /// kinds: orders, other requests, and requests without a valid signature. Of these, the newest
    /// ones are kept, for as long as `esimctl retention` says.
    #[arg(skip = 1000_u32)]
    pub partner_refusals_kept: u32,

    /// Maximum number of refused requests of one partner and kind per minute that are kept. So a
    /// flood of refused requests costs the database little, and pushes out the older ones slowly.
    /// The next one that is kept has the number of those that were not.
    #[arg(skip = 60_u32)]
    pub partner_refusals_per_minute: u32,
}

/// How many requests and units a partner has for each order.
const FIVE: NonZeroU32 = NonZeroU32::new(5).unwrap();

impl LimitsConfig {
    /// Makes room for the body of an order with `max_items`, at 640 bytes for each of them.
    pub(crate) fn fit(&mut self, max_items: u16) {
        self.max_body = self.max_body.max(u32::from(max_items) * 640);
    }

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
    use clap::Parser;

    use super::*;
    use crate::orders::request;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        limits: LimitsConfig,
    }

    #[test]
    fn the_largest_order_fits_into_the_largest_body() {
        let Program { limits } = Program::parse_from(["program"]);
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
        assert!(body.len() < size(limits.max_body) / 2, "{}", body.len());
    }
}

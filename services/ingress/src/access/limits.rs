//! The settings that limit the load of ingress. Each limit holds for one process, so with several
//! replicas the limits add up.
//!
//! A limit delays or refuses work, and never loses any. Each help text says what happens at the
//! limit, and `docs/reference.md` has a row for it with the metric that shows it. The modules that
//! enforce a limit take the value from here.

use std::{num::NonZeroU32, time::Duration};

use clap::{Args, value_parser};
use runtime::{config::positive_duration, listener::Bounds};

/// The limits of one process. Those with `skip` are no settings, because nobody needs another value:
/// their comments say why. They are fields all the same, so that unit tests can change them.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct LimitsConfig {
    /// Maximum size of the head of a request, in bytes. A request with a larger head gets a 431. The
    /// longest head that a partner needs, with a traceparent and a proxy's headers, has 2 KiB.
    #[arg(skip = 16 * 1024_u32)]
    pub max_head: u32,

    /// Maximum size of the body of a request, in bytes
    ///
    /// A request with a larger body gets a 413. If `Content-Length` already says so, the body is
    /// refused before it is read. The default has room for more than 100 items, which is the
    /// default of `MAX_ITEMS`.
    #[arg(long, env = "MAX_BODY", default_value_t = 64 * 1024, value_parser = value_parser!(u32).range(1024..=67_108_864))]
    pub max_body: u32,

    /// Maximum number of open connections
    ///
    /// When a further connection comes, the oldest idle connection on which nobody has authenticated
    /// gets a 503 and is closed instead. If there is none, the further connection is.
    #[arg(long, env = "MAX_CONNECTIONS", default_value_t = 4096, value_parser = value_parser!(u32).range(1..))]
    pub max_connections: u32,

    /// Maximum number of open connections from one IPv4 address or IPv6 /64
    ///
    /// A further connection of this source takes the place of an idle one of the same source, as at
    /// `MAX_CONNECTIONS`, or gets a 503 and is closed. So one source cannot take all of
    /// `MAX_CONNECTIONS`. Behind a proxy all connections come from one source, so set this to
    /// `MAX_CONNECTIONS` there.
    #[arg(long, env = "MAX_CONNECTIONS_PER_SOURCE", default_value_t = 1024, value_parser = value_parser!(u32).range(1..))]
    pub max_connections_per_source: u32,

    /// Maximum time until the head of a request has arrived
    ///
    /// The time counts from the start of the connection, or from the previous response on it. Then
    /// the connection is closed, so it is also the time for which idle connections stay open. It
    /// must be longer than a proxy in front keeps idle connections; otherwise ingress may close a
    /// connection at the moment at which the proxy sends a request on it.
    #[arg(long, env = "HEAD_TIMEOUT", default_value = "75s", value_parser = positive_duration)]
    pub head_timeout: Duration,

    /// Maximum time without a request on a connection on which nobody has authenticated
    ///
    /// Then the connection is closed, so that clients without keys hold connections for a shorter
    /// time than `HEAD_TIMEOUT`. A longer time than `HEAD_TIMEOUT` changes nothing. Behind a proxy,
    /// set it to `HEAD_TIMEOUT`, because the proxy may send the next request of a partner on any of
    /// its idle connections.
    #[arg(long, env = "UNAUTHENTICATED_TIMEOUT", default_value = "10s", value_parser = positive_duration)]
    pub unauthenticated_timeout: Duration,

    /// Maximum time for the body of a request to arrive
    ///
    /// The time counts from the moment at which ingress begins to read the body. A slower request
    /// gets a 408.
    #[arg(long, env = "BODY_TIMEOUT", default_value = "15s", value_parser = positive_duration)]
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
    #[arg(long, env = "TARGET_DELAY", default_value = "200ms", value_parser = positive_duration)]
    pub target_delay: Duration,

    /// Maximum estimated memory for orders in flight, in MiB. An order counts with the size of its body while the body is read, and then with 512 bytes
    /// per unit. Further orders get a 503 with Retry-After. Partners share this limit like
    /// `MAX_IN_FLIGHT`. If the value is too small for one body of `MAX_BODY` or one order of
    /// `MAX_UNITS`, it is raised so that each of them fits.
    #[arg(skip = 64_u32)]
    pub max_in_flight_memory: u32,

    /// Maximum time that an order waits to be stored
    ///
    /// Orders queue while the database is slow or busy. An order whose turn does not come in this
    /// time is taken out of the queue, is not stored, and gets a 503 with Retry-After.
    #[arg(long, env = "QUEUE_DEADLINE", default_value = "2s", value_parser = positive_duration)]
    pub queue_deadline: Duration,

    /// Maximum number of signed requests per second of one partner
    ///
    /// Create-order and self-service requests count. Further requests get a 429 with Retry-After. A
    /// burst of one second's worth is allowed. `esimctl partner set` can give a partner
    /// another limit.
    #[arg(long, env = "PARTNER_REQUESTS_PER_SECOND", default_value = "2000")]
    pub partner_requests_per_second: NonZeroU32,

    /// Maximum number of orders per second of one partner
    ///
    /// Only orders whose bodies have no errors count. Further orders get a 429 with Retry-After. A
    /// burst of one second's worth is allowed. `esimctl partner set` can give a partner
    /// another limit.
    #[arg(long, env = "PARTNER_ORDERS_PER_SECOND", default_value = "2000")]
    pub partner_orders_per_second: NonZeroU32,

    /// Maximum number of ordered units per second of one partner
    ///
    /// Further orders get a 429 with Retry-After. A burst of one second's worth is allowed, or of
    /// one order with `MAX_UNITS` if that is more, so that the largest order always fits. `esimctl
    /// partner set` can give a partner another limit.
    #[arg(long, env = "PARTNER_UNITS_PER_SECOND", default_value = "10000")]
    pub partner_units_per_second: NonZeroU32,

    /// Maximum number of self-service requests in flight
    ///
    /// These are all signed requests except create-order and `GET …/webhook/listen`. Further
    /// requests wait for up to `SELF_SERVICE_WAIT`. A single partner can use at most half of what
    /// the other partners leave free. The limit is separate from `MAX_IN_FLIGHT`, so that a flood of
    /// look-ups takes no room from orders.
    #[arg(long, env = "SELF_SERVICE_IN_FLIGHT", default_value_t = 64, value_parser = value_parser!(u32).range(1..))]
    pub self_service_in_flight: u32,

    /// Maximum number of self-service requests that wait until fewer are in flight. A few look-ups at once are no flood, so they wait a moment instead of being refused. Further
    /// requests are refused at once: with a 429 if the partner has used up its share of
    /// `SELF_SERVICE_IN_FLIGHT`, otherwise with a 503, both with Retry-After. A single partner can
    /// use at most half of what the other partners leave free.
    #[arg(skip = 256_u32)]
    pub self_service_waiting: u32,

    /// Maximum time that a self-service request waits until fewer are in flight
    ///
    /// A few look-ups at once are no flood, so they wait a moment. After this time, or if 256 wait
    /// already, a request gets a 429 if the partner has used up its share of
    /// `SELF_SERVICE_IN_FLIGHT`, otherwise a 503, both with Retry-After.
    #[arg(long, env = "SELF_SERVICE_WAIT", default_value = "2s", value_parser = positive_duration)]
    pub self_service_wait: Duration,

    /// Maximum number of database connections that self-service requests use at once, so that orders
    /// always find a free one. A look-up takes a millisecond, so two serve what one process can. A
    /// request that waits 2s for a connection gets a 503 with Retry-After.
    #[arg(skip = 2_u16)]
    pub self_service_concurrency: u16,

    /// Minimum time between the last attempt of a webhook and its redelivery at the partner's
    /// request
    ///
    /// A request that comes sooner gets a 429 with Retry-After. An operator can replay a delivery
    /// at any time.
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

    /// Maximum time that a request about a delivered eSIM waits for the provider
    ///
    /// After this time a question about the data use gets the last answer, or a 503 with Retry-After
    /// if there is none. A give-back gets a 202 and goes on. It should be longer than
    /// `PROVIDER_TIMEOUT` of the provisioner.
    #[arg(long, env = "ESIM_REQUEST_WAIT", default_value = "12s", value_parser = positive_duration)]
    pub esim_request_wait: Duration,

    /// Maximum number of sandbox accounts' requests that wait for webhooks
    ///
    /// These are requests of `GET …/webhook/listen`. Each of them stays open for up to
    /// `LISTEN_WAIT` and looks at the database once a second. They do not count towards
    /// `SELF_SERVICE_IN_FLIGHT`. Further requests get a 503 with Retry-After.
    #[arg(long, env = "LISTENERS", default_value_t = 128, value_parser = value_parser!(u32).range(1..))]
    pub listeners: u32,

    /// Maximum number of one sandbox account's requests that wait for webhooks: one for each of a few
    /// developers. Further requests of the account get a 429 with Retry-After, so that one account cannot take
    /// all of `LISTENERS`.
    #[arg(skip = 4_u32)]
    pub partner_listeners: u32,

    /// Maximum time that `GET …/webhook/listen` waits for webhooks
    ///
    /// After this time its answer is empty, and the client asks again. It must be shorter than the
    /// response timeout of a proxy in front; otherwise the proxy ends the request with an error.
    #[arg(long, env = "LISTEN_WAIT", default_value = "20s", value_parser = positive_duration)]
    pub listen_wait: Duration,

    /// Minimum time between two tests of one partner's webhook endpoint
    ///
    /// A test that is asked for sooner gets a 429 with Retry-After.
    #[arg(long, env = "WEBHOOK_TEST_INTERVAL", default_value = "10s", value_parser = positive_duration)]
    pub webhook_test_interval: Duration,

    /// Maximum time that `POST …/webhook/test` waits for the outcome of the test. After this time it
    /// gets a 202, and the partner can look the event up. It is longer than the notifier's
    /// `WEBHOOK_TIMEOUT` by default, so that also the test of a slow endpoint gets its outcome.
    #[arg(skip = Duration::from_secs(20))]
    pub webhook_test_wait: Duration,

    /// Minimum time between two codes that verify a partner's channel for notices
    ///
    /// A code is sent when the partner sets a URL or an e-mail address. One that is asked for sooner
    /// gets a 429 with Retry-After.
    #[arg(long, env = "NOTICE_VERIFY_INTERVAL", default_value = "60s", value_parser = positive_duration)]
    pub notice_verify_interval: Duration,

    /// Maximum number of codes per partner within 24 hours that verify a channel for notices
    ///
    /// It bounds what a stranger gets whose e-mail address a partner names by mistake or on
    /// purpose. A further code gets a 429 with Retry-After.
    #[arg(long, env = "NOTICE_VERIFICATIONS_PER_DAY", default_value = "5")]
    pub notice_verifications_per_day: NonZeroU32,

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

    /// Maximum number of refused requests of one partner and kind per minute that are kept
    ///
    /// So a flood of refused requests costs the database little, and pushes out the older ones
    /// slowly. The next one that is kept has the number of those that were not. With 0 none are kept.
    #[arg(long, env = "PARTNER_REFUSALS_PER_MINUTE", default_value_t = 60)]
    pub partner_refusals_per_minute: u32,
}

impl LimitsConfig {
    pub(crate) fn connections(&self) -> Bounds {
        Bounds {
            all: size(self.max_connections),
            per_source: size(self.max_connections_per_source),
        }
    }
}

pub(crate) fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::orders::request::{self, OrderSize};

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

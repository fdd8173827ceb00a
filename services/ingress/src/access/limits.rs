//! The settings that limit the load of ingress. Each limit holds for one process, so replicas multiply it.
//!
//! Every limit delays or refuses work, and none loses it: each help text says what happens at the limit, and
//! `docs/operations.md` has a row with its metric. The modules that enforce a limit take the value from here.

use std::{num::NonZeroU32, time::Duration};

use clap::{Args, value_parser};
use runtime::{config::positive_duration, listener::Bounds};

/// The limits of one process.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct LimitsConfig {
    /// Maximum size of a request's head in bytes; a larger head gets 431.
    #[arg(long, env = "MAX_HEAD", default_value_t = 16 * 1024, value_parser = value_parser!(u32).range(8192..=1_048_576))]
    pub max_head: u32,

    /// Maximum size of a request's body in bytes; a larger body gets 413.
    #[arg(long, env = "MAX_BODY", default_value_t = 64 * 1024, value_parser = value_parser!(u32).range(1024..=67_108_864))]
    pub max_body: u32,

    /// Maximum number of open connections; a further connection gets 503 and is closed.
    #[arg(long, env = "MAX_CONNECTIONS", default_value_t = 4096, value_parser = value_parser!(u32).range(1..))]
    pub max_connections: u32,

    /// Maximum number of open connections from one IPv4 address or IPv6 /64; a further connection gets 503 and is
    /// closed. Behind a proxy, which is the only source, set it to `MAX_CONNECTIONS`.
    #[arg(long, env = "MAX_CONNECTIONS_PER_SOURCE", default_value_t = 1024, value_parser = value_parser!(u32).range(1..))]
    pub max_connections_per_source: u32,

    /// Maximum time until a request's head has arrived, counted from the connection's start or from the response before;
    /// then the connection is closed. It must be longer than a proxy keeps idle connections, because the proxy may send
    /// a request at the moment of the close.
    #[arg(long, env = "HEAD_TIMEOUT", default_value = "75s", value_parser = positive_duration)]
    pub head_timeout: Duration,

    /// Maximum time for a request's body to arrive; a slower request gets 408.
    #[arg(long, env = "BODY_TIMEOUT", default_value = "15s", value_parser = positive_duration)]
    pub body_timeout: Duration,

    /// Maximum number of orders in flight; further orders get 503. One partner can use at most half of the capacity that
    /// the other partners leave free.
    #[arg(long, env = "MAX_IN_FLIGHT", default_value_t = 4096, value_parser = value_parser!(u32).range(1..))]
    pub max_in_flight: u32,

    /// Maximum memory for the bodies and units of orders in flight, in MiB; further orders get 503. Partners share it
    /// like `MAX_IN_FLIGHT`.
    #[arg(long, env = "MAX_IN_FLIGHT_MEMORY", default_value_t = 64, value_parser = value_parser!(u32).range(1..=1_048_576))]
    pub max_in_flight_memory: u32,

    /// Maximum time that an order waits to be stored; then it is dropped and gets 503.
    #[arg(long, env = "QUEUE_DEADLINE", default_value = "2s", value_parser = positive_duration)]
    pub queue_deadline: Duration,

    /// Maximum number of signed requests per second of one partner; further requests get 429.
    #[arg(long, env = "PARTNER_REQUESTS_PER_SECOND", default_value = "2000")]
    pub partner_requests_per_second: NonZeroU32,

    /// Maximum number of valid orders per second of one partner; further orders get 429.
    #[arg(long, env = "PARTNER_ORDERS_PER_SECOND", default_value = "2000")]
    pub partner_orders_per_second: NonZeroU32,

    /// Maximum number of ordered units per second of one partner; further orders get 429.
    #[arg(long, env = "PARTNER_UNITS_PER_SECOND", default_value = "10000")]
    pub partner_units_per_second: NonZeroU32,

    /// Maximum number of signed requests in flight other than orders; further requests get 503. One partner can use at
    /// most half of the capacity that the other partners leave free.
    #[arg(long, env = "SELF_SERVICE_IN_FLIGHT", default_value_t = 64, value_parser = value_parser!(u32).range(1..))]
    pub self_service_in_flight: u32,

    /// Maximum number of database connections that requests other than orders use at once; a request that waits 2 s for
    /// one gets 503.
    #[arg(long, env = "SELF_SERVICE_CONCURRENCY", default_value_t = 2, value_parser = value_parser!(u16).range(1..=512))]
    pub self_service_concurrency: u16,

    /// Minimum time between a webhook's last attempt and its redelivery at the partner's request; a sooner request gets
    /// 429.
    #[arg(long, env = "REDELIVER_INTERVAL", default_value = "60s", value_parser = positive_duration)]
    pub redeliver_interval: Duration,

    /// Maximum number of requests of sandbox accounts that wait for webhooks (`GET …/webhook/listen`); further requests
    /// get 503. One partner can use at most half of the capacity that the other partners leave free.
    #[arg(long, env = "LISTENERS", default_value_t = 16, value_parser = value_parser!(u32).range(1..))]
    pub listeners: u32,

    /// Maximum time that `GET …/webhook/listen` waits for webhooks; then its answer is empty. It must be shorter than a
    /// proxy's timeout.
    #[arg(long, env = "LISTEN_WAIT", default_value = "20s", value_parser = positive_duration)]
    pub listen_wait: Duration,

    /// Minimum time between two tests of one partner's webhook endpoint; a sooner test gets 429.
    #[arg(long, env = "WEBHOOK_TEST_INTERVAL", default_value = "10s", value_parser = positive_duration)]
    pub webhook_test_interval: Duration,

    /// Maximum time that `POST …/webhook/test` waits for its outcome; then it gets 202. It must be longer than the
    /// notifier's `WEBHOOK_TIMEOUT`.
    #[arg(long, env = "WEBHOOK_TEST_WAIT", default_value = "20s", value_parser = positive_duration)]
    pub webhook_test_wait: Duration,

    /// Maximum number of QR pictures that are drawn at once; further pictures wait.
    #[arg(long, env = "QR_CONCURRENCY", default_value_t = 1, value_parser = value_parser!(u16).range(1..=512))]
    pub qr_concurrency: u16,

    /// Maximum number of QR pictures that are drawn per second; further pictures wait.
    #[arg(long, env = "QR_RATE", default_value = "100")]
    pub qr_rate: NonZeroU32,

    /// Maximum time that a request waits for its QR picture to be drawn; then it gets 503.
    #[arg(long, env = "QR_WAIT", default_value = "1s", value_parser = positive_duration)]
    pub qr_wait: Duration,

    /// Maximum number of log lines per second about refused requests; further requests are only counted in the metrics.
    #[arg(long, env = "REFUSALS_LOGGED", default_value_t = 20)]
    pub refusals_logged: u32,
}

impl LimitsConfig {
    pub(crate) fn connections(&self) -> Bounds {
        Bounds { all: size(self.max_connections), per_source: size(self.max_connections_per_source) }
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
        // The longest way to write a character in JSON: two escaped surrogates.
        let id = "\\ud83d\\udcf1".repeat(255);
        let items = vec![item; 100].join(",\n        ");
        let body = format!(r#"{{ "external_order_id": "{id}", "products": [ {items} ] }}"#);
        let max = OrderSize { items: 100, units: 1000 };
        let draft = request::read(body.as_bytes(), max).unwrap();
        assert!(draft.errors.is_empty() && draft.items.len() == 100);
        assert!(body.len() < size(limits.max_body) / 2, "{}", body.len());
    }
}

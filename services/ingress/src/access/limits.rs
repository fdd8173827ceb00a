//! The settings that limit the load of ingress. Each limit holds per process.

use std::{num::NonZeroU32, time::Duration};

use clap::Args;
use runtime::{config::positive_duration, listener::Bounds};

/// The limits of one process.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct LimitsConfig {
    /// Largest head of a request, in bytes; a larger one gets 431
    #[arg(long, env = "MAX_HEAD", default_value_t = 16 * 1024, value_parser = clap::value_parser!(u32).range(8192..=1_048_576))]
    pub max_head: u32,
    /// Largest body of a request, in bytes; a larger one gets 413
    #[arg(long, env = "MAX_BODY", default_value_t = 64 * 1024, value_parser = clap::value_parser!(u32).range(1024..=67_108_864))]
    pub max_body: u32,
    /// Most open connections; the next one gets 503 and is closed
    #[arg(long, env = "MAX_CONNECTIONS", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,
    /// Most open connections from one IPv4 address or IPv6 /64; behind a proxy, set it to `MAX_CONNECTIONS`
    #[arg(long, env = "MAX_CONNECTIONS_PER_SOURCE", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections_per_source: u32,
    /// Longest time from a connection's start, or a request's first byte, to the end of the head
    #[arg(long, env = "HEAD_TIMEOUT", default_value = "10s", value_parser = positive_duration)]
    pub head_timeout: Duration,
    /// Longest time for a request's body to arrive; then it gets 408
    #[arg(long, env = "BODY_TIMEOUT", default_value = "15s", value_parser = positive_duration)]
    pub body_timeout: Duration,
    /// Longest time between two requests of a connection; must be longer than a proxy's idle timeout
    #[arg(long, env = "IDLE_TIMEOUT", default_value = "75s", value_parser = positive_duration)]
    pub idle_timeout: Duration,
    /// Most orders in flight; further ones get 503. One partner takes at most half of what the others leave
    #[arg(long, env = "MAX_IN_FLIGHT", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_in_flight: u32,
    /// Most memory for bodies and units of orders in flight, in MiB, shared like `MAX_IN_FLIGHT`
    #[arg(long, env = "MAX_IN_FLIGHT_MEMORY", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub max_in_flight_memory: u32,
    /// Longest time that an order waits to be stored; then it is dropped and gets 503
    #[arg(long, env = "QUEUE_DEADLINE", default_value = "2s", value_parser = positive_duration)]
    pub queue_deadline: Duration,
    /// Signed requests per second of one partner; more get 429
    #[arg(long, env = "PARTNER_REQUESTS_PER_SECOND", default_value = "2000")]
    pub partner_requests_per_second: NonZeroU32,
    /// Valid orders per second of one partner; more get 429
    #[arg(long, env = "PARTNER_ORDERS_PER_SECOND", default_value = "2000")]
    pub partner_orders_per_second: NonZeroU32,
    /// Ordered units per second of one partner; more get 429
    #[arg(long, env = "PARTNER_UNITS_PER_SECOND", default_value = "10000")]
    pub partner_units_per_second: NonZeroU32,
    /// Most requests in flight other than orders; further ones get 503. One partner takes at most half of what the
    /// others leave
    #[arg(long, env = "SELF_SERVICE_IN_FLIGHT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub self_service_in_flight: u32,
    /// Database connections that requests other than orders use at once; a request that waits 2 s for one gets 503
    #[arg(long, env = "SELF_SERVICE_CONCURRENCY", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=512))]
    pub self_service_concurrency: u16,
    /// Shortest time between a webhook's last attempt and its redelivery at the partner's request; sooner gets 429
    #[arg(long, env = "REDELIVER_INTERVAL", default_value = "60s", value_parser = positive_duration)]
    pub redeliver_interval: Duration,
    /// Most signatures that are remembered to refuse replays of requests that sign their body; 0 refuses none
    #[arg(long, env = "REPLAYS_REMEMBERED", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=10_000_000))]
    pub replays_remembered: u32,
    /// Most requests of sandbox accounts that wait for webhooks (`GET …/webhook/listen`); further ones get 503. One
    /// partner takes at most half of what the others leave
    #[arg(long, env = "LISTENERS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub listeners: u32,
    /// Longest time that `GET …/webhook/listen` waits for webhooks; must be shorter than a proxy's timeout
    #[arg(long, env = "LISTEN_WAIT", default_value = "20s", value_parser = positive_duration)]
    pub listen_wait: Duration,
    /// Shortest time between two tests of one partner's webhook endpoint; sooner gets 429
    #[arg(long, env = "WEBHOOK_TEST_INTERVAL", default_value = "10s", value_parser = positive_duration)]
    pub webhook_test_interval: Duration,
    /// Longest time that `POST …/webhook/test` waits for its outcome before it gets 202; must be longer than the
    /// notifier's `WEBHOOK_TIMEOUT`
    #[arg(long, env = "WEBHOOK_TEST_WAIT", default_value = "20s", value_parser = positive_duration)]
    pub webhook_test_wait: Duration,
    /// QR pictures drawn at once
    #[arg(long, env = "QR_CONCURRENCY", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=512))]
    pub qr_concurrency: u16,
    /// QR pictures drawn per second
    #[arg(long, env = "QR_RATE", default_value = "100")]
    pub qr_rate: NonZeroU32,
    /// Longest time a request waits for its QR picture to be drawn; then it gets 503
    #[arg(long, env = "QR_WAIT", default_value = "1s", value_parser = positive_duration)]
    pub qr_wait: Duration,
    /// Most log lines per second about refused requests; metrics count all of them
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
    use crate::orders::request::{self, Largest};

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
        let largest = Largest { items: 100, units: 1000 };
        let draft = request::read(body.as_bytes(), largest).unwrap();
        assert!(draft.errors.is_empty() && draft.items.len() == 100);
        assert!(body.len() < size(limits.max_body) / 2, "{}", body.len());
    }
}

//! Settings of earlier versions that are none any more.
//!
//! Whoever has set one of them believes that it holds. So each start says that it does not, and what
//! holds instead, once for each variable that is still set.

/// The variables, and what holds instead.
const REMOVED: &[(&str, &str)] = &[
    (
        "ALLOW_ASYNCHRONOUS_COMMIT",
        "no stage works on a server whose synchronous_commit is off",
    ),
    ("BODY_TIMEOUT", "it is 15s"),
    ("BREAKER_FAILURES", "it is 10"),
    ("BREAKER_OPEN", "it is 5s, and doubles up to 30s"),
    ("BREAKER_OPEN_MOST", "it is 30s"),
    ("CALLBACK_CONCURRENCY", "it is 64"),
    ("CALLBACK_RATE", "it is 200"),
    ("CONSOLE_IDLE", "it is a twelfth of CONSOLE_SESSION"),
    ("CONSOLE_NAME", "CONSOLE_PLACE says which system it is"),
    ("ENDPOINT_BLOCK", "it is 5s, and doubles up to 5m"),
    ("ENDPOINT_BLOCK_LONGEST", "it is 5m"),
    ("ENDPOINT_CONCURRENCY", "it is 64"),
    ("ENDPOINT_SLOW", "it is 3s"),
    ("ESIM_REQUEST_WAIT", "it is 12s"),
    ("HOST_CONCURRENCY", "it is 256"),
    ("KEY_EXPIRING_NOTICE", "it is 6h"),
    (
        "LISTENERS",
        "128 requests of a process wait for webhooks, 4 of them of one account",
    ),
    (
        "MAX_BODY",
        "it is 64 KiB, or 640 bytes for each of MAX_ITEMS if that is more",
    ),
    (
        "MAX_CONNECTIONS_PER_SOURCE",
        "MAX_CONNECTIONS is the only limit, at which clients without keys give way; the proxy in front limits each \
         client",
    ),
    (
        "NATS_CREDENTIALS",
        "NATS_PASSWORD takes the content of a credentials file, too",
    ),
    (
        "NATS_USER",
        "it is the name of the service; another user stands with its password in NATS_URL",
    ),
    ("NOTICES_PER_DAY", "it is 50"),
    ("NOTICE_VERIFICATIONS_PER_DAY", "it is 5"),
    ("NOTICE_VERIFY_INTERVAL", "it is that of REDELIVER_INTERVAL"),
    ("OIDC_CA_FILE", "CA_FILE names the file"),
    ("PARTNER_REFUSALS_PER_MINUTE", "it is 60"),
    (
        "PARTNER_REQUESTS_PER_SECOND",
        "it is that of PARTNER_ORDERS_PER_SECOND; `esimctl partner set` sets that of one partner",
    ),
    (
        "PARTNER_UNITS_PER_SECOND",
        "it is five times PARTNER_ORDERS_PER_SECOND; `esimctl partner set` sets that of one partner",
    ),
    (
        "PROVIDER_ANSWER_MAX",
        "it is 1 MiB, or 1 KiB for each of MAX_UNITS if that is more; set MAX_UNITS as at ingress",
    ),
    ("PROVIDER_ESIM_REQUESTS", "it is 4"),
    (
        "PROVIDER_LOOKUP_CONCURRENCY",
        "it is half of PROVIDER_CONCURRENCY",
    ),
    ("REDELIVERY_DUE", "it is 200"),
    ("SELF_SERVICE_IN_FLIGHT", "it is 64"),
    ("SELF_SERVICE_WAIT", "it is that of QUEUE_DEADLINE"),
    ("SMTP_CA_FILE", "CA_FILE names the file"),
    (
        "TARGET_DELAY",
        "it is 200ms, or what --target-delay of ingress says",
    ),
    (
        "UNAUTHENTICATED_TIMEOUT",
        "it is that of HEAD_TIMEOUT; at MAX_CONNECTIONS clients without keys give way",
    ),
    ("WEBHOOK_HEAD_MAX", "it is 64 KiB"),
    (
        "WEBHOOK_TEST_INTERVAL",
        "it is a sixth of REDELIVER_INTERVAL",
    ),
    (
        "WORKER_THREADS",
        "TOKIO_WORKER_THREADS has the number of threads, otherwise it is half of the processors",
    ),
];

/// Logs each variable that is set and no longer read.
pub(crate) fn warn() {
    for (setting, instead) in set(|name| std::env::var_os(name).is_some()) {
        tracing::warn!(
            setting,
            instead,
            "this is no setting any more, so its value is ignored; remove the variable"
        );
    }
}

fn set(is_set: impl Fn(&str) -> bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    let removed = REMOVED.iter().copied();
    removed.filter(move |(name, _)| is_set(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_still_set_is_named_once() {
        let named: Vec<_> = set(|name| ["LOG", "MAX_BODY"].contains(&name)).collect();
        assert_eq!(named.len(), 1);
        assert_eq!(named[0].0, "MAX_BODY");
        assert!(REMOVED.is_sorted_by(|one, next| one.0 < next.0));
    }
}

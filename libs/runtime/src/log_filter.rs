//! What `LOG` may be. The settings check it, and the log lines are selected by it.

use anyhow::{Context, bail};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

pub(crate) fn filter(log: &str) -> anyhow::Result<EnvFilter> {
    // The filter would take a misspelt level such as `inof` for the name of a module and silence
    // everything else. So each part must be a level or a directive.
    let is_filter = |part: &str| part.contains(['=', '[']) || part.parse::<LevelFilter>().is_ok();
    if let Some(odd) = log.split(',').map(str::trim).find(|part| !is_filter(part)) {
        bail!(
            "LOG: {odd:?} is neither a level nor a directive; use error, warn, info, debug or trace, \
             or directives such as `info,ingress=debug`"
        );
    }
    // The log lines of OpenTelemetry itself are off, because it logs each step of its start and
    // each failed batch. What operators need of that is logged by `export`.
    EnvFilter::try_new(format!("opentelemetry=off,{log}")).with_context(|| {
        format!("LOG={log:?} is not a log filter; write it like `info` or `info,ingress=debug`")
    })
}

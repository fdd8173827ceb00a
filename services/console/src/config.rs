//! The settings of the console.

use std::{net::SocketAddr, time::Duration};

use clap::{Parser, ValueEnum};
use pg::config::{MasterKeyConfig, PoolConfig};
use runtime::{CommonConfig, config::positive_duration};
use url::Url;

use crate::{alerts::AlertConfig, openid, transport::is_private_transport};

/// The longest `CONSOLE_SESSION`.
const LONGEST_SESSION: Duration = Duration::from_hours(24 * 30);

/// Shows operators where orders are and what waits for them, in a browser
///
/// Operators sign in with accounts that `esimctl operator create` makes, or by an OpenID provider
/// (`OIDC_ISSUER`). Put a proxy with TLS in front: the console speaks plain HTTP and refuses a
/// public `CONSOLE_URL` without `https`.
#[derive(Parser, Clone, Debug)]
#[command(name = "console", version)]
pub struct Config {
    /// Address of the pages
    ///
    /// They are served over plain HTTP, so a proxy in front has to terminate TLS.
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:8085")]
    pub listen: SocketAddr,
    /// Address of `/livez`, `/readyz` and `/metrics`
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:8086")]
    pub admin_listen: SocketAddr,
    /// URL under which browsers reach the console
    ///
    /// With `https` the session cookie is sent over TLS only. `http` is accepted for a loopback
    /// address only, because anybody on the way could read the cookie otherwise. The value has no
    /// path.
    #[arg(long, env = "CONSOLE_URL", default_value = "http://127.0.0.1:8085", value_parser = console_url)]
    pub console_url: Url,
    /// Whether the orders are real
    ///
    /// Each page says it, and those of `test` have a stripe, so that nobody takes one for the
    /// other. It changes nothing else.
    #[arg(long, env = "CONSOLE_ENVIRONMENT", default_value = "live", value_enum)]
    pub console_environment: ConsoleEnvironment,
    /// Where it runs, such as `production, Frankfurt`
    ///
    /// The sign-in and the overview show it.
    #[arg(long, env = "CONSOLE_PLACE", value_parser = name)]
    pub console_place: Option<String>,
    /// How long a session lasts, whatever its operator does
    ///
    /// Without a request of a person it ends after a twelfth of this time, so after 1h by default.
    /// A page that refreshes itself is not a request of a person.
    #[arg(long, env = "CONSOLE_SESSION", default_value = "12h", value_parser = session)]
    pub console_session: Duration,
    /// Let accounts of `esimctl operator` sign in with their passwords
    ///
    /// Switch it off if everybody signs in by OpenID Connect. Then sessions of accounts end, too.
    /// If the provider fails, switch it on again, so that somebody with a shell can make an
    /// account.
    #[arg(long, env = "CONSOLE_PASSWORDS", default_value_t = true, action = clap::ArgAction::Set)]
    pub console_passwords: bool,
    /// Take the client's address from the last entry of `X-Forwarded-For`
    ///
    /// The address is recorded with sessions and actions, and failed sign-ins are counted by it.
    /// Set it only behind a proxy that appends the address, because a client could choose it
    /// otherwise. A port after the address does no harm.
    #[arg(long, env = "CONSOLE_FORWARDED", default_value_t = false, action = clap::ArgAction::Set)]
    pub console_forwarded: bool,
    /// Link to a trace, in which `{trace_id}` stands for the id
    ///
    /// For example `https://jaeger.example/trace/{trace_id}`. Without it the id is shown as text.
    #[arg(long, env = "CONSOLE_TRACE_URL", value_parser = trace_url)]
    pub console_trace_url: Option<String>,
    /// Let operators see activation codes
    ///
    /// Each code that is shown is recorded with its reason. Only then does the console need the
    /// master key for profiles (`MASTER_KEY_PROFILES` or `MASTER_KEY`).
    #[arg(long, env = "CONSOLE_ACTIVATION_CODES", default_value_t = false, action = clap::ArgAction::Set)]
    pub console_activation_codes: bool,
    /// Maximum number of open connections of browsers
    #[arg(long, env = "MAX_CONNECTIONS", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_connections: u16,
    #[command(flatten)]
    pub openid: openid::OpenIdConfig,
    #[command(flatten)]
    pub alerts: AlertConfig,
    #[command(flatten)]
    pub database: PoolConfig,
    #[command(flatten)]
    pub master_key: MasterKeyConfig,
    #[command(flatten)]
    pub common: CommonConfig,
}

/// Whether the pages are about real orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConsoleEnvironment {
    Live,
    Test,
}

/// A name that stands in the bar.
fn name(text: &str) -> Result<String, String> {
    const MOST: usize = 60;
    let length = text.trim().chars().count();
    if length == 0 || length > MOST {
        return Err(format!("it must have 1 to {MOST} characters"));
    }
    Ok(text.trim().to_owned())
}

fn session(text: &str) -> Result<Duration, String> {
    let duration = positive_duration(text)?;
    if duration > LONGEST_SESSION {
        return Err("it may be at most 30 days".into());
    }
    Ok(duration)
}

/// Parses `CONSOLE_URL`, and refuses one that would send the session over the network in clear.
fn console_url(text: &str) -> Result<Url, String> {
    let url: Url = text
        .parse()
        .map_err(|error| format!("{error}; write it like https://console.example"))?;
    if !is_private_transport(&url) {
        return Err(
            "it must begin with https://, because the session cookie would be readable on the network otherwise; http:// \
             is accepted for a loopback address"
                .into(),
        );
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err("it must have no path, such as https://console.example".into());
    }
    Ok(url)
}

fn trace_url(text: &str) -> Result<String, String> {
    let parsed = text.replace("{trace_id}", "0").parse::<Url>();
    let is_web = parsed.is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
    if !is_web || !text.contains("{trace_id}") {
        return Err(
            "it must be a URL with {trace_id}, such as https://jaeger.example/trace/{trace_id}"
                .into(),
        );
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_keeps_the_session_off_the_network() {
        for good in [
            "https://console.example",
            "http://127.0.0.1:8085",
            "http://localhost:8085/",
            "http://[::1]:8085",
        ] {
            assert!(console_url(good).is_ok(), "{good}");
        }
        for bad in [
            "http://console.example",
            "http://10.0.0.1:8085",
            "ftp://127.0.0.1",
            "https://console.example/path",
            "console.example",
        ] {
            assert!(console_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_link_to_traces_names_the_trace() {
        assert!(trace_url("https://jaeger.example/trace/{trace_id}").is_ok());
        assert!(trace_url("https://jaeger.example/trace/").is_err());
        assert!(trace_url("javascript:alert({trace_id})").is_err());
    }
}

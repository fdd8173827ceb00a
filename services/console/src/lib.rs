//! The operator's console: the questions and actions of `esimctl` in a browser.
//!
//! It answers "where is this order" for people who have no shell, and shows what waits for a person.
//! Pages are rendered here from templates, pictures are SVG made here, and each control is a link or
//! a form. So everything works without JavaScript; htmx only refreshes figures in place. Nothing is
//! loaded from another host.
//!
//! Guarantees:
//!
//! - Every page but sign-in and set-up needs a session, and every action a session whose role may do
//!   it and the token of its form. The types of [`access`] say so: a handler of an action takes a
//!   value that exists only for such a request. [`routes`] lists all of them, and the tests try each
//!   one in every role.
//! - No credential is ever shown. An activation code is shown only if `CONSOLE_ACTIVATION_CODES` is
//!   on, to a role that may see it, and each time is recorded.
//! - It has no SQL of its own: `store::operator` answers it and `esimctl` alike.
//!
//! The console is not a stage: nothing waits for it, and it may be stopped at any time. It holds no
//! state but what is in PostgreSQL, so replicas can run side by side.

pub mod access;
mod format;
mod metrics;
pub mod openid;
mod pages;
mod pictures;
mod problem;
pub mod routes;
mod said;
mod server;
mod sign_in;
mod view;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use clap::Parser;
use runtime::{
    CommonConfig, Shutdown,
    config::{BadSetting, positive_duration},
    health::{self, Readiness},
};
use store::{
    Database,
    config::{MasterKeyConfig, PoolConfig},
    operator::sessions::Lifetime,
    schema::{self, SchemaError},
    vault::{Keyring, Vault},
};
use url::{Host, Url};

/// How often the console looks whether the database responds, for its readiness.
const LOOK: Duration = Duration::from_secs(1);
/// The longest `CONSOLE_SESSION` and `CONSOLE_IDLE`.
const LONGEST_SESSION: Duration = Duration::from_hours(24 * 30);

/// Shows operators where orders are and what waits for them, in a browser
///
/// Operators sign in with accounts that `esimctl operator create` makes, or by an OpenID provider
/// (`OIDC_ISSUER`). Put a proxy with TLS in front: the console speaks plain HTTP and refuses a public
/// `CONSOLE_URL` without `https`.
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
    /// How long a session lasts, whatever its operator does
    #[arg(long, env = "CONSOLE_SESSION", default_value = "12h", value_parser = session)]
    pub console_session: Duration,
    /// How long a session lasts without a request of a person
    ///
    /// A page that refreshes itself does not count as one.
    #[arg(long, env = "CONSOLE_IDLE", default_value = "1h", value_parser = session)]
    pub console_idle: Duration,
    /// Let accounts of `esimctl operator` sign in with their passwords
    ///
    /// Switch it off if everybody signs in by OpenID Connect. Then sessions of accounts end, too. If the
    /// provider fails, switch it on again, so that somebody with a shell can make an account.
    #[arg(long, env = "CONSOLE_PASSWORDS", default_value_t = true, action = clap::ArgAction::Set)]
    pub console_passwords: bool,
    /// Take the client's address from the last entry of `X-Forwarded-For`
    ///
    /// The address is recorded with sessions and actions, and failed sign-ins are counted by it. Set
    /// it only behind a proxy that appends the address, because a client could choose it otherwise. A
    /// port after the address does no harm.
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
    pub database: PoolConfig,
    #[command(flatten)]
    pub master_key: MasterKeyConfig,
    #[command(flatten)]
    pub common: CommonConfig,
}

fn session(text: &str) -> Result<Duration, String> {
    let duration = positive_duration(text)?;
    if duration > LONGEST_SESSION {
        return Err("it may be at most 30 days".into());
    }
    Ok(duration)
}

/// Whether nobody on the way can read what is sent to this URL: by TLS, or on this machine only.
fn is_private_transport(url: &Url) -> bool {
    let loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && loopback)
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

/// What all handlers share. Clones share it.
#[derive(Clone)]
pub struct App(Arc<Parts>);

struct Parts {
    database: Database,
    /// The master key for profiles, if activation codes may be shown.
    vault: Option<Vault>,
    settings: Settings,
    metrics: metrics::Metrics,
    /// Who else may say who somebody is.
    provider: Option<openid::Provider>,
    /// What the overview shows.
    figures: pages::overview::Shared,
}

/// The settings that handlers read.
struct Settings {
    /// Browsers reach the console by TLS.
    tls: bool,
    lifetime: Lifetime,
    /// Accounts may sign in with their passwords.
    passwords: bool,
    forwarded: bool,
    trace_url: Option<String>,
}

impl App {
    fn open(config: &Config) -> anyhow::Result<Self> {
        let vault = config
            .console_activation_codes
            .then(|| config.master_key.vault(&[Keyring::Profiles]))
            .transpose()
            .map_err(BadSetting::error)?;
        let database = config.database.open("console").map_err(BadSetting::error)?;
        let provider = openid::Provider::open(&config.openid, &config.console_url)?;
        if provider.is_none() && !config.console_passwords {
            return Err(BadSetting::error(
                "nobody could sign in: switch CONSOLE_PASSWORDS on, or set OIDC_ISSUER",
            ));
        }
        Ok(Self(Arc::new(Parts {
            database,
            vault,
            settings: Settings {
                tls: config.console_url.scheme() == "https",
                lifetime: Lifetime {
                    idle: config.console_idle,
                    most: config.console_session,
                },
                passwords: config.console_passwords,
                forwarded: config.console_forwarded,
                trace_url: config.console_trace_url.clone(),
            },
            metrics: metrics::Metrics::default(),
            provider,
            figures: pages::overview::Shared::default(),
        })))
    }

    fn database(&self) -> &Database {
        &self.0.database
    }

    fn vault(&self) -> Option<&Vault> {
        self.0.vault.as_ref()
    }

    fn settings(&self) -> &Settings {
        &self.0.settings
    }

    fn provider(&self) -> Option<&openid::Provider> {
        self.0.provider.as_ref()
    }

    fn figures(&self) -> &pages::overview::Shared {
        &self.0.figures
    }

    fn metrics(&self) -> &metrics::Metrics {
        &self.0.metrics
    }
}

/// Serves the pages until the soft stop.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    let app = App::open(&config)?;
    runtime::metrics::connections({
        let database = app.database().clone();
        move || database.connections()
    });
    let listener = runtime::listener::bind("LISTEN", config.listen).await?;
    let readiness = Readiness::new(&shutdown, &["database"]);
    health::serve(config.admin_listen, readiness.clone()).await?;
    shutdown.spawn(
        "database",
        watch(app.database().clone(), readiness, shutdown.clone()),
    );
    if app.provider().is_some() {
        let app = app.clone();
        let look = async move {
            if let Some(provider) = app.provider() {
                provider.look().await;
            }
        };
        // A stop does not wait for a provider that does not respond.
        let looking = shutdown.soft().run_until_cancelled_owned(look);
        shutdown.tracker().spawn(looking);
    }
    tracing::info!(
        listen = %listener.local_addr()?,
        admin = %config.admin_listen,
        url = %config.console_url,
        "the console is listening"
    );
    server::serve(
        listener,
        routes::router(app),
        config.max_connections.into(),
        shutdown.clone(),
    )
    .await?;
    shutdown.finished().await
}

/// Keeps the readiness up to date. A schema that does not serve this version ends the process, as it
/// does for the other programs.
async fn watch(database: Database, readiness: Readiness, shutdown: Shutdown) -> anyhow::Result<()> {
    let mut ticks = shutdown.ticks(LOOK);
    while ticks.next().await {
        let checked = database.run(async |connection| schema::check(connection).await);
        match checked.await {
            Ok(_) => readiness.set_ready("database"),
            Err(SchemaError::Store(error)) => {
                readiness.set_not_ready("database", error.to_string());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
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

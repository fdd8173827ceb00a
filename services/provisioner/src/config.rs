//! The settings of the provisioner, and what follows from them.

use std::{net::SocketAddr, num::NonZeroU32, sync::Arc, time::Duration};

use clap::Parser;
use pg::{
    Database,
    config::{MasterKeyConfig, PoolConfig},
};
use pipeline::{NatsConfig, worker::PermitLimits};
use runtime::{CommonConfig, config::BadSetting};
use vault::{Keyring, Vault};

use crate::{
    providers::{self, Accounts, PacedCalls, ProviderConnection},
    rate::Rate,
};

/// Buys accepted orders from eSIM providers
#[derive(Parser, Clone, Debug)]
#[command(name = "provisioner", version)]
pub struct Config {
    /// Address of `POST /callbacks/<provider>/<token>`
    ///
    /// Providers call it when profiles are ready. It is served only if at least one configured
    /// provider has a callback token.
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:8082")]
    pub listen: SocketAddr,

    /// Address of `/livez`, `/readyz` and `/metrics`
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:8083")]
    pub admin_listen: SocketAddr,

    /// Providers to buy from, separated by commas
    ///
    /// Each provider has a section of this help with the settings of its account, and each named
    /// one needs them. Placements of other providers are
    /// left to provisioners that name them.
    #[arg(
        long,
        env = "PROVIDERS",
        default_value = "sandbox",
        value_delimiter = ',',
        value_parser = pipeline::streams::provider_name
    )]
    pub providers: Vec<String>,

    /// Maximum number of purchases in flight, per provider and process
    ///
    /// A purchase counts until the first request for its profiles has ended. Further purchases
    /// wait. Look-ups have half as many places of their own, so that they and purchases cannot hold
    /// each other up: a look-up asks the provider whether it has a purchase, and further requests
    /// for the profiles of a purchase count as look-ups. The orders of one partner for one option
    /// use at most half of this number, so that one busy partner cannot block everybody. If
    /// `PROVIDER_RATE` is set, the number is at most five times that rate. A purchase that waits
    /// for half of `SETTLE` for its turn is not sent, and the next attempt follows.
    #[arg(
        long,
        env = "PROVIDER_CONCURRENCY",
        default_value_t = 256,
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    pub provider_concurrency: u16,

    /// Timeout of a whole call to a provider
    ///
    /// The outcome of a purchase that takes longer is unknown, so it is looked up before anything
    /// is bought again. A purchase at Airalo, which makes the eSIMs before it responds, may take
    /// six times as long, and a list or a search a minute.
    #[arg(
        long,
        env = "PROVIDER_TIMEOUT",
        value_parser = runtime::config::positive_duration,
        default_value = "10s"
    )]
    pub provider_timeout: Duration,

    /// Maximum number of units in one order, as at ingress
    ///
    /// The largest response that is read from a provider has 1 KiB for each of them, and at least 1
    /// MiB. The outcome of a call with a larger response is unknown, so a purchase of more units
    /// could not be completed.
    #[arg(long, env = "MAX_UNITS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_units: u32,

    /// Longest time between the record of a purchase attempt and its arrival at the provider
    ///
    /// A look-up that finds no purchase is believed only after this time, and only then may another
    /// attempt buy. A value that is too small can therefore lead to a second purchase. It must
    /// exceed twice `PROVIDER_TIMEOUT` plus the time after which the provider's look-up shows a
    /// purchase; the program checks only the first part.
    #[arg(long, env = "SETTLE", value_parser = runtime::config::duration, default_value = "60s")]
    pub settle: Duration,

    /// How long profiles may be missing, or an outcome unknown, before the placement is parked
    ///
    /// A parked placement waits for an operator. It is parked for an unknown outcome or for failing
    /// requests for its profiles only if the provider otherwise works, because an outage of the
    /// provider says nothing about a single placement.
    #[arg(
        long,
        env = "PARK_AFTER",
        value_parser = runtime::config::duration,
        default_value = "30m"
    )]
    pub park_after: Duration,

    /// Maximum number of calls per second to each provider, of all replicas together; 0: no limit
    ///
    /// The replicas share it in equal parts through PostgreSQL. All calls count: purchases,
    /// look-ups with each page of a list, requests for profiles and for tokens, and requests about
    /// delivered eSIMs, which come last. A call beyond the limit waits for its turn.
    #[arg(
        long,
        env = "PROVIDER_RATE",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=100_000)
    )]
    pub provider_rate: u32,

    /// Maximum number of polls of delivered eSIMs per hour and provider, by all replicas; 0: none
    ///
    /// Only eSIMs are polled whose partner asked for events about their use, each one at most once
    /// an hour. Reports of providers and questions of partners do not count. If the number is too
    /// small, partners hear of low data and of ends later. Polls count for `PROVIDER_RATE`, too.
    #[arg(
        long,
        env = "POLLS_PER_HOUR",
        default_value_t = 3600,
        value_parser = clap::value_parser!(u32).range(..=1_000_000)
    )]
    pub polls_per_hour: u32,

    /// The percentages of used data at which `esim.low_data` is sent, separated by commas
    ///
    /// If several are passed between two looks at an eSIM, only the highest one is told.
    #[arg(
        long,
        env = "LOW_DATA_PERCENT",
        default_value = "75,90",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u8).range(1..=99)
    )]
    pub low_data_percent: Vec<u8>,

    /// Consecutive failed calls after which a provider's breaker opens. While the breaker is open,
    /// nothing new is sent to the provider. Placements wait and use up no attempts. Calls that
    /// could not be sent always count. Calls that failed in another way open the breaker only if
    /// most of the options that are being bought fail, because a single bad option is held back by
    /// a limit of its own. A denied call (401, 403) opens the breaker at once. Ten in a row are no
    /// accident, and an open breaker delays orders by little, so nobody needs another number. Only
    /// tests set it.
    #[arg(long, hide = true, default_value_t = 10)]
    pub breaker_failures: u32,

    /// Longest time that a breaker stays open before the next probe. The first time is a sixth of
    /// it, and it doubles with each failed probe, which is one call. A breaker that an operator has
    /// opened stays open for as long as the operator asked for. Only tests set it.
    #[arg(
        long,
        hide = true,
        value_parser = runtime::config::duration,
        default_value = "30s"
    )]
    pub breaker_open_most: Duration,

    /// Maximum number of callbacks per second that reach PostgreSQL, per process. Further ones get
    /// 503 with Retry-After. Callbacks are not authenticated beyond the token in their URL, so this
    /// keeps a flood of them from slowing down orders. Only tests set it.
    #[arg(long, hide = true, default_value_t = NonZeroU32::new(200).unwrap())]
    pub callback_rate: NonZeroU32,

    #[command(flatten)]
    pub accounts: Accounts,

    #[command(flatten)]
    pub database: PoolConfig,

    #[command(flatten)]
    pub nats: NatsConfig,

    #[command(flatten)]
    pub master_key: MasterKeyConfig,

    #[command(flatten)]
    pub common: CommonConfig,
}

/// How long the purchases of one process wait for their turns under the rate limit, if it has the
/// whole rate and makes no other calls. The number of permits is lowered so that they wait no
/// longer. Where replicas share the rate, and while look-ups and collects wait in the same queue, a
/// call waits several times as long. Then its lease may end, and a purchase may be abandoned; both
/// cost further calls and buy nothing twice.
const TURNS: Duration = Duration::from_secs(5);
/// How long a ticket may wait for its permit before its queue counts as slow. Fresh tickets of a
/// slow queue are deferred, so that ingress does not wait for their verdicts.
const SLOW: Duration = Duration::from_secs(1);

/// The largest response that is read from a provider, in bytes, unless it is a list. An eSIM of
/// eSIM Access has about 1 KB by its examples (April 2026), and so has a unit of the others; 1 MiB
/// is enough for the texts that Airalo sends with an order.
fn response_max(max_units: u32) -> usize {
    usize::try_from(max_units).map_or(usize::MAX, |units| (units * 1024).max(1024 * 1024))
}

/// A configured provider, by its name, with the pace of its calls.
pub(crate) struct ConfiguredProvider {
    pub(crate) name: String,
    pub(crate) connected: ProviderConnection,
    pub(crate) rate: Arc<Rate>,
}

impl Config {
    /// Creates the adapters of the configured providers. A name that is given twice is an error,
    /// because two workers would compete for the same rows.
    /// `instance` names this replica, which shares `PROVIDER_RATE` with the others.
    pub(crate) fn connect(&self, instance: &str) -> anyhow::Result<Vec<ConfiguredProvider>> {
        let limits = providers::CallLimits {
            timeout: self.provider_timeout,
            response_max: response_max(self.max_units),
        };
        let mut configured: Vec<ConfiguredProvider> = Vec::new();
        for name in &self.providers {
            if configured.iter().any(|other| other.name == *name) {
                return Err(BadSetting::error(format!(
                    "PROVIDERS names {name} twice: remove one of the two"
                )));
            }
            let rate = Arc::new(Rate::new(self.provider_rate, instance.to_owned()));
            let paced = PacedCalls {
                limits,
                rate: Arc::clone(&rate),
            };
            configured.push(ConfiguredProvider {
                name: name.clone(),
                connected: self.accounts.connect(name, paced)?,
                rate,
            });
        }
        Ok(configured)
    }

    /// The limits of a provider's permits. A rate limit lowers them, see [`TURNS`].
    pub(crate) fn limits(&self, concurrency: u16) -> PermitLimits {
        let turns = u64::from(self.provider_rate) * TURNS.as_secs();
        let most = if turns == 0 { u64::MAX } else { turns };
        let permits = usize::try_from(u64::from(concurrency).min(most)).unwrap_or(usize::MAX);
        PermitLimits {
            permits,
            per_lane: permits,
            per_owner: permits,
            slow_attempt: None,
            slow: SLOW,
        }
    }

    /// The lease of a claimed placement. It is long enough for a purchase and a collect, each with
    /// its usual wait for the rate limit and its timeout, and for recording the outcome. `purchase`
    /// is the timeout of a purchase, which some providers carry out before they respond.
    pub(crate) fn lease(&self, purchase: Duration) -> Duration {
        let turns = if self.provider_rate == 0 {
            Duration::ZERO
        } else {
            TURNS * 2
        };
        purchase + self.provider_timeout + turns + Duration::from_secs(10)
    }

    /// Refuses what a start refuses after clap has taken it.
    pub fn check(&self) -> anyhow::Result<()> {
        self.check_together()?;
        self.connect("config")?;
        self.open()?;
        self.nats.check("provisioner")
    }

    /// The database and the keys of the settings.
    pub(crate) fn open(&self) -> anyhow::Result<(Database, Vault)> {
        let database = self
            .database
            .open("provisioner")
            .map_err(BadSetting::error)?;
        let vault = self
            .master_key
            .vault(&[Keyring::Profiles])
            .map_err(BadSetting::error)?;
        Ok((database, vault))
    }

    /// Refuses settings that contradict each other.
    pub(crate) fn check_together(&self) -> anyhow::Result<()> {
        if self.settle <= self.provider_timeout * 2 {
            return Err(BadSetting::error(format!(
                "SETTLE ({:?}) must be more than twice PROVIDER_TIMEOUT ({:?}), because a \
                 purchase must have ended before a look-up may say that it does not exist: raise \
                 SETTLE or lower PROVIDER_TIMEOUT",
                self.settle, self.provider_timeout
            )));
        }
        if self.park_after.is_zero() {
            return Err(BadSetting::error("PARK_AFTER must be more than 0"));
        }
        Ok(())
    }
}

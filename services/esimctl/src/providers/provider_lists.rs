//! Reads a list of a provider, page by page, for `catalogue pull` and `provider reconcile`.
//!
//! It uses the adapter of the provisioner and takes its turns within the provider's rate: while it
//! reads, it counts as one more replica that shares `PROVIDER_RATE`, so a list of a thousand pages
//! does not take the provider away from orders. The number of pages is bounded. A page that fails
//! is asked for again a few times if the provider is only busy; otherwise nothing of the list is
//! used, because a part of it would look as if the rest were gone.

use std::{
    fmt::Display,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{anyhow, bail};
use clap::Args;
use desk::operator::words::counted;
use pg::PgConnection;
use provisioner::{
    providers::{Accounts, CallLimits, Capabilities, ListPage, PacedCalls, Provider, Trouble},
    rate::Rate,
};
use runtime::terminal::say;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::provider_check;

/// The largest page that is read. One provider sends its whole catalogue in one.
const RESPONSE_MAX: usize = 64 << 20;
/// How often a page is asked for while the provider is busy.
const TRIES: u32 = 5;
/// The longest wait before a page is asked for again.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// The wait if the provider does not say how long.
const WAIT: Duration = Duration::from_secs(2);
/// How often the share of the rate is renewed.
const RENEWAL: Duration = Duration::from_secs(1);
/// How often a line says how far the reading is.
const PROGRESS: Duration = Duration::from_secs(5);

/// The arguments of a command that reads a list of a provider.
#[derive(Args, Clone, Debug)]
pub struct ProviderListArgs {
    /// The provider's name, as in `PROVIDERS` of the provisioner
    #[arg(value_name = "PROVIDER")]
    pub name: String,
    /// Timeout of each call
    #[arg(long, default_value = "30s", value_parser = runtime::config::positive_duration)]
    timeout: Duration,
    /// Maximum number of calls per second, which all provisioners and this command share; 0: no
    /// limit
    ///
    /// Set it as on the provisioner.
    #[arg(long, env = "PROVIDER_RATE", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100_000))]
    provider_rate: u32,
    /// Maximum number of pages; a longer list is refused
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_pages: u32,
    #[command(flatten)]
    accounts: Accounts,
}

impl ProviderListArgs {
    /// Connects to the account. Fails if the provider cannot do what `needed` asks for; `remedy`
    /// says what to do instead.
    pub fn connect(
        &self,
        needed: fn(&Capabilities) -> bool,
        what: &str,
        remedy: &str,
    ) -> anyhow::Result<Reader> {
        // The HTTP client of the adapter needs it. Only the first installation of a process counts.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let instance = format!("esimctl-{}", Uuid::now_v7().simple());
        let paced = PacedCalls {
            limits: CallLimits {
                timeout: self.timeout,
                response_max: RESPONSE_MAX,
            },
            // Further calls of the adapter, such as those for a token, take turns, too.
            rate: Arc::new(Rate::new(self.provider_rate, instance)),
        };
        let rate = Arc::clone(&paced.rate);
        let provider = self.accounts.connect(&self.name, paced)?.provider;
        if !needed(&provider.capabilities()) {
            bail!(
                "the protocol of {} has no list of {what}: {remedy}",
                self.name
            );
        }
        Ok(Reader {
            provider,
            name: self.name.clone(),
            rate,
            max_pages: self.max_pages,
        })
    }
}

/// An account whose lists can be read.
pub struct Reader {
    pub provider: Arc<dyn Provider>,
    name: String,
    rate: Arc<Rate>,
    max_pages: u32,
}

impl Reader {
    /// Reads all pages. `what` names the entries in lines of progress and errors.
    pub async fn read<T>(
        &self,
        connection: &mut PgConnection,
        what: &str,
        page: impl AsyncFn(&dyn Provider, u32) -> Result<ListPage<T>, Trouble>,
        mut take: impl FnMut(T),
    ) -> anyhow::Result<()> {
        let mut shown = Instant::now();
        let mut entries = 0_usize;
        let mut next = Some(1);
        for pages in 1..=self.max_pages {
            let Some(number) = next else { return Ok(()) };
            let listed = self.one(connection, number, &page).await?;
            entries += listed.entries.len();
            listed.entries.into_iter().for_each(&mut take);
            next = listed.next;
            if shown.elapsed() >= PROGRESS && next.is_some() {
                say(format_args!(
                    "esimctl: {} has sent {} with {entries} {what} so far",
                    self.name,
                    counted(pages, "page", "pages")
                ));
                shown = Instant::now();
            }
        }
        if next.is_none() {
            return Ok(());
        }
        bail!(
            "the list of {} has more than {} pages, so it was not read to its end: raise --max-pages, or shorten the time",
            self.name,
            self.max_pages
        )
    }

    /// Reads one page, again and again while the provider is busy.
    async fn one<T>(
        &self,
        connection: &mut PgConnection,
        number: u32,
        page: impl AsyncFn(&dyn Provider, u32) -> Result<ListPage<T>, Trouble>,
    ) -> anyhow::Result<ListPage<T>> {
        let failed = |trouble: &dyn Display| {
            anyhow!(
                "page {number} of the list of {} could not be read: {trouble}",
                self.name
            )
        };
        for attempt in 1..=TRIES {
            self.turn(connection).await?;
            match page(&*self.provider, number).await {
                Ok(listed) => return Ok(listed),
                Err(trouble @ (Trouble::Busy { .. } | Trouble::Waiting { .. }))
                    if attempt < TRIES =>
                {
                    let asked = trouble.asked_wait(LONGEST_WAIT);
                    sleep(if asked.is_zero() { WAIT } else { asked }).await;
                }
                Err(trouble) => return Err(failed(&provider_check::describe(&trouble))),
            }
        }
        Err(failed(&"the provider stays busy"))
    }

    /// Waits for the turn of one call within the provider's rate.
    async fn turn(&self, connection: &mut PgConnection) -> anyhow::Result<()> {
        let mut turn = pin!(self.rate.turn());
        loop {
            self.rate.renew(connection, &self.name).await?;
            if timeout(RENEWAL, &mut turn).await.is_ok() {
                return Ok(());
            }
        }
    }
}

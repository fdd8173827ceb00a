//! `esimctl provider check`: tries our account at a provider, and buys nothing.
//!
//! It uses the adapter of the provisioner, so it sends what the provisioner would send, with the
//! same settings: a look-up of a purchase that does not exist, and a question for the balance. The
//! responses show whether the keys are good, and how far the provider's clock is from ours.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use domain::PlacementId;
use provisioner::providers::{
    Accounts, Balance, CallLimits, Capabilities, Heard, LookUp, LookUpRequest, LookUpResponse,
    PacedCalls, Provider, Trouble,
};
use serde::Serialize;

use crate::{
    console::Console,
    output::{cells, or_dash, properties},
};

pub const EXAMPLES: &str = "Examples:
  esimctl provider check airalo
  esimctl provider check esim-access --json

It reads the account from the settings of the provisioner, so run it where these are set, for example with the file that
the provisioner gets: set -a; . ./providers.env; esimctl provider check airalo. It needs no database. It asks the provider
for a purchase that does not exist and for the balance, and buys nothing.

--json prints {\"provider\":…,\"account\":…,\"look_up\":…,\"balance\":…,\"clock_ahead_seconds\":…}. The exit status is 0 only if
the provider accepts the account and both clocks agree.";

/// The longest difference between the provider's clock and ours, in seconds. Signatures with a time
/// are accepted within some minutes of it.
const CLOCK: u64 = 30;
/// The largest response that is read.
const RESPONSE_MAX: usize = 1 << 20;

#[derive(Args, Clone, Debug)]
pub struct ProviderCheckArgs {
    /// The provider's name, as in `PROVIDERS` of the provisioner
    name: String,
    /// Timeout of each call
    #[arg(long, default_value = "10s", value_parser = runtime::config::positive_duration)]
    timeout: Duration,
    #[command(flatten)]
    accounts: Accounts,
}

/// What was found out.
#[derive(Serialize)]
struct Report {
    provider: String,
    /// Whether the provider accepts our keys.
    account: &'static str,
    /// What an answer to a look-up means at this provider.
    look_up: &'static str,
    balance: Option<String>,
    clock_ahead_seconds: Option<i64>,
}

pub async fn run(check: &ProviderCheckArgs, console: &Console) -> anyhow::Result<()> {
    // The HTTP client of the adapter needs it. Only the first installation of a process counts.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let limits = CallLimits {
        timeout: check.timeout,
        response_max: RESPONSE_MAX,
    };
    let paced = PacedCalls::without_rate(limits);
    let provider = check.accounts.connect(&check.name, paced)?.provider;
    if let Err(trouble) = look_up(&*provider).await {
        bail!("{}: {}", check.name, describe(&trouble));
    }
    let balance = balance(&*provider).await?;
    let report = Report {
        provider: check.name.clone(),
        account: "accepted",
        look_up: meaning(provider.capabilities()),
        balance: balance.map(|balance| format!("{} {}", balance.amount, balance.currency)),
        clock_ahead_seconds: provider.clock_ahead(),
    };
    console.print(&report, || {
        properties(&cells!(report:
            provider, account, "look-up" = report.look_up.to_owned(),
            balance = or_dash(report.balance.as_ref()),
            "clock ahead, s" = or_dash(report.clock_ahead_seconds),
        ))
    })?;
    if let Some(ahead) = report
        .clock_ahead_seconds
        .filter(|s| s.unsigned_abs() > CLOCK)
    {
        bail!(
            "the clock of {} is {ahead} s ahead of this machine's: its signatures have a time, so set \
             the clock of the machine that is wrong, usually by NTP",
            check.name
        );
    }
    Ok(())
}

/// Asks for a purchase that does not exist.
async fn look_up(provider: &dyn Provider) -> Result<(), Trouble> {
    let look_up = LookUpRequest {
        placement_id: PlacementId::new(),
        reference: None,
        attempt_age: Duration::ZERO,
        options: Vec::new(),
        arrives_within: Duration::from_mins(1),
    };
    match provider.look_up(&look_up).await {
        // What proves nothing about a purchase shows all the same that the account is accepted.
        Ok(LookUpResponse::NotFound) => Ok(()),
        Err(trouble) if trouble.heard() == Some(Heard::ProvesNothing) => Ok(()),
        Err(trouble) => Err(trouble),
        Ok(LookUpResponse::Found(_)) => Err(Trouble::not_understood(
            "the provider has found a purchase that does not exist, so its look-ups cannot be \
             trusted; do not connect it",
        )),
    }
}

async fn balance(provider: &dyn Provider) -> anyhow::Result<Option<Balance>> {
    if !provider.capabilities().balance {
        return Ok(None);
    }
    match provider.balance().await {
        Ok(balance) => Ok(Some(balance)),
        Err(trouble) => bail!("the balance cannot be read: {}", describe(&trouble)),
    }
}

fn meaning(capabilities: Capabilities) -> &'static str {
    match capabilities.look_up {
        LookUp::Exact => "exact: what is not found is bought again",
        LookUp::ById => "by our id: what is not found is parked and never bought again",
        LookUp::Search => "a search: what is not found is parked and never bought again",
    }
}

/// What a failed call means for the operator.
pub fn describe(trouble: &Trouble) -> String {
    let reason = trouble.reason();
    match trouble {
        Trouble::Denied(_) => format!("our account is denied; check its keys: {reason}"),
        Trouble::NotSent(_) => format!("the provider is not reached; check its URL: {reason}"),
        Trouble::Busy { .. } => format!("the provider is busy; try again later: {reason}"),
        Trouble::RefusedHere(_) => format!("not sent: {reason}"),
        Trouble::Waiting { .. } => format!("nothing was sent; try again later: {reason}"),
        Trouble::Unknown { heard, .. } => match heard {
            Heard::Nothing => format!("no whole response came: {reason}"),
            Heard::NotUnderstood => format!("the response is not understood: {reason}"),
            Heard::ProvesNothing => format!("the response proves nothing: {reason}"),
        },
    }
}

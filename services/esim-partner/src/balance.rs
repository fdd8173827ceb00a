//! The balance, and the threshold below which the account is told of it.

use anyhow::{Context, bail};
use clap::Args;
use domain::{Amount, product::Currency};
use serde_json::{Value, json};

use crate::account::{ApiClient, ApiResponse, UNEXPECTED};

pub(crate) const EXAMPLES: &str = "Examples:
  esim-partner balance
  esim-partner balance --warn-below 50.00
  esim-partner balance --warn-below 50.00 --currency USD
  esim-partner balance --no-warning

`available` is what new orders may cost. All amounts of the output are whole numbers of the currency's minor unit.
balance.low goes to the endpoints that ask for it; see `esim-partner endpoints set --help`.";

#[derive(Args, Clone, Debug)]
pub(crate) struct Balance {
    /// Send the event balance.low when less than this is available, such as 50.00
    #[arg(long, value_name = "AMOUNT", group = "warning")]
    warn_below: Option<String>,
    /// Send no balance.low any more
    #[arg(long, group = "warning")]
    no_warning: bool,
    /// The currency of the balance, if you have several
    #[arg(long, value_name = "CODE", requires = "warning", value_parser = Currency::of_money)]
    currency: Option<Currency>,
}

impl Balance {
    pub(crate) async fn send(&self, account: &ApiClient) -> anyhow::Result<ApiResponse> {
        if self.warn_below.is_none() && !self.no_warning {
            return account.send("GET", "/balance", "", None).await;
        }
        let currency = match self.currency {
            Some(currency) => currency,
            None => only_currency(account).await?,
        };
        let threshold = match &self.warn_below {
            Some(text) => {
                let amount = Amount::parse(text, currency);
                let amount =
                    amount.with_context(|| format!("--warn-below {text} in {currency}"))?;
                Some(amount.minor)
            }
            None => None,
        };
        let body = json!({ "warn_below": threshold });
        let path = format!("/balance/{currency}");
        account.send("PUT", &path, "", Some(&body)).await
    }
}

/// The currency of the account if it has only one.
pub(crate) async fn only_currency(account: &ApiClient) -> anyhow::Result<Currency> {
    let shown: Value = account.get("/balance", "").await?;
    let balances = shown["balances"].as_array().context(UNEXPECTED)?;
    match balances.as_slice() {
        [] => bail!("you have no balance, because we have agreed no prices with you"),
        [only] => {
            let code = only["currency"].as_str().context(UNEXPECTED)?;
            Currency::of_money(code).context(UNEXPECTED)
        }
        several => {
            let codes = several.iter().filter_map(|one| one["currency"].as_str());
            let codes: Vec<&str> = codes.collect();
            bail!(
                "name one of your currencies with --currency: {}",
                codes.join(", ")
            )
        }
    }
}

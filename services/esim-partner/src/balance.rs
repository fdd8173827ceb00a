//! The balance, the threshold below which the account is told of it, and in the sandbox another
//! balance.

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
  esim-partner balance --set 0          in the sandbox, to rehearse what happens when it is empty

`available` is what new orders may cost. All amounts of the output are whole numbers of the currency's minor unit.
balance.low goes to the endpoints that ask for it; see `esim-partner endpoints set --help`.";

#[derive(Args, Clone, Debug)]
pub(crate) struct BalanceArgs {
    /// Send the event balance.low when less than this is available, such as 50.00
    #[arg(long, value_name = "AMOUNT", group = "change")]
    warn_below: Option<String>,
    /// Send no balance.low any more
    #[arg(long, group = "change")]
    no_warning: bool,
    /// Set the balance of a sandbox account, such as 12.50
    #[arg(long, value_name = "AMOUNT", group = "change")]
    set: Option<String>,
    /// The currency of the balance, if you have several
    #[arg(long, value_name = "CODE", requires = "change", value_parser = Currency::of_money)]
    currency: Option<Currency>,
}

impl BalanceArgs {
    pub(crate) async fn send(&self, account: &ApiClient) -> anyhow::Result<ApiResponse> {
        let text = self.warn_below.as_ref().or(self.set.as_ref());
        if text.is_none() && !self.no_warning {
            return account.send("GET", "/balance", "", None).await;
        }
        let currency = match self.currency {
            Some(currency) => currency,
            None => only_currency(account).await?,
        };
        let amount = text.map(|text| {
            let amount = Amount::parse(text, currency);
            amount.with_context(|| format!("the amount {text} in {currency}"))
        });
        let minor = amount.transpose()?.map(|amount| amount.minor);
        let (path, body) = if self.set.is_some() {
            let path = format!("/sandbox/balance/{currency}");
            (path, json!({ "balance": minor }))
        } else {
            (
                format!("/balance/{currency}"),
                json!({ "warn_below": minor }),
            )
        };
        account.send("PUT", &path, "", Some(&body)).await
    }
}

/// The currency of the account if it has only one.
async fn only_currency(account: &ApiClient) -> anyhow::Result<Currency> {
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

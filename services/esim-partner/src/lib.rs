//! The partners' command line: order, look up, redeliver, and certify a webhook endpoint.
//!
//! Modules: [`account`] reads the keys and sends signed requests. [`certify`] sends webhooks to an endpoint and judges
//! its answers.

mod account;
pub mod certify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;

use crate::account::{Account, AccountConfig};

/// All characters except RFC 3986's unreserved ones.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

const EXAMPLES: &str = "Examples:
  esim-partner --keys acme.env options
  esim-partner --keys acme.env order A-1042 424b7b26-96e7-5c95-8df9-6654a3998070 --qty 2
  esim-partner --keys acme.env orders show A-1042
  esim-partner --keys acme.env redeliver 20250129123456123456789012
  esim-partner --keys acme.env certify https://shop.example.com/webhooks

The keys file has lines BASE_URL=…, ACCESS_KEY=…, SECRET_KEY=… and, for certify, WEBHOOK_SECRET=whsec_…. Without a file
the environment variables of these names count. Keys are never arguments: other users can see those.";

/// Orders eSIMs, looks orders up, redelivers webhooks and certifies a webhook endpoint
#[derive(Parser, Clone, Debug)]
#[command(name = "esim-partner", version, after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub struct Config {
    #[command(flatten)]
    account: AccountConfig,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Order an option; the same external order id never buys twice
    Order {
        /// Your id of the order
        external_order_id: String,
        /// The option, see `esim-partner options`
        option_id: String,
        /// Units
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        qty: u32,
    },
    /// Stored orders
    #[command(subcommand)]
    Orders(Orders),
    /// List the options that you may order
    Options,
    /// Send a topup's webhook again
    Redeliver {
        /// The topup, 26 digits
        topup_id: String,
    },
    /// Send webhooks as they really happen to your endpoint and judge its answers
    Certify(certify::Certify),
}

#[derive(Subcommand, Clone, Debug)]
enum Orders {
    /// Show an order with its topups, and the eSIMs that are ready
    Show {
        /// Your id of the order
        external_order_id: String,
    },
    /// List the newest orders
    List {
        /// Only orders in this state
        #[arg(long)]
        state: Option<String>,
        /// `next_cursor` of the page before
        #[arg(long)]
        cursor: Option<String>,
    },
}

/// Runs one command. A failure is one line on standard error and exit status 1.
pub fn run(config: &Config) -> ExitCode {
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|tokio| tokio.block_on(execute(config)));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("esim-partner: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether the command succeeded; a failure is printed already.
async fn execute(config: &Config) -> anyhow::Result<bool> {
    let account = Account::read(&config.account)?;
    let encoded = |text: &str| utf8_percent_encode(text, RESERVED).to_string();
    let answer = match &config.command {
        Command::Certify(certify) => return certify.run(&account).await,
        Command::Order {
            external_order_id,
            option_id,
            qty,
        } => {
            let products = json!([{"option_id": option_id, "qty": qty}]);
            let body = json!({"external_order_id": external_order_id, "products": products});
            account.post_until_known("/orders", &body).await?
        }
        Command::Orders(Orders::Show { external_order_id }) => {
            let path = format!("/orders/{}", encoded(external_order_id));
            account.send("GET", &path, "", None).await?
        }
        Command::Orders(Orders::List { state, cursor }) => {
            let parameters = [("state", state), ("cursor", cursor)];
            let given = parameters
                .iter()
                .filter_map(|(name, value)| Some(format!("{name}={}", encoded(value.as_deref()?))));
            let query: Vec<String> = given.collect();
            account.send("GET", "/orders", &query.join("&"), None).await?
        }
        Command::Options => account.send("GET", "/options", "limit=100", None).await?,
        Command::Redeliver { topup_id } => {
            let path = format!("/topups/{}/redeliver", encoded(topup_id));
            account.send("POST", &path, "", None).await?
        }
    };
    println!("{}", serde_json::to_string_pretty(&answer.json)?);
    if !answer.is_success() {
        eprintln!("esim-partner: {}", answer.told());
    }
    Ok(answer.is_success())
}

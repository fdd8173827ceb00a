//! The partners' command line: order, look up, listen, redeliver, and certify a webhook endpoint.
//!
//! Modules: [`account`] sends signed requests, with the keys that [`profile`] reads and stores. [`order`] places and
//! triggers orders. [`listen`] forwards webhooks to an endpoint that the service cannot reach. [`tail`] follows orders
//! and webhook attempts. [`output`] prints. [`certify`] sends webhooks to an endpoint and judges its answers.
//! [`checklist`] lists the other tasks before going live.

mod account;
pub mod certify;
mod checklist;
mod listen;
mod order;
mod output;
mod profile;
mod tail;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use reqwest::Url;

use crate::{
    account::{Account, AccountConfig, encoded},
    output::{is_closed, print},
    tail::Logs,
};

const EXAMPLES: &str = "Examples:
  esim-partner login
  esim-partner listen --forward-to http://localhost:3000/hook
  esim-partner trigger ready
  esim-partner order A-1042 424b7b26-96e7-5c95-8df9-6654a3998070 --qty 2
  esim-partner orders show A-1042
  esim-partner logs tail
  esim-partner redeliver 20250129123456123456789012
  esim-partner redeliver evt_019a0000000070008000000000000001
  esim-partner certify https://shop.example.com/webhooks

Keys are BASE_URL, ACCESS_KEY, SECRET_KEY, WEBHOOK_SECRET (whsec_…, for certify and redeliver --forward-to) and BRAND (in
the names of the headers; Service if not set). They come from the file of --keys, with lines such as ACCESS_KEY=…; or
else from the environment, if it has one of them; or else from the file that `login` stored in ~/.config/esim-partner,
which only you can read. Keys are never arguments, because other users can see arguments.";

/// Orders eSIMs, looks orders up, forwards and redelivers webhooks, and certifies a webhook endpoint
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
    /// Check keys and store them for the other commands
    Login(profile::Login),
    #[command(flatten)]
    Account(AccountCommand),
}

/// The commands that use an account.
#[derive(Subcommand, Clone, Debug)]
enum AccountCommand {
    /// Order an option; the same external order id never buys twice
    ///
    /// After a failure the order is sent again. If an earlier request stored it, it is shown, and that is a success.
    Order {
        /// Your id of the order
        external_order_id: String,
        /// The option, see `esim-partner options`
        option_id: String,
        /// Units
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        qty: u32,
    },
    /// Order a sandbox option that behaves as its name says; without one, list the outcomes
    Trigger {
        /// The outcome, such as `ready` or `partly`
        outcome: Option<String>,
        /// Units
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        qty: u32,
    },
    /// Stored orders
    #[command(subcommand)]
    Orders(Orders),
    /// List the options that you may order
    Options,
    /// Forward the webhooks of a sandbox account to an endpoint on this machine
    ///
    /// A forwarded webhook has the body and the `webhook-id` of the real one, and is signed with the current time. Each
    /// is forwarded once, and also sent to the account's webhook URL.
    Listen(listen::Listen),
    /// The account's orders and webhook attempts, as they happen
    #[command(subcommand)]
    Logs(Logs),
    /// Send a topup's webhook, or an event, again
    Redeliver {
        /// The topup, 26 digits, or the event: the `webhook-id`
        #[arg(value_name = "TOPUP_ID|EVENT_ID")]
        id: String,
        /// Send the topup's webhook once from this machine to this endpoint instead, signed with `WEBHOOK_SECRET`
        #[arg(long, value_name = "URL", value_parser = listen::endpoint)]
        forward_to: Option<Url>,
    },
    /// Send realistic webhooks to your endpoint, judge its answers, and print a go-live checklist
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
    match execute(config) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("esim-partner: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether the command succeeded; a failure is printed already.
#[tokio::main(flavor = "current_thread")]
async fn execute(config: &Config) -> anyhow::Result<bool> {
    let command = match &config.command {
        Command::Login(login) => return login.run(&config.account).await.map(|()| true),
        Command::Account(command) => command,
    };
    let account = Account::read(&config.account)?;
    let answer = match command {
        AccountCommand::Certify(certify) => return certify.run(&account).await,
        AccountCommand::Listen(listen) => return listen.run(&account).await,
        AccountCommand::Logs(Logs::Tail(tail)) => return tail.run(&account).await.map(|()| true),
        AccountCommand::Trigger { outcome, qty } => {
            return order::trigger(&account, outcome.as_deref(), *qty).await;
        }
        AccountCommand::Redeliver { id, forward_to: Some(url) } => {
            return listen::redeliver(&account, id, url).await;
        }
        AccountCommand::Order { external_order_id, option_id, qty } => {
            order::place(&account, external_order_id, option_id, *qty).await?
        }
        AccountCommand::Orders(Orders::Show { external_order_id }) => {
            account.send("GET", &format!("/orders/{}", encoded(external_order_id)), "", None).await?
        }
        AccountCommand::Orders(Orders::List { state, cursor }) => {
            let given = [("state", state), ("cursor", cursor)];
            let query = given.map(|(name, value)| Some(format!("{name}={}", encoded(value.as_deref()?))));
            let query = query.into_iter().flatten().collect::<Vec<_>>().join("&");
            account.send("GET", "/orders", &query, None).await?
        }
        AccountCommand::Options => account.send("GET", "/options", "limit=100", None).await?,
        AccountCommand::Redeliver { id, .. } => {
            let of = if listen::is_event(id) { "webhook/events" } else { "topups" };
            account.send("POST", &format!("/{of}/{}/redeliver", encoded(id)), "", None).await?
        }
    };
    print(serde_json::to_string_pretty(&answer.json)?)?;
    if !answer.is_success() {
        eprintln!("esim-partner: {}", answer.summary());
    }
    let of_event = matches!(command, AccountCommand::Redeliver { id, .. } if listen::is_event(id));
    if answer.codes.contains("webhook_url_missing") && !of_event {
        eprintln!("Without a webhook URL: add --forward-to http://localhost:3000/hook");
    }
    Ok(answer.is_success())
}

//! `esim-partner`, the command line of partners: order eSIMs, look orders up, forward and redeliver
//! webhooks, and certify a webhook endpoint.
//!
//! It uses the same public API as the partners' own programs, with the same keys and signatures, so
//! it can do nothing that a partner cannot do. It runs on the partner's machine and needs no access
//! to our database. Two guarantees matter most. `order` never buys twice, because it repeats a
//! request only with the same external order id. And keys never appear in arguments or in the
//! output, because other users of the machine can see arguments, and logs may keep both.
//!
//! [`account`] sends the signed requests, with the keys that [`profile`] reads and stores. [`keys`]
//! lists and replaces them. [`order`] places orders, and triggers the outcomes of the sandbox for
//! tests. [`balance`] and [`statements`] show the balance and what changed it. [`listen`] forwards
//! webhooks to an endpoint that the service cannot reach, such as one on a laptop. [`endpoints`]
//! and [`notices`] change where the service sends webhooks and notices, and [`install_pages`] what
//! travellers see. [`tail`] follows orders and webhook attempts. [`webhooks`] lists missed webhooks
//! and has them sent again. [`mcp`] lets an agent use the account. [`certify`] sends webhooks to an
//! endpoint and judges its responses, and [`checklist`] lists what else must be true before real
//! customers order.
//!
//! The service may be another than it should be, for example because `BASE_URL` is wrong. So what
//! it sends is printed through `runtime::terminal`, which lets nothing through that changes a
//! terminal, and ids are used in paths and commands only if they have the form of one.

mod account;
mod agent;
mod balance;
pub mod certify;
mod checklist;
mod endpoints;
mod install_pages;
mod keys;
mod listen;
mod login;
mod mcp;
mod notices;
mod order;
mod private;
mod profile;
mod shown;
mod statements;
mod tail;
mod webhooks;

use std::process::ExitCode;

use anyhow::ensure;
use clap::{
    Args, Parser, Subcommand,
    builder::{StringValueParser, TypedValueParser},
};
use domain::{Stored, TopupId, WebhookId};
use reqwest::Url;
use runtime::terminal::{is_closed, one_line, print, say};
use serde_json::json;

use crate::{
    account::{AccountConfig, ApiClient, ApiResponse, encoded},
    endpoints::EndpointsCommand,
    tail::{ApiOrderState, Logs},
    webhooks::WebhooksCommand,
};

const EXAMPLES: &str = "Examples:
  esim-partner login
  esim-partner listen --forward-to http://localhost:3000/hook
  esim-partner trigger ready
  esim-partner order A-1042 424b7b26-96e7-5c95-8df9-6654a3998070 --qty 2
  esim-partner orders show A-1042
  esim-partner cancel A-1042
  esim-partner logs tail
  esim-partner webhooks redeliver --since 2h
  esim-partner redeliver 20250129123456123456789012
  esim-partner redeliver evt_019a0000000070008000000000000001
  esim-partner endpoints list
  esim-partner notices set --email ops@example.com
  esim-partner certify https://shop.example.com/webhooks

The keys:
  BASE_URL        where the API is
  ACCESS_KEY      names your account
  SECRET_KEY      signs your requests
  WEBHOOK_SECRET  signs webhooks (whsec_…); only `certify` and `redeliver --forward-to` need it
  BRAND           part of the names of the headers, X-<BRAND>-…; Service if not set

They come from the file of --keys, which has lines such as ACCESS_KEY=…. Without --keys and --profile they come from the
environment, if it has ACCESS_KEY, SECRET_KEY or WEBHOOK_SECRET. Otherwise they come from the file that `login` stored in
~/.config/esim-partner, which only you can read. Keys are never arguments, because other users of the machine can see
arguments.

Exit status: 0 done, 1 failed (standard error says why), 2 wrong arguments";

const LOGIN_EXAMPLES: &str = "Examples:
  esim-partner login                                  asks for the keys
  esim-partner login --from keys.env
  esim-partner --profile live login --from live.env   keeps a second account apart

The keys are checked with a signed request before they are stored, in a file that only you can read.";

const ORDER_EXAMPLES: &str = "Examples:
  esim-partner order A-1042 424b7b26-96e7-5c95-8df9-6654a3998070
  esim-partner order A-1042 424b7b26-96e7-5c95-8df9-6654a3998070 --qty 2";

const TRIGGER_EXAMPLES: &str = "Examples:
  esim-partner trigger                 lists the outcomes
  esim-partner trigger ready
  esim-partner trigger partly --qty 2

It needs a sandbox account, which buys nothing real.";

const ORDERS_EXAMPLES: &str = "Examples:
  esim-partner orders show A-1042
  esim-partner orders list --state ready";

const SHOW_EXAMPLES: &str = "Examples:
  esim-partner orders show A-1042

The output holds the activation codes of ready eSIMs, which are as good as money: keep it out of logs and tickets.";

const CANCEL_EXAMPLES: &str = "Examples:
  esim-partner cancel A-1042

A success means that nothing is bought and that the id is free again. Otherwise the code says why: order_not_answered
(try again in some seconds), order_not_waiting (an eSIM is bought, or may be) or order_refused (nothing was bought).";

const LIST_EXAMPLES: &str = "Examples:
  esim-partner orders list
  esim-partner orders list --state ready";

const OPTIONS_EXAMPLES: &str = "Examples:
  esim-partner options
  esim-partner options --country JP --min-data-mb 5120
  esim-partner options --unlimited true --min-days 7 --max-days 30
  esim-partner options --country JP --network 'NTT Docomo' --kind data
  esim-partner options --updated-since 2026-11-22T00:00:00Z";

const LISTEN_EXAMPLES: &str = "Examples:
  esim-partner listen                                    checks each signature itself
  esim-partner listen --forward-to http://localhost:3000/hook
  esim-partner listen --forward-to http://localhost:3000/hook --since 10m --count 1";

const REDELIVER_EXAMPLES: &str = "Examples:
  esim-partner redeliver 20250129123456123456789012
  esim-partner redeliver evt_019a0000000070008000000000000001
  esim-partner redeliver 20250129123456123456789012 --forward-to http://localhost:3000/hook";

const TOPUPS_EXAMPLES: &str = "Examples:
  esim-partner topups --iccid '8981 0000 0000 0000 001'
  esim-partner topups --updated-since 2026-11-29T00:00:00Z --updated-until 2026-11-30T00:00:00Z";

const USAGE_EXAMPLES: &str = "Examples:
  esim-partner usage 20250129123456123456789012";

const GIVE_BACK_EXAMPLES: &str = "Examples:
  esim-partner give-back 20250129123456123456789012
  esim-partner give-back 20250129123456123456789012 --cause no_coverage
  esim-partner give-back 20250129123456123456789012 --state

After a success nobody can install the eSIM any more. If the give-back is still under way, or claimed, because people at the provider decide, ask for its state later.";

const SUSPEND_EXAMPLES: &str = "Examples:
  esim-partner suspend 20250129123456123456789012
  esim-partner suspend 20250129123456123456789012 --state

A suspended eSIM is of no use until it is resumed: esim-partner resume 20250129123456123456789012";

const EXTEND_EXAMPLES: &str = "Examples:
  esim-partner extend 20250129123456123456789012
  esim-partner extend 20250129123456123456789012 A-1042-more 424b7b26-96e7-5c95-8df9-6654a3998070

The second one waits up to 12 s. If the extension is still under way then, the first one shows how it ended.";

const CERTIFY_EXAMPLES: &str = "Examples:
  esim-partner certify https://shop.example.com/webhooks
  esim-partner certify https://shop.example.com/webhooks --json

The made-up topup ids begin with 20000101 and the order ids with certify-. Your endpoint should acknowledge such webhooks
and do nothing else. The exit status is 0 if all checks passed, whatever the checklist says.";

/// Order eSIMs, look orders up, forward and redeliver webhooks, and certify a webhook endpoint
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
    /// Check your keys, and store them for the other commands
    #[command(after_help = LOGIN_EXAMPLES)]
    Login(login::Login),
    #[command(flatten)]
    Account(AccountCommand),
}

/// The commands that use an account.
#[derive(Subcommand, Clone, Debug)]
enum AccountCommand {
    /// Order an option; the same external order id never buys twice
    ///
    /// Without a definite answer, such as after a 5xx or a broken connection, the order is sent
    /// again with the same id. If an earlier request stored the same order, that order is shown,
    /// and the command succeeds. A refusal is about this command only: if an earlier one ended
    /// without an answer less than a minute ago, repeat the command after that minute.
    #[command(after_help = ORDER_EXAMPLES)]
    Order {
        /// The id that you give the order; each order needs one of its own
        external_order_id: String,
        /// The id of the option, as `esim-partner options` lists it
        option_id: String,
        /// The number of eSIMs to order
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        qty: u32,
        /// What you want to find again with the order, such as ticket=T-77; at most 10 of them
        #[arg(long = "metadata", value_name = "NAME=TEXT", value_parser = order::pair)]
        metadata: Vec<(String, String)>,
    },
    /// Order a sandbox option that behaves as its name says, or make an event
    ///
    /// It shows how your system copes with each outcome, for example with a refusal, a lost answer,
    /// a late eSIM, or keys that end soon.
    #[command(after_help = TRIGGER_EXAMPLES)]
    Trigger {
        /// The outcome, such as `ready`, `partly` or `key.expiring`; without it the command lists
        /// the outcomes
        outcome: Option<String>,
        /// The number of eSIMs to order
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        qty: u32,
    },
    /// Show or list your orders
    #[command(subcommand, after_help = ORDERS_EXAMPLES)]
    Orders(Orders),
    /// Cancel an order of which nothing was bought
    #[command(after_help = CANCEL_EXAMPLES)]
    Cancel {
        /// The id that you gave the order
        external_order_id: String,
    },
    /// List the options that you may order, one page at a time
    #[command(after_help = OPTIONS_EXAMPLES)]
    Options(Options),
    /// Check the webhooks of a sandbox account, or forward them to an endpoint on this machine
    ///
    /// You need neither a tunnel nor a webhook URL for it. A forwarded webhook has the body and the
    /// `webhook-id` of the real one, and its signature covers the current time, as in each attempt
    /// of the service. Each webhook is forwarded once, and if the account has a webhook URL, it is
    /// also sent there. The command runs until you end it with Ctrl-C.
    #[command(after_help = LISTEN_EXAMPLES)]
    Listen(listen::Listen),
    /// Follow the account's orders and webhook attempts as they happen
    #[command(subcommand, after_help = tail::EXAMPLES)]
    Logs(Logs),
    /// List the webhooks that your endpoint missed, and have them sent again
    #[command(subcommand, after_help = webhooks::EXAMPLES)]
    Webhooks(WebhooksCommand),
    /// Send a topup's webhook, or an event, again
    ///
    /// The repeat has the same `webhook-id`, so that your endpoint can recognise it.
    #[command(after_help = REDELIVER_EXAMPLES)]
    Redeliver {
        /// The `webhook-id`: the topup id of 26 digits, or the id of an event (`evt_…`)
        #[arg(value_name = "TOPUP_ID|EVENT_ID")]
        id: WebhookId,
        /// Send the topup's webhook once from this machine to this endpoint
        ///
        /// It is signed here with `WEBHOOK_SECRET`, and the service does not send anything. Events
        /// cannot be sent in this way.
        #[arg(long, value_name = "URL", value_parser = listen::endpoint)]
        forward_to: Option<Url>,
    },
    /// Find topups by their ICCID, or walk what has become of them
    #[command(after_help = TOPUPS_EXAMPLES)]
    Topups(Topups),
    /// Show whether an eSIM is installed, and how much of its data is used
    #[command(after_help = USAGE_EXAMPLES)]
    Usage {
        /// The topup id of 26 digits
        topup_id: TopupId,
    },
    /// Give an eSIM back that nobody has installed, if its provider takes it back
    #[command(after_help = GIVE_BACK_EXAMPLES)]
    GiveBack {
        /// The topup id of 26 digits
        topup_id: TopupId,
        /// Why: `installation_failure`, `no_coverage`, `change_of_plan`, `wrong_purchase` or
        /// `other`
        #[arg(long, conflicts_with = "state")]
        cause: Option<String>,
        /// Only show the state of the give-back
        #[arg(long)]
        state: bool,
    },
    /// Suspend an eSIM, if its provider can
    #[command(after_help = SUSPEND_EXAMPLES)]
    Suspend {
        /// The topup id of 26 digits
        topup_id: TopupId,
        /// Only show whether it is suspended
        #[arg(long)]
        state: bool,
    },
    /// Resume an eSIM that is suspended
    #[command(after_help = SUSPEND_EXAMPLES)]
    Resume {
        /// The topup id of 26 digits
        topup_id: TopupId,
    },
    /// Show what can be added to an eSIM, or add it
    ///
    /// With an id and an option it orders the extension. While there is no answer, it sends it
    /// again with the same id, which buys nothing twice.
    #[command(after_help = EXTEND_EXAMPLES)]
    Extend {
        /// The topup id of 26 digits
        topup_id: TopupId,
        /// The id that you give the extension; each needs one of its own
        #[arg(requires = "option_id")]
        external_id: Option<String>,
        /// The id of the option to add, as this command lists it
        option_id: Option<String>,
    },
    /// Show what you have, if we have agreed prices with you, or be told when it is low
    #[command(after_help = balance::EXAMPLES)]
    Balance(balance::BalanceArgs),
    /// List the months in which your balance changed, or the entries of one
    #[command(after_help = statements::EXAMPLES)]
    Statements(statements::Statements),
    /// List, replace, make and end the keys of the account
    #[command(subcommand, after_help = keys::EXAMPLES)]
    Keys(keys::KeysCommand),
    /// List and change the endpoints that receive your webhooks
    #[command(subcommand, after_help = endpoints::EXAMPLES)]
    Endpoints(EndpointsCommand),
    /// Show or change where you are told that an endpoint fails or that keys end
    #[command(subcommand, after_help = notices::EXAMPLES)]
    Notices(notices::NoticesCommand),
    /// Get the address of a page from which a traveller installs, end it, or set how your pages
    /// look
    #[command(subcommand, after_help = install_pages::EXAMPLES)]
    InstallPage(install_pages::InstallPageCommand),
    /// Let an agent look at your account, and order if you allow it, by the Model Context Protocol
    ///
    /// It speaks the protocol on standard input and output, until the agent closes them.
    #[command(after_help = mcp::EXAMPLES)]
    Mcp(mcp::Mcp),
    /// Send realistic webhooks to your endpoint, judge its answers, and print a go-live checklist
    ///
    /// Some webhooks are valid and must be acknowledged with a 2xx. Others are forged, changed or
    /// stale and must be refused. Each fault is printed with its remedy.
    #[command(after_help = CERTIFY_EXAMPLES)]
    Certify(certify::Certify),
}

/// Which topups are listed.
#[derive(Args, Clone, Debug)]
struct Topups {
    /// The ICCID of the eSIM, or its last six digits
    #[arg(long, conflicts_with_all = ["updated_since", "updated_until", "cursor"])]
    iccid: Option<String>,
    /// What became ready, failed, was extended or given back after this time
    #[arg(long, value_name = "TIME", required_unless_present_any = ["iccid", "cursor"])]
    updated_since: Option<String>,
    /// Only what happened until this time
    #[arg(long, value_name = "TIME")]
    updated_until: Option<String>,
    /// The `next_cursor` of the page before
    #[arg(long)]
    cursor: Option<String>,
}

/// Which options are listed.
#[derive(Args, Clone, Debug)]
struct Options {
    /// List only options that can be used in this country, a code of ISO 3166-1 alpha-2 such as
    /// `JP`
    #[arg(long, value_name = "CODE")]
    country: Option<String>,
    /// List only options that can use the network of this name; with --country, in that country
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// List only options of this kind: `data`, or `data_voice_text` with calls and text messages
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// List only options with at least so much data, in MB
    #[arg(long, value_name = "MB")]
    min_data_mb: Option<u32>,
    /// List only options with at most so much data, in MB
    #[arg(long, value_name = "MB")]
    max_data_mb: Option<u32>,
    /// List only options with unlimited data, or only the others
    #[arg(long)]
    unlimited: Option<bool>,
    /// List only options whose data can be used for at least so many days
    #[arg(long, value_name = "DAYS")]
    min_days: Option<u32>,
    /// List only options whose data can be used for at most so many days
    #[arg(long, value_name = "DAYS")]
    max_days: Option<u32>,
    /// List only options that changed since this time, or whose price did
    #[arg(long, value_name = "TIME")]
    updated_since: Option<String>,
    /// Continue after the page before: the value of its `next_cursor`
    #[arg(long)]
    cursor: Option<String>,
}

impl Options {
    fn query(&self) -> String {
        let number = |value: Option<u32>| value.map(|value| value.to_string());
        let given = [
            ("country", self.country.clone()),
            ("network", self.network.clone()),
            ("kind", self.kind.clone()),
            ("min_data_mb", number(self.min_data_mb)),
            ("max_data_mb", number(self.max_data_mb)),
            (
                "unlimited",
                self.unlimited.map(|unlimited| unlimited.to_string()),
            ),
            ("min_days", number(self.min_days)),
            ("max_days", number(self.max_days)),
            ("updated_since", self.updated_since.clone()),
            ("cursor", self.cursor.clone()),
        ];
        let given = given
            .into_iter()
            .filter_map(|(name, value)| Some(format!("&{name}={}", encoded(&value?))));
        given.fold("limit=100".to_owned(), |query, one| query + &one)
    }
}

#[derive(Subcommand, Clone, Debug)]
enum Orders {
    /// Show an order with its topups, and the eSIMs that are ready
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// The id that you gave the order
        external_order_id: String,
    },
    /// List your orders, newest first, one page at a time
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// List only orders in this state: `processing`, `ready`, `partly_failed`, `failed`,
        /// `refused` or `cancelled`
        // A newer service may know more states, so it judges the name.
        #[arg(long, value_parser = StringValueParser::new().map(Stored::<ApiOrderState>::from))]
        state: Option<Stored<ApiOrderState>>,
        /// Continue after the page before: the value of its `next_cursor`
        #[arg(long)]
        cursor: Option<String>,
    },
}

/// Runs one command. A failure is said on standard error and gives exit status 1. If a reader such
/// as `head` has closed standard output, the program ends silently, because the reader has all that
/// it wanted.
pub fn run(config: &Config) -> ExitCode {
    match execute(config) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!(
                "esim-partner: {}",
                one_line(&format!("{error:#}"))
            ));
            ExitCode::FAILURE
        }
    }
}

impl Topups {
    fn query(&self) -> String {
        query_of(&[
            ("iccid", self.iccid.as_deref()),
            ("updated_since", self.updated_since.as_deref()),
            ("updated_until", self.updated_until.as_deref()),
            ("cursor", self.cursor.as_deref()),
        ])
    }
}

/// The parameters that are given, as a query.
fn query_of(parameters: &[(&str, Option<&str>)]) -> String {
    let given = parameters.iter();
    let written = given.filter_map(|(name, value)| Some(format!("{name}={}", encoded((*value)?))));
    written.collect::<Vec<_>>().join("&")
}

/// Gives an eSIM back, or shows what became of that.
async fn give_back(
    account: &ApiClient,
    topup_id: &TopupId,
    cause: Option<&str>,
    only_shows: bool,
) -> anyhow::Result<ApiResponse> {
    let method = if only_shows { "GET" } else { "POST" };
    let path = format!("/topups/{topup_id}/give-back");
    let body = cause.map(|cause| json!({ "cause": cause }));
    account.send(method, &path, "", body.as_ref()).await
}

/// Suspends an eSIM, resumes it, or shows whether it is suspended.
async fn suspension(
    account: &ApiClient,
    topup_id: &TopupId,
    what: &str,
) -> anyhow::Result<ApiResponse> {
    let method = if what == "suspension" { "GET" } else { "POST" };
    let path = format!("/topups/{topup_id}/{what}");
    account.send(method, &path, "", None).await
}

/// Carries the command out. `false` means that it failed and has printed why; an error still has to
/// be printed.
#[tokio::main(flavor = "current_thread")]
async fn execute(config: &Config) -> anyhow::Result<bool> {
    let command = match &config.command {
        Command::Login(login) => return login.run(&config.account).await.map(|()| true),
        Command::Account(command) => command,
    };
    let account = ApiClient::read(&config.account)?;
    // `certify` sends nothing to the service.
    if !matches!(command, AccountCommand::Certify(_)) {
        account.ensure_complete()?;
    }
    let answer = match command {
        AccountCommand::Certify(certify) => return certify.run(&account).await,
        AccountCommand::Mcp(mcp) => return mcp.run(account).await.map(|()| true),
        AccountCommand::Listen(listen) => return listen.run(&account).await,
        AccountCommand::Logs(Logs::Tail(tail)) => return tail.run(&account).await.map(|()| true),
        AccountCommand::Webhooks(webhooks) => return webhooks.run(&account).await,
        AccountCommand::Statements(statements) => return statements.run(&account).await,
        AccountCommand::Trigger { outcome, qty } => {
            return order::trigger(&account, outcome.as_deref(), *qty).await;
        }
        AccountCommand::Redeliver {
            id,
            forward_to: Some(url),
        } => {
            return listen::redeliver(&account, id, url).await;
        }
        AccountCommand::Order {
            external_order_id,
            option_id,
            qty,
            metadata,
        } => order::place(&account, external_order_id, option_id, *qty, metadata).await?,
        AccountCommand::Orders(Orders::Show { external_order_id }) => {
            account.order(external_order_id).await?
        }
        AccountCommand::Cancel { external_order_id } => {
            // The API names the order by the path, from which URL libraries and proxies remove
            // these two.
            let is_folder = matches!(external_order_id.as_str(), "." | "..");
            ensure!(
                !is_folder,
                "an order with the id {external_order_id:?} cannot be cancelled, because no path can name it"
            );
            let path = format!("/orders/{}", encoded(external_order_id));
            account.send("DELETE", &path, "", None).await?
        }
        AccountCommand::Keys(keys) => keys.run(&account).await?,
        AccountCommand::Orders(Orders::List { state, cursor }) => {
            let state = state.as_ref().map(Stored::as_str);
            let query = query_of(&[("state", state), ("cursor", cursor.as_deref())]);
            account.send("GET", "/orders", &query, None).await?
        }
        AccountCommand::Topups(topups) => {
            account
                .send("GET", "/topups", &topups.query(), None)
                .await?
        }
        AccountCommand::Usage { topup_id } => {
            let path = format!("/topups/{topup_id}/usage");
            account.send("GET", &path, "", None).await?
        }
        AccountCommand::GiveBack {
            topup_id,
            cause,
            state,
        } => give_back(&account, topup_id, cause.as_deref(), *state).await?,
        AccountCommand::Suspend { topup_id, state } => {
            let what = if *state { "suspension" } else { "suspend" };
            suspension(&account, topup_id, what).await?
        }
        AccountCommand::Resume { topup_id } => suspension(&account, topup_id, "resume").await?,
        AccountCommand::Extend {
            topup_id,
            external_id,
            option_id,
        } => {
            if let Some((id, option)) = external_id.as_deref().zip(option_id.as_deref()) {
                order::extend(&account, topup_id, id, option).await?
            } else {
                let path = format!("/topups/{topup_id}/extensions");
                account.send("GET", &path, "", None).await?
            }
        }
        AccountCommand::Balance(balance) => balance.send(&account).await?,
        AccountCommand::Endpoints(endpoints) => endpoints.send(&account).await?,
        AccountCommand::Notices(notices) => notices.run(&account).await?,
        AccountCommand::InstallPage(page) => page.run(&account).await?,
        AccountCommand::Options(options) => {
            account
                .send("GET", "/options", &options.query(), None)
                .await?
        }
        AccountCommand::Redeliver { id, .. } => {
            let of = match id {
                WebhookId::Event(_) => "webhook/events",
                WebhookId::Topup(_) => "topups",
            };
            let path = format!("/{of}/{id}/redeliver");
            account.send("POST", &path, "", None).await?
        }
    };
    tell(&account, command, &answer).await
}

/// Prints the answer of the service, and what to do about a refusal where we know it.
async fn tell(
    account: &ApiClient,
    command: &AccountCommand,
    answer: &ApiResponse,
) -> anyhow::Result<bool> {
    // A deletion is answered with a 204, without a body.
    ensure!(
        !answer.is_success() || answer.status == 204 || answer.json.is_object(),
        account::UNEXPECTED
    );
    if !answer.json.is_null() {
        print(serde_json::to_string_pretty(&answer.json)?)?;
    }
    if !answer.is_success() {
        say(format_args!("esim-partner: {}", answer.summary()));
    }
    match command {
        AccountCommand::Redeliver { id, .. } if answer.codes.contains("webhook_url_missing") => {
            say(match id {
                WebhookId::Topup(_) => {
                    "The account has no webhook URL to send to. To send the webhook from this machine instead, add --forward-to http://localhost:3000/hook"
                }
                WebhookId::Event(_) => {
                    "The account has no webhook URL to send to. `PUT /webhook` sets it, or we do it for you; `esim-partner listen` gets events without one"
                }
            });
        }
        AccountCommand::Order { option_id, .. } if answer.codes.contains("option_not_found") => {
            order::hint(account, option_id).await;
        }
        _ => {}
    }
    Ok(answer.is_success())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_has_examples() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command.get_after_help().map(ToString::to_string);
            assert!(
                help.unwrap_or_default().contains("esim-partner"),
                "{path} has no examples"
            );
            for subcommand in command.get_subcommands() {
                check(subcommand, &path);
            }
        }
        check(&Config::command(), "");
    }
}

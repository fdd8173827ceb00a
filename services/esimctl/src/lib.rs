//! `esimctl`, the operator's command line: partners, options, orders, deliveries, endpoints,
//! providers, retention, archives, keys and the schema of the database.
//!
//! Operators run it by hand, and deployments run it from scripts (`migrate`, `secrets create`). It
//! talks to PostgreSQL and to files, never to the services: they notice a change because they read
//! the same database. Only `provider check`, `provider reconcile` and `catalogue pull` talk to somebody else, the provider. It is the only program that migrates the schema and that creates partners. A
//! partner's secrets are stored encrypted and are shown only once, by the command that creates or
//! replaces them.
//!
//! Every command checks its arguments before it connects. Most commands change everything in one
//! transaction, so that an interrupted command has changed all or nothing. `migrate`, `master-key
//! reencrypt`, `partner erase`, `partner move`, `partner set --webhook-url`, `archive run` and `archive
//! restore` commit in several steps, because they may have to change many rows; run them again after
//! an interruption.
//!
//! A system may consist of several cells, each with a database of its own. The file of cells
//! (`cell_file`) lists them for `cell`, `partner move` and `--all-cells`; all other commands work on
//! the one database that `DATABASE_URL` names.
//!
//! A group of commands has a module of its own, such as `partner`, in the folder of its subject, such as
//! `partners`. All of them share the modules in `frame`: `console` connects to the database and prints the
//! result, `output` lays out text, `lookup` finds the partner that an argument names, and `confirm` shows a
//! preview and asks before a change that cannot be taken back.

mod cells;
mod deliveries;
mod doctor;
mod frame;
mod orders;
mod partners;
mod providers;
mod status;
mod upkeep;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use runtime::terminal::{is_closed, say};
use store::config::{BadDatabase, DatabaseConfig, MasterKeyError};

// The modules are found under their own names, whatever folder they are in.
use crate::{
    cells::{all_cells, cell, cell_file},
    deliveries::{delivery, endpoint, event, resend, webhook_url},
    frame::{confirm, console, csv, lookup, moment, output, progress, secret_file},
    orders::{erase, find, give_back, order, order_list, placement},
    partners::{partner, partner_change, partner_move, refused, rotate},
    providers::{
        catalogue, ledger, option, provider, provider_check, provider_lists, reconcile, recover,
    },
    upkeep::{
        action, archive, database_password, master_key, migrate, operator, reencrypt, retention,
        secret_set,
    },
};
use crate::{
    console::{Console, NoCells, NoDatabase},
    output::one_line,
};

/// Exit status of a command that failed.
const FAILED: u8 = 1;
/// Exit status for wrong arguments or settings.
const USAGE: u8 = 2;
/// Exit status if something was found that needs somebody: a difference from a provider's list of
/// purchases, or what `attention` shows.
const FOUND: u8 = 3;

const EXAMPLES: &str = "Examples:
  export DATABASE_URL=postgres://esim:password@127.0.0.1:5432/esim
  esimctl migrate
  sandbox catalogue | esimctl option import -
  esimctl partner create --name 'Acme Travel' --environment sandbox
  esimctl order show acme-1001

Exit status: 0 done, 1 failed (the reason is one line on standard error), 2 wrong arguments or settings, 3 `recover
--ledger` or `provider reconcile` has found purchases that one side does not know or that contradict the database, or
`attention` something that needs somebody. `doctor` has others: see its help.";

/// The command line for operators of the eSIM ordering pipeline
///
/// It works on the database of the pipeline, so it needs `DATABASE_URL`. The services keep running
/// while it works, and they notice its changes by themselves.
#[derive(Parser, Clone, Debug)]
// The URL is optional for clap, because some commands need no database. The others fail with
// `NoDatabase` if it is missing.
#[command(name = "esimctl", version, after_help = EXAMPLES, mut_arg("database_url", |url| url.required(false)))]
#[command(mut_subcommands(with_examples))]
pub struct Config {
    /// Print the result as JSON instead of text
    ///
    /// The option may stand before or after the command. Errors stay one line of text on standard
    /// error.
    #[arg(long, global = true)]
    json: bool,
    /// Run the command in every cell, and name the cell in the output
    ///
    /// It works with `find`, `order show`, `partner list`, `partner show`, `option list`, `option import`,
    /// `provider list` and `migrate`. With `--json` each cell gives a line `{"cell":…,"result":…}`. The
    /// exit status is the worst of all cells. `find` and a `show` succeed if one cell has what they look
    /// for.
    #[arg(long, global = true, hide = !cell_file::is_named())]
    all_cells: bool,
    /// The file that lists the cells, for `cell`, `partner move` and `--all-cells`
    ///
    /// `esimctl cell list --help` shows an example.
    #[arg(long, global = true, value_name = "FILE", env = "ESIM_CELLS", hide = !cell_file::is_named())]
    cells: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    database: Option<DatabaseConfig>,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    // In the order of tasks: what is wrong, what is it about, what can be done, and then the upkeep.
    /// Look for what is wrong, and say how to mend it
    ///
    /// It looks at PostgreSQL, roles, keys, NATS, stages, waiting work, name servers, the console's OpenID
    /// provider and backups, and changes nothing.
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(Box<doctor::Command>),
    /// Say what is wrong, since when, who feels it and what to do
    #[command(after_help = status::ATTENTION_EXAMPLES)]
    Attention(status::Attention),
    /// Say the same, and show the stages, what waits at each provider and endpoint, and figures
    #[command(after_help = status::EXAMPLES)]
    Status(status::Command),
    /// Find orders and partners by any id, number or name
    #[command(after_help = find::EXAMPLES)]
    Find(find::Command),
    /// Show a stored order stage by stage, or erase it
    #[command(subcommand)]
    Order(order::Command),
    /// List placements, each of which is one purchase, and resolve parked ones
    #[command(subcommand)]
    Placement(placement::Command),
    /// List give-backs of delivered eSIMs that are parked, and resolve them
    #[command(subcommand)]
    GiveBack(give_back::Command),
    /// Show webhooks with their attempts
    #[command(subcommand)]
    Delivery(delivery::Command),
    /// Send webhooks again: one, or those of one or all partners
    #[command(subcommand)]
    Resend(resend::Command),
    /// List partners' webhook endpoints, and pause or resume them
    #[command(subcommand)]
    Endpoint(endpoint::Command),
    /// List providers, open or close their breakers, try and reconcile their accounts
    #[command(subcommand)]
    Provider(provider::Command),
    /// Create and change partner accounts, their keys and webhook URLs
    #[command(subcommand)]
    Partner(partner::Command),
    /// List and import the options that partners may order, and take one out of sale
    #[command(subcommand)]
    Option(option::Command),
    /// Take products and prices of a provider over into the options
    #[command(subcommand)]
    Catalogue(catalogue::Command),
    /// Show what operators and partners changed, and why
    #[command(subcommand)]
    Action(action::Command),
    /// After a restore: look up every unfinished purchase before anything is bought
    #[command(after_help = recover::EXAMPLES)]
    Recover(recover::Command),
    /// Show and set how long profiles, attempts and recorded actions are kept
    #[command(subcommand)]
    Retention(retention::Command),
    /// Move finished orders into files, and find, check and restore them
    #[command(subcommand)]
    Archive(archive::Command),
    /// Bring the database's schema to this version
    ///
    /// Run it before the services of this version start. If the database server cannot be reached
    /// yet, the command tries again for up to 30 seconds, so it can be started together with the
    /// server.
    #[command(after_help = migrate::EXAMPLES)]
    Migrate(migrate::Command),
    /// Create all secrets of a new system, and hand each service its share
    #[command(subcommand)]
    Secrets(secret_set::Command),
    /// Create and replace the keys that encrypt the stored secrets
    #[command(subcommand)]
    MasterKey(master_key::Command),
    /// Create operators who sign in at the console, and change what they may do
    #[command(subcommand)]
    Operator(operator::Command),
    /// List the cells, write the proxy's map of them, and check that they fit together
    #[command(subcommand, hide = !cell_file::is_named())]
    Cell(cell::Command),
}

/// Adds examples to the help of a group: the first example of each of its commands, which is the
/// second line of that command's examples.
fn with_examples(command: clap::Command) -> clap::Command {
    let first = |command: &clap::Command| {
        let help = command.get_after_help()?.to_string();
        help.lines().nth(1).map(|example| format!("\n{example}"))
    };
    let examples: String = command.get_subcommands().filter_map(first).collect();
    if examples.is_empty() {
        return command;
    }
    command.after_help(format!("Examples:{examples}"))
}

/// Runs one command. A failure is one line on standard error, so that scripts and log collectors
/// get it whole.
pub fn run(config: &Config) -> ExitCode {
    ExitCode::from(execute(config))
}

/// The exit status of a result. An error is printed; `of` says where it happened, if there are
/// several places.
fn status(result: anyhow::Result<()>, of: &str) -> u8 {
    let error = match result {
        Ok(()) => return 0,
        // The reader, such as `head`, has all that it wanted, and whatever the command changed is done.
        Err(error) if is_closed(&error) => return 0,
        Err(error) => error,
    };
    say(format_args!(
        "esimctl: {of}{}",
        one_line(&with_causes(&error))
    ));
    let wrong_settings = error.is::<NoDatabase>()
        || error.is::<NoCells>()
        || error.is::<BadDatabase>()
        || error.is::<MasterKeyError>();
    if wrong_settings {
        USAGE
    } else if error.is::<ledger::Discrepancies>() {
        FOUND
    } else {
        FAILED
    }
}

/// The error followed by its causes. Some errors end with the text of their cause already; such a
/// cause is not repeated.
fn with_causes(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if said.is_empty() {
            said = cause;
        } else if !said.ends_with(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    said
}

#[tokio::main(flavor = "current_thread")]
async fn execute(config: &Config) -> u8 {
    let console = Console::new(config.json, config.database.clone());
    let console = console.with_cells(config.cells.clone());
    if config.all_cells {
        return all_cells::run(&config.command, &console).await;
    }
    // Their exit status says more than success or failure.
    let ended = match &config.command {
        Command::Doctor(command) => doctor::run(command, &console).await,
        Command::Attention(command) => status::attention(command, &console).await,
        other => return status(dispatch(other, &console).await, ""),
    };
    match ended {
        Ok(status) => status,
        Err(error) => status(Err(error), ""),
    }
}

async fn dispatch(command: &Command, console: &Console) -> anyhow::Result<()> {
    match command {
        Command::Partner(command) => partner::run(command, console).await,
        Command::Option(command) => option::run(command, console).await,
        Command::Catalogue(command) => catalogue::run(command, console).await,
        Command::Delivery(command) => delivery::run(command, console).await,
        Command::Endpoint(command) => endpoint::run(command, console).await,
        Command::Order(command) => order::run(command, console).await,
        Command::Placement(command) => placement::run(command, console).await,
        Command::GiveBack(command) => give_back::run(command, console).await,
        Command::Provider(command) => provider::run(command, console).await,
        Command::Retention(command) => retention::run(command, console).await,
        Command::Archive(command) => archive::run(command, console).await,
        Command::Cell(command) => cell::run(command, console).await,
        Command::Action(command) => action::run(command, console).await,
        Command::Resend(command) => resend::run(command, console).await,
        Command::Operator(command) => operator::run(command, console).await,
        Command::Find(command) => find::run(command, console).await,
        Command::Status(command) => status::run(command, console).await,
        Command::MasterKey(command) => master_key::run(command, console).await,
        Command::Secrets(command) => secret_set::run(command, console),
        // Their exit status says more than success or failure, so `execute` runs them.
        Command::Doctor(command) => doctor::run(command, console).await.map(drop),
        Command::Attention(command) => status::attention(command, console).await.map(drop),
        Command::Migrate(command) => migrate::run(command, console).await,
        Command::Recover(command) => recover::run(command, console).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    const URL: [&str; 3] = ["esimctl", "--database-url", "postgres://localhost/esim"];

    #[test]
    fn the_commands_are_consistent() {
        Config::command().debug_assert();
    }

    /// `config show`, `completions` and `man` are added to these.
    #[test]
    fn the_commands_are_few() {
        fn leaves(command: &clap::Command) -> usize {
            let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
            shown.map(|one| leaves(one).max(1)).sum()
        }
        let leaves = leaves(&Config::command());
        assert!(leaves <= 53, "{leaves} commands");
    }

    #[test]
    fn json_is_taken_before_and_after_the_command() {
        for (arguments, json) in [
            (&["partner", "list"][..], false),
            (&["--json", "partner", "list"], true),
            (&["partner", "--json", "list"], true),
            (&["partner", "list", "--json"], true),
            (&["migrate", "--json"], true),
        ] {
            let config = Config::try_parse_from(URL.iter().chain(arguments)).unwrap();
            assert_eq!(config.json, json, "{arguments:?}");
        }
    }

    #[test]
    fn every_command_has_examples() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command.get_after_help().map(ToString::to_string);
            assert!(
                help.unwrap_or_default().contains("esimctl"),
                "{path} has no examples"
            );
            for subcommand in command.get_subcommands() {
                check(subcommand, &path);
            }
        }
        check(&Config::command(), "");
    }
}

//! The operator's command line: partner accounts and their endpoints, the catalogue of options, orders
//! and webhooks as they are stored, and the database's schema.
//!
//! It is the only program that migrates and the only one that makes partners, so it is where their
//! secrets are shown: once, when they are made or replaced. What can be wrong with the input is checked before
//! anything is written, and each command writes in one transaction, but for `master-key reencrypt`.

mod action;
mod confirm;
mod database;
mod database_password;
mod delivery;
mod endpoint;
mod lookup;
mod master_key;
mod migrate;
mod moment;
mod option;
mod order;
mod output;
mod partner;
mod placement;
mod provider;
mod recover;
mod reencrypt;
mod rotate;
mod secret_file;
mod secrets;
mod webhook_url;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use store::config::{BadDatabaseUrl, DatabaseConfig, MasterKeyError};

use crate::output::{Output, one_line};

/// Exit status when what was asked for could not be done.
const FAILED: u8 = 1;
/// Exit status when the arguments or settings are wrong.
const USAGE: u8 = 2;

const EXAMPLES: &str = "Examples:
  export DATABASE_URL=postgres://esim:password@127.0.0.1:5432/esim
  esimctl migrate
  sandbox catalogue | esimctl option import -
  esimctl partner create --name 'Acme Travel' --environment sandbox
  esimctl order show acme-1001

Exit status: 0 done, 1 failed (the reason is one line on standard error), 2 wrong arguments or settings";

/// The command line for operators of the eSIM ordering pipeline
#[derive(Parser, Clone, Debug)]
// Not every command needs the database; those that do say so.
#[command(name = "esimctl", version, after_help = EXAMPLES, mut_arg("database_url", |url| url.required(false)))]
pub struct Config {
    /// Print JSON instead of text, before or after the command
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    database: Option<DatabaseConfig>,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Partner accounts: who may order, and where their webhooks go
    #[command(subcommand, after_help = partner::EXAMPLES)]
    Partner(partner::Command),
    /// The catalogue: the options that partners may order
    #[command(subcommand, after_help = option::EXAMPLES)]
    Option(option::Command),
    /// Webhooks: what became of each, and sending them again
    #[command(subcommand, after_help = delivery::EXAMPLES)]
    Delivery(delivery::Command),
    /// Partners' endpoints: whether they get webhooks
    #[command(subcommand, after_help = endpoint::EXAMPLES)]
    Endpoint(endpoint::Command),
    /// Orders, as they are stored
    #[command(subcommand, after_help = order::EXAMPLES)]
    Order(order::Command),
    /// Placements: purchases, above all those that wait for an operator
    #[command(subcommand, after_help = placement::EXAMPLES)]
    Placement(placement::Command),
    /// Providers: whether their queues are worked on
    #[command(subcommand, after_help = provider::EXAMPLES)]
    Provider(provider::Command),
    /// The keys that secrets at rest are encrypted under
    #[command(subcommand, after_help = master_key::EXAMPLES)]
    MasterKey(master_key::Command),
    /// The password of the database's role
    #[command(subcommand, after_help = database_password::EXAMPLES)]
    DatabasePassword(database_password::Command),
    /// The record of what operators changed, and why
    #[command(subcommand, after_help = action::EXAMPLES)]
    Action(action::Command),
    /// Bring the database's schema to this version; waits up to 30 s for the server
    #[command(after_help = migrate::EXAMPLES)]
    Migrate(migrate::Command),
    /// After an old dump was restored: have every unfinished purchase looked up before anything is bought
    #[command(after_help = recover::EXAMPLES)]
    Recover(recover::Command),
}

/// A command that needs the database isn't told where it is.
#[derive(Debug, thiserror::Error)]
#[error("where is the database? Set --database-url (environment: DATABASE_URL)")]
pub struct NoDatabase;

/// Runs one command. A failure is one line on standard error.
pub fn run(config: &Config) -> ExitCode {
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|tokio| tokio.block_on(execute(config)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("esimctl: {}", one_line(&with_causes(&error)));
            let wrong_settings =
                error.is::<NoDatabase>() || error.is::<BadDatabaseUrl>() || error.is::<MasterKeyError>();
            ExitCode::from(if wrong_settings { USAGE } else { FAILED })
        }
    }
}

/// The error with what caused it. The text of some errors has their cause already.
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

async fn execute(config: &Config) -> anyhow::Result<()> {
    let output = Output::new(config.json);
    let database = || config.database.as_ref().ok_or(NoDatabase);
    match &config.command {
        Command::Partner(command) => partner::run(command, database()?, &output).await,
        Command::Option(command) => option::run(command, database()?, &output).await,
        Command::Delivery(command) => delivery::run(command, database()?, &output).await,
        Command::Endpoint(command) => endpoint::run(command, database()?, &output).await,
        Command::Order(command) => order::run(command, database()?, &output).await,
        Command::Placement(command) => placement::run(command, database()?, &output).await,
        Command::Provider(command) => provider::run(command, database()?, &output).await,
        Command::Action(command) => action::run(command, database()?, &output).await,
        Command::MasterKey(command) => master_key::run(command, database, &output).await,
        Command::DatabasePassword(command) => database_password::run(command, &output),
        Command::Migrate(command) => migrate::run(command, database()?, &output).await,
        Command::Recover(command) => recover::run(command, database()?, &output).await,
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
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(help.contains("esimctl"), "{path} has no examples");
            for subcommand in command.get_subcommands() {
                check(subcommand, &path);
            }
        }
        check(&Config::command(), "");
    }
}

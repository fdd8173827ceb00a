//! `esimctl`, the operator's command line: partners, options, prices, accounts, orders, deliveries,
//! endpoints, providers, retention, archives, keys and the schema of the database.
//!
//! Operators run it by hand, and deployments run it from scripts (`migrate`, `secrets create`). It
//! talks to PostgreSQL and to files, never to the services: they notice a change because they read
//! the same database. Only `provider check`, `provider prove`, `provider reconcile` and `catalogue
//! pull` talk to somebody else, the provider. It is the only program that migrates the schema and
//! that creates partners. A partner's secrets are stored encrypted and are shown only once, by the
//! command that creates or replaces them.
//!
//! Every command checks its arguments before it connects. Most commands change everything in one
//! transaction, so that an interrupted command has changed all or nothing. `migrate`, `master-key
//! reencrypt`, `partner erase`, `partner set --webhook-url`, `archive run`
//! commit in several steps, because they may have to change many rows; run them again after
//! an interruption.
//!
//! A group of commands has a module of its own, such as `partner`, in the folder of its subject,
//! such as `partners`. All of them share the modules in `frame`: `console` connects to the database
//! and prints the result, `output` lays out text, `lookup` finds the partner that an argument
//! names, and `confirm` shows a preview and asks before a change that cannot be taken back.

mod commands;
mod deliveries;
mod doctor;
mod frame;
mod money;
mod orders;
mod partners;
mod providers;
mod status;
mod upkeep;

use std::process::ExitCode;

use clap::Parser;
use pg::config::DatabaseConfig;
use runtime::config::BadSetting;

// The modules are found under their own names, whatever folder they are in.
use crate::{
    commands::{EsimctlCommand, dispatch},
    console::Console,
    exit::{USAGE, status},
};
use crate::{
    deliveries::{delivery, endpoint, event, resend, webhook_url},
    frame::{
        confirm, console, csv, exit, listing, lookup, manifest, output, plan, progress, range,
        secret_file,
    },
    money::{account, margin, price, price_file, price_markup, price_set},
    orders::{erase, esim_change, find, order, order_list, placement},
    partners::{
        key, leaked, partner, partner_apply, partner_change, partner_file, partner_plan, refused,
        rotate, terms,
    },
    providers::{
        catalogue, ledger, option, option_file, provider, provider_check, provider_lists,
        provider_prove, reconcile, recover,
    },
    upkeep::{
        action, archive, database_password, master_key, migrate, operator, reencrypt, retention,
        secret_set,
    },
};

const EXAMPLES: &str = "Examples:
  export DATABASE_URL=postgres://esim:password@127.0.0.1:5432/esim
  esimctl migrate
  sandbox catalogue | esimctl option apply -f -
  esimctl partner create --name 'Acme Travel' --environment sandbox
  esimctl order show acme-1001

Exit status: 0 done, 1 failed (the reason is one line on standard error), 2 wrong arguments or settings, 3 `recover
--ledger` or `provider reconcile` has found purchases that one side does not know or that contradict the database,
`attention` something that needs somebody, `account check` an account that does not agree, or `--dry-run` of `partner apply`,
`option apply`, `price apply` or `price markup` a change. `doctor` has others: see its help.";

/// The command line for operators of the eSIM ordering pipeline
///
/// It works on the database of the pipeline, so it needs `DATABASE_URL`. The services keep running
/// while it works, and they notice its changes by themselves.
#[derive(Parser, Clone, Debug)]
// The URL is optional for clap, because some commands need no database. The others fail with
// `NoDatabase` if it is missing.
#[command(name = "esimctl", version, after_help = EXAMPLES, arg_required_else_help = true, mut_arg("database_url", |url| url.required(false)))]
#[command(mut_subcommands(with_examples))]
pub struct Config {
    /// Print the result as JSON instead of text
    ///
    /// The option may stand before or after the command. Errors stay one line of text on standard
    /// error.
    #[arg(long, global = true)]
    json: bool,
    /// `None` for `config show`, which needs none.
    #[command(subcommand)]
    command: Option<EsimctlCommand>,
    #[command(flatten)]
    database: Option<DatabaseConfig>,
}

impl Config {
    /// Refuses settings that no command could work with, for `config show`. Each command checks
    /// what it uses itself.
    pub fn check(&self) -> anyhow::Result<()> {
        if let (None, Some(database)) = (&self.command, &self.database) {
            database.options("esimctl").map_err(BadSetting::error)?;
        }
        Ok(())
    }
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

#[tokio::main(flavor = "current_thread")]
async fn execute(config: &Config) -> u8 {
    let console = Console::new(config.json, config.database.clone());
    let Some(command) = &config.command else {
        return status(Err(anyhow::anyhow!("name a command; see esimctl --help"))).max(USAGE);
    };
    // Their exit status says more than success or failure.
    let ended = match command {
        EsimctlCommand::Doctor(command) => doctor::run(command, &console).await,
        EsimctlCommand::Attention(command) => status::attention(command, &console).await,
        other => return status(dispatch(other, &console).await),
    };
    match ended {
        Ok(status) => status,
        Err(error) => status(Err(error)),
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

    /// `config show` and `completions` are added to these.
    #[test]
    fn the_commands_are_few() {
        fn leaves(command: &clap::Command) -> usize {
            let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
            shown.map(|one| leaves(one).max(1)).sum()
        }
        let leaves = leaves(&Config::command());
        assert!(leaves <= 72, "{leaves} commands");
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

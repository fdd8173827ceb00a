//! The preview, the confirmation and the recorded reason of commands whose effect cannot be taken
//! back: they buy, send webhooks, erase, or move many rows.
//!
//! Such a command flattens [`Confirm`] into its arguments. [`Confirm::carry_out`] first runs the
//! change in [`Mode::Preview`], which rolls back and so yields exact counts, then shows these and
//! asks. Then it runs the change again in [`Mode::Apply`], which commits it together with its
//! record for `esimctl action list`. Rows may change between the two runs, so the counts of the
//! second run are the ones that are printed and recorded. `resend start`, `partner erase`
//! and `archive run` make the same steps themselves, because their previews differ.

use std::io::IsTerminal;

use anyhow::{Context, bail};
use clap::{
    ArgMatches, Args, Command, FromArgMatches, builder::NonEmptyStringValueParser, error::ErrorKind,
};
use pg::actions::{Action, Actor, Mode, PARTNER};
use runtime::terminal;

use crate::output::one_line;

/// The arguments of a command that asks for a confirmation.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Confirmation")]
pub struct Confirm {
    // This field stands before `dry_run`: clap reads the fields in this order and removes each
    // value from the arguments, and `ChangeAuthor` needs to see whether `--dry-run` was given.
    #[command(flatten)]
    by: ChangeAuthor,
    /// Why you make the change, for example the number of a ticket
    ///
    /// The reason is recorded with the change, and `esimctl action list` shows it. It is required
    /// unless `--dry-run` is given.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new(), required_unless_present = "dry_run")]
    reason: Option<String>,
    /// Make the change without asking
    ///
    /// Scripts need it, because without a terminal there is nobody to ask.
    #[arg(long)]
    yes: bool,
    /// Show what the command would change, with counts, and change nothing
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
}

#[derive(Args, Clone, Debug)]
#[group(skip)]
struct Named {
    /// Your name, which is recorded with the change [default: the value of USER]
    #[arg(
        long = "operator",
        id = "by",
        value_name = "NAME",
        env = "ESIMCTL_OPERATOR"
    )]
    by: Option<String>,
}

/// Who makes a change. A command that records one is refused before it begins if nobody is named: a
/// record without a name is of no use when somebody asks why a partner was paused. In containers
/// `USER` is often not set.
#[derive(Clone, Debug)]
pub struct ChangeAuthor(String);

impl Args for ChangeAuthor {
    fn augment_args(command: Command) -> Command {
        Named::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Named::augment_args_for_update(command)
    }
}

impl FromArgMatches for ChangeAuthor {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let Named { by } = Named::from_arg_matches(matches)?;
        let set = |name: Option<String>| name.filter(|name| !name.trim().is_empty());
        // Nothing is recorded by a dry run.
        let dry_run = matches.try_get_one::<bool>("dry_run").ok().flatten();
        match set(by).or_else(|| set(std::env::var("USER").ok())) {
            Some(name) if name.trim() == PARTNER => Err(clap::Error::raw(
                ErrorKind::InvalidValue,
                "changes that partners make themselves are recorded under the name partner: give your own name with \
                 --operator or in ESIMCTL_OPERATOR",
            )),
            Some(name) => Ok(Self(name)),
            None if dry_run == Some(&true) => Ok(Self(String::new())),
            None => Err(clap::Error::raw(
                ErrorKind::MissingRequiredArgument,
                "the change is recorded with the name of whoever makes it, and USER is not set: give your name with \
                 --operator or in ESIMCTL_OPERATOR",
            )),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ChangeAuthor {
    /// The record of a change.
    pub fn action<'a>(
        &'a self,
        command: domain::Command,
        target: &'a str,
        reason: &'a str,
    ) -> Action<'a> {
        let actor = Actor::esimctl(&self.0);
        Action {
            actor,
            command,
            target,
            reason,
        }
    }
}

/// Who makes a change that needs no confirmation, and why, if it is said.
#[derive(Args, Clone, Debug)]
pub struct ReasonArgs {
    /// Why you make the change, which is recorded
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    by: ChangeAuthor,
}

impl ReasonArgs {
    /// The record of a change.
    pub fn action<'a>(&'a self, command: domain::Command, target: &'a str) -> Action<'a> {
        self.by.action(command, target, &self.reason)
    }
}

/// A change that [`Confirm::carry_out`] previews and makes.
pub struct ConfirmedChange<Run, Describe, Print> {
    /// Makes the change in one transaction, and returns what it changed.
    pub run: Run,
    /// Describes the result of a preview, for the operator to confirm.
    pub describe: Describe,
    /// Prints the result. The second argument says whether this is a dry run.
    pub print: Print,
}

impl Confirm {
    /// Runs the change as a preview, shows its description, asks, and runs the change again with
    /// its record. With `--yes` the preview is left out, because nobody would read it.
    pub async fn carry_out<T>(
        &self,
        command: domain::Command,
        target: &str,
        mut change: ConfirmedChange<
            impl AsyncFnMut(Mode<'_>) -> anyhow::Result<T>,
            impl Fn(&T) -> String,
            impl Fn(&T, bool) -> anyhow::Result<()>,
        >,
    ) -> anyhow::Result<()> {
        if !self.yes {
            let preview = (change.run)(Mode::Preview).await?;
            if self.dry_run {
                return (change.print)(&preview, true);
            }
            self.ask(&(change.describe)(&preview))?;
        }
        let changed = (change.run)(self.apply(command, target)).await?;
        (change.print)(&changed, false)
    }

    /// Shows the preview on standard error and asks, unless `--yes` was given. It fails if the
    /// answer is not `yes`. It also fails if standard input is not a terminal: a script that forgot
    /// `--yes` must not buy or erase anything, and it must not hang either.
    pub fn ask(&self, preview: &str) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() {
            let preview = one_line(preview);
            bail!(
                "nothing was changed: {preview}; standard input is not a terminal, so confirm with --yes, or preview with --dry-run"
            );
        }
        terminal::ask(format_args!("{preview}\nGo on? (yes/no) "))?;
        let mut answer = String::new();
        std::io::stdin()
            .read_line(&mut answer)
            .context("cannot read the answer")?;
        if answer.trim() != "yes" {
            bail!("nothing was changed, because the answer was not `yes`");
        }
        Ok(())
    }

    /// The mode that commits the change together with its record.
    pub fn apply<'a>(&'a self, command: domain::Command, target: &'a str) -> Mode<'a> {
        Mode::Apply(self.action(command, target))
    }

    /// The record of the change.
    pub fn action<'a>(&'a self, command: domain::Command, target: &'a str) -> Action<'a> {
        let reason = self.reason.as_deref().unwrap_or_default();
        self.by.action(command, target, reason)
    }
}

//! The preview, the confirmation and the recorded reason of commands that buy, send or change many rows.

use std::io::{IsTerminal, Write};

use anyhow::{Context, bail};
use clap::{Args, builder::NonEmptyStringValueParser};
use store::operator::actions::{Action, Mode};

use crate::output::one_line;

/// The arguments of a command that asks for a confirmation.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Confirmation")]
pub struct Confirm {
    /// The reason, which `esimctl action list` shows
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new(), required_unless_present = "dry_run")]
    reason: Option<String>,
    /// Skip the preview and the confirmation, for scripts
    #[arg(long)]
    yes: bool,
    /// Show what the command would change, with counts; change nothing
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    /// Your name, for the record [default: the account's name]
    #[arg(long, value_name = "NAME", env = "ESIMCTL_OPERATOR", value_parser = NonEmptyStringValueParser::new())]
    operator: Option<String>,
    #[arg(long, env = "USER", hide = true, default_value = "unknown")]
    account: String,
}

impl Confirm {
    /// Runs `change` as a preview that `describe` describes, asks, and runs it again with its record. `print` gets the
    /// result, and whether this is a dry run. With `--yes` there is no preview.
    pub async fn carry_out<T>(
        &self,
        command: &str,
        target: &str,
        mut change: impl AsyncFnMut(Mode<'_>) -> anyhow::Result<T>,
        describe: impl Fn(&T) -> String,
        print: impl Fn(&T, bool) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if !self.yes {
            let preview = change(Mode::Preview).await?;
            if self.dry_run {
                return print(&preview, true);
            }
            self.ask(&describe(&preview))?;
        }
        print(&change(self.apply(command, target)).await?, false)
    }

    /// Shows the preview on standard error and asks, unless `--yes` was given. Fails if the answer is not `yes`
    /// or standard input is no terminal.
    pub fn ask(&self, preview: &str) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        let mut stderr = std::io::stderr().lock();
        if !std::io::stdin().is_terminal() {
            let preview = one_line(preview);
            bail!("nothing was changed: {preview}; confirm with --yes, or preview with --dry-run");
        }
        write!(stderr, "{preview}\nGo on? (yes/no) ")
            .and_then(|()| stderr.flush())
            .context("cannot ask on standard error")?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
        if answer.trim() != "yes" {
            bail!("nothing was changed");
        }
        Ok(())
    }

    /// Commits the change with its record.
    pub fn apply<'a>(&'a self, command: &'a str, target: &'a str) -> Mode<'a> {
        let operator = self.operator.as_deref().unwrap_or(&self.account);
        let reason = self.reason.as_deref().unwrap_or_default();
        Mode::Apply(Action { operator, command, target, reason })
    }
}

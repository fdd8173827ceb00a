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
    /// Whether the command shows a preview.
    pub fn wants_preview(&self) -> bool {
        !self.yes
    }

    /// Shows the preview on standard error and asks, unless `--yes` was given. Fails if the answer is not `yes`
    /// or standard input is no terminal.
    pub fn ask(&self, preview: &str) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        let mut stderr = std::io::stderr().lock();
        if !std::io::stdin().is_terminal() {
            bail!(
                "nothing was changed: {}; confirm with --yes, or preview with --dry-run",
                one_line(preview)
            );
        }
        write!(stderr, "{preview}\nGo on? (yes/no) ")
            .and_then(|()| stderr.flush())
            .context("cannot ask on standard error")?;
        let mut answer = String::new();
        std::io::stdin()
            .read_line(&mut answer)
            .context("cannot read the answer")?;
        if answer.trim() != "yes" {
            bail!("nothing was changed");
        }
        Ok(())
    }

    /// Commits the change with its record.
    pub fn apply<'a>(&'a self, command: &'a str, target: &'a str) -> Mode<'a> {
        Mode::Apply(Action {
            operator: self.operator.as_deref().unwrap_or(&self.account),
            command,
            target,
            reason: self.reason.as_deref().unwrap_or_default(),
        })
    }
}

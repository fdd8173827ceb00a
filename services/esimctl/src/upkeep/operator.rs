//! `esimctl operator`: the accounts of operators who sign in at the console.
//!
//! No command takes or shows a password. `create` and `set --new-password` print a one-time link,
//! with which the operator sets a password of their own; the link is shown once, and only its
//! digest is stored. Every change is recorded, with the reason if one is given.

use anyhow::{Context, anyhow};
use clap::{
    Args, Subcommand,
    builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser},
};
use desk::operator::accounts::{self, OperatorAccount, OperatorNotChanged, OperatorRole, SetUp};
use pg::{PgConnection, actions::Action};
use secrecy::ExposeSecret;
use serde_json::json;
use url::Url;

use crate::{
    confirm::ChangeAuthor,
    console::Console,
    output::{TableRow, cells, or_dash, printable, utc},
};

const CREATE_EXAMPLES: &str = "Examples:
  esimctl operator create ana --role support
  esimctl operator create ben --role operator --console-url https://console.example/ --reason 'ticket 4711'

The command prints a link, which is valid for 24 hours and for one use. Pass it on over a private channel: whoever opens
it first sets the password. The roles:
  viewer    looks at everything but activation codes
  support   also sends webhooks again, and sees activation codes if the console is set up to show them
  operator  also resolves placements, pauses endpoints, opens and closes breakers, and starts operations on many rows";

const LIST_EXAMPLES: &str = "Examples:
  esimctl operator list
  esimctl operator list --json";

const SET_EXAMPLES: &str = "Examples:
  esimctl operator set ana --disabled --reason 'has left the team'
  esimctl operator set ana --enabled
  esimctl operator set ana --role operator --reason 'on call from today on'
  esimctl operator set ana --new-password --console-url https://console.example/
  esimctl operator set oidc:ana@example.com --signed-out --reason 'has left the team'

A disabled operator's sessions end at once. What the operator did stays recorded, so accounts are never deleted. A new role
holds from the operator's next request on. --new-password prints a new link; the old password, an older link and the
operator's sessions end at once.

People who sign in by OpenID Connect have no account here. First take the console's groups from them at the OpenID
provider, then sign them out, because a session keeps its role until it ends.";

#[derive(Subcommand, Clone, Debug)]
pub enum OperatorCommand {
    /// Create an operator, and print a link to set the password
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        #[command(flatten)]
        who: OperatorNameArgs,
        /// What the operator may do
        #[arg(long, value_parser = roles())]
        role: OperatorRole,
        #[command(flatten)]
        link: ConsoleUrlArgs,
    },
    /// List the operators with their roles
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Disable or enable an operator, or change the role or the password, or end all sessions
    #[command(after_help = SET_EXAMPLES)]
    Set {
        #[command(flatten)]
        who: OperatorNameArgs,
        #[command(flatten)]
        change: OperatorSetArgs,
        #[command(flatten)]
        link: ConsoleUrlArgs,
    },
}

/// What is changed of an operator.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each flag of the command line"
)]
pub struct OperatorSetArgs {
    /// Let the operator sign in no more, and end the operator's sessions
    #[arg(long)]
    disabled: bool,
    /// Let a disabled operator sign in again
    #[arg(long)]
    enabled: bool,
    /// What the operator may do from now on
    #[arg(long, value_parser = roles())]
    role: Option<OperatorRole>,
    /// End the operator's password and sessions, and print a link to set a new password
    #[arg(long)]
    new_password: bool,
    /// End all sessions of the operator, or of a person who signs in by OpenID Connect
    #[arg(long)]
    signed_out: bool,
}

fn roles() -> impl TypedValueParser<Value = OperatorRole> {
    PossibleValuesParser::new(["viewer", "support", "operator"])
        .try_map(|name| name.parse::<OperatorRole>())
}

#[derive(Args, Clone, Debug)]
pub struct OperatorNameArgs {
    /// The name with which the operator signs in
    #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Why you make the change, which is recorded
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    by: ChangeAuthor,
}

#[derive(Args, Clone, Debug)]
pub struct ConsoleUrlArgs {
    /// Where operators reach the console, which is the beginning of the link
    #[arg(
        long,
        value_name = "URL",
        env = "CONSOLE_URL",
        default_value = "http://127.0.0.1:8085/"
    )]
    console_url: Url,
}

impl ConsoleUrlArgs {
    /// The link of a token.
    fn of(&self, set_up: &SetUp) -> anyhow::Result<String> {
        let mut link = self.console_url.join("set-up").context("CONSOLE_URL")?;
        // Browsers send no server what is behind the "#", so no log on the way has the token.
        link.set_fragment(Some(set_up.token.expose_secret()));
        Ok(link.into())
    }
}

impl OperatorNameArgs {
    fn action<'a>(&'a self, command: domain::Command, target: &'a str) -> Action<'a> {
        self.by.action(command, target, &self.reason)
    }
}

pub async fn run(command: &OperatorCommand, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let target = |who: &OperatorNameArgs| format!("operator {}", who.name);
    match command {
        OperatorCommand::List => {
            let accounts = accounts::list(&mut connection).await?;
            console.print_list(&accounts, "There are no operators.", row)
        }
        OperatorCommand::Create { who, role, link } => {
            let target = target(who);
            let action = who.action(domain::Command::OperatorCreate, &target);
            let made = accounts::create(&mut connection, &who.name, *role, action).await;
            print_link(
                console,
                link,
                &made.map_err(|error| named(&who.name, error))?,
            )
        }
        OperatorCommand::Set { who, change, link } => {
            set(&mut connection, console, who, change, link).await
        }
    }
}

async fn set(
    connection: &mut PgConnection,
    console: &Console,
    who: &OperatorNameArgs,
    change: &OperatorSetArgs,
    link: &ConsoleUrlArgs,
) -> anyhow::Result<()> {
    let target = format!("operator {}", who.name);
    let not_changed = |error| named(&who.name, error);
    let name = printable(&who.name);
    if change.new_password {
        let action = who.action(domain::Command::OperatorReset, &target);
        let made = accounts::reset(connection, &who.name, action).await;
        return print_link(console, link, &made.map_err(not_changed)?);
    }
    if change.signed_out {
        let action = who.action(domain::Command::OperatorSignOut, &target);
        let ended = accounts::sign_out(connection, &who.name, action).await?;
        let result = json!({ "name": who.name, "sessions_ended": ended });
        return console.print(&result, || {
            if ended == 0 {
                format!(
                    "{name} had no session, so none was ended. Is the name right? Somebody of an OpenID provider is called \
                     `oidc:NAME`, as in `esimctl action list`"
                )
            } else {
                format!("{name} has no session now; ended: {ended}")
            }
        });
    }
    if let Some(role) = change.role {
        let action = who.action(domain::Command::OperatorRole, &target);
        let changed = accounts::set_role(connection, &who.name, role, action).await;
        let account = changed.map_err(not_changed)?;
        return console.print(&account, || format!("{name} is {} now", role.as_str()));
    }
    let disable = change.disabled && !change.enabled;
    let (command, now) = if disable {
        (
            domain::Command::OperatorDisable,
            "disabled; its sessions have ended",
        )
    } else {
        (domain::Command::OperatorEnable, "enabled")
    };
    let action = who.action(command, &target);
    let changed = accounts::set_disabled(connection, &who.name, disable, action).await;
    let account = changed.map_err(not_changed)?;
    console.print(&account, || format!("{name} is {now}"))
}

fn named(name: &str, error: OperatorNotChanged) -> anyhow::Error {
    match error {
        OperatorNotChanged::Store(error) => error.into(),
        error => anyhow!("operator {name:?}: {error}"),
    }
}

fn print_link(console: &Console, link: &ConsoleUrlArgs, set_up: &SetUp) -> anyhow::Result<()> {
    let url = link.of(set_up)?;
    let shown = json!({
        "name": set_up.name, "link": url,
        "until": set_up.until.format(&time::format_description::well_known::Rfc3339)?,
    });
    console.print(&shown, || {
        format!(
            "{} sets a password with this link, which works once and until {}:\n{url}",
            printable(&set_up.name),
            utc(set_up.until)
        )
    })
}

fn row(account: &OperatorAccount) -> TableRow<6> {
    let state = match (account.disabled_at, account.has_password) {
        (Some(_), _) => "disabled",
        (None, true) => "active",
        (None, false) if account.setup_until.is_some() => "waits for its password",
        (None, false) => "without a password: set a new one",
    };
    cells!(account:
        name, role = account.role.as_str().to_owned(), state = state.to_owned(),
        "link until" = or_dash(account.setup_until.map(utc)),
        "signed in" = or_dash(account.signed_in_at.map(utc)), created = utc(account.created_at),
    )
}

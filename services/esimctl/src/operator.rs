//! `esimctl operator`: the accounts of operators who sign in at the console.
//!
//! No command takes or shows a password. `create` and `reset` print a one-time link, with which the
//! operator sets a password of their own; the link is shown once, and only its digest is stored.
//! Every change is recorded, with the reason if one is given.

use anyhow::{Context, anyhow};
use clap::{
    Args, Subcommand,
    builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser},
};
use secrecy::ExposeSecret;
use serde_json::json;
use store::operator::{
    accounts::{self, Account, NotChanged, Role, SetUp},
    actions::Action,
};
use url::Url;

use crate::{
    confirm::By,
    console::Console,
    output::{Row, cells, or_dash, printable, utc},
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

const DISABLE_EXAMPLES: &str = "Examples:
  esimctl operator disable ana --reason 'has left the team'

The operator's sessions end at once. What the operator did stays recorded, so accounts are never deleted.";

const ENABLE_EXAMPLES: &str = "Examples:
  esimctl operator enable ana";

const RESET_EXAMPLES: &str = "Examples:
  esimctl operator reset ana --console-url https://console.example/

It prints a new link. The old password, an older link and the operator's sessions end at once.";

const SIGN_OUT_EXAMPLES: &str = "Examples:
  esimctl operator sign-out ana
  esimctl operator sign-out oidc:ana@example.com --reason 'has left the team'

People who sign in by OpenID Connect have no account here. First take the console's groups from them at the OpenID
provider, then sign them out, because a session keeps its role until it ends.";

const ROLE_EXAMPLES: &str = "Examples:
  esimctl operator role ana operator --reason 'on call from today on'

The new role holds from the operator's next request on.";

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Create an operator, and print a link to set the password
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        #[command(flatten)]
        who: Who,
        /// What the operator may do
        #[arg(long, value_parser = roles())]
        role: Role,
        #[command(flatten)]
        link: Link,
    },
    /// List the operators with their roles
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Let an operator sign in no more, and end the operator's sessions
    #[command(after_help = DISABLE_EXAMPLES)]
    Disable(Who),
    /// Let a disabled operator sign in again
    #[command(after_help = ENABLE_EXAMPLES)]
    Enable(Who),
    /// End an operator's password and sessions, and print a link to set a new password
    #[command(after_help = RESET_EXAMPLES)]
    Reset {
        #[command(flatten)]
        who: Who,
        #[command(flatten)]
        link: Link,
    },
    /// End all sessions of an operator, or of a person who signs in by OpenID Connect
    #[command(after_help = SIGN_OUT_EXAMPLES)]
    SignOut(Who),
    /// Give an operator another role
    #[command(after_help = ROLE_EXAMPLES)]
    Role {
        #[command(flatten)]
        who: Who,
        /// What the operator may do from now on
        #[arg(value_parser = roles())]
        role: Role,
    },
}

fn roles() -> impl TypedValueParser<Value = Role> {
    PossibleValuesParser::new(["viewer", "support", "operator"])
        .try_map(|name| name.parse::<Role>())
}

#[derive(Args, Clone, Debug)]
pub struct Who {
    /// The name with which the operator signs in
    #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Why you make the change, which is recorded
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    by: By,
}

#[derive(Args, Clone, Debug)]
pub struct Link {
    /// Where operators reach the console, which is the beginning of the link
    #[arg(
        long,
        value_name = "URL",
        env = "CONSOLE_URL",
        default_value = "http://127.0.0.1:8085/"
    )]
    console_url: Url,
}

impl Link {
    /// The link of a token.
    fn of(&self, set_up: &SetUp) -> anyhow::Result<String> {
        let mut link = self.console_url.join("set-up").context("CONSOLE_URL")?;
        // Browsers send no server what is behind the "#", so no log on the way has the token.
        link.set_fragment(Some(set_up.token.expose_secret()));
        Ok(link.into())
    }
}

impl Who {
    fn action<'a>(&'a self, command: &'a str, target: &'a str) -> Action<'a> {
        self.by.action(command, target, &self.reason)
    }
}

pub async fn run(command: &Command, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let target = |who: &Who| format!("operator {}", who.name);
    match command {
        Command::List => {
            let accounts = accounts::list(&mut connection).await?;
            console.print_list(&accounts, "There are no operators.", row)
        }
        Command::Create { who, role, link } => {
            let target = target(who);
            let action = who.action("operator create", &target);
            let made = accounts::create(&mut connection, &who.name, *role, action).await;
            print_link(
                console,
                link,
                &made.map_err(|error| named(&who.name, error))?,
            )
        }
        Command::Reset { who, link } => {
            let target = target(who);
            let action = who.action("operator reset", &target);
            let made = accounts::reset(&mut connection, &who.name, action).await;
            print_link(
                console,
                link,
                &made.map_err(|error| named(&who.name, error))?,
            )
        }
        Command::Disable(who) | Command::Enable(who) => {
            let disable = matches!(command, Command::Disable(_));
            let verb = if disable {
                "operator disable"
            } else {
                "operator enable"
            };
            let target = target(who);
            let action = who.action(verb, &target);
            let changed = accounts::set_disabled(&mut connection, &who.name, disable, action).await;
            let account = changed.map_err(|error| named(&who.name, error))?;
            let now = if disable {
                "disabled; its sessions have ended"
            } else {
                "enabled"
            };
            console.print(&account, || format!("{} is {now}", printable(&who.name)))
        }
        Command::SignOut(who) => {
            let target = target(who);
            let action = who.action("operator sign-out", &target);
            let ended = accounts::sign_out(&mut connection, &who.name, action).await?;
            let result = json!({ "name": who.name, "sessions_ended": ended });
            console.print(&result, || {
                let name = printable(&who.name);
                if ended == 0 {
                    format!(
                        "{name} had no session, so none was ended. Is the name right? Somebody of an OpenID provider is called \
                         `oidc:NAME`, as in `esimctl action list`"
                    )
                } else {
                    format!("{name} has no session now; ended: {ended}")
                }
            })
        }
        Command::Role { who, role } => {
            let target = target(who);
            let action = who.action("operator role", &target);
            let changed = accounts::set_role(&mut connection, &who.name, *role, action).await;
            let account = changed.map_err(|error| named(&who.name, error))?;
            console.print(&account, || {
                format!("{} is {} now", printable(&who.name), role.as_str())
            })
        }
    }
}

fn named(name: &str, error: NotChanged) -> anyhow::Error {
    match error {
        NotChanged::Store(error) => error.into(),
        error => anyhow!("operator {name:?}: {error}"),
    }
}

fn print_link(console: &Console, link: &Link, set_up: &SetUp) -> anyhow::Result<()> {
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

fn row(account: &Account) -> Row<6> {
    let state = match (account.disabled_at, account.has_password) {
        (Some(_), _) => "disabled",
        (None, true) => "active",
        (None, false) if account.setup_until.is_some() => "waits for its password",
        (None, false) => "without a password: reset it",
    };
    cells!(account:
        name, role = account.role.as_str().to_owned(), state = state.to_owned(),
        "link until" = or_dash(account.setup_until.map(utc)),
        "signed in" = or_dash(account.signed_in_at.map(utc)), created = utc(account.created_at),
    )
}

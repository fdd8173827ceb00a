//! `esimctl endpoint`: shows the state of partners' webhook endpoints, and pauses or resumes them.
//!
//! Notifiers read this state before they send a webhook and block failing endpoints by themselves.
//! A pause is a block without an end that only an operator sets. Neither loses a webhook or uses up
//! an attempt.

use clap::Subcommand;
use serde_json::json;
use store::deliveries::endpoints::{self, Endpoint};

use crate::{
    console::Console,
    lookup::{Which, find},
    output::{Row, cells, or_dash, printable, utc},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl endpoint list
  esimctl endpoint list --json

The states:
  open     webhooks are sent
  blocked  many consecutive attempts failed: nothing is sent until the time shown, and no attempt is used up
  probing  the block has ended, and one delivery is sent as a probe; if it fails, the endpoint is blocked for longer
  paused   an operator ran `endpoint pause`: nothing is sent until `endpoint resume`
  no_url   the partner has no webhook URL, so its webhooks wait for one";

const PAUSE_EXAMPLES: &str = "Examples:
  esimctl endpoint pause ak_0123456789abcdef01234567

The partner's webhooks wait until `esimctl endpoint resume`. No webhook is lost, and none uses up an attempt while it
waits. Requests that are in flight already are finished.";

const RESUME_EXAMPLES: &str = "Examples:
  esimctl endpoint resume ak_0123456789abcdef01234567

Run it when the endpoint works again: a block would otherwise last until its next probe. All waiting webhooks become
due at once, including those that wait for their next attempt.";

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// List the endpoints with their states and the number of waiting webhooks
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Send nothing to a partner's endpoint until it is resumed
    #[command(after_help = PAUSE_EXAMPLES)]
    Pause(Which),
    /// End a pause or a block and send the waiting webhooks
    #[command(after_help = RESUME_EXAMPLES)]
    Resume(Which),
}

pub async fn run(command: &Command, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let which = match command {
        Command::List => {
            let endpoints = endpoints::list(&mut connection, None).await?;
            return console.print_list(
                &endpoints,
                "There are no endpoints: there are no partners yet.",
                row,
            );
        }
        Command::Pause(which) | Command::Resume(which) => which,
    };
    let partner = find(&mut connection, &which.partner).await?;
    let id = partner.partner_id;
    let name = printable(&partner.name);
    if let Command::Pause(_) = command {
        endpoints::pause(&mut connection, id.into()).await?;
        let result = json!({ "partner_id": id, "state": "paused" });
        console.print(&result, || {
            format!("webhooks of {name} wait until `esimctl endpoint resume`")
        })
    } else {
        let due = endpoints::resume(&mut connection, id.into()).await?;
        let result = json!({ "partner_id": id, "state": "open", "deliveries_due": due });
        console.print(&result, || {
            format!("webhooks of {name} are sent again; due now: {due}")
        })
    }
}

fn row(endpoint: &Endpoint) -> Row<8> {
    cells!(endpoint:
        partner_id, name, state, "blocked until" = or_dash(endpoint.blocked_until.map(utc)), failures,
        pending, exhausted, webhook_url = or_dash(endpoint.webhook_url.as_ref()),
    )
}

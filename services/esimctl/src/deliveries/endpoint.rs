//! `esimctl endpoint`: shows the state of partners' webhook endpoints, and pauses or resumes them.
//!
//! Notifiers read this state before they send a webhook and block failing endpoints by themselves.
//! A pause is a block without an end that an operator or the partner sets. Neither loses a webhook
//! or uses up an attempt.

use clap::{Args, Subcommand};
use desk::operator;
use domain::{EndpointId, EndpointKey};
use pg::PgConnection;
use serde_json::json;
use store::deliveries::endpoints::{self, ListedEndpoint};

use crate::{
    confirm::ChangeAuthor,
    console::Console,
    lookup::find,
    output::{TableRow, cells, or_dash, printable, utc},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl endpoint list
  esimctl endpoint list --json

The states:
  open     webhooks are sent
  blocked  many consecutive attempts failed: nothing is sent until the time shown, and no attempt is used up
  probing  the block has ended, and one delivery is sent as a probe; if it fails, the endpoint is blocked for longer
  paused   an operator ran `endpoint pause`: nothing is sent until `endpoint resume`
  paused_by_partner
           the partner paused it itself: nothing is sent until it is resumed
  no_url   the partner has no webhook URL, so its webhooks wait for one

A partner has a first endpoint, which is its webhook URL and whose id is the id of the partner, and may have further
ones. Each of them is blocked and paused by itself.";

const PAUSE_EXAMPLES: &str = "Examples:
  esimctl endpoint pause ak_0123456789abcdef01234567
  esimctl endpoint pause 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e --reason 'the partner moves its server'

A partner's access key names its first endpoint. The webhooks to the endpoint wait until `esimctl endpoint resume`, also
if the partner resumes it. Its other endpoints go on. No webhook is lost, and none uses up an attempt while it
waits. Requests that are in flight already are finished.";

const RESUME_EXAMPLES: &str = "Examples:
  esimctl endpoint resume ak_0123456789abcdef01234567

Run it when the endpoint works again: a block would otherwise last until its next probe. All waiting webhooks become
due at once, including those that wait for their next attempt.";

#[derive(Subcommand, Clone, Debug)]
pub enum EndpointCommand {
    /// List the endpoints with their states and the number of waiting webhooks
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Send nothing to a partner's endpoint until it is resumed
    #[command(after_help = PAUSE_EXAMPLES)]
    Pause(WhichEndpoint),
    /// End a pause or a block and send the waiting webhooks
    #[command(after_help = RESUME_EXAMPLES)]
    Resume(WhichEndpoint),
}

#[derive(Args, Clone, Debug)]
pub struct WhichEndpoint {
    /// The endpoint's id, or the partner's id, access key or unique name for its first one
    #[arg(value_name = "ID|ACCESS_KEY|NAME")]
    endpoint: String,
    /// Why you make the change, which is recorded
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    by: ChangeAuthor,
}

/// The endpoint that an argument names. A name that is no endpoint is looked up as a partner, so
/// that the error and an old access key are the same as everywhere.
async fn key_of(
    connection: &mut PgConnection,
    which: &WhichEndpoint,
) -> anyhow::Result<EndpointKey> {
    if let Ok(id) = which.endpoint.parse::<EndpointId>()
        && let Some(key) = endpoints::key(connection, id).await?
    {
        return Ok(key);
    }
    let partner = find(connection, &which.endpoint).await?;
    Ok(EndpointKey::first(partner.partner_id.into()))
}

pub async fn run(command: &EndpointCommand, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let which = match command {
        EndpointCommand::List => {
            let endpoints = endpoints::list(&mut connection, None).await?;
            return console.print_list(
                &endpoints,
                "There are no endpoints: there are no partners yet.",
                row,
            );
        }
        EndpointCommand::Pause(which) | EndpointCommand::Resume(which) => which,
    };
    let endpoint = key_of(&mut connection, which).await?;
    let id = endpoint.partner_id;
    let partner = find(&mut connection, &id.to_string()).await?;
    let name = printable(&partner.name);
    let paused = matches!(command, EndpointCommand::Pause(_));
    let (command, state) = if paused {
        (domain::Command::EndpointPause, "paused")
    } else {
        (domain::Command::EndpointResume, "open")
    };
    let target = format!("endpoint {} of partner {id}", endpoint.id);
    let action = which.by.action(command, &target, &which.reason);
    operator::endpoints::set_paused(&mut connection, endpoint, None, paused, action).await?;
    let result = json!({ "partner_id": id, "endpoint_id": endpoint.id, "state": state });
    console.print(&result, || {
        if paused {
            format!("webhooks of {name} wait until `esimctl endpoint resume`")
        } else {
            format!("webhooks of {name} are sent again; those that wait go out within seconds")
        }
    })
}

fn row(endpoint: &ListedEndpoint) -> TableRow<9> {
    cells!(endpoint:
        endpoint_id, partner_id, name, state, "blocked until" = or_dash(endpoint.blocked_until.map(utc)), failures,
        pending, exhausted, webhook_url = or_dash(endpoint.webhook_url.as_ref()),
    )
}

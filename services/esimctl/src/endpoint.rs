//! `esimctl endpoint`: the state of partners' endpoints, and pausing them.

use clap::Subcommand;
use serde_json::json;
use store::{
    config::DatabaseConfig,
    endpoints::{self, Endpoint},
};

use crate::{
    database::connect,
    lookup::{Which, find},
    output::{Output, dash, printable, table, utc},
};

pub const EXAMPLES: &str = "Examples:
  esimctl endpoint list
  esimctl endpoint pause ak_0123456789abcdef01234567
  esimctl endpoint resume ak_0123456789abcdef01234567";

const LIST_EXAMPLES: &str = "Examples:
  esimctl endpoint list
  esimctl endpoint list --json

States: open; blocked (many consecutive attempts failed: nothing is sent until the time shown, and no attempt is used up);
probing (one delivery is sent as a probe); paused (by `endpoint pause`); no_url";

const PAUSE_EXAMPLES: &str = "Examples:
  esimctl endpoint pause ak_0123456789abcdef01234567

Its webhooks wait until `esimctl endpoint resume`. No webhook is lost and no attempt is used up. Requests in flight are
finished.";

const RESUME_EXAMPLES: &str = "Examples:
  esimctl endpoint resume ak_0123456789abcdef01234567

Ends a pause or a block. All waiting webhooks become due, including those that wait for their next attempt.";

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// List the endpoints with their states
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Send nothing to a partner's endpoint until it is resumed
    #[command(after_help = PAUSE_EXAMPLES)]
    Pause(Which),
    /// End a pause or a block and send the waiting webhooks
    #[command(after_help = RESUME_EXAMPLES)]
    Resume(Which),
}

pub async fn run(command: &Command, database: &DatabaseConfig, output: &Output) -> anyhow::Result<()> {
    let mut connection = connect(database).await?;
    match command {
        Command::List => {
            let endpoints = endpoints::list(&mut connection, None).await?;
            output.print(&endpoints, || list(&endpoints))
        }
        Command::Pause(which) => {
            let partner = find(&mut connection, which).await?;
            endpoints::pause(&mut connection, partner.partner_id.into()).await?;
            let result = json!({ "partner_id": partner.partner_id, "state": "paused" });
            output.print(&result, || {
                format!(
                    "webhooks of {} wait until `esimctl endpoint resume`",
                    printable(&partner.name)
                )
            })
        }
        Command::Resume(which) => {
            let partner = find(&mut connection, which).await?;
            let due = endpoints::resume(&mut connection, partner.partner_id.into()).await?;
            let result = json!({ "partner_id": partner.partner_id, "state": "open", "deliveries_due": due });
            output.print(&result, || {
                format!(
                    "webhooks of {} are sent again; due now: {due}",
                    printable(&partner.name)
                )
            })
        }
    }
}

fn list(endpoints: &[Endpoint]) -> String {
    if endpoints.is_empty() {
        return "There are no endpoints: there are no partners yet.".to_owned();
    }
    let rows = endpoints.iter().map(|endpoint| {
        [
            endpoint.partner_id.to_string(),
            endpoint.name.clone(),
            endpoint.state.clone(),
            utc(endpoint.blocked_until),
            endpoint.failures.to_string(),
            endpoint.pending.to_string(),
            endpoint.exhausted.to_string(),
            endpoint.webhook_url.clone().unwrap_or_else(dash),
        ]
    });
    table(
        [
            "partner_id",
            "name",
            "state",
            "blocked until",
            "failures",
            "pending",
            "exhausted",
            "webhook_url",
        ],
        rows,
    )
}

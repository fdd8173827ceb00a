//! `esimctl delivery events`, and `delivery show` of an event.

use anyhow::{Context, bail};
use clap::Args;
use domain::EventId;
use serde_json::json;
use store::{
    PgConnection,
    config::DatabaseConfig,
    events::{self, Page, View},
};

use crate::{
    database::connect,
    delivery::at,
    lookup::{Which, find},
    output::{Output, dash, moment, properties, table},
};

pub const EXAMPLES: &str = "Examples:
  esimctl delivery events ak_0123456789abcdef01234567
  esimctl delivery events ak_0123456789abcdef01234567 --limit 500 --json

`esimctl delivery show evt_…` shows the attempts of an event.";

#[derive(Args, Clone, Debug)]
pub struct List {
    #[command(flatten)]
    which: Which,
    /// The most events to list
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

pub async fn list(asked: &List, database: &DatabaseConfig, output: &Output) -> anyhow::Result<()> {
    let mut connection = connect(database).await?;
    let partner = find(&mut connection, &asked.which).await?.partner_id.into();
    let page = Page {
        before: None,
        limit: asked.limit.into(),
    };
    let found = events::list(&mut connection, partner, &page).await?;
    output.print(&found, || {
        if found.is_empty() {
            return "There are no events of this partner.".to_owned();
        }
        let header = [
            "event_id",
            "kind",
            "topup_id",
            "state",
            "attempts",
            "last attempt",
            "error",
            "due",
        ];
        let rows = found.iter().map(|event| {
            [
                event.event_id.clone(),
                event.kind.clone(),
                event.topup_id.clone().unwrap_or_else(dash),
                event.state.clone(),
                event.attempts.to_string(),
                at(event.attempted_at),
                event.error.clone().unwrap_or_else(dash),
                at(event.due_at),
            ]
        });
        table(header, rows)
    })
}

/// Fails if a replay of this event cannot send it.
pub async fn check_replay(connection: &mut PgConnection, id: &EventId) -> anyhow::Result<()> {
    let standing = events::standing(connection, None, id)
        .await?
        .with_context(|| format!("there is no event {id}; events are deleted with their attempts"))?;
    if standing.void {
        bail!(
            "the event is a test, or its partner no longer asks for its kind, or the topup is not failed any more: it \
             can't be sent again"
        );
    }
    if standing.state.as_deref() == Some("no_endpoint") {
        bail!("the partner has no webhook URL; `esimctl partner set-webhook` sends the waiting webhooks");
    }
    Ok(())
}

/// The event with this id, as JSON and as text.
pub async fn read(
    connection: &mut PgConnection,
    id: &EventId,
) -> anyhow::Result<(serde_json::Value, String)> {
    let event = events::find(connection, None, id)
        .await?
        .with_context(|| format!("there is no event {id}; events are deleted with their attempts"))?;
    Ok((json!(event), describe(&event)))
}

fn describe(event: &View) -> String {
    properties(&[
        ("event_id", &event.event_id),
        ("kind", &event.kind),
        ("topup_id", event.topup_id.as_deref().unwrap_or("-")),
        ("partner_id", &event.partner_id.to_string()),
        ("state", &event.state),
        ("due", &at(event.due_at)),
        ("delivered", &at(event.delivered_at)),
        ("error", event.error.as_deref().unwrap_or("-")),
        ("created", &moment(event.created_at)),
    ])
}

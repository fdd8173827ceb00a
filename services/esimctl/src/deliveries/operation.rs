//! `esimctl operation`: sends the webhooks of one or many partners again, in the background.
//!
//! Unlike `delivery replay`, which changes at most `--limit` rows in one transaction, an operation is
//! worked off by the notifiers in batches, at the pace of each endpoint. It goes on when this program
//! ends. The console starts and shows the same operations.

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand, builder::PossibleValuesParser};
use serde_json::json;
use store::{
    PgConnection,
    deliveries::redeliveries::{Counted, Wanted},
    operator::operations::{self, Cancelled, NotStarted, Operation, Part, Preview},
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    confirm::{By, Confirm},
    console::{Console, NotFound, list},
    lookup::find_id,
    moment::{check_range, past},
    output::{Row, cells, or_dash, properties, utc},
};

const START_EXAMPLES: &str = "Examples:
  esimctl operation start --since 6h --reason 'ticket 4711: our outage'
  esimctl operation start --partner ak_0123456789abcdef01234567 --state delivered --since 2025-01-29T12:00:00Z --dry-run

It shows for each partner how many webhooks match, asks, and starts. The number is advice, because each webhook is looked at
again when its turn comes. A partner whose own redelivery runs is skipped. The partners see the redelivery in their list,
and may cancel it.";

const LIST_EXAMPLES: &str = "Examples:
  esimctl operation list
  esimctl operation list --limit 5 --json
  esimctl operation list 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e";

const CANCEL_EXAMPLES: &str = "Examples:
  esimctl operation cancel 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e --reason 'the wrong day'

Webhooks that are due already are still sent.";

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Send all webhooks again that match, in the background
    #[command(after_help = START_EXAMPLES)]
    Start(Start),
    /// List operations with their progress, newest first, or show one of them
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// The id of the operation to show
        #[arg(value_name = "ID", conflicts_with = "limit")]
        id: Option<Uuid>,
        /// The maximum number of operations to list
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(i64).range(1..=100))]
        limit: i64,
    },
    /// End an operation early
    #[command(after_help = CANCEL_EXAMPLES)]
    Cancel {
        /// The id of the operation
        #[arg(value_name = "ID")]
        id: Uuid,
        /// Why you make the change, which is recorded
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        #[command(flatten)]
        by: By,
    },
}

#[derive(Args, Clone, Debug)]
pub struct Start {
    /// Only the webhooks of this partner, named by its id, access key or unique name
    #[arg(long, value_name = "ID|ACCESS_KEY|NAME")]
    partner: Option<String>,
    /// Only webhooks in this state; `undelivered` stands for all that were not delivered
    #[arg(long, default_value = "exhausted", value_parser = PossibleValuesParser::new(["exhausted", "pending", "delivered", "undelivered"]))]
    state: String,
    /// The start of the range of time of the last attempt, as a time such as `2025-01-29T12:00:00Z`,
    /// or an age such as `2h` of at most 365 days
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: OffsetDateTime,
    /// The end of that range, exclusive [default: now]
    #[arg(long, value_name = "TIME", value_parser = past)]
    until: Option<OffsetDateTime>,
    #[command(flatten)]
    confirm: Confirm,
}

pub async fn run(command: &Command, console: &Console) -> anyhow::Result<()> {
    if let Command::Start(asked) = command {
        check_range(Some(asked.since), asked.until)?;
    }
    let mut connection = console.connect().await?;
    match command {
        Command::Start(asked) => start(asked, &mut connection, console).await,
        Command::List { id: Some(id), .. } => {
            let found = operations::find(&mut connection, *id).await?;
            print(console, &found.with_context(|| unknown(*id))?)
        }
        Command::List { id: None, limit } => {
            let found = operations::list(&mut connection, *limit).await?;
            console.print_list(&found, "There are no operations.", row)
        }
        Command::Cancel { id, reason, by } => {
            let target = format!("operation {id}");
            let action = by.action(domain::Command::OperationCancel, &target, reason);
            match operations::cancel(&mut connection, *id, action).await? {
                Cancelled::Now(found) | Cancelled::EndedBefore(found) => print(console, &found),
                Cancelled::Unknown => Err(unknown(*id).into()),
            }
        }
    }
}

fn unknown(id: Uuid) -> NotFound {
    NotFound(format!(
        "there is no operation {id}; see `esimctl operation list`"
    ))
}

async fn start(
    asked: &Start,
    connection: &mut PgConnection,
    console: &Console,
) -> anyhow::Result<()> {
    let partner = find_id(connection, asked.partner.as_ref()).await?;
    let wanted = Wanted {
        state: Some(asked.state.as_str()).filter(|state| *state != "undelivered"),
        since: asked.since,
        until: asked.until,
    };
    let preview = operations::preview(connection, partner, &wanted).await?;
    if asked.confirm.dry_run {
        let shown =
            json!({ "parts": preview.parts, "matching": preview.matching, "dry_run": true });
        return console.print(&shown, || describe(&preview));
    }
    if preview.unseen > 0 {
        bail!("{}", describe(&preview));
    }
    asked.confirm.ask(&describe(&preview))?;
    let action = asked
        .confirm
        .action(domain::Command::OperationStart, "operation");
    let started = operations::start(connection, partner, &wanted, action).await;
    let started = started.map_err(|error| match error {
        NotStarted::Store(error) => error.into(),
        error @ (NotStarted::Nothing | NotStarted::TooMany(_)) => {
            anyhow!("no operation was started: {error}")
        }
    })?;
    print(console, &started)
}

/// A number that may be only the least one.
fn counted(matching: Counted) -> String {
    let least = if matching.all { "" } else { "at least " };
    format!("{least}{}", matching.number)
}

fn describe(preview: &Preview) -> String {
    let parts = list(
        &preview.parts,
        "No partner has webhooks that match.",
        part_row,
    );
    let matching = counted(preview.matching);
    if preview.unseen > 0 {
        return format!(
            "{parts}\n\nWebhooks that match: {matching}. {} more partners may have some and could not be looked at \
             in time, so no operation can start with this filter: choose a state that fewer webhooks have, a shorter time, \
             or one partner after the other.",
            preview.unseen
        );
    }
    format!("{parts}\n\nWebhooks that are sent again: {matching}")
}

fn part_row(part: &Part) -> Row<4> {
    cells!(part:
        partner_id, name, webhooks = counted(part.matching),
        note = if part.skipped { "skipped: a redelivery runs" } else { "-" }.to_owned(),
    )
}

fn state(operation: &Operation) -> &'static str {
    match (operation.cancelled_at, operation.ended_at) {
        (Some(_), _) => "cancelled",
        (None, Some(_)) => "ended",
        (None, None) => "running",
    }
}

fn row(operation: &Operation) -> Row<7> {
    cells!(operation:
        operation_id, kind, state = state(operation).to_owned(), done = format!("{}/{}", operation.done, operation.matching),
        started = utc(operation.created_at), operator, reason,
    )
}

fn print(console: &Console, operation: &Operation) -> anyhow::Result<()> {
    console.print(operation, || {
        properties(&cells!(operation:
            operation_id, kind, state = state(operation).to_owned(), filter,
            webhooks = format!("{} of {} are due or sent", operation.done, operation.matching),
            partners = format!("{} of {} have ended; {} were skipped", operation.ended, operation.parts, operation.skipped),
            started = utc(operation.created_at), ended = or_dash(operation.ended_at.map(utc)), operator, via, reason,
        ))
    })
}

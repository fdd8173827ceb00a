//! `esimctl resend`: sends webhooks again: one, those of a partner, or those of all.
//!
//! One webhook is due when the command ends. Many are worked off by the notifiers in batches, at
//! the pace of each endpoint, which goes on when this program ends. The console starts and shows
//! the same resends, and those that partners have asked for are among them (partners call them
//! redeliveries).

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand, ValueEnum};
use desk::operator::words::noun;
use desk::operator::{
    deliveries,
    resends::{
        self, LeftOut, NotStarted, Preview, Resend, ResendCancellation, ResendShare,
        UnmatchedWebhooks,
    },
};
use domain::{WebhookId, standing::DeliveryState};
use pg::{PgConnection, actions::Mode};
use runtime::past::past;
use serde_json::json;
use store::deliveries::resends::{DeliveryFilter, MatchCount, ResendSelection, ResentCounts};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    confirm::{ChangeAuthor, Confirm},
    console::{Console, list},
    delivery,
    lookup::find_id,
    output::{TableRow, cells, or_dash, properties, utc},
    range::check_range,
};

const START_EXAMPLES: &str = "Examples:
  esimctl resend start 20250129123456618033988749 --reason 'ticket 4711'
  esimctl resend start evt_019a0000000070008000000000000001 --reason 'ticket 4711'
  esimctl resend start --since 6h --reason 'ticket 4711: our outage'
  esimctl resend start --partner ak_0123456789abcdef01234567 --state delivered --since 2025-01-29T12:00:00Z --dry-run

It shows for each partner how many webhooks match, asks, and starts. The number is advice, because each webhook is looked at
again when its turn comes. A partner whose own resend runs is skipped. The partners see the resend in their list of
redeliveries, and may cancel it.

A webhook that is sent again is pending and due, at the beginning of its retry schedule; its recorded attempts stay. The
webhook-id stays the same too, so a partner that has handled the webhook before recognises the repeat and may ignore it.
Webhooks whose profile was erased are left out, because there is nothing left to send, and tests, which are sent once.";

const LIST_EXAMPLES: &str = "Examples:
  esimctl resend list
  esimctl resend list --limit 5 --json";

const SHOW_EXAMPLES: &str = "Examples:
  esimctl resend show 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e";

const CANCEL_EXAMPLES: &str = "Examples:
  esimctl resend cancel 01994b7c-7d3e-7c3e-9c1d-0f6a5b4c3d2e --reason 'the wrong day'

Webhooks that are due already are still sent.";

#[derive(Subcommand, Clone, Debug)]
pub enum ResendCommand {
    /// Send one webhook or event again, or all that match
    #[command(after_help = START_EXAMPLES)]
    Start(Start),
    /// List resends with their progress, newest first
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// The maximum number of resends to list
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(i64).range(1..=100))]
        limit: i64,
    },
    /// Show a resend with its progress
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// The id of the resend
        #[arg(value_name = "ID")]
        id: Uuid,
    },
    /// End a resend early
    #[command(after_help = CANCEL_EXAMPLES)]
    Cancel {
        /// The id of the resend
        #[arg(value_name = "ID")]
        id: Uuid,
        /// Why you make the change, which is recorded
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        #[command(flatten)]
        by: ChangeAuthor,
    },
}

#[derive(Args, Clone, Debug)]
pub struct Start {
    /// The topup id of one webhook, or the id of an event (`evt_…`)
    #[arg(value_name = "TOPUP_ID|EVENT_ID", required_unless_present = "since", conflicts_with_all = ["partner", "since", "until", "state"])]
    id: Option<WebhookId>,
    /// Only the webhooks of this partner, named by its id or access key
    #[arg(long, value_name = "ID|ACCESS_KEY|NAME")]
    partner: Option<String>,
    /// Only webhooks in this state; `undelivered` stands for all that were not delivered
    #[arg(long, default_value = "exhausted", value_enum)]
    state: Which,
    /// The start of the range of time of the last attempt, as a time such as
    /// `2025-01-29T12:00:00Z`, or an age such as `2h` of at most 365 days
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: Option<OffsetDateTime>,
    /// The end of that range, exclusive [default: now]
    #[arg(long, value_name = "TIME", value_parser = past)]
    until: Option<OffsetDateTime>,
    #[command(flatten)]
    confirm: Confirm,
}

/// The webhooks that a resend is about, by their state.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Which {
    Exhausted,
    Pending,
    Delivered,
    Undelivered,
}

impl Which {
    fn state(self) -> Option<DeliveryState> {
        match self {
            Self::Exhausted => Some(DeliveryState::Exhausted),
            Self::Pending => Some(DeliveryState::Pending),
            Self::Delivered => Some(DeliveryState::Delivered),
            Self::Undelivered => None,
        }
    }
}

pub async fn run(command: &ResendCommand, console: &Console) -> anyhow::Result<()> {
    if let ResendCommand::Start(asked) = command {
        check_range(asked.since, asked.until)?;
    }
    let mut connection = console.connect().await?;
    match command {
        ResendCommand::Start(asked) => match (&asked.id, asked.since) {
            (Some(id), _) => start_one(id, asked, &mut connection, console).await,
            (None, Some(since)) => start(since, asked, &mut connection, console).await,
            (None, None) => bail!("name one webhook, or the range of time with --since"),
        },
        ResendCommand::List { limit } => {
            let found = resends::list(&mut connection, *limit).await?;
            console.print_list(&found, "There are no resends.", row)
        }
        ResendCommand::Show { id } => {
            let found = resends::find(&mut connection, *id).await?;
            print(console, &found.with_context(|| unknown(*id))?)
        }
        ResendCommand::Cancel { id, reason, by } => {
            let target = format!("resend {id}");
            let action = by.action(domain::Command::ResendCancel, &target, reason);
            match resends::cancel(&mut connection, *id, action).await? {
                ResendCancellation::Now(found) | ResendCancellation::EndedBefore(found) => {
                    print(console, &found)
                }
                ResendCancellation::Unknown => Err(unknown(*id)),
            }
        }
    }
}

fn unknown(id: Uuid) -> anyhow::Error {
    anyhow!("there is no resend {id}; see `esimctl resend list`")
}

async fn start(
    since: OffsetDateTime,
    asked: &Start,
    connection: &mut PgConnection,
    console: &Console,
) -> anyhow::Result<()> {
    let partner = find_id(connection, asked.partner.as_ref()).await?;
    let wanted = ResendSelection {
        state: asked.state.state(),
        since,
        until: asked.until,
    };
    let preview = resends::preview(connection, partner, &wanted).await?;
    if asked.confirm.dry_run {
        let shown = json!({
            "parts": preview.parts, "matching": preview.matching, "waiting": preview.waiting,
            "left_out": preview.left_out, "dry_run": true,
        });
        return console.print(&shown, || describe(&preview));
    }
    if preview.unseen > 0 {
        bail!("{}", describe(&preview));
    }
    if let Some(waiting) = waiting(&preview) {
        bail!("no resend was started: nothing matches. {waiting}");
    }
    asked.confirm.ask(&describe(&preview))?;
    let action = asked.confirm.action(domain::Command::ResendStart, "resend");
    let started = resends::start(connection, Uuid::now_v7(), partner, &wanted, action).await;
    let started = started.map_err(|error| match error {
        NotStarted::Store(error) => error.into(),
        error @ (NotStarted::Nothing | NotStarted::Already | NotStarted::TooMany(_)) => {
            anyhow!("no resend was started: {error}")
        }
    })?;
    print(console, &started)
}

/// Sends one webhook again.
async fn start_one(
    id: &WebhookId,
    asked: &Start,
    connection: &mut PgConnection,
    console: &Console,
) -> anyhow::Result<()> {
    let found = delivery::find(connection, id).await?;
    delivery::check_resend(connection, found, id).await?;
    let filter = DeliveryFilter::default();
    let preview = deliveries::resend_one(connection, found, &filter, Mode::Preview).await?;
    let shown = |resent: &ResentCounts, dry_run: bool| {
        let mut shown = json!(resent);
        shown["dry_run"] = json!(dry_run);
        shown
    };
    if preview.resent == 0 {
        return console.print(&shown(&preview, asked.confirm.dry_run), || {
            "nothing is sent: the webhook is due within 30 s anyway".to_owned()
        });
    }
    let was = if preview.delivered > 0 {
        "delivered"
    } else if preview.exhausted > 0 {
        "exhausted"
    } else {
        "pending"
    };
    let describe = |verb: &str| format!("1 webhook {verb}, which was {was}");
    if asked.confirm.dry_run {
        return console.print(&shown(&preview, true), || describe("would be sent"));
    }
    asked.confirm.ask(&describe("is sent again at once"))?;
    let target = match id {
        WebhookId::Topup(id) => format!("topup {id}"),
        WebhookId::Event(_) => format!("event {id}"),
    };
    let mode = asked.confirm.apply(domain::Command::ResendStart, &target);
    let resent = deliveries::resend_one(connection, found, &filter, mode).await?;
    console.print(&shown(&resent, false), || describe("is due now"))
}

/// A number that may be only the least one.
fn counted(matching: MatchCount) -> String {
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
             in time, so no resend can start with this filter: choose a state that fewer webhooks have, a shorter time, \
             or one partner after the other.",
            preview.unseen
        );
    }
    if let Some(waiting) = waiting(preview) {
        return format!("{parts} {waiting}");
    }
    format!("{parts}\n\nWebhooks that are sent again: {matching}")
}

/// What waits although nothing matches.
fn waiting(preview: &Preview) -> Option<String> {
    let waiting = preview.waiting.iter().map(UnmatchedWebhooks::told);
    let left_out = preview.left_out.iter().map(LeftOut::told);
    let waiting: Vec<String> = waiting.chain(left_out).collect();
    (!waiting.is_empty()).then(|| format!("These webhooks do not match:\n{}", waiting.join("\n")))
}

fn part_row(part: &ResendShare) -> TableRow<4> {
    cells!(part:
        partner_id, name, webhooks = counted(part.matching),
        note = if part.skipped { "skipped: a resend runs" } else { "-" }.to_owned(),
    )
}

fn state(resend: &Resend) -> &'static str {
    match (resend.cancelled_at, resend.ended_at) {
        (Some(_), _) => "cancelled",
        (None, Some(_)) => "ended",
        (None, None) => "running",
    }
}

/// Whose webhooks it is about.
fn of(resend: &Resend) -> String {
    match (resend.delivery_id, resend.partner_id) {
        (Some(delivery), _) => format!("delivery {delivery}"),
        (None, Some(partner)) => format!("partner {partner}"),
        (None, None) => format!(
            "{} {}",
            resend.parts,
            noun(resend.parts, "partner", "partners")
        ),
    }
}

fn row(resend: &Resend) -> TableRow<7> {
    cells!(resend:
        resend_id, of = of(resend), state = state(resend).to_owned(), done = format!("{}/{}", resend.resent, resend.matching),
        started = utc(resend.created_at), asked_by, reason,
    )
}

fn print(console: &Console, resend: &Resend) -> anyhow::Result<()> {
    let webhooks = resend.state.as_str().unwrap_or("undelivered");
    console.print(resend, || {
        properties(&cells!(resend:
            resend_id, of = of(resend), state = state(resend).to_owned(), webhooks = webhooks.to_owned(),
            since = utc(resend.since), until = utc(resend.until),
            progress = format!("{} of {} are due or sent", resend.resent, resend.matching),
            partners = format!("{} of {} have ended; {} were skipped", resend.ended, resend.parts, resend.skipped),
            started = utc(resend.created_at), ended = or_dash(resend.ended_at.map(utc)), asked_by, via, reason,
        ))
    })
}

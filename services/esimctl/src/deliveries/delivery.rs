//! `esimctl delivery`: shows webhooks with their attempts, and replays them.
//!
//! A delivery is the obligation to send one webhook. It is named by its `webhook-id`, which is the
//! topup id for the webhook of a ready topup and `evt_…` for an event. A replay makes deliveries
//! due again at the beginning of the retry schedule; the notifiers do the sending. Since it may
//! send thousands of webhooks, it is previewed, confirmed and recorded (`confirm`). Responses of
//! endpoints are stored encrypted, because an endpoint may echo the activation code that it got;
//! only `show --answers` decrypts them.

use anyhow::{Context, bail};
use clap::{Args, Subcommand, builder::PossibleValuesParser};
use domain::{DeliveryId, WebhookId, standing::DeliveryState};
use serde_json::json;
use store::{
    PgConnection,
    config::MasterKeyConfig,
    deliveries::{
        View,
        redeliveries::{self, Redelivery},
    },
    operator::{
        actions::Mode,
        deliveries::{self, AttemptView, Filter, Replayed},
    },
    vault::{Keyring, Purpose, Vault},
};
use time::OffsetDateTime;

use crate::{
    confirm::Confirm,
    console::{Console, list},
    event,
    lookup::find_id,
    moment::{check_range, past},
    output::{Row, cells, moment, or_dash, printable, properties},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl delivery list --state exhausted
  esimctl delivery list --partner ak_0123456789abcdef01234567 --since 2025-01-29T12:00:00Z --limit 500
  esimctl delivery list --since 30m --json
  esimctl delivery list --partner ak_0123456789abcdef01234567 --events

--events lists the notifications other than the webhooks of ready topups, such as `topup.failed` or `key.expiring`. Events
are deleted together with their attempts, when the retention of `attempts` ends. --since compares the time of the last attempt, or the time when the eSIM became ready if there was no attempt yet.";

const REDELIVERIES_EXAMPLES: &str = "Examples:
  esimctl delivery redeliveries
  esimctl delivery redeliveries --partner ak_0123456789abcdef01234567 --json

A partner begins and cancels its redeliveries itself, with `POST` and `DELETE …/webhooks/redeliver`; the notifiers make
its webhooks due in batches. A redelivery that does not get on usually waits for the endpoint: `esimctl endpoint list`
shows whether it is blocked or paused.";

const SHOW_EXAMPLES: &str = "Examples:
  esimctl delivery show 20250129123456618033988749
  MASTER_KEY_FILE=master.key esimctl delivery show 20250129123456618033988749 --answers

An endpoint may echo the request in its response. So --answers may show activation codes, which are as good as money: do
not copy its output into tickets.";

const REPLAY_EXAMPLES: &str = "Examples:
  esimctl delivery replay 20250129123456618033988749 --reason 'ticket 4711'
  esimctl delivery replay evt_019a0000000070008000000000000001 --reason 'ticket 4711'
  esimctl delivery replay --partner ak_0123456789abcdef01234567 --since 2h --dry-run
  esimctl delivery replay --partner ak_0123456789abcdef01234567 --since 2025-01-29T12:00:00Z \\
    --until 2025-01-29T14:00:00Z --state all --limit 500 --reason 'endpoint lost them' --yes

The command shows how many webhooks it would send, and asks. A replayed delivery is pending and due at once, at the
beginning of its retry schedule; its recorded attempts stay. The webhook-id stays the same too, so a partner that has
handled the webhook before recognises the repeat and may ignore it.

A single delivery, and `--state all`, include deliveries that wait for their next attempt. Webhooks whose profile was
erased are left out, because there is nothing left to send. --since and --until compare the time of the last attempt, or
the time when the eSIM became ready if there was no attempt yet. With --partner the partner's events are replayed, too,
except tests, which are sent once.";

/// The error for a replay that could send nothing, because there is no URL to send to.
pub const NO_URL: &str = "the partner has no webhook URL; set one with `esimctl partner set --webhook-url`, which also sends the \
                          waiting webhooks";

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// List the webhooks of ready topups, or the events of a partner, newest first
    #[command(after_help = LIST_EXAMPLES)]
    List(List),
    /// Show one delivery with its attempts
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// The topup id of the delivery, or the id of an event (`evt_…`)
        #[arg(value_name = "TOPUP_ID|EVENT_ID")]
        id: WebhookId,
        /// Also show the first bytes of the responses that did not acknowledge the webhook
        ///
        /// They are stored encrypted, so the command needs the master key of the profiles.
        #[arg(long)]
        answers: bool,
        #[command(flatten)]
        master_key: MasterKeyConfig,
    },
    /// Send one webhook or event again, or a partner's webhooks since a given time
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(Replay),
    /// List the running redeliveries, or all of one partner, with their progress
    ///
    /// A redelivery is a partner's own request to send many of its webhooks again.
    #[command(after_help = REDELIVERIES_EXAMPLES)]
    Redeliveries {
        /// List all redeliveries of this partner, the newest first, and not only the running ones
        #[arg(long, value_name = "ID|ACCESS_KEY|NAME")]
        partner: Option<String>,
    },
}

#[derive(Args, Clone, Debug)]
pub struct List {
    /// List only deliveries of this partner, named by its id, access key or unique name
    #[arg(long, value_name = "ID|ACCESS_KEY|NAME")]
    partner: Option<String>,
    /// List the partner's events instead of the webhooks of its ready topups
    #[arg(long, requires = "partner", conflicts_with_all = ["state", "since"])]
    events: bool,
    /// List only deliveries in this state
    ///
    /// `pending` deliveries are sent or wait for their next attempt, `delivered` ones were
    /// acknowledged, `exhausted` ones are no longer retried, and `no_endpoint` ones wait because
    /// the partner has no webhook URL.
    #[arg(long, value_parser = PossibleValuesParser::new(["pending", "delivered", "exhausted", "no_endpoint"]))]
    state: Option<String>,
    /// List only deliveries since this time
    ///
    /// It is a time such as `2025-01-29T12:00:00Z`, or an age such as `2h`, of at most 365 days.
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: Option<OffsetDateTime>,
    /// The maximum number of deliveries to list
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

#[derive(Args, Clone, Debug)]
pub struct Replay {
    /// The topup id of the delivery, or the id of an event (`evt_…`)
    #[arg(value_name = "TOPUP_ID|EVENT_ID", required_unless_present = "partner", conflicts_with_all = ["partner", "since", "until", "state", "limit"])]
    id: Option<WebhookId>,
    /// Replay the deliveries of this partner, named by its id, access key or unique name
    ///
    /// It needs `--since`, so that nobody sends a partner's whole history again by mistake.
    #[arg(long, value_name = "ID|ACCESS_KEY|NAME", requires = "since")]
    partner: Option<String>,
    /// Replay only deliveries since this time
    ///
    /// It is a time such as `2025-01-29T12:00:00Z`, or an age such as `2h`, of at most 365 days.
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: Option<OffsetDateTime>,
    /// Replay only deliveries before this time, in the form of `--since`
    #[arg(long, value_name = "TIME", value_parser = past)]
    until: Option<OffsetDateTime>,
    /// Replay only deliveries in this state
    ///
    /// The default is `exhausted`, because those are the webhooks that nobody will send otherwise.
    #[arg(long, default_value = "exhausted", value_parser = PossibleValuesParser::new(["exhausted", "delivered", "all"]))]
    state: String,
    /// The maximum number of deliveries to replay, oldest first
    ///
    /// If more match, the command says so; repeat it for the next ones.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    #[command(flatten)]
    confirm: Confirm,
}

pub async fn run(command: &Command, console: &Console) -> anyhow::Result<()> {
    match command {
        Command::List(List {
            events: true,
            partner: Some(partner),
            limit,
            ..
        }) => event::list(partner, *limit, console).await,
        Command::List(asked) => list_all(asked, console).await,
        Command::Show {
            id,
            answers,
            master_key,
        } => {
            let vault = answers
                .then(|| master_key.vault(&[Keyring::Profiles]))
                .transpose()?;
            show(id, vault.as_ref(), console).await
        }
        Command::Replay(asked) => replay(asked, console).await,
        Command::Redeliveries { partner } => list_redeliveries(partner.as_ref(), console).await,
    }
}

/// The most redeliveries that are listed.
const MOST_REDELIVERIES: i64 = 100;

async fn list_redeliveries(partner: Option<&String>, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let found = match find_id(&mut connection, partner).await? {
        Some(partner) => redeliveries::list(&mut connection, partner, MOST_REDELIVERIES).await?,
        None => redeliveries::running(&mut connection, None, MOST_REDELIVERIES).await?,
    };
    console.print_list(&found, "There are no such redeliveries.", redelivery_row)
}

fn redelivery_row(one: &Redelivery) -> Row<9> {
    cells!(one:
        redelivery_id, partner_id, state = one.state.clone().unwrap_or_else(|| "undelivered".into()),
        since = moment(one.since), until = moment(one.until), matching = or_dash(one.matching), redelivered,
        began = moment(one.created_at), ended = at(one.ended_at),
    )
}

async fn list_all(asked: &List, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let filter = Filter {
        partner_id: find_id(&mut connection, asked.partner.as_ref()).await?,
        state: asked.state.as_deref(),
        since: asked.since,
        ..Filter::default()
    };
    let deliveries = deliveries::list(&mut connection, &filter, asked.limit).await?;
    console.print(&deliveries, || {
        let rows = list(&deliveries, "There are no such deliveries.", row);
        if u32::try_from(deliveries.len()).is_ok_and(|shown| shown < asked.limit) {
            return rows;
        }
        format!(
            "{rows}\n\nOnly the newest {} deliveries are shown; a larger --limit shows more.",
            asked.limit
        )
    })
}

fn row(delivery: &View) -> Row<7> {
    cells!(delivery:
        topup_id = or_dash(delivery.topup_id.as_ref()),
        external_order_id = or_dash(delivery.external_order_id.as_ref()), state, attempts, "last attempt" = at(delivery.attempted_at),
        error = or_dash(delivery.error.as_ref()), due = at(delivery.due_at),
    )
}

/// Finds the delivery with this `webhook-id`.
async fn find(connection: &mut PgConnection, id: &WebhookId) -> anyhow::Result<DeliveryId> {
    let found = deliveries::find(connection, id).await?;
    found.with_context(|| match id {
        WebhookId::Topup(topup_id) => {
            format!(
                "there is no delivery of topup {topup_id}; `esimctl order show {topup_id}` says whether the topup exists and is ready"
            )
        }
        WebhookId::Event(_) => {
            format!(
                "there is no event {id}; it may be deleted, because events are deleted with their attempts when their retention ends"
            )
        }
    })
}

async fn show(
    webhook_id: &WebhookId,
    vault: Option<&Vault>,
    console: &Console,
) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let id = find(&mut connection, webhook_id).await?;
    let (delivery, head) = match webhook_id {
        WebhookId::Event(_) => event::read(&mut connection, id).await?,
        WebhookId::Topup(topup_id) => {
            let filter = Filter {
                id: Some(id),
                ..Filter::default()
            };
            let mut found = deliveries::list(&mut connection, &filter, 1).await?;
            let delivery = found
                .pop()
                .with_context(|| format!("the delivery of {topup_id} has no order"))?;
            (json!(delivery), head(&delivery))
        }
    };
    let attempts = deliveries::attempts(&mut connection, id, i64::MAX).await?;
    let answers: Vec<_> = attempts
        .iter()
        .map(|attempt| answer(vault, id, attempt))
        .collect();
    // A unit has a webhook for each endpoint, and one of them may arrive while another one does not.
    let further = match webhook_id {
        WebhookId::Topup(topup_id) => deliveries::further(&mut connection, topup_id).await?,
        WebhookId::Event(_) => Vec::new(),
    };
    let mut shown = json!({ "delivery": delivery, "attempts": attempts });
    if !further.is_empty() {
        shown["further"] = json!(further);
    }
    for (index, answer) in answers.iter().enumerate() {
        if let Some(answer) = answer {
            shown["attempts"][index]["answer"] = json!(answer);
        }
    }
    console.print(&shown, || {
        let mut text = describe(head, &attempts, &answers);
        if !further.is_empty() {
            let rows = list(&further, "", further_row);
            text = format!("{text}\n\nThe webhooks of this topup to further endpoints:\n{rows}");
        }
        text
    })
}

/// The first bytes of the response, if they are stored and the vault is given. If they cannot be
/// decrypted, the reason takes their place, so that the other attempts are still shown.
fn answer(vault: Option<&Vault>, id: DeliveryId, attempt: &AttemptView) -> Option<String> {
    let vault = vault?;
    let sealed = attempt.answer.as_ref()?;
    let number = u32::try_from(attempt.attempt).unwrap_or_default();
    Some(match vault.open(Purpose::Response(id, number), sealed) {
        Ok(answer) => String::from_utf8_lossy(&answer).into_owned(),
        Err(error) => format!("[{error}]"),
    })
}

fn head(delivery: &View) -> String {
    properties(&cells!(delivery:
        topup_id = or_dash(delivery.topup_id.as_ref()), order_id = or_dash(delivery.order_id),
        external_order_id = or_dash(delivery.external_order_id.as_ref()), partner_id, state, due = at(delivery.due_at),
        delivered = at(delivery.delivered_at), error = or_dash(delivery.error.as_ref()),
        "profile erased" = at(delivery.erased_at),
    ))
}

/// The webhook of the same topup to a further endpoint.
fn further_row(delivery: &View) -> Row<6> {
    cells!(delivery:
        endpoint_id, state, attempts, "last attempt" = at(delivery.attempted_at),
        error = or_dash(delivery.error.as_ref()), due = at(delivery.due_at),
    )
}

fn attempt_row(attempt: &AttemptView) -> Row<5> {
    cells!(attempt:
        attempt = (attempt.attempt + 1).to_string(), at = moment(attempt.at),
        took = format!("{} ms", attempt.duration_ms), status = or_dash(attempt.status), class,
    )
}

fn describe(head: String, attempts: &[AttemptView], answers: &[Option<String>]) -> String {
    let mut parts = vec![
        head,
        list(attempts, "No attempt has ended yet.", attempt_row),
    ];
    for (attempt, answer) in attempts.iter().zip(answers) {
        if let Some(detail) = &attempt.detail {
            parts.push(format!("attempt {}: {detail}", attempt.attempt + 1));
        }
        if let Some(answer) = answer {
            parts.push(format!(
                "answer to attempt {}: {}",
                attempt.attempt + 1,
                printable(answer)
            ));
        }
    }
    parts.push("Times are UTC.".to_owned());
    parts.join("\n\n")
}

async fn replay(asked: &Replay, console: &Console) -> anyhow::Result<()> {
    check_range(asked.since, asked.until)?;
    let mut connection = console.connect().await?;
    let mut id = None;
    if let Some(webhook_id) = &asked.id {
        let found = find(&mut connection, webhook_id).await?;
        check_replay(&mut connection, found, webhook_id).await?;
        id = Some(found);
    }
    let state = Some(asked.state.as_str()).filter(|state| *state != "all");
    let filter = Filter {
        id,
        partner_id: find_id(&mut connection, asked.partner.as_ref()).await?,
        state: state.filter(|_| asked.partner.is_some()),
        since: asked.since,
        until: asked.until,
        ..Filter::default()
    };
    let preview = deliveries::replay(&mut connection, &filter, asked.limit, Mode::Preview).await?;
    if asked.confirm.dry_run || preview.replayed == 0 {
        return console.print(&shown(&preview, asked.confirm.dry_run), || {
            describe_replay(&preview, asked, "would be sent")
        });
    }
    asked
        .confirm
        .ask(&describe_replay(&preview, asked, "are sent again at once"))?;
    let target = target(asked);
    let mode = asked
        .confirm
        .apply(domain::Command::DeliveryReplay, &target);
    let replayed = deliveries::replay(&mut connection, &filter, asked.limit, mode).await?;
    console.print(&shown(&replayed, false), || {
        describe_replay(&replayed, asked, "are due now")
    })
}

/// Fails with a reason if a replay cannot send this delivery. Without this check the replay would
/// only say that it found nothing.
async fn check_replay(
    connection: &mut PgConnection,
    id: DeliveryId,
    webhook_id: &WebhookId,
) -> anyhow::Result<()> {
    let Some(delivery) = deliveries::resendable(connection, id).await? else {
        return Ok(());
    };
    if delivery.pointless {
        match webhook_id {
            WebhookId::Topup(_) => {
                bail!(
                    "the webhook cannot be sent again, because its profile was erased by retention or by an operator"
                )
            }
            WebhookId::Event(_) => bail!(
                "the event cannot be sent again: it is a test, or its partner no longer wants events of its kind, or its \
                 topup is no longer failed, or its order was cancelled"
            ),
        }
    }
    if delivery.state == DeliveryState::NoEndpoint {
        bail!(NO_URL);
    }
    Ok(())
}

fn shown(replayed: &Replayed, dry_run: bool) -> serde_json::Value {
    let mut shown = json!(replayed);
    shown["dry_run"] = json!(dry_run);
    shown
}

fn describe_replay(replayed: &Replayed, asked: &Replay, verb: &str) -> String {
    let Replayed {
        replayed,
        delivered,
        exhausted,
        pending,
        oldest,
        newest,
    } = replayed;
    if *replayed == 0 {
        return "nothing to replay: no delivery that can be sent again matches, or all that match are due within 30 s anyway"
            .to_owned();
    }
    let oldest = at(*oldest);
    let newest = at(*newest);
    let mut text = format!(
        "{replayed} webhooks {verb}: {delivered} were delivered, {exhausted} exhausted, {pending} pending; last attempts \
         from {oldest} to {newest} UTC"
    );
    if *replayed >= i64::from(asked.limit) && asked.id.is_none() {
        text.push_str(
            "; more may match, because --limit is reached: repeat the command for the next ones",
        );
    }
    text
}

/// The filter of a replay, in the form in which `esimctl action list` shows it.
fn target(asked: &Replay) -> String {
    match &asked.id {
        Some(WebhookId::Topup(id)) => return format!("topup {id}"),
        Some(id @ WebhookId::Event(_)) => return format!("event {id}"),
        None => {}
    }
    let Replay { state, limit, .. } = asked;
    let partner = asked.partner.as_deref().unwrap_or("-");
    let since = at(asked.since);
    let until = at(asked.until);
    format!("partner {partner} state {state} since {since} until {until} limit {limit}")
}

/// A UTC time without its zone, or `-`.
pub fn at(at: Option<OffsetDateTime>) -> String {
    or_dash(at.map(moment))
}

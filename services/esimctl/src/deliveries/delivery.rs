//! `esimctl delivery`: shows webhooks with their attempts. `esimctl resend` sends them again.
//!
//! A delivery is the obligation to send one webhook. It is named by its `webhook-id`, which is the
//! topup id for the webhook of a ready topup and `evt_…` for an event. Responses of endpoints are
//! stored encrypted, because an endpoint may echo the activation code that it got; only `show
//! --answers` decrypts them.

use anyhow::{Context, bail};
use clap::{
    Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use desk::operator::{
    deliveries::{self, AttemptView},
    delivery_list::{self, Cursor, DeliveryScope},
    looking::ListPatience,
};
use domain::{DeliveryId, EndpointId, WebhookId, standing::DeliveryState};
use pg::{PgConnection, config::MasterKeyConfig};
use serde_json::json;
use store::deliveries::{View, resends::DeliveryFilter};
use vault::{Keyring, Purpose, Vault};

use crate::{
    console::{Console, list},
    event,
    listing::Listing,
    output::{TableRow, at, cells, moment, or_dash, printable, properties},
};

const LIST_EXAMPLES: &str = "Examples:
  esimctl delivery list --state exhausted
  esimctl delivery list --partner ak_0123456789abcdef01234567 --since 2025-01-29T12:00:00Z --limit 500
  esimctl delivery list --provider airalo --option JP-7D-1G --since 30m --csv > webhooks.csv
  esimctl delivery list --state pending --endpoint 019a0000-0000-7000-8000-000000000001 --json
  esimctl delivery list --partner ak_0123456789abcdef01234567 --events

--events lists the notifications other than the webhooks of ready topups, such as `topup.failed` or `key.expiring`. Events
are deleted together with their attempts, when the retention of `attempts` ends. --since and --until compare the time of
the last attempt, or the time when the eSIM became ready if there was no attempt yet. Each call reads at most 20,000
deliveries: if more may match, it says how to go on with --cursor. --json prints {\"deliveries\":[…],\"next_cursor\":…}.";

const SHOW_EXAMPLES: &str = "Examples:
  esimctl delivery show 20250129123456618033988749
  MASTER_KEY_FILE=master.key esimctl delivery show 20250129123456618033988749 --answers

An endpoint may echo the request in its response. So --answers may show activation codes, which are as good as money: do
not copy its output into tickets.";

/// The error for a resend that could send nothing, because there is no URL to send to.
pub const NO_URL: &str = "the partner has no webhook URL; set one with `esimctl partner set --webhook-url`, which also sends the \
                          waiting webhooks";

#[derive(Subcommand, Clone, Debug)]
pub enum DeliveryCommand {
    /// List the webhooks of ready topups, or the events of a partner, newest first
    #[command(after_help = LIST_EXAMPLES)]
    List(DeliveryListArgs),
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
}

#[derive(Args, Clone, Debug)]
pub struct DeliveryListArgs {
    /// List the partner's events instead of the webhooks of its ready topups
    #[arg(long, requires = "partner", conflicts_with_all = ["state", "endpoint", "cursor", "option", "provider", "since", "until", "csv"])]
    events: bool,
    /// List only deliveries in this state
    ///
    /// `pending` deliveries are sent or wait for their next attempt, `delivered` ones were
    /// acknowledged, `exhausted` ones are no longer retried, and `no_endpoint` ones wait because
    /// the partner has no webhook URL.
    #[arg(long, value_parser = PossibleValuesParser::new(["pending", "delivered", "exhausted", "no_endpoint"])
        .try_map(|name| name.parse::<DeliveryState>()))]
    state: Option<DeliveryState>,
    /// List only deliveries to this endpoint; the id of a partner's first endpoint is that of the
    /// partner
    #[arg(long, value_name = "ID")]
    endpoint: Option<EndpointId>,
    #[command(flatten)]
    listing: Listing,
    /// Go on at this place, as the page before says
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<Cursor>,
}

pub async fn run(command: &DeliveryCommand, console: &Console) -> anyhow::Result<()> {
    match command {
        DeliveryCommand::List(asked) => match (&asked.listing.partner, asked.events) {
            (Some(partner), true) => {
                event::list(partner, asked.listing.limit.into(), console).await
            }
            _ => list_all(asked, console).await,
        },
        DeliveryCommand::Show {
            id,
            answers,
            master_key,
        } => {
            let vault = answers
                .then(|| master_key.vault(&[Keyring::Profiles]))
                .transpose()?;
            show(id, vault.as_ref(), console).await
        }
    }
}

async fn list_all(asked: &DeliveryListArgs, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let listing = &asked.listing;
    let named = listing.named(&mut connection).await?;
    let filter = DeliveryFilter {
        partner_id: named.partner_id,
        state: asked.state,
        since: listing.since,
        until: listing.until,
        ..DeliveryFilter::default()
    };
    let of = DeliveryScope {
        option_id: named.option_id,
        provider: listing.provider.as_deref(),
        endpoint_id: asked.endpoint,
        ..DeliveryScope::default()
    };
    let limit = listing.limit.into();
    let page = delivery_list::list(
        &mut connection,
        &filter,
        &of,
        asked.cursor,
        limit,
        ListPatience::Whole,
    )
    .await?;
    let next = page.next_cursor.map(|cursor| cursor.to_string());
    let none = "There are no such deliveries.";
    listing.print(console, &page, (&page.deliveries, next), none, row)
}

fn row(delivery: &View) -> TableRow<8> {
    cells!(delivery:
        topup_id = or_dash(delivery.topup_id.as_ref()),
        external_order_id = or_dash(delivery.external_order_id.as_ref()), endpoint_id, state, attempts,
        "last attempt" = at(delivery.attempted_at), error = or_dash(delivery.error.as_ref()), due = at(delivery.due_at),
    )
}

/// Finds the delivery with this `webhook-id`.
pub async fn find(connection: &mut PgConnection, id: &WebhookId) -> anyhow::Result<DeliveryId> {
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
            let delivery = deliveries::read(&mut connection, id).await?;
            let delivery =
                delivery.with_context(|| format!("the delivery of {topup_id} has no order"))?;
            (json!(delivery), head(&delivery))
        }
    };
    let attempts = deliveries::attempts(&mut connection, id, i64::MAX).await?;
    let answers: Vec<_> = attempts
        .iter()
        .map(|attempt| answer(vault, id, attempt))
        .collect();
    // A unit has a webhook for each endpoint, and one of them may arrive while another one does
    // not.
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
    let sealed = attempt.response_start.as_ref()?;
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
fn further_row(delivery: &View) -> TableRow<6> {
    cells!(delivery:
        endpoint_id, state, attempts, "last attempt" = at(delivery.attempted_at),
        error = or_dash(delivery.error.as_ref()), due = at(delivery.due_at),
    )
}

fn attempt_row(attempt: &AttemptView) -> TableRow<5> {
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

/// Fails with a reason if a resend cannot send this delivery. Without this check the resend would
/// only say that it found nothing.
pub async fn check_resend(
    connection: &mut PgConnection,
    id: DeliveryId,
    webhook_id: &WebhookId,
) -> anyhow::Result<()> {
    let Some(delivery) = deliveries::resendable(connection, id).await? else {
        return Ok(());
    };
    if delivery.gone {
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

//! `esimctl order`: shows an order stage by stage.

use anyhow::bail;
use clap::{Subcommand, builder::NonEmptyStringValueParser};
use serde_json::json;
use store::operator::orders::{self, OrderView, PlacementView, TopupView};
use time::OffsetDateTime;

use crate::{
    console::Console,
    erase::{self, EraseOrder},
    output::{Row, cells, moment_after, or_dash, printable, properties, table, took, utc},
};

const SHOW_EXAMPLES: &str = "Examples:
  esimctl order show acme-1001                               a partner's external_order_id
  esimctl order show 20250129123456618033988749              a topup_id
  esimctl order show 8981000000000000001                     an ICCID
  esimctl order show 0199aabb-ccdd-7eee-8fff-001122334455    our order id, as API connection errors name it,
                                                             or a placement id, the order id at the provider

It shows no activation codes. --json prints {\"orders\":[…]}";

/// The most orders that the store returns for one id.
const MOST: usize = 20;

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Show an order with its purchases, units and webhooks, and the duration of each stage
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// Our order id, a placement id (the provider's order id), a topup id, an ICCID, or an external order id
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        id: String,
    },
    /// Erase the profiles and texts of a finished order
    #[command(after_help = erase::ORDER_EXAMPLES)]
    Erase(EraseOrder),
}

pub async fn run(command: &Command, console: &Console) -> anyhow::Result<()> {
    let id = match command {
        Command::Show { id } => id,
        Command::Erase(asked) => return erase::order(asked, console).await,
    };
    let found = orders::find(&mut console.connect().await?, id).await?;
    if found.is_empty() {
        bail!(
            "there is no order {id:?}; `order show` takes our order id, a placement id, a topup id, an ICCID or an external order id"
        );
    }
    console.print(&json!({ "orders": found }), || {
        let mut parts: Vec<String> = found.iter().map(describe).collect();
        if found.len() >= MOST {
            parts.push(format!("Only the newest {MOST} orders with this id are shown."));
        }
        parts.join("\n\n")
    })
}

fn describe(order: &OrderView) -> String {
    let refused = if order.refused { " (refused with 422; nothing was bought)" } else { "" };
    let erased =
        order.erased_at.map_or_else(String::new, |at| format!(" (erased {}: ids, states and times are left)", utc(at)));
    let accepted = format!("{}{refused}{erased}", utc(order.created_at));
    let head = properties(&cells!(order:
        order_id, external_order_id, partner_id, accepted = accepted,
        traceparent = or_dash(order.traceparent.as_ref()),
    ));
    let placements = order.placements.iter().enumerate();
    let placements = table(placements.map(|(index, placement)| placement_row(order, index, placement)));
    let topups = table(order.topups.iter().map(|topup| topup_row(order, topup)));
    let mut parts = vec![head, placements, topups];
    let notes = notes(order);
    if !notes.is_empty() {
        parts.push(notes.join("\n"));
    }
    parts.push("Times are UTC; +… is the time since the stage before.".to_owned());
    parts.join("\n\n")
}

fn placement_row(order: &OrderView, index: usize, placement: &PlacementView) -> Row<7> {
    let accepted = Some(order.created_at);
    let attempted = placement.attempted_at;
    cells!(placement:
        "#" = (index + 1).to_string(), placement_id, provider, state, attempt,
        attempted = stage(order, accepted, attempted),
        placed = stage(order, attempted.or(accepted), placement.placed_at),
    )
}

fn topup_row(order: &OrderView, topup: &TopupView) -> Row<8> {
    let placement = order.placements.iter().position(|one| one.placement_id == topup.placement_id);
    let placed_at = placement.and_then(|index| order.placements[index].placed_at);
    cells!(topup:
        "#" = or_dash(placement.map(|index| index + 1)), topup_id, option_id, state,
        ready = stage(order, placed_at, topup.ready_at), webhook = or_dash(topup.delivery.as_ref()),
        delivered = stage(order, topup.ready_at, topup.delivered_at),
        total = or_dash(topup.delivered_at.map(|at| took(at - order.created_at))),
    )
}

/// One line for each placement or topup that needed a retry, failed or waits.
fn notes(order: &OrderView) -> Vec<String> {
    let placements = order.placements.iter().enumerate().map(|(index, placement)| {
        let due = placement.due_at.map(|at| format!("due {}", moment_after(order.created_at, at)));
        (format!("placement {}", index + 1), list([placement.reason.clone(), due]))
    });
    let topups = order.topups.iter().map(|topup| {
        let erased = topup.erased_at.map(|at| format!("profile erased {}", utc(at)));
        let story = list([topup.reason.clone(), webhook_attempts(order, topup), erased]);
        (format!("topup {}", topup.topup_id), story)
    });
    let stories = placements.chain(topups).filter(|(_, story)| !story.is_empty());
    stories.map(|(what, story)| printable(&format!("{what}: {story}"))).collect()
}

/// The end of a stage and its duration.
fn stage(order: &OrderView, began: Option<OffsetDateTime>, ended: Option<OffsetDateTime>) -> String {
    or_dash(ended.map(|ended| {
        let at = moment_after(order.created_at, ended);
        match began {
            Some(began) => format!("{at} +{}", took(ended - began)),
            None => at,
        }
    }))
}

/// The attempts of a delivery, unless the first one was acknowledged.
fn webhook_attempts(order: &OrderView, topup: &TopupView) -> Option<String> {
    let attempts = topup.delivery_attempts.filter(|attempts| *attempts > 0)?;
    let delivered = topup.delivered_at.is_some();
    if delivered && attempts == 1 {
        return None;
    }
    let plural = if attempts == 1 { "" } else { "s" };
    Some(list([
        Some(format!("{attempts} webhook attempt{plural}")),
        topup.delivery_status.map(|status| format!("answered {status}")),
        topup.delivery_error.clone().filter(|_| !delivered),
        topup.delivery_due_at.map(|at| format!("next {}", moment_after(order.created_at, at))),
    ]))
}

fn list<const N: usize>(parts: [Option<String>; N]) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

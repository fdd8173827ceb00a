//! `esimctl order`: shows an order stage by stage, and erases it (`erase`).
//!
//! `show` answers the question of every incident: where is this order, and what does it wait for?
//! It takes any id that an operator may have at hand, shows each placement and topup with the
//! duration of each stage, each attempt of a webhook and each recorded action, and adds a line for
//! whatever needed a retry, failed or waits. It never shows activation codes.

use std::fmt::Write;

use clap::{Subcommand, builder::NonEmptyStringValueParser};
use desk::{
    archived::ArchivedOrder,
    operator::{
        orders::{self, OrderView, PlacementView, TopupView, UnitWebhook},
        route,
        story::{self, MomentKind, StoryMoment},
        words::counted,
    },
};
use domain::{Agreed, PlacementState, TopupId, standing::NextActor};
use pg::PgConnection;
use serde::Serialize;
use serde_json::json;
use store::provider_lanes::{self, WaitingLane};
use time::OffsetDateTime;
use tools::archive;

use crate::{
    console::Console,
    erase::{self, EraseOrder},
    order_list,
    output::{TableRow, cells, moment_after, or_dash, printable, properties, table, took, utc},
    provider::why,
};

const SHOW_EXAMPLES: &str = "Examples:
  esimctl order show acme-1001                               a partner's external_order_id
  esimctl order show 20250129123456618033988749              a topup_id
  esimctl order show 8981000000000000001                     an ICCID
  esimctl order show '8981 0000 0000 0000 001'               an ICCID as people paste it, with spaces or dashes
  esimctl order show 4711                                    the provider's number of the purchase or of the unit
  esimctl order show 0199aabb-ccdd-7eee-8fff-001122334455    our order id, as API connection errors name it,
                                                             or a placement id, the order id at the provider

It also shows what operators and the partner did about the order, and which of that found nothing to change.

The command never shows activation codes. --json prints {\"orders\":[…],\"stories\":[…],\"lanes\":[…],\"archived\":[…]}: the
orders, for each of them the sentence for its partner and the timeline, the lanes (usually single options) that hold back
purchases of these orders, and in which archive other orders with this id are.";

/// The maximum number of orders that the store returns for one id. Several partners may use the
/// same external order id.
const MOST: usize = 20;

#[derive(Subcommand, Clone, Debug)]
pub enum OrderCommand {
    /// List orders by partner, state, option, provider and time, newest first
    #[command(after_help = order_list::EXAMPLES)]
    List(order_list::OrderListArgs),
    /// Show an order with its purchases, units and webhooks
    ///
    /// It says how long each stage took, and what an unfinished order waits for.
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// An id of the order
        ///
        /// It is our order id, a placement id (the order id at the provider), a topup id, an ICCID,
        /// the provider's number of the purchase or of the unit, or the partner's external order
        /// id.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        id: String,
    },
    /// Erase the profiles, webhook attempts and error texts of a finished order for good
    #[command(after_help = erase::ORDER_EXAMPLES)]
    Erase(EraseOrder),
}

pub async fn run(command: &OrderCommand, console: &Console) -> anyhow::Result<()> {
    let id = match command {
        OrderCommand::Show { id } => id,
        OrderCommand::List(asked) => return order_list::run(asked, console).await,
        OrderCommand::Erase(asked) => return erase::order(asked, console).await,
    };
    let mut connection = console.connect().await?;
    let found = orders::find(&mut connection, id).await?;
    let found = found.after_flush(&mut connection).await?;
    let archived = desk::archived::find(&mut connection, id).await?;
    if found.is_empty() && archived.is_empty() {
        return Err(anyhow::Error::msg(unknown(&mut connection, id).await?));
    }
    let mut lanes = provider_lanes::list(&mut connection).await?;
    let mut stories = Vec::with_capacity(found.len());
    for order in &found {
        stories.push(Story {
            sentence: story::sentence(order, runtime::clock::now()),
            timeline: story::timeline(&mut connection, order).await?,
        });
    }
    lanes.retain(|lane| {
        let mut placements = found.iter().flat_map(|order| &order.placements);
        placements.any(|placement| lane_of(placement, std::slice::from_ref(lane)).is_some())
    });
    print(console, &found, &stories, &lanes, &archived)
}

/// The outcome of an order: in a sentence that support can paste to a partner, and step by step.
#[derive(Serialize)]
pub struct Story {
    sentence: String,
    timeline: Vec<StoryMoment>,
}

/// Why no order was found. A topup id begins with the time of its order, so the files that may
/// hold the order are named.
async fn unknown(connection: &mut PgConnection, id: &str) -> anyhow::Result<String> {
    let mut text = format!(
        "there is no order {id:?}; give our order id, a placement id, a topup id, an ICCID, or the partner's external order id"
    );
    if let Ok(topup) = id.parse::<TopupId>() {
        let archives = archive::of_time(connection, &topup).await?;
        let files: Vec<String> = archives.into_iter().map(|one| one.file).collect();
        if !files.is_empty() {
            let _ = write!(
                text,
                "; if it is archived, `zgrep {id}` shows it in one of: {}",
                files.join(", ")
            );
        }
    } else if !archive::list(connection).await?.is_empty() {
        text.push_str("; it may be archived, so look for it with `zgrep` in the files of `esimctl archive list`");
    }
    Ok(text)
}

/// Where archived orders are, and how to see them.
fn where_it_is(found: &[ArchivedOrder]) -> String {
    let line = |one: &ArchivedOrder| {
        printable(&format!(
            "Order {} ({}) was archived {} into {}. Where the file can be read, show it with: {}",
            one.order_id,
            one.external_order_id,
            utc(one.archived_at),
            one.file,
            one.shown_by()
        ))
    };
    found.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Prints orders with the lanes that they wait for, and archived orders with the same id.
pub fn print(
    console: &Console,
    found: &[OrderView],
    stories: &[Story],
    lanes: &[WaitingLane],
    archived: &[ArchivedOrder],
) -> anyhow::Result<()> {
    let json = json!({ "orders": found, "stories": stories, "lanes": lanes, "archived": archived });
    console.print(&json, || {
        let told = |(index, order)| describe(order, stories.get(index), lanes);
        let mut parts: Vec<String> = found.iter().enumerate().map(told).collect();
        if found.len() >= MOST {
            parts.push(format!(
                "Only the newest {MOST} orders with this id are shown."
            ));
        }
        if !archived.is_empty() {
            parts.push(where_it_is(archived));
        }
        parts.join("\n\n")
    })
}

/// An order as text. `lanes` are the lanes that are held back now.
fn describe(order: &OrderView, story: Option<&Story>, lanes: &[WaitingLane]) -> String {
    let refused = if order.cancelled {
        " (cancelled by the partner; nothing was bought)"
    } else if order.refused {
        " (refused with 422; nothing was bought)"
    } else {
        ""
    };
    let erased = order.erased_at.map_or_else(String::new, |at| {
        format!(" (erased {}: ids, states and times are left)", utc(at))
    });
    let accepted = format!("{}{refused}{erased}", utc(order.created_at));
    let head = properties(&cells!(order:
        order_id, external_order_id, partner_id, accepted = accepted,
        traceparent = or_dash(order.traceparent.as_ref()),
    ));
    let placements = order.placements.iter().enumerate();
    let placements =
        table(placements.map(|(index, placement)| placement_row(order, index, placement)));
    let topups = table(order.topups.iter().map(|topup| topup_row(order, topup)));
    let mut parts = vec![head, placements, topups];
    if let Some(story) = story {
        let attempts = story.timeline.iter();
        let attempts: Vec<_> = attempts.filter_map(|one| webhook_row(order, one)).collect();
        if !attempts.is_empty() {
            parts.push(table(attempts));
        }
        // A purchase that went straight is told by the table of purchases.
        let purchase = story.timeline.iter();
        let purchase: Vec<_> = purchase
            .filter_map(|one| purchase_row(order, one))
            .collect();
        if story
            .timeline
            .iter()
            .any(|one| story::is_off_the_path(&one.what))
        {
            parts.push(table(purchase));
        }
        let actions = story.timeline.iter();
        let actions: Vec<_> = actions.filter_map(|one| action_row(order, one)).collect();
        if !actions.is_empty() {
            parts.push(table(actions));
        }
        parts.push(format!("For the partner: {}", printable(&story.sentence)));
    }
    let notes = notes(order, lanes);
    if !notes.is_empty() {
        parts.push(notes.join("\n"));
    }
    parts.push("Times are UTC; +… is the time since the stage before.".to_owned());
    parts.join("\n\n")
}

fn placement_row(order: &OrderView, index: usize, placement: &PlacementView) -> TableRow<8> {
    let accepted = Some(order.created_at);
    let attempted = placement.attempted_at;
    cells!(placement:
        "#" = (index + 1).to_string(), placement_id, provider, option = placement.lane.clone(), state,
        attempt, attempted = stage(order, accepted, attempted),
        placed = stage(order, attempted.or(accepted), placement.placed_at),
    )
}

fn topup_row(order: &OrderView, topup: &TopupView) -> TableRow<8> {
    let placement = order
        .placements
        .iter()
        .position(|one| one.placement_id == topup.placement_id);
    let placed_at = placement.and_then(|index| order.placements[index].placed_at);
    cells!(topup:
        "#" = or_dash(placement.map(|index| index + 1)), topup_id, option = option_of(topup),
        stands = order.standing(topup).label().to_owned(),
        ready = stage(order, placed_at, topup.ready_at), webhook = or_dash(topup.delivery.0.as_ref()),
        delivered = stage(order, topup.ready_at, topup.delivered_at),
        total = or_dash(topup.delivered_at.map(|at| took(at - order.created_at))),
    )
}

/// An attempt to send a webhook.
fn webhook_row(order: &OrderView, moment: &StoryMoment) -> Option<TableRow<6>> {
    let MomentKind::Webhook {
        topup_id,
        kind,
        attempt,
        duration_ms,
        status,
        class,
        ..
    } = &moment.what
    else {
        return None;
    };
    Some([
        ("webhook", kind.clone()),
        ("topup_id", or_dash(topup_id.as_ref())),
        ("attempt", attempt.to_string()),
        ("at", moment_after(order.created_at, moment.at)),
        ("took", format!("{duration_ms} ms")),
        (
            "result",
            status.map_or_else(|| class.clone(), |status| format!("{class} ({status})")),
        ),
    ])
}

/// What happened to a purchase, or to what it waited for.
fn purchase_row(order: &OrderView, moment: &StoryMoment) -> Option<TableRow<2>> {
    Some([
        ("at", moment_after(order.created_at, moment.at)),
        ("purchase", story::told(&moment.what)?),
    ])
}

/// What an operator, or the partner itself, did about the order or a part of it.
fn action_row(order: &OrderView, moment: &StoryMoment) -> Option<TableRow<6>> {
    let MomentKind::Acted {
        operator,
        via,
        command,
        target,
        reason,
        changed_nothing,
    } = &moment.what
    else {
        return None;
    };
    let result = if *changed_nothing {
        "changed nothing"
    } else {
        "done"
    };
    let via = via.as_ref();
    Some([
        ("action", command.to_string()),
        ("of", target.clone()),
        ("at", moment_after(order.created_at, moment.at)),
        (
            "by",
            via.map_or_else(|| operator.clone(), |via| format!("{operator} ({via})")),
        ),
        ("result", result.to_owned()),
        ("reason", reason.clone()),
    ])
}

/// One line for each placement or topup that needed a retry, has failed, or waits for something.
fn notes(order: &OrderView, lanes: &[WaitingLane]) -> Vec<String> {
    let placements = order
        .placements
        .iter()
        .enumerate()
        .map(|(index, placement)| {
            let due = placement
                .due_at
                .map(|at| format!("due {}", moment_after(order.created_at, at)));
            let reference = placement
                .provider_reference
                .as_ref()
                .map(|id| format!("{} calls the purchase {id}", placement.provider));
            let lane = lane_of(placement, lanes)
                .map(|lane| format!("lane {} is held back: {}", lane.lane, why(lane)));
            (
                format!("placement {} (option {})", index + 1, placement.lane),
                list([
                    placement
                        .reason
                        .told()
                        .filter(|_| !route::is_rerouted(placement)),
                    route::route(placement),
                    reference,
                    due,
                    lane,
                ]),
            )
        });
    let topups = order.topups.iter().map(|topup| {
        let erased = topup
            .erased_at
            .map(|at| format!("profile erased {}", utc(at)));
        let standing = order.standing(topup);
        let further: Vec<String> = order
            .sent(topup)
            .iter()
            .filter_map(|sent| further_webhook(order, sent))
            .collect();
        let further = Some(further.join("; ")).filter(|further| !further.is_empty());
        let extensions: Vec<String> = order.extensions(topup).map(route::extension).collect();
        let extensions = Some(extensions.join("; ")).filter(|told| !told.is_empty());
        let next = match standing.must_act() {
            NextActor::Nobody => None,
            NextActor::Partner | NextActor::Operator => Some(format!("next: {}", standing.next())),
        };
        let story = list([
            topup.reason.told(),
            webhook_attempts(order, topup),
            further,
            route::trouble(topup),
            route::give_back(topup),
            extensions,
            erased,
            next,
        ]);
        let unit = format!("topup {} (option {})", topup.topup_id, option_of(topup));
        (unit, story)
    });
    let stories = placements
        .chain(topups)
        .filter(|(_, story)| !story.is_empty());
    stories
        .map(|(what, story)| printable(&format!("{what}: {story}")))
        .collect()
}

/// The option of a unit: its name in the catalogue, or its id if the catalogue no longer has it.
fn option_of(topup: &TopupView) -> String {
    // Every field is named, so that a new one cannot be forgotten.
    let Agreed {
        option_id,
        price: _,
    } = topup.agreed;
    let id = option_id.to_string();
    topup.option_name.clone().unwrap_or(id)
}

/// The lane that the purchase of this placement waits for, if the lane is held back.
fn lane_of<'a>(placement: &PlacementView, lanes: &'a [WaitingLane]) -> Option<&'a WaitingLane> {
    let waits = placement.state == PlacementState::Accepted;
    lanes
        .iter()
        .find(|lane| waits && lane.provider == placement.provider && lane.lane == placement.lane)
}

/// When a stage ended and how long it took, such as `12:34:56.789 +0.123 s`, or `-` if it has not
/// ended.
fn stage(
    order: &OrderView,
    began: Option<OffsetDateTime>,
    ended: Option<OffsetDateTime>,
) -> String {
    or_dash(ended.map(|ended| {
        let at = moment_after(order.created_at, ended);
        match began {
            Some(began) => format!("{at} +{}", took(ended - began)),
            None => at,
        }
    }))
}

/// The webhook of a unit to a further endpoint.
fn further_webhook(order: &OrderView, sent: &UnitWebhook<'_>) -> Option<String> {
    let endpoint_id = sent.endpoint_id?;
    let webhook = list([
        Some(sent.standing.label().to_owned()),
        Some(sent.attempts)
            .filter(|attempts| *attempts > 0)
            .map(|attempts| counted(attempts, "attempt", "attempts")),
        sent.status.map(|status| format!("responded {status}")),
        sent.error
            .filter(|_| sent.delivered_at.is_none())
            .map(str::to_owned),
        sent.due_at
            .map(|at| format!("next {}", moment_after(order.created_at, at))),
    ]);
    Some(format!("to endpoint {endpoint_id}: {webhook}"))
}

/// What the attempts of a delivery led to. `None` if there was no attempt yet, or if the first one
/// was acknowledged, because then there is nothing to explain.
fn webhook_attempts(order: &OrderView, topup: &TopupView) -> Option<String> {
    let attempts = topup.delivery_attempts.filter(|attempts| *attempts > 0)?;
    let delivered = topup.delivered_at.is_some();
    if delivered && attempts == 1 {
        return None;
    }
    Some(list([
        Some(counted(attempts, "webhook attempt", "webhook attempts")),
        topup
            .delivery_status
            .map(|status| format!("responded {status}")),
        topup.delivery_error.clone().filter(|_| !delivered),
        topup
            .delivery_due_at
            .map(|at| format!("next {}", moment_after(order.created_at, at))),
    ]))
}

fn list<const N: usize>(parts: [Option<String>; N]) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

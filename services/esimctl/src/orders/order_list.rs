//! `esimctl order list`: the orders that match a filter, a page at a time, also as CSV.

use clap::{Args, ValueEnum};
use desk::{
    operator::{
        looking::ListPatience,
        order_list::{self, OrderFilter, OrderListEntry},
    },
    self_service::OrderState,
};
use domain::OrderId;

use crate::{
    console::Console,
    listing::Listing,
    output::{TableRow, cells, or_dash, utc},
};

pub const EXAMPLES: &str = "Examples:
  esimctl order list --state partly_failed --since 24h
  esimctl order list --partner ak_0123456789abcdef01234567 --option JP-7D-1G --limit 200
  esimctl order list --provider airalo --since 2025-01-29T12:00:00Z --until 2025-01-29T14:00:00Z --csv > orders.csv
  esimctl order list --state processing --json

The states are those that partners see, and times are those of acceptance. Each call reads at most 20,000 orders: if more may match, it says how to go on with
--cursor. --json prints {\"orders\":[…],\"next_cursor\":…}. Archived orders are not in the list.";

#[derive(Args, Clone, Debug)]
pub struct OrderListArgs {
    /// List only orders in this state
    #[arg(long)]
    state: Option<State>,
    #[command(flatten)]
    listing: Listing,
    /// Go on behind this order, as the page before says
    #[arg(long, value_name = "ORDER_ID")]
    cursor: Option<OrderId>,
}

/// The states of an order as partners see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum State {
    /// A unit is being bought, or is on hold
    Processing,
    /// All units are ready
    Ready,
    /// Some units are ready, the others have failed
    PartlyFailed,
    /// All units have failed
    Failed,
    /// It was answered with 422: nothing was bought
    Refused,
    /// The partner cancelled it: nothing was bought
    Cancelled,
}

impl From<State> for OrderState {
    fn from(state: State) -> Self {
        match state {
            State::Processing => Self::Processing,
            State::Ready => Self::Ready,
            State::PartlyFailed => Self::PartlyFailed,
            State::Failed => Self::Failed,
            State::Refused => Self::Refused,
            State::Cancelled => Self::Cancelled,
        }
    }
}

pub async fn run(asked: &OrderListArgs, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let listing = &asked.listing;
    let named = listing.named(&mut connection).await?;
    let filter = OrderFilter {
        partner_id: named.partner_id,
        state: asked.state.map(OrderState::from),
        option_id: named.option_id,
        provider: listing.provider.as_deref(),
        since: listing.since,
        until: listing.until,
        ..OrderFilter::default()
    };
    let limit = listing.limit.into();
    let page = order_list::list(
        &mut connection,
        &filter,
        asked.cursor,
        limit,
        ListPatience::Whole,
    )
    .await?;
    let page = page.after_flush(&mut connection).await?;
    let next = page.next_cursor.map(|cursor| cursor.to_string());
    let none = "There are no such orders.";
    listing.print(console, &page, (&page.orders, next), none, row)
}

fn row(order: &OrderListEntry) -> TableRow<8> {
    let units = format!("{}/{}", order.ready, order.units);
    let state = serde_json::to_value(order.state).ok();
    let state = state.as_ref().and_then(serde_json::Value::as_str);
    cells!(order:
        accepted = utc(order.created_at), order_id, external_order_id, partner = or_dash(order.partner.as_ref()),
        state = or_dash(state), "units ready" = units, "on hold" = order.on_hold.to_string(),
        providers = order.providers.join(" "),
    )
}

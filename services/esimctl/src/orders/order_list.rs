//! `esimctl order list`: the orders that match a filter, a page at a time, also as CSV.

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use domain::OrderId;
use store::{
    operator::{
        options,
        order_list::{self, Filter, Listed},
    },
    self_service::OrderState,
};
use time::OffsetDateTime;

use crate::{
    console::{self, Console},
    csv,
    lookup::find_id,
    moment::{check_range, past},
    option::one,
    output::{Row, cells, or_dash, utc},
};

pub const EXAMPLES: &str = "Examples:
  esimctl order list --state partly_failed --since 24h
  esimctl order list --partner ak_0123456789abcdef01234567 --option JP-7D-1G --limit 200
  esimctl order list --provider airalo --since 2025-01-29T12:00:00Z --until 2025-01-29T14:00:00Z --csv > orders.csv
  esimctl order list --state processing --json

The states are those that partners see. Each call reads at most 20,000 orders: if more may match, it says how to go on with
--cursor. --json prints {\"orders\":[…],\"next_cursor\":…}. Archived orders are not in the list.";

#[derive(Args, Clone, Debug)]
pub struct List {
    /// List only orders of this partner, named by its id, access key or unique name
    #[arg(long, value_name = "ID|ACCESS_KEY|NAME")]
    partner: Option<String>,
    /// List only orders in this state
    #[arg(long)]
    state: Option<State>,
    /// List only orders with this option, named by its id, its name, or its name at the provider
    #[arg(long, value_name = "NAME|ID", value_parser = NonEmptyStringValueParser::new())]
    option: Option<String>,
    /// List only orders of which this provider sells a part
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    provider: Option<String>,
    /// List only orders that were accepted since this time
    ///
    /// It is a time such as `2025-01-29T12:00:00Z`, or an age such as `2h`, of at most 365 days.
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: Option<OffsetDateTime>,
    /// List only orders that were accepted before this time, in the form of `--since`
    #[arg(long, value_name = "TIME", value_parser = past)]
    until: Option<OffsetDateTime>,
    /// Go on behind this order, as the page before says
    #[arg(long, value_name = "ORDER_ID")]
    cursor: Option<OrderId>,
    /// The maximum number of orders to list
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    limit: u16,
    /// Print the orders as CSV, with a line of names
    #[arg(long)]
    csv: bool,
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

pub async fn run(asked: &List, console: &Console) -> anyhow::Result<()> {
    check_range(asked.since, asked.until)?;
    let mut connection = console.connect().await?;
    let option_id = match &asked.option {
        Some(typed) => Some(one(options::named(&mut connection, typed).await?, typed)?.option_id),
        None => None,
    };
    let filter = Filter {
        partner_id: find_id(&mut connection, asked.partner.as_ref()).await?,
        state: asked.state.map(OrderState::from),
        option_id,
        provider: asked.provider.as_deref(),
        since: asked.since,
        until: asked.until,
    };
    let page = order_list::list(&mut connection, &filter, asked.cursor, asked.limit.into()).await?;
    console.print(&page, || {
        if asked.csv {
            return csv::text(page.orders.iter().map(row));
        }
        let rows = console::list(&page.orders, "There are no such orders.", row);
        match page.next_cursor {
            None => rows,
            Some(cursor) => {
                format!("{rows}\n\nThe list goes on: repeat the command with --cursor {cursor}")
            }
        }
    })
}

fn row(order: &Listed) -> Row<8> {
    let units = format!("{}/{}", order.ready, order.units);
    let state = serde_json::to_value(order.state).ok();
    let state = state.as_ref().and_then(serde_json::Value::as_str);
    cells!(order:
        accepted = utc(order.created_at), order_id, external_order_id, partner = or_dash(order.partner.as_ref()),
        state = or_dash(state), "units ready" = units, "on hold" = order.on_hold.to_string(),
        providers = order.providers.join(" "),
    )
}

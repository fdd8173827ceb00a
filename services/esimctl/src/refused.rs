//! `esimctl partner refused`: the refused requests of a partner, for "we sent it, and you do not have
//! it".

use clap::Args;
use store::refused::{self, Refused};

use crate::{
    console::Console,
    lookup::{Which, find},
    output::{Row, cells, or_dash, utc},
};

pub const EXAMPLES: &str = "Examples:
  esimctl partner refused ak_0123456789abcdef01234567
  esimctl partner refused ak_0123456789abcdef01234567 --limit 200 --json

Ingress keeps requests that it answered with a 4xx or 503 and whose access key is known: the newest 1,000 of
each kind (orders, other requests, and requests without a valid signature), and no longer than the term `refusals` of
`esimctl retention`. A request with an unknown access key, and one that a proxy refused, is not among them. `unrecorded`
counts the requests of the same kind before this one that were not kept, because more than PARTNER_REFUSALS_PER_MINUTE
came, or because they could not be stored.";

#[derive(Args, Clone, Debug)]
pub struct Command {
    #[command(flatten)]
    which: Which,
    /// The most requests of each kind that are shown, the newest ones
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

pub async fn run(asked: &Command, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let partner = find(&mut connection, &asked.which.partner).await?;
    let refused = refused::list(&mut connection, partner.partner_id.into(), asked.limit).await?;
    let none = "No refused request of this partner is kept.";
    console.print_list(&refused, none, row)
}

pub fn row(one: &Refused) -> Row<8> {
    cells!(one:
        at = utc(one.at), status, errors,
        "external_order_id" = or_dash(one.external_order_id.as_ref()),
        request = format!("{} {}", one.method, one.path), kind,
        "request_id" = one.request(), unrecorded,
    )
}

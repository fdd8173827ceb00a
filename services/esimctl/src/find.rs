//! `esimctl find`: searches for an id of any kind. The console's box does the same search.

use clap::{Args, builder::NonEmptyStringValueParser};
use store::operator::search::{self, OrderHit, PartnerHit};

use crate::{
    console::{Console, NotFound, list},
    output::{Row, cells, or_dash, utc},
    refused,
};

pub const EXAMPLES: &str = "Examples:
  esimctl find acme-1001                                an external_order_id of any partner
  esimctl find '8981 0000 0000 0000 001'                an ICCID, with blanks or without
  esimctl find 4711                                     the provider's number of a purchase or of a unit
  esimctl find 'Acme Travel'                            a partner, whose id or access key is found, too

Ids are matched exactly. Order, placement and topup ids are found, too. `esimctl order show` shows an order that was
found. Refused requests are found by their external order id, and by the X-Request-Id that the partner got.";

#[derive(Args, Clone, Debug)]
pub struct Command {
    /// What to find
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    id: String,
}

pub async fn run(asked: &Command, console: &Console) -> anyhow::Result<()> {
    let hits = search::find(&mut console.connect().await?, &asked.id).await?;
    if hits.is_empty() {
        return Err(NotFound(format!(
            "nothing has the id or name {:?}; archived orders are found by `esimctl order show`",
            asked.id
        ))
        .into());
    }
    console.print(&hits, || {
        let mut text = list(&hits.orders, "No order has this id.", order_row);
        if !hits.partners.is_empty() {
            text = format!("{text}\n\n{}", list(&hits.partners, "", partner_row));
        }
        if !hits.refused.is_empty() {
            let refused = list(&hits.refused, "", refused::row);
            text = format!("{text}\n\nRefused requests:\n{refused}");
        }
        text
    })
}

fn order_row(hit: &OrderHit) -> Row<5> {
    cells!(hit:
        order_id, external_order_id, partner = or_dash(hit.partner.as_ref()), accepted = utc(hit.created_at),
        "found by" = hit.by.as_str().replace('_', " "),
    )
}

fn partner_row(hit: &PartnerHit) -> Row<3> {
    cells!(hit: partner_id, name, environment)
}

//! `esimctl find`: searches for an id of any kind. The console's box does the same search.

use anyhow::bail;
use clap::{Args, builder::NonEmptyStringValueParser};
use desk::operator::search::{self, KeyHit, OrderHit, PartnerHit};

use crate::{
    console::{Console, list},
    output::{TableRow, cells, or_dash, utc},
    refused,
};

pub const EXAMPLES: &str = "Examples:
  esimctl find acme-1001                                an external_order_id of any partner
  esimctl find '8981 0000 0000 0000 001'                an ICCID, with blanks or without
  esimctl find 4711                                     the provider's number of a purchase or of a unit
  esimctl find acme                                     partners by a part of their name, in any case, or by id or access key
  esimctl find 0199a4b2                                 orders whose order or placement id begins so
  esimctl find 'wl 501'                                 WL-501: case, blanks, dashes and underscores do not matter

Order, placement and topup ids are found, too. If no order has the id as a whole, those are found that begin with it: at
least four characters of an order, placement or topup id, an ICCID, or the external order id of one of the newest 20,000
orders. Of the newest 20,000, a trace id and the last six digits of an ICCID are found, too. `esimctl order show` shows an order that was found. Refused requests are found by their external order id, and by
the X-Request-Id that the partner got.";

#[derive(Args, Clone, Debug)]
pub struct FindArgs {
    /// What to find
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    id: String,
}

pub async fn run(asked: &FindArgs, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let hits = search::find(&mut connection, &asked.id).await?;
    let hits = hits.after_flush(&mut connection).await?;
    if hits.is_empty() {
        let meant = hits.meant.iter().map(|one| &one.external_order_id);
        let meant: Vec<&String> = meant.chain(&hits.meant_refused).collect();
        if !meant.is_empty() {
            bail!(
                "nothing has the id or name {:?}; these are nearly the same: {meant:?}",
                asked.id
            );
        }
        bail!(
            "nothing has the id or name {:?}: looked for it as an order, placement or topup id, an external order id, an ICCID, \
             also as the beginning of one, a provider's number of a purchase or of a unit, a partner's id, one of its access keys or part \
             of a name, and the external order id or request id of a refused request; archived orders are found by `esimctl \
             order show`",
            asked.id
        );
    }
    console.print(&hits, || {
        let parts = [
            part("Orders", &hits.orders, order_row),
            part("Partners", &hits.partners, partner_row),
            part("Refused requests", &hits.refused, refused::row),
        ];
        let parts = parts.into_iter().chain([hits.how_to_go_on()]);
        parts.flatten().collect::<Vec<_>>().join("\n\n")
    })
}

/// The hits of one kind with their heading, if there are any.
fn part<T, const N: usize>(
    heading: &str,
    hits: &[T],
    row: impl Fn(&T) -> TableRow<N>,
) -> Option<String> {
    (!hits.is_empty()).then(|| format!("{heading}:\n{}", list(hits, "", row)))
}

fn order_row(hit: &OrderHit) -> TableRow<5> {
    cells!(hit:
        order_id, external_order_id, partner = or_dash(hit.partner.as_ref()), accepted = utc(hit.created_at),
        "found by" = hit.by.as_str().replace('_', " "),
    )
}

fn partner_row(hit: &PartnerHit) -> TableRow<4> {
    let by = hit.key.as_ref().map(KeyHit::described);
    cells!(hit: partner_id, name, environment, "found by" = or_dash(by))
}

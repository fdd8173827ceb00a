//! `esimctl partner show --refused`: the refused requests of a partner, for "we sent it, and you do
//! not have it".

use accounts::refused::{self, RefusedRequestView};

use crate::{
    console::Console,
    lookup::{PartnerArgs, find},
    output::{TableRow, cells, or_dash, utc},
};

/// Shows the newest refused requests of a partner, at most `limit` of each kind.
pub async fn run(which: &PartnerArgs, limit: u32, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let partner = find(&mut connection, &which.partner).await?;
    let refused = refused::list(&mut connection, partner.partner_id.into(), limit).await?;
    let none = "No refused request of this partner is kept.";
    console.print_list(&refused, none, row)
}

pub fn row(one: &RefusedRequestView) -> TableRow<8> {
    cells!(one:
        at = utc(one.at), status, errors,
        "external_order_id" = or_dash(one.external_order_id.as_ref()),
        request = format!("{} {}", one.method, one.path), kind,
        "request_id" = one.request(), unrecorded,
    )
}

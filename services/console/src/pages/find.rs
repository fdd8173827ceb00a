//! Find: one box for every id that somebody may have at hand. A single hit leads to its page at
//! once, and several become a list.

use askama::Template;
use axum::{
    extract::State,
    response::{IntoResponse, Redirect, Response},
};
use store::{
    PgConnection, archive,
    operator::search::{self, By, MOST},
};

use crate::{
    App,
    access::{Viewer, Visit},
    format::utc,
    pages::partner::{RefusedRow, refused_row},
    problem::Problem,
    view::{Shell, page, shortened},
};

#[derive(Template)]
#[template(path = "found.html")]
struct Page {
    shell: Shell,
    asked: String,
    hits: Vec<HitRow>,
    archived: Vec<String>,
    refused: Vec<RefusedRow>,
    most: i64,
}

struct HitRow {
    name: String,
    path: String,
    by: &'static str,
    partner: String,
    at: String,
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let Some(asked) = visit.query.get("q") else {
        return Ok(Redirect::to("/").into_response());
    };
    let read = async |connection: &mut PgConnection| read(connection, asked).await;
    let found = app.database().run(read).await?;
    // A refused request may be what was meant: it may be of another partner with the same external id.
    let is_all = found.archived.is_empty() && found.refused.is_empty();
    if let ([only], true) = (found.hits.as_slice(), is_all) {
        return Ok(Redirect::to(&only.path).into_response());
    }
    let nothing = found.hits.is_empty() && is_all;
    let found_what = if nothing { "Nothing found" } else { "Found" };
    let title = format!("{found_what} for “{}”", shortened(asked));
    let mut shell = Shell::new(&visit.session, "", title);
    asked.clone_into(&mut shell.query);
    page(&Page {
        shell,
        asked: shortened(asked),
        hits: found.hits,
        archived: found.archived,
        refused: found.refused,
        most: MOST,
    })
}

struct Found {
    hits: Vec<HitRow>,
    archived: Vec<String>,
    refused: Vec<RefusedRow>,
}

async fn read(connection: &mut PgConnection, asked: &str) -> Result<Found, store::Error> {
    let found = search::find(&mut *connection, asked).await?;
    let archived = archive::find(connection, asked).await?;
    let orders = found.orders.into_iter().map(|order| HitRow {
        path: format!("/orders/{}", order.order_id),
        by: by(order.by),
        partner: order.partner.unwrap_or_default(),
        at: utc(order.created_at),
        name: order.external_order_id,
    });
    let partners = found.partners.into_iter().map(|partner| HitRow {
        path: format!("/partners/{}", partner.partner_id),
        by: "partner",
        partner: partner.environment,
        at: String::new(),
        name: partner.name,
    });
    let archived = archived.into_iter().map(|order| {
        format!(
            "Order {} ({}) was archived on {} UTC. With a shell: esimctl archive show {} --from {}",
            order.external_order_id,
            order.order_id,
            utc(order.archived_at),
            order.order_id,
            order.folder
        )
    });
    Ok(Found {
        hits: orders.chain(partners).collect(),
        archived: archived.collect(),
        refused: found.refused.into_iter().map(refused_row).collect(),
    })
}

/// What an order was found by.
fn by(by: By) -> &'static str {
    match by {
        By::ExternalOrderId => "external order id",
        By::Order => "order id",
        By::Placement => "placement id",
        By::Topup => "topup id",
        By::Iccid => "ICCID",
        By::Provider => "provider's number",
    }
}

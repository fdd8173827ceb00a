//! Find: one box for every id that somebody may have at hand. A single hit leads to its page at
//! once, and several become a list. If nothing is exactly that, partners and endpoints come near
//! whose name or host has it as a part; htmx shows the same under the box while somebody types.

use askama::Template;
use axum::{
    extract::State,
    response::{IntoResponse, Redirect, Response},
};
use desk::operator::search::{self, MOST, MatchedId};
use pg::PgConnection;

use crate::{
    App,
    access::{Viewer, Visit},
    format::utc,
    pages::refusals::{RefusedRow, refused_row},
    problem::Problem,
    times::{TimeElement, Times},
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
    near: Vec<Near>,
    most: i64,
    /// How to go on if more matches.
    more: Option<String>,
}

/// What htmx shows under the box.
#[derive(Template)]
#[template(path = "hints.html")]
struct Hints {
    near: Vec<Near>,
}

/// A partner or an endpoint whose name or host has what was asked for as a part.
struct Near {
    path: String,
    before: String,
    part: String,
    after: String,
    why: String,
}

/// The most near hits of a page, and under the box.
const NEAR: usize = 10;

/// The place of a text in another one, in any case.
fn part_of(text: &str, wanted: &str) -> Option<(String, String, String)> {
    // Lower case may have other lengths, so a place in it is one of the text only if it is a
    // boundary.
    let wanted = wanted.to_lowercase();
    let at = text.to_lowercase().find(&wanted)?;
    let before = text.get(..at)?.to_owned();
    let part = text.get(at..at + wanted.len())?.to_owned();
    let after = text.get(at + wanted.len()..)?.to_owned();
    Some((before, part, after))
}

/// Partners and hosts that have a text as a part, in any case.
async fn near(app: &App, asked: &str) -> Result<Vec<Near>, Problem> {
    const SHORTEST: usize = 2;
    let asked = asked.trim();
    if asked.chars().count() < SHORTEST {
        return Ok(Vec::new());
    }
    let most = i64::try_from(NEAR).unwrap_or(i64::MAX);
    let find = async |connection: &mut PgConnection| search::near(connection, asked, most).await;
    let found = app.database().run(find).await?;
    let near = found.into_iter().map(|one| {
        let why = match &one.host {
            None => "partner".to_owned(),
            Some(_) => format!("endpoint of {}", one.name),
        };
        let text = one.host.unwrap_or(one.name);
        let (before, part, after) =
            part_of(&text, asked).unwrap_or((text, String::new(), String::new()));
        Near {
            path: format!("/partners/{}", one.partner_id),
            before,
            part,
            after,
            why,
        }
    });
    Ok(near.take(NEAR).collect())
}

/// The maximum number of orders under the box.
const ORDERS: usize = 5;

/// Orders with an id that is or begins with what was typed.
async fn orders_near(app: &App, asked: &str) -> Result<Vec<Near>, Problem> {
    const SHORTEST: usize = 4;
    if asked.chars().count() < SHORTEST {
        return Ok(Vec::new());
    }
    let find = async |connection: &mut PgConnection| {
        let hits = search::find(&mut *connection, asked).await?;
        hits.after_flush(connection).await
    };
    let found = app.database().run(find).await?;
    let orders = found.orders.into_iter().take(ORDERS).map(|order| {
        let after = order.external_order_id.strip_prefix(asked);
        let part = after.map_or("", |_| asked).to_owned();
        Near {
            path: format!("/orders/{}", order.order_id),
            before: String::new(),
            after: after.unwrap_or(&order.external_order_id).to_owned(),
            part,
            why: format!(
                "order of {}, by its {}",
                order.partner.as_deref().unwrap_or("an erased partner"),
                by(order.by)
            ),
        }
    });
    Ok(orders.collect())
}

pub(crate) async fn hints(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let asked = visit.query.get("q").unwrap_or_default();
    let mut all = near(&app, asked).await?;
    all.extend(orders_near(&app, asked).await?);
    page(&Hints { near: all })
}

struct HitRow {
    name: String,
    path: String,
    by: &'static str,
    partner: String,
    at: TimeElement,
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let Some(asked) = visit.query.get("q") else {
        return Ok(Redirect::to("/").into_response());
    };
    let times = &visit.session.times;
    let read = async |connection: &mut PgConnection| read(connection, asked, times).await;
    let found = app.database().run(read).await?;
    // A refused request may be what was meant: it may be of another partner with the same external
    // id.
    let is_all = found.archived.is_empty() && found.refused.is_empty();
    if let ([only], true) = (found.hits.as_slice(), is_all) {
        return Ok(Redirect::to(&only.path).into_response());
    }
    let nothing = found.hits.is_empty() && is_all;
    let near = if nothing {
        near(&app, asked).await?
    } else {
        Vec::new()
    };
    let found_what = if nothing { "Nothing found" } else { "Found" };
    let title = format!("{found_what} for “{}”", shortened(asked));
    let mut shell = Shell::new(&app, &visit.session, "", title);
    asked.clone_into(&mut shell.query);
    page(&Page {
        shell,
        asked: shortened(asked),
        hits: found.hits,
        archived: found.archived,
        refused: found.refused,
        near,
        most: MOST,
        more: found.more,
    })
}

struct Found {
    hits: Vec<HitRow>,
    archived: Vec<String>,
    refused: Vec<RefusedRow>,
    more: Option<String>,
}

async fn read(
    connection: &mut PgConnection,
    asked: &str,
    times: &Times,
) -> Result<Found, pg::Error> {
    let found = search::find(&mut *connection, asked).await?;
    let found = found.after_flush(&mut *connection).await?;
    let archived = desk::archived::find(connection, asked).await?;
    let more = found.how_to_go_on();
    let orders = found.orders.into_iter().map(|order| HitRow {
        path: format!("/orders/{}", order.order_id),
        by: by(order.by),
        partner: order.partner.unwrap_or_default(),
        at: times.both(order.created_at),
        name: order.external_order_id,
    });
    let partners = found.partners.into_iter().map(|partner| HitRow {
        path: format!("/partners/{}", partner.partner_id),
        by: "partner",
        partner: partner.environment,
        at: TimeElement::default(),
        name: partner.name,
    });
    let archived = archived.into_iter().map(|order| {
        format!(
            "Order {} ({}) was archived on {} UTC. With a shell: {}",
            order.external_order_id,
            order.order_id,
            utc(order.archived_at),
            order.shown_by()
        )
    });
    Ok(Found {
        // Few partners, and whoever types a name wants one of them.
        hits: partners.chain(orders).collect(),
        more,
        archived: archived.collect(),
        refused: found
            .refused
            .into_iter()
            .map(|one| refused_row(one, times))
            .collect(),
    })
}

/// What an order was found by.
fn by(by: MatchedId) -> &'static str {
    match by {
        MatchedId::ExternalOrderId => "external order id",
        MatchedId::Order => "order id",
        MatchedId::Placement => "purchase id",
        MatchedId::Topup => "eSIM’s number",
        MatchedId::Iccid => "ICCID",
        MatchedId::Provider => "provider's number",
    }
}

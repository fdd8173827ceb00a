//! Find: one box for every id that somebody may have at hand. A single hit leads to its page at
//! once, and several become a list. If nothing is exactly that, partners and endpoints come near
//! whose name or host has it as a part; htmx shows the same under the box while somebody types.

use std::collections::HashMap;

use askama::Template;
use axum::{
    extract::State,
    response::{IntoResponse, Redirect, Response},
};
use desk::operator::{
    self,
    order_list::{self, Contents, OrderListEntry},
    orders::UndeliveredCounts,
    search::{self, MOST, MatchedId, OrderHit},
};
use pg::PgConnection;
use uuid::Uuid;

use crate::{
    App,
    access::{ConsoleSession, OperatorRole, Viewer, Visit},
    format::{address, utc},
    pages::{
        orders,
        refusals::{RefusedRow, refused_row},
    },
    problem::Problem,
    times::TimeElement,
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
    meant: Vec<Meant>,
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

/// An order whose id differs in one character, or the id of such a refused request.
struct Meant {
    path: String,
    name: String,
    why: String,
    state: &'static str,
    class: &'static str,
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
    /// What an order is for and how it is, and how that is coloured; empty for a partner.
    products: String,
    state: &'static str,
    class: &'static str,
    at: TimeElement,
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let Some(asked) = visit.query.get("q") else {
        return Ok(Redirect::to("/").into_response());
    };
    let session = &visit.session;
    let read = async |connection: &mut PgConnection| read(connection, asked, session).await;
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
        meant: found.meant,
        near,
        most: MOST,
        more: found.more,
    })
}

struct Found {
    hits: Vec<HitRow>,
    archived: Vec<String>,
    refused: Vec<RefusedRow>,
    meant: Vec<Meant>,
    more: Option<String>,
}

/// What orders are for, and how they are.
struct States {
    orders: HashMap<Uuid, OrderListEntry>,
    undelivered: HashMap<Uuid, UndeliveredCounts>,
    contents: HashMap<Uuid, Contents>,
}

impl States {
    async fn read(connection: &mut PgConnection, hits: &[OrderHit]) -> Result<Self, pg::Error> {
        let ids: Vec<Uuid> = hits.iter().map(|one| one.order_id).collect();
        let orders = order_list::by_ids(&mut *connection, &ids).await?;
        let orders = orders.after_flush(&mut *connection).await?.into_iter();
        Ok(Self {
            orders: orders.map(|one| (one.order_id.uuid(), one)).collect(),
            undelivered: operator::orders::undelivered(&mut *connection, &ids).await?,
            contents: order_list::contents(connection, &ids).await?,
        })
    }

    fn state(&self, id: Uuid) -> (&'static str, &'static str) {
        let webhooks = self.undelivered.get(&id).copied().unwrap_or_default();
        self.orders.get(&id).map_or(("", ""), |one| {
            orders::state(one.state, one.on_hold > 0, webhooks)
        })
    }

    fn products(&self, id: Uuid) -> String {
        self.contents
            .get(&id)
            .map(orders::in_words)
            .unwrap_or_default()
    }
}

async fn read(
    connection: &mut PgConnection,
    asked: &str,
    session: &ConsoleSession,
) -> Result<Found, pg::Error> {
    let times = &session.times;
    let found = search::find(&mut *connection, asked).await?;
    let found = found.after_flush(&mut *connection).await?;
    let archived = desk::archived::find(&mut *connection, asked).await?;
    let more = found.how_to_go_on();
    let all: Vec<OrderHit> = found.orders.iter().chain(&found.meant).cloned().collect();
    let states = States::read(connection, &all).await?;
    let orders = found.orders.into_iter().map(|order| {
        let (state, class) = states.state(order.order_id);
        HitRow {
            path: format!("/orders/{}", order.order_id),
            by: by(order.by),
            partner: order.partner.unwrap_or_default(),
            products: states.products(order.order_id),
            state,
            class,
            at: times.both(order.created_at),
            name: order.external_order_id,
        }
    });
    let meant = found.meant.into_iter().map(|order| {
        let (state, class) = states.state(order.order_id);
        Meant {
            path: format!("/orders/{}", order.order_id),
            why: format!(
                "{} · {} · {} · one character of its {} differs",
                order.partner.as_deref().unwrap_or("an erased partner"),
                states.products(order.order_id),
                times.written(order.created_at),
                by(order.by)
            ),
            name: order.external_order_id,
            state,
            class,
        }
    });
    let meant_refused = found.meant_refused.into_iter().map(|id| Meant {
        path: address("/find", [("q", id.as_str())]),
        why: "a request that was refused; its order id is nearly the same".to_owned(),
        name: id,
        state: "refused",
        class: "note",
    });
    let meant = meant.chain(meant_refused).collect();
    let partners = found.partners.into_iter().map(|partner| HitRow {
        // Whoever asks for a key wants to know what it may do, or to end it.
        path: match &partner.key {
            Some(_) => format!("/partners/{}/access", partner.partner_id),
            None => format!("/partners/{}", partner.partner_id),
        },
        by: "partner",
        partner: partner.environment,
        products: partner.key.map(|key| key.described()).unwrap_or_default(),
        state: "",
        class: "",
        at: TimeElement::default(),
        name: partner.name,
    });
    let archived = archived.into_iter().map(|order| {
        format!(
            "Order {} ({}) was archived on {} UTC. {}",
            order.external_order_id,
            order.order_id,
            utc(order.archived_at),
            if session.may(OperatorRole::Operator) {
                format!("With a shell: {}", order.shown_by())
            } else {
                "An operator can read it there.".to_owned()
            }
        )
    });
    Ok(Found {
        // Few partners, and whoever types a name wants one of them.
        hits: partners.chain(orders).collect(),
        more,
        meant,
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
        MatchedId::Trace => "trace",
    }
}

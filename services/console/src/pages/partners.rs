//! All partners, those with a problem first: who has an endpoint that takes nothing, webhooks that
//! were given up, or purchases on hold. The problems are those of the newest look that all viewers
//! share.

use std::collections::BTreeMap;

use accounts::partners::{self, PartnerFilter};
use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::health::{FindingKind, HealthReport};
use domain::{Environment, standing::EndpointState};
use pg::PgConnection;
use uuid::Uuid;

use crate::{
    App,
    access::{Viewer, Visit},
    format::{counted, number},
    pages::{
        endpoints::{endpoint_class, endpoint_state},
        lists::{Tab, with},
        partner::standing,
    },
    problem::Problem,
    times::TimeElement,
    view::{Shell, page},
};

const PATH: &str = "/partners";
/// The partners of a page.
const PAGE: i64 = 100;

/// Which partners are listed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Problem,
    Live,
    Sandbox,
    Disabled,
}

/// The tabs: how they stand in the address, and their names.
const TABS: [(&str, &str, Which); 4] = [
    ("problem", "With a problem", Which::Problem),
    ("live", "Live", Which::Live),
    ("sandbox", "Sandbox", Which::Sandbox),
    ("disabled", "Disabled", Which::Disabled),
];

#[derive(Template)]
#[template(path = "partners.html")]
struct Page {
    shell: Shell,
    tabs: Vec<Tab>,
    named: String,
    /// Which partners, as the address names it.
    state: &'static str,
    rows: Vec<Row>,
    foot: String,
    older: Option<String>,
    newest: Option<String>,
}

struct Row {
    id: String,
    name: String,
    health: Vec<(&'static str, String)>,
    is_sandbox: bool,
    waiting: String,
    exhausted: String,
    created: TimeElement,
}

/// What is wrong with a partner.
#[derive(Default)]
struct Health {
    badges: Vec<(&'static str, String)>,
    waiting: i64,
    exhausted: i64,
}

/// What is wrong, by partner.
fn health(report: &HealthReport) -> BTreeMap<Uuid, Health> {
    let mut all: BTreeMap<Uuid, Health> = BTreeMap::new();
    let mut held: BTreeMap<Uuid, usize> = BTreeMap::new();
    for one in &report.findings {
        if let FindingKind::Parked { purchases, .. } = &one.kind {
            for purchase in purchases {
                *held.entry(purchase.partner_id.uuid()).or_default() += 1;
            }
        }
    }
    for (partner, number) in held {
        let badges = &mut all.entry(partner).or_default().badges;
        badges.push(("bad", format!("{number} on hold")));
    }
    for endpoint in &report.endpoints {
        let one = all.entry(endpoint.partner_id).or_default();
        one.waiting += endpoint.pending;
        one.exhausted += endpoint.exhausted;
        let is_well = endpoint.state == EndpointState::Open && endpoint.failures == 0;
        if !is_well && (endpoint.state != EndpointState::NoUrl || endpoint.pending > 0) {
            let class = endpoint_class(endpoint);
            one.badges
                .push((class, format!("endpoint: {}", endpoint_state(endpoint))));
        }
    }
    for one in all.values_mut().filter(|one| one.exhausted > 0) {
        let given_up = counted(one.exhausted, "webhook given up", "webhooks given up");
        one.badges.push(("warn", given_up));
    }
    all
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let query = &visit.query;
    let named = query.get("partner").unwrap_or_default();
    let asked = query.get("state");
    let tab = TABS.iter().find(|(key, ..)| Some(*key) == asked);
    let which = tab.map(|(.., which)| *which);
    let state = tab.map_or("", |(key, ..)| *key);
    let (look, _) = app.figures().look(app.database()).await?;
    let mut health = health(&look.report);
    let troubled = health.iter().filter(|(_, mine)| !mine.badges.is_empty());
    let troubled: Vec<Uuid> = troubled.map(|(id, _)| *id).collect();
    let wanted = PartnerFilter {
        named,
        environment: match which {
            Some(Which::Live) => Some(Environment::Live),
            Some(Which::Sandbox) => Some(Environment::Sandbox),
            _ => None,
        },
        only_disabled: which == Some(Which::Disabled),
        among: (which == Some(Which::Problem)).then_some(&troubled),
    };
    let before = query.get("before").and_then(|from| from.parse().ok());
    let from: u32 = before.unwrap_or(0);
    let read = async |connection: &mut PgConnection| {
        partners::page(connection, &wanted, &troubled, (from.into(), PAGE)).await
    };
    let (found, number_of) = app.database().run(read).await?;
    let rows = found.into_iter().map(|partner| {
        let mine = health.remove(&partner.partner_id).unwrap_or_default();
        let mut badges = mine.badges;
        let (standing, class) = standing(&partner);
        if partner.disabled_at.is_some() {
            badges.insert(0, (class, standing.to_owned()));
        }
        if badges.is_empty() {
            badges.push(("good", "well".to_owned()));
        }
        Row {
            id: partner.partner_id.to_string(),
            health: badges,
            is_sandbox: partner.environment == "sandbox",
            waiting: number(mine.waiting),
            exhausted: number(mine.exhausted),
            created: visit.session.times.clock(partner.created_at),
            name: partner.name,
        }
    });
    let rows: Vec<Row> = rows.collect();
    let tab = |name, key: &str| Tab {
        name,
        path: with(PATH, query, &[("state", key), ("before", "")]),
        current: key == state,
        count: (key == "problem").then(|| number(troubled.len())),
    };
    let tabs = TABS.iter().map(|(key, name, _)| tab(*name, key));
    let from = i64::from(from);
    let next = from + i64::try_from(rows.len()).unwrap_or_default();
    page(&Page {
        shell: Shell::new(&app, &visit.session, PATH, "Partners"),
        tabs: std::iter::once(tab("All", "")).chain(tabs).collect(),
        named: named.to_owned(),
        state,
        foot: if rows.is_empty() {
            "No partner fits.".to_owned()
        } else {
            format!(
                "{} to {} of {}, those with problems first",
                number(from + 1),
                number(next),
                counted(number_of, "partner", "partners")
            )
        },
        older: (next < number_of).then(|| with(PATH, query, &[("before", &next.to_string())])),
        newest: (from > 0).then(|| with(PATH, query, &[("before", "")])),
        rows,
    })
}

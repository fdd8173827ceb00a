//! All partners, those with a problem first: who has orders that wait, an endpoint that takes
//! nothing, webhooks that were given up or have no address, or no order for a day. The problems are
//! those of the newest look that all viewers share.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use accounts::partners::{self, Partner, PartnerFilter};
use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::{
    health::{
        Finding, FindingKind, HealthReport,
        finding::{FailureKind, Severity},
    },
    partners_lately::{self, MOST_ORDERS, PartnerActivity},
};
use domain::{Environment, esim_change::EsimChangeKind, standing::EndpointState};
use pg::PgConnection;
use time::Duration;
use uuid::Uuid;

use crate::{
    App,
    access::{FormFields, Viewer, Visit},
    format::{brief, counted, number},
    looks::Activities,
    pages::{
        endpoints::endpoint_state,
        issues::{class_of, weight},
        lists::{self, Tab, instant, or_empty, with},
        partner::standing,
        partner_health::{oldest, overdue},
    },
    pictures::spark,
    problem::Problem,
    times::{TimeElement, Times},
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
    Quiet,
    Disabled,
}

/// The tabs: how they stand in the address, and their names.
const TABS: [(&str, &str, Which); 5] = [
    ("problem", "With a problem of its own", Which::Problem),
    ("live", "Live", Which::Live),
    ("sandbox", "Sandbox", Which::Sandbox),
    ("quiet", "Quiet for a day", Which::Quiet),
    ("disabled", "Disabled", Which::Disabled),
];

/// What the list is sorted by: how that stands in the address, in the form, and over its column;
/// and how the values of the column go.
const SORTS: [(&str, &str, &str, &str); 6] = [
    ("name", "name", "Partner", "ascending"),
    ("", "problems first", "Health", "descending"),
    ("orders", "most orders", "Orders, 24 h", "descending"),
    ("last", "last order longest ago", "Last order", "ascending"),
    ("oldest", "oldest waits", "Oldest waits", "descending"),
    ("refused", "most refused", "Refused, 24 h", "descending"),
];

#[derive(Template)]
#[template(path = "partners.html")]
struct Page {
    shell: Shell,
    /// What keeps all of them back: how it is coloured, the gravest, and how much more there is.
    of_all: Option<(&'static str, String, usize)>,
    tabs: Vec<Tab>,
    named: String,
    /// Which partners, as the address names it.
    state: &'static str,
    /// How it can be sorted: each way with whether it is the chosen one.
    sorts: Vec<(&'static str, &'static str, bool)>,
    heads: Vec<Head>,
    rows: Vec<Row>,
    foot: String,
    csv: String,
    /// How many there are.
    number: String,
    older: Option<String>,
    newest: Option<String>,
}

/// The head of a column, with the link that sorts by it.
struct Head {
    name: &'static str,
    path: String,
    sorted: Option<&'static str>,
    is_number: bool,
}

struct Row {
    id: String,
    name: String,
    health: Badges,
    is_sandbox: bool,
    /// Its orders by the hour, as a picture or in words.
    hours: String,
    orders: String,
    last: TimeElement,
    oldest: String,
    refused: String,
}

/// What is wrong with a partner: how it is coloured, and in words.
type Badges = Vec<(&'static str, String)>;

/// What is wrong, by partner.
fn health(report: &HealthReport, lately: &Activities, times: &Times) -> BTreeMap<Uuid, Badges> {
    let mut all: BTreeMap<Uuid, Badges> = BTreeMap::new();
    let mut held: BTreeMap<(Uuid, &str), usize> = BTreeMap::new();
    for one in &report.findings {
        let (partner, text) = match &one.kind {
            FindingKind::Parked { purchases, .. } => {
                for purchase in purchases {
                    *held
                        .entry((purchase.partner_id.uuid(), "on hold"))
                        .or_default() += 1;
                }
                continue;
            }
            FindingKind::GiveBacksParked { changes, .. }
            | FindingKind::ExtensionsParked { changes, .. } => {
                for change in changes {
                    let partner = change.partner_id.uuid();
                    let held_up = match change.kind() {
                        EsimChangeKind::GiveBack => "not given back",
                        EsimChangeKind::Extension => "not extended",
                    };
                    *held.entry((partner, held_up)).or_default() += 1;
                }
                continue;
            }
            FindingKind::OrdersFail {
                partner: Some(partner),
                how,
                ..
            } => (*partner, failing(*how).to_owned()),
            FindingKind::NoAddress {
                partner_id,
                webhooks,
                ..
            } => {
                let webhooks = counted(*webhooks, "webhook", "webhooks");
                (*partner_id, format!("{webhooks}, no address"))
            }
            FindingKind::Exhausted { endpoint } => {
                let webhooks = counted(endpoint.exhausted, "webhook", "webhooks");
                (endpoint.partner_id, format!("{webhooks} given up"))
            }
            FindingKind::Paused { endpoint } | FindingKind::Blocked { endpoint } => (
                endpoint.partner_id,
                format!("endpoint {}", endpoint_state(endpoint)),
            ),
            _ => continue,
        };
        let badge = (class_of(one.severity()), text);
        all.entry(partner).or_default().push(badge);
    }
    for ((partner, what), held) in held {
        let badges = all.entry(partner).or_default();
        badges.push(("warn", format!("{} {what}", number(held))));
    }
    let failing = report
        .endpoints
        .iter()
        .filter(|one| one.state == EndpointState::Open && one.failures > 0);
    for endpoint in failing {
        let badges = all.entry(endpoint.partner_id).or_default();
        badges.push(("", "endpoint fails".to_owned()));
    }
    for (partner, one) in lately {
        let badges = all.entry(*partner).or_default();
        if let Some(oldest) = one.oldest {
            let class = class_of(partners_lately::severity(one.is_live, oldest, times.now));
            let wait = counted(one.waiting, "purchase waits", "purchases wait");
            badges.push((class, wait));
        }
        if let Some(last) = one.last.filter(|_| one.usual.is_some()) {
            badges.push(("warn", format!("quiet for {}", brief(times.now - last))));
        }
    }
    all.retain(|_, badges| !badges.is_empty());
    all
}

fn failing(how: FailureKind) -> &'static str {
    match how {
        FailureKind::Errors => "orders fail",
        FailureKind::Denied => "requests get a 401",
        FailureKind::Refused | FailureKind::Invalid => "orders are refused",
        FailureKind::Limited => "orders are above its limit",
    }
}

/// What the list is made of.
struct Found {
    /// What keeps all partners back: how it is coloured, the gravest, and how much more there is.
    of_all: Option<(&'static str, String, usize)>,
    /// How bad what keeps back all test partners is, and all live ones.
    test: Option<Severity>,
    live: Option<Severity>,
    health: BTreeMap<Uuid, Badges>,
    lately: Arc<Activities>,
    /// How long the oldest webhook or purchase of each partner has waited.
    oldest: HashMap<Uuid, Duration>,
    /// Whose webhooks wait longer than usual.
    overdue: HashMap<Uuid, (u64, Duration)>,
    partners: Vec<Partner>,
    number: i64,
    hours: HashMap<Uuid, Vec<u64>>,
}

/// The partners in the order that is asked for; those that come first in it by a value of theirs.
fn first(sort: &str, found: &Found) -> Vec<Uuid> {
    fn by<Value: Ord>(values: impl Iterator<Item = (Value, Uuid)>) -> Vec<Uuid> {
        let mut all: Vec<(Value, Uuid)> = values.collect();
        all.sort_unstable();
        all.into_iter().map(|(_, id)| id).collect()
    }
    let lately = || found.lately.iter();
    let orders = |id: &Uuid| Reverse(found.lately.get(id).map_or(0, |one| one.orders));
    match sort {
        "name" => Vec::new(),
        "orders" => by(lately()
            .filter(|(_, one)| one.orders > 0)
            .map(|(id, one)| (Reverse(one.orders), *id))),
        "last" => by(lately().filter_map(|(id, one)| Some((one.last?, *id)))),
        "oldest" => by(found.oldest.iter().map(|(id, age)| (Reverse(*age), *id))),
        "refused" => by(lately()
            .filter(|(_, one)| one.refused > 0)
            .map(|(id, one)| (Reverse(one.refused), *id))),
        _ => by(found.health.iter().map(|(id, badges)| {
            let is_bad = badges.iter().any(|(class, _)| *class == "bad");
            ((!is_bad, orders(id)), *id)
        })),
    }
}

async fn found(
    app: &App,
    visit: &Visit<Viewer>,
    (from, most): (i64, i64),
) -> Result<Found, Problem> {
    let query = &visit.query;
    let times = &visit.session.times;
    let which = chosen(query).map(|(.., which)| *which);
    let (look, _) = app.figures().look(app.database()).await?;
    let lately = app.figures().activities(app.database()).await?;
    let mut oldest = oldest(&look.report, times);
    for (id, one) in lately.iter() {
        if let Some(since) = one.oldest {
            let age = oldest.entry(*id).or_default();
            *age = (*age).max(times.now - since);
        }
    }
    let report = &look.report;
    let mut of_all = report.of_all(true).filter(|one| one.needs_person());
    let mut found = Found {
        of_all: of_all.next().map(|one| {
            let told = one.told();
            (class_of(told.severity), told.what, of_all.count())
        }),
        test: report.of_all(false).map(Finding::severity).max(),
        live: report.of_all(true).map(Finding::severity).max(),
        health: health(report, &lately, times),
        lately,
        oldest,
        overdue: overdue(report),
        partners: Vec::new(),
        number: 0,
        hours: HashMap::new(),
    };
    let first = first(sorted(query).0, &found);
    let among: Option<Vec<Uuid>> = match which {
        Some(Which::Problem) => Some(found.health.keys().copied().collect()),
        Some(Which::Quiet) => Some(found.quiet().collect()),
        _ => None,
    };
    let wanted = PartnerFilter {
        named: query.get("partner").unwrap_or_default(),
        environment: match which {
            Some(Which::Live) => Some(Environment::Live),
            Some(Which::Sandbox) => Some(Environment::Sandbox),
            _ => None,
        },
        only_disabled: which == Some(Which::Disabled),
        among: among.as_deref(),
    };
    let read = async |connection: &mut PgConnection| {
        let page = partners::page(&mut *connection, &wanted, &first, (from, most)).await?;
        // A file has no pictures.
        let shown = page
            .0
            .iter()
            .take(usize::try_from(PAGE).unwrap_or_default());
        let shown: Vec<Uuid> = shown.map(|one| one.partner_id).collect();
        let hours = partners_lately::orders(connection, &shown, (Duration::HOUR, 24), times.now);
        Ok::<_, pg::Error>((page, hours.await?))
    };
    ((found.partners, found.number), found.hours) = app.database().run(read).await?;
    Ok(found)
}

impl Found {
    fn quiet(&self) -> impl Iterator<Item = Uuid> {
        let quiet = self.lately.iter().filter(|(_, one)| one.usual.is_some());
        quiet.map(|(id, _)| *id)
    }

    fn lately(&self, partner: &Partner) -> PartnerActivity {
        let known = self.lately.get(&partner.partner_id);
        known.copied().unwrap_or_default()
    }

    /// What is wrong with a partner, or what its good state rests on.
    fn badges(&self, partner: &Partner) -> Badges {
        let mut badges = self
            .health
            .get(&partner.partner_id)
            .cloned()
            .unwrap_or_default();
        if partner.disabled_at.is_some() {
            let (standing, class) = standing(partner);
            badges.insert(0, (class, standing.to_owned()));
        }
        // That nothing was found is not enough to say that it is well.
        if badges.is_empty() {
            let is_live = partner.environment == Environment::Live.as_str();
            let of_all = if is_live { self.live } else { self.test };
            let overdue = self.overdue.get(&partner.partner_id);
            badges.push(match (of_all, self.lately(partner).orders) {
                (None, _) if overdue.is_some() => {
                    let webhooks = overdue.map_or(0, |(webhooks, _)| *webhooks);
                    let wait = counted(webhooks, "webhook waits", "webhooks wait");
                    ("warn", wait)
                }
                (Some(severity), _) => (class_of(severity), "kept back, as all are".to_owned()),
                (None, 0) => ("", "no order, 24 h".to_owned()),
                (None, orders) => ("good", format!("{} taken, 24 h", counts(orders))),
            });
        }
        badges.sort_by_key(|(class, _)| weight(class));
        badges
    }

    fn row(&self, partner: &Partner, times: &Times) -> Row {
        let lately = self.lately(partner);
        let oldest = self.oldest.get(&partner.partner_id).copied();
        Row {
            id: partner.partner_id.to_string(),
            health: self.badges(partner),
            is_sandbox: partner.environment == Environment::Sandbox.as_str(),
            hours: match (self.hours.get(&partner.partner_id), lately.usual) {
                (Some(hours), _) => spark(hours),
                (None, Some(usual)) => format!("none; usually {} a day", number(usual)),
                (None, None) => "none".to_owned(),
            },
            orders: counts(lately.orders),
            last: lately.last.map(|at| times.both(at)).unwrap_or_default(),
            oldest: oldest.map_or_else(|| "–".to_owned(), brief),
            refused: number(lately.refused),
            name: partner.name.clone(),
        }
    }
}

/// How many orders there were. More than a bound are not counted.
fn counts(orders: u64) -> String {
    let plus = if orders < pg::count(MOST_ORDERS) {
        ""
    } else {
        "+"
    };
    format!("{}{plus}", number(orders))
}

fn chosen(query: &FormFields) -> Option<&'static (&'static str, &'static str, Which)> {
    let asked = query.get("state");
    TABS.iter().find(|(key, ..)| Some(*key) == asked)
}

fn sorted(query: &FormFields) -> &'static (&'static str, &'static str, &'static str, &'static str) {
    let asked = query.get("sort").unwrap_or_default();
    let known = SORTS.iter().find(|(key, ..)| *key == asked);
    known.unwrap_or(&SORTS[1])
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let query = &visit.query;
    let from: u32 = query
        .get("before")
        .and_then(|from| from.parse().ok())
        .unwrap_or(0);
    let from = i64::from(from);
    let found = found(&app, &visit, (from, PAGE)).await?;
    let state = chosen(query).map_or("", |(key, ..)| *key);
    let (sort, ..) = sorted(query);
    let tab = |name, key: &str| Tab {
        name,
        path: with(PATH, query, &[("state", key), ("before", "")]),
        current: key == state,
        count: match key {
            "problem" => Some(number(found.health.len())),
            "quiet" => Some(number(found.quiet().count())),
            "" => Some(number(found.lately.len())),
            "live" | "sandbox" => {
                let is_asked = |one: &&PartnerActivity| one.is_live == (key == "live");
                Some(number(found.lately.values().filter(is_asked).count()))
            }
            _ => None,
        },
    };
    let tabs = TABS.iter().map(|(key, name, _)| tab(*name, key));
    let head = |(key, _, name, goes): &(&'static str, _, &'static str, _)| Head {
        name,
        path: with(PATH, query, &[("sort", *key), ("before", "")]),
        sorted: (key == sort).then_some(*goes),
        is_number: !["", "name", "last"].contains(key),
    };
    let times = &visit.session.times;
    let rows: Vec<Row> = found
        .partners
        .iter()
        .map(|one| found.row(one, times))
        .collect();
    let next = from + i64::try_from(rows.len()).unwrap_or_default();
    page(&Page {
        shell: Shell::new(&app, &visit.session, PATH, "Partners"),
        of_all: found.of_all.clone(),
        tabs: std::iter::once(tab("All", "")).chain(tabs).collect(),
        named: query.get("partner").unwrap_or_default().to_owned(),
        state,
        sorts: (SORTS.iter())
            .map(|(key, name, ..)| (*key, *name, key == sort))
            .collect(),
        heads: SORTS.iter().map(head).collect(),
        foot: if rows.is_empty() {
            "No partner fits.".to_owned()
        } else {
            format!(
                "{} to {} of {} · quiet: no order for 24 h from a partner that ordered on 5 of the last 7 days · \
                 the bars of each row have their own scale",
                number(from + 1),
                number(next),
                counted(found.number, "partner", "partners")
            )
        },
        csv: with(&format!("{PATH}.csv"), query, &[("before", "")]),
        number: number(found.number),
        older: (next < found.number).then(|| with(PATH, query, &[("before", &next.to_string())])),
        newest: (from > 0).then(|| with(PATH, query, &[("before", "")])),
        rows,
    })
}

/// The partners of these filters in this order as CSV, in UTC.
pub(crate) async fn csv(State(app): State<App>, visit: Visit<Viewer>) -> Result<Response, Problem> {
    let most = i64::try_from(lists::CSV).unwrap_or(i64::MAX);
    let found = found(&app, &visit, (0, most)).await?;
    let head = [
        "partner",
        "partner_id",
        "environment",
        "health",
        "orders_24h",
        "last_order_utc",
        "oldest_waits_seconds",
        "refused_24h",
    ];
    let row = |partner: &Partner| {
        let lately = found.lately(partner);
        let health: Vec<String> = found
            .badges(partner)
            .into_iter()
            .map(|(_, text)| text)
            .collect();
        let oldest = found.oldest.get(&partner.partner_id);
        [
            partner.name.clone(),
            partner.partner_id.to_string(),
            partner.environment.clone(),
            health.join("; "),
            lately.orders.to_string(),
            instant(lately.last),
            or_empty(oldest.map(|age| age.whole_seconds())),
            lately.refused.to_string(),
        ]
    };
    Ok(lists::csv(
        "partners",
        &head,
        found.partners.iter().map(row),
    ))
}

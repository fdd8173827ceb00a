//! What is to be known of a partner, from all that concerns it: the findings about it and about
//! all, its orders that wait, its keys and its silence; and what its good state rests on.

use std::collections::{BTreeMap, HashMap};

use accounts::partners::Partner;
use desk::operator::{
    health::{FindingKind, HealthReport, partner::WaitingOrders, waiting::WaitingQueue},
    minute::minute,
    partner_day::PartnerDay,
};
use domain::{Environment, PartnerId, standing::EndpointState};
use store::{deliveries::endpoints::ListedEndpoint, figures::Count};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::{
    format::{brief, counted, number, relative},
    pages::issues::{Issue, class_of, issue, weight},
    times::Times,
};

/// Something that was looked at: how it is coloured, what it is, and the figure.
pub(crate) type Check = (&'static str, &'static str, String);

/// What is known of a partner.
pub(crate) struct PartnerFacts {
    pub(crate) partner: Partner,
    pub(crate) endpoints: Vec<ListedEndpoint>,
    /// The tries of a day, by endpoint.
    pub(crate) attempts: BTreeMap<String, Count>,
    pub(crate) day: PartnerDay,
    /// When its last order came.
    pub(crate) last: Option<OffsetDateTime>,
    /// Its orders that wait for a provider.
    pub(crate) waiting: Vec<WaitingOrders>,
    /// How many orders it sent on a day before, if it is quiet now.
    pub(crate) usual: Option<u64>,
}

impl PartnerFacts {
    /// All tries of its webhooks in a day.
    fn tries(&self) -> Count {
        let mut all = Count::default();
        for count in self.attempts.values() {
            all.merge(count);
        }
        all
    }

    /// How long its oldest webhook, purchase or order has waited.
    pub(crate) fn oldest(&self, report: &HealthReport, times: &Times) -> String {
        let orders = self.waiting.iter().map(|one| times.now - one.since);
        let others = oldest(report, times).remove(&self.partner.partner_id);
        let oldest = orders.chain(others).max();
        oldest.map_or_else(|| "–".to_owned(), brief)
    }
}

/// How long the oldest webhook of each partner has been due, or its oldest purchase on hold has
/// waited.
pub(crate) fn oldest(report: &HealthReport, times: &Times) -> HashMap<Uuid, Duration> {
    let queues = report.waiting.queues.iter();
    let webhooks = queues.filter_map(|(queue, backlog)| match queue {
        WaitingQueue::Endpoint { partner_id, .. } if backlog.oldest > 0.0 => {
            Some((*partner_id, Duration::seconds_f64(backlog.oldest)))
        }
        _ => None,
    });
    let parked = report.findings.iter().filter_map(|one| match &one.kind {
        FindingKind::Parked { purchases, .. } => Some(purchases),
        _ => None,
    });
    let parked = parked.flatten();
    let parked = parked.map(|one| (one.partner_id.uuid(), times.now - one.since()));
    let mut all: HashMap<Uuid, Duration> = HashMap::new();
    for (partner, age) in webhooks.chain(parked) {
        let oldest = all.entry(partner).or_default();
        *oldest = age.max(*oldest);
    }
    all
}

/// How a partner does, and how that is coloured.
pub(crate) fn verdict(known: &PartnerFacts, issues: &[Issue]) -> (&'static str, String) {
    let is_idle = known.day.orders() == 0;
    match issues {
        // That nothing was found is not enough to say that it is well.
        [] if is_idle => (
            "quiet",
            "Nothing is known to keep its orders back, but none came in 24 hours".to_owned(),
        ),
        [] => {
            let tries = known.tries();
            let most_fail = tries.n > 0 && tries.failed.saturating_mul(2) >= tries.n;
            (if most_fail { "warn" } else { "good" }, well(known))
        }
        [first, others @ ..] => {
            // They are in the order of their weight.
            let class = if first.class.is_empty() {
                "warn"
            } else {
                first.class
            };
            let things = counted(others.len() + 1, "thing is", "things are");
            (class, format!("{things} to be known of it"))
        }
    }
}

/// What a good verdict rests on.
fn well(known: &PartnerFacts) -> String {
    let orders = counted(known.day.orders(), "order was", "orders were");
    let tries = known.tries();
    let taken = number(tries.n.saturating_sub(tries.failed));
    let plus = if known.day.is_part() { "at least " } else { "" };
    format!(
        "Nothing keeps its orders back: in 24 hours {plus}{orders} stored, and {taken} of {} \
         of webhooks were taken",
        counted(tries.n, "try", "tries")
    )
}

/// All that concerns a partner, the gravest first.
pub(crate) fn issues(known: &PartnerFacts, report: &HealthReport, times: &Times) -> Vec<Issue> {
    let id = PartnerId::from(known.partner.partner_id);
    let is_live = known.partner.environment == Environment::Live.as_str();
    let of_report = report.of_partner(id, is_live, &known.waiting);
    let failing = known
        .endpoints
        .iter()
        .filter(|one| one.failures > 0 && one.state == EndpointState::Open);
    let mut all: Vec<Issue> = account(known, times)
        .into_iter()
        .chain(of_report.iter().map(|one| issue(one, times)))
        .chain(known.waiting.iter().map(|one| waiting(one, times)))
        .chain(failing.map(|one| fails(one, times)))
        .chain(quiet(known, times))
        .collect();
    all.sort_by_key(|one| weight(one.class));
    all
}

fn own(class: &'static str, since: Option<OffsetDateTime>, times: &Times) -> Issue {
    Issue {
        class,
        since: since.map(|at| times.clock(at)).unwrap_or_default(),
        ago: since.map(|at| times.ago(at)).unwrap_or_default(),
        ..Issue::default()
    }
}

/// What is wrong with its account and its keys.
fn account(known: &PartnerFacts, times: &Times) -> Vec<Issue> {
    let partner = &known.partner;
    let page = Some(format!("/partners/{}/access", partner.partner_id));
    let mut all = Vec::new();
    if let Some(at) = partner.disabled_at {
        all.push(Issue {
            what: "it is disabled: each of its requests gets a 401".to_owned(),
            felt: "Its customers get nothing until it is enabled.".to_owned(),
            remedy: "an operator enables it when the reason has ended".to_owned(),
            page: page.clone(),
            text: Some(format!(
                "Since {}, your account is disabled, so your requests get status 401. Please write to us.",
                minute(at)
            )),
            ..own("bad", Some(at), times)
        });
    }
    let until = partner.old_keys_until.filter(|until| *until > times.now);
    match until {
        None if partner.keys_ended => all.push(Issue {
            what: "it has no valid key: each of its requests gets a 401".to_owned(),
            felt: "Its customers get nothing until it has a new one.".to_owned(),
            remedy: "an operator makes new keys when the partner can take them".to_owned(),
            page,
            text: Some(
                "Your access key was ended, so your requests get status 401. Please tell us where to send a new one."
                    .to_owned(),
            ),
            ..own("bad", None, times)
        }),
        None => {}
        Some(until) => all.push(Issue {
            what: format!("its old key ends {}", relative(times.now, until)),
            felt: "Nobody now. What still signs with it then gets a 401.".to_owned(),
            remedy: "remind the partner to use the new key everywhere".to_owned(),
            page,
            text: Some(format!(
                "Your old access key ends {}. Please use the new one in all your programs before.",
                minute(until)
            )),
            ..own("", None, times)
        }),
    }
    all
}

/// Its orders that wait for a provider.
fn waiting(one: &WaitingOrders, times: &Times) -> Issue {
    let names: Vec<&str> = one.oldest.iter().map(|(_, name)| name.as_str()).collect();
    Issue {
        what: format!(
            "{} for {}",
            counted(one.number, "of its orders waits", "of its orders wait"),
            one.provider
        ),
        felt: format!("The customers of {}.", names.join(", ")),
        remedy: "see on the page of the provider whether it buys; the orders go on by themselves"
            .to_owned(),
        page: Some(format!("/providers#{}", one.provider)),
        text: Some(one.for_partner()),
        ..own(class_of(one.severity(times.now)), Some(one.since), times)
    }
}

/// An endpoint that fails and is not blocked yet.
fn fails(endpoint: &ListedEndpoint, times: &Times) -> Issue {
    let host = endpoint.host();
    let (wait, again) = match endpoint.pending {
        0 => (String::new(), String::new()),
        pending => {
            let wait = counted(pending, "webhook waits", "webhooks wait");
            let again = format!("; {wait} and will be sent again by themselves");
            (format!(": {wait}"), again)
        }
    };
    Issue {
        what: format!("its endpoint {host} fails and is tried again{wait}"),
        felt: "This partner gets these webhooks late.".to_owned(),
        remedy: "nothing at first: it is tried again by itself; tell the partner".to_owned(),
        page: Some(format!(
            "/webhooks?partner={}&endpoint={}",
            endpoint.partner_id, endpoint.endpoint_id
        )),
        text: Some(format!(
            "Your endpoint {host} has not taken our last webhooks{again}."
        )),
        ..own("", endpoint.failing_since, times)
    }
}

fn quiet(known: &PartnerFacts, times: &Times) -> Option<Issue> {
    let usual = counted(known.usual?, "order", "orders");
    let last = known.last?;
    Some(Issue {
        what: format!(
            "it has been quiet for {}; on a day before it sent {usual}",
            brief(times.now - last)
        ),
        felt: "Its customers, if it has not stopped on purpose.".to_owned(),
        remedy: "see whether its requests are refused; otherwise ask it".to_owned(),
        page: Some(format!("/partners/{}/refused", known.partner.partner_id)),
        text: Some(format!(
            "Since {}, no order of yours has come; before, you sent about {usual} a day. Is that on purpose?",
            minute(last)
        )),
        ..own("warn", Some(last), times)
    })
}

/// What was looked at. Only a figure is good; what has none is not known.
pub(crate) fn checks(known: &PartnerFacts, report: &HealthReport, times: &Times) -> [Check; 6] {
    let orders = known.day.orders();
    let earned = |class: &'static str| if orders == 0 { "" } else { class };
    let last = known.last.map(|last| relative(times.now, last));
    let worst = known
        .waiting
        .iter()
        .map(|one| one.severity(times.now))
        .max();
    let waiting: u64 = known.waiting.iter().map(|one| one.number).sum();
    let on_hold = report.findings.iter().filter_map(|one| match &one.kind {
        FindingKind::Parked { purchases, .. } => Some(purchases),
        _ => None,
    });
    let mine = on_hold
        .flatten()
        .filter(|one| one.partner_id.uuid() == known.partner.partner_id);
    let on_hold = mine.count();
    let tries = known.tries();
    let open = known
        .endpoints
        .iter()
        .filter(|one| one.state == EndpointState::Open && one.failures == 0);
    let open = open.count();
    let endpoints = known.endpoints.len();
    let refused = known.day.refused;
    let old_key = known.partner.old_keys_until;
    let keys = usize::from(!known.partner.keys_ended)
        + usize::from(old_key.is_some_and(|until| until > times.now));
    [
        (
            earned("good"),
            "Orders",
            match last {
                Some(last) => format!("{} in 24 h, the last one {last}", number(orders)),
                None => "none is stored".to_owned(),
            },
        ),
        (
            match worst {
                Some(worst) => class_of(worst),
                None if on_hold > 0 => "warn",
                None => earned("good"),
            },
            "Waiting for a provider",
            format!(
                "{}, and {} on hold",
                counted(waiting, "order", "orders"),
                number(on_hold)
            ),
        ),
        (
            match (tries.n, tries.failed) {
                (0, _) => "",
                (_, 0) => "good",
                _ => "warn",
            },
            "Webhooks taken",
            format!(
                "{} of {} in 24 h",
                number(tries.n.saturating_sub(tries.failed)),
                counted(tries.n, "try", "tries")
            ),
        ),
        (
            if open < endpoints.max(1) {
                "warn"
            } else if tries.n > 0 {
                "good"
            } else {
                ""
            },
            "Endpoints",
            format!("{} of {} can be sent to", number(open), number(endpoints)),
        ),
        (
            if refused > 0 { "warn" } else { earned("good") },
            "Refused requests",
            format!(
                "{}, beside {}",
                number(refused),
                counted(orders, "order", "orders")
            ),
        ),
        (
            match keys {
                0 => "bad",
                1 => "good",
                _ => "",
            },
            "Keys",
            counted(keys, "is valid", "are valid"),
        ),
    ]
}

//! What is to be known of a partner, from all that concerns it: the findings about it and about
//! all, its orders that wait, its keys and its silence. What was looked at is in
//! [`super::partner_checks`].

use std::collections::{BTreeMap, HashMap};

use accounts::partners::{Partner, keys::FurtherKey};
use desk::operator::{
    health::{
        Finding, FindingKind, HealthReport, finding::LATE, partner::WaitingOrders,
        waiting::WaitingQueue,
    },
    minute::minute,
    partner_day::PartnerDay,
};
use domain::{Environment, PartnerId, standing::EndpointState};
use store::{deliveries::endpoints::ListedEndpoint, figures::Count};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::{
    access::ConsoleSession,
    format::{brief, counted, number, relative},
    pages::issues::{Concern, Issue, class_of, issue, weight},
    times::Times,
};

/// What is known of a partner.
pub(crate) struct PartnerFacts {
    pub(crate) partner: Partner,
    /// Its keys beside the first one.
    pub(crate) further: Vec<FurtherKey>,
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
    pub(super) fn tries(&self) -> Count {
        let mut all = Count::default();
        for count in self.attempts.values() {
            all.merge(count);
        }
        all
    }

    /// Whether each of its newest orders was taken, and none waits or was denied.
    fn orders_go(&self) -> bool {
        let newest = self.day.newest();
        let taken = newest.is_some_and(|(_, hour)| hour.failed == 0 && hour.taken > 0);
        taken && self.waiting.is_empty() && self.day.denied == 0
    }

    /// The keys that may order no more today, because the units of their limits are used up.
    pub(crate) fn used_up(&self) -> Option<String> {
        let full = |key: &&FurtherKey| {
            let limit = key.units_per_day.map(i64::from);
            limit.is_some_and(|limit| key.units_today >= limit)
        };
        let full = self.further.iter().filter(full);
        let full = full.map(|key| {
            let limit = key.units_per_day.map_or(0, u64::from);
            format!(
                "“{}” has used its {} of today",
                key.name,
                counted(limit, "unit", "units")
            )
        });
        let full: Vec<String> = full.collect();
        (!full.is_empty()).then(|| format!("{}, until 00:00 UTC", full.join(" and ")))
    }

    /// How long its oldest webhook, purchase or order has waited.
    pub(crate) fn oldest(&self, report: &HealthReport, times: &Times) -> String {
        let orders = self.waiting.iter().map(|one| times.now - one.since);
        let others = oldest(report, times).remove(&self.partner.partner_id);
        let oldest = orders.chain(others).max();
        oldest.map_or_else(|| "–".to_owned(), brief)
    }
}

/// How long the oldest webhook of each partner has been due or has waited for an endpoint that
/// fails, or its oldest purchase on hold has waited.
pub(crate) fn oldest(report: &HealthReport, times: &Times) -> HashMap<Uuid, Duration> {
    let queues = report.waiting.queues.iter();
    let webhooks = queues.filter_map(|(queue, backlog)| match queue {
        WaitingQueue::Endpoint { partner_id, .. } if backlog.oldest > 0.0 => {
            Some((*partner_id, Duration::seconds_f64(backlog.oldest)))
        }
        _ => None,
    });
    // Between its tries a webhook is not due, and waits all the same.
    let failing = report.endpoints.iter().filter(|one| one.pending > 0);
    let failing = failing.filter_map(|one| Some((one.partner_id, times.now - one.failing_since?)));
    let parked = report.findings.iter().filter_map(|one| match &one.kind {
        FindingKind::Parked { purchases, .. } => Some(purchases),
        _ => None,
    });
    let parked = parked.flatten();
    let parked = parked.map(|one| (one.partner_id.uuid(), times.now - one.since()));
    let mut all: HashMap<Uuid, Duration> = HashMap::new();
    for (partner, age) in webhooks.chain(failing).chain(parked) {
        let oldest = all.entry(partner).or_default();
        *oldest = age.max(*oldest);
    }
    all
}

/// How a partner does: how that is coloured, the figure that it begins with, and what is to be
/// known beside that.
pub(crate) fn verdict(
    known: &PartnerFacts,
    issues: &[Issue],
    times: &Times,
) -> (&'static str, String, String) {
    match issues {
        [] => of_figures(known),
        [first, others @ ..] => {
            // They are in the order of their weight.
            let class = if first.class.is_empty() {
                "warn"
            } else {
                first.class
            };
            let things = counted(others.len() + 1, "thing is", "things are");
            let of = |concern: Concern| issues.iter().filter(|one| one.concern == concern).count();
            let whose = [
                (of(Concern::Ours), "on our side"),
                (of(Concern::Provider), "at a provider"),
                (of(Concern::Partner), "on its own side"),
            ];
            let whose: Vec<(usize, &str)> = whose.into_iter().filter(|(of, _)| *of > 0).collect();
            let whose = match &whose[..] {
                // All of them, which were counted before.
                [(_, whose)] => format!(", {whose}"),
                several => {
                    let each = several.iter().map(|(of, whose)| format!("{of} {whose}"));
                    format!(": {}", each.collect::<Vec<_>>().join(", "))
                }
            };
            let orders = match lately(known, times) {
                Some(lately) => format!("{lately} were taken{}{}", denied(known), wait(known)),
                None => format!("It sent no order in 24 hours{}", wait(known)),
            };
            // What fails comes first: a warning that begins with good news is read as none.
            let tries = known.tries();
            let first = if known.orders_go() && tries.failed > 0 {
                format!(
                    "{} of {} of its webhooks failed in 24 hours; {orders}",
                    number(tries.failed),
                    counted(tries.n, "try", "tries")
                )
            } else {
                orders
            };
            let known = format!("{things} to be known of it{whose}");
            (class, first, known)
        }
    }
}

/// How many of its newest orders were taken: `31 of 31 orders since 17:00`.
pub(crate) fn lately(known: &PartnerFacts, times: &Times) -> Option<String> {
    let (at, hour) = known.day.newest()?;
    let all = hour.taken.saturating_add(hour.failed);
    let orders = counted(all, "order", "orders");
    let since = times.axis(at, false);
    Some(format!("{} of {orders} since {since}", number(hour.taken)))
}

/// How many of its requests were denied, which are no orders, after the first words of a verdict.
fn denied(known: &PartnerFacts) -> String {
    match known.day.denied {
        0 => String::new(),
        all => format!("; {} got a 401", counted(all, "request", "requests")),
    }
}

/// How many of its orders wait for a provider, after the first words of a verdict.
fn wait(known: &PartnerFacts) -> String {
    match known.waiting.iter().map(|one| one.number).sum::<u64>() {
        0 => String::new(),
        orders => format!("; {}", counted(orders, "one waits", "wait")),
    }
}

/// What a verdict rests on where nothing was found, which is not enough to say that it is well.
fn of_figures(known: &PartnerFacts) -> (&'static str, String, String) {
    let (taken, all) = known.day.taken();
    let tries = known.tries();
    let webhooks = match tries.n {
        0 => "No webhook was sent to it in 24 hours".to_owned(),
        all => format!(
            "{} of {} of its webhooks were taken in 24 hours",
            number(all.saturating_sub(tries.failed)),
            counted(all, "try", "tries")
        ),
    };
    if all == 0 {
        let none = "Nothing is known to keep its orders back, but none came in 24 hours";
        return ("quiet", none.to_owned(), webhooks);
    }
    let plus = if known.day.is_part() { "at least " } else { "" };
    let taken_of = format!(
        "{} of {plus}{} in 24 hours",
        number(taken),
        counted(all, "order was taken", "orders were taken")
    );
    let most_fail = |failed: u64, all: u64| all > 0 && failed.saturating_mul(2) >= all;
    if most_fail(all.saturating_sub(taken), all) || most_fail(tries.failed, tries.n) {
        return ("warn", taken_of, webhooks);
    }
    let requests = all.saturating_add(known.day.denied);
    if most_fail(known.day.denied, requests) {
        return ("warn", format!("{taken_of}{}", denied(known)), webhooks);
    }
    if let Some(full) = known.used_up() {
        return ("warn", format!("Its key {full}: {taken_of}"), webhooks);
    }
    let well = format!("Nothing keeps its orders back: {taken_of}");
    ("good", well, webhooks)
}

/// All that concerns a partner, the gravest first.
pub(crate) fn issues(
    known: &PartnerFacts,
    report: &HealthReport,
    session: &ConsoleSession,
) -> Vec<Issue> {
    let times = &session.times;
    let id = PartnerId::from(known.partner.partner_id);
    let is_live = known.partner.environment == Environment::Live.as_str();
    let of_report = report.of_partner(id, is_live, &known.waiting);
    let failing = known
        .endpoints
        .iter()
        .filter(|one| one.failures > 0 && one.state == EndpointState::Open);
    let mut all: Vec<Issue> = account(known, times)
        .into_iter()
        .chain(of_report.iter().map(|one| own_of(one, known, session)))
        .chain(known.waiting.iter().map(|one| waiting(one, times)))
        .chain(failing.map(|one| fails(one, times)))
        .chain(quiet(known, times))
        .collect();
    // What says why they wait stands above.
    if all.is_empty() {
        all.extend(webhooks_wait(known, report, times));
    }
    all.extend(unlisted(report));
    all.sort_by_key(|one| weight(one.class));
    all
}

/// A finding on the page of the partner, which it need not name.
fn own_of(one: &Finding, known: &PartnerFacts, session: &ConsoleSession) -> Issue {
    let issue = issue(one, session);
    let is_its_name = issue.who == known.partner.name;
    let its_page = format!("/partners/{}", known.partner.partner_id);
    Issue {
        who: if is_its_name {
            String::new()
        } else {
            issue.who
        },
        page: issue.page.filter(|(path, _)| *path != its_page),
        command: None,
        ..issue
    }
}

/// Something of the partner itself.
fn own(class: &'static str, since: Option<OffsetDateTime>, times: &Times) -> Issue {
    Issue {
        class,
        since: since.map(|at| times.clock(at)).unwrap_or_default(),
        ago: since.map(|at| times.ago(at)).unwrap_or_default(),
        concern: Concern::Partner,
        ..Issue::default()
    }
}

/// What is wrong with its account and its keys.
fn account(known: &PartnerFacts, times: &Times) -> Vec<Issue> {
    let partner = &known.partner;
    let page = Some((
        format!("/partners/{}/access", partner.partner_id),
        "Its keys and limits".to_owned(),
    ));
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
        page: Some((
            format!("/providers#{}", one.provider),
            format!("Provider {}", one.provider),
        )),
        text: Some(one.for_partner()),
        concern: Concern::Provider,
        ..own(class_of(one.severity(times.now)), Some(one.since), times)
    }
}

/// Purchases that are on hold beyond those that were read: whose they are is not known.
fn unlisted(report: &HealthReport) -> Option<Issue> {
    let mut findings = report.findings.iter();
    findings.find_map(|one| match &one.kind {
        FindingKind::Parked {
            provider,
            purchases,
            ..
        } if purchases.is_empty() => Some(Issue {
            what: format!(
                "more purchases are on hold at {provider} than were read, so some may be its own"
            ),
            felt: "Its customers, if they wait for one of them.".to_owned(),
            remedy: "look at its orders that are under way".to_owned(),
            concern: Concern::Provider,
            ..Issue::default()
        }),
        _ => None,
    })
}

/// How long the oldest webhook of each partner has been due, if that is longer than usual.
pub(crate) fn overdue(report: &HealthReport) -> HashMap<Uuid, (u64, Duration)> {
    let mut all: HashMap<Uuid, (u64, Duration)> = HashMap::new();
    for (queue, backlog) in &report.waiting.queues {
        if let WaitingQueue::Endpoint { partner_id, .. } = queue
            && backlog.oldest >= LATE
        {
            let (webhooks, oldest) = all.entry(*partner_id).or_default();
            *webhooks += backlog.waiting();
            *oldest = (*oldest).max(Duration::seconds_f64(backlog.oldest));
        }
    }
    all
}

/// Webhooks that wait for longer than usual, although nothing says why.
fn webhooks_wait(known: &PartnerFacts, report: &HealthReport, times: &Times) -> Option<Issue> {
    let id = known.partner.partner_id;
    let (webhooks, oldest) = *overdue(report).get(&id)?;
    let since = times.now - oldest;
    let wait = counted(webhooks, "webhook waits", "webhooks wait");
    Some(Issue {
        what: format!("{wait}, the oldest for {}", brief(oldest)),
        felt: "This partner gets these webhooks late.".to_owned(),
        remedy: "see when they are tried next".to_owned(),
        page: Some((
            format!("/webhooks?partner={id}&state=pending"),
            "Its webhooks".to_owned(),
        )),
        text: Some(format!(
            "Since {}, our webhooks to you are delayed. They are sent by themselves.",
            minute(since)
        )),
        concern: Concern::Ours,
        ..own("warn", Some(since), times)
    })
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
        page: Some((
            format!(
                "/webhooks?partner={}&endpoint={}",
                endpoint.partner_id, endpoint.endpoint_id
            ),
            "Its webhooks".to_owned(),
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
        page: Some((
            format!("/partners/{}/refused", known.partner.partner_id),
            "Its refused requests".to_owned(),
        )),
        text: Some(format!(
            "Since {}, no order of yours has come; before, you sent about {usual} a day. Is that on purpose?",
            minute(last)
        )),
        ..own("warn", Some(last), times)
    })
}

#[cfg(test)]
mod tests {
    use desk::operator::{
        health::{samples, stages::Stage, waiting::QueueBacklog},
        partner_day::PartnerHour,
    };
    use domain::Stored;
    use time::macros::datetime;

    use super::*;
    use crate::{access::OperatorRole, pages::partner_checks::checks};

    const AT: OffsetDateTime = datetime!(2026-11-28 12:00 UTC);

    /// Numbers that a seed decides.
    struct Random(u64);

    impl Random {
        /// One below `most`.
        fn below(&mut self, most: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.0 >> 33) % most
        }

        fn one_in(&mut self, chance: u64) -> bool {
            self.below(chance) == 0
        }
    }

    fn session() -> ConsoleSession {
        let mut times = Times::default();
        times.now = AT;
        ConsoleSession {
            operator: "ana".to_owned(),
            role: OperatorRole::Support,
            secret: "secret".into(),
            from: String::new(),
            said: None,
            times,
        }
    }

    fn partner(random: &mut Random) -> Partner {
        Partner {
            partner_id: Uuid::nil(),
            name: "Acme".to_owned(),
            environment: if random.one_in(2) { "live" } else { "sandbox" }.to_owned(),
            access_key: "ak_1".to_owned(),
            has_secret_key: true,
            keys_ended: random.one_in(9),
            old_access_key: None,
            old_keys_until: None,
            webhook_url: None,
            webhook_events: Vec::new(),
            old_webhook_secret_until: None,
            max_in_flight: None,
            requests_per_second: None,
            orders_per_second: None,
            units_per_second: None,
            signed_body_required: false,
            disabled_at: random.one_in(9).then_some(AT),
            created_at: AT,
        }
    }

    /// A further key, sometimes one that has used up its units of today.
    fn further(random: &mut Random) -> Vec<FurtherKey> {
        let key = FurtherKey {
            key_id: Uuid::nil(),
            name: "checkout".to_owned(),
            access_key: "ak_2".to_owned(),
            rights: vec!["order".to_owned()],
            networks: Vec::new(),
            units_per_day: Some(25),
            units_today: if random.one_in(3) { 25 } else { 24 },
            last_used_at: None,
            created_at: AT,
        };
        random.one_in(4).then_some(key).into_iter().collect()
    }

    fn endpoint(random: &mut Random) -> ListedEndpoint {
        let failures = if random.one_in(4) { 3 } else { 0 };
        ListedEndpoint {
            endpoint_id: Uuid::nil(),
            partner_id: Uuid::nil(),
            name: "Acme".to_owned(),
            webhook_url: Some("https://hooks.example.com/".to_owned()),
            state: Stored::Known(EndpointState::Open),
            blocked_until: None,
            failures,
            failing_since: (failures > 0).then_some(AT),
            pending: 0,
            exhausted: 0,
            exhausted_since: None,
            read_at: AT,
        }
    }

    /// A webhook that is tried again in some minutes is not due, and its first try was long ago.
    #[test]
    fn what_waits_for_an_endpoint_that_fails_waits_since_it_fails() {
        let times = session().times;
        let mut report = samples::report(AT, Vec::new());
        let queue = WaitingQueue::Endpoint {
            endpoint_id: Uuid::nil(),
            partner_id: Uuid::nil(),
        };
        let backlog = QueueBacklog {
            due: 1,
            oldest: 540.0,
            ..QueueBacklog::default()
        };
        report.waiting.queues.insert(queue, backlog);
        report.endpoints = vec![ListedEndpoint {
            failing_since: Some(AT - Duration::minutes(11)),
            pending: 1,
            ..endpoint(&mut Random(1))
        }];
        let waits = |report: &HealthReport| oldest(report, &times)[&Uuid::nil()];
        assert_eq!(waits(&report), Duration::minutes(11));
        report.endpoints[0].pending = 0;
        assert_eq!(waits(&report), Duration::minutes(9), "none waits for it");
    }

    fn known(random: &mut Random) -> PartnerFacts {
        PartnerFacts {
            partner: partner(random),
            further: Vec::new(),
            endpoints: vec![endpoint(random)],
            attempts: BTreeMap::new(),
            day: PartnerDay::default(),
            last: None,
            waiting: Vec::new(),
            usual: None,
        }
    }

    #[test]
    fn whose_matters_they_are_is_counted_only_if_they_are_of_several() {
        let known = known(&mut Random(1));
        let times = session().times;
        let of = |concern: Concern| Issue {
            concern,
            ..Issue::default()
        };
        let told = |issues: &[Issue]| verdict(&known, issues, &times).2;
        assert_eq!(
            told(&[of(Concern::Partner)]),
            "1 thing is to be known of it, on its own side"
        );
        assert_eq!(
            told(&[
                of(Concern::Ours),
                of(Concern::Partner),
                of(Concern::Partner)
            ]),
            "3 things are to be known of it: 1 on our side, 2 on its own side"
        );
    }

    /// The checks that are about what a stage does that is dead, whatever it did before.
    fn stopped(kind: &FindingKind) -> &'static [&'static str] {
        match kind {
            FindingKind::StageDead { stage, .. } => match stage {
                Stage::Ingress => &["Orders are taken"],
                Stage::Provisioner => &["Buying", "Getting the eSIMs"],
                Stage::Notifier => &["Sending webhooks"],
            },
            FindingKind::DatabaseDown { .. } => &[
                "Orders are taken",
                "Buying",
                "Getting the eSIMs",
                "Sending webhooks",
            ],
            _ => &[],
        }
    }

    /// Whether what is stored bears that a check is green.
    fn is_earned(name: &str, known: &PartnerFacts, tries: &Count) -> bool {
        let day = &known.day;
        let endpoint = &known.endpoints[0];
        let ordered = day.orders() > 0;
        let (taken, all) = day.taken();
        match name {
            "Orders are taken" => ordered && taken == all,
            "Buying" | "Getting the eSIMs" => ordered && known.waiting.is_empty(),
            "Purchases on hold" | "Quiet?" => ordered,
            "Sending webhooks" => tries.n > 0 && tries.failed == 0,
            "Its endpoints" => endpoint.failures == 0 && tries.n > tries.failed,
            "Addresses" => endpoint.webhook_url.is_some(),
            "Refused requests" => ordered && day.refused == 0,
            "Its limit" => ordered && day.limited == 0,
            "Keys" => {
                let valid = !known.partner.keys_ended || !known.further.is_empty();
                valid && day.denied == 0 && known.used_up().is_none()
            }
            _ => false,
        }
    }

    /// Whatever is stored: a partner whose orders or webhooks wait longer than usual or fail is not
    /// said to be well, and what is not known is not said to be good.
    #[test]
    fn no_partner_is_well_whose_orders_or_webhooks_wait_or_fail() {
        let samples = samples::samples(AT);
        let [mut well, mut green] = [0; 2];
        for seed in 0..4_000 {
            let random = &mut Random(seed * 7_919);
            let mut report = samples::report(AT, Vec::new());
            if random.one_in(3) {
                let nth = usize::try_from(random.below(u64::MAX)).unwrap_or(0) % samples.len();
                report.findings.push(samples[nth].clone());
            }
            let seconds = [1.0, 30.0, 59.0, 60.0, 61.0, 4_000.0]
                [usize::try_from(random.below(6)).unwrap_or(0)];
            let queue = WaitingQueue::Endpoint {
                endpoint_id: Uuid::nil(),
                partner_id: Uuid::nil(),
            };
            if random.one_in(2) {
                let backlog = QueueBacklog {
                    due: 1,
                    oldest: seconds,
                    oldest_overdue: seconds,
                    ..QueueBacklog::default()
                };
                report.waiting.queues.insert(queue.clone(), backlog);
            }
            let mut tries = Count::default();
            let failed = random.below(5);
            for nth in 0..random.below(5) {
                tries.note(Some(std::time::Duration::from_millis(50)), nth < failed);
            }
            let orders = random.below(3);
            let hour = PartnerHour {
                orders,
                taken: orders,
                failed: random.below(4).saturating_sub(1),
            };
            let waiting = random.one_in(6).then(|| WaitingOrders {
                provider: "usimsa".to_owned(),
                number: 1,
                since: AT - Duration::minutes(2),
                oldest: Vec::new(),
            });
            let known = PartnerFacts {
                partner: partner(random),
                further: further(random),
                endpoints: vec![endpoint(random)],
                attempts: [(String::new(), tries.clone())].into(),
                day: PartnerDay {
                    hours: [(AT, hour)].into(),
                    denied: random.below(2),
                    limited: random.below(2),
                    providers: if orders > 0 {
                        vec!["usimsa".to_owned()]
                    } else {
                        Vec::new()
                    },
                    half: (orders > 0).then_some(1.4),
                    most: (orders > 0).then_some(7.9),
                    refused: random.below(2),
                },
                last: (orders > 0).then_some(AT),
                waiting: waiting.into_iter().collect(),
                usual: random.one_in(9).then_some(40),
            };
            let is_live = known.partner.environment == "live";
            let issues = issues(&known, &report, &session());
            let (class, verdict, _) = verdict(&known, &issues, &session().times);
            let waits = report.waiting.queues.values().any(|one| one.oldest >= LATE)
                || !known.waiting.is_empty();
            let fails = known.endpoints[0].failures > 0
                || (tries.n > 0 && tries.failed * 2 >= tries.n)
                || hour.failed >= orders
                || known.partner.disabled_at.is_some()
                || known.used_up().is_some()
                || known.partner.keys_ended;
            let found = report.of_partner(Uuid::nil().into(), is_live, &known.waiting);
            let kept = found.iter().any(Finding::needs_person);
            if class == "good" {
                well += 1;
                assert!(orders > 0, "{seed}: {verdict}");
                assert!(!(waits || fails || kept), "{seed}: {verdict}");
            }
            let stopped: Vec<&str> = report
                .findings
                .iter()
                .flat_map(|one| stopped(&one.kind))
                .copied()
                .collect();
            for (class, name, figure) in checks(&known, &report, &session().times) {
                green += usize::from(class == "good");
                let is_earned = is_earned(&name, &known, &tries);
                assert!(class != "good" || is_earned, "{seed}: {name}: {figure}");
                assert!(
                    class != "good" || !stopped.contains(&&*name),
                    "{seed}: {name}: {figure}"
                );
            }
        }
        assert!(well > 100, "only {well} were well");
        assert!(green > 8_000, "only {green} checks were green");
    }
}

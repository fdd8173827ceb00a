//! The examination: what the database shows, judged in one place.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use domain::{Command, standing::EndpointState};
use pg::{
    Result,
    server::{self, ServerState},
};
use sqlx::PgConnection;
use store::{
    deliveries::endpoints::{self, ListedEndpoint},
    provider_lanes,
    providers::{self, BreakerState, ProviderBreaker},
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    answers::{self, OrdersLately},
    finding::{
        AffectedEnvironment, Clock, DurabilitySetting, Finding, FindingKind, LATE, Matter,
        VERY_LATE,
    },
    money::{self, MoneyState},
    owner,
    session::{self, ExaminedSession},
    slow,
    stages::{self, Stage, StageProcesses},
    waiting::{self, WaitingQueue, WaitingWork},
    webhooks,
};
use crate::{
    operator::{esim_changes, placements, words::noun},
    retention,
};

/// As in the alert `XidAgeHigh`.
const XID_HIGH: u64 = 500_000_000;
/// As in the alerts `LongTransaction`, `ArchiveLags`, `StandbyLags` and `RetentionBehind`, or a
/// little earlier, because an alert waits for some minutes.
const LONG_TRANSACTION: Duration = Duration::from_hours(1);
const ARCHIVE_LAGS: Duration = Duration::from_mins(10);
const STANDBY_LAGS: Duration = Duration::from_mins(1);
/// A connection to NATS that broke is made anew within this time.
const NATS_AWAY: Duration = Duration::from_secs(3);
const RETENTION_LATE: Duration = Duration::from_hours(24);

/// The most parked purchases, and the most parked changes of eSIMs, that an examination reads, the
/// oldest ones. It is one number for all who look, because the names of findings follow from what
/// is read.
pub const PARKED: i64 = 200;

/// What [`of_server`] finds only for a role that may see the statistics of others.
const OF_STATISTICS: [Matter; 4] = [
    Matter::LongTransaction,
    Matter::ArchiveLags,
    Matter::StandbyMissing,
    Matter::StandbyLags,
];

/// What an examination has found.
#[derive(Clone, Debug)]
pub struct HealthReport {
    /// The time of the database.
    pub at: OffsetDateTime,
    /// One for each stage, in the order in which an order passes them.
    pub stages: Vec<StageProcesses>,
    pub waiting: WaitingWork,
    pub breakers: Vec<ProviderBreaker>,
    /// The endpoints of which something is to be known, as [`endpoints::noted`] reads them.
    pub endpoints: Vec<ListedEndpoint>,
    /// What became of the orders of the last minutes, on which a good verdict rests.
    pub orders: OrdersLately,
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
    /// What this role may not see, so that nothing is known of it.
    pub unseen: Vec<Matter>,
}

impl HealthReport {
    /// What somebody has to do something about.
    pub fn needed(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|one| one.needs_person())
    }

    /// Whether this examination finds what is called so, if it is wrong. Another role may see more,
    /// and a newer version knows more.
    pub(super) fn could_find(&self, key: &str) -> bool {
        let matter = key.split(':').next().unwrap_or_default();
        let matter: Result<Matter, _> = matter.parse();
        matter.is_ok_and(|matter| !self.unseen.contains(&matter))
    }

    /// What ends by itself.
    pub fn mending(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|one| !one.needs_person())
    }

    /// The first words of every view.
    pub fn verdict(&self) -> String {
        let things = |count: usize, is: &str, are: &str| match count {
            1 => format!("1 thing {is}"),
            count => format!("{count} things {are}"),
        };
        match (self.needed().count(), self.mending().count()) {
            // That nothing was found is not enough to say that orders get through.
            (0, 0) if self.orders.answered == 0 => {
                format!("Nothing wrong shows, but {}.", self.orders.told())
            }
            (0, 0) => format!("Everything works: {}.", self.orders.told()),
            (0, mending) => format!(
                "Nobody is needed; {}.",
                things(mending, "ends by itself", "end by themselves")
            ),
            (wrong, 0) => format!("{}.", things(wrong, "is wrong", "are wrong")),
            (wrong, mending) => format!(
                "{}, and {} more {}.",
                things(wrong, "is wrong", "are wrong"),
                mending,
                if mending == 1 {
                    "ends by itself"
                } else {
                    "end by themselves"
                }
            ),
        }
    }
}

/// Examines the system.
pub async fn examine(connection: &mut PgConnection) -> Result<HealthReport> {
    let mut findings = Vec::new();
    let session = session::session(&mut *connection).await?;
    let server = server::server(&mut *connection).await?;
    of_server(&session, &server, &mut findings);
    let unseen = if session.sees_statistics {
        Vec::new()
    } else {
        OF_STATISTICS.to_vec()
    };
    // Reading goes on when nothing can be written any more.
    if let Err(error) = server::find_room(&mut *connection).await {
        let why = error.to_string();
        findings.push(Finding::new(FindingKind::DatabaseDown { why }, None));
    }
    // How the server was set up is judged by the doctor: it does not change by night.
    findings.retain(|one| {
        !matches!(
            one.kind,
            FindingKind::NotDurable { .. } | FindingKind::NotArchived
        )
    });
    let stages = stages::read(&mut *connection).await?;
    let breakers = providers::list(&mut *connection).await?;
    let backlogs = providers::backlogs(&mut *connection, &[]).await?;
    let waiting = waiting::read(&mut *connection, &backlogs).await?;
    of_stages(&stages, &waiting, &mut findings);
    of_nats(&stages, waiting.at, &mut findings);
    of_processes(&stages, &mut findings);
    let orders = answers::find(&mut *connection, waiting.at, &mut findings).await?;
    of_breakers(&breakers, &mut findings);
    // An option that is out of sale matters only while an order of it waits.
    let needed = backlogs.iter().filter(|one| one.on_sale || one.due > 0);
    let unserved = needed.filter(|of| breakers.iter().all(|one| one.name != of.provider));
    let unserved: Vec<_> = unserved.collect();
    if !unserved.is_empty() {
        let kind = FindingKind::Unserved {
            providers: unserved.iter().map(|one| one.provider.clone()).collect(),
            keeps_orders: unserved
                .iter()
                .any(|one| one.due > 0 && one.provider != waiting::SANDBOX),
        };
        findings.push(Finding::new(kind, None));
    }
    let is_dead = |stage| stages.iter().any(|one| one.stage == stage && one.is_dead());
    if !is_dead(Stage::Provisioner) {
        late_purchases(&waiting, &breakers, &mut findings);
    }
    if !is_dead(Stage::Notifier) {
        late_webhooks(&waiting, &mut findings);
    }
    slow::find(&mut *connection, waiting.at, &mut findings).await?;
    of_lanes(connection, &mut findings).await?;
    parked(connection, &backlogs, &mut findings).await?;
    let endpoints = endpoints::noted(&mut *connection).await?;
    let paused = paused_since(&mut *connection, &endpoints).await?;
    for endpoint in &endpoints {
        of_endpoint(endpoint, &paused, &mut findings);
    }
    for one in webhooks::without_address(&mut *connection).await? {
        let kind = FindingKind::NoAddress {
            partner_id: one.partner_id,
            name: one.name,
            webhooks: one.webhooks,
        };
        findings.push(Finding::new(kind, Some(one.since)));
    }
    let overdue = retention::backlog(&mut *connection).await?.overdue;
    let overdue = overdue.into_iter().max().unwrap_or_default();
    if overdue > RETENTION_LATE {
        let seconds = overdue.as_secs();
        findings.push(lasting(
            FindingKind::RetentionBehind { seconds },
            overdue,
            waiting.at,
        ));
    }
    of_money(money::read(&mut *connection).await?, &mut findings);
    told(&mut *connection, &mut findings, waiting.at).await?;
    owner::find_owners(&mut *connection, &mut findings, waiting.at).await?;
    weigh(&mut findings, &stages, waiting.at);
    Ok(HealthReport {
        at: waiting.at,
        stages,
        waiting,
        breakers,
        endpoints,
        orders,
        findings,
        unseen,
    })
}

/// Notes what lasts, and what nothing ends while a stage is dead; then puts the worst first. A
/// stage that is dead and a server that takes nothing come before all others, because they explain
/// the rest. A provider that denies our account comes before single orders and endpoints.
fn weigh(findings: &mut [Finding], stages: &[StageProcesses], now: OffsetDateTime) {
    let is_dead = |stage: Stage| stages.iter().any(|one| one.stage == stage && one.is_dead());
    for one in &mut *findings {
        let lasted = one.since.map(|since| now - since);
        let usual = one.kind.ends_within();
        let limits = lasted.zip(usual);
        one.lasts = limits.is_some_and(|(lasted, usual)| lasted >= usual);
        one.after = one.kind.ended_by().filter(|stage| is_dead(*stage));
    }
    findings.sort_by_key(|one| {
        let is_dead = matches!(
            one.kind,
            FindingKind::StageDead { .. } | FindingKind::DatabaseDown { .. }
        );
        let is_denied = matches!(&one.kind, FindingKind::BreakerOpen { breaker } if breaker.denied);
        (
            !is_dead,
            std::cmp::Reverse(one.severity()),
            !is_denied,
            one.kind.matter(),
        )
    });
}

/// A finding that has lasted for this long.
fn lasting(kind: FindingKind, age: Duration, now: OffsetDateTime) -> Finding {
    Finding::new(kind, Some(now - age))
}

/// Findings about the settings of PostgreSQL and about its state. What the role may not see is left
/// out; `esimctl doctor` says so.
pub fn of_server(session: &ExaminedSession, server: &ServerState, findings: &mut Vec<Finding>) {
    let mut add = |kind| findings.push(Finding::new(kind, None));
    if session.is_standby {
        add(FindingKind::OnStandby);
    }
    let settings = [
        (DurabilitySetting::Fsync, session.fsync),
        (DurabilitySetting::FullPageWrites, session.full_page_writes),
        (
            DurabilitySetting::SynchronousCommit,
            session.synchronous_commit != "off",
        ),
    ];
    let settings = settings.into_iter().filter(|(_, is_on)| !is_on);
    let settings: Vec<DurabilitySetting> = settings.map(|(setting, _)| setting).collect();
    if !settings.is_empty() {
        add(FindingKind::NotDurable { settings });
    }
    if session.connections * 10 >= session.max_connections * 8 {
        add(FindingKind::ConnectionsFew {
            used: session.connections,
            most: session.max_connections,
        });
    }
    if server.xid_age >= XID_HIGH {
        add(FindingKind::Wraparound {
            age: server.xid_age,
        });
    }
    if !session.sees_statistics {
        return;
    }
    if server.longest_transaction > LONG_TRANSACTION {
        let seconds = server.longest_transaction.as_secs();
        let of = server.longest_of.clone();
        add(FindingKind::LongTransaction { seconds, of });
    }
    if !session.archives {
        add(FindingKind::NotArchived);
    } else if server.unarchived > ARCHIVE_LAGS {
        let seconds = server.unarchived.as_secs();
        add(FindingKind::ArchiveLags { seconds });
    }
    if !session.synchronous_standby_names.is_empty() && server.standbys == 0 {
        add(FindingKind::StandbyMissing);
    } else if server.standby_lag > STANDBY_LAGS {
        let seconds = server.standby_lag.as_secs();
        add(FindingKind::StandbyLags { seconds });
    }
}

fn of_money(state: MoneyState, findings: &mut Vec<Finding>) {
    if let Some(books) = state.books.filter(|books| books.found > 0) {
        let kind = FindingKind::AccountsDisagree {
            checked_at: books.at,
            found: books.found,
            first: books.first,
        };
        findings.push(Finding::new(kind, books.since));
    }
    let running_out = state.running_out.into_iter();
    findings.extend(running_out.map(|one| Finding::new(FindingKind::BalanceRunsOut(one), None)));
    let below_cost = state.below_cost.into_iter();
    findings.extend(below_cost.map(|one| Finding::new(FindingKind::SoldBelowCost(one), None)));
}

fn of_stages(stages: &[StageProcesses], waiting: &WaitingWork, findings: &mut Vec<Finding>) {
    for life in stages {
        let stage = life.stage;
        if life.is_dead() {
            // Nothing stored waits for an ingress.
            let (waiting, oldest) = match stage {
                Stage::Ingress => (0, 0.0),
                Stage::Provisioner => waiting.sum(true),
                Stage::Notifier => waiting.sum(false),
            };
            let kind = FindingKind::StageDead {
                stage,
                waiting,
                oldest,
                on: life.missing_on.clone(),
            };
            findings.push(Finding::new(kind, life.last));
        } else if life.missing > 0 {
            let kind = FindingKind::ProcessesMissing {
                stage,
                missing: life.missing,
                running: life.running,
                on: life.missing_on.clone(),
            };
            findings.push(Finding::new(kind, life.missing_since));
        }
    }
}

/// A process that has just lost its connection makes a new one within a second, so that alone is
/// not told.
fn of_nats(stages: &[StageProcesses], now: OffsetDateTime, findings: &mut Vec<Finding>) {
    let lasting = |life: &&StageProcesses| {
        life.no_nats_since
            .is_some_and(|since| now - since > NATS_AWAY)
    };
    let without: Vec<&StageProcesses> = stages.iter().filter(lasting).collect();
    let since = without.iter().filter_map(|life| life.no_nats_since).min();
    if since.is_none() {
        return;
    }
    let names: Vec<&str> = without.iter().map(|life| life.stage.as_str()).collect();
    let reach = noun(names.len(), "does", "do");
    let why = format!("NATS is down: {} {reach} not reach it", names.join(", "));
    findings.push(Finding::new(FindingKind::NatsDown { why }, since));
}

/// What the pulses of processes tell that work, or would.
fn of_processes(stages: &[StageProcesses], findings: &mut Vec<Finding>) {
    for life in stages {
        let stage = life.stage;
        if let Some((ahead, since)) = life.clock_off {
            // The pulse tells how far PostgreSQL is ahead.
            let kind = FindingKind::ClockOff {
                of: Clock::Stage(stage),
                ahead: -ahead,
            };
            findings.push(Finding::new(kind, Some(since)));
        }
        if let Some((what, since)) = &life.nats_refused {
            let what = what.clone();
            let kind = FindingKind::NatsRefuses { stage, what };
            findings.push(Finding::new(kind, Some(*since)));
        }
    }
}

fn of_breakers(breakers: &[ProviderBreaker], findings: &mut Vec<Finding>) {
    let lost: Vec<&ProviderBreaker> = breakers.iter().filter(|one| one.lost_commits()).collect();
    if let Some(first) = lost.first() {
        let kind = FindingKind::CommitsLost {
            providers: lost.iter().map(|one| one.name.clone()).collect(),
            told: first.reason.clone(),
        };
        findings.push(Finding::new(kind, first.failing_since));
    }
    let open = breakers
        .iter()
        .filter(|one| one.state != BreakerState::Closed && !one.lost_commits());
    findings.extend(open.map(|breaker| {
        let since = breaker.failing_since;
        let breaker = breaker.clone();
        Finding::new(FindingKind::BreakerOpen { breaker }, since)
    }));
}

/// While a breaker is open, work waits as it should. Only after long is that a matter of its own.
fn late_purchases(
    waiting: &WaitingWork,
    breakers: &[ProviderBreaker],
    findings: &mut Vec<Finding>,
) {
    for (queue, backlog) in &waiting.queues {
        let WaitingQueue::Provider { name } = queue else {
            continue;
        };
        let Some(breaker) = breakers.iter().find(|one| one.name == *name) else {
            continue;
        };
        let breaker_open = breaker.state != BreakerState::Closed;
        let late = if breaker_open { VERY_LATE } else { LATE };
        if backlog.oldest < late || breaker.lost_commits() || (breaker_open && !backlog.is_live) {
            continue;
        }
        let kind = FindingKind::PurchasesLate {
            provider: name.clone(),
            waiting: backlog.waiting(),
            oldest: backlog.oldest,
            breaker_open,
        };
        findings.push(Finding::new(kind, since(backlog.oldest, waiting.at)));
    }
}

fn late_webhooks(waiting: &WaitingWork, findings: &mut Vec<Finding>) {
    for environment in [AffectedEnvironment::Live, AffectedEnvironment::Sandbox] {
        let mine = waiting.queues.iter().filter(|(queue, backlog)| {
            matches!(queue, WaitingQueue::Endpoint { .. })
                && !backlog.is_stopped
                && backlog.is_live == (environment == AffectedEnvironment::Live)
        });
        let mine = mine.map(|(_, backlog)| (backlog.waiting(), backlog.oldest));
        let (count, oldest) = mine.fold((0_u64, 0.0), |(sum, oldest), (count, age)| {
            (sum.saturating_add(count), f64::max(oldest, age))
        });
        if oldest < LATE {
            continue;
        }
        let kind = FindingKind::WebhooksLate {
            environment,
            waiting: count,
            oldest,
        };
        findings.push(Finding::new(kind, since(oldest, waiting.at)));
    }
}

fn since(age: f64, now: OffsetDateTime) -> Option<OffsetDateTime> {
    now.checked_sub(time::Duration::seconds_f64(age))
}

async fn of_lanes(connection: &mut PgConnection, findings: &mut Vec<Finding>) -> Result<()> {
    let mut by_provider: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for lane in provider_lanes::list(connection).await? {
        let lanes = by_provider.entry(lane.provider.clone()).or_default();
        lanes.push(lane);
    }
    findings.extend(by_provider.into_iter().map(|(provider, lanes)| {
        let since = lanes.iter().map(|one| one.since).min();
        Finding::new(FindingKind::LanesHeldBack { provider, lanes }, since)
    }));
    Ok(())
}

/// What waits for a person at the providers. One reason at one provider is one matter, however many
/// purchases it has stopped.
async fn parked(
    connection: &mut PgConnection,
    backlogs: &[providers::ProviderBacklog],
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let state = Some(domain::PlacementState::Parked);
    let mut matters: BTreeMap<_, Vec<placements::ListedPlacement>> = BTreeMap::new();
    let listed = placements::list(&mut *connection, state, None, PARKED).await?;
    for one in listed.after_flush(connection).await? {
        let matter = (one.provider.clone(), one.reason.told());
        matters.entry(matter).or_default().push(one);
    }
    for backlog in backlogs {
        let mine = matters
            .iter()
            .filter(|((name, _), _)| *name == backlog.provider);
        let read = mine.map(|(_, purchases)| purchases.len()).sum::<usize>();
        let read = u64::try_from(read).unwrap_or(u64::MAX);
        if backlog.parked > read {
            let kind = FindingKind::Parked {
                provider: backlog.provider.clone(),
                reason: None,
                purchases: Vec::new(),
                in_all: backlog.parked,
            };
            findings.push(Finding::new(kind, None));
        }
    }
    findings.extend(matters.into_iter().map(|((provider, reason), purchases)| {
        let since = purchases
            .iter()
            .map(placements::ListedPlacement::since)
            .min();
        let kind = FindingKind::Parked {
            provider,
            reason,
            purchases,
            in_all: 0,
        };
        Finding::new(kind, since)
    }));
    let mut changes: BTreeMap<_, Vec<esim_changes::ListedEsimChange>> = BTreeMap::new();
    for one in esim_changes::list(connection, None, None, PARKED).await? {
        let of = (one.kind(), one.provider.clone());
        changes.entry(of).or_default().push(one);
    }
    findings.extend(changes.into_iter().map(|((kind, provider), changes)| {
        let since = changes.iter().map(|one| one.parked_at).min();
        Finding::new(FindingKind::parked_changes(kind, provider, changes), since)
    }));
    Ok(())
}

/// Whose pause an action names: the endpoint's, or the partner's if the partner has set it itself.
fn pauser(endpoint: &ListedEndpoint) -> Uuid {
    if endpoint.state == EndpointState::PausedByPartner {
        endpoint.partner_id
    } else {
        endpoint.endpoint_id
    }
}

/// When the endpoints that are paused were, by the last recorded pause of each. A pause whose
/// record is past its term has no time.
async fn paused_since(
    connection: &mut PgConnection,
    endpoints: &[ListedEndpoint],
) -> Result<HashMap<String, OffsetDateTime>> {
    let paused = endpoints.iter().filter(|one| {
        matches!(
            one.state.known(),
            Some(EndpointState::Paused | EndpointState::PausedByPartner)
        )
    });
    let paused: Vec<String> = paused.map(|one| pauser(one).to_string()).collect();
    pg::actions::last(connection, &paused, Command::EndpointPause).await
}

/// For how long a partner that was told what it lacks is left alone.
const TOLD: time::Duration = time::Duration::hours(24);

/// Notes of which matters the partner was told lately, so that nobody is needed for them.
async fn told(
    connection: &mut PgConnection,
    findings: &mut [Finding],
    now: OffsetDateTime,
) -> Result<()> {
    let partners = findings.iter().filter_map(|one| one.kind.tells());
    let mut partners: Vec<String> = partners.map(|id| id.to_string()).collect();
    partners.sort_unstable();
    partners.dedup();
    let told = pg::actions::last(connection, &partners, Command::PartnerTold).await?;
    for one in findings {
        let at = one.kind.tells().and_then(|id| told.get(&id.to_string()));
        // What began later is another matter, and the partner does not know of it.
        one.told_at = at
            .copied()
            .filter(|at| *at > now - TOLD && one.since.is_none_or(|since| since < *at));
    }
    Ok(())
}

fn of_endpoint(
    endpoint: &ListedEndpoint,
    paused: &HashMap<String, OffsetDateTime>,
    findings: &mut Vec<Finding>,
) {
    let boxed = || Box::new(endpoint.clone());
    match endpoint.state.known() {
        Some(EndpointState::Paused | EndpointState::PausedByPartner) => {
            findings.push(Finding::new(
                FindingKind::Paused { endpoint: boxed() },
                paused.get(&pauser(endpoint).to_string()).copied(),
            ));
        }
        Some(EndpointState::Blocked | EndpointState::Probing) => findings.push(Finding::new(
            FindingKind::Blocked { endpoint: boxed() },
            endpoint.failing_since,
        )),
        // One that cannot be read is shown by its name where endpoints are listed.
        Some(EndpointState::Open | EndpointState::NoUrl | EndpointState::Unverified) | None => {}
    }
    if endpoint.exhausted > 0 {
        let kind = FindingKind::Exhausted { endpoint: boxed() };
        findings.push(Finding::new(kind, endpoint.exhausted_since));
    }
}

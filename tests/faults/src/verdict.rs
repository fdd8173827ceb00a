//! The verdict on a run. It compares what the partners saw ([`Asked`], [`Arrival`]), what the
//! provider sold ([`LedgerOrder`]) and what the database says ([`Stored`]). Each contradiction is a
//! broken promise with a name of its own ([`Broken`]). The module does no I/O; `verdict_tests`
//! gives it evidence with a single flaw each.

use crate::book::{Arrival, Asked, Settled};
use crate::events::FORGED;
use crate::orders::NEVER_READY;
use crate::stored::{Books, Stored, StoredPlacement, StoredUnit};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;
use testkit::stack::{LedgerExtension, LedgerOrder, StoredExtension};

/// The tolerance when two times are compared that two tasks of this process measured, because a
/// task may have waited for a processor before it could measure.
pub const SAME_MOMENT: Duration = Duration::from_millis(150);

/// How long a webhook may be under way, with the time that a busy machine adds.
const UNDER_WAY: Duration = Duration::from_secs(5);

pub struct Evidence {
    /// The provider that the sandbox plays.
    pub provider: &'static str,
    pub asked: Vec<Asked>,
    pub arrivals: Vec<Arrival>,
    pub ledger: Vec<LedgerOrder>,
    /// What the provider has added to eSIMs, and the extensions as they are stored.
    pub extended: Vec<LedgerExtension>,
    pub extensions: Vec<StoredExtension>,
    /// What partners were charged.
    pub books: Books,
    pub sold: Vec<Sold>,
    /// The start of the run in Unix time.
    pub began: Duration,
    pub detects_duplicates: bool,
    pub settle: Duration,
    /// When provisioners or the provider stood still.
    pub stalls: Vec<(Duration, Duration)>,
    /// When the database crashed.
    pub crashes: Vec<Duration>,
    /// When commits may have ended only with a fault.
    pub slow_commits: Vec<(Duration, Duration)>,
    pub stored: Stored,
    /// The ids of the partners, by their index.
    pub partners: Vec<String>,
    /// The times whose commits were lost, because an asynchronous standby was promoted.
    pub losses: Vec<Loss>,
    /// The purchases that `esimctl recover --ledger` names as orphans, by the order id that the
    /// provider has.
    pub orphans: BTreeSet<String>,
    /// The topups that partners may have given back.
    pub given_back: BTreeSet<String>,
}

/// A purchase, as the provider's list shows it.
pub struct Sold {
    /// The order id that the provider has.
    pub order_id: String,
    /// Its time, since the start of the run.
    pub at: Duration,
    /// The option that the provider was asked for.
    pub option: String,
}

/// Commits that were acknowledged within this time were lost.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    pub from: Duration,
    pub until: Duration,
}

impl Evidence {
    /// Whether the answer to a request may rest on a commit that was lost. An answer may leave some
    /// seconds after its commit, so the whole time of the request counts.
    fn may_be_forgotten(&self, asked: &Asked) -> bool {
        let touches = |loss: &Loss| asked.sent < loss.until && asked.answered > loss.from;
        self.losses.iter().any(touches)
    }

    /// Whether a webhook may have been sent for an order that was lost.
    fn may_be_of_forgotten(&self, arrival: &Arrival) -> bool {
        let touches = |loss: &Loss| arrival.at > loss.from && arrival.at < loss.until + UNDER_WAY;
        self.losses.iter().any(touches)
    }
}

/// A way in which the promise can be broken. Each one makes the run red.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Broken {
    BoughtTwice,
    BoughtBeyondStored,
    BoughtThoughRefused,
    NotBoughtThoughPlaced,
    Lost,
    AnsweredButNotStored,
    TakenThenRefused,
    DeniedWithoutCause,
    NeverSettled,
    /// Two units have an ICCID, and none of them was given back.
    IccidTwice,
    /// The provider has an eSIM back that nobody has given back.
    TakenBack,
    ExtendedTwice,
    /// The provider has extended an eSIM of ours, and no extension is stored.
    ExtendedBeyondStored,
    ExtendedThoughRefused,
    NotExtendedThoughTold,
    /// The entries of an account are not those that its units and extensions should have.
    BookedWrongly,
    /// A partner was charged for a unit that was never bought.
    ChargedForNothing,
    WebhookBeforeAnswer,
    WebhookForNothing,
    WebhookForged,
    /// A forged event was taken, or its eSIM reached a partner.
    EventBelieved,
    ParkedThoughFindable,
    EndedBySomething,
    NotFenced,
    /// All faults of a kind met nobody, so the run says nothing about it.
    NeverStruck,
    /// The model has no way to what was seen: a service did what the protocol forbids, or the model
    /// lacks a step.
    ImpossibleInTheModel,
}

impl Broken {
    pub fn text(self) -> String {
        serde_json::to_value(self)
            .unwrap_or_default()
            .as_str()
            .unwrap_or_default()
            .replace('_', " ")
    }
}

#[derive(Debug, Default, Serialize)]
pub struct Verdict {
    pub counts: Counts,
    /// The broken promises: for each kind the ids, with their evidence.
    pub broken: BTreeMap<Broken, Vec<String>>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    pub orders: usize,
    pub answered_201: usize,
    /// Those of them that were answered only after an earlier request had got no definite answer.
    pub answered_201_later: usize,
    pub answered_4xx: usize,
    pub unanswered_then_taken: usize,
    pub never_settled: usize,
    pub requests: usize,
    pub clients_hung_up: usize,
    /// Units of orders that were not refused.
    pub units_stored: usize,
    pub units_bought: u64,
    pub placements_bought_twice: usize,
    /// Units of orders that were not refused, although the provider never sold them. They have
    /// failed or are parked.
    pub units_never_bought: usize,
    pub units_delivered: usize,
    pub webhooks: usize,
    /// Webhooks of topups that had an acknowledged webhook already.
    pub duplicates: usize,
    pub lost: usize,
    pub units_given_back: u64,
    pub extensions: usize,
    pub extensions_added: usize,
    /// Entries of the accounts of partners.
    pub entries: usize,
    /// Units whose ICCID another unit has, too.
    pub iccids_again: usize,
    /// Answers whose order, or whose refusal, was lost with the commits of a primary.
    pub answers_forgotten: usize,
    /// Purchases whose placement was lost, and which `esimctl recover --ledger` names.
    pub orphans_named: usize,
    /// Units whose history was compared with the model; how many different histories these are, and
    /// how many of those the search gave up.
    pub histories: usize,
    pub histories_distinct: usize,
    pub histories_undecided: usize,
    pub parked: BTreeMap<String, usize>,
    pub failed: BTreeMap<String, usize>,
}

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Delivered,
    Failed(String),
    Parked(String),
    Lost(String),
}

impl Verdict {
    pub fn green(&self) -> bool {
        self.broken.is_empty()
    }

    pub fn add(&mut self, broken: Broken, what: impl Into<String>) {
        self.broken.entry(broken).or_default().push(what.into());
    }
}

/// Judges a run that has come to rest. A row that is still in flight counts as lost.
pub fn judge(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict::default();
    let index = Index::of(evidence);
    answers(evidence, &index, &mut verdict);
    purchases(evidence, &index, &mut verdict);
    extensions(evidence, &mut verdict);
    units(evidence, &index, &mut verdict);
    webhooks(evidence, &index, &mut verdict);
    verdict
}

struct Index<'a> {
    placements: HashMap<&'a str, &'a StoredPlacement>,
    units_of: HashMap<&'a str, Vec<&'a StoredUnit>>,
    units: HashMap<&'a str, &'a StoredUnit>,
    /// Whether an order was refused, by its id.
    refused: HashMap<&'a str, bool>,
    /// Order ids by partner id and external order id.
    orders: HashMap<(&'a str, &'a str), Vec<&'a str>>,
    bought: HashSet<&'a str>,
    acknowledged: HashSet<&'a str>,
}

impl<'a> Index<'a> {
    fn of(evidence: &'a Evidence) -> Self {
        let stored = &evidence.stored;
        let mut units_of: HashMap<&str, Vec<&StoredUnit>> = HashMap::new();
        for unit in &stored.units {
            units_of.entry(&unit.placement_id).or_default().push(unit);
        }
        let mut orders: HashMap<(&str, &str), Vec<&str>> = HashMap::new();
        for order in &stored.orders {
            let key = (order.partner_id.as_str(), order.external_order_id.as_str());
            orders.entry(key).or_default().push(&order.order_id);
        }
        let acknowledged = evidence
            .arrivals
            .iter()
            .filter(|arrival| arrival.acknowledged);
        Self {
            placements: stored
                .placements
                .iter()
                .map(|one| (&one.placement_id[..], one))
                .collect(),
            units_of,
            units: stored
                .units
                .iter()
                .map(|one| (&one.topup_id[..], one))
                .collect(),
            refused: stored
                .orders
                .iter()
                .map(|one| (&one.order_id[..], one.refused))
                .collect(),
            orders,
            bought: evidence
                .ledger
                .iter()
                .map(|one| &one.order_id[..])
                .collect(),
            acknowledged: acknowledged.map(|one| &one.topup_id[..]).collect(),
        }
    }

    fn is_refused(&self, order_id: &str) -> bool {
        self.refused.get(order_id).copied().unwrap_or_default()
    }
}

fn answers(evidence: &Evidence, index: &Index<'_>, verdict: &mut Verdict) {
    for asked in &evidence.asked {
        let counts = &mut verdict.counts;
        counts.orders += 1;
        counts.requests += asked.requests;
        counts.clients_hung_up += usize::from(asked.hung_up);
        let id = &asked.external_order_id;
        let key = (evidence.partners[asked.partner].as_str(), id.as_str());
        let orders = index.orders.get(&key).map_or(&[][..], Vec::as_slice);
        let standing = || orders.iter().any(|order| !index.is_refused(order));
        // Nobody but this one request can have stored an order with this id.
        let is_only = asked.unanswered == 0 && !asked.has_twins;
        match &asked.settled {
            None => {
                counts.never_settled += 1;
                verdict.add(Broken::NeverSettled, id);
            }
            Some(Settled::Created) => {
                counts.answered_201 += 1;
                counts.answered_201_later += usize::from(asked.unanswered > 0);
                let stored = |topup: &String| {
                    let order = index
                        .units
                        .get(topup.as_str())
                        .map(|unit| &unit.order_id[..]);
                    order.is_some_and(|order| orders.contains(&order) && !index.is_refused(order))
                };
                let missing = asked.topups.iter().filter(|topup| !stored(topup));
                let missing: Vec<&String> = missing.collect();
                if !missing.is_empty() && evidence.may_be_forgotten(asked) {
                    counts.answers_forgotten += 1;
                    continue;
                }
                for topup in missing {
                    verdict.add(Broken::AnsweredButNotStored, format!("{id} topup {topup}"));
                }
            }
            Some(Settled::Taken) => {
                counts.unanswered_then_taken += 1;
                if orders.is_empty() && evidence.may_be_forgotten(asked) {
                    counts.answers_forgotten += 1;
                } else if orders.is_empty() || is_only {
                    verdict.add(Broken::AnsweredButNotStored, format!("{id} already taken"));
                } else if !standing() {
                    verdict.add(Broken::TakenThenRefused, id);
                }
            }
            Some(Settled::Refused) => {
                counts.answered_4xx += 1;
                // An earlier unanswered request may have been stored after all.
                if is_only && standing() && evidence.may_be_forgotten(asked) {
                    counts.answers_forgotten += 1;
                } else if is_only && standing() {
                    let text = format!("{id} stands although it was answered 422");
                    verdict.add(Broken::BoughtThoughRefused, text);
                }
            }
            Some(Settled::Denied(answer)) => {
                counts.answered_4xx += 1;
                verdict.add(Broken::DeniedWithoutCause, format!("{id} {answer}"));
            }
        }
    }
}

fn purchases(evidence: &Evidence, index: &Index<'_>, verdict: &mut Verdict) {
    for purchase in &evidence.ledger {
        verdict.counts.units_bought += purchase.units;
        verdict.counts.units_given_back += purchase.canceled;
        let id = &purchase.order_id;
        if purchase.purchased_times > 1 {
            verdict.counts.placements_bought_twice += 1;
            verdict.add(
                Broken::BoughtTwice,
                format!("placement {id}: {} times", purchase.purchased_times),
            );
        }
        let Some(placement) = index.placements.get(id.as_str()) else {
            if evidence.orphans.contains(id) {
                verdict.counts.orphans_named += 1;
            } else {
                verdict.add(
                    Broken::BoughtBeyondStored,
                    format!("placement {id} is not stored"),
                );
            }
            continue;
        };
        let stored = index.units_of.get(id.as_str());
        let stored = stored.map_or(&[][..], Vec::as_slice);
        let given_back = |unit: &&&StoredUnit| evidence.given_back.contains(&unit.topup_id);
        if purchase.canceled > stored.iter().filter(given_back).count() as u64 {
            let text = format!("placement {id}: {} units are back", purchase.canceled);
            verdict.add(Broken::TakenBack, text);
        }
        let units = stored.len();
        if purchase.purchased_times == 1 && purchase.units > units as u64 {
            let text = format!("placement {id}: {} units for {units}", purchase.units);
            verdict.add(Broken::BoughtBeyondStored, text);
        }
        if index.is_refused(&placement.order_id) {
            let text = format!("placement {id} of order {}", placement.order_id);
            verdict.add(Broken::BoughtThoughRefused, text);
        }
    }
    for placement in &evidence.stored.placements {
        let id = placement.placement_id.as_str();
        let units = index.units_of.get(id).map_or(&[][..], Vec::as_slice);
        let may_be_unsold = units
            .iter()
            .all(|unit| may_be_unsold(evidence.provider, unit));
        if placement.placed && !index.bought.contains(id) && !may_be_unsold {
            verdict.add(
                Broken::NotBoughtThoughPlaced,
                format!("placement {}", placement.placement_id),
            );
        }
    }
}

fn extensions(evidence: &Evidence, verdict: &mut Verdict) {
    // A protocol without an id of ours only has the eSIM, which is extended once in a run.
    let is_of = |one: &LedgerExtension, stored: &StoredExtension| {
        if one.extension_id.is_empty() {
            one.topup_id == stored.unit_id
        } else {
            one.extension_id.contains(&stored.extension_id)
        }
    };
    verdict.counts.extensions = evidence.extensions.len();
    verdict.counts.extensions_added = evidence.extended.len();
    for stored in &evidence.extensions {
        let of_this = evidence.extended.iter().filter(|one| is_of(one, stored));
        let added = of_this.count();
        let text = format!(
            "extension of topup {} is {}, added {added} times",
            stored.topup_id, stored.state
        );
        match (stored.state.as_str(), added) {
            (_, 2..) => verdict.add(Broken::ExtendedTwice, text),
            ("refused", 1) => verdict.add(Broken::ExtendedThoughRefused, text),
            ("added", 0) => verdict.add(Broken::NotExtendedThoughTold, text),
            _ => {}
        }
    }
    let is_stored = |one: &&LedgerExtension| {
        let mut stored = evidence.extensions.iter();
        stored.any(|stored| one.extension_id.contains(&stored.extension_id))
    };
    // What was stored may be lost with commits, and a provider may lose the id.
    let strangers = evidence.extended.iter().filter(|one| !is_stored(one));
    for stranger in strangers.filter(|one| !one.extension_id.is_empty()) {
        if evidence.losses.is_empty() {
            let text = format!("extension {} is not stored", stranger.extension_id);
            verdict.add(Broken::ExtendedBeyondStored, text);
        }
    }
}

fn units(evidence: &Evidence, index: &Index<'_>, verdict: &mut Verdict) {
    let mut holder: HashMap<&str, &str> = HashMap::new();
    let mut parked_for_cause: BTreeMap<&str, &str> = BTreeMap::new();
    for unit in &evidence.stored.units {
        if let Some(iccid) = &unit.iccid
            && let Some(other) = holder.insert(iccid, &unit.topup_id)
        {
            verdict.counts.iccids_again += 1;
            let either = [other, &unit.topup_id];
            let was_given_back = either.iter().any(|one| evidence.given_back.contains(*one));
            if !was_given_back {
                verdict.add(
                    Broken::IccidTwice,
                    format!("topups {other} and {}", unit.topup_id),
                );
            }
        }
        let Some(placement) = index.placements.get(unit.placement_id.as_str()) else {
            verdict.add(
                Broken::Lost,
                format!("topup {} has no placement", unit.topup_id),
            );
            continue;
        };
        if index.is_refused(&unit.order_id) {
            continue;
        }
        verdict.counts.units_stored += 1;
        verdict.counts.units_never_bought +=
            usize::from(!index.bought.contains(unit.placement_id.as_str()));
        match fate(
            unit,
            placement,
            index.acknowledged.contains(unit.topup_id.as_str()),
        ) {
            Fate::Delivered => verdict.counts.units_delivered += 1,
            Fate::Failed(reason) => *verdict.counts.failed.entry(reason).or_default() += 1,
            Fate::Parked(reason) => {
                let units = &index.units_of[unit.placement_id.as_str()];
                let is_found = index.bought.contains(unit.placement_id.as_str());
                // Where a look-up proves no absence, an attempt that bought nothing is parked
                // because nobody can know that.
                let cannot_be_found = searches(evidence.provider) && !is_found;
                if !units
                    .iter()
                    .any(|unit| never_comes(evidence.provider, unit))
                    && !cannot_be_found
                {
                    let reason = placement.reason.as_deref().unwrap_or("no reason");
                    parked_for_cause.insert(&placement.placement_id, reason);
                }
                *verdict.counts.parked.entry(reason).or_default() += 1;
            }
            Fate::Lost(story) => {
                verdict.counts.lost += 1;
                verdict.add(Broken::Lost, format!("topup {}: {story}", unit.topup_id));
            }
        }
    }
    for (placement, reason) in parked_for_cause {
        verdict.add(
            Broken::ParkedThoughFindable,
            format!("placement {placement}: {reason}"),
        );
    }
}

/// Whether a purchase that was found may have sold nothing. Zendit shows a purchase that has failed
/// as one, and so its unit fails.
pub fn may_be_unsold(provider: &str, unit: &StoredUnit) -> bool {
    provider == "zendit" && unit.state == "failed"
}

/// Whether a look-up at this provider proves no absence.
fn searches(provider: &str) -> bool {
    matches!(provider, "airalo" | "esim-access" | "usimsa")
}

/// Whether this unit never gets a profile. Airalo has no state of an eSIM, so one that fails there
/// is one that never comes.
fn never_comes(provider: &str, unit: &StoredUnit) -> bool {
    unit.option == NEVER_READY || (provider == "airalo" && unit.option == "partly")
}

fn fate(unit: &StoredUnit, placement: &StoredPlacement, acknowledged: bool) -> Fate {
    let reasons = [&unit.reason, &placement.reason].into_iter().flatten();
    let reason = reasons.into_iter().find(|text| !text.is_empty()).cloned();
    match (unit.state.as_str(), unit.delivery.as_deref(), reason) {
        ("ready", Some("delivered"), _) if acknowledged => Fate::Delivered,
        ("ready", Some("delivered"), _) => {
            Fate::Lost("stored as delivered, but no endpoint acknowledged it".into())
        }
        ("ready", Some(state), _) => {
            let attempts = unit.attempt;
            let error = &unit.error;
            Fate::Lost(format!(
                "its delivery is {state} after {attempts:?} attempts: {error:?}"
            ))
        }
        ("ready", None, _) => Fate::Lost("ready without a delivery".into()),
        ("failed", _, Some(reason)) => Fate::Failed(reason),
        ("failed", _, None) => Fate::Lost("failed without a reason".into()),
        (state, _, Some(reason)) if state == "parked" || placement.state == "parked" => {
            Fate::Parked(reason)
        }
        (state, ..) => {
            let id = &placement.placement_id;
            let placed = &placement.state;
            Fate::Lost(format!("{state}, its placement {id} is {placed}"))
        }
    }
}

fn webhooks(evidence: &Evidence, index: &Index<'_>, verdict: &mut Verdict) {
    let mut first: HashMap<&str, Duration> = HashMap::new();
    let mut iccids: HashMap<&str, &str> = HashMap::new();
    let mut acknowledged: HashSet<&str> = HashSet::new();
    let mut wrong: BTreeSet<(Broken, &str)> = BTreeSet::new();
    let orders = evidence.stored.orders.iter();
    let partner_of: HashMap<&str, &str> = orders
        .map(|one| (&one.order_id[..], &one.partner_id[..]))
        .collect();
    for arrival in &evidence.arrivals {
        verdict.counts.webhooks += 1;
        let topup = arrival.topup_id.as_str();
        if arrival.acknowledged && !acknowledged.insert(topup) {
            verdict.counts.duplicates += 1;
        }
        if !arrival.genuine {
            wrong.insert((Broken::WebhookForged, topup));
        }
        let at = first.entry(topup).or_insert(arrival.at);
        *at = (*at).min(arrival.at);
        if *iccids.entry(topup).or_insert(&arrival.iccid) != arrival.iccid {
            wrong.insert((Broken::IccidTwice, topup));
        }
        if arrival.iccid == FORGED {
            wrong.insert((Broken::EventBelieved, topup));
        }
        let order = index.units.get(topup).map(|unit| unit.order_id.as_str());
        if order.is_none() && evidence.may_be_of_forgotten(arrival) {
            continue;
        }
        let expected = order
            .filter(|order| !index.is_refused(order))
            .and_then(|order| partner_of.get(order));
        if expected != Some(&evidence.partners[arrival.partner].as_str()) {
            wrong.insert((Broken::WebhookForNothing, topup));
        }
    }
    for (broken, topup) in wrong {
        verdict.add(broken, format!("topup {topup}"));
    }
    for asked in evidence
        .asked
        .iter()
        .filter(|asked| asked.settled == Some(Settled::Created))
    {
        for topup in &asked.topups {
            let early = first
                .get(topup.as_str())
                .and_then(|at| asked.answered.checked_sub(*at));
            if let Some(early) = early.filter(|early| *early > SAME_MOMENT) {
                verdict.add(
                    Broken::WebhookBeforeAnswer,
                    format!("topup {topup}: by {early:?}"),
                );
            }
        }
    }
}

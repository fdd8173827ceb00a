//! Compares the history of each unit with the model of the protocol (`model::history`). The facts
//! are the changes of the rows, which the run's database notes ([`crate::stored::observe`]),
//! answers and webhooks as the partners saw them, and the provider's ledger.
//!
//! A history that the model does not allow makes the run red even if it broke no promise: an
//! attempt that was recorded after its purchase, for example, is one response away from a second
//! purchase. If the services are right, the model lacks a step of theirs and must get it.

use crate::book::Settled;
use crate::orders::is_routed;
use crate::stored::{StoredChange, StoredOrder, StoredPlacement, StoredUnit};
use crate::verdict::{Broken, Evidence, SAME_MOMENT, Sold, Verdict, may_be_unsold};
use domain::PlacementState;
use model::history::{ATTEMPTS, End, Fact, History, Judged, Row, Seen};
use std::collections::HashMap;
use std::time::Duration;

/// How many histories are explained. Each takes some seconds.
const EXPLAINED: usize = 3;
/// How much later than it could be sent a purchase may arrive while nothing stands still.
const PROMPT: Duration = Duration::from_secs(2);
/// How long after its time a busy machine may still see or read the opposite: a commit that takes
/// long, or an answer that is read late.
const LATE: Duration = Duration::from_secs(1);

/// Adds each history that the model does not allow to the verdict. Where commits were lost on
/// purpose there is nothing to compare, because the model has a database that keeps them.
pub fn compare(evidence: &Evidence, verdict: &mut Verdict) {
    if !evidence.losses.is_empty() {
        return;
    }
    let mut units: HashMap<History, Vec<&str>> = HashMap::new();
    for (unit, history) in Facts::of(evidence).histories() {
        verdict.counts.histories += 1;
        units.entry(history).or_default().push(&unit.topup_id);
    }
    verdict.counts.histories_distinct = units.len();
    let mut explained = 0;
    for (history, topups) in units {
        match history.judge() {
            Judged::Allowed => {}
            Judged::Undecided => verdict.counts.histories_undecided += 1,
            Judged::Impossible => {
                let number = topups.len();
                let mut text = format!("{number} units, such as topup {}: {history}", topups[0]);
                if explained < EXPLAINED {
                    explained += 1;
                    text = format!("{text}\n    {}", history.explain());
                }
                verdict.add(Broken::ImpossibleInTheModel, text);
            }
        }
    }
}

/// What is known, by what it is known of.
struct Facts<'a> {
    evidence: &'a Evidence,
    orders: HashMap<&'a str, &'a StoredOrder>,
    placements: HashMap<&'a str, &'a StoredPlacement>,
    changes: HashMap<&'a str, Vec<&'a StoredChange>>,
    /// When the webhook of each topup was recorded as delivered.
    delivered: HashMap<&'a str, f64>,
    sold: HashMap<&'a str, Vec<&'a Sold>>,
    answers: HashMap<&'a str, Fact>,
    webhooks: HashMap<&'a str, Vec<(Duration, bool)>>,
}

impl<'a> Facts<'a> {
    fn of(evidence: &'a Evidence) -> Self {
        let stored = &evidence.stored;
        let mut changes: HashMap<&str, Vec<&StoredChange>> = HashMap::new();
        let mut delivered = HashMap::new();
        for change in &stored.changes {
            if let Some(placement) = &change.placement_id {
                changes.entry(placement).or_default().push(change);
            }
            if let Some(topup) = &change.topup_id {
                delivered.entry(topup.as_str()).or_insert(change.at);
            }
        }
        let mut sold: HashMap<&str, Vec<&Sold>> = HashMap::new();
        for one in &evidence.sold {
            sold.entry(&one.order_id).or_default().push(one);
        }
        let mut webhooks: HashMap<&str, Vec<(Duration, bool)>> = HashMap::new();
        for arrival in &evidence.arrivals {
            let of_unit = webhooks.entry(&arrival.topup_id).or_default();
            of_unit.push((arrival.at, arrival.acknowledged));
        }
        let orders = stored.orders.iter().map(|one| (&one.order_id[..], one));
        let placements = stored.placements.iter();
        Self {
            evidence,
            orders: orders.collect(),
            placements: placements.map(|one| (&one.placement_id[..], one)).collect(),
            changes,
            delivered,
            sold,
            answers: answers(evidence),
            webhooks,
        }
    }

    fn histories(&self) -> impl Iterator<Item = (&'a StoredUnit, History)> {
        let units = self.evidence.stored.units.iter();
        units.filter_map(|unit| Some((unit, self.history(unit)?)))
    }

    /// The history of a unit; `None` if its rows cannot be read, or if a crash has lost a part of
    /// it.
    fn history(&self, unit: &StoredUnit) -> Option<History> {
        let placement = self.placements.get(unit.placement_id.as_str())?;
        let order = self.orders.get(unit.order_id.as_str())?;
        let changes = self.changes.get(unit.placement_id.as_str())?;
        let sold = self.sold.get(unit.placement_id.as_str());
        let sold = sold.map_or(&[][..], Vec::as_slice);
        // The model has no purchase that is found and was not sold.
        if placement.placed && sold.is_empty() && may_be_unsold(self.evidence.provider, unit) {
            return None;
        }
        let mut facts = vec![self.at(Seen::Accepted { waits: order.waits }, changes[0].at)];
        let rows = self.rows(changes, sold)?;
        let last = rows.last();
        let attempt = last.map_or(0, |(row, _)| row.attempt);
        facts.extend(rows.iter().map(|(row, at)| self.at(Seen::Row(*row), *at)));
        let answer_by = self.since(order.answer_by);
        facts.push(Fact {
            seen: Seen::AnswerBy,
            earliest: millis(answer_by.saturating_sub(SAME_MOMENT)),
            latest: self.ended(answer_by),
        });
        facts.extend(self.answers.get(unit.order_id.as_str()).copied());
        let providers = if is_routed(&unit.option) { 2 } else { 1 };
        facts.extend(sold.iter().map(|one| {
            // The name that the second one has for the option ends with its price, which only its
            // own protocol takes off.
            let is_by_second = providers == 2 && !one.option.contains('@');
            let provider = u8::from(is_by_second);
            around(Seen::Bought { provider }, one.at)
        }));
        facts.extend(sold.first().and_then(|one| self.unsent(changes, one.at)));
        let webhooks = self.webhooks.get(unit.topup_id.as_str());
        let webhooks = webhooks.map_or(&[][..], Vec::as_slice);
        let first = |wanted| {
            let webhooks = webhooks.iter().filter(|(_, was)| *was == wanted);
            webhooks.map(|(at, _)| *at).min()
        };
        // Of webhooks that are repeated, the first one tells whether its time was right.
        let acknowledged = first(true);
        if self.settlement_was_lost(&rows, webhooks) {
            return None;
        }
        let failed = first(false).filter(|at| acknowledged.is_none_or(|first| *at < first));
        facts.extend(failed.map(|at| around(Seen::Posted, at)));
        facts.extend(acknowledged.map(|at| around(Seen::Acknowledged, at)));
        let delivered = self.delivered.get(unit.topup_id.as_str());
        facts.extend(delivered.map(|at| self.at(Seen::Delivered, *at)));

        let state = placement.state.parse().ok()?;
        let is_bought = last.is_some_and(|(row, _)| row.state == PlacementState::Placed);
        let end = End {
            placement: if is_bought {
                PlacementState::Placed
            } else {
                state
            },
            attempt,
            delivered: unit.delivery.as_deref() == Some("delivered"),
            without_profile: is_bought && unit.state != "ready",
        };
        let history = History::new(facts, end, self.evidence.detects_duplicates);
        Some(history.of_providers(providers))
    }

    /// The changes of the placement that matter to the model, with their times, without the first
    /// attempts of many.
    fn rows(&self, changes: &[&StoredChange], sold: &[&Sold]) -> Option<Vec<(Row, f64)>> {
        let mut rows = vec![(
            Row {
                state: PlacementState::Accepted,
                attempt: 0,
                provider: 0,
                missing: false,
                early: false,
            },
            0.0,
        )];
        let mut previous = changes[0];
        for change in &changes[1..] {
            let state = change.state.parse().ok()?;
            // The profiles of some options never come. Such a purchase is parked as bought.
            let is_bought = state == PlacementState::Parked && change.placed && !change.disputed;
            let state = if is_bought {
                PlacementState::Placed
            } else {
                state
            };
            let last = rows[rows.len() - 1].0;
            // Whatever else ends an attempt gives a reason for it.
            let is_by_look_up = last.missing && change.reason == previous.reason;
            let age = change.attempted.map(|attempted| change.at - attempted);
            let is_young = age.is_some_and(|age| age < self.evidence.settle.as_secs_f64());
            previous = change;
            let row = Row {
                state,
                attempt: u32::try_from(change.attempt).ok()?,
                // There are two at most.
                provider: u8::from(change.provider != changes[0].provider),
                missing: change.missing && state == PlacementState::Placing,
                early: is_by_look_up && is_young && state == PlacementState::Accepted,
            };
            let early = last.early;
            if (Row { early, ..row }) != last {
                rows.push((row, change.at));
            }
        }
        rows.remove(0);
        let attempts = rows.last().map_or(0, |(row, _)| row.attempt);
        let dropped = attempts.saturating_sub(ATTEMPTS);
        let first_kept = rows.iter().position(|(row, _)| row.attempt > dropped);
        let first_kept = first_kept.unwrap_or_default();
        let kept_from = rows.get(first_kept).map(|(_, at)| self.since(*at));
        let first = sold.iter().map(|one| one.at).min();
        let is_bought_before = first.zip(kept_from).is_some_and(|(at, from)| at < from);
        let is_routed = rows.iter().any(|(row, _)| row.provider > 0);
        if dropped > 0 && !is_bought_before && !is_routed {
            rows.drain(..first_kept);
            for (row, _) in &mut rows {
                row.attempt -= dropped;
            }
        }
        Some(rows)
    }

    /// Whether the row was settled once more after a crash of the database. A purchase that a
    /// look-up finds again is settled without a flush, so a crash may lose the settlement after its
    /// webhook has arrived. The change that the database noted is lost with it, and the model's
    /// database loses nothing.
    fn settlement_was_lost(&self, rows: &[(Row, f64)], webhooks: &[(Duration, bool)]) -> bool {
        let mut placed = rows
            .iter()
            .filter(|(row, _)| row.state == PlacementState::Placed);
        let Some((_, placed)) = placed.next() else {
            return false;
        };
        let placed = self.since(*placed);
        let posted = webhooks.iter().map(|(at, _)| *at).min();
        posted.is_some_and(|posted| {
            let mut crashes = self.evidence.crashes.iter();
            posted < placed
                && crashes.any(|crash| posted <= *crash + SAME_MOMENT && *crash < placed)
        })
    }

    /// That the purchase at this time was sent so long after its attempt was recorded that it
    /// should have been abandoned, if it was.
    fn unsent(&self, changes: &[&StoredChange], bought: Duration) -> Option<Fact> {
        let mut claims = changes.iter().filter(|change| {
            change.state == "placing" && self.since(change.at) <= bought + SAME_MOMENT
        });
        let attempted = self.since(claims.next_back()?.attempted?);
        let stood_still = self
            .evidence
            .stalls
            .iter()
            .map(|(from, until)| (*until).min(bought).saturating_sub((*from).max(attempted)));
        let took = bought.checked_sub(attempted)?;
        let took = took.saturating_sub(stood_still.sum());
        let earliest = millis(attempted);
        (took > self.evidence.settle / 2 + PROMPT).then(|| Fact {
            seen: Seen::Unsent,
            earliest,
            latest: millis(bought.saturating_sub(SAME_MOMENT))
                .saturating_sub(1)
                .max(earliest),
        })
    }

    /// A Unix time since the start of the run.
    fn since(&self, seconds: f64) -> Duration {
        let at = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        at.saturating_sub(self.evidence.began)
    }

    /// A fact of a row, at the time of its commit.
    fn at(&self, seen: Seen, seconds: f64) -> Fact {
        let at = self.since(seconds);
        Fact {
            seen,
            earliest: millis(at),
            latest: self.ended(at),
        }
    }

    /// When a commit that was about to end at this time had ended for certain.
    fn ended(&self, at: Duration) -> u64 {
        let slow = self.evidence.slow_commits.iter();
        let slow = slow.filter(|(from, until)| *from <= at + LATE && at <= *until);
        let until = slow.map(|(_, until)| *until).max();
        millis(until.unwrap_or(at).max(at) + LATE)
    }
}

/// The answer that the partner read to each order, by its id.
fn answers(evidence: &Evidence) -> HashMap<&str, Fact> {
    let units = evidence.stored.units.iter();
    let order_of: HashMap<&str, &str> = units
        .map(|unit| (unit.topup_id.as_str(), unit.order_id.as_str()))
        .collect();
    let only = only_orders(evidence);
    let mut answers = HashMap::new();
    for asked in &evidence.asked {
        let seen = match asked.settled {
            Some(Settled::Created) => Seen::Created,
            Some(Settled::Refused) => Seen::Refused,
            Some(Settled::Taken) => Seen::Taken,
            Some(Settled::Denied(_)) | None => continue,
        };
        let key = (
            &evidence.partners[asked.partner][..],
            &asked.external_order_id[..],
        );
        let order_id = match (seen, only.get(&key)) {
            (Seen::Created, _) => asked
                .topups
                .first()
                .and_then(|topup| order_of.get(topup.as_str())),
            // One placement that is bought decides an order of several.
            (Seen::Taken, Some((order, 1))) => Some(order),
            // A 422 after a request without an answer may be of an order that was never stored.
            (Seen::Refused, Some((order, _))) if asked.unanswered == 0 && !asked.has_twins => {
                Some(order)
            }
            _ => None,
        };
        if let Some(order_id) = order_id {
            answers.insert(*order_id, around(seen, asked.answered));
        }
    }
    answers
}

/// An id of a partner's order, with the partner.
type OrderKey<'a> = (&'a str, &'a str);

/// The order that each id has, and the number of its placements, if there is only one order: which
/// of several an answer is about is not known.
fn only_orders(evidence: &Evidence) -> HashMap<OrderKey<'_>, (&str, usize)> {
    let mut placements: HashMap<&str, usize> = HashMap::new();
    for placement in &evidence.stored.placements {
        *placements.entry(&placement.order_id).or_default() += 1;
    }
    let mut orders: HashMap<OrderKey<'_>, Vec<&str>> = HashMap::new();
    for order in &evidence.stored.orders {
        let key = (&order.partner_id[..], &order.external_order_id[..]);
        orders.entry(key).or_default().push(&order.order_id);
    }
    let only = orders.into_iter().filter(|(_, orders)| orders.len() == 1);
    only.map(|(key, orders)| {
        (
            key,
            (
                orders[0],
                placements.get(orders[0]).copied().unwrap_or_default(),
            ),
        )
    })
    .collect()
}

fn around(seen: Seen, at: Duration) -> Fact {
    Fact {
        seen,
        earliest: millis(at.saturating_sub(SAME_MOMENT)),
        latest: millis(at + SAME_MOMENT),
    }
}

fn millis(at: Duration) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(u64::MAX)
}

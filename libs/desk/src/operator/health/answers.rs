//! What partners get: whether their orders get through, in all and of each partner.
//!
//! A stage that lives is no proof that its work is done, so the verdict begins here. Ingress counts
//! in ticks of ten seconds what became of requests, and of a failure also whose it was
//! ([`store::figures::outcomes`]); what of a partner got through is counted in its stored orders,
//! and only of partners with failures, so that no order pays for it.
//!
//! Where everything fails, a few requests are enough to say so. Otherwise it is said once the share
//! of failures is several times the usual one. It is taken back as soon as so many requests have
//! got through one after the other that the share cannot be what it was.

use std::collections::{BTreeMap, HashMap};

use accounts::{
    partners::{self, keys},
    refused,
};
use pg::{Result, count};
use serde::Serialize;
use sqlx::PgConnection;
use store::figures::{self, Measure, OutcomeCount};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::finding::{FailingPartner, FailureKind, Finding, FindingKind, LeadingCode};
use crate::self_service::first_id;

/// The minutes of what is told of orders that got through, and of a share of failures.
pub const MINUTES: i64 = 10;
/// So many failures in a row, of all partners together and of one, show that everything fails.
const ALL_FAIL: u64 = 3;
const ALL_OF_ONE_FAIL: u64 = 5;
/// Requests without a known access key come from scanners, too.
const ALL_UNKNOWN_FAIL: u64 = 20;
/// A share is judged over at least so many requests, with at least so many failures.
const ENOUGH: u64 = 20;
const FAILURES: u64 = 5;
/// The smallest share that is told of all partners and of one, and how many times the usual one it
/// has to be.
const SHARE: f64 = 0.1;
const SHARE_OF_ONE: f64 = 0.5;
const TIMES: f64 = 3.0;
/// The hours that are usual.
const HOURS: i32 = 24;
/// The partners with the most failures are looked at one by one.
const PARTNERS: usize = 20;
/// The newest orders of such a partner that are counted.
const ORDERS: i64 = 2_000;
/// The last use of a key is noted to the minute.
const NOTED: Duration = Duration::minutes(1);
/// The id of an order is made shortly before PostgreSQL sets its time by another clock.
const SKEW: Duration = Duration::minutes(5);

/// What became of the orders of the last minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OrdersLately {
    pub answered: u64,
    /// Those that were stored, or are stored already.
    pub through: u64,
}

impl OrdersLately {
    /// What a verdict rests on.
    pub fn told(&self) -> String {
        match self.answered {
            0 => format!("no order came in the last {MINUTES} minutes"),
            answered => format!(
                "{} of {answered} orders were accepted in the last {MINUTES} minutes",
                self.through
            ),
        }
    }
}

/// What became of requests in one tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tick {
    all: u64,
    failed: u64,
}

type Ticks = BTreeMap<OffsetDateTime, Tick>;

/// Requests that fail.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Failing {
    everything: bool,
    failed: u64,
    all: u64,
    since: OffsetDateTime,
    last: OffsetDateTime,
}

/// What is judged differently of all partners and of one.
#[derive(Clone, Copy)]
struct Limits {
    all_fail: u64,
    share: f64,
}

const OF_ALL: Limits = Limits {
    all_fail: ALL_FAIL,
    share: SHARE,
};
const OF_ONE: Limits = Limits {
    all_fail: ALL_OF_ONE_FAIL,
    share: SHARE_OF_ONE,
};
const OF_UNKNOWN: Limits = Limits {
    all_fail: ALL_UNKNOWN_FAIL,
    share: f64::INFINITY,
};

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn share_of(failed: u64, all: u64) -> f64 {
    if all == 0 {
        0.0
    } else {
        failed as f64 / all as f64
    }
}

/// The time up to which the requests of a tick were counted.
fn end(at: OffsetDateTime, now: OffsetDateTime) -> OffsetDateTime {
    (at + Duration::seconds(figures::TICK.into())).min(now)
}

#[expect(clippy::cast_precision_loss, reason = "a share of a count")]
fn judge(ticks: &Ticks, usual: f64, limits: Limits, now: OffsetDateTime) -> Option<Failing> {
    let newest = ticks.iter().rev().find(|(_, tick)| tick.failed > 0);
    let (newest, _) = newest?;
    let after = ticks.range(newest..).skip(1);
    let got_through: u64 = after.map(|(_, tick)| tick.all).sum();
    let last = end(*newest, now);
    if got_through == 0 {
        let mut whole = Tick::default();
        let mut since = *newest;
        let failing = ticks.iter().rev().filter(|(_, tick)| tick.all > 0);
        for (at, tick) in failing.take_while(|(_, tick)| tick.failed >= tick.all) {
            whole.all += tick.all;
            whole.failed += tick.failed;
            since = *at;
        }
        if whole.failed >= limits.all_fail {
            let Tick { all, failed } = whole;
            let everything = true;
            return Some(Failing {
                everything,
                failed,
                all,
                since,
                last,
            });
        }
    }
    let mut newly = Tick::default();
    for (_, tick) in ticks.range(now - Duration::minutes(MINUTES)..).rev() {
        newly.all += tick.all;
        newly.failed += tick.failed;
        let share = share_of(newly.failed, newly.all);
        let is_unusual = share >= limits.share && share >= TIMES * usual;
        // So many in a row get through by chance in one of a hundred cases, if as many fail as did
        // up to the last failure.
        let before = share_of(newly.failed, newly.all.saturating_sub(got_through));
        let is_over = got_through as f64 >= 5.0 / before;
        if newly.all >= ENOUGH && newly.failed >= FAILURES && is_unusual && !is_over {
            let Tick { all, failed } = newly;
            return Some(Failing {
                everything: false,
                failed,
                all,
                since: began(ticks, share),
                last,
            });
        }
    }
    None
}

/// Since when about this share fails: before it, so many requests got through in a row that it did
/// not.
#[expect(clippy::cast_precision_loss, reason = "a share of a count")]
fn began(ticks: &Ticks, share: f64) -> OffsetDateTime {
    let mut since = None;
    let mut in_a_row = 0;
    for (at, tick) in ticks.iter().rev() {
        if tick.failed > 0 {
            since = Some(*at);
            in_a_row = 0;
        } else {
            in_a_row += tick.all;
        }
        if since.is_some() && in_a_row as f64 >= 5.0 / share {
            break;
        }
    }
    since.unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// What was counted in the last hour.
struct Outcomes(Vec<OutcomeCount>);

impl Outcomes {
    fn of(&self, measure: Measure) -> impl Iterator<Item = &OutcomeCount> {
        self.0.iter().filter(move |one| one.measure == measure)
    }

    /// The requests of all partners together, of which some have failed in this way.
    fn of_all(&self, how: FailureKind) -> Ticks {
        let mut ticks = Ticks::new();
        for one in self.of(Measure::Answered) {
            let tick = ticks.entry(one.at).or_default();
            tick.all += one.n;
            if how == FailureKind::Errors {
                tick.failed += one.failed;
            }
        }
        if how == FailureKind::Errors {
            return ticks;
        }
        for one in self.of(how.measure()).filter(|one| !one.subject.is_empty()) {
            let tick = ticks.entry(one.at).or_default();
            tick.failed += one.n;
            if how == FailureKind::Denied {
                tick.all += one.n;
            }
            // Both are counted at the end of a request, but not in the same moment.
            tick.all = tick.all.max(tick.failed);
        }
        ticks
    }

    /// All orders, and the requests without a known access key.
    fn of_unknown(&self) -> Ticks {
        let mut ticks = Ticks::new();
        for one in self.of(Measure::Answered) {
            ticks.entry(one.at).or_default().all += one.n;
        }
        for one in self
            .of(Measure::Denied)
            .filter(|one| one.subject.is_empty())
        {
            let tick = ticks.entry(one.at).or_default();
            tick.failed += one.n;
            tick.all += one.n;
        }
        ticks
    }

    /// The failures of each partner in each way, those with the most first.
    fn partners(&self) -> Vec<Uuid> {
        let mut failures: HashMap<Uuid, u64> = HashMap::new();
        for how in FailureKind::ALL {
            for one in self.of(how.measure()) {
                if let Ok(partner) = one.subject.parse() {
                    *failures.entry(partner).or_default() += one.n;
                }
            }
        }
        let mut partners: Vec<(u64, Uuid)> = failures.into_iter().map(|(id, n)| (n, id)).collect();
        partners.sort_unstable_by(|a, b| b.cmp(a));
        partners.into_iter().map(|(_, id)| id).collect()
    }

    /// The requests of a partner, of which some have failed in this way.
    fn of_partner(&self, partner: Uuid, how: FailureKind, stored: &Ticks) -> Ticks {
        let subject = partner.to_string();
        let mut ticks = stored.clone();
        for other in FailureKind::ALL {
            // A 401 is no order.
            if other == FailureKind::Denied && how != FailureKind::Denied {
                continue;
            }
            for one in self
                .of(other.measure())
                .filter(|one| one.subject == subject)
            {
                let tick = ticks.entry(one.at).or_default();
                tick.all += one.n;
                if other == how {
                    tick.failed += one.n;
                }
            }
        }
        ticks
    }

    fn lately(&self, now: OffsetDateTime) -> OrdersLately {
        let since = now - Duration::minutes(MINUTES);
        let sum = |measure: Measure| -> u64 {
            let newly = self.of(measure).filter(|one| one.at >= since);
            newly.map(|one| one.n).sum()
        };
        let newly = self.of(Measure::Answered).filter(|one| one.at >= since);
        let failed: u64 = newly.map(|one| one.failed).sum();
        let refused = [Measure::Refused, Measure::Invalid, Measure::Limited];
        let refused: u64 = refused.into_iter().map(sum).sum();
        let answered = sum(Measure::Answered);
        OrdersLately {
            answered,
            through: answered.saturating_sub(failed + refused),
        }
    }
}

/// Which share of the requests fails in this way in a usual hour.
fn usual(hours: &[OutcomeCount], how: FailureKind) -> f64 {
    let mut by_hour = Ticks::new();
    for one in hours {
        let hour = by_hour.entry(one.at).or_default();
        if one.measure == Measure::Answered {
            hour.all += one.n;
        }
        if how == FailureKind::Errors && one.measure == Measure::Answered {
            hour.failed += one.failed;
        } else if how != FailureKind::Errors && one.measure == how.measure() {
            hour.failed += one.n;
            hour.all += if how == FailureKind::Denied { one.n } else { 0 };
        }
    }
    let known = by_hour.values().filter(|hour| hour.all >= ENOUGH);
    let mut shares: Vec<f64> = known.map(|hour| share_of(hour.failed, hour.all)).collect();
    shares.sort_by(f64::total_cmp);
    shares.get(shares.len() / 2).copied().unwrap_or_default()
}

/// Finds what fails, and returns what became of the orders of the last minutes.
pub(super) async fn find(
    connection: &mut PgConnection,
    now: OffsetDateTime,
    findings: &mut Vec<Finding>,
) -> Result<OrdersLately> {
    let outcomes = Outcomes(figures::outcomes(&mut *connection).await?);
    let is_failure = |one: &OutcomeCount| one.measure != Measure::Answered || one.failed > 0;
    if !outcomes.0.iter().any(is_failure) {
        return Ok(outcomes.lately(now));
    }
    let hours = figures::usual_outcomes(&mut *connection, HOURS).await?;
    let mut ids = outcomes.partners();
    let others = ids.len().saturating_sub(PARTNERS);
    ids.truncate(PARTNERS);
    let names = partners::names_and_live(&mut *connection, &ids).await?;
    let failing: Vec<FailingPartner> = ids
        .into_iter()
        .filter_map(|partner_id| {
            let (name, is_live) = names.get(&partner_id)?.clone();
            Some(FailingPartner {
                partner_id,
                name,
                is_live,
            })
        })
        .collect();
    let stored = stored(connection, &failing, now).await?;
    for how in FailureKind::ALL {
        let of_one = failing.iter().filter_map(|partner| {
            let mine = stored.get(&partner.partner_id);
            let ticks = mine.cloned().unwrap_or_default();
            let ticks = outcomes.of_partner(partner.partner_id, how, &ticks);
            Some((partner, judge(&ticks, 0.0, OF_ONE, now)?))
        });
        let of_one: Vec<(&FailingPartner, Failing)> = of_one.collect();
        let of_all = judge(&outcomes.of_all(how), usual(&hours, how), OF_ALL, now);
        // One partner with many failures is a matter of its own, and no sign of others.
        let explained: u64 = of_one.iter().map(|(_, one)| one.failed).sum();
        let is_explained = |one: &Failing| !one.everything && explained * 10 >= one.failed * 8;
        if let Some(found) = of_all.filter(|one| !is_explained(one)) {
            let felt = failing.iter().filter(|partner| {
                let ticks = outcomes.of_partner(partner.partner_id, how, &Ticks::new());
                ticks.range(found.since..).any(|(_, tick)| tick.failed > 0)
            });
            let partners: Vec<FailingPartner> = felt.cloned().collect();
            // What is wrong with the requests of one partner is a matter of that partner.
            let is_ours = matches!(how, FailureKind::Errors | FailureKind::Refused);
            if is_ours || partners.len() > 1 {
                findings.push(finding(how, None, partners, others, found));
                continue;
            }
        }
        findings.extend(of_one.into_iter().map(|(partner, found)| {
            let id = Some(partner.partner_id);
            finding(how, id, vec![partner.clone()], 0, found)
        }));
    }
    let orders_are_usual = hours
        .iter()
        .chain(&outcomes.0)
        .any(|one| one.measure == Measure::Answered && one.n > 0);
    let unknown = judge(&outcomes.of_unknown(), 0.0, OF_UNKNOWN, now);
    if let Some(found) = unknown.filter(|_| orders_are_usual) {
        findings.push(finding(FailureKind::Denied, None, Vec::new(), 0, found));
    }
    name_ended_keys(&mut *connection, findings).await?;
    name_codes(connection, findings, now).await?;
    Ok(outcomes.lately(now))
}

/// Says of each finding about 401 which keys of its partners have ended and are used all the same.
async fn name_ended_keys(connection: &mut PgConnection, findings: &mut [Finding]) -> Result<()> {
    for one in findings {
        let FindingKind::OrdersFail {
            how: FailureKind::Denied,
            partners,
            ended_keys,
            ..
        } = &mut one.kind
        else {
            continue;
        };
        let ids: Vec<Uuid> = partners.iter().map(|one| one.partner_id).collect();
        let since = one.since.unwrap_or(OffsetDateTime::UNIX_EPOCH);
        if !ids.is_empty() {
            *ended_keys = keys::ended_in_use(&mut *connection, &ids, since - NOTED).await?;
        }
    }
    Ok(())
}

/// Says of each finding about other 4xx which code leads. Of each partner the newest refused
/// requests are kept, so it is a share of those.
async fn name_codes(
    connection: &mut PgConnection,
    findings: &mut [Finding],
    now: OffsetDateTime,
) -> Result<()> {
    for one in findings {
        let FindingKind::OrdersFail {
            how: FailureKind::Invalid,
            partners,
            leading,
            ..
        } = &mut one.kind
        else {
            continue;
        };
        let ids: Vec<Uuid> = partners.iter().map(|one| one.partner_id).collect();
        let since = one.since.unwrap_or(now - Duration::minutes(MINUTES));
        let codes = refused::codes_since(&mut *connection, &ids, since).await?;
        let of: u64 = codes.iter().map(|(_, count)| count).sum();
        *leading = codes
            .into_iter()
            .next()
            .map(|(code, count)| LeadingCode { code, count, of });
    }
    Ok(())
}

fn finding(
    how: FailureKind,
    partner: Option<Uuid>,
    partners: Vec<FailingPartner>,
    others: usize,
    found: Failing,
) -> Finding {
    let kind = FindingKind::OrdersFail {
        how,
        partner,
        everything: found.everything,
        failed: found.failed,
        all: found.all,
        last: found.last,
        partners,
        others,
        ended_keys: Vec::new(),
        leading: None,
    };
    Finding::new(kind, Some(found.since))
}

/// The orders of these partners in the last hour that stand, by tick.
async fn stored(
    connection: &mut PgConnection,
    partners: &[FailingPartner],
    now: OffsetDateTime,
) -> Result<HashMap<Uuid, Ticks>> {
    let ids: Vec<Uuid> = partners.iter().map(|one| one.partner_id).collect();
    let since = now - Duration::hours(1);
    let query = sqlx::query!(
        r#"SELECT wanted.partner_id AS "partner_id!", newest.at AS "at!", count(*) AS "orders!"
           FROM unnest($1::uuid[]) AS wanted (partner_id)
           CROSS JOIN LATERAL (
               SELECT date_bin('10 seconds', o.created_at, '2000-01-01 00:00:00+00') AS at, o.refused_at
               FROM orders o
               WHERE o.partner_id = wanted.partner_id AND (o.partner_id, o.order_id) >= (wanted.partner_id, $2::uuid)
               ORDER BY o.order_id DESC LIMIT $3) newest
           WHERE newest.refused_at IS NULL AND newest.at >= $4
           GROUP BY 1, 2"#,
        &ids,
        first_id(since - SKEW),
        ORDERS,
        since,
    );
    let mut stored: HashMap<Uuid, Ticks> = HashMap::new();
    for row in query.fetch_all(connection).await? {
        let ticks = stored.entry(row.partner_id).or_default();
        ticks.entry(row.at).or_default().all += count(row.orders);
    }
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-01-29 18:07:30 UTC);

    /// Ticks of so many requests and failures, the newest last.
    fn ticks(of: &[(u64, u64)]) -> Ticks {
        let last = i64::try_from(of.len()).unwrap();
        let at = |nth: usize| NOW - Duration::seconds(10 * (last - i64::try_from(nth).unwrap()));
        let ticks = of.iter().enumerate();
        ticks
            .map(|(nth, (all, failed))| {
                let (all, failed) = (*all, *failed);
                (at(nth), Tick { all, failed })
            })
            .collect()
    }

    #[test]
    fn where_everything_fails_a_few_requests_are_enough() {
        let found = judge(&ticks(&[(9, 0), (2, 2), (0, 0), (1, 1)]), 0.9, OF_ALL, NOW).unwrap();
        assert!(found.everything);
        assert_eq!((found.failed, found.all), (3, 3));
        assert_eq!(found.since, NOW - Duration::seconds(30));
        assert_eq!(found.last, NOW);
        for fine in [
            &[(9, 0), (2, 2)][..],
            &[(3, 3), (1, 0)],
            &[(90, 90), (60, 0)],
            &[],
        ] {
            assert_eq!(judge(&ticks(fine), 0.0, OF_ALL, NOW), None, "{fine:?}");
        }
        assert_eq!(judge(&ticks(&[(4, 4)]), 0.0, OF_ONE, NOW), None);
        assert!(judge(&ticks(&[(5, 5)]), 0.0, OF_ONE, NOW).is_some());
        assert_eq!(judge(&ticks(&[(19, 19)]), 0.0, OF_UNKNOWN, NOW), None);
    }

    #[test]
    fn a_share_is_told_where_it_leaves_what_was_usual_and_until_enough_get_through() {
        let some = ticks(&[(20, 0), (20, 6), (20, 6)]);
        let found = judge(&some, 0.01, OF_ALL, NOW).unwrap();
        assert!(!found.everything);
        assert_eq!((found.failed, found.all), (6, 20));
        assert_eq!(found.since, NOW - Duration::seconds(20));
        assert_eq!(judge(&some, 0.2, OF_ALL, NOW), None, "it is usual");
        assert_eq!(judge(&some, 0.0, OF_ONE, NOW), None, "of one it is little");
        let mended = ticks(&[(20, 6), (20, 0)]);
        assert_eq!(judge(&mended, 0.0, OF_ALL, NOW), None);
        let half_mended = ticks(&[(20, 20), (3, 0)]);
        assert!(judge(&half_mended, 0.0, OF_ALL, NOW).is_some());
        // In the tick in which it begins, others got through.
        assert!(judge(&ticks(&[(40, 20)]), 0.0, OF_ALL, NOW).is_some());
    }

    #[test]
    fn what_is_usual_is_the_share_of_a_middle_hour() {
        let hour = |nth: i64, measure, n, failed| OutcomeCount {
            at: NOW - Duration::hours(nth),
            measure,
            subject: String::new(),
            n,
            failed,
        };
        let hours = [
            hour(2, Measure::Answered, 100, 100),
            hour(3, Measure::Answered, 100, 2),
            hour(3, Measure::Refused, 10, 0),
            hour(4, Measure::Answered, 100, 0),
            hour(5, Measure::Answered, 3, 3),
        ];
        assert!((usual(&hours, FailureKind::Errors) - 0.02).abs() < 1e-9);
        assert!(usual(&hours, FailureKind::Refused).abs() < 1e-9);
        assert!(usual(&[], FailureKind::Denied).abs() < 1e-9);
    }
}

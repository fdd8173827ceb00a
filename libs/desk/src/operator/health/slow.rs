//! What takes much longer than before: answers, purchases, calls to a provider, webhook requests
//! and deliveries, compared with the last day. A system that is too young to have a usual time is
//! compared with what is slow anywhere ([`bound`]), so that it calls nothing good that is slow from
//! its first minute on.
//!
//! It is read from the figures that the stages write, so it costs no order anything, and answers
//! "slow since when?" from PostgreSQL alone. What does not end at all is in no figure; that is
//! found by its age ([`FindingKind::PurchasesLate`](super::FindingKind::PurchasesLate) and others).

use std::collections::BTreeMap;

use pg::Result;
use sqlx::PgConnection;
use store::figures::{self, Count, FigureSpan, Measure, Within};
use time::OffsetDateTime;

use super::finding::{Finding, FindingKind};

/// How many hours the present is compared with.
const HOURS: i32 = 24;
/// How many minutes are read one by one.
const MINUTES: i32 = 60;
/// So many events that ended one after the other are judged together. The newest of them have to be
/// of the last minutes, so that it is told within a minute that something has become slow, or is
/// fast again, however many were fast or slow before. Fewer are no measure: the first calls of a
/// process open their connections, and what waited for a process that was away is late once.
pub const ENOUGH: u64 = 20;
/// An hour is usual with so many.
const ENOUGH_OF_HOUR: u64 = 10;
const NEWLY: time::Duration = time::Duration::minutes(10);
/// So many hours make a usual time.
const USUAL: usize = 3;
/// How many times as long as usual is slow, and what is not slow however short the usual time is.
const TIMES: f64 = 3.0;
const LEAST: f64 = 1.0;
/// What is judged.
const MEASURES: [Measure; 5] = [
    Measure::Answered,
    Measure::Bought,
    Measure::Call,
    Measure::Attempt,
    Measure::Delivered,
];

/// The counts of a measure and a subject, by time.
type Times = BTreeMap<OffsetDateTime, Count>;

/// Something that is slow.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slow {
    /// How many seconds half of them take now or more, and within how many they ended before, if a
    /// usual time is known.
    half: f64,
    before: Option<f64>,
    /// How many events of now that rests on, and on how many hours the usual time.
    newest: u64,
    hours: usize,
    since: OffsetDateTime,
}

pub(super) async fn find(
    connection: &mut PgConnection,
    now: OffsetDateTime,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let hours = figures::halves(&mut *connection, FigureSpan::Hour, HOURS, &MEASURES).await?;
    let minutes = figures::halves(connection, FigureSpan::Minute, MINUTES, &MEASURES).await?;
    let mut found = BTreeMap::new();
    let none = Times::new();
    for (of, minutes) in minutes {
        let hours = hours.get(&of).unwrap_or(&none);
        if let Some(slow) = judge(of.0, hours, &minutes, now) {
            found.insert(of, slow);
        }
    }
    for ((measure, subject), slow) in &found {
        let part_is_slow = part(*measure).is_some_and(|part| {
            let mut all = found.keys();
            all.any(|(of, whose)| *of == part && (whose == subject || subject.is_empty()))
        });
        let kind = FindingKind::Slow {
            measure: *measure,
            subject: subject.clone(),
            half: slow.half,
            before: slow.before,
            newest: slow.newest,
            hours: slow.hours,
            part_is_slow,
        };
        findings.push(Finding::new(kind, Some(slow.since)));
    }
    Ok(())
}

/// What somebody else takes of this time, and is measured by itself. The rest of it passes here.
fn part(measure: Measure) -> Option<Measure> {
    match measure {
        Measure::Bought => Some(Measure::Call),
        Measure::Delivered => Some(Measure::Attempt),
        _ => None,
    }
}

/// What is measured, in words.
pub(super) fn took_of(measure: Measure, subject: &str) -> String {
    match measure {
        Measure::Answered => "answers to orders are slow".to_owned(),
        Measure::Bought => format!("purchases at {subject} are slow, from the order on"),
        Measure::Ready => format!("eSIMs of {subject} are slow, from the order on"),
        Measure::Call => format!("calls to {subject} are slow"),
        Measure::Attempt => "webhook requests are slow".to_owned(),
        Measure::Delivered => "webhooks are slow, from the order on".to_owned(),
        // These are counts, and have no duration.
        Measure::Refused
        | Measure::Errors
        | Measure::Invalid
        | Measure::Limited
        | Measure::Denied
        | Measure::Failed
        | Measure::Parked
        | Measure::Exhausted => format!("{} are slow", measure.as_str()),
    }
}

/// From how many seconds on something is slow of which no usual time is known.
pub(super) fn bound(measure: Measure) -> f64 {
    match measure {
        // As in the alert `IngressSlow`, and the time from which on an endpoint gets few permits.
        Measure::Answered | Measure::Attempt => 3.0,
        // An order has been answered without its verdict by then. As in the alert `ProviderSlow`.
        Measure::Call => 5.0,
        // Nearly all are finished before their first lease ends.
        Measure::Bought => 10.0,
        // The first lease, and the objective of webhooks.
        Measure::Delivered | Measure::Ready => 30.0,
        // These are counts, and have no duration.
        Measure::Refused
        | Measure::Errors
        | Measure::Invalid
        | Measure::Limited
        | Measure::Denied
        | Measure::Failed
        | Measure::Parked
        | Measure::Exhausted => f64::INFINITY,
    }
}

/// Within which time half of these ended, if they are enough.
fn half(count: &Count, enough: u64) -> Option<Within> {
    count.within(0.5).filter(|_| count.n >= enough)
}

fn judge(measure: Measure, hours: &Times, minutes: &Times, now: OffsetDateTime) -> Option<Slow> {
    let this_hour = now - time::Duration::hours(1);
    let mut usual: Vec<f64> = hours
        .range(..this_hour)
        .filter_map(|(_, count)| Some(half(count, ENOUGH_OF_HOUR)?.drawn()))
        .collect();
    usual.sort_by(f64::total_cmp);
    let middle = usual.len().saturating_sub(1) / 2;
    let before = usual.get(middle).copied().filter(|_| usual.len() >= USUAL);
    // Certainly slow: the least that it may be is so many times the most that it may have been.
    let least = before.map_or(bound(measure), |before| LEAST.max(TIMES * before));
    let is_slow = |half: Within| half.over >= least;
    let mut slow: Option<Slow> = None;
    let mut judged = Count::default();
    for (at, count) in minutes.iter().rev() {
        if slow.is_none() && *at < now - NEWLY {
            return None;
        }
        judged.merge(count);
        let Some(half) = half(&judged, ENOUGH) else {
            continue;
        };
        if !is_slow(half) {
            return slow;
        }
        // The newest events say how slow it is, and those before them since when.
        let newest = Slow {
            half: half.over,
            before,
            newest: judged.n,
            hours: usual.len(),
            since: *at,
        };
        slow = Some(Slow {
            since: *at,
            ..slow.unwrap_or(newest)
        });
        judged = Count::default();
    }
    // It has been slow for longer than the minutes go back.
    let mut slow = slow?;
    for (at, count) in hours.range(..slow.since).rev() {
        match half(count, ENOUGH_OF_HOUR) {
            Some(half) if !is_slow(half) => break,
            Some(_) => slow.since = *at,
            None => {}
        }
    }
    Some(slow)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use time::macros::datetime;

    use super::*;

    const CALL: Measure = Measure::Call;
    const NOW: OffsetDateTime = datetime!(2026-01-29 18:07:30 UTC);

    /// Twenty events of this many milliseconds.
    fn events(milliseconds: u64) -> Count {
        let mut count = Count::default();
        for _ in 0..20 {
            count.note(Some(Duration::from_millis(milliseconds)), false);
        }
        count
    }

    /// Each hour of a day and each minute of the last hour, as fast as this says of each time.
    fn day(took: impl Fn(OffsetDateTime) -> u64) -> (Times, Times) {
        let hour = NOW.replace_minute(0).unwrap().replace_second(0).unwrap();
        let hours = (0..24).map(|back| hour - time::Duration::hours(back));
        let minute = NOW.replace_second(0).unwrap();
        let minutes = (0..60).map(|back| minute - time::Duration::minutes(back));
        (
            hours.map(|at| (at, events(took(at)))).collect(),
            minutes.map(|at| (at, events(took(at)))).collect(),
        )
    }

    #[test]
    fn what_has_been_slow_since_noon_is_told_so() {
        let noon = datetime!(2026-01-29 12:00 UTC);
        let (hours, minutes) = day(|at| if at < noon { 80 } else { 5_000 });
        let slow = judge(CALL, &hours, &minutes, NOW).unwrap();
        assert_eq!(slow.since, noon);
        assert_eq!((slow.before, slow.half), (Some(0.082), 4.7));
        assert_eq!((slow.newest, slow.hours), (20, 23));
    }

    #[test]
    fn what_is_slow_since_some_minutes_is_found_and_what_was_slow_is_not() {
        let fault = datetime!(2026-01-29 17:40 UTC);
        let (hours, minutes) = day(|at| if at < fault { 80 } else { 5_000 });
        assert_eq!(judge(CALL, &hours, &minutes, NOW).unwrap().since, fault);
        let mended = datetime!(2026-01-29 17:55 UTC);
        let (hours, minutes) = day(|at| {
            if (fault..mended).contains(&at) {
                5_000
            } else {
                80
            }
        });
        assert_eq!(judge(CALL, &hours, &minutes, NOW), None);
    }

    /// A minute ago it became slow, or fast again. Nobody waits for five minutes to hear of it.
    #[test]
    fn the_newest_events_decide_however_many_were_before() {
        let newest = datetime!(2026-01-29 18:07 UTC);
        let (hours, minutes) = day(|at| if at < newest { 80 } else { 8_000 });
        let slow = judge(CALL, &hours, &minutes, NOW).unwrap();
        assert_eq!(slow.since, newest);
        assert_eq!((slow.before, slow.half), (Some(0.082), 6.8));
        let (hours, minutes) = day(|at| if at < newest { 8_000 } else { 80 });
        assert_eq!(judge(CALL, &hours, &minutes, NOW), None);
    }

    /// A process has just begun, and its first calls are slow.
    #[test]
    fn the_first_events_of_a_minute_are_no_measure() {
        let newest = datetime!(2026-01-29 18:07 UTC);
        let (hours, mut minutes) = day(|at| if at < newest { 80 } else { 8_000 });
        minutes.retain(|at, _| *at == newest);
        let with = |number: u64, minutes: &Times| {
            let mut count = Count::default();
            for _ in 0..number {
                count.note(Some(Duration::from_secs(8)), false);
            }
            judge(
                CALL,
                &hours,
                &minutes.keys().map(|at| (*at, count.clone())).collect(),
                NOW,
            )
        };
        assert_eq!(with(19, &minutes), None);
        assert_eq!(with(20, &minutes).unwrap().newest, 20);
    }

    /// Four events a minute: five minutes are judged together.
    #[test]
    fn few_events_are_judged_over_several_minutes() {
        let few = |(hours, minutes): (Times, Times)| {
            let fewer = |(at, mut count): (OffsetDateTime, Count)| {
                count.n /= 5;
                let buckets = count.histogram.iter_mut().chain(&mut count.fine);
                buckets.for_each(|bucket| *bucket /= 5);
                (at, count)
            };
            (hours, minutes.into_iter().map(fewer).collect::<Times>())
        };
        let fault = datetime!(2026-01-29 18:03 UTC);
        let (hours, minutes) = few(day(|at| if at < fault { 80 } else { 8_000 }));
        assert_eq!(judge(CALL, &hours, &minutes, NOW).unwrap().since, fault);
        let (hours, minutes) = few(day(|at| if at < NOW { 8_000 } else { 80 }));
        let since = judge(CALL, &hours, &minutes, NOW);
        assert!(since.is_none(), "it was always slow: {since:?}");
        let (hours, mut minutes) = few(day(|at| if at < fault { 80 } else { 8_000 }));
        minutes.retain(|at, _| *at < NOW - NEWLY);
        assert_eq!(judge(CALL, &hours, &minutes, NOW), None, "nothing is newer");
    }

    /// Nothing is known of the day before, so that is not told as what is usual.
    #[test]
    fn a_young_system_is_judged_by_what_is_slow_anywhere() {
        let young = |milliseconds: u64, since: OffsetDateTime| {
            let (hours, minutes) = day(|_| milliseconds);
            let hours = hours.into_iter().filter(|(at, _)| *at >= since).collect();
            let minutes = minutes.into_iter().filter(|(at, _)| *at >= since);
            (hours, minutes.collect::<Times>())
        };
        let begun = datetime!(2026-01-29 18:00 UTC);
        let (hours, minutes) = young(8_000, begun);
        let slow = judge(CALL, &hours, &minutes, NOW).unwrap();
        assert_eq!((slow.before, slow.half, slow.since), (None, 6.8, begun));
        assert_eq!((slow.newest, slow.hours), (20, 0));
        let none = judge(Measure::Delivered, &hours, &minutes, NOW);
        assert_eq!(none, None, "a delivery may take so long");
        let (hours, minutes) = young(5_000, begun);
        assert_eq!(judge(CALL, &hours, &minutes, NOW), None);
        // Two hours are not enough to say what is usual.
        let begun = datetime!(2026-01-29 16:00 UTC);
        let (hours, minutes) = young(8_000, begun);
        let slow = judge(CALL, &hours, &minutes, NOW).unwrap();
        assert_eq!((slow.before, slow.hours, slow.since), (None, 2, begun));
    }

    #[test]
    fn what_is_always_slow_or_happens_seldom_is_not_found() {
        let (hours, minutes) = day(|_| 5_000);
        assert_eq!(judge(CALL, &hours, &minutes, NOW), None);
        let (_, minutes) = day(|_| 5_000);
        let (hours, _) = day(|_| 80);
        let few = hours.into_iter().rev().take(2).collect();
        assert_eq!(
            judge(CALL, &few, &minutes, NOW),
            None,
            "no usual time is known"
        );
        let (hours, minutes) = day(|at| if at < NOW - NEWLY { 80 } else { 240 });
        assert_eq!(
            judge(CALL, &hours, &minutes, NOW),
            None,
            "240 ms is not slow"
        );
    }
}

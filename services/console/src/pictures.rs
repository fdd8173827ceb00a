//! The pictures of the pages, as SVG made here. They
//! have no style or script of their own, because the policy of the pages allows none; their classes
//! are in the style sheet.

use std::fmt::Write;

use askama::filters::escape;
use store::figures::{Count, Within, limit};
use time::{Duration, OffsetDateTime};

use crate::{format::number, view::Visible};

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepResult {
    Well,
    Badly,
    /// It says nothing about success, such as a look-up that found nothing yet.
    Neutral,
}

impl StepResult {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Well => "good",
            Self::Badly => "bad",
            Self::Neutral => "note",
        }
    }
}

/// One step of an order.
#[derive(Clone, Debug)]
pub(crate) struct OrderStep {
    pub(crate) at: OffsetDateTime,
    /// How long it took, if that is known.
    pub(crate) took: Option<Duration>,
    pub(crate) went: StepResult,
    pub(crate) text: String,
    /// Whether it is an action that found nothing to change.
    pub(crate) changed_nothing: bool,
}

/// A chart of the overview. Its texts are HTML beside the picture, so they stay readable when the
/// page stretches it.
pub(crate) struct Chart {
    pub(crate) title: &'static str,
    /// What it says of the last bars or of its first line.
    pub(crate) value: String,
    /// What it says of its second line, if it has two.
    pub(crate) half: Option<String>,
    /// What its upper edge means.
    pub(crate) most: String,
    pub(crate) picture: String,
    /// Four times: at the left edge, at thirds, and the last one.
    pub(crate) axis: Vec<String>,
}

/// Which share of failures is more than usual, so that its bar is red.
const LIMIT: f64 = 0.05;

#[expect(clippy::cast_precision_loss, reason = "a place in a picture")]
fn width(bars: usize) -> f64 {
    100.0 / bars.max(1) as f64
}

/// Draws bars. Each has its height as a share, whether it is beyond the limit, and what it says.
fn drawn(name: &str, bars: &[(f64, bool, String)]) -> String {
    let name = escape(name, Visible).map_or_else(|_| String::new(), |safe| safe.to_string());
    let mut svg = format!(
        "<svg viewBox=\"0 0 100 40\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{name}; the CSV has the values\">"
    );
    let wide = width(bars.len());
    let mut x = 0.0;
    for (share, beyond, says) in bars {
        let least = if *share > 0.0 { 0.6 } else { 0.0 };
        let height = (share * 40.0).clamp(least, 40.0);
        let class = if *beyond { "b2" } else { "b1" };
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{height:.2}\"><title>{says}</title></rect>",
            x + wide * 0.12,
            40.0 - height,
            wide * 0.76,
        );
        x += wide;
    }
    svg.push_str("</svg>");
    svg
}

fn axis(times: &[String]) -> Vec<String> {
    let at = |index: usize| times.get(index).cloned().unwrap_or_default();
    let third = times.len() / 3;
    vec![at(0), at(third), at(third * 2), "now".to_owned()]
}

/// How many there were in each time.
pub(crate) fn bars(
    title: &'static str,
    per: &str,
    counts: &[Option<&Count>],
    times: &[String],
) -> Chart {
    let numbers: Vec<u64> = counts
        .iter()
        .map(|count| count.map_or(0, |count| count.n))
        .collect();
    let most = numbers.iter().copied().max().unwrap_or_default();
    #[expect(clippy::cast_precision_loss, reason = "a height in a picture")]
    let bars: Vec<(f64, bool, String)> = numbers
        .iter()
        .zip(times)
        .map(|(n, at)| {
            let share = *n as f64 / most.max(1) as f64;
            (share, false, format!("{at}: {}", number(*n)))
        })
        .collect();
    let sum: u64 = numbers.iter().sum();
    Chart {
        title,
        value: format!("{} in all", number(sum)),
        half: None,
        most: format!("{} in {per}", number(most)),
        picture: drawn(title, &bars),
        axis: axis(times),
    }
}

/// The rows of a strip, and the height of each.
const ROWS: usize = 6;
const ROW: usize = 6;

/// Spans of time as bars between two times: each in the first row that has room for it, from the
/// first one on. What finds no room is in the list below only. Nothing at all is no picture.
pub(crate) fn strip(
    spans: &[(OffsetDateTime, OffsetDateTime, &'static str)],
    from: OffsetDateTime,
    to: OffsetDateTime,
) -> String {
    if spans.is_empty() {
        return String::new();
    }
    let all = (to - from).as_seconds_f64().max(1.0);
    let place = |at: OffsetDateTime| (at - from).as_seconds_f64().clamp(0.0, all) / all * 1_000.0;
    let mut rows: [Vec<(f64, f64)>; ROWS] = Default::default();
    let mut bars = String::new();
    for (since, until, class) in spans {
        // Short ones are drawn as wide as can be seen.
        let end = place(*until).max(3.0);
        let start = place(*since).min(end - 3.0);
        let is_free = |row: &Vec<(f64, f64)>| row.iter().all(|(a, b)| end < *a || *b < start);
        let Some(row) = rows.iter().position(is_free) else {
            continue;
        };
        rows[row].push((start, end));
        let class = match *class {
            "bad" => "w2",
            "warn" => "w1",
            _ => "w0",
        };
        let _ = write!(
            bars,
            "<rect class=\"{class}\" x=\"{start:.1}\" y=\"{}\" width=\"{:.1}\" height=\"4\"/>",
            row * ROW + 2,
            end - start,
        );
    }
    format!(
        "<svg viewBox=\"0 0 1000 38\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"When something was wrong; the lists say the same\">{bars}</svg>"
    )
}

/// How many orders were taken in each hour, and above them in red how many were not.
pub(crate) fn taken_and_not(
    title: &'static str,
    [taken, not]: &[Vec<u64>; 2],
    times: &[String],
) -> Chart {
    let both = || taken.iter().zip(not);
    let most = both().map(|(taken, not)| taken + not).max().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "a height in a picture")]
    let height = |n: u64| n as f64 / most.max(1) as f64 * 40.0;
    let wide = width(taken.len());
    let mut svg = format!(
        "<svg viewBox=\"0 0 100 40\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{title}: orders of each hour, and in red those that were not taken\">"
    );
    let mut x = wide * 0.12;
    for ((taken, not), at) in both().zip(times) {
        let says = format!("{at}: {} taken, {} not", number(*taken), number(*not));
        let top = 40.0 - height(taken + not);
        for (class, y, n) in [("b1", 40.0 - height(*taken), *taken), ("b2", top, *not)] {
            let _ = write!(
                svg,
                "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"{:.2}\"><title>{says}</title></rect>",
                wide * 0.76,
                height(n),
            );
        }
        x += wide;
    }
    svg.push_str("</svg>");
    let sum = |all: &[u64]| number(all.iter().sum::<u64>());
    Chart {
        title,
        value: format!("{} taken, {} not", sum(taken), sum(not)),
        half: None,
        most: format!("{} in an hour", number(most)),
        picture: svg,
        axis: axis(times),
    }
}

/// How many there were in each of the last hours, for a row of a list.
pub(crate) fn spark(hours: &[u64]) -> String {
    let most = hours.iter().copied().max().unwrap_or_default();
    let mut bars = String::new();
    for (nth, n) in hours.iter().enumerate().filter(|(_, n)| **n > 0) {
        #[expect(clippy::cast_precision_loss, reason = "a height in a picture")]
        let height = (*n as f64 / most as f64 * 21.0).max(0.7);
        let _ = write!(bars, "M{} 22v-{height:.1}h3v{height:.1}z", nth * 4);
    }
    format!(
        "<svg class=\"spark\" viewBox=\"0 0 {} 22\" role=\"img\" \
         aria-label=\"most {} in an hour, {} in the last one\"><path class=\"b1\" d=\"{bars}\"/></svg>",
        hours.len() * 4,
        number(most),
        number(hours.last().copied().unwrap_or_default()),
    )
}

impl Chart {
    /// Which share of them failed.
    pub(crate) fn share(title: &'static str, counts: &[Option<&Count>], times: &[String]) -> Self {
        let shares: Vec<Option<f64>> = counts
            .iter()
            .map(|count| count.and_then(Count::failed_share))
            .collect();
        let most = shares.iter().flatten().copied().fold(LIMIT, f64::max);
        let bars: Vec<(f64, bool, String)> = shares
            .iter()
            .zip(times)
            .map(|(share, at)| match share {
                Some(share) => (
                    share / most,
                    *share > LIMIT,
                    format!("{at}: {:.1} %", share * 100.0),
                ),
                None => (0.0, false, format!("{at}: none")),
            })
            .collect();
        let mut all = Count::default();
        for count in counts.iter().flatten() {
            all.merge(count);
        }
        Self {
            title,
            value: all.failed_share().map_or_else(
                || "none happened".to_owned(),
                |share| format!("{:.1} % of {}", share * 100.0, number(all.n)),
            ),
            half: None,
            most: format!("{:.0} %", most * 100.0),
            picture: drawn(title, &bars),
            axis: axis(times),
        }
    }
}

/// Within which time half of them and 95 % of them ended, as two lines.
pub(crate) fn lines(title: &'static str, counts: &[Option<&Count>], times: &[String]) -> Chart {
    let of = |share: f64| -> Vec<Option<Within>> {
        counts
            .iter()
            .map(|count| count.and_then(|count| count.within(share)))
            .collect()
    };
    let half = of(0.5);
    let most = of(0.95);
    let top = most.iter().flatten().map(|most| most.drawn());
    let top = top.fold(0.0, f64::max);
    let mut svg = format!(
        "<svg viewBox=\"0 0 100 40\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{title}; the CSV has the values\">"
    );
    for (class, values) in [("l1", &most), ("l0", &half)] {
        let wide = width(values.len());
        let mut x = 0.0;
        let mut points = String::new();
        for value in values {
            if let Some(value) = value {
                let y = 40.0 - (value.drawn() / top.max(f64::MIN_POSITIVE)).min(1.0) * 39.0;
                // As wide as its time, so that a single one is seen, too.
                let _ = write!(points, "{x:.2},{y:.2} {:.2},{y:.2} ", x + wide);
            }
            x += wide;
        }
        let _ = write!(
            svg,
            "<polyline class=\"{class}\" points=\"{}\"/>",
            points.trim_end()
        );
    }
    svg.push_str("</svg>");
    let last = |values: &[Option<Within>]| {
        let last = values.iter().rev().flatten().next();
        last.map_or_else(|| "–".to_owned(), |within| within.told())
    };
    Chart {
        title,
        value: format!("at worst {}", last(&most)),
        half: Some(format!("usually {}", last(&half))),
        most: if top > 0.0 {
            limit(top)
        } else {
            "none happened".to_owned()
        },
        picture: svg,
        axis: axis(times),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of the day of each bar, and its row.
    #[test]
    fn what_was_wrong_is_drawn_where_it_was() {
        let from = OffsetDateTime::UNIX_EPOCH;
        let at = |hours: i64| from + Duration::hours(hours);
        let spans = [
            (at(12), at(24), "bad"),
            (at(-9), at(6), "warn"),
            (at(18), at(24), ""),
        ];
        let strip = strip(&spans, from, at(24));
        for bar in [
            "class=\"w2\" x=\"500.0\" y=\"2\" width=\"500.0\"",
            "class=\"w1\" x=\"0.0\" y=\"2\" width=\"250.0\"",
            "class=\"w0\" x=\"750.0\" y=\"8\" width=\"250.0\"",
        ] {
            assert!(strip.contains(bar), "no {bar} in {strip}");
        }
        assert_eq!(super::strip(&[], from, at(24)), "");
    }

    #[test]
    fn a_chart_of_nothing_is_drawn_too_and_only_what_is_beyond_the_limit_is_red() {
        let times = ["09:00".to_owned(), "10:00".to_owned()];
        let none = bars("Orders", "an hour", &[None, None], &times);
        assert_eq!(none.picture.matches("<rect").count(), 2);
        let count = |n, failed| Count {
            n,
            failed,
            ..Count::default()
        };
        let day = taken_and_not("Orders", &[vec![3, 0], vec![1, 0]], &times);
        assert_eq!(
            (&*day.value, &*day.most),
            ("3 taken, 1 not", "4 in an hour")
        );
        assert!(
            day.picture
                .contains("class=\"b2\" x=\"6.00\" y=\"0.00\" width=\"38.00\" height=\"10.00\""),
            "{}",
            day.picture
        );
        let few = count(100, 5);
        let many = count(100, 6);
        let chart = Chart::share("Failed", &[Some(&few), Some(&many)], &times);
        assert_eq!(chart.picture.matches("class=\"b2\"").count(), 1);
        assert!(chart.picture.contains("10:00: 6.0 %"), "{}", chart.picture);
        let lines = lines("Order to eSIM", &[None], &times[..1]);
        assert_eq!(
            (lines.most.as_str(), lines.axis.len()),
            ("none happened", 4)
        );
    }
}

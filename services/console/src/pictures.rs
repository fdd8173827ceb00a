//! The pictures of the pages, as SVG made here: the timeline of an order and the sparklines. They
//! have no style or script of their own, because the policy of the pages allows none; their classes
//! are in the style sheet.

use std::fmt::Write;

use askama::filters::escape;
use time::{Duration, OffsetDateTime};

use crate::{
    format::{took, utc},
    view::Visible,
};

/// The width of a timeline in its own units.
const WIDTH: f64 = 720.0;
/// The left edge of the time axis. The names of the rows stand before it.
const LEFT: f64 = 120.0;
const RIGHT: f64 = WIDTH - 24.0;
const ROW: f64 = 34.0;
const HEAD: f64 = 26.0;
/// Times are drawn on a logarithmic axis that begins here, so that a purchase of 100 ms and retries
/// of 28 hours are both visible.
const FIRST: f64 = 0.05;

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Went {
    Well,
    Badly,
    /// It says nothing about success, such as a look-up that found nothing yet.
    Neutral,
}

impl Went {
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
pub(crate) struct Step {
    /// The row of the picture that it belongs to.
    pub(crate) row: &'static str,
    pub(crate) at: OffsetDateTime,
    /// How long it took, if that is known.
    pub(crate) took: Option<Duration>,
    pub(crate) went: Went,
    pub(crate) text: String,
    /// Whether it is an action that found nothing to change.
    pub(crate) changed_nothing: bool,
}

/// The rows of a timeline from top to bottom.
pub(crate) const ROWS: [&str; 4] = ["accepted", "purchase", "profiles", "webhooks"];
/// A further row, only of orders on which somebody has acted.
pub(crate) const ACTIONS: &str = "actions";

/// The place of a time on the axis.
fn place(after: f64, longest: f64) -> f64 {
    let scale = |seconds: f64| (1.0 + seconds.max(0.0) / FIRST).ln();
    LEFT + (RIGHT - LEFT) * scale(after) / scale(longest.max(1.0))
}

/// The marks of the axis: seconds and names.
const MARKS: [(f64, &str); 9] = [
    (0.1, "0.1 s"),
    (1.0, "1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3_600.0, "1 h"),
    (36_000.0, "10 h"),
    (345_600.0, "4 d"),
    (2_592_000.0, "30 d"),
];

/// Draws the steps of an order along the time since it was accepted. Everything that it shows is
/// also in the list of steps, so it is hidden from screen readers except for its name.
pub(crate) fn timeline(accepted: OffsetDateTime, steps: &[Step]) -> String {
    let seconds = |step: &Step| (step.at - accepted).as_seconds_f64();
    let end = |step: &Step| seconds(step) + step.took.map_or(0.0, Duration::as_seconds_f64);
    let longest = steps.iter().map(end).fold(1.0, f64::max);
    let acted = steps.iter().any(|step| step.row == ACTIONS);
    let rows = ROWS.into_iter().chain(acted.then_some(ACTIONS));
    let height = HEAD + ROW * if acted { 5.0 } else { 4.0 } + 8.0;
    let mut svg = format!(
        "<svg class=\"timeline\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Timeline of the order; the list \
         below has the same steps\">"
    );
    let mut previous = f64::MIN;
    for (mark, name) in MARKS {
        let x = place(mark, longest);
        if mark > longest || x - previous < 48.0 {
            continue;
        }
        previous = x;
        let _ = write!(
            svg,
            "<line class=\"mark\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{HEAD}\" y2=\"{bottom}\"/><text class=\"axis\" x=\"{x:.1}\" \
             y=\"16\" text-anchor=\"middle\">{name}</text>",
            bottom = height - 8.0
        );
    }
    let mut y = HEAD + ROW / 2.0;
    for row in rows {
        let _ = write!(
            svg,
            "<text class=\"row\" x=\"0\" y=\"{:.1}\">{row}</text><line class=\"lane\" x1=\"{LEFT}\" x2=\"{RIGHT}\" \
             y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
            y + 4.0
        );
        for step in steps.iter().filter(|step| step.row == row) {
            draw(&mut svg, step, (seconds(step), end(step)), longest, y);
        }
        y += ROW;
    }
    svg.push_str("</svg>");
    svg
}

fn draw(svg: &mut String, step: &Step, (began, ended): (f64, f64), longest: f64, y: f64) {
    let from = place(began, longest);
    let to = place(ended, longest);
    let class = step.went.class();
    let lasted = step
        .took
        .map_or_else(String::new, |lasted| format!(" ({})", took(lasted)));
    let nothing = if step.changed_nothing {
        " (changed nothing)"
    } else {
        ""
    };
    let title = format!("{} UTC: {}{lasted}{nothing}", utc(step.at), step.text);
    let title = escape(title, Visible).map_or_else(|_| String::new(), |safe| safe.to_string());
    let _ = write!(svg, "<g class=\"{class}\"><title>{title}</title>");
    if to - from > 2.0 {
        let _ = write!(
            svg,
            "<line class=\"span\" x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
        );
    }
    let _ = match step.went {
        // Colour alone must not tell a failure, so its shape differs, too.
        Went::Badly => {
            let left = to - 5.0;
            let right = to + 5.0;
            let top = y - 5.0;
            let bottom = y + 5.0;
            write!(
                svg,
                "<path class=\"cross\" d=\"M{left:.1} {top:.1}L{right:.1} {bottom:.1}M{left:.1} {bottom:.1}L{right:.1} {top:.1}\"/>"
            )
        }
        Went::Well | Went::Neutral => {
            write!(svg, "<circle cx=\"{to:.1}\" cy=\"{y:.1}\" r=\"5\"/>")
        }
    };
    svg.push_str("</g>");
}

/// Draws one bar for each hour. The name says what and which hours it shows.
pub(crate) fn sparkline(name: &str, hours: &[i64]) -> String {
    let most = hours.iter().copied().max().unwrap_or_default().max(1);
    let name = escape(name, Visible).map_or_else(|_| String::new(), |safe| safe.to_string());
    let mut svg = format!(
        "<svg class=\"spark\" viewBox=\"0 0 {} 32\" role=\"img\" aria-label=\"{name}\" preserveAspectRatio=\"none\">",
        hours.len().max(1) * 5
    );
    for (index, hour) in hours.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "a height in a picture")]
        let height = (*hour as f64 / most as f64 * 30.0).max(0.5);
        let x = index * 5;
        let _ = write!(
            svg,
            "<rect x=\"{x}\" y=\"{:.1}\" width=\"4\" height=\"{height:.1}\"/>",
            32.0 - height
        );
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn step(after: Duration, went: Went, text: &str) -> Step {
        Step {
            row: "webhooks",
            at: datetime!(2026-01-29 12:00 UTC) + after,
            took: Some(Duration::milliseconds(300)),
            went,
            text: text.to_owned(),
            changed_nothing: false,
        }
    }

    #[test]
    fn a_timeline_is_in_order_and_holds_no_markup_of_others() {
        let accepted = datetime!(2026-01-29 12:00 UTC);
        let svg = timeline(
            accepted,
            &[
                step(Duration::seconds(1), Went::Badly, "<script>&\"'"),
                step(Duration::hours(28), Went::Well, "status 200"),
            ],
        );
        assert!(!svg.contains("<script>"), "{svg}");
        assert!(
            svg.contains("class=\"cross\"") && svg.contains("<circle"),
            "{svg}"
        );
        assert!(place(1.0, 100.0) < place(2.0, 100.0) && place(100.0, 100.0) <= RIGHT);
        assert!(svg.contains(">10 h<") && !svg.contains(">30 d<"), "{svg}");
    }

    #[test]
    fn a_sparkline_of_nothing_is_drawn_too() {
        assert_eq!(sparkline("orders", &[0, 0]).matches("<rect").count(), 2);
        assert!(sparkline("a\"b", &[]).contains("aria-label=\"a&#34;b\""));
    }
}

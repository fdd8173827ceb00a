//! The layout of the text that commands print: tables, lists of properties, times and durations.
//!
//! Two guarantees hold for all of it. Control and invisible characters are escaped, because names
//! and ids come from partners and could otherwise change the operator's terminal. No id or command
//! is ever broken into two lines, so that it can be copied as a whole.

use comfy_table::{LineStyle, Table, TableStyle};
pub use runtime::terminal::{one_line, printable};
use time::{Duration, OffsetDateTime, macros::format_description};

/// Columns under a ruled header, without any other lines, so that cells are easy to copy and to cut
/// out.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// A row of a table: each cell with the name of its column.
pub type TableRow<const N: usize> = [(&'static str, String); N];

/// Makes the row of an item. Each column is either a field of the item, or `name = text`:
/// `cells!(order: order_id, accepted = utc(order.created_at))`.
macro_rules! cells {
    (@ $item:ident $name:ident) => { (stringify!($name), $item.$name.to_string()) };
    (@ $item:ident $name:ident = $text:expr) => { (stringify!($name), $text) };
    (@ $item:ident $name:literal = $text:expr) => { ($name, $text) };
    ($item:ident: $($name:tt $(= $text:expr)?),+ $(,)?) => {
        [$($crate::output::cells!(@ $item $name $(= $text)?)),+]
    };
}
pub(crate) use cells;

/// The width from which a cell no longer widens its column. One long id would push the other
/// columns of all rows out of the terminal.
const WIDEST: usize = 64;
/// Stands for a character of a cell that is too wide, until the table is laid out.
const STAND_IN: &str = "\u{e000}";

/// A table of the rows. A cell that is wider than [`WIDEST`] is whole, but only its own row is
/// longer.
pub fn table<const N: usize>(rows: impl IntoIterator<Item = TableRow<N>>) -> String {
    let mut table = Table::new();
    table.load_style(STYLE);
    let mut wide = Vec::new();
    let stands_in = STAND_IN.repeat(WIDEST);
    for row in rows {
        table.set_header(row.each_ref().map(|(name, _)| *name));
        table.add_row(row.map(|(_, cell)| {
            let cell = printable(&cell);
            if cell.chars().count() <= WIDEST && !cell.contains(STAND_IN) {
                return cell;
            }
            wide.push(cell);
            stands_in.clone()
        }));
    }
    let laid_out = table.trim_fmt();
    let mut parts = laid_out.split(&stands_in);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for (cell, part) in wide.iter().zip(parts) {
        whole.push_str(cell);
        whole.push_str(part);
    }
    whole
}

/// The width of the terminal; `None` if standard output is none.
pub fn width() -> Option<usize> {
    Table::new().width().map(usize::from)
}

/// One line per property, with the values below each other.
pub fn properties(rows: &[(&str, String)]) -> String {
    let width = rows
        .iter()
        .map(|(name, _)| name.len())
        .max()
        .unwrap_or_default();
    let line = |(name, value): &(&str, String)| format!("{name:width$}  {}", printable(value));
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A UTC time: `2025-01-29 12:34:56.789`.
pub fn moment(at: OffsetDateTime) -> String {
    let format =
        format_description!("[year]-[month]-[day] [hour]:[minute]:[second].[subsecond digits:3]");
    at.format(format).unwrap_or_else(|_| at.to_string())
}

/// A UTC time with its zone.
pub fn utc(at: OffsetDateTime) -> String {
    format!("{} UTC", moment(at))
}

/// The value, or `-` if it is missing.
pub fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A UTC time without its zone, or `-`.
pub fn at(at: Option<OffsetDateTime>) -> String {
    or_dash(at.map(moment))
}

/// A UTC time, without its date if that is the date of `start`.
pub fn moment_after(start: OffsetDateTime, at: OffsetDateTime) -> String {
    let text = moment(at);
    match text.split_once(' ') {
        Some((_, time)) if start.date() == at.date() => time.to_owned(),
        _ => text,
    }
}

/// A duration: `0.123 s`, `2m 5s`, `3h 20m`.
pub fn took(duration: Duration) -> String {
    match duration.whole_seconds() {
        ..60 => format!("{:.3} s", duration.as_seconds_f64()),
        seconds @ 60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        seconds => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;

    #[test]
    fn durations_read_well() {
        for (duration, text) in [
            (Duration::ZERO, "0.000 s"),
            (Duration::milliseconds(1_234), "1.234 s"),
            (Duration::milliseconds(59_999), "59.999 s"),
            (Duration::seconds(125), "2m 5s"),
            (Duration::minutes(200), "3h 20m"),
            (Duration::milliseconds(-5), "-0.005 s"),
        ] {
            assert_eq!(took(duration), text);
        }
    }

    #[test]
    fn the_date_is_shown_when_it_changed() {
        let start = datetime!(2025-01-29 23:59:59.5 UTC);
        assert_eq!(moment(start), "2025-01-29 23:59:59.500");
        assert_eq!(
            moment_after(start, start + Duration::milliseconds(7)),
            "23:59:59.507"
        );
        assert_eq!(
            moment_after(start, start + Duration::SECOND),
            "2025-01-30 00:00:00.500"
        );
    }

    #[test]
    fn tables_have_a_ruled_header_and_no_trailing_blanks() {
        let text = table([[
            ("name", "a\u{1b}[31m".to_owned()),
            ("state", "ready".to_owned()),
        ]]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[1].chars().all(|character| character == '─'), "{text}");
        assert!(lines[2].ends_with(r"a\u{1b}[31m   ready"), "{text}");
    }

    #[test]
    fn a_long_cell_is_whole_and_widens_only_its_own_row() {
        let row = |id: String| [("order", id), ("state", "ready".to_owned())];
        let long = "x".repeat(200);
        let text = table([
            row(long.clone()),
            row("A-1".to_owned()),
            row(STAND_IN.repeat(99)),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[2].contains(&long) && lines[2].ends_with("ready"));
        assert!(lines[3].len() < 80 && lines[3].ends_with("ready"), "{text}");
        assert!(lines[4].contains(&STAND_IN.repeat(99)), "{text}");
    }

    proptest! {
        #[test]
        fn one_line_is_one_line_without_hidden_characters(text: String) {
            let line = one_line(&text);
            prop_assert!(!line.chars().any(runtime::terminal::is_hidden));
        }
    }
}

//! The tables in the reports of the load runs and the fault runs.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

/// The style: columns under a header with a line, and nothing else.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Makes a table as text. The names of its columns in `head` are separated by `|`. All columns but
/// the first one contain figures, which are aligned to the right.
pub fn table<R: IntoIterator<Item = String>>(
    head: &str,
    rows: impl IntoIterator<Item = R>,
) -> String {
    let mut table = Table::new();
    table
        .load_style(STYLE)
        .set_header(head.split('|').map(str::trim).collect::<Vec<_>>());
    for row in rows {
        table.add_row(row.into_iter().collect::<Vec<_>>());
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// Formats a figure with this many decimals. An unknown one is `-`.
pub fn figure(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.decimals$}"))
}

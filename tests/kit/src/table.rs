//! Tables of the load and fault runs' reports.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

/// Columns under a ruled header, and nothing else.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// A table as text, figures to the right of the first column. Bars separate the names in `head`.
pub fn table<R: IntoIterator<Item = String>>(head: &str, rows: impl IntoIterator<Item = R>) -> String {
    let mut table = Table::new();
    table.load_style(STYLE).set_header(head.split('|').map(str::trim).collect::<Vec<_>>());
    for row in rows {
        table.add_row(row.into_iter().collect::<Vec<_>>());
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// A figure of a table with this many decimals; `-` if it is unknown.
pub fn figure(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.decimals$}"))
}

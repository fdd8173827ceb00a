//! Connections to the databases of all cells.

use pg::PgConnection;

use crate::{
    cell_file::{Cell, Cells},
    console::Console,
};

/// A cell and a connection to its database.
pub(super) struct Open<'a> {
    pub(super) cell: &'a Cell,
    pub(super) connection: PgConnection,
}

/// Connects to every cell. Fails if one cannot be reached, because a rule that holds across cells
/// cannot be judged without it.
pub(super) async fn open<'a>(cells: &'a Cells, console: &Console) -> anyhow::Result<Vec<Open<'a>>> {
    let mut opened = Vec::with_capacity(cells.cells.len());
    for cell in &cells.cells {
        let connection = console.connect_to(cell).await?;
        opened.push(Open { cell, connection });
    }
    Ok(opened)
}

//! Systems of several cells, each with a database of its own.

pub mod all_cells;
pub mod cell;
pub mod cell_file;

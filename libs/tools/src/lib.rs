//! What only operators run, with `esimctl`: archives, cells, the comparison with the ledger of a
//! provider, and the recovery after a restore. No service depends on this crate.

pub mod archive;
pub mod cells;
pub mod ledger;
pub mod recover;

//! What only operators run, with `esimctl`: archives, the comparison with the ledger of a
//! provider, and the recovery after a restore. No service depends on this crate.

pub mod archive;
pub mod ledger;
pub mod recover;

//! Why a cell does not divide.

use pg::Error;

/// Why a cell does not divide, or not yet.
#[derive(Debug, thiserror::Error)]
pub enum NotDivided {
    #[error(
        "an archive run of cell {0} has not ended, and it would go on in both cells: let `esimctl archive run` end first"
    )]
    Archive(String),
    #[error(
        "a stage of cell {cell} is logged in as {role}, a role that no policy binds, so it would act for partners that have \
         left: give each stage the role of `esimctl migrate`"
    )]
    Bypassed { cell: String, role: String },
    #[error(
        "the database of cell {to} is no standby of that of cell {from}, so nothing can be divided: make it a standby, or make it anew \
         if it was promoted too early"
    )]
    NoStandby { from: String, to: String },
    #[error(
        "the standby of cell {0} has not replayed within a second what was committed before: wait until it has caught up"
    )]
    Behind(String),
    #[error(
        "the clocks of the two database servers differ by {0:.1} s, and at most 2 s are allowed, because an attempt that is in flight would be believed lost too early: correct the clocks first"
    )]
    Clocks(f64),
    #[error(
        "the database of cell {0} names another cell, or another division of it is under way: correct the file of cells, or end that division first"
    )]
    OtherCell(String),
    #[error(
        "this database is not for cell {name}: it belongs to cell {found:?} and has no fence of a division that makes cell {name}; \
         `esimctl cell divide` says what is missing"
    )]
    NotFor { name: String, found: String },
    #[error(
        "one of these partners has left cell {0} already: name partners that it serves (`esimctl partner list` shows where each one lives)"
    )]
    LeftAlready(String),
    #[error("cell {0} is activated and serves its partners, so the division cannot be taken back")]
    Activated(String),
    #[error(
        "the division that makes cell {0} has not ended, so nothing may be purged yet: run `esimctl cell divide` again"
    )]
    Dividing(String),
    #[error(
        "the tables could not be locked within {0} tries: {1}. A dump or another long transaction holds one; run the command again when it has ended"
    )]
    Busy(u32, Error),
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(NotDivided);

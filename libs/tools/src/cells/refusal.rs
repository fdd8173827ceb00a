//! Why a partner is not moved to another cell.

use pg::Error;
use uuid::Uuid;

/// Why a partner is not moved, or not yet.
#[derive(Debug, thiserror::Error)]
pub enum NotMoved {
    #[error(
        "cell {from} has no such partner, and neither has cell {to}; `esimctl --all-cells partner show` finds the cell in which it lives"
    )]
    Unknown { from: String, to: String },
    #[error(
        "cell {from} is moving this partner to cell {to}: finish that move first, with `--to-cell {to}`"
    )]
    Elsewhere { from: String, to: String },
    #[error(
        "cell {cell} has this partner already, and is not moving it: a partner must live in one cell only, so `esimctl cell check` tells more"
    )]
    InBoth { cell: String },
    #[error(
        "another move of this partner is running, or the two cells name one database; wait for it, or correct the file of cells"
    )]
    Locked,
    #[error(
        "the clocks of the two database servers differ by {0:.1} s, and at most 2 s are allowed, because an attempt that is in flight would be believed lost too early: correct the clocks first"
    )]
    Clocks(f64),
    #[error(
        "the table {0} has different columns in the two cells: run `esimctl --all-cells migrate`"
    )]
    Columns(&'static str),
    #[error(
        "{options} options of this partner's orders are missing in cell {cell} or differ there: import the same catalogue into every cell with `esimctl --all-cells option apply`"
    )]
    Catalogue { cell: String, options: i64 },
    #[error(
        "no provisioner of cell {cell} has ever served {providers}, at which orders of this partner may be bought: start the provisioners there with the same PROVIDERS first"
    )]
    Providers { cell: String, providers: String },
    #[error(
        "resend {0} is sending webhooks of this partner again: wait until `esimctl resend show {0}` says that it has ended, or end it with `esimctl resend cancel {0}`"
    )]
    Resend(Uuid),
    #[error(
        "another partner of cell {0} has an access key of this partner: rotate the keys of one of them"
    )]
    KeyTaken(String),
    #[error(
        "the table of orders could not be locked within {0} tries: {1}. A dump or another long transaction holds it; run the command again when it has ended"
    )]
    Busy(u32, Error),
    #[error(
        "{0} differs in the two cells after it was copied; the source has everything and is unchanged, so run the command again, and report this if it happens again"
    )]
    Unequal(&'static str),
    #[error("{0} orders are still in the source, so the partner cannot be activated yet")]
    Left(i64),
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(NotMoved);

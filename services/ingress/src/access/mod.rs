//! Who may send a request, and how much of it: authentication, and the limits of partners and of this process.

pub(crate) mod admission;
pub(crate) mod authentication;
pub(crate) mod directory;
pub(crate) mod limits;
pub(crate) mod rates;
pub(crate) mod replays;

//! Several cells: each is a PostgreSQL with its NATS and its stages, and a partner lives in exactly
//! one of them.
//!
//! A stage knows no more of cells than the name of its own. `esimctl` compares them ([`check`]) and
//! lets one divide into two ([`division`]), as the owner of the tables of both.
//!
//! The statements of these modules are not checked by the compiler, unlike those of the rest of the
//! crate, because most of them are put together from a list of tables. The tests execute each one.

pub mod check;
pub mod division;
pub mod membrane;
pub mod purge;
mod refusal;

//! Several cells: each is a PostgreSQL with its NATS and its stages, and a partner lives in exactly
//! one of them.
//!
//! No stage knows of cells. `esimctl` compares them ([`check`]) and moves a partner from one to
//! another ([`moving`]), as the owner of the tables of both.
//!
//! The statements of these modules are not checked by the compiler, unlike those of the rest of the
//! crate, because most of them are put together from a list of tables. The tests execute each one.

pub mod check;
mod copy;
mod fence;
pub mod moving;
mod parts;
mod preflight;
mod refusal;

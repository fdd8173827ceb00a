//! Accounts: partners with their keys, limits and endpoints, the options that they may order and
//! what they cost, how the profile of an eSIM is sealed, and what is refused before it becomes an
//! order.
//!
//! This crate also has what every stage checks at its [start](start::wait), because that opens
//! stored keys.

pub mod facts;
pub mod options;
pub mod partners;
pub mod prices;
pub mod profile;
pub mod refused;
pub mod start;

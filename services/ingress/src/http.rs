//! Connections and HTTP: what every request passes, whatever its path.
//!
//! A request enters by [`server`], whose [`connection`] knows when the answer has left, and goes
//! through the [`routes`](crate::routes) to its handler. [`body`] reads its body, and [`error`],
//! [`codes`] and [`named`] make its error response. [`refusals`] keeps refused requests for
//! operators.

pub(crate) mod body;
pub(crate) mod codes;
pub(crate) mod connection;
pub(crate) mod described;
pub(crate) mod error;
pub(crate) mod explanations;
pub(crate) mod faults;
pub(crate) mod left;
pub(crate) mod named;
pub(crate) mod refusals;
pub(crate) mod server;

/// The two forms of the prefix that the specification writes. Both are served, because it does not
/// say which one is right.
pub(crate) const PREFIXES: [&str; 2] = ["/api/v1/api_partner", "/v1/api_partner"];

//! Connections and HTTP: what every request passes, whatever its path.
//!
//! A request enters by [`server`], whose [`connection`] knows when the answer has left, and goes
//! through the [`routes`] to its handler. [`body`] reads its body, [`error`], [`codes`] and [`named`]
//! make its error response, and [`observe`] records it. [`refusals`] keeps refused requests for
//! operators.

pub(crate) mod body;
pub(crate) mod codes;
pub(crate) mod connection;
pub(crate) mod error;
pub(crate) mod named;
pub(crate) mod observe;
pub(crate) mod refusals;
pub(crate) mod routes;
pub(crate) mod server;

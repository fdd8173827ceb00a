//! Create-order: from the request to the answer.
//!
//! [`create`] is the handler. [`request`] parses the body, and [`check`] checks it against the
//! catalogue. [`accept`] stores the order by group commit and decides its answer. [`handshake`]
//! meanwhile receives the verdicts and [`heartbeats`] of the provisioners, and holds the readiness
//! events of the order until its answer has left. [`crate::http::left`] remembers that it
//! has, for early cancellations. [`mishap`] makes answers go wrong for sandbox accounts that ask
//! for it, [`repeat`] answers repeats that ask for the answer of their first request, and
//! [`result`] names what became of a request for the metrics.

pub(crate) mod accept;
mod answer;
pub(crate) mod check;
pub(crate) mod create;
mod decide;
pub(crate) mod handshake;
mod heartbeats;
pub(crate) mod mishap;
pub(crate) mod repeat;
pub(crate) mod request;
mod result;

//! What the stages write for an order: orders, placements, deliveries, their work and their
//! history.
//!
//! Everything that was promised to a partner is in a row of the database, and so is the work that
//! is left to do. The services (ingress, provisioner, notifier) and `esimctl` call these functions;
//! no other crate than this one and its neighbours (see [`pg`]) holds SQL of the services.
//!
//! What the functions guarantee:
//!
//! - State and the work that it causes are committed together. A function that is one statement
//!   commits by itself; one that takes several steps opens a transaction. So a crash never leaves,
//!   for example, a ready unit without its delivery.
//! - A statement that moves a placement follows a transition of [`domain::placement`] and has a
//!   condition on the placement's state and attempt. So repeating it changes nothing, and a
//!   function can be called again after an error whose effect is unknown.
//! - Statements that run for each order or webhook work on batches: everything that queued while
//!   the previous execution ran is written by one execution and one commit (group commit).

pub mod deliveries;
pub mod esim_requests;
pub mod extensions;
pub mod figures;
pub mod funds;
pub mod history;
pub mod orders;
pub mod placements;
pub mod proofs;
pub mod provider_lanes;
pub mod providers;
mod sweep;
mod unflushed;
pub mod work;

pub use sweep::SweepResult;
pub use unflushed::Unflushed;

//! The times that several stages must agree on.
//!
//! A webhook must not precede the 201 of its order. In most cases the messages between the stages
//! ensure that. Where a message is lost or never sent, these times ensure it: they are so long that
//! the 201 has left, or can no longer leave, before another process may send the webhook. So they
//! stand together here, and the compiler checks that they are in the right order.

use std::time::Duration;

/// The time in which an order is answered if its answer does not wait for a verdict. Otherwise
/// `PLACEMENT_WAIT` comes on top.
///
/// Ingress counts it from the moment before it sends the INSERT. PostgreSQL counts `answer_by` from
/// the start of the transaction of the INSERT, which is later. So ingress always gives up before
/// `answer_by`.
pub const ANSWER: Duration = Duration::from_secs(4);

/// The longest `PLACEMENT_WAIT` that ingress accepts.
pub const PLACEMENT_WAIT_MAX: Duration = Duration::from_secs(20);

/// The first lease of a placement. Its job counts as lost when this time has passed since the order
/// was stored.
pub const PLACEMENT_FIRST_LEASE: Duration = Duration::from_secs(10);

/// The first lease of a delivery. Its readiness event counts as lost when this time has passed
/// since the unit became ready.
pub const DELIVERY_FIRST_LEASE: Duration = Duration::from_secs(30);

// If the answer of an order waits for no verdict, the job is published after the 201, so whoever
// buys the order may publish readiness events at once. A provisioner that finds the placement
// without its job publishes them at once, too. It must therefore find the placement only after the
// answer has left.
const _: () = assert!(ANSWER.as_secs() < PLACEMENT_FIRST_LEASE.as_secs());

// An ingress process holds the readiness events of an order that it is still answering. If the
// process dies, the sweep finds the deliveries. By then the answer must no longer be on its way.
const _: () =
    assert!(PLACEMENT_WAIT_MAX.as_secs() + ANSWER.as_secs() < DELIVERY_FIRST_LEASE.as_secs());

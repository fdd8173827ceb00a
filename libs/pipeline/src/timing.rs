//! Times that several stages must agree on. A webhook must not precede its 201. Where no message ensures that, the
//! lengths of these times do, so the compiler checks them.

use std::time::Duration;

/// The time in which an order is answered if its answer waits for no verdict; otherwise `PLACEMENT_WAIT` comes on top.
///
/// Ingress counts it from the moment before it sends the INSERT. PostgreSQL counts `answer_by` from the start of the
/// INSERT's transaction, which is later. So ingress always gives up before `answer_by`.
pub const ANSWER: Duration = Duration::from_secs(4);

/// The longest `PLACEMENT_WAIT`.
pub const PLACEMENT_WAIT_MAX: Duration = Duration::from_secs(20);

/// The first lease of a placement: its job counts as lost when this time has passed since the order was stored.
pub const PLACEMENT_FIRST_LEASE: Duration = Duration::from_secs(10);

/// The first lease of a delivery: its readiness event counts as lost when this time has passed since the unit became
/// ready.
pub const DELIVERY_FIRST_LEASE: Duration = Duration::from_secs(30);

// The job of an order whose answer waits for no verdict is published after the 201, so whoever buys it may publish
// readiness events at once. That must also be true for a provisioner that finds the placement without its job.
const _: () = assert!(ANSWER.as_secs() < PLACEMENT_FIRST_LEASE.as_secs());

// An ingress process holds the readiness events of an order that it is still answering. If the process dies, the sweep
// finds the deliveries, and then the answer must not be on its way any more.
const _: () = assert!(PLACEMENT_WAIT_MAX.as_secs() + ANSWER.as_secs() < DELIVERY_FIRST_LEASE.as_secs());

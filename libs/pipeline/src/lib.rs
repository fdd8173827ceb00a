//! Work between the stages: streams and subjects, payloads, publishing in batches, the worker (wait for a permit,
//! claim, run), reports to the ingress process that answers an order, and the trace of an order.
//!
//! PostgreSQL is the source of truth; JetStream only makes work start sooner. Each stage also sweeps for unfinished
//! rows and looks at its due work, so a lost, repeated or late message changes nothing.

pub mod access;
pub mod batcher;
pub mod effect;
pub mod group_commit;
pub mod metrics;
pub mod payload;
pub mod permits;
pub mod publish;
mod queues;
pub mod reports;
pub mod streams;
pub mod timing;
pub mod trace;
pub mod worker;

pub use access::NatsAccess;
pub use batcher::Batcher;
pub use effect::{Effect, perform};
pub use group_commit::GroupCommit;
pub use streams::{Nats, NatsConfig};

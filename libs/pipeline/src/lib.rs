//! Work between the stages: streams and subjects, payloads, publishing, the worker loop (claim, act, record,
//! acknowledge), and the trace through all of it.
//!
//! PostgreSQL is the truth; JetStream only makes work start sooner. Each stage also redrives its due rows, so
//! a lost, repeated or late message changes nothing.

pub mod effect;
pub mod group_commit;
pub mod metrics;
pub mod payload;
pub mod publish;
pub mod streams;
pub mod trace;
pub mod verdict;
pub mod worker;

pub use effect::{Effect, perform};
pub use group_commit::GroupCommit;
pub use streams::{Nats, NatsConfig};

//! How work moves between the stages: streams and subjects, payloads, publishing, the loop that
//! claims, acts, records and acknowledges, and the trace that runs through all of it.
//!
//! JetStream only makes things happen sooner. PostgreSQL is the truth: each stage also takes up its
//! overdue rows by itself, so a message that is lost, repeated or late changes nothing.

pub mod batcher;
pub mod effect;
pub mod group_commit;
pub mod handshake;
pub mod lanes;
pub mod metrics;
pub mod payload;
pub mod publish;
pub mod streams;
pub mod trace;
pub mod worker;

pub use batcher::Batcher;
pub use effect::{Effect, perform};
pub use group_commit::GroupCommit;
pub use streams::{Nats, NatsConfig};

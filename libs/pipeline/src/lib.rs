//! What the stages of the pipeline share: how work is announced, how a stage takes it up, and how
//! its results are stored. Ingress, the provisioner and the notifier all use it.
//!
//! PostgreSQL is the source of truth, and JetStream only makes work start sooner. Each stage also
//! sweeps for unfinished rows and looks at its due work, so a message that is lost, repeated or
//! late changes nothing but the time. Everything in this crate relies on that: a message that
//! cannot be sent is dropped, and a ticket may be lost.
//!
//! - Sending: [`payload`] defines the messages, [`publish`] sends jobs and readiness events, and
//!   [`reports`] carries verdicts and readiness to the ingress process that is answering an order.
//!   [`batcher`] collects what is sent together, and [`streams`] has the connection, the streams
//!   and the subjects. [`majority`] watches whether a stream can store messages, [`refused`] what
//!   the server refuses, and [`access`] holds the credentials.
//! - Working: [`worker`] makes tickets from messages and from due work, and lets its handler work
//!   on their rows; [`lookout`] tells idle workers that rows are due, and [`sweep`] makes those due
//!   that no message has brought. The tickets wait in queues for [`permits`], which bound how many
//!   rows a worker works on at once, and share this number between lanes and their owners
//!   ([`owner`]). `pace` lowers the share of owners whose attempts are slow.
//! - Storing: [`group_commit`] writes many items with one statement.
//! - Across all of them: [`timing`] has the times that several stages must agree on, [`trace`]
//!   connects the spans of one order, [`metrics`] and [`figures`] measure, [`pulse`] watches
//!   PostgreSQL, and [`effect`] names the points at which a crash test can kill a process.

pub mod access;
pub mod batcher;
pub mod effect;
pub mod figures;
pub mod group_commit;
pub mod lookout;
mod majority;
pub mod metrics;
pub mod owner;
mod pace;
pub mod payload;
pub mod permits;
pub mod publish;
pub mod pulse;
mod queues;
mod refused;
pub mod reports;
pub mod streams;
pub mod sweep;
pub mod timing;
pub mod trace;
pub mod worker;

pub use access::NatsAccess;
pub use batcher::Batcher;
pub use effect::{Effect, perform};
pub use group_commit::GroupCommit;
pub use lookout::Lookout;
pub use streams::{Nats, NatsConfig};

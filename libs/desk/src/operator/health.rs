//! One health: what is wrong with the system, for everybody who asks
//! (docs/decisions/0035-fewer-kinds-one-truth.md).
//!
//! [`examine`] reads the database once and returns a [`HealthReport`]: whether each stage lives,
//! what is stored and not finished, and the [`Finding`]s, worst first. `esimctl doctor`, `status`
//! and `attention` and the console's first pages render this report and compute nothing of their
//! own, so they cannot contradict each other. What the database cannot show, such as NATS and the
//! age of a backup, only the doctor looks at; it says it in the same findings.
//!
//! A finding is a code with its detail ([`FindingKind`]). Its sentences are made in [`told`], by
//! exhaustive matches, so a kind without an answer to "what, who is affected, what do I do" does
//! not compile.
//!
//! A look shows what is wrong now; [`life`] keeps since when and until when it was.
//!
//! Every statement reads by an index and is bounded, so that looking costs little while the system
//! works under load.

pub mod alerts;
pub mod answers;
pub mod finding;
pub mod life;
pub mod money;
pub mod partner;
pub mod samples;
pub mod session;
pub mod stages;
pub mod told;
pub mod waiting;
pub mod webhooks;

mod examine;
mod owner;
mod past;
mod phrases;
mod record;
mod slow;

pub use examine::{HealthReport, PARKED, examine, of_server};
pub use finding::{Finding, FindingKind};
pub use slow::ENOUGH;
pub use told::FindingText;

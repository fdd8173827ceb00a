//! What a stage implements for the loop, and what the loop passes to it.

use std::{hash::Hash, sync::Arc, time::Instant};

use domain::PartnerId;
use serde::de::DeserializeOwned;

use crate::lanes::Slot;

/// One stage of the pipeline.
pub trait Stage: Send + Sync + 'static {
    /// The name of the stage in metrics.
    const NAME: &'static str;
    /// The name of the kind of message, for dead messages.
    const KIND: &'static str;
    /// Operation and table of the statement that claims the rows of messages, for its span.
    const CLAIM: (&'static str, &'static str);
    /// The content of a message.
    type Message: DeserializeOwned + Send;
    /// Identifies a row.
    type Id: Clone + Eq + Hash + Send + Sync + 'static;
    /// The content of a message for all of its rows.
    type Hint: Send + Sync + 'static;
    /// A claimed row, which only this process works on until its lease ends.
    type Work: Send + 'static;

    /// The rows of a message, and its content for all of them.
    fn open(&self, message: Self::Message) -> (Vec<Ticket<Self::Id>>, Self::Hint);
    /// The number of slots that a lane may hold now; 0 while its breaker is open. Called with a lock held.
    fn most(&self, _lane: &str) -> usize {
        usize::MAX
    }
    /// Makes rows due at once whose tickets found no room. On an error, the sweep finds them later.
    fn defer(&self, rows: &[Self::Id]) -> impl Future<Output = anyhow::Result<()>> + Send;
    /// Looks for due rows; changes nothing.
    fn due(&self, look: Look) -> impl Future<Output = anyhow::Result<Found<Self::Id>>> + Send;
    /// Leases due rows; returns those whose lease this process got.
    fn lease(&self, rows: &[Self::Id]) -> impl Future<Output = anyhow::Result<Vec<Self::Id>>> + Send;
    /// Makes leased rows due at once that no slot was free for. On an error, they are due when their leases end.
    fn give_back(&self, rows: &[Self::Id]) -> impl Future<Output = anyhow::Result<()>> + Send;
    /// Claims rows of messages or, if `overdue`, due rows that it has leased. Returns those that need work.
    fn claim(&self, rows: &[Self::Id], overdue: bool) -> impl Future<Output = anyhow::Result<Vec<Self::Work>>> + Send;
    /// The id of a claimed row.
    fn id(work: &Self::Work) -> &Self::Id;
    /// Acts, records and publishes, until the row is next due. Dropping the slot returns it.
    fn run(
        self: Arc<Self>,
        work: Self::Work,
        trigger: Trigger<Self::Hint>,
        slot: Slot,
    ) -> impl Future<Output = ()> + Send;
}

/// A row that waits for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket<Id> {
    pub id: Id,
    /// The lane: rows that may fail together. Empty if it is not known.
    pub lane: Arc<str>,
    pub partner: PartnerId,
}

/// The limits of a look for due rows, and where it begins.
#[derive(Clone, Debug)]
pub struct Look {
    pub limit: usize,
    /// The most rows of one partner in one lane.
    pub per_lane: usize,
    /// The lane and partner after which the look begins.
    pub after: Option<(String, PartnerId)>,
}

/// The result of a look for due rows.
#[derive(Clone, Debug)]
pub struct Found<Id> {
    pub due: Vec<Ticket<Id>>,
    /// Where the next look begins; `None` after the last lane.
    pub after: Option<(String, PartnerId)>,
}

/// The reason why a stage claimed a row.
#[derive(Debug)]
pub struct Trigger<Hint> {
    /// The message; `None` if the row was due.
    pub message: Option<Arc<Received<Hint>>>,
    /// When this process started the claim; never later than the claim's commit.
    pub claimed: Instant,
}

impl<Hint> Trigger<Hint> {
    pub fn traceparent(&self) -> Option<&str> {
        self.message.as_ref()?.traceparent.as_deref()
    }
}

/// A message without its rows.
#[derive(Debug)]
pub struct Received<Hint> {
    /// The content for all of its rows.
    pub hint: Hint,
    pub traceparent: Option<String>,
}

//! What a stage implements for the worker, and what the worker passes to it.

use std::{hash::Hash, sync::Arc, time::Instant};

use domain::PartnerId;
use serde::de::DeserializeOwned;

use crate::{
    permits::{Permit, QueueKey},
    queues::Class,
};

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
    /// A claimed row.
    type Work: Send + 'static;

    /// One ticket for each row that the message names.
    fn tickets_of(&self, message: Self::Message) -> Vec<Ticket<Self::Id>>;

    /// Makes rows of messages due at once, because they cannot wait for permits here. After an error, the sweep finds
    /// them later.
    fn defer(&self, rows: &[Self::Id]) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Looks for due rows; changes nothing. Other processes may find the same rows.
    fn due(&self, look: Look) -> impl Future<Output = anyhow::Result<Found<Self::Id>>> + Send;

    /// Claims rows. Returns those that need work now, without the rows that are finished.
    ///
    /// Due rows are leased, so no other process works on them until that lease ends. Fresh rows take no lease: until
    /// their first lease ends they belong to their message. The claim of a placement records the attempt, so a second
    /// claim finds nothing. The claim of a fresh delivery writes nothing, so if its message comes twice, its webhook may
    /// be sent twice.
    fn claim(
        &self,
        rows: &[Self::Id],
        class: Class,
    ) -> impl Future<Output = anyhow::Result<Vec<(Self::Id, Self::Work)>>> + Send;

    /// Acts, records and publishes, until the row is next due. Dropping the permit lets another row run.
    fn run(self: Arc<Self>, work: Self::Work, trigger: Trigger, permit: Permit) -> impl Future<Output = ()> + Send;
}

/// A row that waits for a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket<Id> {
    pub id: Id,
    /// The lane: rows that may fail together. Empty if it is not known.
    pub lane: Arc<str>,
    pub partner: PartnerId,
}

impl<Id> Ticket<Id> {
    pub(super) fn key(&self) -> QueueKey {
        QueueKey { lane: Arc::clone(&self.lane), partner: self.partner }
    }
}

/// The limits of a look at due work, and where it begins.
#[derive(Clone, Debug)]
pub struct Look {
    pub limit: usize,
    /// The most rows of one partner in one lane.
    pub per_lane: usize,
    /// The lane and partner after which the look begins.
    pub after: Option<(String, PartnerId)>,
}

/// The result of a look at due work.
#[derive(Clone, Debug)]
pub struct Found<Id> {
    pub due: Vec<Ticket<Id>>,
    /// Where the next look begins; `None` after the last lane.
    pub after: Option<(String, PartnerId)>,
}

/// Why and when a row was claimed.
#[derive(Clone, Debug)]
pub struct Trigger {
    pub class: Class,
    /// The trace context of the message; `None` for due work and without a trace.
    pub traceparent: Option<Arc<str>>,
    /// When this process began the claim; never later than the claim's commit.
    pub claim_began: Instant,
}

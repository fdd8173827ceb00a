//! What a program implements for a worker, and what the worker passes to it. The provisioner and
//! the notifier implement [`Handler`]; the other types are its arguments and results.

use std::{hash::Hash, sync::Arc, time::Duration};

use runtime::clock::Moment;
use serde::de::DeserializeOwned;
use store::work::{DueWork, LookResult, WorkLook};

use crate::{
    owner::Owner,
    permits::{Permit, QueueKey},
    queues::TicketClass,
};

/// What is done with the rows of one worker. The worker decides when each function is called and
/// how many rows run at once; the handler decides what is done with a row.
pub trait Handler: Send + Sync + 'static {
    /// The name of the worker in metrics.
    const NAME: &'static str;
    /// The name of the kind of message, for dead messages.
    const KIND: &'static str;
    /// Operation and table of the statement that claims the rows of messages, for its span.
    const CLAIM_STATEMENT: (&'static str, &'static str);
    /// The content of a message.
    type Message: DeserializeOwned + Send;
    /// Identifies a row.
    type Id: Clone + Eq + Hash + Send + Sync + 'static;
    /// A claimed row.
    type Claimed: Send + 'static;

    /// One ticket for each row that the message names. A handler whose rows no message announces
    /// needs neither this function nor [`Self::defer`].
    fn tickets_of(&self, _message: Self::Message) -> Vec<Ticket<Self::Id>> {
        Vec::new()
    }

    /// Makes rows of messages due at once, because they cannot wait for permits in this process. If
    /// this fails, the sweep finds the rows later.
    fn defer(&self, _rows: &[Self::Id]) -> impl Future<Output = anyhow::Result<()>> + Send {
        async { Ok(()) }
    }

    /// Looks for due rows, without changing anything. Other processes may find the same rows.
    fn due(
        &self,
        look: WorkLook,
    ) -> impl Future<Output = anyhow::Result<LookResult<Ticket<Self::Id>>>> + Send;

    /// Claims rows. Returns those that need work now, and leaves out those that are finished.
    ///
    /// Due rows are leased, so that no other process works on them until their lease ends. Fresh
    /// rows take no lease, because they belong to their message until their first lease ends. What
    /// a second claim of a fresh row does depends on the handler. The claim of a placement records
    /// the attempt, so a second claim finds nothing. The claim of a delivery writes nothing, so if
    /// its message comes twice, its webhook may be sent twice.
    fn claim(
        &self,
        rows: &[Self::Id],
        class: TicketClass,
    ) -> impl Future<Output = anyhow::Result<Vec<(Self::Id, Self::Claimed)>>> + Send;

    /// Does the work of a row and records the outcome, so that the row is finished or due again
    /// later. Dropping the permit lets another row run; a handler may do that before it records.
    fn run(
        self: Arc<Self>,
        claimed: Self::Claimed,
        trigger: Trigger,
        permit: Permit,
    ) -> impl Future<Output = ()> + Send;
}

/// A row that waits for a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket<Id> {
    pub id: Id,
    /// The lane, which is what usually fails together. Empty if it is not known.
    pub lane: Arc<str>,
    /// Whose part of the permits it needs.
    pub owner: Owner,
}

impl<Id> Ticket<Id> {
    pub(super) fn key(&self) -> QueueKey {
        QueueKey {
            lane: Arc::clone(&self.lane),
            owner: self.owner,
        }
    }
}

/// The ticket of a due row whose lane and partner share the permits.
impl<Id> From<DueWork<Id>> for Ticket<Id> {
    fn from(due: DueWork<Id>) -> Self {
        Self {
            id: due.id,
            lane: due.lane.into(),
            owner: due.partner_id.into(),
        }
    }
}

/// Why and when a row was claimed.
#[derive(Clone, Debug)]
pub struct Trigger {
    pub class: TicketClass,
    /// The trace context of the message; `None` for due work and without a trace.
    pub traceparent: Option<Arc<str>>,
    /// How long the ticket waited for its permit, because other rows used up what its lane, its
    /// owner or the worker may have in flight.
    pub permit_wait: Duration,
    /// When this process began the claim, which is never later than the commit of the claim.
    pub claim_began: Moment,
}

//! Worker: a row runs only after its claim and with a permit, every row is done although messages
//! and looks name it at the same time and claims fail, and a stop ends what runs and leaves the
//! rest.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use domain::PartnerId;
use tokio::sync::{Notify, mpsc};

use super::choose;
use crate::{
    Nats, Shutdown,
    streams::MessageSource,
    work::{LookResult, WorkLook},
    worker::{
        Handler, Permit, PermitLimits, Ticket, TicketClass, Trigger, WorkerSettings, start,
        unlimited_lanes,
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    /// Known from its message only, until the sweep or a deferral makes it due.
    Fresh,
    Due,
    Claimed,
    Done,
}

const PERMITS: usize = 2;

/// Rows in memory, each of a lane of its own. A claim takes a row that nobody has.
struct Rows {
    states: Mutex<BTreeMap<usize, Row>>,
    running: AtomicUsize,
    /// Claims that still fail.
    failing: AtomicUsize,
    partner: PartnerId,
    done: Notify,
}

impl Rows {
    fn ticket(&self, id: usize) -> Ticket<usize> {
        Ticket {
            id,
            lane: id.to_string().into(),
            owner: self.partner.into(),
        }
    }

    /// One statement: nothing happens meanwhile.
    fn claimed(&self, ids: &[usize], class: TicketClass) -> Vec<(usize, usize)> {
        let wanted = match class {
            TicketClass::Fresh => Row::Fresh,
            TicketClass::Due => Row::Due,
        };
        let mut rows = self.states.lock().unwrap();
        let mut claimed = Vec::new();
        for id in ids {
            if let Some(row) = rows.get_mut(id)
                && *row == wanted
            {
                *row = Row::Claimed;
                claimed.push((*id, *id));
            }
        }
        claimed
    }

    fn count(&self, state: Row) -> usize {
        let rows = self.states.lock().unwrap();
        rows.values().filter(|row| **row == state).count()
    }
}

impl Handler for Rows {
    const NAME: &'static str = "rows";
    const KIND: &'static str = "rows";
    const CLAIM_STATEMENT: (&'static str, &'static str) = ("UPDATE", "rows");
    type Message = Vec<usize>;
    type Id = usize;
    type Claimed = usize;

    fn tickets_of(&self, message: Vec<usize>) -> Vec<Ticket<usize>> {
        message.into_iter().map(|id| self.ticket(id)).collect()
    }

    async fn defer(&self, rows: &[usize]) -> anyhow::Result<()> {
        for id in rows {
            self.states.lock().unwrap().insert(*id, Row::Due);
        }
        Ok(())
    }

    async fn due(&self, look: WorkLook) -> anyhow::Result<LookResult<Ticket<usize>>> {
        tokio::task::yield_now().await;
        let rows = self.states.lock().unwrap();
        let due = rows.iter().filter(|(_, row)| **row == Row::Due);
        Ok(LookResult {
            due: due
                .take(look.limit)
                .map(|(id, _)| self.ticket(*id))
                .collect(),
            after: None,
        })
    }

    async fn claim(
        &self,
        ids: &[usize],
        class: TicketClass,
    ) -> anyhow::Result<Vec<(usize, usize)>> {
        tokio::task::yield_now().await;
        let failing = self.failing.load(Ordering::Relaxed);
        if failing > 0 {
            self.failing.store(failing - 1, Ordering::Relaxed);
            anyhow::bail!("the database is away");
        }
        let claimed = self.claimed(ids, class);
        tokio::task::yield_now().await;
        Ok(claimed)
    }

    async fn run(self: Arc<Self>, id: usize, _: Trigger, permit: Permit) {
        assert!(self.running.fetch_add(1, Ordering::Relaxed) < PERMITS);
        tokio::task::yield_now().await;
        let before = self.states.lock().unwrap().insert(id, Row::Done);
        assert_eq!(before, Some(Row::Claimed), "row {id}");
        self.running.fetch_sub(1, Ordering::Relaxed);
        drop(permit);
        self.done.notify_one();
    }
}

/// Two rows of messages, one of them told twice, and two due rows, of which a message names one,
/// too.
fn begin(shutdown: &Shutdown) -> (Arc<Rows>, mpsc::UnboundedSender<String>) {
    let rows = Arc::new(Rows {
        states: Mutex::new(BTreeMap::from([
            (0, Row::Fresh),
            (1, Row::Fresh),
            (2, Row::Due),
            (3, Row::Due),
        ])),
        running: AtomicUsize::new(0),
        failing: AtomicUsize::new(choose(2) - 1),
        partner: PartnerId::new(),
        done: Notify::new(),
    });
    let (sender, messages) = mpsc::unbounded_channel();
    let settings = WorkerSettings {
        source: Some(MessageSource { messages }),
        limits: PermitLimits {
            permits: PERMITS,
            per_lane: PERMITS,
            per_owner: PERMITS,
            slow_attempt: None,
            slow: std::time::Duration::MAX,
        },
        lane: unlimited_lanes(),
        provider: None,
        wake: None,
    };
    start(Arc::clone(&rows), &Nats::new().0, settings, shutdown);
    for message in ["[0,2]", "[1]", "[0]"] {
        sender.send(message.to_owned()).unwrap();
    }
    (rows, sender)
}

pub fn every_row_is_done_once() {
    super::run(async {
        let shutdown = Shutdown::new();
        let (rows, _messages) = begin(&shutdown);
        while rows.count(Row::Done) < 4 {
            rows.done.notified().await;
        }
        tokio::time::trigger_timeouts(|_| true);
        shutdown.stop();
        shutdown.finished().await.unwrap();
        assert_eq!(rows.count(Row::Done), 4);
    });
}

pub fn a_stop_at_any_moment_ends_what_runs_and_leaves_the_rest() {
    super::run(async {
        let shutdown = Shutdown::new();
        let (rows, _messages) = begin(&shutdown);
        for _ in 0..choose(20) {
            tokio::task::yield_now().await;
        }
        shutdown.stop();
        let late = super::timeouts_end();
        shutdown.finished().await.unwrap();
        late.await.unwrap();
        assert_eq!(rows.running.load(Ordering::Relaxed), 0);
        assert_eq!(rows.count(Row::Claimed), 0, "what was claimed has run");
    });
}

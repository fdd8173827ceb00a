//! Queues and permits: every ticket gets its permit once, however rows end, move or die; no more
//! rows are in flight than there are permits; and at the end all of them are free again.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use domain::PartnerId;
use tokio::task::JoinHandle;

use super::{Log, choose};
use crate::{
    permits::{LaneState, LaneStates, PermitLimits, QueueKey},
    queues::{GrantedTicket, Queues, TicketClass},
};

const FRESH: usize = 5;
const DUE: usize = 3;

fn key(lane: &str, partner: PartnerId) -> QueueKey {
    QueueKey {
        lane: lane.into(),
        owner: partner.into(),
    }
}

fn limits(permits: usize) -> PermitLimits {
    PermitLimits {
        permits,
        per_lane: permits,
        per_owner: permits,
        slow_attempt: None,
        slow: std::time::Duration::MAX,
    }
}

/// Takes this many tickets of a class and runs their rows, of which the first one dies.
fn take(
    queues: &Arc<Queues<usize>>,
    class: TicketClass,
    tickets: usize,
    permits: usize,
    in_flight: &Arc<AtomicUsize>,
) -> JoinHandle<Vec<usize>> {
    let queues = Arc::clone(queues);
    let in_flight = Arc::clone(in_flight);
    tokio::spawn(async move {
        let mut seen = Vec::new();
        let mut rows = Vec::new();
        while seen.len() < tickets {
            let granted = queues.take_granted(class).await;
            assert!(!granted.is_empty(), "a batch of grants is taken once");
            if class == TicketClass::Due {
                queues.due_claimed(granted.iter().map(|granted| granted.permit.key()));
            }
            for GrantedTicket { ticket, permit, .. } in granted {
                let in_flight = Arc::clone(&in_flight);
                let mut permit = permit;
                let row = tokio::spawn(async move {
                    let running = Running::new(in_flight);
                    assert!(
                        running.others() < permits,
                        "{} in flight",
                        running.others() + 1
                    );
                    tokio::task::yield_now().await;
                    let _fits = permit.move_to(&"elsewhere".into());
                    tokio::task::yield_now().await;
                    drop(running);
                    drop(permit);
                });
                if seen.is_empty() {
                    row.abort();
                }
                seen.push(ticket);
                rows.push(row);
            }
        }
        for row in rows {
            let _died = row.await;
        }
        seen.sort_unstable();
        seen
    })
}

/// Counts a row while it runs, even if it dies.
struct Running(Arc<AtomicUsize>, usize);

impl Running {
    fn new(in_flight: Arc<AtomicUsize>) -> Self {
        let others = in_flight.fetch_add(1, Ordering::Relaxed);
        Self(in_flight, others)
    }

    fn others(&self) -> usize {
        self.1
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub fn each_ticket_gets_its_permit_once_and_no_permit_is_lost() {
    super::run(async {
        let permits = choose(3);
        let open = Arc::new(AtomicBool::new(false));
        let is_open = Arc::clone(&open);
        let lanes: LaneStates = Arc::new(move |lane| LaneState {
            permits: if lane == "stopped" && !is_open.load(Ordering::Relaxed) {
                0
            } else {
                usize::MAX
            },
            is_shared: true,
            accepts_fresh: true,
        });
        let queues: Arc<Queues<usize>> = Queues::new(limits(permits), lanes);
        let most = queues.room(TicketClass::Fresh);
        let [one, other] = std::array::from_fn(|_| PartnerId::new());
        let in_flight = Arc::default();
        let log = Log::new();

        let fresh = take(&queues, TicketClass::Fresh, FRESH, permits, &in_flight);
        let due = take(&queues, TicketClass::Due, DUE, permits, &in_flight);
        let offers = [
            vec![(key("a", one), 0), (key("a", one), 1)],
            vec![
                (key("b", other), 2),
                (key("stopped", one), 3),
                (key("a", other), 4),
            ],
        ]
        .map(|tickets| {
            let queues = Arc::clone(&queues);
            let log = log.clone();
            tokio::spawn(async move {
                let refused = queues.offer_fresh(tickets.into_iter());
                assert!(refused.is_empty());
                log.add("offered");
            })
        });
        let looks = tokio::spawn({
            let queues = Arc::clone(&queues);
            async move {
                queues.offer_due([(key("a", one), 0), (key("a", one), 1)].into_iter());
                // The same rows again: they are not queued twice while any of them waits.
                queues.drained().await;
                queues.offer_due(std::iter::once((key("b", one), 2)));
            }
        });
        let opens = tokio::spawn({
            let queues = Arc::clone(&queues);
            async move {
                open.store(true, Ordering::Relaxed);
                queues.grant();
            }
        });
        let pulls = tokio::spawn({
            let queues = Arc::clone(&queues);
            let log = log.clone();
            async move {
                // Nothing is pulled before all fresh tickets have permits.
                assert_eq!(queues.room_for(most).await, most);
                log.add("pulled");
            }
        });

        assert_eq!(fresh.await.unwrap(), (0..FRESH).collect::<Vec<_>>());
        assert_eq!(due.await.unwrap(), (0..DUE).collect::<Vec<_>>());
        for task in offers.into_iter().chain([looks, opens, pulls]) {
            task.await.unwrap();
        }
        assert_eq!(log.all().len(), 3);
        assert!(queues.is_idle());
        assert_eq!(in_flight.load(Ordering::Relaxed), 0);
        // Each permit is free: as many queues of other lanes and partners get one each at once.
        queues.offer_fresh((0..permits).map(|n| (key(&n.to_string(), PartnerId::new()), n)));
        assert_eq!(queues.take_granted(TicketClass::Fresh).await.len(), permits);
    });
}

//! The effect of each step, as in the services.

use domain::{
    PlacementState,
    placement::{Event, Placement},
};

use crate::{
    Assumption, Safeguard,
    actions::{Action, Does, Found},
    protocol::Protocol,
    state::{
        Address, Answer, Delivery, Ingress, Job, Notifier, OVERDUE, Provisioner, Request, SETTLED, Said,
        Settlement, State, Work,
    },
};

impl Protocol {
    /// Applies an action; an action that does not apply changes nothing.
    pub fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::AnswerBy => state.late = true,
            Action::Tick => self.tick(state),
            Action::LoseJob(index) => state.rows[index].job = None,
            Action::LoseEvent(index) => state.rows[index].event = false,
            Action::Store { .. }
            | Action::Publish
            | Action::Decide
            | Action::Answer
            | Action::GiveUp
            | Action::CrashIngress => self.ingress_step(state, action),
            Action::TakeJob(by, index) => {
                let address = state.rows[index].job;
                self.claim(state, by, index, address);
            }
            Action::TakeDue(by, index) => self.claim(state, by, index, None),
            Action::LookUp(by, index, found) => self.look_up(state, by, index, found),
            Action::Collect(by, index) => {
                let job = due(state, by, index);
                state.provisioners[by].work = Work::Settling(job, Settlement::Bought { ready: true });
            }
            Action::StartClock(by)
            | Action::Send(by)
            | Action::Abandon(by)
            | Action::TimeOut(by)
            | Action::Hear(by)
            | Action::Announce(by)
            | Action::CrashProvisioner(by) => self.provisioner_step(state, by, action),
            Action::Record(by) => self.record(state, by),
            Action::Reply(by, answer) => replied(state, by, Some(answer)),
            Action::NoReply(by) => replied(state, by, None),
            Action::Arrive {
                request,
                does,
                answered,
            } => self.arrive(state, request, does, answered),
            Action::Show(request) => {
                let shown = state.requests.remove(request);
                state.rows[shown.row].shown = true;
            }
            Action::Vanish { request, noticed } => {
                let lost = state.requests.remove(request);
                if noticed {
                    hear(state, &lost, Settlement::NotSent);
                }
            }
            Action::TakeEvent(_)
            | Action::TakeDelivery(_)
            | Action::Post { .. }
            | Action::RecordDelivery
            | Action::CrashNotifier => self.notifier_step(state, action),
        }
    }

    fn ingress_step(&self, state: &mut State, action: Action) {
        match action {
            Action::Store { waits } => {
                state.ingress = if waits {
                    Ingress::Asking
                } else {
                    Ingress::Answering
                };
            }
            Action::Publish => {
                let (address, next) = match state.ingress {
                    Ingress::Asking => (Address::Ingress, Ingress::Waiting),
                    _ => (Address::None, Ingress::Done),
                };
                state.ingress = next;
                for row in &mut state.rows {
                    row.job = Some(address);
                }
            }
            Action::Decide => self.decide(state),
            Action::CrashIngress => {
                state.faults -= 1;
                state.ingress = Ingress::Crashed;
            }
            _ => {
                let (answer, next) = match state.ingress {
                    Ingress::Answering => (Answer::Created, Ingress::Publishing),
                    Ingress::Refusing => (Answer::Refused, Ingress::Done),
                    _ => (Answer::Created, Ingress::Done),
                };
                state.ingress = next;
                if action == Action::Answer {
                    state.answer = Some(answer);
                    state.overtaken = answer == Answer::Created && state.rows.iter().any(|row| row.told);
                }
            }
        }
    }

    fn provisioner_step(&self, state: &mut State, by: usize, action: Action) {
        let Provisioner { work, answered } = &mut state.provisioners[by];
        match (action, *work) {
            (Action::StartClock(_), Work::Fresh { job, .. }) => *work = Work::Fresh { job, late: false },
            (Action::Send(_), Work::Fresh { job, .. }) => {
                *work = Work::Sent(job);
                state.requests.push(Request {
                    row: job.row,
                    attempt: job.attempt,
                    bought: false,
                    old: false,
                });
            }
            (Action::TimeOut(_), Work::Sent(job)) if job.address == Address::Ingress => {
                *work = job.tell(Said::UnderWay, false);
            }
            (Action::Abandon(_) | Action::TimeOut(_), _) => *work = Work::Idle,
            (
                Action::Hear(_),
                Work::Telling {
                    job, said, announce, ..
                },
            ) => {
                *work = Work::Telling {
                    job,
                    said,
                    announce,
                    heard: true,
                };
                state.rows[job.row].verdict = Some((job.attempt, said));
            }
            (Action::Announce(_), Work::Announcing(job)) => {
                // Without the safeguard, ingress was not asked before.
                let tells = !self.has(Safeguard::AnsweredFirst) && job.address == Address::Ingress;
                *work = if tells {
                    job.tell(Said::UnderWay, false)
                } else {
                    Work::Idle
                };
                state.rows[job.row].event = true;
            }
            (Action::CrashProvisioner(_), _) => {
                *work = Work::Idle;
                *answered = false;
                state.faults -= 1;
            }
            _ => {}
        }
    }

    fn notifier_step(&self, state: &mut State, action: Action) {
        match (action, state.notifier) {
            (Action::TakeEvent(index) | Action::TakeDelivery(index), _) => {
                state.notifier = Notifier::Taken(index);
                if !self.has(Safeguard::RecordedDelivery) {
                    state.rows[index].delivery = Delivery::Delivered;
                }
            }
            (Action::Post { acknowledged: true }, Notifier::Taken(index)) => {
                state.rows[index].told = true;
                state.notifier = Notifier::Acknowledged(index);
            }
            (Action::Post { acknowledged: false }, Notifier::Taken(index)) => {
                state.rows[index].told = true;
                state.notifier = Notifier::Idle;
                state.faults -= 1;
            }
            (Action::RecordDelivery, Notifier::Acknowledged(index)) => {
                state.rows[index].delivery = Delivery::Delivered;
                state.notifier = Notifier::Idle;
            }
            (Action::CrashNotifier, _) => {
                state.notifier = Notifier::Idle;
                state.faults -= 1;
            }
            _ => {}
        }
    }

    /// Drops data that no longer matters, so that states which differ only in it are equal.
    pub fn tidy(&self, state: &mut State) {
        use PlacementState::{Failed, Parked, Placed, Refused};
        for row in &mut state.rows {
            let bought_or_closed = matches!(row.placement.state, Placed | Refused | Failed | Parked);
            if bought_or_closed && self.has(Safeguard::IdempotentClaim) {
                row.job = None;
            }
            row.event &= row.delivery != Delivery::Delivered;
            if state.ingress != Ingress::Waiting {
                row.verdict = None;
            }
        }
        for provisioner in &mut state.provisioners {
            provisioner.answered &= !state.late;
        }
        // Provisioners of the same provider are interchangeable, and so are requests.
        if state.rows.len() == 1 {
            state.provisioners.sort_unstable();
        }
        state.requests.sort_unstable();
    }

    /// Ages everything. Time stops while a deadline has to be met first.
    fn tick(&self, state: &mut State) {
        let prompt = self.holds(Assumption::PromptArrival);
        // `answer_by` passes long before half of the settling delay.
        if !state.late || (prompt && state.requests.iter().any(|request| request.old)) {
            return;
        }
        for row in &mut state.rows {
            if row.placement.state == PlacementState::Placing && row.age < OVERDUE {
                row.age += 1;
            }
        }
        for request in &mut state.requests {
            request.old = true;
        }
        for provisioner in &mut state.provisioners {
            if let Work::Fresh { late, .. } = &mut provisioner.work {
                *late = true;
            }
        }
    }

    /// A provisioner claims a placement to buy it.
    fn claim(&self, state: &mut State, by: usize, index: usize, address: Option<Address>) {
        // A job without an address is published after the response; so is a late one.
        let answered = state.late || state.provisioners[by].answered || address == Some(Address::None);
        let row = &mut state.rows[index];
        if row.placement.attempt >= self.settings.attempts {
            return;
        }
        let mut job = Job {
            row: index,
            attempt: row.placement.attempt + 1,
            address: address.unwrap_or(Address::None),
            answered,
        };
        if !self.has(Safeguard::LookUp) && row.placement.state == PlacementState::Placing {
            // Without a look-up the provisioner assumes that nothing was bought.
            row.placement.state = PlacementState::Accepted;
        }
        if !self.has(Safeguard::IdempotentClaim) {
            row.placement.state = PlacementState::Accepted;
        }
        if self.has(Safeguard::RecordedAttempt) {
            let Some(placement) = self.after(row.placement, Event::Claim) else {
                return;
            };
            row.placement = placement;
            row.age = 0;
            job.attempt = placement.attempt;
        }
        state.provisioners[by].work = Work::Fresh { job, late: false };
    }

    /// Handles the result of a look-up. A process that dies or stalls between claim and result has changed
    /// only the lease, so both are one step.
    fn look_up(&self, state: &mut State, by: usize, index: usize, found: Found) {
        let row = &state.rows[index];
        let settled = row.age >= SETTLED || !self.has(Safeguard::Settle);
        let outcome = match found {
            Found::Purchase { ready } => Settlement::Bought { ready },
            Found::Nothing if settled && row.placement.attempt >= self.settings.attempts => {
                Settlement::Hopeless
            }
            Found::Nothing if settled || !row.placement.not_found => Settlement::NotFound { settled },
            Found::Unknown if row.age >= OVERDUE => Settlement::Hopeless,
            // Changes only the time of the next look-up.
            Found::Nothing | Found::Unknown => return,
        };
        if found == Found::Nothing && row.shown {
            state.faults -= 1;
        }
        state.provisioners[by].work = Work::Settling(due(state, by, index), outcome);
    }

    fn arrive(&self, state: &mut State, request: usize, does: Does, answered: bool) {
        let sent = state.requests[request];
        let row = &mut state.rows[sent.row];
        let known = self.settings.detects_duplicates && row.bought > 0;
        let outcome = match does {
            _ if known => Settlement::Bought { ready: false },
            Does::Buy { ready } => Settlement::Bought { ready },
            Does::Reject => Settlement::Rejected,
            Does::Defer => Settlement::Busy,
        };
        if matches!(outcome, Settlement::Bought { .. }) && !known {
            row.bought += 1;
            state.requests[request].bought = true;
        } else {
            state.requests.remove(request);
        }
        if answered {
            hear(state, &sent, outcome);
        }
    }

    /// A provisioner records an outcome, or sends the verdict first if a refusal is possible.
    fn record(&self, state: &mut State, by: usize) {
        let Work::Settling(mut job, outcome) = state.provisioners[by].work else {
            return;
        };
        let row = &mut state.rows[job.row];
        if !self.has(Safeguard::RecordedAttempt) && row.placement.state == PlacementState::Accepted {
            // Recorded only now that its outcome is known.
            row.placement = self.after(row.placement, Event::Claim).unwrap_or(row.placement);
            job.attempt = row.placement.attempt;
        }
        let attempt = job.attempt;
        let event = match outcome {
            Settlement::Bought { .. } => Event::Bought(attempt),
            Settlement::Rejected => Event::Rejected(attempt),
            Settlement::NotSent | Settlement::Busy if attempt >= self.settings.attempts => {
                Event::Park(attempt)
            }
            Settlement::NotSent | Settlement::Busy => Event::NotBought(attempt),
            Settlement::NotFound { settled } => Event::NotFound { attempt, settled },
            Settlement::Hopeless => Event::Park(attempt),
        };
        if let Some(mut placement) = self.after(row.placement, event) {
            if self.settings.one_look && outcome == (Settlement::NotFound { settled: true }) {
                placement.state = PlacementState::Accepted;
            }
            row.placement = placement;
            row.age = if placement.state == PlacementState::Placing {
                row.age
            } else {
                0
            };
        }
        let placed = row.placement.state == PlacementState::Placed && row.placement.attempt == attempt;
        let announce = placed && outcome == Settlement::Bought { ready: true } && !row.ready;
        if announce {
            row.ready = true;
            row.delivery = Delivery::Pending;
        }
        let released = job.answered || !self.has(Safeguard::AnsweredFirst);
        state.provisioners[by].work = match (outcome, job.address) {
            (Settlement::Bought { .. }, _) if announce && released => Work::Announcing(job),
            (Settlement::Bought { .. } | Settlement::Busy, Address::Ingress) => {
                job.tell(Said::UnderWay, announce)
            }
            _ => Work::Idle,
        };
    }

    /// Ingress ends its wait; refuses all placements in one transaction or none.
    fn decide(&self, state: &mut State) {
        let verdicts = || state.rows.iter().filter_map(|row| row.verdict);
        let under_way = verdicts().any(|(_, said)| said == Said::UnderWay);
        let refusal = verdicts().next().is_some() && !under_way;
        state.ingress = Ingress::Standing;
        if !refusal {
            return;
        }
        let refused: Option<Vec<Placement>> = state
            .rows
            .iter()
            .map(|row| {
                if !self.has(Safeguard::RefusalTransaction) {
                    return Some(Placement {
                        state: PlacementState::Refused,
                        ..row.placement
                    });
                }
                self.after(
                    row.placement,
                    Event::Refuse(row.verdict.map(|(attempt, _)| attempt)),
                )
            })
            .collect();
        let Some(refused) = refused else { return };
        for (row, placement) in state.rows.iter_mut().zip(refused) {
            row.placement = placement;
            row.age = 0;
        }
        state.ingress = Ingress::Refusing;
    }
}

/// A due row that is claimed for anything except a purchase.
fn due(state: &State, by: usize, index: usize) -> Job {
    Job {
        row: index,
        attempt: state.rows[index].placement.attempt,
        address: Address::None,
        answered: state.late || state.provisioners[by].answered,
    }
}

/// Ends a provisioner's wait for ingress.
fn replied(state: &mut State, by: usize, reply: Option<Answer>) {
    let provisioner = &mut state.provisioners[by];
    let Work::Telling {
        job, said, announce, ..
    } = provisioner.work
    else {
        return;
    };
    provisioner.answered |= reply == Some(Answer::Created);
    let job = Job {
        address: Address::None,
        ..job
    };
    provisioner.work = match said {
        _ if reply == Some(Answer::Refused) => Work::Idle,
        Said::Refused => Work::Settling(job, Settlement::Rejected),
        Said::NotSent => Work::Settling(job, Settlement::NotSent),
        Said::UnderWay if announce && reply == Some(Answer::Created) => Work::Announcing(job),
        Said::UnderWay => Work::Idle,
    };
}

/// Hands the provider's response to the provisioner that waits for it.
fn hear(state: &mut State, sent: &Request, outcome: Settlement) {
    for provisioner in &mut state.provisioners {
        let Work::Sent(job) = provisioner.work else {
            continue;
        };
        if !sent.is_of(job) {
            continue;
        }
        provisioner.work = match (outcome, job.address) {
            (Settlement::Rejected, Address::Ingress) => job.tell(Said::Refused, false),
            (Settlement::NotSent, Address::Ingress) => job.tell(Said::NotSent, false),
            _ => Work::Settling(job, outcome),
        };
        return;
    }
}

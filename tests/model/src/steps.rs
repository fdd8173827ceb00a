//! The effect of each step, as the services do it. Whoever changes the order of steps in a service
//! must change it here, too.

use domain::{
    PlacementState,
    placement::{Placement, PlacementEvent},
};

use crate::{
    Assumption, Safeguard,
    actions::{Action, Does, Found},
    rules::Protocol,
    state::{
        Answer, Delivery, Ingress, Job, Notifier, OVERDUE, Request, SETTLED, Second, Settlement,
        State, Third, Turn, Work,
    },
};

impl Protocol {
    /// Applies an action; an action that does not apply changes nothing.
    pub fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::AnswerBy => state.late = true,
            Action::Tick => self.tick(state),
            Action::LoseJob(index) => state.rows[index].job = false,
            Action::LoseReport(index) => state.rows[index].report = false,
            Action::LoseEvent(index) => state.rows[index].event = false,
            Action::SweepPlacement(index) => state.rows[index].turn = Turn::Due,
            Action::SweepDelivery(index) => {
                state.rows[index].delivery = Delivery::Pending(Turn::Due);
            }
            Action::Repeat => state.second = Second::Taken,
            Action::FindNone => state.second = Second::FoundNone,
            Action::FindThird => state.second = Second::TakenByThird,
            Action::StoreThird => state.third = Third::Undecided,
            Action::DecideThird { refuses } => {
                state.third = if refuses {
                    Third::Refused
                } else {
                    Third::Stands
                };
            }
            Action::Store { .. }
            | Action::Publish
            | Action::Decide { .. }
            | Action::Answer
            | Action::GiveUp
            | Action::CrashIngress => self.ingress_step(state, action),
            Action::TakeJob(by, row) => {
                state.provisioners[by] = Work::Ticket { row };
            }
            Action::Claim(by) => {
                if let Work::Ticket { row } = state.provisioners[by] {
                    state.provisioners[by] = Work::Idle;
                    let routed = self.has(Safeguard::RoutedClaim);
                    if state.rows[row].provider == 0 || !routed {
                        self.claim(state, by, row, 0);
                    }
                }
            }
            Action::TakeDue(by, index) => {
                let provider = state.rows[index].provider;
                self.claim(state, by, index, provider);
            }
            Action::LookUp(by, index, found) => self.look_up(state, by, index, found),
            Action::SendAgain(by, index) => {
                let job = due(state, index);
                state.provisioners[by] = Work::SentAgain(job);
                send(state, job, true);
            }
            Action::Collect(by, index) => {
                let job = due(state, index);
                state.provisioners[by] = Work::Settling(job, Settlement::Bought { ready: true });
            }
            Action::StartClock(by)
            | Action::Send(by)
            | Action::Abandon(by)
            | Action::Announce(by)
            | Action::CrashProvisioner(by) => self.provisioner_step(state, by, action),
            Action::TimeOut { by, recorded } => self.time_out(state, by, recorded),
            Action::Record { by, announces } => self.record(state, by, announces),
            Action::TakeReport(index) => {
                let holds = state.is_pending() && self.has(Safeguard::HeldReadiness);
                let row = &mut state.rows[index];
                row.report = false;
                if holds {
                    row.held = true;
                } else {
                    row.event = true;
                }
            }
            Action::Arrive {
                request,
                does,
                answered,
            } => self.arrive(state, request, does, answered),
            Action::Show(request) => {
                let shown = state.requests.remove(request);
                let row = &mut state.rows[shown.row];
                row.shown |= row.provider == shown.provider;
            }
            Action::Vanish { request, noticed } => {
                let lost = state.requests.remove(request);
                if noticed {
                    respond(state, &lost, Settlement::NotSent);
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
                if !self.has(Safeguard::SweepFence) {
                    // The commit took so long that the sweep had passed its time already.
                    state.rows.iter_mut().for_each(|row| row.turn = Turn::Never);
                }
                state.answering = waits;
                state.ingress = if waits {
                    Ingress::Asking
                } else {
                    Ingress::Answering
                };
            }
            Action::Publish => {
                state.ingress = if state.ingress == Ingress::Asking {
                    Ingress::Waiting
                } else {
                    Ingress::Done
                };
                for row in &mut state.rows {
                    row.job = true;
                }
            }
            Action::Decide { refuses } => self.decide(state, refuses),
            Action::CrashIngress => {
                state.faults -= 1;
                state.ingress = Ingress::Crashed;
                for row in &mut state.rows {
                    row.held = false;
                }
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
                    state.overtaken =
                        answer == Answer::Created && state.rows.iter().any(|row| row.told);
                }
                // The answer has left or never will, so ingress publishes what it held.
                for row in &mut state.rows {
                    row.event |= row.held;
                    row.held = false;
                }
            }
        }
    }

    fn provisioner_step(&self, state: &mut State, by: usize, action: Action) {
        let work = &mut state.provisioners[by];
        match (action, *work) {
            (Action::StartClock(_), Work::Fresh { job, .. }) => {
                *work = Work::Fresh { job, late: false }
            }
            (Action::Send(_), Work::Fresh { job, .. }) => {
                *work = Work::Sent(job);
                send(state, job, false);
            }
            // If it dies before the record, a look-up finds out.
            (Action::Abandon(_), Work::Fresh { job, .. }) => {
                *work = Work::Settling(job, Settlement::NotSent);
            }
            (Action::Announce(_), Work::Announcing(job)) => {
                *work = Work::Idle;
                let row = &mut state.rows[job.row];
                if job.answering && self.has(Safeguard::AnsweredFirst) {
                    row.report = true;
                } else {
                    row.event = true;
                }
            }
            (Action::CrashProvisioner(_), _) => {
                *work = Work::Idle;
                state.faults -= 1;
            }
            _ => {}
        }
    }

    /// The outcome of an attempt stays unknown. Its record is no step of its own: a process that
    /// waits between the two is one that waits for the response a little longer.
    fn time_out(&self, state: &mut State, by: usize, recorded: bool) {
        let work = std::mem::replace(&mut state.provisioners[by], Work::Idle);
        let (Work::Sent(job) | Work::SentAgain(job)) = work else {
            return;
        };
        let row = &mut state.rows[job.row];
        if recorded
            && let Some(placement) = self.after(row.placement, PlacementEvent::Unknown(job.attempt))
        {
            row.placement = placement;
            row.turn = Turn::Due;
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
            (
                Action::Post {
                    acknowledged: false,
                },
                Notifier::Taken(index),
            ) => {
                state.rows[index].told = true;
                state.rows[index].delivery = Delivery::Pending(Turn::Due);
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
            let bought_or_closed =
                matches!(row.placement.state, Placed | Refused | Failed | Parked);
            if bought_or_closed && self.has(Safeguard::IdempotentClaim) {
                row.job = false;
            }
            if bought_or_closed && (row.placement.state != Placed || row.ready) {
                row.turn = Turn::Never;
            }
            if row.delivery == Delivery::Delivered {
                row.report = false;
                row.held = false;
                row.event = false;
            }
            // After the crash of ingress nobody receives this message any more.
            row.report &= state.ingress != Ingress::Crashed;
        }
        // Claims read this column only until `answer_by`, so states that differ only in it are
        // equal afterwards.
        state.answering &= !state.late;
        let may_repeat = matches!(
            state.ingress,
            Ingress::Asking | Ingress::Waiting | Ingress::Refusing
        );
        if !may_repeat {
            state.second = Second::Asks;
            state.third = Third::Unborn;
        }
        // Provisioners of the same provider are interchangeable, and so are requests. Sorting them
        // makes states equal that differ only in their order.
        if state.rows.len() == 1 {
            state.provisioners.sort_unstable();
        }
        state.requests.sort_unstable();
    }

    /// Lets half of the settling delay pass. Nothing happens while something else has to come first
    /// according to the assumptions.
    fn tick(&self, state: &mut State) {
        let prompt = self.holds(Assumption::PromptArrival);
        // `answer_by` passes long before half of the settling delay does.
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
            if let Work::Fresh { late, .. } = provisioner {
                *late = true;
            }
        }
    }

    /// A provisioner claims a placement to buy it from this provider.
    fn claim(&self, state: &mut State, by: usize, index: usize, provider: u8) {
        let answering = state.answering && !state.late;
        let row = &mut state.rows[index];
        // The last attempt at one provider does not prevent the first one at the next.
        if row.placement.attempt >= self.settings.attempts + u32::from(row.provider) {
            return;
        }
        let mut job = Job {
            row: index,
            attempt: row.placement.attempt + 1,
            provider,
            answering,
        };
        if !self.has(Safeguard::LookUp) && row.placement.state == PlacementState::Placing {
            // Without a look-up the provisioner assumes that nothing was bought.
            row.placement.state = PlacementState::Accepted;
        }
        if !self.has(Safeguard::IdempotentClaim) {
            row.placement.state = PlacementState::Accepted;
        }
        if self.has(Safeguard::RecordedAttempt) {
            let Some(placement) = self.after(row.placement, PlacementEvent::Claim) else {
                return;
            };
            row.placement = placement;
            row.age = 0;
            job.attempt = placement.attempt;
        }
        state.provisioners[by] = Work::Fresh { job, late: false };
    }

    /// Handles the claim and the result of a look-up. They are one step, because a process that
    /// dies or stalls between the two has only changed the lease.
    fn look_up(&self, state: &mut State, by: usize, index: usize, found: Found) {
        let row = &state.rows[index];
        // A search proves no absence.
        let proves_absence = !self.settings.repeatable;
        let settled = proves_absence && (row.age >= SETTLED || !self.has(Safeguard::Settle));
        let outcome = match found {
            Found::Purchase { ready } => Settlement::Bought { ready },
            Found::Nothing if settled && row.placement.attempt >= self.settings.attempts => {
                Settlement::Hopeless
            }
            Found::Nothing if settled || !row.placement.not_found => {
                Settlement::NotFound { settled }
            }
            Found::Nothing if !proves_absence && row.age >= OVERDUE => Settlement::Hopeless,
            Found::Unknown if row.age >= OVERDUE => Settlement::Hopeless,
            Found::Nothing | Found::Unknown
                if !self.has(Safeguard::CertainRouting) && row.placement.alternatives > 0 =>
            {
                // The provider gives no answer that settles the attempt, so the next one is asked.
                let row = &mut state.rows[index];
                row.placement.state = PlacementState::Accepted;
                row.placement.alternatives -= 1;
                row.provider += 1;
                row.shown = false;
                return;
            }
            // Both change the time of the next look-up. After an unknown result no other provider
            // is asked any more; after "no such purchase" that was so already.
            Found::Nothing => return,
            Found::Unknown => {
                let unknown = PlacementEvent::Unknown(row.placement.attempt);
                if let Some(placement) = self.after(row.placement, unknown) {
                    state.rows[index].placement = placement;
                }
                return;
            }
        };
        if found == Found::Nothing && row.shown {
            state.faults -= 1;
        }
        state.provisioners[by] = Work::Settling(due(state, index), outcome);
    }

    fn arrive(&self, state: &mut State, request: usize, does: Does, answered: bool) {
        let sent = state.requests[request];
        let row = &mut state.rows[sent.row];
        let recognised = self.settings.detects_duplicates || self.settings.repeatable;
        let known = recognised && row.bought > 0;
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
            respond(state, &sent, outcome);
        }
    }

    /// A provisioner records an outcome. In the services it sends the verdict *placed* before that,
    /// and any other verdict afterwards. The model needs no verdicts, see [`Ingress::Waiting`].
    fn record(&self, state: &mut State, by: usize, announces: bool) {
        let Work::Settling(mut job, outcome) = state.provisioners[by] else {
            return;
        };
        let row = &mut state.rows[job.row];
        if !self.has(Safeguard::RecordedAttempt) && row.placement.state == PlacementState::Accepted
        {
            // Recorded only now that its outcome is known.
            row.placement = self
                .after(row.placement, PlacementEvent::Claim)
                .unwrap_or(row.placement);
            job.attempt = row.placement.attempt;
        }
        let attempt = job.attempt;
        let event = match outcome {
            Settlement::Bought { .. } => PlacementEvent::Bought(attempt),
            Settlement::Rejected => PlacementEvent::Rejected(attempt),
            Settlement::NotSent | Settlement::Busy if attempt >= self.settings.attempts => {
                PlacementEvent::Park(attempt)
            }
            Settlement::NotSent | Settlement::Busy => PlacementEvent::NotBought(attempt),
            Settlement::NotFound { settled } => PlacementEvent::NotFound {
                attempt,
                after_settling_delay: settled,
            },
            Settlement::Hopeless => PlacementEvent::Park(attempt),
        };
        let believed = !self.has(Safeguard::LateRefusal)
            && matches!(
                event,
                PlacementEvent::Rejected(_) | PlacementEvent::NotBought(_)
            );
        let before = Placement {
            doubted: row.placement.doubted && !believed,
            ..row.placement
        };
        if let Some(mut placement) = self.after(before, event) {
            if self.settings.one_look && outcome == (Settlement::NotFound { settled: true }) {
                placement.state = PlacementState::Accepted;
            }
            if outcome == Settlement::Rejected && placement.state == PlacementState::Accepted {
                row.provider += 1;
            }
            row.placement = placement;
            row.age = if placement.state == PlacementState::Placing {
                row.age
            } else {
                0
            };
            row.turn = Turn::Due;
        }
        let placed =
            row.placement.state == PlacementState::Placed && row.placement.attempt == attempt;
        let becomes_ready = placed && outcome == Settlement::Bought { ready: true } && !row.ready;
        if becomes_ready {
            row.ready = true;
            // A delivery that will be announced begins with its first lease, any other one with due
            // work.
            row.delivery = Delivery::Pending(if announces { Turn::Young } else { Turn::Due });
        }
        state.provisioners[by] = if becomes_ready && announces {
            Work::Announcing(job)
        } else {
            Work::Idle
        };
    }

    /// Ingress ends its wait. If it wants to refuse the order, one transaction refuses all
    /// placements or none.
    fn decide(&self, state: &mut State, refuses: bool) {
        state.ingress = Ingress::Standing;
        if !refuses || (state.late && self.has(Safeguard::RefusalInTime)) {
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
                self.after(row.placement, PlacementEvent::Refuse)
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

/// The job of a due row that is claimed for a look-up or a collect.
fn due(state: &State, index: usize) -> Job {
    let answering = state.answering && !state.late;
    Job {
        row: index,
        attempt: state.rows[index].placement.attempt,
        provider: state.rows[index].provider,
        answering,
    }
}

/// Puts the request of an attempt on its way to the provider.
fn send(state: &mut State, job: Job, again: bool) {
    state.requests.push(Request {
        row: job.row,
        attempt: job.attempt,
        provider: job.provider,
        again,
        bought: false,
        old: false,
    });
}

/// Hands the provider's response to the provisioner that waits for it. Only a purchase settles a
/// repeat, because a refusal may concern the repeat alone.
fn respond(state: &mut State, sent: &Request, outcome: Settlement) {
    let awaits = |work: &&mut Work| sent.is_awaited(work);
    let Some(work) = state.provisioners.iter_mut().find(awaits) else {
        return;
    };
    *work = match *work {
        Work::Sent(job) => Work::Settling(job, outcome),
        Work::SentAgain(job) if matches!(outcome, Settlement::Bought { .. }) => {
            Work::Settling(job, outcome)
        }
        _ => Work::Idle,
    };
}

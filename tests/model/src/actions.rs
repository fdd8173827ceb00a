//! The actions that a state allows.

use domain::PlacementState;

use crate::{
    Assumption, Safeguard,
    protocol::Protocol,
    state::{Answer, Delivery, Ingress, Notifier, Provisioner, State, Work},
};

/// One step of one participant; a process may die or stall after each. Provisioners are named by their
/// index in [`State::provisioners`], placements by theirs in [`State::rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Ingress stores the order; it is going to wait for a verdict or not.
    Store { waits: bool },
    /// Ingress publishes the jobs.
    Publish,
    /// Ingress ends its wait, and refuses the order if every verdict is a refusal.
    Decide,
    /// The answer leaves.
    Answer,
    /// The partner has hung up, or `answer_by` is over: no answer leaves.
    GiveUp,
    /// `answer_by` is over.
    AnswerBy,
    /// Half of the settling delay passes.
    Tick,
    /// The stream loses a job.
    LoseJob(usize),
    /// The stream loses a readiness event.
    LoseEvent(usize),
    /// A provisioner gets a job.
    TakeJob(usize, usize),
    /// A provisioner takes up an overdue row to buy it.
    TakeDue(usize, usize),
    /// A provisioner takes up an overdue row whose attempt's outcome isn't known, and looks it up.
    LookUp(usize, usize, Found),
    /// A provisioner takes up an overdue row and collects its profile.
    Collect(usize, usize),
    /// A provisioner gets the answer of its claim only now, and counts from here.
    StartClock(usize),
    /// A provisioner sends the purchase.
    Send(usize),
    /// A provisioner abandons an attempt that is too late to send.
    Abandon(usize),
    /// A purchase arrives at the provider, whose answer comes back or not.
    Arrive {
        request: usize,
        does: Does,
        answered: bool,
    },
    /// The provider's look-ups show a purchase from now on.
    Show(usize),
    /// A purchase never arrives. Its sender may know that for certain.
    Vanish { request: usize, noticed: bool },
    /// A provisioner waits no longer for the provider's answer.
    TimeOut(usize),
    /// A provisioner records an outcome.
    Record(usize),
    /// Ingress hears a verdict.
    Hear(usize),
    /// A provisioner gets ingress's reply.
    Reply(usize, Answer),
    /// A provisioner gets no reply.
    NoReply(usize),
    /// A provisioner publishes that a profile is stored.
    Announce(usize),
    /// The notifier gets a readiness event.
    TakeEvent(usize),
    /// The notifier takes up an overdue delivery.
    TakeDelivery(usize),
    /// The webhook is sent; the endpoint acknowledges it or not.
    Post { acknowledged: bool },
    /// The notifier records that it was acknowledged.
    RecordDelivery,
    /// Ingress dies.
    CrashIngress,
    /// A provisioner dies, and is started again.
    CrashProvisioner(usize),
    /// The notifier dies, and is started again.
    CrashNotifier,
}

/// What a look-up answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// The purchase; with its profile or not yet.
    Purchase { ready: bool },
    /// "No such purchase."
    Nothing,
    /// No definite answer.
    Unknown,
}

/// What the provider does with a purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Does {
    /// Buys; the profile comes with the answer or later.
    Buy { ready: bool },
    /// Refuses for good.
    Reject,
    /// Is too busy.
    Defer,
}

impl Protocol {
    /// Every action that this state allows.
    pub fn offers(&self, state: &State, actions: &mut Vec<Action>) {
        self.receives(state, actions);
        if !state.is_stored() {
            return;
        }
        for by in 0..state.provisioners.len() {
            self.provisions(state, by, actions);
        }
        Self::provider(state, actions);
        self.notifies(state, actions);
        for (index, row) in state.rows.iter().enumerate() {
            if row.job.is_some() {
                actions.push(Action::LoseJob(index));
            }
            if row.event {
                actions.push(Action::LoseEvent(index));
            }
        }
        actions.push(Action::Tick);
    }

    /// What an idle provisioner may claim.
    fn takes(&self, state: &State, by: usize, index: usize, actions: &mut Vec<Action>) {
        let row = &state.rows[index];
        let accepted = row.placement.state == PlacementState::Accepted;
        if row.job.is_some() && (accepted || !self.has(Safeguard::IdempotentClaim)) {
            actions.push(Action::TakeJob(by, index));
        }
        if !self.has(Safeguard::Redrive) {
            return;
        }
        // What is open is due some time and may be due now, what is closed is not: crate `store`
        // tests that of every statement.
        match row.placement.state {
            PlacementState::Accepted => actions.push(Action::TakeDue(by, index)),
            PlacementState::Placing if !self.has(Safeguard::LookUp) => {
                actions.push(Action::TakeDue(by, index));
            }
            PlacementState::Placing => {
                if row.shown {
                    actions.push(Action::LookUp(by, index, Found::Purchase { ready: true }));
                    actions.push(Action::LookUp(by, index, Found::Purchase { ready: false }));
                }
                let lies = !self.holds(Assumption::HonestLookUp) && state.faults > 0;
                if !row.shown || lies {
                    actions.push(Action::LookUp(by, index, Found::Nothing));
                }
                actions.push(Action::LookUp(by, index, Found::Unknown));
            }
            PlacementState::Placed if !row.ready => actions.push(Action::Collect(by, index)),
            _ => {}
        }
    }

    fn provisions(&self, state: &State, by: usize, actions: &mut Vec<Action>) {
        let Provisioner { work, .. } = state.provisioners[by];
        match work {
            // Two placements of one order are bought from two providers, each served by its own.
            Work::Idle if state.rows.len() > 1 => return self.takes(state, by, by, actions),
            // Of two that are alike one is enough.
            Work::Idle if by == 1 && state.provisioners[0] == state.provisioners[1] => return,
            Work::Idle => return self.takes(state, by, 0, actions),
            Work::Fresh { late, .. } => {
                if late && !self.has(Safeguard::EarlyClock) {
                    actions.push(Action::StartClock(by));
                }
                if late && self.has(Safeguard::Abandon) {
                    actions.push(Action::Abandon(by));
                } else {
                    actions.push(Action::Send(by));
                }
            }
            Work::Sent(_) => actions.push(Action::TimeOut(by)),
            Work::Settling(..) => actions.push(Action::Record(by)),
            Work::Telling { heard, .. } => {
                match state.ingress {
                    Ingress::Waiting if !heard => actions.push(Action::Hear(by)),
                    Ingress::Publishing | Ingress::Done => {
                        actions.push(Action::Reply(by, Answer::Created));
                        if state.answer == Some(Answer::Refused) {
                            actions.push(Action::Reply(by, Answer::Refused));
                        }
                    }
                    _ => {}
                }
                actions.push(Action::NoReply(by));
            }
            Work::Announcing(_) => actions.push(Action::Announce(by)),
        }
        if state.faults > 0 {
            actions.push(Action::CrashProvisioner(by));
        }
    }

    fn provider(state: &State, actions: &mut Vec<Action>) {
        for (request, sent) in state.requests.iter().enumerate() {
            if sent.bought {
                actions.push(Action::Show(request));
                continue;
            }
            let waits =
                |provisioner: &Provisioner| matches!(provisioner.work, Work::Sent(job) if sent.is_of(job));
            let awaited = state.provisioners.iter().any(waits);
            for does in [
                Does::Buy { ready: true },
                Does::Buy { ready: false },
                Does::Reject,
                Does::Defer,
            ] {
                if awaited {
                    actions.push(Action::Arrive {
                        request,
                        does,
                        answered: true,
                    });
                }
            }
            actions.push(Action::Arrive {
                request,
                does: Does::Buy { ready: false },
                answered: false,
            });
            // Nothing bought and nothing answered is the same as never arrived.
            actions.push(Action::Vanish {
                request,
                noticed: false,
            });
            if awaited {
                actions.push(Action::Vanish {
                    request,
                    noticed: true,
                });
            }
        }
    }

    fn notifies(&self, state: &State, actions: &mut Vec<Action>) {
        let faulty = state.faults > 0;
        match state.notifier {
            Notifier::Idle => {
                for (index, row) in state.rows.iter().enumerate() {
                    if row.delivery != Delivery::Pending {
                        continue;
                    }
                    if row.event {
                        actions.push(Action::TakeEvent(index));
                    }
                    let due = state.late || !self.has(Safeguard::AnswerBy);
                    if self.has(Safeguard::Redrive) && due {
                        actions.push(Action::TakeDelivery(index));
                    }
                }
            }
            Notifier::Taken(_) => {
                actions.push(Action::Post { acknowledged: true });
                if faulty {
                    actions.extend([Action::Post { acknowledged: false }, Action::CrashNotifier]);
                }
            }
            Notifier::Acknowledged(_) => {
                actions.push(Action::RecordDelivery);
                if faulty {
                    actions.push(Action::CrashNotifier);
                }
            }
        }
    }

    fn receives(&self, state: &State, actions: &mut Vec<Action>) {
        match state.ingress {
            Ingress::Checking => {
                actions.extend([Action::Store { waits: true }, Action::Store { waits: false }]);
                return;
            }
            Ingress::Answering | Ingress::Standing => {
                if !state.late || !self.has(Safeguard::AnswerBy) {
                    actions.push(Action::Answer);
                }
                actions.push(Action::GiveUp);
            }
            Ingress::Refusing => actions.extend([Action::Answer, Action::GiveUp]),
            Ingress::Publishing | Ingress::Asking => actions.push(Action::Publish),
            Ingress::Waiting => actions.push(Action::Decide),
            Ingress::Done | Ingress::Crashed => {}
        }
        if state.faults > 0 && !matches!(state.ingress, Ingress::Done | Ingress::Crashed) {
            actions.push(Action::CrashIngress);
        }
        if !state.late {
            actions.push(Action::AnswerBy);
        }
    }
}
